"""The configuration services inside a supervisor, one per region: started, and started again when one fails."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import structlog

from tidings.core.errors import TidingsError
from tidings.core.ids import RegionId
from tidings.server.backoff import pause_after
from tidings.server.cluster_config import ClusterConfig
from tidings.server.configuration import EmbeddedConfiguration
from tidings.server.paths import ClusterPaths

log = structlog.get_logger("tidings.supervisor")


class ConfigurationServices:
    """Keeps the services running, except those that were stopped on purpose."""

    def __init__(self, config: ClusterConfig, files: ClusterPaths) -> None:
        self.by_region: dict[RegionId, EmbeddedConfiguration] = {
            region.name: EmbeddedConfiguration(config, region.name, files.data(f"{region.name}/config"))
            for region in config.regions
        }
        self.changing: defaultdict[RegionId, asyncio.Lock] = defaultdict(asyncio.Lock)  # held to start or stop one
        self._unwanted: set[RegionId] = set()  # stopped on purpose
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def running(self) -> list[EmbeddedConfiguration]:
        """The services that run now."""
        return [service for service in self.by_region.values() if service.running]

    async def start(self) -> None:
        """Start all services; raises what keeps one from starting."""
        for service in self.by_region.values():
            await service.start()

    def keep(self) -> None:
        """Keep them running from now on."""
        self._tasks = [asyncio.ensure_future(self._keep(service)) for service in self.by_region.values()]

    async def release(self) -> None:
        """Keep them running no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Stop all services."""
        for service in self.by_region.values():
            await service.stop()

    async def want(self, region: RegionId, running: bool) -> None:
        """Start or stop a service on purpose."""
        service = self.by_region[region]
        (self._unwanted.discard if running else self._unwanted.add)(region)
        async with self.changing[region]:
            if running and not service.running:
                await service.start()
            elif not running:
                await service.stop()

    async def _keep(self, service: EmbeddedConfiguration) -> None:
        """Start a configuration service again whose machine or disk has failed, until it runs."""
        region, failures = service.region, 0
        while True:
            await asyncio.sleep(pause_after(failures + 1))
            async with self.changing[region]:
                if region in self._unwanted or (service.running and not service.host.failed.done()):
                    failures = 0
                    continue
                try:
                    if service.running:
                        error = service.host.failed.exception()
                        log.error("a configuration service has failed", region=region, error=str(error))
                        await service.stop()
                    await service.start()
                except (TidingsError, OSError) as error:
                    failures += 1
                    log.error("cannot start a configuration service", region=region, error=str(error))
