"""A subscription as an application sees it: an asynchronous iterator of events, or of spans of rows.

Spans wait in a queue until the application takes them. Taking some gives their sender credit for more, so what waits is
bounded (protocols/brokers/feeds.py). A large span earns credit as soon as no other waits. Spans of a few rows earn it
several at a time, or a little later: otherwise every event would cost its replica another message. Events are unpacked
a span at a time and handed out one by one. The rest of a span stays here, so an application may leave one loop and
begin another without losing an event.

A durable subscription (it has a name) acknowledges an item when the next one is asked for, or with `ack`. After a crash
between the two the item is delivered again. Names and their cursors belong to the region that the client is connected
to; a newer holder of a name supersedes the older.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from tidings.client.commands import ChangeFilter, Close, Open, Processed, Taken
from tidings.client.errors import AsofGone, Closed, NotBuilt, SubscriptionEnded, Superseded, TidingsError
from tidings.client.events import Event, EventRows, events_of
from tidings.client.validation import text
from tidings.core.ids import StreamId, StreamName, stream_name
from tidings.core.rows import Rows
from tidings.core.small_rows import SmallRows
from tidings.core.span import Span
from tidings.protocols.brokers.merging import OpenMerge
from tidings.protocols.brokers.subscriber import Ended
from tidings.protocols.kernel import Command

CREDIT = 8  # spans taken before their sender is told; ours: a quarter of the smallest window, that of a fabric
SOON = 0.05  # seconds after which it is told in any case; ours, because a sender with a small window may wait for it
GOODBYE = 2.0  # seconds to save the cursor when a durable subscription is left; ours


class SubscriptionCommands(Protocol):
    """What a subscription needs of its connection."""

    def command(self, command: Command) -> None:
        """Tell the machine."""
        ...


class SubscriptionQueue:
    """One stream of a subscription."""

    __slots__ = (
        "at",
        "begun",
        "credited",
        "heard",
        "horizon",
        "id",
        "open",
        "processed",
        "saved",
        "sent",
        "stream",
        "taken",
    )

    def __init__(self, open: Open | OpenMerge) -> None:
        self.open = open
        self.id = open.id
        streams = [open.stream] if isinstance(open, Open) else [stream for _, stream, _ in open.streams]
        self.stream: StreamName = ", ".join(map(stream_name, streams))
        self.begun = False
        self.heard = 0.0  # when there was a sign of life
        self.horizon = 0  # of its source
        self.at = 0  # first number that has not been delivered to the queue
        self.taken = 0  # first number that the application has not been given
        self.credited = 0  # of that, what the machine has been told
        self.processed = 0  # first number that the application has not processed
        self.sent = 0  # of that, what the machine has been told
        self.saved = 0


class Delivery(Protocol):
    """What a subscription is given at once: spans, or what several merged streams have up to a tick."""

    @property
    def hi(self) -> int:
        """Where it ends."""
        ...

    @property
    def rows(self) -> Rows:
        """Its rows, if they are those of one span."""
        ...


class Subscription:
    """Created by `subscribe`; use it as ``async with``."""

    def __init__(
        self,
        connection: SubscriptionCommands,
        opens: Sequence[Open | OpenMerge],
        forget: Callable[[list[int]], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._connection = connection
        self._loop = loop
        self._forget = forget
        self.feeds = {open.id: SubscriptionQueue(open) for open in opens}
        self.durable = opens[0].name is not None
        self._queue: deque[tuple[SubscriptionQueue, Any]] = deque()
        self._taken = 0  # spans since credit was given
        self._crediting: asyncio.TimerHandle | None = None
        self._rest: Iterator[Event] = iter(())  # of the span that is handed out
        self._current: tuple[SubscriptionQueue, Any] | None = None
        self._last: Event | None = None  # of the current span, the event handed out last if they go one by one
        self._waiter: asyncio.Future[None] | None = None
        self._error: TidingsError | None = None
        self._closed = False
        self._saving: list[asyncio.Future[None]] = []
        self._changed: list[asyncio.Future[None]] = []
        self.on_heard: Callable[[SubscriptionQueue], None] | None = None
        self.on_taken: Callable[[int, Any], None] | None = None  # told of all that the application is given

    # --- life -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        for feed in self.feeds.values():
            self._connection.command(feed.open)
        try:
            while self._error is None and not all([feed.begun for feed in self.feeds.values()]):
                change: asyncio.Future[None] = self._loop.create_future()
                self._changed.append(change)
                await change
            if self._error is not None:
                raise self._error
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Receive no more; a durable subscription saves what was acknowledged first."""
        if self._closed:
            return
        try:
            if self.durable and self._error is None:
                async with asyncio.timeout(GOODBYE):  # wait_for can swallow a cancellation, and its task goes on
                    await self._save()
        except (TimeoutError, TidingsError):
            pass  # delivered again next time
        finally:
            self._leave()

    def _leave(self) -> None:
        if not self._closed:
            self._closed = True
            if self._crediting is not None:
                self._crediting.cancel()
            for id in self.feeds:
                self._connection.command(Close(id))
            self._forget(list(self.feeds))
            self.end(Closed("the subscription is closed; subscribe again"))

    # --- what the connection tells ------------------------------------------------------------------------

    def fed(self, id: int, span: Delivery) -> None:
        """The next span of a stream."""
        feed = self.feeds[id]
        feed.at = span.hi
        self._queue.append((feed, span))
        self._wake()

    def heard(self, id: int, at: int, horizon: int, now: float) -> None:
        """The source of a stream is alive."""
        feed = self.feeds[id]
        feed.heard = now
        feed.horizon = horizon
        feed.at = max(feed.at, at)
        if not feed.begun:
            feed.begun = True
            self._change()
        if self.on_heard is not None:
            self.on_heard(feed)

    def saved(self, id: int, horizon: int) -> None:
        """A cursor is committed."""
        feed = self.feeds[id]
        feed.saved = max(feed.saved, horizon)
        if all([each.saved >= each.sent for each in self.feeds.values()]):
            for future in self._saving:
                if not future.done():
                    future.set_result(None)
            self._saving.clear()

    def ended(self, ended: Ended) -> None:
        """A stream cannot be followed any more."""
        stream = self.feeds[ended.id].stream
        if ended.superseded:
            self._queue.clear()
            self._rest = iter(())
            self.end(Superseded(f"{stream}: {ended.reason}; close this subscription, or open it again to take it back"))
        elif ended.floor:
            self.end(AsofGone(ended.reason, ended.floor))
        else:
            self.end(SubscriptionEnded(f"{stream}: {ended.reason}"))

    def end(self, error: TidingsError) -> None:
        """There is nothing more to come."""
        if self._error is None:
            self._error = error
        self._wake()
        self._change()
        for future in self._saving:
            if not future.done():
                future.set_exception(self._error)
        self._saving.clear()

    def report(self) -> None:
        """Tell the machine what was processed since it was last told."""
        for feed in self.feeds.values():
            if feed.processed > feed.sent:
                feed.sent = feed.processed
                self._connection.command(Processed(feed.id, feed.processed))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _change(self) -> None:
        for future in self._changed:
            if not future.done():
                future.set_result(None)
        self._changed.clear()

    # --- taking ---------------------------------------------------------------------------------------------

    async def _span(self) -> Any:
        """The next span; what came before it is processed."""
        self._processed_current()
        await self._some()
        self._current = feed, span = self._queue.popleft()
        self._taken += 1
        feed.taken = span.hi
        if self.on_taken is not None:
            self.on_taken(feed.id, span)
        if self._taken >= CREDIT or not (self._queue or isinstance(span.rows, SmallRows)):
            self._credit()
        elif self._crediting is None:
            self._crediting = self._loop.call_later(SOON, self._credit_late)
        return span

    def _credit(self) -> None:
        """Tell the machine what was taken: its sender may go on."""
        self._taken = 0
        for each in self.feeds.values():
            if each.taken > each.credited:
                each.credited = each.taken
                self._connection.command(Taken(each.id, each.taken))

    async def _some(self) -> None:
        """Wait until there is a span."""
        while not self._queue:
            if self._error is not None:
                raise self._error
            if self._waiter is not None and not self._waiter.done():
                raise TidingsError("two tasks take from one subscription; give each its own")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _credit_late(self) -> None:
        self._crediting = None
        if not self._closed:
            self._credit()

    def _processed_current(self) -> None:
        if self._current is not None:
            feed, span = self._current
            feed.processed = span.hi
            self._current = self._last = None

    def _processed_last(self) -> None:
        """The event that was handed out last is processed."""
        raise NotImplementedError

    async def _load(self) -> Iterator[Event]:
        """Events of the next delivery that has any."""
        raise NotImplementedError

    def spans(self) -> AsyncIterator[EventRows]:
        """Spans as they come, rows in columns."""
        raise NotImplementedError

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            if self.durable:
                self._processed_last()
                for event in self._rest:
                    self._last = event
                    yield event
                    self._processed_last()
            else:
                for event in self._rest:
                    yield event
            await self._load()

    async def next(self, timeout: float | None = None) -> Event:
        """The next event; raises `TimeoutError` if none comes in time."""
        self._processed_last()
        event = next(self._rest, None)
        while event is None:
            async with asyncio.timeout(timeout):
                await self._load()
            event = next(self._rest, None)
        self._last = event
        return event

    async def events(self, timeout: float | None = None) -> list[Event]:
        """All events of the next span that has any: the fastest way to take them one by one."""
        rest = list(self._rest)
        while not rest:
            async with asyncio.timeout(timeout):
                rest = list(await self._load())
        self._last = None
        return rest

    async def where(self, where: str | None) -> dict[StreamName, int]:
        """Change the filter while the subscription is open: from the numbers returned on, one for each stream, exactly
        what passes the new filter comes. What comes before them was filtered by the old one.

        A filter that cannot be had raises `BadFilter`; the old one stays.
        """
        raise NotBuilt("the filter of a subscription in total order does not change; open another one above its tick")

    async def ack(self) -> None:
        """Acknowledge everything that was handed out, and wait until that is durable."""
        if not self.durable:
            raise SubscriptionEnded("only a durable subscription can be acknowledged: subscribe with name=...")
        if self._current is not None:
            self._processed_last()
            if self._last is None:
                self._current[0].processed = self._current[1].hi
        await self._save()

    async def _save(self) -> None:
        if self._error is not None:
            raise self._error
        behind = [feed for feed in self.feeds.values() if feed.processed > feed.saved]
        if not behind:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._saving.append(future)
        for feed in behind:
            feed.sent = feed.processed
            self._connection.command(Processed(feed.id, feed.processed, True))
        await future


