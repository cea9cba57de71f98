"""`connect`: one client of a cluster, driven by a host of its own.

The machine (machine.py) decides, the host (net/host.py) carries; this file turns calls into commands, and what the
machine delivers into acknowledgements, events and errors. Everything runs in the loop that entered the connection.

Nothing here gives up by itself while the connection is open: lost connections, moved heads and new chains are the
machines' business. A call waits until it is answered; bound it with `asyncio.timeout`.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeAlias

import pyarrow as pa
from msgspec.structs import astuple

from tidings.client.errors import (
    Closed,
    Fenced,
    Full,
    NotBuilt,
    PayloadTooLarge,
    PublishFailed,
    TidingsError,
    UnknownStream,
    Unreachable,
)
from tidings.client.events import Ack, Reason, StreamInfo
from tidings.client.fabric import Heard
from tidings.client.inputs import name as checked_name
from tidings.client.inputs import number, seconds, text
from tidings.client.leasing import Lease
from tidings.client.machine import (
    Answered,
    Ask,
    Broken,
    ClientMachine,
    Drop,
    DropSinking,
    LetGo,
    MachineSettings,
    Open,
    Sinking,
    Submit,
)
from tidings.client.packing import CHUNK, CHUNK_BYTES, SHORT, Attrs, Lane, Packer
from tidings.client.reading import Reading
from tidings.client.receipts import Ledger
from tidings.client.sinks import Sink, make_batch
from tidings.client.subscription import Subscription
from tidings.client.tables import batches_of
from tidings.client.url import parse_url
from tidings.core.errors import BadInput
from tidings.core.filters import parse, parse_attributes
from tidings.core.gc import GcPolicy
from tidings.core.ids import FIRST, NodeId, RegionId, StreamId, is_internal
from tidings.core.predicates import Predicate
from tidings.core.rows import Rows, before_rows, where_rows
from tidings.net.host import PEER, Host
from tidings.net.names import ADDRESSES, make_id
from tidings.protocols.catalog import (
    Because,
    Define,
    Defined,
    Describe,
    Description,
    NotDefined,
    Operation,
    StreamDef,
    StreamState,
    Why,
)
from tidings.protocols.kernel import Command, Message
from tidings.protocols.leases import BYTES, TTL, Dropped, Granted
from tidings.protocols.leases import Lease as Request
from tidings.protocols.publishing import Acked, Refused
from tidings.protocols.receipts import Receipt, Receipts
from tidings.protocols.sinks import Request as SinkRequest
from tidings.protocols.sinks import SinkAnswered
from tidings.protocols.subscriptions import EARLIEST, LATEST, Ended, Fed, Lost, Saved

TIMEOUT = 10.0  # seconds to find the cluster, and to make posted events durable at the end; ours
REPORT = 0.1  # seconds between reports of what durable subscriptions have processed; ours

Start: TypeAlias = Literal["earliest", "latest"] | int
_CLIENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_GONE = {"fenced", "repacked"}


def connect(
    url: str,
    *,
    client_id: str | None = None,
    peer: bool = False,
    token: str | None = None,
    cluster: str = "tidings",
    timeout: float = TIMEOUT,
    tls: ssl.SSLContext | None = None,
    settings: MachineSettings | None = None,
    receipts: bool | None = None,
) -> Connection:
    """A connection to the cluster at ``url``, to be entered with ``async with``.

    ``client_id`` names the publisher: of clients with the same one the newest may publish, older ones are fenced.
    ``peer``: take part in the region's fabric and forward to others.
    ``receipts``: tell the region what was delivered, so that it can be audited; None: if the cluster asks for it.
    """
    settings = settings or MachineSettings()
    return Connection(url, client_id, peer, token or "", cluster, timeout, tls, settings, receipts)


class Connection:
    """One client. See `connect`."""

    def __init__(
        self,
        url: str,
        client_id: str | None,
        peer: bool,
        token: str,
        cluster: str,
        timeout: float,
        tls: ssl.SSLContext | None,
        settings: MachineSettings,
        receipts: bool | None = None,
    ) -> None:
        self.url = url
        self._receipts = receipts
        self._ledger = Ledger(self._send_receipts)
        self._holder = 0  # of the newest subscription
        self.client_id = client_id or f"client-{secrets.token_hex(6)}"
        if not _CLIENT_ID.fullmatch(text("client_id", self.client_id)):
            raise BadInput(
                f"client_id {client_id!r}: use letters, digits and . _ -, at most 128, not one of . _ - first"
            )
        self.peer = peer
        self._seeds = parse_url(text("url", url))
        self._options: dict[str, Any] = {"token": text("token", token), "cluster": text("cluster", cluster), "tls": tls}
        self.timeout = timeout
        self._settings = settings
        self._error: TidingsError | None = Closed("the connection is not open; use async with tidings.connect(...)")
        self._described: asyncio.Future[None] | None = None
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._durable: set[int] = set()
        self._leases: dict[str, Lease] = {}
        self._last_id = 0
        self._lanes: dict[StreamId, Lane] = {}
        self._reporter: asyncio.TimerHandle | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            Acked: self._on_acked,
            Fed: self._on_fed,
            Heard: self._on_heard,
            Refused: self._on_refused,
            Broken: self._on_broken,
            Saved: self._on_saved,
            Granted: self._on_granted,
            Dropped: self._on_dropped,
            Ended: self._on_ended,
            Answered: self._on_answered,
            SinkAnswered: self._on_sink_answered,
            Description: self._on_described,
        }

    # --- life -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Connection:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(flush=error is None)

    async def open(self) -> None:
        """Find the cluster."""
        self._loop = asyncio.get_running_loop()
        self._described = self._loop.create_future()
        node = f"{self.client_id}.{secrets.token_hex(4)}"  # of its own: connections must not take each other's place
        if self.peer:
            node = f"{PEER}{node}"
            await self._listen(node)
        else:
            self._host = self._make_host(node)
        self._packer = Packer(self._loop, self._submit, self._host.prompt)
        self._error = None
        self._lanes = self._packer.lanes
        self._host.start()
        self._host.failed.add_done_callback(self._on_failed)
        try:
            async with asyncio.timeout(self.timeout):  # wait_for can swallow a cancellation
                await self._described
        except BaseException as error:
            refusals = [link.refused for link in self._host.links.values() if link.refused is not None]
            await self.close(flush=False)
            if not isinstance(error, TimeoutError):
                raise
            why = str(refusals[0]) if refusals else f"nobody answered within {self.timeout:g} s"
            raise Unreachable(f"{self.url}: {why}; is the cluster up, and the address right?") from None
        self._reporter = self._loop.call_later(REPORT, self._report)

    def _make_host(self, node: NodeId) -> Host:
        rng = random.Random(secrets.randbits(64))
        self._machine = ClientMachine(node, self.client_id, self._seeds, self._settings, rng, peer=self.peer)
        return Host(
            node, self._machine, ADDRESSES, role="client", on_deliver=self._deliver, on_lost=Lost, **self._options
        )

    async def _listen(self, name: str) -> None:
        """Take a free port where the cluster's machines can reach it, and say so in the own id: others dial it."""
        address = await self._facing()
        for attempt in range(8):
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
                probe.bind((address, 0))
                port = probe.getsockname()[1]
            self._host = self._make_host(make_id(name, address, port))
            try:
                await self._host.listen(address, port)
                return
            except OSError:
                if attempt == 7:
                    raise

    async def _facing(self) -> str:
        """The address of this machine at which the way to the cluster begins; nothing is sent to find it."""
        for seed in self._seeds:
            try:
                found = await self._loop.getaddrinfo(*ADDRESSES[seed], type=socket.SOCK_DGRAM)
                with socket.socket(found[0][0], socket.SOCK_DGRAM) as probe:
                    probe.connect(found[0][4])
                    return str(probe.getsockname()[0])
            except OSError:
                continue  # no way to this one
        return "127.0.0.1"

    async def close(self, *, flush: bool = True) -> None:
        """End; posted events are made durable first, or the error says which are not."""
        if isinstance(self._error, Closed):
            return
        try:
            if flush and self._error is None:
                await self._flush_at_the_end()
        finally:
            closed = Closed("the connection is closed")
            for subscription in list(self._subscriptions.values()):
                await subscription.close()
            await self._ledger.close()
            self._fail(closed)
            self._error = closed
            if self._reporter is not None:
                self._reporter.cancel()
            await self._host.stop()

    async def _flush_at_the_end(self) -> None:
        try:
            async with asyncio.timeout(self.timeout):
                await self._packer.flush()
        except TimeoutError:
            failed = Closed(f"the connection was closed, and nobody acknowledged within {self.timeout:g} s")
            self._packer.close(failed)
            await self._packer.flush()  # raises

    def command(self, command: Command) -> None:
        """Tell the machine."""
        self._host.command(command)
        if isinstance(command, LetGo):
            self._leases.pop(command.name, None)

    @property
    def region(self) -> RegionId:
        """The region that subscriptions are fed from."""
        if self._described is None:  # never opened
            self._alive()
        return self._machine.home

    # --- publishing -------------------------------------------------------------------------------------

    def post(
        self, stream: StreamId, *, key: bytes | None = None, payload: bytes = b"", attrs: Attrs | None = None
    ) -> None:
        """Publish one event without waiting; `flush` says what became of it. Raises `Full` when too much is pending."""
        lane = self._lanes.get(stream)
        if lane is None:
            lane = self._lane(stream)
        payloads = lane.payloads
        if not payloads or attrs or lane.attrs or type(payload) is not bytes:
            self._packer.put(lane, key, payload, attrs)
            return
        size = len(payload)  # what `put` does with nearly every event, without the call
        if key is not None:
            size += len(key) if type(key) is bytes else SHORT
        if size >= SHORT:
            self._packer.put(lane, key, payload, attrs)
            return
        payloads.append(payload)
        lane.keys.append(key)
        lane.size += size
        if len(payloads) >= CHUNK or lane.size >= CHUNK_BYTES:
            self._packer.cut(lane)

    async def publish(
        self, stream: StreamId, *, key: bytes | None = None, payload: bytes = b"", attrs: Attrs | None = None
    ) -> Ack:
        """Publish one event; returns when it is durable at the owner's tail."""
        lane = self._lanes.get(stream)
        if lane is None:
            await self._known(stream)
            lane = self._lane(stream)
        while True:
            try:
                future = self._packer.put_waiting(lane, key, payload, attrs)
                break
            except Full:
                await self._packer.drain()
        return await self._acknowledged(future)

    async def publish_table(self, stream: StreamId, table: pa.Table | pa.RecordBatch) -> Ack:
        """Publish the rows of a table: columns key and payload (binary) and attributes; each may be missing."""
        definition = await self._known(stream)
        if not isinstance(table, pa.Table | pa.RecordBatch):
            raise BadInput(f"{stream}: a table is an Arrow table or record batch, not {type(table).__name__}")
        if table.num_rows == 0:
            raise BadInput(f"{stream}: the table has no row; an event has at least a payload")
        return await self._publish_rows(definition, batches_of(definition, table))

    async def collect(self, stream: StreamId, *, before: int | None = None, where: str | None = None) -> Ack:
        """Publish an event that collects every event below a number, or those for which a condition is true."""
        definition = await self._known(stream)
        if (before is None) == (where is None):
            raise BadInput(f"{stream}: collect either before=SEQ or where=SQL")
        if where is not None:
            text("where", where)
            by_key = GcPolicy.parse(definition.gc).by_key
            predicate = Predicate.make(where, parse_attributes(definition.attrs), by_key)
            return await self._publish_rows(definition, [where_rows(FIRST, [predicate.text])])
        return await self._publish_rows(definition, [before_rows(FIRST, [number("before", before)])])

    async def flush(self) -> list[Ack]:
        """Wait until every posted event is durable; `PublishFailed` says which are not."""
        self._alive()
        return await self._packer.flush()

    async def drain(self) -> None:
        """Give the loop a turn, and wait while too many posted events are pending."""
        self._alive()
        await self._packer.drain()

    async def _publish_rows(self, definition: StreamDef, rows: list[Rows]) -> Ack:
        await self._packer.drain()
        futures = self._packer.put_rows(self._lane(definition.name), rows)
        try:
            acks = [await self._acknowledged(future) for future in futures]
        except BaseException:
            for future in futures:
                future.cancel() if not future.done() else future.exception()
            raise
        parts: list[tuple[int, int]] = []
        for ack in acks:
            if parts and parts[-1][1] == ack.lo:
                parts[-1] = (parts[-1][0], ack.hi)
            else:
                parts.append((ack.lo, ack.hi))
        return Ack(definition.name, parts[0][0], parts[-1][1], tuple(parts))

    async def _acknowledged(self, future: asyncio.Future[Ack]) -> Ack:
        try:
            return await future
        except TidingsError as error:
            raise type(error)(*error.args) from error  # several may wait for one batch: each gets its own

    def _lane(self, stream: StreamId) -> Lane:
        self._alive()
        definition = self._machine.streams.get(checked_name("stream", stream))
        if definition is None:
            raise self._unknown(stream)
        return self._packer.lane(definition)

    def _submit(self, region: RegionId, stream: StreamId, rows: Rows, tag: int) -> None:
        self._host.command(Submit(region, stream, rows, tag))

    # --- sinks ----------------------------------------------------------------------------------------------

    def sink(
        self,
        stream: StreamId,
        *,
        writer: str,
        query: str,
        batch: int,
        run: int | None = None,
        once: bool = False,
        reset: bool = False,
    ) -> Sink:
        """One batch of a writer, to be staged in parts and committed once; see `client/sinks.py`.

        ``query`` says what the batch numbers mean: of one writer only one query may go on, unless another says
        ``reset``. ``once``: the query is this batch alone. Who works on the same run names the same ``run``.
        """
        self._alive()
        checked_name("stream", stream)
        of = make_batch(stream, writer, query, batch, run=run, once=once, reset=reset)
        return Sink(of, self._ask_owner, self._split)

    async def _ask_owner(self, stream: StreamId, request: SinkRequest) -> Message:
        region = (await self._known(stream)).region
        future: asyncio.Future[Message] = self._loop.create_future()
        self._answers[request.nonce] = future
        try:
            self._host.command(Sinking(region, request))
            return await future
        finally:
            del self._answers[request.nonce]
            if not future.done() or future.cancelled():
                self._host.command(DropSinking(region, request.nonce))

    async def _split(self, stream: StreamId, table: pa.Table, rows: int, nbytes: int) -> list[Rows]:
        return batches_of(await self._known(stream), table, rows, nbytes)

    # --- subscribing --------------------------------------------------------------------------------------

    def subscribe(
        self,
        stream: StreamId | Iterable[StreamId],
        *more: StreamId,
        where: str | None = None,
        start: Start = "latest",
        order: str = "publisher",
        name: str | None = None,
        receipts: bool | None = None,
    ) -> Opening:
        """Events of one or several streams, from ``start`` on, for which ``where`` is true.

        With a ``name`` the subscription is durable: it continues behind what was acknowledged under that name.
        ``receipts``: as for `connect`, for this subscription alone.
        """
        if order == "total":
            raise NotBuilt(
                "order='total' is not built yet; use order='publisher', which keeps the order of each stream"
            )
        if order != "publisher":
            raise BadInput(f"order={order!r}: it is 'publisher' or 'total'")
        asked: Any = stream  # whatever the types promise
        given = asked if isinstance(asked, Iterable) and not isinstance(asked, str) else [asked]
        streams = [checked_name("stream", each) for each in (*given, *more)]
        if not streams or len(set(streams)) < len(streams):
            raise BadInput(f"subscribe to {streams}: name at least one stream, and each once")
        if name is not None:
            checked_name("name", name)
        return Opening(self, streams, text("where", where or ""), _position(start), name, receipts)

    async def _subscribe(
        self, streams: list[StreamId], where: str, lo: int, name: str | None, receipts: bool | None = None
    ) -> Subscription:
        for stream in streams:
            definition = await self._known(stream)
            if where:
                parse(where, parse_attributes(definition.attrs))  # `BadFilter` says where it is wrong
        holder = self._holder = max(int(time.time() * 1e6), self._holder + 1)
        opens: list[Open] = []
        for stream in streams:
            self._last_id += 1
            opens.append(Open(self._last_id, stream, lo, where, name, holder))
        wanted = next((asked for asked in (receipts, self._receipts) if asked is not None), self._machine.receipts)
        return await self._enter(opens, name or self.client_id if wanted else None)

    def read(
        self,
        stream: StreamId,
        lo: int,
        hi: int,
        *,
        asof: int | None = None,
        where: str | None = None,
        replica: int | None = None,
    ) -> Reading:
        """Exactly the rows of [lo, hi) that survive collection by the events below ``asof`` (default: ``hi``).

        The same from every replica; ``replica`` says which of the region to begin with. What is not there yet is
        waited for; what nobody remembers as of that number is `AsofGone`, and a lease keeps it from happening.
        """
        if not number("lo", lo) < number("hi", hi):
            raise BadInput(f"{stream}: [{lo}, {hi}) is not a range of numbers: they begin at {FIRST}, and lo < hi")
        asof = number("asof", hi if asof is None else asof)
        if replica is not None:
            number("replica", replica, 0)
        return Reading(self, checked_name("stream", stream), lo, hi, asof, text("where", where or ""), replica)

    async def _read(
        self, stream: StreamId, lo: int, hi: int, asof: int, where: str, replica: int | None
    ) -> Subscription:
        definition = await self._known(stream)
        if where:
            parse(where, parse_attributes(definition.attrs))
        self._last_id += 1
        open = Open(self._last_id, stream, lo, where, None, 0, hi, asof, replica)
        return await self._enter([open])

    async def _enter(self, opens: list[Open], subscriber: str | None = None) -> Subscription:
        """Open a subscription; it sends receipts in the name of ``subscriber``, if there is one."""
        subscription = Subscription(self, opens, self._forget, self._loop)
        self._subscriptions |= dict.fromkeys(subscription.feeds, subscription)
        if subscriber is not None:
            subscription.on_taken = self._ledger.note
            for open in opens:
                if not is_internal(open.stream):
                    self._ledger.open(open.id, subscriber, open.holder, open.stream)
        return await subscription.__aenter__()

    def lease(
        self,
        stream: StreamId,
        *,
        asof: int = 0,
        name: str | None = None,
        ttl: float = TTL,
        bytes: int = BYTES,
        resume: bool = False,
    ) -> LeaseOpening:
        """Keep rows of a stream readable as of the end of the stream, or ``asof`` while another lease keeps that.

        Bounded: over after ``ttl`` seconds without a sign of life, or when more than so many ``bytes`` of collected
        rows are kept for it. ``resume``: the lease of this name, which another client has left, with these bounds.
        """
        own = checked_name("name", name or f"{self.client_id}.{secrets.token_hex(6)}")
        bounds = number("asof", asof, 0), seconds("ttl", ttl), number("bytes", bytes, 0)
        return LeaseOpening(self, Request(own, checked_name("stream", stream), *bounds), resume)

    async def _lease(self, request: Request, resume: bool) -> Lease:
        await self._known(request.stream)
        if request.name in self._leases:
            raise BadInput(f"lease {request.name!r}: this connection has one of that name")
        lease = self._leases[request.name] = Lease(self, request, resume, self._loop)
        try:
            return await lease.open()
        except BaseException:
            self._leases.pop(request.name, None)
            if resume:
                lease.leave()  # whoever gave up waiting may come back for it
            else:
                lease.release()
            raise

    def _on_granted(self, item: Granted) -> None:
        lease = self._leases.get(item.name)
        if lease is not None:
            lease.granted(item.asof)

    def _on_dropped(self, item: Dropped) -> None:
        lease = self._leases.pop(item.name, None)
        if lease is not None:
            lease.dropped(item.reason, item.room)

    def _forget(self, ids: list[int]) -> None:
        for id in ids:
            self._subscriptions.pop(id, None)
            self._ledger.end(id)

    async def _send_receipts(self, receipts: tuple[Receipt, ...]) -> None:
        nonce = self._nonce()
        await self._ask(Ask(nonce, Receipts(nonce, receipts), self.region, True))

    def join(self, group: str) -> NoReturn:
        """Events and membership views in one total order: not built yet."""
        raise NotBuilt(f"join({group!r}) is not built yet; subscribe to a stream instead")

    def _report(self) -> None:
        for subscription in self._subscriptions.values():
            if subscription.durable:
                subscription.report()
        self._reporter = self._loop.call_later(REPORT, self._report)

    # --- streams --------------------------------------------------------------------------------------------

    async def streams(self, pattern: str = "") -> list[StreamInfo]:
        """All streams (whose whole name matches a regular expression), as they stand in the region of the client."""
        try:
            matching = re.compile(text("pattern", pattern) or ".*")
        except re.error as error:
            raise BadInput(f"{pattern!r} is no regular expression: {error}") from None
        found = _infos(await self.describe())
        return [each for each in found if not is_internal(each.name) and matching.fullmatch(each.name)]

    async def describe(self, region: RegionId = "") -> Description:
        """What is there, as a replica of the own region tells it, or the one of another region that knows most."""
        nonce = self._nonce()
        told = await self._ask(Ask(nonce, Describe(nonce), text("region", region)))
        assert isinstance(told, Description)
        return told

    async def stream(self, name: StreamId) -> StreamInfo:
        """One stream, and how it stands; raises `UnknownStream`."""
        await self._known(name)
        for stream in _infos(await self.describe()):
            if stream.name == name:
                return stream
        raise self._unknown(name)

    async def create_stream(
        self, name: StreamId, *, region: RegionId | None = None, attrs: str = "", gc: str = "none"
    ) -> StreamInfo:
        """Create a stream in a region (the own one, unless told otherwise); there already: it must be the same."""
        return await self._define("create", StreamDef(name, region or self.region, gc, attrs=attrs))

    async def alter_stream(self, name: StreamId, *, attrs: str) -> StreamInfo:
        """Add attributes to a stream: ``attrs`` are the old ones and, behind them, the new."""
        known = await self._known(name)
        return await self._define("alter", StreamDef(name, known.region, known.gc, attrs=attrs))

    async def delete_stream(self, name: StreamId) -> StreamInfo:
        """Delete a stream and all its events; the name cannot be used again."""
        known = await self._known(name)
        return await self._define("delete", StreamDef(name, known.region))

    async def why(self, stream: StreamId, seq: int) -> Reason:
        """What has become of a number, as the stream's own region knows it."""
        number("seq", seq)
        definition = await self._known(stream)
        told = await self._ask(Ask(self._nonce(), Why(stream, seq), definition.region))
        assert isinstance(told, Because)
        return Reason(stream, seq, told.state, told.by)

    async def _define(self, operation: Operation, definition: StreamDef) -> StreamInfo:
        self._alive()
        checked_name("stream", definition.name)
        for what, value in (("region", definition.region), ("gc", definition.gc), ("attrs", definition.attrs)):
            text(what, value)
        if definition.region not in self._machine.memberships:
            known = ", ".join(sorted(self._machine.memberships))
            raise BadInput(f"region {definition.region!r} is unknown; there are: {known}")
        nonce = self._nonce()
        told = await self._ask(Ask(nonce, Define(nonce, operation, definition), definition.region, True))
        if isinstance(told, NotDefined):
            raise BadInput(told.reason)
        assert isinstance(told, Defined)
        made = told.definition
        if made.name in self._lanes:
            self._packer.lane(made)
        return StreamInfo(made.name, made.region, made.gc, made.attrs, FIRST, 0, 0)

    async def _known(self, stream: StreamId) -> StreamDef:
        """The definition of a stream; looks again before it says that there is none."""
        self._alive()
        checked_name("stream", stream)
        for pause in (0.0, 0.2):
            found = self._machine.streams.get(stream)
            if found is not None:
                return found
            await asyncio.sleep(pause)
            await self.streams()
        found = self._machine.streams.get(stream)
        if found is None:
            raise self._unknown(stream)
        return found

    def _unknown(self, stream: StreamId) -> UnknownStream:
        near = get_close_matches(stream, sorted({*self._machine.streams} - {stream}), n=1)
        hint = f", did you mean {near[0]!r}?" if near else "; create it, or look again with streams()"
        return UnknownStream(f"stream {stream!r} is unknown in region {self.region}{hint}", stream)

    # --- questions ------------------------------------------------------------------------------------------

    def _nonce(self) -> int:
        return secrets.randbits(48) + 1

    async def _ask(self, ask: Ask) -> Message:
        self._alive()
        future: asyncio.Future[Message] = self._loop.create_future()
        self._answers[ask.nonce] = future
        try:
            self._host.command(ask)
            return await future
        finally:
            del self._answers[ask.nonce]
            if not future.done() or future.cancelled():
                self._host.command(Drop(ask.nonce))

    def _alive(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)

    # --- what the machine delivers --------------------------------------------------------------------------

    def _deliver(self, item: Any) -> None:
        handler = self._handlers.get(type(item))
        if handler is not None:
            handler(item)

    def _on_acked(self, item: Acked) -> None:
        self._packer.acked(item.tag, item.lo, item.hi)

    def _on_refused(self, item: Refused) -> None:
        error: TidingsError
        if item.reason == "stream":
            error = UnknownStream(
                f"stream {item.stream!r} is unknown to its owner; perhaps it was deleted", item.stream
            )
        elif item.reason == "size":
            error = PayloadTooLarge(
                f"{item.stream}: the owner refused the batch: it is too large; publish less at once"
            )
        else:
            error = PublishFailed(
                f"{item.stream}: the owner refused the batch ({item.reason}): it does not fit the stream"
            )
        self._packer.refused(item.tag, error)

    def _on_broken(self, item: Broken) -> None:
        error: TidingsError
        if item.reason in _GONE:
            error = Fenced(
                f"client_id {self.client_id!r}: a newer client publishes to region {item.region} under this id; "
                "connect anew, or under another"
            )
        else:
            error = PublishFailed(
                f"client_id {self.client_id!r}: region {item.region} has forgotten this session ({item.reason}): "
                "what was not acknowledged may or may not be published; connect anew"
            )
        self._packer.fail(item.region, error)

    def _on_fed(self, item: Fed) -> None:
        subscription = self._subscriptions.get(item.id)
        if subscription is not None:
            subscription.fed(item.id, item.span)

    def _on_heard(self, item: Heard) -> None:
        subscription = self._subscriptions.get(item.id)
        if subscription is not None:
            subscription.heard(item.id, item.at, item.horizon, self._loop.time())

    def _on_saved(self, item: Saved) -> None:
        subscription = self._subscriptions.get(item.id)
        if subscription is not None:
            subscription.saved(item.id, item.horizon)

    def _on_ended(self, item: Ended) -> None:
        subscription = self._subscriptions.get(item.id)
        if subscription is not None:
            subscription.ended(item)

    def _on_answered(self, item: Answered) -> None:
        future = self._answers.get(item.nonce)
        if future is not None and not future.done():
            future.set_result(item.message)

    def _on_sink_answered(self, item: SinkAnswered) -> None:
        self._on_answered(Answered(item.request.nonce, item.answer))

    def _on_described(self, item: Description) -> None:
        if self._described is not None and not self._described.done():
            self._described.set_result(None)
        for name, lane in self._lanes.items():
            definition = self._machine.streams[name]
            if len(lane.declared) < definition.attrs.count(",") + bool(definition.attrs):
                self._packer.lane(definition)

    def _on_failed(self, failed: asyncio.Future[None]) -> None:
        error = None if failed.cancelled() else failed.exception()
        if error is not None:
            self._fail(error if isinstance(error, TidingsError) else TidingsError(str(error)))

    def _fail(self, error: TidingsError) -> None:
        """Nothing more will come."""
        self._error = self._error or error
        self._packer.close(error)
        for subscription in self._subscriptions.values():
            subscription.end(error)
        for lease in self._leases.values():
            lease.end(error)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(error)
        if self._described is not None and not self._described.done():
            self._described.set_exception(error)


