"""The shortest campaign: each seed is a scenario, simulated and judged by the invariants and by those of its fabric."""

from __future__ import annotations

from typing import Any

from tidings.sim.run import run_scenario
from tidings.sim.scenario import Scenario


def outcome_of(scenario: Scenario, seed: int) -> dict[str, Any]:
    """What a scenario shows with a seed, as campaigns tell it."""
    found = run_scenario(scenario, seed)
    metrics = found["metrics"]
    return {
        "seed": seed,
        "violations": [(each["invariant"], f"{each['where']}: {each['detail']}") for each in found["violations"]],
        "faults": metrics["faults"],
        "reports": metrics["reports"],
        "sim_seconds": found["sim_seconds"],
        "wall_seconds": found["wall_seconds"],
        "events": metrics["committed"],
        "clients": sum(region.clients for region in scenario.regions),
        "regions": len(scenario.regions),
        "hash": found["trace_hash"],
    }
