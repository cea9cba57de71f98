"""The audit as a Spark job: what subscribers say they were handed, against what the lake says was published.

`check.audit` judges, here per stream: rows and receipts of a stream come together in one task (a co-grouped map). The
result is a table of evidence, one row per subscriber and stream with its verdict, and one per violation. `evidence` is
that table, `summary` what `tidings audit` prints of it.

spark/incremental_audit.py judges rows and receipts as they arrive; spark/streaming_audit.py does it as a query.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.check.audit import AuditFindings, Verdict, audit
from tidings.check.survivors import Ints, ints
from tidings.check.tables import DELIVERED, PUBLISHED, Trace
from tidings.check.tables import LOST as LOST_RUN
from tidings.core.filters import parse_attributes
from tidings.core.ids import NEVER, RECEIPTS, StreamId, is_internal
from tidings.protocols.services.catalog import StreamDef
from tidings.spark.columns import ATTRS, attributes_json
from tidings.spark.lake import KINDS, Cover, Lake, Snapshot, gone, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVIDENCE: dict[str, pa.DataType] = {
    "subscriber": pa.string(),
    "stream": pa.string(),
    "region": pa.string(),
    "verdict": pa.string(),
    "receipts": pa.int64(),
    "lo": pa.int64(),
    "hi": pa.int64(),
    "events": pa.int64(),
    "rows": pa.int64(),
    "unverifiable": pa.int64(),
    "lost": pa.int64(),
    "unkept": pa.int64(),
    "violations": pa.int64(),
    "latencies": pa.list_(pa.float64()),
    "fault": pa.string(),
    "invariant": pa.string(),
    "incarnation": pa.int64(),
    "n": pa.int64(),
    "asof": pa.int64(),
    "detail": pa.string(),
}
"""The evidence. A row with an ``invariant`` is one violation, one without says how a subscriber stands in a stream;
its ``detail`` is why some of it cannot be verified."""

SPARK_EVIDENCE = ", ".join(
    f"{name} {({pa.string(): 'string', pa.int64(): 'bigint'}).get(kind, 'array<double>')}"
    for name, kind in EVIDENCE.items()
)
TOLD = ", ".join(
    f"{name} {({pa.string(): 'string', pa.int64(): 'bigint', pa.float64(): 'double'})[kind]}"
    for name, kind in [*zip(DELIVERED.names, DELIVERED.types, strict=True), ("region", pa.string())]
)
SHOWN = 1000  # violations in a summary; ours: the table has all of them
DOUBT = ("subscriber", "stream", "region", "verdict", "detail")
BY_CLOCK = 10**15  # an incarnation above this is the time of its beginning, in microseconds: clients number them so


class Facts(msgspec.Struct, frozen=True):
    """What is known of a stream besides its rows."""

    gc: str = "none"
    attrs: str = ""
    end: int = 0  # at its owner
    covers: tuple[Cover, ...] = ()


UNKNOWN = Facts(end=NEVER)
"""Of a stream that is not there (any more) nobody can say that something was never published in it."""

# --- judging a stream, in a task ---------------------------------------------------------------------------


def judged(stream: StreamId, rows: pa.Table, receipts: pa.Table, facts: Facts, *, whole: bool = False) -> pa.Table:
    """The evidence of one stream, from its rows (`published_rows`) and receipts (`TOLD`); ``whole``: all of them."""
    trace = Trace(
        with_gone(stream, rows, facts.covers),
        receipts.select(DELIVERED.names).cast(DELIVERED),
        policies={stream: facts.gc},
        attributes={stream: facts.attrs},
    )
    return table_of(stream, audit(trace, {stream: facts.end}, whole=whole), receipts, rows)


def with_gone(stream: StreamId, rows: pa.Table, covers: Sequence[Cover]) -> pa.Table:
    """The published table of a stream: its rows, the numbers that were collected before they were read, the lost."""
    lacking, asofs = gone(covers, ints(rows, "seq"))
    lost = [{"stream": stream, "seq": c.lo, "count": c.hi - c.lo, "kind": LOST_RUN} for c in covers if c.lost]
    known = rows.select([name for name in PUBLISHED.names if name in rows.column_names])
    for name in PUBLISHED.names:
        if name not in known.column_names:
            known = known.append_column(name, pa.nulls(rows.num_rows, PUBLISHED.field(name).type))
    count = len(lacking)
    said: dict[str, Any] = {"seq": lacking, "gone": asofs, "count": np.ones(count, np.int64)}
    said |= {"stream": pa.repeat(pa.scalar(stream), count), "kind": np.zeros(count, np.int8)}
    arrays = [
        pa.array(said[each.name], each.type) if each.name in said else pa.nulls(count, each.type) for each in PUBLISHED
    ]
    whole = [known.select(PUBLISHED.names).cast(PUBLISHED), pa.Table.from_arrays(arrays, schema=PUBLISHED)]
    return pa.concat_tables([*whole, pa.Table.from_pylist(lost, schema=PUBLISHED)])


def table_of(
    stream: StreamId, found: AuditFindings, receipts: pa.Table, rows: pa.Table, known: Mapping[str, str] | None = None
) -> pa.Table:
    """What an audit found, as evidence; ``known``: regions of subscribers that have no receipt here."""
    regions = dict(known or {})
    regions |= dict(zip(*[receipts[name].to_pylist() for name in ("subscriber", "region")], strict=True))
    waits = latencies(receipts, rows)
    out: list[dict[str, Any]] = []
    for pair in found.pairs:
        said = {name: getattr(pair, name) for name in EVIDENCE if hasattr(pair, name)}
        more = {"region": regions[pair.subscriber], "latencies": waits.get(pair.subscriber, [])}
        out.append(said | more | {"verdict": pair.verdict.value})
    for each in found.violations:
        said = {name: value for name, value in each.where.items() if name in EVIDENCE}
        said |= {"stream": stream, "region": regions.get(each.where.get("subscriber", "")), "detail": each.detail}
        if "seq" in each.where:
            said |= {"lo": each.where["seq"], "hi": each.where["seq"] and each.where["seq"] + 1}
        out.append(said | {"invariant": each.invariant, "fault": each.fault and each.fault.value})
    return pa.Table.from_pylist(out, schema=pa.schema(list(EVIDENCE.items())))


def latencies(receipts: pa.Table, rows: pa.Table) -> dict[str, list[float]]:
    """By subscriber: how old the last event of each receipt was when it was handed over, in milliseconds.

    Of events that were published while the subscription was open: who comes late is not told late.
    """
    at = np.argsort(ints(rows, "seq"))
    seqs = ints(rows, "seq")[at]
    if not len(seqs) or not receipts.num_rows:
        return {}
    published = rows["published_at"].cast(pa.int64()).to_numpy()[at] / 1e6
    last = ints(receipts, "hi") - 1
    place = np.minimum(np.searchsorted(seqs, last), len(seqs) - 1)
    began = np.where(ints(receipts, "incarnation") > BY_CLOCK, ints(receipts, "incarnation") / 1e6, 0.0)
    told = receipts["time"].to_numpy()
    counts = (seqs[place] == last) & (published[place] >= began) & (ints(receipts, "rows") > 0)
    out: dict[str, list[float]] = {}
    names = receipts["subscriber"].to_pylist()
    waits = ((told - published[place]) * 1e3).tolist()
    for index in np.flatnonzero(counts).tolist():
        out.setdefault(names[index], []).append(waits[index])
    return out


# --- rows as the checks take them -----------------------------------------------------------------------------

BASE = ("stream", "seq", "kind", "publisher", "session", "number", "key", "before", "where", "tick")
ROWS = pa.schema(
    [
        *[PUBLISHED.field(name).remove_metadata().with_nullable(True) for name in (*BASE[:2], "count", *BASE[2:])],
        *[pa.field(name, PUBLISHED.field(name).type) for name in ("attrs", "hash", "committed_hash")],
        pa.field("published_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""Rows of the lake as `judged` takes them: of the published table what is known, and when they were published."""

