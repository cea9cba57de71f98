"""The supervisor: a whole cluster on one machine, as processes.

It runs the configuration services, one per region, and keeps replicas, relays and edges running. Its parts:

    children.py                  the processes: start, adopt, restart, stop
    prefork_client.py            the process that forks them
    configuration_services.py    the configuration services
    memory_regions.py            regions in memory that lost all replicas
    chain_changes.py             replicas added and removed
    lab_faults.py                faults that are injected on purpose
    supervisor_http.py           what people and programs ask of it, on loopback

If the supervisor dies, data flows on: the next supervisor in the same directory adopts the replicas by their run files.
Its own run file is DIR/run/supervisor.json; a lock beside it keeps a second supervisor out.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from tidings.client.url import make_url
from tidings.core.errors import TidingsError
from tidings.core.ids import RegionId
from tidings.net.loop import run
from tidings.net.names import seed_of
from tidings.server import cluster_config, logs, paths, status
from tidings.server.chain_changes import ChainChanges
from tidings.server.children import LOOK, Child, Children
from tidings.server.cluster_config import ClusterConfig
from tidings.server.configuration_services import ConfigurationServices
from tidings.server.http import HttpServer
from tidings.server.lab_faults import LabFaults
from tidings.server.memory_regions import MemoryRegions
from tidings.server.node_process import Spec
from tidings.server.paths import SUPERVISOR, ClusterPaths, Process, started_at
from tidings.server.rpc import NoAnswer, RpcClient

PROBE = "_ready"
"""The publisher under which readiness is tried."""

log = structlog.get_logger("tidings.supervisor")


class NotReady(TidingsError):
    """The cluster has not come up in time; the text says what is missing."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor process is told."""

    root: str
    config: str  # the cluster file
    lab: bool = False  # faults may be injected
    attached: bool = False  # when stdin ends, stop everything: the program that started the supervisor is gone
    journal: str = ""
    console: bool = False


