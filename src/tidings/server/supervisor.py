"""The supervisor: a whole cluster on one machine, as processes.

It holds the configuration services, one per region, and keeps the replicas running: one that dies is started again,
after a pause that doubles while it keeps dying. Replicas are forked from the nursery (nursery.py). It can die itself:
data flows on, and the next supervisor in the same directory finds the replicas by their run files and goes on.

What people and programs ask of it comes by HTTP on loopback (control.py); everything is in the run file
DIR/run/supervisor.json, and a lock beside it keeps a second supervisor out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from tidings.core.errors import BadInput, TidingsError
from tidings.core.ids import RegionId
from tidings.net.loop import run
from tidings.net.names import region_of, seed_of, slot_of
from tidings.net.shape import Wan
from tidings.protocols.membership import Membership
from tidings.server import layout, logs, status
from tidings.server import plan as plans
from tidings.server.asking import Asker, NoAnswer
from tidings.server.configuration import Conflict, EmbeddedConfiguration
from tidings.server.http import CallFailed, HttpServer, call_async
from tidings.server.layout import SUPERVISOR, Layout, Process, started_at
from tidings.server.plan import Plan
from tidings.server.replica import Spec
from tidings.server.roster import ROSTER, Roster

PAUSE = 0.1  # seconds before the first restart; ours, because most deaths are single
PAUSE_MAX = 10.0  # ours: a full disk or a taken port is looked at that often
STEADY = 10.0  # seconds after which a replica counts as healthy, and the pause is the first again; ours
LOOK = 0.05  # seconds between looks at processes that are not children, and at conditions; ours
GRACE = 10.0  # seconds a replica has to stop by itself; ours: a sync of all it may have queued, many times over
PROBE = "_ready"
"""The publisher under which readiness is tried."""

log = structlog.get_logger("tidings.supervisor")


class NotReady(TidingsError):
    """The cluster has not come up in time; the text says what is missing."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor process is told."""

    root: str
    plan: str
    lab: bool = False  # faults may be injected
    attached: bool = False  # end with whoever started it (stdin ends), and take everything along
    journal: str = ""
    console: bool = False


class Child:
    """A replica, as the supervisor sees it."""

    def __init__(self, slot: str, address: str) -> None:
        self.slot = slot
        self.region: RegionId = region_of(slot)
        self.address = address
        self.process: Process | None = None  # with its start time: a number alone may be another process's by now
        self.hatched = False  # by this supervisor, not found running
        self.since = 0.0  # when it was last started
        self.failures = 0
        self.held = False  # down on purpose: not started again by itself
        self.paused = False
        self.ended = asyncio.Event()  # the nursery has said that the process has ended
        self.telling: asyncio.Task[None] | None = None  # of what broke or healed while it started

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive


