"""From a scenario to a world: every node of every region, its links, its load, and the scripted faults.

Node names: ``r0/p1`` the second replica of r0's proxy, ``r0/c7`` a client, ``r0/config`` the configuration service,
``r0/w0`` a client that publishes, ``r0/q0`` a query that writes through a sink. ``r0/head``, ``r0/middle``, ``r0/tail``
are resolved when a fault strikes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace

from tidings.core.ids import NodeId, RegionId
from tidings.protocols.fabrics.family import FabricChoice
from tidings.protocols.fabrics.pull_fabric import PullFabricMember
from tidings.protocols.nodes.client import Client, ClientSettings
from tidings.protocols.nodes.replica import Replica, ReplicaSettings
from tidings.protocols.regions.interregion import InterRegionSettings
from tidings.protocols.replication.chain import ChainSettings
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Configuration, ConfigurationSettings
from tidings.protocols.services.catalog import StreamDef
from tidings.protocols.services.publishing import Publisher, PublishSettings
from tidings.protocols.services.sinks import SinkSettings
from tidings.sim import scenario as plans
from tidings.sim.disk import DiskModel
from tidings.sim.faults import Cast, FaultEvent, Faults, apply, schedule
from tidings.sim.network import ServiceTimes, SimPath
from tidings.sim.recorder import Recorder
from tidings.sim.scenario import Scenario
from tidings.sim.sinks import SinkPlan, SinkWriter
from tidings.sim.workload import Writer
from tidings.sim.world import Factory, World

Note: TypeAlias = Callable[[str, str, float, float], None]
"""(node, name, value, bound): a gauge."""


class Deployment:
    """The nodes of a scenario in a world, by what they are."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        record: bool = True,
        check: bool = True,
        trace: bool = True,
        chain: ChainSettings | None = None,
        publish: PublishSettings | None = None,
        sinks: Sequence[SinkPlan] = (),
        sinking: SinkSettings | None = None,
    ) -> None:
        self.scenario = scenario
        self.seed = seed
        self.world = World(seed, record=record, check=check, trace=trace)
        self.streams = [
            StreamDef(stream.name, stream.region, stream.gc, stream.event_bytes * (stream.rows == "counted"), at)
            for at, stream in enumerate(scenario.streams)
        ]
        self.memberships = {
            region.name: ChainConfig(region.name, 1, tuple(f"{region.name}/p{at}" for at in range(region.replicas)))
            for region in scenario.regions
        }
        self.replicas: dict[RegionId, list[NodeId]] = {region.name: [] for region in scenario.regions}
        self.clients: dict[RegionId, list[NodeId]] = {region.name: [] for region in scenario.regions}
        self.services: dict[RegionId, NodeId] = {name: f"{name}/config" for name in self.memberships}
        self.writers: list[NodeId] = []
        self.region_of: dict[NodeId, RegionId] = {}
        self.recorder = Recorder(self.streams, self.region_of)
        if record:
            self.world.observers.append(self.recorder)
        self.settings = replace(
            _replica_settings(scenario, chain or ChainSettings(), publish or PublishSettings()),
            sinks=sinking or SinkSettings(),
        )
        self.sinks: list[NodeId] = []
        self._connect()
        for region in scenario.regions:
            self._populate(region)
        for publisher in scenario.publishers:
            self._add_writer(publisher)
        for sink in sinks:
            self._add_sink(sink)
        for fault in scenario.faults:
            self.world.at(fault.at, partial(self.strike, fault))
        if scenario.protocol.warm_views:
            self.world.at(0.0, self._fill_views)

    # --- construction -----------------------------------------------------------------------------------

    def _connect(self) -> None:
        for region in self.scenario.regions:
            self.world.connect(region.name, region.name, SimPath(latency=region.latency))
        shapes: dict[str, Any] = {"constant": "constant", "normal": "normal", "heavy": "pareto"}
        for link in self.scenario.links:
            path = SimPath(
                latency=link.latency,
                shape=shapes[link.jitter],
                spread=link.sd,
                bandwidth=link.bandwidth,
                loss=link.loss,
                duplication=link.duplicate,
                reordering=link.reorder,
            )
            self.world.connect(link.a, link.b, path)

    def _populate(self, region: plans.RegionTable) -> None:
        name = region.name
        initial = self.memberships[name]

        def service(durable: list[Any], incarnation: int, rng: random.Random) -> Configuration:
            return Configuration(initial, ConfigurationSettings(), durable)

        self._node(self.services[name], name, service, disk=self._disk())
        for _ in range(region.replicas):
            self.add_replica(name)
        for at in range(region.clients):
            node = f"{name}/c{at}"
            self.clients[name].append(node)
            self._add_client(node, region, self._client)

    def _node(self, node: NodeId, region: RegionId, factory: Any, **place: Any) -> None:
        self.region_of[node] = region
        costs = self.scenario.service
        service = ServiceTimes(costs.per_message, costs.per_event, costs.per_batch, costs.per_wake)
        self.world.add_node(node, region, factory, service=service, **place)

    def add(self, node: NodeId, region: RegionId, factory: Factory) -> None:
        """A node of another kind, without a disk."""
        self._node(node, region, factory)

    def _disk(self) -> DiskModel:
        disk = self.scenario.disk
        return DiskModel(sync=disk.sync, spread=disk.spread, torn=disk.torn)

    def spawn(self, role: str, region: RegionId, name: str) -> None:
        """Add a replica or a client while the world runs."""
        if role == "replica":
            self.add_replica(region)
        else:
            self.clients[region].append(name)
            self._add_client(name, self.scenario.region(region), self._client)

    def add_replica(self, region: RegionId) -> NodeId:
        """A new, empty replica; it joins by itself unless it is in the first configuration."""
        node = f"{region}/p{len(self.replicas[region])}"
        self.replicas[region].append(node)
        peers = {name: membership for name, membership in self.memberships.items() if name != region}
        plan = self.scenario.region(region)

        def replica(durable: list[Any], incarnation: int, rng: random.Random) -> Replica:
            return Replica(node, region, self.services[region], self.streams, peers, self.settings, durable, rng)

        self._node(node, region, replica, uplink=plan.proxy_uplink, downlink=plan.proxy_downlink, disk=self._disk())
        return node

    def _client(self, node: NodeId, region: RegionId, rng: random.Random, publisher: Publisher | None = None) -> Client:
        settings = ClientSettings(fabric=self.settings.fabric)
        horizons = {stream.name: 1 for stream in self.streams}
        return Client(node, region, self.memberships[region], horizons, settings, rng, publisher)

    def _add_client(self, node: NodeId, region: plans.RegionTable, make: Any) -> None:
        def client(durable: list[Any], incarnation: int, rng: random.Random) -> Any:
            return make(node, region.name, rng)

        self._node(node, region.name, client, uplink=region.client_uplink, downlink=region.client_downlink)

    def _add_writer(self, plan: plans.PublisherTable) -> None:
        node = f"{plan.region}/w{len(self.writers)}"
        stream = self.scenario.stream(plan.stream)
        self.writers.append(node)

        def writer(node: NodeId, region: RegionId, rng: random.Random) -> Writer:
            owner = self.memberships[stream.region]
            publisher = Publisher(plan.name, owner, self.settings.publish, rng.getrandbits(48))
            return Writer(self._client(node, region, rng, publisher), plan, stream, rng)

        self._add_client(node, self.scenario.region(plan.region), writer)

    def _add_sink(self, plan: SinkPlan) -> None:
        node = f"{plan.region}/q{len(self.sinks)}"
        self.sinks.append(node)

        def query(durable: list[Any], incarnation: int, rng: random.Random) -> SinkWriter:
            return SinkWriter(plan, self.memberships[plan.owner], self.settings.sinks, rng)

        self._node(node, plan.region, query)

    def sink(self, node: NodeId) -> SinkWriter:
        """The machine of a query."""
        machine = self.world.hosts[node].machine
        assert isinstance(machine, SinkWriter)
        return machine

    def unleash(self, faults: Faults, rng: random.Random, begin: float) -> list[FaultEvent]:
        """Draw faults for the time until the run heals, enter them in the world, and say which."""
        cast = Cast(
            {name: tuple(nodes) for name, nodes in self.replicas.items()},
            {name: tuple(nodes) for name, nodes in self.clients.items()},
            {name: (node,) for name, node in self.services.items()},
        )
        events = schedule(faults, rng, cast, begin, self.scenario.quiet_after)
        apply(self.world, events, self.spawn)
        return events

    def _fill_views(self) -> None:
        rng = random.Random(f"{self.seed}/views")
        for region, replicas in self.replicas.items():
            people = [node for node in self.members() if self.region_of[node] == region]
            members = [*people, replicas[-1]]
            for node in members:
                end = self.proxy(node).fabric if node == replicas[-1] else self.client(node).fabric
                end.introduce([each for each in members if each != node], rng)

    # --- looking in -------------------------------------------------------------------------------------

    def membership(self, region: RegionId) -> ChainConfig:
        """The configuration in force."""
        machine = self.world.hosts[self.services[region]].machine
        assert isinstance(machine, Configuration)
        return machine.membership

    def resolve(self, node: str) -> NodeId:
        """A node's name, or who is head, middle or tail now."""
        region, _, role = node.partition("/")
        replicas = self.membership(region).replicas
        places = {"head": replicas[0], "tail": replicas[-1], "middle": replicas[len(replicas) // 2]}
        return places.get(role, node)

    def members(self) -> list[NodeId]:
        """All who receive events: clients and writers."""
        return [node for region in self.clients.values() for node in region] + self.writers

    def client(self, node: NodeId) -> Client:
        """The client machine of a node."""
        machine = self.world.hosts[node].machine
        if isinstance(machine, Writer):
            return machine.client
        assert isinstance(machine, Client)
        return machine

    def proxy(self, node: NodeId) -> Replica:
        """The proxy machine of a replica."""
        machine = self.world.hosts[node].machine
        assert isinstance(machine, Replica)
        return machine

    def pull_member(self, node: NodeId) -> PullFabricMember:
        """A client's end of the fabric, which must be `pull`."""
        member = self.client(node).fabric
        assert isinstance(member, PullFabricMember)
        return member

    # --- scripted faults ----------------------------------------------------------------------------------

    def strike(self, fault: plans.AnyFault) -> None:
        """Let one scripted fault happen now."""
        world = self.world
        match fault:
            case plans.Cut(a=a, b=b, one_way=one_way):
                world.cut(a, b, one_way=one_way)
            case plans.Heal(a=None):
                world.network.heal_all(world.now)
            case plans.Heal(a=str() as a, b=str() as b):
                world.heal(a, b)
            case plans.Kill(node=node):
                world.crash(self.resolve(node))
            case plans.Restart(node=node):
                world.restart(self.resolve(node))
            case plans.Pause(node=node, seconds=seconds):
                world.pause(self.resolve(node), seconds)
            case plans.Skew(node=node, offset=offset):
                world.set_clock(self.resolve(node), offset)
            case plans.AddReplica(region=region):
                self.add_replica(region)
            case plans.StopAll(region=region):
                for node in self.replicas[region]:
                    world.crash(node)
            case plans.StartAll(region=region):
                for node in self.replicas[region]:
                    world.restart(node)
            case plans.Partition(nodes=nodes, seconds=seconds, one_way=one_way):
                apart = [self.resolve(node) for node in nodes]
                others = [node for node in self.region_of if node not in apart]
                blocks = world.partition(apart, others, one_way=one_way)
                world.at(world.now + seconds, partial(world.rejoin, blocks))
            case plans.Noise(a=a, b=b, seconds=seconds, loss=loss, duplicate=duplicate, reorder=reorder):
                world.impair(a, b, loss=loss, duplication=duplicate, reordering=reorder)
                calm = partial(world.impair, a, b, loss=None, duplication=None, reordering=None)
                world.at(world.now + seconds, calm)


def _replica_settings(scenario: Scenario, chain: ChainSettings, publish: PublishSettings) -> ReplicaSettings:
    """The scenario's tables as the machines' settings."""
    plan, chosen = scenario.protocol, scenario.fabric
    rates = [sum(p.rate for p in scenario.publishers if p.stream == s.name) for s in scenario.streams]
    rows = int(max(rates, default=0) * plan.recv_seconds)
    fabric = FabricChoice(chosen.kind, dict(chosen.family.fit(chosen.options, rows)))
    inter_region = InterRegionSettings(period=plan.advertise_period, c=plan.c)
    return ReplicaSettings(chain=chain, inter_region=inter_region, publish=publish, fabric=fabric)
