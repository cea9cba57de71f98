"""The replica process: one machine, its store, its sockets, and what keeps it going.

A `Spec` names the slot and the cluster file. `ReplicaSlot` gives the replica its name and opens the store. The
configuration services name the replicas of the other regions. Then `Host` runs the `Replica` machine. Three tasks run
beside it: the checkpointer, which keeps the log short; the HTTP server; and a task that asks the configuration services
of the other regions for their chains every few seconds. No replica's disk holds those chains, so two regions that have
both replaced all their replicas would otherwise never find each other again.

A machine that raises, or a disk that fails, ends the process; the supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import structlog

from tidings.core.errors import BadInput, TidingsError
from tidings.core.ids import NodeId, RegionId
from tidings.net.host import Host, HostSettings, MachineFailed
from tidings.net.journal import Journal, Start
from tidings.net.loop import run
from tidings.net.names import ADDRESSES, name_of, parse_address, region_of
from tidings.net.shape import Wan
from tidings.protocols.nodes.replica import Replica, ReplicaSettings
from tidings.protocols.regions.interregion import Advertise
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.log import DiskEntry
from tidings.server import cluster_config, logs, paths
from tidings.server.allocator import keep_memory
from tidings.server.cluster_config import ClusterConfig
from tidings.server.http import HttpServer
from tidings.server.identity import ReplicaSlot
from tidings.server.paths import ClusterPaths, Process, started_at
from tidings.server.replica_http import ReplicaHttp
from tidings.server.rpc import NoAnswer, RpcClient
from tidings.store import Checkpointer, Store

SWITCH = 0.0002  # seconds; decision 0006: the commit thread must not wait 5 ms for the interpreter
REFRESH_PEERS = 5.0  # seconds between queries of the other regions' services; ours: advertisements do it meanwhile
PEERS_TIMEOUT = 1.0  # seconds they have to answer; ours, because the region must not wait for a cut link
CHECKPOINT_LOOK = 0.05  # seconds between looks whether one is due; ours, because a log grows for a second before it is
WAITING = 5.0  # seconds between log lines that the own service does not answer; ours
FAILED = 70  # exit code of a process whose machine or disk has failed

STARTED = "replica started"
"""The log line of a replica that has its id; it names id and pid."""

log = structlog.get_logger("tidings.replica")

OnReady: TypeAlias = Callable[[Process], None]
"""Called once, when a process is ready."""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a replica process is told."""

    slot: str
    root: str  # the cluster's directory on this machine
    config: str  # the cluster file
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


class Recipe(msgspec.Struct, frozen=True):
    """What a replica is made of besides its disk: the parameters in its journal."""

    node: NodeId
    region: RegionId
    service: NodeId
    peers: dict[RegionId, ChainConfig]
    settings: ReplicaSettings
    seed: str

    def make(self, entries: Sequence[DiskEntry]) -> Replica:
        """The machine."""
        rng = random.Random(self.seed)
        return Replica(self.node, self.region, self.service, (), self.peers, self.settings, entries, rng)


def remake(start: Start, entries: list[Any]) -> Replica:
    """The machine of a journal, for `tidings.net.journal.replay`."""
    return msgspec.msgpack.decode(start.params, type=Recipe).make(entries)


def warm() -> None:
    """Import and compile what a replica needs under load, so that it happens before it serves."""
    from tidings.core import keyindex  # noqa: PLC0415 - only here
    from tidings.core.filters import index as filter_index  # noqa: PLC0415
    from tidings.core.gc import GcPolicy  # noqa: PLC0415
    from tidings.core.history import History  # noqa: PLC0415
    from tidings.core.rows import data_rows  # noqa: PLC0415
    from tidings.core.span import Span  # noqa: PLC0415

    keyindex.prepare()
    filter_index.prepare()
    keys = [b"%d" % key for key in range(10_000)]  # more than the key index keeps without compiling
    history = History("warm", GcPolicy.parse("by-key"))
    for lo in range(1, 3 * len(keys), len(keys)):
        hi = lo + len(keys)
        asof = hi if lo > hi - lo + 1 else lo  # as published, and as another region might tell it
        history.accept(Span("warm", lo, hi, asof, data_rows(lo, keys, [b""] * len(keys))))
    history.purge()


