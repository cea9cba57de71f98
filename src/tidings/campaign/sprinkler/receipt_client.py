"""The receipt client: it sends receipts and makes rare requests to a head, in a simulated world.

It follows its region's stream, sends receipts once a second, and follows the stream that keeps them: receipts that were
kept must come back unchanged. It also makes rare requests:

- an operator declares a loss twice at once, for a stream that does not exist and for numbers that are known; both must
  be refused with the right reason;
- a stream is altered while a publisher publishes to it, which must not delay the publisher;
- a late copy of a publisher's request for a session arrives;
- in worlds with faults, more requests arrive at once than a head can keep answers for;
- in worlds with faults, a lease is released and taken on another stream under the same name, and a paused replica
  learns both at once.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any, cast

import msgspec

from tidings.campaign.sprinkler.fault_plan import TTL, FaultPlan
from tidings.campaign.sprinkler.scripted_client import ScriptedClient, add_scripted_client
from tidings.client.commands import Ask, Open
from tidings.client.receipts import Account
from tidings.core.ids import NodeId, StreamId
from tidings.core.rows import ArrowRows
from tidings.protocols.brokers.messages import EARLIEST
from tidings.protocols.brokers.subscriber import Fed
from tidings.protocols.kernel import Command, Effect, Effects, Message, Received, Send, Time
from tidings.protocols.services.catalog import DeclareLost, Define, NotDefined
from tidings.protocols.services.head import ANSWERS
from tidings.protocols.services.leases import Lease, Release, Unleased
from tidings.protocols.services.publishing import OpenSession, Publish
from tidings.protocols.services.receipts import NAMES, Receipt, Receipts, receipts_of
from tidings.sim.build import Deployment, Note

RECEIPTS_NODE, NOBODYS = "receipts", "nobodys"
FOLLOWED, KEPT = 1, 2  # ids of its subscriptions: to the region's stream, and to the receipts
MESSAGES = 14  # of receipts, one a second from 2.5 on: each has time for its answer
NONCE = 1 << 41  # of the operator's questions: none is the number of a row
ODD_AT, REPEAT_AT, ALTER_AFTER, CROWD_AT = (3.3, 8.3, 13.3), 7.0, 6.0, 9.0
WANDERER = "wanderer"
RELEASED = (18.5, 19.5, 20.5)  # seconds; once all is mended, and again should the head just have been replaced
SOON = 0.25  # seconds; ours: two records, one after the other, take a tenth of it


class Tell(Command, frozen=True, gc=False):
    """Send receipts for what was fed since."""

    nonce: int


class ReceiptClient(ScriptedClient):
    """Follows, tells, and compares."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.account: Account | None = None
        self.closed: list[Receipt] = []
        self.claimed: list[Receipt] = []  # sent, and to be kept
        self.back: list[tuple[Any, ...]] = []  # as they came back

    def _act(self, now: Time, command: Command) -> list[Effect]:
        if not isinstance(command, Tell):
            return super()._act(now, command)
        run = self.account.close() if self.account is not None else None
        receipts, self.closed = tuple([*self.closed, *([] if run is None else [run])]), []
        if not receipts:
            return []
        self.claimed += receipts
        return self._do(now, Ask(command.nonce, Receipts(command.nonce, receipts), self.machine.home, head=True))

    def _note(self, now: Time, item: object) -> None:
        super()._note(now, item)
        if not isinstance(item, Fed):
            return
        if item.id == FOLLOWED:
            if self.account is None:
                self.account = Account(self.machine.me, 1, item.span.stream)
            closed = self.account.note(item.span, now)
            self.closed += [closed] if closed is not None else []
        elif isinstance(item.span.rows, ArrowRows):
            batch = item.span.rows.batch
            self.back += zip(*[batch.column(name).to_pylist() for name in NAMES], strict=True)


def _as_kept(receipt: Receipt) -> tuple[Any, ...]:
    """As the columns of the stream hold it: the sum of hashes with a sign."""
    fields = list(msgspec.structs.astuple(receipt))
    fields[9] = fields[9] - (1 << 64) if fields[9] >= 1 << 63 else fields[9]
    return tuple(fields)


