"""The fault campaign of Sprinkler: each seed is a small simulated world, broken as fault_plan.py says, and judged.

Until ``heal_after`` only safety is demanded; then all is mended, and everyone alive must reach the end of every stream,
every publisher and reader must have its answers, every replica must be back in its chain, and every client must know
that chain. Where little was broken more is demanded: no repairs, nothing said twice and low latency in a calm run,
short stalls where faults came one at a time. Watches (watches/) see every step and demand what only single steps show.
A demand that is not met is a violation under its own name, beside those of the invariants of check/.

What a campaign must have seen to count are its *goals*: rare paths of the protocol, each counted when it is taken.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tidings.campaign import outcomes as common
from tidings.campaign.demands import Demands
from tidings.campaign.sprinkler.aimed_faults import HEAL, LONG, WAITS
from tidings.campaign.sprinkler.fault_plan import SECONDS, TTL, FaultPlan
from tidings.campaign.sprinkler.lease_holder import LeaseHolding
from tidings.campaign.sprinkler.lost_connections import LostConnections
from tidings.campaign.sprinkler.name_conflict import Claims
from tidings.campaign.sprinkler.rare_clients import RareClients
from tidings.campaign.sprinkler.receipt_client import ReceiptClients
from tidings.campaign.sprinkler.scripted_client import ScriptedClients
from tidings.campaign.sprinkler.watches.forgotten_regions import ForgottenRegions
from tidings.campaign.sprinkler.watches.gossip import Gossip
from tidings.campaign.sprinkler.watches.head_memory import HeadMemory
from tidings.campaign.sprinkler.watches.rejoining import Rejoining
from tidings.campaign.sprinkler.watches.replica_removal import ReplicaRemoval
from tidings.campaign.sprinkler.watches.watch import Watch
from tidings.check import judge
from tidings.check.tables import LOST
from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.protocols.fabrics.pull import PullSettings
from tidings.protocols.fabrics.views import View, ViewsSettings
from tidings.protocols.kernel import Effects, Received, Send, SendAll
from tidings.protocols.messages import Done, Know, Offer, Want
from tidings.protocols.nodes.client import ReadDone
from tidings.protocols.nodes.replica import Replica
from tidings.protocols.regions.interregion import Advertise, InterRegionSettings, Solicit, Subscribe, Unsubscribe
from tidings.protocols.replication.chain import Append, ChainAck, Compare, Compared
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Beat, Current
from tidings.protocols.services.catalog import Describe, Description
from tidings.protocols.services.leases import Lease
from tidings.protocols.services.publishing import OpenSession, Publish, Published, Rejected, SessionOpened
from tidings.protocols.services.sinks import STAGED, BatchCommitted, CommitBatch, RowsStaged, StageRows
from tidings.results.ledger import digest
from tidings.sim.build import Deployment, Note
from tidings.sim.faults import FaultEvent
from tidings.sim.run import failures, simulate

WATCHES: tuple[type[Watch], ...] = (LostConnections, Gossip, HeadMemory, ForgottenRegions, Rejoining, ReplicaRemoval)
EVENTS_LEAST = 2_000  # that a seed publishes, whatever breaks: else it proves little
LEAST = ("events", "clients", "regions", "sim_seconds")

GOALS = {
    "retransmission": "retransmission",
    "source switch": "source_switch",
    "proxy fallback": "proxy_fallback",
    "buffer overflow": "recv_overflow",
    "head lost": "head_lost",
    "middle lost": "middle_lost",
    "tail lost": "tail_lost",
    "paused old head fenced": "old_head_fenced",
    "replica added": "replica_added",
    "token passed": "token_passed",
    "snapshot installed": "snapshot_installed",
    "log cut back": "cut_back",
    "full restart": "full_restart",
    "old disk found": "old_disk_found",
    "publisher retry across fail-over": "retry_across_failover",
    "publisher fenced": "publisher_fenced",
    "publisher expired": "publisher_expired",
    "tombstone delivered": "tombstone_delivered",
    "collection of a collecting event": "collected_collectors",
    "asof above the receiver's horizon": "asof_above_horizon",
    "AsofGone": "asof_gone",
    "contradiction refused": "contradiction",
    "unsynced writes lost": "unsynced_lost",
    "read answered": "read_answered",
    "lease granted": "lease_granted",
    "lease renewed across fail-over": "lease_renewed_across_failover",
    "lease kept a dead row readable": "lease_kept_dead_rows",
    "lease expired": "lease_expired",
    "AsofGone under an expired lease": "lease_gone",
    "change by an operator refused": "change_refused",
    "subscriber moved": "subscriber_moved",
    "subscriber given up": "subscriber_given_up",
    "subscriber fell behind what is live": "subscriber_lagging",
    "lagging subscriber back to live": "subscriber_live",
    "subscription gap": "subscription_gap",
    "sink batch committed": "sink_committed",
    "sink commit answered again after fail-over": "sink_again_across_failover",
    "sink aborted after its commit": "sink_abort_too_late",
    "staged data expired": "sink_expired",
    "range declared lost": "lost",
    "owner without memory declares what is lost": "declared_lost",
    "two claims to one name": "stream_conflict",
}
"""What must have happened, and the counter that says it did."""

CALM = frozenset(
    {
        *("asof_above_horizon", "asof_gone", "collected_collectors", "cursor_refused", "declare_busy", "define_busy"),
        *("lease_expired", "lease_gone", "lease_granted", "lease_kept_dead_rows", "lease_moved", "lease_renewed"),
        "lease_released",
        *("publish_busy", "publish_fenced", "publish_rows", "publish_stream", "publisher_retry", "publisher_rows"),
        *("publisher_stream", "read_answered", "recv_overflow", "sink_committed", "sink_moved", "sink_staged"),
        *("source_switch", "stream_conflict", "subscriber_given_up", "subscriber_lagging", "subscriber_live"),
        *("full_restart", "subscriber_moved", "tombstone_delivered", "unsynced_lost"),
    }
)
"""All that a run without faults may count; for anything else it has no reason."""
ANSWERED: dict[type, tuple[type, ...]] = {
    StageRows: (RowsStaged,),
    CommitBatch: (BatchCommitted,),
    Describe: (Description,),
    Compare: (Compared,),
}
"""Questions, and what each is answered with, once, where no message is lost."""
PATIENCE = {"calm": 1.5, "aimed": LONG - 1.0, "waits": 1.0 + LONG + PullSettings().probe_max + 0.5}
"""Seconds for which a client may receive nothing of a stream that is being published.

