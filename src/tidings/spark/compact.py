"""Compaction: the lake drops the rows that the streams have collected, as of where they end in it.

The collecting events of a stream are in its rows, so they are applied here as everywhere: "before n" collects what is
earlier and below n, a predicate what it is true for and its like, on a by-key stream a row collects the earlier row
with its key. The surviving rows are written anew, in files by range of numbers, and one commit replaces the old files.
Coverage stays, as of the end. Earlier snapshots can be read until they expire.

Of receipts only the small files of one day are merged: their policy bounds what a region holds; the lake keeps them.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tidings.core.errors import BadInput
from tidings.core.gc import GcPolicy
from tidings.core.ids import FIRST, StreamId, is_internal
from tidings.core.predicates import Predicate
from tidings.core.rows import ArrowRows
from tidings.protocols.services.catalog import StreamDef
from tidings.spark.lake import Commit, Cover, File, Lake, Snapshot, rows_of, schema_of, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000_000  # in a file; ours: a task's worth
WRITTEN = "it string"


def compact(spark: SparkSession, lake: Lake, keep: int) -> dict[str, Any]:
    """Apply what collects in every stream, and keep so many snapshots."""
    snapshot = lake.snapshot()
    before = sum([file.rows for file in snapshot.files.values()])
    compacted = [
        (merge_days if is_internal(stream) else compact_stream)(spark, lake, snapshot, stream)
        for stream in snapshot.streams
    ]
    done = [each for each in compacted if each is not None]
    if done:
        lake.commit(functools.partial(_together, done))
    removed = lake.expire(keep)
    after = lake.snapshot()
    return {
        "lake": str(lake.root),
        "snapshot": after.id,
        "oldest": lake.ids()[0],
        "streams": len(done),
        "rows_before": before,
        "rows_after": sum([file.rows for file in after.files.values()]),
        "files_removed": len(removed),
    }


def _together(commits: list[Commit], now: Snapshot) -> Commit:
    """One commit for all streams; raises `BadInput` if a file that it replaces was replaced meanwhile."""
    remove = tuple([path for each in commits for path in each.remove])
    replaced = [path for path in remove if path not in now.files]
    if replaced:
        raise BadInput(f"somebody else compacts this lake, {replaced[0]} is replaced already: one compaction at a time")
    return Commit(
        kind="compact",
        at=time.time(),
        add=tuple([file for each in commits for file in each.add]),
        remove=remove,
        coverage=tuple([cover for each in commits for cover in each.coverage]),
    )


def compact_stream(spark: SparkSession, lake: Lake, snapshot: Snapshot, stream: StreamId) -> Commit | None:
    """Write what survives of a stream; the commit that puts it in place, or None if there is nothing to do."""
    files, end = snapshot.of(stream), snapshot.end(stream)
    covers = snapshot.coverage.get(stream, [])
    if not files or (len(files) == 1 and all([cover.asof >= end for cover in covers])):
        return None
    return Commit(
        kind="compact",
        at=time.time(),
        add=_rewritten(spark, lake, snapshot.definitions[stream], files, survivors),
        remove=tuple([file.path for file in files]),
        coverage=tuple([Cover(stream, cover.lo, cover.hi, max(cover.asof, end), cover.lost) for cover in covers]),
    )


def merge_days(spark: SparkSession, lake: Lake, snapshot: Snapshot, stream: StreamId) -> Commit | None:
    """Put small files of a day together, and leave nothing out."""
    small = [file for file in snapshot.of(stream) if file.rows < ROWS // 2]
    days = Counter([file.day for file in small])
    files = [file for file in small if days[file.day] > 1]
    if not files:
        return None
    added = _rewritten(spark, lake, snapshot.definitions[stream], files, lambda rows, _: rows)
    return Commit(kind="compact", at=time.time(), add=added, remove=tuple([file.path for file in files]))


def _rewritten(
    spark: SparkSession,
    lake: Lake,
    definition: StreamDef,
    files: Sequence[File],
    keep: Callable[[DataFrame, StreamDef], DataFrame],
) -> tuple[File, ...]:
    """Files with what is kept of the rows of others."""
    rows = spark.read.schema(spark_schema(definition)).parquet(*[str(lake.root / file.path) for file in files])
    parts = max(1, -(-sum([file.rows for file in files]) // ROWS))
    kept = keep(rows, definition).repartitionByRange(parts, "seq").sortWithinPartitions("seq")
    write = functools.partial(_write, str(lake.root), f"compact-{secrets.token_hex(4)}", definition)
    return tuple([msgspec.json.decode(row.it, type=File) for row in kept.mapInArrow(write, WRITTEN).collect()])


def survivors(rows: DataFrame, definition: StreamDef) -> DataFrame:
    """The rows that no event among them collects."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    collecting = rows.where("kind = 'gc'").select("seq", "before", "where").collect()
    low = max([FIRST, *[min(each.before, each.seq) for each in collecting if each.before is not None]])
    latest: dict[str, int] = {}
    for each in collecting:
        if each["where"] is not None:
            latest[each["where"]] = max(latest.get(each["where"], 0), each.seq)
    if GcPolicy.parse(definition.gc).by_key:
        later = F.lead("seq").over(Window.partitionBy("key").orderBy("seq"))
        rows = rows.withColumn("_later", later).where("key IS NULL OR _later IS NULL").drop("_later")
    rows = rows.where(F.col("seq") >= low)
    return rows.mapInArrow(functools.partial(_spared, latest), rows.schema) if latest else rows


def _spared(latest: dict[str, int], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows that none of some predicates, each as of its last event, collects."""
    for batch in batches:
        if not batch.num_rows:
            continue
        table = pa.Table.from_batches([batch]).sort_by("seq")
        rows = rows_of(table)
        assert isinstance(rows, ArrowRows)
        dead = rows.numbers < 0
        for text, seq in latest.items():
            dead |= Predicate.read(text).collects(rows) & (rows.numbers < seq)
        yield from table.filter(pa.array(~dead)).to_batches()


def _write(root: str, name: str, definition: StreamDef, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
    files: list[File] = []
    if tables:
        whole = pa.concat_tables(tables).cast(schema_of(definition))
        files = Lake(root).write(whole, f"{name}-{context.partitionId():05d}")
    yield pa.RecordBatch.from_arrays(
        [pa.array([msgspec.json.encode(file).decode() for file in files], pa.string())], names=["it"]
    )
