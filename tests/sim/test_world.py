"""The driver: time, clocks, lives, pauses, failures, observers, determinism; and the timetable of faults."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path as File
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.protocols.kernel import (
    NOTHING,
    Command,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Message,
    Persist,
    Persisted,
    Received,
    Report,
    Send,
    SetTimer,
    Timer,
)
from tidings.sim.disk import DiskModel
from tidings.sim.faults import Cast, FaultEvent, Faults, apply, schedule
from tidings.sim.network import ServiceTimes, SimPath
from tidings.sim.world import SimHost, Started, World


class Word(Message, frozen=True, gc=False):
    number: int


class Say(Command, frozen=True, gc=False):
    to: str
    number: int


class Bell(Timer, frozen=True, gc=False):
    number: int


class Do(Command, frozen=True, gc=False):
    effects: tuple[Effect, ...]


class Scholar:
    """Does what it is told, remembers all it saw, and can be told to fail."""

    def __init__(self, durable: list[Any], incarnation: int, rng: random.Random) -> None:
        self.durable = durable
        self.incarnation = incarnation
        self.drawn = rng.random()
        self.began: float | None = None
        self.seen: list[tuple[float, Input]] = []
        self.sound = True

    def start(self, now: float) -> Effects:
        self.began = now
        return NOTHING

    def handle(self, now: float, input: Input) -> Effects:
        self.seen.append((now, input))
        match input:
            case Do(effects):
                return effects
            case Say(to, number):
                return [Send(to, Word(number))]
            case Received(_, Word(666)):
                raise RuntimeError("a word too much")
            case Received(_, Word(667)):
                self.sound = False
        return NOTHING

    def check(self) -> None:
        assert self.sound, "unsound"

    def words(self) -> list[int]:
        return [i.message.number for _, i in self.seen if isinstance(i, Received) and isinstance(i.message, Word)]

    def bells(self) -> list[tuple[float, int]]:
        return [(now, i.timer.number) for now, i in self.seen if isinstance(i, Expired) and isinstance(i.timer, Bell)]


def school(seed: int = 1, *, watched: bool = True, names: str = "abc", **node: Any) -> World:
    """A started world of scholars in one region, one millisecond apart."""
    world = World(seed, check=watched, trace=watched)
    for name in names:
        world.add_node(name, "r", Scholar, **node)
    world.start()
    return world


def scholar(world: World, name: str) -> Scholar:
    machine = world.hosts[name].machine
    assert isinstance(machine, Scholar)
    return machine


both_loops = pytest.mark.parametrize("watched", [True, False], ids=["watched", "raced"])


# --- time -------------------------------------------------------------------------------------------------


@both_loops
def test_a_run_handles_everything_before_its_end_and_nothing_at_it(watched: bool) -> None:
    world = school(watched=watched)
    world.inject(1.0, "a", Do(()))
    world.run(1.0)
    assert scholar(world, "a").seen == []
    assert world.now == 1.0
    world.run(1.1)
    assert [now for now, _ in scholar(world, "a").seen] == [1.0]


@both_loops
def test_messages_and_timers_arrive_when_they_should(watched: bool) -> None:
    world = school(watched=watched)
    world.inject(1.0, "a", Do((Send("b", Word(1)), SetTimer(0.5, Bell(1)), SetTimer(0.0, Bell(2)))))
    world.run(9.0)
    assert scholar(world, "b").seen == [(1.001, Received("a", Word(1)))]
    assert scholar(world, "a").bells() == [(1.0, 2), (1.5, 1)]


@both_loops
def test_protocol_events_counts_handled_inputs(watched: bool) -> None:
    world = school(watched=watched, disk=DiskModel())
    world.at(0.5, lambda: None)
    world.inject(1.0, "a", Do((Send("b", Word(1)), SetTimer(0.5, Bell(1)), Persist("x", 1))))
    world.at(2.0, lambda: world.crash("c"))
    world.inject(3.0, "a", Say("c", 1))  # nobody handles it there
    world.run(9.0)
    assert world.protocol_events == sum(len(scholar(world, name).seen) for name in "abc") == 5


def test_a_clock_with_offset_and_drift_shows_that_time_and_scales_timers() -> None:
    world = World(1)
    world.add_node("fast", "r", Scholar, clock_offset=100.0, clock_drift=0.25)
    world.start()
    world.inject(4.0, "fast", Do((SetTimer(10.0, Bell(1)),)))
    world.run(20.0)
    assert scholar(world, "fast").began == 100.0
    assert scholar(world, "fast").seen[0][0] == 100.0 + 1.25 * 4.0
    assert scholar(world, "fast").bells() == [(100.0 + 1.25 * 12.0, 1)]  # ten of its seconds are eight of ours


@both_loops
def test_a_clock_can_be_skewed_and_set_right_while_running(watched: bool) -> None:
    world = school(watched=watched)
    world.at(1.0, lambda: world.set_clock("a", offset=-0.5, drift=1.0))
    world.inject(2.0, "a", Do((SetTimer(1.0, Bell(1)),)))
    world.at(3.0, lambda: world.set_clock("a"))
    world.inject(4.0, "a", Do(()))
    world.run(9.0)
    assert [now for now, _ in scholar(world, "a").seen] == [3.5, 4.5, 4.0]
    assert world.fault_counts == {"clock": 1}


@both_loops
def test_a_timer_in_the_past_is_a_failure_of_the_node(watched: bool) -> None:
    world = school(watched=watched)
    world.inject(1.0, "a", Do((SetTimer(-0.1, Bell(1)),)))
    world.run(2.0)
    assert "in the past" in world.failures[0].traceback


def test_actions_run_in_order_of_time_and_may_plan_more() -> None:
    world = school()
    done: list[tuple[float, str]] = []

    def first() -> None:
        done.append((world.now, "first"))
        world.at(world.now, lambda: done.append((world.now, "third")))
        world.at(0.0, lambda: done.append((world.now, "fourth")))  # past: now

    world.at(1.0, first)
    world.at(1.0, lambda: done.append((world.now, "second")))
    world.run(2.0)
    assert done == [(1.0, "first"), (1.0, "second"), (1.0, "third"), (1.0, "fourth")]


@both_loops
def test_an_error_in_a_script_is_the_scripts_and_not_a_nodes(watched: bool) -> None:
    world = school(watched=watched)
    world.at(1.0, lambda: world.crash("nobody"))
    with pytest.raises(KeyError):
        world.run(2.0)
    assert not world.failures


# --- lives ------------------------------------------------------------------------------------------------


@both_loops
def test_a_crashed_node_hears_nothing_and_its_timers_die_with_it(watched: bool) -> None:
    world = school(watched=watched)
    world.inject(0.0, "a", Do((SetTimer(3.0, Bell(1)), SetTimer(0.5, Bell(2)))))
    world.at(1.0, lambda: world.crash("a"))
    world.inject(1.5, "b", Say("a", 1))
    world.at(2.0, lambda: world.restart("a"))
    world.inject(2.5, "b", Say("a", 2))
    world.run(9.0)
    assert scholar(world, "a").incarnation == 2
    assert scholar(world, "a").bells() == []
    assert scholar(world, "a").words() == [2]
    assert world.fault_counts == {"crash": 1, "restart": 1}
    assert world.network.dropped == {"down": 1}


@both_loops
def test_a_message_on_the_way_reaches_the_next_life(watched: bool) -> None:
    world = school(watched=watched)
    world.inject(1.0, "b", Say("a", 1))
    world.at(1.0002, lambda: world.crash("a"))
    world.at(1.0004, lambda: world.restart("a"))
    world.run(2.0)
    assert scholar(world, "a").words() == [1]


@both_loops
def test_persisted_of_an_earlier_life_vanishes(watched: bool) -> None:
    world = school(watched=watched, disk=DiskModel(sync=0.1))
    world.inject(1.0, "a", Do((Persist("x", 1),)))
    world.at(1.05, lambda: world.crash("a"))
    world.at(1.06, lambda: world.restart("a"))
    world.run(2.0)
    assert scholar(world, "a").seen == []


def test_a_restart_finds_the_durable_records_in_order() -> None:
    world = school(disk=DiskModel(sync=0.1))
    world.inject(1.0, "a", Do((Persist("x", 1), Persist("y", 2))))
    world.inject(1.2, "a", Do((Persist("z", 3),)))
    world.at(1.25, lambda: world.crash("a"))
    world.at(5.0, lambda: world.restart("a"))
    world.run(9.0)
    assert scholar(world, "a").durable == ["x", "y"]
    assert scholar(world, "a").began == 5.0


def test_each_life_draws_from_a_generator_of_its_own() -> None:
    drawn = []
    for _ in range(2):
        world = school()
        first = [scholar(world, name).drawn for name in "abc"]
        world.crash("a")
        world.restart("a")
        drawn.append([*first, scholar(world, "a").drawn])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 4
    assert drawn[0][0] == random.Random("1/a/1").random()


def test_crash_restart_and_remove_do_nothing_where_there_is_nothing_to_do() -> None:
    world = school()
    world.restart("a")
    world.crash("a")
    world.crash("a")
    world.remove("b")
    world.remove("b")
    world.restart("b")
    world.pause("a", 1.0)
    assert world.fault_counts == {"crash": 1, "remove": 1}
    assert world.hosts["b"].life == 0


def test_a_node_added_to_a_running_world_starts_at_once() -> None:
    world = school()
    added: list[SimHost] = []
    world.at(2.0, lambda: added.append(world.add_node("d", "far", Scholar)))
    world.inject(3.0, "a", Say("d", 1))
    world.run(9.0)
    assert scholar(world, "d").began == 2.0
    assert scholar(world, "d").words() == [1]
    with pytest.raises(ValueError, match="exists already"):
        world.add_node("d", "far", Scholar)


# --- pauses -----------------------------------------------------------------------------------------------


@both_loops
def test_a_paused_node_handles_on_waking_what_came_in_order_timers_included(watched: bool) -> None:
    world = school(watched=watched)
    world.inject(0.0, "a", Do((SetTimer(2.5, Bell(9)),)))
    world.at(1.0, lambda: world.pause("a", 3.0))
    for at in (2, 3, 4, 5):
        world.inject(at - 0.001, "b", Say("a", at))
    world.run(9.0)
    seen = [(now, type(input).__name__) for now, input in scholar(world, "a").seen[1:]]
    assert [(round(now, 6), name) for now, name in seen] == [
        (4.0, "Received"),
        (4.0, "Expired"),
        (4.0, "Received"),
        (4.0, "Received"),
        (5.0, "Received"),
    ]
    assert scholar(world, "a").words() == [2, 3, 4, 5]


def test_the_inbox_of_a_paused_node_is_bounded_for_messages_only() -> None:
    world = World(1, inbox=3)
    for name in "ab":
        world.add_node(name, "r", Scholar)
    world.start()
    world.inject(0.0, "a", Do((SetTimer(1.5, Bell(1)),)))
    world.at(1.0, lambda: world.pause("a", 1.0))
    for number in range(5):
        world.inject(1.1 + number / 100, "b", Say("a", number))
    world.run(3.0)
    assert scholar(world, "a").words() == [0, 1, 2]
    assert scholar(world, "a").bells() == [(2.0, 1)]
    assert world.network.dropped == {"inbox": 2}


def test_a_second_pause_lengthens_the_first() -> None:
    world = school()
    world.at(1.0, lambda: world.pause("a", 2.0))
    world.at(2.0, lambda: world.pause("a", 4.0))
    world.inject(2.5, "a", Do(()))
    world.run(9.0)
    assert [now for now, _ in scholar(world, "a").seen] == [6.0]


@both_loops
def test_a_node_that_crashes_in_its_sleep_wakes_up_empty(watched: bool) -> None:
    world = school(watched=watched)
    world.at(1.0, lambda: world.pause("a", 2.0))
    world.inject(1.5, "a", Do(()))
    world.at(2.0, lambda: world.crash("a"))
    world.at(2.1, lambda: world.restart("a"))
    world.inject(2.5, "a", Do(()))
    world.at(3.5, lambda: world.pause("a", 1.0))
    world.inject(4.0, "a", Do(()))
    world.run(9.0)
    assert [now for now, _ in scholar(world, "a").seen] == [2.5, 4.5]


# --- failures and observers -------------------------------------------------------------------------------


@both_loops
def test_an_exception_in_handle_ends_the_run_and_is_kept(watched: bool) -> None:
    world = school(watched=watched)
    world.inject(1.0, "b", Say("a", 666))
    world.inject(2.0, "b", Do(()))
    world.run(9.0)
    [failure] = world.failures
    assert (failure.node, failure.time, failure.input) == ("a", 1.001, Received("b", Word(666)))
    assert "a word too much" in failure.traceback
    assert world.now == 1.001
    world.run(9.0)
    assert len(scholar(world, "b").seen) == 1  # nothing happens after a failure


def test_a_broken_invariant_ends_the_run_and_is_kept() -> None:
    world = school()
    world.inject(1.0, "b", Say("a", 667))
    world.run(9.0)
    assert "unsound" in world.failures[0].traceback


def test_invariants_are_not_looked_at_when_checks_are_off() -> None:
    world = school(watched=False)
    world.inject(1.0, "b", Say("a", 667))
    world.run(9.0)
    assert not world.failures


def test_what_is_no_effect_is_a_failure() -> None:
    for watched in (True, False):
        world = school(watched=watched)
        nonsense: Any = ("no effect",)
        world.inject(1.0, "a", Do(nonsense))
        world.run(2.0)
        assert "is no effect" in world.failures[0].traceback


@pytest.mark.parametrize("looping", [True, False])
def test_a_machine_that_cannot_be_made_is_a_failure(looping: bool) -> None:
    def broken(durable: list[Any], incarnation: int, rng: random.Random) -> Scholar:
        if incarnation == 2:
            raise RuntimeError("no second life")
        return Scholar(durable, incarnation, rng)

    world = World(1)
    world.add_node("a", "r", broken)
    world.start()
    world.crash("a")
    if looping:
        world.at(1.0, lambda: world.restart("a"))
    else:
        world.restart("a")
    world.run(9.0)
    assert "no second life" in world.failures[0].traceback


class Watcher:
    """Notes all it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, str, int, Any, Effects]] = []
        self.items: list[tuple[float, str, int, Any]] = []
        self.reports: list[tuple[float, str, str, float]] = []
        self.records: list[tuple[float, str, list[Any]]] = []

    def on_step(self, time: float, node: str, incarnation: int, input: Any, effects: Effects) -> None:
        self.steps.append((time, node, incarnation, input, effects))

    def on_deliver(self, time: float, node: str, incarnation: int, item: Any) -> None:
        self.items.append((time, node, incarnation, item))

    def on_report(self, time: float, node: str, name: str, value: float) -> None:
        self.reports.append((time, node, name, value))

    def on_durable(self, time: float, node: str, records: Sequence[Any]) -> None:
        self.records.append((time, node, list(records)))


