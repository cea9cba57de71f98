"""Scripted clients: applications on the client library (client/machine.py), in a simulated world.

The members of a campaign's fabric feed each other; replicas feed scripted clients. A world has three of them, or none.
The *editor* defines a stream, publishes to it and follows others, each subscription durable or filtered, fast or slow.
The *rival* takes over the editor's durable subscription. The *correspondent* is in another region, pauses for a while,
and follows what the editor publishes. They also make requests that must be refused, and ask what became of a number.
In the healed phase no scripted client is slow: one that is not at the end of a stream was not fed, or did not ask.

Their deliveries go into the trace as receipts. The answers that they get are compared with the right ones.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.check.survivors import Survivors, hashes, ints
from tidings.check.tables import ALIVE, Trace
from tidings.client.commands import Answered, Ask, Broken, Close, Open, Processed, Submit, Taken
from tidings.client.machine import ClientMachine, MachineSettings
from tidings.core.filters import parse_attributes
from tidings.core.ids import NodeId, RegionId, StreamId, stream_name
from tidings.core.predicates import Predicate
from tidings.core.rows import ArrowRows, CountedRows, Rows, data_rows, where_rows
from tidings.protocols.brokers.messages import EARLIEST, LATEST, Follow, SubscriptionSettings, Unfollowed
from tidings.protocols.brokers.subscriber import Ended, Fed, Lost, Saved, Subscriber
from tidings.protocols.kernel import (
    Command,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Message,
    Received,
    Send,
    SetTimer,
    Time,
    Timer,
)
from tidings.protocols.nodes.client import ClientSettings
from tidings.protocols.services.catalog import (
    Because,
    Define,
    Defined,
    Description,
    NotDefined,
    Operation,
    StreamDef,
    Why,
)
from tidings.protocols.services.publishing import Acked, Refused
from tidings.sim.build import Deployment, Note

NEWS = "news"
"""The stream that the editor defines."""
ATTRS, MORE = "n bigint", "n bigint,place string"
WHERE = "seq < 60 or seq >= 200 and seq < 230 or seq >= 600"
LEDGER = "ledger"
"""The durable subscription that the rival takes over."""
BRIEF, NOWHERE = "brief", "nowhere"
"""A stream that is soon deleted, and one that never is."""
POLICY = "by-key,keep-last:60"
EDITOR, RIVAL, CORRESPONDENT = "editor", "rival", "correspondent"
TICK = 0.25
ANSWERS = frozenset({Acked, Answered})
"""After these a client that is behind its script continues at once; a refused publisher opens a session first."""
CROWD = 1 << 20  # ids and nonces from here on are not of the script
AGAIN = 100  # between the ids of a subscription and of the next attempt at it
UNFIT, WONDERED, ODD = 1000, 2000, 3000  # tags and nonces from here on
FEEDS = SubscriptionSettings(window=4, chunk_rows=64, apart=4, patience=5, ask=6, subscriptions=48, cursors=12, swept=6)
"""So small that worlds of a few thousand events come up against them."""


def passes(seq: Any) -> Any:
    """`WHERE`, written once more."""
    return (seq < 60) | ((seq >= 200) & (seq < 230)) | (seq >= 600)


class ScriptTick(Timer, frozen=True, gc=False):
    """The application does the next thing."""


class Crowd(Command, frozen=True, gc=False):
    """Ask a replica for more subscriptions than it has room for."""

    stream: StreamId
    size: int


class Wonder(Command, frozen=True, gc=False):
    """Ask what has become of a number that a subscription was fed some seconds ago."""

    nonce: int
    id: int


Told = tuple[int, int, Because]  # a number, how far the asker had been fed a while ago, the answer


class ScriptedClient:
    """A client and what is done with it: commands, each with its time in seconds."""

    def __init__(
        self, machine: ClientMachine, todo: list[tuple[float, Command]], lazy: frozenset[int], mended: Time
    ) -> None:
        self.machine = machine
        self.todo = sorted(todo, key=lambda each: each[0])
        self.lazy = lazy  # subscriptions that are taken from once in a while only
        self.mended = mended  # when that is over: a window in two seconds may be less than what is published
        self.fed: dict[int, tuple[int, int]] = {}  # by subscription: from where to where
        self.past: dict[int, list[tuple[Time, int]]] = {}
        self.untaken: dict[int, int] = {}
        self.saved: dict[int, int] = {}
        self.ended: dict[int, Ended] = {}
        self.answers: dict[int, Message] = {}
        self.wondered: dict[int, tuple[int, int]] = {}
        self.acked: set[int] = set()
        self.refused: dict[int, str] = {}
        self.denied = 0  # subscriptions for which there was no room
        self.described: Description | None = None
        self.broken = False
        self.steps = 0

    def start(self, now: Time) -> Effects:
        return [*self.machine.start(now), SetTimer(TICK, ScriptTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is Expired and type(input.timer) is ScriptTick:
            return [*self._act_all(now), *self._take_all(now), SetTimer(TICK, ScriptTick())]
        if type(input) is Received and type(input.message) is Unfollowed and input.message.id >= CROWD:
            self.denied += 1
            return []
        out = self._do(now, input)
        answered = any(type(effect) is Deliver and type(effect.item) in ANSWERS for effect in out)
        return [*out, *self._act_all(now)] if answered else out

    def check(self) -> None:
        self.machine.check()

    @property
    def open(self) -> dict[int, Subscriber]:
        """The subscriptions that are not over."""
        return self.machine.subscribers

    def told(self) -> list[Told]:
        """What became of numbers, as it was told."""
        asked = [(self.wondered[nonce], self.answers[nonce]) for nonce in self.wondered if nonce in self.answers]
        return [(*number, answer) for number, answer in asked if isinstance(answer, Because)]

    def _do(self, now: Time, input: Input) -> list[Effect]:
        effects = list(self.machine.handle(now, input))
        for effect in effects:
            if type(effect) is Deliver:
                self._note(now, effect.item)
        return effects

    def _act_all(self, now: Time) -> list[Effect]:
        """Do what is due: each tick, and with each answer, because a chain may be away until much is due."""
        out: list[Effect] = []
        waiting: set[type[Command]] = set()
        for due in [each for each in self.todo if each[0] <= now]:
            kind = type(due[1])
            if kind in waiting or not self._ready(due[1]):
                waiting.add(kind)  # what is of one kind is done in order
            else:
                self.todo.remove(due)
                out += self._act(now, due[1])
        return out

    def _take_all(self, now: Time) -> list[Effect]:
        """Take and process what was fed."""
        out: list[Effect] = []
        self.steps += 1
        for id, horizon in list(self.untaken.items()):
            if id not in self.lazy or self.steps % 8 == 0 or now >= self.mended:
                del self.untaken[id]
                out += self._do(now, Taken(id, horizon))
                out += self._do(now, Processed(id, horizon, prompt=self.steps % 2 == 0))
        return out

    def _ready(self, command: Command) -> bool:
        """Nothing before the cluster is known; one definition and one batch at a time."""
        machine = self.machine
        if isinstance(command, Ask):
            return bool(machine.home) and not any(nonce < CROWD for nonce in machine.asking)
        if isinstance(command, Submit):
            publisher = machine.publishers.get(command.region)
            return command.stream in {*machine.streams, NOWHERE} and not (publisher and publisher.inflight)
        return bool(machine.home)

    def _act(self, now: Time, command: Command) -> list[Effect]:
        match command:
            case Crowd(stream, size):
                source = self.machine.memberships[self.machine.home].head
                return [Send(source, Follow(CROWD + at, stream, LATEST)) for at in range(size)]
            case Wonder(nonce, id):
                known = [horizon for at, horizon in self.past.get(id, []) if at < now - 3.0 and horizon > 1]
                if not known:
                    return []
                seq = 1 + nonce * 7919 % (known[-1] - 1)
                self.wondered[nonce] = (seq, known[-1])
                return self._do(now, Ask(nonce, Why(self.machine.opened[id].stream, seq)))
        return self._do(now, command)

    def _note(self, now: Time, item: object) -> None:
        match item:
            case Fed(id, span):
                self.fed[id] = (self.fed.get(id, (span.lo, 0))[0], span.hi)
                self.past.setdefault(id, []).append((now, span.hi))
                self.untaken[id] = span.hi
            case Saved(id, horizon):
                self.saved[id] = horizon
            case Ended(id):
                self.ended[id] = item
                opened = self.machine.opened[id]
                if "is unknown" in item.reason and stream_name(opened.stream) == NEWS:  # its definition may take long
                    self.todo.insert(0, (now + 1.0, msgspec.structs.replace(opened, id=id + AGAIN, stream=NEWS)))
            case Answered(nonce, message):
                self.answers[nonce] = message
            case Acked(tag=tag):
                self.acked.add(tag)
            case Refused(tag=tag, reason=reason):
                self.refused[tag] = reason
            case Broken():
                self.broken = True
            case Description():
                self.described = item


def add_scripted_client(
    deployment: Deployment,
    kind: type[ScriptedClient],
    name: str,
    region: RegionId,
    script: list[tuple[float, Command]],
    lazy: frozenset[int] = frozenset(),
) -> NodeId:
    """Open a scripted client in a region of a world; its node."""
    node = f"{region}/{name}"
    publish = deployment.settings.publish
    settings = MachineSettings(publish=publish, subscriptions=FEEDS, refresh=2.0, fabric=ClientSettings())

    def scripted(durable: list[Any], incarnation: int, rng: random.Random) -> ScriptedClient:
        seeds = deployment.memberships[region].replicas
        machine = ClientMachine(node, node, seeds, settings, rng)
        return kind(machine, script, lazy, deployment.scenario.quiet_after)

    deployment.add(node, region, scripted)
    return node


# --- what they do -----------------------------------------------------------------------------------------


def _definitions(home: RegionId, abroad: StreamId) -> list[tuple[Operation, StreamDef, bool | None]]:
    """What the editor defines, and whether it must be possible; None: only the first time."""
    news = StreamDef(NEWS, home, POLICY, attrs=ATTRS)
    brief = StreamDef(BRIEF, home)
    return [
        ("create", news, True),
        ("create", StreamDef("-", home), False),
        ("create", StreamDef(abroad, home), False),
        ("alter", StreamDef(NOWHERE, home), False),
        ("delete", StreamDef(abroad, home), False),
        ("create", news, True),
        ("create", msgspec.structs.replace(news, attrs=MORE), False),
        ("create", brief, True),
        ("alter", msgspec.structs.replace(news, attrs=MORE), True),
        ("alter", msgspec.structs.replace(news, attrs="place string"), False),
        ("delete", brief, None),
        ("create", brief, False),
        ("alter", brief, False),
        ("create", StreamDef("small", home, counted=-1), False),
        ("create", StreamDef("odd", home, gc="odd"), False),
        ("create", StreamDef("odd", home, attrs="n odd"), False),
    ]


def _article(tag: int, **columns: pa.Array) -> Rows:
    texts: list[bytes | None] = [f"{tag}/{at}".encode() for at in range(6)]
    keys: list[bytes | None] = [f"k{(tag * 7 + at) % 11}".encode() for at in range(6)]
    return data_rows(1, keys, texts, attributes={"n": pa.array(range(tag, tag + 6), pa.int64()), **columns})


def _unfit(home: RegionId, deployment: Deployment) -> list[tuple[StreamId, Rows, str]]:
    """Batches that do not fit, and the reasons."""
    plain = data_rows(1, None, [b"x"])
    twice = _article(0)
    assert isinstance(twice, ArrowRows)
    doubled = pa.RecordBatch.from_arrays([*twice.batch.columns, twice.batch["n"]], [*twice.batch.schema.names, "n"])
    wide = Predicate.make("n < 9", parse_attributes(ATTRS))
    abroad = [stream.name for stream in deployment.scenario.streams if stream.region != home]
    found: list[tuple[StreamId, Rows, str]] = [
        (NOWHERE, plain, "stream"),
        (abroad[0], plain, "stream"),
        (NEWS, _article(0, other=pa.nulls(6, pa.int64())), "rows"),
        (NEWS, _article(0, n=pa.nulls(6, pa.string())), "rows"),
        (NEWS, ArrowRows.dense(1, doubled), "rows"),
        (NEWS, where_rows(1, [wide.text]), "rows"),
        (NEWS, CountedRows(1, 3, 10), "rows"),
    ]
    for stream in deployment.streams:
        if stream.counted and stream.region == home:
            found += [(stream.name, plain, "rows"), (stream.name, CountedRows(1, 3, stream.counted + 1), "rows")]
    return found


class ScriptedClients:
    """The three scripted clients of a world, and what must hold of them in the end."""

    def __init__(self, deployment: Deployment, rng: random.Random, *, calm: bool, forgetful: RegionId) -> None:
        self.deployment = deployment
        self.rng = rng
        self.calm = calm
        regions = sorted(deployment.replicas)
        self.home, self.away = regions[0], regions[-1]
        self.forgets = forgetful == self.home
        self.own, self.foreign = f"s-{self.home}", f"s-{self.away}"
        self.definitions = _definitions(self.home, self.foreign)
        self.unfit = _unfit(self.home, deployment)
        deployment.settings = msgspec.structs.replace(deployment.settings, subscriptions=FEEDS)
        deployment.recorder.expected[NEWS] = StreamDef(NEWS, self.home, POLICY)
        self.nodes = {EDITOR: self.home, RIVAL: self.home, CORRESPONDENT: self.away}
        scripts = {EDITOR: self._edit(), RIVAL: self._compete(), CORRESPONDENT: self._correspond()}
        for name, region in self.nodes.items():
            add_scripted_client(deployment, ScriptedClient, name, region, scripts[name], frozenset({2}))
        world = deployment.world
        world.at(rng.uniform(4.0, 9.0), lambda: world.pause(f"{self.away}/{CORRESPONDENT}", 4.0))
        world.at(13.001, self._startle)
        for at in (5.0, 7.5, 11.0):
            for name, region in self.nodes.items():
                lost = rng.choice(deployment.replicas[region])
                world.inject(at + rng.random(), f"{region}/{name}", Lost(lost))

    def _startle(self) -> None:
        """The rival loses the head that it has just asked for the ledger."""
        head = self.deployment.resolve(f"{self.home}/head")
        self.deployment.world.inject(self.deployment.world.now, f"{self.home}/{RIVAL}", Lost(head))

    def scripted(self, name: str) -> ScriptedClient:
        """By its name."""
        machine = self.deployment.world.hosts[f"{self.nodes[name]}/{name}"].machine
        assert isinstance(machine, ScriptedClient)
        return machine

    def _edit(self) -> list[tuple[float, Command]]:
        todo: list[tuple[float, Command]] = [
            (1.0, Open(1, self.own, EARLIEST, "", None, 1)),
            (1.0, Open(2, self.foreign, EARLIEST, WHERE, None, 2)),
            (1.5, Open(3, self.own, EARLIEST, "", LEDGER, 10)),
            (8.0, Close(3)),
            (8.5, Open(4, self.own, EARLIEST, "", LEDGER, 20)),
            (5.5, Open(5, BRIEF, EARLIEST, "", None, 5)),
            (3.0, Open(6, self.own, EARLIEST, "no such filter", None, 6)),
            (3.0, Open(7, NOWHERE, EARLIEST, "", None, 7)),
            (3.0, Open(8, self.own, 0, "", None, 8)),
            (3.0, Open(9, "_publishers", EARLIEST, "", None, 9)),
            (4.0, Open(10, self.own, LATEST, "", None, 10)),
        ]
        for at, (operation, definition, _) in enumerate(self.definitions):
            todo.append((1.0 + 0.6 * at, Ask(at + 1, Define(at + 1, operation, definition), self.home, head=True)))
        todo += [(2.0 + 0.5 * tag, Submit(self.home, NEWS, _article(tag), tag)) for tag in range(1, 26)]
        for at, (stream, rows, _) in enumerate(self.unfit):
            todo.append((4.3 + at, Submit(self.home, stream, rows, UNFIT + at)))
        todo += [(5.2 + 1.7 * at, Wonder(WONDERED + at, 1)) for at in range(6)]
        odd = [Why(self.own, 1 << 40), Why(self.own, 0), Why(NOWHERE, 1), Why("_publishers", 1)]
        todo += [(14.2 + 0.2 * at, Ask(ODD + at, why)) for at, why in enumerate(odd)]
        return todo

    def _compete(self) -> list[tuple[float, Command]]:
        todo: list[tuple[float, Command]] = [
            (3.0, Open(2, self.own, LATEST, WHERE, None, 1)),
            (13.0, Open(1, self.own, EARLIEST, "", LEDGER, 1)),
        ]
        return [*todo, (15.0, Crowd(self.own, FEEDS.subscriptions + 9))] if self.calm else todo

    def _correspond(self) -> list[tuple[float, Command]]:
        return [
            (3.0, Open(1, NEWS, EARLIEST, "n >= 9", None, 1)),
            (1.0, Open(2, self.foreign, EARLIEST, "", None, 2)),
            (2.0, Open(3, self.own, 30, "", None, 3)),
        ]

    # --- what must hold -----------------------------------------------------------------------------------

    @property
    def refused(self) -> int:
        """How many batches were refused to scripted clients."""
        return sum(len(self.scripted(name).refused) for name in self.nodes)

    def note_alive(self) -> None:
        """How far those subscriptions got that are not over."""
        recorder, now = self.deployment.recorder, self.deployment.world.now
        for name, region in self.nodes.items():
            for id, subscriber in self.scripted(name).open.items():
                recorder.gauge(now, f"{region}/{name}#{id}", f"{ALIVE}{subscriber.stream}", subscriber.horizon or 0)

    def demand(self, note: Note) -> None:
        """What they were told must be right, and they must have been told all."""
        editor, rival, correspondent = (self.scripted(name) for name in (EDITOR, RIVAL, CORRESPONDENT))
        for name in self.nodes:
            scripted = self.scripted(name)
            waiting = len(scripted.todo) + len([nonce for nonce in scripted.machine.asking if nonce < CROWD])
            note(name, "waits", 0 if scripted.broken else waiting, 0)
            note(name, "wrong_endings", len((set(scripted.ended) ^ self._endings(name)) - self._untold(name)), 0)
            note(name, "not_described", not self._described(scripted), 0)
        note(EDITOR, "wrong_answers", len(list(self._wrong_answers(editor))), 0)
        if not editor.broken:
            unfit = {UNFIT + at: reason for at, (_, _, reason) in enumerate(self.unfit)}
            note(EDITOR, "wrongly_refused", len(unfit.items() ^ editor.refused.items()), 0)
            note(EDITOR, "unacknowledged", len(set(range(1, 26)) - editor.acked), 0)
        self._demand_ledger(editor, rival, note)
        note(CORRESPONDENT, "began_elsewhere", abs(correspondent.fed.get(3, (0, 0))[0] - 30), 0)
        if self.calm:
            note(RIVAL, "crowd_let_in", FEEDS.subscriptions < FEEDS.subscriptions + 9 - rival.denied, 0)
        trace = self.deployment.recorder.trace()
        note("scripted_clients", "misfiltered", misfiltered(trace), 0)
        note(EDITOR, "wrong_becauses", self._wrong_becauses(trace, editor.told()), 0)

    def _demand_ledger(self, editor: ScriptedClient, rival: ScriptedClient, note: Note) -> None:
        """Of two holders the older one is told so; the other resumes where the cursor was, or beyond what was told.

        In the end what the last one has processed is saved.
        """
        shares = [(editor, 3), (editor, 4), (rival, 1)]
        if self._usurped():  # the rival was quicker than the editor, whose chain was away
            shares = [(editor, 3), (rival, 1), (editor, 4)]
        holders = len({4} & editor.open.keys()) + len({1} & rival.open.keys())
        note(LEDGER, "holders", holders, 2 if self._quiet() else 1)
        for (before, last), (heir, id) in itertools.pairwise(shares):
            if id in heir.fed:
                lo = heir.fed[id][0]
                note(LEDGER, "resumed_too_late", lo - before.fed.get(last, (1, 1))[1], 0)
                if not self.forgets:  # else the heir may have come before the cursor was opened again
                    note(LEDGER, "resumed_too_early", before.saved.get(last, 1) - lo, 0)
        holder, id = shares[-1]
        if id in holder.fed and id in holder.open:
            note(LEDGER, "unsaved", holder.fed[id][1] - holder.saved.get(id, 0), 0)

    def _usurped(self) -> bool:
        """Whether the editor holds the ledger in the end, because its question was answered last."""
        head = self.deployment.proxy(self.deployment.membership(self.home).head)
        entry = head.cursors.entries.get((LEDGER, self.own))
        return entry is not None and entry.node == f"{self.home}/{EDITOR}" and not self.calm

    def _quiet(self) -> bool:
        """Whether nothing came after the last holder took over: then the one before had nothing to save to be told."""
        heir, id = (EDITOR, 4) if self._usurped() else (RIVAL, 1)
        return id not in self.scripted(heir).fed and not self.calm

    def _untold(self, name: str) -> set[int]:
        loser, id = (RIVAL, 1) if self._usurped() else (EDITOR, 4)
        return {id} if name == loser and self._quiet() else set()

    def _endings(self, name: str) -> set[int]:
        """Which subscriptions must be over; one that began before its stream was known may have been."""
        early = {
            id for id, ended in self.scripted(name).ended.items() if "is unknown" in ended.reason and id % AGAIN == 1
        }
        counted = {stream.name for stream in self.deployment.streams if stream.counted}  # nothing to filter by
        if name == CORRESPONDENT:
            return early
        usurped = self._usurped()
        if name == RIVAL:
            return {*({2} if self.own in counted else ()), *({1} if usurped else ())}
        return {5, 6, 7, 8, 9, *({2} if self.foreign in counted else ()), *(() if usurped else (4,))}

    def _described(self, scripted: ScriptedClient) -> bool:
        if scripted.described is None:
            return False
        streams = {stream.name: stream for stream in scripted.described.streams}
        return BRIEF not in streams and NEWS in streams and streams[NEWS].attrs == MORE

    def _wrong_answers(self, editor: ScriptedClient) -> Iterator[object]:
        for at, (operation, definition, possible) in enumerate(self.definitions):
            answer = editor.answers.get(at + 1)
            if isinstance(answer, Defined):
                new = answer.definition
                right = possible is not False and new.name == definition.name and new.region == self.home
                right &= new.deleted == (operation == "delete")
                right &= operation != "create" or (new.gc, new.attrs) == (definition.gc, definition.attrs)
            else:
                right = isinstance(answer, NotDefined) and not possible and (possible is False or not self.calm)
            if not right:
                yield answer
        states = ("not published yet", "never a number", "unknown stream", "unknown stream")
        for at, state in enumerate(states):
            answer = editor.answers.get(ODD + at)
            if not isinstance(answer, Because) or answer.state != state:
                yield answer

    def _wrong_becauses(self, trace: Trace, told: list[Told]) -> int:
        """A number that survives everything must be a row; one collected long before the question must not.

        Where something breaks, the replica that was asked may be behind: it was paused, or rejoins its chain.
        """
        stream = _stream(trace, self.own)
        wrong = 0
        for seq, known, because in told:
            lo, asof = np.array([seq, seq]), np.array([stream.end, known])
            expected = stream.expect(lo, lo + 1, asof)
            if expected.forgotten.any() or expected.lost.any():
                continue  # told before the loss
            now, then = expected.rows.tolist()
            if because.state == "not published yet" or (because.state == "row" and not then):
                wrong += self.calm
            else:
                wrong += because.state not in {"row" if now else "collected", "collected" if not then else "row"}
                wrong += because.state == "collected" and because.by is not None and not seq < because.by < stream.end
        return wrong


def _stream(trace: Trace, name: StreamId) -> Survivors:
    published = trace.published.filter(pc.equal(trace.published["stream"], name))
    return Survivors(published, trace.policies.get(name, "none"))


def misfiltered(trace: Trace) -> int:
    """Receipts through `WHERE` that do not hold exactly the surviving rows that pass it."""
    wrong = 0
    receipts = trace.delivered.filter(pc.starts_with(trace.delivered["lens"], "seq"))
    for name in receipts["stream"].unique().to_pylist():
        stream = _stream(trace, name)
        mine = receipts.filter(pc.equal(receipts["stream"], name))
        columns = zip(
            *[ints(mine, each) for each in ("lo", "hi", "asof", "rows")], hashes(mine, "hash_sum"), strict=True
        )
        for lo, hi, asof, rows, total in columns:
            seq = np.arange(lo, hi)
            seq = seq[passes(seq)]
            expected = stream.expect(seq, seq + 1, np.full(len(seq), asof))
            if expected.forgotten.any() or expected.lost.any():
                continue  # told before the loss
            wrong += rows != expected.rows.sum()
            wrong += bool(expected.hashed.all()) and total != expected.hash_sum.sum(dtype=np.uint64)
    return wrong
