"""Brokers and subends on the paper's topology, with a bad network between them (Gryphon, A2.13 to A2.35)."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from tidings.core.filters import parse
from tidings.core.gc import GcPolicy
from tidings.core.history import History
from tidings.core.ids import NodeId, StreamId
from tidings.core.rows import data_rows
from tidings.core.span import Span
from tidings.protocols.brokers.broker import Broker, BrokerTick, label
from tidings.protocols.brokers.broker_messages import Acknowledge, Brokered, BrokerSettings, Nack, Status, Wanted
from tidings.protocols.brokers.subend import Subend
from tidings.protocols.brokers.top import TopBroker
from tidings.protocols.kernel import Effects, Expired, Message, Received, Report, Send
from tidings.protocols.messages import Offer
from tidings.protocols.replication.chain_config import ChainConfig

CELLS = {"P": ("p1",), "IB1": ("b1", "b2"), "IB2": ("b3", "b4")}
ABOVE = {"s1": "IB1", "s2": "IB1", "s3": "IB2", "s4": "IB2", "s5": "IB2"}
STREAMS = ("a", "b", "c", "d")
SETTINGS = BrokerSettings()


class Edge:
    """s1 to s5: a subend for each stream, and what it has handed over."""

    def __init__(self, me: NodeId, life: int, wheres: dict[StreamId, str], at: dict[StreamId, int]) -> None:
        self.me, self.life, self.wheres = me, life, wheres
        self.subends = {stream: Subend(stream, life, at.get(stream, 1), 1, SETTINGS) for stream in wheres}
        self.source: dict[StreamId, NodeId] = {}
        self.up = CELLS[ABOVE[me]]
        self.got: dict[StreamId, list[int]] = {stream: [] for stream in wheres}
        self.told = -9.0

    def handle(self, now: float, input: Any) -> list[Any]:
        out: list[tuple[StreamId, Message]] = []
        match input:
            case Received(src, Brokered() as told):
                self.source[told.stream] = src
                for span in self.subends[told.stream].accept(now, told):
                    self.got[told.stream] += span.rows.numbers.tolist()
            case Received(src, Offer(stream, horizon)):
                self.source[stream] = src
                out = [(stream, each) for each in self.subends[stream].expected(now, horizon)]
            case Expired(_):
                out = [(stream, each) for stream, subend in self.subends.items() for each in subend.due(now)]
        sends: list[Any] = []
        for stream, message in out:
            source = self.source.get(stream)
            to_all = source is None or isinstance(message, Acknowledge)
            sends += [Send(node, message) for node in (self.up if to_all else (source,))]
        if now - self.told >= 1.0:
            self.told = now
            interests = tuple((stream, "", (where,)) for stream, where in self.wheres.items())
            status = Status(Wanted(self.me, self.me, self.life, 1, interests), ())
            sends += [Send(node, status) for node in self.up]
            for subend in self.subends.values():
                subend.acknowledge_again()
        return sends

    def check(self) -> None:
        for subend in self.subends.values():
            subend.check()
            assert not subend.contradictions, "E is not reached"


class World:
    """Ten brokers; messages take 1 to 5 ms, or up to ``jitter``, and are lost now and then."""

    def __init__(self, seed: int, loss: float = 0.0, jitter: float = 0.005, wheres: Any = None) -> None:
        self.rng = random.Random(seed)
        self.loss, self.jitter = loss, jitter
        self.now = 0.0
        self.life = 0
        self.queue: list[tuple[float, int, NodeId, Any]] = []
        self.count = 0
        self.down: set[NodeId] = set()  # machines that are off
        self.stalled: set[NodeId] = set()  # machines that take what comes and send nothing
        self.cut: set[frozenset[NodeId]] = set()
        self.sent: Counter[tuple[NodeId, str]] = Counter()
        self.nacked: Counter[NodeId] = Counter()  # numbers in nacks
        self.reports: Counter[str] = Counter()
        self.histories = {stream: History(stream, GcPolicy.parse("none")) for stream in STREAMS}
        self.nodes: dict[NodeId, Any] = {}
        self.wheres = wheres or {edge: dict.fromkeys(STREAMS, "") for edge in ABOVE}
        for node in ("p1", "b1", "b2", "b3", "b4", *ABOVE):
            self.begin(node)

    def begin(self, node: NodeId) -> None:
        """A machine starts, perhaps again: it has forgotten everything but what it handed over."""
        self.life += 1
        self.down.discard(node)
        if node == "p1":
            self.nodes[node] = TopBroker("p1", "P", self.histories, lambda: ChainConfig("P", 1, ("p1",)), SETTINGS)
            self.nodes[node].life = self.life
            started = self.nodes[node].start(self.now)
        elif node in ABOVE:
            before = self.nodes.get(node)
            at = {stream: subend.at for stream, subend in before.subends.items()} if before else {}
            edge = self.nodes[node] = Edge(node, self.life, self.wheres[node], at)
            if before:
                edge.got = before.got
            started = []
        else:
            cell = next(cell for cell, members in CELLS.items() if node in members)
            peers = [each for each in CELLS[cell] if each != node]
            self.nodes[node] = Broker(node, cell, self.life, ("p1",), peers, SETTINGS)
            started = self.nodes[node].start(self.now)
        self.carry(node, started)
        self.put(self.now + self.rng.random() * SETTINGS.tick, node, (self.life, Expired(BrokerTick())))

    def put(self, at: float, node: NodeId, what: Any) -> None:
        self.count += 1
        heapq.heappush(self.queue, (at, self.count, node, what))

    def carry(self, src: NodeId, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Report):
                self.reports[effect.name] += 1
            elif isinstance(effect, Send) and src not in self.stalled:
                self.sent[src, type(effect.message).__name__] += 1
                if isinstance(effect.message, Nack):
                    self.nacked[src] += effect.message.hi - effect.message.lo
                if frozenset((src, effect.to)) not in self.cut and self.rng.random() >= self.loss:
                    delay = self.rng.uniform(0.001, self.jitter)
                    self.put(self.now + delay, effect.to, (0, Received(src, effect.message)))

    def publish(self, stream: StreamId, count: int = 1) -> None:
        history = self.histories[stream]
        span = Span.of(stream, history.horizon, data_rows(history.horizon, None, [b"x"] * count))
        history.accept(span)
        if "p1" not in self.down:
            self.carry("p1", self.nodes["p1"].forward(self.now, stream, [span], [span]))

    def lost(self, node: NodeId, others: Iterable[NodeId]) -> None:
        """Connections with a machine have ended, and the other ends notice."""
        for other in others:
            if other not in self.down and isinstance(self.nodes[other], Broker):
                self.carry(other, self.nodes[other].lost(self.now, node))
            elif other in ABOVE:
                edge = self.nodes[other]
                edge.source = {stream: src for stream, src in edge.source.items() if src != node}

    def run(self, until: float) -> None:
        while self.queue and self.queue[0][0] <= until:
            self.now, _, node, (life, input) = heapq.heappop(self.queue)
            machine = self.nodes[node]
            if isinstance(input, Expired):
                if life != machine.life:
                    continue
                self.put(self.now + SETTINGS.tick, node, (life, input))
            if node in self.down:
                continue
            self.carry(node, [e for e in machine.handle(self.now, input) if isinstance(e, Send | Report)])
            machine.check()
        self.now = until

    def kill(self, node: NodeId) -> None:
        self.down.add(node)
        self.stalled.discard(node)
        self.lost(node, [other for other in self.nodes if other != node])

    def judge(self) -> None:
        """Exactly what passes, once and in order."""
        for name in ABOVE:
            for stream, got in self.nodes[name].got.items():
                history = self.histories[stream]
                rows = history.know(1, history.horizon)[0].rows
                where = self.wheres[name][stream]
                expected = rows.take(parse(where, {}).mask(rows)) if where else rows
                assert got == expected.numbers.tolist(), (name, stream)


def steady(world: World, seconds: float) -> None:
    """Each stream gets 25 messages a second (GR3)."""
    for _ in range(round(seconds * 25)):
        for stream in STREAMS:
            world.publish(stream)
        world.run(world.now + 0.04)


def begun(seed: int = 1, **options: Any) -> World:
    world = World(seed, **options)
    world.run(2.5)  # statuses have come as far as p1
    return world


def test_a2_20_without_failures_every_event_comes_once_and_nobody_is_curious() -> None:
    world = begun()
    steady(world, 10)
    world.run(world.now + 3)
    world.judge()
    assert not world.nacked
    busy = {node: world.sent[node, "Brokered"] for node in ("b1", "b2", "b3", "b4")}
    assert all(busy.values()), "each stream has its path, and the paths of a cell share the streams (A2.26)"
    assert world.sent["p1", "Brokered"] == 2 * 4 * 250, "once to each cell"


def test_gr4_a_link_that_stalls_and_fails_is_repaired_over_the_other_broker_and_others_notice_nothing() -> None:
    world = begun()
    steady(world, 3)
    world.cut.add(frozenset(("b1", "s1")))  # stalled: nothing arrives, and nobody notices
    steady(world, 2.5)
    world.lost("s1", ["b1"])
    world.lost("b1", ["s1"])
    steady(world, 10)
    world.run(world.now + 3)
    world.judge()
    assert world.nacked["s1"] and not any(world.nacked[each] for each in ("s2", "s3", "s4", "s5"))
    assert world.reports["sideways"], "until p1 has heard of it (A2.27)"


def test_gr5_a_broker_that_stalls_and_fails_costs_one_nack_for_both_edges_and_none_when_it_is_back() -> None:
    world = begun()
    steady(world, 3)
    mine = [stream for stream in STREAMS if world.nodes["s1"].source[stream] == "b1"]
    world.stalled.add("b1")
    steady(world, 2.75)
    world.kill("b1")
    steady(world, 10)
    lost = 2.75 * 25 * len(mine)
    for edge in ("s1", "s2"):
        assert 0.9 * lost <= world.nacked[edge] <= 1.2 * lost, "what was lost, and little besides"
    share = world.nacked["b2"] / (world.nacked["s1"] + world.nacked["s2"])
    assert 0.45 <= share <= 0.6, "consolidation is nearly perfect"
    assert world.reports["nack_consolidated"] + world.reports["nack_answered_by_broker"]
    before = Counter(world.nacked)
    world.begin("b1")
    steady(world, 10)
    world.run(world.now + 3)
    world.judge()
    assert world.nacked == before, "nothing is lost when it comes back (GR5)"


def test_gr6_while_the_publishing_site_is_down_nobody_asks_and_then_it_says_what_it_expects() -> None:
    world = begun()
    steady(world, 3)
    world.stalled.add("p1")
    steady(world, 2)  # logged, not sent
    world.kill("p1")
    world.run(world.now + 20)
    assert not world.nacked, "DCT is infinite: nobody asks while nothing comes"
    world.begin("p1")
    world.run(world.now + 2.5)
    for stream, history in world.histories.items():
        world.carry("p1", world.nodes["p1"].expect(stream, history.horizon))
    world.run(world.now + 3)
    world.judge()
    assert all(world.nacked[edge] for edge in ABOVE)


def test_a2_23_a_nack_is_answered_by_a_relay_that_has_what_is_asked_for() -> None:
    world = begun()
    steady(world, 3)
    stream = next(stream for stream in STREAMS if world.nodes["s1"].source[stream] == "b1")
    world.cut.add(frozenset(("b1", "s1")))
    for _ in range(5):
        world.publish(stream)
        world.run(world.now + 0.04)
    world.cut.clear()
    steady(world, 2)
    world.judge()
    assert world.nacked["s1"] == 5 and not world.nacked["b1"]
    assert world.reports["nack_answered_by_broker"]


@pytest.mark.parametrize("seed", range(12))
def test_a2_13_whatever_happens_each_edge_gets_exactly_what_its_filters_pass_in_order(seed: int) -> None:
    rng = random.Random(seed)
    texts = ["", "seq < 60", "seq IN (1, 7, 50, 51, 52, 90, 130)", "seq >= 40 AND seq < 44 OR seq = 111"]
    wheres = {
        edge: {stream: rng.choice(texts) for stream in STREAMS if rng.random() < 0.8} or {"a": ""} for edge in ABOVE
    }
    world = begun(seed, loss=rng.choice([0.0, 0.02, 0.1]), jitter=rng.choice([0.005, 0.3]), wheres=wheres)
    brokers = ["b1", "b2", "b3", "b4", "p1", *ABOVE]
    for _ in range(12):
        for _ in range(25):
            world.publish(rng.choice(STREAMS), rng.randint(1, 2))
            world.run(world.now + 0.04)
        victim = rng.choice(brokers)
        match rng.randrange(5):
            case 0 if victim not in world.down:
                world.kill(victim)
            case 1 if victim not in world.down:
                world.stalled.add(victim)
            case 2:
                pair = rng.choice(["b1", "b2"]), rng.choice(["s1", "s2", "p1"])
                world.cut.add(frozenset(pair))
            case _:
                for node in [*world.down]:
                    world.begin(node)
                world.stalled.clear()
                world.cut.clear()
    for node in [*world.down]:
        world.begin(node)
    world.stalled.clear()
    world.cut.clear()
    world.loss = 0.0
    world.run(world.now + 8)
    for stream, history in world.histories.items():
        world.carry("p1", world.nodes["p1"].expect(stream, history.horizon))
    world.run(world.now + 12)
    world.judge()
    assert not world.reports["contradiction"]
    acked = {stream: world.nodes["p1"].acked(stream) for stream in STREAMS if any(stream in w for w in wheres.values())}
    assert acked == {stream: world.histories[stream].horizon for stream in acked}, "in the end all is acknowledged"


def test_an_edge_that_was_away_gets_what_others_have_acknowledged_meanwhile() -> None:
    world = begun()
    steady(world, 2)
    world.cut |= {frozenset((broker, "s1")) for broker in ("b1", "b2")}
    for broker in ("b1", "b2"):
        world.lost("s1", [broker])
    steady(world, 5)  # s2 goes on: the cell acknowledges without s1
    assert max(world.nodes[each].acked("a") for each in ("b1", "b2")) > world.nodes["s1"].subends["a"].at
    world.cut.clear()
    steady(world, 10)
    world.run(world.now + 3)
    world.judge()


def test_a_relay_that_has_forgotten_all_still_says_how_far_a_stream_has_come() -> None:
    world = begun()
    steady(world, 4)
    world.run(world.now + 2.0)
    for broker in ("b1", "b2"):
        assert not len(world.nodes[broker].inputs.get("a", ()))
    carrier = world.nodes["s1"].source["a"]
    assert world.nodes[carrier].horizon("a") == world.histories["a"].horizon


def test_a2_25_a_large_gap_is_asked_for_in_pieces() -> None:
    subend = Subend("s", 1, 1, 1, SETTINGS)
    nacks = [each for each in subend.expected(0.0, 1000) if isinstance(each, Nack)]
    assert [(each.lo, each.hi) for each in nacks] == [(1, 257), (257, 513), (513, 769), (769, 1000)]
    assert subend.expected(0.1, 1000) == [], "not again before NRT"
    assert len(subend.expected(0.7, 1000)) == 4


def test_a2_31_nacks_are_repeated_more_slowly_while_nobody_answers_and_not_because_some_are_lost() -> None:
    subend = Subend("s", 1, 1, 1, SETTINGS)
    subend.expected(0.0, 100)
    for at in (0.7, 2.0, 4.5):  # nobody answers
        subend.expected(at, 100)
    assert subend.nrt == 8 * SETTINGS.nrt
    row = Span("s", 50, 51, 50, data_rows(50, None, [b"x"]), label(1, 1))
    subend.accept(4.6, Brokered("s", (row,), True))
    assert subend.at == 1 and subend.nrt == SETTINGS.nrt, "the gap is still there, and is asked for again soon"


def test_a2_32_with_dct_what_comes_next_is_asked_for() -> None:
    settings = BrokerSettings(dct=0.5)
    subend = Subend("s", 1, 1, 1, settings)
    assert subend.due(0.4) == []
    assert subend.due(0.6) == [Nack("s", 1, 257, 1)]
    assert subend.due(0.9) == [], "once in every DCT"


def test_what_was_filtered_for_another_life_or_an_older_version_counts_for_nothing() -> None:
    def told(life: int, version: int) -> Brokered:
        return Brokered("s", (Span("s", 1, 2, 1, data_rows(1, None, [b"x"]), label(life, version)),))

    subend = Subend("s", 5, 1, 3, SETTINGS)
    assert subend.accept(0.0, told(4, 9)) == [] and subend.accept(0.0, told(5, 2)) == []
    assert [span.hi for span in subend.accept(0.0, told(5, 3))] == [2]
    assert [each for each in subend.due(1.0) if isinstance(each, Acknowledge)] == [Acknowledge("s", 2)]


def test_who_comes_late_is_told_how_far_a_stream_has_come_though_its_rows_are_forgotten() -> None:
    """Found by an audit of real processes: with nothing more published, such an edge stayed behind for good."""
    relay = Broker("b", "IB", 7, ("p",), (), SETTINGS)
    relay.start(0.0)
    relay.handle(0.0, Received("s1", Status(Wanted("s1", "s1", 1, 1, (("a", "", ("",)),)), ())))
    rows = data_rows(1, None, [b"x"] * 5)
    told = Brokered("a", (Span("a", 1, 6, 1, rows, label(7, relay.version)),))
    relay.handle(0.1, Received("p", told))
    relay.handle(0.2, Received("s1", Acknowledge("a", 6)))
    assert not relay.inputs["a"].of(1, 6), "it is forgotten"
    late = relay.handle(0.3, Received("s2", Status(Wanted("s2", "s2", 1, 1, (("a", "", ("",)),)), ())))
    assert Send("s2", Offer("a", 6)) in late
