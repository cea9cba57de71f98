"""Simulated worlds in which clients merge streams, and the judge of what they get.

What must come is known exactly: the rows that the owners have in the end, sorted by tick, above the tick with which a
merge began and at or below the last one that it tells.
"""

from __future__ import annotations

import random
from typing import Any, TypeAlias

from msgspec.structs import replace

from tidings.client.commands import Processed, Taken
from tidings.client.machine import ClientMachine, MachineSettings
from tidings.core.hybrid_clock import tick_time
from tidings.core.ids import FIRST, NodeId, RegionId, StreamId
from tidings.core.rows import ArrowRows
from tidings.core.span import Span
from tidings.protocols.brokers.merging import Begun, Merged, OpenMerge, Stalled
from tidings.protocols.brokers.messages import EARLIEST, SubscriptionSettings
from tidings.protocols.brokers.subscriber import Ended, Saved
from tidings.protocols.kernel import Deliver, Effect, Effects, Expired, Input, SetTimer, Time, Timer
from tidings.protocols.replication.chain import ChainSettings
from tidings.protocols.services.catalog import Description
from tidings.protocols.services.promises import PromiseSettings
from tidings.sim import scenario as plans
from tidings.sim.build import Deployment
from tidings.sim.scenario import Scenario

Row: TypeAlias = tuple[int, StreamId, int]
"""Tick, stream, number."""

SMALL = SubscriptionSettings(window=8, chunk_rows=16, apart=4)
"""So small that a few seconds of events come up against it."""


FEWER = PromiseSettings(period=0.05)
"""A world takes fewer steps."""


def rows_of(span: Span) -> list[Row]:
    """The rows of a span, each with the tick of its batch."""
    if not isinstance(span.rows, ArrowRows):
        return []
    ticks = {}
    for origin in span.rows.origins:
        ticks |= dict.fromkeys(range(origin.lo, origin.hi), origin.tick)
    return [(ticks[number], span.stream, number) for number in span.rows.numbers.tolist()]


class Step(Timer, frozen=True, gc=False):
    """The application takes something."""


class MergeClient:
    """An application that merges streams: it keeps every row in the order it came.

    ``lazy``: seconds between two looks at what has come; 0: it takes everything at once.
    """

    def __init__(self, machine: ClientMachine, open: OpenMerge, at: Time, lazy: Time = 0.0) -> None:
        self.machine = machine
        self.open = open
        self.at = at
        self.lazy = lazy
        self.opened = False
        self.begun: int | None = None
        self.begun_at: Time = 0.0
        self.rows: list[Row] = []
        self.lost: list[tuple[StreamId, int, int]] = []
        self.spans: list[Span] = []
        self.tick = 0
        self.late: list[tuple[Time, Time]] = []  # when something came, and how long after its tick
        self.untaken: list[int] = []
        self.saved = 0
        self.ended: Ended | None = None
        self.stalled: Stalled | None = None

    def start(self, now: Time) -> Effects:
        return [*self.machine.start(now), SetTimer(self.lazy or 0.1, Step())]

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is Expired and type(input.timer) is Step:
            return [*self._begin(now), *self._take(now), SetTimer(self.lazy or 0.1, Step())]
        out = self._do(now, input)
        return [*out, *([] if self.lazy else self._take(now))]

    def check(self) -> None:
        self.machine.check()

    def _begin(self, now: Time) -> list[Effect]:
        if self.opened or now < self.at or not self.machine.home:
            return []
        self.opened = True
        return self._do(now, self.open)

    def _do(self, now: Time, input: Input) -> list[Effect]:
        out = list(self.machine.handle(now, input))
        for effect in out:
            if type(effect) is Deliver:
                self._note(now, effect.item)
        return out

    def _take(self, now: Time) -> list[Effect]:
        out: list[Effect] = []
        untaken, self.untaken = self.untaken, []
        for tick in untaken:
            out += self._do(now, Taken(self.open.id, tick))
            if self.open.name is not None:
                out += self._do(now, Processed(self.open.id, tick))
        return out

    def _note(self, now: Time, item: object) -> None:
        match item:
            case Begun(tick=tick):
                assert self.begun is None
                self.begun, self.begun_at, self.tick = tick, now, tick
            case Merged(tick=tick):
                assert self.begun is not None and tick > self.tick
                rows = in_order(item)
                self.rows += rows
                self.late += [(now, now - tick_time(row[0])) for row in rows[:1]]
                self.spans += [span for _, span in item.spans]
                self.lost += [(span.stream, *each) for _, span in item.spans for each in span.lost]
                self.tick = tick
                self.untaken.append(tick)
            case Saved(horizon=horizon):
                self.saved = horizon
            case Ended():
                self.ended = item
            case Stalled():
                self.stalled = item
            case Description():
                pass


