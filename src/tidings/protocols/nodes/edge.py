"""An edge: hosts subscriptions, and gets what they want through the brokers above (Gryphon's SHB).

    brokers above --Brokered, Offer--> [Subend per stream] --> [SoftHistory] --> [EdgeSubscriptions] --Feed--> clients
                  <--Status, Nack, Acknowledge--                                                            <--Follow--
    replicas      <--Describe, Follow (only to catch up)--

All subscriptions of an edge share the state of a stream (A2.29). An edge keeps nothing on disk: when it dies, its
subscribers go on at another edge or at a replica, each from its own horizon.

A subscription that comes before the edge knows its stream, or how far the stream has come, waits for that. Which
streams there are the edge asks a replica, now and then and when somebody wants one that it does not know.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tidings.core.errors import BadInput
from tidings.core.filters import Filter, parse, parse_attributes
from tidings.core.ids import NEVER, NodeId, RegionId, StreamId, stream_name
from tidings.protocols.brokers.broker_messages import Acknowledge, Brokered, BrokerSettings, Status, StatusHeard
from tidings.protocols.brokers.edge_feeds import EdgeSubscriptions
from tidings.protocols.brokers.interests import Interests
from tidings.protocols.brokers.messages import (
    NOWHERE,
    Feed,
    Follow,
    FollowAbove,
    SubscriptionSettings,
    Unfollow,
    Unfollowed,
)
from tidings.protocols.brokers.positions import Key
from tidings.protocols.brokers.soft_history import SoftHistory
from tidings.protocols.brokers.subend import Subend
from tidings.protocols.brokers.subscriber import Learn, Lost
from tidings.protocols.kernel import (
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
from tidings.protocols.messages import Offer
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.catalog import Describe, Description, StreamDef

FRESH = 0.5  # seconds between questions for a stream that is unknown; ours


class EdgeTick(Timer, frozen=True, gc=False):
    """Look at what is due."""


class AnnounceTick(Timer, frozen=True, gc=False):
    """Tell the brokers above what is wanted now."""


class EdgeSettings(Value, frozen=True, gc=False):
    """All settings of an edge."""

    broker: BrokerSettings = BrokerSettings()
    subscriptions: SubscriptionSettings = SubscriptionSettings()
    room: int = 32 << 20  # bytes kept of one stream for subscribers that lag
    catching_up: int = 256  # subscriptions that are fed from replicas at a time
    waiting: int = 65_536  # subscriptions to streams that are not known yet
    describe: float = 5.0  # seconds between questions for the region's streams
    announce: float = 0.01  # seconds for which new interests wait for others


class Edge:
    """One edge. ``upstream`` are the brokers of the cell above, ``replicas`` those of its region.

    ``life`` is larger than in any earlier life of this name.
    """

    def __init__(
        self,
        me: NodeId,
        region: RegionId,
        upstream: Sequence[NodeId],
        replicas: Sequence[NodeId],
        life: int,
        settings: EdgeSettings,
        rng: random.Random,
    ) -> None:
        self.me = me
        self.region = region
        self.upstream = tuple(upstream)
        self.replicas = tuple(replicas)
        self.life = life
        self.settings = settings
        self.definitions: dict[StreamId, StreamDef] = {}
        self.missing: dict[StreamId, int] = {}  # how many replicas in turn did not know a stream any more
        self.interests = Interests(me, life)
        self.subends: dict[StreamId, Subend] = {}
        self.source: dict[StreamId, NodeId] = {}  # which broker above last sent something of a stream
        self.histories: dict[StreamId, SoftHistory] = {}
        self.parked: dict[Key, Follow] = {}  # that wait for their streams
        self.subscriptions = EdgeSubscriptions(
            self.histories, self._filter, settings.subscriptions, settings.catching_up, self._needs, self.connected
        )
        self.above: dict[NodeId, Time] = {}  # brokers above, and when they last said that they are connected
        self.confirmed: dict[NodeId, int] = {}  # brokers above, and which version of the interests they know
        self.asked: Time = -1e18  # when a replica was last asked for the streams
        self.turn = rng.randrange(1 << 16)  # which replica is asked next
        self.described = False
        self.now: Time = 0.0
        self._said: Time = -1e18
        self._announcing = False

    # --- the boundary -------------------------------------------------------------------------------------

    def start(self, now: Time) -> Effects:
        self.now = now
        tick = SetTimer(self.settings.broker.tick, EdgeTick())
        return [*self._describe(now), *self._status(now), tick, self.subscriptions.start()]

    def handle(self, now: Time, input: Input) -> Effects:
        self.now = now
        match input:
            case Received(src, Brokered() as told) if told.stream in self.interests.wishes and src in self.upstream:
                return self._brokered(now, src, told)
            case Received(src, Offer(stream, horizon)) if src in self.upstream and stream in self.interests.wishes:
                return self._offered(now, src, stream, horizon)
            case Received(src, StatusHeard(connected, version)) if src in self.upstream:
                return self._confirmed(now, src, connected, version)
            case Received(_, Description() as told):
                return self._learn(now, told)
            case Received(src, Follow() as follow):
                return self._follow(now, src, follow)
            case Received(src, Unfollow(id)):
                self.parked.pop((src, id), None)
                return self.subscriptions.handle(now, input)
            case Lost(node):
                return self._lost(now, node)
            case Learn(chain):
                return self._meet(now, chain)
            case Expired(AnnounceTick()):
                self._announcing = False
                return self._status(now) if self.interests.news else []
            case Expired(EdgeTick()):
                return [*self._tick(now), SetTimer(self.settings.broker.tick, EdgeTick())]
            case Received(_, message) if type(message) in self.subscriptions.handles:
                return self.subscriptions.handle(now, input)
            case Expired(timer) if type(timer) in self.subscriptions.handles:
                return self.subscriptions.handle(now, input)
        return []

    def check(self) -> None:
        self.subscriptions.check()
        for subend in self.subends.values():
            subend.check()
        assert set(self.subends) == set(self.histories) <= set(self.interests.wishes)
        assert len(self.parked) <= self.settings.waiting

    def connected(self) -> bool:
        """Whether it hears from brokers up to a replica."""
        return any([self.now - said < self.settings.broker.patience for said in self.above.values()])

    # --- what comes from above ----------------------------------------------------------------------------

    def _brokered(self, now: Time, src: NodeId, told: Brokered) -> list[Effect]:
        self.source[told.stream] = src
        subend = self.subends.get(told.stream)
        if subend is None:
            if told.again:
                return []
            mine = [span for span in told.spans if span.lens.text == self._label]
            if not mine:
                return []
            out = self._begin(now, told.stream, mine[0].lo)
            subend = self.subends[told.stream]
        else:
            out = []
        spans = subend.accept(now, told)
        if spans:
            fresh = self.histories[told.stream].append(spans)
            out += self.subscriptions.came(now, told.stream, fresh)
        if subend.contradictions:
            subend.contradictions = 0
            out.append(Report("contradiction"))
        return out

    def _offered(self, now: Time, src: NodeId, stream: StreamId, horizon: int) -> list[Effect]:
        """A broker above says how far a stream has come: at least that is to be had."""
        self.source[stream] = src
        if stream not in self.subends:
            return self._begin(now, stream, horizon)
        return self._up(stream, self.subends[stream].expected(now, horizon))

    def _begin(self, now: Time, stream: StreamId, at: int) -> list[Effect]:
        """It is known how far a stream has come: subscriptions to it begin."""
        self.subends[stream] = Subend(stream, self.life, at, self.interests.version, self.settings.broker)
        self.subends[stream].least = 1  # each span says what it counts for
        self.subends[stream].moved = now
        self.histories[stream] = SoftHistory(stream, at, self.settings.room)
        waiting = [(key, follow) for key, follow in self.parked.items() if follow.stream == stream]
        out: list[Effect] = []
        for (node, _), follow in waiting:
            out += self._follow(now, node, follow)
        return out

    def _up(self, stream: StreamId, messages: Sequence[Message]) -> list[Effect]:
        """To who sent something of a stream last, or to all brokers above; acknowledgements go to all (A2.28)."""
        source = self.source.get(stream)
        out: list[Effect] = []
        for message in messages:
            to_all = source is None or type(message) is Acknowledge
            out += [Send(node, message) for node in (self.upstream if to_all else (source or "",))]
        return out

    # --- what clients want --------------------------------------------------------------------------------

    def _follow(self, now: Time, src: NodeId, follow: Follow) -> list[Effect]:
        key = (src, follow.id)
        self.parked.pop(key, None)
        if isinstance(follow, FollowAbove):
            return [Send(src, Unfollowed(follow.id, "an edge keeps no history: ask a replica", floor=NEVER))]
        definition = self.definitions.get(follow.stream)
        if definition is None:
            if self.described and self.missing.get(follow.stream, 0) >= len(self.replicas):
                reason = f"stream {stream_name(follow.stream)!r} is unknown here"
                return [Send(src, Unfollowed(follow.id, reason, True))]
            return [*self._park(key, follow), *self._hurry(now)]
        try:
            text = self._filter(follow.stream, follow.where).text if follow.where else ""
        except BadInput as error:
            return [Send(src, Unfollowed(follow.id, str(error)))]
        self.interests.add(follow.stream, definition.attrs, text)
        out = self._announce()
        if follow.stream not in self.histories:
            return [*out, *self._park(key, follow)]
        return [*out, *self.subscriptions.handle(now, Received(src, follow))]

    def _park(self, key: Key, follow: Follow) -> list[Effect]:
        node, id = key
        if len(self.parked) >= self.settings.waiting:
            return [Send(node, Unfollowed(id, "this edge has no room for another subscription", floor=1))]
        self.parked[key] = follow
        return [Send(node, Feed(id, NOWHERE, (), 0))]  # a sign of life, or it would soon ask somebody else

    def _filter(self, stream: StreamId, where: str) -> Filter:
        definition = self.definitions[stream]
        if definition.counted:
            raise BadInput(f"stream {stream!r} only counts its events: there is nothing to filter by")
        return parse(where, parse_attributes(definition.attrs))

    def _needs(self, stream: StreamId, text: str) -> int:
        return self.interests.add(stream, self.definitions[stream].attrs, text)

    def _announce(self) -> list[Effect]:
        """New interests are told in a moment."""
        if not self.interests.news or self._announcing:
            return []
        self._announcing = True
        return [SetTimer(self.settings.announce, AnnounceTick())]

    def _status(self, now: Time) -> list[Effect]:
        self._said = now
        wanted, brief = self.interests.told(), self.interests.brief()
        for subend in self.subends.values():
            subend.version = wanted.version
        known = [self.confirmed.get(node) == wanted.version for node in self.upstream]
        told = [brief if each else wanted for each in known]
        return [Send(node, Status(each, (), (self.me,))) for node, each in zip(self.upstream, told, strict=True)]

    def _confirmed(self, now: Time, src: NodeId, connected: bool, version: int) -> list[Effect]:
        """A broker above has heard the status; one that does not know the interests is told them."""
        if connected:
            self.above[src] = now
        self.confirmed[src] = version
        return self._status(now) if version == 0 else []

    # --- which streams there are --------------------------------------------------------------------------

    def _describe(self, now: Time) -> list[Effect]:
        self.asked = now
        self.turn += 1
        return [Send(self.replicas[self.turn % len(self.replicas)], Describe(self.turn))]

    def _hurry(self, now: Time) -> list[Effect]:
        return self._describe(now) if now - self.asked >= FRESH else []

    def _learn(self, now: Time, told: Description) -> list[Effect]:
        out: list[Effect] = []
        for chain in told.memberships:
            if chain.region == self.region:
                out += self._meet(now, chain)
        there = {definition.id: definition for definition in told.streams}
        self.described = True
        self.definitions |= there
        wanted = {follow.stream for follow in self.parked.values()}
        for stream in dict.fromkeys([*self.definitions, *sorted(wanted)]):
            self.missing[stream] = 0 if stream in there else self.missing.get(stream, 0) + 1
        for stream in [stream for stream, count in self.missing.items() if count >= len(self.replicas)]:
            if stream in self.definitions:
                out += self._forget(stream)
            elif stream not in wanted:
                del self.missing[stream]
        for (node, _), follow in list(self.parked.items()):
            if follow.stream not in self.histories:
                out += self._follow(now, node, follow)
        return out

    def _meet(self, now: Time, chain: ChainConfig) -> list[Effect]:
        """The configuration of the region's chain says where replicas are, and who is above an edge below them."""
        known = self.subscriptions.chain
        if known is not None and known.epoch >= chain.epoch:
            return []
        if self.upstream == self.replicas:
            self.upstream = chain.replicas
        self.replicas = chain.replicas
        return self.subscriptions.learn(now, chain)

    def _forget(self, stream: StreamId) -> list[Effect]:
        """No replica knows a stream any more."""
        out = list(self.subscriptions.end(stream, f"stream {stream_name(stream)!r} was deleted"))
        del self.definitions[stream]
        self._leave(stream)
        self.interests.wishes.pop(stream, None)
        return out

    def _leave(self, stream: StreamId) -> None:
        for table in (self.subends, self.histories, self.source):
            table.pop(stream, None)

    # --- upkeep -------------------------------------------------------------------------------------------

    def _lost(self, now: Time, node: NodeId) -> list[Effect]:
        self.above.pop(node, None)
        self.source = {stream: src for stream, src in self.source.items() if src != node}
        return list(self.subscriptions.handle(now, Lost(node)))

    def _tick(self, now: Time) -> list[Effect]:
        out: list[Effect] = []
        for stream, subend in self.subends.items():
            out += self._up(stream, subend.due(now))
        if now - self._said >= self.settings.broker.status:
            self._tidy(now)
            out += self._status(now)
            for subend in self.subends.values():
                subend.acknowledge_again()
        waiting = self.parked and any([follow.stream not in self.definitions for follow in self.parked.values()])
        if now - self.asked >= (FRESH if waiting or not self.described else self.settings.describe):
            out += self._describe(now)
        return out

    def _tidy(self, now: Time) -> None:
        """What nobody wants any more is not asked for."""
        used: dict[StreamId, set[str]] = {}
        for position in self.subscriptions.positions.values():
            text = position.filter.text if position.filter is not None else ""
            used.setdefault(position.stream, set()).add(text)
        for follow in self.parked.values():
            used.setdefault(follow.stream, set()).add(follow.where)
        for stream in self.interests.tidy(now, {stream: texts for stream, texts in used.items()}):
            self._leave(stream)

    @property
    def _label(self) -> str:
        return f"~{self.life}"
