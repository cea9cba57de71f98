"""What the services of a head share: writing records, and answering once they are committed.

A *service* is one replicated table of the head: publishers, definitions, leases, cursors, sinks, receipts. It never
touches the chain. It returns a `Step`: the parts of one record to write, and the answers to give. `Head` writes the
record and keeps the answers until it is committed.

A final answer that needs no record of its own (a refusal, say) waits for a *barrier*: an empty record written after the
question. A head that was replaced cannot commit it, so it cannot give an answer that its successor would contradict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, TypeAlias

import msgspec

from tidings.core.ids import NodeId, StreamId
from tidings.core.rows import Rows
from tidings.core.span import Span
from tidings.protocols.kernel import Effect, Message, Report, Send, Time
from tidings.protocols.replication.chain import Chain
from tidings.protocols.replication.log import Log, Lsn

ANSWERS = 1024  # owed for one record; ours: more clients than ask within the time a record takes
AS_HEAD: Lsn = 0  # instead of a record: answer when a barrier has confirmed that this replica is still the head

Owed: TypeAlias = dict[tuple[NodeId, Message], None]
"""Answers and their receivers, each once, in the order of the questions."""

Replicate: TypeAlias = Callable[[Time, list[Span]], list[Effect]]
RowsOf: TypeAlias = Callable[[StreamId], list[Rows]]
"""What history and log hold of an internal stream, committed or not, oldest first."""


class Step(msgspec.Struct):
    """What the head does next: write the parts as one record, then give the answers.

    An answer is sent when the record ``lsn`` is committed, or at once if it is; with `AS_HEAD`, after a barrier.
    """

    parts: list[Span] = []
    answers: list[tuple[NodeId, Message, Lsn]] = []
    reports: list[str] = []
    reports_after: list[str] = []  # the same, counted after the answers


class HeadService:
    """One replicated table of the head."""

    handles: ClassVar[frozenset[type[Message]]] = frozenset()

    def load(self, now: Time, rows_of: RowsOf) -> None:
        """This replica has become head: rebuild the table."""

    def receive(self, now: Time, src: NodeId, message: Message) -> Step:
        """Answer one of the messages in ``handles``."""
        raise NotImplementedError

    def work(self, now: Time) -> Iterator[Step]:
        """Records that are still to be written for earlier requests. The head takes each step before the next."""
        return iter(())

    def tick(self, now: Time) -> Iterator[Step]:
        """Upkeep, now and then. The head takes each step before it asks for the next."""
        return iter(())

    def check(self) -> None:
        """Cheap invariants; raises AssertionError."""


class Head:
    """Writes steps to the log and answers for what is committed. Only a head has answers to give."""

    def __init__(self, log: Log, chain: Chain, replicate: Replicate, recovering: Callable[[], bool]) -> None:
        self.log = log
        self.chain = chain
        self.replicate = replicate
        self.recovering = recovering
        self.inherited_lsn: Lsn | None = None  # as head: the last record that an earlier head numbered
        self.waiting: dict[Lsn, Owed] = {}  # answers owed when a record is committed
        self.barrier: Lsn = 0  # the newest record that was written only to confirm that this is the head
        self.later: Owed = {}  # answers to questions that came after it: they go with the next one

    @property
    def busy(self) -> bool:
        """The chain takes no more records now; clients ask again."""
        return self.chain.busy

    def inherited(self, lsn: Lsn) -> bool:
        """Whether an earlier head wrote a record."""
        return lsn <= (self.inherited_lsn or 0)

    def promoted(self) -> None:
        """This replica has become head."""
        self.inherited_lsn = self.log.last

    def demoted(self) -> None:
        """This replica is not head: it answers nothing."""
        self.inherited_lsn = None
        self.barrier = 0
        self.waiting.clear()
        self.later.clear()

    def take(self, now: Time, step: Step) -> list[Effect]:
        """Write a step's record and see to its answers."""
        out: list[Effect] = [Report(name) for name in step.reports]
        if step.parts:
            out.extend(self.replicate(now, step.parts))
        for to, answer, lsn in step.answers:
            out.extend(self._answer(to, lsn, answer) if lsn else self._answer_as_head(now, to, answer))
        out.extend([Report(name) for name in step.reports_after])
        return out

    def take_all(self, now: Time, steps: Iterable[Step]) -> list[Effect]:
        """Take steps one by one."""
        return [effect for step in steps for effect in self.take(now, step)]

    def committed(self, now: Time, lsn: Lsn) -> list[Effect]:
        """A record is committed: send what is owed for it."""
        out: list[Effect] = [Send(node, answer) for node, answer in self.waiting.pop(lsn, ())]
        return [*out, *self._confirm(now)] if self.later else out

    def check(self, backlog: int) -> None:
        """Only a head owes answers, and they are bounded."""
        assert self.chain.is_head or not (self.waiting or self.later), "a replica that is not head owes no answers"
        assert len(self.waiting) <= backlog, "answers owed are bounded by the backlog"
        assert all([len(owed) <= ANSWERS for owed in (*self.waiting.values(), self.later)]), "and for each record"

    def _answer(self, to: NodeId, lsn: Lsn, answer: Message) -> list[Effect]:
        """Answer now if the record is committed, else when it is."""
        if lsn <= self.log.committed:
            return [Send(to, answer)]
        return self._owe(self.waiting.setdefault(lsn, {}), to, answer)

    def _answer_as_head(self, now: Time, to: NodeId, answer: Message) -> list[Effect]:
        """Answer once a record written after the question is committed.

        One such barrier is under way at a time. It confirms nothing about questions that came after it was written:
        it may have been acknowledged before the head was replaced. Those answers share the next one.
        """
        if self.barrier <= self.log.committed and self.chain.busy:
            return []  # asked again later
        return [*self._owe(self.later, to, answer), *self._confirm(now)]

    def _confirm(self, now: Time) -> list[Effect]:
        """Write a barrier for the answers that wait for one, if none is under way."""
        if not self.later or self.barrier > self.log.committed or self.chain.busy or not self.chain.is_head:
            return []
        self.barrier = self.log.last + 1
        self.waiting[self.barrier], self.later = self.later, {}
        return self.replicate(now, [])

    def _owe(self, owed: Owed, to: NodeId, answer: Message) -> list[Effect]:
        if len(owed) >= ANSWERS and (to, answer) not in owed:
            return [Report("answers_full")]  # asked again later
        owed[to, answer] = None
        return []
