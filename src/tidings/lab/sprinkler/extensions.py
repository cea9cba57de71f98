"""What Sprinkler's paper left out, judged and drawn: fail-over, churn, catching up, C, the size of buffers, processors.

`extension_worlds` simulates the worlds, `region_load` the buffers (what a client's Recv must hold, A1.33, in seconds of
load), `service_load` the processors. Results are cached under a hash of those modules' code, so verdicts and figures
have a module of their own: changing them repeats no simulation.

Limits follow from settings (timeouts, periods) or compare one setting with another; none was chosen by what was
measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import hypot, isfinite, sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

from tidings.lab import figures
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.sprinkler import region_load
from tidings.lab.sprinkler.extension_worlds import (
    CHANGES_IN,
    CONSTANTS,
    measure_churn,
    measure_constant,
    measure_failover,
    measure_outage,
)
from tidings.lab.sprinkler.service_load import SERVICES, measure_service
from tidings.lab.study import Point, Row, Sql, Study
from tidings.protocols.fabrics.pull import PullSettings
from tidings.protocols.fabrics.pull_fabric import PullOptions
from tidings.protocols.replication.configuration import ConfigurationSettings
from tidings.protocols.services.publishing import PublishSettings
from tidings.sim.scenario import ProtocolTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEEDS = {"quick": 2, "full": 5}
CUT_SEEDS = {"quick": 5, "full": 20}  # ours: of the link, over the advertisement period; some runs are not hit
PLACES = ("head", "middle", "tail")
CHURN = (0.0, 0.05, 0.2)  # share of the clients that is replaced every second
OUTAGES = {"quick": (2.0, 8.0), "full": (2.0, 4.0, 8.0, 16.0)}  # seconds
POLICIES = ("none", "by-key")
BUFFERS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
BUFFER_CLIENTS = {"quick": (60, 1), "full": (1000, 2)}  # per region, and seeds; ours: the cliff shows in large regions
SERVICE_CLIENTS = {"quick": (100, 2, 0.4), "full": (1000, 3, 0.5)}  # per region, seeds, seconds measured
SAME = 0.01  # shares of the load that differ by less than a hundredth are the same; as for SP3
CLIFF, SAFE = 0.9, 0.98  # of the load: less than the first is a cliff, more than the second is all of it; ours


def report_failover(sql: Sql, scale: str, out: Path) -> Findings:
    """Each place of the chain."""
    rows = sql("select place, region, max(silence) silence, sum(violations) bad from results group by place, region")
    service, publish, period = ConfigurationSettings(), PublishSettings(), ProtocolTable().advertise_period
    detected = service.silence + service.sweep
    asked = PullSettings().proxy_timeout  # a client asks the tail that it knows, and waits so long for it
    limits = {
        **{(place, "r0"): detected + publish.retry + 0.2 + (asked if place == "tail" else 0.0) for place in PLACES},
        **{(place, "r1"): detected + max(publish.retry, 1.5 * period) + 0.2 for place in PLACES},
    }
    over = [row for row in rows if row["silence"] > limits[row["place"], row["region"]]]
    told = "; ".join(f"{row['place']}: {row['region']} {row['silence']:.2f} s" for row in sorted(rows, key=_place))
    claim = Claim(
        "ours.chain",
        "After any replica is killed, clients of its region continue once the chain is reconfigured, and clients of "
        "another region once they have found the new tail.",
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
    twice, fallback = 2 * rows[0]["latency"], PullOptions().fallback
    claim = Claim(
        "ours.churn",
        "While others come and go, clients that stay receive on average within twice the time, and 99 of 100 times "
        "sooner than they would give up a peer that does not answer.",
        "mean latency less than twice that without churn; 99th percentile of every run less than the fallback, "
        f"{_ms(fallback)}, when the proxy is asked for what a peer has not sent; 0 violations",
        "; ".join(f"{row['churn']:.0%}: {_ms(row['latency'])}, p99 {_ms(row['p99'])}" for row in rows)
        + f"; {sum(row['bad'] for row in rows)} violations",
        all(row["latency"] < twice and row["p99"] < fallback and not row["bad"] for row in rows),
    )
    drawn = figures.draw(out, "ours-churn", lambda axes: paint_churn(rows, axes))
    return Findings([claim], {"churn": drawn}, {"churn": [str(out / "results" / "churn")]})


def paint_churn(rows: list[Row], axes: Axes) -> None:
    """Latency of those who stay by how many are replaced."""
    churn = [100 * row["churn"] for row in rows]
    axes.plot(churn, [1000 * row["latency"] for row in rows], "o-", color=figures.BLUE, label="mean")
    axes.plot(churn, [1000 * row["p99"] for row in rows], "s--", color=figures.ORANGE, label="99th percentile")
    figures.expect(axes, (churn[0], churn[-1]), 2000 * rows[0]["latency"], "mean, less than")
    figures.expect(axes, (churn[0], churn[-1]), 1000 * PullOptions().fallback)
    axes.text(churn[0], 970 * PullOptions().fallback, "99th percentile, less than the fallback", va="top", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("clients replaced per second (%)")
    axes.set_ylabel("ms until a client that stays has it")
    axes.set_title("Latency of those who stay while others come and go")


def report_outage(sql: Sql, scale: str, out: Path) -> Findings:
    """With and without collection."""
    rows = sql(
        "select gc, outage, max(catch_up) catch_up, avg(rows) rows, avg(again) again, avg(missed) missed, "
        "sum(violations) bad from results group by gc, outage order by gc, outage"
    )
    found = {(row["gc"], row["outage"]): row for row in rows}
    pairs = [(found["none", each], found["by-key", each]) for each in sorted({row["outage"] for row in rows})]
    without, collected = pairs[-1]
    longest, saved = without["outage"], 1 - collected["rows"] / without["rows"]
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
            "Collection saves rows on the link: what was replaced during an outage is not sent afterwards.",
            f"after {longest:g} s at least a quarter fewer rows by key than without collection, whatever crosses the "
            "link a second time included",
            "; ".join(_crossed(*pair) for pair in pairs) + f" ({saved:.0%} saved after {longest:g} s)",
            saved >= 0.25,
        ),
    ]
    drawn = figures.draw(out, "ours-catch-up", lambda axes: paint_outage(rows, axes))
    return Findings(claims, {"outage": drawn}, {"outage": [str(out / "results" / "outage")]})


def _crossed(without: Row, collected: Row) -> str:
    """Means over the seeds."""
    return (
        f"after {without['outage']:g} s {collected['rows']:.0f} rows over the link instead of {without['rows']:.0f} "
        f"for {without['missed']:.0f} numbers missed, of these a second time {collected['again']:.0f} and "
        f"{without['again']:.0f}"
    )


def paint_outage(rows: list[Row], axes: Axes) -> None:
    """Time to catch up by length of the outage."""
    for gc, color in (("none", figures.ORANGE), ("by-key", figures.BLUE)):
        line = [row for row in rows if row["gc"] == gc]
        label = "nothing collected" if gc == "none" else "collected by key"
        axes.plot([r["outage"] for r in line], [r["catch_up"] for r in line], "o-", color=color, label=label)
    longest = max(row["outage"] for row in rows)
    limit = next(row["catch_up"] for row in rows if row["gc"] == "none" and row["outage"] == longest)
    figures.expect(axes, (0.9 * longest, 1.02 * longest), limit, "by key, less than")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("length of the outage (s)")
    axes.set_ylabel("s until caught up")
    axes.set_title("Catching up over a narrow link, with and without collection")


def report_constant(sql: Sql, scale: str, out: Path) -> Findings:
    """C decides how soon a silent source is left, and how often one that is not."""
    runs = sql("select c, silence, hit, switches, violations from results")
    rows = {c: _with([run for run in runs if run["c"] == c]) for c in CONSTANTS}
    usual, huge = rows["in proportion"]["silences"], rows["huge"]["silences"]
    limit = 2 * 1.5 * ProtocolTable().advertise_period + 0.2  # a possible source may itself follow r1, and moves first
    changes = [row["switches"] for row in rows.values()]
    bad = sum(run["violations"] for run in runs)
    unhit = [f"C {c}" for c in ("in proportion", "huge") if not rows[c]["silences"]]
    claims = [
        Claim(
            "ours.constant",
            "C decides how soon a region leaves a silent source: in proportion to the rate it takes an advertisement "
            "or two, with a huge C the source is never left for that reason.",
            f"in proportion: silent for at most {limit:g} s in every run; a huge C: longer than that in every run; "
            "0 violations. Runs in which the stream did not come over the link when it was cut do not count",
            "; ".join(f"C {c}: {_silent(row)}" for c, row in rows.items()) + f"; {bad} violations",
            not unhit and max(usual) <= limit < min(huge) and not bad,
            f"No run was hit with {' and with '.join(unhit)}: nothing to judge." if unhit else "",
        ),
        Claim(
            "ours.flapping",
            "C damps flapping: where paths are of equal length and vary, the larger C, the fewer changes of source.",
            "fewer changes with each larger C, mean of all runs",
            "; ".join(f"C {c}: {row['switches']:.1f} changes" for c, row in rows.items())
            + f", in {CHANGES_IN:g} s with one link cut, by three regions",
            all(more > fewer for more, fewer in itertools.pairwise(changes)),
        ),
    ]
    drawn = figures.draw(out, "ours-constant", lambda axes: paint_constant(rows, limit, axes))
    return Findings(claims, {"constant": drawn}, {"constant": [str(out / "results" / "constant")]})


def _with(runs: list[Row]) -> Row:
    """All runs with one C: the silences of those that were hit."""
    silences = sorted([run["silence"] for run in runs if run["hit"]])
    return {"silences": silences, "runs": len(runs), "switches": fmean([run["switches"] for run in runs])}


def _silent(row: Row) -> str:
    silences = row["silences"]
    counted = f"{len(silences)} of {row['runs']} runs hit"
    return f"median {median(silences):.2f} s, at most {max(silences):.2f} s ({counted})" if silences else counted


def paint_constant(rows: Mapping[str, Row], limit: float, axes: Axes) -> None:
    """What C costs and what it saves."""
    other = figures.beside(axes)
    places = list(CONSTANTS)
    hit = {places.index(c): row["silences"] for c, row in rows.items() if row["silences"]}
    middle = [median(silences) for silences in hit.values()]
    reach = [[m - s[0] for m, s in zip(middle, hit.values(), strict=True)]]
    reach += [[s[-1] - m for m, s in zip(middle, hit.values(), strict=True)]]
    axes.bar(list(hit), middle, 0.6, color=figures.BLUE, label="median")
    axes.errorbar(list(hit), middle, reach, fmt="none", ecolor="black", capsize=7, label="shortest to longest")
    for at, silences in hit.items():
        told = f"{median(silences):.2f}\n≤ {max(silences):.2f}"
        axes.text(at, max(silences) + 0.15, told, ha="center", va="bottom", fontsize=9)
    for c, label in (("in proportion", "longest, at most (huge C: shortest, more than)"), ("huge", None)):
        figures.expect(axes, (places.index(c) - 0.45, places.index(c) + 0.45), limit, label)
    axes.set_ylim(0, 10.5)
    axes.set_ylabel("s without events")
    axes.set_title("Silence when a link fails, by C")
    changes = [row["switches"] for row in rows.values()]
    other.bar(range(len(changes)), changes, 0.6, color=figures.ORANGE)
    for at, each in enumerate(changes):
        other.text(at, each, f"{each:.1f}", ha="center", va="bottom", fontsize=9)
    other.set_ylabel(f"changes in {CHANGES_IN:g} s, mean")
    other.set_title("Changes of source, by C")
    for panel in (axes, other):
        panel.set_xticks(range(len(places)), [c.replace(" ", "\n") for c in places])


def report_buffer(sql: Sql, scale: str, out: Path) -> Findings:
    """Recv is a cliff."""
    rows = sql(
        "select recv_seconds buffer, max(clients) clients, avg(goodput / offered) share, avg(kept) kept, "
        "sum(unfinished) unfinished, sum(due) due from results group by recv_seconds order by recv_seconds"
    )
    least, default = rows[0], next(row for row in rows if row["buffer"] == 0.5)
    cliff = least["share"] < CLIFF or least["unfinished"] > 0
    claim = Claim(
        "ours.buffer",
        "A Recv below the lag of the clients is a cliff; half a second of load is safe.",
        f"at {least['buffer']:g} s less than {CLIFF:.0%} of the load or unfinished batches, at 0.5 s more than "
        f"{SAFE:.0%} and none unfinished",
        "; ".join(f"{r['buffer']:g} s: {r['share']:.0%}, {r['unfinished']} of {r['due']} unfinished" for r in rows)
        + f" ({3 * least['clients']} clients)",
        cliff and default["share"] > SAFE and not default["unfinished"],
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
    for size, level, text in ((sizes[0], 100 * CLIFF, "less than this"), (500, 100 * SAFE, "more than this")):
        figures.expect(axes, (0.85 * size, 1.25 * size), level, None if size == 500 else "expected")
        axes.text(0.85 * size, level - 2, text, va="top", fontsize=9)
    figures.mark(axes, 500, "the product's")
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:.0f}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(0, 108)
    axes.set_xlabel("size of Recv (ms of load)")
    axes.set_ylabel("what arrives (%)")
    axes.set_title(f"What {3 * rows[0]['clients']} clients receive by the size of their buffers")


def report_service(sql: Sql, scale: str, out: Path) -> Findings:
    """The processors that exist, beside those of the defaults."""
    runs = sql(
        "select service, seed, max(clients) clients, max(goodput / offered) share, avg(latency_mean) latency, "
        "sum(unfinished) unfinished, sum(due) due from results group by service, seed order by service, seed"
    )
    default, real = (_over_seeds([run for run in runs if run["service"] == name]) for name in SERVICES)
    noise = max(SAME, 2 * hypot(default["share_error"], real["share_error"]))
    late = real["latency"] - default["latency"]
    claim = Claim(
        "ours.service",
        "With the service times of a real replica at every node the fabric carries SP3's load as with the defaults.",
        f"at F=4 and 30 ms no less of the load, within {SAME:.0%} or two standard errors, and no more batches "
        "unfinished",
        "; ".join(
            f"{name} {row['share']:.1%}, {_ms(row['latency'])} ± {_ms(row['latency_sd'])}, {row['unfinished']} of "
            f"{row['due']} unfinished"
            for name, row in (("default", default), ("measured", real))
        )
        + f": {late * 1000:+.0f} ms ({3 * runs[0]['clients']} clients, {default['runs']} seeds)",
        real["share"] >= default["share"] - noise and real["unfinished"] <= default["unfinished"],
    )
    drawn = figures.draw(out, "ours-service", lambda axes: paint_service(default, real, noise, axes))
    return Findings([claim], {"processors": drawn}, {"processors": [str(out / "results" / "processors")]})


def _over_seeds(runs: list[Row]) -> Row:
    """Means, and how far seeds are apart; a run without any batch that was due counts with an infinite latency."""
    shares, late = [run["share"] for run in runs], [run["latency"] for run in runs if run["latency"] is not None]
    return {
        "runs": len(runs),
        "share": fmean(shares),
        "share_error": stdev(shares) / sqrt(len(shares)) if len(shares) > 1 else 0.0,
        "latency": fmean(late) if len(late) == len(runs) else float("inf"),
        "latency_sd": stdev(late) if len(late) > 1 else 0.0,
        **{name: sum(run[name] for run in runs) for name in ("unfinished", "due")},
    }


def paint_service(default: Row, real: Row, noise: float, axes: Axes) -> None:
    """What arrives, and when."""
    other = figures.beside(axes)
    pair = (default, real)
    colors = [figures.ORANGE, figures.BLUE]
    axes.bar(range(2), [100 * row["share"] for row in pair], 0.6, color=colors)
    figures.expect(axes, (0.6, 1.4), 100 * (default["share"] - noise), "as with the defaults: at least")
    axes.set_ylim(0, 110)
    axes.set_ylabel("of the load (%)")
    axes.set_title("What arrives, by service times")
    late = [1000 * row["latency"] if isfinite(row["latency"]) else 0.0 for row in pair]
    other.bar(range(2), late, 0.6, yerr=[1000 * row["latency_sd"] for row in pair], capsize=7, color=colors)
    other.set_ylabel("ms until all clients have it")
    other.set_title("Latency to all clients")
    for panel in (axes, other):
        panel.set_xticks(range(2), ["a scenario's\ndefaults", "measured on\na real replica"])


def service_points(scale: str) -> list[Point]:
    """By service times."""
    clients, seeds, seconds = SERVICE_CLIENTS[scale]
    return [p for name in SERVICES for p in _seeds(seeds, service=name, clients=clients, seconds=seconds)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def buffer_points(scale: str) -> list[Point]:
    """By size."""
    clients, seeds = BUFFER_CLIENTS[scale]
    base = {"seconds": 0.5, "fanout": 4, "shuffle": 0.03, "load": 1.0, "reading": region_load.PRODUCT}
    return [
        {**base, "clients": clients, "recv_seconds": size, "seed": seed} for size in BUFFERS for seed in range(seeds)
    ]


def _seeds(count: int, **setting: Any) -> list[Point]:
    return [{**setting, "seed": seed} for seed in range(count)]


STUDIES = (
    Study("buffer", buffer_points, region_load.measure, report_buffer),
    Study("processors", service_points, measure_service, report_service),
    Study(
        "outage",
        lambda scale: [p for gc in POLICIES for t in OUTAGES[scale] for p in _seeds(SEEDS[scale], gc=gc, outage=t)],
        measure_outage,
        report_outage,
    ),
    Study(
        "churn",
        lambda scale: [p for churn in CHURN for p in _seeds(SEEDS[scale], churn=churn)],
        measure_churn,
        report_churn,
    ),
    Study(
        "chain",
        lambda scale: [p for place in PLACES for p in _seeds(SEEDS[scale], place=place)],
        measure_failover,
        report_failover,
    ),
    Study(
        "constant",
        lambda scale: [p for c in CONSTANTS for p in _seeds(CUT_SEEDS[scale], c=c)],
        measure_constant,
        report_constant,
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
    Experiment("processors", "sprinkler", "Ours: the service times of real replicas", ("ours.service",), "processors"),
)
