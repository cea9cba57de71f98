"""A region in memory that lost all replicas may declare numbers lost and forget sessions; nothing else is excused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidings.campaign.cluster.client_trace import Evidence, Sent, payload_of
from tidings.campaign.cluster.load import SESSIONS_FORGOTTEN, SUBSCRIPTIONS_ENDED
from tidings.campaign.cluster.memory_loss import judge_losses, memory_losses, unjustified
from tidings.check import Violation
from tidings.core.rows import data_rows
from tidings.core.span import Span
from tidings.server.memory_regions import BOOTSTRAPPED
from tidings.server.paths import SUPERVISOR, ClusterPaths
from tidings.server.replica import STARTED

KEYS: list[bytes | None] = [b"a", b"b", b"c", b"a", b"d"]
STREAMS = {"s": ("r0", "by-key")}
HOLE = Span.declared_lost("s", 4, 9)


def events(lo: int, numbers: list[int]) -> tuple[list[bytes | None], list[bytes]]:
    return [KEYS[at - 1] for at in numbers], [payload_of("p", at) for at in numbers]


def sent(first: int, count: int, lo: int) -> Sent:
    keys, payloads = events(lo, list(range(first, first + count)))
    return Sent("s", "p", first, data_rows(1, keys, payloads).content.tolist(), keys, parts=[(lo, lo + count)])


def span(lo: int, numbers: list[int], asof: int | None = None) -> Span:
    return Span("s", lo, lo + len(numbers), lo if asof is None else asof, data_rows(lo, *events(lo, numbers)))


def with_a_loss() -> Evidence:
    """Of four acknowledged events r1 got three; r0 lost the fourth, declared [4, 9) lost, and went on with 9."""
    evidence = Evidence(sent=[sent(1, 3, 1), sent(4, 1, 4), sent(5, 1, 9)])
    for name, spans in (
        ("witness-r0", [span(1, [1, 2, 3]), span(4, [4]), Span.declared_lost("s", 5, 9), span(9, [5])]),
        ("witness-r1", [span(1, [1, 2, 3]), HOLE, span(9, [5])]),
    ):
        for each in spans:
            evidence.witness(each, name)
            evidence.receive(name, 1, each, 2.0)
        evidence.alive(name, {"s": 10}, 3.0)
    return evidence


def broken(evidence: Evidence, *regions: str) -> set[str]:
    return {violation.invariant for violation in judge_losses(evidence, STREAMS, set(regions))[1]}


def test_what_a_region_without_memory_declares_lost_is_no_violation() -> None:
    assert broken(with_a_loss(), "r0") == set()


def test_what_must_hold_of_a_fabric_is_demanded_of_real_processes_too() -> None:
    odd = Violation("odd", {}, "the fabric's own invariant")
    assert judge_losses(with_a_loss(), STREAMS, {"r0"}, (lambda trace: [odd],))[1] == [odd]


def test_what_a_region_declares_lost_that_lost_nothing_is_a_violation() -> None:
    assert "memory" in broken(with_a_loss())


def test_a_lost_number_that_another_region_has_delivered_is_a_violation() -> None:
    evidence = with_a_loss()
    evidence.witness(span(4, [4]), "witness-r1")
    assert broken(evidence, "r0") == {"memory"}


def test_an_acknowledged_event_outside_of_the_lost_range_is_still_demanded() -> None:
    evidence = with_a_loss()
    evidence.sent.append(sent(1, 1, 10))
    evidence.sent[-1].publisher = "q"
    assert "acknowledged" in broken(evidence, "r0")


def test_a_row_that_a_lost_event_had_collected_may_be_missing() -> None:
    evidence = with_a_loss()
    left = Span("s", 1, 4, 5, data_rows(1, *events(1, [1, 2, 3])).slice(2, 4))  # as of 5, event 4 has collected event 1
    evidence.receive("plain-r0", 1, left, 2.0)
    assert broken(evidence, "r0") == set()


def test_a_row_that_no_event_below_the_loss_has_collected_may_not_be_missing() -> None:
    for asof, verdict in ((4, {"completeness"}), (5, set[str]())):  # as of 5, the lost event 4 may have collected it
        evidence = with_a_loss()
        left = Span("s", 1, 4, asof, data_rows(1, *events(1, [1, 2, 3])).slice(3, 4))
        evidence.receive("plain-r0", 1, left, 2.0)
        assert broken(evidence, "r0") == verdict


def test_only_a_cache_of_a_region_without_memory_may_begin_again_at_the_end() -> None:
    evidence = with_a_loss()
    evidence.receive("cache-r0", 1, span(1, [1, 2]), 2.0)
    evidence.receive("cache-r0", 2, span(9, [5]), 2.0)
    evidence.alive("cache-r0", {"s": 10}, 3.0)
    assert broken(evidence, "r0") == set()
    for each in evidence.receipts[-2:]:
        each.subscriber = "cache-r1"
    evidence.gauges[-1].node = "cache-r1"
    assert broken(evidence, "r0") == {"acknowledged"}


def test_only_a_region_without_memory_may_forget_sessions() -> None:
    evidence = with_a_loss()
    evidence.gauge("p", SESSIONS_FORGOTTEN, 1, 3.0, 0)
    assert broken(evidence, "r0") == set()
    assert "bounded" in broken(Evidence(sent=evidence.sent, gauges=evidence.gauges))


def test_only_subscriptions_in_a_region_without_memory_may_end() -> None:
    evidence = with_a_loss()
    evidence.gauge("plain-r0", SUBSCRIPTIONS_ENDED, 1, 3.0, 0)
    assert broken(evidence, "r0") == set()
    evidence.gauges[-1].node = "plain-r1"
    assert broken(evidence, "r0") == {"bounded"}


def test_only_a_number_that_a_forgotten_session_may_have_got_may_be_without_an_event() -> None:
    evidence = with_a_loss()
    unseen = Span("s", 1, 5, 5, data_rows(1, *events(1, [1, 2, 3])).slice(2, 4))
    evidence.sent[1].parts = []
    evidence.seen = [rows for rows in evidence.seen if rows.seqs != [4]]
    evidence.receipts = [each for each in evidence.receipts if (each.subscriber, each.lo) != ("witness-r0", 4)]
    evidence.lost = [("s", 5, 9)]
    evidence.receive("plain-r1", 1, unseen, 2.0)
    assert "integrity" in broken(evidence, "r0")
    evidence.sent[1].forgotten = True
    assert "integrity" not in broken(evidence, "r0")


@pytest.mark.parametrize(("killed", "wrong"), [({11, 12}, 0), ({11}, 1), ({10, 12}, 1)])
def test_a_region_may_begin_again_only_if_the_last_process_of_every_member_was_killed(
    tmp_path: Path, killed: set[int], wrong: int
) -> None:
    files = ClusterPaths(tmp_path).make()
    members = ["r0/p0@h:1", "r0/p1@h:2"]
    starts = {"r0/p0": [("1", 10), ("2", 11), ("9", 13)], "r0/p1": [("2", 12)]}
    for (slot, runs), member in zip(starts.items(), members, strict=True):
        lines = [{"event": STARTED, "id": member, "pid": pid, "timestamp": at} for at, pid in runs]
        files.log(slot).write_bytes(b"\n".join([msgspec.json.encode(line) for line in lines]))
    said = {"event": BOOTSTRAPPED, "region": "r0", "members": members, "timestamp": "5"}
    files.log(SUPERVISOR).write_bytes(b"Traceback\n" + msgspec.json.encode(said))
    losses = memory_losses(files)
    assert [loss.region for loss in losses] == ["r0"]
    assert len(unjustified(files, losses, killed)) == wrong
