"""Which incarnation of its slot a replica is: the one that has the disk, or a new one.

The chain rests on disks: a replica under its old name is taken to hold what it held (chain.py). So a name is tied to a
store by `life.json`, written and synced beside it before the store is used:

* life and store are there, and whole: the same name again;
* the store is damaged or gone, or there never was one (memory): another name. The store is put aside, not removed;
* neither is there: this may be the founding, or a lost directory. The configuration service knows: while the founding
  epoch lasts the replica is a founder; after that its plain name is free only if it is not in the chain.

Another name is ``slot~N`` with N = epoch + 1, the epoch in force when it is chosen: a name that has ever been in a
membership carries a number not above that membership's epoch, so this one is new.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import msgspec
import structlog

from tidings.core.ids import NodeId
from tidings.net.names import incarnate, make_id, name_of, parse_address
from tidings.protocols.membership import Membership
from tidings.server import layout
from tidings.store import Store, StoreDamaged

LookUp: TypeAlias = Callable[[], Awaitable[Membership]]
"""Asks the configuration service for the membership in force."""

log = structlog.get_logger("tidings.life")


class Life(msgspec.Struct, frozen=True):
    """On disk: whose store lies beside it."""

    name: str
    durable: bool


class Place:
    """A slot of the cluster on this machine."""

    def __init__(self, slot: str, address: str, folder: Path, *, durable: bool) -> None:
        self.slot = slot
        self.address = parse_address(address)
        self.folder = folder
        self.durable = durable

    async def take(self, look_up: LookUp, *, founding: bool = False) -> tuple[NodeId, Store]:
        """Come (back) to life: the id to use, and the opened store. ``founding``: the caller knows that it is."""
        life = None if founding and not self.durable else layout.read(self._life, Life)
        if life is not None and life.durable and self.durable and self._log.exists():
            store = self._open(life.name)
            if store is not None:
                return self._id(life.name), store
        name = self.slot if founding and life is None else await self._name(look_up, life)
        if self.durable and (aside := Store.quarantine(self._log)) is not None:
            log.warning("a store without its name is put aside", slot=self.slot, aside=str(aside))
        layout.write(self._life, Life(name, self.durable))
        if life is not None:
            log.warning("another incarnation: it starts empty and fetches from its neighbours", slot=self.slot, to=name)
        store = Store.open(self._log, durability="durable" if self.durable else "memory", node=name)
        return self._id(name), store

    async def _name(self, look_up: LookUp, life: Life | None) -> str:
        current = await look_up()
        chain = {name_of(node) for node in (*current.replicas, current.joining or "")}
        founder = current.epoch == 1 and life is None
        if founder or (self.slot not in chain and life is None):
            return self.slot
        return incarnate(self.slot, current.epoch + 1)

    def _open(self, name: str) -> Store | None:
        """The store, or None if it is damaged and was put aside."""
        try:
            return Store.open(self._log, node=name)
        except StoreDamaged as error:
            aside = Store.quarantine(self._log)
            log.error("the store is damaged and is put aside", slot=self.slot, error=str(error), aside=str(aside))
            return None

    def _id(self, name: str) -> NodeId:
        return make_id(name, *self.address)

    @property
    def _life(self) -> Path:
        return self.folder / "life.json"

    @property
    def _log(self) -> Path:
        return self.folder / "log"
