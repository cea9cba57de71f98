"""The planted bugs of Gryphon's campaign: what designers of brokers and mergers get wrong.

``MUTATED``: the protocol files of which generated mutants are made. ``JUDGES``: those that must catch a planted bug.
"""

from __future__ import annotations

from pathlib import Path

from tidings.campaign.mutation.planted import listed

PLANTED = listed(Path(__file__).with_suffix(""))
MUTATED = ("protocols/brokers", "protocols/nodes")
JUDGES = (
    *("completeness", "convergence", "total_order", "false_claim", "fed_uncommitted", "acknowledged_for_others"),
    *("unasked_nack", "repeated_nack", "unasked_answer", "sideways_twice", "not_expected"),
)
