"""What the Gryphon paper did not measure, on its own topology: selective filters, loss, DCT, a whole cell lost.

- *filters*: each event has one of ten keys, and each edge's subscriber wants those of one key. Counted are the rows and
  bytes on every hop, beside a run in which all want everything.
- *loss*: every message among p1, relays and edges is lost with a probability, and those of publishers.
- *dct*: b1-s1 loses the last message before an idle time, and nothing follows it. With an infinite DCT its absence is
  noticed when p1 expects the acknowledgement (AET); with a DCT the edge asks by itself, and goes on asking while idle.
- *cell*: b1 and b2 crash together, and are back after ten seconds. Subscribers of s1 and s2 have the library's defaults
  here: they may go to another edge.

Limits follow from settings, or compare one run with another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tidings.client.machine import MachineSettings
from tidings.lab import figures
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.gryphon.failure_verdicts import PAPER, over
from tidings.lab.gryphon.failures import violations
from tidings.lab.gryphon.topology import CELLS, EDGES, NODE, PaperNetwork
from tidings.lab.study import Point, Row, Sql, Study
from tidings.protocols.brokers.broker_messages import BrokerSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEFAULTS = BrokerSettings()
KEYS = 10
LOSSES = (0.0, 0.01, 0.02, 0.05, 0.1)
DCT = 0.5  # seconds; where it is on
SEEDS = {"quick": 1, "full": 5}
SECONDS = 20.0  # of load
AT = 8.0  # simulated seconds: when something happens
DOWN = 10.0  # for so long both relays of a cell are down
IDLE = 20.0  # seconds without load; more than AET and what is needed to notice it
QUIET = 5.0  # seconds at the end in which nothing is published


def points(scale: str) -> list[Point]:
    """Every run."""
    kinds: list[tuple[str, float]] = [
        *[("loss", loss) for loss in reversed(LOSSES)],
        *[("filters", share) for share in (1.0, 1 / KEYS)],
        *[("dct", dct) for dct in (0.0, DCT)],
        ("cell", 0.0),
    ]
    return [{"kind": kind, "value": value, "seed": seed} for kind, value in kinds for seed in range(SEEDS[scale])]


def measure(point: Mapping[str, Any]) -> list[Row]:
    """One run: numbers by name, and the node or hop that they belong to."""
    found = RUNS[point["kind"]](point["value"], point["seed"])
    return [{"name": name, "where": where, "measured": float(value)} for name, where, value in found]


Found = Iterable[tuple[str, str, float]]


def _latencies(network: PaperNetwork, edges: Iterable[str] = EDGES, since: float = 0.0) -> np.ndarray[Any, Any]:
    there = set(edges)
    took = [came - sent for edge, _, _, sent, came in network.witness.came if edge in there and sent >= since]
    return np.array(took)


def run_loss(loss: float, seed: int) -> Found:
    """A lossy network."""
    network = PaperNetwork(seed, AT + SECONDS + QUIET + IDLE, stop=AT + SECONDS, loss=loss)
    network.run()
    witness = network.witness
    took = _latencies(network, since=AT)
    yield from [(f"p{part}", "", float(np.percentile(took, part))) for part in (50, 99, 100)]
    yield "violations", "", violations(witness.spans, witness.came, network.horizons())
    yield "published", "", sum(network.horizons().values()) - len(network.streams)
    for node in (*EDGES, *CELLS["IB1"], *CELLS["IB2"]):
        yield "asked", node, sum([hi - lo for _, by, _, _, lo, hi in witness.nacks if by == node])


def run_filters(share: float, seed: int) -> Found:
    """Filters that each pass this share of the events."""
    keys = {edge: f"key = 'key-{at}'" for at, edge in enumerate(EDGES)}
    network = PaperNetwork(
        seed,
        AT + SECONDS,
        keys=KEYS,
        wants=lambda edge, stream: keys[edge] if share < 1 else "",
        stop=AT + SECONDS - QUIET,
    )
    network.run()
    published = sum(network.horizons().values()) - len(network.streams)
    yield "published", "", published
    came: dict[str, int] = defaultdict(int)
    for edge, *_ in network.witness.came:
        came[edge] += 1
    for edge in EDGES:
        yield "came", edge, came[edge]
    for (by, to), count in network.witness.bytes.items():
        hop = "p1" if by == "p1" else "relays"
        yield "bytes", f"{hop} to {to}", count
        yield "rows", f"{hop} to {to}", network.witness.rows[by, to]


def run_dct(dct: float, seed: int) -> Found:
    """The last message before an idle time is lost."""
    stop = AT + 4.0
    settings = BrokerSettings(dct=dct)
    network = PaperNetwork(seed, stop + IDLE, stop=stop, settings=settings)
    world, blocks = network.world, list[int]()
    others = [NODE[relay] for relay in CELLS["IB1"]]
    world.at(stop - 1.0, lambda: blocks.extend(world.partition(others, [NODE["s1"]])))
    world.at(stop + 0.2, lambda: world.rejoin(blocks))
    network.run()
    last = {stream: end - 1 for stream, end in network.horizons().items()}
    took = [
        came - stop for edge, stream, number, _, came in network.witness.came if edge == "s1" and number == last[stream]
    ]
    yield "noticed", "", max(took) if len(took) == len(last) else np.inf
    idle = [at for at, by, *_ in network.witness.nacks if by == "s2" and at >= stop + 1.0]
    yield "idle_nacks", "", len(idle) / (IDLE - 1.0)
    yield "violations", "", violations(network.witness.spans, network.witness.came, network.horizons())


def run_cell(_: float, seed: int) -> Found:
    """Both relays of IB1 are lost."""
    network = PaperNetwork(seed, AT + DOWN + SECONDS, staying=False)
    world = network.world

    def crash() -> None:
        for relay in CELLS["IB1"]:
            world.crash(NODE[relay])
            network.lost(relay, ["p1", "s1", "s2"])

    def restart() -> None:
        for relay in CELLS["IB1"]:
            world.restart(NODE[relay])

    world.at(AT, crash)
    world.at(AT + DOWN, restart)
    network.run()
    witness = network.witness
    for edge in EDGES:
        times = np.array([came for each, _, _, _, came in witness.came if each == edge])
        after = times[(times >= AT - 1.0)]
        yield "silence", edge, float(np.diff(after).max())
        late = [came - sent for each, _, _, sent, came in witness.came if each == edge and sent >= AT + DOWN + 5.0]
        yield "after", edge, float(np.max(late))
    yield "violations", "", violations(witness.spans, witness.came, network.horizons())


RUNS = {"loss": run_loss, "filters": run_filters, "dct": run_dct, "cell": run_cell}


# --- the claims -----------------------------------------------------------------------------------------


class Numbers:
    """What was measured, by kind, value, name and place."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.of: dict[tuple[str, float, str, str], list[float]] = defaultdict(list)
        for each in rows:
            self.of[each["kind"], each["value"], each["name"], each["where"]].append(each["measured"])

    def __call__(self, kind: str, value: float, name: str, where: str = "") -> list[float]:
        return self.of[kind, value, name, where]

    def places(self, kind: str, value: float, name: str) -> list[str]:
        """Where something was measured."""
        return sorted([where for k, v, n, where in self.of if (k, v, n) == (kind, value, name)])


