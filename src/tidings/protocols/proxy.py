"""A replica of a region's proxy: chain + inter-region + fabric, wired here and nowhere else.

    publishers --Publish--> [head] --Append--> [middle] --Append--> [tail] --Offer/Know--> clients of the region
    other regions' tails --Know--> [head]                           [tail] --Know--> heads of other regions

Who does what follows from the place in the chain: the head numbers events (addLocalEvent) and takes what other
regions send (addRemoteEvent); the tail advertises, serves the other regions and takes part in the region's
gossip; every replica serves readers what is committed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from tidings.core.errors import AsofGone, BadInput, NotYet
from tidings.core.filters import ARROW, parse_attributes
from tidings.core.filters import parse as parse_filter
from tidings.core.gc import GcPolicy, due_before
from tidings.core.history import History
from tidings.core.ids import FIRST, NodeId, RegionId, StreamId, is_hidden
from tidings.core.listed import ListedRows
from tidings.core.predicates import refuse_unsound
from tidings.core.rows import ROW_SCHEMA, WHERE, ArrowRows, CountedRows, Origin, Rows, before_rows
from tidings.core.span import MESSAGE_BYTES, Span
from tidings.core.ticks import HybridClock
from tidings.protocols.catalog import (
    PREFIX,
    Because,
    Catalog,
    DeclareLost,
    Define,
    Defined,
    Describe,
    Description,
    NotDefined,
    StreamDef,
    StreamState,
    Why,
    definition_rows,
    definitions_in,
    definitions_of,
    refused_loss,
)
from tidings.protocols.chain import (
    Ack,
    Append,
    BeatTick,
    Chain,
    ChainSettings,
    Committed,
    Compare,
    Compared,
    Fetch,
    Install,
    NextPiece,
    Reconfigured,
    Refuse,
    RetryTick,
)
from tidings.protocols.configuration import Current
from tidings.protocols.interregion import (
    Advertise,
    AdvertiseTick,
    Arrived,
    InterRegion,
    InterRegionSettings,
    PumpTick,
    Solicit,
    Subscribe,
    Unsubscribe,
)
from tidings.protocols.kernel import (
    NOTHING,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Message,
    Persisted,
    Received,
    Report,
    Send,
    SetTimer,
    Time,
    Timer,
    Value,
)
from tidings.protocols.leases import (
    LEASES,
    Lease,
    Leases,
    LeaseSettings,
    LeaseState,
    Release,
    Table,
    Unleased,
    table_in,
)
from tidings.protocols.log import DiskEntry, Log, Lsn
from tidings.protocols.membership import Membership
from tidings.protocols.messages import Answer, Done, Gone, Know, Read
from tidings.protocols.publishing import (
    PUBLISHERS,
    REFUSED,
    REMEMBERED,
    Batch,
    Entry,
    NotHead,
    OpenSession,
    Publish,
    Published,
    Publishers,
    PublishSettings,
    Rejected,
    SessionOpened,
    entry_rows,
    renumber,
)
from tidings.protocols.pull import PullProxy, PullSettings
from tidings.protocols.receipts import Receipts, ReceiptSettings, ReceiptsKept, receipt_rows
from tidings.protocols.receipts import definition as receipts_definition
from tidings.protocols.receipts import sound as sound_receipts
from tidings.protocols.recovery import Recovery, RecoverySettings
from tidings.protocols.sinks import (
    SINKS,
    STAGED,
    STAGES,
    AbortBatch,
    BatchCommitted,
    CommitBatch,
    Sinks,
    SinkSettings,
    StageRows,
    Step,
)
from tidings.protocols.subscriptions import (
    CURSORS,
    Consumed,
    CursorAt,
    Cursors,
    FeedTick,
    Follow,
    Match,
    OpenCursor,
    SaveCursor,
    Subscriptions,
    SubscriptionSettings,
    Unfollow,
)
from tidings.protocols.views import GossipTick, View, Views, ViewsSettings

OWNER = "_owner"
"""The publisher name of events that a stream's owner publishes by itself ("before n" of a policy)."""

ANSWERS = 1024  # owed for one record; ours: more clients than ask within the time a record takes
WEIGHED = 4  # leases whose dead rows are counted in one go; ours: a few milliseconds where millions are dead

CHAIN = frozenset({Append, Ack, Fetch, Refuse, Install, NextPiece, Compare, Compared, Current, BeatTick, RetryTick})
VIEWS = frozenset({View, GossipTick})
SUBSCRIPTIONS = frozenset({Follow, Consumed, Unfollow, FeedTick})
HEAD_ONLY = frozenset(
    {
        *(Publish, OpenSession, Define, OpenCursor, SaveCursor, Receipts, Lease, Release),
        *(StageRows, CommitBatch, AbortBatch, DeclareLost),
    }
)
INTER_REGION = frozenset({Know, Done, Advertise, Subscribe, Unsubscribe, Solicit, AdvertiseTick, PumpTick})


