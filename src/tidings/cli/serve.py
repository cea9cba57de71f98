"""`tidings serve`: one process of a cluster that spans several hosts."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.output import emit

if TYPE_CHECKING:
    from tidings.server.paths import Process
    from tidings.server.topology import BrokerKind

EXAMPLE = "Example: tidings serve replica -c cluster.toml --id r0/p1     (and: tidings serve config ... --id r0/config)"


class Kind(StrEnum):
    """What can be served."""

    replica = "replica"
    relay = "relay"
    edge = "edge"
    config = "config"


def serve(
    kind: Annotated[Kind, typer.Argument(help="Which process to run.", show_default=False)],
    config: Annotated[
        Path, typer.Option("-c", "--config", metavar="CLUSTER.toml", help="The cluster file.", show_default=False)
    ],
    name: Annotated[
        str, typer.Option("--id", metavar="ID", help="Its id: r0/p1, r0/b0, r0/e0 or r0/config.", show_default=False)
    ],
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="For data, logs, run files; default: `data` of the file, or the file's directory."),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of a replica that is not in the file.")
    ] = "",
    journal: Annotated[Path | None, typer.Option(help="Journal all inputs into this directory.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout when it is ready: id, address, pid, admin.")
    ] = False,
) -> None:
    """Run one process of a cluster until SIGTERM.

    Logs go to stderr on a terminal, and to DIR/logs otherwise.
    """
    import sys

    from tidings.server import entrypoints

    if listen and kind is not Kind.replica:
        raise typer.BadParameter(f"--listen is for replicas: the cluster file says where a {kind.value} listens")
    console = sys.stderr.isatty()

    def ready(process: Process) -> None:
        if as_json:
            emit(_facts(process), True, lambda: None)
            sys.stdout.flush()  # the reader may be a pipe

    if kind is Kind.config:
        code = entrypoints.configuration(config, name, directory, console=console, on_ready=ready)
    elif kind is not Kind.replica:
        what: BrokerKind = "relay" if kind is Kind.relay else "edge"
        code = entrypoints.broker(config, what, name, directory, journal=journal, console=console, on_ready=ready)
    else:
        code = entrypoints.replica(
            config, name, directory, listen=listen, journal=journal, console=console, on_ready=ready
        )
    raise typer.Exit(code)


def _facts(process: Process) -> dict[str, Any]:
    from tidings.net.names import name_of

    address = process.id.rpartition("@")[2]
    return {"id": name_of(process.id), "address": address, "pid": process.pid, "admin": process.http_port or None}
