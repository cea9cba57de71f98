"""Writes down the messages of a simulated run, one line each, as in tests/golden/*.txt.

    time  sender -> receiver  message  what it says

An arrow ``-x`` marks a message that never arrived: its link was cut or its receiver was down. Times are those of
sending. Lines that begin with # are what the script does to the world.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tidings.core.ids import NodeId
from tidings.core.span import Span
from tidings.protocols.kernel import Effects, Message, Received, Send, singly
from tidings.protocols.messages import Done, Know, Offer, Want
from tidings.protocols.regions.interregion import Advertise, Solicit, Subscribe, Unsubscribe
from tidings.protocols.replication.chain import Append, ChainAck, Fetch, Install, NextPiece, Refuse
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Beat, Current, Promote
from tidings.protocols.services.publishing import NotHead, OpenSession, Publish, Published, Rejected, SessionOpened


class Line:
    """A message that was sent."""

    def __init__(self, time: float, src: NodeId, dst: NodeId, message: Message) -> None:
        self.time = time
        self.src = src
        self.dst = dst
        self.message = message
        self.arrived = False

    def __str__(self) -> str:
        arrow = "->" if self.arrived else "-x"
        name = type(self.message).__name__
        return f"{self.time:8.4f}  {self.src:>6} {arrow} {self.dst:<6}  {name:<13} {say(self.message)}".rstrip()


class Scribe:
    """Observes a world; keeps the messages of some kinds that pass a filter (sender, receiver), from a time on."""

    def __init__(
        self, kinds: Collection[type[Message]], passes: Callable[[NodeId, NodeId], bool], begin: float = 0.0
    ) -> None:
        self.kinds = tuple(kinds)
        self.passes = passes
        self.begin = begin
        self.lines: list[Line | str] = []

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Note what arrives and what is sent."""
        if isinstance(input, Received):
            self._arrived(node, input.message)
        for effect in singly(effects):
            if isinstance(effect, Send) and isinstance(effect.message, self.kinds) and self.passes(node, effect.to):
                self.lines.append(Line(time, node, effect.to, effect.message))

    def _arrived(self, node: NodeId, message: Message) -> None:
        """A retry is the same message again: it is the last one sent that arrives."""
        for line in reversed(self.lines):
            if isinstance(line, Line) and line.message is message and line.dst == node and not line.arrived:
                line.arrived = True
                return

    def note(self, time: float, text: str) -> None:
        """Write down what the script does."""
        self.lines.append(f"{time:8.4f}  # {text}")

    @property
    def text(self) -> str:
        lines = [line for line in self.lines if isinstance(line, str) or line.time >= self.begin]
        return "".join(f"{line}\n" for line in lines)


def say(message: Message) -> str:
    """The fields that matter, in a few words."""
    match message:
        case Append(epoch, records):
            return f"epoch {epoch}, records {_numbers([record.lsn for record in records])}"
        case ChainAck(epoch, lsn):
            return f"epoch {epoch}, up to {lsn}"
        case Fetch(epoch, after):
            return f"epoch {epoch}, after {after}"
        case Install(epoch, lsn, index, last):
            return f"epoch {epoch}, snapshot at {lsn}, piece {index}{', the last' if last else ''}"
        case NextPiece(epoch, lsn, index):
            return f"epoch {epoch}, snapshot at {lsn}, piece {index}"
        case Refuse(epoch):
            return f"epoch {epoch}"
        case Beat(epoch):
            return f"epoch {epoch}{', wants to join' if message.join else ''}"
        case Current(membership) | NotHead(membership):
            return _chain(membership)
        case Promote(epoch, joining):
            return f"epoch {epoch}, {joining} to be the tail"
    return _say_more(message)


def _say_more(message: Message) -> str:
    match message:
        case OpenSession(publisher):
            return publisher
        case SessionOpened():
            return "a new session"
        case Publish(stream, publisher, _, first):
            return f"{stream}: {publisher}'s {_numbers(range(first, first + message.rows.count))}"
        case Published(_, first, lo, hi):
            return f"the batch from {first} on is [{lo}, {hi})"
        case Rejected(_, first, reason):
            return f"the batch from {first} on: {reason}"
        case Advertise(_, horizons):
            return ", ".join(f"{stream} {horizon}" for stream, horizon in horizons.items())
        case Subscribe(stream, lo):
            return f"{stream} from {lo}"
        case Unsubscribe(stream):
            return stream
        case Offer(stream, horizon) | Done(stream, horizon):
            return f"{stream} {horizon}"
        case Want(stream, lo, hi):
            return f"{stream} [{lo}, {hi})"
        case Know(stream, spans, horizon):
            return f"{stream} {' '.join(map(_span, spans)) or 'nothing'}, horizon {horizon}"
        case Solicit():
            return ""
    raise AssertionError(f"{type(message).__name__} has no words yet")


def _span(span: Span) -> str:
    return f"[{span.lo}, {span.hi})" + ("" if span.full else f" with {span.rows.count} rows")


def _chain(membership: ChainConfig) -> str:
    joining = f", {membership.joining} joins" if membership.joining else ""
    return f"epoch {membership.epoch}: {' '.join(membership.replicas)}{joining}"


def _numbers(numbers: Any) -> str:
    if not numbers:
        return "none"
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}..{numbers[-1]}"
