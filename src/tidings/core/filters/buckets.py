"""Conjunctions in dictionaries: the small filter index, in plain Python.

A conjunction has a *shape*: the terms that it wants to equal a value, and those that it wants in an interval. Of each
shape there is a dictionary from values to a bucket, and a bucket is sorted by the lower end of the first interval. So
a row costs one look-up per shape, and the conjunctions of the buckets it meets.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import repeat
from typing import Any, TypeAlias

from tidings.core.filters.coding import CodedRows

Shape: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Numbers of terms: those with a value, those with an interval."""
Key: TypeAlias = tuple[Any, ...]
Entry: TypeAlias = tuple[Any, ...]
"""Lower and upper cut of each interval, and the number of the filter."""
MAX_EQUAL, MAX_RANGES = 4, 3  # terms of a shape; ours, because then the intervals fill one cache line
ID_BITS = 32  # of a pair: the place of a row, then in so many bits the number of a filter
IDS = (1 << ID_BITS) - 1


class Buckets:
    """Some conjunctions, each entered with its shape, its values and its intervals."""

    def __init__(self) -> None:
        self.tables: dict[Shape, dict[Key, list[Entry]]] = {}
        self.count = 0

    def add(self, shape: Shape, key: Key, entry: Entry) -> None:
        """Enter a conjunction."""
        insort(self.tables.setdefault(shape, {}).setdefault(key, []), entry)
        self.count += 1

    def remove(self, shape: Shape, key: Key, entry: Entry) -> None:
        """Take out what was entered."""
        table = self.tables[shape]
        bucket = table[key]
        del bucket[bisect_left(bucket, entry)]
        self.count -= 1
        if not bucket:
            del table[key]
            if not table:
                del self.tables[shape]

    def match(self, rows: CodedRows) -> set[int]:
        """The pairs of a row and a filter of which a conjunction is met."""
        found: set[int] = set()
        for (terms, ranges), table in self.tables.items():
            keys: Iterable[Key] = zip(*[rows.keys(term) for term in terms], strict=True) if terms else repeat(())
            columns = [rows.cuts(term) for term in ranges]
            for place, key in zip(range(rows.count), keys, strict=False):
                bucket = table.get(key)
                if bucket is not None:
                    values = [column[place] for column in columns]
                    found.update(_meeting(bucket, values, place << ID_BITS))
        return found


def _meeting(bucket: list[Entry], values: list[Any], row: int) -> list[int]:
    """Pairs of a row with the entries of a bucket whose intervals hold its values."""
    if not values:
        return [row | entry[0] for entry in bucket]
    first, rest = values[0], values[1:]
    found = []
    for entry in bucket:
        if entry[0] > first:
            break
        if first < entry[1]:
            for at, value in enumerate(rest, 1):
                if not entry[2 * at] <= value < entry[2 * at + 1]:
                    break
            else:
                found.append(row | entry[-1])
    return found
