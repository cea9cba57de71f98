"""A scenario: regions, links, streams, load and faults of one simulation, read from a small TOML file.

The file is the whole input of a run besides the seed. It is converted into immutable values. An unknown key, a wrong
type, a number out of bounds or a name that does not exist is refused with one line that says where (file, line, path
of the key), what was found and what is allowed (`tidings.sim.toml`). Times are seconds, sizes bytes, bandwidths bits
per second, rates events per second, probabilities between 0 and 1.

A node is named after its region: ``r0/p1`` is the second replica of r0's proxy, ``r0/c7`` a client. Where a fault names
a node it may also say ``r0/head``, ``r0/middle`` or ``r0/tail``: the replica in that place when the fault strikes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tidings.core.errors import BadInput
from tidings.core.gc import GcPolicy
from tidings.protocols.fabrics.family import FabricChoice, choose, family_of, names
from tidings.sim.toml import Document

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Seconds = Annotated[float, Meta(ge=0)]
Duration = Annotated[float, Meta(gt=0)]
Positive = Annotated[float, Meta(gt=0)]
Chance = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]
Some = Annotated[int, Meta(ge=1)]


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A TOML table with a fixed set of keys."""


class Run(Table, frozen=True):
    """``[scenario]``: what the run is called and how long it lasts in simulated time."""

    name: Name
    seconds: Duration
    seed: Count = 0  # when the command line gives none
    heal_after: Seconds | None = None  # from here on no faults: every link up, every node alive, convergence demanded


class RegionTable(Table, frozen=True):
    """``[[region]]``: a datacenter with one replicated proxy and its clients."""

    name: Name
    replicas: Some = 1
    clients: Count = 0
    latency: Seconds = 0.001  # one way between two nodes of the region (SP3)
    proxy_uplink: Positive | None = None  # none: not a bottleneck
    proxy_downlink: Positive | None = None
    client_uplink: Positive | None = None
    client_downlink: Positive | None = None


class LinkTable(Table, frozen=True):
    """``[[link]]``: how two regions are connected, the same in both directions. Every two regions need one."""

    a: Name
    b: Name
    latency: Seconds  # one way
    jitter: Literal["constant", "normal", "heavy"] = "constant"
    sd: Seconds = 0.0  # of the jitter
    bandwidth: Positive | None = None
    loss: Chance = 0.0
    duplicate: Chance = 0.0
    reorder: Chance = 0.0


class Stream(Table, frozen=True):
    """``[[stream]]``: a line of events, owned by one region."""

    name: Name
    region: Name
    gc: str = "none"  # none | by-key | keep-last:N | older-than:7d, combined with commas
    rows: Literal["arrow", "counted"] = "arrow"
    event_bytes: Some = 10  # SP1


class PublisherTable(Table, frozen=True, kw_only=True):
    """``[[publisher]]``: a client that publishes at a steady rate."""

    name: str = ""  # default: region-pub0, region-pub1, ...
    region: Name
    stream: Name
    rate: Positive
    batch: Some = 1  # events per publish
    keys: Count = 0  # number of distinct keys; 0: events without key
    skew: Annotated[float, Meta(ge=0)] = 0.0  # Zipf exponent of the keys' popularity; 0: uniform
    start: Seconds = 0.0
    stop: Seconds = math.inf  # at the latest when the run heals or ends
    collect_every: Some | None = None  # after so many events of its own it collects what came before them


# --- faults ---------------------------------------------------------------------------------------------


class FaultTable(Table, frozen=True, tag_field="kind"):
    """``[[fault]]``: something that goes wrong, or is mended, at a time."""

    at: Seconds


class Cut(FaultTable, frozen=True, tag="cut"):
    """The link between two regions fails; one way only: from a to b."""

    a: Name
    b: Name
    one_way: bool = False


class Heal(FaultTable, frozen=True, tag="heal"):
    """The link between two regions works again; without regions: every link and partition."""

    a: Name | None = None
    b: Name | None = None


class Partition(FaultTable, frozen=True, tag="partition"):
    """These nodes are separated from all others; one way only: what they send is lost."""

    nodes: Annotated[tuple[str, ...], Meta(min_length=1)]
    seconds: Duration
    one_way: bool = False


