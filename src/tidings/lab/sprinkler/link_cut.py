"""SP5 and SP6: a link between two regions fails (Sprinkler, section 5.3, figure 7), and later a head.

Four regions publish at a steady rate. At 19 s the link between r2 and r3 is cut; at 41 s it works again. Ours, because
an outage seldom comes alone: at 30 s the head of r1's chain is killed, and at 35 s it comes back. Measured from the
receipts of all clients (publishers are clients too):

- *throughput*: rows delivered per half second, in events/s, per client and stream; the mean over all clients;
- *latency* of a batch: from the moment its owner's head numbered it until the last client of all regions has it.

The observations are kept in plain columns (`rows`), from which the report reads them in SQL (`read`); `link_verdicts`
judges and draws them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidings.check import judge
from tidings.core.ids import RegionId, StreamId
from tidings.protocols.fabrics.family import choose
from tidings.protocols.replication.configuration import ConfigurationSettings
from tidings.sim.build import Deployment
from tidings.sim.recorder import Recorder
from tidings.sim.run import Progress, simulate
from tidings.sim.scenario import (
    Cut,
    Heal,
    Kill,
    LinkTable,
    ProtocolTable,
    PublisherTable,
    RegionTable,
    Restart,
    Run,
    Scenario,
    Stream,
)

if TYPE_CHECKING:
    from tidings.lab.study import Row, Sql

Floats = NDArray[np.float64]

REGIONS = ("r0", "r1", "r2", "r3")
STREAM = {name: f"s{at}" for at, name in enumerate(REGIONS)}  # each region owns one
A, B = "r2", "r3"  # the ends of the link that fails
VICTIM = "r1"  # ours: whose head is killed
LATENCY = {  # seconds; the failed link has the paper's 15 ms, the others stand for datacenters in the United States
    ("r0", "r1"): 0.020,
    ("r0", "r2"): 0.035,
    ("r0", "r3"): 0.040,
    ("r1", "r2"): 0.030,
    ("r1", "r3"): 0.045,
    (A, B): 0.015,
}
CLIENTS = {"quick": 12, "full": 250}  # per region

BIN = 0.5  # seconds of a measured point; ours: half a period, so that a dip of one period covers two points
WARM_UP = 3.0  # in periods: subscriptions begin with the first advertisement, then the first seconds are caught up
BASE = 8.0  # in periods: how long before the cut "normal" is measured; with many clients views take ten to settle
SETTLE = 3.0  # in periods: when a disturbance must be over, and a level is measured again
DRAIN = 2.0  # seconds: batches younger than this at the end may be under way


def scenario(scale: str = "quick") -> Scenario:
    """The experiment; at scale quick it is scenarios/sprinkler-link-cut.toml."""
    rate = 20_000.0
    return Scenario(
        scenario=Run(name="sprinkler-link-cut", seconds=60.0),
        regions=tuple(RegionTable(name, replicas=3, clients=CLIENTS[scale]) for name in REGIONS),
        links=tuple(LinkTable(a, b, latency) for (a, b), latency in LATENCY.items()),
        streams=tuple(Stream(stream, region, rows="counted") for region, stream in STREAM.items()),
        publishers=tuple(
            PublisherTable(name=f"{name}-pub{at}", region=name, stream=STREAM[name], rate=rate, batch=1000, stop=60.0)
            for at, name in enumerate(REGIONS)
        ),
        faults=(Cut(19.0, A, B), Kill(30.0, f"{VICTIM}/p0"), Restart(35.0, f"{VICTIM}/p0"), Heal(41.0, A, B)),
        protocol=ProtocolTable(recv_seconds=2.0),
        fabric=choose("pull", fanout=3, proxy_fanout=3, shuffle=0.1, proxy_shuffle=0.1, gossip=1.0),
    )


# --- what is measured -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timeline:
    """When things happen, and the period of the advertisements."""

    cut: float
    kill: float
    restart: float
    repair: float
    end: float
    period: float

    @classmethod
    def of(cls, plan: Scenario) -> Timeline:
        """The times of a scenario's faults; a head that is not killed is killed never."""
        at = {type(fault): fault.at for fault in plan.faults}
        death, end = (at.get(Kill, math.inf), at.get(Restart, math.inf)), plan.scenario.seconds
        return cls(at[Cut], *death, at[Heal], end, plan.protocol.advertise_period)

    def earlier(self, seconds: float) -> Timeline:
        """The same, by a clock that is behind."""
        times = {name: getattr(self, name) - seconds for name in ("cut", "kill", "restart", "repair", "end")}
        return replace(self, **times)

    @property
    def before(self) -> list[tuple[float, float]]:
        """Undisturbed; what is published in the last bin may be caught by the cut."""
        return self.calm(max(WARM_UP, self.cut / self.period - BASE) * self.period, self.cut - BIN)

    @property
    def outage(self) -> list[tuple[float, float]]:
        """Undisturbed apart from the link being down."""
        return self.calm(self.cut + SETTLE * self.period, self.repair)

    @property
    def after(self) -> list[tuple[float, float]]:
        """Undisturbed, after the repair."""
        return self.calm(self.repair + SETTLE * self.period, self.end - DRAIN)

    def calm(self, lo: float, hi: float) -> list[tuple[float, float]]:
        """The parts of [lo, hi) in which no replica is being lost or added."""
        parts = [(lo, hi)]
        for at in (self.kill, self.restart):
            until = at + ConfigurationSettings().silence + SETTLE * self.period
            parts = [piece for start, end in parts for piece in ((start, min(end, at - BIN)), (max(start, until), end))]
        return [(start, end) for start, end in parts if end - start >= BIN]


