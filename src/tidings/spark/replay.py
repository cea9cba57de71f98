"""Replays: a range of a stream from the lake as far as it reaches, and from the cluster behind that, without a seam.

The lake has every event that was published since it holds a lease, the collected ones too; the cluster has what
collection has left. The two meet where the lake ends: the next number is the first that the cluster is asked for.
No Spark is needed for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from tidings.client.connection import Connection
from tidings.core.errors import BadInput
from tidings.core.ids import FIRST, StreamId
from tidings.core.span import Span
from tidings.spark.lake import Snapshot


async def live(connection: Connection, stream: StreamId, lo: int, hi: int | None) -> AsyncIterator[Span]:
    """What the cluster has of [lo, hi), as far as it is published."""
    horizon = (await connection.stream(stream)).horizon
    hi = horizon if hi is None else min(hi, horizon)
    if lo < hi:
        async with connection.read(stream, lo, hi) as reading:
            async for rows in reading:
                yield rows.span


def seam(snapshot: Snapshot, stream: StreamId, lo: int, hi: int | None) -> int:
    """Where to turn from the lake to the cluster; raises `BadInput` for a range that is none."""
    if lo < FIRST or (hi is not None and hi <= lo):
        to = "" if hi is None else f" --to {hi}"
        raise BadInput(f"--from {lo}{to} is not a range of numbers: they begin at {FIRST}, and --to is above --from")
    end = max(snapshot.end(stream), lo)
    return end if hi is None else min(end, hi)
