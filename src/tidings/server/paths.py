"""Where a cluster's files are, and how the small ones are written: completely or not at all.

The files of a cluster on this machine, below its directory:

    cluster.toml
    data/r0/p0/log          the store of a replica; `life.json` beside it says which incarnation wrote it
    data/r0/config/log      the store of a configuration service
    logs/r0-p0.log          one JSON object per line
    run/supervisor.json     of each process that runs here: pid, id, HTTP port, token
    run/r0-p0.json
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from pathlib import Path
from typing import TypeVar

import msgspec

from tidings.core.errors import BadInput, TidingsError

T = TypeVar("T")
SUPERVISOR = "supervisor"


class DirectoryBusy(TidingsError):
    """Another process works in this directory."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A run file: a process that runs, or ran when the file was written. ``started`` tells it from a later one."""

    pid: int
    started: int
    id: str = ""  # of a replica
    http_port: int = 0  # port of its HTTP
    token: str = ""  # calls that change something must carry it
    url: str = ""  # of a supervisor: the URL that lists all replicas

    @property
    def alive(self) -> bool:
        """Whether this same process still runs."""
        return is_running(self.pid) and started_at(self.pid) == self.started


class ClusterPaths:
    """The files of a cluster under one directory."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.config_file = self.root / "cluster.toml"
        self.run = self.root / "run"
        self.logs = self.root / "logs"

    def make(self) -> ClusterPaths:
        """Create the directories; returns itself."""
        self.run.mkdir(parents=True, exist_ok=True)
        self.run.chmod(0o700)  # tokens are in there
        self.logs.mkdir(exist_ok=True)
        return self

    def data(self, slot: str) -> Path:
        """Where a node keeps its store."""
        return self.root / "data" / slot

    def log(self, slot: str) -> Path:
        """The log file of a process."""
        return self.logs / f"{_flat(slot)}.log"

    def run_file(self, slot: str) -> Path:
        """The run file of a process."""
        return self.run / f"{_flat(slot)}.json"

    def process(self, slot: str) -> Process | None:
        """What is in a process's run file; None if there is none."""
        return read(self.run_file(slot), Process)

    def lock(self, what: str = SUPERVISOR) -> int:
        """Lock a place in the directory; the descriptor that holds the lock. Raises `DirectoryBusy`."""
        descriptor = os.open(self.run / f"{_flat(what)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            found = self.process(what)
            who = f"process {found.pid}" if found else "another process"
            hint = f"`tidings down --dir {self.root}` ends it" if what == SUPERVISOR else "end that one first"
            raise DirectoryBusy(f"{what} already runs in {self.root} ({who}): {hint}") from None
        return descriptor


def _flat(slot: str) -> str:
    return slot.replace("/", "-")


def read(path: Path, kind: type[T]) -> T | None:
    """A small JSON file; None if there is none. Raises `BadInput` if it cannot be decoded."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise BadInput(f"{path} is damaged ({error}): move it away") from None


def write(path: Path, value: object) -> None:
    """Write a small JSON file, durably, completely or not at all."""
    write_bytes(path, msgspec.json.encode(value) + b"\n")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file, durably, completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal a process, unless it has ended: its pid may be another one's by now."""
    if process.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _stat(pid)[:1] != ["Z"]


def started_at(pid: int) -> int:
    """When a process was started, in clock ticks since boot; 0 where /proc does not say."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none where there is no such file."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
