"""A region in memory that has lost all its replicas goes on above what its peers hold, and says what is lost."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from tidings.core.rows import data_rows
from tidings.core.span import Span
from tidings.protocols.kernel import Deliver, Effects, Input, Received, Send
from tidings.protocols.nodes.replica import Replica
from tidings.protocols.regions.interregion import Advertise, Subscribe
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.recovery import RecoverySettings
from tidings.protocols.services.catalog import Because, Why
from tidings.protocols.services.publishing import Acked, Post, Publisher, PublishSettings
from tidings.sim.build import Deployment
from tidings.sim.scenario import LinkTable, RegionTable, Run, Scenario, Stream

SKIP = 50


class Poster:
    """Publishes batches of three as soon as somebody takes them."""

    def __init__(self, name: str, chain: ChainConfig, batches: int) -> None:
        self.publisher = Publisher(name, chain, PublishSettings(), 7)
        self.batches = batches
        self.acked: list[tuple[int, int]] = []

    def start(self, now: float) -> Effects:
        out: list[Any] = [*self.publisher.start(now)]
        for at in range(self.batches):
            rows = data_rows(1, None, [b"%d" % (3 * at + i) for i in range(3)])
            out.extend(self.publisher.handle(now, Post("s", rows)))
        return out

    def handle(self, now: float, input: Input) -> Effects:
        effects = self.publisher.handle(now, input)
        items = [effect.item for effect in effects if isinstance(effect, Deliver)]
        self.acked += [(item.lo, item.hi) for item in items if isinstance(item, Acked)]
        return effects

    def check(self) -> None:
        self.publisher.check()


def deployment(seed: int, **settings: Any) -> Deployment:
    plan = Scenario(
        scenario=Run(name="recovery", seconds=60.0),
        regions=(RegionTable("a", replicas=2), RegionTable("b", replicas=2, clients=1), RegionTable("c", replicas=1)),
        links=(LinkTable("a", "b", 0.02, loss=0.02), LinkTable("a", "c", 0.03), LinkTable("b", "c", 0.02)),
        streams=(Stream("s", "a"), Stream("t", "b")),
    )
    made = Deployment(plan, seed, record=False)
    made.settings = replace(
        made.settings, recovery=RecoverySettings(**{"on": True, "wait": 3.0, "skip": SKIP} | settings)
    )
    return made


def post(made: Deployment, name: str, batches: int) -> Poster:
    poster = Poster(name, made.memberships["a"], batches)
    made._node(f"a/{name}", "a", lambda durable, incarnation, rng: poster)
    return poster


def lose(made: Deployment, region: str) -> None:
    for node in made.replicas[region]:
        made.world.crash(node, lose_disk=True)


def told(made: Deployment, node: str) -> Span:
    (span,) = made.proxy(node).log.histories["s"].know(1, 1 << 40)
    return span


@pytest.mark.parametrize("seed", range(3))
def test_an_owner_adopts_what_peers_hold_declares_the_rest_lost_and_numbers_above_it(seed: int) -> None:
    made = deployment(seed)
    world = made.world
    world.start()
    world.run(1.0)
    early = post(made, "early", 4)
    world.run(4.0)
    assert early.acked[-1][1] == 13 and told(made, "b/p1").hi == 13
    for other in ("b", "c"):
        world.cut("a", other)
    unseen = post(made, "unseen", 2)  # committed and acknowledged, and no peer has it
    world.run(6.0)
    assert unseen.acked[-1][1] == 19 and told(made, "b/p1").hi == 13
    lose(made, "a")
    for other in ("b", "c"):
        world.heal("a", other)
    for node in made.replicas["a"]:
        world.restart(node)
    late = post(made, "late", 3)
    world.run(20.0)
    assert not world.failures, world.failures[0].traceback
    assert late.acked == [(13 + SKIP + 3 * at, 16 + SKIP + 3 * at) for at in range(3)]
    for node in ("a/p0", "a/p1", "b/p0", "b/p1", "c/p0"):
        span = told(made, node)
        assert (span.hi, span.lost, span.rows.count) == (13 + SKIP + 9, ((13, 13 + SKIP),), 12 + 9), node
    assert made.proxy("a/p0").queries._because(Why("s", 20)) == Because("s", 20, "lost")


def test_regions_that_do_not_answer_are_waited_for_so_long_and_no_longer() -> None:
    made = deployment(1)
    world = made.world
    world.cut("a", "b")
    world.cut("a", "c")
    world.start()
    poster = post(made, "p", 1)
    world.run(2.5)
    assert poster.acked == [] and made.proxy("a/p0").recovery.active
    world.run(8.0)
    assert poster.acked == [(1, 4)], "nobody had told that it holds anything: the region begins"
    assert not world.failures, world.failures[0].traceback


def test_a_head_that_takes_over_in_the_middle_begins_again_and_one_behind_the_record_does_not() -> None:
    made = deployment(2)
    world = made.world
    world.start()
    early = post(made, "early", 4)
    world.run(4.0)
    assert early.acked[-1][1] == 13
    lose(made, "a")
    for node in made.replicas["a"]:
        world.restart(node)
    world.run(4.3)
    world.crash("a/p0")
    world.run(12.0)
    head = made.proxy("a/p1")
    assert head.chain.is_head and not head.recovery.active
    span = told(made, "b/p1")
    assert span.lost == ((13, 13 + SKIP),), "once, whoever wrote it"
    world.restart("a/p0")
    world.run(20.0)
    world.crash("a/p1")
    late = post(made, "late", 1)
    world.run(30.0)
    assert late.acked == [(13 + SKIP, 16 + SKIP)]
    assert told(made, "b/p1").lost == ((13, 13 + SKIP),)
    assert not world.failures, world.failures[0].traceback


def test_an_owner_with_a_disk_takes_nothing_of_its_own_from_others() -> None:
    made = deployment(3, on=False)
    world = made.world
    world.start()
    world.run(3.0)
    head = made.proxy("a/p0")
    assert not head.recovery.active
    told = head.handle(3.0, Received("b/p1", Advertise(made.membership("b"), {"s": 40})))
    assert not [effect for effect in told if isinstance(effect, Send) and isinstance(effect.message, Subscribe)]


def test_asofs_beyond_a_horizon_count_as_held() -> None:
    made = deployment(4)
    world = made.world
    lone = Replica("a/p9", "a", "a/config", made.streams, {"b": made.memberships["b"]}, made.settings, (), _rng())
    world.start()
    world.run(3.0)
    lone.recovery.begin(0.0)
    assert lone.recovery.active
    lone.inter_region.adverts["b"] = Advertise(made.memberships["b"], {"s": 4}, {"s": 9})
    assert lone.recovery.losses(1.0) is None, "[1, 4) can be fetched"
    lone.log.histories["s"].accept(Span("s", 1, 4, 9, data_rows(1, None, [b"1"])))
    lone.log.ends["s"] = 4
    losses = {each.stream: each for each in lone.recovery.losses(1.5) or ()}
    assert losses["s"] == Span.declared_lost("s", 4, 9 + SKIP)


def _rng() -> random.Random:

    return random.Random(1)
