"""Mutation tests of the judges: a checker is trusted because it catches bugs that were put in on purpose.

*Planted* bugs (planted_bugs.py of each campaign) are mistakes that people make. The campaign must catch all of them.
*Generated* mutants negate the conditions of the protocol files, one at a time. They are a report and no gate: it tells
who changes a protocol which of its conditions the campaign does not notice.

A mutant runs in a process of its own. It faces seeds of the campaign until the first one with a violation, an
exception, or more than its share of processor time. Before that, the seeds run without any mutant. A seed that fails
then proves nothing and is left out. The others note which conditions they evaluate, because a negated condition makes
no difference to a seed that never evaluates it.

Outcomes are kept in build/mutants.jsonl under a hash of every source that took part: an interrupted run continues, a
changed one starts again. The seed that caught a mutant in an earlier run is tried first.
"""

from __future__ import annotations

import ast
import hashlib
import os
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import msgspec

from tidings.campaign.mutation.conditions import conditions, switched
from tidings.core.errors import BadInput, TidingsError
from tidings.results.code_hash import code_on_disk

Progress = Callable[[int, int, str], None]

ROOT = Path(__file__).parents[2]
RESULTS = Path("build/mutants.jsonl")
SEEDS = 100  # of the campaign, that a planted bug must survive to escape
FACED = 6  # seeds that a generated mutant faces; ours: most that are caught at all are caught by the first few
SLOWER = 8  # ours: a mutant that takes so many times the usual seconds of a seed hangs, for all that a user can tell
LEAST_LIMIT = 12.0  # seconds; ours, because a short median must not make a slow seed look like a hanging one
HOURS = 4  # of waiting for a process that uses no processor time; ours: then something else is wrong
MEMORY = 4 << 30  # bytes; ours: twenty times what a seed needs
NOT_MUTATED = frozenset({"__init__", "kernel", "messages", "chain_config"})  # declarations, hardly a condition in them
ENDED = "ended "  # the worker says so when a fork of it has ended, with the exit code
STOPPED = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGALRM)  # says nothing about a mutant
MOODS = ("calm", "aimed", "swarm")  # of seeds, the most demanding first
CAMPAIGN = "tidings.campaign.sprinkler.campaign"
MODULE = "tidings.campaign.mutation.mutants"


class Case(msgspec.Struct, frozen=True):
    """A mutant: a module below tidings with another source, or with one of its conditions negated."""

    id: str
    module: str
    source: str = ""  # of a planted bug
    spot: int | None = None  # of a generated mutant: the number of the condition in its module
    campaign: str = CAMPAIGN  # that is to catch it


NOTHING = Case("", "")
"""No mutant at all."""


class MutantOrder(msgspec.Struct, frozen=True):
    """What a fork is to do."""

    case: Case
    seeds: list[int]
    limit: float  # seconds of processor time per seed
    stop: bool  # after the first violation


class MutantVerdict(msgspec.Struct, frozen=True):
    """What one seed showed: the invariants that were violated, "exception", "timeout" or "crash", if any.

    A machine's own invariants count as "check"; a "crash" is that of a machine or of the whole process.
    """

    seed: int
    by: list[str]
    detail: str
    seconds: float
    reached: dict[str, list[int]] = {}  # without a mutant: the conditions that were evaluated, by module


class Outcome(msgspec.Struct, frozen=True):
    """A line of the results."""

    key: str
    id: str
    verdicts: list[MutantVerdict]


# --- mutants ----------------------------------------------------------------------------------------------


def bugs(campaign: str = CAMPAIGN) -> Any:
    """The module with the planted bugs of a campaign, beside it."""
    return import_module(f"{campaign.rpartition('.')[0]}.planted_bugs")


def planted(campaign: str = CAMPAIGN) -> list[Case]:
    """The bugs that were put in by hand."""
    sources = [(each, each.apply(module_path(each.module).read_text())) for each in bugs(campaign).PLANTED]
    return [Case(each.id, each.module, source, campaign=campaign) for each, source in sources]


def generated(campaign: str = CAMPAIGN) -> list[Case]:
    """Every condition of the protocol files, negated."""
    cases: list[Case] = []
    for module in mutated(campaign):
        names = conditions(module, module_path(module).read_text())
        cases += [Case(name, module, spot=spot, campaign=campaign) for spot, name in enumerate(names)]
    return cases


