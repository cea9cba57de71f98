"""A lost cluster comes back from the lake: the same rows under the same numbers, and publishing goes on behind them.

What was published and had not reached the lake is lost. Of numbers that the owner had given out by the last commit the
lake knows; they are not given out again but declared lost (decision 0011), and the result says how many there are of
each stream. Whoever knows of more, a subscriber's last number say, declares those: `tidings stream declare-lost`.
Publishers connect anew: what a session had accepted after the last archived event nobody knows, so none is continued; a
client that was in the middle of one is told so and does not guess. Durable subscriptions begin anew as well, and so do
sinks: a batch of a writer that was committed before is not known to be. Streams that were deleted stay deleted.

Receipts stay in the lake: the new cluster takes theirs to be collected and numbers on behind them, so that it can be
archived into the same lake.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tidings.core.ids import FIRST, RegionId, is_internal
from tidings.core.rows import NO_ROWS
from tidings.core.span import Span
from tidings.protocols.receipts import receipts_of
from tidings.server import plan as plans
from tidings.server.founding import found
from tidings.server.layout import Layout
from tidings.spark.lake import Lake


def restore(directory: str | Path, files: Layout) -> dict[str, Any]:
    """Write the disks of a cluster that has a plan and nothing else; start it with `tidings up`."""
    lake = Lake.existing(directory)
    snapshot = lake.snapshot()
    known = [each for name, each in sorted(snapshot.definitions.items()) if not is_internal(name)]
    definitions = [each for each in known if each.name not in snapshot.deleted]
    gone = [msgspec.structs.replace(each, deleted=True) for each in known if each.name in snapshot.deleted]
    lost = {each.name: max(snapshot.ends.get(each.name, FIRST) - snapshot.end(each.name), 0) for each in definitions}

    def contents(region: RegionId) -> Iterator[Span]:
        for each in definitions:
            if each.region == region:
                yield from lake.spans(each.name, snapshot)
                at = snapshot.end(each.name)
                if lost[each.name]:
                    yield Span.declared_lost(each.name, at, at + lost[each.name])
        told = receipts_of(region)
        if snapshot.end(told) > FIRST:
            yield Span(told, FIRST, snapshot.end(told), snapshot.end(told), NO_ROWS)

    plan = plans.load(files.plan)
    found(files, plan, [*definitions, *gone], contents, time.time())
    ends = {each.name: snapshot.end(each.name) + lost[each.name] for each in definitions}
    return {
        "lake": str(lake.root),
        "snapshot": snapshot.id,
        "regions": [region.name for region in plan.regions],
        "streams": ends,
        "lost": {name: count for name, count in lost.items() if count},
    }
