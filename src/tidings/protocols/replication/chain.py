"""Chain replication of the record log (A1.40-A1.42, E12).

The head appends records. A replica forwards a record only when it has it on disk, so a successor's log is a prefix of
its predecessor's, on disk too. The tail commits what it holds durably, and its acknowledgement runs back to the head.
Guarantees, with any loss, duplication or reordering of messages, as long as one replica keeps its disk (a replica that
has lost its disk comes back under a new name):

* a committed record is never lost and never changes; the replicas commit the same records in the same order;
* messages of an older epoch are refused, so a replica that was removed while it slept can commit nothing new.

Restart. A disk may be older than its replica: it was restored from a copy, or it lost records that it had reported as
synced. So a restarted member *compares* its log with its neighbours before it takes part. Each neighbour tells the end
of its log and the epoch of the last record that both should have. (A snapshot carries the epoch of its last record:
the restarted replica may not know from its disk that this record is committed.) The successor's log must be a prefix
of the predecessor's. If two records have one lsn, the record of the older epoch is void. A replica whose log is wrong
takes no events, acknowledges nothing and resigns. Once removed, it rejoins as any removed replica does.

Joining. A removed replica cuts its log back to the commit point that it knew, and asks to be appended behind the tail.
The tail sends it records, or a snapshot if those records were trimmed. Meanwhile the tail retains newly committed
records for it, up to a bound, and across changes of epoch in which the two stay neighbours. When the joining replica
has nearly caught up, the tail *passes the token*: from then on it commits only what the joining replica acknowledges.
When that decision is on the tail's disk and the joining replica holds all that is committed, the tail asks the
configuration service to make the joining replica the tail.
"""

from __future__ import annotations

from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.core.span import MESSAGE_BYTES, Span
from tidings.protocols.kernel import (
    NOTHING,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Message,
    Persist,
    Persisted,
    Received,
    Report,
    Send,
    SetTimer,
    Time,
    Timer,
    Value,
)
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Beat, Current, Promote, Resign
from tidings.protocols.replication.log import CutBack, DiskEntry, Installed, Log, Logged, Lsn, Record, TokenPassed


class Append(Message, frozen=True, gc=False):
    """Records from the predecessor, ascending. The receiver stores what continues its log, or fetches."""

    epoch: int
    records: tuple[Record, ...]

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 64 + sum([record.wire_size for record in self.records])

    @property
    def events(self) -> int:  # type: ignore[override]
        return sum([part.rows.count for record in self.records for part in record.parts])


class ChainAck(Message, frozen=True, gc=False):
    """From the successor: all up to ``lsn`` is committed (from a joining replica: is on its disk)."""

    epoch: int
    lsn: Lsn


class Fetch(Message, frozen=True, gc=False):
    """From a joining replica, or a successor that sees a gap: it holds all up to ``after``; send what follows."""

    epoch: int
    after: Lsn


class Refuse(Message, frozen=True, gc=False):
    """The sender is in a newer epoch; the receiver asks the configuration service where it stands."""

    epoch: int


class Install(Message, frozen=True, gc=False):
    """Piece ``index`` of a snapshot at ``lsn``; the receiver stores it and asks for the next.

    ``record_epoch`` is the epoch of the record at ``lsn``; None if the sender itself has only its effect.
    """

    epoch: int
    lsn: Lsn
    index: int
    last: bool
    spans: tuple[Span, ...]
    record_epoch: int | None = None

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 64 + sum([span.wire_size for span in self.spans])


class NextPiece(Message, frozen=True, gc=False):
    """From the joining replica: it has stored the pieces below ``index`` of the snapshot at ``lsn``."""

    epoch: int
    lsn: Lsn
    index: int


class Compare(Message, frozen=True, gc=False):
    """From a neighbour that has restarted: its log ends with ``last``. Answered with `Compared`."""

    epoch: int
    last: Lsn


