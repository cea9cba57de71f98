"""The replica's end of plain subscriptions: feeds subscribers what is committed, from any number on, through a filter.

A subscriber asks a replica of its region to *follow* a stream. The replica sends spans as they are committed, at most a
window of messages and bytes ahead of what the subscriber has *consumed*. A slow subscriber delays nobody: it is fed
from the history when it has consumed something, so it later reads what collection has left (A1.46). Subscribers that
keep up are fed together (live.py). Rows that the filter drops leave coverage behind, as collected rows do.

A node is told that this replica is alive, and how far the coverage of its subscriptions reaches, in one `FeedBeat` for
all of them.

Guarantee: of what is committed in [lo, horizon) a subscriber is sent every row that the filter passes and that was not
collected meanwhile, in order. subscriber.py turns that into exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from tidings.core.errors import AsofGone, BadInput
from tidings.core.filters import Filter
from tidings.core.ids import FIRST, NEVER, NodeId, StreamId, can_be_followed, stream_name
from tidings.core.rows import Mask
from tidings.core.span import MESSAGE_BYTES, Span, within
from tidings.protocols.brokers.live import LiveFeed
from tidings.protocols.brokers.messages import (
    EARLIEST,
    LATEST,
    NOWHERE,
    AllConsumed,
    Consumed,
    Feed,
    FeedBeat,
    Follow,
    FollowAbove,
    SubscriptionSettings,
    Uncovered,
    Unfollow,
    Unfollowed,
    feed_size,
)
from tidings.protocols.brokers.positions import FedNode, Key, Position
from tidings.protocols.kernel import (
    NOTHING,
    Effect,
    Effects,
    Expired,
    Input,
    Received,
    Report,
    Send,
    SetTimer,
    Time,
    Timer,
)

MakeFilter: TypeAlias = Callable[[StreamId, str], Filter]
"""(stream, SQL) -> the filter; raises `BadInput`."""

COVERAGE_BYTES = 64  # what coverage without rows costs in credit: ours, about its share of a beat


class Readable(Protocol):
    """Where the rows of a stream are: a history, or what an edge keeps of one."""

    @property
    def horizon(self) -> int:
        """First number that is not known."""
        ...

    def know(self, lo: int, hi: int, limit_rows: int | None = None) -> list[Span]:
        """What is known of the beginning of [lo, hi)."""
        ...

    def rows(self, lo: int, hi: int, asof: int, limit_rows: int = NEVER) -> Span:
        """How it is as of a number."""
        ...

    def above(self, tick: int) -> int:
        """A number such that every live row below it has this tick or a smaller one."""
        ...


class FeedTick(Timer, frozen=True, gc=False):
    """Tell subscribers that this replica is there, and what they do not know yet."""


class ScanTick(Timer, frozen=True, gc=False):
    """Go on with subscriptions whose filters have passed nothing of what was looked at."""


class Subscriptions:
    """One replica's subscribers."""

    handles: frozenset[type] = frozenset(
        {Follow, FollowAbove, Consumed, AllConsumed, Uncovered, Unfollow, FeedTick, ScanTick}
    )

    def __init__(
        self, histories: Mapping[StreamId, Readable], make_filter: MakeFilter, settings: SubscriptionSettings
    ) -> None:
        self.histories = histories
        self.make_filter = make_filter
        self.settings = settings
        self.positions: dict[Key, Position] = {}
        self.nodes: dict[NodeId, FedNode] = {}
        self.live: dict[StreamId, LiveFeed] = {}
        self.by_stream: dict[StreamId, dict[Key, Position]] = {}
        self.waiting: dict[StreamId, dict[Key, Position]] = {}  # for what is not there yet
        self.scanning: dict[Key, Position] = {}  # others have their turn before them
        self.turn = 0  # which part of the nodes is told at the next beat

    def start(self) -> SetTimer:
        """Begin to beat."""
        return SetTimer(self.settings.beat, FeedTick())

    def handle(self, now: Time, input: Input) -> Effects:
        match input:
            case Received(src, Consumed(id, horizon)):
                return self._consumed(src, ((id, horizon),))
            case Received(src, AllConsumed(horizons)):
                return self._consumed(src, horizons)
            case Received(src, Follow() as follow):
                return self._follow(src, follow)
            case Received(src, Uncovered(id)):
                return self._cover((src, id))
            case Received(src, Unfollow(id)):
                self._drop((src, id))
                return NOTHING
            case Expired(FeedTick()):
                return self._beat()
            case Expired(ScanTick()):
                return self._scan()
        return NOTHING

    def check(self) -> None:
        for position in self.positions.values():
            assert position.live or position.done <= position.next, "consumed only what was sent"
            assert len(position.unacked) <= self.settings.window, "credit"
            assert not position.live or position.open_ended, "only who wants everything is live"
            assert not position.live or len(position.unacked) < self.settings.window, "who is live can be fed"
        for fed in self.nodes.values():
            assert fed.idle <= min(fed.quiet, self.settings.patience), "silent subscribers are dropped"
            assert fed.positions, "who has no subscription is forgotten"

    # --- inputs -------------------------------------------------------------------------------------------

    def committed(self, stream: StreamId, fresh: Sequence[Span] = ()) -> list[Effect]:
        """The horizon of a stream has moved: feed those who follow it, with the spans that moved it if they can be."""
        effects: list[Effect] = []
        if stream in self.live:
            self._advance(self.live[stream], effects, fresh)
        for position in list(self.waiting.get(stream, {}).values()):
            self._pump(position, effects)
        return effects

    def end(self, stream: StreamId, reason: str) -> list[Effect]:
        """Nothing more of this stream will come: tell its subscribers why."""
        keys = list(self.by_stream.get(stream, ()))
        for key in keys:
            self._drop(key)
        return [Send(node, Unfollowed(id, reason, gone=True)) for node, id in keys]

    def _follow(self, src: NodeId, follow: Follow) -> Effects:
        history = self.histories.get(follow.stream)
        key = (src, follow.id)
        if history is None or not can_be_followed(follow.stream):
            return [Send(src, Unfollowed(follow.id, f"stream {stream_name(follow.stream)!r} is unknown here", True))]
        if key not in self.positions and len(self.positions) >= self.settings.subscriptions:
            return [Send(src, Unfollowed(follow.id, "this replica has no room for another subscription"))]
        lo = {EARLIEST: FIRST, LATEST: history.horizon}.get(follow.lo, follow.lo)
        if isinstance(follow, FollowAbove):
            lo = max(lo, history.above(follow.above))
        if lo < FIRST:
            return [Send(src, Unfollowed(follow.id, f"a stream begins at {FIRST}, not at {follow.lo}"))]
        if 0 < follow.hi <= lo:
            return [Send(src, Unfollowed(follow.id, f"[{lo}, {follow.hi}) is not a range of numbers"))]
        self._drop(key)
        live = self.live.get(follow.stream) or LiveFeed(follow.stream, history.horizon)
        try:
            filter = self.make_filter(follow.stream, follow.where) if follow.where else None
            position = Position(key, follow.stream, lo, filter, follow.hi or NEVER, follow.asof)
            position.needs = self._needs(position)
            live.enter(position)
        except BadInput as error:
            return [Send(src, Unfollowed(follow.id, str(error)))]
        self.live[follow.stream] = live
        self.positions[key] = position
        self.by_stream.setdefault(follow.stream, {})[key] = position
        fed = self.nodes.setdefault(src, FedNode())
        fed.positions[follow.id] = position
        fed.heard()
        effects: list[Effect] = []
        self._pump(position, effects)
        told = any([type(effect) is Send for effect in effects])
        return effects if told else [Send(src, Feed(follow.id, lo, (), history.horizon)), *effects]

    def _drop(self, key: Key) -> None:
        position = self.positions.pop(key, None)
        if position is None:
            return
        stream, (node, id) = position.stream, key
        self.live[stream].leave(position)
        self.scanning.pop(key, None)
        self._no_wait(position)
        _take_out(self.by_stream, stream, key)
        if stream not in self.by_stream:
            del self.live[stream]
        fed = self.nodes[node]
        del fed.positions[id]
        if not fed.positions:
            del self.nodes[node]

    def _end(self, position: Position) -> Send:
        """Tell a subscriber that its stream is gone."""
        node, id = position.key
        self._drop(position.key)
        return Send(node, Unfollowed(id, f"stream {stream_name(position.stream)!r} was deleted", gone=True))

    def _consumed(self, src: NodeId, horizons: Sequence[tuple[int, int]]) -> Effects:
        effects: list[Effect] = []
        for id, horizon in horizons:
            position = self.positions.get((src, id))
            if position is None or horizon > position.said:
                continue
            self.nodes[src].heard()
            if horizon <= position.done:
                continue
            if position.stream not in self.histories:
                effects.append(self._end(position))
                continue
            position.consumed(horizon)
            self._pump(position, effects)
        return effects

    # --- feeding those that are live, together --------------------------------------------------------------

    def _advance(self, live: LiveFeed, effects: list[Effect], fresh: Sequence[Span] = ()) -> None:
        """Feed what has been committed since the last time."""
        history = self.histories[live.stream]
        while live.at < history.horizon:
            if not live.count:
                live.at = history.horizon
                return
            spans = self._as_they_came(live.at, fresh) or history.know(live.at, NEVER, self.settings.chunk_rows)
            self._share(live, spans, history.horizon, effects)

    def _share(self, live: LiveFeed, spans: Sequence[Span], horizon: int, effects: list[Effect]) -> None:
        hi = spans[-1].hi
        late = [span.asof for span in spans if span.asof > span.lo]
        since = live.asof = max([live.asof, *late])
        fed: list[Position] = []
        for positions, parts in live.share(spans):
            size = feed_size(parts)
            for position in positions:
                node, id = position.key
                effects.append(Send(node, Feed(id, position.said, parts, horizon, hi, since)))
                position.sent(hi, size)
            fed += positions
        live.at = hi
        effects += [Report("subscriber_lagging") for position in fed if self._hold_back(position)]

    # --- feeding one ----------------------------------------------------------------------------------------

    def _pump(self, position: Position, effects: list[Effect]) -> None:
        """Send what is committed and fits the window, then decide what the subscription waits for."""
        if position.live:
            return
        try:
            done = self._send(position, effects)
        except AsofGone as gone:
            node, id = position.key
            self._drop(position.key)
            effects += [Send(node, Unfollowed(id, str(gone), floor=gone.floor)), Report("asof_gone")]
            return
        if not done:
            if not self.scanning:
                effects.append(SetTimer(0.0, ScanTick()))
            self.scanning[position.key] = position
            return
        self._no_wait(position)
        if not self._credit(position):
            return
        history, live = self.histories[position.stream], self.live[position.stream]
        if position.open_ended and position.next == history.horizon:
            self._advance(live, effects)
            live.join(position)
            if position.lagging:
                position.lagging = False
                effects.append(Report("subscriber_live"))
        elif position.next < position.end:
            self.waiting.setdefault(position.stream, {})[position.key] = position

    def _send(self, position: Position, effects: list[Effect]) -> bool:
        """Send until there is nothing more or no credit. False: others should have their turn before it goes on."""
        history = self.histories[position.stream]
        scanned = 0
        while position.next < min(history.horizon, position.end) and self._credit(position):
            if scanned == self.settings.scan:
                return False
            spans = self._next(position, history)
            if not spans:
                break
            position.next = spans[-1].hi
            if position.filter is not None:
                position.asof = max([position.asof, *[span.asof for span in spans if span.asof > span.lo]])
                passed = [position.filter.mask(span.rows) for span in spans]
                kept = zip(spans, passed, strict=True)
                spans = [_only(span, mask) for span, mask in kept if span.lost or mask.any()]
                if not spans and position.next < position.end:
                    scanned += 1
                    continue
            self._feed(position, spans, effects)
        return True

    def _needs(self, position: Position) -> int:
        """At an edge: which version of its interests includes the filter of a subscription."""
        return 0

    def _next(self, position: Position, history: Readable) -> list[Span]:
        """The spans to send next: a message full, or none while the horizon has not reached what they are as of."""
        if position.fixed:
            if history.horizon < position.fixed:
                return []
            hi = min(history.horizon, position.end)
            asof = max(position.fixed, position.next)  # nothing below a number collects it
            return within([history.rows(position.next, hi, asof, self.settings.chunk_rows)])
        return history.know(position.next, position.end, self.settings.chunk_rows)

    def _as_they_came(self, lo: int, fresh: Sequence[Span]) -> list[Span]:
        """The spans just committed that continue from ``lo``: subscribers that keep up get each batch uncopied.

        Empty if they are so many and so small that one span from the history is cheaper.
        """
        spans: list[Span] = []
        rows = size = 0
        for span in fresh:
            if span.lo != lo:
                continue
            rows += span.rows.count
            size += span.wire_size
            if spans and (rows > self.settings.chunk_rows or size > MESSAGE_BYTES):
                break
            spans.append(span)
            lo = span.hi
        return spans if len(spans) < 2 or rows >= self.settings.apart * len(spans) else []

    def _credit(self, position: Position) -> bool:
        settings, unacked = self.settings, position.unacked
        if len(unacked) >= settings.window:
            return False
        share = max(settings.least_bytes, settings.total_bytes // len(self.positions))
        return unacked.bytes < min(settings.window_bytes, share)

    def _feed(self, position: Position, spans: list[Span], effects: list[Effect]) -> None:
        node, id = position.key
        horizon = self.histories[position.stream].horizon
        feed = Feed(id, position.said, tuple(spans), horizon, position.next, position.asof)
        effects.append(Send(node, feed))
        position.sent(position.next, feed.wire_size)

    def _hold_back(self, position: Position) -> bool:
        """Whether a live subscription has no credit left: then it is not fed with the others any more."""
        if not position.live or self._credit(position):
            return False
        self.live[position.stream].lag(position)
        position.lagging = True
        return True

    def _no_wait(self, position: Position) -> None:
        if position.key in self.waiting.get(position.stream, ()):
            _take_out(self.waiting, position.stream, position.key)

    def _scan(self) -> Effects:
        effects: list[Effect] = []
        scanning, self.scanning = self.scanning, {}
        for position in scanning.values():
            if position.stream in self.histories:
                self._pump(position, effects)
        return effects

    # --- the beat -------------------------------------------------------------------------------------------

    def _beat(self) -> Effects:
        """Tell nodes what they do not know yet, as many as one beat has room for, in turns."""
        settings = self.settings
        effects: list[Effect] = [SetTimer(settings.beat, FeedTick())]
        for stream, live in self.live.items():
            if stream in self.histories:
                self._advance(live, effects)  # what no commit announced: a snapshot was installed
        nodes = list(self.nodes)
        turns = -(-len(nodes) // settings.beats) or 1
        self.turn = (self.turn + 1) % turns
        for node in nodes[self.turn :: turns]:
            self._tell(node, self.nodes[node], settings.beat * turns, effects)
        return effects

    def _tell(self, node: NodeId, fed: FedNode, within: float, effects: list[Effect]) -> None:
        """Tell a node that this replica is there, and of its subscriptions what they do not know yet.

        On an idle stream a subscriber has nothing to acknowledge, so from time to time it is asked for an answer:
        otherwise a dead node would keep its place for ever. The end of a connection does not replace that. It is
        not noticed when a machine is cut off, and it may come late, when the subscriber has followed again.
        """
        fed.quiet += 1
        asked = fed.quiet > self.settings.ask
        fed.idle = fed.idle + 1 if asked or fed.owes else 0
        gone = [position for position in fed.positions.values() if position.stream not in self.histories]
        effects += [self._end(position) for position in gone]
        if fed.idle > self.settings.patience:
            for position in list(fed.positions.values()):
                self._drop(position.key)
                effects.append(Report("subscriber_given_up"))
            return
        for position in list(fed.positions.values()):
            self._pump(position, effects)
        feeds = [self._news(position, asked) for position in fed.positions.values()]
        if feeds:
            effects.append(Send(node, FeedBeat(tuple(feeds), within)))

    def _cover(self, key: Key) -> Effects:
        """Tell one subscriber at once what the next beat would tell it."""
        position = self.positions.get(key)
        if position is None or position.stream not in self.histories:
            return NOTHING
        within = self.settings.beat * (len(self.nodes) // self.settings.beats + 1)
        return [Send(key[0], FeedBeat((self._news(position, False),), within))]

    def _news(self, position: Position, asked: bool) -> tuple[int, int, int, int, int]:
        """The coverage that a subscription does not know of yet."""
        live, id = self.live[position.stream], position.key[1]
        horizon = self.histories[position.stream].horizon
        if asked and not position.unacked:
            return id, NOWHERE, 0, 0, horizon
        at, since = (live.at, live.asof) if position.live else (position.next, position.asof)
        said = position.said
        if said < at and self._credit(position):
            position.sent(at, COVERAGE_BYTES)
            self._hold_back(position)
        else:
            at = said
        return id, said, at, since, horizon


def _only(span: Span, passed: Mask) -> Span:
    """A span with the rows that pass."""
    return Span(span.stream, span.lo, span.hi, span.asof, span.rows.take(passed), span.lens, span.lost)


def _take_out(table: dict[StreamId, dict[Key, Position]], stream: StreamId, key: Key) -> None:
    """Remove an entry, and with the last one of a stream the stream."""
    del table[stream][key]
    if not table[stream]:
        del table[stream]