def in_order(item: Merged) -> list[Row]:
    """The rows of what was delivered, in the order it names."""
    out: list[Row] = []
    for index, start, end in item.order:
        out += rows_of(item.spans[index][1])[start:end]
    assert len(out) == sum([span.rows.count for _, span in item.spans]), "every row once"
    return out


class World:
    """Regions "a", "b", "c", each with a stream named "s-" and its own name, publishers and merges."""

    def __init__(
        self,
        seed: int,
        *,
        rate: float = 30.0,
        stop: float = 12.0,
        regions: str = "abc",
        gc: str = "none",
        replicas: int = 3,
        quiet: str = "",
        batch: int = 1,
        promises: PromiseSettings = FEWER,
        window: int = 64,
        **settings: Any,
    ) -> None:
        self.rng = random.Random(f"merge/{seed}")
        links = [(a, b) for at, a in enumerate(regions) for b in regions[at + 1 :]]
        self.deployment = Deployment(
            Scenario(
                scenario=plans.Run(name="merge", seconds=20.0, seed=seed, heal_after=stop),
                regions=tuple([plans.RegionTable(name, replicas=replicas, clients=0) for name in regions]),
                links=tuple([plans.LinkTable(a, b, self.rng.uniform(0.01, 0.06)) for a, b in links]),
                streams=tuple([plans.Stream(f"s-{name}", name, gc=gc) for name in regions]),
                publishers=tuple(
                    [
                        plans.PublisherTable(
                            name=f"w-{name}",
                            region=name,
                            stream=f"s-{name}",
                            rate=rate * self.rng.choice([0.2, 1.0, 3.0]),
                            batch=batch,
                            keys=5 if "by-key" in gc else 0,
                            start=0.5,
                            stop=stop,
                        )
                        for name in regions
                        if name not in quiet
                    ]
                ),
                disk=plans.DiskTable(sync=0.0005, spread=0.002),
            ),
            seed,
            trace=False,
            chain=ChainSettings(window=window),
        )
        self.deployment.settings = replace(self.deployment.settings, promises=promises, **settings)
        self.world = self.deployment.world
        self.clients: dict[NodeId, MergeClient] = {}
        self.merges = 0

    def merge(
        self,
        region: RegionId,
        streams: str,
        *,
        at: Time = 1.0,
        lo: int = EARLIEST,
        lazy: Time = 0.0,
        feeds: SubscriptionSettings = SMALL,
        **how: Any,
    ) -> NodeId:
        """A client in a region merges the streams of the regions named."""
        node = f"{region}/m{self.merges}"
        self.merges += 1
        parts = tuple([(2 + at, f"s-{owner}", owner) for at, owner in enumerate(streams)])
        promises = tuple([(20 + at, owner) for at, owner in enumerate(streams)])
        open = OpenMerge(1, parts, promises, lo, **how)
        seeds = self.deployment.memberships[region].replicas

        def client(durable: list[Any], incarnation: int, rng: random.Random) -> MergeClient:
            settings = MachineSettings(subscriptions=feeds, refresh=2.0)
            made = MergeClient(ClientMachine(node, node, seeds, settings, rng), open, at, lazy)
            self.clients[node] = made
            return made

        self.deployment.add(node, region, client)
        return node

    def at(self, time: Time, *faults: Any) -> None:
        """Let scripted faults happen."""
        for fault in faults:
            self.world.at(time, lambda fault=fault: self.deployment.strike(fault))  # type: ignore[misc]

    def run(self, until: Time) -> World:
        if not self.world.hosts[next(iter(self.world.hosts))].incarnation:
            self.world.start()
        self.world.run(until)
        assert not self.world.failures, self.world.failures[0].traceback
        return self

    def head(self, region: RegionId) -> Any:
        """The machine of a region's head."""
        return self.deployment.proxy(self.deployment.membership(region).head)

    def published(self, streams: str) -> list[Row]:
        """All rows of the streams of some regions, as their owners have them, in the order of their ticks."""
        found: list[Row] = []
        for region in streams:
            history = self.head(region).log.histories[f"s-{region}"]
            found += [row for span in history.know(FIRST, history.horizon) for row in rows_of(span)]
        return sorted(found)

    def faults_of(self, node: NodeId, streams: str, until: int | None = None) -> list[str]:
        """What is wrong with what a merge has delivered."""
        client = self.clients[node]
        wrong: list[str] = []
        if client.ended or client.stalled or client.begun is None:
            return [f"{node}: {client.ended or client.stalled or 'never begun'}"]
        published = self.published(streams)
        if published and client.tick < published[-1][0]:
            wrong.append(f"{node}: reached {client.tick} of {published[-1]}")
        if client.rows != sorted(client.rows):
            wrong.append(f"{node}: not in order")
        expected = [row for row in published if client.begun < row[0] <= client.tick]
        if client.rows != expected:
            odd = sorted(set(expected) ^ set(client.rows))
            wrong.append(f"{node}: {len(client.rows)} rows instead of {len(expected)}: {odd[:5]}")
        return wrong
