"""The declarative pipeline: its tables are a function of what the cluster has, run after run, while it goes on."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from server.rig import tidings
from spark.lakes import NOON, rows_for
from spark.rig import ATTRS, Cluster, pipeline_process
from tidings import sync
from tidings.cli.cluster_options import FoundCluster
from tidings.cli.pipeline import place
from tidings.core.errors import BadInput
from tidings.core.rows import data_rows
from tidings.protocols.services.catalog import StreamDef
from tidings.spark import archive, columns
from tidings.spark.audit import Facts
from tidings.spark.lake import Lake
from tidings.spark.options import ReadOptions
from tidings.spark.pipeline import PipelineBusy, Project, read
from tidings.spark.tables import HEALTH, BatchTaken, _rates, begun, grouped, health_of, intake_of, state, verdicts

PLAIN = StreamDef("plain", "r0")


# --- tables, made by hand ---------------------------------------------------------------------------------------


def intake(seqs: range, asof: int = 1, **changes: Any) -> pa.Table:
    """Rows of the stream `plain`, and what they cover."""
    rows = rows_for(PLAIN, seqs, **changes)
    cover = {"stream": "plain", "seq": seqs[0], "before": seqs[-1] + 1, "_tick": asof, "kind": columns.COVERAGE}
    whole = pa.concat_tables([rows, pa.Table.from_pylist([cover], schema=rows.schema)])
    whole = whole.append_column("attrs", pa.nulls(whole.num_rows, pa.string()))
    return whole.append_column("about", whole["stream"])


def taken(rows: pa.Table) -> BatchTaken:
    (found,) = grouped(iter(rows.to_batches()))
    return found


def test_the_streams_of_a_partition_come_one_after_the_other() -> None:
    rows = intake(range(1, 5)).sort_by("seq")
    other = rows
    for name in ("about", "stream"):
        other = other.set_column(rows.column_names.index(name), name, pa.array(["zebra"] * rows.num_rows))
    found = list(grouped(iter(pa.concat_tables([rows, other]).to_batches(max_chunksize=3))))
    assert [each.stream for each in found] == ["plain", "zebra"] and found[0].events.num_rows == 4


def test_the_live_state_is_the_last_event_of_each_key_that_nothing_has_collected() -> None:
    seqs = range(1, 13)  # keys 1, 2, 3, 4, 0, 1, 2, ...
    assert state(Facts("by-key"), taken(intake(seqs)))["seq"].to_pylist() == [8, 9, 10, 11, 12]
    assert state(Facts("none"), taken(intake(seqs)))["seq"].to_pylist() == [8, 9, 10, 11, 12]
    keys = [None if seq in (3, 11, 12) else b"%d" % (seq % 5) for seq in seqs]
    kinds = ["gc" if seq > 10 else "data" for seq in seqs]
    before = [8 if seq == 11 else None for seq in seqs]
    where = ["() key = X'34'" if seq == 12 else None for seq in seqs]
    rows = intake(seqs, key=keys, kind=kinds, before=before, where=where)
    assert state(Facts("none"), taken(rows))["seq"].to_pylist() == [8, 10]  # before 8; and key 4, which is 9
    health = health_of(Facts("none"), taken(rows)).to_pylist()[0]
    assert (health["events"], health["live"], health["collected"]) == (12, 4, 8)  # the collectors live, too


def test_what_was_collected_before_it_was_read_is_collected() -> None:
    rows = intake(range(1, 13), asof=13)
    rows = rows.filter(pa.array([seq > 7 or kind != "data" for seq, kind in zip(*_columns(rows), strict=True)]))
    (health,) = health_of(Facts("by-key", end=13), taken(rows)).to_pylist()
    assert (health["events"], health["live"], health["collected"], health["end"]) == (5, 5, 7, 13)
    assert health["collected_share"] == pytest.approx(7 / 12)


def _columns(rows: pa.Table) -> list[list[Any]]:
    return [rows[name].to_pylist() for name in ("seq", "kind")]


def receipt(lo: int, hi: int, **changes: Any) -> dict[str, Any]:
    said = {"subscriber": "desk", "incarnation": 1, "n": 1, "followed": "plain", "lo": lo, "hi": hi, "asof": lo}
    return said | {"lens": "", "rows": hi - lo, "hash_sum": 1, "time": NOON / 1e6} | changes


def with_receipts(rows: pa.Table, *receipts: dict[str, Any]) -> pa.Table:
    made = [
        {
            "stream": "_receipts/r1",
            "seq": at,
            "region": "r1",
            "kind": "data",
            "attrs": json.dumps(each),
            "about": "plain",
        }
        for at, each in enumerate(receipts, 1)
    ]
    return pa.concat_tables([rows, pa.Table.from_pylist(made, schema=rows.schema)])


def test_a_violation_is_in_the_audit_and_what_is_not_read_yet_waits() -> None:
    whole = with_receipts(intake(range(1, 13)), receipt(1, 13), receipt(13, 20, n=2))
    found = verdicts(Facts(), taken(whole)).to_pylist()
    assert [each["fault"] for each in found if each["invariant"]] == ["wrong row"]
    assert [(each["verdict"], each["region"], each["hi"]) for each in found if not each["invariant"]] == [
        ("violated", "r1", 13)
    ]
    (health,) = health_of(Facts(), taken(whole)).to_pylist()
    assert (health["receipts"], health["waiting"], health["subscribers"]) == (2, 1, 1)
    only = with_receipts(intake(range(1, 2)), receipt(1, 2)).slice(2)
    assert health_of(Facts(), taken(only)).num_rows == 0, "of a stream that was not read there is nothing to tell"
    assert set(HEALTH.names) > {"events_per_s", "latency_ms_p99", "collected_share"}


def test_a_stream_without_events_is_in_health_with_its_region() -> None:
    schema = intake(range(1, 2)).schema
    (health,) = health_of(Facts("by-key"), taken(begun({"plain": "r1"}, schema))).to_pylist()
    assert (health["stream"], health["region"], health["gc"], health["end"]) == ("plain", "r1", "by-key", 1)
    assert (health["events"], health["live"], health["collected"], health["first_at"]) == (0, 0, 0, None)
    both = pa.concat_tables([intake(range(1, 13)), begun({"plain": "r0"}, schema)])
    assert health_of(Facts(), taken(both)) == health_of(Facts(), taken(intake(range(1, 13))))


@pytest.mark.parametrize(("seconds", "rate"), [([0.0], 0.0), ([0.0, 1.02], 1 / 1.02), ([0.0, 1.0, 2.0], 1.0)])
def test_a_rate_is_of_the_gaps_between_events(seconds: list[float], rate: float) -> None:
    times = pa.chunked_array([pa.array([round(at * 1e6) for at in seconds], pa.timestamp("us", tz="UTC"))])
    found = _rates(times)
    assert (found["events_per_s"], found["recent_per_s"]) == (pytest.approx(rate), pytest.approx(rate))


def test_attributes_as_json_have_the_same_columns_whatever_is_declared() -> None:
    options = {"servers": "127.0.0.1:1", "subscribe": "a", "attributes": "json"}
    assert ReadOptions.parse(options).json
    with pytest.raises(BadInput, match="filter"):
        ReadOptions.parse(options | {"filter": "seq > 1"})
    with pytest.raises(BadInput, match="'yaml'"):
        ReadOptions.parse(options | {"attributes": "yaml"})
    attrs = {"raw": pa.array([b"\x01", None]), "day": pa.array([None, 3600], pa.timestamp("us", tz="UTC"))}
    rows: Any = data_rows(1, None, [b"x", b"y"], None, attrs)
    schema = pa.schema([("seq", pa.int64()), ("attrs", pa.string()), ("_hash", pa.int64())])
    made = columns.SparkColumns(schema, archive=True, json=True)
    batch = made.batch("a", rows).to_pylist()
    assert json.loads(batch[0]["attrs"]) == {"raw": "01", "day": None} and batch[0]["_hash"] != batch[1]["_hash"]
    assert json.loads(batch[1]["attrs"])["day"].startswith("1970-01-01T00:00:00.0036")
    bare: Any = data_rows(1, None, [b"x"])
    assert made.batch("a", bare)["attrs"].to_pylist() == [None]


# --- the project --------------------------------------------------------------------------------------------------


def test_a_project_is_made_once_and_worked_in_by_one(tmp_path: Path) -> None:
    project = Project(tmp_path / "p").make()
    project.spec.write_text(project.spec.read_text() + "# mine\n")
    assert Project(tmp_path / "p").make().spec.read_text().endswith("# mine\n")
    with project.alone(), pytest.raises(PipelineBusy, match="already runs"), Project(project.root).alone():
        pass
    with pytest.raises(BadInput, match="is not there"):
        read(None, project.root, "events")  # type: ignore[arg-type]


def test_a_regions_table_keeps_its_name() -> None:
    assert intake_of("r0") == "intake_r0"
    names = {intake_of(region) for region in ("us-east", "us_east", "US_EAST")}
    assert len(names) == 3 and all([name.isidentifier() and name.islower() for name in names])


def test_a_directory_is_a_pipelines_or_a_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidings.server import cluster_config

    monkeypatch.chdir(tmp_path)
    default = FoundCluster(("127.0.0.1:7400",), only="127.0.0.1:7400")
    assert place(None) == (Path(".tidings/pipeline"), default)
    assert place(tmp_path / "p") == (tmp_path / "p", default)
    plan = cluster_config.generate(2, 2, port=0)
    (tmp_path / "cluster.toml").write_text(cluster_config.render(plan))
    addresses = tuple(plan.slots().values())
    assert place(tmp_path) == (tmp_path / "pipeline", FoundCluster(addresses, "tidings", tmp_path))
    assert place(tmp_path, "tidings://127.0.0.1:7400") == (tmp_path / "pipeline", default)
    monkeypatch.setenv("TIDINGS_DIR", str(tmp_path))
    assert place(None) == place(tmp_path)
    assert place(tmp_path / "p") == (tmp_path / "p", FoundCluster(addresses, "tidings", tmp_path))


def test_without_java_or_a_cluster_it_says_so_on_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.spark.tables.TIMEOUT", 0.5)
    there = ("--dir", tmp_path / "p", "--url")
    told = tidings("pipeline", "run", *there, "tidings://127.0.0.1:1", code=1)
    assert told.count("\n") == 1 and "127.0.0.1:1: connection refused" in told
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"tidings://127.0.0.1:{silent.getsockname()[1]}"
        told = tidings("pipeline", "run", *there, url, code=1)
        assert told.count("\n") == 1 and "is the cluster up" in told
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        assert "Spark needs Java 17" in tidings("pipeline", "dry-run", *there, url, code=1)
    assert not (tmp_path / "p").exists(), "nothing is made in vain"


# --- a run ----------------------------------------------------------------------------------------------------------


def _until(condition: Callable[[], bool], deadline: float = 60.0) -> None:
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


class Feed:
    """Publishes to two streams of two regions until it is stopped, and remembers what."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.prices: dict[int, tuple[bytes, bytes, float]] = {}
        self.stopped = threading.Event()
        with sync.connect(cluster.local.url("r0")) as t:
            t.create_stream("prices", region="r0", attrs="price double", gc="by-key")
            t.create_stream("orders", region="r1", attrs=ATTRS.replace("price double", "price string"))
        with sync.connect(cluster.local.url("r1")) as t:
            _until(lambda: {each.name for each in t.streams()} == {"orders", "prices"})

    def __enter__(self) -> Feed:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        _until(lambda: len(self.prices) > 20)
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()

    def _run(self) -> None:
        at = 0
        with (
            sync.connect(self.cluster.local.url("r0")) as t,
            sync.connect(self.cluster.local.url("r1"), receipts=True, client_id="desk") as desk,
            desk.subscribe("prices", start="earliest") as prices,
            desk.subscribe("orders", start="earliest") as orders,
        ):
            while not self.stopped.wait(0.1):
                key, payload = b"k%d" % (at % 7), b"p%d" % at
                ack = t.publish("prices", key=key, payload=payload, attrs={"price": at / 4})
                self.prices[ack.seq] = (key, payload, at / 4)
                last = t.publish("orders", key=key, payload=payload, attrs={"loc": "NY", "price": str(at)}).seq
                if at % 10 == 9:
                    last = t.collect("orders", where="loc = 'NY' and price = '3'").seq
                while prices.next(60.0).seq < ack.seq:
                    pass
                while orders.next(60.0).seq < last:
                    pass
                at += 1
            time.sleep(1.5)  # the receipts of what came last


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    cluster = Cluster(regions=2, replicas=1, dir=tmp_path / "cluster")
    try:
        yield Feed(cluster)
    finally:
        cluster.stop()


