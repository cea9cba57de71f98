"""One process of a cluster that spans several hosts: `tidings serve`."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import structlog

from tidings.core.errors import BadInput
from tidings.net.loop import run
from tidings.net.names import CONFIG, parse_address, slot_of
from tidings.server import logs, paths
from tidings.server.cluster_config import ClusterConfig, load
from tidings.server.configuration import EmbeddedConfiguration
from tidings.server.node_process import OnReady, Spec
from tidings.server.nodes import main
from tidings.server.paths import ClusterPaths, Process, started_at
from tidings.server.replica import warm
from tidings.server.topology import BrokerKind

log = structlog.get_logger("tidings.serve")


def home(file: Path, config: ClusterConfig, directory: Path | None) -> ClusterPaths:
    """Where a process keeps its files: as told, as the cluster file says, or beside that file."""
    beside = file.absolute().parent
    return ClusterPaths(directory or (beside / config.cluster.data if config.cluster.data else beside))


def replica(
    file: Path,
    name: str,
    directory: Path | None,
    *,
    listen: str = "",
    journal: Path | None = None,
    console: bool,
    on_ready: OnReady | None = None,
) -> int:
    """Run a replica; the exit code."""
    config = load(file)
    region, _, place = name.partition("/")
    config.region(region)
    if slot_of(name) != name or not place or place == CONFIG:
        raise BadInput(f"--id {name}: a replica is called REGION/pN, e.g. {config.regions[0].name}/p0")
    if listen:
        parse_address(listen)
    elif name not in config.slots():
        raise BadInput(f"--id {name} is not in {file}: add its address there, or give --listen HOST:PORT")
    warm()
    spec = Spec(
        slot=name,
        root=str(home(file, config, directory).root),
        config=str(file.absolute()),
        address=listen,
        journal=str(journal.absolute()) if journal else "",
        console=console,
    )
    return main(spec, on_ready)


def broker(
    file: Path,
    kind: BrokerKind,
    name: str,
    directory: Path | None,
    *,
    journal: Path | None = None,
    console: bool,
    on_ready: OnReady | None = None,
) -> int:
    """Run a relay or an edge; the exit code."""
    config = load(file)
    config.region(name.partition("/")[0])
    there = [slot for slot, place in config.broker_places().items() if place.kind == kind]
    if name not in there:
        known = f"there are {', '.join(there)}" if there else "there is none"
        raise BadInput(f"--id {name} is no {kind} of {file}: {known}; add one to the file")
    spec = Spec(
        slot=name,
        kind=kind,
        root=str(home(file, config, directory).root),
        config=str(file.absolute()),
        journal=str(journal.absolute()) if journal else "",
        console=console,
    )
    return main(spec, on_ready)


def configuration(
    file: Path, name: str, directory: Path | None, *, console: bool, on_ready: OnReady | None = None
) -> int:
    """Run a configuration service; the exit code."""
    config = load(file)
    region, _, place = name.partition("/")
    config.region(region)
    if place != CONFIG:
        raise BadInput(f"--id {name}: the configuration service of {region} is called {region}/{CONFIG}")
    files = home(file, config, directory).make()
    logs.configure(None if console else files.log(name), node=name)
    return run(_configure(config, name, files, on_ready))


async def _configure(config: ClusterConfig, name: str, files: ClusterPaths, on_ready: OnReady | None) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    lock = files.lock(name)
    service = EmbeddedConfiguration(config, name.partition("/")[0], files.data(name))
    try:
        await service.start()
        pid = os.getpid()
        me = Process(pid=pid, started=started_at(pid), id=service.host.node)
        paths.write(files.run_file(name), me)
        if on_ready is not None:
            on_ready(me)
        stopped: asyncio.Future[Any] = asyncio.ensure_future(stopping.wait())
        await asyncio.wait([stopped, service.host.failed], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if service.host.failed.done():
            service.host.failed.result()
    finally:
        await service.stop()
        files.run_file(name).unlink(missing_ok=True)
        os.close(lock)
    log.info("stopped")
    return 0
