"""What a broker knows of a stream: spans that may have gaps, as much of them as it has room for (Gryphon, A2.4-A2.6).

Per number a broker knows nothing (Q), a row (D), or that the number is covered without a row (F): collected, filtered
out upstream, or lost. The paper's other states are not stored: silence (S) and delivered data (D*) are lowered to F at
once, and the error E is a `Contradiction`, which leaves the knowledge as it was. `Known` and `lub` are that lattice.

Knowledge grows by `accept` and shrinks by `forget`, and what is forgotten is Q again, never F: "nobody needed this row"
must not become "there was no row" for a subscriber who comes later. This is a deviation from A2.7, which the paper can
afford because its subscriptions are fixed.

A span may have been seen through a filter. Of two claims about one number the one through the lens with the higher
version counts; both are true, and the newer lens shows at least what is wanted now. Claims through one lens are joined
(core/span.py).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from enum import Enum

from tidings.core.errors import BadInput
from tidings.core.ids import StreamId
from tidings.core.span import Span, join

PIECE_BYTES = 512  # what a span costs in memory besides its rows; ours, measured for one small row


class Known(Enum):
    """What can be known of one number."""

    Q = "nothing"
    D = "a row"
    DONE = "a row that everybody downstream has"  # the paper's D*
    F = "no row is needed"
    S = "there is no row"
    E = "a contradiction"


_ABOVE = {
    Known.Q: frozenset(Known),
    Known.D: frozenset({Known.D, Known.DONE, Known.E}),
    Known.F: frozenset({Known.F, Known.DONE, Known.S, Known.E}),
    Known.DONE: frozenset({Known.DONE, Known.E}),
    Known.S: frozenset({Known.S, Known.E}),
    Known.E: frozenset({Known.E}),
}
"""A2.4: the states at or above each: Q < D < D*, Q < F < D*, F < S, and E above all."""


def lub(a: Known, b: Known) -> Known:
    """The least state that is at or above both: what two true messages say together."""
    common = _ABOVE[a] & _ABOVE[b]
    (least,) = [state for state in common if common <= _ABOVE[state]]
    return least


class Knowledge:
    """Spans of one stream, ascending and disjoint, in at most so many bytes."""

    def __init__(self, stream: StreamId, room: int) -> None:
        self.stream = stream
        self.room = room
        self.nbytes = 0
        self._spans: list[Span] = []
        self._los: list[int] = []

    def __len__(self) -> int:
        return len(self._spans)

    @property
    def first(self) -> int:
        """The smallest number of which something is known; 0 if there is none."""
        return self._los[0] if self._los else 0

    @property
    def end(self) -> int:
        """One above the largest number of which something is known; 0 if there is none."""
        return self._spans[-1].hi if self._spans else 0

    def accept(self, span: Span) -> list[Span]:
        """Learn a span. Returns the parts of which nothing was known, in order; raises `Contradiction`.

        What is known through a newer lens stays; what is known through an older one is replaced.
        """
        if span.stream != self.stream or span.lo >= span.hi:
            raise BadInput(f"knowledge of {self.stream} takes no [{span.lo}, {span.hi}) of {span.stream}")
        start, stop = self._touched(span.lo, span.hi)
        fresh: list[Span] = []
        merged: list[Span] = []
        at = span.lo
        for known in self._spans[start:stop]:
            if known.lo < span.lo:
                merged.append(known.slice(known.lo, span.lo))
            if at < known.lo:
                fresh.append(span.slice(at, known.lo))
                merged.append(fresh[-1])
            lo, hi = max(known.lo, span.lo), min(known.hi, span.hi)
            merged += _better(known.slice(lo, hi), span.slice(lo, hi))
            if span.hi < known.hi:
                merged.append(known.slice(span.hi, known.hi))
            at = known.hi
        if at < span.hi:
            fresh.append(span.slice(at, span.hi))
            merged.append(fresh[-1])
        self._replace(start, stop, merged)
        return fresh

    def of(self, lo: int, hi: int) -> list[Span]:
        """What is known of [lo, hi)."""
        start, stop = self._touched(lo, hi)
        return [span.slice(lo, hi) for span in self._spans[start:stop]]

    def gaps(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """The parts of [lo, hi) of which nothing is known."""
        out: list[tuple[int, int]] = []
        for span in self.of(lo, hi):
            if lo < span.lo:
                out.append((lo, span.lo))
            lo = span.hi
        return [*out, (lo, hi)] if lo < hi else out

    def reach(self, lo: int) -> int:
        """The first number at or above ``lo`` of which nothing is known: the doubt horizon (A2.11)."""
        for span in self._spans[max(bisect_right(self._los, lo) - 1, 0) :]:
            if span.lo > lo:
                break
            lo = max(lo, span.hi)
        return lo

    def forget(self, below: int) -> None:
        """Nothing is known of any number below any more."""
        if self.first >= below or not self._spans:
            return
        stop = bisect_left(self._los, below)
        last = self._spans[stop - 1]
        self._replace(0, stop, [last.slice(below, last.hi)] if last.hi > below else [])

    def trim(self) -> int:
        """Forget the oldest until the rest fits; returns how many bytes went."""
        before = self.nbytes
        count = 0
        held = before
        while held > self.room:
            held -= _cost(self._spans[count])
            count += 1
        if count:
            self._replace(0, count, [])
        return before - self.nbytes

    def drop_last(self) -> None:
        """Forget the span with the largest numbers."""
        if self._spans:
            self._replace(len(self._spans) - 1, len(self._spans), [])

    def check(self) -> None:
        """Invariants; raises AssertionError."""
        assert self._los == [span.lo for span in self._spans]
        assert all([a.hi <= b.lo for a, b in zip(self._spans, self._spans[1:], strict=False)]), "disjoint, ascending"
        assert self.nbytes == sum([_cost(span) for span in self._spans])

    def _touched(self, lo: int, hi: int) -> tuple[int, int]:
        """Which spans have something in common with [lo, hi)."""
        start = bisect_right(self._los, lo)
        if start and self._spans[start - 1].hi > lo:
            start -= 1
        return start, max(start, bisect_left(self._los, hi))

    def _replace(self, start: int, stop: int, spans: list[Span]) -> None:
        self.nbytes += sum(map(_cost, spans)) - sum(map(_cost, self._spans[start:stop]))
        self._spans[start:stop] = spans
        self._los[start:stop] = [span.lo for span in spans]


def _cost(span: Span) -> int:
    return PIECE_BYTES + span.wire_size


def _better(known: Span, new: Span) -> tuple[Span, ...]:
    """What to keep of two claims about one range."""
    if known.lens == new.lens:
        return join((known,), (new,))
    return (new if new.lens.version > known.lens.version else known,)
