"""A client: a member of its region's fabric that receives every stream, and may publish and read.

views + pull bring events (Deliver(span), in order, once); the publisher's end of exactly-once publishing sends
them; a read asks replicas for the rows of a range as of a number and gets the same answer from each. The three
share nothing but the region's membership, which gossip keeps fresh.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.core.span import Span
from tidings.protocols.kernel import (
    NOTHING,
    Command,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Received,
    Send,
    SetTimer,
    Time,
    Timer,
    Value,
)
from tidings.protocols.membership import Membership
from tidings.protocols.messages import Answer, Gone, Offer, Read
from tidings.protocols.publishing import NotHead, Post, Published, Publisher, PublishTick, Rejected, SessionOpened
from tidings.protocols.pull import EXPIRE, RECEIVE, PullClient, PullSettings
from tidings.protocols.views import GossipTick, View, Views, ViewsSettings

PUBLISHER = frozenset({Post, Published, NotHead, Rejected, SessionOpened, PublishTick})
VIEWS = frozenset({View, GossipTick})


class ReadAsOf(Command, frozen=True, gc=False):
    """The application wants the rows of [lo, hi) as of a number; delivered is a `ReadDone`."""

    stream: StreamId
    lo: int
    hi: int
    asof: int


class ReadDone(Value, frozen=True, gc=False):
    """Delivered to the application: the rows, or where the history now begins to answer."""

    read: Read
    answer: Span | Gone


class ReadTick(Timer, frozen=True, gc=False):
    """A read that is still unanswered goes to another replica."""

    generation: int


class ClientSettings(Value, frozen=True, gc=False):
    """All settings of a client."""

    views: ViewsSettings = ViewsSettings()
    pull: PullSettings = PullSettings()
    read_retry: float = 0.5


class Client:
    """One client. ``streams`` are horizons to continue from; others are learned from offers."""

    __slots__ = (
        "generation",
        "me",
        "publisher",
        "pull",
        "reading",
        "rng",
        "settings",
        "streams",
        "views",
    )

    def __init__(
        self,
        me: NodeId,
        region: RegionId,
        membership: Membership,
        streams: Mapping[StreamId, int],
        settings: ClientSettings,
        rng: random.Random,
        publisher: Publisher | None = None,
    ) -> None:
        self.me = me
        self.settings = settings
        self.rng = rng
        self.views = Views(me, region, settings.views, rng, membership)
        self.pull = PullClient(me, settings.pull, self.views, rng, streams)
        self.streams = self.pull.streams  # a look-up less for each offer
        self.publisher = publisher
        self.reading: Read | None = None
        self.generation = 0

    def start(self, now: Time) -> Effects:
        published = self.publisher.start(now) if self.publisher else NOTHING
        return [*self.views.start(now), *self.pull.start(now), *published]

    def handle(self, now: Time, input: Input) -> Effects:
        what: object = input
        if type(input) is Received:
            message = input.message
            if type(message) is Offer:  # most of all inputs, and most of them are no news: that path comes first
                state = self.streams.get(message.stream)
                if state is not None and message.horizon <= state.next:
                    return NOTHING
            if (receive := RECEIVE.get(type(message))) is not None:
                return receive(self.pull, now, input.src, message)
            what = message
        elif type(input) is Expired:
            what = input.timer
            if (expire := EXPIRE.get(type(what))) is not None:
                return expire(self.pull, now, what)
        kind = type(what)
        if kind in VIEWS:
            return self._gossip(now, input)
        if kind in PUBLISHER:
            return self.publisher.handle(now, input) if self.publisher else NOTHING
        return self._read(what)

    def check(self) -> None:
        self.views.check()
        self.pull.check()
        if self.publisher:
            self.publisher.check()

    def _gossip(self, now: Time, input: Input) -> Effects:
        """A newer membership that gossip brings also tells the publisher who is head."""
        out: list[Effect] = []
        for effect in self.views.handle(now, input):
            if type(effect) is not Deliver:
                out.append(effect)
            elif self.publisher is not None:
                out.extend(self.publisher.learn(effect.item))
        return out

    def _read(self, what: object) -> Effects:
        match what:
            case ReadAsOf(stream, lo, hi, asof):
                self.reading = Read(stream, lo, hi, max(lo, asof))  # nothing below lo collects anything in [lo, hi)
                return self._ask()
            case ReadTick(generation) if self.reading is not None and generation == self.generation:
                return self._ask()
            case Answer(Span(stream, lo, hi, asof) as span) if self.reading == Read(stream, lo, hi, asof):
                return self._done(span)
            case Gone(stream, asof) if self.reading and (self.reading.stream, self.reading.asof) == (stream, asof):
                return self._done(what)
        return NOTHING

    def _ask(self) -> Effects:
        assert self.reading is not None
        self.generation += 1
        replica = self.rng.choice(self.views.membership.replicas)
        return [Send(replica, self.reading), SetTimer(self.settings.read_retry, ReadTick(self.generation))]

    def _done(self, answer: Span | Gone) -> Effects:
        assert self.reading is not None
        done, self.reading = ReadDone(self.reading, answer), None
        return [Deliver(done)]
