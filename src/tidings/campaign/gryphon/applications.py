"""The applications of a Gryphon campaign, on the client library: authors that publish, and readers that subscribe.

A reader opens its subscriptions at their times, takes what comes at once or is slow for a while, and may have the
filter of a subscription changed at any moment. It notes what the trace does not tell: a span through another filter
than the one in force, and a subscription that has ended although its stream is there.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidings.client.commands import Ask, Open, Processed, Submit, Taken
from tidings.client.machine import ClientMachine, MachineSettings
from tidings.core.ids import NodeId, StreamName
from tidings.core.rows import Rows, before_rows, data_rows
from tidings.protocols.brokers.subscriber import Ended, Fed, Refiltered
from tidings.protocols.kernel import Deliver, Effect, Effects, Expired, Input, SetTimer, Time, Timer
from tidings.protocols.services.catalog import Define, StreamDef

ATTRS = "n bigint, place string"
"""What every stream declares; both may be null."""
TICK = 0.1
QUEUED = 8  # batches that an author has under way at most: it stops while its chain is away


class ApplicationTick(Timer, frozen=True, gc=False):
    """The application does what is due."""


@dataclass
class Wanting:
    """One subscription of a reader."""

    stream: StreamName
    where: str
    lo: int
    at: Time  # when it is opened
    name: str | None = None  # of a durable one
    slow: tuple[Time, Time] = (0.0, 0.0)  # when nothing is taken


@dataclass
class Opened:
    """How far it has come in this life of its reader."""

    wish: Wanting
    where: str
    horizon: int = 0
    taken: int = 0


class ReadingApp:
    """An application that subscribes."""

    def __init__(
        self,
        me: NodeId,
        seeds: Sequence[NodeId],
        wishes: list[Wanting],
        settings: MachineSettings,
        life: int,
        rng: random.Random,
    ) -> None:
        self.machine = ClientMachine(me, me, seeds, settings, rng)
        self.life = life
        self.left = dict(enumerate(wishes))  # by number; what it has not opened
        self.open: dict[int, Opened] = {}
        self.ended: dict[int, tuple[StreamName, Ended]] = {}
        self.wrong: Counter[str] = Counter()

    def start(self, now: Time) -> Effects:
        return [*self.machine.start(now), SetTimer(TICK, ApplicationTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is Expired and type(input.timer) is ApplicationTick:
            return [*self._work(now), SetTimer(TICK, ApplicationTick())]
        return self._do(now, input)

    def check(self) -> None:
        self.machine.check()

    def id(self, number: int, wish: Wanting) -> int:
        """A subscription that is not durable begins anew in each life."""
        return number if wish.name else number + 100 * self.life

    def horizons(self) -> list[tuple[int, StreamName, int]]:
        """Of each open subscription: its stream, and how far it has come."""
        there = self.machine.subscribers
        return [(id, each.wish.stream, there[id].horizon or 0 if id in there else 0) for id, each in self.open.items()]

    def _do(self, now: Time, input: Input) -> list[Effect]:
        out = list(self.machine.handle(now, input))
        for effect in list(out):
            if type(effect) is Deliver:
                out += self._note(now, effect.item)
        return out

    def _note(self, now: Time, item: object) -> list[Effect]:
        match item:
            case Fed(id, span) if id in self.open:
                mine = self.open[id]
                self.wrong["other_filter"] += span.lens.text != mine.where
                mine.horizon = span.hi
                return self._take(now, id)
            case Refiltered(id, where) if id in self.open:
                self.open[id].where = where
            case Ended(id) if id in self.open:
                self.ended[id] = self.open.pop(id).wish.stream, item
        return []

    def _take(self, now: Time, id: int) -> list[Effect]:
        mine = self.open[id]
        begin, end = mine.wish.slow
        if mine.taken >= mine.horizon or begin <= now < end:
            return []
        mine.taken = mine.horizon
        out = self._do(now, Taken(id, mine.taken))
        return [*out, *(self._do(now, Processed(id, mine.taken)) if mine.wish.name else ())]

    def _work(self, now: Time) -> list[Effect]:
        out: list[Effect] = []
        for number, wish in list(self.left.items()):
            if now >= wish.at and self.machine.home:
                del self.left[number]
                id = self.id(number, wish)
                self.open[id] = Opened(wish, wish.where)
                out += self._do(now, Open(id, wish.stream, wish.lo, wish.where, wish.name, int(now * 1000)))
        for id in list(self.open):
            out += self._take(now, id)
        return out


@dataclass
class Line:
    """What an author publishes to one stream."""

    stream: StreamDef
    period: float  # seconds between two batches
    keys: int  # 0: events without key
    collect: float  # the chance that a batch is followed by "before n"
    stop: Time
    delete: bool  # at the end
    due: Time = 0.0
    sent: int = 0


@dataclass
class WritingApp:
    """An application that publishes. ``attrs``: of each content, the attributes as JSON."""

    me: NodeId
    machine: ClientMachine
    lines: list[Line]
    rng: random.Random
    attrs: dict[int, str] = field(default_factory=dict)
    deleted: set[StreamName] = field(default_factory=set)

    def start(self, now: Time) -> Effects:
        return [*self.machine.start(now), SetTimer(TICK, ApplicationTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is not Expired or type(input.timer) is not ApplicationTick:
            return self.machine.handle(now, input)
        out: list[Effect] = []
        if self.machine.home:
            for line in self.lines:
                out += self._write(now, line)
        return [*out, SetTimer(TICK, ApplicationTick())]

    def check(self) -> None:
        self.machine.check()

    def _write(self, now: Time, line: Line) -> list[Effect]:
        region, stream = line.stream.region, line.stream.name
        if now >= line.stop:
            if not line.delete or stream in self.deleted:
                return []
            self.deleted.add(stream)
            nonce = 1 + len(self.deleted)
            return [*self.machine.handle(now, Ask(nonce, Define(nonce, "delete", line.stream), region, head=True))]
        publisher = self.machine.publishers.get(region)
        if now < line.due or (publisher and len(publisher.inflight) + len(publisher.queue) > QUEUED):
            return []
        line.due = max(now, line.due) + self.rng.expovariate(1.0 / line.period)
        rows = [self._batch(line)]
        if self.rng.random() < line.collect:
            rows.append(before_rows(1, [self.rng.randint(1, max(line.sent, 1))]))
        return [effect for each in rows for effect in self.machine.handle(now, Submit(region, stream, each, 0))]

    def _batch(self, line: Line) -> Rows:
        rng, count = self.rng, self.rng.choice([1, 1, 2, 3])
        payloads: list[bytes | None] = [
            f"{self.me}/{line.stream.name}/{line.sent + at}".encode() for at in range(count)
        ]
        line.sent += count
        keys = [f"k{rng.randrange(line.keys)}".encode() if line.keys and rng.random() < 0.8 else None for _ in payloads]
        numbers = [rng.randrange(30) if rng.random() < 0.8 else None for _ in payloads]
        places = [rng.choice(["here", "there", None]) for _ in payloads]
        columns = {"n": pa.array(numbers, pa.int64()), "place": pa.array(places, pa.string())}
        rows = data_rows(1, keys, payloads, None, columns)
        for content, n, place in zip(rows.content.tolist(), numbers, places, strict=True):
            self.attrs[content] = json.dumps({"n": n, "place": place})
        return rows