Where a chain loses replicas the time goes into 1.5 s of silence until the service notices, up to 0.25 s until it looks,
a round trip and a sync for the new configuration, and up to 1.2 s until clients ask a replica that answers. A chain
whose members are all silent while the newcomer is not yet one of them must wait until they wake: 1.0 s of mishap and
the silence of LONG; then the newcomer is promoted within 10 ms. A client to whom nobody offers anything finds out by
its next probe (docs/guide/deploy.md says so), and the last batch came up to 0.5 s before the mishap.
"""
SEEN_WITHIN = 3
"""Rounds of gossip in which every member tells somebody of itself, and is in the view of whomever it told (A1.26).

A round is spent if that neighbour has left, so a member may be out of all views for a while. It may also be out of them
for a moment: its entry goes from one view to another, or makes room at random.
"""
FAULTS = ("loss", "duplication", "reordering", "jitter", "partition", "one_way", "cut", "pause", "crash", "restart")


def kind_of(seed: int) -> tuple[str, ...]:
    """Seeds of one kind find much the same; the mood comes first."""
    return FaultPlan(seed).kind


def run_seed(seed: int) -> dict[str, Any]:
    """Simulate one seed and judge it."""
    plan = FaultPlan(seed)
    began = time.perf_counter()
    deployment = Deployment(
        plan.scenario, seed, chain=plan.chain, publish=plan.publish, sinks=plan.sinks, sinking=plan.sinking, trace=False
    )
    world = deployment.world
    events, hits = plan.break_things(deployment)
    seen = _Seen(deployment, plan.mood == "calm", plan.scenario.fabric.settings.gossip)
    rare_clients = RareClients(deployment, plan)
    watches = [each(deployment, plan) for each in WATCHES]
    receipt_clients = ReceiptClients.drawn(deployment, plan)
    world.observers += [seen, rare_clients, *watches]
    scripted_clients = None
    if plan.scripted_clients:
        forgetful = plan.amnesia.region if plan.amnesia else ""
        scripted_clients = ScriptedClients(
            deployment, random.Random(f"desks/{seed}"), calm=plan.mood == "calm", forgetful=forgetful
        )
    claims = Claims(deployment, random.Random(f"claimants/{seed}"), calm=plan.mood == "calm") if plan.claims else None
    lease_holding = (
        LeaseHolding(deployment, plan.lease_holder, plan.forgets(plan.lease_holder)) if plan.lease_holder else None
    )
    simulate(deployment)
    violations, demands = failures(deployment), Demands()
    if not violations:
        _demand(deployment, plan, events, hits, seen, scripted_clients, claims, demands.note)
        for each in (*watches, rare_clients, receipt_clients, lease_holding):
            if each is not None:
                each.demand(demands.note)
    trace = deployment.recorder.trace()
    violations += [*judge(trace, plan.scenario.fabric.family.invariants), *demands.violations]
    kept = {} if lease_holding is None else lease_holding.reports
    rare = kept | {"read_answered": seen.answered, "full_restart": sum(event.kind == "region_stop" for event in events)}
    return {
        "seed": seed,
        "mood": plan.mood,
        "violations": [(each.invariant, f"{dict(each.where)}: {each.detail}") for each in violations],
        "faults": dict(Counter([event.kind for event in events] + hits)),
        "reports": {**world.reports, **_from_state(deployment), **rare},
        "sim_seconds": world.now,
        "steps": world.protocol_events,
        "wall_seconds": time.perf_counter() - began,
        "events": _committed(deployment),
        "clients": sum(region.clients for region in plan.scenario.regions),
        "regions": len(plan.scenario.regions),
        "hash": digest([trace.published, trace.delivered, trace.log, trace.gauge]),
    }


class _Seen:
    """What the trace does not tell: reads answered, what clients believe of their chain, how sources are changed."""

    def __init__(self, deployment: Deployment, calm: bool, gossip: float) -> None:
        self.deployment = deployment
        self.answered = 0  # reads, with rows
        self.decided: dict[RegionId, list[tuple[float, int]]] = defaultdict(list)  # epochs and when they were in force
        self.turned_back = 0  # clients that went from a newer configuration to an older one
        self.soonest = SECONDS  # between two changes of the source of a stream
        self.changes: Counter[tuple[NodeId, StreamId]] = Counter()  # of the source, by head
        self.sent: Counter[type] = Counter()  # messages of a calm run, by class
        self._calm = calm
        self._epochs: dict[NodeId, int] = {}
        self._changed: dict[tuple[NodeId, StreamId], tuple[float, bool]] = {}  # when, and whether from the owner
        self.viewed: set[NodeId] = set()  # members that were in somebody's view during the last rounds
        self.told: set[NodeId] = set()  # members that told a client of themselves during the last rounds
        self.spoke: set[NodeId] = set()  # members that told anybody
        self._viewed_from = SECONDS - SEEN_WITHIN * gossip

    def on_deliver(self, time: float, node: NodeId, incarnation: int, item: Any) -> None:
        """Every item that some node delivers."""
        self.answered += type(item) is ReadDone and item.spans is not None

    def on_durable(self, time: float, node: NodeId, records: Sequence[Any]) -> None:
        """A configuration service tells of a decision once it is written down."""
        for record in records:
            if type(record) is ChainConfig:
                self.decided[record.region].append((time, record.epoch))

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Every step of every node."""
        if self._calm:
            for effect in effects:
                if type(effect) is Send:
                    self.sent[type(effect.message)] += 1
                elif type(effect) is SendAll:
                    self.sent[type(effect.message)] += len(effect.to)
        if type(input) is Received:
            if type(input.message) is View:
                self._believes(time, node, input.src)
            elif effects and type(input.message) is Advertise:
                self._changes(time, node, effects)

        elif time > self._viewed_from and any([type(each) is Send and type(each.message) is View for each in effects]):
            self.spoke.add(node)

    def _believes(self, time: float, node: NodeId, src: NodeId) -> None:
        if not isinstance(self.deployment.world.hosts[node].machine, Replica):
            views = self.deployment.pull_member(node).views
            self.turned_back += views.membership.epoch < self._epochs.get(node, 0)
            self._epochs[node] = views.membership.epoch
            if time > self._viewed_from:
                self.viewed.update(views.view)
                self.told.add(src)

    def _changes(self, time: float, node: NodeId, effects: Effects) -> None:
        """A head changes its sources; another tail of the same region is no other source.

        The owner is preferred to others at any time, unless it has just been left.
        """
        region_of, left = self.deployment.region_of, {}
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Unsubscribe:
                left[effect.message.stream] = region_of[effect.to]
            elif type(effect) is Send and type(effect.message) is Subscribe:
                stream, region = effect.message.stream, region_of[effect.to]
                if left.get(stream, region) != region:
                    owner = self.deployment.proxy(node).table.owners[stream]
                    last, from_owner = self._changed.get((node, stream), (-SECONDS, False))
                    if region != owner or from_owner:
                        self.soonest = min(self.soonest, time - last)
                    self._changed[node, stream] = time, left[stream] == owner
                    self.changes[node, stream] += 1


