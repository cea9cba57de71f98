"""Tidings: every event reaches everyone who asked for it, once, in order, in every region.

    async with tidings.connect("tidings://127.0.0.1:7400", client_id="web-17") as t:
        await t.publish("prices", key=b"IBM", payload=b"...")

`tidings.sync.connect` is the same for blocking code; `tidings.errors` has everything that can be raised.
Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidings import sync
    from tidings.client import errors
    from tidings.client.cache import Cache
    from tidings.client.connection import Connection, connect
    from tidings.client.errors import TidingsError
    from tidings.client.events import Ack, Event

__all__ = ["Ack", "Cache", "Connection", "Event", "TidingsError", "connect", "errors", "sync"]

_WHERE = {
    "Ack": "tidings.client.events",
    "Cache": "tidings.client.cache",
    "Connection": "tidings.client.connection",
    "Event": "tidings.client.events",
    "TidingsError": "tidings.client.errors",
    "connect": "tidings.client.connection",
}
_MODULES = {"errors": "tidings.client.errors", "sync": "tidings.sync"}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for."""
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'tidings' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
