"""The four kinds of message that carry knowledge: offer, want, know, done.

Protocols share a message type where the meaning is the same. A message of one protocol alone is in its file.
"""

from __future__ import annotations

from typing import ClassVar

from tidings.core.ids import StreamId
from tidings.core.span import Span, is_knowledge
from tidings.protocols.kernel import Message


class Offer(Message, frozen=True, gc=False):
    """Sprinkler's NOTIFY: "my horizon in this stream is n". The receiver wants what it has not asked for yet."""

    from_clients: ClassVar[bool] = True

    stream: StreamId
    horizon: int  # first number the sender does not know


class Want(Message, frozen=True, gc=False):
    """Sprinkler's REQUEST for [lo, hi). The receiver answers with `Know`: whatever of it it holds."""

    from_clients: ClassVar[bool] = True

    stream: StreamId
    lo: int
    hi: int


class Know(Message, frozen=True, gc=False):
    """Sprinkler's EVENTS: spans, perhaps with holes between them or none at all, and the sender's horizon.

    The receiver delivers what continues its own horizon and learns from the rest what it must ask elsewhere.
    """

    from_clients: ClassVar[bool] = True

    stream: StreamId
    spans: tuple[Span, ...]
    horizon: int

    def valid(self) -> bool:
        return is_knowledge(self.stream, self.spans)  # else rows would enter the log under a false name

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        spans = self.spans
        if len(spans) == 1:  # nearly always
            return 64 + spans[0].wire_size
        return 64 + sum([span.wire_size for span in spans])

    @property
    def events(self) -> int:  # type: ignore[override]
        spans = self.spans
        if len(spans) == 1:
            return spans[0].rows.count
        return sum([span.rows.count for span in spans])


class Done(Message, frozen=True, gc=False):
    """The sender holds everything below ``horizon``: the receiver may send that much further (credit)."""

    stream: StreamId
    horizon: int
