"""Exactly-once sinks (DESIGN 4, 5): a batch is staged in pieces by many tasks, and committed once, whole, or never.

A *writer* (a streaming query) writes batch after batch to a stream. Each task of a batch stages its rows under an
attempt of its own. Staged rows are replicated like any others, in internal streams (`_staged/0` ...); `_stages` says
which attempt they belong to. Then the driver of the query names the attempts that count:

* One record *decides* the commit: it numbers the whole batch [lo, hi), enters it under the writer in `_sinks`, and
  moves the first rows. The next records move the rest. Nothing else is numbered in the stream until the last one is
  written. A new head continues where the previous one stopped.
* A batch that was decided is answered with its range, however often it is committed again, also by a later head.
  Staging it again costs nothing, and aborting it changes nothing.
* Attempts that no commit names (a task that lost a race, a driver that died) are dropped when the batch is committed,
  aborted or staged anew by another run, and otherwise ``ttl`` seconds after their last rows. A commit of dropped rows
  is refused. So are late rows of a run that has been replaced: they take no room and drop nothing of the newer run.

So every crash leaves a batch staged or decided, never in between, and never twice. Batch numbers mean something only
together with the query that counts them: another query under a writer's name is refused unless it says ``reset``.

This file is the head's end; sink_client.py is the end of the tasks and their driver. Decision 0009 says why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import msgspec

from tidings.core.ids import NodeId, RegionId, StreamId, are_natural
from tidings.core.rows import WHERE, ArrowRows, Origin, Rows, before_rows, data_rows
from tidings.core.span import MESSAGE_BYTES, Span
from tidings.protocols.kernel import (
    Message,
    Time,
    Value,
)
from tidings.protocols.replication.log import Log, Lsn
from tidings.protocols.services.head import Head, HeadService, RowsOf, Step

if TYPE_CHECKING:
    from tidings.protocols.services.streams import StreamTable

SINKS: StreamId = "_sinks"
"""The internal stream that holds one entry per writer and stream, by key."""

STAGES: StreamId = "_stages"
"""The internal stream of notes: which rows of which staging stream belong to whom, and what was dropped."""

STAGED: tuple[StreamId, ...] = tuple([f"_staged/{at}" for at in range(8)])
"""The internal streams of staged rows. Only "before n" collects there, so writers spread over several: one that takes
its time would otherwise keep the rows that the others have long committed. Ours: few write at the same time."""


LONGEST_NAME = 256  # characters of what a sink is told to remember; ours, because it keeps them for good


class SinkBatch(Value, frozen=True, gc=False):
    """Which batch: of which writer and query, for which stream. ``run``: one execution of it, another has another.

    ``once``: the query is this one batch (a job, not a stream); ``reset``: it may take the writer's name over.
    """

    writer: str
    stream: StreamId
    query: str
    batch: int
    run: int
    once: bool = False
    reset: bool = False

    def valid(self) -> bool:
        names = (self.writer, self.stream, self.query)
        return are_natural((self.batch, self.run)) and all([0 < len(name) <= LONGEST_NAME for name in names])

    @property
    def owner(self) -> Owner:
        """Whose staged rows these are: of each owner only those of the newest run are kept."""
        return self.writer, self.stream, self.query if self.once else ""

    @property
    def key(self) -> Key:
        """Under which it is remembered: jobs apart from queries of the same name."""
        return self.writer, self.stream, self.once

    @property
    def publisher(self) -> str:
        """The name its events carry; no client's id has a slash."""
        return f"{self.writer}/{self.query}"


Owner: TypeAlias = tuple[str, StreamId, str]
Key: TypeAlias = tuple[str, StreamId, bool]


class Attempt(Value, frozen=True, gc=False):
    """What one task has staged, complete: so many chunks with so many rows."""

    partition: int
    attempt: int
    chunks: int
    rows: int


class StageRows(Message, frozen=True, gc=False):
    """To the owner's head: keep these rows, chunk ``index`` of an attempt. Answered with `RowsStaged`."""

    from_clients: ClassVar[bool] = True

    nonce: int  # of the question; the same in each retry
    of: SinkBatch
    partition: int
    attempt: int
    index: int
    rows: Rows

    def valid(self) -> bool:
        return self.of.valid()

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 128 + self.rows.nbytes

    @property
    def events(self) -> int:  # type: ignore[override]
        return self.rows.count


