"""A merger by itself: rows come out sorted by tick, however they came in, and nothing waits for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.merge_rig import Row, in_order
from tidings.core.hybrid_clock import STREAM_BITS
from tidings.core.ids import NodeId
from tidings.core.rows import NO_ROWS, Origin, data_rows
from tidings.core.small_rows import SmallRows
from tidings.core.span import Span
from tidings.protocols.brokers.merging import (
    IDLE,
    RENEW,
    ROWS,
    Begun,
    Merged,
    Merger,
    MergeTick,
    OpenMerge,
    PartTick,
    Stalled,
)
from tidings.protocols.brokers.messages import (
    EARLIEST,
    LATEST,
    AllConsumed,
    Consumed,
    Feed,
    FeedBeat,
    Follow,
    FollowAbove,
    SubscriptionSettings,
    Uncovered,
    Unfollow,
    Unfollowed,
)
from tidings.protocols.brokers.subscriber import Ended, Lost, Save, Saved, Take
from tidings.protocols.kernel import Deliver, Effects, Expired, Received, Send, SetTimer
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.cursors import MERGED, CursorAt, OpenCursor, SaveCursor
from tidings.protocols.services.promises import Merge, MergeHeard, ticks_of
from tidings.protocols.services.publishing import NotHead

CHAIN = ChainConfig("home", 1, ("n0", "n1", "n2"))
STREAMS = ("s0", "s1", "s2")


def at(stream: int, time: int) -> int:
    """The tick of a stream at a time."""
    return time << STREAM_BITS | stream


def batch(stream: int, lo: int, *times: int) -> Span:
    """Rows of a stream from a number on: those of one time were published together."""
    origins: list[Origin] = []
    for number, time in enumerate(times, lo):
        if origins and origins[-1].tick == at(stream, time):
            origins[-1] = msgspec.structs.replace(origins[-1], hi=number + 1)
        else:
            origins.append(Origin(number, number + 1, tick=at(stream, time)))
    return Span.of(f"s{stream}", lo, SmallRows(None, [b""] * len(times), lo, tuple(origins)))


def gone(stream: int, lo: int, hi: int) -> Span:
    """Numbers without rows."""
    return Span(f"s{stream}", lo, hi, hi, NO_ROWS)


class Merging:
    """A merger of some of the streams; each is owned by a region of its own name, r0, r1 ..."""

    def __init__(self, count: int = 2, settings: SubscriptionSettings | None = None, **how: Any) -> None:
        streams = tuple([(10 + each, f"s{each}", f"r{each}") for each in range(count)])
        regions = tuple([(20 + each, f"r{each}") for each in range(count)])
        self.now = 0.0
        self.promised = [1] * count
        self.merger = Merger(OpenMerge(1, streams, regions, **how), CHAIN, settings or SubscriptionSettings())
        self.rows: list[Row] = []
        self.lost: list[tuple[str, int, int]] = []
        self.items: list[Any] = []
        self.sent: list[tuple[NodeId, Any]] = []
        self._carry(self.merger.start(0.0))

    def begin(self, *begins: int) -> Merging:
        """A replica answers for every stream: it begins at these numbers."""
        for each, number in enumerate(begins or [1] * len(self.merger.tracks)):
            self.hear(Feed(10 + each, number, (), number))
        return self

    def hear(self, message: Any, src: NodeId = "n0") -> Effects:
        return self.tell(Received(src, message))

    def tell(self, input: Any) -> Effects:
        effects = self.merger.handle(self.now, input)
        self._carry(effects)
        return effects

    def feed(self, *spans: Span) -> None:
        """Spans of one stream come."""
        id = 10 + int(spans[0].stream[1:])
        self.hear(Feed(id, spans[0].lo, spans, spans[-1].hi))

    def promise(self, stream: int, time: int, end: int, *, tick: int = 0) -> None:
        """A region promises: nothing of the stream from ``end`` on is from this time or earlier."""
        lo = self.promised[stream]
        self.promised[stream] = lo + 1
        payload = msgspec.msgpack.encode((tick or at(stream, time), end))
        rows = data_rows(lo, [f"s{stream}".encode()], [payload], Origin(lo, lo + 1))
        span = Span.of(ticks_of(f"r{stream}"), lo, rows)
        self.hear(Feed(20 + stream, lo, (span,), span.hi))

    def wait(self, seconds: float, *, takes: bool = True) -> None:
        """Let time pass; replicas give signs of life, and the application takes what there is."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + 0.2, until)
            for part, subscriber in self.merger.parts.items():
                if not self.merger.over and subscriber.horizon is not None:
                    self.hear(FeedBeat(((part, subscriber.horizon, 0, 0, subscriber.horizon),), 0.5))
            self.tell(Expired(MergeTick()))
            if takes:
                self.take()

    def times(self) -> list[tuple[int, str, int]]:
        """What came out: time, stream and number of each row."""
        return [(tick >> STREAM_BITS, stream, number) for tick, stream, number in self.rows]

    def take(self) -> None:
        """The application takes all there is."""
        self.tell(Take(self.merger.tick))

    def said(self, *kinds: type) -> list[Any]:
        """What was sent of some kinds since this was last asked."""
        found = [message for _, message in self.sent if isinstance(message, kinds)]
        self.sent = [each for each in self.sent if not isinstance(each[1], kinds)]
        return found

    def _carry(self, effects: Effects) -> None:
        self.merger.check()
        for effect in effects:
            if isinstance(effect, Deliver):
                self.items.append(effect.item)
                if isinstance(effect.item, Merged):
                    self.rows += in_order(effect.item)
                    self.lost += [(span.stream, *each) for _, span in effect.item.spans for each in span.lost]
            elif isinstance(effect, Send):
                self.sent.append((effect.to, effect.message))


