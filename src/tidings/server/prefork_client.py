"""The supervisor's end of the prefork process (prefork.py): starts that process, and asks it to fork processes."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from tidings.server.node_process import Spec
from tidings.server.paths import SUPERVISOR, ClusterPaths, Process, send_signal

log = structlog.get_logger("tidings.supervisor")


class PreforkClient:
    """One prefork process at a time; a new one is started with the next spec if it has ended."""

    def __init__(self, files: ClusterPaths, ended: Callable[[int, int], None]) -> None:
        self._files = files
        self._ended = ended  # called with pid and exit code of a process that has ended
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._spawning: dict[str, asyncio.Future[Process]] = {}  # by slot
        self._ready = asyncio.Event()  # or ended
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the prefork process; it is ready a little later."""
        mine, theirs = socket.socketpair()
        with theirs, open(self._files.log(SUPERVISOR), "ab") as out:
            command = [sys.executable, "-m", "tidings.server.prefork", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, pass_fds=[theirs.fileno()], start_new_session=True
            )
        reader, self._writer = await asyncio.open_connection(sock=mine)
        self._ready.clear()
        self._reading = asyncio.ensure_future(self._read(reader))

    async def spawn(self, spec: Spec) -> Process:
        """Start a process."""
        async with self._starting:
            ended = self._process is None or self._process.poll() is not None
            if ended or self._reading is None or self._reading.done():
                await self._terminate()
                await self.start()
        await self._ready.wait()
        assert self._writer is not None and self._reading is not None
        if self._reading.done():
            raise OSError(f"the prefork process has ended; see {self._files.log(SUPERVISOR)}")
        spawned: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        self._spawning[spec.slot] = spawned
        self._writer.write(msgspec.json.encode(spec) + b"\n")
        return await spawned

    async def stop(self) -> None:
        """Stop the prefork process; what it forked goes on. It reports first what it was still asked to start."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write_eof()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._terminate()

    async def _terminate(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                said: dict[str, Any] = msgspec.json.decode(line)
                if "ready" in said:
                    self._ready.set()
                elif "slot" in said:
                    self._spawned(said["slot"], Process(pid=said["pid"], started=said["started"]))
                else:
                    self._ended(said["pid"], said["code"])
        except Exception as error:  # any output that is not understood: the next spec gets a new prefork process
            log.warning("the prefork process failed; the next start brings a new one", error=repr(error))
        finally:
            self._ready.set()
            for waiting in self._spawning.values():
                if not waiting.done():
                    waiting.set_exception(OSError("the prefork process has ended; see the supervisor's log"))
            self._spawning.clear()

    def _spawned(self, slot: str, process: Process) -> None:
        waiting = self._spawning.pop(slot, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(process)
        else:  # the caller was cancelled: nothing else would ever stop this process
            log.info("stopping a process whose start was cancelled", slot=slot, pid=process.pid)
            send_signal(process, signal.SIGTERM)
