"""Claimants: desks (lab/desk.py) that do what programs seldom do, and then at the worst moment, in a simulated world.

Two *claimants*, in two regions, give out one name at the same moment; both publish to what they take for theirs, and
one may delete it later, and publish to it once more in that moment. They follow it, too, and so does a *witness*, if
there is a third region: whatever that takes the stream for must be one of the two, whole, and nothing of the other. The
*hasty* one publishes to a stream before it is there, and again in the very moment in which it is created; what was
refused comes once more when it would fit. The first claimant also opens durable subscriptions to a stream that is then
deleted, more than there is room for where nothing breaks, and a *ghost* vanishes without a word from a stream at rest.

Two streams of one name are no stream of the trace: they are compared with each other instead, replica by replica.
"""

from __future__ import annotations

import random
from typing import Any, cast

import msgspec

from tidings.client.machine import Ask, Open, Submit
from tidings.core.history import History
from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.core.rows import Rows, data_rows
from tidings.lab.desk import AGAIN, FEEDS, Desk, add_desk
from tidings.protocols.catalog import Define, Defined, StreamDef
from tidings.protocols.kernel import Command, Effects, Received, Send, Time
from tidings.protocols.proxy import Proxy
from tidings.protocols.publishing import Publish
from tidings.protocols.receipts import receipts_of
from tidings.protocols.subscriptions import CURSORS, EARLIEST, Ended, Fed, Follow
from tidings.sim.build import Deployment, Note

BOTH, LATER, GONE = "both", "later", "gone"
"""A name that two regions give out, a stream that is published to before it is there, and one that is deleted."""
CLAIMANT, WITNESS, HASTY, GHOST = "claimant", "witness", "hasty", "ghost"
BATCHES, ROWS = 14, 3
AT_ONCE = 1.0  # seconds; when both ask for the name
TOO_SOON, IN_TIME, AFTERWARDS = 900, 901, 902  # tags of what goes to LATER
DURABLE = 20  # ids of durable subscriptions from here on
KEPT = 19  # one that is opened before them and never moved: what is swept around it must leave it alone
FEW, MANY = 9, 16  # of them: together with the desks' fewer, or more, than there is room for
ANEW = ("is unknown", "begin anew", "was deleted")  # reasons to follow again: the other claim may not be known yet
MODULUS = 1 << 64

Content = tuple[int, int, int]
"""Of a stream: its end, how many rows it has, and the sum of their hashes."""


