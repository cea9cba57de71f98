"""Sprinkler's proxy-level protocol between regions (A1.14-A1.24, figure 1 of the paper).

The tail of each region's chain advertises its region's horizon in every stream to the replicas of the other regions.
The head of a region chooses at most one source per foreign stream (not necessarily the owner) and subscribes there
from its own progress. What it receives goes into its chain. If a link is cut, the next advertisement of a third region
that is further ahead makes the head change its source. The switch rule C/(T-t) is in `InterRegion._pays`.

Guarantee: a foreign stream reaches a region gapless, in order and once, as long as some path of connected regions
leads from its owner. No claim is made about which path.

Deviations from figure 1 (docs/papers/sprinkler.md): a subscription starts at own progress; C scales with the stream's
rate unless it is fixed; a proxy does not leave its source for one that has nothing new for it; it goes back to the
owner, whose path is the shortest, unless it has just left it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from tidings.core.history import History
from tidings.core.ids import FIRST, NodeId, RegionId, StreamId, are_natural
from tidings.core.lens import ALL
from tidings.core.span import Span
from tidings.protocols.credit import CreditWindow
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
    SetTimer,
    Time,
    Timer,
    Value,
)
from tidings.protocols.messages import Done, Know
from tidings.protocols.replication.chain_config import ChainConfig


class Advertise(Message, frozen=True, gc=False):
    """A region's progress in all streams (its cnt vector, A1.20), and who it is made of.

    The receiving head subscribes to the sender for the streams in which that pays. Whoever belongs to a newer chain
    than the sender believes says so: else a new tail that knows only replicas of long ago would never find their head.
    """

    membership: ChainConfig
    horizons: dict[StreamId, int]
    asofs: dict[StreamId, int] = msgspec.field(default_factory=dict)  # those that lie beyond the horizon
    known: dict[RegionId, int] = msgspec.field(default_factory=dict)  # epochs of the other regions' chains

    def valid(self) -> bool:
        return self.membership.valid() and are_natural([*self.horizons.values(), *self.known.values()])

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 64 + 16 * (len(self.horizons) + len(self.asofs) + len(self.known))


class Solicit(Message, frozen=True, gc=False):
    """A new head asks for advertisements; each tail answers at once (A1.41)."""


class Subscribe(Message, frozen=True, gc=False):
    """Send me this stream from ``lo`` on, until told otherwise."""

    stream: StreamId
    lo: int


class Unsubscribe(Message, frozen=True, gc=False):
    """Send me no more of this stream."""

    stream: StreamId


class AdvertiseTick(Timer, frozen=True, gc=False):
    """Time to advertise."""

    generation: int


class PumpTick(Timer, frozen=True, gc=False):
    """Look for subscribers that have stopped acknowledging."""

    generation: int


class Arrived(Value, frozen=True, gc=False):
    """Delivered to the chain at the head: these spans of a foreign stream continue what the region has."""

    spans: tuple[Span, ...]


class InterRegionSettings(Value, frozen=True, gc=False):
    """Period: A1.20 suggests about a second; the rest ours."""

    period: float = 1.0
    c: float | None = None  # the constant C of A1.17 in events x seconds; None: c_scale x rate x period^2
    c_scale: float = 0.5  # below 1, so that a better source wins before the next advertisement (SP5, SP6)
    window: int = 64  # messages in flight per subscription: 864,000 events/s (SP3) over 100 ms and back need 43
    chunk_rows: int = 16_384  # rows in one of them: a large batch of a publisher (decision 0007) stays in one piece
    retry: float = 0.5
    patience: int = 8  # retries without an answer before a subscription is dropped
    grudge: float = 5.0  # seconds until an owner that was left is preferred again


FIRST_WINDOW = 4.0  # messages in flight at first; ours: 65,536 rows, then the path tells how many more it carries


class Expect:
    """expects[s] of figure 1: the source of a stream, what it last advertised and when."""

    def __init__(self) -> None:
        self.source: NodeId | None = None
        self.region: RegionId | None = None  # the source's
        self.horizon = 0
        self.time: Time = 0.0
        self.seen = 0  # own progress when the source last advertised
        self.asked = 0  # where this head last saw a gap and subscribed anew
        self.forgiven: Time = 0.0  # when the owner is preferred again


class RemoteSubscriber:
    """A head of another region that is sent a stream."""

    def __init__(self, lo: int) -> None:
        self.next = lo  # first number not sent
        self.done = lo  # first number not acknowledged
        self.unacked = CreditWindow()
        self.window = FIRST_WINDOW  # how many messages may be in flight; the more the path carries, the more
        self.enough = 1 << 30  # from here on the window grows by one message per window, as in TCP
        self.idle = 0  # PumpTicks without progress
        self.idle_at = 0  # what the last PumpTick found unacknowledged
        self.due = 1  # of those, when it is sent again: more than it took last time, and twice as many each time

    def progress(self, horizon: int) -> None:
        """All below is acknowledged."""
        acked = self.unacked.release(horizon)
        self.done = horizon
        self.next = max(self.next, horizon)
        self.window += acked if self.window < self.enough else acked / self.window
        self.idle, self.due = 0, self.idle + 1

    def again(self) -> None:
        """Nothing is acknowledged: begin again with one message, since the path may be full of the others."""
        self.enough = max(2, len(self.unacked) // 2)
        self.window = 1.0
        self.due = 2 * self.idle
        self.next = self.done
        self.unacked.clear()


class InterRegion:
    """One replica's part: the tail advertises and serves, the head chooses sources and receives."""

    handles: frozenset[type] = frozenset(
        {Know, Done, Advertise, Subscribe, Unsubscribe, Solicit, AdvertiseTick, PumpTick}
    )

    def __init__(
        self,
        me: NodeId,
        region: RegionId,
        histories: Mapping[StreamId, History],
        streams: Mapping[StreamId, RegionId],
        peers: Mapping[RegionId, ChainConfig],
        progress: Callable[[StreamId], int],
        busy: Callable[[], bool],
        settings: InterRegionSettings,
        pending: Callable[[StreamId], bool] = lambda stream: False,
    ) -> None:
        self.me = me
        self.region = region
        self.histories = histories
        self.streams = streams  # those that leave their regions, and their owners; more may come
        self.peers = dict(peers)  # what is known of the other regions' chains
        self.progress = progress  # first number of a stream that this head has not put into its log
        self.busy = busy
        self.pending = pending  # whether a definition of this name is on its way through the log
        self.settings = settings
        self.membership: ChainConfig | None = None
        self.is_head = False
        self.is_tail = False
        self.generation = 0
        self.expects: dict[StreamId, Expect] = {}
        self.subscribers: dict[tuple[NodeId, StreamId], RemoteSubscriber] = {}
        self.adopting = False  # own streams are fetched, too (recovery.py)
        self.adverts: dict[RegionId, Advertise] = {}  # meanwhile: the newest of each region's tail

    def reconfigure(self, now: Time, membership: ChainConfig, is_head: bool, is_tail: bool) -> list[Effect]:
        """This replica's place in the chain has changed (A1.41)."""
        self.membership = membership
        effects: list[Effect] = []
        if is_tail != self.is_tail:
            self.generation += 1
            self.subscribers.clear()
        if is_tail and not self.is_tail:
            effects.append(SetTimer(self.settings.retry, PumpTick(self.generation)))
            effects.extend(self._advertise_tick(self.generation))
        if is_head and not self.is_head:
            self.expects.clear()
            effects.extend(self._to_peers(Solicit()))
        self.is_head = is_head
        self.is_tail = is_tail
        return effects

    def handle(self, now: Time, input: Input) -> Effects:
        match input:
            case Received(src, Know() as know):
                return self._receive_events(now, src, know)
            case Received(src, Done(stream, horizon)):
                return self._receive_done(src, stream, horizon)
            case Received(src, Advertise() as advert):
                return self._learn(src, advert, now)
            case Received(src, Subscribe() as subscribe):
                return self._receive_subscribe(src, subscribe)
            case Received(src, Unsubscribe(stream)):
                self.subscribers.pop((src, stream), None)
                return NOTHING
            case Received(src, Solicit()):
                return [Send(src, self._advertisement())] if self.is_tail else NOTHING
            case Expired(AdvertiseTick(generation)):
                return self._advertise_tick(generation)
            case Expired(PumpTick(generation)):
                return self._pump_tick(generation)
        return NOTHING

    def check(self) -> None:
        for subscription in self.subscribers.values():
            assert subscription.done <= subscription.next, "acknowledged only what was sent"
            assert len(subscription.unacked) <= self.settings.window, "credit"

    # --- the tail: advertise and serve -----------------------------------------------------------------

    def _advertisement(self) -> Advertise:
        assert self.membership is not None
        known = {stream: self.histories[stream] for stream in self.streams}
        horizons = {stream: history.horizon for stream, history in known.items() if history.horizon > FIRST}
        asofs = {stream: history.floor for stream, history in known.items() if history.floor > history.horizon}
        epochs = {name: peer.epoch for name, peer in self.peers.items()}
        return Advertise(self.membership, horizons, asofs, epochs)

    def _advertise_tick(self, generation: int) -> list[Effect]:
        if generation != self.generation:
            return []
        return [SetTimer(self.settings.period, AdvertiseTick(generation)), *self._to_peers(self._advertisement())]

    def _to_peers(self, message: Message) -> list[Effect]:
        return [Send(node, message) for peer in self.peers.values() for node in peer.replicas]

    def _receive_subscribe(self, src: NodeId, wanted: Subscribe) -> Effects:
        stream = wanted.stream
        if not self.is_tail or stream not in self.streams or wanted.lo < FIRST:
            return [Report("bad_message")]
        self.subscribers[src, stream] = RemoteSubscriber(wanted.lo)
        return self._pump(src, stream)

    def forget(self, stream: StreamId) -> None:
        """The stream is gone: what was agreed upon with sources and subscribers is void."""
        self.expects.pop(stream, None)
        for key in [key for key in self.subscribers if key[1] == stream]:
            del self.subscribers[key]

    def committed(self, stream: StreamId) -> list[Effect]:
        """The horizon of a stream has moved: send it on."""
        effects: list[Effect] = []
        for to, subscribed in list(self.subscribers):
            if subscribed == stream:
                effects.extend(self._pump(to, stream))
        return effects

    def _pump(self, to: NodeId, stream: StreamId) -> list[Effect]:
        subscription = self.subscribers[to, stream]
        history = self.histories.get(stream)
        if history is None:  # the stream was deleted
            del self.subscribers[to, stream]
            return []
        effects: list[Effect] = []
        window = min(subscription.window, self.settings.window)
        while subscription.next < history.horizon and len(subscription.unacked) + 1 <= window:
            spans = tuple(history.know(subscription.next, history.horizon, self.settings.chunk_rows))
            subscription.next = spans[-1].hi
            subscription.unacked.add(subscription.next)
            effects.append(Send(to, Know(stream, spans, history.horizon)))
        return effects

    def _receive_done(self, src: NodeId, stream: StreamId, horizon: int) -> Effects:
        subscription = self.subscribers.get((src, stream))
        if subscription is None or horizon <= subscription.done:
            return NOTHING
        subscription.progress(horizon)
        return self._pump(src, stream)

    def _pump_tick(self, generation: int) -> list[Effect]:
        if generation != self.generation:
            return []
        effects: list[Effect] = [SetTimer(self.settings.retry, PumpTick(generation))]
        for (to, stream), subscription in list(self.subscribers.items()):
            oldest = subscription.unacked.first
            stuck, subscription.idle_at = 0 < oldest == subscription.idle_at, oldest
            subscription.idle = subscription.idle + 1 if stuck else 0
            if subscription.idle > self.settings.patience:
                del self.subscribers[to, stream]  # if it lives it will subscribe again
            elif stuck and subscription.idle >= subscription.due:
                subscription.again()
                effects.extend([Report("retransmission"), *self._pump(to, stream)])
        return effects

    # --- the head: choose a source and receive ----------------------------------------------------------

    def _learn(self, src: NodeId, advert: Advertise, now: Time) -> Effects:
        """Every receiver of an advertisement learns that region's chain; the head also acts on it."""
        peer = self.peers.get(advert.membership.region)
        if peer is None:
            return [Report("bad_message")]
        if advert.membership.epoch > peer.epoch:
            self.peers[peer.region] = advert.membership
        introduction = self._introduce(src, advert.known)
        if not self.is_head or advert.membership.epoch < self.peers[peer.region].epoch:
            return introduction
        if self.adopting and src == advert.membership.tail:  # others pass on who is there, not what they have
            self.adverts[peer.region] = advert
        return [*introduction, *self.receive_advertisement(now, src, peer.region, advert)]

    def _introduce(self, src: NodeId, known: Mapping[RegionId, int]) -> list[Effect]:
        """Tell this region's chain to a node that believes in an older one."""
        mine = self.membership
        if mine is None or known.get(self.region, mine.epoch) >= mine.epoch:
            return []
        return [Send(src, self._advertisement() if self.is_tail else Advertise(mine, {})), Report("introduced")]

    def receive_advertisement(self, now: Time, src: NodeId, region: RegionId, advert: Advertise) -> list[Effect]:
        """rcvAdvertisement of figure 1 (A1.17): for each foreign stream, stay with the source or change it."""
        effects: list[Effect] = []
        for stream, advertised in advert.horizons.items():
            owner = self.streams.get(stream)
            if owner is None or (owner == self.region and not self.adopting):
                continue
            expect = self.expects.setdefault(stream, Expect())
            own = self.progress(stream)
            if src == expect.source:
                effects.extend(self._refresh(now, stream, expect, advertised, own))
            elif region == expect.region or self._pays(now, stream, region, advertised, own):
                if expect.source is not None:
                    effects.extend([Send(expect.source, Unsubscribe(stream)), Report("source_switch")])
                if expect.region == owner:
                    expect.forgiven = now + self.settings.grudge
                expect.source, expect.region = src, region  # of the same region: its new tail (A1.41)
                expect.horizon, expect.time, expect.seen = advertised, now, own
                effects.append(Send(src, Subscribe(stream, own)))
        return effects

    def adopted(self) -> list[Effect]:
        """This region numbers its own streams from now on: nobody sends it those any more."""
        own = [stream for stream in self.expects if self.streams.get(stream) == self.region]
        sources = [(self.expects.pop(stream).source, stream) for stream in own]
        return [Send(source, Unsubscribe(stream)) for source, stream in sources if source is not None]

    def _pays(self, now: Time, stream: StreamId, region: RegionId, advertised: int, own: int) -> bool:
        """The switch rule, multiplied out: ahead of what the source last advertised by more than C / elapsed.

        Without a fixed C it scales with the rate seen since then, (advertised - horizon) / elapsed, which cancels.
        An owner that is preferred again need not be ahead: its next event will come the short way.
        """
        expect = self.expects[stream]
        if region == self.streams[stream] and now >= expect.forgiven:
            return advertised >= own
        if advertised <= own:
            return False
        if expect.source is None:
            return True
        elapsed = now - expect.time
        if self.settings.c is None:
            return elapsed**2 > self.settings.c_scale * self.settings.period**2
        return (advertised - expect.horizon) * elapsed > self.settings.c

    def _refresh(self, now: Time, stream: StreamId, expect: Expect, advertised: int, own: int) -> list[Effect]:
        """The source itself advertises. Only one that gets on and delivers is refreshed: others are left (A1.24)."""
        stalled = advertised > own and own == expect.seen
        expect.seen = own
        if stalled:
            return [Send(expect.source or "", Subscribe(stream, own)), Report("resubscribed")]
        if advertised > expect.horizon:
            expect.horizon, expect.time = advertised, now
        return []

    def _receive_events(self, now: Time, src: NodeId, know: Know) -> Effects:
        """addRemoteEvent of figure 1 (A1.16), for a run of events: accept what continues own progress."""
        stream = know.stream
        expect = self.expects.get(stream)
        if not self.is_head or expect is None or expect.source != src:
            return [Send(src, Unsubscribe(stream))]
        if not know.spans or any([span.stream != stream or span.lens != ALL for span in know.spans]):
            return [Report("bad_message")]
        if self.busy():
            return [Report("chain_busy")]  # not acknowledged: the source sends it again
        if self.pending(stream):
            return [Report("definition_pending")]  # likewise: nobody knows yet whose stream this record would find
        own = self.progress(stream)
        fresh: list[Span] = []
        for span in know.spans:
            if span.lo <= own < span.hi:
                fresh.append(span.slice(own, span.hi))
                own = span.hi
        if fresh:
            return [Deliver(Arrived(tuple(fresh))), Send(src, Done(stream, own))]
        if know.spans[0].lo <= own:
            return [Send(src, Done(stream, own))]  # known already: the acknowledgement was lost
        if expect.asked == own:
            return NOTHING  # a gap that has been asked for
        expect.asked = own
        return [Send(src, Subscribe(stream, own)), Report("gap_asked")]
