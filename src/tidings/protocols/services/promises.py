"""What a total order across streams needs of the regions: who merges which streams, and promises about their ticks.

A merger may release a row when it knows every other stream up to the row's tick. Rows tell that of busy streams; for
quiet ones their owner promises it. A promise is a row of `_ticks/<owner>` whose key is the stream: (tick, end),
"everything at or below the tick is below the number ``end``". Every ``period`` the owner's head writes one record with
a row per stream that is merged, but not before the last such record is committed. Promises are shown when they are
committed, like everything else. A new head observes those in its log, committed or not (`StreamTable.observe_ticks`),
so whatever it numbers is above them.

Regions promise only while somebody merges. A client repeats `Merge` at the head of its own region. The head notes it in
`_merges/<region>`, one row per stream and half ``ttl``. That stream goes to the other regions as all others do, round a
cut link, too. An owner counts ``ttl`` from when it heard of a row, so the clocks of regions need not agree.

Guarantee: if a committed promise says (tick, end), then every row of the stream with that tick or a smaller one has a
number below ``end``, and every row from ``end`` on a larger tick. A region in memory that has lost all its replicas
gives this for the promises that another region holds; for others as far as RecoverySettings.lead goes (recovery.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import msgspec

from tidings.core.hybrid_clock import MAX_STREAMS, Tick
from tidings.core.ids import MERGES, TICKS, NodeId, RegionId, StreamId
from tidings.core.rows import ArrowRows, Origin, Rows, before_rows
from tidings.core.small_rows import SmallRows
from tidings.core.span import Span
from tidings.protocols.kernel import Effect, Message, SetTimer, Time, Timer, Value
from tidings.protocols.services.head import Head, HeadService, RowsOf, Step

if TYPE_CHECKING:
    from tidings.protocols.services.streams import StreamTable

Promise: TypeAlias = tuple[Tick, int]
"""(tick, end): everything at or below the tick is below ``end``, all else above it."""


class Merge(Message, frozen=True, gc=False):
    """To the region's head: a client merges these streams, and says so again. Answered with `MergeHeard`."""

    from_clients: ClassVar[bool] = True

    id: int
    streams: tuple[StreamId, ...]

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 32 + 16 * len(self.streams)


class MergeHeard(Message, frozen=True, gc=False):
    """The owners of the streams will promise for a while."""

    id: int


class PromiseTick(Timer, frozen=True, gc=False):
    """Time to promise."""


class PromiseSettings(Value, frozen=True, gc=False):
    """Ours, because Gryphon's pubends turn silence into knowledge at a rate that the paper does not tell."""

    period: float = 0.02  # seconds between promises: they delay a total order by half of it on average
    ttl: float = 10.0  # seconds for which an owner promises after it has heard that somebody merges
    swept: int = 64  # promises for streams that are gone before they are worth a record


def ticks_of(region: RegionId) -> StreamId:
    """The stream in which a region promises."""
    return TICKS + region


def merges_of(region: RegionId) -> StreamId:
    """The stream that tells what a region's clients merge."""
    return MERGES + region


def promises_in(rows: Rows) -> Iterator[tuple[StreamId, Promise]]:
    """The promises in rows of a `_ticks` stream, oldest first. What is none is passed over."""
    for key, payload in _pairs(rows):
        try:
            yield key.decode(), msgspec.msgpack.decode(payload, type=tuple[int, int])
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # of a region that runs other code


def merged_in(rows: Rows) -> list[StreamId]:
    """The streams that rows of a `_merges` stream name."""
    return [key.decode(errors="replace") for key, _ in _pairs(rows)]


def _pairs(rows: Rows) -> Iterator[tuple[bytes, bytes]]:
    if not isinstance(rows, ArrowRows):
        return  # all of them collected or lost
    keys, payloads = rows.batch.column("key").to_pylist(), rows.batch.column("payload").to_pylist()
    for key, payload in zip(keys, payloads, strict=True):
        if key is not None:
            yield key, payload


