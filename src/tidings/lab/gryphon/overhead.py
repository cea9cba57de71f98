"""GR1 and GR2: what the guarantee costs, by the number of subscribers (Gryphon, section 4.1, figures 4 and 5).

Two brokers as in the paper: p1, a replica, and one edge below it. 2,000 events/s of 250 bytes are published; every
subscriber is a TCP connection with a filter of its own, and gets two events a second (bench/fanout_worker.py). Twenty
*local* subscribers are connected with p1, all others are *remote*, at the edge. Best effort is explained in
best_effort.py. p1 logs with fsync in one mode, and keeps its log in memory in the other.

Processor time is that of the two broker processes, user and system, from two seconds after the first event until the
last is delivered, over the time for which was published: in points of one core. (The paper's machine had six
processors.) So work that is late is counted, too. Publisher, subscribers and everybody else share this machine's cores,
so latencies contain waiting for them; how many processors others used stands beside the numbers.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from tidings.bench.cluster import BenchWorker, Usage, process_seconds
from tidings.bench.fanout_worker import FanoutJob
from tidings.client.connection import connect
from tidings.lab import figures
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.gryphon.launcher import WAIT, Brokers
from tidings.lab.study import Point, Row, Sql, Study
from tidings.net.loop import run as run_loop
from tidings.server import cluster_config
from tidings.server.local import LocalCluster

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REGION = "r0"
SITE, EDGE = f"{REGION}/p0", f"{REGION}/e0"
GUARANTEED, BEST = "guaranteed", "best effort"
COUNTS = {"quick": (100, 1000), "full": (1000, 4000, 8000, 16_000)}  # subscribers of the edge
SECONDS = {"quick": 5.0, "full": 15.0}
REPEATS = {"quick": 1, "full": 3}
WARM = 2.0  # seconds: code is compiled, caches are filled; ours
LOCAL = 20  # subscribers of p1; ours: enough for a median
STREAM = "fanout"
POINTS = 4.0  # GR1's goal: points of one core
FLAT = 2.0  # points within which two measurements of a few seconds are the same; ours
QUIET = 0.3  # processors used by others below which a measurement is worth something; ours
SOON = 100.0  # ms, the goal for the 99th percentile
GAP = 100.0  # ms, GR2: what logging costs in the paper


def points(scale: str) -> list[Point]:
    """Both modes, in turns."""
    return [
        {"mode": mode, "repeat": repeat, "counts": list(COUNTS[scale]), "seconds": SECONDS[scale]}
        for repeat in range(REPEATS[scale])
        for mode in (GUARANTEED, BEST)
    ]


def measure(point: Mapping[str, Any]) -> list[Row]:
    """All numbers of subscribers in one mode."""
    return run_loop(measured(point["mode"], point["counts"], point["seconds"]))


async def measured(mode: str, counts: Sequence[int], seconds: float) -> list[Row]:
    """Start p1 and the edge, then measure with more and more subscribers."""
    durability: cluster_config.Durability = "durable" if mode == GUARANTEED else "memory"
    made = cluster_config.generate(1, 1, edges=1, durability=durability, port=0)
    (region,) = made.regions
    alone = msgspec.structs.replace(made, regions=(msgspec.structs.replace(region, edges=()),))
    with tempfile.TemporaryDirectory(prefix="tidings-") as name:
        folder = Path(name)
        brokers = Brokers(folder / "edge", made)
        try:
            async with LocalCluster(config=alone, dir=folder / "site") as cluster:
                await brokers.start([EDGE], "plain" if mode == GUARANTEED else "best-effort")
                async with connect(cluster.url(REGION), timeout=WAIT) as t:
                    info = await t.create_stream(STREAM, attrs="topic bigint, price double")
                    await t.publish(STREAM, attrs={"topic": -1, "price": 0.0})
                    while not (await t.describe()).edges:
                        await asyncio.sleep(0.05)
                return [
                    await _with(cluster, brokers, info.id, count, seconds, seed) for seed, count in enumerate(counts)
                ]
        finally:
            await brokers.stop()


async def _with(cluster: LocalCluster, brokers: Brokers, stream: str, count: int, seconds: float, seed: int) -> Row:
    """One number of subscribers."""
    site = cluster.process(SITE)
    assert site is not None
    pids = {"site": site.pid, "edge": brokers.running(EDGE).pid}
    job = FanoutJob(url=cluster.url(REGION), stream=stream, seconds=seconds, warm=WARM, seed=seed)
    change = msgspec.structs.replace
    remote = await _start(
        "remote", "subscribe", change(job, address=brokers.places[EDGE].address, count=count, total=count)
    )
    local = await _start(
        "local", "subscribe", change(job, address=cluster.addresses(REGION)[0], count=LOCAL, total=LOCAL)
    )
    publisher = await _start("publisher", "publish", change(job, stream=STREAM))
    workers = [remote, local, publisher]
    try:
        for worker in workers:
            await worker.hear(WAIT + 0.02 * count)
        own = pids | {worker.name: worker.process.pid for worker in workers}
        usage = Usage(own)
        publisher.tell()
        await asyncio.sleep(WARM)
        before = {name: process_seconds(pid) for name, pid in pids.items()}
        published = await publisher.hear(WAIT + seconds)
        ends = []
        for worker in (remote, local):
            worker.tell("stop")
            ends.append(await worker.hear(WAIT))
        took = published["ended"] - published["began"] - WARM
        used = {name: (process_seconds(pid) - before[name]) / took for name, pid in pids.items()}
        others = usage.since(0.0)["others_cpus"]
    finally:
        await asyncio.gather(*[worker.end() for worker in workers])
    return {
        **{"count": count, "edge": 100 * used["edge"], "site": 100 * used["site"], "others": float(others)},
        **{
            f"{where}_{part}": each[part] / 1000
            for where, each in zip(("remote", "local"), ends, strict=True)
            for part in ("p50", "p99")
        },
        "wrong": sum([each["missing"] + each["surplus"] for each in ends]),
    }


async def _start(name: str, what: str, job: FanoutJob) -> BenchWorker:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidings.bench.fanout_worker", what, msgspec.json.encode(job).decode()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    return BenchWorker(name, process)


# --- the claims -----------------------------------------------------------------------------------------


class Costs:
    """What was measured, medians over the repetitions."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)
        found: dict[tuple[str, int, str], list[float]] = defaultdict(list)
        for row in self.rows:
            for name, value in row.items():
                if isinstance(value, float | int) and not isinstance(value, bool):
                    found[row["mode"], row["count"], name].append(float(value))
        self.all = found
        self.counts = sorted({row["count"] for row in self.rows})

    def __call__(self, mode: str, count: int, name: str) -> float:
        return median(self.all[mode, count, name])

    def over(self, count: int, name: str) -> float:
        """Guaranteed minus best effort."""
        return self(GUARANTEED, count, name) - self(BEST, count, name)

    @property
    def busy(self) -> str:
        """What is to be said of every number if this machine did other work."""
        others = median([row["others"] for row in self.rows])
        if others < QUIET:
            return ""
        return (
            f"Others used {others:.1f} processors meanwhile: latencies contain waiting for one, and a difference of a "
            "few points may be theirs."
        )

    def told(self, mode: str, name: str, digits: int = 1) -> str:
        """By number of subscribers."""
        return ", ".join([f"{count:,}: {self(mode, count, name):.{digits}f}" for count in self.counts])

    def apart(self, name: str, digits: int = 1) -> str:
        """The difference, by number of subscribers."""
        return ", ".join([f"{count:,}: {self.over(count, name):+.{digits}f}" for count in self.counts])

    @property
    def size(self) -> str:
        """How large the run was, for a claim about more."""
        others = median([row["others"] for row in self.rows])
        return f"up to {self.counts[-1]:,} subscribers; others used {others:.1f} processors"


