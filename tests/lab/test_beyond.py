"""What the paper left out: verdicts that follow from the rows, whichever way they point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidings.core.errors import TidingsError
from tidings.core.rows import CountedRows
from tidings.core.span import Span
from tidings.lab import beyond
from tidings.lab.claims import Findings
from tidings.lab.study import Row, Sql
from tidings.protocols.kernel import Received
from tidings.protocols.messages import Know


def verdicts(report: Callable[[Sql, str, Path], Findings], rows: list[Row], out: Path) -> dict[str, bool | None]:
    found = report(lambda query: [dict(row) for row in rows], "quick", out)
    assert all(Path(path).stat().st_size for paths in found.figures.values() for path in paths)
    return {claim.id: claim.holds for claim in found.claims}


def chains(**late: float) -> list[Row]:
    places = [(place, region) for place in beyond.PLACES for region in ("r0", "r1")]
    return [{"place": p, "region": r, "silence": late.get(p, 1.5), "bad": 0} for p, r in places]


def test_a_chain_that_stands_still_for_longer_than_its_timeouts_differs(tmp_path: Path) -> None:
    assert verdicts(beyond.report_failover, chains(), tmp_path) == {"ours.chain": True}
    assert verdicts(beyond.report_failover, chains(middle=4.0), tmp_path) == {"ours.chain": False}
    assert verdicts(beyond.report_failover, chains(head=2.9), tmp_path) == {"ours.chain": False}
    assert verdicts(beyond.report_failover, chains(tail=2.9), tmp_path) == {"ours.chain": True}, "asked the dead one"


@pytest.mark.parametrize(("late", "bad", "holds"), [(0.015, 0, True), (0.025, 0, False), (0.015, 1, False)])
def test_those_who_stay_must_not_notice(late: float, bad: int, holds: bool, tmp_path: Path) -> None:
    rows = [
        {"churn": 0.0, "latency": 0.01, "p99": 0.02, "bad": 0},
        {"churn": 0.2, "latency": late, "p99": 0.05, "bad": bad},
    ]
    assert verdicts(beyond.report_churn, rows, tmp_path) == {"ours.churn": holds}


@pytest.mark.parametrize(("sooner", "rows", "holds"), [(1.0, 100, (True, True)), (5.0, 900, (False, False))])
def test_collection_must_pay(sooner: float, rows: int, holds: tuple[bool, bool], tmp_path: Path) -> None:
    base = {"outage": 8.0, "missed": 1000.0, "bad": 0}
    found = [
        {**base, "gc": "none", "catch_up": 4.0, "rows": 1000.0},
        {**base, "gc": "by-key", "catch_up": sooner, "rows": float(rows)},
    ]
    judged = verdicts(beyond.report_outage, found, tmp_path)
    assert (judged["ours.catch-up"], judged["ours.bandwidth"]) == holds


def constants(silence: dict[str, float], switches: dict[str, float]) -> list[Row]:
    return [{"c": c, "mean": silence[c], "silence": silence[c], "switches": switches[c], "bad": 0} for c in silence]


SILENCE = {"huge": 9.0, "0": 1.0, "in proportion": 1.1, "1000": 1.2}
SWITCHES = {"huge": 0.0, "0": 12.0, "in proportion": 9.0, "1000": 3.0}


@pytest.mark.parametrize(
    ("silence", "switches", "constant", "flapping"),
    [
        ({}, {}, True, True),
        ({"in proportion": 4.0}, {}, False, True),
        ({"huge": 1.0}, {}, False, True),
        ({}, {"1000": 9.0}, True, False),
    ],
)
def test_c_is_judged_by_silence_and_by_changes(
    silence: dict[str, float], switches: dict[str, float], constant: bool, flapping: bool, tmp_path: Path
) -> None:
    rows = constants({**SILENCE, **silence}, {**SWITCHES, **switches})
    judged = verdicts(beyond.report_constant, rows, tmp_path)
    assert judged == {"ours.constant": constant, "ours.flapping": flapping}


@pytest.mark.parametrize(("least", "usual", "holds"), [(0.5, 1.0, True), (1.0, 1.0, False), (0.5, 0.7, False)])
def test_a_cliff_is_one_only_if_there_is_one(least: float, usual: float, holds: bool, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"buffer": 0.02, "share": least, "unfinished": 0, "due": 9, "clients": 60},
        {"buffer": 0.5, "share": usual, "unfinished": 0, "due": 9, "clients": 60},
    ]
    assert verdicts(beyond.report_buffer, rows, tmp_path) == {"ours.buffer": holds}


def test_links_that_vary_are_scripted_as_such() -> None:
    assert {(link.jitter, link.sd) for link in beyond.world(1.0, regions=3).links} == {("constant", 0.0)}
    varying = beyond.world(1.0, regions=3, jitter=beyond.JITTER).links
    assert {(link.jitter, link.sd) for link in varying} == {("normal", beyond.JITTER)}


def test_what_crosses_a_link_is_counted_as_often_as_it_does() -> None:
    watch = beyond.Watch("s0")
    know = Know("s0", (Span.of("s0", 1, CountedRows(1, 11, 10)),), 11)
    for node, src in (("r1/p0", "r0/p2"), ("r1/p0", "r0/p2"), ("r1/c0", "r1/p0"), ("r2/p0", "r0/p2")):
        watch.on_step(1.0, node, 1, Received(src, know), ())
    assert watch.rows_sent("r1", 4, 9) == 10
    assert watch.rows_sent("r1", 11, 20) == 0


def test_silence_needs_somebody_who_was_there() -> None:
    watch = beyond.Watch("s0")
    watch.on_deliver(1.0, "r0/c0", 1, Span.of("s0", 1, CountedRows(1, 11, 10)))
    assert watch.silence("r0", 2.0, 5.0) == 4.0
    with pytest.raises(TidingsError, match="no client of r1"):
        watch.silence("r1", 2.0, 5.0)