def _committed(deployment: Deployment) -> int:
    return sum([row[0] for row in deployment.recorder.committed.values() if row[1] != LOST])


def _untold(deployment: Deployment, node: NodeId) -> int:
    """How many numbers that their owners have declared lost a replica takes for collected, or for rows."""
    lost = [(stream, lo, lo + row[0]) for (stream, lo), row in deployment.recorder.committed.items() if row[1] == LOST]
    histories = deployment.proxy(node).log.histories
    return sum([hi - lo for stream, lo, hi in lost if not histories[stream].is_lost(lo, hi)])


def _from_state(deployment: Deployment) -> dict[str, float]:
    replicas = [deployment.proxy(node) for nodes in deployment.replicas.values() for node in nodes]
    histories = [history for replica in replicas for history in replica.log.histories.values()]
    return {
        "collected_collectors": sum(history.collected_collectors for history in histories),
        "unsynced_lost": deployment.world.fault_counts["unsynced_lost"],
    }


# --- demands ----------------------------------------------------------------------------------------------


def _demand(
    deployment: Deployment,
    plan: FaultPlan,
    events: list[FaultEvent],
    hits: list[str],
    seen: _Seen,
    scripted_clients: ScriptedClients | None,
    claims: Claims | None,
    note: Note,
) -> None:
    """What must hold at the end besides the invariants over the trace."""
    world, reports = deployment.world, deployment.world.reports
    _demand_regions(deployment, plan, note)
    note("operator", "wrong_answers", plan.losses.wrong, 0)
    for node in deployment.writers:
        publisher = deployment.client(node).publisher
        assert publisher is not None
        if not publisher.failed:
            note(node, "unanswered_batches", len(publisher.inflight) + len(publisher.queue), 0)
        note(node, "failed_for_no_reason", publisher.failed not in {None, "fenced", "expired"}, 0)
    note("run", "events_lacking", EVENTS_LEAST - _committed(deployment), 0)
    note("run", "sent_to_nobody", world.network.dropped["unknown"], 0)
    refused = reports.get("publisher_rows", 0) + reports.get("publisher_stream", 0)
    expected = (scripted_clients.refused if scripted_clients else 0) + (claims.refused if claims else 0)
    note("publishers", "refused", refused - expected, 0)
    for node in deployment.sinks:
        note(node, "unanswered_sink_requests", 0 if deployment.sink(node).idle else 1, 0)
    note("publishers", "repacked", reports.get("publisher_repacked", 0), 0)
    if plan.publish.ttl == TTL:  # else a head forgets an opening, and a late copy of it opens another session
        note("publishers", "fenced", reports.get("publisher_fenced", 0), int(plan.twin))
        forgotten = len(deployment.writers) if plan.amnesia else 0  # once by the region that has forgotten everything
        note("publishers", "expired", reports.get("publisher_expired", 0), forgotten)
    here = [node for node in deployment.members() if world.hosts[node].life]
    note("readers", "unanswered_reads", sum(deployment.client(node).reading is not None for node in here), 0)
    if plan.forge:
        note("run", "lies_believed", plan.lies.believed, 0)
    else:
        note("run", "contradictions", reports.get("contradiction", 0), 0)
    _demand_views(deployment, plan, events, hits, seen, note)
    if scripted_clients is not None:
        scripted_clients.note_alive()
        scripted_clients.demand(note)
    if claims is not None:
        claims.demand(note)
    if plan.mood == "calm":
        _demand_calm(deployment, seen, note)
        _demand_thrift(deployment, plan, seen.sent, note)
    if plan.mood != "swarm":
        rule = InterRegionSettings()
        if not world.fault_counts["clock"]:  # else a head's clock may show more than has passed
            note("run", "sources_kept_s", -seen.soonest, -math.sqrt(rule.c_scale) * rule.period)
        waits = plan.amnesia.wait if plan.amnesia else 0.0  # a region that has forgotten everything, for another one
        note("run", "stall_s", _stall(deployment), PATIENCE["waits" if WAITS in hits else plan.mood] + waits)


