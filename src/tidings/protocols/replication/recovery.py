"""Recovery of a region in memory that lost all replicas: its new head numbers events above all that other regions hold.

When all replicas of a region start empty, other regions may hold more of its streams than it does. Its head then
numbers nothing until recovery has ended:

1. The head hears the tails of the other regions (they answer its `Solicit`). It fetches its own definitions and
   streams from the regions that are ahead, as it fetches foreign streams.
2. It ends when it has all that the answering regions hold, or when nothing has moved for ``wait`` seconds. It then
   writes one record, which declares a hole in each stream lost: from what it has to the largest horizon and asof that
   any region has told.

Some committed events may have reached subscribers of this region but no other region. So the hole is made ``skip``
numbers longer: those numbers are not given out again, and every subscriber is told of the loss. For the same reason
ticks go on ``lead`` seconds ahead, which the record says, too: a promise (services/promises.py) may be known in this
region alone, made by a head whose clock was ahead of this one's. Promises that other regions hold are fetched like
everything else, and observed.

Guarantee: a number that an answering region holds, or that lies within ``skip`` of it, is not given out again. The
record is replicated before anything is numbered. It carries an entry of `_publishers`, which otherwise only a head
writes that has ended recovery. By that entry a successor knows that recovery has ended.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidings.core.ids import FIRST, RegionId, StreamId
from tidings.core.span import Span
from tidings.protocols.kernel import Time, Value
from tidings.protocols.regions.interregion import InterRegion
from tidings.protocols.replication.log import Log
from tidings.protocols.services.catalog import PREFIX, StreamDef
from tidings.protocols.services.publishing import PUBLISHERS


class RecoverySettings(Value, frozen=True, gc=False):
    """Off where replicas have disks: there nobody is ever ahead of an owner."""

    on: bool = False
    wait: float = 10.0  # seconds for regions that do not answer, or answer and do not deliver; ours
    skip: int = 1 << 22  # ours: four times what may be on its way to one region (interregion.py: window x chunk_rows)
    lead: float = 2.0  # seconds; ours: more than clocks of one region differ. A total order waits as long, once


class Recovery:
    """Whether a head may number events yet, and what is lost when it may."""

    def __init__(
        self,
        region: RegionId,
        log: Log,
        owners: Mapping[StreamId, RegionId],
        streams: Mapping[StreamId, StreamDef],
        peers: InterRegion,
        settings: RecoverySettings,
    ) -> None:
        self.region = region
        self.log = log
        self.owners = owners
        self.streams = streams
        self.peers = peers
        self.settings = settings
        self.active = False  # this head has not settled
        self.seen = (0, 0)  # regions that have answered, and numbers of own streams that are here
        self.moved: Time = 0.0  # when that last changed

    def begin(self, now: Time) -> None:
        """This replica has become head."""
        empty = self.log.ends[PUBLISHERS] == FIRST
        self.active = self.peers.adopting = self.settings.on and bool(self.peers.peers) and empty
        self.peers.adverts.clear()
        self.moved = now

    def end(self) -> None:
        """It is head no more, or has settled."""
        self.active = self.peers.adopting = False

    def losses(self, now: Time) -> list[Span] | None:
        """What to declare lost, if the head may settle now; None while there is something to wait for."""
        own = [stream for stream, owner in self.owners.items() if owner == self.region]
        seen = (len(self.peers.adverts), sum([self.log.histories[stream].horizon for stream in own]))
        if seen != self.seen:
            self.seen, self.moved = seen, now
        complete = len(self.peers.adverts) == len(self.peers.peers) and all([self._has(stream) for stream in own])
        if not complete and now - self.moved < self.settings.wait:
            return None
        if any([self.log.ends[stream] > self.log.histories[stream].horizon for stream in own]):
            return None  # what has arrived is being committed
        held = {stream: self._held(stream) for stream in own}
        if max(held.values(), default=FIRST) == FIRST:
            return []  # nobody has anything: the region begins
        return [loss for stream in own if (loss := self._loss(stream, held[stream])) is not None]

    def _has(self, stream: StreamId) -> bool:
        horizons = [advert.horizons.get(stream, FIRST) for advert in self.peers.adverts.values()]
        return self.log.histories[stream].horizon >= max(horizons, default=FIRST)

    def _held(self, stream: StreamId) -> int:
        """The largest horizon or asof that anybody has told of a stream."""
        told = [(advert.horizons, advert.asofs) for advert in self.peers.adverts.values()]
        return max([FIRST, *[each.get(stream, FIRST) for pair in told for each in pair]])

    def _loss(self, stream: StreamId, held: int) -> Span | None:
        if stream in self.streams and self.streams[stream].counted:
            return None  # counted rows are one run (decision 0011): in simulation alone
        lo = self.log.ends[stream]
        hi = max(lo, held) + (0 if stream.startswith(PREFIX) else self.settings.skip)
        return Span.declared_lost(stream, lo, hi) if lo < hi else None
