"""The demo: a cluster of real processes on this machine under load and faults, and its audit.

Every region has a by-key stream of invalidations and two publishers. Cache clients, plain subscribers and peers of the
fabric in several processes follow the streams, each connected to one region; an edge feeds the plain ones. Two tapes in
different regions follow all streams in one order, through a filter. Meanwhile a link is cut and healed, an edge is
killed, and a head, a middle and a tail are killed (each in another region) and replaced: by the same process with its
disk, or by a new one. Then the publishers stop, every subscriber has to reach the end, and late subscribers read what
collection has left in each region. The functions of check/ judge what publishers were told and what subscribers
received. Last comes the audit that users have: an archive, whose leases were there before the first event, brings all
events and receipts into a lake, and a Spark job judges every subscriber by its receipts.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from tidings.campaign.cluster.client_trace import Evidence, collected
from tidings.campaign.cluster.load import Kind, LoadWorker, Progress, PublisherLoad, Subscribing, WorkerOrder
from tidings.campaign.cluster.stalls import longest_stall
from tidings.check import Violation, judge
from tidings.client.connection import connect
from tidings.core.errors import BadInput
from tidings.core.ids import FIRST, RegionId, StreamId
from tidings.lab.demo_tape import Tape, left_of
from tidings.lab.lake_audit import Auditor, prepare
from tidings.server.cluster_config import ProtocolConfig
from tidings.server.local import LocalCluster
from tidings.spark.session import require_java

WORKERS = 3  # processes of subscribers; ours: with the replicas enough for two cores
PUBLISHERS = 2  # per region
RATE = 500.0  # events/s of a publisher; ours: what 9 replicas and 60 clients bear on two cores while others work
BATCH = 250
KEYS = 1_000
KINDS: tuple[Kind, ...] = ("plain", "cache", "cache", "cache", "peer", "peer", "cache", "plain", "cache")
DOWN = 2.5  # seconds until a killed replica is replaced; ours: longer than the silence after which it is removed
EDGE_DOWN = 1.0  # seconds until a killed edge is back; ours: its subscribers are elsewhere by then
ANSWERS = 30.0  # seconds that publishers have for their last answers; ours
SETTLE = 30.0  # seconds that subscribers have to reach the end; ours
LATE = "late-"  # how the names of subscribers begin that come when all is over
LOST, DUPLICATED = ("acknowledged", "completeness"), ("no_duplication",)


Show = Callable[["Demo"], None]


class Demo:
    """One run; the attributes say how it stands while it runs."""

    def __init__(
        self, regions: int = 3, replicas: int = 3, clients: int = 60, seconds: float = 40.0, edges: int = 1
    ) -> None:
        if regions > 3:
            raise BadInput(f"{regions} regions: the distances of the preset are between at most 3")
        self.regions = [f"r{at}" for at in range(regions)]
        self.replicas = replicas
        self.clients = clients
        self.edges = edges
        self.seconds = seconds
        self.phase = "starting"
        self.began = time.monotonic()
        self.loading = 0.0  # wall time at which publishing began
        self.audited: dict[str, Any] = {}
        self.faults: list[dict[str, Any]] = []
        self.status: dict[str, Any] = {}
        self.history: list[tuple[float, int, int]] = []  # time, acked, delivered
        self.home: dict[str, RegionId] = {}  # of each client
        self.streams: dict[StreamId, RegionId] = {f"invalidations-{name}": name for name in self.regions}
        self._workers: list[LoadWorker] = []
        self._auditor: Auditor | None = None
        self._tapes: list[Tape] = []
        self.edge_subscriptions = 0  # that edges feed when publishing begins
        self.taped: dict[str, dict[str, Any]] = {}

    # --- the run --------------------------------------------------------------------------------------------

    async def run(self, show: Show | None = None) -> dict[str, Any]:
        """Everything, from an empty directory to the verdict (the JSON of `tidings demo`)."""
        require_java()
        with tempfile.TemporaryDirectory(prefix="tidings-demo-") as folder:
            size, told = (len(self.regions), self.replicas), ProtocolConfig(receipts=True)
            where = Path(folder) / "cluster"
            cluster = LocalCluster(*size, where, durability="durable", wan="us", protocol=told, edges=self.edges)
            watching: asyncio.Task[None] | None = None
            try:
                await cluster.start()
                watching = asyncio.ensure_future(self._watch(cluster, show))
                evidence = await self._play(cluster, Path(folder))
            finally:
                if watching is not None:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
                for tape in self._tapes:
                    await tape.end()
                for worker in self._workers:
                    await worker.end()
                if self._auditor is not None:
                    await self._auditor.end()
                await cluster.stop()
        self.phase = "judging"
        return await asyncio.to_thread(self._verdict, evidence)

    async def _play(self, cluster: LocalCluster, folder: Path) -> Evidence:
        await self._create(cluster)
        lake = folder / "lake"
        await prepare(lake, {name: cluster.url(region) for name, region in self.streams.items()}, 600.0 + self.seconds)
        self.phase = "connecting"
        self._workers = [
            LoadWorker(order, folder / f"{at}.evidence") for at, order in enumerate(self._orders(cluster.url))
        ]
        await asyncio.gather(*[worker.start() for worker in self._workers])
        ends_of_world = dict.fromkeys((self.regions[0], self.regions[-1]))  # as far apart as regions are
        self._tapes = [Tape(f"tape-{region}", cluster.url(region), list(self.streams)) for region in ends_of_world]
        await asyncio.gather(*[tape.start() for tape in self._tapes])
        regions = (await cluster.status())["regions"]
        self.edge_subscriptions = sum([each["subscriptions"] or 0 for region in regions for each in region["edges"]])
        talker = self._workers[0]
        self.phase = "publishing"
        await talker.call("publish", "publish", 10.0)
        self.loading = time.time()
        breaking = asyncio.ensure_future(self._break(cluster))
        await asyncio.sleep(self.seconds)
        await breaking
        self.phase = "stopping"
        ends: dict[StreamId, int] = await talker.call({"stop": ANSWERS}, "ends", ANSWERS + 10.0)
        self.stopped = time.time()
        self._auditor = Auditor(lake, cluster.url(self.regions[0]))
        await self._auditor.start()
        self.phase = "healing"
        await cluster.until_ready()
        self.phase = "settling"
        late = [
            Subscribing(name=f"{LATE}{name}", url=cluster.url(name), streams=list(self.streams))
            for name in self.regions
        ]
        self.home.update({f"{LATE}{name}": name for name in self.regions})
        finish = {"finish": ends, "timeout": SETTLE, "late": []}
        asked = [finish | {"late": msgspec.to_builtins(late)}, *[finish for _ in self._workers[1:]]]
        calls = [worker.call(what, "done", SETTLE + 30.0) for worker, what in zip(self._workers, asked, strict=True)]
        await asyncio.gather(*calls, *[tape.finish() for tape in self._tapes])
        async with connect(cluster.url(self.regions[0]), timeout=30.0) as t:
            left = await left_of(t, list(self.streams), ends)
        self.taped = {tape.name: tape.verdict(left) for tape in self._tapes}
        self.status = await cluster.status()
        evidence = Evidence()
        for worker in self._workers:
            evidence.add(await worker.evidence())
        self.phase = "auditing"
        self.audited = await self._auditor.audit()
        return evidence

    async def _create(self, cluster: LocalCluster) -> None:
        async with connect(cluster.url(self.regions[0]), timeout=30.0) as t:
            for stream, region in self.streams.items():
                await t.create_stream(stream, region=region, gc="by-key")
        for region in self.regions:
            async with connect(cluster.url(region), timeout=30.0) as t:
                while len(await t.streams()) < len(self.streams):
                    await asyncio.sleep(0.05)

    def _orders(self, url: Callable[[RegionId], str]) -> list[WorkerOrder]:
        """One process of publishers and witnesses, and some of subscribers: most of them caches."""
        publishers = [
            PublisherLoad(
                name=f"p{at}-{region}", url=url(region), stream=stream, rate=RATE, batch=BATCH, keys=KEYS, seed=at
            )
            for stream, region in self.streams.items()
            for at in range(PUBLISHERS)
        ]
        names = list(self.streams)
        witnesses = [
            Subscribing(name=f"witness-{region}", url=url(region), streams=names, witness=True)
            for region in self.regions
        ]
        self.home.update({f"witness-{region}": region for region in self.regions})
        parts: list[list[Subscribing]] = [[] for _ in range(WORKERS)]
        for at in range(max(self.clients - len(witnesses), 0)):
            kind: Kind = KINDS[at % len(KINDS)]
            region = self.regions[(at + at // len(KINDS)) % len(self.regions)]  # every kind in every region
            streams = [names[(at // len(names)) % len(names)]] if kind == "cache" else names
            self.home[f"{kind}-{at}"] = region
            part = parts[(at // len(self.regions) + at // len(KINDS)) % WORKERS]  # every process has its share of each
            part.append(Subscribing(name=f"{kind}-{at}", url=url(region), streams=streams, kind=kind))
        return [
            WorkerOrder(publishers=publishers, subscribers=witnesses),
            *[WorkerOrder(subscribers=part) for part in parts if part],
        ]

    # --- breaking ---------------------------------------------------------------------------------------------

    async def _break(self, cluster: LocalCluster) -> None:
        """One link, then one replica of each role, each in another region as far as there are any."""
        start = time.monotonic()

        async def at(share: float) -> None:
            await asyncio.sleep(max(start + share * self.seconds - time.monotonic(), 0.0))

        if len(self.regions) > 1:
            a, b = self.regions[:2]
            await at(0.1)
            await self._fault("cut", f"{a}-{b}", cluster.cut(a, b))
            await at(0.25)
            await self._fault("heal", f"{a}-{b}", cluster.heal(a, b))
        if self.edges:
            await at(0.15 if len(self.regions) == 1 else 0.28)
            edge = f"{self.regions[-1]}/e0"
            await self._fault("kill edge", edge, cluster.kill(edge))
            await asyncio.sleep(min(EDGE_DOWN, 0.03 * self.seconds))
            await cluster.restart(edge)
        roles = {1: ["head"], 2: ["head", "tail"]}.get(self.replicas, ["head", "middle", "tail"])
        for turn, role in enumerate(roles):
            await at(0.32 + 0.2 * turn)
            region = self.regions[turn % len(self.regions)]
            chain = await cluster.chain(region)
            victim = chain[{"head": 0, "middle": len(chain) // 2, "tail": -1}[role]]
            await self._fault(f"kill {role}", victim, cluster.kill(victim))
            await asyncio.sleep(min(DOWN, 0.12 * self.seconds))
            if role == "middle":
                added = await cluster.add(region)
                await self._fault("replace", f"{victim} by {added}", cluster.remove(victim))
            else:
                await self._fault("restart", victim, cluster.restart(victim))

    async def _fault(self, kind: str, what: str, doing: Coroutine[Any, Any, None]) -> None:
        self.faults.append({"at_s": round(time.time() - self.loading, 1), "kind": kind, "what": what})
        await doing

    # --- how it stands ----------------------------------------------------------------------------------------

    async def _watch(self, cluster: LocalCluster, show: Show | None) -> None:
        while True:
            progress = self.progress
            self.history.append((time.time(), progress.acked, progress.delivered))
            if show is not None:
                with contextlib.suppress(Exception):  # a glance that fails spoils nothing
                    self.status = await asyncio.wait_for(cluster.status(), 3.0)
                show(self)
            await asyncio.sleep(0.5)

    @property
    def progress(self) -> Progress:
        """All workers together."""
        total = Progress()
        for worker in self._workers:
            each = worker.progress
            total.acked += each.acked
            total.delivered += each.delivered
            total.hits += each.hits
            total.loads += each.loads
            total.horizons = total.horizons | each.horizons
            total.ends = total.ends | each.ends
        return total

    def lag(self, region: RegionId) -> int:
        """By how many events the slowest client of a region is behind what was acknowledged, in all streams it has."""
        progress = self.progress
        behind = [
            sum(max(progress.ends.get(stream, FIRST) - at, 0) for stream, at in horizons.items())
            for client, horizons in progress.horizons.items()
            if self.home.get(client) == region
        ]
        return max(behind, default=0)

    def rates(self) -> tuple[float, float]:
        """Events acknowledged and rows delivered per second, of late."""
        if len(self.history) < 5:
            return 0.0, 0.0
        (then, acked, delivered), (now, acked_now, delivered_now) = self.history[-5], self.history[-1]
        seconds = max(now - then, 1e-6)
        return (acked_now - acked) / seconds, (delivered_now - delivered) / seconds

    # --- the verdict --------------------------------------------------------------------------------------------

    def _verdict(self, evidence: Evidence) -> dict[str, Any]:
        trace = evidence.trace(dict.fromkeys(self.streams, "by-key"))
        violations = judge(trace)
        by = Counter(each.invariant for each in violations)
        present = {name: home for name, home in self.home.items() if not name.startswith(LATE)}
        process = {each.name: worker.order.evidence for worker in self._workers for each in worker.order.subscribers}
        stall = longest_stall(evidence, self.loading, self.stopped, present, self.faults, process)
        published = evidence.published
        self.phase = "done"
        return {
            "published": published,
            "delivered": evidence.delivered,
            "collected": collected(trace),
            "lost": sum(by[name] for name in LOST),
            "duplicated": sum(by[name] for name in DUPLICATED),
            "edge_subscriptions": self.edge_subscriptions,
            "tapes": self.taped,
            "longest_stall_s": round(stall.seconds, 3) if stall else 0.0,
            "longest_stall": msgspec.to_builtins(stall) if stall else {},
            "faults": self.faults,
            "events_per_s": round(published / max(self.stopped - self.loading, 1e-6), 1),
            "audit": self.audited
            | {
                "passed": not violations and published > 0 and self._proved and self._tapes_right,
                "violations": [*self.audited["violations"], *[_plain(each) for each in violations]],
                "by_invariant": dict(sorted(by.items())),
                "first": told(violations),
                "collected_as_the_owners_count": sum(each["collected"] for each in self.status.get("streams", [])),
            },
            "seconds": round(time.monotonic() - self.began, 1),
        }

    @property
    def _tapes_right(self) -> bool:
        """Whether every tape has events, in order, once, and lacks none that is left."""
        wrong = [each[name] for each in self.taped.values() for name in ("lost", "duplicated", "out_of_order")]
        return not any(wrong) and all([each["events"] for each in self.taped.values()])

    @property
    def _proved(self) -> bool:
        """Whether the lake's audit leaves nothing open."""
        found = self.audited
        return found["proved"] > 0 and not found["found"] and not found["unverifiable"]


def _plain(violation: Violation) -> dict[str, Any]:
    where = {name: value for name, value in violation.where.items() if isinstance(value, str | int | float)}
    return {"fault": violation.fault, "invariant": violation.invariant, **where, "detail": violation.detail}


def told(violations: list[Violation], most: int = 5) -> list[str]:
    """The first few violations in words."""
    return [f"{each.invariant}: {dict(each.where)}: {each.detail}" for each in violations[:most]]
