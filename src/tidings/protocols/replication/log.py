"""The record log of a chain: what is replicated, what is written to disk, and how a replica recovers from its disk.

A record is atomic: its parts (spans of user, foreign and internal streams) enter the histories together, when the
record is committed. lsn is contiguous across epochs. A replica writes a sequence of entries to disk. `Log.recover`
folds them back into histories (what was known to be committed) and a log (the rest).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TypeAlias

from tidings.core.errors import BadInput, Contradiction, NotYet
from tidings.core.history import History
from tidings.core.ids import FIRST, StreamId, is_internal
from tidings.core.rows import ArrowRows, Rows
from tidings.core.span import Span
from tidings.protocols.kernel import Value

Lsn: TypeAlias = int
MakeHistory: TypeAlias = Callable[[StreamId], History]
Learn: TypeAlias = Callable[[Span], None]


class Record(Value, frozen=True, gc=False):
    """One atomic step of a region's state."""

    epoch: int
    lsn: Lsn
    parts: tuple[Span, ...]

    @property
    def digest(self) -> bytes:
        """Identifies the record's content; equal on every replica that holds it."""
        known = hashlib.blake2b(f"{self.epoch}/{self.lsn}".encode(), digest_size=16)
        for part in self.parts:
            known.update(part.digest)
        return known.digest()

    @property
    def wire_size(self) -> int:
        return 32 + sum([part.wire_size for part in self.parts])


class Logged(Value, frozen=True, gc=False):
    """On disk: a record, and how far the replica knew the log to be committed when it wrote it."""

    record: Record
    committed: Lsn


class CutBack(Value, frozen=True, gc=False):
    """On disk: everything above ``lsn`` is void, because the replica joins the chain of ``epoch`` from there."""

    lsn: Lsn
    epoch: int


class Installed(Value, frozen=True, gc=False):
    """On disk: a piece of a snapshot of the committed state at ``lsn``; the last piece replaces all before it.

    ``record_epoch`` is the epoch of the record at ``lsn``, if that is known. By it a neighbour that restarts can tell
    that its own record of that number is the same.
    """

    lsn: Lsn
    index: int
    spans: tuple[Span, ...]
    last: bool
    record_epoch: int | None = None


class TokenPassed(Value, frozen=True, gc=False):
    """On disk: in this epoch the replica, its tail, has left committing to the joining one."""

    epoch: int


class Checkpoint(Value, frozen=True, gc=False):
    """On disk: a piece of the replica's own state at ``lsn``; the last piece replaces all before it but later records.

    The pieces are taken one after the other while the log goes on, so they may know of collections by records above
    ``lsn``: those up to ``committed`` are on this disk too, and their commitment is part of the checkpoint.
    """

    lsn: Lsn
    index: int
    spans: tuple[Span, ...]
    last: bool
    committed: Lsn
    token_epoch: int
    joined_epoch: int
    record_epoch: int | None = None  # the epoch of the record at ``lsn``, if that is known


DiskEntry: TypeAlias = Logged | CutBack | Installed | TokenPassed | Checkpoint


