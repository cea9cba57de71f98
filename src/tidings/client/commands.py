"""What a connection tells its machine, what the machine delivers to it, and the machine's timers.

Items that a part of the machine delivers itself are declared with that part:

    Acked, Refused                protocols/services/publishing.py
    Fed, Saved, Ended, Refiltered, and Lost   protocols/brokers/subscriber.py
    Granted, Dropped, MoveLease   protocols/services/leases.py
    SinkAnswered                  protocols/services/sink_client.py
    Heard                         fabric.py
"""

from __future__ import annotations

from tidings.core.ids import RegionId, StreamId
from tidings.core.rows import Rows
from tidings.protocols.kernel import Command, Message, Timer, Value
from tidings.protocols.services.leases import Lease
from tidings.protocols.services.sinks import Request

# --- commands -------------------------------------------------------------------------------------------


class Submit(Command, frozen=True, gc=False):
    """Publish a batch to a stream of a region; the answer is `Acked`, `Refused` or `Broken`."""

    region: RegionId
    stream: StreamId
    rows: Rows
    tag: int


class Open(Command, frozen=True, gc=False):
    """Subscribe to one stream; ``lo`` is a number, EARLIEST or LATEST, and ``holder`` grows with time.

    With ``asof`` it is a read of [lo, hi); ``replica`` says which of the region to begin with (else any).
    """

    id: int
    stream: StreamId
    lo: int
    where: str
    name: str | None
    holder: int
    hi: int = 0
    asof: int = 0
    replica: int | None = None


class ChangeFilter(Command, frozen=True, gc=False):
    """What comes of a subscription from now on is to pass another filter; delivered is a `Refiltered`."""

    id: int
    where: str


class Taken(Command, frozen=True, gc=False):
    """The application has taken everything below ``horizon`` from a subscription."""

    id: int
    horizon: int


class Processed(Command, frozen=True, gc=False):
    """The application has processed everything below ``horizon``; ``prompt``: it waits for `Saved`."""

    id: int
    horizon: int
    prompt: bool = False


class Close(Command, frozen=True, gc=False):
    """A subscription is over."""

    id: int


class Ask(Command, frozen=True, gc=False):
    """Ask a replica of a region (its head; any region if none is named) until there is an answer."""

    nonce: int
    message: Message
    region: RegionId = ""
    head: bool = False


class Hold(Command, frozen=True, gc=False):
    """Get a lease and renew it; ``resume``: one that was granted already. Delivered are `Granted` and `Dropped`."""

    lease: Lease
    resume: bool = False


class LetGo(Command, frozen=True, gc=False):
    """Renew a lease no longer, and ``release`` it."""

    name: str
    release: bool = True


class Drop(Command, frozen=True, gc=False):
    """The application has given up waiting for an answer."""

    nonce: int


class Sinking(Command, frozen=True, gc=False):
    """Ask the owner of a sink's stream something; delivered is a `SinkAnswered`."""

    region: RegionId
    request: Request


class DropSinking(Command, frozen=True, gc=False):
    """The application has given up waiting for the answer to a `Sinking`."""

    region: RegionId
    nonce: int


# --- what is delivered, besides what the parts deliver ----------------------------------------------------


class Answered(Value, frozen=True, gc=False):
    """The answer to an `Ask`."""

    nonce: int
    message: Message


class Broken(Value, frozen=True, gc=False):
    """This client may publish to a region no more, and why."""

    region: RegionId
    reason: str


# --- timers -----------------------------------------------------------------------------------------------


class PublisherTick(Timer, frozen=True, gc=False):
    """A publisher's timer."""

    region: RegionId
    generation: int
    timer: Timer


class SinkingTick(Timer, frozen=True, gc=False):
    """The timer of a region's sinks."""

    region: RegionId
    timer: Timer


class SubscriberTick(Timer, frozen=True, gc=False):
    """A subscriber's timer."""

    id: int
    timer: Timer


class AskTick(Timer, frozen=True, gc=False):
    """A question has waited for an answer."""

    nonce: int
    turn: int


class RefreshTick(Timer, frozen=True, gc=False):
    """Time to look how the cluster has changed."""
