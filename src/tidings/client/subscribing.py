"""The calls of a connection that subscribe and read: each opens a `Subscription` and routes spans to it.

A read is a subscription with an end (reading.py). Receipts of what the application was handed go to the region beside
the subscription (receipts.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Literal, TypeAlias

from tidings.client.commands import Ask, Open
from tidings.client.errors import TidingsError
from tidings.client.fabric import Heard
from tidings.client.merged import MergedSpans, MergedSubscription
from tidings.client.reading import Reading
from tidings.client.receipts import ReceiptLedger
from tidings.client.session import Session
from tidings.client.streams import StreamCalls
from tidings.client.subscription import PlainSubscription, Subscription
from tidings.client.validation import name as checked_name
from tidings.client.validation import number, seconds, text
from tidings.core.errors import BadInput
from tidings.core.filters import parse, parse_attributes
from tidings.core.ids import FIRST, StreamId, StreamName, is_internal
from tidings.protocols.brokers.merging import Begun, Merged, OpenMerge, Stalled
from tidings.protocols.brokers.messages import EARLIEST, LATEST
from tidings.protocols.brokers.subscriber import Ended, Fed, Refiltered, Saved
from tidings.protocols.services.catalog import StreamDef
from tidings.protocols.services.receipts import Receipt, Receipts

REPORT = 0.1  # seconds between reports of what durable subscriptions have processed; ours

Start: TypeAlias = Literal["earliest", "latest"] | int


class SubscribeCalls:
    """The subscriptions and reads of a connection. ``receipts``: whether to send some; None: if the cluster asks."""

    def __init__(self, session: Session, streams: StreamCalls, receipts: bool | None) -> None:
        self._session = session
        self._streams = streams
        self._receipts = receipts
        self._ledger = ReceiptLedger(self._send_receipts)
        self._holder = 0  # of the newest subscription
        self._last_id = 0
        self._subscriptions: dict[int, Subscription] = {}
        self._reporter: asyncio.TimerHandle | None = None
        session.on_end.append(self._end)
        session.on(Fed, self._on_fed)
        session.on(Heard, self._on_heard)
        session.on(Saved, self._on_saved)
        session.on(Ended, self._on_ended)
        session.on(Refiltered, self._on_refiltered)
        session.on(Begun, self._on_begun)
        session.on(Merged, self._on_merged)
        session.on(Stalled, self._on_stalled)

    def start_reports(self) -> None:
        """Tell the machine ten times a second what durable subscriptions have processed."""
        for subscription in self._subscriptions.values():
            if subscription.durable:
                subscription.report()
        self._reporter = self._session.loop.call_later(REPORT, self.start_reports)

    async def close(self) -> None:
        """Close every subscription, and send the last receipts."""
        for subscription in list(self._subscriptions.values()):
            await subscription.close()
        await self._ledger.close()
        if self._reporter is not None:
            self._reporter.cancel()

    # --- calls ----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        streams: Iterable[Any],
        where: str | None,
        start: Start,
        order: str,
        name: str | None,
        patience: float | None,
        asked: bool | None,
    ) -> Opening:
        """A subscription that is not open yet; raises `BadInput`. ``asked``: whether to send receipts for it."""
        if order not in ("publisher", "total"):
            raise BadInput(f"order={order!r}: it is 'publisher' or 'total'")
        if patience is not None and seconds("patience", patience) and order != "total":
            raise BadInput("patience is for order='total': without it no stream waits for another")
        names = [checked_name("stream", each) for each in streams]
        if not names or len(set(names)) < len(names):
            raise BadInput(f"subscribe to {names}: name at least one stream, and each once")
        if name is not None:
            checked_name("name", name)
        where, lo = text("where", where or ""), _position(start)
        if order == "total":
            return Opening(lambda: self.open_merge(names, where, lo, name, patience, asked))
        return Opening(lambda: self.open(names, where, lo, name, asked))

    def read(
        self, stream: StreamId, lo: int, hi: int, asof: int | None, where: str | None, replica: int | None
    ) -> Reading:
        """A read that is not open yet; raises `BadInput`."""
        if not number("lo", lo) < number("hi", hi):
            raise BadInput(f"{stream}: [{lo}, {hi}) is not a range of numbers: they begin at {FIRST}, and lo < hi")
        asof = number("asof", hi if asof is None else asof)
        if replica is not None:
            number("replica", replica, 0)
        return Reading(self, checked_name("stream", stream), lo, hi, asof, text("where", where or ""), replica)

    async def open(
        self, streams: list[StreamId], where: str, lo: int, name: str | None, asked: bool | None
    ) -> Subscription:
        """Open a subscription to some streams, from ``lo`` on."""
        ids = [(await self._check(stream, where)).id for stream in streams]
        holder = self._next_holder()
        opens = [Open(self._next_id(), stream, lo, where, name, holder) for stream in ids]
        return await self._enter(opens, self._subscriber(name, asked))

    async def open_merge(
        self, streams: list[StreamId], where: str, lo: int, name: str | None, patience: float | None, asked: bool | None
    ) -> MergedSubscription:
        """Open a subscription to some streams in one order, from the tick ``lo`` on."""
        found = [await self._check(stream, where) for stream in streams]
        odd = [each.name for each in found if is_internal(each.name) or each.counted]
        if odd:
            raise BadInput(f"stream {odd[0]!r} has no ticks, so it cannot be in a total order")
        if len({each.id for each in found}) < len(found):
            raise BadInput(f"subscribe to {streams}: name each stream once")
        holder, id = self._next_holder(), self._next_id()
        parts = tuple([(self._next_id(), each.id, each.region) for each in found])
        regions = tuple([(self._next_id(), region) for region in sorted({each.region for each in found})])
        where_to = (lo, 0) if lo < 0 else (EARLIEST, lo - 1)
        open = OpenMerge(id, parts, regions, *where_to, where, name, holder, patience)
        subscription = MergedSubscription(self._session, [open], self._forget, self._session.loop)
        self._subscriptions[id] = subscription
        subscriber = self._subscriber(name, asked)
        if subscriber is not None:
            subscription.on_taken = self._note_merged
            for part, stream, _ in parts:
                self._ledger.open(part, subscriber, holder, stream)
        return await subscription.__aenter__()

    async def open_read(
        self, stream: StreamId, lo: int, hi: int, asof: int, where: str, replica: int | None
    ) -> PlainSubscription:
        """Open a subscription that ends at ``hi``."""
        id = (await self._check(stream, where)).id
        return await self._enter([Open(self._next_id(), id, lo, where, None, 0, hi, asof, replica)])

    async def _check(self, stream: StreamName | StreamId, where: str) -> StreamDef:
        """The stream; raises `UnknownStream`, or `BadFilter`, which says where a filter is wrong."""
        definition = await self._streams.known(stream)
        if where:
            parse(where, parse_attributes(definition.attrs))
        return definition

    def _subscriber(self, name: str | None, asked: bool | None) -> str | None:
        """In whose name a subscription sends receipts, if it does."""
        wanted = next((each for each in (asked, self._receipts) if each is not None), self._session.machine.receipts)
        return name or self._session.client_id if wanted else None

    def _next_holder(self) -> int:
        self._holder = max(int(time.time() * 1e6), self._holder + 1)
        return self._holder

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    async def _enter(self, opens: list[Open], subscriber: str | None = None) -> PlainSubscription:
        """Open a subscription; it sends receipts in the name of ``subscriber``, if there is one."""
        loop = self._session.loop
        subscription = PlainSubscription(self._session, opens, self._forget, loop, self._check)
        self._subscriptions |= dict.fromkeys(subscription.feeds, subscription)
        if subscriber is not None:
            subscription.on_taken = self._ledger.note
            for open in opens:
                if not is_internal(open.stream):
                    self._ledger.open(open.id, subscriber, open.holder, open.stream)
        return await subscription.__aenter__()

    def _note_merged(self, id: int, item: MergedSpans) -> None:
        for part, span in item.spans:
            self._ledger.note(part, span)

    def _forget(self, ids: list[int]) -> None:
        for id in ids:
            subscription = self._subscriptions.pop(id, None)
            self._ledger.end(id)
            if isinstance(subscription, MergedSubscription):
                for part, _, _ in subscription.open.streams:
                    self._ledger.end(part)

    async def _send_receipts(self, receipts: tuple[Receipt, ...]) -> None:
        nonce = self._session.nonce()
        await self._session.ask(Ask(nonce, Receipts(nonce, receipts), self._session.region, True))

    # --- what the machine tells -----------------------------------------------------------------------------

    def _on_fed(self, item: Fed) -> None:
        subscription = self._subscriptions.get(item.id)
        if subscription is not None:
            subscription.fed(item.id, item.span)

    def _on_heard(self, item: Heard) -> None:
        subscription = self._subscriptions.get(item.id)
        if subscription is not None:
            subscription.heard(item.id, item.at, item.horizon, self._session.loop.time())

    def _on_saved(self, item: Saved) -> None:
        subscription = self._subscriptions.get(item.id)
        if subscription is not None:
            subscription.saved(item.id, item.horizon)

    def _on_ended(self, item: Ended) -> None:
        subscription = self._subscriptions.get(item.id)
        if subscription is not None:
            subscription.ended(item)

    def _on_refiltered(self, item: Refiltered) -> None:
        subscription = self._subscriptions.get(item.id)
        if isinstance(subscription, PlainSubscription):
            subscription.refiltered(item.id, item.horizon)

    def _on_begun(self, item: Begun) -> None:
        subscription = self._subscriptions.get(item.id)
        if isinstance(subscription, MergedSubscription):
            subscription.begun(item, self._session.loop.time())

    def _on_merged(self, item: Merged) -> None:
        subscription = self._subscriptions.get(item.id)
        if isinstance(subscription, MergedSubscription):
            subscription.fed(item.id, MergedSpans(item))

    def _on_stalled(self, item: Stalled) -> None:
        subscription = self._subscriptions.get(item.id)
        if isinstance(subscription, MergedSubscription):
            subscription.stalled(item)

    def _end(self, error: TidingsError) -> None:
        for subscription in self._subscriptions.values():
            subscription.end(error)


class Opening:
    """A subscription that is not open yet: ``async with`` opens it."""

    def __init__(self, open: Callable[[], Awaitable[Subscription]]) -> None:
        self._open = open
        self._subscription: Subscription | None = None

    async def open(self) -> Subscription:
        """Open it; the subscription must be closed."""
        self._subscription = await self._open()
        return self._subscription

    async def __aenter__(self) -> Subscription:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._subscription is not None:
            await self._subscription.close()


def _position(start: Start) -> int:
    if start == "earliest":
        return EARLIEST
    if start == "latest":
        return LATEST
    asked: object = start  # whatever the types promise
    if isinstance(asked, str):
        raise BadInput(f"start={asked!r:.80}: it is 'earliest', 'latest' or a number from {FIRST} on")
    return number("start", asked)
