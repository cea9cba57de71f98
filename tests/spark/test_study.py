"""A grid runs once, goes on where it stopped, and is judged by SQL over exactly its own points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tidings.core.errors import BadInput
from tidings.lab import study
from tidings.lab.claims import Claim, Findings
from tidings.lab.ledger import Ledger
from tidings.lab.study import Sql, Study


def measure(point: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"half": half, "value": point["x"] * 10 + half} for half in (0, 1)]


def report(sql: Sql, scale: str, out: Path) -> Findings:
    (found,) = sql("select count(*) rows, sum(value) total, max(x) most from results")
    return Findings([Claim("c", "s", "e", f"{found['rows']} {found['total']} {found['most']}", True)])


def test_points_run_once_and_only_those_of_the_scale_are_judged(spark: Any, tmp_path: Path) -> None:
    grids = {"quick": [{"x": 1}, {"x": 2}], "full": [{"x": 1}, {"x": 2}, {"x": 3}]}
    small = Study("small", grids.__getitem__, measure, report)
    told: list[tuple[int, int]] = []

    def judged(scale: str) -> str:
        found = study.run([small], scale, tmp_path, "local[2]", lambda done, total, what: told.append((done, total)))
        return found["small"].claims[0].measured

    kept = Ledger(tmp_path / "results" / "small")
    assert judged("quick") == "4 62 2"
    assert kept.table().num_rows == 4 and told[-1] == (2, 2)
    assert judged("full") == "6 123 3"
    assert kept.table().num_rows == 6 and told[-1] == (3, 3)
    assert judged("quick") == "4 62 2"  # nothing is run again, and what another scale added does not count
    assert kept.table().num_rows == 6


def test_two_runs_do_not_write_to_one_place(spark: Any, tmp_path: Path) -> None:
    small = Study("small", lambda scale: [{"x": 1}], measure, report)
    with study._claimed(tmp_path), pytest.raises(BadInput, match="another run is writing there"):
        study.run([small], "quick", tmp_path, "local[2]")
    assert study.run([small], "quick", tmp_path, "local[2]")["small"].claims[0].measured == "2 21 1"


def test_points_that_need_the_whole_machine_run_here_one_after_another(spark: Any, tmp_path: Path) -> None:
    order: list[int] = []

    def counted(point: Mapping[str, Any]) -> list[dict[str, Any]]:
        order.append(point["x"])  # not seen here if a Spark task did it
        return measure(point)

    alone = Study("alone", lambda scale: [{"x": 2}, {"x": 1}], counted, report, alone=True)
    small = Study("small", lambda scale: [{"x": 3}], measure, report)
    found = study.run([small, alone], "quick", tmp_path, "local[2]")
    assert order == [2, 1]
    assert {name: each.claims[0].measured for name, each in found.items()} == {"small": "2 61 3", "alone": "4 62 2"}
    study.run([alone], "quick", tmp_path, "local[2]")
    assert order == [2, 1]  # what has been measured is only judged again
