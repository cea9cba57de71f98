"""Members gossip with each other and find replicas that answer.

* ``gossip_burdens_replicas``: in a calm run more than half of the rounds of gossip went to replicas. A region's members
  are to spread the load among themselves.
* ``silent_replica_asked_again``: a member whose round of gossip a replica did not answer turned to the same one again.
* ``silent_peer_kept``: a member that did not answer stayed in the view of the one that asked it.
* ``publisher_unaware``: a member's gossip had brought a new chain, and its publisher went on with the old one.
"""

from __future__ import annotations

from typing import Any

from tidings.campaign.sprinkler.fault_plan import FaultPlan
from tidings.campaign.sprinkler.watches.watch import Watch
from tidings.core.ids import NodeId
from tidings.protocols.fabrics.pull_fabric import PullFabricMember
from tidings.protocols.fabrics.views import GossipTick, View
from tidings.protocols.kernel import Effects, Expired, Received, Send
from tidings.protocols.nodes.client import Client
from tidings.sim.build import Deployment, Note
from tidings.sim.workload import Writer
from tidings.sim.world import Started

SETTLED = 3.0  # seconds until views have filled; ours
CHANCE = 50  # rounds; ours: of fewer nothing is said


class _Rounds:
    """The rounds of gossip of one member during one life."""

    def __init__(self, epoch: int) -> None:
        self.partner: NodeId | None = None  # of the last round
        self.answered = False
        self.silent = 0  # replicas one after the other
        self.epoch = epoch  # of the chain, when the last round began


class Gossip(Watch):
    """Watches the members of the fabric."""

    def __init__(self, deployment: Deployment, plan: FaultPlan) -> None:
        super().__init__(deployment, plan)
        self._members: dict[NodeId, _Rounds] = {}
        self._rounds = self._with_replicas = 0

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Rounds of gossip, and what comes back."""
        kind = type(input)
        if kind is Started:
            if (client := self._client(node)) is not None:
                self._members[node] = _Rounds(client.fabric.config.epoch)
        elif kind is Received and type(input.message) is View:
            if (member := self._members.get(node)) is not None:
                self._told(node, member, input.src, input.message)
        elif kind is Expired and type(input.timer) is GossipTick and (member := self._members.get(node)) is not None:
            self._round(time, node, member, effects)

    def demand(self, note: Note) -> None:
        super().demand(note)
        if self.plan.mood == "calm" and self._rounds > CHANCE:  # every tenth, and the tail's share as a neighbour
            note("members", "gossip_burdens_replicas", self._with_replicas / self._rounds, 0.5)

    def _client(self, node: NodeId) -> Client | None:
        machine = self.deployment.world.hosts[node].machine
        machine = machine.client if isinstance(machine, Writer) else machine
        return machine if isinstance(machine, Client) else None

    def _told(self, node: NodeId, member: _Rounds, src: NodeId, view: View) -> None:
        if src == member.partner and not view.reply_wanted:
            member.answered, member.silent = True, 0
        client = self._client(node)
        assert client is not None
        publisher, chain = client.publisher, client.fabric.config
        if publisher is not None and publisher.membership.region == chain.region:
            self.blame(node, "publisher_unaware", publisher.membership.epoch < chain.epoch)

    def _round(self, time: float, node: NodeId, member: _Rounds, effects: Effects) -> None:
        client = self._client(node)
        assert client is not None and isinstance(client.fabric, PullFabricMember)
        views, before = client.fabric.views, member.partner
        told = [effect.to for effect in effects if type(effect) is Send and isinstance(effect.message, View)]
        if not told:
            return
        contacts, epoch = views.contacts, views.membership.epoch
        if epoch != member.epoch:
            member.silent = 0
        if before in contacts and not member.answered:
            member.silent += 1
            if epoch == member.epoch and member.silent < len(contacts):
                again = told[0] == before == contacts[member.silent - 1]  # a former tail may be a peer besides
                self.blame(node, "silent_replica_asked_again", again or told[0] not in contacts)
        if before is not None and not member.answered and views.settings.rule == "swap":
            self.blame(node, "silent_peer_kept", before in views.view)
        if time > SETTLED:
            self._rounds += 1
            self._with_replicas += told[0] in contacts
        member.partner, member.answered, member.epoch = told[0], False, epoch
