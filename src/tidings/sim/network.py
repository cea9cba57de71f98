"""The network between two simulated nodes: an uplink, a path between two regions, a downlink, a processor.

A message leaves when the sender's uplink has sent the earlier ones (depart = max(now, free) + size / rate), crosses the
path in a drawn latency, and waits for the receiver's downlink and then for its processor. Both are first come, first
served, and are computed when the message arrives. A path may lose, double or delay a share of the messages, be limited
in bandwidth, be cut, or be closed to some pairs of nodes.

Order: messages between the same two nodes arrive in the order in which they were sent, whatever the latency draws,
except those that the reordering or duplication fault picked. While the latency of a path is random, or was changed with
older messages still in flight, the last arrival per pair is the floor of the next. Otherwise constant latency is
enough, and such a plain path is one number in ``delays``: all that the world's inner loop looks at.

Cutting a path, or closing it to a pair, destroys the messages in flight there (``lose_in_flight``). Messages that have
reached the receiver's downlink arrive. A crash of the sender does not affect messages that it has sent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec

from tidings.core.ids import NodeId, RegionId
from tidings.protocols.kernel import Message, Received
from tidings.sim.queue import Entry, Wheel

CUT_THROUGH = 2e-6
"""Seconds; ours, because an arrival that costs less than this is not worth an entry of its own in the queue."""
PARETO_SHAPE = 1.5
"""Ours, because between 1 and 2 a Pareto tail has a mean but no variance: rare delays of many times the scale."""
LONGEST = 1.0
"""Seconds a heavy tail adds at most; ours, because a message that is later than this was lost, and what follows it
between the same two nodes has to wait for it."""
TRACKED_PAIRS = 65_536
"""Ours, because pairs whose last arrival is over can be forgotten, and it should not be looked for at every message."""

Shape: TypeAlias = Literal["constant", "normal", "lognormal", "pareto"]


class SimPath(msgspec.Struct, frozen=True, kw_only=True):
    """How messages fare from one region to another, or inside one."""

    latency: float  # seconds one way; the mean (normal) or the least (lognormal, pareto)
    shape: Shape = "constant"
    spread: float = 0.0  # seconds: standard deviation (normal), or the scale of what a heavy tail adds
    floor: float = 20e-6  # seconds; ours, because no draw may beat a cable and a switch
    bandwidth: float | None = None  # bits per second, shared by all who send this way
    loss: float = 0.0  # share of the messages
    duplication: float = 0.0
    reordering: float = 0.0
    reorder_delay: float = 0.01  # mean seconds a reordered or doubled message is late

    @property
    def plain(self) -> bool:
        """Constant latency and nothing else."""
        return self.shape == "constant" and not (self.bandwidth or self.loss or self.duplication or self.reordering)


class ServiceTimes(msgspec.Struct, frozen=True):
    """What a message costs a node's processor, in seconds. Timers and commands cost nothing and do not wait."""

    per_message: float = 0.0
    per_event: float = 0.0
    per_batch: float = 0.0  # more, if it carries events
    per_wake: float = 0.0  # more, if it carries events and the node had nothing to do


class Processors:
    """Processors that several nodes share, as the processes of one machine do: the busy ones get equal shares.

    ``others`` is how many of them other load keeps busy.
    """

    def __init__(self, count: int, others: float = 0.0) -> None:
        self.count = count
        self.others = others
        self.ports: list[Port] = []

    def stretch(self, now: float, port: Port) -> float:
        """How many times longer than alone something takes that this node begins now."""
        busy = sum([each.busy > now for each in self.ports if each is not port])
        return max(1.0, (busy + 1 + self.others) / self.count)


@cache
def _seconds_per_byte(bits_per_second: float | None) -> float:
    """One object for all nodes of the same speed: at thousands of nodes cache misses are what the time goes into."""
    return 8.0 / bits_per_second if bits_per_second else 0.0


