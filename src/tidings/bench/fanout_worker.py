"""The processes of `tidings bench fanout` besides the cluster: a publisher, thousands of subscribers, bare sockets.

    python -m tidings.bench.fanout_worker JOB JSON

A subscriber here is a TCP connection and a few numbers. It says hello, follows the stream through its own filter and
acknowledges as a client does, but it parses no rows: it counts the stamps in what it receives. So one process can be
thousands of them. Which events there are follows from a seed, so each knows how many it must get.

Lines on stdin and stdout are as in bench/worker.py.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import sys
import time
from array import array
from struct import Struct
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidings.bench.worker import STAMP, cpu, line, percentiles, say
from tidings.client.connection import connect
from tidings.core.rows import Origin, data_rows
from tidings.core.span import Span
from tidings.net.codec import WIRE
from tidings.net.frames import PREFIX, Outgoing
from tidings.net.link import Hello, introduce
from tidings.net.loop import run
from tidings.net.names import parse_address
from tidings.protocols.brokers.messages import LATEST, NOWHERE, Consumed, Feed, FeedBeat, Follow, Unfollowed
from tidings.protocols.kernel import Message

INDEX = Struct("<I")  # what a subscriber says to bare sockets: which one it is
MARK = b"\xf5fanout\xfa"  # before the stamp of an event; no column of numbers has it
PAYLOAD = 250  # bytes; GR1
EACH = 2.0  # events per second of a subscriber; GR1
TICK = 0.01  # seconds between two batches of the publisher
ACK = 32  # messages between two acknowledgements; ours: a quarter of what the smallest window holds
BURST = 64  # connections made before the answers are read
LATE = 60.0  # seconds for what has not come when the publisher ends; ours: on a busy machine


class FanoutJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told."""

    url: str = ""  # of the publisher
    address: str = ""  # where subscribers connect to
    stream: str = ""
    first: int = 0  # of this worker's subscribers
    count: int = 0
    total: int = 1  # subscribers of all workers
    rate: float = 2000.0  # events per second of the publisher; GR1
    seconds: float = 10.0
    warm: float = 2.0  # seconds at the beginning in which latencies do not count
    seed: int = 0


def topics_of(job: FanoutJob) -> int:
    """So many that half of the events of one are what a subscriber gets."""
    return max(round(job.rate / (2 * EACH)), 1)


def filter_of(job: FanoutJob, index: int) -> tuple[int, float]:
    """The topic of a subscriber, and its price, which no other one has."""
    return index % topics_of(job), round(0.5 + 0.001 * (index / job.total - 0.5), 9)


def where_of(job: FanoutJob, index: int) -> str:
    """The filter of a subscriber, as SQL."""
    topic, price = filter_of(job, index)
    return f"topic = {topic} and price > {price:.9f}"


