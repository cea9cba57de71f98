"""Content hashes: equal for equal content, however the columns lie in memory, and different otherwise."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.core.errors import BadInput
from tidings.core.hashing import content_hashes, counted_sum, hash_sum, row_hashes
from tidings.core.rows import before_rows, data_rows

values = st.one_of(st.none(), st.binary(max_size=20), st.integers(60, 90).map(lambda size: b"\0" * size))
fields = st.tuples(values, values, st.none() | st.integers(0, 2), st.none() | st.booleans())


def batch_of(rows: list[tuple[bytes | None, bytes | None, int | None, bool | None]]) -> pa.RecordBatch:
    attributes = {
        "price": pa.array([None if row[2] is None else row[2] / 2 for row in rows], pa.float64()),
        "open": pa.array([row[3] for row in rows], pa.bool_()),
    }
    return data_rows(1, [row[0] for row in rows], [row[1] for row in rows], attributes=attributes).batch


@settings(deadline=None, max_examples=200)
@given(st.lists(fields, min_size=2, max_size=12))
def test_rows_have_equal_hashes_exactly_when_they_are_equal(
    rows: list[tuple[bytes | None, bytes | None, int | None, bool | None]],
) -> None:
    hashes = content_hashes(batch_of(rows)).tolist()
    for row, found in zip(rows, hashes, strict=True):
        for other, theirs in zip(rows, hashes, strict=True):
            assert (row == other) == (found == theirs)


@settings(deadline=None)
@given(st.lists(fields, min_size=1, max_size=12), st.data())
def test_a_slice_has_the_hashes_of_the_whole(
    rows: list[tuple[bytes | None, bytes | None, int | None, bool | None]], data: st.DataObject
) -> None:
    batch = batch_of(rows)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert np.array_equal(content_hashes(batch.slice(start, stop - start)), content_hashes(batch)[start:stop])
    assert np.array_equal(content_hashes(batch_of(rows[start:stop])), content_hashes(batch)[start:stop])


def test_null_is_not_empty() -> None:
    null, empty = data_rows(1, [None], [b""]), data_rows(1, [b""], [b""])
    assert null.content[0] != empty.content[0]


def test_key_and_payload_are_told_apart() -> None:
    assert data_rows(1, [b"a"], [b"b"]).content[0] != data_rows(1, [b"b"], [b"a"]).content[0]


def test_what_a_collector_collects_is_part_of_its_content() -> None:
    assert before_rows(9, [3]).content[0] != before_rows(9, [4]).content[0]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 63, 64, 65, 200, 1000])
def test_every_byte_of_a_value_counts(size: int) -> None:
    value = bytes(range(1, 1 + min(size, 250))) * (size // 250 + 1)
    value = value[:size]
    changed = [value[:at] + bytes([value[at] ^ 0x80]) + value[at + 1 :] for at in range(size)]
    longer = [value + b"\0", value[:-1]]
    found = data_rows(1, None, [value, *changed, *longer]).content
    assert len(set(found.tolist())) == size + 3


def test_words_that_change_places_change_the_hash() -> None:
    words = [bytes([n]) * 8 for n in range(1, 13)]
    swapped = [words[n] for n in (1, 0, *range(2, 12))], [words[n] for n in (*range(10), 11, 10)]
    found = data_rows(1, None, [b"".join(words), *[b"".join(order) for order in swapped]]).content
    assert len(set(found.tolist())) == 3


def test_many_rows_are_hashed_like_few() -> None:
    payloads = [b"%d" % n for n in range(10_000)]
    found = data_rows(1, payloads, payloads).content
    assert len(set(found.tolist())) == 10_000
    assert np.array_equal(found[5_000:5_010], data_rows(1, payloads[5_000:5_010], payloads[5_000:5_010]).content)


def test_an_attribute_added_later_does_not_change_older_rows() -> None:
    plain = data_rows(1, [b"k"], [b"p"])
    widened = data_rows(1, [b"k"], [b"p"], attributes={"loc": pa.array([None], pa.string())})
    assert plain.content[0] == widened.content[0]


def test_the_order_of_columns_does_not_matter() -> None:
    batch = data_rows(1, [b"k"], [b"p"]).batch
    assert content_hashes(batch.select(["payload", "before", "key", "kind"]))[0] == content_hashes(batch)[0]


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint16(), pa.int32(), pa.float32(), pa.date32(), pa.timestamp("us", tz="UTC")]
)
def test_fixed_width_attributes_are_hashed_by_value(kind: pa.DataType) -> None:
    column = pa.array([1, 2, 1, None], pa.int32()).cast(pa.int64() if pa.types.is_timestamp(kind) else pa.int32())
    column = column.cast(kind)
    one, two, again, null = data_rows(1, None, [b""] * 4, attributes={"a": column}).content.tolist()
    assert one == again != two
    assert null not in (one, two)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary()])
def test_a_wide_offset_does_not_change_the_hash(kind: pa.DataType) -> None:
    wide = data_rows(1, None, [b""] * 2, attributes={"a": pa.array(["x", "yz"], kind)})
    narrow = data_rows(1, None, [b""] * 2, attributes={"a": pa.array(["x", "yz"], pa.string())})
    assert np.array_equal(wide.content, narrow.content)


def test_a_type_without_a_hash_is_bad_input() -> None:
    with pytest.raises(BadInput, match="tags"):
        content_hashes(data_rows(1, None, [b""], attributes={"tags": pa.array([["x"]])}).batch)


def test_no_rows_have_no_hashes() -> None:
    nothing = content_hashes(batch_of([]))
    assert len(nothing) == 0
    assert hash_sum(nothing) == 0


def test_a_row_hash_binds_content_to_its_number() -> None:
    content = data_rows(1, None, [b"a", b"b"]).content
    here, swapped = row_hashes(np.array([1, 2]), content), row_hashes(np.array([2, 1]), content)
    assert hash_sum(here) != hash_sum(swapped)


def test_hash_sums_add_up_over_disjoint_ranges() -> None:
    rows = data_rows(5, None, [b"%d" % n for n in range(9)])
    assert rows.hash_sum == (rows.slice(5, 8).hash_sum + rows.slice(8, 14).hash_sum) % 2**64


@given(st.integers(0, 10**12), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**4))
def test_counted_sums_add_up_too(lo: int, more: int, yet_more: int, size: int) -> None:
    mid, hi = lo + more, lo + more + yet_more
    assert counted_sum(lo, hi, size) == (counted_sum(lo, mid, size) + counted_sum(mid, hi, size)) % 2**64


def test_counted_sums_see_number_size_and_count() -> None:
    found = {counted_sum(*run) for run in [(1, 9, 10), (2, 10, 10), (1, 8, 10), (1, 9, 11), (2, 9, 10)]}
    assert len(found) == 5
    assert counted_sum(4, 4, 10) == 0


def scramble(word: int) -> int:
    """The finaliser of splitmix64, one word at a time."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def plain_hash(fields: dict[str, bytes | int | None]) -> int:
    """The content hash of one row, written the slow way."""
    golden, total = 0x9E3779B97F4A7C15, 0
    for name, value in fields.items():
        salt = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
        if isinstance(value, bytes):
            word = len(value) * golden
            for place in range((len(value) + 7) // 8):
                piece = int.from_bytes(value[8 * place : 8 * place + 8], "little")
                word += scramble(piece ^ scramble((place + golden) % 2**64))
            total += scramble(word % 2**64 ^ salt)
        elif value is not None:
            total += scramble(value ^ salt)
    return total % 2**64


@settings(deadline=None)
@given(st.lists(st.tuples(values, values), min_size=1, max_size=8))
def test_the_vectorised_hash_is_the_plain_one(rows: list[tuple[bytes | None, bytes | None]]) -> None:
    found = data_rows(1, [key for key, _ in rows], [payload for _, payload in rows]).content
    assert found.tolist() == [plain_hash({"kind": 0, "key": key, "payload": payload}) for key, payload in rows]
