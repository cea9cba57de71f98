"""What a campaign demands of publishers, sinks and subscribers.

Most of it is thrift and courtesy: nobody says twice what was heard, asks somebody who was not named, or waits where it
knows better; and nothing is said to be done before it is.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.core.lens import ALL
from tidings.lab.desk import CORRESPONDENT, EDITOR, RIVAL, Desk, DeskTick
from tidings.lab.guests import Guests, Jobs
from tidings.lab.seeds import HEAL, SECONDS, Plan
from tidings.lab.watch import Watch
from tidings.protocols.catalog import Description
from tidings.protocols.kernel import Deliver, Effects, Expired, Persist, Received, Report, Send
from tidings.protocols.log import Logged
from tidings.protocols.proxy import Proxy
from tidings.protocols.publishing import (
    PUBLISHERS,
    Failed,
    NotHead,
    OpenSession,
    Publish,
    Publisher,
    Publishers,
    Refused,
    Rejected,
)
from tidings.protocols.sinks import (
    SINKS,
    STAGED,
    STAGES,
    AbortBatch,
    BatchCommitted,
    CommitBatch,
    Past,
    SinkAnswered,
    SinkClient,
    SinkEntry,
    Sinks,
    SinkTick,
    StageRows,
)
from tidings.protocols.subscriptions import (
    CURSORS,
    NOWHERE,
    Consumed,
    CursorAt,
    Cursors,
    Ended,
    Feed,
    Follow,
    Lost,
    OpenCursor,
    SaveCursor,
    Subscriber,
    Unfollow,
    Unfollowed,
)
from tidings.sim.build import Deployment, Note
from tidings.sim.sinks import SinkWriter
from tidings.sim.workload import Writer

PROBES = 1.03  # seconds between two looks at what heads remember
SOON = 0.0004  # seconds in which no answer can have come: a hop takes 1 ms
REQUESTS = (StageRows, CommitBatch, AbortBatch)
UNHURRIED = 0.9  # a clock of a simulated node may be some percent too fast


Batch = tuple[bytes, int]
"""Of a sink: the key of its writer, and where it begins."""
_ENTRY = msgspec.msgpack.Decoder(SinkEntry)


class Said:
    """A message as it leaves."""

    __slots__ = ("effects", "incarnation", "input", "message", "node", "time", "to")

    def __init__(
        self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects, to: NodeId, message: Any
    ) -> None:
        self.time = time
        self.node = node
        self.incarnation = incarnation
        self.input = input
        self.effects = effects
        self.to = to
        self.message = message


class ClientsWatch(Watch):
    """Watches publishers, sinks and subscribers."""

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        super().__init__(deployment, plan)
        self.wrong: Counter[str] = Counter()
        self.members = frozenset([node for nodes in deployment.clients.values() for node in nodes])
        self.owners = {stream.name: stream.region for stream in plan.scenario.streams}
        self.guests = Guests(deployment, plan)
        self.subscribers = _Subscribers(self)
        self.publishers = _Publishers(self)
        self.sinks = _Sinks(self)
        parts = (self.subscribers, self.publishers, self.sinks)
        self._sent: dict[Any, Callable[[Said], None]] = {}
        self._received: dict[type, list[Callable[[float, NodeId, Received, Effects], None]]] = defaultdict(list)
        for part in parts:
            self._sent.update(part.sent)
            for kind, handler in part.received.items():
                self._received[kind].append(handler)
        self._received = dict(self._received)
        world = deployment.world
        for at in range(int((SECONDS - 2.0) / PROBES)):
            world.at(2.0 + PROBES * at, self._probe)
        self.startling = plan.desks and not self.calm  # one that was lost without cause still feeds, and is behind soon
        if self.startling:
            rng = random.Random(f"startled/{plan.seed}")
            for _ in range(10):
                world.at(rng.uniform(3.0, HEAL), partial(self.subscribers.startle_any, rng))

    def on_report(self, time: float, node: NodeId, name: str, value: float) -> None:
        """A record of a sink's batch is written."""
        if name == "sink_moved":
            self.guests.bystand(time, node)

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Every step of every node; those of plain members are not looked at."""
        if node in self.members:
            return
        if type(input) is Received:
            for handler in self._received.get(type(input.message), ()):
                handler(time, node, input, effects)
        elif type(input) is Lost:
            self.subscribers.lost(time, node, effects)
        for effect in effects:
            if type(effect) is Send:
                said = self._sent.get(type(effect.message))
                if said is not None:
                    said(Said(time, node, incarnation, input, effects, effect.to, effect.message))
            elif type(effect) is Persist:
                if type(effect.record) is Logged:
                    self.sinks.written(node, effect.record.record)
            elif type(effect) is Deliver:
                self._delivered(node, effect.item)
        if type(input) is Expired and type(input.timer) is SinkTick:
            self.sinks.ticked(node, effects)

    def _delivered(self, node: NodeId, item: Any) -> None:
        kind = type(item)
        if kind is Refused or kind is Failed:
            self.publishers.refused[node] += 1
        elif kind is SinkAnswered:
            self.sinks.useful[node] = True
        elif kind is Ended and item.floor:
            self.subscribers.denied(node, item.id)

    def _probe(self) -> None:
        """What a head remembers is what its log says: the next one would know as much."""
        for nodes in self.deployment.replicas.values():
            for node in nodes:
                host = self.deployment.world.hosts[node]
                if host.life and not host.wake_at and isinstance(host.machine, Proxy):
                    self._compare(host.machine)
        if self.calm:
            self.subscribers.count()

    def _compare(self, head: Proxy) -> None:
        if not head.chain.is_head or head.led is None or head.log.committed < head.log.last:
            return
        gone = {stream.name for stream in head.streams.values() if stream.deleted}
        cursors = Cursors(head.settings.subscriptions)
        cursors.load(head._all_rows(CURSORS), gone)
        self.wrong["cursors_unwritten"] += cursors.entries != head.cursors.entries
        publishers = Publishers(head.settings.publish)
        publishers.load(head._all_rows(PUBLISHERS))
        now = self.deployment.world.hosts[head.me].clock(self.deployment.world.now)
        for name, entry in head.publishers.entries.items():
            expired = now - entry.at > head.settings.publish.ttl  # the log may have forgotten it before the head does
            self.wrong["publishers_unwritten"] += not expired and publishers.entries.get(name) != entry
        sinks = Sinks(head.log, head.region, head.sinks.tick, head.settings.sinks)
        sinks.load(head._all_rows(SINKS), head._all_rows(STAGES))
        self.wrong["sinks_unwritten"] += sinks.entries != head.sinks.entries
        staged, remembered = ({o: s.chunks for o, s in each.stagings.items()} for each in (sinks, head.sinks))
        self.wrong["stagings_unwritten"] += staged != remembered
        stored = {chunk for chunk in head.sinks.dead if chunk.lo >= head.log.histories[STAGED[chunk.slot]].low}
        self.wrong["dropped_rows_unknown"] += set(sinks.dead) != stored  # an older head may have collected the others

    def demand(self, note: Note) -> None:
        self._probe()
        self.publishers.count()
        if self.calm:
            reports = self.deployment.world.reports  # of a calm run's batches each fits one record
            self.wrong["batches_moved_in_pieces"] += int(
                reports.get("sink_moved", 0) - reports.get("sink_committed", 0)
            )
        for name in sorted(self.wrong):
            note("clients", name, self.wrong[name], 0)
        self.guests.demand(note)

    # --- who they are -------------------------------------------------------------------------------------

    def desk(self, node: NodeId) -> Desk | None:
        """The machine of a desk; None if the node is none."""
        machine = self.deployment.world.hosts[node].machine
        return machine if isinstance(machine, Desk) else None

    def publishers_of(self, node: NodeId) -> list[Publisher]:
        """All publishers of a node."""
        machine = self.deployment.world.hosts[node].machine
        if isinstance(machine, Writer):
            return [machine.client.publisher] if machine.client.publisher is not None else []
        return list(machine.machine.publishers.values()) if isinstance(machine, Desk) else []

    def sink_of(self, node: NodeId) -> SinkClient | None:
        """The client of a query or of jobs."""
        machine = self.deployment.world.hosts[node].machine
        return machine.client if isinstance(machine, SinkWriter | Jobs) else None


class _Subscribers:
    """Those who are fed by replicas, and their replicas."""

    def __init__(self, watch: ClientsWatch) -> None:
        self.watch = watch
        self.wrong = watch.wrong
        self.sent = {
            Feed: self._fed,
            Follow: self._follows,
            Consumed: self._consumed,
            OpenCursor: self._opens,
            SaveCursor: self._saves,
            CursorAt: self._at,
        }
        self.received = {
            Feed: self._adopts,
            Follow: self._heard,
            Consumed: self._heard,
            Unfollowed: self._unfollowed,
            Description: self._learned,
            NotHead: self._learned,
        }
        self.heard: dict[tuple[NodeId, NodeId, int], float] = {}  # when a replica heard of a subscription
        self.sources: dict[tuple[NodeId, int], NodeId] = {}  # who feeds it
        self.regions: dict[tuple[NodeId, int], tuple[StreamId, set[RegionId]]] = {}  # who was asked to
        self.said: dict[tuple[NodeId, int], tuple[int, int]] = {}  # how often which number was said to be consumed
        self.numbers: dict[tuple[str, StreamId], dict[int, set[NodeId]]] = defaultdict(dict)  # of holders
        self.known: dict[NodeId, Any] = {}  # memberships
        self.startled: set[tuple[NodeId, str]] = set()
        self.expected: dict[NodeId, dict[int, NodeId | None]] = {}  # whom each subscription must ask; None: nobody

    # --- replicas -----------------------------------------------------------------------------------------

    def _heard(self, time: float, node: NodeId, input: Received, effects: Effects) -> None:
        message: Any = input.message
        self.heard[node, input.src, message.id] = time

    def _fed(self, said: Said) -> None:
        """Coverage without rows waits for the beat; nobody is asked whether it is there who was heard of lately."""
        feed, settings = said.message, self.watch.deployment.settings.subscriptions
        if feed.spans:
            if type(said.input) is not Expired and all([span.lens != ALL for span in feed.spans]):
                self.wrong["empty_feeds"] += not any([span.rows.count or span.lost for span in feed.spans])
        elif feed.at == NOWHERE:
            since = said.time - self.heard.get((said.node, said.to, feed.id), 0.0)
            self.wrong["asked_too_soon"] += since < UNHURRIED * settings.ask * settings.beat

    def _at(self, said: Said) -> None:
        """Nobody is told of a holder that there never was, unless two came upon one number: then of the next one."""
        numbers, holder = self.numbers[said.message.name, said.message.stream], said.message.holder
        made_up = holder > 0 and holder not in numbers and len(numbers.get(holder - 1, ())) < 2
        self.wrong["holders_made_up"] += made_up

    # --- subscribers --------------------------------------------------------------------------------------

    def _follows(self, said: Said) -> None:
        key = said.node, said.message.id
        self.sources[key] = said.to
        self.regions.setdefault(key, (said.message.stream, set()))[1].add(self.watch.deployment.region_of[said.to])

    def _adopts(self, time: float, node: NodeId, input: Received, effects: Effects) -> None:
        """Who was asked before and answers late may feed it after all."""
        message: Any = input.message
        if self.sources.get((node, message.id), input.src) != input.src:
            desk = self.watch.desk(node)
            subscriber = desk.open.get(message.id) if desk is not None else None
            if subscriber is not None and subscriber._source() == input.src:
                self.sources[node, message.id] = input.src

    def _consumed(self, said: Said) -> None:
        """Not before the application has taken it, and of what was all taken twice, in case the first is lost."""
        message = said.input.message if type(said.input) is Received else None
        desk = self.watch.desk(said.node)
        if desk is None or (type(message) is Feed and message.at == NOWHERE and not message.spans):
            return
        id, horizon = said.message.id, said.message.horizon
        number, times = self.said.get((said.node, id), (0, 0))
        self.said[said.node, id] = horizon, times + 1 if number == horizon else 1
        subscriber = desk.open.get(id)
        if type(message) is Feed and subscriber is not None:
            self.wrong["consumed_before_taken"] += len(message.spans) > 0
            all_taken = subscriber.horizon is not None and subscriber.taken >= subscriber.horizon
            self.wrong["consumed_told_often"] += all_taken and self.said[said.node, id][1] > 2

    def _opens(self, said: Said) -> None:
        message = said.message
        self.numbers[message.name, message.stream].setdefault(message.holder, set()).add(said.node)
        if self.watch.startling and (said.node, message.name) not in self.startled:
            self.startled.add((said.node, message.name))
            first = len(self.startled) % 2
            self.watch.deployment.world.at(said.time + SOON, partial(self._startle_opening, said.node, said.to, first))

    def _saves(self, said: Said) -> None:
        """What nobody waits for is saved with the tick, and only by the head."""
        desk = self.watch.desk(said.node)
        if desk is None:
            return
        if type(said.input) is Expired and type(said.input.timer) is DeskTick and desk.steps % 2:
            closing = any([type(each) is Send and type(each.message) is Unfollow for each in said.effects])
            self.wrong["saved_unasked"] += not closing
        if self.watch.calm:
            region = self.watch.deployment.region_of[said.node]
            self.wrong["saved_elsewhere"] += said.to != self.watch.deployment.membership(region).head

    def count(self) -> None:
        """Where no head is ever replaced nobody takes another replica for it."""
        deployment = self.watch.deployment
        for node, region in deployment.region_of.items():
            desk = self.watch.desk(node)
            for subscriber in desk.open.values() if desk is not None else ():
                durable = subscriber.name is not None and subscriber.opened
                self.wrong["wrong_heads"] += durable and subscriber._head() != deployment.membership(region).head

    def _unfollowed(self, time: float, node: NodeId, input: Received, effects: Effects) -> None:
        """What cannot be had is not asked of the next replica, unless this one has only forgotten it."""
        message: Any = input.message
        if not message.floor:
            self.wrong["asked_although_refused"] += message.id in _followed(effects)

    def denied(self, node: NodeId, id: int) -> None:
        """Nobody is told that a number is forgotten before the owner's region was asked."""
        stream, regions = self.regions.get((node, id), ("", set()))
        owner = self.watch.owners.get(stream)
        self.wrong["owner_not_asked"] += owner is not None and owner not in regions

    def _learned(self, time: float, node: NodeId, input: Received, effects: Effects) -> None:
        """Who hears that its replica has left the chain asks another at once."""
        desk = self.watch.desk(node)
        if desk is None:
            return
        membership, known = desk.machine.memberships.get(desk.machine.home), self.known.get(node)
        if membership is known or membership is None:
            return
        self.known[node] = membership
        asked = _followed(effects)
        for id, subscriber in desk.open.items():
            source = self.sources.get((node, id))
            if source is not None and known is not None and _eager(subscriber) and not subscriber.asof:
                self.wrong["waits_for_nobody"] += source not in membership.replicas and id not in asked

    # --- lost connections -----------------------------------------------------------------------------------

    def startle_any(self, rng: random.Random) -> None:
        """A desk loses a connection: that of a subscription, or another one."""
        deployment = self.watch.deployment
        regions = sorted(deployment.replicas)
        node = rng.choice([f"{regions[0]}/{EDITOR}", f"{regions[0]}/{RIVAL}", f"{regions[-1]}/{CORRESPONDENT}"])
        desk = self.watch.desk(node)
        replicas = deployment.replicas[deployment.region_of[node]]
        lost = rng.choice(replicas)
        if desk is not None and desk.open and rng.random() < 0.6:
            lost = rng.choice(list(desk.open.values()))._source()
        self._startle(node, lost)

    def _startle_opening(self, node: NodeId, asked: NodeId, first: int) -> None:
        """Just now it has asked for a cursor; whom it asked is lost, or somebody else."""
        replicas = self.watch.deployment.replicas[self.watch.deployment.region_of[node]]
        self._startle(node, asked if first or len(replicas) == 1 else next(each for each in replicas if each != asked))

    def _startle(self, node: NodeId, lost: NodeId) -> None:
        world, desk = self.watch.deployment.world, self.watch.desk(node)
        if desk is None or node in self.expected or world.hosts[node].wake_at or not world.hosts[node].life:
            return
        expected: dict[int, NodeId | None] = {}
        for id, subscriber in desk.open.items():
            replicas = subscriber.membership.replicas
            if not subscriber.opened:
                if lost == subscriber._head():
                    expected[id] = replicas[(subscriber.head + 1) % len(replicas)]
                elif lost != subscriber._source():
                    expected[id] = None
            elif _eager(subscriber):
                source = subscriber._source()
                expected[id] = replicas[(subscriber.turn + 1) % len(replicas)] if lost == source else None
        self.expected[node] = expected
        world.inject(world.now, node, Lost(lost))

    def lost(self, time: float, node: NodeId, effects: Effects) -> None:
        """Whoever waits for a node that is lost asks the next one at once, and nobody else does anything."""
        desk = self.watch.desk(node)
        for id, to in self.expected.pop(node, {}).items():
            subscriber = desk.open.get(id) if desk is not None else None
            if subscriber is not None:
                sends = [each for each in effects if type(each) is Send]
                asked = [each.to for each in sends if type(each.message) is Follow and each.message.id == id]
                opens = [(each.to, each.message) for each in sends]
                asked += [to for to, each in opens if isinstance(each, OpenCursor) and each.name == subscriber.name]
                self.wrong["startled_wrongly"] += asked != ([] if to is None else [to])


