"""Temporary stand-in: the process side is built against this constructor; the machine takes its place."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tidings.core.ids import NodeId, RegionId
from tidings.protocols.brokers.broker_messages import BrokerSettings
from tidings.protocols.kernel import NOTHING, Effects, Input, Time, Value


class EdgeSettings(Value, frozen=True, gc=False):
    """All settings of an edge."""

    broker: BrokerSettings = BrokerSettings()


class Edge:
    """Does nothing."""

    def __init__(
        self,
        me: NodeId,
        region: RegionId,
        upstream: Sequence[NodeId],
        replicas: Sequence[NodeId],
        life: int,
        settings: EdgeSettings,
        rng: random.Random,
    ) -> None:
        self.me = me

    def start(self, now: Time) -> Effects:
        return NOTHING

    def handle(self, now: Time, input: Input) -> Effects:
        return NOTHING

    def check(self) -> None:
        """It has no state."""