def judge_loss(found: Numbers) -> Claim:
    """All comes, and most of it soon."""
    bad = sum([sum(found("loss", loss, "violations")) for loss in LOSSES])
    p99 = {loss: found("loss", loss, "p99") for loss in LOSSES}
    limit = DEFAULTS.gct + DEFAULTS.nrt + 2 * DEFAULTS.tick
    holds = not bad and max(max(each) for each in p99.values()) < limit
    return Claim(
        "ours.loss",
        "Where up to a tenth of all messages is lost, every subscriber gets every message once and in order, 99 of 100 "
        "within one repetition of a nack.",
        f"0 violations; 99th percentile of latency below GCT + NRT + two ticks, {1000 * limit:.0f} ms, at every loss",
        "; ".join([f"{loss:.0%}: p99 {over([1000 * each for each in p99[loss]], 'ms', 0)}" for loss in LOSSES])
        + f"; {bad:.0f} violations",
        holds,
        ""
        if holds or bad
        else "A message and its repair take two hops each way. At a loss of 10% a third of the nacks or their answers "
        "is lost, so one in twenty-five lost messages takes more than three NRT; in its stream's order it holds up all "
        "that come behind it meanwhile.",
    )


def judge_consolidation(found: Numbers) -> Claim:
    """What relays ask for beside what edges ask for."""
    told, fine = [], True
    for loss in LOSSES[1:]:
        edges = sum([sum(found("loss", loss, "asked", edge)) for edge in EDGES])
        relays = sum([sum(found("loss", loss, "asked", relay)) for cell in CELLS.values() for relay in cell])
        published = sum(found("loss", loss, "published"))
        told.append(f"{loss:.0%}: edges {edges:.0f}, relays {relays:.0f} numbers of {published:.0f} published")
        fine &= 0 < relays <= edges
    return Claim(
        "ours.loss-nacks",
        "Relays answer and consolidate: what they ask of p1 stays below what the edges ask of them.",
        "numbers in nacks of relays at most those in nacks of edges, at every loss above 0",
        "; ".join(told),
        fine,
    )


