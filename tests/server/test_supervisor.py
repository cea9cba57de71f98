"""The supervisor, apart from what its replicas do: what it starts, starts again, finds, and leaves alone."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from server.rig import until
from tidings.core.errors import BadInput
from tidings.net.names import parse_address
from tidings.server import layout
from tidings.server import supervisor as module
from tidings.server.layout import Layout, Process, started_at
from tidings.server.plan import generate, render
from tidings.server.replica import Spec
from tidings.server.supervisor import Child, Nurse, Options, Supervisor
from tidings.store import StoreFailed


def supervisor(folder: Path, **options: bool) -> Supervisor:
    """One that has not started, of a region with one replica."""
    file = folder / "cluster.toml"
    if not file.exists():
        file.write_text(render(generate(1, 1, port=0)))
    return Supervisor(Options(root=str(folder), plan=str(file), **options))


@contextmanager
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is no business of the supervisor, or stands for a replica."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def say_it_runs(folder: Path, slot: str, process: subprocess.Popen[bytes]) -> None:
    """Write the run file of a replica."""
    layout.write(Layout(folder).run_file(slot), Process(pid=process.pid, started=started_at(process.pid), id=slot))


async def nothing(self: Nurse) -> None:
    """Instead of a nursery, which takes seconds to come up and is not needed here."""


def test_a_start_that_fails_leaves_the_replicas_alone_that_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Nurse, "start", nothing)

    async def main() -> None:
        boss = supervisor(tmp_path)
        with socket.create_server(parse_address(boss.plan.regions[0].config)):
            with pytest.raises(OSError, match="in use"):
                await boss.start()
            assert boss.children["r0/p0"].pid == replica.pid
            await boss.stop()
        assert replica.poll() is None

    with stranger() as replica:
        say_it_runs(tmp_path, "r0/p0", replica)
        asyncio.run(asyncio.wait_for(main(), 30))


def test_a_replica_that_says_only_later_that_it_runs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier supervisor had started it just before its own end: whatever is started beside it ends at once."""
    monkeypatch.setattr(module, "PAUSE", 0.001)
    hatched = 0

    async def hatch(spec: Spec) -> Process:
        nonlocal hatched
        hatched += 1
        with subprocess.Popen(["true"]) as process:
            process.wait()
        return Process(pid=process.pid, started=1)

    async def main() -> None:
        boss = supervisor(tmp_path)
        monkeypatch.setattr(boss._nurse, "hatch", hatch)
        child = boss.children["r0/p0"] = Child("r0/p0", "127.0.0.1:1")
        keeping = asyncio.ensure_future(boss._keep(child))

        async def tried() -> bool:
            return hatched > 1

        async def found() -> bool:
            return child.pid == replica.pid

        await until(tried, "attempts to start it")
        say_it_runs(tmp_path, "r0/p0", replica)
        await until(found, "it is found")
        before = hatched
        await asyncio.sleep(0.1)
        assert hatched == before
        keeping.cancel()

    with stranger() as replica:
        asyncio.run(main())


def test_a_process_that_only_has_the_number_of_a_replica_is_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        boss = supervisor(tmp_path)
        child = boss.children["r0/p0"] = Child("r0/p0", "127.0.0.1:1")
        child.process = Process(pid=other.pid, started=started_at(other.pid) - 1)
        await asyncio.wait_for(boss._until_ended(child), 1)
        with pytest.raises(BadInput, match="does not run"):
            boss.pause(child, 60)
        await boss._end(child)
        killing = asyncio.ensure_future(boss.kill(child))
        keeping = asyncio.ensure_future(boss._keep(child))
        await asyncio.wait_for(killing, 5)
        keeping.cancel()
        assert other.poll() is None

    with stranger() as other:
        asyncio.run(main())


class Flaky:
    """A configuration service that runs, and that fails to start so often."""

    region = "r0"

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.starts = 0
        self.running = True
        self.host = SimpleNamespace(failed=asyncio.get_running_loop().create_future())

    async def stop(self) -> None:
        self.running = False

    async def start(self) -> None:
        assert not self.running
        self.starts += 1
        if self.starts <= self.failures:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.running = True
        self.host = SimpleNamespace(failed=asyncio.get_running_loop().create_future())

    def found_anew(self) -> None:
        assert not self.running

    def fail(self) -> None:
        self.host.failed.set_exception(StoreFailed("sync failed"))