@dataclass(frozen=True)
class Rates:
    """Delivered events/s in each bin, mean over the clients of a region, by region and stream."""

    starts: Floats  # of the bins
    flows: dict[tuple[RegionId, StreamId], Floats]
    clients: dict[RegionId, int]

    def region(self, name: RegionId) -> Floats:
        """What a client of the region receives in all."""
        received: Floats = np.sum([flow for (region, _), flow in self.flows.items() if region == name], axis=0)
        return received

    @property
    def mean(self) -> Floats:
        """What a client receives in all, mean over all clients."""
        received: Floats = np.sum([self.share(flow) for flow in self.flows], axis=0)
        return received

    def share(self, flow: tuple[RegionId, StreamId]) -> Floats:
        """What one flow contributes to the mean."""
        return self.flows[flow] * (self.clients[flow[0]] / sum(self.clients.values()))

    def within(self, *windows: tuple[float, float]) -> NDArray[np.bool_]:
        """The bins that begin in one of the windows [lo, hi)."""
        return _within(self.starts, windows)


@dataclass(frozen=True)
class Latency:
    """Of each batch of a stream: when its owner's head numbered it, and how long until all of a region had it."""

    published: Floats
    to: dict[RegionId, Floats]  # infinite: never

    @property
    def all(self) -> Floats:
        """Until the last client of the last region had it."""
        slowest: Floats = np.max(list(self.to.values()), axis=0)
        return slowest

    def level(self, windows: Sequence[tuple[float, float]], region: RegionId | None = None) -> float:
        """The median over the bins in the windows."""
        return float(np.median(self.binned(windows, region)))

    def binned(self, windows: Sequence[tuple[float, float]], region: RegionId | None = None) -> Floats:
        """The mean of each bin in the windows that has a batch."""
        values = self.all if region is None else self.to[region]
        starts = np.floor(self.published / BIN) * BIN
        chosen = _within(starts, windows)
        _, where = np.unique(starts[chosen], return_inverse=True)
        return np.bincount(where, values[chosen]) / np.bincount(where)


def _within(times: Floats, windows: Sequence[tuple[float, float]]) -> NDArray[np.bool_]:
    found = np.zeros(len(times), np.bool_)
    for lo, hi in windows:
        found |= (times >= lo) & (times < hi)
    return found


