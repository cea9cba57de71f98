"""The client's end of exactly-once sinks: asks the owner of a stream to stage, commit or abort a batch.

A few requests are under way at a time. Each is repeated as it is, with the same nonce, until it is answered; the head
(sinks.py) recognises what it has done before.
"""

from __future__ import annotations

from collections import deque

from tidings.protocols.kernel import (
    NOTHING,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Message,
    Received,
    Report,
    Send,
    SetTimer,
    Time,
    Timer,
    Value,
)
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.head_client import HeadClient
from tidings.protocols.services.publishing import NotHead
from tidings.protocols.services.sinks import (
    BatchAborted,
    BatchCommitted,
    Request,
    RowsStaged,
    SinkRefused,
    SinkSettings,
)


class SinkAnswered(Value, frozen=True, gc=False):
    """Delivered to the application: what it asked, and the answer."""

    request: Request
    answer: Message


class SinkTick(Timer, frozen=True, gc=False):
    """Look for questions that were not answered."""


ANSWERS = frozenset({RowsStaged, BatchCommitted, BatchAborted, SinkRefused})


class SinkClient:
    """Asks the head of one region: a few requests at a time, repeated as they are until they are answered."""

    def __init__(self, membership: ChainConfig, settings: SinkSettings) -> None:
        self.head = HeadClient(membership)
        self.settings = settings
        self.queue: deque[Request] = deque()
        self.asking: dict[int, Request] = {}  # by nonce, oldest first

    @property
    def membership(self) -> ChainConfig:
        """The newest configuration of the region that this client knows."""
        return self.head.config

    def start(self, now: Time) -> Effects:
        return [SetTimer(self.settings.retry, SinkTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        match input:
            case Received(_, NotHead(membership)):
                return self.learn(membership)
            case Received(_, message) if type(message) in ANSWERS:
                return self._answered(message)
            case Expired(SinkTick()):
                return [*self._retry(), SetTimer(self.settings.retry, SinkTick())]
        return NOTHING

    def check(self) -> None:
        assert len(self.asking) <= self.settings.window

    def learn(self, membership: ChainConfig) -> Effects:
        """A configuration of the region that is not older: ask its head from now on."""
        return self._send_all() if self.head.learn(membership) else NOTHING

    def ask(self, request: Request) -> Effects:
        """The application asks something of the owner; `SinkAnswered` is delivered for it."""
        self.queue.append(request)
        return self._send_new()

    def drop(self, nonce: int) -> Effects:
        """The application has given up waiting for this answer."""
        self.queue = deque([request for request in self.queue if request.nonce != nonce])
        self.asking.pop(nonce, None)
        return self._send_new()

    def _answered(self, message: Message) -> Effects:
        assert isinstance(message, RowsStaged | BatchCommitted | BatchAborted | SinkRefused)
        request = self.asking.pop(message.nonce, None)
        if request is None:
            return NOTHING
        self.head.useful = True
        return [Deliver(SinkAnswered(request, message)), *self._send_new()]

    def _send_new(self) -> list[Effect]:
        effects: list[Effect] = []
        while self.queue and len(self.asking) < self.settings.window:
            request = self.queue.popleft()
            self.asking[request.nonce] = request
            effects.append(Send(self.head.asked, request))
        return effects

    def _send_all(self) -> list[Effect]:
        return [Send(self.head.asked, request) for request in self.asking.values()]

    def _retry(self) -> list[Effect]:
        if not self.head.overdue(next(iter(self.asking), None)):
            return []
        return [*self._send_all(), Report("sink_retry")]
