"""Garbage-collection policies of a stream (A1.43-A1.45), written the way a user writes them.

    none                nothing is collected unless somebody publishes a collecting event
    by-key              an event collects the earlier event with its key
    keep-last:N         the owner publishes "before n" so that about the last N events stay
    older-than:7d       the owner publishes "before n" for what is older (units s, m, h, d; seconds without one)

They combine with commas. Collection itself is caused by events alone (`History` applies them), so every node that
knows the stream knows what is collected; the policy only tells the owner when to publish the next "before n".
Collecting events do not count as kept and are no reason for another one, or an idle stream would collect forever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tidings.core.errors import BadInput

if TYPE_CHECKING:
    from tidings.core.history import History

SLACK = 8  # ours, because an eighth more than asked for is cheap to store, and makes collecting events rare
MOST = 1 << 60  # ours: more events than any stream has, and sums of them fit into 64 bits
READABLE = 4300  # digits that Python reads as a number
SHORTEST, LONGEST = 1e-3, 36_525 * 86400.0  # seconds; ours: clocks tell no less, and nobody waits for more: a century
SHOWN = 40  # characters of a text that is told to be wrong
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
USAGE = "use none, or by-key, keep-last:N, older-than:7d combined with commas"


class GcPolicy(msgspec.Struct, frozen=True, gc=False):
    """What makes an event of a stream superfluous."""

    by_key: bool = False
    keep_last: int | None = None
    older_than: float | None = None  # seconds

    @classmethod
    def parse(cls, text: str, bounded: bool = True) -> GcPolicy:
        """The policy a user wrote; `BadInput` says what is wrong with it.

        A committed policy is read without the bounds: they may have been different when it was accepted.
        """
        found: dict[str, bool | int | float] = {}
        parts = [part.strip() for part in text.split(",")]
        for part in parts:
            name, colon, value = part.partition(":")
            field = name.replace("-", "_")
            if field in found or (part == "none" and len(parts) > 1):
                raise BadInput(
                    f"garbage collection {_clipped(text)!r}: {_clipped(part)!r} does not go with the rest; {USAGE}"
                )
            if part == "by-key":
                found[field] = True
            elif name == "keep-last" and colon:
                found[field] = _count(value, bounded)
            elif name == "older-than" and colon:
                found[field] = _seconds(value, bounded)
            elif part != "none":
                raise BadInput(f"garbage collection {_clipped(text)!r}: {_clipped(part)!r} is unknown; {USAGE}")
        return msgspec.convert(found, cls)

    def __str__(self) -> str:
        parts = ["by-key"] if self.by_key else []
        if self.keep_last is not None:
            parts.append(f"keep-last:{self.keep_last}")
        if self.older_than is not None:
            parts.append(f"older-than:{_duration(self.older_than)}")
        return ",".join(parts) or "none"


NONE = GcPolicy()


def due_before(policy: GcPolicy, history: History, now: float) -> int | None:
    """The n of a "before n" event that the owner should publish now, or None while it is not worth one."""
    due: list[int] = []
    if policy.keep_last is not None:
        kept = policy.keep_last
        n = _leave(history, kept)
        if n - history.low - history.collectors_in(history.low, n) >= max(1, kept // SLACK):
            due.append(n)
    if policy.older_than is not None:
        cutoff = now - policy.older_than
        oldest = history.oldest_at()
        if oldest is not None and oldest < cutoff - policy.older_than / SLACK:
            due.append(history.first_since(cutoff))
    return max(due, default=None)


def _leave(history: History, kept: int) -> int:
    """The largest n that leaves this many numbers other than collecting events in [n, horizon)."""
    n = history.horizon - kept
    while n > history.low:
        lower = history.horizon - kept - history.collectors_in(n, history.horizon)
        if lower == n:
            break
        n = lower
    return max(n, history.low)


def _count(text: str, bounded: bool) -> int:
    count = int(text) if text.isascii() and text.isdigit() and len(text) <= READABLE else 0
    if count == 0 or (bounded and count > MOST):
        raise BadInput(f"keep-last:{_clipped(text)}: N must be a whole number from 1 to {MOST}")
    return count


def _seconds(text: str, bounded: bool) -> float:
    number, unit = (text[:-1], UNITS[text[-1]]) if text and text[-1] in UNITS else (text, 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = 0.0
    if not (SHORTEST <= seconds <= LONGEST if bounded else 0.0 < seconds < float("inf")):  # nor if it is no number
        raise BadInput(
            f"older-than:{_clipped(text)}: must be a time such as 90s, 12h or 7d, "
            f"from {SHORTEST:g}s to {LONGEST / UNITS['d']:.0f}d"
        )
    return seconds


def _clipped(text: str) -> str:
    """What a user wrote, in a line that can be read."""
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def _duration(seconds: float) -> str:
    """A text that parses to exactly these seconds."""
    for unit, size in reversed(UNITS.items()):
        number = f"{seconds / size:.0f}"
        if float(number) * size == seconds:
            return number + unit
    return f"{seconds!r}s"
