"""The clients of a real cluster: publishers and subscribers that record everything they receive.

A `Load` runs in the event loop of its creator. A `LoadWorker` runs one in a process of its own, driven over a pipe with
one JSON object per line, so that dozens of clients do not share one interpreter:

    controller: Order, then "publish", "stop", {"finish": {stream: end}}, one at a time
    worker:     {"open": n}, {"tell": Progress} twice a second, {"ends": ...}, {"done": ...}

Publishers use tables, posts with a flush, or single events with many calls in progress. Each goes on until everything
it sent is acknowledged; what is not, is recorded as a demand that was not met. A publisher whose session was forgotten
connects again, and a subscriber opens a subscription again that ended because a stream was unknown; both are recorded.
Subscribers are plain, durable (closed and opened again now and then: another incarnation), peers of the fabric, or
caches; witnesses keep all rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa

from tidings.campaign.cluster.client_trace import LAG, Evidence, Sent, payload_of
from tidings.client.cache import Cache
from tidings.client.connection import Connection, connect
from tidings.client.errors import PublishFailed, SubscriptionEnded, TidingsError, UnknownStream
from tidings.client.events import Ack
from tidings.client.subscription import Subscription
from tidings.core.errors import BadInput
from tidings.core.ids import FIRST, StreamId, stream_name
from tidings.core.predicates import Predicate
from tidings.core.rows import GC, before_rows, data_rows, where_rows
from tidings.core.span import Span
from tidings.net.loop import run

TELL = 0.5  # seconds between a worker's words
LATE = 0.05  # seconds by which one may be late without being noted; ours, because a busy core does that
WINDOW = 16  # single events under way
FORGOTTEN = "has forgotten this session"  # what a client says of a region that lost its memory
SESSIONS_FORGOTTEN = "sessions_forgotten"
SUBSCRIPTIONS_ENDED = "subscriptions_ended"
AGAIN = 0.2  # seconds until a subscription that has ended is opened again
GOODBYE = 15.0  # seconds that clients have to hang up; ours
Way = Literal["table", "post", "single"]
Kind = Literal["plain", "durable", "peer", "cache"]


class PublisherLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One publisher; ``collect_every`` so many batches it publishes a collecting event."""

    name: str
    url: str
    stream: StreamId
    rate: float
    batch: int
    keys: int
    way: Way = "table"
    by_key: bool = True
    collect_every: int = 0
    seed: int = 0


