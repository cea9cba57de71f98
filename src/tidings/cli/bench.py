"""`tidings bench`: how fast it is on this machine, always beside something to compare with in the same run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidings.cli.output import Json, emit, progress, table

app = typer.Typer(
    help="Measure speed, beside a yardstick in the same run.",
    epilog="Example: tidings bench gc --json",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Runs = Annotated[int, typer.Option(min=3, help="Repetitions; the median is reported, with the spread.")]


@app.command("gc", epilog="Example: tidings bench gc --runs 5")
def gc(runs: Runs = 3, as_json: Json = False) -> None:
    """Garbage collection by key: events per second, beside a numpy version."""
    from tidings.lab import bench_gc

    with progress("bench gc") as report:
        result = bench_gc.run(runs, report)
    _emit(result, as_json)


@app.command("sim", epilog="Example: tidings bench sim --json")
def sim(runs: Runs = 3, as_json: Json = False) -> None:
    """The simulator: protocol events per second, beside a bare event loop."""
    from tidings.lab import bench_sim

    with progress("bench sim") as report:
        result = bench_sim.run(runs, report)
    _emit(result, as_json)


def _emit(result: dict[str, Any], as_json: bool) -> None:
    def show() -> None:
        runs: list[dict[str, Any]] = result["runs"]
        columns = list(dict.fromkeys(key for run in runs for key in run))
        rows = [[run.get(column, "") for column in columns] for run in runs]
        table(f"bench {result['bench']}", columns, rows)
        table("ratios", ["ratio", "value"], result["ratio"].items())

    emit(result, as_json, show)