class LeaseOpening:
    """A lease that is not granted yet: ``async with`` waits for it."""

    def __init__(self, connection: Connection, request: Request, resume: bool) -> None:
        self._connection = connection
        self._request = request
        self._resume = resume
        self._lease: Lease | None = None

    async def open(self) -> Lease:
        """Wait for it; it must be released, or left."""
        self._lease = await self._connection._lease(self._request, self._resume)
        return self._lease

    async def __aenter__(self) -> Lease:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            self._lease.release()


class Opening:
    """A subscription that is not open yet: ``async with`` opens it."""

    def __init__(
        self,
        connection: Connection,
        streams: list[StreamId],
        where: str,
        lo: int,
        name: str | None,
        receipts: bool | None,
    ) -> None:
        self._connection = connection
        self._request = (streams, where, lo, name, receipts)
        self._subscription: Subscription | None = None

    async def open(self) -> Subscription:
        """Open it; the subscription must be closed."""
        self._subscription = await self._connection._subscribe(*self._request)
        return self._subscription

    async def __aenter__(self) -> Subscription:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._subscription is not None:
            await self._subscription.close()


def _infos(told: Description) -> list[StreamInfo]:
    """Streams as a replica describes them, by name."""
    unknown = StreamState(FIRST, 0, 0)
    return [
        StreamInfo(each.name, each.region, each.gc, each.attrs, *astuple(told.states.get(each.name, unknown)))
        for each in sorted(told.streams, key=lambda each: each.name)
    ]


def _position(start: Start) -> int:
    if start == "earliest":
        return EARLIEST
    if start == "latest":
        return LATEST
    asked: object = start  # whatever the types promise
    if isinstance(asked, str):
        raise BadInput(f"start={asked!r:.80}: it is 'earliest', 'latest' or a number from {FIRST} on")
    return number("start", asked)