# --- the order --------------------------------------------------------------------------------------------


def test_a_row_waits_until_every_other_stream_is_known_up_to_its_tick() -> None:
    merging = Merging().begin()
    merging.feed(batch(0, 1, 10, 30))
    assert merging.times() == []
    merging.feed(batch(1, 1, 20, 40))
    assert merging.times() == [(10, "s0", 1), (20, "s1", 1)], "30 might be followed by another row of its tick"
    merging.promise(0, 50, 3)
    assert merging.times()[2:] == [(30, "s0", 2)]
    merging.promise(1, 50, 3)
    assert merging.times()[3:] == [(40, "s1", 2)]


def test_a_promise_counts_when_the_stream_is_covered_up_to_its_end() -> None:
    merging = Merging().begin()
    merging.feed(batch(0, 1, 10, 20))
    merging.promise(0, 30, 3)
    merging.promise(1, 30, 2)
    assert merging.times() == [], "a row below 2 is under way"
    merging.feed(batch(1, 1, 15))
    assert merging.times() == [(10, "s0", 1), (15, "s1", 1), (20, "s0", 2)]


def test_numbers_without_a_row_cover_as_well() -> None:
    merging = Merging().begin()
    merging.feed(batch(0, 1, 10))
    merging.promise(0, 30, 2)
    merging.promise(1, 30, 5)
    merging.feed(gone(1, 1, 5))
    assert merging.times() == [(10, "s0", 1)]


def test_rows_of_one_batch_stay_together_in_the_order_of_their_numbers() -> None:
    merging = Merging().begin()
    merging.feed(batch(0, 1, 10, 10))
    merging.feed(batch(1, 1, 10, 11))
    merging.feed(batch(0, 3, 10, 20))
    assert merging.times() == [(10, "s0", 1), (10, "s0", 2), (10, "s0", 3), (10, "s1", 1)]


def test_what_is_lost_comes_before_the_rows_that_follow_it() -> None:
    merging = Merging().begin()
    merging.feed(batch(0, 1, 10))
    merging.feed(Span.declared_lost("s0", 2, 5), batch(0, 5, 30))
    merging.feed(batch(1, 1, 20, 40))
    merging.promise(0, 50, 6)
    assert merging.times() == [(10, "s0", 1), (20, "s1", 1), (30, "s0", 5)] and merging.lost == [("s0", 2, 5)]
    (first, second, *_) = [each for each in merging.items if isinstance(each, Merged)]
    assert [span.lo for _, span in (*first.spans, *second.spans) if span.lost] == [2]


