"""What a campaign demands of one part of the protocol, besides the invariants over the trace.

A watch sees every step of a run (as an observer of the world: `on_step`, `on_deliver`, `on_report`, `on_durable`, those
it has) and says at the end what it demands, as gauges with bounds. A demand must have a reason that a user or the paper
would give: nothing said twice where nothing is lost, nobody asked who cannot know, no timer beside another.
"""

from __future__ import annotations

from tidings.lab.seeds import Plan
from tidings.sim.build import Deployment, Note


class Watch:
    """One part of the protocol under observation during one seed."""

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        self.deployment = deployment
        self.plan = plan
        self.calm = plan.mood == "calm"

    def demand(self, note: Note) -> None:
        """What must hold at the end, each as (node, name, value, bound); a value above its bound is a violation."""