def judge_filters(found: Numbers) -> Claim:
    """Each hop carries what is wanted below it, and little else."""
    narrow, all_ = 1 / KEYS, 1.0
    told, fine = [], True
    for cell, relays in CELLS.items():
        wanted = sum([edge_cell == cell for edge_cell in EDGES.values()]) / KEYS
        rows, most = (
            sum([sum(found("filters", share, "rows", f"p1 to {relay}")) for relay in relays])
            for share in (narrow, all_)
        )
        size, whole = (
            sum([sum(found("filters", share, "bytes", f"p1 to {relay}")) for relay in relays])
            for share in (narrow, all_)
        )
        told.append(f"p1 to {cell}: {rows / most:.0%} of the rows, {size / whole:.0%} of the bytes")
        fine &= rows / most <= 1.2 * wanted and size / whole <= 2 * wanted
    edges = [
        sum(found("filters", narrow, "rows", f"relays to {edge}"))
        / sum(found("filters", all_, "rows", f"relays to {edge}"))
        for edge in EDGES
    ]
    told.append(f"relays to edges: {over([100 * each for each in edges], '%', 0)} of the rows")
    fine &= max(edges) <= 1.5 / KEYS
    bytes_ = [
        sum(found("filters", narrow, "bytes", f"relays to {edge}"))
        / sum(found("filters", all_, "bytes", f"relays to {edge}"))
        for edge in EDGES
    ]
    told.append(f"{over([100 * each for each in bytes_], '%', 0)} of the bytes")
    return Claim(
        "ours.filters",
        f"A hop carries what is wanted below it: with filters that each pass one event in {KEYS}, two tenths of the "
        "rows go to a cell with two edges, three tenths to one with three, one tenth to an edge.",
        "rows at most 1.2 x that share to a cell (1.5 x to an edge), bytes to a cell at most 2 x, beside a run in "
        "which all want everything",
        "; ".join(told),
        fine,
    )


