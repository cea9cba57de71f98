"""Sinks through the client: staged in several connections, committed in another, by real replicas."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from client.rig import dial, run, take, town
from tidings import errors
from tidings.client.connection import Connection
from tidings.core.hashing import content_hashes, hash_sum
from tidings.core.rows import ROW_SCHEMA
from tidings.protocols.services.sinks import Attempt


def table(lo: int, hi: int, size: int = 12) -> pa.RecordBatch:
    payloads = [b"%d" % at for at in range(lo, hi)]
    return pa.record_batch({"payload": pa.array([each.ljust(size, b".") for each in payloads], pa.binary())})


async def stage(t: Connection, partition: int, batches: list[pa.RecordBatch], **of: object) -> Attempt:
    part = t.sink("s0", **of).part(partition)  # type: ignore[arg-type]
    for batch in batches:
        await part.put(batch)
    attempt: Attempt = pickle.loads(pickle.dumps(await part.finish()))
    return attempt


def hashed(payloads: pa.Array) -> int:
    """The sum of the rows' hashes: the same in whatever order they come."""
    count = len(payloads)
    columns = [pa.array(np.zeros(count, np.uint8)), pa.nulls(count, pa.binary()), payloads, pa.nulls(count, pa.int64())]
    return hash_sum(content_hashes(pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)))


async def content(t: Connection, count: int) -> tuple[int, int]:
    """How many rows the stream has, and the sum of their hashes; waits for so many."""
    rows, total = 0, 0
    async with t.subscribe("s0", start="earliest") as sub:
        async for span in sub.spans():
            rows, total = rows + span.rows.num_rows, (total + hashed(span.rows.column("payload"))) % 2**64
            if rows >= count:
                return rows, total
    raise AssertionError


def test_what_two_tasks_stage_a_driver_commits_once_and_again_without_effect(tmp_path: Path) -> None:
    async def main() -> None:
        of = {"writer": "w", "query": "q", "batch": 0, "run": 7}
        async with town(tmp_path) as cluster, dial(cluster) as driver, dial(cluster) as task, dial(cluster) as other:
            staged = await asyncio.gather(
                stage(task, 1, [table(100, 150)], **of), stage(other, 0, [table(0, 60), table(60, 100)], **of)
            )
            await stage(task, 0, [table(0, 30)], **of)  # a second attempt that nobody commits
            sink = driver.sink("s0", **of)  # type: ignore[arg-type]
            ack = await sink.commit(staged)
            assert ack is not None and (ack.lo, ack.hi) == (1, 151)
            assert await sink.commit(staged) == ack
            await sink.abort()
            again = await stage(task, 0, [table(0, 150)], **of | {"run": 8})
            assert await driver.sink("s0", **of | {"run": 8}).commit([again]) == ack  # type: ignore[arg-type]
            assert (await driver.publish("s0", payload=b"after")).seq == 151
            async with driver.subscribe("s0", start="earliest") as sub:
                got = await take(sub, 151)
            assert [event.payload.rstrip(b".") for event in got] == [*[b"%d" % at for at in range(150)], b"after"]

    run(main())


def test_a_batch_of_many_records_is_published_whole_while_others_publish_and_the_head_stops(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t, dial(cluster, "other") as other:
            sink = t.sink("s0", writer="w", query="q", batch=0)
            part = sink.part(0)
            rows = [table(at, at + 8_000, size=1000) for at in range(0, 40_000, 8_000)]  # 40 MB: ten chunks
            for at, batch in enumerate(rows):
                await part.put(batch)
                other.post("s0", payload=b"between")
                if at == 2:
                    await cluster.kill(cluster.replica(0))
            staged = await part.finish()
            assert staged.rows == 40_000 and staged.chunks >= 9
            ack = await sink.commit([staged])
            for _ in range(20):
                other.post("s0", payload=b"between")
            between = await other.flush()
            assert ack is not None and ack.hi - ack.lo == 40_000
            assert all(each.hi <= ack.lo or each.lo >= ack.hi for each in between), "the batch is in one piece"
            count, total = await content(t, 40_025)
            expected = sum([hashed(batch.column("payload")) for batch in rows], 25 * hashed(pa.array([b"between"])))
            assert (count, total) == (40_025, expected % 2**64)

    run(main())


def test_refusals_are_errors_of_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            first = await stage(t, 0, [table(0, 3)], writer="w", query="q", batch=4, run=1)
            sink = t.sink("s0", writer="w", query="q", batch=4, run=1)
            await sink.abort()
            with pytest.raises(errors.BatchGone, match="run the batch again"):
                await sink.commit([first])
            staged = await stage(t, 0, [table(0, 3)], writer="w", query="q", batch=4, run=2)
            await t.sink("s0", writer="w", query="q", batch=4, run=2).commit([staged])
            with pytest.raises(errors.WriterInUse, match="writerReset"):
                await stage(t, 0, [table(0, 3)], writer="w", query="another", batch=0)
            with pytest.raises(errors.WriterInUse, match="older than what was written"):
                await stage(t, 0, [table(0, 3)], writer="w", query="q", batch=3)
            of = {"writer": "w", "query": "another", "batch": 0, "run": 5, "reset": True}
            staged = await stage(t, 0, [table(0, 3)], **of)
            ack = await t.sink("s0", **of).commit([staged])  # type: ignore[arg-type]
            assert ack is not None and (ack.lo, ack.hi) == (4, 7)
            assert await t.sink("s0", **of).commit([]) is None  # type: ignore[arg-type]
            with pytest.raises(errors.BadInput, match="column 'price'"):
                await stage(t, 0, [pa.record_batch({"price": [1.0]})], writer="v", query="q", batch=0)
            with pytest.raises(errors.UnknownStream, match="did you mean"):
                await t.sink("s00", writer="v", query="q", batch=0).abort()
            for bad in ({"writer": ""}, {"query": "x" * 300}, {"batch": -1}):
                with pytest.raises(errors.BadInput):
                    t.sink("s0", **{"writer": "v", "query": "q", "batch": 0} | bad)  # type: ignore[arg-type]

    run(main())
