"""What a seed of a Sprinkler campaign stands for: a small world, its load, and how it is broken.

Everything is drawn from the seed. Three moods: *calm* (nothing breaks, and then speed is demanded too), *aimed* (one
fault at a time, aimed_faults.py, so that recovery has to be quick) and *swarm* (sim/faults.py, plus aimed faults).
Worlds are as small as they may be, because most of a seed's time goes into what members tell each other: about ten
clients, and batches that make a few hundred records of a few thousand events.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any, Literal, cast

import msgspec

from tidings.campaign.sprinkler.aimed_faults import (
    AIMS,
    CUTS,
    HEAL,
    ORPHANS,
    Aim,
    Amnesia,
    Drowsy,
    Relapse,
    any_region,
    cut_long,
    fall_silent,
    strike,
    write_checkpoint,
)
from tidings.campaign.sprinkler.misleading import Echo, Lies, chatter, forge, read_somewhere
from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.protocols.fabrics.family import choose
from tidings.protocols.kernel import Effects, Received, Send
from tidings.protocols.replication.chain import ChainSettings
from tidings.protocols.replication.configuration import Change, Configuration
from tidings.protocols.services.catalog import DeclareLost, Defined, NotDefined
from tidings.protocols.services.publishing import PublishSettings
from tidings.protocols.services.sinks import SinkSettings
from tidings.sim import scenario as plans
from tidings.sim.build import Deployment
from tidings.sim.faults import FaultEvent, Faults
from tidings.sim.scenario import Scenario
from tidings.sim.sinks import SinkPlan

SECONDS = 24.0
EVENTS = 3_600  # nominal, so that at least 2,000 are published whatever breaks
TTL = 3600.0

READS = 12  # one every 1.3 s from 3.0 on; ours, so that the last one has time for its answer

Mood = Literal["calm", "aimed", "swarm"]


class FaultPlan:
    """One seed: settings, scenario, and the faults to come."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"campaign/{seed}")
        self.mood: Mood = rng.choices(("calm", "aimed", "swarm"), (1, 4, 3))[0]
        retain, window, feeds = rng.choice([2, 8, 32]), rng.choice([2, 16, 64]), random.Random(f"feeds/{seed}")
        feed, size = feeds.choice([(4, 1 << 28), (1 << 18, 1 << 28), (1 << 18, 3000)])  # for a newcomer, most of all
        self.chain = ChainSettings(retain=retain, window=window, chunk_rows=64, feed=feed, feed_bytes=size)
        self.publish = PublishSettings(ttl=rng.choice([4.0, TTL]) if self.mood == "swarm" else TTL)
        self.twin = self.mood == "swarm" and rng.random() < 0.2
        self.scenario = _scenario(self, rng)
        self.faults = Faults.swarm(rng) if self.mood == "swarm" else Faults()
        self.forge = self.mood == "swarm" and rng.random() < 0.25
        self.lies = Lies()
        self.losses = Losses()
        self.scripted_clients = (
            random.Random(f"desks/{seed}").random() < 0.4
        )  # generators of their own: other seeds stay the same
        self.claims = random.Random(f"claims/{seed}").random() < 0.4
        keep = random.Random(f"keeper/{seed}")
        self.lease_holder = (
            keep.choice(self.scenario.regions).name if keep.random() < 0.5 else ""
        )  # whose stream is leased
        self.operator = Operator(random.Random(f"operator/{seed}")) if self.mood == "swarm" else None
        self.aims = self._aims()
        alone = self.mood == "aimed" and len(self.aims) == 1  # while another aim strikes it would be too much
        self.relapse = alone and random.Random(f"relapses/{seed}").random() < 0.7
        self.spared = self.mood == "swarm" and random.Random(f"checkpoint/{seed}").random() < 0.4
        self.silence = self.mood == "swarm" and random.Random(f"silence/{seed}").random() < 0.3
        self.drowsy = self.mood != "calm" and not alone and random.Random(f"drowsy/{seed}").random() < 0.4
        self.sinks, self.sinking = _sinks(self)
        memory = random.Random(f"recovery/{seed}")
        share = 0.3 if len(self.scenario.regions) > 2 else 0.06  # of three regions one may not answer
        names = [region.name for region in self.scenario.regions]
        self.amnesia = Amnesia(memory, names) if self.mood == "aimed" and memory.random() < share else None
        if self.amnesia is not None:
            self._in_memory(self.amnesia, memory)

    def _in_memory(self, amnesia: Amnesia, rng: random.Random) -> None:
        """The region's replicas have no disks. Clients that rely on what the region forgets unannounced are left out.

        A sink of the region may write again what it has forgotten (docs/guide/deploy.md). Conflicting clients compare
        streams whole, but who was fed what is lost since keeps it (decision 0011).
        """
        plain = tuple(msgspec.structs.replace(stream, rows="arrow") for stream in self.scenario.streams)
        self.scenario = msgspec.structs.replace(self.scenario, streams=plain)
        self.sinks = tuple([sink for sink in self.sinks if not self.forgets(sink.owner)])
        self.claims = self.relapse = self.drowsy = False
        self.aims = [(8.0 + rng.random(), amnesia.forget)]

    def forgets(self, region: RegionId) -> bool:
        """Whether all replicas of a region start with nothing some time."""
        return self.amnesia is not None and self.amnesia.region == region

    def _aims(self) -> list[tuple[float, Aim]]:
        """Aimed faults and when they strike; two regions have no way round a cut."""
        rng, groups = self.rng, (AIMS, CUTS) if len(self.scenario.regions) > 2 else (AIMS,)
        chance = {"calm": 0.0, "aimed": 1.0, "swarm": 0.6}[self.mood]
        aims = [(at + rng.random(), rng.choice(rng.choice(groups))) for at in (3.0, 10.5) if rng.random() < chance]
        if any(aim is cut_long for _, aim in aims):  # from the beginning, and alone: a second cut would isolate
            aims = [(0.2, cut_long)]
        return aims[:1] if aims and aims[0][1] in ORPHANS else aims  # those are not over when the second one comes

    @property
    def kind(self) -> tuple[str, ...]:
        """Seeds of one kind find much the same; what is first in it is most demanding."""
        replicas = f"{self.scenario.regions[0].replicas} replicas"
        company = {
            (True, True): "scripted clients and name conflicts",
            (True, False): "scripted clients",
            (False, True): "name conflicts",
        }.get((self.scripted_clients, self.claims), "members alone")
        match self.mood:
            case "calm":
                return "calm", self.scenario.fabric.settings.merge, company
            case "aimed":
                return "aimed", self.aims[0][1].__name__, company
            case "swarm":
                return "swarm", "liars" if self.forge else f"{replicas}, {self.scenario.fabric.settings.merge}", company

    def break_things(self, deployment: Deployment) -> tuple[list[FaultEvent], list[str]]:
        """Enter all faults in the world; returns the swarm's, and a list that fills with the aimed ones as they hit."""
        if self.amnesia is not None:
            deployment.settings = msgspec.structs.replace(deployment.settings, recovery=self.amnesia.settings)
        events = deployment.unleash(self.faults, self.rng, 1.0)
        hits: list[str] = []
        for at, aim in self.aims:
            deployment.world.at(at, partial(strike, aim, deployment, self.rng, hits))
        if self.relapse:
            rng = random.Random(f"relapse/{self.seed}")
            deployment.world.at(12.0, partial(strike, Relapse, deployment, rng, hits))
        if self.spared:
            rng = random.Random(f"checkpoints/{self.seed}")
            for at in (5.0, 9.0, 13.0):
                deployment.world.at(at + rng.random(), partial(write_checkpoint, deployment, rng))
        if self.silence:
            deployment.world.at(8.0, partial(fall_silent, deployment, random.Random(f"silences/{self.seed}")))
        if self.drowsy:
            deployment.world.observers.append(Drowsy(deployment))
        if self.forge:
            deployment.world.observers.append(self.lies)
            for at in (5.0, 9.0, 13.0):
                deployment.world.at(at, partial(forge, deployment, self.rng, self.lies))
        if self.operator is not None:
            for at in (4.0, 8.0, 12.0):
                deployment.world.at(at + self.operator.rng.random(), partial(self.operator.act, deployment))
            if random.Random(f"echo/{self.seed}").random() < 0.3:
                deployment.world.observers.append(Echo(deployment))
            rng = random.Random(f"losses/{self.seed}")
            deployment.world.observers.append(self.losses)
            for at in (
                (3.5, 6.5, 9.5) if not self.scripted_clients else ()
            ):  # what scripted clients are told is compared number by number
                deployment.world.at(at + rng.random(), partial(_give_up, deployment, rng, self.losses))
        for step in range(READS):
            if self.mood == "swarm":  # elsewhere it would help those who stall
                deployment.world.at(2.5 + 1.3 * step, partial(chatter, deployment))
            deployment.world.at(3.0 + 1.3 * step, partial(read_somewhere, deployment, self.rng))
        return events, hits