class Compared(Message, frozen=True, gc=False):
    """The sender's log ends with ``last``; ``record_epoch`` is the epoch of its record at the smaller of both ends.

    None: its effect alone is left, and committed. The receiver takes its place, or resigns.
    """

    epoch: int
    asked: Lsn
    last: Lsn
    record_epoch: int | None


class BeatTick(Timer, frozen=True, gc=False):
    """Tell the configuration service that this replica lives."""


class RetryTick(Timer, frozen=True, gc=False):
    """Look whether the chain has moved since the last tick; if not, send again."""


class Committed(Value, frozen=True, gc=False):
    """Delivered upwards, in order: a record is committed; ``refused`` parts contradicted what was known."""

    record: Record
    refused: tuple[Span, ...]

    def parts_of(self, stream: StreamId) -> list[Span]:
        """The parts that have entered the history of a stream."""
        return [
            part
            for part in self.record.parts
            if part.stream == stream and not (self.refused and any([part is each for each in self.refused]))
        ]


class Reconfigured(Value, frozen=True, gc=False):
    """Delivered upwards: this replica now works in another membership (or in none, while outside)."""

    membership: ChainConfig


class ChainSettings(Value, frozen=True, gc=False):
    """Ours, because the paper gives no numbers for its chain."""

    beat: float = 0.3
    retry: float = 0.2
    window: int = 64  # records forwarded beyond the commit point
    backlog: int = 1024  # uncommitted records a head accepts before it says busy
    retain: int = 128  # committed records kept for a lagging successor; older ones are sent as a snapshot
    level: int = 8  # a joining replica this close to the commit point gets the token; or a window, if that is more
    chunk_rows: int = 4096  # rows in a piece of a snapshot
    feed: int = 1 << 18  # committed records kept for a joining replica: half a minute of 8,000 records/s
    feed_bytes: int = 256 << 20  # and bytes of them; beyond either it gets another snapshot


class Installing:
    """A snapshot on its way in."""

    def __init__(self, lsn: Lsn) -> None:
        self.lsn = lsn
        self.spans: list[Span] = []
        self.index = 0  # of the piece expected next
        self.waits = 0  # how often it was asked for in vain


