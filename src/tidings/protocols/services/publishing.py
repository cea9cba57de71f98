"""Exactly-once publish (A1.1, A1.12, A1.15): publisher id + session + number, decided by the head.

A publisher opens a session, which fences its older ones, and numbers its events 1, 2, 3 ... in it. The head accepts a
batch only if it continues those numbers. It writes the publisher's entry in the same record as the events, so both
survive or neither does. A retry is the same batch again: it is answered with the sequence numbers that it got the
first time, whichever replica is head by then. `publish` is answered when the record is committed at the tail.

A batch that does not fit its stream ends the session. The entry says so before the publisher is told: neither that
batch nor a later one is published in that session. Entries expire ``ttl`` seconds after their last use. A retry that
comes later is refused, not guessed.

This file is both ends: `PublishService` and `Publishers` at the head, `Publisher` at the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar

import msgspec

from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.core.rows import ArrowRows, CountedRows, Origin, Rows
from tidings.core.small_rows import SmallRows
from tidings.core.span import Span
from tidings.protocols.kernel import (
    NOTHING,
    Command,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Message,
    Received,
    Report,
    Send,
    SetTimer,
    Time,
    Timer,
    Value,
)
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.log import Lsn
from tidings.protocols.services.head import AS_HEAD, Head, HeadService, RowsOf, Step
from tidings.protocols.services.head_client import HeadClient

if TYPE_CHECKING:
    from tidings.protocols.services.streams import StreamTable

OWNER = "_owner"
"""The publisher name of events that a stream's owner publishes by itself ("before n" of a policy)."""

PUBLISHERS: StreamId = "_publishers"
"""The internal stream that holds one entry per publisher, by key."""


class OpenSession(Message, frozen=True, gc=False):
    """A publisher starts: the head gives it a new session and fences the older ones."""

    from_clients: ClassVar[bool] = True

    publisher: str
    nonce: int  # the same in each retry of one opening


class SessionOpened(Message, frozen=True, gc=False):
    """The session is committed; the publisher numbers its events from 1 in it."""

    nonce: int
    session: int


class Publish(Message, frozen=True, gc=False):
    """A batch, numbered by its publisher from ``first``. A retry is this very message again."""

    from_clients: ClassVar[bool] = True

    stream: StreamId
    publisher: str
    session: int
    first: int
    rows: Rows

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 64 + self.rows.nbytes

    @property
    def events(self) -> int:  # type: ignore[override]
        return self.rows.count


class Published(Message, frozen=True, gc=False):
    """The batch that began with ``first`` is committed as [lo, hi)."""

    session: int
    first: int
    lo: int
    hi: int


class NotHead(Message, frozen=True, gc=False):
    """Ask the head of this membership instead."""

    membership: ChainConfig

    def valid(self) -> bool:
        return self.membership.valid()


class Rejected(Message, frozen=True, gc=False):
    """The batch that began with ``first`` was not taken.

    ``reason``: gap, busy (the same batch may be taken later), or one of REMEMBERED.
    """

    session: int
    first: int
    reason: str


REFUSED = frozenset({"stream", "rows", "size"})
"""No such stream, does not fit it, larger than a message: about one batch; the session's others can be published."""

REMEMBERED = frozenset({"fenced", "expired", "repacked", *REFUSED})
"""Reasons that are final and follow from what the head remembers: it must be sure to be the head."""


class Batch(Value, frozen=True, gc=False):
    """What the head remembers of an accepted batch."""

    first: int
    count: int
    stream: StreamId
    lo: int
    lsn: Lsn


class PublisherEntry(Value, frozen=True, gc=False):
    """What the head remembers of a publisher."""

    session: int
    nonce: int
    opened: Lsn
    next: int
    recent: tuple[Batch, ...]
    at: float
    past: tuple[int, ...] = ()  # nonces of older sessions: a late copy of their opening must not fence this one
    ended: str = ""  # why the batch at ``next`` was refused: the session takes no more


class PublishSettings(Value, frozen=True, gc=False):
    """Ours, because the paper has no retries."""

    window: int = 16  # batches from the oldest unanswered one to the newest; the head remembers as many
    retry: float = 0.3
    queue: int = 256  # batches a publisher holds before it says so
    ttl: float = 3600.0
    past: int = 8  # openings remembered


