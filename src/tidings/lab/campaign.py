"""Fault campaigns: thousands of small worlds, each broken in its own way (lab/seeds.py), each judged by everything.

Until ``heal_after`` only safety is demanded; then all is mended, and everyone alive must reach the end of every stream,
every publisher must have its answers, and every replica must be back in its chain. Where little was broken more is
demanded: no repairs and low latency in a calm run, short stalls where faults came one at a time. All of it goes through
check/: demands are gauges with bounds.

What a campaign must have seen to count are its *goals*: rare paths of the protocol, each counted when it is taken.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from typing import Any

import numpy as np

from tidings.check import judge
from tidings.core.errors import BadInput
from tidings.core.span import Span
from tidings.lab.seeds import HEAL, LONG, TTL, WAITS, Plan
from tidings.protocols.client import ReadDone
from tidings.sim.build import Deployment
from tidings.sim.faults import FaultEvent
from tidings.sim.run import Progress, failures, simulate

TARGETS = ("sprinkler",)
LEAST = ("events", "clients", "regions", "sim_seconds")

GOALS = {
    "retransmission": "retransmission",
    "source switch": "source_switch",
    "proxy fallback": "proxy_fallback",
    "buffer overflow": "recv_overflow",
    "head lost": "head_lost",
    "middle lost": "middle_lost",
    "tail lost": "tail_lost",
    "paused old head fenced": "old_head_fenced",
    "replica added": "replica_added",
    "token passed": "token_passed",
    "snapshot installed": "snapshot_installed",
    "log cut back": "cut_back",
    "full restart": "full_restart",
    "publisher retry across fail-over": "retry_across_failover",
    "publisher fenced": "publisher_fenced",
    "publisher expired": "publisher_expired",
    "tombstone delivered": "tombstone_delivered",
    "collection of a collecting event": "collected_collectors",
    "asof above the receiver's horizon": "asof_above_horizon",
    "AsofGone": "asof_gone",
    "contradiction refused": "contradiction",
    "unsynced writes lost": "unsynced_lost",
    "read answered": "read_answered",
}
"""What must have happened, and the counter that says it did."""

NEVER_CALM = (
    *("retransmission", "gap_asked", "resubscribed", "old_epoch_refused", "chain_message_ignored", "cut_back"),
    *("duplicate_publish", "publish_gap", "contradiction", "bad_message", "held_overflow"),
)
"""Repairs that a run without faults has no reason for."""
FAULTS = ("loss", "duplication", "reordering", "jitter", "partition", "one_way", "cut", "pause", "crash", "restart")


def run_seed(seed: int) -> dict[str, Any]:
    """Simulate one seed and judge it."""
    plan = Plan(seed)
    began = time.perf_counter()
    deployment = Deployment(plan.scenario, seed, chain=plan.chain, publish=plan.publish, trace=False)
    world = deployment.world
    events, hits = plan.break_things(deployment)
    reads = _Reads()
    world.observers.append(reads)
    simulate(deployment)
    violations = failures(deployment)
    if not violations:
        _demand(deployment, plan, events, hits)
    violations += judge(deployment.recorder.trace())
    seen = {"read_answered": reads.answered, "full_restart": sum(event.kind == "region_stop" for event in events)}
    return {
        "seed": seed,
        "mood": plan.mood,
        "violations": [(each.invariant, f"{dict(each.where)}: {each.detail}") for each in violations],
        "faults": dict(Counter([event.kind for event in events] + hits)),
        "reports": {**world.reports, **_from_state(deployment), **seen},
        "sim_seconds": world.now,
        "wall_seconds": time.perf_counter() - began,
        "events": sum(row[0] for row in deployment.recorder.committed.values()),
        "clients": sum(region.clients for region in plan.scenario.regions),
        "regions": len(plan.scenario.regions),
    }


class _Reads:
    """Counts reads that were answered with rows."""

    def __init__(self) -> None:
        self.answered = 0

    def on_deliver(self, time: float, node: str, incarnation: int, item: Any) -> None:
        """Every item that some node delivers."""
        self.answered += isinstance(item, ReadDone) and isinstance(item.answer, Span)


def _from_state(deployment: Deployment) -> dict[str, float]:
    replicas = [deployment.proxy(node) for nodes in deployment.replicas.values() for node in nodes]
    histories = [history for replica in replicas for history in replica.log.histories.values()]
    return {
        "collected_collectors": sum(history.collected_collectors for history in histories),
        "unsynced_lost": deployment.world.fault_counts["unsynced_lost"],
    }


# --- demands ----------------------------------------------------------------------------------------------


def _demand(deployment: Deployment, plan: Plan, events: list[FaultEvent], hits: list[str]) -> None:
    """What must hold at the end besides the invariants over the trace, as gauges with bounds."""
    world = deployment.world

    def note(node: str, name: str, value: float, bound: float) -> None:
        deployment.recorder.gauge(world.now, node, name, value, bound)

    for region, nodes in deployment.replicas.items():
        note(region, "replicas_outside", len(set(nodes) - set(deployment.membership(region).replicas)), 0)
    for node in deployment.writers:
        publisher = deployment.client(node).publisher
        assert publisher is not None
        if not publisher.failed:
            note(node, "unanswered_batches", len(publisher.inflight) + len(publisher.queue), 0)
    reports = world.reports
    note("publishers", "repacked", reports.get("publisher_repacked", 0), 0)
    note("publishers", "fenced", reports.get("publisher_fenced", 0), int(plan.twin))
    if plan.publish.ttl == TTL:
        note("publishers", "expired", reports.get("publisher_expired", 0), 0)
    _demand_views(deployment, plan, events, note)
    if plan.mood == "calm":
        for name in NEVER_CALM:
            note("calm", name, reports.get(name, 0), 0)
        foreign = len(deployment.replicas) * (len(deployment.replicas) - 1)
        note("calm", "source_switch", reports.get("source_switch", 0), foreign)  # from the first heard to the owner
        note("calm", "latency_s", _latency(deployment), 1.5)  # a client that hears nothing probes after a second
    if plan.mood != "swarm" and WAITS not in hits:
        note("run", "stall_s", _stall(deployment), LONG - 1.0 if plan.mood == "aimed" else 1.5)


def _demand_views(deployment: Deployment, plan: Plan, events: list[FaultEvent], note: Any) -> None:
    """Nearly everybody is in somebody's view, and nobody who left long ago."""
    here = [node for node in deployment.members() if deployment.world.hosts[node].life]
    seen = {other for node in here for other in deployment.client(node).views.view}
    note("views", "unseen_members", len(set(here) - seen), 0.34 * len(here))
    protocol = plan.scenario.protocol
    long_ago = deployment.world.now - (4 * protocol.view + 5) * protocol.gossip
    left = {event.args["leaver"] for event in events if event.kind == "churn" and event.at < long_ago}
    if protocol.merge == "swap":  # the paper's rule forgets only when views are cut to size
        note("views", "departed_in_views", len(seen & left), 0)