class RowsStaged(Message, frozen=True, gc=False):
    """The rows are replicated (or not needed any more: their batch is committed)."""

    nonce: int


class CommitBatch(Message, frozen=True, gc=False):
    """To the owner's head: publish what these attempts have staged, in this order. Answered with `BatchCommitted`."""

    from_clients: ClassVar[bool] = True

    nonce: int
    of: SinkBatch
    attempts: tuple[Attempt, ...]

    def valid(self) -> bool:
        numbers = [number for each in self.attempts for number in (each.attempt, each.chunks, each.rows)]
        return self.of.valid() and are_natural(numbers)


class BatchCommitted(Message, frozen=True, gc=False):
    """The batch is published as [lo, hi), now or long ago (``again``)."""

    nonce: int
    lo: int
    hi: int
    again: bool = False


class AbortBatch(Message, frozen=True, gc=False):
    """To the owner's head: drop what this run of a batch has staged, and take no more of it. A batch that is committed
    stays committed."""

    from_clients: ClassVar[bool] = True

    nonce: int
    of: SinkBatch

    def valid(self) -> bool:
        return self.of.valid()


class BatchAborted(Message, frozen=True, gc=False):
    """Nothing is staged any more, nor will be while this head leads (decision 0009)."""

    nonce: int


class SinkRefused(Message, frozen=True, gc=False):
    """Not done. ``code``: stream, rows, size (do not fit); writer, stale (another query or a later batch has
    committed); full, crowded (bounds of one writer, of all); gone (not staged, or not any more)."""

    nonce: int
    code: str
    reason: str


Request: TypeAlias = StageRows | CommitBatch | AbortBatch


class SinkSettings(Value, frozen=True, gc=False):
    """Ours: the papers have no sinks."""

    ttl: float = 3600.0  # seconds after its last rows until a batch that nobody commits or aborts is dropped
    writer_bytes: int = 512 << 20  # staged at a time for one batch
    total_bytes: int = 1 << 30  # and in all, rows that are dropped but still stored included
    chunks: int = 16_384  # of one batch
    stagings: int = 1024  # batches staged at a time
    over: int = 4096  # runs of which a head remembers that they are over
    writers: int = 65_536  # that a region remembers
    runs: int = 64  # of a writer without a query: how many of its last batches are remembered
    parts: int = 256  # chunks moved by one record, which is also bounded in bytes
    ahead: int = 4  # records under way for one commit: enough to keep three disks busy, 32 MiB of a batch
    window: int = 4  # chunks that one client has under way
    retry: float = 2.0  # seconds in which the oldest question is not answered before a client asks again


# --- what is replicated --------------------------------------------------------------------------------------


class StagedChunk(Value, frozen=True, gc=False):
    """Staged rows: numbers [lo, hi) of a staging stream, and the record and note that brought them."""

    slot: int
    lo: int
    hi: int
    nbytes: int
    note: int
    lsn: Lsn


class StageNote(Value, frozen=True, gc=False, tag="stage"):
    """A chunk was staged; whatever other runs of its owner have staged is dropped."""

    of: SinkBatch
    attempt: int
    index: int
    chunk: StagedChunk
    at: float


class DropNote(Value, frozen=True, gc=False, tag="drop"):
    """All that an owner has staged is dropped: committed, aborted or expired."""

    owner: Owner


Note: TypeAlias = StageNote | DropNote


class Past(Value, frozen=True, gc=False):
    """A committed batch."""

    query: str
    batch: int
    lo: int
    hi: int
    lsn: Lsn


class SinkEntry(Value, frozen=True, gc=False):
    """What the region remembers of a writer to one stream: its last batches, and what the newest still has to move."""

    recent: tuple[Past, ...]
    owner: Owner
    left: tuple[tuple[int, int, int], ...] = ()  # (slot, lo, hi) of staged rows, in the order they are numbered


_NOTE = msgspec.msgpack.Decoder(Note)
_ENTRY = msgspec.msgpack.Decoder(SinkEntry)
_KEY = msgspec.msgpack.Decoder(tuple[str, str, bool])


