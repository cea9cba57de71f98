"""What a seed of a Sprinkler campaign stands for: a small world, its load, and how it is broken.

Everything is drawn from the seed. Three moods: *calm* (nothing breaks, and then speed is demanded too), *aimed* (one
fault at a time, each at a weak spot, so that recovery has to be quick) and *swarm* (sim/faults.py, plus aimed faults).
Aimed faults are what chance alone seldom brings: a head, middle or tail that sleeps until it is removed, a head perhaps
amid a sink's batch or with a clock that was fast; a head that is cut off from its chain, goes on taking events alone
and is then removed; a region whose replicas all forget everything, and what nobody else has is lost; a newcomer whose
seniors all fall silent just when it gets the token, or is a member at last; a replica that comes back at once, with the
disk it had a second ago, or with records that were voided since; a link between regions that fails, perhaps one way
only, perhaps for most of the run; a region whose members nod off again and again; a newcomer that nods off over its
snapshot; a chain that sleeps, and wakes one by one; a checkpoint on a disk.

Worlds are as small as they may be, because most of a seed's time goes into what members tell each other: about ten
clients, and batches that make a few hundred records of a few thousand events.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import msgspec

from tidings.core.ids import NodeId, StreamId
from tidings.core.lens import ALL, Lens
from tidings.core.rows import NO_ROWS, ArrowRows, data_rows
from tidings.core.span import Span
from tidings.protocols.catalog import DeclareLost, Defined, NotDefined
from tidings.protocols.chain import ChainSettings, Install
from tidings.protocols.client import ReadAsOf
from tidings.protocols.configuration import Change, Configuration, Promote
from tidings.protocols.kernel import Effects, Received, Send
from tidings.protocols.log import Checkpoint, CutBack, Installed
from tidings.protocols.messages import Know
from tidings.protocols.publishing import PublishSettings
from tidings.protocols.recovery import RecoverySettings
from tidings.protocols.sinks import SinkSettings
from tidings.sim import scenario as plans
from tidings.sim.build import Deployment
from tidings.sim.faults import FaultEvent, Faults
from tidings.sim.scenario import Scenario
from tidings.sim.sinks import SinkPlan

SECONDS = 24.0
HEAL = 17.0
EVENTS = 3_600  # nominal, so that at least 2,000 are published whatever breaks
LONG = 6.0  # seconds of an aimed outage: far beyond the 1.5 s of silence after which a replica is removed
REPLICATED = 0.004  # seconds; ours: a sync (0.5 ms and more) and a hop (1 ms), and less than a whole chain takes
FAST = 4.0  # seconds that a fast clock is ahead: more than the silence after which another head takes over
LATE = 1.2  # seconds after which the others answer a region that has forgotten everything; ours: clearly not at once
TTL = 3600.0

READS = 12  # one every 1.3 s from 3.0 on; ours, so that the last one has time for its answer

ORPHANED = "newcomer orphaned"
WAITS = "newcomer orphaned before it was a member"
"""Then its chain must wait: all members are silent, and the newcomer is not one of them."""

FORGOT = "region forgot"

Mood = Literal["calm", "aimed", "swarm"]


class Plan:
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
        self.desks = random.Random(f"desks/{seed}").random() < 0.4  # generators of their own: other seeds stay the same
        self.claims = random.Random(f"claims/{seed}").random() < 0.4
        keep = random.Random(f"keeper/{seed}")
        self.keeper = keep.choice(self.scenario.regions).name if keep.random() < 0.5 else ""  # whose stream is leased
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
        self.amnesia = Amnesia(memory) if self.mood == "aimed" and memory.random() < share else None
        if self.amnesia is not None:
            self._in_memory(self.amnesia, memory)

    def _in_memory(self, amnesia: Amnesia, rng: random.Random) -> None:
        """Replicas without disks, and nobody who was told what such a region has forgotten but members of the fabric.

        Nothing is collected, for what is lost collects nothing: then regions differ in what is gone (decision 0011).
        """
        plain = tuple(msgspec.structs.replace(stream, gc="none", rows="arrow") for stream in self.scenario.streams)
        publishers = tuple(msgspec.structs.replace(each, collect_every=None) for each in self.scenario.publishers)
        self.scenario = msgspec.structs.replace(self.scenario, streams=plain, publishers=publishers)
        self.desks, self.claims, self.keeper, self.sinks = False, False, "", ()
        self.relapse = self.drowsy = False
        self.aims = [(8.0 + rng.random(), amnesia.forget)]

    def _aims(self) -> list[tuple[float, Aim]]:
        """Aimed faults and when they strike; two regions have no way round a cut."""
        rng, groups = self.rng, (AIMS, CUTS) if len(self.scenario.regions) > 2 else (AIMS,)
        chance = {"calm": 0.0, "aimed": 1.0, "swarm": 0.6}[self.mood]
        aims = [(at + rng.random(), rng.choice(rng.choice(groups))) for at in (3.0, 10.5) if rng.random() < chance]
        if self.mood == "swarm":  # whoever could tell that a disk is too old may be down just then
            aims = [(at, _sleep if aim is _put_back else aim) for at, aim in aims]
        if any(aim is _cut_long for _, aim in aims):  # from the beginning, and alone: a second cut would isolate
            aims = [(0.2, _cut_long)]
        return aims[:1] if aims and aims[0][1] in ORPHANS else aims  # those are not over when the second one comes

    @property
    def kind(self) -> tuple[str, ...]:
        """Seeds of one kind find much the same; what is first in it is most demanding."""
        protocol, replicas = self.scenario.protocol, f"{self.scenario.regions[0].replicas} replicas"
        company = {(True, True): "desks and claimants", (True, False): "desks", (False, True): "claimants"}.get(
            (self.desks, self.claims), "members alone"
        )
        match self.mood:
            case "calm":
                return "calm", protocol.merge, company
            case "aimed":
                return "aimed", self.aims[0][1].__name__, company
            case "swarm":
                return "swarm", "liars" if self.forge else f"{replicas}, {protocol.merge}", company

    def break_things(self, deployment: Deployment) -> tuple[list[FaultEvent], list[str]]:
        """Enter all faults in the world; returns the swarm's, and a list that fills with the aimed ones as they hit."""
        if self.amnesia is not None:
            deployment.settings = msgspec.structs.replace(deployment.settings, recovery=self.amnesia.settings)
        events = deployment.unleash(self.faults, self.rng, 1.0)
        hits: list[str] = []
        for at, aim in self.aims:
            deployment.world.at(at, partial(_strike, aim, deployment, self.rng, hits))
        if self.relapse:
            rng = random.Random(f"relapse/{self.seed}")
            deployment.world.at(12.0, partial(_strike, _Relapse, deployment, rng, hits))
        if self.spared:
            rng = random.Random(f"checkpoints/{self.seed}")
            for at in (5.0, 9.0, 13.0):
                deployment.world.at(at + rng.random(), partial(_checkpoint, deployment, rng))
        if self.silence:
            deployment.world.at(8.0, partial(_fall_silent, deployment, random.Random(f"silences/{self.seed}")))
        if self.drowsy:
            deployment.world.observers.append(_Drowsy(deployment))
        if self.forge:
            deployment.world.observers.append(self.lies)
            for at in (5.0, 9.0, 13.0):
                deployment.world.at(at, partial(_forge, deployment, self.rng, self.lies))
        if self.operator is not None:
            for at in (4.0, 8.0, 12.0):
                deployment.world.at(at + self.operator.rng.random(), partial(self.operator.act, deployment))
            if random.Random(f"echo/{self.seed}").random() < 0.3:
                deployment.world.observers.append(_Echo(deployment))
            rng = random.Random(f"losses/{self.seed}")
            deployment.world.observers.append(self.losses)
            for at in (3.5, 6.5, 9.5) if not self.desks else ():  # what desks are told is compared number by number
                deployment.world.at(at + rng.random(), partial(_give_up, deployment, rng, self.losses))
        for step in range(READS):
            if self.mood == "swarm":  # elsewhere it would help those who stall
                deployment.world.at(2.5 + 1.3 * step, partial(_chat, deployment))
            deployment.world.at(3.0 + 1.3 * step, partial(_read, deployment, self.rng))
        return events, hits


