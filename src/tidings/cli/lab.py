"""`tidings lab`: the papers' experiments, run and judged claim by claim."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.output import BROKEN, Json, emit, number, progress, table

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
    master: Annotated[str, typer.Option(help="The Spark that runs the simulations.")] = "local[2]",
    out: Annotated[Path, typer.Option(help="Directory for figures and data.")] = Path("build/lab"),
    as_json: Json = False,
) -> None:
    """Run an experiment, or all of a paper, and compare what was measured with what the paper claims."""
    from tidings.lab import experiments

    with progress(name) as report:
        result = experiments.run(name, scale.value, out, master, report)

    holding = [claim for claim in result["claims"] if claim["verdict"] == "holds"]

    def show() -> None:
        for claim in result["claims"]:
            print_claim(claim)
        print(f"{len(holding)} of {len(result['claims'])} claims hold")
        for path in [*result["figures"], *result["data"]]:
            print(path)

    emit(result, as_json, show)
    if len(holding) < len(result["claims"]):
        raise typer.Exit(BROKEN)


@app.command("tune", epilog="Example: tidings lab tune --regions 3 --clients 1000 --rate 864000")
def tune_fabric(
    regions: Annotated[int, typer.Option(min=1, help="Regions.")] = 3,
    clients: Annotated[int, typer.Option(min=1, help="Clients per region.")] = 1000,
    rate: Annotated[float, typer.Option(help="Events per second and region.")] = 10_000.0,
    master: Annotated[str, typer.Option(help="The Spark that runs the simulations.")] = "local[2]",
    out: Annotated[Path, typer.Option(help="Directory for figures and data.")] = Path("build/lab"),
    as_json: Json = False,
) -> None:
    """Find settings of the fabric by simulation; the result can be put into cluster.toml."""
    from tidings.lab import tune

    with progress("tune") as report:
        result = tune.run(regions, clients, rate, out, master, report)

    def show() -> None:
        rows = [
            (
                row["sweep"],
                row["fanout"],
                row["shuffle"],
                row["view"],
                row["recv_seconds"],
                row["share"],
                row["latency"],
            )
            for row in result["tried"]
        ]
        table("tried", ["sweep", "fanout", "shuffle s", "view", "buffer s", "carried", "latency s"], rows)
        print(result["toml"])
        for path in result["figures"]:
            print(path)

    emit(result, as_json, show)


def print_claim(claim: Mapping[str, Any]) -> None:
    """A claim as a paragraph: the verdict and the statement, then what was measured against what was expected."""
    from shutil import get_terminal_size
    from textwrap import fill

    width = min(get_terminal_size((100, 24)).columns, 120)
    print(fill(f"{claim['verdict']:8} {claim['id']}: {claim['statement']}", width, subsequent_indent=" " * 9))
    for part in ("measured", "simulated", "distance", "expected", "why"):
        if claim.get(part, "") != "":
            print(fill(f"{' ' * 9}{part}: {number(claim[part])}", width, subsequent_indent=" " * 19))
