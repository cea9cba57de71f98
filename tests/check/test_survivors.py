"""What a receipt must contain, as worked out with prefix sums, is what an event-by-event model says."""

from __future__ import annotations

import json
import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.check import DELIVERED, PUBLISHED, Trace, judge, table
from tidings.check.survivors import Expected, Survivors
from tidings.core.hashing import hash_sum, row_hashes

EVENT = st.tuples(st.sampled_from([None, b"", b"a", b"b", b"c"]), st.none() | st.integers(0, 30))
PREDICATES = {
    "() key = X'61'": lambda seq, key, day: key == b"a",
    "(day date) day > DATE'2024-01-01'": lambda seq, key, day: day is not None and day > "2024-01-01",
    "(day date) day IS NULL AND seq < 9L": lambda seq, key, day: day is None and seq < 9,
}
ANY_EVENT = st.tuples(
    st.sampled_from([None, b"a", b"b"]), st.sampled_from([None, "2024-01-01", "2024-01-02"]),
    st.sampled_from([None, None, None, *sorted(PREDICATES)]),
)  # fmt: skip


def published(events: list[tuple[bytes | None, int | None]]) -> dict[str, object]:
    """Columns of a stream numbered from 1, each event with its key and what it collects before."""
    size = len(events)
    return {
        "stream": ["s"] * size,
        "seq": np.arange(1, size + 1),
        "count": np.ones(size, np.int64),
        "kind": [int(before is not None) for _, before in events],
        "publisher": ["p"] * size,
        "session": np.ones(size, np.int64),
        "number": np.arange(1, size + 1),
        "key": [key for key, _ in events],
        "before": [before for _, before in events],
        "hash": np.arange(size, dtype=np.uint64) * np.uint64(2**61 + 7),
    }


def dead_at(events: list[tuple[bytes | None, int | None]], seq: int, by_key: bool) -> float:
    """The number that collects an event: the first later one that matches it (A1.7, A1.45)."""
    key = events[seq - 1][0]
    for later, (other, before) in enumerate(events[seq:], seq + 1):
        if (before is not None and seq < before) or (by_key and key is not None and key == other):
            return later
    return float("inf")


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENT, max_size=25), st.booleans(), st.data())
def test_expected_rows_and_hashes_equal_those_of_the_naive_model(
    events: list[tuple[bytes | None, int | None]], by_key: bool, data: st.DataObject
) -> None:
    columns = published(events)
    stream = Survivors(table(PUBLISHED, columns), "keep-last:9,by-key" if by_key else "keep-last:9")
    end = len(events) + 1
    assert stream.end == end
    bounds = st.tuples(st.integers(1, end), st.integers(1, end), st.integers(0, end + 3))
    receipts = [(min(a, b), max(a, b), asof) for a, b, asof in data.draw(st.lists(bounds, min_size=1, max_size=10))]
    expected = stream.expect(*np.array(receipts, np.int64).T)
    for i, (lo, hi, asof) in enumerate(receipts):
        alive = np.array([s for s in range(lo, hi) if dead_at(events, s, by_key) >= asof], np.int64)
        content = (alive - 1).astype(np.uint64) * np.uint64(2**61 + 7)
        assert (expected.rows[i], expected.unknown[i], expected.hashed[i]) == (len(alive), 0, True)
        assert int(expected.hash_sum[i]) == hash_sum(row_hashes(alive, content))
        there = stream.alive(asof)
        assert there[(there >= lo) & (there < hi)].tolist() == alive.tolist()


@settings(max_examples=200, deadline=None)
@given(st.lists(ANY_EVENT, max_size=20), st.booleans(), st.data())
def test_predicates_collect_what_the_naive_model_says(
    drawn: list[tuple[bytes | None, str | None, str | None]], by_key: bool, data: st.DataObject
) -> None:
    events = [(None, None, where) if where else (key, day, None) for key, day, where in drawn]
    columns = published([(key, None) for key, _, _ in events]) | {
        "kind": [int(where is not None) for _, _, where in events],
        "attrs": [None if day is None else json.dumps({"day": day, "other": [1]}) for _, day, _ in events],
        "where": [where for _, _, where in events],
    }

    def collected_by(seq: int) -> float:
        key, day, own = events[seq - 1]
        for later, (other, _, where) in enumerate(events[seq:], seq + 1):
            if where and (own == where if own else PREDICATES[where](seq, key, day)):
                return later
            if by_key and key is not None and key == other:
                return later
        return float("inf")

    stream = Survivors(table(PUBLISHED, columns), "by-key" if by_key else "none")
    end = len(events) + 1
    for asof in range(1, end + 1):
        lo = data.draw(st.integers(1, end))
        alive = np.array([seq for seq in range(lo, end) if collected_by(seq) >= asof], np.int64)
        found = expect(stream, lo, end, asof)
        assert found.rows == len(alive)
        assert [seq for seq in stream.alive(asof).tolist() if seq >= lo] == alive.tolist()
        content = (alive - 1).astype(np.uint64) * np.uint64(2**61 + 7)
        assert int(found.hash_sum[0]) == hash_sum(row_hashes(alive, content))


def expect(stream: Survivors, lo: int, hi: int, asof: int) -> Expected:
    return stream.expect(np.array([lo]), np.array([hi]), np.array([asof]))


def test_a_run_is_cut_by_a_receipt_and_by_a_collector() -> None:
    columns = {"stream": ["c"] * 3, "seq": [1, 101, 102], "count": [100, 1, 99], "kind": [0, 1, 0]}
    stream = Survivors(table(PUBLISHED, columns | {"before": [None, 51, None]}), "keep-last:150")
    assert expect(stream, 41, 61, 101).rows == 20
    assert expect(stream, 41, 61, 102).rows == 10
    assert expect(stream, 1, 51, 102).rows == 0
    assert expect(stream, 91, 111, 200).rows == 20
    assert not expect(stream, 1, 201, 1).hashed
    assert expect(stream, 191, 211, 200).unknown == 10


def test_a_collector_never_reaches_beyond_itself() -> None:
    stream = Survivors(table(PUBLISHED, published([(b"a", None), (None, 100), (b"b", None)])), "none")
    assert expect(stream, 1, 4, 4).rows == 2


def test_a_hundred_thousand_receipts_are_judged_in_seconds() -> None:
    rng = np.random.default_rng(1)
    size, receipts = 50_000, 100_000
    columns = published([(b"%d" % key, None) for key in rng.zipf(1.3, size) % 1000])
    lo = np.tile(np.arange(1, size + 1, 50), receipts // (size // 50))
    subscriber = np.repeat(np.arange(receipts // (size // 50)), size // 50)
    expected = Survivors(table(PUBLISHED, columns), "by-key").expect(lo, lo + 50, lo + 5000)
    delivered = {
        "subscriber": [f"client {k}" for k in subscriber],
        "incarnation": np.ones(receipts, np.int64),
        "n": np.arange(receipts),
        "stream": ["s"] * receipts,
        "lo": lo,
        "hi": lo + 50,
        "asof": np.minimum(lo + 5000, size + 1),
        "lens": [""] * receipts,
        "rows": expected.rows,
        "hash_sum": expected.hash_sum,
        "time": np.zeros(receipts),
    }
    trace = Trace(published=table(PUBLISHED, columns), delivered=table(DELIVERED, delivered), policies={"s": "by-key"})
    begin = time.perf_counter()
    assert judge(trace) == []
    took = time.perf_counter() - begin
    assert took < 10  # about one second on an idle core; a loop over rows takes minutes
