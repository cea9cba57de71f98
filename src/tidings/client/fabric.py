"""A client as a peer of its region's fabric (``peer=True``): it receives every stream by gossip and serves others.

views + pull bring spans in order, once, and keep the latest of them for whoever asks (protocols/client.py). A
subscription is a *tap* on that: it has a position of its own and is given what Recv holds from there on, at most a
window of spans ahead of what the application has taken. A tap whose position Recv no longer (or not yet) holds is
fed by a replica instead, like that of a plain client, until the fabric can continue it: the machine sees to that.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping

from tidings.core.filters import Filter
from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.core.lens import ALL, Lens
from tidings.core.span import Span
from tidings.protocols.client import Client, ClientSettings
from tidings.protocols.kernel import Deliver, Effect, Effects, Input, Received, Report, Time, Value
from tidings.protocols.membership import Membership
from tidings.protocols.messages import Know, Offer
from tidings.protocols.subscriptions import Fed

CHUNK = 16_384  # rows in one of them
WINDOW = 32  # spans beyond what the application has taken; as at a replica (SubscriptionSettings)


class Heard(Value, frozen=True, gc=False):
    """A sign of life of whoever feeds a subscription: it has sent all it has if ``at`` is its ``horizon``."""

    id: int
    at: int
    horizon: int


class Tap:
    """One subscription of a peer."""

    __slots__ = ("ahead", "filter", "id", "lens", "next", "stream")

    def __init__(self, id: int, stream: StreamId, at: int, filter: Filter | None) -> None:
        self.id = id
        self.stream = stream
        self.next = at  # first number not given
        self.filter = filter
        self.lens = Lens(filter.text) if filter is not None else ALL
        self.ahead: deque[int] = deque()  # ends of the spans that the application has not taken


class Fabric:
    """A peer and its taps. ``horizons`` are where its streams continue; later ones begin at their first number."""

    def __init__(
        self,
        me: NodeId,
        region: RegionId,
        membership: Membership,
        horizons: Mapping[StreamId, int],
        settings: ClientSettings,
        rng: random.Random,
    ) -> None:
        self.client = Client(me, region, membership, horizons, settings, rng)
        self.taps: dict[int, Tap] = {}
        self.by_stream: dict[StreamId, dict[int, Tap]] = {}

    def start(self, now: Time) -> Effects:
        return self.client.start(now)

    def learn(self, membership: Membership) -> None:
        """Another configuration of the region's chain."""
        self.client.views.learn(membership)

    def check(self) -> None:
        self.client.check()
        for tap in self.taps.values():
            assert len(tap.ahead) <= 2 * WINDOW, "what the application has not taken is bounded"

    def handle(self, now: Time, input: Input) -> Effects:
        """React to gossip; what the fabric delivers goes to the taps of its stream."""
        out: list[Effect] = []
        moved: dict[StreamId, None] = {}
        for effect in self.client.handle(now, input):
            if type(effect) is Deliver and isinstance(effect.item, Span):
                moved[effect.item.stream] = None
            else:
                out.append(effect)
        for stream in moved:
            for tap in self.by_stream.get(stream, {}).values():
                self._pump(tap, out)
        if type(input) is Received and isinstance(input.message, Offer | Know):
            self._vouch(input.src, input.message, out)
        return out

    # --- taps -------------------------------------------------------------------------------------------

    def latest(self, stream: StreamId) -> int | None:
        """The first number of a stream that has not come; None of a stream nobody has told of."""
        state = self.client.pull.streams.get(stream)
        return None if state is None else state.horizon

    def covers(self, stream: StreamId, at: int) -> bool:
        """Whether the fabric can continue a subscription at this number."""
        state = self.client.pull.streams.get(stream)
        if state is None or at > state.horizon:
            return False
        return at == state.horizon or (len(state.recv.spans) > 0 and state.recv.spans[0].lo <= at)

    def tap(self, id: int, stream: StreamId, at: int, filter: Filter | None, ahead: Iterable[int] = ()) -> Effects:
        """Continue a subscription at a number that is covered; ``ahead`` ends what was not taken before."""
        tap = self.taps[id] = Tap(id, stream, at, filter)
        tap.ahead.extend(ahead)
        self.by_stream.setdefault(stream, {})[id] = tap
        out: list[Effect] = [Deliver(Heard(id, at, self.latest(stream) or at))]
        self._pump(tap, out)
        return out

    def take(self, id: int, horizon: int) -> list[Effect]:
        """The application has taken everything below ``horizon``."""
        tap = self.taps[id]
        while tap.ahead and tap.ahead[0] <= horizon:
            tap.ahead.popleft()
        out: list[Effect] = []
        self._pump(tap, out)
        return out

    def behind(self, id: int) -> int | None:
        """Where a tap stands that the fabric can continue no more; None if it can."""
        tap = self.taps[id]
        return None if len(tap.ahead) >= WINDOW or self.covers(tap.stream, tap.next) else tap.next

    def close(self, id: int) -> None:
        """A subscription is over, or fed by a replica from now on."""
        tap = self.taps.pop(id, None)
        if tap is not None:
            del self.by_stream[tap.stream][id]

    def _pump(self, tap: Tap, out: list[Effect]) -> None:
        state = self.client.pull.streams.get(tap.stream)
        if state is None or not self.covers(tap.stream, tap.next):
            return
        while tap.next < state.horizon and len(tap.ahead) < WINDOW:
            given, *_ = state.recv.overlap(tap.next, state.horizon, CHUNK)
            tap.next = given.hi
            tap.ahead.append(given.hi)
            if tap.filter is not None:
                given = given.filter(tap.lens, tap.filter.mask(given.rows))
            out.append(Deliver(Fed(tap.id, given)))
        if tap.next == state.horizon:
            out.append(Deliver(Heard(tap.id, tap.next, state.next)))

    def _vouch(self, src: NodeId, message: Offer | Know, out: list[Effect]) -> None:
        """What a replica says of a stream tells how fresh its taps are; peers may be as far behind."""
        taps = self.by_stream.get(message.stream)
        if not taps or src not in self.client.views.membership.replicas:
            return
        out.append(Report("peer_vouched"))
        out.extend([Deliver(Heard(tap.id, tap.next, message.horizon)) for tap in taps.values()])
