"""An observer of one run that counts what went wrong, by node and by the name of the demand."""

from __future__ import annotations

from collections import Counter

from tidings.campaign.sprinkler.fault_plan import FaultPlan
from tidings.core.ids import NodeId
from tidings.sim.build import Deployment, Note


class Watch:
    """Sees every step of a world (`on_step`, `on_deliver`, those it has) and says at the end what went wrong."""

    def __init__(self, deployment: Deployment, plan: FaultPlan) -> None:
        self.deployment = deployment
        self.plan = plan
        self.wrong: Counter[tuple[NodeId, str]] = Counter()

    def blame(self, node: NodeId, name: str, wrong: bool) -> None:
        """Count what is wrong."""
        if wrong:
            self.wrong[node, name] += 1

    def demand(self, note: Note) -> None:
        """Nothing of all that may have happened."""
        for (node, name), count in sorted(self.wrong.items()):
            note(node, name, count, 0)