class Publishers:
    """The head's table: which batch of which publisher comes next, and where the recent ones went."""

    def __init__(self, settings: PublishSettings) -> None:
        self.settings = settings
        self.entries: dict[str, PublisherEntry] = {}

    def load(self, rows: Iterable[Rows]) -> None:
        """Rebuild the table from the `_publishers` rows of history and log, oldest first."""
        self.entries.clear()
        for part in rows:
            assert isinstance(part, ArrowRows)
            keys, payloads = part.batch.column("key").to_pylist(), part.batch.column("payload").to_pylist()
            for key, payload in zip(keys, payloads, strict=True):
                if key is not None:
                    self.entries[key.decode()] = msgspec.msgpack.decode(payload, type=PublisherEntry)

    def expire(self, now: Time) -> None:
        """Forget publishers that have not been heard of for ``ttl``."""
        self.entries = {name: entry for name, entry in self.entries.items() if now - entry.at <= self.settings.ttl}

    def open(self, now: Time, publisher: str, nonce: int, lsn: Lsn) -> PublisherEntry | None:
        """The entry of a new session, or None if this opening, or a later one, is already there."""
        known = self.entries.get(publisher)
        if known is not None and (known.nonce == nonce or nonce in known.past):
            return None
        session = max(known.session + 1 if known else 1, int(now * 1e6))  # by the clock: also above expired ones
        past = (*known.past, known.nonce)[-self.settings.past :] if known else ()
        self.entries[publisher] = entry = PublisherEntry(session, nonce, lsn, 1, (), now, past)
        return entry

    def judge(self, now: Time, batch: Publish) -> Batch | str:
        """ "new", the batch it repeats, or the reason to reject it."""
        entry = self.entries.get(batch.publisher)
        if entry is None:
            return "expired"
        if batch.session != entry.session:
            return "fenced"
        if batch.first > entry.next:
            return "gap"
        if batch.first == entry.next:
            return entry.ended or "new"
        for known in entry.recent:
            if known.first == batch.first and known.count == batch.rows.count:
                return known
        return "repacked"

    def accept(self, now: Time, batch: Publish, lo: int, lsn: Lsn) -> PublisherEntry:
        """Remember a new batch; returns the publisher's entry, to be written with it."""
        old = self.entries[batch.publisher]
        recent = (*old.recent, Batch(batch.first, batch.rows.count, batch.stream, lo, lsn))[-self.settings.window :]
        entry = PublisherEntry(
            old.session, old.nonce, old.opened, batch.first + batch.rows.count, recent, now, old.past
        )
        self.entries[batch.publisher] = entry
        return entry

    def end(self, now: Time, publisher: str, reason: str) -> None:
        """Remember that the next batch was refused, to be written before its publisher is told.

        The publisher goes on in another session, so a late copy of the batch must not be taken in this one, even if it
        would fit by then: the client was told that it is not published, and may have published it again.
        """
        self.entries[publisher] = msgspec.structs.replace(self.entries[publisher], at=now, ended=reason)


def entry_rows(lo: int, publisher: str, entry: PublisherEntry, now: Time) -> Rows:
    """An entry as the next row of the `_publishers` stream."""
    origin = Origin(lo, lo + 1, publisher, entry.session, entry.next, 0, now)
    return SmallRows([publisher.encode()], [msgspec.msgpack.encode(entry)], lo, (origin,))


def renumber(batch: Publish, lo: int, tick: int, now: Time, region: RegionId) -> Rows:
    """addLocalEvent's numbering (A1.15): the publisher's rows become the stream's numbers from ``lo``."""
    rows = batch.rows
    origin = Origin(lo, lo + rows.count, batch.publisher, batch.session, batch.first, tick, now, region)
    if isinstance(rows, CountedRows):
        moved = tuple((seq + lo - rows.first, before) for seq, before in rows.collectors)
        return CountedRows(lo, lo + rows.count, rows.size, moved)
    assert isinstance(rows, ArrowRows)
    return rows.renumbered(lo, (origin,))


