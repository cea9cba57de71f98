"""`tidings lab`: the papers' experiments, run and judged claim by claim."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tidings.cli.output import BROKEN, Json, emit, progress, table

app = typer.Typer(
    help="The papers' experiments: list them, run them, judge their claims.",
    epilog="Example: tidings lab run SP5",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Scale(StrEnum):
    """How large an experiment is run."""

    quick = "quick"
    full = "full"


@app.command("list", epilog="Example: tidings lab list --json")
def list_experiments(as_json: Json = False) -> None:
    """List the experiments that can be run."""
    from tidings.lab.experiments import EXPERIMENTS

    found = [
        {"id": each.id, "paper": each.paper, "title": each.title, "claims": each.claims}
        for each in EXPERIMENTS.values()
    ]

    def show() -> None:
        rows = [(each["id"], each["paper"], each["title"], len(each["claims"])) for each in found]
        table("experiments", ["id", "paper", "title", "claims"], rows)

    emit({"experiments": found}, as_json, show)


@app.command("run", epilog="Example: tidings lab run SP5 --scale quick --out build/lab")
def run_experiment(
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT|PAPER", help="An id of `lab list`, or a paper's name.")],
    scale: Annotated[Scale, typer.Option(help="How large.")] = Scale.quick,
    out: Annotated[Path, typer.Option(help="Directory for figures and data.")] = Path("build/lab"),
    as_json: Json = False,
) -> None:
    """Run an experiment, or all of a paper, and compare what was measured with what the paper claims."""
    from tidings.lab import experiments

    with progress(name) as report:
        result = experiments.run(name, scale.value, out, report)

    def show() -> None:
        columns = ["id", "statement", "expected", "measured", "verdict", "why"]
        table(f"claims of {name}", columns, [[claim[column] for column in columns] for claim in result["claims"]])
        for path in [*result["figures"], *result["data"]]:
            print(path)

    emit(result, as_json, show)
    if any(claim["verdict"] == "differs" for claim in result["claims"]):
        raise typer.Exit(BROKEN)