def pipeline(feed: Feed, folder: Path) -> dict[str, Any]:
    done = pipeline_process("run", folder, feed.cluster.local.url("r1"))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.check
def test_it_runs_twice_while_the_cluster_goes_on_and_its_tables_are_right(
    spark: Any, feed: Feed, tmp_path: Path
) -> None:
    folder = tmp_path / "pipeline"
    with feed:
        first = pipeline(feed, folder)
        assert first["audit"]["found"] == 0 and first["audit"]["streams"] == 2
        ended = {each["stream"]: each["end"] for each in first["streams"]}
        prices = read(spark, folder, "events").where("stream = 'prices'").collect()
        known = {row.seq: (row.key, row.payload, json.loads(row.attrs)["price"]) for row in prices}
        assert len(known) == len(prices) and known.items() <= feed.prices.items()
        live = {row.key: row.seq for row in read(spark, folder, "live").where("stream = 'prices'").collect()}
        upto = sorted([(seq, key) for seq, (key, _, _) in feed.prices.items() if seq < ended["prices"]])
        assert live == {key: seq for seq, key in upto}, "as of where the run ended, not as of now"
        with (
            sync.connect(feed.cluster.local.url("r1"), receipts=True, client_id="late") as late,
            late.subscribe("prices", "orders", start="latest") as sub,
        ):
            assert {sub.next(60.0).stream for _ in range(20)} == {"prices", "orders"}
    second = pipeline(feed, folder)
    assert second["audit"]["found"] == 0 and second["audit"]["latency_ms"]["p50"] > 0
    verdict = read(spark, folder, "audit").where("subscriber = 'late'").collect()
    assert [row.verdict for row in verdict] == ["proved", "proved"], "of what came since the first run all is known"
    _compare(spark, feed, folder, second, ended)
    assert not list(tmp_path.glob("*.log")), "nothing is left where somebody stands"