class Nurse:
    """The supervisor's end of the nursery."""

    def __init__(self, files: Layout, ended: Callable[[int, int], None]) -> None:
        self._files = files
        self._ended = ended
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._hatching: dict[str, asyncio.Future[Process]] = {}
        self._ready = asyncio.Event()  # or gone
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the nursery; it is ready a little later."""
        mine, theirs = socket.socketpair()
        with theirs, open(self._files.log(SUPERVISOR), "ab") as out:
            command = [sys.executable, "-m", "tidings.server.nursery", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, pass_fds=[theirs.fileno()], start_new_session=True
            )
        reader, self._writer = await asyncio.open_connection(sock=mine)
        self._ready.clear()
        self._reading = asyncio.ensure_future(self._read(reader))

    async def hatch(self, spec: Spec) -> Process:
        """Start a replica."""
        async with self._starting:
            ended = self._process is None or self._process.poll() is not None
            if ended or self._reading is None or self._reading.done():
                await self._let_go()
                await self.start()
        await self._ready.wait()
        assert self._writer is not None and self._reading is not None
        if self._reading.done():
            raise OSError(f"the nursery has ended; see {self._files.log(SUPERVISOR)}")
        hatched: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        self._hatching[spec.slot] = hatched
        self._writer.write(msgspec.json.encode(spec) + b"\n")
        return await hatched

    async def stop(self) -> None:
        """End the nursery; replicas go on. What it has still been told to start it reports first."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write_eof()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._let_go()

    async def _let_go(self) -> None:
        """Make sure that there is no nursery: a new one may follow."""
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                said: dict[str, Any] = msgspec.json.decode(line)
                if "ready" in said:
                    self._ready.set()
                elif "slot" in said:
                    self._hatched(said["slot"], Process(pid=said["pid"], started=said["started"]))
                else:
                    self._ended(said["pid"], said["code"])
        except Exception as error:  # whatever it is, the next replica gets a nursery that can be understood
            log.warning("the nursery is gone; it is started again with the next replica", error=repr(error))
        finally:
            self._ready.set()
            for waiting in self._hatching.values():
                if not waiting.done():
                    waiting.set_exception(OSError("the nursery has ended; see the supervisor's log"))
            self._hatching.clear()

    def _hatched(self, slot: str, process: Process) -> None:
        waiting = self._hatching.pop(slot, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(process)
        else:  # whoever wanted it has been cancelled: nobody would ever end it
            log.info("a replica has started that nobody waits for: it is ended", slot=slot, pid=process.pid)
            _signal(process, signal.SIGTERM)


class Supervisor:
    """One cluster. `start`, then `run` until `stopping` is set, then `stop`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.plan: Plan = plans.load(options.plan)
        self.files = Layout(options.root).make()
        self.token = secrets.token_hex(16)
        self.services: dict[RegionId, EmbeddedConfiguration] = {}
        self.unwanted: set[RegionId] = set()  # whose services are down on purpose
        self.children: dict[str, Child] = {}
        self.cuts: set[tuple[RegionId, RegionId]] = set()
        self.impaired: dict[tuple[RegionId, RegionId], dict[str, Any]] = {}  # what was changed of a link
        self.stopping = asyncio.Event()
        self.roster = layout.read(self._roster_file, Roster) or Roster()
        self._nurse = Nurse(self.files, self._ended)
        self._asker = Asker("_supervisor", cluster=self.plan.cluster.name)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._http: HttpServer | None = None
        self._lock: int | None = None
        self._started = False
        self._changing: defaultdict[RegionId, asyncio.Lock] = defaultdict(asyncio.Lock)  # who starts or stops a service
        self._founding: set[str] = set()

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything; returns before the replicas are there (`ready` waits for them)."""
        from tidings.server.control import Control  # noqa: PLC0415 - it needs this module

        self._lock = self.files.lock()
        for slot, address in self.roster.apply(self.plan.slots()).items():
            self.children[slot] = Child(slot, address)
        running = self._adopt()
        self.services = {
            region.name: EmbeddedConfiguration(self.plan, region.name, self.files.data(f"{region.name}/config"))
            for region in self.plan.regions
        }
        if not self.plan.durable and not running:
            self._found_anew()
        await self._nurse.start()
        for service in self.services.values():
            await service.start()  # while the nursery warms up
        await self._asker.__aenter__()
        self._http = HttpServer(Control(self).application)
        self._http.start()
        pid = os.getpid()
        me = Process(pid=pid, started=started_at(pid), admin=self._http.port, token=self.token)
        layout.write(self.files.run_file(SUPERVISOR), me)
        for child in self.children.values():
            self._watch(child)
        for service in self.services.values():
            self._tasks[f"{service.region}/config"] = asyncio.ensure_future(self._keep_service(service))
        if not self.plan.durable and len(self.plan.regions) > 1:
            self._tasks["memory"] = asyncio.ensure_future(self._keep_regions())
        self._started = True
        log.info("supervisor", pid=pid, replicas=sorted(self.children), adopted=sorted(running))

    def _adopt(self) -> list[str]:
        """Replicas that an earlier supervisor has left running."""
        return [child.slot for child in self.children.values() if self._find(child)]

    def _find(self, child: Child) -> bool:
        """Adopt a replica that runs already, if there is one."""
        found = self.files.process(child.slot)
        if found is None or not found.alive:
            return False
        child.process, child.hatched = found, False
        child.since = asyncio.get_running_loop().time()
        return True

    def _found_anew(self) -> None:
        """Memory, and nobody runs: what there was is gone, so every region begins again."""
        for service in self.services.values():
            service.found_anew()
        self._founding = set(self.plan.slots()) & set(self.children)
        for slot in self.children:
            (self.files.data(slot) / "life.json").unlink(missing_ok=True)

    async def run(self) -> None:
        """Until somebody wants it to stop."""
        await self.stopping.wait()

    async def stop(self) -> None:
        """Stop the replicas, gracefully first, then the services. One that never had the lock touches nothing.

        One that could not start ends only what it has begun: replicas that it found go on as they did without it.
        """
        if self._lock is None:
            return
        telling = [child.telling for child in self.children.values() if child.telling is not None]
        tasks = [*self._tasks.values(), *telling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        mine = [child for child in self.children.values() if self._started or child.hatched]
        await asyncio.gather(*[self._end(child) for child in mine])
        await self._nurse.stop()
        for service in self.services.values():
            await service.stop()
        await self._asker.__aexit__(None, None, None)
        if self._http is not None:
            await self._http.stop()
        self.files.run_file(SUPERVISOR).unlink(missing_ok=True)
        os.close(self._lock)
        log.info("stopped")

    @property
    def _roster_file(self) -> Path:
        return self.files.root / ROSTER

    # --- keeping replicas running -----------------------------------------------------------------------------

    def _watch(self, child: Child) -> None:
        self._tasks[child.slot] = asyncio.ensure_future(self._keep(child))

    async def _keep(self, child: Child) -> None:
        """Start a replica whenever it does not run, unless it is held."""
        loop = asyncio.get_running_loop()
        while True:
            if child.process is not None:
                await self._until_ended(child)
                steady = child.held or loop.time() - child.since > STEADY
                child.failures = 0 if steady else child.failures + 1
                child.process = None
            if child.failures:
                await asyncio.sleep(min(PAUSE_MAX, PAUSE * 2.0 ** min(child.failures - 1, 10)))
            while child.held:
                await asyncio.sleep(LOOK / 5)
            try:
                if self._find(child):  # an earlier supervisor had started it, and it has said so only now
                    log.info("a replica was found running", slot=child.slot, pid=child.pid)
                else:
                    await self._start(child)
            except (TidingsError, OSError) as error:
                child.failures += 1
                log.error("a replica cannot be started", slot=child.slot, error=str(error))

    async def _keep_service(self, service: EmbeddedConfiguration) -> None:
        """Start a configuration service again whose machine or disk has failed, until it runs."""
        region, pause = service.region, PAUSE
        while True:
            await asyncio.sleep(pause)
            async with self._changing[region]:
                if region in self.unwanted or (service.running and not service.host.failed.done()):
                    pause = PAUSE
                    continue
                try:
                    if service.running:
                        error = service.host.failed.exception()
                        log.error("a configuration service has failed", region=region, error=str(error))
                        await service.stop()
                    await service.start()
                except (TidingsError, OSError) as error:
                    pause = min(PAUSE_MAX, 2 * pause)
                    log.error("a configuration service cannot be started", region=region, error=str(error))

    async def _want_service(self, region: RegionId, wanted: bool) -> None:
        """Start or stop a service on purpose."""
        service = self.services[region]
        (self.unwanted.discard if wanted else self.unwanted.add)(region)
        async with self._changing[region]:
            if wanted and not service.running:
                await service.start()
            elif not wanted:
                await service.stop()

    async def _keep_regions(self) -> None:
        """Found a region anew that has lost its memory: it goes on above what others hold (protocols/recovery.py)."""
        pause = PAUSE
        while True:
            await asyncio.sleep(pause)
            for region in self.lost():
                try:
                    await self._found_region(region)
                    pause = PAUSE
                except (TidingsError, OSError) as error:  # its service is seen to, then it counts as lost again
                    pause = min(PAUSE_MAX, 2 * pause)
                    log.error("a region cannot be founded anew", region=region, error=str(error))

    async def _found_region(self, region: RegionId) -> None:
        mine = [child for child in self.children.values() if child.region == region]
        service = self.services[region]
        async with self._changing[region]:
            if not service.running:  # it was stopped meanwhile
                return
            log.warning("all replicas of a region have lost their memory: it is founded anew", region=region)
            await service.stop()
            await asyncio.to_thread(service.found_anew)
            await asyncio.gather(*[self._make_founder(child) for child in mine])
            await service.start()

    async def _make_founder(self, child: Child) -> None:
        """Let a replica start under its first name; one that runs has come too late to have anything."""
        loop = asyncio.get_running_loop()
        end = loop.time() + GRACE
        while child.pid is None and not child.held and loop.time() < end:
            await asyncio.sleep(LOOK)  # it is being started, as another incarnation
        if child.slot in self.plan.slots():
            self._founding.add(child.slot)
        await self._end(child)

    async def _start(self, child: Child) -> None:
        spec = Spec(
            slot=child.slot,
            root=str(self.files.root),
            plan=str(self.options.plan),
            address=child.address,
            token=self.token,
            lab=self.options.lab,
            cuts=self._cut_links(),
            impaired=self._impaired_links(),
            founding=child.slot in self._founding,
            journal=self.options.journal,
            attached=self.options.attached,
        )
        self._founding.discard(child.slot)
        child.ended.clear()
        child.paused = False
        child.process = await self._nurse.hatch(spec)
        child.hatched = True
        child.since = asyncio.get_running_loop().time()
        if self.options.lab:
            child.telling = asyncio.ensure_future(self._tell_when_up(child, spec))

    def _cut_links(self) -> tuple[tuple[RegionId, RegionId], ...]:
        return tuple(sorted(self.cuts))

    def _impaired_links(self) -> tuple[tuple[RegionId, RegionId, dict[str, Any]], ...]:
        return tuple([(a, b, changes) for (a, b), changes in sorted(self.impaired.items())])

    async def _until_ended(self, child: Child) -> None:
        """Wait for the nursery's word, and look oneself: it may be gone, or never have known."""
        while child.alive:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.ended.wait(), 10 * LOOK)

    def _ended(self, pid: int, code: int) -> None:
        for child in self.children.values():
            if child.pid == pid:
                if not child.held and not self.stopping.is_set():
                    log.warning("a replica has ended", slot=child.slot, pid=pid, code=code)
                child.ended.set()

    async def _end(self, child: Child) -> None:
        """Stop a process: gently, then for good."""
        process = child.process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGCONT):
            _signal(process, number)
        loop = asyncio.get_running_loop()
        end = loop.time() + GRACE
        while process.alive:
            if loop.time() > end:
                log.warning("a replica does not stop: killed", slot=child.slot, pid=process.pid)
                _signal(process, signal.SIGKILL)
                end = loop.time() + GRACE
            await asyncio.sleep(LOOK / 2)

    def child(self, name: str) -> Child:
        """The replica of a slot, or of any of its incarnations; also REGION/head, middle or tail. `BadInput` else."""
        region, _, place = name.partition("/")
        if place in ("head", "middle", "tail") and region in self.services:
            replicas = self.services[region].current.replicas
            name = replicas[{"head": 0, "middle": len(replicas) // 2, "tail": -1}[place]]
        slot = slot_of(name)
        if slot not in self.children:
            raise BadInput(f"replica {name!r} is unknown: there are {', '.join(sorted(self.children))}")
        return self.children[slot]

    # --- how it stands -----------------------------------------------------------------------------------------

    @property
    def slots(self) -> dict[str, str]:
        """Where the replicas are."""
        return {slot: child.address for slot, child in self.children.items()}

    async def status(self) -> dict[str, Any]:
        """As `tidings status` shows it."""
        running = {slot: child.address for slot, child in self.children.items() if child.pid and not child.paused}
        descriptions = await status.describe_all(self._asker, running)
        pids = {slot: child.pid for slot, child in self.children.items() if child.pid is not None}
        found = status.summarize(self.plan, self.slots, descriptions, pids)
        found["cuts"] = [list(pair) for pair in sorted(self.cuts)]
        found["lost"] = self.lost()
        found["configuration"] = {name: service.running for name, service in self.services.items()}
        return found

    def missing(self) -> list[str]:
        """Replicas that should be in their chain and are not."""
        out = []
        for slot, child in self.children.items():
            service = self.services[child.region]
            if child.held or not service.running:
                continue
            found, current = self.files.process(slot), service.current
            there = found is not None and found.pid == child.pid and found.id in current.replicas
            if not there or current.epoch <= service.founded:
                out.append(slot)
        return out

    def lost(self) -> list[RegionId]:
        """Regions in memory none of whose members runs: nobody has what they had, so they cannot go on."""
        if self.plan.durable:
            return []
        found = [self.files.process(slot) for slot in self.children]
        running = {process.id for process in found if process is not None and process.alive}
        services = [service for service in self.services.values() if service.running]
        gone = [service for service in services if running.isdisjoint(service.current.replicas)]
        return [service.region for service in gone if service.current.epoch > service.founded]

    async def ready(self, timeout: float) -> None:
        """Wait until every replica is in its chain and every region commits; raises `NotReady`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while missing := self.missing():
            if loop.time() > end:
                what = f"not in their chains after {timeout:g} s: {', '.join(missing)}; see {self.files.logs}"
                if lost := self.lost():
                    what = f"{', '.join(lost)} lost all memory: `tidings down`, then `tidings up`, begins anew"
                raise NotReady(what)
            await asyncio.sleep(LOOK / 2)
        left = max(end - loop.time(), 1.0)
        try:
            await asyncio.gather(*[self._probe(name, left) for name in self.services])
        except NoAnswer as error:
            raise NotReady(f"{error}; see {self.files.logs}") from None

    async def _probe(self, region: RegionId, timeout: float) -> None:
        seeds = [seed_of(child.address) for child in self.children.values() if child.region == region]
        await self._asker.open_session(seeds, PROBE, timeout)

    # --- changing the cluster -------------------------------------------------------------------------------------

    async def add(self, region: RegionId) -> dict[str, Any]:
        """A new, empty replica; it joins its chain by itself."""
        self.plan.region(region)
        number = 0
        while (slot := f"{region}/p{number}") in self.children or slot in self.roster.removed:
            number += 1
        child = Child(slot, f"{plans.HOST}:{plans.free_port()}")
        self.roster.added[slot] = child.address
        await asyncio.to_thread(layout.write, self._roster_file, self.roster)
        self.children[slot] = child
        self._watch(child)
        log.info("replica added", slot=slot, address=child.address)
        return {"id": slot, "address": child.address}

    async def remove(self, name: str) -> dict[str, Any]:
        """Take a replica out of its chain and stop it for good; the slot is not used again."""
        child = self.child(name)
        await self._leave(child)
        self._tasks.pop(child.slot).cancel()
        await self._end(child)
        del self.children[child.slot]
        self.roster.added.pop(child.slot, None)
        self.roster.removed.append(child.slot)
        await asyncio.to_thread(layout.write, self._roster_file, self.roster)
        log.info("replica removed", slot=child.slot)
        return {"id": child.slot}

    async def _leave(self, child: Child) -> None:
        service = self.services[child.region]
        for _ in range(20):
            current: Membership = service.current
            mine = [node for node in (*current.replicas, current.joining or "") if slot_of(node) == child.slot]
            if not mine:
                return
            if set(mine) == set(current.replicas):
                raise BadInput(f"{child.slot} is the last replica of {child.region}: add another one first")
            with contextlib.suppress(Conflict):
                await service.change(current.epoch, mine[0])
        raise Conflict(f"{child.slot} could not be taken out: {child.region} keeps changing; try again")

    # --- faults ------------------------------------------------------------------------------------------------------

    async def fault(self, request: dict[str, Any]) -> dict[str, Any]:
        """Break something, or mend it."""
        if not self.options.lab:
            raise BadInput("faults are for clusters started with `tidings up --lab`")
        match request:
            case {"kind": "cut", "a": str(a), "b": str(b)}:
                self.cuts.add(self._link(a, b))
                await self._spread({"cuts": sorted(self.cuts)})
            case {"kind": "heal", "a": str(a), "b": str(b)}:
                self.cuts.discard(self._link(a, b))
                await self._spread({"cuts": sorted(self.cuts)})
            case {"kind": "impair", "a": str(a), "b": str(b), **rest}:
                link = self._link(a, b)
                Wan().impair(a, b, **rest)  # raises what is wrong with it, before anybody is told
                self.impaired[link] = self.impaired.get(link, {}) | rest
                await self._spread({"impair": link, **rest})
            case {"kind": "kill", "replica": str(name)}:
                await self.kill(self.child(name))
            case {"kind": "restart", "replica": str(name)}:
                await self.restart(self.child(name))
            case {"kind": "pause", "replica": str(name), "seconds": float() | int() as seconds}:
                self.pause(self.child(name), seconds)
            case {"kind": "config", "region": str(name), "running": bool(running)}:
                self.plan.region(name)
                await self._want_service(name, running)
            case _:
                raise BadInput(f"{request} is no fault: there are cut, heal, impair, kill, restart, pause, config")
        log.info("fault", **request)
        return {"done": True}

    def _link(self, a: str, b: str) -> tuple[RegionId, RegionId]:
        if self.plan.region(a) == self.plan.region(b):
            raise BadInput(f"{a}-{b} is no link: it takes two regions")
        return (a, b) if a < b else (b, a)

    async def _spread(self, fault: dict[str, Any]) -> None:
        """Tell every replica; who sleeps is told when it wakes, who starts when it has started."""
        await asyncio.gather(*[self._tell_fault(child, fault) for child in self.children.values()])

    async def _tell_fault(self, child: Child, fault: dict[str, Any]) -> None:
        found = self.files.process(child.slot)
        if found is None or not found.alive or child.paused:
            return
        try:
            await call_async(found.admin, "/fault", fault, token=found.token, timeout=5.0)
        except CallFailed as error:
            log.warning("a replica was not told of a fault", slot=child.slot, error=str(error))

    async def _tell_faults(self, child: Child) -> None:
        """Tell one replica of everything that is broken now."""
        await self._tell_fault(child, {"cuts": sorted(self.cuts)})
        for link, changes in sorted(self.impaired.items()):
            await self._tell_fault(child, {"impair": link, **changes})

    async def _tell_when_up(self, child: Child, spec: Spec) -> None:
        """What has broken or healed between a replica's start and its first word it must be told then."""
        process = child.process
        while process is not None and child.process is process and process.alive:
            found = self.files.process(child.slot)
            if found is not None and found.pid == process.pid:
                if (spec.cuts, spec.impaired) != (self._cut_links(), self._impaired_links()):
                    await self._tell_faults(child)
                return
            await asyncio.sleep(LOOK)

    async def kill(self, child: Child) -> None:
        """SIGKILL; it stays down until `restart`."""
        child.held = True
        if child.process is not None:
            _signal(child.process, signal.SIGKILL)
        while child.pid is not None:
            await asyncio.sleep(LOOK / 5)

    async def restart(self, child: Child) -> None:
        """Start a replica that was killed; one that runs is stopped first."""
        child.held = True
        await self._end(child)
        while child.pid is not None:
            await asyncio.sleep(LOOK / 5)
        child.held = False
        while child.pid is None:
            await asyncio.sleep(LOOK / 5)

    def pause(self, child: Child, seconds: float) -> None:
        """SIGSTOP for a while."""
        process = child.process
        if process is None or not process.alive:
            raise BadInput(f"{child.slot} does not run")
        child.paused = True
        _signal(process, signal.SIGSTOP)

        def resume() -> None:
            if child.process is process:
                _signal(process, signal.SIGCONT)
                child.paused = False
                self._waking = asyncio.ensure_future(self._tell_faults(child))

        asyncio.get_running_loop().call_later(seconds, resume)


def _signal(process: Process, number: signal.Signals) -> None:
    """Signal a process, unless it has ended: its number may be another one's by now."""
    if process.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


# --- the process ----------------------------------------------------------------------------------------------------


async def serve(options: Options, started: Callable[[Supervisor], Any] | None = None) -> int:
    """Run a supervisor until a signal, a call, or the end of whoever started it; ``started`` runs beside it."""
    supervisor = Supervisor(options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stopping.set)
    if options.attached:
        _follow_parent(loop, supervisor)
    beside: asyncio.Future[Any] | None = None
    try:
        await supervisor.start()
        if started is not None:
            beside = asyncio.ensure_future(started(supervisor))
        await supervisor.run()
    finally:
        if beside is not None:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
        await supervisor.stop()
    return 0


def _follow_parent(loop: asyncio.AbstractEventLoop, supervisor: Supervisor) -> None:
    def readable() -> None:
        if not os.read(0, 1024):
            loop.remove_reader(0)
            supervisor.stopping.set()

    loop.add_reader(0, readable)


def main() -> None:
    """`python -m tidings.server.supervisor OPTIONS-AS-JSON`."""
    options = msgspec.json.decode(sys.argv[1], type=Options)
    files = Layout(options.root).make()
    logs.configure(files.log(SUPERVISOR), node=SUPERVISOR)
    try:
        sys.exit(run(serve(options)))
    except (TidingsError, OSError) as error:
        log.critical("the supervisor cannot go on", error=str(error))
        print(str(error), file=sys.stderr)  # whoever has started it waits for this line
        sys.exit(1)


if __name__ == "__main__":
    main()
