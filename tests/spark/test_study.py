"""A grid runs once, goes on where it stopped, and is judged by SQL over exactly its own points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tidings.core.errors import BadInput, TidingsError
from tidings.lab import study
from tidings.lab.claims import Claim, Findings
from tidings.lab.study import Sql, Study
from tidings.results import code_hash, ledger
from tidings.results.ledger import Ledger
from tidings.spark import sweep
from tidings.spark.sweep import PointsFailed, SweepFailed


def measure(point: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"half": half, "value": point["x"] * 10 + half} for half in (0, 1)]


def report(sql: Sql, scale: str, out: Path) -> Findings:
    (found,) = sql("select count(*) rows, sum(value) total, max(x) most from results")
    return Findings([Claim("c", "s", "e", f"{found['rows']} {found['total']} {found['most']}", True)])


@pytest.fixture
def edited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process has other code than the workers of Spark."""
    monkeypatch.setattr(code_hash, "code_on_disk", lambda *modules: "edited")
    code_hash.code.cache_clear()
    yield
    code_hash.code.cache_clear()


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


def test_a_machine_is_measured_every_time_and_judged_by_this_time_alone(spark: Any, tmp_path: Path) -> None:
    speeds = iter([7, 8])

    def speed(point: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"value": next(speeds)}]

    alone = Study("alone", lambda scale: [{"x": 1}], speed, report, alone=True)
    assert study.run([alone], "quick", tmp_path, "local[2]")["alone"].claims[0].measured == "1 7 1"
    assert study.run([alone], "quick", tmp_path, "local[2]")["alone"].claims[0].measured == "1 8 1"
    history = Ledger(tmp_path / "results" / "alone").table()
    assert history["value"].to_pylist() == [7, 8] and len(set(history["ran_at"].to_pylist())) == 2


def test_a_machine_is_not_measured_with_code_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(point: Mapping[str, Any]) -> list[dict[str, Any]]:
        monkeypatch.setattr(study, "code_on_disk", lambda *modules: "edited")
        return measure(point)

    alone = Study("alone", lambda scale: [{"x": 1}], edit, report, alone=True)
    with pytest.raises(TidingsError, match=rf"edited while it ran \(hash edited, {alone.code} when it began\)"):
        study.run([alone], "quick", tmp_path, "local[2]")
    assert Ledger(tmp_path / "results" / "alone").table().num_rows == 0


def test_workers_with_other_code_are_refused(spark: Any, tmp_path: Path, edited: None) -> None:
    small = Study("small", lambda scale: [{"x": 1}], measure, report)
    with pytest.raises(SweepFailed, match=r"than this command \(edited\)"):
        study.run([small], "quick", tmp_path, "local[2]")
    assert Ledger(tmp_path / "results" / "small").table().num_rows == 0


def unlucky(point: Mapping[str, Any]) -> list[dict[str, Any]]:
    if point["x"] == 13:
        raise ValueError("unlucky")
    return measure(point)


def test_a_point_that_fails_costs_no_other_study_its_verdict(spark: Any, tmp_path: Path) -> None:
    judged: list[str] = []

    def noted(sql: Sql, scale: str, out: Path) -> Findings:
        found = report(sql, scale, out)
        judged.append(found.claims[0].measured)
        return found

    good = Study("good", lambda scale: [{"x": 1}], measure, noted)
    bad = Study("bad", lambda scale: [{"x": 13}, {"x": 14}], unlucky, noted)
    with pytest.raises(PointsFailed, match=r"(?s)1 of 3 points failed.*unlucky.*good \(1 of 1 claims hold\)$"):
        study.run([bad, good], "quick", tmp_path, "local[2]")
    assert judged == ["2 21 1"]
    assert Ledger(tmp_path / "results" / "bad").table().num_rows == 2


def test_points_at_which_spark_gave_up_come_last_until_they_have_ended(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Study("small", lambda scale: [{"x": x} for x in (1, 2, 3)], measure, report)
    taken: list[list[int]] = []
    stops = [1, 3]

    def results(session: Any, task: Any, jobs: list[Any], version: Any) -> Iterator[list[dict[str, Any]]]:
        taken.append([job["point"]["x"] for job in jobs])
        if stops:
            stop = stops.pop(0)
            raise SweepFailed("Spark gave up", [job for job in jobs if job["point"]["x"] == stop])
        yield [task(job) for job in jobs]

    monkeypatch.setattr(sweep, "results", results)
    for _ in (1, 2):
        with pytest.raises(SweepFailed, match="gave up"):
            study.run([small], "quick", tmp_path, "local[2]")
    study.run([small], "quick", tmp_path, "local[2]")
    assert taken == [[1, 2, 3], [2, 3, 1], [2, 1, 3]]
    assert not (tmp_path / study.SUSPECTS).exists()


def test_rows_do_not_wait_in_memory_for_the_next_point(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Ledger(tmp_path / "results" / "small")
    on_disk: list[int] = []

    def results(session: Any, task: Any, jobs: list[Any], version: Any) -> Iterator[list[dict[str, Any]]]:
        yield [task(jobs[0])]
        on_disk.append(kept.table().num_rows)
        monkeypatch.setattr(ledger, "FLUSH", 0.0)  # so much time has passed, and nothing has come
        yield []
        on_disk.append(kept.table().num_rows)
        yield [task(jobs[1])]

    monkeypatch.setattr(sweep, "results", results)
    study.run([Study("small", lambda scale: [{"x": 1}, {"x": 2}], measure, report)], "quick", tmp_path, "local[2]")
    assert on_disk == [0, 2]
