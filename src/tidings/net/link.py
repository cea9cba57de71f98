"""Connections between nodes: handshake, queues of frames to send, and reconnection.

The dialler says `Hello`, and the other end answers with its own or with an `Error`; nothing else passes before. Then a
`Peer` stands for the other end.

Each node sends over the connection that it has dialled and receives over the other's. So two nodes need not agree who
dials, and a restarted node is found by dialling again (exponential backoff with jitter). A client is not in the
directory: it is answered over the connection that it came by.

Queues are bounded in frames and in bytes. A full queue never stops a node from reading: that deadlocks a mesh
(decision 0006). Frames that do not fit are dropped and counted; protocols expect loss. The newest frame is dropped:
queued frames continue what the receiver has, so a full queue still makes progress, whereas dropping the oldest would
leave gaps only. Frames without rows count only as frames: they are small, they repair, and rows must not starve them.
While the other end is unreachable, frames are kept for no longer than one attempt to reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from collections import deque
from collections.abc import Mapping, MutableMapping
from typing import Literal, Protocol, TypeAlias

import msgspec

from tidings.core import wire
from tidings.core.ids import NodeId, RegionId
from tidings.net import frames
from tidings.net.codec import Codec, tag_of
from tidings.net.frames import Body, FrameConnection, FrameError, Outgoing, Told
from tidings.net.names import Address, name_of
from tidings.net.shape import DelayLine, Wan

FORMAT = 1  # of frames and messages
OLDEST = 1  # the oldest this version can still speak

Role: TypeAlias = Literal["node", "client"]
Counters: TypeAlias = MutableMapping[str, float]


class Hello(msgspec.Struct, frozen=True):
    """The first frame each way. The receiver refuses it, or knows from now on who sends."""

    node: NodeId
    region: RegionId
    cluster: str
    role: Role = "node"
    format: int = FORMAT
    oldest: int = OLDEST
    rows: int = wire.FORMAT  # of spans; a change of it is a change of the format
    token: str = ""
    to: NodeId = ""  # the node that the dialler expects; empty: any


class Error(msgspec.Struct, frozen=True):
    """The last frame: why the sender ends the connection."""

    code: str
    text: str


_GREETINGS = Codec((Hello, Error), ())
_ERROR = "Error"


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and times of connections. Ours, unless said otherwise."""

    max_frame: int = frames.MAX_FRAME
    hello_seconds: float = frames.HELLO_SECONDS
    high_water: int = frames.HIGH_WATER
    queue_bytes: int = 64 << 20  # behind the socket's queue: what the windows of chain and regions allow, and more
    queue_frames: int = 16_384  # ours: 30 ms of half a million control frames per second
    dial_seconds: float = 5.0
    backoff: float = 0.05  # the first pause; a restarted process is back in about that
    backoff_max: float = 2.0  # the longest; above it a healed network would look broken
    steady: float = 5.0  # a connection that lived so long was no failure: the next pause is the first again
    forsaken: float = 60.0  # seconds without reaching a node or wanting to, after which the link to it ends
    silence_ms: int = 15_000  # unacknowledged data for so long: the kernel gives the connection up
    peers: int = 20_000  # connections at a time, links too; ours: half a core at two small messages per second each
    strangers: int = 1_024  # of them, those that have not said hello


class LinkReceiver(Protocol):
    """What uses peers: a host."""

    def peer_up(self, peer: Peer) -> None:
        """The other end has been accepted."""
        ...

    def peer_frame(self, peer: Peer, header: bytes, body: Body) -> None:
        """It has sent something; a `FrameError` refuses it and ends the connection."""
        ...

    def handed(self) -> None:
        """All frames that a peer has sent so far have been handed on."""
        ...

    def peer_writable(self, peer: Peer, yes: bool) -> None:
        """Its socket's queue has passed the high-water mark, or has been emptied."""
        ...

    def peer_down(self, peer: Peer, error: BaseException | None) -> None:
        """It is gone."""
        ...

    def unreachable(self, node: NodeId) -> None:
        """An attempt to reach a node has failed; the next one follows by itself."""
        ...

    def forsaken(self, link: Link) -> None:
        """The node was unreachable for long and nothing was queued for it, so the link was closed."""
        ...

    def named(self, seed: NodeId, link: Link) -> None:
        """The node at a seed has said its name: from now on the link leads to that name."""
        ...

    def judge(self, hello: Hello, accepted: bool) -> str | None:
        """Why this other end is refused ("code: text"); None if it is welcome."""
        ...


def explain(error: FrameError) -> Outgoing:
    """The error frame for an error."""
    return _GREETINGS.encode(Error(error.code, str(error)[:512]))


def introduce(hello: Hello) -> Outgoing:
    """The frame of a hello."""
    return _GREETINGS.encode(hello)


