"""What an owner has declared lost is told to everybody, in its place: subscribers, readers, caches, operators."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.rig import Town, dial, run, take, town
from tidings.core.errors import BadInput
from tidings.net.names import seed_of
from tidings.server.rpc import RpcClient


async def declare(cluster: Town, stream: str, lo: int, hi: int) -> None:
    """As `tidings stream declare-lost` does."""
    addresses = cluster.url("r0").removeprefix("tidings://").split(",")
    async with RpcClient("_operator", cluster="tidings") as asker:
        created = await asker.declare_lost([seed_of(each) for each in addresses], stream, lo, hi, 10.0)
        assert created.name == stream


def test_a_loss_is_delivered_in_its_place_in_every_region_through_every_filter(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, regions=2, replicas=1) as cluster, dial(cluster, region="r1") as t:
            for price in (1.0, 5.0):
                await t.publish("prices", key=b"k", attrs={"price": price})
            async with t.subscribe("prices", where="price > 3", start=1) as early:
                assert [e.seq for e in await take(early, 1)] == [2]
                await declare(cluster, "prices", 3, 8)
                await declare(cluster, "prices", 3, 8)  # asked again, it is the same
                assert (await t.publish("prices", key=b"k", attrs={"price": 9.0})).seq == 8
                live = await take(early, 2)
            async with t.subscribe("prices", start="earliest") as late:
                told = await take(late, 4)
            assert [(e.seq, e.kind, dict(e.attrs)) for e in live] == [
                (3, "lost", {"lo": 3, "hi": 8}),
                (8, "data", {"loc": None, "price": 9.0}),
            ]
            assert [(e.seq, e.kind) for e in told] == [(1, "data"), (2, "data"), (3, "lost"), (8, "data")]
            assert [(await t.why("prices", seq)).state for seq in (2, 3, 7, 8, 9)] == [
                *("row", "lost", "lost", "row", "not published yet")
            ]
            info = await t.stream("prices")
            assert (info.horizon, info.live, info.collected, info.lost) == (9, 3, 0, 5)
            async with t.read("prices", 1, 9) as reading:
                spans = await reading.take()
            assert [span.lost for span in spans] == [((3, 8),)]

    run(main())


def test_only_what_nobody_knows_can_be_declared_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, replicas=1) as cluster, dial(cluster) as t:
            await t.publish("s0", payload=b"known")
            for lo, hi, why in [(1, 5, "below 2 is known"), (4, 9, "would be a hole"), (2, 2, "not a range")]:
                with pytest.raises(BadInput, match=why):
                    await declare(cluster, "s0", lo, hi)
            with pytest.raises(BadInput, match="no stream 'nowhere'"):
                await declare(cluster, "nowhere", 1, 5)
            assert (await t.publish("s0", payload=b"next")).seq == 2

    run(main())
