"""What can go wrong with a node's disk, as types: the host matches on the class and acts.

`StoreDamaged`: put the directory aside (`Store.quarantine`) and start empty, under a new name; the neighbours have it
all. `StoreTooNew`: run a newer Tidings. `StoreBusy`: another process has it open. `StoreForeign`: it belongs to another
node. `StoreFull` and `StoreFailed` are states of a running store, not reasons to throw anything away.
"""

from __future__ import annotations

from tidings.core.errors import TidingsError


class StoreError(TidingsError):
    """Something is wrong with a store."""


class StoreDamaged(StoreError):
    """What is on the disk is not what was written: nothing of it is used."""


class StoreTooNew(StoreError):
    """A newer Tidings has written this store; this one does not guess what it means."""


class StoreBusy(StoreError):
    """Another process has the store open."""


class StoreForeign(StoreError):
    """The store belongs to another node."""


class StoreFull(StoreError):
    """There is no room: nothing is acknowledged until there is; nothing is lost, and it goes on by itself."""


class StoreFailed(StoreError):
    """The disk has refused to write or sync: nothing is acknowledged any more; restart the node."""