def greeting(header: bytes, body: Body) -> Hello:
    """The hello in a frame; raises `FrameError` for anything else, an error from the other end included."""
    tag = tag_of(header)
    if tag not in ("Hello", _ERROR):
        raise FrameError("hello", f"a connection begins with a hello, not with {tag!r}")
    try:
        value = _GREETINGS.decode(header, body)
    except FrameError as error:
        raise FrameError("hello", str(error)) from error
    if isinstance(value, Error):
        raise Told(value.code[:32], f"the other end says: {value.text}")
    assert isinstance(value, Hello)
    return value


def compatible(mine: Hello, theirs: Hello) -> None:
    """Refuse who speaks no common format or belongs to another cluster."""
    if theirs.format < mine.oldest or mine.format < theirs.oldest or theirs.rows != mine.rows:
        offered = f"{theirs.oldest}..{theirs.format} with rows {theirs.rows}"
        spoken = f"{mine.oldest}..{mine.format} with rows {mine.rows}"
        raise FrameError("format", f"format {offered} is offered, {spoken} spoken here: upgrade the older side")
    if theirs.cluster != mine.cluster:
        raise FrameError("cluster", f"this is cluster {mine.cluster!r}, not {theirs.cluster!r}")
    if not theirs.node:
        raise FrameError("name", "a hello names its node")


