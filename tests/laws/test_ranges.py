"""Ranges behave like a set of numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.core.errors import BadInput
from tidings.core.ranges import Ranges

EDGE = 40
ranges = st.tuples(st.integers(0, EDGE), st.integers(0, EDGE)).map(lambda ends: (min(ends), max(ends)))
steps = st.lists(st.tuples(st.booleans(), ranges), max_size=25)


def built(history: list[tuple[bool, tuple[int, int]]]) -> tuple[Ranges, set[int]]:
    """The same additions and removals done to ranges and to a set."""
    tested, model = Ranges(), set[int]()
    for adding, (lo, hi) in history:
        if adding:
            tested.add(lo, hi)
            model |= set(range(lo, hi))
        else:
            tested.remove(lo, hi)
            model -= set(range(lo, hi))
    return tested, model


def numbers(pieces: list[tuple[int, int]]) -> set[int]:
    return {number for lo, hi in pieces for number in range(lo, hi)}


@settings(deadline=None)
@given(steps)
def test_adding_and_removing_is_that_of_a_set(history: list[tuple[bool, tuple[int, int]]]) -> None:
    tested, model = built(history)
    assert numbers(list(tested)) == model
    assert len(tested) == len(model)
    assert bool(tested) == bool(model)
    assert (tested.first, tested.end) == ((min(model), max(model) + 1) if model else (None, None))
    assert all(number in tested for number in model)


@settings(deadline=None)
@given(steps)
def test_ranges_are_ascending_and_never_touch(history: list[tuple[bool, tuple[int, int]]]) -> None:
    tested, _ = built(history)
    ends = [end for piece in tested for end in piece]
    assert all(end < later for end, later in pairwise(ends))


@settings(deadline=None)
@given(steps, ranges)
def test_gaps_and_intersection_divide_a_range(
    history: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    tested, model = built(history)
    lo, hi = asked
    assert numbers(tested.intersect(lo, hi)) == model & set(range(lo, hi))
    assert numbers(tested.gaps(lo, hi)) == set(range(lo, hi)) - model
    assert tested.covers(lo, hi) == (set(range(lo, hi)) <= model)
    pieces = sorted(tested.intersect(lo, hi) + tested.gaps(lo, hi))
    assert [piece for piece in pieces if piece[0] >= piece[1]] == []
    assert numbers(pieces) == set(range(lo, hi))


@settings(deadline=None)
@given(steps)
def test_equal_sets_are_equal_ranges(history: list[tuple[bool, tuple[int, int]]]) -> None:
    tested, model = built(history)
    assert tested == Ranges((number, number + 1) for number in sorted(model, reverse=True))


def test_taking_ranges_out_while_iterating_is_safe() -> None:
    tested = Ranges([(1, 4), (6, 9)])
    for lo, hi in tested:
        tested.remove(lo, hi)
    assert not tested


@pytest.mark.parametrize("call", ["add", "remove", "gaps", "intersect", "covers"])
def test_a_range_that_ends_before_it_begins_is_bad_input(call: str) -> None:
    with pytest.raises(BadInput, match=r"\[5, 3\)"):
        getattr(Ranges(), call)(5, 3)


def test_ranges_print_as_half_open() -> None:
    assert repr(Ranges([(1, 4), (6, 9)])) == "Ranges([1, 4), [6, 9))"
