"""The fault campaign of Gryphon: regions with relays and edges, broken as faults.py says, and judged (A2.13).

Until `plan.HEAL` only safety is demanded; then all is mended, and every subscription must come to the end of its
stream. The trace is judged by check/: receipts are gapless, in order, and have exactly the rows that pass the filter in
force and that were not collected. Watches (watches.py) see every step of every broker. Where nothing breaks nobody may
ask for anything again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tidings.campaign import outcomes as common
from tidings.campaign.demands import Demands
from tidings.campaign.gryphon.applications import ATTRS, ReadingApp, WritingApp
from tidings.campaign.gryphon.faults import Breaker
from tidings.campaign.gryphon.merges import MergingApp, judge_merges
from tidings.campaign.gryphon.plan import HEAL, SECONDS, Plan
from tidings.campaign.gryphon.watches import BrokerClaims, BrokerQuestions
from tidings.check import judge
from tidings.check.tables import ALIVE, Trace
from tidings.core.ids import NEVER
from tidings.protocols.nodes.edge import Edge
from tidings.protocols.nodes.replica import Replica
from tidings.results.ledger import digest
from tidings.sim.build import Deployment
from tidings.sim.run import failures

GOALS = {
    "nack consolidated": "nack_consolidated",
    "nack answered by a relay": "nack_answered_by_broker",
    "sideways routing": "sideways",
    "AckExpected after restart": "expected_after_restart",
    "curiosity forgotten and repeated": "curiosity_repeated",
    "filter changed during a gap": "filter_changed_in_gap",
    "lagging subscriber back to live": "subscriber_live",
    "caught up from a replica": "catching_up",
    "broker given up": "broker_given_up",
    "subscriber moved": "subscriber_moved",
    "stream deleted": "stream_deleted",
    "streams of two regions merged": "merged_regions",
}
"""What must have happened, and the counter that says it did."""
FAULTS = (
    "broker_crash",
    "replica_crash",
    "site_crash",
    "reader_crash",
    "pause",
    "link",
    "isolated",
    "partition",
    "noise",
)
SETTLE = 6.0  # seconds after everything was mended before anybody must have come anywhere


def kind_of(seed: int) -> tuple[str, ...]:
    """Seeds of one kind find much the same; the mood comes first."""
    return (Plan(seed).mood,)


def run_seed(seed: int) -> dict[str, Any]:
    """Simulate one seed and judge it."""
    plan, began = Plan(seed), time.perf_counter()
    deployment = plan.deploy()
    world = deployment.world
    breaker, claims, questions = Breaker(plan, deployment), BrokerClaims(), BrokerQuestions(deployment, plan.broker.nrt)
    breaker.schedule()
    world.observers += [claims, questions]
    world.start()
    world.run(HEAL + SETTLE)
    while not world.failures and world.now < SECONDS and _behind(plan, deployment):
        world.run(world.now + 1.0)
    violations, demands = failures(deployment), Demands()
    if not violations:
        _demand(plan, deployment, questions, demands)
    trace, merges = _trace(plan, deployment), _merging(plan, deployment)
    violations += [*judge(trace), *claims.judge(trace), *judge_merges(merges, trace), *demands.violations]
    return {
        "seed": seed,
        "mood": plan.mood,
        "violations": [(each.invariant, f"{dict(each.where)}: {each.detail}") for each in violations],
        "faults": {name: count for name, count in sorted((breaker.counts + world.fault_counts).items())},
        "reports": {**world.reports, **questions.counts, **_counted(plan, deployment, breaker, merges)},
        "sim_seconds": world.now,
        "steps": world.protocol_events,
        "wall_seconds": time.perf_counter() - began,
        "events": len(deployment.recorder.committed),
        "clients": sum(len(site.readers) for site in plan.sites),
        "regions": len(plan.sites),
        "hash": digest([trace.published, trace.delivered, trace.log, trace.gauge]),
    }


def _counted(plan: Plan, deployment: Deployment, breaker: Breaker, merges: Sequence[MergingApp]) -> dict[str, int]:
    """What no machine reports."""
    ended = [each for reader in _readers(plan, deployment) for each in reader.ended.values()]
    regions = [{owner for _, owner in each.plan.streams} for each in merges if each.rows]
    return {
        "filter_changed_in_gap": breaker.counts["filter_changed_in_gap"],
        "stream_deleted": sum([each.gone for each in ended]),
        "merged_regions": sum([len(each) > 1 for each in regions]),
    }


def _readers(plan: Plan, deployment: Deployment) -> list[ReadingApp]:
    machines = [deployment.world.hosts[name].machine for site in plan.sites for name in site.readers]
    return [machine for machine in machines if isinstance(machine, ReadingApp)]


def _merging(plan: Plan, deployment: Deployment) -> list[MergingApp]:
    machines = [deployment.world.hosts[name].machine for site in plan.sites for name in site.mergers]
    return [machine for machine in machines if isinstance(machine, MergingApp)]


def _ends(plan: Plan, deployment: Deployment) -> dict[str, int]:
    """Where the streams end that are still there."""
    ends: dict[str, int] = {}
    for site in plan.sites:
        head = deployment.proxy(deployment.membership(site.name).head)
        own = [each.name for each in plan.streams if each.region == site.name and each.name != plan.deleted]
        ends |= {name: head.log.histories[name].horizon for name in own}
    return ends


def _behind(plan: Plan, deployment: Deployment) -> bool:
    """Whether some subscription has not come to the end."""
    ends = _ends(plan, deployment)
    readers = _readers(plan, deployment)
    return any(
        [reader.left or ends.get(stream, NEVER) > at for reader in readers for _, stream, at in reader.horizons()]
    )


def _demand(plan: Plan, deployment: Deployment, questions: BrokerQuestions, demands: Demands) -> None:
    note, reports = demands.note, deployment.world.reports
    note("run", "contradictions", reports.get("contradiction", 0), 0)
    for (node, name), count in sorted(questions.wrong.items()):
        note(node, name, count, 0)
    if plan.mood == "calm":
        note("run", "nacks_in_calm_run", questions.nacked, 0)
    for reader in _readers(plan, deployment):
        me = reader.machine.me
        note(me, "other_filter", reader.wrong["other_filter"], 0)
        note(me, "never_opened", len(reader.left), 0)
        for id, ended in reader.ended.items():
            note(f"{me}#{id} {ended.reason}", "ended_for_no_reason", not (ended.gone and plan.deleted), 0)
        for id, subscriber in reader.machine.subscribers.items():
            source = deployment.world.hosts[subscriber._source()].machine
            assert isinstance(source, Edge | Replica)
            position = source.subscriptions.positions.get((me, subscriber.wire_id))
            note(f"{me}#{id}", "not_live", position is None or not position.live, 0)
        for id, stream, horizon in reader.horizons():
            deployment.recorder.gauge(deployment.world.now, f"{me}#{id}", f"{ALIVE}{stream}", horizon)
    for site in plan.sites:
        for node in site.edges:
            edge = deployment.world.hosts[node].machine
            assert isinstance(edge, Edge)
            note(node, "parked", sum([each.stream != plan.deleted for each in edge.parked.values()]), 0)


def _trace(plan: Plan, deployment: Deployment) -> Trace:
    """What was recorded, with the attributes of all events."""
    attrs: dict[int, str] = {}
    for site in plan.sites:
        author = deployment.world.hosts[plan.author(site.name)].machine
        assert isinstance(author, WritingApp)
        attrs |= author.attrs
    trace = deployment.recorder.trace()
    contents = trace.published["hash"].fill_null(0).to_numpy().view("uint64").tolist()
    place = trace.published.schema.get_field_index("attrs")
    published = trace.published.set_column(place, "attrs", [[attrs.get(content) for content in contents]])
    declared = {stream.name: ATTRS for stream in plan.streams}
    return Trace(
        published.cast(trace.published.schema), trace.delivered, trace.log, trace.gauge, trace.policies, declared
    )


def summary(target: str, seeds: range, outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What some seeds found, as `tidings check` prints it."""
    return common.summary(target, seeds, outcomes, GOALS, FAULTS)