class Peer:
    """The other end of a connection that has said who it is, and what is queued for it."""

    def __init__(
        self,
        connection: FrameConnection,
        hello: Hello,
        settings: LinkSettings,
        counters: Counters,
        region: RegionId,
        wan: Wan | None,
    ) -> None:
        self.hello = hello
        self.node = hello.node
        self.role = hello.role
        self.connection = connection
        self._settings = settings
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Outgoing] = deque()
        self._queued = 0  # bytes with rows
        self._pumping = False
        self._line = DelayLine(wan.way(region, hello.region), self._pass, counters) if wan is not None else None

    def send(self, outgoing: Outgoing) -> None:
        """Send a frame, unless it must be dropped."""
        if self._line is None:
            self._pass(outgoing)
        else:
            self._line.send(outgoing)

    def writable(self) -> bool:
        """Whether the other end keeps up; while it does not, feed it nothing that can wait."""
        return not self._queue and self.connection.ready

    @property
    def backlog(self) -> int:
        """Bytes that wait for the other end."""
        return self._queued + self.connection.backlog

    def pause_reading(self) -> None:
        """Hold the other end back. For publishers only: never for nodes (decision 0006)."""
        self.connection.pause_reading()

    def resume_reading(self) -> None:
        """Let it go on."""
        self.connection.resume_reading()

    def close(self) -> None:
        """End the connection in peace."""
        self.stop()
        self.connection.close()

    def refuse(self, error: FrameError) -> None:
        """End the connection and say why."""
        self.stop()
        self.connection.refuse(error)

    def stop(self) -> None:
        """Forget what is queued: the connection has ended."""
        if self._line is not None:
            self._line.close()
        self._counters["dropped_down"] += len(self._queue)
        self._queue.clear()
        self._queued = 0

    def resumed(self) -> None:
        """The socket takes more."""
        if self._queue and not self._pumping:
            self._pump()

    def _pass(self, outgoing: Outgoing) -> None:
        if not self._queue and self.connection.ready:
            self.connection.send(outgoing)
            return
        size = outgoing.size if outgoing.bulk else 0
        full = self._queued + size > self._settings.queue_bytes if size else False
        if full or len(self._queue) >= self._settings.queue_frames:
            self._counters["dropped_full"] += 1
            self._counters["dropped_full_bytes"] += outgoing.size
            return
        self._queue.append(outgoing)
        self._queued += size
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Move what is queued on, until the socket has enough; then it calls, or the next turn does."""
        queue, connection = self._queue, self.connection
        while queue and connection.ready:
            outgoing = queue.popleft()
            self._queued -= outgoing.size if outgoing.bulk else 0
            connection.send(outgoing)
        self._pumping = bool(queue) and connection.can_write and connection.open
        if self._pumping:
            self._loop.call_soon(self._pump)


class Trunk:
    """What all connections of a host share."""

    def __init__(
        self,
        hello: Hello,
        sink: LinkReceiver,
        counters: Counters,
        settings: LinkSettings,
        *,
        wan: Wan | None = None,
        tls: ssl.SSLContext | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.hello = hello
        self.sink = sink
        self.counters = counters
        self.settings = settings
        self.wan = wan
        self.tls = tls
        self.rng = rng or random.Random()
        self.outbox = frames.Outbox()

    def connection(self, owner: frames.Owner) -> FrameConnection:
        """A protocol for asyncio."""
        settings = self.settings
        return FrameConnection(
            owner,
            self.counters,
            explain,
            max_frame=settings.max_frame,
            hello_seconds=settings.hello_seconds,
            high_water=settings.high_water,
            outbox=self.outbox,
        )

    def admit(self, connection: FrameConnection, theirs: Hello, *, accepted: bool) -> Peer:
        """The peer behind a hello; raises `FrameError` if it is not welcome."""
        compatible(self.hello, theirs)
        if accepted and theirs.to not in ("", self.hello.node):  # else it would take the place of one who means us
            raise FrameError("name", f"the node at this address is {self.hello.node!r}, not {theirs.to!r}")
        verdict = self.sink.judge(theirs, accepted)
        if verdict is not None:
            code, _, text = verdict.partition(": ")
            raise FrameError(code, text or code)
        connection.greeted()
        return Peer(connection, theirs, self.settings, self.counters, self.hello.region, self.wan)

    def tune(self, connection: FrameConnection) -> None:
        """Let the kernel notice a peer that is gone without a word."""
        sock = connection.socket
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self.settings.silence_ms)


_ERROR_HEADER = _GREETINGS.split(Error("", ""))[0][:7]


class _Side:
    """What both ends of a connection do with it; the first frame is a hello, and what that leads to differs."""

    def __init__(self, trunk: Trunk) -> None:
        self.trunk = trunk

    def opened(self, connection: FrameConnection) -> None:
        self.trunk.tune(connection)

    def received(self, connection: FrameConnection, header: bytes, body: Body) -> None:
        peer = connection.peer
        if peer is None:
            self.greet(connection, greeting(header, body))
            return
        try:
            self.trunk.sink.peer_frame(peer, header, body)
        except FrameError:
            if header.startswith(_ERROR_HEADER):
                greeting(header, body)  # raises what the other end has to say
            raise

    def handed(self, connection: FrameConnection) -> None:
        self.trunk.sink.handed()

    def writable(self, connection: FrameConnection, yes: bool) -> None:
        peer = connection.peer
        if peer is not None:
            if yes:
                peer.resumed()
            self.trunk.sink.peer_writable(peer, yes)

    def closed(self, connection: FrameConnection, error: BaseException | None) -> None:
        peer, connection.peer = connection.peer, None
        if peer is not None:
            peer.stop()
            self.trunk.sink.peer_down(peer, error)

    def greet(self, connection: FrameConnection, hello: Hello) -> None:
        """The other end has said who it is."""
        raise NotImplementedError


class Link(_Side):
    """The way to one node of the directory: dialled on first use, and again until it is closed or forsaken."""

    def __init__(self, trunk: Trunk, node: NodeId, directory: Mapping[NodeId, Address]) -> None:
        super().__init__(trunk)
        self.node = node
        self.peer: Peer | None = None
        self.refused: FrameError | None = None  # what the last attempt was told
        self.unreached = ""  # why the last attempt made no connection
        self._directory = directory
        self._waiting: deque[Outgoing] = deque()  # until the attempt under way has an end
        self._waiting_bytes = 0
        self._attempting = True
        self._wanted = False  # something was to be sent since the last look, and could not be
        self._connection: FrameConnection | None = None
        self._nudged = asyncio.Event()
        self._over = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"link {trunk.hello.node} -> {node}")

    def send(self, outgoing: Outgoing) -> None:
        """Send a frame, unless it must be dropped."""
        if self.peer is not None:
            self.peer.send(outgoing)
            return
        self._wanted = True
        settings, counters = self.trunk.settings, self.trunk.counters
        if not self._attempting:
            counters["dropped_down"] += 1
        elif len(self._waiting) >= settings.queue_frames or self._waiting_bytes + outgoing.size > settings.queue_bytes:
            counters["dropped_full"] += 1
            counters["dropped_full_bytes"] += outgoing.size
        else:
            self._waiting.append(outgoing)
            self._waiting_bytes += outgoing.size

    def nudge(self) -> None:
        """The other end is known to be back: dial now, if this is a pause."""
        self._nudged.set()

    async def close(self) -> None:
        """Hang up and dial no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()
            await self._over.wait()
        self._forget()

    async def _run(self) -> None:
        loop, settings, rng = asyncio.get_running_loop(), self.trunk.settings, self.trunk.rng
        failures = 0
        wanted = loop.time()  # when there was last a reason to dial
        while True:
            self._attempting = True
            self._over.clear()
            began = loop.time()
            if await self._dial():
                await self._over.wait()
                self._wanted = True
            else:
                self.trunk.sink.unreachable(self.node)
            self._attempting = False
            self._forget()
            if self._wanted:
                self._wanted, wanted = False, loop.time()
            elif loop.time() - wanted > settings.forsaken:
                self.trunk.sink.forsaken(self)
                return
            failures = 0 if loop.time() - began > settings.steady else failures + 1
            pause = min(settings.backoff_max, settings.backoff * 2.0 ** min(failures, 16))
            self._nudged.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause * (0.5 + rng.random() / 2)):
                    await self._nudged.wait()

    async def _dial(self) -> bool:
        trunk, address = self.trunk, self._directory.get(self.node)
        trunk.counters["dials"] += 1
        try:
            if address is None:
                raise OSError(f"{self.node} has left the directory")
            async with asyncio.timeout(trunk.settings.dial_seconds):  # wait_for can swallow the cancellation of `close`
                await self._connect(address)
        except (
            OSError,
            TimeoutError,
            ValueError,
        ) as error:  # a name that cannot be looked up is as good as nobody there
            trunk.counters["dials_failed"] += 1
            self.unreached = "connection refused" if isinstance(error, ConnectionRefusedError) else str(error)
            return False
        self.unreached = ""
        return True

    async def _connect(self, address: Address) -> None:
        trunk = self.trunk
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: trunk.connection(self), address[0], address[1], ssl=trunk.tls
            )
        except asyncio.CancelledError:  # uvloop then closes a socket that is just connected without telling anybody
            connection, self._connection, self.peer = self._connection, None, None
            if connection is not None:
                connection.abort()
            raise

    def _forget(self) -> None:
        self.trunk.counters["dropped_down"] += len(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0

    # --- the connection's owner ---------------------------------------------------------------------------

    def opened(self, connection: FrameConnection) -> None:
        super().opened(connection)
        self._connection = connection
        meant = self.node if name_of(self.node) else ""
        connection.send(introduce(msgspec.structs.replace(self.trunk.hello, to=meant)))

    def greet(self, connection: FrameConnection, hello: Hello) -> None:
        """The answer to our hello: what has waited can go."""
        if hello.node != self.node and name_of(self.node):  # a seed fits any name
            raise FrameError("name", f"the node at this address is {hello.node!r}, not {self.node!r}")
        peer = self.trunk.admit(connection, hello, accepted=False)
        connection.peer = self.peer = peer
        self.refused = None
        if hello.node != self.node:
            seed, self.node = self.node, hello.node
            self.trunk.sink.named(seed, self)
        waiting, self._waiting = self._waiting, deque()
        self._waiting_bytes = 0
        self.trunk.sink.peer_up(peer)
        for outgoing in waiting:
            peer.send(outgoing)

    def closed(self, connection: FrameConnection, error: BaseException | None) -> None:
        greeted = connection.peer is not None
        super().closed(connection, error)
        self.peer = self._connection = None
        self.refused = error if isinstance(error, FrameError) else None
        if not greeted:
            self.trunk.sink.unreachable(self.node)
        self._over.set()


class Listener(_Side):
    """Accepts connections. The newest connection of a node stands for it; an older one is told so and closed."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__(trunk)
        self.peers: dict[NodeId, Peer] = {}
        self._connections: set[FrameConnection] = set()
        self._strangers = 0
        self._empty = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> Address:
        """Accept connections; says where (a port of 0 takes a free one)."""
        loop = asyncio.get_running_loop()
        make = lambda: self.trunk.connection(self)  # noqa: E731 - a factory, as asyncio wants it
        self._server = await loop.create_server(make, host, port, ssl=tls, reuse_address=True, backlog=1024)
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    async def close(self) -> None:
        """Accept no more, and end what is there."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            await self._empty.wait()
        if server is not None:
            await server.wait_closed()

    def opened(self, connection: FrameConnection) -> None:
        super().opened(connection)
        self._connections.add(connection)
        self._empty.clear()
        self._strangers += 1
        settings = self.trunk.settings
        if self._strangers > settings.strangers or len(self._connections) > settings.peers:
            connection.refuse(FrameError("full", f"{len(self._connections)} connections; try again later"))

    def greet(self, connection: FrameConnection, hello: Hello) -> None:
        """A newcomer: answer, and let it take the place of its older self."""
        peer = self.trunk.admit(connection, hello, accepted=True)
        self._strangers -= 1
        connection.send(introduce(self.trunk.hello))
        older = self.peers.get(hello.node)
        connection.peer = self.peers[hello.node] = peer
        if older is not None:
            older.refuse(FrameError("superseded", f"{hello.node!r} has connected anew"))
        self.trunk.sink.peer_up(peer)

    def closed(self, connection: FrameConnection, error: BaseException | None) -> None:
        peer: Peer | None = connection.peer
        if peer is None:
            self._strangers -= 1
        elif self.peers.get(peer.node) == peer:
            del self.peers[peer.node]
        self._connections.discard(connection)
        super().closed(connection, error)
        if not self._connections:
            self._empty.set()
