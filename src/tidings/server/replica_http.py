"""A replica's own HTTP: /metrics for Prometheus, /healthz, /status, and, in a lab, /fault."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidings.core.errors import BadInput
from tidings.core.ids import stream_name
from tidings.net.host import Host
from tidings.net.names import name_of
from tidings.net.shape import Wan
from tidings.protocols.nodes.replica import Replica
from tidings.server.http import authorized, refused
from tidings.store import Store


def role(proxy: Replica) -> str:
    """A replica's place in its chain, in a word."""
    chain = proxy.chain
    if chain.active:
        return "head" if chain.is_head else "tail" if chain.is_tail else "middle"
    return "joining" if chain.is_joining else "out"


class ReplicaMetrics(Collector):
    """Reads everything when it is asked: nothing is counted twice."""

    def __init__(self, host: Host, proxy: Replica, store: Store) -> None:
        self._host = host
        self._proxy = proxy
        self._store = store

    def collect(self) -> Iterator[Metric]:
        host, proxy, store = self._host, self._proxy, self._store
        yield _counters("tidings_driver", "What the driver has counted: frames, dials, drops.", host.counters.items())
        yield _counters("tidings_reports", "What the protocols have reported.", host.reports.items())
        stats = msgspec.structs.asdict(store.stats)
        yield _gauges("tidings_store", "The durable log.", stats.items())
        sizes = {"queued_bytes": store.queued, "used_bytes": store.used_bytes, "bound_bytes": store.max_bytes}
        yield _gauges("tidings_store_size", "Bytes of the durable log.", sizes.items())
        log = proxy.log
        gauges = {
            "epoch": proxy.chain.membership.epoch,
            "log_last": log.last,
            "log_committed": log.committed,
            "inbox": host.queued,
            "links": len(host.links),
            "link_backlog_bytes": sum([link.peer.backlog for link in host.links.values() if link.peer is not None]),
            "peers": len(host.peers),
            "peer_backlog_bytes": sum([peer.backlog for peer in host.peers.values()]),
            "publishers": len(proxy.publishers.entries),
            "answers_owed": len(proxy.head.waiting),
        }
        yield _gauges("tidings_replica", "The replica as it is now.", gauges.items())
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


def _counters(name: str, text: str, items: Iterable[tuple[str, float]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=["name"])
    for key, value in sorted(items):
        family.add_metric([key], value)
    return family


def _gauges(name: str, text: str, items: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["name"])
    for key, value in items:
        family.add_metric([key], value)
    return family


class ReplicaHttp:
    """The application. ``token``: what a fault must show; empty: no faults here."""

    def __init__(self, host: Host, proxy: Replica, store: Store, wan: Wan | None, token: str) -> None:
        self._host = host
        self._proxy = proxy
        self._store = store
        self._wan = wan
        self._token = token
        self._registry = CollectorRegistry()
        self._registry.register(ReplicaMetrics(host, proxy, store))
        ProcessCollector(registry=self._registry)
        routes = [
            Route("/metrics", self._metrics),
            Route("/healthz", self._health),
            Route("/status", self._status),
        ]
        if wan is not None and token:
            routes.append(Route("/fault", self._fault, methods=["POST"]))
        self.application = Starlette(routes=routes)

    async def _metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def _health(self, request: Request) -> JSONResponse:
        """200 while this replica does its part: it is in the chain and its disk takes what it is given."""
        answer = {"role": role(self._proxy), "store": self._store.condition, "failed": self._host.failed.done()}
        good = self._proxy.chain.active and self._store.condition == "open" and not self._host.failed.done()
        return JSONResponse(answer, status_code=200 if good else 503)

    async def _status(self, request: Request) -> JSONResponse:
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
        return JSONResponse(
            {
                "id": name_of(self._host.node),
                "role": role(proxy),
                "epoch": chain.membership.epoch,
                "replicas": [name_of(node) for node in chain.membership.replicas],
                "joining": chain.membership.joining and name_of(chain.membership.joining),
                "peers": {name: peer.epoch for name, peer in sorted(proxy.inter_region.peers.items())},
                "log": {"last": log.last, "committed": log.committed},
                "store": {"condition": self._store.condition, **msgspec.structs.asdict(self._store.stats)},
                "streams": streams,
                "reports": dict(sorted(self._host.reports.items())),
                "counters": dict(sorted(self._host.counters.items())),
                "wan": {} if self._wan is None else self._wan.show(),
            }
        )

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
