"""Hashes of rows, vectorised: what two nodes compare instead of payloads.

The content hash of a row is a sum (mod 2**64) over its non-null fields, each mixed with a salt of the field's
name. So null differs from empty, the order of columns does not matter, and an attribute that a stream gains later
changes no hash of the rows before it. A bytes field is cut into 8-byte words, the last one masked; the words at
one place are gathered for all rows at once, through a view that has a word at every byte. A row hash mixes in the
sequence number, and a hash sum adds row hashes up: it is additive over disjoint ranges, so receipts add up too.

The mixer is the finaliser of splitmix64. It finds accidents and bugs, not adversaries.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidings.core.errors import BadInput

Hashes: TypeAlias = NDArray[np.uint64]
Seqs: TypeAlias = NDArray[np.int64]

WORD = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's increment: 2**64 / golden ratio
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's multipliers
_MIX2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
_TAIL = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)  # by bytes left in the value
_LOOPED = 8  # words of a value that are hashed place by place; ours, because most keys and payloads are shorter
_FEW = 8  # rows hashed one by one; ours, because up to here Python's integers beat numpy's calls (measured)
_BLOCK = 4096  # rows hashed at a time; ours, because temporaries that stay in cache halve the time (measured)
_COUNTED_A = 0xD1342543DE82EF95  # ours: any odd constants do, a counted row is only ever compared with its like
_COUNTED_B = 0xAF251AF3B0F025B5


def mix(words: Hashes) -> Hashes:
    """Scramble each word, one to one."""
    out = words ^ (words >> _S30)
    out *= _MIX1
    out ^= out >> _S27
    out *= _MIX2
    out ^= out >> _S31
    return out


_PLACES = mix(np.arange(_LOOPED, dtype=np.uint64) + _GOLDEN)
_SALTS: list[int] = mix(np.arange(64, dtype=np.uint64) + _GOLDEN).tolist()  # of so many places in one value
_PLAIN = {pa.binary(): 0, pa.string(): 0, pa.uint8(): 0xFF, pa.int32(): 0xFFFFFFFF, pa.int64(): WORD}  # their bits


def content_hashes(batch: pa.RecordBatch) -> Hashes:
    """One hash per row over its kind, key, payload, before and attributes."""
    if batch.num_rows > _BLOCK:
        blocks = range(0, batch.num_rows, _BLOCK)
        return np.concatenate([content_hashes(batch.slice(start, _BLOCK)) for start in blocks])
    if batch.num_rows <= _FEW and all([column.type in _PLAIN for column in batch.columns]):
        return _few_hashes(batch)
    total = np.zeros(batch.num_rows, dtype=np.uint64)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        nulls = column.null_count
        if nulls == len(column):
            continue
        words = mix(_column_words(field, column) ^ _salt(field.name))
        if nulls:
            words *= _validity(column)
        total += words
    return total


def _few_hashes(batch: pa.RecordBatch) -> Hashes:
    """The same hashes, row by row: a publisher's entry is one row in a batch of its own."""
    totals = [0] * batch.num_rows
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count < len(column):
            bits, salt = _PLAIN[column.type], int(_salt(name))
            for row, value in enumerate(column.to_pylist()):
                if value is not None:
                    totals[row] += _mix_one((value & bits if bits else _bytes_word(value)) ^ salt)
    return np.array([total & WORD for total in totals], dtype=np.uint64)


def _mix_one(word: int) -> int:
    """`mix` of one word."""
    word ^= word >> 30
    word = word * 0xBF58476D1CE4E5B9 & WORD
    word ^= word >> 27
    word = word * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


def _bytes_word(value: bytes | str) -> int:
    """`_bytes_words` of one value."""
    data = value.encode() if isinstance(value, str) else value
    words = np.frombuffer(data.ljust((len(data) + 7) & -8, b"\0"), dtype="<u8").tolist()
    places = _SALTS if len(words) <= len(_SALTS) else mix(np.arange(len(words), dtype=np.uint64) + _GOLDEN).tolist()
    total = len(data) * int(_GOLDEN)
    for word, place in zip(words, places, strict=False):
        total += _mix_one(word ^ place)
    return total & WORD


def row_hashes(seqs: Seqs, content: Hashes) -> Hashes:
    """The content hashes bound to their sequence numbers."""
    return mix(mix(seqs.view(np.uint64) * _GOLDEN) ^ content)


def hash_sum(rows: Hashes) -> int:
    """Row hashes added up, mod 2**64; 0 for no rows."""
    return int(rows.sum(dtype=np.uint64))


