"""The fault campaign against real processes: per seed a small cluster, seconds of load, faults, repair, judgement.

While faults last only safety is demanded, as in a simulated campaign. Then all faults are ended: every replica must be
back in its chain, every publisher must have its answers, and every subscriber must reach the end of every stream. Late
subscribers read in each region what collection has left. check/ judges all of it: demands are gauges with bounds. A
replica whose machine raises is a violation, too, although its supervisor has started it again.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from tidings.campaign import outcomes as common
from tidings.campaign.cluster.client_trace import Evidence
from tidings.campaign.cluster.faults import EPISODES, Episode, FaultInjector
from tidings.campaign.cluster.load import Load, PublisherLoad, Subscribing, Way, WorkerOrder
from tidings.campaign.cluster.memory_loss import judge_losses, memory_losses, unjustified
from tidings.check import Violation
from tidings.client.connection import connect
from tidings.core.errors import TidingsError
from tidings.core.ids import StreamId
from tidings.net.loop import run as run_loop
from tidings.protocols.fabrics.family import FabricChoice
from tidings.server.local import LocalCluster
from tidings.server.paths import ClusterPaths

SECONDS = 6.0  # of load at least; faults may take longer
READY = 40.0  # seconds until every replica must be back in its chain; ours: on a busy machine
ANSWERS = 30.0
SETTLE = 30.0
KEEP = Path("build/cluster")  # where trace and logs of a bad seed are kept

FAULTS = (
    *("head killed", "middle killed", "tail killed", "crash", "head paused", "middle paused", "tail paused"),
    *("head stranded", "link cut", "configuration service gone", "disk full", "back with an old disk"),
    *("region killed", "replica added", "replica removed"),
)

GOALS = {
    "retransmission": "retransmission",
    "source switch": "source_switch",
    "head lost": "head killed",
    "middle lost": "middle killed",
    "tail lost": "tail killed",
    "paused old head fenced": "old_head_fenced",
    "message of an old epoch refused": "old_epoch_refused",
    "token passed": "token_passed",
    "snapshot installed": "snapshot_installed",
    "log cut back": "cut_back",
    "full restart": "region killed",
    "publisher retry across fail-over": "retry_across_failover",
    "publish repeated": "duplicate_publish",
    "tombstone delivered": "tombstones",
    "asof above the receiver's horizon": "asof_ahead",
    "no room on a disk": "disk_full",
    "replica back with an old disk": "back with an old disk",
    "without a configuration service": "configuration service gone",
    "new incarnation of a durable subscriber": "incarnations",
    "collecting event published": "collectors",
}
"""What must have happened, and the counter that says it did."""


class ClusterFaultPlan:
    """What a seed stands for."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"cluster/{seed}")
        self.regions = rng.choice([1, 2])
        self.replicas = rng.choice([2, 3, 3])
        self.durable = rng.random() < 0.8
        self.episodes: list[Episode] = rng.sample(EPISODES, 2)
        self.fabric = FabricChoice()
        self.streams: dict[StreamId, tuple[str, str]] = {}  # region and policy
        for at in range(self.regions):
            self.streams[f"k{at}"] = (f"r{at}", "by-key")
            self.streams[f"n{at}"] = (f"r{at}", "none")

    @property
    def policies(self) -> dict[StreamId, str]:
        return {name: gc for name, (_, gc) in self.streams.items()}

    def order(self, cluster: LocalCluster) -> WorkerOrder:
        """Two publishers per stream, one of them perhaps far away, and all kinds of subscribers in each region."""
        rng, names = self.rng, cluster.regions
        publishers = []
        for stream, (region, gc) in self.streams.items():
            for at in range(2):
                way: Way = rng.choice(["table", "post", "single"])
                batch = rng.choice([1, 4, 20])
                publishers.append(
                    PublisherLoad(
                        name=f"p{at}-{stream}",
                        url=cluster.url(region if at == 0 else rng.choice(names)),
                        stream=stream,
                        rate=batch * rng.choice([10.0, 40.0]),
                        batch=batch,
                        keys=rng.choice([3, 20, 200]),
                        way=way,
                        by_key=gc == "by-key",
                        collect_every=rng.choice([0, 15, 40]),
                        seed=self.seed,
                    )
                )
        return WorkerOrder(publishers=publishers, subscribers=self._subscribers(cluster))

    def _subscribers(self, cluster: LocalCluster) -> list[Subscribing]:
        every = list(self.streams)
        found = []
        for region in cluster.regions:
            url = cluster.url(region)
            found += [
                Subscribing(name=f"witness-{region}", url=url, streams=every, witness=True),
                Subscribing(name=f"plain-{region}", url=url, streams=every),
                Subscribing(name=f"durable-{region}", url=url, streams=every, kind="durable", every=1.5),
                Subscribing(name=f"peer-{region}", url=url, streams=every, kind="peer"),
                Subscribing(name=f"cache-{region}", url=url, streams=["k0"], kind="cache"),
            ]
        return found


