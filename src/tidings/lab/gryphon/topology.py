"""The network of the Gryphon paper (GR3, figure 3), simulated: ten brokers in eight cells, a subscriber at each edge.

    p1 --- IB1 = {b1, b2} --- s1, s2        p1: the publishing site, here a chain of one replica
     +---- IB2 = {b3, b4} --- s3, s4, s5    b1-b4: relays, s1-s5: edges

Four streams of 25 messages a second of 100 bytes each; every subscriber wants all of them. A message between two nodes
takes 1 ms one way, a sync of p1's disk 0.3 ms, and handling a message 1 us: nothing here is a bottleneck, as in the
paper. The settings of the brokers are the paper's: GCT 200 ms, NRT 600 ms, AET 10 s, no DCT.

A subscriber stays with its edge, as in the paper: it takes silence for the end of an edge after a minute only, and does
not ask p1 again which edges there are. With the defaults it would go to other edges, and to p1 when p1 is back.

`Witness` notes what the claims are about: when each message came to each subscriber, and who asked for what.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import count
from typing import Any
from zlib import crc32

from tidings.client.commands import Open, Submit, Taken
from tidings.client.machine import ClientMachine, MachineSettings
from tidings.core.ids import NodeId, StreamId
from tidings.core.rows import ArrowRows, data_rows
from tidings.protocols.brokers.broker_messages import Brokered, BrokerSettings, Nack
from tidings.protocols.brokers.messages import LATEST, SubscriptionSettings
from tidings.protocols.brokers.subscriber import Fed, Lost
from tidings.protocols.kernel import Deliver, Effects, Expired, Input, Persist, Send, SendAll, SetTimer, Time, Timer
from tidings.protocols.messages import Offer
from tidings.protocols.nodes.edge import EdgeSettings
from tidings.protocols.nodes.relay import RelaySettings
from tidings.sim import scenario as plans
from tidings.sim.brokers import add_cell, add_edge
from tidings.sim.build import Deployment
from tidings.sim.network import SimPath
from tidings.sim.scenario import Scenario

REGION = "g"
HOMES = "homes"  # where subscribers are: what passes between them and brokers is not lost, as over TCP
SITE: NodeId = f"{REGION}/p0"  # p1 of the paper
CELLS = {"IB1": ("b1", "b2"), "IB2": ("b3", "b4")}
EDGES = {"s1": "IB1", "s2": "IB1", "s3": "IB2", "s4": "IB2", "s5": "IB2"}
STREAMS = 4
RATE = 25.0  # messages/s of a stream
EVENT_BYTES = 100
LATENCY = 0.001  # seconds, one way
OPENED = 3.0  # seconds: subscribers come when the site has heard of the edges
QUIET = 3.0  # seconds without load at the end: what is on the way arrives
BEGIN = 1.0  # seconds: publishers come first: who subscribes is told how far each stream has come

STAYING = MachineSettings(subscriptions=SubscriptionSettings(silence=60.0), refresh=600.0, hurry=600.0)

SHOWN = {SITE: "p1"} | {f"{REGION}/{name}": name for name in (*EDGES, *CELLS["IB1"], *CELLS["IB2"])}
NODE = {name: node for node, name in SHOWN.items()}


def carried_by(stream: StreamId, relays: Sequence[NodeId]) -> NodeId:
    """Which broker of a cell gets a stream while all are well (A2.26)."""
    return min(relays, key=lambda node: crc32(f"{stream} {node}".encode()))


def evenly(cells: Sequence[Sequence[NodeId]], ident: Callable[[str], StreamId] = str) -> list[str]:
    """Names for the streams, such that each broker of a cell carries the same number of them, as in the paper."""
    names: list[str] = []
    room = Counter({node: STREAMS // len(cell) for cell in cells for node in cell})
    for at in count(1):
        takes = [carried_by(ident(f"t{at}"), cell) for cell in cells]
        if all([room[node] for node in takes]):
            room.subtract(takes)
            names.append(f"t{at}")
        if len(names) == STREAMS:
            return names
    raise AssertionError("there is always another name")


def client_of(edge: NodeId, edges: Sequence[NodeId], prefix: str) -> str:
    """A name of a client that prefers this edge."""

    def rank(client: str, edge: NodeId) -> bytes:
        return blake2b(f"{edge} {client}".encode(), digest_size=8).digest()

    names = (f"{prefix}{at}" for at in count())
    return next(name for name in names if min(edges, key=partial(rank, name)) == edge)


class LabSubscriber:
    """An application on the client library that wants some streams, and takes everything at once."""

    def __init__(
        self,
        me: NodeId,
        seeds: tuple[NodeId, ...],
        wants: Mapping[StreamId, str],
        rng: random.Random,
        settings: MachineSettings = STAYING,
    ) -> None:
        self.machine = ClientMachine(me, me, seeds, settings, rng)
        self.wants = dict(wants)
        self.opened = False

    def start(self, now: Time) -> Effects:
        return self.machine.start(now)

    def handle(self, now: Time, input: Input) -> Effects:
        out: list[Any] = []
        todo = list(self.machine.handle(now, input))
        if self.machine.home and not self.opened:
            self.opened = True
            for id, (stream, where) in enumerate(self.wants.items()):
                todo += self.machine.handle(now, Open(id, stream, LATEST, where, None, id))
        while todo:
            effect = todo.pop(0)
            out.append(effect)
            if isinstance(effect, Deliver) and isinstance(effect.item, Fed):
                todo += self.machine.handle(now, Taken(effect.item.id, effect.item.span.hi))
        return out

    def check(self) -> None:
        self.machine.check()


class LabPublishTick(Timer, frozen=True, gc=False):
    """Time for the next message."""


class LabPublisher:
    """An application that publishes a message of one stream at a time, from ``start`` until ``stop``.

    With ``keys`` each has one of so many, drawn evenly.
    """

    def __init__(self, me: NodeId, stream: StreamId, start: Time, stop: Time, keys: int, rng: random.Random) -> None:
        self.machine = ClientMachine(me, me, (SITE,), STAYING, rng)
        self.stream = stream
        self.begin = start
        self.stop = stop
        self.keys = keys
        self.rng = rng
        self.sent = 0

    def start(self, now: Time) -> Effects:
        wait = max(self.begin - now, 0.0) + self.rng.random() / RATE
        return [*self.machine.start(now), SetTimer(wait, LabPublishTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is not Expired or type(input.timer) is not LabPublishTick:
            return self.machine.handle(now, input)
        if now >= self.stop:
            return []
        again = SetTimer(1 / RATE, LabPublishTick())
        if not self.machine.home:  # p1 has not answered yet
            return [again]
        self.sent += 1
        keys: list[bytes | None] | None = [b"key-%d" % self.rng.randrange(self.keys)] if self.keys else None
        payload = f"{self.stream}/{self.sent}".encode().ljust(EVENT_BYTES, b".")
        rows = data_rows(1, keys, [payload])
        return [*self.machine.handle(now, Submit(REGION, self.stream, rows, self.sent)), again]

    def check(self) -> None:
        self.machine.check()


class Witness:
    """What came where and when, and who asked for what: an observer of a world."""

    def __init__(self, edge_of: Mapping[NodeId, str]) -> None:
        self.edge_of = edge_of
        self.came: list[tuple[str, StreamId, int, float, float]] = []  # edge, stream, number, published, delivered
        self.spans: list[tuple[str, StreamId, int, int]] = []  # edge, stream, [lo, hi)
        self.nacks: list[tuple[float, str, str, StreamId, int, int]] = []  # when, by whom, to whom, stream, [lo, hi)
        self.expected: list[tuple[float, str, StreamId, int]] = []  # AckExpected: when, by whom, of what, up to where
        self.told: list[tuple[float, str, StreamId]] = []  # knowledge that p1 sends: when, to whom, of what
        self.bytes: Counter[tuple[str, str]] = Counter()  # of knowledge, by who sends and who receives
        self.rows: Counter[tuple[str, str]] = Counter()  # likewise
        self.persisted: Counter[str] = Counter()  # records, by node
        self.reports: Counter[str] = Counter()

    def on_step(self, now: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        me = SHOWN.get(node)
        if me is None:
            return
        self.persisted[me] += sum([type(effect) is Persist for effect in effects])
        for to, message in _sent(effects):
            match message:
                case Nack(stream, lo, hi):
                    self.nacks.append((now, me, SHOWN.get(to, to), stream, lo, hi))
                case Brokered():
                    self.bytes[me, SHOWN.get(to, to)] += message.wire_size
                    self.rows[me, SHOWN.get(to, to)] += message.events
                    if node == SITE:
                        self.told.append((now, SHOWN.get(to, to), message.stream))
                case Offer(stream, horizon) if to in SHOWN:
                    self.expected.append((now, me, stream, horizon))

    def on_deliver(self, now: float, node: NodeId, incarnation: int, item: Any) -> None:
        if node in self.edge_of and isinstance(item, Fed):
            edge, span = self.edge_of[node], item.span
            self.spans.append((edge, span.stream, span.lo, span.hi))
            for number, at in numbered(span.rows):
                self.came.append((edge, span.stream, number, at, now))

    def on_report(self, now: float, node: NodeId, name: str, value: float) -> None:
        self.reports[name] += 1


def _sent(effects: Effects) -> Iterator[tuple[NodeId, Any]]:
    for effect in effects:
        if type(effect) is Send:
            yield effect.to, effect.message
        elif type(effect) is SendAll:
            for to in effect.to:
                yield to, effect.message


def numbered(rows: Any) -> Iterator[tuple[int, float]]:
    """The numbers of rows, and when each was published."""
    if not rows.count:
        return
    assert isinstance(rows, ArrowRows)
    for number in rows.numbers.tolist():
        yield number, next(origin.at for origin in rows.origins if origin.lo <= number < origin.hi)


class PaperNetwork:
    """The paper's network in a world.

    ``wants`` are the filters of each edge's subscriber (default: everything). ``loss`` is the share that is lost of the
    messages among p1, relays and edges, and of those of publishers.
    """

    def __init__(
        self,
        seed: int,
        end: float,
        *,
        settings: BrokerSettings | None = None,
        wants: Callable[[str, StreamId], str] = lambda edge, stream: "",
        stop: float | None = None,
        keys: int = 0,
        staying: bool = True,
        loss: float = 0.0,
    ) -> None:
        self.end = end
        brokers = settings or BrokerSettings()
        cells = [[NODE[name] for name in relays] for relays in CELLS.values()]
        self.streams = evenly(cells)
        plan = Scenario(
            scenario=plans.Run("gryphon", end, heal_after=None),
            regions=(plans.RegionTable(REGION),),
            streams=tuple(plans.Stream(name, REGION, event_bytes=EVENT_BYTES) for name in self.streams),
        )
        self.deployment = Deployment(plan, seed, check=False, trace=False)
        self.world = self.deployment.world
        self.world.connect(REGION, REGION, SimPath(latency=LATENCY, loss=loss))
        self.world.connect(REGION, HOMES, SimPath(latency=LATENCY))
        self.world.observers.clear()  # the recorder keeps far more than is asked here
        edges = [NODE[edge] for edge in EDGES]
        for cell, relays in CELLS.items():
            names = [NODE[name] for name in relays]
            add_cell(self.deployment, REGION, cell, names, (SITE,), RelaySettings(broker=brokers))
        self.publishers: list[NodeId] = []
        for name in self.streams:
            self._add_publisher(name, end - QUIET if stop is None else stop, keys)
        self.subscribers: dict[str, NodeId] = {}
        for edge, cell in EDGES.items():
            above = [NODE[name] for name in CELLS[cell]]
            add_edge(self.deployment, REGION, NODE[edge], above, EdgeSettings(broker=brokers))
            client = self.subscribers[edge] = client_of(NODE[edge], edges, f"{REGION}/{edge}-c")
            mine = {stream: wants(edge, stream) for stream in self.streams}

            def subscriber(
                durable: Any, incarnation: int, rng: random.Random, me: NodeId = client, mine: Any = mine
            ) -> LabSubscriber:
                return LabSubscriber(me, (SITE,), mine, rng, STAYING if staying else MachineSettings())

            self.world.at(OPENED, partial(self.deployment.add, client, HOMES, subscriber))
        self.witness = Witness({node: edge for edge, node in self.subscribers.items()})
        self.world.observers.append(self.witness)

    def _add_publisher(self, stream: StreamId, stop: float, keys: int) -> None:
        me = f"{REGION}/pub-{stream}"
        self.publishers.append(me)

        def publisher(durable: Any, incarnation: int, rng: random.Random) -> LabPublisher:
            return LabPublisher(me, stream, BEGIN, stop, keys, rng)

        self.deployment.add(me, REGION, publisher)

    def carried(self, relay: str) -> list[StreamId]:
        """The streams that a relay carries while all are well."""
        cell = next(relays for relays in CELLS.values() if relay in relays)
        nodes = [NODE[name] for name in cell]
        return [stream for stream in self.streams if carried_by(stream, nodes) == NODE[relay]]

    def lost(self, node: str, others: Sequence[str]) -> None:
        """Connections have ended, and the other ends notice it at once, as over TCP."""
        for other in others:
            self.world.inject(self.world.now, NODE.get(other, other), Lost(NODE.get(node, node)))

    def run(self) -> None:
        """To the end."""
        self.world.start()
        self.world.run(self.end)
        if self.world.failures:
            raise RuntimeError(self.world.failures[0].traceback)

    def horizons(self) -> dict[StreamId, int]:
        """How far each stream has come at the publishing site."""
        histories = self.deployment.proxy(SITE).log.histories
        return {stream: histories[stream].horizon for stream in self.streams}
