"""The client's end of a subscription: delivers each span once, in order, and asks the next replica when one is silent.

The subscriber delivers the span that continues at its horizon and no other. Order, no gap and no duplicate follow from
that one rule, whatever the network loses, repeats or reorders. When it hears nothing it asks the next replica, from its
own horizon. With a name it is durable: it opens a cursor at the head of its region and saves there what the application
has processed (services/cursors.py).

Guarantee: of what is committed in [lo, horizon) every row that the filter passes and that was not collected meanwhile
is delivered exactly once, in order, as long as some replica of the region answers.
"""

from __future__ import annotations

from tidings.core.ids import FIRST, NodeId, StreamId
from tidings.core.lens import Lens
from tidings.core.span import Span
from tidings.protocols.brokers.messages import (
    EARLIEST,
    LATEST,
    NOWHERE,
    REFILTERED,
    Consumed,
    Feed,
    FeedBeat,
    Follow,
    FollowAbove,
    SubscriptionSettings,
    Uncovered,
    Unfollow,
    Unfollowed,
)
from tidings.protocols.credit import CreditWindow
from tidings.protocols.kernel import (
    NOTHING,
    Command,
    Deliver,
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
    Value,
)
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.cursors import CursorAt, OpenCursor, SaveCursor
from tidings.protocols.services.head_client import HeadClient
from tidings.protocols.services.publishing import NotHead

TRIES = 5  # savings of a cursor without an answer before another replica is asked who is head; ours: a second

LONGEST = 60.0  # seconds of silence after which another replica is asked in any case; ours


class Take(Command, frozen=True, gc=False):
    """The application has taken everything below ``horizon`` from the subscription."""

    horizon: int


class Save(Command, frozen=True, gc=False):
    """The application has processed everything below ``horizon``: a durable subscription resumes there.

    ``prompt``: it waits for `Saved`, so the cursor is saved now and not with the next tick.
    """

    horizon: int
    prompt: bool = False


class Lost(Command, frozen=True, gc=False):
    """The connection to a replica is gone: do not wait until its silence is noticed."""

    node: NodeId


class Learn(Command, frozen=True, gc=False):
    """Another configuration of the region's chain."""

    membership: ChainConfig

    def valid(self) -> bool:
        return self.membership.valid()


class Edges(Command, frozen=True, gc=False):
    """The edges of the region, the preferred one first."""

    nodes: tuple[NodeId, ...]


class Refilter(Command, frozen=True, gc=False):
    """The application wants what passes another filter from now on. Answered with `Refiltered`."""

    where: str


