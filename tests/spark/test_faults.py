"""Exactly once to Parquet and to a stream while things die; the checker sees what is missing, doubled or changed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidings.campaign.spark import source_faults
from tidings.campaign.spark.source_faults import STREAM, FaultCase, SeenRanges, expected, found_in, judge

KEYS = [b"a", b"b", b"a", b"c", b"b", b"d"]  # 1 is collected by 3, 2 by 5
PAYLOADS = [b"%d" % n for n in range(1, 7)]


def copy(folder: Path, rows: list[int], payloads: list[bytes] | None = None) -> None:
    """What two batches leave behind: [1, 4) as of 4, [4, 7) as of 7, with these rows in the files."""
    for name in ("offsets", "commits"):
        (folder / "checkpoint" / name).mkdir(parents=True, exist_ok=True)
    log = folder / "out/_spark_metadata"
    log.mkdir(parents=True, exist_ok=True)
    for batch, (lo, hi) in enumerate([(1, 4), (4, 7)]):
        offset = json.dumps({STREAM: {"seq": hi, "asof": hi, "lease": "l"}})
        (folder / "checkpoint/offsets" / str(batch)).write_text(f"v1\n{{}}\n{offset}")
        (folder / "checkpoint/commits" / str(batch)).touch()
        mine = [seq for seq in rows if lo <= seq < hi]
        chosen = payloads or PAYLOADS
        table = pa.table(
            {
                "seq": pa.array(mine, pa.int64()),
                "key": pa.array([KEYS[seq - 1] for seq in mine], pa.binary()),
                "payload": pa.array([chosen[seq - 1] for seq in mine], pa.binary()),
            }
        )
        path = folder / f"out/part {batch}.parquet"
        pq.write_table(table, path)
        (log / str(batch)).write_text("v1\n" + json.dumps({"path": path.as_uri()}))
    pq.write_table(table, folder / "out/left-behind.parquet")  # by an attempt that failed


def judged(folder: Path, least: int = 7) -> list[str]:
    return [invariant for invariant, _ in judge(found_in(folder / "out"), SeenRanges.of(folder), KEYS, PAYLOADS, least)]


def test_the_model_leaves_out_what_was_collected_before_its_batch() -> None:
    count, total = expected(KEYS, PAYLOADS, SeenRanges(((1, 4, 4), (4, 7, 7))))
    assert count == 5 and total == expected(KEYS, PAYLOADS, SeenRanges(((1, 7, 5),)))[1]
    assert expected(KEYS, PAYLOADS, SeenRanges(((1, 4, 6), (4, 7, 7))))[0] == 4


def test_a_right_copy_is_right_and_leftovers_do_not_count(tmp_path: Path) -> None:
    copy(tmp_path, [2, 3, 4, 5, 6])
    assert judged(tmp_path) == []
    assert judged(tmp_path, least=8) == ["stops_short"]


@pytest.mark.parametrize(
    ("rows", "finds"),
    [
        ([2, 3, 4, 5], {"exactly_once"}),
        ([1, 2, 3, 4, 5, 6], {"exactly_once"}),
        ([2, 3, 4, 5, 6, 6], {"twice", "exactly_once"}),
        ([2, 3, 4, 5, 5], {"twice", "exactly_once"}),
    ],
)
def test_a_wrong_copy_is_found(tmp_path: Path, rows: list[int], finds: set[str]) -> None:
    copy(tmp_path, rows)
    assert set(judged(tmp_path)) == finds


def test_a_changed_row_is_found(tmp_path: Path) -> None:
    copy(tmp_path, [2, 3, 4, 5, 6], [*PAYLOADS[:-1], b"7"])
    assert judged(tmp_path) == ["exactly_once"]


@pytest.mark.check
def test_every_row_arrives_once_although_a_worker_dies() -> None:
    outcome = source_faults.run_seed(0, FaultCase("worker", "sink"))  # the others: tidings check spark
    assert outcome["violations"] == []
    assert outcome["batches"] >= source_faults.BACKLOG // 2000 and len(outcome["story"]) == 1
    assert outcome["starts"] == 1


def test_a_campaign_says_what_was_broken_and_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(seed: int) -> dict[str, object]:
        wrong = [("twice", "1 row")] if seed == 3 else []
        return {
            "violations": wrong,
            "faults": {"driver killed": 1},
            "events": 5,
            "batches": 2,
            "starts": 2,
            "story": [],
        }

    monkeypatch.setattr(source_faults, "require_java", lambda: "java")
    found = source_faults.run(range(2, 4), None, one)
    assert found["violations"][0]["replay"] == "tidings check spark --seeds 3..4"
    assert found["faults"] == {"driver killed": 2} and "head killed on the way to sink" in found["unreached"]
    assert (found["events"], found["batches"], found["starts"]) == (10, 4, 4)
