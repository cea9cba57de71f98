"""SP1 and SP2 on a real cluster (Sprinkler, section 5.1, figure 4), beside the simulator, and what a message costs.

One, two and three proxies of one replica each, in memory, as processes of this machine; *drivers*, each a process of
its own, publish to them in a closed loop: a batch of ten-byte events, its acknowledgement, a pause, the next batch.
Throughput is what all proxies hold, from the first driver's first call until the last proxy has everything.

What is not as in the paper, because everything shares the processors of one machine: a driver pauses between two
batches, so that it takes several to use the processors up; a stream keeps its last million events, not 10^8; nobody
reads (as in the paper, drivers do not receive). Beside each run stands how many processors others used meanwhile.

- *service times*: processor seconds of a single replica per batch, over batch sizes, with several batches under way:
  a fixed part and a part per event (least squares); what a batch costs more that comes when there was nothing to do,
  as from a single driver that pauses, is the *wake*. A driver always wakes up for an answer, so its line goes through
  those runs. The rest of their round trip is the *hop*, half of it each way. The simulation knows no more of the
  machine than this.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidings.client.connection import connect
from tidings.core.errors import TidingsError
from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.core.rows import CountedRows
from tidings.lab import figures
from tidings.lab.bench_cluster import Usage, Worker, replica_pids, until_level, workers
from tidings.lab.bench_worker import KEY_BYTES, Job
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.study import Point, Row, Sql, Study
from tidings.net.loop import run as run_loop
from tidings.protocols.chain import Committed
from tidings.protocols.kernel import Deliver, Effect, Effects, Expired, Input, SetTimer, Time, Timer
from tidings.protocols.publishing import Acked, Post, Publisher, PublishSettings
from tidings.server.layout import SUPERVISOR
from tidings.server.local import LocalCluster
from tidings.sim import network
from tidings.sim.build import Deployment
from tidings.sim.measured import MEASURED
from tidings.sim.scenario import Disk, Link, Region, Run, Scenario, Service, Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRIVERS = {1: (1, 2, 4, 8), 2: (1, 2, 4), 3: (1, 2, 4)}  # by proxies (SP1), per proxy; ours: what two cores bear
ALONE = (1, 2, 4, 8, 16, 32)  # per proxy, where the simulation gives each a processor
BATCH = 4096  # events; ours: the paper batches heavily and does not say how much
PAUSE = 0.001  # seconds; ours: one driver then uses about half a core, with its proxy
KEEP = 1_000_000  # events of a stream; SP1 keeps 10^8, which would not fit
SIZES = (256, 1024, 4096, 16_384)  # events of a batch, for the service times; more than those sent as lists
BUSY = 4  # batches under way, where a replica always has something to do
SECONDS = {"quick": 1.2, "full": 3.0}  # of publishing
REPEAT = {"quick": 2, "full": 5}  # SP1: five runs
SUBSCRIBED = 1.5  # seconds until regions have subscribed to each other: more than a period of advertisements
PATIENCE = 120.0  # seconds for a driver to answer; ours
PAPER = (2.6e6, 2.7e6)  # SP1: events/s of three proxies at their peak

SLIGHTLY = 0.25  # a change by less than a quarter is slight
RISES = 1.1  # a tenth more is more
NEAR = 0.25  # simulation and reality are near each other
GOOD_TO = 1.5  # a time that was measured on a machine that is not idle


def processors() -> int:
    """How many this machine has."""
    return os.cpu_count() or 1


# --- what is measured: a real cluster -------------------------------------------------------------------


async def step(cluster: LocalCluster, crews: Mapping[StreamId, Sequence[Worker]], job: Job, run: int) -> Row:
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
    job = Job(batch=BATCH, keys=1000, seconds=seconds, inflight=1, pause=PAUSE)
    async with contextlib.AsyncExitStack() as stack:
        fleets: list[tuple[LocalCluster, dict[StreamId, list[Worker]]]] = []
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
            (run, *turn)
            for run in range(repeat)
            for each in itertools.zip_longest(*drivers.values())
            for turn in zip(each, fleets, strict=True)
        ]
        return [
            await step(cluster, {stream: crew[:count] for stream, crew in crews.items()}, job, run)
            for run, count, (cluster, crews) in turns
            if count is not None
        ]


async def measure_service(sizes: Sequence[int], seconds: float, repeat: int) -> list[Row]:
    """One replica, one driver: batches of several sizes, one under way and a pause, or several under way."""
    async with LocalCluster(1, 1, lab=False) as cluster:
        ((stream, region),) = (await _streams(cluster)).items()
        job = Job(url=cluster.url(region), stream=stream, keys=1000, seconds=seconds)
        wanted = [
            msgspec.structs.replace(job, batch=size, inflight=under_way, pause=pause)
            for size in sizes
            for under_way, pause in ((1, PAUSE), (BUSY, 0.0))
        ]
        async with workers([("publish-tables", each) for each in wanted]) as made:
            return [
                await step(cluster, {stream: [worker]}, each, run)
                for run in range(repeat)
                for worker, each in zip(made, wanted, strict=True)
            ]


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
class Line:
    """Processor seconds of a batch: a fixed part and a part per event."""

    fixed: float
    event: float

    @classmethod
    def through(cls, sizes: Sequence[float], seconds: Sequence[float]) -> Line:
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

    replica: Line
    wake: float  # seconds that a batch costs a replica more that had nothing to do
    driver: Line
    hop: float  # seconds, one way
    worst: float  # how far a measured size is from the replica's line, as a share of it

    @property
    def service(self) -> Service:
        """For a scenario; what messages without events cost was not measured."""
        return Service(per_batch=self.replica.fixed, per_event=self.replica.event, per_wake=self.wake)


def fit(rows: Sequence[Row]) -> Model:
    """From the runs of one replica: the medians of each size."""
    busy, idle = ([row for row in rows if (row["inflight"] > 1) == many] for many in (True, False))
    taken = _by_size(busy, lambda row: row["replica_cpu"] / _batches(row))
    replica = Line.through(list(taken), list(taken.values()))
    woken = _by_size(idle, lambda row: row["replica_cpu"] / _batches(row))
    answered = _by_size(idle, lambda row: row["driver_cpu"] / _batches(row))
    driver = Line.through(list(answered), list(answered.values()))
    wake = max(_median([woken[size] - taken[size] for size in taken]), 0.0)
    round_trip = _by_size(idle, lambda row: row["cycle"] - row["pause"])
    rest = [seconds - replica.at(size) - wake - driver.at(size) for size, seconds in round_trip.items()]
    worst = max(abs(seconds / replica.at(size) - 1) for size, seconds in taken.items())
    return Model(replica, wake, driver, hop=max(_median(rest) / 2, 0.0), worst=worst)


def _by_size(rows: Sequence[Row], value: Callable[[Row], float]) -> dict[int, float]:
    """The median run of every batch size."""
    return {size: _median([value(row) for row in rows if row["batch"] == size]) for size in _sizes(rows)}


def _sizes(rows: Sequence[Row]) -> list[int]:
    return sorted({row["batch"] for row in rows})


def _batches(row: Row) -> float:
    return float(row["events"] / row["batch"])


def _median(values: Sequence[float]) -> float:
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


def scenario(proxies: int, service: Service, hop: float) -> Scenario:
    """Some regions of one replica in memory, side by side."""
    names = [f"r{at}" for at in range(proxies)]
    return Scenario(
        scenario=Run(name="drivers", seconds=60.0),
        regions=tuple(Region(name, latency=hop) for name in names),
        links=tuple(Link(a, b, hop) for a, b in itertools.combinations(names, 2)),
        streams=tuple(Stream(f"driven-{name}", name, rows="counted", event_bytes=KEY_BYTES) for name in names),
        service=service,
        disk=Disk(sync=0.0),
    )


def simulated(
    model: Model, proxies: int, drivers: int, *, pause: float, seconds: float, others: float | None = None
) -> float:
    """Events/s; ``others``: processors of this machine that somebody else uses, None: everybody has one of his own."""
    deployment = Deployment(scenario(proxies, model.service, model.hop), 0, check=False, trace=False)
    world, level = deployment.world, Level()
    world.observers[:] = [level]
    begin = 2 * SUBSCRIBED
    cost = network.Service(per_message=model.driver.at(BATCH))
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
    others: float  # processors
    simulated: float  # on the same processors

    @property
    def rate(self) -> float:
        """The median run."""
        return _median(self.real)

    @property
    def distance(self) -> float:
        """Of the simulation, as a share of what was measured."""
        return self.simulated / self.rate - 1


@dataclass(frozen=True)
class Calibrated:
    """Everything the claims are judged by."""

    model: Model
    spots: list[Spot]
    own: dict[tuple[int, int], float]  # simulated with a processor each: (proxies, drivers) -> events/s

    def of(self, proxies: int) -> list[Spot]:
        """By drivers."""
        return sorted([spot for spot in self.spots if spot.proxies == proxies], key=lambda spot: spot.drivers)

    @property
    def counts(self) -> list[int]:
        """Numbers of proxies."""
        return sorted({spot.proxies for spot in self.spots})

    def peak(self, proxies: int) -> float:
        """The most that was measured."""
        return max(spot.rate for spot in self.of(proxies))

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
    model = fit([row for row in rows if row["part"] == "service"])
    driven = [row for row in rows if row["part"] == "drivers"]
    spots = []
    for proxies, drivers in sorted({(row["proxies"], row["drivers"]) for row in driven}):
        some = [row for row in driven if (row["proxies"], row["drivers"]) == (proxies, drivers)]
        pause, others = _median([row["pause"] for row in some]), _median([row["others"] for row in some])
        seconds = some[0]["seconds"]
        spots.append(
            Spot(
                proxies,
                drivers,
                tuple(row["events"] / row["seconds"] for row in some),
                _median([row["events"] / row["busiest_cpu"] for row in some]),
                others,
                simulated(model, proxies, drivers, pause=pause, seconds=seconds, others=others),
            )
        )
    pause = _median([row["pause"] for row in driven if row["proxies"] == min(DRIVERS)])
    own = {
        (proxies, drivers): simulated(model, proxies, drivers, pause=pause, seconds=0.5)
        for proxies in sorted({row["proxies"] for row in driven})
        for drivers in ALONE
    }
    return Calibrated(model, spots, own)


# --- the claims -----------------------------------------------------------------------------------------


def _million(rate: float) -> str:
    return f"{rate / 1e6:.2f} M/s"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs"


def _apart(real: float, simulated: float) -> str:
    return f"{simulated / real - 1:+.0%}" if real else "-"


def _busy(found: Calibrated) -> str:
    """How much of the machine others had."""
    others = [spot.others for spot in found.spots]
    return f"others used {min(others):.1f} to {max(others):.1f} of {processors()} processors meanwhile"


def _lines(found: Calibrated, value: Any) -> str:
    return "; ".join(
        f"{_proxies(count)} " + ", ".join(f"{value(spot) / 1e6:.2f} ({spot.drivers})" for spot in found.of(count))
        for count in found.counts
    )


def rises(found: Calibrated) -> Claim:
    """SP1: more drivers, more throughput."""
    gains = {count: found.peak(count) / found.of(count)[0].rate for count in found.counts}
    model = {count: found.simulated_peak(count) / found.of(count)[0].simulated for count in found.counts}
    flat = [count for count in found.counts if gains[count] < RISES]
    return Claim(
        "SP1.rises",
        "Throughput rises with the number of drivers.",
        f"for every number of proxies the peak is at least {RISES:g} times what one driver per proxy reaches",
        f"{_gains(gains)}; M events/s (drivers per proxy): {_lines(found, lambda s: s.rate)}",
        not flat,
        ""
        if not flat
        else f"With {_and(flat)} proxies one driver each uses up what is left of the {processors()} processors, which "
        f"everybody shares here; {_busy(found)}.",
        f"{_gains(model)}; {_lines(found, lambda s: s.simulated)}",
        "peak over one driver: " + ", ".join(f"{count}: {_apart(gains[count], model[count])}" for count in gains),
    )


def _gains(gains: Mapping[int, float]) -> str:
    return ", ".join(f"{count}: {gain:.2f} x" for count, gain in gains.items())


def _and(numbers: Sequence[int]) -> str:
    return " and ".join(str(number) for number in numbers)


def saturates(found: Calibrated) -> Claim:
    """SP1: then it stays."""

    def last(rate: Any) -> dict[int, float]:
        ends = {count: found.of(count)[-2:] for count in found.counts}
        return {count: rate(b) / rate(a) for count, (a, b) in ends.items()}

    real, model = last(lambda spot: spot.rate), last(lambda spot: spot.simulated)
    holds = all(gain < RISES for gain in real.values())
    return Claim(
        "SP1.saturates",
        "Then throughput saturates.",
        f"with every number of proxies the last drivers bring less than {RISES:g} times what there was before them",
        _gains(real),
        holds,
        "" if holds else "More drivers than this machine bears as processes would be needed.",
        _gains(model),
        ", ".join(f"{count}: {model[count] / real[count] - 1:+.0%}" for count in real),
    )


def peak_falls(found: Calibrated) -> Claim:
    """SP1: forwarding costs a little."""
    few, many = min(found.counts), max(found.counts)
    real, model = found.peak(many) / found.peak(few), found.simulated_peak(many) / found.simulated_peak(few)
    holds = 1 - SLIGHTLY <= real <= 1.0
    return Claim(
        "SP1.peak",
        "The peak falls slightly with more proxies, because they forward events to each other.",
        f"with {many} proxies {1 - SLIGHTLY:.0%} to 100% of the peak with {few}",
        f"{real:.0%} ({', '.join(f'{count}: {_million(found.peak(count))}' for count in found.counts)})",
        holds,
        ""
        if holds
        else f"More: the drivers of the single proxy do not use up the {processors()} processors yet."
        if real > 1
        else f"Every proxy takes every event, and here all of them share {processors()} processors ({_busy(found)}); "
        "in the paper each had a machine. SP1.own-processors takes that out.",
        f"{model:.0%} ({', '.join(f'{count}: {_million(found.simulated_peak(count))}' for count in found.counts)})",
        f"{100 * (model - real):+.0f} points",
    )


def own_processors(found: Calibrated) -> Claim:
    """SP1, with the machine taken out: what a proxy's processor time allows."""
    few, many = min(found.counts), max(found.counts)
    real, model = found.capacity(many) / found.capacity(few), found.own_peak(many) / found.own_peak(few)
    holds = 1 - SLIGHTLY <= real < RISES
    return Claim(
        "SP1.own-processors",
        "Ours: had every proxy a processor of its own, the peak would fall slightly, if at all, with more proxies.",
        f"events per processor second of the busiest proxy, with {many} proxies {1 - SLIGHTLY:.0%} to {RISES:.0%} of "
        f"those with {few}; simulated: the peak with a processor each",
        f"{real:.0%} ({', '.join(f'{count}: {_million(found.capacity(count))}' for count in found.counts)})",
        holds,
        ""
        if holds
        else f"A batch costs the busiest of {many} proxies {'less' if real > 1 else 'more'} than a single one: waking "
        "up for fewer batches at a time, sending to the others and others who use the caches all count in it.",
        f"{model:.0%} ({', '.join(f'{count}: {_million(found.own_peak(count))}' for count in found.counts)})",
        f"ratio {100 * (model - real):+.0f} points; peak "
        + ", ".join(f"{count}: {_apart(found.capacity(count), found.own_peak(count))}" for count in found.counts),
    )


