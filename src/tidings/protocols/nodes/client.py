"""A member of its region's fabric: it receives every stream, and may publish and read.

The fabric brings events (Deliver(span), in order, once). `Publisher` publishes them. A read is a subscription to a
range as of a number (`Subscriber`); every replica gives the same answer. The three parts share only the configuration
of the region's chain, which the fabric keeps up to date.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.core.span import Span
from tidings.protocols.brokers.messages import SubscriptionSettings
from tidings.protocols.brokers.subscriber import Ended, Fed, Learn, Subscriber, Take
from tidings.protocols.fabrics.family import FabricChoice, Place
from tidings.protocols.kernel import (
    NOTHING,
    Command,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Received,
    SetTimer,
    Time,
    Timer,
    Value,
)
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.publishing import (
    NotHead,
    Post,
    Published,
    Publisher,
    PublishTick,
    Rejected,
    SessionOpened,
)

PUBLISHER = frozenset({Post, Published, NotHead, Rejected, SessionOpened, PublishTick})


class ReadAsOf(Command, frozen=True, gc=False):
    """The application wants the rows of [lo, hi) as of a number; delivered is a `ReadDone`."""

    stream: StreamId
    lo: int
    hi: int
    asof: int


class ReadDone(Value, frozen=True, gc=False):
    """Delivered to the application: the rows, or None if no replica can tell any more."""

    read: ReadAsOf
    spans: tuple[Span, ...] | None


class ReadTick(Timer, frozen=True, gc=False):
    """The timer of a read's subscriber."""

    generation: int
    timer: Timer


class ClientSettings(Value, frozen=True, gc=False):
    """All settings of a client."""

    fabric: FabricChoice = FabricChoice()
    reads: SubscriptionSettings = SubscriptionSettings()


class OpenRead:
    """A read under way: a subscription with an end, as of a number."""

    __slots__ = ("question", "spans", "subscriber")

    def __init__(self, question: ReadAsOf, subscriber: Subscriber) -> None:
        self.question = question
        self.subscriber = subscriber
        self.spans: list[Span] = []


class Client:
    """One client. ``streams`` are horizons to continue from; others are learned from offers."""

    __slots__ = ("_handles", "fabric", "generation", "me", "publisher", "reading", "rng", "settings")

    def __init__(
        self,
        me: NodeId,
        region: RegionId,
        membership: ChainConfig,
        streams: Mapping[StreamId, int],
        settings: ClientSettings,
        rng: random.Random,
        publisher: Publisher | None = None,
    ) -> None:
        self.me = me
        self.settings = settings
        self.rng = rng
        self.fabric = settings.fabric.member(Place(me, region, membership), streams, rng)
        self._handles = self.fabric.handles
        self.publisher = publisher
        self.reading: OpenRead | None = None
        self.generation = 0

    def start(self, now: Time) -> Effects:
        published = self.publisher.start(now) if self.publisher else NOTHING
        return [*self.fabric.start(now), *published]

    def handle(self, now: Time, input: Input) -> Effects:
        what: object = input
        if type(input) is Received:
            what = input.message
        elif type(input) is Expired:
            what = input.timer
        kind = type(what)
        if kind in self._handles:
            effects = self.fabric.handle(now, input)
            return self._learned(now, effects) if effects else effects
        if kind in PUBLISHER:
            return self.publisher.handle(now, input) if self.publisher else NOTHING
        return self._read(now, input)

    def check(self) -> None:
        self.fabric.check()
        if self.publisher:
            self.publisher.check()

    def _learned(self, now: Time, effects: Effects) -> Effects:
        """A newer configuration of the chain that the fabric brings is told to the publisher and the reader, too."""
        if not any([type(effect) is Deliver and type(effect.item) is ChainConfig for effect in effects]):
            return effects
        out: list[Effect] = []
        for effect in effects:
            if type(effect) is not Deliver or type(effect.item) is not ChainConfig:
                out.append(effect)
            else:
                if self.publisher is not None:
                    out.extend(self.publisher.learn(effect.item))
                if self.reading is not None:
                    out.extend(self._reads(now, self.reading, self.reading.subscriber.handle(now, Learn(effect.item))))
        return out

    def _read(self, now: Time, input: Input) -> Effects:
        """Begin a read, which replaces one that is under way, or go on with it."""
        if isinstance(input, ReadAsOf):
            left = self.reading.subscriber.close() if self.reading is not None else NOTHING
            self.generation += 1
            asof = max(input.lo, input.asof)  # nothing below lo collects anything in [lo, hi)
            bounds = (self.rng.getrandbits(16), input.hi, asof)
            args = (self.generation, input.stream, input.lo, "", None, self.fabric.config, self.settings.reads)
            self.reading = OpenRead(input, Subscriber(*args, *bounds))
            return [*left, *self._reads(now, self.reading, self.reading.subscriber.start(now))]
        if type(input) is Expired and type(input.timer) is ReadTick:
            if input.timer.generation != self.generation:
                return NOTHING
            input = Expired(input.timer.timer)
        if self.reading is None:
            return NOTHING
        return self._reads(now, self.reading, self.reading.subscriber.handle(now, input))

    def _reads(self, now: Time, reading: OpenRead, effects: Effects) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            if type(effect) is SetTimer:
                out.append(SetTimer(effect.delay, ReadTick(self.generation, effect.timer)))
            elif type(effect) is Deliver and type(effect.item) is Fed:
                reading.spans.append(effect.item.span)
                out.extend(reading.subscriber.handle(now, Take(effect.item.span.hi)))
                if effect.item.span.hi >= reading.question.hi:
                    self.reading = None
                    out += [*reading.subscriber.close(), Deliver(ReadDone(reading.question, tuple(reading.spans)))]
            elif type(effect) is Deliver and type(effect.item) is Ended:
                self.reading = None
                out.append(Deliver(ReadDone(reading.question, None)))
            else:
                out.append(effect)
        return out
