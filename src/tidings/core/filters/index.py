"""Which of many filters each row passes, at a cost that depends on how many match, not on how many there are.

A filter is entered by its normal form (normal.py): conjunctions of values and intervals. Where the form is not exact,
the filter itself looks at the rows that it lets through. Filters with the same text are one. A filter that says nothing
about any column by itself has to look at every row, and there may be `MAX_SCANNED` of those.

Three ways lead to the same answer. A few filters look at many rows themselves. Conjunctions are in dictionaries
(buckets.py) until looking rows up there has cost more than making a compiled table of them (table.py); where numba is
not installed they stay there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidings.core.errors import BadInput
from tidings.core.filters import Columns, Filter, kernels
from tidings.core.filters.buckets import ID_BITS, IDS, MAX_EQUAL, MAX_RANGES, Buckets, Entry, Key, Shape
from tidings.core.filters.coding import CodedRows, Codes
from tidings.core.filters.kernels import Frame
from tidings.core.filters.nodes import Node, column, literal
from tidings.core.filters.normal import TEXTS, Conjunction, Interval, Term, normal_form, span_of
from tidings.core.filters.types import AttrType
from tidings.core.rows import Mask

if TYPE_CHECKING:
    from tidings.core.filters.table import ConjunctionTable

MAX_SCANNED = 1024  # ours, because each costs some 50 us for every batch
MAX_SHAPES = 64  # ours, because each costs some 20 ns for every row
REMOVED = 1024  # ours: so many numbers of removed filters, beside a quarter of the others, are not given again yet
COMPILE_LIMIT = 4096  # conjunctions; ours, because up to here dictionaries do and a process needs no compiler
PRICE = 1024  # rows looked up in dictionaries; ours, because that is what making a table costs at least
ROWS_PER_MASK = 128  # ours: in dictionaries so many rows cost what one filter does that looks at them all at once


class _Prepared:
    compile_limit = COMPILE_LIMIT


def prepare() -> None:
    """For processes that serve: compile now, and use the compiled table whenever it pays."""
    if _can_compile():
        _Prepared.compile_limit = 0
        index = FilterIndex()
        index._to_table()
        for number in (1, 2):  # the first is sorted in, the second chained
            equal = Node("=", AttrType.BOOLEAN, (column("seq", AttrType.BIGINT), literal(number, AttrType.BIGINT)))
            index.add(Filter(equal, equal.sql, ("seq",)))
            index.matches(pa.record_batch({"seq": pa.array([1])}))


@cache
def _can_compile() -> bool:
    return find_spec("numba") is not None


class Matches:
    """Which rows pass which filters."""

    def __init__(self, pairs: Codes, count: int) -> None:
        self._pairs = pairs  # row and filter in one number, ascending
        self._count = count

    def __len__(self) -> int:
        return len(self._pairs)

    def by_row(self) -> tuple[Codes, Codes]:
        """Where the filters of each row begin, and behind the last end; the filters, ascending for each row."""
        return self._pairs.searchsorted(np.arange(self._count + 1) << ID_BITS), self._pairs & IDS

    def by_filter(self) -> tuple[Codes, Codes, Codes]:
        """The filters that match, ascending; where the rows of each begin, and behind the last end; the rows."""
        turned = (self._pairs & IDS) << ID_BITS | self._pairs >> ID_BITS
        turned.sort()
        ids = turned >> ID_BITS
        firsts = np.flatnonzero(np.diff(ids, prepend=-1))
        return ids[firsts], np.append(firsts, len(turned)), turned & IDS


@dataclass(slots=True)
class _Entered:
    """A filter of the index."""

    filter: Filter
    uses: int = 1
    entries: list[tuple[Shape, Key, Entry]] = field(default_factory=list)
    checked: bool = False  # its form is not exact


class FilterIndex:
    """Filters that come and go, and what passes them."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._filters: dict[int, _Entered] = {}
        self._scanned: dict[int, Filter] = {}
        self._next = 0
        self._removed: list[int] = []  # numbers of removed filters, not to be given again yet
        self._free: list[int] = []  # and those that may
        self._terms: list[Term] = []
        self._numbers: dict[Term, int] = {}
        self._shapes: Counter[Shape] = Counter()  # conjunctions of each
        self._checked: set[int] = set()  # filters whose form is not exact
        self._buckets = Buckets()
        self._table: ConjunctionTable | None = None  # instead of the buckets
        self._spent = 0  # rows looked up in buckets

    def __len__(self) -> int:
        return len(self._filters)

    # --- filters ----------------------------------------------------------------------------------------------

    def add(self, filter: Filter) -> int:
        """Enter a filter, once more if it is there; `BadInput` if too many have to look at every row."""
        id = self._ids.get(filter.text)
        if id is not None:
            self._filters[id].uses += 1
            return id
        form = normal_form(filter.root)
        if not form.indexable and len(self._scanned) >= MAX_SCANNED:
            raise BadInput(
                f"filter {filter.text[:80]!r}: {MAX_SCANNED} filters of this stream must look at every event already;"
                " demand, with AND, that an attribute equals a value or lies in a list or an interval"
            )
        if self._free:
            id = self._free.pop()
        else:
            id, self._next = self._next, self._next + 1
        entered = self._filters[id] = _Entered(filter)
        self._ids[filter.text] = id
        if not form.indexable:
            self._scanned[id] = filter
            return id
        entered.checked = not form.exact
        for conjunction in form.conjunctions:
            self._enter(id, entered, conjunction)
        if entered.checked:
            self._checked.add(id)
        return id

    def _enter(self, id: int, entered: _Entered, conjunction: Conjunction) -> None:
        intervals = {self._number(term): interval for term, interval in conjunction.items()}
        values = {term: value[0] for term, ends in intervals.items() if (value := self._value(term, ends))}
        shape = self._shape(intervals, values)
        terms, ranges = shape
        entered.checked |= not intervals.keys() <= {*terms, *ranges}
        key = tuple([values[term] for term in terms])
        ends = [cut for term in ranges for cut in intervals.get(term) or self._everything(term)]
        entry = (shape, key, (*ends, id))
        (self._buckets if self._table is None else self._table).add(*entry)
        self._shapes[shape] += 1
        entered.entries.append(entry)

    def _number(self, term: Term) -> int:
        number = self._numbers.get(term)
        if number is None:
            number = self._numbers[term] = len(self._terms)
            self._terms.append(term)
        return number

    def _everything(self, term: int) -> Interval:
        bottom, _, top = span_of(self._terms[term].kind)
        return bottom, top

    def _value(self, term: int, ends: Interval) -> tuple[object] | None:
        """The one value that an interval has, if it has one."""
        low, high = ends
        kind = self._terms[term].kind
        bottom, first, _ = span_of(kind)
        if kind not in TEXTS:
            return (low,) if high == low + 1 or (low, high) == (bottom, first) else None
        if (low, high) == (bottom, first):
            return (None,)
        return (low[1],) if len(low) == len(high) == 3 and low[1] == high[1] else None

    def _shape(self, intervals: dict[int, Interval], values: dict[int, object]) -> Shape:
        """Where to enter a conjunction: what it says, or if there are too many shapes a part of it."""
        terms = sorted(values)[:MAX_EQUAL]
        others = [term for term in intervals if term not in terms]
        ranges = sorted(others, key=lambda term: (self._width(term, intervals[term]), term))[:MAX_RANGES]
        shape = (tuple(terms), tuple(ranges))
        if shape in self._shapes or len(self._shapes) < MAX_SHAPES:
            return shape
        fitting = [each for each in self._shapes if values.keys() >= {*each[0]}]
        fitting = [each for each in fitting if (each[0] if terms else {*each[1]} & {*ranges})]
        least = ((terms[0],), ()) if terms else ((), (ranges[0],))
        return max(fitting, key=lambda each: (len(each[0]), len({*each[1]} & {*ranges}), each), default=least)

    def _width(self, term: int, ends: Interval) -> int:
        """Intervals that say more come first: with two ends, with a lower end, with an upper end."""
        _, first, top = span_of(self._terms[term].kind)
        return 2 * int(ends[0] <= first) + int(ends[1] >= top)

    def remove(self, id: int) -> None:
        """Take out what one `add` entered."""
        entered = self._filters[id]
        entered.uses -= 1
        if entered.uses:
            return
        del self._filters[id], self._ids[entered.filter.text]
        self._checked.discard(id)
        self._scanned.pop(id, None)
        for entry in entered.entries:
            self._shapes[entry[0]] -= 1
            if not self._shapes[entry[0]]:
                del self._shapes[entry[0]]
            if self._table is None:
                self._buckets.remove(*entry)
        if self._table is not None:
            self._table.remove(id, len(entered.entries))
        self._removed.append(id)
        if len(self._removed) > REMOVED + len(self._filters) // 4:
            if self._table is not None:
                self._table.sort()
            self._free, self._removed = self._free + self._removed, []

    # --- rows -------------------------------------------------------------------------------------------------

    def match(self, rows: Columns) -> Iterator[tuple[int, Codes]]:
        """The filters that some rows pass, in ascending order, and the places of those rows."""
        ids, starts, places = self.matches(rows).by_filter()
        ends = starts.tolist()
        for at, id in enumerate(ids.tolist()):
            yield id, places[ends[at] : ends[at + 1]]

    def matches(self, rows: Columns) -> Matches:
        """Which rows pass which filters."""
        frame = kernels.framed(rows)
        if frame is None or not frame.count or not self._filters:
            return Matches(np.empty(0, np.int64), 0 if frame is None else frame.count)
        if len(self._filters) * ROWS_PER_MASK <= frame.count:
            filters = {id: each.filter for id, each in self._filters.items()}
            return Matches(_ascending([_masked(filters, frame)]), frame.count)
        coded = CodedRows(frame, self._terms)
        if self._table is None and self._shapes:
            self._spent += frame.count * len(self._shapes)
            self._compile()
        found: list[Codes] = []
        if self._table is not None and len(self._table):
            found.append(self._table.match(coded))
        elif self._buckets.count:
            found.append(np.fromiter(self._buckets.match(coded), np.int64))
        if self._checked:
            found = self._verified(_ascending(found), frame)
        if self._scanned:
            found.append(_masked(self._scanned, frame))
        return Matches(_ascending(found), frame.count)

    def _verified(self, pairs: Codes, frame: Frame) -> list[Codes]:
        """Without the rows that filters, asked themselves, do not let pass."""
        checked = np.zeros(self._next, np.bool_)
        checked[list(self._checked)] = True
        asked = checked[pairs & IDS]
        kept = [pairs[~asked]]
        ids, starts, places = Matches(pairs[asked], frame.count).by_filter()
        for id, start, stop in zip(ids.tolist(), starts.tolist(), starts[1:].tolist(), strict=False):
            passing = places[start:stop][_passes(self._filters[id].filter, frame, places[start:stop])]
            kept.append(passing << ID_BITS | id)
        return kept

    def _compile(self) -> None:
        """Move everything into the table once dictionaries have cost more than that does."""
        count = self._buckets.count
        price = PRICE + count // 8
        if count > _Prepared.compile_limit and (self._spent > price or count > price) and _can_compile():
            self._to_table()

    def _to_table(self) -> None:
        from tidings.core.filters.table import ConjunctionTable

        self._table = ConjunctionTable(self._terms)
        for entered in self._filters.values():
            for entry in entered.entries:
                self._table.add(*entry)
        self._buckets = Buckets()


def _masked(filters: dict[int, Filter], frame: Frame) -> Codes:
    """The pairs that filters find by looking at every row."""
    found = [np.flatnonzero(kernels.mask_in(filter.root, frame)) << ID_BITS | id for id, filter in filters.items()]
    return np.concatenate(found)


def _ascending(found: list[Codes]) -> Codes:
    """Pairs in order, each once."""
    pairs = found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.int64), *found])
    pairs.sort()
    new = pairs[1:] != pairs[:-1]
    return pairs if new.all() else pairs[np.append(True, new)]


def _passes(filter: Filter, frame: Frame, places: Codes) -> Mask:
    """Which of some rows pass a filter."""
    if 4 * len(places) >= frame.count:
        return kernels.mask_in(filter.root, frame)[places]
    columns = {node.value: node.kind for node in filter.root.walk() if node.op == "column" and node.kind is not None}
    at = pa.array(places)
    arrays = [frame.column(name, kind).take(at) for name, kind in columns.items()]
    return filter.mask(pa.RecordBatch.from_arrays(arrays, list(columns)))
