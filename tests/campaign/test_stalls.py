"""The demo says who was told nothing for longest, whether the stream went on meanwhile, and what was broken."""

from __future__ import annotations

from typing import Any

from tidings.campaign.cluster.client_trace import LAG, Evidence, Sent
from tidings.campaign.cluster.stalls import felt, longest_stall
from tidings.core.rows import data_rows
from tidings.core.span import Span

BEGIN = 1000.0
HOME = {"near": "r0", "far": "r1"}
CUT: dict[str, Any] = {"at_s": 4.0, "kind": "cut", "what": "r0-r1"}
HEAL: dict[str, Any] = {"at_s": 10.0, "kind": "heal", "what": "r0-r1"}
KILL: dict[str, Any] = {"at_s": 12.8, "kind": "kill head", "what": "r0/p0"}
RESTART: dict[str, Any] = {"at_s": 15.3, "kind": "restart", "what": "r0/p0"}
FAULTS = [CUT, HEAL, KILL, RESTART]


def told(times: dict[str, list[float]], answered: list[float]) -> Evidence:
    """Subscribers were told of one event each at these times, and the publisher was answered at those."""
    evidence = Evidence()
    for name, found in times.items():
        for at, time in enumerate(found, start=1):
            evidence.receive(name, 1, Span.of("s", at, data_rows(at, [None], [b""])), BEGIN + time)
    evidence.sent = [Sent("s", "p", 1, [], [], acked_at=BEGIN + time) for time in answered]
    return evidence


def test_the_longest_silence_is_found_with_its_subscriber_and_fault() -> None:
    seconds = [float(at) for at in range(1, 20)]
    evidence = told({"near": seconds, "far": [*seconds[:12], 16.5, 17.0, 18.0, 19.0]}, seconds)
    stall = longest_stall(evidence, BEGIN, BEGIN + 20, HOME, FAULTS, {})
    assert stall is not None
    assert (stall.subscriber, stall.region, stall.stream) == ("far", "r1", "s")
    assert (stall.from_s, stall.to_s, stall.seconds) == (12.0, 16.5, 4.5)
    assert stall.stood_still_s == 1.0  # others were told meanwhile: the stream went on
    assert stall.during == ["cut r0-r1 at 4.0 s", "kill head r0/p0 at 12.8 s"]


def test_a_stream_that_stood_still_is_told_apart() -> None:
    evidence = told({"near": [1.0, 6.0]}, [1.0, 5.9])
    stall = longest_stall(evidence, BEGIN, BEGIN + 6, HOME, [], {})
    assert stall is not None and stall.stood_still_s == 4.9 and stall.during == []


def test_a_process_that_was_kept_waiting_is_told_apart_too() -> None:
    evidence = told({"near": [1.0, 6.0]}, [1.0, 2.0, 3.0, 4.0, 5.0])
    for process, time, late in [("a", 0.9, 0.4), ("a", 2.5, 1.0), ("a", 4.5, 1.5), ("b", 3.0, 2.0)]:
        evidence.gauge(process, LAG, late, BEGIN + time)
    stall = longest_stall(evidence, BEGIN, BEGIN + 6, HOME, [], {"near": "a", "far": "b"})
    assert stall is not None and (stall.stood_still_s, stall.process_late_s) == (1.0, 2.5)


def test_who_is_not_asked_about_does_not_count() -> None:
    evidence = told({"late-r0": [1.0, 9.0]}, [])
    assert longest_stall(evidence, BEGIN, BEGIN + 9, HOME, [], {}) is None


def test_a_fault_is_felt_until_a_while_after_its_repair() -> None:
    assert felt(FAULTS, 0.0, 3.9) == []
    assert felt(FAULTS, 12.9, 13.5) == ["cut r0-r1 at 4.0 s", "kill head r0/p0 at 12.8 s"]
    assert felt(FAULTS, 13.1, 13.5) == ["kill head r0/p0 at 12.8 s"]
    assert felt(FAULTS, 18.4, 19.0) == []
