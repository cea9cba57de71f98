"""Spark reads Tidings: offsets, partitions and rows, for batch reads and streaming queries.

An offset says for each stream {"from", "seq", "asof", "lease"}: the batch has read [from, seq) as of ``asof``, under
the lease of that name. So a batch is a pure function of its offset. A batch that Spark runs again (after a crash, from
its checkpoint) is the same, although collection went on meanwhile: the lease keeps its rows. ``from`` is part of the
offset because Spark asks for the initial offset again when it repeats the first batch, and "latest" is a later number
by then.

The driver holds one lease per stream, renews it while the query runs, moves it forward when Spark commits a batch, and
leaves it when the query stops, so that a restart within ``leaseSeconds`` resumes it. If a lease has expired, the reader
that misses rows raises an error that says what to do.

Ranges are split between tasks by number, and spread over the replicas of the nearest region. Every task opens its own
connection. Rows travel as Arrow record batches, filtered at the server.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, TypeAlias

import pyarrow as pa
from pyspark.sql import types as spark_types
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructField, StructType

from tidings import sync
from tidings.client.errors import AsofGone, LeaseExpired, TidingsError, UnknownStream
from tidings.client.events import EventRows, StreamInfo
from tidings.core.errors import BadInput
from tidings.core.filters import SYSTEM, AttrType, parse, parse_attributes
from tidings.core.ids import FIRST, StreamId, stream_name
from tidings.core.rows import ArrowRows
from tidings.spark.columns import ATTRS, FIXED, HASH, KEPT, TICK, SparkColumns, attributes_of
from tidings.spark.options import EARLIEST, LATEST, Offsets, ReadOptions

log = logging.getLogger("tidings.spark")

PART = 500_000  # numbers in one task at most, while tasks are few; ours: of half a second a task costs Spark 80 ms
PARTS = 64  # tasks that a batch is split into by itself; ours, minPartitions may ask for more

Offset: TypeAlias = dict[StreamId, dict[str, Any]]
"""For each stream {"from", "seq", "asof", "lease"}; JSON, because Spark keeps it in its checkpoint."""

SPARK_TYPES: dict[AttrType, spark_types.DataType] = {
    AttrType.STRING: spark_types.StringType(),
    AttrType.BOOLEAN: spark_types.BooleanType(),
    AttrType.INT: spark_types.IntegerType(),
    AttrType.BIGINT: spark_types.LongType(),
    AttrType.DOUBLE: spark_types.DoubleType(),
    AttrType.TIMESTAMP: spark_types.TimestampType(),
    AttrType.DATE: spark_types.DateType(),
    AttrType.BINARY: spark_types.BinaryType(),
}
FIXED_TYPES = {"seq": AttrType.BIGINT, "pub_seq": AttrType.BIGINT, "published_at": AttrType.TIMESTAMP} | dict.fromkeys(
    ("key", "payload"), AttrType.BINARY
)
FIXED_TYPES |= dict.fromkeys(("before", "_session", "_tick", TICK, HASH), AttrType.BIGINT)


class DataLoss(TidingsError):
    """Events that were committed are gone for good: which, and where."""


@dataclass
class Range(InputPartition):
    """What one task reads."""

    stream: StreamId
    lo: int
    hi: int
    asof: int
    lease: str
    replica: int

    def __init__(self, stream: StreamId, lo: int, hi: int, asof: int, lease: str, replica: int) -> None:
        super().__init__((stream, lo, hi))
        self.stream, self.lo, self.hi, self.asof, self.lease, self.replica = stream, lo, hi, asof, lease, replica


# --- what there is ------------------------------------------------------------------------------------------


def connect(options: ReadOptions) -> sync.BlockingConnection:
    """A connection that is not open yet."""
    return sync.connect(options.servers, **options.connecting())


def streams_of(
    connection: sync.BlockingConnection, options: ReadOptions, read: Collection[StreamId] = ()
) -> dict[StreamId, StreamInfo]:
    """The streams that the options name, by id, as they stand; raises `UnknownStream` with the nearest name.

    Those that were ``read`` before may be there no longer.
    """
    if options.pattern:
        return {stream.id: stream for stream in connection.streams(options.pattern)}
    there = {name: stream for stream in connection.streams() for name in (stream.name, stream.id)}
    found: dict[StreamId, StreamInfo] = {}
    for name in options.subscribe:
        try:
            stream = there.get(name) or connection.stream(name)
        except UnknownStream:
            if name not in {each for id in read for each in (id, stream_name(id))}:
                raise
        else:
            found[stream.id] = stream
    return found


def schema_of(options: ReadOptions) -> StructType:
    """The columns of the streams that the options name."""
    more = [TICK] if options.tick else []
    if options.json:
        return StructType(fields([*FIXED, *more, *([*KEPT, HASH] if options.archive is not None else ()), ATTRS]))
    with connect(options) as connection:
        streams = streams_of(connection, options)
    if not streams:
        raise BadInput(f"no stream matches the option 'subscribePattern' {options.pattern!r}")
    attributes = attributes_of({stream.name: stream.attrs for stream in streams.values()})
    if options.tick and TICK in {name.lower() for name in attributes}:
        raise BadInput(f"option 'withTick': an attribute has the name {TICK!r} already; leave the option out")
    if options.filter:
        parse(options.filter, attributes)  # `BadFilter` says where it is wrong
    always = fields([*FIXED, *more, *(KEPT if options.archive is not None else ())])
    return StructType([*always, *[StructField(name, SPARK_TYPES[kind]) for name, kind in attributes.items()]])


def fields(names: Sequence[str]) -> list[StructField]:
    """Columns that do not depend on what a stream declares."""
    return [StructField(name, SPARK_TYPES[FIXED_TYPES.get(name, AttrType.STRING)]) for name in names]


def filter_of(options: ReadOptions, attributes: Mapping[str, AttrType], stream: StreamInfo) -> str:
    """The filter as a stream understands it: an attribute that only others have is null here."""
    if not options.filter:
        return ""
    whole = parse(options.filter, attributes)
    own = {name.lower() for name in (*parse_attributes(stream.attrs), *SYSTEM)}
    absent = [name for name in whole.columns if name.lower() not in own]
    return whole.without(absent) if absent else options.filter


def positions(offsets: Offsets, streams: Mapping[StreamId, StreamInfo], name: str) -> dict[StreamId, int]:
    """Where an option says to begin or to end."""
    ids = {each: id for id, info in streams.items() for each in (info.name, id)}
    if isinstance(offsets, dict):
        strange = sorted(offsets.keys() - ids.keys())
        missing = sorted(streams.keys() - {ids[each] for each in offsets.keys() - set(strange)})
        if strange or missing:
            said = f"says nothing of stream {streams[missing[0]].name!r}" if missing and not strange else ""
            what = said or f"names {strange[0]!r}, which is not read"
            wanted = ", ".join(sorted([info.name for info in streams.values()]))
            raise BadInput(f"option {name!r} {what}: it needs exactly the streams {wanted}")
        offsets = {ids[each]: at for each, at in offsets.items()}
    found: dict[StreamId, int] = {}
    for stream, info in streams.items():
        at = offsets[stream] if isinstance(offsets, dict) else offsets
        found[stream] = {EARLIEST: FIRST, LATEST: info.horizon}[at] if isinstance(at, str) else at
    return found


# --- planning -----------------------------------------------------------------------------------------------


def plan(start: Offset, end: Offset, min_partitions: int) -> list[Range]:
    """The tasks of a batch: nothing but the offsets decides."""
    wanted: list[tuple[StreamId, int, int]] = []
    for stream in sorted(end):
        before: int = start.get(stream, {}).get("seq", FIRST)
        lo, hi = end[stream].get("from", before), end[stream]["seq"]
        if lo < hi:
            wanted.append((stream, lo, hi))
    total = sum([hi - lo for _, lo, hi in wanted])
    size = max(1, min(max(PART, -(-total // PARTS)), -(-total // min_partitions)))
    ranges: list[Range] = []
    for stream, lo, hi in wanted:
        parts = -(-(hi - lo) // size)
        cuts = [lo + (hi - lo) * at // parts for at in range(parts + 1)]
        for a, b in pairwise(cuts):
            ranges.append(Range(stream, a, b, end[stream]["asof"], end[stream]["lease"], len(ranges)))
    return ranges


def shares(lags: Mapping[StreamId, int], limit: int) -> dict[StreamId, int]:
    """How far each stream may go in one batch: in proportion to how much of it waits, at least by one."""
    total = sum(lags.values())
    if total <= limit:
        return dict(lags)
    return {stream: min(lag, max(1, lag * limit // total)) for stream, lag in lags.items()}


# --- reading, in a task ---------------------------------------------------------------------------------------


def batches(options: ReadOptions, schema: StructType, part: Range, *, renew: bool) -> Iterator[pa.RecordBatch]:
    """The rows of a range; ``renew``: nobody else renews the lease while they are read."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    columns = SparkColumns(wanted, archive=options.archive is not None, json=options.json, tick=options.tick)
    settings: dict[str, Any] = {"asof": part.asof, "replica": part.replica}
    told = part.stream if options.archive is not None else stream_name(part.stream)
    with connect(options) as connection:
        if options.filter:
            settings["where"] = filter_of(options, _attributes(schema, options), connection.stream(part.stream))
        if renew and part.lease:
            resumed(connection, part.stream, part.lease, options, options.batch_seconds)
        try:
            lost: list[tuple[int, int]] = []
            with connection.read(part.stream, part.lo, part.hi, **settings) as reading:
                while spans := reading.take(options.timeout):
                    for span in spans:
                        judge(span, options)
                        lost += span.lost
                        if span.count and isinstance(span.span.rows, ArrowRows):
                            yield columns.batch(told, span.span.rows)
                if options.archive is not None:
                    yield columns.coverage(part.stream, part.lo, part.hi, max(part.asof, part.lo), lost)
        except AsofGone as gone:
            forgotten(part, gone, planned=not renew)
        except TimeoutError:
            raise TidingsError(
                f"stream {part.stream!r}: nothing of [{part.lo}, {part.hi}) as of {part.asof} came for "
                f"{options.timeout:g} s: is the region cut off? Option 'timeoutSeconds' says how long a task waits"
            ) from None


