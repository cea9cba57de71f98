"""SP3, throughput and latency by fanout and shuffle time, judged and drawn (Sprinkler 5.2, figure 5b).

The simulations are in `region_load`. Results are cached under a hash of that module's code. Verdicts and figures have a
module of their own, so that changing them does not repeat hours of simulation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tidings.lab import figures
from tidings.lab.claims import UNEXPLAINED, Claim, Experiment, Findings
from tidings.lab.sprinkler.region_load import (
    CLIENTS,
    EVENT_BYTES,
    FANOUTS,
    GIGABIT,
    NAMES,
    NO_PROBE,
    PRODUCT,
    RATE,
    SEEDS,
    SHUFFLES,
    fanout_points,
    measure,
)
from tidings.lab.study import Point, Row, Sql, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BY_RUN = """
    select reading, fanout, shuffle, seed, max(offered) offered, max(throughput) throughput, max(goodput) goodput,
           max(kept) kept, avg(latency_mean) latency, sum(unfinished) unfinished, sum(due) due, max(uplink) uplink,
           max(proxy_uplink) proxy_uplink, max(in_degree_sd) in_degree_sd, max(unknown) unknown
    from results group by reading, fanout, shuffle, seed"""
BY_SETTING = f"""
    select reading, fanout, shuffle, max(offered) offered, avg(throughput) throughput, avg(goodput) goodput,
           coalesce(stddev(throughput), 0) sd, avg(kept) kept, avg(latency) latency,
           coalesce(stddev(latency), 0) latency_sd, sum(unfinished) unfinished, sum(due) due, avg(uplink) uplink,
           avg(proxy_uplink) proxy_uplink, avg(in_degree_sd) in_degree_sd, avg(unknown) unknown, count(*) runs
    from ({BY_RUN}) group by reading, fanout, shuffle order by reading, shuffle, fanout"""
BY_FANOUT = f"""
    select fanout, avg(share) share, avg(latency) latency, coalesce(stddev(latency), 0) latency_sd,
           sum(unfinished) unfinished, sum(due) due, count(*) runs
    from (select fanout, seed, avg(goodput / offered) share, avg(latency) latency, sum(unfinished) unfinished,
                 sum(due) due
          from ({BY_RUN}) where reading = '{{reading}}' and shuffle in ({{shuffles}}) group by fanout, seed)
    group by fanout order by fanout"""
SAME = 0.01  # shares of the load that differ by less than a hundredth are the same; latency decides then
NOTICEABLE = 0.02  # of the load: what counts as hurt
ALIKE = 1.25  # uplinks that differ by less than this factor carry the same
SPARE = 0.1  # of an uplink: with less to spare it is exhausted
SLOW_PROXIES = ("literal", "literal-no-probe", "own-fanout", "own-fanout-no-probe")
BETWEEN_SHUFFLES = 0.1  # seconds: the product's line over shuffle time has a point between shortest and longest
SLOW_FANOUTS = (2, 4, 8)  # of that line


def points(scale: str) -> list[Point]:
    """SP3's grid, and a shuffle time more for the product's reading."""
    wanted = [point for point in fanout_points(scale) if point["reading"] == PRODUCT]
    least = min(SHUFFLES[scale])
    between = [point for point in wanted if point["shuffle"] == least and point["fanout"] in SLOW_FANOUTS]
    return fanout_points(scale) + [{**point, "shuffle": BETWEEN_SHUFFLES} for point in between]


def report_fanout(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge SP3 and draw it."""
    settings = sql(BY_SETTING)
    claims = [
        _best(sql, scale),
        _large(settings, scale),
        _uplinks(settings, scale),
        _small(settings, scale),
        _shuffle(settings),
        _catch_up(settings),
        _variance(settings),
        _literal(settings),
        _views(settings),
        _derived(settings, scale),
    ]
    drawn = [
        *figures.draw(out, "sp3-fanout", lambda axes: paint_fanout(settings, axes)),
        *figures.draw(out, "sp3-shuffle", lambda axes: paint_shuffle(settings, axes)),
        *figures.draw(out, "sp3-latency", lambda axes: paint_fanout_latency(settings, axes)),
    ]
    return Findings(claims, {"SP3": drawn}, {"SP3": [str(out / "results" / "fanout")]})


