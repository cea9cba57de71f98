"""Small simulated worlds for what Sprinkler's paper left out, one question each; judged and drawn in `extensions`.

Every world is also judged by check/.

- *fail-over*: the head, a middle or the tail is killed. How long is any client without the stream?
- *churn*: every second a share of the clients leaves and others come. When do those that stay receive?
- *outage*: a region is cut off for a while, then catches up over a narrow link, with and without collection by key.
- *C*: the constant of the switch rule (A1.17). A link fails: how long until a region leaves the silent source? Paths of
  equal length have varying latency: how often do regions change sources between them?
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidings.check import judge
from tidings.core.errors import TidingsError
from tidings.core.ids import RegionId
from tidings.core.span import Span
from tidings.protocols.kernel import Received
from tidings.protocols.messages import Know
from tidings.sim.build import Deployment
from tidings.sim.run import failures, simulate
from tidings.sim.scenario import (
    AnyFault,
    Cut,
    Heal,
    Kill,
    LinkTable,
    ProtocolTable,
    PublisherTable,
    RegionTable,
    Run,
    Scenario,
    Stream,
)

if TYPE_CHECKING:
    from tidings.lab.study import Row

BREAKS = 6.0  # when something happens; C: when the advertisement period begins in which it does
KEYS, SKEW = 5_000, 1.1
LINK_RATE, LINK_BITS = 10_000.0, 10e6  # events/s over the narrow link, which carries twice to three times that
CONSTANTS: dict[str, float | None] = {"0": 0.0, "in proportion": None, "1000": 1e3, "huge": 1e12}  # 1 s at 1000/s; ours
JITTER = 0.01  # seconds: half of the latency, so that now this path is shorter and now that one; ours
GOLDEN = 0.618  # of a period from one seed's cut to the next one's: any number of seeds is spread over it evenly
CHANGES_IN = BREAKS + 11.0  # seconds in which changes of source are counted


class WorldWatch:
    """When each client had which numbers of one stream, and what of it came from region to region."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.seen: dict[str, list[tuple[float, int, int]]] = {}
        self.crossed: list[tuple[str, Span]] = []  # region it came to, what came

    def on_deliver(self, time: float, node: str, incarnation: int, item: Any) -> None:
        """Receipts."""
        if type(item) is Span and item.stream == self.stream:
            self.seen.setdefault(node, []).append((time, item.lo, item.hi))

    def on_step(self, time: float, node: str, incarnation: int, input: Any, effects: Any) -> None:
        """What crosses a link, as often as it does."""
        if type(input) is Received and type(input.message) is Know and input.message.stream == self.stream:
            region = node.partition("/")[0]
            if region != input.src.partition("/")[0]:
                self.crossed += [(region, span) for span in input.message.spans]

    def rows_sent(self, region: str, lo: int, hi: int) -> tuple[int, int]:
        """Rows of [lo, hi) that came to a region from others, and how many of them had come before."""
        spans = [span for to, span in self.crossed if to == region and span.lo < hi and span.hi > lo]
        numbers = [number for span in spans for number in span.rows.slice(lo, hi).numbers.tolist()]
        return len(numbers), len(numbers) - len(set(numbers))

    def silence(self, region: str, since: float, end: float) -> float:
        """The longest any client of a region that was there before went without news between ``since`` and the end."""
        waits = []
        for node, receipts in self.seen.items():
            if node.startswith(f"{region}/") and receipts[0][0] < since:
                times = [*[time for time, _, _ in receipts if time < end], end]
                waits += [b - a for a, b in itertools.pairwise(times) if b > since]
        if not waits:
            raise TidingsError(
                f"no client of {region} had anything of {self.stream} before {since:g} s: nothing to judge"
            )
        return max(waits)


def world(
    seconds: float,
    faults: tuple[AnyFault, ...] = (),
    *,
    regions: int = 2,
    clients: int = 6,
    rate: float = 1000.0,
    gc: str = "none",
    bandwidth: float | None = None,
    jitter: float = 0.0,
    protocol: ProtocolTable | None = None,
) -> Scenario:
    """r0 publishes; the others receive."""
    names = [f"r{at}" for at in range(regions)]
    keyed = gc != "none" or bandwidth is not None
    return Scenario(
        scenario=Run(name="beyond", seconds=seconds),
        regions=tuple(RegionTable(name, replicas=3, clients=clients) for name in names),
        links=tuple(
            LinkTable(a, b, 0.02, "normal" if jitter else "constant", jitter, bandwidth)
            for a, b in itertools.combinations(names, 2)
        ),
        streams=(Stream("s0", "r0", gc=gc, rows="arrow" if keyed else "counted"),),
        publishers=(
            PublisherTable(
                region="r0",
                stream="s0",
                rate=rate,
                batch=max(1, round(rate / 50)),
                keys=KEYS if keyed else 0,
                skew=SKEW,
                stop=seconds - 1.0,
            ),
        ),
        faults=faults,
        protocol=protocol or ProtocolTable(),
    )


def _run(plan: Scenario, seed: int, prepare: Any = None) -> tuple[Deployment, WorldWatch, int]:
    """Simulate and judge; the deployment, what was watched, and the number of violations."""
    deployment = Deployment(plan, seed, trace=False)
    watch = WorldWatch("s0")
    deployment.world.observers.append(watch)
    if prepare is not None:
        prepare(deployment)
    simulate(deployment)
    found = failures(deployment) + judge(deployment.recorder.trace())
    return deployment, watch, len(found)


