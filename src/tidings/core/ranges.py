"""Sets of sequence numbers as sorted, disjoint, half-open ranges.

Two parallel lists of ends, found by bisection; ranges that touch are one. Appending at the end is the common case
and costs constant time, everything else a search plus the ranges it touches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from tidings.core.errors import BadInput


class Ranges:
    """A mutable set of integers, kept as ranges [lo, hi)."""

    __slots__ = ("_his", "_los")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._los: list[int] = []
        self._his: list[int] = []
        for lo, hi in ranges:
            self.add(lo, hi)

    @property
    def first(self) -> int | None:
        """The smallest member."""
        return self._los[0] if self._los else None

    @property
    def end(self) -> int | None:
        """One more than the largest member."""
        return self._his[-1] if self._his else None

    def add(self, lo: int, hi: int) -> None:
        """Put [lo, hi) in."""
        _check(lo, hi)
        if lo == hi:
            return
        los, his = self._los, self._his
        if not his or lo > his[-1]:
            los.append(lo)
            his.append(hi)
            return
        start = bisect_left(his, lo)  # first range that touches or follows
        stop = bisect_right(los, hi)  # first range that begins after
        if start < stop:
            lo, hi = min(lo, los[start]), max(hi, his[stop - 1])
        los[start:stop] = [lo]
        his[start:stop] = [hi]

    def remove(self, lo: int, hi: int) -> None:
        """Take [lo, hi) out."""
        _check(lo, hi)
        los, his = self._los, self._his
        start = bisect_right(his, lo)
        stop = bisect_left(los, hi)
        if start >= stop or lo == hi:
            return
        left, right = los[start], his[stop - 1]
        los[start:stop] = ([left] if left < lo else []) + ([hi] if hi < right else [])
        his[start:stop] = ([lo] if left < lo else []) + ([right] if hi < right else [])

    def gaps(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """The parts of [lo, hi) that are not in."""
        _check(lo, hi)
        out: list[tuple[int, int]] = []
        for start, stop in self.intersect(lo, hi):
            if lo < start:
                out.append((lo, start))
            lo = stop
        if lo < hi:
            out.append((lo, hi))
        return out

    def intersect(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """The parts of [lo, hi) that are in."""
        _check(lo, hi)
        los, his = self._los, self._his
        if lo == hi:
            return []
        return [(max(lo, los[at]), min(hi, his[at])) for at in range(bisect_right(his, lo), bisect_left(los, hi))]

    def covers(self, lo: int, hi: int) -> bool:
        """Whether all of [lo, hi) is in."""
        _check(lo, hi)
        at = bisect_right(self._his, lo)
        return lo == hi or (at < len(self._los) and self._los[at] <= lo and hi <= self._his[at])

    def __contains__(self, number: int) -> bool:
        return self.covers(number, number + 1)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._los, self._his, strict=True)))

    def __len__(self) -> int:
        return sum(self._his) - sum(self._los)

    def __bool__(self) -> bool:
        return bool(self._los)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self._los == other._los and self._his == other._his

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "Ranges(" + ", ".join([f"[{lo}, {hi})" for lo, hi in self]) + ")"


def _check(lo: int, hi: int) -> None:
    if lo > hi:
        raise BadInput(f"a range [lo, hi) needs lo <= hi, not [{lo}, {hi})")
