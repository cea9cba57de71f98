"""A client as one machine: what the cluster looks like, a publisher per owning region, subscribers, questions.

    commands:  Submit(batch)  Open/OpenMerge/Taken/Processed/Close(subscription)  Ask/Drop(question)
               Hold/MoveLease/LetGo(lease)  Sinking/DropSinking(request of a sink)  Lost(node)
    delivered: Acked, Refused, Broken   Fed, Heard, Saved, Ended   Begun, Merged, Stalled   Answered
               Granted, Dropped   SinkAnswered   Description

It begins with seeds, addresses without names. A replica at one of them describes the cluster: regions, chains, streams.
From then on the configurations of the chains say where every replica is. The machine learns them from descriptions and
from replicas that are not the head, and asks for a description again when a node is lost or silent. It gives the newest
configuration of each region to the publisher, the sinks, the leases and the subscribers that use it.

The parts are machines of their own: questions.py, region_clients.py, followers.py, mergers.py, `Holder` (leases) and,
at a peer, fabric.py. This file routes inputs to them and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from tidings.client.cluster_view import ClusterView
from tidings.client.commands import (
    Answered,
    Ask,
    AskTick,
    ChangeFilter,
    Close,
    Drop,
    DropSinking,
    Hold,
    LetGo,
    Open,
    Processed,
    PublisherTick,
    RefreshTick,
    Sinking,
    SinkingTick,
    Submit,
    SubscriberTick,
    Taken,
)
from tidings.client.fabric import Fabric
from tidings.client.followers import Followers
from tidings.client.mergers import Mergers
from tidings.client.questions import ANSWERS, Questions
from tidings.client.region_clients import RegionPublishers, RegionSinks
from tidings.core.errors import TidingsError
from tidings.core.ids import NodeId, RegionId, StreamId, is_internal, stream_name
from tidings.protocols.brokers.merging import OpenMerge
from tidings.protocols.brokers.messages import (
    AllConsumed,
    Consumed,
    Feed,
    FeedBeat,
    SubscriptionSettings,
    Unfollow,
    Unfollowed,
    local,
)
from tidings.protocols.brokers.subscriber import Ended, Learn, Lost, Save, Take
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
from tidings.protocols.nodes.client import ClientSettings
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.catalog import Defined, Describe, Description
from tidings.protocols.services.cursors import CursorAt
from tidings.protocols.services.leases import (
    Dropped,
    Holder,
    Lease,
    Leased,
    LeaseSettings,
    LeaseTick,
    MoveLease,
    Unleased,
)
from tidings.protocols.services.promises import MergeHeard
from tidings.protocols.services.publishing import (
    NotHead,
    Post,
    Published,
    PublishSettings,
    Refused,
    Rejected,
    SessionOpened,
)
from tidings.protocols.services.sink_client import ANSWERS as SINK_ANSWERS
from tidings.protocols.services.sinks import SinkSettings


class MachineSettings(Value, frozen=True, gc=False):
    """Ours, unless said otherwise."""

    publish: PublishSettings = PublishSettings()
    subscriptions: SubscriptionSettings = SubscriptionSettings()
    fabric: ClientSettings = ClientSettings()
    leases: LeaseSettings = LeaseSettings()
    sinks: SinkSettings = SinkSettings()
    ask: float = 0.5  # seconds before the next replica is asked
    refresh: float = 30.0  # seconds between descriptions while all is well: 16,000 clients ask 500 times a second
    hurry: float = 1.0  # seconds between them while something is silent, or was lost
    wary: float = 10.0  # seconds after a loss for which that is so: a chain is reconfigured within a few
    renew: float = 1800.0  # a session that was idle so long is not trusted: heads forget after twice that


PUBLISHING = frozenset({Published, Rejected, SessionOpened})
SUBSCRIBING = frozenset({Feed, Unfollowed})

_OWN = 1 << 62  # nonces of the machine's own questions begin here


class ClientMachine:
    """One client. ``seeds`` are where it begins; ``publisher`` is the id it publishes under."""

    def __init__(
        self,
        me: NodeId,
        publisher: str,
        seeds: Sequence[NodeId],
        settings: MachineSettings,
        rng: random.Random,
        *,
        peer: bool = False,
    ) -> None:
        self.me = me
        self.settings = settings
        self.rng = rng
        self.peer = peer
        self.view = view = ClusterView(me, seeds, rng.randrange(1 << 16))
        self.memberships = view.memberships
        self.streams = view.streams
        self.questions = Questions(view, settings.ask)
        self.asking = self.questions.open
        self.region_publishers = RegionPublishers(publisher, view, settings.publish, settings.renew, rng)
        self.publishers = self.region_publishers.by_region
        self.region_sinks = RegionSinks(view, settings.sinks)
        self.sinks = self.region_sinks.by_region
        self.followers = Followers(view, settings.subscriptions)
        self.subscribers = self.followers.subscribers
        self.opened = self.followers.opened
        self.mergers = Mergers(view, settings.subscriptions)
        self.holders: dict[str, Holder] = {}  # by the name of a lease
        self.described: Time | None = None  # when the last own description was asked for
        self.lost: Time = -1e18  # when a node was last lost
        self._nonce = _OWN

    @property
    def home(self) -> RegionId:
        """The region of the replica that answered first; "" until then."""
        return self.view.home

    @property
    def receipts(self) -> bool:
        """Whether the cluster asks its subscribers for receipts."""
        return self.view.receipts

    @property
    def fabric(self) -> Fabric | None:
        """The fabric of the region, at a peer that has found it."""
        return self.followers.fabric

    # --- the boundary -----------------------------------------------------------------------------------

    def start(self, now: Time) -> Effects:
        return [*self._describe(now), SetTimer(self.settings.hurry, RefreshTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is Received:
            return self._receive(now, input)
        if type(input) is Expired:
            return self._expire(now, input.timer)
        match input:
            case Submit(region, stream, rows, tag):
                begun = self.region_publishers.begin(now, region)
                return [*begun, *self._publisher(now, region, Post(self.view.id_of(stream), rows, tag))]
            case Taken(id, horizon):
                taken = self.followers.take(now, id, horizon)
                return self._subscriber(now, id, Take(horizon)) if taken is None else taken
            case Processed(id, horizon, prompt):
                return self._subscriber(now, id, Save(horizon, prompt))
            case Open():
                return self.followers.open(now, input)
            case ChangeFilter(id, where):
                return self.followers.refilter(now, id, where)
            case OpenMerge():
                return self.mergers.open(now, input)
            case Close(id):
                return [*self.followers.close(id), *self.mergers.close(id)]
            case Ask():
                return self.questions.ask(input)
            case Drop(nonce):
                self.questions.drop(nonce)
            case Hold(lease, resume):
                return self._hold(now, lease, resume)
            case MoveLease(name):
                return self._holder(now, name, input)
            case LetGo(name, release):
                holder = self.holders.pop(name, None)
                return holder.close() if holder is not None and release else NOTHING
            case Lost(node):
                return self._lost(now, node)
            case Sinking():
                return self.region_sinks.ask(now, input)
            case DropSinking(region, nonce) if region in self.sinks:
                return self.sinks[region].drop(nonce)
        return NOTHING

    def check(self) -> None:
        for publisher in self.publishers.values():
            publisher.check()
        for subscriber in self.subscribers.values():
            subscriber.check()
        for merger in self.mergers.by_id.values():
            merger.check()
        for holder in self.holders.values():
            holder.check()
        for sink in self.sinks.values():
            sink.check()
        if self.fabric is not None:
            self.fabric.check()

    # --- messages and timers ------------------------------------------------------------------------------

    def _receive(self, now: Time, input: Received) -> Effects:
        message = input.message
        kind = type(message)
        if kind in SUBSCRIBING:
            assert isinstance(message, Feed | Unfollowed)
            id = local(message.id)
            if not self._follows(id):
                return [Send(input.src, Unfollow(message.id))] if kind is Feed else NOTHING
            return self._subscriber(now, id, input)
        if isinstance(message, FeedBeat):
            return self._beat(now, input.src, message)
        if kind in PUBLISHING:
            regions = [r for r in self.publishers if input.src in self.memberships[r].replicas] or self.publishers
            return [effect for region in regions for effect in self._publisher(now, region, input)]
        if kind in SINK_ANSWERS:
            return [effect for region in self.sinks for effect in self.region_sinks.handle(now, region, input)]
        if kind in ANSWERS:
            return self._answer(now, message)
        if isinstance(message, Leased | Unleased):
            return self._holder(now, message.name, input)
        if isinstance(message, NotHead):
            return self._not_head(now, input, message.membership)
        if isinstance(message, CursorAt):
            return self._cursor(now, input, message)
        if isinstance(message, MergeHeard):
            return self._subscriber(now, message.id, input)
        return self.fabric.handle(now, input) if self.fabric is not None else NOTHING

    def _expire(self, now: Time, timer: Timer) -> Effects:
        match timer:
            case PublisherTick(region, _, inner):
                current = self.region_publishers.is_current(timer)
                return self._publisher(now, region, Expired(inner)) if current else NOTHING
            case SinkingTick(region, inner):
                return self.region_sinks.handle(now, region, Expired(inner))
            case SubscriberTick(id, inner):
                return self._subscriber(now, id, Expired(inner))
            case AskTick(nonce, turn):
                return self.questions.expired(nonce, turn)
            case LeaseTick(name):
                return self._holder(now, name, Expired(timer))
            case RefreshTick():
                return [*self._refresh(now), SetTimer(self.settings.hurry, RefreshTick())]
        return self.fabric.handle(now, Expired(timer)) if self.fabric is not None else NOTHING

    def _hold(self, now: Time, lease: Lease, resume: bool) -> Effects:
        definition = self.view.find(lease.stream)
        if definition is None:
            return [Deliver(Dropped(lease.name, f"stream {stream_name(lease.stream)!r} is unknown here"))]
        lease = msgspec.structs.replace(lease, stream=definition.id)
        membership = self.memberships[definition.region]
        holder = self.holders[lease.name] = Holder(lease, membership, self.settings.leases, resume=resume)
        return holder.start(now)

    def _lost(self, now: Time, node: NodeId) -> Effects:
        """The connection to a node is gone: nothing waits for its answers any longer."""
        out: list[Effect] = []
        self.lost = now
        for id in [*self.subscribers, *self.mergers.by_id]:
            out.extend(self._subscriber(now, id, Lost(node)))
        for holder in self.holders.values():
            out.extend(holder.lost(now, node))
        return [*out, *self.questions.lost(node), *self._hurry(now)]

    # --- the cluster ------------------------------------------------------------------------------------

    def _describe(self, now: Time) -> Effects:
        """Ask how the cluster looks."""
        self.described = now
        self._nonce += 1
        return self.questions.ask(Ask(self._nonce, Describe(self._nonce)))

    def _hurry(self, now: Time) -> Effects:
        """Something is wrong: perhaps the cluster has changed."""
        due = self.described is None or not 0 <= now - self.described < self.settings.hurry
        return self._describe(now) if due and self._nonce not in self.asking else NOTHING

    def _refresh(self, now: Time) -> Effects:
        assert self.described is not None
        wait = self.settings.hurry if 0 <= now - self.lost < self.settings.wary else self.settings.refresh
        due = not 0 <= now - self.described < wait
        return self._describe(now) if due and self._nonce not in self.asking else NOTHING

    def _answer(self, now: Time, message: Message) -> Effects:
        out: list[Effect] = []
        if isinstance(message, Description):
            out = self._learn_all(now, message)
        elif isinstance(message, Defined):
            self.view.learn_definition(message.definition)
        nonce = self.questions.answered(message)
        if nonce is not None and nonce < _OWN:
            out.append(Deliver(Answered(nonce, message)))
        return out

    def _learn_all(self, now: Time, told: Description) -> list[Effect]:
        out: list[Effect] = []
        first = not self.view.home
        if first:
            self.view.home = told.region
        self.view.learn_streams(told)
        out.extend(self.followers.name_streams(now))
        if told.region == self.home:
            out.extend(self.followers.learn_streams(now, {stream.id for stream in told.streams}))
        if self.view.learn_edges(told):
            out.extend(self.followers.learn_edges(now))
        for membership in told.memberships:
            out.extend(self._learn(now, membership))
        if first and self.peer:
            out.extend(self._join_fabric(now, told))
        return [*out, Deliver(told)]

    def _join_fabric(self, now: Time, told: Description) -> Effects:
        """Take part in the region's fabric; replicas feed a client that does not know this fabric or its options."""
        horizons = {name: state.horizon for name, state in told.states.items() if not is_internal(name)}
        chosen = ClientSettings(fabric=told.fabric)
        try:
            fabric = Fabric(self.me, self.home, self.memberships[self.home], horizons, chosen, self.rng)
        except TidingsError:
            return [Report("fabric_unknown")]
        self.followers.fabric = fabric
        return fabric.start(now)

    def _learn(self, now: Time, membership: ChainConfig) -> list[Effect]:
        """The newest configuration of a region counts, and every part that uses it is told."""
        if not self.view.learn(membership):
            return []
        region = membership.region
        out: list[Effect] = []
        if region in self.publishers:
            out.extend(self.publishers[region].learn(membership))
        if region in self.sinks:
            out.extend(self.sinks[region].learn(membership))
        for holder in self.holders.values():
            out.extend(holder.learn(now, membership))
        for id in [*self.subscribers, *self.mergers.by_id]:
            out.extend(self._subscriber(now, id, Learn(membership)))
        if region == self.home and self.fabric is not None:
            self.fabric.learn(now, membership)
        return out

    def _not_head(self, now: Time, input: Received, membership: ChainConfig) -> Effects:
        """A replica was asked for something that only a head does: the parts that asked it ask the head."""
        region = membership.region
        out = self._learn(now, membership)
        if region in self.publishers:
            out.extend(self._publisher(now, region, input))
        for holder in self.holders.values():
            out.extend(holder.handle(now, input))
        if region in self.sinks:
            out.extend(self.region_sinks.handle(now, region, input))
        if region == self.home:
            for id, subscriber in list(self.subscribers.items()):
                if subscriber.name is not None:
                    out.extend(self._subscriber(now, id, input))
            for id in list(self.mergers.by_id):
                out.extend(self._subscriber(now, id, input))
        return [*out, *self.questions.not_head(input.src, membership)]

    # --- parts ------------------------------------------------------------------------------------------

    def _publisher(self, now: Time, region: RegionId, input: Input) -> list[Effect]:
        """A publisher that retries rotates over the replicas it knows: perhaps all of them have been replaced."""
        out = self.region_publishers.handle(now, region, input)
        for effect in out:
            if type(effect) is Deliver and type(effect.item) is Refused and effect.item.reason == "stream":
                return [*out, *self._gone(now, effect.item.stream)]
        return [*out, *self._hurry(now)] if _reports(out, "publisher_retry") else out

    def _follows(self, id: int) -> bool:
        """Whether a replica feeds this subscription, by itself or as a part of a merge."""
        return id in self.subscribers or id in self.mergers.parts

    def _subscriber(self, now: Time, id: int, input: Input) -> list[Effect]:
        """A subscriber that moved to another replica has lost one: perhaps the chain has changed."""
        if id not in self.subscribers and (merge := self.mergers.parts.get(id, id)) in self.mergers.by_id:
            return self._merger(now, merge, input)
        out = self.followers.handle(now, id, input)
        if not out:
            return out
        if _reports(out, "subscriber_moved") and id in self.subscribers:
            out.extend(self._hurry(now))
        last = out[-1]
        if type(last) is Deliver and type(last.item) is Ended and last.item.gone:
            out.extend(self._gone(now, self.opened[id].stream))
        return out

    def _merger(self, now: Time, id: int, input: Input) -> list[Effect]:
        """The same for a merge."""
        streams = self.mergers.streams(id)
        out = self.mergers.handle(now, id, input)
        if _reports(out, "subscriber_moved") and id in self.mergers.by_id:
            out.extend(self._hurry(now))
        if any([type(each) is Deliver and type(each.item) is Ended and each.item.gone for each in out]):
            out += [effect for stream in streams for effect in self._gone(now, stream)]
        return out

    def _beat(self, now: Time, src: NodeId, beat: FeedBeat) -> list[Effect]:
        """A replica is there; each of its subscriptions here hears its part, and all of them answer together."""
        out: list[Effect] = []
        consumed: list[tuple[int, int]] = []
        for feed in beat.feeds:
            id = local(feed[0])
            if not self._follows(id):
                out.append(Send(src, Unfollow(feed[0])))
                continue
            for effect in self._subscriber(now, id, Received(src, FeedBeat((feed,), beat.within))):
                if type(effect) is Send and type(effect.message) is Consumed and effect.to == src:
                    consumed.append((effect.message.id, effect.message.horizon))
                else:
                    out.append(effect)
        if consumed:
            out.append(Send(src, Consumed(*consumed[0]) if len(consumed) == 1 else AllConsumed(tuple(consumed))))
        return out

    def _gone(self, now: Time, stream: StreamId) -> Effects:
        """A stream may be no more: then its name may mean another one."""
        self.view.forget(stream)
        return self._hurry(now)

    def _cursor(self, now: Time, input: Received, at: CursorAt) -> Effects:
        """Where a durable subscription stands."""
        out: list[Effect] = []
        for id, subscriber in list(self.subscribers.items()):
            if (subscriber.name, subscriber.stream) == (at.name, at.stream):
                out.extend(self._subscriber(now, id, input))
        for id in list(self.mergers.by_id):
            out.extend(self._merger(now, id, input))
        return out

    def _holder(self, now: Time, name: str, input: Input) -> Effects:
        """The holder of a lease; one that is over needs no timer any more."""
        holder = self.holders.get(name)
        if holder is None:
            return NOTHING
        effects = holder.handle(now, input)
        if type(input) is Received and type(input.message) is Unleased and input.message.gone:
            effects = [*effects, *self._gone(now, input.message.stream)]
        if holder.over:
            del self.holders[name]
        return effects


def _reports(effects: list[Effect], name: str) -> bool:
    for effect in effects:  # noqa: SIM110 - a few effects of every single event: a list would cost more than the look
        if type(effect) is Report and effect.name == name:
            return True
    return False
