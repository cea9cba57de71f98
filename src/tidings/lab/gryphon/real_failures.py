"""GR4 to GR6 on real processes: p1, b1 to b4 and s1 to s5 are eleven processes of this machine, supervisor included.

The topology, load and settings are those of topology.py; p1 logs to a disk with fsync. Subscribers are the same machine
as in the simulation, in hosts of this process, so each can prefer its edge. Publishers are clients of the library.

| fault | stall | failure |
|---|---|---|
| link | b1 throws away what it has for s1 and what comes from there (faulty_brokers.py) | b1 closes the connections |
| relay | SIGSTOP to b1 | SIGKILL |
| site | b1 to b4 throw away what p1 sends; p1 logs and answers publishers | SIGKILL to p1; publishers stop |

Latency is from the time at which p1 numbered a message until the subscriber's process has it, by one clock. Nacks are
counted from the journals of the brokers, run again: what a machine sent in them it has sent. Repairs come sooner than
in the paper at scale quick; p1 stays away for longer than AET.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tidings.client.connection import Connection, connect
from tidings.core.ids import StreamId
from tidings.lab.claims import Experiment, Findings
from tidings.lab.gryphon import failure_verdicts
from tidings.lab.gryphon.failure_verdicts import PAPER, claim_ids, experiment, report_runs
from tidings.lab.gryphon.failures import STALL, FaultRun, Nacked, read, rows, violations
from tidings.lab.gryphon.faulty_brokers import LinkFaults
from tidings.lab.gryphon.launcher import WAIT, Brokers, RealFailed, until
from tidings.lab.gryphon.topology import (
    CELLS,
    EDGES,
    EVENT_BYTES,
    RATE,
    STREAMS,
    LabSubscriber,
    carried_by,
    client_of,
    numbered,
)
from tidings.lab.study import Point, Row, Sql, Study
from tidings.net.host import Host
from tidings.net.journal import replay
from tidings.net.loop import run as run_loop
from tidings.net.names import ADDRESSES, seed_of, slot_of
from tidings.protocols.brokers.broker_messages import Brokered, Nack
from tidings.protocols.brokers.subscriber import Fed, Lost
from tidings.protocols.kernel import Received, Send
from tidings.protocols.messages import Offer
from tidings.server import cluster_config
from tidings.server.http_client import call_async
from tidings.server.local import LocalCluster
from tidings.server.nodes import remake
from tidings.server.topology import CellConfig, EdgeConfig

REGION = "r0"
SITE = f"{REGION}/p0"
SLOT = {f"b{at + 1}": f"{REGION}/b{at}" for at in range(4)} | {f"s{at + 1}": f"{REGION}/e{at}" for at in range(5)}
SHOWN = {slot: name for name, slot in SLOT.items()} | {SITE: "p1"}
RELAYS = [relay for cell in CELLS.values() for relay in cell]

REPAIR = {
    "quick": {"link": 6.0, "relay": 8.0, "site": 12.0},
    "full": {"link": 10.0, "relay": 30.0, "site": 20.0},  # GR4 to GR6
}
SEEDS = {"quick": 1, "full": 3}
BEFORE = 3.0  # seconds of load before the stall
AFTER = 5.0  # seconds after the repair
LAST = 1.0  # of them, seconds without load: what is on the way arrives


def plans() -> tuple[cluster_config.ClusterConfig, cluster_config.ClusterConfig]:
    """The cluster file of p1, and that of the brokers below it."""
    made = cluster_config.generate(1, 1, edges=len(EDGES), relays=len(RELAYS), durability="durable", port=0)
    (region,) = made.regions
    relays = iter(region.cells[0].relays)
    cells = tuple([CellConfig(name=name, relays=tuple([next(relays) for _ in cell])) for name, cell in CELLS.items()])
    above = zip(region.edges, EDGES.values(), strict=True)
    edges = tuple([EdgeConfig(address=edge.address, upstream=cell) for edge, cell in above])
    whole = msgspec.structs.replace(region, cells=cells, edges=edges)
    alone = msgspec.structs.replace(region, cells=(), edges=())
    return msgspec.structs.replace(made, regions=(alone,)), msgspec.structs.replace(made, regions=(whole,))


class PacedPublishers:
    """Publishers of all streams, each message when its time has come."""

    def __init__(self, url: str, streams: Sequence[str]) -> None:
        self.url = url
        self.streams = streams
        self._tasks: list[asyncio.Task[None]] = []
        self._connection: Connection | None = None

    async def start(self) -> None:
        """Begin to publish."""
        self._connection = connect(self.url, timeout=WAIT)
        await self._connection.open()
        count = len(self.streams)
        self._tasks = [
            asyncio.ensure_future(self._publish(self._connection, name, at / (count * RATE)))
            for at, name in enumerate(self.streams)
        ]

    async def _publish(self, connection: Connection, stream: str, later: float) -> None:
        began = time.monotonic() + later
        for number in itertools.count():
            await asyncio.sleep(max(began + number / RATE - time.monotonic(), 0.0))
            await connection.publish(stream, payload=b"%d" % number + b"." * (EVENT_BYTES - 8))

    async def stop(self) -> None:
        """Publish nothing more; what is not answered may or may not be logged."""
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        if self._connection is not None:
            await self._connection.close(flush=False)
        self._tasks, self._connection = [], None


class RealNetwork:
    """The paper's network in processes."""

    def __init__(self, cluster: LocalCluster, brokers: Brokers) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self.url = cluster.url(REGION)
        self.ids: dict[str, StreamId] = {}  # of the streams, by name
        self.publishing: PacedPublishers
        self.subscribers: list[Host] = []
        self.came: list[tuple[str, StreamId, int, float, float]] = []
        self.spans: list[tuple[str, StreamId, int, int]] = []

    def node(self, name: str) -> str:
        """The name of a broker with its address."""
        return self.brokers.places[SLOT[name]].node

    def carried(self, relay: str) -> list[StreamId]:
        """The streams that a relay carries while all are well."""
        cell = next(relays for relays in CELLS.values() if relay in relays)
        nodes = [self.node(name) for name in cell]
        return [stream for stream in self.ids.values() if carried_by(stream, nodes) == self.node(relay)]

    async def create(self) -> None:
        """Four streams, of which each relay of a cell carries two; the others of them stay empty."""
        room = {name: STREAMS // len(cell) for cell in CELLS.values() for name in cell}
        async with connect(self.url, timeout=WAIT) as t:
            for at in itertools.count(1):
                info = await t.create_stream(f"t{at}")
                cells = [[self.node(name) for name in cell] for cell in CELLS.values()]
                takes = [SHOWN[slot_of(carried_by(info.id, cell))] for cell in cells]
                if all([room[name] for name in takes]):
                    self.ids[info.name] = info.id
                    for name in takes:
                        room[name] -= 1
                if len(self.ids) == STREAMS:
                    break
            while len((await t.describe()).edges) < len(EDGES):
                await asyncio.sleep(0.1)
        self.publishing = PacedPublishers(self.url, list(self.ids))

    async def subscribe(self) -> None:
        """A subscriber of everything at each edge."""
        edges = [self.node(edge) for edge in EDGES]
        seeds = tuple([seed_of(address) for address in self.cluster.addresses(REGION)])
        for edge in EDGES:
            name = client_of(self.node(edge), edges, f"{edge}-c")
            machine = LabSubscriber(name, seeds, dict.fromkeys(self.ids.values(), ""), random.Random(name))
            host = Host(
                *(name, machine, ADDRESSES),
                role="client",
                cluster=self.brokers_cluster,
                on_lost=Lost,
                on_deliver=self._taker(edge),
            )
            host.start()
            self.subscribers.append(host)
        wanted = len(EDGES) * STREAMS
        await until("all subscriptions to begin", lambda: len({each[:2] for each in self.spans}) == wanted)
        for edge in EDGES:
            there = [host for host in self.subscribers if host.node.startswith(edge) and self.node(edge) in host.links]
            if not there:
                raise RealFailed(f"the subscriber of {edge} is not connected to it")

    @property
    def brokers_cluster(self) -> str:
        """The cluster's name."""
        return self.cluster.config.cluster.name

    def _taker(self, edge: str) -> Any:
        def take(item: Any) -> None:
            if isinstance(item, Fed):
                now, span = time.time(), item.span
                self.spans.append((edge, span.stream, span.lo, span.hi))
                self.came += [(edge, span.stream, number, at, now) for number, at in numbered(span.rows)]

        return take

    async def ends(self) -> dict[StreamId, int]:
        """How far each stream has come, when all subscribers had the time to come as far."""
        async with connect(self.url, timeout=WAIT) as t:
            ends = {info.id: info.horizon for info in await t.streams() if info.id in self.ids.values()}
        wanted = {(edge, stream, end) for edge in EDGES for stream, end in ends.items()}
        with contextlib.suppress(RealFailed):  # then it is a violation
            await until("the last messages", lambda: wanted <= {(edge, s, hi) for edge, s, _, hi in self.spans}, 5.0)
        return ends

    async def close(self) -> None:
        """The subscribers."""
        await asyncio.gather(*[host.stop() for host in self.subscribers])

    # --- the faults -----------------------------------------------------------------------------------------

    async def inject(self, name: str, faults: LinkFaults) -> None:
        """Let links of a broker be out of order."""
        port = self.brokers.running(SLOT[name]).http_port
        await call_async(port, "/fault", msgspec.to_builtins(faults), timeout=5.0)

    async def stall(self, fault: str) -> None:
        """It takes messages, and passes none on."""
        if fault == "link":
            await self.inject("b1", LinkFaults(stalled=frozenset({SLOT["s1"]})))
        elif fault == "relay":
            os.kill(self.brokers.running(SLOT["b1"]).pid, signal.SIGSTOP)
        else:
            deaf = LinkFaults(deaf=frozenset({SITE}))
            await asyncio.gather(*[self.inject(relay, deaf) for relay in RELAYS])

    async def fail(self, fault: str) -> None:
        """It fails, and all who are connected with it notice."""
        if fault == "link":
            await self.inject("b1", LinkFaults(cut=frozenset({SLOT["s1"]})))
        elif fault == "relay":
            os.kill(self.brokers.running(SLOT["b1"]).pid, signal.SIGKILL)
        else:
            killed = asyncio.ensure_future(self.cluster.kill(SITE))
            await self.publishing.stop()
            await killed
            await asyncio.gather(*[self.inject(relay, LinkFaults()) for relay in RELAYS])

    async def repair(self, fault: str) -> None:
        """It is back."""
        if fault == "link":
            await self.inject("b1", LinkFaults())
        elif fault == "relay":
            await self.brokers.start([SLOT["b1"]], "faulty")
        else:
            await self.cluster.restart(SITE)
            await self.publishing.start()


@contextlib.asynccontextmanager
async def real_network(folder: Path) -> AsyncIterator[RealNetwork]:
    """Start all processes, and stop them."""
    alone, whole = plans()
    brokers = Brokers(folder / "brokers", whole, folder / "journals")
    try:
        async with LocalCluster(config=alone, dir=folder / "site") as cluster:
            await brokers.start(list(SLOT.values()), "faulty")
            network = RealNetwork(cluster, brokers)
            try:
                await network.create()
                await network.publishing.start()
                await network.subscribe()
                yield network
            finally:
                await network.close()
    finally:
        await brokers.stop()


async def run_real(fault: str, seed: int, stall: float, repair: float) -> FaultRun:
    """One run with one fault."""
    with tempfile.TemporaryDirectory(prefix="tidings-") as name:
        folder = Path(name)
        async with real_network(folder) as network:
            await asyncio.sleep(BEFORE)
            carried = tuple(network.carried("b1"))
            begun = time.time()
            await network.stall(fault)
            await asyncio.sleep(max(begun + stall - time.time(), 0.0))
            failed = time.time()
            await network.fail(fault)
            await asyncio.sleep(max(failed + repair - time.time(), 0.0))
            repaired = time.time()
            await network.repair(fault)
            await asyncio.sleep(max(repaired + AFTER - LAST - time.time(), 0.0))
            await network.publishing.stop()
            await asyncio.sleep(LAST)
            ends = await network.ends()
            end = time.time()
        nacks, said = await asyncio.to_thread(heard, folder / "journals", begun, repaired)
    latency: dict[str, dict[StreamId, Any]] = {edge: {} for edge in EDGES}
    came: dict[tuple[str, StreamId], list[tuple[float, float]]] = defaultdict(list)
    for edge, stream, _, published, delivered in network.came:
        came[edge, stream].append((published - begun, delivered - published))
    for (edge, stream), pairs in sorted(came.items()):
        latency[edge][stream] = tuple(np.array(pairs).T)
    return FaultRun(
        *(fault, seed, failed - begun, repaired - begun, end - begun, carried, latency, nacks),
        said if fault == "site" else {},
        violations(network.spans, network.came, ends),
    )


def heard(journals: Path, begun: float, repaired: float) -> tuple[list[Nacked], dict[StreamId, float]]:
    """From the journals: all nacks, and what the relays heard first of p1 after a repair."""
    nacks: list[Nacked] = []
    first: dict[StreamId, tuple[float, float]] = {}
    for path in sorted(journals.glob("*.journal")):
        me = SHOWN["/".join(path.name.split(".")[0].split("-"))]

        def note(now: float, input: Any, effects: Any, me: str = me) -> None:
            for effect in effects:
                if type(effect) is Send and type(effect.message) is Nack:
                    nack, to = effect.message, slot_of(effect.to)
                    nacks.append(Nacked(now - begun, me, SHOWN.get(to, to), nack.stream, nack.hi - nack.lo))
            if type(input) is Received and slot_of(input.src) == SITE and now >= repaired:
                message = input.message
                if isinstance(message, Offer | Brokered):
                    came = now, 1.0 if isinstance(message, Offer) else 0.0
                    first[message.stream] = min(first.get(message.stream, came), came)

        ran = replay(path, remake, on_step=note, check=False)
        if not ran.same:
            raise RealFailed(f"the journal {path.name} does not do again what {me} did")
    return sorted(nacks, key=lambda nack: nack.at), {stream: what for stream, (_, what) in first.items()}


# --- the experiment -------------------------------------------------------------------------------------


def points(scale: str) -> list[Point]:
    """Each fault."""
    return [
        {"fault": fault, "seed": seed, "repair": repair}
        for fault, repair in REPAIR[scale].items()
        for seed in range(SEEDS[scale])
    ]


def measure(point: Mapping[str, Any]) -> list[Row]:
    """One run, in columns."""
    stall = random.Random(f"{point['seed']}/stall").uniform(*STALL)
    return rows(run_loop(run_real(point["fault"], point["seed"], stall, point["repair"])))


def report(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge and draw the real runs."""
    return report_runs(read(sql), out, "real")


STUDIES = (Study("gryphon-real-failures", points, measure, report, alone=True),)
EXPERIMENTS = tuple(
    Experiment(
        experiment(fault, "real"),
        PAPER,
        f"Figure {number} on real processes",
        claim_ids(fault, "real"),
        "gryphon-real-failures",
    )
    for fault, number in zip(failure_verdicts.CLAIM, (6, 7, 8), strict=True)
)
