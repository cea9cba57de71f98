"""SP5 and SP6 on a real cluster with a shaped wide-area network, beside the simulation of the same run.

The regions and links are those of link_cut.py, the claims those of link_verdicts.py. Replicas, publishers and clients
are processes of this machine, so there are fewer of them and they are slower: one replica per region, in memory, a
thousand events per second and region in ten batches, a few clients per region (peers of the fabric). No head dies. The
replicas shape the links themselves (net/shape.py): latency, and the cut.

Time is that of the run, shifted so that the cut is where the plan has it. Latency of a batch is from the publisher's
call until the last client of all regions has it; in the simulation it begins when the head numbers the batch. The
simulation has the same regions, links, rates and clients, and the service times and hop of the calibration that ran
together with it; without a calibration it uses the stored ones (sim/measured.py).

A region notices a cut when other regions advertise, once a period. Where in that period the cut falls is chance in a
real run. So there are several simulated runs, by phase and seed. Beside the real run stands the one whose two flows
were silent for the most similar time; with every number comes the range over all of them. A run that was chosen for
being near may be nearer than others, so the distance of the curves comes with the median over all of them, too.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tidings.bench.cluster import Usage, replica_pids
from tidings.campaign.cluster.client_trace import Evidence
from tidings.campaign.cluster.load import LoadWorker, PublisherLoad, Subscribing, WorkerOrder
from tidings.check import judge
from tidings.client.connection import connect
from tidings.core.ids import RegionId, StreamId
from tidings.lab import figures
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.sprinkler import link_cut, link_verdicts
from tidings.lab.sprinkler.calibration_verdicts import FITTED, NEAR, PAPER_NAME
from tidings.lab.sprinkler.link_cut import BIN, DRAIN, LATENCY, REGIONS, STREAM, WARM_UP, A, B, Observed, Timeline
from tidings.lab.sprinkler.link_verdicts import SAME, SPARED
from tidings.lab.study import Point, Row, Sql, Study
from tidings.net.loop import run as run_loop
from tidings.protocols.fabrics.family import FabricChoice, choose
from tidings.server import cluster_config
from tidings.server.local import LocalCluster
from tidings.sim.measured import HOP, MEASURED
from tidings.sim.scenario import (
    Cut,
    DiskTable,
    Heal,
    LinkTable,
    PublisherTable,
    RegionTable,
    Run,
    Scenario,
    ServiceTable,
    Stream,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIMES = {"quick": (10.0, 17.0, 25.0), "full": (19.0, 41.0, 60.0)}  # cut, repair, end; SP5 at scale full
CLIENTS = 2  # per region; ours: what two cores bear besides the replicas
RATE = 1000.0  # events/s and region; ours, likewise
BATCH = 100
WORKERS = 2  # processes of clients
RECV = 2000  # rows a client keeps: two seconds of a stream (A1.33)
PHASES = (0.0, 0.25, 0.5, 0.75)  # of an advertisement period: when a simulated cut comes
SEEDS = 2  # for each
ANSWERS = 20.0  # seconds for the last answers, and for clients to reach the end; ours


def fabric() -> FabricChoice:
    """The fabric of both sides."""
    return choose("pull", **link_cut.scenario().fabric.options, recv_rows=RECV)


@dataclass(frozen=True)
class MachineUse:
    """What the simulation knows of the machine."""

    service: ServiceTable = MEASURED
    hop: float = HOP  # seconds, one way
    measured: str = "earlier"  # when

    @classmethod
    def of(cls, out: Path) -> MachineUse:
        """What the run that reports there has just measured, or else what is kept."""
        model = FITTED.pop(out, None)
        return cls() if model is None else cls(model.service, model.hop, "in this run")

    @property
    def told(self) -> str:
        """In words."""
        costs = [seconds * 1e6 for seconds in (self.service.per_batch, self.service.per_wake, self.hop)]
        batch, wake, hop = (f"{each:.0f} µs" for each in costs)
        return f"with what was measured {self.measured}: {batch} per batch, {wake} per wake, {hop} per hop"


KEPT = MachineUse()


def scenario(
    times: tuple[float, float, float], clients: int = CLIENTS, later: float = 0.0, machine: MachineUse = KEPT
) -> Scenario:
    """The simulated side, everything so much later."""
    cut, repair, end = (time + later for time in times)
    return Scenario(
        scenario=Run(name="real-link-cut", seconds=end),
        regions=tuple(RegionTable(name, clients=clients, latency=machine.hop) for name in REGIONS),
        links=tuple(LinkTable(a, b, latency) for (a, b), latency in LATENCY.items()),
        streams=tuple(Stream(stream, region, rows="counted") for region, stream in STREAM.items()),
        publishers=tuple(
            PublisherTable(name=f"{name}-pub", region=name, stream=STREAM[name], rate=RATE, batch=BATCH, stop=end)
            for name in REGIONS
        ),
        faults=(Cut(cut, A, B), Heal(repair, A, B)),
        fabric=fabric(),
        service=machine.service,
        disk=DiskTable(sync=0.0),
    )


def cluster_plan() -> cluster_config.ClusterConfig:
    """The real side."""
    period = link_cut.scenario().protocol.advertise_period
    protocol = cluster_config.ProtocolConfig(advertise_period=period)
    made = cluster_config.generate(len(REGIONS), 1, durability="memory", port=0, protocol=protocol, fabric=fabric())
    links = tuple(cluster_config.WanLink(a, b, latency) for (a, b), latency in LATENCY.items())
    return msgspec.structs.replace(made, wan=cluster_config.WanTable(links=links))


# --- what is measured: a real cluster -------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """One real run."""

    seen: Observed
    used: float  # processors that replicas, publishers and clients used
    others: float  # and others
    told: float  # seconds until all replicas knew of the cut


def orders(url: Callable[[RegionId], str], clients: int) -> tuple[list[WorkerOrder], dict[str, RegionId]]:
    """A process of publishers, and some of clients; where those are at home."""
    publishers = [
        PublisherLoad(name=f"pub-{region}", url=url(region), stream=stream, rate=RATE, batch=BATCH, keys=1000, seed=at)
        for at, (region, stream) in enumerate(STREAM.items())
    ]
    home = {f"peer-{region}-{at}": region for at in range(clients) for region in REGIONS}
    streams = list(STREAM.values())
    peers = [
        Subscribing(name=name, url=url(region), streams=streams, kind="peer", witness=at == 0)
        for at, (name, region) in enumerate(home.items())
    ]
    return [
        WorkerOrder(publishers=publishers),
        *[WorkerOrder(subscribers=peers[at::WORKERS]) for at in range(WORKERS)],
    ], home


async def run_real(times: tuple[float, float, float], clients: int = CLIENTS) -> Measured:
    """Start everything, cut and repair the link, and gather what the clients remember."""
    with tempfile.TemporaryDirectory(prefix="tidings-") as folder:
        async with LocalCluster(config=cluster_plan(), dir=Path(folder) / "cluster") as cluster:
            await _create(cluster)
            wanted, home = orders(cluster.url, clients)
            crew = [LoadWorker(order, Path(folder) / f"{at}.evidence") for at, order in enumerate(wanted)]
            try:
                await asyncio.gather(*[worker.start() for worker in crew])
                return await _play(cluster, crew, home, times)
            finally:
                await asyncio.gather(*[worker.end() for worker in crew])


async def _create(cluster: LocalCluster) -> None:
    async with connect(cluster.url(REGIONS[0]), timeout=30.0) as t:
        for region, stream in STREAM.items():
            await t.create_stream(stream, region=region, gc="none")
    for region in REGIONS:
        async with connect(cluster.url(region), timeout=30.0) as t:
            while len(await t.streams()) < len(STREAM):
                await asyncio.sleep(0.05)


async def _play(
    cluster: LocalCluster, crew: list[LoadWorker], home: Mapping[str, RegionId], times: tuple[float, float, float]
) -> Measured:
    cut, repair, end = times
    usage = Usage(replica_pids(cluster) | {f"clients-{at}": worker.pid for at, worker in enumerate(crew)})
    await crew[0].call("publish", "publish", 10.0)
    began = time.monotonic()

    async def until(moment: float) -> None:
        await asyncio.sleep(max(began + moment - time.monotonic(), 0.0))

    await until(cut)
    asked = time.time()
    await cluster.cut(A, B)
    known = time.time()
    await until(repair)
    await cluster.heal(A, B)
    await until(end)
    spent = usage.since(0.0)
    used = sum(spent["replica_cpu"].values()) / (time.monotonic() - began)
    ends: dict[StreamId, int] = await crew[0].call({"stop": ANSWERS}, "ends", ANSWERS + 10.0)
    finish = {"finish": ends, "timeout": ANSWERS, "late": []}
    await asyncio.gather(*[worker.call(finish, "done", ANSWERS + 30.0) for worker in crew])
    evidence = Evidence()
    for worker in crew:
        evidence.add(await worker.evidence())
    period = link_cut.scenario().protocol.advertise_period
    timeline = Timeline(cut, np.inf, np.inf, repair, end, period)
    seen = await asyncio.to_thread(observed, evidence, timeline, (asked + known) / 2 - cut, home)
    return Measured(seen, used, spent["others_cpus"], known - asked)


def observed(evidence: Evidence, timeline: Timeline, origin: float, home: Mapping[str, RegionId]) -> Observed:
    """From what the clients remember; ``origin`` is the wall time at which the run's time is 0."""
    number = {name: at for at, name in enumerate(home)}
    place = {stream: at for at, stream in enumerate(STREAM.values())}
    mine = [each for each in evidence.receipts if each.subscriber in home and each.time >= origin]
    mine.sort(key=lambda each: (number[each.subscriber], each.time))
    receipts = link_cut.ReceiptTimes(
        np.array([number[each.subscriber] for each in mine]),
        np.array([REGIONS.index(home[each.subscriber]) for each in mine]),
        np.array([place[each.stream] for each in mine]),
        np.array([each.hi for each in mine]),
        np.array([each.rows for each in mine]),
        np.array([each.time - origin for each in mine]),
    )
    batches: dict[StreamId, list[tuple[int, float]]] = {stream: [] for stream in STREAM.values()}
    for sent in evidence.sent:
        if sent.parts and sent.sent_at is not None and sent.sent_at >= origin:
            batches[sent.stream].append((max(hi for _, hi in sent.parts), sent.sent_at - origin))
    clients = {region: list(home.values()).count(region) for region in REGIONS}
    violations = len(judge(evidence.trace(dict.fromkeys(STREAM.values(), "none"))))
    return link_cut.observed(timeline, receipts, batches, clients, {}, violations)


