"""The brokers of a region besides its replicas: relays, which form cells, and edges, to which clients connect.

    [[regions.cells]]
    name = "inner"                          # without upstream: below the replicas
    relays = ["127.0.0.1:7420", "127.0.0.1:7421"]           # r0/b0, r0/b1

    [[regions.cells]]
    name = "outer"
    upstream = "inner"
    relays = ["127.0.0.1:7422"]             # r0/b2: relays are numbered through the region

    [[regions.edges]]
    address = "127.0.0.1:7430"              # r0/e0
    upstream = "outer"

The relays of a cell stand in for each other. Only who is below says so: a broker registers with those above it. So one
more edge needs no change anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tidings.core.ids import NodeId, RegionId
from tidings.net.names import make_id, name_of, parse_address
from tidings.sim.scenario import Name, Table

BrokerKind: TypeAlias = Literal["relay", "edge"]
Problems: TypeAlias = Iterator[tuple[str, str]]
"""Each is the path of a key, and what is wrong with it."""


class CellConfig(Table, frozen=True, kw_only=True):
    """``[[regions.cells]]``: relays that stand in for each other."""

    name: Name
    relays: Annotated[tuple[str, ...], Meta(min_length=1)]
    upstream: Name | None = None  # the cell above; none: the region's replicas


class EdgeConfig(Table, frozen=True, kw_only=True):
    """``[[regions.edges]]``: a process to which clients connect."""

    address: str
    upstream: Name | None = None


class BrokerPlace(msgspec.Struct, frozen=True):
    """Where an edge or a relay is: its cell, and its neighbours; the name "" is for the replicas."""

    node: NodeId
    kind: BrokerKind
    cell: str = ""  # of a relay
    below: str | None = ""  # which cell; None: that is not known
    upstream: tuple[NodeId, ...] = ()  # its relays; none if it is below the replicas
    peers: tuple[NodeId, ...] = ()  # the others of the own cell

    @property
    def slot(self) -> str:
        return name_of(self.node)

    @property
    def address(self) -> str:
        return self.node.rpartition("@")[2]


def place_brokers(region: RegionId, cells: Sequence[CellConfig], edges: Sequence[EdgeConfig]) -> dict[str, BrokerPlace]:
    """All relays and edges of a region, by slot."""
    addresses = [address for cell in cells for address in cell.relays]
    relays = iter([make_id(f"{region}/b{at}", *parse_address(address)) for at, address in enumerate(addresses)])
    members = {cell.name: tuple([next(relays) for _ in cell.relays]) for cell in cells}
    members[""] = ()
    found: list[BrokerPlace] = []
    for cell in cells:
        above = cell.upstream or ""
        for node in members[cell.name]:
            peers = tuple([each for each in members[cell.name] if each != node])
            found.append(BrokerPlace(node, "relay", cell.name, above, members[above], peers))
    for at, edge in enumerate(edges):
        above = edge.upstream or ""
        node = make_id(f"{region}/e{at}", *parse_address(edge.address))
        found.append(BrokerPlace(node, "edge", "", above, members[above]))
    return {place.slot: place for place in found}


def topology_problems(path: str, cells: Sequence[CellConfig], edges: Sequence[EdgeConfig]) -> Problems:
    """What is wrong with the cells of a region; ``path`` is the region's key."""
    names = [cell.name for cell in cells]
    allowed = (
        f"must be one of {', '.join(names)}, or left out" if names else "must be left out: the region has no cells"
    )
    for at, cell in enumerate(cells):
        if cell.name in names[:at]:
            yield f"{path}.cells[{at}].name", "is used twice; every cell of a region must have another name"
    below = [(f"cells[{at}]", cell.upstream) for at, cell in enumerate(cells)]
    below += [(f"edges[{at}]", edge.upstream) for at, edge in enumerate(edges)]
    for key, upstream in below:
        if upstream is not None and upstream not in names:
            yield f"{path}.{key}.upstream", allowed
    above = {cell.name: cell.upstream for cell in cells}
    for at, cell in enumerate(cells):
        way = [cell.name]
        while (up := above.get(way[-1])) is not None and up not in way:
            way.append(up)
        if up == cell.name:
            problem = f"goes in a circle, {' - '.join([*way, up])}: one of these cells must be below the replicas"
            yield f"{path}.cells[{at}].upstream", problem
