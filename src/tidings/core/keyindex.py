"""The key index: for each key the number of its last row, so that a row finds the one it collects (A1.44).

`replace` takes a batch of keys and their numbers in order and returns for each the number it replaces, or -1; a key
that comes twice in the batch replaces within it. Equality is that of the key bytes: a hash never decides what is
collected. A null key takes no part.

Two representations give the same answers: a dict while there are few keys (simulations hold thousands of histories
and must not pay for a compiler), and `keytable`'s open-addressing table, compiled by numba, once there are many.
Where numba is not installed the dict goes on growing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidings.core.hashing import Seqs

if TYPE_CHECKING:
    from tidings.core.keytable import Keys, KeyTable

DICT_LIMIT = 8192  # ours, because up to here a dict needs less than a millisecond per thousand rows and no compiler
TABLE_LIMIT = 512  # ours: likewise in a process that has compiled it anyway; a dict takes 1.5 us a row
DICT_ENTRY_BYTES = 150  # ours: dict slot, bytes object of ten and integer, on 64-bit CPython


class _Compiled:
    limit = DICT_LIMIT


def prepare() -> None:
    """For processes that serve: compile now, and use the compiled table for all but the smallest indexes."""
    if _can_compile():
        index = KeyIndex(dict_limit=0)
        index.restore(keys := pa.array([b"key"], pa.binary()), index.replace(keys, np.ones(1, np.int64)))
        index.replace_few([b"key"], 2)
        _Compiled.limit = TABLE_LIMIT


class KeyIndex:
    """The last number of each key."""

    def __init__(self, seed: int = 0, dict_limit: int = DICT_LIMIT) -> None:
        self._seed = seed
        self._dict_limit = dict_limit
        self._small: dict[bytes, int] = {}
        self._table: KeyTable | None = None

    def __len__(self) -> int:
        return len(self._small) if self._table is None else len(self._table)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return len(self._small) * DICT_ENTRY_BYTES if self._table is None else self._table.nbytes

    @property
    def compiled(self) -> bool:
        """Whether the numba table is in use."""
        return self._table is not None

    def replace(self, keys: pa.Array, seqs: Seqs) -> Seqs:
        """Enter keys with their ascending numbers; the number each one replaces, or -1."""
        if self._table is None and self._is_large(len(keys)):
            self._compile()
        if self._table is not None:
            return self._table.replace(keys, seqs)
        return np.array(self._replace_small(keys.to_pylist(), seqs.tolist()), dtype=np.int64)

    def replace_few(self, keys: list[bytes | None], first: int) -> list[int]:
        """`replace` for a few keys that are still a list, numbered from ``first`` on."""
        if self._table is None and self._is_large(len(keys)):
            self._compile()
        if self._table is not None:
            return self._table.replace_few(keys, first)
        return self._replace_small(keys, range(first, first + len(keys)))

    def _replace_small(self, keys: Iterable[bytes | None], seqs: Iterable[int]) -> list[int]:
        small = self._small
        get: Callable[[bytes, int], int] = small.get
        previous: list[int] = []
        for key, seq in zip(keys, seqs, strict=True):
            if key is None:
                previous.append(-1)
            else:
                previous.append(get(key, -1))
                small[key] = seq
        return previous

    def checked(self, keys: pa.Array) -> Keys | None:
        """Keys for `enter`; None if there are too few for the compiled table. `BadInput` for what it cannot follow."""
        if self._table is None and self._is_large(len(keys)):
            self._compile()
        if self._table is None:
            return None
        from tidings.core.keytable import buffers

        return buffers(keys)

    def enter(self, keys: Keys, first: int, table: Seqs, low: int) -> tuple[int, int]:
        """`replace` and `mark` in one, for the dense rows of the newest chunk of a table."""
        assert self._table is not None
        return self._table.enter(keys, first, table, low)

    def restore(self, keys: pa.Array, previous: Seqs) -> None:
        """Undo the `replace` that returned these numbers; nothing may have happened in between."""
        if self._table is not None:
            self._table.restore(keys, previous)
            return
        for key, seq in zip(reversed(keys.to_pylist()), reversed(previous.tolist()), strict=True):
            if key is not None:
                if seq < 0:
                    del self._small[key]
                else:
                    self._small[key] = seq

    def mark(self, table: Seqs, numbers: Seqs, previous: Seqs, low: int) -> tuple[int, int]:
        """Run the compiled kernel that marks replaced rows in the chunks a table describes."""
        from tidings.core.keytable import mark

        return mark(table, numbers, previous, low)

    def forget(self, low: int) -> None:
        """Drop the keys whose last number is below low: something other than their key has collected them."""
        if self._table is not None:
            self._table.forget(low)
        else:
            self._small = {key: seq for key, seq in self._small.items() if seq >= low}

    def _is_large(self, more: int) -> bool:
        limit = min(self._dict_limit, _Compiled.limit)
        return len(self._small) + more > limit and _can_compile()

    def _compile(self) -> None:
        from tidings.core.keytable import KeyTable

        table = KeyTable(self._seed, max(len(self._small), 1))
        if self._small:
            keys = pa.array(list(self._small), pa.binary())
            table.replace(keys, np.fromiter(self._small.values(), np.int64, len(self._small)))
        self._table, self._small = table, {}


@cache
def _can_compile() -> bool:
    return find_spec("numba") is not None
