"""The proof of the driver: the real protocols, as they run in the simulator, over loopback TCP, and once more."""

from __future__ import annotations

from pathlib import Path

import pytest

from net.rig import Cluster, batch, remake, run, until
from tidings.net.journal import replay
from tidings.net.shape import us
from tidings.protocols.services.publishing import Acked, Post

SIZES = (1, 3, 64, 65, 1000, 5000)
"""Batches small enough for lists and large enough for columns and for frames that need memory of their own."""


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
def test_what_is_published_over_tcp_is_delivered_and_every_replica_replays_its_journal(
    tmp_path: Path, uvloop: bool
) -> None:
    async def main() -> tuple[Cluster, list[bytes]]:
        cluster = Cluster(1, tmp_path)
        await cluster.start()
        cluster.client("r0/c0")
        writer = cluster.client("r0/w0", publisher="w")
        published: list[bytes] = []
        for at, size in enumerate(SIZES):
            rows = batch(f"b{at}", size)
            ack = await writer.request(Post("s0", rows), lambda item: isinstance(item, Acked), timeout=20)
            assert (ack.lo, ack.hi) == (len(published) + 1, len(published) + size + 1)
            published += rows.batch.column("payload").to_pylist()
        for node in ("r0/c0", "r0/w0"):
            await until(lambda node=node: len(cluster.payloads(node, "s0")) == len(published), f"{node} has everything")
        await cluster.stop()
        return cluster, published

    cluster, published = run(main(), uvloop=uvloop)
    assert cluster.payloads("r0/c0", "s0") == published
    assert cluster.payloads("r0/w0", "s0") == published
    for node in cluster.memberships["r0"].replicas:
        journal = cluster.hosts[node].journal
        assert journal is not None
        again = replay(journal.path, remake)
        assert again.complete
        assert again.trace_hash == journal.hash
        assert again.steps > 20


def published_by(cluster: Cluster, count: int, size: int = 20) -> list[bytes]:
    return [payload for at in range(count) for payload in batch(f"b{at}", size).batch.column("payload").to_pylist()]


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "disk"])
def test_a_head_that_is_killed_and_restarted_loses_nothing_and_each_of_its_lives_replays(
    tmp_path: Path, durable: bool
) -> None:
    async def main() -> Cluster:
        cluster = Cluster(1, tmp_path, durable=durable)
        await cluster.start()
        cluster.client("r0/c0")
        writer = cluster.client("r0/w0", publisher="w")
        for at in range(30):
            if at == 10:
                await cluster.kill("r0/p0")
            if at == 20:
                await cluster.boot("r0/p0")
            await writer.request(Post("s0", batch(f"b{at}", 20)), lambda item: isinstance(item, Acked), timeout=20)
        await until(lambda: len(cluster.payloads("r0/c0", "s0")) == 600, "the client has everything")
        service = cluster.hosts["r0/config"].machine
        await until(lambda: service.membership.replicas[-1] == "r0/p0", "the old head is the new tail")
        await cluster.stop()
        return cluster

    cluster = run(main())
    assert cluster.payloads("r0/c0", "s0") == published_by(cluster, 30)
    journals = sorted(tmp_path.glob("*.journal"))
    assert len(journals) == 4
    for path in journals:
        assert replay(path, remake).same, path


def test_when_a_link_between_regions_is_cut_events_go_round(tmp_path: Path) -> None:
    async def main() -> Cluster:
        wan = us(["r0", "r1", "r2"])
        cluster = Cluster(3, tmp_path, wan)
        await cluster.start()
        cluster.client("r1/c0")
        writer = cluster.client("r0/w0", publisher="w")
        for at in range(20):
            if at == 10:
                wan.cut("r0", "r1")
            await writer.request(Post("s0", batch(f"b{at}", 20)), lambda item: isinstance(item, Acked), timeout=20)
            if at == 9:
                await until(lambda: len(cluster.payloads("r1/c0", "s0")) == 200, "before the cut")
        await until(lambda: len(cluster.payloads("r1/c0", "s0")) == 400, "round by r2")
        assert cluster.hosts["r0/p2"].counters["shape_lost"] > 0
        await cluster.stop()
        return cluster

    cluster = run(main())
    assert cluster.payloads("r1/c0", "s0") == published_by(cluster, 20)
    for path in sorted(tmp_path.glob("*.journal")):
        assert replay(path, remake).same, path
