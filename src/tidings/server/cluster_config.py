"""cluster.toml: which regions there are, where their replicas live, and what lies between them.

    [cluster]
    name = "prices"
    durability = "durable"                  # or "memory"
    data = "/var/lib/tidings"               # default: beside the file

    [[regions]]
    name = "r0"
    config = "127.0.0.1:7409"
    replicas = ["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"]       # r0/p0, r0/p1, r0/p2

    [[regions.cells]]                       # relays and edges: topology.py
    name = "relays"
    relays = ["127.0.0.1:7410", "127.0.0.1:7411"]

    [[regions.edges]]
    address = "127.0.0.1:7412"
    upstream = "relays"

    [wan]
    preset = "us"                           # or [[wan.links]] with a, b, latency, jitter, bandwidth, loss

    [protocol]
    silence = 1.5

    [brokers]
    gct = 0.2

An unknown key, a wrong type, a number out of bounds or a name that does not exist is refused with one line that says
where (file, line, key), what was found and what is allowed. Times are seconds, bandwidths bits per second.

The replicas of the file form the initial chain of their region. Later the configuration service decides which replicas
are in the chain: a replica that is added to the file joins when it is started, whatever its place in the list.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, json, structs

from tidings.core.errors import BadInput
from tidings.core.gc import GcPolicy
from tidings.core.ids import NodeId, RegionId
from tidings.net.names import CONFIG, make_id, parse_address
from tidings.net.shape import PRESETS, ShapedPath, Wan
from tidings.protocols.brokers.broker_messages import BrokerSettings
from tidings.protocols.fabrics.family import FabricChoice
from tidings.protocols.nodes.replica import ReplicaSettings
from tidings.protocols.regions.interregion import InterRegionSettings
from tidings.protocols.replication.chain import ChainSettings
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import ConfigurationSettings
from tidings.protocols.replication.recovery import RecoverySettings
from tidings.protocols.services.promises import PromiseSettings
from tidings.protocols.services.publishing import PublishSettings
from tidings.protocols.services.receipts import ReceiptSettings
from tidings.server.ports import describe_holder, is_taken
from tidings.server.topology import BrokerPlace, CellConfig, EdgeConfig, Problems, place_brokers, topology_problems
from tidings.sim.scenario import Chance, Duration, Name, Seconds, Some, Table, read_fabric
from tidings.sim.toml import Document

PORT = 7400
"""Where a generated cluster's first replica listens; ours, because nothing well known does."""

LAST_PORT = 65_535
FREE = (10_000, 32_000)
"""Where other free ports are sought; ours, because systems give their outgoing connections ports above that, and a
replica that comes back must find its own port free."""

MOST = 256
"""Processes of a generated cluster; ours, because each takes some 100 MB of this machine."""

CELL = "relays"
"""The one cell of a generated region."""

FILE = "cluster.toml"
HOST = "127.0.0.1"

Durability: TypeAlias = Literal["durable", "memory"]
RegionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class ClusterTable(Table, frozen=True):
    """``[cluster]``."""

    name: Name = "tidings"  # processes of another cluster name are refused at the hello
    durability: Durability = "durable"  # memory: what all replicas of a region lose at once is lost
    data: str | None = None  # where stores, logs and run files are; relative to the file; default: its directory
    poll: Annotated[float, Meta(ge=0, le=1)] = 0.0  # seconds a replica stays awake for what may come (decision 0014)


class RegionConfig(Table, frozen=True):
    """``[[regions]]``: a datacenter."""

    name: RegionName
    config: str  # where its configuration service listens
    replicas: Annotated[tuple[str, ...], Meta(min_length=1)]  # and its replicas; the first is the initial head
    cells: tuple[CellConfig, ...] = ()
    edges: tuple[EdgeConfig, ...] = ()

    @property
    def service(self) -> NodeId:
        """The id of its configuration service."""
        return make_id(f"{self.name}/{CONFIG}", *parse_address(self.config))

    def slots(self) -> dict[str, str]:
        """Its replicas' places, and where each listens."""
        return {f"{self.name}/p{at}": address for at, address in enumerate(self.replicas)}

    def broker_places(self) -> dict[str, BrokerPlace]:
        """Its relays and edges."""
        return place_brokers(self.name, self.cells, self.edges)

    def initial_chain(self, epoch: int) -> ChainConfig:
        """The chain that the region is bootstrapped with: all replicas of the file, under their plain names."""
        ids = [make_id(slot, *parse_address(address)) for slot, address in self.slots().items()]
        return ChainConfig(self.name, epoch, tuple(ids))


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


