"""The subscriptions of a client: each is fed by an edge or a replica, or, at a peer, by the fabric.

A plain client follows an edge, or a replica (`Subscriber`). A peer taps its fabric (`Fabric`) if that holds the number
to begin with, and else follows until the fabric can continue. Durable subscriptions, reads and internal streams are
served by replicas alone.
"""

from __future__ import annotations

from collections.abc import Container

from msgspec.structs import replace

from tidings.client.cluster_view import ClusterView
from tidings.client.commands import Open, SubscriberTick
from tidings.client.fabric import Fabric, Heard
from tidings.core.filters import Filter, parse, parse_attributes
from tidings.core.ids import StreamId, is_internal
from tidings.protocols.brokers.messages import LATEST, Feed, FeedBeat, SubscriptionSettings
from tidings.protocols.brokers.subscriber import Edges, Refilter, Refiltered, Subscriber
from tidings.protocols.kernel import NOTHING, Deliver, Effect, Effects, Input, Received, Report, SetTimer, Time


class Followers:
    """All subscriptions of one client, by id. ``fabric`` is set once a peer has found its region."""

    def __init__(self, view: ClusterView, settings: SubscriptionSettings) -> None:
        self._view = view
        self._settings = settings
        self.fabric: Fabric | None = None
        self.opened: dict[int, Open] = {}  # every subscription, with the id of its stream
        self._attrs: dict[int, str] = {}  # of their streams
        self.subscribers: dict[int, Subscriber] = {}  # those that a replica feeds

    def open(self, now: Time, command: Open) -> Effects:
        """Subscribe to the stream that a name means now, and to no other that has the name later."""
        definition = self._view.find(command.stream)
        if definition is not None:
            command = replace(command, stream=definition.id)
            self._attrs[command.id] = definition.attrs
        self.opened[command.id] = command
        fabric = self.fabric
        if fabric is not None and command.name is None and not command.hi:
            at = fabric.latest(command.stream) if command.lo == LATEST else command.lo
            if at is not None and fabric.covers(command.stream, at):
                return fabric.tap(command.id, command.stream, at, self._filter(command))
        return self._follow(now, command)

    def take(self, now: Time, id: int, horizon: int) -> Effects | None:
        """The application has taken everything below ``horizon`` of what the fabric gave; None if a replica feeds it.

        A tap that the fabric can continue no more follows a replica from there on.
        """
        fabric = self.fabric
        if fabric is None or id not in fabric.taps:
            return None
        effects = fabric.take(id, horizon)
        behind = fabric.behind(id)
        if behind is None:
            return effects
        return [*effects, Report("tap_behind"), *self._untap(now, id, behind)]

    def name_streams(self, now: Time) -> list[Effect]:
        """Streams are known now: what was opened by a name that meant nothing yet follows the stream that has it."""
        out: list[Effect] = []
        for id, subscriber in list(self.subscribers.items()):
            definition = self._view.find(subscriber.stream)
            if definition is not None and definition.id != subscriber.stream:
                self.opened[id] = replace(self.opened[id], stream=definition.id)
                self._attrs[id] = definition.attrs
                out += subscriber.named(now, definition.id)
        return out

    def learn_streams(self, now: Time, there: Container[StreamId]) -> list[Effect]:
        """What streams the region has. The fabric forgets others; a replica says to their subscribers what is wrong."""
        out: list[Effect] = []
        fabric = self.fabric
        if fabric is None:
            return out
        for stream in [each for each in fabric.gone if each in there]:
            del fabric.gone[stream]  # its region follows it again
        for stream in [each for each in fabric.streams() if each not in there]:
            taps = [(id, tap.next) for id, tap in fabric.taps.items() if tap.stream == stream]
            out.extend([effect for id, at in taps for effect in self._untap(now, id, at)])
            fabric.forget(stream)
        return out

    def refilter(self, now: Time, id: int, where: str) -> list[Effect]:
        """What comes from now on is to pass another filter."""
        if id not in self.opened:
            return []
        self.opened[id] = replace(self.opened[id], where=where)
        fabric = self.fabric
        if fabric is None or id not in fabric.taps:
            return self.handle(now, id, Refilter(where))
        return [Deliver(Refiltered(id, where, fabric.retap(id, self._filter(self.opened[id]))))]

    def learn_edges(self, now: Time) -> list[Effect]:
        """The region has other edges: tell the subscriptions that these may feed."""
        edges = Edges(self._view.edges)
        ids = [id for id in self.subscribers if _may_use_edges(self.opened[id])]
        return [effect for id in ids for effect in self.handle(now, id, edges)]

    def _untap(self, now: Time, id: int, at: int) -> Effects:
        """Follow a replica instead of the fabric."""
        assert self.fabric is not None
        self.fabric.close(id)
        return self._follow(now, replace(self.opened[id], lo=at))

    def close(self, id: int) -> Effects:
        """A subscription is over."""
        self.opened.pop(id, None)
        self._attrs.pop(id, None)
        if self.fabric is not None:
            self.fabric.close(id)
        subscriber = self.subscribers.pop(id, None)
        return subscriber.close() if subscriber is not None else NOTHING

    def handle(self, now: Time, id: int, input: Input) -> list[Effect]:
        """Give an input to a subscription that a replica feeds."""
        subscriber = self.subscribers.get(id)
        if subscriber is None:
            return []
        out = _ticking(id, subscriber.handle(now, input))
        heard = type(input) is Received and isinstance(input.message, Feed | FeedBeat)
        if heard and subscriber.horizon is not None:
            assert isinstance(input, Received) and isinstance(input.message, Feed | FeedBeat)
            out.append(Deliver(Heard(id, subscriber.horizon, input.message.horizon)))
            out.extend(self._tapped(id, subscriber))
        if subscriber.over:
            self.subscribers.pop(id, None)
        return out

    def _filter(self, open: Open) -> Filter | None:
        return parse(open.where, parse_attributes(self._attrs.get(open.id, ""))) if open.where else None

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
        view = self._view
        args = (open.id, open.stream, open.lo, open.where, open.name)
        definition = view.find(open.stream) if open.asof else None
        owner = view.memberships.get(definition.region) if definition is not None else None
        bounds = (open.holder, open.hi, open.asof, owner)
        subscriber = Subscriber(*args, view.memberships[view.home], self._settings, *bounds)
        subscriber.turn = view.offset + open.id if open.replica is None else open.replica
        self.subscribers[open.id] = subscriber
        if view.edges and _may_use_edges(open):
            subscriber.edges, subscriber.turn = view.edges, 0
        return _ticking(open.id, subscriber.start(now))


def _may_use_edges(open: Open) -> bool:
    return not open.hi and not open.asof and not is_internal(open.stream)


def _ticking(id: int, effects: Effects) -> list[Effect]:
    out: list[Effect] = []
    for effect in effects:
        if type(effect) is SetTimer:
            out.append(SetTimer(effect.delay, SubscriberTick(id, effect.timer)))
        else:
            out.append(effect)
    return out
