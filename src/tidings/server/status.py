"""The state of a cluster, from the answers of its replicas: `tidings status`, and the supervisor's answer.

Replicas are asked at the addresses in the cluster file and the roster. A replica that does not answer counts as not
alive. If replicas name different chains of a region, the newest counts. Relays and edges of this machine are asked over
their HTTP; one of another host is alive if somebody listens at its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tidings.core.ids import NodeId, RegionId, is_internal
from tidings.net.names import make_id, name_of, parse_address, seed_of, slot_of
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.catalog import Description, StreamDef, age
from tidings.server.cluster_config import ClusterConfig
from tidings.server.http_client import CallFailed, call_async
from tidings.server.paths import ClusterPaths
from tidings.server.rpc import NoAnswer, RpcClient
from tidings.server.topology import BrokerPlace

ANSWER = 1.0  # seconds a replica has; ours, because people wait for it


async def describe_all(rpc: RpcClient, slots: Mapping[str, str], timeout: float = ANSWER) -> dict[str, Description]:
    """What each replica that answers says."""

    async def one(slot: str, address: str) -> tuple[str, Description | None]:
        try:
            return slot, await rpc.describe(seed_of(address), timeout)
        except NoAnswer:
            return slot, None

    found = await asyncio.gather(*[one(slot, address) for slot, address in slots.items()])
    return {slot: description for slot, description in found if description is not None}


async def ask_brokers(
    files: ClusterPaths | None, places: Mapping[str, BrokerPlace], timeout: float = ANSWER
) -> dict[str, dict[str, Any]]:
    """What the relays and edges that are alive say of themselves; nothing if they are on another host."""

    async def one(place: BrokerPlace) -> dict[str, Any] | None:
        process = files.process(place.slot) if files is not None else None
        if process is None or not process.alive:
            return {} if await _listens(place.address, timeout) else None
        try:
            told: dict[str, Any] = await call_async(process.http_port, "/status", timeout=timeout)
        except CallFailed:
            return None
        return told

    found = await asyncio.gather(*[one(place) for place in places.values()])
    return {slot: told for slot, told in zip(places, found, strict=True) if told is not None}


async def _listens(address: str, timeout: float) -> bool:
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(*parse_address(address))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def listed_edges(descriptions: Mapping[str, Description]) -> dict[str, BrokerPlace]:
    """The edges that replicas know of."""
    nodes = sorted({node for description in descriptions.values() for node in description.edges})
    return {name_of(node): BrokerPlace(node, "edge", below=None) for node in nodes}


def memberships_in(config: ClusterConfig, descriptions: Mapping[str, Description]) -> dict[RegionId, ChainConfig]:
    """The newest chain of each region that any replica knows."""
    newest = {region.name: region.initial_chain(0) for region in config.regions}
    for description in descriptions.values():
        for membership in description.memberships:
            known = newest.get(membership.region)
            if known is not None and membership.epoch > known.epoch:
                newest[membership.region] = membership
    return newest


def summarize(
    config: ClusterConfig,
    slots: Mapping[str, str],
    descriptions: Mapping[str, Description],
    pids: Mapping[str, int],
    places: Mapping[str, BrokerPlace],
    brokers: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """The answer of `tidings status`. ``brokers``: what the relays and edges that are alive say."""
    memberships = memberships_in(config, descriptions)
    regions = []
    for region in config.regions:
        own = {slot: address for slot, address in slots.items() if slot.partition("/")[0] == region.name}
        replicas = _replicas(memberships[region.name], own, descriptions, pids)
        alive = [each["address"] for each in replicas if each["alive"]]
        address = alive[0] if alive else region.replicas[0]
        near = [place for slot, place in places.items() if slot.partition("/")[0] == region.name]
        regions.append(
            {
                "name": region.name,
                "address": address,
                "epoch": memberships[region.name].epoch,
                "replicas": replicas,
                "relays": [_broker(each, pids, brokers) for each in near if each.kind == "relay"],
                "edges": [_broker(each, pids, brokers) for each in near if each.kind == "edge"],
            }
        )
    return {"regions": regions, "streams": _streams(memberships, descriptions)}


def _replicas(
    membership: ChainConfig, slots: Mapping[str, str], descriptions: Mapping[str, Description], pids: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The chain in its order, then the replicas outside of it."""
    chain: list[NodeId] = [*membership.replicas, *filter(None, [membership.joining])]
    inside = {slot_of(node) for node in chain}
    outside = [make_id(slot, *parse_address(address)) for slot, address in slots.items() if slot not in inside]
    found = []
    for node in (*chain, *outside):
        slot = slot_of(node)
        found.append(
            {
                "id": name_of(node),
                "role": role_in(membership, node),
                "pid": pids.get(slot),
                "address": node.rpartition("@")[2],
                "alive": slot in descriptions,
            }
        )
    return found


def _broker(place: BrokerPlace, pids: Mapping[str, int], brokers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A relay or an edge; what only it knows itself is None if it is on another host."""
    told = brokers.get(place.slot)
    below = "replicas" if place.below == "" else place.below
    known = told or {}
    more = {"cell": place.cell} if place.kind == "relay" else {"subscriptions": known.get("subscriptions")}
    return {
        "id": place.slot,
        "upstream": below,
        "pid": pids.get(place.slot),
        "address": place.address,
        "alive": told is not None,
        "connected": known.get("connected"),
        **more,
    }


def role_in(membership: ChainConfig, node: NodeId) -> str:
    """A node's place in a chain: head, middle, tail, joining or out."""
    if node == membership.joining:
        return "joining"
    if node not in membership.replicas:
        return "out"
    return "head" if node == membership.head else "tail" if node == membership.tail else "middle"


def _leases(voice: Description | None, stream: str) -> list[dict[str, Any]]:
    """The leases on a stream, and the bytes that each keeps, as a replica of the owner knows them."""
    leases = [lease for lease in voice.leases if lease.stream == stream] if voice else []
    return [{"name": lease.name, "asof": lease.asof, "held_bytes": lease.held} for lease in leases]


def _streams(
    memberships: Mapping[RegionId, ChainConfig], descriptions: Mapping[str, Description]
) -> list[dict[str, Any]]:
    """Each stream, with the horizon of each region's tail (or the last replica that answers), as its owner counts."""
    voices: dict[RegionId, Description] = {}
    for region, membership in memberships.items():
        for node in reversed(membership.replicas):
            if slot_of(node) in descriptions:
                voices[region] = descriptions[slot_of(node)]
                break
    claims: dict[str, dict[RegionId, StreamDef]] = {}
    for voice in voices.values():
        for each in (*voice.streams, *voice.conflicts):
            if not is_internal(each.name):
                claims.setdefault(each.name, {})[each.region] = each
    found = []
    for name, claimed in sorted(claims.items()):
        stream = min(claimed.values(), key=age)
        states = {region: voice.states[stream.id] for region, voice in voices.items() if stream.id in voice.states}
        owner = states.get(stream.region) or next(iter(states.values()), None)
        found.append(
            {
                "name": name,
                "id": stream.id,
                "region": stream.region,
                "gc": stream.gc,
                "attrs": stream.attrs,
                "horizon": {region: state.horizon for region, state in states.items()},
                "live": owner.live if owner else 0,
                "collected": owner.collected if owner else 0,
                "lost": owner.lost if owner else 0,
                "leases": _leases(voices.get(stream.region), stream.id),
                "conflict": sorted(set(claimed) - {stream.region}),
            }
        )
    return found
