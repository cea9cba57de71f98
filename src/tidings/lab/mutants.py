"""Who judges the judges: a checker is trusted because it catches bugs that were put in on purpose.

Two kinds of mutant: the *planted* ones (lab/planted.py) are mistakes people make; the *generated* ones negate, one at
a time, every comparison and every guard of the protocol files, epoch tests included. A mutant runs in a process of its
own: a planted one in a fresh process that compiles its module from the mutated source before anything imports it, a
generated one in a fork of a process that has imported everything with a switch at every condition. It faces the seeds
of the fault campaign until the first one with a violation, an exception, or more than its share of processor time (a
mutant that hangs is caught; one that a busy machine keeps waiting is not).

Of a hundred seeds most need not be run. Without any mutant every condition notes in which seeds it is evaluated; in the
others its negation cannot make a difference, because a seed happens the same way each time until it does. Kinds of seed
take turns (calm, each aimed fault, mixtures), after the smallest world of all, and a seed that caught the mutant in an
earlier run, here or anywhere (killers.tsv), goes before all others: for most mutants one is enough. One that has its
reason to survive faces only a few.

A seed that fails without any mutant proves nothing and is left out. All planted mutants must be caught, nine in ten of
the generated ones, and each that survives needs a reason in survivors.toml why it is equivalent. Outcomes are written
to build/mutants.jsonl under a hash of every source that took part: an interrupted run goes on, a changed one does not.

    python -m tidings.lab.mutants killers > killers.tsv      # what the outcomes there and killers.tsv itself know
"""

from __future__ import annotations

import ast
import hashlib
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from tidings.core.errors import BadInput, TidingsError
from tidings.lab.planted import PLANTED

Progress = Callable[[int, int, str], None]
Rewrite = Callable[[int, ast.expr], ast.expr]

ROOT = Path(__file__).parents[1]
RESULTS = Path("build/mutants.jsonl")
KILLERS = Path(__file__).with_name("killers.tsv")
SEEDS = 100  # of the campaign, that a mutant must survive to count as a survivor
ROUNDS = (1, 4, 12, 40, SEEDS)  # how many seeds all face before any faces more: what is hard comes last
EXCUSED = 12  # seeds that a mutant faces whose survival has been explained; ours, in case the reason no longer holds
CAUGHT_SHARE = 0.9  # of the generated mutants
SLOWER = 8  # ours: a mutant that takes so many times the usual seconds of a seed hangs, for all that a user can tell
LEAST_LIMIT = 12.0  # seconds; ours, because a short median must not make a slow seed look like a hanging one
HOURS = 4  # of waiting for a process that uses no processor time; ours: then something else is wrong
MEMORY = 4 << 30  # bytes; ours: twenty times what a seed needs
NOT_MUTATED = frozenset({"__init__", "kernel", "messages", "membership"})  # declarations, hardly a guard in them
WORKER = (sys.executable, "-m", "tidings.lab.mutants")
ENDED = "ended "  # said by the worker when a fork of it has ended, with its exit code
STOPPED = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGALRM)  # says nothing about a mutant
MOODS = ("calm", "aimed", "swarm")  # of seeds, the most demanding first
JUDGED = (
    "core",
    "protocols",
    "sim",
    "check",
    "lab/campaign.py",
    "lab/seeds.py",
    "lab/desk.py",
    "lab/claimants.py",
    "lab/guests.py",
    "lab/keeper.py",
    "lab/clerk.py",
    "lab/watch.py",
    "lab/watch_chain.py",
    "lab/watch_clients.py",
    "lab/watch_fabric.py",
    "lab/watch_proxy.py",
    "lab/watch_regions.py",
    "client",
)  # what an outcome depends on
UNUSED = ROOT / "sim" / "measured.py"  # by campaigns: the speed of some machine decides no outcome


class Case(msgspec.Struct, frozen=True):
    """A mutant ready to run: a module below tidings and its mutated source; "" and "" for none at all."""

    id: str
    module: str
    source: str
    spot: int | None = None  # of a generated one: which condition of the module it negates


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
    steps: int = 0  # of all nodes: what the seed costs, on any machine
    reached: dict[str, list[int]] = {}  # without a mutant: the conditions that were evaluated, by module


