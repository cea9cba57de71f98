"""Aimed faults: what chance alone seldom brings, each at a weak spot of the protocols.

A head, middle or tail that sleeps until it is removed, a head perhaps amid a sink's batch or with a fast clock.
A head that is cut off from its chain, goes on taking events alone and is then removed. A region whose replicas all
forget everything, so that what no other region has is lost. A newcomer whose seniors all fall silent just when it gets
the token, or is a member at last. A replica that comes back at once, with the disk it had a second ago, or with records
that were voided since. A link between regions that fails, perhaps one way only, perhaps for most of the run. A region
whose members pause again and again; a newcomer that pauses over its snapshot; a chain that sleeps, and wakes one by
one; a checkpoint on a disk.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.protocols.kernel import Effects, Received, Send
from tidings.protocols.replication.chain import Install
from tidings.protocols.replication.configuration import Promote
from tidings.protocols.replication.log import Checkpoint, CutBack, Installed
from tidings.protocols.replication.recovery import RecoverySettings
from tidings.sim.build import Deployment

HEAL = 17.0  # seconds after which nothing breaks any more
LONG = 6.0  # seconds of an aimed outage: far beyond the 1.5 s of silence after which a replica is removed
REPLICATED = 0.004  # seconds; ours: a sync (0.5 ms and more) and a hop (1 ms), and less than a whole chain takes
FAST = 4.0  # seconds that a fast clock is ahead: more than the silence after which another head takes over
LATE = 1.2  # seconds after which the others answer a region that has forgotten everything; ours: clearly not at once

ORPHANED = "newcomer orphaned"
WAITS = "newcomer orphaned before it was a member"
"""Then its chain must wait: all members are silent, and the newcomer is not one of them."""

FORGOT = "region forgot"


def any_region(deployment: Deployment, rng: random.Random) -> str:
    return rng.choice(sorted(deployment.replicas))


def _sleep(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    """A role of a chain sleeps until it is removed, and wakes up as if nothing had been."""
    role, region = rng.choice(["head", "middle", "tail"]), any_region(deployment, rng)
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
    world, region = deployment.world, any_region(deployment, rng)
    head = deployment.resolve(f"{region}/head")
    if len(deployment.membership(region).replicas) > 1:
        world.set_clock(head, FAST)
        _Interrupted(deployment, head, 0.5, LONG - 0.5)
        world.at(world.now + 1.0, partial(world.set_clock, head))
        hits.append("head with a fast clock sleeps")


def _strand(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    """A head loses its chain but not its publishers, then sleeps: what it took alone must not count."""
    world, region = deployment.world, any_region(deployment, rng)
    head = deployment.resolve(f"{region}/head")
    if len(deployment.membership(region).replicas) == 1:
        return
    blocks = world.partition([head], [node for node in deployment.replicas[region] if node != head])
    world.at(world.now + 1.0, partial(world.pause, head, LONG - 1.0))
    world.at(world.now + 1.2, partial(world.rejoin, blocks))
    hits.append("head stranded")


def _doze(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    """The tail and most clients of a region nod off for a moment, again and again: answers are late and overlap."""
    world, region = deployment.world, any_region(deployment, rng)
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
    role, region = rng.choice(["head", "head", "middle", "tail"]), any_region(deployment, rng)
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
        self.region = any_region(deployment, rng)
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


class Relapse:
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


def write_checkpoint(deployment: Deployment, rng: random.Random) -> None:
    """A replica writes a checkpoint of its state, as stores do to let go of what came before, and restarts with it."""
    world, node = deployment.world, rng.choice(deployment.replicas[any_region(deployment, rng)])
    host = world.hosts[node]
    if host.life and not host.wake_at and host.disk is not None and deployment.proxy(node).chain.installing is None:
        log, token = deployment.proxy(node).log, deployment.proxy(node).chain.token
        at, pieces, epochs = log.committed, log.snapshot(rng.choice([16, 64])), (log.token_epoch, log.joined_epoch)
        for index, spans in enumerate(pieces):
            piece = Checkpoint(at, index, spans, index == len(pieces) - 1, at, *epochs, log.epoch_of(at))
            host.disk.write(world.now, piece, token)
        world.at(world.now + rng.uniform(0.01, 0.5), partial(world.crash, node))
        world.at(world.now + 0.6, partial(world.restart, node))


def fall_silent(deployment: Deployment, rng: random.Random) -> None:
    """A whole chain sleeps, and its members wake one after the other: the first must not be left alone for that."""
    nodes = list(deployment.replicas[any_region(deployment, rng)])
    rng.shuffle(nodes)
    for at, node in enumerate(nodes):
        deployment.world.pause(node, 2.5 + 0.6 * at)


class Drowsy:
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


def cut_long(deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
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

    def __init__(self, rng: random.Random, regions: list[RegionId]) -> None:
        self.rng = rng
        self.region = rng.choice(regions)
        self.absent = ""  # the other region that does not answer, if there is one
        self.held: dict[StreamId, int] = {}  # up to where the others hold its streams
        self.back = 0.0  # when its replicas start again

    @property
    def wait(self) -> float:
        """Seconds for which the region waits for one that does not answer, since another has, which is late."""
        return LATE + self.settings.wait if self.absent else 0.0

    def forget(self, deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
        """The links to the others fail, and a second later the replicas do."""
        world = deployment.world
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
        own = [stream.name for stream in deployment.recorder.streams.values() if stream.region == self.region]
        known = [(stream, tail.log.histories.get(stream)) for stream in own for tail in tails]
        self.held = {stream: max(history.horizon, self.held.get(stream, 0)) for stream, history in known if history}
        self.back = world.now + 0.3
        for node in deployment.replicas[self.region]:
            world.crash(node, lose_disk=True)
            world.at(self.back, partial(world.restart, node))
        deployment.recorder.forgotten(self.region)


Aim = Callable[[Deployment, random.Random, list[str]], object]
ORPHANS: tuple[Aim, ...] = (_Deaf, _Forgetful, _Rash)
AIMS: tuple[Aim, ...] = (_sleep, _hurry, _strand, _doze, _put_back, *ORPHANS)
CUTS: tuple[Aim, ...] = (_cut, cut_long)  # for three regions: two have no way round


def strike(aim: Aim, deployment: Deployment, rng: random.Random, hits: list[str]) -> None:
    aim(deployment, rng, hits)
