"""`tidings down`: end a cluster of `tidings up`."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.output import Json, emit
from tidings.cli.where import DIRECTORY, Directory

EXAMPLE = "Example: tidings down --dir .tidings"


def down(
    directory: Directory = DIRECTORY,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds until processes are killed.")] = 20.0,
    as_json: Json = False,
) -> None:
    """End a cluster: gracefully, then, after a while, by killing the processes its run files name."""
    from tidings.server.ending import end
    from tidings.server.layout import Layout

    ended = end(Layout(directory), timeout)
    result = {"dir": str(directory), "ended": len(ended), "killed": [each.pid for each in ended if each.killed]}

    def show() -> None:
        print(f"ended {len(ended)} processes" if ended else f"nothing runs in {directory}")

    emit(result, as_json, show)
