"""`tidings lab`: the papers' experiments, run and judged claim by claim."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.output import BROKEN, Json, count, emit, number, progress, table

STOPPED = 130
"""Exit code after Ctrl-C, as Typer's own."""

app = typer.Typer(
    help="The papers' experiments: list, run and judge them.",
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
    """List the experiments."""
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
    name: Annotated[
        str, typer.Argument(metavar="EXPERIMENT|PAPER", help="An id from `lab list`, or the name of a paper.")
    ],
    scale: Annotated[Scale, typer.Option(help="How large: quick takes minutes, full hours.")] = Scale.quick,
    master: Annotated[str, typer.Option(help="Where Spark runs the simulations.")] = "local[2]",
    out: Annotated[Path, typer.Option(help="Directory for figures and data.")] = Path("build/lab"),
    as_json: Json = False,
) -> None:
    """Run an experiment, or all of a paper. Compares the measurements with the paper's claims."""
    from tidings.lab import experiments

    def measures_machine() -> bool:
        chosen = [each for each in experiments.EXPERIMENTS.values() if name in (each.id, each.paper)]
        return any(experiments.STUDIES[each.study].alone for each in chosen)

    _refuse_file(out)
    with _stoppable(measures_machine), progress(name) as report:
        result = experiments.run(name, scale.value, out, master, report)

    holding = [claim for claim in result["claims"] if claim["verdict"] == "holds"]

    def show() -> None:
        print(f"{len(holding)} of {count(len(result['claims']), 'claim')} hold")
        for claim in result["claims"]:
            print_claim(claim)
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
    master: Annotated[str, typer.Option(help="Where Spark runs the simulations.")] = "local[2]",
    out: Annotated[Path, typer.Option(help="Directory for figures and data.")] = Path("build/lab"),
    as_json: Json = False,
) -> None:
    """Find settings of the fabric by simulation. The result is a table for cluster.toml.

    Exit code 3 if even the best settings do not carry the load.
    """
    from tidings.lab import tune

    _refuse_file(out)
    with _stoppable(), progress("tune") as report:
        result = tune.run(regions, clients, rate, out, master, report)

    def show() -> None:
        tried = [(row["sweep"], *_settings_of(row)) for row in result["tried"]]
        table(f"tried, {result['simulated_clients']} clients per region", ["sweep", *SETTINGS], tried)
        if result["confirmed"]:
            confirmed = [_settings_of(row) for row in result["confirmed"]]
            table(f"confirmed, {result['confirmed_clients']} clients per region", SETTINGS, confirmed)
        print(result["toml"])
        for path in result["figures"]:
            print(path)

    emit(result, as_json, show)
    if not result["enough"]:
        raise typer.Exit(BROKEN)


SETTINGS = ("fanout", "shuffle s", "view", "buffer s", "carried", "finished", "latency s")


def _settings_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A line of SETTINGS; a latency that the end of the run has cut off is over what is known."""
    late = "none" if row["latency"] is None else f"over {row['latency']:.4g}" if row["unfinished"] else row["latency"]
    return (*[row[name] for name in ("fanout", "shuffle", "view", "recv_seconds", "share", "finished")], late)


@contextmanager
def _stoppable(anew: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Ctrl-C is one line. ``anew``: whether some of it measures this machine; such results are not kept."""
    try:
        yield
    except KeyboardInterrupt:
        besides = ", and repeats measurements of this machine" if anew() else ""
        print(f"tidings: stopped; the same command continues{besides}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None


def _refuse_file(out: Path) -> None:
    from tidings.core.errors import BadInput

    for place in (out, *out.parents):
        if place.exists() and not place.is_dir():
            raise BadInput(f"--out {out}: {place} is a file, but figures and data need a directory: choose another")


def print_claim(claim: Mapping[str, Any]) -> None:
    """A claim as a paragraph: the verdict and the statement, then what was measured against what was expected."""
    from shutil import get_terminal_size
    from textwrap import fill

    width = min(get_terminal_size((100, 24)).columns, 120)
    print(fill(f"{claim['verdict']:8} {claim['id']}: {claim['statement']}", width, subsequent_indent=" " * 9))
    for part in ("measured", "simulated", "distance", "expected", "why"):
        if claim.get(part, "") != "":
            print(fill(f"{' ' * 9}{part}: {number(claim[part])}", width, subsequent_indent=" " * 19))
