"""The replica process: one machine, its store, its sockets, and what keeps it going.

From the outside in: a `Spec` says which slot of which plan; `Place` says under which name it comes back and opens the
store; the configuration services say who the others are; then `Host` runs the `Proxy`. Beside it run the checkpointer,
which keeps the log short, the admin HTTP, and *acquaintance*: now and then the configuration services of the other
regions are asked who forms their chains, because that is on no replica's disk, and two regions that have both changed
all their replicas would otherwise never find each other again.

A machine that raises, or a disk that fails, ends the process; whoever supervises it starts it again.
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
from tidings.protocols.interregion import Advertise
from tidings.protocols.log import DiskEntry
from tidings.protocols.membership import Membership
from tidings.protocols.proxy import Proxy, ProxySettings
from tidings.server import layout, logs
from tidings.server import plan as plans
from tidings.server.admin import Admin
from tidings.server.allocator import keep_memory
from tidings.server.asking import Asker, NoAnswer
from tidings.server.http import HttpServer
from tidings.server.layout import Layout, Process, started_at
from tidings.server.life import Place
from tidings.server.plan import Plan
from tidings.store import Checkpointer, Store

SWITCH = 0.0002  # seconds; decision 0006: the commit thread must not wait 5 ms for the interpreter
ACQUAINT = 5.0  # seconds between questions to the other regions' services; ours, because advertisements do it meanwhile
FIRST_LOOK = 1.0  # seconds they have at the start; ours, because the region must not wait for a cut link
CHECKPOINT_LOOK = 0.05  # seconds between looks whether one is due; ours, because a log grows for a second before it is
WAITING = 5.0  # seconds between complaints that the own service does not answer; ours
FAILED = 70  # exit code of a process whose machine or disk has failed

log = structlog.get_logger("tidings.replica")

OnReady: TypeAlias = Callable[[Process], None]
"""Told once, when a process does its part."""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a replica process is told."""

    slot: str
    root: str  # the cluster's directory on this machine
    plan: str  # the cluster file
    address: str = ""  # default: as the plan says
    token: str = ""  # for what changes something
    lab: bool = False  # faults may be injected
    cuts: tuple[tuple[RegionId, RegionId], ...] = ()  # links that are cut now
    impaired: tuple[tuple[RegionId, RegionId, dict[str, Any]], ...] = ()  # and those that are worse than planned
    founding: bool = False  # memory: nothing is left of the region, this is its beginning
    journal: str = ""  # directory for journals; none: no journal
    attached: bool = False  # end when stdin ends: whoever started it is gone
    console: bool = False  # log to stderr instead of a file


class Recipe(msgspec.Struct, frozen=True):
    """What a replica is made from besides its disk: the params of its journal."""

    node: NodeId
    region: RegionId
    service: NodeId
    peers: dict[RegionId, Membership]
    settings: ProxySettings
    seed: str

    def make(self, entries: Sequence[DiskEntry]) -> Proxy:
        """The machine."""
        rng = random.Random(self.seed)
        return Proxy(self.node, self.region, self.service, (), self.peers, self.settings, entries, rng)


def remake(start: Start, entries: list[Any]) -> Proxy:
    """The machine of a journal, for `tidings.net.journal.replay`."""
    return msgspec.msgpack.decode(start.params, type=Recipe).make(entries)


def warm() -> None:
    """Import and compile what a replica needs under load, so that it happens before it serves."""
    from tidings.core import keyindex  # noqa: PLC0415 - only here
    from tidings.core.gc import GcPolicy  # noqa: PLC0415
    from tidings.core.history import History  # noqa: PLC0415
    from tidings.core.rows import data_rows  # noqa: PLC0415
    from tidings.core.span import Span  # noqa: PLC0415

    keyindex.prepare()
    keys = [b"%d" % key for key in range(10_000)]  # more than the key index keeps without compiling
    history = History("warm", GcPolicy.parse("by-key"))
    for lo in range(1, 3 * len(keys), len(keys)):
        hi = lo + len(keys)
        asof = hi if lo > hi - lo + 1 else lo  # as published, and as another region might tell it
        history.accept(Span("warm", lo, hi, asof, data_rows(lo, keys, [b""] * len(keys))))
    history.purge()


def main(spec: Spec, on_ready: OnReady | None = None) -> int:
    """Run a replica until it is told to stop; the exit code."""
    files = Layout(spec.root).make()
    logs.configure(None if spec.console else files.log(spec.slot), node=spec.slot)
    sys.setswitchinterval(SWITCH)
    keep_memory()
    try:
        return run(Replica(spec, files, on_ready).run())
    except MachineFailed:
        return FAILED  # the host has logged it
    except Exception as error:
        log.critical(
            "the replica cannot go on", error=f"{type(error).__name__}: {error}", exc_info=not _is_known(error)
        )
        return 1


def _is_known(error: Exception) -> bool:
    return isinstance(error, TidingsError | OSError)


