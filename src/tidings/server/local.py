"""A cluster of real processes for a program on this machine: tests, demos, benchmarks, fault campaigns.

    async with LocalCluster(regions=3, replicas=3, dir=folder, durability="memory") as cluster:
        url = cluster.url("r0")
        await cluster.kill("r0/head")
        await cluster.until_ready()

The supervisor is a process of its own, so that a busy program does not slow the configuration services. When this
program ends, for any reason, all processes stop: each holds the read end of a pipe whose write end is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

from tidings.core.errors import TidingsError
from tidings.core.ids import RegionId
from tidings.protocols.fabrics.family import FabricChoice
from tidings.server import cluster_config
from tidings.server.cluster_config import ClusterConfig, Durability, ProtocolConfig
from tidings.server.http_client import CallFailed, call
from tidings.server.paths import SUPERVISOR, ClusterPaths, Process

START = 90.0  # seconds a cluster has to come up; ours: it takes two or three, many more where it compiles first
STOP = 25.0  # seconds it has to go down; ours: more than the supervisor gives its replicas


class StartFailed(TidingsError):
    """The supervisor has ended, or has not answered."""


def launch(
    files: ClusterPaths,
    config: Path,
    *,
    lab: bool = False,
    attached: bool = False,
    journal: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a supervisor process. Attached, it stops when its stdin ends; otherwise it outlives this program."""
    options = {"root": str(files.root), "config": str(config), "lab": lab, "attached": attached}
    options["journal"] = str(journal.absolute()) if journal else ""
    with open(_output(files.make()), "wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "tidings.server.supervisor", msgspec.json.encode(options).decode()],
            stdin=subprocess.PIPE if attached else subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env=None if environment is None else dict(environment),
        )


def await_supervisor(files: ClusterPaths, process: subprocess.Popen[bytes], timeout: float = START) -> Process:
    """Wait until a supervisor that was just launched can be called; raises `StartFailed`."""
    end = time.monotonic() + timeout
    while True:
        found = files.process(SUPERVISOR)
        if found is not None and found.pid == process.pid:
            return found
        if process.poll() is not None:
            said = _output(files).read_text(errors="replace").strip().splitlines()
            raise StartFailed(said[-1] if said else f"the supervisor has ended with code {process.returncode}")
        if time.monotonic() > end:
            raise StartFailed(f"the supervisor has not answered in {timeout:g} s; see {files.log(SUPERVISOR)}")
        time.sleep(0.01)


def _output(files: ClusterPaths) -> Path:
    """The file for what a supervisor prints: nothing unless it cannot go on."""
    return files.logs / "supervisor.out"


def await_ready(found: Process, timeout: float = START) -> None:
    """Wait until a publish would work in every region."""
    call(found.http_port, "/ready", {"timeout": timeout}, token=found.token, timeout=timeout + 5)


