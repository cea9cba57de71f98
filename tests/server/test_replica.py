"""The replica process, apart from its machine: what may fail without ending it."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.rig import until
from tidings.protocols.membership import Membership
from tidings.server import layout, replica
from tidings.server.asking import NoAnswer
from tidings.server.layout import Layout
from tidings.server.plan import generate, render
from tidings.server.replica import Replica, Spec


class Nobody:
    """An asker whom nobody answers."""

    async def membership(self, service: str, timeout: float) -> Membership:
        raise NoAnswer(service)


def test_a_disk_that_does_not_take_the_list_of_peers_ends_nothing_and_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = generate(2, 1, port=0)
    file = tmp_path / "cluster.toml"
    file.write_text(render(plan))
    peers = {"r1": plan.regions[1].founders(1)}
    proxy: Any = SimpleNamespace(inter_region=SimpleNamespace(peers=peers))
    asker: Any = Nobody()
    write, refusals = layout.write, 3

    def sometimes(path: Path, value: object) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, value)

    monkeypatch.setattr(layout, "write", sometimes)
    monkeypatch.setattr(replica, "ACQUAINT", 0.01)

    async def main() -> None:
        process = Replica(Spec(slot="r0/p0", root=str(tmp_path), plan=str(file)), Layout(tmp_path).make())
        task = asyncio.ensure_future(process._acquaint(asker, proxy, proxy))

        async def written() -> bool:
            assert not task.done(), task.exception()
            return layout.read(tmp_path / "data/r0/p0/peers.json", dict[str, Membership]) == peers

        await until(written, "peers.json")
        task.cancel()

    with capture_logs() as logs:
        asyncio.run(main())
    assert [each["event"] for each in logs] == ["who forms the other chains cannot be written down"]