class PublishService(HeadService):
    """Answers `OpenSession` and `Publish`. ``reserved``: whether a stream's next numbers are given away."""

    handles: ClassVar[frozenset[type[Message]]] = frozenset({OpenSession, Publish})

    def __init__(
        self, head: Head, table: StreamTable, reserved: Callable[[StreamId], bool], settings: PublishSettings
    ) -> None:
        self.head = head
        self.table = table
        self.reserved = reserved
        self.publishers = Publishers(settings)

    def load(self, now: Time, rows_of: RowsOf) -> None:
        self.publishers.load(rows_of(PUBLISHERS))

    def receive(self, now: Time, src: NodeId, message: Message) -> Step:
        if isinstance(message, OpenSession):
            return self._open_session(now, src, message)
        assert isinstance(message, Publish)
        return self._publish(now, src, message)

    def entry(self, now: Time, publisher: str) -> Span:
        """What is known of a publisher, as the next part of `_publishers`."""
        at = self.table.log.ends[PUBLISHERS]
        return Span.of(PUBLISHERS, at, entry_rows(at, publisher, self.publishers.entries[publisher], now))

    def _open_session(self, now: Time, src: NodeId, message: OpenSession) -> Step:
        if self.head.busy:
            return Step(reports=["publish_busy"])
        lsn = self.table.log.last + 1
        entry = self.publishers.open(now, message.publisher, message.nonce, lsn)
        if entry is not None:
            answer = SessionOpened(message.nonce, entry.session)
            return Step([self.entry(now, message.publisher)], [(src, answer, lsn)])
        known = self.publishers.entries[message.publisher]
        if known.nonce != message.nonce:
            return Step(reports=["late_opening"])
        return Step(answers=[(src, SessionOpened(message.nonce, known.session), known.opened)])

    def _publish(self, now: Time, src: NodeId, batch: Publish) -> Step:
        verdict = self.publishers.judge(now, batch)
        if verdict == "new":
            held = self.head.busy or self.reserved(batch.stream) or self.table.pending(batch.stream)
            verdict = "busy" if held else self.table.misfit(batch.stream, batch.rows) or "new"
            if verdict in REFUSED:
                if not self.table.uncommitted(batch.stream):
                    return self._refuse(now, src, batch, verdict)
                verdict = "busy"  # it may fit what the stream is going to be
        if isinstance(verdict, Batch):
            again = Published(batch.session, batch.first, verdict.lo, verdict.lo + verdict.count)
            across = ["retry_across_failover"] if self.head.inherited(verdict.lsn) else []
            return Step(answers=[(src, again, verdict.lsn)], reports=["duplicate_publish", *across])
        if verdict == "new":
            return self.add_local_event(now, src, batch)
        when = AS_HEAD if verdict in REMEMBERED else self.table.log.committed
        rejected = Rejected(batch.session, batch.first, verdict)
        return Step(answers=[(src, rejected, when)], reports_after=[f"publish_{verdict}"])

    def _refuse(self, now: Time, src: NodeId, batch: Publish, reason: str) -> Step:
        """A batch does not fit, and never will in this session: that is replicated before it is answered."""
        self.publishers.end(now, batch.publisher, reason)
        answer = Rejected(batch.session, batch.first, reason)
        lsn = self.table.log.last + 1
        return Step([self.entry(now, batch.publisher)], [(src, answer, lsn)], reports_after=[f"publish_{reason}"])

    def add_local_event(self, now: Time, src: NodeId, batch: Publish) -> Step:
        """Number a new batch and write it with its publisher's entry (A1.15)."""
        log = self.table.log
        lo, lsn = log.ends[batch.stream], log.last + 1
        rows = renumber(batch, lo, self.table.tick(batch.stream, now), now, self.table.region)
        self.publishers.accept(now, batch, lo, lsn)
        answer = Published(batch.session, batch.first, lo, lo + rows.count)
        return Step([Span.of(batch.stream, lo, rows), self.entry(now, batch.publisher)], [(src, answer, lsn)])


# --- the publisher's end ----------------------------------------------------------------------------------


class Post(Command, frozen=True, gc=False):
    """The application publishes a batch; the answer is a delivered `Acked`, `Refused` or `Failed`."""

    stream: StreamId
    rows: Rows
    tag: int = 0  # the application's own name for the batch: the answer carries it


class Acked(Value, frozen=True, gc=False):
    """Delivered to the application: its events [first, first + hi - lo) are published as [lo, hi)."""

    stream: StreamId
    publisher: str
    session: int
    first: int
    lo: int
    hi: int
    tag: int = 0


class Refused(Value, frozen=True, gc=False):
    """Delivered to the application: this batch does not fit its stream and is not published; the others go on."""

    stream: StreamId
    publisher: str
    tag: int
    reason: str


class Failed(Value, frozen=True, gc=False):
    """Delivered to the application: this publisher can go on no more, and why."""

    publisher: str
    reason: str


class PublishTick(Timer, frozen=True, gc=False):
    """Look for batches that were not answered."""