def test_of_one_stream_the_order_is_that_of_its_numbers() -> None:
    merging = Merging(1).begin()
    merging.feed(batch(0, 1, 10, 20, 30))
    assert merging.times() == [(10, "s0", 1), (20, "s0", 2)]


def test_promises_of_a_region_for_streams_of_others_say_nothing() -> None:
    merging = Merging().begin()
    merging.feed(batch(0, 1, 10, 20))
    payload = msgspec.msgpack.encode((at(1, 99), 1))
    rows = data_rows(1, [b"s1", b"s9", None], [payload, payload, b"?"], Origin(1, 4))
    merging.hear(Feed(20, 1, (Span.of(ticks_of("r0"), 1, rows),), 4))
    assert merging.times() == []


def test_a_row_below_a_promise_ends_the_merge_and_is_not_delivered() -> None:
    merging = Merging().begin()
    merging.promise(0, 30, 1)
    merging.promise(1, 30, 1)
    merging.feed(batch(0, 1, 20))
    (ended,) = [item for item in merging.items if isinstance(item, Ended)]
    assert "below what it promised" in ended.reason and merging.rows == []


def test_rows_without_ticks_cannot_be_merged() -> None:
    merging = Merging().begin()
    merging.feed(Span.of("s0", 1, data_rows(1, None, [b"x"], Origin(1, 2))))
    (ended,) = [item for item in merging.items if isinstance(item, Ended)]
    assert "without ticks" in ended.reason


def test_much_at_once_is_delivered_in_pieces_that_end_with_a_tick() -> None:
    merging = Merging(1, SubscriptionSettings(chunk_rows=1 << 20)).begin()
    half = ROWS // 2
    merging.feed(batch(0, 1, *[10] * half, *[20] * half, *[30] * half, *[40] * (2 * ROWS), 50))
    pieces = [each for each in merging.items if isinstance(each, Merged)]
    assert [sum([span.rows.count for _, span in each.spans]) for each in pieces] == [ROWS, half + 2 * ROWS]
    assert [each.tick >> STREAM_BITS for each in pieces] == [20, 40]


Story = list[list[tuple[int, int]]]  # of each stream: batches as (time since the one before, rows)


@st.composite
def stories(draw: st.DrawFn) -> tuple[Story, list[int]]:
    """What some streams publish, and an order in which the messages about them arrive."""
    count = draw(st.integers(1, 3))
    one = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), max_size=8)
    story = [draw(one) for _ in range(count)]
    return story, draw(st.lists(st.integers(0, 2 * count - 1), max_size=80))


def told(stream: int, batches: Sequence[tuple[int, int]], cut: int, sparse: bool) -> tuple[list[Span], list[Any]]:
    """A stream as spans of ``cut`` rows, if it is ``sparse`` without every third row; and promises between batches."""
    times: list[int] = []
    promises: list[tuple[int, int]] = [(0, 1)]
    time = 0
    for since, rows in batches:
        time += since
        times += [time] * rows
        promises.append((time, len(times) + 1))
    promises.append((1000, len(times) + 1))
    whole = batch(stream, 1, *times)
    spans = [whole.slice(lo, lo + cut) for lo in range(1, len(times) + 1, cut)] if times else []
    if sparse:
        spans = [span.collect(len(times) + 1, span.rows.numbers % 3 != 0) for span in spans]
    return spans, promises


@given(stories(), st.integers(1, 5), st.booleans(), st.integers(0, 40))
def test_however_messages_arrive_the_rows_come_sorted_by_tick(
    drawn: tuple[Story, list[int]], cut: int, sparse: bool, above: int
) -> None:
    story, arrivals = drawn
    tick = at(0, above)
    merging = Merging(len(story), lo=EARLIEST, above=tick).begin(*[1] * len(story))
    spans, promises = zip(*[told(each, batches, cut, sparse) for each, batches in enumerate(story)], strict=True)
    kept = [
        (origin.tick, span.stream, number)
        for each in spans
        for span in each
        for origin in span.rows.origins
        for number in span.rows.slice(origin.lo, origin.hi).numbers.tolist()
    ]
    expected = sorted([row for row in kept if row[0] > tick])
    every = [each for stream in range(len(story)) for each in (2 * stream, 2 * stream + 1) for _ in range(99)]
    for choice in [*arrivals, *every]:
        stream, promise = divmod(choice, 2)
        if stream < len(story) and promise and promises[stream]:
            merging.promise(stream, *promises[stream].pop(0))
        elif stream < len(story) and not promise and spans[stream]:
            merging.feed(spans[stream].pop(0))
        assert merging.rows == expected[: len(merging.rows)]
    assert merging.rows == expected


