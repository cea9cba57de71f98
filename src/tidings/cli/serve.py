"""`tidings serve`: one process of a cluster that spans several hosts."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "Example: tidings serve replica -c cluster.toml --id r0/p1     (and: tidings serve config ... --id r0/config)"


class Kind(StrEnum):
    """What can be served."""

    replica = "replica"
    config = "config"
    edge = "edge"


def serve(
    kind: Annotated[Kind, typer.Argument(help="What to be.", show_default=False)],
    config: Annotated[
        Path, typer.Option("-c", "--config", metavar="CLUSTER.toml", help="The cluster file.", show_default=False)
    ],
    name: Annotated[
        str, typer.Option("--id", metavar="ID", help="Who to be: r0/p1, or r0/config.", show_default=False)
    ],
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="For data, logs, run files; default: `data` of the file, or the file's directory."),
    ] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="For a replica that is not in the file.")] = "",
    journal: Annotated[Path | None, typer.Option(help="Journal all inputs into this directory.")] = None,
) -> None:
    """Run one replica or configuration service until SIGTERM.

    Logs go to stderr on a terminal, and to DIR/logs otherwise.
    """
    import sys

    from tidings.core.errors import BadInput
    from tidings.server import serving

    if kind is Kind.edge:
        raise BadInput("serve edge: edges are not built yet; clients connect to replicas")
    console = sys.stderr.isatty()
    if kind is Kind.config:
        code = serving.configuration(config, name, directory, console=console)
    else:
        code = serving.replica(config, name, directory, listen=listen, journal=journal, console=console)
    raise typer.Exit(code)
