"""Reads of a range: exactly the rows of [lo, hi) that survive collection below ``asof``, the same from every replica.

A read is a subscription with an end. A window of credit keeps a slow reader from delaying others, and another replica
continues when one is lost. A repeated read returns the same rows, from any replica, as long as one remembers how things
were as of that number. A lease (`Connection.lease`) guarantees that; without one the read may end with `AsofGone`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol

from tidings.client.errors import TidingsError
from tidings.client.events import EventRows
from tidings.client.subscription import PlainSubscription
from tidings.core.ids import StreamId


class ReadCalls(Protocol):
    """What a read needs of its connection."""

    async def open_read(
        self, stream: StreamId, lo: int, hi: int, asof: int, where: str, replica: int | None
    ) -> PlainSubscription:
        """Open a subscription that ends at ``hi``."""
        ...


class Reading:
    """Created by `Connection.read`; use it as ``async with``, then ``async for rows in reading``."""

    def __init__(
        self, calls: ReadCalls, stream: StreamId, lo: int, hi: int, asof: int, where: str, replica: int | None
    ) -> None:
        self._calls = calls
        self._request = (stream, lo, hi, asof, where, replica)
        self._subscription: PlainSubscription | None = None
        self.stream = stream
        self.at = lo
        """First number that has not been handed out."""
        self.hi = hi
        self.asof = asof

    async def open(self) -> Reading:
        """Begin; it must be closed."""
        self._subscription = await self._calls.open_read(*self._request)
        return self

    async def close(self) -> None:
        """Read no more."""
        if self._subscription is not None:
            await self._subscription.close()

    async def __aenter__(self) -> Reading:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def take(self) -> list[EventRows]:
        """The next spans, as many as are there; waits for one, and is empty at the end."""
        if self._subscription is None:
            raise TidingsError("the read is not open; use async with t.read(...)")
        if self.at >= self.hi:
            return []
        spans = await self._subscription.taken()
        self.at = spans[-1].hi
        return [EventRows(span) for span in spans]

    async def __aiter__(self) -> AsyncIterator[EventRows]:
        while spans := await self.take():
            for span in spans:
                yield span
