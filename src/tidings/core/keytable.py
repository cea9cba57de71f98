"""The compiled key index: an open-addressing table over flat arrays, and the kernel that marks collected rows.

Slots hold 32 bits of the hash and the number of an entry; entries are dense and in order of first appearance, so the
hot keys of a skewed stream share a few cache lines. An entry is four words: the key's last row, the key itself if it
has at most 16 bytes (as two overlapping 8-byte loads), else its full hash and where its bytes are, and its length.
Equality always compares bytes. A block of keys is hashed first, then its slots are read, then its entries are
compared; each pass asks the memory for what the next one needs. A secret seed keeps crafted keys from all meeting in
one place.

Importing this module imports numba; kernels are compiled on first use and cached. Keys and numbers from outside
reach them read-only, so that each kernel has one type and is compiled once: numbers that happen to be writable must not
bring a compiler into the middle of serving. Offsets from outside are checked before a kernel follows them.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numba
import numpy as np
import pyarrow as pa
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from tidings.core.errors import BadInput
from tidings.core.hashing import Seqs

Words: TypeAlias = NDArray[np.int64]
Keys: TypeAlias = tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.bool_]]
"""Offsets, bytes and validity of a binary array, checked."""
Kernel: TypeAlias = Callable[..., Any]

BLOCK = 128  # ours, because what it asks for (two cache lines per key) still fits the first-level cache
MIN_SLOTS = 1 << 12
ROW, WORD0, WORD1, LENGTH, WIDTH = range(5)  # words of an entry
T_FIRST, T_COUNT, T_SEQS, T_PLACES, T_SHIFT, T_DEAD, T_ALIVE = range(7)  # columns of the table of `Chunks`
ENTRIES, VACANT, ARENA = range(3)  # what is counted: entries in use, those without a row, bytes of long keys
A_SLOTS, A_MASK, A_ENTRIES, A_ROOM, STATE = range(3, 8)  # beside the counts: where the arrays are, and how large
ENTRY_BYTES = 8 * WIDTH
INLINE = 16  # keys up to this length are compared as two words
HIGH, LOW = -1 << 32, (1 << 32) - 1
MIX1, MIX2, MIX3 = [m - (1 << 64) for m in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)]  # splitmix64


def kernel(function: Kernel) -> Kernel:
    return cast(Kernel, numba.njit(cache=True, nogil=True)(function))


def _intrinsic(function: Kernel) -> Kernel:
    return cast(Kernel, intrinsic(function))


@_intrinsic
def load64(context: Any, address: Any) -> Any:
    """The eight bytes at an address, which need not be aligned."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=1)

    return types.int64(types.int64), generate


