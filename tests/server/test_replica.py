"""The replica process, apart from its machine: what may fail without ending it."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.rig import until
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.server import paths, replica
from tidings.server.cluster_config import generate, render
from tidings.server.node_process import Spec
from tidings.server.paths import ClusterPaths
from tidings.server.replica import ReplicaProcess
from tidings.server.rpc import NoAnswer


class Nobody:
    """An asker whom nobody answers."""

    async def membership(self, service: str, timeout: float) -> ChainConfig:
        raise NoAnswer(service)


def test_a_disk_that_does_not_take_the_list_of_peers_ends_nothing_and_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = generate(2, 1, port=0)
    file = tmp_path / "cluster.toml"
    file.write_text(render(plan))
    peers = {"r1": plan.regions[1].initial_chain(1)}
    proxy: Any = SimpleNamespace(inter_region=SimpleNamespace(peers=peers))
    asker: Any = Nobody()
    write, refusals = paths.write, 3

    def sometimes(path: Path, value: object) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, value)

    monkeypatch.setattr(paths, "write", sometimes)
    monkeypatch.setattr(replica, "REFRESH_PEERS", 0.01)

    async def main() -> None:
        spec = Spec(slot="r0/p0", root=str(tmp_path), config=str(file))
        process = ReplicaProcess(spec, ClusterPaths(tmp_path).make())
        task = asyncio.ensure_future(process._refresh_peers(asker, proxy, proxy))

        async def written() -> bool:
            assert not task.done(), task.exception()
            return paths.read(tmp_path / "data/r0/p0/peers.json", dict[str, ChainConfig]) == peers

        await until(written, "peers.json")
        task.cancel()

    with capture_logs() as logs:
        asyncio.run(main())
    assert [each["event"] for each in logs] == ["cannot write down the chains of the other regions"]


SERVED = """
import numpy as np
from tidings.core import keytable, rewriting
from tidings.core.gc import GcPolicy
from tidings.core.history import History
from tidings.core.small_rows import SmallRows
from tidings.core.rows import data_rows
from tidings.core.span import Span
from tidings.core.wire import decode_rows, encode_rows
from tidings.server.replica import warm

warm()
rooms = vars(keytable) | vars(rewriting)
kernels = {name: each for name, each in rooms.items() if hasattr(each, "py_func")}
before = {name: set(kernel.signatures) for name, kernel in kernels.items()}
assert before["_enter"] and before["_mark"] and before["_gather"], "not warm"

history, lo = History("s", GcPolicy.parse("by-key")), 1
for turn in range(40):
    count, width = 3000 if turn % 5 == 0 else 250, 24 if turn % 7 == 3 else 4
    keys = [None if turn % 6 == 5 and at == 9 else b"%0*d" % (width, at * at % 997) for at in range(count)]
    rows, asof = data_rows(lo, keys, [b"x"] * count), lo
    if turn % 4 == 2:  # as another region tells it, collected already: writable numbers
        last = {key: at for at, key in enumerate(keys)}
        rows, asof = rows.take(np.array(sorted(last.values()))), lo + count
    if turn % 3 == 1:  # as it comes from the network: numbers that may be read only
        head, body = encode_rows(rows)
        rows = decode_rows(head, b"".join(map(bytes, body)))
    history.accept(Span("s", lo, lo + count, asof, rows))
    lo += count
    history.accept(Span("s", lo, lo + 3, lo, SmallRows([b"1", None, b"key" * 9], [b""] * 3, lo, ())))
    lo += 3
    history.purge()
assert history.collected > 1000
late = {name: set(kernel.signatures) - before[name] for name, kernel in kernels.items()}
assert not any(late.values()), late
"""


def test_whatever_a_warm_replica_is_given_no_kernel_is_compiled_any_more() -> None:
    done = subprocess.run([sys.executable, "-c", SERVED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
