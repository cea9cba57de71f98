"""What became of one number, as a lake knows it: whether it is a row, and which event collected it.

The lake keeps rows as they were published, with the events that collect. The first later event that collects the row is
the answer. It is found by reading the files behind the row in order, one at a time, without Spark. A compaction leaves
collected rows out of newer snapshots; older snapshots have them until they expire. If a number was collected before
the lake read it, its row is not known: then only an event that collects everything below a number can be named.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidings.core.gc import GcPolicy
from tidings.core.ids import StreamId
from tidings.core.predicates import Predicate
from tidings.core.rows import ArrowRows
from tidings.spark.lake import Lake, Snapshot, rows_of


class Fate(NamedTuple):
    """``state``: row, collected (``by`` which event, where known) or lost."""

    state: str
    by: int | None = None


def fate(lake: Lake, stream: StreamId, seq: int) -> Fate | None:
    """What has become of a number; None if the lake has not read that far."""
    newest = lake.snapshot()
    cover = next((each for each in newest.coverage.get(stream, []) if each.lo <= seq < each.hi), None)
    if cover is None or cover.lost:
        return None if cover is None else Fate("lost")
    for id in reversed(lake.ids()):
        snapshot = newest if id == newest.id else lake.snapshot(id)
        row = _row(lake, snapshot, stream, seq)
        if row is not None:
            by = _collector(lake, snapshot, stream, seq, row) or _collector(lake, newest, stream, seq, row)
            return Fate("row") if by is None else Fate("collected", by)
    return Fate("collected", _collector(lake, newest, stream, seq, None))


def _row(lake: Lake, snapshot: Snapshot, stream: StreamId, seq: int) -> pa.Table | None:
    found = [rows for rows in lake.read(stream, seq, seq + 1, snapshot) if rows.num_rows]
    return found[0] if found else None


def _collector(lake: Lake, snapshot: Snapshot, stream: StreamId, seq: int, row: pa.Table | None) -> int | None:
    """The first event behind a number that collects it; ``row``: what it was, if that is known."""
    definition = snapshot.definitions.get(stream)
    by_key = definition is not None and GcPolicy.parse(definition.gc).by_key
    key = row["key"][0] if row is not None and by_key else pa.scalar(None, pa.binary())
    victim = rows_of(row) if row is not None else None
    for rows in lake.read(stream, seq + 1, None, snapshot):
        hits = [pc.greater(rows["before"], seq)]
        if key.is_valid:
            hits.append(pc.equal(rows["key"], key))
        if isinstance(victim, ArrowRows):
            texts = rows["where"].unique().drop_null().to_pylist()
            true = [text for text in texts if Predicate.read(text).collects(victim)[0]]
            hits.append(pc.is_in(rows["where"], pa.array(true, pa.string())))
        collects = [pc.fill_null(each, False) for each in hits]
        for more in collects[1:]:
            collects[0] = pc.or_(collects[0], more)
        found = rows.filter(collects[0])
        if found.num_rows:
            number: int = found["seq"][0].as_py()
            return number
    return None
