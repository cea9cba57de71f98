"""cluster.toml: which regions there are, where their replicas live, and what lies between them.

    [cluster]
    name = "prices"
    durability = "durable"                  # or "memory"
    data = "/var/lib/tidings"               # default: beside the file

    [[regions]]
    name = "r0"
    config = "127.0.0.1:7409"
    replicas = ["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"]       # r0/p0, r0/p1, r0/p2

    [wan]
    preset = "us"                           # or [[wan.links]] with a, b, latency, jitter, bandwidth, loss

    [protocol]
    silence = 1.5

An unknown key, a wrong type, a number out of bounds or a name that does not exist is refused with one line that says
where (file, line, key), what was found and what is allowed. Times are seconds, bandwidths bits per second.

The replicas of the file found their region. Later the configuration services decide who is in a chain; a replica that
is added to the file joins when it is started, and the order of the list means nothing any more.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, json, structs

from tidings.core.errors import BadInput
from tidings.core.gc import GcPolicy
from tidings.core.ids import NodeId, RegionId
from tidings.net.names import CONFIG, make_id, parse_address
from tidings.net.shape import PRESETS, Wan
from tidings.net.shape import Path as WanPath
from tidings.protocols.chain import ChainSettings
from tidings.protocols.configuration import ConfigurationSettings
from tidings.protocols.interregion import InterRegionSettings
from tidings.protocols.membership import Membership
from tidings.protocols.proxy import ProxySettings
from tidings.protocols.publishing import PublishSettings
from tidings.protocols.pull import PullSettings
from tidings.protocols.receipts import ReceiptSettings
from tidings.protocols.recovery import RecoverySettings
from tidings.protocols.views import ViewsSettings
from tidings.sim.scenario import Chance, Duration, Name, Seconds, Some, Table
from tidings.sim.toml import Document

PORT = 7400
"""Where a generated cluster's first replica listens; ours, because nothing well known does."""

LAST_PORT = 65_535
FREE = (10_000, 32_000)
"""Where other free ports are sought; ours, because systems give their outgoing connections ports above that, and a
replica that comes back must find its own port free."""

MOST = 256
"""Replicas of a generated cluster; ours, because each is a process of this machine that takes some 100 MB."""

FILE = "cluster.toml"
HOST = "127.0.0.1"

Durability: TypeAlias = Literal["durable", "memory"]
RegionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class ClusterTable(Table, frozen=True):
    """``[cluster]``."""

    name: Name = "tidings"  # who belongs together: another name is refused at the hello
    durability: Durability = "durable"  # memory: what all replicas of a region lose at once is lost
    data: str | None = None  # where stores, logs and run files are; relative to the file; default: its directory
    poll: Annotated[float, Meta(ge=0, le=1)] = 0.0  # seconds a replica stays awake for what may come (decision 0014)


class Region(Table, frozen=True):
    """``[[regions]]``: a datacenter."""

    name: RegionName
    config: str  # where its configuration service listens
    replicas: Annotated[tuple[str, ...], Meta(min_length=1)]  # and its replicas, head first at the founding

    @property
    def service(self) -> NodeId:
        """The id of its configuration service."""
        return make_id(f"{self.name}/{CONFIG}", *parse_address(self.config))

    def slots(self) -> dict[str, str]:
        """Its replicas' places, and where each listens."""
        return {f"{self.name}/p{at}": address for at, address in enumerate(self.replicas)}

    def founders(self, epoch: int) -> Membership:
        """The first configuration of its chain: everybody in the first life."""
        ids = [make_id(slot, *parse_address(address)) for slot, address in self.slots().items()]
        return Membership(self.name, epoch, tuple(ids))


class WanLink(Table, frozen=True):
    """``[[wan.links]]``: how frames fare between two regions, either way."""

    a: RegionName
    b: RegionName
    latency: Seconds = 0.0  # one way
    jitter: Seconds = 0.0  # up to so much more
    bandwidth: Annotated[float, Meta(ge=0)] = 0.0  # 0: no limit
    loss: Chance = 0.0


class WanTable(Table, frozen=True):
    """``[wan]``: one machine stands for several coasts. Leave it out where there is a real network."""

    preset: Literal["us"] | None = None
    links: tuple[WanLink, ...] = ()


