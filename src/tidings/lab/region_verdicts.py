"""SP3 and SP4 judged and drawn (Sprinkler, section 5.2, figures 5b and 6); what is measured: `region_load`.

Apart from that module, because results are kept under the hash of what made them: to judge or draw them otherwise is no
reason to simulate for hours again.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tidings.lab import figures
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.region_load import (
    CLIENTS,
    EVENT_BYTES,
    FANOUTS,
    GIGABIT,
    LOAD_SEEDS,
    LOADS,
    NAMES,
    NO_PROBE,
    PRODUCT,
    RATE,
    SEEDS,
    SHUFFLES,
    fanout_points,
    load_points,
    measure,
)
from tidings.lab.study import Row, Sql, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# --- SP3 ------------------------------------------------------------------------------------------------

BY_SETTING = """
    select reading, fanout, shuffle, max(offered) offered, avg(throughput) throughput, avg(goodput) goodput,
           coalesce(stddev(throughput), 0) sd, avg(latency) latency, sum(unfinished) unfinished, count(*) runs,
           coalesce(stddev(latency), 0) latency_sd, avg(in_degree_sd) in_degree_sd, avg(unknown) unknown
    from (select reading, fanout, shuffle, seed, max(offered) offered, max(throughput) throughput,
                 max(goodput) goodput, avg(latency_mean) latency, sum(unfinished) unfinished,
                 max(in_degree_sd) in_degree_sd, max(unknown) unknown
          from results group by reading, fanout, shuffle, seed)
    group by reading, fanout, shuffle order by reading, shuffle, fanout"""
RANKED = f"""
    select fanout, avg(goodput) goodput, avg(latency) latency, avg(goodput / offered) share
    from ({BY_SETTING}) where reading = '{{reading}}' and {{only}}
    group by fanout order by round(share, 2) desc, latency nulls last"""
SAME = 0.01  # goodputs that differ by less than a hundredth of the load are the same; latency decides then
NOTICEABLE = 0.02  # of the load: what counts as hurt


def report_fanout(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge SP3 and draw it."""
    settings = sql(BY_SETTING)
    claims = [
        _best(sql, scale),
        _large(settings, scale),
        _small(settings, scale),
        _shuffle(settings),
        _catch_up(settings),
        _variance(settings),
        _literal(settings),
        _views(settings),
        _derived(),
    ]
    drawn = figures.draw(out, "sp3-fanout", lambda axes: paint_fanout(settings, axes))
    return Findings(claims, {"SP3": drawn}, {"SP3": [str(out / "results" / "fanout")]})


def _best(sql: Sql, scale: str) -> Claim:
    order = sql(RANKED.format(reading=PRODUCT, only="true"))
    longest = max(SHUFFLES[scale])
    slow = sql(RANKED.format(reading=PRODUCT, only=f"shuffle = {longest}"))
    others = {reading: sql(RANKED.format(reading=reading, only="true")) for reading in ("literal", "own-fanout")}
    best = [row["fanout"] for row in order]
    return Claim(
        "SP3.best",
        "Throughput is best at a fanout of 4.",
        "F = 4 first when ranked by the share of the load that arrives (to a hundredth), then by latency",
        f"{_ranking(order)}; at a shuffle time of {_ms(longest)} alone {_ranking(slow)} "
        f"({SEEDS[scale]} seeds, {3 * CLIENTS[scale]} clients, reading {PRODUCT}). "
        + "; ".join(f"{reading}: {_ranking(rows)}" for reading, rows in others.items()),
        best[0] == 4,
        ""
        if best[0] == 4
        else "With a proxy uplink that is no bottleneck nearly all settings carry the load, and what is left is "
        "latency; which F has the least then depends on the shuffle time.",
    )


def _ranking(rows: list[Row]) -> str:
    return ", ".join(f"F={row['fanout']} ({row['share']:.0%}, {_ms(row['latency'])})" for row in rows)


def _pick(settings: list[Row], reading: str = PRODUCT, **wanted: Any) -> Row:
    return next(
        row
        for row in settings
        if row["reading"] == reading and all(row[name] == value for name, value in wanted.items())
    )


def _share(row: Row) -> float:
    return float(row["goodput"] / row["offered"])


def _large(settings: list[Row], scale: str) -> Claim:
    shuffle, most = max(SHUFFLES[scale]), max(FANOUTS[scale])
    few, many = (_pick(settings, fanout=fanout, shuffle=shuffle) for fanout in (4, most))
    holds = _share(many) < _share(few) - NOTICEABLE
    return Claim(
        "SP3.large-fanout",
        "A larger fanout exhausts the clients' uplinks, and throughput falls.",
        f"at F={most} at least {NOTICEABLE:.0%} of the load less than at F=4, shuffle time {_ms(shuffle)}",
        f"F=4 {_share(few):.1%} in {_ms(few['latency'])}, F={most} {_share(many):.1%} in {_ms(many['latency'])}",
        holds,
        ""
        if holds
        else "Each number is asked for once, so neighbours that are only told of it cost an offer, not the "
        "rows: a large F costs messages rather than bandwidth.",
    )