class ReceiptClients:
    """The receipt client of a world and the operator beside it, and what must hold of them in the end."""

    def __init__(self, deployment: Deployment, plan: FaultPlan, rng: random.Random) -> None:
        self.deployment = deployment
        self.world = deployment.world
        self.calm = plan.mood == "calm"
        self.region = rng.choice(sorted(deployment.replicas))
        self.forgets = plan.forgets(self.region)
        self.stream: StreamId = f"s-{self.region}"
        self.operator = deployment.services[self.region]  # it makes nothing of the answers
        deployment.recorder.unrecorded.add(receipts_of(self.region))
        script: list[tuple[float, Command]] = [
            (1.0, Open(FOLLOWED, self.stream, EARLIEST, "", None, FOLLOWED)),
            (1.0, Open(KEPT, receipts_of(self.region), EARLIEST, "", None, KEPT)),
            *[(2.5 + at, Tell(at + 1)) for at in range(MESSAGES)],
        ]
        add_scripted_client(deployment, ReceiptClient, RECEIPTS_NODE, self.region, script)
        self.asked: dict[tuple[type[Message], object], float] = {}  # the operator's questions, and when
        self.answered: dict[tuple[type[Message], object], float] = {}
        self.opening: Received | None = None
        self.altered = plan.scenario.stream(self.stream).rows != "arrow"  # one that only counts has no attributes
        for at in ODD_AT:
            self.world.at(at, self._ask_oddly)
        if plan.publish.ttl == TTL:  # else the opening may be forgotten, and the copy opens another session
            self.world.at(REPEAT_AT, self._repeat)
        if not self.calm:
            self._wander()
            if rng.random() < 0.5:
                self.world.at(CROWD_AT + rng.random(), self._crowd)

    @classmethod
    def drawn(cls, deployment: Deployment, plan: FaultPlan) -> ReceiptClients | None:
        """In some worlds there is one; where memory is lost it might be told what is then forgotten."""
        rng = random.Random(f"clerk/{plan.seed}")
        if rng.random() >= 0.4 or plan.amnesia is not None:
            return None
        receipt_clients = cls(deployment, plan, rng)
        deployment.world.observers.append(receipt_clients)
        return receipt_clients

    @property
    def receipt_client(self) -> ReceiptClient:
        """The machine."""
        machine = self.world.hosts[f"{self.region}/{RECEIPTS_NODE}"].machine
        assert isinstance(machine, ReceiptClient)
        return machine

    # --- what is done to the head -----------------------------------------------------------------------

    def _head(self) -> NodeId:
        return self.deployment.resolve(f"{self.region}/head")

    def _inject(self, message: Message, src: NodeId = "") -> None:
        self.world.inject(self.world.now, self._head(), cast(Any, Received(src or self.operator, message)))

    def _ask_oddly(self) -> None:
        """About a stream that nobody has; and about numbers that are known, which nobody can declare lost."""
        nonce = NONCE + 2 * len(self.asked)
        self.asked[NotDefined, nonce] = self.asked[Unleased, f"{NOBODYS}-{nonce}"] = self.world.now
        self._inject(Lease(f"{NOBODYS}-{nonce}", NOBODYS, grant=True))
        self._inject(DeclareLost(nonce, NOBODYS, 1, 2))
        self._inject(DeclareLost(nonce + 1, self.stream, 1, 2))

    def _repeat(self) -> None:
        if self.opening is not None:
            self._inject(self.opening.message, self.opening.src)

    def _crowd(self) -> None:
        """More questions than a head may owe answers for, all of them in the time that one record takes."""
        for at in range(ANSWERS + 16):
            self._inject(Release(f"{NOBODYS}-{at}", NOBODYS))

    def _wander(self) -> None:
        """A lease goes from one stream to another while a replica that sleeps since 4.0 or so knows of the former."""
        here, there = self.stream, receipts_of(self.region)
        steps: list[tuple[float, Message]] = [
            (2.0, Lease(WANDERER, here, grant=True)),
            (5.2, Release(WANDERER, here)),
            (5.4, Lease(WANDERER, there, grant=True)),
            *[(at, Release(WANDERER, stream)) for at in RELEASED for stream in (here, there)],
        ]
        for at, message in steps:
            self.world.at(at, partial(self._inject, message))

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Openings and batches on their way to the head, and answers to the operator."""
        for effect in effects:
            if type(effect) is not Send:
                continue
            message = effect.message
            kind = type(message)
            if effect.to == self.operator and kind is NotDefined:
                self.answered.setdefault((kind, cast(NotDefined, message).nonce), time)
            elif effect.to == self.operator and kind is Unleased:
                self.answered.setdefault((kind, cast(Unleased, message).name), time)
            elif kind is Publish and not self.altered and time > ALTER_AFTER:
                self._alter(node, cast(Publish, message))
            elif kind is OpenSession and self.opening is None and effect.to == self._head():
                self.opening = Received(node, message)

    def _alter(self, node: NodeId, batch: Publish) -> None:
        """A batch is a hop away from the head: the stream has one attribute more when it gets there, or nearly so."""
        known = self.deployment.proxy(self._head()).streams[self.stream]
        if batch.stream == self.stream and self.deployment.region_of[node] == self.region:
            self.altered = True
            self._inject(Define(NONCE - 1, "alter", msgspec.structs.replace(known, attrs="noted bigint")))

    # --- what must hold -----------------------------------------------------------------------------------

    def demand(self, note: Note) -> None:
        """What is said to be kept is kept, as it was told; questions are answered."""
        receipt_client, node = self.receipt_client, f"{self.region}/{RECEIPTS_NODE}"
        if not receipt_client.broken:
            note(
                node,
                "waits",
                len(receipt_client.todo) + len([nonce for nonce in receipt_client.machine.asking if nonce < NONCE]),
                0,
            )
            note(node, "receipts_missing", not receipt_client.claimed, 0)
            kept = [_as_kept(each) for each in receipt_client.claimed]
            if not self.forgets:  # receipts are a stream of the region's own
                note(node, "receipts_lost", len(set(kept) - set(receipt_client.back)), 0)
            note(node, "receipts_made_up", len(set(receipt_client.back) - set(kept)), 0)
            if self.calm:
                note(node, "receipts_kept_twice", len(receipt_client.back) - len(kept), 0)
        if self.calm:
            for question, at in self.asked.items():
                note("operator", "answered_after_s", self.answered.get(question, self.world.now) - at, SOON)
