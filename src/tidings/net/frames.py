"""Frames: what a connection carries, how they are read without copying twice, and how they are written together.

    frame = length (u32) | header length (u32) | header | zeros up to a multiple of 8 | body

Both numbers are little-endian; ``length`` counts everything behind them. The header is msgpack, the body the columns
of rows. It begins on a multiple of 8, so that the columns can be used in place.

Reading: the kernel writes into an arena that is allocated once, reused (decision 0006) and shared by all connections of
a host. Header and body are copied out of it once. A large frame that has not fully arrived is received into a buffer of
its own. The frames are the same however the bytes are split on the way. Bytes that are no frame are a `FrameError`,
never another exception.

Writing: frames sent in one turn of the loop leave in one write (decision 0006), at the end of the turn, or earlier when
the sender calls for it.

Until the other end has identified itself, a connection gets little memory and little time. A connection that breaks
the rules gets an error frame, is counted and closed; other connections are not affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from struct import Struct as Packer
from typing import Any, Protocol, TypeAlias, cast

import msgspec
import pyarrow as pa

from tidings.core.errors import TidingsError

PREFIX = Packer("<II")
ALIGN = 8  # of a body in its frame: what Arrow and 64-bit loads need
MAX_FRAME = 64 << 20
"""Bytes; ours, because 100 times a batch of 16k events leaves room for large payloads and none for a 4 GiB lie."""
HELLO_BYTES = 4096  # ours, because a hello is some 100 bytes and a token a few hundred
HELLO_SECONDS = 5.0  # ours, because TCP repeats a lost first packet after 1 and 3 s
LINGER_SECONDS = 1.0  # ours: how long a refused peer has to read why; closing at once would reset the connection
ARENA = 256 << 10  # ours, because larger reads gained nothing on loopback
DIRECT = 64 << 10  # ours: a body of this size that has not arrived yet is received into memory of its own
HIGH_WATER = 4 << 20  # ours: bytes in the socket's queue above which a connection is not writable
JOINED = 16 << 10  # ours, because copying less than this is cheaper than one more element of a writev

CODES = frozenset(
    [
        "bad_message",
        "cluster",
        "format",
        "frame",
        "full",
        "hello",
        "name",
        "role",
        "superseded",
        "token",
        "too_large",
        "unknown_message",
    ]
)
"""What a `FrameError` of ours may say. Of others only these are counted by name: a peer must not invent counters."""

_BIN = memoryview(bytearray(16 << 10))
"""Where bytes go that nobody will read."""

Buffer: TypeAlias = bytes | memoryview
Body: TypeAlias = memoryview
NO_BODY: Body = memoryview(b"")


class FrameError(TidingsError):
    """What a peer sent cannot be accepted; ``code`` says why in one word, for counters and for the peer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Told(FrameError):
    """The other end has ended the connection and has said why: there is nothing to answer."""


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A frame ready to be written: its bytes in pieces, and how many there are. ``bulk``: it carries rows."""

    chunks: tuple[Buffer, ...]
    size: int
    bulk: bool = False


def frame(header: bytes, body: Sequence[Buffer] = ()) -> Outgoing:
    """Frame a header and the buffers of a body, none of which is copied."""
    head = len(header)
    if not body:
        return Outgoing((PREFIX.pack(head, head) + header,), head + 8)
    length = padded(head) + sum([len(buffer) for buffer in body])
    return Outgoing((PREFIX.pack(length, head) + header + bytes(-head % ALIGN), *body), length + 8, bulk=True)


def padded(size: int) -> int:
    """The next multiple of 8."""
    return size + -size % ALIGN


OnFrame: TypeAlias = Callable[[bytes, Body], None]
"""(header, body): both belong to the receiver."""


class Arena:
    """Memory that the kernel writes into, for any number of readers: each hands on what came, or keeps the rest."""

    __slots__ = ("data", "view")

    def __init__(self, size: int = ARENA) -> None:
        self.data = bytearray(size)
        self.view = memoryview(self.data)


class FrameReader:
    """Turns received bytes into frames. Ask `room` for memory to receive into, then say how much came with `fed`.

    Nobody else may use the arena between the two, as nobody does in one turn of a loop. In between a reader holds no
    more than the beginning of a frame that is not complete: thousands of idle connections cost nothing.
    """

    __slots__ = ("_arena", "_body", "_fill", "_head", "_rest", "frames", "limit", "on_frame")

    def __init__(self, on_frame: OnFrame, limit: int = MAX_FRAME, arena: Arena | None = None) -> None:
        self.on_frame = on_frame
        self.limit = limit  # bytes of a frame
        self.frames = 0  # handed on
        self._arena = arena or Arena()
        self._rest = b""  # the beginning of an incomplete frame
        self._body: memoryview | None = None  # of a large frame on its way in, header included
        self._fill = self._head = 0  # how much of it is there; how long its header is

    @property
    def midway(self) -> bool:
        """Whether part of a frame has come."""
        return self._body is not None or self._rest != b""

    def room(self) -> memoryview:
        """Memory for the next bytes; never empty."""
        if self._body is not None:
            return self._body[self._fill :]
        start = len(self._rest)
        self._arena.data[:start] = self._rest
        return self._arena.view[start:]

    def fed(self, count: int) -> None:
        """So many bytes have been written into `room`: hand on the frames that are complete."""
        if self._body is not None:
            self._fill += count
            if self._fill < len(self._body):
                return
            whole, self._body = self._body, None
            self.frames += 1
            self.on_frame(bytes(whole[: self._head]), whole[padded(self._head) :])
            return
        end, self._rest = len(self._rest) + count, b""
        self._parse(end)

    def _parse(self, end: int) -> None:
        """Hand on the frames in the first bytes of the arena, and keep what follows them."""
        start = 0
        arena, view, on_frame = self._arena.data, self._arena.view, self.on_frame
        unpack, limit = PREFIX.unpack_from, self.limit
        while end - start >= 8:
            length, head = unpack(arena, start)
            if length >= limit - 7 or not 0 < head <= length or head < length < head + -head % ALIGN:
                raise self._error(length, head)
            begin = start + 8
            stop = begin + length
            if stop > end:
                if length >= DIRECT or length + 8 > len(arena) // 2:
                    self._receive_apart(length, head, view[begin:end])
                    return
                break
            start = stop
            self.frames += 1
            if head == length:
                on_frame(bytes(view[begin:stop]), NO_BODY)
            else:
                body = memoryview(bytes(view[begin + padded(head) : stop]))
                on_frame(bytes(view[begin : begin + head]), body)
            limit = self.limit  # a hello has raised it, perhaps
        self._rest = bytes(view[start:end])

    def _error(self, length: int, head: int) -> FrameError:
        if length + 8 > self.limit:
            return FrameError("too_large", f"a frame of {length + 8} bytes; the limit here is {self.limit}")
        return FrameError("frame", f"no frame: a header of {head} bytes in {length}; both ends must speak Tidings")

    def _receive_apart(self, length: int, head: int, there: memoryview) -> None:
        """Let the rest of a large frame come into memory of its own (aligned, and not zeroed first)."""
        self._body = memoryview(pa.allocate_buffer(length)).cast("B")
        self._fill, self._head = len(there), head
        self._body[: self._fill] = there


class Owner(Protocol):
    """What uses a connection."""

    def opened(self, connection: FrameConnection) -> None:
        """The connection is there."""
        ...

    def received(self, connection: FrameConnection, header: bytes, body: Body) -> None:
        """A frame has come; a `FrameError` refuses it and ends the connection."""
        ...

    def handed(self, connection: FrameConnection) -> None:
        """All frames that had come have been handed on."""
        ...

    def writable(self, connection: FrameConnection, yes: bool) -> None:
        """The socket's queue has passed its high-water mark, or has been emptied."""
        ...

    def closed(self, connection: FrameConnection, error: BaseException | None) -> None:
        """The connection is gone; the reason, if it did not end in peace."""
        ...


