"""The processes of `tidings bench throughput|latency` beside the cluster: publishers, subscribers, bare sockets.

    python -m tidings.bench.worker JOB JSON

Each prints "ready" when it could begin, waits for a line on stdin, works, and prints one JSON object. A publisher of
tables does so for every line. Times are CLOCK_MONOTONIC, which all processes of a machine share. A publisher makes its
events before it is ready: only publishing them is measured.

A line on a subscriber's stdin says how far it has to read ({stream: number}). It prints what it has when it is there.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidings.client.connection import Connection, connect
from tidings.client.errors import Full
from tidings.client.events import Event
from tidings.client.subscription import Subscription
from tidings.net.loop import run

KEY_BYTES = 10  # SP1: ten-byte events
SKEW = 1.1  # SP9: Zipf
YIELD = 64  # posts between two turns of the loop: an application that does something else, too
STAMP = struct.Struct("<q")
TABLES = 64  # different batches, sent over and over; ours, because a million random keys meet all of them often enough


class BenchJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told."""

    url: str = ""
    stream: str = ""
    streams: tuple[str, ...] = ()
    seconds: float = 1.0
    events: int = 0  # end after so many; 0: after the seconds
    rate: float = 0.0  # events per second
    batch: int = 16_384
    keys: int = 100_000
    payload: int = 0  # bytes
    inflight: int = 8  # tables that are not acknowledged
    pause: float = 0.0  # seconds from an acknowledgement to the next table
    seed: int = 0
    ports: tuple[int, int] = (0, 0)  # of bare sockets: where to listen, where to connect to


def say(**what: Any) -> None:
    """One line for the process that started this one."""
    print(msgspec.json.encode(what).decode(), flush=True)


def cpu() -> float:
    """Processor seconds of this process so far."""
    times = os.times()
    return times.user + times.system


async def line() -> str:
    """The next line of stdin."""
    return await asyncio.to_thread(sys.stdin.readline)


def key_names(count: int) -> Any:
    """All keys, ten bytes each."""
    return np.array([b"k%0*d" % (KEY_BYTES - 1, key) for key in range(count)])


def popular_keys(job: BenchJob, count: int) -> Any:
    """Keys of events by Zipf popularity; which keys are popular is the same for all seeds."""
    weights = np.cumsum(1.0 / np.arange(1, job.keys + 1) ** SKEW)
    ranks = np.searchsorted(weights, np.random.default_rng(job.seed).random(count) * weights[-1])
    return key_names(job.keys)[np.random.default_rng(20130613).permutation(job.keys)[ranks]]


