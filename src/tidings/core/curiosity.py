"""Which numbers of a stream somebody downstream wants to be told of, and which nobody needs any more (Gryphon, A2.7).

Per number a stream is curious (C: an answer is owed), acknowledged (A: nobody downstream needs it) or neutral (N).
Acknowledged numbers are a prefix, because subscribers consume in order. A question about one takes that back: somebody
for whom others had spoken meanwhile goes on from an older number. Curiosity is kept with the time at which it was
passed on: until the repetition interval has gone by, the same question is not passed on again (*consolidation*), and
after it the mark is forgotten, so that a repeated question goes up again (A2.23, A2.24).
"""

from __future__ import annotations

from tidings.core.ids import FIRST


class Curiosity:
    """Of one stream. ``repeat``: seconds after which a question may be passed on again. ``limit``: ranges kept."""

    def __init__(self, repeat: float, limit: int = 4096) -> None:
        self.repeat = repeat
        self.limit = limit
        self.acked = FIRST  # everything below is acknowledged
        self._asked: list[tuple[int, int, float]] = []  # [lo, hi) and when; ascending, disjoint

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, lo: int, hi: int, now: float) -> list[tuple[int, int]]:
        """Somebody is curious about [lo, hi). Returns the parts to pass on: those not asked for already."""
        self.expire(now)
        if lo >= hi:
            return []
        self.acked = min(self.acked, max(lo, FIRST))
        fresh: list[tuple[int, int]] = []
        at = lo
        for start, stop, _ in self._asked:
            if stop <= lo or start >= hi:
                continue
            if at < start:
                fresh.append((at, start))
            at = max(at, stop)
        if at < hi:
            fresh.append((at, hi))
        self._asked = sorted([*self._asked, *[(start, stop, now) for start, stop in fresh]])
        if len(self._asked) > self.limit:  # the oldest questions may be asked again
            self._asked = sorted(sorted(self._asked, key=lambda each: each[2])[-self.limit :])
        return fresh

    def answered(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """[lo, hi) is being answered. Returns the parts that somebody was curious about; they are neutral now."""
        out: list[tuple[int, int]] = []
        rest: list[tuple[int, int, float]] = []
        for start, stop, at in self._asked:
            inside = max(start, lo), min(stop, hi)
            if inside[0] >= inside[1]:
                rest.append((start, stop, at))
                continue
            out.append(inside)
            if start < inside[0]:
                rest.append((start, inside[0], at))
            if inside[1] < stop:
                rest.append((inside[1], stop, at))
        self._asked = rest
        return out

    def curious(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """The parts of [lo, hi) that somebody is curious about."""
        return [(max(start, lo), min(stop, hi)) for start, stop, _ in self._asked if start < hi and stop > lo]

    def ack(self, below: int) -> bool:
        """Nobody needs the numbers below any more. Whether that is news."""
        if below <= self.acked:
            return False
        self.acked = below
        self.answered(0, below)
        return True

    def expire(self, now: float) -> None:
        """Forget what was passed on so long ago that it may be passed on again."""
        self._asked = [each for each in self._asked if now - each[2] < self.repeat]

    def check(self) -> None:
        """Invariants; raises AssertionError."""
        assert all([lo < hi for lo, hi, _ in self._asked])
        assert all([a[1] <= b[0] for a, b in zip(self._asked, self._asked[1:], strict=False)]), "disjoint, ascending"
        assert not self._asked or self._asked[0][0] >= self.acked, "what is acknowledged is not wanted"
        assert len(self._asked) <= self.limit
