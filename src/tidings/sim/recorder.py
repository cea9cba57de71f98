"""Records a simulated run as the trace tables that check/ judges.

The recorder listens to the world and keeps two independent accounts: what publishers sent and were told, and what
chains committed. `trace` joins them by (publisher, session, number). Receipts are what clients delivered. The log is
what reached the replicas' disks and what they committed. Nothing here influences the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tidings.check.tables import ALIVE, DELIVERED, GAUGE, LOG, LOST, PUBLISHED, LogEvent, Trace, table
from tidings.core.ids import NodeId, RegionId, StreamId, StreamName, stream_name
from tidings.core.rows import ArrowRows, CountedRows, Origin, Rows
from tidings.core.span import Span
from tidings.protocols.brokers.subscriber import Fed
from tidings.protocols.kernel import Effects, Persist, Send
from tidings.protocols.nodes.client import ReadDone
from tidings.protocols.replication.chain import Committed
from tidings.protocols.replication.log import CutBack, Installed, Logged, Record
from tidings.protocols.services.catalog import StreamDef
from tidings.protocols.services.publishing import OWNER, PUBLISHERS, Acked, Publish
from tidings.protocols.services.sink_client import SinkAnswered
from tidings.protocols.services.sinks import BatchCommitted, CommitBatch, StageRows
from tidings.sim.world import Started

EventId = tuple[StreamId, str, int, int]  # stream, publisher, session, number


class TableBuilder:
    """A table while it grows."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.rows: list[tuple[Any, ...]] = []

    def dict(self) -> dict[str, list[Any]]:
        """By column, as `check.tables.table` takes it."""
        columns = zip(*self.rows, strict=True) if self.rows else ([] for _ in self.names)
        return {name: list(values) for name, values in zip(self.names, columns, strict=True)}


