"""Rows of a span: columns, never Python objects, in two kinds behind one interface.

`ArrowRows` is a record batch with ascending sequence numbers (implicit while dense) and, per published batch, an
`Origin`. `CountedRows` says only how many rows of which size there are: a run of numbers, which is all that
"before n" collection can leave; simulations of millions of events per second carry those.

Both are immutable and cheap to slice. What is costly (hashes, sizes) is computed once, when first asked for, and
sliced along. Origins are kept tight: each begins and ends with a surviving row, and pieces of one published batch
that meet again become one origin, so cutting rows up and concatenating them gives the same value back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct as Packer
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidings.core.errors import BadInput
from tidings.core.hashing import WORD, Hashes, Seqs, content_hashes, counted_sum, hash_sum, mix, row_hashes
from tidings.core.ids import RegionId

DATA = 0
GC = 1
ROW_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("kind", pa.uint8(), nullable=False),  # DATA or GC
        pa.field("key", pa.binary()),
        pa.field("payload", pa.binary()),
        pa.field("before", pa.int64()),  # of a GC event: collects every row below this number
    ]
)
"""The columns every stream has; its declared attributes follow."""

WHERE = "where"
"""A column that only batches with predicate events have: of such an event, what it collects (`Predicate.text`)."""

ORIGIN_BYTES = 48  # ours: what an origin costs on the wire, names shared through the connection's table
Mask: TypeAlias = NDArray[np.bool_]

_ARROW_DIGEST = Packer("<qQ")
_COUNTED_DIGEST = Packer("<qqqQ")


class Rows(Protocol):
    """What protocols may ask of rows, whichever kind they are."""

    @property
    def count(self) -> int:
        """How many rows there are."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        ...

    @property
    def numbers(self) -> Seqs:
        """Sequence numbers, ascending."""
        ...

    @property
    def content(self) -> Hashes:
        """Content hash of each row."""
        ...

    @property
    def hash_sum(self) -> int:
        """Sum of the row hashes, mod 2**64."""
        ...

    @property
    def digest(self) -> bytes:
        """Equal rows have equal digests, in every run and process."""
        ...

    def slice(self, lo: int, hi: int) -> Rows:
        """The rows with numbers in [lo, hi)."""
        ...

    def take(self, keep: Mask | Seqs) -> Rows:
        """The rows a mask keeps, or those at ascending positions."""
        ...

    def is_subset(self, other: Rows) -> bool:
        """Whether each row is, number and content, a row of the other."""
        ...

    def same(self, other: Rows) -> bool:
        """Whether both have the same rows; origins are not compared."""
        ...

    def meets(self, later: Rows) -> bool:
        """Whether rows of the range that follows can be appended."""
        ...

    def concat(self, later: Sequence[Rows]) -> Rows:
        """These rows and, in ascending order, later ones."""
        ...


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Where the rows of one published batch come from. Row ``lo`` is number ``first`` of the publisher's session."""

    lo: int
    hi: int
    publisher: str = ""
    session: int = 0
    first: int = 0
    tick: int = 0
    at: float = 0.0
    region: RegionId = ""

    def narrow(self, lo: int, hi: int) -> Origin:
        """The part inside [lo, hi); the publisher's number moves along."""
        if lo <= self.lo and hi >= self.hi:
            return self
        start = max(lo, self.lo)
        return Origin(
            start,
            min(hi, self.hi),
            self.publisher,
            self.session,
            self.first + start - self.lo,
            self.tick,
            self.at,
            self.region,
        )

    def continued_by(self, later: Origin) -> bool:
        """Whether both are parts of one published batch."""
        return (
            self.first - self.lo == later.first - later.lo
            and self.session == later.session
            and self.tick == later.tick
            and self.at == later.at
            and self.publisher == later.publisher
            and self.region == later.region
        )


