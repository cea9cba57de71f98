"""`tidings bench spark` measures what it says, with few rows."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.bench import spark as bench_spark


@pytest.mark.check
def test_every_run_reads_every_row(spark: Any) -> None:
    steps: list[str] = []
    found = bench_spark.run(1, lambda done, total, what: steps.append(what), bench_spark.SparkScale(rows=20_000))
    names = {each["name"] for each in found["runs"]}
    assert names == {"source-batch", "source-stream", "generator", "parquet", "sink"} == set(steps)
    assert all(each["rows_per_s"] > 0 and each["rows"] == 20_000 for each in found["runs"])
    assert found["ratio"].keys() == {"source-batch/generator", "source-batch/parquet"}


def test_the_generator_makes_the_rows_that_are_published() -> None:
    (batch,) = bench_spark.batches(1, 11)
    assert batch.column("key").to_pylist() == bench_spark.keys(0, 10)
    assert batch.column("seq").to_pylist() == list(range(1, 11)) == batch.column("pub_seq").to_pylist()
