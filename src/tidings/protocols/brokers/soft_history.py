"""What an edge keeps of a stream: the newest spans without gaps, in so many bytes, each with the version of the edge's
interests that it was filtered by.

It takes the place of a history in feeds.py. What lies before it is fetched from a replica.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from tidings.core.errors import AsofGone
from tidings.core.ids import NEVER, StreamId
from tidings.core.span import MESSAGE_BYTES, Span

PIECE_BYTES = 512  # what a span costs in memory besides its rows; ours, measured for one small row
SLACK = 256  # spans that are forgotten in one go


class SoftHistory:
    """Spans of one stream, which begin at ``horizon``, in at most ``room`` bytes beside those that came last."""

    def __init__(self, stream: StreamId, horizon: int, room: int) -> None:
        self.stream = stream
        self.room = room
        self.low = self.horizon = horizon
        self.nbytes = 0
        self._los: list[int] = []
        self._spans: list[Span] = []
        self._versions: list[int] = []

    def append(self, spans: Sequence[Span]) -> list[Span]:
        """What continues at the horizon, as it is told to subscribers: without the lens of the edge."""
        self._trim()
        fresh: list[Span] = []
        for span in spans:
            assert span.lo == self.horizon, "without gaps"
            fresh.append(Span(span.stream, span.lo, span.hi, span.asof, span.rows, lost=span.lost))
            self._los.append(span.lo)
            self._versions.append(span.lens.version)
            self.nbytes += PIECE_BYTES + span.wire_size
            self.horizon = span.hi
        self._spans += fresh
        return fresh

    def know(self, lo: int, hi: int, limit_rows: int | None = None) -> list[Span]:
        """What is kept from ``lo`` on, in one message: empty if ``lo`` is too old."""
        return self.through(lo, hi, limit_rows, 0)

    def through(self, lo: int, hi: int, limit_rows: int | None, needs: int) -> list[Span]:
        """The same, as far as it was filtered by at least some version of the interests."""
        out: list[Span] = []
        if not self.low <= lo < min(hi, self.horizon):
            return out
        rows = limit_rows or NEVER
        room = MESSAGE_BYTES
        for at in range(bisect_right(self._los, lo) - 1, len(self._los)):
            span = self._spans[at]
            if span.lo >= hi or self._versions[at] < needs:
                break
            if out and (rows < span.rows.count or room < span.wire_size):
                break
            part = span.slice(lo, hi)
            rows -= part.rows.count
            room -= part.wire_size
            out.append(part)
        return out

    def oldest(self, lo: int) -> int:
        """The least version by which anything from ``lo`` on was filtered."""
        return min(self._versions[max(bisect_right(self._los, lo) - 1, 0) :], default=0)

    def rows(self, lo: int, hi: int, asof: int, limit_rows: int = NEVER) -> Span:
        """An edge does not know how things were as of any number: a replica does."""
        raise AsofGone(f"an edge keeps no history of {self.stream!r}", NEVER)

    def above(self, tick: int) -> int:
        """It does not know ticks of what it does not keep either."""
        raise AsofGone(f"an edge keeps no history of {self.stream!r}", NEVER)

    def check(self) -> None:
        """Invariants; raises AssertionError."""
        assert self._los == [span.lo for span in self._spans]
        assert all([a.hi == b.lo for a, b in zip(self._spans, self._spans[1:], strict=False)]), "without gaps"
        assert not self._spans or (self._spans[0].lo, self._spans[-1].hi) == (self.low, self.horizon)

    def _trim(self) -> None:
        if self.nbytes <= self.room:
            return
        count = 0
        while count < len(self._spans) and (self.nbytes > self.room or count < min(SLACK, len(self._spans) // 2)):
            self.nbytes -= PIECE_BYTES + self._spans[count].wire_size
            count += 1
        del self._spans[:count], self._los[:count], self._versions[:count]
        self.low = self._los[0] if self._los else self.horizon
