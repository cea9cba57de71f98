"""What Sprinkler's paper left out: fail-over of a chain, churn, catching up, the constant C, the size of buffers.

Small simulated worlds, one question each. Every limit follows from settings (timeouts, periods, bandwidths), not from
what was measured; every world is also judged by check/.

- *fail-over*: the head, a middle or the tail is killed; how long does any client go without the stream?
- *churn*: a share of the clients leaves every second and others come; do those who stay notice?
- *outage*: a region is cut off for a while, then catches up over a narrow link, with and without collection by key.
- *C*: how long until a region gives up a source that has fallen silent, and how often regions change sources between
  paths of equal length whose latency varies, by the constant of the switch rule (A1.17).
- *buffer*: what a client's Recv must hold (A1.33), in seconds of load.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.check import judge
from tidings.core.errors import TidingsError
from tidings.core.span import Span
from tidings.lab import figures, region_load
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.study import Point, Row, Sql, Study
from tidings.protocols.configuration import ConfigurationSettings
from tidings.protocols.kernel import Received
from tidings.protocols.messages import Know
from tidings.protocols.publishing import PublishSettings
from tidings.protocols.pull import PullSettings
from tidings.sim.build import Deployment
from tidings.sim.run import failures, simulate
from tidings.sim.scenario import AnyFault, Cut, Heal, Kill, Link, Protocol, Publisher, Region, Run, Scenario, Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BREAKS = 6.0  # when something happens, in every world
SEEDS = {"quick": 2, "full": 5}
PLACES = ("head", "middle", "tail")
CHURN = (0.0, 0.05, 0.2)  # share of the clients that is replaced every second
OUTAGES = {"quick": (2.0, 8.0), "full": (2.0, 4.0, 8.0, 16.0)}  # seconds
POLICIES = ("none", "by-key")
KEYS, SKEW = 5_000, 1.1
LINK_RATE, LINK_BITS = 10_000.0, 10e6  # events/s over the narrow link, which carries twice to three times that
CONSTANTS: dict[str, float | None] = {"0": 0.0, "in proportion": None, "1000": 1e3, "huge": 1e12}  # 1 s at 1000/s; ours
JITTER = 0.01  # seconds: half of the latency, so that now this path is shorter and now that one; ours
BUFFERS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
BUFFER_CLIENTS = {"quick": (60, 1), "full": (1000, 2)}  # per region, and seeds; ours: the cliff shows in large regions


class Watch:
    """When each client had which numbers of one stream, and what of it came from region to region."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.seen: dict[str, list[tuple[float, int, int]]] = {}
        self.crossed: list[tuple[str, Span]] = []  # region it came to, what came

    def on_deliver(self, time: float, node: str, incarnation: int, item: Any) -> None:
        """Receipts."""
        if type(item) is Span and item.stream == self.stream:
            self.seen.setdefault(node, []).append((time, item.lo, item.hi))

    def on_step(self, time: float, node: str, incarnation: int, input: Any, effects: Any) -> None:
        """What crosses a link, as often as it does."""
        if type(input) is Received and type(input.message) is Know and input.message.stream == self.stream:
            region = node.partition("/")[0]
            if region != input.src.partition("/")[0]:
                self.crossed += [(region, span) for span in input.message.spans]

    def rows_sent(self, region: str, lo: int, hi: int) -> int:
        """Rows of [lo, hi) that came to a region from others."""
        spans = [span for to, span in self.crossed if to == region and span.lo < hi and span.hi > lo]
        return sum([span.slice(max(lo, span.lo), min(hi, span.hi)).rows.count for span in spans])

    def silence(self, region: str, since: float, end: float) -> float:
        """The longest any client of a region that was there before went without news between ``since`` and the end."""
        waits = []
        for node, receipts in self.seen.items():
            if node.startswith(f"{region}/") and receipts[0][0] < since:
                times = [*[time for time, _, _ in receipts if time < end], end]
                waits += [b - a for a, b in itertools.pairwise(times) if b > since]
        if not waits:
            raise TidingsError(
                f"no client of {region} had anything of {self.stream} before {since:g} s: nothing to judge"
            )
        return max(waits)