class ArrowRows:
    """Rows as an Arrow record batch. ``seqs`` is None while the rows are dense from ``first`` on."""

    __slots__ = ("_content", "_hash_sum", "_nbytes", "batch", "count", "first", "origins", "seqs", "wire")

    def __init__(
        self,
        seqs: Seqs | None,
        batch: pa.RecordBatch,
        origins: tuple[Origin, ...] = (),
        first: int = 0,
        content: Hashes | None = None,
    ) -> None:
        self.seqs = seqs
        self.batch = batch
        self.count: int = batch.num_rows
        self.origins = origins
        self.first = first
        self._content = content
        self._nbytes = -1
        self._hash_sum = -1
        self.wire: Any = None  # for core/wire.py: these rows as they came or went, so that they are encoded once

    @classmethod
    def dense(cls, lo: int, batch: pa.RecordBatch, origins: tuple[Origin, ...] = ()) -> ArrowRows:
        """Rows numbered lo, lo + 1, ..."""
        return cls(None, batch, origins, lo)

    @classmethod
    def numbered(cls, seqs: Seqs, batch: pa.RecordBatch, origins: tuple[Origin, ...]) -> ArrowRows:
        """Rows with these numbers, which ascend."""
        return _rows(seqs, batch, origins, None)

    def renumbered(self, lo: int, origins: tuple[Origin, ...]) -> ArrowRows:
        """The same rows as a dense run from ``lo`` on; what is known of their content stays known."""
        rows = ArrowRows(None, self.batch, origins, lo, self._content)
        if self.seqs is None:
            rows.wire = self.wire
            if self._nbytes >= 0:
                rows._nbytes = self._nbytes + ORIGIN_BYTES * (len(origins) - len(self.origins))
        return rows

    @property
    def plain(self) -> bool:
        """Whether there are no columns but those that every stream has."""
        return self.batch.schema.equals(ROW_SCHEMA)  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Bytes on the wire: columns, explicit numbers, origins."""
        if self._nbytes < 0:
            self.measured(self.batch.nbytes)
        return self._nbytes

    def measured(self, columns: int | None) -> None:
        """Somebody knows already how many bytes the columns have, as Arrow counts."""
        if columns is not None:
            numbers = 0 if self.seqs is None else 8 * len(self.seqs)
            self._nbytes = columns + numbers + ORIGIN_BYTES * len(self.origins)

    @property
    def numbers(self) -> Seqs:
        """Sequence numbers, ascending."""
        if self.seqs is None:
            return np.arange(self.first, self.first + self.count, dtype=np.int64)
        return self.seqs

    @property
    def content(self) -> Hashes:
        """Content hash of each row."""
        if self._content is None:
            self._content = content_hashes(self.batch)
        return self._content

    @property
    def hash_sum(self) -> int:
        """Sum of the row hashes, mod 2**64."""
        if self._hash_sum < 0:
            self._hash_sum = hash_sum(row_hashes(self.numbers, self.content))
        return self._hash_sum

    @property
    def digest(self) -> bytes:
        """Equal rows have equal digests, in every run and process."""
        return _ARROW_DIGEST.pack(self.count, self.hash_sum) if self.count else b""

    def slice(self, lo: int, hi: int) -> ArrowRows:
        """The rows with numbers in [lo, hi)."""
        count = self.count
        if self.seqs is None:
            start = lo - self.first if lo > self.first else 0
            stop = min(hi - self.first, count)
        else:
            start, stop = self.seqs.searchsorted((lo, hi)).tolist()
        if start == 0 and stop == count:
            return self
        if start >= stop:
            return ArrowRows(None, self.batch.slice(0, 0), (), 0)
        batch = _tidied(self.batch.slice(start, stop - start))
        content = None if self._content is None else self._content[start:stop]
        if self.seqs is None:
            first, end, seqs = self.first + start, self.first + stop, None
        else:
            seqs = self.seqs[start:stop]
            first, end = seqs.item(0), seqs.item(-1) + 1
            if end - first == stop - start:
                seqs = None
        return ArrowRows(seqs, batch, narrowed_origins(self.origins, first, end), first, content)

    def take(self, keep: Mask | Seqs) -> ArrowRows:
        """The rows a mask keeps, or those at ascending positions."""
        at = np.flatnonzero(keep) if keep.dtype == np.bool_ else keep
        if len(at) == self.count:
            return self
        seqs = self.numbers[at]
        content = None if self._content is None else self._content[at]
        return _rows(seqs, _tidied(self.batch.take(pa.array(at))), surviving_origins(self.origins, seqs), content)

    def is_subset(self, other: Rows) -> bool:
        """Whether each row is, number and content, a row of the other."""
        if self.count == 0:
            return True
        if not isinstance(other, ArrowRows) or self.count > other.count:
            return False
        if self.count == other.count:
            return self.same(other)
        mine, theirs = self.numbers, other.numbers
        at = theirs.searchsorted(mine)
        if at[-1] >= len(theirs) or not np.array_equal(theirs[at], mine):
            return False
        return np.array_equal(other.content[at], self.content)

    def same(self, other: Rows) -> bool:
        """Whether both have the same rows."""
        if self is other or self.count == other.count == 0:
            return True
        if not isinstance(other, ArrowRows) or self.count != other.count:
            return False
        if self.seqs is None and other.seqs is None:
            if self.first != other.first:
                return False
        elif not np.array_equal(self.numbers, other.numbers):
            return False
        return self.batch is other.batch or np.array_equal(self.content, other.content)

    def meets(self, later: Rows) -> bool:
        """Whether rows of the range that follows can be appended."""
        return self.count == 0 or later.count == 0 or isinstance(later, ArrowRows)

    def concat(self, later: Sequence[Rows]) -> Rows:
        """These rows and, in ascending order, later ones."""
        parts = [part for part in (self, *later) if part.count]
        if len(parts) < 2:
            return parts[0] if parts else self
        arrows = [part for part in parts if isinstance(part, ArrowRows)]
        if len(arrows) < len(parts):
            raise BadInput("counted and Arrow rows cannot be concatenated; use one kind per stream")
        origins = merged_origins([origin for part in arrows for origin in part.origins])
        content = None
        if all(part._content is not None for part in arrows):
            content = np.concatenate([part.content for part in arrows])
        seqs = np.concatenate([part.numbers for part in arrows])
        return _rows(seqs, _concat_batches([part.batch for part in arrows]), origins, content)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrowRows):
            return isinstance(other, CountedRows) and self.count == other.count == 0
        return self.same(other) and self.origins == other.origins

    __hash__ = None  # type: ignore[assignment]


class CountedRows(msgspec.Struct, frozen=True, gc=False):
    """Rows [first, hi), ``size`` bytes each. ``collectors`` are the (number, n) of the "before n" events among them."""

    first: int
    hi: int
    size: int
    collectors: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        return self.hi - self.first

    @property
    def nbytes(self) -> int:
        return (self.hi - self.first) * self.size

    @property
    def numbers(self) -> Seqs:
        """Sequence numbers, ascending."""
        return np.arange(self.first, self.hi, dtype=np.int64)

    @property
    def content(self) -> Hashes:
        """Content hash of each row: its size, or what it collects."""
        out = np.full(self.hi - self.first, self.size, dtype=np.uint64)
        for seq, before in self.collectors:
            out[seq - self.first] ^= np.uint64(counted_sum(before, before + 1, self.size))
        return mix(out)

    @property
    def hash_sum(self) -> int:
        """Sum of the row hashes, mod 2**64, in time that does not depend on the number of rows."""
        total = counted_sum(self.first, self.hi, self.size)
        if self.collectors:
            pairs = np.array(self.collectors, dtype=np.int64)
            total += hash_sum(row_hashes(pairs[:, 0].copy(), pairs[:, 1].astype(np.uint64)))
        return total & WORD

    @property
    def digest(self) -> bytes:
        """Equal rows have equal digests, in every run and process."""
        if self.first == self.hi:
            return b""
        return _COUNTED_DIGEST.pack(self.first, self.hi, self.size, self.hash_sum if self.collectors else 0)

    def slice(self, lo: int, hi: int) -> CountedRows:
        """The rows with numbers in [lo, hi)."""
        first, end = self.first, self.hi
        if lo <= first and hi >= end:
            return self
        if lo > first:
            first = lo
        if hi < end:
            end = hi
        if first >= end:
            return NO_ROWS
        if not self.collectors:
            return CountedRows(first, end, self.size)
        inside = tuple([pair for pair in self.collectors if first <= pair[0] < end])
        return CountedRows(first, end, self.size, inside)

    def take(self, keep: Mask | Seqs) -> CountedRows:
        """The rows a mask keeps, or those at ascending positions; they must be one run."""
        at = np.flatnonzero(keep) if keep.dtype == np.bool_ else keep
        if not len(at):
            return NO_ROWS
        start, stop = int(at[0]), int(at[-1]) + 1
        if stop - start != len(at):
            raise BadInput("counted rows can only keep one run of numbers; use Arrow rows for filters and keys")
        return self.slice(self.first + start, self.first + stop)

    def is_subset(self, other: Rows) -> bool:
        """Whether each row is, number and content, a row of the other."""
        if self.first == self.hi:
            return True
        if not isinstance(other, CountedRows) or self.first < other.first or self.hi > other.hi:
            return False
        return self == other.slice(self.first, self.hi)

    def same(self, other: Rows) -> bool:
        """Whether both have the same rows."""
        return self == other or self.count == other.count == 0

    def meets(self, later: Rows) -> bool:
        """Whether rows of the range that follows can be appended: the result must be one run of one size."""
        if self.first == self.hi or later.count == 0:
            return True
        return isinstance(later, CountedRows) and self.hi == later.first and self.size == later.size

    def concat(self, later: Sequence[Rows]) -> Rows:
        """These rows and, in ascending order, later ones."""
        parts = [part for part in (self, *later) if part.count]
        if not parts:
            return self
        whole, *rest = parts
        if not isinstance(whole, CountedRows):
            return whole.concat(rest)
        for part in rest:
            if not (isinstance(part, CountedRows) and whole.meets(part)):
                raise BadInput(f"counted rows below {self.hi} and later ones do not form one run of one size")
            whole = CountedRows(whole.first, part.hi, whole.size, whole.collectors + part.collectors)
        return whole


NO_ROWS = CountedRows(0, 0, 0)
"""What is left when nothing is; it goes with rows of either kind."""


def data_rows(
    lo: int,
    keys: Sequence[bytes | None] | None,
    payloads: Sequence[bytes | None],
    origin: Origin | None = None,
    attributes: Mapping[str, pa.Array] | None = None,
) -> ArrowRows:
    """Data events numbered from lo on."""
    count = len(payloads)
    columns = {
        "kind": data_kinds(count),
        "key": pa.nulls(count, pa.binary()) if keys is None else pa.array(keys, pa.binary()),
        "payload": pa.array(payloads, pa.binary()),
        "before": no_befores(count),
    }
    return _from_columns(lo, columns, origin, attributes or {})


def before_rows(lo: int, befores: Sequence[int], origin: Origin | None = None) -> ArrowRows:
    """Collecting events "before n" numbered from lo on; they have no key."""
    count = len(befores)
    columns = {
        "kind": pa.array(np.full(count, GC, dtype=np.uint8)),
        "key": pa.nulls(count, pa.binary()),
        "payload": pa.array([b""] * count, pa.binary()),
        "before": pa.array(befores, pa.int64()),
    }
    return _from_columns(lo, columns, origin, {})


def where_rows(lo: int, wheres: Sequence[str], origin: Origin | None = None) -> ArrowRows:
    """Predicate events numbered from lo on, given as `Predicate.text`; they have no key."""
    count = len(wheres)
    columns = {
        "kind": pa.array(np.full(count, GC, dtype=np.uint8)),
        "key": pa.nulls(count, pa.binary()),
        "payload": pa.array([b""] * count, pa.binary()),
        "before": pa.nulls(count, pa.int64()),
    }
    return _from_columns(lo, columns, origin, {WHERE: pa.array(wheres, pa.string())})


def _from_columns(
    lo: int, columns: dict[str, pa.Array], origin: Origin | None, attributes: Mapping[str, pa.Array]
) -> ArrowRows:
    schema = ROW_SCHEMA
    for name, values in attributes.items():
        schema = schema.append(pa.field(name, values.type))
    batch = pa.RecordBatch.from_arrays([*columns.values(), *attributes.values()], schema=schema)
    return ArrowRows.dense(lo, batch, () if origin is None else (origin,))


_SHARED = pa.py_buffer(bytes(1 << 19))  # ours: int64 nulls of 64k rows; most batches have kinds and befores to share it


def data_kinds(count: int) -> pa.Array:
    """The kinds of rows that are all data."""
    return _shared_kinds(count) if count <= _SHARED.size else pa.array(np.zeros(count, dtype=np.uint8))


def no_befores(count: int) -> pa.Array:
    """The column ``before`` of rows that are all data."""
    return _shared_nulls(count) if 8 * count <= _SHARED.size else pa.nulls(count, pa.int64())


@lru_cache(maxsize=1024)  # to make one takes 2 us, as much as much else that happens to a single event
def _shared_kinds(count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.uint8(), count, [None, _SHARED.slice(0, count)], 0)


@lru_cache(maxsize=1024)
def _shared_nulls(count: int) -> pa.Array:
    buffers = [_SHARED.slice(0, (count + 7) >> 3), _SHARED.slice(0, 8 * count)]
    return pa.Array.from_buffers(pa.int64(), count, buffers, count)


def _rows(seqs: Seqs, batch: pa.RecordBatch, origins: tuple[Origin, ...], content: Hashes | None) -> ArrowRows:
    """Rows whose numbers are forgotten again where they turn out dense."""
    if not len(seqs):
        return ArrowRows(None, batch, (), 0)
    first = seqs.item(0)
    dense = seqs.item(-1) - first + 1 == len(seqs)
    return ArrowRows(None if dense else seqs, batch, origins, first, content)


def _tidied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without the column for predicate events if none of them is left."""
    if batch.num_columns > len(ROW_SCHEMA):
        at = batch.schema.get_field_index(WHERE)
        if at >= 0 and batch.column(at).null_count == batch.num_rows:
            return batch.remove_column(at)
    return batch


