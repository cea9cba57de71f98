"""The audit of deliveries: for every subscriber and stream proved, violated, lost or unverifiable, and why.

`audit` judges one or several streams by the invariants that are about receipts. Besides the trace it gets the *end* of
each stream as its owner knows it. A receipt beyond the end is for something never published. A receipt that is only
beyond the end of the published table cannot be judged yet. To the invariants the audit adds what is not known:

- copies of one receipt count once;
- receipts are numbered without holes, from 1 on, within an incarnation. So a missing number is a receipt that was not
  kept, or was collected before it was read. Its range is unverifiable, and not a gap in delivery;
- numbers that their owner has declared lost are counted: a subscriber that should have got one is not proved;
- a receipt is unverifiable if it depends on numbers of which nothing is known (``gone``), on a filter that cannot be
  evaluated, or on rows that are not in the table yet.

A subscriber with a violation is violated; one without violations but with lost numbers is lost; one with neither but
with something unverifiable is unverifiable; every other is proved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.check.invariants import Violation, finality, gaps, integrity, judged, missing, no_duplication, order
from tidings.check.survivors import Ints, Mask, codes, ints
from tidings.check.tables import Trace
from tidings.core.ids import FIRST, StreamId

UNREAD = "the events were not read (not archived yet, or the stream is deleted)"
COLLECTED = "events were collected before they were read"
FORGOTTEN = "events that were lost since may have collected others"
UNKNOWN_FILTER = "the filter cannot be evaluated outside of the cluster"
"""Why a receipt cannot be judged."""
REASON = pa.field("reason", pa.string())


class Verdict(StrEnum):
    """What became of what a subscriber was to be handed of a stream."""

    PROVED = "proved"
    VIOLATED = "violated"
    LOST = "lost"
    UNVERIFIABLE = "unverifiable"

    @classmethod
    def of(cls, violations: int, lost: int, unsure: int) -> Verdict:
        """The verdict on a subscriber and a stream with so much of each."""
        return cls.VIOLATED if violations else cls.LOST if lost else cls.UNVERIFIABLE if unsure else cls.PROVED


@dataclass(frozen=True)
class Pair:
    """A subscriber and a stream."""

    subscriber: str
    stream: StreamId
    verdict: Verdict
    receipts: int
    lo: int  # all its receipts lie in [lo, hi)
    hi: int
    events: int  # numbers that it was told of
    rows: int
    unverifiable: int  # of the numbers, those in receipts that cannot be judged
    lost: int  # of the numbers, those that were declared lost
    unkept: int  # receipts that are missing
    violations: int
    detail: str | None = None  # why some of it cannot be verified


@dataclass(frozen=True)
class AuditFindings:
    """What an audit finds. Violations that name no subscriber are of the stream itself."""

    pairs: list[Pair]
    violations: list[Violation]


def audit(trace: Trace, ends: Mapping[StreamId, int], *, whole: bool = True) -> AuditFindings:
    """Judge all receipts of a trace; ``ends``: the first number that each stream's owner had not given out yet.

    Not ``whole``: earlier receipts were judged before, so that the first one here need not be the first.
    """
    receipts = distinct(trace.delivered)
    everything = replace(trace, delivered=receipts)
    found, unsure, lost = contents(everything, ends)
    found += [*no_duplication(everything), *order(everything), *unexplained(receipts)]
    later = receipts.filter(pa.array(unkept(receipts, whole=whole)))
    return AuditFindings(pairs(receipts, unsure, lost, found, Counter(_keys(later))), found)


def contents(
    trace: Trace, ends: Mapping[StreamId, int]
) -> tuple[list[Violation], pa.Table, Counter[tuple[str, StreamId]]]:
    """Each receipt by itself: what is wrong, what cannot be judged (with its `REASON`), and the lost numbers."""
    receipts = trace.delivered
    early = _early(trace.published, receipts, ends)
    here = replace(trace, delivered=receipts.filter(pa.array(~early)))
    unsure = [doubted(receipts.filter(pa.array(early)), UNREAD)]
    lost = Counter[tuple[str, str]]()
    for seen, _, expected, comparable in judged(here):
        collected = expected.unsure > 0
        forgotten = (expected.forgotten > 0) & ~collected
        unsure.append(doubted(seen.filter(pa.array(~comparable & collected)), COLLECTED))
        unsure.append(doubted(seen.filter(pa.array(~comparable & forgotten)), FORGOTTEN))
        unsure.append(doubted(seen.filter(pa.array(~comparable & ~collected & ~forgotten)), UNKNOWN_FILTER))
        for at in np.flatnonzero(expected.lost).tolist():
            lost[seen["subscriber"][at].as_py(), seen["stream"][at].as_py()] += int(expected.lost[at])
    return [*integrity(here), *finality(here), *missing(here)], pa.concat_tables(unsure), lost


def doubted(receipts: pa.Table, reason: str) -> pa.Table:
    """Receipts that cannot be judged, with the reason."""
    return receipts.append_column(REASON, pa.repeat(pa.scalar(reason), receipts.num_rows))


def unexplained(receipts: pa.Table) -> list[Violation]:
    """Gaps, except where the receipt that is missing may have told of the numbers."""
    cut = _cut_at_unkept(receipts)
    whose = dict(zip(*[each["incarnation"].to_pylist() for each in (cut, receipts)], strict=True))
    return [replace(each, where={**each.where, "incarnation": whose[each.where["incarnation"]]}) for each in gaps(cut)]


def unkept(receipts: pa.Table, *, whole: bool) -> Mask:
    """Before which receipts one or more are missing; of a ``whole`` table also before the first of an incarnation."""
    by, new, hole = _in_order(receipts)
    found = np.zeros(len(by), np.bool_)
    found[by] = hole | (new & (ints(receipts, "n")[by] > 1)) if whole else hole
    return found


def distinct(receipts: pa.Table) -> pa.Table:
    """Each receipt once: a client without an answer sends it again."""
    return receipts.group_by(receipts.column_names, use_threads=False).aggregate([])


def _early(published: pa.Table, receipts: pa.Table, ends: Mapping[StreamId, int]) -> Mask:
    """Receipts for what was published, but is not in the table yet."""
    early = np.zeros(receipts.num_rows, np.bool_)
    reached = np.maximum(ints(receipts, "hi"), ints(receipts, "asof"))
    for stream in receipts["stream"].unique().to_pylist():
        seq = published.filter(pc.equal(published["stream"], stream))
        known = int((ints(seq, "seq", 0) + ints(seq, "count", 0)).max(initial=FIRST))
        mine = pc.equal(receipts["stream"], stream).to_numpy()
        early |= mine & (reached > known) & (reached <= ends.get(stream, known))
    return early


def _cut_at_unkept(receipts: pa.Table) -> pa.Table:
    """The receipts with another incarnation wherever one is missing: across that nobody can tell a gap."""
    by, new, hole = _in_order(receipts)
    part = np.empty(len(by), np.int64)
    part[by] = np.cumsum(new | hole)
    return receipts.set_column(
        receipts.column_names.index("incarnation"), receipts.field("incarnation"), pa.array(part)
    )


def _in_order(receipts: pa.Table) -> tuple[Ints, Mask, Mask]:
    """The order of delivery; and in it where an incarnation begins, and where a number or more is missing before."""
    group, n = codes(receipts, "subscriber", "incarnation", "stream"), ints(receipts, "n")
    by = np.lexsort((n, group))
    new = np.append(True, group[by][1:] != group[by][:-1])[: len(by)]
    hole = np.append(False, n[by][1:] > n[by][:-1] + 1)[: len(by)] & ~new
    return by, new, hole


def pairs(
    receipts: pa.Table,
    unsure: pa.Table,
    lost: Counter[tuple[str, StreamId]],
    found: list[Violation],
    unkept: Counter[tuple[str, StreamId]],
) -> list[Pair]:
    """Subscribers and streams with what was found of each; also of those that have no receipt here."""
    told = receipts.append_column("events", pc.subtract(receipts["hi"], receipts["lo"]))
    wanted = [("n", "count"), ("lo", "min"), ("hi", "max"), ("events", "sum"), ("rows", "sum")]
    summed = told.group_by(["subscriber", "stream"], use_threads=False).aggregate(wanted).to_pylist()
    by = {(row["subscriber"], row["stream"]): row for row in summed}
    none = dict.fromkeys([f"{name}_{how}" for name, how in wanted], 0)
    doubt = Counter[tuple[str, str]]()
    ranges: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
    for key, lo, hi, why in zip(
        _keys(unsure), *[unsure[name].to_pylist() for name in ("lo", "hi", "reason")], strict=True
    ):
        doubt[key] += hi - lo
        first, end = ranges.setdefault(key, {}).get(why, (lo, hi))
        ranges[key][why] = min(first, lo), max(end, hi)
    wrong = Counter([(each.where["subscriber"], each.where["stream"]) for each in found if "subscriber" in each.where])
    return [
        Pair(
            key[0],
            key[1],
            Verdict.of(wrong[key], lost[key], doubt[key] + unkept[key]),
            receipts=row["n_count"],
            lo=row["lo_min"],
            hi=row["hi_max"],
            events=row["events_sum"],
            rows=row["rows_sum"],
            unverifiable=doubt[key],
            lost=lost[key],
            unkept=unkept[key],
            violations=wrong[key],
            detail=_because(ranges.get(key, {}), unkept[key]),
        )
        for key, row in ({key: none for key in (*wrong, *unkept)} | by).items()
    ]


def _because(ranges: Mapping[str, tuple[int, int]], unkept: int) -> str | None:
    """In words what cannot be verified, and why; None if everything can."""
    reasons = [f"[{lo}, {hi}): {why}" for why, (lo, hi) in ranges.items()]
    if unkept:
        places = "one place" if unkept == 1 else f"{unkept} places"
        reasons.append(f"receipts are missing in {places} (collected before they were read, or not taken in time)")
    return "; ".join(reasons) or None


def _keys(receipts: pa.Table) -> list[tuple[str, StreamId]]:
    return list(zip(receipts["subscriber"].to_pylist(), receipts["stream"].to_pylist(), strict=True))
