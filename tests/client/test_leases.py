"""Leases over real sockets: what they keep can be read, whoever is head, and what they do not is an error."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from client.rig import dial, run, town, until
from client.test_reading import numbers
from tidings import errors


def test_a_lease_keeps_what_is_collected_readable_until_it_moves(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            for _ in range(4):
                await t.publish("keyed", key=b"k", payload=b"")
            async with t.lease("keyed") as lease:
                assert lease.asof == 5
                for _ in range(4):
                    await t.publish("keyed", key=b"k", payload=b"")
                histories = [cluster.machine(at).log.histories["keyed"] for at in range(3)]
                await until(lambda: min([history.floor for history in histories]) == 5)
                for replica in range(3):
                    assert await numbers(t, "keyed", 1, 9, asof=5, replica=replica) == [4, 5, 6, 7, 8]
                await lease.move(7)
                await until(lambda: min([history.floor for history in histories]) == 7)
                assert await numbers(t, "keyed", 1, 9, asof=7) == [6, 7, 8]
                with pytest.raises(errors.AsofGone):
                    await numbers(t, "keyed", 1, 9, asof=6)
            await until(lambda: min([history.floor for history in histories]) == 9)

    run(main())


def test_a_lease_survives_the_head_that_granted_it_and_can_be_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            await t.publish("keyed", key=b"k", payload=b"")
            lease = await t.lease("keyed", ttl=3.0, name="mine").open()
            await cluster.kill(cluster.replica(0))
            for _ in range(3):
                await t.publish("keyed", key=b"k", payload=b"")
            await lease.move(3)
            lease.leave()
            async with dial(cluster) as other, other.lease("keyed", name="mine", resume=True) as resumed:
                assert resumed.asof == 3
                await asyncio.sleep(1.2)
                assert await numbers(other, "keyed", 1, 5, asof=3) == [2, 3, 4]

    run(main())


def test_who_gives_up_waiting_for_a_lease_to_resume_does_not_end_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, replicas=1) as cluster, dial(cluster) as t, dial(cluster) as other:
            await t.publish("keyed", key=b"k", payload=b"")
            (await t.lease("keyed", name="mine").open()).leave()
            waiting = asyncio.create_task(other.lease("keyed", name="mine", resume=True).open())
            await asyncio.sleep(0)  # it has asked
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            async with other.lease("keyed", name="mine", resume=True) as resumed:
                assert resumed.asof == 2

    run(main())


def test_a_region_that_takes_no_more_leases_is_an_error_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, replicas=1) as cluster, dial(cluster) as t:
            table = cluster.machine(0).leases
            table.settings = msgspec.structs.replace(table.settings, leases=1)
            async with t.lease("keyed", ttl=60.0):
                with pytest.raises(errors.LeasesFull, match=r"1 leases.*ends in 60 s.*tidings status"):
                    await t.lease("keyed").open()

    run(main())


def test_a_lease_that_nobody_renews_expires_with_a_typed_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            await t.publish("keyed", key=b"k", payload=b"")
            lease = await t.lease("keyed", ttl=1.0, name="left").open()
            lease.leave()
            await until(lambda: "left" not in cluster.machine(0).table.leases.table)
            with pytest.raises(errors.LeaseExpired, match="nothing was heard"):
                await t.lease("keyed", name="left", resume=True).open()
            with pytest.raises(errors.LeaseExpired, match="ttl"):
                await t.lease("keyed", ttl=0.1).open()

    run(main())


def test_a_lease_that_holds_too_much_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as cluster, dial(cluster) as t:
            await t.publish("keyed", key=b"k", payload=b"")
            lease = await t.lease("keyed", bytes=10_000, ttl=1.5).open()
            for _ in range(400):
                t.post("keyed", key=b"k", payload=b"x" * 100)
            await t.flush()
            await until(lambda: not cluster.machine(2).table.leases.table)
            with pytest.raises(errors.LeaseExpired, match="10000 bytes"):
                await lease.move(100)

    run(main())


def test_another_region_answers_a_leased_read_or_sends_it_to_the_owner(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            town(tmp_path, regions=2, replicas=1) as cluster,
            dial(cluster) as t,
            dial(cluster, region="r1") as u,
        ):
            await t.publish("keyed", key=b"k", payload=b"")
            async with u.lease("keyed") as lease:
                for _ in range(4):
                    await t.publish("keyed", key=b"k", payload=b"")
                far = cluster.machine(0, "r1").log.histories["keyed"]
                await until(lambda: far.floor == 6)
                assert await numbers(u, "keyed", 1, 6, asof=lease.asof) == [1, 2, 3, 4, 5]

    run(main())