def measure(point: Mapping[str, Any]) -> list[Row]:
    """One run, in columns."""
    return rows(run_loop(run_real((point["cut"], point["repair"], point["end"]))))


def rows(real: Measured) -> list[Row]:
    """What was observed, and what it took."""
    took = [each.name for each in fields(Measured) if each.name != "seen"]
    return [*link_cut.rows(real.seen), *[link_cut.row("took", getattr(real, name), name=name) for name in took]]


def read(sql: Sql) -> Measured:
    """The same, from its rows."""
    took = sql("select name, value from results where kind = 'took'")
    return Measured(link_cut.read(sql), **{each["name"]: each["value"] for each in took})


def points(scale: str) -> list[Point]:
    """One."""
    return [dict(zip(("cut", "repair", "end"), TIMES[scale], strict=True))]


# --- the claims -----------------------------------------------------------------------------------------


def _detour(seen: Observed) -> float:
    found = seen.latency[STREAM[A]]
    return found.level(seen.time.outage) - found.level(seen.time.before)


def _level(region: RegionId, when: str) -> Callable[[Observed], float]:
    return lambda seen: seen.latency[STREAM[region]].level(getattr(seen.time, when))


Judge = Callable[[Observed], Claim]
Number = Callable[[Observed], float]

COMPARED: dict[Judge, tuple[Number, str]] = {  # what a claim is about, in one number, and its unit
    link_verdicts.dip: (link_verdicts.fall, "points"),
    link_verdicts.recovery: (lambda seen: seen.cut_off.seconds, "s"),
    link_verdicts.catch_up: (
        lambda seen: link_verdicts.CatchUp.of(seen).peak / link_verdicts.normal_rate(seen)[0],
        "points",
    ),
    link_verdicts.catch_up_seconds: (lambda seen: link_verdicts.CatchUp.of(seen).seconds, "s"),
    link_verdicts.glitch: (lambda seen: link_verdicts.jolt(seen) / link_verdicts.normal_rate(seen)[0], "points"),
    link_verdicts.before: (link_verdicts.apart_before, "points"),
    link_verdicts.level_before: (_level(A, "before"), "ms"),
    link_verdicts.peak: (link_verdicts.highest_latency, "ms"),
    link_verdicts.detour: (_detour, "ms"),
    link_verdicts.after: (_level(A, "after"), "ms"),
    link_verdicts.spared: (_level(SPARED, "outage"), "ms"),
    link_verdicts.invariants: (lambda seen: float(seen.violations), "violations"),
}


