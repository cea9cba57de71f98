"""Modules that add protocol families from outside: TIDINGS_PLUGINS names them, separated by commas.

A process imports them when it first meets a family that it does not know.
"""

from __future__ import annotations

import os
from importlib import import_module

from tidings.core.errors import TidingsError

VARIABLE = "TIDINGS_PLUGINS"


def load() -> None:
    """Import what the environment names; raises `TidingsError` if that cannot be done."""
    for name in filter(None, [part.strip() for part in os.environ.get(VARIABLE, "").split(",")]):
        try:
            import_module(name)
        except ImportError as error:
            raise TidingsError(f"{VARIABLE} names {name!r}, which cannot be imported: {error}") from error