class LocalCluster:
    """Regions r0, r1, ... of replicas p0, p1, ..., relays b0, ... and edges e0, ... under a directory (default: a
    temporary one).

    A replica may be named by its slot ("r0/p1") or its place ("r0/head", "r0/middle", "r0/tail").
    """

    def __init__(
        self,
        regions: int = 1,
        replicas: int = 3,
        dir: str | Path | None = None,
        *,
        durability: Durability = "memory",
        wan: Literal["us"] | None = None,
        lab: bool = True,
        port: int = 0,
        journal: str | Path | None = None,
        protocol: ProtocolConfig | None = None,
        fabric: FabricChoice | None = None,
        poll: float = 0.0,
        edges: int = 0,
        relays: int = 0,
        config: ClusterConfig | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if dir is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tidings-")
            dir = self._temporary.name
        self.files = ClusterPaths(dir)
        self._made = config or cluster_config.generate(
            regions,
            replicas,
            edges=edges,
            relays=relays,
            durability=durability,
            wan=wan,
            port=port,
            protocol=protocol,
            fabric=fabric,
            poll=poll,
        )
        self._lab = lab
        self._journal = None if journal is None else Path(journal)
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._found: Process | None = None

    # --- start and stop -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> LocalCluster:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    async def start(self) -> None:
        """Start the cluster (again); returns when a publish would work in every region."""
        self.files.make()
        if not self.files.config_file.exists():
            self.files.config_file.write_text(cluster_config.render(self._made))
        self._process = launch(
            self.files,
            self.files.config_file,
            lab=self._lab,
            attached=True,
            journal=self._journal,
            environment=self._environment,
        )
        try:
            self._found = await asyncio.to_thread(await_supervisor, self.files, self._process)
            await self.until_ready()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop everything, gracefully; kill what does not stop."""
        process, self._process, self._found = self._process, None, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.to_thread(process.wait, STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)

    # --- queries ------------------------------------------------------------------------------------------------

    @property
    def config(self) -> ClusterConfig:
        """The cluster file."""
        return cluster_config.load(self.files.config_file)

    @property
    def regions(self) -> list[RegionId]:
        """The regions' names."""
        return [region.name for region in self.config.regions]

    def addresses(self, region: RegionId) -> list[str]:
        """The addresses of a region's replicas in the cluster file."""
        return list(self.config.region(region).replicas)

    def url(self, region: RegionId) -> str:
        """What a client of this region connects to."""
        return "tidings://" + ",".join(self.addresses(region))

    def process(self, replica: str) -> Process | None:
        """What a replica's run file says: pid, id, HTTP port."""
        return self.files.process(replica)

    async def status(self) -> dict[str, Any]:
        """As `tidings status --json`."""
        found: dict[str, Any] = await self._call("/status")
        return found

    async def chain(self, region: RegionId) -> list[str]:
        """The names of a region's replicas, head first."""
        status = await self.status()
        replicas = next(each["replicas"] for each in status["regions"] if each["name"] == region)
        return [each["id"] for each in replicas if each["role"] in ("head", "middle", "tail")]

    async def until_ready(self, timeout: float = START) -> None:
        """Wait until every replica that is not held down is in its chain, and every region commits."""
        await self._call("/ready", {"timeout": timeout}, timeout + 5)

    # --- faults ---------------------------------------------------------------------------------------------------

    async def kill(self, replica: str) -> None:
        """SIGKILL; it stays down until `restart`."""
        await self._fault(kind="kill", replica=replica)

    async def restart(self, replica: str) -> None:
        """Start a replica again; one that runs is stopped first. It has to join its chain after that."""
        await self._fault(kind="restart", replica=replica)

    async def pause(self, replica: str, seconds: float) -> None:
        """SIGSTOP now, SIGCONT after so long; does not wait for that."""
        await self._fault(kind="pause", replica=replica, seconds=seconds)

    async def cut(self, a: RegionId, b: RegionId) -> None:
        """Cut the link between two regions."""
        await self._fault(kind="cut", a=a, b=b)

    async def heal(self, a: RegionId, b: RegionId) -> None:
        """End a cut."""
        await self._fault(kind="heal", a=a, b=b)

    async def impair(self, a: RegionId, b: RegionId, **changes: float) -> None:
        """Change latency, jitter, bandwidth or loss between two regions, in the processes that run now."""
        await self._fault(kind="impair", a=a, b=b, **changes)

    async def stop_config(self, region: RegionId) -> None:
        """Stop a region's configuration service."""
        await self._fault(kind="config", region=region, running=False)

    async def start_config(self, region: RegionId) -> None:
        """Start it again, with what it had decided."""
        await self._fault(kind="config", region=region, running=True)

    async def add(self, region: RegionId) -> str:
        """Add a replica; its name. It joins by itself (`until_ready`)."""
        found: dict[str, Any] = await self._call("/replicas/add", {"region": region})
        return str(found["id"])

    async def bootstrap(self, region: RegionId) -> None:
        """Start a region in memory again, empty, whose replicas all died."""
        await self._call("/regions/bootstrap", {"region": region})

    async def remove(self, replica: str) -> None:
        """Take a replica out of its chain, and stop it."""
        await self._call("/replicas/remove", {"replica": replica})

    async def kill_everything(self) -> None:
        """SIGKILL to every process at once, the supervisor too: a power cut, as far as processes go. Then `start`."""
        process, self._process, self._found = self._process, None, None
        assert process is not None and process.stdin is not None
        replicas = [found for slot in self._slots() if (found := self.files.process(slot)) and found.alive]
        process.kill()
        for found in replicas:
            with contextlib.suppress(ProcessLookupError):
                os.kill(found.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        process.stdin.close()
        while any(found.alive for found in replicas):
            await asyncio.sleep(0.01)

    def _slots(self) -> list[str]:
        files = [path.stem for path in self.files.run.glob("*.json")]
        return [stem for stem in files if stem != SUPERVISOR]

    async def _fault(self, **fault: Any) -> None:
        await self._call("/fault", fault)

    async def _call(self, path: str, body: Any = None, timeout: float = START) -> Any:
        if self._found is None:
            raise CallFailed("the cluster does not run")
        return await asyncio.to_thread(
            call, self._found.http_port, path, body, token=self._found.token, timeout=timeout
        )
