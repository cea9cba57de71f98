"""The paper's own definition of collection, as slow and as plain as it is written (A1.7, A1.21, A1.43-A1.45).

A stream is a list of events. `survivors` is filter(): an event stays unless an event below asof matches it. Nothing
is remembered between questions, so there is nothing to get wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidings.core.rows import DATA, GC, NO_ROWS, ROW_SCHEMA, ArrowRows, CountedRows, Origin, Rows
from tidings.core.span import Span

SIZE = 10


class Event(NamedTuple):
    seq: int
    key: bytes | None
    before: int | None
    tenant: str | None = None
    where: str | None = None

    @property
    def collects_only(self) -> bool:
        return self.before is not None or self.where is not None

    @property
    def payload(self) -> bytes:
        return b"%d" % self.seq


KEY_PREDICATES: dict[str, Callable[[Event], bool]] = {
    "() key = X'61'": lambda event: event.key == b"a",
    "() key IS NULL": lambda event: event.key is None,
    "() length(key) > 0 AND key <> X'61'": lambda event: bool(event.key) and event.key != b"a",
}
PREDICATES: dict[str, Callable[[Event], bool]] = {
    "(tenant string) tenant = 'acme'": lambda event: event.tenant == "acme",
    "(tenant string) tenant IS NULL": lambda event: event.tenant is None,
    "(tenant string) seq < 5L AND NOT tenant = 'acme'": lambda event: (
        event.seq < 5 and event.tenant not in (None, "acme")
    ),
    **KEY_PREDICATES,
}
"""What predicate events say, and what that means; on a by-key stream only the key may matter."""


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

    def publish(self, batch: Sequence[tuple[Any, ...]]) -> Span:
        """Append events given as (key, before) or (key, before, tenant, where)."""
        lo = self.horizon
        self.events += [Event(lo + i, *fields) for i, fields in enumerate(batch)]
        self.batches.append(Origin(lo, self.horizon, "p", 1, lo, at=float(lo)))
        return self.span(lo, self.horizon, lo)

    def matches(self, collector: Event, event: Event) -> bool:
        if event.seq >= collector.seq:
            return False
        if collector.before is not None and event.seq < collector.before:
            return True
        if collector.where is not None:
            return collector.where == event.where if event.collects_only else PREDICATES[collector.where](event)
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
            pa.array([GC if event.collects_only else DATA for event in events], pa.uint8()),
            pa.array([event.key for event in events], pa.binary()),
            pa.array([event.payload for event in events], pa.binary()),
            pa.array([event.before for event in events], pa.int64()),
        ]
        schema = ROW_SCHEMA
        for name in ("tenant", "where"):
            values = pa.array([getattr(event, name) for event in events], pa.string())
            if values.null_count < len(values):
                schema = schema.append(pa.field(name, pa.string()))
                columns.append(values)
        seqs = np.array([event.seq for event in events], dtype=np.int64)
        dense = ArrowRows.dense(1, pa.RecordBatch.from_arrays(columns, schema=schema))
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
    names = rows.batch.schema.names
    nothing = [None] * rows.count
    keys, payloads, befores, tenants, wheres = (
        rows.batch.column(name).to_pylist() if name in names else nothing
        for name in ("key", "payload", "before", "tenant", "where")
    )
    events = [Event(*row) for row in zip(rows.numbers.tolist(), keys, befores, tenants, wheres, strict=True)]
    assert payloads == [event.payload for event in events]
    return events
