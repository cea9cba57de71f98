"""Clusters of real processes, publishing to them by hand, and waiting for conditions with a deadline."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Awaitable, Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

import msgspec

from tidings.cli.app import main
from tidings.core.rows import data_rows
from tidings.net.names import seed_of
from tidings.protocols.brokers.messages import Feed, Follow
from tidings.protocols.services.catalog import StreamDef
from tidings.protocols.services.publishing import OpenSession, Publish, Published, Rejected, SessionOpened
from tidings.server.local import LocalCluster
from tidings.server.rpc import RpcClient

DEADLINE = 20.0
LATER = ("gap", "busy")  # the same batch may be taken later


async def until(condition: Callable[[], Awaitable[Any]], what: str, deadline: float = DEADLINE) -> Any:
    """Wait for a condition; its value. Fails at the deadline."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline
    while not (found := await condition()):
        assert loop.time() < end, f"in vain for {deadline} s: {what}"
        await asyncio.sleep(0.02)
    return found


def tidings(*arguments: object, code: int = 0) -> str:
    """Run the command in this process; what it prints, or the error's line. Its exit code must be ``code``."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            with patch.object(sys, "argv", ["tidings", *[str(each) for each in arguments]]):
                main()
            got = 0
        except SystemExit as end:
            got = end.code if isinstance(end.code, int) else int(end.code is not None)
    assert got == code, f"{arguments}: {got}\n{out.getvalue()}\n{err.getvalue()}"
    return out.getvalue() if code == 0 else err.getvalue()


def tidings_json(*arguments: object) -> Any:
    return msgspec.json.decode(tidings(*arguments, "--json"))


class Writer:
    """Publishes to a region's streams: one batch at a time, each until it is acknowledged."""

    def __init__(self, asker: RpcClient, addresses: list[str], name: str = "w") -> None:
        self.asker = asker
        self.seeds = [seed_of(address) for address in addresses]
        self.name = name
        self.session = 0
        self.next = 1

    async def publish(self, stream: str, payloads: list[bytes], keys: list[bytes] | None = None) -> Published:
        if not self.session:
            nonce = self.asker.nonce()
            opened = await self._ask(
                OpenSession(self.name, nonce), lambda m: isinstance(m, SessionOpened) and m.nonce == nonce
            )
            self.session = opened.session
        stream = await id_of(self.asker, self.seeds, stream)
        first = self.next
        rows = data_rows(1, keys or payloads, payloads)
        self.next += len(payloads)
        batch = Publish(stream, self.name, self.session, first, rows)
        mine = (self.session, first)

        def answers(message: Any) -> bool:
            final = isinstance(message, Published) or (isinstance(message, Rejected) and message.reason not in LATER)
            return final and (message.session, message.first) == mine

        found = await self._ask(batch, answers)
        assert isinstance(found, Published), f"{self.name}: {found}"
        return found

    async def _ask(self, message: Any, answer: Callable[[Any], bool]) -> Any:
        return await self.asker.ask_head(self.seeds, message, answer, DEADLINE)


async def id_of(asker: RpcClient, seeds: list[str], name: str) -> str:
    """The stream that a name means."""
    told = await asker.describe_any(seeds, DEADLINE)
    return next(stream.id for stream in told.streams if stream.name == name)


async def create(asker: RpcClient, cluster: LocalCluster, name: str, region: str, gc: str = "none") -> StreamDef:
    seeds = [seed_of(address) for address in cluster.addresses(region)]
    return await asker.define(seeds, "create", StreamDef(name, region, gc), DEADLINE)


async def horizon(cluster: LocalCluster, stream: str, region: str) -> int:
    """How far a region has got in a stream; 0 if it does not know it."""
    status = await cluster.status()
    found = [each["horizon"].get(region, 0) for each in status["streams"] if each["name"] == stream]
    return int(found[0]) if found else 0


async def payloads(asker: RpcClient, address: str, stream: str, lo: int, hi: int) -> list[bytes]:
    """What one replica answers for a range."""
    seed = seed_of(address)
    stream = await id_of(asker, [seed], stream)
    asked = Follow(asker.nonce(), stream, lo, hi=hi, asof=hi)
    feed = await asker.ask(seed, asked, lambda m: isinstance(m, Feed) and m.id == asked.id and m.spans != (), DEADLINE)
    assert isinstance(feed, Feed)
    (span,) = feed.spans
    return span.rows.batch.column("payload").to_pylist()  # type: ignore[attr-defined,no-any-return]
