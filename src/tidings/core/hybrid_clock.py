"""Ticks order streams against each other: a hybrid clock per stream, its low bits the stream's number (E13).

A tick is (microseconds << STREAM_BITS) | stream number, so ticks of different streams are never equal and all fit into
a signed 64-bit column. The clock follows the time that it is given while that moves forward. When that time stands
still or goes back, the clock adds one microsecond per tick. Hence, whatever the clock skew: ticks of one stream ascend;
``next`` exceeds everything observed; after ``promise`` has returned T, every later tick exceeds T. Skew can only make a
clock run ahead of true time, which delays a total order across streams until the slowest stream has caught up.

A promise binds the next head too: it replays the promise with ``observe`` before its first tick.
"""

from __future__ import annotations

from typing import TypeAlias

from tidings.core.errors import BadInput

Tick: TypeAlias = int

STREAM_BITS = 11  # ours, because it leaves 52 bits of microseconds: an int64 lasts to the year 2112, with 2048 streams
MAX_STREAMS = 1 << STREAM_BITS


class HybridClock:
    """The clock of one stream, held by its owner."""

    __slots__ = ("_micros", "number")

    def __init__(self, number: int, last: Tick = 0) -> None:
        """Number of the stream, and the largest tick or promise that is already out."""
        if not 0 <= number < MAX_STREAMS:
            raise BadInput(f"a stream's number for ticks is in [0, {MAX_STREAMS}), not {number}")
        self.number = number
        self._micros = last >> STREAM_BITS

    def next(self, now: float) -> Tick:
        """A tick above every earlier tick, promise and observed tick. ``now`` in seconds."""
        self._micros = max(int(now * 1e6), self._micros + 1)
        return self._micros << STREAM_BITS | self.number

    def observe(self, tick: Tick) -> None:
        """Stay above a tick seen elsewhere."""
        self._micros = max(self._micros, tick >> STREAM_BITS)

    def promise(self, now: float) -> Tick:
        """The largest T that may be promised at this time: nothing later will be at or below it."""
        self._micros = max(int(now * 1e6), self._micros)
        return self._micros << STREAM_BITS | self.number


def tick_at(time: float) -> Tick:
    """The smallest tick that stands for a time in seconds."""
    return int(time * 1e6) << STREAM_BITS


def tick_time(tick: Tick) -> float:
    """The time in seconds that a tick stands for."""
    return (tick >> STREAM_BITS) / 1e6