def _attributes(schema: StructType, options: ReadOptions) -> dict[str, AttrType]:
    """The attributes among the columns."""
    kinds = {kind: name for name, kind in SPARK_TYPES.items()}
    others = {*FIXED, *([TICK] if options.tick else ())}
    return {field.name: kinds[field.dataType] for field in schema.fields if field.name not in others}


def judge(span: EventRows, options: ReadOptions) -> None:
    """A range that was declared lost fails the query, or is logged; a collected one is nothing to speak of.

    An archive keeps what there is, and writes down what is lost.
    """
    for lo, hi in span.lost:
        what = f"stream {span.stream!r}: [{lo}, {hi}) was declared lost by its owner"
        if options.fail_on_data_loss and options.archive is None:
            raise DataLoss(f"{what}; set option 'failOnDataLoss' to false to go on without these events")
        log.warning("%s; going on without it", what)


def forgotten(part: Range, gone: AsofGone, *, planned: bool) -> NoReturn:
    """Say what to do when the lease has not kept what a batch needs; ``planned``: by a checkpoint."""
    entry = "Remove its entry from the checkpoint's offsets directory (if it has none in commits) and restart"
    raise LeaseExpired(
        f"stream {part.stream!r}: rows of [{part.lo}, {part.hi}) as of {part.asof} are forgotten (the floor is "
        f"{gone.floor}), because the lease {part.lease!r} expired: the batch cannot be read again as it was. "
        f"{entry if planned else 'Load the data frame again'}: it is planned anew. A larger 'leaseSeconds' or "
        "'leaseBytes' keeps it from happening again"
    ) from gone


