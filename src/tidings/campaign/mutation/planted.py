"""Planted bugs: mistakes people really make, one patch of one module each, that a campaign must catch.

A campaign lists its own in planted_bugs/*.toml beside its planted_bugs.py. A patch replaces one piece of a module's
source. The piece must occur exactly once, so that a change of the source which makes a bug meaningless is noticed.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tidings.core.errors import BadInput


@dataclass(frozen=True)
class Mutant:
    """One bug: in the source of ``module`` (below tidings), ``find`` becomes ``replace``."""

    id: str
    module: str
    find: str
    replace: str
    what: str

    def apply(self, source: str) -> str:
        """The source with the bug in it."""
        times = source.count(self.find)
        if times != 1:
            raise BadInput(
                f"mutant {self.id}: {self.find!r} occurs {times} times in {self.module}, not once; anchor it anew"
            )
        return source.replace(self.find, self.replace)


def listed(folder: Path) -> tuple[Mutant, ...]:
    """The bugs in the TOML files of a folder."""
    return tuple(
        [Mutant(**each) for path in sorted(folder.glob("*.toml")) for each in tomllib.loads(path.read_text())["bug"]]
    )
