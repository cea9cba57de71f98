"""What a seed of a Sprinkler campaign stands for: a small world, its load, and how it is broken.

Everything is drawn from the seed. Three moods: *calm* (nothing breaks, and then speed is demanded too), *aimed* (one
fault at a time, each at a weak spot, so that recovery has to be quick) and *swarm* (sim/faults.py, plus aimed faults).
Aimed faults are what chance alone seldom brings: a head, middle or tail that sleeps until it is removed; a head that
is cut off from its chain, goes on taking events alone and is then removed; a newcomer whose seniors all fall silent
just after the token was passed to it; a link between regions that fails, perhaps one way only.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import msgspec

from tidings.core.rows import ArrowRows, data_rows
from tidings.core.span import Span
from tidings.protocols.chain import ChainSettings
from tidings.protocols.client import ReadAsOf
from tidings.protocols.kernel import Received
from tidings.protocols.messages import Know
from tidings.protocols.publishing import PublishSettings
from tidings.sim import scenario as plans
from tidings.sim.build import Deployment
from tidings.sim.faults import FaultEvent, Faults
from tidings.sim.scenario import Scenario

SECONDS = 24.0
HEAL = 17.0
EVENTS = 3_200  # nominal, so that at least 2,000 are published whatever breaks
LONG = 6.0  # seconds of an aimed outage: far beyond the 1.5 s of silence after which a replica is removed
TTL = 3600.0

WAITS = "newcomer orphaned before it was a member"
"""The aimed fault after which a chain must wait: all its members are silent, and the newcomer is not one of them."""

Mood = Literal["calm", "aimed", "swarm"]


class Plan:
    """One seed: settings, scenario, and the faults to come."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"campaign/{seed}")
        self.mood: Mood = rng.choices(("calm", "aimed", "swarm"), (1, 2, 5))[0]
        self.chain = ChainSettings(retain=rng.choice([4, 16, 64]), window=rng.choice([2, 16, 64]), chunk_rows=64)
        self.publish = PublishSettings(ttl=rng.choice([4.0, TTL]) if self.mood == "swarm" else TTL)
        self.twin = self.mood == "swarm" and rng.random() < 0.2
        self.scenario = _scenario(self, rng)
        self.faults = Faults.swarm(rng) if self.mood == "swarm" else Faults()
        self.forge = self.mood == "swarm" and rng.random() < 0.25

    def break_things(self, deployment: Deployment) -> tuple[list[FaultEvent], list[str]]:
        """Enter all faults in the world; returns the swarm's, and a list that fills with the aimed ones as they hit."""
        events = deployment.unleash(self.faults, self.rng, 1.0)
        hits: list[str] = []
        for at in (3.0, 10.5):
            if self.mood == "aimed" or (self.mood == "swarm" and self.rng.random() < 0.6):
                aims = AIMS if len(deployment.replicas) > 2 else AIMS[:-1]  # two regions have no way round a cut
                aim = self.rng.choice(aims)
                deployment.world.at(at + self.rng.random(), partial(aim, deployment, self.rng, hits))
        if self.forge:
            for at in (5.0, 9.0, 13.0):
                deployment.world.at(at, partial(_forge, deployment, self.rng))
        for step in range(15):
            deployment.world.at(3.0 + 1.3 * step, partial(_read, deployment, self.rng))
        return events, hits


# --- the world ------------------------------------------------------------------------------------------


def _scenario(plan: Plan, rng: random.Random) -> Scenario:
    calm = plan.mood == "calm"
    names = [f"r{at}" for at in range(rng.choice([2, 2, 3]))]
    replicas = rng.choice([1, 2, 3, 3, 3]) if plan.mood == "swarm" else 3
    streams = tuple(_stream(f"s-{name}", name, rng) for name in names)
    publishers = tuple(_publisher(stream, rng, len(streams)) for stream in streams)
    if rng.random() < 0.3:  # from afar
        publishers += (_publisher(streams[0], rng, 2 * len(streams), region=names[-1]),)
    if plan.twin:  # somebody starts the same publisher a second time: the first is fenced
        publishers += (msgspec.structs.replace(publishers[-1], start=rng.uniform(4.0, 12.0)),)
    return Scenario(
        scenario=plans.Run(name=f"campaign-{plan.seed}", seconds=SECONDS, seed=plan.seed, heal_after=HEAL),
        regions=tuple(plans.Region(name, replicas=replicas, clients=rng.randint(4, 6)) for name in names),
        links=tuple(plans.Link(a, b, rng.uniform(0.005, 0.08)) for at, a in enumerate(names) for b in names[at + 1 :]),
        streams=streams,
        publishers=publishers,
        protocol=plans.Protocol(
            view=rng.randint(3, 8),
            gossip=rng.uniform(0.3, 1.0),
            merge=rng.choice(["swap", "paper"]),
            fanout=rng.randint(2, 4),
            shuffle=rng.uniform(0.2, 0.5),
            proxy_fanout=rng.randint(1, 4),
            proxy_shuffle=rng.uniform(0.2, 0.5),
            recv_rows=400 if calm else rng.choice([40, 100, 400]),
        ),
        disk=plans.Disk(sync=0.0005, spread=rng.choice([0.0, 0.002]), torn=rng.random() < 0.5),
    )


def _stream(name: str, region: str, rng: random.Random) -> plans.Stream:
    if rng.random() < 0.15:
        return plans.Stream(name, region, gc=rng.choice(["none", "keep-last:40"]), rows="counted")
    policies = ["none", "by-key", "by-key", "keep-last:40", "by-key,keep-last:100", "older-than:2s"]
    return plans.Stream(name, region, gc=rng.choice(policies))


