"""What can go wrong, as types: callers match on the class, people read the text.

A text names what went wrong, with which value, and where it helps what to do next.
"""

from __future__ import annotations


class TidingsError(Exception):
    """Everything Tidings raises on purpose."""


class BadInput(TidingsError):
    """A value from outside makes no sense; nothing has changed."""


class BadFilter(BadInput):
    """A filter that is not in the language; ``line`` and ``column`` count from 1, ``piece`` is the text found there."""

    def __init__(self, why: str, line: int = 1, column: int = 1, piece: str = "") -> None:
        near = f" at {piece!r}" if piece else ""
        super().__init__(f"filter, line {line}, column {column}{near}: {why}")
        self.why = why
        self.line = line
        self.column = column
        self.piece = piece


class BadAttribute(BadInput):
    """A declared attribute, or a value for one, that makes no sense; ``name`` says which."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class NotFinal(BadInput):
    """A collector that would collect an event without implying what that event collects (A1.8)."""


class Contradiction(TidingsError):
    """Gryphon's state E (A2.4): two claims about one range that cannot both be true. Neither is merged away."""


class AsofGone(TidingsError):
    """Rows as of a point below the floor are asked for; ask again at or above ``floor``."""

    def __init__(self, message: str, floor: int) -> None:
        super().__init__(message)
        self.floor = floor


class NotYet(TidingsError):
    """What is asked for or offered lies beyond the horizon; come back when ``horizon`` has moved."""

    def __init__(self, message: str, horizon: int) -> None:
        super().__init__(message)
        self.horizon = horizon