class Kill(FaultTable, frozen=True, tag="kill"):
    """A node crashes; what it had not synced is lost."""

    node: str


class Restart(FaultTable, frozen=True, tag="restart"):
    """A killed node comes back with what its disk holds."""

    node: str


class Pause(FaultTable, frozen=True, tag="pause"):
    """A node sleeps, then goes on as if nothing had happened."""

    node: str
    seconds: Duration


class Skew(FaultTable, frozen=True, tag="skew"):
    """A node's clock is off from now on."""

    node: str
    offset: float


class Noise(FaultTable, frozen=True, tag="noise"):
    """For a while a link loses, doubles and reorders messages."""

    a: Name
    b: Name
    seconds: Duration
    loss: Chance = 0.0
    duplicate: Chance = 0.0
    reorder: Chance = 0.0


class AddReplica(FaultTable, frozen=True, tag="add-replica"):
    """An empty replica joins a region's chain behind the tail."""

    region: Name


class StopAll(FaultTable, frozen=True, tag="stop-all"):
    """Every replica of a region crashes at once."""

    region: Name


class StartAll(FaultTable, frozen=True, tag="start-all"):
    """Every stopped replica of a region starts again from its disk."""

    region: Name


AnyFault: TypeAlias = Cut | Heal | Partition | Kill | Restart | Pause | Skew | Noise | AddReplica | StopAll | StartAll


class Swarm(Table, frozen=True):
    """``[swarm]``: random faults besides the scripted ones; kinds, times and places are drawn from the seed."""

    start: Seconds = 1.0


# --- settings -------------------------------------------------------------------------------------------


class ProtocolTable(Table, frozen=True):
    """``[protocol]``: constants besides those of the fabric, and what is peculiar to simulations."""

    advertise_period: Duration = 1.0  # A1.20: of order 1 s
    c: Annotated[float, Meta(ge=0)] | None = None  # A1.17: C, in events x seconds; none: in proportion to the rate
    warm_views: bool = False  # begin with full random views, as after long gossip; else with the proxy alone (A1.28)
    recv_seconds: Duration = 0.5  # A1.33: what a buffer of the fabric holds of a stream's load, unless an option says


class ServiceTable(Table, frozen=True):
    """``[service]``: how long a node is busy with a message: per_message; if it carries any events, per_batch + events
    x per_event more, and per_wake if the node had nothing to do. `tidings.sim.measured`: what a real replica takes."""

    per_message: Seconds = 1e-6  # ours: a million control frames per second, received in batches
    per_event: Seconds = 1e-8  # ours: a hundred million batched events per second
    per_batch: Seconds = 0.0  # ours: as nothing beside the events, on a machine that is no bottleneck
    per_wake: Seconds = 0.0  # ours: likewise


class DiskTable(Table, frozen=True):
    """``[disk]``: how long a sync takes, and what a crash may leave behind."""

    sync: Seconds = 0.0003  # ours: fdatasync on an ordinary SSD
    spread: Seconds = 0.0  # mean of an exponential that is added
    torn: bool = False  # a prefix of what was not synced may survive a crash


class Scenario(Table, frozen=True, kw_only=True):
    """Everything a simulation is made of."""

    scenario: Run
    regions: Annotated[tuple[RegionTable, ...], Meta(min_length=1)] = msgspec.field(name="region")
    links: tuple[LinkTable, ...] = msgspec.field(name="link", default=())
    streams: Annotated[tuple[Stream, ...], Meta(min_length=1)] = msgspec.field(name="stream")
    publishers: tuple[PublisherTable, ...] = msgspec.field(name="publisher", default=())
    faults: tuple[AnyFault, ...] = msgspec.field(name="fault", default=())
    swarm: Swarm | None = None
    protocol: ProtocolTable = ProtocolTable()
    fabric: FabricChoice = FabricChoice()
    service: ServiceTable = ServiceTable()
    disk: DiskTable = DiskTable()

    @property
    def quiet_after(self) -> float:
        """When faults and load end: at heal_after, or with the run."""
        run = self.scenario
        return run.seconds if run.heal_after is None else run.heal_after

    def region(self, name: str) -> RegionTable:
        """The region of that name."""
        return next(region for region in self.regions if region.name == name)

    def stream(self, name: str) -> Stream:
        """The stream of that name."""
        return next(stream for stream in self.streams if stream.name == name)

    def link(self, a: str, b: str) -> LinkTable:
        """The link between two regions, whichever way round it was written."""
        return next(link for link in self.links if {link.a, link.b} == {a, b})