class Chain:
    """One replica's part of the chain. ``log`` holds its records and histories."""

    handles: frozenset[type] = frozenset(
        {
            Append,
            ChainAck,
            Fetch,
            Refuse,
            Install,
            NextPiece,
            Compare,
            Compared,
            Current,
            BeatTick,
            RetryTick,
            Persisted,
        }
    )

    def __init__(
        self, me: NodeId, region: RegionId, service: NodeId, log: Log, settings: ChainSettings, nonce: int
    ) -> None:
        self.me = me
        self.service = service
        self.log = log
        self.settings = settings
        self.nonce = nonce
        self.membership = ChainConfig(region, 0, (me,))  # epoch 0: waiting for the service's first answer
        log.trim(settings.retain)
        self.durable: Lsn = log.last
        self.token = 0  # of the newest Persist
        self.writing: list[tuple[int, Lsn]] = []  # (token, lsn) of records on their way to the disk
        self.sent: Lsn | None = None  # forwarded up to here; None until a joining successor said where it stands
        self.token_passed = False  # the joining replica commits, no longer this one
        self.promoting: int | None = None  # disk token of that decision, until it is durable
        self.unsafe: int | None = None  # disk token of a cut or snapshot: nothing is acknowledged until it is durable
        self.moved: tuple[Lsn, int] | None = None  # what the last RetryTick saw waiting
        self.snapshot: tuple[Lsn, list[tuple[Span, ...]], int | None] | None = None  # being sent; the epoch of its lsn
        self.fed: Lsn | None = None  # how far a joining successor has got: what follows is retained for it
        self.owed = 0  # bytes of the committed records that follow
        self.held: Lsn = -1  # what it has acknowledged to hold durably
        self.installing: Installing | None = None  # being received
        self.unproven: tuple[NodeId, ...] = ()  # after a restart: neighbours with whom its log is not compared yet
        self.resigned = False  # its log lacks what a neighbour has: it is out of the chain as soon as that is decided

    # --- what the layers above ask ------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """This replica is a member of the configuration it knows, and fit to be one."""
        return self.membership.epoch > 0 and self.me in self.membership.replicas and not self.unproven

    @property
    def is_head(self) -> bool:
        return self.active and self.membership.head == self.me

    @property
    def is_tail(self) -> bool:
        return self.active and self.membership.tail == self.me

    @property
    def is_joining(self) -> bool:
        return self.membership.joining == self.me

    @property
    def busy(self) -> bool:
        """The head accepts no more: too much is uncommitted."""
        return self.log.last - self.log.committed >= self.settings.backlog

    def append(self, parts: tuple[Span, ...]) -> list[Effect]:
        """Head only: make the next record of these parts."""
        assert self.is_head
        return self._store(Record(self.membership.epoch, self.log.last + 1, parts))

    # --- inputs -------------------------------------------------------------------------------------

    def start(self, now: Time) -> Effects:
        return [self._beat(), SetTimer(self.settings.beat, BeatTick()), SetTimer(self.settings.retry, RetryTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        match input:
            case Received(src, message):
                return self._receive(src, message)
            case Persisted(token):
                return self._persisted(token)
            case Expired(BeatTick()):
                return [self._beat(), SetTimer(self.settings.beat, BeatTick())]
            case Expired(RetryTick()):
                again = self._compare() if self.unproven else self._retry()
                return [*again, SetTimer(self.settings.retry, RetryTick())]
        return NOTHING

    def check(self) -> None:
        log = self.log
        assert log.committed <= self.durable <= log.last, f"{log.committed} <= {self.durable} <= {log.last}"
        assert self.sent is None or self.sent <= self.durable, "forwards only what it has persisted"
        assert len(self.writing) == log.last - self.durable, "what is not durable is on its way to the disk"
        assert not (self.resigned and self.active), "a replica that has resigned takes no part"

    def _receive(self, src: NodeId, message: Message) -> Effects:
        if isinstance(message, Current):
            return self._follow(message)
        epoch: int = getattr(message, "epoch", 0)
        if epoch < self.membership.epoch:
            return [Send(src, Refuse(self.membership.epoch)), Report("old_epoch_refused")]
        if epoch > self.membership.epoch:  # the service knows more than this replica
            fenced = [Report("old_head_fenced")] if isinstance(message, Refuse) and self.is_head else []
            return [self._beat(), *fenced]
        match message:
            case Compare(_, last):
                return [Send(src, Compared(epoch, last, self.log.last, self.log.epoch_of(min(last, self.log.last))))]
            case Compared() if src in self.unproven:
                return self._receive_compared(src, message)
            case _ if self.unproven:
                return NOTHING
            case Append(_, records) if src == self.membership.predecessor(self.me):
                return self._receive_records(records)
            case Install() if src == self.membership.predecessor(self.me):
                return self._receive_piece(message)
            case ChainAck(_, lsn) if src == self.membership.successor(self.me):
                return self._receive_ack(src, lsn)
            case Fetch(_, after) if src == self.membership.successor(self.me):
                return self._receive_fetch(src, after)
            case NextPiece(_, lsn, index) if src == self.membership.successor(self.me):
                return self._send_piece(src, lsn, index)
        return [Report("chain_message_ignored")]

    # --- membership ---------------------------------------------------------------------------------

    def _beat(self) -> Send:
        if self.resigned:
            return Send(self.service, Resign(self.membership.epoch, self.nonce))
        outside = self.membership.epoch > 0 and self.me not in self.membership.replicas and not self.is_joining
        return Send(self.service, Beat(self.membership.epoch, self.nonce, outside))

    def _follow(self, message: Current) -> Effects:
        new, old = message.membership, self.membership
        if new.region != old.region or new.epoch <= old.epoch or (old.epoch == 0 and message.nonce != self.nonce):
            return NOTHING
        self.membership = new
        self.token_passed = new.epoch == self.log.token_epoch  # known from the disk after a restart
        self.promoting = None
        self.moved = None
        if new.joining is None or new.joining != old.joining or new.successor(self.me) != new.joining:
            self.snapshot = None  # else what is committed stays so, and the newcomer goes on with it
            self.fed = None
        self.held = -1
        self.installing = None
        self.sent = None if new.successor(self.me) == new.joining else self.log.committed
        self.unproven = self._neighbours() if old.epoch == 0 or self.unproven else ()
        self.resigned = self.resigned and bool(self.unproven)
        effects: list[Effect] = [Deliver(Reconfigured(new))]
        if self.is_joining:
            effects[:0] = self._cut_back()
            effects.append(self._to_predecessor(Fetch(new.epoch, self.log.last)))
        return [*effects, *(self._compare() if self.unproven else self._take_place())]

    def _take_place(self) -> list[Effect]:
        """Do what this replica's place in the chain asks for."""
        if self.token_passed or not self.is_tail:
            return self._forward() if self.active else []
        return self._commit(self.durable)

    # --- after a restart ----------------------------------------------------------------------------

    def _neighbours(self) -> tuple[NodeId, ...]:
        """With whom a member must agree, the joining replica included: it may hold what was committed by its word."""
        if self.me not in self.membership.replicas:
            return ()
        found = (self.membership.predecessor(self.me), self.membership.successor(self.me))
        return tuple([node for node in found if node is not None])

    def _compare(self) -> list[Effect]:
        if self.resigned:
            return []
        return [Send(node, Compare(self.membership.epoch, self.log.last)) for node in self.unproven]

    def _receive_compared(self, src: NodeId, answer: Compared) -> Effects:
        """A neighbour tells what its log is like; the log of an unproven replica does not change meanwhile."""
        both = min(self.log.last, answer.last)
        mine, theirs = self.log.epoch_of(both), answer.record_epoch
        after = src == self.membership.successor(self.me)
        if theirs is None and both <= self.log.committed:
            theirs = mine  # committed at both ends: the same
        more = after and answer.last > self.log.last and mine in (None, theirs)  # else all that is more was voided
        if more or (mine is not None and (theirs is None or mine < theirs)):
            self.resigned = True
            return [Report("old_disk_found"), self._beat()]
        if (mine is not None and mine != theirs) or (not after and answer.last < self.log.last):
            return [Report("neighbour_at_fault")]  # it has restarted, too, and is about to find out
        self.unproven = tuple([node for node in self.unproven if node != src])
        if self.unproven:
            return NOTHING
        return [Deliver(Reconfigured(self.membership)), *self._take_place()]

    def _cut_back(self) -> list[Effect]:
        """Joining: void what is not known to be committed; what is left is a prefix of the tail's log.

        A replica that was joining in this epoch or the one before has such a prefix already, and has acknowledged it.
        """
        epoch, joined = self.membership.epoch, self.log.joined_epoch
        voided = 0 if joined and joined >= epoch - 1 else self.log.last - self.log.committed
        if voided:
            self.log.cut(self.log.committed)
            self.durable = self.log.last
            self.writing.clear()
        self.log.joined_epoch = epoch
        persist = self._persist(CutBack(self.log.last, epoch))
        self.unsafe = persist.token
        return [persist, Report("cut_back")] if voided else [persist]

    def _to_predecessor(self, message: Message) -> Send:
        predecessor = self.membership.predecessor(self.me)
        assert predecessor is not None
        return Send(predecessor, message)

    def _persist(self, entry: DiskEntry) -> Persist:
        self.token += 1
        return Persist(entry, self.token)

    # --- records down the chain ---------------------------------------------------------------------

    def _store(self, record: Record) -> list[Effect]:
        self.log.append(record)
        persist = self._persist(Logged(record, self.log.committed))
        self.writing.append((persist.token, record.lsn))
        return [persist]

    def _receive_records(self, records: tuple[Record, ...]) -> Effects:
        if self.installing is not None:
            return NOTHING
        effects: list[Effect] = []
        for record in records:
            if record.lsn == self.log.last + 1:
                effects.extend(self._store(record))
            elif record.lsn > self.log.last:  # a message was lost or overtaken
                return [*effects, self._to_predecessor(Fetch(self.membership.epoch, self.log.last))]
        return effects or self._ack()  # nothing new: the acknowledgement was lost, or is what is wanted

    def _persisted(self, token: int) -> Effects:
        done = 0
        for written, lsn in self.writing:
            if written > token:
                break
            self.durable = lsn
            done += 1
        del self.writing[:done]
        if self.promoting is not None and self.promoting <= token:
            self.promoting = None
        if self.unsafe is not None and self.unsafe <= token:
            self.unsafe = None
        if self.is_joining:  # what is on this disk is on those of all who came before
            return (self._commit(self.durable) if self.unsafe is None else []) or self._ack()
        if self.is_tail and not self.token_passed:
            return self._commit(self.durable)
        return [*self._promote(), *self._forward()]

    def _forward(self) -> list[Effect]:
        to = self.membership.successor(self.me)
        if to is None or self.sent is None:
            return []
        upto = min(self.durable, self.log.committed + self.settings.window)
        if self.fed is not None:  # far behind: what it has not acknowledged is bounded, too
            upto = min(upto, self.fed + self.settings.backlog)
        if upto <= self.sent:
            return []
        effects: list[Effect] = []
        records: list[Record] = []
        size = 0
        for record in self.log.between(self.sent, upto):
            size += record.wire_size
            if records and size > MESSAGE_BYTES:
                effects.append(Send(to, Append(self.membership.epoch, tuple(records))))
                records, size = [], record.wire_size
            records.append(record)
        self.sent = upto
        return [*effects, Send(to, Append(self.membership.epoch, tuple(records)))]

    def _receive_fetch(self, src: NodeId, after: Lsn) -> Effects:
        if after > self.durable:
            return [Report("bad_message")]  # nobody can hold what was never forwarded
        if after + 1 < self.log.first:
            if self.snapshot is None or self.snapshot[0] <= after:
                at = self.log.committed
                self.snapshot = (at, self.log.snapshot(self.settings.chunk_rows), self.log.epoch_of(at))
            if src == self.membership.joining:
                self._fed_up_to(self.snapshot[0])
            return self._send_piece(src, self.snapshot[0], 0)
        if src == self.membership.joining:  # a member that saw a gap is level, and its acknowledgements move no feed
            self._fed_up_to(after)
        self.sent = after
        return self._forward() or [Send(src, Append(self.membership.epoch, ()))]

    # --- acknowledgements up the chain ----------------------------------------------------------------

    def _ack(self) -> list[Effect]:
        if self.unsafe is not None:
            return []
        lsn = self.durable if self.is_joining else self.log.committed
        return [self._to_predecessor(ChainAck(self.membership.epoch, lsn))]

    def _receive_ack(self, src: NodeId, lsn: Lsn) -> Effects:
        if lsn > self.durable:
            return [Report("bad_message")]  # nobody can hold what was never forwarded
        if src != self.membership.joining:
            return self._commit(lsn)
        self._fed_up_to(max(lsn, self.fed or 0))  # what it held before a snapshot that is on its way does not matter
        self.held = lsn
        if self.token_passed:
            return [*self._commit(lsn), *self._promote()]
        near = max(self.settings.level, self.settings.window)  # so much is on its way to any successor under load
        if lsn + near < self.log.committed:
            return self._forward()
        self.token_passed = True  # the newcomer is nearly level: this replica gives up committing by itself (A1.42)
        self.log.token_epoch = self.membership.epoch
        persist = self._persist(TokenPassed(self.membership.epoch))
        self.promoting = persist.token
        return [Report("token_passed"), persist, *self._forward()]

    def _promote(self) -> list[Effect]:
        """Once the token is safely passed and the newcomer lacks nothing that is committed, it becomes the tail."""
        joining = self.membership.joining
        if not self.token_passed or self.promoting is not None or joining is None or self.held < self.log.committed:
            return []
        return [Send(self.service, Promote(self.membership.epoch, joining))]

    def _commit(self, upto: Lsn) -> list[Effect]:
        effects: list[Effect] = []
        while self.log.committed < upto:
            record, refused = self.log.commit_next()
            if self.fed is not None and record.lsn > self.fed:
                self.owed += record.wire_size
            effects.append(Deliver(Committed(record, refused)))
        if not effects:
            return effects
        self.log.trim(self.retained())
        effects.extend(self._forward())  # the window has moved
        if not self.is_head:
            effects.extend(self._ack())
        return effects

    def retained(self) -> int:
        """How many committed records to keep: some, and those a joining replica still has to get."""
        if self.fed is None:
            return self.settings.retain
        most = self.settings.feed if self.owed <= self.settings.feed_bytes else self.settings.backlog
        return max(self.settings.retain, min(self.log.committed - self.fed, most))

    def _fed_up_to(self, lsn: Lsn) -> None:
        """The joining successor has got so far: it is owed the committed records after that."""
        log, before = self.log, self.fed
        if before is not None and log.first - 1 <= before <= lsn:
            self.owed -= sum([record.wire_size for record in log.between(before, min(lsn, log.committed))])
        else:
            self.owed = sum([record.wire_size for record in log.between(max(lsn, log.first - 1), log.committed)])
        self.fed = lsn

    # --- repair ---------------------------------------------------------------------------------------

    def _retry(self) -> list[Effect]:
        """Nothing has moved for a whole period: repeat what may have been lost."""
        at = self.log.last if self.is_joining else self.log.committed
        seen = (at, self.installing.index if self.installing else 0)
        waiting = self.is_joining or (self.sent is not None and self.sent > at)
        stuck, self.moved = waiting and self.moved == seen, seen if waiting else None
        effects = self._promote()
        if stuck and self.is_joining:
            effects.append(self._to_predecessor(self._resume()))
        elif stuck:
            self.sent = at
            effects.extend([Report("retransmission"), *self._forward()])
        return effects

    def _resume(self) -> Message:
        """What a joining replica that gets nothing asks for: the next piece, or everything anew if nobody has it."""
        epoch, arriving = self.membership.epoch, self.installing
        if arriving is not None:
            arriving.waits += 1
            if arriving.waits <= 3:  # ours: a lost message is repeated, a predecessor that restarted has forgotten
                return NextPiece(epoch, arriving.lsn, arriving.index)
        self.installing = None
        return Fetch(epoch, self.log.last)

    # --- snapshots ------------------------------------------------------------------------------------

    def _send_piece(self, src: NodeId, lsn: Lsn, index: int) -> Effects:
        if self.snapshot is None or lsn != self.snapshot[0]:
            return NOTHING
        _, pieces, record_epoch = self.snapshot
        last = index == len(pieces) - 1
        return [Send(src, Install(self.membership.epoch, lsn, index, last, pieces[index], record_epoch))]

    def _receive_piece(self, piece: Install) -> Effects:
        if piece.lsn <= self.log.last:
            return NOTHING  # a late copy: this replica is past it
        if self.installing is None or self.installing.lsn != piece.lsn:
            self.installing = Installing(piece.lsn)
        arriving, epoch = self.installing, self.membership.epoch
        if piece.index != arriving.index:
            return NOTHING
        arriving.spans.extend(piece.spans)
        arriving.index += 1
        arriving.waits = 0
        persist = self._persist(Installed(piece.lsn, piece.index, piece.spans, piece.last, piece.record_epoch))
        if not piece.last:
            return [persist, self._to_predecessor(NextPiece(epoch, piece.lsn, arriving.index))]
        # it replaces all this replica knew, here and now as on the disk
        self.log.install(piece.lsn, arriving.spans, piece.record_epoch)
        self.writing.clear()
        self.durable = self.log.last
        self.installing = None
        self.unsafe = persist.token
        fetch = self._to_predecessor(Fetch(epoch, self.log.last))
        return [persist, Deliver(Reconfigured(self.membership)), fetch, Report("snapshot_installed")]