# --- where it begins --------------------------------------------------------------------------------------


def test_the_latest_rows_begin_above_all_that_was_there() -> None:
    merging = Merging(lo=LATEST)
    merging.begin(5, 7)
    assert all([each.lo == LATEST for each in merging.said(Follow) if each.stream in STREAMS])
    merging.promise(0, 20, 3)
    merging.promise(1, 30, 7)
    assert not [each for each in merging.items if isinstance(each, Begun)], "rows of s0 below 5 may be above 20"
    merging.promise(0, 25, 5)
    assert not [each for each in merging.items if isinstance(each, Begun)], "s0 may publish something between 25 and 30"
    merging.feed(batch(0, 5, 28, 35))
    (begun,) = [each for each in merging.items if isinstance(each, Begun)]
    assert begun.tick == at(1, 30)
    merging.promise(0, 50, 7)
    merging.promise(1, 50, 7)
    assert merging.times() == [(35, "s0", 6)], "28 is below the beginning"


def test_a_merge_above_a_tick_asks_for_what_is_above_it_and_drops_the_rest() -> None:
    merging = Merging(above=at(1, 20)).begin(4, 1)
    assert {each.above for each in merging.said(FollowAbove) if each.stream in STREAMS} == {at(1, 20)}
    merging.feed(batch(0, 4, 19, 21))
    merging.feed(batch(1, 1, 20, 22, 30))
    assert merging.times() == [(21, "s0", 5)] or merging.times() == []
    merging.promise(0, 40, 6)
    assert merging.times() == [(21, "s0", 5), (22, "s1", 2)]


# --- credit -----------------------------------------------------------------------------------------------


def test_nothing_is_acknowledged_before_the_application_has_taken_it() -> None:
    merging = Merging(settings=SubscriptionSettings(window=4)).begin()
    for number in range(1, 4):
        merging.feed(batch(0, number, 10 * number))
    merging.promise(0, 35, 4)
    merging.said(Consumed, AllConsumed)
    merging.promise(1, 25, 1)
    assert merging.times() == [(10, "s0", 1), (20, "s0", 2)]
    assert not [each for each in merging.said(Consumed) if each.id == 10]
    merging.take()
    assert [each.horizon for each in merging.said(Consumed) if each.id == 10] == [3], "the third row waits"


def test_rows_of_one_tick_may_be_more_than_the_window() -> None:
    merging = Merging(settings=SubscriptionSettings(window=4)).begin()
    merging.promise(1, 30, 1)
    for number in range(1, 20):
        merging.feed(batch(0, number, 10))
        assert merging.said(Consumed), "the replica may send what follows of the tick"
    merging.feed(batch(0, 20, 20))
    assert len(merging.times()) == 19


def test_a_stream_that_is_ahead_does_not_stop_the_others() -> None:
    merging = Merging(settings=SubscriptionSettings(window=4)).begin()
    for number in range(1, 5):
        merging.feed(batch(0, number, 100 * number))
    merging.said(Consumed)
    for number in range(1, 40):
        merging.feed(batch(1, number, number))
        merging.take()
        said = merging.said(Consumed)
        assert [each.id for each in said] == [11], "the slow stream is acknowledged, the other one waits"
    assert merging.times()[-1] == (38, "s1", 38)


def test_coverage_that_waits_is_one_span_however_much_it_is() -> None:
    merging = Merging().begin()
    for number in range(1, 200):
        merging.feed(gone(0, number, number + 1))
    (span,) = merging.merger.tracks[10].pieces
    assert (span.lo, span.hi) == (1, 200)


