"""Which process runs for a spec: that of a replica, a relay or an edge; and which machine a journal is of."""

from __future__ import annotations

from typing import Any

import msgspec

from tidings.net.journal import Start
from tidings.protocols.kernel import Machine
from tidings.server.broker_process import BrokerProcess, EdgeRecipe, RelayRecipe
from tidings.server.node_process import NodeKind, NodeProcess, OnReady, Spec, run_process
from tidings.server.replica import Recipe, ReplicaProcess

PROCESSES: dict[NodeKind, type[NodeProcess]] = {
    "replica": ReplicaProcess,
    "relay": BrokerProcess,
    "edge": BrokerProcess,
}


def main(spec: Spec, on_ready: OnReady | None = None) -> int:
    """Run the process of a spec until it is told to stop; the exit code."""
    return run_process(PROCESSES[spec.kind], spec, on_ready)


def remake(start: Start, entries: list[Any]) -> Machine:
    """The machine of a journal, for `tidings.net.journal.replay`."""
    recipe: Recipe | RelayRecipe | EdgeRecipe = msgspec.msgpack.decode(
        start.params, type=Recipe | RelayRecipe | EdgeRecipe
    )
    return recipe.make(entries)