Owed: TypeAlias = dict[tuple[NodeId, Message], None]
"""Answers and to whom, each once, in the order of the questions."""


class MaintainTick(Timer, frozen=True, gc=False):
    """Purge what is collected; at the head, publish what the policies owe."""


class ProxySettings(Value, frozen=True, gc=False):
    """All settings of a replica."""

    chain: ChainSettings = ChainSettings()
    inter_region: InterRegionSettings = InterRegionSettings()
    publish: PublishSettings = PublishSettings()
    views: ViewsSettings = ViewsSettings()
    pull: PullSettings = PullSettings()
    subscriptions: SubscriptionSettings = SubscriptionSettings()
    receipts: ReceiptSettings = ReceiptSettings()
    leases: LeaseSettings = LeaseSettings()
    sinks: SinkSettings = SinkSettings()
    recovery: RecoverySettings = RecoverySettings()
    maintain: float = 0.5


class Proxy:
    """One replica. ``entries`` is what its disk holds."""

    def __init__(
        self,
        me: NodeId,
        region: RegionId,
        service: NodeId,
        streams: Sequence[StreamDef],
        peers: Mapping[RegionId, Membership],
        settings: ProxySettings,
        entries: Sequence[DiskEntry],
        rng: random.Random,
    ) -> None:
        self.me = me
        self.region = region
        self.settings = settings
        self.catalog = Catalog(region, {region, *peers}, streams)
        self.streams = self.catalog.streams
        ttl = f"by-key,older-than:{settings.publish.ttl}s"
        self.policies = {PUBLISHERS: GcPolicy.parse(ttl), **dict.fromkeys((CURSORS, LEASES), GcPolicy.parse("by-key"))}
        self.policies |= {SINKS: GcPolicy.parse("by-key"), **dict.fromkeys((STAGES, *STAGED), GcPolicy())}
        self.policies |= {definitions_of(name): GcPolicy.parse("by-key") for name in self.catalog.regions}
        self.receipts = receipts_definition(region, settings.receipts)
        self.policies[self.receipts.name] = GcPolicy.parse(settings.receipts.gc)
        self.policies |= {stream.name: GcPolicy.parse(stream.gc) for stream in streams}
        self.clocks = {s.name: HybridClock(s.number) for s in streams if s.region == region}
        owners = {definitions_of(name): name for name in self.catalog.regions}
        owners |= {stream.name: stream.region for stream in streams}
        self.owners = owners  # of every stream that leaves its region
        self.cursors = Cursors(settings.subscriptions)
        self.leased: Table = {}  # as committed here
        self.held: dict[str, int] = {}  # bytes of dead rows that each of them keeps
        self.weighed = 0

        self.definitions = [definitions_of(name) for name in self.catalog.regions]
        self.wired = False  # the layers above the log are not there yet
        self.unheard: list[Effect] = []  # what committing has shown, told with the next effects of the chain

        def make_history(stream: StreamId) -> History:
            counted = stream in self.streams and self.streams[stream].counted > 0
            return self._history(stream, self.policies[stream], counted)

        self.log = Log(make_history, self.policies, self._learn)
        self.log.replay(entries)
        self.chain = Chain(me, region, service, self.log, settings.chain, rng.getrandbits(48))
        self.inter_region = InterRegion(
            me,
            region,
            self.log.histories,
            owners,
            peers,
            lambda stream: self.log.ends[stream],
            lambda: self.chain.busy,
            settings.inter_region,
            self._pending,
        )
        self.recovery = Recovery(region, self.log, owners, self.streams, self.inter_region, settings.recovery)
        self.views = Views(me, region, settings.views, rng, self.chain.membership, replica=True)
        self.pull = PullProxy(me, settings.pull, self.views, rng, self.log.histories)
        self.publishers = Publishers(settings.publish)
        self.leases = Leases(settings.leases)
        self.sinks = Sinks(self.log, region, lambda stream, now: self.clocks[stream].next(now), settings.sinks)
        self.subscriptions = Subscriptions(self.log.histories, self._match, settings.subscriptions)
        self.led: Lsn | None = None  # as head: the last record this replica did not number itself
        self.waiting: dict[Lsn, Owed] = {}  # answers owed when a record is committed
        self.wired = True
        self.barrier: Lsn = 0  # the newest record that was written only to see whether this is still the head
        self.later: Owed = {}  # answers to questions that came after it: they go with the next one

    # --- the boundary -------------------------------------------------------------------------------

    def start(self, now: Time) -> Effects:
        effects = [SetTimer(self.settings.maintain, MaintainTick()), *self.chain.start(now)]
        return [*effects, *self.views.start(now), *self.pull.start(now), self.subscriptions.start()]

    def handle(self, now: Time, input: Input) -> Effects:
        what: object = input
        if type(input) is Received:
            what = input.message
        elif type(input) is Expired:
            what = input.timer
        kind = type(what)
        if kind in CHAIN or kind is Persisted:
            return self._chain(now, self.chain.handle(now, input))
        if kind in INTER_REGION:
            return self._inter_region(now, self.inter_region.handle(now, input))
        if kind in HEAD_ONLY:
            assert isinstance(input, Received)
            return self._receive_as_head(now, input.src, input.message)
        if kind in SUBSCRIPTIONS:
            return self.subscriptions.handle(now, input)
        if kind is Read:
            assert isinstance(input, Received) and isinstance(input.message, Read)
            return self._read(input.src, input.message)
        if kind is Describe or kind is Why:
            assert isinstance(input, Received)
            return [Send(input.src, self._tell(input.message))]
        if kind is MaintainTick:
            return self._maintain(now)
        if kind in VIEWS:
            return [effect for effect in self.views.handle(now, input) if type(effect) is not Deliver]
        return self.pull.handle(now, input)

    def check(self) -> None:
        self.chain.check()
        self.inter_region.check()
        self.views.check()
        self.pull.check()
        self.subscriptions.check()
        self.cursors.check()
        self.leases.check()
        self.sinks.check()
        assert len(self.waiting) <= self.settings.chain.backlog, "answers owed are bounded by the backlog"
        assert all([len(owed) <= ANSWERS for owed in (*self.waiting.values(), self.later)]), "and for each record"

    # --- translating between the layers ---------------------------------------------------------------

    def _chain(self, now: Time, effects: Effects) -> list[Effect]:
        """What the chain delivers moves the other layers; everything else passes."""
        out: list[Effect] = []
        fresh: list[Committed] = []
        for effect in effects:
            if type(effect) is not Deliver:
                out.append(effect)
            elif isinstance(effect.item, Committed):
                if not fresh:
                    fresh = [each.item for each in effects if type(each) is Deliver and type(each.item) is Committed]
                out.append(effect)
                out.extend(self._committed(now, effect.item, fresh))
            elif isinstance(effect.item, Reconfigured):
                out.extend(self._reconfigured(now, effect.item.membership))
        if self.unheard:
            out.extend(self.unheard)
            self.unheard.clear()
        return out

    def _inter_region(self, now: Time, effects: Effects) -> list[Effect]:
        out: list[Effect] = []
        for effect in effects:
            if type(effect) is Deliver and isinstance(effect.item, Arrived):
                out.extend(self._chain(now, self.chain.append(effect.item.spans)))
            else:
                out.append(effect)
        return [*out, *self._settle(now)] if self.recovery.active else out

    def _committed(self, now: Time, item: Committed, fresh: list[Committed]) -> list[Effect]:
        """A record has entered the histories, as all ``fresh`` ones have."""
        out: list[Effect] = [Report("contradiction") for _ in item.refused]
        histories = self.log.histories
        known = [part for part in item.record.parts if part.stream in histories]
        out += [Report("asof_above_horizon") for part in known if part.asof > histories[part.stream].horizon]
        out += [Report("lost", part.lost_count) for part in known if part.lost]
        for stream in dict.fromkeys([part.stream for part in known]):
            if stream in self.owners:
                out += self.inter_region.committed(stream)
            if stream in self.streams:
                out += self.pull.advance(now, stream)
            if stream in self.subscriptions.by_stream and (stream in self.streams or stream == self.receipts.name):
                out += self.subscriptions.committed(stream, _parts_of(stream, fresh))
        out += [Send(node, answer) for node, answer in self.waiting.pop(item.record.lsn, ())]
        if self.later:
            out += self._confirm(now)
        if self.sinks.moving:
            out += self._move_sinks(now)
        return out

    def _reconfigured(self, now: Time, membership: Membership) -> list[Effect]:
        self.views.learn(membership)
        if self.chain.is_head and self.led is None:
            self._take_the_lead(now)
        elif not self.chain.is_head:
            self.recovery.end()
            self.led = None
            self.barrier = 0
            self.waiting.clear()
            self.later.clear()
        return self.inter_region.reconfigure(now, membership, self.chain.is_head, self.chain.is_tail)

    def _take_the_lead(self, now: Time) -> None:
        """A new head remembers publishers, cursors, leases and ticks from history and log, committed or not."""
        self.led = self.log.last
        self.recovery.begin(now)
        self.publishers.load(self._all_rows(PUBLISHERS))
        gone = {stream.name for stream in self.streams.values() if stream.deleted}
        self.cursors.load(self._all_rows(CURSORS), gone)
        self.leases.load(now, self._all_rows(LEASES))
        self.sinks.load(self._all_rows(SINKS), self._all_rows(STAGES))
        self._observe_ticks()

    def _observe_ticks(self) -> None:
        for stream, clock in self.clocks.items():
            clock.observe(self.log.ticks[stream])

    def _settle(self, now: Time) -> list[Effect]:
        """Begin to number events, if all that the peers had of this region's streams is here, or cannot be had."""
        losses = None if self.chain.busy else self.recovery.losses(now)
        if losses is None:
            return []
        self.recovery.end()
        self._observe_ticks()
        self.publishers.entries[OWNER] = Entry(1, 0, self.log.last + 1, 1, (), now)
        effects = self._append(now, losses, OWNER)
        return [*effects, *self.inter_region.adopted(), Report("settled"), *[Report("declared_lost") for _ in losses]]

    def _all_rows(self, stream: StreamId) -> list[Rows]:
        """What history and log hold of an internal stream, committed or not, oldest first."""
        history = self.log.histories[stream]
        records = self.log.between(self.log.committed, self.log.last)
        pending = [part.rows for record in records for part in record.parts if part.stream == stream]
        return [*[span.rows for span in history.know(FIRST, history.horizon)], *pending]

    # --- publishing: addLocalEvent (A1.15) ------------------------------------------------------------

    def _receive_as_head(self, now: Time, src: NodeId, message: Message) -> Effects:
        if not self.chain.is_head:
            membership = self.chain.membership
            known = membership.epoch > 0 and membership.head != self.me  # a head that is not sure yet says nothing
            return [Send(src, NotHead(membership))] if known else NOTHING
        if self.recovery.active:
            return [Report("recovering")]  # asked again later
        if isinstance(message, OpenSession):
            return self._open_session(now, src, message)
        if isinstance(message, Define):
            return self._define(now, src, message)
        if isinstance(message, DeclareLost):
            return self._declare_lost(now, src, message)
        if isinstance(message, OpenCursor | SaveCursor):
            return self._cursor(now, src, message)
        if isinstance(message, Receipts):
            return self._keep(now, src, message)
        if isinstance(message, Lease | Release):
            return self._lease(now, src, message)
        if isinstance(message, StageRows | CommitBatch | AbortBatch):
            return self._sink(now, src, message)
        assert isinstance(message, Publish)
        return self._publish(now, src, message)

    def _open_session(self, now: Time, src: NodeId, message: OpenSession) -> Effects:
        if self.chain.busy:
            return [Report("publish_busy")]
        entry = self.publishers.open(now, message.publisher, message.nonce, self.log.last + 1)
        if entry is None:
            known = self.publishers.entries[message.publisher]
            if known.nonce != message.nonce:
                return [Report("late_opening")]
            return self._answer(src, known.opened, SessionOpened(message.nonce, known.session))
        effects = self._append(now, [], message.publisher)
        return [*effects, *self._answer(src, self.log.last, SessionOpened(message.nonce, entry.session))]

    def _publish(self, now: Time, src: NodeId, batch: Publish) -> Effects:
        verdict = self.publishers.judge(now, batch)
        if verdict == "new":
            held = self.chain.busy or self.sinks.busy(batch.stream) or self._pending(batch.stream)
            verdict = "busy" if held else self._fits(batch.stream, batch.rows) or "new"
            if verdict in REFUSED:
                if not self._uncommitted(batch.stream):
                    return self._refuse(now, src, batch, verdict)
                verdict = "busy"  # it may fit what the stream is going to be
        if isinstance(verdict, Batch):
            again = Published(batch.session, batch.first, verdict.lo, verdict.lo + verdict.count)
            across = [Report("retry_across_failover")] if verdict.lsn <= (self.led or 0) else []
            return [Report("duplicate_publish"), *across, *self._answer(src, verdict.lsn, again)]
        if verdict == "new":
            return self.add_local_event(now, src, batch)
        rejected = Rejected(batch.session, batch.first, verdict)
        if verdict in REMEMBERED:
            return [*self._answer_as_head(now, src, rejected), Report(f"publish_{verdict}")]
        return [Send(src, rejected), Report(f"publish_{verdict}")]

    def _refuse(self, now: Time, src: NodeId, batch: Publish, reason: str) -> list[Effect]:
        """A batch does not fit, and never will in this session: that is written down before it is said."""
        self.publishers.end(now, batch.publisher, reason)
        effects = self._append(now, [], batch.publisher)
        answer = Rejected(batch.session, batch.first, reason)
        return [*effects, *self._answer(src, self.log.last, answer), Report(f"publish_{reason}")]

    def _fits(self, name: StreamId, rows: Rows) -> str:
        """Why new rows cannot become part of their stream, or ""; what cannot must not reach the log."""
        stream = self.streams.get(name)
        if stream is None or stream.region != self.region or stream.deleted:
            return "stream"
        if rows.nbytes > MESSAGE_BYTES:
            return "size"
        if isinstance(rows, CountedRows):
            fits = rows.size == stream.counted and rows.count > 0
        else:
            assert isinstance(rows, ArrowRows)
            fits = not stream.counted and rows.count > 0 and self._rows_fit(stream, rows)
        return "" if fits else "rows"

    def _answer_as_head(self, now: Time, to: NodeId, answer: Message) -> list[Effect]:
        """Answer for good only once a record written after the question is committed: a replaced head knows too little.

        One such record is under way at a time. It says nothing of what was asked after it was written, because it may
        have been acknowledged before the head was replaced; those answers share the next one.
        """
        if self.barrier <= self.log.committed and self.chain.busy:
            return []  # asked again later
        return [*self._owe(self.later, to, answer), *self._confirm(now)]

    def _confirm(self, now: Time) -> list[Effect]:
        """Write a record for the answers that wait for one, if none is under way."""
        if not self.later or self.barrier > self.log.committed or self.chain.busy or not self.chain.is_head:
            return []
        self.barrier = self.log.last + 1
        self.waiting[self.barrier], self.later = self.later, {}
        return self._append(now, [], None)

    def add_local_event(self, now: Time, src: NodeId, batch: Publish) -> list[Effect]:
        """Number a new batch, write it with its publisher's entry, owe the answer (A1.15)."""
        lo = self.log.ends[batch.stream]
        rows = renumber(batch, lo, self.clocks[batch.stream].next(now), now, self.region)
        self.publishers.accept(now, batch, lo, self.log.last + 1)
        effects = self._append(now, [Span.of(batch.stream, lo, rows)], batch.publisher)
        answer = Published(batch.session, batch.first, lo, lo + rows.count)
        return [*effects, *self._answer(src, self.log.last, answer)]

    def _append(self, now: Time, parts: list[Span], publisher: str | None) -> list[Effect]:
        if publisher is not None:
            at = self.log.ends[PUBLISHERS]
            rows = entry_rows(at, publisher, self.publishers.entries[publisher], now)
            parts = [*parts, Span.of(PUBLISHERS, at, rows)]
        return self._chain(now, self.chain.append(tuple(parts)))

    def _answer(self, to: NodeId, lsn: Lsn, answer: Message) -> list[Effect]:
        """Answer now if the record is committed, else when it is."""
        if lsn <= self.log.committed:
            return [Send(to, answer)]
        return self._owe(self.waiting.setdefault(lsn, {}), to, answer)

    def _owe(self, owed: Owed, to: NodeId, answer: Message) -> list[Effect]:
        if len(owed) >= ANSWERS and (to, answer) not in owed:
            return [Report("answers_full")]  # asked again later
        owed[to, answer] = None
        return []

    # --- sinks: batches that are staged by many and committed once ---------------------------------------------

    def _sink(self, now: Time, src: NodeId, message: StageRows | CommitBatch | AbortBatch) -> Effects:
        if self.chain.busy or self._pending(message.of.stream):
            return [Report("sink_busy")]  # asked again later
        if isinstance(message, StageRows):
            step = self.sinks.stage(now, src, message, self._fits(message.of.stream, message.rows))
        elif isinstance(message, CommitBatch):
            step = self.sinks.commit(now, src, message)
        else:
            step = self.sinks.abort(now, src, message)
        return [*self._take_step(now, step), *self._move_sinks(now)]

    def _take_step(self, now: Time, step: Step) -> list[Effect]:
        out: list[Effect] = [Report(name) for name in step.reports]
        if step.parts:
            out.extend(self._append(now, step.parts, None))
        for to, answer, lsn in step.answers:
            out.extend(self._answer(to, lsn, answer) if lsn else self._answer_as_head(now, to, answer))
            if isinstance(answer, BatchCommitted) and answer.again and lsn <= (self.led or 0):
                out.append(Report("sink_again_across_failover"))
        return out

    def _move_sinks(self, now: Time) -> list[Effect]:
        """Go on with batches that are decided and not all moved to their streams."""
        out: list[Effect] = []
        while self.sinks.moving and self.chain.is_head and not self.chain.busy:
            step = self.sinks.next(now)
            if step is None:
                break
            out.extend(self._take_step(now, step))
        return out

    def _tidy_sinks(self, now: Time) -> list[Effect]:
        """Drop what nobody commits, collect what is dropped."""
        out = self._move_sinks(now)
        for tidy in (self.sinks.expired, self.sinks.collected):
            step = None if self.chain.busy else tidy(now)
            if step is not None:
                out.extend(self._take_step(now, step))
        return out

    # --- streams and cursors -------------------------------------------------------------------------------

    def _learn(self, part: Span) -> None:
        """A part has entered a history: definitions and leases take effect."""
        if part.stream == LEASES:
            self._hold(table_in([part.rows]))
        if not part.stream.startswith(PREFIX):
            return
        owner = part.stream.removeprefix(PREFIX)
        for definition in definitions_in(part.rows):
            try:
                if definition is None:
                    self.unheard.append(Report("bad_definition"))
                    continue
                if self.catalog.learn(owner, definition):
                    self._enact(self.streams[definition.name])
                if self.streams[definition.name].deleted:
                    self.cursors.forget(definition.name)
                if any([each.name == definition.name for each in self.catalog.conflicts]):
                    self.unheard.append(Report("stream_conflict"))
            except BadInput:
                self.unheard.append(Report("bad_definition"))

    def _history(self, stream: StreamId, policy: GcPolicy, counted: bool) -> History:
        leases = {name: entry.asof for name, entry in self.leased.items() if entry.stream == stream}
        return History(stream, policy, counted=counted, leases=leases)

    def _pending(self, name: StreamId) -> bool:
        """Whether a record that is not committed may say that a name is another region's, or nobody's.

        Until it is, nothing is put into the log under the name: so each record that carries rows of a stream finds,
        wherever it is committed, the stream that its head knew, and what is acknowledged was published.
        """
        owned = PREFIX + self.owners.get(name, "")
        return any([each.deleted or by != owned for by, each in self._uncommitted(name)])

    def _uncommitted(self, name: StreamId) -> list[tuple[StreamId, StreamDef]]:
        """The definitions of a name in records that are not committed, and the streams that carry them."""
        log = self.log
        growing = [each for each in self.definitions if log.ends[each] > log.histories[each].horizon]
        if not growing:
            return []
        parts = [part for record in log.between(log.committed, log.last) for part in record.parts]
        found = [(part.stream, definitions_in(part.rows)) for part in parts if part.stream in growing]
        return [(by, each) for by, some in found for each in some if each is not None and each.name == name]

    def _let_go(self, name: StreamId, reason: str) -> None:
        """What was followed under this name is no more: forget its rows, and whoever has to do with it."""
        self.log.drop(name)
        if self.wired:
            self.inter_region.forget(name)
            self.pull.forget(name)
            self.unheard.extend(self.subscriptions.end(name, f"stream {name!r} {reason}"))

    def _enact(self, stream: StreamDef) -> None:
        """A definition is committed here."""
        if stream.deleted:
            self._let_go(stream.name, "was deleted")
            self.owners.pop(stream.name, None)
            self.clocks.pop(stream.name, None)
            return
        policy = GcPolicy.parse(stream.gc, bounded=False)
        history = self._history(stream.name, policy, stream.counted > 0)  # before anything changes
        if self.owners.get(stream.name, stream.region) != stream.region:
            self._let_go(stream.name, f"is region {stream.region}'s, which has the older claim to the name: begin anew")
        self.policies[stream.name] = policy
        self.owners[stream.name] = stream.region
        self.log.define(stream.name, history)
        if stream.region == self.region and stream.name not in self.clocks:
            self.clocks[stream.name] = HybridClock(stream.number, self.log.ticks[stream.name])

    def _define(self, now: Time, src: NodeId, request: Define) -> Effects:
        """Create, alter or delete a stream of this region; one definition is under way at a time."""
        stream = definitions_of(self.region)
        moving = self.sinks.busy(request.definition.name)
        moving = moving or self._pending(request.definition.name)  # perhaps another region's: then it is refused
        if self.chain.busy or moving or self.log.ends[stream] > self.log.histories[stream].horizon:
            return [Report("define_busy")]  # asked again later
        try:
            definition = self.catalog.define(request.operation, request.definition, now)
        except BadInput as error:
            return self._answer_as_head(now, src, NotDefined(request.nonce, str(error)))
        if definition == self.streams.get(definition.name):
            return [Send(src, Defined(request.nonce, definition))]
        lo = self.log.ends[stream]
        part = Span.of(stream, lo, definition_rows(lo, definition, now, self.region))
        effects = self._append(now, [part], None)
        return [*effects, *self._answer(src, self.log.last, Defined(request.nonce, definition))]

    def _declare_lost(self, now: Time, src: NodeId, request: DeclareLost) -> Effects:
        """Write down for good that nobody has a range which begins where the stream ends; asked again, say so again."""
        stream = self.streams.get(request.stream)
        if stream is None or stream.region != self.region or stream.deleted:
            if self._uncommitted(request.stream):
                return [Report("declare_busy")]
            reason = f"region {self.region} has no stream {request.stream!r}"
            return self._answer_as_head(now, src, NotDefined(request.nonce, reason))
        history, end = self.log.histories[stream.name], self.log.ends[stream.name]
        if self.chain.busy or self.sinks.busy(stream.name) or self._pending(stream.name) or end > history.horizon:
            return [Report("declare_busy")]  # asked again later
        lo, hi = request.lo, request.hi
        if history.is_lost(lo, hi):
            return [Send(src, Defined(request.nonce, stream))]
        if reason := refused_loss(stream, end, lo, hi):
            return self._answer_as_head(now, src, NotDefined(request.nonce, reason))
        effects = self._append(now, [Span.declared_lost(stream.name, lo, hi)], None)
        return [*effects, *self._answer(src, self.log.last, Defined(request.nonce, stream))]

    def _cursor(self, now: Time, src: NodeId, message: OpenCursor | SaveCursor) -> Effects:
        """Move a durable subscription, or hand it to another holder."""
        if self.chain.busy:
            return [Report("cursor_busy")]  # asked again later
        stream = self._readable(message.stream)
        if stream is None or stream.deleted:
            if self._uncommitted(message.stream):
                return [Report("cursor_busy")]
            reason = f"stream {message.stream!r} is unknown here"
            refusal = CursorAt(message.name, message.stream, 0, 0, reason, unknown=True)
            return [Report("cursor_refused"), *self._answer_as_head(now, src, refusal)]
        answer, changed = self.cursors.receive(src, message)
        if not changed:
            reports = [Report("cursor_refused")] if answer.refused else []
            return [*reports, *self._answer_as_head(now, src, answer)]
        lo = self.log.ends[CURSORS]
        part = Span.of(CURSORS, lo, self.cursors.rows(lo, message.name, message.stream, now))
        effects = self._append(now, [part], None)
        return [*effects, *self._answer(src, self.log.last, answer)]

    def _sweep_cursors(self, now: Time) -> list[Effect]:
        """Collect what no cursor that is still wanted stands on."""
        if self.chain.busy or self.recovery.active:
            return []
        parts = self.cursors.sweep(self.log.ends[CURSORS], self.log.histories[CURSORS], now)
        return self._append(now, parts, None) if parts else []

    def _keep(self, now: Time, src: NodeId, message: Receipts) -> Effects:
        """Write receipts down; asked again they are written again, which says nothing new."""
        if not sound_receipts(message):
            return [Report("bad_message")]
        if self.chain.busy:
            return [Report("receipts_busy")]  # asked again later
        stream = self.receipts.name
        lo = self.log.ends[stream]
        part = Span.of(stream, lo, receipt_rows(lo, message.receipts, src, now, self.region))
        effects = self._append(now, [part], None)
        return [*effects, *self._answer(src, self.log.last, ReceiptsKept(message.nonce))]

    def _lease(self, now: Time, src: NodeId, message: Lease | Release) -> Effects:
        """Grant, renew, move or end a lease of a stream of this region."""
        if self.chain.busy:
            return [Report("lease_busy")]  # asked again later
        stream = self._readable(message.stream)
        if stream is None or stream.region != self.region or stream.deleted:
            if self._uncommitted(message.stream):
                return [Report("lease_busy")]
            reason = f"region {self.region} has no such stream"
            return self._answer_as_head(now, src, Unleased(message.name, message.stream, reason))
        answer, changed, reports = self.leases.receive(now, message, self.log.ends[message.stream])
        if not changed:
            return [*reports, *self._answer_as_head(now, src, answer)]
        effects = self._append(now, [self._lease_table(now)], None)
        return [*reports, *effects, *self._answer(src, self.log.last, answer)]

    def _lease_table(self, now: Time) -> Span:
        lo = self.log.ends[LEASES]
        return Span.of(LEASES, lo, self.leases.rows(lo, now))

    def _hold(self, table: Table) -> None:
        """Another table is committed here: what it does not keep may be purged, what it does may not."""
        for name, old in self.leased.items():
            kept = name in table and table[name].stream == old.stream  # a snapshot may jump over its end elsewhere
            if not kept and old.stream in self.log.histories:
                self.log.histories[old.stream].release(name)
        self.leased = table
        for name, entry in table.items():
            history = self.log.histories.get(entry.stream)
            if history is not None:
                history.lease(name, max(entry.asof, history.floor))

    def _weigh(self) -> None:
        """Count the bytes of dead rows that leases hold, of a few in turn: each takes a look at all dead rows."""
        names = sorted(self.leased)
        for _ in range(min(WEIGHED, len(names))):
            self.weighed += 1
            name = names[self.weighed % len(names)]
            history = self.log.histories.get(self.leased[name].stream)
            self.held[name] = 0 if history is None else history.held(self.leased[name].asof)
        self.held = {name: self.held[name] for name in names if name in self.held}

    def _match(self, stream: StreamId, where: str) -> Match:
        """The filter of a subscription."""
        definition = self._readable(stream)
        assert definition is not None
        if definition.counted:
            raise BadInput(f"stream {stream!r} only counts its events: there is nothing to filter by")
        return parse_filter(where, parse_attributes(definition.attrs)).mask

    def _readable(self, stream: StreamId) -> StreamDef | None:
        """The definition of a stream that readers may have."""
        return self.receipts if stream == self.receipts.name else self.streams.get(stream)

    def _rows_fit(self, stream: StreamDef, rows: ArrowRows) -> bool:
        """Whether the columns are those of every stream and some of its attributes, and what collects is sound."""
        if isinstance(rows, ListedRows):
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
            refuse_unsound(rows, attributes, self.policies[stream.name].by_key)
        except BadInput:
            return False
        return True

    # --- readers ------------------------------------------------------------------------------------------

    def _read(self, src: NodeId, read: Read) -> Effects:
        history = self.log.histories.get(read.stream)
        if history is None or is_hidden(read.stream) or not FIRST <= read.lo < read.hi:
            return [Report("bad_message")]
        try:
            span = history.rows(read.lo, read.hi, read.asof, self.settings.pull.reply_rows)
            if span.hi < read.hi or span.wire_size > MESSAGE_BYTES:
                return [Report("read_too_large")]  # in pieces it is answered
            return [Send(src, Answer(span))]
        except AsofGone as gone:
            return [Send(src, Gone(read.stream, read.asof, gone.floor)), Report("asof_gone")]
        except NotYet:
            return NOTHING  # the reader asks another replica, or later

    def _tell(self, message: Message) -> Message:
        """What this replica knows: of everything, or of one number."""
        if isinstance(message, Describe):
            own = self.chain.membership
            others = [self.inter_region.peers[name] for name in sorted(self.inter_region.peers)]
            told = [*[stream for stream in self.streams.values() if not stream.deleted], self.receipts]
            known = {each.name: self.log.histories[each.name] for each in told if each.name in self.log.histories}
            states = {
                name: StreamState(h.horizon, h.live, h.collected, h.low, h.floor, h.lost) for name, h in known.items()
            }
            leases = [
                LeaseState(name, e.stream, e.asof, e.ttl, e.bytes, self.held.get(name, 0))
                for name, e in self.leased.items()
            ]
            ask = self.settings.receipts.ask
            known_as = tuple(told), states, ask, tuple(leases), tuple(self.catalog.conflicts)
            return Description(message.nonce, self.region, (own, *others), *known_as)
        assert isinstance(message, Why)
        history = self.log.histories.get(message.stream)
        if history is None or is_hidden(message.stream):
            return Because(message.stream, message.seq, "unknown stream")
        if message.seq >= history.horizon:
            return Because(message.stream, message.seq, "not published yet")
        if message.seq < FIRST:
            return Because(message.stream, message.seq, "never a number")
        killer = history.killer(message.seq)
        if killer is None:
            return Because(message.stream, message.seq, "row")
        if killer == "lost":
            return Because(message.stream, message.seq, "lost")
        return Because(message.stream, message.seq, "collected", None if killer == "gone" else killer)

    # --- upkeep -----------------------------------------------------------------------------------------

    def _maintain(self, now: Time) -> list[Effect]:
        out: list[Effect] = [SetTimer(self.settings.maintain, MaintainTick())]
        self.publishers.expire(now)
        if self.recovery.active:
            out.extend(self._settle(now))
        if self.leased:
            self._weigh()
        if self.chain.is_head and self.leases.entries and not self.chain.busy:
            ended = self.leases.expire(now, self.log.histories, self.held)
            if ended:
                out += [*ended, *self._append(now, [self._lease_table(now)], None)]
        if self.chain.is_head:
            out.extend(self._tidy_sinks(now))
            out.extend(self._sweep_cursors(now))
        for stream, history in self.log.histories.items():
            history.purge()
            if self.chain.is_head and self._collects(stream) and not self.chain.busy:
                before = due_before(self.policies[stream], history, now)
                if before is not None:
                    out.extend(self._append(now, [self._before(now, stream, before)], None))
        return out

    def _collects(self, stream: StreamId) -> bool:
        """Whether it is for this region to publish what a stream's policy owes."""
        ours = stream in self.clocks or stream in (PUBLISHERS, self.receipts.name)
        return ours and not self.sinks.busy(stream) and not self._pending(stream) and not self.recovery.active

    def _before(self, now: Time, stream: StreamId, before: int) -> Span:
        """The owner's own collecting event, as a policy demands (A1.43)."""
        lo = self.log.ends[stream]
        rows: Rows
        if stream in self.streams and self.streams[stream].counted:
            rows = CountedRows(lo, lo + 1, self.streams[stream].counted, ((lo, before),))
        else:
            tick = self.clocks[stream].next(now) if stream in self.clocks else 0
            rows = before_rows(lo, [before], Origin(lo, lo + 1, OWNER, tick, lo, tick, now, self.region))
        return Span.of(stream, lo, rows)


def _parts_of(stream: StreamId, fresh: list[Committed]) -> list[Span]:
    """What has just entered the history of a stream."""
    return [
        part
        for each in fresh
        for part in each.record.parts
        if part.stream == stream and not (each.refused and any([part is one for one in each.refused]))
    ]
