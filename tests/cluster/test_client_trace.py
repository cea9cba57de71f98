"""What clients remember becomes tables in which every kind of loss shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidings.campaign.cluster.client_trace import Evidence, Sent, collected, payload_of
from tidings.check import judge
from tidings.core.rows import data_rows
from tidings.core.span import Span

KEYS: list[bytes | None] = [b"a", b"b", b"a", b"c"]
PAYLOADS = [payload_of("p", number) for number in range(1, 5)]


def sent(first: int, count: int, lo: int | None) -> Sent:
    keys, payloads = KEYS[first - 1 : first - 1 + count], PAYLOADS[first - 1 : first - 1 + count]
    hashes = data_rows(1, keys, payloads).content.tolist()
    return Sent("s", "p", first, hashes, keys, parts=[] if lo is None else [(lo, lo + count)], acked_at=1.0)


def span(lo: int, numbers: list[int], asof: int | None = None) -> Span:
    """The events with these numbers of their publisher, from ``lo`` on."""
    rows = data_rows(lo, [KEYS[at - 1] for at in numbers], [PAYLOADS[at - 1] for at in numbers])
    return Span("s", lo, lo + len(numbers), lo if asof is None else asof, rows)


def good() -> Evidence:
    """Four events, sent in two batches, seen by a witness and received by a subscriber."""
    evidence = Evidence(sent=[sent(1, 2, 1), sent(3, 2, 3)])
    for each in (span(1, [1, 2]), span(3, [3, 4])):
        evidence.witness(each)
        evidence.receive("w", 1, each, 2.0)
        evidence.receive("x", 1, each, 2.0)
    evidence.alive("w", {"s": 5}, 3.0)
    evidence.alive("x", {"s": 5}, 3.0)
    return evidence


def broken(evidence: Evidence, policy: str = "none") -> set[str]:
    return {violation.invariant for violation in judge(evidence.trace({"s": policy}))}


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    evidence = good()
    assert broken(evidence) == set()
    assert (evidence.published, evidence.delivered, evidence.ends()) == (4, 8, {"s": 5})


def test_what_the_witness_did_not_see_is_taken_from_the_acknowledgement() -> None:
    evidence = good()
    evidence.seen.clear()
    assert broken(evidence) == set()
    assert collected(evidence.trace({"s": "by-key"})) == 1


def lose_the_end(evidence: Evidence) -> None:
    """Numbers 5 and 6 were acknowledged, and nobody was ever told of them."""
    lost = sent(1, 2, 5)
    lost.publisher = "q"
    evidence.sent.append(lost)


def lose_and_reuse(evidence: Evidence) -> None:
    """Numbers 1 and 2 were acknowledged to somebody else, whose events are nowhere."""
    lost = sent(1, 2, 1)
    lost.publisher = "q"
    lost.hashes = [1, 2]
    evidence.sent.append(lost)


def commit_twice(evidence: Evidence) -> None:
    again = span(5, [3, 4])
    evidence.witness(again)
    for subscriber in ("w", "x"):
        evidence.receive(subscriber, 1, again, 2.5)
    for gauge in evidence.gauges:
        gauge.value = 7


def deliver_twice(evidence: Evidence) -> None:
    evidence.receive("x", 1, span(3, [3, 4]), 2.5)


def leave_a_hole(evidence: Evidence) -> None:
    evidence.receive("y", 1, span(1, [1]), 2.0)
    evidence.receive("y", 1, span(3, [3, 4]), 2.0)
    evidence.alive("y", {"s": 5}, 3.0)


def stop_short(evidence: Evidence) -> None:
    evidence.receipts = [each for each in evidence.receipts if (each.subscriber, each.lo) != ("x", 3)]
    evidence.gauges[1].value = 3


def drop_a_row(evidence: Evidence) -> None:
    evidence.receipts[1].rows = 1


def alter_a_row(evidence: Evidence) -> None:
    evidence.seen[0].hashes[0] += 1


def swap(evidence: Evidence) -> None:
    evidence.sent[0].parts, evidence.sent[1].parts = [(3, 5)], [(1, 3)]


def begin_late(evidence: Evidence) -> None:
    evidence.began("x", {"s": 3}, 3.0)


def stop_answering(evidence: Evidence) -> None:
    evidence.gauge("p", "unanswered_batches", 1, 3.0, 0)


@pytest.mark.parametrize(
    ("mishap", "by"),
    [
        (lose_the_end, "acknowledged"),
        (lose_and_reuse, "acknowledged"),
        (commit_twice, "no_duplication"),
        (deliver_twice, "no_duplication"),
        (leave_a_hole, "acknowledged"),
        (stop_short, "convergence"),
        (drop_a_row, "completeness"),
        (alter_a_row, "integrity"),
        (swap, "acknowledged"),
        (begin_late, "bounded"),
        (stop_answering, "bounded"),
    ],
)
def test_a_mishap_is_found(mishap: Callable[[Evidence], None], by: str) -> None:
    evidence = good()
    mishap(evidence)
    assert by in broken(evidence)


def test_a_row_that_outlives_its_collector_is_found() -> None:
    evidence = good()
    assert "finality" not in broken(evidence, "by-key")
    evidence.receive("late", 1, span(1, [1, 2, 3, 4], asof=5), 4.0)
    assert "finality" in broken(evidence, "by-key")
