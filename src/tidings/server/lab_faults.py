"""Faults of a lab cluster (`tidings up --lab`): links cut or impaired; replicas, relays and edges killed or paused.

The supervisor remembers which links are cut or impaired, and tells each replica when it starts or wakes.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from tidings.core.errors import BadInput
from tidings.core.ids import RegionId
from tidings.net.shape import Wan
from tidings.server.children import LOOK, Child, Children
from tidings.server.cluster_config import ClusterConfig
from tidings.server.configuration_services import ConfigurationServices
from tidings.server.http_client import CallFailed, call_async
from tidings.server.node_process import Spec
from tidings.server.paths import ClusterPaths, send_signal

log = structlog.get_logger("tidings.supervisor")

Cuts = tuple[tuple[RegionId, RegionId], ...]
Impaired = tuple[tuple[RegionId, RegionId, dict[str, Any]], ...]


class LabFaults:
    """Injects faults and ends them. ``find`` gives the process of a name, a place in the chain included."""

    def __init__(
        self,
        config: ClusterConfig,
        files: ClusterPaths,
        children: Children,
        services: ConfigurationServices,
        find: Callable[[str], Child],
        *,
        allowed: bool,
    ) -> None:
        self._config = config
        self._files = files
        self._children = children
        self._services = services
        self._find = find
        self._allowed = allowed
        self._cuts: set[tuple[RegionId, RegionId]] = set()
        self._impaired: dict[tuple[RegionId, RegionId], dict[str, Any]] = {}  # what was changed of a link
        self._tasks: set[asyncio.Task[None]] = set()  # that tell replicas which started or woke

    @property
    def cuts(self) -> Cuts:
        """The links that are cut now."""
        return tuple(sorted(self._cuts))

    @property
    def impaired(self) -> Impaired:
        """The links that are impaired now, and how."""
        return tuple([(a, b, changes) for (a, b), changes in sorted(self._impaired.items())])

    async def inject(self, request: dict[str, Any]) -> dict[str, Any]:
        """Inject a fault, or end one; raises `BadInput`."""
        if not self._allowed:
            raise BadInput("faults are for clusters started with `tidings up --lab`")
        match request:
            case {"kind": "cut", "a": str(a), "b": str(b)}:
                self._cuts.add(self._link(a, b))
                await self._tell_all({"cuts": self.cuts})
            case {"kind": "heal", "a": str(a), "b": str(b)}:
                self._cuts.discard(self._link(a, b))
                await self._tell_all({"cuts": self.cuts})
            case {"kind": "impair", "a": str(a), "b": str(b), **rest}:
                link = self._link(a, b)
                Wan().impair(a, b, **rest)  # raises what is wrong with it, before any replica is told
                self._impaired[link] = self._impaired.get(link, {}) | rest
                await self._tell_all({"impair": link, **rest})
            case {"kind": "kill", "replica": str(name)}:
                await self.kill(self._find(name))
            case {"kind": "restart", "replica": str(name)}:
                await self.restart(self._find(name))
            case {"kind": "pause", "replica": str(name), "seconds": float() | int() as seconds}:
                self.pause(self._find(name), seconds)
            case {"kind": "config", "region": str(name), "running": bool(running)}:
                self._config.region(name)
                await self._services.want(name, running)
            case _:
                raise BadInput(f"{request} is no fault: there are cut, heal, impair, kill, restart, pause, config")
        log.info("fault", **request)
        return {"done": True}

    async def kill(self, child: Child) -> None:
        """SIGKILL; it stays down until `restart`. Raises `BadInput` if it was killed before."""
        if child.held and not child.alive:
            raise BadInput(f"{child.slot} is dead already: `tidings fault restart {child.slot}` starts it again")
        child.held = True
        if child.process is not None:
            send_signal(child.process, signal.SIGKILL)
        while child.pid is not None:
            await asyncio.sleep(LOOK / 5)

    async def restart(self, child: Child) -> None:
        """Start a process that was killed; one that runs is stopped first."""
        child.held = True
        await self._children.stop(child)
        while child.pid is not None:
            await asyncio.sleep(LOOK / 5)
        child.held = False
        while child.pid is None:
            await asyncio.sleep(LOOK / 5)

    def pause(self, child: Child, seconds: float) -> None:
        """SIGSTOP now, SIGCONT after so many seconds."""
        process = child.process
        if process is None or not process.alive:
            raise BadInput(f"{child.slot} does not run")
        child.paused = True
        send_signal(process, signal.SIGSTOP)

        def resume() -> None:
            if child.process is process:
                send_signal(process, signal.SIGCONT)
                child.paused = False
                if child.kind == "replica":
                    self._spawn(self._tell_everything(child))

        asyncio.get_running_loop().call_later(seconds, resume)

    def started(self, child: Child, spec: Spec) -> None:
        """A replica has started with the faults of its spec: tell it what changes until it can be called."""
        if child.kind == "replica":  # the others have no links to other regions
            self._spawn(self._tell_when_up(child, spec))

    async def release(self) -> None:
        """Tell replicas nothing more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- telling replicas ---------------------------------------------------------------------------------------

    def _link(self, a: str, b: str) -> tuple[RegionId, RegionId]:
        if self._config.region(a) == self._config.region(b):
            raise BadInput(f"{a}-{b} is no link: it takes two regions")
        return (a, b) if a < b else (b, a)

    async def _tell_all(self, fault: dict[str, Any]) -> None:
        """Tell every replica that can be called; a paused one is told when it wakes, a starting one when it is up."""
        await asyncio.gather(*[self._tell(child, fault) for child in self._children.replicas])

    async def _tell(self, child: Child, fault: dict[str, Any]) -> None:
        found = self._files.process(child.slot)
        if found is None or not found.alive or child.paused:
            return
        try:
            await call_async(found.http_port, "/fault", fault, token=found.token, timeout=5.0)
        except CallFailed as error:
            log.warning("cannot tell a replica of a fault", slot=child.slot, error=str(error))

    async def _tell_everything(self, child: Child) -> None:
        """Tell one replica of all links that are cut or impaired now."""
        await self._tell(child, {"cuts": self.cuts})
        for link, changes in sorted(self._impaired.items()):
            await self._tell(child, {"impair": link, **changes})

    async def _tell_when_up(self, child: Child, spec: Spec) -> None:
        """Tell a replica what was cut, healed or impaired between its start and the moment it can be called."""
        process = child.process
        while process is not None and child.process is process and process.alive:
            found = self._files.process(child.slot)
            if found is not None and found.pid == process.pid:
                if (spec.cuts, spec.impaired) != (self.cuts, self.impaired):
                    await self._tell_everything(child)
                return
            await asyncio.sleep(LOOK)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
