"""Claims with verdicts, and the experiments that they belong to.

A claim is one sentence of a paper in our own words, with what it lets us expect, what was measured, and a verdict that
is computed from the data: *holds* or *differs*. ``why`` explains a claim that differs, or a number that differs from
the paper's although its shape agrees. Where a real cluster was measured, ``simulated`` is the simulator's value for the
same run, and ``distance`` its distance from the measured value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

UNEXPLAINED = "The cause has not been looked into."


@dataclass(frozen=True)
class Claim:
    """One judged sentence; `holds` was computed, never written down."""

    id: str
    statement: str
    expected: str
    measured: str
    holds: bool
    why: str = ""
    simulated: str = ""
    distance: str = ""

    def json(self) -> dict[str, Any]:
        """As INTERFACE's `lab run` prints it."""
        beside = {"simulated": self.simulated, "distance": self.distance}
        return {
            "id": self.id,
            "statement": self.statement,
            "expected": self.expected,
            "measured": self.measured,
            "verdict": "holds" if self.holds else "differs",
            "why": self.why or ("" if self.holds else UNEXPLAINED),
            **{name: said for name, said in beside.items() if said},
        }


@dataclass(frozen=True)
class Findings:
    """What one run found; figures and data by the experiment they belong to."""

    claims: list[Claim]
    figures: dict[str, list[str]] = field(default_factory=dict)
    data: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper that can be run; ``study`` is the name of the study that runs it."""

    id: str
    paper: str
    title: str
    claims: tuple[str, ...]
    study: str
