"""Names and numbers that everything else is built from."""

from __future__ import annotations

from typing import TypeAlias

StreamId: TypeAlias = str
RegionId: TypeAlias = str
NodeId: TypeAlias = str
Seq: TypeAlias = int
"""A sequence number in a stream; the first is 1. All ranges are half-open: [lo, hi)."""

FIRST: Seq = 1
NEVER: Seq = (1 << 63) - 1
"""The dead_at of a row that nothing has collected."""


RECEIPTS = "_receipts/"
"""Before a region's name: the stream of its delivery receipts, the one kind of internal stream that can be read."""


def is_internal(stream: StreamId) -> bool:
    """Whether a stream is a region's own bookkeeping, which does not leave it."""
    return stream.startswith("_")


def is_hidden(stream: StreamId) -> bool:
    """Whether a stream is one that nobody outside the region's chain sees."""
    return stream.startswith("_") and not stream.startswith(RECEIPTS)
