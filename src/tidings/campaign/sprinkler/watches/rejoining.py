"""A replica that restarts or rejoins brings nothing back that its chain has left behind.

* ``old_configuration_followed``: a replica that restarted followed a configuration that it had not asked for, which may
  be older than one it followed before.
* ``uncommitted_kept``: a replica that joins a chain kept records that may never have been committed. It may keep only
  those that it acknowledged while it joined this chain: nobody can have taken its place since.
* ``kept_for_nobody``: a replica keeps records for a newcomer that is not there, and its log grows without need.
"""

from __future__ import annotations

from typing import Any, cast

from tidings.campaign.sprinkler.fault_plan import FaultPlan
from tidings.campaign.sprinkler.watches.watch import Watch
from tidings.core.ids import NodeId
from tidings.protocols.kernel import Effects, Received
from tidings.protocols.nodes.replica import Replica
from tidings.protocols.replication.chain import Chain
from tidings.protocols.replication.configuration import Current
from tidings.protocols.replication.log import CutBack
from tidings.sim.build import Deployment
from tidings.sim.world import Started


class Rejoining(Watch):
    """Watches the replicas of chains."""

    def __init__(self, deployment: Deployment, plan: FaultPlan) -> None:
        super().__init__(deployment, plan)
        self._replicas = frozenset([node for nodes in deployment.replicas.values() for node in nodes])
        self._epochs: dict[NodeId, int] = {}  # that each has followed since it started
        self._joined: dict[NodeId, int] = {}  # the last epoch in which it was joining, as it knows from its disk

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Starts and configurations of replicas."""
        if node not in self._replicas:
            return
        host = self.deployment.world.hosts[node]
        if type(input) is Started:
            self._epochs[node] = 0
            cuts = [entry.epoch for entry in host.disk.durable() if type(entry) is CutBack] if host.disk else []
            self._joined[node] = cuts[-1] if cuts else 0
        elif type(input) is Received and type(input.message) is Current:
            self._configured(node, cast(Replica, host.machine).chain, input.message)

    def _configured(self, node: NodeId, chain: Chain, told: Current) -> None:
        before, epoch, log = self._epochs.get(node, 0), chain.membership.epoch, chain.log
        if epoch == before:
            return
        self._epochs[node] = epoch
        self.blame(node, "old_configuration_followed", not before and told.nonce != chain.nonce)
        newcomer = chain.membership.joining
        fed = newcomer is not None and chain.membership.successor(node) == newcomer
        self.blame(node, "kept_for_nobody", chain.fed is not None and not fed)
        if chain.is_joining:
            joined = self._joined.get(node, 0)
            same = joined > 0 and joined >= epoch - 1
            self.blame(node, "uncommitted_kept", not same and log.last > log.committed)
            self._joined[node] = epoch
