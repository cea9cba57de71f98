"""Rows and spans as bytes: what the network and the disk share.

A value becomes a small *head* (a msgspec struct, part of a header that the caller writes as msgpack) and a *body*, a
list of buffers that follow it. Rows take one of four forms:

* `Nothing`: no row; `Counted`: counted rows, three numbers and the collectors;
* `Small`: up to SMALL_ROWS rows as lists inside the head, no body. A client may build and read this form without Arrow;
* `Columns`: Arrow's columnar layout without an envelope: each buffer of each column, padded to 8 bytes, in the body.
  A column that is all null, and a kind that is the same in every row, cost nothing per row; values of one length have
  no offsets. Measured against Arrow IPC for 16,384 rows of ten-byte keys and payloads (tests/core/test_wire.py names
  the command): 328 kB instead of 609, for some 30 us more at each end; a checksum alone over the rest takes 130.

Decoding copies no column (a body that is not 8-byte aligned is copied once, as a whole). The rows keep the buffer alive
that they were decoded from, so its owner must not write to it again. Input is not trusted: counts, lengths, offsets,
numbers, text and the order of everything are checked, and an error is `Corrupt`. After that compiled code may follow
the offsets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidings.core.errors import BadInput
from tidings.core.hashing import Seqs
from tidings.core.ids import FIRST, NEVER
from tidings.core.lens import ALL, Lens
from tidings.core.rows import (
    GC,
    NO_ROWS,
    ROW_SCHEMA,
    ArrowRows,
    CountedRows,
    Origin,
    Rows,
    data_kinds,
    no_befores,
)
from tidings.core.small_rows import SmallRows
from tidings.core.span import Span

FORMAT = 1
"""The number of this encoding; a connection's hello and a store's header carry it."""

SMALL_ROWS = 64  # ours, because up to about here lists are encoded and decoded as fast as columns (measured)
SMALL_BYTES = 1 << 14  # ours: larger values are not worth copying into the head
MAX_ROWS = 1 << 24  # ours: a thousand times a large batch; bounds what a forged count can make a receiver allocate
SHARED_ROWS = 1 << 15  # ours: offsets of up to so many values of one length are kept, 128 kB a length
ALIGN = 8

T = TypeVar("T")
Body: TypeAlias = list[memoryview | bytes]
"""Buffers in order; their lengths add up to the head's ``nbytes``, a multiple of 8."""


class Corrupt(BadInput):
    """Bytes from outside do not decode to a value that makes sense; nothing has changed."""


