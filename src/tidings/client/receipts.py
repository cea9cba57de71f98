"""Delivery receipts, the subscriber's side: once a second the client tells its region what the application was handed.

Spans that continue each other and can be stated as one (core/span.py: equal asof, or as published) are one receipt. A
receipt is closed once a second, or when the next span does not continue it. Closed receipts are sent in the background,
one message at a time; the application never waits for that. At most `WAITING` receipts are held, and more are dropped.
Receipts are numbered without holes, so a dropped one shows: an audit calls its range unverifiable, not wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from tidings.client.errors import TidingsError
from tidings.core.hashing import WORD
from tidings.core.ids import StreamId
from tidings.core.span import Span
from tidings.protocols.services.receipts import MOST, Receipt

PERIOD = 1.0  # seconds that a receipt may cover; ours
WAITING = 8 * MOST  # receipts held while the head takes none; ours: about a megabyte
GOODBYE = 2.0  # seconds for the last ones when the connection is closed; ours

Send = Callable[[tuple[Receipt, ...]], Awaitable[None]]
"""Returns when they are committed."""


class Account:
    """The receipts of one stream of one subscription."""

    __slots__ = ("_full", "_run", "incarnation", "n", "stream", "subscriber")

    def __init__(self, subscriber: str, incarnation: int, stream: StreamId) -> None:
        self.subscriber = subscriber
        self.incarnation = incarnation
        self.stream = stream
        self.n = 0
        self._run: Receipt | None = None
        self._full = False  # every number of the run has a row

    def note(self, span: Span, now: float) -> Receipt | None:
        """The application was handed a span; the receipt that this has closed, if any."""
        run, full, asof = self._run, span.full, max(span.asof, span.lo)
        if run is not None and run.hi == span.lo and run.lens == span.lens.text:
            stated = min(run.asof, asof) if self._full and full else run.asof
            if (self._full and full) or run.asof == asof or max(run.asof, asof) <= span.lo:
                self._run = msgspec.structs.replace(
                    run,
                    hi=span.hi,
                    asof=stated,
                    rows=run.rows + span.rows.count,
                    hash_sum=(run.hash_sum + span.rows.hash_sum) & WORD,
                    time=now,
                )
                self._full = self._full and full
                return None
        closed = self.close()
        self.n += 1
        self._full = full
        self._run = Receipt(
            self.subscriber,
            self.incarnation,
            self.n,
            self.stream,
            span.lo,
            span.hi,
            asof,
            span.lens.text,
            span.rows.count,
            span.rows.hash_sum,
            now,
        )
        return closed

    def close(self) -> Receipt | None:
        """The receipt that is open, if any; the next span begins another."""
        run, self._run = self._run, None
        return run


class ReceiptLedger:
    """All receipts of a connection."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._accounts: dict[int, Account] = {}
        self._waiting: deque[Receipt] = deque()
        self._task: asyncio.Task[None] | None = None
        self.kept = 0
        self.dropped = 0

    def open(self, id: int, subscriber: str, incarnation: int, stream: StreamId) -> None:
        """A stream of a subscription begins."""
        self._accounts[id] = Account(subscriber, incarnation, stream)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="tidings-receipts")

    def note(self, id: int, span: Span) -> None:
        """The application was handed a span."""
        account = self._accounts.get(id)
        if account is not None:
            self._hold(account.note(span, time.time()))

    def end(self, id: int) -> None:
        """The subscription is over; what it was handed is not forgotten."""
        account = self._accounts.pop(id, None)
        if account is not None:
            self._hold(account.close())

    async def close(self) -> None:
        """Send what there is, if the head takes it soon."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._close_all()
        with contextlib.suppress(TimeoutError, TidingsError):
            async with asyncio.timeout(GOODBYE):
                await self._flush()

    def _hold(self, receipt: Receipt | None) -> None:
        if receipt is None:
            return
        if len(self._waiting) >= WAITING:
            self.dropped += 1
        else:
            self._waiting.append(receipt)

    def _close_all(self) -> None:
        for account in self._accounts.values():
            self._hold(account.close())

    async def _run(self) -> None:
        with contextlib.suppress(TidingsError):  # the connection is over
            while True:
                await asyncio.sleep(PERIOD)
                self._close_all()
                await self._flush()

    async def _flush(self) -> None:
        """One message after the other; what is not answered stays in front."""
        while self._waiting:
            receipts = tuple([self._waiting[at] for at in range(min(MOST, len(self._waiting)))])
            await self._send(receipts)
            for _ in receipts:
                self._waiting.popleft()
            self.kept += len(receipts)