# --- the world ------------------------------------------------------------------------------------------


def _scenario(plan: FaultPlan, rng: random.Random) -> Scenario:
    calm = plan.mood == "calm"
    names = [f"r{at}" for at in range(rng.choice([2, 3, 3] if calm else [2, 2, 3]))]
    clients = {2: rng.choice([4, 4, 5]), 3: 3}[len(names)]
    replicas = rng.choice([1, 2, 3, 3, 3]) if plan.mood == "swarm" else 3
    streams = tuple(_stream(f"s-{name}", name, rng) for name in names)
    publishers = tuple(_publisher(stream, rng, len(streams)) for stream in streams)
    if rng.random() < 0.3:  # from afar
        publishers += (_publisher(streams[0], rng, 2 * len(streams), region=names[-1]),)
    if plan.twin:  # somebody starts the same publisher a second time: the first is fenced
        publishers += (msgspec.structs.replace(publishers[-1], start=rng.uniform(4.0, 12.0)),)
    return Scenario(
        scenario=plans.Run(name=f"campaign-{plan.seed}", seconds=SECONDS, seed=plan.seed, heal_after=HEAL),
        regions=tuple(plans.RegionTable(name, replicas=replicas, clients=clients) for name in names),
        links=_links(names, rng),
        streams=streams,
        publishers=publishers,
        fabric=choose(
            "pull",
            view=rng.randint(3, 8),
            gossip=rng.uniform(0.3, 0.5),
            merge=rng.choice(["swap", "paper"]),
            fanout=rng.choice([2, 2, 3]),
            shuffle=rng.uniform(0.3, 0.5),
            proxy_fanout=rng.choice([1, 1, 4] if calm else [1, 2, 4]),
            proxy_shuffle=rng.uniform(0.3, 0.5),
            recv_rows=400 if calm else rng.choice([40, 100, 400]),
        ),
        protocol=plans.ProtocolTable(
            c=random.Random(f"c/{plan.seed}").choice([None, None, 20.0, 200.0]) if plan.mood == "swarm" else None
        ),
        disk=plans.DiskTable(sync=0.0005, spread=rng.choice([0.0, 0.002]), torn=rng.random() < 0.5),
    )


