"""Pauses between attempts to start something that keeps failing."""

from __future__ import annotations

PAUSE = 0.1  # seconds before the first attempt; ours, because most failures are single
PAUSE_MAX = 10.0  # ours: a full disk or a port in use is tried that often


def pause_after(failures: int) -> float:
    """Seconds to wait after so many failures in a row: doubles each time, up to `PAUSE_MAX`."""
    return min(PAUSE_MAX, PAUSE * 2.0 ** min(max(failures - 1, 0), 10))
