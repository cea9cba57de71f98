"""Reads of a range as of a number, over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from client.rig import dial, run, town, until
from tidings import errors, sync
from tidings.client.connection import Connection


async def numbers(t: Connection, stream: str, lo: int, hi: int, **options: object) -> list[int]:
    """The rows of a read; its spans cover the range without gap or overlap."""
    found: list[int] = []
    at = lo
    async with t.read(stream, lo, hi, **options) as reading:  # type: ignore[arg-type]
        async for span in reading:
            assert span.lo == at and span.hi <= hi
            at = span.hi
            found += span.rows.column("seq").to_pylist()
    assert at == hi
    return found


def test_every_replica_answers_a_read_alike(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            await t.publish_table("keyed", pa.table({"key": [b"%d" % (at % 100) for at in range(50_000)]}))
            for replica in range(3):
                last = list(range(49_901, 50_001))
                assert await numbers(t, "keyed", 1, 50_001, replica=replica) == last
                assert await numbers(t, "keyed", 49_950, 49_960, replica=replica) == last[49:59]
            info = await t.stream("keyed")
            assert (info.horizon, info.live) == (50_001, 100)

    run(main())


def test_a_read_is_filtered_at_the_server_and_covers_its_range(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            prices = pa.table({"price": [float(at) for at in range(1, 40_001)], "payload": [b"x"] * 40_000})
            await t.publish_table("prices", prices)
            assert await numbers(t, "prices", 1, 40_001, where="price in (10000, 20000, 30000, 40000)") == [
                10_000,
                20_000,
                30_000,
                40_000,
            ]
            assert await numbers(t, "prices", 5, 39_000, where="price < 0") == []
            with pytest.raises(errors.BadFilter):
                await numbers(t, "prices", 1, 2, where="prize = 1")
            assert [stream.name for stream in await t.streams("p.*|s0")] == ["prices", "s0"]
            with pytest.raises(errors.BadInput):
                await t.streams("(")
            for lo, hi, asof in ((0, 2, None), (3, 3, None), (1, 2, 0)):
                with pytest.raises(errors.BadInput):
                    t.read("prices", lo, hi, asof=asof)

    run(main())


def test_a_read_as_of_a_forgotten_number_says_what_is_remembered(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            for at in range(20):
                t.post("keyed", key=b"%d" % (at % 2), payload=b"")
            await t.flush()
            histories = [cluster.machine(at).log.histories["keyed"] for at in range(3)]
            await until(lambda: min([history.floor for history in histories]) == 21)
            with pytest.raises(errors.AsofGone) as gone:
                await numbers(t, "keyed", 1, 15, asof=15)
            assert gone.value.floor == 21
            assert await numbers(t, "keyed", 1, 15, asof=21) == []
            assert (await t.stream("keyed")).floor == 21

    run(main())


def test_a_read_ahead_of_the_horizon_waits_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            reading = asyncio.ensure_future(numbers(t, "s0", 1, 4, asof=6))
            for _ in range(4):
                await t.publish("s0", payload=b"")
                assert not reading.done()
            await t.publish("s0", payload=b"")
            assert await asyncio.wait_for(reading, 10) == [1, 2, 3]

    run(main())


def test_a_slow_reader_is_waited_for_and_a_lost_replica_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            for _ in range(3):
                await t.publish_table("s0", pa.table({"payload": [b"x" * 100] * 100_000}))
            async with t.read("s0", 1, 300_001, replica=1) as reading:
                rows = sum([span.count for span in await reading.take()])
                fed = {at: cluster.machine(at).subscriptions.positions for at in range(3)}
                await until(lambda: any(fed.values()))
                (at,) = [at for at in fed if fed[at]]  # replica 1, or the next one if that one was slow to begin
                (position,) = fed[at].values()
                await until(lambda: len(position.unacked) > 1)
                assert position.next < 200_000  # the window is full, and no more is sent
                await cluster.kill(cluster.replica(at))
                async for span in reading:
                    rows += span.count
            assert rows == 300_000

    run(main())


def test_blocking_code_reads_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            await t.publish_table("s0", pa.table({"payload": [b"x"] * 30_000}))

            def blocking() -> int:
                with sync.connect(cluster.url()) as s, s.read("s0", 1, 30_001, asof=30_001) as reading:
                    return sum([span.count for span in reading])

            assert await asyncio.to_thread(blocking) == 30_000

    run(main())
