"""`tidings replica`: change a region's chain while load runs."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.output import Json, emit
from tidings.cli.where import DIRECTORY, Directory

app = typer.Typer(
    help="Add and remove replicas while the cluster runs.",
    epilog="Example: tidings replica add r0",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("add", epilog="Example: tidings replica add r0 --json")
def add(
    region: Annotated[str, typer.Argument(metavar="REGION", help="Where.", show_default=False)],
    directory: Directory = DIRECTORY,
    as_json: Json = False,
) -> None:
    """Add an empty replica behind the tail; returns when it is the tail."""
    from tidings.cli.where import supervise

    made = supervise(directory, "/replicas/add", {"region": region})
    supervise(directory, "/ready", {"timeout": 25})
    emit(made, as_json, lambda: print(f"{made['id']} at {made['address']}"))


@app.command("remove", epilog="Example: tidings replica remove r0/p1")
def remove(
    replica: Annotated[str, typer.Argument(metavar="ID", help="r0/p1, or r0/tail.", show_default=False)],
    directory: Directory = DIRECTORY,
    as_json: Json = False,
) -> None:
    """Take a replica out of its chain, and stop it for good."""
    from tidings.cli.where import supervise

    gone = supervise(directory, "/replicas/remove", {"replica": replica})
    emit(gone, as_json, lambda: print(f"{gone['id']} is removed"))
