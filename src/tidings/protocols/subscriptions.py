"""Plain subscribers: a replica feeds them what is committed, from any number on, through a filter; both ends are here.

A subscriber asks a replica of its region to *follow* a stream. The replica sends spans as they are committed, at most a
window of messages ahead of what the subscriber has *consumed*; it keeps a position per subscription and nothing else,
so a slow subscriber costs nobody anything and later catches up over what collection has left (A1.46). Rows that the
filter drops leave coverage behind, as collected ones do.

The subscriber delivers the next span at its horizon and nothing else: order, no gap and no duplicate come from that one
rule, whatever is lost, repeated or overtaken. When it hears nothing it asks the next replica, from its own horizon.

A durable subscription has a *cursor*, kept by the region's chain: the holder that opened it last may move it forward,
an older one is told that it was superseded.

Guarantee: of what is committed in [lo, horizon) every row that the filter passes and that was not collected meanwhile
is delivered exactly once, in order, as long as some replica of the region answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from tidings.core.errors import AsofGone, BadInput
from tidings.core.history import History
from tidings.core.ids import FIRST, NEVER, NodeId, StreamId, is_hidden
from tidings.core.lens import ALL, Lens
from tidings.core.rows import NO_ROWS, ArrowRows, Mask, Origin, Rows, before_rows, data_rows
from tidings.core.span import MESSAGE_BYTES, Span, within
from tidings.protocols.kernel import (
    NOTHING,
    Command,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Message,
    Received,
    Report,
    Send,
    SetTimer,
    Time,
    Timer,
    Value,
)
from tidings.protocols.membership import Membership
from tidings.protocols.publishing import NotHead

CURSORS: StreamId = "_cursors"
"""The internal stream that holds one entry per durable subscription and stream, by key."""

TRIES = 5  # savings of a cursor without an answer before another replica is asked who is head; ours: a second

LONGEST_NAME = 1024  # characters of a durable subscription's; ours, as many as a receipt has room for

EARLIEST, LATEST = -1, -2
"""In place of a number to begin with."""

NOWHERE = 0
"""Where a `Feed` is that asks whether anybody is there."""

Match: TypeAlias = Callable[[Rows], Mask]
MakeMatch: TypeAlias = Callable[[StreamId, str], Match]
"""(stream, SQL) -> the filter; raises `BadInput`."""


class Follow(Message, frozen=True, gc=False):
    """Feed me this stream from ``lo`` on. Answered with `Feed` (at once, perhaps empty) or `Unfollowed`.

    With ``asof`` it is a read: exactly the rows that survive collection below that number, the same from everybody.
    """

    id: int
    stream: StreamId
    lo: int  # a number, EARLIEST or LATEST
    where: str = ""
    hi: int = 0  # where it ends; 0: nowhere
    asof: int = 0  # 0: as it is when it is sent


class Feed(Message, frozen=True, gc=False):
    """Spans that continue what was sent before, and the sender's horizon. Without spans: still here, at ``at``.

    At 0, where no stream is: the sender has heard nothing for long and asks whether anybody is there. Answered with
    `Consumed`; an older client believes that it is remembered from long ago and follows anew, which says the same.
    """

    id: int
    at: int  # where the spans begin
    spans: tuple[Span, ...]
    horizon: int

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 64 + sum([span.wire_size for span in self.spans])

    @property
    def events(self) -> int:  # type: ignore[override]
        return sum([span.rows.count for span in self.spans])


class Consumed(Message, frozen=True, gc=False):
    """The application has taken everything below ``horizon``: send on. Repeated: it is slow, not gone."""

    id: int
    horizon: int


class Unfollow(Message, frozen=True, gc=False):
    """Feed me no more."""

    id: int


class Unfollowed(Message, frozen=True, gc=False):
    """The subscription cannot be had, and why. ``unknown``: there is no such stream here, perhaps not yet.

    ``floor``: this replica has forgotten how things were as of the number asked for; it can tell from here on.
    """

    id: int
    reason: str
    unknown: bool = False
    floor: int = 0


class OpenCursor(Message, frozen=True, gc=False):
    """To the region's head: this holder takes over a durable subscription; answered with `CursorAt`."""

    name: str
    stream: StreamId
    holder: int


class SaveCursor(Message, frozen=True, gc=False):
    """To the region's head: everything below ``horizon`` is processed; answered with `CursorAt`."""

    name: str
    stream: StreamId
    holder: int
    horizon: int