def _links(names: list[str], rng: random.Random) -> tuple[plans.LinkTable, ...]:
    """A link between any two regions; often one is so long that the way round by the third region is shorter."""
    pairs = [(a, b) for at, a in enumerate(names) for b in names[at + 1 :]]
    if len(pairs) == 1 or rng.random() < 0.4:
        return tuple(plans.LinkTable(a, b, rng.uniform(0.005, 0.08)) for a, b in pairs)
    long = rng.choice(pairs)
    return tuple(plans.LinkTable(*pair, 0.12 if pair == long else rng.uniform(0.005, 0.03)) for pair in pairs)


def _stream(name: str, region: str, rng: random.Random) -> plans.Stream:
    if rng.random() < 0.15:
        return plans.Stream(name, region, gc=rng.choice(["none", "keep-last:40"]), rows="counted")
    policies = ["none", "by-key", "by-key", "keep-last:40", "by-key,keep-last:100", "older-than:2s"]
    return plans.Stream(name, region, gc=rng.choice(policies))


def _publisher(stream: plans.Stream, rng: random.Random, share: int, region: str | None = None) -> plans.PublisherTable:
    keyed = stream.rows == "arrow" and (stream.gc.startswith("by-key") or rng.random() < 0.5)
    return plans.PublisherTable(
        name=f"{region or stream.region}-on-{stream.name}",
        region=region or stream.region,
        stream=stream.name,
        rate=EVENTS / share / HEAL,
        batch=rng.choice([12, 24, 48]),
        keys=rng.choice([3, 20, 200]) if keyed else 0,
        skew=rng.choice([0.0, 1.1]),
        stop=HEAL,
        collect_every=rng.choice([None, 100, 300]),
    )


