"""SP7, SP8 and SP9 judged and drawn (Sprinkler, section 5.4, figures 9 and 10); `collection_load` measures.

Results are cached under a hash of that module's code, so verdicts and figures have a module of their own: changing them
repeats no count.

SP7 is judged by invalidations per key and tick, because the totals of figure 9 fall with age even if all keys are
alike; the totals are drawn beside it. The savings grow with the number of events n, and the paper states no n. So the
claims of SP8 and SP9 say at which n they agree with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidings.lab import figures
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.sprinkler.collection_load import KEYS, measure_ages, measure_stored, reaches
from tidings.lab.study import Point, Row, Sql, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SKEWS = (1.1, 1.3, 1.5)  # ours, because the paper's text names 1.1 alone
INVALIDATIONS = (50, 100, 200)  # SP7: per tick; the paper's text names 200
TICKS = {"quick": 1_000, "full": 4_000}
FLAT, STEEPER = -0.5, 0.1  # ours: a slope above the first is no Zipf, differences below the second may be chance
NEAR = 0.05  # ours: what "roughly" and "little difference" allow, as a share of all events
EVENTS = {"quick": 1_000_000, "full": 10_000_000}
SEEDS = {"quick": 2, "full": 5}
COLORS = (figures.BLUE, figures.ORANGE, figures.GREEN)
PER_KEY = "ours, per key and tick in the last quarter of the run, where figure 9 has totals"


# --- SP7 ------------------------------------------------------------------------------------------------


def age_points(scale: str) -> list[Point]:
    """SP7: skew x rate of invalidations."""
    return [
        {"skew": skew, "invalidations": rate, "ticks": TICKS[scale], "seed": seed}
        for skew in SKEWS
        for rate in INVALIDATIONS
        for seed in range(SEEDS[scale])
    ]


BY_AGE = """
    select skew, invalidations, age, sum(hits) / sum(key_ticks) rate, avg(total) total
    from results group by skew, invalidations, age order by skew, invalidations, age"""


class FigureLine(NamedTuple):
    """A straight line through invalidations per key and tick by age, both in log scale, with age + 1 for the age."""

    slope: float
    height: float  # the geometric mean over the bins
    fit: float  # R^2


def line_through(rows: list[Row]) -> FigureLine:
    """The least squares; a bin without hits has no logarithm."""
    seen = [row for row in rows if row["rate"] > 0]
    x, y = np.log([row["age"] + 1 for row in seen]), np.log([row["rate"] for row in seen])
    slope = float(np.polyfit(x, y, 1)[0])
    return FigureLine(slope, float(np.exp(y.mean())), float(np.corrcoef(x, y)[0, 1] ** 2))


def report_ages(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge SP7 and draw it."""
    rows = sql(BY_AGE)
    drawn = figures.draw(out, "sp7-age", lambda axes: paint_ages(rows, axes))
    return Findings(judge_ages(rows), {"SP7": drawn}, {"SP7": [str(out / "results" / "age")]})


def judge_ages(rows: list[Row]) -> list[Claim]:
    """The claims of SP7, from the answer to BY_AGE."""
    series = {at: list(some) for at, some in itertools.groupby(rows, lambda row: (row["skew"], row["invalidations"]))}
    lines = {at: line_through(some) for at, some in series.items()}
    steps = [pair for some in series.values() for pair in itertools.pairwise(some)]
    rises = [
        f"from age {one['age']:g} to {other['age']:g} at skew {one['skew']}, {one['invalidations']} per tick"
        for one, other in steps
        if one["rate"] <= other["rate"]
    ]
    totals = sum(one["total"] > other["total"] for one, other in steps)
    loose, flat = min(lines, key=lambda at: lines[at].fit), max(lines, key=lambda at: lines[at].slope)
    zipf = lines[loose].fit >= 0.9 and lines[flat].slope <= FLAT
    slopes = {skew: np.mean([line.slope for at, line in lines.items() if at[0] == skew]) for skew in SKEWS}
    return [
        Claim(
            "SP7.new-keys",
            "Newer keys are invalidated more often than older ones.",
            "invalidations per key and tick fall from every bin of ages to the next, at every skew and rate",
            f"{len(steps) - len(rises)} of {len(steps)} steps to an older bin fall; from {rows[0]['rate']:.2g} at age "
            f"0 on at skew {rows[0]['skew']}, {rows[0]['invalidations']} per tick; {PER_KEY}, of which {totals} of "
            f"{len(steps)} steps fall",
            not rises,
            f"No fall {rises[0]}." if rises else "",
        ),
        Claim(
            "SP7.zipf-like",
            "Popularity decreases with age roughly as in a Zipf distribution.",
            f"a straight line that falls, in log-log scale with age + 1: R^2 of at least 0.9, slope at most {FLAT}",
            f"R^2 of at least {lines[loose].fit:.3f} (skew {loose[0]}, {loose[1]} per tick), "
            f"slope at most {lines[flat].slope:.2f} (skew {flat[0]}, {flat[1]} per tick); {PER_KEY}",
            zipf,
            "" if zipf else "The line falls too little." if lines[flat].slope > FLAT else "The line is not straight.",
        ),
        Claim(
            "SP7.skew",
            "The line is steeper with larger skew.",
            f"a slope, mean over the rates, lower by at least {STEEPER} for each larger skew",
            ", ".join(f"{skew}: {slope:.2f}" for skew, slope in slopes.items()) + f"; {PER_KEY}",
            all(slopes[one] - slopes[other] >= STEEPER for one, other in itertools.pairwise(SKEWS)),
        ),
        _higher(series, lines),
    ]


