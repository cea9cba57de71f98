"""Total order under load, which Gryphon's paper offers (A2.12) and does not measure.

Two regions, 30 ms apart one way, each a chain of one with two streams: one of 100 events/s, one of an event in two
seconds, whose region must promise while it is quiet. In the first region one application merges all four streams, and
another one subscribes to each of them alone. Compared is when both have the same event.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tidings.campaign.gryphon.merges import MergePlan, MergingApp, rows_of
from tidings.client.machine import MachineSettings
from tidings.core.ids import NodeId, StreamId
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.gryphon.failure_verdicts import PAPER, over
from tidings.lab.gryphon.topology import LabSubscriber, numbered
from tidings.lab.study import Point, Row, Sql, Study
from tidings.protocols.brokers.merging import Merged
from tidings.protocols.brokers.messages import EARLIEST
from tidings.protocols.brokers.subscriber import Fed
from tidings.protocols.services.promises import PromiseSettings
from tidings.sim import scenario as plans
from tidings.sim.build import Deployment
from tidings.sim.scenario import Scenario

HERE, THERE = "here", "there"
BETWEEN = 0.03  # seconds one way; ours: half a continent
STREAMS = {"busy": (HERE, 100.0), "rare": (HERE, 0.5), "far-busy": (THERE, 100.0), "far-rare": (THERE, 0.5)}
OPENED = 3.0  # simulated seconds
CALM = 6.0  # seconds from which on latency counts
END = 26.0
SEEDS = {"quick": 1, "full": 5}
GOAL = 0.02  # seconds besides the one-way latency


class Deliveries:
    """When each event came, in its stream's order and in that of the merge."""

    def __init__(self, merger: NodeId, plain: NodeId) -> None:
        self.merger = merger
        self.plain = plain
        self.merged: dict[tuple[StreamId, int], float] = {}
        self.alone: dict[tuple[StreamId, int], float] = {}

    def on_deliver(self, now: float, node: NodeId, incarnation: int, item: Any) -> None:
        if node == self.merger and isinstance(item, Merged):
            self.merged |= {(stream, number): now for _, stream, number in rows_of(item)}
        elif node == self.plain and isinstance(item, Fed):
            self.alone |= {(item.span.stream, number): now for number, at in numbered(item.span.rows) if at >= CALM}


def points(scale: str) -> list[Point]:
    """Some seeds."""
    return [{"seed": seed} for seed in range(SEEDS[scale])]


def measure(point: Mapping[str, Any]) -> list[Row]:
    """How much later the merge delivers an event, and whether it is in order."""
    seed = point["seed"]
    plan = Scenario(
        scenario=plans.Run("gryphon-order", END, heal_after=None),
        regions=(plans.RegionTable(HERE), plans.RegionTable(THERE)),
        links=(plans.LinkTable(HERE, THERE, BETWEEN),),
        streams=tuple(plans.Stream(name, owner, event_bytes=100) for name, (owner, _) in STREAMS.items()),
        publishers=tuple(
            plans.PublisherTable(name=f"pub-{name}", region=owner, stream=name, rate=rate, stop=END - 3.0)
            for name, (owner, rate) in STREAMS.items()
        ),
    )
    deployment = Deployment(plan, seed, check=False, trace=False)
    world, site = deployment.world, deployment.replicas[HERE]
    merges = MergePlan(tuple([(name, owner) for name, (owner, _) in STREAMS.items()]), "", OPENED, EARLIEST)
    apps: list[MergingApp] = []

    def merger(durable: Any, incarnation: int, rng: random.Random) -> MergingApp:
        apps.append(MergingApp(f"{HERE}/merger", tuple(site), merges, MachineSettings(), rng))
        return apps[-1]

    def plain(durable: Any, incarnation: int, rng: random.Random) -> LabSubscriber:
        me = f"{HERE}/plain"
        return LabSubscriber(me, tuple(site), dict.fromkeys(STREAMS, ""), rng, MachineSettings())

    world.at(OPENED, partial(deployment.add, f"{HERE}/merger", HERE, merger))
    world.at(OPENED, partial(deployment.add, f"{HERE}/plain", HERE, plain))
    seen = Deliveries(f"{HERE}/merger", f"{HERE}/plain")
    world.observers.clear()
    world.observers.append(seen)
    world.start()
    world.run(END)
    if world.failures:
        raise RuntimeError(world.failures[0].traceback)
    rows = apps[-1].rows
    missing = len(seen.alone.keys() - seen.merged.keys())
    found: list[tuple[str, str, float]] = [("wrong", "", float(missing + (rows != sorted(rows))))]
    for owner in (HERE, THERE):
        more = [
            seen.merged[event] - at
            for event, at in seen.alone.items()
            if event in seen.merged and STREAMS[event[0]][0] == owner
        ]
        found += [(f"p{part}", owner, float(np.percentile(more, part))) for part in (50, 99)]
        found.append(("count", owner, float(len(more))))
    return [{"name": name, "owner": owner, "measured": value} for name, owner, value in found]


def judge_order(found: Mapping[tuple[str, str], list[float]]) -> Claim:
    """The goal."""
    limit = GOAL + BETWEEN
    here, there = found["p99", HERE], found["p99", THERE]
    wrong = sum(found["wrong", ""])
    counts = sum(found["count", HERE]) + sum(found["count", THERE])
    middle = [1000 * float(np.median(found["p50", region])) for region in (HERE, THERE)]
    period = PromiseSettings().period
    holds = max([*here, *there]) <= limit and not wrong
    return Claim(
        "goal.total-order",
        f"Total order adds at most {1000 * GOAL:.0f} ms and the one-way latency between the regions.",
        f"99 of 100 events come at most {1000 * limit:.0f} ms later in the merge of all streams than in their own; all "
        "in the order of their ticks, none missing",
        f"99th percentile of own region's events {over([1000 * each for each in here], 'ms', 1)}, of the other's "
        f"{over([1000 * each for each in there], 'ms', 1)}; medians {middle[0]:.1f} and {middle[1]:.1f} ms; "
        f"{counts:.0f} events, {wrong:.0f} wrong",
        holds,
        ""
        if holds or wrong
        else f"A quiet region promises every {1000 * period:.0f} ms, and a promise is a record: it is persisted there, "
        "passed on, persisted here, and only then shown.",
    )


def report(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in sql("select * from results order by seed"):
        found.setdefault((row["name"], row["owner"]), []).append(row["measured"])
    return Findings([judge_order(found)])


STUDIES = (Study("gryphon-order", points, measure, report),)
EXPERIMENTS = (
    Experiment(
        "gryphon-order", PAPER, "Beyond the paper: total order under load", ("goal.total-order",), "gryphon-order"
    ),
)
