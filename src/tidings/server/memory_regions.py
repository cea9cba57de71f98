"""Regions in memory whose replicas have all died: they are bootstrapped again, empty.

A region is *lost* when no member of its chain runs: nobody has what its members held, and a replica that starts has
nothing to join. Bootstrapping starts all its replicas as a chain without a history. The new head then adopts what the
other regions hold of its streams, declares the hole behind that lost, and numbers events above the hole
(protocols/replication/recovery.py, decision 0011).

Where there are other regions the supervisor does this by itself. A single region has nobody to adopt from: its streams
would be gone, and their numbers would begin again at 1. So it stays down until an operator asks for it with
`tidings replica bootstrap`; the supervisor's log and `NotReady` name that command.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from tidings.core.errors import BadInput, TidingsError
from tidings.core.ids import NodeId, RegionId
from tidings.net.names import make_id, name_of, parse_address
from tidings.server.backoff import pause_after
from tidings.server.children import GRACE, LOOK, Child, Children
from tidings.server.cluster_config import ClusterConfig
from tidings.server.configuration import EmbeddedConfiguration
from tidings.server.configuration_services import ConfigurationServices
from tidings.server.identity import IDENTITY_FILE
from tidings.server.paths import ClusterPaths

BOOTSTRAPPED = "all replicas of a region died with its memory: bootstrapping it again"
"""The log line of a bootstrap; it names the region and the members of its last chain."""

log = structlog.get_logger("tidings.supervisor")


class MemoryRegions:
    """Finds regions that are lost, and bootstraps them. Does nothing where replicas have disks."""

    def __init__(
        self, config: ClusterConfig, files: ClusterPaths, children: Children, services: ConfigurationServices
    ) -> None:
        self._config = config
        self._files = files
        self._children = children
        self._services = services
        self._initial: set[str] = set()  # slots whose next process is an initial replica of its region
        self._task: asyncio.Task[None] | None = None

    @property
    def automatic(self) -> bool:
        """Whether a lost region is bootstrapped without being asked: there are others to adopt events from."""
        return len(self._config.regions) > 1

    def is_initial(self, child: Child) -> bool:
        """Whether the next process in this slot is an initial replica of its region."""
        return child.slot in self._initial

    def started(self, child: Child) -> None:
        """A process has started in a slot; the one after it is not an initial replica."""
        if child.initial:
            self._initial.discard(child.slot)

    def bootstrap_all(self) -> None:
        """Before the services start, when no replica runs: every region begins again."""
        if self._config.durable:
            return
        for service in self._services.by_region.values():
            service.bootstrap_again(self._ids(service.region))
        self._initial = {child.slot for child in self._children.replicas}
        for slot in sorted(self._initial):
            (self._files.data(slot) / IDENTITY_FILE).unlink(missing_ok=True)

    def keep(self) -> None:
        """From now on bootstrap lost regions, or log the command that does."""
        if not self._config.durable:
            self._task = asyncio.ensure_future(self._keep() if self.automatic else self._advise())

    async def release(self) -> None:
        """Bootstrap nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- which regions are lost -----------------------------------------------------------------------------------

    def lost(self) -> list[RegionId]:
        """Regions in memory none of whose chain members runs, or is about to."""
        if self._config.durable:
            return []
        return [service.region for service in self._services.running if self._is_lost(service)]

    def advice(self) -> str:
        """What to do about regions that are lost and stay so; empty if there is nothing to do."""
        lost = [] if self.automatic else self.lost()
        if not lost:
            return ""
        command = f"tidings replica bootstrap {lost[0]} --dir {self._files.root}"
        return f"all replicas of {lost[0]} died, and its memory with them: `{command}` starts it again, without streams"

    def _is_lost(self, service: EmbeddedConfiguration) -> bool:
        if service.current.epoch <= service.bootstrap_epoch:
            return False  # its initial replicas are expected; others that start ask to join, which is a new epoch
        for child in self._children.of(service.region):
            process = self._files.process(child.slot)
            if process is not None and process.alive and process.id in service.current.replicas:
                return False
            if child.initial and child.alive and (process is None or process.pid != child.pid):
                return False  # an initial replica that has not written its run file yet
        return True

    # --- bootstrapping ------------------------------------------------------------------------------------------

    async def bootstrap_lost(self, region: RegionId) -> dict[str, Any]:
        """Bootstrap a region because an operator asks for it; raises `BadInput` if it is not lost."""
        self._config.region(region)
        if self._config.durable:
            raise BadInput(f"replicas of {region} keep their events on disks: start them again instead")
        if region not in self.lost():
            raise BadInput(
                f"{region} has replicas that hold its events: only a region that lost all can be bootstrapped"
            )
        await self.bootstrap(region)
        return {"region": region, "replicas": [name_of(node) for node in self._ids(region)]}

    async def bootstrap(self, region: RegionId) -> None:
        """Start all replicas of a region again, empty, as a chain without a history."""
        service = self._services.by_region[region]
        async with self._services.changing[region]:
            if not service.running:  # it was stopped meanwhile
                return
            log.warning(BOOTSTRAPPED, region=region, members=list(service.current.replicas))
            await service.stop()
            await asyncio.to_thread(service.bootstrap_again, self._ids(region))
            await asyncio.gather(*[self._restart_as_initial(child) for child in self._children.of(region)])
            await service.start()

    async def _restart_as_initial(self, child: Child) -> None:
        """Restart a replica as an initial one; a process that runs is in no chain and holds nothing."""
        loop = asyncio.get_running_loop()
        end = loop.time() + GRACE
        while child.pid is None and not child.held and loop.time() < end:
            await asyncio.sleep(LOOK)  # it is being started, as another incarnation
        self._initial.add(child.slot)
        await self._children.stop(child)

    def _ids(self, region: RegionId) -> list[NodeId]:
        """The initial replicas: all that the region has now, added ones too, under their plain names."""
        return [make_id(child.slot, *parse_address(child.address)) for child in self._children.of(region)]

    async def _keep(self) -> None:
        failures = 0
        while True:
            await asyncio.sleep(pause_after(failures + 1))
            for region in self.lost():
                try:
                    await self.bootstrap(region)
                    failures = 0
                except (TidingsError, OSError) as error:  # its service is started again, then it counts as lost again
                    failures += 1
                    log.error("cannot bootstrap a region; trying again", region=region, error=str(error))

    async def _advise(self) -> None:
        """Log once per loss what the operator has to do."""
        last = ""
        while True:
            await asyncio.sleep(pause_after(1))
            advice = self.advice()
            if advice and advice != last:
                log.error(advice)
            last = advice
