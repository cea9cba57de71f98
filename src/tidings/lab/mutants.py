"""Who judges the judges: a checker is trusted because it catches bugs that were put in on purpose.

Two kinds of mutant: the *planted* ones (lab/planted.py) are mistakes people make; the *generated* ones negate, one at
a time, every comparison and every guard of the protocol files, epoch tests included. A mutant runs in a process of its
own, in which its module is compiled from the mutated source before anything imports it. It faces the seeds of the
fault campaign until the first one with a violation, an exception, or more than its share of processor time (a mutant
that hangs is caught). Kinds of seed take turns (calm, each aimed fault, mixtures): for most mutants a few are enough.

A seed that fails without any mutant proves nothing and is left out. All planted mutants must be caught, nine in ten of
the generated ones, and each that survives needs a reason in survivors.toml why it is equivalent. Outcomes are written
to build/mutants.jsonl under a hash of every source that took part: an interrupted run goes on, a changed one does not.
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
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec

from tidings.core.errors import BadInput, TidingsError
from tidings.lab.planted import PLANTED

Progress = Callable[[int, int, str], None]

ROOT = Path(__file__).parents[1]
RESULTS = Path("build/mutants.jsonl")
SEEDS = 100  # of the campaign, that a mutant must survive to count as a survivor
CAUGHT_SHARE = 0.9  # of the generated mutants
SLOWER = 8  # ours: a mutant that takes so many times the usual seconds of a seed hangs, for all that a user can tell
LEAST_LIMIT = 20.0  # seconds; ours, because a short median must not make a slow seed look like a hanging one
MEMORY = 4 << 30  # bytes; ours: twenty times what a seed needs
NOT_MUTATED = frozenset({"__init__", "kernel", "messages", "membership"})  # declarations, hardly a guard in them
STOPPED = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)  # says nothing about a mutant
MOODS = ("calm", "aimed", "swarm")  # of seeds, the most demanding first
JUDGED = ("core", "protocols", "sim", "check", "lab/campaign.py", "lab/seeds.py")  # what an outcome depends on


class Case(msgspec.Struct, frozen=True):
    """A mutant ready to run: a module below tidings and its mutated source; "" and "" for none at all."""

    id: str
    module: str
    source: str


class Order(msgspec.Struct, frozen=True):
    """What a worker process is told."""

    case: Case
    seeds: list[int]
    limit: float  # seconds of processor time per seed
    stop: bool  # after the first violation


class Verdict(msgspec.Struct, frozen=True):
    """What one seed showed: the invariants that were violated, "exception", "timeout" or "crash", if any.

    A machine's own invariants count as "check"; a "crash" is that of a machine or of the whole process.
    """

    seed: int
    by: list[str]
    detail: str
    seconds: float


# --- mutants ----------------------------------------------------------------------------------------------


def planted() -> list[Case]:
    """The bugs that were put in by hand."""
    return [Case(each.id, each.module, each.apply(module_path(each.module).read_text())) for each in PLANTED]


def generated() -> list[Case]:
    """Every guard and comparison of the protocol files, negated one at a time."""
    names = sorted(path.stem for path in (ROOT / "protocols").glob("*.py") if path.stem not in NOT_MUTATED)
    return [
        case for name in names for case in negations(f"protocols.{name}", module_path(f"protocols.{name}").read_text())
    ]


def negations(module: str, source: str) -> list[Case]:
    """The negations of one module; each is named by file, function and expression, with a number if it recurs."""
    found = _Conditions()
    found.visit(ast.parse(source))
    seen: Counter[str] = Counter()
    cases = []
    for function, node in found.conditions:
        where = f"{module.rpartition('.')[2]}.py:{function}:{ast.unparse(node)}"
        seen[where] += 1
        name = where if seen[where] == 1 else f"{where}#{seen[where]}"
        cases.append(Case(name, module, _negated(source, node)))
    return cases


class _Conditions(ast.NodeVisitor):
    """Collects conditions in the order of the source. Assertions and ``check`` are judges, and left alone."""

    def __init__(self) -> None:
        self.conditions: list[tuple[str, ast.expr]] = []
        self._scope: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name != "check":
            self._inside(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        self._guard(node.test)
        self.generic_visit(node)

    visit_While = visit_IfExp = visit_If

    def visit_match_case(self, node: ast.match_case) -> None:
        if node.guard is not None:
            self._guard(node.guard)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._guard(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        self._guard(node)  # again, if it is a whole guard, which counts once
        self.generic_visit(node)

    def _guard(self, node: ast.expr) -> None:
        while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            node = node.operand  # the negation of "not x" is that of x
        if all(known is not node for _, known in self.conditions):
            self.conditions.append((".".join(self._scope) or "module", node))

    def _inside(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()


def _negated(source: str, node: ast.expr) -> str:
    """The source with one expression negated."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)  # columns count bytes
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    lo, hi = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    text = source.encode()
    return (text[:lo] + b"(not (" + text[lo:hi] + b"))" + text[hi:]).decode()