class Publisher:
    """Publishes to the streams of one region: sends batches in order and repeats each as it is until it is answered."""

    def __init__(self, name: str, membership: ChainConfig, settings: PublishSettings, nonce: int) -> None:
        self.name = name
        self.head = HeadClient(membership, waiting=0)
        self.settings = settings
        self.nonce = nonce
        self.session: int | None = None
        self.failed: str | None = None
        self.next = 1
        self.queue: deque[tuple[StreamId, Rows, int]] = deque()
        self.inflight: dict[int, Publish] = {}  # by first number
        self.ordinals: dict[int, int] = {}  # which batch of the session that is, by first number
        self.tags: dict[int, int] = {}  # likewise
        self.batches = 0  # sent in this session
        self.leaving = False  # the session ends when what was sent in it is answered
        self.resent: int | None = None  # the oldest unanswered batch when a gap last made this end repeat

    @property
    def membership(self) -> ChainConfig:
        """The newest configuration of the region that this client knows."""
        return self.head.config

    def start(self, now: Time) -> Effects:
        return [*self._send_all(), SetTimer(self.settings.retry, PublishTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        match input:
            case Post(stream, rows, tag):
                return self._post(stream, rows, tag)
            case Received(_, message):
                return self._receive(message)
            case Expired(PublishTick()):
                return [*self._retry(), SetTimer(self.settings.retry, PublishTick())]
        return NOTHING

    def check(self) -> None:
        window = self.settings.window
        assert len(self.inflight) <= window and len(self.queue) <= self.settings.queue + window
        assert list(self.inflight) == sorted(self.inflight), "batches are sent in order"

    def learn(self, membership: ChainConfig) -> Effects:
        """A configuration of the region that is not older: ask its head from now on."""
        return self._send_all() if self.head.learn(membership) else NOTHING

    def _post(self, stream: StreamId, rows: Rows, tag: int) -> Effects:
        if len(self.queue) >= self.settings.queue or self.failed or rows.count == 0:
            return [Report("post_refused")]
        self.queue.append((stream, rows, tag))
        return self._send_new()

    def _receive(self, message: Message) -> Effects:
        if isinstance(message, NotHead):
            return self.learn(message.membership)
        match message:
            case SessionOpened(nonce, session) if nonce == self.nonce and self.session is None:
                self.head.useful = True
                self.session = session
                return self._send_new()
            case Published(session, first, lo, hi) if session == self.session and first in self.inflight:
                self.head.useful = True
                batch = self.inflight.pop(first)
                del self.ordinals[first]
                acked = Acked(batch.stream, self.name, session, first, lo, hi, self.tags.pop(first, 0))
                return [Deliver(acked), *(self._leave() if self.leaving else self._send_new())]
            case Rejected(session, first, reason) if session == self.session and first in self.inflight:
                return self._refuse(first, reason) if reason in REFUSED else self._rejected(reason)
        return NOTHING

    def _rejected(self, reason: str) -> Effects:
        if reason == "busy":
            return NOTHING  # the next tick tries again
        if reason == "gap":  # an earlier batch was lost: repeat at once, but only once for it
            oldest = next(iter(self.inflight))
            repeat, self.resent = self.resent != oldest, oldest
            return self._send_all() if repeat else NOTHING
        self.failed = reason  # what is queued was never sent: the application may give it to another session
        self.inflight.clear()
        self.session = None
        return [Deliver(Failed(self.name, reason)), Report(f"publisher_{reason}")]

    def _refuse(self, first: int, reason: str) -> Effects:
        """Give back a batch that does not fit its stream.

        What was sent after it was not taken either. It goes out again in a new session, once what came before is
        answered: then copies that are still under way are fenced, and nothing is published twice.
        """
        refused = Refused(self.inflight[first].stream, self.name, self.tags.get(first, 0), reason)
        for number in [number for number in reversed(self.inflight) if number >= first]:
            batch = self.inflight.pop(number)
            tag = self.tags.pop(number, 0)
            del self.ordinals[number]
            if number > first:
                self.queue.appendleft((batch.stream, batch.rows, tag))
        self.leaving = True
        return [Deliver(refused), Report(f"publisher_{reason}"), *self._leave()]

    def _leave(self) -> Effects:
        """Open another session when nothing of this one is unanswered."""
        if self.inflight:
            return NOTHING
        self.leaving = False
        self.session = None
        self.nonce += 1
        self.next, self.batches, self.resent = 1, 0, None
        return self._send_all()

    def _send_new(self) -> Effects:
        if self.session is None or self.leaving:
            return NOTHING
        effects: list[Effect] = []
        while self.queue and self.batches - self._answered() < self.settings.window:
            stream, rows, tag = self.queue.popleft()
            batch = Publish(stream, self.name, self.session, self.next, rows)
            self.next += rows.count
            self.batches += 1
            self.inflight[batch.first] = batch
            self.ordinals[batch.first] = self.batches
            self.tags[batch.first] = tag
            effects.append(Send(self.head.asked, batch))
        return effects

    def _answered(self) -> int:
        """How many batches from the first on are answered without a hole."""
        return self.ordinals[next(iter(self.inflight))] - 1 if self.inflight else self.batches

    def _send_all(self) -> list[Effect]:
        if self.failed:
            return []
        if self.session is None:
            return [Send(self.head.asked, OpenSession(self.name, self.nonce))]
        return [Send(self.head.asked, batch) for batch in self.inflight.values()]

    def _retry(self) -> list[Effect]:
        waiting = next(iter(self.inflight), None) if self.session else 0  # 0: the session
        if not self.head.overdue(waiting):
            return []
        return [*self._send_all(), Report("publisher_retry")]