class ProtocolConfig(Table, frozen=True):
    """``[protocol]``: settings of the machines; the names of scenarios where they mean the same."""

    beat: Duration = ChainSettings().beat
    silence: Duration = ConfigurationSettings().silence  # a replica not heard of for so long is removed
    backlog: Some = ChainSettings().backlog  # records a head accepts before it says busy
    retain: Some = ChainSettings().retain  # committed records kept for one that comes back
    advertise_period: Duration = InterRegionSettings().period  # A1.20: of order 1 s
    c: Annotated[float, Meta(ge=0)] | None = InterRegionSettings().c  # A1.17
    publisher_ttl: Duration = PublishSettings().ttl  # how long a publisher's retry is still answered
    receipts: bool = ReceiptSettings().ask  # subscribers tell what was delivered to them, so that it can be audited
    recovery_wait: Duration = RecoverySettings().wait  # memory: for regions that do not answer one which begins anew
    recovery_skip: Annotated[int, Meta(ge=0)] = RecoverySettings().skip  # and what it declares lost besides
    recovery_lead: Annotated[float, Meta(ge=0)] = RecoverySettings().lead  # and how far ahead its ticks go on
    promise: Duration = PromiseSettings().period  # seconds between two promises of a region whose streams are merged
    receipts_gc: str = ReceiptSettings().gc  # what becomes of it: a policy, as of a stream

    def replica(self, fabric: FabricChoice, *, durable: bool = True) -> ReplicaSettings:
        """As a replica takes them."""
        return ReplicaSettings(
            recovery=RecoverySettings(not durable, self.recovery_wait, self.recovery_skip, self.recovery_lead),
            promises=PromiseSettings(period=self.promise),
            chain=ChainSettings(beat=self.beat, backlog=self.backlog, retain=self.retain),
            inter_region=InterRegionSettings(period=self.advertise_period, c=self.c),
            publish=PublishSettings(ttl=self.publisher_ttl),
            receipts=ReceiptSettings(ask=self.receipts, gc=self.receipts_gc),
            fabric=fabric,
        )

    def configuration(self) -> ConfigurationSettings:
        """As a configuration service takes them."""
        return ConfigurationSettings(silence=self.silence)


class BrokersConfig(Table, frozen=True):
    """``[brokers]``: how replicas, relays and edges notice what is missing between them."""

    gct: Duration = BrokerSettings().gct  # A2.30: a gap that is younger may be a message on its way
    nrt: Duration = BrokerSettings().nrt  # A2.31: a nack is repeated after so long at the earliest
    dct: Seconds = BrokerSettings().dct  # A2.32: what comes next is asked for after so long; 0: never
    aet: Duration = BrokerSettings().aet  # A2.33: what was published is expected to be acknowledged
    status: Duration = BrokerSettings().status  # between two signs of life
    patience: Duration = BrokerSettings().patience  # one not heard of for so long is not there

    def settings(self) -> BrokerSettings:
        """As a broker takes them."""
        return BrokerSettings(**structs.asdict(self))