def _concat_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch; attributes that some of them lack are null there."""
    schema = batches[0].schema
    if all(batch.schema.equals(schema) for batch in batches[1:]):
        return pa.concat_batches(batches)
    tables: list[Any] = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(tables, promote_options="default").combine_chunks().to_batches()[0]


def narrowed_origins(origins: tuple[Origin, ...], lo: int, hi: int) -> tuple[Origin, ...]:
    """Origins cut to [lo, hi), both of which are the ends of surviving rows."""
    if len(origins) == 1:
        return (origins[0].narrow(lo, hi),)
    return tuple([origin.narrow(lo, hi) for origin in origins if origin.lo < hi and origin.hi > lo])


def surviving_origins(origins: tuple[Origin, ...], seqs: Seqs) -> tuple[Origin, ...]:
    """Origins tightened to the rows that are left."""
    if not origins or not len(seqs):
        return ()
    ends = np.array([(origin.lo, origin.hi) for origin in origins])
    starts, stops = seqs.searchsorted(ends[:, 0]), seqs.searchsorted(ends[:, 1])
    there = starts < stops
    lows = seqs[np.where(there, starts, 0)].tolist()
    highs = seqs[np.where(there, stops - 1, 0)].tolist()
    parts = zip(origins, there.tolist(), lows, highs, strict=True)
    return tuple([origin.narrow(low, high + 1) for origin, left, low, high in parts if left])


def merged_origins(origins: list[Origin]) -> tuple[Origin, ...]:
    """Neighbouring pieces of one published batch become one origin again."""
    out: list[Origin] = []
    for origin in origins:
        if out and out[-1].continued_by(origin):
            last = out[-1]
            out[-1] = msgspec.structs.replace(last, hi=origin.hi)
        else:
            out.append(origin)
    return tuple(out)
