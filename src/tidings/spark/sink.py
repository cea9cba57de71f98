"""`df.writeStream.format("tidings")` and `df.write.format("tidings")`: every batch exactly once.

Tasks stage their rows at the owner of the stream, under query, batch, partition and an attempt of their own; the result
of a task names the attempt. The driver commits the attempts that Spark has chosen, in one step. An attempt that lost a
race, or whose executor died, is never published. If Spark runs a batch again after it was committed (the driver died
before it wrote that down), the owner recognises the batch and changes nothing.

A streaming query is identified by its ``writerId``, which must be the same in every run of it and in no other query.
Each batch write is a commit of its own: if it fails nothing is published, if it is run again it is published again.

Rows stay columns all the way: Spark hands over Arrow batches, and the owner stores chunks of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import DataType, StructType

from tidings import sync
from tidings.client.errors import TidingsError, Unreachable
from tidings.core.errors import BadAttribute, BadInput
from tidings.core.filters import conform, parse_attributes
from tidings.core.filters.types import RESERVED
from tidings.core.ids import StreamId
from tidings.protocols.services.sinks import Attempt, SinkBatch
from tidings.spark.options import CONNECT, ConnectOptions, flag, known

WRITE = (*CONNECT, "stream", "writerId", "writerReset")
SPARKS = ("checkpointLocation", "path", "queryName", "outputMode")
"""Options of Spark's own that reach every sink."""

JOB = "batch"  # the writer of batch writes that have no writerId
EVERYWHERE = ("key", "payload")  # columns that any stream takes
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark's names for them in a task


class WriteOptions(ConnectOptions, frozen=True, kw_only=True):
    """Where rows go, and under which name."""

    stream: StreamId
    writer: str = ""
    reset: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        """Check what a user wrote; raises `BadInput`."""
        sparks = {name.lower() for name in SPARKS}
        given = known({name: value for name, value in options.items() if name.lower() not in sparks}, WRITE)
        if not given.get("stream"):
            raise BadInput("option 'stream' is missing: the stream to write to")
        if streaming and not given.get("writerId"):
            raise BadInput(
                "option 'writerId' is missing: a name for this query that stays the same when it is restarted, "
                "and that no other query has"
            )
        return cls(
            **cls.values(given),
            stream=given["stream"],
            writer=given.get("writerId") or JOB,
            reset=flag(given, "writerReset", default=False),
        )


