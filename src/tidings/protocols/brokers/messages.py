"""Messages between plain subscribers and the replicas that feed them, and the settings of both ends.

The replica's end is in feeds.py, the client's end in subscriber.py. Cursors of durable subscriptions have messages of
their own (services/cursors.py).
"""

from __future__ import annotations

from typing import ClassVar

from tidings.core.ids import NEVER, StreamId
from tidings.core.span import Span, is_knowledge
from tidings.protocols.kernel import Message, Value

EARLIEST, LATEST = -1, -2
"""In place of a number to begin with."""

NOWHERE = 0
"""The position in a `Feed` that asks whether the subscriber is alive."""


class Follow(Message, frozen=True, gc=False):
    """Feed me this stream from ``lo`` on. Answered with `Feed` (at once, perhaps empty) or `Unfollowed`.

    With ``asof`` it is a read: exactly the rows that survive collection below that number, the same at every replica.
    """

    from_clients: ClassVar[bool] = True
    signed: ClassVar[frozenset[str]] = frozenset({"lo"})

    id: int
    stream: StreamId
    lo: int  # a number, EARLIEST or LATEST
    where: str = ""
    hi: int = 0  # where it ends; 0: nowhere
    asof: int = 0  # 0: as it is when it is sent

    def valid(self) -> bool:
        return LATEST <= self.lo <= NEVER


class Feed(Message, frozen=True, gc=False):
    """Spans that continue what was sent before, and the sender's horizon. Without spans it is a heartbeat.

    With ``at`` = `NOWHERE` the sender has heard nothing for long and asks whether the subscriber is alive; the answer
    is `Consumed`. An older client takes this for an old position and follows anew, which is an answer, too.
    """

    id: int
    at: int  # where the spans begin
    spans: tuple[Span, ...]
    horizon: int

    def valid(self) -> bool:
        return not self.spans or is_knowledge(self.spans[0].stream, self.spans)

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 64 + sum([span.wire_size for span in self.spans])

    @property
    def events(self) -> int:  # type: ignore[override]
        return sum([span.rows.count for span in self.spans])


class Consumed(Message, frozen=True, gc=False):
    """The application has taken everything below ``horizon``: send more. A repetition says: slow, but alive."""

    from_clients: ClassVar[bool] = True

    id: int
    horizon: int


class Unfollow(Message, frozen=True, gc=False):
    """Stop feeding this subscription."""

    from_clients: ClassVar[bool] = True

    id: int


class Unfollowed(Message, frozen=True, gc=False):
    """The subscription is refused or ended, and why. ``unknown``: there is no such stream here, perhaps not yet.

    ``gone``: the stream is no more; its name may mean another one.
    ``floor``: this replica has forgotten how things were as of the number asked for; it remembers from here on.
    """

    id: int
    reason: str
    unknown: bool = False
    floor: int = 0
    gone: bool = False


class SubscriptionSettings(Value, frozen=True, gc=False):
    """Ours, because the paper has no plain subscribers."""

    window: int = 32  # messages beyond what was consumed
    window_bytes: int = 8 << 20  # and bytes, or large payloads would make it a large one; at least one message
    chunk_rows: int = 16_384  # rows in one of them
    apart: int = 256  # rows per span from which several are sent as they came: the history would copy them into one
    beat: float = 0.5  # seconds between heartbeats
    patience: int = 20  # beats without an answer before a subscriber is dropped
    ask: int = 120  # beats without a message, when none was due, before it is asked whether it is alive
    subscriptions: int = 65_536
    cursors: int = 65_536  # of a region
    swept: int = 1024  # rows of `_cursors` looked at in one go, and superfluous ones before that is worth it
    silence: float = 2.0  # seconds without a heartbeat before the next replica is asked
    again: float = 0.5  # likewise after a connection was lost; doubles while no replica answers, up to the silence
    settle: float = 3.0  # seconds for which a stream that a replica does not know may be new rather than none
    save: float = 0.2  # seconds between savings of a cursor
