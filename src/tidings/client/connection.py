"""`connect`: one client of a cluster, as an application sees it.

`Connection` is the public face. Each group of its calls is a class of its own: streams.py, publishing.py,
subscribing.py, leasing.py and sinks.py; session.py opens and closes what they share.

Nothing here gives up by itself while the connection is open: the machine (machine.py) deals with lost connections, new
heads and new chains. A call waits until it is answered; bound it with `asyncio.timeout`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NoReturn

import pyarrow as pa

from tidings.client.batching import CHUNK, CHUNK_BYTES, SHORT, Attrs, Batcher, Lane
from tidings.client.errors import Closed, NotBuilt
from tidings.client.events import Ack, Reason, StreamInfo
from tidings.client.leasing import LeaseCalls, LeaseOpening
from tidings.client.machine import MachineSettings
from tidings.client.publishing import PublishCalls
from tidings.client.reading import Reading
from tidings.client.session import Session
from tidings.client.sinks import Sink, SinkCalls
from tidings.client.streams import StreamCalls
from tidings.client.subscribing import Opening, Start, SubscribeCalls
from tidings.core.ids import RegionId, StreamId
from tidings.protocols.services.catalog import Description
from tidings.protocols.services.leases import BYTES, TTL

TIMEOUT = 10.0  # seconds to find the cluster, and to make posted events durable at the end; ours


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

    _batcher: Batcher

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
        self._session = Session(url, client_id, peer, token, cluster, tls, settings)
        self._streams = StreamCalls(self._session)
        self._publishing = PublishCalls(self._session, self._streams)
        self._subscribing = SubscribeCalls(self._session, self._streams, receipts)
        self._leasing = LeaseCalls(self._session, self._streams)
        self._sinks = SinkCalls(self._session, self._streams)
        self._lanes: dict[StreamId, Lane] = {}  # of the batcher: `post` looks there for every event
        self.url = url
        self.client_id = self._session.client_id
        self.peer = peer
        self.timeout = timeout

    # --- lifecycle ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Connection:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(flush=error is None)

    async def open(self) -> None:
        """Find the cluster."""
        await self._session.start()
        self._batcher, self._lanes = self._publishing.batcher, self._publishing.lanes
        try:
            await self._session.found(self.timeout)
        except BaseException:
            await self.close(flush=False)
            raise
        self._subscribing.start_reports()

    async def close(self, *, flush: bool = True) -> None:
        """End; posted events are made durable first, or the error says which are not."""
        if isinstance(self._session.error, Closed):
            return
        try:
            if flush and self._session.error is None:
                await self._publishing.flush_at_the_end(self.timeout)
        finally:
            await self._subscribing.close()
            await self._session.close()

    @property
    def region(self) -> RegionId:
        """The region that subscriptions are fed from."""
        return self._session.region

    @property
    def addresses(self) -> list[str]:
        """Where the replicas of the cluster are, as far as it is known: the own region's first."""
        return self._session.addresses

    # --- publishing -----------------------------------------------------------------------------------------

    def post(
        self, stream: StreamId, *, key: bytes | None = None, payload: bytes = b"", attrs: Attrs | None = None
    ) -> None:
        """Publish one event without waiting; `flush` says what became of it. Raises `Full` when too much is pending."""
        lane = self._lanes.get(stream)
        if lane is None:
            lane = self._publishing.lane(stream)
        payloads = lane.payloads
        if not payloads or attrs or lane.attrs or type(payload) is not bytes:
            self._batcher.put(lane, key, payload, attrs)
            return
        size = len(payload)  # what `put` does with nearly every event, without the call: hundreds of thousands a second
        if key is not None:
            size += len(key) if type(key) is bytes else SHORT
        if size >= SHORT:
            self._batcher.put(lane, key, payload, attrs)
            return
        payloads.append(payload)
        lane.keys.append(key)
        lane.size += size
        if len(payloads) >= CHUNK or lane.size >= CHUNK_BYTES:
            self._batcher.cut(lane)

    async def publish(
        self, stream: StreamId, *, key: bytes | None = None, payload: bytes = b"", attrs: Attrs | None = None
    ) -> Ack:
        """Publish one event; returns when it is durable at the owner's tail."""
        return await self._publishing.publish(stream, key, payload, attrs)

    async def publish_table(self, stream: StreamId, table: pa.Table | pa.RecordBatch) -> Ack:
        """Publish the rows of a table: columns key and payload (binary) and attributes; each may be missing."""
        return await self._publishing.publish_table(stream, table)

    async def collect(self, stream: StreamId, *, before: int | None = None, where: str | None = None) -> Ack:
        """Publish an event that collects every event below a number, or those for which a condition is true."""
        return await self._publishing.collect(stream, before, where)

    async def flush(self) -> list[Ack]:
        """Wait until every posted event is durable; `PublishFailed` says which are not."""
        return await self._publishing.flush()

    async def drain(self) -> None:
        """Give the loop a turn, and wait while too many posted events are pending."""
        await self._publishing.drain()

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
        ``reset``. ``once``: the query is this batch alone. All tasks of one run name the same ``run``.
        """
        return self._sinks.sink(stream, writer, query, batch, run, once, reset)

    # --- subscribing and reading ----------------------------------------------------------------------------

    def subscribe(
        self,
        stream: StreamId | Iterable[StreamId],
        *more: StreamId,
        where: str | None = None,
        start: Start = "latest",
        order: str = "publisher",
        name: str | None = None,
        patience: float | None = None,
        receipts: bool | None = None,
    ) -> Opening:
        """Events of one or several streams, from ``start`` on, for which ``where`` is true.

        With a ``name`` the subscription is durable: it continues behind what was acknowledged under that name.
        With ``order="total"`` events of all streams come in one order, the same for all subscribers; ``start`` is a
        tick then, and `OrderStalled` is raised when nothing comes of a region for ``patience`` seconds.
        ``receipts``: as for `connect`, for this subscription alone.
        """
        asked: Any = stream  # whatever the types promise
        given = asked if isinstance(asked, Iterable) and not isinstance(asked, str) else [asked]
        return self._subscribing.subscribe((*given, *more), where, start, order, name, patience, receipts)

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

        Every replica returns the same rows; ``replica`` says which of the region to begin with. The read waits for
        numbers that are not published yet. If no replica remembers the rows as of that number it raises `AsofGone`; a
        lease prevents that.
        """
        return self._subscribing.read(stream, lo, hi, asof, where, replica)

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

        Bounded: it ends after ``ttl`` seconds without a renewal, or when it keeps more than so many ``bytes`` of
        collected rows. ``resume``: the lease of this name, which another client has left, with these bounds.
        """
        return self._leasing.lease(stream, asof, name, ttl, bytes, resume)

    def join(self, group: str) -> NoReturn:
        """Events and membership views in one total order: not built yet."""
        raise NotBuilt(f"join({group!r}) is not built yet; subscribe to a stream instead")

    # --- streams --------------------------------------------------------------------------------------------

    async def streams(self, pattern: str = "") -> list[StreamInfo]:
        """All streams (whose whole name matches a regular expression), as they stand in the region of the client."""
        return await self._streams.streams(pattern)

    async def describe(self, region: RegionId = "") -> Description:
        """What a replica of the own region knows, or the replica of another region that knows most."""
        return await self._streams.describe(region)

    async def stream(self, name: StreamId) -> StreamInfo:
        """One stream, and how it stands; raises `UnknownStream`."""
        return await self._streams.stream(name)

    async def create_stream(
        self, name: StreamId, *, region: RegionId | None = None, attrs: str = "", gc: str = "none"
    ) -> StreamInfo:
        """Create a stream in a region (the own one, unless told otherwise); there already: it must be the same."""
        return await self._streams.create(name, region, attrs, gc)

    async def alter_stream(self, name: StreamId, *, attrs: str) -> StreamInfo:
        """Add attributes to a stream: ``attrs`` are the old ones and, behind them, the new."""
        return await self._streams.alter(name, attrs)

    async def delete_stream(self, name: StreamId) -> StreamInfo:
        """Delete a stream and all its events; one that is created under its name later is another stream."""
        return await self._streams.delete(name)

    async def why(self, stream: StreamId, seq: int) -> Reason:
        """What has become of a number, as the stream's own region knows it."""
        return await self._streams.why(stream, seq)