def value(found: Calibrated) -> Claim:
    """SP1: the number in the text."""
    many = max(found.counts)
    real, model = found.peak(many), found.simulated_peak(many)
    holds = real >= PAPER[0]
    return Claim(
        "SP1.value",
        "Three proxies together take 2.6 to 2.7 million events/s at their peak.",
        f"at least {_million(PAPER[0])} with {many} proxies, in batches of {BATCH:,}",
        f"{_million(real)}",
        holds,
        f"On one machine, where {_busy(found)}; the paper had one per process (1.6 GHz). Throughput is nearly in "
        "proportion to the batch, which the paper does not give.",
        _million(model),
        _apart(real, model),
    )


def per_driver(found: Calibrated) -> Claim:
    """SP2: once saturated, each driver gets less."""

    def kept(rate: Any) -> dict[int, float]:
        ends = {count: (found.of(count)[0], found.of(count)[-1]) for count in found.counts}
        return {count: (rate(b) / b.drivers) / (rate(a) / a.drivers) for count, (a, b) in ends.items()}

    real, model = kept(lambda spot: spot.rate), kept(lambda spot: spot.simulated)
    holds = all(share < 1 / RISES for share in real.values())
    return Claim(
        "SP2.falls",
        "The throughput of one driver falls once the proxies are saturated.",
        f"with the most drivers per proxy each has less than {1 / RISES:.0%} of what it has alone at its proxy",
        ", ".join(f"{count}: {share:.0%}" for count, share in real.items()),
        holds,
        "" if holds else "Not saturated with the drivers that this machine bears.",
        ", ".join(f"{count}: {share:.0%}" for count, share in model.items()),
        ", ".join(f"{count}: {100 * (model[count] - real[count]):+.0f} points" for count in real),
    )