def ranked(rows: list[Row]) -> tuple[list[Row], set[int]]:
    """By share of the load, then by latency where shares are the same; and the fanouts that nobody can tell from the
    first: their mean latency is within two standard errors of the difference."""
    most = max(row["share"] for row in rows)
    front = sorted([row for row in rows if row["share"] > most - SAME], key=_late)
    rest = sorted([row for row in rows if row["share"] <= most - SAME], key=lambda row: -row["share"])
    first = front[0]
    tied = {row["fanout"] for row in front if _late(row) - _late(first) <= 2 * math.hypot(_error(row), _error(first))}
    return front + rest, tied | {first["fanout"]}


def _error(row: Row) -> float:
    return float(row["latency_sd"] / math.sqrt(row["runs"]))


def _best(sql: Sql, scale: str) -> Claim:
    longest = max(SHUFFLES[scale])

    def asked(reading: str, *shuffles: float) -> tuple[list[Row], set[int]]:
        return ranked(sql(BY_FANOUT.format(reading=reading, shuffles=", ".join(map(str, shuffles)))))

    order, tied = asked(PRODUCT, *SHUFFLES[scale])
    slow, slow_tied = asked(PRODUCT, longest)
    others = {reading: asked(reading, *SHUFFLES[scale]) for reading in SLOW_PROXIES}
    carrying = [row for row in order if row["share"] > 1 - NOTICEABLE]
    why = f"{len(carrying)} of {len(order)} fanouts carry the load, and what is left is latency. " if carrying else ""
    if 4 in slow_tied:
        why += f"It depends on the shuffle time: at {milliseconds(longest)} alone 4 is first or tied for it."
    return Claim(
        "SP3.best",
        "Throughput is best at a fanout of 4.",
        f"F = 4 first when ranked by the share of the load that arrives (within {SAME:.0%} is the same), then by "
        "latency (within two standard errors is the same), mean over the shuffle times",
        f"{_ranking(order, tied)}; at a shuffle time of {milliseconds(longest)} alone {_ranking(slow, slow_tied)} "
        f"({SEEDS[scale]} seeds, {3 * CLIENTS[scale]} clients, reading {PRODUCT}). "
        + "; ".join(f"{reading}: {_ranking(*found)}" for reading, found in others.items()),
        4 in tied,
        "" if 4 in tied else why.strip(),
    )


def _ranking(rows: list[Row], tied: set[int]) -> str:
    told = ", ".join(f"F={row['fanout']} ({row['share']:.0%}, {_spread(row)})" for row in rows)
    alike = " and ".join(str(fanout) for fanout in sorted(tied))
    return f"{told}{f' (no telling {alike} apart)' if len(tied) > 1 else ''}"


def _cut_off(row: Row) -> bool:
    """Whether most batches had not arrived at the end: then latency is at least what was measured."""
    return bool(row["latency"] is None or 2 * row["unfinished"] > row["due"])


def _spread(row: Row) -> str:
    """Latency with its standard deviation over the seeds; none, where most batches had not arrived at the end."""
    if _cut_off(row):
        return f"{row['unfinished']} of {row['due']} batches not everywhere at the end"
    late = f", {row['unfinished']} of {row['due']} unfinished" if row["unfinished"] else ""
    return f"{1000 * row['latency']:.0f} ± {1000 * row['latency_sd']:.0f} ms{late}"


def _pick(settings: list[Row], reading: str = PRODUCT, **wanted: Any) -> Row:
    return next(
        row
        for row in settings
        if row["reading"] == reading and all(row[name] == value for name, value in wanted.items())
    )


def _readings(settings: list[Row], **wanted: Any) -> list[str]:
    """The readings that were tried with some settings."""
    return [row["reading"] for row in settings if all(row[name] == value for name, value in wanted.items())]


def _share(row: Row) -> float:
    return float(row["goodput"] / row["offered"])


