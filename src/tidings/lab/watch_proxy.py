"""What a campaign demands of heads and replicas of proxies."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from tidings.core.ids import NodeId, StreamId
from tidings.lab.clerk import Clerking
from tidings.lab.seeds import Plan
from tidings.lab.watch import Watch
from tidings.protocols.catalog import PREFIX, DeclareLost, Define, StreamDef, definitions_in, definitions_of
from tidings.protocols.chain import Ack, Committed
from tidings.protocols.interregion import Advertise
from tidings.protocols.kernel import Effects, Expired, Persisted, Received, Report, Send
from tidings.protocols.leases import LEASES, Lease, Leased, Release, Table, table_in
from tidings.protocols.messages import Know
from tidings.protocols.proxy import WEIGHED, MaintainTick, Proxy
from tidings.protocols.publishing import REMEMBERED, OpenSession, Publish, Rejected, SessionOpened
from tidings.protocols.receipts import Receipts
from tidings.protocols.sinks import STAGED, AbortBatch, CommitBatch, SinkRefused, StageRows
from tidings.protocols.subscriptions import OpenCursor, SaveCursor
from tidings.sim.build import Deployment, Note

SINK = frozenset({StageRows, CommitBatch, AbortBatch})
QUESTIONS = SINK | {Publish, OpenSession, DeclareLost, Define, OpenCursor, SaveCursor, Receipts, Lease, Release}
BUSY = frozenset(
    {"publish_busy", "define_busy", "declare_busy", "cursor_busy", "lease_busy", "receipts_busy", "sink_busy"}
)
"""What a head counts when it puts somebody off: who asks again later."""


class ProxyWatch(Watch):
    """Watches heads and replicas of proxies.

    * Whoever may be fed is fed in the step in which something is committed, and told in the same step of what is over;
      nor does a head let a question rest, or a batch that is decided, once it may go on.
    * A refusal that is final is not said in the step in which it was asked for: a replaced head knows too little;
      one that is not final is said at once.
    * Nobody is put off without a reason; the newest opening of a session is answered, and no older one is.
    * A lease is committed when its holder is told of it, and its table is written when it has changed and not else.
    * A head that has forgotten everything begins to number as soon as it may.
    * Of leases every replica keeps exactly those that are committed, and knows what they cost.
    """

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        super().__init__(deployment, plan)
        self.hosts = deployment.world.hosts
        self.wrong: Counter[tuple[NodeId, str]] = Counter()
        self.tables: dict[NodeId, tuple[int, Table]] = {}  # the newest, and the number after it
        rng = random.Random(f"clerk/{plan.seed}")
        whole = plan.amnesia is None  # else what a clerk was told may be forgotten
        self.clerking = Clerking(deployment, plan, rng) if rng.random() < 0.4 and whole else None
        if self.clerking is not None:
            deployment.world.observers.append(self.clerking)

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Questions to heads, and what is said when something is committed."""
        kind = type(input)
        if kind is Received:
            kind = type(input.message)
            if kind in QUESTIONS:
                machine = self.hosts[node].machine
                if isinstance(machine, Proxy) and machine.chain.is_head and not machine.recovery.active:
                    self._asked(machine, input.src, input.message, effects)
            elif kind is Know or kind is Advertise:
                self._settles(node)
                return
            elif kind is not Ack:
                return
        elif kind is Expired:
            if type(input.timer) is MaintainTick:
                self._weighed(node)
            return
        elif kind is not Persisted:
            return
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Leased:
                self._leased(node, effect.message, at_once=kind is Lease)

    def on_deliver(self, time: float, node: NodeId, incarnation: int, item: Any) -> None:
        """A record is committed, and the step in which it was is over."""
        if type(item) is not Committed:
            return
        machine = self.hosts[node].machine
        assert isinstance(machine, Proxy)
        for part in item.record.parts:
            if part.stream in machine.subscriptions.by_stream and part.stream in machine.log.histories:
                self.wrong[node, "not_fed"] += _hungry(machine, part.stream)
            if part.stream == LEASES:
                table = table_in([part.rows])  # who restarts commits again what it had; who slept may have missed some
                self.wrong[node, "leases_written_for_nothing"] += self.tables.get(node) == (part.lo, table)
                self.tables[node] = part.hi, table
        self.wrong[node, "not_told"] += len(machine.unheard)
        if machine.chain.is_head and not machine.chain.busy:
            if machine.later and machine.barrier <= machine.log.committed:
                self.wrong[node, "questions_left"] += 1
            if machine.sinks.moving:
                self.wrong[node, "batches_left"] += _may_move(machine)

    # --- questions --------------------------------------------------------------------------------------

    def _asked(self, head: Proxy, src: NodeId, message: Any, effects: Effects) -> None:
        reports = {effect.name for effect in effects if type(effect) is Report}
        answers = [effect.message for effect in effects if type(effect) is Send and effect.to == src]
        kind = type(message)
        if kind is Publish:
            final = [each for each in answers if type(each) is Rejected and each.reason in REMEMBERED]
            self.wrong[head.me, "refused_rashly"] += len(final)
            soon = reports & {"publish_gap", "publish_busy"}
            self.wrong[head.me, "refused_late"] += bool(soon) and not any([type(each) is Rejected for each in answers])
        elif kind is OpenSession:
            entry = head.publishers.entries.get(message.publisher)
            newest = entry is not None and entry.nonce == message.nonce
            self.wrong[head.me, "opening_not_answered"] += newest and "late_opening" in reports
            opened = any([type(each) is SessionOpened for each in answers])
            self.wrong[head.me, "late_opening_answered"] += opened and not newest
        elif kind in SINK:
            self.wrong[head.me, "refused_rashly"] += len([each for each in answers if type(each) is SinkRefused])
        if reports & BUSY:
            self.wrong[head.me, "put_off"] += not _held_up(head, message)

    def _leased(self, node: NodeId, told: Leased, *, at_once: bool) -> None:
        """Its holder may read as of that number from every replica: so the table that says so must be committed.

        One that is answered later may have ended meanwhile, and be granted anew by a table that is still under way.
        """
        head = self.hosts[node].machine
        assert isinstance(head, Proxy)
        entry, known = head.leases.entries.get(told.name), head.leased.get(told.name)
        if entry is not None and entry.stream == told.stream:  # else it has ended since
            committed = known is not None and known.stream == told.stream and known.asof >= told.asof
            under_way = head.log.ends[LEASES] > head.log.histories[LEASES].horizon
            self.wrong[node, "leased_too_soon"] += not committed and (at_once or not under_way)

    def _settles(self, node: NodeId) -> None:
        """A head that has lost its memory goes on as soon as it has all that the others hold, and all have answered."""
        head = self.hosts[node].machine
        if isinstance(head, Proxy) and head.recovery.active and not head.chain.busy:
            own = [stream for stream, owner in head.owners.items() if owner == head.region]
            told = list(head.inter_region.adverts.values())
            ends = {s: max([a.horizons.get(s, 1) for a in told if a.means(s, head.region)], default=1) for s in own}
            here = {s: head.log.histories[s].horizon for s in own}
            arrived = all([here[s] >= ends[s] and head.log.ends[s] == here[s] for s in own])
            self.wrong[node, "unsettled"] += arrived and len(told) == len(head.inter_region.peers)

    def _weighed(self, node: NodeId) -> None:
        """What a lease costs is known of all of them, if they are few enough for one go."""
        replica = self.hosts[node].machine
        assert isinstance(replica, Proxy)
        if len(replica.leased) > WEIGHED:
            return
        for name, entry in replica.leased.items():
            history = replica.log.histories.get(entry.stream)
            costs = history is not None and history.held(entry.asof) > 0
            self.wrong[node, "lease_misjudged"] += name not in replica.held or (replica.held[name] > 0) != costs

    # --- at the end ---------------------------------------------------------------------------------------

    def demand(self, note: Note) -> None:
        """Nothing of all that has happened; and what is kept for leases is what is leased."""
        for (node, name), count in self.wrong.items():
            if count:
                note(node, name, count, 0)
        for region in self.deployment.replicas:
            for node in self.deployment.membership(region).replicas:
                note(node, "leases_amiss", _amiss(self.deployment.proxy(node)), 0)
        if self.clerking is not None:
            self.clerking.demand(note)