class Subscribing(msgspec.Struct, frozen=True, kw_only=True):
    """One subscriber."""

    name: str
    url: str
    streams: list[StreamId]
    kind: Kind = "plain"
    witness: bool = False
    every: float = 2.0  # seconds after which a durable one leaves and comes back


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told first."""

    publishers: list[PublisherLoad] = []
    subscribers: list[Subscribing] = []
    evidence: str = ""  # the file to leave behind


class Progress(msgspec.Struct, kw_only=True):
    """How a load stands."""

    acked: int = 0
    delivered: int = 0
    horizons: dict[str, dict[StreamId, int]] = {}  # by subscriber
    ends: dict[StreamId, int] = {}  # as acknowledged
    hits: int = 0
    loads: int = 0


# --- publishers ---------------------------------------------------------------------------------------------


class LoadPublisher:
    """Publishes at a rate until it is told to stop; everything it sent is acknowledged then, or it has failed."""

    def __init__(self, order: PublisherLoad, evidence: Evidence) -> None:
        self.order = order
        self.evidence = evidence
        self.acked = 0
        self.end = FIRST
        self.error: str | None = None
        self.forgotten = 0  # sessions that the stream's region has forgotten
        self._failure: TidingsError | None = None  # of a call under way
        self._batches = 0
        self._next = 1
        self._rng = random.Random(f"{order.name}/{order.seed}")
        self._stop = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Begin nothing more."""
        self._stop.set()

    async def run(self) -> None:
        """Until told to stop and everything is answered; connects again where a region has forgotten its session."""
        try:
            while not await self._publish():
                self.forgotten += 1
        except TidingsError as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            for task in self._under_way:
                task.cancel()

    async def _publish(self) -> bool:
        """Publish over one connection; False if its session was forgotten, and the unanswered batches with it."""
        try:
            async with connect(self.order.url, client_id=self.order.name, timeout=30.0) as t:
                await self._publish_with(t)
        except PublishFailed as error:
            if FORGOTTEN not in str(error):
                raise
            for batch in self.evidence.sent:
                if batch.publisher == self.order.name and not batch.parts:
                    batch.forgotten = True
            return False
        return True

    async def _publish_with(self, t: Connection) -> None:
        order = self.order
        pause = order.batch / order.rate
        due = time.monotonic()
        while not self._stop.is_set():
            self._batches += 1
            if order.collect_every and self._batches % order.collect_every == 0:
                await self._collect(t)
            else:
                await self._send(t)
            due = max(due + pause, time.monotonic() - 5 * pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(due - time.monotonic(), 0.001)):
                    await self._stop.wait()
        await self._all_answered()

    async def _all_answered(self) -> None:
        """Wait for the calls under way; raises what the first of them has failed with."""
        await asyncio.gather(*self._under_way)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _batch(self, count: int) -> tuple[Sent, list[bytes]]:
        """The next events, written down before they are sent."""
        order = self.order
        first, self._next = self._next, self._next + count
        keys: list[bytes | None] = [b"%d" % int(order.keys * self._rng.random() ** 2) for _ in range(count)]
        payloads = [payload_of(order.name, first + at) for at in range(count)]
        sent = Sent(order.stream, order.name, first, data_rows(1, keys, payloads).content.tolist(), keys)
        sent.sent_at = time.time()
        self.evidence.sent.append(sent)
        return sent, payloads

    def _answered(self, sent: Sent, acks: list[Ack]) -> None:
        sent.parts = [part for ack in acks for part in (ack.parts or ((ack.lo, ack.hi),))]
        sent.acked_at = time.time()
        self.acked += len(sent.hashes)
        self.end = max(self.end, *[hi for _, hi in sent.parts])

    async def _send(self, t: Connection) -> None:
        order = self.order
        if order.way == "single":
            await self._send_singly(t)
            return
        sent, payloads = self._batch(order.batch)
        if order.way == "table":
            columns = {"key": pa.array(sent.keys, pa.binary()), "payload": pa.array(payloads, pa.binary())}
            self._answered(sent, [await t.publish_table(order.stream, pa.table(columns))])
        else:
            for key, payload in zip(sent.keys, payloads, strict=True):
                t.post(order.stream, key=key, payload=payload)
            self._answered(sent, await t.flush())

    async def _send_singly(self, t: Connection) -> None:
        """Calls under way side by side; the order of calls is the order of events."""
        for _ in range(self.order.batch):
            while len(self._under_way) >= WINDOW:
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            if self._failure is not None:
                await self._all_answered()
            sent, (payload,) = self._batch(1)
            task = asyncio.ensure_future(self._one(t, sent, payload))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(0)

    async def _one(self, t: Connection, sent: Sent, payload: bytes) -> None:
        try:
            self._answered(sent, [await t.publish(self.order.stream, key=sent.keys[0], payload=payload)])
        except TidingsError as error:
            self._failure = self._failure or error

    async def _collect(self, t: Connection) -> None:
        """A collecting event: everything before a number, or all with some key."""
        order = self.order
        await self._all_answered()
        number, self._next = self._next, self._next + 1
        sent = Sent(order.stream, order.name, number, [], [None], kind=GC)
        if order.by_key and self._rng.random() < 0.5:
            where = f"key = '{self._rng.randrange(order.keys)}'"
            sent.where = Predicate.make(where, {}, True).text
            sent.hashes = where_rows(FIRST, [sent.where]).content.tolist()
            self.evidence.sent.append(sent)
            self._answered(sent, [await t.collect(order.stream, where=where)])
        else:
            sent.before = max(FIRST, self.end - 8 * order.batch)
            sent.hashes = before_rows(FIRST, [sent.before]).content.tolist()
            self.evidence.sent.append(sent)
            self._answered(sent, [await t.collect(order.stream, before=sent.before)])


