"""`tidings pub`: publish events from the command line."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tidings.cli.arguments import from_json
from tidings.cli.cluster_options import Directory, Token, Url, find_cluster, with_client
from tidings.cli.output import Json, emit
from tidings.cli.stdin_lines import lines_of, stdin
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
    key: Annotated[str | None, typer.Option(help="The key of the event, or of all events.")] = None,
    attrs: Annotated[str | None, typer.Option(help="Attributes as a JSON object.", metavar="JSON")] = None,
    from_json_lines: Annotated[
        bool, typer.Option("--from-json", help="One JSON object with key, payload and attrs per line of stdin.")
    ] = False,
    url: Url = None,
    directory: Directory = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Publish one event, or one per line of stdin. Returns when they are durable.

    In JSON, bytes that are not UTF-8 are {"hex": "00ff"}.
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
        awaiting = "waiting until the event is durable" if file is None else ""
        result = with_client(find_cluster(url, directory), token, work, awaiting=awaiting)
    except Interrupted as stopped:
        typer.echo(f"tidings: {stopped}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    emit(result, as_json, lambda: print(f"{stream}: {numbers(result['lo'], result['hi'])}"))


def numbers(lo: int, hi: int) -> str:
    """The numbers [lo, hi) as a person reads them."""
    return f"number {lo}" if hi - lo == 1 else f"numbers {lo} to {hi - 1}"


class Interrupted(TidingsError):
    """Ctrl-C; the text says what is published."""


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
        raise BadInput(f"line {number}: unknown field {unknown[0]!r}; there are key, payload and attrs")
    attrs = each.get("attrs")
    if not isinstance(attrs, dict | None):
        raise BadInput(f"line {number}, attrs: {str(attrs)[:60]!r} is no JSON object")
    payload = from_json(each.get("payload"), f"line {number}, payload")
    return from_json(each.get("key"), f"line {number}, key"), payload or b"", attrs


async def _typed(t: Connection, stream: str) -> Callable[[Attrs | None], Attrs | None]:
    """How to read attributes that JSON writes as text: timestamps and dates in ISO form, bytes in hexadecimal.

    Whatever does not fit its declaration stays as it is: the call that publishes refuses it, with the API's message.
    """
    from datetime import date, datetime

    from tidings.core.filters import AttrType, parse_attributes

    readers: dict[AttrType, Callable[[str], Any]] = {
        AttrType.TIMESTAMP: datetime.fromisoformat,
        AttrType.DATE: date.fromisoformat,
        AttrType.BINARY: bytes.fromhex,
    }
    declared = parse_attributes((await t.stream(stream)).attrs)
    known = {name: readers[kind] for name, kind in declared.items() if kind in readers}

    def read(name: str, value: Any) -> Any:
        if name not in known or not isinstance(value, str):
            return value
        try:
            return known[name](value)
        except ValueError:
            return value

    def typed(attrs: Attrs | None) -> Attrs | None:
        return {n: read(n, v) for n, v in attrs.items()} if attrs and known else attrs

    return typed


async def _publish_one(t: Connection, stream: str, item: Item) -> dict[str, Any]:
    key, payload, attrs = item
    ack = await t.publish(stream, key=key, payload=payload, attrs=(await _typed(t, stream))(attrs))
    return {"stream": stream, "lo": ack.lo, "hi": ack.hi}


class Publishing:
    """Lines of stdin on their way into a stream.

    Lines are posted as they come. When the input pauses, acknowledgements are awaited, so that errors show at once;
    under a steady flow they are awaited now and then.
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
            raise Interrupted(f"stopped after line {self._line}; {self._told()}") from None
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
        """As `_acks`, but without an error of its own: the first error is the one to report."""
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
        rest = f"; {doubt} more may be published or not" if doubt else ""
        lo, hi = self._ends
        which = "" if hi - lo == self._durable else "among "  # others publish between
        return f"{self._durable} events are published, {which}{numbers(lo, hi)} of {self._stream}{rest}"


def _reason(error: Exception) -> str:
    """An error for a person at a terminal: the first reason, instead of a list in `failed`."""
    from tidings.client.errors import PublishFailed

    return error.failed[0].reason if isinstance(error, PublishFailed) and error.failed else str(error)
