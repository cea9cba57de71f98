"""The replicas that the one address of a URL has named, kept for the time when that address does not answer.

One small file per address, in the user's cache directory: TIDINGS_CACHE, or XDG_CACHE_HOME/tidings, or
~/.cache/tidings. Every contact writes it anew; `tidings down` removes the files of its cluster. Losing them costs
nothing but the fallback, so whatever goes wrong with them is ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tidings.core.errors import BadInput
from tidings.net.names import parse_address


def recall(address: str) -> tuple[str, ...]:
    """The addresses that were learned from this one; none if nothing was."""
    with suppress(OSError, ValueError, BadInput):
        found = json.loads(_file(address).read_text())
        for each in found:
            parse_address(each)
        return tuple(found)
    return ()


def remember(address: str, learned: Iterable[str]) -> None:
    """Keep what was learned from an address."""
    known = tuple(learned)
    if known == recall(address):
        return
    with suppress(OSError):
        file = _file(address)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = file.with_name(f"{file.name}.{os.getpid()}")
        fresh.write_text(json.dumps(known))
        fresh.rename(file)


def forget(addresses: Iterable[str]) -> None:
    """Remove what was learned from these addresses: their cluster has ended."""
    for address in addresses:
        with suppress(OSError):
            _file(address).unlink()


def _file(address: str) -> Path:
    return _directory() / f"{address.replace('/', '_')}.json"


def _directory() -> Path:
    if own := os.environ.get("TIDINGS_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidings"
