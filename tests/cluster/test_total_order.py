"""Real processes: one order in every region, while a head is killed and a link is cut."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import tidings
from tidings.client.connection import Connection
from tidings.client.events import Event
from tidings.net.loop import run
from tidings.server.local import LocalCluster

STREAMS = ("s0", "s1", "s2")
SECONDS = 12.0


async def publish(t: Connection, stream: str, until: float) -> list[int]:
    """One event after the other; their numbers."""
    acked: list[int] = []
    while time.monotonic() < until:
        acked.append((await t.publish(stream, payload=b"%d" % len(acked))).seq)
        await asyncio.sleep(0.01)
    return acked


async def take(subscription: Any, count: asyncio.Future[int]) -> list[Event]:
    """What a subscriber is given, until it is as much as was published."""
    events: list[Event] = []
    while not count.done() or len(events) < count.result():
        try:
            events += await subscription.events(timeout=0.5)
        except TimeoutError:
            continue
    return events


async def until_known(t: Connection) -> None:
    """The region of a client has heard of all streams."""
    while {each.name for each in await t.streams()} != set(STREAMS):
        await asyncio.sleep(0.1)


async def judged(cluster: LocalCluster, here: Connection, there: Connection) -> None:
    for at, stream in enumerate(STREAMS):
        await here.create_stream(stream, region=f"r{at}")
    await until_known(here)
    await until_known(there)
    count: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    merge: dict[str, Any] = {"order": "total", "start": "earliest", "patience": 60.0}
    async with here.subscribe(*STREAMS, **merge) as one, there.subscribe(*STREAMS, **merge) as other:
        readers = [asyncio.create_task(take(each, count)) for each in (one, other)]
        end = time.monotonic() + SECONDS
        writers = [asyncio.create_task(publish(here, stream, end)) for stream in STREAMS]
        await asyncio.sleep(2.0)
        await cluster.cut("r0", "r2")
        await cluster.kill("r1/head")
        await asyncio.sleep(5.0)
        await cluster.heal("r0", "r2")
        await cluster.restart("r1/p0")
        acked = dict(zip(STREAMS, await asyncio.gather(*writers), strict=True))
        count.set_result(sum(map(len, acked.values())))
        first, second = await asyncio.gather(*readers)
    assert min(map(len, acked.values())) > 20
    assert first == second
    assert [(event.tick, event.seq) for event in first] == sorted({(event.tick, event.seq) for event in first})
    for stream in STREAMS:
        assert [event.seq for event in first if event.stream == stream] == acked[stream]


@pytest.mark.check
def test_subscribers_in_different_regions_get_the_same_sequence(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(150.0),
            LocalCluster(3, 3, tmp_path / "cluster") as cluster,
            tidings.connect(cluster.url("r0")) as here,
            tidings.connect(cluster.url("r2")) as there,
        ):
            await judged(cluster, here, there)

    run(main())