def _higher(series: Mapping[tuple[float, int], list[Row]], lines: Mapping[tuple[float, int], FigureLine]) -> Claim:
    pairs = [((skew, low), (skew, high)) for skew in SKEWS for low, high in itertools.combinations(INVALIDATIONS, 2)]
    above = [
        one["rate"] < other["rate"] for low, high in pairs for one, other in zip(series[low], series[high], strict=True)
    ]
    off = {(low, high): lines[high].height / lines[low].height / (high[1] / low[1]) - 1 for low, high in pairs}
    worst = max(off, key=lambda pair: abs(off[pair]))
    (skew, low), (_, high) = worst
    return Claim(
        "SP7.rate",
        "The line is higher when more invalidations are generated.",
        "at every skew and age more for each larger rate; the height of the line (geometric mean over the bins) in "
        "proportion to the rate within 10 %",
        f"{sum(above)} of {len(above)} pairs; {1 + off[worst]:.2f} of the proportion at worst "
        f"(skew {skew}, {high} against {low} per tick); {PER_KEY}",
        all(above) and abs(off[worst]) <= 0.1,
    )


def paint_ages(rows: list[Row], axes: Axes) -> None:
    """What is judged, and figure 9."""
    other = figures.beside(axes)
    for skew, color in zip(SKEWS, COLORS, strict=True):
        for rate, dash, marker in zip(INVALIDATIONS, ((0, (1.5, 1.5)), (0, (5, 2)), "-"), "os^", strict=True):
            some = [row for row in rows if row["skew"] == skew and row["invalidations"] == rate]
            for panel, what in ((axes, "rate"), (other, "total")):
                panel.plot(
                    [row["age"] + 1 for row in some],
                    [row[what] for row in some],
                    color=color,
                    linestyle=dash,
                    marker=marker,
                    markersize=4,
                    label=f"skew {skew}, λ = {rate}",
                )
    first = max((row for row in rows if row["skew"] == SKEWS[0]), key=lambda row: row["rate"])
    ages = sorted({row["age"] + 1 for row in rows})
    axes.plot(
        ages,
        [first["rate"] * (age / (first["age"] + 1)) ** -SKEWS[0] for age in ages],
        color=figures.VERMILION,
        linewidth=1.5,
        linestyle=(0, (2, 1)),
        label=f"slope -{SKEWS[0]} (ours)",
    )
    for panel in (axes, other):
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("age of the key (ticks) + 1")
    axes.set_ylabel("invalidations per key\nand tick, last quarter")
    axes.set_title("Invalidations by age of the key (SP7)")
    other.set_ylabel("invalidations in all, by age")
    other.set_title("The same as figure 9 plots it")


# --- SP8 and SP9 ----------------------------------------------------------------------------------------


def stored_points(scale: str, models: tuple[str, ...]) -> list[Point]:
    """Model x skew x seed."""
    return [
        {"model": model, "skew": skew, "events": EVENTS[scale], "seed": seed}
        for model in models
        for skew in SKEWS
        for seed in range(SEEDS[scale])
    ]


BY_COUNT = """
    select model, skew, n, avg(kept) kept, avg(1 - kept / n) saved, avg(1 - expected / (n - inserted)) expected_saved,
           avg(1 - (kept - untouched) / (n - inserted)) saved_apart, avg(inserted) inserted, avg(untouched) untouched,
           count(*) runs
    from results group by model, skew, n order by model, skew, n"""