class Port:
    """A node as the network sees it. Rates are seconds per byte, 0 for unlimited; ``*_free`` and ``busy`` are times."""

    __slots__ = (
        "busy",
        "down",
        "down_free",
        "inbound",
        "name",
        "peers",
        "per_batch",
        "per_event",
        "per_message",
        "per_wake",
        "processors",
        "quick",
        "region",
        "sent_bytes",
        "to",
        "up",
        "up_free",
        "weighs",
    )

    def __init__(
        self, name: NodeId, region: int, uplink: float | None, downlink: float | None, service: ServiceTimes | None
    ) -> None:
        service = service or ServiceTimes()
        self.name = name
        self.region = region
        self.up = _seconds_per_byte(uplink)
        self.down = _seconds_per_byte(downlink)
        self.per_message = service.per_message
        self.per_event = service.per_event
        self.per_batch = service.per_batch
        self.per_wake = service.per_wake
        self.processors: Processors | None = None
        self.inbound = bool(self.down or service != ServiceTimes())
        # messages of fewer bytes pass an idle port at once; one byte short of the limit, so that rounding cannot matter
        room = CUT_THROUGH - self.per_message
        self.quick = 0 if room <= 0 else int(room / self.down) - 1 if self.down else 1 << 62
        self.weighs = bool(self.per_event or self.per_batch or self.per_wake)  # what a message carries
        if self.weighs:
            self.quick = min(self.quick, Message.wire_size + 1)  # what is larger may carry events
        self.sent_bytes = 0
        self.to: tuple[NodeId, ...] = ()  # whom the last message to several nodes went to: mostly the next one, too
        self.peers: tuple[Port, ...] = ()  # their ports
        self.idle()

    def share(self, processors: Processors) -> None:
        """From now on this node has no processor of its own."""
        processors.ports.append(self)
        self.processors = processors
        self.inbound = True
        self.quick = 0

    def idle(self) -> None:
        """Forget all backlog (a restart)."""
        self.up_free = self.down_free = self.busy = 0.0

    def depart(self, now: float, size: int) -> float:
        """Account for one message on the uplink; when its last byte has left."""
        self.sent_bytes += size
        self.up_free = max(now, self.up_free) + size * self.up
        return self.up_free

    def admit(self, now: float, size: int, message: Message) -> float:
        """Account for one arrival; when the machine may handle it (``now``: it cuts through)."""
        transmission = size * self.down
        service = self.per_message
        down_free, busy = self.down_free, self.busy
        idle = busy <= now  # the processor ends after the downlink, so both are
        if self.weighs and (events := message.events):
            service += self.per_batch + self.per_event * events + (self.per_wake if idle else 0.0)
        if self.processors is not None:
            service *= self.processors.stretch(now, self)
        self.down_free = down_free = (down_free if down_free > now else now) + transmission
        self.busy = busy = (busy if busy > down_free else down_free) + service
        return now if idle and transmission + service < CUT_THROUGH else busy


class SimLink:
    """The state of the path from one region to another."""

    __slots__ = ("base", "blocked", "changes", "cut", "free", "last", "path", "quiet_at")

    def __init__(self, path: SimPath) -> None:
        self.base = path
        self.changes: dict[str, Any] = {}  # faults laid over the base
        self.path = path
        self.cut = False
        self.blocked = False  # some pair of nodes is kept apart here
        self.free = 0.0
        self.last: dict[tuple[NodeId, NodeId], float] = {}  # last arrival by pair
        self.quiet_at = 0.0  # from then on nothing sent earlier is on the way


