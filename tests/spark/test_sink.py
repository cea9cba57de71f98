"""The sink: what a query or a job writes is in the stream once, whatever is run again; what cannot be is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import StructType

from spark.rig import Cluster
from tidings.campaign.spark.sink_faults import hashed, rows_of
from tidings.core.errors import BadAttribute, BadInput
from tidings.spark.sink import WriteOptions, check_columns, stream_writer, writer


def fresh(cluster: Cluster, name: str, attrs: str = "") -> str:
    with cluster.connect() as t:
        t.create_stream(name, attrs=attrs)
    return name


def content(cluster: Cluster, stream: str) -> tuple[int, int]:
    with cluster.connect() as t:
        return rows_of(t, stream)


def expected(lines: list[str], times: int = 1) -> tuple[int, int]:
    array = pa.array([line.encode() for line in lines], pa.binary())
    return times * len(lines), times * hashed(array) % 2**64


class Query:
    """A streaming query over text files, two files per batch, that reads what is there and ends."""

    def __init__(self, spark: Any, cluster: Cluster, folder: Path, stream: str) -> None:
        self.spark, self.cluster, self.folder, self.stream = spark, cluster, folder, stream
        self.lines: list[str] = []
        (folder / "in").mkdir()

    def add(self, files: int) -> None:
        for _ in range(files):
            at = len(self.lines)
            lines = [f"{at + number}: a line" for number in range(50)]
            (self.folder / "in" / f"{at:05}.txt").write_text("\n".join(lines))
            self.lines += lines

    def run(self, checkpoint: str = "a", **options: str) -> None:
        lines = self.spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(str(self.folder / "in"))
        writing = lines.selectExpr("value as payload").writeStream.format("tidings")
        writing = writing.options(servers=self.cluster.servers, stream=self.stream, writerId="w", **options)
        writing = writing.option("checkpointLocation", str(self.folder / checkpoint)).trigger(availableNow=True)
        writing.start().awaitTermination()


def test_a_query_writes_every_batch_once_also_those_that_spark_runs_again(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    query = Query(spark, cluster, tmp_path, fresh(cluster, "sink-query"))
    query.add(4)
    query.run()
    assert content(cluster, query.stream) == expected(query.lines)
    (tmp_path / "a" / "commits" / "1").unlink()  # the driver died before it wrote down that the batch is committed
    (tmp_path / "a" / "commits" / ".1.crc").unlink(missing_ok=True)
    query.add(1)
    query.run()
    assert content(cluster, query.stream) == expected(query.lines)

    with pytest.raises(StreamingQueryException, match="writerReset"):
        query.run(checkpoint="b")
    assert content(cluster, query.stream) == expected(query.lines)
    query.run(checkpoint="c", writerReset="true")
    assert content(cluster, query.stream) == expected(query.lines, 2)


def test_a_job_publishes_all_its_rows_or_none(spark: Any, cluster: Cluster) -> None:
    stream = fresh(cluster, "sink-job", "n bigint, loc string")
    rows = spark.range(0, 2000, 1, 3).selectExpr("concat('k', id % 7) key", "concat('p', id) payload", "id n")
    target = {"servers": cluster.servers, "stream": stream}
    failing = rows.selectExpr("key", "payload", "if(n = 1999, raise_error('no'), n) n")
    with pytest.raises(PySparkException, match="no"):
        failing.write.format("tidings").options(**target).mode("append").save()
    assert content(cluster, stream) == (0, 0)
    for runs in (1, 2):
        rows.write.format("tidings").options(**target, writerId="job").mode("append").save()
        assert content(cluster, stream) == expected([f"p{n}" for n in range(2000)], runs)
    with cluster.connect() as t, t.subscribe(stream, start="earliest", where="n = 1234") as sub:
        event = sub.next(10)
        assert (event.key, event.payload, event.attrs["n"], event.attrs.get("loc")) == (b"k2", b"p1234", 1234, None)


@pytest.mark.usefixtures("spark")  # which reads the types
@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ("payload bigint", "column 'payload' is bigint, declared is binary"),
        ("price string", "column 'price' is string, declared is double"),
        ("prise double", "column 'prise' is not a declared attribute, did you mean price"),
        ("seq bigint", "column 'seq' is given by the stream"),
        ("price array<double>", r"column 'price' is array<double>, declared is double"),
    ],
)
def test_columns_that_do_not_fit_are_named_with_both_types(columns: str, text: str) -> None:
    with pytest.raises(BadAttribute, match=text):
        check_columns("s", "price double, loc string", StructType.fromDDL(columns))


@pytest.mark.usefixtures("spark")
def test_columns_that_fit_are_taken() -> None:
    for columns in ("key string, payload binary, price float, loc string", "price double", "payload string"):
        check_columns("s", "price double, loc string", StructType.fromDDL(columns))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"servers": "a:1", "sream": "s"}, "did you mean 'stream'"),
        ({"servers": "a:1", "writerId": "w"}, "option 'stream' is missing"),
        ({"stream": "s", "writerId": "w"}, "option 'servers' is missing"),
        ({"servers": "a:1", "stream": "s"}, "option 'writerId' is missing"),
        ({"servers": "a:1", "stream": "s", "writerId": "w", "writerReset": "maybe"}, "'true' or 'false'"),
        ({"servers": "a:1", "stream": "s", "writerId": "w", "startingOffsets": "latest"}, "is unknown"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        WriteOptions.parse(options, streaming=True)


def test_a_stream_is_not_overwritten() -> None:
    options = {"servers": "a:1", "stream": "s", "writerId": "w", "checkpointLocation": "x"}
    for make in (writer, stream_writer):
        with pytest.raises(BadInput, match="cannot be overwritten"):
            make(options, StructType(), True)
