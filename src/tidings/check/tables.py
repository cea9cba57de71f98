"""The trace of a run: four tables, as the simulator, a cluster or a lake writes them and the invariants read them.

- ``published``: one row per event, or per run of ``count`` counted events, from two independent sources: what the
  publishers remember (content ``hash``, ``number``, what they were told: ``acked_seq``, ``acked_at``) joined by
  (publisher, session, number) with what the owner's log committed (``seq``, ``committed_hash``).
- ``delivered``: the receipts. "Of [lo, hi) these many rows, with this hash sum, survive collection below asof."
- ``log``: what happened to each record of a region's chain at each replica, in the order in which it happened.
- ``gauge``: measured values with their bounds, and ``alive:<stream>``: the final horizon of each subscriber that lived
  to the end.

A null says what is not known: ``seq`` (never committed), ``publisher`` (committed, but no publisher sent it),
``acked_seq`` (never acknowledged), ``hash``, ``committed_hash``, ``hash_sum``, ``tick`` (counted rows: content is not
compared). A row with ``gone`` is a number that was collected before it could be recorded; nothing else of it is known.
A row of kind `LOST` is a run of numbers that the stream's owner has declared lost: no replica has those events.
Hashes are 64 unsigned bits kept as int64, because Spark has no unsigned type; `table` converts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.core.errors import BadInput
from tidings.core.ids import StreamId

PUBLISHED = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        ("seq", pa.int64()),  # first number of the run in the committed stream
        pa.field("count", pa.int64(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),  # as in core.rows: 0 data, 1 collector; or LOST
        ("publisher", pa.string()),
        ("session", pa.int64()),
        ("number", pa.int64()),  # the publisher's own number of the first event of the run
        ("key", pa.binary()),
        ("before", pa.int64()),  # of a collector "before n"
        ("where", pa.string()),  # of a predicate event: what it collects, as core.predicates writes it
        ("tick", pa.int64()),  # of its batch, by the hybrid clock of the stream
        ("attrs", pa.string()),  # JSON object; times and dates in ISO form, bytes in hexadecimal
        ("hash", pa.int64()),  # content as sent
        ("committed_hash", pa.int64()),  # content as committed
        ("acked_seq", pa.int64()),  # what the publisher was told for the first event of the run
        ("acked_at", pa.float64()),
        ("gone", pa.int64()),  # what it was is not known, only that an event below this number has collected it
    ]
)
DELIVERED = pa.schema(
    [
        pa.field("subscriber", pa.string(), nullable=False),
        pa.field("incarnation", pa.int64(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),  # ascends in the order of delivery within an incarnation
        pa.field("stream", pa.string(), nullable=False),
        pa.field("lo", pa.int64(), nullable=False),
        pa.field("hi", pa.int64(), nullable=False),
        pa.field("asof", pa.int64(), nullable=False),
        pa.field("lens", pa.string(), nullable=False),  # "" is all
        pa.field("rows", pa.int64(), nullable=False),
        ("hash_sum", pa.int64()),
        pa.field("time", pa.float64(), nullable=False),
    ]
)
LOG = pa.schema(
    [
        pa.field("region", pa.string(), nullable=False),
        pa.field("replica", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("lsn", pa.int64(), nullable=False),
        ("hash", pa.int64()),  # of the record; null for cut and wiped
        pa.field("event", pa.string(), nullable=False),  # a LogEvent
        pa.field("time", pa.float64(), nullable=False),
    ]
)
GAUGE = pa.schema(
    [
        pa.field("node", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        ("bound", pa.float64()),
        pa.field("time", pa.float64(), nullable=False),
    ]
)
SCHEMAS = {"published": PUBLISHED, "delivered": DELIVERED, "log": LOG, "gauge": GAUGE}

LOST = 2  # beside the kinds of rows; ours

ALIVE = "alive:"  # gauge name before a stream's: the final horizon of a node that lived to the end

_HASHES = frozenset({"hash", "committed_hash", "hash_sum"})


class LogEvent(StrEnum):
    """What happens to a record at a replica."""

    PERSISTED = "persisted"  # it is on this replica's stable storage
    COMMITTED = "committed"  # this replica knows that the tail has it
    CUT = "cut"  # the replica dropped its records from this lsn on
    RESTARTED = "restarted"  # the replica came back with its disk; what it only remembered, its commit point, is gone
    WIPED = "wiped"  # the replica starts again with an empty disk


def table(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.Table:
    """A trace table from columns (lists or arrays; hashes unsigned); a column left out is null."""
    length = len(next(iter(columns.values()))) if columns else 0
    arrays = []
    for column in schema:
        values = columns.get(column.name)
        if values is None:
            arrays.append(pa.nulls(length, column.type))
        elif column.name in _HASHES:
            arrays.append(pa.array(values, pa.uint64()).view(pa.int64()))
        else:
            arrays.append(pa.array(values, column.type))
    return pa.Table.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, eq=False)
class Trace:
    """What happened in a run, and the policy ("none" if it is not named) and attributes of each stream."""

    published: pa.Table = field(default_factory=PUBLISHED.empty_table)
    delivered: pa.Table = field(default_factory=DELIVERED.empty_table)
    log: pa.Table = field(default_factory=LOG.empty_table)
    gauge: pa.Table = field(default_factory=GAUGE.empty_table)
    policies: Mapping[StreamId, str] = field(default_factory=dict)
    attributes: Mapping[StreamId, str] = field(default_factory=dict)  # as declared; filters of others are not judged

    def __post_init__(self) -> None:
        for name, schema in SCHEMAS.items():
            found = getattr(self, name).schema
            if not found.equals(schema):
                raise BadInput(
                    f"trace table {name}: columns {found.names}, expected {schema.names} as in check/tables.py"
                )

    def write(self, directory: Path) -> None:
        """Store the four tables as Parquet files in a directory."""
        directory.mkdir(parents=True, exist_ok=True)
        for name in SCHEMAS:
            pq.write_table(getattr(self, name), directory / f"{name}.parquet")
        for name in ("policies", "attributes"):
            (directory / f"{name}.json").write_text(json.dumps(dict(getattr(self, name)), sort_keys=True))

    @classmethod
    def read(cls, directory: Path) -> Trace:
        """Load what `write` stored."""
        try:
            tables = {name: pq.read_table(directory / f"{name}.parquet") for name in SCHEMAS}
            said = {name: json.loads((directory / f"{name}.json").read_text()) for name in ("policies", "attributes")}
        except (OSError, ValueError) as why:  # ValueError: neither Parquet (ArrowInvalid) nor JSON
            raise BadInput(f"{directory} holds no readable trace: {why}") from why
        return cls(**tables, **said)