class Log:
    """Records above the committed state, the histories below; the next number and last tick of every stream."""

    def __init__(self, make_history: MakeHistory, streams: Iterable[StreamId], learn: Learn | None = None) -> None:
        self.token_epoch = 0  # the last epoch in which this replica passed the tail's token on
        self.joined_epoch = 0  # the last epoch in which it was joining: its log was a prefix of the tail's
        self.refusals = 0  # parts refused since the start: a checkpoint that spans one would forget why
        self._make_history = make_history
        self._learn = learn  # told of every part that enters a history: it may define streams
        self._streams = list(streams)
        self.histories: dict[StreamId, History] = {}
        self.reset(0)

    def reset(self, lsn: Lsn, record_epoch: int | None = None) -> None:
        """Forget everything; the next record is the one after ``lsn``, which was made in that epoch."""
        self.histories.clear()  # the mapping itself is shared with the layers that read it
        self.histories.update({stream: self._make_history(stream) for stream in self._streams})
        self.records: list[Record] = []
        self.first: Lsn = lsn + 1
        self.epoch_before = record_epoch  # the epoch of the record before the first, if that is known
        self.committed: Lsn = lsn
        self.ends: dict[StreamId, int] = dict.fromkeys(self._streams, FIRST)
        self.ticks: dict[StreamId, int] = dict.fromkeys(self._streams, 0)

    def define(self, stream: StreamId, history: History | None = None) -> None:
        """From now on the log has this stream, too, and its empty history."""
        if stream not in self.histories:
            history = history or self._make_history(stream)  # before anything changes: it may be refused
            self._streams.append(stream)
            self.histories[stream] = history
            records = self.between(self.committed, self.last)  # after the definition, so they are about this stream
            pending = [part.hi for record in records for part in record.parts if part.stream == stream]
            self.ends[stream] = pending[-1] if pending else FIRST
            self.ticks.setdefault(stream, 0)

    def drop(self, stream: StreamId) -> None:
        """The stream was deleted: forget its rows, and refuse what is still in the log."""
        if self.histories.pop(stream, None) is not None:
            self._streams.remove(stream)
            self.ends.pop(stream, None)
            self.ticks.pop(stream, None)

    @property
    def last(self) -> Lsn:
        """The lsn of the newest record, or of the state the log starts from."""
        return self.first + len(self.records) - 1

    def epoch_of(self, lsn: Lsn) -> int | None:
        """The epoch that a record was made in; None if only its effect is left, which is committed."""
        if lsn == 0:
            return 0
        if lsn == self.first - 1:
            return self.epoch_before
        return self.records[lsn - self.first].epoch if self.first <= lsn <= self.last else None

    def between(self, after: Lsn, upto: Lsn) -> tuple[Record, ...]:
        """Records with after < lsn <= upto."""
        return tuple(self.records[after + 1 - self.first : upto + 1 - self.first])

    def rows_of(self, stream: StreamId) -> list[Rows]:
        """The rows of a stream, committed or not, oldest first."""
        history = self.histories[stream]
        records = self.between(self.committed, self.last)
        pending = [part.rows for record in records for part in record.parts if part.stream == stream]
        return [*[span.rows for span in history.know(FIRST, history.horizon)], *pending]

    def append(self, record: Record) -> None:
        """Add the next record; its parts are not committed yet."""
        assert record.lsn == self.last + 1, f"record {record.lsn} after {self.last}"
        self.records.append(record)
        for part in record.parts:
            self._extend(part)

    def _extend(self, part: Span) -> None:
        self.ends[part.stream] = part.hi
        if isinstance(part.rows, ArrowRows) and part.rows.origins:
            self.ticks[part.stream] = max(self.ticks.get(part.stream, 0), part.rows.origins[-1].tick)

    def commit_next(self) -> tuple[Record, tuple[Span, ...]]:
        """Apply the next uncommitted record to the histories; returns it and the parts that were refused.

        A refusal (a foreign span that contradicts what is known, or makes no sense in its stream) is a function of the
        log alone, so every replica refuses the same parts; the stream's end falls back and is fetched again.
        """
        self.committed += 1
        record = self.records[self.committed - self.first]
        refused = []
        for part in record.parts:
            history = self.histories.get(part.stream)
            try:
                if history is not None:
                    self._accept(part)
                    continue
            except (BadInput, Contradiction, NotYet):
                assert history is not None
                self.ends[part.stream] = history.horizon
            refused.append(part)
            self.refusals += 1
        return record, tuple(refused)

    def _accept(self, part: Span) -> None:
        history = self.histories[part.stream]
        history.accept(part)
        history.tidy()
        if self._learn is not None:
            self._learn(part)

    def cut(self, lsn: Lsn) -> None:
        """Void the records above ``lsn``, which must not be committed."""
        assert lsn >= self.committed, f"cut at {lsn} below the commit point {self.committed}"
        del self.records[lsn + 1 - self.first :]
        self.ends = {stream: history.horizon for stream, history in self.histories.items()}
        for record in self.between(self.committed, lsn):
            for part in record.parts:
                self.ends[part.stream] = part.hi

    def trim(self, retain: int) -> None:
        """Forget all but the newest ``retain`` committed records."""
        surplus = self.committed - self.first + 1 - retain
        if surplus > retain:  # halves, so that the list is moved rarely
            self.epoch_before = self.records[surplus - 1].epoch
            del self.records[:surplus]
            self.first += surplus

    def snapshot(self, chunk_rows: int) -> list[tuple[Span, ...]]:
        """The committed state as pieces of about ``chunk_rows`` rows; at least one, perhaps empty."""
        pieces: list[tuple[Span, ...]] = []
        piece: list[Span] = []
        rows = 0
        for history in self.histories.values():
            at = FIRST
            while at < history.horizon:
                for span in history.kept(at, history.horizon, chunk_rows):
                    piece.append(span)
                    rows += span.rows.count
                    at = span.hi
                if rows >= chunk_rows:
                    pieces.append(tuple(piece))
                    piece, rows = [], 0
        return [*pieces, tuple(piece)]

    def install(self, lsn: Lsn, spans: Iterable[Span], record_epoch: int | None = None) -> None:
        """Start again from a snapshot; ``record_epoch`` is the epoch of its last record, if that is known."""
        self.reset(lsn, record_epoch)
        for span in sorted(spans, key=lambda span: not is_internal(span.stream)):  # definitions first
            self._accept(span)
            self._extend(span)

    @classmethod
    def recover(
        cls,
        make_history: MakeHistory,
        streams: Iterable[StreamId],
        entries: Iterable[DiskEntry],
        learn: Learn | None = None,
    ) -> Log:
        """Rebuild from what a disk holds."""
        log = cls(make_history, streams, learn)
        log.replay(entries)
        return log

    def replay(self, entries: Iterable[DiskEntry]) -> None:
        """Take in what a disk holds, at the beginning."""
        committed = 0
        arriving: list[Span] = []
        for entry in entries:
            match entry:
                case Logged(record, known):
                    self.append(record)
                    committed = max(committed, known)
                case CutBack(lsn, epoch):
                    while self.committed < min(committed, lsn):
                        self.commit_next()
                    self.cut(lsn)
                    self.joined_epoch = epoch
                case TokenPassed(epoch):
                    self.token_epoch = epoch
                case Installed(lsn, index, spans, last):
                    arriving = [*arriving, *spans] if index else list(spans)
                    if last:
                        self.install(lsn, arriving, entry.record_epoch)
                        committed = lsn
                case Checkpoint(lsn, index, spans, last):
                    arriving = [*arriving, *spans] if index else list(spans)
                    if last:
                        later = self.between(lsn, self.last)
                        self.install(lsn, arriving, entry.record_epoch)
                        for record in later:
                            self.append(record)
                        committed = max(committed, entry.committed)
                        self.token_epoch, self.joined_epoch = entry.token_epoch, entry.joined_epoch
        while self.committed < committed:
            self.commit_next()
