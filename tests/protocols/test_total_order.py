"""Total order across streams in simulated worlds: every merge delivers exactly the rows there are, sorted by tick.

Heads die in every phase of a promise, clocks are wrong, links are cut, a region loses its memory. Mistakes that people
could make are made on purpose, and must be seen.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from protocols.merge_rig import World
from tidings.core.hybrid_clock import tick_time
from tidings.core.ids import NEVER, NodeId
from tidings.protocols.brokers.merge_track import Track
from tidings.protocols.brokers.messages import LATEST, Feed, SubscriptionSettings
from tidings.protocols.kernel import Deliver, Effects, Persist, Received, Send, Time
from tidings.protocols.nodes.replica import Replica
from tidings.protocols.replication.chain import Append, Committed
from tidings.protocols.replication.log import Log, Logged
from tidings.protocols.replication.recovery import RecoverySettings
from tidings.protocols.services.promises import PromiseSettings, merges_of, ticks_of
from tidings.protocols.services.streams import StreamTable
from tidings.sim import scenario as plans
from tidings.sim.faults import Faults
from tidings.sim.scenario import Cut, Heal, Pause, Skew, StartAll, StopAll

BIG = SubscriptionSettings()


def judge(world: World, *merges: tuple[NodeId, str]) -> list[str]:
    """What is wrong with merges."""
    return [fault for node, streams in merges for fault in world.faults_of(node, streams)]


def three_merges(world: World) -> tuple[tuple[NodeId, str], ...]:
    """Everything from the beginning, two streams from the latest rows on, and a slow reader."""
    return (
        (world.merge("a", "abc"), "abc"),
        (world.merge("c", "bc", lo=LATEST, at=2.0), "bc"),
        (world.merge("b", "abc", lazy=0.7), "abc"),
    )


def lateness(world: World, node: NodeId) -> list[float]:
    """How long after their ticks rows came, once the merge had begun for a while; the shortest time first."""
    late = sorted([late for at, late in world.clients[node].late if at > 3.0])
    assert len(late) > 10
    return late


# --- calm -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_merges_of_different_streams_in_different_regions_agree(batch: int) -> None:
    world = World(1, stop=5.0, batch=batch)
    merges = three_merges(world)
    world.run(9.0)
    assert judge(world, *merges) == []
    whole, part = (world.clients[node] for node, _ in merges[:2])
    begun = part.begun or 0
    assert len(part.rows) > 50 and part.rows == [row for row in whole.rows if row[0] > begun and row[1] != "s-a"]


def test_the_order_trails_what_is_published_by_a_promise_and_the_way_to_the_reader() -> None:
    world = World(2, stop=5.0, promises=PromiseSettings())
    node = world.merge("a", "abc", feeds=BIG)
    world.run(5.0)
    late = lateness(world, node)
    assert late[len(late) // 2] < 0.06 + 0.02 + 0.01, "a link takes up to 60 ms one way"


def test_a_quiet_stream_does_not_hold_up_the_others() -> None:
    world = World(3, stop=5.0, quiet="bc")
    node = world.merge("a", "abc")
    world.run(8.0)
    assert judge(world, (node, "abc")) == [] and world.clients[node].rows


def test_collected_rows_are_left_out_and_the_rest_keeps_its_order() -> None:
    world = World(4, stop=5.0, gc="by-key,keep-last:30")
    early, late = world.merge("a", "abc"), world.merge("b", "abc", at=4.0)
    world.run(9.0)
    first, second = world.clients[early], world.clients[late]
    assert first.rows == sorted(first.rows) and second.rows == sorted(second.rows)
    left = set(world.published("abc"))
    assert left <= set(first.rows) and left <= set(second.rows) and len(left) < len(second.rows) < len(first.rows)


def test_with_a_filter_that_nothing_passes_the_rest_still_comes() -> None:
    world = World(5, stop=6.0)
    none = world.merge("b", "abc", where="seq < 0", feeds=BIG)
    some = world.merge("a", "abc", where="region = 'a'", feeds=BIG)
    world.run(9.0)
    assert world.clients[none].rows == [] and world.clients[none].tick > world.published("abc")[-1][0]
    assert world.clients[some].rows == world.published("a")
    late = lateness(world, some)
    assert late[len(late) // 2] < 0.2, "coverage is asked for, not awaited with the next beat"


def test_what_is_published_after_a_merge_has_begun_is_delivered() -> None:
    world = World(6, stop=9.0)
    for at, node in ((3.0, "a/p0"), (3.0, "b/p0")):
        world.at(at, Skew(at, node, -1.5))
    nodes = [world.merge(region, "abc", lo=LATEST, at=4.0) for region in "abc"]
    world.run(12.0)
    assert judge(world, *[(node, "abc") for node in nodes]) == []
    acked = {(stream, seq): at for (stream, seq), (at, *_) in _acknowledged(world).items()}
    for node in nodes:
        client = world.clients[node]
        delivered = {(stream, seq) for _, stream, seq in client.rows}
        assert {row for row, posted in acked.items() if posted > client.begun_at} <= delivered


def _acknowledged(world: World) -> dict[tuple[str, int], tuple[Time, int]]:
    """When rows were published, by the clock of the world: a skewed head's own time is not that."""
    return {
        (stream, seq): (at, seq)
        for stream, seq, at in zip(
            *[world.deployment.recorder.trace().published[name].to_pylist() for name in ("stream", "seq", "acked_at")],
            strict=True,
        )
        if at is not None
    }