def _publisher(stream: plans.Stream, rng: random.Random, share: int, region: str | None = None) -> plans.Publisher:
    keyed = stream.rows == "arrow" and (stream.gc.startswith("by-key") or rng.random() < 0.5)
    return plans.Publisher(
        name=f"{region or stream.region}-on-{stream.name}",
        region=region or stream.region,
        stream=stream.name,
        rate=EVENTS / share / HEAL,
        batch=rng.choice([4, 12, 30]),
        keys=rng.choice([3, 20, 200]) if keyed else 0,
        skew=rng.choice([0.0, 1.1]),
        stop=HEAL,
        collect_every=rng.choice([None, 100, 300]),
    )


# --- aimed faults -----------------------------------------------------------------------------------------


def _region(deployment: Deployment, rng: random.Random) -> str:
    return rng.choice(sorted(deployment.replicas))


def _sleep(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    """A role of a chain sleeps until it is removed, and wakes up as if nothing had been."""
    role, region = rng.choice(["head", "middle", "tail"]), _region(deployment, rng)
    if len(deployment.membership(region).replicas) > 1:
        deployment.world.pause(deployment.resolve(f"{region}/{role}"), LONG)
        hits.append(f"{role} sleeps")


def _strand(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    """A head loses its chain but not its publishers, then sleeps: what it took alone must not count."""
    world, region = deployment.world, _region(deployment, rng)
    head = deployment.resolve(f"{region}/head")
    if len(deployment.membership(region).replicas) == 1:
        return
    blocks = world.partition([head], [node for node in deployment.replicas[region] if node != head])
    world.at(world.now + 1.0, partial(world.pause, head, LONG - 1.0))
    world.at(world.now + 1.2, partial(world.rejoin, blocks))
    hits.append("head stranded")


def _orphan(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    """The tail sleeps and must join anew; once it has the token, or is the tail again, all others fall silent."""
    region = _region(deployment, rng)
    deployment.world.pause(deployment.resolve(f"{region}/tail"), 2.2)
    cue = rng.choice(["token_passed", "replica_added"])
    deployment.world.observers.append(_Orphanage(deployment, region, cue, rng.uniform(0.0, 0.02), hits))


class _Orphanage:
    """Waits for a cue from a region."""

    def __init__(self, deployment: Deployment, region: str, cue: str, delay: float, hits: list[str]) -> None:
        self.deployment = deployment
        self.region = region
        self.cue = cue
        self.delay = delay
        self.hits = hits
        self.done = False
        deployment.world.listen()

    def on_report(self, time: float, node: str, name: str, value: float) -> None:
        """The tail reports that it passes the token, the service that it adds the replica."""
        if self.done or name != self.cue or self.deployment.region_of[node] != self.region or time > HEAL - 1:
            return
        self.done = True
        self.hits.append("newcomer orphaned" if name == "replica_added" else WAITS)
        world = self.deployment.world
        for senior in self.deployment.membership(self.region).replicas:
            world.at(time + self.delay, partial(world.pause, senior, min(LONG, HEAL - time)))


def _cut(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    """A link between two regions fails, perhaps one way only."""
    a, b = rng.sample(sorted(deployment.replicas), 2)
    one_way = rng.random() < 0.5
    deployment.world.cut(a, b, one_way=one_way)
    deployment.world.at(deployment.world.now + LONG, partial(deployment.world.heal, a, b))
    hits.append("link one way" if one_way else "link cut")


AIMS: tuple[Callable[[Deployment, random.Random, list[str]], None], ...] = (_sleep, _strand, _orphan, _cut)


# --- readers and liars --------------------------------------------------------------------------------------


def _alive(deployment: Deployment) -> list[str]:
    return [node for node in deployment.members() if deployment.world.hosts[node].life]


def _read(deployment: Deployment, rng: random.Random) -> None:
    """Some client reads a range as of a number in the recent past."""
    node = rng.choice(_alive(deployment))
    stream, horizon = rng.choice(sorted(deployment.client(node).pull.horizons.items()))
    if horizon > 2:
        asof = rng.randint(max(1, horizon - 120), horizon)
        lo = rng.randint(1, horizon - 1)
        deployment.world.inject(deployment.world.now, node, ReadAsOf(stream, lo, rng.randint(lo + 1, horizon), asof))


def _forge(deployment: Deployment, rng: random.Random) -> None:
    """Heads and a client are told what contradicts what they know; they must refuse it and go on."""
    world = deployment.world
    for region in sorted(deployment.replicas):
        head = deployment.proxy(deployment.membership(region).head)
        for stream, expect in sorted(head.inter_region.expects.items()):
            if expect.source and "by-key" in head.streams[stream].gc and world.hosts[head.me].life:
                own = head.log.ends[stream]  # of two events on one key the older cannot outlive the newer
                false = Span(stream, own, own + 2, own + 2, data_rows(own, [b"k", b"k"], [b"a", b"b"]))
                _tell(deployment, head.me, expect.source, false)
    node = rng.choice(_alive(deployment))
    for stream, state in sorted(deployment.client(node).pull.streams.items()):
        spans = [span for span in state.recv.spans if span.rows.count and isinstance(span.rows, ArrowRows)]
        if spans:
            true = rng.choice(spans)
            rows = data_rows(true.lo, None, [b"forged"])
            _tell(deployment, node, deployment.replicas[deployment.region_of[node]][0], _replaced(stream, true, rows))
            return


def _replaced(stream: str, true: Span, rows: ArrowRows) -> Span:
    return Span(stream, true.lo, true.hi, true.asof, rows)


def _tell(deployment: Deployment, node: str, source: str, span: Span) -> None:
    told = Received(source, Know(span.stream, (span,), span.hi))
    deployment.world.inject(deployment.world.now, node, cast(Any, told))
