"""A client as one machine: what the cluster looks like, a publisher per owning region, subscribers, questions.

    commands:  Submit(batch)  Open/Taken/Processed/Close(subscription)  Ask/Drop(question)  Hold/MoveLease/LetGo(lease)
               Lost(node)
    delivered: Acked, Refused, Broken   Fed, Heard, Saved, Ended   Answered   Granted, Dropped   Description

It begins with seeds, addresses without names. Whoever lives there describes the cluster: regions, chains, streams. From
then on memberships say where everybody is. They are learned from descriptions, from replicas that are not the head, and
asked for again when something is lost or silent; the newest of each region goes to its publisher and subscribers.

Each part is a machine of its own (publishing, subscriptions, views + pull); here their effects are translated, no more.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec.structs import replace

from tidings.client.fabric import Fabric, Heard
from tidings.core.filters import Filter, parse, parse_attributes
from tidings.core.ids import NodeId, RegionId, StreamId, is_internal
from tidings.core.rows import Rows
from tidings.protocols.catalog import Because, Defined, Describe, Description, NotDefined, StreamDef, Why
from tidings.protocols.client import ClientSettings
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
from tidings.protocols.leases import Holder, Lease, Leased, LeaseSettings, LeaseTick, MoveLease, Unleased
from tidings.protocols.membership import Membership
from tidings.protocols.publishing import (
    Failed,
    NotHead,
    Post,
    Published,
    Publisher,
    PublishSettings,
    Rejected,
    SessionOpened,
)
from tidings.protocols.receipts import ReceiptsKept
from tidings.protocols.sinks import ANSWERS as SINK_ANSWERS
from tidings.protocols.sinks import Request, SinkClient, SinkSettings
from tidings.protocols.subscriptions import (
    LATEST,
    CursorAt,
    Feed,
    Learn,
    Lost,
    Save,
    Subscriber,
    SubscriptionSettings,
    Take,
    Unfollow,
    Unfollowed,
)

# --- commands -------------------------------------------------------------------------------------------


class Submit(Command, frozen=True, gc=False):
    """Publish a batch to a stream of a region; the answer is `Acked`, `Refused` or `Broken`."""

    region: RegionId
    stream: StreamId
    rows: Rows
    tag: int


class Open(Command, frozen=True, gc=False):
    """Subscribe to one stream; ``lo`` is a number, EARLIEST or LATEST, and ``holder`` grows with time.

    With ``asof`` it is a read of [lo, hi); ``replica`` says which of the region to begin with (else any).
    """

    id: int
    stream: StreamId
    lo: int
    where: str
    name: str | None
    holder: int
    hi: int = 0
    asof: int = 0
    replica: int | None = None


class Taken(Command, frozen=True, gc=False):
    """The application has taken everything below ``horizon`` off a subscription's hands."""

    id: int
    horizon: int


class Processed(Command, frozen=True, gc=False):
    """The application has processed everything below ``horizon``; ``prompt``: it waits for `Saved`."""

    id: int
    horizon: int
    prompt: bool = False


class Close(Command, frozen=True, gc=False):
    """A subscription is over."""

    id: int


class Ask(Command, frozen=True, gc=False):
    """Ask a replica of a region (its head; any region if none is named) until there is an answer."""

    nonce: int
    message: Message
    region: RegionId = ""
    head: bool = False


class Hold(Command, frozen=True, gc=False):
    """Get a lease and renew it; ``resume``: one that was granted already. Delivered are `Granted` and `Dropped`."""

    lease: Lease
    resume: bool = False


class LetGo(Command, frozen=True, gc=False):
    """Renew a lease no longer, and ``release`` it."""

    name: str
    release: bool = True


class Drop(Command, frozen=True, gc=False):
    """Nobody waits for the answer any more."""

    nonce: int


class Sinking(Command, frozen=True, gc=False):
    """Ask the owner of a sink's stream something; delivered is a `SinkAnswered`."""

    region: RegionId
    request: Request


class DropSinking(Command, frozen=True, gc=False):
    """Nobody waits for that answer any more."""

    region: RegionId
    nonce: int


# --- what is delivered, besides what the parts deliver ----------------------------------------------------


class Answered(Value, frozen=True, gc=False):
    """The answer to an `Ask`."""

    nonce: int
    message: Message


class Broken(Value, frozen=True, gc=False):
    """This client may publish to a region no more, and why."""

    region: RegionId
    reason: str