# --- the world ------------------------------------------------------------------------------------------


def _scenario(plan: Plan, rng: random.Random) -> Scenario:
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
        regions=tuple(plans.Region(name, replicas=replicas, clients=clients) for name in names),
        links=_links(names, rng),
        streams=streams,
        publishers=publishers,
        protocol=plans.Protocol(
            view=rng.randint(3, 8),
            gossip=rng.uniform(0.3, 0.5),
            merge=rng.choice(["swap", "paper"]),
            fanout=rng.choice([2, 2, 3]),
            shuffle=rng.uniform(0.3, 0.5),
            proxy_fanout=rng.choice([1, 1, 4] if calm else [1, 2, 4]),
            proxy_shuffle=rng.uniform(0.3, 0.5),
            recv_rows=400 if calm else rng.choice([40, 100, 400]),
            c=random.Random(f"c/{plan.seed}").choice([None, None, 20.0, 200.0]) if plan.mood == "swarm" else None,
        ),
        disk=plans.Disk(sync=0.0005, spread=rng.choice([0.0, 0.002]), torn=rng.random() < 0.5),
    )


def _links(names: list[str], rng: random.Random) -> tuple[plans.Link, ...]:
    """A link between any two regions; often one is so long that the way round by the third region is shorter."""
    pairs = [(a, b) for at, a in enumerate(names) for b in names[at + 1 :]]
    if len(pairs) == 1 or rng.random() < 0.4:
        return tuple(plans.Link(a, b, rng.uniform(0.005, 0.08)) for a, b in pairs)
    long = rng.choice(pairs)
    return tuple(plans.Link(*pair, 0.12 if pair == long else rng.uniform(0.005, 0.03)) for pair in pairs)


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
        batch=rng.choice([12, 24, 48]),
        keys=rng.choice([3, 20, 200]) if keyed else 0,
        skew=rng.choice([0.0, 1.1]),
        stop=HEAL,
        collect_every=rng.choice([None, 100, 300]),
    )