@contextmanager
def kept(folder: Path, failures: int) -> Iterator[tuple[Supervisor, Any]]:
    """A supervisor that does nothing but keep a flaky service running."""
    boss, service = supervisor(folder, lab=True), cast(Any, Flaky(failures))
    boss.services = {"r0": service}
    keeping = asyncio.ensure_future(boss._keep_service(service))
    try:
        yield boss, service
    finally:
        keeping.cancel()


def test_a_configuration_service_is_started_until_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.001)

    async def main() -> None:
        with kept(tmp_path, failures=4) as (_, service):

            async def runs() -> bool:
                return bool(service.running and not service.host.failed.done())

            service.fail()
            await until(runs, "a service that runs")
            assert service.starts == 5
            service.fail()
            await until(runs, "a service that runs again")
            assert service.starts == 6

    asyncio.run(main())


def test_a_region_whose_founding_failed_halfway_has_its_service_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.001)

    async def main() -> None:
        with kept(tmp_path, failures=2) as (boss, service):

            async def runs() -> bool:
                return bool(service.running)

            with pytest.raises(OSError, match="No space"):
                await boss._found_region("r0")
            await until(runs, "a service that runs")
            assert service.starts == 3

    asyncio.run(main())


def test_a_service_that_was_stopped_on_purpose_stays_down_until_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.001)

    async def main() -> None:
        with kept(tmp_path, failures=0) as (boss, service):
            await boss.fault({"kind": "config", "region": "r0", "running": False})
            await asyncio.sleep(0.05)
            assert (service.running, service.starts) == (False, 0)
            await boss.fault({"kind": "config", "region": "r0", "running": True})
            assert (service.running, service.starts) == (True, 1)

    asyncio.run(main())


class FakeNursery(Nurse):
    """A nurse whose nursery is played by the test, at the other end of ``line``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Layout(folder).make(), lambda pid, code: None)
        self.nurseries = 0

    async def start(self) -> None:
        self.nurseries += 1
        if self.nurseries > 1:
            self.line.close()
        mine, self.line = socket.socketpair()
        self._process = subprocess.Popen(["sleep", "60"])
        reader, self._writer = await asyncio.open_connection(sock=mine)
        self._ready.set()
        self._reading = asyncio.ensure_future(self._read(reader))

    async def asked(self, slot: str) -> asyncio.Task[Any]:
        """A replica that the nursery has been told to start, and has not answered for."""

        async def told() -> bool:
            return slot in self._hatching

        hatching = asyncio.ensure_future(self.hatch(Spec(slot=slot, root="", plan="")))
        await until(told, "a question")
        return hatching

    def say(self, **what: object) -> None:
        self.line.sendall(msgspec.json.encode(what) + b"\n")

    async def stop(self) -> None:
        self.line.close()
        await super().stop()


def test_a_replica_that_nobody_waits_for_any_more_is_ended_and_the_others_do_not_notice(tmp_path: Path) -> None:
    async def main() -> None:
        nurse = FakeNursery(tmp_path)
        with stranger() as replica:
            hatching = await nurse.asked("r0/p1")
            hatching.cancel()
            nurse.say(slot="r0/p1", pid=replica.pid, started=started_at(replica.pid))
            assert await asyncio.to_thread(replica.wait, 10) == -signal.SIGTERM
        hatching = await nurse.asked("r0/p0")
        nurse.say(slot="r0/p0", pid=1, started=2)
        assert await hatching == Process(pid=1, started=2)
        assert nurse.nurseries == 1
        await nurse.stop()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_nursery_that_is_not_understood_is_replaced_with_the_next_replica(tmp_path: Path) -> None:
    async def main() -> None:
        nurse = FakeNursery(tmp_path)
        hatching = await nurse.asked("r0/p0")
        nurse.line.sendall(b"Traceback\n")
        with pytest.raises(OSError, match="the nursery has ended"):
            await hatching
        hatching = await nurse.asked("r0/p0")
        nurse.say(slot="r0/p0", pid=1, started=2)
        assert await hatching == Process(pid=1, started=2)
        assert nurse.nurseries == 2
        await nurse.stop()

    asyncio.run(asyncio.wait_for(main(), 20))