def _small(settings: list[Row], scale: str) -> Claim:
    least = min(FANOUTS[scale])

    def judged(reading: str) -> tuple[bool, str]:
        brief, long = (_pick(settings, reading, fanout=least, shuffle=each(SHUFFLES[scale])) for each in (min, max))
        shown = [
            f"{_ms(row['shuffle'])} {_share(row):.1%} in {_ms(row['latency'])}, {row['unfinished']} batches unfinished"
            for row in (brief, long)
        ]
        late = long["latency"] is None or (brief["latency"] is not None and long["latency"] > 1.5 * brief["latency"])
        hurts = _share(long) < _share(brief) - NOTICEABLE or late
        return hurts, f"{reading}: {'; '.join(shown)}"

    (paper, without), (product, with_it) = judged(NO_PROBE), judged(PRODUCT)
    why = "The probe repairs it (decision 0005): who hears no news asks, and need not wait for the next shuffle."
    return Claim(
        "SP3.small-fanout",
        "A small fanout with a long shuffle time hurts as well.",
        f"F={least}, clients that do not probe, as the paper's: at least {NOTICEABLE:.0%} of the load less, or half as "
        "much latency more, at the longest shuffle time than at the shortest",
        f"{without}. {with_it}",
        paper,
        why if paper and not product else "" if paper else "Not even without the probe.",
    )


def _shuffle(settings: list[Row]) -> Claim:
    mine = [row for row in settings if row["reading"] == PRODUCT]
    shortest, longest = (each(row["shuffle"] for row in mine) for each in (min, max))
    pairs = [
        (_pick(settings, fanout=row["fanout"], shuffle=shortest), row) for row in mine if row["shuffle"] == longest
    ]
    better = [one for one, other in pairs if _share(one) >= _share(other) - SAME and one["latency"] < other["latency"]]
    return Claim(
        "SP3.shuffle",
        "A shorter shuffle time helps, because the diameter is smaller.",
        f"for every F at least the throughput and less latency at {_ms(shortest)} than at {_ms(longest)}",
        "; ".join(f"F={one['fanout']} {_ms(one['latency'])} against {_ms(other['latency'])}" for one, other in pairs),
        len(better) == len(pairs),
    )


def _catch_up(settings: list[Row]) -> Claim:
    good = [row for row in settings if row["reading"] == PRODUCT and not row["unfinished"]]
    above = [row["throughput"] / row["offered"] for row in good]
    return Claim(
        "SP3.catch-up",
        "Measured throughput is slightly above the offered load, since clients catch up after the start.",
        "between 1 and 1.1 times the load wherever no batch is left unfinished, mean over the settings",
        f"{np.mean(above):.3f} ({min(above):.3f} to {max(above):.3f}, {len(above)} settings)"
        if above
        else "no setting",
        bool(above) and 1.0 <= round(float(np.mean(above)), 3) < 1.1,
        "Measured from where the flow is steady, so little is left to catch up.",
    )


def _variance(settings: list[Row]) -> Claim:
    mine = [row for row in settings if row["reading"] == PRODUCT]
    spread = {(row["fanout"], row["shuffle"]): row["sd"] / row["throughput"] for row in mine}
    worst = max(spread, key=lambda setting: spread[setting])
    return Claim(
        "SP3.variance",
        "Runs differ little.",
        "standard deviation of throughput over the seeds below 5 % of it at every setting",
        f"at most {spread[worst]:.1%} (F={worst[0]}, {_ms(worst[1])}), {mine[0]['runs']} seeds",
        spread[worst] < 0.05,
    )


def _literal(settings: list[Row]) -> Claim:
    shares = {}
    for reading in ("literal", "fast-uplink", "own-fanout"):
        row = _pick(settings, reading, fanout=4, shuffle=0.03)
        shares[reading] = f"{reading} {_share(row):.0%} in {_ms(row['latency'])}"
    collapsed = _share(_pick(settings, "literal", fanout=4, shuffle=0.03))
    fine = min(_share(_pick(settings, reading, fanout=4, shuffle=0.03)) for reading in ("fast-uplink", "own-fanout"))
    return Claim(
        "ours.readings",
        "Ours: taken literally (a proxy like a client) the proxy's uplink is the bottleneck; a faster uplink or a "
        "fanout of 1 for the proxy mends it.",
        "at F=4 and 30 ms less than 90 % of the load literally, more than 98 % in the other two readings",
        "; ".join(shares.values()),
        collapsed < 0.9 and fine > 0.98,
        ""
        if collapsed < 0.9 and fine > 0.98
        else "Whoever the proxy draws anew lags by the latency, and fetches that from it: at 30 ms between draws "
        "latency / 30 ms copies more. An uplink that is full makes the latency longer.",
    )


