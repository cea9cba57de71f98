"""Relays and edges as real processes whose links can stall and fail.

A link of TCP cannot be made to stall from outside, so a broker does it itself, as the paper's did ("it accepted data
but did not forward it"). `FaultyHost` is the host of every relay and edge, with two faults per neighbour:

- *stalled*: frames to it and from it are taken and thrown away; connections stay up and nobody is told,
- *deaf*: the same for frames from it alone,
- *cut*: connections with it are closed, both ends notice, and new ones are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tidings.core.ids import NodeId
from tidings.net.codec import tag_of
from tidings.net.frames import Body, Outgoing
from tidings.net.host import Host
from tidings.net.link import Hello, Peer
from tidings.net.names import slot_of
from tidings.protocols.kernel import Message
from tidings.server.broker_http import BrokerHttp
from tidings.server.broker_process import BrokerProcess


class LinkFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Slots of the neighbours whose links are out of order."""

    stalled: frozenset[str] = frozenset()
    deaf: frozenset[str] = frozenset()
    cut: frozenset[str] = frozenset()


class FaultyHost(Host):
    """A host that can lose touch with some of its neighbours."""

    faults = LinkFaults()
    _closing: Collection[asyncio.Task[None]] = ()

    def inject(self, faults: LinkFaults) -> None:
        """These links are out of order from now on, and no others."""
        self.faults = faults
        links = [link for node, link in self._links.items() if slot_of(node) in faults.cut]
        for peer in [peer for node, peer in self.peers.items() if slot_of(node) in faults.cut]:
            peer.close()
        for link in links:
            del self._links[link.node]
            self.unreachable(link.node)
        self._closing = [asyncio.ensure_future(link.close()) for link in links]

    def judge(self, hello: Hello, accepted: bool) -> str | None:
        if slot_of(hello.node) in self.faults.cut:
            return "cut: this link is out of order"
        return super().judge(hello, accepted)

    def peer_frame(self, peer: Peer, header: bytes, body: Body) -> None:
        slot = slot_of(peer.node)
        if slot in self.faults.stalled or slot in self.faults.deaf:
            self.counters[f"swallowed {tag_of(header)}"] += 1
            return
        super().peer_frame(peer, header, body)

    def _send(self, to: NodeId, message: Message, outgoing: Outgoing | None) -> Outgoing | None:
        slot = slot_of(to)
        if slot in self.faults.stalled or slot in self.faults.cut:
            return outgoing
        return super()._send(to, message, outgoing)


class FaultyBroker(BrokerProcess):
    """A relay or an edge that is told of faults by its HTTP."""

    host_type = FaultyHost

    def http(self, host: Host) -> BrokerHttp:
        assert isinstance(host, FaultyHost)

        async def inject(request: Request) -> JSONResponse:
            host.inject(msgspec.json.decode(await request.body(), type=LinkFaults))
            return JSONResponse({"done": True})

        found = super().http(host)
        found.application.router.routes.append(Route("/fault", inject, methods=["POST"]))
        return found