# --- tasks ----------------------------------------------------------------------------------------------


def measure_failover(point: Mapping[str, Any]) -> list[Row]:
    """Kill one replica of r0."""
    plan = world(BREAKS + 8.0, (Kill(BREAKS, f"r0/{point['place']}"),))
    _, watch, violations = _run(plan, point["seed"])
    return [
        {"region": name, "silence": watch.silence(name, BREAKS, BREAKS + 7.0), "violations": violations}
        for name in ("r0", "r1")
    ]


def measure_churn(point: Mapping[str, Any]) -> list[Row]:
    """Replace clients of r0 steadily from BREAKS on; those of the first half stay."""
    plan = world(BREAKS + 8.0, clients=20)
    until = BREAKS + 6.0

    def replace(deployment: Deployment) -> None:
        leavers = deployment.clients["r0"][10:]
        wait = 1.0 / (point["churn"] * 20) if point["churn"] else until
        for at in range(int((until - BREAKS) / wait)):
            leaver = leavers[at] if at < len(leavers) else f"r0/n{at - len(leavers)}"
            moment = BREAKS + (at + 1) * wait

            def swap(leaver: str = leaver, comer: str = f"r0/n{at}") -> None:
                deployment.world.crash(leaver)
                deployment.spawn("client", "r0", comer)

            deployment.world.at(moment, swap)

    deployment, watch, violations = _run(plan, point["seed"], replace)
    stayed = [f"r0/c{at}" for at in range(10)]
    arrived = {hi: at for (_, hi), at in deployment.recorder.arrived.items()}
    late = []
    for node in stayed:
        ends = sorted((hi, time) for time, _, hi in watch.seen[node])
        for lo, at in arrived.items():
            if BREAKS < at < until:
                late.append(next(time for hi, time in ends if hi > lo) - at)
    late.sort()
    p99 = late[int(0.99 * (len(late) - 1))]
    return [{"latency": sum(late) / len(late), "p99": p99, "replaced": point["churn"], "violations": violations}]


def measure_outage(point: Mapping[str, Any]) -> list[Row]:
    """Cut r1 off, and let it catch up over a link that is hardly wider than the flow."""
    length = point["outage"]
    heal = BREAKS + length
    plan = world(
        heal + 6.0 * length + 6.0,
        (Cut(BREAKS, "r0", "r1"), Heal(heal, "r0", "r1")),
        gc=point["gc"],
        rate=LINK_RATE,
        bandwidth=LINK_BITS,
    )
    _, watch, violations = _run(plan, point["seed"])
    lag = {}
    for node, receipts in watch.seen.items():
        if node.startswith("r1/"):
            here = [(time, hi) for time, _, hi in receipts]
            there = [(time, hi) for time, _, hi in watch.seen["r0/c0"]]
            lag[node] = _level(there, here, heal)
    missed = max(hi for time, _, hi in watch.seen["r0/c0"] if time < heal)
    had = max(hi for time, _, hi in watch.seen["r1/c0"] if time <= BREAKS + 0.2)
    rows, again = watch.rows_sent("r1", had, missed)
    return [
        {
            "catch_up": max(lag.values()),
            "rows": rows,
            "again": again,
            "missed": missed - had,
            "violations": violations,
        }
    ]


def _level(there: list[tuple[float, int]], here: list[tuple[float, int]], since: float) -> float:
    """How long after ``since`` one horizon is within half a second's worth of the other."""
    ends = iter(there)
    now, ahead = next(ends)
    for time, hi in here:
        while now < time - 0.5:
            now, ahead = next(ends, (float("inf"), ahead))
        if time > since and hi >= ahead:
            return time - since
    return float("inf")


def cut_at(seed: int) -> float:
    """When the link fails. Every seed has another moment of the advertisement period, because how soon a silent source
    is left depends on how soon somebody advertises."""
    return BREAKS + GOLDEN * seed % 1.0 * ProtocolTable().advertise_period


def measure_constant(point: Mapping[str, Any]) -> list[Row]:
    """The link from r0 to r1 fails; r2 and r3 could help out, and their paths are alike but for jitter.

    ``hit``: r1 had the stream over that link when it was cut; else it had left r0 before, and nothing falls silent.
    """
    cut = cut_at(point["seed"])
    protocol = ProtocolTable(c=CONSTANTS[point["c"]])
    plan = world(CHANGES_IN, (Cut(cut, "r0", "r1"),), regions=4, jitter=JITTER, protocol=protocol)
    source: list[RegionId | None] = []

    def look(deployment: Deployment) -> None:
        head = deployment.membership("r1").replicas[0]
        source.append(deployment.proxy(head).inter_region.expects["s0"].region)

    deployment, watch, violations = _run(plan, point["seed"], lambda each: each.world.at(cut, lambda: look(each)))
    return [
        {
            "silence": watch.silence("r1", cut, cut + 9.0),
            "hit": source == ["r0"],
            "switches": deployment.world.reports.get("source_switch", 0.0),
            "violations": violations,
        }
    ]
