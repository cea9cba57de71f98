"""The audit as a streaming query: everything that a cluster publishes, and every receipt, judged as it arrives.

One source per region reads the region's own streams and its receipts, as an archive does. Everything about a stream
comes together in one state (`StreamAudit`, with transformWithState), which is an `AuditState`. The output is evidence
as of the batch audit. Its rows add up: each says what was judged since the one before.

`AuditQuery` runs it: it holds a lease on every stream from its beginning to its end, so that rows are read before they
are purged, takes in streams that are created meanwhile, and adds the evidence up.
"""

from __future__ import annotations

import functools
import json
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tidings import sync
from tidings.check.audit import Verdict
from tidings.client.url import SCHEME
from tidings.core.errors import TidingsError
from tidings.core.ids import NEVER, RegionId, StreamId, is_internal
from tidings.spark.archive import BATCH, TIMEOUT, RegionAway, Source, regions_of
from tidings.spark.audit import EVIDENCE, SHOWN, SPARK_EVIDENCE, UNKNOWN, Facts, doubts, percentiles
from tidings.spark.incremental_audit import COVERS, FORGET, KEEP, PATIENCE, TOLD, AuditState
from tidings.spark.lake import Lake
from tidings.spark.tables import ABOUT, INTAKE, BatchTaken, about

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

INTERVAL = 2.0  # seconds between batches; ours
LEASE = 120.0  # seconds that a lease outlives its process; ours: the next audit begins anew
PAUSE = 0.1  # seconds between looks at the query; ours
PATIENT = 5.0  # seconds for a batch to end by itself before the query is stopped; ours
SAID = 1000  # characters of an error that are shown; ours
RETRIES = 2  # of a query that fails, from its checkpoint, without a batch in between; ours: an executor may be lost
WAITS = 100_000  # latencies of a region of which percentiles are told, the newest; ours
INPUT = "stream string, what string, body binary"
"""Batches on their way to the state of their stream: rows, covers or receipts, as Arrow IPC."""

TABLES = ("rows", "covers", "waiting", "recent", "runs", "said")
STATE = ", ".join([f"{name} binary" for name in TABLES]) + ", floor long"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
WAITING = "waiting"
"""Instead of a verdict, in a row without a subscriber: so many receipts of a stream wait for what they are about."""

Evidence: TypeAlias = list[dict[str, Any]]


class LiveFailed(TidingsError):
    """The query of a live audit has failed."""


def reason(error: BaseException) -> str:
    """What a query has failed of, in a line: what Spark says of it, and what was behind it, without the plan."""
    said: list[str] = []
    behind: BaseException | None = error
    while behind is not None:
        line = " ".join(str(behind).split("=== Streaming Query ===", maxsplit=1)[0].split())[:SAID]
        said += [line] if line and line not in said else []
        behind = getattr(behind, "_cause", None)  # PySpark keeps it there
    return "; ".join(said)


# --- the query ----------------------------------------------------------------------------------------------------