def world(
    seconds: float,
    faults: tuple[AnyFault, ...] = (),
    *,
    regions: int = 2,
    clients: int = 6,
    rate: float = 1000.0,
    gc: str = "none",
    bandwidth: float | None = None,
    jitter: float = 0.0,
    protocol: Protocol | None = None,
) -> Scenario:
    """r0 publishes; the others receive."""
    names = [f"r{at}" for at in range(regions)]
    keyed = gc != "none" or bandwidth is not None
    return Scenario(
        scenario=Run(name="beyond", seconds=seconds),
        regions=tuple(Region(name, replicas=3, clients=clients) for name in names),
        links=tuple(
            Link(a, b, 0.02, "normal" if jitter else "constant", jitter, bandwidth)
            for a, b in itertools.combinations(names, 2)
        ),
        streams=(Stream("s0", "r0", gc=gc, rows="arrow" if keyed else "counted"),),
        publishers=(
            Publisher(
                region="r0",
                stream="s0",
                rate=rate,
                batch=max(1, round(rate / 50)),
                keys=KEYS if keyed else 0,
                skew=SKEW,
                stop=seconds - 1.0,
            ),
        ),
        faults=faults,
        protocol=protocol or Protocol(),
    )


def _run(plan: Scenario, seed: int, prepare: Any = None) -> tuple[Deployment, Watch, int]:
    """Simulate and judge; the deployment, what was watched, and the number of violations."""
    deployment = Deployment(plan, seed, trace=False)
    watch = Watch("s0")
    deployment.world.observers.append(watch)
    if prepare is not None:
        prepare(deployment)
    simulate(deployment)
    found = failures(deployment) + judge(deployment.recorder.trace())
    return deployment, watch, len(found)


# --- tasks ----------------------------------------------------------------------------------------------


def measure_failover(point: Mapping[str, Any]) -> list[Row]:
    """Kill one replica of r0."""
    plan = world(BREAKS + 8.0, (Kill(BREAKS, f"r0/{point['place']}"),))
    _, watch, violations = _run(plan, point["seed"])
    return [
        {"region": name, "silence": watch.silence(name, BREAKS, BREAKS + 7.0), "violations": violations}
        for name in ("r0", "r1")
    ]


def measure_churn(point: Mapping[str, Any]) -> list[Row]:
    """Replace clients of r0 steadily from BREAKS on; those of the first half stay."""
    plan = world(BREAKS + 8.0, clients=20)
    until = BREAKS + 6.0

    def replace(deployment: Deployment) -> None:
        leavers = deployment.clients["r0"][10:]
        wait = 1.0 / (point["churn"] * 20) if point["churn"] else until
        for at in range(int((until - BREAKS) / wait)):
            leaver = leavers[at] if at < len(leavers) else f"r0/n{at - len(leavers)}"
            moment = BREAKS + (at + 1) * wait

            def swap(leaver: str = leaver, comer: str = f"r0/n{at}") -> None:
                deployment.world.crash(leaver)
                deployment.spawn("client", "r0", comer)

            deployment.world.at(moment, swap)

    deployment, watch, violations = _run(plan, point["seed"], replace)
    stayed = [f"r0/c{at}" for at in range(10)]
    arrived = {hi: at for (_, hi), at in deployment.recorder.arrived.items()}
    late = []
    for node in stayed:
        ends = sorted((hi, time) for time, _, hi in watch.seen[node])
        for lo, at in arrived.items():
            if BREAKS < at < until:
                late.append(next(time for hi, time in ends if hi > lo) - at)
    late.sort()
    p99 = late[int(0.99 * (len(late) - 1))]
    return [{"latency": sum(late) / len(late), "p99": p99, "replaced": point["churn"], "violations": violations}]


