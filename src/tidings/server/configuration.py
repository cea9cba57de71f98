"""The configuration service of a region, as processes use it: compare-and-set, watch, liveness.

`ConfigurationService` is the interface. `EmbeddedConfiguration` runs the machine of
protocols/replication/configuration.py with an fsynced store, in the supervisor or alone. Replicas speak to it by
messages (Beat, Promote, Current): another service needs an adapter that answers those.

A region is *bootstrapped* in an epoch in which no replica has a history: the initial replicas start empty, under their
plain names. When the service has heard of each of them it moves on to the next epoch with the same members: the
bootstrap is *sealed*. From then on a replica that starts without its disk knows that it is not an initial replica
(server/identity.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog

from tidings.core.errors import TidingsError
from tidings.core.ids import NodeId, RegionId
from tidings.net.host import Host
from tidings.net.names import ADDRESSES, address_of, name_of
from tidings.protocols.kernel import Effects, Input, Received, Time
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Change, Configuration, ConfigurationSettings
from tidings.server import paths
from tidings.server.cluster_config import ClusterConfig
from tidings.store import Store

SEAL = 0.05  # seconds between looks whether all initial replicas are there; ours, because start-up waits for it
SETTLE = 5.0  # seconds a change may take; ours: one sync and a little

log = structlog.get_logger("tidings.configuration")


class Conflict(TidingsError):
    """The chain has changed meanwhile, or would be left without replicas; read it again and retry."""


class ConfigurationService(Protocol):
    """What processes need of a configuration service."""

    region: RegionId

    @property
    def current(self) -> ChainConfig:
        """The membership in force."""
        ...

    async def change(self, epoch: int, without: NodeId | None = None) -> ChainConfig:
        """Compare-and-set: if this epoch is in force, go on to the next without that replica; raises `Conflict`."""
        ...

    def watch(self) -> AsyncIterator[ChainConfig]:
        """The membership in force, and then each one that follows; a slow watcher sees the newest only."""
        ...

    def silence(self, node: NodeId) -> float | None:
        """Seconds since a replica was last heard of; None if it never was."""
        ...

    async def start(self) -> None:
        """Serve."""
        ...

    async def stop(self) -> None:
        """Serve no more; what was decided stays."""
        ...


class BootstrapRecord(msgspec.Struct, frozen=True):
    """On disk: the epoch in which the region was last bootstrapped, and with which replicas."""

    epoch: int
    replicas: tuple[NodeId, ...] = ()  # none: those of the cluster file


class _Watched(Configuration):
    """The machine, the replicas that it has heard of, and a callback for its decisions."""

    def __init__(self, initial: ChainConfig, settings: ConfigurationSettings, durable: Sequence[ChainConfig]) -> None:
        super().__init__(initial, settings, durable)
        self.spoke: set[NodeId] = set()
        self.changed: Callable[[ChainConfig], None] = lambda membership: None

    def handle(self, now: Time, input: Input) -> Effects:
        before = self.membership
        if isinstance(input, Received) and input.src in before.replicas:
            self.spoke.add(input.src)
        effects = super().handle(now, input)
        if self.membership is not before:
            self.changed(self.membership)
        return effects


class EmbeddedConfiguration:
    """One region's service in this process."""

    def __init__(self, config: ClusterConfig, region: RegionId, folder: Path) -> None:
        self.region = region
        self.bootstrap_epoch = 1  # a later one is in force when all initial replicas have come
        self._config = config
        self._folder = folder
        self._host: Host | None = None
        self._store: Store | None = None
        self._machine: _Watched | None = None
        self._moved = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> bool:
        return self._host is not None

    @property
    def host(self) -> Host:
        assert self._host is not None, "the service runs"
        return self._host

    @property
    def current(self) -> ChainConfig:
        assert self._machine is not None, "the service has been started"
        return self._machine.membership

    async def start(self) -> None:
        """Open the store, listen, and send the chain to the replicas."""
        region = self._config.region(self.region)
        self._folder.mkdir(parents=True, exist_ok=True)
        record = self._last_bootstrap()
        self.bootstrap_epoch = first = record.epoch
        store = await asyncio.to_thread(Store.open, self._folder / "log", node=name_of(region.service))
        decided = [entry for entry in store.entries if isinstance(entry, ChainConfig) and entry.epoch >= first]
        initial = region.initial_chain(first)
        if record.replicas:
            initial = ChainConfig(self.region, first, record.replicas)
        machine = _Watched(initial, self._config.protocol.configuration(), decided)
        machine.changed = self._changed
        name = self._config.cluster.name
        host = Host(region.service, machine, ADDRESSES, store, region=self.region, cluster=name)
        address = address_of(region.service)
        assert address is not None
        try:
            await host.listen(*address)
        except OSError:
            await asyncio.to_thread(store.close)
            raise
        store.entries = []
        host.start()
        self._host, self._store, self._machine = host, store, machine
        if machine.membership.epoch == first:
            self._spawn(self._seal(first))
        log.info("configuration service", region=self.region, epoch=machine.membership.epoch)

    async def stop(self) -> None:
        host, store, self._host, self._store = self._host, self._store, None, None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if host is not None and store is not None:
            await host.stop()
            await asyncio.to_thread(store.close)

    def bootstrap_again(self, replicas: Sequence[NodeId]) -> None:
        """Before the start, when nothing is left of a region in memory: these replicas begin without a history.

        Epochs still ascend, so that nodes which know the old chain follow the new one.
        """
        store = Store.open(self._folder / "log", node=name_of(self._config.region(self.region).service))
        epochs = [entry.epoch for entry in store.entries if isinstance(entry, ChainConfig)]
        store.close()
        epoch = max([0, self._last_bootstrap().epoch - 1, *epochs]) + 1
        paths.write(self._record, BootstrapRecord(epoch, tuple(replicas)))

    def _last_bootstrap(self) -> BootstrapRecord:
        return paths.read(self._record, BootstrapRecord) or BootstrapRecord(1)

    @property
    def _record(self) -> Path:
        return self._folder / "founding.json"

    # --- the interface ----------------------------------------------------------------------------------

    async def change(self, epoch: int, without: NodeId | None = None) -> ChainConfig:
        """Go on to the next epoch; returns it once it is on the disk."""
        if self._host is None:
            raise Conflict(f"the configuration service of {self.region} does not run")
        self._host.command(Change(epoch, without))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE), self._moved:
                await self._moved.wait_for(lambda: self.current.epoch > epoch)
        now = self.current
        if now.epoch != epoch + 1 or (without is not None and without in (*now.replicas, now.joining)):
            raise Conflict(f"{self.region} is in epoch {now.epoch} with {len(now.replicas)} replicas: look again")
        return now

    async def watch(self) -> AsyncIterator[ChainConfig]:
        newest: ChainConfig | None = None
        while True:
            async with self._moved:
                while self._machine is None or newest == self.current:
                    await self._moved.wait()
            newest = self.current
            yield newest

    def silence(self, node: NodeId) -> float | None:
        heard = None if self._machine is None else self._machine.heard.get(node)
        return None if heard is None else max(0.0, time.time() - heard)

    # --- its own tasks ------------------------------------------------------------------------------------

    def _changed(self, membership: ChainConfig) -> None:
        names = [name_of(node) for node in membership.replicas]
        joining = membership.joining and name_of(membership.joining)
        log.info("membership", region=self.region, epoch=membership.epoch, replicas=names, joining=joining)
        self._spawn(self._notify())

    async def _notify(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def _seal(self, first: int) -> None:
        """Move on to the next epoch when every initial replica has been heard of."""
        machine = self._machine
        assert machine is not None
        while machine.membership.epoch == first:
            if machine.spoke.issuperset(machine.membership.replicas):
                self.host.command(Change(first))
            await asyncio.sleep(SEAL)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