class ClusterConfig(Table, frozen=True, kw_only=True):
    """A whole cluster, as its file says."""

    cluster: ClusterTable = ClusterTable()
    regions: Annotated[tuple[RegionConfig, ...], Meta(min_length=1)]
    wan: WanTable = WanTable()
    protocol: ProtocolConfig = ProtocolConfig()
    brokers: BrokersConfig = BrokersConfig()
    fabric: FabricChoice = FabricChoice()

    def replica_settings(self) -> ReplicaSettings:
        """The settings of every replica."""
        made = self.protocol.replica(self.fabric, durable=self.durable)
        return structs.replace(made, broker=self.brokers.settings())

    @property
    def durable(self) -> bool:
        return self.cluster.durability == "durable"

    def region(self, name: RegionId) -> RegionConfig:
        """The region of that name; raises `BadInput`."""
        found = [region for region in self.regions if region.name == name]
        if not found:
            raise BadInput(f"region {name!r} is unknown: there are {', '.join(each.name for each in self.regions)}")
        return found[0]

    def slots(self) -> dict[str, str]:
        """All replicas' places, and where each listens."""
        return {slot: address for region in self.regions for slot, address in region.slots().items()}

    def broker_places(self) -> dict[str, BrokerPlace]:
        """All relays and edges."""
        return {slot: place for region in self.regions for slot, place in region.broker_places().items()}

    def shape(self, *, always: bool = False) -> Wan | None:
        """What lies between the regions; None if nothing does, unless links may be cut later."""
        names = [region.name for region in self.regions]
        if self.wan.preset is not None:
            return PRESETS[self.wan.preset](names)
        wan = Wan()
        for link in self.wan.links:
            path = ShapedPath(latency=link.latency, jitter=link.jitter, bandwidth=link.bandwidth, loss=link.loss)
            wan.connect(link.a, link.b, path)
        return wan if self.wan.links or always else None


# --- reading ----------------------------------------------------------------------------------------------


def load(path: str | Path) -> ClusterConfig:
    """Read a cluster file; raises `BadInput` with one line that says what is wrong where."""
    document = Document.read(path)
    fabric, rest = read_fabric(document)
    plan = structs.replace(document.convert(ClusterConfig, rest), fabric=fabric)
    first = next(_problems(plan), None)
    if first is not None:
        raise document.error(*first)
    return plan


def _problems(plan: ClusterConfig) -> Problems:
    names = [region.name for region in plan.regions]
    taken: dict[str, str] = {}
    for at, region in enumerate(plan.regions):
        if region.name in names[:at]:
            yield f"regions[{at}].name", "is used twice; every name must be different"
        places = [(f"regions[{at}].config", region.config)]
        places += [(f"regions[{at}].replicas[{n}]", address) for n, address in enumerate(region.replicas)]
        for n, cell in enumerate(region.cells):
            places += [(f"regions[{at}].cells[{n}].relays[{m}]", address) for m, address in enumerate(cell.relays)]
        places += [(f"regions[{at}].edges[{n}].address", edge.address) for n, edge in enumerate(region.edges)]
        for key, address in places:
            try:
                parse_address(address)
            except BadInput:
                yield key, "must be HOST:PORT with a port from 1 to 65535"
            if address in taken:
                yield key, f"is taken by {taken[address]}; every process has its own address"
            taken[address] = key
        yield from topology_problems(f"regions[{at}]", region.cells, region.edges)
    yield from _wan_problems(plan.wan, names)
    try:
        GcPolicy.parse(plan.protocol.receipts_gc)
    except BadInput as error:
        yield "protocol.receipts_gc", str(error)
    if plan.brokers.patience < 2 * plan.brokers.status:
        yield "brokers.patience", f"must be at least two times status, {2 * plan.brokers.status:g} s: one may be lost"
    if not 0.001 <= plan.protocol.promise <= 1.0:
        yield "protocol.promise", "is 0.001 to 1 s: more often is work for nothing, and a total order waits as long"
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
    edges: int = 0,
    relays: int = 0,
    name: str = "tidings",
    durability: Durability = "durable",
    wan: Literal["us"] | None = None,
    port: int = PORT,
    protocol: ProtocolConfig | None = None,
    fabric: FabricChoice | None = None,
    poll: float = 0.0,
) -> ClusterConfig:
    """A cluster on this machine: ports from ``port`` up, of which none may be taken; with 0 any that are free.

    Each region has ``edges``, and ``relays`` between its replicas and its edges.
    """
    if regions < 1 or replicas < 1:
        raise BadInput(f"{regions} regions of {replicas} replicas make no cluster: at least one of each")
    if wan == "us" and regions > 3:
        raise BadInput(f"the preset 'us' has three regions, not {regions}: write a {FILE} with [[wan.links]]")
    if relays and not edges:
        raise BadInput(f"{relays} relays without an edge carry nothing: give edges, too")
    brokers = f", {edges} edges and {relays} relays" if edges else ""
    processes = regions * (replicas + edges + relays)
    if processes > MOST:
        raise BadInput(
            f"{regions} regions of {replicas} replicas{brokers} are {processes} processes, too many for this machine: "
            f"at most {MOST}, or a {FILE} for several hosts with `tidings serve`"
        )
    addresses = iter([f"{HOST}:{each}" for each in _ports(processes + regions, port)])
    chains = [tuple(islice(addresses, replicas)) for _ in range(regions)]
    services = list(islice(addresses, regions))
    made = [
        RegionConfig(f"r{at}", services[at], chain, *_generate_brokers(addresses, edges, relays))
        for at, chain in enumerate(chains)
    ]
    return ClusterConfig(
        cluster=ClusterTable(name, durability, poll=poll),
        regions=tuple(made),
        wan=WanTable(preset=wan),
        protocol=protocol or ProtocolConfig(),
        fabric=fabric or FabricChoice(),
    )