def _views(settings: list[Row]) -> Claim:
    ours, paper, probed = (
        _pick(settings, name, fanout=4, shuffle=0.03) for name in ("aged-views", "paper-views", "paper-views-probe")
    )
    spread = paper["in_degree_sd"] / ours["in_degree_sd"]
    late, mended = (_late(row) / _late(ours) for row in (paper, probed))
    holds = spread > 2 and late > 1.5 > mended
    return Claim(
        "ours.views",
        "Ours: the rule by which views are merged sets the tail. Under the paper's some clients are in few views or "
        "none and hear late; a probe by those who hear nothing mends it.",
        "at F=4 and 30 ms, after long gossip: in-degrees more than twice as uneven by the paper's rule, and latency to "
        "all clients more than half as much again; with the probe less than that",
        "; ".join(
            f"{row['reading']}: in-degree sd {row['in_degree_sd']:.1f}, {row['unknown']:.0f} in nobody's view, "
            f"{_share(row):.0%} in {_ms(row['latency'])}, {row['unfinished']} batches unfinished"
            for row in (ours, paper, probed)
        ),
        holds,
        ""
        if holds
        else f"By the paper's rule in-degrees are {spread:.1f} times as uneven, and latency is {late:.1f} times ours, "
        f"with the probe {mended:.1f} times. The smaller a region, the more of it a view of 20 covers, and the less "
        "the rule matters.",
    )


def _late(row: Row) -> float:
    return math.inf if row["latency"] is None else float(row["latency"])


def _derived() -> Claim:
    demand = len(NAMES) * RATE * EVENT_BYTES * 8
    most = int(GIGABIT // demand)
    return Claim(
        "SP3d",
        "4 is the largest fanout that a client's uplink can serve if all F neighbours pull everything from it.",
        "1 Gb/s over the bandwidth of the whole load, rounded down, is 4",
        f"{GIGABIT / demand:.1f}, so {most}",
        most == 4,
    )


def _ms(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds * 1000:.0f} ms"


READING_COLORS = {
    "literal": figures.ORANGE,
    "fast-uplink": figures.BLUE,
    "own-fanout": figures.GREEN,
    "no-probe": figures.PURPLE,
}  # of those with several fanouts
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))


