"""A subscription to several streams in one order (``order="total"``), as an application sees it.

Its positions are ticks. A durable one acknowledges up to a tick: an event counts when it is the last of its tick, that
is, of the batch in which it was published.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import cached_property
from itertools import chain

from tidings.client.errors import OrderStalled
from tidings.client.events import Event, EventRows, events_of
from tidings.client.subscription import Subscription
from tidings.core.hybrid_clock import Tick
from tidings.core.ids import stream_name
from tidings.core.rows import NO_ROWS, ArrowRows, Rows
from tidings.core.span import Span
from tidings.protocols.brokers.merging import Begun, Merged, OpenMerge, Stalled
from tidings.protocols.brokers.messages import LATEST


class MergedSpans:
    """What a merge has delivered at once."""

    def __init__(self, merged: Merged) -> None:
        self.hi = merged.tick
        self.spans = merged.spans
        self.order = merged.order

    @property
    def rows(self) -> Rows:
        """The rows, if one span has them all."""
        return self.spans[self.order[0][0]][1].rows if len(self.order) == 1 else NO_ROWS

    def events(self) -> Iterator[Event]:
        """The events in order."""
        needed = {index for index, _, _ in self.order}
        lists = {index: list(events_of(self.spans[index][1])) for index in needed}
        return chain.from_iterable([lists[index][start : end or None] for index, start, end in self.order])

    def runs(self) -> Iterator[Span]:
        """The rows in order, as spans of one stream each."""
        for index, start, end in self.order:
            span = self.spans[index][1]
            numbers = span.rows.numbers
            yield span.slice(int(numbers[start]), int(numbers[end - 1]) + 1) if end else span

    def after(self, event: Event) -> Tick:
        """Up to which tick everything was processed when this event was."""
        return event.tick if event.seq == self._last.get(event.tick, event.seq) else event.tick - 1

    @cached_property
    def _last(self) -> dict[Tick, int]:
        """The last number of each tick."""
        rows = [span.rows for _, span in self.spans]
        return {o.tick: o.hi - 1 for each in rows if isinstance(each, ArrowRows) for o in each.origins}


class MergedSubscription(Subscription):
    """Several streams in one order: `MergedSpans`, one behind the other."""

    @property
    def open(self) -> OpenMerge:
        """What was asked for."""
        (feed,) = self.feeds.values()
        assert isinstance(feed.open, OpenMerge)
        return feed.open

    def begun(self, item: Begun, now: float) -> None:
        """Every stream is followed."""
        self.heard(item.id, item.tick, item.tick, now)

    def stalled(self, item: Stalled) -> None:
        """A region is silent."""
        stream, feed = stream_name(item.stream), self.feeds[item.id]
        latest = self.open.lo == LATEST and not feed.begun
        start: str | int = "latest" if latest else item.tick + 1
        why = f"{feed.stream}: nothing came of region {item.region} for {self.open.patience:g} s"
        advice = f"subscribe again with start={start!r}, without {stream!r} or when the region is back"
        self.end(OrderStalled(f"{why}, so stream {stream!r} holds up the order; {advice}", item.region, stream, start))

    def _processed_last(self) -> None:
        if self._last is not None and self._current is not None:
            feed, item = self._current
            feed.processed = max(feed.processed, item.after(self._last))

    async def _load(self) -> Iterator[Event]:
        """Events of the next delivery that has any."""
        while True:
            item: MergedSpans = await self._span()
            if item.order:
                self._rest = item.events()
                return self._rest

    async def spans(self) -> AsyncIterator[EventRows]:
        """Runs of rows in order, each of one stream; between two of them there may be others of the same stream."""
        while True:
            item: MergedSpans = await self._span()
            for run in item.runs():
                yield EventRows(run)
