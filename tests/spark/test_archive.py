"""The archive writes every event into the lake once, whatever is repeated or crashes, and knows what it has missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from spark.rig import Cluster
from tidings import sync
from tidings.spark.archive import Archive
from tidings.spark.lake import Lake


def fill(t: sync.Connection, stream: str, count: int, keys: int = 5) -> None:
    columns = {"key": [b"%d" % (at % keys) for at in range(count)], "payload": [b"%d" % at for at in range(count)]}
    t.publish_table(stream, pa.table(columns))


def payloads(lake: Lake, stream: str) -> dict[int, bytes]:
    tables = list(lake.read(stream))
    return {
        seq: it for table in tables for seq, it in zip(*[table[c].to_pylist() for c in ("seq", "payload")], strict=True)
    }


def test_an_archive_takes_everything_once_over_several_runs(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with cluster.connect() as t:
        t.create_stream("archived", gc="by-key", attrs="price double")
        with Archive(spark, lake, cluster.servers) as archive:  # from the beginning: nothing is missed
            fill(t, "archived", 20)
            archive.once()
            t.publish("archived", key=b"new", payload=b"21", attrs={"price": 2.5})
            t.collect("archived", where="key = 'new'")
            archive.once()
            after = archive.once()
        found = payloads(lake, "archived")
    assert sorted(found) == list(range(1, 23)) and found[21] == b"21"
    (cover,) = after.coverage["archived"]
    assert (cover.lo, cover.hi, cover.asof) == (1, 23, 1)
    whole = pa.concat_tables(lake.read("archived")).to_pylist()
    assert whole[20]["price"] == 2.5 and whole[21]["kind"] == "gc" and "key" in whole[21]["where"]
    assert after.definitions["archived"].gc == "by-key" and after.ends["archived"] == 23
