"""Hosts over loopback in one process, and waiting for conditions with a deadline."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from tidings.core.rows import ArrowRows, data_rows
from tidings.core.span import Span
from tidings.net.codec import JOURNAL, Codec
from tidings.net.host import Host, MemoryStore
from tidings.net.journal import Journal, Start
from tidings.net.loop import loop_factory
from tidings.net.names import Address
from tidings.net.shape import Wan
from tidings.protocols.kernel import Effects, Expired, Input, Message, Received, Report, Send, SetTimer, Timer
from tidings.protocols.nodes.client import Client, ClientSettings
from tidings.protocols.nodes.replica import Replica, ReplicaSettings
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Configuration, ConfigurationSettings
from tidings.protocols.services.catalog import StreamDef
from tidings.protocols.services.publishing import Publisher, PublishSettings
from tidings.store import Store

T = TypeVar("T")
DEADLINE = 20.0


def run(main: Coroutine[Any, Any, T], *, uvloop: bool = True) -> T:
    with asyncio.Runner(loop_factory=loop_factory() if uvloop else None) as runner:
        return runner.run(asyncio.wait_for(main, 2 * DEADLINE))


async def until(condition: Callable[[], Any], what: str = "", deadline: float = DEADLINE) -> None:
    """Wait for a condition; fails at the deadline."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline
    while not condition():
        assert loop.time() < end, f"in vain for {deadline} s: {what or condition}"
        await asyncio.sleep(0.005)


# --- a tiny protocol --------------------------------------------------------------------------------------


class Ping(Message, frozen=True, gc=False):
    """Answered with a `Pong` of the same number."""

    from_clients: ClassVar[bool] = True

    number: int


class Pong(Message, frozen=True, gc=False):
    number: int


class PingTick(Timer, frozen=True, gc=False):
    """Time for the next ping."""


UNLUCKY = 1 << 40
"""A number on which a pinger fails."""


class Pinger:
    """Pings a peer every period, if it has one, and answers pings."""

    def __init__(self, peer: str | None = None, period: float = 0.01) -> None:
        self.peer = peer
        self.period = period
        self.sent = 0
        self.pings: list[int] = []
        self.pongs: list[int] = []

    def start(self, now: float) -> Effects:
        return [SetTimer(self.period, PingTick())] if self.peer else []

    def handle(self, now: float, input: Input) -> Effects:
        match input:
            case Received(src, Ping(number)):
                if number == UNLUCKY:
                    raise RuntimeError("planted")
                self.pings.append(number)
                return [Send(src, Pong(number)), Report("pinged")]
            case Received(_, Pong(number)):
                self.pongs.append(number)
            case Expired(PingTick()) if self.peer:
                self.sent += 1
                return [Send(self.peer, Ping(self.sent)), SetTimer(self.period, PingTick())]
        return []

    def check(self) -> None:
        assert len(self.pongs) <= self.sent


PINGS = Codec((Ping, Pong))


def ping_host(node: str, machine: Pinger, directory: dict[str, Address], **options: Any) -> Host:
    return Host(node, machine, directory, codec=PINGS, **options)


# --- a region of the real protocols -----------------------------------------------------------------------


class Recipe(msgspec.Struct, frozen=True):
    """What a replica is made from besides its disk: the params of its journal."""

    node: str
    region: str
    streams: tuple[StreamDef, ...]
    peers: dict[str, ChainConfig]
    seed: str

    def replica(self, entries: list[Any]) -> Replica:
        service = f"{self.region}/config"
        rng = random.Random(self.seed)
        return Replica(self.node, self.region, service, self.streams, self.peers, ReplicaSettings(), entries, rng)


def remake(start: Start, entries: list[Any]) -> Replica:
    return msgspec.msgpack.decode(start.params, type=Recipe).replica(entries)


