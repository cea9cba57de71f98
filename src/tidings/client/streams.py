"""The calls of a connection about streams: list, create, alter, delete, and what became of a number."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from difflib import get_close_matches

import msgspec

from tidings.client.commands import Ask
from tidings.client.errors import UnknownStream
from tidings.client.events import Reason, StreamInfo
from tidings.client.session import Session
from tidings.client.validation import name as checked_name
from tidings.client.validation import number, text
from tidings.core.errors import BadInput
from tidings.core.ids import FIRST, RegionId, StreamId, is_internal
from tidings.protocols.services.catalog import (
    Because,
    Define,
    Defined,
    Describe,
    Description,
    NotDefined,
    Operation,
    StreamDef,
    StreamState,
    Why,
)


class StreamCalls:
    """What the connection knows of streams, and what it can have done to them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.on_defined: Callable[[StreamDef], None] | None = None  # called when a stream was created or altered

    async def streams(self, pattern: str) -> list[StreamInfo]:
        """All streams whose whole name matches."""
        try:
            matching = re.compile(text("pattern", pattern) or ".*")
        except re.error as error:
            raise BadInput(f"{pattern!r} is no regular expression: {error}") from None
        found = _infos(await self.describe(""))
        return [each for each in found if not is_internal(each.name) and matching.fullmatch(each.name)]

    async def describe(self, region: RegionId) -> Description:
        """What a replica of the own region, or of another one, knows."""
        nonce = self._session.nonce()
        told = await self._session.ask(Ask(nonce, Describe(nonce), text("region", region)))
        assert isinstance(told, Description)
        return told

    async def stream(self, name: StreamId) -> StreamInfo:
        """One stream, and how it stands."""
        await self.known(name)
        for stream in _infos(await self.describe("")):
            if name in (stream.name, stream.id):
                return stream
        raise self.unknown(name)

    async def create(self, name: StreamId, region: RegionId | None, attrs: str, gc: str) -> StreamInfo:
        """Create a stream in a region, by default the own one."""
        return await self._define("create", StreamDef(name, region or self._session.region, gc, attrs=attrs))

    async def alter(self, name: StreamId, attrs: str) -> StreamInfo:
        """Add attributes to a stream."""
        known = await self._now(name)
        return await self._define("alter", StreamDef(known.name, known.region, known.gc, attrs=attrs, mark=known.mark))

    async def delete(self, name: StreamId) -> StreamInfo:
        """Delete a stream and all its events."""
        known = await self._now(name)
        return await self._define("delete", StreamDef(known.name, known.region, mark=known.mark))

    async def why(self, stream: StreamId, seq: int) -> Reason:
        """What has become of a number, as the stream's own region knows it."""
        number("seq", seq)
        definition = await self.known(stream)
        told = await self._session.ask(Ask(self._session.nonce(), Why(definition.id, seq), definition.region))
        assert isinstance(told, Because)
        if told.state == "unknown stream":
            self._session.machine.view.forget(definition.id)
        return Reason(definition.name, seq, told.state, told.by)

    async def _define(self, operation: Operation, definition: StreamDef) -> StreamInfo:
        self._session.alive()
        checked_name("stream", definition.name)
        for what, value in (("region", definition.region), ("gc", definition.gc), ("attrs", definition.attrs)):
            text(what, value)
        memberships = self._session.machine.memberships
        if definition.region not in memberships:
            known = ", ".join(sorted(memberships))
            raise BadInput(f"region {definition.region!r} is unknown; there are: {known}")
        nonce = self._session.nonce()
        told = await self._session.ask(Ask(nonce, Define(nonce, operation, definition), definition.region, True))
        if isinstance(told, NotDefined) and told.after not in (None, definition.mark):
            return await self._define(operation, msgspec.structs.replace(definition, mark=told.after))
        if isinstance(told, NotDefined):
            raise BadInput(told.reason)
        assert isinstance(told, Defined)
        defined = told.definition
        if self.on_defined is not None:
            self.on_defined(defined)
        return StreamInfo(defined.name, defined.region, defined.gc, defined.attrs, FIRST, 0, 0, id=defined.id)

    async def _now(self, stream: StreamId) -> StreamDef:
        """The definition of a stream, after the cluster was asked: the name may mean another one by now."""
        checked_name("stream", stream)
        await self.streams("")
        return await self.known(stream)

    def find(self, stream: StreamId) -> StreamDef:
        """The definition of a stream, by name or id, as far as it is known; raises `UnknownStream`."""
        self._session.alive()
        found = self._session.machine.view.find(checked_name("stream", stream))
        if found is None:
            raise self.unknown(stream)
        return found

    async def known(self, stream: StreamId) -> StreamDef:
        """The definition of a stream; asks the cluster again before it raises `UnknownStream`."""
        self._session.alive()
        checked_name("stream", stream)
        for pause in (0.0, 0.2):
            found = self._session.machine.view.find(stream)
            if found is not None:
                return found
            await asyncio.sleep(pause)
            await self.streams("")
        return self.find(stream)

    def unknown(self, stream: StreamId) -> UnknownStream:
        """The error for a stream that is unknown, with the name that looks most like it."""
        near = get_close_matches(stream, sorted({*self._session.machine.streams} - {stream}), n=1)
        hint = f", did you mean {near[0]!r}?" if near else "; create it, or look again with streams()"
        return UnknownStream(f"stream {stream!r} is unknown in region {self._session.region}{hint}", stream)


def _infos(told: Description) -> list[StreamInfo]:
    """Streams as a replica describes them, by name."""
    found = []
    for each in sorted(told.streams, key=lambda each: each.name):
        at = told.states.get(each.id, StreamState(FIRST, 0, 0))
        stands = (at.horizon, at.live, at.collected, at.low, at.floor, at.lost)
        found.append(StreamInfo(each.name, each.region, each.gc, each.attrs, *stands, each.id))
    return found
