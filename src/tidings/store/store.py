"""The durable log of a node: `Persist` in, `Persisted` out, once it is on the disk.

`write` is called in the event loop and only queues. A commit thread takes the queue, encodes it, writes it in one
transaction, syncs, and reports the last token covered. Then it takes what has been queued meanwhile. There is no timer:
the slower the disk, the larger the groups.

Guarantees. After a crash or a power cut `open` returns what was written, in order, up to some entry at or after the
last one reported; or it raises, if the disk has changed what it was given. A group is on the disk as a whole or not at
all. While the disk is full nothing is reported and nothing lost: the group is tried again until there is room.

The queue has a bound: `write` says whether it is exceeded, `over` whether it still is. The host then stops reading from
publishers. What a machine persists is never refused, because its own windows bound that.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from tidings.core.errors import BadInput
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.log import Checkpoint, CutBack, Installed, Logged
from tidings.store import files
from tidings.store.codec import Entry, encode, size_of
from tidings.store.disk import DiskChange, LogDisk, Purge
from tidings.store.errors import StoreError, StoreFailed, StoreFull

MAP_BYTES = 1 << 30  # ours: address space, not disk; enough for the smallest checkpoint interval several times over
MAX_MAP_BYTES = 64 << 30  # ours: beyond this a replica is better split
QUEUE_BYTES = 64 << 20  # ours: a second of a slow disk
GROUP_BYTES = 32 << 20  # ours, because LMDB keeps a transaction's pages in memory, and latency goes with it
FULL_RETRY = 0.25  # seconds between tries while there is no room; ours
MEMBERSHIPS = 64  # decisions a configuration service keeps on disk; ours, only the last one counts

Durability: TypeAlias = Literal["durable", "memory"]
Condition: TypeAlias = Literal["open", "full", "failed", "closed"]


class Stats(msgspec.Struct):
    """Counters for the host's metrics."""

    entries: int = 0  # durable
    bytes: int = 0  # of these, encoded
    groups: int = 0  # transactions that carried any
    largest_group: int = 0  # entries
    over: int = 0  # writes that found the queue over its bound
    most_queued: int = 0  # bytes
    full: int = 0  # times that there was no room
    checkpoints: int = 0  # finished
    abandoned: int = 0  # checkpoints given up because the log changed under them


class Places:
    """Where the records that count lie in the log: numbers of entries, by lsn. Follows the entries in their order."""

    def __init__(self) -> None:
        self.first = 0  # lsn
        self.numbers: list[int] = []
        self.breaks = 0  # times that the log was cut back or replaced
        self.installing = False  # a snapshot has begun to arrive and is not complete

    def follow(self, entry: Entry, number: int) -> None:
        match entry:
            case Logged(record):
                if not self.numbers:
                    self.first = record.lsn
                assert record.lsn == self.first + len(self.numbers), f"record {record.lsn} breaks the order of the log"
                self.numbers.append(number)
                self.installing = False
            case CutBack(lsn):
                del self.numbers[max(lsn + 1 - self.first, 0) :]
                self.breaks += 1
                self.installing = False
            case Installed(_, _, _, last):
                self.breaks += 1
                self.installing = not last
                if last:
                    self.numbers.clear()

    def purge(self, lsn: int, last: int) -> Purge:
        """Forget records up to ``lsn``: of the entries up to ``last`` only later records are kept."""
        if self.numbers:
            surplus = min(max(lsn + 1 - self.first, 0), len(self.numbers))
            del self.numbers[:surplus]
            self.first += surplus
        return Purge(last, _runs(self.numbers))


