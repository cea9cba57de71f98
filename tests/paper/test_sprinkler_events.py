"""Sentences of paper 000, sections 2.1 and 3.4 (A1.2-A1.9, A1.21, A1.22, A1.43-A1.46): events and their collection."""

from __future__ import annotations

import pytest

from tidings.core.errors import BadInput
from tidings.core.gc import GcPolicy, due_before
from tidings.core.history import History
from tidings.core.rows import ArrowRows, Origin, before_rows, data_rows
from tidings.core.span import Span, join


class Stream(History):
    """A history that events are added to one by one."""

    def __init__(self, gc: str = "none") -> None:
        super().__init__("s", GcPolicy.parse(gc))

    def data(self, *keys: bytes | None, at: float = 0.0) -> None:
        lo = self.horizon
        origin = Origin(lo, lo + len(keys), "p", 1, lo, 0, at)
        self.accept(Span.of("s", lo, data_rows(lo, list(keys), [b"x"] * len(keys), origin)))

    def before(self, n: int) -> None:
        """A garbage-collection event that matches everything before n."""
        self.accept(Span.of("s", self.horizon, before_rows(self.horizon, [n])))

    def left(self) -> list[int]:
        """The numbers of the events that are not collected."""
        rows = self.rows(1, self.horizon, self.horizon).rows
        return list(rows.numbers.tolist())


def test_a1_3_a_tombstone_stands_for_the_events_from_seq_minus_range_exclusive_to_seq_inclusive() -> None:
    stream = Stream()
    stream.data(*[None] * 6)
    stream.before(5)
    (whole,) = stream.know(1, 8)
    gone = whole.slice(1, 5)
    seq, reach = gone.hi - 1, gone.hi - gone.lo
    assert gone.empty and (seq, reach) == (4, 4)
    assert [n for n in range(1, 8) if seq - reach < n <= seq] == [1, 2, 3, 4]


def test_a1_7_a_garbage_collection_event_cannot_match_a_future_event() -> None:
    stream = Stream()
    stream.data(None, None)
    stream.before(100)
    stream.data(None)
    assert stream.left() == [3, 4]


def test_a1_8_a_collecting_event_can_be_collected_and_what_it_collected_stays_collected() -> None:
    stream = Stream()
    stream.data(*[None] * 4)
    stream.before(3)
    stream.before(6)
    assert stream.left() == [6] and stream.collected_collectors == 1
    assert stream.killer(1) == 5


def test_a1_9_two_consecutive_tombstones_can_be_replaced_by_a_single_one() -> None:
    none = data_rows(1, [], [])
    assert join((Span("s", 1, 4, 9, none),), (Span("s", 4, 7, 9, none),)) == (Span("s", 1, 7, 9, none),)


def test_a1_9_two_overlapping_tombstones_can_be_replaced_by_a_single_one() -> None:
    none = data_rows(1, [], [])
    assert join((Span("s", 1, 5, 9, none),), (Span("s", 3, 7, 9, none),)) == (Span("s", 1, 7, 9, none),)


def test_a1_9_a_tombstone_never_has_holes() -> None:
    none = data_rows(1, [], [])
    apart = (Span("s", 1, 3, 9, none), Span("s", 4, 7, 9, none))
    assert join(apart[:1], apart[1:]) == apart


def test_a1_21_filter_replaces_every_matched_event_by_a_tombstone() -> None:
    stream = Stream("by-key")
    stream.data(b"a", b"b", b"a", b"c", b"b")
    (span,) = stream.know(1, 6)
    assert (span.lo, span.hi) == (1, 6) and isinstance(span.rows, ArrowRows)
    assert span.rows.numbers.tolist() == [3, 4, 5]


def test_a1_22_every_number_up_to_the_count_has_its_event_or_a_later_one_that_collected_it() -> None:
    stream = Stream("by-key")
    for key in (b"a", b"b", b"a", b"a", b"c", b"b", None):
        stream.data(key)
    stream.before(4)
    left = stream.left()
    assert max(left) < stream.horizon
    for number in range(1, stream.horizon):
        killer = stream.killer(number)
        assert killer is None if number in left else isinstance(killer, int) and number < killer < stream.horizon


def test_a1_43_keep_last_n_an_event_at_index_i_collects_all_with_indices_less_than_i_minus_n() -> None:
    stream = Stream("keep-last:8")
    stream.data(*[None] * 8)
    assert due_before(stream.policy, stream, 0.0) is None
    stream.data(None)
    assert due_before(stream.policy, stream, 0.0) == 2
    stream.before(2)
    assert stream.left() == [*range(2, 11)]
    assert due_before(stream.policy, stream, 0.0) is None, "a collecting event is no reason for another"


def test_a1_43_older_than_k_one_collecting_event_now_and_then_collects_all_that_is_older() -> None:
    stream = Stream("older-than:1d")
    day = 86_400.0
    stream.data(None, None, at=0.0)
    stream.data(None, at=0.5 * day)
    assert due_before(stream.policy, stream, day) is None
    assert due_before(stream.policy, stream, 1.4 * day) == 3


def test_a1_44_each_event_collects_all_previous_events_on_the_same_key() -> None:
    stream = Stream("by-key")
    stream.data(b"a", b"b", b"a", b"a")
    assert stream.left() == [2, 4]
    assert [stream.killer(number) for number in (1, 2, 3, 4)] == [3, None, 4, None]


def test_a1_45_policies_are_before_a_number_and_same_key_anything_else_is_refused() -> None:
    assert str(GcPolicy.parse("by-key, keep-last:5")) == "by-key,keep-last:5"
    with pytest.raises(BadInput, match="unknown"):
        GcPolicy.parse("colour:red")


def test_a1_46_tombstones_are_not_stored_a_gap_is_implied() -> None:
    stream = Stream("by-key")
    for _ in range(50):
        stream.data(*[b"a"] * 100)
        stream.purge()
    assert stream.horizon == 5001 and stream.rows_stored < 500
    (span,) = stream.know(1, 5001)
    assert (span.lo, span.hi, span.rows.count) == (1, 5001, 1)