class CursorAt(Message, frozen=True, gc=False):
    """Where a durable subscription stands, and who holds it: an older holder stops.

    ``refused``: there is none and cannot be, and why; an older client asks again. ``unknown`` as in `Unfollowed`.
    """

    name: str
    stream: StreamId
    holder: int
    horizon: int  # 0: never saved
    refused: str = ""
    unknown: bool = False


class FeedTick(Timer, frozen=True, gc=False):
    """Tell every subscriber that this replica is there, and send again what was not consumed."""


class SubscriptionSettings(Value, frozen=True, gc=False):
    """Ours, because the paper has no plain subscribers."""

    window: int = 32  # messages beyond what was consumed
    window_bytes: int = 8 << 20  # and bytes, or large payloads would make it a large one; at least one message
    chunk_rows: int = 16_384  # rows in one of them
    apart: int = 256  # rows per span from which several are sent as they came: the history would copy them into one
    beat: float = 0.5  # seconds between signs of life
    patience: int = 20  # beats without an answer before a subscriber is given up
    ask: int = 120  # beats without a word, when none was due, before it is asked whether it is there
    subscriptions: int = 65_536
    cursors: int = 65_536  # of a region
    swept: int = 1024  # rows of `_cursors` looked at in one go, and superfluous ones before that is worth it
    silence: float = 2.0  # seconds without a sign of life before the next replica is asked
    again: float = 0.5  # likewise after a connection was lost; doubles while nobody answers, up to the silence
    settle: float = 3.0  # seconds for which a stream that a replica does not know may be new rather than none
    save: float = 0.2  # seconds between savings of a cursor


# --- the replica's end ------------------------------------------------------------------------------------