def _as_computed(ident: str, rows: list[Row]) -> Claim:
    off = {(row["skew"], row["n"]): abs(row["saved"] - row["expected_saved"]) for row in rows}
    worst = max(off, key=lambda at: off[at])
    told = ", ".join(f"{row['expected_saved']:.1%} at n = {row['n']:,}" for row in rows if row["skew"] == 1.1)
    return Claim(
        ident,
        "Ours: what is saved grows with the number of events, as the expected number of distinct keys says.",
        f"within 1 percentage point of the closed form at every skew and n (skew 1.1: {told})",
        f"at most {100 * off[worst]:.2f} points off (skew {worst[0]}, n = {worst[1]:,})",
        off[worst] < 0.01,
    )


def _more_with_skew(ident: str, rows: list[Row]) -> Claim:
    most = max(row["n"] for row in rows)
    saved = {row["skew"]: row["saved"] for row in rows if row["n"] == most}
    return Claim(
        ident,
        "More is saved when the workload is more skewed.",
        f"more for each larger skew at n = {most:,}",
        ", ".join(f"{skew}: {saved[skew]:.1%}" for skew in SKEWS),
        all(saved[one] < saved[other] for one, other in itertools.pairwise(SKEWS)),
    )


def _saves(ident: str, rows: list[Row], paper: float, keys: int | None, statement: str) -> Claim:
    """At skew 1.1, the only one that the paper names; for SP8 it names none."""
    mine = [row for row in rows if row["skew"] == 1.1]
    near = [row["n"] for row in mine if abs(row["saved"] - paper) <= NEAR]
    first, at, last = (_about(reaches(1.1, keys, paper + off)) for off in (-NEAR, 0.0, NEAR))
    return Claim(
        ident,
        statement,
        f"within 5 points of {paper:.0%} at skew 1.1 and some n that was measured, as the paper states none; by the "
        f"closed form from n = {first} to {last}, and {paper:.0%} at {at}",
        ", ".join(f"{row['saved']:.1%} at n = {row['n']:,}" for row in mine)
        + f" ({mine[0]['runs']} seeds); "
        + (f"agrees from n = {near[0]:,} to {near[-1]:,}" if near else "agrees at none of them"),
        bool(near),
        ""
        if near
        else f"Measured up to n = {mine[-1]['n']:,}; by the closed form it agrees from n = {first} to {last}.",
    )


def _about(n: int) -> str:
    """Two digits."""
    return f"{float(f'{n:.2g}'):,.0f}"


