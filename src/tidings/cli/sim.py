"""`tidings sim`: run one scenario, deterministically, and judge its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidings.cli.output import BROKEN, Json, emit, progress, table

EXAMPLE = "Example: tidings sim scenarios/sprinkler-link-cut.toml --seed 7 --record build/trace"


def sim(
    scenario: Annotated[Path, typer.Argument(help="A scenario file.", metavar="SCENARIO.toml", show_default=False)],
    seed: Annotated[int | None, typer.Option(help="Root of all randomness; default: the scenario's own.")] = None,
    record: Annotated[Path | None, typer.Option(help="Write the trace tables into this directory (Parquet).")] = None,
    as_json: Json = False,
) -> None:
    """Simulate a scenario and check everything that was delivered."""
    from tidings.sim.scenario import load

    loaded = load(scenario)  # before the simulator is imported: a bad file is refused at once

    from tidings.sim.run import run_scenario

    root = loaded.scenario.seed if seed is None else seed
    with progress(f"{loaded.scenario.name}, seed {root}") as report:
        result = run_scenario(loaded, root, record, report)

    def show() -> None:
        facts = {key: value for key, value in result.items() if key not in ("violations", "metrics")}
        table("simulation", ["fact", "value"], facts.items())
        table("metrics", ["metric", "value"], result["metrics"].items())
        for violation in result["violations"]:
            print("VIOLATION", violation)
        print("violations:", len(result["violations"]))
        if result["violations"]:
            print(f"replay: tidings sim {scenario} --seed {root}")

    emit(result, as_json, show)
    if result["violations"]:
        raise typer.Exit(BROKEN)
