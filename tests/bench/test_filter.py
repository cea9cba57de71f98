"""The benchmark of the filter index, with tiny sizes: that it runs, what it reports, and in which shape."""

from __future__ import annotations

import numpy as np
import pytest

from tidings.bench import filter as bench_filter
from tidings.bench.filter import FilterScale, SubscriptionColumns, trades
from tidings.core.filters import parse, parse_attributes

TINY = FilterScale(subscriptions=(50, 3_000), batch=500, batches=3, expressions=50, join_batches=2)


def test_all_ways_find_as_many_matches_and_are_compared_with_the_index() -> None:
    pytest.importorskip("duckdb")
    steps: list[tuple[int, int]] = []
    result = bench_filter.run(1, lambda done, total, what: steps.append((done, total)), TINY)
    runs = {run["name"]: run for run in result["runs"]}
    assert list(runs) == ["index-50", "index-3k", "index-3k-changing", "duckdb-join-3k", "expressions-50"]
    for run in runs.values():
        assert run["spread"][0] <= run["events_per_s"] <= run["spread"][1]
        assert run["matches_per_s"] > 0 and run["others_cpus"] is not None
    assert runs["index-3k"]["subscribed_per_s"] > 0
    assert list(result["ratio"]) == ["index-3k/duckdb-join-3k", "index-50/expressions-50"]
    assert [(goal["run"], goal["is"]) for goal in result["goals"]] == [
        ("index-3k", "required"),
        ("index-3k", "aimed at"),
    ]
    assert steps[-1] == (1, 1)


def test_a_way_that_finds_something_else_is_no_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_filter, "_asked", lambda filters, batch: 1)
    with pytest.raises(AssertionError, match="expressions-50 and the index disagree"):
        bench_filter.run(1, None, TINY)


def test_filters_are_what_their_texts_say() -> None:
    rng = np.random.default_rng(1)
    declared = parse_attributes("symbol string, venue string, price double, size int")
    found = list(SubscriptionColumns(50, rng).filters())
    assert [parse(each.text, declared) for each in found] == found
    assert {each.columns for each in found} == {
        ("price", "symbol"), ("price", "symbol", "venue"), ("price", "size", "symbol", "venue"),
    }  # fmt: skip
    assert trades(10, rng).schema.names == list(declared)