def _sinks(plan: Plan) -> tuple[tuple[SinkPlan, ...], SinkSettings]:
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


# --- aimed faults -----------------------------------------------------------------------------------------


def _region(deployment: Deployment, rng: random.Random) -> str:
    return rng.choice(sorted(deployment.replicas))


def _sleep(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    """A role of a chain sleeps until it is removed, and wakes up as if nothing had been."""
    role, region = rng.choice(["head", "middle", "tail"]), _region(deployment, rng)
    if len(deployment.membership(region).replicas) > 1:
        node = deployment.resolve(f"{region}/{role}")
        if role == "head":
            _Interrupted(deployment, node, 1.0, LONG)
        else:
            deployment.world.pause(node, LONG)
        hits.append(f"{role} sleeps")


class _Interrupted:
    """A head falls asleep while it moves a sink's batch to its stream, if it does so in time: others have to go on."""

    def __init__(self, deployment: Deployment, head: NodeId, latest: float, seconds: float) -> None:
        self.deployment = deployment
        self.world = deployment.world
        self.head = head
        self.seconds = seconds
        self.asleep = False
        self.world.observers.append(self)
        self.world.listen()
        self.world.at(self.world.now + latest, self._sleep)

    def on_report(self, time: float, node: NodeId, name: str, value: float) -> None:
        """A record of a batch is written, and it is not the last: let it reach the next replica, not more."""
        if name == "sink_moved" and node == self.head and self.deployment.proxy(node).sinks.moving:
            self.world.at(time + REPLICATED, self._sleep)

    def _sleep(self) -> None:
        if not self.asleep:
            self.asleep = True
            self.world.pause(self.head, self.seconds)


def _hurry(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    """A head with a fast clock sleeps: the next one has a slower clock, and its ticks must ascend all the same."""
    world, region = deployment.world, _region(deployment, rng)
    head = deployment.resolve(f"{region}/head")
    if len(deployment.membership(region).replicas) > 1:
        world.set_clock(head, FAST)
        _Interrupted(deployment, head, 0.5, LONG - 0.5)
        world.at(world.now + 1.0, partial(world.set_clock, head))
        hits.append("head with a fast clock sleeps")


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


def _doze(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    """The tail and most clients of a region nod off for a moment, again and again: answers are late and overlap."""
    world, region = deployment.world, _region(deployment, rng)
    people = [node for node in deployment.members() if deployment.region_of[node] == region]
    for nap in range(6):
        begins = world.now + 0.9 * nap
        for node in people:
            if rng.random() < 0.7:
                world.at(begins + rng.uniform(0.0, 0.2), partial(world.pause, node, rng.uniform(0.1, 0.5)))
        world.at(begins + 0.2, partial(world.pause, deployment.resolve(f"{region}/tail"), 0.5))
    hits.append("region dozes")


def _put_back(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    """A role of a chain comes back at once, with the disk it had a second ago, while the others have gone on."""
    role, region = rng.choice(["head", "head", "middle", "tail"]), _region(deployment, rng)
    world, node = deployment.world, deployment.resolve(f"{region}/{role}")
    disk = world.hosts[node].disk
    assert disk is not None
    copy = len(disk.durable())

    def back() -> None:
        entries = disk.durable()
        if len(deployment.membership(region).replicas) == 1 or any(
            isinstance(each, Installed) for each in entries[copy:]
        ):
            return  # nobody to tell it, or its whole state was replaced meanwhile
        world.crash(node)
        deployment.recorder.put_back(world.now, node, disk.put_back(copy))
        world.at(world.now + rng.uniform(0.05, 0.5), partial(world.restart, node))
        hits.append(f"{role} back with an old disk")

    world.at(world.now + rng.uniform(0.5, 1.5), back)


class _Orphan:
    """The tail sleeps and must join anew; when it is weakest all who were in the chain before it fall silent."""

    cue = "token_passed"

    def __init__(self, deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
        self.deployment = deployment
        self.world = deployment.world
        self.region = _region(deployment, rng)
        self.newcomer = deployment.resolve(f"{self.region}/tail")
        self.hits = hits
        self.delay = rng.choice([0.0, 0.0, rng.uniform(0.0, 0.02)])
        self.done = False
        self.world.pause(self.newcomer, 2.2)
        self.world.observers.append(self)
        self.world.listen()

    def on_report(self, time: float, node: NodeId, name: str, value: float) -> None:
        """The tail reports that it passes the token, the service that it adds the replica."""
        if self.done or name != self.cue or self.deployment.region_of[node] != self.region or time > HEAL - 2:
            return
        self.done = True
        membership = self.deployment.membership(self.region)
        self.seniors, self.newcomer = membership.replicas, membership.joining or self.newcomer
        self.world.at(time + self.delay, self.mishap)

    def mishap(self) -> None:
        """What happens besides."""
        raise NotImplementedError

    def _silence(self) -> None:
        world = self.world
        for senior in self.seniors:
            world.pause(senior, max(0.0, min(LONG, HEAL - world.now)))
        world.at(world.now + 0.1, self._name)

    def _name(self) -> None:
        member = self.newcomer in self.deployment.membership(self.region).replicas
        self.hits.append(ORPHANED if member else WAITS)


class _Deaf(_Orphan):
    """Nothing more reaches the newcomer from the tail, nor the seniors from the service."""

    def mishap(self) -> None:
        world = self.world
        blocks = world.partition([self.deployment.services[self.region]], self.seniors, one_way=True)
        blocks += world.partition([self.seniors[-1]], [self.newcomer], one_way=True)
        world.at(world.now + 1.0, self._silence)
        world.at(world.now + 1.2, partial(world.rejoin, blocks))


class _Forgetful(_Orphan):
    """The tail restarts, then loses the newcomer, and only then its wish that the newcomer be promoted arrives.

    It is proven by then, so nothing but the token on its disk keeps it from committing what the newcomer never gets.
    """

    wish: Promote | None = None

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """The tail wishes; the network keeps it for a while."""
        if self.done and self.wish is None and node == self.seniors[-1]:
            wishes = [effect.message for effect in effects if type(effect) is Send]
            self.wish = next((wish for wish in wishes if isinstance(wish, Promote)), None)

    def mishap(self) -> None:
        world, tail, service = self.world, self.seniors[-1], self.deployment.services[self.region]
        unheard = world.partition([tail], [service], one_way=True)
        world.at(world.now + 0.4, partial(world.crash, tail))
        world.at(world.now + 0.4, partial(world.rejoin, unheard))
        world.at(world.now + 0.45, partial(world.restart, tail))
        world.at(world.now + 0.55, self._part)
        world.at(world.now + 1.0, self._arrive)
        world.at(world.now + 1.02, self._silence)

    def _part(self) -> None:
        blocks = self.world.partition([self.seniors[-1]], [self.newcomer], one_way=True)
        self.world.at(self.world.now + 0.65, partial(self.world.rejoin, blocks))

    def _arrive(self) -> None:
        if self.wish is not None:
            late = Received(self.seniors[-1], self.wish)
            self.world.inject(self.world.now, self.deployment.services[self.region], cast(Any, late))


class _Rash(_Orphan):
    """The newcomer restarts as soon as it is a member: what it acknowledged must be on its disk, slow as that is."""

    cue = "replica_added"

    def __init__(self, deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
        super().__init__(deployment, rng, hits)
        self.world.slow_disk(self.newcomer, rng.choice([1.0, 30.0]))
        self.world.at(HEAL, partial(self.world.slow_disk, self.newcomer, 1.0))

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """The last piece of a snapshot is about to be written."""
        message = input.message if type(input) is Received else None
        if node == self.newcomer and type(message) is Install and message.last and not self.done:
            self.world.slow_disk(node, 60.0)
            self.world.at(time + 1.0, partial(self.world.slow_disk, node, 1.0))

    def mishap(self) -> None:
        world = self.world
        world.slow_disk(self.newcomer, 1.0)
        world.crash(self.newcomer)
        world.at(world.now + 0.3, partial(world.restart, self.newcomer))
        self._silence()


class _Relapse:
    """A head that was cut off, and is back in its chain, restarts with a disk it had before: other records, or fewer.

    It was the only one to have them, and the chain has others in their place; or it has the snapshot it came back with,
    which is old but true. The replica before it restarts as well, and must not take the old disk's word for anything.
    """

    def __init__(self, deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
        self.deployment = deployment
        self.world = deployment.world
        self.rng = rng
        self.hits = hits
        whole = [region for region in sorted(deployment.replicas) if self._whole(region)]
        if whole:
            self.region = rng.choice(whole)
            self.node = deployment.membership(self.region).head
            others = [each for each in deployment.replicas[self.region] if each != self.node]
            blocks = self.world.partition([self.node], [*others, deployment.services[self.region]])
            self.world.at(self.world.now + 1.9, partial(self.world.rejoin, blocks))
            self.world.at(self.world.now + 2.3, self._back)

    def _whole(self, region: str) -> bool:
        hosts, replicas = self.world.hosts, self.deployment.replicas[region]
        awake = all([hosts[node].life and not hosts[node].wake_at for node in replicas])
        return awake and {*self.deployment.membership(region).replicas} == {*replicas} and len(replicas) > 2

    def _back(self) -> None:
        disk, replicas = self.world.hosts[self.node].disk, self.deployment.membership(self.region).replicas
        assert disk is not None
        entries = disk.durable()
        cuts = [at for at, entry in enumerate(entries) if isinstance(entry, CutBack)]
        whole = [at for at, entry in enumerate(entries) if isinstance(entry, Installed) and entry.last]
        if not self._whole(self.region) or replicas[-1] != self.node or not cuts:
            return
        true = bool(whole) and whole[-1] > cuts[-1] and self.rng.random() < 0.5
        for node in (self.node,) if true else (self.node, replicas[-2]):
            self.world.crash(node)
            self.world.at(self.world.now + 0.05, partial(self.world.restart, node))
        kept = disk.put_back(whole[-1] + 1 if true else cuts[-1])
        self.deployment.recorder.put_back(self.world.now, self.node, kept)
        self.hits.append("tail back with its snapshot" if true else "tail back with voided records")


def _checkpoint(deployment: Deployment, rng: random.Random) -> None:
    """A replica writes a checkpoint of its state, as stores do to let go of what came before, and restarts with it."""
    world, node = deployment.world, rng.choice(deployment.replicas[_region(deployment, rng)])
    host = world.hosts[node]
    if host.life and not host.wake_at and host.disk is not None and deployment.proxy(node).chain.installing is None:
        log, token = deployment.proxy(node).log, deployment.proxy(node).chain.token
        at, pieces, epochs = log.committed, log.snapshot(rng.choice([16, 64])), (log.token_epoch, log.joined_epoch)
        for index, spans in enumerate(pieces):
            piece = Checkpoint(at, index, spans, index == len(pieces) - 1, at, *epochs, log.made(at))
            host.disk.write(world.now, piece, token)
        world.at(world.now + rng.uniform(0.01, 0.5), partial(world.crash, node))
        world.at(world.now + 0.6, partial(world.restart, node))


def _fall_silent(deployment: Deployment, rng: random.Random) -> None:
    """A whole chain sleeps, and its members wake one after the other: the first must not be left alone for that."""
    nodes = list(deployment.replicas[_region(deployment, rng)])
    rng.shuffle(nodes)
    for at, node in enumerate(nodes):
        deployment.world.pause(node, 2.5 + 0.6 * at)


class _Drowsy:
    """A newcomer nods off over a snapshot: what is committed meanwhile is kept for it, within bounds."""

    def __init__(self, deployment: Deployment) -> None:
        self.world = deployment.world
        self.done = False

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """The first piece has come."""
        if not self.done and type(input) is Received and type(input.message) is Install and time < HEAL - 2:
            self.done = True
            self.world.at(time, partial(self.world.pause, node, 1.2))  # less than the silence that ends its joining


def _cut(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    """A link between two regions fails, perhaps one way only."""
    a, b = rng.sample(sorted(deployment.replicas), 2)
    one_way = rng.random() < 0.5
    deployment.world.cut(a, b, one_way=one_way)
    deployment.world.at(deployment.world.now + LONG, partial(deployment.world.heal, a, b))
    hits.append("link one way" if one_way else "link cut")


def _cut_long(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    """A link fails one way from the beginning until all is mended: one side hears of what it cannot ask for."""
    a, b = rng.sample(sorted(deployment.replicas), 2)
    deployment.world.cut(a, b, one_way=True)
    deployment.world.at(HEAL - 0.5, partial(deployment.world.heal, a, b))
    hits.append("link one way for long")


class Amnesia:
    """A region is cut off, goes on alone, then all its replicas start with nothing; perhaps one link stays cut.

    Then the other one is back late, so that it makes a difference from when on the region waits.
    """

    settings = RecoverySettings(on=True, wait=3.0, skip=400)  # skip: three times what it publishes while cut off

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.region = ""
        self.absent = ""  # the other region that does not answer, if there is one
        self.held: dict[StreamId, int] = {}  # up to where the others hold its streams
        self.back = 0.0  # when its replicas start again

    @property
    def wait(self) -> float:
        """Seconds for which the region waits for one that does not answer, since another has, which is late."""
        return LATE + self.settings.wait if self.absent else 0.0

    def forget(self, deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
        """The links to the others fail, and a second later the replicas do."""
        world, self.region = deployment.world, _region(deployment, self.rng)
        others = [name for name in sorted(deployment.replicas) if name != self.region]
        self.absent = self.rng.choice(others) if len(others) > 1 and self.rng.random() < 0.6 else ""
        for other in others:
            world.cut(self.region, other)
            until = 7.9 if other == self.absent else 1.3 + LATE if self.absent else 1.1
            world.at(world.now + until, partial(world.heal, self.region, other))
        world.at(world.now + 1.0, partial(self._lose, deployment, others))
        hits.append(FORGOT)

    def _lose(self, deployment: Deployment, others: list[str]) -> None:
        world = deployment.world
        tails = [deployment.proxy(deployment.membership(other).tail) for other in others]
        own = [stream.name for stream in deployment.streams if stream.region == self.region]
        self.held = {stream: max([tail.log.histories[stream].horizon for tail in tails]) for stream in own}
        self.back = world.now + 0.3
        for node in deployment.replicas[self.region]:
            world.crash(node, lose_disk=True)
            world.at(self.back, partial(world.restart, node))
        deployment.recorder.forgotten(self.region)


Aim = Callable[[Deployment, random.Random, list[str]], object]
ORPHANS: tuple[Aim, ...] = (_Deaf, _Forgetful, _Rash)
AIMS: tuple[Aim, ...] = (_sleep, _hurry, _strand, _doze, _put_back, *ORPHANS)
CUTS: tuple[Aim, ...] = (_cut, _cut_long)  # for three regions: two have no way round


def _strike(aim: Aim, deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    aim(deployment, rng, hits)


class Operator:
    """Somebody who changes chains by hand: a new epoch for its own sake, or without some replica, which stays away."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.deposed: list[NodeId] = []

    def act(self, deployment: Deployment) -> None:
        """Change a chain, and try what must be refused: from an older epoch, twice from the same one, without all."""
        region = _region(deployment, self.rng)
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
    region = _region(deployment, rng)
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


# --- readers, chatterers and liars ---------------------------------------------------------------------------


def _alive(deployment: Deployment) -> list[str]:
    return [node for node in deployment.members() if deployment.world.hosts[node].life]


def _read(deployment: Deployment, rng: random.Random) -> None:
    """Some client reads a range as of a number in the recent past; often it wants another one before the answer."""
    world, node = deployment.world, rng.choice(_alive(deployment))
    for at in (world.now, world.now + 0.001)[: rng.randint(1, 2)]:
        known = deployment.client(node).pull.horizons.items()
        stream, horizon = rng.choice([each for each in sorted(known) if each[0] not in deployment.recorder.unrecorded])
        if horizon > 2:
            asof = rng.randint(max(1, horizon - 120), horizon)
            lo = rng.randint(1, horizon - 1)
            world.inject(at, node, ReadAsOf(stream, lo, rng.randint(lo + 1, horizon), asof))


def _chat(deployment: Deployment) -> None:
    """As after a doubled request: a tail tells clients what they know in part, and only the rest must count."""
    for node in _alive(deployment):
        tail = deployment.proxy(deployment.membership(deployment.region_of[node]).tail)
        for stream, horizon in sorted(deployment.client(node).pull.horizons.items()):
            history = tail.log.histories.get(stream)
            if history is not None and 1 < horizon < history.horizon:
                for span in history.know(max(1, horizon - 3), history.horizon):
                    _tell(deployment, node, tail.me, span)


class _Echo:
    """As after a doubled request with a shorter answer: who holds a span hears half of it again, and keeps the rest."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.left = 3

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """An answer has come; what is beyond a gap is held."""
        if self.left and type(input) is Received and type(input.message) is Know and node in self.deployment.members():
            state = self.deployment.client(node).pull.streams.get(input.message.stream)
            if state is not None and state.held and (last := state.held[-1]).hi - last.lo > 1:
                self.left -= 1
                _tell(self.deployment, node, input.src, last.slice(last.lo, (last.lo + last.hi) // 2))


class Lies:
    """What clients were told that contradicts what they know, and how often they said so."""

    def __init__(self) -> None:
        self.told: Counter[NodeId] = Counter()
        self.refused: Counter[NodeId] = Counter()

    def on_report(self, time: float, node: NodeId, name: str, value: float) -> None:
        """Whoever refuses a contradiction reports it."""
        self.refused[node] += name == "contradiction"

    @property
    def believed(self) -> int:
        """How many lies nobody objected to."""
        return sum((self.told - self.refused).values())


def _forge(deployment: Deployment, rng: random.Random, lies: Lies) -> None:
    """Heads and a client are told what contradicts what they know; they must refuse it and go on."""
    world = deployment.world
    for region in sorted(deployment.replicas):
        head = deployment.proxy(deployment.membership(region).head)
        for stream, expect in sorted(head.inter_region.expects.items()):
            policy = head.streams[stream].gc if stream in head.streams else ""
            awake = world.hosts[head.me].life and not world.hosts[head.me].wake_at  # else it may be half true later
            if expect.source and "by-key" in policy and awake:
                own = head.log.ends[stream]  # of two events on one key the older cannot outlive the newer
                false = Span(stream, own, own + 2, own + 2, data_rows(own, [b"k", b"k"], [b"a", b"b"]))
                _tell(deployment, head.me, expect.source, false)
    node = rng.choice(_alive(deployment))
    for stream, state in sorted(deployment.client(node).pull.streams.items()):
        spans = [span for span in state.recv.spans if span.rows.count and isinstance(span.rows, ArrowRows)]
        if spans:
            true = rng.choice(spans)
            rows = data_rows(true.lo, None, [b"forged"])
            _mislead(deployment, node, stream, state.horizon)
            lies.told[node] += not world.hosts[node].wake_at  # who sleeps may have forgotten the truth when it wakes
            _tell(deployment, node, deployment.replicas[deployment.region_of[node]][0], _replaced(stream, true, rows))
            return


def _mislead(deployment: Deployment, node: NodeId, stream: str, horizon: int) -> None:
    """What is seen through a filter, or of another stream, is no answer: nothing of it may be delivered."""
    replica = deployment.replicas[deployment.region_of[node]][0]
    for name, lens in ((stream, Lens("seq > 0")), ("elsewhere", ALL)):
        span = Span(name, horizon, horizon + 5, horizon + 5, NO_ROWS, lens)
        told = Received(replica, Know(stream, (span,), span.hi))
        deployment.world.inject(deployment.world.now, node, cast(Any, told))


def _replaced(stream: str, true: Span, rows: ArrowRows) -> Span:
    return Span(stream, true.lo, true.hi, true.asof, rows)


def _tell(deployment: Deployment, node: str, source: str, span: Span) -> None:
    told = Received(source, Know(span.stream, (span,), span.hi))
    deployment.world.inject(deployment.world.now, node, cast(Any, told))
