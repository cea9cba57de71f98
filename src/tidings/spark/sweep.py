"""Many independent runs as Spark tasks: a function over points, results as they come, on whatever master there is.

One point is one task, so that a long one does not hold up others. Results travel to the driver in an accumulator,
which Spark adds to exactly once per finished task of an action, as soon as that task has ended: so they can be stored
and counted while the rest still runs. Nothing but the driver needs to see the directory where they are stored.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from tidings.core.errors import TidingsError

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

Point: TypeAlias = Mapping[str, Any]
Result: TypeAlias = dict[str, Any]
Task: TypeAlias = Callable[[Point], Result]
"""A function of a module that executors can import; the same point gives the same result wherever it runs."""
Version: TypeAlias = Callable[[], str]
"""Names the code that the process which asks has; likewise of a module that executors can import."""

POLL = 0.5  # seconds between two looks at what has come in
FAILED = "__failed__"  # in place of a result: how a point raised
OTHER = "__other__"  # in place of a result: the code of a worker that has another than this process


class SweepFailed(TidingsError):
    """Not every point has a result; those that came were handed over."""


class PointsFailed(SweepFailed):
    """Some points raised; all others have ended well, and so has Spark."""


def results(
    spark: SparkSession, task: Task, points: Sequence[Point], version: Version | None = None
) -> Iterator[list[Result]]:
    """Run ``task`` for every point; yields results a few at a time, in the order in which they end.

    Raises `PointsFailed` at the end if points raised, and `SweepFailed` as soon as a worker turns out to have another
    ``version`` than this process: it does not run its point. Whoever leaves early cancels the rest.
    """
    if not points:
        return
    context = spark.sparkContext
    ours = version() if version is not None else ""
    gathered, job = _submit(spark, partial(_attempt, task, version=version, ours=ours), points)
    failed: list[Result] = []
    seen = 0
    try:
        while True:
            over = job.done()
            come = gathered.value[seen:]
            seen += len(come)
            failed += [each for each in come if FAILED in each]
            if good := [each for each in come if FAILED not in each and OTHER not in each]:
                yield good
            if others := [each[OTHER] for each in come if OTHER in each]:
                raise SweepFailed(
                    f"a worker of Spark has other code (hash {others[0]}) than this command ({ours}): install the same "
                    "version of tidings on all executors, edit nothing while it runs, and give the same command again"
                )
            if over:
                break
            wait([job], POLL)
    finally:
        if not job.done():
            context.cancelAllJobs()
    if (error := job.exception()) is not None:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        kept = f"{seen - len(failed)} of {len(points)} points had ended and are kept, {len(failed)} had failed"
        raise SweepFailed(f"Spark gave up ({said}); {kept}, the same command goes on with the rest") from error
    if failed:
        raise PointsFailed(f"{len(failed)} of {len(points)} points failed; the first, {failed[0][FAILED]}")


def _submit(spark: SparkSession, task: Task, points: Sequence[Point]) -> tuple[Accumulator[list[Result]], Future[None]]:
    """Start the job in a thread of its own."""
    from pyspark import inheritable_thread_target
    from pyspark.accumulators import AccumulatorParam

    class Gathered(AccumulatorParam[list[Result]]):
        def zero(self, value: list[Result]) -> list[Result]:
            return []

        def addInPlace(self, value1: list[Result], value2: list[Result]) -> list[Result]:
            value1.extend(value2)
            return value1

    context = spark.sparkContext
    gathered = context.accumulator([], Gathered())
    chosen = context.parallelize(list(points), len(points))
    pool = ThreadPoolExecutor(1, thread_name_prefix="sweep")
    job = pool.submit(inheritable_thread_target(spark)(chosen.foreach), lambda point: gathered.add([task(point)]))
    pool.shutdown(wait=False)
    return gathered, job


def _attempt(task: Task, point: Point, version: Version | None = None, ours: str = "") -> Result:
    """One task; a point that raises must not take the others with it."""
    try:
        if version is not None and (theirs := version()) != ours:
            return {OTHER: theirs}
        return task(point)
    except Exception:
        return {FAILED: f"{dict(point)}:\n{traceback.format_exc()}"}
