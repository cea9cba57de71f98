"""A grid runs once, goes on where it stopped, and is judged by SQL over exactly its own points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
