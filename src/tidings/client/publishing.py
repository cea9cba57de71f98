"""The calls of a connection that publish: events, tables and collecting events, acknowledged or refused.

batching.py turns single events into batches; here the answers of the machine become acknowledgements and errors.
"""

from __future__ import annotations

import asyncio

import pyarrow as pa

from tidings.client.batching import Attrs, Batcher, Lane
from tidings.client.commands import Broken, Submit
from tidings.client.errors import (
    Closed,
    Fenced,
    Full,
    PayloadTooLarge,
    PublishFailed,
    TidingsError,
    UnknownStream,
)
from tidings.client.events import Ack
from tidings.client.session import Session
from tidings.client.streams import StreamCalls
from tidings.client.tables import batches_of
from tidings.client.validation import number, text
from tidings.core.errors import BadInput
from tidings.core.filters import parse_attributes
from tidings.core.gc import GcPolicy
from tidings.core.ids import FIRST, RegionId, StreamId, stream_name
from tidings.core.predicates import Predicate
from tidings.core.rows import Rows, before_rows, where_rows
from tidings.protocols.services.catalog import StreamDef
from tidings.protocols.services.publishing import Acked, Refused

_SUPERSEDED = {"fenced", "repacked"}
"""Reasons to end a session that a newer client of the same id has caused."""


class PublishCalls:
    """What the connection publishes. `batcher` takes single events; `Connection.post` uses it directly."""

    batcher: Batcher

    def __init__(self, session: Session, streams: StreamCalls) -> None:
        self.lanes: dict[StreamId, Lane] = {}
        self._session = session
        self._streams = streams
        session.on_start.append(self._start)
        session.on_described.append(self._described)
        session.on_end.append(self._end)
        session.on(Acked, self._on_acked)
        session.on(Refused, self._on_refused)
        session.on(Broken, self._on_broken)
        streams.on_defined = self._defined

    def _start(self) -> None:
        self.batcher = Batcher(self._session.loop, self._submit, self._session.host.prompt)
        self.lanes = self.batcher.lanes

    def _end(self, error: TidingsError) -> None:
        self.batcher.close(error)

    def _submit(self, region: RegionId, stream: StreamId, rows: Rows, tag: int) -> None:
        self._session.host.command(Submit(region, stream, rows, tag))

    # --- calls ----------------------------------------------------------------------------------------------

    def lane(self, stream: StreamId) -> Lane:
        """Where events of a stream are gathered."""
        return self.batcher.lane(self._streams.find(stream))

    async def publish(self, stream: StreamId, key: bytes | None, payload: bytes, attrs: Attrs | None) -> Ack:
        """Publish one event; returns when it is durable at the owner's tail."""
        lane = self.lanes.get(stream)
        if lane is None:
            await self._streams.known(stream)
            lane = self.lane(stream)
        while True:
            try:
                future = self.batcher.put_waiting(lane, key, payload, attrs)
                break
            except Full:
                await self.batcher.drain()
        return await _acknowledged(future)

    async def publish_table(self, stream: StreamId, table: pa.Table | pa.RecordBatch) -> Ack:
        """Publish the rows of a table."""
        definition = await self._streams.known(stream)
        if not isinstance(table, pa.Table | pa.RecordBatch):
            raise BadInput(f"{stream}: a table is an Arrow table or record batch, not {type(table).__name__}")
        if table.num_rows == 0:
            raise BadInput(f"{stream}: the table has no row; an event has at least a payload")
        return await self._publish_rows(definition, batches_of(definition, table))

    async def collect(self, stream: StreamId, before: int | None, where: str | None) -> Ack:
        """Publish an event that collects others."""
        definition = await self._streams.known(stream)
        if (before is None) == (where is None):
            raise BadInput(f"{stream}: collect either before=SEQ or where=SQL")
        if where is not None:
            text("where", where)
            by_key = GcPolicy.parse(definition.gc).by_key
            predicate = Predicate.make(where, parse_attributes(definition.attrs), by_key)
            return await self._publish_rows(definition, [where_rows(FIRST, [predicate.text])])
        return await self._publish_rows(definition, [before_rows(FIRST, [number("before", before)])])

    async def flush(self) -> list[Ack]:
        """Wait until every posted event is durable."""
        self._session.alive()
        return await self.batcher.flush()

    async def drain(self) -> None:
        """Give the loop a turn, and wait while too many posted events are pending."""
        self._session.alive()
        await self.batcher.drain()

    async def flush_at_the_end(self, timeout: float) -> None:
        """Make posted events durable within so many seconds; raises which are not."""
        try:
            async with asyncio.timeout(timeout):
                await self.batcher.flush()
        except TimeoutError:
            failed = Closed(f"the connection was closed, and nobody acknowledged within {timeout:g} s")
            self.batcher.close(failed)
            await self.batcher.flush()  # raises

    async def _publish_rows(self, definition: StreamDef, rows: list[Rows]) -> Ack:
        await self.batcher.drain()
        futures = self.batcher.put_rows(self.lane(definition.id), rows)
        try:
            acks = [await _acknowledged(future) for future in futures]
        except BaseException:
            for future in futures:
                future.cancel() if not future.done() else future.exception()
            raise
        parts: list[tuple[int, int]] = []
        for ack in acks:
            if parts and parts[-1][1] == ack.lo:
                parts[-1] = (parts[-1][0], ack.hi)
            else:
                parts.append((ack.lo, ack.hi))
        return Ack(definition.name, parts[0][0], parts[-1][1], tuple(parts))

    # --- what the machine tells -----------------------------------------------------------------------------

    def _defined(self, definition: StreamDef) -> None:
        """A stream was created or altered: its lane, if there is one, takes the new attributes."""
        if definition.name in self.lanes:
            self.batcher.lane(definition)

    def _described(self) -> None:
        """Attributes may have been added by others, or the stream created anew."""
        for name, lane in list(self.lanes.items()):
            definition = self._session.machine.streams.get(name)
            if definition is not None and (lane.id, lane.attributes) != (definition.id, definition.attrs):
                self.batcher.lane(definition)

    def _on_acked(self, item: Acked) -> None:
        self.batcher.acked(item.tag, item.lo, item.hi)

    def _on_refused(self, item: Refused) -> None:
        error: TidingsError
        name = stream_name(item.stream)
        if item.reason == "stream":
            lane = self.lanes.get(name)
            if lane is not None and lane.id == item.stream:
                self.batcher.leave(lane)
            error = UnknownStream(f"stream {name!r} is unknown to its owner; perhaps it was deleted", name)
        elif item.reason == "size":
            error = PayloadTooLarge(f"{name}: the owner refused the batch: it is too large; publish less at once")
        else:
            error = PublishFailed(f"{name}: the owner refused the batch ({item.reason}): it does not fit the stream")
        self.batcher.refused(item.tag, error)

    def _on_broken(self, item: Broken) -> None:
        client_id = self._session.client_id
        error: TidingsError
        if item.reason in _SUPERSEDED:
            error = Fenced(
                f"client_id {client_id!r}: a newer client publishes to region {item.region} under this id; "
                "connect anew, or under another"
            )
        else:
            error = PublishFailed(
                f"client_id {client_id!r}: region {item.region} has forgotten this session ({item.reason}): "
                "what was not acknowledged may or may not be published; connect anew"
            )
        self.batcher.fail(item.region, error)


async def _acknowledged(future: asyncio.Future[Ack]) -> Ack:
    try:
        return await future
    except TidingsError as error:
        raise type(error)(*error.args) from error  # several may wait for one batch: each gets its own
