"""The tables of the declarative pipeline: what `tidings pipeline run` keeps of a cluster.

    intake_<region>  streaming     the source, as an archive reads it: events of the region, what is covered, receipts
    events           materialized  every event once, the collected ones too
    live             materialized  for each stream and key the last event that nothing has collected
    health           materialized  for each stream rates, latency, what is collected
    audit            materialized  the evidence (spark/audit.py): for each subscriber and stream a verdict, violations

Rows and what they cover come from the same batch of the same query, and the other tables are functions of the intake.
So an event that is published during a run is in all tables or in none, and the next run takes it. Each region has a
table of its own because files count by the log of the one query that writes them: of two flows into a table, one loses
batches. Attributes are JSON, because the columns of a table stay while streams and their attributes come and go.

Collection and audit are those of `tidings.check`, per stream, as a grouped map: a stream's rows and receipts have to
fit into the memory of one task. Receipts for events that the intake does not have yet wait for the next run.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings import sync
from tidings.check.survivors import Ints, Survivors, ints
from tidings.client.events import LOST
from tidings.client.url import SCHEME
from tidings.core.errors import BadInput
from tidings.core.ids import FIRST, MARK, RECEIPTS, RegionId, StreamId, StreamName, is_internal, stream_name
from tidings.core.rows import WHERE
from tidings.spark.audit import EVIDENCE, UNKNOWN, Facts, latencies, percentiles, published_rows, with_gone
from tidings.spark.columns import ATTRS, COVERAGE, FIXED, HASH, KEPT
from tidings.spark.incremental_audit import COVERS, TOLD, AuditState
from tidings.spark.lake import Cover, covers_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

URL, TOKEN, LEASE, HELD = "tidings.url", "tidings.token", "tidings.lease", "tidings.held"
"""Settings of a session: where the cluster is, for how many seconds rows are kept for the next run, and, as JSON, as of
which number a lease of the running process keeps the rows of each stream."""

DEFAULT_URL = "tidings://127.0.0.1:7400"
LEASE_SECONDS = 3600.0  # ours, as for an archive: a pipeline that runs once an hour finds its own lease
BATCH = 1_000_000  # numbers in a batch; ours, as for an archive
TIMEOUT = 15.0  # seconds for an answer of the cluster; ours: somebody waits
RECENT = 60  # seconds before the last event of a stream in which its present rate is counted; ours

ABOUT = "about"  # the stream that a row is of, or that a receipt is about
COLUMNS = (*FIXED, *KEPT, HASH, ATTRS)
INTAKE = tuple([f"`{name}`" for name in COLUMNS])
EVENTS = (*[name for name in FIXED if name != "stream"], "before", f"`{WHERE}`", ATTRS)
_TIME = pa.timestamp("us", tz="UTC")
LIVE = pa.schema(
    [
        *[(name, FIXED[name]) for name in ("stream", "key", "seq", "payload", "published_at")],
        *[(name, FIXED[name]) for name in ("region", "publisher", "pub_seq")],
        (ATTRS, pa.string()),
    ]
)
HEALTH = pa.schema(
    [
        *[(name, pa.string()) for name in ("stream", "region", "gc")],
        *[(name, pa.int64()) for name in ("end", "events", "live", "collected")],
        ("collected_share", pa.float64()),
        *[(name, pa.int64()) for name in ("lost", "keys", "publishers", "bytes")],
        *[(name, _TIME) for name in ("first_at", "last_at")],
        *[(name, pa.float64()) for name in ("events_per_s", "recent_per_s")],
        *[(name, pa.int64()) for name in ("peak_per_s", "subscribers", "receipts", "waiting")],
        *[(name, pa.float64()) for name in ("latency_ms_p50", "latency_ms_p99")],
    ]
)


class RegionSource(msgspec.Struct, frozen=True):
    """A region: where its replicas are, and the streams that it owns, its receipts among them."""

    servers: str
    streams: dict[StreamId, Facts]


def look(url: str, token: str = "") -> dict[RegionId, RegionSource]:
    """What there is to read; raises what a client raises when there is no cluster."""
    from tidings.spark.archive import Source, regions_of

    found: dict[RegionId, RegionSource] = {}
    whole = url if url.startswith(SCHEME) else SCHEME + url
    with sync.connect(whole, token=token or None, timeout=TIMEOUT) as connection:
        for region, servers in sorted(regions_of(connection).items()):
            source = Source(region, servers, connection)
            source.look()
            streams = {name: Facts(each.gc, each.attrs) for name, each in sorted(source.streams.items())}
            found[region] = RegionSource(servers, streams)
    return found


# --- a stream, in a task --------------------------------------------------------------------------------------


class BatchTaken(msgspec.Struct, frozen=True):
    """What the intake has of one stream: events, what is covered and lost, receipts."""

    stream: StreamId
    events: pa.Table
    ranges: pa.Table

    told: pa.Table

    @classmethod
    def of(cls, stream: StreamId, rows: pa.Table) -> BatchTaken:
        """From all rows about a stream."""
        receipts = pc.not_equal(rows["stream"], stream)
        ranging = pc.is_in(rows["kind"], pa.array([COVERAGE, LOST]))
        events = rows.filter(pc.invert(pc.or_(receipts, ranging)))
        return cls(stream, events, rows.filter(ranging), _receipts(rows.filter(receipts)))

    @property
    def rows(self) -> pa.Table:
        """Events as the audit takes them."""
        return published_rows(self.events, None)

    @property
    def covers(self) -> list[Cover]:
        """What is known, and as of when."""
        return covers_of(self.stream, self.ranges)

    @property
    def end(self) -> int:
        """The first number that is not there yet."""
        return max([FIRST, *[cover.hi for cover in self.covers]])

    def alive(self, policy: str) -> Ints:
        """The numbers of the rows that nothing has collected."""
        survivors = Survivors(with_gone(self.stream, self.rows, self.covers), policy)
        return np.intersect1d(survivors.alive(), ints(self.events, "seq"))


def _receipts(rows: pa.Table) -> pa.Table:
    """Rows of streams of receipts as the audit takes them."""
    said = [json.loads(text) for text in rows[ATTRS].to_pylist()]
    made = [
        each | {"stream": each["followed"], "region": region, "since": each["time"]}
        for each, region in zip(said, rows["region"].to_pylist(), strict=True)
    ]
    return pa.Table.from_pylist(made, schema=TOLD)


def grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[BatchTaken]:
    """The streams of a partition that is sorted by what rows are about."""
    kept: list[pa.Table] = []
    stream = ""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for each in table[ABOUT].unique().to_pylist():
            if each != stream and kept:
                yield BatchTaken.of(stream, pa.concat_tables(kept))
                kept = []
            stream = each
            kept.append(table.filter(pc.equal(table[ABOUT], each)))
    if kept:
        yield BatchTaken.of(stream, pa.concat_tables(kept))


def state(known: Facts, taken: BatchTaken) -> pa.Table:
    """`live` of one stream."""
    alive = taken.alive(known.gc)
    events = taken.events
    wanted = pc.and_(pc.is_in(events["seq"], pa.array(alive)), events["key"].is_valid())
    events = events.filter(pc.and_(wanted, pc.equal(events["kind"], "data")))
    last = events.group_by("key", use_threads=False).aggregate([("seq", "max")])["seq_max"]
    return events.filter(pc.is_in(events["seq"], last.combine_chunks())).select(LIVE.names).sort_by("seq").cast(LIVE)


def health_of(known: Facts, taken: BatchTaken) -> pa.Table:
    """`health` of one stream."""
    if not taken.ranges.num_rows:
        return HEALTH.empty_table()
    events, told = taken.events, taken.told
    lost = sum([cover.hi - cover.lo for cover in taken.covers if cover.lost])
    numbers = sum([cover.hi - cover.lo for cover in taken.covers]) - lost
    live = len(taken.alive(known.gc))
    waits = [wait for each in latencies(told, taken.rows).values() for wait in each]
    reach = np.maximum(ints(told, "hi"), ints(told, "asof"))
    said: dict[str, Any] = {"stream": taken.stream, "gc": known.gc, "end": taken.end}
    said |= {"events": events.num_rows, "live": live, "collected": numbers - live, "lost": lost}
    said |= {"collected_share": (numbers - live) / numbers if numbers else 0.0}
    said |= {name: pc.count_distinct(events[of]).as_py() for name, of in (("keys", "key"), ("publishers", "publisher"))}
    said |= {"bytes": pc.sum(pc.binary_length(events["payload"])).as_py() or 0}
    said |= {"subscribers": pc.count_distinct(told["subscriber"]).as_py(), "receipts": told.num_rows}
    said |= {"waiting": int((reach > taken.end).sum())}
    said |= {f"latency_ms_{name}": value for name, value in percentiles(waits).items()}
    regions = [*events["region"][:1].to_pylist(), *taken.ranges["region"].drop_null()[:1].to_pylist(), None]
    said |= {"region": regions[0]} | _rates(events["published_at"])
    return pa.Table.from_pylist([said], schema=HEALTH)


def _called(rows: pa.Table, stream: StreamName | StreamId) -> pa.Table:
    """The rows of one stream with its name, or with the id of one that is no more: another may have its name."""
    at = rows.schema.get_field_index("stream")
    return rows.set_column(at, rows.schema.field(at), pa.repeat(pa.scalar(stream), rows.num_rows))


def begun(owners: Mapping[StreamId, RegionId], schema: pa.Schema) -> pa.Table:
    """That [1, 1) of every stream is covered: of one without events the intake says nothing at all."""
    said = {"seq": FIRST, "before": FIRST, "_tick": FIRST, "kind": COVERAGE}
    rows = [said | {ABOUT: name, "stream": name, "region": region} for name, region in sorted(owners.items())]
    return pa.Table.from_pylist(rows, schema=schema)


def _rates(times: pa.ChunkedArray) -> dict[str, Any]:
    """How many events came in a second: on the whole, of late, at most."""
    if not len(times):
        return {"events_per_s": 0.0, "recent_per_s": 0.0, "peak_per_s": 0}
    at = np.sort(times.cast(pa.int64()).to_numpy())
    span = (at[-1] - at[0]) / 1e6
    recent = at[at > at[-1] - RECENT * 1_000_000]
    seconds = np.unique(at // 1_000_000, return_counts=True)[1]
    return {
        "first_at": pc.min(times).as_py(),
        "last_at": pc.max(times).as_py(),
        "events_per_s": (len(at) - 1) / max(span, 1.0),  # n events have n - 1 gaps
        "recent_per_s": (len(recent) - (len(recent) == len(at))) / min(max(span, 1.0), RECENT),
        "peak_per_s": int(seconds.max()),
    }


def verdicts(known: Facts, taken: BatchTaken) -> pa.Table:
    """`audit` of one stream: of the receipts for what is there, or ought to be by now."""
    covers = taken.ranges.select(COVERS.names).cast(COVERS)
    new = AuditState(rows=taken.rows, covers=covers, waiting=taken.told)
    return AuditState().advance(taken.stream, new, known, keep=sys.maxsize, settle=True)[1]


Work: TypeAlias = Callable[[Facts, BatchTaken], pa.Table]


# --- the definitions -----------------------------------------------------------------------------------------


def define(spark: SparkSession) -> None:
    """Define the tables, in a file of a Spark Declarative Pipelines project; the settings are those of the session."""
    settings = {
        URL: spark.conf.get(URL, os.environ.get("TIDINGS_URL", DEFAULT_URL)),
        TOKEN: spark.conf.get(TOKEN, os.environ.get("TIDINGS_TOKEN", "")),
        LEASE: spark.conf.get(LEASE, str(LEASE_SECONDS)),
        HELD: spark.conf.get(HELD, "{}"),
    }
    chosen = {name: value or "" for name, value in settings.items()}
    places = {region: place for region, place in look(chosen[URL], chosen[TOKEN]).items() if place.streams}
    if not places:
        raise BadInput(f"the cluster at {chosen[URL]} has no streams: tidings stream create makes one")
    for region, place in places.items():
        _define_intake(spark, region, place, chosen)
    facts = {name: each for place in places.values() for name, each in place.streams.items() if not is_internal(name)}
    owners = {name: region for region, place in places.items() for name in place.streams if name in facts}
    _define_views(spark, [intake_of(region) for region in places], facts, owners)


def _define_intake(spark: SparkSession, region: RegionId, place: RegionSource, chosen: Mapping[str, str]) -> None:
    from pyspark import pipelines as dp

    held: dict[StreamId, int] = json.loads(chosen[HELD])
    options = {
        "servers": place.servers,
        "token": chosen[TOKEN],
        "subscribe": ",".join(place.streams),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(BATCH),
        "leaseSeconds": chosen[LEASE],
        "archive": json.dumps({name: asof for name, asof in held.items() if name in place.streams}),
        "attributes": "json",
    }

    @dp.table(name=intake_of(region), comment="Of a region: events, what is covered and what is lost, receipts.")
    def intake() -> DataFrame:
        return spark.readStream.format("tidings").options(**options).load()


def _define_views(
    spark: SparkSession,
    intakes: Sequence[str],
    facts: Mapping[StreamId, Facts],
    owners: Mapping[StreamId, RegionId],
) -> None:
    from pyspark import pipelines as dp
    from pyspark.sql.pandas.types import from_arrow_schema as from_arrow
    from pyspark.sql.pandas.types import to_arrow_schema as to_arrow
    from pyspark.sql.types import LongType, StructField, StructType

    from tidings.spark.source import fields

    taken_schema = StructType(fields([ABOUT, *COLUMNS]))

    def intake() -> DataFrame:
        return functools.reduce(lambda a, b: a.union(b), [spark.read.table(name) for name in intakes])

    def all_begun() -> DataFrame:
        said = begun(owners, to_arrow(taken_schema, timezone="UTC"))

        def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from said.take(batch["id"]).to_batches()

        numbers: Any = spark.range(0, len(owners), 1, 1)
        numbers._cached_schema = StructType([StructField("id", LongType())])  # as below
        rows: DataFrame = numbers.mapInArrow(make, taken_schema)
        return rows

    def by_stream(work: Work, columns: pa.Schema, besides: DataFrame | None = None) -> DataFrame:
        def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for taken in grouped(batches):
                called = stream_name(taken.stream) if taken.stream in facts else taken.stream
                yield from _called(work(facts.get(taken.stream, UNKNOWN), taken), called).to_batches()

        rows: Any = intake().selectExpr(f"{about()} AS {ABOUT}", *INTAKE)
        rows = rows if besides is None else rows.union(besides)
        rows = rows.where(f"{ABOUT} IS NOT NULL").repartition(ABOUT).sortWithinPartitions(ABOUT)
        rows._cached_schema = taken_schema  # or it would ask for it, and nothing may be asked in a definition
        found: DataFrame = rows.mapInArrow(judge, from_arrow(columns))
        return found

    @dp.materialized_view(comment="Every event once, the collected ones too; attrs is a JSON object.")
    def events() -> DataFrame:
        there = ", ".join([f"'{stream}'" for stream in sorted(facts)])
        name = f"CASE WHEN stream IN ({there}) THEN substring_index(stream, '{MARK}', 1) ELSE stream END AS stream"
        return intake().where(f"NOT startswith(stream, '_') AND {is_event()}").selectExpr(name, *EVENTS)

    @dp.materialized_view(comment="For each stream and key the last event that nothing has collected.")
    def live() -> DataFrame:
        return by_stream(state, LIVE)

    @dp.materialized_view(comment="For each stream rates, latency in milliseconds, and what is collected.")
    def health() -> DataFrame:
        return by_stream(health_of, HEALTH, all_begun())

    @dp.materialized_view(comment="For each subscriber and stream a verdict; rows with an invariant are violations.")
    def audit() -> DataFrame:
        return by_stream(verdicts, pa.schema(list(EVIDENCE.items())))


def about() -> str:
    """In SQL: the stream that a row is of, or that a receipt is about; null if it is about none."""
    return f"CASE WHEN startswith(stream, '{RECEIPTS}') THEN get_json_object({ATTRS}, '$.followed') ELSE stream END"


def is_event() -> str:
    """In SQL: whether a row of the intake is one, and does not say what is covered or lost."""
    return f"kind NOT IN ('{COVERAGE}', '{LOST}')"


def intake_of(region: RegionId) -> str:
    """The table of a region: always the same one, since its checkpoint goes by it."""
    plain = re.sub(r"\W", "_", region).lower()
    suffix = "" if plain == region else "_" + hashlib.blake2b(region.encode(), digest_size=4).hexdigest()
    return f"intake_{plain}{suffix}"
