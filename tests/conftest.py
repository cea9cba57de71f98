"""The Spark session that tests share, and the one worker that has it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts jobs in the background so, and every process below would inherit it: tests of Ctrl-C need it back.
    signal.signal(signal.SIGINT, signal.default_int_handler)

from tidings.spark.session import spark as session

SESSION = "spark-session"
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""A Java process that lives for minutes starts faster without its optimising compiler."""


@pytest.fixture(scope="session", params=[SESSION])  # the parameter is in the id of every test that uses the session
def spark() -> Iterator[Any]:
    conf = {"spark.sql.streaming.metricsEnabled": "false", "spark.sql.streaming.pollingDelay": "50ms"}
    with session("local[2]", "tests", conf) as found:
        yield found


class OneSession(LoadScopeScheduling):
    """One worker runs the tests that share the Spark session; each other test goes to the next free worker.

    A session takes half a minute to warm up and a gigabyte of memory, so one must do. Other tests of a file beside them
    share a cluster, and have one worker, too. The scheduler knows tests by their ids alone. (The groups of pytest-xdist
    3.8 would do the same, but they have no effect with pytest 9.2.)
    """

    def _split_scope(self, nodeid: str) -> str:
        if SESSION in nodeid:
            return SESSION
        file = nodeid.partition("::")[0]
        return file if file.startswith("tests/spark/") else nodeid


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands under test find no cluster of the user's, and keep what they learn apart from what the user's have."""
    os.environ["TIDINGS_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    for name in ("TIDINGS_URL", "TIDINGS_DIR"):
        os.environ.pop(name, None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSession:
    return OneSession(config, log)
