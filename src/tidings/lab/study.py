"""A study: a grid of points, what is measured at each, and what follows from all of them.

Every point is an independent run of ``task``, as a Spark task (spark/sweep.py); its rows go to Parquet under the hash
of the code that made them, so that a study that was interrupted goes on, and one that has run is only judged again.
The points of a study that measures this machine run one after another, before Spark is there.
``report`` asks its questions in SQL over a table ``results`` of exactly these points.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidings.core.errors import BadInput
from tidings.lab.claims import Findings
from tidings.lab.ledger import Ledger, code, commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.sim.run import Progress

Point: TypeAlias = dict[str, Any]
Row: TypeAlias = dict[str, Any]
Sql: TypeAlias = Callable[[str], list[Row]]
"""A query over the table ``results``: one row per row that a task returned, with the fields of its point."""


@dataclass(frozen=True)
class Study:
    """``modules``: of the lab, besides the study's own, that decide what a task returns; ``rooms``: besides those of a
    simulation. ``alone``: a point needs the whole machine."""

    name: str
    points: Callable[[str], list[Point]]  # by scale; the costly ones first
    task: Callable[[Mapping[str, Any]], list[Row]]
    report: Callable[[Sql, str, Path], Findings]  # query, scale, where to
    modules: tuple[str, ...] = field(default=())
    rooms: tuple[str, ...] = field(default=())
    alone: bool = False

    @property
    def code(self) -> str:
        """A hash of the code that decides the results."""
        return code(*self.modules, rooms=self.rooms)


def run(
    studies: Sequence[Study], scale: str, out: Path, master: str, progress: Progress | None = None
) -> dict[str, Findings]:
    """Run what has not been run, all studies side by side, then let each report; findings by study.

    Only one at a time may write to ``out``: two would run the same points, and count them twice.
    """
    with _claimed(out):
        return _run(studies, scale, out, master, progress)


@contextmanager
def _claimed(out: Path) -> Iterator[None]:
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"{out}: another run is writing there; wait for it, or choose another directory") from None
        yield


def _run(
    studies: Sequence[Study], scale: str, out: Path, master: str, progress: Progress | None
) -> dict[str, Findings]:
    from tidings.spark.session import spark
    from tidings.spark.sweep import results

    grids = {study.name: {_key(point): point for point in study.points(scale)} for study in studies}
    ledgers = {study.name: Ledger(out / "results" / study.name) for study in studies}
    known = {study.name: _known(ledgers[study.name], study.code) for study in studies}
    open_points: list[dict[str, Any]] = [
        {"study": study.name, "key": key, "task": study.task, "point": point}
        for study in studies
        for key, point in grids[study.name].items()
        if key not in known[study.name]
    ]
    total = sum(map(len, grids.values()))
    done = total - len(open_points)
    codes = {study.name: study.code for study in studies}

    def keep(come: Sequence[Mapping[str, Any]]) -> None:
        nonlocal done
        for each in come:
            ledgers[each["study"]].add(_rows(each, codes[each["study"]]))
        done += len(come)
        if progress is not None:
            progress(done, total, f"{done} of {total} points")

    alone = {study.name for study in studies if study.alone}
    for each in [point for point in open_points if point["study"] in alone]:
        keep([_attempt(each)])
        ledgers[each["study"]].flush()
    with spark(master, "tidings lab") as session:
        try:
            for come in results(session, _attempt, [point for point in open_points if point["study"] not in alone]):
                keep(come)
        finally:
            for ledger in ledgers.values():
                ledger.flush()
        return {
            study.name: study.report(_sql(session, ledgers[study.name], study.code, grids[study.name]), scale, out)
            for study in studies
        }


def _key(point: Point) -> str:
    return json.dumps(point, sort_keys=True)


def _attempt(job: Mapping[str, Any]) -> dict[str, Any]:
    """Inside a task."""
    began = time.process_time()
    rows = job["task"](job["point"])
    seconds = time.process_time() - began
    return {"study": job["study"], "key": job["key"], "point": job["point"], "rows": rows, "cpu_seconds": seconds}


def _rows(found: Mapping[str, Any], code: str) -> Iterator[Row]:
    """The rows of one point, with where they come from."""
    for row in found["rows"]:
        origin = {"key": found["key"], "code": code, "commit": commit(), "cpu_seconds": found["cpu_seconds"]}
        yield {**origin, **found["point"], **row}


def _known(ledger: Ledger, code: str) -> set[str]:
    """Keys of the points that this code has run."""
    table = ledger.table()
    if not table.num_rows:
        return set()
    return set(table.filter(pc.equal(table["code"], code))["key"].to_pylist())


def _sql(session: SparkSession, ledger: Ledger, code: str, grid: Mapping[str, Point]) -> Sql:
    """Questions over the rows of these points."""
    table = ledger.table()
    wanted = pc.and_(pc.equal(table["code"], code), pc.is_in(table["key"], value_set=pa.array(list(grid))))
    session.createDataFrame(table.filter(wanted)).createOrReplaceTempView("results")

    def ask(query: str) -> list[Row]:
        return [row.asDict(recursive=True) for row in session.sql(query).collect()]

    return ask
