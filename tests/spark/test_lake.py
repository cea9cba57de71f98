"""The lake: what is committed counts, once, also as it was; what is missing is known."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark.lakes import DAY, NOON, append, lake_in, rows_for
from tidings.check.tables import LOST
from tidings.core.errors import BadInput
from tidings.core.gc import GcPolicy
from tidings.core.history import History
from tidings.core.rows import ArrowRows
from tidings.protocols.services.catalog import StreamDef
from tidings.spark.audit import ROWS, with_gone
from tidings.spark.lake import ABANDONED, Commit, Cover, Lake, Snapshot, clipped, covered, gone, rows_of

PRICES = StreamDef("prices", "r0", "by-key", attrs="loc string, price double")
PLAIN = StreamDef("plain", "r0")


def seqs(lake: Lake, stream: str, lo: int = 1, hi: int | None = None) -> list[int]:
    return [seq for table in lake.read(stream, lo, hi) for seq in table["seq"].to_pylist()]


def test_rows_come_back_in_order_whatever_days_they_were_published_on(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    late = [NOON + DAY * (seq % 2) for seq in range(1, 9)]  # clocks of two heads
    append(lake, PLAIN, range(1, 9), published_at=late)
    append(lake, PLAIN, range(9, 12))
    assert seqs(lake, "plain") == list(range(1, 12))
    assert seqs(lake, "plain", 3, 10) == list(range(3, 10))
    assert len({file.day for file in lake.snapshot().of("plain")}) == 2


def test_what_no_commit_names_is_not_there(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PLAIN, range(1, 4))
    lake.write(rows_for(PLAIN, range(4, 9)), "crashed")
    assert seqs(lake, "plain") == [1, 2, 3] and lake.snapshot().end("plain") == 4


def test_files_that_a_dead_job_left_behind_go_when_they_are_old(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PLAIN, range(1, 4))
    (left,) = lake.write(rows_for(PLAIN, range(4, 9)), "crashed")
    assert lake.expire(keep=1) == []
    old = time.time() - ABANDONED - 60
    os.utime(lake.root / left.path, (old, old))
    assert lake.expire(keep=1) == [left.path] and seqs(lake, "plain") == [1, 2, 3]


def test_older_snapshots_can_be_read_until_they_expire(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    for lo in (1, 4, 7):
        append(lake, PLAIN, range(lo, lo + 3))
    (first,) = lake.snapshot(1).of("plain")
    fresh = lake.write(rows_for(PLAIN, [3, 6, 9]), "compacted")
    replaced = Commit(
        kind="compact",
        at=0.0,
        add=tuple(fresh),
        remove=tuple(lake.snapshot().files),
        coverage=(Cover("plain", 1, 10, 10),),
    )
    lake.commit(lambda _: replaced)
    assert lake.ids() == [1, 2, 3, 4] and seqs(lake, "plain") == [3, 6, 9]
    assert [len(table) for table in lake.read("plain", snapshot=lake.snapshot(2))] == [3, 3]
    assert lake.expire(keep=2) == []  # the third snapshot still needs them
    assert lake.ids() == [3, 4]
    with pytest.raises(BadInput, match="from 3 to 4"):
        lake.snapshot(2)
    assert first.path in lake.expire(keep=1)
    assert lake.ids() == [4] and seqs(lake, "plain") == [3, 6, 9]
    append(lake, PLAIN, range(10, 12))
    assert lake.ids() == [4, 5] and seqs(lake, "plain") == [3, 6, 9, 10, 11]


def test_a_compaction_leaves_what_was_appended_meanwhile(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PLAIN, range(1, 4))
    old = lake.snapshot()
    append(lake, PLAIN, range(4, 6))
    fresh = tuple(lake.write(rows_for(PLAIN, [3]), "compacted"))
    commit = Commit(kind="compact", at=0.0, add=fresh, remove=tuple(old.files), coverage=(Cover("plain", 1, 4, 4),))
    lake.commit(lambda _: commit)
    assert seqs(lake, "plain") == [3, 4, 5]
    assert lake.snapshot().coverage["plain"] == [Cover("plain", 1, 6, 4)]


def test_two_writers_cannot_have_one_number(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PLAIN, range(1, 4))
    asked = []

    def slow(snapshot: object) -> Commit:
        asked.append(snapshot)
        if len(asked) == 1:
            append(lake, PLAIN, range(4, 6))
        return Commit(kind="append", at=0.0, job="slow")

    assert lake.commit(slow).id == 3 and len(asked) == 2


def test_a_number_that_was_taken_and_forgotten_is_not_taken_again(tmp_path: Path) -> None:
    lake, other = lake_in(tmp_path), lake_in(tmp_path)
    append(lake, PLAIN, range(1, 3))
    asked: list[int] = []

    def slow(now: Snapshot) -> Commit:
        if not asked:  # while it thinks, two others commit, and what was before them is forgotten
            append(other, PLAIN, range(3, 5))
            append(other, PLAIN, range(5, 7))
            other.expire(keep=1)
        asked.append(now.id)
        return Commit(kind="append", at=0.0, ends={"plain": 7})

    assert lake.commit(slow).id == 4 and asked == [1, 3]
    assert lake.ids() == [3, 4] and lake.snapshot().ends == {"plain": 7} and seqs(lake, "plain") == list(range(1, 7))


def test_a_snapshot_is_whole_although_older_ones_are_forgotten_meanwhile(tmp_path: Path) -> None:
    lake, stop = lake_in(tmp_path), threading.Event()
    for seq in range(1, 30):
        append(lake, PLAIN, [seq])
    wrong: list[object] = []

    def read() -> None:
        while not stop.is_set():
            found = lake_in(tmp_path).snapshot()  # one that knows nothing yet
            wrong.extend([found.id] if len(found.files) != found.id else [])

    with ThreadPoolExecutor(2) as readers:
        running = [readers.submit(read) for _ in range(2)]
        for seq in range(30, 60):
            append(lake, PLAIN, [seq])
            lake.expire(keep=3)
        stop.set()
        [each.result() for each in running]
    assert not wrong and lake.ids() == [57, 58, 59]


def test_the_cost_of_forgetting_is_that_of_reading_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = lake_in(tmp_path)
    for seq in range(1, 41):
        append(lake, PLAIN, [seq])
    reads: list[Path] = []
    read = Lake._read
    monkeypatch.setattr(Lake, "_read", lambda self, path, what: (reads.append(path), read(self, path, what))[1])
    lake.snapshot()
    assert not [path for path in reads if path.stem != "0000000040"]  # the rest it knows
    lake.expire(keep=5)
    assert len(reads) < 4 * 40


def test_coverage_says_what_is_missing_and_as_of_when() -> None:
    published, late = [Cover("s", 1, 5, 1), Cover("s", 5, 9, 5)], Cover("s", 9, 20, 30)
    assert covered([*published, late]) == [Cover("s", 1, 9, 1), late]
    lacking, asofs = gone([Cover("s", 1, 9, 1), late], np.array([*range(1, 9), 12, 19]))
    assert lacking.tolist() == [9, 10, 11, 13, 14, 15, 16, 17, 18] and set(asofs.tolist()) == {30}


def test_what_is_lost_is_covered_and_comes_back_as_lost(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PLAIN, range(1, 5))
    lost = Commit(kind="append", at=0.0, coverage=(Cover("plain", 5, 7, 5, True), Cover("plain", 7, 9, 7, True)))
    lake.commit(lambda _: lost)
    append(lake, PLAIN, [9, 10])
    covers = lake.snapshot().coverage["plain"]
    assert [(each.lo, each.hi, each.lost) for each in covers] == [(1, 5, False), (5, 9, True), (9, 11, False)]
    assert clipped(covers, {"plain": 6})[0] == Cover("plain", 6, 9, 6, True)
    assert gone(covers, np.array([1, 2, 4, 9]))[0].tolist() == [3, 10], "lost is not gone"
    history = History("plain")
    for span in lake.spans("plain"):
        history.accept(span)
    assert history.horizon == 11 and history.is_lost(5, 9) and (history.live, history.collected) == (6, 0)
    published = with_gone("plain", ROWS.empty_table(), covers).to_pylist()
    assert [(each["seq"], each["count"]) for each in published if each["kind"] == LOST] == [(5, 4)]


def test_rows_from_the_lake_are_the_rows_that_were_published(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PRICES, range(1, 8), loc=["NY"] * 7, price=[float(seq) for seq in range(7)])
    (table,) = lake.read("prices")
    rows = rows_of(table)
    assert isinstance(rows, ArrowRows) and rows.seqs is None
    assert rows.content.view(np.int64).tolist() == table["_hash"].to_pylist()
    assert [(origin.lo, origin.hi, origin.first, origin.tick) for origin in rows.origins] == [
        (1, 3, 1, 0),
        (3, 6, 3, 100),
        (6, 8, 6, 200),
    ]


def test_spans_of_the_lake_build_the_history_they_came_from(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PRICES, [6, 7, 8, 9], cover=(1, 10, 10))
    append(lake, PRICES, range(10, 14))
    history = History("prices", GcPolicy.parse("by-key"))
    for span in lake.spans("prices"):
        history.accept(span)
    assert history.horizon == 14
    assert history.rows(1, 14, 14).rows.numbers.tolist() == [9, 10, 11, 12, 13]


def test_an_attribute_that_a_stream_gained_is_null_in_older_files(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PLAIN, range(1, 3))
    wider = StreamDef("plain", "r0", attrs="loc string")
    append(lake, wider, range(3, 5), loc=["NY", None])
    whole = pa.concat_tables(lake.read("plain"))
    assert whole["loc"].to_pylist() == [None, None, "NY", None]


def test_a_lake_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PLAIN, range(1, 3))
    path = next((lake.root / "commits").glob("*.json"))
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(BadInput, match="format 9"):
        lake.snapshot()


def test_a_directory_that_is_no_lake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no lake"):
        Lake.existing(tmp_path)


def test_without_java_a_command_says_so_in_one_line(tmp_path: Path) -> None:
    append(lake_in(tmp_path), PLAIN, range(1, 3))
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": "/nowhere"}
    command = [sys.executable, "-m", "tidings.cli.app", "audit", "--lake", str(tmp_path / "lake")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and done.stderr.startswith("tidings: Spark needs Java 17")
    assert done.stderr.count("\n") == 1 and not done.stdout
