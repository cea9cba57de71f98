"""Best effort, to compare with (GR1, GR2): the same edge without anything that guarantees delivery.

The paper's best effort accumulates no knowledge, expresses no curiosity, logs nothing and sends on only messages. Here
a `BestEffortSubend` hands over what comes as it comes: it keeps nothing, notices no gap, asks for nothing and
acknowledges nothing, so no broker above keeps account of it either. p1 keeps its log in memory. Everything else is the
same on both sides: filters, the feeds to subscribers with their credit, connections, statuses. So what the two differ
by is the guarantee between p1 and the edge, and the log.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from tidings.core.ids import Seq, StreamId
from tidings.core.rows import NO_ROWS
from tidings.core.span import Span
from tidings.protocols.brokers.broker import label
from tidings.protocols.brokers.broker_messages import Brokered
from tidings.protocols.brokers.subend import Subend
from tidings.protocols.kernel import Effect, Message, Time
from tidings.protocols.nodes.edge import Edge
from tidings.server.broker_process import BrokerProcess, EdgeRecipe, RelayRecipe
from tidings.server.topology import BrokerPlace


class BestEffortSubend(Subend):
    """The end of a stream at an edge that takes what comes; what does not come is lost."""

    def accept(self, now: Time, told: Brokered) -> list[Span]:
        mine = label(self.life, 0).text
        out: list[Span] = []
        for span in told.spans:
            if span.lens.text != mine or span.hi <= self.at:
                continue
            if span.lo > self.at:  # lost, and nobody asks
                out.append(Span(self.stream, self.at, span.lo, self.at, NO_ROWS, span.lens))
                self.at = span.lo
            out.append(span.slice(self.at, span.hi))
            self.at = span.hi
        return out

    def expected(self, now: Time, horizon: Seq) -> list[Message]:
        return []

    def due(self, now: Time) -> list[Message]:
        return []


class BestEffortEdge(Edge):
    """An edge whose streams end so."""

    def _begin(self, now: Time, stream: StreamId, at: int) -> list[Effect]:
        out = super()._begin(now, stream, at)
        exact = self.subends[stream]
        self.subends[stream] = BestEffortSubend(stream, self.life, exact.at, exact.version, self.settings.broker)
        return out


class BestEffortRecipe(EdgeRecipe, frozen=True, tag="best-effort"):
    """What such an edge is made of."""

    def make(self, entries: Sequence[Any] = ()) -> Edge:
        rng = random.Random(self.seed)
        return BestEffortEdge(self.node, self.region, self.upstream, self.replicas, self.life, self.settings, rng)


class BestEffortBroker(BrokerProcess):
    """The process of such an edge."""

    def _recipe(self, place: BrokerPlace) -> RelayRecipe | EdgeRecipe:
        made = super()._recipe(place)
        return BestEffortRecipe(**msgspec.structs.asdict(made))
