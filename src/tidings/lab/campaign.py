"""Fault campaigns: thousands of small worlds, each broken in its own way, each judged by every invariant.

A seed draws everything: regions, replicas, streams and their policies, load, sizes of all buffers, and a swarm of
faults (sim/faults.py) plus a few aimed at the head, middle and tail of a chain. Until ``heal_after`` only safety is
demanded; then all is mended, and everyone alive must reach the end of every stream and every replica its chain.
About one seed in eight is *calm*: no faults at all, and then speed is demanded too (latency, no repairs).

What a campaign must have seen to count are its *goals*: rare paths of the protocol, each counted when it happens.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing import get_context
from typing import Any, cast

import msgspec
import numpy as np

from tidings.check import judge
from tidings.core.errors import BadInput
from tidings.core.rows import ArrowRows, data_rows
from tidings.core.span import Span
from tidings.protocols.chain import ChainSettings
from tidings.protocols.client import ReadAsOf
from tidings.protocols.kernel import Received
from tidings.protocols.messages import Know
from tidings.protocols.publishing import PublishSettings
from tidings.sim import scenario as plans
from tidings.sim.build import Deployment
from tidings.sim.faults import FaultEvent, Faults
from tidings.sim.run import Progress, failures, simulate
from tidings.sim.scenario import Scenario

SECONDS = 24.0
HEAL = 17.0
EVENTS = 2_600  # nominal; at least 2,000 are published whatever the faults
CALM = 8  # one seed in so many has no faults
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
    "old head fenced": "old_head_fenced",
    "paused head fenced": "paused_head_fenced",
    "replica added": "replica_added",
    "token passed": "token_passed",
    "snapshot installed": "snapshot_installed",
    "log cut back": "cut_back",
    "full restart": "full_restart",
    "publisher retry across fail-over": "retry_across_failover",
    "publisher fenced": "publisher_fenced",
    "tombstone delivered": "tombstone_delivered",
    "collection of a collecting event": "collected_collectors",
    "asof above the receiver's horizon": "asof_above_horizon",
    "AsofGone": "asof_gone",
    "contradiction refused": "contradiction",
    "unsynced writes lost": "unsynced_lost",
    "read answered": "read_answered",
}
"""What must have happened, and the counter that says it did."""


# --- one seed -------------------------------------------------------------------------------------------


class Plan:
    """Everything a seed stands for."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"campaign/{seed}")
        self.seed = seed
        self.calm = rng.randrange(CALM) == 0
        self.chain = ChainSettings(retain=rng.choice([4, 16, 64]), window=rng.choice([2, 16, 64]), chunk_rows=64)
        self.publish = PublishSettings(ttl=3600.0 if self.calm else rng.choice([4.0, 3600.0]))
        self.scenario = _scenario(seed, rng, self.calm)
        self.faults = Faults() if self.calm else Faults.swarm(rng)
        self.forge = not self.calm and rng.random() < 0.25
        self.rng = rng


def _scenario(seed: int, rng: random.Random, calm: bool) -> Scenario:
    names = [f"r{at}" for at in range(rng.choice([2, 2, 3]))]
    replicas = 3 if calm else rng.choice([1, 2, 3, 3, 3])
    regions = tuple(plans.Region(name, replicas=replicas, clients=rng.randint(4, 6)) for name in names)
    links = tuple(plans.Link(a, b, rng.uniform(0.005, 0.08)) for at, a in enumerate(names) for b in names[at + 1 :])
    streams = tuple(_stream(f"s-{name}", name, rng) for name in names)
    publishers = tuple(_publisher(stream, rng, len(streams)) for stream in streams)
    if rng.random() < 0.3:  # from afar
        publishers += (_publisher(streams[0], rng, 2 * len(streams), region=names[-1]),)
    if not calm and rng.random() < 0.2:  # somebody starts the same publisher a second time: the first is fenced
        twin = msgspec.structs.replace(publishers[-1], start=rng.uniform(4.0, 12.0))
        publishers += (twin,)
    recv = 400 if calm else rng.choice([20, 60, 400])
    protocol = plans.Protocol(
        view=rng.randint(3, 8),
        gossip=rng.uniform(0.3, 1.0),
        merge=rng.choice(["swap", "paper"]),
        fanout=rng.randint(2, 4),
        shuffle=rng.uniform(0.2, 0.5),
        proxy_fanout=rng.randint(1, 4),
        proxy_shuffle=rng.uniform(0.2, 0.5),
        recv_rows=recv,
    )
    aimed = () if calm or replicas == 1 else tuple(_aimed(names, rng))
    return Scenario(
        scenario=plans.Run(name=f"campaign-{seed}", seconds=SECONDS, seed=seed, heal_after=HEAL),
        regions=regions,
        links=links,
        streams=streams,
        publishers=publishers,
        faults=aimed,
        protocol=protocol,
        disk=plans.Disk(sync=0.0005, spread=rng.choice([0.0, 0.002]), torn=rng.random() < 0.5),
    )


