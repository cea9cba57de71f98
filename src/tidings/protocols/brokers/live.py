"""The live subscriptions of one stream: those that have been sent everything there is, fed together.

They share one position. What is committed is matched once against the filters of all of them (core/filters/index.py),
and a subscription that nothing matches costs nothing. Those with the same filter share what they are sent. A few events
are cut out one by one, so that all filters that an event passes share its encoding; many are taken as one span.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidings.core.filters.index import FilterIndex
from tidings.core.ids import StreamId
from tidings.core.rows import NO_ROWS
from tidings.core.span import Span
from tidings.protocols.brokers.positions import Key, Position

APART = 8  # ours: so many events are cut out one by one; above, one copy costs less than as many headers


class LiveFeed:
    """Who is live on a stream, and up to where."""

    def __init__(self, stream: StreamId, at: int) -> None:
        self.stream = stream
        self.at = at  # first number that they have not been fed
        self.asof = 0  # as of which what they were not fed did not pass their filters; 0: as of publication
        self.needs = 0  # no member needs a later version of an edge's interests
        self.count = 0
        self._index = FilterIndex()
        self._unfiltered: dict[Key, Position] = {}
        self._filtered: dict[int, dict[Key, Position]] = {}  # by filter

    def enter(self, position: Position) -> None:
        """A subscription begins; raises `BadInput` if there is no room for its filter."""
        if position.filter is not None:
            position.filter_id = self._index.add(position.filter)

    def leave(self, position: Position) -> None:
        """A subscription has ended."""
        self.lag(position)
        if position.filter is not None:
            self._index.remove(position.filter_id)

    def join(self, position: Position) -> None:
        """A subscription has been sent everything there is."""
        assert position.next == self.at
        position.live = True
        self.asof = max(self.asof, position.asof)
        self.needs = max(self.needs, position.needs)
        self.count += 1
        if position.filter is None:
            self._unfiltered[position.key] = position
        else:
            self._filtered.setdefault(position.filter_id, {})[position.key] = position

    def lag(self, position: Position) -> None:
        """It is fed on its own from now on."""
        if not position.live:
            return
        position.live = False
        position.next = self.at
        position.asof = max(position.asof, self.asof)
        self.count -= 1
        if position.filter is None:
            del self._unfiltered[position.key]
            return
        members = self._filtered[position.filter_id]
        del members[position.key]
        if not members:
            del self._filtered[position.filter_id]

    def members(self) -> Iterator[Position]:
        """Those that are live."""
        yield from self._unfiltered.values()
        for members in self._filtered.values():
            yield from members.values()

    def share(self, spans: Sequence[Span]) -> Iterator[tuple[list[Position], tuple[Span, ...]]]:
        """Who is sent what of some spans that continue from ``at``."""
        if self._unfiltered:
            yield list(self._unfiltered.values()), tuple(spans)
        if not self._filtered:
            return
        found: dict[int, list[Span]] = {}
        for span in spans:
            for id, part in self._passing(span):
                if id in self._filtered:
                    found.setdefault(id, []).append(part)
        for id, parts in found.items():
            yield list(self._filtered[id].values()), tuple(parts)

    def _passing(self, span: Span) -> Iterator[tuple[int, Span]]:
        """The filters that some rows of a span pass, and those rows; what is lost concerns all filters."""
        if span.lost:
            matched = {id: places for id, places in self._index.match(span.rows)}
            for id in list(self._filtered):
                rows = span.rows.take(matched[id]) if id in matched else NO_ROWS
                yield id, Span(span.stream, span.lo, span.hi, span.asof, rows, span.lens, span.lost)
            return
        if not span.rows.count:
            return
        numbers = span.rows.numbers
        singles: dict[int, Span] = {}
        for id, places in self._index.match(span.rows):
            if len(places) > APART:
                yield id, Span(span.stream, span.lo, span.hi, span.asof, span.rows.take(places))
                continue
            for place in places.tolist():
                single = singles.get(place)
                if single is None:
                    number = int(numbers[place])
                    single = singles[place] = span.slice(number, number + 1)
                yield id, single
