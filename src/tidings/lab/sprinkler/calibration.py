"""SP1 and SP2 on a real cluster (Sprinkler, section 5.1, figure 4), beside the simulator, and what a message costs.

One, two and three proxies of one replica each, in memory, as processes of this machine; *drivers*, each a process of
its own, publish to them in a closed loop: a batch of ten-byte events, its acknowledgement, a pause, the next batch.
Throughput is what all proxies hold, from the first driver's first call until the last proxy has everything.

What is not as in the paper, because everything shares the processors of one machine: a driver pauses between two
batches, so that it takes several to use the processors up; a stream keeps its last million events, not 10^8; nobody
reads (as in the paper, drivers do not receive). Beside each run stands how many processors others used meanwhile. A
first round of all runs warms up and is not counted.

- *service times*: processor seconds of a single replica per batch, over batch sizes, with several batches under way:
  a fixed part and a part per event (least squares); what a batch costs more that comes when there was nothing to do,
  as from a single driver that pauses, is the *wake*. A driver always wakes up for an answer, so its line goes through
  those runs. The rest of their round trip is the *hop*, half of it each way; none where processor times alone are as
  long as the round trip, because they overlap. The simulation knows no more of the machine than this.
- *simulated, shared*: the same drivers and proxies, with the measured service times, hop and pauses, on as many
  processors as this machine has, of which others keep busy what was measured: each who is busy gets an equal share.
- *simulated, a processor each*: as in the paper, where every process had its own machine. Beside it what a real run
  says of that: events per second of processor time of the busiest proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tidings.bench.cluster import BenchWorker, Usage, replica_pids, until_level, workers
from tidings.bench.worker import KEY_BYTES, BenchJob
from tidings.client.connection import connect
from tidings.core.errors import TidingsError
from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.core.rows import CountedRows
from tidings.net.loop import run as run_loop
from tidings.protocols.kernel import Deliver, Effect, Effects, Expired, Input, SetTimer, Time, Timer
from tidings.protocols.replication.chain import Committed
from tidings.protocols.services.publishing import Acked, Post, Publisher, PublishSettings
from tidings.server.local import LocalCluster
from tidings.server.paths import SUPERVISOR
from tidings.sim import network
from tidings.sim.build import Deployment
from tidings.sim.scenario import DiskTable, LinkTable, RegionTable, Run, Scenario, ServiceTable, Stream

if TYPE_CHECKING:
    from tidings.lab.study import Point, Row

    pass

DRIVERS = {1: (1, 2, 4, 8), 2: (1, 2, 4), 3: (1, 2, 4)}  # by proxies (SP1), per proxy; ours: what two cores bear
ALONE = (1, 2, 4, 8, 16, 32)  # per proxy, where the simulation gives each a processor
BATCH = 4096  # events; ours: the paper batches heavily and does not say how much
PAUSE = 0.001  # seconds; ours: one driver then uses about half a core, with its proxy
KEEP = 1_000_000  # events of a stream; SP1 keeps 10^8, which would not fit
SIZES = (256, 1024, 4096, 16_384)  # events of a batch, for the service times; more than those sent as lists
BUSY = 4  # batches under way, where a replica always has something to do
SECONDS = {"quick": 1.2, "full": 3.0}  # of publishing
REPEAT = {"quick": 3, "full": 5}  # SP1: five runs
SUBSCRIBED = 1.5  # seconds until regions have subscribed to each other: more than a period of advertisements
PATIENCE = 120.0  # seconds for a driver to answer; ours

RISES = 1.1  # a tenth more is more
FULL = 0.9  # of the processors; ours: with less than a tenth of them left a machine is at its limit


def processors() -> int:
    """How many this machine has."""
    return os.cpu_count() or 1


# --- what is measured: a real cluster -------------------------------------------------------------------


async def step(cluster: LocalCluster, crews: Mapping[StreamId, Sequence[BenchWorker]], job: BenchJob, run: int) -> Row:
    """Let some drivers of each stream publish, and wait until every region has everything."""
    drivers = [worker for crew in crews.values() for worker in crew]
    usage = Usage(replica_pids(cluster))
    for worker in drivers:
        worker.tell()
    sent = await asyncio.gather(*[worker.hear(PATIENCE) for worker in drivers])
    told = dict(zip(drivers, sent, strict=True))
    ends = [max([told[worker]["hi"] for worker in crew]) for crew in crews.values()]
    await until_level(cluster, dict.fromkeys(crews, ""), ends)
    level = time.monotonic()
    used = usage.since(sum([each["cpu"] for each in sent]))
    busy = [seconds for name, seconds in used["replica_cpu"].items() if name != SUPERVISOR]
    began, events = min([each["began"] for each in sent]), sum([each["events"] for each in sent])
    return {
        "run": run,
        "proxies": len(crews),
        "drivers": len(drivers) // len(crews),
        "batch": job.batch,
        "inflight": job.inflight,
        "events": events,
        "seconds": level - began,
        "cycle": sum([each["ended"] - each["began"] for each in sent]) * job.inflight / (events / job.batch),
        "pause": sum([each["paused"] for each in sent]) / (events / job.batch),
        "driver_cpu": sum([each["cpu"] for each in sent]),
        "busiest_cpu": max(busy),
        "replica_cpu": sum(busy),
        "others": float(used["others_cpus"]),
    }


async def rounds(turns: Sequence[Callable[[int], Awaitable[Row]]], repeat: int) -> list[Row]:
    """All turns, so often. A first round is thrown away: new clusters and drivers are slower."""
    rows = [await turn(run) for run in range(-1, repeat) for turn in turns]
    return rows[len(turns) :]


async def _streams(cluster: LocalCluster) -> dict[StreamId, RegionId]:
    """A stream in every region, known everywhere."""
    streams = {f"driven-{region}": region for region in cluster.regions}
    async with connect(cluster.url(cluster.regions[0])) as t:
        for stream, region in streams.items():
            await t.create_stream(stream, region=region, gc=f"keep-last:{KEEP}")
    return streams


async def measure_drivers(drivers: Mapping[int, Sequence[int]], seconds: float, repeat: int) -> list[Row]:
    """SP1 and SP2: ever more drivers, by the number of proxies. The clusters take turns, so that all meet the same of
    what others do."""
    job = BenchJob(batch=BATCH, keys=1000, seconds=seconds, inflight=1, pause=PAUSE)
    async with contextlib.AsyncExitStack() as stack:
        fleets: list[tuple[LocalCluster, dict[StreamId, list[BenchWorker]]]] = []
        for proxies, counts in drivers.items():
            most = max(counts)
            cluster = await stack.enter_async_context(LocalCluster(proxies, 1, lab=False))
            streams = await _streams(cluster)
            jobs = [
                ("publish-tables", msgspec.structs.replace(job, url=cluster.url(region), stream=stream, seed=at))
                for stream, region in streams.items()
                for at in range(most)
            ]
            made = await stack.enter_async_context(workers(jobs))
            fleets.append((cluster, {stream: made[at * most :][:most] for at, stream in enumerate(streams)}))
        await asyncio.sleep(SUBSCRIBED)
        turns = [
            partial(step, cluster, {stream: crew[:count] for stream, crew in crews.items()}, job)
            for each in itertools.zip_longest(*drivers.values())
            for count, (cluster, crews) in zip(each, fleets, strict=True)
            if count is not None
        ]
        return await rounds(turns, repeat)


async def measure_service(sizes: Sequence[int], seconds: float, repeat: int) -> list[Row]:
    """One replica, one driver: batches of several sizes, one under way and a pause, or several under way."""
    async with LocalCluster(1, 1, lab=False) as cluster:
        ((stream, region),) = (await _streams(cluster)).items()
        job = BenchJob(url=cluster.url(region), stream=stream, keys=1000, seconds=seconds)
        wanted = [
            msgspec.structs.replace(job, batch=size, inflight=under_way, pause=pause)
            for size in sizes
            for under_way, pause in ((1, PAUSE), (BUSY, 0.0))
        ]
        async with workers([("publish-tables", each) for each in wanted]) as made:
            turns = [
                partial(step, cluster, {stream: [worker]}, each) for worker, each in zip(made, wanted, strict=True)
            ]
            return await rounds(turns, repeat)


def points(scale: str) -> list[Point]:
    """What is measured: the service times, then one, two and three proxies."""
    return [{"part": part, "publish": SECONDS[scale], "repeat": REPEAT[scale]} for part in ("service", "drivers")]


def measure(point: Mapping[str, Any]) -> list[Row]:
    """A row for every time that the drivers of a cluster published."""
    seconds, repeat = point["publish"], point["repeat"]
    if point["part"] == "service":
        return run_loop(measure_service(SIZES, seconds, repeat))
    return run_loop(measure_drivers(DRIVERS, seconds, repeat))


# --- the service times ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadLine:
    """Processor seconds of a batch: a fixed part and a part per event."""

    fixed: float
    event: float

    @classmethod
    def through(cls, sizes: Sequence[float], seconds: Sequence[float]) -> LoadLine:
        """Least squares; neither part is negative."""
        event, fixed = np.polyfit(np.array(sizes, float), np.array(seconds, float), 1)
        if event < 0:
            return cls(float(np.mean(seconds)), 0.0)
        return cls(max(float(fixed), 0.0), float(event))

    def at(self, batch: float) -> float:
        """Of a batch of that size."""
        return self.fixed + batch * self.event


@dataclass(frozen=True)
class Model:
    """What the simulation knows of this machine."""

    replica: LoadLine
    wake: float  # seconds that a batch costs a replica more that had nothing to do
    driver: LoadLine
    hop: float  # seconds, one way

    @property
    def service(self) -> ServiceTable:
        """For a scenario; what messages without events cost was not measured."""
        return ServiceTable(per_batch=self.replica.fixed, per_event=self.replica.event, per_wake=self.wake)


@dataclass(frozen=True)
class Size:
    """A batch size, beside the model that goes through all of them."""

    batch: int
    runs: tuple[float, ...]  # processor seconds of a busy replica per batch
    line: float  # the same by the model
    rest: float  # seconds of a round trip that are nobody's work; negative where processor times overlap
    others: float  # processors

    @property
    def off(self) -> float:
        """How far the median run is from the line, as a share of it."""
        return median(self.runs) / self.line - 1


def fit(rows: Sequence[Row]) -> tuple[Model, list[Size]]:
    """From the runs of one replica: the medians of each size."""
    busy, idle = ([row for row in rows if (row["inflight"] > 1) == many] for many in (True, False))
    taken = _by_size(busy, lambda row: row["replica_cpu"] / batches(row))
    replica = LoadLine.through(list(taken), list(taken.values()))
    woken = _by_size(idle, lambda row: row["replica_cpu"] / batches(row))
    answered = _by_size(idle, lambda row: row["driver_cpu"] / batches(row))
    driver = LoadLine.through(list(answered), list(answered.values()))
    wake = max(median([woken[size] - taken[size] for size in taken]), 0.0)
    round_trip = _by_size(idle, lambda row: row["cycle"] - row["pause"])
    rest = {size: seconds - replica.at(size) - wake - driver.at(size) for size, seconds in round_trip.items()}
    others = _by_size(rows, lambda row: row["others"])
    sizes = []
    for size in taken:
        runs = tuple(row["replica_cpu"] / batches(row) for row in busy if row["batch"] == size)
        sizes.append(Size(size, runs, replica.at(size), rest[size], others[size]))
    return Model(replica, wake, driver, hop=max(median(list(rest.values())) / 2, 0.0)), sizes


def _by_size(rows: Sequence[Row], value: Callable[[Row], float]) -> dict[int, float]:
    """The median run of every batch size."""
    return {size: median([value(row) for row in rows if row["batch"] == size]) for size in sizes_of(rows)}


def sizes_of(rows: Sequence[Row]) -> list[int]:
    return sorted({row["batch"] for row in rows})


def batches(row: Row) -> float:
    return float(row["events"] / row["batch"])


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


# --- the simulation -------------------------------------------------------------------------------------


class NextBatch(Timer, frozen=True, gc=False):
    """A driver's pause is over."""


