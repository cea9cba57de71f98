"""Where a replica stands with each subscription, and with each node that has some.

A subscription is in one of three states. It is *live* when it has been sent everything there is: live subscriptions of
a stream are fed together (live.py). It is *lagging* when it has no credit left, because its application or its
connection is slower than the stream; it is fed from the history when it has consumed something. It is *waiting* when
it has credit, and what it wants is not there yet: a read as of a number, or a range that has not begun.
"""

from __future__ import annotations

from typing import TypeAlias

from tidings.core.filters import Filter
from tidings.core.ids import NEVER, NodeId, StreamId
from tidings.protocols.credit import CreditWindow

Key: TypeAlias = tuple[NodeId, int]
"""A subscription: who has it, and the number it gave it."""


class Position:
    """How far one subscription has been fed."""

    __slots__ = (
        *("asof", "done", "end", "filter", "filter_id", "fixed", "key", "lagging", "live", "needs", "next", "said"),
        *("stream", "unacked"),
    )

    def __init__(
        self, key: Key, stream: StreamId, lo: int, filter: Filter | None = None, end: int = NEVER, fixed: int = 0
    ) -> None:
        self.key = key
        self.stream = stream
        self.end = end  # first number that is not wanted
        self.fixed = fixed  # rows are wanted as of this number; 0: as they are when sent
        self.next = lo  # first number not looked at; of a live one: when it became live
        self.said = lo  # first number not told of: what lies between has no row that passes the filter
        self.asof = 0  # as of which that is so; 0: as of publication
        self.done = lo  # first number not consumed
        self.filter = filter
        self.filter_id = -1  # in the index of the stream's filters
        self.needs = 0  # at an edge: the version of its interests from which on spans count
        self.live = False
        self.lagging = False  # it has been without credit since it was live
        self.unacked = CreditWindow()

    @property
    def open_ended(self) -> bool:
        """Whether it wants everything that comes, as it comes: only such a subscription can be live."""
        return self.end == NEVER and not self.fixed

    def sent(self, hi: int, size: int) -> None:
        """Everything below ``hi`` has been told of, in a message of so many bytes."""
        self.said = hi
        self.asof = 0
        self.unacked.add(hi, size)

    def consumed(self, horizon: int) -> None:
        """Everything below ``horizon`` has arrived."""
        self.done = horizon
        self.unacked.release(horizon)


class FedNode:
    """A node that has subscriptions. It is told that this replica is alive once for all of them."""

    __slots__ = ("idle", "positions", "quiet")

    def __init__(self) -> None:
        self.positions: dict[int, Position] = {}
        self.quiet = 0  # beats since its last message
        self.idle = 0  # those of them for which it owes an answer

    @property
    def owes(self) -> bool:
        """Whether it was sent something that it has not consumed."""
        return any([position.unacked for position in self.positions.values()])

    def heard(self) -> None:
        """It is alive."""
        self.quiet = self.idle = 0
