"""Clusters for the tests of this directory, which come first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark.rig import Cluster

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First, since they take longest."""
    items.sort(key=lambda item: HERE not in item.path.parents)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(regions=1, replicas=3, dir=tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(regions=1, replicas=1, dir=tmp_path / "cluster")
    yield made
    made.stop()
