"""Storage of a history's Arrow rows: chunks in ascending order, and for each row the number that collected it.

A chunk is an immutable `ArrowRows` with a mutable array ``dead`` beside it (where rows are marked). One integer table
describes all chunks (first number, rows, addresses of what a search needs and of ``dead``, rows alive), so that a
compiled kernel can find and mark any row without Python touching it. Rows collected by "before n" are not marked: they
are those below ``low``, which callers pass in. Rows that a predicate collects are found by evaluating it over every
chunk, and marked like the others. A chunk without keys gets its ``dead`` when that first happens.

Batches of a few rows that are still lists (`SmallRows`) wait in a *tail* of lists, above all chunks: appending there
takes a microsecond. A call that needs more than counts first turns the tail into a chunk. A long run of small chunks is
merged into one, so reading stays cheap after thousands of tiny accepts. `compact` rewrites chunks of which at least
half is dead, together with small neighbours, within a budget of rows. For each copied row one dead row is freed, so
memory stays proportional to the rows alive and no call takes long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidings.core.errors import BadInput
from tidings.core.hashing import Seqs
from tidings.core.ids import NEVER
from tidings.core.keyindex import KeyIndex
from tidings.core.rows import NO_ROWS, ROW_SCHEMA, ArrowRows, Origin, Rows, merged_origins
from tidings.core.small_rows import SmallRows
from tidings.core.span import Span

CHUNK_ROWS = 16384  # ours, because a rewrite of so many takes about a millisecond, and batches of this size pay (SP1)
SMALL_ROWS = 256  # ours: smaller chunks are gathered; their origins are still few enough to scan
GATHER_ROWS = 2048  # ours: `compact` takes smaller neighbours along; copying larger ones costs more than it saves
SMALL_RUN = 32  # ours: so many small chunks in a row are gathered into one
FEW = 16  # ours: from here on the columns of a batch pay, even if they have to be made
TAIL_ROWS = 1024  # ours: to make columns of so many takes a tenth of a millisecond
COLUMN_KEY, COLUMN_BEFORE = 1, 3  # positions in ROW_SCHEMA
FIRST_ROW, COUNT, SEQS, PLACES, SHIFT, DEAD, ALIVE, WIDTH = range(8)  # columns of the table


class Chunk(NamedTuple):
    """Rows and, where rows are marked, the number that collected each by key or predicate (NEVER while none has).

    ``places`` shortens the search in sparse rows: those with (number - first) >> shift = i begin at places[i].
    """

    rows: ArrowRows
    dead: Seqs | None
    places: Seqs | None = None
    shift: int = 0

    def span_of(self, lo: int, hi: int) -> tuple[int, int]:
        """Positions of the rows in [lo, hi)."""
        rows = self.rows
        if rows.seqs is not None:
            start, stop = rows.seqs.searchsorted((lo, hi)).tolist()
            return start, stop
        count = rows.count
        return min(max(lo - rows.first, 0), count), min(max(hi - rows.first, 0), count)

    def number(self, position: int) -> int:
        """The number of the row at a position."""
        seqs = self.rows.seqs
        return self.rows.first + position if seqs is None else int(seqs[position])


class KeyClaim(NamedTuple):
    """Rows whose keys were entered in the index, and the numbers they replaced (or -1)."""

    rows: ArrowRows
    previous: Seqs

    @property
    def numbers(self) -> Seqs:
        return self.rows.numbers


class Tail:
    """The newest rows while they come a few at a time."""

    __slots__ = ("dead", "first", "keys", "killed", "origins", "payloads")

    def __init__(self, first: int = NEVER) -> None:
        self.first = first  # NEVER: it is empty
        self.keys: list[bytes | None] = []
        self.payloads: list[bytes | None] = []
        self.origins: list[Origin] = []
        self.dead: list[int] = []
        self.killed = 0


class Chunks:
    """All stored Arrow rows of one stream."""

    def __init__(self, by_key: bool, seed: int = 0) -> None:
        self.live = 0
        self.stored = 0
        self.last_kill = 0
        self.index = KeyIndex(seed) if by_key else None
        self._chunks: list[Chunk] = []
        self._firsts: list[int] = []
        self._table: NDArray[np.int64] = np.zeros((8, WIDTH), dtype=np.int64)
        self._tail = Tail()
        self._marks = by_key  # whether rows are marked
        self._small = 0  # how many chunks at the end are small
        self._cursor = NEVER  # compaction works downwards and stopped above this number

    @property
    def nbytes(self) -> int:
        """Bytes of memory held: rows, their state, the index."""
        self._settle()
        total = self._table.nbytes + (0 if self.index is None else self.index.nbytes)
        for rows, dead, places, _ in self._chunks:
            total += rows.nbytes + sum([array.nbytes for array in (dead, places) if array is not None])
        return total

    # --- taking in --------------------------------------------------------------------------------------

    def collectors(self, rows: Rows) -> list[tuple[int, int]]:
        """The (number, n) of the "before n" events among rows."""
        if not isinstance(rows, ArrowRows) or not rows.count or isinstance(rows, SmallRows):
            return []
        befores = rows.batch.column(COLUMN_BEFORE)
        if befores.null_count == rows.count:
            return []
        return [(s, n) for s, n in zip(rows.numbers.tolist(), befores.to_pylist(), strict=True) if n is not None]

    def predicates(self, rows: Rows, low: int) -> list[tuple[int, Seqs]]:
        """The predicate events among rows, each with the numbers at or above low that it collects, ascending."""
        if not isinstance(rows, ArrowRows) or isinstance(rows, SmallRows) or rows.batch.num_columns <= len(ROW_SCHEMA):
            return []
        from tidings.core.predicates import predicates_in

        self._settle()
        found = []
        for seq, predicate in predicates_in(rows, self.index is not None):
            victims = []
            for at in range(max(bisect_right(self._firsts, low) - 1, 0), len(self._chunks)):
                chunk, alive = self._chunks[at].rows, int(self._table[at, ALIVE])
                if alive:
                    dead = self._chunks[at].dead
                    hit = predicate.collects(chunk)
                    victims.append(chunk.numbers[hit if dead is None else hit & (dead == NEVER)])
            earlier = rows.slice(0, seq)
            victims.append(earlier.numbers[predicate.collects(earlier)])
            numbers = np.concatenate(victims)
            found.append((seq, numbers[numbers >= low]))
        return found

    def claim(self, rows: Rows) -> KeyClaim | None:
        """Enter the rows' keys in the index: what they replace. `BadInput` changes nothing."""
        if not rows.count:
            return None
        if not isinstance(rows, ArrowRows):
            raise BadInput("counted rows do not go with Arrow rows; use one kind per stream")
        if self.index is None:
            return None
        return KeyClaim(rows, self.index.replace(rows.batch.column(COLUMN_KEY), rows.numbers))

    def unclaim(self, claim: KeyClaim | None) -> None:
        """Undo a `claim`."""
        if self.index is not None and claim is not None:
            self.index.restore(claim.rows.batch.column(COLUMN_KEY), claim.previous)

    def append(self, span: Span, claim: KeyClaim | None, low: int) -> None:
        """Store rows above all others, and mark those at or above low that they collect by key."""
        rows = span.rows
        if not isinstance(rows, ArrowRows) or not rows.count:
            return
        self._settle()
        if rows.count <= 2 * CHUNK_ROWS:
            self._push(rows)
        else:
            numbers = rows.numbers
            for start in range(0, rows.count, CHUNK_ROWS):
                self._push(rows.slice(int(numbers[start]), int(numbers[start : start + CHUNK_ROWS][-1]) + 1))
        self.live += rows.count
        self.stored += rows.count
        if claim is not None:
            self._mark(claim, low)
        self._gather()

    def _gather(self) -> None:
        """Make one of the small chunks at the end once they are many."""
        if self._small >= SMALL_RUN:
            self._rewrite(len(self._chunks) - self._small, len(self._chunks), 0, 0)

    def enter(self, rows: Rows, low: int) -> bool:
        """Claim, append and mark in one pass, which cannot be undone; False if these rows need the three steps."""
        if self.index is None or not isinstance(rows, ArrowRows) or rows.seqs is not None:
            return False
        if not 0 < rows.count <= 2 * CHUNK_ROWS:
            return False
        keys = self.index.checked(rows.batch.column(COLUMN_KEY))
        if keys is None:
            return False
        self._settle()
        self._push(rows)
        self.live += rows.count
        self.stored += rows.count
        self._count_killed(*self.index.enter(keys, rows.first, self._table[: len(self._chunks)], low))
        self._gather()
        return True

    def append_few(self, rows: SmallRows, low: int) -> None:
        """Claim the keys of a few rows, store them above all others and mark what they collect."""
        if rows.count > FEW:
            self.append(Span.of("", rows.first, rows), self.claim(rows), low)
            return
        self._extend_tail(rows)
        self.live += rows.count
        self.stored += rows.count
        if self.index is not None and rows.keys is not None:
            self._count_killed(*self._mark_few(self.index.replace_few(rows.keys, rows.first), rows.first, low))

    def _extend_tail(self, rows: SmallRows) -> None:
        tail = self._tail
        size = len(tail.payloads)
        if rows.first != tail.first + size or size + rows.count > TAIL_ROWS:
            self._settle()
            tail = self._tail = Tail(rows.first)
        tail.keys += rows.keys or [None] * rows.count
        tail.payloads += rows.payloads
        tail.origins += rows.origins
        tail.dead += [NEVER] * rows.count

    def _settle(self) -> None:
        """Make a chunk of the tail."""
        tail = self._tail
        if not tail.payloads:
            return
        self._tail = Tail()
        rows: ArrowRows = SmallRows(tail.keys, tail.payloads, tail.first, merged_origins(tail.origins))
        if rows.count >= SMALL_ROWS:
            rows = ArrowRows.dense(rows.first, rows.batch, rows.origins)
        self._push(rows, None if self.index is None else np.array(tail.dead, dtype=np.int64), tail.killed)
        self._gather()

    def sink(self, old: int, low: int, killer: int) -> None:
        """Count the rows in [old, low) as collected; the caller remembers by which number."""
        self._settle()
        table = self._table
        before = self.live
        for at in range(max(bisect_right(self._firsts, old) - 1, 0), bisect_left(self._firsts, low)):
            chunk = self._chunks[at]
            start, _ = chunk.span_of(low, NEVER)
            alive = chunk.rows.count - start
            if chunk.dead is not None:
                alive = int(np.count_nonzero(chunk.dead[start:] == NEVER))
            self.live += alive - int(table[at, ALIVE])
            table[at, ALIVE] = alive
        if self.live < before:
            self.last_kill = max(self.last_kill, killer)

    def collect(self, killer: int, victims: Seqs) -> None:
        """Mark rows, of which none is below the low, as collected by a predicate event, unless an earlier one has."""
        self._settle()
        for at in range(max(bisect_right(self._firsts, int(victims[0])) - 1, 0), len(self._chunks)):
            chunk = self._chunks[at]
            where = victims[slice(*victims.searchsorted((chunk.rows.first, chunk.number(chunk.rows.count - 1) + 1)))]
            if not len(where):
                continue
            seqs = chunk.rows.seqs
            places = where - chunk.rows.first if seqs is None else seqs.searchsorted(where)
            dead = chunk.dead
            if dead is None:
                dead = np.full(chunk.rows.count, NEVER)
                self._chunks[at] = chunk._replace(dead=dead)
                self._table[at, DEAD] = _address(dead)
                self._marks = True
            fresh = places[dead[places] == NEVER]
            dead[places] = np.minimum(dead[places], killer)
            self._table[at, ALIVE] -= len(fresh)
            self.live -= len(fresh)
            if self.index is not None:  # what is collected is no longer the last of its key
                keys = chunk.rows.batch.column(COLUMN_KEY).take(pa.array(fresh))
                self.index.restore(keys, np.full(len(keys), -1))
        self.last_kill = max(self.last_kill, killer)

    # --- asking -----------------------------------------------------------------------------------------

    def survivors(self, lo: int, hi: int, asof: int, low: int, limit: int = NEVER) -> tuple[Rows, int]:
        """At most ``limit`` rows of [lo, hi) at or above low and not collected below asof, and where they end."""
        self._settle()
        lo = max(lo, low)
        parts: list[ArrowRows] = []
        for at in range(max(bisect_right(self._firsts, lo) - 1, 0), bisect_left(self._firsts, hi)):
            chunk = self._chunks[at]
            start, stop = chunk.span_of(lo, hi)
            if start >= stop:
                continue
            keep: NDArray[np.intp] | None = None
            found = stop - start
            if chunk.dead is not None and self._table[at, ALIVE] < chunk.rows.count:
                keep = np.flatnonzero(chunk.dead[start:stop] >= asof)
                found = len(keep)
            cut = found > limit
            if cut:
                hi = chunk.number(start + (limit if keep is None else int(keep[limit])))
                keep, found = None if keep is None else keep[:limit], limit
            if found:
                part = chunk.rows.slice(lo, hi)
                parts.append(part if keep is None else part.take(keep))
            if cut:
                break
            limit -= found
        return (parts[0].concat(parts[1:]) if parts else NO_ROWS), hi

    def dead_since(self, asof: int, low: int, top: int) -> int:
        """How many stored rows at or above low were collected by asof or later; below top all of them are collected."""
        total = 0
        for at in range(max(bisect_right(self._firsts, low) - 1, 0), len(self._chunks)):
            chunk = self._chunks[at]
            if self._table[at, ALIVE] == chunk.rows.count:
                continue
            start, middle = chunk.span_of(low, max(low, top))
            if chunk.dead is None:
                total += middle - start
            else:
                dead = chunk.dead
                total += int(np.count_nonzero(dead[start:middle] >= asof))
                total += int(np.count_nonzero((dead[middle:] >= asof) & (dead[middle:] != NEVER)))
        return total

    def dead_at(self, seq: int) -> int | None:
        """The number that a stored row is marked with, NEVER if with none; None if the row is not stored."""
        self._settle()
        at = bisect_right(self._firsts, seq) - 1
        if at < 0:
            return None
        chunk = self._chunks[at]
        start, stop = chunk.span_of(seq, seq + 1)
        if start == stop:
            return None
        return NEVER if chunk.dead is None else int(chunk.dead[start])

    def first_since(self, cutoff: float, low: int, horizon: int) -> int:
        """The first stored number at or above low that was published at or after the cutoff, else the horizon."""
        self._settle()
        for chunk in self._chunks[max(bisect_right(self._firsts, low) - 1, 0) :]:
            for origin in chunk.rows.origins:
                if origin.hi > low and origin.at >= cutoff:
                    return max(origin.lo, low)
        return horizon

    def above(self, tick: int) -> int:
        """Where the last stored batch ends whose tick is not larger; 0 if there is none."""
        self._settle()
        chunks = self._chunks
        at = bisect_right(chunks, tick, key=lambda chunk: chunk.rows.origins[0].tick if chunk.rows.origins else 0) - 1
        if at < 0:
            return 0
        origins = chunks[at].rows.origins
        found = bisect_right(origins, tick, key=lambda origin: origin.tick)
        return origins[found - 1].hi if found else chunks[at].rows.first

    # --- dropping ---------------------------------------------------------------------------------------

    def compact(self, limit: int, low: int, budget: int) -> int:
        """Drop rows below low or collected below limit, looking at about ``budget`` of them; how many went."""
        before = self.stored
        self._settle()
        self._drop_below(low)
        if self._marks:
            self._rewrite_sparse(limit, low, budget)
        if self.index is not None and len(self.index) > 2 * self.live + SMALL_ROWS:
            self.index.forget(low)
        return before - self.stored

    def _drop_below(self, low: int) -> None:
        """Chunks that end below low go as a whole."""
        end = bisect_right(self._firsts, low) - 1
        if end >= 0 and self._chunks[end].number(self._chunks[end].rows.count - 1) < low:
            end += 1
        if end > 0:
            self.stored -= int(self._table[:end, COUNT].sum())
            self._splice(0, end, None)

    def _rewrite_sparse(self, limit: int, low: int, budget: int) -> None:
        """Continue the downward pass over the chunks of which at least half is dead, as far as the budget goes."""
        end = bisect_left(self._firsts, self._cursor)
        while budget > 0:
            table = self._table[:end]
            sparse = np.flatnonzero(table[:, ALIVE] * 2 <= table[:, COUNT])
            if not len(sparse):
                end = len(self._chunks)
                break
            last = int(sparse[-1])
            droppable = self._droppable(last, limit, low)
            budget -= int(table[last, COUNT])
            end = last
            if droppable * 2 >= table[last, COUNT]:
                end = self._group(last)
                budget -= int(table[end:last, COUNT].sum())
                self._rewrite(end, last + 1, limit, low)
        self._cursor = self._firsts[end] if end < len(self._chunks) else NEVER

    def _droppable(self, at: int, limit: int, low: int) -> int:
        """How many rows of a chunk may go; fewer than its dead ones while a lease holds them."""
        chunk = self._chunks[at]
        start, _ = chunk.span_of(low, NEVER)
        return start + (0 if chunk.dead is None else int(np.count_nonzero(chunk.dead[start:] < limit)))

    def _group(self, last: int) -> int:
        """Where the run of chunks begins that is worth rewriting together with this one."""
        first = last
        count, alive = int(self._table[last, COUNT]), int(self._table[last, ALIVE])
        while first > 0:
            more, of_it_alive = int(self._table[first - 1, COUNT]), int(self._table[first - 1, ALIVE])
            worthwhile = 2 * of_it_alive <= more or more <= min(GATHER_ROWS, 2 * alive)
            if not worthwhile or alive + of_it_alive > CHUNK_ROWS or count + more > 4 * CHUNK_ROWS:
                break
            first, count, alive = first - 1, count + more, alive + of_it_alive
        return first

    def _rewrite(self, first: int, end: int, limit: int, low: int) -> None:
        """Make one chunk of several, without the rows below low or collected below limit."""
        merged, dead = self._compiled(first, end, limit, low) or self._merged(first, end, limit, low)
        alive = int(self._table[first:end, ALIVE].sum())
        self.stored -= int(self._table[first:end, COUNT].sum()) - merged.count
        self._splice(first, end, self._chunk(merged, dead) if merged.count else None, alive)

    def _compiled(self, first: int, end: int, limit: int, low: int) -> tuple[ArrowRows, Seqs] | None:
        """What the compiled rewriting makes of some chunks; None if it cannot."""
        if self.index is None or not self.index.compiled:
            return None
        from tidings.core.rewriting import rewrite

        table = self._table[first:end][:, [FIRST_ROW, COUNT, SEQS, DEAD]]
        assert table[:, 3].all(), "rows of a stream with keys are marked"
        return rewrite([chunk.rows for chunk in self._chunks[first:end]], table, limit, low)

    def _merged(self, first: int, end: int, limit: int, low: int) -> tuple[ArrowRows, Seqs | None]:
        """Likewise with Arrow."""
        parts: list[ArrowRows] = []
        deads: list[Seqs | None] = []
        for rows, dead, _, _ in self._chunks[first:end]:
            if limit == 0:
                parts.append(rows)
                deads.append(dead)
                continue
            keep = np.arange(rows.count) if dead is None else np.flatnonzero(dead >= limit)
            if rows.first < low:
                keep = keep[rows.numbers.take(keep) >= low]
            parts.append(rows.take(keep))
            deads.append(None if dead is None else dead.take(keep))
        merged = parts[0].concat(parts[1:])
        assert isinstance(merged, ArrowRows)
        dead = None
        if any(one is not None for one in deads):
            pairs = zip(parts, deads, strict=True)
            dead = np.concatenate([np.full(part.count, NEVER) if one is None else one for part, one in pairs])
        return merged, dead

    def _chunk(self, rows: ArrowRows, dead: Seqs | None) -> Chunk:
        """A chunk with what the compiled kernel needs to search it quickly."""
        seqs = rows.seqs
        if self.index is None or not self.index.compiled or seqs is None:
            return Chunk(rows, dead)
        shift = int((seqs[-1] - seqs[0]) // len(seqs)).bit_length() + 1  # two to four rows per place on average
        places = np.append(0, np.cumsum(np.bincount((seqs - seqs[0]) >> shift)))
        return Chunk(rows, dead, places, shift)

    # --- the list of chunks and its table ---------------------------------------------------------------

    def _push(self, rows: ArrowRows, dead: Seqs | None = None, killed: int = 0) -> None:
        size = len(self._chunks)
        if size == len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        if rows.seqs is not None and rows.first != rows.seqs[0]:
            rows = ArrowRows(rows.seqs, rows.batch, rows.origins, int(rows.seqs[0]))
        if dead is None and self.index is not None:
            dead = np.full(rows.count, NEVER)
        chunk = self._chunk(rows, dead)
        self._chunks.append(chunk)
        self._firsts.append(rows.first)
        self._table[size] = _described(chunk, rows.count - killed)
        self._small = self._small + 1 if rows.count < SMALL_ROWS else 0

    def _splice(self, first: int, end: int, chunk: Chunk | None, alive: int = 0) -> None:
        """Put one chunk, or none, in the place of several."""
        size = len(self._chunks)
        new = [] if chunk is None else [chunk]
        table = self._table
        table[first + len(new) : size - (end - first) + len(new)] = table[end:size]
        for one in new:
            table[first] = _described(one, alive)
        self._chunks[first:end] = new
        self._firsts[first:end] = [one.rows.first for one in new]
        size = len(self._chunks)
        self._small = 0
        while self._small < size and table[size - 1 - self._small, COUNT] < SMALL_ROWS:
            self._small += 1

    def _mark(self, claim: KeyClaim, low: int) -> None:
        """Give each row that is replaced the number that replaces it.

        A row at or above low that the index names is stored and alive: nothing but its key could have collected it.
        """
        assert self.index is not None
        if self.index.compiled:
            killed, last = self.index.mark(self._table[: len(self._chunks)], claim.numbers, claim.previous, low)
        else:
            killed, last = self._mark_small(claim, low)
        self._count_killed(killed, last)

    def _count_killed(self, killed: int, last: int) -> None:
        self.live -= killed
        if last > self.last_kill:
            self.last_kill = last

    def _mark_small(self, claim: KeyClaim, low: int) -> tuple[int, int]:
        killed = last = 0
        for victim, killer in zip(claim.previous.tolist(), claim.numbers.tolist(), strict=True):
            if victim >= low:
                self._mark_one(victim, killer)
                killed += 1
                last = killer
        return killed, last

    def _mark_few(self, victims: list[int], first: int, low: int) -> tuple[int, int]:
        """Likewise for the rows from ``first`` on, which are in the tail as many of their victims are."""
        killed = last = 0
        tail = self._tail
        for killer, victim in enumerate(victims, first):
            if victim >= tail.first and victim >= low:
                tail.dead[victim - tail.first] = killer
                tail.killed += 1
            elif victim >= low:
                self._mark_one(victim, killer)
            else:
                continue
            killed += 1
            last = killer
        return killed, last

    def _mark_one(self, victim: int, killer: int) -> None:
        at = bisect_right(self._firsts, victim) - 1
        rows, dead, _, _ = self._chunks[at]
        assert dead is not None
        dead[victim - rows.first if rows.seqs is None else rows.seqs.searchsorted(victim)] = killer
        self._table[at, ALIVE] -= 1


def _described(chunk: Chunk, alive: int) -> tuple[int, ...]:
    rows, dead, places, shift = chunk
    return rows.first, rows.count, _address(rows.seqs), _address(places), shift, _address(dead), alive


def _address(array: Seqs | None) -> int:
    return 0 if array is None else int(array.__array_interface__["data"][0])