class StreamAudit(StatefulProcessor):
    """The state of one stream in a streaming query; what it yields is evidence of what was judged in this batch."""

    def __init__(
        self,
        facts: Mapping[StreamId, Facts],
        keep: int = KEEP,
        patience: float = PATIENCE,
        forget: float = FORGET,
    ) -> None:
        self.facts = dict(facts)
        self.keep = keep
        self.patience = patience
        self.forget = forget

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.state = handle.getValueState("audit", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Judge what comes in."""
        now = timerValues.getCurrentProcessingTimeInMs()
        parts: dict[str, list[pa.Table]] = {"rows": [], "covers": [], "waiting": []}
        for row in rows:
            parts[row.what].append(_from_ipc(row.body))
        new = {name: pa.concat_tables(tables) for name, tables in parts.items() if tables}
        if "waiting" in new:
            at = TOLD.get_field_index("since")
            came = pa.repeat(pa.scalar(now / 1e3), new["waiting"].num_rows)
            new["waiting"] = new["waiting"].set_column(at, TOLD.field("since"), came)
        yield from self._advance(key[0], AuditState(**new), now)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Judge what has waited for too long."""
        yield from self._advance(key[0], AuditState(), timerValues.getCurrentProcessingTimeInMs())

    def _advance(self, stream: StreamId, new: AuditState, now: int) -> Iterator[Any]:
        kept = self.state.get() if self.state.exists() else None
        tables = dict(zip(TABLES, [_from_ipc(each) for each in kept[:-1]], strict=True)) if kept else {}
        before = AuditState(**tables, floor=kept[-1]) if kept else AuditState()
        after, found = before.advance(
            stream,
            new,
            self.facts.get(stream, UNKNOWN),  # a stream that is not read yet will be
            keep=self.keep,
            patience=self.patience,
            forget=self.forget,
            now=now / 1e3,
        )
        self.state.update((*[_to_ipc(getattr(after, name)) for name in TABLES], after.floor))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        if (due := after.due) is not None:
            self.handle.registerTimer(max(now, int((due + self.patience) * 1e3)) + 1)
        yield from [Row(**each) for each in found.to_pylist()]
        if after.waiting.num_rows != before.waiting.num_rows:
            waiting = {"stream": stream, "verdict": WAITING, "receipts": after.waiting.num_rows}
            yield Row(**(dict.fromkeys(EVIDENCE) | waiting))

    def close(self) -> None:
        """Nothing is open."""


def _to_ipc(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return bytes(out.getvalue())


def _from_ipc(body: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(bytes(body))).read_all()


def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of the source, read for an archive with attributes as JSON, as `INPUT`."""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for stream in table[ABOUT].unique().to_pylist():
            taken = BatchTaken.of(stream, table.filter(pa.compute.equal(table[ABOUT], stream)))
            parts = {"rows": taken.rows, "covers": taken.ranges.select(COVERS.names).cast(COVERS)}
            for what, each in (parts | {"waiting": taken.told}).items():
                if each.num_rows:
                    body = pa.array([_to_ipc(each)], pa.binary())
                    columns = [pa.array([stream]), pa.array([what]), body]
                    yield pa.RecordBatch.from_arrays(columns, names=["stream", "what", "body"])


def evidence_stream(intake: DataFrame, processor: StreamAudit) -> DataFrame:
    """Evidence as a streaming query has it; ``intake``: read with options archive, and attributes "json"."""
    intake.sparkSession.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
    rows = intake.selectExpr(f"{about()} AS {ABOUT}", *INTAKE).where(f"{ABOUT} IS NOT NULL")
    grouped = rows.mapInArrow(packed, INPUT).groupBy("stream")
    return grouped.transformWithState(processor, SPARK_EVIDENCE, "Append", "ProcessingTime")


# --- what it comes to ---------------------------------------------------------------------------------------------


class Total:
    """Evidence added up: how every subscriber stands in every stream, since the beginning."""

    COUNTED = ("receipts", "events", "rows", "unverifiable", "lost", "unkept", "violations")

    def __init__(self) -> None:
        self.pairs: dict[tuple[str, StreamId], Counter[str]] = {}
        self.verdicts: dict[tuple[str, StreamId], Verdict] = {}
        self.doubts: dict[tuple[str, StreamId], dict[str, Any]] = {}  # the last one of each
        self.violations: Evidence = []
        self.found = 0
        self.waiting: dict[StreamId, int] = {}
        self.waits: dict[RegionId, deque[float]] = {}

    def add(self, evidence: Evidence) -> Evidence:
        """Take in evidence; what is worth telling of it: violations, and verdicts that have changed."""
        news: Evidence = []
        for row in evidence:
            key = row["subscriber"], row["stream"]
            if row["invariant"] is not None:
                said = {name: value for name, value in row.items() if name in _VIOLATION}
                self.found += 1
                self.violations += [said] if self.found <= SHOWN else []
                news.append({"violation": said})
            elif row["verdict"] == WAITING:
                self.waiting[row["stream"]] = row["receipts"]
            else:
                mine = self.pairs.setdefault(key, Counter())
                mine.update({name: row[name] for name in self.COUNTED})
                waits = self.waits.setdefault(row["region"], deque(maxlen=WAITS))
                waits.extend(row["latencies"] or ())
                verdict = Verdict.of(mine["violations"], mine["lost"], mine["unverifiable"] + mine["unkept"])
                if row["detail"]:
                    self.doubts[key] = row
                if verdict != self.verdicts.get(key):
                    self.verdicts[key] = verdict
                    where = {"subscriber": key[0], "stream": key[1], "region": row["region"]}
                    why = {"detail": row["detail"]} if row["detail"] else {}
                    counts = {name: mine[name] for name in self.COUNTED}
                    news.append({"verdict": verdict.value} | where | counts | why)
        return news

    def summary(self) -> dict[str, Any]:
        """As the batch audit says it, and how many receipts wait."""
        verdicts = list(self.verdicts.values())
        sums = {name: sum([mine[name] for mine in self.pairs.values()]) for name in self.COUNTED}
        return {
            "subscribers": len({subscriber for subscriber, _ in self.pairs}),
            "streams": len({stream for _, stream in self.pairs}),
            "receipts": sums["receipts"],
            "events": sums["events"],
            **{each.value: verdicts.count(each) for each in Verdict},
            "lost_events": sums["lost"],
            "unverifiable_events": sums["unverifiable"],
            "doubts": doubts([row | {"verdict": self.verdicts[key].value} for key, row in self.doubts.items()]),
            "violations": self.violations,
            "found": self.found,
            "waiting": sum(self.waiting.values()),
            "latency_ms": percentiles([wait for waits in self.waits.values() for wait in waits]),
            "latency_ms_by_region": {region: percentiles(waits) for region, waits in sorted(self.waits.items())},
        }


_VIOLATION = {
    *("fault", "invariant", "subscriber", "stream", "region", "incarnation", "n", "lo", "hi", "asof", "detail"),
}


# --- running it ---------------------------------------------------------------------------------------------------


class AuditQuery:
    """A live audit of a cluster. ``tell``: called with every batch of evidence that says anything."""

    def __init__(
        self,
        spark: SparkSession,
        servers: str,
        tell: Callable[[Evidence, Evidence], None] = lambda news, evidence: None,
        *,
        token: str = "",
        interval: float = INTERVAL,
        patience: float = PATIENCE,
        keep: int = KEEP,
    ) -> None:
        from tidings.spark.format import TidingsFormat

        self.spark = spark
        self.servers = servers
        self.token = token
        self.tell = tell
        self.interval, self.patience, self.keep = interval, patience, keep
        self.total = Total()
        self._batch = -1
        spark.dataSource.register(TidingsFormat)

    def run(self, until: Callable[[], bool]) -> dict[str, Any]:
        """Judge until told to stop; the summary."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidings-audit-")))
            sources = self._sources(stack)
            for source in sources:
                stack.callback(source.leave)
            failed, batch = 0, self._batch
            while not until():
                query = self._start(sources, self._look(sources, folder), folder)
                try:
                    self._follow(query, sources, until)
                    error = query.exception()  # before it is stopped: that may interrupt a batch, which is no failure
                finally:
                    query.stop()
                if self._batch > batch:
                    failed, batch = 0, self._batch
                if error:
                    failed += 1
                    if failed > RETRIES:
                        raise LiveFailed(f"the live audit has failed: {reason(error)}")
        return self.total.summary()

    def _sources(self, stack: ExitStack) -> list[Source]:
        def connect(servers: str) -> sync.BlockingConnection:
            url = servers if servers.startswith(SCHEME) else SCHEME + servers
            return stack.enter_context(sync.connect(url, token=self.token or None, timeout=TIMEOUT))

        regions = regions_of(connect(self.servers))
        return [Source(region, servers, connect(servers)) for region, servers in sorted(regions.items())]

    def _look(self, sources: list[Source], folder: Path) -> dict[StreamId, int]:
        """Where the streams end; from now on nothing is missed."""
        ends: dict[StreamId, int] = {}
        for source in sources:
            try:
                ends |= source.look()
                source.hold(Lake(folder / "leases"), {}, LEASE)  # under a name that is nobody else's
            except RegionAway:
                if not source.streams:
                    raise
                ends |= dict.fromkeys(source.streams, NEVER)  # nobody knows
        return ends

    def _start(self, sources: list[Source], ends: Mapping[StreamId, int], folder: Path) -> StreamingQuery:
        intakes: list[DataFrame] = []
        for source in sources:
            options = {
                "servers": source.servers,
                "token": self.token,
                "subscribe": ",".join(sorted(source.streams)),
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(BATCH),
                "leaseSeconds": str(LEASE),
                "timeoutSeconds": str(TIMEOUT),
                "failOnDataLoss": "false",  # a stream that is deleted meanwhile is no reason to end
                "archive": json.dumps({name: lease.asof for name, lease in source.leases.items()}),
                "attributes": "json",
            }
            intakes.append(self.spark.readStream.format("tidings").options(**options).load())
        streams = {name: each for source in sources for name, each in source.streams.items() if not is_internal(name)}
        facts = {name: Facts(each.gc, each.attrs, ends[name]) for name, each in streams.items()}
        intake = functools.reduce(lambda a, b: a.union(b), intakes)
        found = evidence_stream(intake, StreamAudit(facts, self.keep, self.patience))
        to = found.writeStream.foreachBatch(self._take).option("checkpointLocation", str(folder / "checkpoint"))
        return to.trigger(processingTime=f"{self.interval} seconds").start()

    def _follow(self, query: StreamingQuery, sources: list[Source], until: Callable[[], bool]) -> None:
        """Wait until it is over, or streams come or change; then for the batch that runs, longest for the first."""
        self._watch(query, sources, until)
        asked = time.monotonic()
        while query.isActive and time.monotonic() - asked < (TIMEOUT if self._batch < 0 else PATIENT):
            status = query.status
            if not status["isTriggerActive"] and not status["message"].startswith("Initializing"):
                break
            time.sleep(PAUSE)

    def _watch(self, query: StreamingQuery, sources: list[Source], until: Callable[[], bool]) -> None:
        known = [dict(source.streams) for source in sources]
        looked = time.monotonic()
        while query.isActive and not until():
            time.sleep(PAUSE)
            if time.monotonic() - looked > self.interval:
                looked = time.monotonic()
                done = _done(query)
                for source in sources:
                    with suppress(RegionAway):
                        source.look()
                        source.move(done)
                if [source.streams for source in sources] != known:
                    return

    def _take(self, found: DataFrame, batch: int) -> None:
        """Add up a batch, once. One that runs again has to be worked out again: its state was not committed."""
        evidence = found.toArrow().to_pylist()
        if batch <= self._batch:
            return
        self._batch = batch
        news = self.total.add(evidence)
        if evidence:
            self.tell(news, [row for row in evidence if row["verdict"] != WAITING])


def _done(query: StreamingQuery) -> dict[StreamId, int]:
    """Up to where streams are judged: nothing before that is read again."""
    progress = query.lastProgress
    ends = [json.loads(each["endOffset"] or "{}") for each in progress["sources"]] if progress else []
    return {stream: at["seq"] for each in ends for stream, at in each.items()}
