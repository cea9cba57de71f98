"""Edges and relays as real processes of a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from server.rig import until
from tidings.net.loop import loop_factory
from tidings.server.http_client import CallFailed
from tidings.server.local import LocalCluster


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
        os.kill(pid, signal.SIGKILL)

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
