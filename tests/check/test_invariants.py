"""Every invariant accepts an honest run and finds what is planted in it, under the right name.

The honest run: an Arrow stream ``s`` collected by key and by "before 3", and a counted stream ``c``; one subscriber
that follows live and is restarted, one that comes late and sees only survivors; a chain of three replicas, of which
one is cut back and one starts again with an empty disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tidings.check import DELIVERED, GAUGE, LOG, PUBLISHED, LogEvent, Trace, judge, table
from tidings.core.hashing import hash_sum, row_hashes

Row = dict[str, Any]

KEYS = [b"a", b"b", b"a", b"c", None, b"b", b"a", b"d"]  # of the numbers 1 to 8; number 5 collects before 3


class Run:
    """The rows of a trace, open to meddling."""

    def __init__(self) -> None:
        self.events = [self._event(seq, key) for seq, key in enumerate(KEYS, 1)]
        self.runs = [
            _counted(1, 100),
            _counted(101, 1) | {"kind": 1, "before": 51},
            _counted(102, 99),
        ]
        self.receipts: list[Row] = []
        self.deliver("live", 1, 4, asof=1)
        self.deliver("live", 4, 7, asof=6)
        self.deliver("live", 4, 7, asof=7, incarnation=2)  # told again after a restart: not a duplicate
        self.deliver("live", 7, 9, asof=8, incarnation=2)
        self.deliver("late", 1, 6, asof=9)
        self.deliver("late", 6, 9, asof=9)
        self.deliver("filtering", 1, 9, asof=9, rows=1, hash_sum=7, lens="loc = 'NY'")
        self.deliver("live", 1, 101, asof=1, stream="c", rows=100)
        self.deliver("live", 101, 201, asof=102, stream="c", rows=100)
        self.deliver("late", 1, 201, asof=201, stream="c", rows=150)
        self.log = [_record(replica, lsn, event) for replica in "htm" for lsn in (1, 2, 3) for event in _DONE]
        self.log += [
            _record("h", 4, LogEvent.PERSISTED),
            _record("h", 5, LogEvent.PERSISTED),
            _record("h", 4, LogEvent.CUT, hash=None),
            _record("h", 4, LogEvent.PERSISTED, hash=44),
            _record("h", 4, LogEvent.COMMITTED, hash=44),
            _record("m", 1, LogEvent.WIPED, hash=None),
            _record("m", 3, LogEvent.PERSISTED),
            _record("m", 3, LogEvent.COMMITTED),
            _record("m", 4, LogEvent.CUT, hash=None),  # there was nothing to cut off
        ]
        self.gauges = [
            _gauge("live", "alive:s", 9),
            _gauge("late", "alive:s", 9),
            _gauge("r0/0", "alive:s", 9),
            _gauge("late", "alive:c", 201),
            _gauge("late", "buffer", 64, bound=64),
        ]

    def deliver(self, subscriber: str, lo: int, hi: int, *, asof: int, **other: Any) -> Row:
        """Append a receipt, by default an honest one of stream s."""
        alive = [e for e in self.events if lo <= e["seq"] < hi and not self._collected(e, asof)]
        seqs, content = np.array([e["seq"] for e in alive], np.int64), np.array([e["hash"] for e in alive], np.uint64)
        receipt = {
            "subscriber": subscriber,
            "incarnation": 1,
            "n": len(self.receipts),
            "stream": "s",
            "lo": lo,
            "hi": hi,
            "asof": asof,
            "lens": "",
            "rows": len(alive),
            "hash_sum": hash_sum(row_hashes(seqs, content)),
            "time": float(len(self.receipts)),
        } | other
        self.receipts.append(receipt)
        return receipt

    def receipt(self, subscriber: str, lo: int) -> Row:
        """The first receipt of stream s that starts at a number."""
        return next(r for r in self.receipts if (r["stream"], r["subscriber"], r["lo"]) == ("s", subscriber, lo))

    def trace(self) -> Trace:
        """The trace as it stands."""
        return Trace(
            published=_columns(PUBLISHED, self.events + self.runs),
            delivered=_columns(DELIVERED, self.receipts),
            log=_columns(LOG, self.log),
            gauge=_columns(GAUGE, self.gauges),
            policies={"s": "by-key,keep-last:100", "c": "keep-last:150"},
        )

    def _collected(self, event: Row, asof: int) -> bool:
        """The paper's filter (A1.7, A1.45), event by event."""
        return any(
            event["seq"] < later["seq"] < asof
            and (event["seq"] < (later["before"] or 0) or (event["key"] is not None and event["key"] == later["key"]))
            for later in self.events
        )

    @staticmethod
    def _event(seq: int, key: bytes | None) -> Row:
        content = 2**64 - seq * 1000
        return {
            "stream": "s",
            "seq": seq,
            "count": 1,
            "kind": int(key is None),
            "publisher": "p" if seq % 2 else "q",
            "session": 1 if seq < 5 else 2,
            "number": (seq + 1) // 2,
            "key": key,
            "before": 3 if key is None else None,
            "tick": 100 + seq // 2,  # two numbers may be of one batch
            "hash": content,
            "committed_hash": None if seq == 1 else content,
            "acked_seq": None if seq == 3 else seq,
            "acked_at": None if seq == 3 else float(seq),
        }


