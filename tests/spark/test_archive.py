"""The archive writes every event into the lake once, whatever is repeated or crashes, and knows what it has missed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pyarrow as pa
import pytest

from server.rig import tidings
from spark.lakes import append
from spark.rig import Cluster
from tidings import sync
from tidings.client.events import Event
from tidings.core.errors import BadInput
from tidings.protocols.services.catalog import Description, StreamDef, StreamState
from tidings.server import cluster_config
from tidings.server.cluster_queries import ClusterTarget, declare_lost
from tidings.server.paths import ClusterPaths
from tidings.spark.archive import Archive, ArchiveFailed, Source, compatible
from tidings.spark.audit import audit_lake
from tidings.spark.lake import Cover, Lake
from tidings.spark.restore import restore


def fill(t: sync.BlockingConnection, stream: str, count: int, keys: int = 5) -> None:
    columns = {"key": [b"%d" % (at % keys) for at in range(count)], "payload": [b"%d" % at for at in range(count)]}
    t.publish_table(stream, pa.table(columns))


def payloads(lake: Lake, stream: str) -> list[tuple[int, bytes]]:
    rows = pa.concat_tables(lake.read(lake.snapshot().id_of(stream)))
    return list(zip(*[rows[name].to_pylist() for name in ("seq", "payload")], strict=True))


def test_streams_that_no_query_can_read_together_get_one_each() -> None:
    a, b, c = (StreamDef(name, "r0", attrs=attrs) for name, attrs in (("a", "x int"), ("b", "x string"), ("c", "")))
    assert compatible([c, b, a]) == [[a, c], [b]]
    shouts = StreamDef("d", "r0", attrs="X int")
    assert compatible([a, c, shouts]) == [[a, c], [shouts]], "a column of one name for both, and files that want theirs"


def archive_of(lake: Lake, *streams: StreamDef) -> tuple[Archive, MagicMock]:
    """An archive without Spark, of a region without replicas that has these streams, all of them up to 100."""
    archive = Archive(MagicMock(), lake, "nowhere")
    connection = MagicMock()
    owns(connection, *streams)
    archive.sources["r0"] = Source("r0", "nowhere", connection)
    archive._running.add("job")
    return archive, connection


def owns(connection: MagicMock, *streams: StreamDef, end: int = 100) -> None:
    state = StreamState(end, 0, 0)
    connection.describe.return_value = Description(1, "r0", (), streams, {each.name: state for each in streams})


def batch(archive: Archive, definition: StreamDef, *covers: Cover, job: str = "job") -> None:
    """A batch whose tasks have told of this."""
    rows = MagicMock()
    rows.mapInArrow.return_value.collect.return_value = [
        ("cover", msgspec.json.encode(cover).decode()) for cover in covers
    ]
    archive._write(job, {definition.name: definition}, {}, rows, 0)


NARROW, WIDE = (StreamDef("prices", "r0", attrs=attrs) for attrs in ("price double", "price double, venue string"))


def test_what_was_read_while_its_stream_was_altered_is_not_committed(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    archive, connection = archive_of(lake, NARROW)
    batch(archive, NARROW, Cover("prices", 1, 6, 1))
    owns(connection, WIDE)
    batch(archive, NARROW, Cover("prices", 6, 11, 6))
    assert lake.snapshot().end("prices") == 6 and archive._dropped([MagicMock()])
    owns(connection, NARROW)
    batch(archive, NARROW, Cover("prices", 11, 16, 11))
    assert lake.snapshot().end("prices") == 6, "what comes behind it would leave a hole"
    owns(connection, WIDE)
    archive._running.add("next")
    batch(archive, WIDE, Cover("prices", 6, 11, 6), job="next")
    after = lake.snapshot()
    assert after.coverage["prices"] == [Cover("prices", 1, 11, 1)] and after.definitions["prices"] == WIDE


def test_a_replica_that_does_not_know_all_rows_may_not_know_their_definition(tmp_path: Path) -> None:
    archive, connection = archive_of(Lake(tmp_path))
    owns(connection, NARROW, end=5)
    batch(archive, NARROW, Cover("prices", 1, 6, 1))
    assert not archive.lake.ids() and not archive._running


def test_what_was_read_of_a_stream_before_it_was_deleted_is_kept(tmp_path: Path) -> None:
    archive, _ = archive_of(Lake(tmp_path))
    batch(archive, NARROW, Cover("prices", 1, 6, 1))
    assert archive.lake.snapshot().end("prices") == 6 and archive._running


def test_a_batch_that_does_not_begin_where_the_lake_ends_is_refused(tmp_path: Path) -> None:
    archive, _ = archive_of(Lake(tmp_path), NARROW)
    for covers in ([Cover("prices", 3, 6, 3)], [Cover("prices", 1, 4, 1), Cover("prices", 6, 9, 6)]):
        with pytest.raises(BadInput, match="the lake ends at"):
            batch(archive, NARROW, *covers)
    batch(archive, NARROW, Cover("prices", 4, 9, 4), Cover("prices", 1, 4, 1))
    assert archive.lake.snapshot().end("prices") == 9


def test_streams_without_rows_and_deletions_are_in_the_lake(tmp_path: Path) -> None:
    archive, connection = archive_of(Lake(tmp_path))
    empty = StreamDef("empty", "r0")
    owns(connection, empty, end=1)
    archive.hold()
    assert archive.lake.snapshot().definitions == {"empty": empty}
    owns(connection, NARROW, end=1)
    archive.hold()
    archive.hold()
    after = archive.lake.snapshot()
    assert after.id == 2 and after.deleted == {"empty"} and after.definitions["prices"] == NARROW
    owns(connection, WIDE, empty, end=1)
    archive.hold()
    after = archive.lake.snapshot()
    assert not after.deleted and after.definitions == {"empty": empty, "prices": WIDE}


def test_a_region_that_does_not_answer_keeps_nobody_waiting(tmp_path: Path) -> None:
    archive, here = archive_of(Lake(tmp_path), NARROW)
    far, away = StreamDef("far", "r1"), MagicMock()
    archive.sources["r1"] = Source("r1", "nowhere", away)
    away.describe.return_value = Description(1, "r1", (), (far,), {"far": StreamState(7, 0, 0)})
    for connection in (here, away):
        connection.lease.return_value.open.return_value.asof = 1
    archive.hold()
    assert archive._streams().keys() == {"prices", "far"}
    away.describe.side_effect = TimeoutError
    here.describe.return_value.states["far"] = StreamState(9, 0, 0)
    batch(archive, NARROW, Cover("prices", 1, 6, 1))
    after = archive.lake.snapshot()
    assert after.end("prices") == 6 and after.ends == {"prices": 100, "far": 9}, "as far as the others know"
    assert archive._streams().keys() == {"prices"} and not after.deleted
    batch(archive, far, Cover("far", 1, 6, 1))
    assert archive.lake.snapshot().end("far") == 1, "nobody says how it is defined"
    away.describe.side_effect = None
    archive.hold()
    assert archive._streams().keys() == {"prices", "far"}


class Queries:
    """Stands for what Spark does in each start of an archive: nothing, a failure, or a commit and then a failure."""

    def __init__(self, archive: Archive, monkeypatch: pytest.MonkeyPatch, *outcomes: str) -> None:
        self.archive = archive
        self.outcomes = iter(outcomes)
        monkeypatch.setattr(archive, "hold", lambda: {})
        monkeypatch.setattr(archive, "_start", self.start)

    def start(self, *_: Any) -> list[Any]:
        outcome = next(self.outcomes)
        query = MagicMock(isActive=False)
        query.exception.return_value = outcome if "fails" in outcome else None
        self.archive.batches += "commits" in outcome
        self.archive._running = set() if "altered" in outcome else {"job"}
        return [query]

    @property
    def rest(self) -> list[str]:
        return list(self.outcomes)


def test_a_run_that_ends_begins_anew_as_often_as_streams_are_altered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, _ = archive_of(Lake(tmp_path))
    queries = Queries(archive, monkeypatch, *["altered", "altered, fails"] * 3, "fails", "good", "more")
    archive.once()
    assert queries.rest == ["more"]


def test_an_archive_that_keeps_running_takes_failures_but_not_too_many_in_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, _ = archive_of(Lake(tmp_path))
    outcomes = ["fails", "fails", "commits and fails", "fails", "fails for good", "more"]
    queries = Queries(archive, monkeypatch, *outcomes)
    with pytest.raises(ArchiveFailed, match="for good"):
        archive.run(lambda: False, interval=60.0)
    assert queries.rest == ["more"]


def test_no_two_queries_of_an_archive_have_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.spark.archive.BEGINNING", 0.0)
    archive, _ = archive_of(Lake(tmp_path), NARROW)
    archive._running.clear()
    source = archive.sources["r0"]
    source.look()
    source.leases["prices"] = MagicMock(asof=1)
    for _ in range(2):
        archive._start({}, {})  # a retry, although nothing was committed
    assert len(archive._running) == 2


def test_the_lake_of_another_cluster_is_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidings.spark.archive.SETTLING", 0.5)
    with cluster.connect() as t:
        strange = t.create_stream("strange").id
        fill(t, "strange", 14)
    same = StreamDef("strange", "r0", mark=strange.partition("~")[2])
    for folder, definition, end, why in (
        ("other", same, 11, "event 10 of 'strange.* another cluster"),
        ("longer", same, 21, "ends at 15"),
        ("namesake", StreamDef("strange", "r0", mark="x"), 11, "'strange' is another one .* another cluster"),
    ):
        lake = Lake(tmp_path / folder)
        append(lake, definition, range(1, end))
        with pytest.raises(BadInput, match=why), Archive(MagicMock(), lake, cluster.servers):
            pass


def test_an_archive_takes_everything_once_over_several_runs(
    spark: Any, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path / "lake")
    with cluster.connect() as t:
        id = t.create_stream("archived", gc="by-key", attrs="price double").id
        with Archive(spark, lake, cluster.servers, tries=1) as archive:  # from the beginning: nothing is missed
            fill(t, "archived", 20)
            with monkeypatch.context() as patch:
                patch.setattr(Lake, "commit", _die)  # the files are there, the commit is not
                with pytest.raises(ArchiveFailed, match="power cut"):
                    archive.once()
            assert not lake.snapshot().files and list(lake.root.glob("data/*/*/*.parquet"))
            with monkeypatch.context() as patch:
                patch.setattr(archive.sources["r0"], "move", _die)  # the commit is there, Spark does not know
                with pytest.raises(ArchiveFailed, match="power cut"):
                    archive.once()
            assert [seq for seq, _ in payloads(lake, id)] == list(range(1, 21))
            t.publish("archived", key=b"new", payload=b"last", attrs={"price": 2.5})
            t.collect("archived", where="key = 'new'")
            declare_lost(ClusterTarget(cluster.local.files.root, None), "archived", 23, 30)
            t.publish("archived", key=b"behind", payload=b"the hole")
            after = archive.once()
    found = payloads(lake, id)
    assert [seq for seq, _ in found] == [*range(1, 23), 30] and found[20] == (21, b"last")
    covers = [(cover.lo, cover.hi, cover.lost) for cover in after.coverage[id]]
    assert covers == [(1, 23, False), (23, 30, True), (30, 31, False)], "what is lost is neither missing nor collected"
    assert after.coverage[id][0].asof == 1
    whole = pa.concat_tables(lake.read(id)).to_pylist()
    assert whole[20]["price"] == 2.5 and whole[21]["kind"] == "gc" and "key" in whole[21]["where"]
    assert after.definitions[id].gc == "by-key" and after.ends[id] == 31


def read_to(subscription: sync.BlockingSubscription, last: int) -> list[Event]:
    """Events up to the one of this number."""
    events = [subscription.next(60.0)]
    while events[-1].seq < last:
        events.append(subscription.next(60.0))
    return events


def _die(*_: Any) -> None:
    raise RuntimeError("power cut")


def test_an_archive_that_keeps_running_takes_in_streams_that_come_later_or_are_created_anew(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    deadline = time.monotonic() + 240
    with cluster.connect() as t, Archive(spark, lake, cluster.servers) as archive:
        early = t.create_stream("early").id
        fill(t, "early", 5)

        ids = {"early": early}

        def until() -> bool:
            snapshot = lake.snapshot()
            if snapshot.end(early) == 6 and "later" not in ids:
                ids["later"] = t.create_stream("later").id
                fill(t, "later", 7)
            if "later" in ids and snapshot.end(ids["later"]) == 8 and "anew" not in ids:
                t.delete_stream("later")
                ids["anew"] = t.create_stream("later").id
                fill(t, "later", 3)
            return ("anew" in ids and snapshot.end(ids["anew"]) == 4) or time.monotonic() > deadline

        after = archive.run(until, interval=0.5)
    assert {name: after.end(id) for name, id in ids.items()} == {"early": 6, "later": 8, "anew": 4}
    assert [seq for seq, _ in payloads(lake, "early")] == list(range(1, 6))
    assert [seq for seq, _ in payloads(lake, ids["later"])] == list(range(1, 8)) and ids["later"] in after.deleted
    assert [seq for seq, _ in payloads(lake, "later")] == [1, 2, 3], "a name means the stream that is there"


@pytest.mark.check
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
    files = ClusterPaths(tmp_path / "new").make()
    files.config_file.write_text(cluster_config.render(cluster_config.generate(2, 1, port=0)))
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
    return {
        stream: snapshot.end(snapshot.id_of(stream)) - 1 - len(payloads(lake, stream)) for stream in ("prices", "plain")
    }


def _replay_without_a_seam(lake: Lake, url: str) -> None:
    lines = tidings("replay", "plain", "--lake", lake.root, "--from", 5, "--url", url).splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(5, 19))
    lines = tidings("replay", "prices", "--lake", lake.root, "--to", 15).splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(6, 15))
    assert "not a range" in tidings("replay", "prices", "--lake", lake.root, "--from", 9, "--to", 9, code=1)
