"""The live audit: batches that run again, streams that go away, failures that stay; evidence adds up."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from spark.rig import Cluster, fresh, read, table
from tidings import sync
from tidings.spark.streaming_audit import EVIDENCE, WAITING, AuditQuery, LiveFailed, StreamAudit, Total

ROWS = 120


@pytest.mark.check
def test_a_batch_that_runs_again_is_counted_once_and_a_stream_may_be_deleted(
    spark: Any, small: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidings.spark.streaming_audit.RETRIES", 1)
    prices_id = fresh(small, "prices", ROWS, gc="by-key")
    fresh(small, "gone", 3)
    told: list[Any] = []
    starts: list[Any] = []

    def tell(news: list[Any], evidence: list[Any]) -> None:
        told.append(evidence)
        if len(told) == 1:
            raise RuntimeError("nobody listens")  # after it was counted: Spark runs the batch again

    start = AuditQuery._start
    monkeypatch.setattr(AuditQuery, "_start", lambda self, *given: starts.append(given) or start(self, *given))
    with (
        sync.connect(small.url, receipts=True, client_id="desk") as desk,
        desk.subscribe("prices", start="earliest") as prices,
        small.connect() as t,
    ):
        read(prices, ROWS)
        more = iter([True])

        def over() -> bool:
            if told and next(more, False):
                t.delete_stream("gone")
                t.publish_table("prices", table(ROWS))
                read(prices, 2 * ROWS)
            settled = len(told) > 1 and t.describe("r0").states[prices_id].floor > ROWS
            return settled or time.monotonic() > end

        end = time.monotonic() + 120
        result = AuditQuery(spark, small.url, tell, interval=0.2).run(over)
        assert t.describe("r0").states[prices_id].floor > ROWS, "what is judged is not kept for it"
    assert (result["proved"], result["events"], len(told)) == (1, 2 * ROWS, 2)
    assert len(starts) > 1, "it failed, and a stream was deleted"


def test_a_failure_that_stays_is_told(spark: Any, small: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: AuditQuery, found: Any, batch: int) -> None:
        raise RuntimeError("no room for evidence")

    fresh(small, "prices", 1)
    monkeypatch.setattr("tidings.spark.streaming_audit.RETRIES", 1)
    monkeypatch.setattr(AuditQuery, "_take", fail)
    with pytest.raises(LiveFailed, match="no room for evidence"):
        AuditQuery(spark, small.url, interval=0.2).run(lambda: False)


def test_evidence_adds_up_and_only_what_changes_is_told() -> None:
    total = Total()
    counts = dict.fromkeys(Total.COUNTED, 0) | {"receipts": 1, "events": 5, "rows": 5}
    row = dict.fromkeys(EVIDENCE) | counts | {"subscriber": "desk", "stream": "s", "region": "r0", "latencies": [3.0]}
    assert [each["verdict"] for each in total.add([row])] == ["proved"]
    assert total.add([row, dict.fromkeys(EVIDENCE) | {"stream": "s", "verdict": WAITING, "receipts": 2}]) == []
    wrong = dict.fromkeys(EVIDENCE) | {"subscriber": "desk", "stream": "s", "invariant": "order", "fault": "twice"}
    news = total.add([wrong, row | {"violations": 1}])
    assert [each.get("verdict") for each in news] == [None, "violated"]
    told = total.summary()
    assert (told["proved"], told["violated"], told["events"], told["waiting"], told["found"]) == (0, 1, 15, 2, 1)
    assert told["latency_ms"]["p50"] == 3.0 and told["latency_ms_by_region"].keys() == {"r0"}


def test_the_columns_of_evidence_are_those_of_the_batch_audit() -> None:
    assert pa.schema(list(EVIDENCE.items())).names[:2] == ["subscriber", "stream"]
    assert StreamAudit({}).facts == {}
