"""A study: a grid of points, a measurement at each, and a report over all of them.

Every point is an independent run of ``task``, as a Spark task (spark/sweep.py). Its rows go to Parquet under the hash
of the code that made them. So an interrupted study continues, and a finished one is only judged again. The points of a
study that measures this machine run one after another, before Spark starts, and every time: a machine is busier one day
than another. Their older rows stay as history. ``report`` asks its questions in SQL over a table ``results`` of exactly
these points.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidings.core.errors import BadInput, TidingsError
from tidings.lab.claims import Findings
from tidings.results.code_hash import code, code_on_disk
from tidings.results.ledger import Ledger, commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.sim.run import Progress

SUSPECTS = "suspects.json"  # beside the results: the points at which Spark has given up

Point: TypeAlias = dict[str, Any]
Row: TypeAlias = dict[str, Any]
Sql: TypeAlias = Callable[[str], list[Row]]
"""A query over the table ``results``: one row per row that a task returned, with the fields of its point."""


@dataclass(frozen=True)
class Study:
    """``alone``: a point measures this machine, and needs all of it."""

    name: str
    points: Callable[[str], list[Point]]  # by scale; the costly ones first
    task: Callable[[Mapping[str, Any]], list[Row]]
    report: Callable[[Sql, str, Path], Findings]  # query, scale, where to
    alone: bool = False

    @property
    def code(self) -> str:
        """A hash of the code that decides the results."""
        return code(self.task.__module__)


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
    from tidings.spark.sweep import PointsFailed, SweepFailed, results

    under_way = {study.name: _UnderWay(study, scale, out) for study in studies}
    total = sum(len(each.grid) for each in under_way.values())

    def keep(come: Sequence[Mapping[str, Any]]) -> None:
        for found in come:
            under_way[found["study"]].keep(found)
        for each in under_way.values():
            each.ledger.add(())  # what came before must not wait in memory for a point that takes hours
        if come and progress is not None:
            done = sum(len(each.ended) for each in under_way.values())
            progress(done, total, f"{done} of {total} points")

    for each in under_way.values():
        if each.study.alone:
            for job in each.jobs():
                keep([_measured(each, job)])
                each.ledger.flush()
    shared = [each for each in under_way.values() if not each.study.alone]
    jobs = _suspects_last([job for each in shared for job in each.jobs()], out)
    failed: PointsFailed | None = None
    with spark(master, "tidings lab") as session:
        try:
            for come in results(session, _attempt, jobs, _version(shared)):
                keep(come)
            (out / SUSPECTS).unlink(missing_ok=True)
        except PointsFailed as error:
            failed = error  # those who have all of their points are judged first
        except SweepFailed as error:
            _suspect(error.under_way, out)
            raise
        finally:
            for each in under_way.values():
                each.ledger.flush()
        found = {
            name: each.study.report(_sql(session, each.rows()), scale, out)
            for name, each in under_way.items()
            if each.ended == each.grid.keys()
        }
    if failed is not None:
        raise PointsFailed("\n".join([str(failed), *_verdicts(found, out)])) from failed
    return found


def _suspects_last(jobs: list[dict[str, Any]], out: Path) -> list[dict[str, Any]]:
    """Points at which Spark has given up before come after all others, which would else never have their turn."""
    known = _suspects(out)
    return sorted(jobs, key=lambda job: [job["study"], job["key"]] in known)


def _suspects(out: Path) -> list[list[str]]:
    """By study and key."""
    path = out / SUSPECTS
    found: list[list[str]] = json.loads(path.read_text()) if path.exists() else []
    return found


def _suspect(jobs: Iterable[Mapping[str, Any]], out: Path) -> None:
    """Remember for the next run at which points this one has stopped, and those before it."""
    new = [[job["study"], job["key"]] for job in jobs]
    (out / SUSPECTS).write_text(json.dumps([*_suspects(out), *new]))


class _UnderWay:
    """A study that runs: its grid, which of its points have ended, and the ledger that has their rows."""

    def __init__(self, study: Study, scale: str, out: Path) -> None:
        self.study = study
        self.code, self.commit = study.code, commit()
        self.began = datetime.datetime.now(datetime.UTC)
        self.grid = {_key(point): point for point in study.points(scale)}
        self.ledger = Ledger(out / "results" / study.name)
        known = pa.table({}) if study.alone else self.rows()
        self.ended: set[str] = set(known["key"].to_pylist()) if known.num_rows else set()

    def jobs(self) -> list[dict[str, Any]]:
        """What is still to be run."""
        return [
            {"study": self.study.name, "key": key, "task": self.study.task, "point": point}
            for key, point in self.grid.items()
            if key not in self.ended
        ]

    def keep(self, found: Mapping[str, Any]) -> None:
        """The rows of one point, with where they come from."""
        origin = {
            **{"key": found["key"], "code": self.code, "commit": self.commit},
            **{"ran_at": self.began, "cpu_seconds": found["cpu_seconds"]},
        }
        self.ledger.add({**origin, **found["point"], **row} for row in found["rows"])
        self.ended.add(found["key"])

    def rows(self) -> pa.Table:
        """What the ledger has of these points: by this code, and of a machine only what was measured now."""
        table = self.ledger.table()
        if not table.num_rows:
            return table
        mine: dict[str, list[Any]] = {"code": [self.code], "key": list(self.grid)}
        if self.study.alone:
            mine["ran_at"] = [self.began]
        for name, values in mine.items():
            table = table.filter(pc.is_in(table[name], value_set=pa.array(values, table[name].type)))
        return table


def _version(studies: Iterable[_UnderWay]) -> Callable[[], str]:
    """What a process has of the code that decides the results of some studies, asked here and in Spark's workers."""
    return partial(code, *sorted({each.study.task.__module__ for each in studies}))


def _verdicts(found: Mapping[str, Findings], out: Path) -> Iterator[str]:
    """In a line, for a caller that gets an error instead of findings."""
    if found:
        counts = {name: (sum(claim.holds for claim in each.claims), len(each.claims)) for name, each in found.items()}
        told = [f"{name} ({held} of {claims} claims hold)" for name, (held, claims) in counts.items()]
        yield f"judged all the same, figures in {out}: {', '.join(told)}"


def _key(point: Point) -> str:
    return json.dumps(point, sort_keys=True)


def _attempt(job: Mapping[str, Any]) -> dict[str, Any]:
    """Inside a task."""
    began = time.process_time()
    rows = job["task"](job["point"])
    seconds = time.process_time() - began
    return {"study": job["study"], "key": job["key"], "point": job["point"], "rows": rows, "cpu_seconds": seconds}


def _measured(each: _UnderWay, job: Mapping[str, Any]) -> dict[str, Any]:
    """A point of a study that is alone. The processes it starts read the sources anew, so nobody may edit them."""
    found = _attempt(job)
    if (now := code_on_disk(each.study.task.__module__)) != each.code:
        raise TidingsError(
            f"study {each.study.name}: its code was edited while it ran (hash {now}, {each.code} when it began): "
            "give the same command again, and edit nothing meanwhile"
        )
    return found


def _sql(session: SparkSession, rows: pa.Table) -> Sql:
    """Questions over some rows."""
    session.createDataFrame(rows).createOrReplaceTempView("results")

    def ask(query: str) -> list[Row]:
        return [row.asDict(recursive=True) for row in session.sql(query).collect()]

    return ask
