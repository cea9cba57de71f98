"""`tidings fault`: inject faults into a cluster that was started with `tidings up --lab`, and undo them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.cluster_options import Directory, Url, supervise, supervised_directory
from tidings.cli.output import Json, emit

app = typer.Typer(
    help="Inject faults into a cluster, and undo them. It must have been started with `tidings up --lab`.",
    epilog="Example: tidings fault kill r0/head",
    no_args_is_help=True,
    rich_markup_mode=None,
)
A = Annotated[str, typer.Argument(metavar="A", help="A region.", show_default=False)]
B = Annotated[str, typer.Argument(metavar="B", help="Another region.", show_default=False)]
Name = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="r0/p1, or r0/head, r0/middle, r0/tail; a relay r0/b0; an edge r0/e0.", show_default=False
    ),
]


@app.command("cut", epilog="Example: tidings fault cut r0 r1")
def cut(a: A, b: B, url: Url = None, directory: Directory = None, as_json: Json = False) -> None:
    """Cut the link between two regions."""
    _fault(supervised_directory(url, directory), as_json, kind="cut", a=a, b=b)


@app.command("heal", epilog="Example: tidings fault heal r0 r1")
def heal(a: A, b: B, url: Url = None, directory: Directory = None, as_json: Json = False) -> None:
    """Restore the link between two regions."""
    _fault(supervised_directory(url, directory), as_json, kind="heal", a=a, b=b)


@app.command("kill", epilog="Example: tidings fault kill r0/p1")
def kill(replica: Name, url: Url = None, directory: Directory = None, as_json: Json = False) -> None:
    """Kill a process (SIGKILL); it stays down until `restart`."""
    _fault(supervised_directory(url, directory), as_json, kind="kill", replica=replica)


@app.command("pause", epilog="Example: tidings fault pause r0/tail --seconds 5")
def pause(
    replica: Name,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="For how long.", show_default=False)],
    url: Url = None,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Stop a process (SIGSTOP) for some seconds. Then it continues (SIGCONT)."""
    _fault(supervised_directory(url, directory), as_json, kind="pause", replica=replica, seconds=seconds)


@app.command("restart", epilog="Example: tidings fault restart r0/p1")
def restart(replica: Name, url: Url = None, directory: Directory = None, as_json: Json = False) -> None:
    """Start a killed process again; one that runs is stopped first."""
    _fault(supervised_directory(url, directory), as_json, kind="restart", replica=replica)


def _fault(directory: Path, as_json: bool, **fault: Any) -> None:
    supervise(directory, "/fault", fault)
    emit({**fault, "done": True}, as_json, lambda: print(" ".join(str(value) for value in fault.values())))
