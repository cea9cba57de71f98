"""`tidings bench sim`: how many protocol events per second the simulator handles, against a bare event loop.

Runs: ``sprinkler-300`` and ``sprinkler-3000`` are Sprinkler at the paper's load (SP3: three regions, three-replica
proxies, 864,000 ten-byte events/s per region in 5 ms batches, F = 4, shuffle 30 ms, V = 20) with recorder and checks
off, measured after start-up. ``bare-loop`` is what a heap alone can do: 3,000 pending entries, pop, empty call, push.
"""

from __future__ import annotations

import heapq
import statistics
import time
from typing import Any

from tidings.lab.sprinkler import region_load
from tidings.sim.build import Deployment
from tidings.sim.run import Progress

WARM_UP = region_load.STEADY  # simulated seconds until the flow is steady


def sprinkler(clients: int, seconds: float, seed: int) -> float:
    """Protocol events per second of wall time."""
    plan = region_load.scenario(clients, seconds=10.0)
    deployment = Deployment(plan, seed, record=False, check=False, trace=False)
    world = deployment.world
    world.start()
    world.run(WARM_UP)
    before = world.protocol_events
    began = time.perf_counter()
    world.run(WARM_UP + seconds)
    took = time.perf_counter() - began
    if world.failures:
        raise RuntimeError(world.failures[0].traceback)
    return (world.protocol_events - before) / took


def bare_loop(pending: int = 3_000, events: int = 1_000_000) -> float:
    """Events per second of a heap with so many entries: pop, call nothing, push."""

    def nothing() -> None: ...

    heap = [(float(at), at, nothing) for at in range(pending)]
    heapq.heapify(heap)
    push, pop = heapq.heappush, heapq.heappop
    began = time.perf_counter()
    for order in range(pending, pending + events):
        at, _, call = pop(heap)
        call()
        push(heap, (at + pending, order, call))
    return events / (time.perf_counter() - began)


def run(runs: int = 3, progress: Progress | None = None) -> dict[str, Any]:
    """Medians of several rounds; each round measures all three, so that a noisy machine is noisy for all."""
    found: dict[str, list[float]] = {"sprinkler-300": [], "sprinkler-3000": [], "bare-loop": []}
    for at in range(runs):
        found["bare-loop"].append(bare_loop())
        found["sprinkler-300"].append(sprinkler(100, 1.0, seed=at))
        found["sprinkler-3000"].append(sprinkler(1000, 0.2, seed=at))
        if progress is not None:
            progress(at + 1, runs, "rounds of sprinkler-300, sprinkler-3000, bare-loop")
    medians = {name: statistics.median(values) for name, values in found.items()}
    nodes = {"sprinkler-300": 300, "sprinkler-3000": 3000}
    return {
        "bench": "sim",
        "runs": [
            {"name": name, "events_per_s": round(medians[name]), "spread": [round(min(values)), round(max(values))]}
            | ({"clients": nodes[name]} if name in nodes else {"pending": 3000})
            for name, values in found.items()
        ],
        "ratio": {f"{name}/bare-loop": round(medians[name] / medians["bare-loop"], 3) for name in nodes},
    }
