"""Verdicts of the lab through their own SQL: rows as tasks return them go in, the right claims come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tidings.lab.claims import Claim
from tidings.lab.sprinkler import extensions, fanout_verdicts, load_verdicts, region_load
from tidings.lab.study import Sql


@pytest.fixture
def over(spark: Any) -> Any:
    """The questions of a report, over rows made by hand."""

    def make(rows: Iterable[Mapping[str, Any]]) -> Sql:
        spark.createDataFrame([dict(row) for row in rows]).createOrReplaceTempView("results")
        return lambda query: [row.asDict(recursive=True) for row in spark.sql(query).collect()]

    return make


def run(point: Mapping[str, Any], share: float, latency: float) -> list[dict[str, Any]]:
    """What `region_load.measure` returns for a point: a row per origin, r2 10 ms later than r1, r1 than r0."""
    offered = 2.592e6 * point["load"]
    whole = {"offered": offered, "throughput": share * offered, "goodput": min(share, 1.0) * offered, "kept": share}
    views = {
        "in_degree_sd": 12.0 if point["reading"].startswith("paper") else 3.0,
        "unknown": 0,
        "uplink": 26e6,
        "proxy_uplink": 50e6,
    }
    counts = {"due": 100, "unfinished": 0}
    return [
        {
            **{"reading": "", "load": 1.0, **point, "origin": origin, **whole, **views, **counts},
            **{"latency_mean": latency + 0.01 * at, "latency_max": latency + 0.05},
        }
        for at, origin in enumerate(region_load.NAMES)
    ]


def named(claims: list[Claim]) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims}


def test_sp3_is_judged_and_drawn_from_its_rows(over: Any, tmp_path: Path) -> None:
    def outcome(point: Mapping[str, Any]) -> list[dict[str, Any]]:
        latency = {2: 0.2, 4: 0.1, 8: 0.15}[point["fanout"]] + point["shuffle"] / 10 + 0.001 * point["seed"]
        if point["reading"] == "paper-views":
            latency *= 3
        return run(point, {"literal-no-probe": 0.3, "own-fanout-no-probe": 0.995}.get(point["reading"], 1.001), latency)

    rows = [row for point in fanout_verdicts.points("quick") for row in outcome(point)]
    found = fanout_verdicts.report_fanout(over(rows), "quick", tmp_path)
    claims = named(found.claims)
    assert claims["SP3.best"].holds and claims["SP3.best"].measured.startswith("F=4 (100%, 127 ± 1 ms), F=8"), claims
    assert claims["SP3.shuffle"].holds
    assert (
        "fast-uplink, F=2, 100 ms against 300 ms: 100.0%, 220 ± 1 ms against 100.0%" in claims["SP3.shuffle"].measured
    )
    assert claims["SP3.catch-up"].holds and claims["SP3.catch-up"].measured.startswith("1.0010")
    assert claims["ours.readings"].holds and claims["ours.views"].holds
    assert not claims["SP3.large-fanout"].holds and not claims["SP3.uplinks"].holds
    assert not claims["SP3.small-fanout"].holds and not claims["SP3d"].holds
    assert {Path(each).name for each in found.figures["SP3"]} >= {
        "sp3-fanout.png",
        "sp3-shuffle.png",
        "sp3-latency.png",
    }


def test_sp4_is_judged_and_drawn_from_its_rows(over: Any, tmp_path: Path) -> None:
    kept = {4: 0.95, 8: 0.9}  # above the load that both carry
    rows = [
        row
        for point in region_load.load_points("quick")
        for row in run(point, 1.0 if point["load"] < 1.6 else kept[point["fanout"]], 0.1 + 0.05 * point["load"])
    ]
    claims = named(load_verdicts.report_load(over(rows), "quick", tmp_path).claims)
    assert all(claim.holds for claim in claims.values()), claims
    assert "0.17: 118 ms, at most 158 ms" in claims["SP4.latency"].measured
    assert "F=8 90%" in claims["SP4.overload"].measured
    assert claims["SP4.regions"].measured.startswith("at most 1.18 times (F=4, load 0.17)")


@pytest.mark.parametrize("name", ["chain", "churn"])
def test_what_the_paper_left_out_is_judged_from_rows_of_real_runs(name: str, over: Any, tmp_path: Path) -> None:
    study = next(each for each in extensions.STUDIES if each.name == name)
    points = [point for point in study.points("quick") if point["seed"] == 0]
    found = study.report(over([{**point, **row} for point in points for row in study.task(point)]), "quick", tmp_path)
    assert found.claims[0].holds and "0 violations" in found.claims[0].measured
    assert found.figures[name] and found.data[name]


def test_an_outage_and_a_buffer_are_judged_by_their_sql(over: Any, tmp_path: Path) -> None:
    rows = [
        {
            "gc": gc,
            "outage": outage,
            "seed": seed,
            "catch_up": late + seed,
            "rows": sent,
            "again": 0,
            "missed": 1000,
            "violations": 0,
        }
        for gc, late, sent in (("none", 4.0, 1000), ("by-key", 1.0, 100))
        for outage in extensions.OUTAGES["quick"]
        for seed in (0, 1)
    ]
    claims = named(extensions.report_outage(over(rows), "quick", tmp_path).claims)
    assert claims["ours.catch-up"].holds and "none, 8 s: 5.0 s" in claims["ours.catch-up"].measured
    assert (
        claims["ours.bandwidth"].holds and "100 rows over the link instead of 1000" in claims["ours.bandwidth"].measured
    )
    filled = [
        {**row, "unfinished": 50 if point["recv_seconds"] < 0.05 else 0}
        for point in extensions.buffer_points("quick")
        for row in run(point, 0.6 if point["recv_seconds"] < 0.05 else 1.0, 0.1)
    ]
    (claim,) = extensions.report_buffer(over(filled), "quick", tmp_path).claims
    assert claim.holds and claim.measured.startswith("0.02 s: 60%, 150 of 300 unfinished")


def test_real_processors_are_judged_by_their_sql(over: Any, tmp_path: Path) -> None:
    def outcome(point: Mapping[str, Any]) -> list[dict[str, Any]]:
        late = 0.1 + 0.004 * point["seed"] + (0.006 if point["service"] == "measured" else 0.0)
        return run({"reading": "", "load": 1.0, **point}, 1.0, late)

    rows = [row for point in extensions.service_points("quick") for row in outcome(point)]
    found = extensions.report_service(over(rows), "quick", tmp_path)
    (claim,) = found.claims
    assert claim.holds and claim.measured == (
        "default 100.0%, 112 ms ± 3 ms, 0 of 600 unfinished; measured 100.0%, 118 ms ± 3 ms, 0 of 600 unfinished: "
        "+6 ms (300 clients, 2 seeds)"
    )
    assert {Path(path).name for path in found.figures["processors"]} == {"ours-service.png", "ours-service.svg"}