# --- subscribers ----------------------------------------------------------------------------------------------


class LoadSubscriber:
    """Follows streams and writes a receipt for every span."""

    def __init__(self, order: Subscribing, evidence: Evidence) -> None:
        self.order = order
        self.evidence = evidence
        self.horizons: dict[StreamId, int] = {}
        self.firsts: dict[StreamId, int] = {}  # where the first receipt of each stream begins
        self.delivered = 0
        self.incarnation = 0
        self.opened = asyncio.Event()
        self.error: str | None = None
        self.hits = self.loads = self.stale = 0
        self.begun = FIRST  # where a cache has begun again
        self.ended = 0  # subscriptions that the region ended because it did not know a stream

    async def run(self) -> None:
        """Until cancelled; what ends it otherwise is on record."""
        try:
            name, peer = self.order.name, self.order.kind == "peer"
            async with connect(self.order.url, client_id=name, timeout=30.0, peer=peer) as t:
                if self.order.kind == "cache":
                    await self._keep_cache(t)
                else:
                    await self._follow(t)
        except (TidingsError, BadInput) as error:
            self.error = f"{type(error).__name__}: {error}"
            self.opened.set()

    def note(self, span: Span) -> None:
        """The next span of a stream."""
        self.evidence.receive(self.order.name, self.incarnation, span, time.time())
        self.delivered += span.rows.count
        name = stream_name(span.stream)
        self.firsts.setdefault(name, span.lo)
        self.horizons[name] = span.hi
        if self.order.witness:
            self.evidence.witness(span, self.order.name)

    def horizon(self, stream: StreamId) -> int:
        """How far it has got; a cache that began again has got at least to where it did so."""
        return max(self.horizons.get(stream, FIRST), self.begun)

    async def _follow(self, t: Connection) -> None:
        durable = self.order.name if self.order.kind == "durable" else None
        while True:
            self.incarnation += 1
            try:
                async with t.subscribe(self.order.streams, start="earliest", name=durable) as subscription:
                    self.opened.set()
                    await self._take(subscription, None if durable is None else self.order.every)
            except (SubscriptionEnded, UnknownStream) as error:
                if "unknown" not in str(error):
                    raise
                self.ended += 1
                await asyncio.sleep(AGAIN)

    async def _take(self, subscription: Subscription, seconds: float | None) -> None:
        spans: AsyncIterator[Any] = subscription.spans()
        end = None if seconds is None else time.monotonic() + seconds
        async for rows in spans:
            self.note(rows.span)
            if end is not None and time.monotonic() > end:
                return

    async def _keep_cache(self, t: Connection) -> None:
        """A cache that is read, too: what it serves must be younger than the last invalidation it has applied."""
        (stream,) = self.order.streams
        cache = NotedCache(self, t, stream)
        rng = random.Random(self.order.name)
        try:
            await cache.ready()
            self.opened.set()
            while True:
                key = b"%d" % rng.randrange(64)
                version = await cache.get(key)
                if version <= cache.floors.get(key, 0):
                    self.stale += 1
                self.hits, self.loads = cache.hits, cache.misses
                await asyncio.sleep(0.02)
        finally:
            await cache.close()


class NotedCache(Cache[int]):
    """A cache whose values are the versions at which they were loaded, and that writes receipts."""

    def __init__(self, subscriber: LoadSubscriber, t: Connection, stream: StreamId) -> None:
        self.subscriber = subscriber
        self.floors: dict[bytes, int] = {}  # by key: the end of the last span that invalidated it
        super().__init__(t, stream, load=lambda key: self.version)

    async def _listen(self) -> None:
        self.subscriber.incarnation += 1
        await super()._listen()

    def _heard(self, subscription: Subscription) -> None:
        super()._heard(subscription)
        if self.subscriber.incarnation > 1:
            self.subscriber.begun = self.version

    def apply(self, span: Span) -> None:
        """As a cache does, and on record."""
        self.subscriber.note(span)
        super().apply(span)
        if span.rows.count:
            keys = span.rows.batch.column("key").to_pylist()  # type: ignore[attr-defined]
            self.floors.update(dict.fromkeys(keys, span.hi - 1))


