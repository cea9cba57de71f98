"""Replicas that are added to a running cluster, and removed from it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import structlog

from tidings.core.errors import BadInput
from tidings.core.ids import RegionId
from tidings.net.names import slot_of
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.server import cluster_config, paths
from tidings.server.children import Child, Children
from tidings.server.cluster_config import ClusterConfig
from tidings.server.configuration import Conflict, EmbeddedConfiguration
from tidings.server.paths import ClusterPaths
from tidings.server.roster import ROSTER, Roster

ATTEMPTS = 20  # to take a replica out of a chain that changes meanwhile; ours

log = structlog.get_logger("tidings.supervisor")


class ChainChanges:
    """Adds and removes replicas, and writes down in the roster that they are."""

    def __init__(
        self,
        config: ClusterConfig,
        files: ClusterPaths,
        children: Children,
        services: Mapping[RegionId, EmbeddedConfiguration],
    ) -> None:
        self._config = config
        self._file = files.root / ROSTER
        self._children = children
        self._services = services
        self._roster = paths.read(self._file, Roster) or Roster()

    def slots(self) -> dict[str, str]:
        """All replicas of the cluster and their addresses: those of the file, with what was changed since."""
        return self._roster.apply(self._config.slots())

    async def add(self, region: RegionId) -> dict[str, Any]:
        """Start a new, empty replica; it joins its chain by itself."""
        self._config.region(region)
        number = 0
        while (slot := f"{region}/p{number}") in self._children.by_slot or slot in self._roster.removed:
            number += 1
        address = f"{cluster_config.HOST}:{cluster_config.free_port()}"
        self._roster.added[slot] = address
        await asyncio.to_thread(paths.write, self._file, self._roster)
        self._children.keep(self._children.add(slot, address))
        log.info("replica added", slot=slot, address=address)
        return {"id": slot, "address": address}

    async def remove(self, child: Child) -> dict[str, Any]:
        """Take a replica out of its chain and stop it for good; the slot is not used again."""
        if child.kind != "replica":
            raise BadInput(f"{child.slot} is no replica: take it out of the cluster file, and start the cluster again")
        await self._leave(child)
        await self._children.remove(child)
        self._roster.added.pop(child.slot, None)
        self._roster.removed.append(child.slot)
        await asyncio.to_thread(paths.write, self._file, self._roster)
        log.info("replica removed", slot=child.slot)
        return {"id": child.slot}

    async def _leave(self, child: Child) -> None:
        service = self._services[child.region]
        for _ in range(ATTEMPTS):
            current: ChainConfig = service.current
            mine = [node for node in (*current.replicas, current.joining or "") if slot_of(node) == child.slot]
            if not mine:
                return
            if set(mine) == set(current.replicas):
                raise BadInput(f"{child.slot} is the last replica of {child.region}: add another one first")
            with contextlib.suppress(Conflict):
                await service.change(current.epoch, mine[0])
        raise Conflict(f"{child.slot} could not be taken out: {child.region} keeps changing; try again")
