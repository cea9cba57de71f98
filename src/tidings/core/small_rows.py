"""A few data rows that are still Python lists: most batches of one event never need to become columns.

Building Arrow columns costs some 30 us however few rows there are, more than everything else that happens to a single
event. Numbering, indexing, sending, storing and unpacking a few rows work on the lists. The columns are made when they
are first asked for, and then kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidings.core.ids import FIRST
from tidings.core.rows import ORIGIN_BYTES, ArrowRows, Origin, Rows, data_rows, merged_origins, narrowed_origins


class SmallRows(ArrowRows):
    """Dense data rows without attributes. ``keys`` is None where no row has one; nobody may change the lists."""

    __slots__ = ("_batch", "keys", "payloads")

    def __init__(
        self,
        keys: list[bytes | None] | None,
        payloads: list[bytes | None],
        first: int = FIRST,
        origins: tuple[Origin, ...] = (),
    ) -> None:
        self.keys = None if keys is None or keys.count(None) == len(keys) else keys
        self.payloads = payloads
        self.count = len(payloads)
        self.first = first
        self.origins = origins
        self.seqs = None
        self.wire = None
        self._batch: pa.RecordBatch | None = None
        self._content = None
        self._nbytes = self._hash_sum = -1

    @property
    def batch(self) -> pa.RecordBatch:
        """The columns, made when they are first asked for."""
        if self._batch is None:
            self._batch = data_rows(self.first, self.keys, self.payloads).batch
        return self._batch

    @property
    def plain(self) -> bool:
        return True

    @property
    def nbytes(self) -> int:
        """What Arrow would say of the columns in 20 us: by itself for rows with keys and payloads."""
        if self._nbytes < 0:
            keys, payloads = self.keys, self.payloads
            count = len(payloads)
            if keys is None or None in keys or None in payloads:
                self.measured(self.batch.nbytes)
            else:
                values = len(b"".join(keys)) + len(b"".join(payloads))  # type: ignore[arg-type]
                self._nbytes = 17 * count + (count + 7) // 8 + values + ORIGIN_BYTES * len(self.origins)
        return self._nbytes

    def renumbered(self, lo: int, origins: tuple[Origin, ...]) -> SmallRows:
        """The same rows as a dense run from ``lo`` on; what is known of them stays known."""
        rows = SmallRows(self.keys, self.payloads, lo, origins)
        rows._batch = self._batch
        rows._content = self._content
        rows.wire = self.wire
        if self._nbytes >= 0:
            rows._nbytes = self._nbytes + ORIGIN_BYTES * (len(origins) - len(self.origins))
        return rows

    def slice(self, lo: int, hi: int) -> ArrowRows:
        """The rows with numbers in [lo, hi)."""
        first = self.first
        start, stop = max(lo - first, 0), min(hi - first, len(self.payloads))
        if stop - start == len(self.payloads):
            return self
        if self._batch is not None or start >= stop:
            return super().slice(lo, hi)
        keys = None if self.keys is None else self.keys[start:stop]
        origins = narrowed_origins(self.origins, first + start, first + stop)
        return SmallRows(keys, self.payloads[start:stop], first + start, origins)

    def concat(self, later: Sequence[Rows]) -> Rows:
        """These rows and, in ascending order, later ones: columns from now on, made in one go."""
        parts = [part for part in (self, *later) if part.count]
        listed = [part for part in parts if isinstance(part, SmallRows)]
        ends = [part.first + part.count for part in listed]
        dense = all([end == part.first for end, part in zip(ends, listed[1:], strict=False)])
        if len(listed) < 2 or len(listed) < len(parts) or not dense:
            return super().concat(later)
        return listed_together(listed)


def listed_together(parts: Sequence[SmallRows]) -> ArrowRows:
    """The columns of neighbours."""
    keys: list[bytes | None] = []
    payloads: list[bytes | None] = []
    for part in parts:
        keys += part.keys or [None] * part.count
        payloads += part.payloads
    rows = data_rows(parts[0].first, keys, payloads)
    rows.origins = merged_origins([origin for part in parts for origin in part.origins])
    return rows
