"""What a seed showed, and what many did: the fields that every campaign by seeds has in common.

An outcome is a mapping with ``seed``, ``violations`` (pairs of invariant and detail), ``faults`` and ``reports``
(counts by name) and ``wall_seconds``; ``sim_seconds``, ``events``, ``clients``, ``regions``, ``mood`` and ``hash``
where they make sense.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Outcome = Mapping[str, Any]


def summary(
    target: str,
    seeds: range,
    outcomes: Sequence[Outcome],
    goals: Mapping[str, str] | None = None,
    faults: Iterable[str] = (),
) -> dict[str, Any]:
    """What some seeds found, as `tidings check` prints it.

    ``goals``: rare paths, each with the counter that says it was taken. ``faults``: those that are listed even if none
    happened.
    """
    injected: Counter[str] = Counter()
    reports: Counter[str] = Counter()
    ordered = sorted(outcomes, key=lambda each: each["seed"])
    for outcome in ordered:
        injected.update(outcome["faults"])
        reports.update(outcome["reports"])
    reached = {goal: int(reports[counter]) for goal, counter in (goals or {}).items() if reports[counter]}
    return {
        "target": target,
        "seeds": f"{seeds.start}..{seeds.stop}",
        "violations": [violation for outcome in ordered for violation in described(target, outcome)],
        "faults": {kind: injected[kind] for kind in sorted({*injected, *faults})},
        "reached": reached,
        "unreached": [goal for goal in goals or () if goal not in reached],
        "hours_simulated": round(sum(each.get("sim_seconds") or 0.0 for each in outcomes) / 3600, 3),
        "wall_seconds_per_seed": round(statistics.median(each["wall_seconds"] for each in outcomes), 3),
    }


def described(target: str, outcome: Outcome) -> list[dict[str, Any]]:
    """The violations of a seed, each with the command that runs it again."""
    seed = outcome["seed"]
    replay = f"tidings check {target} --seeds {seed}..{seed + 1}"
    return [
        {"seed": seed, "invariant": invariant, "detail": detail, "replay": replay}
        for invariant, detail in outcome["violations"]
    ]