def _demand_regions(deployment: Deployment, plan: FaultPlan, note: Note) -> None:
    """Every chain is whole, and holds what was said to be done, and nothing that is done with."""
    world = deployment.world
    for region, nodes in deployment.replicas.items():
        deposed = set(nodes) & set(plan.operator.deposed if plan.operator else ())
        outside = set(nodes) - set(deployment.membership(region).replicas)
        note(region, "replicas_outside", len(outside - deposed), 0)
        if world.hosts[deployment.services[region]].incarnation == 1:  # who is barred is forgotten with its end
            note(region, "deposed_inside", len(deposed - outside), 0)
        for node in deployment.membership(region).replicas:
            note(node, "losses_untold", _untold(deployment, node), 0)
        head = deployment.proxy(deployment.membership(region).head)
        own = [stream.number for stream in head.streams.values() if stream.region == region]
        note(region, "numbers_shared", len(own) - len(set(own)), 0)
        if not head.sinks.stagings:
            staged = [head.log.histories[slot] for slot in STAGED]
            note(region, "staged_rows_left", sum([h.live - h.collectors_in(h.low, h.horizon) for h in staged]), 0)
        said = [each for each in plan.losses.declared if head.table.owners.get(each[0]) == region]
        note(region, "losses_undeclared", sum([not head.log.histories[s].is_lost(lo, hi) for s, lo, hi in said]), 0)


