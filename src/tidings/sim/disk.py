"""Stable storage of one simulated node: an append-only log with group commit.

A write goes into a buffer. A sync begins as soon as the previous one has ended, covers everything written up to and
including that instant, and takes a drawn time. Then those records are durable and the node hears `Persisted` with the
last token covered, once per sync. There is no timer: the slower the disk, the larger the groups.

A crash loses what no finished sync covered. With ``torn`` a prefix of it, drawn by the disk's own generator, survives,
as a write that reached the platter before its acknowledgement does. A full disk begins no sync until there is room;
nothing is refused or dropped, and writers get no answer. A slow disk multiplies the time of each sync, as long as it
is slow.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidings.sim.queue import Wheel


class DiskModel(msgspec.Struct, frozen=True, kw_only=True):
    """How long a sync takes, and what a crash may leave behind."""

    sync: float = 0.0003  # seconds; an fdatasync on the machines this was built on
    spread: float = 0.0  # seconds: mean of an exponential that is added
    torn: bool = False  # a prefix of what was not synced may survive a crash


class SimDisk:
    """A log on a disk; the ends of its syncs come back to it through the queue."""

    __slots__ = (
        "_answer",
        "_buffer",
        "_covered",
        "_due",
        "_ended",
        "_queue",
        "_rng",
        "_round",
        "_stable",
        "_started",
        "full",
        "model",
        "slow",
    )

    def __init__(
        self,
        model: DiskModel,
        rng: random.Random,
        queue: Wheel,
        target: Callable[[Callable[[float, Any], None]], object],
        answer: Callable[[float, int, Sequence[Any]], None],
    ) -> None:
        self.model = model
        self.slow = 1.0  # factor on the time of a sync
        self.full = False
        self._rng = rng
        self._queue = queue
        self._ended = target(self.end)  # what stands for `end` in the queue
        self._answer = answer  # called with (now, last token, records) when records have become durable
        self._stable: list[Any] = []
        self._buffer: list[tuple[Any, int]] = []
        self._covered = 0  # of the buffer, by the sync under way
        self._started = -1.0  # when it began; negative: none is under way
        self._due = 0.0  # when it ends
        self._round = 0  # what makes the end of a sync stale

    def write(self, now: float, record: Any, token: int) -> None:
        """Append a record; `Persisted` follows once it is durable."""
        self._buffer.append((record, token))
        if self._started == now:
            self._covered += 1
        elif self._started < 0.0:
            self._begin(now)

    def end(self, now: float, sync: int) -> None:
        """A sync has ended: its records are durable, and the next one begins."""
        if sync == self._round:
            done = self._buffer[: self._covered]
            del self._buffer[: self._covered]
            records = [record for record, _ in done]
            self._stable += records
            self._begin(now)
            self._answer(now, done[-1][1], records)

    def crash(self, *, lose_all: bool = False) -> list[Any]:
        """Lose what is not durable (or everything), and whatever sync is under way; says what survived unsynced."""
        count = self._rng.randint(0, len(self._buffer)) if self.model.torn and self._buffer else 0
        survivors = [record for record, _ in self._buffer[:count]]
        self._stable += survivors
        self._buffer.clear()
        self._covered, self._started = 0, -1.0
        self._round += 1
        if lose_all:
            self._stable.clear()
        return survivors

    def put_back(self, count: int) -> list[Any]:
        """Of what is durable keep the oldest so many records, as a copy of the disk would have them; says which."""
        assert not self._buffer, "put back while its node is down"
        del self._stable[count:]
        return list(self._stable)

    def set_full(self, now: float, full: bool) -> None:
        """No sync begins while the disk is full."""
        self.full = full
        if self._started < 0.0:
            self._begin(now)

    def set_slow(self, now: float, factor: float) -> None:
        """From now on a sync takes so many times as long; one under way that can end earlier does."""
        due = now + (self._due - now) * factor / self.slow
        self.slow = factor
        if self._started >= 0.0 and due < self._due:
            self._due = due
            self._queue.push(due, self._ended, self._round, 0)

    def durable(self) -> list[Any]:
        """The records that a restart finds, in the order they were written."""
        return list(self._stable)

    @property
    def waiting(self) -> int:
        """Records written and not durable yet."""
        return len(self._buffer)

    def _begin(self, now: float) -> None:
        self._round += 1
        self._covered = len(self._buffer)
        if self.full or not self._buffer:
            self._covered, self._started = 0, -1.0
            return
        self._started = now
        seconds = self.model.sync * self.slow
        if self.model.spread:
            seconds += self.slow * self._rng.expovariate(1.0 / self.model.spread)
        self._due = now + seconds
        self._queue.push(self._due, self._ended, self._round, 0)
