"""Memory of a replica process: kept for the next batch instead of given back to the system after each.

A batch of 16k events lives for milliseconds in arrays of 100 kB and more. By default such arrays are mapped and
unmapped one by one, and the kernel clears every page again: at least 14% of a replica's time (`perf` on a replica under
`tidings bench throughput --only columnar-memory`; decision 0006). What is kept is
bounded by what was once needed.
"""

from __future__ import annotations

import ctypes
import sys

import pyarrow as pa

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
MAPPED = 32 << 20  # bytes from which an array is mapped by itself: the most that glibc allows
SPARE = 128 << 20  # bytes at the end of the heap that are kept; ours, the bound of a host's queue


def keep_memory() -> None:
    """Let glibc keep what is freed, and Arrow use it too; does nothing elsewhere."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        for what, value in ((M_MMAP_THRESHOLD, MAPPED), (M_TRIM_THRESHOLD, SPARE), (M_TOP_PAD, 1 << 20)):
            libc.mallopt(what, value)
        pa.set_memory_pool(pa.system_memory_pool())