class Position:
    """How far one subscriber has been fed."""

    __slots__ = (
        *("asof", "done", "end", "fixed", "flying", "idle", "lens", "match", "next", "quiet", "said", "stream"),
        "unacked",
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
        self.unacked: list[tuple[int, int]] = []  # ends and sizes of the messages in flight
        self.flying = 0  # bytes in flight
        self.quiet = 0  # beats since the subscriber was heard of
        self.idle = 0  # those of them for which it owes an answer

    def consumed(self, horizon: int) -> None:
        """Everything below ``horizon`` has arrived."""
        self.done = horizon
        self.unacked = [(end, size) for end, size in self.unacked if end > horizon]
        self.flying = sum([size for _, size in self.unacked])


class Subscriptions:
    """One replica's subscribers."""

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
            assert position.idle <= min(position.quiet, self.settings.patience), "who does not answer is given up"

    def committed(self, stream: StreamId, fresh: Sequence[Span] = ()) -> list[Effect]:
        """The horizon of a stream has moved: feed those who follow it, with the spans that moved it if they can be."""
        effects: list[Effect] = []
        for key, position in list(self.by_stream.get(stream, {}).items()):
            self._pump(key, position, effects, fresh)
        return effects

    def end(self, stream: StreamId, reason: str) -> list[Effect]:
        """Nothing more of this stream will come: tell whoever follows it why."""
        keys = list(self.by_stream.get(stream, ()))
        for key in keys:
            self._drop(key)
        return [Send(node, Unfollowed(id, reason)) for node, id in keys]

    def _follow(self, src: NodeId, follow: Follow) -> Effects:
        history = self.histories.get(follow.stream)
        key = (src, follow.id)
        if history is None or is_hidden(follow.stream):
            return [Send(src, Unfollowed(follow.id, f"stream {follow.stream!r} is unknown here", True))]
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
            del self.by_stream[position.stream][key]

    def _end(self, key: tuple[NodeId, int], position: Position) -> Send:
        """Tell a subscriber that its stream is gone."""
        self._drop(key)
        return Send(key[0], Unfollowed(key[1], f"stream {position.stream!r} was deleted"))

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
        """Of the spans just committed those that continue from ``lo``: whoever keeps up gets each batch uncopied.

        None if they are so many and so small that the history had better make one of them.
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
        return len(position.unacked) < self.settings.window and position.flying < self.settings.window_bytes

    def _hidden(self, position: Position, hi: int) -> Span:
        """The range up to ``hi`` of which nothing passes the filter."""
        return Span(position.stream, position.said, hi, max(position.asof, position.said), NO_ROWS, position.lens)

    def _feed(self, key: tuple[NodeId, int], position: Position, spans: list[Span], effects: list[Effect]) -> None:
        feed = Feed(key[1], position.said, tuple(spans), self.histories[position.stream].horizon)
        effects.append(Send(key[0], feed))
        if spans:
            position.said = position.asof = spans[-1].hi
            size = feed.wire_size
            position.unacked.append((position.said, size))
            position.flying += size

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
        """At a beat: what no commit told of (a snapshot was installed), what no row follows, or a mere sign of life.

        On a stream at rest nobody has anything to say, so now and then the sign of life asks for an answer: whoever is
        gone would else keep its place for ever. The end of a connection would say less: none comes when a machine is
        cut off, and it may come late, when the subscriber has followed again over another.
        """
        sent = len(effects)
        self._pump(key, position, effects)
        if position.said < position.next and self._credit(position):
            self._feed(key, position, [self._hidden(position, position.next)], effects)
        elif len(effects) == sent and position.quiet > self.settings.ask and not position.unacked:
            effects.append(Send(key[0], Feed(key[1], NOWHERE, (), self.histories[position.stream].horizon)))
        elif len(effects) == sent:
            self._feed(key, position, [], effects)


# --- durable subscriptions, at the head --------------------------------------------------------------------


class Cursor(Value, frozen=True, gc=False):
    """What the chain remembers of a durable subscription to one stream."""

    holder: int
    horizon: int
    node: NodeId = ""  # that opened it: two may have come upon one number for themselves


class Cursors:
    """The head's table of durable subscriptions. Only those that somebody opened are in it."""

    def __init__(self, settings: SubscriptionSettings | None = None) -> None:
        self.settings = settings or SubscriptionSettings()
        self.entries: dict[tuple[str, StreamId], Cursor] = {}
        self.inherited = 0  # how many there were at the start: an older head may have taken more
        self.swept = 0  # rows below this number are collected, or will be when the record is committed

    def load(self, rows: Iterable[Rows], gone: Container[StreamId] = ()) -> None:
        """Rebuild the table from the `_cursors` rows of history and log, oldest first; not of streams that are gone."""
        self.entries.clear()
        self.swept = 0
        for part in rows:
            for (name, stream), payload in _pairs(part):
                if stream not in gone:
                    self.entries[name, stream] = msgspec.msgpack.decode(payload, type=Cursor)
        self.inherited = len(self.entries)

    def check(self) -> None:
        assert len(self.entries) <= max(self.settings.cursors, self.inherited), "cursors are bounded"

    def receive(self, src: NodeId, message: OpenCursor | SaveCursor) -> tuple[CursorAt, bool]:
        """The answer to a holder, and whether an entry must be written first."""
        key = (message.name, message.stream)
        known = self.entries.get(key)
        new = known
        if isinstance(message, OpenCursor):
            if known is None and (reason := self._wrong(message.name)):
                return CursorAt(message.name, message.stream, 0, 0, reason), False
            if known is None or message.holder > known.holder:
                new = Cursor(message.holder, known.horizon if known is not None else 0, src)
            elif message.holder == known.holder and known.node not in ("", src):  # it must take a number of its own
                return CursorAt(message.name, message.stream, known.holder + 1, known.horizon), False
        elif known is not None and message.holder == known.holder and message.horizon > known.horizon:
            new = Cursor(known.holder, message.horizon, known.node)
        if new is None:  # saved, but nobody has opened it
            return CursorAt(message.name, message.stream, 0, 0), False
        self.entries[key] = new
        return CursorAt(message.name, message.stream, new.holder, new.horizon), new != known

    def _wrong(self, name: str) -> str:
        """Why there cannot be one more, or ""."""
        if not 0 < len(name) <= LONGEST_NAME:
            return f"the name of a durable subscription has 1 to {LONGEST_NAME} characters, not {len(name)}"
        if len(self.entries) >= self.settings.cursors:
            return f"the region has {len(self.entries)} durable subscriptions, and takes no more"
        return ""

    def forget(self, stream: StreamId) -> None:
        """The stream was deleted, for good."""
        self.entries = {key: entry for key, entry in self.entries.items() if key[1] != stream}

    def sweep(self, lo: int, history: History, now: Time) -> list[Span]:
        """What to write, from ``lo`` on, when most rows of `_cursors` are of streams that are gone; else nothing.

        No later row has the keys of such rows, so nothing would ever collect them. Of the oldest rows those that count
        are written again, and "before n" collects the rest: a piece at a time, so that no record is large.
        """
        if history.live <= 2 * len(self.entries) + self.settings.swept or history.low < self.swept:
            return []
        oldest = history.know(history.low, history.horizon, self.settings.swept)
        keys = [key for span in oldest for key, _ in _pairs(span.rows) if key in self.entries]
        at, self.swept = lo + len(keys), oldest[-1].hi
        before = Span.of(CURSORS, at, before_rows(at, [self.swept], Origin(at, at + 1, CURSORS, 0, at, 0, now)))
        if not keys:
            return [before]
        names = [msgspec.msgpack.encode(key) for key in keys]
        payloads = [msgspec.msgpack.encode(self.entries[key]) for key in keys]
        return [Span.of(CURSORS, lo, data_rows(lo, names, payloads, Origin(lo, at, CURSORS, 0, lo, 0, now))), before]

    def rows(self, lo: int, name: str, stream: StreamId, now: Time) -> Rows:
        """An entry as the next row of the `_cursors` stream."""
        payload = msgspec.msgpack.encode(self.entries[name, stream])
        return data_rows(
            lo, [msgspec.msgpack.encode((name, stream))], [payload], Origin(lo, lo + 1, name, 0, lo, 0, now)
        )


def _pairs(rows: Rows) -> Iterator[tuple[tuple[str, StreamId], bytes]]:
    """Names and entries in rows of `_cursors`."""
    assert isinstance(rows, ArrowRows)
    columns = [rows.batch.column(name).to_pylist() for name in ("key", "payload")]
    for key, payload in zip(*columns, strict=True):
        if key is not None:
            yield msgspec.msgpack.decode(key, type=tuple[str, str]), payload


# --- the subscriber's end ----------------------------------------------------------------------------------


class Take(Command, frozen=True, gc=False):
    """The application has taken everything below ``horizon`` off the subscription's hands."""

    horizon: int


class Save(Command, frozen=True, gc=False):
    """The application has processed everything below ``horizon``: a durable subscription resumes there.

    ``prompt``: it waits for `Saved`, so the cursor is saved now and not with the next tick.
    """

    horizon: int
    prompt: bool = False


class Lost(Command, frozen=True, gc=False):
    """The connection to a replica is gone: no need to wait until its silence is noticed."""

    node: NodeId


class Learn(Command, frozen=True, gc=False):
    """Another configuration of the region's chain."""

    membership: Membership


class Fed(Value, frozen=True, gc=False):
    """Delivered to the application: the next span."""

    id: int
    span: Span


class Saved(Value, frozen=True, gc=False):
    """Delivered to the application: the cursor of a durable subscription is committed up to here."""

    id: int
    horizon: int


class Ended(Value, frozen=True, gc=False):
    """Delivered to the application: the subscription is over. ``superseded``: a newer holder has its name.

    ``floor``: nobody can tell any more how things were as of the number asked for, only from here on.
    """

    id: int
    reason: str
    superseded: bool = False
    floor: int = 0


class FollowTick(Timer, frozen=True, gc=False):
    """Look whether the replica is still there, and save the cursor."""


class Subscriber:
    """One subscription of a client, durable if it has a name. ``lo``: a number, EARLIEST or LATEST.

    With ``hi`` it ends there, with ``asof`` it is a read (`Follow`). A replica that has forgotten how things were as
    of that number is left for the next one, and when all have, the region for ``owner``, where leases are kept.
    """

    def __init__(
        self,
        id: int,
        stream: StreamId,
        lo: int,
        where: str,
        name: str | None,
        membership: Membership,
        settings: SubscriptionSettings,
        holder: int,
        hi: int = 0,
        asof: int = 0,
        owner: Membership | None = None,
    ) -> None:
        self.hi = hi
        self.asof = asof
        self.owner = owner
        self.denied = 0  # replicas in turn that have forgotten
        self.id = id
        self.stream = stream
        self.lo = lo
        self.where = where
        self.name = name
        self.membership = membership
        self.settings = settings
        self.holder = holder
        self.horizon: int | None = None  # first number not delivered; None until that is known
        if name is None:
            self._begin(lo)
        self.opened = name is None
        self.processed = 0  # what the application wants saved
        self.saved = 0
        self.heard: Time = 0.0
        self.ticked: Time = 0.0  # when this end last looked
        self.moves = 0  # since anybody was heard of
        self.turn = holder % len(membership.replicas)  # whom to ask, counted from the head: subscribers spread
        self.head = 0  # whom to ask for the cursor, likewise
        self.unsaved = 0  # ticks for which a cursor has not been saved
        self.over = False
        self.began: Time = 0.0
        self.taken = 0  # first number that the application has not taken
        self.ahead: deque[int] = deque()  # ends of the messages that it has not taken
        self.told = True  # since it took something, that has been said twice
        self.held = False  # nobody is asked before it has taken some of them

    def _begin(self, lo: int) -> None:
        """Only of the latest number does the replica know more: its first feed says it."""
        if lo != LATEST:
            self.horizon = FIRST if lo == EARLIEST else lo

    def start(self, now: Time) -> Effects:
        self.heard = self.began = self.ticked = now
        return [*self._ask(), SetTimer(self.settings.save, FollowTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        if self.over:
            return NOTHING
        match input:
            case Received(src, Feed() as feed) if feed.id == self.id:
                return self._feed(now, src, feed)
            case Received(src, Unfollowed(id, reason, unknown, floor)) if id == self.id and src == self._source():
                if floor:
                    return self._forgotten(now, reason, floor)
                if unknown and now - self.began < self.settings.settle:
                    return self._soon(now)
                return self._end(reason)
            case Received(_, CursorAt() as at) if (at.name, at.stream) == (self.name, self.stream):
                return self._cursor(now, at)
            case Received(src, NotHead(membership)):
                effects = self._learn(now, membership)
                if src == self.membership.head:  # it does not know yet that it is: asked again when time has passed
                    return effects
                self.head = 0
                return self._ask() if not self.opened else effects
            case Take(horizon):
                return self._take(horizon)
            case Save(horizon, prompt):
                self.processed = max(self.processed, horizon)
                return self._save() if prompt else NOTHING
            case Lost(node) if not self.opened and node == self._head():
                self.head += 1
                return self._ask()
            case Lost(node) if node == self._source():
                return [*self._move(now), *self._soon(now)]
            case Learn(membership):
                return self._learn(now, membership)
            case Expired(FollowTick()):
                return [*self._tick(now), SetTimer(self.settings.save, FollowTick())]
        return NOTHING

    def check(self) -> None:
        assert self.saved <= self.processed or not self.opened, "saved is what was processed"
        assert len(self.ahead) <= 2 * self.settings.window, "what the application has not taken is bounded"

    def close(self) -> Effects:
        """The application has had enough."""
        self.over = True
        return [Send(self._source(), Unfollow(self.id)), *self._save()]

    def _source(self) -> NodeId:
        return self.membership.replicas[self.turn % len(self.membership.replicas)]

    def _head(self) -> NodeId:
        return self.membership.replicas[self.head % len(self.membership.replicas)]

    def _ask(self) -> list[Effect]:
        if not self.opened:
            assert self.name is not None
            return [Send(self._head(), OpenCursor(self.name, self.stream, self.holder))]
        self.held = len(self.ahead) >= self.settings.window
        if self.held or (self.horizon is not None and self.horizon >= self.hi > 0):
            return []
        lo = LATEST if self.horizon is None else self.horizon
        return [Send(self._source(), Follow(self.id, self.stream, lo, self.where, self.hi, self.asof))]

    def _take(self, horizon: int) -> list[Effect]:
        self.taken = max(self.taken, horizon)
        self.told = False
        while self.ahead and self.ahead[0] <= horizon:
            self.ahead.popleft()
        if self.held:
            return self._ask()
        return [Send(self._source(), Consumed(self.id, horizon))]

    def _soon(self, now: Time) -> list[Effect]:
        """Do not wait for long before the next replica is asked."""
        wait = min(self.settings.silence, self.settings.again * 2.0 ** max(self.moves - 1, 0))
        self.heard = now - self.settings.silence + wait
        return []

    def _move(self, now: Time) -> list[Effect]:
        self.turn += 1
        self.moves += 1
        self.heard = now
        return [Report("subscriber_moved"), *self._ask()]

    def _forgotten(self, now: Time, reason: str, floor: int) -> list[Effect]:
        """The next replica may remember, or the owner's."""
        self.denied += 1
        if self.denied < len(self.membership.replicas):
            return self._move(now)
        if self.owner is not None and self.owner.region != self.membership.region:
            self.membership, self.owner, self.denied = self.owner, None, 0
            return [Report("read_redirected"), *self._move(now)]
        return self._end(reason, floor=floor)

    def _learn(self, now: Time, membership: Membership) -> list[Effect]:
        """Keep to the replica that feeds, if it is still in the chain; else ask another at once."""
        if membership.region != self.membership.region or membership.epoch <= self.membership.epoch:
            return []
        source = self._source()
        self.membership = membership
        self.head = 0
        if source in membership.replicas:
            self.turn = membership.replicas.index(source)
            return []
        return self._move(now) if self.opened else []

    def _feed(self, now: Time, src: NodeId, feed: Feed) -> Effects:
        if src != self._source():
            if self.moves == 0 or src not in self.membership.replicas:
                return [Send(src, Unfollow(self.id))]
            self.turn = self.membership.replicas.index(src)  # asked before, it answers first: late is better than never
        self.heard = now
        self.moves = 0
        self.denied = 0
        if feed.at == NOWHERE:
            return [Send(src, Consumed(self.id, self.taken))]
        if self.horizon is None:
            self.horizon = feed.at
        self.taken = self.taken or self.horizon
        if feed.spans and len(self.ahead) >= 2 * self.settings.window:  # more than one window, each cut in another way
            self.held = True
            return NOTHING
        effects: list[Effect] = []
        for span in feed.spans:
            if span.stream == self.stream and span.lo <= self.horizon < span.hi:
                effects.append(Deliver(Fed(self.id, span.slice(self.horizon, span.hi))))
                self.horizon = span.hi
        if effects:
            self.ahead.append(self.horizon)
        if feed.at > self.horizon:  # something between was lost
            return [*effects, Report("subscription_gap"), *self._ask()]
        if not feed.spans and feed.at < self.horizon:  # it remembers this subscriber from long ago
            return [Report("subscription_behind"), *self._ask()]
        if not feed.spans and (self.taken < self.horizon or not self.told):  # slow, but here; what was said may be lost
            self.told = True
            effects.append(Send(src, Consumed(self.id, self.taken)))
        return effects

    def _cursor(self, now: Time, at: CursorAt) -> Effects:
        if at.refused and self.opened:
            return NOTHING  # whoever feeds it says that its stream is gone
        if at.refused:
            settling = at.unknown and now - self.began < self.settings.settle
            return self._soon(now) if settling else self._end(at.refused)
        if at.holder > self.holder and not self.opened:  # whoever opens now is newer, whatever the clocks say
            self.holder = at.holder + 1 + self.id  # another one of this node's may open at the same time
            return self._ask()
        if at.holder > self.holder:
            return [*self._end(f"{self.name!r} is held by a newer subscriber", superseded=True)]
        if at.holder < self.holder:
            return NOTHING
        self.saved = max(self.saved, at.horizon)
        self.unsaved = 0
        if not self.opened:
            self.opened = True
            self.heard = now
            self.processed = at.horizon
            self._begin(at.horizon or self.lo)
            return self._ask()
        return [Deliver(Saved(self.id, self.saved))]

    def _end(self, reason: str, *, superseded: bool = False, floor: int = 0) -> list[Effect]:
        self.over = True
        return [Send(self._source(), Unfollow(self.id)), Deliver(Ended(self.id, reason, superseded, floor))]

    def _tick(self, now: Time) -> list[Effect]:
        effects = self._save()
        self.unsaved = self.unsaved + 1 if effects else 0
        if self.unsaved > TRIES:  # perhaps that replica is gone: another one knows who is head
            self.unsaved = 0
            self.head += 1
        slept, self.ticked = not 0 <= now - self.ticked <= self.settings.silence / 2, now
        if slept:
            self.heard = now  # what came meanwhile is still to be read: this end's own absence is nobody's silence
        elif now - self.heard > self.settings.silence:
            self.head += 1
            effects.extend(self._move(now))
        return effects

    def _save(self) -> list[Effect]:
        if self.name is None or not self.opened or self.processed <= self.saved:
            return []
        return [Send(self._head(), SaveCursor(self.name, self.stream, self.holder, self.processed))]
