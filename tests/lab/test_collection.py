"""SP7-SP9: the workload has the distribution it claims, what is stored is what the closed form expects, and a verdict
follows from the data: it differs where the data do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread

from tidings.lab import figures, study
from tidings.lab.claims import Claim, Findings
from tidings.lab.sprinkler import collection, collection_load
from tidings.lab.sprinkler.collection import INVALIDATIONS, SKEWS, judge_ages
from tidings.lab.sprinkler.collection_load import (
    FAR,
    KEYS,
    Ranking,
    expected_distinct,
    finite_keys,
    growing_keys,
    infinite_keys,
    measure_ages,
    measure_stored,
    reaches,
    stored,
    zeta,
)
from tidings.lab.study import Point, Row, Sql
from tidings.results import code_hash

AGES: list[Point] = [
    {"skew": skew, "invalidations": rate, "ticks": 200, "seed": seed}
    for skew in SKEWS
    for rate in INVALIDATIONS
    for seed in range(2)
]
COUNTS: list[Point] = [
    {"model": model, "skew": skew, "events": 20_000, "seed": seed}
    for model in ("infinite", "fixed", "inserting")
    for skew in SKEWS
    for seed in range(2)
]


def verdicts(claims: Iterable[Claim]) -> dict[str, bool]:
    return {claim.id: claim.holds for claim in claims}


# --- the workload -------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [1.1, 1.5])
def test_draws_follow_the_zeta_distribution(skew: float) -> None:
    drawn = zeta(np.random.default_rng(1), skew, 1_000_000)
    total = collection_load.zeta_sum(skew)
    for k in (1, 2, 10):
        assert (drawn == k).mean() == pytest.approx(k**-skew / total, abs=0.001)
    for far in (1e3, 1e9, 1e15):
        assert (drawn > far).mean() == pytest.approx(far ** (1 - skew) / (skew - 1) / total, abs=0.001)
    beyond = drawn[drawn >= FAR]
    assert len(np.unique(beyond)) == len(beyond)


def test_the_closed_form_has_the_values_that_are_known() -> None:
    saved = {n: 1 - expected_distinct(1.1, n, 100_000) / n for n in (10**4, 10**5, 10**6)}
    assert saved == pytest.approx({10**4: 0.69, 10**5: 0.83, 10**6: 0.935}, abs=0.005)  # SP9d
    endless = {n: 1 - expected_distinct(1.1, n, None) / n for n in (10**5, 10**6, 10**7)}
    assert endless == pytest.approx({10**5: 0.57, 10**6: 0.65, 10**7: 0.72}, abs=0.005)
    assert expected_distinct(1.5, 1, None) == pytest.approx(1.0, abs=1e-3)
    assert expected_distinct(2.0, 10**9, 50) == pytest.approx(50, abs=1e-6)


@pytest.mark.parametrize(("keys", "share"), [(None, 0.75), (KEYS, 0.85)])
def test_the_closed_form_tells_the_number_of_events_that_saves_a_share(keys: int | None, share: float) -> None:
    n = reaches(1.1, keys, share)
    assert 1 - expected_distinct(1.1, n, keys) / n == pytest.approx(share, abs=0.001)


def test_a_history_stores_what_the_closed_form_expects() -> None:
    for flow, keys in ((infinite_keys(1.1, 100_000, 3), None), (finite_keys(1.1, 100_000, 3), KEYS)):
        *_, (n, kept) = stored(flow)
        assert n == 100_000
        assert kept == pytest.approx(expected_distinct(1.1, n, keys), rel=0.02)


def test_keys_enter_a_ranking_as_into_a_list() -> None:
    rng = np.random.default_rng(1)
    ranking, plain = Ranking(20, 300), list(range(20))
    for key in range(20, 320):
        rank = int(rng.integers(0, 2 * len(plain)))
        ranking.enter(rank, key)
        plain.insert(rank, key)
    assert ranking.keys.tolist() == plain


def test_every_eleventh_event_inserts_a_key_that_can_be_hit_from_then_on() -> None:
    everything = np.concatenate(list(growing_keys(1.1, 110_000, 0)))
    new = everything[everything >= KEYS]
    assert everything[10::11].tolist() == list(range(KEYS, KEYS + 10_000))
    assert len(new) > 20_000  # they are invalidated as well, but never before they are there
    assert all(np.flatnonzero(everything == key)[0] == 11 * (key - KEYS) + 10 for key in range(KEYS, KEYS + 100))
    gaps = [np.diff(np.flatnonzero(everything == key)[:2]) for key in range(KEYS, KEYS + 100)]
    assert min(int(gap[0]) for gap in gaps if len(gap)) < 100


def test_inserted_keys_are_counted_apart_and_those_not_hit_since() -> None:
    point = {"model": "inserting", "skew": 1.3, "events": 20_000, "seed": 0}
    row = measure_stored(point)[-1]
    everything = np.concatenate(list(growing_keys(1.3, 20_000, 0))).tolist()
    new = [key for key in everything if key >= KEYS]
    assert (row["n"], row["kept"]) == (20_000, len(set(everything)))
    assert row["inserted"] == 20_000 // 11
    assert row["untouched"] == sum(new.count(key) == 1 for key in set(new))
    assert row["expected"] == expected_distinct(1.3, 20_000 - 20_000 // 11, KEYS)


# --- SP7 ----------------------------------------------------------------------------------------


def by_age(points: Iterable[Point]) -> list[Row]:
    """What BY_AGE asks for."""
    sums: dict[tuple[float, int, float], list[float]] = defaultdict(lambda: [0, 0, 0, 0])
    for point in points:
        for row in measure_ages(point):
            found = sums[point["skew"], point["invalidations"], row["age"]]
            found[0] += row["hits"]
            found[1] += row["key_ticks"]
            found[2] += row["total"]
            found[3] += 1
    return [
        {"skew": skew, "invalidations": rate, "age": age, "rate": hits / key_ticks, "total": total / runs}
        for (skew, rate, age), (hits, key_ticks, total, runs) in sorted(sums.items())
    ]


def drawn_ages(rate: Callable[[float, int, float], float]) -> list[Row]:
    """Lines after a formula of skew, invalidations and age."""
    return [
        {"skew": skew, "invalidations": each, "age": age, "rate": rate(skew, each, age), "total": 100 - age}
        for skew in SKEWS
        for each in INVALIDATIONS
        for age in (0.0, 1.5, 4.5, 10.5, 22.5)
    ]


def test_every_key_is_counted_in_every_tick_of_the_last_quarter() -> None:
    hits, key_ticks, _ = collection_load.ages(1.3, 100, 200, seed=1, popularity_skew=1.3)
    assert hits.sum() == pytest.approx(100 * 50, rel=0.05)
    assert key_ticks[:150] == pytest.approx(np.full(150, 10 * 50), rel=0.2)  # each age in all 50 ticks
    assert key_ticks[-1] == pytest.approx(10, abs=8)  # those of the first tick, in the last
    assert key_ticks.sum() == pytest.approx(sum(10 * now for now in range(150, 200)), rel=0.05)


def test_bins_of_ages_leave_no_age_out() -> None:
    rows = measure_ages(AGES[0])
    hits, key_ticks, totals = collection_load.ages(1.1, 50, 200, seed=0, popularity_skew=1.1)
    assert [row["age"] for row in rows] == [0, 1.5, 4.5, 10.5, 22.5, 46.5, 94.5, 163]
    assert rows[0] == {"age": 0, "hits": hits[0], "key_ticks": key_ticks[0], "total": totals[0]}
    assert rows[1]["total"] == (totals[1] + totals[2]) / 2  # of each age
    assert sum(row["hits"] for row in rows) == hits.sum()
    assert sum(row["key_ticks"] for row in rows) == key_ticks.sum()


def test_totals_are_of_the_whole_run() -> None:
    hits, _, totals = collection_load.ages(1.3, 100, 200, seed=1, popularity_skew=1.3)
    assert totals.sum() == pytest.approx(100 * 200, rel=0.05)
    assert (totals >= hits).all() and totals[0] > 2 * hits[0]


def test_totals_fall_with_age_even_if_all_keys_are_alike_and_so_they_are_not_judged() -> None:
    rows = by_age({**point, "popularity": 0.0} for point in AGES if point["skew"] == 1.1)
    for rate in INVALIDATIONS:
        totals = [row["total"] for row in rows if row["invalidations"] == rate]
        assert totals == sorted(totals, reverse=True)


def test_every_claim_on_ages_says_that_figure_9_has_totals() -> None:
    claims = judge_ages(drawn_ages(lambda skew, each, age: each * (age + 1) ** -skew))
    assert all(
        "per key and tick in the last quarter of the run, where figure 9 has totals" in c.measured for c in claims
    )
    assert "of which 36 of 36 steps fall" in claims[0].measured


def test_the_totals_of_figure_9_are_drawn_beside_and_no_slope_is_called_the_papers(tmp_path: Path) -> None:
    painted: list[Axes] = []
    rows = drawn_ages(lambda skew, each, age: each * (age + 1) ** -skew)

    def paint(axes: Axes) -> None:
        collection.paint_ages(rows, axes)
        painted.extend(axes.get_figure(root=True).axes)

    figures.draw(tmp_path, "sp7-age", paint)
    judged, totals = painted
    assert list(totals.get_lines()[0].get_ydata()) == [100 - row["age"] for row in rows[:5]]
    assert all("invalidations" in panel.get_ylabel() for panel in painted)
    labels = [label for label in judged.get_legend_handles_labels()[1] if "slope" in label]
    assert labels == ["slope -1.1 (ours)"]


def test_popularity_ages_in_the_workload_of_the_paper() -> None:
    assert verdicts(judge_ages(by_age(AGES))) == {
        "SP7.new-keys": True,
        "SP7.zipf-like": True,
        "SP7.skew": True,
        "SP7.rate": True,
    }


def test_nothing_ages_where_all_keys_are_alike() -> None:
    alike = by_age({**point, "popularity": 0.0} for point in AGES)
    assert verdicts(judge_ages(alike)) == {
        "SP7.new-keys": False,
        "SP7.zipf-like": False,
        "SP7.skew": False,
        "SP7.rate": True,
    }


@pytest.mark.parametrize(
    ("rate", "differ"),
    [
        (lambda skew, each, age: each * (age + 1) ** -skew, set()),
        (lambda skew, each, age: each * (age + 1) ** (-skew / 4), {"SP7.zipf-like", "SP7.skew"}),
        (lambda skew, each, age: each * (age + 1) ** -skew * (2.5 if age == 4.5 else 1), {"SP7.new-keys"}),
        (lambda skew, each, age: each * np.exp(-skew * age), {"SP7.zipf-like"}),
        (lambda skew, each, age: each * (age + 1) ** -1.3, {"SP7.skew"}),
        (lambda skew, each, age: each**0.8 * (age + 1) ** -skew, {"SP7.rate"}),
    ],
    ids=["zipf", "too-flat", "a-rise", "not-straight", "same-skew", "out-of-proportion"],
)
def test_each_claim_on_ages_fails_for_its_own_reason(
    rate: Callable[[float, int, float], float], differ: set[str]
) -> None:
    found = verdicts(judge_ages(drawn_ages(rate)))
    assert {ident for ident, holds in found.items() if not holds} == differ


# --- SP8 and SP9 --------------------------------------------------------------------------------


def by_count(points: Iterable[Point]) -> list[Row]:
    """What BY_COUNT asks for."""
    groups: dict[tuple[str, float, int], list[Row]] = defaultdict(list)
    for point in points:
        for row in measure_stored(point):
            groups[point["model"], point["skew"], row["n"]].append(row)
    return [
        {
            "model": model,
            "skew": skew,
            "n": n,
            "kept": fmean(row["kept"] for row in rows),
            "saved": fmean(1 - row["kept"] / n for row in rows),
            "expected_saved": fmean(1 - row["expected"] / (n - row["inserted"]) for row in rows),
            "saved_apart": fmean(1 - (row["kept"] - row["untouched"]) / (n - row["inserted"]) for row in rows),
            "inserted": fmean(row["inserted"] for row in rows),
            "untouched": fmean(row["untouched"] for row in rows),
            "runs": len(rows),
        }
        for (model, skew, n), rows in sorted(groups.items())
    ]


@pytest.mark.parametrize(
    ("saved", "agrees"),
    [
        ((0.70, 0.83, 0.93), "agrees from n = 20,000 to 20,000"),
        ((0.70, 0.81, 0.89), "agrees from n = 20,000 to 50,000"),
        ((0.70, 0.79, 0.91), ""),
        ((0.30, 0.40, 0.50), ""),
    ],
)
def test_what_is_saved_agrees_if_it_does_at_some_number_of_events(
    saved: tuple[float, float, float], agrees: str
) -> None:
    rows = [
        {"skew": 1.1, "n": n, "saved": each, "runs": 2}
        for n, each in zip((10**4, 2 * 10**4, 5 * 10**4), saved, strict=True)
    ]
    claim = collection._saves("SP9.saves", rows, 0.85, KEYS, "")
    assert claim.holds is bool(agrees)
    assert claim.measured.endswith(agrees or "agrees at none of them")
    assert "from n = 59,000 to 420,000" in claim.expected  # by the closed form
    assert claim.why == (
        "" if agrees else "Measured up to n = 50,000; by the closed form it agrees from n = 59,000 to 420,000."
    )


@pytest.mark.parametrize(
    ("saved", "apart", "holds"), [(0.81, 0.83, True), (0.77, 0.83, False), (0.81, 0.77, False), (0.77, 0.77, False)]
)
def test_inserting_makes_little_difference_only_if_it_does_in_both_readings(
    saved: float, apart: float, holds: bool
) -> None:
    point = {"skew": 1.1, "n": 110_000, "expected_saved": 0.84, "inserted": 10_000.0, "untouched": 4_000.0}
    fixed = {**point, "model": "fixed", "saved": 0.85, "saved_apart": 0.85}
    claim = collection._inserting([fixed, {**point, "model": "inserting", "saved": saved, "saved_apart": apart}])
    assert claim.holds is holds
    counted, left_out = claim.measured.split("; ")
    assert counted.startswith(
        f"insertions counted as events: at most {85 - 100 * saved:.1f} points (skew 1.1, n = 110,000)"
    )
    assert left_out.startswith(f"first events of inserted keys left out: at most {84 - 100 * apart:.1f} points")
    assert ("at most 90.9% can be saved. 6,000 of them" in claim.why) is not holds


@pytest.mark.parametrize(("paper", "what"), [(0.75, "infinite set (SP8)"), (0.85, "100,000 keys (SP9)")])
def test_the_legend_of_what_is_stored_keeps_clear_of_the_edges(paper: float, what: str, tmp_path: Path) -> None:
    rows = [{"skew": skew, "n": n, "kept": n / 2, "expected_saved": 0.5} for skew in SKEWS for n in (10**4, 10**6)]
    figures.draw(tmp_path, "stored", lambda axes: collection.paint_stored(rows, paper, axes, what))
    picture = imread(tmp_path / "stored.png")[:, :, :3]
    legend = picture[-picture.shape[0] // 10 :]
    assert (legend[:, :20] == 1).all() and (legend[:, -20:] == 1).all()
    assert not (legend == 1).all()


def test_how_what_was_counted_is_judged_and_drawn_is_no_reason_to_count_again() -> None:
    hashed = {path.name for each in collection.STUDIES for path in code_hash.sources(each.task.__module__)}
    assert "collection_load.py" in hashed and not hashed & {"collection.py", "figures.py", "study.py"}


# --- with Spark ---------------------------------------------------------------------------------


@pytest.mark.check
@pytest.mark.usefixtures("spark")
def test_the_queries_ask_spark_for_what_is_computed_here_and_every_claim_is_judged(
    tmp_path: Path,
) -> None:
    grids: Mapping[str, list[Point]] = {
        "age": AGES,
        "stored-infinite": [point for point in COUNTS if point["model"] == "infinite"],
        "stored-finite": [point for point in COUNTS if point["model"] != "infinite"],
    }
    asked: dict[str, list[Row]] = {}

    def small(each: study.Study) -> study.Study:
        query = collection.BY_AGE if each.name == "age" else collection.BY_COUNT

        def report(sql: Sql, scale: str, out: Path) -> Findings:
            asked[each.name] = sql(query)
            return each.report(sql, scale, out)

        return replace(each, points=lambda scale: grids[each.name], report=report, alone=True)  # without Python workers

    found = study.run([small(each) for each in collection.STUDIES], "quick", tmp_path, "local[2]")
    expected = {name: (by_age if name == "age" else by_count)(grid) for name, grid in grids.items()}
    assert {name: [_approx(row) for row in rows] for name, rows in expected.items()} == asked
    for each in collection.EXPERIMENTS:
        assert tuple(claim.id for claim in found[each.study].claims) == each.claims
        assert all(Path(path).stat().st_size > 0 for path in found[each.study].figures[each.id])
    assert verdicts(found["age"].claims) == verdicts(judge_ages(expected["age"]))
    assert not verdicts(found["stored-infinite"].claims)["SP8.saves"]  # 20,000 events are too few


def _approx(row: Row) -> Any:
    return {name: pytest.approx(value) if isinstance(value, float) else value for name, value in row.items()}


def test_what_inserting_is_judged_by_is_drawn(tmp_path: Path) -> None:
    painted: list[Axes] = []
    rows: list[Row] = [
        {"model": model, "skew": skew, "n": n, "saved": saved, "expected_saved": 0.9, "saved_apart": 0.87}
        for model, saved in (("fixed", 0.9), ("inserting", 0.82))
        for skew in SKEWS
        for n in (10**4, 10**5)
    ]

    def paint(axes: Axes) -> None:
        collection.paint_inserting(rows, axes)
        painted.append(axes)

    figures.draw(tmp_path, "sp9-inserting", paint)
    lines = {line.get_label(): list(line.get_ydata()) for line in painted[0].get_lines()}
    assert lines["skew 1.1, counted"] == pytest.approx([8.0, 8.0])
    assert lines["skew 1.5, left out"] == pytest.approx([3.0, 3.0])
    assert lines["little difference: less than"] == [5.0, 5.0]