def module_path(module: str) -> Path:
    """Where the source of a module below tidings is."""
    return ROOT / f"{module.replace('.', '/')}.py"


# --- the worker: one mutant in a process of its own -------------------------------------------------------


class _Loader(SourceFileLoader):
    """Loads a module from a source of our own."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec")


class _Finder(MetaPathFinder):
    """Finds the mutated module before anybody else does."""

    def __init__(self, case: Case) -> None:
        self.name = f"tidings.{case.module}"
        self.case = case

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        file = str(module_path(self.case.module))
        return spec_from_file_location(fullname, file, loader=_Loader(fullname, file, self.case.source))


class _TooLong(BaseException):
    """Not an Exception, so that no handler on the way takes it for one of its own."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise _TooLong


def _work(order: Order) -> Iterator[Verdict]:
    """Run the seeds of an order in this process, in which nothing has imported the module yet."""
    if order.case.module:
        assert f"tidings.{order.case.module}" not in sys.modules
        sys.meta_path.insert(0, _Finder(order.case))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _too_long)
    for seed in order.seeds:
        verdict = _face(seed, order.limit)
        yield verdict
        if verdict.by and order.stop:
            return


def _face(seed: int, limit: float) -> Verdict:
    """Let one seed happen. The limit is on processor time, because the machine may be busy with other things."""
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        from tidings.lab import campaign

        found: list[tuple[str, str]] = campaign.run_seed(seed)["violations"]
    except _TooLong:
        found = [("timeout", f"more than {limit:.0f} seconds")]
    except Exception as problem:
        found = [("exception", repr(problem))]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    detail = f"{found[0][0]}: {found[0][1]}"[:300] if found else ""
    return Verdict(seed, sorted({invariant for invariant, _ in found}), detail, time.process_time() - began)