class PlainSubscription(Subscription):
    """Spans of each stream in its own order; those of several come as they come."""

    def __init__(
        self,
        connection: SubscriptionCommands,
        opens: list[Open],
        forget: Callable[[list[int]], None],
        loop: asyncio.AbstractEventLoop,
        check: Callable[[StreamId, str], Awaitable[object]],
    ) -> None:
        super().__init__(connection, opens, forget, loop)
        self._streams = {open.id: open.stream for open in opens}
        self._check = check  # raises `BadFilter`
        self._refiltered: dict[int, int] = {}  # by feed: from which number on its newest filter holds

    async def taken(self) -> list[Span]:
        """Every span that is there, at least one, of a subscription to one stream."""
        await self._some()
        spans = [span for _, span in self._queue]
        self._queue[-1][0].taken = spans[-1].hi
        self._queue.clear()
        self._credit()
        return spans

    def _processed_last(self) -> None:
        if self._last is not None and self._current is not None:
            self._current[0].processed = self._last.seq + 1

    async def _load(self) -> Iterator[Event]:
        """Events of the next span that has any."""
        while True:
            span: Span = await self._span()
            if span.rows.count or span.lost:
                self._rest = events_of(span)
                return self._rest

    async def spans(self) -> AsyncIterator[EventRows]:
        """Spans as they come, rows in columns. Numbers without a row were collected, are ``lost``, or do not pass the
        filter."""
        while True:
            span = await self._span()
            yield EventRows(span)

    async def where(self, where: str | None) -> dict[StreamName, int]:
        wanted = text("where", where or "")
        for stream in self._streams.values():
            await self._check(stream, wanted)
        self._refiltered.clear()
        for id in self.feeds:
            self._connection.command(ChangeFilter(id, wanted))
        while self._error is None and len(self._refiltered) < len(self.feeds):
            change: asyncio.Future[None] = self._loop.create_future()
            self._changed.append(change)
            await change
        if self._error is not None:
            raise self._error
        return {feed.stream: self._refiltered[id] for id, feed in self.feeds.items()}

    def refiltered(self, id: int, horizon: int | None) -> None:
        """A stream has another filter."""
        self._refiltered[id] = self.feeds[id].at if horizon is None else horizon
        self._change()