class Driver:
    """Publishes one event, waits until its time has come, then publishes in a closed loop until it is over."""

    def __init__(self, publisher: Publisher, stream: StreamId, batch: int, pause: float, time: tuple[float, float]):
        self.publisher = publisher
        self.stream = stream
        self.batch = batch
        self.pause = pause
        self.begin, self.end = time
        self.sent = 0

    def start(self, now: Time) -> Effects:
        first = self.publisher.handle(now, Post(self.stream, CountedRows(1, 2, KEY_BYTES)))
        return [*self.publisher.start(now), *first, SetTimer(self.begin - now, NextBatch())]

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is Expired and type(input.timer) is NextBatch:
            if now >= self.end:
                return []
            self.sent += self.batch
            return self.publisher.handle(now, Post(self.stream, CountedRows(1, 1 + self.batch, KEY_BYTES)))
        effects: list[Effect] = list(self.publisher.handle(now, input))
        if now >= self.begin and any(type(each) is Deliver and isinstance(each.item, Acked) for each in effects):
            effects.append(SetTimer(self.pause, NextBatch()))
        return effects

    def check(self) -> None:
        self.publisher.check()


class Level:
    """How far every replica has committed every stream, and when that last moved."""

    def __init__(self) -> None:
        self.ends: dict[tuple[NodeId, StreamId], int] = {}
        self.moved = 0.0

    def on_deliver(self, time: float, node: NodeId, incarnation: int, item: Any) -> None:
        """A record is committed."""
        if type(item) is Committed:
            for part in item.record.parts:
                if not part.stream.startswith("_"):
                    self.ends[node, part.stream] = max(part.hi, self.ends.get((node, part.stream), 0))
                    self.moved = time


