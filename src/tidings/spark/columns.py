"""Rows of a span as the columns that Spark declares: nothing is touched per row, and what is constant is made once.

Columns: stream, seq, key, payload, published_at, region, publisher, pub_seq, kind, then attributes. Key, payload and
attributes are used where they lie; the rest is repeated from the origins of the published batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from tidings.client.events import KINDS, LOST, published_time
from tidings.core.errors import BadInput
from tidings.core.filters import AttrType, parse_attributes
from tidings.core.hashing import content_hashes
from tidings.core.ids import StreamId
from tidings.core.ranges import Ranges
from tidings.core.rows import ROW_SCHEMA, WHERE, ArrowRows, Origin

TIME = pa.timestamp("us", tz="UTC")
EPOCH = published_time(0.0)
FIXED: dict[str, pa.DataType] = {
    "stream": pa.string(),
    "seq": pa.int64(),
    "key": pa.binary(),
    "payload": pa.binary(),
    "published_at": TIME,
    "region": pa.string(),
    "publisher": pa.string(),
    "pub_seq": pa.int64(),
    "kind": pa.string(),
}
"""What every event has."""

KEPT: dict[str, pa.DataType] = {
    "before": pa.int64(),
    "where": pa.string(),
    "_session": pa.int64(),
    "_tick": pa.int64(),
}
"""What an archive has besides: what a collecting event collects, and of whose batch a row is part."""

TICK = "tick"
"""A column for whoever wants one: events of different streams are ordered by (tick, seq), as for subscribers."""

ATTRS, HASH = "attrs", "_hash"
"""Columns in place of the attributes, where they are wanted as JSON: the object, and in an archive the hash of the row,
which cannot be worked out from it."""

COVERAGE = "coverage"
"""In an archive, the kind of a row that is no event: of [seq, before) all is there that survived as of _tick. Likewise
`LOST`: nobody has [seq, before)."""


def attributes_of(streams: Mapping[StreamId, str]) -> dict[str, AttrType]:
    """The declared attributes of several streams together; a name with two types is an error that names both."""
    found: dict[str, tuple[str, StreamId, AttrType]] = {}
    for stream, text in streams.items():
        for name, kind in parse_attributes(text).items():
            _, other, known = found.setdefault(name.lower(), (name, stream, kind))
            if kind != known:
                raise BadInput(
                    f"attribute {name!r} is {known} in stream {other!r} and {kind} in {stream!r}: "
                    "read the two in separate queries, and cast one of them"
                )
    return {name: kind for name, _, kind in found.values()}


class SparkColumns:
    """Makes record batches of one schema."""

    def __init__(self, schema: pa.Schema, *, archive: bool = False, json: bool = False, tick: bool = False) -> None:
        self.schema = schema
        self._names: list[str] = schema.names
        self._makers: dict[str, Callable[[StreamId, ArrowRows], pa.Array]] = {
            "stream": lambda stream, rows: repeated(stream, rows.count),
            "seq": lambda _, rows: pa.array(rows.numbers),
            "key": lambda _, rows: rows.batch.column(1),
            "payload": lambda _, rows: rows.batch.column(2),
            "published_at": lambda _, rows: _times(rows),
            "region": lambda _, rows: _texts(rows, [origin.region for origin in rows.origins]),
            "publisher": lambda _, rows: _texts(rows, [origin.publisher for origin in rows.origins]),
            "pub_seq": lambda _, rows: _numbers(rows),
            "kind": lambda _, rows: _kinds(rows),
        }
        if archive:
            self._makers |= {
                "before": lambda _, rows: rows.batch.column(3),
                "where": lambda _, rows: _wheres(rows),
                "_session": lambda _, rows: pa.array(_spread(rows, [origin.session for origin in rows.origins])),
                "_tick": lambda _, rows: _ticks(rows),
            }
        if tick:
            self._makers[TICK] = lambda _, rows: _ticks(rows)
        if json:
            self._makers |= {
                ATTRS: lambda _, rows: _objects(rows),
                HASH: lambda _, rows: pa.array(content_hashes(rows.batch).view(np.int64)),
            }

    def batch(self, stream: StreamId, rows: ArrowRows) -> pa.RecordBatch:
        """Rows of a stream, with nulls for attributes that they do not have."""
        columns: list[pa.Array] = []
        extra = rows.batch.num_columns > len(ROW_SCHEMA)
        places = {name.lower(): at for at, name in enumerate(rows.batch.schema.names)} if extra else {}
        for at, name in enumerate(self._names):
            make = self._makers.get(name)
            if make is not None:
                columns.append(make(stream, rows))
                continue
            place = places.get(name.lower(), -1) if name != WHERE else -1
            if place < len(ROW_SCHEMA):
                columns.append(pa.nulls(rows.count, self.schema.field(at).type))
            else:
                columns.append(rows.batch.column(place))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def coverage(
        self, stream: StreamId, lo: int, hi: int, asof: int, lost: Sequence[tuple[int, int]] = ()
    ) -> pa.RecordBatch:
        """A range as a row, or, where parts of it are lost, as several."""
        known = Ranges([(lo, hi)])
        for each in lost:
            known.remove(*each)
        ranges = [*[(*each, COVERAGE) for each in known], *[(*each, LOST) for each in lost]]
        said = [
            {"stream": stream, "seq": first, "before": last, "_tick": max(asof, first), "kind": kind}
            for first, last, kind in sorted(ranges)
        ]
        return pa.RecordBatch.from_pylist(said, schema=self.schema)


def attributes_json(columns: Mapping[str, pa.Array]) -> pa.Array:
    """Attributes as JSON objects: times and dates in ISO form, bytes in hexadecimal (core/filters/types.py)."""
    plain = [_plain(column) for column in columns.values()]
    texts = [json.dumps(dict(zip(columns, values, strict=True))) for values in zip(*plain, strict=True)]
    return pa.array(texts, pa.string())


def _plain(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_binary(column.type):
        return [None if value is None else value.hex() for value in values]
    if pa.types.is_temporal(column.type):
        return [None if value is None else value.isoformat() for value in values]
    return values


def _objects(rows: ArrowRows) -> pa.Array:
    """The attributes that rows have, as JSON; null where there are none."""
    names = rows.batch.schema.names[len(ROW_SCHEMA) :]
    found = {name: rows.batch.column(at) for at, name in enumerate(names, len(ROW_SCHEMA)) if name != WHERE}
    return attributes_json(found) if found else pa.nulls(rows.count, pa.string())


@lru_cache(maxsize=64)  # the same few texts in batches of the same few sizes
def repeated(text: str, count: int) -> pa.Array:
    """A column that says the same in every row."""
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _counts(rows: ArrowRows) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """How many rows each origin has; together all of them."""
    origins = rows.origins
    if rows.seqs is None:
        return np.array([origin.hi - origin.lo for origin in origins], dtype=np.int64)
    starts = rows.seqs.searchsorted(np.array([origin.lo for origin in origins]))
    return np.diff(starts, append=rows.count)


def _spread(rows: ArrowRows, values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A number of each origin for each of its rows."""
    if len(values) == 1:
        return np.full(rows.count, values[0], dtype=np.int64)
    return np.repeat(np.array(values, dtype=np.int64), _counts(rows))


