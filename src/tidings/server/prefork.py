"""The prefork process: it imports and compiles everything a replica needs, once, and forks replicas, relays and edges.

A replica takes more than a second to import and compile, and nine replicas on two cores take ten times that. The
prefork process is single-threaded and runs no event loop, so that a fork copies no work in progress. It talks to the
supervisor (prefork_client.py) over a socket, one JSON object per line:

    supervisor: a spec                      prefork: {"slot": ..., "pid": ..., "started": ...}
                                            prefork: {"pid": ..., "code": ...} when a process has ended

Processes outlive this process and the supervisor unless they are attached. The next supervisor finds them by their run
files.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys

import msgspec

from tidings.server import nodes
from tidings.server.node_process import Spec
from tidings.server.paths import started_at
from tidings.server.replica import warm


class WorkerStarted(msgspec.Struct, frozen=True):
    """A process has been started."""

    slot: str
    pid: int
    started: int  # tells it from a later process with the same pid


class WorkerEnded(msgspec.Struct, frozen=True):
    """A process has ended; a negative code is the signal that ended it."""

    pid: int
    code: int


class Ready(msgspec.Struct, frozen=True):
    """Everything is imported and compiled."""

    ready: bool = True


def main() -> None:
    """Serve the supervisor at the other end of the descriptor in the argument until it closes the socket."""
    line = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the supervisor
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warm()
    gc.collect()
    gc.freeze()  # a collection in a fork does not touch these pages, so they stay shared
    _Prefork(line).run()


class _Prefork:
    """The loop of the prefork process."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._buffer = b""
        read, write = os.pipe()
        os.set_blocking(write, False)
        os.set_blocking(read, False)
        self._wakeup = read
        signal.set_wakeup_fd(write)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def run(self) -> None:
        """Fork a process per spec; report each that has ended."""
        self._say(Ready())
        while True:
            ready, _, _ = select.select([self._line.fileno(), self._wakeup], [], [])
            if self._wakeup in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakeup, 1024)
                self._reap()
            if self._line.fileno() in ready:
                data = self._line.recv(1 << 16)
                if not data:
                    return
                *lines, self._buffer = (self._buffer + data).split(b"\n")
                for line in lines:
                    self._spawn(msgspec.json.decode(line, type=Spec))

    def _spawn(self, spec: Spec) -> None:
        pid = os.fork()
        if pid == 0:
            self._run_node(spec)
        self._say(WorkerStarted(spec.slot, pid, started_at(pid)))  # it is not reaped yet, so this is its own start time

    def _run_node(self, spec: Spec) -> None:
        """In the child: run what the spec says, then exit."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()  # a terminal's Ctrl-C is for the supervisor
            os.close(self._wakeup)
            self._line.close()
            code = nodes.main(spec)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._say(WorkerEnded(pid, os.waitstatus_to_exitcode(status)))

    def _say(self, message: WorkerStarted | WorkerEnded | Ready) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone: the loop reads the end of the socket
            self._line.sendall(msgspec.json.encode(message) + b"\n")


if __name__ == "__main__":
    main()
