"""`tidings check`: a campaign of random faults over many seeds, or planted bugs that the checkers must catch."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import Annotated, Any

import typer

from tidings.cli.output import BROKEN, Json, emit, progress, table

EXAMPLE = "Example: tidings check sprinkler --seeds 0..500     (one seed again: --seeds 17..18)"


class Target(StrEnum):
    """What can be checked."""

    sprinkler = "sprinkler"


def parse_seeds(text: str) -> range:
    """Seeds A..B, half-open."""
    found = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise typer.BadParameter(f"{text!r} is not a range A..B of seeds with A < B, B not included, e.g. 0..500")
    return range(int(found[1]), int(found[2]))


def check(
    target: Annotated[Target, typer.Argument(help="Which protocol to break.", show_default=False)],
    seeds: Annotated[
        range | None, typer.Option(parser=parse_seeds, metavar="A..B", help="Seeds A to B-1; default 0..100.")
    ] = None,
    mutants: Annotated[bool, typer.Option("--mutants", help="Plant bugs and count which are caught.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at once; default: one per core.")] = None,
    as_json: Json = False,
) -> None:
    """Break a protocol with random faults and judge every trace.

    With --mutants the judges are judged: planted bugs must be caught.
    """
    processes = jobs or os.cpu_count() or 1
    if mutants and seeds is not None:
        raise typer.BadParameter("--mutants chooses its own seeds: leave out --seeds")
    if mutants:
        _mutants(target.value, processes, as_json)
    else:
        _campaign(target.value, seeds or range(100), processes, as_json)


def _campaign(target: str, seeds: range, jobs: int, as_json: bool) -> None:
    from tidings.lab import campaign

    with progress(f"{target}, seeds {seeds.start}..{seeds.stop}") as report:
        result = campaign.run(target, seeds, report, jobs)

    def show() -> None:
        table("faults", ["kind", "count"], sorted(result["faults"].items()))
        table("goals", ["goal", "reached"], sorted(result["reached"].items()))
        for goal in result["unreached"]:
            print("never reached:", goal)
        for violation in result["violations"]:
            print(f"VIOLATION of {violation['invariant']} with seed {violation['seed']}; replay: {violation['replay']}")
        hours = result["hours_simulated"]
        print(f"{len(seeds)} seeds, {hours:.2f} hours simulated, {len(result['violations'])} violations")

    emit(result, as_json, show)
    if result["violations"]:
        raise typer.Exit(BROKEN)


def _mutants(target: str, jobs: int, as_json: bool) -> None:
    from tidings.lab import mutants

    with progress(f"{target}, mutants") as report:
        result = mutants.run(target, report, jobs)
    generated: dict[str, Any] = result["generated"]

    def show() -> None:
        table("mutants caught by each judge", ["judge", "mutants"], sorted(result["by_invariant"].items()))
        print(f"planted: {result['caught']} of {result['mutants']} caught")
        print(f"generated: {generated['caught']} of {generated['mutants']} caught")
        for survivor in generated["survivors"]:
            print(f"survived: {survivor['where']}: {survivor['why']}")
        for broken in result["broken"]:
            print("BROKEN:", broken)

    emit(result, as_json, show)
    if result["broken"]:
        raise typer.Exit(BROKEN)
