"""`tidings check`: a campaign of random faults over many seeds, or planted bugs that the checkers must catch."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from tidings.cli.output import BROKEN, Json, count, emit, listed, not_built, number, progress, say, table

if TYPE_CHECKING:
    from tidings.campaign.targets import Target

EXAMPLE = "Example: tidings check sprinkler --seeds 0..500     (one seed again: --seeds 17..18)"
LEDGER = Path("build/ledger")


class CheckCommand(TyperCommand):
    """Lists the targets in its help, those of plugins too."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        from tidings.campaign.targets import PROMISED, targets

        with formatter.section("Targets"):
            found = [(each.name, f"{each.about}; seeds {each.seeds.start}..{each.seeds.stop}") for each in targets()]
            formatter.write_dl([*found, *[(name, "not built yet") for name in PROMISED]])
        super().format_options(ctx, formatter)


def parse_seeds(text: str) -> range:
    """Seeds A..B, half-open."""
    found = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise typer.BadParameter(f"{text!r} is not a range A..B of seeds with A < B, B not included, e.g. 0..500")
    return range(int(found[1]), int(found[2]))


LedgerDir = Annotated[
    Path | None,
    typer.Option(
        help="Directory of the ledger with the outcomes of seeds (Parquet); default build/ledger.",
        show_default=False,
    ),
]


def check(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help="What to check; `tidings check --help` lists the targets.", show_default=False
        ),
    ] = None,
    seeds: Annotated[
        range | None,
        typer.Option(parser=parse_seeds, metavar="A..B", help="Seeds A to B-1; default: those of the target."),
    ] = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Plant bugs in the code and count those that the checkers catch.")
    ] = False,
    power_cuts: Annotated[
        int | None,
        typer.Option("--power-cuts", min=1, help="cluster: cut the power this many times instead.", show_default=False),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at once; default: one per core.")] = None,
    master: Annotated[
        str | None,
        typer.Option(
            help="Run seeds as Spark tasks, e.g. 'local[2]'; skip seeds that are in the ledger.",
            show_default=False,
        ),
    ] = None,
    ledger: Annotated[bool, typer.Option("--ledger", help="Instead: sum up all seeds in the ledger.")] = False,
    ledger_dir: LedgerDir = None,
    as_json: Json = False,
) -> None:
    """Inject random faults, and check every trace. The target is a simulated protocol or a real cluster.

    Exit code 3 if an invariant does not hold. --mutants tests the checkers: they must catch planted bugs.
    """
    if ledger:
        if mutants or any(given is not None for given in (target, seeds, power_cuts, jobs, master)):
            raise typer.BadParameter("--ledger sums up all seeds: it takes only --ledger-dir and --json")
        _ledger(ledger_dir, as_json)
        return
    chosen = _chosen(target)
    given = {"--jobs": jobs, "--master": master, "--power-cuts": power_cuts, "--mutants": mutants or None}
    _refuse_ignored(chosen, {option for option, value in given.items() if value is not None}, seeds)
    processes = jobs or os.cpu_count() or 1
    if power_cuts is not None:
        _power_cuts(power_cuts, (seeds or range(1)).start, as_json)
    elif mutants:
        _mutants(chosen, processes, as_json)
    elif chosen.by_seed:
        processes = processes if chosen.simulated else 1
        _campaign(chosen.name, seeds or chosen.seeds, processes, master, ledger_dir or LEDGER, as_json)
    else:
        _whole(chosen, seeds or chosen.seeds, as_json)


def _chosen(name: str | None) -> Target:
    from tidings.campaign.targets import PROMISED, target_of, targets
    from tidings.core.errors import BadInput

    known = [each.name for each in targets()]
    if name is None:
        raise typer.BadParameter(f"say what to check: {', '.join(known)} (or --ledger to sum up what was checked)")
    if name in PROMISED and name not in known:
        raise not_built(f"check {name}", known)
    try:
        return target_of(name)
    except BadInput as error:
        raise typer.BadParameter(str(error)) from error


EXCLUSIVE = (
    ("--jobs", "--master", "with --master say 'local[4]'"),
    ("--mutants", "--master", "mutants run here, --jobs at a time"),
    ("--mutants", "--power-cuts", "they are two things to do: give one"),
)
"""Options of which one would be ignored, and what to do."""


def _refuse_ignored(target: Target, given: set[str], seeds: range | None) -> None:
    """An option that would have no effect is wrong usage."""
    from tidings.campaign.targets import targets

    for option in sorted(given - target.options):
        takers = ", ".join([each.name for each in targets() if option in each.options])
        raise typer.BadParameter(f"{option} is for {takers}, not for {target.name}")
    for one, other, instead in EXCLUSIVE:
        if {one, other} <= given:
            raise typer.BadParameter(f"{one} and {other} do not go together: {instead}")
    if "--mutants" in given and seeds is not None:
        raise typer.BadParameter("--mutants chooses its own seeds: leave out --seeds")


def _whole(target: Target, seeds: range, as_json: bool) -> None:
    """A target that is judged as a whole."""
    with progress(f"{target.name}, seeds {seeds.start}..{seeds.stop}") as report:
        result = target.campaign.run(seeds, report)
    emit(result, as_json, lambda: _show_runs(result) if "runs" in result else _show(result, len(seeds)))
    if result["violations"]:
        raise typer.Exit(BROKEN)


