"""`tidings pub`: publish events from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import DEFAULT_URL, Token, Url, from_json, with_client
from tidings.cli.output import Json, emit

if TYPE_CHECKING:
    from tidings.client.connection import Connection
    from tidings.client.events import Ack

EXAMPLE = """Example: tidings pub prices --key IBM --attrs '{"loc": "NY", "price": 4.2}' 'one share'"""

Item = tuple[bytes | None, bytes, dict[str, Any] | None]


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
    """Publish one event, or one per line of stdin; returns when they are durable.

    Bytes that are no text are written {"hex": "00ff"} in JSON.
    """
    if from_json_lines == (payload is not None):
        raise typer.BadParameter("give a PAYLOAD, or - for lines of stdin, or --from-json")
    if from_json_lines and (key is not None or attrs is not None):
        raise typer.BadParameter("with --from-json each line has its own key and attrs")
    result = with_client(url, token, lambda t: _publish(t, stream, _items(payload, key, attrs)))
    emit(result, as_json, lambda: print(f"{stream} [{result['lo']}, {result['hi']})"))


def _items(payload: str | None, key: str | None, attrs: str | None) -> Iterator[Item]:
    import msgspec

    from tidings.core.errors import BadInput

    def decoded(text: str | bytes, what: str) -> dict[str, Any]:
        try:
            return msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise BadInput(f"{what} is no JSON object: {error}") from error

    if payload is None:
        for number, line in enumerate(sys.stdin.buffer, 1):
            if line.strip():
                each = decoded(line, f"line {number}")
                if unknown := sorted(each.keys() - {"key", "payload", "attrs"}):
                    raise BadInput(f"line {number}: {unknown[0]!r} is none of key, payload, attrs")
                data = from_json(each.get("payload"), f"line {number}, payload")
                yield from_json(each.get("key"), f"line {number}, key"), data or b"", each.get("attrs")
        return
    common = None if attrs is None else decoded(attrs, "--attrs")
    name = None if key is None else key.encode()
    if payload != "-":
        yield name, payload.encode(), common
        return
    for line in sys.stdin.buffer:
        yield name, line.rstrip(b"\r\n"), common


async def _publish(t: Connection, stream: str, items: Iterator[Item]) -> dict[str, Any]:
    from tidings.core.errors import BadInput
    from tidings.core.filters import from_json as column
    from tidings.core.filters import parse_attributes

    declared = parse_attributes((await t.stream(stream)).attrs)
    posted = 0
    for key, payload, attrs in items:
        values = attrs
        if attrs is not None:
            values = {n: column([v], declared[n]).to_pylist()[0] if n in declared else v for n, v in attrs.items()}
        t.post(stream, key=key, payload=payload, attrs=values)
        posted += 1
        if posted % 1024 == 0:
            await t.drain()
    if not posted:
        raise BadInput(f"{stream}: stdin has no event: there is nothing to publish")
    acks: list[Ack] = await t.flush()
    return {"stream": stream, "lo": acks[0].lo, "hi": acks[-1].hi}
