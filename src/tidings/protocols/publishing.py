"""Exactly-once publish (A1.1, A1.12, A1.15): publisher id + session + number, decided by the head.

A publisher opens a session, which fences its older ones, and numbers its events 1, 2, 3 ... in it. The head
accepts a batch only if it continues those numbers, and writes the publisher's entry in the same record as the
events, so events and memory of them live or die together. A retry is the same batch again: it is answered with
the sequence numbers it got the first time, by whichever replica is head by then. `publish` is answered when the
record is committed at the tail. A batch that does not fit its stream ends the session, and the entry says so
before the publisher is told: neither it nor what follows it is published in that session any more. Entries
expire ``ttl`` seconds after their last use; a retry that comes later is refused, not guessed.

This file is both ends: `Publishers` at the head, `Publisher` at the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.core.listed import ListedRows
from tidings.core.rows import ArrowRows, CountedRows, Origin, Rows
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
from tidings.protocols.log import Lsn
from tidings.protocols.membership import Membership

PUBLISHERS: StreamId = "_publishers"
"""The internal stream that holds one entry per publisher, by key."""


class OpenSession(Message, frozen=True, gc=False):
    """A publisher starts: the head gives it a new session and fences the older ones."""

    publisher: str
    nonce: int  # the same in each retry of one opening


class SessionOpened(Message, frozen=True, gc=False):
    """The session is committed; the publisher numbers its events from 1 in it."""

    nonce: int
    session: int


class Publish(Message, frozen=True, gc=False):
    """A batch, numbered by its publisher from ``first``. A retry is this very message again."""

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

    membership: Membership


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


class Entry(Value, frozen=True, gc=False):
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
        self.entries: dict[str, Entry] = {}

    def load(self, rows: Iterable[Rows]) -> None:
        """Rebuild the table from the `_publishers` rows of history and log, oldest first."""
        self.entries.clear()
        for part in rows:
            assert isinstance(part, ArrowRows)
            keys, payloads = part.batch.column("key").to_pylist(), part.batch.column("payload").to_pylist()
            for key, payload in zip(keys, payloads, strict=True):
                if key is not None:
                    self.entries[key.decode()] = msgspec.msgpack.decode(payload, type=Entry)

    def expire(self, now: Time) -> None:
        """Forget publishers that have not been heard of for ``ttl``."""
        self.entries = {name: entry for name, entry in self.entries.items() if now - entry.at <= self.settings.ttl}

    def open(self, now: Time, publisher: str, nonce: int, lsn: Lsn) -> Entry | None:
        """The entry of a new session, or None if this opening, or a later one, is already there."""
        known = self.entries.get(publisher)
        if known is not None and (known.nonce == nonce or nonce in known.past):
            return None
        session = max(known.session + 1 if known else 1, int(now * 1e6))  # by the clock: also above expired ones
        past = (*known.past, known.nonce)[-self.settings.past :] if known else ()
        self.entries[publisher] = entry = Entry(session, nonce, lsn, 1, (), now, past)
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

    def accept(self, now: Time, batch: Publish, lo: int, lsn: Lsn) -> Entry:
        """Remember a new batch; returns the publisher's entry, to be written with it."""
        old = self.entries[batch.publisher]
        recent = (*old.recent, Batch(batch.first, batch.rows.count, batch.stream, lo, lsn))[-self.settings.window :]
        entry = Entry(old.session, old.nonce, old.opened, batch.first + batch.rows.count, recent, now, old.past)
        self.entries[batch.publisher] = entry
        return entry

    def end(self, now: Time, publisher: str, reason: str) -> None:
        """Remember that the next batch was refused, to be written before its publisher is told.

        The publisher goes on in another session, so a late copy of the batch must not be taken in this one, even if it
        would fit by then: whoever was told that it is not published may have published it again.
        """
        self.entries[publisher] = msgspec.structs.replace(self.entries[publisher], at=now, ended=reason)


def entry_rows(lo: int, publisher: str, entry: Entry, now: Time) -> Rows:
    """An entry as the next row of the `_publishers` stream."""
    origin = Origin(lo, lo + 1, publisher, entry.session, entry.next, 0, now)
    return ListedRows([publisher.encode()], [msgspec.msgpack.encode(entry)], lo, (origin,))


def renumber(batch: Publish, lo: int, tick: int, now: Time, region: RegionId) -> Rows:
    """addLocalEvent's numbering (A1.15): the publisher's rows become the stream's numbers from ``lo``."""
    rows = batch.rows
    origin = Origin(lo, lo + rows.count, batch.publisher, batch.session, batch.first, tick, now, region)
    if isinstance(rows, CountedRows):
        moved = tuple((seq + lo - rows.first, before) for seq, before in rows.collectors)
        return CountedRows(lo, lo + rows.count, rows.size, moved)
    assert isinstance(rows, ArrowRows)
    return rows.renumbered(lo, (origin,))


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
    """Publishes to the streams of one region: batches in order, repeated as they are until answered."""

    def __init__(self, name: str, membership: Membership, settings: PublishSettings, nonce: int) -> None:
        self.name = name
        self.membership = membership
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
        self.asked: NodeId = membership.head
        self.heard = True  # the replica asked has been of use since the last tick
        self.oldest: int | None = 0  # what the last tick found waiting longest; 0: the session

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

    def learn(self, membership: Membership) -> Effects:
        """A configuration of the region that is not older: ask its head from now on."""
        if membership.region != self.membership.region or membership.epoch < self.membership.epoch:
            return NOTHING
        self.heard = True
        self.membership = membership
        moved, self.asked = self.asked != membership.head, membership.head
        return self._send_all() if moved else NOTHING

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
                self.heard = True
                self.session = session
                return self._send_new()
            case Published(session, first, lo, hi) if session == self.session and first in self.inflight:
                self.heard = True
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
            effects.append(Send(self.asked, batch))
        return effects

    def _answered(self) -> int:
        """How many batches from the first on are answered without a hole."""
        return self.ordinals[next(iter(self.inflight))] - 1 if self.inflight else self.batches

    def _send_all(self) -> list[Effect]:
        if self.failed:
            return []
        if self.session is None:
            return [Send(self.asked, OpenSession(self.name, self.nonce))]
        return [Send(self.asked, batch) for batch in self.inflight.values()]

    def _retry(self) -> list[Effect]:
        waiting = next(iter(self.inflight), None) if self.session else 0
        stuck, self.oldest = waiting is not None and waiting == self.oldest, waiting
        if not stuck:
            return []
        if not self.heard:  # perhaps that replica is gone: another one knows who is head
            replicas = self.membership.replicas
            self.asked = replicas[(replicas.index(self.asked) + 1) % len(replicas)]
        self.heard = False
        return [*self._send_all(), Report("publisher_retry")]
