"""Replicas that were added to those of the cluster file while the cluster ran, and those that were removed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

ROSTER = "data/roster.json"
"""Where it is, in the cluster's directory."""


class Roster(msgspec.Struct):
    """On disk."""

    added: dict[str, str] = msgspec.field(default_factory=dict)  # slots and their addresses
    removed: list[str] = msgspec.field(default_factory=list)  # slots; they are not used again

    def apply(self, slots: Mapping[str, str]) -> dict[str, str]:
        """The slots of the cluster file, with those added and without those removed."""
        return {slot: at for slot, at in {**slots, **self.added}.items() if slot not in self.removed}
