"""What the clients of a real cluster remember, and how it becomes the trace tables that check/ judges.

There are two independent accounts, as in a simulated run: *sent*, what each publisher published and was answered;
*seen*, the rows that witnesses (subscribers that keep every row) found in the streams. `trace` joins them. The payload
of an event names its publisher and the publisher's number for it, so a witness can tell where a row came from.

An event that no witness saw was collected before a witness could read it. It counts as committed under the number
acknowledged, unless a witness saw another event under that number. All receipts are judged against the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from tidings.check import ALIVE, Trace, table
from tidings.check.survivors import Survivors
from tidings.check.tables import DELIVERED, GAUGE, LOST, PUBLISHED
from tidings.core.ids import FIRST, StreamId, stream_name
from tidings.core.rows import DATA, WHERE, ArrowRows
from tidings.core.span import Span

SESSION = 1  # publishers of a campaign live as long as it does, and number their events themselves
LAG = "late"  # the gauge by which a process of clients says how long it was kept waiting, by itself or the machine
_SEPARATOR = b"/"

Identity = tuple[StreamId, str, int]  # stream, publisher, number
LostRange = tuple[StreamId, int, int]  # stream, lo, hi


class Sent(msgspec.Struct):
    """A batch as its publisher remembers it; ``parts`` are the numbers acknowledged, none while there is no answer."""

    stream: StreamId
    publisher: str
    first: int
    hashes: list[int]
    keys: list[bytes | None]
    kind: int = DATA
    before: int | None = None
    where: str | None = None
    parts: list[tuple[int, int]] = []
    acked_at: float | None = None
    sent_at: float | None = None
    forgotten: bool = False  # the region forgot the session: whether the batch was published is not known

    def numbers(self) -> list[int | None]:
        """The number that each event was acknowledged under."""
        told: list[int | None] = [number for lo, hi in self.parts for number in range(lo, hi)]
        return told if len(told) == len(self.hashes) else [*told, *[None] * (len(self.hashes) - len(told))]


class Seen(msgspec.Struct):
    """Rows of a stream as a witness was given them."""

    stream: StreamId
    seqs: list[int]
    hashes: list[int]
    kinds: list[int]
    keys: list[bytes | None]
    payloads: list[bytes | None]
    befores: list[int | None]
    wheres: list[str | None]
    by: str = ""  # the witness


class ClientReceipt(msgspec.Struct, array_like=True, gc=False):
    """One span that a subscriber was given."""

    subscriber: str
    incarnation: int
    n: int
    stream: StreamId
    lo: int
    hi: int
    asof: int
    lens: str
    rows: int
    hash_sum: int
    time: float


class Gauge(msgspec.Struct, array_like=True, gc=False):
    """A measured value, with its bound if it has one."""

    node: str
    name: str
    value: float
    bound: float | None
    time: float


class Evidence(msgspec.Struct):
    """All that some clients remember. Streams go by their names: in a run each name is given out once."""

    sent: list[Sent] = []
    seen: list[Seen] = []
    receipts: list[ClientReceipt] = []
    gauges: list[Gauge] = []
    lost: list[LostRange] = []  # ranges that subscribers were told are lost

    def receive(self, subscriber: str, incarnation: int, span: Span, time: float) -> None:
        """Write a receipt."""
        name = stream_name(span.stream)
        self.lost += [(name, lo, hi) for lo, hi in span.lost]
        self.receipts.append(
            ClientReceipt(
                subscriber,
                incarnation,
                len(self.receipts),
                name,
                span.lo,
                span.hi,
                span.asof,
                span.lens.text,
                span.rows.count,
                span.rows.hash_sum,
                time,
            )
        )

    def witness(self, span: Span, by: str = "") -> None:
        """Keep the rows."""
        rows = span.rows
        if isinstance(rows, ArrowRows) and rows.count:
            batch = rows.batch
            kinds, keys, payloads, befores = [batch.column(name).to_pylist() for name in batch.schema.names[:4]]
            wheres = batch.column(WHERE).to_pylist() if WHERE in batch.schema.names else [None] * rows.count
            hashes = rows.content.tolist()
            numbers = rows.numbers.tolist()
            self.seen.append(
                Seen(stream_name(span.stream), numbers, hashes, kinds, keys, payloads, befores, wheres, by)
            )

    def gauge(self, node: str, name: str, value: float, time: float, bound: float | None = None) -> None:
        """Note a measured value."""
        self.gauges.append(Gauge(node, name, float(value), bound, time))

    def alive(self, node: str, horizons: Mapping[StreamId, int], time: float) -> None:
        """Note how far a subscriber got that lived to the end."""
        for stream, horizon in horizons.items():
            self.gauge(node, f"{ALIVE}{stream}", horizon, time)

    def began(self, node: str, firsts: Mapping[StreamId, int], time: float) -> None:
        """Note with which number a subscriber began that was there from the start: it must be the first."""
        for stream, first in firsts.items():
            self.gauge(node, f"began:{stream}", first, time, FIRST)

    def add(self, other: Evidence) -> None:
        """Take what others remember, too."""
        self.sent += other.sent
        self.seen += other.seen
        self.receipts += other.receipts
        self.gauges += other.gauges
        self.lost += other.lost

    @property
    def published(self) -> int:
        """Events that were acknowledged."""
        return sum(hi - lo for batch in self.sent for lo, hi in batch.parts)

    @property
    def delivered(self) -> int:
        """Rows that subscribers were given."""
        return sum(receipt.rows for receipt in self.receipts)

    def ends(self) -> dict[StreamId, int]:
        """Where each stream ends, as far as publishers were told."""
        found: dict[StreamId, int] = defaultdict(lambda: FIRST)
        for batch in self.sent:
            found[batch.stream] = max(found[batch.stream], *[hi for _, hi in batch.parts], FIRST)
        return dict(found)

    def trace(self, policies: Mapping[StreamId, str], lost: Iterable[LostRange] = ()) -> Trace:
        """The tables; `policies` says what collects in which stream.

        Of the numbers in ``lost``, which their owner has rightly declared lost, no event and no acknowledgement counts.
        """
        receipts = {name: [getattr(each, name) for each in self.receipts] for name in DELIVERED.names}
        gauges = {name: [getattr(each, name) for each in self.gauges] for name in GAUGE.names}
        published = _Published(self.sent, self.seen, lost).columns()
        return Trace(
            table(PUBLISHED, published),
            table(DELIVERED, receipts),
            gauge=table(GAUGE, gauges),
            policies=dict(policies),
        )


def payload_of(publisher: str, number: int) -> bytes:
    """What an event says of itself."""
    return b"%b%b%d" % (publisher.encode(), _SEPARATOR, number)


def collected(trace: Trace) -> int:
    """How many of the events are collected by now, as the judges work it out from what was published."""
    total = 0
    for stream, policy in trace.policies.items():
        events = trace.published.filter(_equals(trace, stream))
        survivors = Survivors(events, policy)
        one = np.array([FIRST]), np.array([survivors.end]), np.array([survivors.end])
        total += survivors.end - FIRST - int(survivors.expect(*one).rows[0])
    return total


def _equals(trace: Trace, stream: StreamId) -> Any:
    import pyarrow.compute as pc

    return pc.equal(trace.published["stream"], stream)


class _Event(msgspec.Struct, gc=False):
    """An event as it was sent."""

    kind: int
    key: bytes | None
    before: int | None
    where: str | None
    hash: int
    acked: int | None
    acked_at: float | None


class _Published:
    """The join of the two accounts."""

    def __init__(self, sent: Iterable[Sent], seen: Iterable[Seen], lost: Iterable[LostRange]) -> None:
        self.lost = _merged(lost)
        self.sent: dict[Identity, _Event] = {}
        self.told: dict[
            tuple[StreamId, int], Identity
        ] = {}  # the event acknowledged under a number, the last one if several
        self.untold: dict[tuple[StreamId, int], Identity] = {}  # by content: what a forgotten session has sent
        for batch in sent:
            self._remember(batch)
        self.found: dict[tuple[StreamId, int], dict[int, tuple[Any, ...]]] = defaultdict(dict)
        for rows in seen:
            self._look_at(rows)

    def _remember(self, batch: Sent) -> None:
        rows = zip(batch.hashes, batch.keys, batch.numbers(), strict=True)
        for at, (content, key, told) in enumerate(rows):
            event = (batch.stream, batch.publisher, batch.first + at)
            acked = None if told is None or self._is_lost(batch.stream, told) else told
            self.sent[event] = _Event(
                batch.kind, key, batch.before, batch.where, content, acked, None if acked is None else batch.acked_at
            )
            if acked is not None:
                self.told[batch.stream, acked] = event
            elif batch.forgotten:
                self.untold[batch.stream, content] = event

    def _look_at(self, rows: Seen) -> None:
        columns = (rows.seqs, rows.hashes, rows.kinds, rows.keys, rows.payloads, rows.befores, rows.wheres)
        for seq, content, *what in zip(*columns, strict=True):
            if not self._is_lost(rows.stream, seq):
                self.found[rows.stream, seq].setdefault(content, tuple(what))

    def _is_lost(self, stream: StreamId, seq: int) -> bool:
        return any([lo <= seq < hi for name, lo, hi in self.lost if name == stream])

    def columns(self) -> dict[str, list[Any]]:
        """One row per event and number under which it is committed."""
        out: list[tuple[Any, ...]] = []
        committed: dict[Identity, set[int]] = defaultdict(set)
        for (stream, seq), contents in self.found.items():
            for content, (kind, key, payload, before, where) in contents.items():
                event = self._whose(stream, seq, content, kind, payload)
                if event is not None:
                    committed[event].add(seq)
                out.append(self._row(stream, seq, event, (kind, key, before, where), content))
        for event, it in self.sent.items():
            known: set[int] = committed.get(event, set())
            if it.acked in known or (known and it.acked is None):
                continue
            taken = it.acked is None or (event[0], it.acked) in self.found
            if not (taken and known):
                at = None if taken else it.acked
                out.append(self._row(event[0], at, event, (it.kind, it.key, it.before, it.where), None))
        out += [(stream, lo, hi - lo, *[None] * 3, LOST, *[None] * 7) for stream, lo, hi in self.lost]
        names = (
            *("stream", "seq", "count", "publisher", "session", "number", "kind", "key", "before", "where"),
            *("hash", "committed_hash", "acked_seq", "acked_at"),
        )
        return {name: [row[place] for row in out] for place, name in enumerate(names)}

    def _whose(self, stream: StreamId, seq: int, content: int, kind: int, payload: bytes | None) -> Identity | None:
        """The event that was seen; a collector is the one acknowledged under this number, with the same content."""
        if kind == DATA:
            publisher, _, number = (payload or b"").rpartition(_SEPARATOR)
            event = (stream, publisher.decode(errors="replace"), int(number) if number.isdigit() else 0)
            return event if event in self.sent else None
        told = self.told.get((stream, seq)) or self.untold.get((stream, content))
        return told if told is not None and self.sent[told].hash == content else None

    def _row(
        self, stream: StreamId, seq: int | None, event: Identity | None, what: tuple[Any, ...], content: int | None
    ) -> tuple[Any, ...]:
        if event is None:
            return (stream, seq, 1, None, None, None, *what, None, content, None, None)
        it = self.sent[event]
        return (stream, seq, 1, event[1], SESSION, event[2], *what, it.hash, content, it.acked, it.acked_at)


def _merged(ranges: Iterable[LostRange]) -> list[LostRange]:
    """The same numbers, each once."""
    found: list[LostRange] = []
    for stream, lo, hi in sorted(ranges):
        if found and found[-1][0] == stream and lo <= found[-1][2]:
            found[-1] = (stream, found[-1][1], max(hi, found[-1][2]))
        else:
            found.append((stream, lo, hi))
    return found