def measure_outage(point: Mapping[str, Any]) -> list[Row]:
    """Cut r1 off, and let it catch up over a link that is hardly wider than the flow."""
    length = point["outage"]
    heal = BREAKS + length
    plan = world(
        heal + 6.0 * length + 6.0,
        (Cut(BREAKS, "r0", "r1"), Heal(heal, "r0", "r1")),
        gc=point["gc"],
        rate=LINK_RATE,
        bandwidth=LINK_BITS,
    )
    _, watch, violations = _run(plan, point["seed"])
    lag = {}
    for node, receipts in watch.seen.items():
        if node.startswith("r1/"):
            here = [(time, hi) for time, _, hi in receipts]
            there = [(time, hi) for time, _, hi in watch.seen["r0/c0"]]
            lag[node] = _level(there, here, heal)
    missed = max(hi for time, _, hi in watch.seen["r0/c0"] if time < heal)
    had = max(hi for time, _, hi in watch.seen["r1/c0"] if time <= BREAKS + 0.2)
    return [
        {
            "catch_up": max(lag.values()),
            "rows": watch.rows_sent("r1", had, missed),
            "missed": missed - had,
            "violations": violations,
        }
    ]


def _level(there: list[tuple[float, int]], here: list[tuple[float, int]], since: float) -> float:
    """How long after ``since`` one horizon is within half a second's worth of the other."""
    ends = iter(there)
    now, ahead = next(ends)
    for time, hi in here:
        while now < time - 0.5:
            now, ahead = next(ends, (float("inf"), ahead))
        if time > since and hi >= ahead:
            return time - since
    return float("inf")


def measure_constant(point: Mapping[str, Any]) -> list[Row]:
    """The link from r0 to r1 fails; r2 and r3 could help out, and their paths are alike but for jitter."""
    protocol = Protocol(c=CONSTANTS[point["c"]])
    plan = world(BREAKS + 10.0, (Cut(BREAKS, "r0", "r1"),), regions=4, jitter=JITTER, protocol=protocol)
    deployment, watch, violations = _run(plan, point["seed"])
    switches = deployment.world.reports.get("source_switch", 0.0)
    return [{"silence": watch.silence("r1", BREAKS, BREAKS + 9.0), "switches": switches, "violations": violations}]


def measure_buffer(point: Mapping[str, Any]) -> list[Row]:
    """The fabric at the paper's load, with less room than it needs."""
    return region_load.measure(point)


# --- claims ---------------------------------------------------------------------------------------------


def _seeds(scale: str, **setting: Any) -> list[Point]:
    return [{**setting, "seed": seed} for seed in range(SEEDS[scale])]


def report_failover(sql: Sql, scale: str, out: Path) -> Findings:
    """Each place of the chain."""
    rows = sql("select place, region, max(silence) silence, sum(violations) bad from results group by place, region")
    service, publish, period = ConfigurationSettings(), PublishSettings(), Protocol().advertise_period
    detected = service.silence + service.sweep
    asked = PullSettings().proxy_timeout  # whoever lacks something asks the tail it knows of, and waits so long for it
    limits = {
        **{(place, "r0"): detected + publish.retry + 0.2 + (asked if place == "tail" else 0.0) for place in PLACES},
        **{(place, "r1"): detected + max(publish.retry, 1.5 * period) + 0.2 for place in PLACES},
    }
    over = [row for row in rows if row["silence"] > limits[row["place"], row["region"]]]
    told = "; ".join(f"{row['place']}: {row['region']} {row['silence']:.2f} s" for row in sorted(rows, key=_place))
    claim = Claim(
        "ours.chain",
        "Whichever replica is killed, its region's clients go on when the chain has closed ranks, another region's "
        "when they have found the new tail.",
        f"no client without the stream for longer than {limits['head', 'r0']:.2f} s in its region (silence, sweep, "
        f"retry), {limits['tail', 'r0']:.2f} s if it was the tail (who lacks something may ask the dead one first), "
        f"{limits['head', 'r1']:.2f} s in another (or one and a half advertisements); 0 violations",
        f"{told} ({SEEDS[scale]} seeds), {sum(row['bad'] for row in rows)} violations",
        not over and not any(row["bad"] for row in rows),
    )
    drawn = figures.draw(out, "ours-failover", lambda axes: paint_failover(rows, limits, axes))
    return Findings([claim], {"chain": drawn}, {"chain": [str(out / "results" / "chain")]})