# --- the head's end --------------------------------------------------------------------------------------------


class Staging:
    """What one run of a batch has staged so far."""

    __slots__ = ("at", "chunks", "nbytes", "of", "slot")

    def __init__(self, of: SinkBatch, slot: int) -> None:
        self.of = of
        self.slot = slot
        self.chunks: dict[tuple[int, int], StagedChunk] = {}  # by attempt and index
        self.nbytes = 0
        self.at: Time = 0.0

    def add(self, note: StageNote) -> None:
        """One more chunk."""
        self.chunks[note.attempt, note.index] = note.chunk
        self.nbytes += note.chunk.nbytes
        self.at = note.at


class Moving:
    """A decided batch that is being moved to its stream."""

    __slots__ = ("key", "owed", "under_way")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.owed: dict[tuple[NodeId, int], bool] = {}  # who waits for the end of it, under which nonce; again?
        self.under_way: deque[Lsn] = deque()


Tick: TypeAlias = Callable[[StreamId, Time], int]


class Sinks:
    """The head's table of writers and of what is staged. It reads the log; `SinkService` writes there."""

    def __init__(self, log: Log, region: RegionId, tick: Tick, settings: SinkSettings) -> None:
        self.log = log
        self.region = region
        self.tick = tick
        self.settings = settings
        self.entries: dict[Key, SinkEntry] = {}
        self.stagings: dict[Owner, Staging] = {}
        self.dead: list[StagedChunk] = []  # dropped, not collected yet
        self.held = 0  # bytes staged, dropped ones included
        self.over: dict[SinkBatch, None] = {}  # the last runs that were dropped or aborted, oldest first
        self.moving: dict[StreamId, Moving] = {}

    def load(self, entries: Iterable[Rows], notes: Iterable[Rows]) -> None:
        """A new head: rebuild everything from the rows of `_sinks` and `_stages`, oldest first."""
        self.entries.clear()
        self.stagings.clear()
        self.over.clear()
        self.moving.clear()
        self.dead = []
        for _, payload in _pairs(notes):
            note = _NOTE.decode(payload)
            if isinstance(note, DropNote):
                self._drop(note.owner)
            else:
                self._staging(note.of).add(note)
        lows = [self.log.histories[stream].low for stream in STAGED]
        self.dead = [chunk for chunk in self.dead if chunk.lo >= lows[chunk.slot]]
        self.held = sum([chunk.nbytes for chunk in self.dead])
        self.held += sum([staging.nbytes for staging in self.stagings.values()])
        for key, payload in _pairs(entries):
            self.entries[_KEY.decode(key)] = _ENTRY.decode(payload)
        for known, entry in self.entries.items():
            if entry.left:
                self.moving[known[1]] = Moving(known)

    def check(self) -> None:
        """Bounds hold; what moves is still staged; of runs that are over nothing is."""
        held = sum([chunk.nbytes for chunk in self.dead]) + sum([each.nbytes for each in self.stagings.values()])
        assert held == self.held, f"{held} bytes are staged, not {self.held}"
        assert len(self.stagings) <= self.settings.stagings
        assert len(self.over) <= self.settings.over, f"{len(self.over)} runs that are over are remembered"
        late = [staging.of for staging in self.stagings.values() if staging.of in self.over]
        assert not late, f"{late} are over, and staged"
        for moving in self.moving.values():
            assert self.entries[moving.key].owner in self.stagings, "what is being moved is still staged"
            assert len(moving.under_way) <= self.settings.ahead

    # --- requests ---------------------------------------------------------------------------------------

    def stage(self, now: Time, src: NodeId, message: StageRows, misfit: str) -> Step:
        """Keep rows; ``misfit`` says why they do not fit their stream, if they do not."""
        of, nonce = message.of, message.nonce
        verdict = self.judge(of)
        if isinstance(verdict, Past):
            return Step(answers=[(src, RowsStaged(nonce), verdict.lsn)], reports=["sink_staged_again"])
        code = verdict or misfit or self._unfit(message) or ("gone" if of in self.over else "")
        if code:
            return self._refuse(src, nonce, code, of)
        if any([self.entries[moving.key].owner == of.owner for moving in self.moving.values()]):
            return Step(reports=["sink_waits"])  # the batch before is not all moved: asked again later
        staging = self.stagings.get(of.owner)
        if staging is not None and _same(staging.of, of):
            known = staging.chunks.get((message.attempt, message.index))
            if known is not None:
                return Step(answers=[(src, RowsStaged(nonce), known.lsn)])
        code = self._full(of, staging, message.rows.nbytes)
        if code:
            return self._refuse(src, nonce, code, of)
        replaced = staging is not None and not _same(staging.of, of)
        slot = self._staging(of).slot
        lo, note_at, lsn = self.log.ends[STAGED[slot]], self.log.ends[STAGES], self.log.last + 1
        origin = Origin(lo, lo + message.rows.count, of.publisher, of.batch + 1, 1, 0, now, self.region)
        assert isinstance(message.rows, ArrowRows)
        rows = message.rows.renumbered(lo, (origin,))
        chunk = StagedChunk(slot, lo, lo + rows.count, rows.nbytes, note_at, lsn)
        note = StageNote(of, message.attempt, message.index, chunk, now)
        self._staging(of).add(note)
        self.held += chunk.nbytes
        parts = [Span.of(STAGED[slot], lo, rows), self._noted(note, now)]
        return Step(parts, [(src, RowsStaged(nonce), lsn)], ["sink_staged", *["sink_superseded"] * replaced])

    def commit(self, now: Time, src: NodeId, message: CommitBatch) -> Step:
        """Decide a batch, or find that it was decided."""
        of, nonce = message.of, message.nonce
        verdict = self.judge(of)
        moving = self.moving.get(of.stream)
        if isinstance(verdict, Past):
            if moving is not None and moving.key == of.key and self.entries[of.key].recent[-1] == verdict:
                moving.owed.setdefault((src, nonce), True)
                return Step(reports=["sink_again"])
            answer = BatchCommitted(nonce, verdict.lo, verdict.hi, again=True)
            return Step(answers=[(src, answer, verdict.lsn)], reports=["sink_again"])
        if verdict:
            return self._refuse(src, nonce, verdict, of)
        if of.stream not in self.log.histories:
            return self._refuse(src, nonce, "stream", of)
        if moving is not None:
            return Step(reports=["sink_waits"])  # asked again later
        chunks = self._chosen(message)
        if chunks is None:
            return self._refuse(src, nonce, "gone", of)
        if any([chunk.hi > self.log.histories[STAGED[chunk.slot]].horizon for chunk in chunks]):
            return Step(reports=["sink_waits"])  # a new head has not committed all that the one before it wrote
        lo, rows = self.log.ends[of.stream], sum([chunk.hi - chunk.lo for chunk in chunks])
        past = Past(of.query, of.batch, lo, lo + rows, self.log.last + 1)
        old = self.entries.get(of.key) if of.once else None
        recent = (*(old.recent if old else ()), past)[-self.settings.runs :]
        left = tuple([(chunk.slot, chunk.lo, chunk.hi) for chunk in chunks])
        self.entries[of.key] = SinkEntry(recent, of.owner, left)
        self.moving[of.stream] = Moving(of.key)
        self.moving[of.stream].owed[src, nonce] = False
        step = self._move(now, of.stream)
        step.reports.append("sink_committed")
        return step

    def abort(self, now: Time, src: NodeId, message: AbortBatch) -> Step:
        """Drop what one run of a batch has staged, unless it is decided."""
        of, answer = message.of, BatchAborted(message.nonce)
        if isinstance(self.judge(of), Past):
            return Step(answers=[(src, answer, 0)], reports=["sink_abort_too_late"])
        staging = self.stagings.get(of.owner)
        if staging is None or not _same(staging.of, of):
            self._end(of)  # something of it may be on its way
            return Step(answers=[(src, answer, 0)])
        step = self._dropped(now, of.owner, "sink_aborted")
        step.answers.append((src, answer, self.log.last + 1))
        return step

    def judge(self, of: SinkBatch) -> Past | str:
        """The range of a batch that was committed before, the code to refuse it with, or "" if it is new."""
        entry = self.entries.get(of.key)
        if entry is None:
            return "" if len(self.entries) < self.settings.writers else "crowded"
        for past in reversed(entry.recent):
            if (past.query, past.batch) == (of.query, of.batch):
                return past
        last = entry.recent[-1]
        if of.once or of.reset:
            return ""
        if last.query != of.query:
            return "writer"
        return "stale" if of.batch < last.batch else ""

    def _unfit(self, message: StageRows) -> str:
        """Rows that would collect others, where they are staged or later, are none that a sink takes."""
        rows = message.rows
        if not isinstance(rows, ArrowRows) or not rows.count:
            return "rows"
        collects = rows.batch.column("before").null_count < rows.count or WHERE in rows.batch.schema.names
        return "rows" if collects else ""

    def _full(self, of: SinkBatch, staging: Staging | None, nbytes: int) -> str:
        bounds = self.settings
        if staging is not None and _same(staging.of, of):
            if staging.nbytes + nbytes > bounds.writer_bytes or len(staging.chunks) >= bounds.chunks:
                return "full"
        elif staging is None and len(self.stagings) >= bounds.stagings:
            return "crowded"
        return "crowded" if self.held + nbytes > bounds.total_bytes else ""

    def _chosen(self, message: CommitBatch) -> list[StagedChunk] | None:
        """The chunks of the attempts that count, in order; None unless all of them are there, complete."""
        staging = self.stagings.get(message.of.owner)
        named = len({each.partition for each in message.attempts}), len({each.attempt for each in message.attempts})
        if staging is None or not _same(staging.of, message.of) or named != (len(message.attempts),) * 2:
            return None
        chosen: list[StagedChunk] = []
        for each in message.attempts:
            chunks = [
                staging.chunks.get((each.attempt, index)) for index in range(min(each.chunks, len(staging.chunks)))
            ]
            there = [chunk for chunk in chunks if chunk is not None]
            if len(there) != each.chunks or sum([chunk.hi - chunk.lo for chunk in there]) != each.rows:
                return None
            chosen += there
        return chosen or None

    def _refuse(self, src: NodeId, nonce: int, code: str, of: SinkBatch) -> Step:
        return Step(answers=[(src, SinkRefused(nonce, code, self._why(code, of)), 0)], reports=[f"sink_{code}"])

    def _why(self, code: str, of: SinkBatch) -> str:
        entry = self.entries.get(of.key)
        last = entry.recent[-1] if entry else Past("", 0, 0, 0, 0)
        who = f"{of.stream}: writer {of.writer!r}"
        match code:
            case "stream":
                return f"stream {of.stream!r} is unknown to region {self.region}; perhaps it was deleted"
            case "writer":
                return (
                    f"{who} has committed batch {last.batch} of query {last.query}, this is batch {of.batch} of query "
                    f"{of.query}: batch numbers begin anew, so a repeated batch could not be told from a new one; use "
                    "another writerId, or set writerReset to take this one over"
                )
            case "stale":
                return (
                    f"{who} has committed batch {last.batch} of this query already, this is batch {of.batch}: the "
                    "checkpoint is older than what was written; restore the newest, or set writerReset to write again"
                )
            case "gone":
                return f"{who}: batch {of.batch} is not staged (any more); nothing was published, run the batch again"
            case "full":
                bound = f"{self.settings.writer_bytes >> 20} MiB or {self.settings.chunks} chunks"
                return (
                    f"{who}: batch {of.batch} is larger than {bound}, as much as may be staged; write smaller batches"
                )
            case "crowded":
                return f"{who}: region {self.region} has no room to stage more for anybody now; try again later"
            case "size":
                return f"{who}: a chunk of more than {MESSAGE_BYTES >> 20} MiB"
        return f"{who}: the rows do not fit the stream"

    # --- moving what is decided ---------------------------------------------------------------------------

    def busy(self, stream: StreamId) -> bool:
        """The stream's next numbers are given away: nothing else may be numbered now."""
        return stream in self.moving

    def next(self, now: Time) -> Step | None:
        """The next record of a batch that is being moved; None while there is none, or enough is under way."""
        for stream, moving in self.moving.items():
            while moving.under_way and moving.under_way[0] <= self.log.committed:
                moving.under_way.popleft()
            slot, _, hi = self.entries[moving.key].left[0]
            if len(moving.under_way) < self.settings.ahead and hi <= self.log.histories[STAGED[slot]].horizon:
                return self._move(now, stream)
        return None

    def _move(self, now: Time, stream: StreamId) -> Step:
        """Number the next staged rows of a decided batch; with the last it is done, and those who wait learn it."""
        moving = self.moving[stream]
        entry, lsn = self.entries[moving.key], self.log.last + 1
        past = entry.recent[-1]
        staging = self.stagings[entry.owner]
        parts, taken = self._taken(now, staging.of, entry)
        entry = SinkEntry((*entry.recent[:-1], msgspec.structs.replace(past, lsn=lsn)), entry.owner, entry.left[taken:])
        self.entries[moving.key] = entry
        moving.under_way.append(lsn)
        step = Step([*parts, self._entered(moving.key, entry, now)], [], ["sink_moved"])
        if not entry.left:
            del self.moving[stream]
            step.parts += self._dropped(now, entry.owner, "").parts
            for (to, nonce), again in moving.owed.items():
                step.answers.append((to, BatchCommitted(nonce, past.lo, past.hi, again), lsn))
        return step

    def _taken(self, now: Time, of: SinkBatch, entry: SinkEntry) -> tuple[list[Span], int]:
        """The next chunks as parts of their stream, as many as one record should carry, and how many those are."""
        parts: list[Span] = []
        size = 0
        past = entry.recent[-1]
        if of.stream not in self.log.histories:  # deleted meanwhile: there is nothing to move them to
            return parts, len(entry.left)
        at = self.log.ends[of.stream]
        for slot, lo, hi in entry.left[: self.settings.parts]:
            history = self.log.histories[STAGED[slot]]
            if hi > history.horizon:
                break
            rows = history.rows(lo, hi, history.horizon).rows
            size += rows.nbytes
            if parts and size > MESSAGE_BYTES:
                break
            assert isinstance(rows, ArrowRows) and rows.count == hi - lo
            tick = self.tick(of.stream, now)
            number = at - past.lo + 1
            origin = Origin(at, at + rows.count, of.publisher, past.batch + 1, number, tick, now, self.region)
            parts.append(Span.of(of.stream, at, rows.renumbered(at, (origin,))))
            at += rows.count
        return parts, len(parts)

    # --- dropping -----------------------------------------------------------------------------------------

    def expired(self, now: Time) -> Step | None:
        """Drop one batch that nobody has committed, aborted or added to for long; None if there is none."""
        moved = [self.entries[moving.key].owner for moving in self.moving.values()]
        for owner, staging in self.stagings.items():
            if now - staging.at > self.settings.ttl and owner not in moved:
                return self._dropped(now, owner, "sink_expired")
        return None

    def collected(self, now: Time) -> Step | None:
        """Collect what is dropped, as far as it lies below all that is not; None if that is nothing."""
        live = [chunk for staging in self.stagings.values() for chunk in staging.chunks.values()]
        lows = [min([c.lo for c in live if c.slot == slot], default=self.log.ends[STAGED[slot]]) for slot in _SLOTS]
        gone = [chunk for chunk in self.dead if chunk.hi <= lows[chunk.slot]]
        if not gone:
            return None
        self.dead = [chunk for chunk in self.dead if chunk.hi > lows[chunk.slot]]
        self.held -= sum([chunk.nbytes for chunk in gone])
        slots = sorted({chunk.slot for chunk in gone})
        notes = min([chunk.note for chunk in (*live, *self.dead)], default=self.log.ends[STAGES])
        befores = [*[(STAGED[slot], lows[slot]) for slot in slots], (STAGES, notes)]
        return Step([self._before(stream, low, now) for stream, low in befores])

    def _drop(self, owner: Owner) -> None:
        staging = self.stagings.pop(owner, None)
        if staging is not None:
            self.dead += staging.chunks.values()
            self._end(staging.of)

    def _end(self, of: SinkBatch) -> None:
        """Take no more of this run."""
        self.over[of] = None
        if len(self.over) > self.settings.over:
            del self.over[next(iter(self.over))]

    def _dropped(self, now: Time, owner: Owner, report: str) -> Step:
        self._drop(owner)
        return Step([self._noted(DropNote(owner), now)], [], [report] if report else [])

    def _staging(self, of: SinkBatch) -> Staging:
        """Where a run of a batch stages its rows; that of another run is dropped for it."""
        staging = self.stagings.get(of.owner)
        if staging is None or not _same(staging.of, of):
            self._drop(of.owner)
            used = [each.slot for each in self.stagings.values()]
            staging = self.stagings[of.owner] = Staging(of, min(_SLOTS, key=used.count))
        return staging

    # --- rows of the internal streams -----------------------------------------------------------------------

    def _noted(self, note: Note, now: Time) -> Span:
        return self._row(STAGES, b"", msgspec.msgpack.encode(note), now)

    def _entered(self, key: Key, entry: SinkEntry, now: Time) -> Span:
        return self._row(SINKS, msgspec.msgpack.encode(key), msgspec.msgpack.encode(entry), now)

    def _row(self, stream: StreamId, key: bytes, payload: bytes, now: Time) -> Span:
        lo = self.log.ends[stream]
        return Span.of(stream, lo, data_rows(lo, [key], [payload], Origin(lo, lo + 1, "", 0, lo, 0, now)))

    def _before(self, stream: StreamId, low: int, now: Time) -> Span:
        lo = self.log.ends[stream]
        return Span.of(stream, lo, before_rows(lo, [low], Origin(lo, lo + 1, "", 0, lo, 0, now)))