def _told(row: Row) -> str:
    return f"{_share(row):.1%}, {_spread(row)}"


def _large(settings: list[Row], scale: str) -> Claim:
    shuffle, most = max(SHUFFLES[scale]), max(FANOUTS[scale])
    pairs = {
        reading: [_pick(settings, reading, fanout=fanout, shuffle=shuffle) for fanout in (4, most)]
        for reading in _readings(settings, fanout=most, shuffle=shuffle)
    }
    few, many = pairs[PRODUCT]
    return Claim(
        "SP3.large-fanout",
        "With a larger fanout throughput falls.",
        f"at F={most} at least {NOTICEABLE:.0%} of the load less than at F=4, shuffle time "
        f"{milliseconds(shuffle)}, reading {PRODUCT}",
        "; ".join(f"{reading}: F=4 {_told(a)}; F={most} {_told(b)}" for reading, (a, b) in pairs.items()),
        _share(many) < _share(few) - NOTICEABLE,
        f"F={most} carries the load as well, and clients send {many['uplink'] * 8 / 1e6:.0f} Mb/s for it."
        if _share(many) > 1 - NOTICEABLE
        else "",
    )


def _uplinks(settings: list[Row], scale: str) -> Claim:
    """What the paper says it falls from. What clients drop and ask of their proxies is not among the rows."""
    most = max(FANOUTS[scale])
    sent = {
        fanout: max(row["uplink"] * 8 for row in settings if row["reading"] == PRODUCT and row["fanout"] == fanout)
        for fanout in (4, most)
    }
    holds = sent[most] >= (1 - SPARE) * GIGABIT
    return Claim(
        "SP3.uplinks",
        "It falls because a larger fanout exhausts the clients' uplinks.",
        f"at F={most} a client sends at least {1 - SPARE:.0%} of {GIGABIT / 1e6:.0f} Mb/s, reading {PRODUCT}",
        "; ".join(f"F={fanout} {rate / 1e6:.0f} Mb/s" for fanout, rate in sent.items()) + ", mean over the clients",
        holds,
        f"{sent[most] / sent[4]:.2f} times as much at F={most} as at F=4: each number is asked for once, so neighbours "
        "that are only told of it cost an offer, not the rows."
        if not holds and sent[most] < ALIKE * sent[4]
        else "",
    )


def _small(settings: list[Row], scale: str) -> Claim:
    least = min(FANOUTS[scale])
    brief, long = min(SHUFFLES[scale]), max(SHUFFLES[scale])

    def judged(reading: str) -> tuple[bool, str]:
        one, other = (_pick(settings, reading, fanout=least, shuffle=each) for each in (brief, long))
        later = _late(other) > 1.5 * _late(one) or (_cut_off(other) and not _cut_off(one))
        hurts = _share(other) < _share(one) - NOTICEABLE or later
        return hurts, f"{reading}: {milliseconds(brief)} {_told(one)}; {milliseconds(long)} {_told(other)}"

    found = {reading: judged(reading) for reading in _readings(settings, fanout=least, shuffle=long)}
    ours, paper = found[PRODUCT][0], found[NO_PROBE][0]
    return Claim(
        "SP3.small-fanout",
        "A small fanout with a long shuffle time hurts as well.",
        f"at F={least} at least {NOTICEABLE:.0%} of the load less, half as much latency more, or most batches not "
        f"everywhere at the end, at {milliseconds(long)} but not at {milliseconds(brief)}, in both readings {PRODUCT} "
        f"and {NO_PROBE}",
        ". ".join(text for _, text in found.values()),
        ours and paper,
        "It does hurt clients that do not probe, as the paper's; the probe repairs it (decision 0005): who hears no "
        "news asks, and need not wait for the next shuffle."
        if paper and not ours
        else "",
    )


