"""A cluster in this process whose replicas carry their addresses in their names, and clients that dial it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from net.rig import Cluster, run, until
from tidings.client.connection import Connection, connect
from tidings.client.events import Event
from tidings.client.subscription import Subscription
from tidings.net.names import make_id
from tidings.protocols.nodes.replica import StreamDef
from tidings.protocols.replication.chain_config import ChainConfig

__all__ = ["Town", "dial", "run", "take", "town", "until"]

ATTRS = "loc string, price double"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Town(Cluster):
    """Regions r0, r1, ... of some replicas; streams "s0" (of r0), "s1" ..., and in r0 "keyed" and "prices"."""

    def __init__(self, folder: Path, regions: int = 1, replicas: int = 3) -> None:
        super().__init__(regions, folder)
        self.memberships = {}
        for region in [f"r{at}" for at in range(regions)]:
            ids = []
            for at in range(replicas):
                port = free_port()
                ids.append(make_id(f"{region}/p{at}", "127.0.0.1", port))
                self.directory[ids[-1]] = ("127.0.0.1", port)
            self.memberships[region] = ChainConfig(region, 1, tuple(ids))
        more = (StreamDef("keyed", "r0", "by-key", 0, 100), StreamDef("prices", "r0", "none", 0, 101, ATTRS))
        self.streams = (*self.streams, *more)

    def replica(self, at: int, region: str = "r0") -> str:
        """The id of a replica that began at this place of its chain."""
        return next(id for id in self.directory if id.startswith(f"{region}/p{at}@"))

    def url(self, region: str = "r0") -> str:
        """All replicas of a region."""
        ids = [id for id in self.directory if id.startswith(f"{region}/p")]
        return "tidings://" + ",".join(id.rpartition("@")[2] for id in ids)

    def machine(self, at: int, region: str = "r0") -> Any:
        return self.hosts[self.replica(at, region)].machine


@asynccontextmanager
async def town(folder: Path, regions: int = 1, replicas: int = 3) -> AsyncIterator[Town]:
    cluster = Town(folder, regions, replicas)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


def dial(town: Town, client_id: str | None = None, region: str = "r0", **options: Any) -> Connection:
    return connect(town.url(region), client_id=client_id, **options)


async def take(subscription: Subscription, count: int, deadline: float = 20.0) -> list[Event]:
    """The next so many events."""
    out: list[Event] = []

    async def fill() -> None:
        async for event in subscription:
            out.append(event)
            if len(out) == count:
                return

    await asyncio.wait_for(fill(), deadline)
    return out