def read_fabric(document: Document) -> tuple[FabricChoice, dict[str, Any]]:
    """The choice in the table ``[fabric]`` of a scenario or cluster file, and the rest of the file."""
    rest = {name: value for name, value in document.data.items() if name != "fabric"}
    table = document.data.get("fabric", {})
    if not isinstance(table, dict):
        raise document.error("fabric", "must be a table")
    kind = table.get("kind", FabricChoice().kind)
    if not isinstance(kind, str):
        raise document.error("fabric.kind", f"must be one of {', '.join(names())}")
    try:
        family = family_of(kind)
    except BadInput as error:
        raise document.error("fabric.kind", str(error)) from error
    shape = msgspec.defstruct("FabricFile", [("fabric", family.options)])
    options = {name: value for name, value in table.items() if name != "kind"}
    document.convert(shape, {"fabric": options})
    return choose(kind, **options), rest


def load(path: str | Path) -> Scenario:
    """Read a scenario file; raises BadInput with one line that says what is wrong where."""
    document = Document.read(path)
    fabric, rest = read_fabric(document)
    scenario = msgspec.structs.replace(_completed(document.convert(Scenario, rest)), fabric=fabric)
    first = next(_problems(scenario), None)
    if first is not None:
        raise document.error(*first)
    return scenario


def _completed(scenario: Scenario) -> Scenario:
    """Fill in what depends on other keys: publishers' names and when they stop."""
    end = scenario.quiet_after
    publishers = tuple(
        msgspec.structs.replace(each, name=each.name or f"{each.region}-pub{at}", stop=min(each.stop, end))
        for at, each in enumerate(scenario.publishers)
    )
    return msgspec.structs.replace(scenario, publishers=publishers)


# --- what types alone cannot say: each problem is (path of the key, what is allowed) -----------------------

Problems: TypeAlias = Iterator[tuple[str, str]]


def _problems(scenario: Scenario) -> Problems:
    yield from _twice("region", [region.name for region in scenario.regions])
    yield from _twice("stream", [stream.name for stream in scenario.streams])
    yield from _twice("publisher", [publisher.name for publisher in scenario.publishers])
    yield from _run_problems(scenario)
    yield from _link_problems(scenario)
    yield from _stream_problems(scenario)
    for at, fault in enumerate(scenario.faults):
        yield from _fault_problems(scenario, f"fault[{at}]", fault)


def _twice(table: str, names: Sequence[str]) -> Problems:
    for at, name in enumerate(names):
        if name in names[:at]:
            yield f"{table}[{at}].name", "is used twice; every name must be different"


def _one_of(names: Sequence[str]) -> str:
    return "must be one of " + ", ".join(names)


def _run_problems(scenario: Scenario) -> Problems:
    run = scenario.scenario
    if run.heal_after is not None and run.heal_after >= run.seconds:
        yield "scenario.heal_after", f"must be before the end, scenario.seconds = {run.seconds:g}"
    if scenario.swarm is not None and scenario.swarm.start >= run.seconds:
        yield "swarm.start", f"must be before the end, scenario.seconds = {run.seconds:g}"


