"""SP7, SP8 and SP9: how popularity ages, and what collection by key saves (Sprinkler, section 5.4, figures 9 and 10).

The paper's workload: each event invalidates a key, chosen by popularity (rank r with a chance in proportion to
r^-skew); new keys enter at a rank drawn from a Zeta distribution of the same skew and push the others down, so old
keys lose popularity. SP7 counts invalidations by the age of their key. SP8 (infinite set: keys drawn from the Zeta
distribution) and SP9 (100,000 keys, fixed or with one insertion in eleven events) feed the keys to a `History` that
collects by key, and count what it still stores.

What is saved is no constant: it grows with the number n of events, because a key that is known already costs nothing.
`expected` is the closed form for keys drawn independently: the expected number of distinct keys, the sum over all keys
of 1 - (1 - p)^n. Claims therefore name n, and are judged where the paper's figure is nearest to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidings.core.gc import GcPolicy
from tidings.core.history import History
from tidings.core.rows import ROW_SCHEMA, ArrowRows, Origin
from tidings.core.span import Span
from tidings.lab import figures
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.study import Point, Row, Sql, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SKEWS = (1.1, 1.3, 1.5)  # ours, because the paper's text names 1.1 alone
NEW_KEYS = 10  # SP7: per tick
INVALIDATIONS = (50, 100, 200)  # SP7: per tick; the paper's text names 200
TICKS = {"quick": 1_000, "full": 4_000}
KEYS = 100_000  # SP9
FAR = 1 << 62
EDGE = 1_000_000.5  # up to here terms of a sum are added up, beyond they are integrated
EVENTS = {"quick": 1_000_000, "full": 10_000_000}
BATCH = 10_000
SEEDS = {"quick": 2, "full": 5}
COLORS = (figures.BLUE, figures.ORANGE, figures.GREEN)


# --- the workload ---------------------------------------------------------------------------------------


def ranks(rng: np.random.Generator, cumulative: Floats, keys: int, count: int) -> Ints:
    """So many ranks from 0 below ``keys``, by popularity; ``cumulative`` are the running sums of r^-skew."""
    drawn: Ints = np.searchsorted(cumulative[:keys], rng.random(count) * cumulative[keys - 1], side="right")
    return drawn


def popularity(skew: float, keys: int) -> Floats:
    """Running sums of r^-skew."""
    sums: Floats = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -skew)
    return sums


def zeta(rng: np.random.Generator, skew: float, count: int) -> Ints:
    """Draws from the Zeta distribution, from 1 up; beyond 2^62 (1 % of the draws at 1.1) each is a number of its own.

    By inversion: a table up to a million, then the integral. (`Generator.zipf` is a third of a percent off at 1.1.)
    """
    table = _table(skew)
    drawn = rng.random(count) * zeta_sum(skew)
    found: Ints = np.searchsorted(table, drawn, side="right") + 1
    far = np.flatnonzero(drawn >= table[-1])
    with np.errstate(over="ignore"):
        value = EDGE * (1.0 - rng.random(len(far))) ** (1 / (1 - skew))
    found[far] = np.where(value < FAR, np.minimum(value, FAR), rng.integers(FAR, 2 * FAR - 1, len(far)))
    return found


@cache
def _table(skew: float) -> Floats:
    return popularity(skew, int(EDGE))


@cache
def zeta_sum(skew: float) -> float:
    """The sum of k^-skew over all k: a million terms, then the integral."""
    return float(_table(skew)[-1] + EDGE ** (1 - skew) / (skew - 1))


def ages(skew: float, invalidations: int, ticks: int, seed: int) -> Ints:
    """SP7: how many invalidations hit keys of each age, in ticks."""
    rng = np.random.default_rng([seed, round(100 * skew), invalidations])
    cumulative = popularity(skew, 2 * NEW_KEYS * ticks + 1_000)
    born = np.zeros(1, dtype=np.int64)  # by rank: when the key there was added
    counts = np.zeros(ticks, dtype=np.int64)
    for now in range(ticks):
        new = np.minimum(zeta(rng, skew, rng.poisson(NEW_KEYS)) - 1, len(born))
        born = np.insert(born, new, now)
        hit = ranks(rng, cumulative, len(born), rng.poisson(invalidations))
        counts += np.bincount(now - born[hit], minlength=ticks)
    return counts


def infinite_keys(skew: float, events: int, seed: int) -> Iterator[Ints]:
    """SP8: batches of keys from an infinite set."""
    rng = np.random.default_rng([seed, round(100 * skew)])
    for _ in range(events // BATCH):
        yield zeta(rng, skew, BATCH)


def finite_keys(skew: float, events: int, seed: int, insert: bool) -> Iterator[Ints]:
    """SP9: batches of keys from a set of 100,000; with ``insert`` one event in eleven adds a key."""
    rng = np.random.default_rng([seed, round(100 * skew), int(insert)])
    new = BATCH // 11 if insert else 0
    batches = events // BATCH
    cumulative = popularity(skew, KEYS + new * batches + 1)
    keys = np.arange(KEYS, dtype=np.int64)
    for at in range(batches):
        hit = keys[ranks(rng, cumulative, len(keys), BATCH - new)]
        if not insert:
            yield hit
            continue
        fresh = np.arange(new, dtype=np.int64) + KEYS + at * new
        batch = np.concatenate([hit, fresh])
        rng.shuffle(batch)
        yield batch
        keys = np.insert(keys, np.minimum(zeta(rng, skew, new) - 1, len(keys)), fresh)


def stored(batches: Iterator[Ints]) -> Iterator[tuple[int, int]]:
    """(events so far, events still stored) after each batch, by the product's own history."""
    history = History("keys", GcPolicy.parse("by-key"))
    at = 1
    for keys in batches:
        history.accept(Span.of("keys", at, _rows(at, keys)))
        at += len(keys)
        history.purge()
        yield at - 1, history.live


