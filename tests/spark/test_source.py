"""The source: what was published is read, once, again and as of the same point, through every option."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from spark.rig import Cluster
from tidings.core.hashing import hash_sum

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


ATTRS = "loc string, price double"


def fresh(cluster: Cluster, name: str, rows: int = 0, gc: str = "none", attrs: str = ATTRS) -> str:
    """A new stream with so many rows."""
    with cluster.connect() as t:
        t.create_stream(name, region="r0", attrs=attrs, gc=gc)
        if rows:
            t.publish_table(name, table(rows))
    return name


def load(spark: Any, cluster: Cluster, **options: Any) -> Any:
    return spark.read.format("tidings").options(servers=cluster.servers, **options).load()


def digest(rows: list[Any]) -> tuple[int, int]:
    """Count and sum of the hashes of rows."""
    hashes = [hash((r.stream, r.seq, bytes(r.key or b""), bytes(r.payload), r.kind)) & (2**64 - 1) for r in rows]
    return len(rows), hash_sum(np.array(hashes, dtype=np.uint64))


def test_smoke(spark: Any, cluster: Cluster) -> None:
    name = fresh(cluster, "smoke", 5000)
    df = load(spark, cluster, subscribe=name)
    df.printSchema()
    assert df.count() == 5000
    df.show(3)
