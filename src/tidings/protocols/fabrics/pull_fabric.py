"""The fabric `pull` (Sprinkler 3.2): gossip views (views.py) and pull dissemination (pull.py) at both ends."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tidings.core.history import History
from tidings.core.ids import NodeId, StreamId
from tidings.core.span import Span
from tidings.protocols.fabrics.family import Family, Place, register
from tidings.protocols.fabrics.pull import EXPIRE, RECEIVE, Probe, PullMember, PullSettings, PullSource, ShuffleTick
from tidings.protocols.fabrics.views import GossipTick, View, Views, ViewsSettings
from tidings.protocols.kernel import NOTHING, Deliver, Effects, Expired, Input, Received, Time
from tidings.protocols.messages import Offer, Want
from tidings.protocols.replication.chain_config import ChainConfig

Duration = Annotated[float, Meta(gt=0)]
Seconds = Annotated[float, Meta(ge=0)]
Some = Annotated[int, Meta(ge=1)]

VIEWS = frozenset({View, GossipTick})


class PullOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[fabric]`` of kind pull: Sprinkler's constants. Defaults are the paper's where it gives one, else measured."""

    view: Some = ViewsSettings().size  # A1.25: V
    gossip: Duration = ViewsSettings().period  # ours, because 0.1-1 s all work
    merge: Literal["swap", "paper"] = ViewsSettings().rule  # A1.26 is "paper"; "swap" keeps the in-degrees even
    fanout: Some = PullSettings().fanout  # A1.35, SP3: F
    shuffle: Duration = PullSettings().shuffle  # A1.35, SP4: the shuffle time
    proxy_fanout: Some = PullSettings().proxy_fanout  # a setting of its own: the proxy's uplink is the bottleneck
    proxy_shuffle: Duration = PullSettings().proxy_shuffle
    fallback: Duration = PullSettings().fallback  # A1.34: ask the proxy for what a peer has not sent in this time
    probe: Seconds = PullSettings().probe  # a client that has heard no news for so long asks a neighbour; 0: never
    recv_rows: Some = PullSettings().recv_rows  # A1.33: bound of Recv
    reply_rows: Some = PullSettings().reply_rows  # in one answer

    @property
    def views(self) -> ViewsSettings:
        """As views take them."""
        return ViewsSettings(size=self.view, period=self.gossip, rule=self.merge)

    @property
    def pull(self) -> PullSettings:
        """As pull takes them."""
        return PullSettings(
            fanout=self.fanout,
            shuffle=self.shuffle,
            proxy_fanout=self.proxy_fanout,
            proxy_shuffle=self.proxy_shuffle,
            fallback=self.fallback,
            probe=self.probe,
            recv_rows=self.recv_rows,
            held_rows=self.recv_rows,
            reply_rows=self.reply_rows,
        )


class PullFabricSource:
    """A replica as a member of its region's gossip."""

    handles: frozenset[type] = VIEWS | {Want, Probe, ShuffleTick}

    def __init__(
        self, place: Place, options: PullOptions, histories: Mapping[StreamId, History], rng: random.Random
    ) -> None:
        self.views = Views(place.me, place.region, options.views, rng, place.config, replica=True)
        self.pull = PullSource(place.me, options.pull, self.views, rng, histories)

    def start(self, now: Time) -> Effects:
        return [*self.views.start(now), *self.pull.start(now)]

    def handle(self, now: Time, input: Input) -> Effects:
        """React to gossip; a replica has its chain's configuration from the chain alone."""
        kind = type(input.message) if type(input) is Received else type(input.timer) if type(input) is Expired else None
        if kind in VIEWS:
            return [effect for effect in self.views.handle(now, input) if type(effect) is not Deliver]
        return self.pull.handle(now, input)

    def check(self) -> None:
        self.views.check()
        self.pull.check()

    def reconfigured(self, now: Time, config: ChainConfig) -> Effects:
        self.views.learn(config)
        return NOTHING

    def committed(self, now: Time, stream: StreamId) -> Effects:
        return self.pull.advance(now, stream)

    def forget(self, stream: StreamId) -> None:
        self.pull.forget(stream)

    def introduce(self, others: Sequence[NodeId], rng: random.Random) -> None:
        _introduce(self.views, others, rng)


class PullFabricMember:
    """A client as a member of its region's gossip."""

    __slots__ = ("pull", "streams", "views")
    handles: frozenset[type] = frozenset({*VIEWS, *RECEIVE, *EXPIRE})

    def __init__(
        self, place: Place, options: PullOptions, horizons: Mapping[StreamId, int], rng: random.Random
    ) -> None:
        self.views = Views(place.me, place.region, options.views, rng, place.config)
        self.pull = PullMember(place.me, options.pull, self.views, rng, horizons)
        self.streams = self.pull.streams  # a look-up less for each offer

    def start(self, now: Time) -> Effects:
        return [*self.views.start(now), *self.pull.start(now)]

    def handle(self, now: Time, input: Input) -> Effects:
        kind: type | None = None
        if type(input) is Received:
            message = input.message
            kind = type(message)
            if type(message) is Offer:  # most of all inputs, and most of them are no news: that path comes first
                state = self.streams.get(message.stream)
                if state is not None and message.horizon <= state.next:
                    return NOTHING
        elif type(input) is Expired:
            kind = type(input.timer)
        return self.views.handle(now, input) if kind in VIEWS else self.pull.handle(now, input)

    def check(self) -> None:
        self.views.check()
        self.pull.check()

    @property
    def config(self) -> ChainConfig:
        return self.views.membership

    @property
    def horizons(self) -> dict[StreamId, int]:
        return self.pull.horizons

    def learn(self, now: Time, config: ChainConfig) -> Effects:
        self.views.learn(config)
        return NOTHING

    def forget(self, stream: StreamId) -> None:
        self.streams.pop(stream, None)

    def horizon(self, stream: StreamId) -> int | None:
        state = self.streams.get(stream)
        return None if state is None else state.horizon

    def expected(self, stream: StreamId) -> int:
        return self.streams[stream].next

    def covers(self, stream: StreamId, at: int) -> bool:
        state = self.streams.get(stream)
        if state is None or at > state.horizon:
            return False
        return at == state.horizon or (len(state.recv.spans) > 0 and state.recv.spans[0].lo <= at)

    def read(self, stream: StreamId, lo: int, hi: int, limit: int) -> Span:
        return self.streams[stream].recv.overlap(lo, hi, limit)[0]

    def introduce(self, others: Sequence[NodeId], rng: random.Random) -> None:
        _introduce(self.views, others, rng)

    def gauges(self) -> Iterable[tuple[str, float, float]]:
        settings = self.pull.settings
        for stream, state in self.streams.items():
            yield f"recv_rows:{stream}", state.recv.rows, settings.recv_rows
            yield f"held_rows:{stream}", state.held_rows, settings.held_rows
        yield "view", len(self.views.view), self.views.settings.size


def _introduce(views: Views, others: Sequence[NodeId], rng: random.Random) -> None:
    """Fill a view at random."""
    views.bootstrap(rng.sample(others, min(len(others), views.settings.size)))


def fit(options: Mapping[str, Any], rows: int) -> Mapping[str, Any]:
    """The bound of Recv (A1.33) for a load, unless the scenario sets it."""
    return options if "recv_rows" in options else {**options, "recv_rows": max(1024, rows)}


PULL = register(Family("pull", PullOptions, PullFabricSource, PullFabricMember, fit=fit))
"""It has no campaign of its own: the target `sprinkler` is about all of Sprinkler."""
