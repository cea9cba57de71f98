"""Clients that contend for names of streams, or use them at the worst moment, in a simulated world.

Two *conflicting clients*, in two regions, create a stream of the same name at the same moment. Both publish to theirs;
one may delete it later, and publish to it once more in that moment. Both follow the name, and so does a *witness* if
there is a third region. What each is fed must be one of the two streams, whole, and nothing of the other.

The *hasty* client publishes to a stream before it exists; late copies of what was refused arrive when it would fit. The
first conflicting client opens durable subscriptions to a stream, deletes it and creates it anew: a subscription to the
new one gets that alone. In calm runs the subscriptions are more than there is room for. A *ghost* stops without a word
while it follows an idle stream.

Streams of one name are compared with each other, replica by replica; the invariants over the trace leave them out.
"""

from __future__ import annotations

import random
from typing import Any, cast

import msgspec

from tidings.campaign.sprinkler.scripted_client import AGAIN, FEEDS, ScriptedClient, add_scripted_client
from tidings.client.commands import Answered, Ask, Open, Submit
from tidings.core.history import History
from tidings.core.ids import NodeId, RegionId, StreamId, StreamName, stream_name
from tidings.core.rows import Rows, data_rows
from tidings.protocols.brokers.messages import EARLIEST, Follow
from tidings.protocols.brokers.subscriber import Ended, Fed
from tidings.protocols.kernel import Command, Effects, Received, Send, Time
from tidings.protocols.nodes.replica import Replica
from tidings.protocols.services.catalog import Define, Defined, NotDefined, StreamDef
from tidings.protocols.services.cursors import CURSORS
from tidings.protocols.services.publishing import Publish
from tidings.protocols.services.receipts import receipts_of
from tidings.sim.build import Deployment, Note

BOTH, LATER, GONE = "both", "later", "gone"
"""A name that two regions give out, a stream that is published to before it is there, and one that is deleted."""
CONFLICTING, WITNESS, HASTY, GHOST = "conflicting", "witness", "hasty", "ghost"
BATCHES, ROWS = 14, 3
AT_ONCE = 1.0  # seconds; when both ask for the name
TOO_SOON, AFTERWARDS = 900, 901  # tags of what goes to LATER
ANEW = 902  # of what goes to the second GONE
DURABLE = 20  # ids of durable subscriptions from here on
NEWER = 99  # the subscription to the second GONE
KEPT = 19  # one that is opened before them and never moved: what is swept around it must leave it alone
FEW, MANY = 9, 16  # of them: together with the scripted clients' fewer, or more, than there is room for
RETRIED = ("is unknown", "begin anew", "was deleted")  # reasons to follow again: the other claim may not be known yet
MODULUS = 1 << 64

Content = tuple[int, int, int]
"""Of a stream: its end, how many rows it has, and the sum of their hashes."""