def test_nothing_is_promised_before_somebody_merges_and_when_nobody_does_any_more() -> None:
    world = World(7, stop=9.0, promises=PromiseSettings(period=0.05, ttl=4.0))
    node = world.merge("a", "ab", at=3.0)

    def horizons() -> list[int]:
        return [world.head("c").log.histories[make(r)].horizon for r in "abc" for make in (ticks_of, merges_of)]

    world.run(2.9)
    assert horizons() == [1] * 6
    world.run(6.0)
    assert horizons()[0] > 20 and horizons()[2] > 20 and horizons()[4] == 1, "region c owns none of the streams"
    world.world.crash(node)
    world.run(11.0)
    quiet = horizons()
    world.run(16.0)
    assert horizons()[0:3:2] == quiet[0:3:2]
    assert world.head("a").log.histories[merges_of("a")].live == 1, "the collecting event"


# --- what fails -------------------------------------------------------------------------------------------


class CrashAt:
    """Crashes the head of region "a" in some phase of a promise, once, after the world has run for a while."""

    def __init__(self, world: World, phase: str, stuck: bool) -> None:
        self.world = world
        self.phase = phase
        self.stuck = stuck  # from then on the tail's disk is full until the next head has taken over
        self.crashed: NodeId = ""
        world.world.observers.append(self)

    def on_step(self, time: Time, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        if time < 3.0 or self.crashed:
            return
        if node[0] == "a" and self._is_it(node, input, effects):
            self.crashed = self.world.deployment.membership("a").head
            self.world.world.at(time, lambda: self.world.world.crash(self.crashed))
            self.world.at(time + 4.0, plans.Restart(time, self.crashed))
            if self.stuck:
                tail = self.world.deployment.membership("a").tail
                self.world.world.full_disk(tail, True)
                self.world.world.at(time + 3.0, lambda: self.world.world.full_disk(tail, False))

    def _is_it(self, node: NodeId, input: Any, effects: Effects) -> bool:
        head, middle, tail = self.world.deployment.membership("a").replicas
        match self.phase:
            case "numbered":
                written = [e.record for e in effects if isinstance(e, Persist) and isinstance(e.record, Logged)]
                return node == head and any([_promises(each.record) for each in written])
            case "forwarded":
                received = isinstance(input, Received) and isinstance(input.message, Append)
                return node == middle and received and any([_promises(each) for each in input.message.records])
        committed = [e.item for e in effects if isinstance(e, Deliver) and isinstance(e.item, Committed)]
        return node == {"committed": tail, "acknowledged": head}[self.phase] and any(
            [_promises(each.record) for each in committed]
        )


def _promises(record: Any) -> bool:
    return any([part.stream == "_ticks/a" for part in record.parts])


MERGES = (("a", "ab"), ("a", "ab"), ("a", "abc"), ("c", "ab"))


def fail_over(phase: str, skew: float, *, seed: int = 11, stuck: bool = False) -> list[str]:
    """The head of a region dies; those who follow it have clocks that are so many seconds off."""
    world = World(seed, stop=8.0, window=1 if stuck else 64)
    merges = tuple([(world.merge(region, streams), streams) for region, streams in MERGES])
    for node in ("a/p1", "a/p2"):
        world.at(0.5, Skew(0.5, node, skew))
    crash = CrashAt(world, phase, stuck)
    world.run(14.0)
    assert crash.crashed
    return judge(world, *merges)


@pytest.mark.parametrize("phase", ["numbered", "forwarded", "committed", "acknowledged"])
@pytest.mark.parametrize("skew", [-3.0, pytest.param(2.0, marks=pytest.mark.check)])
def test_a_head_may_die_in_any_phase_of_a_promise(phase: str, skew: float) -> None:
    assert fail_over(phase, skew) == []


def test_a_new_head_keeps_promises_that_are_committed_after_it_has_taken_over() -> None:
    assert fail_over("forwarded", -3.0, stuck=True) == []


@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.check) for seed in range(1, 8)]])
def test_clocks_may_be_wrong_by_seconds_and_jump(seed: int) -> None:
    world = World(seed, stop=7.0)
    merges = three_merges(world)
    for region, at in itertools.product("abc", (0.4, 3.0, 5.0)):
        for replica in range(3):
            world.at(at, Skew(at, f"{region}/p{replica}", world.rng.uniform(-2.0, 2.0)))
    for at in (2.5, 4.5):
        world.world.at(at, lambda: world.world.crash(world.deployment.resolve("b/head")))
    world.at(8.0, *[plans.Restart(8.0, f"b/p{replica}") for replica in range(3)])
    world.run(18.0)
    assert judge(world, *merges) == []


