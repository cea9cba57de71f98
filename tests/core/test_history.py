"""A history answers like the naive model, however its spans came, and refuses what cannot be true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from core.naive import KEY_PREDICATES, PREDICATES, Event, Naive, events_of
from tidings.core import chunks
from tidings.core.chunks import Chunks
from tidings.core.errors import AsofGone, BadInput, Contradiction, NotYet
from tidings.core.gc import GcPolicy
from tidings.core.history import History
from tidings.core.keyindex import KeyIndex
from tidings.core.lens import Lens
from tidings.core.rows import NO_ROWS, ArrowRows, CountedRows, Origin, before_rows, data_rows
from tidings.core.small_rows import SmallRows
from tidings.core.span import Span

SMALL = {"CHUNK_ROWS": 6, "SMALL_ROWS": 3, "SMALL_RUN": 3, "GATHER_ROWS": 3, "FEW": 4, "TAIL_ROWS": 7}
KEYS = [b"", b"a", b"key-of-ten", b"a key that is longer than sixteen bytes", None]
NAMES = st.sampled_from(["owner", "mirror", "third"])
FRACTION = st.integers(0, 1000)


def at(fraction: int, lo: int, hi: int) -> int:
    """A number in [lo, hi]."""
    return lo + (hi - lo) * fraction // 1000


TENANTS = [None, "acme", "beta"]
WHERE = st.none() | st.none() | st.integers(0, 5)


def predicate_or_data(
    by_key: bool, key: bytes | None, tenant: str | None, where: int | None
) -> tuple[bytes | None, None, str | None, str | None]:
    """Fields of a naive event: data, or a predicate that such a stream may have."""
    if where is None:
        return key, None, tenant, None
    allowed = sorted(KEY_PREDICATES if by_key else PREDICATES)
    return None, None, None, allowed[where % len(allowed)]


def as_lists(span: Span) -> Span:
    """The span with its rows as lists, if they can be."""
    rows = span.rows
    if not isinstance(rows, ArrowRows) or rows.seqs is not None or not rows.count or not rows.plain:
        return span
    kinds, keys, payloads = [rows.batch.column(name).to_pylist() for name in ("kind", "key", "payload")]
    if any(kinds):
        return span
    return replace(span, rows=SmallRows(keys, payloads, rows.first, rows.origins))


class Histories(RuleBasedStateMachine):
    """An owner that publishes, a mirror that hears from senders with any asof, a third that hears from the mirror."""

    policy = "by-key"
    counted = False
    dict_limit = 8192
    listed = False  # rows come as lists wherever they can

    def __init__(self) -> None:
        super().__init__()
        self.saved = {name: getattr(chunks, name) for name in SMALL}
        for name, value in SMALL.items():
            setattr(chunks, name, value)
        policy = GcPolicy.parse(self.policy)
        self.truth = Naive(policy.by_key, self.counted)
        self.all = {name: self.fresh(policy) for name in ("owner", "mirror", "third")}
        self.leases: dict[str, dict[str, int]] = {name: {} for name in self.all}

    def fresh(self, policy: GcPolicy) -> History:
        history = History("s", policy, self.counted)
        if isinstance(history._store, Chunks) and policy.by_key:
            history._store.index = KeyIndex(dict_limit=self.dict_limit)
        return history

    def teardown(self) -> None:
        for name, value in self.saved.items():
            setattr(chunks, name, value)

    @rule(batch=st.lists(st.tuples(st.sampled_from(KEYS), st.none() | FRACTION), min_size=1, max_size=8))
    def publish(self, batch: list[tuple[bytes | None, int | None]]) -> None:
        horizon = self.truth.horizon
        events = [
            (None if self.counted or fraction is not None else key,
             None if fraction is None or fraction % 4 else at(fraction, 1, horizon + i))
            for i, (key, fraction) in enumerate(batch)
        ]  # fmt: skip
        span = self.truth.publish(events)
        assert self.all["owner"].accept(as_lists(span) if self.listed else span) == span

    @precondition(lambda self: not self.counted)
    @rule(batch=st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(TENANTS), WHERE), min_size=1, max_size=8))
    def publish_predicates(self, batch: list[tuple[bytes | None, str | None, int | None]]) -> None:
        span = self.truth.publish([predicate_or_data(self.truth.by_key, *fields) for fields in batch])
        assert self.all["owner"].accept(span) == span

    @rule(overlap=st.integers(0, 6), size=st.integers(1, 12), asof=FRACTION)
    def mirror_hears(self, overlap: int, size: int, asof: int) -> None:
        mirror = self.all["mirror"]
        lo = max(1, mirror.horizon - overlap)
        hi = min(lo + size, self.truth.horizon)
        if lo < hi:
            self.take("mirror", self.truth.span(lo, hi, at(asof, lo, self.truth.horizon)))

    @rule(source=st.sampled_from(["owner", "mirror"]), overlap=st.integers(0, 6), limit=st.integers(1, 9))
    def third_hears(self, source: str, overlap: int, limit: int) -> None:
        third = self.all["third"]
        for span in self.all[source].know(max(1, third.horizon - overlap), self.truth.horizon, limit):
            self.take("third", span)

    def take(self, name: str, span: Span) -> None:
        history = self.all[name]
        horizon, floor = history.horizon, history.floor
        new = history.accept(as_lists(span) if self.listed else span)
        if span.hi <= horizon:
            assert new is None
            assert (history.horizon, history.floor) == (horizon, floor)
            return
        assert new is not None and (new.lo, new.hi) == (horizon, span.hi)
        assert history.horizon == span.hi
        assert history.floor == (floor if new.full else max(floor, new.asof))

    @rule(lie=st.data(), size=st.integers(2, 12), asof=FRACTION)
    def mirror_refuses_a_row_that_a_row_beside_it_collects(self, lie: Any, size: int, asof: int) -> None:
        mirror = self.all["mirror"]
        lo, hi = mirror.horizon, min(mirror.horizon + size, self.truth.horizon)
        if lo >= hi:
            return
        asof = at(asof, lo, self.truth.horizon)
        told = self.truth.survivors(lo, hi, asof)
        dead = [
            event
            for event in self.truth.events[lo - 1 : hi - 1]
            if event not in told and any(self.truth.matches(other, event) and other.seq < asof for other in told)
        ]
        if not dead:
            return
        events = sorted([*told, lie.draw(st.sampled_from(dead))])
        if self.counted:
            events = self.truth.events[events[0].seq - 1 : hi - 1]
        before = snapshot(mirror)
        with pytest.raises(Contradiction):
            mirror.accept(Span("s", lo, hi, asof, self.truth.rows(events)))
        assert snapshot(mirror) == before

    @rule(name=NAMES, holder=st.sampled_from(["a", "b"]), asof=FRACTION)
    def lease(self, name: str, holder: str, asof: int) -> None:
        history = self.all[name]
        asof = at(asof, 1, max(history.horizon, history.floor))
        if asof < history.floor:
            with pytest.raises(AsofGone):
                history.lease(holder, asof)
        else:
            history.lease(holder, asof)
            self.leases[name][holder] = asof

    @rule(name=NAMES, holder=st.sampled_from(["a", "b"]))
    def release(self, name: str, holder: str) -> None:
        self.all[name].release(holder)
        self.leases[name].pop(holder, None)

    @rule(name=NAMES, limit=st.integers(1, 9))
    def a_copy_of_what_leases_keep_answers_for_as_much(self, name: str, limit: int) -> None:
        history = self.all[name]
        if history.horizon == 1:
            return
        copy = History("s", history.policy, counted=self.counted)
        while copy.horizon < history.horizon:
            for span in history.kept(copy.horizon, history.horizon, limit):
                copy.accept(span)
        since = max(history.floor, min(self.leases[name].values(), default=history.horizon))
        assert copy.floor <= max(since, history.horizon)
        for asof in range(since, history.horizon + 1):
            assert copy.rows(1, history.horizon, asof) == history.rows(1, history.horizon, asof)
        for asof in self.leases[name].values():
            dead = {event.seq for event in self.truth.survivors(1, history.horizon, max(asof, history.floor))}
            dead -= {event.seq for event in self.truth.survivors(1, history.horizon, history.horizon)}
            assert bool(history.held(max(asof, history.floor))) == bool(dead) or history.horizon < history.floor

    @rule(name=NAMES, budget=st.integers(1, 40))
    def purge(self, name: str, budget: int) -> None:
        history = self.all[name]
        floor, stored, live = history.floor, history.rows_stored, history.live
        dropped = history.purge(budget)
        assert history.rows_stored == stored - dropped and history.live == live
        if history.horizon < floor:
            assert (dropped, history.floor) == (0, floor)
        assert floor <= history.floor <= max(floor, min(history.horizon, *self.leases[name].values(), 1 << 62))

    @rule(name=NAMES, lo=FRACTION, hi=FRACTION, asof=FRACTION)
    def rows_are_those_of_the_model(self, name: str, lo: int, hi: int, asof: int) -> None:
        history = self.all[name]
        if history.floor > history.horizon or history.horizon == 1:
            return
        lo = at(lo, 1, history.horizon - 1)
        hi = at(hi, lo + 1, history.horizon)
        asof = at(asof, history.floor, history.horizon)
        span = history.rows(lo, hi, asof)
        assert (span.lo, span.hi, span.asof) == (lo, hi, max(lo, asof))
        assert events_of(span.rows) == self.truth.survivors(lo, hi, asof)

    @rule(name=NAMES, lo=FRACTION, limit=st.integers(1, 9))
    def know_stops_at_the_limit(self, name: str, lo: int, limit: int) -> None:
        history = self.all[name]
        lo = at(lo, 1, history.horizon)
        spans = history.know(lo, history.horizon, limit)
        self.check_knowledge(spans, lo)
        count = sum(span.rows.count for span in spans)
        assert count <= limit
        assert count == limit or not spans or spans[-1].hi == history.horizon

    def check_knowledge(self, spans: list[Span], lo: int) -> None:
        for span in spans:
            assert span.lo == lo < span.hi
            assert events_of(span.rows) == self.truth.survivors(span.lo, span.hi, span.asof)
            if isinstance(span.rows, ArrowRows):
                expected = self.truth.span(span.lo, span.hi, span.asof).rows
                assert isinstance(expected, ArrowRows) and span.rows == expected
            lo = span.hi

    @invariant()
    def everything_known_is_true(self) -> None:
        for history in self.all.values():
            horizon = history.horizon
            spans = history.know(1, horizon)
            self.check_knowledge(spans, 1)
            assert (spans[-1].hi if spans else 1) == horizon
            assert history.rows_stored >= history.live
            assert history.collected == horizon - 1 - history.live
            if horizon >= history.floor:
                assert len(spans) <= 1
                alive = self.truth.survivors(1, horizon, horizon)
                assert history.live == len(alive)
                assert history.low == max([e.before or 1 for e in self.truth.events[: horizon - 1]], default=1)

    @invariant()
    def killers_are_those_of_the_model(self) -> None:
        for history in self.all.values():
            for event in self.truth.events[: history.horizon - 1]:
                killer = history.killer(event.seq)
                if killer != "gone" and history.horizon >= history.floor:
                    seen = self.truth.killer(event)
                    assert killer == (seen if seen is not None and seen < history.horizon else None)

    @precondition(lambda self: self.truth.events)
    @rule()
    def the_owner_has_counted_the_collected_collectors(self) -> None:
        low = self.all["owner"].low
        expected = sum(event.before is not None and event.seq < low for event in self.truth.events)
        assert self.all["owner"].collected_collectors == expected


class CompiledHistories(Histories):
    dict_limit = 0


class ListedHistories(Histories):
    listed = True


class CompiledListedHistories(CompiledHistories):
    listed = True


class UnkeyedHistories(Histories):
    policy = "none"


class CountedHistories(Histories):
    policy = "none"
    counted = True


def snapshot(history: History) -> tuple[Any, ...]:
    """All that can be seen of a history."""
    spans = history.know(1, history.horizon)
    index = history._store.index if isinstance(history._store, Chunks) else None
    return (
        history.horizon, history.floor, history.low, history.live, history.rows_stored, history.collected_collectors,
        [(span.lo, span.hi, span.asof, events_of(span.rows)) for span in spans], len(index) if index else 0,
    )  # fmt: skip


MANY = settings(max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
for machine in (
    *(Histories, CompiledHistories, UnkeyedHistories, CountedHistories),
    *(ListedHistories, CompiledListedHistories),
):
    machine.TestCase.settings = MANY
TestByKey = Histories.TestCase
TestByKeyCompiled = CompiledHistories.TestCase
TestUnkeyed = UnkeyedHistories.TestCase
TestCounted = CountedHistories.TestCase
TestListed = ListedHistories.TestCase
TestListedCompiled = CompiledListedHistories.TestCase


# --- what cannot be true ------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.none() | FRACTION, st.sampled_from(TENANTS), WHERE), min_size=2, max_size=24
)
Fields = tuple[bytes | None, int | None, str | None, int | None]


def stream_of(batch: list[Fields], policy: str, counted: bool) -> Naive:
    """A naive stream; every other fraction makes a "before n" event."""
    truth = Naive(policy == "by-key", counted)
    for seq, (key, fraction, tenant, where) in enumerate(batch, 1):
        if fraction is not None and fraction % 2 == 0:
            truth.publish([(None, at(fraction, 1, seq))])
        elif counted:
            truth.publish([(None, None)])
        else:
            truth.publish([predicate_or_data(truth.by_key, key, tenant, where)])
    return truth


@pytest.mark.parametrize(("policy", "counted"), [("by-key", False), ("none", False), ("none", True)])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(batch=EVENTS, cut=FRACTION, asof=FRACTION, which=FRACTION)
def test_a_row_that_survived_its_collector_is_refused_when_that_arrives(
    policy: str, counted: bool, batch: list[Fields], cut: int, asof: int, which: int
) -> None:
    truth = stream_of(batch, policy, counted)
    middle = at(cut, 2, truth.horizon)
    asof = at(asof, middle, truth.horizon)
    told = truth.survivors(1, middle, asof)
    dead = [event for event in truth.events[: middle - 1] if event not in told]
    assume(dead)
    lie = dead[at(which, 0, len(dead) - 1)]
    events = truth.events[lie.seq - 1 : middle - 1] if counted else sorted([*told, lie])
    history = History("s", GcPolicy.parse(policy), counted)
    try:
        history.accept(Span("s", 1, middle, asof, truth.rows(events)))
    except Contradiction:
        assert snapshot(history) == snapshot(History("s", GcPolicy.parse(policy), counted))
        return
    before = snapshot(history)
    with pytest.raises(Contradiction, match=f"row {lie.seq}, which is said to survive"):
        history.accept(truth.span(middle, truth.horizon, middle))
    assert snapshot(history) == before


@pytest.mark.parametrize(("policy", "counted"), [("by-key", False), ("none", True)])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(batch=EVENTS, asofs=st.tuples(FRACTION, FRACTION), cut=FRACTION, which=FRACTION)
def test_known_rows_that_differ_are_refused(
    policy: str,
    counted: bool,
    batch: list[Fields],
    asofs: tuple[int, int],
    cut: int,
    which: int,
) -> None:
    truth = stream_of(batch, policy, counted)
    middle = at(cut, 2, truth.horizon)
    history = History("s", GcPolicy.parse(policy), counted)
    history.accept(truth.span(1, middle, at(asofs[0], 1, truth.horizon)))
    asof = at(asofs[1], 1, truth.horizon)
    span = truth.span(1, middle, asof)
    assert history.accept(span) is None
    known = history.know(1, middle)
    mine = [event for piece in known for event in events_of(piece.rows)]
    newer = asof <= min(piece.asof for piece in known)  # ours may have fewer rows, but none that theirs lack
    if newer and mine and not counted:
        missing = [event for event in events_of(span.rows) if event != mine[at(which, 0, len(mine) - 1)]]
        with pytest.raises(Contradiction):
            history.accept(Span("s", 1, middle, asof, truth.rows(missing)))
    gone = [event for event in truth.events[: middle - 1] if event not in events_of(span.rows)]
    if history.floor <= asof <= history.horizon and gone and not counted:  # then ours says exactly what survives
        more = sorted([*events_of(span.rows), gone[at(which, 0, len(gone) - 1)]])
        with pytest.raises(Contradiction):
            history.accept(Span("s", 1, middle, asof, truth.rows(more)))
    if not counted and mine and mine[0].seq == 1:
        others = [event for event in events_of(span.rows) if event.seq != 1]
        with pytest.raises(Contradiction):
            history.accept(Span("s", 1, middle, asof, truth.rows([Event(1, b"never published", None), *others])))


def test_counted_claims_about_one_low_must_agree() -> None:
    history = History("s", counted=True)
    history.accept(Span("s", 1, 10, 60, CountedRows(8, 10, 10)))
    before = snapshot(history)
    with pytest.raises(Contradiction, match="row 8"):
        history.accept(Span("s", 10, 20, 50, CountedRows(12, 20, 10)))
    assert snapshot(history) == before
    history.accept(Span("s", 10, 20, 60, CountedRows(10, 20, 10)))


def test_a_number_above_the_asof_cannot_be_missing() -> None:
    history = History("s")
    rows = data_rows(1, [b"a", b"b"], [b"1", b"2"])
    with pytest.raises(Contradiction, match="nothing to collect it"):
        history.accept(Span("s", 1, 4, 2, rows))
    assert history.horizon == 1
    history.accept(Span("s", 1, 4, 4, rows))


# --- single sentences ---------------------------------------------------------------------------------------


def keyed(lo: int, keys: list[bytes | None]) -> Span:
    payloads = [b"%d" % seq for seq in range(lo, lo + len(keys))]
    return Span.of("s", lo, data_rows(lo, keys, payloads, Origin(lo, lo + len(keys), at=float(lo))))


def test_a_span_beyond_the_horizon_waits() -> None:
    with pytest.raises(NotYet) as caught:
        History("s").accept(keyed(2, [b"a"]))
    assert caught.value.horizon == 1


def test_foreign_spans_lenses_and_kinds_of_row_are_refused() -> None:
    history = History("s")
    history.accept(keyed(1, [b"a"]))
    for wrong in (
        Span.of("other", 2, data_rows(2, [b"a"], [b"x"])),
        Span("s", 2, 3, 2, data_rows(2, [b"a"], [b"x"]), Lens("price > 3", 1)),
        Span.of("s", 2, CountedRows(2, 5, 10)),
        Span("s", 2, 3, 2, data_rows(7, [b"a"], [b"x"])),
        Span("s", 2, 9, 2, ArrowRows(np.array([5, 4]), data_rows(4, [b"a", b"b"], [b"x", b"x"]).batch)),
        Span("s", 2, 9, 2, ArrowRows(np.arange(2, 6)[::2], data_rows(4, [b"a", b"b"], [b"x", b"x"]).batch)),
    ):
        with pytest.raises(BadInput):
            history.accept(wrong)
    counted = History("s", counted=True)
    counted.accept(Span.of("s", 1, CountedRows(1, 5, 10)))
    with pytest.raises(BadInput):
        counted.accept(Span.of("s", 5, CountedRows(5, 7, 20)))
    with pytest.raises(BadInput):
        counted.accept(keyed(5, [b"a"]))
    with pytest.raises(BadInput):
        History("s", GcPolicy(by_key=True), counted=True)
    assert history.horizon == 2 and counted.horizon == 5


def test_rows_outside_of_floor_and_horizon_are_typed_errors() -> None:
    history = History("s", GcPolicy(by_key=True))
    history.accept(keyed(1, [b"a", b"b", b"a", b"c"]))
    with pytest.raises(NotYet):
        history.rows(1, 6, 5)
    with pytest.raises(NotYet):
        history.rows(1, 5, 6)
    with pytest.raises(BadInput):
        history.rows(3, 3, 4)
    history.purge()
    assert history.floor == 4  # the last event that collected is 3
    with pytest.raises(AsofGone) as caught:
        history.rows(1, 5, 3)
    assert caught.value.floor == 4
    with pytest.raises(NotYet):
        history.killer(5)


def test_nothing_collected_leaves_the_floor_alone() -> None:
    history = History("s", GcPolicy(by_key=True))
    history.accept(keyed(1, [b"a", b"b", None, None]))
    assert history.purge() == 0 and history.floor == 1


def test_a_collector_never_reaches_beyond_itself() -> None:
    history = History("s")
    history.accept(keyed(1, [b"a", b"b"]))
    history.accept(Span.of("s", 3, before_rows(3, [99])))
    history.accept(keyed(4, [b"c"]))
    assert history.low == 3 and history.live == 2
    assert [history.killer(seq) for seq in (1, 2, 3, 4)] == [3, 3, None, None]


def test_a_row_collected_twice_keeps_the_first_killer() -> None:
    history = History("s", GcPolicy(by_key=True))
    history.accept(keyed(1, [b"a", b"b"]))
    history.accept(Span.of("s", 3, before_rows(3, [2])))
    history.accept(keyed(4, [b"a", b"b"]))
    history.accept(Span.of("s", 6, before_rows(6, [5])))
    assert [history.killer(seq) for seq in range(1, 7)] == [3, 5, 6, 6, None, None]
    assert history.collected_collectors == 1


def test_purging_waits_for_a_lease_and_goes_on_when_it_moves() -> None:
    history = History("s", GcPolicy(by_key=True), leases={"spark": 3})
    for seq in range(1, 9):
        history.accept(keyed(seq, [b"a"]))
    assert history.purge() == 1 and history.floor == 3
    assert events_of(history.rows(1, 9, 3).rows)[0].seq == 2
    history.lease("spark", 6)
    assert history.purge() == 3 and history.floor == 6
    history.release("spark")
    assert history.purge() == 3 and history.rows_stored == history.live == 1
    with pytest.raises(AsofGone):
        history.lease("late", 7)


def test_a_row_is_kept_as_of_the_event_that_collects_it() -> None:
    history = History("s", GcPolicy(by_key=True), leases={"spark": 5})
    history.accept(keyed(1, [b"a", b"a", b"a", b"a", b"a", b"b"]))
    assert history.purge() == 3
    assert history.rows(1, 7, 5).rows.numbers.tolist() == [4, 5, 6]


@pytest.mark.parametrize("policy", [GcPolicy(), GcPolicy(by_key=True)])
@pytest.mark.parametrize("n", range(1, 8))
def test_purging_before_n_keeps_n(policy: GcPolicy, n: int) -> None:
    history = History("s", policy)
    history.accept(keyed(1, [b"a", b"b", b"c"]))
    history.accept(keyed(4, [b"d", b"e", b"f"]))
    history.accept(Span.of("s", 7, before_rows(7, [n])))
    history.purge()
    assert history.rows(1, 8, 8).rows.numbers.tolist() == list(range(n, 8))
    spare = history.rows_stored - history.live  # part of a chunk of three; less than half of it where rows are copied
    assert history.live == 8 - n and 0 <= spare <= (1 if policy.by_key else 2)


def test_spans_are_handed_on_as_they_came_until_the_floor_is_reached() -> None:
    history = History("s", GcPolicy(by_key=True))
    history.accept(keyed(1, [b"a", b"b"]))
    history.accept(Span("s", 3, 5, 8, data_rows(4, [b"b"], [b"4"])))
    assert (history.floor, history.horizon) == (8, 5)
    assert history.purge() == 0  # row 2 is collected, but still part of the piece below 3
    pieces = [(span.lo, span.hi, span.asof, span.rows.numbers.tolist()) for span in history.know(1, 9)]
    assert pieces == [(1, 3, 3, [1, 2]), (3, 5, 8, [4])]
    assert [(span.lo, span.hi, span.asof) for span in history.know(2, 4)] == [(2, 3, 3), (3, 4, 8)]
    with pytest.raises(AsofGone):
        history.rows(1, 3, 3)
    history.accept(keyed(5, [b"d", b"a", b"e"]))
    assert [(span.lo, span.hi, span.asof) for span in history.know(1, 9)] == [(1, 8, 8)]
    assert history.rows(1, 8, 8).rows.numbers.tolist() == [4, 5, 6, 7]


def test_pieces_are_forgotten_while_full_spans_come_from_a_sender_that_is_ahead() -> None:
    history = History("s", counted=True)
    for lo in range(1, 5001, 10):
        history.accept(Span("s", lo, lo + 10, lo + 60, CountedRows(lo, lo + 10, 10)))
    assert history.floor == 1 and len(history._pieces) < 10
    with pytest.raises(Contradiction):
        history.accept(Span.of("s", 5001, CountedRows(5001, 5010, 10, ((5005, 5000),))))


def test_many_small_batches_are_gathered_and_read_back_whole() -> None:
    history = History("s")
    for lo in range(1, 2001, 2):
        history.accept(keyed(lo, [b"a", None]))
    assert isinstance(history._store, Chunks) and len(history._store._chunks) < 2000 / 2 / 10
    span = history.rows(1, 2001, 2001)
    assert span.full and len(span.rows.origins) == 1000  # type: ignore[attr-defined]


def test_a_large_span_is_stored_in_chunks() -> None:
    history = History("s", GcPolicy(by_key=True))
    size = 3 * chunks.CHUNK_ROWS
    history.accept(keyed(1, [b"%d" % (i % 1000) for i in range(size)]))
    assert isinstance(history._store, Chunks) and len(history._store._chunks) == 3
    assert history.live == 1000
    assert history.rows(1, size + 1, size + 1).rows.numbers.tolist() == list(range(size - 999, size + 1))


@pytest.mark.parametrize("budget", [64, 1 << 16])
def test_memory_of_a_keyed_stream_stays_proportional_to_its_live_rows(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 64)
    history = History("s", GcPolicy(by_key=True))
    largest = 0
    for lo in range(1, 6001, 20):
        history.accept(keyed(lo, [b"%d" % ((lo + i) * 7919 % 101) for i in range(20)]))
        history.purge(budget)
        largest = max(largest, history.rows_stored)
    assert history.live == 101
    assert largest < 4 * 101 + 2 * 64


def test_memory_of_a_stream_with_ever_new_keys_stays_proportional_to_what_it_keeps() -> None:
    history = History("s", GcPolicy.parse("by-key,keep-last:100"))
    for lo in range(1, 40_001, 100):
        history.accept(keyed(lo, [b"%d" % (lo + i) for i in range(99)]))
        history.accept(Span.of("s", lo + 99, before_rows(lo + 99, [lo])))
        history.purge()
    assert history.live == 100 and history.rows_stored < 1000
    assert isinstance(history._store, Chunks) and history._store.index is not None
    assert len(history._store.index) < 1000


@pytest.mark.parametrize("make", [lambda: keyed(1, [b"a"] * 30), lambda: Span.of("s", 1, CountedRows(1, 31, 10))])
def test_the_size_of_a_history_is_told(make: Callable[[], Span]) -> None:
    span = make()
    history = History("s", counted=isinstance(span.rows, CountedRows))
    history.accept(span)
    assert history.nbytes >= 300
    assert history.accept(Span("s", 31, 31, 31, NO_ROWS)) is None


def test_what_collects_fast_is_purged_as_it_comes() -> None:
    history = History("s", GcPolicy.parse("by-key"))
    keys = [b"%d" % key for key in range(4096)]
    for lo in range(1, 200 * 4096, 4096):
        history.accept(Span.of("s", lo, data_rows(lo, keys, [b""] * 4096)))
        history.tidy()
        assert history.rows_stored <= 6 * 65536
    assert history.live == 4096


# --- lost -----------------------------------------------------------------------------------------------


def holed() -> History:
    """A by-key history of [1, 9) of which [3, 6) is lost; row 7 collects row 2."""
    history = History("s", GcPolicy.parse("by-key"))
    history.accept(Span.of("s", 1, data_rows(1, [b"a", b"b"], [b"1", b"2"])))
    history.accept(Span.declared_lost("s", 3, 6))
    history.accept(Span.of("s", 6, data_rows(6, [b"c", b"b", b"d"], [b"6", b"7", b"8"])))
    return history


def test_the_horizon_passes_a_lost_range_which_is_neither_live_nor_collected() -> None:
    history = holed()
    assert (history.horizon, history.live, history.collected, history.lost) == (9, 4, 1, 3)
    assert [history.killer(seq) for seq in range(1, 9)] == [None, 7, "lost", "lost", "lost", None, None, None]
    assert history.is_lost(3, 6) and history.is_lost(4, 5) and not history.is_lost(2, 4) and not history.is_lost(3, 3)


def test_what_is_lost_is_told_as_of_every_number_and_does_not_raise_the_floor() -> None:
    history = holed()
    assert history.floor == 1
    for asof in (3, 7, 9):
        span = history.rows(1, 9, asof)
        assert span.lost == ((3, 6),) and not span.rows.slice(3, 6).count
    assert history.rows(4, 9, 9).lost == ((4, 6),) and history.rows(6, 9, 9).lost == ()
    history.purge()
    (told,) = history.know(1, 9)
    assert told.lost == ((3, 6),) and told.rows.numbers.tolist() == [1, 6, 7, 8]


def test_who_takes_in_what_another_tells_knows_of_the_same_loss() -> None:
    mirror = History("s", GcPolicy.parse("by-key"))
    for span in holed().know(1, 9, 2):
        mirror.accept(span)
    while mirror.horizon < 9:
        for span in holed().know(mirror.horizon, 9, 2):
            mirror.accept(span)
    assert mirror.lost == 3 and mirror.know(1, 9) == holed().know(1, 9)


def test_a_loss_changes_nothing_that_is_known_and_what_comes_late_does_not_undo_it() -> None:
    known = History("s")
    known.accept(Span.of("s", 1, data_rows(1, None, [b""] * 8)))
    assert known.accept(Span.declared_lost("s", 3, 6)) is None
    assert known.lost == 0 and known.live == 8
    history = holed()
    assert history.accept(Span.of("s", 3, data_rows(3, [b"x", b"y"], [b"", b""]))) is None
    assert history.is_lost(3, 6) and history.live == 4


def test_numbers_up_to_an_asof_beyond_the_horizon_can_be_lost() -> None:
    history = History("s", GcPolicy.parse("by-key"))
    history.accept(
        Span("s", 1, 4, 7, data_rows(1, [b"a"], [b"1"]))
    )  # what collected 2 and 3 is not there, and never will be
    history.accept(Span.declared_lost("s", 4, 7))
    history.accept(Span.of("s", 7, data_rows(7, [b"a"], [b"7"])))
    assert (history.horizon, history.floor, history.lost) == (8, 7, 3)
    assert history.rows(1, 8, 8).rows.numbers.tolist() == [7]


@pytest.mark.parametrize("lost", [((0, 2),), ((2, 2),), ((3, 5), (4, 6)), ((8, 10),), ((1, 2),)])
def test_lost_ranges_that_make_no_sense_are_refused(lost: tuple[tuple[int, int], ...]) -> None:
    history = History("s")
    with pytest.raises(BadInput, match="cannot be what is lost"):
        history.accept(Span("s", 1, 9, 9, data_rows(1, None, [b""]), lost=lost))
    assert history.horizon == 1


def test_a_row_that_is_missing_without_loss_or_collector_is_still_refused() -> None:
    history = History("s")
    with pytest.raises(Contradiction, match="nothing to collect"):
        history.accept(Span("s", 1, 9, 1, data_rows(1, None, [b""]), lost=((3, 9),)))


def test_counted_rows_cannot_be_lost_in_part() -> None:
    with pytest.raises(BadInput, match="counted"):
        History("s", counted=True).accept(Span.declared_lost("s", 1, 4))