class Claimant(Desk):
    """Minds what it is fed, and begins anew where it is told to; the hasty one does not wait for its stream."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sums: dict[int, tuple[int, int]] = {}  # by subscription: rows and the sum of their hashes

    def _ready(self, command: Command) -> bool:
        if isinstance(command, Submit) and command.stream == LATER:
            publisher = self.machine.publishers.get(command.region)
            known = command.tag != AFTERWARDS or 1 in self.answers
            return bool(self.machine.home) and known and not (publisher and publisher.inflight)
        return super()._ready(command)

    def _note(self, now: Time, item: object) -> None:
        super()._note(now, item)
        match item:
            case Fed(id, span):
                rows, total = self.sums.get(id, (0, 0))
                self.sums[id] = rows + span.rows.count, (total + span.rows.hash_sum) % MODULUS
            case Ended(id, reason) if any([word in reason for word in ANEW]):
                opened = self.machine.opened[id]
                if not self._has_deleted(opened.stream):
                    self.todo.insert(0, (now + 0.5, msgspec.structs.replace(opened, id=id + AGAIN)))

    def _has_deleted(self, stream: StreamId) -> bool:
        """A stream of its own; whoever asks twice may be told that it is no more."""
        create, delete = {BOTH: (1, 2), GONE: (3, 4)}.get(stream, (0, 0))
        return delete in self.answers and isinstance(self.answers.get(create), Defined)

    def fed_of(self, stream: StreamId) -> list[Content]:
        """What the subscriptions to a stream that are not over have brought."""
        return [
            (subscriber.horizon or 1, *self.sums.get(id, (0, 0)))
            for id, subscriber in self.open.items()
            if subscriber.stream == stream
        ]


class Claims:
    """All of them, and what must hold in the end."""

    def __init__(self, deployment: Deployment, rng: random.Random, *, calm: bool) -> None:
        self.deployment = deployment
        self.calm = calm
        deployment.settings = msgspec.structs.replace(deployment.settings, subscriptions=FEEDS)
        deployment.recorder.unrecorded |= {BOTH, LATER, GONE}
        regions = sorted(deployment.replicas)
        self.home, self.away = regions[0], regions[-1]
        self.deletes = rng.random() < 0.4
        self.first: Received | None = None  # what was published too soon
        self.follows = 0  # times that the hasty one asked to be fed
        for region in (self.home, self.away):
            add_desk(deployment, Claimant, CLAIMANT, region, self._claim(region))
        for region in regions[1:-1]:
            add_desk(deployment, Claimant, WITNESS, region, [(AT_ONCE, Open(1, BOTH, EARLIEST, "", None, 1))])
        add_desk(deployment, Claimant, HASTY, self.home, self._hurry())
        follow = Open(1, LATER, EARLIEST, "", None, 1)
        self.ghost = add_desk(deployment, Claimant, GHOST, self.home, [(4.5, follow)])
        world = deployment.world
        world.observers.append(self)
        world.at(rng.uniform(8.0, 11.0), lambda: world.crash(self.ghost))
        for at in (4.02, 7.0, 12.0):
            world.at(at, self._repeat)

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """What the hasty one sends."""
        if node == f"{self.home}/{HASTY}":
            for effect in effects:
                if type(effect) is Send and type(effect.message) is Publish and self.first is None:
                    self.first = Received(node, effect.message)
                self.follows += type(effect) is Send and type(effect.message) is Follow

    def _repeat(self) -> None:
        """A copy of what was published too soon arrives late."""
        if self.first is not None:
            head = self.deployment.resolve(f"{self.home}/head")
            self.deployment.world.inject(self.deployment.world.now, head, cast(Any, self.first))

    # --- what they do -------------------------------------------------------------------------------------

    def _claim(self, region: RegionId) -> list[tuple[float, Command]]:
        todo: list[tuple[float, Command]] = [
            (AT_ONCE, self._ask(1, "create", BOTH, region)),
            (AT_ONCE, Open(1, BOTH, EARLIEST, "", None, 1)),
        ]
        batches = [(tag, _rows(f"{region}/{tag}", ROWS)) for tag in range(1, BATCHES + 1)]
        todo += [(1.25 + 0.75 * tag, Submit(region, BOTH, rows, tag)) for tag, rows in batches]
        if region == self.away and self.deletes:
            late = Submit(region, BOTH, _rows(f"{region}/late", ROWS), BATCHES + 1)
            todo += [(13.5, self._ask(2, "delete", BOTH, region)), (13.5, late)]
        if region == self.home:
            todo += [(2.5, self._ask(3, "create", GONE, region)), (9.0, self._ask(4, "delete", GONE, region))]
            todo.append((2.6, Open(KEPT, receipts_of(region), EARLIEST, "", "kept", KEPT)))
            for at in range(MANY if self.calm else FEW):
                todo.append((3.0 + at / 8, Open(DURABLE + at, GONE, EARLIEST, "", f"gone-{at}", at)))
        return todo

    def _hurry(self) -> list[tuple[float, Command]]:
        return [
            (2.0, Submit(self.home, LATER, _rows("too soon", 1), TOO_SOON)),
            (4.0, self._ask(1, "create", LATER, self.home)),
            (4.0, Submit(self.home, LATER, _rows("in time", 1), IN_TIME)),
            (4.5, Open(1, LATER, EARLIEST, "", None, 1)),
            (6.0, Submit(self.home, LATER, _rows("afterwards", 1), AFTERWARDS)),
        ]

    def _ask(self, nonce: int, operation: Any, stream: StreamId, region: RegionId) -> Ask:
        return Ask(nonce, Define(nonce, operation, StreamDef(stream, region)), region, head=True)

    # --- what must hold -----------------------------------------------------------------------------------

    def desk(self, name: str, region: RegionId) -> Claimant:
        """By its name and place."""
        machine = self.deployment.world.hosts[f"{region}/{name}"].machine
        assert isinstance(machine, Claimant)
        return machine

    @property
    def refused(self) -> int:
        """How many batches were refused to them."""
        desks = [self.desk(CLAIMANT, self.home), self.desk(CLAIMANT, self.away), self.desk(HASTY, self.home)]
        return sum([len(desk.refused) for desk in desks])

    def _tail(self, region: RegionId) -> Proxy:
        return self.deployment.proxy(self.deployment.membership(region).tail)

    def demand(self, note: Note) -> None:
        """Everywhere the right one of the two, and all of it; nothing for those who are gone."""
        tails = {region: self._tail(region) for region in self.deployment.replicas}
        known = {region: tail.catalog.claims.get(BOTH, {}).get(region) for region, tail in tails.items()}
        claims = {region: claim for region, claim in known.items() if claim is not None}
        note(BOTH, "nobody_has_it", not claims, 0)
        for region in self.deployment.replicas:
            own = claims.get(region)
            right = own or min(claims.values(), key=lambda each: (each.deleted, each.created, each.region))
            for node in self.deployment.membership(region).replicas:
                proxy = self.deployment.proxy(node)
                note(node, "claims_unknown", proxy.catalog.claims.get(BOTH) != claims, 0)
                note(node, "wrong_claim", proxy.streams.get(BOTH) != right, 0)
                note(node, "conflicts_untold", set(proxy.catalog.conflicts) != _conflicts(right, claims), 0)
                note(node, "wrong_content", _content(proxy, BOTH) != _content(self._tail(right.region), BOTH), 0)
            name = CLAIMANT if region in (self.home, self.away) else WITNESS
            note(f"{region}/{name}", "fed_wrongly", self._fed_wrongly(name, region, right), 0)
        for region in (self.home, self.away):
            self._demand_claimant(region, claims.get(region), note)
        self._demand_hasty(note)
        self._demand_gone(note)

    def _fed_wrongly(self, name: str, region: RegionId, right: StreamDef) -> bool:
        """Who was not told that its region went over to another claim goes on from its number (decision 0013)."""
        desk = self.desk(name, region)
        fed, content = desk.fed_of(BOTH), _content(self._tail(right.region), BOTH)
        told = any(["is unknown" not in ended.reason for ended in desk.ended.values()])
        if name == WITNESS and self.deletes and not told and not self.calm and content is not None:
            return [each[0] for each in fed] != [content[0]]
        return bool(set(fed) - {(1, 0, 0)}) if content is None else fed != [content]  # who asks for nothing waits

    def _demand_claimant(self, region: RegionId, claim: StreamDef | None, note: Note) -> None:
        """Who was told that the name is its own may publish to it, and nobody else."""
        desk, node = self.desk(CLAIMANT, region), f"{region}/{CLAIMANT}"
        if desk.broken:
            return
        note(node, "wrong_answer", isinstance(desk.answers.get(1), Defined) != (claim is not None), 0)
        batches = set(range(1, BATCHES + 1))
        note(node, "unanswered", len(batches - desk.acked - desk.refused.keys()), 0)
        if claim is None:
            note(node, "published_elsewhere", len(desk.acked), 0)
        elif not claim.deleted:
            note(node, "refused_its_own", len(desk.refused), 0)
            content = _content(self._tail(region), BOTH)
            rows = ROWS * len(desk.acked)
            note(node, "rows_lacking", content is None or content[:2] != (1 + rows, rows), 0)

    def _demand_hasty(self, note: Note) -> None:
        """What was refused is not published, whatever comes again."""
        desk, node = self.desk(HASTY, self.home), f"{self.home}/{HASTY}"
        if desk.broken:
            return
        note(node, "unanswered", len({TOO_SOON, IN_TIME, AFTERWARDS} - desk.acked - desk.refused.keys()), 0)
        note(node, "refused_afterwards", AFTERWARDS in desk.refused, 0)
        content = _content(self._tail(self.home), LATER)
        note(node, "rows_besides", content is None or content[1] != len(desk.acked), 0)
        note(node, "fed_wrongly", desk.fed_of(LATER) != [content], 0)
        if self.calm:
            note(node, "refused", desk.refused != {TOO_SOON: "stream"}, 0)
            note(node, "followed_again", self.follows - len(desk.ended), 1)
        for replica in self.deployment.membership(self.home).replicas:
            positions = self.deployment.proxy(replica).subscriptions.positions
            note(replica, "ghosts_fed", len([key for key in positions if key[0] == self.ghost]), 0)

    def _demand_gone(self, note: Note) -> None:
        """Of a stream that is deleted nothing is left but a few rows."""
        desk, node = self.desk(CLAIMANT, self.home), f"{self.home}/{CLAIMANT}"
        head = self.deployment.proxy(self.deployment.membership(self.home).head)
        note(head.me, "cursors_of_nothing", len([key for key in head.cursors.entries if key[1] == GONE]), 0)
        live = head.log.histories[CURSORS].live
        note(head.me, "cursor_rows", live, 2 * len(head.cursors.entries) + FEEDS.swept)
        if not desk.broken:
            note(node, "still_followed", len(desk.fed_of(GONE)), 0)
        full = [ended for ended in desk.ended.values() if "takes no more" in ended.reason]
        if self.calm:
            note(node, "let_in", MANY - len(full), FEEDS.cursors)
            note(
                node, "turned_away", len(full), MANY + 2 - FEEDS.cursors
            )  # that, and the editor's, may be there before them
        else:
            note(node, "turned_away", len(full), 0)


def _rows(text: str, count: int) -> Rows:
    return data_rows(1, None, [f"{text}/{at}".encode() for at in range(count)])


def _conflicts(right: StreamDef, claims: dict[RegionId, StreamDef]) -> set[StreamDef]:
    """What has to be told of the claims that are not followed."""
    if right.deleted:
        return set()
    return {claim for claim in claims.values() if claim.region != right.region and not claim.deleted}


def _content(proxy: Proxy, stream: StreamId) -> Content | None:
    history: History | None = proxy.log.histories.get(stream)
    if history is None:
        return None
    spans = history.know(1, history.horizon)
    total = sum([span.rows.hash_sum for span in spans]) % MODULUS
    return history.horizon, sum([span.rows.count for span in spans]), total