def make_tables(job: BenchJob) -> list[pa.RecordBatch]:
    """Batches of random keys of the stream, each in memory of its own."""
    names = popular_keys(job, TABLES * job.batch)
    tables = []
    for at in range(0, len(names), job.batch):
        data = names[at : at + job.batch].tobytes()
        offsets = np.arange(0, KEY_BYTES * (job.batch + 1), KEY_BYTES, dtype=np.int32)
        keys = pa.Array.from_buffers(pa.binary(), job.batch, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        zeros = pa.py_buffer(np.arange(job.batch + 1, dtype=np.int32) * job.payload)
        payload = pa.py_buffer(bytes(job.batch * job.payload))
        payloads = pa.Array.from_buffers(pa.binary(), job.batch, [None, zeros, payload])
        tables.append(pa.RecordBatch.from_arrays([keys, payloads], names=["key", "payload"]))
    return tables


# --- publishers -------------------------------------------------------------------------------------------


async def publish_tables(job: BenchJob) -> None:
    """Columnar: so many tables under way at a time."""
    tables = make_tables(job)
    async with connect(job.url) as t:
        await t.publish_table(job.stream, tables[0].slice(0, 1))  # the session is open
        say(ready=True)
        while await line():
            await publish_round(job, t, tables)


async def publish_round(job: BenchJob, t: Connection, tables: list[pa.RecordBatch]) -> None:
    """Publish for the time, or as many events, that the job says; tell how that went."""
    began, used = time.monotonic(), cpu()
    end = began + job.seconds
    target = job.events or 1 << 62
    sent = 0
    hi = 0
    paused = 0.0  # as the clock says: a timer may be late

    async def lane() -> None:
        nonlocal sent, hi, paused
        while sent < target and (job.events or time.monotonic() < end):
            table = tables[(sent // job.batch) % TABLES]
            sent += job.batch
            ack = await t.publish_table(job.stream, table)
            hi = max(hi, ack.hi)
            if job.pause:
                acked = time.monotonic()
                await asyncio.sleep(job.pause)
                paused += time.monotonic() - acked

    await asyncio.gather(*[lane() for _ in range(job.inflight)])
    say(began=began, ended=time.monotonic(), events=sent, hi=hi, cpu=cpu() - used, paused=paused)


async def publish_posts(job: BenchJob) -> None:
    """One event per call, a turn of the loop every so many."""
    keys = [bytes(key) for key in popular_keys(job, YIELD * 4096)]
    groups = [keys[at : at + YIELD] for at in range(0, len(keys), YIELD)]
    payload = bytes(job.payload)
    async with connect(job.url) as t:
        await t.publish(job.stream, key=keys[0], payload=payload)
        gc.collect()
        gc.freeze()
        say(ready=True)
        await line()
        began, used = time.monotonic(), cpu()
        end = began + job.seconds
        target = job.events or 1 << 62
        sent = at = 0
        stream, post, drain = job.stream, t.post, t.drain
        while sent < target and (job.events or time.monotonic() < end):
            for key in groups[at]:
                post(stream, key=key, payload=payload)
            sent += YIELD
            at = (at + 1) % len(groups)
            await drain()
        acks = await t.flush()
        say(began=began, ended=time.monotonic(), events=sent, hi=acks[-1].hi, cpu=cpu() - used)


async def publish_paced(job: BenchJob) -> None:
    """One event at a time at a rate, each with the time at which it was posted."""
    keys = [bytes(key) for key in key_names(job.keys)]
    async with connect(job.url) as t:
        await t.publish(job.stream, key=keys[0], payload=STAMP.pack(0))
        say(ready=True)
        await line()
        began, used = time.monotonic(), cpu()
        total = int(job.seconds * job.rate)
        for number in range(total):
            due = began + number / job.rate
            while (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            try:
                t.post(job.stream, key=keys[number % job.keys], payload=STAMP.pack(time.monotonic_ns()))
            except Full:
                await t.drain()
        acks = await t.flush()
        say(began=began, ended=time.monotonic(), events=total, hi=acks[-1].hi, cpu=cpu() - used)


# --- subscribers ------------------------------------------------------------------------------------------


class Counter:
    """How far each stream was received, and when that was far enough."""

    def __init__(self, streams: tuple[str, ...]) -> None:
        self.at = dict.fromkeys(streams, 0)
        self.rows = 0
        self.last: Event | None = None  # where events come one by one
        self.targets: dict[str, int] | None = None
        self.reached = asyncio.Event()

    def look(self) -> None:
        """Whether everything that is wanted is there."""
        if self.last is not None:
            self.at[self.last.stream] = self.last.seq + 1
        if self.targets is not None and all([self.at[s] >= hi for s, hi in self.targets.items()]):
            self.reached.set()


async def subscribe_with(job: BenchJob, read: Callable[[Subscription, Counter], Coroutine[Any, Any, None]]) -> None:
    """Subscribe, read until the targets that come over stdin, say when that was."""
    counter = Counter(job.streams)
    async with connect(job.url) as t, t.subscribe(*job.streams, start="latest") as subscription:
        say(ready=True)
        await line()
        used = cpu()
        reading = asyncio.ensure_future(read(subscription, counter))
        counter.targets = msgspec.json.decode(await line(), type=dict[str, int])
        counter.look()
        over = asyncio.ensure_future(counter.reached.wait())
        await asyncio.wait([over, reading], return_when=asyncio.FIRST_COMPLETED)
        say(ended=time.monotonic(), rows=counter.rows, cpu=cpu() - used)
        if reading.done():
            reading.result()
        reading.cancel()


async def subscribe_spans(job: BenchJob) -> None:
    """Columnar: spans as they come."""

    async def read(subscription: Subscription, counter: Counter) -> None:
        async for span in subscription.spans():
            counter.at[span.stream] = span.hi
            counter.rows += span.count
            if counter.targets is not None:
                counter.look()

    await subscribe_with(job, read)


async def subscribe_events(job: BenchJob) -> None:
    """One by one: `async for`."""

    async def read(subscription: Subscription, counter: Counter) -> None:
        async for event in subscription:
            counter.rows += 1
            counter.last = event
            if counter.targets is not None:
                counter.look()

    gc.collect()
    gc.freeze()
    await subscribe_with(job, read)


async def subscribe_stamped(job: BenchJob) -> None:
    """Events with the time at which they were posted: how long each took."""
    taken: list[int] = []

    async def read(subscription: Subscription, counter: Counter) -> None:
        async for event in subscription:
            now = time.monotonic_ns()
            sent = STAMP.unpack(event.payload)[0]
            if sent:
                taken.append(now - sent)
            counter.last = event
            counter.rows += 1
            if counter.targets is not None:
                counter.look()

    await subscribe_with(job, read)
    say(**percentiles(taken))


def percentiles(taken: list[int]) -> dict[str, float]:
    """Of times in nanoseconds: the usual ones, in microseconds."""
    p50, p99 = np.percentile(np.array(taken or [0]) / 1e3, [50, 99])
    return {"p50": round(float(p50), 1), "p99": round(float(p99), 1), "samples": len(taken)}


# --- bare sockets: the floor --------------------------------------------------------------------------------


def _listen(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def _connected(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def relay_raw(job: BenchJob) -> None:
    """Hand on what comes in, as it comes."""
    server = _listen(0)
    say(ready=True, port=server.getsockname()[1])
    out = _connected(job.ports[1])
    source, _ = server.accept()
    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := source.recv(1 << 16):
        out.sendall(data)
    out.close()
    say(cpu=cpu())


def receive_raw(job: BenchJob) -> None:
    """The end of the line: how long each message took."""
    server = _listen(0)
    say(ready=True, port=server.getsockname()[1])
    source, _ = server.accept()
    taken: list[int] = []
    rest = b""
    while data := source.recv(1 << 16):
        now = time.monotonic_ns()
        rest += data
        whole = len(rest) // 16 * 16
        taken += [now - STAMP.unpack_from(rest, at)[0] for at in range(0, whole, 16)]
        rest = rest[whole:]
    say(**percentiles(taken))


def send_raw(job: BenchJob) -> None:
    """The beginning: a message at a time, at a rate."""
    out = _connected(job.ports[1])
    say(ready=True)
    sys.stdin.readline()
    began = time.monotonic()
    for number in range(int(job.seconds * job.rate)):
        while (wait := began + number / job.rate - time.monotonic()) > 0:
            time.sleep(wait)
        out.sendall(STAMP.pack(time.monotonic_ns()) + bytes(8))
    out.close()
    say(cpu=cpu())


JOBS: dict[str, Callable[[BenchJob], Coroutine[Any, Any, None]]] = {
    "publish-tables": publish_tables,
    "publish-posts": publish_posts,
    "publish-paced": publish_paced,
    "subscribe-spans": subscribe_spans,
    "subscribe-events": subscribe_events,
    "subscribe-stamped": subscribe_stamped,
}
BARE: dict[str, Callable[[BenchJob], None]] = {"raw-relay": relay_raw, "raw-receive": receive_raw, "raw-send": send_raw}


def main() -> None:
    """Run the job that the arguments name."""
    name, job = sys.argv[1], msgspec.json.decode(sys.argv[2], type=BenchJob)
    if name in BARE:
        BARE[name](job)
    elif "TIDINGS_PROFILE" in os.environ:
        import cProfile

        profile = cProfile.Profile()
        profile.runcall(run, JOBS[name](job))
        profile.dump_stats(f"{os.environ['TIDINGS_PROFILE']}/{name}-{os.getpid()}.prof")
    else:
        run(JOBS[name](job))


if __name__ == "__main__":
    main()