def resumed(
    connection: sync.BlockingConnection, stream: StreamId, name: str, options: ReadOptions, ttl: float
) -> sync.BlockingLease | None:
    """A lease that somebody was granted, or None if it is over; then a read may still succeed."""
    lease = connection.lease(stream, name=name, resume=True, ttl=ttl, bytes=options.lease_bytes)
    try:
        return lease.open(options.timeout)
    except LeaseExpired as error:
        log.warning("%s", error)
        return None


def granted(
    connection: sync.BlockingConnection, stream: StreamId, options: ReadOptions, asof: int = 0
) -> sync.BlockingLease:
    """A new lease, as of the end of the stream, or of less while another lease keeps that."""
    name = f"spark-{secrets.token_hex(8)}"
    wanted = connection.lease(stream, asof=asof, name=name, ttl=options.lease_seconds, bytes=options.lease_bytes)
    return wanted.open(options.timeout)


class BatchReader(DataSourceReader):
    """`spark.read`: planned at once; the tasks renew the lease, and when all have ended it expires.

    It waits for the first task as long as for a driver, and for the next ones less: nobody knows which is the last.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        leases: dict[StreamId, sync.BlockingLease] = {}
        needed: set[StreamId] = set()
        with connect(self.options) as connection:
            try:
                ranges = self._planned(connection, leases)
                needed = {each.stream for each in ranges}
            finally:
                for name, lease in leases.items():
                    if name in needed:
                        lease.leave()
                    else:
                        lease.release()
        return ranges

    def _planned(self, connection: sync.BlockingConnection, leases: dict[StreamId, sync.BlockingLease]) -> list[Range]:
        """What is to be read, under ``leases`` that are granted here."""
        options = self.options
        start: Offset = {}
        end: Offset = {}
        for name in streams_of(connection, options):
            leases[name] = granted(connection, name, options)
        now = streams_of(connection, options)  # again: it takes a while until all are granted
        streams = {name: info for name, info in now.items() if name in leases}
        lows = positions(options.starting or EARLIEST, streams, "startingOffsets")
        highs = positions(options.ending, streams, "endingOffsets")
        for name, info in streams.items():
            lease = leases[name]
            if highs[name] > info.horizon:
                raise BadInput(f"option 'endingOffsets': stream {name!r} ends at {info.horizon}, not {highs[name]}")
            start[name] = {"seq": lows[name]}
            end[name] = {"seq": highs[name], "asof": max(lease.asof, info.horizon), "lease": lease.name}
        return plan(start, end, options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Range):
            yield from batches(self.options, self.schema, partition, renew=True)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`. One in the driver's planner, with a connection; copies without one in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._connection: sync.BlockingConnection | None = None
        self._leases: dict[StreamId, sync.BlockingLease] = {}
        self._initial: Offset | None = None  # where a query without a checkpoint begins
        self._begun = False
        self._left: set[StreamId] = set()  # that are there no longer
        self._ceiling: dict[StreamId, int] | None = None  # where an availableNow run ends
        self._reached: dict[StreamId, int] = {}  # where the last planned batch ends

    # --- in the driver ------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        streams = streams_of(self._link, self.options)
        begin = positions(self.options.starting or LATEST, streams, "startingOffsets")
        self._initial = {name: {"seq": at, "asof": at, "lease": ""} for name, at in begin.items()}
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self.options.max_offsets
        return ReadMaxRows(limit) if limit is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        streams = streams_of(self._link, self.options)
        self._ceiling = {name: info.horizon for name, info in streams.items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        streams = streams_of(self._link, self.options, start)
        start = self._resume(start, streams)
        start |= {name: self._without(name, at) for name, at in start.items() if name not in streams}
        self._reached |= {name: at["seq"] for name, at in start.items()}
        lags: dict[StreamId, int] = {}
        for name, info in streams.items():
            upto = info.horizon if self._ceiling is None else min(info.horizon, self._ceiling.get(name, FIRST))
            lags[name] = max(0, upto - start.get(name, {}).get("seq", FIRST))
        steps = shares(lags, limit.max_rows) if isinstance(limit, ReadMaxRows) else lags
        if not any(steps.values()):
            return start
        end = {name: at | {"from": at["seq"]} for name, at in start.items()}
        for name in [name for name, step in steps.items() if step]:
            info, lo = streams[name], start.get(name, {}).get("seq", FIRST)
            wanted = self._wanted(name, lo)
            lease = self._lease(name, start.get(name, {}).get("lease", ""), wanted)
            asof = max(wanted or info.horizon, lease.asof)
            end[name] = {"from": lo, "seq": lo + steps[name], "asof": asof, "lease": lease.name}
            self._reached[name] = lo + steps[name]
        return end

    def _wanted(self, stream: StreamId, lo: int) -> int:
        """As of which number an archive wants rows from ``lo`` on: as published, where that is kept; 0: as they are."""
        archive = self.options.archive
        return 0 if archive is None else max(lo, archive.get(stream, lo))

    def reportLatestOffset(self) -> Offset:
        """Horizons, and how far the planned batches are behind them: the lag, in the query's progress."""
        streams = streams_of(self._link, self.options, self._reached)
        horizons = {name: max(info.horizon, self._reached.get(name, FIRST)) for name, info in streams.items()}
        return {name: {"seq": at, "lag": at - self._reached.get(name, at)} for name, at in horizons.items()}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        end = dict(end)
        for name, at in list(end.items()):
            self._reached[name] = at["seq"]
            if at["lease"] and name not in self._leases:  # after a restart: the batch is read again
                try:
                    lease = resumed(self._link, name, at["lease"], self.options, self.options.lease_seconds)
                except UnknownStream:
                    end[name], lease = self._without(name, at), None
                if lease is not None:
                    self._leases[name] = lease
        return plan(start, end, self.options.min_partitions)

    def commit(self, end: Offset) -> None:
        """Nothing is read again as of less than this; what an archive reads next, it reads as it was published."""
        for name, at in end.items():
            lease = self._leases.get(name)
            asof = at["asof"] if self.options.archive is None else at["seq"]
            if lease is not None and asof > lease.asof:
                try:
                    lease.move(asof, self.options.timeout)
                except (LeaseExpired, TimeoutError) as error:
                    log.warning("the lease of %s was not moved: %s", name, error)

    def stop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            for lease in self._leases.values():
                lease.leave()
            self._leases.clear()
            connection.close(flush=False)

    @property
    def _link(self) -> sync.BlockingConnection:
        if self._connection is None:
            self._connection = connect(self.options)
            self._connection.open()
        return self._connection

    def _lease(self, stream: StreamId, known: str, asof: int = 0) -> sync.BlockingLease:
        """The lease of a stream: the one that is held, the one in the checkpoint, or a new one."""
        lease = self._leases.get(stream)
        if lease is None and known:
            lease = resumed(self._link, stream, known, self.options, self.options.lease_seconds)
        if lease is not None:
            try:
                lease.check()
            except LeaseExpired as error:
                log.warning("%s", error)
                lease = None
        if lease is None:
            lease = granted(self._link, stream, self.options, asof)
        self._leases[stream] = lease
        return lease

    def _resume(self, start: Offset, streams: Mapping[StreamId, StreamInfo]) -> Offset:
        """Look once whether a checkpoint fits the cluster, and say what it makes of the options."""
        begun, self._begun = self._begun, True
        if begun or start == self._initial:  # a first batch that was planned before is further than that
            return dict(start)
        if self.options.starting is not None and self.options.archive is None:
            at = {name: each["seq"] for name, each in start.items()}
            log.warning("startingOffsets is ignored: the checkpoint says where to go on, %s", at)
        start = dict(start)
        for name, each in list(start.items()):
            horizon = self._end_of(name, each["seq"], streams[name]) if name in streams else None
            if horizon is None:
                continue
            what = f"stream {name!r} ends at {horizon}, but the checkpoint says that {each['seq'] - 1} was read"
            if self.options.fail_on_data_loss:
                raise DataLoss(
                    f"{what}: [{horizon}, {each['seq']}) is lost; set option 'failOnDataLoss' to false to go on there"
                )
            log.warning("%s; going on at %d (failOnDataLoss=false)", what, horizon)
            start[name] = {"from": horizon, "seq": horizon, "asof": horizon, "lease": ""}
        return start

    def _without(self, stream: StreamId, at: dict[str, Any]) -> dict[str, Any]:
        """Stay where a stream was that is there no longer, if that is allowed."""
        if self.options.fail_on_data_loss:
            raise DataLoss(f"stream {stream!r} is in the checkpoint, but not in the cluster: was it deleted?")
        if stream not in self._left:
            self._left.add(stream)
            log.warning("stream %r is in the checkpoint, but not in the cluster; going on without it", stream)
        return at | {"from": at["seq"], "lease": ""}

    def _end_of(self, stream: StreamId, seq: int, info: StreamInfo) -> int | None:
        """Where a stream ends if that is below a number that was read already; None if it is not.

        Only its owner's head knows, by a lease as of the end: another region may lag, and so may a replica.
        """
        if seq <= info.horizon:
            return None
        lease = granted(self._link, stream, self.options)
        lease.release()
        return lease.asof if lease.asof < seq else None

    # --- in a task ------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Range):
            yield from batches(self.options, self.schema, partition, renew=False)