def near(found: Calibrated) -> Claim:
    """Ours: how far the simulated curves are from the real ones."""
    off = {(spot.proxies, spot.drivers): spot.distance for spot in found.spots}
    middle = _median([abs(each) for each in off.values()])
    worst = max(off, key=lambda at: abs(off[at]))
    return Claim(
        "SP1.model",
        "Ours: the simulation, given what one replica and one driver take, says what many of them do.",
        f"the median of the distances is below {NEAR:.0%}",
        f"{middle:.0%}; farthest {off[worst]:+.0%} ({worst[0]} proxies, {worst[1]} drivers each)",
        middle < NEAR,
        ""
        if middle < NEAR
        else f"{_busy(found)[0].upper()}{_busy(found)[1:]}, and the scheduler serves them in turns of milliseconds, "
        "where the simulation shares every processor evenly and at once, and counts what others used, not what they "
        "wanted; it charges a message to who receives it, and sending it to other proxies costs nothing.",
        "see the figure",
        "; ".join(
            f"{_proxies(count)} " + ", ".join(f"{spot.distance:+.0%} ({spot.drivers})" for spot in found.of(count))
            for count in found.counts
        ),
    )


def linear(found: Calibrated) -> Claim:
    """Ours: the form of the service times."""
    line = found.model.replica
    return Claim(
        "service.line",
        "Ours: a replica's processor time for a batch is a fixed part and a part per event.",
        f"every batch size within {NEAR:.0%} of the line",
        f"{_us(line.fixed)} + {line.event * 1e9:.1f} ns per event, at most {found.model.worst:.0%} off; "
        f"{_us(found.model.wake)} more where it had nothing to do; a driver {_us(found.model.driver.fixed)} + "
        f"{found.model.driver.event * 1e9:.1f} ns; a hop {_us(found.model.hop)}",
        found.model.worst < NEAR,
        "" if found.model.worst < NEAR else "Processor time, too, is longer while others use the caches.",
    )