def paint_fanout(settings: list[Row], axes: Axes) -> None:
    """Figure 5b: throughput by fanout, a line per reading and shuffle time, with the spread over the seeds."""
    shuffles = sorted({row["shuffle"] for row in settings})
    for at, (reading, color) in enumerate(READING_COLORS.items()):
        for shuffle, dash in zip(shuffles, DASHES, strict=False):
            line = [row for row in settings if row["reading"] == reading and row["shuffle"] == shuffle]
            axes.errorbar(
                [row["fanout"] + 0.06 * (at - 1.5) for row in line],  # side by side: several carry all of it
                [row["throughput"] / 1e6 for row in line],
                [row["sd"] / 1e6 for row in line],
                color=color,
                linestyle=dash,
                marker="o",
                markersize=4,
                capsize=3,
                label=f"{reading}, {_ms(shuffle)}",
            )
    offered = settings[0]["offered"] / 1e6
    fanouts = sorted({row["fanout"] for row in settings})
    figures.expect(axes, (fanouts[0], fanouts[-1]), offered, "offered load")
    axes.axvline(4, color=figures.GREY, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.text(4.06, 0.05 * offered, "best in the paper", fontsize=9, color=figures.GREY)
    axes.set_ylim(0, 1.25 * offered)
    axes.set_xticks(fanouts)
    axes.set_xlabel("fanout F")
    axes.set_ylabel("million events/s per client")
    axes.set_title("What a client receives, by fanout, shuffle time and reading (SP3)")


# --- SP4 ------------------------------------------------------------------------------------------------

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


def saturated(row: Row) -> bool:
    """Whether a setting no longer keeps up with its load."""
    return bool(row["kept"] < 1 - NOTICEABLE)


def _climbs(loads: list[Row]) -> Claim:
    mine = [row for row in loads if row["fanout"] == 4]
    rising = all(one["throughput"] < other["throughput"] for one, other in itertools.pairwise(mine))
    carried = max(row["goodput"] for row in mine)
    return Claim(
        "SP4.saturation",
        "Throughput climbs with the load until it is saturated.",
        "at F=4 every higher load gives more throughput, or no less than 90 % of the most that was carried",
        ", ".join(f"{row['load']:.2f}: {row['throughput'] / 1e6:.2f} M/s" for row in mine),
        rising or all(row["throughput"] >= 0.9 * carried for row in mine if saturated(row)),
    )


def _below(loads: list[Row], scale: str) -> Claim:
    mine = [row for row in loads if row["fanout"] == 4 and not saturated(row)]
    worst = max((row["latency"] for row in mine), default=float("inf"))
    return Claim(
        "SP4.latency",
        "Below saturation events reach all clients generally within 300 ms.",
        "mean latency to all clients below 300 ms at every load that F=4 keeps up with",
        ", ".join(f"{row['load']:.2f}: {_ms(row['latency'])}, {row['unfinished']}/{row['due']} over it" for row in mine)
        + f" ({3 * CLIENTS[scale]} clients, {LOAD_SEEDS[scale]} seeds)",
        worst < 0.3,
        "" if mine else "No load is kept up with.",
    )


def _alike(origins: list[Row]) -> Claim:
    some: dict[tuple[int, float], list[float]] = {}
    for row in origins:
        if row["load"] <= 1.0:
            some.setdefault((row["fanout"], row["load"]), []).append(row["latency"])
    gaps = {setting: max(each) / min(each) for setting, each in some.items()}
    worst = max(gaps, key=lambda setting: gaps[setting])
    return Claim(
        "SP4.regions",
        "The regions are similar, whichever one an event comes from.",
        "the slowest origin takes less than 1.5 times as long as the fastest, at every F and load up to 1",
        f"at most {gaps[worst]:.2f} times (F={worst[0]}, load {worst[1]:.2f})",
        gaps[worst] < 1.5,
        "Paths between the regions differ by 25 ms one way.",
    )


def _overload(loads: list[Row]) -> Claim:
    over = sorted({row["fanout"] for row in loads if saturated(row)})
    highest = max(row["load"] for row in loads)
    ends = [row for row in loads if row["load"] == highest]
    return Claim(
        "SP4.overload",
        "Some fanouts overload the system at the highest loads.",
        "at least one F that delivers less than 98 % of what arrives at some load",
        ", ".join(f"F={row['fanout']} {row['kept']:.0%}, {row['unfinished']}/{row['due']} unfinished" for row in ends)
        + f" at {highest:.2f} of the nominal load",
        bool(over),
        "" if over else "No fanout did: offers are small, and each number travels to a client once.",
    )


LOAD_COLORS = (figures.SKY, figures.BLUE, figures.ORANGE, figures.PURPLE)


def paint_load(loads: list[Row], axes: Axes) -> None:
    """Figure 6, throughput."""
    for fanout, color in zip(sorted({row["fanout"] for row in loads}), LOAD_COLORS, strict=False):
        line = [row for row in loads if row["fanout"] == fanout]
        axes.plot(
            [row["offered"] / 1e6 for row in line],
            [row["throughput"] / 1e6 for row in line],
            color=color,
            marker="o",
            markersize=4,
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
    for fanout, color in zip(fanouts, LOAD_COLORS, strict=False):
        for origin, dash, marker in zip(NAMES, DASHES, "os^", strict=True):
            line = [row for row in origins if row["fanout"] == fanout and row["origin"] == origin]
            places = [(row["load"], row["latency"] * 1000) for row in line]
            look: dict[str, Any] = {"color": color, "marker": marker, "markersize": 5}
            axes.plot(*zip(*places, strict=True), linestyle=dash, **look, label=f"F={fanout}, from {origin}")
            over = [place for place, row in zip(places, line, strict=True) if saturated(row)]
            for place in over:
                axes.plot(*place, linestyle="", markerfacecolor="white", zorder=3, **look)
    figures.expect(axes, (min(LOADS), max(LOADS)), 300.0, "300 ms (paper)")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("offered load (1 = 2.592 million events/s)")
    axes.set_ylabel("ms until all clients have it")
    axes.set_title("Latency to all clients by load and origin (SP4; open: queues grow)")


STUDIES = (
    Study("fanout", fanout_points, measure, report_fanout, ("region_load",)),
    Study("load", load_points, measure, report_load, ("region_load",)),
)
EXPERIMENTS = (
    Experiment(
        "SP3",
        "sprinkler",
        "Figure 5b: throughput by fanout and shuffle time",
        (
            *("SP3.best", "SP3.large-fanout", "SP3.small-fanout", "SP3.shuffle", "SP3.catch-up", "SP3.variance"),
            *("ours.readings", "ours.views", "SP3d"),
        ),
        "fanout",
    ),
    Experiment(
        "SP4",
        "sprinkler",
        "Figure 6: throughput and latency by load",
        ("SP4.saturation", "SP4.latency", "SP4.regions", "SP4.overload"),
        "load",
    ),
)
