"""Leases for applications: rows stay readable as of a number while they are held (protocols/services/leases.py).

    async with t.lease("prices", ttl=60.0) as lease:
        async with t.read("prices", 1, lease.asof, asof=lease.asof) as reading: ...
        await lease.move(later)                     # what was readable as of less may be forgotten

The machine renews the lease until it is released. If the lease ends earlier, the next call raises `LeaseExpired`.
"""

from __future__ import annotations

import asyncio
import secrets
from types import TracebackType

import msgspec

from tidings.client.commands import Hold, LetGo
from tidings.client.errors import Closed, LeaseExpired, LeasesFull, TidingsError
from tidings.client.session import Session
from tidings.client.streams import StreamCalls
from tidings.client.validation import name as checked_name
from tidings.client.validation import number, seconds
from tidings.core.errors import BadInput
from tidings.core.ids import StreamId
from tidings.protocols.kernel import Command
from tidings.protocols.services.leases import Dropped, Granted, Lease, MoveLease


class LeaseCalls:
    """The leases of a connection."""

    def __init__(self, session: Session, streams: StreamCalls) -> None:
        self._session = session
        self._streams = streams
        self._leases: dict[str, HeldLease] = {}
        session.on_end.append(self._end)
        session.on(Granted, self._on_granted)
        session.on(Dropped, self._on_dropped)

    def lease(
        self, stream: StreamId, asof: int, name: str | None, ttl: float, bytes: int, resume: bool
    ) -> LeaseOpening:
        """A lease that is not granted yet; raises `BadInput`."""
        own = checked_name("name", name or f"{self._session.client_id}.{secrets.token_hex(6)}")
        bounds = number("asof", asof, 0), seconds("ttl", ttl), number("bytes", bytes, 0)
        return LeaseOpening(self, Lease(own, checked_name("stream", stream), *bounds), resume)

    async def open(self, request: Lease, resume: bool) -> HeldLease:
        """Wait until a lease is granted."""
        request = msgspec.structs.replace(request, stream=(await self._streams.known(request.stream)).id)
        if request.name in self._leases:
            raise BadInput(f"lease {request.name!r}: this connection has one of that name")
        lease = self._leases[request.name] = HeldLease(self, request, resume, self._session.loop)
        try:
            return await lease.open()
        except BaseException:
            self._leases.pop(request.name, None)
            if resume:
                lease.leave()  # a caller that gave up waiting may come back for it
            else:
                lease.release()
            raise

    def command(self, command: Command) -> None:
        """Tell the machine."""
        self._session.command(command)
        if isinstance(command, LetGo):
            self._leases.pop(command.name, None)

    def _on_granted(self, item: Granted) -> None:
        lease = self._leases.get(item.name)
        if lease is not None:
            lease.granted(item.asof)

    def _on_dropped(self, item: Dropped) -> None:
        lease = self._leases.pop(item.name, None)
        if lease is not None:
            lease.dropped(item.reason, item.room)

    def _end(self, error: TidingsError) -> None:
        for lease in self._leases.values():
            lease.end(error)


class LeaseOpening:
    """A lease that is not granted yet: ``async with`` waits for it."""

    def __init__(self, calls: LeaseCalls, request: Lease, resume: bool) -> None:
        self._calls = calls
        self._request = request
        self._resume = resume
        self._lease: HeldLease | None = None

    async def open(self) -> HeldLease:
        """Wait for it; it must be released, or left."""
        self._lease = await self._calls.open(self._request, self._resume)
        return self._lease

    async def __aenter__(self) -> HeldLease:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            self._lease.release()


class HeldLease:
    """One lease; `Connection.lease` makes it."""

    def __init__(self, calls: LeaseCalls, request: Lease, resume: bool, loop: asyncio.AbstractEventLoop) -> None:
        self._calls = calls
        self._request = request
        self._resume = resume
        self._loop = loop
        self._error: TidingsError | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.name = request.name
        self.stream = request.stream
        self.asof = 0
        """Rows can be read as of this number, and later ones."""

    async def open(self) -> HeldLease:
        """Wait until it is granted; raises `LeaseExpired` or `LeasesFull` if it is not."""
        self._calls.command(Hold(self._request, self._resume))
        await self._until(1)
        return self

    async def move(self, asof: int) -> None:
        """Rows are needed as of this number and later ones only; returns when that is committed."""
        self.check()
        self._calls.command(MoveLease(self.name, number("asof", asof)))
        await self._until(asof)

    def release(self) -> None:
        """It is needed no longer. A lease that is neither renewed nor released expires."""
        if self._error is None:
            self._calls.command(LetGo(self.name))
            self.end(Closed(f"the lease {self.name!r} was released"))

    def leave(self) -> None:
        """Renew it no longer, and do not release it: another client may resume it before it expires."""
        if self._error is None:
            self._calls.command(LetGo(self.name, release=False))
            self.end(Closed(f"the lease {self.name!r} was left"))

    def check(self) -> None:
        """Raise `LeaseExpired` if it is over."""
        if self._error is not None:
            raise type(self._error)(*self._error.args)

    async def _until(self, asof: int) -> None:
        while self.asof < asof:
            self.check()
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(future)
            await future
        self.check()

    # --- what the connection tells ----------------------------------------------------------------------

    def granted(self, asof: int) -> None:
        """It is committed as of this number."""
        self.asof = max(self.asof, asof)
        self._wake()

    def dropped(self, reason: str, room: float | None = None) -> None:
        """It is over, or was not granted because there is no ``room`` for so many seconds."""
        if room is not None:
            when = f"the first of them ends in {room:.0f} s, if its holder does not renew it"
            who = "`tidings status --json` shows who holds them"
            self.end(LeasesFull(f"no lease of {self.stream} was granted: {reason}; {when}, and {who}"))
            return
        what = f"the lease {self.name!r} of {self.stream} is over: {reason}"
        self.end(LeaseExpired(f"{what}; read again from what is there now, under a new lease"))

    def end(self, error: TidingsError) -> None:
        """Nothing more is known of it."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
