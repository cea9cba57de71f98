"""The head's service for streams: create, alter and delete them, and declare losses (DESIGN 1: *lost* is final).

One definition is under way at a time. A definition is in force when it is committed (streams.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tidings.core.errors import BadInput
from tidings.core.ids import NodeId, StreamId
from tidings.core.span import Span
from tidings.protocols.kernel import Message, Time
from tidings.protocols.services.catalog import (
    DeclareLost,
    Define,
    Defined,
    NotDefined,
    WasDeleted,
    definition_rows,
    definitions_of,
    refused_loss,
)
from tidings.protocols.services.head import AS_HEAD, Head, HeadService, Step
from tidings.protocols.services.streams import StreamTable


class Definitions(HeadService):
    """Answers `Define` and `DeclareLost`. ``reserved``: whether a stream's next numbers are given away."""

    handles: ClassVar[frozenset[type[Message]]] = frozenset({Define, DeclareLost})

    def __init__(self, head: Head, table: StreamTable, reserved: Callable[[StreamId], bool]) -> None:
        self.head = head
        self.table = table
        self.reserved = reserved

    def receive(self, now: Time, src: NodeId, message: Message) -> Step:
        if isinstance(message, Define):
            return self._define(now, src, message)
        assert isinstance(message, DeclareLost)
        return self._declare_lost(src, message)

    def _define(self, now: Time, src: NodeId, request: Define) -> Step:
        log, stream = self.table.log, definitions_of(self.table.region)
        known = self.table.catalog.names.get(request.definition.name)
        moving = known is not None and (self.reserved(known.id) or self.table.pending(known.id))
        moving = moving or self.table.pending(request.definition.name)  # perhaps another region's: then it is refused
        if self.head.busy or moving or log.ends[stream] > log.histories[stream].horizon:
            return Step(reports=["define_busy"])  # asked again later
        try:
            definition = self.table.catalog.define(request.operation, request.definition, now)
        except WasDeleted as error:
            return Step(answers=[(src, NotDefined(request.nonce, str(error), error.mark), AS_HEAD)])
        except BadInput as error:
            return Step(answers=[(src, NotDefined(request.nonce, str(error)), AS_HEAD)])
        answer = Defined(request.nonce, definition)
        if definition == known:
            return Step(answers=[(src, answer, log.committed)])
        lo = log.ends[stream]
        part = Span.of(stream, lo, definition_rows(lo, definition, now, self.table.region))
        return Step([part], [(src, answer, log.last + 1)])

    def _declare_lost(self, src: NodeId, request: DeclareLost) -> Step:
        """Declare a range lost that begins where the stream ends; a repeated request gets the same answer."""
        table, log = self.table, self.table.log
        stream = table.own(request.stream)
        if stream is None:
            if table.uncommitted(request.stream):
                return Step(reports=["declare_busy"])
            reason = f"region {table.region} has no stream {request.stream!r}"
            return Step(answers=[(src, NotDefined(request.nonce, reason), AS_HEAD)])
        history, end = log.histories[stream.id], log.ends[stream.id]
        if self.head.busy or self.reserved(stream.id) or table.pending(stream.id) or end > history.horizon:
            return Step(reports=["declare_busy"])  # asked again later
        lo, hi = request.lo, request.hi
        if history.is_lost(lo, hi):
            return Step(answers=[(src, Defined(request.nonce, stream), log.committed)])
        if reason := refused_loss(stream, end, lo, hi):
            return Step(answers=[(src, NotDefined(request.nonce, reason), AS_HEAD)])
        loss = Span.declared_lost(stream.id, lo, hi)
        return Step([loss], [(src, Defined(request.nonce, stream), log.last + 1)])
