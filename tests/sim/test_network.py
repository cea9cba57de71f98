"""Bandwidth arithmetic, latencies, loss, order, cuts and partitions, seen by nodes that note what arrives when."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.protocols.kernel import NOTHING, Command, Effects, Input, Message, Received, Send
from tidings.sim.network import CUT_THROUGH, Port, Processors, ServiceTimes, SimPath
from tidings.sim.world import World

LATENCY = 0.01


class Note(Message, frozen=True, gc=False):
    """The receiver writes it down."""

    number: int
    size: int = 1000
    carried: int = 0

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return self.size

    @property
    def events(self) -> int:  # type: ignore[override]
        return self.carried


class Tell(Command, frozen=True, gc=False):
    to: str
    notes: tuple[Note, ...]


class Listener:
    """Sends what it is told to, and notes (time, sender, number) of what arrives."""

    def __init__(self, ledger: list[tuple[float, str, int]]) -> None:
        self.ledger = ledger

    def start(self, now: float) -> Effects:
        return NOTHING

    def handle(self, now: float, input: Input) -> Effects:
        match input:
            case Tell(to, notes):
                return [Send(to, note) for note in notes]
            case Received(src, Note(number)):
                self.ledger.append((now, src, number))
        return NOTHING

    def check(self) -> None:
        pass


class Office:
    """A world of listeners, a0 and a1 in region a, b0 and b1 in region b, and what each of them noted."""

    def __init__(
        self, path: SimPath | None = None, *, check: bool = True, seed: int = 1, **nodes: dict[str, Any]
    ) -> None:
        self.world = World(
            seed, check=check, trace=False, inside=SimPath(latency=LATENCY), between=path or SimPath(latency=LATENCY)
        )
        self.ledgers: dict[str, list[tuple[float, str, int]]] = {}
        for name in ("a0", "a1", "b0", "b1"):
            self.ledgers[name] = []
            self.world.add_node(name, name[0], self._clerk(name), **nodes.get(name, {}))
        self.world.start()

    def _clerk(self, name: str) -> Any:
        return lambda durable, incarnation, rng: Listener(self.ledgers[name])

    def tell(self, at: float, src: str, to: str, *notes: Note) -> None:
        self.world.inject(at, src, Tell(to, notes))

    def times(self, name: str) -> list[float]:
        return [time for time, _, _ in self.ledgers[name]]

    def numbers(self, name: str) -> list[int]:
        return [number for _, _, number in self.ledgers[name]]

    def run(self, until: float = 1e6) -> Office:
        self.world.run(until)
        assert not self.world.failures
        return self


both_loops = pytest.mark.parametrize("check", [True, False], ids=["watched", "raced"])


# --- bandwidth and service --------------------------------------------------------------------------------


@both_loops
def test_an_uplink_sends_one_message_after_the_other(check: bool) -> None:
    office = Office(check=check, a0={"uplink": 8000.0})  # 1000 bytes take one second
    office.tell(0.0, "a0", "b0", Note(1), Note(2))
    office.tell(10.0, "a0", "b0", Note(3, 500))
    assert office.run().times("b0") == pytest.approx([1 + LATENCY, 2 + LATENCY, 10.5 + LATENCY])
    assert office.world.hosts["a0"].sent_bytes == 2500


@both_loops
def test_a_downlink_is_taken_in_order_of_arrival(check: bool) -> None:
    office = Office(check=check, b0={"downlink": 8000.0})
    office.tell(0.0, "a0", "b0", Note(1))
    office.tell(0.1, "a1", "b0", Note(2))
    office.tell(9.0, "a0", "b0", Note(3))
    assert office.run().times("b0") == pytest.approx([1 + LATENCY, 2 + LATENCY, 10 + LATENCY])


@both_loops
def test_a_processor_takes_time_per_message_and_per_event(check: bool) -> None:
    office = Office(check=check, b0={"service": ServiceTimes(per_message=0.5, per_event=0.1)})
    office.tell(0.0, "a0", "b0", Note(1, carried=10), Note(2))
    assert office.run().times("b0") == pytest.approx([1.5 + LATENCY, 2 + LATENCY])


@both_loops
def test_a_message_with_events_costs_more_and_most_when_there_was_nothing_to_do(check: bool) -> None:
    office = Office(check=check, b0={"service": ServiceTimes(0.5, per_batch=2.0, per_wake=4.0)})
    office.tell(0.0, "a0", "b0", Note(1, carried=1), Note(2, carried=1), Note(3))
    office.tell(20.0, "a0", "b0", Note(4), Note(5, carried=1))
    expected = [6.5, 9.0, 9.5, 20.5, 23.0]
    assert office.run().times("b0") == pytest.approx([at + LATENCY for at in expected])


@both_loops
def test_who_is_busy_shares_the_processors_equally_with_others(check: bool) -> None:
    office = Office(check=check, b0={"service": ServiceTimes(1.0)}, b1={"service": ServiceTimes(1.0)})
    shared = Processors(2, others=1.0)
    for node in ("b0", "b1"):
        office.world.hosts[node].share(shared)
    office.tell(0.0, "a0", "b0", Note(1))  # alone beside the others: a processor for each
    office.tell(0.5, "a0", "b1", Note(2))  # three on two processors
    office.tell(9.0, "a0", "b1", Note(3))
    office.run()
    assert office.times("b0") == pytest.approx([1.0 + LATENCY])
    assert office.times("b1") == pytest.approx([2.0 + LATENCY, 10.0 + LATENCY])


@both_loops
def test_downlink_and_processor_work_at_the_same_time(check: bool) -> None:
    office = Office(check=check, b0={"downlink": 8000.0, "service": ServiceTimes(per_message=0.75)})
    office.tell(0.0, "a0", "b0", Note(1), Note(2))
    assert office.run().times("b0") == pytest.approx([1.75 + LATENCY, 2.75 + LATENCY])


@both_loops
def test_a_small_message_cuts_through_an_idle_port_and_is_accounted_for(check: bool) -> None:
    office = Office(check=check, b0={"downlink": 1e9})
    office.tell(0.0, "a0", "b0", Note(1, 125), Note(2, 125))  # one microsecond each
    assert office.run().times("b0") == [LATENCY, pytest.approx(LATENCY + 2e-6, abs=1e-12)]


@both_loops
def test_a_message_that_cuts_through_keeps_the_processor_busy_for_the_next(check: bool) -> None:
    office = Office(check=check, b0={"service": ServiceTimes(per_message=1e-6)})
    office.tell(0.0, "a0", "b0", Note(1), Note(2))
    assert office.run().times("b0") == [LATENCY, pytest.approx(LATENCY + 2e-6, abs=1e-12)]


@both_loops
def test_a_restart_begins_without_backlog(check: bool) -> None:
    office = Office(check=check, a0={"uplink": 8000.0, "downlink": 8000.0})
    office.tell(0.0, "a0", "b0", *[Note(number) for number in range(100)])
    office.tell(0.0, "b0", "a0", *[Note(number) for number in range(100)])
    office.world.at(1.0, lambda: office.world.crash("a0"))
    office.world.at(2.0, lambda: office.world.restart("a0"))
    office.tell(3.0, "a0", "b1", Note(1))
    office.tell(4.0, "b1", "a0", Note(1))
    office.run()
    assert office.times("b1") == pytest.approx([4.0 + LATENCY])
    assert office.times("a0")[-1] == pytest.approx(5.0 + LATENCY)


def test_a_large_message_does_not_cut_through() -> None:
    port = Port("a", 0, None, 1e9, None)
    assert port.admit(1.0, 125, Note(1)) == 1.0
    assert port.admit(2.0, 1000, Note(1)) == pytest.approx(2.0 + 8e-6)


@given(st.floats(1e6, 1e11), st.floats(0.0, 3e-6), st.integers(1, 100_000))
def test_the_short_cut_of_the_loop_agrees_with_the_rule(downlink: float, per_message: float, size: int) -> None:
    port = Port("a", 0, None, downlink, ServiceTimes(per_message))
    if size < port.quick:
        assert size * port.down + per_message < CUT_THROUGH
        assert port.admit(1.0, size, Note(1)) == 1.0


def test_what_waits_for_the_processor_is_lost_in_a_crash() -> None:
    office = Office(b0={"service": ServiceTimes(per_message=1.0)})
    office.tell(0.0, "a0", "b0", Note(1), Note(2))
    office.world.at(1.5, lambda: office.world.crash("b0"))
    office.world.at(1.6, lambda: office.world.restart("b0"))
    assert office.run().numbers("b0") == [1]


@both_loops
def test_what_arrives_at_a_node_that_is_down_does_not_wait_for_its_restart(check: bool) -> None:
    office = Office(check=check, b0={"downlink": 8000.0})
    office.world.at(1.0, lambda: office.world.crash("b0"))
    office.tell(2.0, "a0", "b0", Note(1))
    office.world.at(2.5, lambda: office.world.restart("b0"))
    assert office.run().numbers("b0") == []
    assert office.world.network.dropped == {"down": 1}


@both_loops
def test_the_bandwidth_of_a_path_is_shared_by_all_who_send_that_way(check: bool) -> None:
    office = Office(SimPath(latency=LATENCY, bandwidth=8000.0), check=check)
    office.tell(0.0, "a0", "b0", Note(1))
    office.tell(0.0, "a1", "b1", Note(2))
    office.tell(0.0, "b0", "a0", Note(3))
    office.tell(0.0, "a0", "a1", Note(4))
    office.run()
    assert office.times("b0") == pytest.approx([1 + LATENCY])
    assert office.times("b1") == pytest.approx([2 + LATENCY])
    assert office.times("a0") == pytest.approx([1 + LATENCY])  # the other way is another path
    assert office.times("a1") == pytest.approx([LATENCY])


# --- latency, loss, order ---------------------------------------------------------------------------------

MANY = 4000


def stream(path: SimPath, *, gap: float = 0.0001, seed: int = 1) -> Office:
    """Many messages from a0 to b0, one every ``gap`` seconds."""
    office = Office(path, seed=seed, check=False)
    for number in range(MANY):
        office.tell(number * gap, "a0", "b0", Note(number))
    return office.run()


def delays(office: Office, gap: float) -> list[float]:
    return [time - number * gap for time, _, number in office.ledgers["b0"]]


def test_constant_latency_is_exact() -> None:
    assert set(delays(stream(SimPath(latency=0.5), gap=1.0), 1.0)) == {0.5}


def test_normal_latency_has_its_mean_and_deviation() -> None:
    drawn = delays(stream(SimPath(latency=0.5, shape="normal", spread=0.02), gap=1.0), 1.0)
    mean = sum(drawn) / MANY
    deviation = (sum((delay - mean) ** 2 for delay in drawn) / MANY) ** 0.5
    assert mean == pytest.approx(0.5, abs=0.002)
    assert deviation == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("shape", ["lognormal", "pareto"])
def test_heavy_tails_start_at_the_latency_and_reach_far(shape: Any) -> None:
    drawn = sorted(delays(stream(SimPath(latency=0.1, shape=shape, spread=0.005), gap=100.0), 100.0))
    assert drawn[0] >= 0.1 - 1e-9
    assert drawn[MANY // 2] < 0.11
    assert drawn[-1] > 0.1 + 10 * 0.005


def test_no_latency_is_below_the_floor() -> None:
    drawn = delays(stream(SimPath(latency=0.1, shape="normal", spread=0.1, floor=0.05), gap=10.0), 10.0)
    assert min(drawn) == pytest.approx(0.05, abs=1e-9)


@pytest.mark.parametrize("shape", ["normal", "lognormal", "pareto"])
def test_jitter_alone_does_not_reorder(shape: Any) -> None:
    office = stream(SimPath(latency=0.05, shape=shape, spread=0.02))
    assert office.numbers("b0") == list(range(MANY))


def test_no_message_overtakes_when_jitter_ends_or_latency_falls() -> None:
    office = Office(SimPath(latency=0.05))
    for number in range(MANY):
        office.tell(number * 0.0001, "a0", "b0", Note(number))
    office.world.at(0.1, lambda: office.world.impair("a", "b", shape="pareto", spread=0.02))
    office.world.at(0.2, lambda: office.world.impair("a", "b", shape=None, spread=None))
    office.world.at(0.3, lambda: office.world.connect("a", "b", SimPath(latency=0.005)))
    office.tell(100.0, "a0", "b0", Note(MANY))
    assert office.run().numbers("b0") == list(range(MANY + 1))
    assert office.world.network.delays[0][1] == 0.005  # and the path is plain again


def test_no_message_overtakes_when_a_constant_latency_falls() -> None:
    office = Office(SimPath(latency=0.05))
    for number in range(1000):
        office.tell(number * 0.0001, "a0", "b0", Note(number))
    office.world.at(0.05, lambda: office.world.connect("a", "b", SimPath(latency=0.005)))
    assert office.run().numbers("b0") == list(range(1000))


def rate_of(count: int, share: float) -> bool:
    """Within four standard deviations of the expected count."""
    return abs(count - MANY * share) < 4 * math.sqrt(MANY * share * (1 - share))


def test_the_asked_share_of_messages_is_lost() -> None:
    office = stream(SimPath(latency=0.05, loss=0.1))
    assert rate_of(MANY - len(office.numbers("b0")), 0.1)
    assert office.world.fault_counts["loss"] == MANY - len(office.numbers("b0"))


def test_the_asked_share_of_messages_is_doubled() -> None:
    office = stream(SimPath(latency=0.05, duplication=0.1))
    assert rate_of(len(office.numbers("b0")) - MANY, 0.1)
    assert set(office.numbers("b0")) == set(range(MANY))


def test_the_asked_share_of_messages_is_late_and_only_those() -> None:
    office = stream(SimPath(latency=0.05, reordering=0.1), gap=0.0001)
    late = [delay for delay in delays(office, 0.0001) if delay > 0.05 + 1e-9]
    assert rate_of(len(late), 0.1)
    assert office.numbers("b0") != list(range(MANY))
    assert sorted(office.numbers("b0")) == list(range(MANY))


def test_random_paths_are_a_function_of_the_seed() -> None:
    path = SimPath(latency=0.05, shape="pareto", spread=0.01, loss=0.1, duplication=0.1, reordering=0.1)
    assert stream(path, seed=5).ledgers == stream(path, seed=5).ledgers
    assert stream(path, seed=5).ledgers != stream(path, seed=6).ledgers


# --- cuts and partitions ----------------------------------------------------------------------------------


def chatter(office: Office, until: float = 1.0) -> None:
    """Everybody tells everybody a number that is the time in hundredths of a second."""
    names = sorted(office.ledgers)
    for tick in range(round(until * 100)):
        for src in names:
            for to in names:
                if to != src:
                    office.tell(tick / 100, src, to, Note(tick))


def heard(office: Office, name: str, src: str) -> set[int]:
    return {number for _, sender, number in office.ledgers[name] if sender == src}


def ticks(*spans: tuple[int, int]) -> set[int]:
    return {tick for lo, hi in spans for tick in range(lo, hi)}


@both_loops
def test_nothing_passes_a_cut_until_it_heals_and_what_is_on_the_way_is_lost(check: bool) -> None:
    office = Office(SimPath(latency=0.025), check=check)
    chatter(office)
    office.world.at(0.301, lambda: office.world.cut("a", "b"))
    office.world.at(0.601, lambda: office.world.heal("a", "b"))
    office.run()
    assert heard(office, "b0", "a0") == heard(office, "a1", "b1") == ticks((0, 28), (61, 100))
    assert heard(office, "a0", "a1") == heard(office, "b0", "b1") == ticks((0, 100))
    assert office.world.fault_counts == {"cut": 1, "heal": 1}


def test_what_is_on_the_way_arrives_if_a_cut_is_to_spare_it() -> None:
    office = Office(SimPath(latency=0.025))
    office.world.network.lose_in_flight = False
    chatter(office)
    office.world.at(0.301, lambda: office.world.cut("a", "b"))
    assert heard(office.run(), "b0", "a0") == ticks((0, 31))


def test_a_link_can_be_cut_one_way() -> None:
    office = Office(SimPath(latency=0.025))
    chatter(office)
    office.world.at(0.301, lambda: office.world.cut("a", "b", one_way=True))
    office.run()
    assert heard(office, "b0", "a0") == ticks((0, 28))
    assert heard(office, "a0", "b0") == ticks((0, 100))


@both_loops
def test_a_partition_keeps_two_sets_of_nodes_apart_and_nobody_else(check: bool) -> None:
    office = Office(SimPath(latency=0.001), check=check)
    chatter(office)
    blocks: list[int] = []
    office.world.at(0.305, lambda: blocks.extend(office.world.partition(["a0"], ["a1", "b0"])))
    office.world.at(0.605, lambda: office.world.rejoin(blocks))
    office.run()
    assert heard(office, "b0", "a0") == heard(office, "a0", "b0") == ticks((0, 31), (61, 100))
    assert heard(office, "a1", "a0") == heard(office, "a0", "a1") == ticks((0, 30), (61, 100))  # 30 was on the way
    assert heard(office, "b1", "a0") == heard(office, "b0", "a1") == heard(office, "a0", "b1") == ticks((0, 100))


def test_an_asymmetric_partition_stops_one_direction_only() -> None:
    blocks: list[int] = []
    office = Office(SimPath(latency=0.001))
    chatter(office)
    office.world.at(0.305, lambda: blocks.extend(office.world.partition(["a0"], ["b0"], one_way=True)))
    office.run()
    assert heard(office, "b0", "a0") == ticks((0, 31))
    assert heard(office, "a0", "b0") == ticks((0, 100))


def test_overlapping_partitions_heal_one_by_one() -> None:
    office = Office()
    first = office.world.partition(["a0"], ["b0"])
    second = office.world.partition(["a0", "a1"], ["b0"])
    office.world.rejoin(first)
    assert office.world.network.blocked("a0", "b0")
    office.world.rejoin(second)
    assert not office.world.network.blocked("a0", "b0")


def test_heal_all_mends_cuts_and_partitions() -> None:
    office = Office()
    office.world.cut("a", "b")
    office.world.partition(["a0"], ["a1"])
    office.world.network.heal_all(0.0)
    assert all(delay is not None for row in office.world.network.delays for delay in row)


@both_loops
def test_a_message_to_nobody_is_counted_not_raised(check: bool) -> None:
    office = Office(check=check)
    office.tell(0.0, "a0", "nobody", Note(1))
    assert office.run().world.network.dropped == {"unknown": 1}


def test_an_impaired_path_gets_its_own_values_back() -> None:
    office = Office(SimPath(latency=0.05, loss=0.01))
    office.world.impair("a", "b", loss=0.5, reordering=0.5)
    office.world.impair("a", "b", loss=None)
    assert office.world.network.links[0][1].path == SimPath(latency=0.05, loss=0.01, reordering=0.5)
    office.world.impair("a", "b", reordering=None)
    assert office.world.network.links[0][1].path == SimPath(latency=0.05, loss=0.01)


def test_regions_are_numbered_in_order_of_appearance() -> None:
    world = World(1)
    rng = random.Random(0)
    names = [f"r{rng.randrange(5)}" for _ in range(20)]
    numbers = {name: world.network.region(name) for name in names}
    assert list(numbers.values()) == list(range(len(numbers)))
    assert [len(row) for row in world.network.delays] == [len(numbers)] * len(numbers)
