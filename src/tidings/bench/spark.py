"""How fast Spark reads Tidings: `tidings bench spark`.

    source-batch   spark.read from live replicas, the rows counted
    source-stream  the same rows through a streaming query, in one batch, with its start-up
    generator      a Python Arrow source that makes the same rows inside the worker: the ceiling of sources in Python
    parquet        a scan of the same rows, written to files before
    sink           a batch write of as many rows (bench/sink.py)

Rows have ten-byte keys and the columns of the format. Every run does the same with them, a sum over numbers and lengths
of keys, so that no column is left out. Repetitions alternate, so that other load on the machine disturbs all alike.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from tidings import sync
from tidings.bench import sink as bench_sink
from tidings.core.rows import ArrowRows, Origin, data_rows
from tidings.server.local import LocalCluster
from tidings.sim.run import Progress
from tidings.spark.session import require_java, spark

STREAM = "bench"
BATCH = 16_384
KEY_BYTES = 10  # SP9

Measure: TypeAlias = Callable[[], float]


class SparkScale(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured; tests use little."""

    rows: int = 8_000_000
    partitions: int = 4
    master: str = "local[2]"


def keys(lo: int, count: int) -> list[bytes]:
    """Ten-byte keys."""
    return [b"%010d" % (number % 100_000) for number in range(lo, lo + count)]


def run(runs: int, report: Progress | None = None, scale: SparkScale | None = None) -> dict[str, Any]:
    """Medians of some repetitions, with the spread."""
    require_java()
    scale = scale or SparkScale()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    with tempfile.TemporaryDirectory(prefix="tidings-bench-") as name:
        cluster = LocalCluster(1, 3, Path(name) / "cluster")
        try:
            asyncio.run_coroutine_threadsafe(cluster.start(), loop).result(120)
            return _measured(runs, report, scale, cluster.url("r0"), Path(name))
        finally:
            asyncio.run_coroutine_threadsafe(cluster.stop(), loop).result(120)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def _measured(runs: int, report: Progress | None, scale: SparkScale, url: str, folder: Path) -> dict[str, Any]:
    _fill(url, scale.rows)
    with spark(scale.master, "tidings bench spark") as session:
        options = {"servers": url.removeprefix("tidings://"), "subscribe": STREAM, "startingOffsets": "earliest"}
        session.dataSource.register(_generator())
        measures = _measures(session, options, scale, folder)
        times: dict[str, list[float]] = {name: [] for name in measures}
        for repetition in range(runs + 1):
            for at, (name, measure) in enumerate(measures.items()):
                seconds = measure()
                if repetition:  # the first one warms up
                    times[name].append(seconds)
                if report is not None:
                    report(repetition * len(measures) + at + 1, (runs + 1) * len(measures), name)
    found = [_entry(name, scale, seconds) for name, seconds in times.items()]
    rates = {each["name"]: each["rows_per_s"] for each in found}
    ratio = {f"source-batch/{name}": round(rates["source-batch"] / rates[name], 3) for name in ("generator", "parquet")}
    return {"bench": "spark", "runs": found, "ratio": ratio}


def _entry(name: str, scale: SparkScale, seconds: Sequence[float]) -> dict[str, Any]:
    rates = sorted([round(scale.rows / each) for each in seconds])
    return {
        "name": name,
        "rows_per_s": int(statistics.median(rates)),
        "spread": [rates[0], rates[-1]],
        "rows": scale.rows,
    }


def _fill(url: str, rows: int) -> None:
    with sync.connect(url) as t:
        t.create_stream(STREAM)
        for lo in range(0, rows, 16 * BATCH):
            t.publish_table(STREAM, pa.table({"key": keys(lo, min(16 * BATCH, rows - lo))}))


def _measures(session: Any, options: dict[str, str], scale: SparkScale, folder: Path) -> dict[str, Measure]:
    parts = str(scale.partitions)
    files = str(folder / "parquet")
    source = session.read.format("tidings").options(**options, minPartitions=parts)
    source.load().write.parquet(files)
    streams = iter(range(1_000_000))

    def streaming() -> float:
        began = time.perf_counter()
        df = session.readStream.format("tidings").options(**options, minPartitions=parts).load()
        counted: list[int] = []
        query = (
            df.writeStream.foreachBatch(lambda batch, _: counted.append(_consume(batch)))
            .option("checkpointLocation", str(folder / f"checkpoint-{next(streams)}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - began
        assert sum(counted) == scale.rows, f"{counted} rows, not {scale.rows}"
        return seconds

    def timed(load: Callable[[], Any]) -> Measure:
        def measure() -> float:
            began = time.perf_counter()
            found = _consume(load())
            seconds = time.perf_counter() - began
            assert found == scale.rows, f"{found} rows, not {scale.rows}"
            return seconds

        return measure

    made = session.read.format("tidings-generator").options(rows=str(scale.rows), parts=parts)
    return {
        "source-batch": timed(source.load),
        "source-stream": streaming,
        "generator": timed(made.load),
        "parquet": timed(lambda: session.read.parquet(files)),
        "sink": lambda: bench_sink.measure(session, options["servers"], scale.rows),
    }


def _consume(df: Any) -> int:
    """Use every column; the count."""
    columns = ("stream", "key", "payload", "region", "publisher", "kind")
    sums = [f"sum(length({name}))" for name in columns] + ["sum(seq)", "sum(pub_seq)", "max(published_at)"]
    return int(df.selectExpr("count(*) as n", *sums).first().n)


# --- the ceiling ----------------------------------------------------------------------------------------------


def batches(lo: int, hi: int) -> Iterator[pa.RecordBatch]:
    """The rows of [lo, hi), made by the code that a read uses, from a batch that is there already."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from tidings.spark.columns import SparkColumns

    columns = SparkColumns(to_arrow_schema(_schema(), timezone="UTC"))
    batch = data_rows(1, list(keys(0, BATCH)), [b""] * BATCH).batch
    for first in range(lo, hi, BATCH):
        count = min(BATCH, hi - first)
        origin = Origin(first, first + count, "generator", 1, first, 0, 1.7e9, "r0")
        yield columns.batch(STREAM, ArrowRows(None, batch.slice(0, count), (origin,), first))


def _schema() -> Any:
    from pyspark.sql.types import StructField, StructType

    from tidings.core.filters import AttrType
    from tidings.spark.columns import FIXED
    from tidings.spark.source import FIXED_TYPES, SPARK_TYPES

    return StructType([StructField(name, SPARK_TYPES[FIXED_TYPES.get(name, AttrType.STRING)]) for name in FIXED])


def _generator() -> Any:
    """A source that makes the same rows inside the worker."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def __init__(self, rows: int, parts: int) -> None:
            self.rows, self.parts = rows, parts

        def partitions(self) -> list[InputPartition]:
            cuts = [1 + self.rows * at // self.parts for at in range(self.parts + 1)]
            return [InputPartition((cuts[at], cuts[at + 1])) for at in range(self.parts)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield from batches(*partition.value)

    class Generator(DataSource):
        @classmethod
        def name(cls) -> str:
            return "tidings-generator"

        def schema(self) -> Any:
            return _schema()

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(int(self.options["rows"]), int(self.options["parts"]))

    return Generator
