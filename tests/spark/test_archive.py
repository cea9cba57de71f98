"""The archive writes every event into the lake once, whatever is repeated or crashes, and knows what it has missed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from server.rig import tidings
from spark.rig import Cluster
from tidings import sync
from tidings.client.events import Event
from tidings.protocols.catalog import StreamDef
from tidings.server import plan as plans
from tidings.server.layout import Layout
from tidings.server.looking import Target, declare_lost
from tidings.spark.archive import Archive, ArchiveFailed, compatible
from tidings.spark.audit import audit_lake
from tidings.spark.lake import Lake
from tidings.spark.restore import restore


def fill(t: sync.Connection, stream: str, count: int, keys: int = 5) -> None:
    columns = {"key": [b"%d" % (at % keys) for at in range(count)], "payload": [b"%d" % at for at in range(count)]}
    t.publish_table(stream, pa.table(columns))


def payloads(lake: Lake, stream: str) -> list[tuple[int, bytes]]:
    rows = pa.concat_tables(lake.read(stream))
    return list(zip(*[rows[name].to_pylist() for name in ("seq", "payload")], strict=True))


def test_streams_that_no_query_can_read_together_get_one_each() -> None:
    a, b, c = (StreamDef(name, "r0", attrs=attrs) for name, attrs in (("a", "x int"), ("b", "x string"), ("c", "")))
    assert compatible([c, b, a]) == [[a, c], [b]]


def test_an_archive_takes_everything_once_over_several_runs(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path / "lake")
    with cluster.connect() as t:
        t.create_stream("archived", gc="by-key", attrs="price double")
        with Archive(spark, lake, cluster.servers, tries=1) as archive:  # from the beginning: nothing is missed
            fill(t, "archived", 20)
            with monkeypatch.context() as patch:
                patch.setattr(Lake, "commit", _die)  # the files are there, the commit is not
                with pytest.raises(ArchiveFailed, match="power cut"):
                    archive.once()
            assert not lake.ids() and list(lake.root.glob("data/*/*/*.parquet"))
            with monkeypatch.context() as patch:
                patch.setattr(archive.sources["r0"], "move", _die)  # the commit is there, Spark does not know
                with pytest.raises(ArchiveFailed, match="power cut"):
                    archive.once()
            assert [seq for seq, _ in payloads(lake, "archived")] == list(range(1, 21))
            t.publish("archived", key=b"new", payload=b"last", attrs={"price": 2.5})
            t.collect("archived", where="key = 'new'")
            declare_lost(Target(cluster.local.files.root, None), "archived", 23, 30)
            t.publish("archived", key=b"behind", payload=b"the hole")
            after = archive.once()
    found = payloads(lake, "archived")
    assert [seq for seq, _ in found] == [*range(1, 23), 30] and found[20] == (21, b"last")
    covers = [(cover.lo, cover.hi, cover.lost) for cover in after.coverage["archived"]]
    assert covers == [(1, 23, False), (23, 30, True), (30, 31, False)], "what is lost is neither missing nor collected"
    assert after.coverage["archived"][0].asof == 1
    whole = pa.concat_tables(lake.read("archived")).to_pylist()
    assert whole[20]["price"] == 2.5 and whole[21]["kind"] == "gc" and "key" in whole[21]["where"]
    assert after.definitions["archived"].gc == "by-key" and after.ends["archived"] == 31


def read_to(subscription: sync.Subscription, last: int) -> list[Event]:
    """Events up to the one of this number."""
    events = [subscription.next(60.0)]
    while events[-1].seq < last:
        events.append(subscription.next(60.0))
    return events


def _die(*_: Any) -> None:
    raise RuntimeError("power cut")


def test_an_archive_that_keeps_running_takes_in_streams_that_come_later(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    deadline = time.monotonic() + 240
    with cluster.connect() as t, Archive(spark, lake, cluster.servers) as archive:
        t.create_stream("early")
        fill(t, "early", 5)

        def until() -> bool:
            snapshot = lake.snapshot()
            if snapshot.end("early") == 6 and "later" not in {each.name for each in t.streams()}:
                t.create_stream("later")
                fill(t, "later", 7)
            return snapshot.end("later") == 8 or time.monotonic() > deadline

        after = archive.run(until, interval=0.5)
    assert [seq for seq, _ in payloads(lake, "early")] == list(range(1, 6))
    assert [seq for seq, _ in payloads(lake, "later")] == list(range(1, 8)) and after.end("later") == 8


def test_a_lost_cluster_comes_back_from_the_lake(spark: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    old = Cluster(regions=2, replicas=1, dir=tmp_path / "old", durability="durable")
    try:
        with sync.connect(old.local.url("r1")) as t:
            t.create_stream("prices", region="r0", gc="by-key")
            t.create_stream("plain", region="r1")
            fill(t, "prices", 10)
            time.sleep(2.0)  # long enough for what is collected to be purged: the lake comes too late for it
            with Archive(spark, lake, old.local.url("r1")) as archive:
                with (
                    sync.connect(old.local.url("r1"), receipts=True) as desk,
                    desk.subscribe("prices", start=11) as prices,
                    desk.subscribe("plain", start="earliest") as plain,
                ):
                    fill(t, "prices", 30)
                    fill(t, "plain", 15)
                    read_to(prices, 40)
                    read_to(plain, 15)
                _read_on(old.local.url("r1"))
                after = archive.once()
                _judge(spark, lake)
                assert _missing(lake, after) == {"prices": 5, "plain": 0}
                fill(t, "plain", 3)
                _replay_without_a_seam(lake, old.local.url("r0"))
                archive.once()
        old.do(old.local.kill_everything())
    finally:
        old.stop()
    before = {stream: payloads(lake, stream) for stream in ("prices", "plain")}
    files = Layout(tmp_path / "new").make()
    files.plan.write_text(plans.render(plans.generate(2, 1, port=0)))
    assert restore(lake.root, files)["streams"] == {"prices": 41, "plain": 19}
    new = Cluster(dir=files.root)
    try:
        with sync.connect(new.local.url("r1"), timeout=30.0) as t:
            for stream, rows in before.items():
                with t.subscribe(stream, start="earliest") as sub:
                    events = read_to(sub, rows[-1][0])
                assert len(events) == {"prices": 5, "plain": 18}[stream]
                assert [(event.seq, event.payload) for event in events] == rows[-len(events) :]
            assert t.publish("prices", key=b"0", payload=b"new").seq == 41
            assert t.publish("plain", payload=b"new").seq == 19
    finally:
        new.stop()


def _read_on(url: str) -> None:
    """A subscriber that comes late, and through a filter."""
    with sync.connect(url, receipts=True, client_id="late") as t, t.subscribe("prices", start="earliest") as sub:
        assert [event.seq for event in read_to(sub, 40)] == list(range(36, 41))


def _judge(spark: Any, lake: Lake) -> None:
    found = audit_lake(spark, lake)
    assert found["violations"] == []
    assert (found["proved"], found["unverifiable"]) == (3, 0)
    assert (found["subscribers"], found["streams"]) == (2, 2) and found["latency_ms"]["p50"] > 0


def _missing(lake: Lake, snapshot: Any) -> dict[str, int]:
    return {stream: snapshot.end(stream) - 1 - len(payloads(lake, stream)) for stream in ("prices", "plain")}


def _replay_without_a_seam(lake: Lake, url: str) -> None:
    lines = tidings("replay", "plain", "--lake", lake.root, "--from", 5, "--url", url).splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(5, 19))
    lines = tidings("replay", "prices", "--lake", lake.root, "--to", 15).splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(6, 15))
    assert "not a range" in tidings("replay", "prices", "--lake", lake.root, "--from", 9, "--to", 9, code=1)