def _stream(name: str, region: str, rng: random.Random) -> plans.Stream:
    rows = "counted" if rng.random() < 0.15 else "arrow"
    policies = ["none", "keep-last:40"] if rows == "counted" else []
    policies += ["none", "by-key", "by-key", "keep-last:40", "by-key,keep-last:100", "older-than:2s"]
    gc = rng.choice(policies[:2] if rows == "counted" else policies)
    return plans.Stream(name, region, gc=gc, rows=rows)  # type: ignore[arg-type]


def _publisher(stream: plans.Stream, rng: random.Random, share: int, region: str | None = None) -> plans.Publisher:
    batch = rng.choice([2, 8, 20])
    keyed = stream.rows == "arrow" and (stream.gc.startswith("by-key") or rng.random() < 0.5)
    return plans.Publisher(
        name=f"{region or stream.region}-on-{stream.name}",
        region=region or stream.region,
        stream=stream.name,
        rate=EVENTS / share / HEAL,
        batch=batch,
        keys=rng.choice([3, 20, 200]) if keyed else 0,
        skew=rng.choice([0.0, 1.1]),
        stop=HEAL,
        collect_every=rng.choice([None, 100, 300]),
    )


def _aimed(names: list[str], rng: random.Random) -> Iterator[plans.AnyFault]:
    """Faults that chance alone would seldom bring: a role of the chain dies or sleeps long enough to be removed."""
    at = rng.uniform(2.0, 4.0)
    while at < HEAL - 4.0:
        node = f"{rng.choice(names)}/{rng.choice(['head', 'middle', 'tail'])}"
        yield plans.Pause(at, node, rng.choice([0.5, 2.5, 3.5]))
        at += rng.uniform(2.0, 12.0)


def run_seed(seed: int) -> dict[str, Any]:
    """Simulate one seed and judge it."""
    plan = Plan(seed)
    began = time.perf_counter()
    deployment = Deployment(plan.scenario, seed, chain=plan.chain, publish=plan.publish, trace=False)
    world = deployment.world
    events = deployment.unleash(plan.faults, plan.rng, 1.0)
    watch = _Watch(deployment)
    world.observers.append(watch)
    for at in np.arange(3.0, SECONDS - 1.0, 1.3).tolist():
        world.at(at, partial(_read, deployment, plan.rng))
    if plan.forge:
        for at in (5.0, 9.0, 13.0):
            world.at(at, partial(_forge, deployment, plan.rng))
    simulate(deployment)
    violations = failures(deployment)
    if not violations:
        _demand(deployment, plan, events)
    violations += judge(deployment.recorder.trace())
    committed = sum(row[0] for row in deployment.recorder.committed.values())
    return {
        "seed": seed,
        "violations": [(each.invariant, f"{dict(each.where)}: {each.detail}") for each in violations],
        "faults": _count_faults(deployment, events),
        "reports": {**world.reports, **watch.counts, **_from_state(deployment, events)},
        "sim_seconds": world.now,
        "wall_seconds": time.perf_counter() - began,
        "events": committed,
        "clients": sum(region.clients for region in plan.scenario.regions),
        "regions": len(plan.scenario.regions),
    }


