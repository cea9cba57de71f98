"""The lifecycle of a connection: finds the cluster, runs one client machine in a host, carries questions and answers.

The machine (machine.py) decides, the host (net/host.py) sends and receives. The calls of a connection (publishing.py,
subscribing.py, leasing.py, sinks.py, streams.py) turn what the application wants into commands, and register here for
what the machine delivers to them. Everything runs in the loop that opened the session.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import socket
import ssl
from collections.abc import Callable
from typing import Any

from tidings.client.commands import Answered, Ask, Drop
from tidings.client.errors import Closed, TidingsError, Unreachable
from tidings.client.machine import ClientMachine, MachineSettings
from tidings.client.url import parse_url
from tidings.client.validation import text
from tidings.core.errors import BadInput
from tidings.core.ids import NodeId, RegionId
from tidings.net.host import PEER, Host
from tidings.net.names import ADDRESSES, make_id
from tidings.protocols.brokers.subscriber import Lost
from tidings.protocols.kernel import Command, Message
from tidings.protocols.services.catalog import Description

PORTS = 8  # free ports that a peer tries to listen on; ours: another process may take one first
_CLIENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Session:
    """One client of a cluster, from `start` to `close`."""

    host: Host
    machine: ClientMachine
    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        url: str,
        client_id: str | None,
        peer: bool,
        token: str,
        cluster: str,
        tls: ssl.SSLContext | None,
        settings: MachineSettings,
    ) -> None:
        self.url = url
        self.client_id = client_id or f"client-{secrets.token_hex(6)}"
        if not _CLIENT_ID.fullmatch(text("client_id", self.client_id)):
            raise BadInput(
                f"client_id {client_id!r}: use letters, digits and . _ -, at most 128, not one of . _ - first"
            )
        self.peer = peer
        self.error: TidingsError | None = Closed("the connection is not open; use async with tidings.connect(...)")
        self.on_start: list[Callable[[], None]] = []  # called when loop, host and machine are there
        self.on_described: list[Callable[[], None]] = []  # called when the machine has learned how the cluster looks
        self.on_end: list[Callable[[TidingsError], None]] = []  # called when nothing more will come
        self._seeds = parse_url(text("url", url))
        self._options: dict[str, Any] = {"token": text("token", token), "cluster": text("cluster", cluster), "tls": tls}
        self._settings = settings
        self._described: asyncio.Future[None] | None = None
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            Answered: lambda item: self.answered(item.nonce, item.message),
            Description: self._on_described,
        }

    # --- lifecycle ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to look for the cluster."""
        self.loop = asyncio.get_running_loop()
        self._described = self.loop.create_future()
        node = f"{self.client_id}.{secrets.token_hex(4)}"  # of its own: connections must not take each other's place
        if self.peer:
            await self._listen(f"{PEER}{node}")
        else:
            self.host = self._make_host(node)
        for call in self.on_start:
            call()
        self.error = None
        self.host.start()
        self.host.failed.add_done_callback(self._on_failed)

    async def found(self, timeout: float) -> None:
        """Wait until a replica has described the cluster; raises `Unreachable` after so many seconds."""
        assert self._described is not None
        try:
            async with asyncio.timeout(timeout):  # wait_for can swallow a cancellation
                await self._described
        except TimeoutError:
            links = self.host.links.items()
            refusals = [str(link.refused) for _, link in links if link.refused is not None]
            refusals += [f"{node.removeprefix('@')}: {link.unreached}" for node, link in links if link.unreached]
            why = refusals[0] if refusals else f"nobody answered within {timeout:g} s"
            raise Unreachable(f"{self.url}: {why}; is the cluster up, and the address right?") from None

    async def close(self) -> None:
        """End at once: every call that waits fails with `Closed`."""
        closed = Closed("the connection is closed")
        self._fail(closed)
        self.error = closed
        await self.host.stop()

    def alive(self) -> None:
        """Raise why nothing can be asked any more, if that is so."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)

    @property
    def region(self) -> RegionId:
        """The region of the replica that answered first."""
        if self._described is None:  # never opened
            self.alive()
        return self.machine.home

    @property
    def addresses(self) -> list[str]:
        """Where the replicas of the cluster are, as far as it is known: the own region's first."""
        if self._described is None:
            self.alive()
        chains = self.machine.memberships
        near_first = sorted(chains, key=lambda region: (region != self.machine.home, region))
        return [node.rpartition("@")[2] for region in near_first for node in chains[region].replicas]

    def _make_host(self, node: NodeId) -> Host:
        rng = random.Random(secrets.randbits(64))
        self.machine = ClientMachine(node, self.client_id, self._seeds, self._settings, rng, peer=self.peer)
        return Host(
            node, self.machine, ADDRESSES, role="client", on_deliver=self._deliver, on_lost=Lost, **self._options
        )

    async def _listen(self, name: str) -> None:
        """Listen on a free port that the cluster can reach, and name it in the own id: others dial it."""
        address = await self._facing()
        for attempt in range(PORTS):
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
                probe.bind((address, 0))
                port = probe.getsockname()[1]
            self.host = self._make_host(make_id(name, address, port))
            try:
                await self.host.listen(address, port)
                return
            except OSError:
                if attempt == PORTS - 1:
                    raise

    async def _facing(self) -> str:
        """The address of this machine from which packets to the cluster leave; nothing is sent to find it."""
        for seed in self._seeds:
            try:
                found = await self.loop.getaddrinfo(*ADDRESSES[seed], type=socket.SOCK_DGRAM)
                with socket.socket(found[0][0], socket.SOCK_DGRAM) as probe:
                    probe.connect(found[0][4])
                    return str(probe.getsockname()[0])
            except OSError:
                continue  # no route to this one
        return "127.0.0.1"

    # --- commands and questions -----------------------------------------------------------------------------

    def command(self, command: Command) -> None:
        """Tell the machine."""
        self.host.command(command)

    def nonce(self) -> int:
        """A number for a question that no other question has."""
        return secrets.randbits(48) + 1

    async def ask(self, ask: Ask) -> Message:
        """Ask the cluster until a replica answers."""
        self.alive()
        return await self.answer(ask.nonce, ask, Drop(ask.nonce))

    async def answer(self, nonce: int, question: Command, drop: Command) -> Message:
        """Give the machine a question and wait for the answer; ``drop`` takes it back if the caller gives up."""
        future: asyncio.Future[Message] = self.loop.create_future()
        self._answers[nonce] = future
        try:
            self.host.command(question)
            return await future
        finally:
            del self._answers[nonce]
            if not future.done() or future.cancelled():
                self.host.command(drop)

    def answered(self, nonce: int, message: Message) -> None:
        """An answer has come."""
        future = self._answers.get(nonce)
        if future is not None and not future.done():
            future.set_result(message)

    # --- what the machine delivers --------------------------------------------------------------------------

    def on(self, kind: type, handler: Callable[[Any], None]) -> None:
        """Call ``handler`` with every item of this type."""
        assert kind not in self._handlers, f"{kind.__name__} has a handler already"
        self._handlers[kind] = handler

    def _deliver(self, item: Any) -> None:
        handler = self._handlers.get(type(item))
        if handler is not None:
            handler(item)

    def _on_described(self, item: Description) -> None:
        if self._described is not None and not self._described.done():
            self._described.set_result(None)
        for call in self.on_described:
            call()

    def _on_failed(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if error is not None:
            self._fail(error if isinstance(error, TidingsError) else TidingsError(str(error)))

    def _fail(self, error: TidingsError) -> None:
        """Nothing more will come."""
        self.error = self.error or error
        for call in self.on_end:
            call(error)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(error)
        if self._described is not None and not self._described.done():
            self._described.set_exception(error)
