"""Messages between plain subscribers and the replicas that feed them, and the settings of both ends.

The replica's end is in feeds.py, the client's end in subscriber.py. Cursors of durable subscriptions have messages of
their own (services/cursors.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from tidings.core.ids import NEVER, StreamId
from tidings.core.lens import ALL, Lens
from tidings.core.rows import NO_ROWS
from tidings.core.span import Span, is_knowledge, join
from tidings.protocols.kernel import Message, Value

EARLIEST, LATEST = -1, -2
"""In place of a number to begin with."""

REFILTERED = 40  # bits of a subscription's id; above them is how often its filter was changed


def local(id: int) -> int:
    """The id under which a client knows a subscription, whatever its filter."""
    return id & (1 << REFILTERED) - 1


NOWHERE = 0
"""The position in a `Feed` that asks whether the subscriber is alive."""


class Follow(Message, frozen=True, gc=False):
    """Feed me this stream from ``lo`` on. Answered with `Feed` (at once, perhaps empty) or `Unfollowed`.

    With ``asof`` it is a read: exactly the rows that survive collection below that number, the same at every replica.
    """

    from_clients: ClassVar[bool] = True
    signed: ClassVar[frozenset[str]] = frozenset({"lo"})

    id: int
    stream: StreamId
    lo: int  # a number, EARLIEST or LATEST
    where: str = ""
    hi: int = 0  # where it ends; 0: nowhere
    asof: int = 0  # 0: as it is when it is sent

    def valid(self) -> bool:
        return LATEST <= self.lo <= NEVER


class FollowAbove(Follow, frozen=True, gc=False):
    """`Follow`, from behind everything that has this tick or a smaller one."""

    above: int = 0


class Feed(Message, frozen=True, gc=False):
    """Spans that continue what was sent before, and the sender's horizon.

    What lies between ``at``, the spans and ``hi`` has no row that passes the subscription's filter, as of ``since`` or
    of its publication. The spans do not name the filter: several subscriptions share them.

    With ``at`` = `NOWHERE` the sender has heard nothing for long and asks whether the subscriber is alive; the answer
    is `Consumed`.
    """

    id: int
    at: int  # where the knowledge begins
    spans: tuple[Span, ...]
    horizon: int
    hi: int = 0  # where it ends; 0: with the last span
    since: int = 0

    def valid(self) -> bool:
        return not self.spans or is_knowledge(self.spans[0].stream, self.spans)

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return feed_size(self.spans)

    @property
    def events(self) -> int:  # type: ignore[override]
        return sum([span.rows.count for span in self.spans])

    @property
    def end(self) -> int:
        """First number that it says nothing of."""
        return max(self.at, self.hi, self.spans[-1].hi if self.spans else 0)

    def told(self, stream: StreamId, lens: Lens) -> tuple[Span, ...]:
        """All that it says, through the subscription's lens, in as few spans as can say it."""
        whole = sum([span.hi - span.lo for span in self.spans]) == self.end - self.at
        if lens == ALL:
            return self.spans if whole else self._complete(stream, lens)
        return join((), self._complete(stream, lens))

    def _complete(self, stream: StreamId, lens: Lens) -> tuple[Span, ...]:
        """Its spans, and empty ones between them."""
        out: list[Span] = []
        at = self.at
        for span in self.spans:
            if at < span.lo:
                out.append(Span(stream, at, span.lo, max(self.since, at), NO_ROWS, lens))
            out.append(Span(stream, span.lo, span.hi, span.asof, span.rows, lens, span.lost))
            at = span.hi
        if at < self.hi:
            out.append(Span(stream, at, self.hi, max(self.since, at), NO_ROWS, lens))
        return tuple(out)


def feed_size(spans: Sequence[Span]) -> int:
    """What a `Feed` of some spans costs on a link, and in credit."""
    return 64 + sum([span.wire_size for span in spans])


class FeedBeat(Message, frozen=True, gc=False):
    """A replica is alive: one `Feed` without spans for each subscription of the receiver, as (id, at, hi, since,

    horizon). The next one comes within ``within`` seconds, unless something else does.
    """

    feeds: tuple[tuple[int, int, int, int, int], ...]
    within: float

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 24 + 24 * len(self.feeds)

    @property
    def horizon(self) -> int:
        """Of a beat for one subscription: the horizon of its stream."""
        return self.feeds[0][4]

    def singly(self) -> Iterator[Feed]:
        """The feeds it stands for."""
        for id, at, hi, since, horizon in self.feeds:
            yield Feed(id, at, (), horizon, hi, since)


class Consumed(Message, frozen=True, gc=False):
    """The application has taken everything below ``horizon``: send more. A repetition says: slow, but alive."""

    from_clients: ClassVar[bool] = True

    id: int
    horizon: int


class AllConsumed(Message, frozen=True, gc=False):
    """`Consumed` for several subscriptions of one client: (id, horizon) of each."""

    from_clients: ClassVar[bool] = True

    horizons: tuple[tuple[int, int], ...]

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 16 + 12 * len(self.horizons)


class Uncovered(Message, frozen=True, gc=False):
    """The subscriber waits for coverage: tell it how far that reaches now, not with the next beat only."""

    from_clients: ClassVar[bool] = True

    id: int


class Unfollow(Message, frozen=True, gc=False):
    """Stop feeding this subscription."""

    from_clients: ClassVar[bool] = True

    id: int


class Unfollowed(Message, frozen=True, gc=False):
    """The subscription is refused or ended, and why. ``unknown``: there is no such stream here, perhaps not yet.

    ``gone``: the stream is no more; its name may mean another one.
    ``floor``: this replica has forgotten how things were as of the number asked for; it remembers from here on.
    """

    id: int
    reason: str
    unknown: bool = False
    floor: int = 0
    gone: bool = False


class SubscriptionSettings(Value, frozen=True, gc=False):
    """Ours, because the paper has no plain subscribers."""

    window: int = 1024  # messages beyond what was consumed
    window_bytes: int = 8 << 20  # and bytes; at least one message
    least_bytes: int = 64 << 10  # of them, what each may have however many there are
    total_bytes: int = 1 << 30  # beyond what was consumed, of all subscriptions together: they get equal shares
    ack_bytes: int = 16 << 10  # consumed bytes after which a subscriber says so: a quarter of the least
    chunk_rows: int = 16_384  # rows in one of them
    apart: int = 256  # rows per span from which several are sent as they came: the history would copy them into one
    scan: int = 8  # chunks without a row that passes, after which others get their turn
    beat: float = 0.5  # seconds between heartbeats
    beats: int = 4_000  # nodes told at one beat; with more of them it takes several to tell all
    patience: int = 20  # beats without an answer before a subscriber is dropped
    ask: int = 120  # beats without a message, when none was due, before it is asked whether it is alive
    subscriptions: int = 65_536
    cursors: int = 65_536  # of a region
    swept: int = 1024  # rows of `_cursors` looked at in one go, and superfluous ones before that is worth it
    silence: float = 2.0  # seconds without a heartbeat before the next replica is asked; at least four beats' time
    again: float = 0.5  # likewise after a connection was lost; doubles while no replica answers, up to the silence
    back: float = 30.0  # seconds after which a subscriber that a replica feeds asks the preferred edge again
    settle: float = 3.0  # seconds for which a stream that a replica does not know may be new rather than none
    save: float = 0.2  # seconds between savings of a cursor
