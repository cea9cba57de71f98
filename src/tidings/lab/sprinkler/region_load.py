"""SP3 and SP4: what the fabric carries to thousands of clients (Sprinkler, section 5.2, figures 5b and 6).

Three regions of 1000 clients and a three-replica proxy each, 1 Gb/s and 1 ms inside, 864,000 ten-byte events/s per
region. SP3 varies fanout and shuffle time, SP4 the load. Measured from the moment when the flow is steady:

- *throughput*: events/s that a client delivers, mean over all clients. What exceeds the load is catch-up, which rewards
  being late; settings are ranked by min(throughput, load), then by latency;
- *latency* of a batch: from its arrival at its region's proxy until every client of all regions has delivered it, mean
  over the batches that had arrived 0.3 s before the end; one that is not everywhere at the end counts with the time
  that it has taken so far;
- *unfinished*: how many of these there are;
- *kept*: what is delivered in the second half of the time measured, as a share of the load. A setting that keeps up is
  not saturated, however late everything is;
- *uplink*: bytes/s that a client sends; *proxy_uplink*: that a tail has to send, whether its uplink carries it or not.

A driver has at most 16 batches under way that are not acknowledged: where a proxy answers late less than the load is
offered, and *due* is lower.

The paper does not say how fast a proxy's uplink is nor whether it has the same F. *Readings* differ in that: `literal`
(1 Gb/s, the clients' F), `fast-uplink` (10 Gb/s, the clients' F) and `own-fanout` (1 Gb/s, F = 1 for the proxy). In
these a client that hears no news asks a neighbour or the proxy, which is not in the paper (decision 0005); without that
they are `literal-no-probe`, `no-probe` and `own-fanout-no-probe`. The product's defaults are `fast-uplink`. These begin
with views drawn evenly. Three more begin with the proxy in every view (A1.28) and gossip for 200 rounds before the load
comes: `aged-views` by the product's rule, `paper-views` by the paper's (A1.26) and without the probe,
`paper-views-probe` with it. At scale quick there are 100 clients per region and fewer points.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tidings.core.ids import NodeId
from tidings.core.span import Span
from tidings.protocols.fabrics.family import choose
from tidings.protocols.fabrics.pull_fabric import PullOptions
from tidings.protocols.kernel import Effects, Received
from tidings.protocols.services.publishing import Publish
from tidings.sim.build import Deployment
from tidings.sim.scenario import LinkTable, ProtocolTable, PublisherTable, RegionTable, Run, Scenario, Stream

if TYPE_CHECKING:
    from tidings.lab.study import Point, Row

NAMES = ("r0", "r1", "r2")
RATE = 864_000.0  # SP3: events per second and region
EVENT_BYTES = 10  # SP1
WINDOW = 0.005  # ours: a batch is 5 ms of load (decision 0005)
GIGABIT = 1e9  # SP3
LATENCY = {("r1", "r2"): 0.010}  # one way; all other pairs 35 ms
ADVERTISE = 0.1  # ours: so that regions subscribe to each other soon; in steady state it does not matter
FIRST_BATCHES = 0.01  # simulated seconds: of load long before the drivers, so that there is something to subscribe to
DRIVEN = 0.7  # seconds later the drivers begin, and all subscriptions are there
SETTLED = 0.3  # SP3: measured from 300 ms on
STEADY = DRIVEN + SETTLED
GRACE = 0.3  # seconds in which a batch must be everywhere before it counts as unfinished
FEWEST = 1024  # rows of Recv, however small the load; as a scenario's
CLIENTS = {"quick": 100, "full": 1000}
MEASURED = {"quick": 0.6, "full": 0.8}  # simulated seconds
GOSSIP = 0.1  # seconds between rounds before the load, where views grow old
ROUNDS = {"quick": 50, "full": 200}  # of them


class ProtocolReading(NamedTuple):
    """What the paper leaves open, or we do differently."""

    uplink: float = 10.0  # of the proxy, in clients' uplinks
    own: int | None = None  # fanout of the proxy; None: as the clients'
    probe: bool = True
    merge: Literal["swap", "paper"] = "swap"
    aged: bool = False  # views come from gossip, not from a draw
    fanouts: tuple[int, ...] = ()  # at which it is tried; all, if none are named
    shuffles: tuple[float, ...] = ()  # likewise


READINGS = {
    "literal": ProtocolReading(uplink=1.0),
    "fast-uplink": ProtocolReading(),
    "own-fanout": ProtocolReading(uplink=1.0, own=1),
    "literal-no-probe": ProtocolReading(uplink=1.0, probe=False, fanouts=(2, 4, 8)),
    "no-probe": ProtocolReading(
        probe=False, fanouts=(2, 4)
    ),  # the small one that long shuffle times hurt, the paper's best
    "own-fanout-no-probe": ProtocolReading(uplink=1.0, own=1, probe=False, fanouts=(2, 4, 8)),
    "aged-views": ProtocolReading(aged=True, fanouts=(4,), shuffles=(0.03,)),
    "paper-views": ProtocolReading(aged=True, merge="paper", probe=False, fanouts=(4,), shuffles=(0.03,)),
    "paper-views-probe": ProtocolReading(aged=True, merge="paper", fanouts=(4,), shuffles=(0.03,)),
}
PRODUCT = "fast-uplink"
NO_PROBE = "no-probe"
SHUFFLES = {"quick": (0.03, 0.3), "full": (0.03, 0.3)}
FANOUTS = {"quick": (2, 4, 8), "full": (2, 3, 4, 5, 8)}
SEEDS = {"quick": 2, "full": 5}
LOADS = tuple((1 + 2 * at) / 6 for at in range(6))  # SP4: 1/6, then 1/3 more each, to 11/6
LOAD_FANOUTS = {"quick": (4, 8), "full": (3, 4, 5, 8)}
LOAD_SEEDS = {"quick": 1, "full": 3}


def recv_rows(rate: float, seconds: float) -> int:
    """The size of Recv: so many seconds of a stream."""
    return max(FEWEST, round(rate * seconds))


def scenario(
    clients: int,
    *,
    fanout: int = 4,
    shuffle: float = 0.03,
    reading: str = PRODUCT,
    load: float = 1.0,
    regions: int = 3,
    rate: float = RATE,
    view: int = 20,
    recv_seconds: float = 0.5,
    driven: float = DRIVEN,
    seconds: float,
) -> Scenario:
    """SP3's set-up; latencies between regions stand for three coasts of the United States."""
    chosen = READINGS[reading]
    batch = max(1, round(rate * load * WINDOW))
    names = [f"r{at}" for at in range(regions)]
    return Scenario(
        scenario=Run(name=f"sprinkler-{regions * clients}", seconds=seconds),
        regions=tuple(
            RegionTable(
                name,
                replicas=3,
                clients=clients,
                proxy_uplink=chosen.uplink * GIGABIT,
                proxy_downlink=10 * GIGABIT,
                client_uplink=GIGABIT,
                client_downlink=GIGABIT,
            )
            for name in names
        ),
        links=tuple(LinkTable(a, b, LATENCY.get((a, b), 0.035)) for a, b in itertools.combinations(names, 2)),
        streams=tuple(Stream(f"s{at}", name, rows="counted") for at, name in enumerate(names)),
        publishers=tuple(
            PublisherTable(
                name=f"{role}-{name}",
                region=name,
                stream=f"s{at}",
                rate=batch / WINDOW,
                batch=batch,
                start=start,
                stop=stop,
            )
            for role, start, stop in (
                ("first", driven - DRIVEN, driven - DRIVEN + FIRST_BATCHES),
                ("driver", driven, math.inf),
            )
            for at, name in enumerate(names)
        ),
        protocol=ProtocolTable(advertise_period=ADVERTISE, warm_views=not chosen.aged),
        fabric=choose(
            "pull",
            gossip=GOSSIP if chosen.aged else 1.0,
            merge=chosen.merge,
            view=view,
            fanout=fanout,
            shuffle=shuffle,
            proxy_fanout=chosen.own or fanout,
            proxy_shuffle=shuffle,
            probe=PullOptions().probe if chosen.probe else 0.0,
            recv_rows=recv_rows(batch / WINDOW, recv_seconds),
        ),
    )


