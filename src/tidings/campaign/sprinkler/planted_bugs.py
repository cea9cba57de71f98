"""The planted bugs of Sprinkler's campaign: together they give each function of check/, and each watch, work to do.

``MUTATED``: the protocol files of which generated mutants are made. ``JUDGES``: those that must catch a planted bug.
"""

from __future__ import annotations

from pathlib import Path

from tidings.campaign.mutation.planted import listed
from tidings.check import ALL_INVARIANTS

PLANTED = listed(Path(__file__).with_suffix(""))
MUTATED = ("protocols",)
JUDGES = ("check", *(getattr(invariant, "__name__", "") for invariant in ALL_INVARIANTS))
