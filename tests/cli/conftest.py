"""A small cluster of real processes for the commands that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from server.rig import tidings, tidings_json


class Cluster(NamedTuple):
    folder: Path
    url: str


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    options = ("--replicas", 1, "--durability", "memory", "--port", 0, "--detach", "--dir", folder)
    try:
        up = tidings_json("up", *options)
        yield Cluster(folder, up["regions"][0]["url"])
    finally:
        tidings("down", "--dir", folder)


@pytest.fixture(scope="session")
def url(cluster: Cluster) -> str:
    return cluster.url
