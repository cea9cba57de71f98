"""The durable log of a node, in LMDB."""

from __future__ import annotations

from tidings.store.checkpoint import Checkpointer
from tidings.store.errors import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreForeign,
    StoreFull,
    StoreTooNew,
)
from tidings.store.store import Stats, Store

__all__ = [
    "Checkpointer",
    "Stats",
    "Store",
    "StoreBusy",
    "StoreDamaged",
    "StoreError",
    "StoreFailed",
    "StoreForeign",
    "StoreFull",
    "StoreTooNew",
]