def test_a_cut_link_is_gone_round() -> None:
    world = World(12, stop=9.0)
    merges = three_merges(world)
    world.at(3.0, Cut(3.0, "a", "b"))
    world.run(9.5)
    assert judge(world, *merges) == [], "by way of the third region, before the link is mended"
    assert world.world.reports["source_switch"] > 0


def test_demand_goes_round_a_cut_link_too() -> None:
    world = World(13, stop=9.0)
    world.at(0.0, Cut(0.0, "a", "b"))
    node = world.merge("a", "b", at=2.0)
    world.run(11.0)
    assert judge(world, (node, "b")) == []


@pytest.mark.check
def test_a_region_that_is_cut_off_holds_up_the_order_until_it_is_back() -> None:
    world = World(14, stop=8.0)
    merges = three_merges(world)
    world.at(3.0, Cut(3.0, "a", "c"), Cut(3.0, "b", "c"))
    world.run(6.0)
    reached = world.clients[merges[0][0]].tick
    world.run(8.0)
    assert world.clients[merges[0][0]].tick == reached and 2.5 < tick_time(reached) < 3.5
    world.at(8.5, Heal(8.5))
    world.run(14.0)
    assert judge(world, *merges) == []


@pytest.mark.check
def test_after_a_full_stop_the_region_keeps_its_promises() -> None:
    world = World(15, stop=8.0)
    merges = three_merges(world)
    world.at(3.0, StopAll(3.0, "b"))
    for replica in range(3):
        world.at(3.5, Skew(3.5, f"b/p{replica}", -3.0))
    world.at(4.0, StartAll(4.0, "b"))
    world.run(16.0)
    assert judge(world, *merges) == []


