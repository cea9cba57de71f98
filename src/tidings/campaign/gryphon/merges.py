"""Applications of a Gryphon campaign that merge streams in one order, and the judge of what they get.

Ticks of different streams differ. So two mergers agree on whatever they share if each has its rows sorted by tick, and
each row with the tick that its owner gave it. Of a stream from which nothing was collected nothing may be missing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidings.check.invariants import Violation
from tidings.check.survivors import ints, passing
from tidings.check.tables import Trace
from tidings.client.commands import Taken
from tidings.client.machine import ClientMachine, MachineSettings
from tidings.core.filters import parse, parse_attributes
from tidings.core.hybrid_clock import Tick
from tidings.core.ids import NodeId, RegionId, StreamName
from tidings.core.rows import ArrowRows
from tidings.protocols.brokers.merging import Begun, Merged, OpenMerge, Stalled
from tidings.protocols.brokers.subscriber import Ended
from tidings.protocols.kernel import Deliver, Effect, Effects, Expired, Input, SetTimer, Time, Timer

Sequenced: TypeAlias = tuple[Tick, StreamName, int]
"""A row: tick, stream, number."""

TICK = 0.1


class MergeWorkTick(Timer, frozen=True, gc=False):
    """The application does what is due."""


@dataclass
class MergePlan:
    """What one application merges: streams with their owners, through a filter."""

    streams: tuple[tuple[StreamName, RegionId], ...]
    where: str
    at: Time  # when it begins
    lo: int
    slow: tuple[Time, Time] = (0.0, 0.0)  # when nothing is taken


class MergingApp:
    """An application that keeps every row in the order in which it came."""

    def __init__(
        self, me: NodeId, seeds: Sequence[NodeId], plan: MergePlan, settings: MachineSettings, rng: random.Random
    ) -> None:
        self.machine = ClientMachine(me, me, seeds, settings, rng)
        self.plan = plan
        self.opened = False
        self.begun: Tick | None = None
        self.tick: Tick = 0
        self.taken: Tick = 0
        self.rows: list[Sequenced] = []
        self.ended: Ended | Stalled | None = None

    def start(self, now: Time) -> Effects:
        return [*self.machine.start(now), SetTimer(TICK, MergeWorkTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is Expired and type(input.timer) is MergeWorkTick:
            return [*self._open(now), *self._take(now), SetTimer(TICK, MergeWorkTick())]
        return [*self._do(now, input), *self._take(now)]

    def check(self) -> None:
        self.machine.check()

    def _open(self, now: Time) -> list[Effect]:
        plan = self.plan
        if self.opened or now < plan.at or not self.machine.home:
            return []
        self.opened = True
        parts = tuple([(10 + at, stream, owner) for at, (stream, owner) in enumerate(plan.streams)])
        regions = tuple([(20 + at, owner) for at, owner in enumerate(sorted({owner for _, owner in plan.streams}))])
        return self._do(now, OpenMerge(1, parts, regions, plan.lo, where=plan.where))

    def _take(self, now: Time) -> list[Effect]:
        begin, end = self.plan.slow
        if self.taken >= self.tick or begin <= now < end:
            return []
        self.taken = self.tick
        return self._do(now, Taken(1, self.taken))

    def _do(self, now: Time, input: Input) -> list[Effect]:
        out = list(self.machine.handle(now, input))
        for effect in out:
            match effect:
                case Deliver(Begun(tick=tick)):
                    self.begun = self.tick = self.taken = tick
                case Deliver(Merged() as item):
                    self.rows += rows_of(item)
                    self.tick = item.tick
                case Deliver(Ended() | Stalled() as item):
                    self.ended = item
        return out


def rows_of(merged: Merged) -> Iterator[Sequenced]:
    """The rows of a delivery, in the order that it names."""
    for index, start, end in merged.order:
        span = merged.spans[index][1]
        if isinstance(span.rows, ArrowRows):
            ticks = {number: origin.tick for origin in span.rows.origins for number in range(origin.lo, origin.hi)}
            yield from [(ticks[each], span.stream, each) for each in span.rows.numbers.tolist()[start:end]]


def judge_merges(apps: Sequence[MergingApp], trace: Trace) -> list[Violation]:
    """What is wrong with what mergers were given."""
    found: list[Violation] = []
    for app in apps:
        wrong = _wrong(app, trace)
        found += [Violation("total_order", {"node": app.machine.me}, each) for each in wrong]
    return found


def _wrong(app: MergingApp, trace: Trace) -> Iterator[str]:
    if app.ended is not None or app.begun is None:
        yield f"ended: {app.ended}" if app.ended else "it has never begun"
        return
    given, begun = set(app.rows), app.begun
    if app.rows != sorted(given):
        yield "its rows do not ascend, or come twice"
    published = trace.published.filter(
        pc.is_in(trace.published["stream"], pa.array([each for each, _ in app.plan.streams]))
    )
    published = published.filter(published["seq"].is_valid())
    ticks, seqs = ints(published, "tick").tolist(), ints(published, "seq").tolist()
    rows = list(zip(ticks, published["stream"].to_pylist(), seqs, strict=True))
    if not given <= set(rows):
        yield f"{min(given - set(rows))} was never committed so"
    if app.tick < max(ticks, default=0):
        yield f"it has come to {app.tick}, and the last tick is {max(ticks)}"
    passes = _passes(app.plan.where, published, trace)
    collecting = {stream for stream, policy in trace.policies.items() if policy != "none"}
    collecting |= set(published.filter(published["before"].is_valid())["stream"].to_pylist())
    owed = {row for row, each in zip(rows, passes, strict=True) if each and row[0] > begun and row[1] not in collecting}
    if not owed <= given:
        yield f"{min(owed - given)} is missing, one of {len(owed - given)}"


def _passes(where: str, published: pa.Table, trace: Trace) -> list[bool]:
    if not where:
        return [True] * published.num_rows
    declared = parse_attributes(next(iter(trace.attributes.values())))
    mask = passing(parse(where, declared), declared)
    return [] if mask is None else mask(published).tolist()