def scenario(proxies: int, service: ServiceTable, hop: float) -> Scenario:
    """Some regions of one replica in memory, side by side."""
    names = [f"r{at}" for at in range(proxies)]
    return Scenario(
        scenario=Run(name="drivers", seconds=60.0),
        regions=tuple(RegionTable(name, latency=hop) for name in names),
        links=tuple(LinkTable(a, b, hop) for a, b in itertools.combinations(names, 2)),
        streams=tuple(Stream(f"driven-{name}", name, rows="counted", event_bytes=KEY_BYTES) for name in names),
        service=service,
        disk=DiskTable(sync=0.0),
    )


def simulated(
    model: Model, proxies: int, drivers: int, *, pause: float, seconds: float, others: float | None = None
) -> float:
    """Events/s; ``others``: processors of this machine that somebody else uses, None: everybody has one of his own."""
    deployment = Deployment(scenario(proxies, model.service, model.hop), 0, check=False, trace=False)
    world, level = deployment.world, Level()
    world.observers[:] = [level]
    begin = 2 * SUBSCRIBED
    cost = network.ServiceTimes(per_message=model.driver.at(BATCH))
    for region, count in itertools.product(deployment.replicas, range(drivers)):

        def driver(durable: Any, incarnation: int, rng: Any, region: str = region, count: int = count) -> Driver:
            publisher = Publisher(f"{region}-{count}", deployment.memberships[region], PublishSettings(), count)
            late = begin + pause * count / drivers  # processes are not told to begin at the same moment either
            return Driver(publisher, f"driven-{region}", BATCH, pause, (late, begin + seconds))

        world.add_node(f"{region}/d{count}", region, driver, service=cost)
    if others is not None:
        shared = network.Processors(processors(), others)
        for host in world.hosts.values():
            host.share(shared)
    world.start()
    now = begin + seconds
    world.run(now)
    published = sum(_driver(world, node).sent for node in world.hosts if "/d" in node)
    wanted = proxies * (published + proxies * drivers)
    while sum(level.ends.values()) - len(level.ends) < wanted and now < begin + 10 * seconds:
        now += seconds / 10
        world.run(now)
    if world.failures:
        raise RuntimeError(world.failures[0].traceback)
    if (arrived := sum(level.ends.values()) - len(level.ends)) < wanted:
        raise TidingsError(
            f"{proxies} proxies, {drivers} drivers each, simulated: of {wanted:,} events {arrived:,} had arrived after "
            f"{now - begin:g} s, ten times as long as was published; a batch takes {model.replica.at(BATCH):g} s as "
            "fitted, so measure again while nobody else uses the machine"
        )
    return published / (level.moved - begin)


