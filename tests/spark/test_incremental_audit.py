"""The audit as receipts and rows come in: each is judged once, however they come, and in the end as in one batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.lakes import NOON, rows_for
from tidings.client.events import LOST
from tidings.core.hashing import hash_sum, row_hashes
from tidings.protocols.services.catalog import StreamDef
from tidings.spark.audit import Facts, judged, published_rows
from tidings.spark.columns import COVERAGE
from tidings.spark.incremental_audit import RUNS, TOLD, AuditState
from tidings.spark.lake import covers_of

PLAIN = StreamDef("plain", "r0", "by-key")
FACTS = Facts("by-key", "", 0, ())
HASHES = dict(zip(range(1, 41), rows_for(PLAIN, range(1, 41))["_hash"].to_pylist(), strict=True))


def rows(lo: int, hi: int) -> AuditState:
    """Rows of the stream, as they come in; a second later than the receipts for them."""
    covers = pa.table({"seq": [lo], "before": [hi], "_tick": [lo], "kind": [COVERAGE]})
    at = [NOON + 1_000_000 * seq for seq in range(lo, hi)]
    return AuditState(rows=published_rows(rows_for(PLAIN, range(lo, hi), published_at=at), ""), covers=covers)


def receipt(lo: int, hi: int, n: int, **changes: Any) -> dict[str, Any]:
    hashes = np.array([HASHES.get(seq, 0) for seq in range(lo, hi)], np.int64).view(np.uint64)
    total = hash_sum(row_hashes(np.arange(lo, hi), hashes)) if hi <= 41 else 0
    said = {"subscriber": "desk", "incarnation": 1, "n": n, "stream": "plain", "lo": lo, "hi": hi, "asof": lo}
    said |= {"lens": "", "rows": hi - lo, "hash_sum": int(np.uint64(total).view(np.int64))}
    said |= {"time": NOON / 1e6 + hi, "region": "r0"} | changes
    return said | {"since": said["time"]}


def told(*receipts: dict[str, Any]) -> AuditState:
    return AuditState(waiting=pa.Table.from_pylist(list(receipts), schema=TOLD))


class Audit:
    """Inputs one after the other; the evidence of each."""

    def __init__(self, keep: int = 1000, forget: float = 1e9) -> None:
        self.standing = AuditState()
        self.keep, self.forget = keep, forget

    def take(self, new: AuditState) -> tuple[list[str], list[str]]:
        """Faults (of the stream itself: invariants), and verdicts."""
        self.standing, found = self.standing.advance(
            "plain", new, FACTS, keep=self.keep, patience=5.0, forget=self.forget
        )
        evidence = found.to_pylist()
        return [each["fault"] or each["invariant"] for each in evidence if each["invariant"]], [
            each["verdict"] for each in evidence if not each["invariant"]
        ]


def test_who_was_to_be_handed_what_is_lost_is_told_apart() -> None:
    audit = Audit()
    audit.take(rows(1, 6))
    hole = AuditState(covers=pa.table({"seq": [6], "before": [9], "_tick": [6], "kind": [LOST]}))
    assert audit.take(hole) == ([], [])
    assert audit.take(told(receipt(1, 6, 1), receipt(6, 9, 2, rows=0, hash_sum=0))) == ([], ["lost"])


def test_receipts_wait_for_their_rows_and_are_judged_once() -> None:
    audit = Audit()
    assert audit.take(told(receipt(1, 6, 1))) == ([], [])
    assert audit.take(rows(1, 4)) == ([], [])
    assert audit.take(rows(4, 9)) == ([], ["proved"])
    assert audit.take(rows(9, 11)) == ([], [])
    assert audit.take(told(receipt(6, 11, 2))) == ([], ["proved"])


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        (receipt(4, 9, 2), "twice"),
        (receipt(6, 9, 2, hash_sum=1), "wrong row"),
        (receipt(6, 9, 2, rows=2), "missing"),
    ],
)
def test_a_receipt_must_continue_the_one_that_was_judged_before_it(second: dict[str, Any], fault: str) -> None:
    audit = Audit()
    audit.take(rows(1, 11))
    assert audit.take(told(receipt(1, 6, 1))) == ([], ["proved"])
    assert audit.take(told(second)) == ([fault], ["violated"])
    assert audit.take(told(receipt(9, 11, 3))) == ([], ["proved"])  # an old sin is not told again


def test_what_never_comes_was_never_published() -> None:
    audit = Audit()
    audit.take(rows(1, 11))
    assert audit.take(told(receipt(1, 15, 1, time=NOON / 1e6 + 11, hash_sum=0))) == ([], [])
    assert audit.take(rows(11, 13)) == ([], [])
    assert audit.take(told(receipt(1, 60, 1, subscriber="liar", time=NOON / 1e6 + 12))) == ([], [])
    assert audit.take(rows(13, 16)) == (["wrong row"], ["violated"])
    assert audit.take(rows(16, 30)) == (["never published"], ["violated"])


def test_what_is_remembered_is_bounded_and_the_rest_unverifiable() -> None:
    audit = Audit(keep=5)
    audit.take(rows(1, 11))
    assert audit.standing.rows.num_rows == 5
    assert audit.take(told(receipt(1, 11, 1))) == ([], ["unverifiable"])


def test_a_gap_is_told_when_nothing_has_filled_it() -> None:
    audit = Audit()
    audit.take(rows(1, 11))
    audit.take(told(receipt(1, 4, 1)))
    assert audit.take(told(receipt(6, 9, 2))) == ([], ["proved"])
    assert audit.take(told(receipt(4, 6, 3), receipt(9, 11, 4, subscriber="other"))) == (
        ["out of order"],  # and no gap: it was filled
        ["violated", "proved"],
    )
    audit.take(told(receipt(1, 4, 1, subscriber="left"), receipt(6, 9, 2, subscriber="left")))
    assert audit.take(rows(11, 17)) == (["unexplained gap"], ["violated"])
    assert audit.take(rows(17, 30)) == ([], [])


def test_a_receipt_that_nobody_has_is_waited_for() -> None:
    audit = Audit()
    audit.take(rows(1, 11))
    assert audit.take(told(receipt(1, 4, 1), receipt(6, 9, 3))) == ([], ["proved"])
    assert audit.take(told(receipt(4, 6, 2))) == ([], ["proved"])
    assert audit.take(rows(11, 21)) == ([], [])
    assert audit.take(told(receipt(11, 14, 5))) == ([], ["proved"])
    assert audit.take(rows(21, 31)) == ([], ["unverifiable"])


def test_an_earlier_range_again_is_twice_and_whoever_goes_on_is_honest() -> None:
    audit = Audit()
    audit.take(rows(1, 21))
    audit.take(told(receipt(1, 6, 1)))
    audit.take(told(receipt(6, 11, 2)))
    faults, verdicts = audit.take(told(receipt(1, 6, 3)))
    assert (set(faults), verdicts) == ({"twice", "out of order"}, ["violated"])
    assert audit.take(told(receipt(11, 16, 4))) == ([], ["proved"])
    assert audit.take(rows(21, 41)) == ([], [])


def test_a_late_copy_says_nothing_new() -> None:
    audit = Audit()
    audit.take(rows(1, 11))
    for each in (receipt(1, 3, 1), receipt(3, 6, 2), receipt(6, 11, 3)):
        assert audit.take(told(each)) == ([], ["proved"])
    assert audit.take(told(receipt(1, 3, 1), receipt(3, 6, 2))) == ([], [])
    audit.take(rows(11, 41))  # nobody remembers what it said
    assert audit.standing.recent.num_rows == 0
    assert audit.take(told(receipt(1, 3, 1), receipt(11, 16, 4))) == ([], ["proved"])


def test_whoever_goes_on_is_judged_although_its_past_is_forgotten() -> None:
    audit = Audit(keep=5)
    audit.take(rows(1, 6))
    assert audit.take(told(receipt(1, 6, 1))) == ([], ["proved"])
    audit.take(rows(6, 11))
    assert audit.take(told(receipt(6, 11, 2))) == ([], ["proved"])
    late = receipt(1, 11, 1, subscriber="late", asof=11, rows=5)
    assert audit.take(told(late)) == ([], ["unverifiable"])  # forgotten is not collected


def test_what_is_wrong_with_the_stream_is_told_once() -> None:
    audit = Audit()
    bad = published_rows(rows_for(PLAIN, range(1, 6), pub_seq=[1, 2, 3, 3, 4]), "")
    assert audit.take(AuditState(rows=bad, covers=rows(1, 6).covers)) == (["no_duplication"], [])
    for seq in range(6, 9):
        assert audit.take(rows(seq, seq + 1)) == ([], [])


def test_an_honest_incarnation_is_one_run_and_one_that_is_over_is_forgotten() -> None:
    audit = Audit(forget=10.0)
    for seq in range(1, 41):
        audit.take(rows(seq, seq + 1))
        audit.take(told(receipt(seq, seq + 1, seq), receipt(seq, seq + 1, 1, subscriber="often", incarnation=seq)))
        assert audit.standing.runs.num_rows <= 1 + 10 and audit.standing.covers.num_rows == 1
        assert audit.standing.recent.num_rows <= 2 * 5
    audit.take(told(*[receipt(1, 2, n) for n in range(41, 41 + 2 * RUNS)]))
    assert audit.standing.runs.num_rows <= 10 + RUNS


# --- in the end it is as in one batch -----------------------------------------------------------------------------

COUNT = 24
CONTENT = rows_for(PLAIN, range(1, COUNT + 1))
Receipts = list[dict[str, Any]]


def honest(subscriber: str, incarnation: int, cuts: list[int], behind: int) -> Receipts:
    """What a subscriber says that is told everything, as of a while later."""
    found = []
    for n, (lo, hi) in enumerate(pairwise(cuts), 1):
        asof = min(lo + behind, COUNT + 1)
        alive = [seq for seq in range(lo, hi) if seq + 5 >= asof]  # five keys, by turns
        hashes = np.array([HASHES[seq] for seq in alive], np.int64).view(np.uint64)
        total = int(np.uint64(hash_sum(row_hashes(np.array(alive, np.int64), hashes))).view(np.int64))
        said = {"subscriber": subscriber, "incarnation": incarnation, "asof": asof}
        found.append(receipt(lo, hi, n, rows=len(alive), hash_sum=total) | said)
    return found


def duplicate(told: Receipts, at: int) -> None:
    told.append(told[at] | {"n": max([each["n"] for each in told]) + 1})


def gap(told: Receipts, at: int) -> None:
    del told[at]
    for n, each in enumerate(told, 1):
        each["n"] = n


def reordering(told: Receipts, at: int) -> None:
    other = told[(at + 1) % len(told)]
    told[at]["n"], other["n"] = other["n"], told[at]["n"]


def wrong_row(told: Receipts, at: int) -> None:
    told[at]["hash_sum"] ^= 1


def missing_row(told: Receipts, at: int) -> None:
    told[at]["rows"] -= 1


def never_published(told: Receipts, at: int) -> None:
    told.append(
        told[-1] | {"n": max([each["n"] for each in told]) + 1, "lo": COUNT + 1, "hi": COUNT + 2 + at, "rows": 1}
    )


def not_kept(told: Receipts, at: int) -> None:
    del told[at]


def copied(told: Receipts, at: int) -> None:
    told.append(dict(told[at]))


def same_number(told: Receipts, at: int) -> None:
    told.append(told[at] | {"hash_sum": 7})


def overlapping(told: Receipts, at: int) -> None:
    told[at]["lo"] = max(1, told[at]["lo"] - 2)


PLANTS: list[Callable[[Receipts, int], None]] = [duplicate, gap, reordering, wrong_row, missing_row, never_published]
PLANTS += [not_kept, copied, same_number, overlapping]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Receipts, pa.Table, pa.Table]:
    """Receipts with something planted, rows and covers; some of it collected before it was read, or lost."""
    receipts: Receipts = []
    for name in ("ada", "bob", "eve")[: draw(st.integers(1, 3))]:
        for incarnation in range(1, draw(st.integers(1, 2)) + 1):
            cuts = sorted(draw(st.sets(st.integers(1, COUNT + 1), min_size=3, max_size=8)))
            said = honest(name, incarnation, cuts, draw(st.integers(0, 8)))
            for plant in draw(st.lists(st.sampled_from(PLANTS), max_size=2)):
                numbers = [each["n"] for each in said]
                if len(said) > 1 and len(set(numbers)) == len(numbers):  # of two with one number nobody knows the order
                    plant(said, draw(st.integers(0, len(said) - 1)))
            receipts += said
    late = draw(st.integers(1, COUNT + 1))  # what is below was read as of this
    alive = [seq for seq in range(1, COUNT + 1) if seq + 5 >= late]
    covers = [{"seq": 1, "before": late, "_tick": late, "kind": COVERAGE}] if late > 1 else []
    covers += [{"seq": seq, "before": seq + 1, "_tick": seq, "kind": COVERAGE} for seq in range(late, COUNT + 1)]
    for lost in draw(st.sets(st.integers(late, COUNT), max_size=2)) if late <= COUNT else ():
        alive.remove(lost)
        covers[lost - late + (late > 1)]["kind"] = LOST
    twice = draw(st.integers(2, 2 * COUNT))
    numbers = [seq - (seq == twice) for seq in alive]
    made = published_rows(rows_for(PLAIN, alive, pub_seq=numbers), "")
    return receipts, made, pa.Table.from_pylist(covers, schema=AuditState().covers.schema)


def standing_of(evidence: list[dict[str, Any]]) -> dict[str, Any]:
    """By subscriber: how much of everything, and what faults; of the stream itself what is broken."""
    out: dict[str, Any] = {}
    for row in evidence:
        mine = out.setdefault(row["subscriber"], {"faults": set()})
        if row["invariant"]:
            mine["faults"].add((row["invariant"], row["fault"]))
        else:
            for name in ("receipts", "events", "rows", "unverifiable", "lost", "unkept"):
                mine[name] = mine.get(name, 0) + row[name]
    return out


NAMED = {"duplicate": {"twice", "out of order"}, "gap": {"unexplained gap"}, "reordering": {"out of order"}}
NAMED |= {"wrong_row": {"wrong row"}, "missing_row": {"missing"}, "never_published": {"never published"}}


@pytest.mark.parametrize("plant", PLANTS[: len(NAMED)], ids=lambda plant: plant.__name__)
@pytest.mark.parametrize("size", [1, 2, 100])
def test_what_is_planted_is_named_as_in_a_batch(plant: Callable[[Receipts, int], None], size: int) -> None:
    said = honest("eve", 1, [1, 5, 9, 13, 17, 21, 25], 0)
    plant(said, 2)
    said.sort(key=lambda each: each["n"])
    audit, faults = Audit(), set()
    audit.take(rows(1, COUNT + 1))
    for at in range(0, len(said), size):
        faults |= set(audit.take(told(*said[at : at + size], *honest("ada", 1, [1, COUNT + 1], 0)))[0])
    audit.standing, found = audit.standing.advance("plain", AuditState(), FACTS, now=math.inf)
    faults |= {each["fault"] for each in found.to_pylist() if each["invariant"]}
    whole = judged(
        "plain", audit.standing.rows, pa.Table.from_pylist(said, schema=TOLD), Facts("by-key", "", COUNT + 1)
    )
    assert faults == NAMED[plant.__name__] == {each["fault"] for each in whole.to_pylist() if each["invariant"]}


@settings(max_examples=40, deadline=None)
@given(st.data(), histories())
def test_whatever_comes_when_the_end_is_that_of_one_batch(data: st.DataObject, history: Any) -> None:
    receipts, made, covers = history
    known = tuple(covers_of("plain", covers))
    facts = Facts("by-key", "", COUNT + 1, known)
    whole = judged("plain", made, pa.Table.from_pylist(receipts, schema=TOLD), facts).to_pylist()

    steps = data.draw(st.integers(1, 6), label="batches")
    bounds = sorted(data.draw(st.lists(st.integers(0, covers.num_rows), min_size=steps - 1, max_size=steps - 1)))
    when = [data.draw(st.integers(0, steps - 1)) for _ in receipts]
    standing, evidence = AuditState(), []
    for step, (a, b) in enumerate(zip([0, *bounds], [*bounds, covers.num_rows], strict=True)):
        part = covers.slice(a, b - a)
        inside = [any(c["seq"] <= seq < c["before"] for c in part.to_pylist()) for seq in made["seq"].to_pylist()]
        said = [each for each, at in zip(receipts, when, strict=True) if at == step]
        new = AuditState(made.filter(pa.array(inside, pa.bool_())), part, pa.Table.from_pylist(said, schema=TOLD))
        standing, found = standing.advance("plain", new, FACTS, patience=60.0, now=NOON / 1e6 + step)
        evidence += found.to_pylist()
    standing, found = standing.advance("plain", AuditState(), FACTS, now=math.inf)
    evidence += found.to_pylist()
    assert standing_of(evidence) == standing_of(whole)
    assert standing.waiting.num_rows == 0
