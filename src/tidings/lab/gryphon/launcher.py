"""Relays and edges of an experiment: a process that forks them, and the experiment's end of it.

The supervisor starts every broker in the same way. An experiment wants some that can fail on request, or that guarantee
nothing (`KINDS`). Each is forked from a process that has imported everything, because ten brokers that begin at once
would each compile for seconds. They end with that process, which ends with the program that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from tidings.core.errors import TidingsError
from tidings.server import cluster_config
from tidings.server.node_process import NodeProcess, Spec, run_process
from tidings.server.paths import ClusterPaths, Process, send_signal, started_at

WAIT = 30.0  # seconds for a process to be ready, or for a subscriber to have begun; ours


class RealFailed(TidingsError):
    """The processes did not come as far as the experiment."""


class BrokerOrder(msgspec.Struct, frozen=True):
    """One broker to start, of a kind."""

    kind: str
    spec: Spec


class Brokers:
    """The relays and edges of a cluster file, by slot."""

    def __init__(self, folder: Path, config: cluster_config.ClusterConfig, journals: Path | None = None) -> None:
        self.files = ClusterPaths(folder).make()
        self.files.config_file.write_text(cluster_config.render(config))
        self.places = config.broker_places()
        self.journals = journals
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidings.lab.gryphon.launcher"], stdin=subprocess.PIPE, start_new_session=True
        )

    async def start(self, slots: Collection[str], kind: str = "plain") -> None:
        """Start some, and wait until they run."""
        before = {slot: self.files.process(slot) for slot in slots}
        assert self.process.stdin is not None
        for slot in slots:
            spec = Spec(
                slot=slot,
                kind=self.places[slot].kind,
                root=str(self.files.root),
                config=str(self.files.config_file),
                journal=str(self.journals or ""),
            )
            self.process.stdin.write(msgspec.json.encode(BrokerOrder(kind, spec)) + b"\n")
        self.process.stdin.flush()
        await until(f"{', '.join(slots)} to start", lambda: all(self._runs(slot, before[slot]) for slot in slots))

    def _runs(self, slot: str, before: Process | None) -> bool:
        found = self.files.process(slot)
        return found is not None and found != before and found.alive

    def running(self, slot: str) -> Process:
        """The process that runs in a slot."""
        found = self.files.process(slot)
        if found is None or not found.alive:
            raise RealFailed(f"{slot} does not run")
        return found

    async def stop(self) -> None:
        """All of them, gracefully, so that their journals are complete."""
        running = [found for slot in self.places if (found := self.files.process(slot)) is not None and found.alive]
        for found in running:
            os.kill(found.pid, signal.SIGTERM)
        with contextlib.suppress(RealFailed):
            await until("brokers to stop", lambda: not any(found.alive for found in running), 10.0)
        assert self.process.stdin is not None
        self.process.stdin.close()
        await asyncio.to_thread(self.process.wait, 10.0)


async def until(what: str, condition: Callable[[], bool], timeout: float = WAIT) -> None:
    """Wait for something."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise RealFailed(f"waited {timeout:g} s in vain for {what}")
        await asyncio.sleep(0.02)


# --- the process --------------------------------------------------------------------------------------------


def main() -> None:
    """Fork a broker for each line, a `BrokerOrder`, until there are no more."""
    from tidings.lab.gryphon.best_effort import BestEffortBroker
    from tidings.lab.gryphon.faulty_brokers import FaultyBroker
    from tidings.server.broker_process import BrokerProcess
    from tidings.server.replica import warm

    kinds: dict[str, type[NodeProcess]] = {
        "plain": BrokerProcess,
        "faulty": FaultyBroker,
        "best-effort": BestEffortBroker,
    }
    warm()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    started: list[Process] = []
    try:
        for line in sys.stdin:
            order = msgspec.json.decode(line, type=BrokerOrder)
            pid = os.fork()
            if pid == 0:
                _run(kinds[order.kind], order.spec)
            started.append(Process(pid=pid, started=started_at(pid)))
    finally:
        for process in started:
            send_signal(process, signal.SIGKILL)


def _run(kind: type[NodeProcess], spec: Spec) -> Any:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what comes there is not for it
        code = run_process(kind, spec)
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