def simulations(times: tuple[float, float, float], machine: MachineUse) -> list[Observed]:
    """The same run in the simulator, by phase and seed."""
    laters = [phase * link_cut.scenario().protocol.advertise_period for phase in PHASES]
    return [
        link_cut.observe(scenario(times, CLIENTS, later, machine), seed, publishers=False, since=later)
        for later in laters
        for seed in range(SEEDS)
    ]


def nearest(real: Observed, runs: Sequence[Observed]) -> Observed:
    """The simulated run in which the cut fell most nearly as in the real one."""
    return min(runs, key=lambda run: abs(run.cut_off.seconds - real.cut_off.seconds))


def shown(value: float, unit: str) -> str:
    """A number with its unit."""
    if unit == "points":
        return f"{value:+.1%}"
    return f"{value * 1000:.0f} ms" if unit == "ms" else f"{value:.2f} s" if unit == "s" else f"{value:.0f}"


def apart(real: float, simulated: float, unit: str) -> str:
    """How far the simulation is from reality."""
    if unit == "points":
        return f"{100 * (simulated - real):+.1f} points"
    share = f" ({simulated / real - 1:+.0%})" if real else ""
    return f"{'+' if simulated >= real else '-'}{shown(abs(simulated - real), unit)}{share}"


def side_by_side(judged: Judge, real: Measured, simulated: Observed, runs: Sequence[Observed]) -> Claim:
    """A claim judged on the real run, with the simulated one beside it, and the range of all simulated ones."""
    claim, other = judged(real.seen), judged(simulated)
    number, unit = COMPARED[judged]
    found = [number(run) for run in runs]
    verdicts = f"holds in {sum(judged(run).holds for run in runs)} of {len(runs)}"
    reasons = [claim.why]
    if judged in (link_verdicts.recovery, link_verdicts.peak):
        reasons.append(_phase(real.seen, runs))
    if not claim.holds:
        reasons += [_circumstances(real, simulated), f"The claim {verdicts} simulated runs."]
    distance = apart(number(real.seen), number(simulated), unit)
    return Claim(
        f"real.{claim.id}",
        claim.statement,
        claim.expected,
        claim.measured,
        claim.holds,
        " ".join(reason for reason in reasons if reason),
        f"{other.measured}{'' if other.holds else ' (differs)'}; {verdicts} runs",
        f"{distance}; {shown(number(real.seen), unit)} real, {shown(min(found), unit)} to {shown(max(found), unit)} in "
        f"{len(runs)} simulated runs",
    )


