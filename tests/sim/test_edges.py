"""Edges and relays below real replicas, in a simulated world: subscribers get exactly what their filters pass."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from tidings.client.commands import ChangeFilter, Open, Taken
from tidings.client.machine import ClientMachine, MachineSettings
from tidings.core.filters import parse
from tidings.core.ids import NodeId
from tidings.core.rows import data_rows
from tidings.core.span import Span
from tidings.protocols.brokers.soft_history import SoftHistory
from tidings.protocols.brokers.subscriber import Fed, Learn
from tidings.protocols.kernel import Deliver, Effects, Input, Time
from tidings.protocols.nodes.edge import Edge, EdgeSettings
from tidings.protocols.nodes.relay import RelaySettings
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.sim import scenario as plans
from tidings.sim.brokers import add_cell, add_edge
from tidings.sim.build import Deployment
from tidings.sim.scenario import Scenario

FILTERS = ["", "seq < 300 AND seq > 20", "seq IN (5, 6, 7, 100, 101, 250)", "key = 'k1' OR seq > 700"]


@dataclass
class Wants:
    """One subscription of an application, and what it has been given: (number, filter then in force)."""

    stream: str
    where: str
    lo: int = 1
    spans: list[tuple[int, int, str]] = field(default_factory=list)
    got: list[int] = field(default_factory=list)


class App:
    """An application on the client library that takes everything at once."""

    def __init__(self, me: NodeId, seeds: tuple[NodeId, ...], wants: list[Wants], rng: random.Random) -> None:
        self.machine = ClientMachine(me, me, seeds, MachineSettings(), rng)
        self.wants = wants
        self.opened = False

    def start(self, now: Time) -> Effects:
        return self.machine.start(now)

    def handle(self, now: Time, input: Input) -> Effects:
        out: list[Any] = []
        todo = list(self.machine.handle(now, input))
        if self.machine.home and not self.opened:
            self.opened = True
            for id, each in enumerate(self.wants):
                todo += self.machine.handle(now, Open(id, each.stream, each.lo, each.where, None, id))
        while todo:
            effect = todo.pop(0)
            if isinstance(effect, Deliver) and isinstance(effect.item, Fed):
                span, mine = effect.item.span, self.wants[effect.item.id]
                mine.spans.append((span.lo, span.hi, span.lens.text))
                mine.got += span.rows.numbers.tolist()
                todo += self.machine.handle(now, Taken(effect.item.id, span.hi))
            else:
                out.append(effect)
        return out

    def check(self) -> None:
        self.machine.check()


def world(seed: int, relays: bool, apps: dict[str, list[Wants]]) -> Deployment:
    """One region with a chain of three, two cells of relays or none, four edges, and the applications."""
    region = plans.RegionTable("east", replicas=3)
    streams = (plans.Stream("a", "east"), plans.Stream("b", "east"))
    writers = tuple(
        plans.PublisherTable(region="east", stream=name, rate=80.0, batch=2, keys=20, stop=18.0, name=f"pub-{name}")
        for name in ("a", "b")
    )
    run = plans.Run("edges", 30.0, heal_after=None)
    plan = Scenario(scenario=run, regions=(region,), streams=streams, publishers=writers)
    deployment = Deployment(plan, seed)
    replicas = tuple(deployment.replicas["east"])
    above = {f"east/e{at}": replicas for at in range(4)}
    if relays:
        for cell in (0, 1):
            names = [f"east/b{cell}{at}" for at in range(2)]
            add_cell(deployment, "east", f"cell{cell}", names, replicas, RelaySettings())
            above |= {f"east/e{2 * cell}": tuple(names), f"east/e{2 * cell + 1}": tuple(names)}
    for edge, upstream in above.items():
        add_edge(deployment, "east", edge, upstream, EdgeSettings())
    for name, wants in apps.items():

        def app(durable: Any, incarnation: int, rng: random.Random, wants: list[Wants] = wants, me: str = name) -> App:
            return App(me, replicas, wants, rng)

        deployment.world.at(3.0, partial(deployment.add, name, "east", app))  # replicas have heard of the edges
    return deployment


def judge(deployment: Deployment, apps: dict[str, list[Wants]]) -> None:
    assert not deployment.world.failures, deployment.world.failures[0].traceback
    history = deployment.proxy("east/p0").log.histories
    for name, wants in apps.items():
        for each in wants:
            rows = history[each.stream].know(1, history[each.stream].horizon)[0].rows
            ends = [(lo, hi) for lo, hi, _ in each.spans]
            assert all(a[1] == b[0] for a, b in pairwise(ends)), "without gaps, in order, once"
            assert ends and ends[-1][1] == history[each.stream].horizon, (name, each, ends[-1:])
            expected: list[int] = []
            for lo, hi, where in each.spans:
                part = rows.slice(lo, hi)
                passed = part.take(parse(where, {}).mask(part)) if where else part
                expected += passed.numbers.tolist()
            assert each.got == expected, (name, each.stream)


def many(rng: random.Random, count: int = 8) -> dict[str, list[Wants]]:
    def wants() -> list[Wants]:
        return [Wants(rng.choice("ab"), rng.choice(FILTERS)) for _ in range(rng.randint(1, 3))]

    return {f"east/app{at}": wants() for at in range(count)}


def counted(deployment: Deployment) -> Counter[str]:
    """What the nodes report from now on."""
    reports: Counter[str] = Counter()

    class Watch:
        def on_report(self, now: float, node: NodeId, name: str, value: float) -> None:
            reports[name] += 1

    deployment.world.observers.append(Watch())
    return reports


@pytest.mark.parametrize("relays", [False, True])
def test_subscribers_of_edges_get_exactly_what_their_filters_pass(relays: bool) -> None:
    apps = many(random.Random(1))
    deployment = world(1, relays, apps)
    reports = counted(deployment)
    deployment.world.start()
    deployment.world.run(30.0)
    judge(deployment, apps)
    used = [edge for edge in range(4) if deployment.world.hosts[f"east/e{edge}"].machine.subscriptions.positions]
    assert len(used) > 1, "clients spread over the edges"
    assert reports["catching_up"], "they began at the first number"
    for edge in range(4):
        machine = deployment.world.hosts[f"east/e{edge}"].machine
        assert isinstance(machine, Edge)
        assert all(position.live for position in machine.subscriptions.positions.values()), "all have caught up"
        assert not machine.subscriptions.catching
    assert not deployment.proxy("east/p0").subscriptions.positions, "nobody is left at a replica"


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_brokers_and_replicas_subscribers_get_exactly_what_passes(seed: int) -> None:
    rng = random.Random(seed)
    apps = many(rng)
    relays = seed % 2 == 0
    deployment = world(seed, relays, apps)
    world_ = deployment.world
    nodes = [f"east/e{at}" for at in range(4)] + [f"east/p{at}" for at in range(3)]
    nodes += [f"east/b{cell}{at}" for cell in range(2) for at in range(2)] if relays else []
    for _ in range(8):
        at, node = rng.uniform(2.0, 17.0), rng.choice(nodes)
        if rng.random() < 0.6:
            world_.at(at, partial(world_.crash, node))
            world_.at(at + rng.uniform(0.5, 3.0), partial(world_.restart, node))
        else:
            world_.at(at, partial(world_.pause, node, rng.uniform(0.5, 3.0)))
    for name, wants in apps.items():
        for id in range(len(wants)):
            for at in sorted(rng.uniform(4.0, 20.0) for _ in range(rng.randint(0, 2))):
                change = ChangeFilter(id, rng.choice(FILTERS))
                world_.at(at, partial(world_.inject, at, name, change))
    world_.start()
    world_.run(45.0)
    judge(deployment, apps)


def test_an_edge_does_not_believe_a_replica_that_does_not_know_its_chain_yet() -> None:
    edge = Edge("e", "east", ("p0", "p1"), ("p0", "p1"), 1, EdgeSettings(), random.Random(1))
    edge.start(0.0)
    edge.handle(0.1, Learn(ChainConfig("east", 0, ("p0",))))
    assert edge.upstream == ("p0", "p1")
    edge.handle(0.2, Learn(ChainConfig("east", 1, ("p0", "p1", "p2"))))
    assert edge.upstream == edge.replicas == ("p0", "p1", "p2")


def test_what_comes_at_once_is_read_whole_however_little_is_kept() -> None:
    soft = SoftHistory("a", 1, 1000)
    for lo in (1, 51):
        spans = [Span("a", at, at + 1, at, data_rows(at, None, [b"x" * 100])) for at in range(lo, lo + 50)]
        fresh = soft.append(spans)
        assert [span.hi for span in soft.know(lo, lo + 50)] == [span.hi for span in fresh]
        soft.check()
    assert soft.low >= 50, "what came before is forgotten, but for what fits"
