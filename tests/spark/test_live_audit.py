"""The audit as a streaming query: receipts are judged when their rows are there, once, however they come in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark.lakes import NOON, rows_for
from tidings.client.events import LOST
from tidings.core.hashing import hash_sum, row_hashes
from tidings.protocols.catalog import StreamDef
from tidings.spark.audit import (
    _TOLD,
    INPUT,
    Facts,
    Standing,
    StreamAudit,
    evidence_stream,
    packed_receipts,
    published_rows,
)
from tidings.spark.columns import COVERAGE

PLAIN = StreamDef("plain", "r0", "by-key")
FACTS = Facts("by-key", "", 0, ())
HASHES = dict(zip(range(1, 41), rows_for(PLAIN, range(1, 41))["_hash"].to_pylist(), strict=True))


def rows(lo: int, hi: int) -> Standing:
    """Rows of the stream, as they come in; a second later than the receipts for them."""
    covers = pa.table({"seq": [lo], "before": [hi], "_tick": [lo], "kind": [COVERAGE]})
    at = [NOON + 1_000_000 * seq for seq in range(lo, hi)]
    return Standing(rows=published_rows(rows_for(PLAIN, range(lo, hi), published_at=at), ""), covers=covers)


def receipt(lo: int, hi: int, n: int, **changes: Any) -> dict[str, Any]:
    hashes = np.array([HASHES.get(seq, 0) for seq in range(lo, hi)], np.int64).view(np.uint64)
    total = hash_sum(row_hashes(np.arange(lo, hi), hashes)) if hi <= 41 else 0
    said = {"subscriber": "desk", "incarnation": 1, "n": n, "stream": "plain", "lo": lo, "hi": hi, "asof": lo}
    said |= {"lens": "", "rows": hi - lo, "hash_sum": int(np.uint64(total).view(np.int64))}
    return said | {"time": NOON / 1e6 + hi, "region": "r0"} | changes


def told(*receipts: dict[str, Any]) -> Standing:
    return Standing(waiting=pa.Table.from_pylist(list(receipts), schema=_TOLD))


class Audit:
    """Inputs one after the other; the evidence of each."""

    def __init__(self, keep: int = 1000) -> None:
        self.standing = Standing()
        self.keep = keep

    def take(self, new: Standing) -> tuple[list[str], list[str]]:
        """Faults, and verdicts."""
        self.standing, found = self.standing.advance("plain", new, FACTS, self.keep, patience=5.0)
        evidence = found.to_pylist()
        return [each["fault"] for each in evidence if each["invariant"]], [
            each["verdict"] for each in evidence if not each["invariant"]
        ]


def test_who_was_to_be_handed_what_is_lost_is_told_apart() -> None:
    audit = Audit()
    audit.take(rows(1, 6))
    hole = Standing(covers=pa.table({"seq": [6], "before": [9], "_tick": [6], "kind": [LOST]}))
    assert audit.take(hole) == ([], [])
    assert audit.take(told(receipt(1, 6, 1), receipt(6, 9, 2, rows=0, hash_sum=0))) == ([], ["lost"])


def test_receipts_wait_for_their_rows_and_are_judged_once() -> None:
    audit = Audit()
    assert audit.take(told(receipt(1, 6, 1))) == ([], [])
    assert audit.take(rows(1, 4)) == ([], [])
    assert audit.take(rows(4, 9)) == ([], ["proved"])
    assert audit.take(rows(9, 11)) == ([], [])
    assert audit.take(told(receipt(6, 11, 2))) == ([], ["proved"])


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        (receipt(7, 9, 2), "unexplained gap"),
        (receipt(4, 9, 2), "twice"),
        (receipt(6, 9, 2, hash_sum=1), "wrong row"),
        (receipt(6, 9, 2, rows=2), "missing"),
    ],
)
def test_a_receipt_must_continue_the_one_that_was_judged_before_it(second: dict[str, Any], fault: str) -> None:
    audit = Audit()
    audit.take(rows(1, 11))
    assert audit.take(told(receipt(1, 6, 1))) == ([], ["proved"])
    assert audit.take(told(second)) == ([fault], ["violated"])
    assert audit.take(told(receipt(9, 11, 3))) == ([], ["proved"])  # an old sin is not told again


def test_what_never_comes_was_never_published() -> None:
    audit = Audit()
    audit.take(rows(1, 11))
    assert audit.take(told(receipt(1, 15, 1, time=NOON / 1e6 + 11, hash_sum=0))) == ([], [])
    assert audit.take(rows(11, 13)) == ([], [])
    assert audit.take(told(receipt(1, 60, 1, subscriber="liar", time=NOON / 1e6 + 12))) == ([], [])
    assert audit.take(rows(13, 16)) == (["wrong row"], ["violated"])
    assert audit.take(rows(16, 30)) == (["never published"], ["violated"])


def test_what_is_remembered_is_bounded_and_the_rest_unverifiable() -> None:
    audit = Audit(keep=5)
    audit.take(rows(1, 11))
    assert audit.standing.rows.num_rows == 5
    assert audit.take(told(receipt(1, 11, 1))) == ([], ["unverifiable"])


def inputs(folder: Path, parts: Iterator[pa.RecordBatch]) -> None:
    pq.write_table(pa.Table.from_batches(list(parts)), folder / f"{len(list(folder.iterdir())):03d}.parquet")


def test_in_a_streaming_query(spark: Any, tmp_path: Path) -> None:
    events, receipts = tmp_path / "events", tmp_path / "receipts"
    for folder in (events, receipts):
        folder.mkdir()
    schema = "stream string, seq long, key binary, payload binary, published_at timestamp, region string, "
    schema += "publisher string, pub_seq long, kind string, before long, where string, _session long, _tick long"
    made = rows_for(PLAIN, range(1, 11)).drop_columns(["_hash"])
    cover = {"stream": "plain", "seq": 1, "before": 11, "_tick": 1, "kind": COVERAGE}
    pq.write_table(pa.concat_tables([made, pa.Table.from_pylist([cover], schema=made.schema)]), events / "0.parquet")
    said = [
        receipt(1, 6, 1),
        receipt(6, 11, 2),
        receipt(1, 6, 1, subscriber="other"),
        receipt(6, 9, 2, subscriber="other", rows=2),
    ]
    pq.write_table(pa.Table.from_pylist(said, schema=_TOLD), receipts / "0.parquet")
    columns = ", ".join(
        f"{name} {kind}" for name, kind in zip(_TOLD.names, [_sql(each) for each in _TOLD.types], strict=True)
    )
    found = evidence_stream(
        spark.readStream.schema(schema).parquet(str(events)),
        spark.readStream.schema(columns).parquet(str(receipts)),
        {"plain": FACTS},
    )
    query = (
        found.writeStream.format("memory")
        .queryName("evidence")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    evidence = [row.asDict() for row in spark.table("evidence").collect()]
    verdicts = {each["subscriber"]: each["verdict"] for each in evidence if each["invariant"] is None}
    assert verdicts == {"desk": "proved", "other": "violated"}
    assert [(each["subscriber"], each["fault"]) for each in evidence if each["invariant"]] == [("other", "missing")]


def _sql(kind: pa.DataType) -> str:
    return {pa.string(): "string", pa.int64(): "long", pa.float64(): "double"}[kind]


def test_the_processor_knows_what_its_input_is() -> None:
    (batch,) = packed_receipts(iter(pa.Table.from_pylist([receipt(1, 6, 1)], schema=_TOLD).to_batches()))
    assert batch.schema.names == [part.split()[0] for part in INPUT.split(", ")]
    assert StreamAudit({"plain": FACTS}).facts == {"plain": FACTS}
