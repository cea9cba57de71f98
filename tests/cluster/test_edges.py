"""Edges and relays as real processes of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from server.rig import tidings_json, until
from tidings.campaign.cluster.client_trace import Evidence
from tidings.campaign.cluster.load import Load, PublisherLoad, Subscribing, WorkerOrder
from tidings.campaign.cluster.memory_loss import judge_losses
from tidings.client.connection import Connection, connect
from tidings.client.errors import Closed
from tidings.client.machine import MachineSettings
from tidings.client.subscription import Subscription
from tidings.net.journal import replay
from tidings.net.loop import loop_factory
from tidings.net.names import seed_of, slot_of
from tidings.protocols.brokers.messages import SubscriptionSettings
from tidings.server.http_client import CallFailed
from tidings.server.local import LocalCluster
from tidings.server.nodes import remake
from tidings.server.rpc import RpcClient


class Town:
    """A cluster with two relays and two edges that the tests of this file share."""

    def __init__(self, runner: asyncio.Runner, cluster: LocalCluster) -> None:
        self.runner = runner
        self.cluster = cluster

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(asyncio.wait_for(work, 40))

    async def brokers(self) -> dict[str, dict[str, Any]]:
        """What the status says of relays and edges."""
        (region,) = (await self.cluster.status())["regions"]
        return {each["id"]: each for each in (*region["relays"], *region["edges"])}

    async def until_connected(self) -> None:
        """Wait until every relay and edge hears from a replica, and every replica tells clients of all edges."""

        async def connected() -> bool:
            found = await self.brokers()
            edges = {each["address"] for id, each in found.items() if "/e" in id}
            told = [await asker.describe(seed_of(each), 5.0) for each in self.cluster.addresses("r0")]
            listed = [{edge.rpartition("@")[2] for edge in each.edges} for each in told]
            return all(each["connected"] for each in found.values()) and listed == [edges, edges]

        async with RpcClient("test", cluster="tidings") as asker:
            await until(connected, "relays and edges that hear from a replica, and replicas that know all edges")

    async def crash(self, slot: str) -> None:
        """SIGKILL; the supervisor starts it again by itself."""
        pid = (await self.brokers())[slot]["pid"]
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        cluster = LocalCluster(1, 2, tmp_path_factory.mktemp("edges"), edges=2, relays=2)
        runner.run(cluster.start())
        try:
            yield Town(runner, cluster)
        finally:
            runner.run(cluster.stop())


def test_status_names_relays_and_edges_with_their_places(town: Town) -> None:
    found = town.run(town.brokers())
    assert [(id, each["upstream"], each["alive"]) for id, each in found.items()] == [
        ("r0/b0", "replicas", True),
        ("r0/b1", "replicas", True),
        ("r0/e0", "relays", True),
        ("r0/e1", "relays", True),
    ]
    assert {each["cell"] for id, each in found.items() if "/b" in id} == {"relays"}


def test_a_status_by_url_has_the_edges_that_replicas_hear_from(town: Town) -> None:
    async def main() -> Any:
        await town.until_connected()
        return await asyncio.to_thread(tidings_json, "status", "--url", town.cluster.url("r0"))

    (region,) = town.run(main())["regions"]
    assert region["relays"] == []
    assert [(each["id"], each["alive"], each["upstream"]) for each in region["edges"]] == [
        ("r0/e0", True, None),
        ("r0/e1", True, None),
    ]


def test_what_is_killed_by_a_fault_stays_down_until_it_is_restarted(town: Town) -> None:
    async def main() -> None:
        before = await town.brokers()
        for slot in ("r0/e0", "r0/b1"):
            await town.cluster.kill(slot)
        down = await town.brokers()
        assert [id for id, each in down.items() if not each["alive"]] == ["r0/b1", "r0/e0"]
        with pytest.raises(CallFailed, match="r0/e0 is dead already"):
            await town.cluster.kill("r0/e0")
        await town.cluster.until_ready()
        for slot in ("r0/e0", "r0/b1"):
            await town.cluster.restart(slot)
        await town.cluster.until_ready()
        after = await town.brokers()
        assert all(each["alive"] for each in after.values())
        assert after["r0/e0"]["pid"] != before["r0/e0"]["pid"]

    town.run(main())


def test_an_edge_that_dies_by_itself_is_started_again(town: Town) -> None:
    async def main() -> None:
        pid = (await town.brokers())["r0/e1"]["pid"]
        await town.crash("r0/e1")

        async def back() -> bool:
            edge = (await town.brokers())["r0/e1"]
            return bool(edge["alive"] and edge["pid"] != pid)

        await until(back, "another process of the edge")

    town.run(main())


def test_a_paused_relay_counts_as_not_alive_until_it_wakes(town: Town) -> None:
    async def main() -> None:
        await town.cluster.pause("r0/b0", 1.0)
        assert not (await town.brokers())["r0/b0"]["alive"]

        async def awake() -> bool:
            return bool((await town.brokers())["r0/b0"]["alive"])

        await until(awake, "it is awake")

    town.run(main())


def test_neither_is_a_replica_that_could_be_removed(town: Town) -> None:
    with pytest.raises(CallFailed, match="r0/e0 is no replica"):
        town.run(town.cluster.remove("r0/e0"))


def test_an_unknown_name_is_refused_with_those_there_are(town: Town) -> None:
    with pytest.raises(CallFailed, match=r"'r0/e7' is unknown: there are r0/b0, r0/b1, r0/e0, r0/e1, r0/p0, r0/p1"):
        town.run(town.cluster.kill("r0/e7"))


# --- under load -------------------------------------------------------------------------------------------


def test_an_audit_of_what_plain_subscribers_got_finds_nothing_after_edges_and_relays_were_killed(town: Town) -> None:
    async def main() -> Evidence:
        url = town.cluster.url("r0")
        async with connect(url) as t:
            await t.create_stream("k", region="r0", gc="by-key")
            await t.create_stream("n", region="r0")
        await town.until_connected()
        publisher = PublisherLoad(name="p-k", url=url, stream="k", rate=200, batch=5, keys=20, collect_every=20)
        other = PublisherLoad(name="p-n", url=url, stream="n", rate=200, batch=5, keys=20, way="post", by_key=False)
        readers = [Subscribing(name=f"plain-{at}", url=url, streams=["k", "n"], witness=at == 0) for at in range(4)]
        durable = Subscribing(name="durable", url=url, streams=["k", "n"], kind="durable", every=1.0)
        load = Load(WorkerOrder(publishers=[publisher, other], subscribers=[*readers, durable]))
        try:
            await load.open()
            load.publish()
            for slot in ("r0/b0", "r0/e0", "r0/b1", "r0/e1"):
                await asyncio.sleep(0.7)
                fed = sum([each.get("subscriptions") or 0 for each in (await town.brokers()).values()])
                assert fed >= 2 * len(readers), "edges feed all plain subscribers"
                await town.crash(slot)
            await town.until_connected()
            ends = await load.stop(20.0)
            await load.finish(ends, 20.0)
            return load.evidence
        finally:
            await load.close()

    evidence = town.run(main())
    streams = {"k": ("r0", "by-key"), "n": ("r0", "none")}
    _, violations = judge_losses(evidence, streams, set(), ())
    assert violations == []
    assert evidence.published > 500


WHERE = "loc = 'NY' and price > 10"


class Prices:
    """Publishes to a stream until it is told to stop, and knows what must come through `WHERE`."""

    def __init__(self, t: Connection, stream: str) -> None:
        self.t = t
        self.stream = stream
        self.wanted: list[int] = []
        self.end = 1
        self.stopping = asyncio.Event()
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        at = 0
        while not self.stopping.is_set():
            rows = [("NY" if (at + k) % 3 else "SF", float((at + k) % 17)) for k in range(5)]
            at += 5
            columns = {"payload": [b""] * 5, "loc": [loc for loc, _ in rows], "price": [price for _, price in rows]}
            ack = await self.t.publish_table(self.stream, pa.table(columns))
            for seq, (loc, price) in zip(range(ack.lo, ack.hi), rows, strict=True):
                if loc == "NY" and price > 10:
                    self.wanted.append(seq)
            self.end = ack.hi
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self.stopping.set()
        await self.task


class Reader:
    """Takes everything that comes."""

    def __init__(self, t: Connection, sub: Subscription) -> None:
        self.t = t
        self.got: list[int] = []
        self.task = asyncio.ensure_future(self._run(sub))

    async def _run(self, sub: Subscription) -> None:
        with contextlib.suppress(Closed):  # at the end
            async for event in sub:
                self.got.append(event.seq)

    @property
    def source(self) -> str:
        """Who feeds it."""
        (subscriber,) = self.t._session.machine.subscribers.values()
        return slot_of(subscriber._source())

    async def beyond(self, seq: int) -> None:
        """Wait until it has something from this number on."""

        async def there() -> bool:
            assert not self.task.done(), "the subscription goes on"
            return bool(self.got) and self.got[-1] >= seq

        await until(there, f"an event from {seq} on; it has {self.got[-3:]} of {self.source}")

    async def fed_by_an_edge(self) -> str:
        """Wait until an edge feeds it; which one."""

        async def fed() -> bool:
            return "/e" in self.source

        await until(fed, f"an edge instead of {self.source}")
        return self.source


@contextlib.asynccontextmanager
async def trade(town: Town, stream: str) -> AsyncIterator[tuple[Prices, Reader]]:
    """A publisher, and a filtered subscriber that an edge feeds; at the end it must have got exactly what passes."""
    url = town.cluster.url("r0")
    await town.until_connected()
    settings = MachineSettings(subscriptions=SubscriptionSettings(back=3.0))
    async with connect(url) as writer, connect(url, settings=settings) as t:
        await writer.create_stream(stream, attrs="loc string, price double")
        prices = Prices(writer, stream)
        try:
            async with t.subscribe(stream, where=WHERE, start="earliest") as sub:
                reader = Reader(t, sub)
                await reader.fed_by_an_edge()
                await reader.beyond(1)
                yield prices, reader
                await prices.stop()
                await reader.beyond(prices.wanted[-1])
                assert reader.got == prices.wanted
        finally:
            await prices.stop()


def test_a_filtered_subscriber_goes_on_when_its_edge_is_killed(town: Town) -> None:
    async def main() -> None:
        async with trade(town, "edge-killed") as (prices, reader):
            for _ in range(2):
                edge = await reader.fed_by_an_edge()
                await town.crash(edge)
                await reader.beyond(prices.end + 50)
                assert reader.source != edge
                await town.until_connected()

    town.run(main())


def test_a_filtered_subscriber_goes_on_when_relays_are_killed_one_after_the_other(town: Town) -> None:
    async def main() -> None:
        async with trade(town, "relays-killed") as (prices, reader):
            for relay in ("r0/b0", "r0/b1"):
                await town.crash(relay)
                await reader.beyond(prices.end + 50)
                await town.until_connected()

    town.run(main())


def test_a_filtered_subscriber_goes_on_when_a_relay_stands_still(town: Town) -> None:
    async def main() -> None:
        async with trade(town, "relay-paused") as (prices, reader):
            for relay in ("r0/b0", "r0/b1"):
                await town.cluster.pause(relay, 2.5)
                await reader.beyond(prices.end + 50)
                await town.until_connected()

    town.run(main())


def test_with_all_edges_down_replicas_feed_and_then_edges_again(town: Town) -> None:
    async def main() -> None:
        async with trade(town, "no-edges") as (prices, reader):
            for edge in ("r0/e0", "r0/e1"):
                await town.cluster.kill(edge)
            await reader.beyond(prices.end + 50)
            assert "/p" in reader.source
            for edge in ("r0/e0", "r0/e1"):
                await town.cluster.restart(edge)
            await reader.fed_by_an_edge()
            await reader.beyond(prices.end + 50)

    town.run(main())


def test_relays_and_edges_follow_replicas_that_come_back_under_other_names(town: Town) -> None:
    async def main() -> None:
        async with trade(town, "replicas-restarted") as (prices, reader):
            before = set(await town.cluster.chain("r0"))
            for slot in ("r0/p0", "r0/p1"):
                await town.cluster.restart(slot)
                await town.cluster.until_ready()
                await reader.beyond(prices.end + 50)
            assert not before & set(await town.cluster.chain("r0")), "in memory each is another incarnation"
            await town.until_connected()
            await reader.fed_by_an_edge()
            await reader.beyond(prices.end + 50)

    town.run(main())


def test_the_journals_of_a_relay_and_an_edge_replay_with_the_same_effects(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalCluster(1, 1, tmp_path, edges=1, relays=1, journal=tmp_path / "journals") as cluster:
            async with connect(cluster.url("r0")) as t:
                await t.create_stream("s", attrs="loc string, price double")
                while not (await t.describe()).edges:
                    await asyncio.sleep(0.05)
            async with connect(cluster.url("r0")) as t, t.subscribe("s", where=WHERE, start="earliest") as sub:
                for at in range(20):
                    await t.publish("s", attrs={"loc": "NY", "price": float(at)})
                assert [(await sub.next(10)).seq for _ in range(9)] == list(range(12, 21))

    asyncio.run(asyncio.wait_for(main(), 60))
    for slot in ("r0-b0", "r0-e0"):
        again = replay(tmp_path / "journals" / f"{slot}.1.journal", remake)
        assert again.complete and again.same and again.steps > 20
