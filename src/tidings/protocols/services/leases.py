"""Leases: rows stay readable as of a number, on every replica of the owner, for as long as a client needs them.

A lease is a floor of one stream: no row with dead_at >= its asof is purged. The owning region's head grants it, moves
it forward, and ends it: when its holder releases it, when the holder is silent for its ttl, or when it holds more bytes
of dead rows than it may. The table of all leases is one entry of the internal stream `_leases`, so every replica
applies the same changes at the same place of the log, and a new head finds them there. A new lease is granted as of
the end of the log: no replica's floor can have passed that when it applies the record. It is granted as of an earlier
number only while another lease keeps that number (`granted`).

The table contains no times. A head measures silence by its own clock, since it last heard of a holder or became head.
So clocks that differ, fail-over and restart can lengthen a lease. A fast clock can end it early, and the holder gets an
error. A read is judged by floors alone, so it is never wrong.

Guarantee: while a holder is told that it has a lease as of n, reads as of n and above are answered by every replica of
the owner that has been in the chain since, or got its state from one that has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import msgspec

from tidings.core.history import History
from tidings.core.ids import NodeId, StreamId
from tidings.core.rows import ArrowRows, Origin, Rows, data_rows
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
from tidings.protocols.services.head import AS_HEAD, Head, HeadService, RowsOf, Step
from tidings.protocols.services.head_client import HeadClient
from tidings.protocols.services.publishing import NotHead

if TYPE_CHECKING:
    from tidings.protocols.services.streams import StreamTable

LEASES: StreamId = "_leases"
"""The internal stream whose newest entry is the table of leases, by key."""

TABLE = b"leases"
"""The key of that entry."""

TTL = 900.0  # seconds; ours: longer than the restart of a job takes
BYTES = 1 << 30  # of dead rows that one lease may hold; ours
LONGEST_NAME = 200  # characters; ours
WEIGHED = 4  # leases whose dead rows are counted in one go; ours: a few milliseconds where millions are dead
REMEMBERED = 256  # ended leases of which the head can say why; ours, for the text alone


class Lease(Message, frozen=True, gc=False):
    """To the owner's head: renew a lease, move it forward to ``asof`` (0: leave it), or ``grant`` it if it is new.

    It is bounded as the newest of these says. Answered with `Leased` or `Unleased`.
    """

    from_clients: ClassVar[bool] = True

    name: str
    stream: StreamId
    asof: int = 0
    ttl: float = TTL
    bytes: int = BYTES
    grant: bool = False


class Release(Message, frozen=True, gc=False):
    """To the owner's head: a lease is needed no longer; answered with `Unleased`."""

    from_clients: ClassVar[bool] = True

    name: str
    stream: StreamId


class Leased(Message, frozen=True, gc=False):
    """The lease is committed, as of ``asof``."""

    name: str
    stream: StreamId
    asof: int


class Unleased(Message, frozen=True, gc=False):
    """There is no such lease (any more), and why; ``room``: for want of room, and seconds until there may be some.

    ``gone``: the region has no such stream, or no more; its name may mean another one.
    """

    name: str
    stream: StreamId
    reason: str
    room: float | None = None
    gone: bool = False


class LeaseState(Value, frozen=True, gc=False):
    """A lease as a replica tells of it; ``held``: bytes of dead rows at or above its asof."""

    name: str
    stream: StreamId
    asof: int
    ttl: float
    bytes: int
    held: int


class LeaseSettings(Value, frozen=True, gc=False):
    """Ours, because the papers have no leases."""

    leases: int = 1024  # of a region: the table is written whole
    longest: float = 7 * 86_400.0  # seconds of a ttl
    shortest: float = 1.0
    again: float = 0.5  # seconds until a holder asks another replica


# --- the region's end ---------------------------------------------------------------------------------------


class LeaseEntry(Value, frozen=True, gc=False):
    """What the chain remembers of a lease."""

    stream: StreamId
    asof: int
    ttl: float
    bytes: int


Table: TypeAlias = dict[str, LeaseEntry]


def table_in(rows: Iterable[Rows]) -> Table:
    """The newest table among rows of `_leases`, oldest first."""
    table: Table = {}
    for part in rows:
        if isinstance(part, ArrowRows) and part.count:
            newest = part.batch.column("payload")[part.count - 1].as_py()
            table = msgspec.msgpack.decode(newest, type=Table)
    return table