class _Head(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Part of a header. As an array: fields may be added at the end only, with defaults."""


WireOrigin: TypeAlias = tuple[int, int, str, int, int, int, float, str]
"""The fields of an `Origin`, in its order."""


class Nothing(_Head, frozen=True, gc=False, array_like=True, tag=0):
    """No rows."""

    @property
    def nbytes(self) -> int:
        return 0


class Counted(_Head, frozen=True, gc=False, array_like=True, tag=1):
    """Counted rows."""

    first: int
    hi: int
    size: int
    collectors: tuple[tuple[int, int], ...] = ()

    @property
    def nbytes(self) -> int:
        return 0


class Attribute(_Head, frozen=True, gc=False, array_like=True):
    """A column that the stream declares beyond those all streams have."""

    name: str
    type: str
    nullable: bool = True


Scalar: TypeAlias = Any  # a bool, number, text, bytes or None; which of them, Arrow checks against the type


class Small(_Head, frozen=True, gc=False, array_like=True, tag=2):
    """A few rows as lists. None in place of a list: null in every row (``kinds``: data; ``seqs``: dense)."""

    first: int
    payloads: list[bytes | None]
    keys: list[bytes | None] | None = None
    seqs: list[int] | None = None
    kinds: list[int] | None = None
    befores: list[int | None] | None = None
    origins: list[WireOrigin] = []
    attributes: list[tuple[Attribute, list[Scalar]]] = []

    @property
    def nbytes(self) -> int:
        return 0


# Forms of a column; ours.
NULLS = 0  # nothing in the body
SAME = 1  # nothing in the body; ``size`` is the value of every row
PLAIN = 2  # fixed-width values; or offsets and ``size`` bytes
EVEN = 3  # values of ``size`` bytes each, no offsets


class Column(_Head, frozen=True, gc=False, array_like=True):
    """How a column lies in the body: validity bits if there are ``nulls``, offsets if needed, values."""

    form: int
    nulls: bool = False
    size: int = 0


class Columns(_Head, frozen=True, gc=False, array_like=True, tag=3):
    """Rows as columns: explicit numbers unless ``dense``, then the columns of every stream, then the attributes."""

    count: int
    first: int
    dense: bool
    nbytes: int
    columns: tuple[Column, ...]
    origins: list[WireOrigin] = []
    attributes: tuple[Attribute, ...] = ()


RowsHead: TypeAlias = Nothing | Counted | Small | Columns


class SpanHead(_Head, frozen=True, gc=False, array_like=True):
    """A span without its body."""

    stream: str
    lo: int
    hi: int
    asof: int
    rows: RowsHead
    lens: str = ""
    lens_version: int = 0
    lost: tuple[tuple[int, int], ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of body."""
        return self.rows.nbytes


_NOTHING = Nothing()

# --- spans ----------------------------------------------------------------------------------------------


def encode_span(span: Span) -> tuple[SpanHead, Body]:
    """Head and body of a span."""
    rows, body = encode_rows(span.rows)
    lens = span.lens
    return SpanHead(span.stream, span.lo, span.hi, span.asof, rows, lens.text, lens.version, span.lost), body


def encode_spans(spans: Sequence[Span]) -> tuple[tuple[SpanHead, ...], Body]:
    """Heads of several spans, and their bodies one after the other."""
    heads: list[SpanHead] = []
    bodies: Body = []
    for span in spans:
        head, body = encode_span(span)
        heads.append(head)
        bodies += body
    return tuple(heads), bodies


def decode_span(head: SpanHead, body: memoryview | bytes = b"") -> Span:
    """The span of a head and a body of exactly its size; raises `Corrupt`."""
    lo, hi = head.lo, head.hi
    if not (FIRST <= lo <= hi <= NEVER and 0 <= head.asof <= NEVER):
        raise Corrupt(f"{head.stream!r}: [{lo}, {hi}) as of {head.asof} is no span")
    rows = decode_rows(head.rows, body)
    if rows.count and not (lo <= rows.first and _end(rows) <= hi):
        raise Corrupt(f"{head.stream!r}: rows [{rows.first}, {_end(rows)}) outside of their span [{lo}, {hi})")
    lens = Lens(head.lens, head.lens_version) if head.lens or head.lens_version else ALL
    if head.lost:
        _refuse_lost(head, rows)
    return Span(head.stream, lo, hi, head.asof, rows, lens, head.lost)


def _refuse_lost(head: SpanHead, rows: ArrowRows | CountedRows) -> None:
    at = head.lo
    for lo, hi in head.lost:
        if not at <= lo < hi <= head.hi or rows.slice(lo, hi).count:
            raise Corrupt(f"{head.stream!r}: [{lo}, {hi}) cannot be what is lost of [{head.lo}, {head.hi})")
        at = hi


def decode_spans(heads: Sequence[SpanHead], body: memoryview | bytes = b"") -> tuple[Span, ...]:
    """The spans of some heads and their bodies one after the other; raises `Corrupt`."""
    if len(heads) == 1 and len(body) == heads[0].nbytes:
        return (decode_span(heads[0], body),)
    whole = memoryview(body)
    spans: list[Span] = []
    at = 0
    for head in heads:
        end = at + head.nbytes
        if not at <= end <= len(whole):
            raise Corrupt(f"{head.stream!r}: a body of {head.nbytes} bytes is said to begin at {at} of {len(whole)}")
        spans.append(decode_span(head, whole[at:end]))
        at = end
    if at != len(whole):
        raise Corrupt(f"{len(whole) - at} bytes follow after the last span")
    return tuple(spans)


def _end(rows: ArrowRows | CountedRows) -> int:
    """One above the last number of rows that are not empty."""
    if isinstance(rows, CountedRows):
        return rows.hi
    return rows.first + rows.count if rows.seqs is None else rows.seqs.item(-1) + 1


# --- rows -----------------------------------------------------------------------------------------------


def encode_rows(rows: Rows) -> tuple[RowsHead, Body]:
    """Head and body of rows; `BadInput` for rows that no stream can have, so that what is written can be read."""
    if not rows.count:
        return _NOTHING, []
    if rows.count > MAX_ROWS:
        raise BadInput(f"{rows.count} rows in one span; cut it into pieces of at most {MAX_ROWS}")
    if isinstance(rows, CountedRows):
        return Counted(rows.first, rows.hi, rows.size, rows.collectors), []
    if not isinstance(rows, ArrowRows):
        raise BadInput(f"rows of kind {type(rows).__name__} have no encoding")
    if rows.wire is not None:
        return _encode_again(rows)
    attributes = () if rows.plain else _attributes(rows.batch.schema)  # to hash a schema takes 3 us
    head: RowsHead
    body: Body
    if rows.count <= SMALL_ROWS and rows.nbytes <= SMALL_BYTES and _are_scalars(attributes):
        head, body = _encode_small(rows, attributes), []
    else:
        head, body = _encode_columns(rows, attributes)
    rows.wire = (head, body, rows.first, rows.origins)
    return head, body


def _encode_again(rows: ArrowRows) -> tuple[RowsHead, Body]:
    """Rows that were encoded or decoded before, perhaps under other numbers: only what follows from those is new.

    A replica that stores a batch, sends it on and feeds it encodes it once, or never if it came as a frame.
    """
    head, body, first, origins = rows.wire
    if first != rows.first or origins is not rows.origins:
        head = msgspec.structs.replace(head, first=rows.first, origins=_encode_origins(rows))
        rows.wire = (head, body, rows.first, rows.origins)
    return head, body


def decode_rows(head: RowsHead, body: memoryview | bytes = b"") -> ArrowRows | CountedRows:
    """The rows of a head and a body of exactly its size; raises `Corrupt`."""
    if len(body) != (head.nbytes if type(head) is Columns else 0):
        raise Corrupt(f"a body of {len(body)} bytes came where {head.nbytes} are announced")
    try:
        if type(head) is Small:
            rows = _decode_small(head)
            rows.wire = (head, [], rows.first, rows.origins)
            return rows
        if type(head) is Columns:
            rows = _decode_columns(head, body)
            rows.wire = (head, [body], rows.first, rows.origins)
            return rows
        if type(head) is Counted:
            return _decode_counted(head)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise Corrupt(f"rows do not decode: {error}") from error
    return NO_ROWS


def _decode_counted(head: Counted) -> CountedRows:
    first, hi = head.first, head.hi
    if not (FIRST <= first < hi <= NEVER and hi - first <= MAX_ROWS and 0 <= head.size <= NEVER):
        raise Corrupt(f"counted rows [{first}, {hi}) of {head.size} bytes")
    last = first - 1
    for number, before in head.collectors:
        if not (last < number < hi and 0 <= before <= NEVER):
            raise Corrupt(f'event {number} "before {before}" among counted rows [{first}, {hi})')
        last = number
    return CountedRows(first, hi, head.size, head.collectors)


def _numbered(first: int, seqs: Seqs | None, batch: pa.RecordBatch, origins: list[WireOrigin]) -> ArrowRows:
    """Rows whose numbers and origins have been checked."""
    if seqs is not None:
        if not len(seqs) or first != seqs[0] or not (seqs[1:] > seqs[:-1]).all():
            raise Corrupt(f"row numbers do not ascend from {first}")
        end = seqs.item(-1) + 1
        if end - first == len(seqs):
            seqs = None
    else:
        end = first + batch.num_rows
    _refuse_numbers(first, end)
    return ArrowRows(seqs, batch, _decode_origins(origins, first, end), first)


def _refuse_numbers(first: int, end: int) -> None:
    if not FIRST <= first < end <= NEVER:
        raise Corrupt(f"rows are numbered from {first} to {end}")


def unpack(decoder: msgspec.msgpack.Decoder[T], data: memoryview | bytes) -> T:
    """Decode a header; whatever is wrong with it is `Corrupt`."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"a header of {len(data)} bytes does not decode: {error}") from error


def _decode_origins(fields: list[WireOrigin], lo: int, hi: int) -> tuple[Origin, ...]:
    at = lo
    for start, end, _, _, _, _, when, _ in fields:
        if not (at <= start < end <= hi and isfinite(when)):
            raise Corrupt(f"an origin of [{start}, {end}) at {when} does not lie in [{at}, {hi})")
        at = end
    return tuple([Origin(*each) for each in fields])


def _encode_origins(rows: ArrowRows) -> list[WireOrigin]:
    """The fields of the origins; one that has been narrowed to nothing is left out."""
    astuple = msgspec.structs.astuple
    return [astuple(origin) for origin in rows.origins if origin.lo < origin.hi]


# --- schemas --------------------------------------------------------------------------------------------

_UNITS = ("s", "ms", "us", "ns")
_TYPES: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in (
        *[pa.bool_(), pa.binary(), pa.string(), pa.large_binary(), pa.large_string()],
        *[pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
        *[pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()],
        *[pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
        *[pa.timestamp(unit) for unit in _UNITS],
        *[pa.duration(unit) for unit in _UNITS],
    )
}
"""The types an attribute can have: those that have a content hash."""

_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=([A-Za-z0-9_+:/-]{1,40})\]")
_SCALARS = frozenset(
    [
        *["bool", "string", "binary", "float", "double"],
        *["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
    ]
)
"""Types whose values msgpack has too."""

BASE = len(ROW_SCHEMA)
_BASE_KINDS: list[pa.DataType] = [pa.binary()] * 2 + [pa.int64()]  # of `ROW_SCHEMA`, behind the kind; two are one
_BEFORES = pa.int64()
_BYTES = _BASE_KINDS[0]
_LARGEST: dict[Any, int] = {kind: int(np.iinfo(kind).max) for kind in (np.int32, np.int64)}


@lru_cache(maxsize=1024)
def _type(name: str) -> pa.DataType:
    known = _TYPES.get(name)
    if known is None:
        zoned = _ZONED.fullmatch(name)
        if zoned is None:
            raise Corrupt(f"no attribute has the type {name!r}; use a number, time, string or binary")
        known = pa.timestamp(zoned[1], tz=zoned[2])
    return known


@lru_cache(maxsize=1024)
def _attributes(schema: pa.Schema) -> tuple[Attribute, ...]:
    """What a schema has beyond the columns of every stream."""
    if [(f.name, f.type) for f in schema][:BASE] != [(f.name, f.type) for f in ROW_SCHEMA]:
        raise BadInput(f"rows begin with the columns {ROW_SCHEMA.names}, not {schema.names[:BASE]}")
    declared = [schema.field(at) for at in range(BASE, len(schema))]
    for field in declared:
        _type(str(field.type))
    return tuple([Attribute(field.name, str(field.type), field.nullable) for field in declared])


@lru_cache(maxsize=1024)
def _schema(attributes: tuple[Attribute, ...]) -> pa.Schema:
    if not attributes:
        return ROW_SCHEMA
    names = [*ROW_SCHEMA.names, *[each.name for each in attributes]]
    if len(set(names)) < len(names):
        raise Corrupt(f"two columns of one name among {names}")
    return pa.schema([*ROW_SCHEMA, *[pa.field(each.name, _type(each.type), each.nullable) for each in attributes]])


def _are_scalars(attributes: tuple[Attribute, ...]) -> bool:
    return not attributes or all([each.type in _SCALARS for each in attributes])


# --- few rows: lists ------------------------------------------------------------------------------------


def _encode_small(rows: ArrowRows, attributes: tuple[Attribute, ...]) -> Small:
    if isinstance(rows, SmallRows):
        return Small(rows.first, rows.payloads, rows.keys, origins=_encode_origins(rows))
    kind, key, payload, before, *declared = rows.batch.columns
    count = rows.count
    kinds = kind.to_pylist()
    if max(kinds) > GC:
        raise BadInput(f"a row of kind {max(kinds)} is neither data (0) nor collects (1)")
    return Small(
        rows.first if rows.seqs is None else rows.seqs.item(0),
        payload.to_pylist(),
        None if key.null_count == count else key.to_pylist(),
        None if rows.seqs is None else rows.seqs.tolist(),
        kinds if any(kinds) else None,
        None if before.null_count == count else before.to_pylist(),
        _encode_origins(rows),
        [(one, column.to_pylist()) for one, column in zip(attributes, declared, strict=True)],
    )


def _decode_small(head: Small) -> ArrowRows:
    count = len(head.payloads)
    if not 0 < count <= MAX_ROWS:
        raise Corrupt(f"{count} rows where there is at least one")
    keys = head.keys
    if head.seqs is head.kinds is head.befores is None and not head.attributes:
        if keys is not None and len(keys) != count:
            raise Corrupt(f"{len(keys)} keys beside {count} payloads")
        first = head.first
        end = first + count
        _refuse_numbers(first, end)
        return SmallRows(keys, head.payloads, first, _decode_origins(head.origins, first, end))
    for values in [keys, head.seqs, head.kinds, head.befores, *[values for _, values in head.attributes]]:
        if values is not None and len(values) != count:
            raise Corrupt(f"a column of {len(values)} values beside {count} payloads")
    if head.kinds is not None and not all([0 <= kind <= GC for kind in head.kinds]):
        raise Corrupt(f"kinds {head.kinds[:8]}: a row is data (0) or collects (1)")
    columns = [
        data_kinds(count) if head.kinds is None else pa.array(head.kinds, pa.uint8()),
        pa.nulls(count, pa.binary()) if keys is None else pa.array(keys, pa.binary()),
        pa.array(head.payloads, pa.binary()),
        no_befores(count) if head.befores is None else pa.array(head.befores, pa.int64()),
    ]
    for attribute, values in head.attributes:
        if attribute.type not in _SCALARS:
            raise Corrupt(f"attribute {attribute.name!r}: values of type {attribute.type} do not come as a list")
        columns.append(pa.array(values, _type(attribute.type)))
        _refuse_nulls(attribute, columns[-1])
    schema = _schema(tuple([attribute for attribute, _ in head.attributes]))
    seqs = None if head.seqs is None else np.array(head.seqs, dtype=np.int64)
    return _numbered(head.first, seqs, pa.RecordBatch.from_arrays(columns, schema=schema), head.origins)


def _refuse_nulls(attribute: Attribute, column: pa.Array) -> None:
    if not attribute.nullable and column.null_count:
        raise Corrupt(f"attribute {attribute.name!r} is null in a row, which its stream does not allow")


# --- many rows: columns ---------------------------------------------------------------------------------


def _encode_columns(rows: ArrowRows, attributes: tuple[Attribute, ...]) -> tuple[Columns, Body]:
    writer = _Writer()
    first = rows.first
    if rows.seqs is not None:
        first = rows.seqs.item(0)
        writer.add(np.ascontiguousarray(rows.seqs, dtype=np.int64))
    kind, *others = rows.batch.columns
    columns = [_encode_kind(kind, writer), *[_encode_column(column, writer) for column in others]]
    origins = _encode_origins(rows)
    dense = rows.seqs is None
    return Columns(rows.count, first, dense, writer.nbytes, tuple(columns), origins, attributes), writer.body


class _Writer:
    """Collects the buffers of a body, each padded to 8 bytes."""

    __slots__ = ("body", "nbytes")

    def __init__(self) -> None:
        self.body: Body = []
        self.nbytes = 0

    def add(self, buffer: Any) -> None:
        """Append a buffer: an array or an Arrow buffer."""
        view = memoryview(buffer)
        if view.format != "B":
            view = view.cast("B")
        size = len(view)
        if size:
            self.body.append(view)
            self.nbytes += size
            if size % ALIGN:
                self.body.append(bytes(-size % ALIGN))
                self.nbytes += -size % ALIGN


def _encode_kind(column: pa.Array, writer: _Writer) -> Column:
    values = np.frombuffer(column.buffers()[1], np.uint8)[column.offset : column.offset + len(column)]
    if not values.any():
        return Column(SAME)
    if values.max() > GC:
        raise BadInput(f"a row of kind {values.max()} is neither data (0) nor collects (1)")
    if values.all():
        return Column(SAME, False, GC)
    writer.add(values)
    return Column(PLAIN)


def _encode_column(column: pa.Array, writer: _Writer) -> Column:
    count, start = len(column), column.offset
    if column.null_count == count:
        return Column(NULLS)
    buffers = column.buffers()
    nulls = column.null_count > 0
    if nulls:
        writer.add(_bits(buffers[0], start, count))
    offset_type = _offset_type(column.type)
    if offset_type is not None:
        return _encode_values(buffers, offset_type, start, count, nulls, writer)
    if pa.types.is_boolean(column.type):
        writer.add(_bits(buffers[1], start, count))
    else:
        width = column.type.bit_width // 8
        writer.add(buffers[1].slice(start * width, count * width))
    return Column(PLAIN, nulls)


def _encode_values(
    buffers: list[Any], offset_type: Any, start: int, count: int, nulls: bool, writer: _Writer
) -> Column:
    offsets = np.frombuffer(buffers[1], offset_type)[start : start + count + 1]
    begin, size = offsets.item(0), offsets.item(-1) - offsets.item(0)
    width = offsets.item(1) - begin
    even = size == width * count and bool((offsets[1:] - offsets[:-1] == width).all())
    if not even:
        writer.add(offsets - offsets[0] if begin else offsets)
    if size:
        writer.add(buffers[2].slice(begin, size))
    return Column(EVEN, nulls, width) if even else Column(PLAIN, nulls, size)


def _bits(buffer: Any, start: int, count: int) -> NDArray[np.uint8]:
    """A bitmap that begins at a whole byte."""
    packed = np.frombuffer(buffer, np.uint8)[start >> 3 : (start + count + 7) >> 3]
    if start & 7 == 0:
        return packed
    return np.packbits(np.unpackbits(packed, bitorder="little")[start & 7 :][:count], bitorder="little")


def _offset_type(kind: pa.DataType) -> Any:
    """The type of a column's offsets; None if its values have a fixed width."""
    if kind is _BYTES:
        return np.int32
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return np.int32
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return np.int64
    return None


class _Reader:
    """Hands out the buffers of a body in order; `Corrupt` when it is too short."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: memoryview | bytes) -> None:
        self._body = pa.py_buffer(body)
        if self._body.address % ALIGN:
            self._body = pa.py_buffer(bytes(body))
        self._at = 0

    def take(self, size: int) -> Any:
        """The next so many bytes, as an Arrow buffer; padding is skipped."""
        at = self._at
        if size < 0 or at + size > self._body.size:
            raise Corrupt(f"a column of {size} bytes is said to begin at {at} of {self._body.size}")
        self._at = at + size + -size % ALIGN
        return self._body.slice(at, size)

    def end(self) -> None:
        """Nothing may be left."""
        if self._at != self._body.size:
            raise Corrupt(f"the columns end at {self._at}, their body at {self._body.size}")


def _decode_columns(head: Columns, body: memoryview | bytes) -> ArrowRows:
    count = head.count
    if not 0 < count <= MAX_ROWS:
        raise Corrupt(f"{count} rows, where 1 to {MAX_ROWS} are possible")
    schema = _schema(head.attributes)
    if len(head.columns) != len(schema):
        raise Corrupt(f"{len(head.columns)} columns, where {len(schema)} are declared")
    reader = _Reader(body)
    seqs = None if head.dense else np.frombuffer(reader.take(8 * count), np.int64)
    kind, *others = head.columns
    columns = [_decode_kind(kind, count, reader)]
    kinds = _BASE_KINDS if schema is ROW_SCHEMA else [*_BASE_KINDS, *schema.types[BASE:]]
    columns += [_decode_column(each, type_, count, reader) for each, type_ in zip(others, kinds, strict=True)]
    reader.end()
    for attribute, column in zip(head.attributes, columns[BASE:], strict=True):
        _refuse_nulls(attribute, column)
    rows = _numbered(head.first, seqs, pa.RecordBatch.from_arrays(columns, schema=schema), head.origins)
    rows.measured(_column_bytes(head))
    return rows


def _column_bytes(head: Columns) -> int | None:
    """What Arrow would say of the columns in 12 us: for plain data rows; None for others."""
    count = head.count
    kind, key, payload, before = head.columns[:BASE]
    if head.attributes or kind.form != SAME or key.nulls or payload.nulls or before.form != NULLS:
        return None
    if NULLS in (key.form, payload.form):
        return None
    sizes = [column.size * count if column.form == EVEN else column.size for column in (key, payload)]
    return 17 * count + (count + 7) // 8 + sum(sizes)


def _decode_kind(column: Column, count: int, reader: _Reader) -> pa.Array:
    if column.form == SAME and 0 <= column.size <= GC:
        if column.size == 0:
            return data_kinds(count)
        return pa.array(np.full(count, column.size, dtype=np.uint8))
    if column.form != PLAIN or column.nulls:
        raise Corrupt(f"the kinds of rows cannot come as {column}")
    buffer = reader.take(count)
    if np.frombuffer(buffer, np.uint8).max() > GC:
        raise Corrupt("a row is neither data (0) nor collects (1)")
    return pa.Array.from_buffers(pa.uint8(), count, [None, buffer], 0)


def _decode_column(column: Column, kind: pa.DataType, count: int, reader: _Reader) -> pa.Array:
    if column.form == NULLS:
        return no_befores(count) if kind == _BEFORES else pa.nulls(count, kind)
    validity = reader.take((count + 7) >> 3) if column.nulls else None
    nulls = -1 if column.nulls else 0
    offset_type = _offset_type(kind)
    if offset_type is None:
        if column.form != PLAIN:
            raise Corrupt(f"a column of {kind} cannot come as {column}")
        values = reader.take((count * kind.bit_width + 7) >> 3)
        return pa.Array.from_buffers(kind, count, [validity, values], nulls)
    if column.form == EVEN:
        size = column.size * count
        if column.size < 0 or size > _LARGEST[offset_type]:
            raise Corrupt(f"{count} values of {column.size} bytes each")
        offsets = _even_offsets(column.size, count, offset_type)
    elif column.form == PLAIN:
        size = column.size
        offsets = reader.take(np.dtype(offset_type).itemsize * (count + 1))
        numbers = np.frombuffer(offsets, offset_type)
        if numbers[0] != 0 or numbers[-1] != size or not (numbers[1:] >= numbers[:-1]).all():
            raise Corrupt(f"the offsets of a column do not ascend from 0 to {size}")
    else:
        raise Corrupt(f"a column of {kind} cannot come as {column}")
    array = pa.Array.from_buffers(kind, count, [validity, offsets, reader.take(size)], nulls)
    if kind is not _BYTES and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        array.validate(full=True)  # that it is UTF-8
    return array


@lru_cache(maxsize=1024)
def _even_offsets(width: int, count: int, offset_type: Any) -> Any:
    """Offsets of values of one length, a prefix of those that all columns of such values share."""
    room = 1 << count.bit_length()
    if room > SHARED_ROWS or room * width > _LARGEST[offset_type]:
        return pa.py_buffer(np.arange(count + 1, dtype=offset_type) * offset_type(width))
    return _shared_offsets(width, room, offset_type).slice(0, (count + 1) * np.dtype(offset_type).itemsize)


@lru_cache(maxsize=256)
def _shared_offsets(width: int, room: int, offset_type: Any) -> Any:
    return pa.py_buffer(np.arange(room + 1, dtype=offset_type) * offset_type(width))
