"""SP4, throughput and latency by load, judged and drawn (Sprinkler 5.2, figure 6).

The simulations are in `region_load`; why verdicts are apart from them is said in `fanout_verdicts`.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.lab import figures
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.sprinkler.fanout_verdicts import DASHES, FANOUT_COLORS, NOTICEABLE, milliseconds, saturated
from tidings.lab.sprinkler.region_load import CLIENTS, LOAD_SEEDS, LOADS, NAMES, load_points, measure
from tidings.lab.study import Row, Sql, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BY_LOAD = """
    select fanout, load, max(offered) offered, avg(throughput) throughput, avg(goodput) goodput,
           avg(kept) kept, avg(latency_mean) latency, max(latency_max) latency_max, sum(unfinished) unfinished,
           sum(due) due
    from results group by fanout, load order by fanout, load"""
BY_ORIGIN = """
    select fanout, load, origin, avg(latency_mean) latency, avg(kept) kept from results
    group by fanout, load, origin order by fanout, load, origin"""


def report_load(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge SP4 and draw it."""
    loads, origins = sql(BY_LOAD), sql(BY_ORIGIN)
    claims = [_climbs(loads), _below(loads, scale), _alike(origins), _overload(loads)]
    throughput = figures.draw(out, "sp4-throughput", lambda axes: paint_load(loads, axes))
    latency = figures.draw(out, "sp4-latency", lambda axes: paint_latency(origins, axes))
    return Findings(claims, {"SP4": [*throughput, *latency]}, {"SP4": [str(out / "results" / "load")]})


def _climbs(loads: list[Row]) -> Claim:
    mine = [row for row in loads if row["fanout"] == 4]
    full = next((at for at, row in enumerate(mine) if saturated(row)), len(mine))
    rising = all(one["throughput"] < other["throughput"] for one, other in itertools.pairwise(mine[:full]))
    carried = max(row["goodput"] for row in mine)
    reached = full < len(mine)
    return Claim(
        "SP4.saturation",
        "Throughput climbs with the load until it is saturated.",
        "at F=4 more throughput with every higher load that is kept up with, and beyond these (there must be some) no "
        "less than 90 % of the most that was carried",
        ", ".join(f"{row['load']:.2f}: {row['throughput'] / 1e6:.2f} M/s" for row in mine),
        rising and reached and all(row["throughput"] >= 0.9 * carried for row in mine[full:]),
        "" if reached else f"Not reached: {carried / 1e6:.2f} M/s, the highest load, is kept up with.",
    )


def _below(loads: list[Row], scale: str) -> Claim:
    mine = [row for row in loads if row["fanout"] == 4 and not saturated(row)]
    worst = max((row["latency"] for row in mine), default=float("inf"))
    return Claim(
        "SP4.latency",
        "Below saturation events reach all clients generally within 300 ms.",
        "mean latency to all clients below 300 ms at every load that F=4 keeps up with",
        ", ".join(
            f"{row['load']:.2f}: {milliseconds(row['latency'])}, at most {milliseconds(row['latency_max'])}, "
            f"{row['unfinished']} of {row['due']} unfinished"
            for row in mine
        )
        + f" ({3 * CLIENTS[scale]} clients, {LOAD_SEEDS[scale]} seeds)",
        worst < 0.3,
        "" if mine else "No load is kept up with.",
    )


def _alike(origins: list[Row]) -> Claim:
    some: dict[tuple[int, float], list[float]] = {}
    for row in origins:
        if row["load"] <= 1.0 and row["latency"] is not None:
            some.setdefault((row["fanout"], row["load"]), []).append(row["latency"])
    gaps = {setting: max(each) / min(each) for setting, each in some.items()}
    worst = max(gaps, key=lambda setting: gaps[setting])
    return Claim(
        "SP4.regions",
        "The regions are similar, whichever one an event comes from.",
        "the slowest origin takes less than 1.5 times as long as the fastest, at every F and load up to 1",
        f"at most {gaps[worst]:.2f} times (F={worst[0]}, load {worst[1]:.2f})",
        gaps[worst] < 1.5,
    )


def _overload(loads: list[Row]) -> Claim:
    """Some, so not all alike."""
    highest = max(row["load"] for row in loads)
    ends = [row for row in loads if row["load"] == highest]
    kept: dict[float, list[float]] = {}
    for row in loads:
        if row["load"] > 1.0:
            kept.setdefault(row["load"], []).append(min(row["kept"], 1.0))
    over = [load for load, shares in kept.items() if min(shares) < 1 - NOTICEABLE]
    apart = [load for load in over if max(kept[load]) - min(kept[load]) >= NOTICEABLE]
    return Claim(
        "SP4.overload",
        "Some fanouts overload the system at the highest loads.",
        "at some load above the nominal one, an F that delivers less than 98 % of it, and at least 2 % of it less than "
        "another",
        ", ".join(f"F={row['fanout']} {row['kept']:.0%}, {row['unfinished']}/{row['due']} unfinished" for row in ends)
        + f" at {highest:.2f} of the nominal load",
        bool(apart),
        "" if apart else "All fanouts overload it alike." if over else "No fanout does.",
    )


def paint_load(loads: list[Row], axes: Axes) -> None:
    """Figure 6, throughput."""
    for fanout, marker in zip(sorted({row["fanout"] for row in loads}), "os^D", strict=False):
        line = [row for row in loads if row["fanout"] == fanout]
        axes.plot(
            [row["offered"] / 1e6 for row in line],
            [row["throughput"] / 1e6 for row in line],
            color=FANOUT_COLORS[fanout],
            marker=marker,
            markersize=5,
            label=f"F={fanout}",
        )
    most = max(row["offered"] for row in loads) / 1e6
    axes.plot([0, most], [0, most], color=figures.VERMILION, linestyle=(0, (2, 1)), label="all that is offered")
    axes.set_xlabel("offered load (million events/s)")
    axes.set_ylabel("million events/s per client")
    axes.set_title("Throughput by load, shuffle time 30 ms (SP4)")


def paint_latency(origins: list[Row], axes: Axes) -> None:
    """Figure 6, latency by origin."""
    fanouts = sorted({row["fanout"] for row in origins})
    for fanout in fanouts:
        for origin, dash, marker in zip(NAMES, DASHES, "os^", strict=True):
            mine = [row for row in origins if row["fanout"] == fanout and row["origin"] == origin]
            line = [row for row in mine if row["latency"] is not None]  # none: no batch of that origin was due
            places = [(row["load"], row["latency"] * 1000) for row in line]
            look: dict[str, Any] = {"color": FANOUT_COLORS[fanout], "marker": marker, "markersize": 5}
            x, y = [x for x, _ in places], [y for _, y in places]
            axes.plot(x, y, linestyle=dash, **look, label=f"F={fanout}, from {origin}")
            over = [place for place, row in zip(places, line, strict=True) if saturated(row)]
            for place in over:
                axes.plot(*place, linestyle="", markerfacecolor="white", zorder=3, **look)
    figures.expect(axes, (min(LOADS), max(LOADS)), 300.0, "300 ms (paper)")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("offered load (1 = 2.592 million events/s)")
    axes.set_ylabel("ms until all clients have it")
    axes.set_title("Latency to all clients by load and origin (SP4; open: queues grow)")


STUDIES = (Study("load", load_points, measure, report_load),)
EXPERIMENTS = (
    Experiment(
        "SP4",
        "sprinkler",
        "Figure 6: throughput and latency by load",
        ("SP4.saturation", "SP4.latency", "SP4.regions", "SP4.overload"),
        "load",
    ),
)
