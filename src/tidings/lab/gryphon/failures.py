"""GR4 to GR6: a link, a relay and the publishing site stall and then fail (Gryphon, section 4.2), simulated.

A failure that is noticed at once loses next to nothing, because the next message takes another path. So, as in the
paper, what is to fail first *stalls* for two to three seconds: it accepts messages and passes nothing on, and nobody
notices. Then it fails, and both ends of its connections know.

| fault | what stalls | what then fails | repaired after |
|---|---|---|---|
| link | b1-s1 swallows what it is given | both ends lose the connection | 10 s |
| relay | b1 handles nothing | b1 crashes with what it had taken | 30 s |
| site | p1 logs, answers publishers, and sends nothing to its relays | p1 crashes, and the publishers with it | 20 s |

Times are in seconds from the beginning of the stall. A message's latency is from the moment p1 numbered it until the
subscriber has it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidings.core.ids import StreamId
from tidings.lab.gryphon.topology import CELLS, EDGES, NODE, SITE, PaperNetwork, Witness

if TYPE_CHECKING:
    from tidings.lab.study import Point, Row, Sql

Floats = NDArray[np.float64]

REPAIR = {"link": 10.0, "relay": 30.0, "site": 20.0}  # seconds from the failure to the repair (GR4 to GR6)
STALL = (2.0, 3.0)  # seconds (GR3)
SEEDS = {"quick": 3, "full": 10}
BEFORE = 8.0  # simulated seconds until the stall: all have subscribed, and a calm stretch is seen
AFTER = 8.0  # seconds after the repair
RELAYS = [relay for cell in CELLS.values() for relay in cell]


@dataclass(frozen=True)
class Nacked:
    """One nack."""

    at: float
    by: str
    to: str
    stream: StreamId
    numbers: int


@dataclass(frozen=True)
class FaultRun:
    """One run with one fault, simulated or real."""

    fault: str
    seed: int
    failed: float  # when the stall ends with the failure
    repaired: float
    end: float
    carried: tuple[StreamId, ...]  # streams that b1 carried
    latency: Mapping[str, Mapping[StreamId, tuple[Floats, Floats]]]  # of each edge and stream: sent, seconds
    nacks: Sequence[Nacked]
    said_first: Mapping[StreamId, float]  # by p1, back: 1 if AckExpected was the first it said, 0 if knowledge was
    violations: int
    stored: int = 0  # records that p1 persisted; of a real run not counted
    stored_elsewhere: int = 0  # and that relays and edges did

    def of(self, edge: str, streams: Iterable[StreamId] | None = None) -> tuple[Floats, Floats]:
        """When messages were sent, and how long they took to an edge's subscriber, in the order of sending."""
        mine = [self.latency[edge][each] for each in (self.latency[edge] if streams is None else streams)]
        sent, took = (np.concatenate(part) for part in zip(*mine, strict=True))
        order = np.argsort(sent, kind="stable")
        return sent[order], took[order]

    def worst(self, edge: str, lo: float, hi: float, streams: Iterable[StreamId] | None = None) -> float:
        """The longest that a message took which was sent in [lo, hi)."""
        sent, took = self.of(edge, streams)
        return float(took[(sent >= lo) & (sent < hi)].max(initial=0.0))

    def asked(self, by: str, lo: float = 0.0, hi: float = np.inf) -> list[Nacked]:
        """The nacks of one node in [lo, hi)."""
        return [nack for nack in self.nacks if nack.by == by and lo <= nack.at < hi]

    def asked_for(self, by: str, lo: float = 0.0, hi: float = np.inf) -> int:
        """How many numbers those ask for."""
        return sum([nack.numbers for nack in self.asked(by, lo, hi)])


# --- the task -------------------------------------------------------------------------------------------


def points(scale: str) -> list[Point]:
    """Each fault with several seeds."""
    return [{"fault": fault, "seed": seed} for fault in REPAIR for seed in range(SEEDS[scale])]


