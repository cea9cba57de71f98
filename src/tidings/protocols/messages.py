"""The four kinds of message that carry knowledge: offer, want, know, done.

Protocols share these where the meaning is the same; what is peculiar to one protocol lives in its own file.
"""

from __future__ import annotations

from tidings.core.ids import RegionId, StreamId
from tidings.core.span import Span
from tidings.protocols.kernel import Message


class Offer(Message, frozen=True, gc=False):
    """Sprinkler's NOTIFY: "my horizon in this stream is n". The receiver wants what it has not asked for yet."""

    stream: StreamId
    horizon: int  # first number the sender does not know


class Want(Message, frozen=True, gc=False):
    """Sprinkler's REQUEST for [lo, hi). The receiver answers with `Know`: whatever of it it holds."""

    stream: StreamId
    lo: int
    hi: int


class Know(Message, frozen=True, gc=False):
    """Sprinkler's EVENTS: spans, perhaps with holes between them or none at all, and the sender's horizon.

    The receiver delivers what continues its own horizon and learns from the rest what it must ask elsewhere.
    """

    stream: StreamId
    spans: tuple[Span, ...]
    horizon: int
    owner: RegionId = ""  # between regions: whose stream of this name it is; "" if the sender does not say

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


class Read(Message, frozen=True, gc=False):
    """A reader asks for exactly the rows of [lo, hi) that survive collection below ``asof``.

    Any replica answers with `Answer`, or with `Gone` if it can no longer tell; what is too much for a message it does
    not answer.
    """

    stream: StreamId
    lo: int
    hi: int
    asof: int


class Answer(Message, frozen=True, gc=False):
    """The rows a `Read` asked for; the same from every replica that can answer."""

    span: Span

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 64 + self.span.wire_size


class Gone(Message, frozen=True, gc=False):
    """Answer to a `Read` below the floor: read again at or above ``floor``."""

    stream: StreamId
    asof: int
    floor: int


class Done(Message, frozen=True, gc=False):
    """The sender holds everything below ``horizon``: the receiver may send that much further (credit)."""

    stream: StreamId
    horizon: int