# --- what is measured -----------------------------------------------------------------------------------


class Meter:
    """When each batch arrived at its proxy, and when each client delivered it."""

    def __init__(self, deployment: Deployment, batch: int, batches: int) -> None:
        self.batch = batch
        self.clients = {node: at for at, node in enumerate(n for nodes in deployment.clients.values() for n in nodes)}
        self.streams = [stream.name for stream in deployment.streams]
        self.arrived = np.full((len(self.streams), batches), np.inf)
        self.delivered = {name: np.full((len(self.clients), batches), np.inf) for name in self.streams}
        self._next = {name: [0] * len(self.clients) for name in self.streams}
        deployment.world.observers[:] = [self]
        for at, region in enumerate(deployment.replicas):
            self._watch(deployment, deployment.membership(region).replicas[0], at)

    def _watch(self, deployment: Deployment, head: NodeId, stream: int) -> None:
        """Note when the head is first sent a batch; all are of one size, and numbered as they come."""
        host, arrived = deployment.world.hosts[head], self.arrived[stream]
        handle, seen = host.handle, set[tuple[str, int]]()

        def watched(now: float, input: Any) -> Effects:
            if type(input) is Received and type(input.message) is Publish:
                batch = input.message.publisher, input.message.first
                if batch not in seen:
                    arrived[len(seen)] = now
                    seen.add(batch)
            return handle(now, input)

        host.handle = watched

    def on_deliver(self, time: float, node: NodeId, incarnation: int, item: Any) -> None:
        """Receipts of clients."""
        at = self.clients.get(node)
        if at is not None and type(item) is Span:
            upto, seen = (item.hi - 1) // self.batch, self._next[item.stream]
            if upto > seen[at]:
                self.delivered[item.stream][at, seen[at] : upto] = time
                seen[at] = upto


