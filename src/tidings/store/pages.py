"""A check of an LMDB file before LMDB maps it: whether its trees can be walked without leaving the file.

LMDB trusts its file. A page number outside the file is a bus error, a broken node is an abort, and a page that is both
free and in use is overwritten later; each of these would end the process. So the pages are walked here first,
read-only and within bounds: both meta pages, every branch and leaf page of the two trees (the free list and the
entries), the first page of every large value, and every page number in the free list. Values are not read; they carry
their own checksums. What is wrong raises `StoreDamaged`.

The layout is that of LMDB 0.9 (data version 1) on a 64-bit little-endian machine.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from struct import Struct as Packer
from typing import NamedTuple

import numpy as np

from tidings.store.errors import StoreDamaged

META_MAGIC, META_VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW, META, DIRTY = 0x01, 0x02, 0x04, 0x08, 0x10
BIG_DATA = 0x01
NO_PAGE = (1 << 64) - 1
MAX_DEPTH = 32  # LMDB's own limit
HEADER = 16
UNWRITTEN = 1 << 28  # ours: free pages at the end may never have been written; a transaction has no more than this
PAGE_SIZES = (4096, 8192, 16384, 32768, 65536)

_META = Packer("<IIQQ")  # magic, version, address, size of the map
_TREE = Packer("<IHHQQQQQ")  # pad (of the first tree: page size), flags, depth, pages of three sorts, entries, root
_TAIL = Packer("<QQ")  # last page, transaction
_PAGE = Packer("<QHHHH")  # number, pad, flags, lower, upper
_NODE = Packer("<HHHH")  # low and high half of size or page, flags, bytes of key


class Meta(NamedTuple):
    """What a meta page says."""

    page_size: int
    last_page: int
    transaction: int
    depths: tuple[int, int]
    roots: tuple[int, int]


def inspect(path: Path) -> None:
    """Raise `StoreDamaged` unless the file can be given to LMDB."""
    size = path.stat().st_size
    if size < 2 * PAGE_SIZES[0]:
        raise StoreDamaged(f"{path} has {size} bytes, less than its two meta pages")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        first = _meta(path, data, 0)
        second = _meta(path, data, first.page_size)
        if first.page_size != second.page_size or abs(first.transaction - second.transaction) != 1:
            raise StoreDamaged(f"{path}: the meta pages do not follow each other: {first} and {second}")
        meta = max(first, second, key=lambda each: each.transaction)
        walk = _Walk(path, data, meta)
        free = walk.tree(0)
        walk.tree(1)
        walk.mark_free(free)


def _meta(path: Path, data: mmap.mmap, at: int) -> Meta:
    if at + 4096 > len(data):
        raise StoreDamaged(f"{path} has {len(data)} bytes, less than its two meta pages")
    _, _, flags, _, _ = _PAGE.unpack_from(data, at)
    magic, version, _, _ = _META.unpack_from(data, at + HEADER)
    trees = [_TREE.unpack_from(data, at + HEADER + _META.size + tree * _TREE.size) for tree in (0, 1)]
    last, transaction = _TAIL.unpack_from(data, at + HEADER + _META.size + 2 * _TREE.size)
    page_size = trees[0][0]
    if flags != META or magic != META_MAGIC or version != META_VERSION or page_size not in PAGE_SIZES:
        raise StoreDamaged(f"{path}: no meta page at byte {at}")
    if transaction & 1 != (at > 0) or (last + 1) * page_size > len(data) + UNWRITTEN:
        raise StoreDamaged(
            f"{path} has {len(data)} bytes; transaction {transaction} says that page {last} of {page_size} is the last"
        )
    return Meta(page_size, last, transaction, (trees[0][2], trees[1][2]), (trees[0][7], trees[1][7]))


class _Walk:
    """Visits pages, each at most once."""

    def __init__(self, path: Path, data: mmap.mmap, meta: Meta) -> None:
        self.path = path
        self.data = data
        self.meta = meta
        self.used = np.zeros(meta.last_page + 1, dtype=np.bool_)
        self.used[:2] = True

    def wrong(self, page: int, what: str) -> StoreDamaged:
        return StoreDamaged(f"{self.path}: page {page} {what}")

    def tree(self, which: int) -> list[tuple[int, int]]:
        """Visit a tree; where its values lie that are within a page or begin one: (byte, size)."""
        root, depth = self.meta.roots[which], self.meta.depths[which]
        values: list[tuple[int, int]] = []
        if root == NO_PAGE:
            return values
        if not 0 < depth <= MAX_DEPTH:
            raise self.wrong(root, f"is the root of a tree of depth {depth}")
        level = [root]
        for above_leaves in range(depth - 1, -1, -1):
            below: list[int] = []
            last_key = b""
            for page in level:
                begin, nodes = self._nodes(page, BRANCH if above_leaves else LEAF)
                for at, node in enumerate(nodes):
                    key, where = self._key(page, begin, node)
                    if which == 1 and at > 0 and key <= last_key:  # the free list's keys are integers
                        raise self.wrong(page, f"has key {key.hex()} after {last_key.hex()}")
                    last_key = key if which == 1 else b""
                    if above_leaves:
                        low, high, top, _ = _NODE.unpack_from(self.data, begin + node)
                        below.append(low | high << 16 | top << 32)
                    else:
                        values.append(self._value(page, begin, node, where))
            level = below
        return values

    def _claim(self, page: int, count: int) -> int:
        """Pages are seen for the first time; the byte where they begin."""
        size = self.meta.page_size
        if not 2 <= page <= page + count - 1 <= self.meta.last_page or (page + count) * size > len(self.data):
            raise self.wrong(page, f"and {count - 1} more do not lie in the {len(self.data)} bytes of the file")
        if self.used[page : page + count].any():
            raise self.wrong(page, f"or one of {count - 1} more is in use twice")
        self.used[page : page + count] = True
        return page * size

    def _nodes(self, page: int, flag: int) -> tuple[int, list[int]]:
        begin = self._claim(page, 1)
        number, _, flags, lower, upper = _PAGE.unpack_from(self.data, begin)
        if number != page or flags & ~DIRTY != flag or not HEADER < lower <= upper <= self.meta.page_size or lower & 1:
            raise self.wrong(page, f"is not the page of sort {flag} that its tree wants there")
        nodes = np.frombuffer(self.data[begin + HEADER : begin + lower], "<u2")
        if int(nodes.min()) < upper or int(nodes.max()) > self.meta.page_size - _NODE.size:
            raise self.wrong(page, "has a node outside of it")
        return begin, nodes.tolist()

    def _key(self, page: int, begin: int, node: int) -> tuple[bytes, int]:
        _, _, _, size = _NODE.unpack_from(self.data, begin + node)
        at = node + _NODE.size
        if at + size > self.meta.page_size:
            raise self.wrong(page, "has a key that leaves it")
        return self.data[begin + at : begin + at + size], at + size

    def _value(self, page: int, begin: int, node: int, where: int) -> tuple[int, int]:
        low, high, flags, _ = _NODE.unpack_from(self.data, begin + node)
        size = low | high << 16
        if flags == 0 and where + size <= self.meta.page_size:
            return begin + where, size
        if flags != BIG_DATA or where + 8 > self.meta.page_size:
            raise self.wrong(page, "has a value that leaves it")
        large = int.from_bytes(self.data[begin + where : begin + where + 8], "little")
        count = (HEADER + size + self.meta.page_size - 1) // self.meta.page_size
        at = self._claim(large, count)
        number, _, flags, low, high = _PAGE.unpack_from(self.data, at)
        if number != large or flags & ~DIRTY != OVERFLOW or low | high << 16 != count:
            raise self.wrong(large, f"is not the first of {count} that hold a value")
        return at + HEADER, size

    def mark_free(self, lists: list[tuple[int, int]]) -> None:
        """No page is free and in use, or free twice."""
        for at, size in lists:
            count = int.from_bytes(self.data[at : at + 8], "little") if size >= 8 else -1
            if not 0 <= count <= size // 8 - 1:
                raise StoreDamaged(f"{self.path}: a list of free pages at byte {at} says it has {count} of them")
            pages = np.frombuffer(self.data[at + 8 : at + 8 + 8 * count], "<u8")
            if not count:
                continue
            if int(pages.min()) < 2 or int(pages.max()) > self.meta.last_page:
                raise StoreDamaged(f"{self.path}: a page outside of the file is said to be free")
            if self.used[pages].any() or len(np.unique(pages)) < count:
                raise StoreDamaged(f"{self.path}: a page is said to be free that is in use, or free twice")
            self.used[pages] = True
