"""The HTTP of a process that runs a machine: /metrics for Prometheus, /healthz and /status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidings.net.host import Host


def counters(name: str, text: str, items: Iterable[tuple[str, float]]) -> Metric:
    """Numbers that only grow, by name."""
    family = CounterMetricFamily(name, text, labels=["name"])
    for key, value in sorted(items):
        family.add_metric([key], value)
    return family


def gauges(name: str, text: str, items: Iterable[tuple[str, float]]) -> Metric:
    """Numbers as they are now, by name."""
    family = GaugeMetricFamily(name, text, labels=["name"])
    for key, value in items:
        family.add_metric([key], value)
    return family


def link_gauges(host: Host) -> dict[str, float]:
    """What waits in a host, and for whom."""
    return {
        "inbox": host.queued,
        "links": len(host.links),
        "link_backlog_bytes": sum([link.peer.backlog for link in host.links.values() if link.peer is not None]),
        "peers": len(host.peers),
        "peer_backlog_bytes": sum([peer.backlog for peer in host.peers.values()]),
    }


class NodeHttp(Collector):
    """The application. Everything is read when it is asked: nothing is counted twice."""

    def __init__(self, host: Host, more: Iterable[Route] = ()) -> None:
        self.host = host
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        routes = [
            Route("/metrics", self._metrics),
            Route("/healthz", self._health),
            Route("/status", self._status),
        ]
        self.application = Starlette(routes=[*routes, *more])

    def health(self) -> tuple[dict[str, Any], bool]:
        """How it is, and whether it does its part."""
        raise NotImplementedError

    def status(self) -> dict[str, Any]:
        """What it knows of itself."""
        raise NotImplementedError

    def machine_metrics(self) -> Iterator[Metric]:
        """Metrics of its machine."""
        raise NotImplementedError

    def collect(self) -> Iterator[Metric]:
        host = self.host
        yield counters("tidings_driver", "What the driver has counted: frames, dials, drops.", host.counters.items())
        yield counters("tidings_reports", "What the protocols have reported.", host.reports.items())
        yield from self.machine_metrics()

    async def _metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def _health(self, request: Request) -> JSONResponse:
        answer, good = self.health()
        return JSONResponse(answer, status_code=200 if good else 503)

    async def _status(self, request: Request) -> JSONResponse:
        counted = {
            "reports": dict(sorted(self.host.reports.items())),
            "counters": dict(sorted(self.host.counters.items())),
        }
        return JSONResponse(self.status() | counted)
