"""`tidings down`: end a cluster of `tidings up`."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.cluster_options import Directory, Url, supervised_directory
from tidings.cli.output import Json, emit

EXAMPLE = "Example: tidings down --dir .tidings"


def down(
    url: Url = None,
    directory: Directory = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait before processes are killed.")] = 20.0,
    as_json: Json = False,
) -> None:
    """Stop a cluster. Its processes are asked to end; those that are left after the timeout are killed."""
    from tidings.cli.learned_addresses import forget
    from tidings.server.cluster_addresses import cluster_addresses
    from tidings.server.paths import ClusterPaths
    from tidings.server.shutdown import end

    home = supervised_directory(url, directory)
    files = ClusterPaths(home)
    ended = end(files, timeout)
    if files.config_file.exists():
        forget(cluster_addresses(files)[1])
    result = {"dir": str(home), "ended": len(ended), "killed": [each.pid for each in ended if each.killed]}

    def show() -> None:
        print(f"ended {len(ended)} processes" if ended else f"nothing runs in {home}")

    emit(result, as_json, show)
