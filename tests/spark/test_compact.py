"""Compaction leaves in the lake what collection leaves in a history, and older snapshots as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark.lakes import DAY, NOON, append, lake_in, rows_for
from tidings.core.errors import BadInput
from tidings.core.gc import GcPolicy
from tidings.core.history import History
from tidings.protocols.services.catalog import StreamDef
from tidings.spark import compact as compaction
from tidings.spark.compact import compact
from tidings.spark.lake import Commit, Cover, Lake

KEYED = StreamDef("keyed", "r0", "by-key", attrs="loc string")
FREE = StreamDef("free", "r0", "none", attrs="loc string")


def survivors(lake: Lake, definition: StreamDef) -> list[int]:
    """What a history says of the stream in the lake."""
    history = History(definition.name, GcPolicy.parse(definition.gc))
    for span in lake.spans(definition.name):
        history.accept(span)
    return history.rows(1, history.horizon, history.horizon).rows.numbers.tolist()


def seqs(lake: Lake, stream: str, snapshot: int | None = None) -> list[int]:
    return [seq for table in lake.read(stream, snapshot=lake.snapshot(snapshot)) for seq in table["seq"].to_pylist()]


def collecting(count: int, at: dict[int, dict[str, Any]]) -> dict[str, list[Any]]:
    """Columns of rows 1 to count of which some collect."""
    columns: dict[str, list[Any]] = {"kind": [], "key": [], "before": [], "where": [], "loc": []}
    for seq in range(1, count + 1):
        said = at.get(seq)
        columns["kind"].append("gc" if said else "data")
        columns["key"].append(None if said else b"%d" % (seq % 4))
        columns["before"].append(said and said.get("before"))
        columns["where"].append(said and said.get("where"))
        columns["loc"].append(None if said else "NY" if seq % 3 else "LA")
    return columns


def test_what_every_kind_of_collector_leaves(spark: Any, tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    ny = "(loc string) loc = 'NY'"
    free = {8: {"where": ny}, 12: {"before": 5}, 20: {"where": ny}, 24: {"before": 7}}
    append(lake, FREE, range(1, 31), **collecting(30, free))
    keyed = {9: {"where": "() key = X'31'"}, 13: {"before": 4}}
    append(lake, KEYED, range(1, 16), **collecting(15, keyed))
    append(lake, KEYED, range(16, 19), loc=["NY"] * 3)
    expected = {name: survivors(lake, each) for name, each in (("free", FREE), ("keyed", KEYED))}
    told = compact(spark, lake, keep=2)
    assert {name: seqs(lake, name) for name in expected} == expected
    assert told["streams"] == 2 and told["rows_after"] == sum(len(each) for each in expected.values())
    assert [cover.asof for cover in lake.snapshot().coverage["keyed"]] == [19]
    assert {name: survivors(lake, each) for name, each in (("free", FREE), ("keyed", KEYED))} == expected
    assert seqs(lake, "keyed", told["oldest"]) == list(range(1, 19))  # time travel
    again = compact(spark, lake, keep=1)
    assert again["streams"] == 0 and again["files_removed"] == 3 and lake.ids() == [told["snapshot"]]


def test_small_files_of_receipts_are_put_together_and_nothing_is_left_out(spark: Any, tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    told = StreamDef("_receipts/r0", "r0", "keep-last:3", attrs="loc string")
    for lo in (1, 4, 7):
        append(lake, told, range(lo, lo + 3), loc=["NY"] * 3)
    append(lake, told, range(10, 12), published_at=[NOON + DAY] * 2)
    before = lake.snapshot()
    assert compact(spark, lake, keep=1)["files_removed"] == 3
    after = lake.snapshot()
    assert seqs(lake, told.name) == list(range(1, 12)) and after.coverage == before.coverage
    assert sorted([file.rows for file in after.files.values()]) == [2, 9]
    assert compact(spark, lake, keep=1)["streams"] == 0


def test_of_two_compactions_at_once_the_second_is_refused_and_the_lake_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_in(tmp_path)
    append(lake, FREE, range(1, 4))
    append(lake, FREE, range(4, 8))
    names = iter(["slow", "fast"])

    def rewrite(spark: Any, lake: Lake, snapshot: Any, stream: str) -> Commit:
        name = next(names)
        if name == "slow":  # while it works another one begins and ends
            compact(spark, lake, keep=5)
        files = tuple(lake.write(rows_for(FREE, range(1, 8)), name))
        return Commit(
            kind="compact", at=0.0, add=files, remove=tuple(snapshot.files), coverage=(Cover("free", 1, 8, 8),)
        )

    monkeypatch.setattr(compaction, "compact_stream", rewrite)
    with pytest.raises(BadInput, match="one compaction at a time"):
        compact(None, lake, keep=5)  # type: ignore[arg-type]
    assert [file.path.rpartition("/")[2] for file in lake.snapshot().of("free")] == ["fast.parquet"]
    assert seqs(lake, "free") == list(range(1, 8))