def _shuffle(settings: list[Row]) -> Claim:
    """By the product's reading and by the paper's clients, from each shuffle time to the next."""
    rows = sorted(settings, key=lambda row: (row["reading"], row["fanout"], row["shuffle"]))
    pairs = [
        (one, other)
        for one, other in itertools.pairwise(row for row in rows if row["reading"] in (PRODUCT, NO_PROBE))
        if (one["reading"], one["fanout"]) == (other["reading"], other["fanout"])
    ]
    less = [(one, other) for one, other in pairs if _share(one) < _share(other) - SAME]
    later = [(one, other) for one, other in pairs if _later(one, other)]
    lines = [_line(settings, *at) for at in dict.fromkeys((one["reading"], one["fanout"]) for one, _ in pairs)]
    told_apart = [line for line in lines if not all(_alike_cut_off(each, line[-1]) for each in line[:-1])]
    helped = [line for line in told_apart if any(_helps(each, line[-1]) for each in line[:-1])]

    def named(one: Row, other: Row) -> str:
        times = " against ".join(milliseconds(row["shuffle"]) for row in (one, other))
        return f"{one['reading']}, F={one['fanout']}, {times}"

    exceptions = {
        "less throughput at": [named(*pair) for pair in less],
        "more latency at": [named(*pair) for pair in later],
        "no gain over the longest at": [
            f"{x[0]['reading']}, F={x[0]['fanout']}" for x in told_apart if x not in helped
        ],
    }
    said = "; ".join(f"{what} {', '.join(found)}" for what, found in exceptions.items() if found)
    holds = bool(told_apart) and not said
    why = f"It does but for {said}." if helped else f"It helps nowhere: {said}." if said else "Nobody can tell."
    return Claim(
        "SP3.shuffle",
        "A shorter shuffle time helps, because the diameter is smaller.",
        "for every F no less throughput and no more latency (by two standard errors) than with the next longer one, "
        "and less latency than with the longest (more throughput, where with both most batches had not arrived at the "
        f"end; where that is the same, nobody can tell); readings {PRODUCT} and {NO_PROBE}",
        "; ".join(f"{named(*pair)}: {_told(pair[0])} against {_told(pair[1])}" for pair in pairs),
        holds,
        "" if holds else why,
    )


def _line(settings: list[Row], reading: str, fanout: int) -> list[Row]:
    """The rows that differ in the shuffle time only, the shortest first."""
    return sorted([row for row in settings if (row["reading"], row["fanout"]) == (reading, fanout)], key=_shuffle_time)


def _shuffle_time(row: Row) -> float:
    return float(row["shuffle"])


def _alike_cut_off(one: Row, other: Row) -> bool:
    """Whether the end of the run has cut off both, and as much arrives: then nothing tells them apart."""
    return _cut_off(one) and _cut_off(other) and abs(_share(one) - _share(other)) <= SAME


def _helps(one: Row, other: Row) -> bool:
    """Whether the first is better than the second: by latency, or, where neither's is known, by what arrives."""
    return _later(other, one) or (_cut_off(one) and _cut_off(other) and _share(one) > _share(other) + SAME)


def _later(one: Row, other: Row) -> bool:
    """Whether latency is more by more than noise; of what had not arrived at the end only that is known."""
    if _cut_off(one) or _cut_off(other):
        return _cut_off(one) and not _cut_off(other)
    return _late(one) - _late(other) > 2 * math.hypot(_error(one), _error(other))


def _catch_up(settings: list[Row]) -> Claim:
    good = [row for row in settings if row["reading"] == PRODUCT and not saturated(row)]
    above = [row["throughput"] / row["offered"] for row in good]
    mean = float(np.mean(above)) if above else math.nan
    error = float(np.std(above, ddof=1)) / math.sqrt(len(above)) if len(above) > 1 else math.inf
    return Claim(
        "SP3.catch-up",
        "Measured throughput is slightly above the offered load, since clients catch up after the start.",
        "above 1 by more than two standard errors, and below 1.1 times the load, mean over the settings that keep up",
        f"{mean:.4f} ± {error:.4f} ({min(above):.4f} to {max(above):.4f}, {len(above)} settings)"
        if above
        else "no setting keeps up",
        1.0 + 2 * error < mean < 1.1,
        "Within two standard errors of the load: measured from where the flow is steady, nothing is left to catch up "
        "with."
        if abs(mean - 1) <= 2 * error
        else "",
    )


