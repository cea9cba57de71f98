"""Flooding: a toy fabric, the example of docs/guide/families.md. Nothing below src/ knows it.

The tail sends every committed span to all members that have greeted it. A member delivers what continues its horizon,
and passes on what it did not have to ``fanout`` others; what it had is dropped, so that a flood ends. Messages may be
lost: once per ``period`` a member greets a replica, hears how far every stream has come, and asks for what it lacks.
"""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from tidings.check import Trace, Violation
from tidings.core.history import History
from tidings.core.ids import FIRST, NodeId, StreamId, is_internal
from tidings.core.ranges import Ranges
from tidings.core.span import Span, within
from tidings.protocols.fabrics.family import Family, Place, register
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
)
from tidings.protocols.messages import Know, Offer, Want
from tidings.protocols.replication.chain_config import ChainConfig

SILENT = 3  # greetings without an answer after which another replica is greeted


class FloodingOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[fabric]`` of kind flooding."""

    fanout: Annotated[int, Meta(ge=1)] = 3
    period: Annotated[float, Meta(gt=0)] = 0.2
    kept_rows: Annotated[int, Meta(ge=1)] = 10_000  # delivered ones that a subscription can still be given


class Greet(Message, frozen=True, gc=False):
    """To a replica: answered with `Company`, and with an `Offer` of each stream."""

    from_clients: ClassVar[bool] = True


class Company(Message, frozen=True, gc=False):
    """Who forms the chain, and members to flood."""

    config: ChainConfig
    members: tuple[NodeId, ...]


class Flood(Message, frozen=True, gc=False):
    """A committed span: the receiver passes on what it did not have."""

    from_clients: ClassVar[bool] = True

    span: Span

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 64 + self.span.wire_size


class GreetTick(Timer, frozen=True, gc=False):
    """Time to greet a replica again."""


class FloodingSource:
    """At a replica."""

    handles: frozenset[type] = frozenset({Greet, Want})

    def __init__(
        self, place: Place, options: FloodingOptions, histories: Mapping[StreamId, History], rng: random.Random
    ) -> None:
        self.me, self.config, self.options, self.histories, self.rng = place.me, place.config, options, histories, rng
        self.greeted: dict[NodeId, Time] = {}
        self.flooded = {stream: history.horizon for stream, history in histories.items()}

    def start(self, now: Time) -> Effects:
        return NOTHING

    def handle(self, now: Time, input: Input) -> Effects:
        assert isinstance(input, Received)
        if isinstance(want := input.message, Want):
            history = self.histories.get(want.stream)
            if history is None or is_internal(want.stream) or not FIRST <= want.lo < want.hi:
                return [Report("bad_message")]
            known = history.know(want.lo, want.hi, limit_rows=1000)
            return [Send(input.src, Know(want.stream, tuple(within(known)), history.horizon))]
        self.greeted[input.src] = now
        here = [node for node, at in self.greeted.items() if node != input.src and at > now - 10 * self.options.period]
        some = self.rng.sample(here, min(self.options.fanout, len(here)))
        ends = {name: history.horizon for name, history in self.histories.items() if not is_internal(name)}
        offers = [Send(input.src, Offer(name, end)) for name, end in ends.items() if end > FIRST]
        return [Send(input.src, Company(self.config, tuple(some))), *offers]

    def check(self) -> None:
        for stream, end in self.flooded.items():
            assert stream not in self.histories or end <= self.histories[stream].horizon

    def reconfigured(self, now: Time, config: ChainConfig) -> Effects:
        self.config = config
        return NOTHING

    def committed(self, now: Time, stream: StreamId) -> Effects:
        lo, history = self.flooded.get(stream, FIRST), self.histories[stream]
        self.flooded[stream] = history.horizon
        if self.me != self.config.tail or not self.greeted or lo >= history.horizon:
            return NOTHING
        spans = within(history.know(lo, history.horizon, limit_rows=1000))
        return [SendAll(tuple(self.greeted), Flood(span)) for span in spans]

    def forget(self, stream: StreamId) -> None:
        self.flooded.pop(stream, None)

    def introduce(self, others: Sequence[NodeId], rng: random.Random) -> None:
        self.greeted.update(dict.fromkeys(others, 0.0))


class FloodingStream:
    """What a member has of a stream."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.next = horizon  # the first number that nobody has told of
        self.known = Ranges([(FIRST, horizon)] if horizon > FIRST else ())
        self.ahead: list[Span] = []  # known beyond the horizon, ascending
        self.kept: list[Span] = []  # the last that were delivered
        self.passed_on = 0  # numbers, counted for every receiver