def _compare(spark: Any, feed: Feed, folder: Path, result: dict[str, Any], ended: dict[str, int]) -> None:
    """With what the cluster itself answers, now that it is quiet."""
    names = ["stream", "seq", "key", "payload", "published_at", "region", "publisher", "pub_seq"]
    options = {"servers": feed.cluster.local.url("r0").removeprefix("tidings://")}
    health = {each["stream"]: each for each in result["streams"]}
    events = read(spark, folder, "events").select("stream", "seq").collect()
    live = read(spark, folder, "live").select(names).collect()
    for stream in ("prices", "orders"):
        direct = spark.read.format("tidings").options(**options, subscribe=stream).load().collect()
        last = {row.key: row for row in sorted(direct, key=lambda row: row.seq) if row.kind == "data"}
        wanted = sorted([tuple([row[name] for name in names]) for row in last.values()])
        assert sorted([tuple(row) for row in live if row.stream == stream]) == wanted
        end = max([row.seq for row in direct]) + 1
        found = health[stream]
        assert (found["end"], found["live"], found["waiting"]) == (end, len(direct), 0)
        assert found["collected"] == end - 1 - len(direct)
        since = sorted([row.seq for row in events if row.stream == stream and row.seq >= ended[stream]])
        assert since == list(range(ended[stream], end)), "each once, those too that were collected since"
    assert health["orders"]["collected"] >= 1 and health["prices"]["collected_share"] > 0.5
    assert {each["name"] for each in result["tables"]} >= {
        "events",
        "live",
        "health",
        "audit",
        "intake_r0",
        "intake_r1",
    }


def test_events_are_recognized_by_the_last_one_that_is_still_there(
    small: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "NEAR", 2)
    with small.connect() as t:
        s = t.create_stream("s", region="r0", gc="by-key").id
        for key in (b"a", b"b", b"c", *[b"d"] * 30):
            t.publish("s", key=key, payload=key)
        source = archive.Source("r0", small.servers, t)
        source.look()
        source.hold(Lake(tmp_path), {}, 60.0)
        _until(lambda: [each.horizon for each in t.streams("s")] == [34])
        source.look()
        found = [source.newest(s, end) for end in (100, 33, 1)]  # 4 to 32 are collected
        assert [each and each["seq"].to_pylist() for each in found] == [[33], [3], None]
        source.leave()
