"""The audit of a stream that goes on: rows and receipts arrive in any batches, and each is judged once.

The rules are those of `check.audit`, applied to what is new:

- a receipt is judged when the rows that it is about are there, or have not come for ``patience`` seconds;
- an incarnation is remembered as *runs*: receipts that continue each other, in number and in range, are one run. A
  violation ("twice", "out of order") is reported if the runs with the new receipts show it and those without do not;
- a gap, or a missing number of a receipt, may be filled by a late receipt: it counts after ``patience``;
- what is wrong with the stream itself is reported once.

Memory is bounded. Of rows the last ``keep`` are remembered: an earlier receipt is unverifiable. Of an honest
incarnation one run is remembered; of others at most `RUNS`, older ones together. An incarnation is forgotten ``forget``
seconds after its last receipt, if the stream, or the subscriber with a newer incarnation, has gone on since. At most
`INCARNATIONS` are remembered of one stream. A forgotten incarnation that comes back begins anew. A copy of a receipt
changes nothing: for ``patience`` it is recognised by its content, later by its number and its range.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.check.audit import AuditFindings, contents, doubted, pairs, unexplained, unkept
from tidings.check.invariants import Violation, no_duplication, order
from tidings.check.survivors import Ints, Mask, ints
from tidings.check.tables import DELIVERED, Trace
from tidings.core.ids import FIRST, StreamId
from tidings.spark.audit import ROWS, Facts, table_of, with_gone
from tidings.spark.columns import COVERAGE
from tidings.spark.lake import covers_of

KEEP = 1_000_000  # rows of a stream that are remembered; ours
PATIENCE = 60.0  # seconds that something may be late before it counts as missing; ours
FORGET = 3600.0  # seconds after which an incarnation may be over; ours, as long as regions keep receipts
RUNS = 64  # of an incarnation; ours: two for every time that it was told again or out of order
FORGOTTEN = "the audit remembers only the newest events of a stream"
INCARNATIONS = 100_000  # of a stream; ours: some ten megabytes

TOLD = pa.schema(
    [
        *[each.with_nullable(True) for each in DELIVERED],
        pa.field("region", pa.string()),
        pa.field("since", pa.float64()),  # when it came, by the clock of the audit
    ]
)
"""Receipts as they come in."""

COVERS = pa.schema([("seq", pa.int64()), ("before", pa.int64()), ("_tick", pa.int64()), ("kind", pa.string())])
_RUN = pa.schema(
    [
        *[(name, pa.string()) for name in ("subscriber", "region")],
        *[(name, pa.int64()) for name in ("incarnation", "first", "n", "lo", "last", "hi", "asof", "rows")],
        *[(name, pa.float64()) for name in ("heard", "gap", "hole")],
    ]
)
"""Receipts ``first`` to ``n`` of an incarnation, which tell of [lo, hi), the last of them from ``last`` on. ``gap``,
``hole``: since when numbers, or receipts, before them are missing; null: none are; `SAID`: that has been told."""

_SAID = pa.schema([("invariant", pa.string()), ("seq", pa.int64()), ("detail", pa.string())])
SAID = -1.0
_NAMES = tuple(DELIVERED.names)
Run: TypeAlias = dict[str, Any]
Whose: TypeAlias = tuple[str, int]


class AuditState(msgspec.Struct, frozen=True):
    """How the audit of one stream stands."""

    rows: pa.Table = msgspec.field(default_factory=ROWS.empty_table)
    covers: pa.Table = msgspec.field(default_factory=COVERS.empty_table)
    waiting: pa.Table = msgspec.field(default_factory=TOLD.empty_table)  # receipts for what has not come
    recent: pa.Table = msgspec.field(default_factory=TOLD.empty_table)  # receipts that were judged a short while ago
    runs: pa.Table = msgspec.field(default_factory=_RUN.empty_table)
    said: pa.Table = msgspec.field(default_factory=_SAID.empty_table)  # what is wrong with the stream itself
    floor: int = 0  # nothing is known of what is below

    def advance(
        self,
        stream: StreamId,
        new: AuditState,
        facts: Facts,
        *,
        keep: int = KEEP,
        patience: float = PATIENCE,
        forget: float = FORGET,
        now: float | None = None,
        settle: bool = False,
    ) -> tuple[AuditState, pa.Table]:
        """Take in rows, covers and receipts; how it stands then, and the evidence of what could be judged.

        ``now``: the clock; without one it is the time of the newest row. ``settle``: nothing comes late.
        """
        rows, covers = (pa.concat_tables([getattr(self, name), getattr(new, name)]) for name in ("rows", "covers"))
        known = covers_of(stream, covers)
        end = max([FIRST, *[cover.hi for cover in known]])
        newest = pc.max(rows["published_at"]).cast(pa.int64()).as_py() / 1e6 if rows.num_rows else 0.0
        clock = newest if now is None else now
        waiting = pa.concat_tables([self.waiting, new.waiting])
        due = _due(waiting, end, facts.end, clock - patience)
        fresh = _without_copies(waiting.filter(pa.array(due)), self.recent, self.runs)

        judgeable = pa.array(ints(fresh, "lo") >= self.floor)
        trace = Trace(
            with_gone(stream, rows, known),
            fresh.filter(judgeable).select(_NAMES).cast(DELIVERED),
            policies={stream: facts.gc},
            attributes={stream: facts.attrs},
        )
        single, unsure, lost = contents(trace, {stream: end})
        unsure = pa.concat_tables(
            [unsure, doubted(fresh.filter(pc.invert(judgeable)).select(_NAMES).cast(DELIVERED), FORGOTTEN)]
        )
        events = Trace(trace.published)
        faults = [*[each for each in single if not _receipt(each)], *no_duplication(events), *order(events)]
        said, untold = self._say(faults)
        runs = [*self.runs.to_pylist(), *_begun(fresh, clock)]
        found = [each for each in single if _receipt(each)] + _added(stream, self.runs.num_rows, runs)
        late, holes = _settled(stream, runs, clock, math.inf if settle else clock - patience)
        found += late

        receipts = fresh.select(_NAMES).cast(DELIVERED)
        findings = AuditFindings(pairs(receipts, unsure, lost, found, holes), untold + found)
        regions = {run["subscriber"]: run["region"] for run in runs}
        evidence = table_of(stream, findings, fresh, rows, regions)

        rows, covers, floor = _bounded(rows, covers, self.floor, keep)
        again = pa.concat_tables([self.recent, _at(fresh, clock)])
        after = AuditState(
            rows,
            covers,
            waiting.filter(pa.array(~due)),
            again.filter(pa.array(again["since"].to_numpy() > clock - patience)),
            pa.Table.from_pylist(_remembered(_joined(runs), end, clock - forget), schema=_RUN),
            said.filter(pc.greater_equal(said["seq"], floor)),
            floor,
        )
        return after, evidence

    @property
    def due(self) -> float | None:
        """Since when the oldest of what waits, or may yet be explained, has been waiting."""
        times = [time for name in ("gap", "hole") for time in self.runs[name].to_pylist() if time not in (None, SAID)]
        return min([*times, *self.waiting["since"].to_pylist()], default=None)

    def _say(self, faults: list[Violation]) -> tuple[pa.Table, list[Violation]]:
        """All that has been said of the stream itself, and what of it is new."""
        before = set(zip(*[self.said[name].to_pylist() for name in _SAID.names], strict=True))
        new = {(each.invariant, each.where["seq"], each.detail): each for each in faults}
        new = {key: each for key, each in new.items() if key not in before}
        rows = [dict(zip(_SAID.names, key, strict=True)) for key in new]
        return pa.concat_tables([self.said, pa.Table.from_pylist(rows, schema=_SAID)]), list(new.values())


def _receipt(violation: Violation) -> bool:
    return "subscriber" in violation.where


# --- receipts ---------------------------------------------------------------------------------------------------


def _due(waiting: pa.Table, end: int, promised: int, late: float) -> Mask:
    """Which receipts are judged now; of an incarnation never one before an earlier one that is there.

    What lies below ``promised`` was published, and will come, however long that takes.
    """
    reach = np.maximum(ints(waiting, "hi"), ints(waiting, "asof"))
    due: Mask = (reach <= end) | ((waiting["since"].to_numpy() <= late) & (reach > promised))
    if due.all():
        return due
    keys = _whose(waiting)
    numbers = ints(waiting, "n").tolist()
    first: dict[Whose, int] = {}
    for at in np.flatnonzero(~due).tolist():
        first[keys[at]] = min(numbers[at], first.get(keys[at], numbers[at]))
    turn = [n <= first.get(key, n) for key, n in zip(keys, numbers, strict=True)]
    return due & np.array(turn, np.bool_)


def _whose(receipts: pa.Table) -> list[Whose]:
    return list(zip(receipts["subscriber"].to_pylist(), receipts["incarnation"].to_pylist(), strict=True))


def _without_copies(receipts: pa.Table, recent: pa.Table, runs: pa.Table) -> pa.Table:
    """Receipts that were not judged yet, each once."""
    seen = set(_tuples(recent))
    fresh_numbers = {each[:3] for each in seen}
    old: dict[Whose, list[Run]] = {}
    for run in runs.to_pylist() if receipts.num_rows else ():
        old.setdefault((run["subscriber"], run["incarnation"]), []).append(run)
    new = []
    for at, each in enumerate(_tuples(receipts)):
        subscriber, incarnation, n, _, lo, hi = each[:6]
        copy = each in seen or (
            (subscriber, incarnation, n) not in fresh_numbers
            and any(
                run["first"] <= n <= run["n"] and run["lo"] <= lo and hi <= run["hi"]
                for run in old.get((subscriber, incarnation), ())
            )
        )
        if not copy:
            seen.add(each)
            fresh_numbers.add((subscriber, incarnation, n))
            new.append(at)
    return receipts.take(pa.array(new, pa.int64()))


def _tuples(receipts: pa.Table) -> Iterable[tuple[Any, ...]]:
    return zip(*[receipts[name].to_pylist() for name in _NAMES], strict=True)


def _at(receipts: pa.Table, clock: float) -> pa.Table:
    at = receipts.column_names.index("since")
    return receipts.set_column(at, TOLD.field("since"), pa.array(np.full(receipts.num_rows, clock)))


# --- runs -------------------------------------------------------------------------------------------------------


def _begun(receipts: pa.Table, clock: float) -> list[Run]:
    """Receipts as runs of one."""
    return [
        {name: each[name] for name in _RUN.names if name in each}
        | {"first": each["n"], "last": each["lo"], "heard": clock, "gap": None, "hole": None}
        for each in receipts.to_pylist()
    ]


def _delivered(stream: StreamId, runs: Sequence[Run], **columns: list[int]) -> pa.Table:
    """Runs as the receipts that the rules take: each as one over all of it, but for the columns that are given."""
    count = len(runs)
    made: dict[str, Any] = {
        name: [run[name] for run in runs] for name in ("subscriber", "incarnation", "n", "lo", "hi", "asof", "rows")
    }
    made |= {"stream": [stream] * count, "lens": [""] * count, "hash_sum": [None] * count, "time": [0.0] * count}
    made |= columns
    return pa.Table.from_arrays([pa.array(made[each.name], each.type) for each in DELIVERED], schema=DELIVERED)


def _sequence(stream: StreamId, runs: Sequence[Run]) -> list[Violation]:
    """What is twice or out of order in runs."""
    if not runs:
        return []
    longer = [run for run in runs if run["first"] < run["n"]]  # their first receipt, and their last
    whole = [run | {"lo": run["last"]} for run in runs]
    starts = [run | {"n": run["first"], "hi": run["lo"] + 1} for run in longer]
    return [
        *no_duplication(Trace(delivered=_delivered(stream, runs))),
        *order(Trace(delivered=_delivered(stream, [*whole, *starts]))),
    ]


def _added(stream: StreamId, count: int, runs: list[Run]) -> list[Violation]:
    """What is twice or out of order in runs, and is not in the first ``count`` of them alone."""
    if len(runs) == count:
        return []
    new: dict[Whose, Run] = {}
    for run in sorted(runs[count:], key=lambda run: -int(run["n"])):
        new[run["subscriber"], run["incarnation"]] = run
    touched = [run for run in runs[:count] if (run["subscriber"], run["incarnation"]) in new]
    names = ("subscriber", "incarnation", "n", "lo", "hi")

    def key(each: Violation) -> tuple[Any, ...]:
        return each.invariant, *[each.where[name] for name in names]

    before = Counter([key(each) for each in _sequence(stream, touched)])
    ranges = {tuple([run[name] for name in names]) for run in runs[count:]}
    found = []
    for each in _sequence(stream, [*touched, *runs[count:]]):
        if before[key(each)] > 0:
            before[key(each)] -= 1
        elif key(each)[1:] in ranges:
            found.append(each)
        else:  # an old one is wrong because of a new one: that is the one to look at
            run = new[each.where["subscriber"], each.where["incarnation"]]
            where = {**each.where, **{name: run[name] for name in ("n", "lo", "hi", "asof")}}
            found.append(Violation(each.invariant, where, each.detail, each.fault))
    return found


def _settled(
    stream: StreamId, runs: list[Run], clock: float, late: float
) -> tuple[list[Violation], Counter[tuple[str, StreamId]]]:
    """Gaps that nobody will explain any more, and how many receipts of a subscriber nobody has; the runs know then."""
    numbered = _delivered(stream, runs, n=_renumbered(runs))
    places = {key: at for at, key in enumerate(zip(_whose(numbered), numbered["n"].to_pylist(), strict=True))}
    gaps = {}
    for each in unexplained(numbered):
        gaps[places[(each.where["subscriber"], each.where["incarnation"]), each.where["n"]]] = each
    holes = set(np.flatnonzero(unkept(numbered, whole=False)).tolist())
    found = []
    missing = Counter[tuple[str, StreamId]]()
    for at, run in enumerate(runs):
        if _ripe(run, "gap", at in gaps, clock, late):
            where = {**gaps[at].where, "n": run["first"]}
            found.append(Violation(gaps[at].invariant, where, gaps[at].detail, gaps[at].fault))
        if _ripe(run, "hole", at in holes, clock, late):
            missing[run["subscriber"], stream] += 1
    return found, missing


def _ripe(run: Run, what: str, there: bool, clock: float, late: float) -> bool:
    """Whether something that is missing before a run has been for long enough, and has not been told."""
    if run[what] == SAID:
        return False
    run[what] = (clock if run[what] is None else run[what]) if there else None
    if run[what] is None or run[what] > late:
        return False
    run[what] = SAID
    return True


def _renumbered(runs: Sequence[Run]) -> list[int]:
    """One number per run instead of several, with holes where there were some."""
    out = [0] * len(runs)
    whose: Whose | None = None
    number = reached = 0
    for at in sorted(range(len(runs)), key=lambda at: _place(runs[at])):
        run = runs[at]
        if whose != (run["subscriber"], run["incarnation"]):
            whose, number, reached = (run["subscriber"], run["incarnation"]), run["first"], run["n"]
        else:
            number += 1 if run["first"] <= reached + 1 else 2
            reached = max(reached, run["n"])
        out[at] = number
    return out


def _place(run: Run) -> tuple[str, int, int, int]:
    return run["subscriber"], run["incarnation"], run["first"], run["n"]


def _joined(runs: Iterable[Run]) -> list[Run]:
    """Runs that follow each other as one; where there are too many, the oldest of an incarnation."""
    out: list[list[Run]] = []
    for run in sorted(runs, key=_place):
        mine = out[-1] if out and _place(out[-1][-1])[:2] == _place(run)[:2] else None
        if mine is None:
            out.append([run])
            continue
        before = mine[-1]
        follows = run["first"] == before["n"] + 1 and before["lo"] < run["lo"] == before["hi"] < run["hi"]
        if follows and all(run[what] in (None, SAID) for what in ("gap", "hole")):
            mine[-1] = _both(before, run)
        else:
            mine.append(run)
        if len(mine) > RUNS:
            mine[:2] = [_both(*mine[:2])]
    return [run for mine in out for run in mine]


def _both(a: Run, b: Run) -> Run:
    ends = {"n": max(a["n"], b["n"]), "lo": min(a["lo"], b["lo"]), "hi": max(a["hi"], b["hi"]), "rows": 0}
    kept = {name: a[name] for name in ("first", "gap", "hole")}
    return b | kept | ends | {"heard": max(a["heard"], b["heard"])}


def _remembered(runs: list[Run], end: int, before: float) -> list[Run]:
    """Runs of incarnations that may go on."""
    heard: dict[Whose, tuple[float, int]] = {}
    newest: dict[str, int] = {}
    for run in runs:
        key = run["subscriber"], run["incarnation"]
        when, hi = heard.get(key, (0.0, 0))
        heard[key] = max(when, run["heard"]), max(hi, run["hi"])
        newest[key[0]] = max(key[1], newest.get(key[0], 0))
    kept = {key for key, (when, hi) in heard.items() if when > before or (hi >= end and key[1] == newest[key[0]])}
    if len(kept) > INCARNATIONS:
        kept = set(sorted(kept, key=lambda key: heard[key][0])[-INCARNATIONS:])
    return [run for run in runs if (run["subscriber"], run["incarnation"]) in kept]


# --- rows -------------------------------------------------------------------------------------------------------


def _bounded(rows: pa.Table, covers: pa.Table, floor: int, keep: int) -> tuple[pa.Table, pa.Table, int]:
    """Forget the oldest rows, and what covers them; covers between which no number lacks its row become one."""
    if rows.num_rows > keep:
        rows = rows.sort_by("seq").slice(rows.num_rows - keep)
        floor = rows["seq"][0].as_py()
        covers = covers.filter(pc.greater(covers["before"], floor))
        covers = covers.set_column(0, "seq", pc.max_element_wise(covers["seq"], floor)).cast(COVERS)
    seqs: Ints = np.sort(ints(rows, "seq"))
    out: list[dict[str, Any]] = []
    whole = False
    for each in covers.sort_by("seq").to_pylist():
        inside = int(np.searchsorted(seqs, each["before"]) - np.searchsorted(seqs, each["seq"]))
        before, whole = whole, each["kind"] == COVERAGE and inside == each["before"] - each["seq"]
        if before and whole and out[-1]["before"] == each["seq"]:
            out[-1] |= {"before": each["before"]}
        else:
            out.append(each)
    return rows, pa.Table.from_pylist(out, schema=COVERS), floor
