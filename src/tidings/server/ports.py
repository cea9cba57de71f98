"""Who holds a TCP port of this machine, as /proc tells it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

LISTENING = "0A"  # the state in /proc/net/tcp
SHOWN = 80  # characters of a command that fit into a line


def is_taken(host: str, port: int) -> bool:
    """Whether somebody holds a port, so that nobody else can listen there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def holder_of(port: int) -> int | None:
    """The process that holds a port; None where that cannot be told (another user's, or a system without /proc)."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not wanted:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for file in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(file) in wanted:
                        return int(process.name)
    return None


def describe_holder(port: int) -> str:
    """Who holds a port, for a person: process and command where that can be told."""
    pid = holder_of(port)
    if pid is None:
        return "a process that cannot be seen from here"
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        command = " ".join(b" ".join(words).decode(errors="replace").split())
        if command:
            return f"process {pid} ({command[:SHOWN]}{'...' if len(command) > SHOWN else ''})"
    return f"process {pid}"


def _inodes(port: int) -> list[str]:
    """The sockets at a port: those that listen, or, if none does, those that are connected from there."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port and fields[9] != "0":
                    found[fields[3] == LISTENING].append(fields[9])
    return found[True] or found[False]
