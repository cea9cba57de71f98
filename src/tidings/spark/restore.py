"""A lost cluster is restored from the lake: the same rows under the same numbers, and publishing continues behind them.

Events that had not reached the lake are lost. The lake knows which numbers the owner had given out by the last commit.
They are not given out again but declared lost (decision 0011), and the result says how many of each stream. If a higher
number is known, from a subscriber for example, `tidings stream declare-lost` declares those lost, too.

Publishers connect anew. Nobody knows what a session had accepted after the last archived event, so no session is
continued: a client in the middle of one is told so and does not guess. Durable subscriptions begin anew, and so do
sinks: batches that a writer had committed are not known. Streams that were deleted stay deleted.

Receipts stay in the lake. The new cluster takes the numbers of its receipts to be collected and continues behind them,
so that it can be archived into the same lake.
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
from tidings.protocols.services.receipts import receipts_of
from tidings.server import cluster_config
from tidings.server.bootstrap import bootstrap_disks
from tidings.server.paths import ClusterPaths
from tidings.spark.lake import Lake


def restore(directory: str | Path, files: ClusterPaths) -> dict[str, Any]:
    """Write the disks of a cluster that has a plan and nothing else; start it with `tidings up`."""
    lake = Lake.existing(directory)
    snapshot = lake.snapshot()
    known = [each for name, each in sorted(snapshot.definitions.items()) if not is_internal(name)]
    definitions = [each for each in known if each.id not in snapshot.deleted]
    gone = [msgspec.structs.replace(each, deleted=True) for each in known if each.id in snapshot.deleted]
    lost = {each.id: max(snapshot.ends.get(each.id, FIRST) - snapshot.end(each.id), 0) for each in definitions}

    def contents(region: RegionId) -> Iterator[Span]:
        for each in definitions:
            if each.region == region:
                yield from lake.spans(each.id, snapshot)
                at = snapshot.end(each.id)
                if lost[each.id]:
                    yield Span.declared_lost(each.id, at, at + lost[each.id])
        told = receipts_of(region)
        if snapshot.end(told) > FIRST:
            yield Span(told, FIRST, snapshot.end(told), snapshot.end(told), NO_ROWS)

    plan = cluster_config.load(files.config_file)
    told = [
        *sorted(gone, key=lambda each: each.created),
        *definitions,
    ]  # the last one of a name is there
    bootstrap_disks(files, plan, told, contents, time.time())
    names = [each.name for each in definitions]
    called = {each.id: each.name if names.count(each.name) == 1 else each.id for each in definitions}
    ends = {called[each.id]: snapshot.end(each.id) + lost[each.id] for each in definitions}
    return {
        "lake": str(lake.root),
        "snapshot": snapshot.id,
        "regions": [region.name for region in plan.regions],
        "streams": ends,
        "lost": {called[id]: count for id, count in lost.items() if count},
    }
