"""How the tests are dealt out to the workers of `make test`."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ALONE = "tests/spark/test_faults.py"
"""Tests of Spark that start drivers of their own and have no use for the session."""


class OneSession(LoadScopeScheduling):
    """The tests that share a Spark session go to one worker, in one piece; all others to whoever is free.

    A session and its cluster take a minute to warm up and a gigabyte to keep: one is enough.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/spark/") and not nodeid.startswith(ALONE) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSession:
    return OneSession(config, log)
