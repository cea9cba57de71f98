"""The faults of a campaign against real processes: each is an episode at whose end the fault is over.

A seed decides which faults are injected, where and how long. It does not decide which replica is head just then, or
which messages are on their way, so a seed repeats its faults and not its run. Faults are what operating systems really
do: SIGKILL and SIGSTOP, links that carry nothing, a configuration service that is stopped, a file that may not grow
(RLIMIT_FSIZE set from outside: EFBIG to every write beyond), a directory put back to an earlier copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tidings.core.errors import TidingsError
from tidings.core.ids import RegionId
from tidings.net.names import slot_of
from tidings.server.http_client import CallFailed, call
from tidings.server.local import LocalCluster

ROLES = ("head", "middle", "tail")
SILENCE = 1.5  # seconds after which a replica is removed (protocol.silence)


class FaultInjector:
    """Injects faults into one cluster, counts them, and ends those that last."""

    def __init__(self, cluster: LocalCluster, rng: random.Random, replicas: int, *, durable: bool) -> None:
        self.cluster = cluster
        self.rng = rng
        self.replicas = replicas
        self.durable = durable
        self.faults: Counter[str] = Counter()
        self.reports: Counter[str] = Counter()
        self.story: list[str] = []
        self._down: set[str] = set()
        self._cuts: set[tuple[RegionId, RegionId]] = set()
        self._services: set[RegionId] = set()
        self._limited: set[int] = set()
        self.killed: set[int] = set()  # processes that were sent SIGKILL

    @property
    def regions(self) -> list[RegionId]:
        return self.cluster.regions

    def note(self, kind: str, what: str = "") -> None:
        """A fault has happened."""
        self.faults[kind] += 1
        self.story.append(f"{kind} {what}".strip())

    async def end_all(self) -> None:
        """End all faults that last: links heal, services, disks and replicas come back."""
        for a, b in sorted(self._cuts):
            await self.cluster.heal(a, b)
        for region in sorted(self._services):
            await self.cluster.start_config(region)
        for pid in sorted(self._limited):
            _limit(pid, resource.RLIM_INFINITY)
        for slot in sorted(self._down):
            await self.cluster.restart(slot)
        self._cuts.clear()
        self._services.clear()
        self._limited.clear()
        self._down.clear()

    async def gather_reports(self, *slots: str) -> None:
        """Add up what replicas have counted: those that are about to die, or all that run in the end."""
        for slot in slots or [each for region in self.regions for each in await self._members(region)]:
            found = self.cluster.process(slot)
            if found is not None and found.alive:
                with contextlib.suppress(CallFailed, OSError):
                    told: dict[str, Any] = await asyncio.to_thread(call, found.http_port, "/status", timeout=1.0)
                    self.reports.update(told["reports"])
                    self.reports["disk_full"] += told["store"]["full"]

    async def _members(self, region: RegionId) -> list[str]:
        with contextlib.suppress(TidingsError):
            return [slot_of(node) for node in await self.cluster.chain(region)]
        return []

    # --- parts --------------------------------------------------------------------------------------------

    async def slot(self, region: RegionId, role: str) -> str:
        """The replica that has a role now."""
        chain = await self.cluster.chain(region)
        return slot_of(chain[{"head": 0, "middle": len(chain) // 2, "tail": -1}[role]]) if chain else f"{region}/p0"

    def role(self) -> str:
        """Any role of the chain."""
        return self.rng.choice(ROLES if self.replicas > 2 else ("head", "tail"))

    async def kill(self, slot: str, kind: str) -> None:
        """SIGKILL; it stays down until `revive`."""
        await self.gather_reports(slot)
        self.note(kind, slot)
        self._down.add(slot)
        if (pid := self.pid(slot)) is not None:
            self.killed.add(pid)
        await self.cluster.kill(slot)

    async def revive(self, slot: str) -> None:
        """Start it again."""
        self._down.discard(slot)
        await self.cluster.restart(slot)

    async def sleep(self, least: float, most: float) -> None:
        await asyncio.sleep(self.rng.uniform(least, most))

    def pid(self, slot: str) -> int | None:
        """Its process, if it runs."""
        found = self.cluster.process(slot)
        return found.pid if found is not None and found.alive else None

    def data(self, slot: str) -> Path:
        """Its directory."""
        return self.cluster.files.data(slot)


# --- episodes ---------------------------------------------------------------------------------------------------


async def kill_role(it: FaultInjector) -> None:
    """A head, middle or tail dies, and comes back with its disk before or after it is removed."""
    role = it.role()
    slot = await it.slot(it.rng.choice(it.regions), role)
    await it.kill(slot, f"{role} killed")
    await it.sleep(0.1, SILENCE + 1.0)
    await it.revive(slot)


async def kill_middle(it: FaultInjector) -> None:
    """A replica that is neither head nor tail dies until it is removed, where there is one."""
    slot = await it.slot(it.rng.choice(it.regions), "middle")
    await it.kill(slot, "middle killed" if it.replicas > 2 else "tail killed")
    await it.sleep(SILENCE + 0.3, SILENCE + 1.0)
    await it.revive(slot)


async def crash(it: FaultInjector) -> None:
    """A process dies by itself; the supervisor starts it again at once."""
    slot = await it.slot(it.rng.choice(it.regions), it.role())
    pid = it.pid(slot)
    if pid is not None:
        await it.gather_reports(slot)
        it.note("crash", slot)
        it.killed.add(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def pause(it: FaultInjector) -> None:
    """A replica is stopped, perhaps until it is removed from its chain, and goes on as if nothing had happened."""
    role = it.role()
    slot = await it.slot(it.rng.choice(it.regions), role)
    it.note(f"{role} paused", slot)
    seconds = it.rng.choice([0.6, SILENCE + 1.0, SILENCE + 1.5])
    await it.cluster.pause(slot, seconds)
    await asyncio.sleep(seconds)


async def pause_head(it: FaultInjector) -> None:
    """The head is stopped until it is removed; the next head takes the events that wait in its sockets."""
    slot = await it.slot(it.rng.choice(it.regions), "head")
    it.note("head paused", slot)
    await it.cluster.pause(slot, SILENCE + 1.2)
    await asyncio.sleep(SILENCE + 1.4)


async def strand(it: FaultInjector) -> None:
    """All successors of a head are stopped for a moment, and the head is killed: events that it alone had are gone.

    Mostly the successors are killed, too, with the messages in their sockets. In memory the region is lost then.
    """
    region = it.rng.choice(it.regions)
    head, *others = [slot_of(node) for node in await it.cluster.chain(region)]
    if not others:
        return
    it.note("head stranded", head)
    pids = [pid for other in others if (pid := it.pid(other)) is not None]
    wake = signal.SIGKILL if it.rng.random() < 0.7 else signal.SIGCONT
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(SILENCE - 0.4)
        await it.kill(head, "head killed")
    finally:
        it.killed.update(pids if wake == signal.SIGKILL else ())
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, wake)
    await it.sleep(SILENCE + 0.8, SILENCE + 1.5)
    await it.revive(head)


async def cut(it: FaultInjector) -> None:
    """A link between two regions carries nothing for a while."""
    if len(it.regions) < 2:
        await kill_role(it)
        return
    a, b = sorted(it.rng.sample(it.regions, 2))
    it.note("link cut", f"{a}-{b}")
    it._cuts.add((a, b))
    await it.cluster.cut(a, b)
    await it.sleep(1.0, 3.0)
    await it.cluster.heal(a, b)
    it._cuts.discard((a, b))


async def lose_service(it: FaultInjector) -> None:
    """The configuration service is stopped for a while; perhaps a replica dies meanwhile."""
    region = it.rng.choice(it.regions)
    it.note("configuration service gone", region)
    it._services.add(region)
    slot = await it.slot(region, it.role())
    await it.cluster.stop_config(region)
    if it.rng.random() < 0.5:
        await it.sleep(0.1, 0.5)
        await it.kill(slot, "killed without a service")
    await it.sleep(0.5, 1.5)
    await it.cluster.start_config(region)
    it._services.discard(region)
    if slot in it._down:
        await it.sleep(0.0, SILENCE)
        await it.revive(slot)


async def fill_disk(it: FaultInjector) -> None:
    """A replica's file may not grow for a while."""
    slot = await it.slot(it.rng.choice(it.regions), it.role())
    pid, file = it.pid(slot), it.data(slot) / "log/data.mdb"
    if pid is None or not it.durable:
        await kill_role(it)
        return
    it.note("disk full", slot)
    it._limited.add(pid)
    _limit(pid, file.stat().st_size)
    await it.sleep(1.0, 2.5)
    _limit(pid, resource.RLIM_INFINITY)
    it._limited.discard(pid)


