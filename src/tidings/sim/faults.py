"""Every fault of a simulation, as one struct of options, and a timetable drawn from it.

`Faults` says how strong each kind is. `Faults.swarm` draws a mixture in which each kind is off with even odds, because
a run with a few kinds at a time reaches states that all kinds together never do. `schedule` turns it into timed events,
all of which end with the phase; then comes the healed phase, in which the world must converge. `apply` writes the
timetable into a world. Everything is drawn from the given generator in a fixed order, over sorted names.

The faults stay within what the protocol promises to survive. A crash keeps what the disk has synced, so all replicas of
a region may be down at once and come back (region_stop). One node is never hit by two outages at the same time (crash,
restart, pause, region_stop, config_outage, disk_loss), one path never by two changes of the same kind. Clients may
leave for good; replicas and configuration services always return. `swarm` never draws ``disk_loss``; a caller asks for
it. One replica of each region is then spared. The caller chooses a rate at which the chain, with the spared replica in
it, has healed before the next loss.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, TypeAlias

import msgspec

from tidings.core.ids import NodeId, RegionId
from tidings.sim.world import World

Spawn: TypeAlias = Callable[[str, RegionId, NodeId], None]
"""(role, region, name): adds a node to the world; the role is "replica" or "client"."""

OFF = 0.5
"""Odds that a swarm leaves a kind out; ours, because even odds make all mixtures of kinds equally likely."""
SHORTEST = 0.02
"""Seconds an outage lasts at least; ours, because it should outlive some messages (1 ms inside a region, SP3)."""


class Cast(msgspec.Struct, frozen=True):
    """Who plays what: nodes by region."""

    replicas: Mapping[RegionId, tuple[NodeId, ...]]
    clients: Mapping[RegionId, tuple[NodeId, ...]] = {}
    config: Mapping[RegionId, tuple[NodeId, ...]] = {}

    @property
    def regions(self) -> list[RegionId]:
        return sorted({*self.replicas, *self.clients, *self.config})

    def servers(self, region: RegionId) -> list[NodeId]:
        """Replicas and configuration service of a region."""
        return sorted([*self.replicas.get(region, ()), *self.config.get(region, ())])

    def nodes(self) -> list[NodeId]:
        """Everybody."""
        groups = [*self.replicas.values(), *self.clients.values(), *self.config.values()]
        return sorted(node for group in groups for node in group)


class FaultEvent(msgspec.Struct, frozen=True):
    """One fault: it holds in [at, until). What the targets are and what args say depends on the kind (see `_BEGIN`)."""

    at: float
    kind: str
    target: tuple[str, ...]
    args: dict[str, Any]
    until: float


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How much of each kind. Shares are of messages on a path that is hit; rates are events per simulated second."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    jitter: str = "constant"  # the shape of latency on a path that is hit: constant (off), normal, lognormal, pareto
    jitter_spread: float = 0.005  # seconds
    partition: float = 0.0
    one_way: float = 0.0  # asymmetric partitions
    cut: float = 0.0
    pause: float = 0.0
    crash: float = 0.0  # of replicas; they restart after the outage
    restart: float = 0.0  # crash and restart at once
    clock: float = 0.0
    clock_offset: float = 0.5  # seconds, largest
    clock_drift: float = 0.01  # largest
    slow_disk: float = 0.0
    full_disk: float = 0.0
    region_stop: float = 0.0  # all servers of a region
    replica_added: float = 0.0
    churn: float = 0.0  # a client leaves for good, another joins
    config_outage: float = 0.0
    disk_loss: float = 0.0  # only if asked for
    outage: float = 1.0  # mean seconds that an outage lasts

    SHARES: ClassVar[dict[str, float]] = {"loss": 0.2, "duplication": 0.1, "reordering": 0.2}
    RATES: ClassVar[dict[str, float]] = {
        "partition": 0.3,
        "one_way": 0.3,
        "cut": 0.3,
        "pause": 0.5,
        "crash": 0.5,
        "restart": 0.5,
        "clock": 0.5,
        "slow_disk": 0.3,
        "full_disk": 0.1,
        "region_stop": 0.1,
        "replica_added": 0.1,
        "churn": 0.5,
        "config_outage": 0.2,
    }
    """The most that a swarm draws; ours, because an outage of a second every few seconds keeps several in flight at
    once and still lets work be done between them."""

    @classmethod
    def swarm(cls, rng: random.Random) -> Faults:
        """Draw which kinds are on, and how strong."""
        drawn: dict[str, Any] = {}
        for kind, most in {**cls.SHARES, **cls.RATES}.items():
            on, strength = rng.random() >= OFF, rng.uniform(0.1, 1.0) * most
            drawn[kind] = strength if on else 0.0
        on, shape = rng.random() >= OFF, rng.choice(["normal", "lognormal", "pareto"])
        drawn["jitter"] = shape if on else "constant"
        drawn["jitter_spread"] = rng.uniform(0.0005, 0.02)
        drawn["outage"] = rng.choice([0.1, 0.5, 2.0])
        return cls(**drawn)


# --- the timetable --------------------------------------------------------------------------------------


class _Draft:
    """A timetable in the making; keeps apart what must not overlap."""

    def __init__(self, faults: Faults, rng: random.Random, cast: Cast, begin: float, end: float) -> None:
        self.faults = faults
        self.rng = rng
        self.cast = cast
        self.begin = begin
        self.end = end
        self.events: list[FaultEvent] = []
        self._taken: dict[tuple[str, ...], list[tuple[float, float]]] = {}

    def times(self, rate: float) -> Iterable[float]:
        """A Poisson process over the phase."""
        at = self.begin
        while rate > 0.0 and (at := at + self.rng.expovariate(rate)) < self.end:
            yield at

    def outage(self, at: float) -> float:
        """When an outage that begins at a time is over."""
        return min(self.end, at + SHORTEST + self.rng.expovariate(1.0 / self.faults.outage))

    def add(
        self,
        at: float,
        until: float,
        kind: str,
        target: Iterable[str],
        resources: Iterable[tuple[str, ...]],
        **args: Any,
    ) -> None:
        """Enter an event, unless one of its resources is taken at that time."""
        wanted = list(resources)
        if any(lo < until and at < hi for each in wanted for lo, hi in self._taken.get(each, ())):
            return
        for each in wanted:
            self._taken.setdefault(each, []).append((at, max(until, at + SHORTEST)))
        self.events.append(FaultEvent(at, kind, tuple(target), args, until))


def schedule(faults: Faults, rng: random.Random, cast: Cast, begin: float, end: float) -> list[FaultEvent]:
    """Draw the faults of the phase [begin, end), ordered by time; all are over at its end."""
    draft = _Draft(faults, rng, cast, begin, end)
    _weather(draft)
    _separations(draft)
    _outages(draft)
    _membership(draft)
    return sorted(draft.events, key=lambda event: (event.at, event.until, event.kind, event.target))


def _weather(draft: _Draft) -> None:
    """Paths that lose, double, reorder or delay messages, each for a stretch of the phase."""
    faults, rng = draft.faults, draft.rng
    kinds: list[tuple[str, dict[str, Any]]] = [
        (kind, {kind: getattr(faults, kind)}) for kind in Faults.SHARES if getattr(faults, kind)
    ]
    if faults.jitter != "constant":
        kinds.append(("jitter", {"shape": faults.jitter, "spread": faults.jitter_spread}))
    regions = draft.cast.regions
    paths = [(a, b) for at, a in enumerate(regions) for b in regions[at:]]
    for kind, changes in kinds:
        for path in sorted(rng.sample(paths, rng.randint(1, len(paths)))):
            at, until = sorted((rng.uniform(draft.begin, draft.end), rng.uniform(draft.begin, draft.end)))
            draft.add(at, until, kind, path, [(kind, *path)], **changes)


def _separations(draft: _Draft) -> None:
    """Cut links and partitions between drawn sets of nodes."""
    faults, rng, regions, nodes = draft.faults, draft.rng, draft.cast.regions, draft.cast.nodes()
    for at in draft.times(faults.cut if len(regions) > 1 else 0.0):
        a, b = sorted(rng.sample(regions, 2))
        draft.add(at, draft.outage(at), "cut", (a, b), [("cut", a, b)])
    for kind in ("partition", "one_way"):
        for at in draft.times(getattr(faults, kind) if len(nodes) > 1 else 0.0):
            left = sorted(rng.sample(nodes, rng.randint(1, max(1, len(nodes) // 2))))
            draft.add(at, draft.outage(at), kind, left, [])


def _outages(draft: _Draft) -> None:
    """What happens to single nodes, and to all servers of a region."""
    faults, rng, cast = draft.faults, draft.rng, draft.cast
    replicas = sorted(node for group in cast.replicas.values() for node in group)
    config = sorted(node for group in cast.config.values() for node in group)
    spared = {rng.choice(sorted(cast.replicas[region])) for region in sorted(cast.replicas) if cast.replicas[region]}
    losable = [node for node in replicas if node not in spared]
    homes = [region for region in cast.regions if cast.servers(region)]
    for at in draft.times(faults.region_stop if homes else 0.0):
        servers = cast.servers(rng.choice(homes))
        draft.add(at, draft.outage(at), "region_stop", servers, [("up", node) for node in servers])
    pools = {
        "crash": replicas,
        "restart": replicas,
        "pause": cast.nodes(),
        "config_outage": config,
        "disk_loss": losable,
    }
    for kind, pool in pools.items():
        for at in draft.times(getattr(faults, kind) if pool else 0.0):
            node, until = rng.choice(pool), draft.outage(at)
            draft.add(at, at if kind == "restart" else until, kind, (node,), [("up", node)])
    for at in draft.times(faults.clock):
        node, until = rng.choice(cast.nodes()), draft.outage(at)
        offset = rng.uniform(-faults.clock_offset, faults.clock_offset)
        drift = rng.uniform(-faults.clock_drift, faults.clock_drift)
        draft.add(at, until, "clock", (node,), [("clock", node)], offset=offset, drift=drift)
    for kind in ("slow_disk", "full_disk"):
        for at in draft.times(getattr(faults, kind) if replicas else 0.0):
            node, until, factor = rng.choice(replicas), draft.outage(at), 10.0 ** rng.uniform(0.5, 3.0)
            args = {"factor": factor} if kind == "slow_disk" else {}
            draft.add(at, until, kind, (node,), [(kind, node)], **args)


def _membership(draft: _Draft) -> None:
    """Replicas that are added, clients that leave and join."""
    rng, cast = draft.rng, draft.cast
    homes = sorted(region for region, group in cast.replicas.items() if group)
    for number, at in enumerate(draft.times(draft.faults.replica_added if homes else 0.0)):
        region = rng.choice(homes)
        draft.add(at, at, "replica_added", (region,), [], name=f"{region}-added-{number}")
    present = {region: sorted(group) for region, group in cast.clients.items()}
    peopled = sorted(region for region, group in present.items() if group)
    for number, at in enumerate(draft.times(draft.faults.churn if peopled else 0.0)):
        region = rng.choice(peopled)
        leaver = present[region].pop(rng.randrange(len(present[region])))
        name = f"{region}-joined-{number}"
        present[region].append(name)
        draft.add(at, at, "churn", (region,), [], leaver=leaver, name=name)


# --- carrying it out ------------------------------------------------------------------------------------


def apply(world: World, events: Iterable[FaultEvent], spawn: Spawn | None = None) -> None:
    """Write a timetable into a world. ``spawn`` adds the nodes of replica_added and churn; without it nobody joins."""
    for event in events:
        world.at(event.at, partial(_begin, world, event, spawn))


def _begin(world: World, event: FaultEvent, spawn: Spawn | None) -> None:
    """Let a fault begin, and enter its end."""
    end: Callable[[], None] | None = None
    if event.kind in ("jitter", "region_stop", "config_outage", "disk_loss"):  # the world counts all the others itself
        world.fault_counts[event.kind] += 1
    match event.kind:
        case "loss" | "duplication" | "reordering" | "jitter":
            a, b = event.target
            before: dict[str, Any] = dict.fromkeys(event.args)
            world.impair(a, b, **event.args)
            end = partial(world.impair, a, b, **before)
        case "cut":
            world.cut(*event.target)
            end = partial(world.heal, *event.target)
        case "partition" | "one_way":
            rest = [name for name in world.hosts if name not in event.target]
            end = partial(world.rejoin, world.partition(event.target, rest, one_way=event.kind == "one_way"))
        case "crash" | "region_stop" | "config_outage" | "disk_loss" | "restart":
            for node in event.target:
                world.crash(node, lose_disk=event.kind == "disk_loss")
            end = partial(_restart, world, event.target)
        case "pause":
            world.pause(event.target[0], event.until - event.at)
        case "clock":
            world.set_clock(event.target[0], **event.args)
            end = partial(world.set_clock, event.target[0])
        case "slow_disk":
            world.slow_disk(event.target[0], event.args["factor"])
            end = partial(world.slow_disk, event.target[0], 1.0)
        case "full_disk":
            world.full_disk(event.target[0], True)
            end = partial(world.full_disk, event.target[0], False)
        case "replica_added" | "churn":
            _exchange(world, event, spawn)
        case unknown:
            raise ValueError(f"unknown kind of fault {unknown!r}: see Faults for the kinds there are")
    if end is not None:
        world.at(event.until, end)


def _restart(world: World, nodes: Iterable[NodeId]) -> None:
    for node in nodes:
        world.restart(node)


def _exchange(world: World, event: FaultEvent, spawn: Spawn | None) -> None:
    if event.kind == "churn" and event.args["leaver"] in world.hosts:
        world.remove(event.args["leaver"])
    if spawn is not None:
        world.fault_counts[event.kind] += 1
        spawn("client" if event.kind == "churn" else "replica", event.target[0], event.args["name"])
