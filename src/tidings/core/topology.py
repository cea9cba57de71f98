"""Regions and the one-way latencies between them.

A value, checked once when it is made: every pair of regions has a latency, the same in both directions, and none is
negative. Inside a region the latency is that of the pair (r, r), zero unless given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from tidings.core.errors import BadInput
from tidings.core.ids import RegionId


class Topology:
    """Regions in a fixed order and a symmetric matrix of one-way latencies in seconds."""

    __slots__ = ("_seconds", "regions")

    def __init__(self, regions: Sequence[RegionId], links: Mapping[tuple[RegionId, RegionId], float]) -> None:
        """Links may be given in one direction or, with the same latency, in both."""
        self.regions = tuple(regions)
        if not self.regions or len(set(self.regions)) < len(self.regions):
            raise BadInput(f"a topology needs distinct regions, at least one, not {list(self.regions)}")
        self._seconds: dict[tuple[RegionId, RegionId], float] = {}
        for (a, b), seconds in links.items():
            if a not in self.regions or b not in self.regions:
                raise BadInput(f"link {a}-{b} names a region that is not in {list(self.regions)}")
            if not (isfinite(seconds) and seconds >= 0):
                raise BadInput(f"link {a}-{b}: a latency is a finite number of seconds >= 0, not {seconds}")
            if self._seconds.setdefault((a, b), seconds) != seconds:
                raise BadInput(f"link {a}-{b} has latency {seconds} one way and {self._seconds[a, b]} the other")
            self._seconds[b, a] = seconds
        for at, a in enumerate(self.regions):
            self._seconds.setdefault((a, a), 0.0)
            for b in self.regions[at + 1 :]:
                if (a, b) not in self._seconds:
                    raise BadInput(f"no latency for link {a}-{b}; every pair of regions needs one")

    @classmethod
    def from_matrix(cls, regions: Sequence[RegionId], matrix: Sequence[Sequence[float]]) -> Topology:
        """Row and column i of the matrix are the i-th region."""
        size = len(regions)
        if len(matrix) != size or any(len(row) != size for row in matrix):
            raise BadInput(f"the latency matrix of {size} regions has {size} rows of {size} numbers")
        links = {(a, b): float(matrix[i][j]) for i, a in enumerate(regions) for j, b in enumerate(regions)}
        return cls(regions, links)

    def latency(self, a: RegionId, b: RegionId) -> float:
        """One-way latency in seconds."""
        try:
            return self._seconds[a, b]
        except KeyError:
            raise BadInput(f"link {a}-{b} names a region that is not in {list(self.regions)}") from None

    def nearest(self, region: RegionId, candidates: Iterable[RegionId]) -> RegionId:
        """The candidate with the least latency; among equals the first in the topology's order."""
        wanted = set(candidates)
        unknown = sorted(wanted.difference(self.regions))
        if unknown or not wanted:
            raise BadInput(f"nearest needs candidates out of {list(self.regions)}, not {unknown}")
        return min([other for other in self.regions if other in wanted], key=lambda other: self.latency(region, other))

    def __repr__(self) -> str:
        return f"Topology({', '.join(self.regions)})"
