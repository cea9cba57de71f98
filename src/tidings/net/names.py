"""Names that contain a node's address: ``r0/p0@127.0.0.1:7401``; people see the part before the '@'.

A chain configuration that is made of such names needs no directory: `Addresses` is the mapping that a host asks, and
it only parses. An id without a name, ``@127.0.0.1:7401``, is a *seed*: the node at that address, whatever its name.

A replica that has lost its disk must not be taken for its former self (chain.py). So it comes back as another
*incarnation*: ``r0/p0~2@127.0.0.1:7401``, in the same *slot* ``r0/p0``, at the same address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

from tidings.core.errors import BadInput
from tidings.core.ids import NodeId, RegionId

Address: TypeAlias = tuple[str, int]

CONFIG = "config"
"""What a region's configuration service is called: ``r0/config``."""

_PARSED = 65_536  # ids remembered; ours, because that is more than a host has peers


def make_id(name: str, host: str, port: int) -> NodeId:
    """The id of a node with this name at this address; an empty name makes a seed."""
    return f"{name}@{f'[{host}]' if ':' in host else host}:{port}"


def seed_of(address: str) -> NodeId:
    """The id of the node at ``host:port``, whatever its name; raises `BadInput` if that is no address."""
    host, port = parse_address(address)
    return make_id("", host, port)


def name_of(node: NodeId) -> str:
    """The part of an id that people see."""
    return node.partition("@")[0]


def slot_of(node: NodeId) -> str:
    """The place a node fills, whatever its incarnation: ``r0/p0`` for ``r0/p0~2@127.0.0.1:7401``."""
    return name_of(node).partition("~")[0]


def incarnate(slot: str, incarnation: int) -> str:
    """The name of a slot's n-th life."""
    return slot if incarnation == 1 else f"{slot}~{incarnation}"


def region_of(node: NodeId) -> RegionId:
    """The region in a node's name."""
    return name_of(node).partition("/")[0]


@lru_cache(_PARSED)
def address_of(node: NodeId) -> Address | None:
    """Where a node lives; None if its id does not say."""
    _, at, address = node.rpartition("@")
    if not at:
        return None
    try:
        return parse_address(address)
    except BadInput:
        return None


def parse_address(text: str) -> Address:
    """``host:port`` or ``[host]:port`` as a pair; raises `BadInput`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not (host and colon and port.isdecimal() and port.isascii() and 0 < int(port) < 65_536):
        raise BadInput(f"{text!r} is no address: it must be HOST:PORT with a port from 1 to 65535")
    return host, int(port)


class Addresses(Mapping[NodeId, Address]):
    """Where nodes live, as their ids say. There is no end of ids, so it cannot be listed."""

    def __getitem__(self, node: NodeId) -> Address:
        address = address_of(node)
        if address is None:
            raise KeyError(node)
        return address

    def __contains__(self, node: object) -> bool:
        return isinstance(node, str) and address_of(node) is not None

    def __iter__(self) -> Iterator[NodeId]:
        raise TypeError("addresses are parsed from ids: they cannot be listed")

    def __len__(self) -> int:
        raise TypeError("addresses are parsed from ids: they cannot be counted")


ADDRESSES = Addresses()
