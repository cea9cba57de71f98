"""Receipts in a simulated cluster: kept by the region's chain through crashes, told nowhere else, and bounded."""

from __future__ import annotations

import pytest

from tidings.core.gc import GcPolicy
from tidings.core.rows import ArrowRows
from tidings.protocols.kernel import Effects, Expired, Input, Received, Send, SetTimer, Timer
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.publishing import NotHead
from tidings.protocols.services.receipts import MOST, Receipt, Receipts, ReceiptsKept, receipts_of, sound
from tidings.sim.build import Deployment
from tidings.sim.scenario import LinkTable, PublisherTable, RegionTable, Run, Scenario, Stream

STREAM = receipts_of("a")


def receipt(n: int) -> Receipt:
    return Receipt("desk", 1, n, "s", n, n + 1, n, "", 1, (1 << 64) - n, float(n))


class Again(Timer, frozen=True, gc=False):
    """Ask again."""


class Teller:
    """Tells one receipt after the other, each until it is kept, whoever is head."""

    def __init__(self, chain: ChainConfig, count: int) -> None:
        self.chain = chain
        self.count = count
        self.n = 1
        self.asked = 0

    def start(self, now: float) -> Effects:
        return [*self._ask(), SetTimer(0.2, Again())]

    def _ask(self) -> Effects:
        if self.n > self.count:
            return []
        self.asked += 1
        return [Send(self.chain.replicas[self.asked % len(self.chain.replicas)], self._message())]

    def _message(self) -> Receipts:
        return Receipts(self.n, (receipt(self.n),))

    def handle(self, now: float, input: Input) -> Effects:
        match input:
            case Received(_, NotHead(chain)) if chain.epoch >= self.chain.epoch and self.n <= self.count:
                self.chain = chain
                return [Send(chain.head, self._message())]
            case Received(_, ReceiptsKept(nonce)) if nonce == self.n:
                self.n += 1
                return self._ask()
            case Expired(Again()):
                return [*self._ask(), SetTimer(0.2, Again())]
        return []

    def check(self) -> None:
        assert self.n <= self.count + 1


def deployment(seed: int) -> Deployment:
    plan = Scenario(
        scenario=Run(name="receipts", seconds=30.0),
        regions=(RegionTable("a", replicas=3, clients=1), RegionTable("b", replicas=2, clients=1)),
        links=(LinkTable("a", "b", 0.02),),
        streams=(Stream("s", "a"),),
        publishers=(PublisherTable(name="p", region="a", stream="s", rate=5.0, batch=2),),
    )
    return Deployment(plan, seed, record=False)


def told(made: Deployment, node: str) -> list[int]:
    """The numbers of the receipts that a replica holds."""
    history = made.proxy(node).log.histories[STREAM]
    rows = history.rows(1, history.horizon, history.horizon).rows
    assert isinstance(rows, ArrowRows)
    return [n for n in rows.batch.column("n").to_pylist() if n is not None] if "n" in rows.batch.schema.names else []


@pytest.mark.parametrize("seed", range(3))
def test_what_is_answered_is_kept_by_every_replica_of_the_region_and_by_no_other(seed: int) -> None:
    made = deployment(seed)
    world = made.world
    teller = Teller(made.memberships["a"], 40)
    world.start()
    world.run(1.0)
    made._node("a/teller", "a", lambda durable, incarnation, rng: teller)
    world.at(1.5, lambda: world.crash(made.membership("a").head))
    world.at(6.0, lambda: [world.crash(node) for node in made.replicas["a"]])
    world.at(7.0, lambda: [world.restart(node) for node in made.replicas["a"]])
    world.run(20.0)
    assert not world.failures, world.failures[0].traceback
    assert teller.n == 41
    for node in made.membership("a").replicas:
        assert sorted(set(told(made, node))) == list(range(1, 41)), node
    for node in made.replicas["b"]:
        assert STREAM not in made.proxy(node).log.histories
    assert all(STREAM not in made.client(node).fabric.horizons for node in made.clients["a"])


def test_the_policy_bounds_what_a_region_keeps() -> None:
    made = deployment(7)
    made.world.start()
    for nodes in made.replicas.values():
        for node in nodes:
            made.proxy(node).table.policies[receipts_of(node.partition("/")[0])] = GcPolicy.parse("keep-last:8")
    teller = Teller(made.memberships["a"], 60)
    made.world.run(1.0)
    made._node("a/teller", "a", lambda durable, incarnation, rng: teller)
    made.world.run(10.0)
    assert teller.n == 61
    for node in made.replicas["a"]:
        kept = told(made, node)
        assert kept[-1] == 60 and len(kept) < 12, node


def test_only_what_fits_the_columns_is_kept() -> None:
    assert sound(Receipts(1, (receipt(1),)))
    assert not sound(Receipts(1, ()))
    assert not sound(Receipts(1, (receipt(1),) * (MOST + 1)))
    assert not Receipt("x" * 2000, 1, 1, "s", 1, 2, 1, "", 1, 0, 0.0).sound
    assert not Receipt("x", 1, 1, "s", 1, 1 << 63, 1, "", 1, 0, 0.0).sound
