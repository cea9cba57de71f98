"""Group commit without a timer, and what a crash takes: everything not synced, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.protocols.kernel import NOTHING, Command, Effects, Input, Persist, Persisted
from tidings.sim.disk import DiskModel
from tidings.sim.world import World

SYNC = 0.01


class Write(Command, frozen=True, gc=False):
    records: tuple[int, ...]


class Scribe:
    """Persists what it is told to, with the record as its token, and notes what it hears back."""

    def __init__(self, durable: list[Any], heard: list[tuple[float, int]]) -> None:
        self.durable = durable
        self.heard = heard

    def start(self, now: float) -> Effects:
        return NOTHING

    def handle(self, now: float, input: Input) -> Effects:
        match input:
            case Write(records):
                return [Persist(record, record) for record in records]
            case Persisted(token):
                self.heard.append((round(now, 9), token))
        return NOTHING

    def check(self) -> None:
        pass


class Desk:
    """One node with a disk."""

    def __init__(self, model: DiskModel | None, seed: int = 1) -> None:
        self.world = World(seed)
        self.heard: list[tuple[float, int]] = []
        self.groups: list[list[int]] = []
        self.world.observers.append(self)
        self.world.add_node("n", "r", lambda durable, life, rng: Scribe(durable, self.heard), disk=model)
        self.world.start()

    def on_durable(self, time: float, node: str, records: Sequence[Any]) -> None:
        self.groups.append(list(records))

    def write(self, at: float, *records: int) -> None:
        self.world.inject(at, "n", Write(records))

    def run(self, until: float = 100.0) -> Desk:
        self.world.run(until)
        assert not self.world.failures
        return self

    def found(self) -> list[int]:
        """What a new life finds on the disk."""
        self.world.crash("n")
        self.world.restart("n")
        machine: Any = self.world.hosts["n"].machine
        return list(machine.durable)


def test_a_sync_begins_with_the_first_write_and_covers_all_of_that_instant() -> None:
    desk = Desk(DiskModel(sync=SYNC))
    desk.write(1.0, 1, 2, 3)
    desk.write(1.0, 4)
    assert desk.run().heard == [(1.01, 4)]


def test_the_next_sync_begins_when_the_last_one_ends_with_all_that_came_meanwhile() -> None:
    desk = Desk(DiskModel(sync=SYNC))
    for record, at in enumerate((1.0, 1.001, 1.005, 1.009, 1.015, 1.5), start=1):
        desk.write(at, record)
    assert desk.run().heard == [(1.01, 1), (1.02, 4), (1.03, 5), (1.51, 6)]
    assert desk.groups == [[1], [2, 3, 4], [5], [6]]


def test_without_a_disk_a_write_is_answered_at_once_and_nothing_survives() -> None:
    desk = Desk(None)
    desk.write(1.0, 1, 2)
    assert desk.run().heard == [(1.0, 1), (1.0, 2)]
    assert desk.found() == []


@given(st.lists(st.floats(0.0, 0.1), min_size=1, max_size=30), st.floats(0.0, 0.15))
def test_a_crash_loses_what_is_not_synced_and_only_that(writes: list[float], crash: float) -> None:
    desk = Desk(DiskModel(sync=SYNC))
    for record, at in enumerate(sorted(writes), start=1):
        desk.write(at, record)
    desk.run(crash)
    last = desk.heard[-1][1] if desk.heard else 0
    assert desk.found() == list(range(1, last + 1))


def test_a_write_after_a_restart_is_not_answered_by_a_sync_from_before() -> None:
    desk = Desk(DiskModel(sync=SYNC))
    desk.write(1.0, 1)
    desk.world.at(1.005, lambda: desk.world.crash("n"))
    desk.world.at(1.006, lambda: desk.world.restart("n"))
    desk.write(1.007, 7)
    assert desk.run().heard == [(1.017, 7)]
    assert desk.found() == [7]


def test_of_a_torn_write_a_prefix_survives_as_the_seed_will_have_it() -> None:
    lengths = set()
    for seed in range(40):
        desk = Desk(DiskModel(sync=SYNC, torn=True), seed)
        desk.write(1.0, 1)
        desk.write(1.005, 2, 3, 4)
        found = desk.run(1.0199).found()
        assert found == list(range(1, len(found) + 1))
        lengths.add(len(found))
    assert lengths == {1, 2, 3, 4}


def test_a_lost_disk_has_nothing_left() -> None:
    desk = Desk(DiskModel(sync=SYNC))
    desk.write(1.0, 1)
    desk.run()
    desk.world.crash("n", lose_disk=True)
    assert desk.found() == []


def test_a_slow_disk_makes_larger_groups() -> None:
    desk = Desk(DiskModel(sync=SYNC))
    desk.world.slow_disk("n", 10.0)
    for record in range(1, 11):
        desk.write(1.0 + record * 0.01, record)
    desk.world.at(1.5, lambda: desk.world.slow_disk("n", 1.0))
    desk.write(2.0, 11)
    assert desk.run().heard == [(1.11, 1), (1.21, 10), (2.01, 11)]
    assert desk.world.fault_counts == {"slow_disk": 1}


def test_a_full_disk_answers_when_there_is_room_again() -> None:
    desk = Desk(DiskModel(sync=SYNC))
    desk.write(1.0, 1)
    desk.world.at(1.005, lambda: desk.world.full_disk("n", True))
    desk.write(1.006, 2)
    desk.write(1.5, 3)
    desk.world.at(2.0, lambda: desk.world.full_disk("n", False))
    assert desk.run(1.9).heard == [(1.01, 1)]
    assert desk.run().heard == [(1.01, 1), (2.01, 3)]


def test_the_time_of_a_sync_has_the_asked_mean() -> None:
    desk = Desk(DiskModel(sync=SYNC, spread=0.005))
    for record in range(1, 2001):
        desk.write(float(record), record)
    desk.run(2002.0)
    taken = [time - record for time, record in desk.heard]
    assert min(taken) >= SYNC - 1e-9
    assert sum(taken) / len(taken) == pytest.approx(SYNC + 0.005, rel=0.1)


def test_durable_hands_out_a_copy() -> None:
    desk = Desk(DiskModel(sync=SYNC))
    desk.write(1.0, 1)
    disk = desk.run().world.hosts["n"].disk
    assert disk is not None
    disk.durable().append(random.random())
    assert disk.durable() == [1]
