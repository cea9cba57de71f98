"""The process of a relay or an edge: a machine without a disk, and the task that tells it of the region's chain.

The cluster file says which brokers are above and beside it. Replicas have other names from time to time (another
incarnation, a replica that was added). So the process of an edge, and of a relay directly below the replicas, asks the
region's configuration service for the chain, and while that is silent a replica, and tells the machine what is new.

Everything that the machine knows is soft. Each start is another *life* with a larger number: what was said to an
earlier one is not taken for its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
import structlog

from tidings.core.errors import BadInput
from tidings.core.ids import NodeId, RegionId
from tidings.net.host import Host, Overloaded
from tidings.net.names import ADDRESSES, parse_address, seed_of
from tidings.protocols.brokers.subscriber import Learn, Lost
from tidings.protocols.nodes.edge import Edge, EdgeSettings
from tidings.protocols.nodes.relay import Relay, RelaySettings
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.server.broker_http import BrokerHttp
from tidings.server.node_process import NodeProcess
from tidings.server.rpc import NoAnswer, RpcClient
from tidings.server.topology import BrokerPlace

ANSWER = 1.0  # seconds for the configuration service, and then for any replica; ours: both are in the same region
REFRESH = 2.0  # seconds between questions for the chain; ours: a broker has other replicas for as long

log = structlog.get_logger("tidings.broker")


class RelayRecipe(msgspec.Struct, frozen=True, tag="relay"):
    """What a relay is made of: the parameters in its journal."""

    node: NodeId
    region: RegionId
    cell: str
    upstream: tuple[NodeId, ...]
    peers: tuple[NodeId, ...]
    life: int
    settings: RelaySettings

    def make(self, entries: Sequence[Any] = ()) -> Relay:
        """The machine; it has no disk."""
        return Relay(self.node, self.region, self.cell, self.upstream, self.peers, self.life, self.settings)


class EdgeRecipe(msgspec.Struct, frozen=True, tag="edge"):
    """What an edge is made of: the parameters in its journal."""

    node: NodeId
    region: RegionId
    upstream: tuple[NodeId, ...]
    replicas: tuple[NodeId, ...]
    life: int
    settings: EdgeSettings
    seed: str

    def make(self, entries: Sequence[Any] = ()) -> Edge:
        """The machine; it has no disk."""
        rng = random.Random(self.seed)
        return Edge(self.node, self.region, self.upstream, self.replicas, self.life, self.settings, rng)


class BrokerProcess(NodeProcess):
    """One relay or edge."""

    chain: ChainConfig  # the newest one that the machine knows
    host_type: type[Host] = Host

    @property
    def place(self) -> BrokerPlace:
        """Where it is in the cluster file; raises `BadInput`."""
        places = self.config.broker_places()
        if self.spec.slot not in places:
            raise BadInput(f"{self.spec.slot} is not in {self.spec.config}: there are {', '.join(places) or 'none'}")
        return places[self.spec.slot]

    def listed_address(self) -> str:
        return self.place.address

    async def make(self, rpc: RpcClient) -> Host:
        place = self.place
        self.chain = await self._first_chain(rpc)
        recipe = self._recipe(place)
        host = self.host_type(
            place.node,
            recipe.make(),
            ADDRESSES,
            region=self.region,
            cluster=self.config.cluster.name,
            journal=self.journal(place.node, recipe),
            on_lost=Lost,
        )
        await host.listen(*parse_address(place.address))
        log.info("broker started", id=place.node, pid=os.getpid(), life=recipe.life, upstream=recipe.upstream)
        host.start()
        return host

    def http(self, host: Host) -> BrokerHttp:
        return BrokerHttp(host, self.place)

    def beside(self, rpc: RpcClient, host: Host) -> list[Coroutine[Any, Any, None]]:
        concerned = self.place.kind == "edge" or not self.place.upstream
        return [self._follow_chain(rpc, host)] if concerned else []

    async def close(self, host: Host) -> None:
        log.info("stopped")

    def _recipe(self, place: BrokerPlace) -> RelayRecipe | EdgeRecipe:
        life = int(time.time() * 1e6)
        replicas = self.chain.replicas
        upstream = place.upstream or replicas
        settings = self.config.brokers.settings()
        if place.kind == "relay":
            made = RelaySettings(broker=settings)
            return RelayRecipe(place.node, self.region, place.cell, upstream, place.peers, life, made)
        seed = os.urandom(16).hex()
        return EdgeRecipe(place.node, self.region, upstream, replicas, life, EdgeSettings(broker=settings), seed)

    # --- the chain ----------------------------------------------------------------------------------------

    async def _find_chain(self, rpc: RpcClient) -> ChainConfig:
        """The region's chain; raises `NoAnswer`."""
        try:
            return await rpc.membership(self.service, ANSWER)
        except NoAnswer:
            seeds = [seed_of(address) for address in self.config.region(self.region).replicas]
            told = await rpc.describe_any(seeds, ANSWER)
            return next(each for each in told.memberships if each.region == self.region)

    async def _first_chain(self, rpc: RpcClient) -> ChainConfig:
        """The chain to begin with; logs while nobody answers."""
        while True:
            try:
                return await self._find_chain(rpc)
            except NoAnswer as error:
                log.warning("waiting for the configuration service or a replica", error=str(error))

    async def _follow_chain(self, rpc: RpcClient, host: Host) -> None:
        """Tell the machine of newer chains."""
        while True:
            await asyncio.sleep(REFRESH)
            try:
                current = await self._find_chain(rpc)
                if current.epoch > self.chain.epoch:
                    host.command(Learn(current))
                    self.chain = current
            except (NoAnswer, Overloaded):
                continue  # asked again soon
