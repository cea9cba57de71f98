"""The replica process: one machine, its store, its sockets, and what keeps it going.

A `Spec` names the slot and the cluster file. `ReplicaSlot` gives the replica its name and opens the store. The
configuration services name the replicas of the other regions. Then `Host` runs the `Replica` machine. Two tasks run
beside it: the checkpointer, which keeps the log short, and a task that asks the configuration services of the other
regions for their chains every few seconds. No replica's disk holds those chains, so two regions that have both replaced
all their replicas would otherwise never find each other again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from tidings.core.errors import BadInput
from tidings.core.ids import NodeId, RegionId
from tidings.net.host import Host, HostSettings
from tidings.net.names import ADDRESSES, parse_address
from tidings.net.shape import Wan
from tidings.protocols.brokers.subscriber import Lost
from tidings.protocols.nodes.replica import Replica, ReplicaSettings
from tidings.protocols.regions.interregion import Advertise
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.log import DiskEntry
from tidings.server import paths
from tidings.server.identity import ReplicaSlot
from tidings.server.node_process import NodeProcess, OnReady, Spec
from tidings.server.paths import ClusterPaths
from tidings.server.replica_http import ReplicaHttp
from tidings.server.rpc import NoAnswer, RpcClient
from tidings.store import Checkpointer, Store

REFRESH_PEERS = 5.0  # seconds between queries of the other regions' services; ours: advertisements do it meanwhile
PEERS_TIMEOUT = 1.0  # seconds they have to answer; ours, because the region must not wait for a cut link
CHECKPOINT_LOOK = 0.05  # seconds between looks whether one is due; ours, because a log grows for a second before it is
WAITING = 5.0  # seconds between log lines that the own service does not answer; ours

STARTED = "replica started"
"""The log line of a replica that has its id; it names id and pid."""

log = structlog.get_logger("tidings.replica")


class Recipe(msgspec.Struct, frozen=True, tag="replica"):
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


class ReplicaProcess(NodeProcess):
    """One replica."""

    store: Store

    def __init__(self, spec: Spec, files: ClusterPaths, on_ready: OnReady | None = None) -> None:
        super().__init__(spec, files, on_ready)
        self.wan: Wan | None = self.config.shape(always=spec.lab)
        for a, b in spec.cuts:
            assert self.wan is not None
            self.wan.cut(a, b)
        for a, b, changes in spec.impaired:
            assert self.wan is not None
            self.wan.impair(a, b, **changes)

    def listed_address(self) -> str:
        found = self.config.slots().get(self.spec.slot, "")
        if not found:
            raise BadInput(f"{self.spec.slot} is not in {self.spec.config}, so it needs --listen HOST:PORT")
        return found

    def http(self, host: Host) -> ReplicaHttp:
        token = self.spec.token if self.spec.lab else ""
        return ReplicaHttp(host, _proxy(host), self.store, self.wan, token)

    def beside(self, rpc: RpcClient, host: Host) -> list[Coroutine[Any, Any, None]]:
        proxy = _proxy(host)
        return [self._checkpoint(proxy, self.store), self._refresh_peers(rpc, host, proxy)]

    async def close(self, host: Host) -> None:
        await asyncio.to_thread(self.store.close)
        log.info("stopped", committed=_proxy(host).log.committed)

    # --- start -------------------------------------------------------------------------------------------------------

    async def make(self, rpc: RpcClient) -> Host:
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
                journal=self.journal(node, recipe),
                wan=self.wan,
                settings=HostSettings(poll=self.config.cluster.poll),
                on_lost=Lost,
            )
            await host.listen(*parse_address(self.address))
        except BaseException:
            store.close()
            raise
        log.info(STARTED, id=node, pid=os.getpid(), entries=len(store.entries), committed=machine.log.committed)
        host.start()
        store.entries = []  # the machine has them
        self.store = store
        return host

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

    # --- beside the machine ----------------------------------------------------------------------------------

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


def _proxy(host: Host) -> Replica:
    assert isinstance(host.machine, Replica)
    return host.machine