def _variance(settings: list[Row]) -> Claim:
    mine = [row for row in settings if row["reading"] == PRODUCT]
    spread = {(row["fanout"], row["shuffle"]): row["sd"] / row["throughput"] for row in mine}
    worst = max(spread, key=lambda setting: spread[setting])
    steady = max([spread[row["fanout"], row["shuffle"]] for row in mine if not saturated(row)], default=1.0)
    return Claim(
        "SP3.variance",
        "Runs differ little.",
        "standard deviation of throughput over the seeds below 5 % of it at every setting",
        f"at most {spread[worst]:.1%} (F={worst[0]}, {milliseconds(worst[1])}), {mine[0]['runs']} seeds",
        spread[worst] < 0.05,
        f"Only where the load is not kept up with; elsewhere at most {steady:.1%}."
        if spread[worst] >= 0.05 > steady
        else "",
    )


def _literal(settings: list[Row]) -> Claim:
    rows = {reading: _pick(settings, reading, fanout=4, shuffle=0.03) for reading in (*SLOW_PROXIES, NO_PROBE, PRODUCT)}
    share = {reading: _share(row) for reading, row in rows.items()}
    collapses = share["literal-no-probe"] < 0.9
    short = [reading for reading in ("own-fanout-no-probe", PRODUCT) if share[reading] <= 0.98]
    holds = collapses and not short
    return Claim(
        "ours.readings",
        "Ours: taken literally (a proxy like a client) the proxy's uplink is the bottleneck; a faster uplink or a "
        "fanout of 1 for the proxy mends it.",
        "at F=4 and 30 ms less than 90 % of the load literally, more than 98 % with a faster uplink (the product's) "
        "and with a fanout of 1, slow proxies judged without the probe, as the paper's",
        "; ".join(f"{reading} {_told(row)}" for reading, row in rows.items()),
        holds,
        "" if holds else " ".join(_why_not_mended(rows, share, collapses, short)),
    )


def _why_not_mended(
    rows: Mapping[str, Row], share: Mapping[str, float], collapses: bool, short: Sequence[str]
) -> Iterator[str]:
    """What shares and uplinks show. Where the bytes of a proxy's uplink go is not among what is measured."""
    if not collapses:
        yield "Taken literally it does not collapse here."
    literal, own, probed = (share[each] for each in ("literal-no-probe", "own-fanout-no-probe", "own-fanout"))
    if "own-fanout-no-probe" in short:
        better = own > literal + NOTICEABLE
        yield f"A fanout of 1 for the proxy {'helps and does not mend it' if better else 'does not help'}."
        wanted = rows["own-fanout-no-probe"]["proxy_uplink"] * 8
        if wanted >= (1 - SPARE) * GIGABIT:
            yield f"Its uplink is still full: {wanted / 1e6:.0f} Mb/s are wanted of {GIGABIT / 1e6:.0f}."
        else:
            yield UNEXPLAINED
    if PRODUCT in short:
        yield f"A faster uplink does not mend it. {UNEXPLAINED}"
    if probed < own - NOTICEABLE:
        yield "Where the proxy is slow the product's probe makes it worse."


def _views(settings: list[Row]) -> Claim:
    ours, paper, probed = (
        _pick(settings, name, fanout=4, shuffle=0.03) for name in ("aged-views", "paper-views", "paper-views-probe")
    )
    spread = paper["in_degree_sd"] / ours["in_degree_sd"]
    late, mended = (_late(row) / _late(ours) for row in (paper, probed))
    asking = ": who is in nobody's view has to ask for everything" if probed["unknown"] else ""
    failed = {
        f"in-degrees are {spread:.1f} times as uneven as ours, not twice": spread <= 2,
        f"latency is {late:.1f} times ours, not more than 1.5": late <= 1.5,
        f"with the probe it is still {mended:.1f} times ours{asking}": mended >= 1.5,
    }
    return Claim(
        "ours.views",
        "Ours: the rule by which views are merged sets the tail. Under the paper's some clients are in few views or "
        "none and hear late; a probe by those who hear nothing mends it.",
        "at F=4 and 30 ms, after long gossip: in-degrees more than twice as uneven by the paper's rule, and latency to "
        "all clients more than half as much again; with the probe less than that",
        "; ".join(
            f"{row['reading']}: in-degree sd {row['in_degree_sd']:.1f}, {row['unknown']:.3g} in nobody's view, "
            f"{_told(row)}"
            for row in (ours, paper, probed)
        ),
        not any(failed.values()),
        "".join(f"By the paper's rule {said}. " for said, so in failed.items() if so).strip(),
    )


