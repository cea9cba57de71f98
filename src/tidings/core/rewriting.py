"""Compiled merging of several chunks into one without the dead rows: most of the work of a purge.

It handles data rows with keys and payloads and nothing else, which is what by-key streams are made of. Arrow does the
others (`Chunks._merged`). The kernels follow offsets that were checked when the rows came in (`wire`, `keytable`).
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidings.core.hashing import Seqs
from tidings.core.keytable import Words, kernel, load8, load32, load64, store8, store64
from tidings.core.rows import ROW_SCHEMA, ArrowRows, Origin, data_kinds, merged_origins, no_befores, surviving_origins
from tidings.core.small_rows import SmallRows

FIRST_ROW, COUNT, SEQS, DEAD, KEYS, KEY_BYTES, PAYLOADS, PAYLOAD_BYTES, KEPT, WIDTH = range(10)  # columns of the parts
BYTES = pa.binary()


@kernel
def _offset(address: int, at: int) -> int:
    """The offset at a position."""
    return load32(address + 4 * at)


@kernel
def _left(parts: Words, limit: int, low: int, places: Words, sizes: Words) -> int:
    """Where the rows are that stay; how many, and how many bytes of keys and payloads they have."""
    total = 0
    for part in range(len(parts)):
        count, seqs, dead, first = parts[part, COUNT], parts[part, SEQS], parts[part, DEAD], parts[part, FIRST_ROW]
        begin = total
        for i in range(count):  # without a branch on the data: whether a row lives is as good as random
            number = load64(seqs + 8 * i) if seqs != 0 else first + i
            places[total] = i
            total += int(load64(dead + 8 * i) >= limit) & int(number >= low)
        parts[part, KEPT] = total - begin
        keys, payloads = parts[part, KEYS], parts[part, PAYLOADS]
        for j in range(begin, total):
            sizes[0] += _offset(keys, places[j] + 1) - _offset(keys, places[j])
            sizes[1] += _offset(payloads, places[j] + 1) - _offset(payloads, places[j])
    return total


@kernel
def _copy_bytes(source: int, target: int, length: int) -> None:
    if length < 8:
        for i in range(length):
            store8(target + i, load8(source + i))
        return
    for i in range(0, length - 8, 8):
        store64(target + i, load64(source + i))
    store64(target + length - 8, load64(source + length - 8))


@kernel
def _gather(
    parts: Words, places: Words, seqs: Seqs, dead: Seqs, keys: NDArray[np.int32], key_bytes: NDArray[np.uint8],
    payloads: NDArray[np.int32], payload_bytes: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Copy the rows that stay."""
    to = 0
    key_base, payload_base = np.int64(key_bytes.ctypes.data), np.int64(payload_bytes.ctypes.data)
    keys[0] = payloads[0] = 0
    for part in range(len(parts)):
        row = parts[part]
        for _ in range(row[KEPT]):
            i = places[to]
            seqs[to] = load64(row[SEQS] + 8 * i) if row[SEQS] != 0 else row[FIRST_ROW] + i
            dead[to] = load64(row[DEAD] + 8 * i)
            begin = _offset(row[KEYS], i)
            length = _offset(row[KEYS], i + 1) - begin
            _copy_bytes(row[KEY_BYTES] + begin, key_base + keys[to], length)
            keys[to + 1] = keys[to] + length
            begin = _offset(row[PAYLOADS], i)
            length = _offset(row[PAYLOADS], i + 1) - begin
            _copy_bytes(row[PAYLOAD_BYTES] + begin, payload_base + payloads[to], length)
            payloads[to + 1] = payloads[to] + length
            to += 1


def rewrite(chunks: Sequence[ArrowRows], table: Words, limit: int, low: int) -> tuple[ArrowRows, Seqs] | None:
    """The rows of some chunks at or above low that were not collected below limit; None if Arrow has to do it.

    ``table`` has the first number, the count and the addresses of numbers and marks of each.
    """
    parts = np.zeros((len(chunks), WIDTH), np.int64)
    parts[:, : DEAD + 1] = table
    for at, rows in enumerate(chunks):
        columns = None if isinstance(rows, SmallRows) else _columns(rows)
        if columns is None:
            return None
        parts[at, KEYS:KEPT] = *_addresses(columns[0]), *_addresses(columns[1])
    places = np.empty(int(parts[:, COUNT].sum()) + 1, np.int64)
    sizes = np.zeros(2, np.int64)
    count = _left(parts, limit, low, places, sizes)
    if sizes.max() > np.iinfo(np.int32).max:
        return None
    seqs, dead = np.empty(count, np.int64), np.empty(count, np.int64)
    offsets = [np.empty(count + 1, np.int32) for _ in sizes]
    values = [np.empty(size, np.uint8) for size in sizes.tolist()]
    _gather(parts, places, seqs, dead, offsets[0], values[0], offsets[1], values[1])
    origins: list[Origin] = []
    begin = 0
    for rows, kept in zip(chunks, parts[:, KEPT].tolist(), strict=True):
        origins += surviving_origins(rows.origins, seqs[begin : begin + kept])
        begin += kept
    return ArrowRows.numbered(seqs, _batch(count, offsets, values), merged_origins(origins)), dead


def _columns(rows: ArrowRows) -> tuple[pa.Array, pa.Array] | None:
    """Keys and payloads of rows that have these, each, and nothing else."""
    if not rows.plain:
        return None
    kind, key, payload, before = rows.batch.columns
    if before.null_count < len(before) or key.null_count or payload.null_count:
        return None
    kinds = np.frombuffer(kind.buffers()[1], np.uint8)[kind.offset : kind.offset + len(kind)]
    return None if kinds.any() else (key, payload)


def _addresses(column: pa.Array) -> tuple[int, int]:
    _, offsets, values = column.buffers()
    return offsets.address + 4 * column.offset, 0 if values is None else values.address


def _batch(count: int, offsets: list[Any], values: list[Any]) -> pa.RecordBatch:
    columns = [
        pa.Array.from_buffers(BYTES, count, [None, pa.py_buffer(its), pa.py_buffer(data)], 0)
        for its, data in zip(offsets, values, strict=True)
    ]
    return pa.RecordBatch.from_arrays([data_kinds(count), *columns, no_befores(count)], schema=ROW_SCHEMA)
