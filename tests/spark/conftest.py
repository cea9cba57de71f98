"""One Spark session and one cluster for all tests of this directory that want them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.rig import Cluster
from tidings.spark.session import spark as session

HERE = Path(__file__).parent
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""A Java that lives for minutes had better not optimise."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First, since they take longest."""
    items.sort(key=lambda item: HERE not in item.path.parents)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    conf = {"spark.sql.streaming.metricsEnabled": "false", "spark.sql.streaming.pollingDelay": "50ms"}
    with session("local[2]", "tests", conf) as found:
        yield found


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
