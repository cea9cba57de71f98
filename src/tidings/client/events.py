"""What applications see: events, spans of rows, acknowledgements, and what is known of a stream.

Rows become events in bulk: columns to lists, lists through `map` into a struct that the garbage collector does not
track (decision 0006). What is constant in a span costs nothing per event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from heapq import merge
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidings.core.ids import FIRST, stream_name
from tidings.core.rows import DATA, ROW_SCHEMA, WHERE, ArrowRows, Origin
from tidings.core.small_rows import SmallRows
from tidings.core.span import Span

BASE = len(ROW_SCHEMA)
KINDS = ("data", "gc")  # by the number in a row
LOST = "lost"
NO_ATTRS: Mapping[str, Any] = MappingProxyType({})
"""The attributes of every event that has none."""

_NO_BATCH = pa.RecordBatch.from_pylist([], schema=ROW_SCHEMA)
_EPOCH = datetime.fromtimestamp(0.0, UTC)


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event. ``kind``: data, gc (it collects others: ``attrs`` says which) or lost.

    A lost one stands for the numbers [lo, hi) of its ``attrs``, of which the first is its own: they were given out, and
    their owner has declared that no replica has these events. A filter does not hide it.

    Attributes that a stream gained later are missing in older events; None stands for null. ``tick`` orders events of
    different streams: a total order is that of (tick, seq). Events that were published in one batch share it; what is
    lost has none, 0.
    """

    stream: str
    seq: int
    kind: str
    key: bytes | None
    payload: bytes
    attrs: Mapping[str, Any]
    published_at: datetime
    region: str
    tick: int = 0


class Ack(msgspec.Struct, frozen=True, gc=False):
    """Events that are committed as [lo, hi); ``parts`` says it exactly where events of others came between."""

    stream: str
    lo: int
    hi: int
    parts: tuple[tuple[int, int], ...] = ()

    @property
    def seq(self) -> int:
        """The number of the event, or of the first of several."""
        return self.lo


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream, and how it stands in the region that the client is connected to."""

    name: str
    region: str
    gc: str
    attrs: str
    horizon: int  # the first number that is not there yet
    live: int
    collected: int
    earliest: int = FIRST  # every row below this has been collected
    floor: int = FIRST  # reads as of less may be refused
    lost: int = 0  # numbers that their owner has declared lost
    id: str = ""  # of this stream for ever; one that is created anew under the name has another


class Reason(msgspec.Struct, frozen=True):
    """What has become of a number: ``state`` is row, collected (``by`` which event, while known), lost or
    not published yet."""

    stream: str
    seq: int
    state: str
    by: int | None = None


class EventRows:
    """The next range of a stream: of [lo, hi) exactly ``rows`` pass the filter and survive collection."""

    def __init__(self, span: Span) -> None:
        self.span = span

    @property
    def stream(self) -> str:
        return stream_name(self.span.stream)

    @property
    def lo(self) -> int:
        return self.span.lo

    @property
    def hi(self) -> int:
        return self.span.hi

    @property
    def asof(self) -> int:
        """Rows that events below this have collected are not among them."""
        return self.span.asof

    @property
    def lost(self) -> tuple[tuple[int, int], ...]:
        """Ranges inside of it that their owner has declared lost."""
        return self.span.lost

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.span.rows.count

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Publisher, time and region of each published batch."""
        rows = self.span.rows
        return rows.origins if isinstance(rows, ArrowRows) else ()

    @cached_property
    def rows(self) -> pa.RecordBatch:
        """Columns seq, kind (0 data, 1 gc), key, payload, before, and the attributes."""
        rows = self.span.rows
        batch = rows.batch if isinstance(rows, ArrowRows) else _NO_BATCH
        schema = batch.schema.insert(0, pa.field("seq", pa.int64(), nullable=False))
        return pa.RecordBatch.from_arrays([pa.array(rows.numbers), *batch.columns], schema=schema)

    def events(self) -> Iterator[Event]:
        """The rows one by one."""
        return events_of(self.span)

    def __repr__(self) -> str:
        return f"Rows({self.stream!r}, lo={self.lo}, hi={self.hi}, count={self.count})"


def events_of(span: Span) -> Iterator[Event]:
    """The rows of a span as events, and what is lost of it in its place among them."""
    if span.lost:
        return merge(_row_events(span), _losses(span), key=_seq)
    return _row_events(span)