def edge_grows(found: Costs) -> Claim:
    """GR1: the edge."""
    few, many = found.counts[0], found.counts[-1]
    return Claim(
        "GR1.edge",
        "The processor use of the edge grows with the number of its subscribers.",
        "more points with the most subscribers than with the fewest, in both modes",
        f"guaranteed {found.told(GUARANTEED, 'edge')}; best effort {found.told(BEST, 'edge')} points of a core",
        all(found(mode, many, "edge") > found(mode, few, "edge") for mode in (GUARANTEED, BEST)),
    )


def overhead(found: Costs) -> Claim:
    """GR1: the goal."""
    worst = max([found.over(count, "edge") for count in found.counts])
    return Claim(
        "GR1.overhead",
        f"At the edge the guarantee costs less than {POINTS:g} points of one core (the paper: of a machine with six).",
        f"guaranteed minus best effort below {POINTS:g} points at every number of subscribers",
        f"{found.apart('edge')} points ({found.size})",
        worst < POINTS,
        _noise(found),
    )


def overhead_flat(found: Costs) -> Claim:
    """GR1: and does not grow."""
    few, many = found.counts[0], found.counts[-1]
    grown = found.over(many, "edge") - found.over(few, "edge")
    return Claim(
        "GR1.flat",
        "What the guarantee costs at the edge does not grow with the number of subscribers.",
        f"at most {FLAT:g} points more with the most subscribers than with the fewest",
        f"{found.apart('edge')} points: {grown:+.1f}",
        grown <= FLAT,
        _noise(found),
    )


