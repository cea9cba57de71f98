"""Which replica a client asks for what only the head of a chain does: publish, stage, lease, open a cursor.

The client asks the head of the newest configuration that it knows. While that head is silent the client asks the other
replicas in turn: each of them answers `NotHead` with the configuration that it knows, and the client asks the head that
this one names. What is asked, and how often, is the business of the services' clients (`Publisher`, `SinkClient`,
`Holder`, `Subscriber`).
"""

from __future__ import annotations

from tidings.core.ids import NodeId
from tidings.protocols.replication.chain_config import ChainConfig


class HeadClient:
    """Whom to ask in one region. ``waiting``: the request that is already under way when the first tick comes."""

    __slots__ = ("config", "turn", "useful", "waiting")

    def __init__(self, config: ChainConfig, waiting: int | None = None) -> None:
        self.config = config
        self.turn = 0  # which replica is asked, counted from the head
        self.useful = True  # the replica asked has answered since everything was last sent again
        self.waiting = waiting  # the oldest unanswered request at the last tick

    @property
    def asked(self) -> NodeId:
        """The replica to ask."""
        replicas = self.config.replicas
        return replicas[self.turn % len(replicas)]

    def is_newer(self, config: ChainConfig) -> bool:
        """Whether a configuration of the same region replaces the one known."""
        return config.region == self.config.region and config.epoch > self.config.epoch

    def learn(self, config: ChainConfig) -> bool:
        """Ask the head of a configuration that is not older; returns whether that is another replica than before."""
        if config.region != self.config.region or config.epoch < self.config.epoch:
            return False
        before = self.asked
        self.config, self.turn, self.useful = config, 0, True
        return self.asked != before

    def rotate(self) -> None:
        """The replica asked is silent, or gone: ask the next one, which knows who is head."""
        self.turn += 1

    def restart(self) -> None:
        """Ask the head again."""
        self.turn = 0

    def overdue(self, waiting: int | None) -> bool:
        """At every tick, with the oldest unanswered request: whether to send everything again.

        That is so if the same request was the oldest at the tick before. A replica that has answered nothing since then
        is left for the next one.
        """
        stuck, self.waiting = waiting is not None and waiting == self.waiting, waiting
        if stuck:
            if not self.useful:
                self.rotate()
            self.useful = False
        return stuck