def _followed(effects: Effects) -> set[int]:
    """The subscriptions that a step asks for."""
    return {each.message.id for each in effects if type(each) is Send and type(each.message) is Follow}


def _eager(subscriber: Subscriber) -> bool:
    """Whether it wants to be fed."""
    ended = subscriber.horizon is not None and subscriber.horizon >= subscriber.hi > 0
    return subscriber.opened and not ended and len(subscriber.ahead) < subscriber.settings.window


class _Publishers:
    """Those who publish."""

    def __init__(self, watch: ClientsWatch) -> None:
        self.watch = watch
        self.wrong = watch.wrong
        self.sent = {OpenSession: self._opens, Publish: self._publishes}
        self.received = {Rejected: self._rejected, NotHead: self._not_head}
        self.sessions: dict[tuple[NodeId, int, RegionId], set[int]] = defaultdict(set)  # nonces
        self.refused: Counter[NodeId] = Counter()  # batches and sessions
        self.asked: dict[tuple[NodeId, int, int], NodeId] = {}  # for a batch
        self.gaps: set[tuple[NodeId, int, int]] = set()

    def _opens(self, said: Said) -> None:
        region = self.watch.deployment.region_of[said.to]
        self.sessions[said.node, said.incarnation, region].add(said.message.nonce)

    def count(self) -> None:
        """A session lasts until something is refused in it."""
        for (node, _, _), nonces in self.sessions.items():
            self.wrong["sessions_for_no_reason"] += max(0, len(nonces) - 1 - self.refused[node])

    def _publishes(self, said: Said) -> None:
        """The same replica gets a batch again only when time has passed, or because it lacks an earlier one."""
        key = said.node, said.message.session, said.message.first
        known, self.asked[key] = self.asked.get(key), said.to
        prompted = type(said.input) is Received and type(said.input.message) is not Rejected
        self.wrong["published_twice_at_once"] += prompted and known == said.to

    def _rejected(self, time: float, node: NodeId, input: Received, effects: Effects) -> None:
        """After a gap all is repeated at once, but once only: what is under way shows the same gap again."""
        message: Any = input.message
        if message.reason != "gap":
            return
        for publisher in self.watch.publishers_of(node):
            if publisher.session == message.session and message.first in publisher.inflight:
                key = node, message.session, next(iter(publisher.inflight))
                repeats = any([type(each) is Send and type(each.message) is Publish for each in effects])
                self.wrong["gaps_left_open"] += key not in self.gaps and not repeats
                self.wrong["gaps_filled_twice"] += key in self.gaps and repeats
                self.gaps.add(key)

    def _not_head(self, time: float, node: NodeId, input: Received, effects: Effects) -> None:
        """Who is told of a newer chain believes it."""
        told: Any = input.message
        for publisher in self.watch.publishers_of(node):
            known = publisher.membership
            if known.region == told.membership.region:
                self.wrong["newer_chains_ignored"] += known.epoch < told.membership.epoch