def test_promises_that_wait_are_bounded_and_the_newest_is_kept() -> None:
    merging = Merging().begin()
    for number in range(1, 1000):
        merging.promise(0, number, number)
    assert len(merging.merger.tracks[10].promises) <= 64
    merging.feed(gone(0, 1, 999))
    assert merging.merger.tracks[10].complete == at(0, 999)


def test_a_filtered_stream_that_lacks_coverage_is_asked_for_it_once() -> None:
    merging = Merging(where="key = 'x'").begin()
    merging.promise(0, 10, 4)
    merging.promise(0, 20, 6)
    assert [each.id for each in merging.said(Uncovered)] == [10]
    merging.hear(FeedBeat(((10, 1, 5, 5, 5),), 0.5))
    assert merging.merger.tracks[10].complete == at(0, 10)
    merging.promise(0, 30, 6)
    assert [each.id for each in merging.said(Uncovered)] == [10]


# --- time -------------------------------------------------------------------------------------------------


def test_the_head_is_told_what_is_merged_and_another_one_if_it_does_not_answer() -> None:
    merging = Merging().begin()
    assert [(to, m.streams) for to, m in merging.sent if isinstance(m, Merge)] == [("n0", ("s0", "s1"))]
    merging.sent.clear()
    merging.wait(1.0)
    assert [to for to, m in merging.sent if isinstance(m, Merge)] == ["n1"]
    merging.hear(MergeHeard(1), "n1")
    merging.sent.clear()
    merging.wait(RENEW - 0.5)
    assert not merging.said(Merge)
    merging.wait(0.7)
    assert len(merging.said(Merge)) == 1
    merging.hear(NotHead(ChainConfig("home", 2, ("n2", "n0"))), "n1")
    assert [to for to, m in merging.sent if isinstance(m, Merge)] == ["n2"]


def test_a_lost_connection_to_the_head_does_not_wait_for_an_answer() -> None:
    merging = Merging().begin()
    merging.sent.clear()
    merging.tell(Lost("n0"))
    assert [to for to, m in merging.sent if isinstance(m, Merge)] == ["n1"]
    assert len(merging.said(Follow)) == 4, "and every subscription asks another replica"


def test_without_patience_it_waits() -> None:
    merging = Merging().begin()
    merging.wait(300.0)
    assert not merging.merger.over


def test_with_patience_it_ends_and_names_the_region_that_is_silent() -> None:
    merging = Merging(patience=5.0).begin()
    merging.promise(0, 50, 1)
    merging.promise(1, 40, 1)
    merging.wait(4.0)
    merging.promise(0, 60, 1)
    merging.promise(1, 50, 1)
    merging.wait(4.0)
    merging.promise(0, 70, 1)
    assert not merging.merger.over
    merging.wait(2.0)
    (stalled,) = [item for item in merging.items if isinstance(item, Stalled)]
    assert (stalled.region, stalled.stream) == ("r1", "s1") and at(1, 40) <= stalled.tick <= at(1, 50)
    assert len(merging.said(Unfollow)) == 4 and merging.merger.over


def test_if_nobody_feeds_it_the_own_region_is_named() -> None:
    merging = Merging(patience=5.0).begin()
    while not merging.merger.over:
        merging.now += 0.2
        merging.tell(Expired(MergeTick()))
    (stalled,) = [item for item in merging.items if isinstance(item, Stalled)]
    assert stalled.region == "home"


def test_an_application_that_takes_nothing_is_no_silent_region() -> None:
    merging = Merging(patience=5.0).begin()
    merging.feed(batch(0, 1, 10))
    merging.promise(0, 50, 2)
    merging.promise(1, 40, 1)
    merging.wait(60.0, takes=False)
    assert not merging.merger.over
    merging.wait(6.0)
    assert merging.merger.over


def test_who_slept_does_not_count_the_time() -> None:
    merging = Merging(patience=5.0).begin()
    merging.now += 1000.0
    merging.tell(Expired(MergeTick()))
    assert not merging.merger.over
    merging.wait(6.0)
    assert merging.merger.over


