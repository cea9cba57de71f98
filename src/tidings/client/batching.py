"""Posted events become batches: `post` only appends to lists, and the lists are sent when it pays.

Each stream has a *lane* with the lists of its events. They become a *chunk*, which goes to the publisher

    on the next turn of the loop     if nothing was sent for QUIET, or the last batch had only a FEW events and less
                                     than BUSY are unanswered: nothing waits when idle
    after WAIT                       otherwise: batches grow with the load. A batch costs its replicas as much as
                                     thousands of events, so a thousand batches a second are better than ten thousand
    at CHUNK events or CHUNK_BYTES   in any case, as soon as the publisher takes another batch

(decision 0006). Events of a stream keep the order of the calls; `publish` and tables use the same lanes. Each chunk is
answered once: acknowledged, or failed with a reason.

Bounds: at most PENDING events and PENDING_BYTES are unanswered. Beyond that the first event of a chunk raises `Full`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, TypeAlias

import pyarrow as pa

from tidings.client.errors import Full, NotPublished, PayloadTooLarge, PublishFailed
from tidings.client.events import Ack
from tidings.core.errors import BadAttribute, BadInput, TidingsError
from tidings.core.filters import ARROW, AttrType, parse_attributes
from tidings.core.ids import RegionId, StreamId
from tidings.core.rows import Rows, data_rows
from tidings.core.small_rows import SmallRows
from tidings.core.span import MESSAGE_BYTES
from tidings.core.wire import SMALL_BYTES, SMALL_ROWS
from tidings.protocols.services.catalog import StreamDef

BUSY = 4  # decision 0006
QUIET = 0.0005  # seconds; ours, so that a thousand events a second are a thousand batches
FEW = 32  # events; ours: half of what an application posts that yields every 64
CHUNK = 4096  # decision 0006
WAIT = 0.002  # decision 0006: half of it goes to the loop's clock
CHUNK_BYTES = 1 << 20  # ours, because a batch of large payloads must stay far below a frame's limit
WINDOW = 16  # batches that a publisher has under way (PublishSettings.window); more would only wait there
PENDING = 1 << 18  # ours: a third of a second at 0.7 M events/s
PENDING_BYTES = 64 << 20  # ours
MAX_PAYLOAD = 1 << 20  # bytes of key, payload and attributes; ours, because a stream carries events, not files
SHORT = 1 << 12  # ours: a payload below this needs no second look at its size
ACKS = 1 << 16  # ranges kept for the next flush; ours, because one that never comes must not fill the memory

Attrs: TypeAlias = Mapping[str, Any]
SubmitRows: TypeAlias = Callable[[RegionId, StreamId, Rows, int], None]
Waiter: TypeAlias = tuple[int, "asyncio.Future[Ack]"]

_ACCEPTED: dict[AttrType, frozenset[type]] = {
    AttrType.STRING: frozenset({str}),
    AttrType.BOOLEAN: frozenset({bool}),
    AttrType.INT: frozenset({int}),
    AttrType.BIGINT: frozenset({int}),
    AttrType.DOUBLE: frozenset({float, int}),
    AttrType.TIMESTAMP: frozenset({datetime}),
    AttrType.DATE: frozenset({date}),
    AttrType.BINARY: frozenset({bytes}),
}
_WRITTEN = {
    AttrType.TIMESTAMP: "a datetime, or in JSON '2026-05-04T12:00:00Z'",
    AttrType.DATE: "a date, or in JSON '2026-05-04'",
    AttrType.BINARY: "bytes, or in JSON their hexadecimal digits",
}
"""How to write a value that has no JSON type of its own."""
_BITS = {AttrType.INT: 31, AttrType.BIGINT: 63}
_FIXED = 9  # bytes of a value in a column, but for what strings and bytes have of their own
WHOLE = -1
"""In place of the position of an event: the waiter wants to know of the whole chunk."""


class Lane:
    """What has been posted to one stream and is not a chunk yet."""

    __slots__ = (
        "armed",
        "attributes",
        "attrs",
        "declared",
        "id",
        "keys",
        "outlet",
        "payloads",
        "rules",
        "size",
        "stream",
        "waiters",
        "width",
    )

    def __init__(self, stream: StreamDef, outlet: Outlet) -> None:
        self.stream = stream.name
        self.id = stream.id  # what is posted here is for this stream, whatever its name means when it is sent
        self.outlet = outlet
        self.armed = False  # a flush is on its way
        self.renew()
        self.declare(stream)

    def declare(self, stream: StreamDef) -> None:
        """What attributes there are."""
        self.attributes = stream.attrs
        self.declared = parse_attributes(stream.attrs)
        self.rules = {name: (kind, _ACCEPTED[kind], _BITS.get(kind, 0)) for name, kind in self.declared.items()}
        self.width = _FIXED * len(self.declared)  # bytes of a row in columns for them, however empty

    def renew(self) -> None:
        """Begin anew."""
        self.keys: list[bytes | None] = []
        self.payloads: list[bytes] = []
        self.attrs: list[Attrs | None] | None = None  # None while no event has any
        self.waiters: list[Waiter] = []
        self.size = 0

    def admit(self, attrs: Attrs) -> int:
        """How many bytes the values have of their own; raises `BadAttribute` unless each fits its declaration."""
        if type(attrs) is not dict and not isinstance(attrs, Mapping):
            raise BadAttribute(f"{self.stream}: attributes are a dict, not {type(attrs).__name__} ({attrs!r:.60})")
        size = 0
        for name, value in attrs.items():
            rule = self.rules.get(name)
            if rule is None:
                known = ", ".join(self.declared) or "none"
                raise BadAttribute(f"{self.stream}: attribute {name!r} is not declared; declared are: {known}", name)
            if value is None:
                continue
            kind, accepted, bits = rule
            if type(value) not in accepted:
                hint = f": give {_WRITTEN[kind]}" if kind in _WRITTEN else ""
                found = f"{type(value).__name__} ({value!r:.80})"
                raise BadAttribute(f"{self.stream}: attribute {name!r} is declared {kind}, not {found}{hint}", name)
            if kind is AttrType.STRING:
                try:
                    size += len(value) if value.isascii() else len(value.encode())
                except UnicodeEncodeError as error:
                    raise BadAttribute(f"{self.stream}: attribute {name!r} is no text: {error}", name) from None
            elif kind is AttrType.BINARY:
                size += len(value)
            elif bits and value.bit_length() > bits and value != -(1 << bits):
                raise BadAttribute(f"{self.stream}: attribute {name!r} is declared {kind}; {value} does not fit", name)
            elif kind is AttrType.TIMESTAMP and value.tzinfo is None:
                raise BadAttribute(f"{self.stream}: attribute {name!r} needs a time zone: {value}", name)
        return size


class PostedChunk:
    """Events on their way as one batch."""

    __slots__ = ("attrs", "count", "id", "keys", "number", "payloads", "rows", "sent", "size", "stream", "waiters")

    def __init__(self, lane: Lane, count: int, size: int, waiters: list[Waiter]) -> None:
        self.stream = lane.stream
        self.id = lane.id
        self.count = count
        self.size = size
        self.waiters = waiters
        self.number = 0
        self.sent = False
        self.keys: list[bytes | None] = []
        self.payloads: list[bytes] = []
        self.attrs: list[Attrs | None] | None = None
        self.rows: Rows | None = None  # of a table

    def build(self, declared: Mapping[str, AttrType]) -> Rows:
        """The rows; raises `BadInput` for values that no column can hold."""
        if self.rows is not None:
            return self.rows
        if self.attrs is None:
            if self.count <= SMALL_ROWS and self.size <= SMALL_BYTES:
                return SmallRows(self.keys, list[bytes | None](self.payloads))
            return data_rows(1, self.keys, self.payloads)
        try:
            columns = {
                name: pa.array([None if a is None else a.get(name) for a in self.attrs], ARROW[kind])
                for name, kind in declared.items()
            }
        except (pa.ArrowException, UnicodeError, OverflowError) as error:
            raise BadAttribute(f"{self.stream}: {error}") from error
        return data_rows(1, self.keys, self.payloads, None, columns)

    def failure(self, reason: str) -> NotPublished:
        """What to tell of it."""
        attrs = None if self.attrs is None else [None if a is None else dict(a) for a in self.attrs]
        return NotPublished(self.stream, self.count, reason, self.sent, self.keys, self.payloads, attrs)


class Outlet:
    """The way to the publisher of one region."""

    __slots__ = ("broken", "fed_at", "lanes", "last", "ready", "region", "unanswered")

    def __init__(self, region: RegionId) -> None:
        self.region = region
        self.ready: deque[tuple[PostedChunk, Lane]] = deque()  # until the publisher takes another batch
        self.unanswered = 0  # batches with the publisher
        self.fed_at = 0.0  # when it got the last one
        self.last = 0  # how many events that had
        self.lanes: list[Lane] = []
        self.broken: TidingsError | None = None

    @property
    def idle(self) -> bool:
        """Whether it pays to send what there is."""
        return self.last < FEW and self.unanswered < BUSY


class Flush:
    """A call of `flush`: it waits for the chunks up to ``target`` and returns the acks of those beyond ``since``."""

    __slots__ = ("done", "since", "target")

    def __init__(self, since: int, target: int, done: asyncio.Future[None]) -> None:
        self.since = since
        self.target = target
        self.done = done


class Batcher:
    """All lanes of a client. ``submit`` hands a batch to the publisher of a region, ``prompt`` has it sent now."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, submit: SubmitRows, prompt: Callable[[], None] | None = None
    ) -> None:
        self._loop = loop
        self._submit = submit
        self._prompt = prompt
        self.lanes: dict[StreamId, Lane] = {}
        self.outlets: dict[RegionId, Outlet] = {}
        self.closed: TidingsError | None = None
        self.batches = 0  # submitted so far
        self._pending = 0  # events in chunks that are not answered
        self._pending_bytes = 0
        self._number = 0
        self._open: dict[int, tuple[PostedChunk, Outlet]] = {}  # chunks that are not answered, oldest first
        self._acks: deque[tuple[int, Ack]] = deque(maxlen=ACKS)  # with the number of the chunk
        self._failures: list[tuple[int, NotPublished]] = []
        self._told = 0  # a flush has told of the chunks up to this number
        self._flushing: list[Flush] = []  # targets ascend
        self._draining: list[asyncio.Future[None]] = []

    # --- taking events ----------------------------------------------------------------------------------

    def lane(self, stream: StreamDef) -> Lane:
        """The lane of a stream; a later definition may have more attributes."""
        lane = self.lanes.get(stream.name)
        if lane is not None and lane.id != stream.id:
            self.leave(lane)
            lane = None
        if lane is None:
            outlet = self.outlets.setdefault(stream.region, Outlet(stream.region))
            lane = self.lanes[stream.name] = Lane(stream, outlet)
            outlet.lanes.append(lane)
        else:
            lane.declare(stream)
        return lane

    def leave(self, lane: Lane) -> None:
        """The name of a lane may mean another stream: send what it holds, and take nothing more."""
        self.cut(lane)
        if self.lanes.get(lane.stream) is lane:
            del self.lanes[lane.stream]
            lane.outlet.lanes.remove(lane)

    def put(self, lane: Lane, key: bytes | None, payload: bytes, attrs: Attrs | None) -> None:
        """Take one event."""
        if type(payload) is not bytes or (key is not None and type(key) is not bytes):
            key, payload = _as_bytes(lane.stream, key, payload)
        size = len(payload) + (len(key) if key else 0)
        if attrs:
            size += lane.admit(attrs)
        if size > MAX_PAYLOAD:
            raise PayloadTooLarge(
                f"{lane.stream}: key, payload and attributes of {size} bytes; the limit is {MAX_PAYLOAD}: split it, "
                "or publish a link"
            )
        payloads = lane.payloads
        if not payloads:
            self._begin(lane)
        if attrs:
            if lane.attrs is None:
                lane.attrs = [None] * len(payloads)
                lane.size += lane.width * len(payloads)
            lane.size += lane.width
            lane.attrs.append(attrs.copy() if type(attrs) is dict else dict(attrs))  # the caller may use its own again
        elif lane.attrs is not None:
            lane.size += lane.width
            lane.attrs.append(None)
        payloads.append(payload)
        lane.keys.append(key)
        lane.size += size
        if len(payloads) >= CHUNK or lane.size >= CHUNK_BYTES:
            self.cut(lane)

    def put_waiting(self, lane: Lane, key: bytes | None, payload: bytes, attrs: Attrs | None) -> asyncio.Future[Ack]:
        """Take one event; the future is done when it is durable."""
        future: asyncio.Future[Ack] = self._loop.create_future()
        if not lane.payloads:
            self._begin(lane)
        at, waiters = len(lane.payloads), lane.waiters
        waiters.append((at, future))  # before a full lane is cut
        try:
            self.put(lane, key, payload, attrs)
        except BaseException:
            waiters.remove((at, future))
            raise
        return future

    def put_rows(self, lane: Lane, rows: Sequence[Rows]) -> list[asyncio.Future[Ack]]:
        """Take whole batches, behind what was posted before."""
        self._refuse(lane.outlet)
        largest = max([batch.nbytes for batch in rows], default=0)
        if largest > MESSAGE_BYTES:  # its owner would refuse it, or never see it
            raise PayloadTooLarge(f"{lane.stream}: a batch of {largest} bytes; the limit is {MESSAGE_BYTES}: split it")
        self.cut(lane)
        futures: list[asyncio.Future[Ack]] = []
        for batch in rows:
            future: asyncio.Future[Ack] = self._loop.create_future()
            chunk = PostedChunk(lane, batch.count, batch.nbytes, [(WHOLE, future)])
            chunk.rows = batch
            futures.append(future)
            self._queue(chunk, lane)
        self._feed(lane.outlet)
        return futures

    def _refuse(self, outlet: Outlet) -> None:
        if self.closed is not None:
            raise self.closed
        if outlet.broken is not None:
            raise outlet.broken

    def _begin(self, lane: Lane) -> None:
        """The first event of a chunk: see that it will be sent, and that there is room."""
        self._refuse(lane.outlet)
        if self.full:
            raise Full(
                f"{lane.stream}: {self._pending} posted events ({self._pending_bytes} bytes) are not durable yet; "
                "await drain() and post this one again"
            )
        if not lane.armed:
            lane.armed = True
            outlet = lane.outlet
            if outlet.idle or time.monotonic() - outlet.fed_at >= QUIET:
                self._loop.call_soon(self._turn, lane)
            else:
                self._loop.call_later(WAIT, self._turn, lane)

    def _turn(self, lane: Lane) -> None:
        """The time of a lane has come; a publisher that takes nothing more leaves it to the next answer."""
        lane.armed = False
        if lane.payloads and lane.outlet.unanswered < WINDOW:
            self.cut(lane)
            if self._prompt is not None:
                self._prompt()

    def cut(self, lane: Lane) -> None:
        """Make a chunk of what a lane holds."""
        if not lane.payloads:
            return
        chunk = PostedChunk(lane, len(lane.payloads), lane.size, lane.waiters)
        chunk.keys, chunk.payloads, chunk.attrs = lane.keys, lane.payloads, lane.attrs
        lane.renew()
        self._queue(chunk, lane)
        self._feed(lane.outlet)

    def _queue(self, chunk: PostedChunk, lane: Lane) -> None:
        self._number += 1
        chunk.number = self._number
        self._open[chunk.number] = (chunk, lane.outlet)
        self._pending += chunk.count
        self._pending_bytes += chunk.size
        lane.outlet.ready.append((chunk, lane))

    def _feed(self, outlet: Outlet) -> None:
        """Hand on what the publisher takes."""
        ready = outlet.ready
        while ready and outlet.unanswered < WINDOW:
            chunk, lane = ready.popleft()
            try:
                rows = chunk.build(lane.declared)
            except BadInput as error:
                self._settle(chunk.number, None, error)
                continue
            outlet.unanswered += 1
            outlet.fed_at = time.monotonic()
            outlet.last = chunk.count
            self.batches += 1
            chunk.sent = True
            self._submit(outlet.region, chunk.id, rows, chunk.number)

    # --- answers ------------------------------------------------------------------------------------------

    def acked(self, number: int, lo: int, hi: int) -> None:
        """A batch is committed as [lo, hi)."""
        outlet = self._answered(number)
        if outlet is not None:
            self._settle(number, (lo, hi), None)
            self._next(outlet)

    def refused(self, number: int, error: TidingsError) -> None:
        """A batch was not taken; the others are."""
        outlet = self._answered(number)
        if outlet is not None:
            self._open[number][0].sent = False  # it is certain that it is not published
            self._settle(number, None, error)
            self._next(outlet)

    def fail(self, region: RegionId, error: TidingsError) -> None:
        """Nothing more can be published to a region."""
        outlet = self.outlets.get(region)
        if outlet is None or outlet.broken is not None:
            return
        for lane in outlet.lanes:
            if lane.payloads:
                self._queue_last(lane)
        outlet.broken = error
        outlet.ready.clear()
        for number in [number for number, (_, its) in self._open.items() if its is outlet]:
            self._settle(number, None, error)

    def close(self, error: TidingsError) -> None:
        """Nothing more is taken, and what is not answered fails."""
        self.closed = error
        for region in list(self.outlets):
            self.fail(region, error)

    def _queue_last(self, lane: Lane) -> None:
        chunk = PostedChunk(lane, len(lane.payloads), lane.size, lane.waiters)
        chunk.keys, chunk.payloads, chunk.attrs = lane.keys, lane.payloads, lane.attrs
        lane.renew()
        self._queue(chunk, lane)

    def _answered(self, number: int) -> Outlet | None:
        found = self._open.get(number)
        if found is None:
            return None
        found[1].unanswered -= 1
        return found[1]

    def _next(self, outlet: Outlet) -> None:
        """An answer makes room: what is ready goes, or else what lanes hold, unless that waits for its time."""
        self._feed(outlet)
        if not outlet.ready:
            for lane in outlet.lanes:
                if lane.payloads and (outlet.idle or (not lane.armed and outlet.unanswered < WINDOW)):
                    self.cut(lane)

    def _settle(self, number: int, place: tuple[int, int] | None, error: TidingsError | None) -> None:
        chunk, _ = self._open.pop(number)
        self._pending -= chunk.count
        self._pending_bytes -= chunk.size
        posted = chunk.count - len(chunk.waiters) if chunk.rows is None else 0
        if place is not None:
            lo, hi = place
            for at, future in chunk.waiters:
                if not future.done():
                    future.set_result(
                        Ack(chunk.stream, lo, hi) if at == WHOLE else Ack(chunk.stream, lo + at, lo + at + 1)
                    )
            if posted:
                self._remember(number, Ack(chunk.stream, lo, hi))
        else:
            assert error is not None
            for _, future in chunk.waiters:
                if not future.done():
                    future.set_exception(error)
            if posted and len(self._failures) < ACKS:
                self._failures.append((number, chunk.failure(str(error))))
        self._wake()

    def _remember(self, number: int, ack: Ack) -> None:
        """Keep an answer for the next flush: one range with the last, if no flush can want only one of the two."""
        acks = self._acks
        if acks:
            its, last = acks[-1]
            wanted = self._flushing[-1].target if self._flushing else 0
            if last.hi == ack.lo and last.stream == ack.stream and its > wanted < number:
                acks[-1] = max(its, number), Ack(ack.stream, last.lo, ack.hi)
                return
        acks.append((number, ack))

    def _wake(self) -> None:
        if self._flushing:
            oldest = next(iter(self._open), self._number + 1)
            for flush in self._flushing:
                if flush.target < oldest and not flush.done.done():
                    flush.done.set_result(None)
        if self._draining and not self.crowded:
            for drain in self._draining:
                if not drain.done():
                    drain.set_result(None)
            self._draining.clear()

    # --- waiting ------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether no chunk may begin."""
        return self._pending >= PENDING or self._pending_bytes >= PENDING_BYTES

    @property
    def crowded(self) -> bool:
        """Whether it is better to wait than to post more."""
        return self._pending >= PENDING // 2 or self._pending_bytes >= PENDING_BYTES // 2

    @property
    def pending(self) -> int:
        """Events in chunks that are not answered."""
        return self._pending

    async def drain(self) -> None:
        """Let the loop send, and wait while too much is pending."""
        await asyncio.sleep(0)
        while self.crowded and self.closed is None:
            drain: asyncio.Future[None] = self._loop.create_future()
            self._draining.append(drain)
            await drain

    async def flush(self) -> list[Ack]:
        """Wait until everything taken so far is answered; what was posted since the last flush must be durable.

        Calls that wait at the same time all return what they have in common: posts do not say which call is theirs.
        """
        for lane in self.lanes.values():
            self.cut(lane)
        flush = Flush(self._told, self._number, self._loop.create_future())
        self._flushing.append(flush)
        try:
            if self._open:
                await flush.done
            since, target = flush.since, flush.target
            acks = _joined([ack for number, ack in self._acks if since < number <= target])
            failures = [failure for number, failure in self._failures if since < number <= target]
            self._told = max(self._told, target)
        finally:
            self._flushing.remove(flush)
            self._forget()
        if failures:
            raise PublishFailed(in_words(failures), failures, acks)
        return acks

    def _forget(self) -> None:
        """Drop the answers that a flush has told of and no other waits for."""
        told = min([self._told, *[flush.since for flush in self._flushing]])
        self._acks = deque([each for each in self._acks if each[0] > told], ACKS)
        self._failures = [each for each in self._failures if each[0] > told]


