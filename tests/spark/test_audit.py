"""The audit in Spark: a clean lake is proved, and each thing that is planted in one is found, named and located."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark.lakes import NOON, append, lake_in, rows_for
from tidings.check.tables import DELIVERED
from tidings.core.hashing import hash_sum, row_hashes
from tidings.core.ids import NEVER
from tidings.protocols.services.catalog import StreamDef
from tidings.protocols.services.receipts import NAMES, ReceiptSettings, definition
from tidings.spark.audit import ROWS, audit_lake, facts_of, judged
from tidings.spark.lake import Commit, Lake

PRICES = StreamDef("prices", "r0", "by-key", attrs="price double")
TOLD = definition("r0", ReceiptSettings())
COUNT = 20
LENS = "price > 10.0D"
Row = dict[str, Any]


class Told:
    """Honest receipts of some subscribers for a by-key stream of five keys, open to meddling."""

    def __init__(self) -> None:
        rows = rows_for(PRICES, range(1, COUNT + 1), price=[float(seq) for seq in range(1, COUNT + 1)])
        self.hashes = dict(zip(rows["seq"].to_pylist(), rows["_hash"].to_pylist(), strict=True))
        self.rows: list[Row] = []
        for name in ("honest", *PLANTED):
            for lo, hi in ((1, 6), (6, 11), (11, 16), (16, 21)):
                self.deliver(name, lo, hi, lo)
        self.deliver("late", 1, 21, 21)
        self.deliver("picky", 1, 21, 21, LENS)

    def deliver(self, name: str, lo: int, hi: int, asof: int, lens: str = "") -> None:
        seqs = [seq for seq in range(lo, hi) if seq + 5 >= asof or seq + 5 > COUNT]
        seqs = [seq for seq in seqs if not lens or seq > 10]
        hashes = np.array([self.hashes.get(seq, seq) for seq in seqs], np.int64).view(np.uint64)
        sum = hash_sum(row_hashes(np.array(seqs, np.int64), hashes))
        n = 1 + len([row for row in self.rows if row["subscriber"] == name])
        values = (name, 1, n, "prices", lo, hi, asof, lens, len(seqs), sum, NOON / 1e6 + hi)
        self.rows.append(dict(zip(NAMES, values, strict=True)))

    def of(self, name: str) -> list[Row]:
        return [row for row in self.rows if row["subscriber"] == name]

    def into(self, lake: Lake) -> None:
        columns: dict[str, Any] = {name: [row[name] for row in self.rows] for name in NAMES}
        columns["hash_sum"] = np.array(columns["hash_sum"], np.uint64).view(np.int64)
        append(lake, TOLD, range(1, len(self.rows) + 1), ends={"prices": COUNT + 1}, **columns)


def duplicate(told: Told, rows: list[Row]) -> None:
    told.rows.append(rows[1] | {"n": 5})


def gap(told: Told, rows: list[Row]) -> None:
    told.rows.remove(rows[1])
    rows[2]["n"], rows[3]["n"] = 2, 3


def reordering(told: Told, rows: list[Row]) -> None:
    rows[1]["n"], rows[2]["n"] = 3, 2


def wrong_row(told: Told, rows: list[Row]) -> None:
    rows[2]["hash_sum"] ^= 1


def missing_row(told: Told, rows: list[Row]) -> None:
    rows[2]["rows"] -= 1


def never_published(told: Told, rows: list[Row]) -> None:
    told.deliver("never_published", 21, 24, 21)


PLANTED: dict[str, tuple[Callable[[Told, list[Row]], None], set[str]]] = {
    "duplicate": (duplicate, {"twice", "out of order"}),
    "gap": (gap, {"unexplained gap"}),
    "reordering": (reordering, {"out of order"}),
    "wrong_row": (wrong_row, {"wrong row"}),
    "missing_row": (missing_row, {"missing"}),
    "never_published": (never_published, {"never published"}),
}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = lake_in(tmp_path)
    append(made, PRICES, range(1, COUNT + 1), price=[float(seq) for seq in range(1, COUNT + 1)])
    return made


def test_a_clean_lake_is_proved(spark: Any, lake: Lake) -> None:
    Told().into(lake)
    found = audit_lake(spark, lake)
    assert found["violations"] == [] and found["unverifiable"] == 0
    assert found["proved"] == found["subscribers"] == len(PLANTED) + 3 and found["streams"] == 1
    assert found["events"] == COUNT * found["subscribers"]
    assert found["latency_ms"]["p50"] > 0 and found["latency_ms_by_region"].keys() == {"r0"}


def test_everything_that_is_planted_is_found_and_named(spark: Any, lake: Lake) -> None:
    told = Told()
    for name, (plant, _) in PLANTED.items():
        plant(told, told.of(name))
    told.into(lake)
    found = audit_lake(spark, lake)
    by: dict[str, set[str]] = {}
    for each in found["violations"]:
        by.setdefault(each["subscriber"], set()).add(each["fault"])
        assert each["stream"] == "prices" and each["region"] == "r0" and each["hi"] < NEVER
    assert by == {name: faults for name, (_, faults) in PLANTED.items()}
    assert (found["proved"], found["violated"], found["unverifiable"]) == (3, len(PLANTED), 0)


def test_a_receipt_for_a_stream_whose_rows_have_not_come_yet_accuses_nobody(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append(lake, PRICES, range(1, 4), ends={"prices": 4, "later": 50})
    said = {"subscriber": "desk", "incarnation": 1, "n": 1, "stream": "later", "lo": 1, "hi": 11, "asof": 1, "lens": ""}
    said |= {"rows": 10, "hash_sum": 5, "time": 1.0, "region": "r0"}
    told = pa.Table.from_pylist([said], schema=DELIVERED.append(pa.field("region", pa.string())))
    (found,) = judged("later", ROWS.empty_table(), told, facts_of(lake.snapshot())["later"], whole=True).to_pylist()
    assert (found["invariant"], found["verdict"], found["unverifiable"]) == (None, "unverifiable", 10)
    assert facts_of(lake.snapshot(), {"newest": 7})["newest"].end == 7


def test_a_stream_that_was_deleted_or_is_not_known_accuses_nobody(spark: Any, lake: Lake) -> None:
    told = Told()
    told.deliver("late", COUNT + 1, COUNT + 4, COUNT + 1)
    told.into(lake)
    assert audit_lake(spark, lake)["violated"] == 1, "it ends where its owner says"
    lake.commit(lambda _: Commit(kind="append", at=0.0, deleted=("prices",)))
    found = audit_lake(spark, lake)
    assert (found["violated"], found["unverifiable"], found["unverifiable_events"]) == (0, 1, 3)


def test_a_compacted_lake_proves_what_it_can_and_accuses_nobody(spark: Any, lake: Lake) -> None:
    from tidings.spark.compact import compact

    Told().into(lake)
    told = compact(spark, lake, keep=1)
    assert told["rows_after"] == told["rows_before"] - 15  # of five keys the last events are left
    found = audit_lake(spark, lake)
    assert found["violations"] == [] and (found["proved"], found["violated"]) == (2, 0)  # those as of the end
    assert found["unverifiable"] == len(PLANTED) + 1
