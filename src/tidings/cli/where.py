"""Options that several commands share: which cluster is meant, and how it is reached."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tidings.server.layout import Layout, Process

DIRECTORY = Path(".tidings")
"""Where a cluster is, unless told otherwise; ours, because it is as hidden as it is easy to remove."""

Directory = Annotated[
    Path, typer.Option("--dir", help="The cluster's directory.", envvar="TIDINGS_DIR", file_okay=False)
]
ClusterFile = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", help="A cluster file, for clusters on several hosts.", metavar="CLUSTER.toml", dir_okay=False
    ),
]


def take_plan(files: Layout, config: Path) -> Path:
    """Make a cluster file that of a directory, where other commands find it; `BadInput` if that has another one."""
    from tidings.core.errors import BadInput
    from tidings.server.plan import load

    given = load(config)
    if not files.plan.exists():
        return write_plan(files, config.read_bytes())
    if load(files.plan) != given:
        raise BadInput(f"{files.plan} is another plan than {config}: take another --dir, or edit that file")
    return files.plan


def write_plan(files: Layout, plan: bytes) -> Path:
    """Write the cluster file of a directory that has none, unless a cluster runs there all the same."""
    import os

    from tidings.core.errors import BadInput
    from tidings.server.layout import write_bytes

    lock = files.make().lock()
    try:
        if files.plan.exists():
            raise BadInput(f"{files.plan} has just been written by another command: try again")
        write_bytes(files.plan, plan)
    finally:
        os.close(lock)
    return files.plan


def supervisor_of(directory: Path) -> Process:
    """The supervisor that runs in a directory; raises `BadInput` if there is none."""
    from tidings.core.errors import BadInput
    from tidings.server.layout import SUPERVISOR, Layout

    found = Layout(directory).process(SUPERVISOR)
    if found is None or not found.alive:
        raise BadInput(f"no cluster runs in {directory}: start one with `tidings up --dir {directory} --detach`")
    return found


def supervise(directory: Path, path: str, body: Any = None) -> Any:
    """Call the supervisor of a directory."""
    from tidings.server.http import call

    found = supervisor_of(directory)
    return call(found.admin, path, body, token=found.token)