_DONE = (LogEvent.PERSISTED, LogEvent.COMMITTED)


def _counted(seq: int, count: int) -> Row:
    told = {"acked_seq": seq, "acked_at": 1.0}
    return {"stream": "c", "seq": seq, "count": count, "kind": 0, "publisher": "p", "session": 1, "number": seq} | told


def _record(replica: str, lsn: int, event: LogEvent, **other: Any) -> Row:
    row = {"region": "r0", "replica": replica, "epoch": 1, "lsn": lsn, "hash": lsn * 7, "event": event, "time": 0.0}
    return row | other


def _gauge(node: str, name: str, value: float, bound: float | None = None) -> Row:
    return {"node": node, "name": name, "value": value, "bound": bound, "time": 1.0}


def _columns(schema: Any, rows: list[Row]) -> Any:
    return table(schema, {name: [row.get(name) for row in rows] for name in schema.names})


# --- what can go wrong: each function plants one thing ----------------------------------------------------

PLANTED: list[tuple[Callable[[Run], None], frozenset[str]]] = []


def breaks(*invariants: str) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Say which invariants, and no others, must find what the function plants."""

    def register(plant: Callable[[Run], None]) -> Callable[[Run], None]:
        PLANTED.append((plant, frozenset(invariants)))
        return plant

    return register


@breaks("integrity")
def a_wrong_row_is_delivered(run: Run) -> None:
    run.receipt("live", 1)["hash_sum"] ^= 1


@breaks("integrity")
def a_zombie_hides_a_missing_row(run: Run) -> None:
    late = run.receipt("late", 1)  # instead of number 4: number 3
    late["hash_sum"] = run.deliver("other", 3, 4, asof=1)["hash_sum"] + run.deliver("another", 5, 6, asof=6)["hash_sum"]
    late["hash_sum"] %= 2**64


@breaks("integrity")
def a_receipt_covers_what_was_never_published(run: Run) -> None:
    run.deliver("early", 7, 10, asof=7, rows=3)


@breaks("integrity")
def an_unknown_stream_is_delivered(run: Run) -> None:
    run.deliver("live", 1, 2, asof=1, stream="ghost", rows=1)


@breaks("integrity")
def an_uncommitted_event_collects(run: Run) -> None:
    run.receipt("late", 6)["asof"] = 10


@breaks("integrity", "acknowledged")
def an_acknowledged_event_is_committed_with_other_content(run: Run) -> None:
    run.events[5]["committed_hash"] ^= 1


@breaks("integrity")
def an_event_is_committed_with_other_content(run: Run) -> None:
    run.events[2]["committed_hash"] ^= 1


@breaks("integrity")
def an_event_is_committed_that_nobody_sent(run: Run) -> None:
    run.events[2] |= {"publisher": None, "session": None, "number": None, "hash": None}


@breaks("integrity")
def a_number_is_given_to_two_events(run: Run) -> None:
    run.events.append(run.events[2] | {"publisher": "r"})


@breaks("no_duplication")
def a_number_is_delivered_twice(run: Run) -> None:
    run.deliver("late", 8, 9, asof=9)


@breaks("no_duplication")
def a_receipt_is_given_twice(run: Run) -> None:
    run.deliver("late", 6, 9, asof=9)


@breaks("no_duplication")
def a_row_is_delivered_twice_within_a_receipt(run: Run) -> None:
    run.receipt("live", 1)["rows"] += 1


@breaks("no_duplication", "order")
def old_numbers_are_delivered_again(run: Run) -> None:
    run.deliver("live", 1, 4, asof=1)


@breaks("no_duplication", "convergence", "acknowledged")
def a_retry_is_committed_again(run: Run) -> None:
    run.events.append(run.events[7] | {"seq": 9})


@breaks("no_duplication")
def a_retry_is_repacked(run: Run) -> None:
    run.runs[1]["number"] -= 1


@breaks("order")
def receipts_are_swapped(run: Run) -> None:
    first, second = run.receipt("late", 1), run.receipt("late", 6)
    first["n"], second["n"] = second["n"], first["n"]


@breaks("order")
def an_empty_receipt_is_given(run: Run) -> None:
    run.deliver("late", 9, 9, asof=9)


@breaks("order")
def a_publisher_is_reordered(run: Run) -> None:
    run.events[0]["number"], run.events[2]["number"] = run.events[2]["number"], run.events[0]["number"]


@breaks("order")
def a_fenced_session_still_publishes(run: Run) -> None:
    run.events[7] |= {"session": 1, "number": 5}


@breaks("completeness")
def an_incarnation_skips_what_an_earlier_one_knew(run: Run) -> None:
    run.deliver("live", 1, 2, asof=1, incarnation=2, n=-1)


@breaks("completeness", "acknowledged")
def a_gap_is_left(run: Run) -> None:
    run.receipts.remove(run.receipt("late", 1))
    run.deliver("late", 1, 5, asof=9, n=0)


@breaks("completeness")
def a_row_is_missing(run: Run) -> None:
    run.receipt("late", 6)["rows"] -= 1


@breaks("completeness")
def a_row_is_collected_before_its_collector_is_committed(run: Run) -> None:
    run.receipt("late", 1)["asof"] = 3  # number 1 goes by number 3, at 4


@breaks("completeness")
def a_collector_is_never_delivered(run: Run) -> None:
    late = run.receipt("late", 1)
    late |= {"rows": late["rows"] - 1, "hash_sum": run.deliver("other", 4, 5, asof=9)["hash_sum"]}


@breaks("completeness")
def counted_rows_are_missing(run: Run) -> None:
    run.receipts[-1]["rows"] -= 1


@breaks("finality")
def a_zombie_is_delivered(run: Run) -> None:
    late = run.receipt("late", 1)
    late |= {"rows": late["rows"] + 1}


@breaks("finality")
def a_zombie_passes_a_filter(run: Run) -> None:
    run.receipt("filtering", 1)["rows"] = 6


@breaks("finality")
def counted_rows_are_delivered_after_collection(run: Run) -> None:
    run.receipts[-1]["rows"] = 200


@breaks("acknowledged")
def an_event_is_acknowledged_but_never_committed(run: Run) -> None:
    run.events.append(run.events[7] | {"seq": None, "number": 5, "acked_seq": 9})


@breaks("acknowledged")
def an_event_is_acknowledged_under_another_number(run: Run) -> None:
    run.events[3]["acked_seq"] = 5


@breaks("acknowledged")
def a_subscriber_claims_more_than_it_was_handed(run: Run) -> None:
    run.receipts.remove(run.receipt("late", 6))


@breaks("acknowledged")
def a_restarted_subscriber_misses_what_came_between(run: Run) -> None:
    run.receipts.remove(run.receipt("live", 4))
    run.receipts.remove(run.receipt("live", 4))


@breaks("order")
def a_tick_goes_back(run: Run) -> None:
    run.events[5]["tick"] = 101


@breaks("chain_prefix")
def replicas_commit_different_records(run: Run) -> None:
    run.log += [_record("t", 4, event, hash=45) for event in _DONE]


@breaks("chain_prefix")
def a_committed_record_is_cut_off(run: Run) -> None:
    run.log.append(_record("t", 3, LogEvent.CUT, hash=None))


@breaks("chain_prefix")
def a_cut_pretends_to_more_than_there_was(run: Run) -> None:
    run.log.append(_record("t", 6, LogEvent.CUT, hash=None))


@breaks("chain_prefix")
def a_record_is_skipped(run: Run) -> None:
    run.log.append(_record("t", 5, LogEvent.PERSISTED))


@breaks("chain_prefix")
def a_record_is_overwritten_without_a_cut(run: Run) -> None:
    run.log.append(_record("h", 4, LogEvent.PERSISTED, hash=44))


@breaks("chain_prefix")
def a_record_is_committed_before_it_is_durable(run: Run) -> None:
    run.log.append(_record("t", 4, LogEvent.COMMITTED, hash=44))


@breaks("chain_prefix")
def a_record_is_committed_after_it_was_cut_off(run: Run) -> None:
    run.log += [_record("t", 4, LogEvent.PERSISTED, hash=44), _record("t", 4, LogEvent.CUT, hash=None)]
    run.log.append(_record("t", 4, LogEvent.COMMITTED, hash=44))


@breaks("chain_prefix")
def another_record_is_committed_than_was_persisted(run: Run) -> None:
    run.log += [_record("t", 4, LogEvent.PERSISTED, hash=45), _record("t", 4, LogEvent.COMMITTED, hash=44)]


@breaks("chain_prefix")
def a_log_event_is_unknown(run: Run) -> None:
    run.log[0]["event"] = "perished"


@breaks("bounded")
def a_buffer_overflows(run: Run) -> None:
    run.gauges[-1]["value"] = 65


@breaks("convergence")
def a_subscriber_stays_behind(run: Run) -> None:
    run.gauges[0]["value"] = 8


@breaks("convergence", "acknowledged")
def a_replica_stays_behind(run: Run) -> None:
    run.gauges[2]["value"] = 8


@breaks("convergence")
def a_replica_runs_ahead_of_what_was_committed(run: Run) -> None:
    run.gauges[2]["value"] = 10


def test_an_honest_run_has_no_violation() -> None:
    assert judge(Run().trace()) == []


def test_a_run_in_which_nothing_happened_has_no_violation() -> None:
    assert judge(Trace()) == []


@pytest.mark.parametrize(("plant", "expected"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_what_is_planted_is_found_by_its_own_invariants_alone(
    plant: Callable[[Run], None], expected: frozenset[str]
) -> None:
    run = Run()
    plant(run)
    assert {violation.invariant for violation in judge(run.trace())} == expected


def test_a_violation_says_where_and_what() -> None:
    run = Run()
    run.receipts.remove(run.receipt("late", 1))
    run.deliver("late", 1, 4, asof=9, n=0)
    run.gauges = []
    (violation,) = judge(run.trace())
    where = {"subscriber": "late", "incarnation": 1, "n": 5, "stream": "s", "lo": 6, "hi": 9, "asof": 9}
    assert (violation.invariant, violation.where) == ("completeness", where)
    assert violation.detail == "nothing covers 4 to 6"
