"""A client as a peer of its region's fabric (``peer=True``): it receives every stream from peers and serves others.

The fabric (protocols/nodes/client.py) brings spans in order, once, and keeps the latest of them. A subscription is a
*tap*: it has a position of its own and is given what the fabric keeps from there on, at most a window of spans ahead of
what the application has taken. If the fabric does not keep the position of a tap, a replica feeds the subscription, as
for a plain client, until the fabric can continue it (followers.py).
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from tidings.core.filters import Filter
from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.core.lens import ALL, Lens
from tidings.core.span import Span
from tidings.protocols.brokers.subscriber import Fed
from tidings.protocols.credit import CreditWindow
from tidings.protocols.kernel import NOTHING, Deliver, Effect, Effects, Input, Received, Report, Time, Value
from tidings.protocols.messages import Know, Offer
from tidings.protocols.nodes.client import Client, ClientSettings
from tidings.protocols.replication.chain_config import ChainConfig

CHUNK = 16_384  # rows in one of them
GONE = 4096  # forgotten streams that are remembered; ours
WINDOW = 32  # spans beyond what the application has taken; ours: a peer holds them anyway, unlike a replica


class Heard(Value, frozen=True, gc=False):
    """The source of a subscription is alive; it has sent everything it has if ``at`` is its ``horizon``."""

    id: int
    at: int
    horizon: int


class Tap:
    """One subscription of a peer."""

    __slots__ = ("ahead", "filter", "id", "lens", "next", "stream")

    def __init__(self, id: int, stream: StreamId, at: int, filter: Filter | None, ahead: CreditWindow) -> None:
        self.id = id
        self.stream = stream
        self.next = at  # first number not given
        self.filter = filter
        self.lens = Lens(filter.text) if filter is not None else ALL
        self.ahead = ahead  # the spans that the application has not taken


class Fabric:
    """A peer and its taps. ``horizons`` are where its streams continue; later ones begin at their first number."""

    def __init__(
        self,
        me: NodeId,
        region: RegionId,
        membership: ChainConfig,
        horizons: Mapping[StreamId, int],
        settings: ClientSettings,
        rng: random.Random,
    ) -> None:
        self.client = Client(me, region, membership, horizons, settings, rng)
        self.taps: dict[int, Tap] = {}
        self.by_stream: dict[StreamId, dict[int, Tap]] = {}
        self.gone: dict[StreamId, None] = {}  # the newest forgotten streams: peers may still offer them

    def start(self, now: Time) -> Effects:
        return self.client.start(now)

    def learn(self, now: Time, membership: ChainConfig) -> None:
        """Another configuration of the region's chain."""
        self.client.fabric.learn(now, membership)

    def check(self) -> None:
        self.client.check()
        for tap in self.taps.values():
            assert len(tap.ahead) <= 2 * WINDOW, "what the application has not taken is bounded"

    def handle(self, now: Time, input: Input) -> Effects:
        """React to gossip; what the fabric delivers goes to the taps of its stream."""
        if self.gone and self._is_of_the_past(input):
            return NOTHING
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

    def _is_of_the_past(self, input: Input) -> bool:
        """Whether a peer offers a stream that the region has no more; what a replica offers is there again."""
        if type(input) is not Received or type(input.message) is not Offer:
            return False
        return input.message.stream in self.gone and input.src not in self.client.fabric.config.replicas

    # --- taps -------------------------------------------------------------------------------------------

    def latest(self, stream: StreamId) -> int | None:
        """The first number of a stream that has not come; None of a stream nobody has told of."""
        return self.client.fabric.horizon(stream)

    def covers(self, stream: StreamId, at: int) -> bool:
        """Whether the fabric can continue a subscription at this number."""
        return self.client.fabric.covers(stream, at)

    def tap(
        self, id: int, stream: StreamId, at: int, filter: Filter | None, ahead: CreditWindow | None = None
    ) -> Effects:
        """Continue a subscription at a number that is covered; ``ahead``: what was given before and is not taken."""
        tap = self.taps[id] = Tap(id, stream, at, filter, CreditWindow() if ahead is None else ahead)
        self.by_stream.setdefault(stream, {})[id] = tap
        out: list[Effect] = [Deliver(Heard(id, at, self.latest(stream) or at))]
        self._pump(tap, out)
        return out

    def retap(self, id: int, filter: Filter | None) -> int:
        """What a tap gives from now on passes another filter. Returns from which number on that is."""
        tap = self.taps[id]
        tap.filter = filter
        tap.lens = Lens(filter.text) if filter is not None else ALL
        return tap.next

    def take(self, id: int, horizon: int) -> list[Effect]:
        """The application has taken everything below ``horizon``."""
        tap = self.taps[id]
        tap.ahead.release(horizon)
        out: list[Effect] = []
        self._pump(tap, out)
        return out

    def streams(self) -> list[StreamId]:
        """The streams that the fabric has told of."""
        return list(self.client.fabric.horizons)

    def forget(self, stream: StreamId) -> None:
        """The region has no such stream any more."""
        self.client.fabric.forget(stream)
        self.gone[stream] = None
        while len(self.gone) > GONE:
            del self.gone[next(iter(self.gone))]

    def behind(self, id: int) -> int | None:
        """Where a tap stands that the fabric can continue no more; None if it can."""
        tap = self.taps[id]
        return None if len(tap.ahead) >= WINDOW or self.covers(tap.stream, tap.next) else tap.next

    def close(self, id: int) -> None:
        """A subscription is over, or fed by a replica from now on."""
        tap = self.taps.pop(id, None)
        if tap is not None:
            taps = self.by_stream[tap.stream]
            del taps[id]
            if not taps:
                del self.by_stream[tap.stream]

    def _pump(self, tap: Tap, out: list[Effect]) -> None:
        member = self.client.fabric
        horizon = member.horizon(tap.stream)
        if horizon is None or not member.covers(tap.stream, tap.next):
            return
        while tap.next < horizon and len(tap.ahead) < WINDOW:
            given = member.read(tap.stream, tap.next, horizon, CHUNK)
            tap.next = given.hi
            tap.ahead.add(given.hi)
            if tap.filter is not None:
                given = given.filter(tap.lens, tap.filter.mask(given.rows))
            out.append(Deliver(Fed(tap.id, given)))
        if tap.next == horizon:
            out.append(Deliver(Heard(tap.id, tap.next, member.expected(tap.stream))))

    def _vouch(self, src: NodeId, message: Offer | Know, out: list[Effect]) -> None:
        """What a replica says of a stream tells how fresh its taps are; peers may be as far behind."""
        taps = self.by_stream.get(message.stream)
        if not taps or src not in self.client.fabric.config.replicas:
            return
        out.append(Report("peer_vouched"))
        out.extend([Deliver(Heard(tap.id, tap.next, message.horizon)) for tap in taps.values()])