def _phase(real: Observed, runs: Sequence[Observed]) -> str:
    """What chance does to the silence, if the simulated runs differ in it."""
    silences = [run.cut_off.seconds for run in runs]
    if max(silences) - min(silences) < SAME * max(silences):
        return ""
    return (
        "The silence ends with the next advertisement of a third region, and where in its period of "
        f"{real.time.period:g} s the cut falls is chance: it lasted {real.cut_off.seconds:.2f} s, in {len(runs)} "
        f"simulated runs {min(silences):.2f} to {max(silences):.2f} s."
    )


def _circumstances(real: Measured, simulated: Observed) -> str:
    """What may have to do with a claim that differs: numbers, no causes."""
    noise, quiet = (spread / normal for normal, spread in map(link_verdicts.normal_rate, (real.seen, simulated)))
    return (
        f"The cut was noticed after {real.seen.cut_off.seconds:.2f} s, and a point covers {BIN:g} s. "
        f"The run used {real.used:.1f} processors, others {real.others:.1f}; throughput before the cut varies by "
        f"{noise:.1%} ({quiet:.1%} simulated), latency of {A} by {_spread(real.seen):.0%} ({_spread(simulated):.0%})."
    )


def _spread(seen: Observed) -> float:
    """How far a bin's latency is from the level before the cut, at most."""
    found = seen.latency[STREAM[A]].binned(seen.time.before)
    return float(np.abs(found / np.median(found) - 1).max())


def _shown(seen: Observed) -> tuple[float, float]:
    return WARM_UP * seen.time.period, seen.time.end - DRAIN


Curve = Callable[[Observed, Observed], link_cut.Floats]
"""How far a simulated curve is above a real one, point by point, as a part of the real one."""


