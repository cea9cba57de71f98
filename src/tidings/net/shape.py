"""A wide-area network on one machine: latency, bandwidth, loss and cuts between regions, on the sending side.

A frame for another region waits in a `DelayLine` until it would have arrived there. Then it is given to the socket,
which takes next to no time on loopback. Frames between two nodes never overtake each other, as over TCP. Loss takes
whole frames of the protocols; a hello is not shaped. A cut destroys frames in flight, and frames that are sent until
it heals. Connections stay up, so the protocols have to detect the cut themselves.

Each process shapes what it sends, so two processes of a region have twice the bandwidth. Settings can change while
frames are in flight; those keep their time.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

import msgspec

from tidings.core.errors import BadInput
from tidings.core.ids import RegionId
from tidings.net.frames import Outgoing

DELAYED_BYTES = 256 << 20
"""Bytes on the way between two nodes; ours, because 10 Gb/s (SP3) times 100 ms is half of it."""


class ShapedPath(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How frames fare from one region to another. The zero value shapes nothing."""

    latency: float = 0.0  # seconds one way
    jitter: float = 0.0  # seconds: up to so much more, evenly drawn
    bandwidth: float = 0.0  # bits per second; 0: no limit
    loss: float = 0.0  # share of the frames

    def __post_init__(self) -> None:
        if min(self.latency, self.jitter, self.bandwidth, self.loss) < 0 or self.loss > 1:
            raise BadInput(f"{self}: no field is negative, and loss is a share")


CLEAR = ShapedPath()


class Way:
    """One direction between two regions, as it is now."""

    __slots__ = ("_rng", "cut", "cuts", "free", "path")

    def __init__(self, path: ShapedPath, rng: random.Random) -> None:
        self._rng = rng
        self.path = path
        self.cut = False
        self.cuts = 0  # what makes a frame on the way know that it was destroyed
        self.free = 0.0  # when the line has sent what was handed to it before

    @property
    def clear(self) -> bool:
        """Frames pass as if there were no way."""
        return not self.cut and self.path is CLEAR

    def lost(self) -> bool:
        """Whether the next frame is."""
        return self.cut or (self.path.loss > 0 and self._rng.random() < self.path.loss)

    def arrival(self, now: float, size: int) -> float:
        """When a frame that is sent now will have arrived."""
        path = self.path
        if path.bandwidth:
            self.free = now = max(now, self.free) + 8 * size / path.bandwidth
        return now + path.latency + (self._rng.random() * path.jitter if path.jitter else 0.0)


class Wan:
    """The ways between all regions, inside each too; those nobody has set are clear."""

    def __init__(self, seed: int | str = 0) -> None:
        self._rng = random.Random(f"{seed}/wan")
        self._ways: dict[tuple[RegionId, RegionId], Way] = {}

    def way(self, a: RegionId, b: RegionId) -> Way:
        """The way from a to b."""
        way = self._ways.get((a, b))
        if way is None:
            way = self._ways[a, b] = Way(CLEAR, self._rng)
        return way

    def connect(self, a: RegionId, b: RegionId, path: ShapedPath, *, one_way: bool = False) -> None:
        """Set the path between two regions."""
        for way in self._both(a, b, one_way):
            way.path = CLEAR if path == CLEAR else path

    def impair(self, a: RegionId, b: RegionId, *, one_way: bool = False, **changes: Any) -> None:
        """Change fields of a path: latency, jitter, bandwidth, loss."""
        for way in self._both(a, b, one_way):
            fields = msgspec.structs.asdict(way.path) | changes
            try:
                path = msgspec.convert(fields, ShapedPath, strict=False)
            except msgspec.ValidationError as error:
                raise BadInput(f"path {a}-{b}: {error}") from None
            way.path = CLEAR if path == CLEAR else path

    def cut(self, a: RegionId, b: RegionId, *, one_way: bool = False) -> None:
        """Let nothing pass until `heal`."""
        for way in self._both(a, b, one_way):
            way.cut = True
            way.cuts += 1

    def heal(self, a: RegionId, b: RegionId) -> None:
        """End a cut; latency and the rest stay."""
        for way in self._both(a, b, False):
            way.cut = False

    def heal_all(self) -> None:
        """End all cuts."""
        for way in self._ways.values():
            way.cut = False

    def cuts(self) -> list[tuple[RegionId, RegionId]]:
        """The ways that are cut."""
        return sorted(pair for pair, way in self._ways.items() if way.cut)

    def show(self) -> dict[str, dict[str, Any]]:
        """The ways that are not clear."""
        named = sorted((f"{a}-{b}", way) for (a, b), way in self._ways.items() if not way.clear)
        return {name: {**msgspec.structs.asdict(way.path), "cut": way.cut} for name, way in named}

    def _both(self, a: RegionId, b: RegionId, one_way: bool) -> list[Way]:
        return [self.way(a, b)] if one_way or a == b else [self.way(a, b), self.way(b, a)]


class DelayLine:
    """What is on the way from one node to another."""

    __slots__ = ("_bytes", "_counters", "_forward", "_last", "_limit", "_loop", "_queue", "_timer", "_way")

    def __init__(
        self,
        way: Way,
        forward: Callable[[Outgoing], object],
        counters: MutableMapping[str, float],
        limit: int = DELAYED_BYTES,
    ) -> None:
        self._way = way
        self._forward = forward
        self._counters = counters
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, int, Outgoing]] = deque()  # (arrival, cuts at departure, frame)
        self._bytes = 0
        self._last = 0.0  # the latest arrival: nothing overtakes it
        self._timer: asyncio.TimerHandle | None = None

    def send(self, outgoing: Outgoing) -> None:
        """Let a frame go its way."""
        way = self._way
        if way.path is CLEAR and not way.cut and not self._queue:
            self._forward(outgoing)
        elif way.lost():
            self._counters["shape_lost"] += 1
        elif self._bytes + outgoing.size > self._limit:
            self._counters["shape_full"] += 1
        else:
            self._last = max(self._last, way.arrival(self._loop.time(), outgoing.size))
            self._queue.append((self._last, way.cuts, outgoing))
            self._bytes += outgoing.size
            if self._timer is None:
                self._timer = self._loop.call_at(self._last, self._arrive)

    def close(self) -> None:
        """Destroy what is on the way."""
        self._queue.clear()
        self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arrive(self) -> None:
        now = self._loop.time()
        queue, self._timer = self._queue, None
        while queue and queue[0][0] <= now:
            _, cuts, outgoing = queue.popleft()
            self._bytes -= outgoing.size
            if cuts == self._way.cuts:
                self._forward(outgoing)
            else:
                self._counters["shape_lost"] += 1
        if queue:
            self._timer = self._loop.call_at(queue[0][0], self._arrive)


def us(regions: list[RegionId], seed: int | str = 0) -> Wan:
    """Up to three regions on the coasts of the United States (SP3 names them; its figure alone has the latencies).

    Ours: 35 ms one way coast to coast, 10 ms between the two regions of one coast, 10 Gb/s (SP3).
    """
    if len(regions) > 3 or len(set(regions)) < len(regions):
        raise BadInput(f"the preset 'us' has three regions, not {regions}")
    wan = Wan(seed)
    for at, a in enumerate(regions):
        for b in regions[at + 1 :]:
            latency = 0.035 if at == 0 else 0.010
            wan.connect(a, b, ShapedPath(latency=latency, jitter=latency / 20, bandwidth=10e9))
    return wan


PRESETS: dict[str, Callable[[list[RegionId]], Wan]] = {"us": us}
