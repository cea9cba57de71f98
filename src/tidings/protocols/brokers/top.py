"""A replica as a broker: the top of its region's brokers, whose input is the history (Gryphon's publishing site).

All replicas of a region are one cell. Each hears the brokers below and answers their nacks. A stream is sent for the
first time by one of them, chosen by hash over the chain. When the chain changes, and when a broker below comes anew,
they are told how far the streams have come (AckExpected, A2.33, A2.35), so that what a dead replica left unsent is
asked for. What is not acknowledged AET after it was published is told, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

from tidings.core.history import History
from tidings.core.ids import NodeId, RegionId, StreamId, is_hidden
from tidings.core.span import Span
from tidings.protocols.brokers.broker import Broker, BrokerTick, StreamInput
from tidings.protocols.brokers.broker_messages import Acknowledge, BrokerSettings, Nack, Status
from tidings.protocols.kernel import Effect, Effects, Input, Received, SetTimer, Time
from tidings.protocols.replication.chain_config import ChainConfig

MARKS = 4  # moments within AET at which a horizon is noted


class HistoryInput:
    """A history as the input of a broker: nothing below its horizon is unknown. ``None``: there is no such stream."""

    def __init__(self, history: History | None) -> None:
        self.history = history

    def of(self, lo: int, hi: int) -> list[Span]:
        """What is known of [lo, hi)."""
        return self.history.know(lo, hi) if self.history is not None else []

    def gaps(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """The parts of [lo, hi) of which nothing is known."""
        at = max(lo, self.history.horizon) if self.history is not None else lo
        return [(at, hi)] if at < hi else []


class TopBroker(Broker):
    """The broker of one replica. It is idle until a broker below speaks."""

    handles: frozenset[type] = frozenset({Status, Nack, Acknowledge, BrokerTick})

    def __init__(
        self,
        me: NodeId,
        region: RegionId,
        histories: Mapping[StreamId, History],
        config: Callable[[], ChainConfig],
        settings: BrokerSettings,
    ) -> None:
        super().__init__(me, region, 0, (), (), settings)
        self.histories = histories
        self.config = config
        self.ticking = False
        self.marks: dict[StreamId, deque[tuple[Time, int]]] = {}  # horizons, and when they were reached at the latest
        self._mine: set[StreamId] = set()

    def handle(self, now: Time, input: Input) -> Effects:
        out = super().handle(now, input)
        if type(input) is Received and self.downstream and not self.ticking:
            self.ticking = True
            return [*out, SetTimer(self.settings.tick, BrokerTick())]
        return out

    def input(self, stream: StreamId) -> StreamInput:
        return HistoryInput(None if is_hidden(stream) else self.histories.get(stream))

    def horizon(self, stream: StreamId) -> int | None:
        history = None if is_hidden(stream) else self.histories.get(stream)
        return history.horizon if history is not None else None

    def committed(self, now: Time, stream: StreamId, spans: Sequence[Span]) -> list[Effect]:
        """What has entered a history."""
        if not self.wanted(stream):
            return []
        return self.forward(now, stream, spans, spans if self._sends(stream) else ())

    def wanted(self, stream: StreamId) -> bool:
        """Whether somebody below wants a stream."""
        return any([stream in down.outputs for down in self.downstream.values()])

    def reconfigured(self, now: Time) -> list[Effect]:
        """The chain has another configuration: who sends a stream from now on says how far it has come."""
        before = self._mine
        self._mine = {stream for down in self.downstream.values() for stream in down.outputs if self._sends(stream)}
        return [effect for stream in sorted(self._mine - before) for effect in self._expect_all(stream)]

    def _sends(self, stream: StreamId) -> bool:
        """Whether it is for this replica to send a stream for the first time."""
        replicas = self.config().replicas
        return self.me == min(replicas, key=lambda node: crc32(f"{stream} {node}".encode()))

    def _expect_all(self, stream: StreamId) -> list[Effect]:
        horizon = self.horizon(stream)
        return self.expect(stream, horizon) if horizon is not None else []

    def _tick(self, now: Time) -> list[Effect]:
        out = super()._tick(now)
        streams = {stream for down in self.downstream.values() for stream in down.outputs}
        self._mine = {stream for stream in streams if self._sends(stream)}
        self.marks = {stream: marks for stream, marks in self.marks.items() if stream in self._mine}
        for stream in sorted(self._mine):
            out += self._expect_old(now, stream)
        return out

    def _expect_old(self, now: Time, stream: StreamId) -> list[Effect]:
        """What was published before AET is expected to be acknowledged; said again while it is not."""
        horizon = self.horizon(stream)
        if horizon is None:
            return []
        aet, marks = self.settings.aet, self.marks.setdefault(stream, deque())
        if not marks or now - marks[-1][0] >= aet / MARKS:
            marks.append((now, horizon))
        if now - marks[0][0] < aet:
            return []
        _, old = marks.popleft()
        return self.expect(stream, old) if self.acked(stream) < old else []