def _campaign(target: str, seeds: range, jobs: int, master: str | None, folder: Path, as_json: bool) -> None:
    from tidings.campaign import runner

    with progress(f"{target}, seeds {seeds.start}..{seeds.stop}") as report:
        result = runner.run(target, seeds, report, jobs, master, folder)

    emit(result, as_json, lambda: _show(result, len(seeds)))
    if result["violations"]:
        raise typer.Exit(BROKEN)


def _show(result: dict[str, Any], seeds: int) -> None:
    """For a person: the verdict, what violates it, then how far the campaign got."""
    hours = f"{number(result['hours_simulated'])} hours simulated"
    extent = f"{result['events']:,} events of real processes" if "events" in result else hours
    print(f"{count(len(result['violations']), 'violation')} in {count(seeds, 'seed')} ({extent})")
    for violation in result["violations"]:
        print(f"VIOLATION of {violation['invariant']} with seed {violation['seed']}; replay: {violation['replay']}")
        if violation["invariant"] == "exception":  # a replay needs to know where it was raised
            print(violation["detail"])
    if faults := {kind: times for kind, times in result["faults"].items() if times}:
        say(f"faults injected: {listed(faults)}")
    if result["reached"]:
        print()
        table("", ["goal", "reached"], sorted(result["reached"].items()))
        print()
    if result["unreached"]:
        say(f"note: {count(len(result['unreached']), 'goal')} not reached: {', '.join(result['unreached'])}")
    if result["reached"] or result["unreached"]:
        say("(a goal: a rare situation that the faults are to bring about; more seeds reach more of them)")


def _show_runs(result: dict[str, Any]) -> None:
    """For a person: the verdict, then what became of each query."""
    queries = "1 query" if len(result["runs"]) == 1 else f"{len(result['runs'])} queries"
    print(f"{count(len(result['violations']), 'violation')} in {queries}")
    print()
    rows = [(each["fault"], each["rows"], each["expected"], each["runs"], each["holds"]) for each in result["runs"]]
    table("", ["fault", "rows", "expected", "starts", "holds"], rows)
    print()
    say("(rows: what the stream has; expected: what the query wrote; starts: how often the query was started)")


def _ledger(folder: Path | None, as_json: bool) -> None:
    """Sum up a ledger. ``folder``: the one that the user named, which then must be there."""
    from tidings.campaign import runner
    from tidings.core.errors import BadInput

    if folder is not None and not any(folder.glob("part-*.parquet")):
        raise BadInput(
            f"--ledger-dir {folder} is no ledger: it has no part-*.parquet; name a directory that `check` wrote"
        )
    result = runner.totals(folder or LEDGER)

    def show() -> None:
        if not result["runs"]:
            print(f"no ledger yet in {LEDGER}: `tidings check sprinkler` writes one")
            return
        before = f"; {count(result['mended'], 'seed')} violated before, not any more" if result["mended"] else ""
        print(f"{count(result['violations'], 'violation')} in {count(result['seeds'], 'seed')}, last run each{before}")
        for each in result["failures"]:
            print(f"VIOLATION of {each['invariant']} at {each['commit']}; replay: {each['replay']}")
        print(f"{count(result['runs'], 'run')} at {count(len(result['commits']), 'commit')}")
        print()
        rows = [
            (name, one["runs"], one["seeds"], one["violated"], one["hours_simulated"])
            for name, one in result["by_target"].items()
        ]
        table("", ["target", "runs", "seeds", "violated", "hours simulated"], rows)

    emit(result, as_json, show)
    if result["violations"]:
        raise typer.Exit(BROKEN)


def _mutants(target: Target, jobs: int, as_json: bool) -> None:
    with progress(f"{target.name}, mutants") as report:
        result = import_module(target.mutants).run(target.name, report, jobs)
    generated: dict[str, Any] = result["generated"]

    def show() -> None:
        print(f"planted bugs: {result['caught']:,} of {result['mutants']:,} caught")
        print(f"generated bugs: {generated['caught']:,} of {generated['mutants']:,} caught")
        for broken in result["broken"]:
            say(f"BROKEN: {broken}")
        for each in result.get("planted", ()):
            say(f"{each['id']}: " + (f"seed {each['seed']}, {', '.join(each['by'])}" if each["by"] else "escaped"))
        for survivor in generated["survivors"]:
            say(f"survived: {survivor['where']}: {survivor['why']}")
        if "by_invariant" in result:
            print()
            table("", ["checker", "bugs that it caught"], sorted(result["by_invariant"].items()))

    emit(result, as_json, show)
    if result["broken"]:
        raise typer.Exit(BROKEN)


def _power_cuts(cuts: int, seed: int, as_json: bool) -> None:
    from tidings.campaign.cluster import power_cuts

    with progress(f"{cuts} power cuts") as report:
        result = power_cuts.run(cuts, seed, report)

    def show() -> None:
        print(f"{count(result['violated'], 'violation')} in {count(result['power_cuts'], 'power cut')}")
        for violation in result["violations"]:
            say(f"VIOLATION of {violation['invariant']}: {violation['detail']}; replay: {violation['replay']}")
        print(f"{count(result['put_back'], 'store')} put back to the last completed sync, {result['events']:,} events")

    emit(result, as_json, show)
    if result["violations"]:
        raise typer.Exit(BROKEN)