class ConflictingClient(ScriptedClient):
    """Minds what it is fed, and begins anew where it is told to; the hasty one does not wait for its stream."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sums: dict[int, tuple[int, int]] = {}  # by subscription: rows and the sum of their hashes

    def _ready(self, command: Command) -> bool:
        if isinstance(command, Submit) and (command.stream == LATER or (command.stream == BOTH and 1 in self.answers)):
            publisher = self.machine.publishers.get(command.region)
            known = command.tag != AFTERWARDS or 1 in self.answers
            return bool(self.machine.home) and known and not (publisher and publisher.inflight)
        if (isinstance(command, Open) and command.id == NEWER) or (isinstance(command, Submit) and command.tag == ANEW):
            return 6 in self.answers and super()._ready(command)
        return super()._ready(command)

    def _note(self, now: Time, item: object) -> None:
        super()._note(now, item)
        match item:
            case Fed(id, span):
                rows, total = self.sums.get(id, (0, 0))
                self.sums[id] = rows + span.rows.count, (total + span.rows.hash_sum) % MODULUS
            case Answered(5, NotDefined(after=str() as mark)):  # naming the deleted stream, which no late copy does
                again = StreamDef(GONE, self.machine.home, mark=mark)
                self.todo.insert(0, (now, Ask(6, Define(6, "create", again), self.machine.home, head=True)))
            case Ended(id, reason) if any([word in reason for word in RETRIED]):
                opened = self.machine.opened[id]
                name = stream_name(opened.stream)
                if not self._has_deleted(name) or id % AGAIN == NEWER:
                    self.todo.insert(0, (now + 0.5, msgspec.structs.replace(opened, id=id + AGAIN, stream=name)))

    def _has_deleted(self, name: StreamName) -> bool:
        """Whether this client created and deleted the stream; a repeated request may be answered "deleted"."""
        create, delete = {BOTH: (1, 2), GONE: (3, 4)}.get(name, (0, 0))
        return delete in self.answers and isinstance(self.answers.get(create), Defined)

    def fed_of(self, name: StreamName) -> list[Content]:
        """What the subscriptions to a stream that are not over have brought."""
        return [
            (subscriber.horizon or 1, *self.sums.get(id, (0, 0)))
            for id, subscriber in self.open.items()
            if stream_name(subscriber.stream) == name
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
            add_scripted_client(deployment, ConflictingClient, CONFLICTING, region, self._claim(region))
        for region in regions[1:-1]:
            add_scripted_client(
                deployment, ConflictingClient, WITNESS, region, [(AT_ONCE, Open(1, BOTH, EARLIEST, "", None, 1))]
            )
        add_scripted_client(deployment, ConflictingClient, HASTY, self.home, self._hurry())
        follow = Open(1, LATER, EARLIEST, "", None, 1)
        self.ghost = add_scripted_client(deployment, ConflictingClient, GHOST, self.home, [(4.5, follow)])
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
            todo += [(10.0, self._ask(5, "create", GONE, region)), (10.2, Open(NEWER, GONE, EARLIEST, "", None, NEWER))]
            todo.append((10.1, Submit(region, GONE, _rows("anew", 1), ANEW)))
            todo.append((2.6, Open(KEPT, receipts_of(region), EARLIEST, "", "kept", KEPT)))
            for at in range(MANY if self.calm else FEW):
                todo.append((3.0 + at / 8, Open(DURABLE + at, GONE, EARLIEST, "", f"gone-{at}", at)))
        return todo

    def _hurry(self) -> list[tuple[float, Command]]:
        return [
            (2.0, Submit(self.home, LATER, _rows("too soon", 1), TOO_SOON)),
            (4.0, self._ask(1, "create", LATER, self.home)),
            (4.5, Open(1, LATER, EARLIEST, "", None, 1)),
            (6.0, Submit(self.home, LATER, _rows("afterwards", 1), AFTERWARDS)),
        ]

    def _ask(self, nonce: int, operation: Any, stream: StreamId, region: RegionId) -> Ask:
        return Ask(nonce, Define(nonce, operation, StreamDef(stream, region)), region, head=True)

    # --- what must hold -----------------------------------------------------------------------------------

    def scripted(self, name: str, region: RegionId) -> ConflictingClient:
        """By its name and place."""
        machine = self.deployment.world.hosts[f"{region}/{name}"].machine
        assert isinstance(machine, ConflictingClient)
        return machine

    @property
    def refused(self) -> int:
        """How many batches were refused to them."""
        scripted_clients = [
            self.scripted(CONFLICTING, self.home),
            self.scripted(CONFLICTING, self.away),
            self.scripted(HASTY, self.home),
        ]
        return sum([len(scripted.refused) for scripted in scripted_clients])

    def _tail(self, region: RegionId) -> Replica:
        return self.deployment.proxy(self.deployment.membership(region).tail)

    def demand(self, note: Note) -> None:
        """Everywhere the right one of the two, and all of it; nothing for those who are gone."""
        tails = {region: self._tail(region) for region in self.deployment.replicas}
        known = {region: tail.table.catalog.claims.get(BOTH, {}).get(region) for region, tail in tails.items()}
        claims = {region: claim for region, claim in known.items() if claim is not None}
        note(BOTH, "nobody_has_it", not claims, 0)
        for region in self.deployment.replicas:
            own = claims.get(region)
            right = own or min(claims.values(), key=lambda each: (each.deleted, each.created, each.region))
            for node in self.deployment.membership(region).replicas:
                proxy = self.deployment.proxy(node)
                note(node, "claims_unknown", proxy.table.catalog.claims.get(BOTH) != claims, 0)
                note(node, "wrong_claim", proxy.table.catalog.names.get(BOTH) != right, 0)
                note(node, "conflicts_untold", set(proxy.table.catalog.conflicts) != _conflicts(right, claims), 0)
                note(node, "wrong_content", _content(proxy, BOTH) != _content(self._tail(right.region), BOTH), 0)
            name = CONFLICTING if region in (self.home, self.away) else WITNESS
            note(f"{region}/{name}", "fed_wrongly", self._fed_wrongly(name, region, right), 0)
        for region in (self.home, self.away):
            self._demand_conflicting(region, claims.get(region), note)
        self._demand_hasty(note)
        self._demand_gone(note)

    def _fed_wrongly(self, name: str, region: RegionId, right: StreamDef) -> bool:
        """What it was fed last is the one that its region follows, from the first number on."""
        fed, content = self.scripted(name, region).fed_of(BOTH), _content(self._tail(right.region), BOTH)
        return bool(set(fed) - {(1, 0, 0)}) if content is None else fed != [content]  # who asks for nothing waits

    def _demand_conflicting(self, region: RegionId, claim: StreamDef | None, note: Note) -> None:
        """Who was told that the name is its own may publish to it, and nobody else."""
        scripted, node = self.scripted(CONFLICTING, region), f"{region}/{CONFLICTING}"
        if scripted.broken:
            return
        note(node, "wrong_answer", isinstance(scripted.answers.get(1), Defined) != (claim is not None), 0)
        batches = set(range(1, BATCHES + 1))
        note(node, "unanswered", len(batches - scripted.acked - scripted.refused.keys()), 0)
        if claim is None:
            note(node, "published_elsewhere", len(scripted.acked - {ANEW}), 0)
        elif not claim.deleted:
            note(node, "refused_its_own", len(scripted.refused.keys() - {ANEW}), 0)
            content = _content(self._tail(region), BOTH)
            rows = ROWS * len(scripted.acked - {ANEW})
            note(node, "rows_lacking", content is None or content[:2] != (1 + rows, rows), 0)

    def _demand_hasty(self, note: Note) -> None:
        """A refused batch is not published, even if it arrives again."""
        scripted, node = self.scripted(HASTY, self.home), f"{self.home}/{HASTY}"
        if scripted.broken:
            return
        note(node, "unanswered", len({TOO_SOON, AFTERWARDS} - scripted.acked - scripted.refused.keys()), 0)
        note(node, "refused_afterwards", AFTERWARDS in scripted.refused, 0)
        content = _content(self._tail(self.home), LATER)
        note(node, "rows_besides", content is None or content[1] != len(scripted.acked), 0)
        note(node, "fed_wrongly", scripted.fed_of(LATER) != [content], 0)
        if self.calm:
            note(node, "refused", scripted.refused != {TOO_SOON: "stream"}, 0)
            note(node, "followed_again", self.follows - len(scripted.ended), 1)
        for replica in self.deployment.membership(self.home).replicas:
            positions = self.deployment.proxy(replica).subscriptions.positions
            note(replica, "ghosts_fed", len([key for key in positions if key[0] == self.ghost]), 0)

    def _demand_gone(self, note: Note) -> None:
        """Of a stream that is deleted nothing is left but a few rows, and nobody meets the next one of its name."""
        scripted, node = self.scripted(CONFLICTING, self.home), f"{self.home}/{CONFLICTING}"
        head = self.deployment.proxy(self.deployment.membership(self.home).head)
        nothing = [key for key in head.cursors.entries if head.table.readable(key[1]) is None]
        note(head.me, "cursors_of_nothing", len(nothing), 0)
        live = head.log.histories[CURSORS].live
        note(head.me, "cursor_rows", live, 2 * len(head.cursors.entries) + FEEDS.swept)
        if not scripted.broken:
            note(node, "not_created_anew", not isinstance(scripted.answers.get(6), Defined), 0)
            content = _content(self._tail(self.home), GONE)
            note(node, "followed_wrongly", set(scripted.fed_of(GONE)) != {content}, 0)
            note(node, "rows_besides", content is None or content[1] != len(scripted.acked & {ANEW}), 0)
        full = [ended for ended in scripted.ended.values() if "takes no more" in ended.reason]
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


def _content(proxy: Replica, name: StreamName) -> Content | None:
    meant = proxy.table.catalog.names.get(name)
    history: History | None = proxy.log.histories.get(meant.id) if meant is not None else None
    if history is None:
        return None
    spans = history.know(1, history.horizon)
    total = sum([span.rows.hash_sum for span in spans]) % MODULUS
    return history.horizon, sum([span.rows.count for span in spans]), total
