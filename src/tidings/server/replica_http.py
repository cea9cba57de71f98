"""A replica's own HTTP: metrics, health and status of its machine and its store, and, in a lab, /fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tidings.core.errors import BadInput
from tidings.core.ids import stream_name
from tidings.net.host import Host
from tidings.net.names import name_of
from tidings.net.shape import Wan
from tidings.protocols.nodes.replica import Replica
from tidings.server.http import authorized, refused
from tidings.server.node_http import NodeHttp, gauges, link_gauges
from tidings.store import Store


def role(proxy: Replica) -> str:
    """A replica's place in its chain, in a word."""
    chain = proxy.chain
    if chain.active:
        return "head" if chain.is_head else "tail" if chain.is_tail else "middle"
    return "joining" if chain.is_joining else "out"


class ReplicaHttp(NodeHttp):
    """The application. ``token``: what a fault must show; empty: no faults here."""

    def __init__(self, host: Host, proxy: Replica, store: Store, wan: Wan | None, token: str) -> None:
        self._proxy = proxy
        self._store = store
        self._wan = wan
        self._token = token
        faults = [Route("/fault", self._fault, methods=["POST"])] if wan is not None and token else []
        super().__init__(host, faults)

    def health(self) -> tuple[dict[str, Any], bool]:
        """It does its part while it is in the chain and its disk takes what it is given."""
        failed = self.host.failed.done()
        answer = {"role": role(self._proxy), "store": self._store.condition, "failed": failed}
        return answer, self._proxy.chain.active and self._store.condition == "open" and not failed

    def status(self) -> dict[str, Any]:
        proxy = self._proxy
        chain, log = proxy.chain, proxy.log
        streams = {
            name: {
                "horizon": history.horizon,
                "live": history.live,
                "collected": history.collected,
                "lost": history.lost,
            }
            for name, history in log.histories.items()
        }
        return {
            "id": name_of(self.host.node),
            "role": role(proxy),
            "epoch": chain.membership.epoch,
            "replicas": [name_of(node) for node in chain.membership.replicas],
            "joining": chain.membership.joining and name_of(chain.membership.joining),
            "peers": {name: peer.epoch for name, peer in sorted(proxy.inter_region.peers.items())},
            "log": {"last": log.last, "committed": log.committed},
            "store": {"condition": self._store.condition, **msgspec.structs.asdict(self._store.stats)},
            "streams": streams,
            "wan": {} if self._wan is None else self._wan.show(),
        }

    def machine_metrics(self) -> Iterator[Metric]:
        proxy, store = self._proxy, self._store
        stats = msgspec.structs.asdict(store.stats)
        yield gauges("tidings_store", "The durable log.", stats.items())
        sizes = {"queued_bytes": store.queued, "used_bytes": store.used_bytes, "bound_bytes": store.max_bytes}
        yield gauges("tidings_store_size", "Bytes of the durable log.", sizes.items())
        log = proxy.log
        now = {
            "epoch": proxy.chain.membership.epoch,
            "log_last": log.last,
            "log_committed": log.committed,
            **link_gauges(self.host),
            "publishers": len(proxy.publishers.entries),
            "answers_owed": len(proxy.head.waiting),
        }
        yield gauges("tidings_replica", "The replica as it is now.", now.items())
        place = GaugeMetricFamily("tidings_role", "1 for the replica's place in its chain.", labels=["role"])
        place.add_metric([role(proxy)], 1)
        yield place
        yield from self._streams()

    def _streams(self) -> Iterator[Metric]:
        horizon = GaugeMetricFamily("tidings_horizon", "First number not known here.", labels=["stream"])
        rows = GaugeMetricFamily("tidings_rows", "Rows of a stream.", labels=["stream", "state"])
        size = GaugeMetricFamily("tidings_history_bytes", "Memory of a stream's history.", labels=["stream"])
        for id, history in self._proxy.log.histories.items():
            name = stream_name(id)
            horizon.add_metric([name], history.horizon)
            size.add_metric([name], history.nbytes)
            for state, count in (
                ("live", history.live),
                ("collected", history.collected),
                ("lost", history.lost),
                ("stored", history.rows_stored),
            ):
                rows.add_metric([name, state], count)
        yield from (horizon, rows, size)

    async def _fault(self, request: Request) -> JSONResponse:
        """{"cuts": [[a, b], ...]}: these links are cut, and no others; or {"impair": [a, b], "loss": ...}."""
        assert self._wan is not None
        if not authorized(request, self._token):
            return refused("the token is missing or wrong", 403)
        try:
            apply_fault(self._wan, await request.json())
        except (BadInput, TypeError, KeyError, ValueError) as error:
            return refused(f"no such fault: {error}")
        return JSONResponse(self._wan.show())


def apply_fault(wan: Wan, fault: dict[str, Any]) -> None:
    """Let exactly these links be cut, as often as it is said; or change what a link does to frames."""
    if "impair" in fault:
        a, b = fault.pop("impair")
        wan.impair(a, b, **fault)
        return
    cuts = {frozenset((str(a), str(b))) for a, b in fault["cuts"]}
    for a, b in wan.cuts():
        if frozenset((a, b)) not in cuts:
            wan.heal(a, b)
    for a, b in fault["cuts"]:
        if not wan.way(a, b).cut:
            wan.cut(a, b)