SPARK_ROWS = ", ".join(
    f"`{each.name}` "
    + {pa.string(): "string", pa.int64(): "bigint", pa.int8(): "tinyint", pa.binary(): "binary"}.get(
        each.type, "timestamp"
    )
    for each in ROWS
)


def published_rows(rows: pa.Table, attrs: str | None) -> pa.Table:
    """Rows of the lake in the columns of the published table; None: their attributes are JSON already."""
    names = {"session": "_session", "number": "pub_seq", "tick": "_tick", "hash": "_hash", "committed_hash": "_hash"}
    made = {name: rows[names.get(name, name)] for name in ROWS.names if names.get(name, name) in rows.column_names}
    made["kind"] = pc.index_in(rows["kind"], pa.array(list(KINDS))).cast(pa.int8())
    made["count"] = pa.array(np.ones(rows.num_rows, np.int64))
    made["attrs"] = rows[ATTRS] if attrs is None else attributes_of(rows, attrs)
    return pa.Table.from_arrays([made[name] for name in ROWS.names], names=ROWS.names).cast(ROWS)


def attributes_of(rows: pa.Table, attrs: str) -> pa.Array:
    """The declared attributes of rows as JSON objects."""
    declared = [name for name in parse_attributes(attrs) if name in rows.column_names]
    if not declared:
        return pa.nulls(rows.num_rows, pa.string())
    return attributes_json({name: rows[name] for name in declared})


# --- the lake ---------------------------------------------------------------------------------------------------


def facts_of(snapshot: Snapshot, ends: Mapping[StreamId, int] | None = None) -> dict[StreamId, Facts]:
    """What the lake knows of its streams, of new ones only where they end; ``ends``: what their owners say now."""
    out = {}
    for stream in sorted({*snapshot.streams, *snapshot.ends, *(ends or {})}):
        if not is_internal(stream):
            definition = snapshot.definitions.get(stream, StreamDef(stream, ""))
            end = max(snapshot.ends.get(stream, 0), snapshot.end(stream), (ends or {}).get(stream, 0))
            if stream in snapshot.deleted:
                end = NEVER
            out[stream] = Facts(definition.gc, definition.attrs, end, tuple(snapshot.coverage.get(stream, ())))
    return out


