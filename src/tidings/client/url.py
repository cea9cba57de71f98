"""Where a cluster is: ``tidings://host:port``, several addresses separated by commas; 7400 if no port is named."""

from __future__ import annotations

from collections.abc import Iterable

from tidings.core.errors import BadInput
from tidings.core.ids import NodeId
from tidings.net.names import seed_of

SCHEME = "tidings://"
PORT = 7400
DEFAULT = f"{SCHEME}127.0.0.1:{PORT}"


def parse_url(url: str) -> tuple[NodeId, ...]:
    """The seeds in a URL, in order; raises `BadInput`."""
    if not url.startswith(SCHEME):
        raise BadInput(f"{url!r} is no address of a cluster: it looks like {DEFAULT}, more addresses after commas")
    seeds: list[NodeId] = []
    for part in url.removeprefix(SCHEME).rstrip("/").split(","):
        bare = part.rpartition("]")[2] if part.startswith("[") else part
        seeds.append(seed_of(part if ":" in bare else f"{part}:{PORT}"))
    return tuple(dict.fromkeys(seeds))


def addresses_of(url: str) -> tuple[str, ...]:
    """The addresses in a URL, each as ``host:port``, in order; raises `BadInput`."""
    return tuple([seed.removeprefix("@") for seed in parse_url(url)])


def make_url(addresses: Iterable[str]) -> str:
    """The URL that lists these addresses."""
    return SCHEME + ",".join(addresses)