def _late(row: Row) -> float:
    return math.inf if row["latency"] is None else float(row["latency"])


def _derived(settings: list[Row], scale: str) -> Claim:
    """Ours: what the paper's numbers say of uplinks, against what clients send."""
    demand = len(NAMES) * RATE * EVENT_BYTES * 8
    mine = [row for row in settings if row["reading"] == PRODUCT and row["shuffle"] == min(SHUFFLES[scale])]
    kept = {row["fanout"]: not saturated(row) for row in mine}
    holds = kept[4] and not any(kept[fanout] for fanout in kept if fanout > 4)
    most = max(row["uplink"] * 8 for row in mine)
    return Claim(
        "SP3d",
        "4 is the largest fanout that a client's uplink can serve, if all F neighbours pull everything from it.",
        f"the load is {demand / 1e6:.0f} Mb/s, of which 1 Gb/s holds {GIGABIT / demand:.1f}: F=4 keeps up with it, "
        "larger ones do not",
        "; ".join(
            f"F={row['fanout']} {'keeps up' if kept[row['fanout']] else 'does not'}, a client sends "
            f"{row['uplink'] * 8 / 1e6:.0f} Mb/s"
            for row in mine
        )
        + f" ({milliseconds(min(SHUFFLES[scale]))})",
        holds,
        "The premise is not met: a client pulls each number from one neighbour, so clients send what they receive, "
        "whatever F is."
        if not holds and most < ALIKE * demand
        else "",
    )


def saturated(row: Row) -> bool:
    """Whether a setting no longer keeps up with its load."""
    return bool(row["kept"] < 1 - NOTICEABLE)


def milliseconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds * 1000:.0f} ms"


READING_COLORS = {
    "fast-uplink": figures.BLUE,
    "literal-no-probe": figures.ORANGE,
    "own-fanout-no-probe": figures.GREEN,
    "own-fanout": figures.PURPLE,
}
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))


def _throughput(axes: Axes, places: list[float], line: list[Row], color: str, dash: Any, label: str) -> None:
    """A line of what clients receive, with the spread over the seeds."""
    rates, spread = ([row[name] / 1e6 for row in line] for name in ("throughput", "sd"))
    axes.errorbar(places, rates, spread, color=color, linestyle=dash, marker="o", markersize=4, capsize=3, label=label)