def constant(found: Calibrated) -> Claim:
    """Ours: what scenarios use is what is measured."""
    now, kept = found.model.replica.at(BATCH), MEASURED.per_batch + BATCH * MEASURED.per_event
    return Claim(
        "service.constant",
        "Ours: the service times that scenarios can use (tidings.sim.measured) are those of this machine.",
        f"a batch of {BATCH:,} events within a factor of {GOOD_TO:g}",
        f"{_us(now)} now, {_us(kept)} kept",
        1 / GOOD_TO <= now / kept <= GOOD_TO,
        "" if 1 / GOOD_TO <= now / kept <= GOOD_TO else "Another machine, other code, or one that is busy.",
        _us(kept),
        _apart(now, kept),
    )


JUDGES = (rises, saturates, peak_falls, own_processors, value, near, per_driver, linear, constant)


# --- the figures ----------------------------------------------------------------------------------------

COLORS = (figures.BLUE, figures.ORANGE, figures.GREEN)
MARKS = ("o", "s", "^")


def _proxies(count: int) -> str:
    return f"{count} {'proxy' if count == 1 else 'proxies'}"


def _ticks(axes: Axes, drivers: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(drivers, [str(each) for each in drivers])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("drivers per proxy")


def paint_rates(found: Calibrated, axes: Axes, *, each: bool) -> None:
    """Figure 4a, or (``each``) 4b: real with the spread of its runs, simulated as broken lines."""
    for count, color, shape in zip(found.counts, COLORS, MARKS, strict=False):
        spots = found.of(count)
        drivers = [spot.drivers for spot in spots]
        share = np.array([1e6 * (count * spot.drivers if each else 1) for spot in spots])
        real = np.array([spot.rate for spot in spots]) / share
        ends = [np.array([end(spot.real) for spot in spots]) / share for end in (min, max)]
        axes.errorbar(drivers, real, [real - ends[0], ends[1] - real], fmt="none", color=color, capsize=3)
        axes.plot(drivers, real, color=color, marker=shape, markersize=5, label=f"{_proxies(count)}, real")
        model = np.array([spot.simulated for spot in spots]) / share
        axes.plot(drivers, model, color=color, linestyle=(0, (5, 2)), label=f"{_proxies(count)}, simulated")
    if each:
        axes.set_ylabel("million events/s per driver")
        axes.set_title("Throughput of one driver, real and simulated (SP2)")
        for count, color in zip(found.counts, COLORS, strict=False):
            first = found.of(count)[0]
            ideal = first.rate / (count * first.drivers) / 1e6
            label = "expected until saturated" if count == found.counts[0] else None
            ends_at = (first.drivers, found.of(count)[-1].drivers)
            axes.plot(ends_at, [ideal, ideal], color=color, linewidth=1, linestyle=(0, (1, 2)), label=label)
    else:
        axes.set_ylabel("million events/s in total")
        axes.set_title("Throughput by drivers, all on one machine (SP1)")
        ends_at = (found.of(1)[0].drivers, found.of(1)[-1].drivers)
        figures.expect(axes, ends_at, sum(PAPER) / 2e6, "peak of 3 proxies (paper)")
    _ticks(axes, [spot.drivers for spot in found.of(found.counts[0])])


def paint_own(found: Calibrated, axes: Axes) -> None:
    """Figure 4a as if everybody had a machine: simulated, beside what a real proxy's processor time allows."""
    for count, color, shape in zip(found.counts, COLORS, MARKS, strict=False):
        drivers = sorted(number for proxies, number in found.own if proxies == count)
        rates = [found.own[count, number] / 1e6 for number in drivers]
        axes.plot(drivers, rates, color=color, linestyle=(0, (5, 2)), label=f"{_proxies(count)}, simulated")
        allowed = found.capacity(count) / 1e6
        at = max(drivers) * 2 ** (0.25 * (found.counts.index(count) + 1))
        axes.plot([at], [allowed], shape, color=color, markersize=8, label=f"{_proxies(count)}, real proxy allows")
    figures.expect(axes, (min(ALONE), max(ALONE)), sum(PAPER) / 2e6, "peak of 3 proxies (paper)")
    _ticks(axes, ALONE)
    axes.set_ylabel("million events/s in total")
    axes.set_title("Throughput by drivers, a processor each (SP1)")


def paint_service(rows: Sequence[Row], found: Calibrated, axes: Axes) -> None:
    """Processor time of a batch over its size: measured, and the lines through it."""
    measured = [row for row in rows if row["part"] == "service"]
    sizes = np.array(_sizes(measured))
    model = found.model
    lines = {
        "replica, busy": ("replica", True, model.replica),
        "replica, woken": ("replica", False, Line(model.replica.fixed + model.wake, model.replica.event)),
        "driver, woken": ("driver", False, model.driver),
    }
    for (label, (name, busy, line)), color, shape in zip(lines.items(), COLORS, MARKS, strict=True):
        some = [row for row in measured if (row["inflight"] > 1) == busy]
        taken = [row[f"{name}_cpu"] / _batches(row) * 1e6 for row in some]
        axes.plot([row["batch"] for row in some], taken, shape, color=color, markersize=5, label=label)
        told = f"{line.fixed * 1e6:.0f} µs + {line.event * 1e9:.1f} ns per event"
        axes.plot(sizes, [line.at(size) * 1e6 for size in sizes], color=color, label=told)
    before = Service()
    axes.plot(
        sizes,
        [(before.per_message + size * before.per_event) * 1e6 for size in sizes],
        color=figures.VERMILION,
        linestyle=(0, (2, 1)),
        label="a scenario's default",
    )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("events in a batch")
    axes.set_ylabel("µs of processor time per batch")
    axes.set_title("What a batch costs a replica and a driver")


# --- the experiment -------------------------------------------------------------------------------------

TOML = """\
# Measured by: tidings lab run calibration --scale {scale}
# One replica in memory, {under_way} batches under way, {seconds:g} s per size, median of {repeat}; {busy}.
# Not measured: per_message, what a message without events costs; it keeps its default.
[service]
per_batch = {per_batch:.3e}
per_event = {per_event:.3e}
per_wake = {per_wake:.3e}
"""


def report(sql: Sql, scale: str, out: Path) -> Findings:
    """Fit, simulate, judge, draw, and write down the service times."""
    rows = sql("select * from results order by part, proxies, drivers, batch, inflight, run")
    return report_rows(rows, scale, out)


def report_rows(rows: Sequence[Row], scale: str, out: Path) -> Findings:
    """The same from the rows."""
    found = beside(rows)
    claims = [judged(found) for judged in JUDGES]
    told = msgspec.structs.asdict(found.model.service) | {"busy": _busy(found), "scale": scale, "under_way": BUSY}
    text = TOML.format(seconds=SECONDS[scale], repeat=REPEAT[scale], **told)
    (out / "service.toml").write_text(text)
    table = [
        {
            **{name: getattr(spot, name) for name in ("proxies", "drivers", "capacity", "others", "simulated")},
            "real": spot.rate,
            "real_min": min(spot.real),
            "real_max": max(spot.real),
            "distance": spot.distance,
        }
        for spot in found.spots
    ]
    pq.write_table(pa.Table.from_pylist(table), out / "sp1-drivers.parquet")
    data = [str(out / "sp1-drivers.parquet"), str(out / "results" / "drivers")]
    return Findings(
        claims,
        {
            "SP1": [
                *figures.draw(out, "sp1-drivers", lambda axes: paint_rates(found, axes, each=False)),
                *figures.draw(out, "sp1-own-processors", lambda axes: paint_own(found, axes)),
            ],
            "SP2": figures.draw(out, "sp2-per-driver", lambda axes: paint_rates(found, axes, each=True)),
            "service": figures.draw(out, "service-times", lambda axes: paint_service(rows, found, axes)),
        },
        {"SP1": data, "SP2": data, "service": [str(out / "service.toml")]},
    )


PAPER_NAME = "calibration"
ROOMS = ("net", "store", "server", "client")
STUDIES = (
    Study("drivers", points, measure, report, ("calibration", "bench_cluster", "bench_worker"), ROOMS, alone=True),
)
EXPERIMENTS = (
    Experiment(
        "SP1",
        PAPER_NAME,
        "Figure 4a: throughput by drivers, a real cluster and the simulator",
        ("SP1.rises", "SP1.saturates", "SP1.peak", "SP1.own-processors", "SP1.value", "SP1.model"),
        "drivers",
    ),
    Experiment("SP2", PAPER_NAME, "Figure 4b: the same per driver", ("SP2.falls",), "drivers"),
    Experiment(
        "service",
        PAPER_NAME,
        "What a batch costs a replica's processor: the simulator's service times",
        ("service.line", "service.constant"),
        "drivers",
    ),
)