class Outcome(msgspec.Struct, frozen=True):
    """A line of the results: what a mutant's seeds showed."""

    key: str
    id: str
    verdicts: list[Verdict]


# --- mutants ----------------------------------------------------------------------------------------------


def planted() -> list[Case]:
    """The bugs that were put in by hand."""
    return [Case(each.id, each.module, each.apply(module_path(each.module).read_text())) for each in PLANTED]


def generated() -> list[Case]:
    """Every guard and comparison of the protocol files, negated one at a time."""
    return [case for name in mutated() for case in negations(name, module_path(name).read_text())]


def mutated() -> list[str]:
    """The modules of which the generated mutants are made."""
    stems = sorted(path.stem for path in (ROOT / "protocols").glob("*.py") if path.stem not in NOT_MUTATED)
    return [f"protocols.{stem}" for stem in stems]


def negations(module: str, source: str) -> list[Case]:
    """The negations of one module; each is named by file, function and expression, with a number if it recurs."""
    seen: Counter[str] = Counter()
    cases = []
    for spot, (function, node) in enumerate(_conditions(ast.parse(source))):
        where = f"{module.rpartition('.')[2]}.py:{function}:{ast.unparse(node)}"
        seen[where] += 1
        name = where if seen[where] == 1 else f"{where}#{seen[where]}"
        cases.append(Case(name, module, _negated(source, node), spot))
    return cases


def _conditions(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    found = _Conditions()
    found.visit(tree)
    return found.conditions


def probed(source: str) -> ast.Module:
    """A module in which every condition adds its number to the set ``_reached`` when it is evaluated."""

    def probe(spot: int, condition: ast.expr) -> ast.expr:
        note = ast.parse(f"_reached.add({spot})", mode="eval").body
        return ast.BoolOp(ast.Or(), [note, condition])

    return _rewritten(source, probe)


def switched(source: str) -> ast.Module:
    """A module in which the condition whose number is ``_flipped`` is negated."""

    def switch(spot: int, condition: ast.expr) -> ast.expr:
        test = ast.parse(f"_flipped == {spot}", mode="eval").body
        return ast.IfExp(test, ast.UnaryOp(ast.Not(), condition), condition)

    return _rewritten(source, switch)


def _rewritten(source: str, rewrite: Rewrite) -> ast.Module:
    tree = ast.parse(source)
    spots = {node: spot for spot, (_, node) in enumerate(_conditions(tree))}
    rewritten: ast.Module = ast.fix_missing_locations(_Rewriter(spots, rewrite).visit(tree))
    return rewritten


class _Rewriter(ast.NodeTransformer):
    """Puts something else in the place of each condition, from the inside out."""

    def __init__(self, spots: Mapping[ast.expr, int], rewrite: Rewrite) -> None:
        self.spots = spots
        self.rewrite = rewrite

    def visit(self, node: ast.AST) -> Any:
        spot = self.spots.get(node) if isinstance(node, ast.expr) else None
        visited = super().visit(node)
        return visited if spot is None else self.rewrite(spot, visited)


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
    """Loads a module from a source of our own, with some names in it from the beginning."""

    def __init__(self, name: str, path: str, source: str | ast.Module, names: Mapping[str, object]) -> None:
        super().__init__(name, path)
        self.source = source
        self.names = names

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self.names)
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds modules with a source of our own before anybody else does."""

    def __init__(self, sources: Mapping[str, str | ast.Module]) -> None:
        self.sources = sources
        self.reached: dict[str, set[int]] = {name: set() for name in sources}
        assert not any(f"tidings.{name}" in sys.modules for name in sources)
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        name = fullname.removeprefix("tidings.")
        if name not in self.sources or name == fullname:
            return None
        names = {"_reached": self.reached[name], "_flipped": None}
        loader = _Loader(fullname, str(module_path(name)), self.sources[name], names)
        return spec_from_file_location(fullname, loader.path, loader=loader)

    def take(self) -> dict[str, list[int]]:
        """What probes have reached since the last call."""
        found = {name: sorted(spots) for name, spots in self.reached.items() if spots}
        for spots in self.reached.values():
            spots.clear()
        return found


class _TooLong(BaseException):
    """Not an Exception, so that no handler on the way takes it for one of its own."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise _TooLong