class SinkService(HeadService):
    """Answers `StageRows`, `CommitBatch` and `AbortBatch`."""

    handles: ClassVar[frozenset[type[Message]]] = frozenset({StageRows, CommitBatch, AbortBatch})

    def __init__(self, head: Head, table: StreamTable, settings: SinkSettings) -> None:
        self.head = head
        self.table = table
        self.sinks = Sinks(table.log, table.region, table.tick, settings)

    def load(self, now: Time, rows_of: RowsOf) -> None:
        self.sinks.load(rows_of(SINKS), rows_of(STAGES))

    def check(self) -> None:
        self.sinks.check()

    def receive(self, now: Time, src: NodeId, message: Message) -> Step:
        assert isinstance(message, StageRows | CommitBatch | AbortBatch)
        if self.head.busy or self.table.pending(message.of.stream):
            return Step(reports=["sink_busy"])  # asked again later
        if isinstance(message, StageRows):
            return self.sinks.stage(now, src, message, self.table.misfit(message.of.stream, message.rows))
        if isinstance(message, AbortBatch):
            return self.sinks.abort(now, src, message)
        step = self.sinks.commit(now, src, message)
        again = [lsn for _, answer, lsn in step.answers if isinstance(answer, BatchCommitted) and answer.again]
        step.reports_after += ["sink_again_across_failover" for lsn in again if self.head.inherited(lsn)]
        return step

    def work(self, now: Time) -> Iterator[Step]:
        """Move the next rows of batches that are decided."""
        while self.sinks.moving and not self.head.busy:
            step = self.sinks.next(now)
            if step is None:
                return
            yield step

    def tick(self, now: Time) -> Iterator[Step]:
        """Drop what nobody commits, collect what is dropped."""
        yield from self.work(now)
        for tidy in (self.sinks.expired, self.sinks.collected):
            step = None if self.head.busy else tidy(now)
            if step is not None:
                yield step


_SLOTS = range(len(STAGED))


def _same(a: SinkBatch, b: SinkBatch) -> bool:
    """Whether both are one run of one batch."""
    return (a.query, a.batch, a.run) == (b.query, b.batch, b.run)


def _pairs(rows: Iterable[Rows]) -> Iterable[tuple[bytes, bytes]]:
    """Keys and payloads of rows, without collecting events."""
    for part in rows:
        if isinstance(part, ArrowRows):
            keys, payloads = [part.batch.column(name).to_pylist() for name in ("key", "payload")]
            yield from [(key, payload) for key, payload in zip(keys, payloads, strict=True) if key is not None]
