"""A configuration service removes a replica that is silent for too long, or resigns, and no other.

* ``silent_replica_kept``: a replica was silent for longer than the limit, others were not, and it stayed in its chain.
* ``live_replica_removed``: a replica was removed although the service had heard of it in time.
* ``resigned_replica_kept``: a replica whose disk is too old resigned, others were alive, and it stayed in its chain.

Silence while the service was down or slept proves nothing, nor does silence of all members at once.
"""

from __future__ import annotations

from typing import Any, cast

from tidings.campaign.sprinkler.fault_plan import FaultPlan
from tidings.campaign.sprinkler.watches.watch import Watch
from tidings.core.ids import NodeId
from tidings.protocols.kernel import Effects, Expired, Persist, Received
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Beat, Configuration, Resign, SweepTick
from tidings.sim.build import Deployment
from tidings.sim.world import Started


class ReplicaRemoval(Watch):
    """Watches the configuration services."""

    def __init__(self, deployment: Deployment, plan: FaultPlan) -> None:
        super().__init__(deployment, plan)
        self._heard = {service: _Heard() for service in deployment.services.values()}

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Heartbeats, resignations, and the service's regular look."""
        heard = self._heard.get(node)
        if heard is None:
            return
        host = self.deployment.world.hosts[node]
        now, service = host.clock(time), cast(Configuration, host.machine)
        limit, current = service.settings.silence, service.membership
        decided = next((cast(ChainConfig, effect.record) for effect in effects if type(effect) is Persist), None)
        if type(input) is Started:
            heard.begin(now)
        elif type(input) is Received and type(input.message) is Beat:
            if input.src in current.replicas and all([heard.silent(now, each, limit) for each in current.replicas]):
                heard.begin(now)
            heard.at[input.src] = now
        elif type(input) is Received and type(input.message) is Resign:
            others = [not heard.silent(now, each, limit) for each in current.replicas if each != input.src]
            valid = input.src in current.replicas and input.message.epoch == current.epoch
            self.blame(input.src, "resigned_replica_kept", valid and any(others) and service.deciding is None)
        elif type(input) is Expired and type(input.timer) is SweepTick:
            if now - heard.swept > limit:
                heard.begin(now)
            heard.swept = now
            members = {*current.replicas, *([current.joining] if current.joining else [])}
            silent = {each for each in members if heard.silent(now, each, limit)}
            if decided is not None:
                removed = members - {*decided.replicas, decided.joining}
                self.blame(node, "live_replica_removed", bool(removed - silent))
            elif service.deciding is None and not silent.issuperset(current.replicas):
                self.blame(node, "silent_replica_kept", bool(silent))


class _Heard:
    """When a service last heard of each replica, by its own clock."""

    def __init__(self) -> None:
        self.at: dict[NodeId, float] = {}
        self.swept = 0.0

    def begin(self, now: float) -> None:
        """The service has just started, or slept, or nobody was there."""
        self.at.clear()
        self.swept = now

    def silent(self, now: float, node: NodeId, limit: float) -> bool:
        return now - self.at.setdefault(node, now) > limit
