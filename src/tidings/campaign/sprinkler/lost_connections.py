"""Lost connections: in worlds with scripted clients, some of these are told that they have lost the way to a replica.

It is the replica that a client waits for, or another one, ten times at random, and once just after a client asked for
the cursor of a durable subscription. The replica itself goes on: if it feeds the client it is behind soon.

Demand ``next_replica_not_asked``: a client that waited for the lost replica asks the next one at once, for this
subscription and no other; a client that did not wait for it asks nobody.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from tidings.campaign.sprinkler.aimed_faults import HEAL
from tidings.campaign.sprinkler.fault_plan import FaultPlan
from tidings.campaign.sprinkler.scripted_client import CORRESPONDENT, EDITOR, RIVAL, ScriptedClient
from tidings.campaign.sprinkler.watches.watch import Watch
from tidings.core.ids import NodeId
from tidings.protocols.brokers.messages import Follow
from tidings.protocols.brokers.subscriber import Lost, Subscriber
from tidings.protocols.kernel import Effects, Send
from tidings.protocols.services.cursors import OpenCursor
from tidings.sim.build import Deployment

SOON = 0.0004  # seconds in which no answer can have come: a hop takes 1 ms


class LostConnections(Watch):
    """Takes connections away, and looks what the clients do."""

    def __init__(self, deployment: Deployment, plan: FaultPlan) -> None:
        super().__init__(deployment, plan)
        self._members = frozenset([node for nodes in deployment.clients.values() for node in nodes])
        self._opened: set[tuple[NodeId, str]] = set()  # durable subscriptions that have lost a connection so
        self._expected: dict[NodeId, dict[int, NodeId | None]] = {}  # whom each subscription must ask; None: nobody
        self._on = plan.scripted_clients and plan.mood != "calm"
        if self._on:
            rng = random.Random(f"startled/{plan.seed}")
            for _ in range(10):
                deployment.world.at(rng.uniform(3.0, HEAL), partial(self._lose_any, rng))

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """A client asks for a cursor, or has just been told that a connection is lost."""
        if not self._on or node in self._members:
            return
        if type(input) is Lost:
            self._lost(node, effects)
        for effect in effects:
            if type(effect) is Send and type(effect.message) is OpenCursor:
                key = node, effect.message.name
                if key not in self._opened:
                    self._opened.add(key)
                    first = len(self._opened) % 2 == 1
                    self.deployment.world.at(time + SOON, partial(self._lose_opening, node, effect.to, first))

    def _desk(self, node: NodeId) -> ScriptedClient | None:
        machine = self.deployment.world.hosts[node].machine
        return machine if isinstance(machine, ScriptedClient) else None

    def _lose_any(self, rng: random.Random) -> None:
        regions = sorted(self.deployment.replicas)
        node = rng.choice([f"{regions[0]}/{EDITOR}", f"{regions[0]}/{RIVAL}", f"{regions[-1]}/{CORRESPONDENT}"])
        scripted = self._desk(node)
        lost = rng.choice(self.deployment.replicas[self.deployment.region_of[node]])
        if scripted is not None and scripted.open and rng.random() < 0.6:
            lost = rng.choice(list(scripted.open.values()))._source()
        self._lose(node, lost)

    def _lose_opening(self, node: NodeId, asked: NodeId, first: bool) -> None:
        """The replica that was asked for the cursor is lost, or another one."""
        replicas = self.deployment.replicas[self.deployment.region_of[node]]
        self._lose(node, asked if first or len(replicas) == 1 else next(each for each in replicas if each != asked))

    def _lose(self, node: NodeId, lost: NodeId) -> None:
        world, scripted = self.deployment.world, self._desk(node)
        if scripted is None or node in self._expected or world.hosts[node].wake_at or not world.hosts[node].life:
            return
        expected: dict[int, NodeId | None] = {}
        for id, subscriber in scripted.open.items():
            replicas = subscriber.membership.replicas
            if not subscriber.opened:
                if lost == subscriber.head.asked:
                    expected[id] = replicas[(subscriber.head.turn + 1) % len(replicas)]
                elif lost != subscriber._source():
                    expected[id] = None
            elif _wants_more(subscriber):
                waits = lost == subscriber._source()
                expected[id] = replicas[(subscriber.turn + 1) % len(replicas)] if waits else None
        self._expected[node] = expected
        world.inject(world.now, node, Lost(lost))

    def _lost(self, node: NodeId, effects: Effects) -> None:
        scripted = self._desk(node)
        sends = [(each.to, each.message) for each in effects if type(each) is Send]
        for id, to in self._expected.pop(node, {}).items():
            subscriber = scripted.open.get(id) if scripted is not None else None
            if subscriber is not None:
                asked = [at for at, each in sends if isinstance(each, Follow) and each.id == id]
                asked += [at for at, each in sends if isinstance(each, OpenCursor) and each.name == subscriber.name]
                self.blame(node, "next_replica_not_asked", asked != ([] if to is None else [to]))


def _wants_more(subscriber: Subscriber) -> bool:
    ended = subscriber.horizon is not None and subscriber.horizon >= subscriber.hi > 0
    return subscriber.opened and not ended and len(subscriber.ahead) < subscriber.settings.window
