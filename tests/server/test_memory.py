"""Regions in memory whose replicas all die: they come back above what the other regions hold, and say what is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from server.rig import tidings, until
from tidings.client.connection import Connection, connect
from tidings.client.subscription import Subscription
from tidings.server import paths
from tidings.server.cluster_config import ProtocolConfig
from tidings.server.http_client import CallFailed
from tidings.server.identity import Identity
from tidings.server.local import LocalCluster

SKIP = 100
BOTH = ("r0/p0", "r0/p1")


def kill(cluster: LocalCluster, *slots: str) -> None:
    """SIGKILL, without the supervisor being told."""
    for slot in slots:
        process = cluster.process(slot)
        assert process is not None and process.alive
        os.kill(process.pid, signal.SIGKILL)


@asynccontextmanager
async def five_prices(folder: Path) -> AsyncIterator[tuple[LocalCluster, Subscription]]:
    """A cluster in memory with five events of r0, and a subscriber in r1 that has got them."""
    protocol = ProtocolConfig(recovery_skip=SKIP)
    async with LocalCluster(2, 2, folder, durability="memory", protocol=protocol) as cluster:
        async with connect(cluster.url("r0"), timeout=30.0) as t:
            await t.create_stream("prices", region="r0", gc="by-key", attrs="n int")
            for n in range(1, 6):
                await t.publish("prices", key=b"%d" % n, attrs={"n": n})
        async with connect(cluster.url("r1"), timeout=60.0) as far, asyncio.timeout(120):
            await until(lambda: far.streams("prices"), "the stream in r1")
            async with far.subscribe("prices", start="earliest") as sub:
                assert [(await sub.next()).seq for _ in range(5)] == [1, 2, 3, 4, 5]
                yield cluster, sub


async def expect_lost(sub: Subscription, n: int) -> None:
    """A subscriber is told of the hole, then gets the event behind it."""
    lost, after = await sub.next(), await sub.next()
    assert (lost.kind, lost.seq, dict(lost.attrs)) == ("lost", 6, {"lo": 6, "hi": 6 + SKIP})
    assert (after.kind, after.seq, after.attrs["n"]) == ("data", 6 + SKIP, n)


async def publish_after_loss(t: Connection, n: int) -> None:
    """The next event gets a number above the hole."""
    assert (await t.publish("prices", key=b"3", attrs={"n": n})).seq == 6 + SKIP


def test_a_region_that_lost_its_memory_goes_on_above_its_peers_and_says_what_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with five_prices(tmp_path) as (cluster, sub):
            await cluster.cut("r0", "r1")
            async with connect(cluster.url("r0"), timeout=30.0) as t:
                unseen = [(await t.publish("prices", key=b"x", attrs={"n": n})).seq for n in (6, 7)]
            assert unseen == [6, 7]
            for slot in BOTH:
                await cluster.kill(slot)
            await cluster.heal("r0", "r1")
            for slot in BOTH:
                await cluster.restart(slot)
            await cluster.until_ready()
            async with connect(cluster.url("r0"), timeout=30.0) as t:
                await publish_after_loss(t, 8)
                async with t.subscribe("prices", start="earliest") as own:
                    told = [await own.next() for _ in range(6)]
                assert [(e.seq, e.kind) for e in told[3:]] == [(5, "data"), (6, "lost"), (6 + SKIP, "data")]
                assert (await t.why("prices", 7)).state == "lost"
            await expect_lost(sub, 8)
            found = await cluster.status()
            assert found["lost"] == [] and found["streams"][0]["lost"] == SKIP

    asyncio.run(main())


def test_a_region_whose_processes_are_all_killed_comes_back_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with five_prices(tmp_path) as (cluster, sub):
            kill(cluster, *BOTH)
            async with connect(cluster.url("r0"), timeout=60.0) as t:
                await publish_after_loss(t, 8)
            await expect_lost(sub, 8)
            await cluster.until_ready()
            assert (await cluster.status())["lost"] == []

    asyncio.run(main())


def test_a_region_that_is_killed_again_while_it_is_bootstrapped_comes_back(tmp_path: Path) -> None:
    """Its initial replicas die before they are in the chain."""

    async def main() -> None:
        async with five_prices(tmp_path) as (cluster, sub):
            await cluster.stop_config("r1")  # which a replica waits a second for before it says that it is there
            names = [cluster.files.data(slot) / "life.json" for slot in BOTH]
            kill(cluster, *BOTH)
            for name in names:
                name.unlink()

            async def initial() -> bool:
                """Only an initial replica takes the plain name of a slot that is in the chain."""
                found = [paths.read(name, Identity) for name in names]
                return [each and each.name for each in found] == list(BOTH)

            await until(initial, "initial replicas")
            await asyncio.gather(*[cluster.kill(slot) for slot in BOTH])
            await asyncio.gather(*[cluster.restart(slot) for slot in BOTH])
            await cluster.start_config("r1")
            async with connect(cluster.url("r0"), timeout=60.0) as t:
                await publish_after_loss(t, 8)
            await expect_lost(sub, 8)
            await cluster.until_ready()

    asyncio.run(main())


def test_a_lost_region_whose_first_replicas_were_replaced_comes_back_with_those_it_has(tmp_path: Path) -> None:
    async def main() -> None:
        async with five_prices(tmp_path) as (cluster, sub):
            added = [await cluster.add("r0") for _ in BOTH]
            await cluster.until_ready()
            for slot in BOTH:
                await cluster.remove(slot)
            assert set(await cluster.chain("r0")) == set(added)
            addresses = [each["address"] for each in (await cluster.status())["regions"][0]["replicas"]]
            kill(cluster, *added)
            async with connect("tidings://" + ",".join(addresses), timeout=60.0) as t:
                await publish_after_loss(t, 8)
            await expect_lost(sub, 8)
            await cluster.until_ready()

    asyncio.run(main())


def test_a_single_region_that_lost_its_memory_names_the_command_that_starts_it_again(tmp_path: Path) -> None:
    command = ("replica", "bootstrap", "r0", "--dir", tmp_path)

    async def main() -> None:
        async with LocalCluster(1, 2, tmp_path, durability="memory") as cluster:
            said = await asyncio.to_thread(tidings, *command, code=1)
            assert "r0 has replicas that hold its events" in said
            kill(cluster, *BOTH)

            async def lost() -> Any:
                return (await cluster.status())["lost"] == ["r0"]

            await until(lost, "the loss is noticed")
            with pytest.raises(CallFailed, match=f"`tidings {' '.join(map(str, command))}` starts it again"):
                await cluster.until_ready()
            shown = await asyncio.to_thread(tidings, "status", "--dir", tmp_path)
            assert "run `tidings replica bootstrap r0`" in " ".join(shown.split())
            said = await asyncio.to_thread(tidings, "pub", "prices", "x", "--dir", tmp_path, code=1)
            assert "unknown in region r0: all replicas of r0 died" in said and "`tidings replica bootstrap r0`" in said
            said = await asyncio.to_thread(tidings, *command)
            assert said == "r0 runs again, empty: r0/p0, r0/p1\n"
            async with connect(cluster.url("r0"), timeout=30.0) as t:
                await t.create_stream("prices", region="r0")
                assert (await t.publish("prices", payload=b"x")).seq == 1
            assert (await cluster.status())["lost"] == []

    asyncio.run(main())