def _ticks(rows: ArrowRows) -> pa.Array:
    return pa.array(_spread(rows, [origin.tick for origin in rows.origins]))


def _micros(at: float) -> int:
    """As a subscriber is told: a product would sometimes be rounded to the next one."""
    return (published_time(at) - EPOCH) // timedelta(microseconds=1)


def _times(rows: ArrowRows) -> pa.Array:
    if not rows.origins:
        return pa.nulls(rows.count, TIME)
    micros = _spread(rows, [_micros(origin.at) for origin in rows.origins])
    return pa.Array.from_buffers(TIME, rows.count, [None, pa.py_buffer(micros)])


def _numbers(rows: ArrowRows) -> pa.Array:
    """Each publisher's own number of an event: it moves with the sequence number inside a published batch."""
    if not rows.origins:
        return pa.nulls(rows.count, pa.int64())

    def shift(origin: Origin) -> int:
        return origin.first - origin.lo

    return pa.array(rows.numbers + _spread(rows, [shift(origin) for origin in rows.origins]))


def _texts(rows: ArrowRows, texts: Sequence[str]) -> pa.Array:
    if not texts:
        return pa.nulls(rows.count, pa.string())
    if len(set(texts)) == 1:
        return repeated(texts[0], rows.count)
    names = list(dict.fromkeys(texts))
    places = _spread(rows, [names.index(text) for text in texts]).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(places), pa.array(names, pa.string())).dictionary_decode()


def _wheres(rows: ArrowRows) -> pa.Array:
    """Of predicate events, what they collect."""
    at = rows.batch.schema.get_field_index(WHERE)
    return pa.nulls(rows.count, pa.string()) if at < 0 else rows.batch.column(at)


def _kinds(rows: ArrowRows) -> pa.Array:
    kinds = rows.batch.column(0).to_numpy()
    if not kinds.any():
        return repeated(KINDS[0], rows.count)
    names = pa.array(KINDS, pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(kinds.astype(np.int32)), names).dictionary_decode()