class Leases:
    """The head's table."""

    def __init__(self, settings: LeaseSettings) -> None:
        self.settings = settings
        self.entries: Table = {}
        self.heard: dict[str, Time] = {}  # of a holder, or when this head took the lead
        self.inherited: set[str] = set()  # granted by another head, and not renewed since
        self.ended: dict[str, str] = {}  # why, of the newest

    def load(self, now: Time, rows: Iterable[Rows]) -> None:
        """A new head finds the table in history and log."""
        self.entries = table_in(rows)
        self.heard = dict.fromkeys(self.entries, now)
        self.inherited = set(self.entries)
        self.ended.clear()

    def check(self) -> None:
        assert len(self.entries) <= self.settings.leases, "leases are bounded"
        assert self.heard.keys() == self.entries.keys(), "every lease has a holder"

    def receive(
        self, now: Time, message: Lease | Release, end: int
    ) -> tuple[Leased | Unleased, bool, tuple[Report, ...]]:
        """The answer, whether the table must be written first, and what to count; ``end`` is the stream's."""
        known = self.entries.get(message.name)
        if known is not None and known.stream != message.stream:
            return Unleased(message.name, message.stream, f"it is a lease of {known.stream!r}"), False, ()
        if isinstance(message, Release):
            if known is not None:
                self._end(message.name, "it was released")
            return self._unleased(message), known is not None, (Report("lease_released"),) if known else ()
        if known is None and not message.grant:
            return self._unleased(message), False, ()
        if wrong := self._wrong(message):
            return Unleased(message.name, message.stream, wrong), False, ()
        if known is None:
            return self._grant(now, message, end)
        self.heard[message.name] = now
        reports = [Report("lease_renewed")]
        if message.name in self.inherited:
            self.inherited.remove(message.name)
            reports.append(Report("lease_renewed_across_failover"))
        asof = max(known.asof, min(message.asof, end))
        if asof > known.asof:
            reports.append(Report("lease_moved"))
        entry = self.entries[message.name] = LeaseEntry(known.stream, asof, message.ttl, message.bytes)
        return Leased(message.name, message.stream, asof), entry != known, tuple(reports)

    def _grant(self, now: Time, message: Lease, end: int) -> tuple[Leased | Unleased, bool, tuple[Report, ...]]:
        if len(self.entries) >= self.settings.leases:
            full = f"its region has {len(self.entries)} leases, and takes no more"
            return Unleased(message.name, message.stream, full, self._room(now)), False, ()
        asof = self.granted(message.stream, message.asof, end)
        self.entries[message.name] = LeaseEntry(message.stream, asof, message.ttl, message.bytes)
        self.heard[message.name] = now
        return Leased(message.name, message.stream, asof), True, (Report("lease_granted"),)

    def _wrong(self, message: Lease) -> str:
        """What makes no sense in a request."""
        settings = self.settings
        if not settings.shortest <= message.ttl <= settings.longest:
            return f"a ttl of {message.ttl:g} s is not between {settings.shortest:g} and {settings.longest:g}"
        if not 0 < len(message.name) <= LONGEST_NAME:
            return f"its name has {len(message.name)} characters, not 1 to {LONGEST_NAME}"
        return ""

    def _room(self, now: Time) -> float:
        """Seconds until the first lease ends if all holders are silent from now on."""
        return max(0.0, min([self.heard[name] + entry.ttl - now for name, entry in self.entries.items()], default=0.0))

    def granted(self, stream: StreamId, asof: int, end: int) -> int:
        """The number at which a new lease starts: the requested one if another lease still keeps it, else the end."""
        if 0 < asof < end and any([e.stream == stream and e.asof <= asof for e in self.entries.values()]):
            return asof
        return end

    def expire(self, now: Time, streams: Mapping[StreamId, object], held: Mapping[str, int]) -> list[Report]:
        """End what is overdue, or holds too many bytes; the table must be written if anything was."""
        out: list[Report] = []
        for name, entry in list(self.entries.items()):
            if now < self.heard[name]:  # the clock was set back
                self.heard[name] = now
            if entry.stream not in streams:
                self._end(name, "its stream was deleted")
            elif now - self.heard[name] > entry.ttl:
                self._end(name, f"nothing was heard of its holder for {entry.ttl:g} s")
            elif held.get(name, 0) > entry.bytes:
                self._end(name, f"it held more than {entry.bytes} bytes of dead rows")
                out.append(Report("lease_too_large"))
            else:
                continue
            out.append(Report("lease_expired"))
        return out

    def rows(self, lo: int, now: Time) -> Rows:
        """The table as the next row of `_leases`."""
        payload = msgspec.msgpack.encode(self.entries, order="deterministic")
        return data_rows(lo, [TABLE], [payload], Origin(lo, lo + 1, LEASES, 0, lo, 0, now))

    def _end(self, name: str, why: str) -> None:
        del self.entries[name], self.heard[name]
        self.inherited.discard(name)
        self.ended[name] = why
        while len(self.ended) > REMEMBERED:
            del self.ended[next(iter(self.ended))]

    def _unleased(self, message: Lease | Release) -> Unleased:
        why = self.ended.get(message.name, "it has expired, was released, or never was")
        return Unleased(message.name, message.stream, why)


