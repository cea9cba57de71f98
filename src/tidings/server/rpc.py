"""Requests to nodes of a cluster over its own protocol, from outside: the chain of a region, its streams.

A request may be lost and a node may be down, so a request is repeated until it is answered or times out. It carries a
nonce where a repetition must not count twice. A node is addressed by id, or by a seed (net/names.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TypeVar

import msgspec

from tidings.core.errors import BadInput, TidingsError
from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.net.host import Host
from tidings.net.link import Role
from tidings.net.names import ADDRESSES, name_of
from tidings.protocols.kernel import NOTHING, Command, Deliver, Effects, Input, Message, Received, Send, Time
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Beat, Current
from tidings.protocols.services.catalog import (
    DeclareLost,
    Define,
    Defined,
    Describe,
    Description,
    NotDefined,
    Operation,
    StreamDef,
)
from tidings.protocols.services.publishing import NotHead, OpenSession, SessionOpened

T = TypeVar("T", bound=Message)
AGAIN = 0.25  # seconds until a request is repeated; ours, because an answer takes a thousandth of that


class NoAnswer(TidingsError):
    """No node that was asked has answered in time."""


class RpcCall(Command, frozen=True, gc=False):
    """Send a request."""

    to: NodeId
    message: Message


class RpcMachine:
    """A machine that sends what it is told and delivers what comes."""

    def start(self, now: Time) -> Effects:
        return NOTHING

    def handle(self, now: Time, input: Input) -> Effects:
        if isinstance(input, RpcCall):
            return [Send(input.to, input.message)]
        return [Deliver(input)] if isinstance(input, Received) else NOTHING

    def check(self) -> None:
        """It has no state."""


class RpcClient:
    """A client. With ``role`` "node" it may ask configuration services, with "client" replicas only."""

    def __init__(self, name: str, *, cluster: str, region: RegionId = "", role: Role = "client") -> None:
        self._rng = random.Random()
        self._host = Host(name, RpcMachine(), ADDRESSES, region=region, cluster=cluster, role=role)

    async def __aenter__(self) -> RpcClient:
        self._host.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._host.stop()

    def nonce(self) -> int:
        """A random number that identifies a request."""
        return self._rng.getrandbits(48)

    async def ask(self, to: NodeId, message: Message, answer: Callable[[Message], bool], timeout: float) -> Message:
        """The first answer that fits; raises `NoAnswer`, with the reason if the other end closed the connection."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while (left := end - loop.time()) > 0:
            fits: Callable[[Received], bool] = lambda item: answer(item.message)  # noqa: E731 - typed
            try:
                got: Received = await self._host.request(RpcCall(to, message), fits, min(AGAIN, left))
            except TimeoutError:
                continue
            return got.message
        link = self._host.links.get(to)
        told = "" if link is None else str(link.refused or link.unreached)
        why = f": {told}" if told else ""
        where = name_of(to) or to.removeprefix("@")
        raise NoAnswer(f"{where} has not answered {type(message).__name__} in {timeout:g} s{why}")

    async def membership(self, service: NodeId, timeout: float) -> ChainConfig:
        """A region's chain, from its configuration service."""
        nonce = self.nonce()
        fits: Callable[[Message], bool] = lambda m: isinstance(m, Current) and m.nonce == nonce  # noqa: E731 - typed
        found = await self.ask(service, Beat(0, nonce), fits, timeout)
        assert isinstance(found, Current)
        return found.membership

    async def describe(self, replica: NodeId, timeout: float) -> Description:
        """What a replica knows."""
        nonce = self.nonce()
        fits: Callable[[Message], bool] = lambda m: isinstance(m, Description) and m.nonce == nonce  # noqa: E731
        found = await self.ask(replica, Describe(nonce), fits, timeout)
        assert isinstance(found, Description)
        return found

    async def describe_any(self, replicas: Iterable[NodeId], timeout: float) -> Description:
        """What the first of these knows that answers."""
        tasks = [asyncio.ensure_future(self.describe(replica, timeout)) for replica in replicas]
        try:
            for task in asyncio.as_completed(tasks):
                try:
                    return await task
                except NoAnswer as error:
                    last = error
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise last

    async def open_session(self, seeds: Iterable[NodeId], publisher: str, timeout: float) -> int:
        """Open a publisher's session at a region's head: answered once it is committed, as a publish would be."""
        nonce = self.nonce()
        found = await self.ask_head(
            list(seeds),
            OpenSession(publisher, nonce),
            lambda m: isinstance(m, SessionOpened) and m.nonce == nonce,
            timeout,
        )
        assert isinstance(found, SessionOpened)
        return found.session

    async def define(
        self, seeds: Iterable[NodeId], operation: Operation, definition: StreamDef, timeout: float
    ) -> StreamDef:
        """Create, alter or delete a stream of the region these replicas are of; raises `BadInput` if refused."""
        return await self._defined(list(seeds), Define(self.nonce(), operation, definition), timeout)

    async def declare_lost(
        self, seeds: Iterable[NodeId], stream: StreamId, lo: int, hi: int, timeout: float
    ) -> StreamDef:
        """Declare a range of a stream of the region these replicas are of lost; raises `BadInput` if refused."""
        return await self._defined(list(seeds), DeclareLost(self.nonce(), stream, lo, hi), timeout)

    async def _defined(self, seeds: list[NodeId], request: Define | DeclareLost, timeout: float) -> StreamDef:
        found = await self.ask_head(
            seeds, request, lambda m: isinstance(m, Defined | NotDefined) and m.nonce == request.nonce, timeout
        )
        if isinstance(found, NotDefined):
            if isinstance(request, Define) and found.after not in (None, request.definition.mark):
                again = msgspec.structs.replace(request.definition, mark=found.after)
                return await self.define(seeds, request.operation, again, timeout)
            raise BadInput(found.reason)
        assert isinstance(found, Defined)
        return found.definition

    async def ask_head(
        self, seeds: list[NodeId], message: Message, answer: Callable[[Message], bool], timeout: float
    ) -> Message:
        """Ask the head, found by way of any of its replicas; it may change meanwhile.

        Not by a `HeadClient`: this begins with addresses, without a configuration, and goes back to them.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        to, turn = seeds[0], 0
        newest = 0
        while True:
            left = end - loop.time()
            try:
                fits: Callable[[Message], bool] = lambda m: answer(m) or isinstance(m, NotHead)  # noqa: E731 - typed
                found = await self.ask(to, message, fits, max(min(2 * AGAIN, left), 0.001))
            except NoAnswer:
                if left <= 0:
                    what = f"{type(message).__name__} in {timeout:g} s"
                    raise NoAnswer(f"no head among {', '.join(seeds)} has answered {what}") from None
                turn += 1
                to = seeds[turn % len(seeds)]
                continue
            if not isinstance(found, NotHead):
                return found
            if found.membership.epoch < newest or to == found.membership.head:
                turn += 1
                to = seeds[turn % len(seeds)]
                await asyncio.sleep(AGAIN / 5)
            else:
                newest, to = found.membership.epoch, found.membership.head
            if left <= 0:
                raise NoAnswer(f"the head of {found.membership.region} has not answered in {timeout:g} s")
