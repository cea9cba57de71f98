"""`tidings replay`: a range of a stream, from the lake and behind it from the cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.options import DEFAULT_URL, HIGHEST, Token, Url, with_client
from tidings.cli.sub import Output, line_of

if TYPE_CHECKING:
    from tidings.client.connection import Connection
    from tidings.core.span import Span

EXAMPLE = "Example: tidings replay prices --lake /srv/lake --from 1 --to 100000"


def replay(
    stream: Annotated[str, typer.Argument(help="The stream.", metavar="STREAM", show_default=False)],
    lake: Annotated[Path, typer.Option("--lake", file_okay=False, help="The directory of the lake.", metavar="DIR")],
    lo: Annotated[int, typer.Option("--from", min=0, max=HIGHEST, help="The first number.", metavar="SEQ")] = 1,
    hi: Annotated[
        int | None,
        typer.Option(
            "--to",
            min=0,
            max=HIGHEST,
            help="The first number behind the range; default: all there is.",
            metavar="SEQ",
        ),
    ] = None,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="One JSON object per event, or a line.")
    ] = Output.json,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Print events as `sub` does, collected ones too as far as the lake has them.

    The cluster is asked only for what the lake does not reach.
    """
    from tidings.spark.lake import Lake
    from tidings.spark.replay import live, seam

    text = output is Output.text and not as_json
    found = Lake.existing(lake)
    snapshot = found.snapshot()
    turn = seam(snapshot, stream, lo, hi)
    for span in found.spans(stream, snapshot, lo, turn):
        _print(span, text)

    async def go_on(t: Connection) -> None:
        async for span in live(t, stream, turn, hi):
            _print(span, text)

    if hi is None or turn < hi:
        with_client(url, token, go_on)


def _print(span: Span, text: bool) -> None:
    from tidings.client.events import events_of

    sys.stdout.write("".join([line_of(event, text) for event in events_of(span)]))
    sys.stdout.flush()