def _work(order: Order, finder: _Finder) -> Iterator[Verdict]:
    """Run the seeds of an order in this process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _too_long)
    for seed in order.seeds:
        verdict = msgspec.structs.replace(_face(seed, order.limit), reached=finder.take())
        yield verdict
        if verdict.by and order.stop:
            return


def _face(seed: int, limit: float) -> Verdict:
    """Let one seed happen. The limit is on processor time, because the machine may be busy with other things."""
    began = time.process_time()
    hard = int(began + 2 * limit) + 1  # for what no handler can interrupt: the kernel ends the process
    resource.setrlimit(resource.RLIMIT_CPU, (hard, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, limit)
    steps = 0
    try:
        from tidings.lab import campaign

        outcome = campaign.run_seed(seed)
        found: list[tuple[str, str]] = outcome["violations"]
        steps = outcome["steps"]
    except _TooLong:
        found = [("timeout", f"more than {limit:.0f} seconds")]
    except Exception as problem:
        found = [("exception", repr(problem))]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    detail = f"{found[0][0]}: {found[0][1]}"[:300] if found else ""
    return Verdict(seed, sorted({invariant for invariant, _ in found}), detail, time.process_time() - began, steps)


def _say(verdicts: Iterable[Verdict]) -> None:
    for verdict in verdicts:
        print(msgspec.json.encode(verdict).decode(), flush=True)


def _fork(order: Order, finder: _Finder) -> int:
    """Let a fork of this process be the mutant; returns how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.setitimer(signal.ITIMER_REAL, 3600.0 * HOURS)  # its default action ends a process that waits for nothing
    vars(sys.modules[f"tidings.{order.case.module}"])["_flipped"] = order.case.spot
    _say(_work(order, finder))
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """The worker: one order on stdin, or one per line to fork for; a verdict per line on stdout. Or `killers`."""
    if sys.argv[1:] == ["nursery"]:
        finder = _Finder({name: switched(module_path(name).read_text()) for name in mutated()})
        import_module("tidings.lab.campaign")
        for line in sys.stdin.buffer:
            status = _fork(msgspec.json.decode(line, type=Order), finder)
            print(f"{ENDED}{status}", flush=True)
        return
    if sys.argv[1:] == ["killers"]:
        known = Results(RESULTS, []).killers
        names = sorted(case.id for case in (*planted(), *generated()) if case.id in known)
        sys.stdout.writelines(f"{known[name]}\t{name}\n" for name in names)
        return
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    case = order.case
    plain = {name: probed(module_path(name).read_text()) for name in mutated()}
    _say(_work(order, _Finder({case.module: case.source} if case.module else plain)))


# --- the hunter: a worker's other end ------------------------------------------------------------------------