class Replica:
    """One process."""

    def __init__(self, spec: Spec, files: Layout, on_ready: OnReady | None = None) -> None:
        self.spec = spec
        self.on_ready = on_ready
        self.files = files
        self.plan: Plan = plans.load(spec.plan)
        self.region = region_of(spec.slot)
        self.service = self.plan.region(self.region).service
        self.address = spec.address or self.plan.slots().get(spec.slot, "")
        if not self.address:
            raise BadInput(f"{spec.slot} is not in {spec.plan}, so it needs --listen HOST:PORT")
        self.wan: Wan | None = self.plan.shape(always=spec.lab)
        for a, b in spec.cuts:
            assert self.wan is not None
            self.wan.cut(a, b)
        for a, b, changes in spec.impaired:
            assert self.wan is not None
            self.wan.impair(a, b, **changes)
        self.stopping = asyncio.Event()

    async def run(self) -> int:
        """From the disk to the end."""
        self._listen_for_the_end()
        lock = self.files.lock(self.spec.slot)
        asker = Asker(f"{self.spec.slot}?", cluster=self.plan.cluster.name, region=self.region, role="node")
        try:
            async with asker:
                stopped = asyncio.ensure_future(self.stopping.wait())
                made = asyncio.ensure_future(self._make(asker))
                await asyncio.wait([stopped, made], return_when=asyncio.FIRST_COMPLETED)
                stopped.cancel()
                if not made.done():
                    made.cancel()
                    return 0
                host, store = made.result()
                await self._serve(asker, host, store)
        finally:
            self.files.run_file(self.spec.slot).unlink(missing_ok=True)
            os.close(lock)
        return 0

    def _listen_for_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        if self.spec.attached:
            loop.add_reader(0, self._parent_gone)

    def _parent_gone(self) -> None:
        if not os.read(0, 1024):
            asyncio.get_running_loop().remove_reader(0)
            self.stopping.set()

    # --- coming to life -----------------------------------------------------------------------------------

    async def _make(self, asker: Asker) -> tuple[Host, Store]:
        looking = asyncio.ensure_future(self._peers(asker))
        place = Place(self.spec.slot, self.address, self.files.data(self.spec.slot), durable=self.plan.durable)
        node, store = await place.take(lambda: self._own_membership(asker), founding=self.spec.founding)
        try:
            recipe = Recipe(
                node,
                self.region,
                self.service,
                await looking,
                self.plan.protocol.proxy(durable=self.plan.durable),
                os.urandom(16).hex(),
            )
            machine = recipe.make([entry for entry in store.entries if not isinstance(entry, Membership)])
            host = Host(
                node,
                machine,
                ADDRESSES,
                store,
                region=self.region,
                cluster=self.plan.cluster.name,
                journal=self._journal(node, recipe),
                wan=self.wan,
                settings=HostSettings(poll=self.plan.cluster.poll),
            )
            await host.listen(*parse_address(self.address))
        except BaseException:
            store.close()
            raise
        log.info("replica", id=node, entries=len(store.entries), committed=machine.log.committed)
        host.start()
        store.entries = []  # the machine has them
        gc.collect()
        gc.freeze()  # what is here now stays: the collector need not look at it again, which takes milliseconds
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

    async def _own_membership(self, asker: Asker) -> Membership:
        """Wait for the own configuration service, and say so while it takes long."""
        while True:
            try:
                return await asker.membership(self.service, WAITING)
            except NoAnswer as error:
                log.warning("waiting for the configuration service", service=self.service, error=str(error))

    async def _peers(self, asker: Asker) -> dict[RegionId, Membership]:
        """Who forms the other chains: as their services say, else as far as it was known, else as founded."""
        others = [region for region in self.plan.regions if region.name != self.region]
        known = layout.read(self._peers_file, dict[RegionId, Membership]) or {}
        found = await asyncio.gather(
            *[asker.membership(region.service, FIRST_LOOK) for region in others], return_exceptions=True
        )
        peers: dict[RegionId, Membership] = {}
        for region, answer in zip(others, found, strict=True):
            if isinstance(answer, Membership):
                peers[region.name] = answer
            elif isinstance(answer, NoAnswer):
                peers[region.name] = known.get(region.name) or region.founders(0)
            else:
                raise answer
        return peers

    @property
    def _peers_file(self) -> Path:
        return self.files.data(self.spec.slot) / "peers.json"

    # --- serving --------------------------------------------------------------------------------------------

    async def _serve(self, asker: Asker, host: Host, store: Store) -> None:
        proxy = host.machine
        assert isinstance(proxy, Proxy)
        token = self.spec.token if self.spec.lab else ""
        http = HttpServer(Admin(host, proxy, store, self.wan, token).application)
        http.start()
        pid = os.getpid()
        me = Process(pid=pid, started=started_at(pid), id=host.node, admin=http.port, token=self.spec.token)
        layout.write(self.files.run_file(self.spec.slot), me)
        if self.on_ready is not None:
            self.on_ready(me)
        tasks: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._checkpoint(proxy, store)),
            asyncio.ensure_future(self._acquaint(asker, host, proxy)),
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

    async def _checkpoint(self, proxy: Proxy, store: Store) -> None:
        """Let the log be cut off behind checkpoints, a slice per turn."""
        checkpointer = Checkpointer(store)
        while store.durable:
            while checkpointer.due():
                checkpointer.step(proxy.log)
                await asyncio.sleep(0)
            await asyncio.sleep(CHECKPOINT_LOOK)
        await asyncio.Event().wait()  # in memory there is nothing to do, for ever

    async def _acquaint(self, asker: Asker, host: Host, proxy: Proxy) -> None:
        """Tell the machine what the other regions' services know and it does not; remember it for the next start."""
        others = [region for region in self.plan.regions if region.name != self.region]
        written: dict[RegionId, Membership] = {}
        refused = False
        while True:
            peers = dict(proxy.inter_region.peers)
            if peers != written:
                try:
                    await asyncio.to_thread(layout.write, self._peers_file, peers)
                    written, refused = peers, False
                except OSError as error:  # it only shortens the next start: no reason to end, nor to say so each round
                    if not refused:
                        log.warning("who forms the other chains cannot be written down", error=str(error))
                    refused = True
            await asyncio.sleep(ACQUAINT)
            for region in others:
                with contextlib.suppress(NoAnswer):
                    current = await asker.membership(region.service, FIRST_LOOK)
                    if current.epoch > proxy.inter_region.peers[region.name].epoch:
                        host.tell(region.service, Advertise(current, {}))