def _throughputs(real: Observed, simulated: Observed) -> link_cut.Floats:
    chosen = real.rates.within(_shown(real))
    off: link_cut.Floats = simulated.rates.mean[chosen] - real.rates.mean[chosen]
    return off / link_verdicts.normal_rate(real)[0]


def _latencies(real: Observed, simulated: Observed) -> link_cut.Floats:
    """Of both origins."""
    off = []
    for region in (SPARED, A):
        one, other = (_binned(seen, region) for seen in (real, simulated))
        off += [other[at] / one[at] - 1 for at in sorted(one.keys() & other.keys())]
    return np.array(off)


def throughput_distance(
    real: Measured, simulated: Observed, runs: Sequence[Observed], machine: MachineUse = KEPT
) -> Claim:
    """Ours: how far apart the curves of SP5 are."""
    return _distance("real.SP5.model", "throughput", _throughputs, real, simulated, runs, machine)


def latency_distance(
    real: Measured, simulated: Observed, runs: Sequence[Observed], machine: MachineUse = KEPT
) -> Claim:
    """Ours: how far apart the curves of SP6 are."""
    return _distance("real.SP6.model", "latency", _latencies, real, simulated, runs, machine)


def _distance(
    ident: str,
    what: str,
    curve: Curve,
    real: Measured,
    simulated: Observed,
    runs: Sequence[Observed],
    machine: MachineUse,
) -> Claim:
    """Judged by the simulated run of the same phase: another phase is another experiment. But that run was chosen by
    the silence, which is part of the curve, so the median over all runs stands beside it."""
    above = curve(real.seen, simulated)
    middle, most, farthest = np.quantile(np.abs(above), (0.5, 0.9, 1.0)).tolist()
    each = [float(np.median(np.abs(curve(real.seen, run)))) for run in runs]
    overall = f"{np.median(each):.1%} in the median of all {len(runs)} simulated runs"
    return Claim(
        ident,
        f"Ours: the simulated curve of {what} is near the real one.",
        f"the median of the distances of all points ({BIN:g} s) is below {NEAR:.0%} in the simulated run whose silence "
        "was most nearly as long; chosen so, it is nearer than others may be",
        f"{middle:.1%}; nine tenths of the points are within {most:.1%}, the farthest {farthest:.0%}. Unchosen: "
        f"{overall} ({min(each):.1%} to {max(each):.1%}), below {NEAR:.0%} in {sum(one < NEAR for one in each)}",
        middle < NEAR,
        ""
        if middle < NEAR
        else f"The real {what} is higher in {np.mean(above < 0):.0%} of the points. The run used {real.used:.1f} "
        f"processors, others {real.others:.1f}; in the simulation nobody else is there.",
        f"see the figure; {machine.told}",
        f"median {middle:.1%}; {overall}",
    )


def _binned(seen: Observed, region: RegionId) -> dict[float, float]:
    """Latency by the start of its bin, where it is shown."""
    found = seen.latency[STREAM[region]]
    window = _shown(seen)
    starts = np.floor(found.published / BIN) * BIN
    inside = np.unique(starts[(starts >= window[0]) & (starts < window[1])])
    return dict(zip(inside.tolist(), found.binned([window]).tolist(), strict=True))


# --- the figures ----------------------------------------------------------------------------------------


def _moments(axes: Axes, timeline: Timeline) -> None:
    figures.shade(axes, timeline.cut, timeline.repair, f"no link {A} to {B}")
    figures.mark(axes, timeline.cut, "link\ncut")
    figures.mark(axes, timeline.repair, "link\nrepaired")
    axes.set_xlim(WARM_UP * timeline.period, timeline.end - DRAIN)
    axes.set_xlabel("time (s)")


def paint_throughput(real: Observed, simulated: Observed, axes: Axes) -> None:
    """Figure 7a: what a client receives, real and simulated."""
    timeline, normal = real.time, link_verdicts.normal_rate(simulated)[0] / 1000
    edges = np.append(real.rates.starts, timeline.end)
    _moments(axes, timeline)
    axes.stairs(real.rates.mean / 1000, edges, baseline=None, color=figures.BLUE, linewidth=2, label="real cluster")
    style: Any = {"color": figures.ORANGE, "linewidth": 2, "linestyle": (0, (3, 1))}
    axes.stairs(simulated.rates.mean / 1000, edges, baseline=None, label="simulated", **style)
    low = normal * (1 - link_verdicts.over_link(simulated))
    figures.expect(axes, (timeline.cut - timeline.period, timeline.cut + 2 * timeline.period), low, "expected dip")
    axes.set_ylim(
        0, 1.15 * max(each.rates.mean[each.rates.within(_shown(each))].max() for each in (real, simulated)) / 1000
    )
    axes.set_ylabel("1000 events/s, mean of clients")
    axes.set_title("Events delivered per client while a link fails, real and simulated (SP5)")


