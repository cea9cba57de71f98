"""Questions of the command line to a running cluster, by directory, by cluster file or by addresses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tidings.core.errors import BadInput
from tidings.core.ids import NodeId, RegionId, is_internal
from tidings.net.loop import run
from tidings.net.names import seed_of, slot_of
from tidings.protocols.services.catalog import Operation, StreamDef
from tidings.server.cluster_config import ClusterConfig, ClusterTable, RegionConfig, load
from tidings.server.http_client import CallFailed, call
from tidings.server.paths import SUPERVISOR, ClusterPaths, read
from tidings.server.roster import ROSTER, Roster
from tidings.server.rpc import RpcClient
from tidings.server.status import ANSWER, ask_brokers, describe_all, listed_edges, summarize

DEFINE = 10.0  # seconds a definition may take; ours: a fail-over, and then some


class ClusterTarget:
    """The cluster that is meant: that of a directory, that of a file, or the one whose replicas have these addresses.

    By addresses it is whatever the first replica that answers describes; `NoAnswer` if none does.
    """

    def __init__(self, directory: Path | None, file: Path | None = None, addresses: Sequence[str] = ()) -> None:
        self.files: ClusterPaths | None = None
        if directory is None:
            self.config, self.slots = run(_discover(addresses))
            return
        self.files = ClusterPaths(directory)
        if file is None and not self.files.config_file.exists() and self.files.process(SUPERVISOR) is None:
            raise BadInput(
                f"{directory} has no cluster: start one with `tidings up --dir {directory}`, or give -c FILE"
            )
        self.config = load(file or self.files.config_file)
        roster = (read(self.files.root / ROSTER, Roster) or Roster()) if file is None else Roster()
        self.slots = roster.apply(self.config.slots())

    def asker(self) -> RpcClient:
        """Somebody who asks its replicas."""
        return _asker(self.config.cluster.name)

    def seeds(self, region: RegionId | None = None) -> list[NodeId]:
        """Where a region's replicas, or all, may be found."""
        if region is not None:
            self.config.region(region)
        chosen = [address for slot, address in self.slots.items() if region in (None, slot.partition("/")[0])]
        return [seed_of(address) for address in chosen]


async def _discover(addresses: Sequence[str]) -> tuple[ClusterConfig, dict[str, str]]:
    """A cluster as one of its replicas describes it: its regions, and where the members of their chains are."""
    async with _asker(ClusterTable().name) as asker:
        told = await asker.describe_any([seed_of(address) for address in addresses], DEFINE)
    slots = {
        slot_of(node): node.rpartition("@")[2]
        for chain in sorted(told.memberships, key=lambda each: (each.region != told.region, each.region))
        for node in (*chain.replicas, *filter(None, [chain.joining]))
    }
    regions: dict[RegionId, list[str]] = {}
    for slot, address in slots.items():
        regions.setdefault(slot.partition("/")[0], []).append(address)
    described = [RegionConfig(name, "", tuple(found)) for name, found in sorted(regions.items())]
    return ClusterConfig(regions=tuple(described)), slots


def _asker(cluster: str) -> RpcClient:
    return RpcClient(f"_cli-{os.getpid()}-{os.urandom(4).hex()}", cluster=cluster)


def look(directory: Path | None, file: Path | None, addresses: Sequence[str] = ()) -> dict[str, Any]:
    """The answer of `tidings status`: the supervisor's where one runs, else what the replicas say."""
    files = None if directory is None else ClusterPaths(directory)
    supervisor = files.process(SUPERVISOR) if files is not None and file is None else None
    if supervisor is not None and supervisor.alive:
        try:
            found: dict[str, Any] = call(supervisor.http_port, "/status")
            return found
        except CallFailed:
            pass  # it has just gone
    return run(_look(ClusterTarget(directory, file, addresses)))


async def _look(target: ClusterTarget) -> dict[str, Any]:
    async with target.asker() as asker:
        descriptions = await describe_all(asker, target.slots, ANSWER)
    files = target.files
    places = target.config.broker_places() if files is not None else listed_edges(descriptions)
    brokers = await ask_brokers(files, places)
    found = {slot: files.process(slot) for slot in (*target.slots, *places)} if files is not None else {}
    pids = {slot: process.pid for slot, process in found.items() if process is not None and process.alive}
    return summarize(target.config, target.slots, descriptions, pids, places, brokers)


def streams(target: ClusterTarget) -> list[StreamDef]:
    """The streams that any replica knows."""
    return run(_streams(target, target.seeds()))


async def _streams(target: ClusterTarget, seeds: Iterable[NodeId]) -> list[StreamDef]:
    async with target.asker() as asker:
        described = await asker.describe_any(seeds, 3 * ANSWER)
    return sorted([each for each in described.streams if not is_internal(each.name)], key=lambda each: each.name)


def define(
    target: ClusterTarget, operation: Operation, name: str, region: RegionId | None, gc: str, attrs: str
) -> StreamDef:
    """Create, alter or delete a stream, at its owner; `BadInput` with the reason if it is refused."""
    return run(_define(target, operation, name, region, gc, attrs))


async def _define(
    target: ClusterTarget, operation: Operation, name: str, region: RegionId | None, gc: str, attrs: str
) -> StreamDef:
    mark = ""
    if region is None:
        known = await _known(target, name)
        name, region, mark = known.name, known.region, known.mark
    async with target.asker() as asker:
        definition = StreamDef(name, region, gc, attrs=attrs, mark=mark)
        return await asker.define(target.seeds(region), operation, definition, DEFINE)


async def _known(target: ClusterTarget, name: str) -> StreamDef:
    """The stream of this name or id."""
    known = await _streams(target, target.seeds())
    for stream in known:
        if name in (stream.name, stream.id):
            return stream
    raise BadInput(f"stream {name!r} is unknown: there are {', '.join([each.name for each in known]) or 'none'}")


def declare_lost(target: ClusterTarget, name: str, lo: int, hi: int) -> StreamDef:
    """Declare a range of a stream lost, at its owner; `BadInput` with the reason if it is refused."""
    return run(_declare_lost(target, name, lo, hi))


async def _declare_lost(target: ClusterTarget, name: str, lo: int, hi: int) -> StreamDef:
    stream = await _known(target, name)
    async with target.asker() as asker:
        return await asker.declare_lost(target.seeds(stream.region), stream.id, lo, hi, DEFINE)
