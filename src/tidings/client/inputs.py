"""What callers may pass: checked where they call, because a message that makes no sense costs its whole connection."""

from __future__ import annotations

import math

from tidings.core.errors import BadInput
from tidings.core.ids import FIRST, NEVER

LONGEST = 1024  # characters of a name; ours, as many as a receipt has room for


def number(what: str, value: object, lowest: int = FIRST) -> int:
    """An integer of [lowest, NEVER]; raises `BadInput`."""
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= NEVER:
        raise BadInput(f"{what}={_shown(value)}: it is an integer from {lowest} to {NEVER}")
    return int(value)


def text(what: str, value: object) -> str:
    """A string that can be sent; raises `BadInput`."""
    if not isinstance(value, str):
        raise BadInput(f"{what}={_shown(value)}: it is a string, not {type(value).__name__}")
    try:
        if not value.isascii():
            value.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{what}={_shown(value)}: {error}; use text that UTF-8 can encode") from None
    return str(value)


def name(what: str, value: object) -> str:
    """A string of 1 to LONGEST characters that can be sent; raises `BadInput`."""
    found = text(what, value)
    if not 0 < len(found) <= LONGEST:
        raise BadInput(f"{what}={_shown(value)}: it has {len(found)} characters; use 1 to {LONGEST}")
    return found


def seconds(what: str, value: object) -> float:
    """A time longer than none; raises `BadInput`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise BadInput(f"{what}={_shown(value)}: it is a number of seconds above 0")
    return float(value)


def _shown(value: object) -> str:
    shown = repr(value) if not isinstance(value, int) or abs(value) <= 1 << 128 else "a number of more than 128 bits"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
