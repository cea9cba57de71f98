"""Reads of a range: exactly the rows of [lo, hi) that survive collection below ``asof``, the same from every replica.

A read is a subscription with an end: fed through a window, so that a slow reader holds nobody up, and continued at
another replica when one is lost. What is read again is the same again, wherever it comes from, as long as somebody
remembers how things were as of that number: a lease (`Connection.lease`) makes sure of it, without one it may turn out
to be forgotten, which is `AsofGone`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING

from tidings.client.errors import TidingsError
from tidings.client.events import Rows
from tidings.client.subscription import Subscription

if TYPE_CHECKING:
    from tidings.client.connection import Connection


class Reading:
    """Created by `Connection.read`; use it as ``async with``, then ``async for rows in reading``."""

    def __init__(
        self, connection: Connection, stream: str, lo: int, hi: int, asof: int, where: str, replica: int | None
    ) -> None:
        self._connection = connection
        self._request = (stream, lo, hi, asof, where, replica)
        self._subscription: Subscription | None = None
        self.stream = stream
        self.at = lo
        """First number that has not been handed out."""
        self.hi = hi
        self.asof = asof

    async def open(self) -> Reading:
        """Begin; it must be closed."""
        self._subscription = await self._connection._read(*self._request)
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

    async def take(self) -> list[Rows]:
        """The next spans, as many as are there; waits for one, and is empty at the end."""
        if self._subscription is None:
            raise TidingsError("the read is not open; use async with t.read(...)")
        if self.at >= self.hi:
            return []
        spans = await self._subscription.taken()
        self.at = spans[-1].hi
        return [Rows(span) for span in spans]

    async def __aiter__(self) -> AsyncIterator[Rows]:
        while spans := await self.take():
            for span in spans:
                yield span
