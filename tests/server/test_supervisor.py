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
from tidings.server import backoff, paths
from tidings.server.cluster_config import generate, render
from tidings.server.node_process import Spec
from tidings.server.paths import ClusterPaths, Process, started_at
from tidings.server.prefork_client import PreforkClient
from tidings.server.supervisor import Options, Supervisor
from tidings.store import StoreFailed


def supervisor(folder: Path, **options: bool) -> Supervisor:
    """One that has not started, of a region with one replica."""
    file = folder / "cluster.toml"
    if not file.exists():
        file.write_text(render(generate(1, 1, port=0)))
    return Supervisor(Options(root=str(folder), config=str(file), **options))


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
    paths.write(ClusterPaths(folder).run_file(slot), Process(pid=process.pid, started=started_at(process.pid), id=slot))


async def nothing(self: PreforkClient) -> None:
    """Instead of a prefork process, which takes seconds to come up and is not needed here."""


def test_a_start_that_fails_leaves_the_replicas_alone_that_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PreforkClient, "start", nothing)

    async def main() -> None:
        boss = supervisor(tmp_path)
        with socket.create_server(parse_address(boss.config.regions[0].config)):
            with pytest.raises(OSError, match="in use"):
                await boss.start()
            assert boss.children.get("r0/p0").pid == replica.pid
            await boss.stop()
        assert replica.poll() is None

    with stranger() as replica:
        say_it_runs(tmp_path, "r0/p0", replica)
        asyncio.run(asyncio.wait_for(main(), 30))


def test_a_replica_that_says_only_later_that_it_runs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier supervisor had started it just before its own end: whatever is started beside it ends at once."""
    monkeypatch.setattr(backoff, "PAUSE", 0.001)
    spawned = 0

    async def spawn(spec: Spec) -> Process:
        nonlocal spawned
        spawned += 1
        with subprocess.Popen(["true"]) as process:
            process.wait()
        return Process(pid=process.pid, started=1)

    async def main() -> None:
        boss = supervisor(tmp_path)
        monkeypatch.setattr(boss.children.prefork, "spawn", spawn)
        child = boss.children.add("r0/p0", "127.0.0.1:1")
        keeping = asyncio.ensure_future(boss.children._keep(child))

        async def tried() -> bool:
            return spawned > 1

        async def found() -> bool:
            return child.pid == replica.pid

        await until(tried, "attempts to start it")
        say_it_runs(tmp_path, "r0/p0", replica)
        await until(found, "it is found")
        before = spawned
        await asyncio.sleep(0.1)
        assert spawned == before
        keeping.cancel()

    with stranger() as replica:
        asyncio.run(main())


def test_a_process_that_only_has_the_number_of_a_replica_is_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        boss = supervisor(tmp_path)
        child = boss.children.add("r0/p0", "127.0.0.1:1")
        child.process = Process(pid=other.pid, started=started_at(other.pid) - 1)
        await asyncio.wait_for(boss.children._until_ended(child), 1)
        with pytest.raises(BadInput, match="does not run"):
            boss.faults.pause(child, 60)
        await boss.children.stop(child)
        killing = asyncio.ensure_future(boss.faults.kill(child))
        keeping = asyncio.ensure_future(boss.children._keep(child))
        await asyncio.wait_for(killing, 5)
        keeping.cancel()
        assert other.poll() is None

    with stranger() as other:
        asyncio.run(main())


class Flaky:
    """A configuration service that runs, and that fails to start so often."""

    region = "r0"
    current = SimpleNamespace(replicas=())

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

    def bootstrap_again(self, replicas: object) -> None:
        assert not self.running

    def fail(self) -> None:
        self.host.failed.set_exception(StoreFailed("sync failed"))


@contextmanager
def kept(folder: Path, failures: int) -> Iterator[tuple[Supervisor, Any]]:
    """A supervisor that does nothing but keep a flaky service running."""
    boss, service = supervisor(folder, lab=True), cast(Any, Flaky(failures))
    boss.services.by_region["r0"] = service
    keeping = asyncio.ensure_future(boss.services._keep(service))
    try:
        yield boss, service
    finally:
        keeping.cancel()


def test_a_configuration_service_is_started_until_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "PAUSE", 0.001)

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


def test_a_region_whose_bootstrap_failed_halfway_has_its_service_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "PAUSE", 0.001)

    async def main() -> None:
        with kept(tmp_path, failures=2) as (boss, service):

            async def runs() -> bool:
                return bool(service.running)

            with pytest.raises(OSError, match="No space"):
                await boss.regions.bootstrap("r0")
            await until(runs, "a service that runs")
            assert service.starts == 3

    asyncio.run(main())


def test_a_service_that_was_stopped_on_purpose_stays_down_until_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "PAUSE", 0.001)

    async def main() -> None:
        with kept(tmp_path, failures=0) as (boss, service):
            await boss.faults.inject({"kind": "config", "region": "r0", "running": False})
            await asyncio.sleep(0.05)
            assert (service.running, service.starts) == (False, 0)
            await boss.faults.inject({"kind": "config", "region": "r0", "running": True})
            assert (service.running, service.starts) == (True, 1)

    asyncio.run(main())


class FakePrefork(PreforkClient):
    """A client whose prefork process is played by the test, at the other end of ``line``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(ClusterPaths(folder).make(), lambda pid, code: None)
        self.processes = 0

    async def start(self) -> None:
        self.processes += 1
        if self.processes > 1:
            self.line.close()
        mine, self.line = socket.socketpair()
        self._process = subprocess.Popen(["sleep", "60"])
        reader, self._writer = await asyncio.open_connection(sock=mine)
        self._ready.set()
        self._reading = asyncio.ensure_future(self._read(reader))

    async def asked(self, slot: str) -> asyncio.Task[Any]:
        """A replica that the prefork process has been told to start, and has not answered for."""

        async def told() -> bool:
            return slot in self._spawning

        spawning = asyncio.ensure_future(self.spawn(Spec(slot=slot, root="", config="")))
        await until(told, "a question")
        return spawning

    def say(self, **what: object) -> None:
        self.line.sendall(msgspec.json.encode(what) + b"\n")

    async def stop(self) -> None:
        self.line.close()
        await super().stop()


def test_a_replica_that_nobody_waits_for_any_more_is_ended_and_the_others_do_not_notice(tmp_path: Path) -> None:
    async def main() -> None:
        client = FakePrefork(tmp_path)
        with stranger() as replica:
            spawning = await client.asked("r0/p1")
            spawning.cancel()
            client.say(slot="r0/p1", pid=replica.pid, started=started_at(replica.pid))
            assert await asyncio.to_thread(replica.wait, 10) == -signal.SIGTERM
        spawning = await client.asked("r0/p0")
        client.say(slot="r0/p0", pid=1, started=2)
        assert await spawning == Process(pid=1, started=2)
        assert client.processes == 1
        await client.stop()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_prefork_process_that_is_not_understood_is_replaced_with_the_next_replica(tmp_path: Path) -> None:
    async def main() -> None:
        client = FakePrefork(tmp_path)
        spawning = await client.asked("r0/p0")
        client.line.sendall(b"Traceback\n")
        with pytest.raises(OSError, match="the prefork process has ended"):
            await spawning
        spawning = await client.asked("r0/p0")
        client.say(slot="r0/p0", pid=1, started=2)
        assert await spawning == Process(pid=1, started=2)
        assert client.processes == 2
        await client.stop()

    asyncio.run(asyncio.wait_for(main(), 20))