def measure(point: Mapping[str, Any]) -> list[Row]:
    """One setting: a row per region of origin, each with the numbers of the whole."""
    driven = DRIVEN + point.get("rounds", 0) * GOSSIP
    steady = driven + SETTLED
    end = steady + point["seconds"]
    setting = {name: value for name, value in point.items() if name not in ("clients", "rounds", "seconds", "seed")}
    plan = scenario(point["clients"], driven=driven, seconds=end, **setting)
    deployment = Deployment(plan, point["seed"], record=True, check=False, trace=False)
    world = deployment.world
    world.start()
    batch = plan.publishers[0].batch
    meter = Meter(deployment, batch, int(end / WINDOW) + 2)
    world.run(driven)
    known = _in_degrees(deployment)
    world.run(steady)
    clients = [node for nodes in deployment.clients.values() for node in nodes]
    tails = [deployment.membership(region).tail for region in deployment.replicas]
    sent, by_tails = _sent(deployment, clients), _sent(deployment, tails)
    world.run(end)
    if world.failures:
        raise RuntimeError(world.failures[0].traceback)
    whole = {
        "in_degree_sd": float(known.std()),
        "unknown": int((known == 0).sum()),
        "uplink": (_sent(deployment, clients) - sent) / point["seconds"],
        "proxy_uplink": (_sent(deployment, tails) - by_tails) / point["seconds"],
    }
    return [{**row, **whole} for row in _rows(meter, steady, end, plan)]


def _sent(deployment: Deployment, nodes: Sequence[NodeId]) -> float:
    """Bytes that some nodes have sent, or have waiting for their uplinks; mean."""
    return sum(deployment.world.hosts[node].sent_bytes for node in nodes) / len(nodes)


def _in_degrees(deployment: Deployment) -> np.ndarray[Any, np.dtype[np.int64]]:
    """In how many views of clients each client stands."""
    nodes = [node for nodes in deployment.clients.values() for node in nodes]
    seen = Counter(peer for node in nodes for peer in deployment.pull_member(node).views.view)
    return np.array([seen[node] for node in nodes])


def _rows(meter: Meter, steady: float, end: float, plan: Scenario) -> list[Row]:
    load = sum(publisher.rate for publisher in plan.publishers if publisher.stop == math.inf)
    count = sum(int(((at >= steady) & (at < end)).sum()) for at in meter.delivered.values())
    throughput = count * meter.batch / len(meter.clients) / (end - steady)
    middle = (steady + end) / 2
    late = sum(int(((at >= middle) & (at < end)).sum()) for at in meter.delivered.values())
    kept = late * meter.batch / len(meter.clients) / (end - middle) / load
    rows = []
    for at, stream in enumerate(meter.streams):
        arrived = meter.arrived[at]
        known = np.isfinite(arrived)
        since = np.where(known, arrived, 0.0)
        latency = np.where(known, meter.delivered[stream].max(axis=0) - since, np.inf)
        due = (arrived >= steady - WINDOW) & (arrived < end - GRACE)
        taken = np.minimum(latency, end - since)[due]
        rows.append(
            {
                "origin": plan.regions[at].name,
                "offered": load,
                "throughput": throughput,
                "goodput": min(throughput, load),
                "kept": kept,
                "latency_mean": float(taken.mean()) if len(taken) else None,
                "latency_max": float(taken.max()) if len(taken) else None,
                "due": int(due.sum()),
                "unfinished": int((~np.isfinite(latency[due])).sum()),
            }
        )
    return rows


def _point(scale: str, **setting: Any) -> Point:
    rounds = {"rounds": ROUNDS[scale]} if READINGS[setting["reading"]].aged else {}
    return {"clients": CLIENTS[scale], "seconds": MEASURED[scale], **rounds, **setting}


def fanout_points(scale: str) -> list[Point]:
    """SP3: fanout x shuffle time x reading x seed."""
    return [
        _point(scale, load=1.0, fanout=fanout, shuffle=shuffle, reading=reading, seed=seed)
        for fanout in sorted(FANOUTS[scale], reverse=True)
        for shuffle in SHUFFLES[scale]
        for reading, chosen in READINGS.items()
        if fanout in (chosen.fanouts or FANOUTS[scale]) and shuffle in (chosen.shuffles or SHUFFLES[scale])
        for seed in range(SEEDS[scale])
    ]


def load_points(scale: str) -> list[Point]:
    """SP4: load x fanout x seed, shuffle time 30 ms."""
    return [
        _point(scale, load=load, fanout=fanout, shuffle=0.03, reading=PRODUCT, seed=seed)
        for load in reversed(LOADS)
        for fanout in LOAD_FANOUTS[scale]
        for seed in range(LOAD_SEEDS[scale])
    ]
