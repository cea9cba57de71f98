"""A window of credit: what one receiver was sent and has not acknowledged yet.

A sender numbers nothing for this. It notes where each message ends in the stream, and the receiver acknowledges a
horizon, which releases every message that ends there or before. The sender decides how many messages, or bytes, may be
in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class CreditWindow:
    """The messages in flight to one receiver, in the order they were sent: where each ends, and how large it is."""

    __slots__ = ("_sent", "bytes")

    def __init__(self, ends: Iterable[int] = ()) -> None:
        self._sent: deque[tuple[int, int]] = deque([(end, 0) for end in ends])
        self.bytes = 0  # in flight

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def first(self) -> int:
        """Where the oldest message ends; 0 if none is in flight."""
        return self._sent[0][0] if self._sent else 0

    def add(self, end: int, size: int = 0) -> None:
        """A message was sent that ends at ``end``, behind all before it."""
        self._sent.append((end, size))
        self.bytes += size

    def release(self, horizon: int) -> int:
        """Everything below ``horizon`` is acknowledged; returns how many messages that are."""
        sent, released = self._sent, 0
        while sent and sent[0][0] <= horizon:
            self.bytes -= sent.popleft()[1]
            released += 1
        return released

    def clear(self) -> None:
        """Nothing is in flight any more: all of it will be sent again."""
        self._sent.clear()
        self.bytes = 0
