"""The nursery: a process that has imported and compiled everything a replica needs, and forks replicas.

A replica takes more than a second to import and compile; nine of them on two cores ten times that. The nursery does
it once. It is single-threaded and runs no event loop, so that a fork copies nothing that is under way, and it speaks
with the supervisor over a socket, one JSON object per line:

    supervisor: a replica's spec            nursery: {"slot": ..., "pid": ..., "started": ...}
                                            nursery: {"pid": ..., "code": ...} when a replica has ended

Replicas outlive the nursery and the supervisor unless they are attached: who starts a supervisor again finds them by
their run files.
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

from tidings.server import replica
from tidings.server.layout import started_at


class Hatched(msgspec.Struct, frozen=True):
    """A replica has been started."""

    slot: str
    pid: int
    started: int  # tells it from a later process of the same number


class Ended(msgspec.Struct, frozen=True):
    """A replica has ended; a negative code is the signal that did it."""

    pid: int
    code: int


class Ready(msgspec.Struct, frozen=True):
    """Everything is imported and compiled."""

    ready: bool = True


def main() -> None:
    """Serve the supervisor at the other end of the descriptor in the argument until it hangs up."""
    line = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the supervisor
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    replica.warm()
    gc.collect()
    gc.freeze()  # what is shared stays shared: a collection in a replica does not touch it
    _Nursery(line).run()


class _Nursery:
    """The loop of the nursery process."""

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
        """Fork what is asked for, report what has ended."""
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
                    self._hatch(msgspec.json.decode(line, type=replica.Spec))

    def _hatch(self, spec: replica.Spec) -> None:
        pid = os.fork()
        if pid == 0:
            self._be(spec)
        self._say(Hatched(spec.slot, pid, started_at(pid)))  # it is not reaped yet: that is its own start

    def _be(self, spec: replica.Spec) -> None:
        """In the child: become the replica, and end with it."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()  # a terminal's Ctrl-C is for the supervisor
            os.close(self._wakeup)
            self._line.close()
            code = replica.main(spec)
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
            self._say(Ended(pid, os.waitstatus_to_exitcode(status)))

    def _say(self, message: Hatched | Ended | Ready) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone: the loop will notice
            self._line.sendall(msgspec.json.encode(message) + b"\n")


if __name__ == "__main__":
    main()