def _hungry(replica: Proxy, stream: StreamId) -> int:
    """Subscribers that could have been sent more; who reads as of a number waits until there is that number."""
    subscriptions, history = replica.subscriptions, replica.log.histories[stream]
    settings = subscriptions.settings
    return sum(
        [
            each.next < min(history.horizon, each.end)
            and len(each.unacked) < settings.window
            and each.flying < settings.window_bytes
            and each.fixed <= history.horizon
            for each in subscriptions.by_stream[stream].values()
        ]
    )


def _may_move(head: Proxy) -> int:
    """Batches that are decided, and of which the next record could be written."""
    log, sinks = head.log, head.sinks
    count = 0
    for moving in sinks.moving.values():
        slot, _, hi = sinks.entries[moving.key].left[0]
        under_way = [lsn for lsn in moving.under_way if lsn > log.committed]
        count += len(under_way) < sinks.settings.ahead and hi <= log.histories[STAGED[slot]].horizon
    return count


def _amiss(replica: Proxy) -> int:
    """Leases that a history has and no table, or the other way round."""
    known = {(name, stream) for stream, history in replica.log.histories.items() for name in history.leases}
    wanted = {(name, each.stream) for name, each in replica.leased.items() if each.stream in replica.log.histories}
    return len(known ^ wanted)


def _uncommitted(head: Proxy, stream: StreamId) -> list[tuple[StreamId, StreamDef]]:
    """Definitions of a name that are under way, and where."""
    records = head.log.between(head.log.committed, head.log.last)
    parts = [part for record in records for part in record.parts if part.stream.startswith(PREFIX)]
    found = [(part.stream, each) for part in parts for each in definitions_in(part.rows)]
    return [(by, each) for by, each in found if each is not None and each.name == stream]


def _held_up(head: Proxy, message: Any) -> bool:
    """Whether there is a reason to put somebody off: all that is under way is more than enough, or is about the stream.

    A stream that is only altered goes on taking events meanwhile.
    """
    kind = type(message)
    if head.chain.busy:
        return True
    if kind is OpenSession or kind is Receipts:
        return False
    log = head.log
    if kind is Define:
        own, name = definitions_of(head.region), message.definition.name
        return log.ends[own] > log.histories[own].horizon or head.sinks.busy(name) or bool(_uncommitted(head, name))
    name = message.of.stream if kind in SINK else message.stream
    pending = _uncommitted(head, name)
    stream = head.streams.get(name)
    if stream is not None and stream.region == head.region and not stream.deleted:
        if kind is DeclareLost and log.ends[name] > log.histories[name].horizon:
            return True
        if kind is not Publish or not stream.attrs:  # a batch may have the attributes that the stream is going to have
            pending = [(by, each) for by, each in pending if each.deleted or by != definitions_of(head.region)]
    moving = kind is Publish or kind is DeclareLost
    return (moving and head.sinks.busy(name)) or bool(pending)