class Protocol(Table, frozen=True):
    """``[protocol]``: settings of the machines; the names of scenarios where they mean the same."""

    beat: Duration = ChainSettings().beat
    silence: Duration = ConfigurationSettings().silence  # a replica not heard of for so long is removed
    backlog: Some = ChainSettings().backlog  # records a head accepts before it says busy
    retain: Some = ChainSettings().retain  # committed records kept for one that comes back
    advertise_period: Duration = InterRegionSettings().period  # A1.20: of order 1 s
    c: Annotated[float, Meta(ge=0)] | None = InterRegionSettings().c  # A1.17
    view: Some = ViewsSettings().size  # A1.25: V
    gossip: Duration = ViewsSettings().period
    merge: Literal["swap", "paper"] = ViewsSettings().rule
    fanout: Some = PullSettings().fanout  # A1.35, SP3: F
    shuffle: Duration = PullSettings().shuffle
    proxy_fanout: Some = PullSettings().proxy_fanout
    proxy_shuffle: Duration = PullSettings().proxy_shuffle
    fallback: Duration = PullSettings().fallback
    recv_rows: Some = PullSettings().recv_rows  # A1.33
    publisher_ttl: Duration = PublishSettings().ttl  # how long a publisher's retry is still answered
    receipts: bool = ReceiptSettings().ask  # subscribers tell what was delivered to them, so that it can be audited
    recovery_wait: Duration = RecoverySettings().wait  # memory: for regions that do not answer one which begins anew
    recovery_skip: Annotated[int, Meta(ge=0)] = RecoverySettings().skip  # and what it declares lost besides
    receipts_gc: str = ReceiptSettings().gc  # what becomes of it: a policy, as of a stream

    def proxy(self, *, durable: bool = True) -> ProxySettings:
        """As a replica takes them."""
        return ProxySettings(
            recovery=RecoverySettings(on=not durable, wait=self.recovery_wait, skip=self.recovery_skip),
            chain=ChainSettings(beat=self.beat, backlog=self.backlog, retain=self.retain),
            inter_region=InterRegionSettings(period=self.advertise_period, c=self.c),
            publish=PublishSettings(ttl=self.publisher_ttl),
            receipts=ReceiptSettings(ask=self.receipts, gc=self.receipts_gc),
            views=ViewsSettings(size=self.view, period=self.gossip, rule=self.merge),
            pull=PullSettings(
                fanout=self.fanout,
                shuffle=self.shuffle,
                proxy_fanout=self.proxy_fanout,
                proxy_shuffle=self.proxy_shuffle,
                fallback=self.fallback,
                recv_rows=self.recv_rows,
                held_rows=self.recv_rows,
            ),
        )

    def configuration(self) -> ConfigurationSettings:
        """As a configuration service takes them."""
        return ConfigurationSettings(silence=self.silence)


class Plan(Table, frozen=True, kw_only=True):
    """A whole cluster, as its file says."""

    cluster: ClusterTable = ClusterTable()
    regions: Annotated[tuple[Region, ...], Meta(min_length=1)]
    wan: WanTable = WanTable()
    protocol: Protocol = Protocol()

    @property
    def durable(self) -> bool:
        return self.cluster.durability == "durable"

    def region(self, name: RegionId) -> Region:
        """The region of that name; raises `BadInput`."""
        found = [region for region in self.regions if region.name == name]
        if not found:
            raise BadInput(f"region {name!r} is unknown: there are {', '.join(each.name for each in self.regions)}")
        return found[0]

    def slots(self) -> dict[str, str]:
        """All replicas' places, and where each listens."""
        return {slot: address for region in self.regions for slot, address in region.slots().items()}

    def shape(self, *, always: bool = False) -> Wan | None:
        """What lies between the regions; None if nothing does, unless links may be cut later."""
        names = [region.name for region in self.regions]
        if self.wan.preset is not None:
            return PRESETS[self.wan.preset](names)
        wan = Wan()
        for link in self.wan.links:
            path = WanPath(latency=link.latency, jitter=link.jitter, bandwidth=link.bandwidth, loss=link.loss)
            wan.connect(link.a, link.b, path)
        return wan if self.wan.links or always else None


# --- reading ----------------------------------------------------------------------------------------------


def load(path: str | Path) -> Plan:
    """Read a cluster file; raises `BadInput` with one line that says what is wrong where."""
    document = Document.read(path)
    plan = document.convert(Plan)
    first = next(_problems(plan), None)
    if first is not None:
        raise document.error(*first)
    return plan


Problems: TypeAlias = Iterator[tuple[str, str]]


def _problems(plan: Plan) -> Problems:
    names = [region.name for region in plan.regions]
    taken: dict[str, str] = {}
    for at, region in enumerate(plan.regions):
        if region.name in names[:at]:
            yield f"regions[{at}].name", "is used twice; every name must be different"
        places = [(f"regions[{at}].config", region.config)]
        places += [(f"regions[{at}].replicas[{n}]", address) for n, address in enumerate(region.replicas)]
        for key, address in places:
            try:
                parse_address(address)
            except BadInput:
                yield key, "must be HOST:PORT with a port from 1 to 65535"
            if address in taken:
                yield key, f"is taken by {taken[address]}; every process has its own address"
            taken[address] = key
    yield from _wan_problems(plan.wan, names)
    try:
        GcPolicy.parse(plan.protocol.receipts_gc)
    except BadInput as error:
        yield "protocol.receipts_gc", str(error)
    if plan.protocol.silence < 3 * plan.protocol.beat:
        yield "protocol.silence", f"must be at least three beats, {3 * plan.protocol.beat:g} s: a lost one is no death"


