"""Which turn of the loop an input is handled in, and when what follows from it is persisted and written."""

from __future__ import annotations

import asyncio
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from net.rig import PINGS, UNLUCKY, Ping, Pinger, Pong, ping_host, run, until
from net.test_link import bytes_of, greeted
from tidings.net import host as host_module
from tidings.net.frames import NO_BODY, PREFIX, Outbox
from tidings.net.host import Host, HostSettings
from tidings.protocols.kernel import Effects, Input, Persist, Persisted, Received
from tidings.store import Store

PATIENT = HostSettings(turn_seconds=60.0)  # however slow the machine is


@pytest.fixture
def always_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "REST", 0.0)


@pytest.fixture
def never_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "REST", math.inf)


class Someone:
    node, role = "n", "node"


def receive(host: Host, *numbers: int) -> None:
    """As if one read had brought these pings."""
    someone: Any = Someone()
    for number in numbers:
        host.peer_frame(someone, PINGS.split(Ping(number))[0], NO_BODY)
    host.handed()


class Writer(Pinger):
    """Writes every ping down; remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def handle(self, now: float, input: Input) -> Effects:
        if isinstance(input, Persisted):
            self.told.append(f"persisted {input.token}")
        if isinstance(input, Received) and isinstance(input.message, Ping):
            self.told.append(input.message.number)
            return [Persist(input.message, input.message.number)]
        return []


@pytest.mark.usefixtures("always_at_rest")
def test_a_host_at_rest_handles_what_has_come_at_once_and_all_of_it() -> None:
    async def main() -> None:
        machine = Pinger()
        host = ping_host("b", machine, {}, settings=PATIENT)
        host.start()
        receive(host, 1, 2, 3)
        assert machine.pings == [1, 2, 3]
        await host.stop()

    run(main())


@pytest.mark.usefixtures("never_at_rest")
def test_a_busy_host_gathers_what_a_turn_brings() -> None:
    async def main() -> None:
        machine = Pinger()
        host = ping_host("b", machine, {})
        host.start()
        receive(host, 1)
        receive(host, 2)
        assert machine.pings == []
        host.prompt()
        assert machine.pings == [1, 2]
        receive(host, 3)
        await until(lambda: machine.pings == [1, 2, 3])
        await host.stop()

    run(main())


@pytest.mark.usefixtures("always_at_rest")
def test_without_a_disk_what_has_gathered_is_persisted_once_in_the_same_turn(tmp_path: Path) -> None:
    async def main() -> None:
        machine = Writer()
        store = Store.open(tmp_path / "log", durability="memory")
        host = ping_host("b", machine, {}, store=store, settings=PATIENT)
        host.start()
        receive(host, 1, 2, 3)
        assert machine.told == [1, 2, 3, "persisted 3"]
        await host.stop()

    run(main())


@pytest.mark.usefixtures("always_at_rest")
def test_a_turn_has_a_bound_and_what_was_written_in_it_is_persisted_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        machine = Writer()
        store = Store.open(tmp_path / "log", durability="memory")
        host = ping_host("b", machine, {}, store=store, settings=HostSettings(turn=2, turn_seconds=60.0))
        host.start()
        receive(host, 1, 2, 3, 4)
        assert machine.told == [1, 2]
        await until(lambda: machine.told[-1] == "persisted 4")
        assert machine.told == [1, 2, 3, 4, "persisted 2", "persisted 4"]
        receive(host, 5, 6)  # no more than the bound
        await until(lambda: machine.told[-1] == "persisted 6")
        await host.stop()

    run(main())


@pytest.mark.parametrize("uvloop", [True, False])
def test_what_was_sent_before_a_machine_failed_is_written(uvloop: bool) -> None:
    async def main() -> None:
        host = ping_host("b", Pinger(), {})
        address = await host.listen()
        host.start()
        reader, writer = await asyncio.open_connection(*address)
        pings = b"".join([bytes_of(PINGS.encode(Ping(number))) for number in (1, 2, UNLUCKY, 3)])
        writer.write(greeted() + pings)
        answers = []
        for _ in range(3):
            length, _ = PREFIX.unpack(await reader.readexactly(8))
            answers.append(await reader.readexactly(length))
        assert [PINGS.decode(answer, NO_BODY) for answer in answers[1:]] == [Pong(1), Pong(2)]
        assert host.failed.exception() is not None
        writer.close()
        await host.stop()

    run(main(), uvloop=uvloop)


class Gathering:
    """A connection that counts how often it is flushed."""

    def __init__(self) -> None:
        self.flushed = 0

    def flush(self) -> None:
        self.flushed += 1


def test_an_outbox_is_flushed_at_the_end_of_the_turn_or_by_whoever_holds_it() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        outbox, one, other = Outbox(), Gathering(), Gathering()
        connections: list[Any] = [one, other]
        for connection in connections:
            outbox.add(connection, loop)
        assert (one.flushed, other.flushed) == (0, 0)
        await asyncio.sleep(0)
        assert (one.flushed, other.flushed) == (1, 1)
        outbox.held = True
        outbox.add(connections[0], loop)
        await asyncio.sleep(0)
        assert one.flushed == 1
        outbox.held = False
        outbox.flush()
        await asyncio.sleep(0)
        assert (one.flushed, other.flushed) == (2, 1)

    run(main())


def test_a_host_that_polls_stays_awake_for_a_while_and_then_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0

    def give_way() -> None:
        nonlocal turns
        turns += 1

    monkeypatch.setattr(os, "sched_yield", give_way)
    monkeypatch.setattr(host_module, "CROWDED", 60.0)

    async def main() -> None:
        host = ping_host("b", Pinger(), {}, settings=HostSettings(poll=0.05))
        host.start()
        receive(host, 1)
        began = time.monotonic()
        await until(lambda: turns > 1)
        await until(lambda: not host._polling)
        assert time.monotonic() - began >= 0.05
        slept = turns
        await asyncio.sleep(0.01)
        assert turns == slept
        receive(host, 2)
        await until(lambda: turns > slept)
        await host.stop()

    run(main())


def test_a_host_that_polls_gives_way_and_keeps_away_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    given = 0

    def give_way() -> None:
        nonlocal given
        given += 1
        time.sleep(2 * host_module.CROWDED)

    monkeypatch.setattr(os, "sched_yield", give_way)
    monkeypatch.setattr(host_module, "COMPANY", 60.0)

    async def main() -> None:
        host = ping_host("b", Pinger(), {}, settings=HostSettings(poll=30.0))
        host.start()
        receive(host, 1)
        await until(lambda: host.counters["poll_crowded"] == 1)
        receive(host, 2)
        await asyncio.sleep(0.01)
        assert given == 1 and not host._polling
        await host.stop()

    run(main())


def test_a_host_polls_only_if_it_is_told_to() -> None:
    async def main() -> None:
        host = ping_host("b", Pinger(), {})
        host.start()
        receive(host, 1)
        await asyncio.sleep(0)
        assert not host._polling
        await host.stop()

    run(main())
