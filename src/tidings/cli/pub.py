"""`tidings pub`: publish events from the command line."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tidings.cli.lines import lines_of, stdin
from tidings.cli.options import DEFAULT_URL, Token, Url, from_json, with_client
from tidings.cli.output import Json, emit
from tidings.core.errors import BadInput, TidingsError

if TYPE_CHECKING:
    from tidings.client.connection import Connection
    from tidings.client.events import Ack

EXAMPLE = """Example: tidings pub prices --key IBM --attrs '{"loc": "NY", "price": 4.2}' 'one share'"""
ASK = 1 << 18  # events of a steady flow until it is asked what has become of them; ours: as many as may be pending
ASK_BYTES = 64 << 20  # and bytes
INTERRUPTED = 130

Attrs: TypeAlias = dict[str, Any]
Item: TypeAlias = tuple[bytes | None, bytes, Attrs | None]
Parse: TypeAlias = Callable[[bytes, int], Item | None]
"""The event of a line, of which the number is for errors; None if there is none."""


def pub(
    stream: Annotated[str, typer.Argument(help="The stream.", show_default=False)],
    payload: Annotated[
        str | None, typer.Argument(help="The payload; - for one event per line of stdin.", show_default=False)
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key of the event, or of each of them.")] = None,
    attrs: Annotated[str | None, typer.Option(help="Attributes as a JSON object.", metavar="JSON")] = None,
    from_json_lines: Annotated[
        bool, typer.Option("--from-json", help="One JSON object with key, payload and attrs per line of stdin.")
    ] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Publish one event, or one per line of stdin as they come; returns when they are durable.

    Bytes that are no text are written {"hex": "00ff"} in JSON.
    """
    if from_json_lines == (payload is not None):
        raise typer.BadParameter("give a PAYLOAD, or - for lines of stdin, or --from-json")
    if from_json_lines and (key is not None or attrs is not None):
        raise typer.BadParameter("with --from-json each line has its own key and attrs")
    name = None if key is None else os.fsencode(key)  # the bytes that were typed, text or not
    common = None if attrs is None else _object(os.fsencode(attrs), "--attrs")
    file = stdin() if payload is None or payload == "-" else None

    def parse_plain(line: bytes, number: int) -> Item:
        return name, line.rstrip(b"\r"), common

    async def work(t: Connection) -> dict[str, Any]:
        if file is None:
            return await _publish_one(t, stream, (name, os.fsencode(payload or ""), common))
        return await Publishing(t, stream, parse_json if from_json_lines else parse_plain).run(file)

    try:
        result = with_client(url, token, work)
    except Interrupted as stopped:
        typer.echo(f"tidings: {stopped}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    emit(result, as_json, lambda: print(f"{stream} [{result['lo']}, {result['hi']})"))


class Interrupted(TidingsError):
    """Ctrl-C, and what is published nevertheless."""


def _object(text: bytes, what: str) -> Attrs:
    import msgspec

    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{what} is no JSON object: {error}") from error


def parse_json(line: bytes, number: int) -> Item | None:
    """The event that a JSON object says; raises `BadInput`."""
    if not line.strip():
        return None
    each = _object(line, f"line {number}")
    if unknown := sorted(each.keys() - {"key", "payload", "attrs"}):
        raise BadInput(f"line {number}: {unknown[0]!r} is none of key, payload, attrs")
    attrs = each.get("attrs")
    if not isinstance(attrs, dict | None):
        raise BadInput(f"line {number}, attrs: {str(attrs)[:60]!r} is no JSON object")
    payload = from_json(each.get("payload"), f"line {number}, payload")
    return from_json(each.get("key"), f"line {number}, key"), payload or b"", attrs


async def _typed(t: Connection, stream: str) -> Callable[[Attrs | None], Attrs | None]:
    """Makes of attributes as JSON has them what the stream has declared."""
    from tidings.core.filters import from_json as column
    from tidings.core.filters import parse_attributes

    declared = parse_attributes((await t.stream(stream)).attrs)

    def typed(attrs: Attrs | None) -> Attrs | None:
        if attrs is None:
            return None
        return {n: column([v], declared[n]).to_pylist()[0] if n in declared else v for n, v in attrs.items()}

    return typed


async def _publish_one(t: Connection, stream: str, item: Item) -> dict[str, Any]:
    key, payload, attrs = item
    ack = await t.publish(stream, key=key, payload=payload, attrs=(await _typed(t, stream))(attrs))
    return {"stream": stream, "lo": ack.lo, "hi": ack.hi}


class Publishing:
    """Lines of stdin on their way into a stream.

    What is there is posted at once. Where the flow pauses it is asked for the acknowledgements, so that an error is
    told while somebody can do something; a steady flow is asked now and then.
    """

    def __init__(self, t: Connection, stream: str, parse: Parse) -> None:
        self._t = t
        self._stream = stream
        self._parse = parse
        self._line = 0  # read so far
        self._posted = 0
        self._events = self._bytes = 0  # posted since the last look at the acknowledgements
        self._durable = 0
        self._ends: tuple[int, int] | None = None  # of the numbers they have

    async def run(self, file: int) -> dict[str, Any]:
        """Publish until the end of the file."""
        try:
            await self._post_all(file)
        except asyncio.CancelledError:
            await self._last_acks()
            raise Interrupted(f"stopped behind line {self._line}; {self._told()}") from None
        except (TidingsError, OSError) as error:
            await self._last_acks()
            if not self._line:
                raise
            raise TidingsError(f"{_reason(error)}; stopped at line {self._line}: {self._told()}") from error
        if self._ends is None:
            raise BadInput(f"{self._stream}: stdin has no event: there is nothing to publish")
        return {"stream": self._stream, "lo": self._ends[0], "hi": self._ends[1]}

    async def _post_all(self, file: int) -> None:
        from tidings.client.errors import Full

        t, stream, parse, typed = self._t, self._stream, self._parse, await _typed(self._t, self._stream)
        async for lines, more in lines_of(file):
            for line in lines:
                self._line += 1
                item = parse(line, self._line)
                if item is None:
                    continue
                key, payload, attrs = item
                values = typed(attrs)
                while True:
                    try:
                        t.post(stream, key=key, payload=payload, attrs=values)
                        break
                    except Full:
                        await t.drain()
                self._posted += 1
                self._events += 1
                self._bytes += len(payload)
            if more and self._events < ASK and self._bytes < ASK_BYTES:
                await t.drain()
            else:
                await self._acks()
        await self._acks()

    async def _acks(self) -> None:
        """Wait until everything posted is durable; `PublishFailed` if something is not."""
        from tidings.client.errors import PublishFailed

        self._events = self._bytes = 0
        try:
            self._note(await self._t.flush())
        except PublishFailed as error:
            self._note(error.acks)
            raise

    async def _last_acks(self) -> None:
        """As `_acks`, where the first error is the one that is told."""
        with contextlib.suppress(TidingsError):
            await self._acks()

    def _note(self, acks: Iterable[Ack]) -> None:
        for ack in acks:
            self._durable += ack.hi - ack.lo
            self._ends = (self._ends[0] if self._ends else ack.lo, ack.hi)

    def _told(self) -> str:
        """What is published."""
        if self._ends is None:
            return "nothing is published"
        doubt = self._posted - self._durable
        rest = f"; of {doubt} more it is not known" if doubt else ""
        return f"{self._durable} events are published, within {self._stream} [{self._ends[0]}, {self._ends[1]}){rest}"


def _reason(error: Exception) -> str:
    """An error as somebody at a terminal needs it, who has no `failed` to look at."""
    from tidings.client.errors import PublishFailed

    return error.failed[0].reason if isinstance(error, PublishFailed) and error.failed else str(error)