def _wan_problems(wan: WanTable, names: list[str]) -> Problems:
    if wan.preset is not None and wan.links:
        yield "wan.links", f"must be left out with preset = {wan.preset!r}, or the preset with links"
    if wan.preset == "us" and len(names) > 3:
        yield "wan.preset", f"has three regions, and there are {len(names)}: use [[wan.links]]"
    seen: set[frozenset[str]] = set()
    for at, link in enumerate(wan.links):
        for key, end in (("a", link.a), ("b", link.b)):
            if end not in names:
                yield f"wan.links[{at}].{key}", "must be one of " + ", ".join(names)
        if link.a == link.b:
            yield f"wan.links[{at}].b", "must be another region than a"
        if frozenset((link.a, link.b)) in seen:
            yield f"wan.links[{at}]", "is the second link between these regions; one is allowed"
        seen.add(frozenset((link.a, link.b)))


# --- writing ----------------------------------------------------------------------------------------------


def generate(
    regions: int,
    replicas: int,
    *,
    name: str = "tidings",
    durability: Durability = "durable",
    wan: Literal["us"] | None = None,
    port: int = PORT,
    protocol: Protocol | None = None,
    poll: float = 0.0,
) -> Plan:
    """A cluster on this machine: ports from ``port`` up, or free ones where those are taken (or ``port`` is 0)."""
    if regions < 1 or replicas < 1:
        raise BadInput(f"{regions} regions of {replicas} replicas make no cluster: at least one of each")
    if wan == "us" and regions > 3:
        raise BadInput(f"the preset 'us' has three regions, not {regions}: write a {FILE} with [[wan.links]]")
    if regions * replicas > MOST:
        raise BadInput(
            f"{regions} regions of {replicas} replicas are {regions * replicas} processes, too many for this machine: "
            f"at most {MOST}, or a {FILE} for several hosts with `tidings serve`"
        )
    addresses = [f"{HOST}:{each}" for each in _ports(regions * (replicas + 1), port)]
    services = addresses[regions * replicas :]
    made = [
        Region(f"r{at}", services[at], tuple(addresses[at * replicas : (at + 1) * replicas])) for at in range(regions)
    ]
    return Plan(
        cluster=ClusterTable(name, durability, poll=poll),
        regions=tuple(made),
        wan=WanTable(preset=wan),
        protocol=protocol or Protocol(),
    )


def render(plan: Plan) -> str:
    """A cluster as a file that a person can go on from: what is not the default."""
    lines = ["[cluster]", *_assignments(plan.cluster, keep=("name", "durability")), ""]
    for region in plan.regions:
        lines += ["[[regions]]", *_assignments(region), ""]
    if plan.wan.preset is not None:
        lines += ["[wan]", f'preset = "{plan.wan.preset}"', ""]
    for link in plan.wan.links:
        lines += ["[[wan.links]]", *_assignments(link), ""]
    if settings := _assignments(plan.protocol):
        lines += ["[protocol]", *settings, ""]
    return "\n".join(lines)


def _assignments(table: Table, keep: tuple[str, ...] = ()) -> list[str]:
    """The keys of a table that say something; JSON's strings, numbers and lists are TOML's too."""
    lines = []
    for field in structs.fields(table):
        value = getattr(table, field.name)
        if value != field.default or field.name in keep:
            text = json.encode(value).decode().replace('","', '", "')
            lines.append(f"{field.name} = {text}")
    return lines


def free_port(taken: Container[int] = ()) -> int:
    """A port of this machine that nobody listens on, and that no outgoing connection will be given."""
    for _ in range(1000):
        port = random.randrange(*FREE)
        if port not in taken and _is_free(port):
            return port
    raise BadInput(f"no port from {FREE[0]} to {FREE[1] - 1} is free: end what listens there")


def _ports(count: int, first: int) -> list[int]:
    if first + count - 1 > LAST_PORT:
        raise BadInput(
            f"{count} processes need the ports {first} to {first + count - 1}, and the last there is is {LAST_PORT}: "
            f"begin at {LAST_PORT + 1 - count} or below, or with port 0 at any that are free"
        )
    ports: list[int] = []
    for port in range(first, first + count):
        ports.append(port if first and _is_free(port) else free_port(ports))
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