@pytest.mark.check
def test_a_head_that_slept_and_was_replaced_promises_nothing() -> None:
    world = World(16, stop=9.0)
    merges = three_merges(world)
    world.at(3.0, Pause(3.0, "a/head", 4.0))
    world.run(14.0)
    assert judge(world, *merges) == [] and world.world.reports.get("head_lost", 0) > 0


@pytest.mark.check
@pytest.mark.parametrize("seed", range(20))
def test_whatever_breaks_the_order_is_one_and_complete(seed: int) -> None:
    rng = random.Random(f"swarm/{seed}")
    world = World(seed, stop=9.0, batch=rng.choice([1, 3]))
    merges = (*three_merges(world), (world.merge("b", "ac", lo=LATEST, at=5.0), "ac"))
    events = world.deployment.unleash(Faults.swarm(rng), rng, 1.5)
    world.run(20.0)
    last = max([tick for tick, _, _ in world.published("abc")])
    world.run(max(20.0, tick_time(last) + 3.0))  # a clock was ahead
    assert events and judge(world, *merges) == []


# --- a region without memory --------------------------------------------------------------------------------


def forget(skew: float, cut: bool, lead: float = 2.0) -> World:
    """Region "a" loses all its replicas; its new head's clock is off. It may be cut off from all others before."""
    recovery = RecoverySettings(on=True, wait=3.0, skip=500, lead=lead)
    world = World(17, stop=14.0, recovery=recovery)
    world.merge("b", "abc")
    world.merge("a", "abc")
    if cut:
        world.at(2.7, Cut(2.7, "a", "b"), Cut(2.7, "a", "c"))

    def lose() -> None:
        for node in world.deployment.replicas["a"]:
            world.world.crash(node, lose_disk=True)

    world.world.at(4.0, lose)
    world.at(4.2, Heal(4.2), *[Skew(4.2, f"a/p{replica}", skew) for replica in range(3)])
    world.at(4.5, StartAll(4.5, "a"))
    again = plans.PublisherTable(name="again", region="b", stream="s-a", rate=20.0, start=9.0, stop=13.0)
    world.world.at(9.0, lambda: world.deployment._add_writer(again))
    return world.run(22.0)


@pytest.mark.parametrize("cut", [pytest.param(False, marks=pytest.mark.check), True])
def test_a_region_that_lost_its_memory_goes_on_above_what_it_had_promised(cut: bool) -> None:
    world = forget(-2.5, cut)
    published = world.published("abc")
    assert len([row for row in published if row[1] == "s-a" and row[2] > 500]) > 20
    for client in world.clients.values():
        assert client.ended is None and client.rows == sorted(client.rows)
        assert set(published) <= set(client.rows) and client.tick >= published[-1][0]
        assert [stream for stream, _, _ in client.lost] == ["s-a"]


def test_without_the_lead_a_promise_that_only_the_lost_region_knew_is_broken_and_that_is_seen() -> None:
    world = forget(-2.5, cut=True, lead=0.0)
    (told,) = [client for node, client in world.clients.items() if node[0] == "a"]
    assert told.ended is not None and "below what it promised" in told.ended.reason
    assert told.rows == sorted(told.rows)


# --- what is done with it -----------------------------------------------------------------------------------


def test_a_region_that_is_silent_for_too_long_is_named_and_the_rest_can_be_had_without_it() -> None:
    world = World(18, stop=9.0)
    node = world.merge("a", "abc", patience=3.0)
    world.at(3.0, StopAll(3.0, "c"))
    world.run(8.0)
    first = world.clients[node]
    assert first.stalled is not None and (first.stalled.region, first.stalled.stream) == ("c", "s-c")
    again = world.merge("a", "ab", at=8.0, above=first.stalled.tick)
    world.run(13.0)
    assert judge(world, (again, "ab")) == []
    together = [row for row in first.rows if row[1] != "s-c"] + world.clients[again].rows
    assert together == world.published("ab"), "nothing twice, nothing missing"