def _place(row: Row) -> tuple[int, str]:
    return PLACES.index(row["place"]), row["region"]


def paint_failover(rows: list[Row], limits: Mapping[tuple[str, str], float], axes: Axes) -> None:
    """Bars by place and region."""
    for at, (region, color) in enumerate((("r0", figures.BLUE), ("r1", figures.ORANGE))):
        some = {row["place"]: row["silence"] for row in rows if row["region"] == region}
        places = [PLACES.index(place) + 0.36 * at - 0.18 for place in PLACES]
        label = "its own region" if region == "r0" else "another region"
        axes.bar(places, [some[place] for place in PLACES], 0.34, color=color, label=label)
        for place, x in zip(PLACES, places, strict=True):
            named = "at most" if not at and place == PLACES[0] else None
            figures.expect(axes, (x - 0.17, x + 0.17), limits[place, region], named)
    axes.set_xticks(range(3), [f"{place} killed" for place in PLACES])
    axes.set_ylabel("s without events, worst client")
    axes.set_title("How long a stream stands still when a replica dies")


def report_churn(sql: Sql, scale: str, out: Path) -> Findings:
    """Those who stay."""
    rows = sql(
        "select churn, avg(latency) latency, max(p99) p99, sum(violations) bad "
        "from results group by churn order by churn"
    )
    calm, worst = rows[0], rows[-1]
    claim = Claim(
        "ours.churn",
        "Clients that stay do not notice others coming and going.",
        f"at {worst['churn']:.0%} replaced per second the mean latency is less than twice that without churn; "
        "0 violations",
        "; ".join(f"{row['churn']:.0%}: {_ms(row['latency'])}, p99 {_ms(row['p99'])}" for row in rows)
        + f"; {sum(row['bad'] for row in rows)} violations",
        worst["latency"] < 2 * calm["latency"] and not any(row["bad"] for row in rows),
    )
    drawn = figures.draw(out, "ours-churn", lambda axes: paint_churn(rows, axes))
    return Findings([claim], {"churn": drawn}, {"churn": [str(out / "results" / "churn")]})


def paint_churn(rows: list[Row], axes: Axes) -> None:
    """Latency of those who stay by how many are replaced."""
    churn = [100 * row["churn"] for row in rows]
    axes.plot(churn, [1000 * row["latency"] for row in rows], "o-", color=figures.BLUE, label="mean")
    axes.plot(churn, [1000 * row["p99"] for row in rows], "s--", color=figures.ORANGE, label="99th percentile")
    figures.expect(axes, (churn[0], churn[-1]), 2000 * rows[0]["latency"], "mean, at most")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("clients replaced per second (%)")
    axes.set_ylabel("ms until a client that stays has it")
    axes.set_title("Latency of those who stay while others come and go")


def report_outage(sql: Sql, scale: str, out: Path) -> Findings:
    """With and without collection."""
    rows = sql(
        "select gc, outage, max(catch_up) catch_up, avg(rows) rows, avg(missed) missed, sum(violations) bad "
        "from results group by gc, outage order by gc, outage"
    )
    longest = max(OUTAGES[scale])
    without, collected = (next(r for r in rows if r["gc"] == gc and r["outage"] == longest) for gc in POLICIES)
    saved = 1 - collected["rows"] / without["rows"]
    claims = [
        Claim(
            "ours.catch-up",
            "After an outage a region catches up sooner if what was replaced meanwhile is collected.",
            f"after {longest:g} s sooner by key than without collection; 0 violations",
            "; ".join(f"{row['gc']}, {row['outage']:g} s: {row['catch_up']:.1f} s" for row in rows)
            + f"; {sum(row['bad'] for row in rows)} violations",
            collected["catch_up"] < without["catch_up"] and not any(row["bad"] for row in rows),
        ),
        Claim(
            "ours.bandwidth",
            "Collection saves bandwidth: what was replaced during an outage is not sent afterwards.",
            f"after {longest:g} s fewer rows by key than without collection, at least a quarter",
            f"{collected['rows']:.0f} rows over the link instead of {without['rows']:.0f} for {without['missed']:.0f} "
            f"numbers missed, whatever was sent twice included ({saved:.0%} saved)",
            saved >= 0.25,
        ),
    ]
    drawn = figures.draw(out, "ours-catch-up", lambda axes: paint_outage(rows, axes))
    return Findings(claims, {"outage": drawn}, {"outage": [str(out / "results" / "outage")]})