def main(spec: Spec, on_ready: OnReady | None = None) -> int:
    """Run a replica until it is told to stop; the exit code."""
    files = ClusterPaths(spec.root).make()
    logs.configure(None if spec.console else files.log(spec.slot), node=spec.slot)
    sys.setswitchinterval(SWITCH)
    keep_memory()
    try:
        return run(ReplicaProcess(spec, files, on_ready).run())
    except MachineFailed:
        return FAILED  # the host has logged it
    except Exception as error:
        log.critical(
            "the replica cannot go on", error=f"{type(error).__name__}: {error}", exc_info=not _is_known(error)
        )
        return 1


def _is_known(error: Exception) -> bool:
    return isinstance(error, TidingsError | OSError)


class ReplicaProcess:
    """One process."""

    def __init__(self, spec: Spec, files: ClusterPaths, on_ready: OnReady | None = None) -> None:
        self.spec = spec
        self.on_ready = on_ready
        self.files = files
        self.config: ClusterConfig = cluster_config.load(spec.config)
        self.region = region_of(spec.slot)
        self.service = self.config.region(self.region).service
        self.address = spec.address or self.config.slots().get(spec.slot, "")
        if not self.address:
            raise BadInput(f"{spec.slot} is not in {spec.config}, so it needs --listen HOST:PORT")
        self.wan: Wan | None = self.config.shape(always=spec.lab)
        for a, b in spec.cuts:
            assert self.wan is not None
            self.wan.cut(a, b)
        for a, b, changes in spec.impaired:
            assert self.wan is not None
            self.wan.impair(a, b, **changes)
        self.stopping = asyncio.Event()

    async def run(self) -> int:
        """Open the store, run the replica until it is to stop; the exit code."""
        self._handle_stop_signals()
        lock = self.files.lock(self.spec.slot)
        rpc = RpcClient(f"{self.spec.slot}?", cluster=self.config.cluster.name, region=self.region, role="node")
        try:
            async with rpc:
                stopped = asyncio.ensure_future(self.stopping.wait())
                made = asyncio.ensure_future(self._make(rpc))
                await asyncio.wait([stopped, made], return_when=asyncio.FIRST_COMPLETED)
                stopped.cancel()
                if not made.done():
                    made.cancel()
                    return 0
                host, store = made.result()
                await self._serve(rpc, host, store)
        finally:
            self.files.run_file(self.spec.slot).unlink(missing_ok=True)
            os.close(lock)
        return 0

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

    # --- start -------------------------------------------------------------------------------------------------------

    async def _make(self, rpc: RpcClient) -> tuple[Host, Store]:
        peers = asyncio.ensure_future(self._peers(rpc))
        slot = ReplicaSlot(self.spec.slot, self.address, self.files.data(self.spec.slot), durable=self.config.durable)
        node, store = await slot.take(lambda: self._own_membership(rpc), bootstrapping=self.spec.bootstrapping)
        try:
            recipe = Recipe(
                node,
                self.region,
                self.service,
                await peers,
                self.config.replica_settings(),
                os.urandom(16).hex(),
            )
            machine = recipe.make([entry for entry in store.entries if not isinstance(entry, ChainConfig)])
            host = Host(
                node,
                machine,
                ADDRESSES,
                store,
                region=self.region,
                cluster=self.config.cluster.name,
                journal=self._journal(node, recipe),
                wan=self.wan,
                settings=HostSettings(poll=self.config.cluster.poll),
            )
            await host.listen(*parse_address(self.address))
        except BaseException:
            store.close()
            raise
        log.info(STARTED, id=node, pid=os.getpid(), entries=len(store.entries), committed=machine.log.committed)
        host.start()
        store.entries = []  # the machine has them
        gc.collect()
        gc.freeze()  # these objects stay: the collector skips them from now on, which saves milliseconds
        return host, store

    def _journal(self, node: NodeId, recipe: Recipe) -> Journal | None:
        if not self.spec.journal:
            return None
        folder = Path(self.spec.journal)
        folder.mkdir(parents=True, exist_ok=True)
        stem, number = name_of(node).replace("/", "-"), 1
        while (path := folder / f"{stem}.{number}.journal").exists():
            number += 1
        return Journal(path, msgspec.msgpack.encode(recipe))

    async def _own_membership(self, rpc: RpcClient) -> ChainConfig:
        """The own chain, from its configuration service; logs while it does not answer."""
        while True:
            try:
                return await rpc.membership(self.service, WAITING)
            except NoAnswer as error:
                log.warning("waiting for the configuration service", service=self.service, error=str(error))

    async def _peers(self, rpc: RpcClient) -> dict[RegionId, ChainConfig]:
        """The other regions' chains: from their services, else as last known, else the initial ones."""
        others = [region for region in self.config.regions if region.name != self.region]
        known = paths.read(self._peers_file, dict[RegionId, ChainConfig]) or {}
        found = await asyncio.gather(
            *[rpc.membership(region.service, PEERS_TIMEOUT) for region in others], return_exceptions=True
        )
        peers: dict[RegionId, ChainConfig] = {}
        for region, answer in zip(others, found, strict=True):
            if isinstance(answer, ChainConfig):
                peers[region.name] = answer
            elif isinstance(answer, NoAnswer):
                peers[region.name] = known.get(region.name) or region.initial_chain(0)
            else:
                raise answer
        return peers

    @property
    def _peers_file(self) -> Path:
        return self.files.data(self.spec.slot) / "peers.json"

    # --- serving --------------------------------------------------------------------------------------------

    async def _serve(self, rpc: RpcClient, host: Host, store: Store) -> None:
        proxy = host.machine
        assert isinstance(proxy, Replica)
        token = self.spec.token if self.spec.lab else ""
        http = HttpServer(ReplicaHttp(host, proxy, store, self.wan, token).application)
        http.start()
        pid = os.getpid()
        me = Process(pid=pid, started=started_at(pid), id=host.node, http_port=http.port, token=self.spec.token)
        paths.write(self.files.run_file(self.spec.slot), me)
        if self.on_ready is not None:
            self.on_ready(me)
        tasks: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._checkpoint(proxy, store)),
            asyncio.ensure_future(self._refresh_peers(rpc, host, proxy)),
        ]
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
            await asyncio.to_thread(store.close)
            log.info("stopped", committed=proxy.log.committed)

    async def _checkpoint(self, proxy: Replica, store: Store) -> None:
        """Write checkpoints so that the log can be truncated, a slice per turn."""
        checkpointer = Checkpointer(store)
        while store.durable:
            while checkpointer.due():
                checkpointer.step(proxy.log)
                await asyncio.sleep(0)
            await asyncio.sleep(CHECKPOINT_LOOK)
        await asyncio.Event().wait()  # in memory there is nothing to do

    async def _refresh_peers(self, rpc: RpcClient, host: Host, proxy: Replica) -> None:
        """Tell the machine of newer chains of other regions; write them down for the next start."""
        others = [region for region in self.config.regions if region.name != self.region]
        written: dict[RegionId, ChainConfig] = {}
        refused = False
        while True:
            peers = dict(proxy.inter_region.peers)
            if peers != written:
                try:
                    await asyncio.to_thread(paths.write, self._peers_file, peers)
                    written, refused = peers, False
                except OSError as error:  # it only shortens the next start: log it once and go on
                    if not refused:
                        log.warning("cannot write down the chains of the other regions", error=str(error))
                    refused = True
            await asyncio.sleep(REFRESH_PEERS)
            for region in others:
                with contextlib.suppress(NoAnswer):
                    current = await rpc.membership(region.service, PEERS_TIMEOUT)
                    if current.epoch > proxy.inter_region.peers[region.name].epoch:
                        host.tell(region.service, Advertise(current, {}))
