"""A lens is a filter with its version: what a span has been seen through."""

from __future__ import annotations

import msgspec


class Lens(msgspec.Struct, frozen=True, gc=False):
    """SQL text over attributes; empty text lets every row through."""

    text: str = ""
    version: int = 0


ALL = Lens()
"""The lens between regions and in the fabrics."""