class Store:
    """The log of one node. Everything but the commit thread's own work is called in the event loop."""

    def __init__(self, disk: LogDisk | None, queue_bytes: int) -> None:
        self.entries: list[Entry] = []  # what was found at the opening; drop it when the machine has it
        self.stats = Stats()
        self.condition: Condition = "open"
        self.error: StoreError | None = None  # why it is full or failed
        self.queue_bytes = queue_bytes
        self.queued = 0  # bytes waiting or being written
        self.written_bytes = 0  # in the log since the opening, and what was found then: estimates
        self.checkpoint_bytes = 0  # size of the last checkpoint, roughly
        self.places = Places()
        self._disk = disk
        self._last = 0
        self._purged = 0
        self._generation = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._persisted: Callable[[int], None] = lambda token: None
        self._changed: Callable[[Condition, StoreError | None], None] = lambda condition, error: None
        self._waiting: deque[tuple[DiskChange, int | None, int]] = deque()  # change, token, bytes
        self._answer: int | None = None  # memory: the token to report when the turn is settled
        self._wake = threading.Condition()
        self._closing: Literal["no", "flush", "drop"] = "no"
        self._thread: threading.Thread | None = None

    # --- opening and closing ------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        durability: Durability = "durable",
        node: str = "",
        map_size: int = MAP_BYTES,
        max_map_size: int = MAX_MAP_BYTES,
        queue_bytes: int = QUEUE_BYTES,
    ) -> Store:
        """Open a store, or make a new one, and read all of it. What is read is durable, whichever process wrote it.

        Raises `StoreDamaged`, `StoreTooNew`, `StoreBusy`, `StoreForeign` or `StoreFailed`.
        """
        if durability == "memory":
            return cls(None, queue_bytes)
        disk = LogDisk(Path(path), node, map_size, max_map_size)
        store = cls(disk, queue_bytes)
        try:
            for entry, number, size in disk.read():
                store.entries.append(entry)
                if number:
                    store.places.follow(entry, number)
                    store.written_bytes += size
                else:
                    store.checkpoint_bytes += size
        except BaseException:
            disk.close()
            raise
        store._last, store._purged = disk.state.last, disk.state.purged
        store._generation = disk.newest_generation
        return store

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        persisted: Callable[[int], None],
        changed: Callable[[Condition, StoreError | None], None] | None = None,
    ) -> None:
        """Begin to commit. Both are called in the loop: ``persisted`` with the last token that has become durable,

        ``changed`` when the store is full, has room again, or has failed.
        """
        assert self._loop is None, "a store is started once"
        self._loop = loop
        self._persisted = persisted
        self._changed = changed or self._changed
        if self._disk is not None:
            self._thread = threading.Thread(target=self._run, name="tidings-store", daemon=True)
            self._thread.start()

    def close(self, *, flush: bool = True) -> None:
        """Write what is queued (unless the disk is full, or ``flush`` is false), and let go of the files."""
        if self.condition == "closed":
            return
        if self._thread is not None:
            with self._wake:
                self._closing = "flush" if flush else "drop"
                self._wake.notify()
            self._thread.join()
        if self._disk is not None:
            self._disk.close()
        self.condition = "closed"

    @staticmethod
    def quarantine(path: str | Path) -> Path | None:
        """Put a damaged store aside, for people to look at; where it is now. The node then starts empty.

        A replica that starts empty must not say it is the one that had the log: it comes back under a new name.
        """
        return files.quarantine(Path(path))

    @staticmethod
    def discard(path: str | Path) -> None:
        """Remove a store with all it holds."""
        files.discard(Path(path))

    # --- what the host calls ------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """More is queued than the bound: hold publishers back until it is not."""
        return self.queued > self.queue_bytes

    @property
    def durable(self) -> bool:
        return self._disk is not None

    @property
    def used_bytes(self) -> int:
        """Bytes of the file that have ever been used."""
        return 0 if self._disk is None else self._disk.used_bytes

    @property
    def max_bytes(self) -> int:
        """What the file may grow to."""
        return MAX_MAP_BYTES if self._disk is None else self._disk.max_map_size

    def write(self, record: Entry, token: int) -> bool:
        """Queue the next entry; ``persisted`` follows. False: the queue is over its bound."""
        if self._disk is None:
            self._answer = token
            return True
        self._last += 1
        purge = None
        if isinstance(record, ChainConfig):  # each one replaces those before it
            if self._last - self._purged >= 2 * MEMBERSHIPS:
                self._purged = self._last - MEMBERSHIPS
                purge = Purge(self._purged, ())
        else:
            self.places.follow(record, self._last)
        size = size_of(record)
        self.written_bytes += size
        return self._queue(DiskChange(record, self._last, 0, purge), token, size)

    def settle(self) -> None:
        """No more will be written in this turn of the loop: without a disk ``persisted`` is called now, once."""
        token = self._answer
        if token is not None:
            self._answer = None
            if self.condition == "open":
                self._persisted(token)

    def begin_checkpoint(self) -> int:
        """The number of a new checkpoint; pieces of an older one that is not finished will not count."""
        self._generation += 1
        return self._generation

    def write_piece(self, generation: int, piece: Checkpoint) -> bool:
        """Queue a piece. The last one replaces, in one transaction, all that came before it but later records."""
        assert generation == self._generation, "pieces of one checkpoint at a time"
        if self._disk is None:
            return True
        purge = None
        if piece.last:
            self._purged = self._last
            purge = self.places.purge(piece.lsn, self._last)
        return self._queue(DiskChange(piece, piece.index, generation, purge), None, size_of(piece))

    def resize(self, max_map_size: int) -> None:
        """Let the file grow to another bound; a full store goes on."""
        if self._disk is not None:
            self._disk.max_map_size = max_map_size

    def on_sync(self, hook: Callable[[], None] | None) -> None:
        """Have a function called, in the commit thread, right after each completed sync: a test's view of the disk."""
        if self._disk is not None:
            self._disk.on_sync = hook

    # --- in the event loop --------------------------------------------------------------------------

    def _queue(self, change: DiskChange, token: int | None, size: int) -> bool:
        if self.condition in ("failed", "closed"):
            return False  # it would wait for ever; nothing of it is acknowledged
        with self._wake:
            idle = not self._waiting
            self._waiting.append((change, token, size))
            self.queued += size
            if idle:
                self._wake.notify()
        stats = self.stats
        if self.queued > stats.most_queued:
            stats.most_queued = self.queued
        if self.queued > self.queue_bytes:
            stats.over += 1
            return False
        return True

    def _enter(self, condition: Condition, error: StoreError | None) -> None:
        if self.condition not in ("closed", condition):
            self.condition, self.error = condition, error
            self._changed(condition, error)

    # --- in the commit thread -----------------------------------------------------------------------

    def _tell(self, what: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self._closing = "drop"

    def _run(self) -> None:
        disk = self._disk
        assert disk is not None
        try:
            while (group := self._take(disk)) is not None:
                if not self._commit(disk, group):
                    break  # what follows must not be written either: there would be a hole
        except StoreError as error:
            self._tell(self._enter, "failed", error)
        except BadInput as error:
            self._tell(self._enter, "failed", StoreFailed(f"{disk.path}: an entry cannot be written: {error}"))
        except Exception as error:  # whatever it is, nothing more is acknowledged, and the host must know
            self._tell(self._enter, "failed", StoreFailed(f"{disk.path}: {error!r}"))

    def _take(self, disk: LogDisk) -> list[tuple[DiskChange, int | None, int]] | None:
        """What is queued, up to the size of a group; nothing while there is garbage to see to; None at the end."""
        with self._wake:
            while not self._waiting and self._closing == "no" and not disk.garbage:
                self._wake.wait()
            if self._closing == "drop" or (self._closing == "flush" and not self._waiting):
                return None
            group: list[tuple[DiskChange, int | None, int]] = []
            size = 0
            while self._waiting and size < GROUP_BYTES:
                group.append(self._waiting.popleft())
                size += group[-1][2]
        return group

    def _commit(self, disk: LogDisk, group: list[tuple[DiskChange, int | None, int]]) -> bool:
        """Make a group durable and report it; False if the store is closed before that."""
        values = [(change, encode(change.entry, change.number)) for change, _, _ in group]
        if not self._until_there_is_room(disk, values):
            return False
        if not group:
            return True
        token = max([token for _, token, _ in group if token is not None], default=None)
        with self._wake:
            self.queued -= sum([size for _, _, size in group])
        stats = self.stats
        stats.entries += len(group)
        stats.bytes += sum([len(value) for _, value in values])
        stats.groups += 1
        stats.largest_group = max(stats.largest_group, len(group))
        stats.checkpoints += len([True for change, _, _ in group if change.generation and change.purge is not None])
        if token is not None:
            self._tell(self._persisted, token)
        return True

    def _until_there_is_room(self, disk: LogDisk, values: list[tuple[DiskChange, bytes]]) -> bool:
        """Commit; False if the store is closed before there is room."""
        full = False
        while True:
            try:
                disk.commit(values)
                break
            except StoreFull as error:
                if not full:
                    full = True
                    self.stats.full += 1
                    self._tell(self._enter, "full", error)
                if self._paused():
                    return False
        if full:
            self._tell(self._enter, "open", None)
        return True

    def _paused(self) -> bool:
        """Wait before the next try; whether the store is to be closed instead."""
        with self._wake:
            self._wake.wait_for(lambda: self._closing != "no", FULL_RETRY)
            return self._closing != "no"


def _runs(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as runs, first and last of each."""
    if not numbers:
        return ()
    every = np.array(numbers)
    gaps = np.flatnonzero(np.diff(every) != 1)
    firsts, lasts = every[np.append(0, gaps + 1)], every[np.append(gaps, -1)]
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))
