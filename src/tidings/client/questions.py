"""Questions of a client that one replica can answer: each is repeated, to the next replica, until it is answered.

They do not use `HeadClient`: most questions are for any replica, some for any region, and the first ones go to
addresses without a configuration.
"""

from __future__ import annotations

from tidings.client.cluster_view import ClusterView
from tidings.client.commands import Ask, AskTick
from tidings.core.ids import NodeId
from tidings.protocols.kernel import Effect, Message, Send, SetTimer
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.catalog import Because, Defined, Description, NotDefined, Why
from tidings.protocols.services.receipts import ReceiptsKept

ANSWERS = frozenset({Description, Defined, NotDefined, Because, ReceiptsKept})


class Question:
    """A question under way."""

    __slots__ = ("ask", "to", "turn")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.turn = 0  # how often it was sent
        self.to: NodeId = ""  # whom it was sent to last


class Questions:
    """All questions of one client that are not answered yet, by nonce. ``wait``: seconds before the next is asked."""

    def __init__(self, view: ClusterView, wait: float) -> None:
        self._view = view
        self._wait = wait
        self.open: dict[int, Question] = {}

    def ask(self, ask: Ask) -> list[Effect]:
        """Begin to ask."""
        question = self.open[ask.nonce] = Question(ask)
        return self._send(question)

    def drop(self, nonce: int) -> None:
        """The application has given up waiting for the answer."""
        self.open.pop(nonce, None)

    def expired(self, nonce: int, turn: int) -> list[Effect]:
        """A question has waited: ask the next replica."""
        question = self.open.get(nonce)
        return self._send(question) if question is not None and question.turn == turn else []

    def lost(self, node: NodeId) -> list[Effect]:
        """A node is gone: what it was asked goes to the next one at once."""
        out: list[Effect] = []
        for question in list(self.open.values()):
            if question.to == node or question.to in self._view.seeds:
                out.extend(self._send(question))
        return out

    def not_head(self, src: NodeId, told: ChainConfig) -> list[Effect]:
        """A replica is not the head: ask the head, unless it does not know yet that it is; then it is asked later."""
        out: list[Effect] = []
        known = self._view.memberships.get(told.region, told)
        for question in self.open.values():
            ask = question.ask
            if ask.head and ask.region == told.region and question.to == src != known.head:
                question.turn = 0
                out.extend(self._send(question))
        return out

    def answered(self, message: Message) -> int | None:
        """The nonce of the question that a message answers, which is over then; None if there is none."""
        nonce = 0
        match message:
            case Description(nonce) | Defined(nonce) | NotDefined(nonce) | ReceiptsKept(nonce):
                pass
            case Because(stream, seq):
                found = [each for each, question in self.open.items() if question.ask.message == Why(stream, seq)]
                nonce = found[0] if found else 0
        return nonce if self.open.pop(nonce, None) is not None else None

    def _send(self, question: Question) -> list[Effect]:
        targets = self._view.targets(question.ask)
        question.to = targets[question.turn % len(targets)]
        question.turn += 1
        tick = AskTick(question.ask.nonce, question.turn)
        return [Send(question.to, question.ask.message), SetTimer(self._wait, tick)]
