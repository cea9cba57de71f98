"""How fast Spark writes to Tidings: the run "sink" of `tidings bench spark`.

A batch write of rows with ten-byte keys that the JVM makes: JVM to Python worker by Arrow, staged at the owner through
its chain, committed. Old rows are collected by the stream's policy, so that repetitions do not fill the replicas.
"""

from __future__ import annotations

import time
from typing import Any

from tidings import sync
from tidings.client.url import SCHEME

STREAM = "bench-sink"
PARTITIONS = 4
KEPT = 16_384  # rows


def measure(session: Any, servers: str, rows: int) -> float:
    """Seconds that a batch write of so many rows takes, from the call until it is committed."""
    with sync.connect(servers if servers.startswith(SCHEME) else SCHEME + servers) as t:
        t.create_stream(STREAM, gc=f"keep-last:{KEPT}")
    keys = session.range(0, rows, 1, PARTITIONS).selectExpr("lpad(cast(id % 100000 as string), 10, '0') as key")
    began = time.perf_counter()
    keys.write.format("tidings").options(servers=servers, stream=STREAM).mode("append").save()
    return time.perf_counter() - began