class Recorder:
    """Observes one run."""

    def __init__(self, streams: Sequence[StreamDef], region_of: Mapping[NodeId, RegionId]) -> None:
        self.streams = {stream.id: stream for stream in streams}
        self.expected: dict[StreamName, StreamDef] = {}  # that somebody will create
        self.region_of = region_of
        self.sent: dict[EventId, tuple[int, Any]] = {}  # count, content hash (None: counted)
        self.acked: dict[EventId, tuple[int, float]] = {}
        self.committed: dict[tuple[StreamId, int], tuple[Any, ...]] = {}
        self.arrived: dict[tuple[StreamId, int], float] = {}  # when a batch's first number was given, at its head
        self.delivered = TableBuilder(
            *("subscriber", "incarnation", "n", "stream", "lo", "hi", "asof", "lens", "rows", "hash_sum", "time")
        )
        self.log = TableBuilder("region", "replica", "epoch", "lsn", "hash", "event", "time")
        self.gauges = TableBuilder("node", "name", "value", "bound", "time")
        self.unrecorded: set[StreamName] = set()  # names that are several streams', or none's
        self.lives: Counter[RegionId] = Counter()  # how often a region has begun anew, with nothing
        self.reads = 0
        self.staged: dict[tuple[int, int], Rows] = {}  # by attempt and index of the chunk
        self._digests: dict[int, tuple[Record, int]] = {}  # by identity: replicas share what they were sent

    # --- what the world tells ---------------------------------------------------------------------------

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Publishers' batches as they leave, owners' own events as they are written, replicas that come back."""
        if not effects:
            return
        if type(input) is Started and input.records:
            self._logged(time, node, 0, 0, None, LogEvent.RESTARTED)
        for effect in effects:
            if type(effect) is Send:
                if type(effect.message) is Publish:
                    self._sent(effect.message)
                elif type(effect.message) is StageRows:
                    self.staged[effect.message.attempt, effect.message.index] = effect.message.rows
                elif type(effect.message) is CommitBatch:
                    self._sunk(effect.message)
            elif type(effect) is Persist and type(effect.record) is Logged:
                self._written(time, node, effect.record.record)

    def on_deliver(self, time: float, node: NodeId, incarnation: int, item: Any) -> None:
        """Receipts, acknowledgements, commits."""
        if isinstance(item, Span):
            self._receipt(time, node, incarnation, item)
        elif isinstance(item, Fed):
            self._receipt(time, f"{node}#{item.id}", incarnation, item.span)
        elif isinstance(item, Committed):
            self._commit(time, node, item)
        elif isinstance(item, Acked) and stream_name(item.stream) not in self.unrecorded:
            event = (item.stream, item.publisher, item.session, item.first)
            for at in range(1 if self._counted(item.stream) else item.hi - item.lo):
                self.acked.setdefault((*event[:3], item.first + at), (item.lo + at, time))
        elif isinstance(item, SinkAnswered) and isinstance(item.answer, BatchCommitted):
            of, lo = item.request.of, item.answer.lo
            for at in range(item.answer.hi - lo):
                self.acked.setdefault((of.stream, of.publisher, of.batch + 1, 1 + at), (lo + at, time))
        elif isinstance(item, ReadDone) and item.spans is not None:
            self.reads += 1
            for span in item.spans:  # the answer must fit the question, whatever it says of itself
                asof = max(item.read.asof, span.lo)
                answer = Span(item.read.stream, span.lo, span.hi, asof, span.rows, lost=span.lost)
                self._receipt(time, f"{node}#read{self.reads}", 1, answer)

    def on_durable(self, time: float, node: NodeId, records: Sequence[Any]) -> None:
        """What a replica's disk now holds."""
        for entry in records:
            if isinstance(entry, Logged):
                record = entry.record
                self._logged(time, node, record.epoch, record.lsn, self._hash(record), LogEvent.PERSISTED)
            elif isinstance(entry, CutBack):
                self._logged(time, node, 0, entry.lsn + 1, None, LogEvent.CUT)
            elif isinstance(entry, Installed) and entry.last:
                self._logged(time, node, 0, entry.lsn, None, LogEvent.WIPED)

    def put_back(self, time: float, node: NodeId, entries: Sequence[Any]) -> None:
        """A replica that is down has an older disk now: what it had written since is gone, committed or not.

        What it had voided since is there again. So all that the disk holds is told anew.
        """
        self._logged(time, node, 0, 0, None, LogEvent.WIPED)
        self.on_durable(time, node, entries)

    def forgotten(self, region: RegionId) -> None:
        """All replicas of a region begin anew with nothing: its log is another one from now on.

        What its streams had committed counts until the region declares it lost.
        """
        self.lives[region] += 1

    def gauge(self, time: float, node: NodeId, name: str, value: float, bound: float | None = None) -> None:
        """Note a measured value, with its bound if it has one."""
        self.gauges.rows.append((node, name, float(value), bound, time))

    def alive(self, time: float, node: NodeId, horizons: Mapping[StreamId, int]) -> None:
        """Note how far a node got that lived to the end."""
        for stream in self.streams:
            self.gauge(time, node, f"{ALIVE}{stream}", horizons.get(stream, 1))

    # --- the tables -------------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """Everything so far."""
        return Trace(
            table(PUBLISHED, self._published()),
            table(DELIVERED, self.delivered.dict()),
            table(LOG, self.log.dict()),
            table(GAUGE, self.gauges.dict()),
            {id: stream.gc for id, stream in self.streams.items()},
        )

    def _published(self) -> dict[str, list[Any]]:
        out = TableBuilder(
            *("stream", "seq", "count", "kind", "publisher", "session", "number", "key", "before", "tick"),
            *("hash", "committed_hash", "acked_seq", "acked_at"),
        )
        seen: set[EventId] = set()
        for (stream, seq), (count, kind, origin, key, before, tick, content) in self.committed.items():
            event = (stream, *origin)
            known = self.sent.get(event)
            seen.add(event)
            who: tuple[Any, ...] = origin if known else (None, None, None)
            row = (stream, seq, count, kind, *who, key, before, tick, known[1] if known else None, content)
            out.rows.append((*row, *self.acked.get(event, (None, None))))
        for event, (count, content) in self.sent.items():
            if event not in seen:
                row = (event[0], None, count, 0, *event[1:], None, None, None, content, None)
                out.rows.append((*row, *self.acked.get(event, (None, None))))
        return out.dict()

    # --- parts ------------------------------------------------------------------------------------------

    def _definition(self, stream: StreamId) -> StreamDef | None:
        """A stream that is recorded, one that was created at run time from its first event on."""
        if stream not in self.streams and stream_name(stream) in self.expected:
            self.streams[stream] = self.expected[stream_name(stream)]
        return self.streams.get(stream)

    def _counted(self, stream: StreamId) -> bool:
        known = self._definition(stream)
        return known is not None and known.counted > 0

    def _sent(self, batch: Publish) -> None:
        if stream_name(batch.stream) in self.unrecorded:
            return
        event = (batch.stream, batch.publisher, batch.session)
        if isinstance(batch.rows, ArrowRows):
            for at, content in enumerate(batch.rows.content.tolist()):
                self.sent.setdefault((*event, batch.first + at), (1, content))
        else:
            self.sent.setdefault((*event, batch.first), (batch.rows.count, None))

    def _sunk(self, commit: CommitBatch) -> None:
        """A driver asks for a batch: what its chosen tasks have staged, in this order, is what it sends."""
        of, number = commit.of, 0
        for each in commit.attempts:
            for index in range(each.chunks):
                for content in self.staged[each.attempt, index].content.tolist():
                    number += 1
                    self.sent.setdefault((of.stream, of.publisher, of.batch + 1, number), (1, content))

    def _written(self, time: float, node: NodeId, record: Record) -> None:
        for part in record.parts:
            stream = self._definition(part.stream)
            if stream is not None and stream.region == self.region_of[node]:
                self.arrived.setdefault((part.stream, part.lo), time)
                if part.lost:
                    continue
                for event, content in _owners(part.stream, part.rows, record):
                    if (part.stream, event[3]) not in self.committed:
                        self.sent[event] = (1, content)

    def _commit(self, time: float, node: NodeId, item: Committed) -> None:
        record = item.record
        self._logged(time, node, record.epoch, record.lsn, self._hash(record), LogEvent.COMMITTED)
        for part in record.parts:
            stream = self._definition(part.stream)
            if stream is None or stream.region != self.region_of[node]:
                continue
            if part.lost and self.lives[stream.region]:
                self._give_up(part)
            if (part.stream, part.lo) in self.committed:
                continue
            if part.lost:  # a declaration is a part of its own
                nobody = (OWNER, 0, part.lo)
                self.committed[part.stream, part.lo] = (part.hi - part.lo, LOST, nobody, None, None, None, None)
            elif isinstance(part.rows, CountedRows):
                self._commit_run(part.stream, part.rows, record)
            else:
                self._commit_rows(part.stream, part.rows, record)

    def _give_up(self, part: Span) -> None:
        """What a region that has forgotten declares lost was committed once, perhaps, and acknowledged."""
        for seq in range(part.lo, part.hi):
            known = self.committed.get((part.stream, seq))
            if known is not None and known[1] != LOST:
                del self.committed[part.stream, seq]
                self.acked.pop((part.stream, *known[2]), None)

    def _commit_rows(self, stream: StreamId, rows: Rows, record: Record) -> None:
        assert isinstance(rows, ArrowRows)
        columns = [rows.batch.column(name).to_pylist() for name in ("kind", "key", "before")]
        origin = rows.origins[0] if rows.origins else Origin(rows.first, rows.first)
        for seq, content, kind, key, before in zip(rows.numbers.tolist(), rows.content.tolist(), *columns, strict=True):
            number = origin.first + seq - origin.lo
            source = (origin.publisher, record.epoch if origin.publisher == OWNER else origin.session, number)
            self.committed[stream, seq] = (1, kind, source, key, before, origin.tick, content)

    def _commit_run(self, stream: StreamId, rows: CountedRows, record: Record) -> None:
        source = _source(rows, record)
        kind, before = (1, rows.collectors[0][1]) if rows.collectors else (0, None)
        self.committed[stream, rows.first] = (rows.count, kind, source, None, before, None, None)

    def _receipt(self, time: float, node: NodeId, incarnation: int, span: Span) -> None:
        if stream_name(span.stream) in self.unrecorded:
            return
        counted = isinstance(span.rows, CountedRows)
        self.delivered.rows.append(
            (
                *(node, incarnation, len(self.delivered.rows), span.stream, span.lo, span.hi, span.asof),
                *(span.lens.text, span.rows.count, None if counted else span.rows.hash_sum, time),
            )
        )

    def _hash(self, record: Record) -> int:
        known = self._digests.get(id(record))
        if known is None:
            known = self._digests[id(record)] = (record, int.from_bytes(record.digest[:8], "little"))
        return known[1]

    def _logged(self, time: float, node: NodeId, epoch: int, lsn: int, digest: int | None, event: LogEvent) -> None:
        region = self.region_of[node] + "'" * self.lives[self.region_of[node]]
        self.log.rows.append((region, node, epoch, lsn, digest, event.value, time))


def _source(rows: CountedRows, record: Record) -> tuple[str, int, int]:
    """Whose counted rows these are: the publisher's entry in the same record tells, else the owner's own."""
    for part in record.parts:
        if part.stream == PUBLISHERS and isinstance(part.rows, ArrowRows):
            origin = part.rows.origins[0]
            return origin.publisher, origin.session, origin.first - rows.count
    return OWNER, 0, rows.first


def _owners(stream: StreamId, rows: Rows, record: Record) -> list[tuple[EventId, Any]]:
    """Events that the owner itself publishes: until they are committed, their last writing is their sending.

    The epoch stands for a session: an old head and a new one may write theirs at the same time under the same number.
    A head that crashes before its disk has an event, and comes back in the same epoch, writes another one.
    """
    if isinstance(rows, CountedRows):
        source = _source(rows, record)
        return [((stream, *source), None)] if source[0] == OWNER else []
    assert isinstance(rows, ArrowRows)
    if not rows.origins or rows.origins[0].publisher != OWNER:
        return []
    return [
        ((stream, OWNER, record.epoch, seq), content)
        for seq, content in zip(rows.numbers.tolist(), rows.content.tolist(), strict=True)
    ]
