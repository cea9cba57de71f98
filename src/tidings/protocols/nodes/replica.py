"""A replica of a region's proxy: chain, inter-region, fabric, subscriptions and the head's services, wired together.

    publishers --Publish--> [head] --Append--> [middle] --Append--> [tail] --Offer/Know--> clients of the region
    other regions' tails --Know--> [head]                           [tail] --Know--> heads of other regions

The place in the chain decides what a replica does. The head numbers events (addLocalEvent) and takes what other
regions send (addRemoteEvent). The tail advertises, serves the other regions and feeds the region's fabric. Every
replica serves subscribers what is committed.

Every part says which messages and timers it handles; `handle` looks the part up in one table.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from tidings.core.gc import GcPolicy, due_before
from tidings.core.ids import MERGES, TICKS, NodeId, RegionId, StreamId
from tidings.core.span import Span
from tidings.protocols.brokers.broker_messages import BrokerSettings
from tidings.protocols.brokers.feeds import Subscriptions
from tidings.protocols.brokers.messages import SubscriptionSettings
from tidings.protocols.brokers.subscriber import Lost
from tidings.protocols.brokers.top import TopBroker
from tidings.protocols.fabrics.family import FabricChoice, Place
from tidings.protocols.kernel import (
    NOTHING,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Received,
    Report,
    Send,
    SetTimer,
    Time,
    Timer,
    Value,
)
from tidings.protocols.regions.interregion import Arrived, InterRegion, InterRegionSettings
from tidings.protocols.replication.chain import Chain, ChainSettings, Committed, Reconfigured
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.log import DiskEntry
from tidings.protocols.replication.recovery import Recovery, RecoverySettings
from tidings.protocols.services.catalog import StreamDef
from tidings.protocols.services.cursors import CURSORS, Cursors, CursorService
from tidings.protocols.services.definitions import Definitions
from tidings.protocols.services.head import Head, HeadService
from tidings.protocols.services.leases import LEASES, LeaseService, LeaseSettings
from tidings.protocols.services.promises import Promises, PromiseSettings, PromiseTick
from tidings.protocols.services.publishing import (
    OWNER,
    PUBLISHERS,
    NotHead,
    PublisherEntry,
    PublishService,
    PublishSettings,
)
from tidings.protocols.services.queries import Queries
from tidings.protocols.services.receipts import ReceiptService, ReceiptSettings
from tidings.protocols.services.sinks import SINKS, STAGED, STAGES, SinkService, SinkSettings
from tidings.protocols.services.streams import StreamTable

Handler: TypeAlias = Callable[[Time, Input], Effects]


class MaintainTick(Timer, frozen=True, gc=False):
    """Purge what is collected; at the head, publish what the policies owe."""


class ReplicaSettings(Value, frozen=True, gc=False):
    """All settings of a replica."""

    chain: ChainSettings = ChainSettings()
    inter_region: InterRegionSettings = InterRegionSettings()
    publish: PublishSettings = PublishSettings()
    fabric: FabricChoice = FabricChoice()
    subscriptions: SubscriptionSettings = SubscriptionSettings()
    broker: BrokerSettings = BrokerSettings()
    receipts: ReceiptSettings = ReceiptSettings()
    leases: LeaseSettings = LeaseSettings()
    sinks: SinkSettings = SinkSettings()
    promises: PromiseSettings = PromiseSettings()
    recovery: RecoverySettings = RecoverySettings()
    maintain: float = 0.5


class Replica:
    """One replica. ``entries`` is what its disk holds."""

    def __init__(
        self,
        me: NodeId,
        region: RegionId,
        service: NodeId,
        streams: Sequence[StreamDef],
        peers: Mapping[RegionId, ChainConfig],
        settings: ReplicaSettings,
        entries: Sequence[DiskEntry],
        rng: random.Random,
    ) -> None:
        self.me = me
        self.region = region
        self.settings = settings
        cursors = Cursors(settings.subscriptions)
        policies = _internal_policies(settings, {region, *peers})
        table = StreamTable(region, {region, *peers}, streams, policies, settings.receipts, cursors.forget)
        table.log.replay(entries)
        table.gone.clear()  # nobody here has heard of those streams
        self.table = table
        self.log = table.log
        self.streams = table.streams
        self.chain = Chain(me, region, service, self.log, settings.chain, rng.getrandbits(48))
        self.inter_region = InterRegion(
            me,
            region,
            self.log.histories,
            table.owners,
            peers,
            lambda stream: self.log.ends[stream],
            lambda: self.chain.busy,
            settings.inter_region,
            table.pending,
        )
        self.recovery = Recovery(region, self.log, table.owners, self.streams, self.inter_region, settings.recovery)
        place = Place(me, region, self.chain.membership)
        self.fabric = settings.fabric.source(place, self.log.histories, rng)
        self.subscriptions = Subscriptions(self.log.histories, table.filter_of, settings.subscriptions)
        self.broker = TopBroker(me, region, self.log.histories, lambda: self.chain.membership, settings.broker)
        self.queries = Queries(table, self.chain, self.inter_region, self.broker, settings)
        self.head = head = Head(self.log, self.chain, self._replicate, lambda: self.recovery.active)
        self._sinking = SinkService(head, table, settings.sinks)
        self._publishing = PublishService(head, table, self._sinking.sinks.busy, settings.publish)
        leasing = LeaseService(head, table, settings.leases)
        self._promises = Promises(head, table, settings.promises)
        self.services: tuple[HeadService, ...] = (
            *(self._publishing, Definitions(head, table, self._sinking.sinks.busy), leasing, self._sinking),
            *(CursorService(head, table, cursors), ReceiptService(head, table), self._promises),
        )
        self.publishers, self.sinks = self._publishing.publishers, self._sinking.sinks
        self.leases, self.cursors = leasing.leases, cursors
        self._handlers: dict[type, Handler] = {
            **dict.fromkeys(self.fabric.handles, self.fabric.handle),
            **dict.fromkeys(self.queries.handles, self.queries.handle),
            **{kind: partial(self._request, each) for each in self.services for kind in each.handles},
            **dict.fromkeys(self.subscriptions.handles, self.subscriptions.handle),
            **dict.fromkeys(self.broker.handles, self.broker.handle),
            **dict.fromkeys(self.inter_region.handles, self._hear_regions),
            **dict.fromkeys(self.chain.handles, self._hear_chain),
            Lost: lambda now, input: self.broker.lost(now, input.node) if type(input) is Lost else NOTHING,
            MaintainTick: lambda now, _: self._maintain(now),
            PromiseTick: lambda now, _: self._promise(now),
        }

    # --- the boundary -------------------------------------------------------------------------------

    def start(self, now: Time) -> Effects:
        effects = [SetTimer(self.settings.maintain, MaintainTick()), *self.chain.start(now)]
        return [*effects, *self.fabric.start(now), self.subscriptions.start()]

    def handle(self, now: Time, input: Input) -> Effects:
        kind: type = type(input)
        if type(input) is Received:
            kind = type(input.message)
        elif type(input) is Expired:
            kind = type(input.timer)
        handler = self._handlers.get(kind)
        return NOTHING if handler is None else handler(now, input)

    def check(self) -> None:
        self.chain.check()
        self.broker.check()
        self.inter_region.check()
        self.fabric.check()
        self.subscriptions.check()
        for service in self.services:
            service.check()
        self.head.check(self.settings.chain.backlog)

    # --- requests to the head --------------------------------------------------------------------------

    def _request(self, service: HeadService, now: Time, input: Input) -> Effects:
        assert type(input) is Received
        if not self.chain.is_head:
            config = self.chain.membership
            known = config.epoch > 0 and config.head != self.me  # a head that is not sure yet says nothing
            return [Send(input.src, NotHead(config))] if known else NOTHING
        if self.recovery.active:
            return [Report("recovering")]  # asked again later
        effects = self.head.take(now, service.receive(now, input.src, input.message))
        return [*effects, *self.head.take_all(now, service.work(now))]

    def _replicate(self, now: Time, parts: Sequence[Span]) -> list[Effect]:
        """Append a record to the log."""
        return self._from_chain(now, self.chain.append(tuple(parts)))

    # --- translating between the layers ---------------------------------------------------------------

    def _hear_chain(self, now: Time, input: Input) -> Effects:
        return self._from_chain(now, self.chain.handle(now, input))

    def _from_chain(self, now: Time, effects: Effects) -> list[Effect]:
        """What the chain delivers moves the other layers; everything else passes."""
        out: list[Effect] = []
        fresh: list[Committed] = []
        learned = self._learned()
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
        return [*out, *learned] if learned else out

    def _learned(self) -> list[Effect]:
        """What committing has shown of streams: those that are gone are forgotten everywhere."""
        table = self.table
        if not table.reports and not table.gone:
            return []
        out: list[Effect] = []
        for name, reason in table.gone:
            self.inter_region.forget(name)
            self.fabric.forget(name)
            out.extend(self.subscriptions.end(name, reason))
        out.extend(table.reports)
        table.gone.clear()
        table.reports.clear()
        return out

    def _hear_regions(self, now: Time, input: Input) -> Effects:
        out: list[Effect] = []
        for effect in self.inter_region.handle(now, input):
            if type(effect) is Deliver and isinstance(effect.item, Arrived):
                out.extend(self._replicate(now, effect.item.spans))
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
            if stream in self.table.owners:
                out += self.inter_region.committed(stream)
            if stream in self.streams:
                out += self.fabric.committed(now, stream)
            if stream in self.subscriptions.by_stream and self.table.followed(stream) is not None:
                out += self.subscriptions.committed(stream, [part for each in fresh for part in each.parts_of(stream)])
            if self.broker.downstream:
                out += self.broker.committed(now, stream, [part for part in known if part.stream == stream])
            if stream in self._promises.merges and self.chain.is_head:
                out += self._promises.learn(now, item.parts_of(stream))
        out += self.head.committed(now, item.record.lsn)
        return [*out, *self.head.take_all(now, self._sinking.work(now))] if self.chain.is_head else out

    def _reconfigured(self, now: Time, config: ChainConfig) -> list[Effect]:
        out = [*self.fabric.reconfigured(now, config)]
        if self.chain.is_head and self.head.inherited_lsn is None:
            self._take_the_lead(now)
        elif not self.chain.is_head:
            self.recovery.end()
            self.head.demoted()
        out += self.broker.reconfigured(now)
        return [*out, *self.inter_region.reconfigure(now, config, self.chain.is_head, self.chain.is_tail)]

    def _take_the_lead(self, now: Time) -> None:
        """A new head rebuilds its tables and ticks from history and log, committed or not."""
        self.head.promoted()
        self.recovery.begin(now)
        for service in self.services:
            service.load(now, self.log.rows_of)
        self.table.observe_ticks()

    def _settle(self, now: Time) -> list[Effect]:
        """Begin to number events, if all that the peers had of this region's streams is here, or cannot be had."""
        losses = None if self.chain.busy else self.recovery.losses(now)
        if losses is None:
            return []
        self.recovery.end()
        self.table.observe_ticks(now + self.settings.recovery.lead if losses else 0.0)
        promises = self._promises.after_loss(now, losses) if losses else []
        self.publishers.entries[OWNER] = PublisherEntry(1, 0, self.log.last + 1, 1, (), now)
        effects = self._replicate(now, [*losses, *promises, self._publishing.entry(now, OWNER)])
        return [*effects, *self.inter_region.adopted(), Report("settled"), *[Report("declared_lost") for _ in losses]]

    # --- upkeep -----------------------------------------------------------------------------------------

    def _promise(self, now: Time) -> list[Effect]:
        """At the head: tell those who merge streams what will not come any more."""
        self._promises.ticking = False
        if not self.chain.is_head:
            return []
        step = self._promises.promise(now)
        return [*(self.head.take(now, step) if step is not None else ()), *self._promises.begin()]

    def _maintain(self, now: Time) -> list[Effect]:
        out: list[Effect] = [SetTimer(self.settings.maintain, MaintainTick())]
        self.publishers.expire(now)
        if self.recovery.active:
            out.extend(self._settle(now))
        if self.table.leases.table:
            self.table.leases.weigh(self.log.histories)
        if self.chain.is_head:
            for service in self.services:
                out.extend(self.head.take_all(now, service.tick(now)))
            out.extend(self._promises.begin())
        for stream, history in self.log.histories.items():
            history.purge()
            if self.chain.is_head and self._collects(stream) and not self.chain.busy:
                before = due_before(self.table.policies[stream], history, now)
                if before is not None:
                    out.extend(self._replicate(now, [self.table.before(now, stream, before)]))
        return out

    def _collects(self, stream: StreamId) -> bool:
        """Whether it is for this region to publish what a stream's policy owes."""
        ours = stream in self.table.clocks or stream in (PUBLISHERS, self.table.receipts.name, MERGES + self.region)
        held = self.sinks.busy(stream) or self.table.pending(stream)
        return ours and not held and not self.recovery.active


def _internal_policies(settings: ReplicaSettings, regions: set[RegionId]) -> dict[StreamId, GcPolicy]:
    """How the tables of the head's services are collected."""
    by_key = GcPolicy.parse("by-key")
    merges = GcPolicy.parse(f"by-key,older-than:{2 * settings.promises.ttl}s")
    return {
        PUBLISHERS: GcPolicy.parse(f"by-key,older-than:{settings.publish.ttl}s"),
        **dict.fromkeys((CURSORS, LEASES, SINKS), by_key),
        **dict.fromkeys((STAGES, *STAGED), GcPolicy()),
        **{TICKS + region: by_key for region in sorted(regions)},
        **{MERGES + region: merges for region in sorted(regions)},
    }