class Cluster:
    """Regions of three replicas and a configuration service each, in this process, over loopback."""

    def __init__(self, regions: int, folder: Path, wan: Wan | None = None, *, durable: bool = False) -> None:
        self.folder = folder
        self.wan = wan
        self.durable = durable  # on a real disk
        self.directory: dict[str, Address] = {}
        self.hosts: dict[str, Host] = {}
        self.stores: dict[str, MemoryStore | Store] = {}
        names = [f"r{at}" for at in range(regions)]
        self.streams = tuple([StreamDef(f"s{at}", name, "none", 0, at) for at, name in enumerate(names)])
        self.memberships = {name: ChainConfig(name, 1, tuple(f"{name}/p{at}" for at in range(3))) for name in names}
        self.delivered: dict[str, list[Any]] = {}
        self.lives: dict[str, int] = {}

    async def start(self) -> None:
        for region, membership in self.memberships.items():
            for node in (f"{region}/config", *membership.replicas):
                await self.boot(node)

    async def boot(self, node: str) -> Host:
        """(Re)start a node from its store; it listens where it did before."""
        region = node.partition("/")[0]
        if self.durable:
            self.stores[node] = Store.open(self.folder / node.replace("/", "-"), node=node)
        store = self.stores.setdefault(node, MemoryStore(JOURNAL))
        self.lives[node] = self.lives.get(node, 0) + 1
        journal = None
        machine: Any
        if node.endswith("/config"):
            machine = Configuration(self.memberships[region], ConfigurationSettings(), store.entries)
        else:
            peers = {name: membership for name, membership in self.memberships.items() if name != region}
            recipe = Recipe(node, region, self.streams, peers, f"{node} {self.lives[node]}")
            machine = recipe.replica(store.entries)
            journal = Journal(self.journal_of(node), msgspec.msgpack.encode(recipe))
        host = Host(node, machine, self.directory, store, region=region, journal=journal, wan=self.wan, check=True)
        self.hosts[node] = host
        self.directory[node] = await host.listen(port=self.directory.get(node, ("", 0))[1])
        host.start()
        return host

    def journal_of(self, node: str) -> Path:
        return self.folder / f"{node.replace('/', '-')}.{self.lives[node]}.journal"

    async def kill(self, node: str) -> None:
        await self.hosts.pop(node).stop()
        store = self.stores[node]
        if isinstance(store, MemoryStore):
            store.crash()
        else:
            store.close(flush=False)

    def client(self, node: str, publisher: str | None = None, stream_region: str | None = None) -> Host:
        """A client that may publish to the streams of a region (its own, unless told otherwise)."""
        region = node.partition("/")[0]
        rng = random.Random(node)
        publishing = None
        if publisher:
            owner = self.memberships[stream_region or region]
            publishing = Publisher(publisher, owner, PublishSettings(), rng.getrandbits(48))
        horizons = {stream.name: 1 for stream in self.streams}
        machine = Client(node, region, self.memberships[region], horizons, ClientSettings(), rng, publishing)
        items = self.delivered[node] = []
        options: dict[str, Any] = {"region": region, "role": "client", "wan": self.wan, "check": True}
        host = Host(node, machine, self.directory, on_deliver=items.append, **options)
        self.hosts[node] = host
        host.start()
        return host

    async def stop(self) -> None:
        await asyncio.gather(*[host.stop() for host in self.hosts.values()])
        for store in self.stores.values():
            if isinstance(store, Store):
                store.close()
        for host in self.hosts.values():
            if host.failed.done():
                host.failed.result()

    def payloads(self, node: str, stream: str) -> list[bytes]:
        """What a client was given of a stream; asserts that it came in order, without a gap, once."""
        spans = [item for item in self.delivered[node] if isinstance(item, Span) and item.stream == stream]
        out: list[bytes] = []
        at = 1
        for span in spans:
            assert span.lo == at, f"{node}: [{span.lo}, {span.hi}) after {at}"
            at = span.hi
            assert isinstance(span.rows, ArrowRows)
            out += span.rows.batch.column("payload").to_pylist()
        return out


def batch(name: str, count: int) -> ArrowRows:
    payloads = [f"{name}.{at}".encode() for at in range(count)]
    return data_rows(1, [f"k{at % 7}".encode() for at in range(count)], payloads)