def mutated(campaign: str = CAMPAIGN) -> list[str]:
    """The modules of which the generated mutants are made."""
    folders = [ROOT / folder for folder in bugs(campaign).MUTATED]
    paths = [path for folder in folders for path in folder.rglob("*.py") if path.stem not in NOT_MUTATED]
    return sorted([".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths])


def module_path(module: str) -> Path:
    """Where the source of a module below tidings is."""
    return ROOT / f"{module.replace('.', '/')}.py"


# --- the worker: a process that forks for each mutant -------------------------------------------------------


class _Loader(SourceFileLoader):
    """Loads a module from a source of our own, with a name in it from the beginning."""

    def __init__(self, name: str, path: str, source: str | ast.Module, condition: Callable[[int, Any], Any]) -> None:
        super().__init__(name, path)
        self.source = source
        self.condition = condition

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["_condition"] = self.condition
        super().exec_module(module)


class _Mutator(MetaPathFinder):
    """Finds modules with a source of our own before anybody else does, notes conditions, and negates one of them."""

    def __init__(self, sources: Mapping[str, str | ast.Module]) -> None:
        self.sources = sources
        self.negated: tuple[str, int | None] = ("", None)  # the module and the number of the condition
        self.reached: dict[str, set[int]] = {name: set() for name in sources}
        assert not any(f"tidings.{name}" in sys.modules for name in sources)
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        name = fullname.removeprefix("tidings.")
        if name not in self.sources or name == fullname:
            return None

        def condition(spot: int, value: Any) -> Any:
            self.reached[name].add(spot)
            return not value if self.negated == (name, spot) else value

        loader = _Loader(fullname, str(module_path(name)), self.sources[name], condition)
        return spec_from_file_location(fullname, loader.path, loader=loader)

    def take(self) -> dict[str, list[int]]:
        """The conditions that were evaluated since the last call."""
        found = {name: sorted(spots) for name, spots in self.reached.items() if spots}
        for spots in self.reached.values():
            spots.clear()
        return found


class _TooLong(BaseException):
    """Not an Exception, so that no handler on the way takes it for one of its own."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise _TooLong


def main() -> None:
    """Read a planted bug, or nothing, then orders; say a verdict per line, and when the fork for an order has ended."""
    case = msgspec.json.decode(sys.stdin.buffer.readline(), type=Case)
    if case.source:  # it is imported in the fork: it may hang or fail
        mutator = _Mutator({case.module: case.source})
    else:
        mutator = _Mutator({name: switched(module_path(name).read_text()) for name in mutated(case.campaign)})
        import_module(case.campaign)
    for line in sys.stdin.buffer:
        print(f"{ENDED}{_fork(msgspec.json.decode(line, type=MutantOrder), mutator)}", flush=True)


def _fork(order: MutantOrder, mutator: _Mutator) -> int:
    """Let a fork of this process run the seeds of an order; returns how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.setitimer(signal.ITIMER_REAL, 3600.0 * HOURS)  # its default action ends a process that waits for nothing
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _too_long)
    mutator.negated = order.case.module, order.case.spot
    for seed in order.seeds:
        verdict = _face(order.case.campaign, seed, order.limit)
        reached = mutator.take() if not order.case.module else {}
        print(msgspec.json.encode(msgspec.structs.replace(verdict, reached=reached)).decode(), flush=True)
        if verdict.by and order.stop:
            break
    os._exit(0)


def _face(campaign: str, seed: int, limit: float) -> MutantVerdict:
    """Let one seed happen. The limit is on processor time, because the machine may be busy with other things."""
    began = time.process_time()
    hard = int(began + 2 * limit) + 1  # for what no handler can interrupt: the kernel ends the process
    resource.setrlimit(resource.RLIMIT_CPU, (hard, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        found: list[tuple[str, str]] = import_module(campaign).run_seed(seed)["violations"]
    except _TooLong:
        found = [("timeout", f"more than {limit:.0f} seconds")]
    except Exception as problem:
        found = [("exception", repr(problem))]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    detail = f"{found[0][0]}: {found[0][1]}"[:300] if found else ""
    return MutantVerdict(seed, sorted({invariant for invariant, _ in found}), detail, time.process_time() - began)


# --- the other end of a worker --------------------------------------------------------------------------------


class Worker:
    """A process that runs one planted bug, or nothing and generated mutants."""

    def __init__(self, case: Case = NOTHING) -> None:
        paths = [str(ROOT.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", MODULE]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
        self._tell(case)

    def face(self, case: Case, seeds: Sequence[int], limit: float, *, stop: bool = True) -> list[MutantVerdict]:
        """Run a mutant; what its seeds showed, up to the first violation."""
        self._tell(MutantOrder(msgspec.structs.replace(case, source=""), list(seeds), limit, stop))
        verdicts: list[MutantVerdict] = []
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith(ENDED.encode()):
                verdicts.append(msgspec.json.decode(line, type=MutantVerdict))
                continue
            status = int(line[len(ENDED) :])
            if -status in STOPPED:
                break
            if status:  # of the seed that it was about to judge
                seed = seeds[min(len(verdicts), len(seeds) - 1)]
                verdicts.append(MutantVerdict(seed, ["crash"], f"exit code {status}", limit))
            return verdicts
        raise TidingsError(f"the process of mutant {case.id!r} was stopped from outside; run again to continue")

    def close(self) -> None:
        """Let it end."""
        self._process.communicate(timeout=60)

    def _tell(self, what: Case | MutantOrder) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(what) + b"\n")
        self._process.stdin.flush()


def hunt(case: Case, seeds: Sequence[int], limit: float, *, stop: bool = True) -> list[MutantVerdict]:
    """Run a mutant, or nothing, in a process of its own; what its seeds showed, up to the first violation."""
    worker = Worker(case)
    try:
        return worker.face(case, seeds, limit, stop=stop)
    finally:
        worker.close()


# --- many mutants -----------------------------------------------------------------------------------------


class Results:
    """Outcomes on disk, one line each, under a key that changes with anything they depend on."""

    def __init__(self, path: Path, seeds: Sequence[int], campaign: str = "") -> None:
        self.path = path
        self.known: dict[str, list[MutantVerdict]] = {}
        self.killers: dict[str, int] = {}  # seeds that caught a mutant last time, whatever has changed since
        self._base = hashlib.blake2b(repr(list(seeds)).encode(), digest_size=16)
        self._base.update(code_on_disk(campaign or CAMPAIGN).encode())
        if path.exists():
            for line in path.read_bytes().splitlines():
                with suppress(msgspec.DecodeError):  # a run was interrupted while it wrote
                    self._note(msgspec.json.decode(line, type=Outcome))

    def of(self, case: Case) -> list[MutantVerdict] | None:
        """The outcome of a mutant; None if it has not run since the last change."""
        return self.known.get(self._key(case))

    def add(self, case: Case, verdicts: list[MutantVerdict]) -> None:
        """Keep an outcome."""
        outcome = Outcome(self._key(case), case.id, verdicts)
        self._note(outcome)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as out:
            out.write(msgspec.json.encode(outcome) + b"\n")

    def _key(self, case: Case) -> str:
        hashed = self._base.copy()
        hashed.update(msgspec.json.encode(case))
        return hashed.hexdigest()

    def _note(self, outcome: Outcome) -> None:
        self.known[outcome.key] = outcome.verdicts
        caught = _catch(outcome.verdicts)
        if caught is not None:
            self.killers[outcome.id] = caught.seed


class Trials:
    """The seeds that mutants face, as they went without one."""

    def __init__(self, verdicts: Sequence[MutantVerdict]) -> None:
        self.fit = [verdict for verdict in verdicts if not verdict.by]
        self.unfit = sorted([verdict.seed for verdict in verdicts if verdict.by])
        self.limit = max(LEAST_LIMIT, SLOWER * statistics.median([verdict.seconds for verdict in verdicts]))

    def seeds(self, case: Case, killer: int | None) -> list[int]:
        """The seeds that a mutant faces: those in which it can make a difference, one that caught it before first."""
        fit = [trial for trial in self.fit if case.spot is None or case.spot in trial.reached.get(case.module, ())]
        seeds = [trial.seed for trial in sorted(fit, key=lambda trial: trial.seed != killer)]
        return seeds if case.spot is None else seeds[:FACED]


def run(
    target: str, progress: Progress | None = None, jobs: int = 1, *, seeds: int = SEEDS, results: Path = RESULTS
) -> dict[str, Any]:
    """Run all mutants, some at a time, and sum up (the JSON of `tidings check --mutants`)."""
    from tidings.campaign.targets import target_of

    campaign = target_of(target).module
    if target_of(target).mutants != MODULE:
        raise BadInput(f"target {target!r} has no mutants here")
    mine, made = planted(campaign), generated(campaign)
    order = in_turns(range(seeds), campaign)
    store = Results(results, order, campaign)
    nothing = msgspec.structs.replace(NOTHING, campaign=campaign)
    trials = _baseline(nothing, order, store, jobs)
    local = threading.local()
    workers: list[Worker] = []

    def face(case: Case) -> list[MutantVerdict]:
        faced = trials.seeds(case, store.killers.get(case.id))
        if case.source or not faced:
            return hunt(case, faced, trials.limit) if faced else []
        if not hasattr(local, "worker"):
            local.worker = Worker(nothing)
            workers.append(local.worker)
        worker: Worker = local.worker
        return worker.face(case, faced, trials.limit)

    for kind, cases in (("planted", mine), ("generated", made)):
        left = [case for case in cases if store.of(case) is None]
        with ThreadPoolExecutor(jobs) as pool:
            futures = {pool.submit(face, case): case for case in left}
            try:
                for at, future in enumerate(as_completed(futures), 1):
                    store.add(futures[future], future.result())
                    if progress is not None:
                        progress(len(cases) - len(left) + at, len(cases), kind)
            finally:
                pool.shutdown(cancel_futures=True)
                for worker in workers:
                    worker.close()
                workers.clear()
    outcomes = {case.id: store.of(case) or [] for case in (*mine, *made)}
    return summary(
        target, [case.id for case in mine], [case.id for case in made], outcomes, trials.unfit, judges(campaign)
    )


def in_turns(seeds: Iterable[int], campaign: str = CAMPAIGN) -> list[int]:
    """The seeds with their kinds taking turns, so that every kind is among the first, and moods among kinds."""
    kind_of: Callable[[int], tuple[str, ...]] = import_module(campaign).kind_of
    kinds: dict[tuple[str, ...], list[int]] = {}
    for seed in seeds:
        kinds.setdefault(kind_of(seed), []).append(seed)
    moods = [sorted([kind for kind in kinds if kind[0] == mood], key=lambda kind: kind[::-1]) for mood in MOODS]
    turns = zip_longest(*[kinds[kind] for among in zip_longest(*moods) for kind in among if kind is not None])
    return [seed for turn in turns for seed in turn if seed is not None]


def _baseline(nothing: Case, order: Sequence[int], store: Results, jobs: int) -> Trials:
    """Let all seeds happen without any mutant."""
    verdicts = store.of(nothing)
    if verdicts is None:
        with ThreadPoolExecutor(jobs) as pool:
            parts = [order[at::jobs] for at in range(min(jobs, len(order)))]
            runs = list(pool.map(lambda part: hunt(nothing, part, 60.0 * SLOWER, stop=False), parts))
        verdicts = sorted([verdict for each in runs for verdict in each], key=lambda each: order.index(each.seed))
        broken = [verdict for verdict in verdicts if "crash" in verdict.by]
        if broken:
            raise TidingsError(f"the campaign fails without any mutant, mend that first: {broken[0].detail}")
        store.add(nothing, verdicts)
    return Trials(verdicts)


def _catch(verdicts: Sequence[MutantVerdict]) -> MutantVerdict | None:
    """The verdict that caught a mutant, if one did."""
    return next((verdict for verdict in verdicts if verdict.by), None)


def summary(
    target: str,
    mine: Sequence[str],
    made: Sequence[str],
    outcomes: Mapping[str, Sequence[MutantVerdict]],
    unfit: Sequence[int],
    judging: Sequence[str],
) -> dict[str, Any]:
    """The result, and under "broken" all that does not hold of the planted bugs."""
    found = {name: _catch(verdicts) for name, verdicts in outcomes.items()}
    escaped = [name for name in mine if found[name] is None]
    survivors = [{"where": name, "why": _why(outcomes[name])} for name in made if found[name] is None]
    by: Counter[str] = Counter(dict.fromkeys(judging, 0))
    for name in mine:
        verdict = found[name]
        by.update(verdict.by if verdict else ())
    broken = [f"planted {name} escaped" for name in escaped]
    broken += [f"{name} has caught no planted bug" for name in judging if not by[name]]
    broken += [f"seed {seed} fails without any mutant" for seed in unfit]
    return {
        "target": target,
        "mutants": len(mine),
        "caught": len(mine) - len(escaped),
        "escaped": escaped,
        "planted": [_described(name, found[name]) for name in mine],
        "generated": {"mutants": len(made), "caught": len(made) - len(survivors), "survivors": survivors},
        "by_invariant": dict(sorted(by.items())),
        "broken": broken,
    }


def _why(verdicts: Sequence[MutantVerdict]) -> str:
    """What is known of a generated mutant that was not caught."""
    return f"{len(verdicts)} seeds went well with it" if verdicts else "no seed evaluates the condition"


def _described(name: str, verdict: MutantVerdict | None) -> dict[str, Any]:
    if verdict is None:
        return {"id": name, "seed": None, "by": [], "detail": ""}
    return {"id": name, "seed": verdict.seed, "by": verdict.by, "detail": verdict.detail}


def judges(campaign: str = CAMPAIGN) -> Sequence[str]:
    """Everything that must have caught a planted bug."""
    found: Sequence[str] = bugs(campaign).JUDGES
    return found


if __name__ == "__main__":
    main()