# --- one seed -------------------------------------------------------------------------------------------------------


def run_seed(seed: int, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run one seed and judge it. ``environment``: of the replicas, for planted bugs."""
    began = time.monotonic()
    plan = ClusterFaultPlan(seed)
    with tempfile.TemporaryDirectory(prefix=f"tidings-{seed}-") as folder:
        evidence, injector = run_loop(_play(plan, Path(folder), environment))
        files = ClusterPaths(folder)
        losses = memory_losses(files)
        rules = plan.fabric.family.invariants
        trace, violations = judge_losses(evidence, plan.streams, {loss.region for loss in losses}, rules)
        violations += [*unjustified(files, losses, injector.killed), *machines(Path(folder))]
        if violations and environment is None:
            trace.write(KEEP / f"seed-{seed}")
            shutil.copytree(Path(folder) / "logs", KEEP / f"seed-{seed}/logs", dirs_exist_ok=True)
    return {
        "seed": seed,
        "violations": [(each.invariant, f"{dict(each.where)}: {each.detail}") for each in violations],
        "faults": dict(injector.faults),
        "reports": dict(injector.reports + injector.faults + counted(evidence) + Counter(memory_lost=len(losses))),
        "story": injector.story,
        "wall_seconds": time.monotonic() - began,
        "events": evidence.published,
        "receipts": len(evidence.receipts),
    }


async def _play(
    plan: ClusterFaultPlan, folder: Path, environment: Mapping[str, str] | None
) -> tuple[Evidence, FaultInjector]:
    cluster = LocalCluster(
        plan.regions,
        plan.replicas,
        folder,
        durability="durable" if plan.durable else "memory",
        fabric=plan.fabric,
        environment=environment,
    )
    await cluster.start()
    injector = FaultInjector(cluster, plan.rng, plan.replicas, durable=plan.durable)
    load: Load | None = None
    try:
        await create(cluster, plan.streams)
        load = Load(plan.order(cluster))
        await load.open()
        load.publish()
        began = time.monotonic()
        for episode in plan.episodes:
            await injector.sleep(0.5, 1.2)
            await _attempt(injector, episode)
        await asyncio.sleep(max(SECONDS - (time.monotonic() - began), 0.5))
        await injector.end_all()
        await _judge_end(cluster, load, injector)
        return load.evidence, injector
    finally:
        if load is not None:
            await load.close()
        await cluster.stop()


async def _attempt(injector: FaultInjector, episode: Episode) -> None:
    """Run an episode; a fault that the supervisor refuses (no replica left for it) is no finding."""
    try:
        await episode(injector)
    except TidingsError as error:
        injector.story.append(f"{getattr(episode, '__name__', '')} refused: {error}")


async def _judge_end(cluster: LocalCluster, load: Load, injector: FaultInjector) -> None:
    """All faults are ended: demand convergence. A single region that lost its memory must begin again, empty."""
    if len(cluster.regions) == 1 and (await cluster.status())["lost"]:
        await _judge_lost_cluster(cluster, load)
        return
    outside = ""
    try:
        await cluster.until_ready(READY)
    except TidingsError as error:
        outside = str(error)
    load.evidence.gauge("cluster", outside or "replicas_outside", bool(outside), time.time(), 0)
    ends = await load.stop(ANSWERS)
    every = sorted({stream for each in load.order.subscribers for stream in each.streams})
    late = [Subscribing(name=f"late-{name}", url=cluster.url(name), streams=every) for name in cluster.regions]
    await load.join(late)
    await load.finish(ends, SETTLE)
    await injector.gather_reports()


async def _judge_lost_cluster(cluster: LocalCluster, load: Load) -> None:
    """Nobody has the events any more: the message must name a command, and the command must start the region again."""
    await load.close()
    (region,) = cluster.regions
    said = ""
    try:
        await cluster.until_ready(READY)
    except TidingsError as error:
        said = str(error)
    named = f"tidings replica bootstrap {region}" in said
    load.evidence.gauge("cluster", f"no command in {said!r}", not named, time.time(), 0)
    await cluster.bootstrap(region)
    await cluster.until_ready(READY)
    async with connect(cluster.url(region), timeout=30.0) as t:
        await t.create_stream("afterwards", region=region)
        await t.publish("afterwards", payload=b"x")


async def create(cluster: LocalCluster, streams: Mapping[StreamId, tuple[str, str]]) -> None:
    """Create streams, and wait until every region knows them."""
    async with connect(cluster.url(cluster.regions[0]), timeout=30.0) as t:
        for name, (region, gc) in streams.items():
            await t.create_stream(name, region=region, gc=gc)
    for region in cluster.regions:
        async with connect(cluster.url(region), timeout=30.0) as t:
            while len(await t.streams()) < len(streams):
                await asyncio.sleep(0.05)


def machines(folder: Path) -> list[Violation]:
    """Replicas that could not go on, as their logs say."""
    found = []
    for path in sorted((folder / "logs").glob("*.log")):
        for line in path.read_bytes().splitlines():
            if b'"critical"' in line:
                said = msgspec.json.decode(line)
                what = f"{said.get('event', '')} {said.get('error', '')} {said.get('exception', '')}"
                found.append(Violation("machine", {"node": said.get("node", path.stem)}, what.strip()[-400:]))
    return found


def counted(evidence: Evidence) -> Counter[str]:
    """Rare paths that clients have seen."""
    seen: Counter[str] = Counter()
    for receipt in evidence.receipts:
        seen["tombstones"] += receipt.rows < receipt.hi - receipt.lo
        seen["asof_ahead"] += receipt.asof > receipt.hi
    seen["incarnations"] = len({(each.subscriber, each.incarnation) for each in evidence.receipts}) - len(
        {each.subscriber for each in evidence.receipts}
    )
    seen["ranges_lost"] = len(set(evidence.lost))
    seen["collectors"] = sum(batch.before is not None or batch.where is not None for batch in evidence.sent)
    return seen


# --- many seeds -------------------------------------------------------------------------------------------------


def summary(target: str, seeds: range, outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What some seeds found, as `tidings check cluster` prints it."""
    return {
        **common.summary(target, seeds, outcomes, GOALS, FAULTS),
        "violations": [each for outcome in outcomes for each in described(outcome)],
        "events": sum(each["events"] for each in outcomes),
        "receipts": sum(each["receipts"] for each in outcomes),
    }


def described(outcome: Mapping[str, Any], most: int = 20) -> Iterator[dict[str, Any]]:
    """The violations of a seed, each with the command that runs it again and what was done to the cluster."""
    for each in islice(common.described("cluster", outcome), most):
        yield {**each, "story": "; ".join(outcome["story"])}


def suited(kinds: Sequence[Episode], count: int) -> list[int]:
    """The first seeds of durable chains of three that have one of these episodes: where a certain bug should show."""
    found: list[int] = []
    seed = 0
    while len(found) < count:
        plan = ClusterFaultPlan(seed)
        if plan.durable and plan.replicas == 3 and set(kinds) & set(plan.episodes):
            found.append(seed)
        seed += 1
    return found


def environment_with(path: Path) -> dict[str, str]:
    """Of processes that take the package from another place."""
    return {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
