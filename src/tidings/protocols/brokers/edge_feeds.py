"""The subscriptions of an edge: as at a replica (feeds.py), but fed from what the brokers above have sent.

What comes from above was filtered by the edge's interests, which change as subscriptions come and go, so every span has
a version. A span counts for a subscription if its version includes the subscription's filter (`Position.needs`). What
does not count, or is not kept any more, is fetched through the subscription's own filter from a replica: it *catches
up* until it comes to a number from which on the edge has what counts. So a changed filter is exact from the number at
which it was changed, and a slow subscriber misses nothing.

So many catch up at a time as there is room for; the others wait for their turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from tidings.core.ids import StreamId
from tidings.core.span import Span
from tidings.protocols.brokers.feeds import FeedTick, MakeFilter, Readable, Subscriptions
from tidings.protocols.brokers.live import LiveFeed
from tidings.protocols.brokers.messages import Feed, FeedBeat, SubscriptionSettings, Unfollow, Unfollowed
from tidings.protocols.brokers.positions import Key, Position
from tidings.protocols.brokers.soft_history import SoftHistory
from tidings.protocols.brokers.subscriber import Ended, Fed, FollowTick, Learn, Lost, Subscriber, Take
from tidings.protocols.kernel import (
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
)
from tidings.protocols.replication.chain_config import ChainConfig

AHEAD = 16  # messages of a replica that one who catches up may be behind; ours: a few round trips


class CatchUpTick(Timer, frozen=True, gc=False):
    """The timer of one that catches up."""

    id: int


class CatchingUp:
    """One subscription that is fed from a replica through its own filter."""

    __slots__ = ("come", "subscriber")

    def __init__(self, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self.come: deque[Span] = deque()  # what has come and was not passed on


class EdgeSubscriptions(Subscriptions):
    """One edge's subscribers. ``needs`` tells which version of the interests includes a subscription's filter."""

    handles = Subscriptions.handles | frozenset({CatchUpTick, Feed, FeedBeat, Unfollowed})

    def __init__(
        self,
        histories: Mapping[StreamId, SoftHistory],
        make_filter: MakeFilter,
        settings: SubscriptionSettings,
        catching_up: int,
        needs: Callable[[StreamId, str], int],
        connected: Callable[[], bool],
    ) -> None:
        super().__init__(histories, make_filter, settings)
        self.soft = histories
        self.room = catching_up
        self.needs = needs
        self.connected = connected
        self.chain: ChainConfig | None = None  # the region's; nobody catches up before it is known
        self.catching: dict[int, CatchingUp] = {}
        self.ids: dict[Key, int] = {}  # of those who catch up
        self.queue: dict[Key, Position] = {}  # who waits for a turn
        self.later: list[Effect] = []  # what catching up has to say
        self.now: Time = 0.0
        self._last = 0

    # --- inputs -------------------------------------------------------------------------------------------

    def handle(self, now: Time, input: Input) -> Effects:
        self.now = now
        effects: list[Effect]
        match input:
            case Received(src, Feed(id=id)) if id not in self.catching:
                effects = [Send(src, Unfollow(id))]
            case Received(_, (Feed(id=id) | Unfollowed(id=id))):
                effects = self._catch(id, input)
            case Received(src, FeedBeat() as beat):
                effects = [each for feed in beat.singly() for each in self._catch(feed.id, Received(src, feed))]
            case Expired(CatchUpTick(id)):
                effects = self._catch(id, Expired(FollowTick()))
            case Lost():
                effects = [each for id in list(self.catching) for each in self._catch(id, input)]
            case _:
                effects = list(super().handle(now, input))
        return self._flush(effects)

    def came(self, now: Time, stream: StreamId, fresh: Sequence[Span]) -> list[Effect]:
        """A stream has moved on."""
        self.now = now
        return self._flush(self.committed(stream, fresh))

    def learn(self, now: Time, chain: ChainConfig) -> list[Effect]:
        """The configuration of the region's chain."""
        self.now = now
        if self.chain is not None and self.chain.epoch >= chain.epoch:
            return []
        self.chain = chain
        out = [each for id in list(self.catching) for each in self._catch(id, Learn(chain))]
        return self._flush([*out, *self._next_turns()])

    def check(self) -> None:
        super().check()
        assert len(self.catching) <= self.room, "so many catch up as there is room for"
        assert len(self.catching) == len(self.ids)
        assert all([key in self.positions for key in (*self.ids, *self.queue)]), "who has gone does not catch up"

    def _flush(self, effects: list[Effect]) -> list[Effect]:
        """With what catching up has to say meanwhile."""
        if not self.later:
            return effects
        later, self.later = self.later, []
        return [*effects, *later]

    # --- what counts --------------------------------------------------------------------------------------

    def _needs(self, position: Position) -> int:
        return self.needs(position.stream, position.filter.text if position.filter is not None else "")

    def _share(self, live: LiveFeed, spans: Sequence[Span], horizon: int, effects: list[Effect]) -> None:
        """Those for whom this does not count are fed on their own."""
        oldest = self.soft[live.stream].oldest(spans[0].lo)
        behind: list[Position] = []
        if oldest < live.needs:
            behind = [position for position in live.members() if position.needs > oldest]
            for position in behind:
                live.lag(position)
        super()._share(live, spans, horizon, effects)
        for position in behind:
            self._pump(position, effects)

    def _next(self, position: Position, history: Readable) -> list[Span]:
        if position.fixed:
            return super()._next(position, history)
        soft = self.soft[position.stream]
        spans = soft.through(position.next, position.end, self.settings.chunk_rows, position.needs)
        if spans:
            self._stop(position.key)
            return spans
        return self._fetched(position, soft)

    def _pump(self, position: Position, effects: list[Effect]) -> None:
        super()._pump(position, effects)
        if position.live:
            self._stop(position.key)

    def _beat(self) -> Effects:
        """Without connection to a replica it is silent, so that subscribers go elsewhere."""
        if not self.connected():
            return [SetTimer(self.settings.beat, FeedTick())]
        return super()._beat()

    def _drop(self, key: Key) -> None:
        self._stop(key)
        super()._drop(key)

    # --- catching up --------------------------------------------------------------------------------------

    def _fetched(self, position: Position, soft: SoftHistory) -> list[Span]:
        """What a replica has sent of what this subscription wants next, as far as the edge has come."""
        id = self.ids.get(position.key)
        if id is None:
            self.queue[position.key] = position
            self.later += self._next_turns()
            return []
        catch = self.catching[id]
        while catch.come and catch.come[0].hi <= position.next:
            catch.come.popleft()
        if not catch.come or catch.come[0].lo > position.next:
            return []
        span = catch.come[0].slice(position.next, soft.horizon)
        if span.hi == catch.come[0].hi:
            catch.come.popleft()
        self.later += self._carry(id, catch.subscriber.handle(self.now, Take(span.hi)))
        return [Span(span.stream, span.lo, span.hi, span.asof, span.rows, lost=span.lost)]

    def _next_turns(self) -> list[Effect]:
        out: list[Effect] = []
        while self.queue and self.chain is not None and len(self.catching) < self.room:
            key = next(iter(self.queue))
            position = self.queue.pop(key)
            self._last += 1
            where = position.filter.text if position.filter is not None else ""
            settings = replace(self.settings, window=AHEAD)
            args = (self._last, position.stream, position.next, where, None, self.chain, settings, self._last)
            catch = self.catching[self._last] = CatchingUp(Subscriber(*args))
            self.ids[key] = self._last
            out += [Report("catching_up"), *self._carry(self._last, catch.subscriber.start(self.now))]
        return out

    def _stop(self, key: Key) -> None:
        """Somebody does not catch up any more."""
        self.queue.pop(key, None)
        id = self.ids.pop(key, None)
        if id is not None:
            self.later += self._carry(id, self.catching.pop(id).subscriber.close())
            self.later += self._next_turns()

    def _catch(self, id: int, input: Input) -> list[Effect]:
        """One that catches up has heard something."""
        catch = self.catching.get(id)
        if catch is None:
            return []
        return self._carry(id, catch.subscriber.handle(self.now, input))

    def _carry(self, id: int, effects: Effects) -> list[Effect]:
        out: list[Effect] = []
        come = False
        for effect in effects:
            if type(effect) is SetTimer:
                out.append(SetTimer(effect.delay, CatchUpTick(id)))
            elif type(effect) is not Deliver:
                out.append(effect)
            elif isinstance(effect.item, Fed) and id in self.catching:
                self.catching[id].come.append(effect.item.span)
                come = True
            elif isinstance(effect.item, Ended) and id in self.catching:
                out += self._ended(id, effect.item)
        if come and id in self.catching:
            key = next(key for key, each in self.ids.items() if each == id)
            self._pump(self.positions[key], out)
        return out

    def _ended(self, id: int, ended: Ended) -> list[Effect]:
        """A replica refuses: so does the edge."""
        key = next(key for key, each in self.ids.items() if each == id)
        node, number = key
        self._drop(key)
        return [Send(node, Unfollowed(number, ended.reason, floor=ended.floor, gone=ended.gone))]