def report_infinite(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge SP8 and draw it."""
    rows = sql(BY_COUNT)
    claims = [
        _saves("SP8.saves", rows, 0.75, None, "With an infinite set of keys collection saves about three quarters."),
        _more_with_skew("SP8.skew", rows),
        _as_computed("SP8.closed-form", rows),
    ]
    drawn = figures.draw(out, "sp8-infinite", lambda axes: paint_stored(rows, 0.75, axes, "infinite set (SP8)"))
    return Findings(claims, {"SP8": drawn}, {"SP8": [str(out / "results" / "stored-infinite")]})


def report_finite(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge SP9 and draw it."""
    rows = sql(BY_COUNT)
    fixed = [row for row in rows if row["model"] == "fixed"]
    claims = [
        _saves("SP9.saves", fixed, 0.85, KEYS, "With 100,000 keys collection saves about 85 % at skew 1.1."),
        _more_with_skew("SP9.skew", fixed),
        _inserting(rows),
        _as_computed("SP9d", fixed),
    ]
    drawn = figures.draw(out, "sp9-finite", lambda axes: paint_stored(fixed, 0.85, axes, "100,000 keys (SP9)"))
    drawn += figures.draw(out, "sp9-inserting", lambda axes: paint_inserting(rows, axes))
    return Findings(claims, {"SP9": drawn}, {"SP9": [str(out / "results" / "stored-finite")]})


def _gaps(rows: list[Row]) -> dict[str, dict[tuple[float, int], float]]:
    """By skew and n, how much less is saved where keys are inserted. In two readings, since the paper does not say
    whether the event that inserts a key is one of those it counts."""
    grown = {(row["skew"], row["n"]): row for row in rows if row["model"] == "inserting"}
    fixed = {(row["skew"], row["n"]): row["saved"] for row in rows if row["model"] == "fixed"}
    return {
        "insertions counted as events": {at: fixed[at] - row["saved"] for at, row in grown.items()},
        "first events of inserted keys left out": {
            at: row["expected_saved"] - row["saved_apart"] for at, row in grown.items()
        },
    }


def _inserting(rows: list[Row]) -> Claim:
    grown = {(row["skew"], row["n"]): row for row in rows if row["model"] == "inserting"}
    readings = _gaps(rows)
    holds = all(abs(gap) < NEAR for gaps in readings.values() for gap in gaps.values())
    skew, n = max(grown)
    row = grown[skew, n]
    return Claim(
        "SP9.inserting",
        "Inserting keys (one for ten invalidations) makes little difference.",
        "less than 5 points at every skew and n, in both readings: insertions counted as events, against a fixed set "
        "and as many events; first events of inserted keys left out of what is stored and generated, against a fixed "
        "set and as many invalidations (closed form)",
        "; ".join(f"{reading}: {_gap(gaps)}" for reading, gaps in readings.items()),
        holds,
        ""
        if holds
        else f"Every inserted key keeps an event: {row['inserted']:,.0f} at skew {skew} and n = {n:,}, so that at most "
        f"{1 - row['inserted'] / n:.1%} can be saved. {row['inserted'] - row['untouched']:,.0f} of them have been "
        "invalidated since, and keep an event in the second reading as well.",
    )


def _gap(gaps: Mapping[tuple[float, int], float]) -> str:
    worst = max(gaps, key=lambda at: abs(gaps[at]))
    small = {skew: [n for at, n in gaps if at == skew and abs(gaps[at, n]) < NEAR] for skew in SKEWS}
    where = [f"skew {skew}, n = {min(found):,} to {max(found):,}" for skew, found in small.items() if found]
    told = f"at most {100 * gaps[worst]:.1f} points (skew {worst[0]}, n = {worst[1]:,})"
    return f"{told}, less than 5 {'at ' + ', and '.join(where) if where else 'nowhere'}"


def paint_inserting(rows: list[Row], axes: Axes) -> None:
    """What inserting keys costs, in both readings."""
    for (reading, gaps), dash, marker in zip(_gaps(rows).items(), ("-", (0, (5, 2))), "os", strict=True):
        for skew, color in zip(SKEWS, COLORS, strict=True):
            n = sorted(each for at, each in gaps if at == skew)
            points = [100 * gaps[skew, each] for each in n]
            look: dict[str, Any] = {"color": color, "linestyle": dash, "marker": marker, "markersize": 5}
            axes.plot(
                n, points, label=f"skew {skew}, {'counted' if reading.endswith('events') else 'left out'}", **look
            )
    between = min(row["n"] for row in rows), max(row["n"] for row in rows)
    figures.expect(axes, between, 100 * NEAR, "little difference: less than")
    axes.set_ylim(min(0.0, axes.get_ylim()[0]))
    axes.set_xscale("log")
    axes.set_xlabel("events generated (insertions counted as events, or left out)")
    axes.set_ylabel("percentage points saved less")
    axes.set_title("What inserting keys costs, one for ten invalidations (SP9)")


def paint_stored(rows: list[Row], paper: float, axes: Axes, what: str) -> None:
    """Figure 10: stored against generated."""
    for skew, color in zip(SKEWS, COLORS, strict=True):
        some = [row for row in rows if row["skew"] == skew]
        n = [row["n"] for row in some]
        axes.plot(n, [row["kept"] for row in some], "o", color=color, markersize=5, label=f"skew {skew}")
        axes.plot(n, [row["n"] * (1 - row["expected_saved"]) for row in some], color=color, linewidth=1.2)
    n = sorted({row["n"] for row in rows})
    axes.plot(n, n, color=figures.GREY, linewidth=1, linestyle=(0, (4, 3)), label="0% saved")
    axes.plot(
        n,
        [each * (1 - paper) for each in n],
        color=figures.VERMILION,
        linestyle=(0, (2, 1)),
        label=f"{paper:.0%} saved (paper)",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("events generated (points: measured, lines: closed form)")
    axes.set_ylabel("events stored")
    axes.set_title(f"Events stored with collection by key, {what}")


STUDIES = (
    Study("age", age_points, measure_ages, report_ages),
    Study(
        "stored-infinite",
        lambda scale: stored_points(scale, ("infinite",)),
        measure_stored,
        report_infinite,
    ),
    Study(
        "stored-finite",
        lambda scale: stored_points(scale, ("fixed", "inserting")),
        measure_stored,
        report_finite,
    ),
)
EXPERIMENTS = (
    Experiment(
        "SP7",
        "sprinkler",
        "Figure 9: invalidations by age of the key",
        ("SP7.new-keys", "SP7.zipf-like", "SP7.skew", "SP7.rate"),
        "age",
    ),
    Experiment(
        "SP8",
        "sprinkler",
        "Figure 10a: events stored, infinite set of keys",
        ("SP8.saves", "SP8.skew", "SP8.closed-form"),
        "stored-infinite",
    ),
    Experiment(
        "SP9",
        "sprinkler",
        "Figure 10b: events stored, 100,000 keys",
        ("SP9.saves", "SP9.skew", "SP9.inserting", "SP9d"),
        "stored-finite",
    ),
)
