"""The driver for real time: one machine, its sockets, its timers and its disk (driver 1 is the simulator's world).

Inputs wait in one queue: messages from links, expired timers, completions of the disk, commands. The host gives the
machine one input at a time and carries its effects out in list order before the next: the contract of the simulator.
A turn of the loop handles the inputs that have gathered, up to a bound, so that sockets are served under load. A small
input that meets an idle host is handled at once, and what it sends is written at the end of that turn: a single event
waits for no turn of the loop.

    Send      over the link to the node, or over the connection a client came by; to itself: back into the queue.
              A message to several receivers (SendAll, or one Send after the other) is encoded once
    SetTimer  loop.call_later; never cancelled, because the machine ignores stale timers
    Persist   store.write; `Persisted` comes back when the store says so. Without a disk: once everything that has
              gathered is handled, in the same turn if that was little
    Deliver   to the callback, and to requests that wait for it
    Report    counted

A machine that raises is finished: its memory can no longer be trusted. The host logs the input that caused it and
stops, and `failed` has the error; the process should end and start again from its disk.

The queue of messages is bounded in number and bytes. Beyond that, messages are dropped and counted, as by a full socket
buffer. Before that, the host stops reading from clients; it never stops reading from nodes (decision 0006).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from tidings.core.errors import TidingsError
from tidings.core.ids import NodeId, RegionId
from tidings.net.codec import WIRE, Codec
from tidings.net.frames import Body, FrameError, Outgoing
from tidings.net.journal import Journal, started
from tidings.net.link import Hello, Link, LinkSettings, Listener, Peer, Role, Trunk
from tidings.net.names import Address
from tidings.net.shape import Wan
from tidings.protocols.kernel import (
    Command,
    Deliver,
    Effects,
    Expired,
    Input,
    Machine,
    Message,
    Persist,
    Persisted,
    Received,
    Report,
    Send,
    SendAll,
    SetTimer,
    Timer,
)

T = TypeVar("T")
log = logging.getLogger("tidings.net")

PEER = "~"  # how the name of a client begins that others can dial; no replica's does
REST = 0.0001  # seconds without work after which a host is at rest; ours: an idle loop needs a few microseconds a turn
LIGHT = 1 << 14  # bytes up to which messages are handled at once; ours: more pays for a turn, and shares it with others
CROWDED = 0.001  # seconds that giving way may take; ours: then somebody has more to do than to handle an event
COMPANY = 0.1  # seconds that a host which has met others on its processor does not poll; ours
JOURNAL_FLUSH = 1.0  # seconds; ours, because an incident is looked at later than that


class HostStore(Protocol):
    """What a host needs of a disk; `tidings.store.Store` is one, `MemoryStore` another."""

    @property
    def entries(self) -> Sequence[Any]:
        """What was durable when the store was opened, in order: what the machine was made from."""
        ...

    @property
    def over(self) -> bool:
        """More is queued than the bound: hold publishers back until it is not."""
        ...

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        persisted: Callable[[int], None],
        changed: Callable[[Any, Any], None] | None = None,
    ) -> None:
        """From now on call, in the loop, ``persisted`` with the last token that has become durable, in ascending order,

        and ``changed`` with (condition, error) when the disk is "full", "open" again or has "failed".
        """
        ...

    def write(self, record: Any, token: int) -> bool:
        """Append a record; returns at once. False: the queue is over its bound."""
        ...

    def settle(self) -> None:
        """No more will be written in this turn: a store without a disk calls ``persisted`` now."""
        ...


class HostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a host. Ours, unless said otherwise."""

    inbox: int = 10_000  # messages that wait; as the simulator's
    inbox_bytes: int = 128 << 20
    turn: int = 256  # inputs handled before sockets get their turn
    turn_seconds: float = 0.002  # and at most so long: what waits in a socket should not wait for rows of others
    poll: float = 0.0  # seconds without work for which it looks again and again before it sleeps (decision 0014)
    links: LinkSettings = LinkSettings()


class MachineFailed(TidingsError):
    """A machine raised; its host has stopped. The cause is the exception's."""


class Overloaded(TidingsError):
    """The queue is full; the command was not taken. Try again later."""


