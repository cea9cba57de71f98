"""The streams that one replica knows: definitions, owners, collection policies, clocks, and what fits into them.

Definitions take effect when they are committed (`learn`), on every replica in the same order. A stream that is gone is
kept in ``gone`` until the replica node has told the other parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from tidings.core.errors import BadInput
from tidings.core.filters import ARROW, Filter, parse_attributes
from tidings.core.filters import parse as parse_filter
from tidings.core.gc import GcPolicy
from tidings.core.history import History
from tidings.core.hybrid_clock import HybridClock, Tick, tick_at
from tidings.core.ids import RegionId, StreamId, stream_name
from tidings.core.predicates import refuse_unsound
from tidings.core.rows import ROW_SCHEMA, WHERE, ArrowRows, CountedRows, Origin, Rows, before_rows
from tidings.core.small_rows import SmallRows
from tidings.core.span import MESSAGE_BYTES, Span
from tidings.protocols.kernel import Report, Time
from tidings.protocols.replication.log import Log
from tidings.protocols.services.catalog import PREFIX, Catalog, StreamDef, definitions_in, definitions_of
from tidings.protocols.services.leases import LEASES, CommittedLeases
from tidings.protocols.services.promises import merges_of, promises_in, ticks_of
from tidings.protocols.services.publishing import OWNER
from tidings.protocols.services.receipts import ReceiptSettings
from tidings.protocols.services.receipts import definition as receipts_definition


class StreamTable:
    """The streams of one replica. ``internal``: the policies of the internal streams that the services keep."""

    def __init__(
        self,
        region: RegionId,
        regions: Iterable[RegionId],
        streams: Sequence[StreamDef],
        internal: dict[StreamId, GcPolicy],
        receipts: ReceiptSettings,
        forget: Callable[[StreamId], None],
    ) -> None:
        self.region = region
        self.catalog = Catalog(region, regions, streams)
        self.streams = {stream.id: stream for stream in streams}  # that are there
        self.definitions = [definitions_of(name) for name in self.catalog.regions]
        self.receipts = receipts_definition(region, receipts)
        self.policies = dict(internal)
        self.policies |= {name: GcPolicy.parse("by-key") for name in self.definitions}
        self.policies[self.receipts.name] = GcPolicy.parse(receipts.gc)
        self.policies |= {stream.id: GcPolicy.parse(stream.gc) for stream in streams}
        self.clocks = {s.id: HybridClock(s.number) for s in streams if s.region == region}
        self._unobserved = False  # a clock does not know what was promised
        leaving = [definitions_of, ticks_of, merges_of]
        owners = {make(name): name for make in leaving for name in self.catalog.regions}
        self.owners = owners | {stream.id: stream.region for stream in streams}  # of streams that leave their region
        self.ticks = {ticks_of(name): StreamDef(ticks_of(name), name, "by-key") for name in self.catalog.regions}
        self.reports: list[Report] = []  # what committing has shown
        self.gone: list[tuple[StreamId, str]] = []  # streams that ended, and why
        self.leases = CommittedLeases()
        self.log = Log(self._make_history, self.policies, self._learn)
        self._forget = forget

    def observe_ticks(self, since: Time = 0.0) -> None:
        """A new head continues above every tick and every promise in the log, committed or not, and above a time."""
        self._unobserved = False
        for stream, clock in self.clocks.items():
            clock.observe(self.log.ticks[stream])
            clock.observe(tick_at(since))
        for rows in self.log.rows_of(ticks_of(self.region)):
            for stream, (tick, _) in promises_in(rows):
                if stream in self.clocks:
                    self.clocks[stream].observe(tick)

    def tick(self, stream: StreamId, now: Time) -> Tick:
        """The next tick of a stream of this region."""
        if self._unobserved:
            self.observe_ticks()
        return self.clocks[stream].next(now)

    def promise(self, stream: StreamId, now: Time) -> Tick:
        """A tick of a stream of this region: whatever gets its number later is above it."""
        if self._unobserved:
            self.observe_ticks()
        return self.clocks[stream].promise(now)

    # --- definitions take effect ------------------------------------------------------------------------

    def _make_history(self, stream: StreamId) -> History:
        counted = stream in self.streams and self.streams[stream].counted > 0
        return self._history(stream, self.policies[stream], counted)

    def _history(self, stream: StreamId, policy: GcPolicy, counted: bool) -> History:
        return History(stream, policy, counted=counted, leases=self.leases.of(stream))

    def _learn(self, part: Span) -> None:
        """A part has entered a history: definitions and leases take effect."""
        if part.stream == LEASES:
            self.leases.learn(part.rows, self.log.histories)
        if not part.stream.startswith(PREFIX):
            return
        owner = part.stream.removeprefix(PREFIX)
        for definition in definitions_in(part.rows):
            try:
                if definition is None:
                    self.reports.append(Report("bad_definition"))
                    continue
                before = self.catalog.names.get(definition.name)
                if self.catalog.learn(owner, definition):
                    self._enact(before, self.catalog.names[definition.name])
                if any([each.name == definition.name for each in self.catalog.conflicts]):
                    self.reports.append(Report("stream_conflict"))
            except BadInput:
                self.reports.append(Report("bad_definition"))

    def _enact(self, before: StreamDef | None, stream: StreamDef) -> None:
        """A name means ``stream`` from now on, which may be altered, deleted, or another one than ``before``."""
        if stream.deleted:
            self._end(before, "was deleted")
            return
        policy = GcPolicy.parse(stream.gc, bounded=False)
        history = self._history(stream.id, policy, stream.counted > 0)  # before anything changes
        if before is not None and before.id != stream.id:
            claim = f"is region {stream.region}'s, which has the older claim to the name: begin anew"
            self._end(before, "was deleted" if before.region == stream.region else claim)
        self.streams[stream.id] = stream
        self.policies[stream.id] = policy
        self.owners[stream.id] = stream.region
        self.log.define(stream.id, history)
        if stream.region == self.region and stream.id not in self.clocks:
            self.clocks[stream.id] = HybridClock(stream.number)
            self._unobserved = True  # the log of a new head may have rows and promises of it already

    def _end(self, stream: StreamDef | None, reason: str) -> None:
        """A stream is no more in this region: forget it."""
        if stream is None or stream.id not in self.streams:
            return
        self.log.drop(stream.id)
        for table in (self.streams, self.policies, self.owners, self.clocks):
            table.pop(stream.id, None)
        self._forget(stream.id)
        self.gone.append((stream.id, f"stream {stream.name!r} {reason}"))

    # --- definitions that are not committed yet -----------------------------------------------------------

    def pending(self, stream: StreamId) -> bool:
        """Whether an uncommitted record may delete a stream or give its name to another one.

        Until it is committed, no rows of the stream enter the log. So every acknowledged event was published.
        """
        owned = PREFIX + self.owners.get(stream, "")
        return any([each.deleted or each.id != stream or by != owned for by, each in self.uncommitted(stream)])

    def uncommitted(self, stream: StreamId) -> list[tuple[StreamId, StreamDef]]:
        """The definitions of a stream's name in records that are not committed, and the streams that carry them."""
        log, name = self.log, stream_name(stream)
        growing = [each for each in self.definitions if log.ends[each] > log.histories[each].horizon]
        if not growing:
            return []
        parts = [part for record in log.between(log.committed, log.last) for part in record.parts]
        found = [(part.stream, definitions_in(part.rows)) for part in parts if part.stream in growing]
        return [(by, each) for by, some in found for each in some if each is not None and each.name == name]

    # --- what fits ------------------------------------------------------------------------------------------

    def readable(self, stream: StreamId) -> StreamDef | None:
        """The definition of a stream that readers may have."""
        return self.receipts if stream == self.receipts.id else self.streams.get(stream)

    def followed(self, stream: StreamId) -> StreamDef | None:
        """The definition of a stream that may be followed."""
        return self.readable(stream) or self.ticks.get(stream)

    def own(self, stream: StreamId) -> StreamDef | None:
        """The definition of a stream of this region that exists."""
        found = self.streams.get(stream)
        return found if found is not None and found.region == self.region else None

    def filter_of(self, stream: StreamId, where: str) -> Filter:
        """The filter of a subscription."""
        definition = self.followed(stream)
        assert definition is not None
        if definition.counted:
            raise BadInput(f"stream {stream!r} only counts its events: there is nothing to filter by")
        return parse_filter(where, parse_attributes(definition.attrs))

    def misfit(self, id: StreamId, rows: Rows) -> str:
        """Why new rows cannot become part of their stream, or ""; what cannot must not reach the log."""
        stream = self.own(id)
        if stream is None:
            return "stream"
        if rows.nbytes > MESSAGE_BYTES:
            return "size"
        if isinstance(rows, CountedRows):
            fits = rows.size == stream.counted and rows.count > 0
        else:
            assert isinstance(rows, ArrowRows)
            fits = not stream.counted and rows.count > 0 and self._rows_fit(stream, rows)
        return "" if fits else "rows"

    def _rows_fit(self, stream: StreamDef, rows: ArrowRows) -> bool:
        """Whether the columns are those of every stream and some of its attributes, and what collects is sound."""
        if isinstance(rows, SmallRows):
            return True
        attributes = parse_attributes(stream.attrs)
        if not rows.plain:
            declared = {name: ARROW[kind] for name, kind in attributes.items()} | {WHERE: pa.string()}
            base, extra = list(rows.batch.schema)[: len(ROW_SCHEMA)], list(rows.batch.schema)[len(ROW_SCHEMA) :]
            if base != list(ROW_SCHEMA) or len({field.name for field in extra}) < len(extra):
                return False
            if any([declared.get(field.name) != field.type or not field.nullable for field in extra]):
                return False  # where a batch does not have the column it is null
        try:
            refuse_unsound(rows, attributes, self.policies[stream.id].by_key)
        except BadInput:
            return False
        return True

    def before(self, now: Time, stream: StreamId, before: int) -> Span:
        """The owner's own collecting event, as a policy demands (A1.43)."""
        lo = self.log.ends[stream]
        rows: Rows
        if stream in self.streams and self.streams[stream].counted:
            rows = CountedRows(lo, lo + 1, self.streams[stream].counted, ((lo, before),))
        else:
            tick = self.tick(stream, now) if stream in self.clocks else 0
            rows = before_rows(lo, [before], Origin(lo, lo + 1, OWNER, tick, lo, tick, now, self.region))
        return Span.of(stream, lo, rows)