def counted_sum(lo: int, hi: int, size: int) -> int:
    """The hash sum of counted rows [lo, hi) of one size, in constant time: row s weighs A*s*s + B*(size + 1)."""
    squares = (hi - 1) * hi * (2 * hi - 1) // 6 - (lo - 1) * lo * (2 * lo - 1) // 6
    return (_COUNTED_A * squares + _COUNTED_B * (size + 1) * (hi - lo)) & WORD


@lru_cache(maxsize=4096)
def _salt(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"))


def _column_words(field: pa.Field, column: pa.Array) -> Hashes:
    """One word per row of a column, null rows arbitrary."""
    kind = column.type
    count, skip = len(column), column.offset
    if pa.types.is_boolean(kind):
        return np.asarray(column.fill_null(False), dtype=np.uint64)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return _bytes_words(_buffer(column, 1, np.int32)[skip : skip + count + 1], column.buffers()[2])
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return _bytes_words(_buffer(column, 1, np.int64)[skip : skip + count + 1], column.buffers()[2])
    if pa.types.is_primitive(kind) and kind.bit_width in (8, 16, 32, 64):
        return _buffer(column, 1, f"<u{kind.bit_width // 8}")[skip : skip + count].astype(np.uint64)
    raise BadInput(f"attribute {field.name!r}: no content hash for type {kind}; use a number, time, string or binary")


def _validity(column: pa.Array) -> NDArray[np.uint8]:
    """1 for a value, 0 for a null."""
    start, stop = column.offset, column.offset + len(column)
    bits = np.frombuffer(column.buffers()[0], dtype=np.uint8)[start >> 3 : (stop + 7) >> 3]
    return np.unpackbits(bits, bitorder="little")[start & 7 : (start & 7) + len(column)]


def _buffer(column: pa.Array, index: int, dtype: Any) -> NDArray[Any]:
    return np.frombuffer(column.buffers()[index], dtype=dtype)


def _bytes_words(offsets: NDArray[Any], data: Any) -> Hashes:
    """For each value its length plus the sum of its words, each mixed with its place in the value."""
    start, stop = int(offsets[0]), int(offsets[-1])
    begins = offsets[:-1].astype(np.int64) - start
    lengths = offsets[1:] - start - begins
    out = lengths.view(np.uint64) * _GOLDEN
    if start == stop:
        return out
    padded = np.zeros(stop - start + 8, dtype=np.uint8)  # so that the last word may be read past the end
    padded[: stop - start] = np.frombuffer(data, dtype=np.uint8, count=stop - start, offset=start)
    word_at: Hashes = np.ndarray((stop - start + 1,), dtype="<u8", buffer=padded, strides=(1,))
    shortest, longest = int(lengths.min()), int(lengths.max())
    for place in range(min((longest + 7) >> 3, _LOOPED)):
        left = lengths - 8 * place
        if shortest > 8 * place:
            out += _mixed_words(word_at, begins + 8 * place, left, _PLACES[place])
        else:
            live = (left > 0).nonzero()[0]
            out[live] += _mixed_words(word_at, begins[live] + 8 * place, left[live], _PLACES[place])
    if longest > 8 * _LOOPED:
        _add_long_words(out, word_at, begins, lengths)
    return out


def _add_long_words(out: Hashes, word_at: Hashes, begins: Seqs, lengths: Seqs) -> None:
    """Add the words after the first few of long values, all in one go, summed per value by a cumulative sum."""
    rows = np.flatnonzero(lengths > 8 * _LOOPED)
    per_row = ((lengths[rows] + 7) >> 3) - _LOOPED
    ends = np.cumsum(per_row)
    place = np.arange(int(ends[-1])) - np.repeat(ends - per_row, per_row) + _LOOPED
    row = np.repeat(rows, per_row)
    salts = mix(np.arange(int(per_row.max()) + _LOOPED, dtype=np.uint64) + _GOLDEN)
    sums = np.zeros(len(place) + 1, dtype=np.uint64)
    np.cumsum(_mixed_words(word_at, begins[row] + 8 * place, lengths[row] - 8 * place, salts[place]), out=sums[1:])
    out[rows] += sums[ends] - sums[ends - per_row]


def _mixed_words(word_at: Hashes, begins: Seqs, left: Seqs, salt: np.uint64 | Hashes) -> Hashes:
    """The words at some bytes, cut off where their values end."""
    words = word_at[begins]
    words &= _TAIL[np.minimum(left, 8)]
    words ^= salt
    return mix(words)