def paint_fanout(settings: list[Row], axes: Axes) -> None:
    """Figure 5b: throughput by fanout, a line per reading and shuffle time, with the spread over the seeds."""
    shuffles = [each(row["shuffle"] for row in settings) for each in (min, max)]
    for at, (reading, color) in enumerate(READING_COLORS.items()):
        for shuffle, dash in zip(shuffles, DASHES, strict=False):
            line = [row for row in settings if row["reading"] == reading and row["shuffle"] == shuffle]
            places = [row["fanout"] + 0.06 * (at - 1.5) for row in line]  # side by side: several carry all of it
            _throughput(axes, places, line, color, dash, f"{reading}, {milliseconds(shuffle)}")
    offered = settings[0]["offered"] / 1e6
    fanouts = sorted({row["fanout"] for row in settings})
    figures.expect(axes, (fanouts[0], fanouts[-1]), offered, "offered load")
    axes.axvline(4, color=figures.GREY, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.text(4.06, 1.17 * offered, "best in the paper", fontsize=9, color=figures.GREY)
    axes.set_ylim(0, 1.25 * offered)
    axes.set_xticks(fanouts)
    axes.set_xlabel("fanout F")
    axes.set_ylabel("million events/s per client")
    axes.set_title("What a client receives, by fanout, shuffle time and reading (SP3)")


FANOUT_COLORS = {2: figures.ORANGE, 3: figures.SKY, 4: figures.BLUE, 5: figures.PURPLE, 8: figures.GREEN}


def paint_shuffle(settings: list[Row], axes: Axes) -> None:
    """Figure 5b as the paper draws it: throughput by shuffle time, a line per fanout."""
    for reading, dash in zip((PRODUCT, "literal-no-probe"), DASHES, strict=False):
        for fanout, color in FANOUT_COLORS.items():
            line = [row for row in settings if row["reading"] == reading and row["fanout"] == fanout]
            if line:
                places = [1000 * row["shuffle"] * 1.02 ** (fanout - 4) for row in line]  # side by side
                label = f"F={fanout}" + ("" if reading == PRODUCT else ", taken literally")
                _throughput(axes, places, line, color, dash, label)
    offered = settings[0]["offered"] / 1e6
    figures.expect(axes, (27, 330), offered, "offered load")
    axes.set_ylim(0, 1.15 * offered)
    above: Any = axes.get_xaxis_transform()
    arrow = {"arrowstyle": "->", "color": figures.GREY, "linewidth": 0.9}
    axes.annotate("", (35, 0.965), (60, 0.965), xycoords=above, textcoords=above, arrowprops=arrow)
    axes.text(62, 0.965, "better in the paper", transform=above, va="center", fontsize=9, color=figures.GREY)
    axes.set_xscale("log")
    shuffles = sorted({row["shuffle"] for row in settings})
    axes.set_xticks([1000 * each for each in shuffles], [f"{1000 * each:.0f}" for each in shuffles])
    axes.minorticks_off()
    axes.set_xlabel("shuffle time (ms)")
    axes.set_ylabel("million events/s per client")
    axes.set_title("What a client receives, by shuffle time and fanout (SP3)")


def paint_fanout_latency(settings: list[Row], axes: Axes) -> None:
    """What decides where all settings carry the load: latency by fanout, with the spread over the seeds."""
    for reading in (PRODUCT, NO_PROBE):
        for shuffle, dash, marker in zip(sorted({row["shuffle"] for row in settings}), DASHES, "os^", strict=False):
            mine = [row for row in settings if row["reading"] == reading and row["shuffle"] == shuffle]
            line = [row for row in mine if row["latency"] is not None]
            if line:
                axes.errorbar(
                    [row["fanout"] for row in line],
                    [1000 * row["latency"] for row in line],
                    [1000 * row["latency_sd"] for row in line],
                    color=figures.BLUE if reading == PRODUCT else figures.PURPLE,
                    linestyle=dash,
                    marker=marker,
                    markersize=5,
                    capsize=3,
                    label=f"{reading}, {milliseconds(shuffle)}",
                )
            for row in [row for row in line if _cut_off(row)]:
                axes.plot(row["fanout"], 1000 * row["latency"], marker=marker, markersize=4, color="white", zorder=4)
    axes.axvline(4, color=figures.GREY, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.text(4.06, 8, "best in the paper", fontsize=9, color=figures.GREY)
    axes.set_ylim(bottom=0)
    axes.set_xticks(sorted({row["fanout"] for row in settings}))
    axes.set_xlabel("fanout F")
    axes.set_ylabel("ms until all clients have it")
    axes.set_title("Latency to all clients by fanout (SP3; open: most had not arrived at the end)")


STUDIES = (Study("fanout", points, measure, report_fanout),)
EXPERIMENTS = (
    Experiment(
        "SP3",
        "sprinkler",
        "Figure 5b: throughput by fanout and shuffle time",
        (
            *("SP3.best", "SP3.large-fanout", "SP3.uplinks", "SP3.small-fanout", "SP3.shuffle", "SP3.catch-up"),
            *("SP3.variance", "ours.readings", "ours.views", "SP3d"),
        ),
        "fanout",
    ),
)
