"""Relays and edges in a simulated world, below the replicas of a deployment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tidings.core.ids import NodeId, RegionId
from tidings.protocols.brokers.broker_messages import CellId
from tidings.protocols.nodes.edge import Edge, EdgeSettings
from tidings.protocols.nodes.relay import Relay, RelaySettings
from tidings.sim.build import Deployment


def add_cell(
    deployment: Deployment,
    region: RegionId,
    cell: CellId,
    relays: Sequence[NodeId],
    upstream: Sequence[NodeId],
    settings: RelaySettings,
    place: RegionId = "",
) -> None:
    """A cell of relays. ``place``: where in the network they are, if it is not their region's."""
    for node in relays:
        peers = [each for each in relays if each != node]

        def relay(
            durable: list[Any], incarnation: int, rng: random.Random, me: NodeId = node, peers: list[NodeId] = peers
        ) -> Relay:
            return Relay(me, region, cell, upstream, peers, incarnation + 1, settings)

        deployment.add(node, place or region, relay)


def add_edge(
    deployment: Deployment,
    region: RegionId,
    node: NodeId,
    upstream: Sequence[NodeId],
    settings: EdgeSettings,
    place: RegionId = "",
) -> None:
    """An edge. Replicas that are added later are none of those that it asks. ``place``: as for a cell."""
    replicas = tuple(deployment.replicas[region])

    def edge(durable: list[Any], incarnation: int, rng: random.Random) -> Edge:
        return Edge(node, region, upstream, replicas, incarnation + 1, settings, rng)

    deployment.add(node, place or region, edge)
