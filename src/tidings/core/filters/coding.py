"""The columns of a batch as values that the filter index compares: each column once, however many filters name it.

Numbers and times become 64-bit integers with Spark's order (`normal.code`), null below all. Texts stay texts: there
`distinct` looks at each of them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidings.core.filters.kernels import Frame, run
from tidings.core.filters.normal import BEFORE, FIRST, NOT_A_NUMBER, NULL, NULL_TEXT, TEXTS, TOP, Cut, Term
from tidings.core.filters.types import AttrType

Codes: TypeAlias = NDArray[np.int64]

FEW = 64  # rows; ours, because up to here Python is through with them before Arrow has made a dictionary
_STORED = {AttrType.INT: np.int32, AttrType.DATE: np.int32, AttrType.DOUBLE: np.float64}


class CodedRows:
    """Rows whose columns are coded when they are first asked for, by the number of a term."""

    def __init__(self, frame: Frame, terms: Sequence[Term]) -> None:
        self.frame = frame
        self.count = frame.count
        self._terms = terms
        self._numbers: dict[int, Codes] = {}
        self._listed: dict[int, list[bytes | None]] = {}

    def is_text(self, term: int) -> bool:
        """Whether a term is texts, not numbers."""
        return self._terms[term].kind in TEXTS

    def numbers(self, term: int) -> Codes:
        """The values of a term of numbers."""
        found = self._numbers.get(term)
        if found is None:
            kind = self._terms[term].kind
            assert kind is not None
            found = self._numbers[term] = number_codes(run(self._terms[term], self.frame), kind)
        return found

    def texts(self, term: int) -> list[bytes | None]:
        """The values of a term of texts."""
        found = self._listed.get(term)
        if found is None:
            found = self._listed[term] = _binary(run(self._terms[term], self.frame)).to_pylist()
        return found

    def distinct(self, term: int) -> tuple[list[bytes | None], NDArray[Any] | None]:
        """Texts that occur, and for each row which one (-1: null); None if it is the one at the row's place."""
        if self.count <= FEW:
            return self.texts(term), None
        encoded = _binary(run(self._terms[term], self.frame)).dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.fill_null(-1).to_numpy()

    def keys(self, term: int) -> Sequence[Any]:
        """Values to compare for equality."""
        return self.texts(term) if self.is_text(term) else self._listed_numbers(term)

    def _listed_numbers(self, term: int) -> list[int]:
        found: list[int] = self.numbers(term).tolist()
        return found

    def cuts(self, term: int) -> Sequence[Cut]:
        """Values to compare with cuts: a value is in an interval if it is at or above the lower, below the upper."""
        if not self.is_text(term):
            return self._listed_numbers(term)
        return [NULL_TEXT if text is None else (1, text, BEFORE) for text in self.texts(term)]


def number_codes(array: pa.Array, kind: AttrType) -> Codes:
    """`normal.code` of each value; the two ends of the 64-bit integers count as their neighbours."""
    validity, data = array.buffers()
    count, offset = len(array), array.offset
    if array.null_count == count:
        return np.full(count, NULL)
    codes: Codes
    if kind is AttrType.BOOLEAN:
        codes = _bits(data, offset, count).astype(np.int64)
    else:
        stored = np.dtype(_STORED.get(kind, np.int64))
        values = np.frombuffer(data, stored, count, offset * stored.itemsize)
        if kind is AttrType.DOUBLE:
            codes = (values + 0.0).view(np.int64)
            np.bitwise_xor(codes, TOP, out=codes, where=codes < 0)
            codes[np.isnan(values)] = NOT_A_NUMBER
        elif stored.itemsize == 8:
            codes = np.clip(values, FIRST, TOP - 1)
        else:
            codes = values.astype(np.int64)
    if array.null_count:
        codes[_bits(validity, offset, count) == 0] = NULL
    return codes


def _bits(buffer: pa.Buffer, offset: int, count: int) -> NDArray[np.uint8]:
    first = offset // 8
    packed = np.frombuffer(buffer, np.uint8)[first : (offset + count + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[offset - 8 * first :][:count]


def _binary(array: pa.Array) -> pa.Array:
    return array if pa.types.is_binary(array.type) else array.view(pa.binary())
