"""Names and numbers that everything else is built from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

StreamId: TypeAlias = str
"""Identifies a stream for ever: its name and, if it was created at run time, a mark that no namesake ever has."""
StreamName: TypeAlias = str
"""What people call a stream: at any time it means at most one stream in a region."""
RegionId: TypeAlias = str
NodeId: TypeAlias = str
Seq: TypeAlias = int
"""A sequence number in a stream; the first is 1. All ranges are half-open: [lo, hi)."""

FIRST: Seq = 1
NEVER: Seq = (1 << 63) - 1
"""The dead_at of a row that nothing has collected."""


MARK = "~"
"""Between the name of a stream and the mark of its id."""


def stream_name(stream: StreamId) -> StreamName:
    """The name of a stream."""
    return stream.partition(MARK)[0]


RECEIPTS = "_receipts/"
"""Before a region's name: the stream of its delivery receipts, the one kind of internal stream that can be read."""


TICKS = "_ticks/"
"""Before a region's name: the stream of what it promises about ticks, which those who merge streams follow."""
MERGES = "_merges/"
"""Before a region's name: the stream of what its clients merge. Both leave their region."""


def is_internal(stream: StreamId) -> bool:
    """Whether a stream is a region's own bookkeeping."""
    return stream.startswith("_")


def is_hidden(stream: StreamId) -> bool:
    """Whether a stream is one that nobody sees but the chains of the regions, and those who merge."""
    return stream.startswith("_") and not stream.startswith(RECEIPTS)


def can_be_followed(stream: StreamId) -> bool:
    """Whether a subscription to a stream may be asked for."""
    return not is_hidden(stream) or stream.startswith(TICKS)


def are_natural(numbers: Iterable[int]) -> bool:
    """Whether all can be sequence numbers, epochs, lsns or nonces: not negative, and columns of 64 bits hold them."""
    return all([0 <= number <= NEVER for number in numbers])
