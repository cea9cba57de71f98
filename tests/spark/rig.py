"""A cluster for blocking tests, streams with rows in it, and the pipeline in a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from tidings import sync
from tidings.client.errors import AsofGone
from tidings.server.local import LocalCluster

T = TypeVar("T")


class Cluster:
    """A local cluster, driven from blocking code."""

    def __init__(self, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.local = LocalCluster(**options)
        self.do(self.local.start())

    def do(self, work: Coroutine[Any, Any, T], timeout: float = 120.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def kill(self, replica: str) -> None:
        self.do(self.local.kill(replica))

    def until_ready(self) -> None:
        self.do(self.local.until_ready())

    @property
    def url(self) -> str:
        return self.local.url("r0")

    @property
    def servers(self) -> str:
        return self.url.removeprefix("tidings://")

    def connect(self) -> sync.BlockingConnection:
        return sync.connect(self.url)

    def stop(self) -> None:
        self.do(self.local.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def read(subscription: Any, end: int) -> None:
    """Take events up to the one of this number."""
    while subscription.next().seq < end:
        pass


ATTRS = "loc string, price double"
KEYS = 50


def table(count: int, first: int = 0) -> pa.Table:
    """Rows with keys that repeat, payloads that do not, and attributes with nulls and NaN among them."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": pa.array([b"k%d" % (n % KEYS) for n in numbers], pa.binary()),
            "payload": pa.array([b"payload %d" % n for n in numbers], pa.binary()),
            "loc": pa.array([None if n % 7 == 0 else ("NY", "LA", "SF")[n % 3] for n in numbers], pa.string()),
            "price": pa.array([None if n % 11 == 0 else float("nan") if n % 13 == 0 else n / 4 for n in numbers]),
        }
    )


def fresh(cluster: Cluster, name: str, rows: int = 0, gc: str = "none", attrs: str = ATTRS) -> str:
    """A new stream with so many rows; its id."""
    with cluster.connect() as t:
        made = t.create_stream(name, region="r0", attrs=attrs, gc=gc)
        if rows:
            t.publish_table(name, table(rows))
    return made.id


def until_forgotten(cluster: Cluster, name: str, asof: int, deadline: float = 30.0) -> None:
    """Wait until no replica can tell any more how a stream was as of a number."""
    end = time.monotonic() + deadline
    with cluster.connect() as t:
        while time.monotonic() < end:
            try:
                with t.read(name, 1, 2, asof=asof) as reading:
                    reading.take()
            except AsofGone:
                return
            time.sleep(0.05)
    raise AssertionError(f"{name} is still known as of {asof}")


def options(cluster: Cluster, **more: Any) -> dict[str, Any]:
    return {"servers": cluster.servers, **more}


def load(spark: Any, cluster: Cluster, **more: Any) -> Any:
    return spark.read.format("tidings").options(**options(cluster, **more)).load()


def fingerprint(df: Any) -> tuple[int, int]:
    """Count, and sum of the hashes of rows: number, key, payload and attributes."""
    row = df.selectExpr("xxhash64(seq, key, payload, loc, price) as h").selectExpr(
        "count(*) as n", "coalesce(sum(cast(h as decimal(38, 0))), 0) as s"
    )
    n, s = row.first()
    return n, int(s)


def published(spark: Any, rows: pa.Table, lo: int = 1) -> Any:
    """What was published as rows numbered from lo on, as a data frame made without Tidings."""
    return spark.createDataFrame(rows.append_column("seq", pa.array(range(lo, lo + rows.num_rows), pa.int64())))


def pipeline_process(command: str, folder: Path, url: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own: the one of the tests has a session that has no server in it."""
    paths = os.pathsep.join([each for each in sys.path if each])
    words = ["-m", "tidings.cli.app", "pipeline", command, "--json", "--dir", str(folder), "--url", url, *more]
    return subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"PYTHONPATH": paths},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
