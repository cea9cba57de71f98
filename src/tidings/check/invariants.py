"""What must hold of every run: one function per invariant, from a trace to the violations found in it.

The functions are pure, look at nothing but the trace, and treat streams (`chain_prefix`: regions) separately, so a
trace may be split by stream and its parts judged apart. Each reports its own kind of violation: a receipt with too few
rows is a matter of completeness, with too many of finality, with the right number but other rows of integrity.

Together they state Sprinkler's guarantee (A1.4-A1.8): every subscriber is handed every published event of a stream in
order, once, or a gap that a committed collector explains, and that collector (or one that implies it) after it. The
last part needs no function of its own. It follows from the others: receipts have no holes, each has exactly the
expected rows, and every living subscriber is at the end of the stream. So a collector of a missing row is delivered, or
was itself collected by something later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.check.survivors import Expected, Ints, Mask, Passing, Survivors, codes, hashes, ints, passing, valid
from tidings.check.tables import ALIVE, LOST, LogEvent, Trace
from tidings.core.filters import parse, parse_attributes
from tidings.core.ids import FIRST, NEVER, StreamId


class FaultKind(StrEnum):
    """What can be wrong with a delivery, in a word."""

    MISSING = "missing"  # a row that survives was not handed over
    TWICE = "twice"
    DISORDER = "out of order"
    WRONG = "wrong row"  # other content, or a row that had been collected
    GAP = "unexplained gap"  # numbers that no receipt tells of
    UNPUBLISHED = "never published"


@dataclass(frozen=True)
class Violation:
    """One thing that must not happen, and where it did."""

    invariant: str
    where: Mapping[str, Any]
    detail: str
    fault: FaultKind | None = None  # of a delivery


Invariant: TypeAlias = Callable[[Trace], list[Violation]]

_EVENT = ("stream", "seq", "publisher", "session", "number")
_RECEIPT = ("subscriber", "incarnation", "n", "stream", "lo", "hi", "asof")


def integrity(trace: Trace) -> list[Violation]:
    """What is delivered was committed, and what is committed was sent, with exactly that content."""
    found = []
    for _, events, _ in _streams(trace):
        unsent = valid(events, "seq") & ~valid(events, "publisher") & ~valid(events, "gone")
        unsent &= ints(events, "kind") != LOST
        found += _at("integrity", events, _EVENT, unsent, "committed, but no publisher sent it")
        found += _at("integrity", events, _EVENT, _altered(events), "committed with other content than was sent")
        committed = events.filter(events["seq"].is_valid())
        seq = ints(committed, "seq")
        shared = seq < _reached(np.zeros_like(seq), seq, seq + ints(committed, "count"))
        found += _at("integrity", committed, _EVENT, shared, "its number was given to another event, too")
    for receipts, stream, expected, comparable in judged(trace):
        ahead, early = expected.unknown > 0, ints(receipts, "asof") > stream.end
        end = f"the stream ends at {stream.end}"
        detail = "{k} numbers were never committed; " + end
        found += _at("integrity", receipts, _RECEIPT, ahead, detail, FaultKind.UNPUBLISHED, k=expected.unknown)
        detail = "collected by what was never committed; " + end
        found += _at("integrity", receipts, _RECEIPT, early & ~ahead, detail, FaultKind.UNPUBLISHED)
        other = (ints(receipts, "rows") == expected.rows) & comparable & ~ahead
        other &= expected.hashed & valid(receipts, "hash_sum") & (hashes(receipts, "hash_sum") != expected.hash_sum)
        detail = "its rows are not those that were sent and survive"
        found += _at("integrity", receipts, _RECEIPT, other, detail, FaultKind.WRONG)
    return found


def no_duplication(trace: Trace) -> list[Violation]:
    """No number is delivered twice to one incarnation of a subscriber, no event is committed under two numbers."""
    receipts = trace.delivered
    lo, hi, rows = ints(receipts, "lo"), ints(receipts, "hi"), ints(receipts, "rows")
    reached = _reached(codes(receipts, "subscriber", "incarnation", "stream"), lo, hi)
    twice, detail = lo < reached, "all below {end} came before"
    found = _at("no_duplication", receipts, _RECEIPT, twice, detail, FaultKind.TWICE, end=reached)
    twice, detail = rows > hi - lo, "{rows} rows are more than its numbers"
    found += _at("no_duplication", receipts, _RECEIPT, twice, detail, FaultKind.TWICE, rows=rows)
    events = _sent(trace)
    number, count = ints(events, "number"), ints(events, "count")
    repeated = number < _reached(codes(events, "stream", "publisher", "session"), number, number + count)
    return found + _at("no_duplication", events, _EVENT, repeated, "committed under another number, too")


def order(trace: Trace) -> list[Violation]:
    """Receipts ascend, and so do ticks; a publisher's events, session after session, keep their order in a stream."""
    receipts = trace.delivered
    lo, group = ints(receipts, "lo"), codes(receipts, "subscriber", "incarnation", "stream")
    back = lo >= ints(receipts, "hi")
    back |= _descends(np.lexsort((ints(receipts, "n"), group)), group, lo)

    events = _sent(trace)
    seq, session, number = ints(events, "seq"), ints(events, "session"), ints(events, "number")
    group, event = codes(events, "stream", "publisher"), codes(events, "stream", "publisher", "session", "number")
    by_number = np.lexsort((seq, number, session, group))
    first = np.unique(event[by_number], return_index=True)[1]  # a repetition is not a disorder
    overtaken = _descends(by_number[np.sort(first)], group, seq)

    ticked = trace.published.filter(pc.and_(trace.published["seq"].is_valid(), trace.published["tick"].is_valid()))
    seq, stream, tick = ints(ticked, "seq"), codes(ticked, "stream"), ints(ticked, "tick")
    early = _descends(np.lexsort((seq, stream)), stream, tick)
    return [
        *_at("order", receipts, _RECEIPT, back, "does not lead upwards", FaultKind.DISORDER),
        *_at("order", events, _EVENT, overtaken, "committed before an earlier event of its publisher"),
        *_at("order", ticked, _EVENT, early, "its tick is below that of an earlier number"),
    ]


