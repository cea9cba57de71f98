"""The key index finds the row that a row replaces; dict and compiled table never differ."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.core import keyindex
from tidings.core.errors import BadInput
from tidings.core.keyindex import KeyIndex

ALIKE = [b"", b"\0", b"a", b"a\0", b"12345678", b"123456780", b"1234567890123456", b"12345678901234567", b"x" * 40]
KEY = st.none() | st.sampled_from(ALIKE) | st.binary(max_size=24)
STEP = st.tuples(st.sampled_from(["keep", "keep", "undo", "forget"]), st.lists(KEY, max_size=40), st.integers(0, 3))


def binary(keys: list[bytes | None], padding: int = 0) -> pa.Array:
    """Keys as an Arrow array that starts inside of a larger one."""
    return pa.array([b"?"] * padding + keys + [b"!"] * padding, pa.binary())[padding : padding + len(keys)]


def numbered(first: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(first, first + count, dtype=np.int64)


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(STEP, max_size=12), seed=st.integers(0, 1 << 64), limit=st.integers(0, 60))
def test_dict_table_and_a_switch_between_them_answer_alike(
    steps: list[tuple[str, list[bytes | None], int]], seed: int, limit: int
) -> None:
    plain: dict[bytes, int] = {}
    indexes = [KeyIndex(dict_limit=1 << 30), KeyIndex(seed, dict_limit=0), KeyIndex(seed, dict_limit=limit)]
    number = 1
    for action, keys, padding in steps:
        expected, after = [], dict(plain)
        for seq, key in enumerate(keys, number):
            expected.append(-1 if key is None else after.get(key, -1))
            if key is not None:
                after[key] = seq
        for index in indexes:
            array = binary(keys, padding)
            if padding:
                previous = index.replace(array, numbered(number, len(keys)))
            else:
                previous = np.array(index.replace_few(keys, number), dtype=np.int64)
            assert previous.tolist() == expected
            if action == "undo":
                index.restore(array, previous)
        if action != "undo":
            plain = after
            number += len(keys)
        if action == "forget":
            low = number // 2
            plain = {key: seq for key, seq in plain.items() if seq >= low}
            for index in indexes:
                index.forget(low)
        assert [len(index) for index in indexes] == [len(plain)] * 3


@pytest.mark.parametrize("length", [7, 10, 16, 17, 33])
def test_a_table_that_grows_key_by_key_is_the_same_table(length: int) -> None:
    index = KeyIndex(seed=7, dict_limit=0)
    keys = [b"%0*d" % (length, i) for i in range(5_000)]
    for number, key in enumerate(keys, 1):
        assert index.replace_few([key], number) == [-1]
    assert index.replace(binary(list(keys)), numbered(5_001, 5_000)).tolist() == list(range(1, 5_001))


@pytest.mark.parametrize("length", [7, 10, 16, 17, 33])
def test_a_table_keeps_all_keys_while_it_grows(length: int) -> None:
    index = KeyIndex(seed=7, dict_limit=0)
    keys = binary([b"%0*d" % (length, i) for i in range(20_000)])
    assert (index.replace(keys, numbered(1, 20_000)) == -1).all()
    assert index.replace(keys[::-1], numbered(20_001, 20_000)).tolist() == list(range(20_000, 0, -1))
    assert len(index) == 20_000
    assert index.compiled and index.nbytes < 20_000 * (150 + 2 * length)
    index.forget(30_001)
    assert len(index) == 10_000
    assert np.count_nonzero(index.replace(keys, numbered(40_001, 20_000)) == -1) == 10_000


def test_few_keys_need_no_compiler() -> None:
    index = KeyIndex()
    index.replace(binary([b"%d" % i for i in range(8000)]), numbered(1, 8000))
    assert not index.compiled and index.nbytes > 8000 * 10
    index.replace(binary([b"%d" % i for i in range(8000)]), numbered(8001, 8000))
    assert index.compiled


def test_without_numba_the_dict_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyindex, "_can_compile", lambda: False)
    index = KeyIndex(dict_limit=0)
    assert index.replace(binary([b"a", b"b", b"a"]), numbered(1, 3)).tolist() == [-1, -1, 1]
    assert not index.compiled and len(index) == 2


@pytest.mark.parametrize("offsets", [[0, 5, 11], [0, 9, 3], [-4, 2, 10], [0, 1 << 30, 10]])
def test_offsets_that_point_elsewhere_are_refused_before_a_kernel_follows_them(offsets: list[int]) -> None:
    stored = np.array([0, 5, 10], dtype=np.int32)
    keys = pa.Array.from_buffers(pa.binary(), 2, [None, pa.py_buffer(stored), pa.py_buffer(b"0123456789")])
    stored[:] = offsets  # Arrow looks at the ends when an array is made, and at nothing when it is received
    index = KeyIndex(dict_limit=0)
    index.replace(binary([b"a"]), numbered(1, 1))
    with pytest.raises(BadInput, match="offsets descend or point outside"):
        index.replace(keys, numbered(2, 2))
    assert len(index) == 1


def test_keys_that_are_not_binary_are_refused() -> None:
    with pytest.raises(BadInput, match="binary"):
        KeyIndex(dict_limit=0).replace(pa.array(["text"]), numbered(1, 1))