class _Sinks:
    """Those who write through sinks, and the heads that stage and commit for them."""

    def __init__(self, watch: ClientsWatch) -> None:
        self.watch = watch
        self.wrong = watch.wrong
        self.sent = {**dict.fromkeys(REQUESTS, self._asks), BatchCommitted: self._committed}
        self.received = {
            StageRows: self._stage,
            CommitBatch: self._commit,
            AbortBatch: self._abort,
            NotHead: self._not_head,
        }
        self.useful: dict[NodeId, bool] = {}  # whether a client has been answered since it last repeated
        self.asked: dict[tuple[NodeId, int], NodeId] = {}  # who, by nonce
        self.streams: dict[int, StreamId] = {}  # of commits, by nonce
        self.moves: dict[NodeId, list[tuple[int, int, Batch]]] = defaultdict(list)  # led, record, batch

    # --- clients --------------------------------------------------------------------------------------------

    def _asks(self, said: Said) -> None:
        """The same replica is asked again only when time has passed; one that has been of use is not left."""
        key = said.node, said.message.nonce
        known, self.asked[key] = self.asked.get(key), said.to
        if known is None:
            return
        if type(said.input) is Expired:
            self.wrong["left_though_of_use"] += known != said.to and self.useful.get(said.node, True)
        else:
            self.wrong["asked_twice_at_once"] += known == said.to

    def ticked(self, node: NodeId, effects: Effects) -> None:
        """What is unanswered has been asked again, or nothing is."""
        if any([type(each) is Send and type(each.message) in REQUESTS for each in effects]):
            self.useful[node] = False

    def _not_head(self, time: float, node: NodeId, input: Received, effects: Effects) -> None:
        told: Any = input.message
        client = self.watch.sink_of(node)
        if client is not None and client.membership.region == told.membership.region:
            self.wrong["newer_chains_ignored"] += client.membership.epoch < told.membership.epoch
            if client.membership.epoch == told.membership.epoch:
                self.useful[node] = True

    # --- heads ----------------------------------------------------------------------------------------------

    def _commit(self, time: float, node: NodeId, input: Received, effects: Effects) -> None:
        message: Any = input.message
        self.streams[message.nonce] = message.of.stream

    def _committed(self, said: Said) -> None:
        """Said to be published is what is, all of it."""
        stream = self.streams.get(said.message.nonce, "")
        history = self.watch.deployment.proxy(said.node).log.histories.get(stream)
        self.wrong["said_too_early"] += history is not None and history.horizon < said.message.hi

    def _stage(self, time: float, node: NodeId, input: Received, effects: Effects) -> None:
        """Only who has a batch on the move must wait until it is moved."""
        if any([type(each) is Report and each.name == "sink_waits" for each in effects]):
            message: Any = input.message
            sinks = self.watch.deployment.proxy(node).sinks
            moved = [sinks.entries[moving.key].owner for moving in sinks.moving.values()]
            self.wrong["waits_for_others"] += bool(moved) and message.of.owner not in moved

    def _abort(self, time: float, node: NodeId, input: Received, effects: Effects) -> None:
        """What is aborted is dropped at once."""
        proxy = self.watch.deployment.proxy(node)
        if not proxy.chain.is_head or proxy.recovery.active or _busy(effects):
            return
        message: Any = input.message
        staging = proxy.sinks.stagings.get(message.of.owner)
        if staging is not None and not isinstance(proxy.sinks.judge(message.of), Past):
            mine, theirs = ((of.query, of.batch, of.run) for of in (message.of, staging.of))
            self.wrong["aborted_but_staged"] += mine == theirs

    def written(self, node: NodeId, record: Any) -> None:
        """Of a batch that is moved only so many records are under way."""
        entry = next((part.rows for part in record.parts if part.stream == SINKS), None)
        proxy = self.watch.deployment.proxy(node)
        if entry is not None and proxy.led is not None:
            key, payload = (entry.batch.column(name)[0].as_py() for name in ("key", "payload"))
            batch = key, _ENTRY.decode(payload).recent[-1].lo
            committed = proxy.log.committed
            self.moves[node] = [
                each for each in self.moves[node] if each[0] == proxy.led and committed < each[1] < record.lsn
            ]
            self.moves[node].append((proxy.led, record.lsn, batch))
            most = max(Counter([each for _, _, each in self.moves[node]]).values())
            self.wrong["moved_too_far_ahead"] += most > proxy.settings.sinks.ahead


def _busy(effects: Effects) -> bool:
    return any([type(each) is Report and each.name == "sink_busy" for each in effects])