def test_now_and_then_it_tells_how_far_it_is_although_no_row_comes() -> None:
    merging = Merging().begin()
    told = []
    for second in range(1, 200):
        merging.promise(0, second, 1)
        merging.promise(1, second, 1)
        merging.now += 0.02
        told = [each for each in merging.items if isinstance(each, Merged)]
        merging.take()
    assert 2 <= len(told) <= 4.0 / IDLE and not any([each.order for each in told])


def test_timers_go_to_their_subscription() -> None:
    merging = Merging()
    timers = [e.timer for e in merging.merger.handle(0.0, Expired(PartTick(10))) if isinstance(e, SetTimer)]
    assert timers == [PartTick(10)]


@pytest.mark.parametrize("part", [10, 20])
def test_a_stream_that_ends_ends_the_merge(part: int) -> None:
    merging = Merging().begin()
    merging.hear(Unfollowed(part, "it is gone", gone=True))
    (ended,) = [item for item in merging.items if isinstance(item, Ended)]
    assert (ended.id, ended.reason, ended.gone) == (1, "it is gone", part == 10)
    assert merging.tell(Take(9)) == ()


# --- durable ----------------------------------------------------------------------------------------------


def test_a_durable_merge_begins_above_its_cursor() -> None:
    merging = Merging(name="desk", holder=7, lo=LATEST)
    assert merging.said(OpenCursor) == [OpenCursor("desk", MERGED, 7)] and not merging.said(Follow)
    merging.hear(CursorAt("desk", MERGED, 7, at(0, 20)))
    assert {each.above for each in merging.said(FollowAbove) if each.stream in STREAMS} == {at(0, 20)}
    merging.begin(2, 1)
    merging.feed(batch(0, 2, 30, 40))
    merging.promise(1, 50, 1)
    assert merging.times() == [(30, "s0", 2)]
    merging.tell(Save(merging.merger.tick, prompt=True))
    assert merging.said(SaveCursor) == [SaveCursor("desk", MERGED, 7, at(0, 40) - 1)]
    merging.hear(CursorAt("desk", MERGED, 7, at(0, 40) - 1))
    assert merging.items[-1] == Saved(1, at(0, 40) - 1)


def test_a_new_durable_merge_begins_where_it_is_told_to() -> None:
    merging = Merging(name="desk", holder=7, lo=LATEST)
    merging.hear(CursorAt("desk", MERGED, 7, 0))
    assert {each.lo for each in merging.said(Follow) if each.stream in STREAMS} == {LATEST}


def test_a_newer_holder_of_the_name_ends_the_merge() -> None:
    merging = Merging(name="desk", holder=7)
    merging.hear(CursorAt("desk", MERGED, 7, 0))
    merging.begin()
    merging.hear(CursorAt("desk", MERGED, 9, 0))
    (ended,) = [item for item in merging.items if isinstance(item, Ended)]
    assert ended.superseded


def test_who_opens_a_name_is_newer_than_who_holds_it() -> None:
    merging = Merging(name="desk", holder=7)
    merging.said(OpenCursor)
    merging.hear(CursorAt("desk", MERGED, 9, 5))
    (again,) = merging.said(OpenCursor)
    assert again.holder > 9


def test_a_region_that_has_forgotten_the_cursor_is_told_anew() -> None:
    merging = Merging(name="desk", holder=7)
    merging.hear(CursorAt("desk", MERGED, 7, 0))
    merging.begin()
    merging.tell(Save(500, prompt=True))
    merging.said(OpenCursor, SaveCursor)
    merging.hear(CursorAt("desk", MERGED, 0, 0))
    assert merging.said(OpenCursor) == [OpenCursor("desk", MERGED, 7)]
    merging.hear(CursorAt("desk", MERGED, 7, 0))
    merging.tell(Expired(MergeTick()))
    assert merging.said(SaveCursor) == [SaveCursor("desk", MERGED, 7, 500)]
    assert not merging.said(Follow) or merging.merger.begun, "it did not begin again"


def test_a_refused_name_ends_the_merge_with_the_reason() -> None:
    merging = Merging(name="desk", holder=7)
    merging.hear(CursorAt("desk", MERGED, 0, 0, "no room"))
    assert [item.reason for item in merging.items if isinstance(item, Ended)] == ["no room"]
