"""What has been run: results as Parquet files in a directory, each row under the hash of the code that made it.

A part is written under another name and renamed, so a reader sees it whole or not at all, and whoever is killed loses
what came in during the last seconds, not the rest. Rows of older code stay: a ledger is a history.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tidings
from tidings.core.errors import TidingsError

FLUSH = 5.0  # seconds that a kill may cost


class Ledger:
    """A directory of parts. ``schema``: the columns, or None to take them as they come."""

    def __init__(self, folder: Path, schema: pa.Schema | None = None) -> None:
        self.folder = folder
        self.schema = schema
        self._rows: list[Mapping[str, Any]] = []
        self._flushed = time.monotonic()

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep some rows; they are on disk after `flush`, or a few seconds later with the next `add`."""
        self._rows += rows
        if time.monotonic() - self._flushed >= FLUSH:
            self.flush()

    def flush(self) -> None:
        """Write a part of what has come in."""
        self._flushed = time.monotonic()
        if not self._rows:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        rows, self._rows = self._rows, []
        columns = dict.fromkeys(name for row in rows for name in row)  # Arrow itself looks at the first row only
        table = pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows], schema=self.schema)
        part = self.folder / f"part-{time.time_ns():020d}-{os.getpid()}.parquet"
        hidden = part.with_name(f".{part.name}")
        pq.write_table(table, hidden)
        hidden.rename(part)

    def table(self) -> pa.Table:
        """Every row ever written, in the order of writing."""
        parts = {path: _read(path) for path in sorted(self.folder.glob("part-*.parquet"))}
        _refuse_odd(parts, self.schema or pa.schema([]))
        if parts:
            return pa.concat_tables(parts.values(), promote_options="permissive")
        return self.schema.empty_table() if self.schema else pa.table({})


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def _refuse_odd(parts: Mapping[Path, pa.Table], schema: pa.Schema) -> None:
    """Name the part that does not fit the others, a number where they have text, say: the rarer columns are wrong."""
    common = Counter(part.schema for part in parts.values())
    for path in sorted(parts, key=lambda path: -common[parts[path].schema]):
        try:
            schema = pa.unify_schemas([schema, parts[path].schema], promote_options="permissive")
        except pa.ArrowException as error:
            raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> TidingsError:
    return TidingsError(f"{path} is damaged ({error}); move it away, and what it held is run again")


@cache
def commit() -> str:
    """The commit of the checkout this code lies in, with a + if it was changed since; else the version."""
    root = Path(tidings.__file__).parent

    def git(*words: str) -> str:
        asked = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=30)
        return asked.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return f"v{version('tidings')}"


def digest(tables: Sequence[pa.Table]) -> str:
    """A hash of what is in some tables, whatever chunks they lie in."""
    hashed = hashlib.blake2b(digest_size=16)
    for table in tables:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        hashed.update(sink.getvalue())
    return hashed.hexdigest()