def paint_latency(real: Observed, simulated: Observed, axes: Axes) -> None:
    """Figure 7b: latency of two origins, real and simulated."""
    timeline = real.time
    _moments(axes, timeline)
    for region, color in ((SPARED, figures.ORANGE), (A, figures.BLUE)):
        for seen, name, dash in ((real, "real", "-"), (simulated, "simulated", (0, (3, 1)))):
            means = _binned(seen, region)
            axes.plot(
                np.array(list(means)) + BIN / 2,
                np.array(list(means.values())) * 1000,
                color=color,
                linestyle=dash,
                linewidth=2,
                label=f"published in {region}, {name}",
            )
    before = simulated.latency[STREAM[A]].level(timeline.before) * 1000
    longer = before + link_verdicts.extra_path() * 1000
    settled = timeline.cut + link_verdicts.SHORTLY * timeline.period
    figures.expect(axes, (settled, timeline.repair), longer, f"expected for {A}")
    figures.expect(axes, (timeline.repair, timeline.end - DRAIN), before)
    link_verdicts.paint_paper_level(axes, timeline.cut)
    link_verdicts.latency_axis(axes)
    axes.set_title("Latency of two origins while a link fails, real and simulated (SP6)")


# --- the experiment -------------------------------------------------------------------------------------


def report(sql: Sql, scale: str, out: Path) -> Findings:
    """Simulate what was measured, and judge both."""
    machine = MachineUse.of(out)
    return report_run(read(sql), simulations(TIMES[scale], machine), out, machine)


def report_run(real: Measured, runs: Sequence[Observed], out: Path, machine: MachineUse = KEPT) -> Findings:
    """Judge, draw, and store what was measured and simulated."""
    simulated = nearest(real.seen, runs)
    claims = [side_by_side(judged, real, simulated, runs) for judged in COMPARED]
    claims += [curve(real, simulated, runs, machine) for curve in (throughput_distance, latency_distance)]
    sides = {"real": real.seen, "simulated": simulated}
    flows = [{"run": name, **part} for name, seen in sides.items() for part in link_verdicts.flow_columns(seen.rates)]
    batches = [
        {"run": name, **part} for name, seen in sides.items() for part in link_verdicts.batch_columns(seen.latency)
    ]
    return Findings(
        claims,
        {
            "SP5-real": figures.draw(out, "sp5-real", partial(paint_throughput, real.seen, simulated)),
            "SP6-real": figures.draw(out, "sp6-real", partial(paint_latency, real.seen, simulated)),
        },
        {
            "SP5-real": [link_verdicts.write(out / "sp5-real.parquet", flows)],
            "SP6-real": [link_verdicts.write(out / "sp6-real.parquet", batches)],
        },
    )


_MODULES = (
    "real_cut",
    "link_cut",
    "calibration",
    "calibration_verdicts",
    "bench_cluster",
    "bench_worker",
    "cluster_load",
    "evidence",
)
STUDIES = (Study("real-link-cut", points, measure, report, alone=True),)
EXPERIMENTS = (
    Experiment(
        "SP5-real",
        PAPER_NAME,
        "Figure 7a on a real cluster, beside the simulation",
        (
            *("real.SP5.dip", "real.SP5.recovery", "real.SP5.catch-up", "real.SP5.catch-up-seconds"),
            *("real.SP5.glitch", "real.SP5.model", "real.ours.invariants"),
        ),
        "real-link-cut",
    ),
    Experiment(
        "SP6-real",
        PAPER_NAME,
        "Figure 7b on a real cluster, beside the simulation",
        (
            *("real.SP6.before", "real.SP6.level", "real.SP6.peak", "real.SP6.detour", "real.SP6.after"),
            *("real.SP6.origin-0", "real.SP6.model", "real.ours.invariants"),
        ),
        "real-link-cut",
    ),
)
