"""The demo's tapes: subscribers in different regions that follow all streams in one order, through one filter.

A tape is right if its events ascend by (tick, number), no event comes twice, and everything that is left in the end and
passes the filter is on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tidings.client.connection import Connection, connect
from tidings.core.ids import FIRST, StreamName

HOT = "key IN ('0', '1', '2', '3')"  # the keys that change most: about a seventeenth of the events
QUIET = 3.0  # seconds without an event after which a tape is at its end; ours: above the longest stall of a fault
LIMIT = 30.0  # seconds that a tape has to reach the end; ours

Place = tuple[int, int, StreamName]
"""An event's place in the order: its tick, its number, its stream."""


class Tape:
    """One subscriber. It runs until it is told to finish."""

    def __init__(self, name: str, url: str, streams: Sequence[StreamName]) -> None:
        self.name = name
        self.url = url
        self.streams = streams
        self.places: list[Place] = []
        self._task: asyncio.Task[None] | None = None
        self._finishing = False
        self._begun = asyncio.Event()

    async def start(self) -> None:
        """Begin at the first event."""
        self._task = asyncio.ensure_future(self._run())
        begun = asyncio.ensure_future(self._begun.wait())
        await asyncio.wait([self._task, begun], return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if self._task.done():
            self._task.result()

    async def _run(self) -> None:
        async with (
            connect(self.url, client_id=self.name, timeout=30.0) as t,
            t.subscribe(*self.streams, where=HOT, order="total", start="earliest") as sub,
        ):
            self._begun.set()
            while True:
                try:
                    event = await sub.next(timeout=QUIET)
                except TimeoutError:
                    if self._finishing:
                        return
                else:
                    self.places.append((event.tick, event.seq, event.stream))

    async def finish(self) -> None:
        """Read what is still to come."""
        self._finishing = True
        assert self._task is not None
        async with asyncio.timeout(LIMIT):
            await self._task

    async def end(self) -> None:
        """Stop, whatever it is doing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def verdict(self, left: set[tuple[StreamName, int]]) -> dict[str, Any]:
        """How it compares with what is left in the end."""
        seen = {(stream, seq) for _, seq, stream in self.places}
        pairs = zip(self.places, self.places[1:], strict=False)
        return {
            "events": len(self.places),
            "lost": len(left - seen),
            "duplicated": len(self.places) - len(seen),
            "out_of_order": sum([one >= other for one, other in pairs]),
        }


async def left_of(
    t: Connection, streams: Sequence[StreamName], ends: dict[StreamName, int]
) -> set[tuple[StreamName, int]]:
    """The events that collection has left and the tapes' filter passes."""
    left: set[tuple[StreamName, int]] = set()
    for stream in streams:
        async with t.read(stream, FIRST, ends[stream], where=HOT) as rows:
            async for each in rows:
                left |= {(stream, event.seq) for event in each.events()}
    return left
