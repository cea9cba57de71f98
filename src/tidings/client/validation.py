"""What callers may pass: checked where they call, because a message that makes no sense costs its whole connection."""

from __future__ import annotations

import math
import operator
from typing import SupportsIndex

from tidings.core.errors import BadInput
from tidings.core.ids import FIRST, NEVER
from tidings.protocols.services.cursors import LONGEST_NAME


def number(what: str, value: object, lowest: int = FIRST) -> int:
    """An integer of [lowest, NEVER], numpy's too; raises `BadInput`."""
    whole = isinstance(value, SupportsIndex) and not isinstance(value, bool)
    found = operator.index(value) if whole else lowest - 1  # type: ignore[arg-type]
    if not lowest <= found <= NEVER:
        raise BadInput(f"{what}={_shown(value)}: it is an integer from {lowest} to {NEVER}")
    return found


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
    """A string of 1 to LONGEST_NAME characters that can be sent; raises `BadInput`."""
    found = text(what, value)
    if not 0 < len(found) <= LONGEST_NAME:
        raise BadInput(f"{what}={_shown(value)}: it has {len(found)} characters; use 1 to {LONGEST_NAME}")
    return found


def seconds(what: str, value: object) -> float:
    """A time longer than none; raises `BadInput`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise BadInput(f"{what}={_shown(value)}: it is a number of seconds above 0")
    return float(value)


def _shown(value: object) -> str:
    shown = repr(value) if not isinstance(value, int) or abs(value) <= 1 << 128 else "a number of more than 128 bits"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