def completeness(trace: Trace) -> list[Violation]:
    """From its first receipt on a subscriber is told of every number, and no row is missing without a collector."""
    return [*gaps(trace.delivered), *missing(trace)]


def gaps(receipts: pa.Table) -> list[Violation]:
    """Numbers between the receipts of an incarnation that none of them tells of."""
    lo, hi = ints(receipts, "lo"), ints(receipts, "hi")
    reached = _reached(codes(receipts, "subscriber", "incarnation", "stream"), lo, hi)
    detail = "nothing covers {end} to {lo}"
    return _at("completeness", receipts, _RECEIPT, lo > reached, detail, FaultKind.GAP, end=reached, lo=lo)


def missing(trace: Trace) -> list[Violation]:
    """Receipts with fewer rows than survive."""
    found = []
    for receipts, _, expected, comparable in judged(trace):
        rows, want = ints(receipts, "rows"), expected.rows
        fewer, detail = (rows < want) & comparable, "{rows} rows, but {want} survive"
        found += _at("completeness", receipts, _RECEIPT, fewer, detail, FaultKind.MISSING, rows=rows, want=want)
    return found


def finality(trace: Trace) -> list[Violation]:
    """What was collected below a receipt's asof is never delivered in it, to any subscriber."""
    found = []
    for receipts, _, expected, _ in judged(trace):  # no filter lets through what is not there
        rows, want, numbers = ints(receipts, "rows"), expected.rows, ints(receipts, "hi") - ints(receipts, "lo")
        undead = (rows > want + expected.lost) & (rows <= numbers) & (expected.unknown == 0) & (expected.unsure == 0)
        detail = "{rows} rows, but only {want} survive"
        found += _at("finality", receipts, _RECEIPT, undead, detail, FaultKind.WRONG, rows=rows, want=want)
    return found


def acknowledged(trace: Trace) -> list[Violation]:
    """An acknowledged event is committed under the number acknowledged, as sent, and delivered to all who are alive.

    A subscriber that comes back resumes: what one incarnation was told counts for the next.
    """
    found = []
    for name, events, receipts in _streams(trace):
        acked = events.filter(events["acked_seq"].is_valid())
        seq, told = ints(acked, "seq"), ints(acked, "acked_seq")
        event = codes(acked, "publisher", "session", "number")
        elsewhere = ~np.isin(event, event[seq == told])
        found += _at("acknowledged", acked, _EVENT, elsewhere, "acknowledged as {told}", told=told)
        found += _at("acknowledged", acked, _EVENT, _altered(acked), "acknowledged, but committed with other content")

        found += _undelivered(name, Survivors(acked, "none"), receipts, _alive(trace).get(name, {}))
    return found


