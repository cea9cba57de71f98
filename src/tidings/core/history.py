"""The history of a stream: all committed knowledge that a node has of it, from the first number to its horizon.

Rows are kept with the number that collected them, so one history answers for every asof in [floor, horizon]: the rows
of [lo, hi) are those not collected by an event below asof. Three kinds of event collect (A1.45). On a by-key stream a
row collects the earlier row with its key. A predicate event collects the earlier rows for which it is true
(`predicates`). A "before n" event collects every row below n. The last form a staircase of (number, low); the others
mark single rows (`Chunks`). A row collected twice keeps the first number.

A span from another node may have been collected up to an asof beyond the horizon; the collecting events follow later.
The floor rises to that asof. Until the horizon reaches it, the history keeps the pieces as they came and hands them on
unchanged. A full span does not raise the floor, because a span with all rows had them at every earlier asof.

A range that its owner has declared lost counts as known: the horizon passes it, and nothing collects it. Rows of that
range which come later change nothing, because a history only takes in the range at its horizon.

Guarantee: two histories of one committed stream, whatever spans they were built from, answer alike wherever both
answer, except for what is lost at one and known at the other (decision 0011). A span that cannot be true (a row that
survives as of a number above the event that collects it, or known rows that differ) is a `Contradiction`, and leaves
the history as it was.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from tidings.core.chunks import Chunks, KeyClaim
from tidings.core.errors import AsofGone, BadInput, Contradiction, NotYet
from tidings.core.gc import NONE, GcPolicy
from tidings.core.hashing import Seqs
from tidings.core.ids import FIRST, NEVER, StreamId
from tidings.core.lens import ALL
from tidings.core.ranges import Ranges
from tidings.core.rows import NO_ROWS, ArrowRows, CountedRows, Rows
from tidings.core.small_rows import SmallRows
from tidings.core.span import Span, join, within

PURGE_ROWS = 1 << 16  # ours, because looking at so many rows takes a few milliseconds; the rest waits for the next call

CROWDED = 4  # ours: rows stored per row alive from which `tidy` purges; a purge is the cheaper the more it finds dead

NOT_COUNTED = "Arrow rows do not go with counted rows; use one kind per stream"

Collector = tuple[int, int]
"""The number of a "before n" event, and its n."""


def refuse_policy(stream: StreamId, policy: GcPolicy, counted: bool) -> None:
    """Raise if a stream of such rows cannot have the policy."""
    if counted and (policy.by_key or policy.older_than is not None):
        raise BadInput(f"{stream}: counted rows have neither key nor time, so {policy} needs Arrow rows")


class Piece(NamedTuple):
    """A range that is known as of one number, as it came."""

    lo: int
    hi: int
    asof: int


class Staircase:
    """What "before n" events have collected: as of a number, everything below some low."""

    def __init__(self) -> None:
        self._seqs: list[int] = []
        self._lows: list[int] = []  # both ascend strictly

    @property
    def top(self) -> int:
        """The low that all steps together have reached."""
        return self._lows[-1] if self._lows else FIRST

    def low(self, asof: int) -> int:
        """Everything below this is collected by the events below asof."""
        at = bisect_left(self._seqs, asof)
        return self._lows[at - 1] if at else FIRST

    def killer(self, seq: int) -> int:
        """The first event that collected a number, or NEVER."""
        at = bisect_right(self._lows, seq)
        return self._seqs[at] if at < len(self._seqs) else NEVER

    def add(self, seq: int, low: int) -> None:
        """Event ``seq`` collects everything below low."""
        if self.low(seq + 1) >= low:
            return
        at = end = bisect_left(self._seqs, seq)
        while end < len(self._lows) and self._lows[end] <= low:
            end += 1
        self._seqs[at:end] = [seq]
        self._lows[at:end] = [low]

    def prune(self, floor: int) -> None:
        """Forget how the low was reached that holds as of floor."""
        spare = bisect_left(self._seqs, floor) - 1
        if spare > 0:
            del self._seqs[:spare], self._lows[:spare]


class CountedStore:
    """Storage for counted rows, of which there is nothing to store: survivors are what is not below the low."""

    def __init__(self) -> None:
        self.last_kill = 0
        self._size = 0
        self._horizon = FIRST
        self._bottom = FIRST
        self._low = FIRST
        self._collectors: list[Collector] = []

    @property
    def live(self) -> int:
        return max(self._horizon - self._low, 0)

    @property
    def stored(self) -> int:
        return max(self._horizon - self._bottom, 0)

    @property
    def nbytes(self) -> int:
        return self.stored * self._size

    def collectors(self, rows: Rows) -> list[Collector]:
        return list(rows.collectors) if isinstance(rows, CountedRows) else []

    def predicates(self, rows: Rows, low: int) -> list[tuple[int, Seqs]]:
        """Counted rows have nothing that a predicate could be about."""
        return []

    def collect(self, killer: int, victims: Seqs) -> None:
        """No row is collected by a predicate."""

    def claim(self, rows: Rows) -> None:
        """Refuse rows that cannot be counted together with the others."""
        if rows.count and not isinstance(rows, CountedRows):
            raise BadInput(NOT_COUNTED)
        if isinstance(rows, CountedRows) and rows.count and self._size not in (0, rows.size):
            raise BadInput(f"counted rows of {rows.size} bytes do not go with rows of {self._size}; use one size")

    def unclaim(self, claim: KeyClaim | None) -> None:
        """Nothing was entered."""

    def enter(self, rows: Rows, low: int) -> bool:
        """There is no short way for counted rows."""
        return False

    def append_few(self, rows: SmallRows, low: int) -> None:
        """Refuse rows that cannot be counted."""
        raise BadInput(NOT_COUNTED)

    def append(self, span: Span, claim: KeyClaim | None, low: int) -> None:
        """Count the rows of a span above all others."""
        self._horizon = span.hi
        if isinstance(span.rows, CountedRows) and span.rows.count:
            self._size = span.rows.size
            self._collectors.extend(span.rows.collectors)

    def sink(self, old: int, low: int, killer: int) -> None:
        """Rows in [old, low) are collected."""
        self._low = low
        self.last_kill = max(self.last_kill, killer)

    def survivors(self, lo: int, hi: int, asof: int, low: int, limit: int = NEVER) -> tuple[Rows, int]:
        """At most ``limit`` rows of [lo, hi) at or above low, and where they end."""
        first = max(lo, low)
        if first >= hi:
            return NO_ROWS, hi
        if hi - first > limit:
            hi = first + limit
        all_of_them = self._collectors
        inside = all_of_them[bisect_left(all_of_them, (first,)) : bisect_left(all_of_them, (hi,))]
        return CountedRows(first, hi, self._size, tuple(inside)), hi

    def dead_since(self, asof: int, low: int, top: int) -> int:
        """How many stored rows at or above low were collected by asof or later: those below top."""
        return max(top - max(low, self._bottom), 0)

    def dead_at(self, seq: int) -> int | None:
        """No row is collected by key or predicate; None if it is not stored."""
        return NEVER if self._bottom <= seq < self._horizon else None

    def compact(self, limit: int, low: int, budget: int) -> int:
        """Drop the rows below low."""
        dropped = max(low - self._bottom, 0)
        self._bottom += dropped
        del self._collectors[: bisect_left(self._collectors, (low,))]
        return dropped


class History:
    """Committed knowledge of one stream: [FIRST, horizon), for every asof in [floor, horizon]."""

    def __init__(
        self,
        stream: StreamId,
        policy: GcPolicy = NONE,
        counted: bool = False,
        leases: Mapping[str, int] | None = None,
        seed: int = 0,
    ) -> None:
        refuse_policy(stream, policy, counted)
        self.stream = stream
        self.policy = policy
        self.horizon = FIRST
        self.floor = FIRST
        self.collected_collectors = 0
        self._store: Chunks | CountedStore = CountedStore() if counted else Chunks(policy.by_key, seed)
        self._counted = counted
        self._tidied = 0  # rows stored when `tidy` last looked
        self._stairs = Staircase()
        self._collectors: list[Collector] = []
        self._lost = Ranges()
        self._pieces: list[Piece] = []  # only while one of them is known as of a number beyond the horizon
        self._leases: dict[str, int] = dict(leases or {})

    @property
    def live(self) -> int:
        """Rows that nothing has collected."""
        return self._store.live

    @property
    def collected(self) -> int:
        """Numbers below the horizon without a live row, but for those that are lost."""
        return self.horizon - FIRST - self._store.live - len(self._lost)

    @property
    def lost(self) -> int:
        """Numbers below the horizon that their owner has declared lost."""
        return len(self._lost)

    @property
    def rows_stored(self) -> int:
        """Rows held, dead ones included."""
        return self._store.stored

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._store.nbytes

    @property
    def low(self) -> int:
        """Every row below this has been collected by a "before n" event."""
        return self._stairs.top

    def is_lost(self, lo: int, hi: int) -> bool:
        """Whether all of [lo, hi) was declared lost."""
        return FIRST <= lo < hi and self._lost.covers(lo, hi)

    # --- taking in --------------------------------------------------------------------------------------

    def accept(self, span: Span) -> Span | None:
        """Append what is new in a span and apply what it collects; the new part, or None if there is none."""
        if span.stream != self.stream or span.lens != ALL:
            raise BadInput(f"a history of {self.stream} takes whole spans of it, not {span.stream} {span.lens.text!r}")
        if span.lo > self.horizon:
            raise NotYet(f"{self.stream}: [{span.lo}, {span.hi}) is beyond horizon {self.horizon}", self.horizon)
        if span.lo < self.horizon:
            self._agree(span)
            if span.hi <= self.horizon:
                return None
            span = span.slice(self.horizon, span.hi)
        elif span.lo >= span.hi:
            return None
        rows = span.rows
        if (
            type(rows) is SmallRows
            and not span.lost
            and span.full
            and rows.first == span.lo >= span.asof
            and not self._pieces
        ):
            self._store.append_few(rows, self.low)  # nothing below applies to a few data rows as they were published
            self.horizon = span.hi
            return span
        if rows.count and not _well_numbered(rows, span.lo, span.hi):
            raise BadInput(f"{self.stream}: the rows of [{span.lo}, {span.hi}) do not ascend inside of it")
        if span.lost:
            self._refuse_false_loss(span)
        self._refuse_unexplained_gap(span)
        collectors = self._store.collectors(rows)
        steps = [(seq, min(before, seq)) for seq, before in collectors]
        if self._counted and not span.full:  # only "before n" can have collected counted rows: it says as of when
            steps.append((span.asof - 1, _first(rows, span.hi)))
        matched = self._store.predicates(rows, self.low)
        certain = span.asof <= span.lo and not self._pieces
        if not (certain and self._store.enter(rows, self.low)):
            claim = self._store.claim(rows)
            try:
                if not certain:
                    self._refuse_contradictions(span, claim, steps, matched)
            except Contradiction:
                self._store.unclaim(claim)
                raise
            self._store.append(span, claim, self.low)
        for seq, victims in matched:
            if len(victims):
                self._store.collect(seq, victims)
        self._collectors.extend(collectors)
        for seq, low in steps:
            self._sink(seq, low)
        for lo, hi in span.lost:
            self._lost.add(lo, hi)
        self._advance(span)
        return span

    def _refuse_false_loss(self, span: Span) -> None:
        """Raise if lost ranges are not ascending ranges of the span without rows, or the rows are only counted."""
        if self._counted:
            raise BadInput(f"{self.stream}: counted rows are one run, so a part of them cannot be lost")
        at = span.lo
        for lo, hi in span.lost:
            if not at <= lo < hi <= span.hi or span.rows.slice(lo, hi).count:
                raise BadInput(f"{self.stream}: [{lo}, {hi}) cannot be what is lost of [{span.lo}, {span.hi})")
            at = hi

    def _agree(self, span: Span) -> None:
        """Check the part of a span that is known already; the better known claim may say less, never other."""
        lo, hi = span.lo, min(span.hi, self.horizon)
        if lo >= hi:
            return
        if self.horizon < self.floor:
            known = self.know(lo, hi)
        else:
            asof = min(max(span.asof, lo, self.floor), self.horizon)
            known = [self.rows(lo, hi, asof)]
        join(known, (span.slice(lo, hi),))

    def _refuse_unexplained_gap(self, span: Span) -> None:
        """Raise if a number at or above the asof has no row: no event below the asof can have collected it."""
        since = max(span.asof, span.lo)
        if since >= span.hi or span.full:
            return
        later = span.slice(since, span.hi)
        if not later.full:
            raise Contradiction(
                f"{self.stream}: [{span.lo}, {span.hi}) as of {span.asof} lacks a row above that, "
                "with nothing to collect it"
            )

    def _refuse_contradictions(
        self, span: Span, claim: KeyClaim | None, steps: list[Collector], matched: list[tuple[int, Seqs]]
    ) -> None:
        """Raise if an event of the span collects a row that survives as of a later number."""
        pieces = self._pieces or [Piece(FIRST, self.horizon, self.horizon)]
        known = np.array([*pieces, (span.lo, span.hi, span.asof)], dtype=np.int64)
        pairs = [(np.full(len(victims), seq), victims) for seq, victims in matched]
        if claim is not None:
            pairs.append((claim.numbers, claim.previous))
        for killers, victims in pairs:
            asofs = known[known[:, 0].searchsorted(victims, "right") - 1, 2]
            wrong = np.flatnonzero((victims >= 0) & (asofs > killers))
            if len(wrong):
                at = int(wrong[0])
                raise self._contradiction(int(killers[at]), int(victims[at]), int(asofs[at]))
        for seq, low in steps:
            for lo, hi, asof in pieces:
                if asof > seq and lo < low:
                    found, _ = self._store.survivors(lo, min(hi, low), asof, self._stairs.low(asof), 1)
                    if found.count:
                        raise self._contradiction(seq, _first(found, hi), asof)
            if span.asof > seq and _first(span.rows, span.hi) < low:
                raise self._contradiction(seq, _first(span.rows, span.hi), span.asof)

    def _contradiction(self, killer: int, victim: int, asof: int) -> Contradiction:
        return Contradiction(
            f"{self.stream}: event {killer} collects row {victim}, which is said to survive as of {asof}"
        )

    def _sink(self, seq: int, low: int) -> None:
        old = self.low
        self._stairs.add(seq, low)
        if low > old:
            self._store.sink(old, low, seq)
            self.collected_collectors += self.collectors_in(old, low)

    def _advance(self, span: Span) -> None:
        """Move horizon and floor over a span that has been stored, and keep the pieces while they are needed."""
        old = self.horizon
        self.horizon = span.hi
        lifted = not span.full and span.asof > self.floor
        if self._pieces or span.asof > span.hi:
            if not self._pieces and old > FIRST:
                self._pieces = [Piece(FIRST, old, old)]
            elif lifted and self.floor <= old:  # until now all of it could be told as of the old horizon
                pieces, self._pieces = self._pieces, []
                for piece in pieces:
                    self._add_piece(piece.lo, piece.hi, max(piece.asof, old))
            self._add_piece(span.lo, span.hi, span.asof)
        if lifted:
            self.floor = span.asof
        if self._pieces and self.horizon >= self.floor:
            self._forget_reached()

    def _forget_reached(self) -> None:
        """The horizon has reached the floor: what is known as of no more than the horizon is one piece."""
        pieces = self._pieces
        reached = 0
        while reached < len(pieces) and pieces[reached].asof <= self.horizon:
            reached += 1
        if reached == len(pieces):
            self._pieces = []
        elif reached:
            pieces[:reached] = [Piece(FIRST, pieces[reached - 1].hi, self.horizon)]

    def _add_piece(self, lo: int, hi: int, asof: int) -> None:
        pieces = self._pieces
        if pieces and pieces[-1].asof == asof:
            pieces[-1] = Piece(pieces[-1].lo, hi, asof)
        else:
            pieces.append(Piece(lo, hi, asof))

    # --- asking -----------------------------------------------------------------------------------------

    def rows(self, lo: int, hi: int, asof: int, limit_rows: int = NEVER) -> Span:
        """Exactly the rows of [lo, hi), cut short after so many, that survive collection by the events below asof."""
        if not FIRST <= lo < hi:
            raise BadInput(f"{self.stream}: [{lo}, {hi}) is not a range of numbers")
        if asof < self.floor:
            raise AsofGone(f"{self.stream}: as of {asof} is forgotten; ask as of {self.floor} or later", self.floor)
        if hi > self.horizon or asof > self.horizon:
            raise NotYet(f"{self.stream}: [{lo}, {hi}) as of {asof} is beyond horizon {self.horizon}", self.horizon)
        return self._survivors(lo, hi, asof, limit_rows)

    def know(self, lo: int, hi: int, limit_rows: int | None = None) -> list[Span]:
        """The best that is known of [lo, hi) up to the horizon; cut short after so many rows or a message full."""
        hi = min(hi, self.horizon)
        limit = NEVER if limit_rows is None else max(limit_rows, 1)
        if lo >= hi:
            return []
        if self.horizon >= self.floor:
            whole = [self._survivors(lo, hi, self.horizon, limit)]
            return whole if limit_rows is None else within(whole)
        spans: list[Span] = []
        for piece in self._pieces[bisect_right(self._pieces, (lo, NEVER)) - 1 :]:
            if piece.lo >= hi or limit <= 0:
                break
            span = self._survivors(max(lo, piece.lo), min(hi, piece.hi), piece.asof, limit)
            spans.append(span)
            limit -= span.rows.count
            if span.hi < piece.hi:
                break
        return spans if limit_rows is None else within(spans)

    def kept(self, lo: int, hi: int, limit_rows: int | None = None) -> list[Span]:
        """As `know`, with the dead rows that leases keep: who takes these spans in answers for as much as this does."""
        asof = max(self.floor, min(self._leases.values(), default=self.horizon))
        if asof >= self.horizon:
            return self.know(lo, hi, limit_rows)
        hi = min(hi, self.horizon)
        if lo >= hi:
            return []
        limit = NEVER if limit_rows is None else max(limit_rows, 1)
        whole = [self._survivors(lo, hi, asof, limit)]
        return whole if limit_rows is None else within(whole)

    def held(self, asof: int) -> int:
        """About how many bytes of dead rows survive as of a number: what a lease as of it costs."""
        stored, dead = self._store.stored, self._store.stored - self._store.live
        if dead <= 0:
            return 0
        return self._store.dead_since(asof, self._stairs.low(asof), self.low) * (self.nbytes // stored)

    def _survivors(self, lo: int, hi: int, asof: int, limit: int) -> Span:
        rows, hi = self._store.survivors(lo, hi, asof, self._stairs.low(asof), limit)
        lost = tuple(self._lost.intersect(lo, hi)) if self._lost else ()
        return Span(self.stream, lo, hi, asof if asof > lo else lo, rows, ALL, lost)

    def killer(self, seq: int) -> int | Literal["gone", "lost"] | None:
        """The event that collected a number; None while its row lives, "gone" if that is not known any more, "lost"."""
        if not FIRST <= seq < self.horizon:
            raise NotYet(f"{self.stream}: {seq} is beyond horizon {self.horizon}", self.horizon)
        if seq in self._lost:
            return "lost"
        marked = self._store.dead_at(seq)
        if marked is None:
            return "gone"
        killer = min(marked, self._stairs.killer(seq))
        if killer == NEVER:
            return None
        return killer if killer >= self.floor else "gone"

    def collectors_in(self, lo: int, hi: int) -> int:
        """How many numbers in [lo, hi), at or above the low, are known to be "before n" events."""
        return bisect_left(self._collectors, (hi,)) - bisect_left(self._collectors, (lo,))

    def oldest_at(self) -> float | None:
        """When the oldest live row that is not a "before n" event was published; None if there is none."""
        lo = self.low
        while lo < self.horizon:
            rows, _ = self._store.survivors(lo, self.horizon, self.horizon, self.low, 1)
            if not isinstance(rows, ArrowRows) or not rows.count:
                return None
            if not self.collectors_in(rows.first, rows.first + 1):
                return rows.origins[0].at if rows.origins else None
            lo = rows.first + 1
        return None

    def first_since(self, cutoff: float) -> int:
        """The first live number published at or after the cutoff, or the horizon."""
        if isinstance(self._store, CountedStore):
            return self.low
        return self._store.first_since(cutoff, self.low, self.horizon)

    def above(self, tick: int) -> int:
        """A number such that every live row below it has this tick or a smaller one; the largest that is easily found.

        Ticks ascend. What is lost or was collected behind the last such row lies above that number.
        """
        return max(FIRST, self._store.above(tick)) if isinstance(self._store, Chunks) else FIRST

    # --- leases and purging -----------------------------------------------------------------------------

    def lease(self, name: str, asof: int) -> None:
        """From now on no row is purged that survives as of this number; a holder moves its own lease."""
        if asof < self.floor:
            raise AsofGone(f"{self.stream}: no lease as of {asof}, the floor is {self.floor}", self.floor)
        self._leases[name] = asof

    @property
    def leases(self) -> frozenset[str]:
        """Names of the leases that hold rows here."""
        return frozenset(self._leases)

    def release(self, name: str) -> None:
        """End a lease."""
        self._leases.pop(name, None)

    def purge(self, budget_rows: int = PURGE_ROWS) -> int:
        """Raise the floor as far as leases allow and drop rows collected below it; how many went.

        One call looks at about ``budget_rows`` rows; the next one goes on where it stopped.
        """
        if self.horizon < self.floor:
            return 0
        limit = min(self.horizon, self._store.last_kill + 1, *self._leases.values())
        self.floor = max(self.floor, limit)
        low = self._stairs.low(self.floor)
        self._stairs.prune(self.floor)
        del self._collectors[: bisect_left(self._collectors, (low,))]
        return self._store.compact(self.floor, low, budget_rows)

    def tidy(self) -> None:
        """Purge a slice if much more is stored than lives: what collects fast must not wait for the next purge."""
        store = self._store
        grown = store.stored - self._tidied
        if grown >= PURGE_ROWS // 2 and store.stored > CROWDED * max(store.live, PURGE_ROWS) and not self._counted:
            self.purge()
            self._tidied = store.stored
        elif grown < 0:
            self._tidied = store.stored


def _first(rows: Rows, default: int) -> int:
    """The number of the first row."""
    if not rows.count:
        return default
    if isinstance(rows, ArrowRows) and rows.seqs is not None:
        return int(rows.seqs[0])
    return rows.first if isinstance(rows, ArrowRows | CountedRows) else int(rows.numbers[0])


def _well_numbered(rows: Rows, lo: int, hi: int) -> bool:
    """Whether the numbers ascend inside of [lo, hi)."""
    if isinstance(rows, ArrowRows) and rows.seqs is not None:
        seqs = rows.seqs
        if seqs.dtype != np.int64 or seqs.strides != (8,) or len(seqs) != rows.count:
            return False
        return bool(lo <= seqs[0] and seqs[-1] < hi and (seqs[1:] > seqs[:-1]).all())
    first = _first(rows, lo)
    return lo <= first and first + rows.count <= hi