def _joined(acks: list[Ack]) -> list[Ack]:
    """Neighbours as one range."""
    joined: list[Ack] = []
    for ack in acks:
        if joined and joined[-1].hi == ack.lo and joined[-1].stream == ack.stream:
            joined[-1] = Ack(ack.stream, joined[-1].lo, ack.hi)
        else:
            joined.append(ack)
    return joined


def in_words(failures: Sequence[NotPublished]) -> str:
    """What a caller is told of some failures."""
    first = failures[0]
    count = sum([each.count for each in failures])
    doubt = "may or may not be published" if first.in_doubt else "not published"
    keys = ", ".join([repr(key) for key in first.keys[:3]])
    more = f" and {len(failures) - 1} more batches" if len(failures) > 1 else ""
    return (
        f"{count} posted events are not durable: {first.count} of {first.stream} ({doubt}; keys {keys}, ...){more}: "
        f"{first.reason}; `failed` has them all"
    )


def _as_bytes(stream: StreamId, key: Any, payload: Any) -> tuple[bytes | None, bytes]:
    for name, value in (("key", key), ("payload", payload)):
        if value is None and name == "key":
            continue
        if not isinstance(value, bytes | bytearray | memoryview):
            raise BadInput(f"{stream}: {name} is bytes, not {type(value).__name__} ({value!r:.60}): encode it first")
    return None if key is None else bytes(key), bytes(payload)
