"""The audit as a Spark job: what subscribers say they were handed, against what the lake says was published.

The judging is `check.audit`, here per stream: rows and receipts of a stream come together in one task (a co-grouped
map), and what comes back is a table of evidence, one row per subscriber and stream with its verdict, and one per
violation. `evidence` is that table, `summary` what `tidings audit` prints of it.

`StreamAudit` is the same for a streaming query: state per stream, judged as receipts and rows come in. Receipts wait
until the rows they are about are there; that never happening is a violation, once the stream has gone on for a while.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tidings.check.audit import Findings, Verdict, audit
from tidings.check.survivors import Ints, ints
from tidings.check.tables import DELIVERED, PUBLISHED, Trace
from tidings.check.tables import LOST as LOST_RUN
from tidings.client.events import LOST
from tidings.core.filters import parse_attributes
from tidings.core.ids import RECEIPTS, StreamId, is_internal
from tidings.protocols.catalog import StreamDef
from tidings.spark.columns import ATTRS, COVERAGE, attributes_json
from tidings.spark.lake import KINDS, Cover, Lake, Snapshot, covers_of, gone, hashed, spark_schema

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
"""The evidence. A row with an ``invariant`` is one violation, one without says how a subscriber stands in a stream."""

SPARK_EVIDENCE = ", ".join(
    f"{name} {({pa.string(): 'string', pa.int64(): 'bigint'}).get(kind, 'array<double>')}"
    for name, kind in EVIDENCE.items()
)
TOLD = ", ".join(
    f"{name} {({pa.string(): 'string', pa.int64(): 'bigint', pa.float64(): 'double'})[kind]}"
    for name, kind in [*zip(DELIVERED.names, DELIVERED.types, strict=True), ("region", pa.string())]
)
SHOWN = 1000  # violations in a summary; ours: the table has all of them
BY_CLOCK = 10**15  # an incarnation above this is the time of its beginning, in microseconds: clients number them so


class Facts(msgspec.Struct, frozen=True):
    """What is known of a stream besides its rows."""

    gc: str = "none"
    attrs: str = ""
    end: int = 0  # at its owner
    covers: tuple[Cover, ...] = ()


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


def table_of(stream: StreamId, found: Findings, receipts: pa.Table, rows: pa.Table) -> pa.Table:
    """What an audit found, as evidence."""
    regions = dict(zip(*[receipts[name].to_pylist() for name in ("subscriber", "region")], strict=True))
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
        return judged(stream, left.cast(ROWS), right, facts.get(stream, Facts()), whole=True)

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
        "violations": wrong.select(names).slice(0, SHOWN).to_pylist(),
        "found": wrong.num_rows,
        "latency_ms": percentiles(_waits(pairs)),
        "latency_ms_by_region": regions,
    }


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


# --- as a streaming query ---------------------------------------------------------------------------------------

KEEP = 1_000_000  # rows of a stream that are remembered; ours: what is older is taken to be collected
PATIENCE = 60.0  # seconds that a stream goes on before what a receipt is about counts as never published; ours
INPUT = "stream string, what string, body binary"
"""Batches on their way to the state of their stream: rows, covers or receipts, as Arrow IPC."""

STATE = "rows binary, covers binary, waiting binary, last binary"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_TOLD = pa.schema([*[each.with_nullable(True) for each in DELIVERED], pa.field("region", pa.string())])
_COVERS = pa.schema([("seq", pa.int64()), ("before", pa.int64()), ("_tick", pa.int64()), ("kind", pa.string())])


class Standing(msgspec.Struct, frozen=True):
    """How the audit of one stream stands."""

    rows: pa.Table = msgspec.field(default_factory=ROWS.empty_table)
    covers: pa.Table = msgspec.field(default_factory=_COVERS.empty_table)
    waiting: pa.Table = msgspec.field(default_factory=_TOLD.empty_table)  # receipts for what has not come
    last: pa.Table = msgspec.field(default_factory=_TOLD.empty_table)  # of each incarnation the newest that was judged

    def advance(
        self, stream: StreamId, new: Standing, facts: Facts, keep: int = KEEP, patience: float = PATIENCE
    ) -> tuple[Standing, pa.Table]:
        """Take in rows, covers and receipts; how it stands then, and the evidence of what could be judged."""
        rows, covers = (pa.concat_tables([getattr(self, name), getattr(new, name)]) for name in ("rows", "covers"))
        waiting = pa.concat_tables([self.waiting, new.waiting])
        known = covers_of(stream, covers)
        end = max([facts.end, *[cover.hi for cover in known]])
        newest = pc.max(rows["published_at"]).cast(pa.int64()).as_py() if rows.num_rows else 0
        reach = np.maximum(ints(waiting, "hi"), ints(waiting, "asof"))
        due = (reach <= end) | (waiting["time"].to_numpy() < newest / 1e6 - patience)
        ready = waiting.filter(pa.array(due))
        told = pa.concat_tables([self.last, ready])
        found = judged(stream, rows, told, Facts(facts.gc, facts.attrs, end, tuple(known)))
        rows, covers = _bounded(rows, covers, end, keep)
        after = Standing(rows, covers, waiting.filter(pa.array(~due)), _newest(told))
        return after, _fresh(found, ready, self.last)


def _bounded(rows: pa.Table, covers: pa.Table, end: int, keep: int) -> tuple[pa.Table, pa.Table]:
    """Forget the oldest rows: what they were is not known any more, as of the end."""
    if rows.num_rows <= keep:
        return rows, covers
    rows = rows.sort_by("seq").slice(rows.num_rows - keep)
    cut = rows["seq"][0].as_py()
    lo = pc.min(covers["seq"]).as_py()
    later = covers.filter(pc.greater(covers["before"], cut))
    clipped = later.set_column(0, "seq", pc.max_element_wise(later["seq"], cut))
    forgotten = pa.Table.from_pylist([{"seq": lo, "before": cut, "_tick": end, "kind": COVERAGE}], schema=_COVERS)
    return rows, pa.concat_tables([forgotten, clipped.cast(_COVERS)])


def _newest(told: pa.Table) -> pa.Table:
    """Of every incarnation its last receipt, which the next one must continue."""
    by = told.sort_by([("n", "descending")])
    group = ["subscriber", "incarnation"]
    rest = [(name, "first") for name in _TOLD.names if name not in group]
    last = by.group_by(group, use_threads=False).aggregate(rest)
    return (
        last.rename_columns([name.removesuffix("_first") for name in last.column_names]).select(_TOLD.names).cast(_TOLD)
    )


def _fresh(found: pa.Table, ready: pa.Table, last: pa.Table) -> pa.Table:
    """Evidence without what was judged before: the receipts that the new ones only continue."""
    before = {(row["subscriber"], row["incarnation"], row["n"]): row for row in last.to_pylist()}
    subscribers = set(ready["subscriber"].to_pylist())
    told = found.to_pylist()
    out = [row for row in told if row["invariant"] and (row["subscriber"], row["incarnation"], row["n"]) not in before]
    wrong = Counter([row["subscriber"] for row in out])
    for row in told:
        if row["invariant"] is None and row["subscriber"] in subscribers:
            old = [each for key, each in before.items() if key[0] == row["subscriber"]]
            row["receipts"] -= len(old)
            row["events"] -= sum(each["hi"] - each["lo"] for each in old)
            row["rows"] -= sum(each["rows"] for each in old)
            row["violations"] = wrong[row["subscriber"]]
            unsure = row["unverifiable"] or row["unkept"]
            row["verdict"] = Verdict.of(row["violations"], row["lost"], unsure)
            out.append(row | {"verdict": row["verdict"].value})
    return pa.Table.from_pylist(out, schema=found.schema)


class StreamAudit(StatefulProcessor):
    """The state of one stream in a streaming query; what it yields is evidence of what was judged in this batch."""

    def __init__(self, facts: Mapping[StreamId, Facts], keep: int = KEEP, patience: float = PATIENCE) -> None:
        self.facts = dict(facts)
        self.keep = keep
        self.patience = patience

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.standing = handle.getValueState("standing", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        stream = key[0]
        parts: dict[str, list[pa.Table]] = {"rows": [], "covers": [], "waiting": []}
        for row in rows:
            parts[row.what].append(_from_ipc(row.body))
        new = Standing(**{name: pa.concat_tables(tables) for name, tables in parts.items() if tables})
        kept = self.standing.get() if self.standing.exists() else None
        before = Standing(*[_from_ipc(each) for each in kept]) if kept is not None else Standing()
        facts = self.facts.get(stream, Facts())
        after, found = before.advance(stream, new, facts, self.keep, self.patience)
        tables = (after.rows, after.covers, after.waiting, after.last)
        self.standing.update(tuple([_to_ipc(each) for each in tables]))
        yield from [Row(**each) for each in found.to_pylist()]

    def close(self) -> None:
        """Nothing is open."""


def _to_ipc(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return bytes(out.getvalue())


def _from_ipc(body: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(body)).read_all()


def packed_rows(attrs: Mapping[StreamId, str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of the source, read for an archive, as `INPUT`."""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for stream in table["stream"].unique().to_pylist():
            mine = table.filter(pc.equal(table["stream"], stream))
            covering = pc.is_in(mine["kind"], pa.array([COVERAGE, LOST]))
            covers, rows = mine.filter(covering), mine.filter(pc.invert(covering))
            if covers.num_rows:
                yield _input(stream, "covers", covers.select(_COVERS.names).cast(_COVERS))
            if rows.num_rows:
                rows = hashed(rows.append_column("_hash", pa.nulls(rows.num_rows, pa.int64())))
                yield _input(stream, "rows", published_rows(rows, attrs.get(stream, "")))


def packed_receipts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Receipts, as `TOLD`, as `INPUT`."""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for stream in table["stream"].unique().to_pylist():
            yield _input(stream, "waiting", table.filter(pc.equal(table["stream"], stream)).cast(_TOLD))


def _input(stream: StreamId, what: str, table: pa.Table) -> pa.RecordBatch:
    body = pa.array([_to_ipc(table)], pa.binary())
    return pa.RecordBatch.from_arrays([pa.array([stream]), pa.array([what]), body], names=["stream", "what", "body"])


def evidence_stream(
    events: DataFrame,
    told: DataFrame,
    facts: Mapping[StreamId, Facts],
    keep: int = KEEP,
    patience: float = PATIENCE,
) -> DataFrame:
    """Evidence as a streaming query has it: ``events`` read with option archive, ``told`` receipts as `TOLD`."""
    attrs = {stream: each.attrs for stream, each in facts.items()}
    both = events.mapInArrow(functools.partial(packed_rows, attrs), INPUT).union(
        told.mapInArrow(packed_receipts, INPUT)
    )
    events.sparkSession.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
    processor = StreamAudit(facts, keep, patience)
    return both.groupBy("stream").transformWithState(processor, SPARK_EVIDENCE, "Append", "None")
