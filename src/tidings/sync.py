"""The client for blocking code: the same calls, without ``await``; a loop of its own runs in a thread.

    with tidings.sync.connect("tidings://127.0.0.1:7400") as t:
        t.publish("prices", key=b"IBM", payload=b"...")
        with t.subscribe("prices", start="earliest") as sub:
            for event in sub: ...

Calls may come from any thread. `post` leaves its event where the loop finds it and wakes the loop once for many.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from tidings.client import connection
from tidings.client.batching import PENDING, Attrs, in_words
from tidings.client.errors import Closed, Full, NotPublished, PublishFailed
from tidings.client.events import Ack, Event, EventRows, Reason, StreamInfo
from tidings.client.leasing import HeldLease, LeaseOpening
from tidings.client.reading import Reading as AsyncReading
from tidings.client.sinks import Part as AsyncPart
from tidings.client.sinks import Sink as AsyncSink
from tidings.client.subscribing import Opening
from tidings.client.subscription import Subscription as AsyncSubscription
from tidings.net.loop import loop_factory
from tidings.protocols.services.catalog import Description
from tidings.protocols.services.sinks import Attempt

T = TypeVar("T")

KEPT = 16  # errors of posts that wait for a call to raise them; ours: more are counted


def connect(url: str, **options: Any) -> BlockingConnection:
    """A connection to the cluster at ``url``, to be entered with ``with``; options as for `tidings.connect`."""
    return BlockingConnection(url, options)


class BlockingConnection:
    """One client. See `connect`."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._async = connection.connect(url, **options)
        self._posts: deque[tuple[str, bytes | None, bytes, Attrs | None]] = deque()
        self._failed: deque[Exception] = deque()  # of posts, not raised yet
        self._untold = 0  # posts that failed besides
        self._lock = threading.Lock()
        self._woken = False
        self._taking = False  # posts are accepted
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # --- life -------------------------------------------------------------------------------------------

    def __enter__(self) -> BlockingConnection:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(flush=error is None)

    def open(self) -> None:
        """Find the cluster."""
        factory = loop_factory() or asyncio.new_event_loop
        loop = self._loop = factory()
        name = f"tidings {self._async.client_id}"
        self._thread = threading.Thread(target=_run, args=(loop,), name=name, daemon=True)
        self._thread.start()
        try:
            self._call(self._async.open())
        except BaseException:
            self._stop()
            raise
        self._taking = True

    def close(self, *, flush: bool = True) -> None:
        """End; posted events are made durable first, or the error says which are not.

        If no replica answers this takes twice the connection's timeout: to take what was posted, and to flush it.
        """
        if self._loop is None:
            return
        self._taking = False
        try:
            self._call(self._finish(flush))
            self._raise_failed(last=True)
        except PublishFailed as error:
            raise _besides(error, len(self._failed) + self._untold) from None
        finally:
            self._stop()

    async def _finish(self, flush: bool) -> None:
        """In the loop: whatever becomes of some posts, the others are made durable."""
        left: list[NotPublished] = []
        acks: Sequence[Ack] = ()
        try:
            if flush:
                left = await self._taken_in_time()
        finally:
            try:
                await self._async.close(flush=flush)
            except PublishFailed as error:
                if not left:
                    raise
                left, acks = [*error.failed, *left], error.acks
        if left:
            raise PublishFailed(in_words(left), left, acks)

    async def _taken_in_time(self) -> list[NotPublished]:
        """Have every post taken; those for which there was no room within the timeout."""
        try:
            async with asyncio.timeout(self._async.timeout):
                await self._all_taken()
        except TimeoutError:
            reason = f"the connection was closed, and there was no room for it within {self._async.timeout:g} s"
            left = list(self._posts)
            self._posts.clear()
            return [
                NotPublished(stream, 1, reason, False, (key,), (payload,), None if attrs is None else (dict(attrs),))
                for stream, key, payload, attrs in left
            ]
        return []

    def _stop(self) -> None:
        with self._lock:  # whatever was called before is in the loop, and is cancelled there
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    def _call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine in the loop's thread; an interrupt cancels it."""
        with self._lock:
            if self._loop is None:
                work.close()
                raise _not_open()
            future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except CancelledError:
            raise Closed("the connection was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    # --- publishing -------------------------------------------------------------------------------------

    def publish(
        self, stream: str, *, key: bytes | None = None, payload: bytes = b"", attrs: Attrs | None = None
    ) -> Ack:
        """Publish one event; returns when it is durable."""
        self._drained()
        return self._call(self._async.publish(stream, key=key, payload=payload, attrs=attrs))

    def post(self, stream: str, *, key: bytes | None = None, payload: bytes = b"", attrs: Attrs | None = None) -> None:
        """Publish one event without waiting for it; waits only while too many are pending.

        What is wrong with an event is raised by a later call.
        """
        if self._failed:
            self._raise_failed()
        loop = self._loop
        if loop is None or not self._taking:
            raise _not_open()
        self._posts.append((stream, key, payload, attrs))
        if not self._woken:
            self._woken = True
            try:
                loop.call_soon_threadsafe(self._take)
            except RuntimeError:  # closed in between
                raise _not_open() from None
        if len(self._posts) >= PENDING // 4:
            self._drained()

    def _take(self) -> None:
        """In the loop: post what has gathered."""
        self._woken = False
        posts = self._posts
        while posts:
            stream, key, payload, attrs = posts[0]
            try:
                self._async.post(stream, key=key, payload=payload, attrs=attrs)
            except Full:
                self._woken = True
                task = asyncio.ensure_future(self._async.drain())
                task.add_done_callback(self._taken_again)
                return
            except Exception as error:
                with self._lock:
                    if len(self._failed) < KEPT:
                        self._failed.append(error)
                    else:
                        self._untold += 1
            posts.popleft()

    def _taken_again(self, drained: asyncio.Future[None]) -> None:
        if drained.cancelled() or drained.exception() is not None:
            self._woken = False
        else:
            self._take()

    def _drained(self) -> None:
        """Wait until the loop has taken every post, and raise what was wrong with one."""
        self._call(self._all_taken())
        self._raise_failed()

    async def _all_taken(self) -> None:
        self._take()
        while self._posts:
            await self._async.drain()
            await asyncio.sleep(0.001)

    def _raise_failed(self, last: bool = False) -> None:
        """Raise what was wrong with a post; it says how many others failed that no later call will raise."""
        with self._lock:
            if not self._failed:
                return
            error = self._failed.popleft()
            untold, self._untold = self._untold, 0
            if last:
                untold += len(self._failed)
                self._failed.clear()
        raise _besides(error, untold)

    def flush(self) -> list[Ack]:
        """Wait until every posted event is durable; the error says which are not."""
        self._drained()
        return self._call(self._async.flush())

    def publish_table(self, stream: str, table: pa.Table | pa.RecordBatch) -> Ack:
        """Publish the rows of a table."""
        self._drained()
        return self._call(self._async.publish_table(stream, table))

    def collect(self, stream: str, *, before: int | None = None, where: str | None = None) -> Ack:
        """Publish an event that collects others."""
        self._drained()
        return self._call(self._async.collect(stream, before=before, where=where))

    # --- the rest -----------------------------------------------------------------------------------------

    def subscribe(self, stream: str | Iterable[str], *more: str, **options: Any) -> BlockingSubscription:
        """Events of one or several streams; options as for the asynchronous `subscribe`."""
        return BlockingSubscription(self, self._async.subscribe(stream, *more, **options))

    def read(self, stream: str, lo: int, hi: int, **options: Any) -> BlockingReading:
        """Exactly the rows of [lo, hi) as of a number; options asof, where, replica as for the asynchronous `read`."""
        return BlockingReading(self, self._async.read(stream, lo, hi, **options))

    def lease(self, stream: str, **options: Any) -> BlockingLease:
        """Keep rows readable as of a number; options asof, name, ttl, bytes, resume as for the asynchronous `lease`."""
        return BlockingLease(self, self._async.lease(stream, **options))

    def sink(self, stream: str, *, timeout: float | None = None, **options: Any) -> BlockingSink:
        """One batch of a writer; options as for the asynchronous `sink`. A call that takes longer is given up."""
        return BlockingSink(self, self._async.sink(stream, **options), timeout)

    def describe(self, region: str = "", timeout: float | None = None) -> Description:
        """What is there, as a replica of the own region tells it, or the one of another region that knows most."""
        return self._call(self._async.describe(region), timeout)

    def why(self, stream: str, seq: int) -> Reason:
        """What has become of a number."""
        return self._call(self._async.why(stream, seq))

    def streams(self, pattern: str = "") -> list[StreamInfo]:
        """All streams (whose whole name matches a regular expression), and how they stand."""
        return self._call(self._async.streams(pattern))

    def stream(self, name: str) -> StreamInfo:
        """One stream, and how it stands."""
        return self._call(self._async.stream(name))

    def create_stream(self, name: str, **options: Any) -> StreamInfo:
        """Create a stream; options region, attrs, gc."""
        return self._call(self._async.create_stream(name, **options))

    def alter_stream(self, name: str, *, attrs: str) -> StreamInfo:
        """Add attributes to a stream."""
        return self._call(self._async.alter_stream(name, attrs=attrs))

    def delete_stream(self, name: str) -> StreamInfo:
        """Delete a stream and all its events."""
        return self._call(self._async.delete_stream(name))

    def join(self, group: str) -> NoReturn:
        """Not built yet."""
        self._async.join(group)

    @property
    def region(self) -> str:
        """The region that subscriptions are fed from."""
        return self._async.region

    @property
    def client_id(self) -> str:
        """The id it publishes under."""
        return self._async.client_id


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """In a thread of its own: run a loop until it is stopped, then cancel what is still under way in it."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(_end())
    finally:
        loop.close()


async def _end() -> None:
    """Cancel what is under way, and give calls that have ended just now one more turn of the loop to return."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.sleep(0)


def _besides(error: Exception, count: int) -> Exception:
    """An error that tells of so many other posts as well."""
    if count:
        error.args = (f"{error}; besides, {count} other posted events were refused and not published", *error.args[1:])
    return error


def _not_open() -> Closed:
    return Closed("the connection is not open; use with tidings.sync.connect(...)")


class BlockingSink:
    """One batch of a writer, for blocking code."""

    def __init__(self, connection: BlockingConnection, sink: AsyncSink, timeout: float | None) -> None:
        self._connection = connection
        self._sink = sink
        self._timeout = timeout

    def part(self, partition: int) -> BlockingPart:
        """A new attempt at one partition."""
        return BlockingPart(self._connection, self._sink.part(partition), self._timeout)

    def commit(self, parts: Sequence[Attempt]) -> Ack | None:
        """Publish what these parts have staged."""
        return self._connection._call(self._sink.commit(parts), self._timeout)

    def abort(self) -> None:
        """Drop what this run has staged."""
        self._connection._call(self._sink.abort(), self._timeout)


class BlockingPart:
    """One attempt at a partition, for blocking code."""

    def __init__(self, connection: BlockingConnection, part: AsyncPart, timeout: float | None) -> None:
        self._connection = connection
        self._part = part
        self._timeout = timeout

    def put(self, batch: pa.RecordBatch) -> None:
        """Stage rows."""
        self._connection._call(self._part.put(batch), self._timeout)

    def finish(self) -> Attempt:
        """Wait until everything is staged."""
        return self._connection._call(self._part.finish(), self._timeout)


class BlockingLease:
    """A lease for blocking code: ``with`` (or `open`) waits for it. It is renewed in the background."""

    def __init__(self, connection: BlockingConnection, opening: LeaseOpening) -> None:
        self._connection = connection
        self._opening = opening
        self._lease: HeldLease | None = None

    def open(self, timeout: float | None = None) -> BlockingLease:
        """Wait for it; raises `LeaseExpired`, or `TimeoutError` if no replica answers in time."""
        self._lease = self._connection._call(self._opening.open(), timeout)
        return self

    def __enter__(self) -> BlockingLease:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def asof(self) -> int:
        """Rows can be read as of this number, and later ones."""
        return self._held.asof

    @property
    def name(self) -> str:
        """By which it can be resumed."""
        return self._held.name

    def move(self, asof: int, timeout: float | None = None) -> None:
        """Rows are needed as of this number and later ones only."""
        self._connection._call(self._held.move(asof), timeout)

    def check(self) -> None:
        """Raise `LeaseExpired` if it is over."""
        self._held.check()

    def release(self) -> None:
        """It is needed no longer."""
        self._connection._call(_called(self._held.release))

    def leave(self) -> None:
        """Renew it no longer, and do not release it: another client may resume it before it expires."""
        self._connection._call(_called(self._held.leave))

    @property
    def _held(self) -> HeldLease:
        if self._lease is None:
            raise Closed("the lease is not open; use with t.lease(...)")
        return self._lease


async def _called(call: Callable[[], None]) -> None:
    call()


class BlockingReading:
    """A read for blocking code: ``with`` opens it, ``for`` takes rows, a span at a time."""

    def __init__(self, connection: BlockingConnection, reading: AsyncReading) -> None:
        self._connection = connection
        self._reading = reading

    def __enter__(self) -> BlockingReading:
        self._connection._call(self._reading.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(Closed):  # with its connection
            self._connection._call(self._reading.close())

    def __iter__(self) -> Iterator[EventRows]:
        while spans := self.take():
            yield from spans

    def take(self, timeout: float | None = None) -> list[EventRows]:
        """The next spans, as many as are there; empty at the end. Raises `TimeoutError` if none comes in time."""
        return self._connection._call(self._reading.take(), timeout)


class BlockingSubscription:
    """A subscription for blocking code: ``with`` opens it, ``for`` takes events."""

    def __init__(self, connection: BlockingConnection, opening: Opening) -> None:
        self._connection = connection
        self._opening = opening
        self._subscription: AsyncSubscription | None = None
        self._rest: Iterator[Event] = iter(())

    def __enter__(self) -> BlockingSubscription:
        self._subscription = self._connection._call(self._opening.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._subscription is not None:
            with suppress(Closed):  # with its connection
                self._connection._call(self._subscription.close())

    def __iter__(self) -> Iterator[Event]:
        if self._open.durable:
            while True:
                yield self.next()
        while True:
            yield from self._rest
            self._rest = iter(self._connection._call(self._open.events()))

    def next(self, timeout: float | None = None) -> Event:
        """The next event; raises `TimeoutError` if none comes in time."""
        event = next(self._rest, None)
        return event if event is not None else self._connection._call(self._open.next(timeout))

    def spans(self) -> Iterator[EventRows]:
        """Spans as they come, rows in columns."""
        spans = self._open.spans()
        while True:
            yield self._connection._call(anext(spans))  # type: ignore[arg-type]

    def where(self, where: str | None) -> dict[str, int]:
        """Change the filter; from the numbers returned on, one for each stream, the new one holds."""
        return self._connection._call(self._open.where(where))

    def ack(self) -> None:
        """Acknowledge everything that was handed out, and wait until that is durable."""
        self._connection._call(self._open.ack())

    @property
    def _open(self) -> AsyncSubscription:
        if self._subscription is None:
            raise Closed("the subscription is not open; use with t.subscribe(...)")
        return self._subscription
