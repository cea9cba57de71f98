"""What fits into a message: the beginning of a knowledge list, and at least one row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.core.rows import NO_ROWS, data_rows
from tidings.core.span import HEADER_BYTES, Span, within


def span(lo: int, sizes: list[int]) -> Span:
    return Span.of("s", lo, data_rows(lo, None, [b"x" * size for size in sizes]))


@given(
    st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=20), min_size=1, max_size=4), st.integers(1, 20_000)
)
def test_what_is_kept_is_a_beginning_that_fits_and_as_long_as_possible(lengths: list[list[int]], limit: int) -> None:
    spans, lo = [], 1
    for sizes in lengths:
        spans.append(span(lo, sizes))
        lo = spans[-1].hi
    kept = within(spans, limit)
    numbers = [seq for each in kept for seq in each.rows.numbers.tolist()]
    assert numbers == list(range(1, len(numbers) + 1)) and numbers
    assert [each.lo for each in kept] == [each.lo for each in spans[: len(kept)]]
    size = sum(each.wire_size for each in kept)
    assert size <= limit or len(numbers) == 1
    if numbers[-1] + 1 < lo:
        more = within(spans, 1 << 40)
        longer = [each.slice(1, numbers[-1] + 2) for each in more if each.lo <= numbers[-1] + 1]
        assert sum(each.wire_size for each in longer) > limit


@pytest.mark.parametrize("limit", [HEADER_BYTES, 10_000])
def test_coverage_without_rows_costs_its_header(limit: int) -> None:
    assert within([Span("s", 1, 100, 50, NO_ROWS)], limit) == [Span("s", 1, 100, 50, NO_ROWS)]


def test_one_row_larger_than_a_message_goes_alone() -> None:
    kept = within([span(1, [100_000, 5, 5])], 1000)
    assert [(each.lo, each.hi) for each in kept] == [(1, 2)]
