"""`tidings why`: a lake names the event that collected a number when the replicas have forgotten it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server.rig import tidings
from spark.lakes import append, lake_in
from spark.rig import KEYS, Cluster, fresh, table, until_forgotten
from spark.test_compact import FREE, KEYED, collecting
from tidings.core.gc import GcPolicy
from tidings.core.history import History
from tidings.protocols.services.catalog import StreamDef
from tidings.spark import archive
from tidings.spark.archive import Archive
from tidings.spark.compact import compact
from tidings.spark.lake import Commit, Cover, Lake
from tidings.spark.why import Fate, fate

NY = "(loc string) loc = 'NY'"
COLLECTORS: dict[str, dict[int, dict[str, Any]]] = {
    "free": {8: {"where": NY}, 12: {"before": 5}, 20: {"where": NY}, 24: {"before": 7}},
    "keyed": {9: {"where": "() key = X'31'"}, 13: {"before": 4}},
}


def filled(folder: Path) -> Lake:
    lake = lake_in(folder)
    append(lake, FREE, range(1, 31), **collecting(30, COLLECTORS["free"]))
    append(lake, KEYED, range(1, 16), **collecting(15, COLLECTORS["keyed"]))
    append(lake, KEYED, range(16, 19), key=[b"1", b"2", b"3"], loc=["NY"] * 3)
    return lake


def killers(lake: Lake, definition: StreamDef) -> dict[int, Fate]:
    """What a history that keeps everything says of every number."""
    history = History(definition.name, GcPolicy.parse(definition.gc))
    for span in lake.spans(definition.name):
        history.accept(span)
    told = {seq: history.killer(seq) for seq in range(1, history.horizon)}
    assert not {"gone", "lost"} & set(told.values())
    return {seq: Fate("row") if by is None else Fate("collected", int(by)) for seq, by in told.items()}


@pytest.mark.parametrize("definition", [FREE, KEYED], ids=lambda each: each.name)
def test_a_lake_names_the_collecting_event_that_a_history_names(tmp_path: Path, definition: StreamDef) -> None:
    lake = filled(tmp_path)
    expected = killers(lake, definition)
    assert {each.state for each in expected.values()} == {"row", "collected"}
    assert {seq: fate(lake, definition.name, seq) for seq in expected} == expected


def test_after_a_compaction_older_snapshots_still_know(spark: Any, tmp_path: Path) -> None:
    lake = filled(tmp_path)
    expected = killers(lake, KEYED)
    compact(spark, lake, keep=2)
    assert {seq: fate(lake, "keyed", seq) for seq in expected} == expected


def test_where_the_row_is_unknown_only_an_event_that_collects_all_below_it_is_named(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    late = [Cover("free", 1, 4, 6), Cover("free", 4, 6, 6), Cover("free", 6, 9, 9, lost=True)]
    lake.commit(lambda _: Commit(kind="append", at=0.0, coverage=tuple(late), definitions=(FREE,)))
    append(lake, FREE, range(9, 13), **{name: each[8:] for name, each in collecting(12, {12: {"before": 3}}).items()})
    assert [fate(lake, "free", seq) for seq in (2, 4, 7)] == [Fate("collected", 12), Fate("collected"), Fate("lost")]
    assert fate(lake, "free", 13) is None and fate(lake, "nothing", 1) is None


def test_why_asks_the_lake_for_what_the_replicas_have_forgotten(
    spark: Any, small: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "ATTEMPT", 1.0)  # seconds for which a reader keeps rows: nobody reads again here
    fresh(small, "asked", KEYS, gc="by-key")
    lake = Lake(tmp_path / "lake")
    with Archive(spark, lake, small.url, lease=1.0) as job:
        job.once()
        with small.connect() as t:
            t.publish_table("asked", table(2 * KEYS, KEYS))
        job.once()
    until_forgotten(small, "asked", KEYS + 1)
    arguments = ("why", "asked", 1, "--url", small.url)
    cluster, both = (json.loads(tidings(*arguments, *more, "--json")) for more in ((), ("--lake", tmp_path / "lake")))
    assert cluster == {"stream": "asked", "seq": 1, "state": "collected", "by": None, "source": "cluster"}
    assert both == {"stream": "asked", "seq": 1, "state": "collected", "by": KEYS + 1, "source": "lake"}
    assert tidings(*arguments) == (
        "asked 1: collected (the cluster does not know any more by which event; an archive may: --lake DIR)\n"
    )


def test_why_answers_from_the_lake_when_no_cluster_does(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    gone = ("--url", "tidings://127.0.0.1:1", "--lake", lake.root)
    assert tidings("why", "keyed", 1, *gone) == "keyed 1: collected by event 5 (says the lake)\n"
    assert "127.0.0.1:1" in tidings("why", "keyed", 99, *gone, code=1)
