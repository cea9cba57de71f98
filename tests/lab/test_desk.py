"""Desks are content with a calm world, and notice what is wrong with what they are fed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidings.check.tables import DELIVERED, PUBLISHED, Trace, table
from tidings.core.hashing import row_hashes
from tidings.lab import campaign, desk
from tidings.lab.seeds import Plan


def test_desks_are_content_with_a_calm_world() -> None:
    seed = next(seed for seed in range(100) if Plan(seed).mood == "calm" and Plan(seed).desks)
    outcome = campaign.run_seed(seed)
    assert outcome["violations"] == []
    assert outcome["reports"]["subscriber_moved"] and outcome["reports"]["subscriber_given_up"]


@pytest.mark.parametrize(
    ("rows", "total", "wrong"), [((61, 62), 0, 1), ((58, 59), 0, 0), ((58,), 0, 1), ((58, 60), 0, 1), ((58, 59), 1, 1)]
)
def test_a_receipt_through_a_filter_holds_exactly_the_rows_that_pass(
    rows: tuple[int, ...], total: int, wrong: int
) -> None:
    seqs = pa.array(range(1, 100))
    events = {"stream": ["s"] * 99, "seq": seqs, "count": [1] * 99, "kind": [0] * 99, "hash": [7] * 99}
    sums = int(row_hashes(pa.array(rows).to_numpy(), pa.array([7] * len(rows), pa.uint64()).to_numpy()).sum()) + total
    receipt = {"subscriber": ["d#2"], "incarnation": [1], "n": [1], "stream": ["s"], "lo": [58], "hi": [64]}
    receipt |= {"asof": [64], "lens": [desk.WHERE], "rows": [len(rows)], "hash_sum": [sums % 2**64], "time": [1.0]}
    trace = Trace(table(PUBLISHED, events), table(DELIVERED, receipt))
    assert min(desk.misfiltered(trace), 1) == wrong
