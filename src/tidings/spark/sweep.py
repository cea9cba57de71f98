"""Many independent runs as Spark tasks: a function over points, results as they arrive, on any Spark master.

One point is one task, so that a long one does not delay others. Results travel to the driver in an accumulator, which
Spark adds to exactly once per finished task of an action, as soon as that task has ended. So they can be stored and
counted while the rest still runs. Only the driver needs to see the directory where they are stored.

A point that kills its worker (no memory left, a crash in native code) fails like one that raises, although Spark then
gives up the whole job.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from tidings.core.errors import TidingsError
from tidings.spark.session import said_of

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

Point: TypeAlias = Mapping[str, Any]
Result: TypeAlias = dict[str, Any]
Task: TypeAlias = Callable[[Point], Result]
"""A function of a module that executors can import; the same point gives the same result wherever it runs."""
Version: TypeAlias = Callable[[], str]
"""Names the code that the process which asks has; likewise of a module that executors can import."""
Died: TypeAlias = Callable[[Point, str], Result]
"""From a point whose worker has died, and the reason, to what stands for its result."""

POLL = 0.5  # seconds between two looks at what has come in
DEATHS = 8  # workers that die one after the other while no point ends; ours: then it is not the points
FAILED = "__failed__"  # in place of a result: how a point raised
OTHER = "__other__"  # in place of a result: the code of a worker that has another than this process


class SweepFailed(TidingsError):
    """Not every point has a result; those that came were handed over. ``under_way``: at which points it stopped."""

    def __init__(self, message: str, under_way: Sequence[Point] = ()) -> None:
        super().__init__(message)
        self.under_way = list(under_way)


class PointsFailed(SweepFailed):
    """Some points raised, or killed their workers; all others have ended well, and so has Spark."""


def results(
    spark: SparkSession, task: Task, points: Sequence[Point], version: Version | None = None, died: Died | None = None
) -> Iterator[list[Result]]:
    """Run ``task`` for every point; yields results a few at a time, in the order in which they end, and now and then
    none, so that the caller can store them meanwhile.

    A point whose worker dies is set aside. The others go on, from the other end, since those beside it may be as large;
    then it is tried once more, alone, and if its worker dies again that is its result, as ``died`` makes it of the
    point and the reason, or it has failed. Raises `PointsFailed` at the end if points failed, and `SweepFailed` as soon
    as a worker turns out to have another ``version`` than this process: it does not run its point. A caller that stops
    early cancels the rest.
    """
    sweep = _Sweep(spark, task, points, version)
    aside: list[int] = []
    deaths = 0  # since a point has ended
    while sweep.left:
        others = [at for at in sweep.left if at not in aside]
        turn = (others[::-1] if aside else others) or aside[:1]
        before = len(sweep.left)
        error = yield from sweep.run(turn)
        deaths = deaths + 1 if len(sweep.left) == before else 1
        if error is not None:
            place = _place_of_death(error)
            if place is None or (others and deaths > DEATHS):
                raise sweep.given_up(error, sweep.first(turn) if place is None else [*aside, turn[place]])
            if others:
                aside.append(turn[place])
            elif (made := sweep.bury(turn[place], said_of(error), died)) is not None:
                yield [made]
        aside = [at for at in aside if at in sweep.left]
    if sweep.failed:
        raise PointsFailed(f"{len(sweep.failed)} of {len(points)} points failed; the first, {sweep.failed[0]}")


def _place_of_death(error: BaseException) -> int | None:
    """Which task of a job has lost its worker; None if something else has happened."""
    text = str(error)
    found = re.search(r"Task (\d+) in stage \S+ failed", text)
    return int(found[1]) if found and re.search("exited unexpectedly|ExecutorLostFailure", text) else None


class _Sweep:
    """The points without a result, by their places, in order; and what is known of those that failed."""

    def __init__(self, spark: SparkSession, task: Task, points: Sequence[Point], version: Version | None) -> None:
        self.spark = spark
        self.points = points
        self.left = dict.fromkeys(range(len(points)))
        self.failed: list[str] = []
        self.ours = version() if version is not None else ""
        self.work = partial(_attempt, task, version=version, ours=self.ours)
        self.slots: int = spark.sparkContext.defaultParallelism

    def run(self, turn: Sequence[int]) -> Generator[list[Result], None, BaseException | None]:
        """One job, of some points; returns why Spark has given it up, if it has."""
        gathered, job = _submit(self.spark, self.work, [(at, self.points[at]) for at in turn])
        seen = 0
        try:
            while True:
                over = job.done()
                come = gathered.value[seen:]
                seen += len(come)
                yield self._taken(come)
                if over:
                    return job.exception()
                wait([job], POLL)
        finally:
            if not job.done():
                self.spark.sparkContext.cancelAllJobs()

    def _taken(self, come: Sequence[tuple[int, Result]]) -> list[Result]:
        for at, _ in come:
            del self.left[at]
        if others := [each[OTHER] for _, each in come if OTHER in each]:
            raise SweepFailed(
                f"a worker of Spark has other code (hash {others[0]}) than this command ({self.ours}): install the "
                "same version of tidings on all executors, edit nothing while it runs, and give the same command again"
            )
        self.failed += [each[FAILED] for _, each in come if FAILED in each]
        return [each for _, each in come if FAILED not in each]

    def bury(self, at: int, said: str, died: Died | None) -> Result | None:
        """A point whose worker has died when it had Spark for itself."""
        del self.left[at]
        if died is not None:
            return died(self.points[at], said)
        self.failed.append(f"{named(self.points[at])}: its worker died, and again when it ran alone ({said})")
        return None

    def first(self, turn: Sequence[int]) -> list[int]:
        """Spark hands out tasks in order, so those under way are the first without a result."""
        return [at for at in turn if at in self.left][: self.slots]

    def given_up(self, error: BaseException, stopped: Sequence[int]) -> SweepFailed:
        """With the points at which it has stopped."""
        ended = len(self.points) - len(self.left) - len(self.failed)
        under_way = [self.points[at] for at in stopped]
        return SweepFailed(
            f"Spark gave up ({said_of(error)}); {ended} of {len(self.points)} points had ended and are kept, "
            f"{len(self.failed)} had failed, under way were {'; '.join(named(each) for each in under_way)}. The same "
            "command goes on with the rest",
            under_way,
        )


def named(point: Point) -> str:
    """A point in an error."""
    return str({name: value for name, value in point.items() if not callable(value)})


def _submit(
    spark: SparkSession, task: Task, points: Sequence[tuple[int, Point]]
) -> tuple[Accumulator[list[tuple[int, Result]]], Future[None]]:
    """Start the job in a thread of its own."""
    from pyspark import inheritable_thread_target
    from pyspark.accumulators import AccumulatorParam

    Come: TypeAlias = list[tuple[int, Result]]

    class Gathered(AccumulatorParam[Come]):
        def zero(self, value: Come) -> Come:
            return []

        def addInPlace(self, value1: Come, value2: Come) -> Come:
            value1.extend(value2)
            return value1

    context = spark.sparkContext
    gathered = context.accumulator([], Gathered())
    chosen = context.parallelize(list(points), len(points))
    pool = ThreadPoolExecutor(1, thread_name_prefix="sweep")
    job = pool.submit(
        inheritable_thread_target(spark)(chosen.foreach), lambda each: gathered.add([(each[0], task(each[1]))])
    )
    pool.shutdown(wait=False)
    return gathered, job


def _attempt(task: Task, point: Point, version: Version | None = None, ours: str = "") -> Result:
    """One task; a point that raises must not take the others with it."""
    try:
        if version is not None and (theirs := version()) != ours:
            return {OTHER: theirs}
        return task(point)
    except Exception:
        return {FAILED: f"{named(point)}:\n{traceback.format_exc()}"}
