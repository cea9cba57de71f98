"""The head's part of a total order: who merges what, and promises that hold."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paper.rig import Rig
from tidings.core.gc import GcPolicy
from tidings.core.history import History
from tidings.core.hybrid_clock import MAX_STREAMS, tick_at, tick_time
from tidings.core.rows import Origin, before_rows, data_rows
from tidings.core.span import Span
from tidings.protocols.brokers.messages import EARLIEST, LATEST, Feed, Follow, FollowAbove, Unfollowed
from tidings.protocols.kernel import Message, Received
from tidings.protocols.nodes.replica import MaintainTick, Replica, ReplicaSettings
from tidings.protocols.replication.chain import ChainSettings
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Current
from tidings.protocols.services.catalog import Define, Defined, StreamDef, Why
from tidings.protocols.services.promises import (
    Merge,
    MergeHeard,
    Promise,
    PromiseSettings,
    PromiseTick,
    merges_of,
    promises_in,
    ticks_of,
)
from tidings.protocols.services.publishing import NotHead, OpenSession, Publish, Published, SessionOpened

PEERS = {"x": ChainConfig("x", 1, ("x0",))}


class Head:
    """The head of region y, which owns streams s and t; stream far is region x's."""

    def __init__(self, replicas: tuple[str, ...] = ("y0",), **settings: Any) -> None:
        streams = [StreamDef("s", "y", number=0), StreamDef("t", "y", number=1), StreamDef("far", "x", number=2)]
        self.rig = Rig()
        self.rig.now = 100.0
        chosen = ReplicaSettings(promises=PromiseSettings(**settings), chain=ChainSettings(backlog=8))
        self.streams, self.chosen = streams, chosen
        self.rig.add("y0", self._make)
        self.configure(*replicas)

    def _make(self, durable: list[Any]) -> Replica:
        self.proxy = Replica("y0", "y", "config", self.streams, PEERS, self.chosen, durable, random.Random(1))
        return self.proxy

    def configure(self, *replicas: str, epoch: int = 1) -> None:
        chain = ChainConfig("y", epoch, replicas)
        self.rig.tell("y0", Received("config", Current(chain, self.proxy.chain.nonce)))

    def hears(self, message: Message) -> list[Message]:
        """The answers of the head, once its disk has synced."""
        self.rig.tell("y0", Received("client", message))
        self.rig.sync("y0")
        return [letter.message for letter in self.rig.take(dst="client")]

    def publish(self, stream: str, count: int) -> Published:
        (opened,) = self.hears(OpenSession(f"p{self.rig.now}", 7))
        assert isinstance(opened, SessionOpened)
        rows = data_rows(1, None, [b""] * count)
        (answer,) = self.hears(Publish(stream, f"p{self.rig.now}", opened.session, 1, rows))
        assert isinstance(answer, Published)
        return answer

    def wait(self, seconds: float = 0.02, *, sync: bool = True) -> None:
        """Time passes, and the head may promise."""
        self.rig.now += seconds
        self.rig.expire(PromiseTick(), "y0")
        if sync:
            self.rig.sync("y0")

    def promised(self) -> dict[str, Promise]:
        """The promises that are shown."""
        history = self.proxy.log.histories[ticks_of("y")]
        return dict([each for span in history.know(1, history.horizon) for each in promises_in(span.rows)])

    def rows(self, stream: str) -> int:
        """How many rows of a stream there ever were."""
        return self.proxy.log.ends[stream] - 1


def test_whoever_merges_is_heard_and_the_streams_it_merges_are_promised_for() -> None:
    head = Head()
    head.publish("s", 3)
    assert head.hears(Merge(7, ("s", "far", "nowhere"))) == [MergeHeard(7)]
    head.wait()
    assert set(head.promised()) == {"s"}, "far is for region x to promise, and nowhere for nobody"
    tick, end = head.promised()["s"]
    assert end == 4 and tick_time(tick) == pytest.approx(head.rig.now)
    before = head.proxy.log.ticks["s"]
    head.publish("s", 1)
    assert head.proxy.log.ticks["s"] > tick > before


def test_what_another_region_merges_is_promised_for_when_its_rows_arrive() -> None:
    head = Head()
    rows = data_rows(1, [b"t", b"far"], [b"", b""], Origin(1, 3))
    head.rig._carry("y0", head.proxy._replicate(head.rig.now, [Span.of(merges_of("x"), 1, rows)]))
    head.rig.sync("y0")
    head.wait()
    assert set(head.promised()) == {"t"}


def test_more_streams_than_a_cluster_can_have_are_not_merged() -> None:
    head = Head()
    assert head.hears(Merge(7, ("s",) * (MAX_STREAMS + 1))) == [] and head.rows(merges_of("y")) == 0
    assert head.hears(Merge(7, ())) == [MergeHeard(7)] and head.rows(merges_of("y")) == 0


