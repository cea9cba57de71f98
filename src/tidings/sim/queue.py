"""Future events in exact order of time: a wheel of buckets.

Future entries lie unsorted in buckets of a fixed width. A bucket is sorted once, when its time comes, and then walked
through from front to back. Entries that are added to the open bucket meanwhile are inserted behind the current place.
Sorting is stable and insertion goes to the right of equals, so entries of the same time leave in the order in which
they came: exactly the order of a heap of (time, counter, ...), without the counter and without a comparison per entry
and level. Adding costs one dictionary look-up; only a new bucket costs a heap operation.

The width is a power of two, so that the bucket of a time and the edges of a bucket are exact in binary floating point.
Guarantee: `open` yields every entry before ``until`` once, ordered by (time, order of push), however the run is sliced,
as long as no entry is pushed that is earlier than the one being handled.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush
from math import frexp
from operator import itemgetter
from typing import Any, TypeAlias

Entry: TypeAlias = tuple[float, Any, Any, int]
"""(time, target, input, tag); what the last three mean is the business of the world."""

TIME = itemgetter(0)
WIDTH = 2.0**-13
"""Seconds per bucket; ours, because an eighth of the shortest usual latency (1 ms, SP3) keeps messages out of the open
one, and the few that must enter it find it short."""


class Far(dict[float, list[Entry]]):
    """Closed buckets by number; touching a missing one creates and registers it."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[float] = []  # a heap

    def __missing__(self, number: float) -> list[Entry]:
        heappush(self.numbers, number)
        bucket: list[Entry] = []
        self[number] = bucket
        return bucket


class Wheel:
    """A priority queue of timed entries. The world's inner loop does what `push` does, written out."""

    __slots__ = ("current", "edge", "far", "width")

    def __init__(self, width: float = WIDTH) -> None:
        if frexp(width)[0] != 0.5:
            raise ValueError(f"bucket width {width} is not a power of two: take for example 2.0**-11")
        self.width = width
        self.edge = 0.0  # entries before this time belong to the open bucket
        self.current: list[Entry] = []
        self.far = Far()

    def push(self, time: float, target: Any, input: Any, tag: int) -> None:
        """Add an entry, not earlier than the one being handled."""
        if time < self.edge:
            insort(self.current, (time, target, input, tag), key=TIME)
        else:
            self.far[time // self.width].append((time, target, input, tag))

    def open(self, until: float) -> list[Entry] | None:
        """The next bucket in order, cut off before ``until``; walk through it fully before opening another."""
        numbers = self.far.numbers
        if not numbers or numbers[0] * self.width >= until:
            return None
        number = heappop(numbers)
        bucket = self.far.pop(number)
        bucket.sort(key=TIME)
        edge = (number + 1.0) * self.width
        if until < edge:
            edge = until
            kept = bisect_left(bucket, until, key=TIME)
            if kept < len(bucket):
                self.far[number].extend(bucket[kept:])
                del bucket[kept:]
            if not bucket:
                return None
        self.edge = edge
        self.current = bucket
        return bucket

    def waiting(self) -> Iterator[tuple[list[Entry], int, Entry]]:
        """Every entry with its place, where it may be replaced; of the open bucket also what is handled already."""
        for bucket in [self.current, *(self.far[number] for number in sorted(self.far))]:
            for at, entry in enumerate(bucket):
                yield bucket, at, entry
