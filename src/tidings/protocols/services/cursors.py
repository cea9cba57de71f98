"""Durable subscriptions: the head's replicated table of how far each one has been processed.

A durable subscription has a *cursor*, kept by the chain of the subscriber's region as one entry of the internal stream
`_cursors`. The holder that opened it last may move it forward; an older holder is told that it was superseded. The
client's end is `Subscriber` (brokers/subscriber.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import msgspec

from tidings.core.history import History
from tidings.core.ids import NodeId, StreamId, stream_name
from tidings.core.rows import ArrowRows, Origin, Rows, before_rows, data_rows
from tidings.core.span import Span
from tidings.protocols.brokers.messages import SubscriptionSettings
from tidings.protocols.kernel import Message, Time, Value
from tidings.protocols.services.head import AS_HEAD, Head, HeadService, RowsOf, Step
from tidings.protocols.services.streams import StreamTable

CURSORS: StreamId = "_cursors"
"""The internal stream that holds one entry per durable subscription and stream, by key."""

MERGED: StreamId = "_merged"
"""In place of a stream: the cursor of a durable merge of streams. Its horizon is a tick: all up to it is processed."""

LONGEST_NAME = 1024  # characters of a durable subscription's name; ours, as many as a receipt has room for


class OpenCursor(Message, frozen=True, gc=False):
    """To the region's head: this holder takes over a durable subscription; answered with `CursorAt`."""

    from_clients: ClassVar[bool] = True

    name: str
    stream: StreamId
    holder: int


class SaveCursor(Message, frozen=True, gc=False):
    """To the region's head: everything below ``horizon`` is processed; answered with `CursorAt`."""

    from_clients: ClassVar[bool] = True

    name: str
    stream: StreamId
    holder: int
    horizon: int


class CursorAt(Message, frozen=True, gc=False):
    """How far a durable subscription has been processed, and its holder: an older holder stops.

    ``refused``: why it cannot be opened; an older client asks again. ``unknown`` as in `Unfollowed`.
    """

    name: str
    stream: StreamId
    holder: int
    horizon: int  # 0: never saved
    refused: str = ""
    unknown: bool = False


class Cursor(Value, frozen=True, gc=False):
    """What the chain remembers of a durable subscription to one stream."""

    holder: int
    horizon: int
    node: NodeId = ""  # that opened it: two nodes may have chosen the same holder number


class Cursors:
    """The head's table of durable subscriptions. `OpenCursor` enters one; `SaveCursor` alone does not."""

    def __init__(self, settings: SubscriptionSettings | None = None) -> None:
        self.settings = settings or SubscriptionSettings()
        self.entries: dict[tuple[str, StreamId], Cursor] = {}
        self.inherited = 0  # entries found at the start: a head with other settings may have taken more
        self.swept = 0  # rows below this number are collected, or will be when the record is committed

    def load(self, rows: Iterable[Rows], is_there: Callable[[StreamId], bool] = lambda stream: True) -> None:
        """Rebuild the table from the `_cursors` rows of history and log, oldest first; not of streams that are gone."""
        self.entries.clear()
        self.swept = 0
        for part in rows:
            for (name, stream), payload in _pairs(part):
                if is_there(stream):
                    self.entries[name, stream] = msgspec.msgpack.decode(payload, type=Cursor)
        self.inherited = len(self.entries)

    def check(self) -> None:
        assert len(self.entries) <= max(self.settings.cursors, self.inherited), "cursors are bounded"

    def receive(self, src: NodeId, message: OpenCursor | SaveCursor) -> tuple[CursorAt, bool]:
        """The answer to a holder, and whether an entry must be written first."""
        key = (message.name, message.stream)
        known = self.entries.get(key)
        new = known
        if isinstance(message, OpenCursor):
            if known is None and (reason := self._wrong(message.name)):
                return CursorAt(message.name, message.stream, 0, 0, reason), False
            if known is None or message.holder > known.holder:
                new = Cursor(message.holder, known.horizon if known is not None else 0, src)
            elif message.holder == known.holder and known.node not in ("", src):  # it must take a number of its own
                return CursorAt(message.name, message.stream, known.holder + 1, known.horizon), False
        elif known is not None and message.holder == known.holder and message.horizon > known.horizon:
            new = Cursor(known.holder, message.horizon, known.node)
        if new is None:  # saved, but never opened
            return CursorAt(message.name, message.stream, 0, 0), False
        self.entries[key] = new
        return CursorAt(message.name, message.stream, new.holder, new.horizon), new != known

    def _wrong(self, name: str) -> str:
        """Why there cannot be one more, or ""."""
        if not 0 < len(name) <= LONGEST_NAME:
            return f"the name of a durable subscription has 1 to {LONGEST_NAME} characters, not {len(name)}"
        if len(self.entries) >= self.settings.cursors:
            return f"the region has {len(self.entries)} durable subscriptions, and takes no more"
        return ""

    def forget(self, stream: StreamId) -> None:
        """The stream was deleted, for good."""
        self.entries = {key: entry for key, entry in self.entries.items() if key[1] != stream}

    def sweep(self, lo: int, history: History, now: Time) -> list[Span]:
        """What to write, from ``lo`` on, when most rows of `_cursors` are of streams that are gone; else nothing.

        No later row has the keys of such rows, so nothing would ever collect them. Of the oldest rows those that count
        are written again, and "before n" collects the rest: a piece at a time, so that no record is large.
        """
        if history.live <= 2 * len(self.entries) + self.settings.swept or history.low < self.swept:
            return []
        oldest = history.know(history.low, history.horizon, self.settings.swept)
        keys = [key for span in oldest for key, _ in _pairs(span.rows) if key in self.entries]
        at, self.swept = lo + len(keys), oldest[-1].hi
        before = Span.of(CURSORS, at, before_rows(at, [self.swept], Origin(at, at + 1, CURSORS, 0, at, 0, now)))
        if not keys:
            return [before]
        names = [msgspec.msgpack.encode(key) for key in keys]
        payloads = [msgspec.msgpack.encode(self.entries[key]) for key in keys]
        return [Span.of(CURSORS, lo, data_rows(lo, names, payloads, Origin(lo, at, CURSORS, 0, lo, 0, now))), before]

    def rows(self, lo: int, name: str, stream: StreamId, now: Time) -> Rows:
        """An entry as the next row of the `_cursors` stream."""
        payload = msgspec.msgpack.encode(self.entries[name, stream])
        return data_rows(
            lo, [msgspec.msgpack.encode((name, stream))], [payload], Origin(lo, lo + 1, name, 0, lo, 0, now)
        )