def paint_outage(rows: list[Row], axes: Axes) -> None:
    """Time to catch up by length of the outage."""
    for gc, color in (("none", figures.ORANGE), ("by-key", figures.BLUE)):
        line = [row for row in rows if row["gc"] == gc]
        label = "nothing collected" if gc == "none" else "collected by key"
        axes.plot([r["outage"] for r in line], [r["catch_up"] for r in line], "o-", color=color, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("length of the outage (s)")
    axes.set_ylabel("s until caught up")
    axes.set_title("Catching up over a narrow link, with and without collection")


def report_constant(sql: Sql, scale: str, out: Path) -> Findings:
    """C decides how soon a silent source is left, and how often one that is not."""
    found = sql(
        "select c, avg(silence) mean, max(silence) silence, avg(switches) switches, sum(violations) bad "
        "from results group by c"
    )
    rows = {row["c"]: row for row in sorted(found, key=lambda row: list(CONSTANTS).index(row["c"]))}
    usual, huge = rows["in proportion"], rows["huge"]
    limit = 2 * 1.5 * Protocol().advertise_period + 0.2  # whoever could help may have hung on r1, and moves first
    changes = [row["switches"] for row in rows.values()]
    claims = [
        Claim(
            "ours.constant",
            "C decides how soon a region leaves a silent source: in proportion to the rate it takes an advertisement "
            "or two, with a huge C the source is never left for that reason.",
            f"in proportion: silent for at most {limit:g} s; a huge C: longer than that; 0 violations",
            "; ".join(f"C {c}: {row['mean']:.1f} s, at most {row['silence']:.1f} s" for c, row in rows.items())
            + f"; {sum(row['bad'] for row in rows.values())} violations",
            usual["silence"] <= limit < huge["silence"] and not any(row["bad"] for row in rows.values()),
        ),
        Claim(
            "ours.flapping",
            "C damps flapping: where paths are of equal length and vary, the larger C, the fewer changes of source.",
            "fewer changes with each larger C",
            "; ".join(f"C {c}: {row['switches']:.1f} changes" for c, row in rows.items())
            + f", in {BREAKS + 10.0:g} s, by three regions",
            all(more > fewer for more, fewer in itertools.pairwise(changes)),
        ),
    ]
    drawn = figures.draw(out, "ours-constant", lambda axes: paint_constant(list(rows.values()), limit, axes))
    return Findings(claims, {"constant": drawn}, {"constant": [str(out / "results" / "constant")]})


def paint_constant(rows: list[Row], limit: float, axes: Axes) -> None:
    """What C costs and what it saves."""
    places = range(len(rows))
    axes.bar([at - 0.18 for at in places], [row["mean"] for row in rows], 0.34, color=figures.BLUE, label="silence (s)")
    changes = [row["switches"] for row in rows]
    axes.bar([at + 0.18 for at in places], changes, 0.34, color=figures.ORANGE, label="changes of source")
    for at, row in enumerate(rows):
        axes.text(at - 0.18, row["mean"] + 0.15, f"{row['mean']:.1f}", ha="center", fontsize=9)
        axes.text(at + 0.18, row["switches"] + 0.15, f"{row['switches']:.1f}", ha="center", fontsize=9)
    figures.expect(axes, (0.6, 1.0), limit, "silence, at most")
    axes.set_xticks(places, [f"C = {row['c']}" if row["c"].isdigit() else f"C {row['c']}" for row in rows])
    axes.set_ylabel("s, and changes in 16 s")
    axes.set_title("A link fails among paths of equal length: silence and changes of source by C")


def report_buffer(sql: Sql, scale: str, out: Path) -> Findings:
    """Recv is a cliff."""
    rows = sql(
        "select recv_seconds buffer, max(clients) clients, avg(goodput / offered) share, avg(kept) kept, "
        "sum(unfinished) unfinished, sum(due) due from results group by recv_seconds order by recv_seconds"
    )
    least, default = rows[0], next(row for row in rows if row["buffer"] == 0.5)
    cliff = least["share"] < 0.9 or least["unfinished"] > 0
    claim = Claim(
        "ours.buffer",
        "A Recv below the lag of the clients is a cliff; half a second of load is safe.",
        f"at {least['buffer']:g} s less than 90 % of the load or unfinished batches, at 0.5 s all of it",
        "; ".join(f"{r['buffer']:g} s: {r['share']:.0%}, {r['unfinished']} of {r['due']} unfinished" for r in rows)
        + f" ({3 * least['clients']} clients)",
        cliff and default["share"] > 0.98 and not default["unfinished"],
        ""
        if cliff
        else f"Not among {3 * least['clients']} clients in steady flow: all of the load arrives with the least of "
        "them, so nobody lags by more than that.",
    )
    drawn = figures.draw(out, "ours-buffer", lambda axes: paint_buffer(rows, axes))
    return Findings([claim], {"buffer": drawn}, {"buffer": [str(out / "results" / "buffer")]})


def paint_buffer(rows: list[Row], axes: Axes) -> None:
    """What arrives by the size of Recv."""
    sizes = [1000 * row["buffer"] for row in rows]
    axes.plot(sizes, [100 * row["share"] for row in rows], "o-", color=figures.BLUE, label="of the load")
    done = [100 * (1 - row["unfinished"] / row["due"]) for row in rows]
    axes.plot(sizes, done, "s--", color=figures.ORANGE, label="of the batches, everywhere in time")
    figures.mark(axes, 500, "the product's")
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:.0f}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(0, 108)
    axes.set_xlabel("size of Recv (ms of load)")
    axes.set_ylabel("what arrives (%)")
    axes.set_title(f"What {3 * rows[0]['clients']} clients receive by the size of their buffers")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def buffer_points(scale: str) -> list[Point]:
    """By size."""
    clients, seeds = BUFFER_CLIENTS[scale]
    base = {"seconds": 0.5, "fanout": 4, "shuffle": 0.03, "load": 1.0, "reading": region_load.PRODUCT}
    return [
        {**base, "clients": clients, "recv_seconds": size, "seed": seed} for size in BUFFERS for seed in range(seeds)
    ]