def _link_problems(scenario: Scenario) -> Problems:
    names = [region.name for region in scenario.regions]
    linked: set[tuple[str, str]] = set()
    for at, link in enumerate(scenario.links):
        for key, end in (("a", link.a), ("b", link.b)):
            if end not in names:
                yield f"link[{at}].{key}", _one_of(names)
        if link.a == link.b:
            yield f"link[{at}].b", "must be another region than a; use the region's latency for links inside it"
        if (link.a, link.b) in linked:
            yield f"link[{at}]", "is the second link between these regions; one is allowed"
        if (link.jitter == "constant") != (link.sd == 0):
            yield f"link[{at}].sd", 'must be 0 with jitter = "constant" and more than 0 with another jitter'
        linked |= {(link.a, link.b), (link.b, link.a)}
    for at, name in enumerate(names):
        missing = [other for other in names if other != name and (name, other) not in linked]
        if missing:
            add = f'add [[link]] with a = "{name}", b = "{missing[0]}" and a latency'
            yield f"region[{at}].name", f"has no link to {', '.join(missing)}; every two regions need one: {add}"


def _stream_problems(scenario: Scenario) -> Problems:
    regions = [region.name for region in scenario.regions]
    policies: dict[str, GcPolicy] = {}
    for at, stream in enumerate(scenario.streams):
        if stream.region not in regions:
            yield f"stream[{at}].region", _one_of(regions)
        try:
            policies[stream.name] = GcPolicy.parse(stream.gc)
        except BadInput as error:
            yield f"stream[{at}].gc", str(error)
            continue
        if policies[stream.name].by_key and stream.rows == "counted":
            yield f"stream[{at}].gc", 'needs rows = "arrow": counted rows have no keys'
    for at, publisher in enumerate(scenario.publishers):
        key = f"publisher[{at}]"
        if publisher.region not in regions:
            yield f"{key}.region", _one_of(regions)
        if publisher.stream not in policies:
            yield f"{key}.stream", _one_of(list(policies))
            continue
        if policies[publisher.stream].by_key and publisher.keys == 0:
            yield f"{key}.keys", f'must be at least 1: stream "{publisher.stream}" collects by key'
        if publisher.keys and scenario.stream(publisher.stream).rows == "counted":
            yield f"{key}.keys", f'must be 0: stream "{publisher.stream}" has counted rows, which have no keys'
        if publisher.start >= publisher.stop:
            yield f"{key}.start", f"must be before the publisher stops, at {publisher.stop:g} s"


def _fault_problems(scenario: Scenario, key: str, fault: AnyFault) -> Problems:
    regions = [region.name for region in scenario.regions]
    if fault.at >= scenario.quiet_after:
        yield f"{key}.at", f"must be before the faults end, at {scenario.quiet_after:g} s"
    match fault:
        case Cut(a=a, b=b) | Noise(a=a, b=b) | Heal(a=a, b=b):
            for field, name in (("a", a), ("b", b)):
                if name not in regions and not (a is None and b is None):
                    yield f"{key}.{field}", _one_of(regions)
            if a == b and a is not None:
                yield f"{key}.b", "must be another region than a"
        case Kill(node=node) | Restart(node=node) | Pause(node=node) | Skew(node=node):
            yield from _node_problems(scenario, f"{key}.node", node)
        case Partition(nodes=nodes):
            for at, node in enumerate(nodes):
                yield from _node_problems(scenario, f"{key}.nodes[{at}]", node)
        case AddReplica(region=region) | StopAll(region=region) | StartAll(region=region):
            if region not in regions:
                yield f"{key}.region", _one_of(regions)


def _node_problems(scenario: Scenario, key: str, node: str) -> Problems:
    found = re.fullmatch(r"([^/]+)/(?:(head|middle|tail)|p(\d+)|c(\d+))", node)
    region = next((each for each in scenario.regions if found and each.name == found[1]), None)
    if found is None or region is None:
        names = ", ".join(each.name for each in scenario.regions)
        yield (
            key,
            f"must be REGION/pN, REGION/cN, REGION/head, REGION/middle or REGION/tail, with REGION one of {names}",
        )
        return
    added = sum(isinstance(fault, AddReplica) and fault.region == region.name for fault in scenario.faults)
    replicas = region.replicas + added
    if found[3] and int(found[3]) >= replicas:
        yield key, f"must be one of {region.name}/p0 ... {region.name}/p{replicas - 1}"
    if found[4] and int(found[4]) >= region.clients:
        yield key, f"must name a client below {region.clients}, the number of clients in {region.name}"