# --- all of them ------------------------------------------------------------------------------------------------


class Load:
    """Some publishers and subscribers in this loop."""

    def __init__(self, order: WorkerOrder) -> None:
        self.order = order
        self.evidence = Evidence()
        self.publishers = [LoadPublisher(each, self.evidence) for each in order.publishers]
        self.subscribers = [LoadSubscriber(each, self.evidence) for each in order.subscribers]
        self._listening: list[asyncio.Task[None]] = []
        self._talking: list[asyncio.Task[None]] = []

    async def open(self, timeout: float = 60.0) -> None:
        """Open all subscriptions."""
        self._listening += [asyncio.ensure_future(each.run()) for each in self.subscribers]
        async with asyncio.timeout(timeout):
            await asyncio.gather(*[each.opened.wait() for each in self.subscribers])

    def publish(self) -> None:
        """Begin to publish."""
        self._talking = [asyncio.ensure_future(each.run()) for each in self.publishers]

    async def stop(self, timeout: float) -> dict[StreamId, int]:
        """Publish no more; where the streams end, once everything is acknowledged or the time is over."""
        for publisher in self.publishers:
            publisher.stop()
        if self._talking:
            _, late = await asyncio.wait(self._talking, timeout=timeout)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        now = time.time()
        for publisher in self.publishers:
            mine = [batch for batch in self.evidence.sent if batch.publisher == publisher.order.name]
            waiting = sum(not batch.parts and not batch.forgotten for batch in mine)
            self.evidence.gauge(publisher.order.name, SESSIONS_FORGOTTEN, publisher.forgotten, now, 0)
            self.evidence.gauge(publisher.order.name, "unanswered_batches", waiting, now, 0)
            failed = publisher.error is not None
            self.evidence.gauge(publisher.order.name, publisher.error or "failed", failed, now, 0)
        return self.evidence.ends()

    async def join(self, orders: list[Subscribing]) -> None:
        """More subscribers, late ones: they are told what collection has left."""
        more = [LoadSubscriber(each, self.evidence) for each in orders]
        self.subscribers += more
        self._listening += [asyncio.ensure_future(each.run()) for each in more]

    async def finish(self, ends: dict[StreamId, int], timeout: float) -> None:
        """Wait until every subscriber has reached the ends; then record where each of them is, and close."""
        deadline = time.monotonic() + timeout
        ends = dict(ends)

        def behind() -> bool:
            for stream, _, hi in self.evidence.lost:
                ends[stream] = max(ends.get(stream, FIRST), hi)
            return any(
                each.horizon(stream) < ends.get(stream, FIRST)
                for each in self.subscribers
                for stream in each.order.streams
                if each.error is None
            )

        while behind() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        now = time.time()
        for each in self.subscribers:
            streams = {stream: each.horizon(stream) for stream in each.order.streams}
            self.evidence.alive(each.order.name, streams, now)
            self.evidence.began(each.order.name, each.firsts, now)
            self.evidence.gauge(each.order.name, each.error or "ended", each.error is not None, now, 0)
            self.evidence.gauge(each.order.name, SUBSCRIPTIONS_ENDED, each.ended, now, 0)
            self.evidence.gauge(each.order.name, "stale_values_served", each.stale, now, 0)
        await self.close()

    async def close(self) -> None:
        """Hang up. Who does not end when it is cancelled is on record: an application would hang there."""
        tasks = [*self._talking, *self._listening]
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=GOODBYE)
            self.evidence.gauge("clients", "not_ended", len(late), time.time(), 0)
            for task in late:
                task.cancel()

    def progress(self) -> Progress:
        """How it stands."""
        ends: dict[StreamId, int] = {}
        for publisher in self.publishers:
            ends[publisher.order.stream] = max(ends.get(publisher.order.stream, FIRST), publisher.end)
        return Progress(
            acked=sum(each.acked for each in self.publishers),
            delivered=sum(each.delivered for each in self.subscribers),
            horizons={each.order.name: dict(each.horizons) for each in self.subscribers},
            ends=ends,
            hits=sum(each.hits for each in self.subscribers),
            loads=sum(each.loads for each in self.subscribers),
        )


