"""A summary of filters passes what any of them passes, is a filter itself, and says something where they do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.test_filter_index import MANY, simple
from core.test_filters import ROW, SCHEMA, conditions, table_of
from tidings.core.filters import parse, parse_attributes, summary
from tidings.core.filters.summary import Summary

SHARES = parse_attributes("symbol string, price double, size bigint")


def summed(*texts: str) -> str:
    one = Summary()
    for text in texts:
        one.add(parse(text, SHARES))
    return one.text


@MANY
@given(
    st.lists(st.one_of(simple(), conditions().map(lambda node: node.sql)), min_size=1, max_size=6),
    st.lists(ROW, min_size=1, max_size=12),
    st.sampled_from([1, 2, 1024]),
)
def test_a_summary_passes_what_any_of_its_filters_passes(texts: list[str], rows: list[object], listed: int) -> None:
    columns = table_of(rows)
    filters = [parse(text, SCHEMA) for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "LISTED", listed)
        one = Summary()
        for each in filters:
            one.add(each)
        text = one.text
    passes = parse(text, SCHEMA).mask(columns) if text else np.ones(len(rows), np.bool_)
    for each in filters:
        assert not (each.mask(columns) & ~passes).any(), (each.text, text)


def test_values_are_listed_and_ranges_joined() -> None:
    assert summed("symbol = 'A' AND price > 3", "symbol = 'B' AND price > 2", "price > 5 AND symbol IN ('A', 'C')") == (
        "symbol IN ('A', 'B', 'C') AND price >= 2.0000000000000004D"
    )
    assert summed("size BETWEEN 3 AND 5", "size = 9") == "size >= 3L AND size < 10L"
    assert summed("symbol LIKE 'AB%'", "symbol = 'AZ'") == "symbol >= 'AB' AND symbol <= 'AZ'"


def test_what_some_filter_does_not_ask_about_is_left_out() -> None:
    assert summed("symbol = 'A' AND price > 3", "symbol = 'B'") == "symbol IN ('A', 'B')"
    assert summed("symbol = 'A'", "price > 3") == ""
    assert summed("symbol = 'A'", "symbol IS NULL") == ""
    one = Summary()
    one.add(parse("symbol = 'A'", SHARES))
    one.add(None)
    one.add(parse("symbol = 'B'", SHARES))
    assert one.text == ""


def test_too_many_values_become_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "LISTED", 2)
    assert summed("size = 1", "size = 5", "size = 3") == "size >= 1L AND size < 6L"
    assert summed("symbol = 'a'", "symbol = 'q'", "symbol = 'c'") == "symbol >= 'a' AND symbol <= 'q'"
