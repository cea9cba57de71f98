"""The benchmarks of a real cluster, with tiny sizes: that they run, what they report, and in which shape."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tidings.bench import cluster as bench_cluster
from tidings.bench.cluster import ClusterScale
from tidings.bench.worker import KEY_BYTES, BenchJob, make_tables, percentiles
from tidings.core.errors import BadInput

TINY = ClusterScale(
    seconds=0.2, warm=20_000, latency_seconds=0.3, fsyncs=5, store_events=100_000, batch=2_000, keys=1_000
)
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # uvloop's, of pipes to processes that have ended


def test_the_workload_is_of_the_paper_ten_byte_keys_some_more_popular_than_others() -> None:
    tables = make_tables(BenchJob(batch=1_000, keys=100, seed=3))
    keys = pa.concat_arrays([table.column("key") for table in tables])
    assert {len(key) for key in keys.to_pylist()} == {KEY_BYTES}
    counts = np.sort(keys.value_counts().field("counts").to_numpy())[::-1]
    assert 90 <= len(counts) <= 100
    assert counts[0] > 1.5 * counts[1] > 3 * counts[9]


def test_percentiles_are_in_microseconds() -> None:
    assert percentiles([1_000] * 98 + [9_000] * 2) == {"p50": 1.0, "p99": 9.0, "samples": 100}


def test_a_run_that_does_not_exist_is_an_error_that_names_those_that_do() -> None:
    with pytest.raises(BadInput, match="columnar-memory"):
        bench_cluster.throughput(1, None, TINY, ["columnar"])


@pytest.mark.check
@pytest.mark.parametrize("name", ["columnar-memory", "regions3", "one-per-call-chain3-durable"])  # all there is in them
def test_throughput_is_measured_at_the_subscribers(name: str) -> None:
    steps: list[tuple[int, int, str]] = []
    result = bench_cluster.throughput(1, lambda *step: steps.append(step), TINY, [name])
    (run,) = result["runs"]
    assert run["name"] == name
    assert 0 < run["spread"][0] <= run["events_per_s"] <= run["spread"][1]
    assert 0 < run["rows"] <= 1
    assert set(run["cpu_us_per_event"]) == {"publisher", "replica", "subscriber"}
    assert run["others_cpus"] >= 0
    assert [step[:2] for step in steps] == [(1, 1)]


@pytest.mark.check
def test_latency_is_compared_with_bare_sockets_through_as_many_processes_and_with_a_bare_sync() -> None:
    result = bench_cluster.latency(1, None, TINY, ["durable-3"])
    found = {run["name"]: run for run in result["runs"]}
    assert set(found) == {"durable-3", "raw-sockets-5", "fsync"}
    for run in found.values():
        assert 0 < run["latency_us"]["p50"] <= run["latency_us"]["p99"]
    assert result["ratio"]["durable-3/raw-sockets-5"] > 1
    assert "durable-3/fsync" in result["ratio"]


def test_the_store_is_measured_with_and_without_group_commit() -> None:
    result = bench_cluster.store(1, None, TINY)
    names = [run["name"] for run in result["runs"]]
    assert names == ["sync-per-batch-4k", "sync-per-batch-16k", "group-commit-16k", "fsync"]
    assert all([run["events_per_s"] > 0 for run in result["runs"][:3]])


@pytest.mark.check
def test_the_memory_of_a_replica_is_looked_at_after_so_many_events() -> None:
    result = bench_cluster.memory([10_000, 40_000], None, TINY)
    assert [run["events"] for run in result["runs"]] == [10_000, 40_000]
    assert all([run["private_bytes"] > 1 << 20 for run in result["runs"]])
    assert list(result["ratio"]) == ["memory-40000/memory-10000"]
