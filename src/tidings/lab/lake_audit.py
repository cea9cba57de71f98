"""The audit at the end of the demo, in a process of its own: Spark starts while clients still catch up.

    controller: {"lake": DIR, "url": URL, "master": MASTER}, then "go"
    auditor:    {"ready": seconds}, then {"audit": what `tidings audit` says, "seconds": ...}, or {"failed": text}

`prepare` takes the leases before anything is published, so the lake misses nothing, although it is written last.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidings.client.connection import connect
from tidings.core.errors import TidingsError
from tidings.core.ids import StreamId

READY = 120.0  # seconds that Spark has to start; ours: ten are usual
DONE = 300.0  # seconds that archive and audit have; ours: twenty are usual


async def prepare(lake: Path, streams: Mapping[StreamId, str], seconds: float) -> None:
    """Take the leases that the archive will resume; ``streams`` says where the region of each is."""
    from tidings.spark.archive import lease_name
    from tidings.spark.lake import Lake

    for stream, url in streams.items():
        async with connect(url, timeout=30.0) as t:
            id = (await t.stream(stream)).id
            held = await t.lease(id, name=lease_name(Lake(lake), id), ttl=seconds).open()
            held.leave()


class Auditor:
    """The process, as its controller sees it."""

    def __init__(self, lake: Path, url: str, master: str = "local[2]") -> None:
        self._order = {"lake": str(lake), "url": url, "master": master}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Let Spark start; does not wait for it."""
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "tidings.lab.lake_audit")
        kept = {**os.environ, "TMPDIR": str(Path(self._order["lake"]).parent)}  # it may be killed, and not tidy up
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 26, env=kept)
        await self._tell(self._order)

    async def audit(self) -> dict[str, Any]:
        """Archive everything, and judge it."""
        await self._said("ready", READY)
        await self._tell("go")
        found: dict[str, Any] = (await self._said("audit", DONE))["audit"]
        return found

    async def end(self) -> None:
        """However it is."""
        process = self._process
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _tell(self, what: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        await self._process.stdin.drain()

    async def _said(self, what: str, seconds: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise TidingsError(f"the audit: Spark was not {what} within {seconds:g} s") from None
        said: dict[str, Any] = json.loads(line) if line else {"failed": "its process has ended"}
        if what not in said:
            raise TidingsError(f"the audit has failed: {said.get('failed')}")
        return said


def main() -> None:
    """The auditor."""
    from tidings.spark.archive import Archive
    from tidings.spark.audit import audit_lake
    from tidings.spark.lake import Lake
    from tidings.spark.session import spark

    out = os.fdopen(os.dup(1), "w")  # whatever Spark prints goes elsewhere
    os.dup2(2, 1)

    def say(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    begin = time.monotonic()
    order = json.loads(sys.stdin.readline())
    try:
        with spark(order["master"], "tidings demo") as session:
            say(ready=time.monotonic() - begin)
            if not sys.stdin.readline():
                return
            lake = Lake(order["lake"])
            with Archive(session, lake, order["url"]) as archive:
                archive.once()
            say(audit=audit_lake(session, lake), seconds=time.monotonic() - begin)
    except TidingsError as error:
        say(failed=str(error))


if __name__ == "__main__":
    main()
