"""`tidings audit --live` as a user runs it and ends it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tidings
from spark.rig import Cluster, fresh, read, table
from tidings import sync
from tidings.protocols.services.receipts import Receipt

ROWS = 120


async def lie(url: str, *receipts: Receipt) -> None:
    """Send receipts that no client of ours sends."""
    async with tidings.connect(url) as t:
        await t._subscribing._send_receipts(receipts)


@pytest.mark.check
def test_a_cluster_is_judged_while_it_runs_and_when_it_is_interrupted_the_audit_sums_up(
    small: Cluster, tmp_path: Path
) -> None:
    kept = tmp_path / "evidence.parquet"
    command = [sys.executable, "-m", "tidings.cli.app", "audit", "--live", "--json", "--interval", "0.2"]
    command += ["--patience", "2", "--evidence", str(kept), "--url", small.url]
    prices_id = fresh(small, "prices", ROWS, gc="none")
    with (
        sync.connect(small.url, receipts=True, client_id="desk") as desk,
        desk.subscribe("prices", start="earliest") as prices,
        subprocess.Popen(command, stdout=subprocess.PIPE) as audit,
        ExitStack() as stack,
    ):
        stack.callback(lambda: audit.poll() is None and audit.kill())  # whatever fails below
        assert audit.stdout is not None
        read(prices, ROWS)
        assert json.loads(audit.stdout.readline())["verdict"] == "proved"
        with small.connect() as t:
            t.publish_table("prices", table(ROWS))
            read(prices, 2 * ROWS)
            later_id = t.create_stream("later").id
            t.publish("later", payload=b"x")
            with desk.subscribe("later", start="earliest") as later:
                later.next()
        news = json.loads(audit.stdout.readline())
        assert (news["verdict"], news["stream"]) == ("proved", later_id)
        said = {"subscriber": "liar", "incarnation": 1, "stream": prices_id, "lens": "", "hash_sum": 0}
        said |= {"time": time.time()}
        short = Receipt(**said, n=1, lo=1, hi=11, asof=1, rows=9)
        never = Receipt(**said, n=2, lo=11, hi=10 * ROWS, asof=11, rows=2 * ROWS - 10)  # a clock tells
        small.do(lie(small.url, short, never, short))
        found: list[str] = []
        while len(found) < 2:
            found += [each["fault"] for each in [json.loads(audit.stdout.readline()).get("violation")] if each]
        audit.send_signal(signal.SIGINT)
        *_, last = audit.stdout.readlines()
    assert audit.returncode == 3, "violations"
    assert found == ["missing", "never published"]
    result = json.loads(last)
    assert (result["subscribers"], result["proved"], result["violated"], result["waiting"]) == (2, 2, 1, 0)
    assert [(each["subscriber"], each["fault"]) for each in result["violations"]] == [("liar", each) for each in found]
    assert result["latency_ms_by_region"]["r0"]["p99"] > 0
    evidence = pq.read_table(kept).to_pylist()
    assert sum([each["events"] for each in evidence if each["subscriber"] != "liar"]) == 2 * ROWS + 1