BUSY = Do((Deliver("item"), Report("things", 2.0), Report("things", 3.0), Persist("record", 1)))


def test_observers_see_steps_items_reports_and_records() -> None:
    world = World(1)
    watcher = Watcher()
    world.observers.append(watcher)
    world.add_node("a", "r", Scholar, disk=DiskModel(sync=0.5))
    world.start()
    world.inject(1.0, "a", BUSY)
    world.run(2.0)
    assert watcher.steps == [
        (0.0, "a", 1, Started(1, 0), NOTHING),
        (1.0, "a", 1, BUSY, BUSY.effects),
        (1.5, "a", 1, Persisted(1), NOTHING),
    ]
    assert watcher.items == [(1.0, "a", 1, "item")]
    assert watcher.reports == [(1.0, "a", "things", 2.0), (1.0, "a", "things", 3.0)]
    assert watcher.records == [(1.5, "a", ["record"])]
    assert world.reports == {"things": 5.0}


def test_an_observer_of_deliveries_alone_works_in_the_fast_loop_too() -> None:
    class Listener:
        def __init__(self) -> None:
            self.items: list[Any] = []

        def on_deliver(self, time: float, node: str, incarnation: int, item: Any) -> None:
            self.items.append((time, world.now, item))

    world = school(watched=False)
    listener = Listener()
    world.observers.append(listener)
    world.inject(1.0, "a", BUSY)
    world.run(2.0)
    assert listener.items == [(1.0, 1.0, "item")]