def _demand_calm(deployment: Deployment, seen: _Seen, note: Note) -> None:
    """Where nothing breaks there is nothing to repair, and clients have from each other what is new."""
    reports = deployment.world.reports
    for name in sorted({*reports} - CALM):
        note(name, "repair_in_calm_run", reports[name], 0)
    turns = math.ceil(SECONDS / InterRegionSettings().grudge)  # an owner that is left is left alone for so long
    note("calm", "source_switch", max(seen.changes.values(), default=0), 2 * turns)
    latency = _latencies(deployment)
    note("calm", "latency_s", max(latency.values()), 1.0)  # two shuffles, at most 0.5 s each
    home = [late for (stream, node, _), late in latency.items() if stream == f"s-{deployment.region_of[node]}"]
    usual = statistics.quantiles(home, n=4)[-1]  # by offers: three disks, some hops of 1 ms, and no probe (after 30 ms)
    note("calm", "usual_latency_s", usual, 0.05)


def _demand_thrift(deployment: Deployment, plan: FaultPlan, sent: Mapping[type, int], note: Note) -> None:
    """Where nothing is lost nothing is said twice, and what is said on a beat is said on every beat."""

    def within(name: str, least: float, value: float, most: float) -> None:
        note("calm", f"many_{name}", value, most)
        note("calm", f"few_{name}", -value, -least)

    for question, answers in ANSWERED.items():
        within(f"answers_to_{question.__name__}", sent[question], sum([sent[kind] for kind in answers]), sent[question])
    note("calm", "publishes_repeated", sent[Publish] - sent[Published] - sent[Rejected], 0)
    within(
        "acks", 0.98 * sent[Append], sent[ChainAck], sent[Append]
    )  # one may speak for several, and the last are missing
    regions, protocol = len(plan.scenario.regions), plan.scenario.protocol
    fabric = plan.scenario.fabric.settings
    replicas = sum([len(nodes) for nodes in deployment.replicas.values()])
    note("calm", "openings_repeated", sent[OpenSession] - sent[SessionOpened], regions + 1)  # until there is a head
    note("calm", "configurations_told", sent[Current], 2 * replicas)
    switches = int(deployment.world.reports.get("source_switch", 0))
    note("calm", "unsubscribed", sent[Unsubscribe], 3 * switches)
    within("knows_unasked", 0, sent[Know] - sent[Want] - sent[Done], 2 * switches)  # a region says `Done` to each
    beats = SECONDS / plan.chain.beat
    within("beats", replicas * (beats - 1), sent[Beat], replicas * (beats + 1))
    told = replicas * (regions - 1)  # by each tail to all replicas of the others
    adverts = SECONDS / protocol.advertise_period
    within("advertisements", told * (adverts - 1), sent[Advertise], told * (adverts + 1))
    note("calm", "solicited", sent[Solicit], told)
    views = 2 * (sum([region.clients for region in plan.scenario.regions]) + 2 * regions) * SECONDS / fabric.gossip
    within("views", 0.9 * views, sent[View], 1.2 * views)  # one each way and round; tails see more
    if (
        plan.lease_holder
    ):  # seven short ones, the long one, its move, and two or three renewals; three more (one of them
        within("leases", 17, sent[Lease], 21)  # asked for thrice, since a connection is lost), and again when released
    within("wants", sent[Append], sent[Want], 3 * sent[Append])
    heads = [deployment.proxy(deployment.membership(region.name).head) for region in plan.scenario.regions]
    advances = sent[Know] * fabric.fanout + sum([head.log.committed for head in heads]) * fabric.proxy_fanout
    members = sum([region.clients for region in plan.scenario.regions])
    shuffles = members * fabric.fanout / fabric.shuffle + regions * fabric.proxy_fanout / fabric.proxy_shuffle
    offered = advances + shuffles * SECONDS * max([len(head.streams) for head in heads])  # a new neighbour hears of all
    within("offers", 3 * sent[Want], sent[Offer], 1.5 * offered)  # some come twice: 0.8 to 1.2 of it were seen


