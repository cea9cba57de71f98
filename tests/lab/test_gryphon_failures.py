"""GR4 to GR6: the judges can fail, and a simulated failure looks as the paper says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidings.lab import experiments
from tidings.lab.claims import Claim
from tidings.lab.gryphon import failure_verdicts as verdicts
from tidings.lab.gryphon import failures
from tidings.lab.gryphon.failures import FaultRun, Nacked
from tidings.lab.gryphon.topology import CELLS, EDGES, NODE, carried_by, client_of, evenly

STALL, STREAMS = 2.5, ("t1", "t2", "t3", "t4")
OVER_B1 = STREAMS[:2]
HIT = {"link": ("s1",), "relay": ("s1", "s2"), "site": tuple(EDGES)}
ONLY_DIFFERS = {"GR4.chopped", "GR5.second-peak"}  # as they do in the simulation


def ideal(fault: str, seed: int = 0) -> FaultRun:
    """What the paper lets us expect of one run."""
    repaired = STALL + failures.REPAIR[fault]
    end = repaired + 8.0
    latency: dict[str, dict[str, Any]] = {}
    for edge in EDGES:
        latency[edge] = {}
        for stream in STREAMS:
            sent = np.arange(-5.0, end, 0.04) + 0.01
            if fault == "site":
                sent = sent[(sent < STALL) | (sent > repaired + 0.5)]
            took = np.full(len(sent), 0.003)
            lost = (sent > 0) & (sent < STALL)
            if edge in HIT[fault] and (fault == "site" or stream in OVER_B1):
                took[lost] = (repaired if fault == "site" else STALL) + 0.25 - sent[lost]
            latency[edge][stream] = sent, took
    at = (repaired if fault == "site" else STALL) + 0.25
    missed = STREAMS if fault == "site" else OVER_B1
    nacks = [Nacked(at, edge, "b2", stream, 62) for edge in HIT[fault] for stream in missed]
    nacks += [
        Nacked(at, above, "p1", stream, 62)
        for above in (("b2", "b3") if fault == "site" else ("b2",))
        for stream in missed
    ]
    said = dict.fromkeys(STREAMS, 1.0) if fault == "site" else {}
    return FaultRun(fault, seed, STALL, repaired, end, OVER_B1, latency, nacks, said, 0, 900, 0)


def judged(*runs: FaultRun) -> dict[str, Claim]:
    claims = [judge(runs) for judge in verdicts.JUDGES[runs[0].fault]]
    return {claim.id: claim for claim in claims}


def overall(*more: FaultRun) -> dict[str, Claim]:
    runs = [*map(ideal, failures.REPAIR), *more]
    return {claim.id: claim for claim in [judge(runs) for judge in verdicts.OVERALL]}


def slower(run: FaultRun, edge: str, lo: float, hi: float, seconds: float) -> FaultRun:
    """What an edge's subscriber gets that was sent in [lo, hi) takes longer."""
    changed = {
        stream: (sent, took + seconds * ((sent >= lo) & (sent < hi)))
        for stream, (sent, took) in run.latency[edge].items()
    }
    return replace(run, latency={**run.latency, edge: changed})


def asking(run: FaultRun, *more: Nacked, without: str = "") -> FaultRun:
    return replace(run, nacks=[*[nack for nack in run.nacks if nack.by != without], *more])


@pytest.mark.parametrize("fault", failures.REPAIR)
def test_what_the_paper_describes_is_found_to_hold(fault: str) -> None:
    found = judged(ideal(fault), replace(ideal(fault), seed=1))
    assert tuple(found) == verdicts.claim_ids(fault)
    assert {ident for ident, claim in found.items() if not claim.holds} <= ONLY_DIFFERS
    assert all(claim.json()["why"] for claim in found.values() if not claim.holds)


LINK, RELAY, SITE = ideal("link"), ideal("relay"), ideal("site")
PARTS = [Nacked(3.0 + at / 10, "s1", "b2", stream, 20) for at in range(3) for stream in OVER_B1]
WRONG: list[tuple[str, FaultRun]] = [
    ("GR4.latency", slower(LINK, "s1", 0.0, 0.1, 0.6)),
    ("GR4.saw-tooth", slower(LINK, "s1", 1.5, STALL, 1.0)),
    ("GR4.nacks", asking(LINK, Nacked(1.0, "s1", "b2", "t1", 9))),
    ("GR4.nacks", asking(LINK, Nacked(2.9, "s1", "b1", "t1", 9))),
    ("GR4.nacks", asking(LINK, without="s1")),
    ("GR4.untouched", slower(LINK, "s2", 1.0, 1.1, 0.3)),
    ("GR4.untouched", asking(LINK, Nacked(2.9, "s2", "b2", "t1", 1))),
    ("GR4.after", slower(LINK, "s1", 8.0, 8.1, 0.3)),
    ("GR4.exactly-once", replace(LINK, violations=1)),
    ("GR5.latency", slower(RELAY, "s1", 0.0, 0.1, 0.6)),
    ("GR5.alike", asking(RELAY, Nacked(2.9, "s2", "b2", "t1", 40))),
    ("GR5.range", asking(RELAY, Nacked(2.9, "s1", "b2", "t1", 40), Nacked(2.9, "s2", "b2", "t1", 40))),
    ("GR5.consolidation", asking(RELAY, *[Nacked(2.9, "b2", "p1", stream, 62) for stream in OVER_B1])),
    ("GR5.consolidation", asking(RELAY, without="b2")),
    ("GR5.restart", asking(RELAY, Nacked(33.0, "s1", "b1", "t1", 2))),
    ("GR5.untouched", asking(RELAY, Nacked(2.9, "s4", "b3", "t1", 2))),
    ("GR5.after", slower(RELAY, "s1", 33.0, 33.1, 0.3)),
    ("GR6.silent", asking(SITE, Nacked(12.0, "s3", "b3", "t1", 2))),
    ("GR6.ack-expected", replace(SITE, said_first={**SITE.said_first, "t2": 0.0})),
    ("GR6.ack-expected", replace(SITE, said_first={})),
    ("GR6.ack-expected", asking(SITE, without="s4")),
    ("GR6.unsent", slower(SITE, "s1", 1.0, STALL, 5.0)),
    ("GR6.unsent", slower(SITE, "s1", 0.0, STALL, -30.0)),
    ("GR6.back", slower(SITE, "s1", 25.0, 26.0, 1.0)),
]


