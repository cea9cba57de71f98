"""The HTTP of a relay or an edge: metrics, health and status."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric

from tidings.net.host import Host
from tidings.net.names import name_of
from tidings.protocols.nodes.edge import Edge
from tidings.protocols.nodes.relay import Relay
from tidings.server.node_http import NodeHttp, gauges, link_gauges
from tidings.server.topology import BrokerPlace


class BrokerHttp(NodeHttp):
    """The application."""

    def __init__(self, host: Host, place: BrokerPlace) -> None:
        self._place = place
        super().__init__(host)

    def health(self) -> tuple[dict[str, Any], bool]:
        """It does its part while it hears from brokers up to a replica."""
        answer = {"connected": self._connected, "failed": self.host.failed.done()}
        return answer, answer["connected"] and not answer["failed"]

    def status(self) -> dict[str, Any]:
        place = self._place
        return {
            "id": name_of(self.host.node),
            "kind": place.kind,
            "cell": place.cell,
            "below": place.below,
            "connected": self._connected,
            **self._numbers,
        }

    def machine_metrics(self) -> Iterator[Metric]:
        now = {"connected": self._connected, **link_gauges(self.host), **self._numbers}
        yield gauges(f"tidings_{self._place.kind}", f"The {self._place.kind} as it is now.", now.items())

    @property
    def _connected(self) -> bool:
        machine = self.host.machine
        return machine.broker.connected(time.time()) if isinstance(machine, Relay) else _edge(machine).connected()

    @property
    def _numbers(self) -> dict[str, int]:
        machine = self.host.machine
        if isinstance(machine, Relay):
            broker = machine.broker
            kept = sum([known.nbytes for known in broker.inputs.values()])
            return {"downstream": len(broker.downstream), "streams": len(broker.inputs), "kept_bytes": kept}
        edge = _edge(machine)
        return {
            "subscriptions": len(edge.subscriptions.positions) + len(edge.parked),
            "waiting": len(edge.parked),  # of them, those whose streams are not known yet
            "catching_up": len(edge.subscriptions.catching) + len(edge.subscriptions.queue),
            "streams": len(edge.subends),
        }


def _edge(machine: object) -> Edge:
    assert isinstance(machine, Edge)
    return machine
