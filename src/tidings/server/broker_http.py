"""The HTTP of a relay or an edge: metrics, health and status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric

from tidings.net.host import Host
from tidings.net.names import name_of
from tidings.server.node_http import NodeHttp, gauges, link_gauges
from tidings.server.topology import BrokerPlace


class BrokerHttp(NodeHttp):
    """The application."""

    def __init__(self, host: Host, place: BrokerPlace) -> None:
        self._place = place
        super().__init__(host)

    def health(self) -> tuple[dict[str, Any], bool]:
        """It does its part while its machine runs."""
        failed = self.host.failed.done()
        return {"failed": failed}, not failed

    def status(self) -> dict[str, Any]:
        place = self._place
        return {
            "id": name_of(self.host.node),
            "kind": place.kind,
            "cell": place.cell,
            "below": place.below,
            "clients": self._clients,
        }

    def machine_metrics(self) -> Iterator[Metric]:
        now = {**link_gauges(self.host), "clients": self._clients}
        yield gauges(f"tidings_{self._place.kind}", f"The {self._place.kind} as it is now.", now.items())

    @property
    def _clients(self) -> int:
        """Connections of clients."""
        return sum([peer.role == "client" for peer in self.host.peers.values()])
