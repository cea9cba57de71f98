"""A region in memory, killed as a whole, comes back above what the other regions hold; what is lost is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tidings.client.connection import connect
from tidings.server.local import LocalCluster
from tidings.server.plan import Protocol

SKIP = 100


def test_a_region_that_lost_its_memory_goes_on_above_its_peers_and_says_what_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        protocol = Protocol(recovery_skip=SKIP)
        async with LocalCluster(2, 2, tmp_path, durability="memory", protocol=protocol) as cluster:
            async with connect(cluster.url("r0"), timeout=30.0) as t:
                await t.create_stream("prices", region="r0", gc="by-key", attrs="n int")
                for n in range(1, 6):
                    await t.publish("prices", key=b"%d" % n, attrs={"n": n})
            async with connect(cluster.url("r1"), timeout=60.0) as far, asyncio.timeout(90):
                while not await far.streams("prices"):
                    await asyncio.sleep(0.1)
                async with far.subscribe("prices", start="earliest") as sub:
                    assert [(await sub.next()).seq for _ in range(5)] == [1, 2, 3, 4, 5]
                    await cluster.cut("r0", "r1")
                    async with connect(cluster.url("r0"), timeout=30.0) as t:
                        unheard = [(await t.publish("prices", key=b"x", attrs={"n": n})).seq for n in (6, 7)]
                    assert unheard == [6, 7]
                    for slot in ("r0/p0", "r0/p1"):
                        await cluster.kill(slot)
                    await cluster.heal("r0", "r1")
                    for slot in ("r0/p0", "r0/p1"):
                        await cluster.restart(slot)
                    await cluster.until_ready()
                    async with connect(cluster.url("r0"), timeout=30.0) as t:
                        assert (await t.publish("prices", key=b"3", attrs={"n": 8})).seq == 6 + SKIP
                        async with t.subscribe("prices", start="earliest") as own:
                            told = [await own.next() for _ in range(6)]
                        assert [(e.seq, e.kind) for e in told[3:]] == [(5, "data"), (6, "lost"), (6 + SKIP, "data")]
                        assert (await t.why("prices", 7)).state == "lost"
                    lost, after = await sub.next(), await sub.next()
                    assert (lost.kind, lost.seq, dict(lost.attrs)) == ("lost", 6, {"lo": 6, "hi": 6 + SKIP})
                    assert (after.kind, after.seq, after.attrs["n"]) == ("data", 6 + SKIP, 8)
                found = await cluster.status()
                assert found["lost"] == [] and found["streams"][0]["lost"] == SKIP

    asyncio.run(main())