def _sinks(plan: FaultPlan) -> tuple[tuple[SinkPlan, ...], SinkSettings]:
    """Queries that write to streams of real rows; where nothing breaks they do not either."""
    rng = random.Random(f"sinks/{plan.seed}")
    streams = [stream for stream in plan.scenario.streams if stream.rows == "arrow"]
    mishaps = 0.0 if plan.mood == "calm" else 0.6
    sinks = [
        SinkPlan(
            name=f"query-{at}",
            region=rng.choice(plan.scenario.regions).name,
            stream=stream.name,
            owner=stream.region,
            rows=rng.choice([10, 40]),
            stop=HEAL,
            mishaps=mishaps,
            keyed=stream.gc.startswith("by-key"),
        )
        for at, stream in enumerate(rng.sample(streams, min(len(streams), rng.randint(1, 2))))
    ]
    if plan.mood == "calm":  # nor are they in anybody's way
        return tuple(sinks), SinkSettings()
    ttl, parts, ahead = rng.choice([2.0, TTL]), rng.choice([1, 2]), rng.choice([1, 4])
    return tuple(sinks), SinkSettings(ttl=ttl, parts=parts, ahead=ahead, retry=0.3)


class Operator:
    """Somebody who changes chains by hand: a new epoch for its own sake, or without some replica, which stays away."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.deposed: list[NodeId] = []

    def act(self, deployment: Deployment) -> None:
        """Change a chain, and try what must be refused: from an older epoch, twice from the same one, without all."""
        region = any_region(deployment, self.rng)
        current, service = deployment.membership(region), deployment.services[region]
        host = deployment.world.hosts[service]
        if not host.life or host.wake_at or cast(Configuration, host.machine).deciding is not None:
            return  # it would not be listened to
        without = None
        if len(current.replicas) > 2 and not self.deposed and self.rng.random() < 0.5:
            without = self.rng.choice(current.replicas)
        changes = [Change(current.epoch - 1, current.head), Change(current.epoch, without), Change(current.epoch)]
        if len(current.replicas) == 1:
            changes.insert(0, Change(current.epoch, current.head))
        if without is not None:
            self.deposed.append(without)
        for change in changes:
            deployment.world.inject(deployment.world.now, service, change)


class Losses:
    """What an operator has declared lost, and what was said to that."""

    def __init__(self) -> None:
        self.asked: dict[tuple[NodeId, int], tuple[StreamId, int, bool]] = {}  # by head and number; may it be?
        self.declared: list[tuple[StreamId, int, int]] = []
        self.wrong = 0  # answers

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Answers to an operator go to the configuration service, which makes nothing of them."""
        for effect in effects:
            if type(effect) is Send and isinstance(effect.message, Defined | NotDefined):
                lo = effect.message.nonce
                stream, hi, possible = self.asked.get((node, lo), ("", 0, False))
                if stream and effect.to.endswith("/config"):
                    declared = isinstance(effect.message, Defined)
                    self.wrong += declared != possible
                    self.declared += [(stream, lo, hi)] if declared else []


def _give_up(deployment: Deployment, rng: random.Random, losses: Losses) -> None:
    """An operator declares the next numbers of some stream lost; and, which must be refused, some that are known."""
    region = any_region(deployment, rng)
    head = deployment.proxy(deployment.membership(region).head)
    streams = deployment.scenario.streams
    own = [each.name for each in streams if each.region == region and not head.streams[each.name].counted]
    if own:
        stream = rng.choice(sorted(own))
        end = head.log.ends[stream]
        for lo in (end - 1, end):
            hi = end + rng.randint(1, 20)
            losses.asked[head.me, lo] = (stream, hi, lo == end)
            asked = Received(deployment.services[region], DeclareLost(lo, stream, lo, hi))
            deployment.world.inject(deployment.world.now, head.me, cast(Any, asked))