class CommittedLeases:
    """The leases that are committed at one replica: its histories keep what they need."""

    def __init__(self) -> None:
        self.table: Table = {}
        self.held: dict[str, int] = {}  # bytes of dead rows that each lease keeps
        self._weighed = 0

    def of(self, stream: StreamId) -> dict[str, int]:
        """The leases of a stream, and as of which number they are."""
        return {name: entry.asof for name, entry in self.table.items() if entry.stream == stream}

    def learn(self, rows: Rows, histories: Mapping[StreamId, History]) -> None:
        """Another table is committed: rows that no lease needs any more may be purged, others may not."""
        table = table_in([rows])
        for name, old in self.table.items():
            kept = name in table and table[name].stream == old.stream  # a snapshot may jump over its end elsewhere
            if not kept and old.stream in histories:
                histories[old.stream].release(name)
        self.table = table
        for name, entry in table.items():
            history = histories.get(entry.stream)
            if history is not None:
                history.lease(name, max(entry.asof, history.floor))

    def weigh(self, histories: Mapping[StreamId, History]) -> None:
        """Count the bytes of dead rows of a few leases in turn: each count looks at all dead rows."""
        names = sorted(self.table)
        for _ in range(min(WEIGHED, len(names))):
            self._weighed += 1
            name = names[self._weighed % len(names)]
            history = histories.get(self.table[name].stream)
            self.held[name] = 0 if history is None else history.held(self.table[name].asof)
        self.held = {name: self.held[name] for name in names if name in self.held}

    def states(self) -> list[LeaseState]:
        """The leases as a replica describes them."""
        return [
            LeaseState(name, e.stream, e.asof, e.ttl, e.bytes, self.held.get(name, 0)) for name, e in self.table.items()
        ]


class LeaseService(HeadService):
    """Answers `Lease` and `Release` for streams of this region: grants, renews, moves and ends leases."""

    handles: ClassVar[frozenset[type[Message]]] = frozenset({Lease, Release})

    def __init__(self, head: Head, table: StreamTable, settings: LeaseSettings) -> None:
        self.head = head
        self.table = table
        self.leases = Leases(settings)

    def load(self, now: Time, rows_of: RowsOf) -> None:
        self.leases.load(now, rows_of(LEASES))

    def check(self) -> None:
        self.leases.check()

    def receive(self, now: Time, src: NodeId, message: Message) -> Step:
        assert isinstance(message, Lease | Release)
        if self.head.busy:
            return Step(reports=["lease_busy"])  # asked again later
        stream = self.table.readable(message.stream)
        if stream is None or stream.region != self.table.region:
            if self.table.uncommitted(message.stream):
                return Step(reports=["lease_busy"])
            reason = f"region {self.table.region} has no such stream"
            return Step(answers=[(src, Unleased(message.name, message.stream, reason, gone=True), AS_HEAD)])
        log = self.table.log
        answer, changed, reports = self.leases.receive(now, message, log.ends[message.stream])
        names = [report.name for report in reports]
        if not changed:
            return Step(answers=[(src, answer, AS_HEAD)], reports=names)
        return Step([self._part(now)], [(src, answer, log.last + 1)], names)

    def tick(self, now: Time) -> Iterator[Step]:
        if self.leases.entries and not self.head.busy:
            ended = self.leases.expire(now, self.table.log.histories, self.table.leases.held)
            if ended:
                yield Step([self._part(now)], reports=[report.name for report in ended])

    def _part(self, now: Time) -> Span:
        lo = self.table.log.ends[LEASES]
        return Span.of(LEASES, lo, self.leases.rows(lo, now))