def _deliveries(deployment: Deployment) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """(end, time) of every receipt, by stream and subscriber; reads do not count."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for subscriber, _, _, stream, _, hi, _, _, _, _, at in deployment.recorder.delivered.rows:
        if "#" not in subscriber:
            found[stream, subscriber].append((hi, at))
    return found


def _latency(deployment: Deployment) -> float:
    """The longest time from a batch's arrival at its head until the last client had it, once all has settled."""
    arrived = [(stream, lo, at) for (stream, lo), at in deployment.recorder.arrived.items() if at > 3.0]
    worst = 0.0
    for (stream, _), receipts in _deliveries(deployment).items():
        ends = np.array([hi for hi, _ in receipts])
        for name, lo, at in arrived:
            place = int(np.searchsorted(ends, lo, side="right"))
            if name == stream and place < len(receipts):
                worst = max(worst, receipts[place][1] - at)
    return worst


def _stall(deployment: Deployment) -> float:
    """The longest time any client received nothing of any stream while that was being published."""
    worst = 0.0
    for receipts in _deliveries(deployment).values():
        times = [2.0, *[at for _, at in receipts if 2.0 < at < HEAL], HEAL]
        worst = max(worst, *[later - earlier for earlier, later in itertools.pairwise(times)])
    return worst


# --- many seeds -----------------------------------------------------------------------------------------


def run(target: str, seeds: range, progress: Progress | None = None, jobs: int = 1) -> dict[str, Any]:
    """Run a range of seeds, some at a time, and sum up (the JSON of `tidings check`)."""
    if target not in TARGETS:
        raise BadInput(f"target {target!r} is not built yet; there are: {', '.join(TARGETS)}")
    faults: Counter[str] = Counter()
    reports: Counter[str] = Counter()
    violations: list[dict[str, Any]] = []
    outcomes: list[dict[str, Any]] = []
    for outcome in _outcomes(seeds, jobs):
        outcomes.append(outcome)
        faults.update(outcome["faults"])
        reports.update(outcome["reports"])
        replay = f"tidings check {target} --seeds {outcome['seed']}..{outcome['seed'] + 1}"
        for invariant, detail in outcome["violations"]:
            violations.append({"seed": outcome["seed"], "invariant": invariant, "detail": detail, "replay": replay})
        if progress is not None:
            progress(len(outcomes), len(seeds), f"{len(violations)} violations")
    reached = {goal: int(reports[counter]) for goal, counter in GOALS.items() if reports[counter]}
    return {
        "target": target,
        "seeds": f"{seeds.start}..{seeds.stop}",
        "violations": sorted(violations, key=lambda each: each["seed"]),
        "faults": {kind: faults[kind] for kind in sorted({*faults, *FAULTS})},
        "reached": reached,
        "unreached": [goal for goal in GOALS if goal not in reached],
        "hours_simulated": round(sum(each["sim_seconds"] for each in outcomes) / 3600, 3),
        "wall_seconds_per_seed": round(statistics.median(each["wall_seconds"] for each in outcomes), 3),
        "least": {name: min(each[name] for each in outcomes) for name in LEAST},
    }


def _outcomes(seeds: Iterable[int], jobs: int) -> Iterator[dict[str, Any]]:
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_seed, seeds)
