"""A region that has lost its memory begins again when it may.

* ``region_began_early``: it began to number events before all other regions had answered, or the configured time was
  over: one that answers late may hold events whose numbers it gives out again.
"""

from __future__ import annotations

from tidings.campaign.sprinkler.fault_plan import FaultPlan
from tidings.campaign.sprinkler.watches.watch import Watch
from tidings.sim.build import Deployment, Note


class ForgottenRegions(Watch):
    """Watches regions begin, in worlds in which one loses its memory."""

    def __init__(self, deployment: Deployment, plan: FaultPlan) -> None:
        super().__init__(deployment, plan)
        self._began = 0.0  # when a head of that region last began to number events

    def on_report(self, time: float, node: str, name: str, value: float) -> None:
        """A head begins to number events."""
        if name == "settled" and self.plan.amnesia and self.deployment.region_of[node] == self.plan.amnesia.region:
            self._began = time

    def demand(self, note: Note) -> None:
        amnesia = self.plan.amnesia
        if amnesia is not None:
            note(amnesia.region, "region_began_early", amnesia.back + amnesia.wait - self._began, 0)