class Promises(HeadService):
    """Answers `Merge`, and promises. ``merges``: the streams that tell of whom to promise for."""

    handles: ClassVar[frozenset[type[Message]]] = frozenset({Merge})

    def __init__(self, head: Head, table: StreamTable, settings: PromiseSettings) -> None:
        self.head = head
        self.table = table
        self.settings = settings
        self.merges = frozenset([merges_of(region) for region in table.catalog.regions])
        self.noted: dict[StreamId, Time] = {}  # when this head wrote that a stream is merged here, if not long ago
        self.heard: dict[StreamId, Time] = {}  # of own streams: when it was last heard that somebody merges them
        self.written = 0  # the record of the last promises
        self.ticking = False  # a PromiseTick will come

    def load(self, now: Time, rows_of: RowsOf) -> None:
        self.noted.clear()
        self.written = 0
        told = [stream for source in sorted(self.merges) for rows in rows_of(source) for stream in merged_in(rows)]
        self.heard = dict.fromkeys([stream for stream in told if stream in self.table.clocks], now)

    def check(self) -> None:
        assert len(self.noted) <= MAX_STREAMS and len(self.heard) <= MAX_STREAMS, "who merges what is bounded"

    # --- what is merged ---------------------------------------------------------------------------------

    def receive(self, now: Time, src: NodeId, message: Message) -> Step:
        assert isinstance(message, Merge)
        if len(message.streams) > MAX_STREAMS:
            return Step(reports=["bad_message"])
        if self.head.busy:
            return Step(reports=["merge_busy"])  # asked again later
        log, region = self.table.log, self.table.region
        self.noted = {each: at for each, at in self.noted.items() if 0 <= now - at < self.settings.ttl / 2}
        there = [each for each in dict.fromkeys(message.streams) if each in self.table.streams]
        due = [each for each in there if each not in self.noted]
        answer = MergeHeard(message.id)
        if not due:
            return Step(answers=[(src, answer, log.committed)])
        self.noted |= dict.fromkeys(due, now)
        lo = log.ends[merges_of(region)]
        rows = _rows(lo, [(each, b"") for each in due], now, region)
        return Step([Span.of(merges_of(region), lo, rows)], [(src, answer, log.last + 1)])

    def learn(self, now: Time, parts: Iterable[Span]) -> list[Effect]:
        """Rows of a `_merges` stream are committed."""
        told = [stream for part in parts for stream in merged_in(part.rows)]
        self.heard |= dict.fromkeys([stream for stream in told if stream in self.table.clocks], now)
        return self.begin()

    # --- promises ---------------------------------------------------------------------------------------

    def begin(self) -> list[Effect]:
        """Promise from now on, if somebody merges what this region owns."""
        if self.ticking or not self.heard:
            return []
        self.ticking = True
        return [SetTimer(self.settings.period, PromiseTick())]

    def promise(self, now: Time) -> Step | None:
        """The next promises; None while nobody wants any, or the last ones are not committed."""
        table, log = self.table, self.table.log
        self._forget(now)
        if not self.heard or self.head.busy or self.head.recovering() or self.written > log.committed:
            return None
        region, stream = table.region, ticks_of(table.region)
        told = {each: (table.promise(each, now), log.ends[each]) for each in self.heard}
        self.written = log.last + 1
        lo = log.ends[stream]
        parts: list[Span] = []
        if log.histories[stream].live > len(table.clocks) + self.settings.swept:
            # a promise holds as long as its stream: those of all streams are written again, and the old rows collected
            known = dict([each for rows in log.rows_of(stream) for each in promises_in(rows)])
            told = {each: promise for each, promise in (known | told).items() if each in table.clocks}
            origin = Origin(lo, lo + 1, region, 0, lo, 0, now, region)
            parts.append(Span.of(stream, lo, before_rows(lo, [lo], origin)))
            lo += 1
        return Step([*parts, Span.of(stream, lo, _promise_rows(lo, told, now, region))])

    def after_loss(self, now: Time, losses: Iterable[Span]) -> list[Span]:
        """Promises for all streams, to be written with what is declared lost: they bind later heads to these ticks."""
        table, stream = self.table, ticks_of(self.table.region)
        ends = table.log.ends | {loss.stream: loss.hi for loss in losses}
        told = {each: (table.promise(each, now), ends[each]) for each in table.clocks}
        lo = ends[stream]
        return [Span.of(stream, lo, _promise_rows(lo, told, now, table.region))] if told else []

    def _forget(self, now: Time) -> None:
        """Forget streams that nobody merges any more, and those that are gone."""
        heard = {each: min(at, now) for each, at in self.heard.items() if each in self.table.clocks}
        self.heard = {each: at for each, at in heard.items() if now - at <= self.settings.ttl}


def _promise_rows(lo: int, told: Mapping[StreamId, Promise], now: Time, region: RegionId) -> Rows:
    return _rows(lo, [(each, msgspec.msgpack.encode(promise)) for each, promise in told.items()], now, region)


def _rows(lo: int, pairs: list[tuple[StreamId, bytes]], now: Time, region: RegionId) -> Rows:
    origin = Origin(lo, lo + len(pairs), region, 0, lo, 0, now, region)
    keys: list[bytes | None] = [stream.encode() for stream, _ in pairs]
    payloads: list[bytes | None] = [payload for _, payload in pairs]
    return SmallRows(keys, payloads, lo, (origin,))
