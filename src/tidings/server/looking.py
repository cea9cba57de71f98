"""Questions of the command line to a running cluster, by directory or by cluster file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tidings.core.errors import BadInput
from tidings.core.ids import NodeId, RegionId, is_internal
from tidings.net.loop import run
from tidings.net.names import seed_of
from tidings.protocols.catalog import Operation, StreamDef
from tidings.server.asking import Asker
from tidings.server.http import CallFailed, call
from tidings.server.layout import SUPERVISOR, Layout, read
from tidings.server.plan import Plan, load
from tidings.server.roster import ROSTER, Roster
from tidings.server.status import ANSWER, describe_all, summarize

DEFINE = 10.0  # seconds a definition may take; ours: a fail-over, and then some


class Target:
    """The cluster that is meant: that of a directory, or that of a file."""

    def __init__(self, directory: Path, file: Path | None) -> None:
        self.files = Layout(directory)
        if file is None and not self.files.plan.exists() and self.files.process(SUPERVISOR) is None:
            raise BadInput(
                f"{directory} has no cluster: start one with `tidings up --dir {directory}`, or give -c FILE"
            )
        self.plan: Plan = load(file or self.files.plan)
        roster = (read(self.files.root / ROSTER, Roster) or Roster()) if file is None else Roster()
        self.slots = roster.apply(self.plan.slots())

    def asker(self) -> Asker:
        """Somebody who asks its replicas."""
        return Asker(f"_cli-{os.getpid()}-{os.urandom(4).hex()}", cluster=self.plan.cluster.name)

    def seeds(self, region: RegionId | None = None) -> list[NodeId]:
        """Where a region's replicas, or all, may be found."""
        if region is not None:
            self.plan.region(region)
        chosen = [address for slot, address in self.slots.items() if region in (None, slot.partition("/")[0])]
        return [seed_of(address) for address in chosen]


def look(directory: Path, file: Path | None) -> dict[str, Any]:
    """The answer of `tidings status`: the supervisor's where one runs, else what the replicas say."""
    files = Layout(directory)
    supervisor = files.process(SUPERVISOR) if file is None else None
    if supervisor is not None and supervisor.alive:
        try:
            found: dict[str, Any] = call(supervisor.admin, "/status")
            return found
        except CallFailed:
            pass  # it has just gone
    target = Target(directory, file)
    return run(_look(target))


async def _look(target: Target) -> dict[str, Any]:
    async with target.asker() as asker:
        descriptions = await describe_all(asker, target.slots, ANSWER)
    found = {slot: target.files.process(slot) for slot in target.slots}
    pids = {slot: process.pid for slot, process in found.items() if process is not None and process.alive}
    return summarize(target.plan, target.slots, descriptions, pids)


def streams(target: Target) -> list[StreamDef]:
    """The streams that any replica knows."""
    return run(_streams(target, target.seeds()))


async def _streams(target: Target, seeds: Iterable[NodeId]) -> list[StreamDef]:
    async with target.asker() as asker:
        described = await asker.describe_any(seeds, 3 * ANSWER)
    return sorted([each for each in described.streams if not is_internal(each.name)], key=lambda each: each.name)


def define(target: Target, operation: Operation, name: str, region: RegionId | None, gc: str, attrs: str) -> StreamDef:
    """Create, alter or delete a stream, at its owner; `BadInput` with the reason if it is refused."""
    return run(_define(target, operation, name, region, gc, attrs))


async def _define(
    target: Target, operation: Operation, name: str, region: RegionId | None, gc: str, attrs: str
) -> StreamDef:
    if region is None:
        region = await _owner(target, name)
    async with target.asker() as asker:
        definition = StreamDef(name, region, gc, attrs=attrs)
        return await asker.define(target.seeds(region), operation, definition, DEFINE)


async def _owner(target: Target, name: str) -> RegionId:
    """The region of a stream."""
    known = {stream.name: stream for stream in await _streams(target, target.seeds())}
    if name not in known:
        raise BadInput(f"stream {name!r} is unknown: there are {', '.join(sorted(known)) or 'none'}")
    return known[name].region


def declare_lost(target: Target, name: str, lo: int, hi: int) -> StreamDef:
    """Declare a range of a stream lost, at its owner; `BadInput` with the reason if it is refused."""
    return run(_declare_lost(target, name, lo, hi))


async def _declare_lost(target: Target, name: str, lo: int, hi: int) -> StreamDef:
    region = await _owner(target, name)
    async with target.asker() as asker:
        return await asker.declare_lost(target.seeds(region), name, lo, hi, DEFINE)
