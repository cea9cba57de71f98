"""The laws of knowledge and curiosity (A2.4 to A2.7, A2.23, A2.24), against models that keep one state per number."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.core.curiosity import Curiosity
from tidings.core.errors import BadInput, Contradiction
from tidings.core.knowledge import Knowledge, Known, lub
from tidings.core.lens import Lens
from tidings.core.rows import data_rows
from tidings.core.span import Span

END = 40


# --- the lattice ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b", "c"), list(product(Known, Known, Known)))
def test_a2_4_lub_is_associative_commutative_idempotent_and_has_both_ends(a: Known, b: Known, c: Known) -> None:
    assert lub(a, lub(b, c)) == lub(lub(a, b), c)
    assert lub(a, b) == lub(b, a)
    assert lub(a, a) == a
    assert lub(a, Known.Q) == a
    assert lub(a, Known.E) == Known.E


def test_a2_4_the_paper_s_cases() -> None:
    assert lub(Known.D, Known.F) == Known.DONE, "a row that is not needed has been delivered"
    assert lub(Known.D, Known.S) == Known.E, "a row where there is none is the error"
    assert lub(Known.DONE, Known.S) == Known.E
    assert lub(Known.F, Known.S) == Known.S
    below = [state for state in Known if lub(state, Known.DONE) == Known.DONE and lub(state, Known.S) == Known.S]
    assert set(below) == {Known.Q, Known.F}, "F is the greatest below both D* and S"


# --- knowledge --------------------------------------------------------------------------------------------

truth = st.sets(st.integers(1, END - 1))
ranges = st.tuples(st.integers(1, END - 1), st.integers(1, END)).filter(lambda pair: pair[0] < pair[1])


def seen(rows: set[int], lo: int, hi: int, version: int = 0) -> Span:
    """A span that tells the truth about [lo, hi): ``rows`` are there, nothing else is."""
    mine = sorted(row for row in rows if lo <= row < hi)
    batch = data_rows(1, None, [b"%d" % row for row in range(1, END)])
    return Span(
        "s", lo, hi, END, batch.take(np.array(mine, dtype=np.int64) - 1), Lens("x", version) if version else Lens()
    )


def states(knowledge: Knowledge) -> dict[int, Known]:
    """The state of each number."""
    out = dict.fromkeys(range(1, END), Known.Q)
    for span in knowledge.of(1, END):
        out |= dict.fromkeys(range(span.lo, span.hi), Known.F)
        out |= dict.fromkeys(span.rows.numbers.tolist(), Known.D)
    return out


acts = st.lists(st.tuples(st.sampled_from(["know", "know", "know", "forget", "look"]), ranges), max_size=30)


@given(truth, acts)
@settings(max_examples=200, deadline=None)
def test_knowledge_of_one_truth_is_the_lub_of_what_came_and_what_is_forgotten_is_q(
    rows: set[int], acts: list[tuple[str, tuple[int, int]]]
) -> None:
    knowledge = Knowledge("s", 1 << 20)
    model = dict.fromkeys(range(1, END), Known.Q)
    for act, (lo, hi) in acts:
        if act == "know":
            new = {number for span in knowledge.accept(seen(rows, lo, hi)) for number in range(span.lo, span.hi)}
            assert new == {number for number in range(lo, hi) if model[number] == Known.Q}
            told = {number: Known.D if number in rows else Known.F for number in range(lo, hi)}
            model |= {number: lub(model[number], state) for number, state in told.items()}
        elif act == "forget":
            knowledge.forget(lo)
            model |= dict.fromkeys(range(1, lo), Known.Q)
        else:
            unknown = [number for number in range(lo, hi) if model[number] == Known.Q]
            assert [number for gap in knowledge.gaps(lo, hi) for number in range(*gap)] == unknown
            assert knowledge.reach(lo) == next((n for n in range(lo, END) if model[n] == Known.Q), END)
        knowledge.check()
        assert states(knowledge) == model
        assert not {Known.E, Known.S, Known.DONE} & set(model.values()), "E is not reached, S and D* are not kept"


@given(truth, st.lists(ranges, min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_the_order_in_which_knowledge_comes_does_not_matter(rows: set[int], told: list[tuple[int, int]]) -> None:
    one, other = Knowledge("s", 1 << 20), Knowledge("s", 1 << 20)
    for lo, hi in told:
        one.accept(seen(rows, lo, hi))
    for lo, hi in reversed(told):
        other.accept(seen(rows, lo, hi))
        other.accept(seen(rows, lo, hi))
    assert states(one) == states(other)


@given(truth, ranges, st.integers(1, END - 1))
@settings(max_examples=100, deadline=None)
def test_what_denies_a_known_row_is_refused_and_changes_nothing(
    rows: set[int], told: tuple[int, int], liar: int
) -> None:
    knowledge = Knowledge("s", 1 << 20)
    knowledge.accept(seen(rows, *told))
    before = states(knowledge)
    false = seen(rows ^ {liar}, 1, END)
    if told[0] <= liar < told[1]:
        with pytest.raises(Contradiction):
            knowledge.accept(false)
        assert states(knowledge) == before
    else:
        knowledge.accept(false)
    knowledge.check()


@given(truth, st.lists(st.tuples(ranges, st.integers(1, 3)), max_size=10))
@settings(max_examples=100, deadline=None)
def test_of_two_claims_the_one_through_the_newer_lens_counts(
    rows: set[int], told: list[tuple[tuple[int, int], int]]
) -> None:
    """A newer lens shows at least what an older one did."""
    knowledge = Knowledge("s", 1 << 20)
    newest = dict.fromkeys(range(1, END), 0)
    for (lo, hi), version in told:
        knowledge.accept(seen({row for row in rows if row % 4 <= version}, lo, hi, version))
        newest |= {number: max(newest[number], version) for number in range(lo, hi)}
        knowledge.check()
    for span in knowledge.of(1, END):
        for number in range(span.lo, span.hi):
            assert span.lens.version == newest[number]
            assert (number in span.rows.numbers) == (number in rows and number % 4 <= newest[number])


def test_a_broker_holds_no_more_than_it_has_room_for_and_forgets_the_oldest() -> None:
    knowledge = Knowledge("s", 3000)
    for number in range(1, END):
        knowledge.accept(seen(set(range(1, END)), number, number + 1))
        knowledge.trim()
        knowledge.check()
        assert knowledge.nbytes <= 3000 and knowledge.end == number + 1
    assert knowledge.first > 1 and knowledge.reach(knowledge.first) == END


def test_knowledge_is_of_one_stream() -> None:
    with pytest.raises(BadInput, match="of t"):
        Knowledge("s", 1).accept(Span("t", 1, 2, 1, data_rows(1, None, [b"x"])))


# --- curiosity --------------------------------------------------------------------------------------------

questions = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "answer", "ack"]), ranges, st.floats(0.0, 0.5)), max_size=30
)


@given(questions)
@settings(max_examples=300, deadline=None)
def test_curiosity_is_consolidated_until_it_may_be_repeated(acts: list[tuple[str, tuple[int, int], float]]) -> None:
    curiosity = Curiosity(repeat=1.0)
    asked: dict[int, float] = {}  # curious numbers, and when the question went up
    now, acked = 0.0, 1
    for act, (lo, hi), wait in acts:
        now += wait
        if act == "ask":
            asked = {number: at for number, at in asked.items() if now - at < 1.0}
            new = [number for number in range(lo, hi) if number not in asked]
            acked = min(acked, lo)  # who asks takes back what others have acknowledged meanwhile
            assert [number for part in curiosity.ask(lo, hi, now) for number in range(*part)] == new
            asked |= dict.fromkeys(new, now)
        elif act == "answer":
            curiosity.expire(now)
            asked = {number: at for number, at in asked.items() if now - at < 1.0}
            owed = [number for number in range(lo, hi) if number in asked]
            assert [number for part in curiosity.answered(lo, hi) for number in range(*part)] == owed
            for number in owed:
                del asked[number]
        else:
            assert curiosity.ack(lo) == (lo > acked)
            acked = max(acked, lo)
            asked = {number: at for number, at in asked.items() if number >= acked}
        curiosity.check()
        held = [number for part in curiosity.curious(1, END) for number in range(*part)]
        assert held == sorted(asked)


def test_so_many_ranges_are_kept_and_the_oldest_may_be_asked_again() -> None:
    curiosity = Curiosity(repeat=10.0, limit=3)
    for at, number in enumerate([9, 1, 5, 7]):
        assert curiosity.ask(number, number + 1, float(at)) == [(number, number + 1)]
        curiosity.check()
    assert curiosity.ask(9, 10, 4.0) == [(9, 10)], "it was forgotten"
    assert curiosity.ask(5, 6, 4.0) == [], "it was not"