class FloodingMember:
    """At a client."""

    handles: frozenset[type] = frozenset({Company, Flood, Offer, Know, GreetTick})

    def __init__(
        self, place: Place, options: FloodingOptions, horizons: Mapping[StreamId, int], rng: random.Random
    ) -> None:
        self.config, self.options, self.rng = place.config, options, rng
        self.streams = {name: FloodingStream(horizon) for name, horizon in horizons.items()}
        self.company: tuple[NodeId, ...] = ()
        self.silent = 0

    def start(self, now: Time) -> Effects:
        return self._greet()

    def handle(self, now: Time, input: Input) -> Effects:
        if isinstance(input, Expired):
            return [*self._greet(), *[want for name in self.streams for want in self._want(name)]]
        assert isinstance(input, Received)
        match input.message:
            case Company(config, members):
                self.company, self.silent = members, 0
                newer = config.epoch > self.config.epoch
                return [*self.learn(now, config), *([Deliver(config)] if newer else [])]
            case Offer(name, horizon):
                self._stream(name).next = max(self._stream(name).next, horizon)
            case Flood(span):
                fresh = self._take(span)
                return [*self._pass_on(input.src, fresh), *self._deliver(span.stream)]
            case Know(name, spans, horizon):
                fresh = [part for span in spans for part in self._take(span)]
                self._stream(name).next = max(self._stream(name).next, horizon)
                return [*self._deliver(name), *(self._want(name) if fresh else [])]
        return NOTHING

    def _stream(self, name: StreamId) -> FloodingStream:
        return self.streams.setdefault(name, FloodingStream(FIRST))

    def _greet(self) -> list[Effect]:
        to = self.config.tail if self.silent < SILENT else self.rng.choice(self.config.replicas)
        self.silent += 1
        return [Send(to, Greet()), SetTimer(self.options.period, GreetTick())]

    def _want(self, name: StreamId) -> list[Effect]:
        """Fall back to a replica for the first gap."""
        state = self.streams[name]
        end = state.ahead[0].lo if state.ahead else state.next
        to = self.config.tail if self.silent < SILENT else self.rng.choice(self.config.replicas)
        return [Send(to, Want(name, state.horizon, end)), Report("flood_lacks")] if state.horizon < end else []

    def _take(self, span: Span) -> list[Span]:
        """Keep the parts of a span that are news."""
        state = self._stream(span.stream)
        fresh = [span.slice(lo, hi) for lo, hi in state.known.gaps(span.lo, span.hi)]
        for part in fresh:
            state.known.add(part.lo, part.hi)
            insort(state.ahead, part, key=lambda each: each.lo)
        state.next = max(state.next, span.hi)
        return fresh

    def _pass_on(self, src: NodeId, fresh: Sequence[Span]) -> list[Effect]:
        to = tuple(node for node in self.company if node != src)
        for part in fresh:
            self.streams[part.stream].passed_on += (part.hi - part.lo) * len(to)
        return [SendAll(to, Flood(part)) for part in fresh if to]

    def _deliver(self, name: StreamId) -> list[Effect]:
        state, out = self._stream(name), []
        while state.ahead and state.ahead[0].lo == state.horizon:
            span = state.ahead.pop(0)
            state.horizon = span.hi
            state.kept.append(span)
            out.append(Deliver(span))
        while sum([span.rows.count for span in state.kept]) > self.options.kept_rows:
            del state.kept[0]
        return out

    def check(self) -> None:
        for state in self.streams.values():
            assert all([span.lo > state.horizon for span in state.ahead]), "what continues the horizon is delivered"

    @property
    def horizons(self) -> dict[StreamId, int]:
        return {name: state.horizon for name, state in self.streams.items()}

    def learn(self, now: Time, config: ChainConfig) -> Effects:
        if config.epoch > self.config.epoch:
            self.config = config
        return NOTHING

    def horizon(self, stream: StreamId) -> int | None:
        return self.streams[stream].horizon if stream in self.streams else None

    def expected(self, stream: StreamId) -> int:
        return self.streams[stream].next

    def covers(self, stream: StreamId, at: int) -> bool:
        state = self.streams.get(stream)
        return state is not None and (at == state.horizon or any([span.lo <= at < span.hi for span in state.kept]))

    def read(self, stream: StreamId, lo: int, hi: int, limit: int) -> Span:
        (span,) = [span for span in self.streams[stream].kept if span.lo <= lo < span.hi]
        return span.slice(lo, min(hi, span.hi))

    def forget(self, stream: StreamId) -> None:
        self.streams.pop(stream, None)

    def introduce(self, others: Sequence[NodeId], rng: random.Random) -> None:
        self.company = tuple(rng.sample(others, min(self.options.fanout, len(others))))

    def gauges(self) -> Iterable[tuple[str, float, float]]:
        for name, state in self.streams.items():
            most = self.options.fanout * sum([hi - lo for lo, hi in state.known])
            yield f"passed_on:{name}", state.passed_on, float("inf")  # `floods_end` judges it
            yield f"may_pass_on:{name}", most, float("inf")


def floods_end(trace: Trace) -> list[Violation]:
    """A member passes on each number at most once to each of its company: else a flood would never end."""
    most: dict[tuple[Any, ...], float] = {}
    found = []
    for row in trace.gauge.sort_by("name").to_pylist():  # "may_pass_on" comes before "passed_on"
        kind, _, stream = row["name"].partition(":")
        place = (row["node"], stream, row["time"])
        if kind == "may_pass_on":
            most[place] = row["value"]
        elif kind == "passed_on" and row["value"] > most[place]:
            where = {"node": row["node"], "stream": stream, "time": row["time"]}
            found.append(Violation("floods_end", where, f"passed on {row['value']:.0f}, at most {most[place]:.0f}"))
    return found


FLOODING = register(
    Family(
        "flooding",
        FloodingOptions,
        FloodingSource,
        FloodingMember,
        invariants=(floods_end,),
        campaign="families.flooding_campaign",
        experiments=("families.flooding_experiment",),
    )
)
