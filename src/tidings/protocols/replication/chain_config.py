"""The configuration of a region's chain: its epoch, and its replicas in order. The configuration service decides it."""

from __future__ import annotations

from tidings.core.ids import NEVER, NodeId, RegionId
from tidings.protocols.kernel import Value


class ChainConfig(Value, frozen=True, gc=False):
    """One configuration of a region's chain. A larger epoch replaces a smaller one, everywhere."""

    region: RegionId
    epoch: int
    replicas: tuple[NodeId, ...]  # head first, tail last
    joining: NodeId | None = None  # catches up behind the tail, not yet a member

    def valid(self) -> bool:
        members = self.replicas
        return len(members) > 0 and len(set(members)) == len(members) and 0 <= self.epoch <= NEVER

    @property
    def head(self) -> NodeId:
        return self.replicas[0]

    @property
    def tail(self) -> NodeId:
        return self.replicas[-1]

    def predecessor(self, node: NodeId) -> NodeId | None:
        """Whom a replica (or the joining one) receives records from."""
        if node == self.joining:
            return self.tail
        at = self.replicas.index(node) if node in self.replicas else 0
        return self.replicas[at - 1] if at > 0 else None

    def successor(self, node: NodeId) -> NodeId | None:
        """Whom a replica forwards records to."""
        if node not in self.replicas:
            return None
        at = self.replicas.index(node) + 1
        return self.replicas[at] if at < len(self.replicas) else self.joining