def test_nobody_is_told_anything_when_recording_is_off() -> None:
    world = World(1, record=False)
    watcher = Watcher()
    world.observers.append(watcher)
    world.add_node("a", "r", Scholar, disk=DiskModel())
    world.start()
    world.inject(1.0, "a", BUSY)
    world.run(2.0)
    assert not (watcher.steps or watcher.items or watcher.reports or watcher.records)
    assert world.reports == {"things": 5.0}


def test_the_garbage_collector_is_off_while_running_and_as_before_afterwards() -> None:
    world = school()
    states: list[bool] = []
    world.at(0.5, lambda: states.append(gc.isenabled()))
    world.run(1.0)
    assert states == [False]
    assert gc.isenabled()


# --- determinism ------------------------------------------------------------------------------------------


class Rows:
    """Something that is no plain data but has a digest."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @property
    def digest(self) -> bytes:
        return self.content


class Rumour(Message, frozen=True, gc=False):
    tags: frozenset[str]
    rows: Rows
    hops: int
    wire_size = 300


class Gossip:
    """Passes rumours on at random, and uses every effect there is."""

    def __init__(self, names: list[str], rng: random.Random) -> None:
        self.names = names
        self.rng = rng
        self.count = 0

    def start(self, now: float) -> Effects:
        return [SetTimer(self.rng.random() * 0.1, Bell(0))]

    def handle(self, now: float, input: Input) -> Effects:
        self.count += 1
        match input:
            case Expired(Bell(number)):
                tags = frozenset(self.rng.sample(self.names, 5))
                rumour = Rumour(tags, Rows(b"%d" % self.rng.getrandbits(64)), 0)
                near = [Send(to, rumour) for to in self.rng.sample(self.names, 3)]
                return [*near, SetTimer(self.rng.expovariate(10.0), Bell(number + 1)), Persist(number, self.count)]
            case Received(src, Rumour(tags, rows, hops)) if hops < 4:
                to = self.rng.choice(self.names)
                return [Send(to, Rumour(tags, rows, hops + 1)), Report("hops", hops), Deliver((src, sorted(tags)))]
        return NOTHING

    def check(self) -> None:
        assert self.count >= 0


def gossip(seed: int, *, watched: bool = True, upset: bool = True) -> World:
    """Thirty nodes in three regions under every kind of fault there is."""
    world = World(seed, check=watched, trace=watched, between=SimPath(latency=0.03, bandwidth=1e7))
    names = [f"r{at % 3}/n{at}" for at in range(30)]

    def make(durable: list[Any], incarnation: int, rng: random.Random) -> Gossip:
        return Gossip(names, rng)

    def spawn(role: str, region: str, name: str) -> None:
        world.add_node(name, region, make, disk=DiskModel())

    for at, name in enumerate(names):
        service = ServiceTimes(1e-6 * (at % 5), 0.0)
        world.add_node(name, name[:2], make, uplink=1e7, downlink=1e9, service=service, disk=DiskModel(spread=0.001))
    if upset:
        groups = [{f"r{r}": tuple(names[r + 3 * lo : 30 : 9]) for r in range(3)} for lo in range(3)]
        apply(world, schedule(EVERYTHING, random.Random(seed), Cast(*groups), 0.1, 3.0), spawn)
    world.start()
    world.run(3.5)
    assert not world.failures
    return world


EVERYTHING = Faults(
    **{kind: 0.1 for kind in Faults.SHARES}, **{kind: 3.0 for kind in Faults.RATES}, jitter="pareto", outage=0.2
)


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    hashes = [gossip(seed).trace_hash for seed in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("upset", [False, True])
def test_both_loops_mean_the_same(upset: bool) -> None:
    watched, raced = gossip(3, upset=upset), gossip(3, watched=False, upset=upset)
    assert raced.protocol_events == watched.protocol_events > 1000
    assert raced.reports == watched.reports
    assert raced.fault_counts == watched.fault_counts
    assert raced.network.dropped == watched.network.dropped
    for name, host in watched.hosts.items():
        other: Any = raced.hosts[name]
        assert (other.incarnation, other.sent_bytes, other.busy) == (host.incarnation, host.sent_bytes, host.busy)
        assert not host.life or other.machine.rng.random() == host.machine.rng.random()  # type: ignore[attr-defined]


def test_slicing_a_run_changes_nothing() -> None:
    whole, sliced = World(4), World(4)
    for world in (whole, sliced):
        for at in range(10):
            world.add_node(f"n{at}", "r", lambda d, i, rng: Gossip([f"n{at}" for at in range(10)], rng))
        world.start()
    whole.run(1.0)
    cuts = random.Random(1)
    while sliced.now < 1.0:
        sliced.run(min(1.0, sliced.now + cuts.random() * 0.002))
    assert sliced.trace_hash == whole.trace_hash


def test_the_trace_does_not_depend_on_the_hash_seed_of_the_process() -> None:
    hashes = []
    for hash_seed in ("0", "1", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(File(__file__)), "7"]
        hashes.append(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip())
    assert len(set(hashes)) == 1
    assert hashes[0] == gossip(7).trace_hash


def test_the_trace_tells_types_apart_that_have_the_same_fields() -> None:
    class Gong(Timer, frozen=True, gc=False):
        number: int

    hashes = []
    for timer in (Bell(1), Gong(1)):
        world = school()
        world.inject(1.0, "a", Do((SetTimer(1.0, timer),)))
        world.run(3.0)
        hashes.append(world.trace_hash)
    assert hashes[0] != hashes[1]


def test_a_value_without_a_stable_encoding_is_a_failure_that_says_so() -> None:
    world = school()
    world.inject(1.0, "a", Do((Deliver(object()),)))
    world.run(2.0)
    assert "give it a stable `digest`" in world.failures[0].traceback


# --- the timetable of faults ------------------------------------------------------------------------------

CAST = Cast(
    {"x": ("x/p0", "x/p1", "x/p2"), "y": ("y/p0", "y/p1")},
    {"x": ("x/c0", "x/c1"), "y": ("y/c0",)},
    {"x": ("x/config",), "y": ("y/config",)},
)
OUTAGES = {"crash", "restart", "pause", "region_stop", "config_outage", "disk_loss"}
ALL = msgspec.structs.replace(EVERYTHING, disk_loss=2.0)


def drawn(faults: Faults, seed: int) -> list[FaultEvent]:
    return schedule(faults, random.Random(seed), CAST, 1.0, 9.0)


def test_every_kind_is_drawn_when_every_kind_is_on() -> None:
    kinds = {event.kind for event in drawn(ALL, 1)}
    assert kinds == {*Faults.SHARES, *Faults.RATES, "jitter", "disk_loss"}


@given(st.integers(0, 1000))
def test_a_timetable_is_ordered_and_over_when_the_phase_is(seed: int) -> None:
    events = drawn(ALL, seed)
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert all(1.0 <= event.at <= event.until <= 9.0 for event in events)


@given(st.integers(0, 1000))
def test_no_node_has_two_outages_at_once(seed: int) -> None:
    busy: dict[str, float] = {}
    for event in drawn(ALL, seed):
        for node in event.target if event.kind in OUTAGES else ():
            assert busy.get(node, 0.0) <= event.at
            busy[node] = event.until


@given(st.integers(0, 1000))
def test_each_region_has_a_replica_that_never_loses_its_disk(seed: int) -> None:
    lost = {event.target[0] for event in drawn(ALL, seed) if event.kind == "disk_loss"}
    assert all(set(group) - lost for group in CAST.replicas.values())


@given(st.integers(0, 1000))
def test_clients_leave_once_and_only_when_they_are_there(seed: int) -> None:
    present = {node for group in CAST.clients.values() for node in group}
    for event in drawn(ALL, seed):
        if event.kind == "churn":
            present.remove(event.args["leaver"])
            present.add(event.args["name"])


def test_a_timetable_is_a_function_of_the_generator() -> None:
    assert drawn(ALL, 1) == drawn(ALL, 1) != drawn(ALL, 2)


def test_nothing_is_drawn_when_everything_is_off() -> None:
    assert drawn(Faults(), 1) == []


def test_swarms_differ_in_kind_and_never_lose_a_disk() -> None:
    rng = random.Random(1)
    swarms = [Faults.swarm(rng) for _ in range(200)]
    mixtures = {tuple(bool(getattr(swarm, kind)) for kind in Faults.RATES) for swarm in swarms}
    assert len(mixtures) > 150
    assert all(swarm.disk_loss == 0.0 for swarm in swarms)
    for kind in (*Faults.SHARES, *Faults.RATES):
        on = sum(bool(getattr(swarm, kind)) for swarm in swarms)
        assert 60 < on < 140


def test_after_the_phase_everything_is_as_it_was() -> None:
    world = gossip(5)
    network = world.network
    assert not network.blocks
    assert not any(link.cut or link.changes for row in network.links for link in row)
    for host in world.hosts.values():
        assert host.removed or (host.life and not host.wake_at and host.clock(1.0) == 1.0)
        assert host.disk is not None
        assert not host.disk.full and host.disk.slow == 1.0
    assert not {*Faults.SHARES, *Faults.RATES, "jitter"} - {*+world.fault_counts}


def test_an_unknown_kind_of_fault_is_refused_by_name() -> None:
    world = school()
    apply(world, [FaultEvent(1.0, "flood", (), {}, 2.0)])
    with pytest.raises(ValueError, match="flood"):
        world.run(2.0)


if __name__ == "__main__":
    print(gossip(int(sys.argv[1])).trace_hash)
