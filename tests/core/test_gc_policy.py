"""Policies read as users write them, and ask for a "before n" event when it is worth one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.core.errors import BadInput
from tidings.core.gc import LONGEST, MOST, SHORTEST, GcPolicy, due_before
from tidings.core.history import History
from tidings.core.rows import CountedRows, Origin, before_rows, data_rows
from tidings.core.span import Span


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("none", GcPolicy()),
        ("by-key", GcPolicy(by_key=True)),
        ("keep-last:100", GcPolicy(keep_last=100)),
        ("older-than:7d", GcPolicy(older_than=7 * 86400.0)),
        ("older-than:90s", GcPolicy(older_than=90.0)),
        ("older-than:0.5s", GcPolicy(older_than=0.5)),
        ("by-key,keep-last:5,older-than:12h", GcPolicy(by_key=True, keep_last=5, older_than=43200.0)),
    ],
)
def test_a_policy_is_read_and_written_the_same_way(text: str, policy: GcPolicy) -> None:
    assert GcPolicy.parse(text) == policy
    assert GcPolicy.parse(str(policy)) == policy
    assert str(policy) == text


def test_blanks_order_and_plain_seconds_are_accepted() -> None:
    assert GcPolicy.parse(" older-than:60 , by-key ") == GcPolicy(by_key=True, older_than=60.0)


@given(
    st.booleans(),
    st.none() | st.integers(1, MOST),
    st.none() | st.floats(min_value=SHORTEST, max_value=LONGEST) | st.integers(1, int(LONGEST)).map(float),
)
def test_every_policy_survives_being_written(by_key: bool, keep_last: int | None, older_than: float | None) -> None:
    policy = GcPolicy(by_key, keep_last, older_than)
    assert GcPolicy.parse(str(policy)) == policy


@pytest.mark.parametrize(
    "text",
    ["", "by-keys", "keep-last", "keep-last:", "keep-last:0", "keep-last:-1", "keep-last:1.5", "keep-last:٣",
     "older-than:", "older-than:0s", "older-than:-1d", "older-than:soon", "older-than:infd", "older-than:nan",
     "older-than:d", "by-key,by-key", "keep-last:1,keep-last:2", "none,by-key", "by-key,none", "by-key:x", "by-key,"],
)  # fmt: skip
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        GcPolicy.parse(text)


@pytest.mark.parametrize(
    "text",
    ["keep-last:" + "9" * 5000, "keep-last:" + "9" * 19, f"keep-last:{MOST + 1}", "older-than:" + "9" * 5000,
     "older-than:1e300s", "older-than:1e308d", "older-than:36526d", "older-than:1e-320s", "x" * 5000],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_numbers_beyond_all_use_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        GcPolicy.parse(text)
    assert len(str(refused.value)) < 250


def published(history: History, count: int, at: float = 0.0) -> None:
    lo = history.horizon
    history.accept(Span.of("s", lo, data_rows(lo, None, [b"x"] * count, Origin(lo, lo + count, at=at))))


def collect(history: History, n: int, at: float = 0.0) -> None:
    lo = history.horizon
    history.accept(Span.of("s", lo, before_rows(lo, [n], Origin(lo, lo + 1, at=at))))


def test_keep_last_waits_until_an_eighth_more_has_come() -> None:
    policy = GcPolicy.parse("keep-last:80")
    history = History("s", policy)
    published(history, 89)
    assert due_before(policy, history, 0.0) is None
    published(history, 1)
    assert due_before(policy, history, 0.0) == 11
    collect(history, 11)
    assert due_before(policy, history, 0.0) is None
    published(history, 9)
    assert due_before(policy, history, 0.0) is None
    published(history, 1)
    assert due_before(policy, history, 0.0) == 21


@pytest.mark.parametrize("keep", [1, 2, 9, 100])
def test_keep_last_always_leaves_that_many_data_events_and_comes_to_rest(keep: int) -> None:
    policy = GcPolicy(keep_last=keep)
    history = History("s", policy)
    events = 0
    for _ in range(300):
        published(history, 1)
        while (n := due_before(policy, history, 0.0)) is not None:
            collect(history, n)
            events += 1
        data = history.live - history.collectors_in(history.low, history.horizon)
        assert min(keep, history.horizon - 1 - events) <= data <= keep + keep // 8
    assert events <= math.ceil(300 / max(1, keep // 8))


def test_keep_last_works_with_counted_rows() -> None:
    policy = GcPolicy.parse("keep-last:1000")
    history = History("s", policy, counted=True)
    history.accept(Span.of("s", 1, CountedRows(1, 5001, 10)))
    assert due_before(policy, history, 0.0) == 4001


def test_older_than_collects_what_is_too_old_and_leaves_slack() -> None:
    policy = GcPolicy.parse("older-than:80s")
    history = History("s", policy)
    for second in range(0, 100, 5):
        published(history, 2, float(second))
    assert due_before(policy, history, 89.0) is None
    assert due_before(policy, history, 91.0) == 7  # published at 15, the first that is not older than 11
    collect(history, 7, 91.0)
    assert due_before(policy, history, 91.0) is None
    assert due_before(policy, history, 105.0) is None
    assert due_before(policy, history, 106.0) == 13


def test_an_idle_stream_is_collected_once_and_not_for_its_collectors() -> None:
    policy = GcPolicy.parse("older-than:80s")
    history = History("s", policy)
    assert due_before(policy, history, 0.0) is None
    published(history, 3, 1.0)
    assert due_before(policy, history, 1000.0) == 4
    collect(history, 4, 1000.0)
    assert history.live == 1
    assert due_before(policy, history, 1e9) is None


def test_of_two_policies_the_one_that_collects_more_decides() -> None:
    policy = GcPolicy.parse("keep-last:8,older-than:80s")
    history = History("s", policy)
    published(history, 10, 0.0)
    published(history, 10, 50.0)
    assert due_before(policy, history, 60.0) == 13
    assert due_before(policy, history, 10_000.0) == 21


@pytest.mark.parametrize("text", ["older-than:40000d", "keep-last:2000000000000000000", "older-than:0.0005s"])
def test_what_was_let_pass_with_other_bounds_is_still_read(text: str) -> None:
    with pytest.raises(BadInput):
        GcPolicy.parse(text)
    assert GcPolicy.parse(text, bounded=False) != GcPolicy()


def test_what_is_no_number_is_not_read_either() -> None:
    for text in (f"keep-last:{'9' * 5000}", "keep-last:0", "older-than:inf", "older-than:nan", "older-than:-1s"):
        with pytest.raises(BadInput):
            GcPolicy.parse(text, bounded=False)
