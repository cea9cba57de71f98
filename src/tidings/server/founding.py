"""A cluster that begins with something: the disks of its founders, written before any of them has run.

Every founder of a region gets the same snapshot, as if it had been sent to it by a tail (protocols/chain.py): the
region's definitions and streams, committed, under the numbers they have. When the founders start they are a chain whose
log begins behind it, and the other regions fetch what they lack, as always.

The snapshot is complete on each disk or does not count, so whoever is interrupted does it again; a disk that holds
something is never written over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tidings.core.errors import BadInput
from tidings.core.ids import FIRST, RegionId
from tidings.core.rows import Rows
from tidings.core.span import Span
from tidings.net.loop import run
from tidings.protocols.catalog import StreamDef, definition_rows, definitions_of
from tidings.protocols.log import Installed
from tidings.server import layout
from tidings.server.layout import Layout
from tidings.server.life import Life
from tidings.server.plan import Plan
from tidings.store import Store

LSN = 1  # of the snapshot: the first record of the new cluster comes behind it
ROWS = 65_536  # in a piece; ours: some megabytes
WAIT = 0.005  # seconds between looks whether the disk keeps up

Contents = Callable[[RegionId], Iterable[Span]]
"""The spans of a region's own streams, each stream without a hole from its first number on."""


def found(files: Layout, plan: Plan, definitions: Iterable[StreamDef], contents: Contents, now: float) -> None:
    """Write the disks of all founders; raises `BadInput` if one of them holds something."""
    if not plan.durable:
        raise BadInput('durability = "memory": what is restored needs disks; use "durable"')
    slots = plan.slots()
    taken = [slot for slot in slots if files.data(slot).exists()]
    if taken:
        raise BadInput(f"{files.data(taken[0])} is there already: restore into a directory without a cluster")
    streams = list(definitions)
    names = {region.name for region in plan.regions}
    for stream in streams:
        if stream.region not in names:
            raise BadInput(f"stream {stream.name!r} belongs to region {stream.region}: {files.plan} has no such region")
    for region in plan.regions:
        own = [stream for stream in streams if stream.region == region.name]
        for slot in region.slots():
            run(_fill(files.data(slot), slot, _pieces(_defined(region.name, own, now), contents(region.name))))
    for slot in slots:  # at last: a store without its life is put aside
        layout.write(files.data(slot) / "life.json", Life(slot, True))


def _defined(region: RegionId, streams: list[StreamDef], now: float) -> list[Span]:
    """The region's definitions, as it would have made them one after the other."""
    stream = definitions_of(region)
    rows: list[Rows] = [definition_rows(at, each, now, region) for at, each in enumerate(streams, FIRST)]
    return [Span.of(stream, at, each) for at, each in enumerate(rows, FIRST)]


def _pieces(*parts: Iterable[Span]) -> Iterator[tuple[Span, ...]]:
    piece: list[Span] = []
    rows = 0
    for part in parts:
        for span in part:
            piece.append(span)
            rows += span.rows.count
            if rows >= ROWS:
                yield tuple(piece)
                piece, rows = [], 0
    yield tuple(piece)


async def _fill(folder: Path, name: str, pieces: Iterator[tuple[Span, ...]]) -> None:
    """Write a snapshot as the first thing in a store."""
    store = Store.open(folder / "log", node=name)
    written = 0

    def persisted(token: int) -> None:
        nonlocal written
        written = token

    store.start(asyncio.get_running_loop(), persisted)
    token = 0
    try:
        for index, spans in enumerate(pieces):
            token += 1
            store.write(Installed(LSN, index, spans, False), token)
            while store.over and store.condition == "open":
                await asyncio.sleep(WAIT)
        store.write(Installed(LSN, token, (), True), token + 1)
        while written <= token:
            if store.error is not None:
                raise store.error
            await asyncio.sleep(WAIT)
    finally:
        store.close()