def _demand_views(
    deployment: Deployment, plan: FaultPlan, events: list[FaultEvent], hits: list[str], seen: _Seen, note: Note
) -> None:
    """Everybody is in somebody's view, nobody who left long ago, and all know who forms their chain."""
    here = [node for node in deployment.members() if deployment.world.hosts[node].life]
    viewed = {other for node in here for other in deployment.pull_member(node).views.view}
    note("views", "unseen_members", len(set(here) & seen.told - seen.viewed), 0)
    note("views", "silent_members", len(set(here) - seen.spoke), 0)
    fabric, now = plan.scenario.fabric.settings, deployment.world.now
    slept = sum([LONG for _ in hits] + [event.until - event.at for event in events if event.kind == "pause"])
    long_ago = now - (4 * fabric.view + 5) * fabric.gossip - slept  # who slept still believes in who left meanwhile
    left = {event.args["leaver"] for event in events if event.kind == "churn" and event.at < long_ago}
    if fabric.merge == "swap":  # the paper's rule forgets only when views are cut to size
        note("views", "departed_in_views", len(viewed & left), 0)
    note("views", "turned_back", seen.turned_back, 0)
    rounds = ViewsSettings().proxy_every + 3  # then a replica is asked, and two others should it sleep (A1.28)
    heard = now - 0.5 - rounds * fabric.gossip
    for node in here:
        known = deployment.pull_member(node).views.membership
        newest = max([epoch for at, epoch in seen.decided[known.region] if at < heard], default=0)
        note(node, "epochs_behind", newest - known.epoch, 0)


def _deliveries(deployment: Deployment) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """(end, time) of every receipt, by stream and subscriber, but for reads, scripted clients and what they define."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    streams = {stream.name for stream in deployment.streams}
    for subscriber, _, _, stream, _, hi, _, _, _, _, at in deployment.recorder.delivered.rows:
        if "#" not in subscriber and stream in streams:
            found[stream, subscriber].append((hi, at))
    return found


def _latencies(deployment: Deployment) -> dict[tuple[StreamId, NodeId, int], float]:
    """From a batch's arrival at its head until a client had it, once all has settled; by stream, client and number."""
    arrived: dict[StreamId, list[tuple[int, float]]] = defaultdict(list)
    for (stream, lo), at in deployment.recorder.arrived.items():
        if at > 3.0:
            arrived[stream].append((lo, at))
    found = {}
    for (stream, node), receipts in _deliveries(deployment).items():
        ends = [hi for hi, _ in receipts]
        for lo, at in arrived[stream]:
            place = bisect_right(ends, lo)
            if place < len(receipts):
                found[stream, node, lo] = receipts[place][1] - at
    return found


def _stall(deployment: Deployment) -> float:
    """The longest time any client received nothing of any stream while that was being published."""
    worst = 0.0
    for receipts in _deliveries(deployment).values():
        times = [2.0, *[at for _, at in receipts if 2.0 < at < HEAL], HEAL]
        worst = max(worst, *[later - earlier for earlier, later in itertools.pairwise(times)])
    return worst


# --- many seeds -----------------------------------------------------------------------------------------


def summary(target: str, seeds: range, outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What some seeds found, as `tidings check` prints it."""
    least = {name: min(each[name] for each in outcomes) for name in LEAST}
    return {**common.summary(target, seeds, outcomes, GOALS, FAULTS), "least": least}
