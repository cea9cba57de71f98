"""Tables as batches of rows that their stream takes: columns key and payload (binary) and attributes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.client.batching import MAX_PAYLOAD
from tidings.client.errors import PayloadTooLarge
from tidings.core.errors import BadInput
from tidings.core.filters import conform, parse_attributes
from tidings.core.ids import FIRST, StreamId
from tidings.core.rows import ROW_SCHEMA, ArrowRows, Rows, data_kinds, no_befores
from tidings.core.span import MESSAGE_BYTES
from tidings.protocols.services.catalog import StreamDef

TABLE_ROWS = 16_384  # rows in a batch of a table; ours, because larger ones gain nothing
TABLE_BYTES = MESSAGE_BYTES // 2  # and bytes, on average: rows differ in size
MOST_BYTES = MESSAGE_BYTES * 3 // 4  # of any batch; ours, because what is larger than a message is refused


def batches_of(
    definition: StreamDef, table: pa.Table | pa.RecordBatch, most_rows: int = TABLE_ROWS, most_bytes: int = TABLE_BYTES
) -> list[Rows]:
    """A table as batches of rows that fit a stream, no value copied that fits already; raises `BadInput`."""
    count = table.num_rows
    names = table.schema.names
    attributes = conform(table, parse_attributes(definition.attrs))
    columns: list[pa.Array] = [
        data_kinds(count),
        *[_bytes_column(definition.name, table, name) for name in ("key", "payload")],
        no_befores(count),
    ]
    schema = ROW_SCHEMA
    for name, column in attributes.items():
        if name in names:
            schema = schema.append(pa.field(name, column.type))
            columns.append(column)
    whole = pa.RecordBatch.from_arrays(columns, schema=schema)
    _refuse_large(definition.name, whole)
    size = max(1, min(most_rows, int(count * most_bytes / max(whole.nbytes, 1))))
    slices = [whole.slice(at, size) for at in range(0, count, size)]
    return [ArrowRows.dense(FIRST, piece) for each in slices for piece in _halved(each)]


def _halved(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Rows as pieces that a message can carry."""
    if rows.nbytes <= MOST_BYTES or rows.num_rows == 1:
        return [rows]
    middle = rows.num_rows // 2
    return [*_halved(rows.slice(0, middle)), *_halved(rows.slice(middle))]


def _refuse_large(stream: StreamId, rows: pa.RecordBatch) -> None:
    """Raise `PayloadTooLarge` if a row is larger than an event may be."""
    if rows.nbytes <= MAX_PAYLOAD:
        return
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            sizes += pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    at = int(sizes.argmax())
    if sizes[at] > MAX_PAYLOAD:
        raise PayloadTooLarge(
            f"{stream}: key, payload and attributes of row {at} have {sizes[at]} bytes; the limit is {MAX_PAYLOAD}: "
            "split it, or publish a link"
        )


def _bytes_column(stream: StreamId, table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    count = table.num_rows
    if name not in table.schema.names:
        return pa.nulls(count, pa.binary()) if name == "key" else pa.array([b""] * count, pa.binary())
    column = table.column(name)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if not kind.equals(pa.binary()):
        if not (pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_string(kind)):
            raise BadInput(f"{stream}: column {name!r} is binary, not {kind}: cast it first")
        array = array.cast(pa.binary())
    if name == "payload" and array.null_count:
        array = array.fill_null(b"")
    return array
