"""A relay: a broker without subscribers and without stable storage, between a region's replicas and its edges."""

from __future__ import annotations

from collections.abc import Sequence

from tidings.core.ids import NodeId, RegionId
from tidings.protocols.brokers.broker import Broker
from tidings.protocols.brokers.broker_messages import BrokerSettings, CellId
from tidings.protocols.brokers.subscriber import Learn, Lost
from tidings.protocols.kernel import NOTHING, Effects, Input, Time, Value


class RelaySettings(Value, frozen=True, gc=False):
    """All settings of a relay."""

    broker: BrokerSettings = BrokerSettings()


class Relay:
    """One relay. ``upstream`` are the brokers of the cell above, ``peers`` the others of its own.

    ``life`` is larger than in any earlier life of this name.
    """

    def __init__(
        self,
        me: NodeId,
        region: RegionId,
        cell: CellId,
        upstream: Sequence[NodeId],
        peers: Sequence[NodeId],
        life: int,
        settings: RelaySettings,
    ) -> None:
        self.me = me
        self.region = region
        self.broker = Broker(me, cell, life, upstream, peers, settings.broker)

    def start(self, now: Time) -> Effects:
        return self.broker.start(now)

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is Lost:
            return self.broker.lost(now, input.node)
        if type(input) is Learn:  # only a relay below the replicas is told
            self.broker.upstream = input.membership.replicas
            return NOTHING
        return self.broker.handle(now, input)

    def check(self) -> None:
        self.broker.check()