def _rows(lo: int, keys: Ints) -> ArrowRows:
    """A batch of events with eight-byte keys and no payload."""
    count = len(keys)
    offsets = pa.py_buffer(np.arange(0, 8 * (count + 1), 8, dtype=np.int32))
    column = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(keys.astype(">i8"))])
    kinds, nothing = pa.array(np.zeros(count, np.uint8)), pa.nulls(count, pa.binary())
    batch = pa.RecordBatch.from_arrays([kinds, column, nothing, pa.nulls(count, pa.int64())], schema=ROW_SCHEMA)
    return ArrowRows.dense(lo, batch, (Origin(lo, lo + count),))


def expected_distinct(skew: float, n: int, keys: int | None) -> float:
    """The expected number of distinct keys among n, of a finite set or (None) of the Zeta distribution (SP9d)."""
    head = np.arange(1, (keys or int(EDGE)) + 1, dtype=np.float64) ** -skew
    total = head.sum() if keys else zeta_sum(skew)
    found = float(-np.expm1(n * np.log1p(-head / total)).sum())
    if keys is None:
        x = np.geomspace(EDGE, EDGE * (n + 1.0) ** (3 / skew) * 1e12, 20_000)
        density = -np.expm1(-n * x**-skew / total)
        found += float(np.sum((density[1:] + density[:-1]) / 2 * np.diff(x)))
        found += n * x[-1] ** (1 - skew) / (skew - 1) / total  # beyond that every event has a key of its own
    return found


# --- tasks ----------------------------------------------------------------------------------------------


def measure_ages(point: Mapping[str, Any]) -> list[Row]:
    """Invalidations in bins of age that double in width."""
    counts = ages(point["skew"], point["invalidations"], point["ticks"], point["seed"])
    edges = [0, *(2**at for at in range(int(np.log2(point["ticks"])) + 1))]
    return [
        {"age": (lo + hi - 1) / 2, "width": hi - lo, "invalidations_seen": int(counts[lo:hi].sum())}
        for lo, hi in itertools.pairwise(edges)
    ]


def age_points(scale: str) -> list[Point]:
    """SP7: skew x rate of invalidations."""
    return [
        {"skew": skew, "invalidations": rate, "ticks": TICKS[scale], "seed": seed}
        for skew in SKEWS
        for rate in INVALIDATIONS
        for seed in range(SEEDS[scale])
    ]


def measure_stored(point: Mapping[str, Any]) -> list[Row]:
    """What is stored at every tenfold and half of it, with what the closed form expects."""
    model, skew, events = point["model"], point["skew"], point["events"]
    insert = model == "inserting"
    seed = point["seed"]
    flow = infinite_keys(skew, events, seed) if model == "infinite" else finite_keys(skew, events, seed, insert)
    marks = {n for power in range(4, 9) for n in (10**power, 2 * 10**power, 5 * 10**power) if n <= events}
    keys = None if model == "infinite" else KEYS
    return [
        {"n": n, "kept": kept, "expected": None if insert else expected_distinct(skew, n, keys)}
        for n, kept in stored(flow)
        if n in marks
    ]


