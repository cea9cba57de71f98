"""The durable log in LMDB, as the commit thread sees it: groups of changes, one transaction and one sync each.

Keys, in their order: the `State`; the pieces of checkpoints, by generation and index; the entries of the log, by
number. The state says which of them count. It changes in the same transaction, so at every instant the file holds a
whole group or nothing of it, and a missing entry is detected.

Entries that no longer count are *garbage*: ranges of keys that are deleted a slice at a time together with later
groups (and when idle). Deleting a hundred thousand entries at once would delay every acknowledgement behind it. Deleted
pages are used again, so under a steady load the file stops growing.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from struct import Struct as Packer

import lmdb
import msgspec

from tidings.protocols.replication.log import Checkpoint
from tidings.store import files
from tidings.store.codec import Entry, State, decode, encode
from tidings.store.errors import StoreDamaged, StoreError, StoreFailed, StoreForeign, StoreFull, StoreTooNew

SLICE = 512  # ours: garbage entries deleted with a group, or twice what it writes: about a millisecond
UNEXPLAINED = 8  # ours: input/output errors in a row, with room on the disk, until they are taken for what they say

STATE_KEY = b"\0"
_LOG_KEY = Packer(">cQ")
_PIECE_KEY = Packer(">cQI")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

IMAGES = "TIDINGS_SYNC_IMAGES"
"""Set in the environment of power-cut tests: stores keep an image of themselves as of their last completed sync."""


def log_key(number: int) -> bytes:
    return _LOG_KEY.pack(b"l", number)


def piece_key(generation: int, index: int) -> bytes:
    return _PIECE_KEY.pack(b"c", generation, index)


class Purge(msgspec.Struct, frozen=True, gc=False):
    """From here on, of the entries up to ``purged`` only the runs ``kept`` count."""

    purged: int
    kept: tuple[tuple[int, int], ...]


class DiskChange(msgspec.Struct, frozen=True, gc=False):
    """One step of a group: an entry of the log, or (``generation`` > 0) a piece of a checkpoint."""

    entry: Entry
    number: int  # in the log, or the index of the piece
    generation: int = 0
    purge: Purge | None = None


class LogDisk:
    """One open environment."""

    def __init__(self, path: Path, node: str, map_size: int, max_map_size: int) -> None:
        self.path = path
        self.max_map_size = max_map_size
        self.on_sync: Callable[[], None] | None = None  # called right after each completed sync; for tests
        self.sync_seconds = 0.0
        self.deleted = 0  # garbage entries
        self._unexplained = 0  # input/output errors in a row that no lack of room explains
        if not path.exists():
            files.create(path, min(map_size, max_map_size), [(STATE_KEY, encode(State(node), 0))])
        self._lock = files.lock(path)
        try:
            files.look_over(path)
            at_least = (path / files.DATA).stat().st_size
            self._environment = files.open_environment(path, max(min(map_size, max_map_size), at_least))
        except lmdb.Error as error:
            os.close(self._lock)
            raise StoreDamaged(f"{path} does not open: {error}") from error
        except BaseException:
            os.close(self._lock)
            raise
        try:
            if os.environ.get(IMAGES):
                self.on_sync = partial(files.keep_image, path)
                if not files.image_of(path).exists():
                    self.on_sync()  # it was synced when it was made
            self._make_durable()
            self.state = self._read_state(node)
        except BaseException:
            self.close()
            raise
        self._page_size = int(self._environment.stat()["psize"])
        self.used_bytes = 0  # of the file, ever; freed pages among them are used again first
        self.map_size = 0
        self._measure()  # kept as numbers, because another thread may ask while the map moves
        self.newest_generation = self._newest_generation()
        self.garbage = self._garbage_of(self.state)

    def _measure(self) -> None:
        info = self._environment.info()
        self.used_bytes = (int(info["last_pgno"]) + 1) * self._page_size
        self.map_size = int(info["map_size"])

    def close(self) -> None:
        """Let go of the file and the lock."""
        self._environment.close()
        os.close(self._lock)

    def _make_durable(self) -> None:
        """Sync what a process wrote and did not sync before it died: readers take it to be on the disk."""
        try:
            self._sync()
            files.sync_directory(self.path.parent)
        except (lmdb.Error, OSError) as error:
            raise StoreFailed(f"{self.path}: sync failed: {error}; what it holds may not be on the disk") from error

    # --- reading ------------------------------------------------------------------------------------

    def _read_state(self, node: str) -> State:
        with self._environment.begin() as transaction:
            value = transaction.get(STATE_KEY)
        state = None if value is None else decode(bytes(value), 0)
        if not isinstance(state, State):
            raise StoreDamaged(f"{self.path} does not say what it holds")
        if node and state.node and state.node != node:
            raise StoreForeign(f"{self.path} belongs to node {state.node!r}, not to {node!r}")
        return state

    def _newest_generation(self) -> int:
        """The largest generation of which there is a piece, finished or not."""
        with self._environment.begin() as transaction:
            cursor = transaction.cursor()
            there = cursor.prev() if cursor.set_range(log_key(0)) else cursor.last()
            key = bytes(cursor.key()) if there else b""
        return max(self.state.generation, _PIECE_KEY.unpack(key)[1] if len(key) == _PIECE_KEY.size else 0)

    def read(self) -> Iterator[tuple[Entry, int, int]]:
        """Everything that counts, in order: each entry, its number in the log (0: a piece), and its bytes."""
        state = self.state
        with self._environment.begin() as transaction:
            cursor = transaction.cursor()
            for index in range(state.pieces):
                yield self._piece(cursor, index)
            for first, last in (*state.kept, (state.purged + 1, state.last)):
                if first > last:
                    continue
                found = cursor.set_range(log_key(first))
                for number in range(first, last + 1):
                    key = log_key(number)
                    if not found or cursor.key() != key:
                        raise StoreDamaged(f"{self.path}: entry {number} of [{first}, {last + 1}) is missing")
                    value = bytes(cursor.value())
                    yield self._decoded(value, number), number, len(value)
                    found = cursor.next()
            if cursor.last() and bytes(cursor.key()) > log_key(state.last):
                raise StoreDamaged(f"{self.path}: a key follows entry {state.last}, the last")

    def _piece(self, cursor: lmdb.Cursor, index: int) -> tuple[Entry, int, int]:
        generation, pieces = self.state.generation, self.state.pieces
        if not cursor.set_key(piece_key(generation, index)):
            raise StoreDamaged(f"{self.path}: piece {index} of {pieces} of checkpoint {generation} is missing")
        value = bytes(cursor.value())
        piece = self._decoded(value, index)
        if not isinstance(piece, Checkpoint) or piece.index != index or piece.last != (index == pieces - 1):
            raise StoreDamaged(f"{self.path}: piece {index} of {pieces} of checkpoint {generation} is something else")
        return piece, 0, len(value)

    def _decoded(self, value: bytes, number: int) -> Entry:
        try:
            entry = decode(value, number)
        except (StoreDamaged, StoreTooNew) as error:
            raise type(error)(f"{self.path}: {error}") from error
        if isinstance(entry, State):
            raise StoreDamaged(f"{self.path}: entry {number} is something else")
        return entry

    # --- writing ------------------------------------------------------------------------------------

    def commit(self, changes: list[tuple[DiskChange, bytes]]) -> None:
        """Write changes with their encoded values, all or nothing, and make them durable.

        `StoreFull`: nothing has changed, try again later. `StoreFailed`: what is on the disk is not known any more.
        """
        while True:
            try:
                state, garbage = self._write(changes)
                break
            except lmdb.MapFullError:
                self._grow()
            except lmdb.Error as error:
                raise self._judged(error) from error
        began = time.perf_counter()
        try:
            self._sync()
        except lmdb.Error as error:  # pages that a failed sync has dropped count as clean: a second try proves nothing
            raise StoreFailed(f"{self.path}: sync failed: {error}; restart the node") from error
        self.sync_seconds += time.perf_counter() - began
        self.state, self.garbage = state, garbage
        self._unexplained = 0
        self._measure()

    def _sync(self) -> None:
        """The one place where a group becomes durable."""
        self._environment.sync(True)
        if self.on_sync is not None:
            self.on_sync()

    def _write(self, changes: list[tuple[DiskChange, bytes]]) -> tuple[State, deque[tuple[bytes, bytes]]]:
        state = self.state
        garbage = deque(self.garbage)
        with self._environment.begin(write=True) as transaction:
            cursor = transaction.cursor()
            entries: list[tuple[bytes, bytes]] = []
            for change, value in changes:
                if change.generation:
                    transaction.put(piece_key(change.generation, change.number), value)
                else:
                    entries.append((log_key(change.number), value))
                old = state
                state = _followed(state, change)
                if change.purge is not None:
                    garbage.extend(_outdated(old, state))
            if entries:
                cursor.putmulti(entries, append=True)
            if changes:
                transaction.put(STATE_KEY, encode(state, 0))
            deleted = _delete(transaction, garbage, max(SLICE, 2 * len(changes)))
        self.deleted += deleted
        return state, garbage

    def _garbage_of(self, state: State) -> deque[tuple[bytes, bytes]]:
        """All ranges of keys that may hold what does not count: leftovers of the time before a restart."""
        nothing = State(state.node, generation=0)
        above = (piece_key(state.generation + 1, 0), piece_key(self.newest_generation + 1, 0))
        below = (piece_key(0, 0), piece_key(state.generation, 0))
        return deque([above, below, *_outdated(nothing, state)])

    def _grow(self) -> None:
        """A larger map, if the settings and the file system allow; `StoreFull` if not."""
        size = self.map_size
        larger = min(2 * size, self.max_map_size)
        if larger <= size:
            raise StoreFull(f"{self.path}: the map is full at its bound of {size} bytes; raise max_map_size")
        free = files.free_bytes(self.path)
        if free < files.SPARE_BYTES:
            raise StoreFull(f"{self.path}: {free} bytes are left on the file system; make room")
        self._environment.set_mapsize(larger)
        self._measure()

    def _judged(self, error: lmdb.Error) -> StoreError:
        """Whether a commit that failed may be tried again.

        It has changed nothing that counts, and the next try writes all its pages anew, so that is safe. LMDB reports a
        short write, by which a full disk may show for as long as it is full, as an input/output error. Where there is
        no room that explains it; else room may have been made since, so a few are borne before it is believed.
        """
        text = str(error)
        short = os.strerror(errno.EIO) in text
        if short:
            self._unexplained = 0 if files.cramped(self.path) else self._unexplained + 1
            short = self._unexplained <= UNEXPLAINED
        if short or isinstance(error, lmdb.DiskError) or any([os.strerror(code) in text for code in _FULL]):
            return StoreFull(f"{self.path}: {text}; make room on the file system")
        return StoreFailed(f"{self.path}: {text}; restart the node")


def _followed(state: State, change: DiskChange) -> State:
    """The state after a change."""
    replace = msgspec.structs.replace
    if not change.generation:
        state = replace(state, last=change.number)
    elif isinstance(change.entry, Checkpoint) and change.entry.last:
        state = replace(state, generation=change.generation, pieces=change.number + 1)
    if change.purge is not None:
        state = replace(state, purged=change.purge.purged, kept=change.purge.kept)
    return state


def _outdated(old: State, new: State) -> list[tuple[bytes, bytes]]:
    """Ranges of keys [from, to) that counted in the old state and do not in the new one."""
    ranges: list[tuple[bytes, bytes]] = []
    if new.generation != old.generation:
        ranges.append((piece_key(old.generation, 0), piece_key(new.generation, 0)))
    at = old.kept[0][0] if old.kept else old.purged + 1
    for first, last in new.kept:
        if first > at:
            ranges.append((log_key(at), log_key(first)))
        at = max(at, last + 1)
    if at <= new.purged:
        ranges.append((log_key(at), log_key(new.purged + 1)))
    return ranges


def _delete(transaction: lmdb.Transaction, garbage: deque[tuple[bytes, bytes]], budget: int) -> int:
    """Delete up to so many entries of the ranges; what is left of them stays in the queue."""
    cursor = transaction.cursor()
    deleted = 0
    while garbage:
        begin, end = garbage[0]
        found = cursor.set_range(begin)
        while found and begin <= (key := bytes(cursor.key())) < end:  # past the last entry the key is empty
            if deleted >= budget:
                garbage[0] = (key, end)
                return deleted
            found = cursor.delete()
            deleted += 1
        garbage.popleft()
    return deleted
