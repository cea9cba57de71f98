"""A process that runs one machine of a cluster: what replicas, relays and edges have in common.

A `Spec` names the slot and the cluster file. The subclass makes the machine and the host that runs it. From then on the
process has a run file and an HTTP server, until it is told to stop or something in it fails.

A machine that raises, or a disk that fails, ends the process; the supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import structlog

from tidings.core.errors import TidingsError
from tidings.core.ids import NodeId, RegionId
from tidings.net.host import Host, MachineFailed
from tidings.net.journal import Journal
from tidings.net.loop import run
from tidings.net.names import name_of, region_of
from tidings.server import cluster_config, logs, paths
from tidings.server.allocator import keep_memory
from tidings.server.cluster_config import ClusterConfig
from tidings.server.http import HttpServer
from tidings.server.node_http import NodeHttp
from tidings.server.paths import ClusterPaths, Process, started_at
from tidings.server.rpc import RpcClient

SWITCH = 0.0002  # seconds; decision 0006: the commit thread must not wait 5 ms for the interpreter
FAILED = 70  # exit code of a process whose machine or disk has failed

log = structlog.get_logger("tidings.node")

NodeKind: TypeAlias = Literal["replica", "relay", "edge"]
OnReady: TypeAlias = Callable[[Process], None]
"""Called once, when a process is ready."""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a process is told."""

    slot: str
    root: str  # the cluster's directory on this machine
    config: str  # the cluster file
    kind: NodeKind = "replica"
    address: str = ""  # default: the one in the cluster file
    token: str = ""  # for calls that change something
    lab: bool = False  # faults may be injected
    cuts: tuple[tuple[RegionId, RegionId], ...] = ()  # links that are cut now
    impaired: tuple[
        tuple[RegionId, RegionId, dict[str, Any]], ...
    ] = ()  # links that are worse than the cluster file says
    bootstrapping: bool = False  # memory: one of the initial replicas of a region that begins empty
    journal: str = ""  # directory for journals; none: no journal
    attached: bool = False  # stop when stdin ends: the program that started the cluster is gone
    console: bool = False  # log to stderr instead of a file


class NodeProcess:
    """One process. A subclass says how its machine is made, and what runs beside it."""

    def __init__(self, spec: Spec, files: ClusterPaths, on_ready: OnReady | None = None) -> None:
        self.spec = spec
        self.on_ready = on_ready
        self.files = files
        self.config: ClusterConfig = cluster_config.load(spec.config)
        self.region = region_of(spec.slot)
        self.service = self.config.region(self.region).service
        self.address = spec.address or self.listed_address()
        self.stopping = asyncio.Event()

    def listed_address(self) -> str:
        """Where it listens by the cluster file; raises `BadInput` if it is not there."""
        raise NotImplementedError

    async def make(self, rpc: RpcClient) -> Host:
        """Make the machine, and start the host that runs it."""
        raise NotImplementedError

    def http(self, host: Host) -> NodeHttp:
        """What it answers over HTTP."""
        raise NotImplementedError

    def beside(self, rpc: RpcClient, host: Host) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the host until the end."""
        raise NotImplementedError

    async def close(self, host: Host) -> None:
        """The host has stopped."""

    async def run(self) -> int:
        """Make the machine, run it until it is to stop; the exit code."""
        self._handle_stop_signals()
        lock = self.files.lock(self.spec.slot)
        rpc = RpcClient(f"{self.spec.slot}?", cluster=self.config.cluster.name, region=self.region, role="node")
        try:
            async with rpc:
                stopped = asyncio.ensure_future(self.stopping.wait())
                made = asyncio.ensure_future(self.make(rpc))
                await asyncio.wait([stopped, made], return_when=asyncio.FIRST_COMPLETED)
                stopped.cancel()
                if not made.done():
                    made.cancel()
                    return 0
                host = made.result()
                gc.collect()
                gc.freeze()  # these objects stay: the collector skips them from now on, which saves milliseconds
                await self._serve(rpc, host)
        finally:
            self.files.run_file(self.spec.slot).unlink(missing_ok=True)
            os.close(lock)
        return 0

    def journal(self, node: NodeId, recipe: msgspec.Struct) -> Journal | None:
        """The journal that was asked for; ``recipe`` is what the machine is made from."""
        if not self.spec.journal:
            return None
        folder = Path(self.spec.journal)
        folder.mkdir(parents=True, exist_ok=True)
        stem, number = name_of(node).replace("/", "-"), 1
        while (path := folder / f"{stem}.{number}.journal").exists():
            number += 1
        return Journal(path, msgspec.msgpack.encode(recipe))

    def _handle_stop_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        if self.spec.attached:
            loop.add_reader(0, self._parent_gone)

    def _parent_gone(self) -> None:
        if not os.read(0, 1024):
            asyncio.get_running_loop().remove_reader(0)
            self.stopping.set()

    async def _serve(self, rpc: RpcClient, host: Host) -> None:
        http = HttpServer(self.http(host).application)
        http.start()
        pid = os.getpid()
        me = Process(pid=pid, started=started_at(pid), id=host.node, http_port=http.port, token=self.spec.token)
        paths.write(self.files.run_file(self.spec.slot), me)
        if self.on_ready is not None:
            self.on_ready(me)
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(each) for each in self.beside(rpc, host)]
        stopped: asyncio.Future[Any] = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait([stopped, host.failed, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for done in (host.failed, *tasks):
                if done.done():
                    done.result()
        finally:
            for task in (stopped, *tasks):
                task.cancel()
            await http.stop()
            await host.stop()
            await self.close(host)


def run_process(kind: type[NodeProcess], spec: Spec, on_ready: OnReady | None = None) -> int:
    """Run a process until it is told to stop; the exit code."""
    files = ClusterPaths(spec.root).make()
    logs.configure(None if spec.console else files.log(spec.slot), node=spec.slot)
    sys.setswitchinterval(SWITCH)
    keep_memory()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # where the most is no number, what there is must do
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor per client
    try:
        return run(kind(spec, files, on_ready).run())
    except MachineFailed:
        return FAILED  # the host has logged it
    except Exception as error:
        unknown = not isinstance(error, TidingsError | OSError)
        log.critical("the process cannot go on", error=f"{type(error).__name__}: {error}", exc_info=unknown)
        return 1
