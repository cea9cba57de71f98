"""How a seed of a Gryphon campaign is broken, and that filters change at any moment.

Connections are what brokers notice of each other at once: when a process ends, those connected with it are told, and
when a link stalls, both ends are told a few seconds later (the paper's fault: a stall, then a failure). What was on a
stalled link is lost.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tidings.campaign.gryphon.applications import ReadingApp
from tidings.campaign.gryphon.plan import BEGIN, FILTERS, HEAL, Plan, Site
from tidings.client.commands import ChangeFilter
from tidings.core.ids import NodeId
from tidings.protocols.brokers.subscriber import Lost
from tidings.protocols.nodes.edge import Edge
from tidings.sim.build import Deployment

NOTICED = 0.01  # seconds after which the end of a process has reached the other ends of its connections; ours


class Breaker:
    """Breaks one world."""

    def __init__(self, plan: Plan, deployment: Deployment) -> None:
        self.plan = plan
        self.deployment = deployment
        self.world = deployment.world
        self.rng = random.Random(f"gryphon/faults/{plan.seed}")
        self.counts: Counter[str] = Counter()
        self.blocks: list[int] = []

    def schedule(self) -> None:
        """Enter everything in the world."""
        rng = self.rng
        for _ in range(rng.randint(0, 6)):
            self.world.at(rng.uniform(BEGIN, HEAL + 1.0), self.change_filter)
        if self.plan.mood == "calm":
            return
        kinds: list[Callable[[Site], None]] = [
            *(self.crash_broker, self.crash_broker, self.pause, self.cut, self.cut, self.noise, self.noise),
            *(self.isolate, self.isolate, self.part, self.crash_replica, self.stop_site, self.crash_reader),
        ]
        for _ in range(rng.randint(3, 9)):
            self.world.at(rng.uniform(BEGIN, HEAL - 0.5), partial(rng.choice(kinds), rng.choice(self.plan.sites)))
        self.world.at(HEAL, self.heal)

    # --- what may happen --------------------------------------------------------------------------------

    def crash_broker(self, site: Site) -> None:
        """A relay or an edge ends, and comes back with nothing."""
        self._crash([self.rng.choice([*site.relays, *site.edges])], "broker")

    def crash_replica(self, site: Site) -> None:
        """One replica ends."""
        self._crash([self.rng.choice(self.deployment.replicas[site.name])], "replica")

    def stop_site(self, site: Site) -> None:
        """The publishing site: all replicas of a region."""
        self._crash(self.deployment.replicas[site.name], "site")

    def crash_reader(self, site: Site) -> None:
        """An application ends and begins anew."""
        self._crash([self.rng.choice(list(site.readers))], "reader")

    def pause(self, site: Site) -> None:
        """Somebody sleeps."""
        nodes = self._nodes(site)
        self.world.pause(self.rng.choice(nodes), min(self.rng.uniform(0.3, 3.0), HEAL - self.world.now))

    def cut(self, site: Site) -> None:
        """A link between two brokers stalls, and fails later."""
        below = self.rng.choice([*site.edges, *site.relays])
        self._part([below], [self.rng.choice(self._above(site, below))], "link")
        if self.rng.random() < 0.5:
            self.world.at(self.world.now + self.rng.uniform(0.1, 1.0), self.change_filter)

    def isolate(self, site: Site) -> None:
        """All links that an edge has upwards, while others go on."""
        edge = self.rng.choice(site.edges)
        if self.rng.random() < 0.5:
            self._part([edge], self._above(site, edge), "isolated")
        else:  # one after the other
            for above in self._above(site, edge):
                self._part([edge], [above], "isolated")

    def _nodes(self, site: Site) -> list[NodeId]:
        return [*site.relays, *site.edges, *self.deployment.replicas[site.name], *site.readers, *site.mergers]

    def _above(self, site: Site, node: NodeId) -> list[NodeId]:
        """The brokers above an edge or a relay."""
        members = {"": self.deployment.replicas[site.name], **site.cells}
        return list(members[site.above[node if node in site.above else node.rpartition("/")[0]]])

    def part(self, site: Site) -> None:
        """Some nodes of a region are separated from the others."""
        nodes = self._nodes(site)
        apart = self.rng.sample(nodes, self.rng.randint(1, len(nodes) // 2))
        self._part(apart, [node for node in nodes if node not in apart], "partition")

    def noise(self, site: Site) -> None:
        """Messages between brokers are lost, doubled and overtaken for a while."""
        rng, world = self.rng, self.world
        changes: dict[str, Any] = {
            "loss": rng.choice([0.0, 0.05, 0.2]),
            "duplication": rng.choice([0.0, 0.1]),
            "reordering": rng.choice([0.0, 0.2]),
        }
        for other in (site.name, site.brokers):
            world.impair(other, site.brokers, **changes)
            calm = partial(world.impair, other, site.brokers, loss=None, duplication=None, reordering=None)
            world.at(min(HEAL, world.now + rng.uniform(1.0, 5.0)), calm)
        self.counts["noise"] += 1

    def change_filter(self) -> None:
        """An open subscription gets another filter."""
        machines = {
            name: self.world.hosts[name].machine
            for site in self.plan.sites
            for name in site.readers
            if self.world.hosts[name].life
        }
        there = [(name, id) for name, each in machines.items() if isinstance(each, ReadingApp) for id in each.open]
        if not there:
            return
        name, id = self.rng.choice(there)
        machine = machines[name]
        assert isinstance(machine, ReadingApp)
        self.counts["filter_changed"] += 1
        self.counts["filter_changed_in_gap"] += (
            self._gap(machine.machine.opened[id].stream) if id in machine.machine.opened else 0
        )
        self.world.inject(self.world.now, name, ChangeFilter(id, self.rng.choice(FILTERS)))

    def _gap(self, stream: str) -> bool:
        """Whether some edge lacks something before what it knows."""
        edges = [self.world.hosts[edge].machine for site in self.plan.sites for edge in site.edges]
        ends = [each.subends[stream] for each in edges if isinstance(each, Edge) and stream in each.subends]
        return any([len(end.knowledge) > 0 for end in ends])

    # --- how ----------------------------------------------------------------------------------------------

    def _crash(self, nodes: Iterable[NodeId], what: str) -> None:
        self.counts[f"{what}_crash"] += 1
        back = min(HEAL, self.world.now + self.rng.uniform(0.1, 4.0))
        for node in list(nodes):
            self.world.crash(node)
            if (
                what in ("replica", "site") and self.plan.skew
            ):  # it comes back with a clock that is wrong in another way
                self.world.set_clock(node, self.rng.uniform(-self.plan.skew, self.plan.skew))
            self.world.at(self.world.now + NOTICED, partial(self._lost, node, list(self.world.hosts)))
            self.world.at(back, partial(self.world.restart, node))

    def _part(self, left: list[NodeId], right: list[NodeId], what: str) -> None:
        self.counts[what] += 1
        blocks = self.world.partition(left, right)
        self.blocks += blocks
        noticed = self.world.now + self.rng.uniform(0.5, 3.0)
        for a, b in ((left, right), (right, left)):
            for node in a:
                self.world.at(min(noticed, HEAL), partial(self._lost, node, b))
        self.world.at(min(HEAL, noticed + self.rng.uniform(0.0, 3.0)), partial(self.world.rejoin, blocks))

    def _lost(self, node: NodeId, others: list[NodeId]) -> None:
        """Those who are connected with a node are told that they are no more."""
        for other in others:
            if other != node and not other.endswith("/config"):
                self.world.inject(self.world.now, other, Lost(node))

    def heal(self) -> None:
        """All is well from now on; what was still away is back."""
        for node, host in list(self.world.hosts.items()):
            if not host.life:
                self.world.restart(node)
