"""Bootstrap a cluster from existing events: write the disks of its initial replicas before any of them runs.

Every initial replica of a region gets the same snapshot, as if a tail had sent it (protocols/replication/chain.py): the
region's definitions and streams, committed, under their numbers. When the replicas start they form a chain whose log
begins behind the snapshot. The other regions fetch what they lack.

A snapshot counts only if it is complete, so an interrupted bootstrap can be repeated. A disk that holds something is
never overwritten.
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
from tidings.protocols.replication.log import Installed
from tidings.protocols.services.catalog import StreamDef, definition_rows, definitions_of
from tidings.server import paths
from tidings.server.cluster_config import ClusterConfig
from tidings.server.identity import IDENTITY_FILE, Identity
from tidings.server.paths import ClusterPaths
from tidings.store import Store

LSN = 1  # of the snapshot: the first record of the new cluster comes behind it
ROWS = 65_536  # in a piece; ours: some megabytes
WAIT = 0.005  # seconds between looks whether the disk keeps up

Contents = Callable[[RegionId], Iterable[Span]]
"""The spans of a region's own streams, each stream without a hole from its first number on."""


def bootstrap_disks(
    files: ClusterPaths, config: ClusterConfig, definitions: Iterable[StreamDef], contents: Contents, now: float
) -> None:
    """Write the disks of all initial replicas; raises `BadInput` if one of them holds something."""
    if not config.durable:
        raise BadInput('durability = "memory": what is restored needs disks; use "durable"')
    slots = config.slots()
    taken = [slot for slot in slots if files.data(slot).exists()]
    if taken:
        raise BadInput(f"{files.data(taken[0])} is there already: restore into a directory without a cluster")
    streams = list(definitions)
    names = {region.name for region in config.regions}
    for stream in streams:
        if stream.region not in names:
            raise BadInput(
                f"stream {stream.name!r} belongs to region {stream.region}: {files.config_file} has no such region"
            )
    for region in config.regions:
        own = [stream for stream in streams if stream.region == region.name]
        for slot in region.slots():
            run(_fill(files.data(slot), slot, _pieces(_defined(region.name, own, now), contents(region.name))))
    for slot in slots:  # last: a store without an identity is put aside
        paths.write(files.data(slot) / IDENTITY_FILE, Identity(slot, True))


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
