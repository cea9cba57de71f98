"""The replica's end of plain subscriptions: feeds subscribers what is committed, from any number on, through a filter.

A subscriber asks a replica of its region to *follow* a stream. The replica sends spans as they are committed, at most a
window of messages ahead of what the subscriber has *consumed*. It keeps one position per subscription and nothing else,
so a slow subscriber delays nobody and later reads what collection has left (A1.46). Rows that the filter drops leave
coverage behind, as collected rows do.

Guarantee: of what is committed in [lo, horizon) a subscriber is sent every row that the filter passes and that was not
collected meanwhile, in order. subscriber.py turns that into exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tidings.core.errors import AsofGone, BadInput
from tidings.core.history import History
from tidings.core.ids import FIRST, NEVER, NodeId, StreamId, is_hidden, stream_name
from tidings.core.lens import ALL, Lens
from tidings.core.rows import NO_ROWS, Mask, Rows
from tidings.core.span import MESSAGE_BYTES, Span, within
from tidings.protocols.brokers.messages import (
    EARLIEST,
    LATEST,
    NOWHERE,
    Consumed,
    Feed,
    Follow,
    SubscriptionSettings,
    Unfollow,
    Unfollowed,
)
from tidings.protocols.credit import CreditWindow
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

Match: TypeAlias = Callable[[Rows], Mask]
MakeMatch: TypeAlias = Callable[[StreamId, str], Match]
"""(stream, SQL) -> the filter; raises `BadInput`."""


class FeedTick(Timer, frozen=True, gc=False):
    """Tell every subscriber that this replica is there, and send again what was not consumed."""


class Position:
    """How far one subscriber has been fed."""

    __slots__ = (
        *("asof", "done", "end", "fixed", "idle", "lens", "match", "next", "quiet", "said", "stream", "unacked"),
    )

    def __init__(
        self, stream: StreamId, lo: int, lens: Lens, match: Match | None, end: int = NEVER, fixed: int = 0
    ) -> None:
        self.stream = stream
        self.end = end  # first number that is not wanted
        self.fixed = fixed  # rows are wanted as of this number; 0: as they are when sent
        self.next = lo  # first number not looked at
        self.said = lo  # first number not told of: what lies between has no row that passes the filter
        self.asof = lo  # as of which that is so
        self.done = lo  # first number not consumed
        self.lens = lens
        self.match = match
        self.unacked = CreditWindow()
        self.quiet = 0  # beats since the last message of the subscriber
        self.idle = 0  # those of them for which it owes an answer

    def consumed(self, horizon: int) -> None:
        """Everything below ``horizon`` has arrived."""
        self.done = horizon
        self.unacked.release(horizon)


class Subscriptions:
    """One replica's subscribers."""

    handles: frozenset[type] = frozenset({Follow, Consumed, Unfollow, FeedTick})

    def __init__(
        self, histories: Mapping[StreamId, History], make_match: MakeMatch, settings: SubscriptionSettings
    ) -> None:
        self.histories = histories
        self.make_match = make_match
        self.settings = settings
        self.positions: dict[tuple[NodeId, int], Position] = {}
        self.by_stream: dict[StreamId, dict[tuple[NodeId, int], Position]] = {}

    def start(self) -> SetTimer:
        """Begin to beat."""
        return SetTimer(self.settings.beat, FeedTick())

    def handle(self, now: Time, input: Input) -> Effects:
        match input:
            case Received(src, Consumed(id, horizon)):
                return self._consumed((src, id), horizon)
            case Received(src, Follow() as follow):
                return self._follow(src, follow)
            case Received(src, Unfollow(id)):
                self._drop((src, id))
                return NOTHING
            case Expired(FeedTick()):
                return self._beat()
        return NOTHING

    def check(self) -> None:
        for position in self.positions.values():
            assert position.done <= position.next, "consumed only what was sent"
            assert len(position.unacked) <= self.settings.window, "credit"
            assert position.idle <= min(position.quiet, self.settings.patience), "silent subscribers are dropped"

    def committed(self, stream: StreamId, fresh: Sequence[Span] = ()) -> list[Effect]:
        """The horizon of a stream has moved: feed those who follow it, with the spans that moved it if they can be."""
        effects: list[Effect] = []
        for key, position in list(self.by_stream.get(stream, {}).items()):
            self._pump(key, position, effects, fresh)
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
        if history is None or is_hidden(follow.stream):
            return [Send(src, Unfollowed(follow.id, f"stream {stream_name(follow.stream)!r} is unknown here", True))]
        if key not in self.positions and len(self.positions) >= self.settings.subscriptions:
            return [Send(src, Unfollowed(follow.id, "this replica has no room for another subscription"))]
        lens = Lens(follow.where) if follow.where else ALL
        try:
            match = self.make_match(follow.stream, follow.where) if follow.where else None
        except BadInput as error:
            return [Send(src, Unfollowed(follow.id, str(error)))]
        lo = {EARLIEST: FIRST, LATEST: history.horizon}.get(follow.lo, follow.lo)
        if lo < FIRST:
            return [Send(src, Unfollowed(follow.id, f"a stream begins at {FIRST}, not at {follow.lo}"))]
        if 0 < follow.hi <= lo:
            return [Send(src, Unfollowed(follow.id, f"[{lo}, {follow.hi}) is not a range of numbers"))]
        self._drop(key)
        position = Position(follow.stream, lo, lens, match, follow.hi or NEVER, follow.asof)
        self.positions[key] = position
        self.by_stream.setdefault(follow.stream, {})[key] = position
        effects: list[Effect] = []
        self._pump(key, position, effects)
        return effects or [Send(src, Feed(follow.id, lo, (), history.horizon))]

    def _drop(self, key: tuple[NodeId, int]) -> None:
        position = self.positions.pop(key, None)
        if position is not None:
            keys = self.by_stream[position.stream]
            del keys[key]
            if not keys:
                del self.by_stream[position.stream]

    def _end(self, key: tuple[NodeId, int], position: Position) -> Send:
        """Tell a subscriber that its stream is gone."""
        self._drop(key)
        return Send(key[0], Unfollowed(key[1], f"stream {stream_name(position.stream)!r} was deleted", gone=True))

    def _consumed(self, key: tuple[NodeId, int], horizon: int) -> Effects:
        position = self.positions.get(key)
        if position is None or horizon > position.next:
            return NOTHING
        position.idle = position.quiet = 0
        if horizon <= position.done:
            return NOTHING
        if position.stream not in self.histories:
            return [self._end(key, position)]
        position.consumed(horizon)
        effects: list[Effect] = []
        self._pump(key, position, effects)
        return effects

    def _pump(
        self, key: tuple[NodeId, int], position: Position, effects: list[Effect], fresh: Sequence[Span] = ()
    ) -> None:
        """Send what is committed and fits the window; coverage without rows waits for rows, the end or the beat."""
        history = self.histories[position.stream]
        while position.next < min(history.horizon, position.end) and self._credit(position):
            try:
                spans = self._next(position, history, fresh)
            except AsofGone as gone:
                self._drop(key)
                effects += [Send(key[0], Unfollowed(key[1], str(gone), floor=gone.floor)), Report("asof_gone")]
                return
            if not spans:
                return
            position.next = spans[-1].hi
            if position.match is not None:
                match = position.match
                spans = [span.filter(position.lens, match(span.rows)) for span in spans]
                if position.next < position.end and not any([span.rows.count or span.lost for span in spans]):
                    position.asof = max([position.asof, *[span.asof for span in spans]])
                    continue
                if position.said < spans[0].lo:
                    spans = [self._hidden(position, spans[0].lo), *spans]
            self._feed(key, position, spans, effects)

    def _next(self, position: Position, history: History, fresh: Sequence[Span]) -> list[Span]:
        """The spans to send next: a message full, or none while the horizon has not reached what they are as of."""
        if position.fixed:
            if history.horizon < position.fixed:
                return []
            hi = min(history.horizon, position.end)
            asof = max(position.fixed, position.next)  # nothing below a number collects it
            return within([history.rows(position.next, hi, asof, self.settings.chunk_rows)])
        if position.end == NEVER:
            spans = self._as_they_came(position.next, fresh)
            if spans:
                return spans
        return history.know(position.next, position.end, self.settings.chunk_rows)

    def _as_they_came(self, lo: int, fresh: Sequence[Span]) -> list[Span]:
        """The spans just committed that continue from ``lo``: a subscriber that keeps up gets each batch uncopied.

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
        return len(position.unacked) < self.settings.window and position.unacked.bytes < self.settings.window_bytes

    def _hidden(self, position: Position, hi: int) -> Span:
        """The range up to ``hi`` of which nothing passes the filter."""
        return Span(position.stream, position.said, hi, max(position.asof, position.said), NO_ROWS, position.lens)

    def _feed(self, key: tuple[NodeId, int], position: Position, spans: list[Span], effects: list[Effect]) -> None:
        feed = Feed(key[1], position.said, tuple(spans), self.histories[position.stream].horizon)
        effects.append(Send(key[0], feed))
        if spans:
            position.said = position.asof = spans[-1].hi
            position.unacked.add(position.said, feed.wire_size)

    def _beat(self) -> Effects:
        effects: list[Effect] = [SetTimer(self.settings.beat, FeedTick())]
        for key, position in list(self.positions.items()):
            position.quiet += 1
            owes = position.unacked or position.quiet > self.settings.ask
            position.idle = position.idle + 1 if owes else 0
            if position.stream not in self.histories:
                effects.append(self._end(key, position))
            elif position.idle > self.settings.patience:
                self._drop(key)
                effects.append(Report("subscriber_given_up"))
            else:
                self._catch_up(key, position, effects)
        return effects

    def _catch_up(self, key: tuple[NodeId, int], position: Position, effects: list[Effect]) -> None:
        """At a beat: send what no commit announced (a snapshot was installed), coverage without rows, or a heartbeat.

        On an idle stream a subscriber has nothing to acknowledge, so from time to time a heartbeat asks for an answer:
        otherwise a dead subscriber would keep its place for ever. The end of a connection does not replace that. It is
        not noticed when a machine is cut off, and it may come late, when the subscriber has followed again.
        """
        sent = len(effects)
        self._pump(key, position, effects)
        if position.said < position.next and self._credit(position):
            self._feed(key, position, [self._hidden(position, position.next)], effects)
        elif len(effects) == sent and position.quiet > self.settings.ask and not position.unacked:
            effects.append(Send(key[0], Feed(key[1], NOWHERE, (), self.histories[position.stream].horizon)))
        elif len(effects) == sent:
            self._feed(key, position, [], effects)