class Host:
    """Runs one machine. ``directory`` says where nodes live; it may change while the host runs.

    ``on_lost`` makes a command of a node whose connection has ended, or that was not to be reached: a machine that is
    told moves at once, others find out by silence.
    ``check`` runs the machine's invariants after every step, as the simulator does. What ``on_deliver`` raises is
    fatal too: an item that the application has not taken would be lost without a word.
    """

    def __init__(
        self,
        node: NodeId,
        machine: Machine,
        directory: Mapping[NodeId, Address],
        store: HostStore | None = None,
        *,
        region: RegionId = "",
        cluster: str = "tidings",
        role: Role = "node",
        token: str = "",
        clock: Callable[[], float] = time.time,
        on_deliver: Callable[[Any], None] | None = None,
        on_writable: Callable[[Peer, bool], None] | None = None,
        on_lost: Callable[[NodeId], Command] | None = None,
        authorize: Callable[[Hello], str | None] | None = None,
        codec: Codec = WIRE,
        journal: Journal | None = None,
        wan: Wan | None = None,
        tls: ssl.SSLContext | None = None,
        settings: HostSettings | None = None,
        check: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        self.node = node
        self.machine = machine
        self.directory = directory
        self.store = store
        self.settings = settings or HostSettings()
        self.counters: defaultdict[str, float] = defaultdict(float)  # the driver's own
        self.reports: defaultdict[str, float] = defaultdict(float)  # the machine's
        self.journal = journal
        self._clock = clock
        self._on_deliver = on_deliver
        self._on_writable = on_writable
        self._on_lost = on_lost
        self._authorize = authorize
        self._codec = codec
        self._check = check
        hello = Hello(node, region, cluster, role, token=token)
        self._trunk = Trunk(hello, self, self.counters, self.settings.links, wan=wan, tls=tls, rng=rng)
        self._listener = Listener(self._trunk)
        self._links: dict[NodeId, Link] = {}
        self._parting: set[asyncio.Task[None]] = set()  # links whose place another has taken
        self._inbox: deque[tuple[Input, int]] = deque()
        self._messages = 0  # of them, from links
        self._bytes = 0
        self._draining = False  # inputs are being handled, or will be in this turn or the next
        self._rested = 0.0  # when the last one was handled
        self._polling = False
        self._met = 0.0  # when somebody else last wanted the processor on which this host polls
        self._held = False  # clients are not read from
        self._waiting: list[tuple[Callable[[Any], bool], asyncio.Future[Any]]] = []
        self._running = False
        self._flusher: asyncio.TimerHandle | None = None

    # --- life -------------------------------------------------------------------------------------------

    async def listen(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> Address:
        """Accept connections; says where."""
        return await self._listener.listen(host, port, tls)

    def start(self) -> None:
        """Start the machine. The running loop is the host's from now on."""
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()  # done with an exception when the machine raises
        self._running = True
        now = self._clock()
        entries: Sequence[Any] = ()
        if self.store is not None:
            entries = self.store.entries
            self.store.start(self._loop, self._persisted, self._disk_changed)
        if self.journal is not None:
            self.journal.start(now, self.node, entries)
            self._flush_journal()
        try:
            effects = self.machine.start(now)
            if self.journal is not None:
                self.journal.add(now, started(entries), effects)
            self._carry(effects)
            self._rested = time.monotonic()
            if self.store is not None:
                self.store.settle()
        except Exception as error:
            self._fail(None, error)

    async def stop(self) -> None:
        """Hang up and stop; the machine is told nothing more. What is on the disk stays."""
        self._running = False
        if self._flusher is not None:
            self._flusher.cancel()
        self._inbox.clear()
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*[link.close() for link in links], *self._parting)
        await self._listener.close()
        if self.journal is not None:
            self.journal.close()
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()

    # --- what the application may do ------------------------------------------------------------------------

    def command(self, command: Command) -> None:
        """Tell the machine a command; raises `Overloaded` when too much waits."""
        if len(self._inbox) >= 2 * self.settings.inbox:
            self.counters["commands_refused"] += 1
            raise Overloaded(f"{self.node}: {len(self._inbox)} inputs wait; try again later")
        self._put(command if self.journal is None else self.journal.same(command))

    def tell(self, src: NodeId, message: Message) -> None:
        """Tell the machine a message as if a node had sent it: what the process has learned by other ways."""
        self._put(Received(src, message))

    def prompt(self) -> None:
        """Handle queued inputs now instead of in the next turn. Only callbacks of the event loop may call it."""
        if self._inbox and self._running and not self._trunk.outbox.held:
            self._drain()

    async def request(self, command: Command, answer: Callable[[Any], bool], timeout: float | None = None) -> Any:
        """Tell the machine a command and wait for the first thing it delivers that is the answer."""
        future: asyncio.Future[Any] = self._loop.create_future()
        waiting = (answer, future)
        self._waiting.append(waiting)
        try:
            self.command(command)
            async with asyncio.timeout(timeout):  # wait_for can swallow a cancellation
                return await future
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    @property
    def peers(self) -> Mapping[NodeId, Peer]:
        """Who has connected: nodes and clients."""
        return self._listener.peers

    @property
    def links(self) -> Mapping[NodeId, Link]:
        """Whom this host has dialled."""
        return self._links

    @property
    def queued(self) -> int:
        """Inputs that wait."""
        return len(self._inbox)

    # --- inputs -------------------------------------------------------------------------------------------

    def _put(self, input: Input, size: int = 0) -> None:
        self._inbox.append((input, size))
        if not self._draining and self._running:
            self._draining = True
            self._loop.call_soon(self._drain)

    def _expire(self, timer: Timer) -> None:
        if self._running:
            self._put(Expired(timer))

    def _persisted(self, token: int) -> None:
        if self._running:
            self._inbox.append((Persisted(token), 0))
            self.handed()

    def _disk_changed(self, condition: str, error: Exception | None) -> None:
        self.counters[f"disk_{condition}"] += 1
        if condition == "failed" and self._running:
            self._fail(None, error or OSError("the disk has failed"))

    def handed(self) -> None:
        """Something has come, and more may follow only in another turn: a host at rest does not wait for that."""
        if self._draining or not self._running:
            return
        if self._bytes <= LIGHT and time.monotonic() - self._rested >= REST:
            self._drain()
        else:
            self._draining = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Handle what has gathered and what follows from it, up to a bound; the rest comes in the next turn."""
        if not self._inbox:  # `prompt` has been here
            self._draining = False
            return
        self._draining = True
        inbox, clock, handle, journal = self._inbox, self._clock, self.machine.handle, self.journal
        store, outbox = self.store, self._trunk.outbox
        end = time.monotonic() + self.settings.turn_seconds
        input: Input | None = None
        light = self._bytes <= LIGHT
        outbox.held = True
        try:
            for _ in range(self.settings.turn):
                if not inbox:
                    if store is not None and light:
                        store.settle()
                    if not inbox:
                        break
                input, size = inbox.popleft()
                if size:
                    self._messages -= 1
                    self._bytes -= size
                now = clock()
                if journal is None:
                    effects = handle(now, input)
                else:
                    journal.take(now, input)
                    effects = handle(now, input)
                    journal.add(now, input, effects)
                if self._check:
                    self.machine.check()
                if effects:
                    self._carry(effects)
                if time.monotonic() > end:
                    break
            if store is not None:  # the bound may have been reached with the last write
                store.settle()
        except Exception as error:
            self._fail(input, error)
        finally:
            outbox.held = False
            outbox.flush()
        if self._held and self._running:
            self._relent()
        self._rested = time.monotonic()
        self._draining = bool(inbox)
        if inbox:
            self._loop.call_soon(self._drain)
        elif self.settings.poll and not self._polling and self._rested - self._met > COMPANY:
            self._polling = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        """Stay awake for what may come soon, unless others want the processor: they get it, and this host sleeps."""
        now = time.monotonic()
        self._polling = self._running and now - self._rested < self.settings.poll
        if self._polling:
            os.sched_yield()
            if time.monotonic() - now > CROWDED:
                self._met = now
                self._polling = False
                self.counters["poll_crowded"] += 1
                return
            self._loop.call_soon(self._poll)  # a loop with something to do does not sleep

    def _fail(self, input: Input | None, error: Exception) -> None:
        """The machine has raised, or its disk has failed: handle nothing more."""
        self._running = False
        self._inbox.clear()
        text = repr(input)
        failure = MachineFailed(f"{self.node}: {type(error).__name__}: {error}; on {text[:200]}")
        failure.__cause__ = error
        if not self.failed.done():
            self.failed.set_exception(failure)
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(failure)
        self._waiting.clear()
        log.critical("%s has failed on %.2000s; restart it from its disk", self.node, text, exc_info=error)
        if self.journal is not None:
            self.journal.flush()

    def _flush_journal(self) -> None:
        journal = self.journal
        assert journal is not None
        journal.flush()
        if journal.error is not None:  # what it is for can wait for a better disk, what the host is for cannot
            self.counters["journal_failed"] += 1
            log.error("%s: the journal %s ends here: %s", self.node, journal.path, journal.error)
            return
        self._flusher = self._loop.call_later(JOURNAL_FLUSH, self._flush_journal)

    # --- effects ------------------------------------------------------------------------------------------

    def _carry(self, effects: Effects) -> None:
        sent: Message | None = None
        outgoing: Outgoing | None = None
        for effect in effects:
            if isinstance(effect, Send):
                message = effect.message
                if message is not sent:  # the same to several is encoded once
                    sent, outgoing = message, None
                outgoing = self._send(effect.to, message, outgoing)
            elif isinstance(effect, SendAll):
                one: Outgoing | None = None
                for to in effect.to:
                    one = self._send(to, effect.message, one)
            elif isinstance(effect, SetTimer):
                if effect.delay < 0.0:
                    raise ValueError(f"{effect} would be in the past")
                self._loop.call_later(effect.delay, self._expire, effect.timer)
            elif isinstance(effect, Persist):
                if self.store is None:
                    self._put(Persisted(effect.token))
                elif not self.store.write(effect.record, effect.token) and not self._held:
                    self._hold()
            elif isinstance(effect, Deliver):
                self._deliver(effect.item)
            elif isinstance(effect, Report):
                self.reports[effect.name] += effect.value
            else:
                raise TypeError(f"{effect!r} is no effect: a machine returns Send, SetTimer, Persist, Deliver, Report")

    def _send(self, to: NodeId, message: Message, outgoing: Outgoing | None) -> Outgoing | None:
        """Send to a node; returns the frame, if one was made, for the next receiver of the same message."""
        if to == self.node:
            self._put(Received(to, message))
            return outgoing
        way: Link | Peer | None = self._links.get(to) or (
            None if to in self.directory else self._listener.peers.get(to)
        )
        if way is None:
            if to not in self.directory:
                self.counters["dropped_unknown"] += 1
                return outgoing
            if len(self._links) >= self.settings.links.peers:
                self.counters["dropped_links"] += 1
                return outgoing
            way = self._links[to] = Link(self._trunk, to, self.directory)
        if outgoing is None:
            outgoing = self._codec.encode(message)
        if outgoing.size > self.settings.links.max_frame:  # the other end would hang up over it, every time
            self.counters["dropped_too_large"] += 1
            log.error("%s: %s of %d bytes for %s is too large", self.node, type(message).__name__, outgoing.size, to)
            return outgoing
        self.counters["frames_out"] += 1
        way.send(outgoing)
        return outgoing

    def _deliver(self, item: Any) -> None:
        if self._on_deliver is not None:
            self._on_deliver(item)
        if self._waiting:
            for waiting in self._waiting:
                answer, future = waiting
                if not future.done() and answer(item):
                    future.set_result(item)
                    self._waiting.remove(waiting)
                    break

    # --- the links' side ------------------------------------------------------------------------------------

    def judge(self, hello: Hello, accepted: bool) -> str | None:
        """Who may connect: no client under a node's name, and whom ``authorize`` lets in."""
        if accepted and hello.node == self.node:
            return f"name: {hello.node!r} is this node's own name"
        taken = hello.node in self.directory and not hello.node.startswith(PEER)
        if accepted and hello.role == "client" and taken:
            return f"name: {hello.node!r} is a node of the cluster; a client needs another name"
        return self._authorize(hello) if self._authorize is not None else None

    def peer_up(self, peer: Peer) -> None:
        """Somebody is there."""
        if self._held and peer.role == "client":
            peer.pause_reading()
        link = self._links.get(peer.node)
        if link is not None and link.peer is None:  # it has been away, and is back
            link.nudge()

    def peer_frame(self, peer: Peer, header: bytes, body: Body) -> None:
        """A message has come."""
        message = self._codec.decode(header, body)
        if peer.role == "client" and not message.from_clients:
            raise FrameError("role", f"a client may not send {type(message).__name__}")
        size = len(header) + len(body)
        settings = self.settings
        if self._messages >= settings.inbox or self._bytes + size > settings.inbox_bytes or not self._running:
            self.counters["dropped_inbox"] += 1
            return
        self._messages += 1
        self._bytes += size
        self._inbox.append((Received(peer.node, message), size))  # `handed` follows
        if not self._held and (2 * self._messages > settings.inbox or 2 * self._bytes > settings.inbox_bytes):
            self._hold()

    def peer_writable(self, peer: Peer, yes: bool) -> None:
        """A peer keeps up, or does not."""
        if not yes:
            self.counters["slow_peer"] += 1
        if self._on_writable is not None:
            self._on_writable(peer, yes)

    def peer_down(self, peer: Peer, error: BaseException | None) -> None:
        """Somebody is gone."""
        if error is not None:
            log.info("%s: the connection with %s has ended: %s", self.node, peer.node, error)
        link = self._links.get(peer.node)
        if link is None or link.peer is None or link.peer is peer:  # else a newer connection has taken its place
            self.unreachable(peer.node)

    def unreachable(self, node: NodeId) -> None:
        """A node is gone, or was not to be reached: the machine is told with the command that ``on_lost`` makes."""
        if self._on_lost is not None and self._running:
            self._put(self._on_lost(node))

    def forsaken(self, link: Link) -> None:
        """A link without use is closed: its node has not answered for long. The next message dials it anew."""
        if self._links.get(link.node) is link:
            del self._links[link.node]
            self.counters["links_forsaken"] += 1

    def named(self, seed: NodeId, link: Link) -> None:
        """A seed has a name now; an older link to the same node has had its day."""
        if self._links.get(seed) is link:
            del self._links[seed]
        older = self._links.get(link.node)
        self._links[link.node] = link
        if older is not None and older is not link:
            task = self._loop.create_task(older.close())
            self._parting.add(task)
            task.add_done_callback(self._parting.discard)

    def _hold(self) -> None:
        """The queue is half full, or the disk does not keep up: read from clients no more."""
        self._held = True
        self.counters["clients_held"] += 1
        for peer in self._listener.peers.values():
            if peer.role == "client":
                peer.pause_reading()

    def _relent(self) -> None:
        if self.store is not None and self.store.over:
            return
        if 4 * self._messages < self.settings.inbox and 4 * self._bytes < self.settings.inbox_bytes:
            self._held = False
            for peer in self._listener.peers.values():
                if peer.role == "client":
                    peer.resume_reading()


class MemoryStore:
    """A store that keeps bytes in memory: for tests, and for nodes that may forget. Durable in the next turn."""

    over = False

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._stable: list[tuple[bytes, bytes]] = []
        self._buffer: list[tuple[Any, int]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._persisted: Callable[[int], None] = lambda token: None

    @property
    def entries(self) -> list[Any]:
        """What has become durable."""
        return [self._codec.decode(header, memoryview(body)) for header, body in self._stable]

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        persisted: Callable[[int], None],
        changed: Callable[[Any, Any], None] | None = None,
    ) -> None:
        """Say who is told; a later life of the node may say so again."""
        self._loop = loop
        self._persisted = persisted

    def write(self, record: Any, token: int) -> bool:
        """Append a record; it is durable in the next turn of the loop."""
        assert self._loop is not None, "a store is started before it is written to"
        if not self._buffer:
            self._loop.call_soon(self._sync)
        self._buffer.append((record, token))
        return True

    def settle(self) -> None:
        """It takes its time."""

    def crash(self) -> None:
        """Lose what is not durable."""
        self._buffer.clear()

    def _sync(self) -> None:
        written, self._buffer = self._buffer, []
        if written:
            for record, _ in written:
                header, body = self._codec.split(record)
                self._stable.append((header, b"".join(body)))
            self._persisted(written[-1][1])
