"""Checkpoints: the replica's state, written beside its log a slice at a time, so that the log before it can be deleted.

A checkpoint is *fuzzy*. It is the state of the histories when the log was committed up to ``lsn``, but its pieces are
taken over many turns, while later records are committed. A later piece may lack rows that those records have collected;
its asof says so, as with any span. Recovery is right for this reason: the last piece comes after all of those records
in the log and carries how far they were committed. Recovery loads the pieces (rows and asof, up to the horizons noted
at the beginning) and commits the same records again up to there. By then every horizon has reached every asof. The
histories are not read before that.

Definitions of streams are taken whole at the beginning: a definition that a later one has collected would be missing
when the rows of its stream are loaded. So are leases: without them the rows that they keep would be purged while they
are loaded.

A checkpoint is abandoned and begun again later when its base changes: the log is cut back, a snapshot arrives, a stream
is dropped, or a part is refused (a refusal depends on rows that a later piece may lack). Until the last piece is
durable the old checkpoint and the whole log count. The same transaction replaces them, so a crash at any instant finds
one or the other.
"""

from __future__ import annotations

import time

from tidings.core.ids import FIRST, StreamId
from tidings.core.span import Span
from tidings.protocols.replication.log import Checkpoint, Log, Lsn
from tidings.store.store import Store

MINIMUM_BYTES = 64 << 20  # ours: a log of this size is replayed in about a second
FACTOR = 2  # ours: so checkpoints cost at most half of what the log does, and the disk holds thrice the live state
SLICE_ROWS = 1 << 16  # ours: a few milliseconds
SLICE_SECONDS = 0.004  # a slice that takes longer makes the next one smaller; ours, because pauses go into p99
SMALLEST_SLICE = 1 << 10  # rows
WHOLE = ("_streams", "_leases")  # how the names of streams begin that others depend on while they are loaded


class Checkpointer:
    """Writes checkpoints of one log. The host calls `step` between two inputs, when `due`, until it returns False.

    `step` must see the log and the store at the same point: after all effects of an input have been carried out.
    """

    def __init__(self, store: Store, *, minimum: int = MINIMUM_BYTES, slice_rows: int = SLICE_ROWS) -> None:
        self._store = store
        self._minimum = minimum
        self._most_rows = slice_rows
        self._rows = slice_rows
        self._from = 0  # written_bytes when the last checkpoint began
        self._running: _Running | None = None

    @property
    def active(self) -> bool:
        """A checkpoint has begun and is not complete."""
        return self._running is not None

    def due(self) -> bool:
        """Whether it is time for a step: one is under way, or the log has outgrown the last one."""
        store = self._store
        if not store.durable or store.condition != "open":
            return False
        if self._running is not None:
            return not store.over  # the log goes first
        if store.places.installing:
            return False
        since = store.written_bytes - self._from
        if since > max(self._minimum, FACTOR * store.checkpoint_bytes):
            return True
        return 2 * store.used_bytes > store.max_bytes and 4 * since > store.used_bytes  # before the file is full

    def step(self, log: Log) -> bool:
        """Write one slice, beginning a checkpoint if none is under way; whether there is more to do."""
        running = self._running
        if running is not None and not running.holds(log, self._store):
            self._store.stats.abandoned += 1
            self._running = None
            return False
        if running is None:
            if self._store.places.installing:
                return False
            running = self._running = _Running(log, self._store)
        began = time.perf_counter()
        piece = running.next_piece(log, self._rows)
        self._store.write_piece(running.generation, piece)
        self._adapt(time.perf_counter() - began)
        if piece.last:
            self._store.checkpoint_bytes = running.bytes
            self._from = running.began_at
            self._running = None
        return not piece.last

    def _adapt(self, seconds: float) -> None:
        """Rows that are spread over many chunks or batches take longer: fewer of them at a time then."""
        if seconds > SLICE_SECONDS:
            self._rows = max(self._rows // 2, min(SMALLEST_SLICE, self._most_rows))
        elif 2 * self._rows <= self._most_rows and 4 * seconds < SLICE_SECONDS:
            self._rows *= 2


class _Running:
    """A checkpoint under way."""

    def __init__(self, log: Log, store: Store) -> None:
        self.lsn: Lsn = log.committed
        self.record_epoch = log.epoch_of(self.lsn)
        self.generation = store.begin_checkpoint()
        self.began_at = store.written_bytes
        self.bytes = 0
        self._log = log
        self._refusals = log.refusals
        self._breaks = store.places.breaks
        self._index = 0
        self._histories = dict(log.histories)
        fuzzy = [name for name in log.histories if not name.startswith(WHOLE)]
        self._left: list[tuple[StreamId, int]] = [(name, log.histories[name].horizon) for name in reversed(fuzzy)]
        self._at = FIRST  # where the last stream of the list goes on

    def holds(self, log: Log, store: Store) -> bool:
        """Whether the log has only grown since."""
        return (
            log is self._log
            and log.refusals == self._refusals
            and store.places.breaks == self._breaks
            and not store.places.installing
            and all([log.histories.get(name) is history for name, history in self._histories.items()])
        )

    def next_piece(self, log: Log, rows: int) -> Checkpoint:
        """The next slice of about so many rows; the last one when nothing is left."""
        spans: list[Span] = []
        if self._index == 0:
            for name, history in self._histories.items():
                if name.startswith(WHOLE):
                    spans += history.know(FIRST, history.horizon)
        self._skip_finished()
        while self._left and rows > 0:
            stream, horizon = self._left[-1]
            for span in log.histories[stream].kept(self._at, horizon, rows):
                spans.append(span)
                rows -= max(span.rows.count, 1)
                self._at = span.hi
            self._skip_finished()
        self.bytes += sum([span.wire_size for span in spans])
        index, self._index = self._index, self._index + 1
        last = not self._left
        epochs = log.token_epoch, log.joined_epoch, self.record_epoch
        return Checkpoint(self.lsn, index, tuple(spans), last, log.committed, *epochs)

    def _skip_finished(self) -> None:
        while self._left and self._at >= self._left[-1][1]:
            self._left.pop()
            self._at = FIRST
