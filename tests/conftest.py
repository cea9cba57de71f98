"""How the tests are dealt out to the workers of `make test`."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"
APART = ("faults", "lake", "live_command", "pipeline_refusals", "reader", "restore", "standing")
"""Its tests that have no use for the session: without Spark, or with drivers of their own."""
ALSO = ("tests/lab/test_collection.py::test_the_queries_ask_spark",)
"""Tests of other places that have."""


class OneSession(LoadScopeScheduling):
    """The tests that share a Spark session go to one worker, in one piece; all others to whoever is free.

    A session and its cluster take a minute to warm up and a gigabyte to keep: one is enough.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(ALSO):
            return SPARK
        if not nodeid.startswith(SPARK):
            return nodeid
        file = nodeid.partition("::")[0]
        return file if file in {f"{SPARK}test_{name}.py" for name in APART} else SPARK


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSession:
    return OneSession(config, log)
