"""The boundary between a protocol and the world: inputs in, effects out.

A protocol is a state machine with one entry, ``handle(now, input) -> effects``. It owns no clock, socket, thread or
global randomness. Its driver (the simulator, or the host of a real process) passes the time in, carries the effects
out, and answers a ``Persist`` with ``Persisted`` once the record is on stable storage.

Order is part of the contract: effects are carried out in list order, and a driver handles one input at a time.
Timers are never cancelled: a timer carries what makes it stale (a generation), and a stale one is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import msgspec

NodeId: TypeAlias = str
Time: TypeAlias = float  # seconds on the node's own clock


class Value(msgspec.Struct, frozen=True, gc=False):
    """An immutable value that crosses a boundary."""

    def valid(self) -> bool:
        """Whether a value from outside makes sense, as far as the types of its fields do not say."""
        return True


class Message(Value, frozen=True, gc=False):
    """Something one node tells another. ``wire_size`` is what it costs on a link, ``events`` what it carries."""

    wire_size: ClassVar[int] = 64
    events: ClassVar[int] = 0
    from_clients: ClassVar[bool] = False  # whether a client may say it; else only nodes of the cluster may
    signed: ClassVar[frozenset[str]] = frozenset()  # integers that may be negative


class Timer(Value, frozen=True, gc=False):
    """A reminder a protocol sets for itself."""


class Command(Value, frozen=True, gc=False):
    """Something the application asks of its own node."""


def below(base: type[Any]) -> Iterator[type[Any]]:
    """All classes below one that this process has imported."""
    children: list[type[Any]] = base.__subclasses__()
    for child in children:
        yield child
        yield from below(child)


# --- inputs ---------------------------------------------------------------------------------------------


class Received(Value, frozen=True, gc=False):
    """A message has arrived."""

    src: NodeId
    message: Message


class Expired(Value, frozen=True, gc=False):
    """A timer has run out."""

    timer: Timer


class Persisted(Value, frozen=True, gc=False):
    """Everything persisted under a token up to and including this one is on stable storage."""

    token: int


Input: TypeAlias = Received | Expired | Persisted | Command


# --- effects --------------------------------------------------------------------------------------------


class Send(Value, frozen=True, gc=False):
    """Hand a message to the network; it may be lost, doubled or overtaken."""

    to: NodeId
    message: Message


class SendAll(Value, frozen=True, gc=False):
    """`Send` the same message to several nodes, in this order."""

    to: tuple[NodeId, ...]
    message: Message


class SetTimer(Value, frozen=True, gc=False):
    """Ask for ``Expired(timer)`` after a delay in seconds."""

    delay: float
    timer: Timer


class Persist(Value, frozen=True, gc=False):
    """Write a record to stable storage, in order; ``Persisted(token)`` answers. Tokens ascend."""

    record: Any
    token: int


class Deliver(Value, frozen=True, gc=False):
    """Hand an item to the layer above: the application, or the machine that composes this one."""

    item: Any


class Report(Value, frozen=True, gc=False):
    """Count something worth knowing (a metric, a goal of a campaign)."""

    name: str
    value: float = 1.0


Effect: TypeAlias = Send | SendAll | SetTimer | Persist | Deliver | Report
Effects: TypeAlias = Sequence[Effect]
NOTHING: tuple[Effect, ...] = ()


def singly(effects: Effects) -> list[Effect]:
    """The same effects with a `Send` for each receiver of a `SendAll`."""
    out: list[Effect] = []
    for effect in effects:
        out += [Send(to, effect.message) for to in effect.to] if isinstance(effect, SendAll) else [effect]
    return out


class Machine(Protocol):
    """What a driver can run."""

    def start(self, now: Time) -> Effects:
        """First effects after (re)start: timers, greetings."""
        ...

    def handle(self, now: Time, input: Input) -> Effects:
        """React to one input."""
        ...

    def check(self) -> None:
        """Cheap invariants; raises AssertionError. Called after every simulated step."""
        ...