def _generate_brokers(
    addresses: Iterator[str], edges: int, relays: int
) -> tuple[tuple[CellConfig, ...], tuple[EdgeConfig, ...]]:
    cells = (CellConfig(name=CELL, relays=tuple(islice(addresses, relays))),) if relays else ()
    upstream = CELL if relays else None
    return cells, tuple([EdgeConfig(address=each, upstream=upstream) for each in islice(addresses, edges)])


def render(plan: ClusterConfig) -> str:
    """A cluster as a file that a person can go on from: what is not the default."""
    lines = ["[cluster]", *_assignments(plan.cluster, keep=("name", "durability")), ""]
    for region in plan.regions:
        lines += ["[[regions]]", *_assignments(region), ""]
        for cell in region.cells:
            lines += ["[[regions.cells]]", *_assignments(cell), ""]
        for edge in region.edges:
            lines += ["[[regions.edges]]", *_assignments(edge), ""]
    if plan.wan.preset is not None:
        lines += ["[wan]", f'preset = "{plan.wan.preset}"', ""]
    for link in plan.wan.links:
        lines += ["[[wan.links]]", *_assignments(link), ""]
    if settings := _assignments(plan.protocol):
        lines += ["[protocol]", *settings, ""]
    if settings := _assignments(plan.brokers):
        lines += ["[brokers]", *settings, ""]
    if plan.fabric != FabricChoice():
        options = [f"{name} = {json.encode(value).decode()}" for name, value in plan.fabric.options.items()]
        lines += ["[fabric]", f'kind = "{plan.fabric.kind}"', *options, ""]
    return "\n".join(lines)


def _assignments(table: Table, keep: tuple[str, ...] = ()) -> list[str]:
    """The keys of a table that say something and are no tables; JSON's strings, numbers and lists are TOML's too."""
    lines = []
    for field in structs.fields(table):
        value = getattr(table, field.name)
        tables = field.name in ("cells", "edges")
        if not tables and (value != field.default or field.name in keep):
            text = json.encode(value).decode().replace('","', '", "')
            lines.append(f"{field.name} = {text}")
    return lines


def free_port(taken: Container[int] = ()) -> int:
    """A port of this machine that nobody listens on, and that no outgoing connection will be given."""
    for _ in range(1000):
        port = random.randrange(*FREE)
        if port not in taken and not is_taken(HOST, port):
            return port
    raise BadInput(f"no port from {FREE[0]} to {FREE[1] - 1} is free: end what listens there")


def _ports(count: int, first: int) -> list[int]:
    if first + count - 1 > LAST_PORT:
        raise BadInput(
            f"{count} processes need the ports {first} to {first + count - 1}, and the last there is is {LAST_PORT}: "
            f"begin at {LAST_PORT + 1 - count} or below, or with port 0 at any that are free"
        )
    if first:
        wanted = list(range(first, first + count))
        refuse_taken([f"{HOST}:{port}" for port in wanted], "--port 0 takes free ports, --port N the ports from N on")
        return wanted
    ports: list[int] = []
    for _ in range(count):
        ports.append(free_port(ports))
    return ports


def refuse_taken(addresses: Iterable[str], instead: str) -> None:
    """Raise `BadInput` for the first address whose port is taken: which, by whom, and what to do instead."""
    for address in addresses:
        host, port = parse_address(address)
        if is_taken(host, port):
            raise BadInput(f"port {port} is taken by {describe_holder(port)}: {instead}")
