"""Every error that a client raises. Match on the class; the text says what to do. All are a `TidingsError`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tidings.core.errors import AsofGone, BadAttribute, BadFilter, BadInput, NotFinal, TidingsError

if TYPE_CHECKING:
    from tidings.client.events import Ack

__all__ = [
    "AsofGone",
    "BadAttribute",
    "BadFilter",
    "BadInput",
    "BatchGone",
    "Closed",
    "Fenced",
    "Full",
    "LeaseExpired",
    "LeasesFull",
    "NotBuilt",
    "NotFinal",
    "NotPublished",
    "OrderStalled",
    "PayloadTooLarge",
    "PublishFailed",
    "StagingFull",
    "SubscriptionEnded",
    "Superseded",
    "TidingsError",
    "UnknownStream",
    "Unreachable",
    "Unsettled",
    "WriterInUse",
]


class UnknownStream(BadInput):
    """There is no such stream, as far as the region that the client is connected to knows."""

    def __init__(self, message: str, stream: str = "") -> None:
        super().__init__(message)
        self.stream = stream


class PayloadTooLarge(BadInput):
    """An event is larger than a stream takes; split it, or publish a link to it."""


class NotBuilt(TidingsError):
    """What is asked for is designed but not built yet."""


class Closed(TidingsError):
    """The connection, subscription or cache has been closed."""


class Unreachable(TidingsError):
    """No replica answers at the addresses of the URL, or one answers and refuses this client."""


class Full(TidingsError):
    """Too many posted events are not durable yet: this one was not taken. Await `drain()` and post it again."""


class LeaseExpired(TidingsError):
    """The lease is over: what it kept may be forgotten."""


class LeasesFull(TidingsError):
    """A region has as many leases as it takes; the text says until when at least."""


class Fenced(TidingsError):
    """A newer client with the same ``client_id`` publishes now; this one may not go on. Connect anew."""


class NotPublished(msgspec.Struct, frozen=True):
    """Events of one call or one batch that are not known to be durable. ``in_doubt``: they may be published."""

    stream: str
    count: int
    reason: str
    in_doubt: bool
    keys: Sequence[bytes | None] = ()
    payloads: Sequence[bytes] = ()
    attrs: Sequence[dict[str, Any] | None] | None = None


class PublishFailed(TidingsError):
    """Some events are not durable: ``failed`` says which and why, ``acks`` where the others of the flush are."""

    def __init__(self, message: str, failed: Sequence[NotPublished] = (), acks: Sequence[Ack] = ()) -> None:
        super().__init__(message)
        self.failed = tuple(failed)
        self.acks = tuple(acks)


class WriterInUse(TidingsError):
    """Another query, or a later batch of this one, has been committed under this writer's name."""


class BatchGone(TidingsError):
    """The staged rows of a batch are gone, so nothing of it was published: run the batch again."""


class StagingFull(TidingsError):
    """There is no room to stage more: for this batch, or (``crowded``) for any batch at the moment."""

    def __init__(self, message: str, crowded: bool = False) -> None:
        super().__init__(message)
        self.crowded = crowded


class SubscriptionEnded(TidingsError):
    """The subscription cannot go on, and why."""


class Superseded(SubscriptionEnded):
    """A newer subscriber holds this durable name; what was not acknowledged is delivered to it."""


class OrderStalled(SubscriptionEnded):
    """Nothing came of a region for longer than ``patience``, so the total order could not go on.

    ``stream`` is the stream that held it up, ``region`` who is silent. Everything before ``start`` was delivered:
    subscribe again with it, without that stream or later.
    """

    def __init__(self, message: str, region: str = "", stream: str = "", start: str | int = "latest") -> None:
        super().__init__(message)
        self.region = region
        self.stream = stream
        self.start = start


class Unsettled(TidingsError):
    """A value was invalidated again and again while it was loaded, so that no load could be trusted. Try again."""
