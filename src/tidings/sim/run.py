"""Run one scenario with one seed, and judge it.

Two phases: until ``heal_after`` there are load and faults, and only safety is judged. Then every fault ends, and every
node that is alive must reach the end of every stream. A head may collect by age at the last moment; then the run
continues until that, too, has had time to spread. The result is the JSON object of `tidings sim`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidings.check import Violation, judge
from tidings.core.ids import NodeId, is_internal
from tidings.protocols.replication.chain import Committed
from tidings.sim.build import Deployment
from tidings.sim.faults import Faults
from tidings.sim.scenario import Scenario

Progress = Callable[[int, int, str], None]

MOMENT = 1.5  # seconds in which everybody who is idle hears of an event; ours: a probe (1 s at most) and a shuffle
MOMENTS = 4  # at most, or a head that collects by age again and again would never let it end


def run_scenario(
    scenario: Scenario, seed: int, record_dir: Path | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Simulate, judge, and sum up."""
    deployment = Deployment(scenario, seed)
    if scenario.swarm is not None:
        rng = random.Random(f"{seed}/swarm")
        deployment.unleash(Faults.swarm(rng), rng, scenario.swarm.start)
    wall = simulate(deployment, progress)
    trace = deployment.recorder.trace()
    if record_dir is not None:
        trace.write(record_dir)
    found = failures(deployment) + judge(trace, scenario.fabric.family.invariants)
    world = deployment.world
    return {
        "scenario": scenario.scenario.name,
        "seed": seed,
        "trace_hash": world.trace_hash,
        "sim_seconds": world.now,
        "wall_seconds": round(wall, 3),
        "protocol_events": world.protocol_events,
        "violations": [describe(violation) for violation in found],
        "metrics": metrics(deployment),
    }


def simulate(deployment: Deployment, progress: Progress | None = None) -> float:
    """Run the world to the scenario's end; returns the wall seconds it took."""
    began = time.perf_counter()
    world, run = deployment.world, deployment.scenario.scenario
    kept = _Kept(deployment)
    world.observers.append(kept)
    world.start()
    steps = max(1, round(run.seconds))
    for step in range(1, steps + 1):
        world.run(run.seconds * step / steps)
        _sample(deployment, kept)
        if progress is not None:
            progress(step, steps, f"simulated {world.now:.0f} s")
        if world.failures:
            break
    if run.heal_after is not None:
        for _ in range(MOMENTS):
            if kept.news + MOMENT > world.now and not world.failures:
                world.run(kept.news + MOMENT)
    if run.heal_after is not None and not world.failures:
        note_alive(deployment)
    return time.perf_counter() - began


def failures(deployment: Deployment) -> list[Violation]:
    """Machines that raised ("crash"), or whose own invariants did not hold ("check")."""
    found = []
    for each in deployment.world.failures:
        name = "check" if ", in check\n" in each.traceback else "crash"
        last = each.traceback.strip().splitlines()[-1]
        found.append(Violation(name, {"node": each.node, "time": each.time}, last))
    return found


def describe(violation: Violation) -> dict[str, Any]:
    """A violation as JSON."""
    return {"invariant": violation.invariant, "where": dict(violation.where), "detail": violation.detail}


def note_alive(deployment: Deployment) -> None:
    """At the end: how far everyone got who is still there."""
    world, recorder = deployment.world, deployment.recorder
    for node in deployment.members():
        if world.hosts[node].life:
            recorder.alive(world.now, node, deployment.client(node).fabric.horizons)
    for region in deployment.replicas:
        for node in deployment.membership(region).replicas:
            histories = deployment.proxy(node).log.histories
            recorder.alive(world.now, node, {name: history.horizon for name, history in histories.items()})


class _Kept:
    """How many committed records each replica kept when it last trimmed its log, and how many it may; the last news."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.now: dict[NodeId, tuple[int, int]] = {}
        self.news = 0.0  # when the last event of a stream was committed

    def on_deliver(self, time: float, node: NodeId, incarnation: int, item: Any) -> None:
        """A record is committed, and the log has just been trimmed: by halves, so twice what is wanted may be left."""
        if type(item) is Committed:
            if any([not is_internal(span.stream) for span in item.record.parts]):
                self.news = time
            chain = self.deployment.proxy(node).chain
            lacking = 0 if chain.fed is None else min(chain.log.committed - chain.fed, chain.settings.feed)
            bound = 2 * max(chain.settings.retain, lacking)
            self.now[node] = chain.log.committed + 1 - chain.log.first, bound


def _sample(deployment: Deployment, kept: _Kept) -> None:
    """Once a simulated second: how full the buffers are."""
    world, recorder, now = deployment.world, deployment.recorder, deployment.world.now
    for node in deployment.members():
        if world.hosts[node].life:
            for name, value, bound in deployment.client(node).fabric.gauges():
                recorder.gauge(now, node, name, value, bound)
    for replicas in deployment.replicas.values():
        for node in replicas:
            if world.hosts[node].life:
                chain = deployment.proxy(node).chain
                backlog = chain.log.last - chain.log.committed
                recorder.gauge(now, node, "uncommitted_records", backlog, chain.settings.backlog)
                if node in kept.now:
                    recorder.gauge(now, node, "retained_records", *kept.now[node])


def metrics(deployment: Deployment) -> dict[str, Any]:
    """What happened, in numbers."""
    world, recorder = deployment.world, deployment.recorder
    return {
        "committed": sum(row[0] for row in recorder.committed.values()),
        "acknowledged": len(recorder.acked),
        "delivered_rows": sum(row[8] for row in recorder.delivered.rows),
        "receipts": len(recorder.delivered.rows),
        "reports": dict(sorted(world.reports.items())),
        "faults": dict(sorted(world.fault_counts.items())),
    }