ExplainError: TypeAlias = Callable[[FrameError], Outgoing]


class Outbox:
    """Connections that have something to write: at the end of the turn of the loop, or when `flush` is called.

    While it is ``held`` nothing is arranged for the end of the turn: its holder flushes it. ``arena`` is what these
    connections receive into.
    """

    __slots__ = ("_due", "arena", "held")

    def __init__(self) -> None:
        self.held = False
        self.arena = Arena()
        self._due: list[FrameConnection] = []

    def add(self, connection: FrameConnection, loop: asyncio.AbstractEventLoop) -> None:
        """A connection has begun to gather frames."""
        if not self._due and not self.held:
            loop.call_soon(self.flush)
        self._due.append(connection)

    def flush(self) -> None:
        """Write what all of them have gathered."""
        due, self._due = self._due, []
        for connection in due:
            connection.flush()


class FrameConnection(asyncio.BufferedProtocol):
    """One TCP connection as a sequence of frames each way.

    Errors the other end made are answered with what ``explain`` makes of them, counted, and end the connection.
    """

    def __init__(
        self,
        owner: Owner,
        counters: MutableMapping[str, float],
        explain: ExplainError,
        *,
        max_frame: int = MAX_FRAME,
        hello_seconds: float = HELLO_SECONDS,
        high_water: int = HIGH_WATER,
        outbox: Outbox | None = None,
    ) -> None:
        self._owner = owner
        self._outbox = outbox or Outbox()
        self._counters = counters
        self._explain = explain
        self._max_frame = max_frame
        self._hello_seconds = hello_seconds
        self._high_water = high_water
        self._reader = FrameReader(self._received, min(HELLO_BYTES, max_frame), self._outbox.arena)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._error: BaseException | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.open = False  # until the end, for whatever reason, begins
        self.peer: Any = None  # for the owner: who is at the other end, once that is known
        self.can_write = True

    # --- what the owner may do --------------------------------------------------------------------------

    def greeted(self) -> None:
        """The other end has said who it is: it gets the usual limits."""
        self._reader.limit = self._max_frame
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def send(self, outgoing: Outgoing) -> None:
        """Write a frame with the others of this turn."""
        if not self.open:
            return
        if not self._pending:
            self._outbox.add(self, self._loop)
        self._pending += outgoing.chunks
        self._pending_bytes += outgoing.size

    def flush(self) -> None:
        """Hand everything that is pending to the transport in one call."""
        chunks, self._pending = self._pending, []
        if not chunks or self._transport is None or not self.open:
            return
        self._counters["bytes_out"] += self._pending_bytes
        self._pending_bytes = 0
        if len(chunks) > 1:
            chunks = gather(chunks)
        if len(chunks) == 1:
            self._transport.write(chunks[0])
        else:
            self._transport.writelines(chunks)

    @property
    def ready(self) -> bool:
        """Whether more may be sent before the socket's queue is above its high-water mark."""
        return self.can_write and self._pending_bytes < self._high_water

    @property
    def backlog(self) -> int:
        """Bytes handed to `send` that the kernel has not taken."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return waiting + self._pending_bytes

    def pause_reading(self) -> None:
        """Leave what the other end sends in the kernel: it will have to stop."""
        if self.open and self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take what has waited."""
        if self.open and self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def close(self) -> None:
        """End in peace: what was sent is written first."""
        if self.open:
            self.flush()
            self._end()
            assert self._transport is not None
            self._transport.close()
            self._deadline = self._loop.call_later(LINGER_SECONDS, self._transport.abort)

    def abort(self, error: BaseException | None = None) -> None:
        """End at once; what was sent may be lost."""
        self._error = self._error or error
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, error: FrameError) -> None:
        """Tell the other end what it did wrong, count it, and end the connection."""
        if not self.open:
            return
        self._count(f"refused_{error.code}")
        self._error = error
        self.send(self._explain(error))
        self.flush()
        self._end()
        transport = self._transport
        assert transport is not None
        if transport.can_write_eof():
            transport.write_eof()
            if not transport.is_reading():
                transport.resume_reading()  # what still comes is thrown away, until it ends
        else:
            transport.close()
        self._deadline = self._loop.call_later(LINGER_SECONDS, transport.abort)

    @property
    def socket(self) -> Any:
        """The socket, to set options on; None without one."""
        return self._transport.get_extra_info("socket") if self._transport is not None else None

    @property
    def peername(self) -> str:
        """The other end's address, for logs."""
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "nobody")

    # --- asyncio's side ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._transport.set_write_buffer_limits(high=self._high_water)
        self.open = True
        self._deadline = self._loop.call_later(self._hello_seconds, self._hello_overdue)
        self._owner.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop receives into."""
        return self._reader.room() if self.open else _BIN

    def buffer_updated(self, nbytes: int) -> None:
        """So much has come."""
        if not self.open:
            return
        reader = self._reader
        before = reader.frames
        try:
            reader.fed(nbytes)
        except Told as told:
            self._count(f"told_{told.code if told.code in CODES else 'other'}")
            self.abort(told)
        except FrameError as error:
            self.refuse(error)
        self._counters["bytes_in"] += nbytes
        if reader.frames != before:
            self._counters["frames_in"] += reader.frames - before
            self._owner.handed(self)

    def eof_received(self) -> bool | None:
        if self.open and self._reader.midway:
            self._count("cut_short")
        return None

    def pause_writing(self) -> None:
        self.can_write = False
        if self.open:
            self._owner.writable(self, False)

    def resume_writing(self) -> None:
        self.can_write = True
        if self.open:
            self._owner.writable(self, True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        if self._deadline is not None:
            self._deadline.cancel()
        self._owner.closed(self, self._error or exc)

    # --- its parts --------------------------------------------------------------------------------------

    def _received(self, header: bytes, body: Body) -> None:
        if self.open:  # an owner may have ended it over an earlier frame of the same read
            self._owner.received(self, header, body)

    def _hello_overdue(self) -> None:
        self._deadline = None
        self.refuse(FrameError("hello", f"no hello within {self._hello_seconds:g} s"))

    def _end(self) -> None:
        self.open = False
        self._pending.clear()
        self._pending_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _count(self, name: str) -> None:
        self._counters[name] += 1


def gather(chunks: list[Buffer]) -> list[Buffer]:
    """Copy runs of small pieces together and leave large ones alone."""
    out: list[Buffer] = []
    run: list[Buffer] = []
    for chunk in chunks:
        if len(chunk) < JOINED:
            run.append(chunk)
            continue
        if run:
            out.append(b"".join(run))
            run = []
        out.append(chunk)
    if run:
        out.append(b"".join(run))
    return out
