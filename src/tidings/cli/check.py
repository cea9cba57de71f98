"""`tidings check`: a campaign of random faults over many seeds, or planted bugs that the checkers must catch."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.output import BROKEN, Json, emit, not_built, progress, table

EXAMPLE = "Example: tidings check sprinkler --seeds 0..500     (one seed again: --seeds 17..18)"
CLUSTER_SEEDS = range(30)  # a seed of the cluster takes about fifteen seconds
LEDGER = Path("build/ledger")
SPARK_SEEDS = range(14)  # one for each fault and target, and two on a standalone Spark; a seed takes about a minute


class Target(StrEnum):
    """What can be checked."""

    sprinkler = "sprinkler"
    cluster = "cluster"
    spark = "spark"
    sink = "sink"
    gryphon = "gryphon"
    bounded = "bounded"
    fire = "fire"
    qsm = "qsm"


BUILT = (Target.sprinkler, Target.cluster, Target.spark, Target.sink)


def parse_seeds(text: str) -> range:
    """Seeds A..B, half-open."""
    found = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise typer.BadParameter(f"{text!r} is not a range A..B of seeds with A < B, B not included, e.g. 0..500")
    return range(int(found[1]), int(found[2]))


LedgerDir = Annotated[
    Path | None,
    typer.Option(
        help="Where outcomes of sprinkler and cluster are kept, as Parquet; default build/ledger. "
        "Spark, sink, --mutants and --power-cuts keep none.",
        show_default=False,
    ),
]


def check(
    target: Annotated[
        Target | None,
        typer.Argument(
            help="A protocol to simulate, a cluster, or Spark that reads from one (spark) or writes to one (sink); "
            "gryphon, bounded, fire and qsm are not built yet.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        range | None,
        typer.Option(
            parser=parse_seeds, metavar="A..B", help="Seeds A to B-1; default 0..100, cluster 0..30, spark 0..14."
        ),
    ] = None,
    mutants: Annotated[bool, typer.Option("--mutants", help="Plant bugs and count which are caught.")] = False,
    power_cuts: Annotated[
        int | None,
        typer.Option("--power-cuts", min=1, help="Cluster: cut the power so many times instead.", show_default=False),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at once; default: one per core.")] = None,
    master: Annotated[
        str | None,
        typer.Option(
            help="Run seeds as tasks of this Spark, e.g. 'local[2]'; those in the ledger are not run again.",
            show_default=False,
        ),
    ] = None,
    ledger: Annotated[bool, typer.Option("--ledger", help="Sum up all seeds ever run instead.")] = False,
    ledger_dir: LedgerDir = None,
    as_json: Json = False,
) -> None:
    """Break a protocol, or a cluster of real processes, with random faults and judge every trace.

    With --mutants the judges are judged: planted bugs must be caught.
    """
    if ledger:
        if mutants or any(given is not None for given in (target, seeds, power_cuts, jobs, master)):
            raise typer.BadParameter("--ledger sums up whatever has been run: beside it only --ledger-dir and --json")
        _ledger(ledger_dir, as_json)
        return
    if target is None:
        raise typer.BadParameter(f"say what to check: {', '.join(BUILT)} (or --ledger for all that has been checked)")
    if target not in BUILT:
        raise not_built(f"check {target}", BUILT)
    if jobs is not None and (master is not None or target is not Target.sprinkler):
        raise typer.BadParameter("--jobs is for a simulation without --master, which says itself how many: 'local[4]'")
    if mutants and target in (Target.spark, Target.sink):
        raise typer.BadParameter("--mutants is for sprinkler and cluster")
    if master is not None and (mutants or power_cuts is not None or target is not Target.sprinkler):
        raise typer.BadParameter("--master is for seeds of a simulation")
    processes = jobs or os.cpu_count() or 1
    if mutants and seeds is not None:
        raise typer.BadParameter("--mutants chooses its own seeds: leave out --seeds")
    if power_cuts is not None and (mutants or target is not Target.cluster):
        raise typer.BadParameter("--power-cuts is for the target cluster, and without --mutants")
    if power_cuts is not None:
        _power_cuts(power_cuts, (seeds or range(1)).start, as_json)
    elif mutants:
        _mutants(target.value, processes, as_json)
    elif target is Target.sink:
        _sink(seeds or range(1), as_json)
    elif target is Target.cluster:
        _campaign(target.value, seeds or CLUSTER_SEEDS, 1, None, ledger_dir or LEDGER, as_json)
    elif target is Target.spark:
        _copies(seeds or SPARK_SEEDS, as_json)
    else:
        _campaign(target.value, seeds or range(100), processes, master, ledger_dir or LEDGER, as_json)


def _copies(seeds: range, as_json: bool) -> None:
    """Exactly once from a stream to Parquet, or to another stream."""
    from tidings.lab import spark_faults

    with progress(f"spark, seeds {seeds.start}..{seeds.stop}") as report:
        result = spark_faults.run(seeds, report)
    emit(result, as_json, lambda: _show(result, len(seeds)))
    if result["violations"]:
        raise typer.Exit(BROKEN)


def _campaign(target: str, seeds: range, jobs: int, master: str | None, folder: Path, as_json: bool) -> None:
    from tidings.lab import fleet

    with progress(f"{target}, seeds {seeds.start}..{seeds.stop}") as report:
        result = fleet.run(target, seeds, report, jobs, master, folder)

    emit(result, as_json, lambda: _show(result, len(seeds)))
    if result["violations"]:
        raise typer.Exit(BROKEN)


def _show(result: dict[str, Any], seeds: int) -> None:
    table("faults", ["kind", "count"], sorted(result["faults"].items()))
    table("goals", ["goal", "reached"], sorted(result["reached"].items()))
    for goal in result["unreached"]:
        print("never reached:", goal)
    for violation in result["violations"]:
        print(f"VIOLATION of {violation['invariant']} with seed {violation['seed']}; replay: {violation['replay']}")
        if violation["invariant"] == "exception":  # whoever replays it wants to see where it was raised
            print(violation["detail"])
    hours = f"{result['hours_simulated']:.2f} hours simulated"
    extent = f"{result['events']:,} events of real processes" if "events" in result else hours
    print(f"{seeds} seeds, {extent}, {len(result['violations'])} violations")


def _sink(seeds: range, as_json: bool) -> None:
    """Exactly once from a query to a stream."""
    import tempfile

    from tidings.lab import sink_faults

    with tempfile.TemporaryDirectory(prefix="tidings-sink-") as folder, progress("sink, faults") as report:
        result = sink_faults.run(seeds, Path(folder), report)

    def show() -> None:
        rows = [(each["fault"], each["rows"], each["expected"], each["runs"], each["holds"]) for each in result["runs"]]
        table("exactly once", ["fault", "rows", "expected", "runs of the query", "holds"], rows)
        print(f"{len(result['runs'])} queries, {len(result['violations'])} violations")

    emit(result, as_json, show)
    if result["violations"]:
        raise typer.Exit(BROKEN)


def _ledger(folder: Path | None, as_json: bool) -> None:
    """``folder``: as somebody has named it, who then expects something there."""
    from tidings.core.errors import BadInput
    from tidings.lab import fleet

    if folder is not None and not any(folder.glob("part-*.parquet")):
        raise BadInput(
            f"--ledger-dir {folder} is no ledger, it has no part-*.parquet: name one that `check` has written"
        )
    result = fleet.totals(folder or LEDGER)

    def show() -> None:
        if not result["runs"]:
            print(f"no ledger yet in {LEDGER}: tidings check sprinkler begins one")
            return
        rows = [
            (name, one["runs"], one["seeds"], one["violated"], one["hours_simulated"])
            for name, one in result["by_target"].items()
        ]
        table("all seeds ever run", ["target", "runs", "seeds", "violated", "hours simulated"], rows)
        for each in result["failures"]:
            print(f"VIOLATION of {each['invariant']} at {each['commit']}; replay: {each['replay']}")
        print(
            f"{result['runs']} runs of {result['seeds']} seeds, {len(result['commits'])} commits; when each last ran, "
            f"{result['violations']} violations ({result['mended']} seeds were violated before)"
        )

    emit(result, as_json, show)
    if result["violations"]:
        raise typer.Exit(BROKEN)


def _mutants(target: str, jobs: int, as_json: bool) -> None:
    from tidings.lab import cluster_mutants, mutants

    with progress(f"{target}, mutants") as report:
        result = cluster_mutants.run(report) if target == Target.cluster else mutants.run(target, report, jobs)
    generated: dict[str, Any] = result["generated"]

    def show() -> None:
        if "by_invariant" in result:
            table("mutants caught by each judge", ["judge", "mutants"], sorted(result["by_invariant"].items()))
        for each in result.get("planted", ()):
            print(f"{each['id']}: " + (f"seed {each['seed']}, {', '.join(each['by'])}" if each["by"] else "escaped"))
        print(f"planted: {result['caught']} of {result['mutants']} caught")
        print(f"generated: {generated['caught']} of {generated['mutants']} caught")
        for survivor in generated["survivors"]:
            print(f"survived: {survivor['where']}: {survivor['why']}")
        for broken in result["broken"]:
            print("BROKEN:", broken)

    emit(result, as_json, show)
    if result["broken"]:
        raise typer.Exit(BROKEN)


def _power_cuts(cuts: int, seed: int, as_json: bool) -> None:
    from tidings.lab import power_cuts

    with progress(f"{cuts} power cuts") as report:
        result = power_cuts.run(cuts, seed, report)

    def show() -> None:
        for violation in result["violations"]:
            print(f"VIOLATION of {violation['invariant']}: {violation['detail']}; replay: {violation['replay']}")
        print(f"{result['power_cuts']} power cuts, {result['put_back']} stores put back, {result['events']:,} events")
        print(f"{result['violated']} violations")

    emit(result, as_json, show)
    if result["violations"]:
        raise typer.Exit(BROKEN)
