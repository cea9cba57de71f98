"""A cluster that was lost comes back from the lake: same rows, same numbers, and publishing goes on behind them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from spark.lakes import NOON, append, lake_in
from spark.rig import Cluster
from tidings import sync
from tidings.client.connection import connect
from tidings.core.errors import BadInput
from tidings.core.rows import ArrowRows
from tidings.protocols.services.catalog import StreamDef
from tidings.protocols.services.receipts import ReceiptSettings, definition
from tidings.server import cluster_config
from tidings.server.local import LocalCluster
from tidings.server.paths import ClusterPaths
from tidings.spark.archive import IDENTITY, Source
from tidings.spark.columns import SparkColumns
from tidings.spark.lake import Commit, Lake, rows_of
from tidings.spark.restore import restore

PRICES = StreamDef("prices", "r0", "by-key", number=0, attrs="loc string")
PLAIN = StreamDef("plain", "r1", number=1)


def paths_of(folder: Path, regions: int = 2, durability: cluster_config.Durability = "durable") -> ClusterPaths:
    files = ClusterPaths(folder / "cluster").make()
    files.config_file.write_text(
        cluster_config.render(cluster_config.generate(regions, 2, durability=durability, port=0))
    )
    return files


def test_a_new_cluster_begins_with_what_is_in_the_lake(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PRICES, [6, 7, 8, 9], cover=(1, 10, 10), loc=["NY"] * 4)
    append(lake, PRICES, range(10, 14), loc=["LA"] * 4)
    append(lake, PLAIN, range(1, 5), ends={"plain": 7})  # 5 and 6 were given out, and never read
    append(lake, definition("r0", ReceiptSettings()), range(1, 9))
    append(lake, StreamDef("gone", "r0", number=2), range(1, 4))
    lake.commit(lambda _: Commit(kind="append", at=0.0, deleted=("gone",)))
    files = paths_of(tmp_path)
    told = restore(lake.root, files)
    assert told["streams"] == {"prices": 14, "plain": 7} and told["lost"] == {"plain": 2}

    async def main() -> None:
        async with LocalCluster(dir=files.root, durability="durable") as cluster:
            async with connect(cluster.url("r1"), timeout=30.0) as t:
                async with t.subscribe("prices", start="earliest") as sub, asyncio.timeout(20):
                    found = [await sub.next() for _ in range(5)]
                assert [(event.seq, event.payload) for event in found] == [(n, b"%d" % n) for n in range(9, 14)]
                assert {event.attrs["loc"] for event in found[1:]} == {"LA"}
                assert (await t.publish("plain", payload=b"new")).seq == 7
                assert (await t.publish("prices", key=b"4", payload=b"new")).seq == 14
                told = await t.describe("r0")
                assert told.states["_receipts/r0"].horizon == 9, "receipts go on behind those in the lake"
                assert [each.name for each in await t.streams()] == ["plain", "prices"]
                again = await t.create_stream("gone", region="r0")
                assert again.id != "gone" and (await t.publish("gone", payload=b"x")).seq == 1, "another stream"
            await cluster.kill("r1/head")
            async with connect(cluster.url("r0"), timeout=30.0) as t:
                async with t.subscribe("plain", start="earliest") as sub, asyncio.timeout(20):
                    found = [await sub.next() for _ in range(6)]
                assert [(event.seq, event.kind) for event in found[3:]] == [(4, "data"), (5, "lost"), (7, "data")]
                assert dict(found[4].attrs) == {"lo": 5, "hi": 7} and (await t.why("plain", 6)).state == "lost"
                assert (await t.why("prices", 9)).state == "collected"

    asyncio.run(main())


def test_two_streams_of_one_name_are_restored_each_with_its_own_numbers(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    mine, theirs = StreamDef("x", "r0", mark="a", created=1), StreamDef("x", "r1", number=1, mark="b", created=2)
    append(lake, mine, range(1, 5), ends={mine.id: 9})  # 5 to 8 were given out, and never read
    append(lake, theirs, range(1, 7))
    told = restore(lake.root, paths_of(tmp_path))
    assert told["streams"] == {mine.id: 9, theirs.id: 7} and told["lost"] == {mine.id: 4}


def test_a_restored_cluster_is_recognized_as_the_one_that_was_archived(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PLAIN, range(1, 5), published_at=[NOON + 1_234_567 * seq for seq in range(1, 5)])
    files = paths_of(tmp_path)
    restore(lake.root, files)
    cluster = Cluster(dir=files.root, durability="durable")
    try:
        with sync.connect(cluster.local.url("r1")) as t:
            source = Source("r1", "", t)
            source.look()
            source.hold(Lake(tmp_path / "p"), {}, 60.0)
            found = source.newest("plain", 100)
            source.leave()
    finally:
        cluster.stop()
    (table,) = lake.read("plain", 4, 5, lake.snapshot())
    rows = rows_of(table)
    assert isinstance(rows, ArrowRows)
    assert found == SparkColumns(IDENTITY, archive=True, json=True).batch("plain", rows)
    assert found["published_at"].cast("int64").to_pylist() == [NOON + 4 * 1_234_567]


def test_a_directory_with_a_cluster_in_it_is_not_written_over(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PLAIN, range(1, 5))
    files = paths_of(tmp_path)
    restore(lake.root, files)
    with pytest.raises(BadInput, match="there already"):
        restore(lake.root, files)


def test_what_cannot_be_restored_is_said_before_anything_is_written(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PLAIN, range(1, 5))
    with pytest.raises(BadInput, match="no such region"):
        restore(lake.root, paths_of(tmp_path / "one", regions=1))
    with pytest.raises(BadInput, match="needs disks"):
        restore(lake.root, paths_of(tmp_path / "two", durability="memory"))
    append(lake, PLAIN, range(9, 12))
    with pytest.raises(BadInput, match=r"\[5, 9\) is not in the lake"):
        restore(lake.root, paths_of(tmp_path / "three"))
