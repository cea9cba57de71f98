"""Messages between brokers (Gryphon, A2.4 to A2.6), and their settings. Broker and subend are in broker.py, subend.py.

Knowledge flows down: `Brokered`, and `Offer` for the paper's AckExpected. Interest and curiosity flow up: `Status`,
`Nack` and `Acknowledge`. All of it is soft state, so every message may be lost, doubled or overtaken.
"""

from __future__ import annotations

from typing import TypeAlias

from tidings.core.ids import NodeId, StreamId
from tidings.core.span import Span, is_knowledge
from tidings.protocols.kernel import Message, Value

CellId: TypeAlias = str
"""A set of brokers that stand in for each other."""

Interest: TypeAlias = tuple[StreamId, str, tuple[str, ...]]
"""A stream, its declared attributes, and the filters of those below who want it; the empty filter wants every event."""


class Wanted(Value, frozen=True, gc=False):
    """What a broker wants, at a version that grows with each change; the versions of another life mean nothing.

    Without ``interests`` it is what the receiver knows of this version.
    """

    node: NodeId
    cell: CellId
    life: int
    version: int
    interests: tuple[Interest, ...] | None

    @property
    def wire_size(self) -> int:
        """Bytes, about."""
        if self.interests is None:
            return 48
        texts = [text for _, attrs, texts in self.interests for text in (attrs, *texts)]
        return 48 + 16 * len(self.interests) + sum([8 + len(text) for text in texts])


class Status(Message, frozen=True, gc=False):
    """The sender is alive: to every broker of the upstream cell, every second.

    ``reaches`` are the cells below it that it hears from: an upstream broker sends nothing for others that way.
    ``edges`` are the edges there, itself if it is one: clients learn of them from replicas.
    """

    wanted: Wanted
    reaches: tuple[CellId, ...]
    edges: tuple[NodeId, ...] = ()

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 16 + self.wanted.wire_size + 16 * (len(self.reaches) + len(self.edges))


class StatusHeard(Message, frozen=True, gc=False):
    """The answer to `Status`: the sender is alive. ``connected``: and hears from brokers up to a replica.

    ``version``: of what the receiver wants, that the sender knows; 0: none.
    """

    connected: bool
    version: int


class PeerStatus(Message, frozen=True, gc=False):
    """The same to the other brokers of the own cell: the brokers below that it hears from, and what they want."""

    below: tuple[Wanted, ...]

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 16 + sum([each.wire_size for each in self.below])


class Brokered(Message, frozen=True, gc=False):
    """What the sender knows of a stream and the receiver may not. ``again``: an answer to a nack.

    The lens of the spans says whose interests, at which version, they have been filtered by (`label`). With ``to`` the
    receiver is a peer that is to pass it on to that node, as it is, and to nobody else.
    """

    stream: StreamId
    spans: tuple[Span, ...]
    again: bool = False
    to: NodeId = ""

    def valid(self) -> bool:
        return is_knowledge(self.stream, self.spans)

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 64 + sum([span.wire_size for span in self.spans])

    @property
    def events(self) -> int:  # type: ignore[override]
        return sum([span.rows.count for span in self.spans])


class Nack(Message, frozen=True, gc=False):
    """The sender is curious about [lo, hi), filtered by at least this version of its interests."""

    stream: StreamId
    lo: int
    hi: int
    version: int


class Acknowledge(Message, frozen=True, gc=False):
    """Nobody below the sender needs a number below ``below`` any more."""

    stream: StreamId
    below: int


class BrokerSettings(Value, frozen=True, gc=False):
    """The paper's values (A2.30 to A2.33) where it gives some; the others are ours."""

    gct: float = 0.2  # seconds for which a gap may be a message on its way
    nrt: float = 0.6  # seconds before a nack is repeated, at least
    dct: float = 0.0  # seconds without progress after which what comes next is asked for; 0: never (A2.32)
    aet: float = 10.0  # seconds after which what was published is expected to be acknowledged
    status: float = 1.0  # seconds between two of them
    patience: float = 3.5  # seconds without one after which a broker is not there
    tick: float = 0.05  # seconds between two looks at what is due
    ack: float = 0.2  # seconds between acknowledgements
    silence: float = 1.0  # seconds after which coverage without rows is told
    chop: int = 256  # numbers in one nack (A2.25)
    ranges: int = 4096  # that are curious, or not told yet, of one stream and receiver
    room: int = 64 << 20  # bytes of knowledge kept of one stream
    backoff: float = 8.0  # seconds between nacks at most