def events(spark: SparkSession, lake: Lake, snapshot: Snapshot) -> DataFrame:
    """All rows of all streams, as `ROWS`: one scan for all streams with the same attributes."""
    alike: dict[str, list[str]] = {}
    for stream, definition in snapshot.definitions.items():
        if not is_internal(stream):
            paths = [str(lake.root / file.path) for file in snapshot.of(stream)]
            alike.setdefault(definition.attrs, []).extend(paths)
    found = spark.createDataFrame([], SPARK_ROWS)
    for attrs, paths in sorted(alike.items()):
        if paths:
            read = spark.read.schema(spark_schema(StreamDef("", "", attrs=attrs))).parquet(*paths)
            found = found.union(read.mapInArrow(functools.partial(_converted, attrs), SPARK_ROWS))
    return found


def _converted(attrs: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from published_rows(pa.Table.from_batches([batch]), attrs).to_batches()


def receipts(spark: SparkSession, lake: Lake, snapshot: Snapshot) -> DataFrame:
    """All receipts of all regions, as `TOLD`."""
    streams = [stream for stream in snapshot.definitions if stream.startswith(RECEIPTS)]
    paths = [str(lake.root / file.path) for stream in streams for file in snapshot.of(stream)]
    if not paths:
        return spark.createDataFrame([], TOLD)
    rows = spark.read.schema(spark_schema(snapshot.definitions[streams[0]])).parquet(*paths).where("kind = 'data'")
    return rows.selectExpr(
        *[f"{'followed AS stream' if name == 'stream' else name}" for name in DELIVERED.names], "region"
    )


def evidence(
    spark: SparkSession, lake: Lake, snapshot: Snapshot | None = None, ends: Mapping[StreamId, int] | None = None
) -> DataFrame:
    """Judge everything in a lake."""
    snapshot = snapshot or lake.snapshot()
    facts = facts_of(snapshot, ends)

    def judge(key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> pa.Table:
        stream = key[0].as_py()
        return judged(stream, left.cast(ROWS), right, facts.get(stream, UNKNOWN), whole=True)

    rows, told = events(spark, lake, snapshot), receipts(spark, lake, snapshot)
    return rows.groupBy("stream").cogroup(told.groupBy("stream")).applyInArrow(judge, SPARK_EVIDENCE)


def summary(found: pa.Table) -> dict[str, Any]:
    """What `tidings audit` says of the evidence."""
    wrong = found.filter(found["invariant"].is_valid())
    pairs = found.filter(found["invariant"].is_null())
    verdicts = pairs["verdict"].to_pylist()
    names = ("fault", "invariant", "subscriber", "stream", "region", "incarnation", "n", "lo", "hi", "asof", "detail")
    regions = {
        region: percentiles(_waits(pairs.filter(pc.equal(pairs["region"], region))))
        for region in sorted(pairs["region"].unique().to_pylist())
    }
    return {
        "subscribers": len(pairs["subscriber"].unique()),
        "streams": len(pairs["stream"].unique()),
        "receipts": pc.sum(pairs["receipts"]).as_py() or 0,
        "events": pc.sum(pairs["events"]).as_py() or 0,
        "proved": verdicts.count(Verdict.PROVED),
        "violated": verdicts.count(Verdict.VIOLATED),
        "lost": verdicts.count(Verdict.LOST),
        "lost_events": pc.sum(pairs["lost"]).as_py() or 0,
        "unverifiable": verdicts.count(Verdict.UNVERIFIABLE),
        "unverifiable_events": pc.sum(pairs["unverifiable"]).as_py() or 0,
        "doubts": doubts(pairs.select(DOUBT).to_pylist()),
        "violations": wrong.select(names).slice(0, SHOWN).to_pylist(),
        "found": wrong.num_rows,
        "latency_ms": percentiles(_waits(pairs)),
        "latency_ms_by_region": regions,
    }


def doubts(pairs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Who has something unverifiable, in which stream, which numbers, and why."""
    found = [{name: each[name] for name in DOUBT} for each in pairs if each["detail"]]
    return sorted(found, key=lambda each: (each["stream"], each["subscriber"]))[:SHOWN]


def _waits(pairs: pa.Table) -> Ints:
    found: Ints = pc.list_flatten(pairs["latencies"]).to_numpy()
    return found


def percentiles(values: Any) -> dict[str, float | None]:
    """Median and 99th percentile; None where there is nothing to tell."""
    if not len(values):
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(values, [50, 99]).tolist()
    return {"p50": round(p50, 3), "p99": round(p99, 3)}


def audit_lake(spark: SparkSession, lake: Lake, ends: Mapping[StreamId, int] | None = None) -> dict[str, Any]:
    """Judge everything in a lake and sum it up."""
    return summary(evidence(spark, lake, ends=ends).toArrow())
