"""Hybrid clocks: ticks of a stream ascend whatever the clock does, and promises bind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.core.errors import BadInput
from tidings.core.hybrid_clock import MAX_STREAMS, STREAM_BITS, HybridClock, tick_time

times = st.floats(0, 4e9)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("next"), times),
        st.tuples(st.just("promise"), times),
        st.tuples(st.just("observe"), times),
    ),
    max_size=30,
)


@given(st.integers(0, MAX_STREAMS - 1), steps)
def test_a_tick_exceeds_every_earlier_tick_promise_and_observation(
    number: int, history: list[tuple[str, float]]
) -> None:
    clock = HybridClock(number)
    above = -1
    for step, now in history:
        if step == "next":
            tick = clock.next(now)
            assert tick > above
        elif step == "promise":
            tick = clock.promise(now)
            assert tick >= above or tick >> STREAM_BITS == above >> STREAM_BITS
        else:
            tick = HybridClock(MAX_STREAMS - 1).next(now)
            clock.observe(tick)
        above = max(above, tick)
    assert clock.next(0.0) > above


@given(st.lists(times, min_size=1))
def test_promises_never_shrink(moments: list[float]) -> None:
    clock = HybridClock(5)
    promises = [clock.promise(now) for now in moments]
    assert promises == sorted(promises)


@given(st.lists(st.tuples(st.integers(0, 3), times)))
def test_ticks_of_different_streams_are_never_equal(turns: list[tuple[int, float]]) -> None:
    clocks = [HybridClock(number) for number in range(4)]
    ticks = [clocks[number].next(now) for number, now in turns]
    assert len(set(ticks)) == len(ticks)
    assert [tick % MAX_STREAMS for tick in ticks] == [number for number, _ in turns]


@given(times)
def test_a_tick_follows_the_time_it_is_given(now: float) -> None:
    tick = HybridClock(7).next(now)
    assert abs(tick_time(tick) - now) <= 2e-6
    assert tick < 1 << 63


def test_a_new_head_starts_above_the_last_promise() -> None:
    last = HybridClock(3).promise(1000.0)
    assert HybridClock(3, last).next(1.0) > last


@pytest.mark.parametrize("number", [-1, MAX_STREAMS])
def test_a_stream_number_that_does_not_fit_is_bad_input(number: int) -> None:
    with pytest.raises(BadInput, match=str(number)):
        HybridClock(number)