class Supervisor:
    """One cluster. `start`, then `run` until `stopping` is set, then `stop`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.config: ClusterConfig = cluster_config.load(options.config)
        self.files = ClusterPaths(options.root).make()
        self.token = secrets.token_hex(16)
        self.stopping = asyncio.Event()
        self.services = ConfigurationServices(self.config, self.files)
        self.children = Children(self.files, self._spec, self._child_started)
        self.regions = MemoryRegions(self.config, self.files, self.children, self.services)
        self.faults = LabFaults(self.config, self.files, self.children, self.services, self.child, allowed=options.lab)
        self.changes = ChainChanges(self.config, self.files, self.children, self.services.by_region)
        self._rpc = RpcClient("_supervisor", cluster=self.config.cluster.name)
        self._http: HttpServer | None = None
        self._lock: int | None = None
        self._started = False

    # --- start and stop -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything; returns before the replicas are there (`ready` waits for them)."""
        from tidings.server.supervisor_http import SupervisorHttp  # noqa: PLC0415 - it needs this module

        self._lock = self.files.lock()
        for slot, address in self.changes.slots().items():
            self.children.add(slot, address)
        for place in self.config.broker_places().values():
            self.children.add(place.slot, place.address, place.kind)
        adopted = [child for child in self.children if self.children.adopt(child)]
        if not any([child.kind == "replica" for child in adopted]):
            self.regions.bootstrap_all()
        await self.children.prefork.start()
        await self.services.start()  # while the prefork process imports
        await self._rpc.__aenter__()
        self._http = HttpServer(SupervisorHttp(self).application)
        self._http.start()
        pid = os.getpid()
        url = make_url(self.changes.slots().values())
        me = Process(pid=pid, started=started_at(pid), http_port=self._http.port, token=self.token, url=url)
        paths.write(self.files.run_file(SUPERVISOR), me)
        for child in self.children:
            self.children.keep(child)
        self.services.keep()
        self.regions.keep()
        self._started = True
        names = sorted([child.slot for child in adopted])
        log.info("supervisor started", pid=pid, processes=sorted(self.children.by_slot), adopted=names)

    async def run(self) -> None:
        """Wait until the supervisor is to stop."""
        await self.stopping.wait()

    async def stop(self) -> None:
        """Stop the processes, gracefully first, then the services. Without the lock it touches nothing.

        A supervisor that could not start stops only what it started: what it adopted goes on.
        """
        if self._lock is None:
            return
        await asyncio.gather(
            self.children.release(), self.services.release(), self.regions.release(), self.faults.release()
        )
        await self.children.stop_all(adopted=self._started)
        await self.services.stop()
        await self._rpc.__aexit__(None, None, None)
        if self._http is not None:
            await self._http.stop()
        self.files.run_file(SUPERVISOR).unlink(missing_ok=True)
        os.close(self._lock)
        log.info("supervisor stopped")

    def _spec(self, child: Child) -> Spec:
        return Spec(
            slot=child.slot,
            kind=child.kind,
            root=str(self.files.root),
            config=str(self.options.config),
            address=child.address,
            token=self.token,
            lab=self.options.lab,
            cuts=self.faults.cuts,
            impaired=self.faults.impaired,
            bootstrapping=self.regions.is_initial(child),
            journal=self.options.journal,
            attached=self.options.attached,
        )

    def _child_started(self, child: Child, spec: Spec) -> None:
        self.regions.started(child)
        if self.options.lab:
            self.faults.started(child, spec)

    # --- queries --------------------------------------------------------------------------------------------------

    def child(self, name: str) -> Child:
        """The process of a slot, or of any of its incarnations; also REGION/head, middle or tail. `BadInput` else."""
        region, _, place = name.partition("/")
        if place in ("head", "middle", "tail") and region in self.services.by_region:
            replicas = self.services.by_region[region].current.replicas
            name = replicas[{"head": 0, "middle": len(replicas) // 2, "tail": -1}[place]]
        return self.children.get(name)

    async def status(self) -> dict[str, Any]:
        """As `tidings status` shows it."""
        running = [child for child in self.children if child.pid and not child.paused]
        replicas = {child.slot: child.address for child in running if child.kind == "replica"}
        descriptions = await status.describe_all(self._rpc, replicas)
        places = self.config.broker_places()
        there = {child.slot: places[child.slot] for child in running if child.kind != "replica"}
        told = await status.ask_brokers(self.files, there)
        pids = {child.slot: child.pid for child in self.children if child.pid is not None}
        slots = {child.slot: child.address for child in self.children.replicas}
        found = status.summarize(self.config, slots, descriptions, pids, places, told)
        found["cuts"] = [list(pair) for pair in self.faults.cuts]
        found["lost"] = self.regions.lost()
        found["configuration"] = {name: service.running for name, service in self.services.by_region.items()}
        return found

    def missing(self) -> list[str]:
        """Processes that should run and do not, and replicas that should be in their chain and are not."""
        return [child.slot for child in self.children if not child.held and self._is_missing(child)]

    def _is_missing(self, child: Child) -> bool:
        found, service = self.files.process(child.slot), self.services.by_region[child.region]
        there = found is not None and found.pid == child.pid
        if child.kind != "replica":
            return not there
        if not service.running:
            return False
        current = service.current
        in_chain = there and found is not None and found.id in current.replicas
        return not in_chain or current.epoch <= service.bootstrap_epoch

    async def ready(self, timeout: float) -> None:
        """Wait until every process runs, every replica is in its chain, every region commits; raises `NotReady`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while missing := self.missing():
            if advice := self.regions.advice():
                raise NotReady(advice)
            if loop.time() > end:
                raise NotReady(f"not there after {timeout:g} s: {', '.join(missing)}; see {self.files.logs}")
            await asyncio.sleep(LOOK / 2)
        left = max(end - loop.time(), 1.0)
        try:
            await asyncio.gather(*[self._probe(name, left) for name in self.services.by_region])
        except NoAnswer as error:
            raise NotReady(f"{error}; see {self.files.logs}") from None

    async def _probe(self, region: RegionId, timeout: float) -> None:
        seeds = [seed_of(child.address) for child in self.children.of(region)]
        await self._rpc.open_session(seeds, PROBE, timeout)


# --- the process ----------------------------------------------------------------------------------------------------


async def serve(options: Options, started: Callable[[Supervisor], Any] | None = None) -> int:
    """Run a supervisor until a signal, a call, or the end of the parent of an attached one; ``started`` runs beside."""
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
    files = ClusterPaths(options.root).make()
    logs.configure(files.log(SUPERVISOR), node=SUPERVISOR)
    try:
        sys.exit(run(serve(options)))
    except (TidingsError, OSError) as error:
        log.critical("the supervisor cannot go on", error=str(error))
        print(str(error), file=sys.stderr)  # the program that started it shows this line
        sys.exit(1)


if __name__ == "__main__":
    main()
