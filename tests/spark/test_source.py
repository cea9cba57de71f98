"""The source inside Spark: what was published is read, once, and as of the same point when it is read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException, StreamingQueryException

from core.test_filter_index import simple
from core.test_filters import DECLARED, ROW, conditions, table_of
from spark.rig import Cluster, fingerprint, fresh, load, options, published, table, until_forgotten
from tidings.core.filters import parse, parse_attributes
from tidings.core.filters.index import FilterIndex


def run(spark: Any, cluster: Cluster, folder: Path, each: Any = None, **more: Any) -> Any:
    """A streaming query to Parquet (or a function of each batch) until everything is read.

    Spark gives a Python process ten seconds to start, too few at times where others use the machine: once more then.
    """
    for _ in range(3):
        try:
            return run_once(spark, cluster, folder, each, **more)
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
    raise AssertionError("no Python process came to life in ten seconds, three times")


def run_once(spark: Any, cluster: Cluster, folder: Path, each: Any, **more: Any) -> Any:
    df = spark.readStream.format("tidings").options(**options(cluster, **more)).load()
    writer = df.writeStream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    if each is not None:
        query = writer.foreachBatch(each).start()
    else:
        query = writer.format("parquet").option("path", str(folder / "out")).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return query


def test_a_batch_read_equals_what_was_published(spark: Any, cluster: Cluster) -> None:
    name = fresh(cluster, "batch", 5000)
    df = load(spark, cluster, subscribe=name, minPartitions=3)
    assert df.rdd.getNumPartitions() == 3
    assert fingerprint(df) == fingerprint(published(spark, table(5000)))
    first = df.where("seq = 2").first()
    assert (first.stream, first.region, first.pub_seq, first.kind) == ("batch", "r0", 2, "data"), "a name, not an id"
    assert df.columns[9:] == ["loc", "price"] and first.publisher.startswith("client-")


def test_sorted_by_tick_a_batch_read_is_what_a_total_order_delivers(spark: Any, cluster: Cluster) -> None:
    names = [fresh(cluster, "east", 3), fresh(cluster, "west", 3)]
    with cluster.connect() as t, t.subscribe(*names, order="total", start="earliest") as subscription:
        for at in range(40):
            t.publish_table(names[at % 3 % 2], table(1 + at % 4))
        count = 6 + sum(1 + at % 4 for at in range(40))
        events = [subscription.next(30) for _ in range(count)]
    delivered = [(event.tick, event.stream, event.seq, event.payload) for event in events]
    df = load(spark, cluster, subscribe="east,west", withTick="true", minPartitions=4)
    assert df.columns[8:10] == ["kind", "tick"]
    rows = df.orderBy("tick", "seq").select("tick", "stream", "seq", "payload").collect()
    assert [(row.tick, row.stream, row.seq, bytes(row.payload)) for row in rows] == delivered
    part = load(spark, cluster, subscribe="east,west", withTick="true", filter="loc = 'NY'")
    assert {row.tick for row in part.collect()} < {tick for tick, *_ in delivered}


def test_a_streaming_query_goes_on_where_it_stopped(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    name = fresh(cluster, "streamed", 3000)
    first = run(spark, cluster, tmp_path, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=1000)
    batches = [p for p in first.recentProgress if p["numInputRows"]]
    assert [p["numInputRows"] for p in batches] == [1000, 1000, 1000]
    lag = json.loads(next(source["latestOffset"] for p in batches for source in p["sources"]))
    assert lag[name]["seq"] == 3001 and lag[name]["lag"] == 2000
    with cluster.connect() as t:
        t.publish_table(name, table(500, 3000))
    run(spark, cluster, tmp_path, subscribe=name, startingOffsets="latest")  # ignored: there is a checkpoint
    out = spark.read.parquet(str(tmp_path / "out"))
    assert fingerprint(out) == fingerprint(published(spark, table(3500)))


def test_a_batch_that_runs_again_is_the_same_although_collection_went_on(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    name = fresh(cluster, "retried", 400, gc="by-key")
    seen: list[list[tuple[int, bytes]]] = []

    def fail_once(df: Any, batch: int) -> None:
        seen.append(sorted((row.seq, bytes(row.payload)) for row in df.collect()))
        if len(seen) == 1:
            raise RuntimeError("crashed in the middle of the batch")

    with pytest.raises(StreamingQueryException, match="crashed in the middle"):
        run(spark, cluster, tmp_path, fail_once, subscribe=name, startingOffsets="earliest")
    with cluster.connect() as t:
        t.publish_table(name, table(400, 400))  # collects everything that the batch has read
        while t.stream(name).live != 50:
            pass
        before = t.stream(name)
        assert before.floor <= 401
        run(spark, cluster, tmp_path, fail_once, subscribe=name)
    assert seen[1] == seen[0] and len(seen[0]) == 50 and [seq for seq, _ in seen[0]] == list(range(351, 401))
    assert [seq for seq, _ in seen[2]] == list(range(751, 801))


def test_a_batch_that_nobody_remembers_says_what_to_do(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    name = fresh(cluster, "expired", 100, gc="by-key")

    def fail(df: Any, batch: int) -> None:
        df.count()
        raise RuntimeError("crashed")

    short = {"subscribe": name, "startingOffsets": "earliest", "leaseSeconds": "1"}
    with pytest.raises(StreamingQueryException, match="crashed"):
        run(spark, cluster, tmp_path, fail, **short)
    with cluster.connect() as t:
        t.publish_table(name, table(100, 100))
    until_forgotten(cluster, name, 101)
    with pytest.raises(StreamingQueryException, match="Remove its entry from the checkpoint's offsets directory"):
        run(spark, cluster, tmp_path, fail, **short)
    (tmp_path / "checkpoint/offsets/0").unlink()  # as it says
    (tmp_path / "checkpoint/offsets/.0.crc").unlink(missing_ok=True)
    counts: list[int] = []
    run(spark, cluster, tmp_path, lambda df, batch: counts.append(df.count()), **short)
    assert counts == [50]


def test_streams_with_different_attributes_are_read_together(spark: Any, cluster: Cluster) -> None:
    fresh(cluster, "multi.a", 30, attrs="loc string, price double")
    fresh(cluster, "multi.b", 0, attrs="qty int, loc string")
    with cluster.connect() as t:
        t.publish_table("multi.b", pa.table({"qty": pa.array([1, 2], pa.int32()), "payload": [b"x", b"y"]}))
    df = load(spark, cluster, subscribePattern=r"multi\..*")
    assert df.columns[9:] == ["loc", "price", "qty"]
    assert df.where("qty is null").count() == 30 and df.where("stream = 'multi.b' and price is null").count() == 2
    for where in ("qty > 1 or price > 5", "qty is null and loc is not null", "coalesce(qty, 7) = 7"):
        kept = load(spark, cluster, subscribePattern=r"multi\..*", filter=where)
        assert sorted(kept.select("stream", "seq").collect()) == sorted(
            df.where(where).select("stream", "seq").collect()
        )
    fresh(cluster, "multi.c", 0, attrs="loc bigint")
    with pytest.raises(PySparkException, match=r"'loc' is string in stream 'multi.a' and bigint in 'multi.c'"):
        load(spark, cluster, subscribePattern=r"multi\..*")


def test_a_filter_is_what_where_is_with_the_same_text(spark: Any, cluster: Cluster) -> None:
    """Many expressions of the language at once: at the server, in the filter index, and in one job of Spark."""
    pool: list[str] = []
    rows: list[dict[str, Any]] = []

    @settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(condition=conditions(), test=simple(), drawn=st.lists(ROW, min_size=1, max_size=3))
    def draw(condition: Any, test: str, drawn: list[dict[str, Any]]) -> None:
        pool.extend((condition.sql, test))
        rows.extend(drawn)

    draw()
    texts = [text for text in dict.fromkeys(pool) if len(text) < 500]
    assert len(texts) > 60 and any(row["price"] != row["price"] for row in rows if row["price"] is not None)
    name = fresh(cluster, "filtered", attrs=DECLARED)
    kept: dict[str, set[int]] = {}
    with cluster.connect() as t:
        t.publish_table(name, table_of(rows))
        for text in texts:
            with t.read(name, 1, len(rows) + 1, where=text) as reading:
                kept[text] = {seq for span in reading for seq in span.rows.column("seq").to_pylist()}
    df = load(spark, cluster, subscribe=name).cache()
    flags = df.select("seq", *[_expr(text, at) for at, text in enumerate(texts)])
    table = flags.toArrow()
    seqs = table.column("seq").to_pylist()
    said = {
        text: {seq for seq, flag in zip(seqs, table.column(f"c{at}").to_pylist(), strict=True) if flag}
        for at, text in enumerate(texts)
    }
    assert kept == said
    for compiled in (False, True):
        index = FilterIndex()
        if compiled:
            index._to_table()
        ids = {text: index.add(parse(text, parse_attributes(DECLARED))) for text in texts}
        found = {id: {place + 1 for place in places.tolist()} for id, places in index.match(table_of(rows))}
        assert {text: found.get(id, set()) for text, id in ids.items()} == said
    one = next(text for text in texts if 0 < len(kept[text]) < len(rows) and parse(text, parse_attributes(DECLARED)))
    through = load(spark, cluster, subscribe=name, filter=one)
    assert {row.seq for row in through.select("seq").collect()} == {
        row.seq for row in df.where(one).select("seq").collect()
    }


def _expr(text: str, at: int) -> Any:
    from pyspark.sql.functions import expr

    return expr(text).alias(f"c{at}")


def test_what_is_wrong_with_options_is_said_by_spark(spark: Any, cluster: Cluster) -> None:
    with pytest.raises(PySparkException, match="did you mean 'startingOffsets'"):
        load(spark, cluster, subscribe="batch", startingOffset="earliest")
    fresh(cluster, "typo")
    with pytest.raises(PySparkException, match="did you mean 'typo'"):
        load(spark, cluster, subscribe="typos")


def test_offsets_in_the_checkpoint_are_what_they_say(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    name = fresh(cluster, "offsets", 20)
    run(spark, cluster, tmp_path, lambda df, batch: df.count(), subscribe=name, startingOffsets=f'{{"{name}": 5}}')
    offset = json.loads((tmp_path / "checkpoint/offsets/0").read_text().splitlines()[-1])
    assert (
        offset[name]["from"] == 5
        and offset[name]["seq"] == 21
        and offset[name]["asof"] == 21
        and offset[name]["lease"].startswith("spark-")
    )