class _Watch:
    """Counts what only an onlooker sees."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.counts: Counter[str] = Counter()
        self.paused: set[str] = set()
        for fault in deployment.scenario.faults:
            if isinstance(fault, plans.Pause) and fault.node.endswith("head"):
                deployment.world.at(fault.at, partial(self._note, fault.node))

    def _note(self, node: str) -> None:
        self.paused.add(self.deployment.resolve(node))

    def on_report(self, time: float, node: str, name: str, value: float) -> None:
        """An old head that slept and was refused."""
        if name == "old_head_fenced" and node in self.paused:
            self.counts["paused_head_fenced"] += 1

    def on_deliver(self, time: float, node: str, incarnation: int, item: Any) -> None:
        """Reads that were answered."""
        if type(item).__name__ == "ReadDone" and isinstance(item.answer, Span):
            self.counts["read_answered"] += 1


def _read(deployment: Deployment, rng: random.Random) -> None:
    """Let some client read a range as of a number in the recent past."""
    members = [node for node in deployment.members() if deployment.world.hosts[node].life]
    node = rng.choice(members)
    stream, horizon = rng.choice(sorted(deployment.client(node).pull.horizons.items()))
    if horizon > 2:
        asof = rng.randint(max(1, horizon - 120), horizon)
        lo = rng.randint(1, horizon - 1)
        deployment.world.inject(deployment.world.now, node, ReadAsOf(stream, lo, rng.randint(lo + 1, horizon), asof))


def _forge(deployment: Deployment, rng: random.Random) -> None:
    """Hand a head, and a client, spans that contradict what they know."""
    world = deployment.world
    for region in sorted(deployment.replicas):
        head = deployment.proxy(deployment.membership(region).head)
        for stream, expect in sorted(head.inter_region.expects.items()):
            if expect.source and "by-key" in head.streams[stream].gc and world.hosts[head.me].life:
                own = head.log.ends[stream]  # of two events on one key the older cannot outlive the newer
                twice = Span(stream, own, own + 2, own + 2, data_rows(own, [b"k", b"k"], [b"a", b"b"]))
                world.inject(world.now, head.me, cast(Any, Received(expect.source, Know(stream, (twice,), own + 2))))
    node = rng.choice([node for node in deployment.members() if world.hosts[node].life])
    for stream, state in sorted(deployment.client(node).pull.streams.items()):
        spans = [span for span in state.recv.spans if span.rows.count and isinstance(span.rows, ArrowRows)]
        if spans:
            true = rng.choice(spans)
            rows = data_rows(true.lo, None, [b"forged"] * (true.hi - true.lo)).slice(true.lo, true.lo + 1)
            false = Span(stream, true.lo, true.hi, true.asof, rows)
            proxy = deployment.replicas[deployment.region_of[node]][0]
            world.inject(world.now, node, cast(Any, Received(proxy, Know(stream, (false,), true.hi))))
            return


def _demand(deployment: Deployment, plan: Plan, events: list[FaultEvent]) -> None:
    """What must hold at the end besides the invariants over the trace, as gauges with bounds."""
    world, note = deployment.world, deployment.recorder.gauge
    now = world.now
    for region, nodes in deployment.replicas.items():
        outside = set(nodes) - set(deployment.membership(region).replicas)
        note(now, region, "replicas_outside", len(outside), 0)
    seen = {
        other for node in deployment.members() if world.hosts[node].life for other in deployment.client(node).views.view
    }
    here = [node for node in deployment.members() if world.hosts[node].life]
    long_ago = now - (4 * plan.scenario.protocol.view + 5) * plan.scenario.protocol.gossip
    left = {event.args["leaver"] for event in events if event.kind == "churn" and event.at < long_ago}
    gone = sorted(seen & left)
    unseen = [node for node in here if node not in seen]
    note(now, "views", "unseen_members", len(unseen), 0.34 * len(here))
    if plan.scenario.protocol.merge == "swap":  # the paper's rule forgets only when views are cut to size
        note(now, "views", "departed_in_views", len(gone), 0)
    if plan.calm:
        for name, bound in (("retransmission", 0), ("source_switch", 2), ("old_epoch_refused", 0), ("cut_back", 0)):
            note(now, "calm", name, world.reports.get(name, 0), bound)
        note(now, "calm", "latency_s", _latency(deployment), 1.0)


def _latency(deployment: Deployment) -> float:
    """The longest time from a batch's arrival at its head until the last client had it."""
    last: dict[tuple[str, int], float] = {}
    ends: dict[str, list[tuple[int, float]]] = {}
    recorder = deployment.recorder
    for subscriber, _, _, stream, _, hi, _, _, _, _, at in recorder.delivered.rows:
        if "#" not in subscriber:
            ends.setdefault(f"{stream} {subscriber}", []).append((hi, at))
    for key, receipts in ends.items():
        stream = key.split(" ")[0]
        his = np.array([hi for hi, _ in receipts])
        for (name, lo), arrived in recorder.arrived.items():
            if name == stream and arrived > 3.0:
                at = int(np.searchsorted(his, lo, side="right"))
                if at < len(receipts):
                    last[name, lo] = max(last.get((name, lo), 0.0), receipts[at][1] - arrived)
    return max(last.values(), default=0.0)


def _count_faults(deployment: Deployment, events: list[FaultEvent]) -> dict[str, int]:
    counted = Counter(event.kind for event in events)
    counted.update(f"aimed {fault.node.split('/')[1]} pause" for fault in deployment.scenario.faults)  # type: ignore[union-attr]
    counted["message lost"] = deployment.world.fault_counts.get("lost", 0)
    return dict(counted)


def _from_state(deployment: Deployment, events: list[FaultEvent]) -> dict[str, float]:
    world = deployment.world
    histories = [
        history
        for nodes in deployment.replicas.values()
        for node in nodes
        for history in deployment.proxy(node).log.histories.values()
    ]
    return {
        "collected_collectors": sum(history.collected_collectors for history in histories),
        "full_restart": sum(event.kind == "region_stop" for event in events),
        "unsynced_lost": world.fault_counts.get("unsynced_lost", 0),
    }


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
        "faults": dict(sorted(faults.items())),
        "reached": reached,
        "unreached": [goal for goal in GOALS if goal not in reached],
        "hours_simulated": round(sum(each["sim_seconds"] for each in outcomes) / 3600, 3),
        "wall_seconds_per_seed": round(statistics.median(each["wall_seconds"] for each in outcomes), 3),
        "least": {
            name: min(each[name] for each in outcomes) for name in ("events", "clients", "regions", "sim_seconds")
        },
    }


def _outcomes(seeds: Iterable[int], jobs: int) -> Iterator[dict[str, Any]]:
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_seed, seeds)
