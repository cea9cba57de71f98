"""`tidings sub`: print the events of streams as they come."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.arguments import HIGHEST, to_json
from tidings.cli.cluster_options import Directory, Token, Url, find_cluster, with_client

if TYPE_CHECKING:
    from tidings.client.connection import Connection
    from tidings.client.events import Event

EXAMPLE = "Example: tidings sub prices --where \"loc = 'NY' and price > 3\" --start earliest --count 10"


class Output(StrEnum):
    """How an event is printed."""

    json = "json"
    text = "text"


class DeliveryOrder(StrEnum):
    """Which order events of several streams have."""

    publisher = "publisher"
    total = "total"


def parse_start(text: str) -> str:
    """Refuse what is no place to begin."""
    # the length first: int() itself refuses thousands of digits
    if text not in ("earliest", "latest") and not (
        text.isdecimal() and len(text) <= len(str(HIGHEST)) and 0 < int(text) <= HIGHEST
    ):
        raise typer.BadParameter(f"{text[:40]!r} is neither earliest nor latest nor a number from 1 to {HIGHEST}")
    return text


def sub(
    streams: Annotated[list[str], typer.Argument(help="The streams.", metavar="STREAM...", show_default=False)],
    where: Annotated[str | None, typer.Option(help="Only events that meet this condition.", metavar="SQL")] = None,
    start: Annotated[
        str,
        typer.Option(
            help="Where to begin; with --order total a number is a tick.",
            metavar="earliest|latest|SEQ",
            callback=parse_start,
        ),
    ] = "latest",
    order: Annotated[
        DeliveryOrder,
        typer.Option(help="publisher: each stream in its own order; total: all streams in one, the same everywhere."),
    ] = DeliveryOrder.publisher,
    patience: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="With --order total: end with an error when a region is silent for this long.", metavar="S"
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="A durable name: continue behind what was printed under it.")] = None,
    receipts: Annotated[
        bool | None,
        typer.Option(
            "--receipts/--no-receipts",
            help="Tell the cluster what was printed, for `tidings audit`; default: as the cluster asks.",
            show_default=False,
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many events.")] = None,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="One JSON object per event, or one line of text.")
    ] = Output.json,
    url: Url = None,
    directory: Directory = None,
    token: Token = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Print events, one JSON object each, until Ctrl-C."""
    place: Any = int(start) if start.isdecimal() else start
    options: dict[str, Any] = {"where": where, "start": place, "order": order.value, "name": name}
    options |= {"receipts": receipts, "patience": patience}
    text = output is Output.text and not as_json
    try:
        with_client(find_cluster(url, directory), token, lambda t: _print(t, streams, options, count, text))
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        sys.stderr.close()


async def _print(t: Connection, streams: list[str], options: dict[str, Any], count: int | None, text: bool) -> None:
    left = count
    async with t.subscribe(streams, **options) as subscription:
        if sys.stderr.isatty():
            print(f"subscribed to {', '.join(streams)} in region {t.region}", file=sys.stderr, flush=True)
        while left is None or left > 0:
            one_by_one = subscription.durable  # each is acknowledged when the next is asked for
            events = [await subscription.next()] if one_by_one else (await subscription.events())[:left]
            sys.stdout.write("".join([line_of(event, text, options["order"] == "total") for event in events]))
            sys.stdout.flush()
            left = None if left is None else left - len(events)
        if subscription.durable:
            await subscription.ack()


def line_of(event: Event, text: bool, total: bool = False) -> str:
    """An event as a line, or as JSON on one; in a total order with its tick."""
    import msgspec

    if text:
        key = "-" if event.key is None else event.key.decode(errors="backslashreplace")
        attrs = " ".join([f"{name}={value}" for name, value in event.attrs.items() if value is not None])
        payload = event.payload.decode(errors="backslashreplace")
        return f"{event.stream} {event.seq} {event.kind} {key} {payload}{' ' if attrs else ''}{attrs}\n"
    line = {
        "stream": event.stream,
        "seq": event.seq,
        "kind": event.kind,
        "key": to_json(event.key),
        "payload": to_json(event.payload),
        "attrs": {name: to_json(v) if isinstance(v, bytes) else v for name, v in event.attrs.items()},
        "published_at": event.published_at,
        "region": event.region,
    }
    if total:
        line["tick"] = event.tick
    return msgspec.json.encode(line).decode() + "\n"
