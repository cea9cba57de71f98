"""The deterministic driver: many machines, one queue of future events, no clock but its own.

`World.run` takes entries from the queue in exact order of time, hands each to its machine and carries out the effects:
a `Send` becomes an entry at the receiver (network.py), a `SetTimer` one at the node itself, a `Persist` goes to the
disk (disk.py), `Deliver` and `Report` to the observers. All randomness is drawn from generators seeded with strings
derived from the seed. The same seed and script give the same run, whatever PYTHONHASHSEED; ``trace_hash`` proves it.

An entry of the queue is (time, target, input, tag). tag 0: handle it now. tag > 0: a message of that many bytes has
reached a node, and passes its downlink and its processor first. tag < 0: a timer of the node's incarnation -tag alone,
which a crash removes. A crashed or paused node has another ``handle``, which drops or keeps its inputs, so the loop
need not ask which nodes are up.

There are two loops with one meaning. `_watch` checks invariants, hashes and records every step. `_race` does none of it
and carries the common effects out inline, because at 3,000 nodes most of the time would go into calls per effect.
"""

from __future__ import annotations

import gc
import hashlib
import math
import random
import traceback
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from tidings.core.ids import NodeId, RegionId
from tidings.protocols.kernel import (
    NOTHING,
    Command,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Machine,
    Message,
    Persist,
    Persisted,
    Received,
    Report,
    Send,
    SendAll,
    SetTimer,
    Time,
    Value,
)
from tidings.sim.disk import DiskModel, SimDisk
from tidings.sim.network import Network, Port, ServiceTimes, SimPath
from tidings.sim.queue import TIME, WIDTH, Wheel

Factory: TypeAlias = Callable[[list[Any], int, random.Random], Machine]
"""(durable records, incarnation, generator) -> the machine of a node's new life."""

INSIDE = SimPath(latency=0.001)  # SP3: 1 ms one way inside a region
BETWEEN = SimPath(latency=0.035)  # ours, because half a US coast-to-coast round trip of 70 ms; scenarios set their own
INBOX = 10_000
"""Messages a paused node can hold; ours, because that is some MB of socket buffers."""


class Started(Command, frozen=True, gc=False):
    """What observers see as the input of a node's first step."""

    incarnation: int
    records: int


class NodeFailure(Value, frozen=True, gc=False):
    """A machine raised, or its check did: the run ends there."""

    node: NodeId
    time: float
    input: Any
    traceback: str


class Halt(Exception):
    """Leaves the loop after a failure."""


class SimHost(Port):
    """A node: its place in the network, its disk, its clock, and the machine of its current life."""

    __slots__ = (
        "delays",
        "disk",
        "factory",
        "handle",
        "inbox",
        "incarnation",
        "life",
        "machine",
        "offset",
        "rate",
        "region_name",
        "removed",
        "wake_at",
    )

    machine: Machine
    handle: Callable[[float, Any], Effects]

    def __init__(
        self,
        name: NodeId,
        region_name: RegionId,
        factory: Factory,
        clock: tuple[float, float],
        region: int,
        uplink: float | None,
        downlink: float | None,
        service: ServiceTimes | None,
    ) -> None:
        super().__init__(name, region, uplink, downlink, service)
        self.factory = factory
        self.region_name = region_name
        self.delays: list[float | None] = []  # this region's row of the network's table
        self.disk: SimDisk | None = None
        self.offset, self.rate = clock
        self.incarnation = 0
        self.life = 0  # -incarnation while up, 0 while down
        self.removed = False
        self.wake_at = 0.0  # end of a pause; 0 while awake
        self.inbox: deque[Input] = deque()

    def clock(self, now: float) -> Time:
        """What the node's own clock shows."""
        return self.offset + self.rate * now

    def bind(self) -> None:
        """Let inputs go straight to the machine, past a skewed clock only if there is one."""
        handle = self.machine.handle
        if self.rate == 1.0 and self.offset == 0.0:
            self.handle = handle
        else:
            self.handle = lambda now, input: handle(self.offset + self.rate * now, input)


class Aside:
    """A target in the queue that is no node: scripted actions, ends of syncs, destroyed messages."""

    __slots__ = ("do", "world")

    def __init__(self, world: World, do: Callable[[float, Any], None]) -> None:
        self.world = world
        self.do = do

    def handle(self, now: float, input: Any) -> Effects:
        """Do it, and take back that the loop counts it as a protocol event."""
        self.world.protocol_events -= 1
        self.do(now, input)
        return NOTHING


