"""The live audit: a real cluster is proved as it goes on, and receipts that lie are found."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidings
from spark.rig import Cluster, fresh, table
from tidings import sync
from tidings.protocols.receipts import Receipt
from tidings.spark.live import EVIDENCE, WAITING, Live, StreamAudit, Total

ROWS = 120


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(regions=1, replicas=1, dir=tmp_path / "cluster")
    yield made
    made.stop()


async def lie(url: str, *receipts: Receipt) -> None:
    """Send receipts that no client of ours sends."""
    async with tidings.connect(url) as t:
        await t._send_receipts(receipts)


class Doings:
    """What happens while the audit runs: one step after the other, each when the audit has seen the one before."""

    def __init__(self, cluster: Cluster, desk: Any, follow: Any) -> None:
        self.cluster, self.desk, self.prices = cluster, desk, follow
        self.live: Live | None = None
        self.news: list[dict[str, Any]] = []
        self.steps = [self.publish, self.plant, self.over]
        self.deadline = time.monotonic() + 120

    def read(self, end: int) -> None:
        while self.prices.next().seq < end:
            pass

    def until(self) -> bool:
        assert self.live is not None
        if self.steps and self.steps[0]():
            del self.steps[0]
        return not self.steps or time.monotonic() > self.deadline

    def proved(self, stream: str, events: int) -> bool:
        assert self.live is not None
        mine = [pair for (_, name), pair in self.live.total.pairs.items() if name == stream]
        return sum([pair["events"] for pair in mine]) >= events

    def publish(self) -> bool:
        if not self.proved("prices", ROWS):
            return False
        with self.cluster.connect() as t:
            t.publish_table("prices", table(ROWS))
            self.read(2 * ROWS)
            t.create_stream("later")
            t.publish("later", payload=b"x")
            with self.desk.subscribe("later", start="earliest") as later:
                later.next()
        return True

    def plant(self) -> bool:
        if not (self.proved("prices", 2 * ROWS) and self.proved("later", 1)):
            return False
        assert self.live is not None and self.live.total.found == 0
        said = {
            "subscriber": "liar",
            "incarnation": 1,
            "stream": "prices",
            "lens": "",
            "hash_sum": 0,
            "time": time.time(),
        }
        short = Receipt(**said, n=1, lo=1, hi=11, asof=1, rows=9)
        never = Receipt(**said, n=2, lo=11, hi=10 * ROWS, asof=11, rows=2 * ROWS - 10)  # a clock tells
        self.cluster.do(lie(self.cluster.url, short, never, short))
        return True

    def over(self) -> bool:
        assert self.live is not None
        return self.live.total.found >= 2


def test_a_cluster_is_judged_while_it_runs(spark: Any, small: Cluster) -> None:
    fresh(small, "prices", ROWS, gc="none")
    with (
        sync.connect(small.url, receipts=True, client_id="desk") as desk,
        desk.subscribe("prices", start="earliest") as prices,
    ):
        doings = Doings(small, desk, prices)
        doings.read(ROWS)
        live = Live(spark, small.servers, lambda news, _: doings.news.extend(news), interval=0.2, patience=2.0)
        doings.live = live
        result = live.run(doings.until)
    verdicts = {key: verdict.value for key, verdict in live.total.verdicts.items()}
    (desk_name,) = {subscriber for subscriber, _ in verdicts if subscriber != "liar"}
    assert verdicts == {
        (desk_name, "prices"): "proved",
        (desk_name, "later"): "proved",
        ("liar", "prices"): "violated",
    }
    assert [each["fault"] for each in result["violations"]] == ["missing", "never published"]
    assert {each["subscriber"] for each in result["violations"]} == {"liar"}
    assert result["latency_ms_by_region"]["r0"]["p99"] > 0 and result["waiting"] == 0
    assert [each["violation"]["fault"] for each in doings.news if "violation" in each] == ["missing", "never published"]


def test_when_it_is_interrupted_it_says_what_it_has_found(small: Cluster, tmp_path: Path) -> None:
    fresh(small, "prices", ROWS, gc="none")
    with (
        sync.connect(small.url, receipts=True, client_id="desk") as desk,
        desk.subscribe("prices", start="earliest") as prices,
    ):
        while prices.next().seq < ROWS:
            pass
        kept = tmp_path / "evidence.parquet"
        command = [sys.executable, "-m", "tidings.cli.app", "audit", "--live", "--json", "--interval", "0.2"]
        with subprocess.Popen([*command, "--evidence", kept, "--url", small.url], stdout=subprocess.PIPE) as audit:
            assert audit.stdout is not None
            said = json.loads(audit.stdout.readline())
            audit.send_signal(signal.SIGINT)
            *_, last = audit.stdout.readlines()
    assert audit.returncode == 0 and said["verdict"] == "proved"
    summary = json.loads(last)
    assert (summary["proved"], summary["found"], summary["events"]) == (1, 0, ROWS)
    assert pq.read_table(kept)["verdict"].unique().to_pylist() == ["proved"]


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