def hunt(case: Case, seeds: Sequence[int], limit: float, *, stop: bool = True) -> list[Verdict]:
    """Run a mutant in a fresh process; what its seeds showed, up to the first violation."""
    order = msgspec.json.encode(Order(case, list(seeds), limit, stop))
    paths = [str(ROOT.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tidings.lab.mutants"]
    patience = 4 * limit * (len(seeds) + 1)  # only for what even a signal cannot interrupt
    problem = ""
    try:
        done = subprocess.run(command, input=order, env=environment, capture_output=True, timeout=patience, check=False)
        printed = done.stdout
        if -done.returncode in STOPPED:
            raise TidingsError(f"the process of mutant {case.id} was stopped from outside; run again to continue")
        if done.returncode:
            problem = f"exit code {done.returncode}: {done.stderr.decode(errors='replace').strip()[-300:]}"
    except subprocess.TimeoutExpired as late:
        printed, problem = late.stdout or b"", f"no answer after {patience:.0f} seconds"
    verdicts = [msgspec.json.decode(line, type=Verdict) for line in printed.splitlines()]
    if problem:
        verdicts.append(Verdict(seeds[min(len(verdicts), len(seeds) - 1)], ["crash"], problem, limit))
    return verdicts


# --- many mutants -----------------------------------------------------------------------------------------


class Results:
    """Outcomes on disk, one line each, under a key that changes with anything they depend on."""

    def __init__(self, path: Path, seeds: Sequence[int]) -> None:
        self.path = path
        self.known: dict[str, list[Verdict]] = {}
        self._base = hashlib.blake2b(repr(list(seeds)).encode(), digest_size=16)
        for name in JUDGED:
            for source in sorted((ROOT / name).rglob("*.py")) or [ROOT / name]:
                self._base.update(f"{source.relative_to(ROOT)}\0".encode() + source.read_bytes())
        if path.exists():
            for line in path.read_bytes().splitlines():
                with suppress(msgspec.DecodeError):  # a run was interrupted while it wrote
                    key, verdicts = msgspec.json.decode(line, type=tuple[str, list[Verdict]])
                    self.known[key] = verdicts

    def key(self, case: Case) -> str:
        """What the outcome of a mutant is kept under."""
        hashed = self._base.copy()
        hashed.update(f"{case.module}\0{case.source}".encode())
        return hashed.hexdigest()

    def add(self, case: Case, verdicts: list[Verdict]) -> None:
        """Keep an outcome."""
        key = self.key(case)
        self.known[key] = verdicts
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as out:
            out.write(msgspec.json.encode((key, verdicts)) + b"\n")


def run(
    target: str, progress: Progress | None = None, jobs: int = 1, *, seeds: int = SEEDS, results: Path = RESULTS
) -> dict[str, Any]:
    """Run all mutants, some at a time, and sum up (the JSON of `tidings check --mutants`)."""
    from tidings.lab import campaign

    if target not in campaign.TARGETS:
        raise BadInput(f"target {target!r} is not built yet; there are: {', '.join(campaign.TARGETS)}")
    mine, made = planted(), generated()
    order = in_turns(range(seeds))
    store = Results(results, order)
    fit, limit = _baseline(order, store, jobs)
    outcomes = {case.id: store.known.get(store.key(case)) for case in (*mine, *made)}
    waiting = [case for case in (*mine, *made) if outcomes[case.id] is None]
    caught = sum(_catch(each) is not None for each in outcomes.values() if each)
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(hunt, case, fit, limit): case for case in waiting}
        try:
            for at, future in enumerate(as_completed(futures), len(outcomes) - len(waiting) + 1):
                case, verdicts = futures[future], future.result()
                store.add(case, verdicts)
                outcomes[case.id] = verdicts
                caught += _catch(verdicts) is not None
                if progress is not None:
                    progress(at, len(outcomes), f"{at - caught} of {at} mutants not caught")
        finally:
            pool.shutdown(cancel_futures=True)
    found = {name: _catch(verdicts or []) for name, verdicts in outcomes.items()}
    unfit = sorted(set(order) - set(fit))
    return summary(target, [case.id for case in mine], [case.id for case in made], found, unfit)


def in_turns(seeds: Iterable[int]) -> list[int]:
    """The seeds with their kinds taking turns, so that every kind is among the first."""
    from tidings.lab.seeds import Plan

    kinds: dict[tuple[str, ...], list[int]] = {}
    for seed in seeds:
        kinds.setdefault(Plan(seed).kind, []).append(seed)
    turns = zip_longest(*[kinds[kind] for kind in sorted(kinds, key=lambda kind: (MOODS.index(kind[0]), kind))])
    return [seed for turn in turns for seed in turn if seed is not None]


def _baseline(order: Sequence[int], store: Results, jobs: int) -> tuple[list[int], float]:
    """Without any mutant: the seeds that pass, and how many seconds a seed may take."""
    nothing = Case("", "", "")
    verdicts = store.known.get(store.key(nothing))
    if verdicts is None:
        with ThreadPoolExecutor(jobs) as pool:
            parts = [order[at::jobs] for at in range(min(jobs, len(order)))]
            runs = pool.map(lambda part: hunt(nothing, part, 60.0 * SLOWER, stop=False), parts)
            verdicts = [verdict for each in runs for verdict in each]
        broken = [verdict for verdict in verdicts if "crash" in verdict.by]
        if broken:
            raise TidingsError(f"the campaign fails without any mutant, mend that first: {broken[0].detail}")
        store.add(nothing, verdicts)
    passed = {verdict.seed for verdict in verdicts if not verdict.by}
    limit = max(LEAST_LIMIT, SLOWER * statistics.median([verdict.seconds for verdict in verdicts]))
    return [seed for seed in order if seed in passed], limit


def _catch(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The verdict that caught a mutant, if one did."""
    return next((verdict for verdict in verdicts if verdict.by), None)


def summary(
    target: str, mine: list[str], made: list[str], found: dict[str, Verdict | None], unfit: list[int]
) -> dict[str, Any]:
    """The result, and under "broken" all that does not hold of it."""
    reasons = equivalents()
    escaped = [name for name in mine if found[name] is None]
    survivors = [{"where": name, "why": reasons.get(name, "")} for name in made if found[name] is None]
    by: Counter[str] = Counter(name for verdict in found.values() if verdict for name in verdict.by)
    by.update(dict.fromkeys(judges(), 0))
    caught = len(made) - len(survivors)
    broken = [f"planted {name} escaped" for name in escaped]
    if caught < CAUGHT_SHARE * len(made):
        broken.append(f"{caught} of {len(made)} generated mutants caught: less than {CAUGHT_SHARE:.0%}")
    broken += [f"survivor without a reason in survivors.toml: {each['where']}" for each in survivors if not each["why"]]
    broken += [f"{name} has caught no mutant" for name in judges() if not by[name]]
    broken += [f"seed {seed} fails without any mutant" for seed in unfit]
    return {
        "target": target,
        "mutants": len(mine),
        "caught": len(mine) - len(escaped),
        "escaped": escaped,
        "planted": [_described(name, found[name]) for name in mine],
        "generated": {"mutants": len(made), "caught": caught, "survivors": survivors},
        "by_invariant": dict(sorted(by.items())),
        "broken": broken,
    }


def _described(name: str, verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return {"id": name, "seed": None, "by": [], "detail": ""}
    return {"id": name, "seed": verdict.seed, "by": verdict.by, "detail": verdict.detail}


def judges() -> list[str]:
    """Everything that must have caught a mutant: the invariants over a trace, and the machines' own."""
    from tidings.check import ALL_INVARIANTS

    return ["check", *(getattr(invariant, "__name__", "") for invariant in ALL_INVARIANTS)]


def equivalents() -> dict[str, str]:
    """Generated mutants that cannot be caught, and why: they behave alike in all that a judge may see."""
    listed = tomllib.loads(Path(__file__).with_name("survivors.toml").read_text())
    return {each["where"]: each["why"] for each in listed.get("survivor", [])}


def main() -> None:
    """The worker: an order on stdin, a verdict per line on stdout."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    for verdict in _work(order):
        print(msgspec.json.encode(verdict).decode(), flush=True)


if __name__ == "__main__":
    main()