def _driver(world: Any, node: NodeId) -> Driver:
    machine = world.hosts[node].machine
    assert isinstance(machine, Driver)
    return machine


# --- side by side ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spot:
    """Some drivers against some proxies: what was measured, and what is simulated."""

    proxies: int
    drivers: int  # per proxy
    real: tuple[float, ...]  # events/s of every run
    capacity: float  # events per second of processor time of the busiest proxy
    used: float  # processors that drivers and replicas used
    others: float  # and others
    simulated: float  # on the same processors

    @property
    def rate(self) -> float:
        """The median run."""
        return median(self.real)

    @property
    def distance(self) -> float:
        """Of the simulation, as a share of what was measured."""
        return self.simulated / self.rate - 1

    @property
    def full(self) -> bool:
        """Whether the machine is at its limit."""
        return self.used + self.others >= FULL * processors()

    @property
    def cost(self) -> float:
        """Processor seconds of all drivers and replicas per event."""
        return self.used / self.rate

    @property
    def taken(self) -> str:
        """Who had the processors, in words."""
        return f"{self.used:.1f} and others {self.others:.1f} of {processors()} processors"


@dataclass(frozen=True)
class Calibrated:
    """Everything the claims are judged by."""

    model: Model
    sizes: list[Size]
    spots: list[Spot]
    own: dict[tuple[int, int], float]  # simulated with a processor each: (proxies, drivers) -> events/s

    def of(self, proxies: int) -> list[Spot]:
        """By drivers."""
        return sorted([spot for spot in self.spots if spot.proxies == proxies], key=lambda spot: spot.drivers)

    @property
    def counts(self) -> list[int]:
        """Numbers of proxies."""
        return sorted({spot.proxies for spot in self.spots})

    def top(self, proxies: int) -> Spot:
        """Where most was measured."""
        return max(self.of(proxies), key=lambda spot: spot.rate)

    def peak(self, proxies: int) -> float:
        """The most that was measured."""
        return self.top(proxies).rate

    @property
    def last_gains(self) -> dict[int, float]:
        """By proxies: how many times more the last drivers bring."""
        ends = {count: self.of(count)[-2:] for count in self.counts}
        return {count: b.rate / a.rate for count, (a, b) in ends.items()}

    @property
    def saturated(self) -> list[int]:
        """The numbers of proxies with which the last drivers bring hardly more: only these have a peak."""
        return [count for count, gain in self.last_gains.items() if gain < RISES]

    def simulated_peak(self, proxies: int) -> float:
        """The most that was simulated on the same processors."""
        return max(spot.simulated for spot in self.of(proxies))

    def own_peak(self, proxies: int) -> float:
        """The most that was simulated with a processor each."""
        return max(rate for (count, _), rate in self.own.items() if count == proxies)

    def capacity(self, proxies: int) -> float:
        """What the busiest proxy's processor time allows, at the load with most drivers."""
        return self.of(proxies)[-1].capacity


