"""Rows of both kinds against lists of numbers, and what becomes of origins."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.core.errors import BadInput
from tidings.core.rows import GC, NO_ROWS, ArrowRows, CountedRows, Origin, before_rows, data_rows

BATCH = Origin(10, 20, "web-17", 3, 100, 77, 1.5, "us")


def letters(lo: int, count: int, origin: Origin | None = None) -> ArrowRows:
    return data_rows(lo, None, [b"%d" % seq for seq in range(lo, lo + count)], origin)


def picked(rows: ArrowRows, seqs: list[int]) -> ArrowRows:
    return rows.take(np.isin(rows.numbers, seqs))


subsets = st.sets(st.integers(10, 19)).map(sorted)


@settings(deadline=None)
@given(subsets, st.integers(5, 25), st.integers(5, 25))
def test_arrow_rows_slice_by_number(seqs: list[int], lo: int, hi: int) -> None:
    rows = picked(letters(10, 10, BATCH), seqs)
    part = rows.slice(lo, hi)
    wanted = [seq for seq in seqs if lo <= seq < hi]
    assert part.numbers.tolist() == wanted
    assert part.count == len(wanted)
    assert part.batch.column("payload").to_pylist() == [b"%d" % seq for seq in wanted]
    assert [(origin.lo, origin.hi) for origin in part.origins] == ([(wanted[0], wanted[-1] + 1)] if wanted else [])
    assert all(origin.first - origin.lo == BATCH.first - BATCH.lo for origin in part.origins)


@settings(deadline=None)
@given(subsets, subsets)
def test_arrow_rows_compare_like_sets_of_numbers(some: list[int], others: list[int]) -> None:
    whole = letters(10, 10)
    mine, theirs = picked(whole, some), picked(whole, others)
    assert mine.is_subset(theirs) == (set(some) <= set(others))
    assert mine.same(theirs) == (mine == theirs) == (some == others)


@settings(deadline=None)
@given(subsets, st.booleans())
def test_hashes_survive_being_cut_up(seqs: list[int], hashed_first: bool) -> None:
    whole = letters(10, 10)
    if hashed_first:
        assert len(whole.content) == 10
    part = picked(whole, seqs)
    assert part.hash_sum == sum(letters(seq, 1).hash_sum for seq in seqs) % 2**64
    assert part.slice(13, 17).content.tolist() == [letters(seq, 1).content[0] for seq in seqs if 13 <= seq < 17]


def test_content_makes_rows_differ() -> None:
    one, other = data_rows(1, None, [b"a", b"b"]), data_rows(1, None, [b"a", b"c"])
    assert not one.same(other)
    assert not one.slice(2, 3).is_subset(other)
    assert one.slice(1, 2).is_subset(other)


def test_numbers_are_implicit_while_dense() -> None:
    rows = letters(10, 10)
    assert rows.seqs is None
    assert picked(rows, [12, 15]).seqs is not None
    assert picked(rows, [12, 13, 19]).slice(12, 14).seqs is None
    assert picked(rows, [12, 13]).seqs is None


def test_an_unchanged_range_is_the_same_object() -> None:
    rows, counted = letters(10, 10), CountedRows(10, 20, 8)
    assert rows.slice(10, 20) is rows.slice(1, 99) is rows
    assert counted.slice(10, 20) is counted.slice(1, 99) is counted
    assert rows.take(np.ones(10, dtype=bool)) is rows


def test_explicit_numbers_and_origins_cost_bytes() -> None:
    rows = letters(10, 10)
    sparse = picked(rows, [10, 12])
    assert sparse.nbytes == sparse.batch.nbytes + 16
    assert letters(10, 10, BATCH).nbytes == rows.nbytes + 48


def test_cutting_up_and_concatenating_gives_the_same_value_back() -> None:
    rows = letters(10, 10, BATCH)
    rows = picked(rows, [11, 12, 14, 18])
    parts = [rows.slice(11, 13), rows.slice(13, 15), rows.slice(15, 18), rows.slice(18, 20)]
    again = parts[0].concat(parts[1:])
    assert again == rows
    assert isinstance(again, ArrowRows)
    assert again.origins == (Origin(11, 19, "web-17", 3, 101, 77, 1.5, "us"),)


def test_two_published_batches_keep_two_origins() -> None:
    later = Origin(20, 25, "web-17", 3, 110, 78, 1.6, "us")
    both = letters(10, 10, BATCH).concat([letters(20, 5, later)])
    assert isinstance(both, ArrowRows)
    assert both.origins == (BATCH, later)
    assert both.slice(15, 21).origins == (BATCH.narrow(15, 20), later.narrow(20, 21))
    assert both.slice(20, 25).origins == (later,)
    assert both.take(np.array([12])).origins == (later.narrow(22, 23),)


def test_rows_without_a_later_attribute_have_null_there() -> None:
    older = data_rows(1, None, [b"a"])
    newer = data_rows(2, None, [b"b"], attributes={"loc": pa.array(["NY"])})
    both = older.concat([newer])
    assert isinstance(both, ArrowRows)
    assert both.batch.column("loc").to_pylist() == [None, "NY"]
    assert both.slice(1, 2).same(older)


def test_collecting_events_have_no_key() -> None:
    rows = before_rows(7, [3, 5])
    assert rows.batch.column("kind").to_pylist() == [GC, GC]
    assert rows.batch.column("key").to_pylist() == [None, None]
    assert rows.batch.column("before").to_pylist() == [3, 5]


# --- counted rows ---------------------------------------------------------------------------------------

runs = st.tuples(st.integers(10, 20), st.integers(10, 20)).map(lambda ends: (min(ends), max(ends)))
collectors = ((12, 3), (13, 4), (18, 13))


def counted(run: tuple[int, int]) -> CountedRows:
    return CountedRows(10, 20, 8, collectors).slice(*run)


@given(runs, runs)
def test_counted_rows_are_runs_of_numbers(run: tuple[int, int], cut: tuple[int, int]) -> None:
    rows = counted(run).slice(*cut)
    wanted = [seq for seq in range(*run) if cut[0] <= seq < cut[1]]
    assert rows.numbers.tolist() == wanted
    assert rows.count == len(wanted)
    assert rows.nbytes == 8 * len(wanted)
    assert rows.collectors == tuple(pair for pair in collectors if pair[0] in wanted)


@given(runs, runs)
def test_counted_rows_compare_like_sets_of_numbers(run: tuple[int, int], other: tuple[int, int]) -> None:
    mine, theirs = set(range(*run)), set(range(*other))
    assert counted(run).is_subset(counted(other)) == (mine <= theirs)
    assert counted(run).same(counted(other)) == (mine == theirs)


@given(st.integers(10, 20))
def test_counted_hash_sums_add_up(cut: int) -> None:
    whole = CountedRows(10, 20, 8, collectors)
    left, right = whole.slice(10, cut), whole.slice(cut, 20)
    assert (left.hash_sum + right.hash_sum) % 2**64 == whole.hash_sum
    assert left.concat([right]) == whole


def test_counted_rows_differ_by_size_and_collectors() -> None:
    rows = CountedRows(1, 9, 10, ((5, 3),))
    for other in (CountedRows(1, 9, 11, ((5, 3),)), CountedRows(1, 9, 10), CountedRows(1, 9, 10, ((5, 4),))):
        assert not rows.same(other) and not rows.is_subset(other)
        assert rows.hash_sum != other.hash_sum and rows.digest != other.digest
        assert rows.content.tolist() != other.content.tolist()


def test_counted_rows_keep_one_run_only() -> None:
    rows = CountedRows(1, 9, 10)
    assert rows.take(np.arange(8) >= 5) == CountedRows(6, 9, 10)
    assert rows.take(np.zeros(8, dtype=bool)) is NO_ROWS
    with pytest.raises(BadInput, match="one run"):
        rows.take(np.arange(8) % 2 == 0)


def test_counted_rows_that_do_not_meet_are_not_concatenated() -> None:
    rows = CountedRows(1, 5, 10)
    for later in (CountedRows(6, 9, 10), CountedRows(5, 9, 11), letters(5, 3)):
        assert not rows.meets(later)
        with pytest.raises(BadInput, match="one run"):
            rows.concat([later])


def test_no_rows_go_with_either_kind() -> None:
    rows, none = letters(5, 3), letters(5, 3).slice(9, 9)
    assert NO_ROWS.concat([rows]) == rows == rows.concat([NO_ROWS])
    assert none.concat([CountedRows(9, 12, 1)]) == CountedRows(9, 12, 1)
    assert none == NO_ROWS and none.same(NO_ROWS) and NO_ROWS.same(none)
    assert none.digest == NO_ROWS.digest
    assert none.is_subset(CountedRows(1, 2, 3)) and NO_ROWS.is_subset(rows)


def test_kinds_are_not_mixed() -> None:
    arrow, run = letters(5, 3), CountedRows(5, 8, 1)
    assert not arrow.same(run) and not run.same(arrow)
    assert not arrow.is_subset(run) and not run.is_subset(arrow)
    assert not arrow.meets(CountedRows(8, 9, 1))
    with pytest.raises(BadInput, match="one kind per stream"):
        arrow.concat([CountedRows(8, 9, 1)])