def events_of(job: FanoutJob) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Topics and prices of everything that is published."""
    rng = np.random.default_rng(job.seed)
    count = int(job.rate * (job.warm + job.seconds))
    return rng.integers(0, topics_of(job), count), rng.random(count)


def expected(job: FanoutJob) -> list[int]:
    """How many events each subscriber of this worker must get."""
    topics, prices = events_of(job)
    by_topic = [np.sort(prices[topics == topic]) for topic in range(topics_of(job))]
    found = []
    for index in range(job.first, job.first + job.count):
        topic, price = filter_of(job, index)
        found.append(len(by_topic[topic]) - int(np.searchsorted(by_topic[topic], price, "right")))
    return found


# --- the publisher ----------------------------------------------------------------------------------------


async def publish(job: FanoutJob) -> None:
    """A table every tick, whether or not the one before is acknowledged."""
    topics, prices = events_of(job)
    each = max(round(job.rate * TICK), 1)
    async with connect(job.url) as t:
        await t.stream(job.stream)
        say(ready=True)
        await line()
        under_way: set[asyncio.Task[Any]] = set()
        began, used = time.monotonic(), cpu()
        for at in range(0, len(topics), each):
            await asyncio.sleep(max(began + at / job.rate - time.monotonic(), 0))
            payload = MARK + STAMP.pack(time.monotonic_ns()) + bytes(PAYLOAD - len(MARK) - STAMP.size)
            count = len(topics[at : at + each])
            columns = {"payload": pa.array([payload] * count, pa.binary())}
            columns |= {"topic": pa.array(topics[at : at + each]), "price": pa.array(prices[at : at + each])}
            task = asyncio.ensure_future(t.publish_table(job.stream, pa.table(columns)))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)
        say(began=began, ended=time.monotonic(), events=len(topics), cpu=cpu() - used)


# --- subscribers ------------------------------------------------------------------------------------------


class LeanSubscriber:
    """One connection."""

    __slots__ = ("heard", "rest", "said", "sock", "taken", "unsaid")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.rest = b""  # the beginning of a frame
        self.heard = False  # the stream has been told of
        self.taken = 0  # events
        self.unsaid = 0  # messages since the last acknowledgement
        self.said = 0  # the number up to which it acknowledged


class FanoutFailed(Exception):
    """The other end has refused something, or is gone."""


def tag_bytes(message: Message) -> bytes:
    """How the header of such a message begins."""
    header, _ = WIRE.split(message)
    return header[: header.index(type(message).__name__.encode()) + len(type(message).__name__)]


class LeanSubscribers:
    """All subscribers of one process. ``bare``: the other end speaks no protocol, only its frames."""

    def __init__(self, job: FanoutJob, *, bare: bool) -> None:
        self.job = job
        self.bare = bare
        self.poll = select.epoll()
        self.open: dict[int, LeanSubscriber] = {}
        self.listening = 0  # of them, those that have been told of the stream
        self.stamps = array("q")  # of what was received
        self.delays = array("q")
        self._feed, self._beat = tag_bytes(Feed(0, 0, (), 0)), tag_bytes(FeedBeat((), 0.0))
        self._unfollowed = tag_bytes(Unfollowed(0, ""))

    @property
    def taken(self) -> int:
        """Events that all have received."""
        return sum([each.taken for each in self.open.values()])

    def connect(self) -> None:
        """Make all connections, and wait until each has been told of its stream."""
        job = self.job
        address = parse_address(job.address)
        for index in range(job.first, job.first + job.count):
            sock = socket.create_connection(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.open[sock.fileno()] = LeanSubscriber(sock)
            self.poll.register(sock.fileno(), select.EPOLLIN)
            if self.bare:
                sock.sendall(INDEX.pack(index))
            else:
                hello = introduce(Hello(f"fan-{index}.{os.getpid()}", "", "tidings", "client"))
                follow = WIRE.encode(Follow(1, job.stream, LATEST, where_of(job, index)))
                sock.sendall(_bytes_of(hello) + _bytes_of(follow))
            sock.setblocking(False)
            if index % BURST == 0:
                self.receive(0.0)
        end = time.monotonic() + LATE + 0.01 * job.count
        while not self.bare and self.listening < job.count:
            if time.monotonic() > end:
                raise FanoutFailed(f"{job.count - self.listening} of {job.count} subscribers were not answered")
            self.receive(0.1)

    def receive(self, timeout: float) -> bool:
        """Take what is there; whether stdin has a line."""
        ready = self.poll.poll(timeout)
        now = time.monotonic_ns()
        told = False
        for fd, _ in ready:
            subscriber = self.open.get(fd)
            if subscriber is None:
                told = True
                continue
            data = subscriber.sock.recv(1 << 16)
            if not data:
                raise FanoutFailed("a connection has been closed by the other end")
            self._parse(subscriber, subscriber.rest + data, now)
        return told

    def _parse(self, subscriber: LeanSubscriber, data: bytes, now: int) -> None:
        at, end = 0, len(data)
        while end - at >= PREFIX.size:
            length, head = PREFIX.unpack_from(data, at)
            stop = at + PREFIX.size + length
            if stop > end:
                break
            self._frame(subscriber, data, at + PREFIX.size, head, stop, now)
            at = stop
        subscriber.rest = data[at:]

    def _frame(self, subscriber: LeanSubscriber, data: bytes, begin: int, head: int, stop: int, now: int) -> None:
        """Count the stamps; look at the frame itself only now and then."""
        before = subscriber.taken
        found = data.find(MARK, begin, stop)
        while found >= 0:
            (stamp,) = STAMP.unpack_from(data, found + len(MARK))
            self.stamps.append(stamp)
            self.delays.append(now - stamp)
            subscriber.taken += 1
            found = data.find(MARK, found + PAYLOAD, stop)
        subscriber.unsaid += 1
        if self.bare or (subscriber.taken > before and subscriber.unsaid < ACK):
            return
        header = data[begin : begin + head]
        if header.startswith(self._feed) and not header.startswith(self._beat):
            feed = WIRE.decode(header, memoryview(data)[begin + head + -head % 8 : stop])
            assert isinstance(feed, Feed)
            self._told(subscriber, feed.id, feed.end, again=feed.at == NOWHERE)
        elif header.startswith(self._beat):
            beat = WIRE.decode(header, memoryview(b""))
            assert isinstance(beat, FeedBeat)
            for feed in beat.singly():
                self._told(subscriber, feed.id, feed.end, again=False)
        elif header.startswith(self._unfollowed) or b"Error" in header[:8]:
            raise FanoutFailed(f"refused: {header[:300]!r}")

    def _told(self, subscriber: LeanSubscriber, id: int, end: int, *, again: bool) -> None:
        if not subscriber.heard:
            subscriber.heard = True
            self.listening += 1
        if end > subscriber.said or again:
            subscriber.said = max(subscriber.said, end)
            subscriber.unsaid = 0
            subscriber.sock.sendall(_bytes_of(WIRE.encode(Consumed(id, subscriber.said))))


def _bytes_of(outgoing: Outgoing) -> bytes:
    return b"".join([bytes(chunk) for chunk in outgoing.chunks])


def subscribe(job: FanoutJob, *, bare: bool = False) -> None:
    """Receive until all has come that must come."""
    wanted = expected(job)
    subscribers = LeanSubscribers(job, bare=bare)
    subscribers.connect()
    subscribers.poll.register(0, select.EPOLLIN)
    say(ready=True)
    used = cpu()
    while not subscribers.receive(1.0):
        pass
    subscribers.poll.unregister(0)
    end = time.monotonic() + LATE
    total = sum(wanted)
    while subscribers.taken < total and time.monotonic() < end:
        subscribers.receive(0.1)
    got = [each.taken for each in subscribers.open.values()]
    missing = sum([max(must - has, 0) for must, has in zip(wanted, got, strict=True)])
    surplus = sum([max(has - must, 0) for must, has in zip(wanted, got, strict=True)])
    stamps, delays = np.array(subscribers.stamps), np.array(subscribers.delays)
    if not len(stamps):
        raise FanoutFailed(f"{job.count} subscribers received nothing")
    warm = int(stamps.min()) + int(job.warm * 1e9)
    counted = delays[stamps >= warm].tolist() or [0]
    span = {
        "warm": warm / 1e9,
        "last": int((stamps + delays).max()) / 1e9,
    }  # from when on latencies count; the last arrival
    say(cpu=cpu() - used, taken=sum(got), missing=missing, surplus=surplus, **span, **percentiles(counted))


# --- bare sockets -----------------------------------------------------------------------------------------


def send_bare(job: FanoutJob) -> None:
    """Send to each of many connections as often as the edge does, a message of the same size, and nothing else."""
    server = socket.create_server(parse_address(job.address), backlog=1024)
    say(ready=True)
    others: dict[int, socket.socket] = {}
    while len(others) < job.total:
        other, _ = server.accept()
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        (index,) = INDEX.unpack(other.recv(INDEX.size, socket.MSG_WAITALL))
        others[index] = other
    sys.stdin.readline()
    rows = data_rows(1, None, [MARK + bytes(PAYLOAD - len(MARK))], Origin(1, 2, "publisher", 1, 1))
    frame = bytearray(_bytes_of(WIRE.encode(Feed(1, 1, (Span.of("fanout", 1, rows),), 2))))
    at = frame.index(MARK) + len(MARK)
    topics, prices = events_of(job)
    members: dict[int, list[tuple[float, socket.socket]]] = {}
    for index, other in others.items():
        topic, price = filter_of(job, index)
        members.setdefault(topic, []).append((price, other))
    began, used = time.monotonic(), cpu()
    each = max(round(job.rate * TICK), 1)
    for first in range(0, len(topics), each):
        while (wait := began + first / job.rate - time.monotonic()) > 0:
            time.sleep(wait)
        STAMP.pack_into(frame, at, time.monotonic_ns())
        for topic, price in zip(topics[first : first + each].tolist(), prices[first : first + each], strict=True):
            for above, other in members.get(topic, ()):
                if price > above:
                    other.sendall(frame)
    say(began=began, ended=time.monotonic(), cpu=cpu() - used)
    sys.stdin.readline()  # the connections stay until all was read


def main() -> None:
    """Run the job that the arguments name."""
    name, job = sys.argv[1], msgspec.json.decode(sys.argv[2], type=FanoutJob)
    if name == "publish":
        run(publish(job))
    elif name == "send-bare":
        send_bare(job)
    else:
        subscribe(job, bare=name == "subscribe-bare")


if __name__ == "__main__":
    main()
