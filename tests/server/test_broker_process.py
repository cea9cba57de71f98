"""The process of a relay or an edge: how it finds the region's chain, and what it is made of."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.rig import until
from tidings.net.journal import Start
from tidings.protocols.brokers.subscriber import Learn
from tidings.protocols.nodes.edge import Edge
from tidings.protocols.nodes.relay import Relay
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.catalog import Description
from tidings.server import broker_process
from tidings.server.broker_process import BrokerProcess, EdgeRecipe, RelayRecipe
from tidings.server.cluster_config import generate, render
from tidings.server.http_client import CallFailed, call
from tidings.server.node_process import NodeKind, Spec
from tidings.server.nodes import remake
from tidings.server.paths import ClusterPaths
from tidings.server.rpc import NoAnswer

FIRST = ChainConfig("r0", 2, ("r0/p0@h:1",))
NEXT = ChainConfig("r0", 3, ("r0/p0~4@h:1",))


def process(folder: Path, slot: str, kind: NodeKind) -> BrokerProcess:
    file = folder / "cluster.toml"
    file.write_text(render(generate(1, 1, edges=1, relays=2, port=0)))
    return BrokerProcess(Spec(slot=slot, kind=kind, root=str(folder), config=str(file)), ClusterPaths(folder).make())


class Told:
    """Somebody who asks a configuration service that is silent at times, and a replica."""

    def __init__(self, service: list[ChainConfig | None], replica: ChainConfig | None) -> None:
        self.service = service
        self.replica = replica

    async def membership(self, service: str, timeout: float) -> ChainConfig:
        found = self.service.pop(0) if len(self.service) > 1 else self.service[0]
        if found is None:
            raise NoAnswer(service)
        return found

    async def describe_any(self, seeds: list[str], timeout: float) -> Description:
        if self.replica is None:
            raise NoAnswer("nobody")
        return Description(1, "r0", (ChainConfig("r1", 9, ("r1/p0@h:9",)), self.replica), (), {})


@pytest.mark.parametrize(
    ("service", "replica", "found"),
    [([FIRST], None, FIRST), ([None], NEXT, NEXT), ([None, None, FIRST], None, FIRST)],
    ids=["the service", "a replica while the service is silent", "either, again and again"],
)
def test_the_chain_is_what_the_service_says_or_a_replica(
    tmp_path: Path, service: list[ChainConfig | None], replica: ChainConfig | None, found: ChainConfig
) -> None:
    asker: Any = Told(service, replica)
    assert asyncio.run(process(tmp_path, "r0/e0", "edge")._first_chain(asker)) == found


def test_the_machine_is_told_of_newer_chains_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_process, "REFRESH", 0.001)
    commands: list[Any] = []

    class FakeHost:
        command = staticmethod(commands.append)

    async def main() -> None:
        broker = process(tmp_path, "r0/b1", "relay")
        broker.chain = FIRST
        asker: Any = Told([FIRST, None, FIRST, NEXT, FIRST, NEXT], None)
        host: Any = FakeHost()
        following = asyncio.ensure_future(broker._follow_chain(asker, host))

        async def asked() -> bool:
            return len(asker.service) == 1

        await until(asked, "all answers")
        following.cancel()

    asyncio.run(main())
    assert commands == [Learn(NEXT)]


def test_recipes_have_the_place_in_the_file_and_a_larger_life_each_time(tmp_path: Path) -> None:
    relay, edge = process(tmp_path, "r0/b1", "relay"), process(tmp_path, "r0/e0", "edge")
    relay.chain = edge.chain = NEXT
    edge.config = relay.config
    places = relay.config.broker_places()
    first, again = [relay._recipe(places["r0/b1"]) for _ in range(2)]
    assert isinstance(first, RelayRecipe) and first.life < again.life
    assert (first.cell, first.upstream, first.peers) == ("relays", NEXT.replicas, (places["r0/b0"].node,))
    below = edge._recipe(places["r0/e0"])
    assert isinstance(below, EdgeRecipe)
    assert (below.upstream, below.replicas) == ((places["r0/b0"].node, places["r0/b1"].node), NEXT.replicas)
    for recipe, kind in ((first, Relay), (below, Edge)):
        start = Start(recipe.node, 0.0, msgspec.msgpack.encode(recipe), 0)
        assert isinstance(remake(start, []), kind), "a journal says what it is of"


async def healthy(port: int) -> bool:
    try:
        return bool(call(port, "/healthz") == {"connected": True, "failed": False})
    except CallFailed:
        return False


def test_serve_runs_relays_and_edges_and_says_when_they_are_ready(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    plan = generate(1, 1, edges=1, relays=1, durability="memory", port=0)
    file.write_text(render(plan))
    served = [("config", "r0/config"), ("replica", "r0/p0"), ("relay", "r0/b0"), ("edge", "r0/e0")]
    with ExitStack() as stack:
        running: list[subprocess.Popen[str]] = []
        for kind, name in served:
            command = [sys.executable, "-m", "tidings.cli.app", "serve", kind, "-c", str(file), "--id", name, "--json"]
            started = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(started.kill)
            running.append(started)
        for (kind, name), each in zip(served, running, strict=True):
            assert each.stdout is not None
            said = json.loads(each.stdout.readline())
            assert (said["id"], said["pid"]) == (name, each.pid)
            if kind not in ("relay", "edge"):
                continue
            assert said["address"] == plan.broker_places()[name].address
            assert call(said["admin"], "/status")["id"] == name
            asyncio.run(until(partial(healthy, said["admin"]), f"{name} hears from a replica"))
        for each in reversed(running):
            each.terminate()
        assert [each.wait(20) for each in running] == [0, 0, 0, 0]
    assert not list((tmp_path / "run").glob("*.json"))