class World:
    """Nodes, the network and the disks between them, and everything that happens to them."""

    def __init__(
        self,
        seed: int | str,
        *,
        record: bool = True,
        check: bool = True,
        trace: bool = True,
        inside: SimPath = INSIDE,
        between: SimPath = BETWEEN,
        lose_in_flight: bool = True,
        inbox: int = INBOX,
        width: float = WIDTH,
    ) -> None:
        self.seed = seed
        self.now = 0.0
        self.hosts: dict[NodeId, SimHost] = {}
        self.observers: list[Any] = []
        self.reports: dict[str, float] = {}
        self.failures: list[NodeFailure] = []
        self.fault_counts: Counter[str] = Counter()
        self.protocol_events = 0
        self.queue = Wheel(width)
        self.network = Network(
            self.queue,
            random.Random(f"{seed}/network"),
            self.hosts,
            self.fault_counts,
            inside=inside,
            between=between,
            void=Aside(self, lambda now, input: None),
            lose_in_flight=lose_in_flight,
        )
        self._record = record
        self._check = check
        self._trace = TraceHash() if trace else None
        self._inbox = inbox
        self._running = False  # nodes added from now on start at once
        self._looping = False
        self._script = Aside(self, self._act)
        self._on_step: list[Callable[[float, NodeId, int, Any, Effects], None]] = []
        self._on_deliver: list[Callable[[float, NodeId, int, Any], None]] = []
        self._on_report: list[Callable[[float, NodeId, str, float], None]] = []
        self._on_durable: list[Callable[[float, NodeId, Sequence[Any]], None]] = []

    # --- nodes ------------------------------------------------------------------------------------------

    def add_node(
        self,
        name: NodeId,
        region: RegionId,
        factory: Factory,
        *,
        uplink: float | None = None,
        downlink: float | None = None,
        service: ServiceTimes | None = None,
        clock_offset: float = 0.0,
        clock_drift: float = 0.0,
        disk: DiskModel | None = None,
    ) -> SimHost:
        """Add a node (bandwidths in bits/s; no disk: memory only). It starts with `start`, or at once after that."""
        if name in self.hosts:
            raise ValueError(f"node {name!r} exists already: take another name, or restart it")
        clock = (clock_offset, 1.0 + clock_drift)
        number = self.network.region(region)
        host = SimHost(name, region, factory, clock, number, uplink, downlink, service)
        host.delays = self.network.delays[number]
        host.handle = self._swallow
        if disk is not None:
            drawn = random.Random(f"{self.seed}/{name}/disk")
            host.disk = SimDisk(disk, drawn, self.queue, partial(Aside, self), partial(self._durable, host))
        self.hosts[name] = host
        if self._running:
            self.listen()
            self._boot(host)
        return host

    def start(self) -> None:
        """Start all nodes, in the order they were added."""
        self._running = True
        self.listen()
        for host in list(self.hosts.values()):
            if not host.incarnation and not host.removed and not self.failures:
                self._boot(host)

    def inject(self, at: float, node: NodeId, command: Command) -> None:
        """Hand a command to a node at a time (now, if that is past)."""
        self.queue.push(max(at, self.now), self.hosts[node], command, 0)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something scripted at a time (now, if that is past)."""
        self.queue.push(max(time, self.now), self._script, action, 0)

    def _act(self, now: float, action: Callable[[], None]) -> None:
        self.now = now
        action()

    # --- what can happen to them ------------------------------------------------------------------------

    def crash(self, node: NodeId, *, lose_disk: bool = False) -> None:
        """Stop a node; what its disk has synced survives, unless the disk is lost too."""
        if self._stop(self.hosts[node], lose_disk):
            self.fault_counts["crash"] += 1

    def restart(self, node: NodeId) -> None:
        """Start a crashed node anew from what is durable."""
        host = self.hosts[node]
        if not host.life and not host.removed:
            self.fault_counts["restart"] += 1
            self._boot(host)

    def remove(self, node: NodeId) -> None:
        """Stop a node for good."""
        host = self.hosts[node]
        if not host.removed:
            host.removed = True
            self._stop(host, lose_disk=True)
            self.fault_counts["remove"] += 1

    def pause(self, node: NodeId, seconds: float) -> None:
        """Let a node sleep; inputs wait (messages up to a bound) and are handled in order when it wakes."""
        host = self.hosts[node]
        if host.life:
            self.fault_counts["pause"] += 1
            host.wake_at = max(host.wake_at, self.now + seconds)
            host.handle = partial(self._keep, host)
            self.at(host.wake_at, partial(self._wake, host, host.incarnation))

    def set_clock(self, node: NodeId, offset: float = 0.0, drift: float = 0.0) -> None:
        """Skew a node's clock: it shows offset + (1 + drift) * simulated time. Timers already set are not moved."""
        host = self.hosts[node]
        host.offset, host.rate = offset, 1.0 + drift
        self.fault_counts["clock"] += bool(offset or drift)
        if host.life and not host.wake_at:
            host.bind()

    def slow_disk(self, node: NodeId, factor: float) -> None:
        """Multiply the time of the syncs that begin from now on; 1 heals."""
        disk = self.hosts[node].disk
        if disk is not None:
            disk.set_slow(self.now, factor)
            self.fault_counts["slow_disk"] += factor != 1.0

    def full_disk(self, node: NodeId, full: bool) -> None:
        """Let no sync begin while full."""
        disk = self.hosts[node].disk
        if disk is not None:
            disk.set_full(self.now, full)
            self.fault_counts["full_disk"] += full

    def connect(self, a: RegionId, b: RegionId, path: SimPath, *, one_way: bool = False) -> None:
        """Set the path between two regions, or inside one."""
        self.network.connect(self.now, a, b, path, one_way=one_way)

    def impair(self, a: RegionId, b: RegionId, *, one_way: bool = False, **changes: Any) -> None:
        """Change fields of a path for a while; None gives a field back its own value."""
        self.network.impair(self.now, a, b, one_way=one_way, **changes)

    def cut(self, a: RegionId, b: RegionId, *, one_way: bool = False) -> None:
        """Cut the link between two regions (or only from a to b)."""
        self.network.cut(self.now, a, b, one_way=one_way)
        self.fault_counts["cut"] += 1

    def heal(self, a: RegionId, b: RegionId) -> None:
        """Mend the link between two regions."""
        self.network.heal(self.now, a, b)
        self.fault_counts["heal"] += 1

    def partition(self, left: Collection[NodeId], right: Collection[NodeId], *, one_way: bool = False) -> list[int]:
        """Keep two sets of nodes apart (or only left from reaching right); `rejoin` with what is returned."""
        self.fault_counts["one_way" if one_way else "partition"] += 1
        blocks = [self.network.block(self.now, left, right)]
        if not one_way:
            blocks.append(self.network.block(self.now, right, left))
        return blocks

    def rejoin(self, blocks: Iterable[int]) -> None:
        """End a partition."""
        for number in blocks:
            self.network.unblock(self.now, number)
        self.fault_counts["rejoin"] += 1

    def _stop(self, host: SimHost, lose_disk: bool) -> bool:
        was_up = host.life != 0
        host.life = 0
        host.wake_at = 0.0
        host.inbox.clear()
        host.handle = self._swallow
        if host.disk is not None and (was_up or lose_disk):
            self.fault_counts["unsynced_lost"] += host.disk.waiting
            survivors = host.disk.crash(lose_all=lose_disk)
            for notice in self._on_durable:
                notice(self.now, host.name, survivors)
        return was_up

    def _boot(self, host: SimHost) -> None:
        host.incarnation += 1
        host.life = -host.incarnation
        host.idle()
        durable = host.disk.durable() if host.disk is not None else []
        started = Started(host.incarnation, len(durable))
        try:
            rng = random.Random(f"{self.seed}/{host.name}/{host.incarnation}")
            host.machine = host.factory(durable, host.incarnation, rng)
            host.bind()
            self._finish(host, self.now, started, host.machine.start(host.clock(self.now)))
        except Exception:
            self._fail(host, self.now, started)

    def _swallow(self, now: float, input: Any) -> Effects:
        """The handle of a node that is down."""
        self.protocol_events -= 1
        if type(input) is Received:
            self.network.dropped["down"] += 1
        return NOTHING

    def _keep(self, host: SimHost, now: float, input: Any) -> Effects:
        """The handle of a node that is paused."""
        self.protocol_events -= 1
        if type(input) is Received and len(host.inbox) >= self._inbox:
            self.network.dropped["inbox"] += 1
        else:
            host.inbox.append(input)
        return NOTHING

    def _wake(self, host: SimHost, incarnation: int) -> None:
        if host.life == -incarnation and 0.0 < host.wake_at <= self.now:
            host.wake_at = 0.0
            host.bind()
            while host.inbox:
                self.protocol_events += 1
                self._step(host, self.now, host.inbox.popleft())

    # --- the loops --------------------------------------------------------------------------------------

    def run(self, until: float) -> None:
        """Handle everything before ``until``; stops early at a failure. Python's garbage collector is off meanwhile."""
        collecting = gc.isenabled()
        gc.disable()
        self.listen()
        self._looping = True
        try:
            if not self.failures:
                if self._check or self._trace is not None or self._on_step:
                    self._watch(until)
                else:
                    self._race(until)
        except Halt:
            pass
        finally:
            self._looping = False
            if collecting:
                gc.enable()
        self.now = self.failures[0].time if self.failures else max(self.now, until)

    def listen(self) -> None:
        """Note which observers want which notices."""
        for hook in ("on_step", "on_deliver", "on_report", "on_durable"):
            hooks = [getattr(each, hook) for each in self.observers if hasattr(each, hook)]
            setattr(self, f"_{hook}", hooks if self._record else [])

    def _watch(self, until: float) -> None:
        """The loop with checks, hash and records."""
        while (bucket := self.queue.open(until)) is not None:
            for now, host, input, tag in bucket:
                if tag > 0:
                    if host.life and (ready := host.admit(now, tag, input.message)) > now:
                        self.queue.push(ready, host, input, host.life)
                        continue
                elif tag and tag != host.life:
                    continue
                self.protocol_events += 1
                if type(host) is SimHost:
                    self._step(host, now, input)
                else:
                    host.handle(now, input)

    def _race(self, until: float) -> None:  # noqa: PLR0915 - long, because calls are what it saves
        """The loop without: `_step`, `_carry`, `_send`, `Port.admit` and `Wheel.push` for the common case, in place."""
        queue, network, find, carry = self.queue, self.network, self.hosts.get, self._carry
        far, width = queue.far, queue.width
        unseen, unreported, reports = not self._on_deliver, not self._on_report, self.reports
        now, host, input = self.now, None, None
        try:
            while (bucket := queue.open(until)) is not None:
                edge, skipped = queue.edge, 0
                low, high, put = math.inf, math.inf, bucket.append  # the bucket that the last arrival went to
                for now, host, input, tag in bucket:
                    if tag:
                        if tag < 0:
                            if tag != host.life:
                                skipped += 1
                                continue
                        elif tag < host.quick and host.busy <= now:
                            host.down_free = at = now + tag * host.down
                            host.busy = at + host.per_message
                        elif host.life and (at := host.admit(now, tag, input.message)) > now:
                            skipped += 1
                            queue.push(at, host, input, host.life)
                            continue
                    for effect in host.handle(now, input):
                        kind = type(effect)
                        if kind is SendAll and (effect.to is host.to or network.meet(host, effect.to)):
                            peers = host.peers
                        elif kind is Send and (peer := find(effect.to)) is not None:
                            peers = (peer,)
                        elif kind is SetTimer and (at := now + effect.delay / host.rate) >= edge:
                            far[at // width].append((at, host, Expired(effect.timer), host.life))
                            continue
                        elif kind is Deliver and unseen:
                            continue
                        elif kind is Report and unreported:
                            reports[effect.name] = reports.get(effect.name, 0.0) + effect.value
                            continue
                        else:
                            carry(host, now, effect)
                            continue
                        message = effect.message
                        size, received = message.wire_size, Received(host.name, message)
                        delays, up = host.delays, size * host.up
                        at = host.up_free if up and host.up_free > now else now
                        for peer in peers:
                            at += up
                            if (delay := delays[peer.region]) is None:
                                network.route(now, at, host, peer, received, size)
                                continue
                            arrive = at + delay
                            entry = (arrive, peer, received, size if peer.inbound else 0)
                            if low <= arrive < high:
                                put(entry)
                            elif arrive < edge:
                                insort(bucket, entry, key=TIME)
                            else:
                                number = arrive // width
                                low, high, put = number * width, (number + 1.0) * width, far[number].append
                                put(entry)
                        if up:
                            host.up_free = at
                            host.sent_bytes += size * len(peers)
                self.protocol_events += len(bucket) - skipped
        except Exception as error:
            if type(error) is Halt or type(host) is not SimHost:
                raise
            self._fail(host, now, input)

    def _step(self, host: SimHost, now: float, input: Any) -> None:
        """One input, with everything that may watch it."""
        if host.wake_at or not host.life:
            host.handle(now, input)
            return
        try:
            self._finish(host, now, input, host.handle(now, input))
        except Exception:
            self._fail(host, now, input)

    def _finish(self, host: SimHost, now: float, input: Any, effects: Effects) -> None:
        self.now = now
        if self._check:
            host.machine.check()
        if self._trace is not None:
            self._trace.add(now, host.name, input, effects)
        for notice in self._on_step:
            notice(now, host.name, host.incarnation, input, effects)
        for effect in effects:
            self._carry(host, now, effect)

    def _fail(self, host: SimHost, now: float, input: Any) -> None:
        self.failures.append(NodeFailure(host.name, now, input, traceback.format_exc()))
        if self._looping:
            raise Halt

    # --- effects ----------------------------------------------------------------------------------------

    def _carry(self, host: SimHost, now: float, effect: Effect) -> None:
        """Carry out one effect."""
        self.now = now  # observers may look at it
        if isinstance(effect, Send):
            self._send(host, now, effect.to, effect.message)
        elif isinstance(effect, SendAll):
            for to in effect.to:
                self._send(host, now, to, effect.message)
        elif isinstance(effect, SetTimer):
            if effect.delay < 0.0:
                raise ValueError(f"{effect} would be in the past")
            self.queue.push(now + effect.delay / host.rate, host, Expired(effect.timer), host.life)
        elif isinstance(effect, Persist):
            if host.disk is None:
                self.queue.push(now, host, Persisted(effect.token), host.life)
            else:
                host.disk.write(now, effect.record, effect.token)
        elif isinstance(effect, Deliver):
            for deliver in self._on_deliver:
                deliver(now, host.name, host.incarnation, effect.item)
        elif isinstance(effect, Report):
            self.reports[effect.name] = self.reports.get(effect.name, 0.0) + effect.value
            for report in self._on_report:
                report(now, host.name, effect.name, effect.value)
        else:
            raise TypeError(f"{effect!r} is no effect: a machine returns what kernel.Effect lists")

    def _send(self, host: SimHost, now: float, to: NodeId, message: Message) -> None:
        peer = self.hosts.get(to)
        if peer is None:
            self.network.dropped["unknown"] += 1
            return
        size = message.wire_size
        depart = host.depart(now, size) if host.up else now
        delay = host.delays[peer.region]
        received = Received(host.name, message)
        if delay is None:
            self.network.route(now, depart, host, peer, received, size)
        else:
            self.queue.push(depart + delay, peer, received, size if peer.inbound else 0)

    def _durable(self, host: SimHost, now: float, token: int, records: Sequence[Any]) -> None:
        """A sync has ended: tell the observers, then the node."""
        self.now = now
        for notice in self._on_durable:
            notice(now, host.name, records)
        self.protocol_events += 1
        self._step(host, now, Persisted(token))

    @property
    def trace_hash(self) -> str:
        """A digest of every step so far; empty if tracing is off."""
        return "" if self._trace is None else self._trace.hexdigest()


class TraceHash:
    """A running hash over (time, node, input, effects) that no address and no hash seed can reach.

    Values are encoded field by field with their type names; an object that is no plain data must have a stable
    ``digest`` (rows of a span do).
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._encode = msgspec.msgpack.Encoder(enc_hook=_digest, order="deterministic").encode

    def add(self, now: float, node: NodeId, input: Any, effects: Effects) -> None:
        """Take in one step."""
        names = [_type_names(input), *map(_type_names, effects)]
        self._hash.update(self._encode((now, node, names, input, effects)))

    def hexdigest(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()


def _type_names(value: Any) -> str:
    """The names of a value's type and of the type of what it carries."""
    kind = type(value)
    if kind is Send or kind is SendAll or kind is Received:
        return f"{kind.__name__} {type(value.message).__name__}"
    if kind is SetTimer or kind is Expired:
        return f"{kind.__name__} {type(value.timer).__name__}"
    if kind is Deliver:
        return f"{kind.__name__} {type(value.item).__name__}"
    if kind is Persist:
        return f"{kind.__name__} {type(value.record).__name__}"
    return kind.__name__


def _digest(value: Any) -> bytes:
    digest = getattr(value, "digest", None)
    if not isinstance(digest, bytes):
        raise TypeError(f"{type(value).__name__} cannot be hashed in a trace: give it a stable `digest` of type bytes")
    return digest
