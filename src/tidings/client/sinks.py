"""A batch that many tasks write and one driver commits: all of it, once, or nothing (protocols/services/sinks.py).

    sink = t.sink("prices", writer="nightly", query=query_id, batch=17)     # in the driver and in every task
    part = sink.part(3)                                                     # in a task: partition 3
    await part.put(record_batch)                                            # as often as there is more
    staged = await part.finish()                                            # goes to the driver: small, picklable
    ack = await sink.commit([staged, ...])                                  # in the driver: ack.lo, ack.hi

Committing again gives the same range. A run that fails calls `abort`, or nothing: what is staged expires.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from tidings.client.commands import DropSinking, Sinking
from tidings.client.errors import BatchGone, PublishFailed, StagingFull, TidingsError, UnknownStream, WriterInUse
from tidings.client.events import Ack
from tidings.client.session import Session
from tidings.client.streams import StreamCalls
from tidings.client.tables import batches_of
from tidings.client.validation import name as checked_name
from tidings.client.validation import number, text
from tidings.core.errors import BadInput
from tidings.core.ids import StreamId
from tidings.core.rows import Rows
from tidings.protocols.kernel import Message
from tidings.protocols.services.sink_client import SinkAnswered
from tidings.protocols.services.sinks import (
    AbortBatch,
    Attempt,
    BatchAborted,
    BatchCommitted,
    CommitBatch,
    Request,
    RowsStaged,
    SinkBatch,
    SinkRefused,
    StageRows,
)

CHUNK_ROWS = 32_768  # a history stores as many without cutting them up
CHUNK_BYTES = 4 << 20  # half of a message: rows differ in size
WINDOW = 4  # chunks under way, as many as `SinkSettings.window`
CROWDED = 30.0  # seconds to wait for others to commit when the region has no room for any batch; ours
PAUSE = 0.25  # seconds between two tries of that; ours, because what is committed makes room twice a second


class SinkCalls:
    """The sinks of a connection: asks the owners of their streams."""

    def __init__(self, session: Session, streams: StreamCalls) -> None:
        self._session = session
        self._streams = streams
        session.on(SinkAnswered, lambda item: session.answered(item.request.nonce, item.answer))

    def sink(
        self, stream: StreamId, writer: str, query: str, batch: int, run: int | None, once: bool, reset: bool
    ) -> Sink:
        """A sink for one batch; raises `BadInput`."""
        self._session.alive()
        checked_name("stream", stream)
        return Sink(make_batch(stream, writer, query, batch, run=run, once=once, reset=reset), self)

    async def ask(self, stream: StreamId, request: Request) -> Message:
        """Ask the owner of a stream until it answers."""
        definition = await self._streams.known(stream)
        region = definition.region
        of = msgspec.structs.replace(request.of, stream=definition.id)
        asked = Sinking(region, msgspec.structs.replace(request, of=of))
        answer: Message = await self._session.answer(request.nonce, asked, DropSinking(region, request.nonce))
        if isinstance(answer, SinkRefused) and answer.code == "stream":
            self._session.machine.view.forget(definition.id)  # its name may mean another one
        return answer

    async def split(self, stream: StreamId, table: pa.Table, rows: int, nbytes: int) -> list[Rows]:
        """A table in batches of about so many rows and bytes that fit the stream."""
        return batches_of(await self._streams.known(stream), table, rows, nbytes)


class Sink:
    """One run of one batch, seen from the driver or from a task; both name the same ``run``."""

    def __init__(self, of: SinkBatch, calls: SinkCalls) -> None:
        self.of = of
        self._calls = calls

    def part(self, partition: int) -> Part:
        """A new attempt at one partition."""
        return Part(self, number("partition", partition, 0))

    async def commit(self, parts: Sequence[Attempt]) -> Ack | None:
        """Publish what these parts have staged, in the order of their partitions; None if that is nothing.

        A batch that was committed before stays what it was, and is answered with its range.
        """
        attempts = tuple(sorted([part for part in parts if part.rows], key=lambda part: part.partition))
        if not attempts:
            return None
        answer = await self.ask(CommitBatch(_nonce(), self.of, attempts))
        assert isinstance(answer, BatchCommitted)
        return Ack(self.of.stream, answer.lo, answer.hi, ((answer.lo, answer.hi),))

    async def abort(self) -> None:
        """Drop what this run has staged; what it still stages is refused (`BatchGone`), another run may begin.

        A batch that is committed stays committed.
        """
        answer = await self.ask(AbortBatch(_nonce(), self.of))
        assert isinstance(answer, BatchAborted)

    async def ask(self, request: Request) -> Message:
        """Ask the owner until it answers; a refusal is raised."""
        answer = await self._calls.ask(self.of.stream, request)
        if isinstance(answer, SinkRefused):
            raise refusal(self.of, answer)
        return answer

    async def split(self, table: pa.Table) -> list[Rows]:
        """The rows of a table in chunks that a message can carry."""
        return await self._calls.split(self.of.stream, table, CHUNK_ROWS, CHUNK_BYTES)


class Part:
    """One attempt at a partition. Rows are gathered into chunks; a few chunks are under way at a time."""

    def __init__(self, sink: Sink, partition: int) -> None:
        self._sink = sink
        self._partition = partition
        self._attempt = _nonce()
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._chunks = 0
        self._rows = 0
        self._flying: set[asyncio.Task[None]] = set()

    async def put(self, batch: pa.RecordBatch) -> None:
        """Stage rows: columns key and payload (binary) and attributes; each may be missing."""
        if batch.num_rows == 0:
            return
        size = batch.nbytes
        if self._waiting_rows + batch.num_rows > CHUNK_ROWS or self._waiting_bytes + size > CHUNK_BYTES:
            await self._stage()
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += size

    async def finish(self) -> Attempt:
        """Wait until everything is staged; what is returned goes to the driver."""
        await self._stage()
        while self._flying:
            await self._landed(asyncio.ALL_COMPLETED)
        return Attempt(self._partition, self._attempt, self._chunks, self._rows)

    async def _stage(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        for rows in await self._sink.split(table):
            while len(self._flying) >= WINDOW:
                await self._landed(asyncio.FIRST_COMPLETED)
            self._flying.add(asyncio.ensure_future(self._send(self._chunks, rows)))
            self._chunks += 1
            self._rows += rows.count

    async def _landed(self, when: str) -> None:
        """Wait for chunks under way; of several errors the first is raised, and the others are no news."""
        done, self._flying = await asyncio.wait(self._flying, return_when=when)
        errors = [error for task in done if (error := task.exception()) is not None]
        if errors:
            for task in self._flying:
                task.cancel()
            await asyncio.gather(*self._flying, return_exceptions=True)
            self._flying.clear()
            raise errors[0]

    async def _send(self, index: int, rows: Rows) -> None:
        """Stage one chunk; while the region has no room for any batch, wait."""
        until = asyncio.get_running_loop().time() + CROWDED
        while True:
            request = StageRows(_nonce(), self._sink.of, self._partition, self._attempt, index, rows)
            try:
                answer = await self._sink.ask(request)
                assert isinstance(answer, RowsStaged)
                return
            except StagingFull as full:
                if not full.crowded or asyncio.get_running_loop().time() > until:
                    raise
                await asyncio.sleep(PAUSE)


def refusal(of: SinkBatch, answer: SinkRefused) -> TidingsError:
    """The error to raise for an owner's refusal."""
    match answer.code:
        case "stream":
            return UnknownStream(answer.reason, of.stream)
        case "writer" | "stale":
            return WriterInUse(answer.reason)
        case "full" | "crowded":
            return StagingFull(answer.reason, crowded=answer.code == "crowded")
        case "gone":
            return BatchGone(answer.reason)
    return PublishFailed(answer.reason)


def make_batch(
    stream: StreamId, writer: str, query: str, batch: int, *, run: int | None, once: bool, reset: bool
) -> SinkBatch:
    """The identity of a batch; raises `BadInput`."""
    for name, value in (("writer", writer), ("query", query)):
        if not 0 < len(text(name, value)) <= 256:
            raise BadInput(f"{stream}: {name} {value!r}: use 1 to 256 characters")
    run = _nonce() if run is None else number("run", run, 0)
    return SinkBatch(writer, stream, query, number("batch", batch, 0), run, once, reset)


def _nonce() -> int:
    return secrets.randbits(48) + 1