def _environment() -> dict[str, str]:
    paths = [str(ROOT.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}


def hunt(case: Case, seeds: Sequence[int], limit: float, *, stop: bool = True) -> list[Verdict]:
    """Run a mutant in a fresh process; what its seeds showed, up to the first violation."""
    order = msgspec.json.encode(Order(case, list(seeds), limit, stop))
    try:
        done = subprocess.run(
            WORKER, input=order, env=_environment(), capture_output=True, timeout=3600 * HOURS, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise TidingsError(f"mutant {case.id} gave no answer for {HOURS} hours: look what keeps it waiting") from late
    problem = done.stderr.decode(errors="replace").strip()[-300:]
    return _verdicts(case, seeds, limit, done.stdout.splitlines(), done.returncode, problem)


def _verdicts(
    case: Case, seeds: Sequence[int], limit: float, lines: Sequence[bytes], status: int, problem: str
) -> list[Verdict]:
    """What a process said before it ended, and that it should not have ended like this."""
    if -status in STOPPED:
        raise TidingsError(f"the process of mutant {case.id} was stopped from outside; run again to continue")
    verdicts = [msgspec.json.decode(line, type=Verdict) for line in lines]
    if status:
        seed = seeds[min(len(verdicts), len(seeds) - 1)]
        verdicts.append(Verdict(seed, ["crash"], f"exit code {status}: {problem}", limit))
    return verdicts


class Nursery:
    """Processes that fork for generated mutants, one for each thread that hunts."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._started: list[subprocess.Popen[bytes]] = []

    def hunt(self, case: Case, seeds: Sequence[int], limit: float) -> list[Verdict]:
        """Run a mutant in a fork; what its seeds showed, up to the first violation."""
        process = getattr(self._local, "process", None) or self._start()
        assert process.stdin is not None and process.stdout is not None
        order = Order(Case(case.id, case.module, "", case.spot), list(seeds), limit, stop=True)
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        lines: list[bytes] = []
        for line in process.stdout:
            if line.startswith(ENDED.encode()):
                return _verdicts(case, seeds, limit, lines, int(line[len(ENDED) :]), "")
            lines.append(line)
        raise TidingsError("a process that forks for mutants has ended; run again to continue")

    def _start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        process = subprocess.Popen([*WORKER, "nursery"], stdin=pipe, stdout=pipe, env=_environment())
        self._local.process = process
        self._started.append(process)
        return process

    def close(self) -> None:
        """Let them end."""
        for process in self._started:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(timeout=60)


# --- many mutants -----------------------------------------------------------------------------------------


class Results:
    """Outcomes on disk, one line each, under a key that changes with anything they depend on."""

    def __init__(self, path: Path, seeds: Sequence[int]) -> None:
        self.path = path
        self.known: dict[str, list[Verdict]] = {}
        self.killers = killers()  # seeds that caught a mutant last time, whatever has changed since
        self._base = hashlib.blake2b(repr(list(seeds)).encode(), digest_size=16)
        for name in JUDGED:
            for source in sorted({*(ROOT / name).rglob("*.py")} - {UNUSED}) or [ROOT / name]:
                self._base.update(f"{source.relative_to(ROOT)}\0".encode() + source.read_bytes())
        if path.exists():
            for line in path.read_bytes().splitlines():
                with suppress(msgspec.DecodeError):  # a run was interrupted while it wrote
                    self._note(msgspec.json.decode(line, type=Outcome))

    def key(self, case: Case) -> str:
        """What the outcome of a mutant is kept under."""
        hashed = self._base.copy()
        hashed.update(f"{case.module}\0{case.source}".encode())
        return hashed.hexdigest()

    def add(self, case: Case, verdicts: list[Verdict]) -> None:
        """Keep an outcome."""
        outcome = Outcome(self.key(case), case.id, verdicts)
        self._note(outcome)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as out:
            out.write(msgspec.json.encode(outcome) + b"\n")

    def _note(self, outcome: Outcome) -> None:
        self.known[outcome.key] = outcome.verdicts
        caught = _catch(outcome.verdicts)
        if caught is not None:
            self.killers[outcome.id] = caught.seed


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
    trials = _baseline(order, store, jobs)
    sample = random.Random("mutants").sample(made, len(made))  # so that an interrupted run has seen a fair one
    for kind, cases in (("planted", mine), ("generated", sample)):
        for depth in ROUNDS:
            _round(cases, store, trials, depth, progress, jobs, kind)
    outcomes = {case.id: store.known.get(store.key(case), []) for case in (*mine, *made)}
    return summary(target, [case.id for case in mine], [case.id for case in made], outcomes, trials.unfit)


def _round(
    cases: Sequence[Case], store: Results, trials: Trials, depth: int, progress: Progress | None, jobs: int, kind: str
) -> None:
    """Let whoever is not caught yet face seeds until it has faced ``depth`` of them."""
    reasons = equivalents()
    nursery = Nursery()

    def left(case: Case) -> list[int]:
        faced = store.known.get(store.key(case), [])
        most = depth if case.id not in reasons else min(depth, EXCUSED)
        seeds = trials.seeds(case, store.killers.get(case.id))[:most]
        return [] if _catch(faced) else [seed for seed in seeds if seed not in {each.seed for each in faced}]

    def face(case: Case, seeds: list[int]) -> list[Verdict]:
        return (hunt if case.spot is None else nursery.hunt)(case, seeds, trials.limit)

    waiting = {case.id: seeds for case in cases if (seeds := left(case))}
    free = len(cases) - len(waiting)
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(face, case, waiting[case.id]): case for case in cases if case.id in waiting}
        try:
            for at, future in enumerate(as_completed(futures), 1):
                case = futures[future]
                store.add(case, [*store.known.get(store.key(case), []), *future.result()])
                if progress is not None:
                    progress(free + at, len(cases), f"{kind}, first {depth} seeds")
        finally:
            pool.shutdown(cancel_futures=True)
            nursery.close()


def in_turns(seeds: Iterable[int]) -> list[int]:
    """The seeds with their kinds taking turns, so that every kind is among the first, and moods among kinds."""
    from tidings.lab.seeds import Plan

    kinds: dict[tuple[str, ...], list[int]] = {}
    for seed in seeds:
        kinds.setdefault(Plan(seed).kind, []).append(seed)
    moods = [sorted([kind for kind in kinds if kind[0] == mood], key=lambda kind: kind[::-1]) for mood in MOODS]
    turns = zip_longest(*[kinds[kind] for among in zip_longest(*moods) for kind in among if kind is not None])
    return [seed for turn in turns for seed in turn if seed is not None]


class Trials:
    """The seeds that mutants face, as they went without one."""

    def __init__(self, order: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        passed = {verdict.seed: verdict for verdict in verdicts if not verdict.by}
        self.fit = [passed[seed] for seed in order if seed in passed]
        self.unfit = sorted(set(order) - set(passed))
        self.limit = max(LEAST_LIMIT, SLOWER * statistics.median([verdict.seconds for verdict in verdicts]))

    def seeds(self, case: Case, killer: int | None) -> list[int]:
        """The seeds in which a mutant can make a difference; one that caught it before goes first."""
        fit = [trial for trial in self.fit if case.spot is None or case.spot in trial.reached.get(case.module, ())]
        return [trial.seed for trial in sorted(fit, key=lambda trial: trial.seed != killer)]


def _baseline(order: Sequence[int], store: Results, jobs: int) -> Trials:
    """Let all seeds happen without any mutant."""
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
    steps = {verdict.seed: verdict.steps for verdict in verdicts if not verdict.by}
    smallest = min(steps, key=steps.__getitem__, default=None)
    return Trials(sorted(order, key=lambda seed: seed != smallest), verdicts)


def _catch(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The verdict that caught a mutant, if one did."""
    return next((verdict for verdict in verdicts if verdict.by), None)


def summary(
    target: str,
    mine: list[str],
    made: list[str],
    outcomes: Mapping[str, Sequence[Verdict]],
    unfit: list[int],
) -> dict[str, Any]:
    """The result, and under "broken" all that does not hold of it."""
    reasons = equivalents()
    found = {name: _catch(verdicts) for name, verdicts in outcomes.items()}
    escaped = [name for name in mine if found[name] is None]
    survivors = [
        {"where": name, "why": reasons.get(name, ""), "seeds": len(outcomes[name])}
        for name in made
        if found[name] is None
    ]
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


def killers() -> dict[str, int]:
    """Seeds that have caught a mutant, by its name: what to try first."""
    if not KILLERS.exists():
        return {}
    pairs = [line.split("\t", 1) for line in KILLERS.read_text().splitlines()]
    return {name: int(seed) for seed, name in pairs}


def equivalents() -> dict[str, str]:
    """Generated mutants that cannot be caught, and why: they behave alike in all that a judge may see."""
    listed = tomllib.loads(Path(__file__).with_name("survivors.toml").read_text())
    return {each["where"]: each["why"] for each in listed.get("survivor", [])}


if __name__ == "__main__":
    main()