def test_one_row_tells_for_half_of_the_time_that_a_stream_is_merged() -> None:
    head = Head()
    for _ in range(9):
        head.hears(Merge(7, ("s",)))
        head.rig.now += 1.0
    assert head.rows(merges_of("y")) == 2


def test_promises_end_when_nobody_has_merged_for_a_while() -> None:
    head = Head()
    head.hears(Merge(7, ("s",)))
    head.wait()
    there = head.rows(ticks_of("y"))
    head.wait(10.1)
    assert head.rows(ticks_of("y")) == there > 0 and not head.proxy._promises.ticking
    head.hears(Merge(7, ("s",)))
    head.wait()
    assert head.rows(ticks_of("y")) == there + 1, "until somebody merges again"


def test_a_clock_that_is_set_back_makes_no_demand_last_for_ever() -> None:
    head = Head()
    head.hears(Merge(7, ("s",)))
    head.rig.now -= 90.0
    for _ in range(12):
        head.wait(1.0)
    there = head.rows(ticks_of("y"))
    head.wait()
    assert head.rows(ticks_of("y")) == there


def test_the_next_promise_waits_until_the_last_one_is_committed() -> None:
    head = Head()
    head.hears(Merge(7, ("s",)))
    for _ in range(20):
        head.wait(sync=False)
    assert head.rows(ticks_of("y")) == 1 and head.promised() == {}, "and is not shown before"
    head.rig.sync("y0")
    head.wait()
    assert head.rows(ticks_of("y")) == 2


def test_a_busy_chain_is_not_burdened_with_promises() -> None:
    head = Head()
    head.hears(Merge(7, ("s",)))
    for _ in range(8):
        head.rig._carry("y0", head.proxy._replicate(head.rig.now, []))
    head.wait(sync=False)
    assert head.rows(ticks_of("y")) == 0
    head.rig.tell("y0", Received("client", Merge(8, ("t",))))
    assert head.rows(merges_of("y")) == 1, "nor with what is merged: it is asked again"


def test_who_is_not_head_names_the_head_and_promises_nothing() -> None:
    head = Head()
    head.hears(Merge(7, ("s",)))
    head.configure("z", "y0", epoch=2)
    there = head.rows(ticks_of("y"))
    head.wait()
    assert head.rows(ticks_of("y")) == there
    (answer,) = head.hears(Merge(7, ("s",)))
    assert isinstance(answer, NotHead)


@pytest.mark.parametrize("synced", [True, False])
def test_a_restarted_head_keeps_what_its_log_promises(synced: bool) -> None:
    """Its clock is set back by an hour. A promise that was never durable binds nobody, for nobody saw it."""
    head = Head()
    head.publish("s", 2)
    head.hears(Merge(7, ("s",)))
    head.wait(sync=synced)
    told = head.promised().get("s", (0, 0))
    head.rig.crash("y0")
    head.rig.now -= 3600.0
    head.rig.restart("y0")
    head.configure("y0")
    lo = head.publish("s", 1).lo
    assert head.proxy.log.ticks["s"] > told[0] and lo >= told[1]
    assert head.proxy._promises.heard == {"s": head.rig.now}, "it goes on without being asked again"
    head.rig.expire(MaintainTick(), "y0")
    head.wait()
    assert head.promised()["s"][1] == lo + 1


def test_a_promise_for_a_stream_whose_definition_is_not_committed_here_yet_is_kept() -> None:
    """As after a fail-over: the log has the definition, rows and promises, and this replica has committed nothing."""
    head = Head()
    (defined,) = head.hears(Define(3, "create", StreamDef("new", "y")))
    assert isinstance(defined, Defined)
    stream = defined.definition.id
    head.hears(Merge(7, (stream,)))
    head.wait()
    tick, _ = head.promised()[stream]
    records = [entry.record for entry in head.rig.durable["y0"] if hasattr(entry, "record")]
    late = Head()
    late.configure("z", "y0", epoch=2)
    for record in records:
        late.proxy.log.append(record)
    late.proxy.table.observe_ticks()
    assert stream not in late.proxy.table.clocks
    while late.proxy.log.committed < late.proxy.log.last:
        late.proxy.log.commit_next()
    assert late.proxy.table.tick(stream, 0.0) > tick


