"""Many independent runs as Spark tasks: a function over points, results as they come, on whatever master there is.

One point is one task, so that a long one does not hold up others. Results travel to the driver in an accumulator,
which Spark adds to exactly once per finished task of an action, as soon as that task has ended: so they can be stored
and counted while the rest still runs. Nothing but the driver needs to see the directory where they are stored.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeAlias

from tidings.core.errors import TidingsError

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

Point: TypeAlias = Mapping[str, Any]
Result: TypeAlias = dict[str, Any]
Task: TypeAlias = Callable[[Point], Result]
"""A function of a module that executors can import; the same point gives the same result wherever it runs."""

POLL = 0.5  # seconds between two looks at what has come in
RESERVED = "__failed__"


class SweepFailed(TidingsError):
    """Some points raised; the results of all others were handed over."""


def results(spark: SparkSession, task: Task, points: Sequence[Point]) -> Iterator[list[Result]]:
    """Run ``task`` for every point; yields results a few at a time, in the order in which they end.

    Raises `SweepFailed` at the end if points raised. Whoever leaves early cancels the rest.
    """
    if not points:
        return
    context = spark.sparkContext
    gathered, job = _submit(spark, task, points)
    failed: list[Result] = []
    seen = 0
    try:
        while True:
            over = job.done()
            come = gathered.value[seen:]
            seen += len(come)
            failed += [each for each in come if RESERVED in each]
            if good := [each for each in come if RESERVED not in each]:
                yield good
            if over:
                break
            wait([job], POLL)
    finally:
        if not job.done():
            context.cancelAllJobs()
    if (error := job.exception()) is not None:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        kept = f"{seen} of {len(points)} points had ended and are kept"
        raise SweepFailed(f"Spark gave up ({said}); {kept}, the same command goes on with the rest") from error
    if failed:
        raise SweepFailed(f"{len(failed)} of {len(points)} points failed; the first, {failed[0][RESERVED]}")


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
    job = pool.submit(
        inheritable_thread_target(spark)(chosen.foreach), lambda point: gathered.add([_attempt(task, point)])
    )
    pool.shutdown(wait=False)
    return gathered, job


def _attempt(task: Task, point: Point) -> Result:
    """One task; a point that raises must not take the others with it."""
    try:
        return task(point)
    except Exception:
        return {RESERVED: f"{dict(point)}:\n{traceback.format_exc()}"}
