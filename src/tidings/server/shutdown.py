"""Stop a cluster by its run files: only processes that a run file names, with the same start time."""

from __future__ import annotations

import signal
import time

import msgspec

from tidings.server.paths import SUPERVISOR, ClusterPaths, Process, read, send_signal

LOOK = 0.02  # seconds between looks; ours
KILLED = 5.0  # seconds until a killed process has ended; ours: the kernel does it at once, unless it waits for a disk


class StoppedProcess(msgspec.Struct, frozen=True):
    """A process that ran."""

    pid: int
    killed: bool


def end(files: ClusterPaths, timeout: float) -> list[StoppedProcess]:
    """Stop the supervisor, which stops its replicas; then every process that is left. Returns all that ran."""
    deadline = time.monotonic() + timeout
    found = [process for path in sorted(files.run.glob("*.json")) if (process := read(path, Process)) is not None]
    alive = [process for process in found if process.alive]
    supervisor = files.process(SUPERVISOR)
    ended: list[StoppedProcess] = []
    if supervisor is not None and supervisor.alive:
        ended += _stop([supervisor], deadline)
    return ended + _stop([each for each in alive if supervisor is None or each.pid != supervisor.pid], deadline)


def _stop(processes: list[Process], deadline: float) -> list[StoppedProcess]:
    """SIGTERM, wait, SIGKILL."""
    for process in processes:
        send_signal(process, signal.SIGTERM)
        send_signal(process, signal.SIGCONT)  # one that was paused must wake to stop
    _wait(processes, deadline)
    stubborn = [process for process in processes if process.alive]
    for process in stubborn:
        send_signal(process, signal.SIGKILL)
    _wait(stubborn, time.monotonic() + KILLED)
    return [StoppedProcess(process.pid, process in stubborn) for process in processes]


def _wait(processes: list[Process], deadline: float) -> None:
    while any([process.alive for process in processes]) and time.monotonic() < deadline:
        time.sleep(LOOK)
