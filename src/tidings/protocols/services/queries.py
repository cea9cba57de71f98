"""Questions that every replica answers from what is committed there: the streams, and what became of a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidings.core.ids import FIRST, is_hidden
from tidings.protocols.brokers.top import TopBroker
from tidings.protocols.kernel import NOTHING, Effects, Input, Message, Received, Send, Time
from tidings.protocols.regions.interregion import InterRegion
from tidings.protocols.replication.chain import Chain
from tidings.protocols.services.catalog import Because, Describe, Description, StreamState, Why
from tidings.protocols.services.streams import StreamTable

if TYPE_CHECKING:
    from tidings.protocols.nodes.replica import ReplicaSettings


class Queries:
    """Answers `Describe` and `Why`."""

    handles: frozenset[type[Message]] = frozenset({Describe, Why})

    def __init__(
        self, table: StreamTable, chain: Chain, inter_region: InterRegion, broker: TopBroker, settings: ReplicaSettings
    ) -> None:
        self.table = table
        self.log = table.log
        self.chain = chain
        self.inter_region = inter_region
        self.broker = broker
        self.settings = settings

    def handle(self, now: Time, input: Input) -> Effects:
        """Answer one question."""
        assert isinstance(input, Received)
        match input.message:
            case Describe(nonce):
                return [Send(input.src, self._describe(now, nonce))]
            case Why() as why:
                return [Send(input.src, self._because(why))]
        return NOTHING

    def _describe(self, now: Time, nonce: int) -> Description:
        peers = self.inter_region.peers
        chains = (self.chain.membership, *[peers[name] for name in sorted(peers)])
        told = [*self.table.streams.values(), self.table.receipts]
        known = {each.id: self.log.histories[each.id] for each in told if each.id in self.log.histories}
        states = {id: StreamState(h.horizon, h.live, h.collected, h.low, h.floor, h.lost) for id, h in known.items()}
        return Description(
            nonce,
            self.table.region,
            chains,
            tuple(told),
            states,
            self.settings.receipts.ask,
            tuple(self.table.leases.states()),
            tuple(self.table.catalog.conflicts),
            self.settings.fabric,
            self.broker.edges(now),
        )

    def _because(self, why: Why) -> Because:
        history = self.log.histories.get(why.stream)
        if history is None or is_hidden(why.stream):
            return Because(why.stream, why.seq, "unknown stream")
        if why.seq >= history.horizon:
            return Because(why.stream, why.seq, "not published yet")
        if why.seq < FIRST:
            return Because(why.stream, why.seq, "never a number")
        killer = history.killer(why.seq)
        if killer is None:
            return Because(why.stream, why.seq, "row")
        if killer == "lost":
            return Because(why.stream, why.seq, "lost")
        return Because(why.stream, why.seq, "collected", None if killer == "gone" else killer)
