"""The wheel against a heap of (time, counter): the same entries in the same order, however the run is sliced."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.sim.queue import WIDTH, Wheel

# delays that fall on, just before and just after the edges of buckets, that coincide, and that lie far ahead
DELAYS = st.one_of(
    st.sampled_from([0.0, WIDTH, WIDTH / 2, 3 * WIDTH, 0.001, 1.0]),
    st.floats(0.0, 5 * WIDTH),
    st.floats(0.0, 1000.0),
)


def from_heap(first: list[float], later: list[float]) -> list[tuple[float, int]]:
    """The reference: each entry handled adds one of the later delays."""
    heap = [(delay, number) for number, delay in enumerate(first)]
    heapq.heapify(heap)
    number, more, out = len(first), iter(later), []
    while heap:
        time, which = heapq.heappop(heap)
        out.append((time, which))
        if (delay := next(more, None)) is not None:
            heapq.heappush(heap, (time + delay, number))
            number += 1
    return out


def from_wheel(first: list[float], later: list[float], stops: list[float]) -> list[tuple[float, int]]:
    """The same script on a wheel, run in slices."""
    wheel = Wheel()
    for number, time in enumerate(first):
        wheel.push(time, None, number, 0)
    number, more, out = len(first), iter(later), []
    for until in [*sorted(stops), float("inf")]:
        while (bucket := wheel.open(until)) is not None:
            for time, _, which, _ in bucket:
                assert time < until
                out.append((time, which))
                if (delay := next(more, None)) is not None:
                    wheel.push(time + delay, None, number, 0)
                    number += 1
    return out


@given(st.lists(DELAYS, max_size=30), st.lists(DELAYS, max_size=60), st.lists(DELAYS, max_size=5))
def test_entries_leave_in_the_order_of_a_heap(first: list[float], later: list[float], stops: list[float]) -> None:
    assert from_wheel(first, later, stops) == from_heap(first, later)


def test_equal_times_leave_in_the_order_they_came() -> None:
    wheel = Wheel()
    for number in range(100):
        wheel.push(0.5 if number % 2 else 0.25, None, number, 0)
    assert [entry[2] for entry in everything(wheel)] == [*range(0, 100, 2), *range(1, 100, 2)]


def test_what_is_pushed_between_two_slices_finds_its_place() -> None:
    wheel = Wheel()
    for time in (0.0, WIDTH / 4, WIDTH / 2):
        wheel.push(time, None, time, 0)
    assert [entry[0] for entry in everything(wheel, WIDTH / 8)] == [0.0]
    wheel.push(WIDTH / 8, None, None, 0)
    wheel.push(WIDTH / 3, None, None, 0)
    assert [entry[0] for entry in everything(wheel)] == [WIDTH / 8, WIDTH / 4, WIDTH / 3, WIDTH / 2]


def test_opening_before_the_first_entry_yields_nothing_and_keeps_it() -> None:
    wheel = Wheel()
    wheel.push(WIDTH / 2, None, "kept", 0)
    assert wheel.open(WIDTH / 2) is None
    assert wheel.open(WIDTH / 4) is None
    assert [entry[2] for entry in everything(wheel)] == ["kept"]


def test_waiting_sees_every_entry_and_lets_it_be_replaced() -> None:
    wheel = Wheel()
    for time in (0.0, 1.0, 2.0):
        wheel.push(time, None, "old", 0)
    for bucket, at, (time, target, _, tag) in wheel.waiting():
        bucket[at] = (time, target, "new", tag)
    assert [entry[2] for entry in everything(wheel)] == ["new"] * 3


@pytest.mark.parametrize("width", [0.001, 0.75, 0.0, -0.5])
def test_a_width_that_is_no_power_of_two_is_refused(width: float) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Wheel(width)


def everything(wheel: Wheel, until: float = float("inf")) -> Iterator[tuple[float, object, object, int]]:
    while (bucket := wheel.open(until)) is not None:
        yield from bucket