async def old_disk(it: FaultInjector) -> None:
    """A replica comes back with an earlier copy of its directory, often while it is still a member of its chain."""
    if not it.durable:
        await kill_role(it)
        return
    role = it.role()
    slot = await it.slot(it.rng.choice(it.regions), role)
    old = it.cluster.files.root / "old"
    await it.kill(slot, "stopped for a copy of its disk")
    await asyncio.to_thread(shutil.copytree, it.data(slot), old)
    await it.revive(slot)
    await it.sleep(1.5, 2.5)
    await it.kill(slot, "back with an old disk")
    await asyncio.to_thread(shutil.rmtree, it.data(slot))
    await asyncio.to_thread(shutil.move, old, it.data(slot))
    await it.sleep(0.0, SILENCE + 0.6)
    await it.revive(slot)


async def restart_region(it: FaultInjector) -> None:
    """All replicas of a region die at once, and come back; in memory only where another region has the events."""
    region = it.rng.choice(it.regions)
    if not it.durable and len(it.regions) == 1:
        await kill_role(it)
        return
    slots = [slot_of(node) for node in await it.cluster.chain(region)]
    it.note("region killed", region)
    await asyncio.gather(*[it.kill(slot, "killed with its region") for slot in slots])
    it.rng.shuffle(slots)
    for slot in slots:
        await it.sleep(0.0, 0.3)
        await it.revive(slot)


async def exchange(it: FaultInjector) -> None:
    """A replica is added, and the head taken out, while events are published."""
    region = it.rng.choice(it.regions)
    it.note("replica added", region)
    await it.cluster.add(region)
    with contextlib.suppress(TidingsError):  # a slow one joins later
        await it.cluster.until_ready(4.0)
    head = await it.slot(region, "head")
    it.note("replica removed", head)
    await it.cluster.remove(head)


Episode = Callable[[FaultInjector], Awaitable[None]]
EPISODES: tuple[Episode, ...] = (
    kill_role,
    kill_middle,
    crash,
    pause,
    pause_head,
    strand,
    cut,
    lose_service,
    fill_disk,
    old_disk,
    restart_region,
    exchange,
)


def _limit(pid: int, size: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