def measure(point: Mapping[str, Any]) -> list[Row]:
    """One run, in columns."""
    return rows(simulate(point["fault"], point["seed"]))


def simulate(fault: str, seed: int) -> FaultRun:
    """Let it happen, and note what came of it."""
    stall = random.Random(f"{seed}/stall").uniform(*STALL)
    failed, repaired = BEFORE + stall, BEFORE + stall + REPAIR[fault]
    network = PaperNetwork(seed, repaired + AFTER)
    FAULTS[fault](network, BEFORE, failed, repaired)
    network.run()
    witness = network.witness
    latency: dict[str, dict[StreamId, tuple[Floats, Floats]]] = {edge: {} for edge in EDGES}
    came: dict[tuple[str, StreamId], list[tuple[float, float]]] = defaultdict(list)
    for edge, stream, _, published, delivered in witness.came:
        came[edge, stream].append((published - BEFORE, delivered - published))
    for (edge, stream), pairs in sorted(came.items()):
        sent, took = np.array(pairs).T
        latency[edge][stream] = sent, took
    return FaultRun(
        fault,
        seed,
        failed - BEFORE,
        repaired - BEFORE,
        network.end - BEFORE,
        tuple(network.carried("b1")),
        latency,
        [Nacked(at - BEFORE, by, to, stream, hi - lo) for at, by, to, stream, lo, hi in witness.nacks],
        first_words(witness, repaired),
        violations(witness.spans, witness.came, network.horizons()) + witness.reports["contradiction"],
        witness.persisted["p1"],
        witness.persisted.total() - witness.persisted["p1"],
    )


def first_words(witness: Witness, since: float) -> dict[StreamId, float]:
    """What p1 says first of each stream from some time on."""
    expected = [(at, 1.0, stream) for at, by, stream, _ in witness.expected if by == "p1" and at >= since]
    told = [(at, 0.0, stream) for at, _, stream in witness.told if at >= since]
    found: dict[StreamId, float] = {}
    for _, what, stream in sorted(expected + told, key=lambda each: each[0]):
        found.setdefault(stream, what)
    return found


def violations(
    spans: Iterable[tuple[str, StreamId, int, int]],
    came: Iterable[tuple[str, StreamId, int, float, float]],
    ends: Mapping[StreamId, int],
) -> int:
    """Gaps, repetitions, disorder, messages that never came: of subscribers that want everything."""
    covered: dict[tuple[str, StreamId], list[tuple[int, int]]] = {(edge, each): [] for edge in EDGES for each in ends}
    for edge, stream, lo, hi in spans:
        covered[edge, stream].append((lo, hi))
    numbers: dict[tuple[str, StreamId], list[int]] = defaultdict(list)
    for edge, stream, number, _, _ in came:
        numbers[edge, stream].append(number)
    found = 0
    for (edge, stream), parts in covered.items():
        if not parts:
            found += 1
            continue
        found += sum([a[1] != b[0] for a, b in pairwise(parts)]) + (parts[-1][1] != ends[stream])
        found += numbers[edge, stream] != list(range(parts[0][0], parts[-1][1]))
    return found


# --- the faults -----------------------------------------------------------------------------------------


def stall_link(network: PaperNetwork, stalled: float, failed: float, repaired: float) -> None:
    """b1-s1."""
    world, blocks = network.world, list[int]()

    def fail() -> None:
        network.lost("b1", ["s1"])
        network.lost("s1", ["b1"])

    world.at(stalled, lambda: blocks.extend(world.partition([NODE["b1"]], [NODE["s1"]])))
    world.at(failed, fail)
    world.at(repaired, lambda: world.rejoin(blocks))


def stall_relay(network: PaperNetwork, stalled: float, failed: float, repaired: float) -> None:
    """b1."""
    world = network.world

    def fail() -> None:
        world.crash(NODE["b1"])
        network.lost("b1", ["p1", "b2", "s1", "s2"])

    world.at(stalled, lambda: world.pause(NODE["b1"], repaired))
    world.at(failed, fail)
    world.at(repaired, lambda: world.restart(NODE["b1"]))


