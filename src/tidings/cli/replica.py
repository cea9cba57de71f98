"""`tidings replica`: change a region's chain while load runs."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.cluster_options import Directory, Url, supervise, supervised_directory
from tidings.cli.output import Json, emit

app = typer.Typer(
    help="Add, remove and bootstrap replicas while the cluster runs.",
    epilog="Example: tidings replica add r0",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("add", epilog="Example: tidings replica add r0 --json")
def add(
    region: Annotated[str, typer.Argument(metavar="REGION", help="The region.", show_default=False)],
    url: Url = None,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Add an empty replica behind the tail. Returns when it is the tail."""
    home = supervised_directory(url, directory)
    made = supervise(home, "/replicas/add", {"region": region})
    supervise(home, "/ready", {"timeout": 25})
    emit(made, as_json, lambda: print(f"{made['id']} at {made['address']}"))


@app.command("remove", epilog="Example: tidings replica remove r0/p1")
def remove(
    replica: Annotated[str, typer.Argument(metavar="ID", help="r0/p1, or r0/tail.", show_default=False)],
    url: Url = None,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Take a replica out of its chain, and stop it for good."""
    gone = supervise(supervised_directory(url, directory), "/replicas/remove", {"replica": replica})
    emit(gone, as_json, lambda: print(f"{gone['id']} is removed"))


@app.command("bootstrap", epilog="Example: tidings replica bootstrap r0")
def bootstrap(
    region: Annotated[str, typer.Argument(metavar="REGION", help="Which.", show_default=False)],
    url: Url = None,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Start a region in memory again whose replicas all died. It is empty: its streams have to be created again.

    A cluster of several regions needs no command: there the region takes its streams back from the others by itself.
    """
    home = supervised_directory(url, directory)
    made = supervise(home, "/regions/bootstrap", {"region": region})
    supervise(home, "/ready", {"timeout": 25})
    emit(made, as_json, lambda: print(f"{region} runs again, empty: {', '.join(made['replicas'])}"))