# --- timers -----------------------------------------------------------------------------------------------


class PublisherTick(Timer, frozen=True, gc=False):
    """A publisher's timer."""

    region: RegionId
    generation: int
    timer: Timer


class SinkingTick(Timer, frozen=True, gc=False):
    """The timer of a region's sinks."""

    region: RegionId
    timer: Timer


class SubscriberTick(Timer, frozen=True, gc=False):
    """A subscriber's timer."""

    id: int
    timer: Timer


class AskTick(Timer, frozen=True, gc=False):
    """A question has waited for an answer."""

    nonce: int
    turn: int


class RefreshTick(Timer, frozen=True, gc=False):
    """Time to look how the cluster has changed."""


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
ANSWERS = frozenset({Description, Defined, NotDefined, Because, ReceiptsKept})
SUBSCRIBING = frozenset({Feed, Unfollowed})

_OWN = 1 << 62  # nonces of the machine's own questions begin here


class Asking:
    """A question under way."""

    __slots__ = ("ask", "to", "turn")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.turn = 0
        self.to: NodeId = ""


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
        self.publisher = publisher
        self.seeds = tuple(seeds)
        self.settings = settings
        self.rng = rng
        self.peer = peer
        self.home: RegionId = ""  # the region of whoever answered first
        self.memberships: dict[RegionId, Membership] = {}
        self.streams: dict[StreamId, StreamDef] = {}
        self.publishers: dict[RegionId, Publisher] = {}
        self.used: dict[RegionId, Time] = {}  # when a publisher was last given something
        self.lives: dict[RegionId, int] = {}  # how many publishers a region has had
        self.sinks: dict[RegionId, SinkClient] = {}
        self.subscribers: dict[int, Subscriber] = {}
        self.opened: dict[int, Open] = {}  # every subscription, whoever feeds it
        self.asking: dict[int, Asking] = {}
        self.holders: dict[str, Holder] = {}  # by the name of a lease
        self.fabric: Fabric | None = None
        self.receipts = False  # the cluster asks its subscribers for receipts
        self.described: Time | None = None  # when the last own description was asked for
        self.lost: Time = -1e18  # when a node was last lost
        self._nonce = _OWN
        self._offset = rng.randrange(1 << 16)  # clients spread over the replicas

    # --- the boundary -----------------------------------------------------------------------------------

    def start(self, now: Time) -> Effects:
        return [*self._describe(now), SetTimer(self.settings.hurry, RefreshTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is Received:
            return self._receive(now, input)
        if type(input) is Expired:
            return self._expire(now, input.timer)
        match input:
            case Submit():
                return self._submit(now, input)
            case Taken(id, horizon):
                return self._take(now, id, horizon)
            case Processed(id, horizon, prompt):
                return self._subscriber(now, id, Save(horizon, prompt))
            case Open():
                return self._open(now, input)
            case Close(id):
                return self._close(id)
            case Ask(nonce):
                self.asking[nonce] = Asking(input)
                return self._ask(self.asking[nonce])
            case Drop(nonce):
                self.asking.pop(nonce, None)
            case Hold(lease, resume):
                membership = self.memberships[self.streams[lease.stream].region]
                self.holders[lease.name] = Holder(lease, membership, self.settings.leases, resume=resume)
                return self.holders[lease.name].start(now)
            case MoveLease(name):
                return self._holder(now, name, input)
            case LetGo(name, release):
                holder = self.holders.pop(name, None)
                return holder.close() if holder is not None and release else NOTHING
            case Lost(node):
                return self._lost(now, node)
            case Sinking(region, request):
                return self._sinking(now, region, request)
            case DropSinking(region, nonce) if region in self.sinks:
                return self.sinks[region].drop(nonce)
        return NOTHING

    def check(self) -> None:
        for publisher in self.publishers.values():
            publisher.check()
        for subscriber in self.subscribers.values():
            subscriber.check()
        for holder in self.holders.values():
            holder.check()
        for sink in self.sinks.values():
            sink.check()
        if self.fabric is not None:
            self.fabric.check()

    # --- inputs -----------------------------------------------------------------------------------------

    def _receive(self, now: Time, input: Received) -> Effects:
        message = input.message
        kind = type(message)
        if kind in SUBSCRIBING:
            assert isinstance(message, Feed | Unfollowed)
            if message.id not in self.subscribers:
                return [Send(input.src, Unfollow(message.id))] if kind is Feed else NOTHING
            return self._subscriber(now, message.id, input)
        if kind in PUBLISHING:
            regions = [r for r in self.publishers if input.src in self.memberships[r].replicas] or self.publishers
            return [effect for region in regions for effect in self._publisher(now, region, input)]
        if kind in SINK_ANSWERS:
            return [effect for region in self.sinks for effect in self._sink(now, region, input)]
        if kind in ANSWERS:
            return self._answer(now, message)
        if isinstance(message, Leased | Unleased):
            return self._holder(now, message.name, input)
        if isinstance(message, NotHead):
            return self._not_head(now, input, message.membership)
        if isinstance(message, CursorAt):
            return self._cursor(now, input, message)
        return self.fabric.handle(now, input) if self.fabric is not None else NOTHING

    def _expire(self, now: Time, timer: Timer) -> Effects:
        match timer:
            case PublisherTick(region, generation, inner):
                return self._publisher(now, region, Expired(inner)) if generation == self.lives[region] else NOTHING
            case SinkingTick(region, inner):
                return self._sink(now, region, Expired(inner))
            case SubscriberTick(id, inner):
                return self._subscriber(now, id, Expired(inner))
            case AskTick(nonce, turn):
                asking = self.asking.get(nonce)
                return self._ask(asking) if asking is not None and asking.turn == turn else NOTHING
            case LeaseTick(name):
                return self._holder(now, name, Expired(timer))
            case RefreshTick():
                return [*self._refresh(now), SetTimer(self.settings.hurry, RefreshTick())]
        return self.fabric.handle(now, Expired(timer)) if self.fabric is not None else NOTHING

    def _lost(self, now: Time, node: NodeId) -> Effects:
        """Whoever waits for a node does so no longer."""
        out: list[Effect] = []
        self.lost = now
        for id in list(self.subscribers):
            out.extend(self._subscriber(now, id, Lost(node)))
        for holder in self.holders.values():
            out.extend(holder.lost(now, node))
        for asking in list(self.asking.values()):
            if asking.to == node or asking.to in self.seeds:
                out.extend(self._ask(asking))
        return [*out, *self._hurry(now)]

    # --- the cluster ------------------------------------------------------------------------------------

    def _describe(self, now: Time) -> Effects:
        """Ask how the cluster looks."""
        self.described = now
        self._nonce += 1
        return self.handle(now, Ask(self._nonce, Describe(self._nonce)))

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
        nonce = 0
        match message:
            case Description(nonce):
                out = self._learn_all(now, message)
            case Defined(nonce, definition):
                self.streams[definition.name] = definition
            case NotDefined(nonce) | ReceiptsKept(nonce):
                pass
            case Because(stream, seq):
                found = [n for n, asking in self.asking.items() if asking.ask.message == Why(stream, seq)]
                nonce = found[0] if found else 0
        asking = self.asking.pop(nonce, None)
        if asking is not None and nonce < _OWN:
            out.append(Deliver(Answered(nonce, message)))
        return out

    def _learn_all(self, now: Time, told: Description) -> list[Effect]:
        out: list[Effect] = []
        first = not self.home
        if first:
            self.home = told.region
        if told.region == self.home:
            self.receipts = told.receipts
        for stream in told.streams:
            known = self.streams.get(stream.name)
            moved = known is not None and known.region != stream.region and told.region == self.home  # an older claim
            if known is None or moved or not known.attrs.startswith(stream.attrs):  # attributes are only ever added
                self.streams[stream.name] = stream
        for membership in told.memberships:
            out.extend(self._learn(now, membership))
        if first and self.peer:
            horizons = {name: state.horizon for name, state in told.states.items() if not is_internal(name)}
            membership = self.memberships[self.home]
            self.fabric = Fabric(self.me, self.home, membership, horizons, self.settings.fabric, self.rng)
            out.extend(self.fabric.start(now))
        return [*out, Deliver(told)]

    def _learn(self, now: Time, membership: Membership) -> list[Effect]:
        """The newest configuration of a region counts, and its publisher and subscribers are told."""
        region = membership.region
        known = self.memberships.get(region)
        if known is not None and membership.epoch <= known.epoch:
            return []
        self.memberships[region] = membership
        out: list[Effect] = []
        publisher = self.publishers.get(region)
        if publisher is not None:
            out.extend(publisher.learn(membership))
        if region in self.sinks:
            out.extend(self.sinks[region].learn(membership))
        for holder in self.holders.values():
            out.extend(holder.learn(now, membership))
        for id in list(self.subscribers):
            out.extend(self._subscriber(now, id, Learn(membership)))
        if region == self.home and self.fabric is not None:
            self.fabric.learn(membership)
        return out

    def _not_head(self, now: Time, input: Received, membership: Membership) -> Effects:
        """Whoever asked this replica for something only a head does asks the head."""
        region = membership.region
        out = self._learn(now, membership)
        if region in self.publishers:
            out.extend(self._publisher(now, region, input))
        for holder in self.holders.values():
            out.extend(holder.handle(now, input))
        if region in self.sinks:
            out.extend(self._sink(now, region, input))
        if region == self.home:
            for id, subscriber in list(self.subscribers.items()):
                if subscriber.name is not None:
                    out.extend(self._subscriber(now, id, input))
        known = self.memberships.get(region, membership)
        for asking in self.asking.values():
            # a head that does not know yet that it is one is asked again later, not at once
            if asking.ask.head and asking.ask.region == region and asking.to == input.src != known.head:
                asking.turn = 0
                out.extend(self._ask(asking))
        return out

    # --- questions --------------------------------------------------------------------------------------

    def _ask(self, asking: Asking) -> list[Effect]:
        """Send a question to the next who may know."""
        ask = asking.ask
        targets = self._targets(ask)
        asking.to = targets[asking.turn % len(targets)]
        asking.turn += 1
        return [Send(asking.to, ask.message), SetTimer(self.settings.ask, AskTick(ask.nonce, asking.turn))]

    def _targets(self, ask: Ask) -> tuple[NodeId, ...]:
        if ask.region in self.memberships:
            replicas = self.memberships[ask.region].replicas
            return replicas if ask.head else replicas[::-1]  # the tail knows what is committed before the others
        if not self.home:
            return self.seeds
        near = self._rotated(self.memberships[self.home].replicas)
        far = [self.memberships[region].head for region in sorted(self.memberships) if region != self.home]
        return (*near, *far, *self.seeds)

    def _rotated(self, replicas: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
        at = self._offset % len(replicas)
        return replicas[at:] + replicas[:at]

    # --- publishers -------------------------------------------------------------------------------------

    def _submit(self, now: Time, submit: Submit) -> Effects:
        region = submit.region
        publisher = self.publishers.get(region)
        out: list[Effect] = []
        if publisher is None or self._stale(now, region, publisher):
            nonce = self.rng.getrandbits(48)
            publisher = Publisher(self.publisher, self.memberships[region], self.settings.publish, nonce)
            self.publishers[region] = publisher
            self.lives[region] = self.lives.get(region, 0) + 1
            out = self._translated(region, publisher.start(now))
        self.used[region] = now
        out.extend(self._publisher(now, region, Post(submit.stream, submit.rows, submit.tag)))
        return out

    def _stale(self, now: Time, region: RegionId, publisher: Publisher) -> bool:
        """Whether the head may have forgotten a session; nothing of it is unanswered."""
        idle = not publisher.inflight and not publisher.queue and not publisher.failed
        return idle and not 0 <= now - self.used[region] < self.settings.renew

    def _publisher(self, now: Time, region: RegionId, input: Input) -> list[Effect]:
        """One that repeats itself goes round the replicas it knows: perhaps all of them have been replaced."""
        out = self._translated(region, self.publishers[region].handle(now, input))
        return [*out, *self._hurry(now)] if _reports(out, "publisher_retry") else out

    def _translated(self, region: RegionId, effects: Effects) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            if type(effect) is SetTimer:
                out.append(SetTimer(effect.delay, PublisherTick(region, self.lives[region], effect.timer)))
            elif type(effect) is Deliver and type(effect.item) is Failed:
                out.append(Deliver(Broken(region, effect.item.reason)))
            else:
                out.append(effect)
        return out

    # --- sinks ----------------------------------------------------------------------------------------------

    def _sinking(self, now: Time, region: RegionId, request: Request) -> Effects:
        out: list[Effect] = []
        if region not in self.sinks:
            self.sinks[region] = SinkClient(self.memberships[region], self.settings.sinks)
            out = self._sink_ticking(region, self.sinks[region].start(now))
        return [*out, *self.sinks[region].ask(request)]

    def _sink(self, now: Time, region: RegionId, input: Input) -> list[Effect]:
        return self._sink_ticking(region, self.sinks[region].handle(now, input))

    def _sink_ticking(self, region: RegionId, effects: Effects) -> list[Effect]:
        return [
            SetTimer(effect.delay, SinkingTick(region, effect.timer)) if type(effect) is SetTimer else effect
            for effect in effects
        ]

    # --- subscribers ------------------------------------------------------------------------------------

    def _open(self, now: Time, command: Open) -> Effects:
        """A peer taps its fabric; whoever is none, has a name or begins earlier follows a replica."""
        self.opened[command.id] = command
        fabric = self.fabric
        if fabric is not None and command.name is None and not command.hi:
            at = fabric.latest(command.stream) if command.lo == LATEST else command.lo
            if at is not None and fabric.covers(command.stream, at):
                return fabric.tap(command.id, command.stream, at, self._filter(command))
        return self._follow(now, command)

    def _filter(self, open: Open) -> Filter | None:
        return parse(open.where, parse_attributes(self.streams[open.stream].attrs)) if open.where else None

    def _take(self, now: Time, id: int, horizon: int) -> Effects:
        fabric = self.fabric
        if fabric is None or id not in fabric.taps:
            return self._subscriber(now, id, Take(horizon))
        effects = fabric.take(id, horizon)
        behind = fabric.behind(id)
        if behind is None:
            return effects
        fabric.close(id)
        again = replace(self.opened[id], lo=behind)
        return [*effects, Report("tap_behind"), *self._follow(now, again)]

    def _tapped(self, id: int, subscriber: Subscriber) -> Effects:
        """Let the fabric continue what a replica has fed so far, if it can."""
        at, fabric = subscriber.horizon, self.fabric
        if fabric is None or at is None or subscriber.name is not None or subscriber.hi:
            return NOTHING
        if not fabric.covers(subscriber.stream, at):
            return NOTHING
        del self.subscribers[id]
        tapped = fabric.tap(id, subscriber.stream, at, self._filter(self.opened[id]), subscriber.ahead)
        return [*subscriber.close(), Report("tap_caught_up"), *tapped]

    def _follow(self, now: Time, open: Open) -> Effects:
        membership, settings = self.memberships[self.home], self.settings.subscriptions
        args = (open.id, open.stream, open.lo, open.where, open.name)
        owner = self.memberships.get(self.streams[open.stream].region) if open.asof else None
        subscriber = Subscriber(*args, membership, settings, open.holder, open.hi, open.asof, owner)
        subscriber.turn = self._offset + open.id if open.replica is None else open.replica
        self.subscribers[open.id] = subscriber
        return self._ticking(open.id, subscriber.start(now))

    def _close(self, id: int) -> Effects:
        self.opened.pop(id, None)
        if self.fabric is not None:
            self.fabric.close(id)
        subscriber = self.subscribers.pop(id, None)
        return subscriber.close() if subscriber is not None else NOTHING

    def _subscriber(self, now: Time, id: int, input: Input) -> list[Effect]:
        subscriber = self.subscribers.get(id)
        if subscriber is None:
            return []
        out = self._ticking(id, subscriber.handle(now, input))
        if type(input) is Received and type(input.message) is Feed and subscriber.horizon is not None:
            out.append(Deliver(Heard(id, subscriber.horizon, input.message.horizon)))
            out.extend(self._tapped(id, subscriber))
        if subscriber.over:
            self.subscribers.pop(id, None)
        elif _reports(out, "subscriber_moved"):
            out.extend(self._hurry(now))
        return out

    def _holder(self, now: Time, name: str, input: Input) -> Effects:
        """The holder of a lease; one that is over needs no timer any more."""
        holder = self.holders.get(name)
        if holder is None:
            return NOTHING
        effects = holder.handle(now, input)
        if holder.over:
            del self.holders[name]
        return effects

    def _ticking(self, id: int, effects: Effects) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            if type(effect) is SetTimer:
                out.append(SetTimer(effect.delay, SubscriberTick(id, effect.timer)))
            else:
                out.append(effect)
        return out

    def _cursor(self, now: Time, input: Received, at: CursorAt) -> Effects:
        """Where a durable subscription stands."""
        out: list[Effect] = []
        for id, subscriber in list(self.subscribers.items()):
            if (subscriber.name, subscriber.stream) != (at.name, at.stream):
                continue
            out.extend(self._subscriber(now, id, input))
        return out


def _reports(effects: list[Effect], name: str) -> bool:
    for effect in effects:  # noqa: SIM110 - a few effects of every single event: a list would cost more than the look
        if type(effect) is Report and effect.name == name:
            return True
    return False