def chain_prefix(trace: Trace) -> list[Violation]:
    """Replicas of a region commit the same records, hold what they commit, without holes, and never cut it off.

    A replica that restarts knows only what its disk says was committed; what it cuts above that others hold.
    """
    found: list[Violation] = []
    agreed: dict[tuple[str, int], tuple[int, str]] = {}  # by region and lsn: what was committed, and who did first
    disks: dict[tuple[str, str], _Disk] = {}
    for row in trace.log.to_pylist():
        region, replica, lsn, record, event = (row[name] for name in ("region", "replica", "lsn", "hash", "event"))
        wrong = None
        if event == LogEvent.WIPED:
            disks.pop((region, replica), None)
        else:
            wrong = disks.setdefault((region, replica), _Disk()).follow(event, lsn, record)
        if event == LogEvent.COMMITTED:
            first, witness = agreed.setdefault((region, lsn), (record, replica))
            wrong = f"committed another record than {witness}" if record != first else wrong
        if wrong:
            where = {name: row[name] for name in ("region", "replica", "epoch", "lsn", "event", "time")}
            found.append(Violation("chain_prefix", where, wrong))
    return found


class _Disk:
    """What a replica holds on stable storage, as its log rows tell it."""

    def __init__(self) -> None:
        self.records: dict[int, int] = {}  # lsn: hash
        self.end: int | None = None  # the next lsn; None before the first record (it may follow a snapshot)
        self.committed = 0

    def follow(self, event: str, lsn: int, record: int) -> str | None:
        """Let one event happen; says what is wrong with it, if anything is."""
        wrong = None
        match event:
            case LogEvent.PERSISTED:
                if self.end not in (None, lsn):
                    wrong = f"persisted although {self.end} comes next"
                self.records[lsn], self.end = record, lsn + 1
            case LogEvent.COMMITTED:
                if self.records.get(lsn) != record:
                    wrong = (
                        "committed another record than it holds" if lsn in self.records else "committed, but not held"
                    )
                self.committed = max(self.committed, lsn)
            case LogEvent.CUT:
                if lsn <= self.committed:
                    wrong = f"cut off although {self.committed} is committed"
                elif self.end is not None and lsn > self.end:
                    wrong = f"cut off above its end {self.end}"
                self.records, self.end = {at: kept for at, kept in self.records.items() if at < lsn}, lsn
            case LogEvent.RESTARTED:
                self.committed = 0
            case _:
                wrong = "no such event"
        return wrong


def bounded(trace: Trace) -> list[Violation]:
    """No queue, cache or buffer exceeds its bound."""
    gauge = trace.gauge
    above = pc.greater(gauge["value"], gauge["bound"]).fill_null(False).to_numpy()
    return _at("bounded", gauge, ("node", "name", "value", "bound", "time"), above, "above its bound")


def convergence(trace: Trace) -> list[Violation]:
    """A subscriber that lived to the end has reached the end of every stream that it follows."""
    ends = {name: Survivors(events, "none").end for name, events, _ in _streams(trace)}
    return [
        Violation("convergence", {"node": node, "stream": stream, "horizon": horizon}, f"the stream ends at {end}")
        for stream, horizons in _alive(trace).items()
        for node, horizon in horizons.items()
        if horizon != (end := ends.get(stream, FIRST))
    ]


ALL_INVARIANTS: tuple[Invariant, ...] = (
    integrity,
    no_duplication,
    order,
    completeness,
    finality,
    acknowledged,
    chain_prefix,
    bounded,
    convergence,
)


def judge(trace: Trace, more: Sequence[Invariant] = ()) -> list[Violation]:
    """Everything that must not have happened, by every invariant, and by ``more`` that hold of this run."""
    return [violation for invariant in (*ALL_INVARIANTS, *more) for violation in invariant(trace)]


def _streams(trace: Trace) -> Iterator[tuple[StreamId, pa.Table, pa.Table]]:
    """Per stream: its name, events and receipts."""
    names = {*trace.published["stream"].unique().to_pylist(), *trace.delivered["stream"].unique().to_pylist()}
    for name in sorted(names):
        yield name, *(rows.filter(pc.equal(rows["stream"], name)) for rows in (trace.published, trace.delivered))