def _noise(found: Costs) -> str:
    """What a difference of two measurements is worth."""
    spread = [max(values) - min(values) for (_, _, name), values in found.all.items() if name == "edge"]
    repeats = len(found.all[GUARANTEED, found.counts[0], "edge"])
    if repeats == 1:
        return "One run of each mode: a difference of a few points is within what two runs of one mode differ by."
    return f"Medians of {repeats} runs, which differ by up to {max(spread):.1f} points in one mode."


def site_still(found: Costs) -> Claim:
    """GR1: the publishing site does not notice."""
    values = [found(GUARANTEED, count, "site") for count in found.counts]
    limit = max(FLAT, 0.1 * min(values))
    return Claim(
        "GR1.site",
        "The processor use of the publishing site does not depend on the subscribers of the edge.",
        f"guaranteed: at most {limit:.1f} points between any two numbers of subscribers (a tenth, or {FLAT:g} points)",
        f"guaranteed {found.told(GUARANTEED, 'site')} points of a core",
        max(values) - min(values) <= limit,
    )


def site_log(found: Costs) -> Claim:
    """GR1: logging."""
    return Claim(
        "GR1.logging",
        "At the publishing site the guarantee costs more than at the edge, because it logs (the paper: 8%).",
        "guaranteed minus best effort above 0 at every number of subscribers, and above that of the edge",
        f"site {found.apart('site')}, edge {found.apart('edge')} points",
        all(found.over(count, "site") > max(found.over(count, "edge"), 0.0) for count in found.counts),
        "Both modes replicate, acknowledge and index; best effort here spares the disk alone.",
    )


def local_flat(found: Costs) -> Claim:
    """GR2: local subscribers."""
    values = [found(GUARANTEED, count, "local_p50") for count in found.counts]
    return Claim(
        "GR2.local",
        "Latency of local subscribers does not grow with the subscribers of the edge.",
        "median with the most subscribers at most twice that with the fewest",
        f"guaranteed {found.told(GUARANTEED, 'local_p50')} ms",
        values[-1] <= 2 * values[0],
    )


def remote_grows(found: Costs) -> Claim:
    """GR2: remote subscribers."""
    few, many = found.counts[0], found.counts[-1]
    return Claim(
        "GR2.remote",
        "Latency of remote subscribers grows with their number, in both modes.",
        "median with the most subscribers above that with the fewest",
        f"guaranteed {found.told(GUARANTEED, 'remote_p50')}; best effort {found.told(BEST, 'remote_p50')} ms",
        all(found(mode, many, "remote_p50") > found(mode, few, "remote_p50") for mode in (GUARANTEED, BEST)),
    )