def test_a_durable_merge_goes_on_above_its_cursor_and_supersedes_the_one_before() -> None:
    world = World(19, stop=9.0)
    first = world.merge("a", "abc", name="desk", holder=1)
    second = world.merge("a", "abc", name="desk", holder=2, at=4.0)
    world.at(5.5, plans.Kill(5.5, "a/head"))
    world.run(14.0)
    one, two = world.clients[first], world.clients[second]
    assert one.ended is not None and one.ended.superseded
    assert two.begun is not None and judge(world, (second, "abc")) == []
    until = [row for row in one.rows if row[0] <= two.begun]
    assert until + two.rows == world.published("abc"), "what was acknowledged does not come again, all else does"
    assert two.saved > two.begun


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.check)])
def test_a_slow_reader_and_a_flood_of_one_stream_do_not_stop_a_merge(seed: int) -> None:
    tiny = SubscriptionSettings(window=4, chunk_rows=8, apart=1)
    world = World(20 + seed, rate=150.0, stop=5.0, batch=40, subscriptions=tiny)
    merges = tuple([(world.merge("a", "abc", feeds=tiny, lazy=lazy), "abc") for lazy in (0.0, 0.3)])
    world.run(30.0)
    assert judge(world, *merges) == []


# --- planted mistakes ---------------------------------------------------------------------------------------


def test_a_new_head_that_ignores_promises_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def observe(self: StreamTable, since: Time = 0.0) -> None:
        for stream, clock in self.clocks.items():
            clock.observe(self.log.ticks[stream])

    monkeypatch.setattr(StreamTable, "observe_ticks", observe)
    assert fail_over("acknowledged", -3.0)


def test_a_new_head_that_looks_at_committed_promises_alone_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_of(self: Log, stream: str) -> list[Any]:
        history = self.histories[stream]
        pending = [] if stream.startswith("_ticks/") else original(self, stream)
        return pending or [span.rows for span in history.know(1, history.horizon)]

    original = Log.rows_of
    monkeypatch.setattr(Log, "rows_of", rows_of)
    assert fail_over("forwarded", -3.0, stuck=True)


def test_a_promise_that_is_shown_before_it_is_committed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def replicate(self: Replica, now: Time, parts: Any) -> list[Any]:
        early: list[Any] = []
        for part in parts:
            for position in self.subscriptions.by_stream.get(part.stream, {}).values():
                if part.stream.startswith("_ticks/"):
                    node, id = position.key
                    early.append(Send(node, Feed(id, part.lo, (part,), part.hi)))
        return [*original(self, now, parts), *early]

    original = Replica._replicate
    monkeypatch.setattr(Replica, "_replicate", replicate)
    assert fail_over("numbered", -3.0)


@pytest.mark.check
def test_a_merger_that_believes_promises_before_the_stream_is_covered_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(self: Track) -> None:
        horizon = self.subscriber.horizon or 0
        self.promises = type(self.promises)([(min(end, horizon), tick) for end, tick in self.promises])
        original(self)

    original = Track.settle
    monkeypatch.setattr(Track, "settle", settle)
    assert fail_over("acknowledged", 0.0)


def test_a_merger_that_takes_a_stream_without_a_promise_for_finished_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    complete: Callable[[Track], int] = Track.complete.__get__  # type: ignore[attr-defined]

    class Hasty(Track):
        __slots__ = ()

        @property
        def complete(self) -> int:  # type: ignore[override]
            return complete(self) if self.pieces or self.promises else NEVER

        @complete.setter
        def complete(self, tick: int) -> None:
            Track.complete.__set__(self, tick)  # type: ignore[attr-defined]

    monkeypatch.setattr("tidings.protocols.brokers.merging.Track", Hasty)
    world = World(1, stop=5.0)
    merges = three_merges(world)
    world.run(9.0)
    assert judge(world, *merges)