def _losses(span: Span) -> Iterator[Event]:
    """One event for each lost range; when and where it was published is unknown."""
    for lo, hi in span.lost:
        yield Event(stream_name(span.stream), lo, LOST, None, b"", {"lo": lo, "hi": hi}, _EPOCH, "")


def _seq(event: Event) -> int:
    return event.seq


def _row_events(span: Span) -> Iterator[Event]:
    rows = span.rows
    count = rows.count
    if not count or not isinstance(rows, ArrowRows):
        return iter(())
    if isinstance(rows, SmallRows):
        return _listed(stream_name(span.stream), rows)
    kind, key, payload, _, *others = rows.batch.columns
    seqs: Iterable[int] = range(rows.first, rows.first + count) if rows.seqs is None else rows.seqs.tolist()
    numbers = kind.to_numpy()
    collects = bool(numbers.any())
    kinds: Iterable[str] = map(KINDS.__getitem__, numbers.tolist()) if collects else repeat(KINDS[DATA])
    keys: Iterable[bytes | None] = repeat(None) if key.null_count == count else key.to_pylist()
    payloads = payload.to_pylist()
    if payload.null_count:
        payloads = [b"" if each is None else each for each in payloads]
    attrs: Iterable[Mapping[str, Any]] = repeat(NO_ATTRS)
    if collects:
        attrs = _collecting(rows, numbers.tolist())
    elif others:
        attrs = _attributes(rows)
    times, regions, ticks = _origins(rows)
    return map(Event, repeat(stream_name(span.stream)), seqs, kinds, keys, payloads, attrs, times, regions, ticks)


def _listed(stream: str, rows: SmallRows) -> Iterator[Event]:
    """The same for a few rows that came as lists."""
    times, regions, ticks = _origins(rows)
    payloads = [b"" if each is None else each for each in rows.payloads]
    seqs, keys = range(rows.first, rows.first + rows.count), rows.keys or repeat(None)
    return map(
        Event, repeat(stream), seqs, repeat(KINDS[DATA]), keys, payloads, repeat(NO_ATTRS), times, regions, ticks
    )


def _attributes(rows: ArrowRows) -> list[dict[str, Any]]:
    columns = rows.batch.columns[BASE:]
    names = rows.batch.schema.names[BASE:]
    if len(names) == 1:
        name = names[0]
        return [{name: value} for value in columns[0].to_pylist()]
    return [dict(zip(names, values, strict=True)) for values in zip(*[c.to_pylist() for c in columns], strict=True)]


def _collecting(rows: ArrowRows, kinds: list[int]) -> list[Mapping[str, Any]]:
    """Attributes where some events collect: of those, ``before`` or ``where`` says what."""
    names = rows.batch.schema.names
    befores = rows.batch.column("before").to_pylist()
    wheres = rows.batch.column(WHERE).to_pylist() if WHERE in names else [None] * len(kinds)
    own = _attributes(rows) if len(names) > BASE else [{} for _ in kinds]
    out: list[Mapping[str, Any]] = []
    for kind, before, where, attrs in zip(kinds, befores, wheres, own, strict=True):
        attrs.pop(WHERE, None)
        if kind == DATA:
            out.append(attrs)
        else:
            out.append({"where": where} if before is None else {"before": before})
    return out


def _origins(rows: ArrowRows) -> tuple[Iterable[datetime], Iterable[str], Iterable[int]]:
    """When and where each row was published, and its tick."""
    origins = rows.origins
    if not origins:
        return repeat(_EPOCH), repeat(""), repeat(0)
    first = origins[0]
    if len(origins) == 1:
        return repeat(published_time(first.at)), repeat(first.region), repeat(first.tick)
    if rows.seqs is None:
        counts = [origin.hi - origin.lo for origin in origins]
    else:
        starts = rows.seqs.searchsorted(np.array([origin.lo for origin in origins]))
        counts = np.diff(starts, append=rows.count).tolist()
    each = list(zip(origins, counts, strict=True))
    times = chain.from_iterable([repeat(published_time(o.at), n) for o, n in each])
    ticks = chain.from_iterable([repeat(o.tick, n) for o, n in each])
    if all([origin.region == first.region for origin in origins]):
        return times, repeat(first.region), ticks
    return times, chain.from_iterable([repeat(o.region, n) for o, n in each]), ticks


def published_time(at: float) -> datetime:
    """When something was published, of the seconds that its origin says."""
    return datetime.fromtimestamp(at, UTC)
