"""What a seed of a Gryphon campaign stands for: regions, brokers, applications and settings, and how it is broken.

Everything is drawn from the seed. Two moods: *calm* (nothing breaks: then nobody may ask for anything again) and
*swarm* (faults.py). Worlds are as small as they may be. The nodes of a region are in three places of the network, so
that the paths between its brokers can be bad while its chain and its clients are well connected.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from msgspec.structs import replace

from tidings.campaign.gryphon.applications import ATTRS, Line, ReadingApp, Wanting, WritingApp
from tidings.campaign.gryphon.merges import MergePlan, MergingApp
from tidings.client.machine import ClientMachine, MachineSettings
from tidings.core.ids import NodeId, RegionId
from tidings.protocols.brokers.broker_messages import BrokerSettings
from tidings.protocols.brokers.messages import EARLIEST, LATEST, SubscriptionSettings
from tidings.protocols.nodes.edge import EdgeSettings
from tidings.protocols.nodes.relay import RelaySettings
from tidings.protocols.services.promises import PromiseSettings
from tidings.sim import scenario as plans
from tidings.sim.brokers import add_cell, add_edge
from tidings.sim.build import Deployment
from tidings.sim.network import SimPath
from tidings.sim.scenario import Scenario

Mood = Literal["calm", "swarm"]

BEGIN, HEAL = 3.0, 15.0  # of the load and the faults; then all is mended, and the rest comes
SECONDS = 40.0  # at most
HOP = 0.001
PROMISES = PromiseSettings(period=0.1)
"""A world takes fewer steps."""

FILTERS = (
    *("", "", "n = 3", "n IN (1, 5, 7, 29)", "NOT n = 3", "n >= 10 AND n < 20", "n IS NULL", "place LIKE 'h%'"),
    *(
        "NOT (n > 5 OR place = 'here')",
        "place = 'here' AND n > 3",
        "key = 'k1' OR n > 27",
        "NOT place IN ('here', 'x')",
    ),
    *(
        "seq IN (5, 6, 7, 100, 101, 250)",
        "seq > 40 AND seq < 120",
        "key IS NULL AND NOT n < 12",
        "n <=> NULL OR seq < 9",
    ),
)


@dataclass
class Site:
    """One region: its chain, its cells with the members of each, its edges, and its applications."""

    name: RegionId
    replicas: int
    cells: dict[str, tuple[NodeId, ...]] = field(default_factory=dict)
    above: dict[str, str] = field(default_factory=dict)  # of each cell and edge: the cell above; "": the replicas
    edges: list[NodeId] = field(default_factory=list)
    readers: dict[NodeId, list[Wanting]] = field(default_factory=dict)
    mergers: dict[NodeId, MergePlan] = field(default_factory=dict)

    @property
    def relays(self) -> list[NodeId]:
        """All of them."""
        return [node for members in self.cells.values() for node in members]

    @property
    def brokers(self) -> str:
        """Where in the network its relays and edges are."""
        return f"{self.name}~brokers"

    @property
    def clients(self) -> str:
        """Where its applications are."""
        return f"{self.name}~clients"


class Plan:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"gryphon/{seed}")
        self.mood: Mood = rng.choices(("calm", "swarm"), (1, 5))[0]
        self.sites = [self._site(name) for name in ("east", "west")[: rng.choice([1, 2])]]
        self.streams = tuple([self._stream(at) for at in range(rng.choice([2, 3]))])
        self.deleted = self.streams[-1].name if rng.random() < 0.25 else ""
        for site in self.sites:
            names = [f"{site.name}/app{at}" for at in range(rng.randint(6, 12) // len(self.sites))]
            site.readers = {name: [self._wish(name, at) for at in range(rng.choice([1, 1, 2]))] for name in names}
        self.order = random.Random(f"gryphon/order/{seed}")  # a generator of its own: other seeds stay the same
        self.skew = 0.0  # seconds by which the clocks of replicas are wrong at most
        if self.order.random() < 0.5:
            self._merge()
        calm = self.mood == "calm"
        self.broker = BrokerSettings(
            dct=0.0 if calm else rng.choice([0.0, 0.0, 1.0]),
            aet=rng.choice([2.0, 3.0]),
            silence=rng.choice([0.2, 1.0]),
            chop=rng.choice([4, 32, 256]),
            ranges=4096 if calm else rng.choice([16, 4096]),
            room=64 << 20 if calm else rng.choice([20_000, 100_000, 64 << 20]),
        )
        self.subscriptions = SubscriptionSettings(window=rng.choice([4, 16, 1024]), chunk_rows=rng.choice([16, 16_384]))
        self.edge = EdgeSettings(
            broker=self.broker,
            subscriptions=self.subscriptions,
            room=rng.choice([8_000, 60_000, 32 << 20]),
            catching_up=rng.choice([1, 2, 256]),
        )

    def _site(self, name: RegionId) -> Site:
        """Cells of two relays in zero to two levels, and edges below the lowest ones."""
        rng = self.rng
        site = Site(name, rng.choice([1, 2, 3]))
        lowest = [""]
        for level in range(rng.choice([0, 1, 1, 2])):
            cells = [f"{name}/cell{level}{at}" for at in range(rng.choice([1, 2]))]
            for cell in cells:
                site.cells[cell] = tuple([f"{cell}/b{at}" for at in range(2)])
                site.above[cell] = rng.choice(lowest)
            lowest = cells
        for at in range(rng.choice([2, 3, 4])):
            site.edges.append(f"{name}/e{at}")
            site.above[site.edges[-1]] = lowest[at % len(lowest)]
        return site

    def _stream(self, at: int) -> plans.Stream:
        gc = self.rng.choice(["none", "none", "by-key", "keep-last:40"])
        return plans.Stream(f"s{at}", self.sites[at % len(self.sites)].name, gc=gc)

    def _wish(self, name: NodeId, number: int) -> Wanting:
        rng = self.rng
        begin = rng.uniform(BEGIN, HEAL - 4.0)
        slow = (begin, begin + rng.uniform(1.0, 4.0)) if rng.random() < 0.3 else (0.0, 0.0)
        return Wanting(
            stream=rng.choice(self.streams).name,
            where=rng.choice(FILTERS),
            lo=rng.choice([EARLIEST, EARLIEST, LATEST, rng.randint(1, 20)]),
            at=rng.choice([2.5, rng.uniform(BEGIN, HEAL)]),
            name=f"{name}/{number}" if rng.random() < 0.2 else None,
            slow=slow,
        )

    def _merge(self) -> None:
        """Some applications merge streams; then clocks may be wrong."""
        rng = self.order
        there = [(each.name, each.region) for each in self.streams if each.name != self.deleted]
        self.skew = rng.choice([0.0, 2.0])
        for site in self.sites:
            for at in range(2):
                begin = rng.uniform(BEGIN, HEAL - 4.0)
                site.mergers[f"{site.name}/merge{at}"] = MergePlan(
                    streams=tuple(rng.sample(there, rng.randint(min(2, len(there)), len(there)))),
                    where=rng.choice(["", "", rng.choice(FILTERS)]),
                    at=rng.choice([2.5, rng.uniform(BEGIN, HEAL)]),
                    lo=rng.choice([EARLIEST, EARLIEST, LATEST]),
                    slow=(begin, begin + 2.0) if rng.random() < 0.3 else (0.0, 0.0),
                )

    # --- the world ----------------------------------------------------------------------------------------

    def deploy(self) -> Deployment:
        """Its nodes in a world."""
        names = [site.name for site in self.sites]
        scenario = Scenario(
            scenario=plans.Run(f"gryphon-{self.seed}", SECONDS, self.seed, heal_after=HEAL),
            regions=tuple([plans.RegionTable(site.name, replicas=site.replicas) for site in self.sites]),
            links=tuple([plans.LinkTable(names[0], each, self.rng.uniform(0.005, 0.05)) for each in names[1:]]),
            streams=self.streams,
        )
        deployment = Deployment(scenario, self.seed, trace=False)
        deployment.settings = replace(
            deployment.settings, broker=self.broker, subscriptions=self.subscriptions, promises=PROMISES
        )
        deployment.streams[:] = [replace(stream, attrs=ATTRS) for stream in deployment.streams]
        for site in self.sites:
            self._populate(deployment, site)
        return deployment

    def _populate(self, deployment: Deployment, site: Site) -> None:
        name, world = site.name, deployment.world
        replicas = tuple(deployment.replicas[name])
        members = {"": replicas, **site.cells}
        for cell, relays in site.cells.items():
            upstream = members[site.above[cell]]
            add_cell(deployment, name, cell, relays, upstream, RelaySettings(self.broker), site.brokers)
        for edge in site.edges:
            add_edge(deployment, name, edge, members[site.above[edge]], self.edge, site.brokers)
        deployment.add(self.author(name), site.clients, partial(self._author, deployment, site, replicas))
        for reader, wishes in site.readers.items():
            deployment.add(reader, site.clients, partial(self._reader, reader, replicas, wishes))
        for merger, merged in site.mergers.items():
            deployment.add(merger, site.clients, partial(self._merger, merger, replicas, merged))
        for node in replicas:
            world.at(0.5, partial(world.set_clock, node, self.order.uniform(-self.skew, self.skew)))
        for a, b in ((name, site.brokers), (name, site.clients), (site.brokers, site.clients)):
            world.connect(a, b, SimPath(latency=HOP))

    @staticmethod
    def author(region: RegionId) -> NodeId:
        """Who publishes to the streams of a region."""
        return f"{region}/author"

    def _author(
        self,
        deployment: Deployment,
        site: Site,
        seeds: tuple[NodeId, ...],
        durable: list[Any],
        life: int,
        rng: random.Random,
    ) -> WritingApp:
        me = self.author(site.name)
        own = [stream for stream in deployment.streams if stream.region == site.name]
        lines = [
            Line(
                stream=stream,
                period=rng.choice([0.1, 0.15, 0.3]),
                keys=rng.choice([0, 3, 20]),
                collect=rng.choice([0.0, 0.02]),
                stop=HEAL - 3.0 if stream.name == self.deleted else HEAL,
                delete=stream.name == self.deleted,
                due=2.0,
            )
            for stream in own
        ]
        return WritingApp(me, ClientMachine(me, me, seeds, MachineSettings(), rng), lines, rng)

    def _reader(
        self,
        me: NodeId,
        seeds: tuple[NodeId, ...],
        wishes: list[Wanting],
        durable: list[Any],
        life: int,
        rng: random.Random,
    ) -> ReadingApp:
        settings = MachineSettings(subscriptions=self.subscriptions)
        return ReadingApp(me, seeds, wishes, settings, life, rng)

    def _merger(
        self,
        me: NodeId,
        seeds: tuple[NodeId, ...],
        merged: MergePlan,
        durable: list[Any],
        life: int,
        rng: random.Random,
    ) -> MergingApp:
        return MergingApp(me, seeds, merged, MachineSettings(subscriptions=self.subscriptions), rng)
