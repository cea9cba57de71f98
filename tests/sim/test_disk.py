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


class DiskRig:
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

    def run(self, until: float = 100.0) -> DiskRig:
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
    rig = DiskRig(DiskModel(sync=SYNC))
    rig.write(1.0, 1, 2, 3)
    rig.write(1.0, 4)
    assert rig.run().heard == [(1.01, 4)]


def test_the_next_sync_begins_when_the_last_one_ends_with_all_that_came_meanwhile() -> None:
    rig = DiskRig(DiskModel(sync=SYNC))
    for record, at in enumerate((1.0, 1.001, 1.005, 1.009, 1.015, 1.5), start=1):
        rig.write(at, record)
    assert rig.run().heard == [(1.01, 1), (1.02, 4), (1.03, 5), (1.51, 6)]
    assert rig.groups == [[1], [2, 3, 4], [5], [6]]


def test_without_a_disk_a_write_is_answered_at_once_and_nothing_survives() -> None:
    rig = DiskRig(None)
    rig.write(1.0, 1, 2)
    assert rig.run().heard == [(1.0, 1), (1.0, 2)]
    assert rig.found() == []


@given(st.lists(st.floats(0.0, 0.1), min_size=1, max_size=30), st.floats(0.0, 0.15))
def test_a_crash_loses_what_is_not_synced_and_only_that(writes: list[float], crash: float) -> None:
    rig = DiskRig(DiskModel(sync=SYNC))
    for record, at in enumerate(sorted(writes), start=1):
        rig.write(at, record)
    rig.run(crash)
    last = rig.heard[-1][1] if rig.heard else 0
    assert rig.found() == list(range(1, last + 1))


def test_a_write_after_a_restart_is_not_answered_by_a_sync_from_before() -> None:
    rig = DiskRig(DiskModel(sync=SYNC))
    rig.write(1.0, 1)
    rig.world.at(1.005, lambda: rig.world.crash("n"))
    rig.world.at(1.006, lambda: rig.world.restart("n"))
    rig.write(1.007, 7)
    assert rig.run().heard == [(1.017, 7)]
    assert rig.found() == [7]


def test_of_a_torn_write_a_prefix_survives_as_the_seed_will_have_it() -> None:
    lengths = set()
    for seed in range(40):
        rig = DiskRig(DiskModel(sync=SYNC, torn=True), seed)
        rig.write(1.0, 1)
        rig.write(1.005, 2, 3, 4)
        found = rig.run(1.0199).found()
        assert found == list(range(1, len(found) + 1))
        lengths.add(len(found))
    assert lengths == {1, 2, 3, 4}


def test_a_lost_disk_has_nothing_left() -> None:
    rig = DiskRig(DiskModel(sync=SYNC))
    rig.write(1.0, 1)
    rig.run()
    rig.world.crash("n", lose_disk=True)
    assert rig.found() == []


def test_a_slow_disk_makes_larger_groups() -> None:
    rig = DiskRig(DiskModel(sync=SYNC))
    rig.world.slow_disk("n", 10.0)
    for record in range(1, 11):
        rig.write(1.0 + record * 0.01, record)
    rig.world.at(1.5, lambda: rig.world.slow_disk("n", 1.0))
    rig.write(2.0, 11)
    assert rig.run().heard == [(1.11, 1), (1.21, 10), (2.01, 11)]
    assert rig.world.fault_counts == {"slow_disk": 1}


def test_a_disk_that_is_fast_again_ends_the_sync_that_is_under_way_sooner() -> None:
    rig = DiskRig(DiskModel(sync=SYNC))
    rig.world.slow_disk("n", 1000.0)
    rig.write(1.0, 1)
    rig.write(1.1, 2)
    rig.world.at(6.0, lambda: rig.world.slow_disk("n", 1.0))  # half of it is done
    assert rig.run().heard == [(6.005, 1), (6.015, 2)]


def test_a_full_disk_answers_when_there_is_room_again() -> None:
    rig = DiskRig(DiskModel(sync=SYNC))
    rig.write(1.0, 1)
    rig.world.at(1.005, lambda: rig.world.full_disk("n", True))
    rig.write(1.006, 2)
    rig.write(1.5, 3)
    rig.world.at(2.0, lambda: rig.world.full_disk("n", False))
    assert rig.run(1.9).heard == [(1.01, 1)]
    assert rig.run().heard == [(1.01, 1), (2.01, 3)]


def test_the_time_of_a_sync_has_the_asked_mean() -> None:
    rig = DiskRig(DiskModel(sync=SYNC, spread=0.005))
    for record in range(1, 2001):
        rig.write(float(record), record)
    rig.run(2002.0)
    taken = [time - record for time, record in rig.heard]
    assert min(taken) >= SYNC - 1e-9
    assert sum(taken) / len(taken) == pytest.approx(SYNC + 0.005, rel=0.1)


def test_durable_hands_out_a_copy() -> None:
    rig = DiskRig(DiskModel(sync=SYNC))
    rig.write(1.0, 1)
    disk = rig.run().world.hosts["n"].disk
    assert disk is not None
    disk.durable().append(random.random())
    assert disk.durable() == [1]
