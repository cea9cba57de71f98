"""What a campaign demands at the end of a run besides the invariants of check/, each demand under a name of its own."""

from __future__ import annotations

from tidings.check.invariants import Violation
from tidings.core.ids import NodeId


class Demands:
    """Collects measured values: one above its bound is a violation, named like the demand."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def note(self, node: NodeId, name: str, value: float, bound: float) -> None:
        """Demand that a value is at most its bound."""
        if value > bound:
            detail = f"{float(value):g}, and at most {float(bound):g} is right"
            self.violations.append(Violation(name, {"node": node}, detail))
