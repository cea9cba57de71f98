"""Pull dissemination inside a region (A1.29-A1.39, figure 3 of paper 000): notify, request, events.

A peer that has delivered events offers its horizon to F neighbours, drawn anew from its view every shuffle time. A
peer that hears of numbers which it has not requested yet wants them from the sender, and requests each number once.
It delivers a span that continues its horizon and holds back a span that is further on.

A peer may be unable to give what is wanted: its `Recv` has discarded it, it died, or a message was lost. Then the
proxy is asked, which keeps the history: at once if an answer shows that no other request is open, else after a time
without progress. One request to the proxy per stream is open at a time, because repeated requests to a proxy with a
backlog only lengthen the backlog (decision 0005).

Guarantee: a client that stays up delivers every number that the proxy committed, once and in order; a number without
a row was collected. Deviations: a client keeps spans as received and does not collect by itself (A1.30); a newly
drawn neighbour is offered every stream (A1.38); a client that hears nothing probes a neighbour (decision 0005).
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias

from tidings.core.errors import Contradiction
from tidings.core.history import History
from tidings.core.ids import FIRST, NodeId, StreamId, is_internal
from tidings.core.lens import ALL
from tidings.core.span import MESSAGE_BYTES, Span, join, within
from tidings.protocols.fabrics.views import Views
from tidings.protocols.kernel import (
    NOTHING,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Message,
    Received,
    Report,
    Send,
    SendAll,
    SetTimer,
    Time,
    Timer,
    Value,
)
from tidings.protocols.messages import Know, Offer, Want

Receive: TypeAlias = "Callable[[PullMember, Time, NodeId, Any], Effects]"
Expire: TypeAlias = "Callable[[PullMember, Time, Any], Effects]"

_start = attrgetter("lo")
_end = attrgetter("hi")


class Probe(Message, frozen=True, gc=False):
    """The sender has heard nothing for a while; the receiver offers it every stream it knows."""

    from_clients: ClassVar[bool] = True


class ShuffleTick(Timer, frozen=True, gc=False):
    """Time to draw other active neighbours."""

    generation: int


class FallbackTick(Timer, frozen=True, gc=False):
    """Look whether a stream that lacks something has moved; if not, turn to the proxy."""

    stream: StreamId
    generation: int


class ProbeTick(Timer, frozen=True, gc=False):
    """Look whether anything new has been heard; if not, probe."""

    generation: int


class PullSettings(Value, frozen=True, gc=False):
    """Settings of the fabric; sizes are per stream, times in seconds."""

    fanout: int = 4  # F (SP3, SP3d)
    shuffle: float = 0.03  # SP4
    proxy_fanout: int = 4  # the proxy's own F: 1 if its uplink is no faster than a client's (decision 0005)
    proxy_shuffle: float = 0.03
    fallback: float = 0.1  # without progress (decision 0005)
    proxy_timeout: float = 1.0  # ours, because it must exceed the queue of a busy proxy; doubles up to 4 s
    probe: float = 0.03  # decision 0005; 0 switches the probe off
    probe_max: float = 1.0  # ours, because an idle client should send about one message a second
    recv_rows: int = 432_000  # half a second at 864,000 events/s (SP3; decision 0005: less is a cliff)
    held_rows: int = 432_000  # as Recv: what a peer can serve in one go can be held
    reply_rows: int = 65_536  # ours, because a cap below 4 batches of 5 ms at SP3's rate hurts (decision 0005)
    asks: int = 256  # ours: requests under way to peers; at 200 batches/s (decision 0005) 20 arise before the fallback
    streams: int = 4096  # ours: streams a client learns from offers


class Fanout:
    """The neighbours that are told of progress: F of the view, redrawn at every shuffle (A1.35)."""

    __slots__ = ("_generation", "active", "period", "rng", "size", "views")

    def __init__(self, views: Views, size: int, period: float, rng: random.Random) -> None:
        self.views = views
        self.size = size
        self.period = period
        self.rng = rng
        self.active: tuple[NodeId, ...] = ()
        self._generation = 0

    def start(self) -> SetTimer:
        """Set the first timer, at a random moment of the period: members should not shuffle in step."""
        return self._arm(self.rng.random() * self.period)

    def shuffle(self, timer: ShuffleTick) -> tuple[SetTimer, tuple[NodeId, ...]] | None:
        """Draw again and say who is newly active; None if the timer is stale."""
        if timer.generation != self._generation:
            return None
        before, peers = self.active, self.views.peers()
        self.active = _drawn(self.rng.random, peers, self.size)
        return self._arm(self.period), tuple([peer for peer in self.active if peer not in before])

    def _arm(self, delay: float) -> SetTimer:
        self._generation += 1
        return SetTimer(delay, ShuffleTick(self._generation))


def _drawn(random: Callable[[], float], pool: Sequence[NodeId], count: int) -> tuple[NodeId, ...]:
    """So many of a pool, each set of them as likely: `random.sample` in a third of its time."""
    left, room = list(pool), len(pool)
    drawn: list[NodeId] = []
    while room and len(drawn) < count:
        at = int(random() * room)
        room -= 1
        drawn.append(left[at])
        left[at] = left[room]
    return tuple(drawn)


class OpenWant(Value, frozen=True, gc=False):
    """A request under way."""

    lo: int
    hi: int
    to: NodeId
    at: Time
    fallback: bool  # to the proxy, for what nobody else gave


class Recv:
    """Delivered spans as they came, contiguous up to the horizon; the oldest are discarded for the newest (A1.33)."""

    __slots__ = ("bound", "rows", "spans")

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.rows = 0  # a span without rows counts as one
        self.spans: deque[Span] = deque()

    def discard(self) -> int:
        """Forget the oldest rows beyond the bound and say how many; of a span larger than that the end stays."""
        before = self.rows
        while self.rows > self.bound and len(self.spans) > 1:
            self.rows -= self.spans.popleft().rows.count or 1
        if self.rows > self.bound:
            span = self.spans[0]
            self.spans[0] = span.slice(int(span.rows.numbers[-self.bound]), span.hi)
            self.rows = self.bound
        return before - self.rows

    def overlap(self, lo: int, hi: int, limit: int) -> tuple[Span, ...]:
        """What is stored of [lo, hi), from its beginning up to about ``limit`` rows."""
        spans = self.spans
        if spans and (newest := spans[-1]).lo <= lo < newest.hi:  # nearly always, and all of it
            if newest.lo == lo and newest.hi <= hi and newest.rows.count <= limit and newest.wire_size <= MESSAGE_BYTES:
                return (newest,)
            at = len(spans) - 1
        else:
            at = bisect_right(spans, lo, key=_end)
        found: list[Span] = []
        while at < len(spans) and limit > 0 and spans[at].lo < hi:
            span = spans[at].slice(lo, hi)
            count = span.rows.count
            if count > limit:
                span = span.slice(span.lo, int(span.rows.numbers[limit]))
            found.append(span)
            limit -= count or 1
            at += 1
        return tuple(within(found))


class MemberStream:
    """What a client knows of one stream, and whom it has asked."""

    __slots__ = (
        "armed",
        "asked",
        "due",
        "epoch",
        "generation",
        "held",
        "held_rows",
        "horizon",
        "name",
        "next",
        "offer",
        "patience",
        "recv",
        "since",
        "turn",
    )

    def __init__(self, name: StreamId, horizon: int, settings: PullSettings) -> None:
        self.name = name
        self.horizon = horizon  # the first number not delivered (the paper's cnt + 1)
        self.next = horizon  # the first number not asked for
        self.offer: Offer | None = None  # of the horizon, once something is stored that others can want
        self.recv = Recv(settings.recv_rows)
        self.held: list[Span] = []  # above the horizon, disjoint, ascending
        self.held_rows = 0
        self.asked: list[OpenWant] = []
        self.since: Time = 0.0  # of the last progress, or since when something is lacking
        self.armed = False  # a FallbackTick is under way
        self.due: Time = 0.0  # when it should run out
        self.generation = 0
        self.patience = settings.proxy_timeout
        self.turn = 0  # which replica is asked next, counted from the tail; of each stream, or they would keep step
        self.epoch = 0  # of the chain that this counts in

    def hold(self, span: Span) -> None:
        """Put a span among those held; raises `Contradiction` with nothing changed."""
        first = bisect_right(self.held, span.lo, key=_end)
        last = bisect_left(self.held, span.hi, key=_start)
        overlapped = self.held[first:last]
        joined = join(overlapped, (span,)) if overlapped else (span,)
        self.held[first:last] = joined
        self.held_rows += _weight(joined) - _weight(overlapped)
        self.next = max(self.next, span.hi)

    def release(self) -> Span | None:
        """Take out the held span that continues the horizon, if there is one."""
        if not self.held or self.held[0].lo > self.horizon:
            return None
        span = self.held.pop(0)
        self.held_rows -= _weight((span,))
        return span

    def answered(self, src: NodeId, spans: Sequence[Span]) -> OpenWant | None:
        """Take out the request that these spans answer: the first to their sender that they overlap."""
        for at, ask in enumerate(self.asked):
            if ask.to == src and (not spans or (spans[0].lo < ask.hi and ask.lo < spans[-1].hi)):
                del self.asked[at]
                return ask
        return None

    def gap(self) -> tuple[int, int] | None:
        """The first range below `next` that is neither known nor held nor asked for."""
        at = self.horizon
        for ask in self.asked:  # mostly these cover everything, one after the other
            if ask.lo <= at < ask.hi:
                at = ask.hi
        if at >= self.next:
            return None
        at = self.horizon
        covered = [(ask.lo, ask.hi) for ask in self.asked] + [(span.lo, span.hi) for span in self.held]
        for lo, hi in sorted(covered):
            if lo > at:
                return at, lo
            at = max(at, hi)
        return (at, self.next) if at < self.next else None


def _weight(spans: Sequence[Span]) -> int:
    return sum([span.rows.count or 1 for span in spans])


class PullMember:
    """A client of the region. ``streams`` are the horizons to continue from; others are learned from offers."""

    __slots__ = (
        "_generation",
        "_news",
        "_probes",
        "_wait",
        "fanout",
        "me",
        "rng",
        "settings",
        "streams",
        "views",
    )

    def __init__(
        self, me: NodeId, settings: PullSettings, views: Views, rng: random.Random, streams: Mapping[StreamId, int]
    ) -> None:
        self.me = me
        self.settings = settings
        self.views = views
        self.rng = rng
        self.streams = {name: MemberStream(name, horizon, settings) for name, horizon in streams.items()}
        self.fanout = Fanout(views, settings.fanout, settings.shuffle, rng)
        self._probes = 0
        self._news = False  # an offer told something new since the last ProbeTick
        self._wait = settings.probe
        self._generation = 0

    @property
    def horizons(self) -> dict[StreamId, int]:
        """How far each stream has been delivered."""
        return {name: state.horizon for name, state in self.streams.items()}

    def start(self, now: Time) -> Effects:
        """Set the timers."""
        timers: list[Effect] = [self.fanout.start()]
        if self.settings.probe > 0:
            timers.append(self._arm_probe(self._wait * (1 + self.rng.random())))
        return timers

    def handle(self, now: Time, input: Input) -> Effects:
        """React to one input; anything else is not ours."""
        if type(input) is Received:
            receive = RECEIVE.get(type(input.message))
            return receive(self, now, input.src, input.message) if receive else NOTHING
        if type(input) is Expired:
            expire = EXPIRE.get(type(input.timer))
            return expire(self, now, input.timer) if expire else NOTHING
        return NOTHING

    def check(self) -> None:
        """What must hold after every step; of Recv only the end is looked at, because only that moves."""
        settings = self.settings
        for state in self.streams.values():
            horizon, next = state.horizon, state.next
            assert horizon <= next, f"{self._at(state)}: beyond next {next}"
            if state.held:
                edge = horizon + 1  # what continues the horizon has been delivered
                for span in state.held:
                    assert span.lo >= edge, f"{self._at(state)}: held [{span.lo}, {span.hi}), {edge} was the least"
                    edge = span.hi
                assert edge <= next, f"{self._at(state)}: held up to {edge}, next {next}"
                weight = _weight(state.held)
                assert weight == state.held_rows <= settings.held_rows, f"{self._at(state)}: {state.held_rows} held"
            assert state.held or not state.held_rows, f"{self._at(state)}: nothing held, {state.held_rows} counted"
            assert state.recv.rows <= settings.recv_rows, f"{self._at(state)}: keeps {state.recv.rows} rows"
            if asked := state.asked:
                assert len(asked) <= settings.asks + 1, f"{self._at(state)}: {len(asked)} requests under way"
                assert sum([ask.fallback for ask in asked]) <= 1, f"{self._at(state)}: asks the proxy twice"
            edge = horizon
            for span in islice(reversed(state.recv.spans), 3):
                assert span.hi == edge, f"{self._at(state)}: Recv has [{span.lo}, {span.hi}), {edge} should end it"
                edge = span.lo

    def _at(self, state: MemberStream) -> str:
        return f"{self.me} {state.name} horizon {state.horizon}"

    # --- the transitions of figure 3 --------------------------------------------------------------------

    def receive_notify(self, now: Time, src: NodeId, offer: Offer) -> Effects:
        """The sender knows numbers from `next` on: want from it what nobody has been asked for yet."""
        state = self.streams.get(offer.stream)
        if state is not None:
            if offer.horizon <= state.next:
                return NOTHING
        else:
            if offer.horizon <= FIRST:
                return NOTHING
            if len(self.streams) >= self.settings.streams:
                return [Report("stream_overflow")]
            state = self.streams[offer.stream] = MemberStream(offer.stream, FIRST, self.settings)
        self._news = True
        if len(state.asked) >= self.settings.asks:
            return [Report("ask_overflow")]
        if state.horizon == state.next:
            state.since = now
        ask = self._ask(now, state, src, state.next, offer.horizon)
        state.next = offer.horizon
        return [ask] if state.armed else [ask, self._arm_fallback(now, state, self.settings.fallback)]

    def receive_request(self, now: Time, src: NodeId, want: Want) -> Effects:
        """Answer with what is stored of the range, perhaps nothing, and with the own horizon."""
        state = self.streams.get(want.stream)
        if state is None or not FIRST <= want.lo < want.hi:
            return [Report("bad_message")]
        spans = state.recv.overlap(want.lo, want.hi, self.settings.reply_rows)
        return [Send(src, Know(want.stream, spans, state.horizon))]

    def receive_probe(self, now: Time, src: NodeId, probe: Probe) -> Effects:
        """Offer everything."""
        return [Send(src, state.offer) for state in self.streams.values() if state.offer]

    def receive_events(self, now: Time, src: NodeId, know: Know) -> Effects:
        """Deliver what continues the horizon, hold what is further on, ask on for what is still missing."""
        state = self.streams.get(know.stream)
        if state is None:
            return [Report("bad_message")]
        ask = state.answered(src, know.spans)
        before, useful = state.horizon, False
        effects: list[Effect] = []
        for span in know.spans:
            useful |= self._take(state, span, effects)
        if state.horizon > before:
            state.since = now
            if state.next < state.horizon:
                state.next = state.horizon
            state.offer = Offer(state.name, state.horizon)
            if self.fanout.active:
                effects.append(SendAll(self.fanout.active, state.offer))
            if state.asked:
                state.asked = [a for a in state.asked if a.hi > state.horizon or a.fallback]
        if ask is not None and ask.fallback:
            state.patience = self.settings.proxy_timeout
        if state.horizon < state.next:
            if ask is not None:
                self._follow_up(now, state, ask, know, useful, effects)
            if not state.armed:
                effects.append(self._arm_fallback(now, state, self.settings.fallback))
        return effects

    def deliver_event(self, state: MemberStream, span: Span, effects: list[Effect]) -> None:
        """Hand on the span at the horizon, and keep it for others."""
        state.horizon = hi = span.hi
        effects.append(Deliver(span))
        count = span.rows.count
        if count < hi - span.lo:
            effects.append(Report("tombstone_delivered"))
        if span.asof > hi:
            effects.append(Report("asof_above_horizon"))
        recv = state.recv
        recv.spans.append(span)
        recv.rows += count or 1
        if recv.rows > recv.bound:
            self.discard_event(state, effects)

    def discard_event(self, state: MemberStream, effects: list[Effect]) -> None:
        """Keep Recv within its bound."""
        effects.append(Report("recv_overflow", state.recv.discard()))

    def request_from_proxy(self, now: Time, state: MemberStream, effects: list[Effect]) -> None:
        """Want the first gap from the proxy, unless it has been asked already."""
        gap = state.gap()
        if gap is not None and not any([ask.fallback for ask in state.asked]):
            effects += [Report("proxy_fallback"), self._ask(now, state, self._replica(state), *gap, fallback=True)]

    # --- their parts ------------------------------------------------------------------------------------

    def _take(self, state: MemberStream, span: Span, effects: list[Effect]) -> bool:
        """Deliver or hold one span; False if it is refused or tells nothing new."""
        if span.stream != state.name or (span.lens is not ALL and span.lens != ALL):
            effects.append(Report("bad_message"))
            return False
        if span.lo == state.horizon and not state.held:  # nearly always
            self.deliver_event(state, span, effects)
            return True
        if span.lo < state.horizon:
            seen = span.slice(span.lo, state.horizon)
            try:
                for kept in state.recv.overlap(seen.lo, seen.hi, self.settings.recv_rows):
                    join((kept,), (seen.slice(kept.lo, kept.hi),))
            except Contradiction:
                effects.append(Report("contradiction"))
                return False
            if seen.rows.count:
                effects.append(Report("duplicate_rows", seen.rows.count))
            if span.hi <= state.horizon:
                return False
            span = span.slice(state.horizon, span.hi)
        if span.lo == state.horizon and (not state.held or span.hi <= state.held[0].lo):
            self.deliver_event(state, span, effects)
        else:
            if span.lo > state.horizon and state.held_rows + (span.rows.count or 1) > self.settings.held_rows:
                effects.append(Report("held_overflow"))
                return False
            try:
                state.hold(span)
            except Contradiction:
                effects.append(Report("contradiction"))
                return False
        while state.held and (ready := state.release()) is not None:
            self.deliver_event(state, ready, effects)
        return True

    def _follow_up(
        self, now: Time, state: MemberStream, ask: OpenWant, know: Know, useful: bool, effects: list[Effect]
    ) -> None:
        """After an answer: the rest of a shortened one comes from the same node, a gap from the proxy."""
        if ask.fallback and not useful and state.horizon < ask.hi:
            state.turn += 1
            if not state.held and not state.asked:
                state.next = state.horizon  # nobody has it (any more): wait for the next offer
            return
        if useful:
            lo = max(know.spans[-1].hi, state.horizon)
            hi = min(ask.hi, know.horizon)
            if lo < hi:
                effects.append(self._ask(now, state, ask.to, lo, hi, fallback=ask.fallback))
        self.request_from_proxy(now, state, effects)

    def _ask(self, now: Time, state: MemberStream, to: NodeId, lo: int, hi: int, *, fallback: bool = False) -> Send:
        state.asked.append(OpenWant(lo, hi, to, now, fallback))
        return Send(to, Want(state.name, lo, hi))

    def _replica(self, state: MemberStream) -> NodeId:
        """Whom to ask of the proxy: the tail of a new chain, then the others in turn as they do not answer."""
        epoch, contacts = self.views.membership.epoch, self.views.contacts
        if epoch != state.epoch:
            state.epoch, state.turn = epoch, 0
        return contacts[state.turn % len(contacts)]

    # --- timers -----------------------------------------------------------------------------------------

    def _arm_fallback(self, now: Time, state: MemberStream, delay: float) -> SetTimer:
        state.armed = True
        state.due = now + delay
        state.generation += 1
        return SetTimer(delay, FallbackTick(state.name, state.generation))

    def _arm_probe(self, delay: float) -> SetTimer:
        self._generation += 1
        return SetTimer(delay, ProbeTick(self._generation))

    def _fall_back(self, now: Time, timer: FallbackTick) -> Effects:
        state = self.streams.get(timer.stream)
        if state is None or timer.generation != state.generation:
            return NOTHING
        if state.horizon >= state.next:
            state.armed = False
            return NOTHING
        effects: list[Effect] = []
        wait = self.settings.fallback
        slack = wait / 8  # ours: so much early or late is the same, and no timer is set for an instant
        if (late := now - state.due) > slack:  # this end is slow: answers may have come that it has not read yet
            wait += min(2 * late, self.settings.proxy_timeout)
        state.since = min(state.since, now)  # the clock may have been set back
        left = state.since + wait - now
        if left > slack:
            wait = left
        else:
            asked, state.asked = state.asked, []
            for ask in asked:
                if 0 <= now - ask.at < (max(state.patience, wait) if ask.fallback else wait) - slack:
                    state.asked.append(ask)
                elif ask.fallback:
                    state.turn += 1
                    if state.turn % len(self.views.contacts) == 0:  # all have been asked
                        state.patience = min(2 * state.patience, 4 * self.settings.proxy_timeout)
            self.request_from_proxy(now, state, effects)
        effects.append(self._arm_fallback(now, state, wait))
        return effects

    def _shuffle(self, now: Time, timer: ShuffleTick) -> Effects:
        drawn = self.fanout.shuffle(timer)
        if drawn is None:
            return NOTHING
        offers = [state.offer for state in self.streams.values() if state.offer]
        return [*[SendAll(drawn[1], offer) for offer in offers if drawn[1]], drawn[0]]

    def _probe(self, now: Time, timer: ProbeTick) -> Effects:
        """Probe when nothing new was heard, less and less often as long as it stays so.

        Every second probe goes to the proxy: neighbours that starve together cannot help each other.
        """
        if timer.generation != self._generation:
            return NOTHING
        effects: list[Effect] = []
        neighbours = self.views.neighbours()
        if self._news:
            self._news, self._wait = False, self.settings.probe
        else:
            self._probes += 1
            contacts = self.views.contacts
            proxy = contacts[self._probes // 2 % len(contacts)]
            to = proxy if self._probes % 2 or not neighbours else self.rng.choice(neighbours)
            effects.append(Send(to, Probe()))
            self._wait = min(2 * self._wait, self.settings.probe_max)
        effects.append(self._arm_probe(self._wait))
        return effects


RECEIVE: dict[type[Message], Receive] = {
    Offer: PullMember.receive_notify,
    Know: PullMember.receive_events,
    Want: PullMember.receive_request,
    Probe: PullMember.receive_probe,
}
EXPIRE: dict[type[Timer], Expire] = {
    ShuffleTick: PullMember._shuffle,
    FallbackTick: PullMember._fall_back,
    ProbeTick: PullMember._probe,
}


class PullSource:
    """A replica of the proxy as a member: each serves what is committed, only the tail offers it."""

    def __init__(
        self,
        me: NodeId,
        settings: PullSettings,
        views: Views,
        rng: random.Random,
        histories: Mapping[StreamId, History],
    ) -> None:
        self.me = me
        self.settings = settings
        self.views = views
        self.histories = histories
        self.fanout = Fanout(views, settings.proxy_fanout, settings.proxy_shuffle, rng)
        self._offered: dict[StreamId, int] = {}

    def start(self, now: Time) -> Effects:
        """Set the shuffle timer."""
        return [self.fanout.start()]

    def handle(self, now: Time, input: Input) -> Effects:
        """React to one input; what clients offer is no news to the proxy."""
        match input:
            case Received(src, Want() as want):
                return self.receive_request(src, want)
            case Received(src, Probe()):
                return [Send(src, offer) for offer in self._offers()]
            case Expired(ShuffleTick() as timer):
                return self._shuffle(timer)
        return NOTHING

    def check(self) -> None:
        assert self.me not in self.fanout.active, f"{self.me} offers to itself"
        for stream, history in self.histories.items():
            offered = self._offered.get(stream, FIRST)
            assert offered <= history.horizon, f"{self.me} {stream}: offered {offered}, knows {history.horizon}"

    def forget(self, stream: StreamId) -> None:
        """The stream is gone."""
        self._offered.pop(stream, None)

    def advance(self, now: Time, stream: StreamId) -> Effects:
        """A stream's committed horizon may have moved: the tail offers it (deliverEvent at a proxy, A1.30)."""
        horizon = self.histories[stream].horizon
        if horizon <= self._offered.get(stream, FIRST) or not self.views.is_proxy:
            return NOTHING
        self._offered[stream] = horizon
        offer = Offer(stream, horizon)
        return [SendAll(self.fanout.active, offer)] if self.fanout.active else NOTHING

    def receive_request(self, src: NodeId, want: Want) -> Effects:
        """Answer from the history, at most so many rows at a time."""
        history = self.histories.get(want.stream)
        if history is None or is_internal(want.stream) or not FIRST <= want.lo < want.hi:
            return [Report("bad_message")]
        spans = history.know(want.lo, want.hi, limit_rows=self.settings.reply_rows)
        return [Send(src, Know(want.stream, tuple(spans), history.horizon))]

    def _offers(self) -> list[Offer]:
        known = [(stream, history.horizon) for stream, history in self.histories.items() if not is_internal(stream)]
        return [Offer(stream, horizon) for stream, horizon in known if horizon > FIRST]

    def _shuffle(self, timer: ShuffleTick) -> Effects:
        """Offer everything to all that are drawn, known ones too: a lost offer of an idle stream is made good."""
        drawn = self.fanout.shuffle(timer)
        if drawn is None:
            return NOTHING
        offers = self._offers() if self.views.is_proxy and self.fanout.active else []
        return [*[SendAll(self.fanout.active, offer) for offer in offers], drawn[0]]