@dataclass(frozen=True)
class Silence:
    """The longest time in which a client that should receive a stream received nothing of it."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.end - self.start


Sources = Mapping[tuple[RegionId, StreamId], RegionId]
"""From which region a region receives a stream."""


@dataclass(frozen=True)
class Observed:
    """Everything the claims are judged by."""

    time: Timeline
    rates: Rates
    latency: dict[StreamId, Latency]
    cut_off: Silence  # of the two flows over the link, at the cut
    fail_over: Silence  # of the victim's stream, anywhere, at the kill
    rejoin: Silence  # of the same, when the killed replica is back
    sources: Sources  # at the end
    violations: int


SILENCES = ("cut_off", "fail_over", "rejoin")


@dataclass(frozen=True)
class ReceiptTimes:
    """What clients delivered, in columns ordered by client and time."""

    client: NDArray[np.int64]
    region: NDArray[np.int64]  # position in REGIONS
    stream: NDArray[np.int64]
    hi: NDArray[np.int64]
    rows: NDArray[np.int64]
    time: Floats

    @classmethod
    def of(cls, recorder: Recorder, members: Sequence[str]) -> ReceiptTimes:
        """The recorder's receipts of these nodes."""
        number = {node: at for at, node in enumerate(members)}
        streams = {stream: at for at, stream in enumerate(STREAM.values())}
        mine = [row for row in recorder.delivered.rows if row[0] in number]
        rows = sorted(mine, key=lambda row: number[row[0]])  # stable: each client's stay in order
        home = np.array([REGIONS.index(recorder.region_of[node]) for node in members])
        client = np.array([number[row[0]] for row in rows])
        return cls(
            client,
            home[client],
            np.array([streams[row[3]] for row in rows]),
            *(np.array([row[at] for row in rows]) for at in (5, 8, 10)),  # hi, rows, time of check.tables.DELIVERED
        )

    def of_stream(self, stream: StreamId) -> ReceiptTimes:
        """Those of one stream."""
        return self.where(self.stream == list(STREAM.values()).index(stream))

    def at(self, region: RegionId) -> ReceiptTimes:
        """Those of one region's clients."""
        return self.where(self.region == REGIONS.index(region))

    def where(self, chosen: NDArray[np.bool_]) -> ReceiptTimes:
        """Some of them."""
        return ReceiptTimes(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    def by_client(self) -> Iterator[ReceiptTimes]:
        """Client by client."""
        for client in np.unique(self.client).tolist():
            lo, hi = np.searchsorted(self.client, [client, client + 1])
            yield ReceiptTimes(*(getattr(self, name)[lo:hi] for name in self.__dataclass_fields__))


def rates(receipts: ReceiptTimes, clients: dict[RegionId, int], end: float) -> Rates:
    """Count the rows delivered in each bin."""
    bins = round(end / BIN)
    flows = {}
    for region, stream in itertools.product(REGIONS, STREAM.values()):
        some = receipts.of_stream(stream).at(region)
        counts = np.bincount((some.time / BIN).astype(np.int64), some.rows, minlength=bins)[:bins]
        flows[region, stream] = counts / BIN / clients[region]
    return Rates(np.arange(bins, dtype=np.float64) * BIN, flows, clients)


def latency(
    receipts: ReceiptTimes, batches: Sequence[tuple[int, float]], clients: Mapping[RegionId, int], end: float
) -> Latency:
    """From (first number after a batch, when it arrived) and the receipts of its stream."""
    numbers = np.array([hi for hi, arrived in batches if arrived < end - DRAIN])
    published = np.array([arrived for _, arrived in batches if arrived < end - DRAIN])
    got: dict[RegionId, list[Floats]] = {region: [] for region in REGIONS}
    for mine in receipts.by_client():
        got[REGIONS[mine.region[0]]].append(np.append(mine.time, np.inf)[np.searchsorted(mine.hi, numbers)])
    never = np.full(len(numbers), np.inf)  # for a client that received nothing at all
    return Latency(
        published,
        {
            region: np.max([*times, *[never] * (clients[region] - len(times))], axis=0) - published
            for region, times in got.items()
        },
    )


def silence(receipts: ReceiptTimes, since: float, until: float, end: float) -> Silence:
    """The longest pause of any client that ends after ``since`` and begins before ``until``."""
    longest = Silence(since, since)
    for mine in receipts.by_client():
        times = np.append(mine.time, end)
        for at in np.flatnonzero((times[1:] > since) & (times[:-1] < until)):
            pause = Silence(float(times[at]), float(times[at + 1]))
            if pause.seconds > longest.seconds:
                longest = pause
    return longest


def sources(deployment: Deployment) -> Sources:
    """Whom the heads of all regions receive the other regions' streams from, at this moment."""
    found = {}
    for region in REGIONS:
        head = deployment.membership(region).replicas[0]
        for stream, expect in sorted(deployment.proxy(head).inter_region.expects.items()):
            if expect.source is not None:
                found[region, stream] = deployment.region_of[expect.source]
    return found


def observe(
    plan: Scenario, seed: int, progress: Progress | None = None, *, publishers: bool = True, since: float = 0.0
) -> Observed:
    """Simulate, and measure what the claims are about; ``publishers``: they are clients, too; ``since``: the simulated
    time that counts as 0."""
    deployment = Deployment(plan, seed, check=False, trace=False)
    simulate(deployment, progress)
    if deployment.world.failures:
        raise RuntimeError(deployment.world.failures[0].traceback)
    recorder = deployment.recorder
    batches: dict[StreamId, list[tuple[int, float]]] = {}
    for stream in STREAM.values():
        mine = sorted((lo, row[0]) for (name, lo), row in recorder.committed.items() if name == stream)
        arrived = [(lo + count, recorder.arrived[stream, lo] - since) for lo, count in mine]
        batches[stream] = [(hi, at) for hi, at in arrived if at >= 0]
    members = deployment.members() if publishers else [node for nodes in deployment.clients.values() for node in nodes]
    homes = [deployment.region_of[node] for node in members]
    receipts = ReceiptTimes.of(recorder, members)
    receipts = receipts.where(receipts.time >= since)
    return observed(
        Timeline.of(plan).earlier(since),
        replace(receipts, time=receipts.time - since),
        batches,
        {region: homes.count(region) for region in REGIONS},
        sources(deployment),
        len(judge(recorder.trace())),
    )


def observed(
    time: Timeline,
    receipts: ReceiptTimes,
    batches: Mapping[StreamId, Sequence[tuple[int, float]]],
    clients: dict[RegionId, int],
    sources: Sources,
    violations: int,
) -> Observed:
    """From the receipts of some clients, and (first number after it, when it arrived) of every batch."""
    ends = [receipts.of_stream(STREAM[a]).at(b) for a, b in ((A, B), (B, A))]
    pauses = [silence(some, time.cut, time.cut + time.period, time.end) for some in ends]
    orphans = receipts.of_stream(STREAM[VICTIM])
    return Observed(
        time,
        rates(receipts, clients, time.end),
        {stream: latency(receipts.of_stream(stream), some, clients, time.end) for stream, some in batches.items()},
        cut_off=max(pauses, key=lambda pause: pause.seconds),
        fail_over=silence(orphans, time.kill, time.kill + time.period, time.end),
        rejoin=silence(orphans, time.restart, time.restart + SETTLE * time.period, time.end),
        sources=sources,
        violations=violations,
    )


# --- the task, and its rows -----------------------------------------------------------------------------


def measure(point: Mapping[str, Any]) -> list[Row]:
    """Run it, and put what was observed into columns."""
    return rows(observe(scenario(point["scale"]), point["seed"]))


def row(kind: str, value: float | None, **others: Any) -> Row:
    """One fact, with all columns; those that do not apply are null."""
    return dict.fromkeys(("kind", "name", "region", "stream", "n", "start", "value")) | {
        "kind": kind,
        "value": None if value is None else float(value),
        **others,
    }


def rows(seen: Observed) -> list[Row]:
    """What was observed: by ``kind`` a bin of a flow (events/s), a batch (seconds until a region had it), and the rest;
    ``n`` numbers bins and batches, ``start`` is when they begin."""
    silences = {name: getattr(seen, name) for name in SILENCES}
    return [
        *[row("moment", getattr(seen.time, each.name), name=each.name) for each in fields(Timeline)],
        *[row("clients", count, region=region) for region, count in seen.rates.clients.items()],
        *[
            row("flow", value, region=region, stream=stream, n=n, start=start)
            for (region, stream), flow in seen.rates.flows.items()
            for n, (start, value) in enumerate(zip(seen.rates.starts.tolist(), flow.tolist(), strict=True))
        ],
        *[
            row("batch", value, region=region, stream=stream, n=n, start=start)
            for stream, found in seen.latency.items()
            for region, values in found.to.items()
            for n, (start, value) in enumerate(zip(found.published.tolist(), values.tolist(), strict=True))
        ],
        *[row("silence", pause.end, name=name, start=pause.start) for name, pause in silences.items()],
        *[
            row("source", None, name=name, region=region, stream=stream)
            for (region, stream), name in seen.sources.items()
        ],
        row("violations", seen.violations),
    ]


def read(sql: Sql) -> Observed:
    """What was observed, from its rows."""

    def of(kind: str) -> list[Row]:
        return sql(
            f"select name, region, stream, n, start, value from results where kind = '{kind}' "
            "order by region, stream, name, n"
        )

    def series(kind: str) -> dict[tuple[RegionId, StreamId], Floats]:
        """Start and value, by region and stream."""
        groups = itertools.groupby(of(kind), key=lambda one: (one["region"], one["stream"]))
        return {key: np.array([(one["start"], one["value"]) for one in some]).T for key, some in groups}

    flows, batches = series("flow"), series("batch")
    streams = sorted({stream for _, stream in batches})
    return Observed(
        Timeline(**{one["name"]: one["value"] for one in of("moment")}),
        Rates(
            next(iter(flows.values()))[0],
            {flow: values for flow, (_, values) in flows.items()},
            {one["region"]: int(one["value"]) for one in of("clients")},
        ),
        {
            stream: Latency(
                next(starts for (_, name), (starts, _) in batches.items() if name == stream),
                {region: values for (region, name), (_, values) in batches.items() if name == stream},
            )
            for stream in streams
        },
        **{one["name"]: Silence(one["start"], one["value"]) for one in of("silence")},
        sources={(one["region"], one["stream"]): one["name"] for one in of("source")},
        violations=int(of("violations")[0]["value"]),
    )
