"""The fault campaign of the toy: small worlds under random faults. `tidings check flooding` runs it."""

from __future__ import annotations

import random
from typing import Any

from tidings.campaign.simulated import outcome_of
from tidings.protocols.fabrics.family import choose
from tidings.sim.scenario import LinkTable, PublisherTable, RegionTable, Run, Scenario, Stream, Swarm

HEAL = 6.0
SECONDS = 9.0


def scenario(seed: int) -> Scenario:
    """Two regions whose sizes depend on the seed."""
    rng = random.Random(f"flooding/{seed}")
    names = ("east", "west")
    load = {"rate": 100.0, "batch": 5, "stop": HEAL}
    return Scenario(
        scenario=Run(name="flooding", seconds=SECONDS, heal_after=HEAL),
        regions=tuple(RegionTable(name=name, replicas=rng.choice([2, 3]), clients=rng.randint(3, 8)) for name in names),
        links=(LinkTable(a="east", b="west", latency=0.03, loss=0.05),),
        streams=tuple(Stream(name=f"s-{name}", region=name) for name in names),
        publishers=tuple(PublisherTable(name=f"p-{name}", region=name, stream=f"s-{name}", **load) for name in names),
        swarm=Swarm(),
        fabric=choose("flooding", fanout=rng.choice([2, 3, 5])),
    )


def run_seed(seed: int) -> dict[str, Any]:
    """Simulate one seed and judge it."""
    return outcome_of(scenario(seed), seed)
