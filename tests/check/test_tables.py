"""A trace survives its way through Parquet; what is no trace is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidings.check import DELIVERED, GAUGE, PUBLISHED, Trace, table
from tidings.core.errors import BadInput


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    event = {"stream": ["s"], "seq": [None], "count": [1], "kind": np.array([1], np.uint8), "key": [b"k"]}
    trace = Trace(
        published=table(PUBLISHED, event | {"hash": np.array([2**64 - 1], np.uint64)}),
        gauge=table(GAUGE, {"node": ["n"], "name": ["alive:s"], "value": [1], "time": [0.5]}),
        policies={"s": "by-key"},
    )
    trace.write(tmp_path / "trace")
    again = Trace.read(tmp_path / "trace")
    assert (again.published, again.delivered) == (trace.published, trace.delivered)
    assert (again.log, again.gauge, again.policies) == (trace.log, trace.gauge, trace.policies)


def test_hashes_keep_their_bits_as_signed_numbers() -> None:
    assert table(PUBLISHED, {"stream": ["s"] * 2, "hash": [2**64 - 1, None]})["hash"].to_pylist() == [-1, None]


def test_a_table_with_other_columns_is_refused() -> None:
    with pytest.raises(BadInput, match="trace table delivered"):
        Trace(delivered=DELIVERED.remove(0).empty_table())


def test_a_directory_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no readable trace"):
        Trace.read(tmp_path)
    Trace().write(tmp_path)
    (tmp_path / "log.parquet").write_text("not a table")
    with pytest.raises(BadInput, match="holds no readable trace"):
        Trace.read(tmp_path)
