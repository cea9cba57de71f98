"""The addresses of a cluster's replicas, from its directory: for clients, without loading all of cluster_config."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from tidings.server.paths import ClusterPaths, read
from tidings.server.roster import ROSTER, Roster


class _Cluster(msgspec.Struct):
    name: str = "tidings"


class _Region(msgspec.Struct):
    name: str
    replicas: list[str]


class _ClusterFile(msgspec.Struct):
    """What a client needs to know of a cluster file."""

    regions: list[_Region]
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)


def cluster_addresses(files: ClusterPaths, file: Path | None = None) -> tuple[str, list[str]]:
    """The name of a cluster, and where its replicas are; `BadInput` if the cluster file is wrong.

    Replicas that were added or removed while it ran count, unless another ``file`` than the directory's own is named.
    """
    path = file or files.config_file
    try:
        config = msgspec.convert(tomllib.loads(path.read_text()), _ClusterFile)
    except (OSError, ValueError):
        from tidings.server.cluster_config import load  # noqa: PLC0415 - it knows what is wrong, and takes long to load

        load(path)
        raise
    slots = {f"{region.name}/p{at}": each for region in config.regions for at, each in enumerate(region.replicas)}
    roster = (read(files.root / ROSTER, Roster) or Roster()) if file is None else Roster()
    return config.cluster.name, list(roster.apply(slots).values())