def beside(rows: Sequence[Row]) -> Calibrated:
    """Fit the model, and simulate every spot with it."""
    model, sizes = fit([row for row in rows if row["part"] == "service"])
    driven = [row for row in rows if row["part"] == "drivers"]
    spots = []
    for proxies, drivers in sorted({(row["proxies"], row["drivers"]) for row in driven}):
        some = [row for row in driven if (row["proxies"], row["drivers"]) == (proxies, drivers)]
        pause, others = median([row["pause"] for row in some]), median([row["others"] for row in some])
        seconds = some[0]["seconds"]
        spots.append(
            Spot(
                proxies,
                drivers,
                tuple(row["events"] / row["seconds"] for row in some),
                median([row["events"] / row["busiest_cpu"] for row in some]),
                median([(row["driver_cpu"] + row["replica_cpu"]) / row["seconds"] for row in some]),
                others,
                simulated(model, proxies, drivers, pause=pause, seconds=seconds, others=others),
            )
        )
    pause = median([row["pause"] for row in driven if row["proxies"] == min(DRIVERS)])
    own = {
        (proxies, drivers): simulated(model, proxies, drivers, pause=pause, seconds=0.5)
        for proxies in sorted({row["proxies"] for row in driven})
        for drivers in ALONE
    }
    return Calibrated(model, sizes, spots, own)
