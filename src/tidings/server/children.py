"""The processes of a supervisor, replicas, relays and edges: start, adopt, restart, stop.

A process that ends is started again, after a pause that doubles while it keeps failing. One that an earlier supervisor
started is found by its run file and adopted.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

import structlog

from tidings.core.errors import BadInput, TidingsError
from tidings.core.ids import RegionId
from tidings.net.names import region_of, slot_of
from tidings.server.backoff import pause_after
from tidings.server.node_process import NodeKind, Spec
from tidings.server.paths import ClusterPaths, Process, send_signal
from tidings.server.prefork_client import PreforkClient

STEADY = 10.0  # seconds after which a process counts as healthy, and its failures as over; ours
LOOK = 0.05  # seconds between looks at processes that are not children, and at conditions; ours
GRACE = 10.0  # seconds a process has to stop by itself; ours: a sync of all it may have queued, many times over

log = structlog.get_logger("tidings.supervisor")


class Child:
    """A slot, and the process that runs in it."""

    def __init__(self, slot: str, address: str, kind: NodeKind = "replica") -> None:
        self.slot = slot
        self.kind: NodeKind = kind
        self.region: RegionId = region_of(slot)
        self.address = address
        self.process: Process | None = None  # with its start time: the pid alone may be another process's by now
        self.spawned = False  # by this supervisor, not adopted
        self.initial = False  # started as one of the initial replicas of a region in memory
        self.since = 0.0  # when it was last started
        self.failures = 0
        self.held = False  # down on purpose: not started again by itself
        self.paused = False
        self.ended = asyncio.Event()  # the prefork process has reported that the process ended

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive


class Children:
    """All processes. ``make_spec`` says how one is started; ``started`` is called when it was."""

    def __init__(
        self, files: ClusterPaths, make_spec: Callable[[Child], Spec], started: Callable[[Child, Spec], None]
    ) -> None:
        self.by_slot: dict[str, Child] = {}
        self.prefork = PreforkClient(files, self._ended)
        self._files = files
        self._make_spec = make_spec
        self._started = started
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    def __iter__(self) -> Iterator[Child]:
        return iter(self.by_slot.values())

    @property
    def replicas(self) -> list[Child]:
        """The replicas among them."""
        return [child for child in self if child.kind == "replica"]

    def of(self, region: RegionId) -> list[Child]:
        """The replicas of a region."""
        return [child for child in self.replicas if child.region == region]

    def get(self, name: str) -> Child:
        """The process of a slot, or of any of its incarnations; raises `BadInput`."""
        slot = slot_of(name)
        if slot not in self.by_slot:
            raise BadInput(f"process {name!r} is unknown: there are {', '.join(sorted(self.by_slot))}")
        return self.by_slot[slot]

    def add(self, slot: str, address: str, kind: NodeKind = "replica") -> Child:
        """A slot more; `keep` starts its process."""
        child = self.by_slot[slot] = Child(slot, address, kind)
        return child

    def adopt(self, child: Child) -> bool:
        """Take over a process that an earlier supervisor has left running in this slot, if there is one."""
        found = self._files.process(child.slot)
        if found is None or not found.alive:
            return False
        child.process, child.spawned, child.initial = found, False, False
        child.since = asyncio.get_running_loop().time()
        return True

    def keep(self, child: Child) -> None:
        """Keep a process running from now on."""
        self._tasks[child.slot] = asyncio.ensure_future(self._keep(child))

    async def stop(self, child: Child) -> None:
        """Stop a process: SIGTERM, then SIGKILL if it does not end. It is started again unless it is held."""
        process = child.process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGCONT):
            send_signal(process, number)
        loop = asyncio.get_running_loop()
        end = loop.time() + GRACE
        while process.alive:
            if loop.time() > end:
                log.warning("a process did not stop and is killed", slot=child.slot, pid=process.pid, seconds=GRACE)
                send_signal(process, signal.SIGKILL)
                end = loop.time() + GRACE
            await asyncio.sleep(LOOK / 2)

    async def remove(self, child: Child) -> None:
        """Stop a process for good."""
        self._tasks.pop(child.slot).cancel()
        await self.stop(child)
        del self.by_slot[child.slot]

    async def release(self) -> None:
        """Keep processes running no more."""
        self._stopping = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def stop_all(self, *, adopted: bool) -> None:
        """Stop all processes (the adopted ones only if told so), then the prefork process."""
        await asyncio.gather(*[self.stop(child) for child in self if adopted or child.spawned])
        await self.prefork.stop()

    # --- one process ------------------------------------------------------------------------------------------

    async def _keep(self, child: Child) -> None:
        """Start a process whenever it does not run, unless it is held."""
        loop = asyncio.get_running_loop()
        while True:
            if child.process is not None:
                await self._until_ended(child)
                steady = child.held or loop.time() - child.since > STEADY
                child.failures = 0 if steady else child.failures + 1
                child.process = None
            if child.failures:
                await asyncio.sleep(pause_after(child.failures))
            while child.held:
                await asyncio.sleep(LOOK / 5)
            try:
                if self.adopt(child):  # an earlier supervisor started it, and it wrote its run file only now
                    log.info("adopted a running process", slot=child.slot, pid=child.pid)
                else:
                    await self._start(child)
            except (TidingsError, OSError) as error:
                child.failures += 1
                log.error("cannot start a process", slot=child.slot, error=str(error))

    async def _start(self, child: Child) -> None:
        spec = self._make_spec(child)
        child.ended.clear()
        child.paused = False
        child.process = await self.prefork.spawn(spec)
        child.spawned, child.initial = True, spec.bootstrapping
        child.since = asyncio.get_running_loop().time()
        self._started(child, spec)

    async def _until_ended(self, child: Child) -> None:
        """Wait for the report of the prefork process, and look: it may have ended, or not be the parent."""
        while child.alive:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.ended.wait(), 10 * LOOK)

    def _ended(self, pid: int, code: int) -> None:
        for child in self:
            if child.pid == pid:
                if not child.held and not self._stopping:
                    log.warning("a process has ended", slot=child.slot, pid=pid, code=code)
                child.ended.set()