@pytest.mark.parametrize(("ident", "run"), WRONG)
def test_one_bad_run_among_good_ones_is_found_to_differ(ident: str, run: FaultRun) -> None:
    assert judged(ideal(run.fault), run)[ident].holds is False


def test_the_claims_over_all_failures_can_differ() -> None:
    assert all(claim.holds for claim in overall().values())
    many = [Nacked(2.9, "b2", "p1", "t1", 62) for _ in range(5)]
    assert not overall(asking(RELAY, *many))["GR7.nacks"].holds
    assert not overall(asking(RELAY, without="b2"))["GR7.nacks"].holds
    assert not overall(slower(RELAY, "s3", 1.0, 2.0, 0.3))["GR7.localised"].holds
    assert not overall(asking(LINK, Nacked(2.9, "s2", "b2", "t1", 1)))["GR7.localised"].holds
    assert not overall(replace(SITE, stored_elsewhere=1))["GR7.storage"].holds
    assert not overall(replace(SITE, stored=0))["GR7.storage"].holds


def test_several_nacks_and_a_second_peak_would_be_found() -> None:
    assert judged(asking(LINK, *PARTS, without="s1"))["GR4.chopped"].holds
    assert judged(slower(RELAY, "s1", 33.0, 33.1, 0.1))["GR5.second-peak"].holds


def test_gaps_repetitions_and_what_never_came_are_counted() -> None:
    spans = [(edge, "t1", 5, 7) for edge in EDGES] + [(edge, "t1", 7, 9) for edge in EDGES]
    came = [(edge, "t1", number, 0.0, 0.0) for edge in EDGES for number in range(5, 9)]
    assert failures.violations(spans, came, {"t1": 9}) == 0
    assert failures.violations(spans, came, {"t1": 10}) == len(EDGES), "the last never came"
    assert failures.violations(spans, came[1:], {"t1": 9}) == 1, "one is missing"
    assert failures.violations(spans, [*came, came[0]], {"t1": 9}) == 1, "one came twice"
    assert failures.violations(spans[1:], came, {"t1": 9}) > 0, "nothing covers the first"
    assert failures.violations([], [], {"t1": 9}) == len(EDGES)


def test_each_relay_carries_half_of_the_streams_and_each_client_prefers_its_edge() -> None:
    cells = [[NODE[relay] for relay in cell] for cell in CELLS.values()]
    streams = evenly(cells)
    for cell in cells:
        assert sorted(carried_by(stream, cell) for stream in streams) == sorted([*cell, *cell])
    edges = [NODE[edge] for edge in EDGES]
    assert len({client_of(edge, edges, "c") for edge in edges}) == len(edges)


@pytest.mark.parametrize("fault", failures.REPAIR)
def test_gr4_gr5_gr6_a_simulated_failure_looks_as_the_paper_says(fault: str) -> None:
    point = {"fault": fault, "seed": 0}
    rows = [{**point, **row} for row in failures.measure(point)]
    (run,) = failures.read(lambda query: rows)
    assert {ident for ident, claim in judged(run).items() if not claim.holds} <= ONLY_DIFFERS


MUST = (
    *("GR4.latency", "GR4.untouched", "GR4.exactly-once", "GR5.latency", "GR5.consolidation", "GR5.untouched"),
    *("GR5.exactly-once", "GR6.silent", "GR6.ack-expected", "GR6.exactly-once"),
)
"""What must hold in simulation and on real processes."""


@pytest.mark.check
def test_all_of_gryphon_runs_and_what_must_hold_holds(tmp_path: Path) -> None:
    found = experiments.run("gryphon", "quick", tmp_path)
    verdicts_of = {claim["id"]: claim["verdict"] for claim in found["claims"]}
    promised = {claim for each in experiments.EXPERIMENTS.values() if each.paper == "gryphon" for claim in each.claims}
    assert set(verdicts_of) == promised
    assert [ident for ident in MUST if verdicts_of[ident] != "holds"] == []
    assert [ident for ident in MUST if verdicts_of[f"real.{ident}"] != "holds"] == []
    assert all(Path(path).stat().st_size for path in found["figures"])
