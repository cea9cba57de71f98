"""SP5 and SP6: a link between two regions fails (Sprinkler, section 5.3, figure 7), and a head dies on the way.

Four regions publish at a steady rate. At 19 s the link between r2 and r3 is cut, at 41 s it works again; ours, because
an outage seldom comes alone: at 30 s the head of r1's chain is killed, and comes back at 35 s. Measured from the
receipts of all clients (publishers are clients too):

- *throughput*: rows delivered per half second, in events/s, per client and stream; the mean over all clients;
- *latency* of a batch: from the moment its owner's head gave it numbers until the last client of all regions has it.

Every limit below follows from what a claim says, not from what was measured: "normal" and "before" are medians of the
undisturbed seconds before the cut, "noise" is the largest deviation in it.
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidings.check import judge
from tidings.core.ids import RegionId, StreamId
from tidings.lab import figures
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.study import Row, Sql, Study
from tidings.protocols.configuration import ConfigurationSettings
from tidings.protocols.publishing import PublishSettings
from tidings.sim.build import Deployment
from tidings.sim.recorder import Recorder
from tidings.sim.run import Progress, simulate
from tidings.sim.scenario import Cut, Heal, Kill, Link, Protocol, Publisher, Region, Restart, Run, Scenario, Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

REGIONS = ("r0", "r1", "r2", "r3")
STREAM = {name: f"s{at}" for at, name in enumerate(REGIONS)}  # each region owns one
A, B = "r2", "r3"  # the ends of the link that fails
SPARED = "r0"  # the origin that the paper compares with
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
SHORTLY = 1.5  # in periods: the next advertisement comes within one, half of another to subscribe and to send
DRAIN = 2.0  # seconds: batches younger than this at the end may be under way
SAME = 0.10  # levels that differ by less than a tenth are the same
PAPER_MS = 200.0  # SP6: before the cut
SIMILAR = 0.25  # levels that differ by less than a quarter are similar


def scenario(scale: str = "quick") -> Scenario:
    """The experiment; at scale quick it is scenarios/sprinkler-link-cut.toml."""
    rate = 20_000.0
    return Scenario(
        scenario=Run(name="sprinkler-link-cut", seconds=60.0),
        regions=tuple(Region(name, replicas=3, clients=CLIENTS[scale]) for name in REGIONS),
        links=tuple(Link(a, b, latency) for (a, b), latency in LATENCY.items()),
        streams=tuple(Stream(stream, region, rows="counted") for region, stream in STREAM.items()),
        publishers=tuple(
            Publisher(name=f"{name}-pub{at}", region=name, stream=STREAM[name], rate=rate, batch=1000, stop=60.0)
            for at, name in enumerate(REGIONS)
        ),
        faults=(Cut(19.0, A, B), Kill(30.0, f"{VICTIM}/p0"), Restart(35.0, f"{VICTIM}/p0"), Heal(41.0, A, B)),
        protocol=Protocol(fanout=3, proxy_fanout=3, shuffle=0.1, proxy_shuffle=0.1, gossip=1.0, recv_seconds=2.0),
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


@dataclass(frozen=True)
class Receipts:
    """What clients delivered, in columns ordered by client and time."""

    client: NDArray[np.int64]
    region: NDArray[np.int64]  # position in REGIONS
    stream: NDArray[np.int64]
    hi: NDArray[np.int64]
    rows: NDArray[np.int64]
    time: Floats

    @classmethod
    def of(cls, recorder: Recorder, members: Sequence[str]) -> Receipts:
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

    def of_stream(self, stream: StreamId) -> Receipts:
        """Those of one stream."""
        return self.where(self.stream == list(STREAM.values()).index(stream))

    def at(self, region: RegionId) -> Receipts:
        """Those of one region's clients."""
        return self.where(self.region == REGIONS.index(region))

    def where(self, chosen: NDArray[np.bool_]) -> Receipts:
        """Some of them."""
        return Receipts(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    def by_client(self) -> Iterator[Receipts]:
        """Client by client."""
        for client in np.unique(self.client).tolist():
            lo, hi = np.searchsorted(self.client, [client, client + 1])
            yield Receipts(*(getattr(self, name)[lo:hi] for name in self.__dataclass_fields__))


def rates(receipts: Receipts, clients: dict[RegionId, int], end: float) -> Rates:
    """Count the rows delivered in each bin."""
    bins = round(end / BIN)
    flows = {}
    for region, stream in itertools.product(REGIONS, STREAM.values()):
        some = receipts.of_stream(stream).at(region)
        counts = np.bincount((some.time / BIN).astype(np.int64), some.rows, minlength=bins)[:bins]
        flows[region, stream] = counts / BIN / clients[region]
    return Rates(np.arange(bins, dtype=np.float64) * BIN, flows, clients)


def latency(
    receipts: Receipts, batches: Sequence[tuple[int, float]], clients: Mapping[RegionId, int], end: float
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


def silence(receipts: Receipts, since: float, until: float, end: float) -> Silence:
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
    receipts = Receipts.of(recorder, members)
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
    receipts: Receipts,
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


# --- the claims -----------------------------------------------------------------------------------------


def _rate(value: float) -> str:
    return f"{value / 1000:,.1f} k events/s" if abs(value) >= 1000 else f"{value:,.0f} events/s"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def normal_rate(seen: Observed) -> tuple[float, float]:
    """Throughput before the cut: its median and its noise."""
    quiet = seen.rates.within(*seen.time.before)
    mean = seen.rates.mean[quiet]
    normal = float(np.median(mean))
    return normal, float(np.abs(mean - normal).max())


def over_link(seen: Observed) -> float:
    """Which part of the normal throughput flows over the link."""
    flows = [(B, STREAM[A]), (A, STREAM[B])]
    quiet = seen.rates.within(*seen.time.before)
    return float(sum(np.median(seen.rates.share(flow)[quiet]) for flow in flows) / normal_rate(seen)[0])


def fall(seen: Observed) -> float:
    """By which part throughput falls when the link is cut."""
    down = seen.rates.within((seen.time.cut, seen.time.cut + seen.time.period))
    return 1 - float(seen.rates.mean[down].min()) / normal_rate(seen)[0]


def dip(seen: Observed) -> Claim:
    """SP5: down by what flows over the link, and by nothing else."""
    normal, _ = normal_rate(seen)
    part, down_by = over_link(seen), fall(seen)
    lost = {}
    down = seen.rates.within((seen.time.cut, seen.time.cut + seen.time.period))
    quiet = seen.rates.within(*seen.time.before)
    for flow in seen.rates.flows:
        share = seen.rates.share(flow)
        lost[flow] = float(np.maximum(np.median(share[quiet]) - share[down], 0).sum())
    caused = (lost[B, STREAM[A]] + lost[A, STREAM[B]]) / max(sum(lost.values()), 1e-9)
    return Claim(
        "SP5.dip",
        f"Throughput drops briefly at the cut because nothing flows between {A} and {B}.",
        f"down by about the {part:.1%} that flow over the link (half to one and a half times that), "
        "nine tenths of the loss in these two flows",
        f"from {_rate(normal)} to {_rate(normal * (1 - down_by))} ({-down_by:.1%}); {caused:.0%} of the loss in these "
        "two flows",
        0.5 * part <= down_by <= 1.5 * part and caused >= 0.9,
    )


def recovery(seen: Observed) -> Claim:
    """SP5: over shortly after the next advertisement."""
    normal, _ = normal_rate(seen)
    limit = seen.time.cut + SHORTLY * seen.time.period
    later = seen.rates.within((limit, seen.time.cut + SETTLE * seen.time.period + BIN))
    lowest = float(seen.rates.mean[later].min())
    return Claim(
        "SP5.recovery",
        "Throughput recovers shortly after the next advertisements of the other regions, which turn the flow round.",
        f"both flows again by {limit:g} s, {SHORTLY:g} advertisement periods after the cut; from then on less than "
        "half of one is missing",
        f"both flows again at {seen.cut_off.end:.2f} s after {seen.cut_off.seconds:.2f} s of silence; "
        f"at least {_rate(lowest)} from {limit:g} s on",
        seen.cut_off.end <= limit and lowest > normal * (1 - over_link(seen) / 4),
    )


def excess_rate(seen: Observed) -> Floats:
    """What throughput has more than normal, bin by bin, from the cut until all is made up for."""
    window = seen.rates.within((seen.time.cut, seen.time.cut + (2 + SETTLE) * seen.time.period))
    return seen.rates.mean[window] - normal_rate(seen)[0]


def catch_up(seen: Observed) -> Claim:
    """SP5: above normal until the lost ground is made up for."""
    normal, noise = normal_rate(seen)
    excess = excess_rate(seen)
    missed = float(-excess[excess < -noise].sum())
    regained = 1 + float(excess.sum()) / missed if missed else 0.0
    seconds = float((excess > noise).sum()) * BIN
    return Claim(
        "SP5.catch-up",
        f"Then throughput is above normal while {A} and {B} catch up, and returns to normal.",
        "above normal by more than the noise; of what was missed at least nine tenths regained, the rest being on its "
        "longer way (paper: above normal for about 5 s)",
        f"up to {_rate(normal + excess.max())} (normal {_rate(normal)}, noise {_rate(noise)}) for {seconds:g} s; "
        + (f"{regained:.0%} of what was missed regained" if missed else "nothing was missed beyond the noise"),
        excess.max() > noise and regained >= 0.9,
        ""
        if seconds >= 2.5
        else "Much shorter than the paper's 5 s: no link of this scenario has a limited bandwidth, so what two streams "
        "missed in about a second passes at once.",
    )


def jolt(seen: Observed) -> float:
    """The largest deviation from normal after the repair, in events/s."""
    window = seen.rates.within((seen.time.repair, seen.time.repair + 2 * seen.time.period))
    off = seen.rates.mean[window] - normal_rate(seen)[0]
    return float(off[np.abs(off).argmax()])


def glitch(seen: Observed) -> Claim:
    """SP5: something small happens when the link is back."""
    (normal, noise), largest = normal_rate(seen), jolt(seen)
    slight = over_link(seen) * normal / 2
    return Claim(
        "SP5.glitch",
        f"There is a slight glitch when the link is back and {A} and {B} send to each other directly again.",
        f"a deviation larger than the noise ({_rate(noise)}) and less than half of what flows over the link "
        f"({_rate(slight)}), within 2 periods",
        f"{'+' if largest > 0 else ''}{_rate(largest)} ({largest / normal:+.1%})",
        noise < abs(largest) < slight,
    )


def before(seen: Observed) -> Claim:
    """SP6: the two origins begin alike."""
    one, two = (seen.latency[STREAM[region]].level(seen.time.before) for region in (SPARED, A))
    return Claim(
        "SP6.before",
        "Before the outage the latencies of the two origins are similar.",
        f"less than {SIMILAR:.0%} apart (paper: both about 200 ms)",
        f"{SPARED} {_ms(one)}, {A} {_ms(two)}",
        abs(one - two) < SIMILAR * max(one, two),
        f"Not the paper's 200 ms: {seen.rates.clients[SPARED]} clients per region instead of 1000, so fewer hops in "
        "each; other latencies between regions (of the paper's only the failed link's is in its text); no limited "
        "bandwidth.",
    )


def highest_latency(seen: Observed, region: RegionId = A, periods: float = 1.0) -> float:
    """Of what a region publishes in the first periods after the cut."""
    window = (seen.time.cut, seen.time.cut + periods * seen.time.period)
    return float(seen.latency[STREAM[region]].binned([window]).max())


def peak(seen: Observed) -> Claim:
    """SP6: what is published at the cut waits for the new subscription."""
    time, found = seen.time, seen.latency[STREAM[A]]
    level, limit = found.level(time.before), time.cut + SHORTLY * time.period
    highest = highest_latency(seen)
    recovered = float(found.binned([(limit, time.cut + SETTLE * time.period)]).max())
    detoured = found.level(time.outage)
    return Claim(
        "SP6.peak",
        f"Latency of {A} rises steeply when the link fails, since {B} has to subscribe elsewhere, and recovers then.",
        f"at least twice the level before ({_ms(2 * level)}); events published {SHORTLY:g} periods after the cut take "
        f"no longer than the rest of the outage (less than {1 + SIMILAR:g} x {_ms(detoured)})",
        f"up to {_ms(highest)} ({highest / level:.0f} x), {_ms(recovered)} from {limit:g} s on",
        highest >= 2 * level and recovered < (1 + SIMILAR) * detoured,
    )


def extra_path() -> float:
    """How much longer the way from A to its last region is without the link."""
    ways = {frozenset(pair): latency for pair, latency in LATENCY.items()}
    direct = {region: ways[frozenset((A, region))] for region in REGIONS if region != A}
    round_about = min(direct[via] + ways[frozenset((via, B))] for via in direct if via != B)
    return max((direct | {B: round_about}).values()) - max(direct.values())


def detour(seen: Observed) -> Claim:
    """SP6: a longer path takes longer."""
    found, more = seen.latency[STREAM[A]], extra_path()
    level, now = found.level(seen.time.before), found.level(seen.time.outage)
    direct, indirect = found.level(seen.time.before, B), found.level(seen.time.outage, B)
    return Claim(
        "SP6.detour",
        f"During the outage latency of {A} stays slightly above the level before, since the path to {B} is longer.",
        f"higher by what the path is longer, {_ms(more)} (half to one and a half times that)",
        f"{_ms(now)}, {_ms(now - level)} more than before; to {B} alone {_ms(direct)} before, now {_ms(indirect)}",
        0.5 * more <= now - level <= 1.5 * more,
    )


def after(seen: Observed) -> Claim:
    """SP6: the old level again."""
    found = seen.latency[STREAM[A]]
    level, now = found.level(seen.time.before), found.level(seen.time.after)
    holds = abs(now - level) < SAME * level
    return Claim(
        "SP6.after",
        f"After the repair and a short adjustment latency of {A} is at the old level.",
        f"within {SAME:.0%} of {_ms(level)}, {SETTLE:g} periods after the repair",
        f"{_ms(now)}",
        holds,
        "" if holds else _not_back(seen),
    )


def _not_back(seen: Observed) -> str:
    """Where the old level was not reached, and along which path."""
    found = seen.latency[STREAM[A]]
    slack = SAME * found.level(seen.time.before)
    parts = []
    for region in REGIONS:
        old, new = found.level(seen.time.before, region), found.level(seen.time.after, region)
        source = seen.sources.get((region, STREAM[A]), A)
        path = "" if source == A else f", through {source}"
        parts.append(f"{region} {_ms(old)} -> {_ms(new)}{path if abs(new - old) >= slack else ''}")
    killed = (
        f" {VICTIM}'s new head subscribed to the region whose advertisement came first, not to {A}; the switch rule "
        "does not leave a source that keeps advancing. This detour comes from the fail-over, not from the link."
        if seen.sources.get((VICTIM, STREAM[A]), A) != A
        else ""
    )
    return f"By region: {'; '.join(parts)}.{killed}"


def spared(seen: Observed) -> Claim:
    """SP6: an origin that is not on the link does not notice."""
    time, found = seen.time, seen.latency[STREAM[SPARED]]
    old, now = found.binned(time.before), found.level(time.outage)
    level, highest = float(np.median(old)), highest_latency(seen, SPARED, SETTLE)
    limit = (1 + SIMILAR) * float(old.max())
    return Claim(
        "SP6.origin-0",
        f"Latency of {SPARED}, which is not on the link, is not hit by the outage.",
        f"less than {SAME:.0%} above {_ms(level)} during the outage; at the cut no point above {_ms(limit)}, "
        f"{1 + SIMILAR:g} x the highest before",
        f"{_ms(now)}; highest point at the cut {_ms(highest)}",
        now < (1 + SAME) * level and highest <= limit,
    )


def fail_over(seen: Observed) -> Claim:
    """Ours: the stream whose head died stands still until the chain has a new one."""
    service, publish = ConfigurationSettings(), PublishSettings()
    limit = service.silence + service.sweep + publish.retry + 0.1
    return Claim(
        "ours.fail-over",
        f"When the head of {VICTIM}'s chain is killed, its stream stops until the next replica is head, then goes on.",
        f"no client without it for longer than {limit:.2f} s: {service.silence:g} s until the silence counts, "
        f"{service.sweep:g} s until that is seen, {publish.retry:g} s until a publisher tries again, 0.1 s on the way",
        f"{seen.fail_over.seconds:.2f} s, until {seen.fail_over.end:.2f} s",
        seen.fail_over.seconds <= limit,
    )


def rejoin(seen: Observed) -> Claim:
    """Ours: the returning replica becomes tail, and the other regions must find it."""
    limit = SHORTLY * seen.time.period
    return Claim(
        "ours.rejoin",
        "When the killed replica is back as tail, the other regions find it by its advertisements.",
        f"no client without {VICTIM}'s stream for longer than {limit:g} s ({SHORTLY:g} advertisement periods)",
        f"{seen.rejoin.seconds:.2f} s, until {seen.rejoin.end:.2f} s",
        seen.rejoin.seconds <= limit,
    )


def invariants(seen: Observed) -> Claim:
    """Ours: whatever the figures look like, no receipt shows a loss, a duplicate or a disorder."""
    return Claim(
        "ours.invariants",
        "No client has lost, doubled or disordered an event on the way, and the replicas of each chain agree.",
        "0 violations in the whole trace",
        f"{seen.violations} violations",
        seen.violations == 0,
    )


OURS: tuple[Callable[[Observed], Claim], ...] = (fail_over, rejoin, invariants)
JUDGES: tuple[Callable[[Observed], Claim], ...] = (
    *(dip, recovery, catch_up, glitch),
    *(before, peak, detour, after, spared),
    *OURS,
)


# --- the figures ----------------------------------------------------------------------------------------


def _moments(axes: Axes, time: Timeline) -> None:
    figures.shade(axes, time.cut, time.repair, f"no link {A} to {B}")
    figures.mark(axes, time.cut, "link\ncut")
    figures.mark(axes, time.kill, f"head of {VICTIM}\nkilled")
    figures.mark(axes, time.restart, "and\nrestarted")
    figures.mark(axes, time.repair, "link\nrepaired")
    axes.set_xlim(WARM_UP * time.period, time.end)
    axes.set_xlabel("simulated time (s)")


def paint_throughput(seen: Observed, axes: Axes) -> None:
    """Figure 7a: throughput over time, with the level that the cut lets us expect."""
    time, mean = seen.time, seen.rates.mean / 1000
    normal = normal_rate(seen)[0] / 1000
    low = normal * (1 - over_link(seen))
    edges = np.append(seen.rates.starts, time.end)
    _moments(axes, time)
    for region, color in ((B, figures.ORANGE), (VICTIM, figures.SKY)):
        received = seen.rates.region(region) / 1000
        axes.stairs(received, edges, baseline=None, color=color, linewidth=1.1, label=f"clients of {region}")
    axes.stairs(mean, edges, baseline=None, color=figures.BLUE, linewidth=2.2, label="all clients")
    figures.expect(axes, (time.cut - time.period, time.cut + 2 * time.period), low, "expected")
    note = partial(figures.note, axes)
    note(f"{A} and {B} get nothing\nfrom each other", (time.cut - 1, 0.45 * normal), (time.cut + BIN, low), "right")
    if catch_up(seen).holds:
        note("they catch up", (time.cut + 2.5, 1.4 * normal), (time.cut + 1.3 * time.period, mean[_bin(time.cut + 1)]))
    if glitch(seen).holds:
        note("slight glitch", (time.repair + 2, 1.3 * normal), (time.repair + BIN, mean[_bin(time.repair)]))
    note(f"{VICTIM} changes its head", (time.kill - 1, 2 * normal), (seen.fail_over.end, 1.7 * normal), "right")
    victim = seen.rates.region(VICTIM) / 1000
    rejoined = seen.rejoin.end - BIN / 2, victim[_bin(seen.rejoin.end)]
    note(f"{VICTIM} changes its tail", (time.repair + 2, 0.55 * normal), rejoined)
    axes.set_ylim(0, 2.4 * normal)
    axes.set_ylabel("1000 events/s, mean of clients")
    axes.set_title("Events delivered per client while a link fails (SP5)")


def _bin(time: float) -> int:
    return int(time / BIN)


def paint_latency(seen: Observed, axes: Axes) -> None:
    """Figure 7b: latency over time of two origins, with the level that the longer path lets us expect."""
    time = seen.time
    _moments(axes, time)
    for region, color in ((SPARED, figures.ORANGE), (A, figures.BLUE)):
        found = seen.latency[STREAM[region]]
        starts = np.unique(np.floor(found.published / BIN)) * BIN
        axes.plot(found.published, found.all * 1000, ".", markersize=2, alpha=0.3, color=color)
        means = found.binned([(0.0, time.end)]) * 1000
        axes.plot(starts + BIN / 2, means, color=color, linewidth=2, label=f"published in {region}")
    before = seen.latency[STREAM[A]].level(time.before) * 1000
    longer = before + extra_path() * 1000
    figures.expect(axes, (time.cut + SHORTLY * time.period, time.repair), longer, f"expected for {A}")
    figures.expect(axes, (time.repair, time.end), before)
    figures.expect(axes, (0.0, time.cut), PAPER_MS, f"{PAPER_MS:g} ms (paper)")
    note = partial(figures.note, axes)
    note(f"{B} must find\nanother way", (time.cut - 2, 700), (time.cut + BIN / 2, 700), "right")
    note(f"all wait for\n{VICTIM}'s new head", (time.repair + 2, 700), (time.kill + 1, 700))
    latency_axis(axes)
    axes.set_title("Latency of two origins while a link fails (SP6)")


def latency_axis(axes: Axes) -> None:
    """From a quick hop to a cut that lasts."""
    axes.set_yscale("log")
    ticks = [50, 100, 200, 500, 1000, 2000]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_ylim(30, 2500)
    axes.set_ylabel("ms until all clients have it")


# --- the experiment -------------------------------------------------------------------------------------


def measure(point: Mapping[str, Any]) -> list[Row]:
    """Run it; what was observed travels whole."""
    return [{"observed": pickle.dumps(observe(scenario(point["scale"]), point["seed"]))}]


def report_rows(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge and draw what the task observed."""
    (row,) = sql("select observed from results")
    return report(pickle.loads(row["observed"]), out)


def report(seen: Observed, out: Path) -> Findings:
    """Judge, draw, and store what was measured."""
    return Findings(
        [judged(seen) for judged in JUDGES],
        {
            "SP5": figures.draw(out, "sp5-throughput", partial(paint_throughput, seen)),
            "SP6": figures.draw(out, "sp6-latency", partial(paint_latency, seen)),
        },
        {
            "SP5": [write(out / "sp5-throughput.parquet", flow_columns(seen.rates))],
            "SP6": [write(out / "sp6-latency.parquet", batch_columns(seen.latency))],
        },
    )


def flow_columns(found: Rates) -> list[dict[str, Any]]:
    return [
        {"region": region, "stream": stream, "time": found.starts, "events_per_s": flow}
        for (region, stream), flow in found.flows.items()
    ]


def batch_columns(found: Mapping[StreamId, Latency]) -> list[dict[str, Any]]:
    return [
        {"stream": stream, "region": region, "published_at": each.published, "seconds": values}
        for stream, each in found.items()
        for region, values in each.to.items()
    ]


def write(path: Path, parts: list[dict[str, Any]]) -> str:
    """Series, with what they are called beside every value, as one Parquet file."""
    tables = []
    for part in parts:
        length = max(len(values) for values in part.values() if not isinstance(values, str))
        tables.append(
            pa.table({name: [value] * length if isinstance(value, str) else value for name, value in part.items()})
        )
    pq.write_table(pa.concat_tables(tables), path)
    return str(path)


STUDIES = (Study("link-cut", lambda scale: [{"scale": scale, "seed": 0}], measure, report_rows, ("link_cut",)),)
EXPERIMENTS = (
    Experiment(
        "SP5",
        "sprinkler",
        "Figure 7a: throughput while a link between regions fails",
        ("SP5.dip", "SP5.recovery", "SP5.catch-up", "SP5.glitch", "ours.fail-over", "ours.rejoin", "ours.invariants"),
        "link-cut",
    ),
    Experiment(
        "SP6",
        "sprinkler",
        "Figure 7b: latency while a link between regions fails",
        ("SP6.before", "SP6.peak", "SP6.detour", "SP6.after", "SP6.origin-0", "ours.invariants"),
        "link-cut",
    ),
)
