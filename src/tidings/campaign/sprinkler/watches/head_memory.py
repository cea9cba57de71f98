"""The tables of a head are in the log: the next head rebuilds them from it.

* ``head_memory_not_in_log``: the publishers, cursors, leases or sinks of an idle head differ from those that a new head
  would rebuild from the log.
* ``aborted_rows_kept``: a sink's batch was aborted, and its staged rows still take room.
"""

from __future__ import annotations

from typing import Any

from tidings.campaign.sprinkler.fault_plan import SECONDS, FaultPlan
from tidings.campaign.sprinkler.watches.watch import Watch
from tidings.core.ids import NodeId
from tidings.protocols.kernel import Effects, Received, Report
from tidings.protocols.nodes.replica import Replica
from tidings.protocols.services.cursors import CURSORS, Cursors
from tidings.protocols.services.leases import LEASES, table_in
from tidings.protocols.services.publishing import PUBLISHERS, Publishers
from tidings.protocols.services.sinks import SINKS, STAGES, AbortBatch, Past, Sinks
from tidings.sim.build import Deployment, Note

EVERY = 1.03  # seconds between two looks


class HeadMemory(Watch):
    """Looks at heads that have nothing under way."""

    def __init__(self, deployment: Deployment, plan: FaultPlan) -> None:
        super().__init__(deployment, plan)
        for at in range(int((SECONDS - 2.0) / EVERY)):
            deployment.world.at(2.0 + EVERY * at, self._look)

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Aborts of sinks' batches."""
        if type(input) is Received and type(input.message) is AbortBatch:
            of, head = input.message.of, self.deployment.proxy(node)
            busy = any([type(each) is Report and each.name == "sink_busy" for each in effects])
            staging = head.sinks.stagings.get(of.owner)
            if head.chain.is_head and not head.recovery.active and not busy and staging is not None:
                same = (of.query, of.batch, of.run) == (staging.of.query, staging.of.batch, staging.of.run)
                self.blame(node, "aborted_rows_kept", same and not isinstance(head.sinks.judge(of), Past))

    def demand(self, note: Note) -> None:
        self._look()
        super().demand(note)

    def _look(self) -> None:
        for node in [node for nodes in self.deployment.replicas.values() for node in nodes]:
            host = self.deployment.world.hosts[node]
            head = host.machine
            if not host.life or host.wake_at or not isinstance(head, Replica) or not head.chain.is_head:
                continue
            if head.head.inherited_lsn is not None and head.log.committed == head.log.last:
                now = host.clock(self.deployment.world.now)
                self.blame(node, "head_memory_not_in_log", _differs(head, now))


def _differs(head: Replica, now: float) -> bool:
    """Whether a new head would know something else; it may know less of publishers whose time is over."""
    cursors = Cursors(head.settings.subscriptions)
    cursors.load(head.log.rows_of(CURSORS), lambda stream: head.table.readable(stream) is not None)
    publishers = Publishers(head.settings.publish)
    publishers.load(head.log.rows_of(PUBLISHERS))
    sinks = Sinks(head.log, head.region, head.sinks.tick, head.settings.sinks)
    sinks.load(head.log.rows_of(SINKS), head.log.rows_of(STAGES))
    fresh = [
        publishers.entries.get(name) == entry
        for name, entry in head.publishers.entries.items()
        if now - entry.at <= head.settings.publish.ttl
    ]
    written = table_in(head.log.rows_of(LEASES))
    staged, remembered = ({o: s.chunks for o, s in each.stagings.items()} for each in (sinks, head.sinks))
    leases, held = ({n: (e.stream, e.asof) for n, e in t.items()} for t in (written, head.leases.entries))
    return not (
        cursors.entries == head.cursors.entries
        and all(fresh)
        and (sinks.entries, staged) == (head.sinks.entries, remembered)
        and leases == held
    )
