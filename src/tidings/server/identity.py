"""Which incarnation of its slot a replica is: the one that has the disk, or a new one.

The chain relies on disks: a replica under its old name is taken to hold what it held (chain.py). The identity file
(`life.json`), written and synced beside the store before the store is used, ties a name to a store:

* identity and store are there and undamaged: the replica keeps its name;
* the store is damaged or gone, or there never was one (memory): the replica takes a new name. The store is put aside,
  not removed;
* neither is there: this is the bootstrap of the region, or a lost directory. The configuration service knows which. In
  the bootstrap epoch the replica is an initial replica; later its plain name is free only if it is not in the chain.

A new name is ``slot~N`` with N = epoch + 1, the epoch in force when it is chosen. Every name that was ever in a chain
carries a number not above that chain's epoch, so the name is new.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import msgspec
import structlog

from tidings.core.ids import NodeId
from tidings.net.names import incarnate, make_id, name_of, parse_address
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.server import paths
from tidings.store import Store, StoreDamaged

IDENTITY_FILE = "life.json"

LookUp: TypeAlias = Callable[[], Awaitable[ChainConfig]]
"""Asks the configuration service for the chain in force."""

log = structlog.get_logger("tidings.identity")


class Identity(msgspec.Struct, frozen=True):
    """On disk: the name under which the store beside it was written."""

    name: str
    durable: bool


class ReplicaSlot:
    """A slot of the cluster on this machine."""

    def __init__(self, slot: str, address: str, folder: Path, *, durable: bool) -> None:
        self.slot = slot
        self.address = parse_address(address)
        self.folder = folder
        self.durable = durable

    async def take(self, look_up: LookUp, *, bootstrapping: bool = False) -> tuple[NodeId, Store]:
        """The id to use, and the opened store. ``bootstrapping``: the caller knows that the region begins."""
        known = None if bootstrapping and not self.durable else paths.read(self._file, Identity)
        if known is not None and known.durable and self.durable and self._log.exists():
            store = self._open(known.name)
            if store is not None:
                return self._id(known.name), store
        name = self.slot if bootstrapping and known is None else await self._name(look_up, known)
        if self.durable and (aside := Store.quarantine(self._log)) is not None:
            log.warning("put aside a store without an identity", slot=self.slot, aside=str(aside))
        paths.write(self._file, Identity(name, self.durable))
        if known is not None:
            log.warning("new incarnation: it starts empty and fetches from its neighbours", slot=self.slot, to=name)
        store = Store.open(self._log, durability="durable" if self.durable else "memory", node=name)
        return self._id(name), store

    async def _name(self, look_up: LookUp, known: Identity | None) -> str:
        current = await look_up()
        chain = {name_of(node) for node in (*current.replicas, current.joining or "")}
        if known is None and (current.epoch == 1 or self.slot not in chain):
            return self.slot
        return incarnate(self.slot, current.epoch + 1)

    def _open(self, name: str) -> Store | None:
        """The store, or None if it is damaged and was put aside."""
        try:
            return Store.open(self._log, node=name)
        except StoreDamaged as error:
            aside = Store.quarantine(self._log)
            log.error("put aside a damaged store", slot=self.slot, error=str(error), aside=str(aside))
            return None

    def _id(self, name: str) -> NodeId:
        return make_id(name, *self.address)

    @property
    def _file(self) -> Path:
        return self.folder / IDENTITY_FILE

    @property
    def _log(self) -> Path:
        return self.folder / "log"
