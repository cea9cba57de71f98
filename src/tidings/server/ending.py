"""Ending a cluster by its run files: only processes that these name, and that are still the ones they mean."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import msgspec

from tidings.server.layout import SUPERVISOR, Layout, Process, read

LOOK = 0.02  # seconds between looks; ours
KILLED = 5.0  # seconds a killed process has to vanish; ours: it is the kernel's to do


class Ended(msgspec.Struct, frozen=True):
    """A process that was there."""

    pid: int
    killed: bool


def end(files: Layout, timeout: float) -> list[Ended]:
    """End the supervisor, which ends its replicas; then whatever is left. Returns what there was."""
    deadline = time.monotonic() + timeout
    found = [process for path in sorted(files.run.glob("*.json")) if (process := read(path, Process)) is not None]
    alive = [process for process in found if process.alive]
    supervisor = files.process(SUPERVISOR)
    ended: list[Ended] = []
    if supervisor is not None and supervisor.alive:
        ended += _stop([supervisor], deadline)
    return ended + _stop([each for each in alive if supervisor is None or each.pid != supervisor.pid], deadline)


def _stop(processes: list[Process], deadline: float) -> list[Ended]:
    """Ask, wait, kill."""
    for process in processes:
        _signal(process, signal.SIGTERM)
        _signal(process, signal.SIGCONT)  # one that was paused must wake to stop
    _wait(processes, deadline)
    stubborn = [process for process in processes if process.alive]
    for process in stubborn:
        _signal(process, signal.SIGKILL)
    _wait(stubborn, time.monotonic() + KILLED)
    return [Ended(process.pid, process in stubborn) for process in processes]


def _wait(processes: list[Process], deadline: float) -> None:
    while any([process.alive for process in processes]) and time.monotonic() < deadline:
        time.sleep(LOOK)


def _signal(process: Process, number: signal.Signals) -> None:
    if process.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
