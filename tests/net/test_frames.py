"""Frames: whatever way bytes are cut up, the same frames come out; what is no frame is a typed error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.net.frames import ARENA, PREFIX, Arena, FrameError, FrameReader, Outgoing, frame, gather, padded

SIZES = [0, 0, 0, 1, 8, 100, 3000, 5000, 66_000, ARENA + 1, 3 * ARENA]
"""Of bodies: none, small ones, larger than the first arena, than what is received apart, than the largest arena."""


def written(outgoing: Outgoing) -> bytes:
    return b"".join(outgoing.chunks)


def read(data: bytes, cuts: list[int], **options: int) -> list[tuple[bytes, bytes]]:
    """Feed a reader in pieces of these sizes, over and over."""
    out: list[tuple[bytes, bytes]] = []
    reader = FrameReader(lambda header, body: out.append((header, bytes(body))), **options)
    at = turn = 0
    while at < len(data):
        room = reader.room()
        assert len(room) > 0
        count = min(cuts[turn % len(cuts)], len(room), len(data) - at)
        room[:count] = data[at : at + count]
        reader.fed(count)
        at += count
        turn += 1
    assert not reader.midway
    return out


frames = st.lists(st.tuples(st.binary(min_size=1, max_size=80), st.sampled_from(SIZES)), max_size=12)
chunkings = st.lists(st.integers(1, 2000) | st.sampled_from([4096, 65_536, 1 << 20]), min_size=1, max_size=20)


@given(frames, chunkings)
@settings(max_examples=150, deadline=None)
def test_any_chunking_gives_the_same_frames(sent: list[tuple[bytes, int]], cuts: list[int]) -> None:
    bodies = [bytes([at % 251]) * size for at, (_, size) in enumerate(sent)]
    data = b"".join(
        [written(frame(header, (body,) if body else ())) for (header, _), body in zip(sent, bodies, strict=True)]
    )
    if len(data) > 300_000:
        cuts = [max(cut, 500) for cut in cuts]  # a byte at a time is for small ones
    assert read(data, cuts) == [(header, body) for (header, _), body in zip(sent, bodies, strict=True)]


@given(st.lists(frames, min_size=2, max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_readers_that_share_an_arena_do_not_disturb_each_other(
    sent: list[list[tuple[bytes, int]]], data: st.DataObject
) -> None:
    arena = Arena()
    got: list[list[tuple[bytes, int]]] = [[] for _ in sent]
    readers = [
        FrameReader(lambda header, body, out=out: out.append((header, len(body))), arena=arena)  # type: ignore[misc]
        for out in got
    ]
    left = [
        b"".join([written(frame(header, (bytes(size),) if size else ())) for header, size in each]) for each in sent
    ]
    while any(left):
        which = data.draw(st.sampled_from([at for at, rest in enumerate(left) if rest]))
        room = readers[which].room()
        pieces = [1, 7, 100, 70_000] if len(left[which]) < 1000 else [500, 70_000]
        count = min(data.draw(st.sampled_from(pieces)), len(room), len(left[which]))
        room[:count] = left[which][:count]
        readers[which].fed(count)
        left[which] = left[which][count:]
    assert got == sent


@given(st.binary(max_size=20_000), chunkings, st.sampled_from([64, 4096, 1 << 20]))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_frames_or_a_typed_error(data: bytes, cuts: list[int], limit: int) -> None:
    reader = FrameReader(lambda header, body: None, limit)
    at = turn = 0
    try:
        while at < len(data):
            room = reader.room()
            count = min(cuts[turn % len(cuts)], len(room), len(data) - at)
            room[:count] = data[at : at + count]
            reader.fed(count)
            at += count
            turn += 1
    except FrameError as error:
        refused = error.code
    else:
        refused = ""
    assert refused in ("", "frame", "too_large")


@given(frames, st.data())
@settings(max_examples=100, deadline=None)
def test_a_flipped_byte_never_raises_anything_else(sent: list[tuple[bytes, int]], data: st.DataObject) -> None:
    whole = bytearray(b"".join([written(frame(header, (bytes(min(size, 5000)),))) for header, size in sent]))
    if whole:
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] ^= data.draw(st.integers(1, 255))
        reader = FrameReader(lambda header, body: None, 100_000)
        fed = 0
        try:
            while fed < len(whole):
                room = reader.room()
                count = min(len(room), len(whole) - fed)
                room[:count] = whole[fed : fed + count]
                reader.fed(count)
                fed += count
        except FrameError:
            pass


def test_a_frame_that_announces_4_gib_is_refused_before_any_memory_is_taken() -> None:
    with pytest.raises(FrameError, match="limit") as caught:
        read(PREFIX.pack(0xFFFFFFF0, 16) + bytes(100), [108])
    assert caught.value.code == "too_large"


@pytest.mark.parametrize(("length", "head"), [(0, 0), (10, 0), (10, 11), (12, 9)])
def test_lengths_that_contradict_each_other_are_no_frame(length: int, head: int) -> None:
    with pytest.raises(FrameError) as caught:
        read(PREFIX.pack(length, head) + bytes(64), [72])
    assert caught.value.code == "frame"


@pytest.mark.parametrize("size", [8, 3000, 70_000, 2 * ARENA])
@pytest.mark.parametrize("header", [b"h", b"header!!", b"h" * 29])
def test_a_body_lies_on_a_multiple_of_eight_and_is_not_written_to_again(size: int, header: bytes) -> None:
    kept: list[memoryview] = []
    reader = FrameReader(lambda header, body: kept.append(body))
    for value in (1, 2, 3):
        data = written(frame(header, (bytes([value]) * size,)))
        at = 0
        while at < len(data):
            room = reader.room()
            count = min(len(room), len(data) - at)
            room[:count] = data[at : at + count]
            reader.fed(count)
            at += count
    assert [bytes(body) for body in kept] == [bytes([value]) * size for value in (1, 2, 3)]
    assert all(np.frombuffer(body, np.uint8).ctypes.data % 8 == 0 for body in kept)


def test_a_frame_keeps_the_buffers_it_was_given() -> None:
    body = bytes(100_000)
    outgoing = frame(b"head", (body,))
    assert outgoing.chunks[1] is body
    assert outgoing.size == 8 + padded(4) + len(body) == len(written(outgoing))


def test_small_pieces_are_gathered_and_large_ones_left_alone() -> None:
    large = bytes(1 << 20)
    out = gather([b"a", b"b", large, b"c", large, large, b"d"])
    assert [bytes(each[:2]) for each in out] == [b"ab", bytes(2), b"c", bytes(2), bytes(2), b"d"]
    assert out[1] is large