class Refiltered(Value, frozen=True, gc=False):
    """Delivered to the application: what comes from ``horizon`` on, None if nothing has come, passed this filter."""

    id: int
    where: str
    horizon: int | None


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

    ``floor``: no replica remembers how things were as of the number asked for, only from here on. ``gone``: the region
    has no such stream, or no more; its name may mean another one.
    """

    id: int
    reason: str
    superseded: bool = False
    floor: int = 0
    gone: bool = False


class FollowTick(Timer, frozen=True, gc=False):
    """Look whether the replica is alive, and save the cursor."""


class Subscriber:
    """One subscription of a client, durable if it has a name. ``lo``: a number, EARLIEST or LATEST.

    With ``hi`` it ends there, with ``asof`` it is a read (`Follow`). If a replica has forgotten how things were as of
    that number, the subscriber asks the next one, and after all of them the replicas of ``owner``, which keeps leases.
    With ``above`` it begins behind that tick; ``lo`` is EARLIEST then.
    """

    def __init__(
        self,
        id: int,
        stream: StreamId,
        lo: int,
        where: str,
        name: str | None,
        membership: ChainConfig,
        settings: SubscriptionSettings,
        holder: int,
        hi: int = 0,
        asof: int = 0,
        owner: ChainConfig | None = None,
        above: int = 0,
    ) -> None:
        self.hi = hi
        self.above = above
        self.asof = asof
        self.owner = owner
        self.denied = 0  # replicas in turn that have forgotten
        self.id = id
        self.wire_id = id  # under which replicas and edges know it: another one for each filter
        self.stream = stream
        self.lo = lo
        self.where = where
        self.lens = Lens(where)
        self.name = name
        self.head = HeadClient(membership)  # where the cursor is
        self.settings = settings
        self.holder = holder
        self.horizon: int | None = None  # first number not delivered; None until that is known
        if name is None:
            self._begin(lo)
        self.opened = name is None
        self.processed = 0  # what the application wants saved
        self.saved = 0
        self.heard: Time = 0.0
        self.ticked: Time = 0.0  # when the last tick came
        self.moves = 0  # since a replica last answered
        self.left: Time = 0.0  # when it last left one that was silent or gone
        # Any replica can feed, so the source is no `HeadClient`: subscribers spread over the replicas, and each keeps
        # its own while the chain changes.
        self.turn = holder % len(membership.replicas)
        self.edges: tuple[NodeId, ...] = ()  # asked before replicas
        self.unsaved = 0  # ticks for which a cursor has not been saved
        self.over = False
        self.began: Time = 0.0
        self.taken = 0  # first number that the application has not taken
        self.ahead = CreditWindow()  # the messages that it has not taken
        self.owed = self.owed_bytes = 0  # messages that it has taken since it last said so
        self.silence = settings.silence  # seconds without a sign of life after which another replica is asked
        self.told = True  # what it took was acknowledged twice: the first message may be lost
        self.held = False  # no replica is asked before it has taken some of them

    @property
    def membership(self) -> ChainConfig:
        """The newest configuration of the region that this client knows."""
        return self.head.config

    def _begin(self, lo: int) -> None:
        """Set the horizon, unless it begins at the latest number or a tick: the first feed tells which that is."""
        if lo != LATEST and not self.above:
            self.horizon = FIRST if lo == EARLIEST else lo

    def start(self, now: Time) -> Effects:
        self.heard = self.began = self.ticked = now
        return [*self._ask(), SetTimer(self.settings.save, FollowTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        if self.over:
            return NOTHING
        match input:
            case Received(src, Feed() as feed) if feed.id == self.wire_id:
                return self._feed(now, src, feed)
            case Received(src, FeedBeat() as beat):
                return self._beat(now, src, beat)
            case Received(src, Feed(id)):  # through another filter
                return [Send(src, Unfollow(id))]
            case Received(src, Unfollowed(id, reason, unknown, floor, gone)) if self._told_by(src, id):
                if floor:
                    return self._forgotten(now, reason, floor)
                if unknown and now - self.began < self.settings.settle:
                    return self._soon(now)
                return self._end(reason, gone=unknown or gone)
            case Received(_, CursorAt() as at) if (at.name, at.stream) == (self.name, self.stream):
                return self._cursor(now, at)
            case Received(src, NotHead(membership)):
                effects = self._learn(now, membership)
                if src == self.membership.head:  # it does not know yet that it is the head: asked again at a tick
                    return effects
                self.head.restart()
                return self._ask() if not self.opened else effects
            case Take(horizon):
                return self._take(horizon)
            case Save(horizon, prompt):
                self.processed = max(self.processed, horizon)
                return self._save() if prompt else NOTHING
            case Lost(node) if not self.opened and node == self.head.asked:
                self.head.rotate()
                return self._ask()
            case Lost(node) if node == self._source():
                return [*self._move(now), *self._soon(now)]
            case Learn(membership):
                return self._learn(now, membership)
            case Edges(nodes):
                return self._meet(now, nodes)
            case Refilter(where):
                return self._refilter(where)
            case Expired(FollowTick()):
                return [*self._tick(now), SetTimer(self.settings.save, FollowTick())]
        return NOTHING

    def named(self, now: Time, stream: StreamId) -> Effects:
        """The stream that its name meant all along is known now: ask for that one."""
        self.stream = stream
        self.began = self.heard = now
        return self._ask()

    def check(self) -> None:
        assert self.saved <= self.processed or not self.opened, "saved is what was processed"
        assert len(self.ahead) <= 2 * self.settings.window, "what the application has not taken is bounded"

    def begin_above(self, tick: int) -> None:
        """It is to begin behind a tick; it has not started yet."""
        self.lo, self.above, self.horizon = EARLIEST, tick, None

    def wonder(self) -> list[Effect]:
        """Ask how far the coverage reaches that has not been told."""
        return [Send(self._source(), Uncovered(self.id))]

    def close(self) -> Effects:
        """The application has closed the subscription."""
        self.over = True
        return [Send(self._source(), Unfollow(self.wire_id)), *self._save()]

    def _source(self) -> NodeId:
        sources = self._sources()
        return sources[self.turn % len(sources)]

    def _sources(self) -> tuple[NodeId, ...]:
        """Who can feed, in the order in which they are asked."""
        replicas = self.membership.replicas
        if not self.edges:
            return replicas
        first = self.holder % len(replicas)
        return (*self.edges, *replicas[first:], *replicas[:first])

    def _told_by(self, src: NodeId, id: int) -> bool:
        return id == self.wire_id and src == self._source()

    def _meet(self, now: Time, edges: tuple[NodeId, ...]) -> list[Effect]:
        """Other edges are there: go to the preferred one, unless it is an edge that feeds. Reads are for replicas."""
        if edges == self.edges or self.hi or self.asof:
            return []
        source = self._source()
        self.edges = edges
        if source in edges:
            self.turn = edges.index(source)
            return []
        return self._turn_to(now, source, 0 if edges else self.holder % len(self.membership.replicas))

    def _turn_to(self, now: Time, source: NodeId, turn: int) -> list[Effect]:
        """Leave the source, which feeds."""
        self.turn = turn
        if not self.opened or source == self._source():
            return []
        return [Send(source, Unfollow(self.wire_id)), *self._move_to(now)]

    def _move_to(self, now: Time) -> list[Effect]:
        """Ask whoever has the turn."""
        self.silence = self.settings.silence
        self.heard = now
        return self._ask()

    def _refilter(self, where: str) -> list[Effect]:
        """What comes from the horizon on passes another filter: whoever feeds is asked anew, under another id."""
        before, self.wire_id = self.wire_id, self.wire_id + (1 << REFILTERED)
        self.where = where
        self.lens = Lens(where)
        asked = [Send(self._source(), Unfollow(before)), *self._ask()] if self.opened else []
        return [*asked, Deliver(Refiltered(self.id, where, self.horizon))]

    def _ask(self) -> list[Effect]:
        if not self.opened:
            assert self.name is not None
            return [Send(self.head.asked, OpenCursor(self.name, self.stream, self.holder))]
        self.held = len(self.ahead) >= self.settings.window
        if self.held or (self.horizon is not None and self.horizon >= self.hi > 0):
            return []
        if self.horizon is None and self.above:
            return [Send(self._source(), FollowAbove(self.id, self.stream, self.lo, self.where, above=self.above))]
        lo = LATEST if self.horizon is None else self.horizon
        return [Send(self._source(), Follow(self.wire_id, self.stream, lo, self.where, self.hi, self.asof))]

    def _take(self, horizon: int) -> list[Effect]:
        """A replica is told of several messages at once; the rest it hears of at its next beat."""
        self.taken = max(self.taken, horizon)
        self.told = False
        held = self.ahead.bytes
        self.owed += self.ahead.release(horizon)
        self.owed_bytes += held - self.ahead.bytes
        if self.held:
            return self._ask()
        if 4 * self.owed < self.settings.window and self.owed_bytes < self.settings.ack_bytes:
            return []
        self.owed = self.owed_bytes = 0
        return [Send(self._source(), Consumed(self.wire_id, self.taken))]

    def _beat(self, now: Time, src: NodeId, beat: FeedBeat) -> Effects:
        """A replica that has many subscribers is heard less often."""
        if src == self._source():
            self.silence = max(self.settings.silence, min(4 * beat.within, LONGEST))
        return [effect for feed in beat.singly() if feed.id == self.wire_id for effect in self._feed(now, src, feed)]

    def _soon(self, now: Time) -> list[Effect]:
        """Do not wait for long before the next replica is asked."""
        wait = min(self.settings.silence, self.settings.again * 2.0 ** max(self.moves - 1, 0))
        self.heard = now - self.silence + wait
        return []

    def _move(self, now: Time) -> list[Effect]:
        self.turn += 1
        self.moves += 1
        self.left = now
        return [Report("subscriber_moved"), *self._move_to(now)]

    def _forgotten(self, now: Time, reason: str, floor: int) -> list[Effect]:
        """Ask the next replica, which may remember, or those of the owner."""
        self.denied += 1
        if self.denied < len(self._sources()):
            return self._move(now)
        if self.owner is not None and self.owner.region != self.membership.region:
            self.head, self.owner, self.denied = HeadClient(self.owner), None, 0
            return [Report("read_redirected"), *self._move(now)]
        return self._end(reason, floor=floor)

    def _learn(self, now: Time, membership: ChainConfig) -> list[Effect]:
        """Keep the replica that feeds if it is still in the chain; otherwise ask another one at once."""
        if not self.head.is_newer(membership):
            return []
        source = self._source()
        self.head.learn(membership)
        sources = self._sources()
        if source in sources:
            self.turn = sources.index(source)
            return []
        return self._move(now) if self.opened else []

    def _feed(self, now: Time, src: NodeId, feed: Feed) -> Effects:
        if src != self._source():
            if self.moves == 0 or src not in self._sources():
                return [Send(src, Unfollow(self.wire_id))]
            self.turn = self._sources().index(src)  # it was asked before, and answers first
        self.heard = now
        self.moves = 0
        self.denied = 0
        if feed.at == NOWHERE:
            return [Send(src, Consumed(self.wire_id, self.taken))]
        if self.horizon is None:
            self.horizon = feed.at
        self.taken = self.taken or self.horizon
        tells = feed.end > feed.at
        if tells and len(self.ahead) >= 2 * self.settings.window:  # more than one window, each cut in another way
            self.held = True
            return NOTHING
        effects: list[Effect] = []
        if not feed.spans or feed.spans[0].stream == self.stream:
            for span in feed.told(self.stream, self.lens):
                if span.lo <= self.horizon < span.hi:
                    effects.append(Deliver(Fed(self.id, span.slice(self.horizon, span.hi))))
                    self.horizon = span.hi
        if effects:
            self.ahead.add(self.horizon, feed.wire_size)
        if feed.at > self.horizon:  # something between was lost
            return [*effects, Report("subscription_gap"), *self._ask()]
        # The replica's position of this subscriber is an old one. It asked from a smaller number, because a connection
        # was lost, while spans were still on their way to it. It asks once more, from where it is, and loses nothing.
        if not effects and not feed.spans and feed.at < self.horizon:
            return [Report("subscription_behind"), *self._ask()]
        if not feed.spans and (self.taken < self.horizon or not self.told):  # slow, but alive; the last may be lost
            self.told = True
            self.owed = self.owed_bytes = 0
            effects.append(Send(src, Consumed(self.wire_id, self.taken)))
        return effects

    def _cursor(self, now: Time, at: CursorAt) -> Effects:
        if at.refused and self.opened:
            return NOTHING  # its source will say that the stream is gone
        if at.refused:
            settling = at.unknown and now - self.began < self.settings.settle
            return self._soon(now) if settling else self._end(at.refused, gone=at.unknown)
        if at.holder > self.holder and not self.opened:  # the one that opens now is newer, whatever the clocks say
            self.holder = at.holder + 1 + self.id  # another one of this node's may open at the same time
            return self._ask()
        if at.holder > self.holder:
            return [*self._end(f"{self.name!r} is held by a newer subscriber", superseded=True)]
        if at.holder < self.holder:
            return self._reopen() if self.opened else NOTHING
        self.saved = max(self.saved, at.horizon)
        self.unsaved = 0
        if not self.opened:
            self.opened = True
            self.heard = now
            self.processed = at.horizon
            self._begin(at.horizon or self.lo)
            return self._ask()
        return [Deliver(Saved(self.id, self.saved))]

    def _reopen(self) -> list[Effect]:
        """The region has forgotten this cursor, so it lost its memory: enter it again, then save what was processed."""
        assert self.name is not None
        self.saved = 0
        return [Send(self.head.asked, OpenCursor(self.name, self.stream, self.holder)), Report("cursor_reopened")]

    def _end(self, reason: str, *, superseded: bool = False, floor: int = 0, gone: bool = False) -> list[Effect]:
        self.over = True
        return [Send(self._source(), Unfollow(self.wire_id)), Deliver(Ended(self.id, reason, superseded, floor, gone))]

    def _tick(self, now: Time) -> list[Effect]:
        effects = self._save()
        self.unsaved = self.unsaved + 1 if effects else 0
        if self.unsaved > TRIES:  # perhaps that replica is gone: another one knows who is head
            self.unsaved = 0
            self.head.rotate()
        slept, self.ticked = not 0 <= now - self.ticked <= self.settings.silence / 2, now
        if slept:
            self.heard = now  # this client slept: messages that came meanwhile are still to be read
        elif now - self.heard > self.silence:
            self.head.rotate()
            effects.extend(self._move(now))
        elif self.edges and now - self.left > self.settings.back and self._source() not in self.edges:
            self.left = now  # one that was gone may be back
            effects.extend(self._turn_to(now, self._source(), 0))
        return effects

    def _save(self) -> list[Effect]:
        if self.name is None or not self.opened or self.processed <= self.saved:
            return []
        return [Send(self.head.asked, SaveCursor(self.name, self.stream, self.holder, self.processed))]