# --- in a process of its own --------------------------------------------------------------------------------------


class LoadWorker:
    """A load in another process, as its controller sees it. All replies carry the name of what they answer."""

    def __init__(self, order: WorkerOrder, evidence: Path) -> None:
        self.order = msgspec.structs.replace(order, evidence=str(evidence))
        self.progress = Progress()
        self._path = evidence
        self._replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def start(self) -> None:
        """Start the process and wait until all its subscribers are subscribed."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tidings.campaign.cluster.load",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        self._reading = asyncio.ensure_future(self._read())
        await self.call(msgspec.to_builtins(self.order), "open", 90.0)

    @property
    def pid(self) -> int:
        """The process, once it is started."""
        return self._process.pid

    async def call(self, what: Any, reply: str, timeout: float) -> Any:
        """Tell it something and wait for the reply."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(what) + b"\n")
        await self._process.stdin.drain()
        async with asyncio.timeout(timeout):
            said = await self._replies.get()
        if reply not in said:
            raise TidingsError(f"a process of clients has failed: {said.get('failed', said)}")
        return said[reply]

    async def evidence(self) -> Evidence:
        """What its clients remember, once they have finished."""
        await asyncio.wait_for(self._process.wait(), 30.0)
        data = await asyncio.to_thread(self._path.read_bytes)
        return await asyncio.to_thread(msgspec.msgpack.decode, data, type=Evidence)

    async def end(self) -> None:
        """End the process, however it is."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = msgspec.json.decode(line)
            if "tell" in said:
                self.progress = msgspec.convert(said["tell"], Progress)
            else:
                self._replies.put_nowait(said)
        self._replies.put_nowait({"failed": f"exit code {await self._process.wait()}"})


async def _commands() -> AsyncIterator[Any]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb"))
    while line := await reader.readline():
        yield msgspec.json.decode(line)


def _say(**what: Any) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


async def _work() -> None:
    """The worker: follows commands until it is told to finish, or its controller is gone."""
    load: Load | None = None
    telling: asyncio.Task[None] | None = None
    async for command in _commands():
        if load is None:
            load = Load(msgspec.convert(command, WorkerOrder))
            await load.open()
            telling = asyncio.ensure_future(_tell(load))
            _say(open=len(load.subscribers))
        elif command == "publish":
            load.publish()
            _say(publish=True)
        elif "stop" in command:
            _say(ends=await load.stop(command["stop"]))
        else:
            late = msgspec.convert(command["late"], list[Subscribing])
            await load.join(late)
            await load.finish(command["finish"], command["timeout"])
            Path(load.order.evidence).write_bytes(msgspec.msgpack.encode(load.evidence))
            _say(done=True)
            break
    if telling is not None:
        telling.cancel()
    if load is not None:
        await load.close()


async def _tell(load: Load) -> None:
    """Say twice a second how it stands, and note when that comes late: then the whole process does."""
    loop = asyncio.get_running_loop()
    while True:
        _say(tell=load.progress())
        due = loop.time() + TELL
        await asyncio.sleep(TELL)
        if (late := loop.time() - due) > LATE:
            load.evidence.gauge(load.order.evidence, LAG, late, time.time())


Step = Callable[[], Coroutine[Any, Any, None]]

if __name__ == "__main__":
    run(_work())