def difference(found: Costs) -> Claim:
    """GR2: the gap."""
    gaps = [found.over(count, name) for count in found.counts for name in ("local_p50", "remote_p50")]
    return Claim(
        "GR2.difference",
        f"The guarantee adds the time of a log write to the latency, {GAP:g} ms in the paper; here it nearly vanishes.",
        f"median latencies, guaranteed minus best effort: below a tenth of {GAP:g} ms, local and remote",
        f"local {found.apart('local_p50')}, remote {found.apart('remote_p50')} ms",
        max(gaps) < GAP / 10,
    )


def fanout(found: Costs) -> Claim:
    """The goal for latency."""
    many = found.counts[-1]
    return Claim(
        "goal.fanout-p99",
        f"99 of 100 events are at their subscribers within {SOON:g} ms.",
        f"99th percentile below {SOON:g} ms with the most subscribers",
        f"guaranteed {found.told(GUARANTEED, 'remote_p99')} ms ({found.size})",
        found(GUARANTEED, many, "remote_p99") < SOON,
    )


def exact(found: Costs) -> Claim:
    """Ours: the guarantee holds under this load."""
    wrong = sum([row["wrong"] for row in found.rows if row["mode"] == GUARANTEED])
    return Claim(
        "GR1.exactly-once",
        "Every subscriber gets exactly the events that its filter passes.",
        "guaranteed: 0 events too few or too many",
        f"{wrong:.0f} of {found.size}",
        not wrong,
    )


JUDGES = (
    *(edge_grows, overhead, overhead_flat, site_still, site_log, exact),
    *(local_flat, remote_grows, difference, fanout),
)
GR1 = ("GR1.edge", "GR1.overhead", "GR1.flat", "GR1.site", "GR1.logging", "GR1.exactly-once")
GR2 = ("GR2.local", "GR2.remote", "GR2.difference", "goal.fanout-p99")


# --- figures --------------------------------------------------------------------------------------------


def _lines(found: Costs, axes: Axes, names: Mapping[str, str], what: Mapping[str, str]) -> None:
    for (name, label), color in zip(names.items(), (figures.BLUE, figures.ORANGE), strict=True):
        for mode, style in what.items():
            values = [found(mode, count, name) for count in found.counts]
            axes.plot(found.counts, values, style, color=color, fillstyle="none", label=f"{label}, {mode}")
    axes.set_xlabel("subscribers of the edge")
    axes.set_ylim(bottom=0)


STYLES = {GUARANTEED: "o-", BEST: "s--"}


def paint_use(found: Costs, axes: Axes) -> None:
    """Figure 4."""
    _lines(found, axes, {"edge": "edge", "site": "p1"}, STYLES)
    axes.set_ylabel("points of one core")
    axes.set_title("Processor use by subscribers (GR1)")


def paint_latency(found: Costs, axes: Axes) -> None:
    """Figure 5."""
    _lines(found, axes, {"remote_p50": "remote", "local_p50": "local"}, STYLES)
    axes.set_ylabel("median latency (ms)")
    axes.set_title("Latency by subscribers (GR2)")


def judged(found: Costs) -> list[Claim]:
    """All claims, with what a busy machine did to them."""
    claims = [judge(found) for judge in JUDGES]
    return [replace(claim, why=" ".join([part for part in (claim.why, found.busy) if part])) for claim in claims]


def report(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge and draw."""
    found = Costs(sql("select * from results order by mode, repeat, count"))
    return Findings(
        judged(found),
        {
            "GR1": figures.draw(out, "gr1", lambda axes: paint_use(found, axes)),
            "GR2": figures.draw(out, "gr2", lambda axes: paint_latency(found, axes)),
        },
        {},
    )


PAPER = "gryphon"
STUDIES = (Study("gryphon-overhead", points, measure, report, alone=True),)
EXPERIMENTS = (
    Experiment("GR1", PAPER, "Figure 4: processor use by the number of subscribers", GR1, "gryphon-overhead"),
    Experiment("GR2", PAPER, "Figure 5: latency by the number of subscribers", GR2, "gryphon-overhead"),
)