# --- the holder's end ---------------------------------------------------------------------------------------


class MoveLease(Command, frozen=True, gc=False):
    """The application needs nothing any more as of less than ``asof``."""

    name: str
    asof: int


class Granted(Value, frozen=True, gc=False):
    """Delivered to the application: the lease is committed, as of ``asof``."""

    name: str
    asof: int


class Dropped(Value, frozen=True, gc=False):
    """Delivered to the application: the lease is over, and why; ``room`` as in `Unleased`."""

    name: str
    reason: str
    room: float | None = None


class LeaseTick(Timer, frozen=True, gc=False):
    """Renew a lease in time, and ask again where there was no answer."""

    name: str


class Holder:
    """One lease, from the first request to the last; ``resume``: it was granted to an earlier holder."""

    def __init__(self, lease: Lease, membership: ChainConfig, settings: LeaseSettings, *, resume: bool = False) -> None:
        self.name = lease.name
        self.lease = lease
        self.head = HeadClient(membership)
        self.settings = settings
        self.resumes = resume
        self.asof = 0  # as of which it is held; 0: not yet
        self.wanted = lease.asof
        self.asked: Time | None = None  # when, while there is no answer
        self.renewed: Time = 0.0
        self.over = False

    @property
    def membership(self) -> ChainConfig:
        """The newest configuration of the region that this client knows."""
        return self.head.config

    def start(self, now: Time) -> Effects:
        return [*self._ask(now), self._tick()]

    def handle(self, now: Time, input: Input) -> Effects:
        if self.over:
            return NOTHING
        match input:
            case Received(_, Leased(name, _, asof)) if name == self.name:
                return self._leased(now, asof)
            case Received(_, Unleased(name, _, reason, room)) if name == self.name:
                self.over = True
                return [Deliver(Dropped(self.name, reason, room))]
            case Received(src, NotHead(membership)) if src == self.head.asked and src != membership.head:
                return self._ask(now) if self.head.learn(membership) else NOTHING
            case MoveLease(name, asof) if name == self.name and asof > self.wanted:
                self.wanted = asof
                return self._ask(now)
            case Expired(LeaseTick(name)) if name == self.name:
                return [*self._renew(now), self._tick()]
        return NOTHING

    def check(self) -> None:
        assert self.asof >= 0 and self.head.turn >= 0, "numbers ascend"

    def learn(self, now: Time, membership: ChainConfig) -> Effects:
        """Another configuration of the owner's chain."""
        if not self.head.is_newer(membership):
            return NOTHING
        self.head.learn(membership)
        return self._ask(now)

    def lost(self, now: Time, node: NodeId) -> Effects:
        """The connection to a replica is gone: no need to wait for its answer."""
        if self.over or self.asked is None or node != self.head.asked:
            return NOTHING
        self.head.rotate()
        return self._ask(now)

    def close(self) -> Effects:
        """The application has had enough; if this is lost, the lease expires."""
        self.over = True
        return [Send(self.head.asked, Release(self.name, self.lease.stream))]

    def _tick(self) -> SetTimer:
        return SetTimer(min(self.settings.again, self.lease.ttl / 3), LeaseTick(self.name))

    def _ask(self, now: Time) -> list[Effect]:
        self.asked = now
        grant = not self.asof and not self.resumes
        return [Send(self.head.asked, msgspec.structs.replace(self.lease, asof=self.wanted, grant=grant))]

    def _leased(self, now: Time, asof: int) -> list[Effect]:
        self.renewed = now
        self.asked = None if asof >= self.wanted else now
        if asof <= self.asof:
            return []
        self.asof = asof
        self.wanted = max(self.wanted, asof)
        return [Deliver(Granted(self.name, asof))]

    def _renew(self, now: Time) -> list[Effect]:
        if self.asked is not None and not 0 <= now - self.asked < self.settings.again:
            self.head.rotate()
            return self._ask(now)
        if self.asked is None and not 0 <= now - self.renewed < self.lease.ttl / 3:
            return self._ask(now)
        return []
