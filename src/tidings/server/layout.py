"""Where a cluster's files are, and how the small ones are written: whole or not at all.

The files of a cluster on this machine, below its directory:

    cluster.toml
    data/r0/p0/log          the store of a replica; `life.json` beside it says which incarnation it belongs to
    data/r0/config/log      the store of a configuration service
    logs/r0-p0.log          one JSON object per line
    run/supervisor.json     of whoever runs here: pid, ports, addresses
    run/r0-p0.json
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from tidings.core.errors import BadInput, TidingsError

T = TypeVar("T")
SUPERVISOR = "supervisor"


class Busy(TidingsError):
    """Somebody else works in this directory."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A run file: a process that is there, or was when it was written. ``started`` tells it from a later namesake."""

    pid: int
    started: int
    id: str = ""  # of a replica
    admin: int = 0  # port of its HTTP
    token: str = ""  # what changes something asks for it

    @property
    def alive(self) -> bool:
        """Whether that very process still runs."""
        return is_running(self.pid) and started_at(self.pid) == self.started


class Layout:
    """The files of a cluster under one directory."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.plan = self.root / "cluster.toml"
        self.run = self.root / "run"
        self.logs = self.root / "logs"

    def make(self) -> Layout:
        """Make the directories; returns itself."""
        self.run.mkdir(parents=True, exist_ok=True)
        self.run.chmod(0o700)  # tokens are in there
        self.logs.mkdir(exist_ok=True)
        return self

    def data(self, slot: str) -> Path:
        """Where a node keeps what must not get lost."""
        return self.root / "data" / slot

    def log(self, slot: str) -> Path:
        """Where a process writes what it does."""
        return self.logs / f"{_flat(slot)}.log"

    def run_file(self, slot: str) -> Path:
        """Where a process says that it is there."""
        return self.run / f"{_flat(slot)}.json"

    def process(self, slot: str) -> Process | None:
        """What a process has said of itself; None if it never did."""
        return read(self.run_file(slot), Process)

    def lock(self, what: str = SUPERVISOR) -> int:
        """Be the only one; the descriptor that holds the lock. Raises `Busy`."""
        descriptor = os.open(self.run / f"{_flat(what)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            found = self.process(what)
            who = f"process {found.pid}" if found else "another process"
            hint = f"`tidings down --dir {self.root}` ends it" if what == SUPERVISOR else "end that one first"
            raise Busy(f"{what} already runs in {self.root} ({who}): {hint}") from None
        return descriptor


def _flat(slot: str) -> str:
    return slot.replace("/", "-")


def read(path: Path, kind: type[T]) -> T | None:
    """A small JSON file; None if there is none. Raises `BadInput` if it is not what it should be."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise BadInput(f"{path} is damaged ({error}): move it away") from None


def write(path: Path, value: object) -> None:
    """Write a small JSON file, durably, whole or not at all."""
    write_bytes(path, msgspec.json.encode(value) + b"\n")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file, durably, whole or not at all."""
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
    """When a process was started, in the system's own count; 0 where that cannot be told."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none where there is no such file."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