def test_the_lead_of_a_region_that_lost_its_memory_binds_later_heads() -> None:
    head = Head()
    losses = [Span.declared_lost(stream, 1, 50) for stream in ("s", "t", ticks_of("y"))]
    head.proxy.table.observe_ticks(head.rig.now + 5.0)
    parts = [*losses, *head.proxy._promises.after_loss(head.rig.now, losses)]
    head.rig._carry("y0", head.proxy._replicate(head.rig.now, parts))
    head.rig.sync("y0")
    assert {stream: end for stream, (_, end) in head.promised().items()} == {"s": 50, "t": 50}
    lead = tick_at(head.rig.now + 5.0)
    head.rig.crash("y0")
    head.rig.now -= 3600.0
    head.rig.restart("y0")
    head.configure("y0")
    assert head.publish("s", 1).lo == 50 and head.proxy.log.ticks["s"] > lead


def test_promises_of_streams_that_are_gone_are_swept_and_all_others_stay() -> None:
    head = Head(swept=3)
    head.hears(Merge(7, ("s",)))
    head.wait()
    old = head.promised()["s"]
    for at in range(12):
        (defined,) = head.hears(Define(at, "create", StreamDef(f"new{at}", "y")))
        assert isinstance(defined, Defined)
        head.hears(Merge(7, (defined.definition.id,)))
        head.wait(0.5)
        head.hears(Define(at + 100, "delete", defined.definition))
    head.proxy._promises.heard.pop("s")
    head.wait(11.0)
    head.hears(Merge(7, ("t",)))
    for _ in range(3):
        head.wait()
    assert head.proxy.log.histories[ticks_of("y")].live <= 2 + 3 + 2
    assert {"s", "t"} <= set(head.promised()) and head.promised()["s"] >= old


def test_nothing_else_that_is_internal_can_be_followed() -> None:
    head = Head()
    for stream in ("_merges/y", "_publishers", "_streams/y", "_ticks", "_ticks/nowhere"):
        (refusal,) = head.hears(Follow(1, stream, EARLIEST))
        assert isinstance(refusal, Unfollowed) and refusal.unknown, stream
    for stream in (ticks_of("y"), ticks_of("x")):
        (feed,) = head.hears(Follow(1, stream, LATEST))
        assert isinstance(feed, Feed)
    (because,) = head.hears(Why(ticks_of("y"), 1))
    assert because.state == "unknown stream"  # type: ignore[attr-defined]


def test_promises_can_be_followed_through_a_filter() -> None:
    head = Head()
    head.hears(Follow(1, ticks_of("y"), EARLIEST, "key = 't'"))
    head.hears(Merge(7, ("s", "t")))
    head.wait()
    (feed,) = head.rig.take(dst="client")
    assert isinstance(feed.message, Feed) and [span.rows.count for span in feed.message.spans] == [1]


def test_what_no_head_would_write_is_passed_over() -> None:
    rows = data_rows(1, [b"s", b"\xff", b"t", None], [b"?", b"", b"\x92\x01\x02", b""], Origin(1, 5))
    assert list(promises_in(rows)) == [("t", (1, 2))]


# --- where to begin above a tick --------------------------------------------------------------------------


def history_of(ticks: list[int], collected: int) -> History:
    """A history of one row per tick, of which those below a number were collected."""
    history = History("s", GcPolicy.parse("none"))
    for number, tick in enumerate(ticks, 1):
        history.accept(Span.of("s", number, data_rows(number, None, [b""], Origin(number, number + 1, tick=tick))))
    if collected > 1:
        number = len(ticks) + 1
        origin = Origin(number, number + 1, tick=(ticks[-1] if ticks else 0) + 1)
        history.accept(Span.of("s", number, before_rows(number, [collected], origin)))
        history.purge()
    return history


@given(st.lists(st.integers(1, 50), max_size=30).map(sorted), st.integers(1, 30), st.integers(0, 60))
def test_everything_below_the_number_found_by_a_tick_has_that_tick_or_a_smaller_one(
    ticks: list[int], collected: int, tick: int
) -> None:
    history = history_of(ticks, min(collected, len(ticks) + 1))
    found = history.above(tick)
    live = {
        number: origin.tick
        for span in history.know(1, history.horizon)
        for origin in getattr(span.rows, "origins", ())
        for number in span.rows.slice(origin.lo, origin.hi).numbers.tolist()
    }
    assert all([live[number] <= tick for number in live if number < found])
    assert all([live[number] > tick for number in live if number >= found]), "and nothing above it was left out"


def test_a_follower_begins_behind_a_tick() -> None:
    head = Head()
    ticks = []
    for _ in range(3):
        head.rig.now += 1.0
        head.publish("s", 2)
        ticks.append(head.proxy.log.ticks["s"])
    for tick, begin in ((0, 1), (ticks[0] - 1, 1), (ticks[0], 3), (ticks[1], 5), (ticks[2], 7), (tick_at(1e6), 7)):
        feed = head.hears(FollowAbove(1, "s", EARLIEST, above=tick))[0]
        assert isinstance(feed, Feed) and feed.at == begin