def stored_points(scale: str, models: tuple[str, ...]) -> list[Point]:
    """Model x skew x seed."""
    return [
        {"model": model, "skew": skew, "events": EVENTS[scale], "seed": seed}
        for model in models
        for skew in SKEWS
        for seed in range(SEEDS[scale])
    ]


# --- SP7 ------------------------------------------------------------------------------------------------

BY_AGE = """
    select skew, invalidations, age, avg(invalidations_seen / width) rate, first(ticks) ticks from results
    where age > 0 group by skew, invalidations, age order by skew, invalidations, age"""
SLOPES = f"""
    select skew, invalidations, regr_slope(ln(rate), ln(age)) slope, regr_r2(ln(rate), ln(age)) fit
    from ({BY_AGE}) where rate > 0 and age < ticks / 4
    group by skew, invalidations order by skew, invalidations"""


def report_ages(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge SP7 and draw it."""
    lines, slopes = sql(BY_AGE), sql(SLOPES)
    falling = all(one["rate"] > other["rate"] for one, other in itertools.pairwise(lines) if one["age"] < other["age"])
    worst = min(slopes, key=lambda row: row["fit"])
    by_skew = {skew: np.mean([row["slope"] for row in slopes if row["skew"] == skew]) for skew in SKEWS}
    higher = [
        (low["rate"], high["rate"])
        for low in lines
        for high in lines
        if low["skew"] == high["skew"] and low["age"] == high["age"] and low["invalidations"] < high["invalidations"]
    ]
    claims = [
        Claim(
            "SP7.new-keys",
            "Newer keys are invalidated more often than older ones.",
            "invalidations per tick of age fall from every bin of ages to the next, at every skew and rate",
            f"{lines[0]['rate']:.0f} at an age of {lines[0]['age']:g} ticks, skew {lines[0]['skew']}; "
            f"{'every' if falling else 'not every'} bin less than the one before",
            falling,
        ),
        Claim(
            "SP7.zipf-like",
            "Popularity decreases with age roughly as in a Zipf distribution.",
            "a straight line in log-log scale: R^2 of at least 0.9 up to a quarter of the run",
            f"R^2 of at least {worst['fit']:.3f} (skew {worst['skew']}, {worst['invalidations']} per tick)",
            worst["fit"] >= 0.9,
        ),
        Claim(
            "SP7.skew",
            "The line is steeper with larger skew.",
            "a more negative slope for each larger skew, mean over the rates",
            ", ".join(f"{skew}: {slope:.2f}" for skew, slope in by_skew.items()),
            all(by_skew[one] > by_skew[other] for one, other in itertools.pairwise(SKEWS)),
        ),
        Claim(
            "SP7.rate",
            "The line is higher when more invalidations are generated.",
            "at every skew and age more for each larger rate",
            f"{sum(low < high for low, high in higher)} of {len(higher)} pairs",
            all(low < high for low, high in higher),
        ),
    ]
    drawn = figures.draw(out, "sp7-age", lambda axes: paint_ages(lines, axes))
    return Findings(claims, {"SP7": drawn}, {"SP7": [str(out / "results" / "age")]})


def paint_ages(lines: list[Row], axes: Axes) -> None:
    """Figure 9."""
    for skew, color in zip(SKEWS, COLORS, strict=True):
        for rate, dash, marker in zip(INVALIDATIONS, ((0, (1.5, 1.5)), (0, (5, 2)), "-"), "os^", strict=True):
            some = [row for row in lines if row["skew"] == skew and row["invalidations"] == rate]
            axes.plot(
                [row["age"] for row in some],
                [row["rate"] for row in some],
                color=color,
                linestyle=dash,
                marker=marker,
                markersize=4,
                label=f"skew {skew}, λ = {rate}",
            )
    first = max((row for row in lines if row["skew"] == SKEWS[0]), key=lambda row: row["rate"])
    ages = sorted({row["age"] for row in lines})
    axes.plot(
        ages,
        [first["rate"] * (age / first["age"]) ** -SKEWS[0] for age in ages],
        color=figures.VERMILION,
        linewidth=1.5,
        linestyle=(0, (2, 1)),
        label=f"Zipf-like (paper): age^-{SKEWS[0]}",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("age of the key (ticks since it was added)")
    axes.set_ylabel("invalidations per tick of age")
    axes.set_title("Invalidations by age of the key (SP7)")


# --- SP8 and SP9 ----------------------------------------------------------------------------------------

BY_COUNT = """
    select model, skew, n, avg(kept) kept, avg(1 - kept / n) saved, avg(1 - expected / n) expected_saved,
           coalesce(stddev(1 - kept / n), 0) sd, count(*) runs
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


def _saves(ident: str, rows: list[Row], paper: float, statement: str, why: str) -> Claim:
    mine = [row for row in rows if row["skew"] == 1.1]
    chosen = next(row for row in mine if row["n"] == KEYS)  # the paper does not say of how many events
    return Claim(
        ident,
        statement,
        f"within 5 points of {paper:.0%} at skew 1.1 and n = {KEYS:,}, an event for each key of SP9",
        ", ".join(f"{row['saved']:.1%} at n = {row['n']:,}" for row in mine) + f" ({mine[0]['runs']} seeds)",
        abs(chosen["saved"] - paper) <= 0.05,
        why,
    )


def report_infinite(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge SP8 and draw it."""
    rows = sql(BY_COUNT)
    why = "The paper states no n and no skew for it; with skew 1.1 three quarters need more than ten million events."
    claims = [
        _saves("SP8.saves", rows, 0.75, "With an infinite set of keys collection saves about three quarters.", why),
        _more_with_skew("SP8.skew", rows),
        _as_computed("SP8.closed-form", rows),
    ]
    drawn = figures.draw(out, "sp8-infinite", lambda axes: paint_stored(rows, 0.75, axes, "infinite set (SP8)"))
    return Findings(claims, {"SP8": drawn}, {"SP8": [str(out / "results" / "stored-infinite")]})


def report_finite(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge SP9 and draw it."""
    rows = sql(BY_COUNT)
    fixed = [row for row in rows if row["model"] == "fixed"]
    why = "The share depends on n: the paper's 85 % belongs to one point of its curve."
    claims = [
        _saves("SP9.saves", fixed, 0.85, "With 100,000 keys collection saves about 85 % at skew 1.1.", why),
        _more_with_skew("SP9.skew", fixed),
        _inserting(rows),
        _as_computed("SP9d", fixed),
    ]
    drawn = figures.draw(out, "sp9-finite", lambda axes: paint_stored(fixed, 0.85, axes, "100,000 keys (SP9)"))
    return Findings(claims, {"SP9": drawn}, {"SP9": [str(out / "results" / "stored-finite")]})


def _inserting(rows: list[Row]) -> Claim:
    at = {(row["model"], row["skew"], row["n"]): row["saved"] for row in rows}
    gaps = {key[1:]: at["fixed", *key[1:]] - at[key] for key in at if key[0] == "inserting"}
    worst = max(gaps, key=lambda key: abs(gaps[key]))
    near = {key: gap for key, gap in gaps.items() if key == (1.1, 100_000)}
    holds = abs(gaps[worst]) < 0.05
    return Claim(
        "SP9.inserting",
        "Inserting keys (one for ten invalidations) makes little difference.",
        "less than 5 points at every skew and n",
        f"at most {100 * gaps[worst]:.1f} points (skew {worst[0]}, n = {worst[1]:,}); "
        + ", ".join(f"{100 * gap:.1f} at skew {key[0]}, n = {key[1]:,}" for key, gap in near.items()),
        holds,
        ""
        if holds
        else "Every inserted key is one more event that stays, so with one in eleven events never more than "
        "10/11 can be saved: the difference grows as the rest is collected.",
    )


def paint_stored(rows: list[Row], paper: float, axes: Axes, what: str) -> None:
    """Figure 10: stored against generated."""
    for skew, color in zip(SKEWS, COLORS, strict=True):
        some = [row for row in rows if row["skew"] == skew]
        n = [row["n"] for row in some]
        axes.plot(n, [row["kept"] for row in some], "o", color=color, markersize=5, label=f"skew {skew}")
        axes.plot(n, [row["n"] * (1 - row["expected_saved"]) for row in some], color=color, linewidth=1.2)
    n = sorted({row["n"] for row in rows})
    axes.plot(n, n, color=figures.GREY, linewidth=1, linestyle=(0, (4, 3)), label="nothing collected")
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
    Study("age", age_points, measure_ages, report_ages, ("collection",)),
    Study(
        "stored-infinite",
        lambda scale: stored_points(scale, ("infinite",)),
        measure_stored,
        report_infinite,
        ("collection",),
    ),
    Study(
        "stored-finite",
        lambda scale: stored_points(scale, ("fixed", "inserting")),
        measure_stored,
        report_finite,
        ("collection",),
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
