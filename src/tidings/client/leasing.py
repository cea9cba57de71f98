"""Leases for applications: rows stay readable as of a number while they are held (protocols/leases.py).

    async with t.lease("prices", ttl=60.0) as lease:
        async with t.read("prices", 1, lease.asof, asof=lease.asof) as reading: ...
        await lease.move(later)                     # what was readable as of less may be forgotten

The machine renews it until it is released, or over: then `LeaseExpired` says why, at the next call.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from tidings.client.errors import Closed, LeaseExpired, LeasesFull, TidingsError
from tidings.client.inputs import number
from tidings.client.machine import Hold, LetGo
from tidings.protocols.kernel import Command
from tidings.protocols.leases import Lease as Request
from tidings.protocols.leases import MoveLease


class Commands(Protocol):
    """What a lease needs of its connection."""

    def command(self, command: Command) -> None:
        """Tell the machine."""
        ...


class Lease:
    """One lease; `Connection.lease` makes it."""

    def __init__(self, connection: Commands, request: Request, resume: bool, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._request = request
        self._resume = resume
        self._loop = loop
        self._error: TidingsError | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.name = request.name
        self.stream = request.stream
        self.asof = 0
        """Rows can be read as of this number, and later ones."""

    async def open(self) -> Lease:
        """Wait until it is granted; raises `LeaseExpired` or `LeasesFull` if it is not."""
        self._connection.command(Hold(self._request, self._resume))
        await self._until(1)
        return self

    async def move(self, asof: int) -> None:
        """Rows are needed as of this number and later ones only; returns when that is committed."""
        self.check()
        self._connection.command(MoveLease(self.name, number("asof", asof)))
        await self._until(asof)

    def release(self) -> None:
        """It is needed no longer. Who only stops renewing leaves it to expire."""
        if self._error is None:
            self._connection.command(LetGo(self.name))
            self.end(Closed(f"the lease {self.name!r} was released"))

    def leave(self) -> None:
        """Renew it no longer, but let it be: somebody may resume it before it expires."""
        if self._error is None:
            self._connection.command(LetGo(self.name, release=False))
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
