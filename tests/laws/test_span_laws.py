"""The algebra of spans, against a naive model of collection.

`World` is a short stream with keys and "before n" events, and says by brute force which rows survive below an asof
(Sprinkler's filter(), A1.21). True spans are cut out of it at random; whatever slice, join, filter and collect make
of them must again be true, and the laws must hold for every order of doing things.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tidings.core.errors import BadInput, Contradiction
from tidings.core.lens import ALL, Lens
from tidings.core.rows import DATA, GC, NO_ROWS, ROW_SCHEMA, ArrowRows, CountedRows, Origin, Rows, data_rows
from tidings.core.span import Span, compact, join

STREAM = "prices"
THIRDS = Lens("seq % 3 <> 0", 1)
SIZE = 10

laws = settings(deadline=None, max_examples=60)


class World:
    """A stream of events: bytes or None is the key of a data event, a number n is the event "before n"."""

    def __init__(self, events: Sequence[bytes | int | None], cuts: Iterable[int], counted: bool) -> None:
        self.events = events
        self.end = len(events) + 1
        self.counted = counted
        starts = [1, *sorted(cuts)]
        stops = [*starts[1:], self.end]
        self.origins = tuple(
            Origin(lo, hi, f"publisher-{lo % 3}", 1, 100 + lo, lo << 11, float(lo), "us")
            for lo, hi in zip(starts, stops, strict=True)
        )

    def event(self, seq: int) -> bytes | int | None:
        return self.events[seq - 1]

    def collects(self, later: int, seq: int) -> bool:
        """Whether a later event matches an earlier one."""
        by, event = self.event(later), self.event(seq)
        return seq < by if isinstance(by, int) else by is not None and by == event

    def alive(self, seq: int, asof: int) -> bool:
        return not any(self.collects(later, seq) for later in range(seq + 1, asof))

    def rows(self, lo: int, hi: int, seqs: Iterable[int], changed: int | None = None) -> Rows:
        """Exactly these rows; the content of one of them can be falsified."""
        kept = sorted(seqs)
        if self.counted:
            return self._counted(kept, changed)
        events = [self.event(seq) for seq in kept]
        payloads = [b"" if seq == changed else b"payload %d" % seq for seq in kept]
        columns = [
            pa.array([GC if isinstance(event, int) else DATA for event in events], pa.uint8()),
            pa.array([None if isinstance(event, int) else event for event in events], pa.binary()),
            pa.array(payloads, pa.binary()),
            pa.array([event if isinstance(event, int) else None for event in events], pa.int64()),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)
        origins = []
        for origin in self.origins:
            inside = [seq for seq in kept if origin.lo <= seq < origin.hi]
            if inside:
                origins.append(origin.narrow(inside[0], inside[-1] + 1))
        return ArrowRows(np.array(kept, dtype=np.int64), batch, tuple(origins))

    def _counted(self, kept: list[int], changed: int | None) -> CountedRows:
        if not kept:
            return NO_ROWS
        assert kept == list(range(kept[0], kept[-1] + 1)), "before-n collection leaves one run"
        events = [(seq, self.event(seq)) for seq in kept]
        collectors = tuple((seq, event) for seq, event in events if isinstance(event, int))
        return CountedRows(kept[0], kept[-1] + 1, SIZE + (changed in kept), collectors)

    def survivors(self, lo: int, hi: int, asof: int) -> set[int]:
        return {seq for seq in range(lo, hi) if self.alive(seq, asof)}

    def span(self, lo: int, hi: int, asof: int) -> Span:
        """The true span."""
        return Span(STREAM, lo, hi, asof, self.rows(lo, hi, self.survivors(lo, hi, asof)))


@st.composite
def worlds(draw: st.DrawFn, counted: bool | None = None) -> World:
    if counted is None:
        counted = draw(st.booleans())
    size = draw(st.integers(1, 16))
    keys = st.none() if counted else st.sampled_from([None, b"", b"a", b"b"])
    events = []
    for seq in range(1, size + 1):
        before = draw(st.integers(1, seq)) if draw(st.integers(0, 5)) == 0 else None
        events.append(before if before is not None else draw(keys))
    return World(events, draw(st.sets(st.integers(2, max(2, size)), max_size=4)) if size > 1 else (), counted)


@st.composite
def spans(draw: st.DrawFn, world: World) -> Span:
    lo = draw(st.integers(1, world.end - 1))
    return world.span(lo, draw(st.integers(lo + 1, world.end)), draw(st.integers(1, world.end)))


@st.composite
def knowledge(draw: st.DrawFn, world: World, holes: bool = True) -> list[Span]:
    """A true knowledge list: disjoint, ascending, not coalesced."""
    cuts = sorted({1, world.end, *draw(st.sets(st.integers(1, world.end), max_size=5))})
    out = []
    for lo, hi in pairwise(cuts):
        if not (holes and draw(st.integers(0, 3)) == 0):
            out.append(world.span(lo, hi, draw(st.integers(1, world.end))))
    return out


@st.composite
def worlds_with(draw: st.DrawFn, lists: int, counted: bool | None = None) -> tuple[World, list[list[Span]]]:
    world = draw(worlds(counted))
    return world, [draw(knowledge(world)) for _ in range(lists)]


def claims(known: Iterable[Span]) -> dict[int, tuple[int, bool]]:
    """What is claimed of each number: as of when, and whether it has a row."""
    out = {}
    for span in known:
        present = set(span.rows.numbers.tolist())
        out.update({seq: (max(seq, span.asof), seq in present) for seq in range(span.lo, span.hi)})
    return out


def thirds(span: Span) -> Span:
    """The span through the lens THIRDS (for Arrow rows)."""
    return span.filter(THIRDS, span.rows.numbers % 3 != 0)


# --- slice, collect, filter -----------------------------------------------------------------------------


@laws
@given(st.data())
def test_a_slice_of_a_true_span_is_the_true_span_of_the_smaller_range(data: st.DataObject) -> None:
    world = data.draw(worlds())
    span = data.draw(spans(world))
    lo = data.draw(st.integers(span.lo, span.hi - 1))
    hi = data.draw(st.integers(lo + 1, span.hi))
    part = span.slice(lo, hi)
    assert part.rows == world.span(lo, hi, span.asof).rows
    assert claims([part]) == claims([world.span(lo, hi, span.asof)])
    assert part is span or part.asof == max(span.asof, lo)


@laws
@given(st.data())
def test_slices_compose(data: st.DataObject) -> None:
    world = data.draw(worlds())
    span = data.draw(spans(world))
    lo = data.draw(st.integers(span.lo, span.hi - 1))
    hi = data.draw(st.integers(lo + 1, span.hi))
    lo2 = data.draw(st.integers(1, hi - 1))
    hi2 = data.draw(st.integers(max(lo, lo2) + 1, world.end))
    assert span.slice(lo, hi).slice(lo2, hi2) == span.slice(max(lo, lo2), min(hi, hi2))


@laws
@given(st.data())
def test_slices_joined_in_any_order_give_the_span_back(data: st.DataObject) -> None:
    world = data.draw(worlds())
    span = data.draw(spans(world))
    cuts = sorted({span.lo, span.hi, *data.draw(st.sets(st.integers(span.lo, span.hi), max_size=4))})
    parts = [span.slice(lo, hi) for lo, hi in pairwise(cuts)]
    known: tuple[Span, ...] = ()
    for part in data.draw(st.permutations(parts)):
        known = join(known, [part])
    assert known == join([span], [])
    assert known[0].digest == join([span], [])[0].digest
    assert len(known) == 1


def test_a_slice_that_has_nothing_in_common_with_the_span_is_bad_input() -> None:
    with pytest.raises(BadInput, match=r"\[5, 9\)"):
        Span(STREAM, 5, 9, 5, NO_ROWS).slice(9, 12)


@laws
@given(st.data())
def test_collect_makes_the_true_span_of_a_later_asof(data: st.DataObject) -> None:
    world = data.draw(worlds())
    span = data.draw(spans(world))
    asof = data.draw(st.integers(span.asof, world.end))
    keep = np.array([world.alive(seq, asof) for seq in span.rows.numbers.tolist()], dtype=bool)
    assert span.collect(asof, keep) == world.span(span.lo, span.hi, asof)


def test_collection_never_goes_back() -> None:
    with pytest.raises(BadInput, match="from asof 9 not to 8"):
        Span(STREAM, 1, 5, 9, NO_ROWS).collect(8, np.zeros(0, dtype=bool))


@laws
@given(st.data())
def test_filter_commutes_with_slice_and_collect(data: st.DataObject) -> None:
    world = data.draw(worlds(counted=False))
    span = data.draw(spans(world))
    lo = data.draw(st.integers(span.lo, span.hi - 1))
    hi = data.draw(st.integers(lo + 1, span.hi))
    assert thirds(span).slice(lo, hi) == thirds(span.slice(lo, hi))
    keep = np.array([world.alive(seq, world.end) for seq in span.rows.numbers.tolist()], dtype=bool)
    filtered = thirds(span)
    seen = keep[np.isin(span.rows.numbers, filtered.rows.numbers)]
    assert filtered.collect(world.end, seen) == thirds(span.collect(world.end, keep))


@laws
@given(worlds_with(2, counted=False))
def test_filter_distributes_over_join(drawn: tuple[World, list[list[Span]]]) -> None:
    _, (a, b) = drawn
    through = join([thirds(span) for span in a], [thirds(span) for span in b])
    assert through == join([thirds(span) for span in join(a, b)], [])


# --- join -----------------------------------------------------------------------------------------------


@laws
@given(worlds_with(3))
def test_join_is_associative(drawn: tuple[World, list[list[Span]]]) -> None:
    _, (a, b, c) = drawn
    assert join(join(a, b), c) == join(a, join(b, c))


@laws
@given(worlds_with(2))
def test_join_is_commutative(drawn: tuple[World, list[list[Span]]]) -> None:
    _, (a, b) = drawn
    assert join(a, b) == join(b, a)


@laws
@given(worlds_with(2))
def test_join_is_idempotent(drawn: tuple[World, list[list[Span]]]) -> None:
    _, (a, b) = drawn
    known = join(a, b)
    assert join(known, known) == known
    assert join(known, a) == known
    assert join(a, a) == join(a, ())


@laws
@given(worlds_with(2))
def test_join_keeps_the_claim_with_the_larger_asof_for_every_number(drawn: tuple[World, list[list[Span]]]) -> None:
    world, (a, b) = drawn
    mine, yours, known = claims(a), claims(b), claims(join(a, b))
    assert known.keys() == mine.keys() | yours.keys(), "coverage is the union"
    for seq, claim in known.items():
        assert claim == max([side[seq] for side in (mine, yours) if seq in side], key=lambda side: side[0])
        assert claim[1] == world.alive(seq, claim[0])


@laws
@given(worlds_with(2))
def test_joined_knowledge_is_true_disjoint_and_coalesced_maximally(drawn: tuple[World, list[list[Span]]]) -> None:
    world, (a, b) = drawn
    known = join(a, b)
    for span in known:
        assert span.rows == world.span(span.lo, span.hi, span.asof).rows
    for span, later in pairwise(known):
        assert span.hi <= later.lo
        together = claims([span, later])
        one = [asof for asof in range(1, world.end + 1) if claims([world.span(span.lo, later.hi, asof)]) == together]
        assert span.hi < later.lo or not one, "no single span says the same"


@laws
@given(worlds(), st.randoms(use_true_random=False))
def test_published_batches_become_one_span_in_whatever_order_they_come(world: World, random: object) -> None:
    known: tuple[Span, ...] = ()
    batches = [world.span(origin.lo, origin.hi, origin.lo) for origin in world.origins]
    random.shuffle(batches)  # type: ignore[attr-defined]
    for batch in batches:
        assert batch.full
        known = join(known, [batch])
    assert known == (world.span(1, world.end, 1),)


def test_joining_does_not_change_what_it_is_given() -> None:
    first, second = [Span(STREAM, 1, 5, 1, CountedRows(1, 5, SIZE))], [Span(STREAM, 3, 9, 7, CountedRows(6, 9, SIZE))]
    join(first, second)
    assert first == [Span(STREAM, 1, 5, 1, CountedRows(1, 5, SIZE))]
    assert second == [Span(STREAM, 3, 9, 7, CountedRows(6, 9, SIZE))]


def test_a_list_out_of_order_is_bad_input() -> None:
    late, early = Span(STREAM, 5, 9, 5, NO_ROWS), Span(STREAM, 1, 6, 5, NO_ROWS)
    with pytest.raises(BadInput, match="ascending"):
        join([late, early], [])


@pytest.mark.parametrize("lo", [1, 5])
def test_spans_of_different_streams_are_bad_input(lo: int) -> None:
    with pytest.raises(BadInput, match="other"):
        join([Span(STREAM, 1, 5, 5, NO_ROWS)], [Span("other", lo, lo + 4, 5, NO_ROWS)])


# --- lenses ---------------------------------------------------------------------------------------------


def test_overlapping_spans_of_unequal_lenses_are_not_joined() -> None:
    rows = CountedRows(1, 9, SIZE)
    with pytest.raises(BadInput, match=r"prices \[3, 9\).*'a = 1' \(version 2\)"):
        join([Span(STREAM, 1, 9, 1, rows)], [Span(STREAM, 3, 12, 30, NO_ROWS, Lens("a = 1", 2))])


@pytest.mark.parametrize("lens", [Lens("a = 1", 1), Lens("", 1)])
def test_neighbours_of_unequal_lenses_stay_apart_in_one_list(lens: Lens) -> None:
    wide, narrow = Span(STREAM, 1, 5, 9, NO_ROWS, ALL), Span(STREAM, 5, 9, 9, NO_ROWS, lens)
    assert join([wide], [narrow]) == join([narrow], [wide]) == (wide, narrow)


# --- contradictions -------------------------------------------------------------------------------------


def planted(world: World, lo: int, hi: int, asof: int, seqs: set[int], changed: int | None = None) -> Span:
    """A claim that need not be true."""
    return Span(STREAM, lo, hi, asof, world.rows(lo, hi, seqs, changed))


def asof_of(known: Iterable[Span], seq: int) -> int:
    return next(max(span.asof, span.lo) for span in known if span.lo <= seq < span.hi)


def refuses(a: Sequence[Span], b: Sequence[Span]) -> str:
    """Both orders raise; the text of one of them."""
    with pytest.raises(Contradiction):
        join(b, a)
    with pytest.raises(Contradiction) as caught:
        join(a, b)
    return str(caught.value)


@laws
@given(st.data())
def test_a_changed_row_is_refused(data: st.DataObject) -> None:
    world = data.draw(worlds())
    known = data.draw(knowledge(world, holes=False))
    seq = data.draw(st.sampled_from(sorted(world.survivors(1, world.end, world.end))))
    lo, hi = data.draw(st.integers(1, seq)), data.draw(st.integers(seq + 1, world.end))
    asof = data.draw(st.integers(1, world.end))
    lie = planted(world, lo, hi, asof, world.survivors(lo, hi, asof), changed=seq)
    text = refuses(known, [lie])
    assert STREAM in text and "differs in content" in text


@laws
@given(st.data())
def test_a_row_that_comes_back_at_an_equal_or_larger_asof_is_refused(data: st.DataObject) -> None:
    world = data.draw(worlds())
    known = data.draw(knowledge(world, holes=False))
    dead = sorted(seq for seq, (_, present) in claims(known).items() if not present)
    assume(dead)
    seq = dead[-1]
    asof = data.draw(st.integers(asof_of(known, seq), world.end))
    lie = planted(
        world, seq, world.end, asof, {seq} | world.survivors(seq, world.end, seq + 1 if world.counted else asof)
    )
    text = refuses(known, [lie])
    assert STREAM in text and f"row {seq} is there" in text and f"as of {asof}" in text


@laws
@given(st.data())
def test_a_row_missing_at_an_equal_or_smaller_asof_is_refused(data: st.DataObject) -> None:
    world = data.draw(worlds())
    known = data.draw(knowledge(world, holes=False))
    present = sorted(seq for seq, (_, there) in claims(known).items() if there)
    seq = data.draw(st.sampled_from(present))
    asof = data.draw(st.integers(1, asof_of(known, seq)))
    lo = data.draw(st.integers(1, seq))
    left = {other for other in world.survivors(lo, seq + 1, asof) if other != seq}
    lie = planted(world, lo, seq + 1, asof, left)
    text = refuses(known, [lie])
    assert STREAM in text and f"row {seq} " in text


@laws
@given(st.data())
def test_a_row_missing_where_nothing_can_have_collected_it_is_refused(data: st.DataObject) -> None:
    world = data.draw(worlds())
    known = data.draw(knowledge(world, holes=False))
    seq = data.draw(st.integers(1, world.end - 1))
    assume(claims(known)[seq][1])
    lo, asof = data.draw(st.integers(1, seq)), data.draw(st.integers(1, seq))
    lie = planted(world, lo, seq + 1, asof, set(range(lo, seq)) & world.survivors(lo, seq, asof))
    assert f"row {seq} " in refuses(known, [lie])


def test_a_changed_collector_is_refused() -> None:
    true = Span(STREAM, 1, 9, 1, CountedRows(1, 9, SIZE, ((5, 3),)))
    assert "row 5 as of 1 differs" in refuses([true], [Span(STREAM, 1, 9, 1, CountedRows(1, 9, SIZE, ((5, 4),)))])


def test_counted_and_arrow_rows_of_one_range_are_refused() -> None:
    arrow = Span.of(STREAM, 1, data_rows(1, None, [b"a", b"b"]))
    assert "row 1" in refuses([arrow], [Span.of(STREAM, 1, CountedRows(1, 3, SIZE))])


def test_a_contradiction_names_stream_range_asof_and_row() -> None:
    older = Span(STREAM, 1, 9, 20, CountedRows(6, 9, SIZE))
    newer = Span(STREAM, 4, 9, 30, CountedRows(5, 9, SIZE))
    assert refuses([older], [newer]) == "prices [4, 9): row 5 is there as of 30 but not as of 20"


# --- lost -----------------------------------------------------------------------------------------------


def without(span: Span, lo: int, hi: int) -> Span:
    """The span with a part of it declared lost."""
    rows = span.rows
    kept = rows.take((rows.numbers < lo) | (rows.numbers >= hi))
    return Span(span.stream, span.lo, span.hi, span.asof, kept, span.lens, ((lo, hi),))


@st.composite
def lossy(draw: st.DrawFn, world: World) -> list[Span]:
    """A true knowledge list, of which parts are lost where it was made."""
    out = []
    for span in draw(knowledge(world)):
        lo = span.lo if world.counted else draw(st.integers(span.lo, span.hi - 1))
        hi = span.hi if world.counted else draw(st.integers(lo + 1, span.hi))
        out.append(without(span, lo, hi) if draw(st.booleans()) else span)
    return out


@st.composite
def lossy_worlds(draw: st.DrawFn, lists: int) -> tuple[World, list[list[Span]]]:
    world = draw(worlds())
    return world, [draw(lossy(world)) for _ in range(lists)]


def numbers_lost(known: Iterable[Span]) -> set[int]:
    return {seq for span in known for lo, hi in span.lost for seq in range(lo, hi)}


@laws
@given(lossy_worlds(3))
def test_join_with_lost_ranges_is_associative_commutative_and_idempotent(
    drawn: tuple[World, list[list[Span]]],
) -> None:
    _, (a, b, c) = drawn
    assert join(join(a, b), c) == join(a, join(b, c))
    assert join(a, b) == join(b, a)
    known = join(a, b)
    assert join(known, known) == join(known, a) == known
    assert [span.digest for span in known] == [span.digest for span in join(b, a)]


@laws
@given(lossy_worlds(2))
def test_lost_fills_only_what_is_unknown(drawn: tuple[World, list[list[Span]]]) -> None:
    world, (a, b) = drawn
    known = join(a, b)
    covered = claims(a).keys() | claims(b).keys()
    sure = {seq for side in (a, b) for seq in claims(side).keys() - numbers_lost(side)}
    assert claims(known).keys() == covered
    assert numbers_lost(known) == covered - sure
    assert all(present == world.alive(seq, asof) for seq, (asof, present) in claims(known).items() if seq in sure)
    assert all(not span.lost or span.lost == ((span.lo, span.hi),) for span in known), "a span of its own"


@laws
@given(st.data())
def test_what_is_lost_is_sliced_filtered_and_collected_with_its_span(data: st.DataObject) -> None:
    world = data.draw(worlds(counted=False))
    span = data.draw(spans(world))
    first = data.draw(st.integers(span.lo, span.hi - 1))
    holed = without(span, first, data.draw(st.integers(first + 1, span.hi)))
    lo = data.draw(st.integers(span.lo, span.hi - 1))
    hi = data.draw(st.integers(lo + 1, span.hi))
    inside = {seq for seq in numbers_lost([holed]) if lo <= seq < hi}
    part = holed.slice(lo, hi)
    assert numbers_lost([part]) == inside == numbers_lost([thirds(part)])
    assert part.collect(world.end, np.zeros(part.rows.count, dtype=bool)).lost == part.lost
    assert part.digest != span.slice(lo, hi).digest or not inside


def test_a_declared_loss_is_full_because_nothing_in_it_was_collected() -> None:
    loss = Span.declared_lost(STREAM, 5, 9)
    assert loss.full and loss.empty and loss.lost_count == 4
    assert not Span(STREAM, 5, 9, 9, NO_ROWS).full


# --- compact --------------------------------------------------------------------------------------------


@laws
@given(worlds_with(1))
def test_compacting_forgets_asofs_and_nothing_else(drawn: tuple[World, list[list[Span]]]) -> None:
    world, (known,) = drawn
    less = compact(known)
    before, after = claims(known), claims(less)
    assert before.keys() == after.keys()
    assert all(after[seq][1] == present and after[seq][0] <= asof for seq, (asof, present) in before.items())
    assert all(span.rows == world.span(span.lo, span.hi, span.asof).rows for span in less)
    assert not any(a.full and b.full and a.hi == b.lo for a, b in pairwise(less))
    assert compact(less) == less


@laws
@given(worlds_with(2))
def test_compacted_knowledge_joins_to_the_same_coverage_and_rows(drawn: tuple[World, list[list[Span]]]) -> None:
    world, (a, b) = drawn
    exact, rough = claims(join(a, b)), claims(join(compact(a), b))
    assert exact.keys() == rough.keys()
    assert all(rough[seq] == (rough[seq][0], world.alive(seq, rough[seq][0])) for seq in rough)
    assert all(rough[seq][1] == present for seq, (_, present) in exact.items())


def test_compacting_inside_join_would_not_be_associative() -> None:
    published = Span(STREAM, 1, 3, 1, data_rows(1, [b"a", b"b"], [b""] * 2))
    recent = Span(STREAM, 3, 5, 20, data_rows(3, [b"c", b"d"], [b""] * 2))
    collected = Span(STREAM, 5, 8, 20, NO_ROWS)
    left = compact(join(compact(join([published], [recent])), [collected]))
    right = compact(join([published], compact(join([recent], [collected]))))
    assert [(span.lo, span.hi, span.asof) for span in left] == [(1, 5, 1), (5, 8, 20)]
    assert [(span.lo, span.hi, span.asof) for span in right] == [(1, 3, 1), (3, 8, 20)]
    assert join(join([published], [recent]), [collected]) == join([published], join([recent], [collected]))
