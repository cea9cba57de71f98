"""The paper's own definition of collection, as slow and as plain as it is written (A1.7, A1.21, A1.43-A1.45).

A stream is a list of events. `survivors` is filter(): an event stays unless an event below asof matches it. Nothing
is remembered between questions, so there is nothing to get wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidings.core.rows import DATA, GC, NO_ROWS, ROW_SCHEMA, ArrowRows, CountedRows, Origin, Rows
from tidings.core.span import Span

SIZE = 10


class Event(NamedTuple):
    seq: int
    key: bytes | None
    before: int | None

    @property
    def payload(self) -> bytes:
        return b"%d" % self.seq


class Naive:
    """All events of a stream, and which of them survive."""

    def __init__(self, by_key: bool, counted: bool = False, stream: str = "s") -> None:
        self.stream = stream
        self.by_key = by_key
        self.counted = counted
        self.events: list[Event] = []
        self.batches: list[Origin] = []

    @property
    def horizon(self) -> int:
        return len(self.events) + 1

    def publish(self, batch: Sequence[tuple[bytes | None, int | None]]) -> Span:
        """Append events given as (key, before)."""
        lo = self.horizon
        self.events += [Event(lo + i, key, before) for i, (key, before) in enumerate(batch)]
        self.batches.append(Origin(lo, self.horizon, "p", 1, lo, at=float(lo)))
        return self.span(lo, self.horizon, lo)

    def matches(self, collector: Event, event: Event) -> bool:
        if event.seq >= collector.seq:
            return False
        if collector.before is not None and event.seq < collector.before:
            return True
        return self.by_key and collector.key is not None and collector.key == event.key

    def killer(self, event: Event) -> int | None:
        return next((other.seq for other in self.events if self.matches(other, event)), None)

    def survivors(self, lo: int, hi: int, asof: int) -> list[Event]:
        collectors = self.events[: asof - 1]
        chosen = self.events[lo - 1 : hi - 1]
        return [event for event in chosen if not any(self.matches(other, event) for other in collectors)]

    def span(self, lo: int, hi: int, asof: int) -> Span:
        return Span(self.stream, lo, hi, asof, self.rows(self.survivors(lo, hi, asof)))

    def rows(self, events: Sequence[Event]) -> Rows:
        if not events:
            return NO_ROWS
        if self.counted:
            pairs = tuple((event.seq, event.before) for event in events if event.before is not None)
            return CountedRows(events[0].seq, events[-1].seq + 1, SIZE, pairs)
        columns = [
            pa.array([DATA if event.before is None else GC for event in events], pa.uint8()),
            pa.array([event.key for event in events], pa.binary()),
            pa.array([event.payload for event in events], pa.binary()),
            pa.array([event.before for event in events], pa.int64()),
        ]
        seqs = np.array([event.seq for event in events], dtype=np.int64)
        dense = ArrowRows.dense(1, pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA))
        origins = []
        for origin in self.batches:
            inside = [event.seq for event in events if origin.lo <= event.seq < origin.hi]
            if inside:
                origins.append(origin.narrow(inside[0], inside[-1] + 1))
        explicit = None if seqs[-1] - seqs[0] + 1 == len(seqs) else seqs
        return ArrowRows(explicit, dense.batch, tuple(origins), int(seqs[0]))


def events_of(rows: Rows) -> list[Event]:
    """Rows read back as events."""
    if isinstance(rows, CountedRows):
        befores = dict(rows.collectors)
        return [Event(seq, None, befores.get(seq)) for seq in range(rows.first, rows.hi)]
    assert isinstance(rows, ArrowRows)
    keys, payloads, befores = (rows.batch.column(i).to_pylist() for i in (1, 2, 3))
    events = [Event(*row) for row in zip(rows.numbers.tolist(), keys, befores, strict=True)]
    assert payloads == [event.payload for event in events]
    return events
