"""The supervisor, apart from what its replicas do: what it starts, starts again, finds, and leaves alone."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidings.net.names import parse_address
from tidings.server import layout
from tidings.server.layout import Layout, Process, started_at
from tidings.server.plan import generate, render
from tidings.server.supervisor import Nurse, Options, Supervisor


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
        me = Process(pid=replica.pid, started=started_at(replica.pid), id="r0/p0")
        layout.write(Layout(tmp_path).run_file("r0/p0"), me)
        asyncio.run(asyncio.wait_for(main(), 30))