def judged(trace: Trace) -> Iterator[tuple[pa.Table, Survivors, Expected, Mask]]:
    """Per stream and lens: the receipts, what was committed, what each must contain, and of which that is known."""
    for name, events, receipts in _streams(trace):
        for lens in sorted(receipts["lens"].unique().to_pylist()):
            seen = receipts.filter(pc.equal(receipts["lens"], lens))
            filtered = _passing(trace, name, lens)
            stream = Survivors(events, trace.policies.get(name, "none"), filtered)
            expected = stream.expect(*(ints(seen, bound) for bound in ("lo", "hi", "asof")))
            comparable = (expected.unsure == 0) & (expected.forgotten == 0)
            yield seen, stream, expected, comparable & (filtered is not None or not lens)


def _passing(trace: Trace, stream: StreamId, lens: str) -> Passing | None:
    """What a lens lets through; None of the one that is none, and where the attributes are not known."""
    if not lens or stream not in trace.attributes:
        return None
    declared = parse_attributes(trace.attributes[stream])
    return passing(parse(lens, declared), declared)


def _sent(trace: Trace) -> pa.Table:
    """The committed events that a publisher sent."""
    return trace.published.filter(pc.and_(trace.published["seq"].is_valid(), trace.published["publisher"].is_valid()))


def _altered(events: pa.Table) -> Mask:
    """Which events were committed with other content than was sent."""
    known = valid(events, "hash") & valid(events, "committed_hash")
    known &= hashes(events, "hash") != hashes(events, "committed_hash")
    return known


def _alive(trace: Trace) -> dict[StreamId, dict[str, int]]:
    """The final horizons of those who lived to the end, by stream."""
    horizons: dict[StreamId, dict[str, int]] = {}
    for row in trace.gauge.filter(pc.starts_with(trace.gauge["name"], ALIVE)).to_pylist():
        horizons.setdefault(row["name"].removeprefix(ALIVE), {})[row["node"]] = int(row["value"])
    return horizons


def _undelivered(
    stream: StreamId, promised: Survivors, receipts: pa.Table, horizons: Mapping[str, int]
) -> list[Violation]:
    """Acknowledged events in a hole between the receipts of a living subscriber, or behind its last."""
    receipts = receipts.filter(pc.is_in(receipts["subscriber"], pa.array(horizons, pa.string())))
    lo, hi = ints(receipts, "lo"), ints(receipts, "hi")
    reached = _reached(codes(receipts, "subscriber"), lo, hi)
    lost = promised.numbers(reached, np.maximum(lo, reached))
    last = receipts.group_by("subscriber").aggregate([("hi", "max")])
    ends = {**horizons, **dict(zip(last["subscriber"].to_pylist(), last["hi_max"].to_pylist(), strict=True))}
    behind = promised.numbers(np.array(list(ends.values()), np.int64), np.full(len(ends), NEVER))
    return [
        *_at("acknowledged", receipts, _RECEIPT, lost > 0, "{k} acknowledged events before it are missing", k=lost),
        *(
            Violation("acknowledged", {"node": node, "stream": stream, "horizon": end}, f"{k} acknowledged are missing")
            for (node, end), k in zip(ends.items(), behind.tolist(), strict=True)
            if k
        ),
    ]


def _descends(by: Ints, group: Ints, value: Ints) -> Mask:
    """Which values, taken in the order ``by``, are smaller than the one before them in their group."""
    smaller = np.zeros(len(value), np.bool_)
    earlier, later = by[:-1], by[1:]
    smaller[later] = (group[earlier] == group[later]) & (value[later] < value[earlier])
    return smaller


def _reached(group: Ints, lo: Ints, hi: Ints) -> Ints:
    """For each range: where the ranges of its group that start before it end; its own lo for the first one."""
    reached = lo.copy()
    if len(lo):
        by_lo = np.lexsort((hi, lo, group))
        of = group[by_lo]
        base = of * (int(hi.max()) + 1)  # keeps a group's running maximum above those before it
        end = np.maximum.accumulate(base + hi[by_lo]) - base
        same = of[1:] == of[:-1]
        reached[by_lo[1:][same]] = end[:-1][same]
    return reached


def _at(
    invariant: str,
    rows: pa.Table,
    names: tuple[str, ...],
    found: Mask,
    detail: str,
    fault: FaultKind | None = None,
    /,
    **values: Ints,
) -> list[Violation]:
    """One violation per row found, located by some of its columns; its own values fill in the detail."""
    return [
        Violation(
            invariant,
            {name: rows[name][i].as_py() for name in names},
            detail.format(**{name: value[i] for name, value in values.items()}),
            fault,
        )
        for i in np.flatnonzero(found).tolist()
    ]