def stall_site(network: PaperNetwork, stalled: float, failed: float, repaired: float) -> None:
    """p1; it logs what it cannot send, and the publishers are down as long as it is."""
    world, publishers, blocks = network.world, network.publishers, list[int]()

    def stall() -> None:
        blocks.extend(world.partition([SITE], [NODE[relay] for relay in RELAYS], one_way=True))

    def fail() -> None:
        for node in (SITE, *publishers):
            world.crash(node)
        network.lost("p1", [*RELAYS, *EDGES, *network.subscribers.values()])

    def repair() -> None:
        world.rejoin(blocks)
        for node in (SITE, *publishers):
            world.restart(node)

    world.at(stalled, stall)
    world.at(failed, fail)
    world.at(repaired, repair)


FAULTS: dict[str, Callable[[PaperNetwork, float, float, float], None]] = {
    "link": stall_link,
    "relay": stall_relay,
    "site": stall_site,
}


# --- rows -----------------------------------------------------------------------------------------------

NUMBERS = ("failed", "repaired", "end", "violations", "stored", "stored_elsewhere")


def row(kind: str, name: str, stream: str = "", to: str = "", at: Iterable[float] = (), value: Any = ()) -> Row:
    """One fact or series."""
    series = {"at": [float(each) for each in at], "value": [float(each) for each in value]}
    return {"kind": kind, "name": name, "to": to, "stream": stream, **series}


def rows(run: FaultRun) -> list[Row]:
    """A run in columns: by ``kind`` a number, a stream that b1 carried, latencies of an edge, nacks of a node."""
    asked: dict[tuple[str, str, StreamId], list[Nacked]] = defaultdict(list)
    for nack in run.nacks:
        asked[nack.by, nack.to, nack.stream].append(nack)
    return [
        *[row("number", name, value=[getattr(run, name)]) for name in NUMBERS],
        *[row("carried", "b1", stream) for stream in run.carried],
        *[row("first", "p1", stream, value=[what]) for stream, what in run.said_first.items()],
        *[
            row("latency", edge, stream, at=sent, value=took)
            for edge, streams in run.latency.items()
            for stream, (sent, took) in streams.items()
        ],
        *[
            row("nack", by, stream, to, [nack.at for nack in some], [nack.numbers for nack in some])
            for (by, to, stream), some in asked.items()
        ],
    ]


def read(sql: Sql) -> list[FaultRun]:
    """The runs, by fault and seed."""
    found: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for each in sql("select * from results order by fault, seed, kind, name, `to`, stream"):
        found[each["fault"], each["seed"]].append(each)
    return [_read(fault, seed, some) for (fault, seed), some in found.items()]


def _read(fault: str, seed: int, some: Sequence[Row]) -> FaultRun:
    def of(kind: str) -> list[Row]:
        return [each for each in some if each["kind"] == kind]

    numbers = {each["name"]: each["value"][0] for each in of("number")}
    latency: dict[str, dict[StreamId, tuple[Floats, Floats]]] = {}
    for each in of("latency"):
        latency.setdefault(each["name"], {})[each["stream"]] = np.array(each["at"]), np.array(each["value"])
    nacks = [
        Nacked(at, each["name"], each["to"], each["stream"], int(count))
        for each in of("nack")
        for at, count in zip(each["at"], each["value"], strict=True)
    ]
    return FaultRun(
        fault,
        seed,
        numbers["failed"],
        numbers["repaired"],
        numbers["end"],
        tuple([each["stream"] for each in of("carried")]),
        latency,
        sorted(nacks, key=lambda nack: nack.at),
        {each["stream"]: each["value"][0] for each in of("first")},
        int(numbers["violations"]),
        int(numbers["stored"]),
        int(numbers["stored_elsewhere"]),
    )