STUDIES = (
    Study("buffer", buffer_points, measure_buffer, report_buffer, ("beyond", "region_load")),
    Study(
        "outage",
        lambda scale: [p for gc in POLICIES for t in OUTAGES[scale] for p in _seeds(scale, gc=gc, outage=t)],
        measure_outage,
        report_outage,
        ("beyond", "region_load"),
    ),
    Study(
        "churn",
        lambda scale: [p for churn in CHURN for p in _seeds(scale, churn=churn)],
        measure_churn,
        report_churn,
        ("beyond", "region_load"),
    ),
    Study(
        "chain",
        lambda scale: [p for place in PLACES for p in _seeds(scale, place=place)],
        measure_failover,
        report_failover,
        ("beyond", "region_load"),
    ),
    Study(
        "constant",
        lambda scale: [p for c in CONSTANTS for p in _seeds(scale, c=c)],
        measure_constant,
        report_constant,
        ("beyond", "region_load"),
    ),
)
EXPERIMENTS = (
    Experiment("chain", "sprinkler", "Ours: fail-over of a chain", ("ours.chain",), "chain"),
    Experiment("churn", "sprinkler", "Ours: clients come and go", ("ours.churn",), "churn"),
    Experiment(
        "outage",
        "sprinkler",
        "Ours: catching up with and without collection",
        ("ours.catch-up", "ours.bandwidth"),
        "outage",
    ),
    Experiment(
        "constant",
        "sprinkler",
        "Ours: the constant C of the switch rule",
        ("ours.constant", "ours.flapping"),
        "constant",
    ),
    Experiment("buffer", "sprinkler", "Ours: the size of Recv", ("ours.buffer",), "buffer"),
)
