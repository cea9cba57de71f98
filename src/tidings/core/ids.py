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


def is_internal(stream: StreamId) -> bool:
    """Whether a stream is a region's own bookkeeping, which nobody outside its chain sees."""
    return stream.startswith("_")
