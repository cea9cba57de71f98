"""The compiled filter index: conjunctions in flat arrays, matched by one kernel.

A conjunction is a row: shape, codes of the values, lower and upper code of each interval, number of the filter. Rows
are sorted. Those with the same shape and values are a *run*; an open-addressing table leads from the hash of the values
to the run, and the values decide. Inside a run the lower ends of the first interval ascend, and of each block of
`BLOCK` rows, and of `BLOCK` blocks, the largest upper end is kept: so rows are skipped that cannot hold a value.

New rows are chained to their runs. When the chains have cost more than sorting them in, or there is no more room,
everything is sorted again, without the rows of removed filters.

Codes are 64-bit integers. Those of numbers need no table. A text has a code to be compared for equality, a number that
it was given, and one for order, among the texts that intervals end at. Importing this module imports numba.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tidings.core.filters.buckets import ID_BITS, IDS, MAX_EQUAL, MAX_RANGES, Entry, Key, Shape
from tidings.core.filters.coding import CodedRows, Codes
from tidings.core.filters.normal import FIRST_TEXT, NULL, TEXTS, TOP, TOP_TEXT, Cut, Term
from tidings.core.keytable import HIGH, LOW, MIX1, MIX2, MIX3, kernel, load64, prefetch, store64

SHAPE, VALUES, BOUNDS = 0, 1, 1 + MAX_EQUAL  # columns of a row
FILTER = BOUNDS + 2 * MAX_RANGES
WIDTH = FILTER + 1
HEAD, START, STOP, CHAIN = 8, 5, 6, 7  # columns of a run, after shape and values
BODY, BODY_FILTER, NEXT = 8, 2 * MAX_RANGES, 2 * MAX_RANGES + 1  # columns of what is compared inside a run
S_NUMBER, S_EQUAL, S_TERMS, S_RANGED = 0, 1, 2, 2 + MAX_EQUAL  # columns of a shape
SHIFT = 5
BLOCK = 1 << SHIFT
LONG = 8 * BLOCK  # ours: rows of a run from which on skipping blocks pays
GROUP = 64  # rows that are looked up together; ours, because what that asks of the memory fits the first-level cache
AHEAD = 4  # ours, because the memory sees by then where this is going
ROOM = 1024  # rows that can be chained at least; ours, because sorting as many takes no millisecond
STEPS = 64  # ours: so many steps along chains cost as much as sorting one row in
UNKNOWN = -1  # code of a text that no filter wants
STRIDE = 1 << 24  # ours, between texts that come in order: room for more in between, and for many behind
Alive: TypeAlias = NDArray[np.bool_]


# --- kernels ------------------------------------------------------------------------------------------------


@kernel
def _precedes(a: Codes, i: int, b: Codes, j: int) -> bool:
    for column in range(WIDTH):
        if a[i, column] != b[j, column]:
            return a[i, column] < b[j, column]
    return False


@kernel
def _merged(a: Codes, b: Codes, alive: Alive) -> Codes:
    """The rows of two sorted arrays whose filters are alive, sorted."""
    out = np.empty((len(a) + len(b), WIDTH), np.int64)
    i = j = size = 0
    while i < len(a) or j < len(b):
        if j == len(b) or (i < len(a) and _precedes(a, i, b, j)):
            if alive[a[i, FILTER]]:
                out[size] = a[i]
                size += 1
            i += 1
        else:
            if alive[b[j, FILTER]]:
                out[size] = b[j]
                size += 1
            j += 1
    return out[:size].copy()


@kernel
def _mixed(state: int, word: int) -> int:
    state = (state ^ word) * MIX2
    return state ^ ((state >> 29) & 0x7FFFFFFFF)


@kernel
def _last_mix(state: int) -> int:
    state *= MIX3
    return state ^ ((state >> 32) & LOW)


@kernel
def _enter(rows: Codes, i: int, equal: Codes, slots: Codes, heads: Codes, runs: int) -> int:
    """The run of a row; ``runs`` if that is a new one."""
    h = rows[i, SHAPE] * MIX1
    for j in range(equal[rows[i, SHAPE]]):
        h = _mixed(h, rows[i, VALUES + j])
    h = _last_mix(h)
    mask = len(slots) - 1
    at = h & mask
    while slots[at] != 0:
        run = (slots[at] & LOW) - 1
        same = (slots[at] ^ h) & HIGH == 0
        for column in range(BOUNDS):
            same &= heads[run, column] == rows[i, column]
        if same:
            return run
        at = (at + 1) & mask
    slots[at] = (h & HIGH) | (runs + 1)
    for column in range(BOUNDS):
        heads[runs, column] = rows[i, column]
    for column in range(BOUNDS, HEAD):
        heads[runs, column] = 0
    return runs


@kernel
def _arrange(rows: Codes, equal: Codes, slots: Codes, heads: Codes, bodies: Codes, peaks: Codes, tops: Codes) -> int:
    """Fill in runs, bodies and the upper ends of blocks from sorted rows; how many runs there are."""
    runs, run = 0, -1
    for i in range(len(rows)):
        same = run >= 0
        if same:
            for column in range(BOUNDS):
                same &= rows[i, column] == rows[i - 1, column]
        if not same:
            run = _enter(rows, i, equal, slots, heads, runs)
            runs += 1
            heads[run, START] = i
        heads[run, STOP] = i + 1
        for column in range(2 * MAX_RANGES + 1):
            bodies[i, column] = rows[i, BOUNDS + column]
        peaks[i >> SHIFT] = max(peaks[i >> SHIFT], rows[i, BOUNDS + 1])
        tops[i >> (2 * SHIFT)] = max(tops[i >> (2 * SHIFT)], rows[i, BOUNDS + 1])
    return runs


@kernel
def _chain(rows: Codes, equal: Codes, slots: Codes, heads: Codes, bodies: Codes, first: int, runs: int) -> int:
    """Chain rows to their runs, their bodies at ``first`` and after; how many runs there are then."""
    for i in range(len(rows)):
        run = _enter(rows, i, equal, slots, heads, runs)
        runs = max(runs, run + 1)
        for column in range(2 * MAX_RANGES + 1):
            bodies[first + i, column] = rows[i, BOUNDS + column]
        bodies[first + i, NEXT] = heads[run, CHAIN]
        heads[run, CHAIN] = first + i + 1
    return runs


@kernel
def _find(
    codes: Codes, first: int, count: int, shapes: Codes, slots: Codes, heads: Codes, bodies: Codes, runs: Codes
) -> None:
    """For some rows and each shape the run with the values of its terms, or -1.

    Each pass asks the memory for what the next one needs: the slot, the run, its first bodies.
    """
    mask, slot_base = len(slots) - 1, np.int64(slots.ctypes.data)
    head_base, body_base = np.int64(heads.ctypes.data), np.int64(bodies.ctypes.data)
    for i in range(count):
        for s in range(len(shapes)):
            h = shapes[s, S_NUMBER] * MIX1
            for j in range(shapes[s, S_EQUAL]):
                h = _mixed(h, codes[shapes[s, S_TERMS + j], first + i])
            runs[i, s] = _last_mix(h)
            prefetch(slot_base + 8 * (runs[i, s] & mask))
    for i in range(count):
        for s in range(len(shapes)):
            slot = load64(slot_base + 8 * (runs[i, s] & mask))
            prefetch(head_base + 8 * HEAD * ((slot & LOW) - 1))
    for i in range(count):
        for s in range(len(shapes)):
            h = runs[i, s]
            at = h & mask
            runs[i, s] = -1
            while slots[at] != 0:
                run = (slots[at] & LOW) - 1
                same = (slots[at] ^ h) & HIGH == 0 and heads[run, SHAPE] == shapes[s, S_NUMBER]
                if same:
                    for j in range(shapes[s, S_EQUAL]):
                        same &= heads[run, VALUES + j] == codes[shapes[s, S_TERMS + j], first + i]
                if same:
                    runs[i, s] = run
                    body = body_base + 8 * BODY * heads[run, START]
                    for line in range(AHEAD):
                        prefetch(body + 8 * BODY * line)
                    break
                at = (at + 1) & mask


@kernel
def _scan(
    bodies: Codes, at: int, stop: int, v: int, w: int, x: int, row: int, found: Codes, size: int
) -> tuple[int, int]:
    """Add a row's pairs with the filters of sorted bodies whose intervals hold its three values.

    How many pairs there are then, and the first body whose lower end is too high.
    """
    out = np.int64(found.ctypes.data)
    first = np.int64(bodies.ctypes.data)
    body, last = first + 8 * BODY * at, first + 8 * BODY * stop
    while body < last and load64(body) <= v:
        inside = (v < load64(body + 8)) & (load64(body + 16) <= w) & (w < load64(body + 24))
        inside &= (load64(body + 32) <= x) & (x < load64(body + 40))
        store64(out + 8 * size, row | load64(body + 8 * BODY_FILTER))
        size += inside  # without a branch on what cannot be predicted
        body += 8 * BODY
    return size, int((body - first) // (8 * BODY))


@kernel
def _scan_long(
    bodies: Codes, at: int, stop: int, peaks: Codes, tops: Codes, v: int, w: int, x: int, row: int,
    found: Codes, size: int,
) -> int:  # fmt: skip
    """The same without the blocks in which no upper end is high enough."""
    while at < stop and bodies[at, 0] <= v:
        if at & (BLOCK * BLOCK - 1) == 0 and tops[at >> (2 * SHIFT)] <= v:
            at += BLOCK * BLOCK
        elif at & (BLOCK - 1) == 0 and peaks[at >> SHIFT] <= v:
            at += BLOCK
        else:
            end = min(stop, (at | (BLOCK - 1)) + 1)
            size, at = _scan(bodies, at, end, v, w, x, row, found, size)
            if at < end:
                break
    return size


@kernel
def _follow(
    bodies: Codes, chained: int, v: int, w: int, x: int, row: int, found: Codes, size: int, tally: Codes
) -> tuple[Codes, int]:
    """The same along a chain; the pairs may have moved."""
    while chained != 0:
        at = chained - 1
        inside = bodies[at, 0] <= v < bodies[at, 1] and bodies[at, 2] <= w < bodies[at, 3]
        if inside and bodies[at, 4] <= x < bodies[at, 5]:
            if size + 1 >= len(found):
                found = _grown(found, size, 1)
            found[size] = row | bodies[at, BODY_FILTER]
            size += 1
        chained = bodies[at, NEXT]
        tally[0] += 1
    return found, size


@kernel
def _grown(found: Codes, size: int, more: int) -> Codes:
    out = np.empty(2 * len(found) + more, np.int64)
    out[:size] = found[:size]
    return out


@kernel
def _match(
    codes: Codes, shapes: Codes, slots: Codes, heads: Codes, bodies: Codes, peaks: Codes, tops: Codes, tally: Codes
) -> Codes:
    """The pairs of a row and a filter of which a conjunction is met, rows ascending; counts the steps along chains.

    A pair comes once for each conjunction that is met.
    """
    count = codes.shape[1]
    runs = np.empty((GROUP, len(shapes)), np.int64)
    found = np.empty(min(16 * count, 1 << 16) + 64, np.int64)
    size = 0
    for first in range(0, count, GROUP):
        group = min(GROUP, count - first)
        _find(codes, first, group, shapes, slots, heads, bodies, runs)
        for i in range(first, first + group):
            row = i << ID_BITS
            for s in range(len(shapes)):
                run = runs[i - first, s]
                if run < 0:
                    continue
                at, stop, chained = heads[run, START], heads[run, STOP], heads[run, CHAIN]
                v, w = codes[shapes[s, S_RANGED], i], codes[shapes[s, S_RANGED + 1], i]
                x = codes[shapes[s, S_RANGED + 2], i]
                if size + stop - at >= len(found):
                    found = _grown(found, size, stop - at)
                if stop - at <= LONG:
                    size, _ = _scan(bodies, at, stop, v, w, x, row, found, size)
                else:
                    size = _scan_long(bodies, at, stop, peaks, tops, v, w, x, row, found, size)
                if chained != 0:
                    found, size = _follow(bodies, chained, v, w, x, row, found, size, tally)
    return found[:size]


# --- texts --------------------------------------------------------------------------------------------------


class Vocabulary:
    """The codes of the texts of one term."""

    def __init__(self) -> None:
        self.ids: dict[bytes | None, int] = {None: NULL}
        self.ends: list[bytes] = []  # texts at which intervals end, ascending
        self.labels: list[int] = []  # their codes for order, two apart at least
        self._next = 0
        self._last = b""

    def enter(self, text: bytes | None) -> int:
        """The code for equality of a text that a filter wants."""
        id = self.ids.get(text)
        if id is None:
            id = self.ids[text] = self._next
            self._next += 1
        return id

    def end_at(self, text: bytes) -> bool:
        """Intervals end at a text; False if there is no code left between its neighbours."""
        at = bisect_left(self.ends, text)
        if at < len(self.ends) and self.ends[at] == text:
            return True
        low, high = (self.labels[at - 1] if at else 0), (self.labels[at] if at < len(self.labels) else TOP)
        half = (high - low) // 2
        follows = at > 0 and self.ends[at - 1] == self._last
        if half < 2:
            return False
        self.ends.insert(at, text)
        self.labels.insert(at, low + (min(half, STRIDE) if follows else half))
        self._last = text
        return True

    def cut(self, cut: Cut) -> int:
        """The first code for order above a cut."""
        if cut == TOP_TEXT:
            return TOP
        if len(cut) < 3:
            return 0 if cut == FIRST_TEXT else NULL
        return self.labels[bisect_left(self.ends, cut[1])] + int(cut[2])

    def order(self, text: bytes | None) -> int:
        """The code for order of a value: that of an end, or one more if it lies behind it."""
        if text is None:
            return NULL
        at = bisect_right(self.ends, text)
        return self.labels[at - 1] + (self.ends[at - 1] != text) if at else 0

    def relabel(self) -> tuple[Codes, Codes]:
        """Put the codes for order as far apart as can be; the old ones, and what is to be added to each."""
        old = np.array(self.labels, np.int64)
        self.labels = [at * (TOP // (len(old) + 1)) for at in range(1, len(old) + 1)]
        return old, np.array(self.labels, np.int64) - old

    def keep(self, ids: Codes, cuts: Codes) -> None:
        """Forget texts that no filter wants any more, by the codes that are left."""
        used, ends = set(ids.tolist()), set(cuts.tolist())
        self.ids = {text: id for text, id in self.ids.items() if id in used or text is None}
        left = [label in ends or label + 1 in ends for label in self.labels]
        self.ends = [end for end, there in zip(self.ends, left, strict=True) if there]
        self.labels = [label for label, there in zip(self.labels, left, strict=True) if there]


# --- the table ----------------------------------------------------------------------------------------------


class ConjunctionTable:
    """Conjunctions of filters that come and go."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self._terms = terms
        self._words: dict[int, Vocabulary] = {}
        self._shapes: dict[Shape, int] = {}
        self._new: list[tuple[Shape, Key, Entry]] = []
        self._alive: Alive = np.zeros(64, np.bool_)
        self._sorted: Codes = np.empty((0, WIDTH), np.int64)
        self._chained: Codes = np.empty((0, WIDTH), np.int64)  # and room for more
        self._links = 0  # rows of it that are used
        self._dead = 0
        self._tally: Codes = np.zeros(1, np.int64)  # steps along chains since everything was sorted
        self._bodies: Codes = np.empty((0, BODY), np.int64)
        self._runs = 0

    def __len__(self) -> int:
        return len(self._sorted) + self._links + len(self._new)

    def add(self, shape: Shape, key: Key, entry: Entry) -> None:
        """Enter a conjunction."""
        id = entry[-1]
        if id >= len(self._alive):
            self._alive = np.concatenate([self._alive, np.zeros(id, np.bool_)])
        self._alive[id] = True
        self._new.append((shape, key, entry))

    def remove(self, id: int, conjunctions: int) -> None:
        """Remove a filter; its number may not be used again before everything has been sorted."""
        if conjunctions:
            self._alive[id] = False
            self._dead += conjunctions

    def match(self, rows: CodedRows) -> Codes:
        """The pairs of a row and a filter of which a conjunction is met; one may come twice."""
        if self._new:
            self._take_in()
        if self._tally[0] > STEPS * (ROOM + len(self)) or self._dead > ROOM + len(self) // 4:
            self.sort()
        codes: Codes = np.empty((len(self._columns), rows.count), np.int64)
        for at, (term, ordered) in enumerate(self._columns):
            codes[at] = self._text_codes(term, ordered, rows) if rows.is_text(term) else rows.numbers(term)
        arrays = (self._plan, self._slots, self._heads, self._bodies, self._peaks, self._tops)
        pairs: Codes = _match(codes, *arrays, self._tally)
        return pairs[self._alive[pairs & IDS]] if self._dead else pairs

    def _text_codes(self, term: int, ordered: bool, rows: CodedRows) -> Any:
        words = self._words[term]
        texts, which = rows.distinct(term)
        if ordered:
            codes = [words.order(text) for text in texts]
        else:
            get = words.ids.get
            codes = [get(text, UNKNOWN) for text in texts]
        return codes if which is None else np.array([*codes, NULL], np.int64)[which]

    # --- changes ----------------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        """Chain what is new to its runs, or if there is no room sort it in."""
        shapes = list(self._shapes)
        for shape in [shape for shape in dict.fromkeys([each[0] for each in self._new]) if shape not in self._shapes]:
            taken = set(self._shapes.values())
            self._shapes[shape] = next(number for number in range(len(taken) + 1) if number not in taken)
        moved = self._end_at_new_texts()
        new: Codes = np.array([self._encoded(*each) for each in self._new], np.int64)
        self._new = []
        first, links = len(self._sorted) + self._links, self._links + len(new)
        if links > len(self._chained):
            self._chained = np.concatenate([self._chained[: self._links], new])
        else:
            self._chained[self._links : links] = new
        self._links = links
        if moved or first + len(new) > len(self._bodies):
            self._arrange()
            return
        if len(self._shapes) > len(shapes):
            self._describe()
        self._runs = _chain(new, self._equal, self._slots, self._heads, self._bodies, first, self._runs)

    def _end_at_new_texts(self) -> bool:
        """Give codes for order to the texts at which new intervals end; whether others have changed theirs."""
        moved = False
        for (_, ranges), _, entry in self._new:
            for at, term in enumerate(ranges):
                if self._terms[term].kind not in TEXTS:
                    continue
                words = self._words.setdefault(term, Vocabulary())
                for cut in entry[2 * at : 2 * at + 2]:
                    if len(cut) == 3 and not words.end_at(cut[1]):
                        self._relabel(term, words)
                        words.end_at(cut[1])
                        moved = True
        return moved

    def _encoded(self, shape: Shape, key: Key, entry: Entry) -> tuple[int, ...]:
        terms, ranges = shape
        out = [self._shapes[shape]]
        for term, value in zip(terms, key, strict=True):
            is_text = self._terms[term].kind in TEXTS
            out.append(self._words.setdefault(term, Vocabulary()).enter(value) if is_text else value)
        out += [0] * (BOUNDS - len(out))
        for at, term in enumerate(ranges):
            cuts = entry[2 * at : 2 * at + 2]
            out += map(self._words[term].cut, cuts) if self._terms[term].kind in TEXTS else cuts
        return (*out, *(NULL, TOP) * (MAX_RANGES - len(ranges)), entry[-1])

    def _relabel(self, term: int, words: Vocabulary) -> None:
        old, shift = words.relabel()
        for number, columns in self._columns_of(term, True):
            for rows in (self._sorted, self._chained[: self._links]):
                for column in columns:
                    there = (rows[:, SHAPE] == number) & (rows[:, column] > 0) & (rows[:, column] < TOP)
                    rows[there, column] += shift[old.searchsorted(rows[there, column], "right") - 1]

    def _columns_of(self, term: int, ordered: bool) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Of each shape that has a term the columns with its codes for equality, or those for order."""
        for shape, number in self._shapes.items():
            if term in shape[ordered]:
                at = shape[ordered].index(term)
                yield number, (BOUNDS + 2 * at, BOUNDS + 2 * at + 1) if ordered else (VALUES + at,)

    def sort(self) -> None:
        """Sort in everything that is chained or new, and leave out what is dead."""
        if self._new:
            self._take_in()
        self._arrange()

    def _arrange(self) -> None:
        links = self._chained[: self._links]
        self._sorted = _merged(self._sorted, links[np.lexsort(links.T[::-1])], self._alive)
        count = len(self._sorted)
        room = ROOM + count // 4
        self._chained = np.empty((room, WIDTH), np.int64)
        self._links = self._dead = self._tally[0] = 0
        present = set(np.unique(self._sorted[:, SHAPE]).tolist())
        self._shapes = {shape: number for shape, number in self._shapes.items() if number in present}
        for term, words in self._words.items():
            if len(words.ids) + len(words.ends) > ROOM + 4 * count:
                words.keep(self._codes_of(term, False), self._codes_of(term, True))
        self._describe()
        self._heads, self._bodies = _aligned(count + room, HEAD), _aligned(count + room, BODY)
        self._slots: Codes = np.zeros(1 << (2 * (count + room)).bit_length(), np.int64)
        self._peaks: Codes = np.full((count >> SHIFT) + 1, NULL)
        self._tops: Codes = np.full((count >> (2 * SHIFT)) + 1, NULL)
        self._runs = _arrange(
            self._sorted, self._equal, self._slots, self._heads, self._bodies, self._peaks, self._tops
        )

    def _codes_of(self, term: int, ordered: bool) -> Codes:
        """The codes of a term that sorted rows have."""
        rows = self._sorted
        found = [np.empty(0, np.int64)]
        for number, columns in self._columns_of(term, ordered):
            found.append(rows[rows[:, SHAPE] == number][:, columns].ravel())
        return np.unique(np.concatenate(found))

    def _describe(self) -> None:
        """What the kernel needs to know of the shapes."""
        texts = [term.kind in TEXTS for term in self._terms]
        wanted = [(term, False) for terms, _ in self._shapes for term in terms]
        wanted += [(term, texts[term]) for _, ranges in self._shapes for term in ranges]
        self._columns = list(dict.fromkeys(wanted))  # rows of the codes: a term, and whether they are for order
        places = {column: at for at, column in enumerate(self._columns)}
        self._plan: Codes = np.zeros((len(self._shapes), S_RANGED + MAX_RANGES), np.int64)
        self._equal: Codes = np.zeros(max(self._shapes.values(), default=0) + 1, np.int64)
        for row, ((terms, ranges), number) in zip(self._plan, self._shapes.items(), strict=True):
            row[:S_TERMS] = number, len(terms)
            row[S_TERMS : S_TERMS + len(terms)] = [places[term, False] for term in terms]
            row[S_RANGED : S_RANGED + len(ranges)] = [places[term, texts[term]] for term in ranges]
            self._equal[number] = len(terms)


def _aligned(rows: int, columns: int) -> Codes:
    """An array whose rows begin with a cache line."""
    words = np.empty(rows * columns + 8, np.int64)
    skip = -words.ctypes.data % 64 // 8
    return words[skip : skip + rows * columns].reshape(rows, columns)