@dataclass
class StagedPart(WriterCommitMessage):
    """What a task tells the driver: of which batch it has staged which attempt."""

    of: SinkBatch
    attempt: Attempt


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query. Tasks have a copy, the driver has another, without the run."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.run = secrets.randbits(48)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """In a task: stage its rows."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        if not query or not batch:
            raise BadInput(f"{self.options.stream}: Spark says neither {QUERY} nor {BATCH}: is this a streaming query?")
        options = self.options
        of = SinkBatch(options.writer, options.stream, query, int(batch), self.run, reset=options.reset)
        return _stage(options, of, context.partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver: publish what the chosen tasks have staged."""
        _commit(self.options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver: some task has failed, or the commit has."""
        _abort(self.options, messages)


class BatchWriter(DataSourceArrowWriter):
    """Writes a data frame; tasks and driver have copies of one writer."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        run = secrets.randbits(48)
        self.of = SinkBatch(options.writer, options.stream, f"{run:012x}", 0, run, once=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """In a task: stage its rows."""
        context = TaskContext.get()
        assert context is not None
        return _stage(self.options, self.of, context.partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver: publish what the chosen tasks have staged."""
        _commit(self.options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver: some task has failed, or the commit has."""
        _abort(self.options, messages)


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """For `DataSource.writer`: checks options and columns before any task runs."""
    found = WriteOptions.parse(options, streaming=False)
    if overwrite:
        raise BadInput(f"{found.stream}: a stream cannot be overwritten, only appended to: use mode('append')")
    _check(found, schema)
    return BatchWriter(found)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """For `DataSource.streamWriter`: checks options and columns before any task runs."""
    found = WriteOptions.parse(options, streaming=True)
    if overwrite:
        raise BadInput(f"{found.stream}: a stream cannot be overwritten, only appended to: use outputMode('append')")
    _check(found, schema)
    return StreamWriter(found)


# --- columns ------------------------------------------------------------------------------------------------


def _check(options: WriteOptions, schema: StructType) -> None:
    """Whether the columns fit the stream, as it is declared now."""
    with _connect(options) as t:
        declared = t.stream(options.stream).attrs
    check_columns(options.stream, declared, schema)


def check_columns(stream: StreamId, declared: str, schema: StructType) -> None:
    """Raise `BadAttribute` unless every column is key, payload or a declared attribute, and of its type."""
    from pyspark.sql.pandas.types import to_arrow_schema

    attributes = parse_attributes(declared)
    types: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}
    names = [field.name for field in schema.fields]
    for name in names:
        if name in RESERVED and name not in EVERYWHERE:
            raise BadAttribute(f"{stream}: column {name!r} is given by the stream, not by who writes: drop it", name)
        kind = types[name].simpleString()
        if name in EVERYWHERE and kind not in ("binary", "string"):
            raise BadAttribute(f"{stream}: column {name!r} is {kind}, declared is binary: cast it", name)
    try:
        conform(to_arrow_schema(schema.__class__(schema.fields)).empty_table(), attributes)
    except BadAttribute as wrong:
        if wrong.name not in attributes or names.count(wrong.name) != 1:
            raise BadAttribute(f"{stream}: {wrong}", wrong.name) from None
        found, wanted = types[wrong.name].simpleString(), attributes[wrong.name]
        raise BadAttribute(
            f"{stream}: column {wrong.name!r} is {found}, declared is {wanted}: cast it", wrong.name
        ) from None


# --- talking to the owner -------------------------------------------------------------------------------------


def _connect(options: WriteOptions) -> sync.BlockingConnection:
    return sync.connect(options.servers, **options.connecting())


def _sink(t: sync.BlockingConnection, of: SinkBatch, timeout: float) -> sync.BlockingSink:
    named: dict[str, Any] = {"writer": of.writer, "query": of.query, "batch": of.batch, "run": of.run}
    return t.sink(of.stream, **named, once=of.once, reset=of.reset, timeout=timeout)


def _stage(options: WriteOptions, of: SinkBatch, partition: int, batches: Iterator[pa.RecordBatch]) -> StagedPart:
    """Stage the rows of one task; one without rows asks nobody."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return StagedPart(of, Attempt(partition, 0, 0, 0))
    with _patiently(options, of), _connect(options) as t:
        part = _sink(t, of, options.timeout).part(partition)
        part.put(first)
        for batch in filled:
            part.put(batch)
        return StagedPart(of, part.finish())


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    return [message for message in messages if isinstance(message, StagedPart)]


def _commit(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    parts = _parts(messages)
    if len(parts) < len(messages):
        raise TidingsError(f"{options.stream}: {len(messages) - len(parts)} of {len(messages)} tasks reported nothing")
    attempts = [part.attempt for part in parts if part.attempt.rows]
    if not attempts:
        return
    of = parts[0].of
    if any(part.of != of for part in parts):
        raise TidingsError(f"{options.stream}: tasks of several batches or runs in one commit")
    with _patiently(options, of), _connect(options) as t:
        _sink(t, of, options.timeout).commit(attempts)


def _abort(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Give room back. If that does not succeed it is no matter: what is staged is superseded by the next run, or
    expires; and why the batch failed is what the user must see."""
    parts = _parts(messages)
    if parts:
        with suppress(TidingsError, TimeoutError), _connect(options) as t:
            _sink(t, parts[0].of, options.timeout).abort()


class _patiently:
    """Says who did not answer, where a timeout would say nothing."""

    def __init__(self, options: WriteOptions, of: SinkBatch) -> None:
        self.what = f"{of.stream}: batch {of.batch} of writer {of.writer!r}: no answer from {options.servers}"
        self.timeout = options.timeout

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TimeoutError):
            raise Unreachable(f"{self.what} within {self.timeout:g} s; is the region up?") from error