def judge_dct(found: Numbers) -> Claim:
    """DCT notices what AET would notice later."""
    off, on = found("dct", 0.0, "noticed"), found("dct", DCT, "noticed")
    nacks = found("dct", DCT, "idle_nacks")
    limit = DCT + DEFAULTS.nrt
    slowest = DEFAULTS.aet * 1.25 + DEFAULTS.status
    bad = sum(found("dct", 0.0, "violations") + found("dct", DCT, "violations"))
    return Claim(
        "ours.dct",
        "The last message before an idle time is lost on the way to an edge: with an infinite DCT it comes when p1 "
        f"expects its acknowledgement, with DCT {DCT:g} s about that long after; the price is nacks while idle.",
        f"within {limit:g} s of the last publication with DCT, later than that and within {slowest:g} s without (AET, "
        "a quarter of it until that is looked at, a status); 0 violations",
        f"with DCT {over(on)}, without {over(off)}; {over(nacks, 'nacks/s')} of an edge at rest with DCT "
        f"({over(found('dct', 0.0, 'idle_nacks'), 'nacks/s')} without); {bad:.0f} violations",
        max(on) <= limit < min(off) and max(off) <= slowest and not bad,
    )


def judge_cell(found: Numbers) -> Claim:
    """A cell is gone."""
    hit = {edge: found("cell", 0.0, "silence", edge) for edge in EDGES}
    subscriptions = MachineSettings().subscriptions
    limit = DEFAULTS.patience + subscriptions.silence + 2 * subscriptions.again
    bad = sum(found("cell", 0.0, "violations"))
    others = max([max(hit[edge]) for edge, cell in EDGES.items() if cell != "IB1"])
    worst = [max(pair) for pair in zip(hit["s1"], hit["s2"], strict=True)]
    return Claim(
        "ours.cell",
        "When all relays of a cell are lost, its edges fall silent, and their subscribers go on elsewhere, from where "
        "they are, without a loss; the others notice nothing.",
        f"subscribers of s1 and s2 without messages for at most {limit:g} s (patience of the edge, silence and two "
        f"retries of the client), those of s3 to s5 for less than GCT, {1000 * DEFAULTS.gct:.0f} ms; 0 violations",
        f"{over(worst)}; others {1000 * others:.0f} ms; {bad:.0f} violations",
        max(worst) <= limit and others < DEFAULTS.gct and not bad,
    )


JUDGES = (judge_loss, judge_consolidation, judge_filters, judge_dct, judge_cell)


# --- figures and report ---------------------------------------------------------------------------------


def paint_loss(found: Numbers, axes: Axes) -> None:
    """Latency and nacks by loss."""
    other = figures.beside(axes)
    loss = [100 * each for each in LOSSES]
    for name, label, color, marker in (
        ("p50", "median", figures.GREEN, "^-"),
        ("p99", "99th percentile", figures.BLUE, "o-"),
        ("p100", "worst", figures.ORANGE, "s-"),
    ):
        axes.plot(loss, [1000 * max(found("loss", each, name)) for each in LOSSES], marker, color=color, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("messages lost (%)")
    axes.set_ylabel("ms until delivered")
    axes.set_title("Latency by loss")
    for nodes, label, color, marker in (
        (list(EDGES), "edges", figures.BLUE, "o-"),
        ([relay for cell in CELLS.values() for relay in cell], "relays", figures.VERMILION, "s-"),
    ):
        asked = [
            100
            * sum([sum(found("loss", each, "asked", node)) for node in nodes])
            / sum(found("loss", each, "published"))
            for each in LOSSES
        ]
        other.plot(loss, asked, marker, color=color, label=label)
    other.set_ylim(bottom=0)
    other.set_xlabel("messages lost (%)")
    other.set_ylabel("asked for, % of published")
    other.set_title("Numbers in nacks")
    other.legend(loc="upper left")


def report(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge and draw."""
    found = Numbers(sql("select kind, value, name, `where`, measured from results order by seed"))
    drawn = figures.draw(out, "gryphon-loss", lambda axes: paint_loss(found, axes))
    return Findings([judge(found) for judge in JUDGES], {"gryphon-beyond": drawn}, {})


STUDIES = (Study("gryphon-beyond", points, measure, report),)
EXPERIMENTS = (
    Experiment(
        "gryphon-beyond",
        PAPER,
        "Beyond the paper: selective filters, loss, DCT, a whole cell lost",
        ("ours.loss", "ours.loss-nacks", "ours.filters", "ours.dct", "ours.cell"),
        "gryphon-beyond",
    ),
)
