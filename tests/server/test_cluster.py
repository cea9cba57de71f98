"""Real processes: a region loses its head, gets it back, grows and shrinks, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from server.rig import Writer, create, horizon, payloads, until
from tidings.net.journal import replay
from tidings.net.loop import loop_factory
from tidings.server.http_client import CallFailed, call
from tidings.server.local import LocalCluster
from tidings.server.nodes import remake
from tidings.server.rpc import RpcClient


class Bench:
    """A cluster of two regions that the tests of this file share, and a writer."""

    def __init__(self, runner: asyncio.Runner, cluster: LocalCluster, asker: RpcClient) -> None:
        self.runner = runner
        self.cluster = cluster
        self.asker = asker
        self.writer = Writer(asker, cluster.addresses("r0"))
        self.published = 0

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(asyncio.wait_for(work, 40))

    async def publish(self, text: str) -> None:
        """One event, acknowledged with the next number."""
        ack = await self.writer.publish("s", [text.encode()])
        self.published += 1
        assert (ack.lo, ack.hi) == (self.published, self.published + 1)

    async def everywhere(self) -> None:
        """Wait until the other region has everything."""

        async def there() -> bool:
            return await horizon(self.cluster, "s", "r1") == self.published + 1

        await until(there, f"r1 has {self.published} events")

    async def chain(self, region: str = "r0") -> list[str]:
        return await self.cluster.chain(region)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("cluster")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        cluster = LocalCluster(2, 3, folder, durability="memory")
        asker = RpcClient("test", cluster="tidings")
        runner.run(cluster.start())
        try:
            runner.run(asker.__aenter__())
            made = Bench(runner, cluster, asker)
            made.run(create(asker, cluster, "s", "r0"))
            made.run(made.publish("first"))
            yield made
            runner.run(asker.__aexit__(None, None, None))
        finally:
            runner.run(cluster.stop())


def test_status_names_chains_processes_and_streams(bench: Bench) -> None:
    async def main() -> None:
        await bench.everywhere()
        status = await bench.cluster.status()
        assert [region["name"] for region in status["regions"]] == ["r0", "r1"]
        for region in status["regions"]:
            assert [each["role"] for each in region["replicas"]] == ["head", "middle", "tail"]
            assert all(each["alive"] and each["pid"] for each in region["replicas"])
            assert region["address"] == region["replicas"][0]["address"]
        [stream] = status["streams"]
        assert (stream["name"], stream["region"], stream["gc"]) == ("s", "r0", "none")
        assert stream["horizon"] == {"r0": bench.published + 1, "r1": bench.published + 1}
        assert (stream["live"], stream["collected"]) == (bench.published, 0)

    bench.run(main())


def test_a_replica_tells_its_metrics_and_health(bench: Bench) -> None:
    _, middle, _ = bench.run(bench.chain())
    found = bench.cluster.process(middle)
    assert found is not None
    assert call(found.http_port, "/healthz") == {"role": "middle", "store": "open", "failed": False}
    assert call(found.http_port, "/status")["role"] == "middle"
    with urllib.request.urlopen(f"http://127.0.0.1:{found.http_port}/metrics", timeout=5) as response:
        text = response.read().decode()
    for line in (
        'tidings_role{role="middle"} 1.0',
        'tidings_horizon{stream="s"}',
        'tidings_driver_total{name="dials"}',
    ):
        assert line in text


def test_changes_need_the_token(bench: Bench) -> None:
    found = bench.cluster.process("supervisor")
    assert found is not None
    with pytest.raises(CallFailed, match="token is missing or wrong"):
        call(found.http_port, "/stop", {})
    with pytest.raises(CallFailed, match="token is missing or wrong"):
        call(found.http_port, "/stop", {}, token="guess")


def test_when_the_head_is_killed_the_next_one_serves_and_the_killed_one_comes_back_as_tail(bench: Bench) -> None:
    async def main() -> None:
        before = await bench.chain()
        await bench.cluster.kill("r0/head")
        await bench.publish("after the kill")
        assert await bench.chain() == before[1:]
        await bench.cluster.restart(before[0])
        await bench.cluster.until_ready()
        after = await bench.chain()
        assert after[:2] == before[1:]
        assert after[2].partition("~")[0] == before[0].partition("~")[0]
        assert after[2] != before[0], "its memory is lost: it must not come back under the same name"
        await bench.publish("after the return")
        await bench.everywhere()
        address = bench.cluster.addresses("r0")[0]
        got = await payloads(bench.asker, address, "s", 1, bench.published + 1)
        assert got[-2:] == [b"after the kill", b"after the return"]

    bench.run(main())


def test_a_cut_link_holds_events_back_until_it_is_healed(bench: Bench) -> None:
    async def main() -> None:
        await bench.everywhere()
        await bench.cluster.cut("r0", "r1")
        await bench.publish("during the cut")
        assert (await bench.cluster.status())["cuts"] == [["r0", "r1"]]
        assert await horizon(bench.cluster, "s", "r1") == bench.published
        await bench.cluster.heal("r0", "r1")
        await bench.everywhere()

    bench.run(main())


def test_what_is_broken_is_broken_for_a_replica_that_starts_again_too(bench: Bench) -> None:
    async def work() -> None:
        cluster = bench.cluster
        slot = (await bench.chain("r1"))[-1]
        await cluster.impair("r0", "r1", latency=0.03)
        await cluster.cut("r0", "r1")
        await cluster.restart(slot)

        async def shaped(cut: bool) -> bool:
            found = cluster.process(slot)
            if found is None or not found.alive:
                return False
            told = await asyncio.to_thread(call, found.http_port, "/status")
            return bool(told["wan"]["r1-r0"]["latency"] == 0.03 and told["wan"]["r1-r0"]["cut"] == cut)

        await until(lambda: shaped(True), "the restarted replica's link is slow and cut")
        await cluster.heal("r0", "r1")
        await until(lambda: shaped(False), "the link is slow and healed")
        await cluster.impair("r0", "r1", latency=0.0)
        await cluster.until_ready()

    bench.run(work())


def test_a_replica_is_added_and_the_head_removed_while_events_are_published(bench: Bench) -> None:
    async def main() -> None:
        before = await bench.chain()
        stop = asyncio.Event()

        async def load() -> None:
            while not stop.is_set():
                await bench.publish("load")

        loading = asyncio.ensure_future(load())
        added = await bench.cluster.add("r0")
        await bench.cluster.until_ready()
        assert await bench.chain() == [*before, added]
        await bench.cluster.remove("r0/head")
        assert await bench.chain() == [*before[1:], added]
        stop.set()
        await loading
        await bench.publish("with another head")
        await bench.everywhere()

    bench.run(main())


def test_a_paused_replica_is_left_out_and_rejoins_when_it_wakes(bench: Bench) -> None:
    async def main() -> None:
        before = await bench.chain("r1")
        await bench.cluster.pause("r1/tail", 2.5)

        async def out() -> bool:
            return await bench.chain("r1") == before[:-1]

        await until(out, "the tail is left out")
        await bench.publish("while it sleeps")
        await bench.cluster.until_ready()
        assert await bench.chain("r1") == before, "it kept its memory, so it keeps its name"
        await bench.everywhere()

    bench.run(main())


def test_without_the_configuration_service_data_flows_on(bench: Bench) -> None:
    async def main() -> None:
        await bench.cluster.stop_config("r0")
        assert (await bench.cluster.status())["configuration"] == {"r0": False, "r1": True}
        await bench.publish("without the service")
        await bench.everywhere()
        await bench.cluster.start_config("r0")
        await bench.cluster.until_ready()

    bench.run(main())


def test_a_durable_cluster_loses_nothing_when_every_process_is_killed(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = LocalCluster(1, 2, tmp_path, durability="durable", journal=tmp_path / "journals")
        await cluster.start()
        try:
            async with RpcClient("test", cluster="tidings") as asker:
                await create(asker, cluster, "s", "r0", "by-key")
                writer = Writer(asker, cluster.addresses("r0"))
                for at in range(5):
                    await writer.publish("s", [b"%d" % at], [b"k"])
                await cluster.kill_everything()
                (tmp_path / "data/r0/p1/log/data.mdb").write_bytes(b"damaged")
                await cluster.start()
                chain = await cluster.chain("r0")
                assert chain[0] == "r0/p0"
                assert chain[1].startswith("r0/p1~"), "its disk is lost: it must not come back under the same name"
                ack = await Writer(asker, cluster.addresses("r0"), "other").publish("s", [b"5"], [b"k"])
                assert (ack.lo, ack.hi) == (6, 7)
                for address in cluster.addresses("r0"):
                    assert await payloads(asker, address, "s", 1, 7) == [b"5"]
        finally:
            await cluster.stop()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert not [path for path in (tmp_path / "run").glob("*.json")], "nothing is left running"
    again = replay(tmp_path / "journals" / "r0-p0.2.journal", remake)
    assert again.complete and again.steps > 20, "the journal of the second life replays with the same hash"
