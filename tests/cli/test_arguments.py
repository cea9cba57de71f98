"""Numbers that nothing can hold, and bytes that are no text: one line, and an exit code."""

from __future__ import annotations

import pytest

from cli.conftest import Cluster
from server.rig import tidings

HUGE = "9" * 23
HIGHEST = str((1 << 63) - 1)
ODD = "\udcff"  # what Python makes of the byte ff


@pytest.mark.parametrize(
    "command",
    [
        f"sub s --start {HUGE}",
        f"sub s --start {'9' * 5000}",
        f"why s {HUGE}",
        f"collect s --before {HUGE}",
        "collect s --before -5",
        f"stream declare-lost s --from 1 --to {HUGE}",
        f"stream declare-lost s --from {HUGE} --to {HUGE}",
        f"replay s --lake /nowhere --from {HUGE}",
        f"replay s --lake /nowhere --to {HUGE}",
    ],
)
def test_a_number_that_no_stream_can_reach_is_wrong_usage(command: str) -> None:
    said = tidings(*command.split(), code=2)
    assert "Traceback" not in said and "Invalid value for" in said


def test_the_highest_number_is_answered(cluster: Cluster) -> None:
    tidings("stream", "create", "numbers", "--region", "r0", "--dir", cluster.folder)
    where = ("--url", cluster.url)
    assert tidings("why", "numbers", HIGHEST, *where) == f"numbers {HIGHEST}: not published yet\n"
    assert "collects" in tidings("collect", "numbers", "--before", HIGHEST, *where)
    assert tidings("why", "numbers", 1, *where) == "numbers 1: a row, not collected\n"


@pytest.mark.parametrize(
    "command",
    [
        f"stream create {ODD} --region r0",
        f"stream create s --region r0 --attrs {ODD}",
        f"sub s --name {ODD}",
        f"collect s --where {ODD}",
        f"fault kill {ODD}",
    ],
)
def test_an_argument_that_is_no_text_is_one_line(command: str) -> None:
    said = tidings(*command.split(), code=1)
    assert said.startswith(r"tidings: '\udcff' is not UTF-8: ") and said.count("\n") == 1


@pytest.mark.parametrize("option", ["--url", "--token"])
def test_where_a_cluster_is_must_be_text_for_pub_too(option: str) -> None:
    assert r"'\udcff' is not UTF-8" in tidings("pub", "s", option, ODD, "x", code=2)