class CursorService(HeadService):
    """Answers `OpenCursor` and `SaveCursor`: moves a durable subscription, or hands it to another holder."""

    handles: ClassVar[frozenset[type[Message]]] = frozenset({OpenCursor, SaveCursor})

    def __init__(self, head: Head, table: StreamTable, cursors: Cursors) -> None:
        self.head = head
        self.table = table
        self.cursors = cursors

    def load(self, now: Time, rows_of: RowsOf) -> None:
        self.cursors.load(rows_of(CURSORS), self._is_there)

    def check(self) -> None:
        self.cursors.check()

    def receive(self, now: Time, src: NodeId, message: Message) -> Step:
        assert isinstance(message, OpenCursor | SaveCursor)
        if self.head.busy:
            return Step(reports=["cursor_busy"])  # asked again later
        if not self._is_there(message.stream):
            if self.table.uncommitted(message.stream):
                return Step(reports=["cursor_busy"])
            reason = f"stream {stream_name(message.stream)!r} is unknown here"
            refusal = CursorAt(message.name, message.stream, 0, 0, reason, unknown=True)
            return Step(answers=[(src, refusal, AS_HEAD)], reports=["cursor_refused"])
        answer, changed = self.cursors.receive(src, message)
        if not changed:
            return Step(answers=[(src, answer, AS_HEAD)], reports=["cursor_refused"] if answer.refused else [])
        log = self.table.log
        lo = log.ends[CURSORS]
        part = Span.of(CURSORS, lo, self.cursors.rows(lo, message.name, message.stream, now))
        return Step([part], [(src, answer, log.last + 1)])

    def _is_there(self, stream: StreamId) -> bool:
        return stream == MERGED or self.table.readable(stream) is not None

    def tick(self, now: Time) -> Iterator[Step]:
        """Collect the rows of cursors whose streams are gone."""
        log = self.table.log
        if not self.head.busy and not self.head.recovering():
            parts = self.cursors.sweep(log.ends[CURSORS], log.histories[CURSORS], now)
            if parts:
                yield Step(parts)


def _pairs(rows: Rows) -> Iterator[tuple[tuple[str, StreamId], bytes]]:
    """Names and entries in rows of `_cursors`."""
    assert isinstance(rows, ArrowRows)
    columns = [rows.batch.column(name).to_pylist() for name in ("key", "payload")]
    for key, payload in zip(*columns, strict=True):
        if key is not None:
            yield msgspec.msgpack.decode(key, type=tuple[str, str]), payload
