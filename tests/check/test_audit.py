"""The audit proves an honest run, names what is planted in it, and says of the rest that it cannot know."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tidings.check import DELIVERED, PUBLISHED, FaultKind, Trace, table
from tidings.check.audit import COLLECTED, FORGOTTEN, UNKNOWN_FILTER, UNREAD, AuditFindings, Verdict, audit
from tidings.check.tables import LOST
from tidings.core.hashing import WORD, hash_sum, row_hashes

Row = dict[str, Any]

KEYS = [b"a", b"b", b"a", b"c", b"d", b"b", b"a", b"e", b"f", b"c"]  # of the numbers 1 to 10
PRICES = [1.0, 5.0, 5.0, 1.0, 5.0, 5.0, 5.0, 1.0, 5.0, 1.0]
END = 11
LENS = "price > 3.0D"


def content(seq: int) -> int:
    return (seq * 0x9E3779B97F4A7C15) & WORD


def alive(lo: int, hi: int, asof: int) -> list[int]:
    """The numbers that survive, event by event."""
    return [seq for seq in range(lo, hi) if not any(KEYS[later - 1] == KEYS[seq - 1] for later in range(seq + 1, asof))]


class Run:
    """A by-key stream, a subscriber that follows it, one that comes late, one with a filter; open to meddling."""

    def __init__(self) -> None:
        self.events: list[Row] = [
            {
                "stream": "s",
                "seq": seq,
                "count": 1,
                "kind": 0,
                "publisher": "p",
                "session": 1,
                "number": seq,
                "key": key,
                "attrs": json.dumps({"price": PRICES[seq - 1]}),
                "hash": content(seq),
                "committed_hash": content(seq),
            }
            for seq, key in enumerate(KEYS, 1)
        ]
        self.receipts: list[Row] = []
        for lo, hi in ((1, 4), (4, 7), (7, 9), (9, 11)):
            self.deliver("live", lo, hi, asof=lo)
        self.deliver("late", 1, 11, asof=11)
        self.deliver("picky", 1, 11, asof=11, lens=LENS)
        self.ends = {"s": END}

    def deliver(self, subscriber: str, lo: int, hi: int, asof: int, lens: str = "") -> None:
        seqs = [seq for seq in alive(lo, hi, asof) if not lens or PRICES[seq - 1] > 3]
        hashes = np.array([content(seq) for seq in seqs], np.uint64)
        self.receipts.append(
            {
                "subscriber": subscriber,
                "incarnation": 1,
                "n": 1 + sum(each["subscriber"] == subscriber for each in self.receipts),
                "stream": "s",
                "lo": lo,
                "hi": hi,
                "asof": asof,
                "lens": lens,
                "rows": len(seqs),
                "hash_sum": hash_sum(row_hashes(np.array(seqs, np.int64), hashes)),
                "time": float(hi),
            }
        )

    def of(self, subscriber: str, n: int) -> Row:
        return next(each for each in self.receipts if (each["subscriber"], each["n"]) == (subscriber, n))

    def audit(self, *, whole: bool = True) -> AuditFindings:
        columns = {name: [row.get(name) for row in self.events] for name in PUBLISHED.names}
        delivered = {name: [row[name] for row in self.receipts] for name in DELIVERED.names}
        trace = Trace(
            table(PUBLISHED, columns),
            table(DELIVERED, delivered),
            policies={"s": "by-key"},
            attributes={"s": "price double"},
        )
        return audit(trace, self.ends, whole=whole)


def verdicts(found: AuditFindings) -> dict[str, Verdict]:
    return {pair.subscriber: pair.verdict for pair in found.pairs}


def test_an_honest_run_is_proved() -> None:
    found = Run().audit()
    assert found.violations == []
    assert verdicts(found) == dict.fromkeys(["live", "late", "picky"], Verdict.PROVED)
    assert {pair.events for pair in found.pairs} == {10}


def duplicate(run: Run) -> None:
    run.receipts.append(run.of("live", 2) | {"n": 5})


def gap(run: Run) -> None:
    run.receipts.remove(run.of("live", 2))
    run.of("live", 3)["n"], run.of("live", 4)["n"] = 2, 3


def reordering(run: Run) -> None:
    second, third = run.of("live", 2), run.of("live", 3)
    second["n"], third["n"] = 3, 2


def wrong_row(run: Run) -> None:
    run.of("live", 2)["hash_sum"] ^= 1


def missing_row(run: Run) -> None:
    run.of("live", 2)["rows"] -= 1


def collected_row(run: Run) -> None:
    run.of("late", 1)["rows"] += 1


def never_published(run: Run) -> None:
    run.deliver("live", 11, 13, asof=11)


def hidden_behind_a_filter(run: Run) -> None:
    run.of("picky", 1)["rows"] -= 1


PLANTED: list[tuple[Callable[[Run], None], str, set[FaultKind]]] = [
    (duplicate, "live", {FaultKind.TWICE, FaultKind.DISORDER}),
    (gap, "live", {FaultKind.GAP}),
    (reordering, "live", {FaultKind.DISORDER}),
    (wrong_row, "live", {FaultKind.WRONG}),
    (missing_row, "live", {FaultKind.MISSING}),
    (collected_row, "late", {FaultKind.WRONG}),
    (never_published, "live", {FaultKind.UNPUBLISHED}),
    (hidden_behind_a_filter, "picky", {FaultKind.MISSING}),
]


@pytest.mark.parametrize(("plant", "victim", "faults"), PLANTED, ids=[plant.__name__ for plant, _, _ in PLANTED])
def test_what_is_planted_is_found_and_named(plant: Callable[[Run], None], victim: str, faults: set[FaultKind]) -> None:
    run = Run()
    plant(run)
    found = run.audit()
    assert {each.fault for each in found.violations} == faults
    assert {each.where["subscriber"] for each in found.violations} == {victim}
    others = {name: verdict for name, verdict in verdicts(found).items() if name != victim}
    assert verdicts(found)[victim] is Verdict.VIOLATED and set(others.values()) == {Verdict.PROVED}


def test_a_receipt_that_was_kept_twice_counts_once() -> None:
    run = Run()
    run.receipts += [dict(row) for row in run.receipts]
    found = run.audit()
    assert found.violations == [] and {pair.events for pair in found.pairs} == {10}


def test_an_event_with_two_numbers_is_a_violation_of_the_stream() -> None:
    run = Run()
    run.events[9]["number"] = 9
    (found,) = run.audit().violations
    assert found.invariant == "no_duplication" and found.fault is None and found.where["stream"] == "s"


def forgotten_receipt(run: Run) -> None:
    run.receipts.remove(run.of("live", 2))


def forgotten_beginning(run: Run) -> None:
    run.receipts.remove(run.of("live", 1))


def forgotten_beginning_of_another_incarnation(run: Run) -> None:
    run.of("live", 3)["incarnation"] = run.of("live", 4)["incarnation"] = 2


def not_in_the_table_yet(run: Run) -> None:
    run.deliver("live", 11, 13, asof=11)
    run.ends = {"s": 13}


def strange_filter(run: Run) -> None:
    run.of("picky", 1)["lens"] = "region = 'r0'"


def collected_before_it_was_read(run: Run) -> None:
    """The numbers 1 to 3 were read late: as of 8, when 1 was no more."""
    run.events[0] = {"stream": "s", "seq": 1, "count": 1, "kind": 0, "gone": 8}


MISSING = "receipts are missing in one place (collected before they were read, or not taken in time)"
UNKNOWABLE: list[tuple[Callable[[Run], None], str, str]] = [
    (forgotten_receipt, "live", MISSING),
    (forgotten_beginning, "live", MISSING),
    (forgotten_beginning_of_another_incarnation, "live", MISSING),
    (not_in_the_table_yet, "live", f"[11, 13): {UNREAD}"),
    (strange_filter, "picky", f"[1, 11): {UNKNOWN_FILTER}"),
    (collected_before_it_was_read, "live", f"[1, 4): {COLLECTED}"),
]


@pytest.mark.parametrize(("plant", "victim", "why"), UNKNOWABLE, ids=[plant.__name__ for plant, _, _ in UNKNOWABLE])
def test_what_nobody_can_know_is_unverifiable_and_no_violation(
    plant: Callable[[Run], None], victim: str, why: str
) -> None:
    run = Run()
    plant(run)
    found = run.audit()
    assert found.violations == []
    assert verdicts(found) == dict.fromkeys(["live", "late", "picky"], Verdict.PROVED) | {victim: Verdict.UNVERIFIABLE}


@pytest.mark.parametrize(("plant", "victim", "why"), UNKNOWABLE, ids=[plant.__name__ for plant, _, _ in UNKNOWABLE])
def test_what_is_unverifiable_says_which_numbers_and_why(plant: Callable[[Run], None], victim: str, why: str) -> None:
    run = Run()
    plant(run)
    assert {pair.subscriber: pair.detail for pair in run.audit().pairs if pair.detail} == {victim: why}


def test_receipts_may_continue_those_that_were_judged_before() -> None:
    run = Run()
    forgotten_beginning(run)
    assert verdicts(run.audit(whole=False)) == dict.fromkeys(["live", "late", "picky"], Verdict.PROVED)


def test_what_is_gone_hides_nothing_from_later_receipts() -> None:
    run = Run()
    collected_before_it_was_read(run)
    collected_row(run)
    assert {each.fault for each in run.audit().violations} == {FaultKind.WRONG}


def test_a_gone_number_between_hides_who_collected_the_others() -> None:
    """Number 3 collects number 1. Without it, nobody can say of 1 when it died, but that it was dead as of 8."""
    run = Run()
    run.events[2] = {"stream": "s", "seq": 3, "count": 1, "kind": 0, "gone": 8}
    run.deliver("between", 1, 2, asof=5)
    found = verdicts(run.audit())
    assert found == {
        "live": Verdict.UNVERIFIABLE,
        "late": Verdict.PROVED,
        "picky": Verdict.PROVED,
        "between": Verdict.UNVERIFIABLE,
    }


def lose(run: Run, lo: int, hi: int) -> None:
    """The owner declares a range lost, which the published table then has as one run."""
    run.events = [each for each in run.events if not lo <= each["seq"] < hi]
    run.events.append({"stream": "s", "seq": lo, "count": hi - lo, "kind": LOST})


def test_what_was_declared_lost_is_named_and_is_neither_proved_nor_a_violation() -> None:
    run = Run()
    lose(run, 9, 11)  # 9 and 10; without 10 nothing collects 4
    run.receipts = [run.of("live", n) for n in (1, 2, 3)]
    run.receipts.append(run.of("live", 3) | {"n": 4, "lo": 9, "hi": 11, "asof": 9, "rows": 0, "hash_sum": 0})
    found = run.audit()
    assert found.violations == []
    assert [(pair.verdict, pair.lost, pair.events) for pair in found.pairs] == [(Verdict.LOST, 2, 10)]


def test_who_was_handed_what_was_lost_later_is_not_accused() -> None:
    run = Run()
    lose(run, 9, 11)
    run.receipts = [each for each in run.receipts if each["subscriber"] == "live"]
    found = run.audit()
    assert found.violations == [] and verdicts(found) == {"live": Verdict.LOST}


def test_what_a_lost_event_had_collected_is_unverifiable_for_who_was_told_before_the_loss() -> None:
    run = Run()
    lose(run, 7, 11)
    run.receipts = []
    run.deliver("early", 1, 7, asof=9)  # by then 7 had collected 3
    run.deliver("late", 1, 7, asof=7)
    found = run.audit()
    assert found.violations == []
    assert verdicts(found) == {"early": Verdict.UNVERIFIABLE, "late": Verdict.PROVED}
    assert found.pairs[0].detail == f"[1, 7): {FORGOTTEN}"


def test_a_row_that_is_missing_beside_a_loss_is_a_violation() -> None:
    run = Run()
    lose(run, 9, 11)
    run.receipts = [run.of("live", n) for n in (1, 2, 3)]
    run.of("live", 2)["rows"] -= 1
    found = run.audit()
    assert [each.fault for each in found.violations] == [FaultKind.MISSING]
    assert verdicts(found) == {"live": Verdict.VIOLATED}
