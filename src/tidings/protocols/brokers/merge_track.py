"""One stream of a merge: what has come of it and is not released, and up to which tick it is complete (merging.py)."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

from tidings.core.hybrid_clock import Tick
from tidings.core.ids import RegionId, StreamId, stream_name
from tidings.core.rows import NO_ROWS, ArrowRows, Origin
from tidings.core.span import Span, parted
from tidings.protocols.brokers.subscriber import Subscriber

PENDING = 64  # promises of a stream that wait for it to be covered; ours, older ones say less

Run: TypeAlias = tuple[Tick, int, int, int]
"""Tick, index of the span, first row and end."""


class Track:
    """One of the streams."""

    __slots__ = (
        *("acked", "begin", "complete", "first", "given", "out", "pieces", "promises", "region", "released"),
        *("rows", "subscriber", "taken", "told"),
    )

    def __init__(self, subscriber: Subscriber, region: RegionId) -> None:
        self.subscriber = subscriber
        self.region = region
        self.pieces: deque[Span] = deque()  # what has come and is not released
        self.rows = 0  # in it
        self.promises: deque[tuple[int, Tick]] = deque()  # (end, tick) of those whose end is not covered
        self.complete: Tick = 0  # everything at or below this has come
        self.begin: int | None = None  # the number it begins with
        self.first: Tick | None = None  # everything below that number is at or below this tick
        self.released: Tick = 0  # of the last row that is released
        self.out: deque[tuple[Tick, int]] = deque()  # what was released and not taken: its tick, and where it ends
        self.given = 0  # where the last of it ended
        self.taken = 0  # first number that was released and not taken, while there is one
        self.acked = 0  # first number that is not acknowledged
        self.told = True  # an answer to the last `Uncovered` has come

    @property
    def id(self) -> int:
        return self.subscriber.id

    @property
    def stream(self) -> StreamId:
        return self.subscriber.stream

    def has_some(self, tick: Tick) -> bool:
        """Whether there is a row at or below a tick, or something lost before the first one above it."""
        for span in self.pieces:
            origins = origins_of(span)
            if origins or span.lost:
                return not origins or origins[0].tick <= tick
        return False

    @property
    def origins(self) -> Iterator[Origin]:
        """The batches of the rows that are not released."""
        return (origin for span in self.pieces for origin in origins_of(span))

    def feed(self, span: Span, floor: Tick | None) -> str:
        """Something new of the stream; why it cannot be merged, or ""."""
        origins = origins_of(span)
        if span.rows.count and not (origins and origins[0].tick):
            return f"stream {stream_name(self.stream)!r} has rows without ticks: it cannot be merged with others"
        if origins and origins[0].tick <= self.complete:
            return f"region {self.region} has published below what it promised for {stream_name(self.stream)!r}"
        if origins:
            self.complete = origins[-1].tick - 1
            self.first = origins[0].tick if self.first is None else self.first
        for part in parted([span]) if span.lost else [span]:
            self._keep(part, floor)
        return ""

    def begin_above(self, floor: Tick) -> None:
        """Rows at or below a tick are not wanted."""
        pieces, self.pieces, self.rows = self.pieces, deque(), 0
        for span in pieces:
            self._keep(span, floor)

    def _keep(self, span: Span, floor: Tick | None) -> None:
        origins = origins_of(span)
        unwanted = 0 if floor is None else bisect_right(origins, floor, key=_tick)
        if unwanted:
            self.pieces.clear()
            self.rows = 0
            if (end := origins[unwanted - 1].hi) == span.hi:
                return
            span = span.slice(end, span.hi)
        self.rows += span.rows.count
        last = self.pieces[-1] if self.pieces else None
        if last is not None and last.hi == span.lo and is_coverage(last) and is_coverage(span):
            asof = max(last.asof, span.asof)  # what was gone stays gone
            self.pieces[-1] = Span(span.stream, last.lo, span.hi, asof, NO_ROWS, span.lens)
        else:
            self.pieces.append(span)

    def promise(self, tick: Tick, end: int) -> None:
        """Everything at or below the tick is below ``end``."""
        last = self.promises[-1] if self.promises else (0, self.complete)
        if tick <= last[1] or end < last[0]:
            return
        if len(self.promises) >= PENDING:
            self.promises = deque(list(self.promises)[1::2])
        self.promises.append((end, tick))

    def settle(self) -> None:
        """Believe the promises whose end is covered."""
        horizon = self.subscriber.horizon
        if horizon is None:
            return
        self.begin = horizon if self.begin is None else self.begin
        while self.promises and self.promises[0][0] <= horizon:
            end, tick = self.promises.popleft()
            self.complete = max(self.complete, tick)
            if self.first is None and end >= self.begin:
                self.first = tick

    def cut(self, tick: Tick) -> Iterator[Span]:
        """Take what comes before the first row above a tick."""
        while self.pieces:
            span = self.pieces[0]
            origins = origins_of(span)
            if not origins or origins[-1].tick <= tick:
                self.rows -= span.rows.count
                yield self.pieces.popleft()
                continue
            at = origins[bisect_right(origins, tick, key=_tick)].lo
            if at > span.lo:
                self.pieces[0], span = span.slice(at, span.hi), span.slice(span.lo, at)
                self.rows -= span.rows.count
                yield span
            return

    @property
    def at(self) -> int:
        """First number that is not released."""
        return self.pieces[0].lo if self.pieces else self.subscriber.horizon or 0

    def acknowledge(self, known: Tick) -> int:
        """Below which number everything may be acknowledged now; 0 if that is nothing new."""
        horizon = self.subscriber.horizon or 0
        if self.out:
            horizon = self.taken
        elif self.complete > known:
            horizon = next((span.lo for span in self.pieces if not is_coverage(span)), horizon)
        if horizon <= self.acked:
            return 0
        self.acked = horizon
        return horizon


def _tick(origin: Origin) -> Tick:
    return origin.tick


def is_coverage(span: Span) -> bool:
    """Whether it only says that there is no row."""
    return not span.rows.count and not span.lost


def origins_of(span: Span) -> tuple[Origin, ...]:
    return span.rows.origins if isinstance(span.rows, ArrowRows) else ()


def runs_of(span: Span, index: int) -> list[Run]:
    """The batches of a span as runs of its rows."""
    rows, origins = span.rows, origins_of(span)
    assert isinstance(rows, ArrowRows)
    if rows.seqs is None:
        starts = [origin.lo - rows.first for origin in origins]
    else:
        starts = rows.seqs.searchsorted([origin.lo for origin in origins]).tolist()
    ends = [*starts[1:], rows.count]
    return [(o.tick, index, start, end) for o, start, end in zip(origins, starts, ends, strict=True)]
