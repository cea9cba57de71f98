"""Campaigns that are remembered: seeds run here or as Spark tasks, every outcome in a ledger.

A campaign on Spark leaves out the seeds that the same code has run already, so one that was killed goes on where it
stopped; without a master seeds are run again, because a user who asks for a seed by hand wants to see it.
"""

from __future__ import annotations

import datetime
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidings.campaign import outcomes as common
from tidings.campaign.targets import target_of
from tidings.results.code_hash import code
from tidings.results.ledger import Ledger, commit
from tidings.sim.run import Progress

FOLDER = Path("build/ledger")
POLL = 1.0  # seconds between looks at whether something is to be written down
AHEAD = 2  # seeds handed out for each process, so that none waits
SCHEMA = pa.schema(
    [
        pa.field("target", pa.string(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("commit", pa.string(), nullable=False),
        pa.field("code", pa.string(), nullable=False),  # hash of the sources that decide the outcome
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        ("scenario", pa.string()),  # how the seed breaks things: calm, aimed, swarm
        pa.field("verdict", pa.string(), nullable=False),  # good | violated
        pa.field("violations", pa.list_(pa.struct([("invariant", pa.string()), ("detail", pa.string())]))),
        pa.field("faults", pa.map_(pa.string(), pa.int64())),
        pa.field("reports", pa.map_(pa.string(), pa.float64())),
        ("sim_seconds", pa.float64()),
        ("wall_seconds", pa.float64()),
        ("events", pa.int64()),
        ("clients", pa.int64()),
        ("regions", pa.int64()),
        ("hash", pa.string()),  # of the whole trace; null for real processes
    ]
)
COPIED = ("seed", "sim_seconds", "wall_seconds", "events", "clients", "regions", "hash")


def run(
    target: str,
    seeds: range,
    progress: Progress | None = None,
    jobs: int = 1,
    master: str | None = None,
    folder: Path = FOLDER,
) -> dict[str, Any]:
    """Run a campaign and keep its outcomes; the JSON of `tidings check`."""
    code_of(target), commit()  # what this process has imported, whatever is edited while seeds run
    ledger = Ledger(folder, SCHEMA)
    found: list[Mapping[str, Any]] = []
    if master is not None:
        found += known(ledger, target, seeds)
    before = len(found)
    try:
        for come in _outcomes(target, seeds, {each["seed"] for each in found}, jobs, master):
            found += come
            ledger.add(row(target, outcome) for outcome in come)
            if come and progress is not None:
                progress(len(found), len(seeds), f"{sum(bool(each['violations']) for each in found)} seeds violated")
    finally:
        ledger.flush()
    sum_up = getattr(target_of(target).campaign, "summary", common.summary)
    result: dict[str, Any] = sum_up(target, seeds, found)
    return result if master is None else {**result, "already_in_ledger": before}


def _outcomes(
    target: str, seeds: range, done: set[int], jobs: int, master: str | None
) -> Iterator[list[dict[str, Any]]]:
    """Outcomes a few at a time, as seeds end; now and then none, so that those that came are written down."""
    if master is not None:
        yield from _on_spark(master, target, [seed for seed in seeds if seed not in done])
    elif jobs == 1 or not target_of(target).simulated:
        for seed in seeds:
            yield [attempt(target, seed)]
    else:
        yield from _in_processes(target, seeds, jobs)


def _in_processes(target: str, seeds: Sequence[int], jobs: int) -> Iterator[list[dict[str, Any]]]:
    """A process that dies takes its pool with it. Those that may have been under way are run again, each in a process
    of its own: one that dies there is at fault, and the others go on."""
    left = dict.fromkeys(seeds)
    while left:
        try:
            for come in _pool(target, list(left), jobs):
                for outcome in come:
                    del left[outcome["seed"]]
                yield come
        except BrokenProcessPool:
            for seed in list(left)[: AHEAD * jobs]:
                try:
                    for come in _pool(target, [seed], 1):
                        yield come
                except BrokenProcessPool as error:
                    yield [killed(seed, str(error))]
                del left[seed]


def _pool(target: str, seeds: Sequence[int], jobs: int) -> Iterator[list[dict[str, Any]]]:
    """Raises `BrokenProcessPool` when a process has died; of those without an outcome the first were handed out."""
    pool = ProcessPoolExecutor(jobs, get_context("spawn"))
    queue, pending = iter(seeds), set[Future[dict[str, Any]]]()
    try:
        while True:
            pending |= {pool.submit(attempt, target, seed) for seed in islice(queue, AHEAD * jobs - len(pending))}
            if not pending:
                return
            ended, pending = wait(pending, POLL, FIRST_COMPLETED)
            broken = [each for each in ended if isinstance(each.exception(), BrokenProcessPool)]
            yield [each.result() for each in ended if each not in broken]
            if broken:
                raise BrokenProcessPool("it ended without a word")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _on_spark(master: str, target: str, seeds: list[int]) -> Iterator[list[dict[str, Any]]]:
    from tidings.spark.session import spark
    from tidings.spark.sweep import results

    if seeds:
        with spark(master, "tidings check") as session:
            points = [{"target": target, "seed": seed} for seed in seeds]
            yield from results(session, _task, points, partial(code_of, target), _died)


def _task(point: Mapping[str, Any]) -> dict[str, Any]:
    return attempt(point["target"], point["seed"])


def _died(point: Mapping[str, Any], said: str) -> dict[str, Any]:
    return killed(point["seed"], said)


def killed(seed: int, said: str) -> dict[str, Any]:
    """The outcome of a seed that has killed the process that ran it."""
    return _broken(seed, "process", f"the process that ran this seed died, and again when it ran alone: {said}", 0.0)


def _broken(seed: int, invariant: str, detail: str, seconds: float) -> dict[str, Any]:
    return {
        **{"seed": seed, "violations": [(invariant, detail)], "faults": {}, "reports": {}, "story": []},
        **dict.fromkeys(("sim_seconds", "events", "receipts", "clients", "regions"), 0),  # it has proved nothing
        "wall_seconds": seconds,
    }


def attempt(target: str, seed: int) -> dict[str, Any]:
    """Run one seed. One that raises is violated: it counts, the others go on, and it can be replayed."""
    run_seed: Callable[[int], dict[str, Any]] = target_of(target).campaign.run_seed
    began = time.perf_counter()
    try:
        return run_seed(seed)
    except Exception as problem:
        seconds = time.perf_counter() - began
        return _broken(seed, "exception", f"{problem!r}\n{traceback.format_exc()}", seconds)


def code_of(target: str) -> str:
    """A hash of the code that decides what seeds of a target do."""
    chosen = target_of(target)
    return code(chosen.module, *chosen.tested)


def row(target: str, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """An outcome as the ledger keeps it."""
    return {
        "target": target,
        "commit": commit(),
        "code": code_of(target),
        "at": datetime.datetime.now(datetime.UTC),
        "scenario": outcome.get("mood"),
        "verdict": "violated" if outcome["violations"] else "good",
        "violations": [{"invariant": invariant, "detail": detail} for invariant, detail in outcome["violations"]],
        "faults": list(outcome["faults"].items()),
        "reports": list(outcome["reports"].items()),
        **{name: outcome.get(name) for name in COPIED},
    }


def known(ledger: Ledger, target: str, seeds: range) -> Iterable[dict[str, Any]]:
    """Outcomes of this very code that the ledger has, one per seed."""
    found, current = {}, code_of(target)
    for each in ledger.table().to_pylist(maps_as_pydicts="strict"):
        if each["target"] == target and each["code"] == current and each["seed"] in seeds:
            violations = [(one["invariant"], one["detail"]) for one in each["violations"]]
            found[each["seed"]] = {**each, "violations": violations, "mood": each["scenario"]}
    return found.values()


def totals(folder: Path = FOLDER) -> dict[str, Any]:
    """All seeds ever run, summed up (the JSON of `tidings check --ledger`); a seed is as good as when it last ran."""
    table = Ledger(folder, SCHEMA).table()
    by_target: dict[str, dict[str, Any]] = {}
    last: dict[tuple[str, int], Mapping[str, Any]] = {}
    violated: set[tuple[str, int]] = set()
    for each in table.to_pylist(maps_as_pydicts="strict"):
        one = by_target.setdefault(
            each["target"], {"seeds": set(), "runs": 0, "violated": 0, "hours_simulated": 0.0, "faults": Counter()}
        )
        one["seeds"].add(each["seed"])
        one["runs"] += 1
        one["hours_simulated"] += (each["sim_seconds"] or 0.0) / 3600
        one["faults"].update(each["faults"])
        last[each["target"], each["seed"]] = each
        if each["verdict"] == "violated":
            violated.add((each["target"], each["seed"]))
    failures = []
    for (target, seed), each in last.items():
        by_target[target]["violated"] += each["verdict"] == "violated"
        outcome = {"seed": seed, "violations": [(one["invariant"], one["detail"]) for one in each["violations"]]}
        found = common.described(target, outcome)
        failures += [{"target": target, "commit": each["commit"], **one} for one in found]
    return {
        "seeds": len(last),
        "runs": table.num_rows,
        "violations": len(failures),
        "failures": failures,
        "mended": sum(last[seed]["verdict"] != "violated" for seed in violated),
        "by_target": {
            name: {**one, "seeds": len(one["seeds"]), "hours_simulated": round(one["hours_simulated"], 3)}
            for name, one in sorted(by_target.items())
        },
        "commits": sorted(set(table["commit"].to_pylist())),
    }