@_intrinsic
def load32(context: Any, address: Any) -> Any:
    """The four bytes at an address, as a number that is not negative."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()), align=1)
        return builder.zext(word, ir.IntType(64))

    return types.int64(types.int64), generate


@_intrinsic
def load8(context: Any, address: Any) -> Any:
    """The byte at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = builder.load(builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return builder.zext(byte, ir.IntType(64))

    return types.int64(types.int64), generate


@_intrinsic
def store64(context: Any, address: Any, word: Any) -> Any:
    """Write eight bytes to an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def store8(context: Any, address: Any, byte: Any) -> Any:
    """Write one byte to an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = builder.trunc(args[1], ir.IntType(8))
        builder.store(byte, builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def prefetch(context: Any, address: Any) -> Any:
    """Ask the memory for the cache line at an address, which need not be valid."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flag, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        builder.call(function, [builder.inttoptr(args[0], pointer), flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@kernel
def _offsets_fit(offsets: NDArray[np.int32], size: int) -> bool:
    fit = offsets[0] >= 0 and offsets[-1] <= size
    for i in range(len(offsets) - 1):
        fit &= offsets[i] <= offsets[i + 1]
    return fit


@kernel
def _mixed(state: int, word: int) -> int:
    state = (state ^ word) * MIX2
    return state ^ ((state >> 29) & 0x7FFFFFFFF)


@kernel
def _inline_hash(word0: int, word1: int, length: int, seed: int) -> int:
    h = _mixed(_mixed(seed ^ length * MIX1, word0), word1) * MIX3
    return h ^ ((h >> 32) & LOW)


@kernel
def _long_hash(address: int, length: int, seed: int) -> int:
    h = seed ^ length * MIX1
    for i in range(0, length - 8, 8):
        h = _mixed(h, load64(address + i))
    h = _mixed(h, load64(address + length - 8)) * MIX3
    return h ^ ((h >> 32) & LOW)


@kernel
def _short_word(address: int, length: int) -> int:
    """Fewer than eight bytes as one word."""
    word = 0
    for i in range(length):
        word |= load8(address + i) << (8 * i)
    return word


@kernel
def _read(address: int, length: int, seed: int) -> tuple[int, int, int]:
    """Hash and two words of a key; up to `INLINE` bytes the words and the length are the key."""
    if length > INLINE:
        h = _long_hash(address, length, seed)
        return h, h, address
    if length >= 8:
        word0, word1 = load64(address), load64(address + length - 8)
    else:
        word0, word1 = _short_word(address, length), 0
    return _inline_hash(word0, word1, length, seed), word0, word1


@kernel
def _equal(a: int, b: int, length: int) -> bool:
    """Whether more than eight bytes at two addresses are equal."""
    for i in range(0, length - 8, 8):
        if load64(a + i) != load64(b + i):
            return False
    return load64(a + length - 8) == load64(b + length - 8)


@kernel
def _copy(source: int, target: int, length: int) -> None:
    """Copy more than eight bytes."""
    for i in range(0, length - 8, 8):
        store64(target + i, load64(source + i))
    store64(target + length - 8, load64(source + length - 8))


@kernel
def _find(slots: int, mask: int, entries: int, arena: int, h: int, word0: int, word1: int, length: int) -> int:
    """The slot of a key, or the empty one where it belongs."""
    at = h & mask
    while True:
        slot = load64(slots + 8 * at)
        if (slot ^ h) & HIGH == 0 and slot != 0:
            entry = entries + ENTRY_BYTES * ((slot & LOW) - 1)
            if load64(entry + 8 * WORD0) == word0 and load64(entry + 8 * LENGTH) == length:
                there = load64(entry + 8 * WORD1)
                if there == word1 or (length > INLINE and _equal(arena + there, word1, length)):
                    return at
        elif slot == 0:
            return at
        at = (at + 1) & mask


@kernel
def _look_up(
    offsets: NDArray[np.int32], base: int, start: int, size: int, seed: int, slots: int, mask: int, entries: int,
    hashes: Words, words0: Words, words1: Words,
) -> None:  # fmt: skip
    """Hash a block of keys, and ask the memory for their slots and then for their entries."""
    for j in range(size):
        begin = np.int64(offsets[start + j])
        length = np.int64(offsets[start + j + 1]) - begin
        hashes[j], words0[j], words1[j] = _read(base + begin, length, seed)
        prefetch(slots + 8 * (hashes[j] & mask))
    for j in range(size):
        prefetch(entries + ENTRY_BYTES * ((load64(slots + 8 * (hashes[j] & mask)) & LOW) - 1))


@kernel
def _insert(
    at: int, h: int, word0: int, word1: int, length: int, number: int,
    slots: Words, entries: Words, arena: NDArray[np.uint8], counts: Words,
) -> bool:  # fmt: skip
    """Give a new key the empty slot where it belongs; False if there is no room."""
    end = counts[ARENA] + (length if length > INLINE else 0)
    if counts[ENTRIES] == len(entries) or end > len(arena):
        return False
    if length > INLINE:
        _copy(word1, np.int64(arena.ctypes.data) + counts[ARENA], length)
        word1, counts[ARENA] = counts[ARENA], end
    entry = counts[ENTRIES]
    counts[ENTRIES] += 1
    slots[at] = (h & HIGH) | (entry + 1)
    entries[entry, ROW], entries[entry, WORD0] = number, word0
    entries[entry, WORD1], entries[entry, LENGTH] = word1, length
    return True


@kernel
def _replace(
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    valid: NDArray[np.bool_],
    numbers: Seqs,
    first: int,
    slots: Words,
    entries: Words,
    arena: NDArray[np.uint8],
    counts: Words,
    seed: int,
    previous: Seqs,
) -> int:
    """Enter rows from ``first`` on; the row for which there was no room, or their count."""
    base, arena_base = np.int64(data.ctypes.data), np.int64(arena.ctypes.data)
    slot_base, entry_base, mask = np.int64(slots.ctypes.data), np.int64(entries.ctypes.data), len(slots) - 1
    hashes, words0, words1 = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for start in range(first, len(numbers), BLOCK):
        size = min(BLOCK, len(numbers) - start)
        _look_up(offsets, base, start, size, seed, slot_base, mask, entry_base, hashes, words0, words1)
        for j in range(size):
            i = start + j
            if len(valid) > 0 and not valid[i]:
                previous[i] = -1
                continue
            h, word0, word1 = hashes[j], words0[j], words1[j]
            length = np.int64(offsets[i + 1]) - np.int64(offsets[i])
            at = _find(slot_base, mask, entry_base, arena_base, h, word0, word1, length)
            slot = load64(slot_base + 8 * at)
            if slot != 0:
                entry = entry_base + ENTRY_BYTES * ((slot & LOW) - 1)
                previous[i] = load64(entry)
                counts[VACANT] -= previous[i] < 0
                store64(entry, numbers[i])
                continue
            if not _insert(at, h, word0, word1, length, numbers[i], slots, entries, arena, counts):
                return i
            previous[i] = -1
    return len(numbers)


@kernel
def _replace_one(word0: int, word1: int, length: int, number: int, state: Words, seed: int) -> int:
    """Enter one key of up to `INLINE` bytes; the number it replaces, -1 for none, -2 if there was no room."""
    entry_base = state[A_ENTRIES]
    h = _inline_hash(word0, word1, length, seed)
    at = state[A_SLOTS] + 8 * _find(state[A_SLOTS], state[A_MASK], entry_base, 0, h, word0, word1, length)
    slot = load64(at)
    if slot != 0:
        entry = entry_base + ENTRY_BYTES * ((slot & LOW) - 1)
        previous = load64(entry)
        state[VACANT] -= previous < 0
        store64(entry, number)
        return previous
    if state[ENTRIES] == state[A_ROOM]:
        return -2
    entry = entry_base + ENTRY_BYTES * state[ENTRIES]
    state[ENTRIES] += 1
    store64(at, (h & HIGH) | state[ENTRIES])
    store64(entry, number)
    store64(entry + 8 * WORD0, word0)
    store64(entry + 8 * WORD1, word1)
    store64(entry + 8 * LENGTH, length)
    return -1


@kernel
def _restore(
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    valid: NDArray[np.bool_],
    previous: Seqs,
    slots: Words,
    entries: Words,
    arena: NDArray[np.uint8],
    counts: Words,
    seed: int,
) -> None:
    base, arena_base = np.int64(data.ctypes.data), np.int64(arena.ctypes.data)
    slot_base, entry_base, mask = np.int64(slots.ctypes.data), np.int64(entries.ctypes.data), len(slots) - 1
    for i in range(len(previous) - 1, -1, -1):
        if len(valid) == 0 or valid[i]:
            begin = np.int64(offsets[i])
            length = np.int64(offsets[i + 1]) - begin
            h, word0, word1 = _read(base + begin, length, seed)
            slot = slots[_find(slot_base, mask, entry_base, arena_base, h, word0, word1, length)]
            entries[(slot & LOW) - 1, ROW] = previous[i]
            counts[VACANT] += previous[i] < 0


@kernel
def _move(
    entries: Words, arena: NDArray[np.uint8], counts: Words, low: int, seed: int,
    slots: Words, new_entries: Words, new_arena: NDArray[np.uint8], new_counts: Words,
) -> None:  # fmt: skip
    """Enter all keys whose row is at or above low in a new, empty table."""
    base, new_base = np.int64(arena.ctypes.data), np.int64(new_arena.ctypes.data)
    mask = len(slots) - 1
    for old in range(counts[ENTRIES]):
        if entries[old, ROW] < low:
            continue
        length, word1 = entries[old, LENGTH], entries[old, WORD1]
        if length > INLINE:
            h = _long_hash(base + word1, length, seed)
            to = new_counts[ARENA]
            _copy(base + word1, new_base + to, length)
            new_counts[ARENA] += length
            word1 = to
        else:
            h = _inline_hash(entries[old, WORD0], word1, length, seed)
        at = h & mask
        while slots[at] != 0:
            at = (at + 1) & mask
        entry = new_counts[ENTRIES]
        new_counts[ENTRIES] += 1
        slots[at] = (h & HIGH) | (entry + 1)
        for column in range(WIDTH):
            new_entries[entry, column] = entries[old, column]
        new_entries[entry, WORD1] = word1


@kernel
def _position(address: int, count: int, number: int) -> int:
    """Where the last of ``count`` ascending numbers at an address is that is not above the one given, or 0."""
    found = 0
    while count > 1:  # without a branch on the data, so that the searches of several rows overlap
        half = count >> 1
        found += half * int(load64(address + 8 * (found + half)) <= number)
        count -= half
    return found


@kernel
def _mark_older(
    table: Words, firsts: Words, killers: Seqs, victims: Seqs, which: Words, size: int, chunks: Words, starts: Words
) -> int:
    """Mark rows of earlier chunks; the first of them that is not stored, or -1.

    Each pass asks the memory for what the next one needs: where the row's neighbourhood begins, its number, its mark.
    """
    newest, first_base = len(firsts) - 1, np.int64(firsts.ctypes.data)
    for j in range(size):
        victim = victims[which[j]]
        at = _position(first_base, newest, victim)
        chunks[j], starts[j] = at, victim - table[at, T_FIRST]
        if table[at, T_PLACES] != 0:
            prefetch(table[at, T_PLACES] + 8 * (starts[j] >> table[at, T_SHIFT]))
    for j in range(size):
        at = chunks[j]
        if table[at, T_PLACES] != 0 and load64(table[at, T_SEQS] + 8 * (table[at, T_COUNT] - 1)) >= victims[which[j]]:
            starts[j] = load64(table[at, T_PLACES] + 8 * (starts[j] >> table[at, T_SHIFT]))
            prefetch(table[at, T_SEQS] + 8 * starts[j])
    for j in range(size):
        victim, at, position = victims[which[j]], chunks[j], starts[j]
        seqs, count = table[at, T_SEQS], table[at, T_COUNT]
        if seqs != 0:
            if table[at, T_PLACES] == 0:
                position = _position(seqs, count, victim)
            while position < count and load64(seqs + 8 * position) < victim:  # two to four rows share a place
                position += 1
            if position < count and load64(seqs + 8 * position) != victim:
                return victim
        if not 0 <= position < count:
            return victim
        starts[j] = position
        prefetch(table[at, T_DEAD] + 8 * position)
    for j in range(size):
        store64(table[chunks[j], T_DEAD] + 8 * starts[j], killers[which[j]])
        table[chunks[j], T_ALIVE] -= 1
    return -1


@kernel
def _mark(table: Words, firsts: Words, numbers: Seqs, previous: Seqs, low: int) -> tuple[int, int]:
    """Mark victims; how many there were (-1: one is not stored) and the last killer (or the victim that is not)."""
    newest = len(firsts) - 1
    first, count, dead, sparse = firsts[newest], table[newest, T_COUNT], table[newest, T_DEAD], table[newest, T_SEQS]
    which, chunks, starts = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    older, within, last, waiting = 0, 0, 0, 0
    for i in range(len(previous)):
        victim = previous[i]
        if victim >= first:  # most often: within the batch
            position = victim - first
            if sparse != 0:
                position = _position(sparse, count, victim)
            if position >= count or (sparse != 0 and load64(sparse + 8 * position) != victim):
                return -1, victim
            store64(dead + 8 * position, numbers[i])
            within, last = within + 1, i
        elif victim >= low:
            which[waiting] = i
            waiting, last = waiting + 1, i
            if waiting == BLOCK:
                missing = _mark_older(table, firsts, numbers, previous, which, waiting, chunks, starts)
                if missing >= 0:
                    return -1, missing
                older, waiting = older + waiting, 0
    missing = _mark_older(table, firsts, numbers, previous, which, waiting, chunks, starts)
    if missing >= 0:
        return -1, missing
    table[newest, T_ALIVE] -= within
    older += waiting
    return older + within, numbers[last] if older + within else 0


@kernel
def _enter(
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    valid: NDArray[np.bool_],
    first: int,
    begin: int,
    slots: Words,
    entries: Words,
    arena: NDArray[np.uint8],
    counts: Words,
    seed: int,
    table: Words,
    firsts: Words,
    low: int,
    tally: Words,
) -> int:
    """`_replace` and `_mark` in one for the rows of the newest chunk, which are numbered from ``first`` on.

    Returns the row for which there was no room, or their count. ``tally``: rows collected, the last that collects, a
    victim that is not stored (or -1).
    """
    base, arena_base = np.int64(data.ctypes.data), np.int64(arena.ctypes.data)
    slot_base, entry_base, mask = np.int64(slots.ctypes.data), np.int64(entries.ctypes.data), len(slots) - 1
    dead, total = table[len(firsts) - 1, T_DEAD], len(offsets) - 1
    hashes, words0, words1 = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    victims, killers, which = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.arange(BLOCK)
    chunks, starts = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    within, waiting, full = 0, 0, total
    for start in range(begin, total, BLOCK):
        size = min(BLOCK, total - start)
        _look_up(offsets, base, start, size, seed, slot_base, mask, entry_base, hashes, words0, words1)
        for j in range(size):
            i = start + j
            if len(valid) > 0 and not valid[i]:
                continue
            h, word0, word1 = hashes[j], words0[j], words1[j]
            length = np.int64(offsets[i + 1]) - np.int64(offsets[i])
            at = _find(slot_base, mask, entry_base, arena_base, h, word0, word1, length)
            slot = load64(slot_base + 8 * at)
            if slot == 0:
                if not _insert(at, h, word0, word1, length, first + i, slots, entries, arena, counts):
                    full = i
                    break
                continue
            place = entry_base + ENTRY_BYTES * ((slot & LOW) - 1)
            victim = load64(place)
            store64(place, first + i)
            if victim >= first:  # most often: within the batch
                store64(dead + 8 * (victim - first), first + i)
                within, tally[1] = within + 1, first + i
            elif victim >= low:
                victims[waiting], killers[waiting] = victim, first + i
                waiting, tally[1] = waiting + 1, first + i
            else:
                counts[VACANT] -= victim < 0
        if waiting > 0:  # never more than a block of them
            tally[2] = _mark_older(table, firsts, killers, victims, which, waiting, chunks, starts)
            tally[0] += waiting
            waiting = 0
        if full < total or tally[2] >= 0:
            break
    table[len(firsts) - 1, T_ALIVE] -= within
    tally[0] += within
    return full


def _read_only(numbers: Seqs) -> Seqs:
    view = numbers.view()
    view.flags.writeable = False
    return view


def mark(table: Words, numbers: Seqs, previous: Seqs, low: int) -> tuple[int, int]:
    """Mark the rows at or above low that are replaced, in the chunks of a table; how many, and the last killer."""
    killed, last = _mark(table, table[:, T_FIRST].copy(), _read_only(numbers), previous, low)
    assert killed >= 0, f"row {last} is in the key index but not stored"
    return killed, last


class KeyTable:
    """The last number of each key, for many keys."""

    def __init__(self, seed: int, expected: int) -> None:
        self._seed = np.int64(seed & 0x7FFFFFFFFFFFFFFF)
        self._counts: Words = np.zeros(STATE, np.int64)
        slots = MIN_SLOTS
        while slots < 2 * expected:
            slots *= 2
        self._slots: Words = np.zeros(slots, np.int64)
        self._entries: Words = np.empty((slots // 2, WIDTH), np.int64)
        self._arena: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._counts[A_SLOTS:] = self._slots.ctypes.data, slots - 1, self._entries.ctypes.data, len(self._entries)

    def __len__(self) -> int:
        return int(self._counts[ENTRIES] - self._counts[VACANT])

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._slots.nbytes + self._entries.nbytes + self._arena.nbytes

    def replace(self, keys: pa.Array, numbers: Seqs) -> Seqs:
        """Enter keys with their ascending numbers; the number each one replaces, or -1."""
        offsets, data, valid = buffers(keys)
        numbers = _read_only(numbers)
        previous = np.empty(len(numbers), np.int64)
        done = 0
        while True:
            done = _replace(
                offsets, data, valid, numbers, done,
                self._slots, self._entries, self._arena, self._counts, self._seed, previous,
            )  # fmt: skip
            if done == len(numbers):
                return previous
            self._grow(int(offsets[done + 1]) - int(offsets[done]))

    def enter(self, keys: Keys, first: int, table: Words, low: int) -> tuple[int, int]:
        """Enter the keys of the newest chunk of a table, numbered from ``first`` on, and mark what they replace.

        How many rows at or above low were collected, and the last that collects.
        """
        firsts = table[:, T_FIRST].copy()
        tally = np.array([0, 0, -1])
        done, total = 0, len(keys[0]) - 1
        while True:
            done = _enter(
                *keys, first, done, self._slots, self._entries, self._arena, self._counts, self._seed,
                table, firsts, low, tally,
            )  # fmt: skip
            assert tally[2] < 0, f"row {tally[2]} is in the key index but not stored"
            if done == total:
                return int(tally[0]), int(tally[1])
            self._grow(int(keys[0][done + 1]) - int(keys[0][done]))

    def replace_few(self, keys: Sequence[bytes | None], first: int) -> list[int]:
        """Enter keys numbered from ``first`` on, without making arrays of them."""
        previous: list[int] = []
        for number, key in enumerate(keys, first):
            if key is None:
                previous.append(-1)
                continue
            length = len(key)
            if length > INLINE:
                previous += self.replace(pa.array([key], pa.binary()), np.array([number])).tolist()
                continue
            word0 = int.from_bytes(key[:8], "little", signed=length >= 8)
            word1 = int.from_bytes(key[-8:], "little", signed=True) if length >= 8 else 0
            replaced = _replace_one(word0, word1, length, number, self._counts, self._seed)
            if replaced < -1:
                self._grow(length)
                replaced = _replace_one(word0, word1, length, number, self._counts, self._seed)
            previous.append(replaced)
        return previous

    def restore(self, keys: pa.Array, previous: Seqs) -> None:
        """Undo the `replace` that returned these numbers."""
        _restore(*buffers(keys), previous, self._slots, self._entries, self._arena, self._counts, self._seed)

    def forget(self, low: int) -> None:
        """Drop the keys whose last number is below low."""
        staying = int(np.count_nonzero(self._entries[: self._counts[ENTRIES], ROW] >= low))
        self._rebuild(staying, len(self._arena), low)

    def _grow(self, length: int) -> None:
        """Make room for a key of this length."""
        if self._counts[ENTRIES] == len(self._entries):
            self._rebuild(2 * len(self._entries), len(self._arena), 0)
        if length > INLINE and self._counts[ARENA] + length > len(self._arena):
            self._arena = np.concatenate([self._arena, np.empty(max(len(self._arena), 64 * length), np.uint8)])

    def _rebuild(self, entries: int, arena: int, low: int) -> None:
        new = KeyTable(int(self._seed), entries)
        new._arena = np.empty(arena, np.uint8)
        _move(
            self._entries, self._arena, self._counts, low, self._seed,
            new._slots, new._entries, new._arena, new._counts,
        )  # fmt: skip
        self._slots, self._entries, self._arena, self._counts = new._slots, new._entries, new._arena, new._counts


def buffers(keys: pa.Array) -> Keys:
    """Offsets, bytes and validity of a binary array, checked; an empty validity means there is no null."""
    if keys.type != pa.binary():
        raise BadInput(f"keys must be binary, not {keys.type}")
    _, offset_buffer, data_buffer = keys.buffers()
    first, count = keys.offset, len(keys)
    data = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    offsets = np.frombuffer(offset_buffer, np.int32)[first : first + count + 1]
    offsets.flags.writeable = data.flags.writeable = False  # one type for the compiler, wherever the keys come from
    if len(offsets) <= count or not _offsets_fit(offsets, len(data)):
        raise BadInput("keys: offsets descend or point outside of the key bytes")
    valid = np.empty(0, np.bool_)
    if keys.null_count:
        valid = keys.is_valid().to_numpy(zero_copy_only=False)
    return offsets, data, valid