class Network:
    """All paths between all regions. ``delays[i][j]`` is the latency of a plain path, None if `route` must decide."""

    def __init__(
        self,
        queue: Wheel,
        rng: random.Random,
        ports: Mapping[NodeId, Port],
        faults: Counter[str],
        *,
        inside: SimPath,
        between: SimPath,
        void: object,
        lose_in_flight: bool = True,
    ) -> None:
        self.queue = queue
        self.rng = rng
        self.ports = ports
        self.faults = faults  # messages lost, doubled, reordered
        self.inside = inside
        self.between = between
        self.void = void  # where the queue's entries of destroyed messages are redirected to
        self.lose_in_flight = lose_in_flight
        self.dropped: Counter[str] = Counter()  # messages that vanished for another reason than the loss of a path
        self.regions: dict[RegionId, int] = {}
        self.links: list[list[SimLink]] = []
        self.delays: list[list[float | None]] = []
        self.blocks: dict[int, tuple[frozenset[NodeId], frozenset[NodeId]]] = {}  # who cannot reach whom
        self.block_number = 0

    # --- topology ---------------------------------------------------------------------------------------

    def region(self, name: RegionId) -> int:
        """The number of a region; an unknown one is added."""
        if name not in self.regions:
            new = self.regions[name] = len(self.regions)
            for row, delays in zip(self.links, self.delays, strict=True):
                row.append(SimLink(self.between))
                delays.append(None)
            self.links.append([SimLink(self.inside if at == new else self.between) for at in range(new + 1)])
            self.delays.append([None] * (new + 1))
            self._refresh_all(0.0)
        return self.regions[name]

    def connect(self, now: float, a: RegionId, b: RegionId, path: SimPath, *, one_way: bool = False) -> None:
        """Set the path from a to b (and back)."""
        for i, j in self._ways(a, b, one_way):
            self.links[i][j].base = path
            self._change(now, i, j)

    def impair(self, now: float, a: RegionId, b: RegionId, *, one_way: bool = False, **changes: Any) -> None:
        """Lay changed fields over the path from a to b (and back); a value of None takes a change away."""
        for i, j in self._ways(a, b, one_way):
            over = {**self.links[i][j].changes, **changes}
            self.links[i][j].changes = {field: value for field, value in over.items() if value is not None}
            self._change(now, i, j)

    def _ways(self, a: RegionId, b: RegionId, one_way: bool) -> list[tuple[int, int]]:
        i, j = self.region(a), self.region(b)
        return [(i, j)] if one_way or i == j else [(i, j), (j, i)]

    def _change(self, now: float, i: int, j: int) -> None:
        """Put a changed path into force without letting new messages overtake those on the way."""
        link = self.links[i][j]
        link.path = msgspec.structs.replace(link.base, **link.changes)
        for _, _, time, src, dst in self._in_flight(now):
            if src.region == i and dst.region == j:
                pair = (src.name, dst.name)
                link.last[pair] = max(time, link.last.get(pair, 0.0))
                link.quiet_at = max(time, link.quiet_at)
        self._refresh(i, j, now)

    def _refresh(self, i: int, j: int, now: float) -> None:
        link = self.links[i][j]
        settled = link.path.shape == "constant" and link.quiet_at <= now
        if settled:
            link.last.clear()
        plain = settled and link.path.plain and not link.cut and not link.blocked
        self.delays[i][j] = max(link.path.latency, link.path.floor) if plain else None

    def _refresh_all(self, now: float) -> None:
        for i, row in enumerate(self.links):
            for j in range(len(row)):
                self._refresh(i, j, now)

    # --- cuts and partitions ----------------------------------------------------------------------------

    def cut(self, now: float, a: RegionId, b: RegionId, *, one_way: bool = False) -> None:
        """Nothing passes from a to b (nor back) until `heal`."""
        ways = self._ways(a, b, one_way)
        for i, j in ways:
            self.links[i][j].cut = True
            self._refresh(i, j, now)
        self._destroy(now, lambda src, dst: (src.region, dst.region) in ways)

    def heal(self, now: float, a: RegionId, b: RegionId) -> None:
        """Undo `cut`, both ways."""
        for i, j in self._ways(a, b, False):
            self.links[i][j].cut = False
            self._refresh(i, j, now)

    def heal_all(self, now: float) -> None:
        """Mend every cut and end every partition."""
        for row in self.links:
            for link in row:
                link.cut = False
        self.blocks.clear()
        self._mark_blocked(now)

    def block(self, now: float, sources: Collection[NodeId], targets: Collection[NodeId]) -> int:
        """No source reaches a target until `unblock` with the number returned."""
        self.block_number += 1
        self.blocks[self.block_number] = (frozenset(sources), frozenset(targets))
        self._mark_blocked(now)
        self._destroy(now, lambda src, dst: self.blocked(src.name, dst.name))
        return self.block_number

    def unblock(self, now: float, number: int) -> None:
        """Undo one `block`; an unknown number is ignored."""
        self.blocks.pop(number, None)
        self._mark_blocked(now)

    def blocked(self, src: NodeId, dst: NodeId) -> bool:
        """Whether some partition keeps src from reaching dst."""
        return any(src in sources and dst in targets for sources, targets in self.blocks.values())

    def _mark_blocked(self, now: float) -> None:
        ways: set[tuple[int, int]] = set()
        for sources, targets in self.blocks.values():
            starts = {self.ports[name].region for name in sources if name in self.ports}
            ends = {self.ports[name].region for name in targets if name in self.ports}
            ways.update((i, j) for i in starts for j in ends)
        for i, row in enumerate(self.links):
            for j, link in enumerate(row):
                link.blocked = (i, j) in ways
        self._refresh_all(now)

    def _in_flight(self, now: float) -> Iterator[tuple[list[Entry], int, float, Port, Port]]:
        """Messages that have not arrived yet, with their place in the queue."""
        for bucket, at, (time, dst, input, tag) in self.queue.waiting():
            if time >= now and tag >= 0 and type(input) is Received and dst is not self.void:
                yield bucket, at, time, self.ports[input.src], dst

    def _destroy(self, now: float, hit: Callable[[Port, Port], bool]) -> None:
        if self.lose_in_flight:
            for bucket, at, time, src, dst in self._in_flight(now):
                if hit(src, dst):
                    bucket[at] = (time, self.void, None, 0)
                    self.dropped["cut"] += 1

    def meet(self, port: Port, to: tuple[NodeId, ...]) -> bool:
        """Look up whom a message goes to, once for all that go to the same nodes; False if somebody is unknown."""
        peers = tuple([self.ports[node] for node in to if node in self.ports])
        if known := len(peers) == len(to):
            port.to, port.peers = to, peers
        return known

    # --- the slow path of a message ---------------------------------------------------------------------

    def route(self, now: float, depart: float, src: Port, dst: Port, received: Received, size: int) -> None:
        """Carry a message over a path that is not plain; it left the uplink (or will) at ``depart``."""
        link = self.links[src.region][dst.region]
        path, rng = link.path, self.rng
        if link.cut or (link.blocked and self.blocked(src.name, dst.name)):
            self.dropped["cut"] += 1
            return
        if path.bandwidth:
            link.free = depart = max(depart, link.free) + size * 8.0 / path.bandwidth
        if path.loss and rng.random() < path.loss:
            self.faults["loss"] += 1
            return
        arrive = depart + self._latency(path)
        tag = size if dst.inbound else 0
        if path.duplication and rng.random() < path.duplication:
            self.faults["duplication"] += 1
            self.queue.push(arrive + rng.expovariate(1.0 / path.reorder_delay), dst, received, tag)
        if path.reordering and rng.random() < path.reordering:
            self.faults["reordering"] += 1
            arrive += rng.expovariate(1.0 / path.reorder_delay)
        elif path.shape != "constant":
            arrive = self._in_order(link, now, (src.name, dst.name), arrive)
        elif now < link.quiet_at:  # constant now, but not what is on the way
            arrive = max(arrive, link.last.get((src.name, dst.name), 0.0))
        elif link.last:
            self._refresh(src.region, dst.region, now)
        self.queue.push(arrive, dst, received, tag)

    def _latency(self, path: SimPath) -> float:
        latency = path.latency
        if path.shape == "normal":
            latency += self.rng.gauss(0.0, path.spread)
        elif path.shape == "lognormal":
            latency += path.spread * self.rng.lognormvariate(0.0, 1.0)
        elif path.shape == "pareto":
            latency += min(path.spread * (self.rng.paretovariate(PARETO_SHAPE) - 1.0), LONGEST)
        return max(latency, path.floor)

    def _in_order(self, link: SimLink, now: float, pair: tuple[NodeId, NodeId], arrive: float) -> float:
        """Not before the last arrival of the pair."""
        arrive = max(arrive, link.last.get(pair, 0.0))
        if len(link.last) >= TRACKED_PAIRS:
            link.last = {known: last for known, last in link.last.items() if last > now}
        link.last[pair] = arrive
        link.quiet_at = max(arrive, link.quiet_at)
        return arrive
