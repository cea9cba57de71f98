"""A loading cache that never serves a value older than an invalidation it has received.

An event of the stream invalidates the value under its key (an event without a key: all values). `get` returns the
cached value, or loads it; concurrent gets of a key share one load.

The rule against the fill race: every load remembers the *version* at which it began, the number of the stream up to
which the cache had heard. An invalidation of the key lifts the key's *floor* above that. A value whose version is below
the floor of its key is neither stored nor served: it is loaded again. So in whatever order a write, its invalidation
and a slow read of the old value arrive, the old value is gone once the invalidation has arrived.

The cache is current up to ``version``, as of the last message from its replica. ``age`` is the time since it had all
that its region had; ``fresh`` says whether that is less than FRESH seconds ago. With ``max_age`` a value is loaded
rather than served while the cache is older. Numbers without an event are no gap where events are collected by key
alone: the later event with that key follows. On other streams, or when a collecting event follows such numbers,
invalidations may be missing: the cache drops all values. While it is not subscribed it loads every time and stores
nothing.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from tidings.client.errors import Closed, TidingsError, Unsettled
from tidings.core.gc import GcPolicy
from tidings.core.rows import GC, ArrowRows
from tidings.core.span import Span

if TYPE_CHECKING:
    from tidings.client.connection import Connection
    from tidings.client.subscription import Subscription

V = TypeVar("V")
Load = Callable[[bytes], Awaitable[V] | V]

FRESH = 2.0  # seconds; ours: as long as a subscriber waits for a sign of life
ATTEMPTS = 32  # loads of one get; ours, because a key that is invalidated faster than loaded is better reported
RETRY = 0.5  # seconds before an ended subscription is tried again; ours


class CacheEntry(Generic[V]):
    """A cached value, and the number up to which the stream had been heard when its load began."""

    __slots__ = ("dead", "value", "version")

    def __init__(self, value: V, version: int) -> None:
        self.value = value
        self.version = version
        self.dead = False  # invalidated: a caller that still waits for this load must not get it


class Fill:
    """A load under way."""

    __slots__ = ("began", "entry", "floor", "task")

    def __init__(self, began: int) -> None:
        self.began = began
        self.floor = began  # what is older than this must not be stored
        self.task: asyncio.Task[Any] | None = None
        self.entry: CacheEntry[Any] | None = None  # what it has stored

    @property
    def valid(self) -> bool:
        """Nothing has invalidated the value, neither while it was loaded nor since."""
        return self.floor <= self.began and (self.entry is None or not self.entry.dead)


class Cache(Generic[V]):
    """Values by key, loaded by ``load`` (a function or coroutine function of the key), dropped by events of a stream.

    Keys are the bytes that events have. At most ``max_entries`` values are kept, those used last.
    """

    def __init__(
        self,
        t: Connection,
        stream: str,
        *,
        load: Load[V],
        max_entries: int = 100_000,
        max_age: float | None = None,
    ) -> None:
        self._t = t
        self._stream = stream
        self._load = load
        self._max = max_entries
        self._max_age = max_age
        self._entries: OrderedDict[bytes, CacheEntry[V]] = OrderedDict()
        self._fills: dict[bytes, Fill] = {}
        self._subscription: Subscription | None = None
        self._by_key = False
        self._holes = False  # numbers without an event have been seen
        self._version = 0
        self._id = ""  # of the stream that was last listened to
        self._complete: float | None = None  # when all there was had been heard
        self._closed = False
        self._ready = asyncio.Event()
        self.hits = self.misses = self.invalidated = self.dropped = self.reloads = self.evicted = 0
        self.error: TidingsError | None = None  # why it is not subscribed
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._follow(), name=f"cache of {stream}")

    # --- life -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Cache[V]:
        await self.ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def ready(self) -> None:
        """Wait until the cache is subscribed; raises if it cannot be."""
        await self._ready.wait()
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        """Drop everything and listen no more."""
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._drop_all()

    # --- reading ------------------------------------------------------------------------------------------

    async def get(self, key: bytes) -> V:
        """The value under a key: cached, or loaded after the last invalidation of it that was received."""
        entry = self._entries.get(key)
        if entry is not None and self._may_serve():
            self._entries.move_to_end(key)
            self.hits += 1
            return entry.value
        if self._closed:
            raise Closed("the cache is closed")
        self.misses += 1
        for _ in range(ATTEMPTS):
            fill = self._fills.get(key)
            if fill is None:
                fill = Fill(self._version)
                fill.task = self._loop.create_task(self._fill(key, fill))
                fill.task.add_done_callback(_seen)
                self._fills[key] = fill
            assert fill.task is not None
            value: V = await asyncio.shield(fill.task)
            if fill.valid:
                return value
            self.reloads += 1
        raise Unsettled(f"{self._stream}: {key!r} was invalidated during each of {ATTEMPTS} loads; try again")

    def peek(self, key: bytes) -> V | None:
        """The value under a key if it is cached and may be served; nothing is loaded."""
        entry = self._entries.get(key)
        return entry.value if entry is not None and self._may_serve() else None

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    @property
    def version(self) -> int:
        """Every invalidation below this number has been applied."""
        return self._version

    @property
    def age(self) -> float:
        """Seconds since everything that the region had was here; infinite before that."""
        return float("inf") if self._complete is None else self._loop.time() - self._complete

    @property
    def fresh(self) -> bool:
        """Whether the cache is subscribed and has heard all there was a moment ago."""
        return self._subscription is not None and self.age < FRESH

    def _may_serve(self) -> bool:
        return self._subscription is not None and (self._max_age is None or self.age <= self._max_age)

    async def _fill(self, key: bytes, fill: Fill) -> V:
        try:
            loaded = self._load(key)
            value = await loaded if inspect.isawaitable(loaded) else loaded
        finally:
            del self._fills[key]  # nothing is awaited in between: a later caller begins a new load
        if fill.floor <= fill.began and self._subscription is not None:
            self._entries[key] = fill.entry = CacheEntry(cast(V, value), fill.began)
            self._entries.move_to_end(key)
            if len(self._entries) > self._max:
                self._entries.popitem(last=False)
                self.evicted += 1
        return cast(V, value)

    # --- listening ----------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Stay subscribed: a subscription that ends takes everything cached with it, and another is tried."""
        while not self._closed:
            try:
                await self._listen()
            except Closed as error:
                self.error = error
                return
            except TidingsError as error:
                self.error = error
            finally:
                self._subscription = None
                self._drop_all()
                self._ready.set()
            await asyncio.sleep(RETRY)

    async def _listen(self) -> None:
        known = await self._t.stream(self._stream)
        self._by_key = GcPolicy.parse(known.gc) == GcPolicy(by_key=True)
        async with self._t.subscribe(known.id, start="latest") as subscription:
            (feed,) = subscription.feeds.values()
            subscription.on_heard = lambda _: self._heard(subscription)
            self._version = feed.at if known.id != self._id else max(self._version, feed.at)  # another one's numbers
            self._id = known.id
            self._drop_all()  # an invalidation of what is being loaded may have come before the first that is heard
            self._subscription = subscription
            self.error = None
            self._heard(subscription)
            self._ready.set()
            async for rows in subscription.spans():
                self.apply(rows.span)
                self._heard(subscription)

    def _heard(self, subscription: Subscription) -> None:
        """A sign of life: if nothing that the region has is missing here, the cache is complete as of now."""
        (feed,) = subscription.feeds.values()
        if self._version >= feed.horizon:
            self._complete = feed.heard if self._complete is None else max(self._complete, feed.heard)

    def apply(self, span: Span) -> None:
        """Invalidate what the events of a span name."""
        rows = span.rows
        self._version = max(self._version, span.hi)
        if rows.count < span.hi - span.lo:
            self._holes = self._by_key
            if not self._by_key or span.lost:  # what is lost may have named any key, and nothing follows
                self._drop_all()
        if not isinstance(rows, ArrowRows) or not rows.count:
            return
        if self._holes and bool((rows.batch.column("kind").to_numpy() == GC).any()):
            self._holes = False  # what is missing may have been collected by this, with nothing to follow
            self._drop_all()
        keys = rows.batch.column("key")
        if keys.null_count and self._keyless(rows):
            self._drop_all()
        entries, fills = self._entries, self._fills
        for key in keys.to_pylist():
            if key in entries:
                entries.pop(key).dead = True
                self.invalidated += 1
            if fills and key in fills:
                fills[key].floor = max(fills[key].floor, span.hi)

    def _keyless(self, rows: ArrowRows) -> bool:
        """Whether an event that is no collector has no key."""
        data = rows.batch.column("kind").to_numpy() != GC
        return bool((data & rows.batch.column("key").is_null().to_numpy(zero_copy_only=False)).any())

    def _drop_all(self) -> None:
        """Vouch for nothing that is cached or being loaded."""
        self.dropped += len(self._entries)
        for entry in self._entries.values():
            entry.dead = True
        self._entries.clear()
        for fill in self._fills.values():
            fill.floor = max(fill.floor, fill.began) + 1


def _seen(task: asyncio.Task[Any]) -> None:
    """Mark the error of a load as seen: its callers get it, and if they are gone it is not logged as forgotten."""
    if not task.cancelled():
        task.exception()
