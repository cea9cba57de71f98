"""`tidings replay`: a range of a stream, first from the lake, then from the cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.arguments import HIGHEST
from tidings.cli.cluster_options import Directory, Token, Url, find_cluster, with_client
from tidings.cli.output import say
from tidings.cli.sub import Output, line_of

if TYPE_CHECKING:
    from tidings.client.connection import Connection
    from tidings.core.ids import StreamId
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
            help="The first number after the range; default: the end of the stream.",
            metavar="SEQ",
        ),
    ] = None,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="One JSON object per event, or one line of text.")
    ] = Output.json,
    url: Url = None,
    directory: Directory = None,
    token: Token = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Print a range of a stream, from a lake and the cluster.

    The events come from the lake first, then from the cluster, in the form of `sub`. It ends where the stream ends,
    also if --to is beyond that. Of a deleted stream it prints what the lake has.
    """
    from tidings.client.errors import BadInput, UnknownStream
    from tidings.spark.lake import Lake
    from tidings.spark.replay import live, seam

    text = output is Output.text and not as_json
    found = Lake.existing(lake)
    snapshot = found.snapshot()
    seam(snapshot, stream, lo, hi)  # a range that is none is told at once
    try:
        archived = snapshot.id_of(stream)
    except BadInput:
        archived = ""

    def from_lake(id: StreamId) -> int:
        turn = seam(snapshot, id, lo, hi)
        for span in found.spans(id, snapshot, lo, turn):
            _print(span, text)
        return turn

    async def from_both(t: Connection) -> None:
        try:
            id = (await t.stream(stream)).id
        except UnknownStream:
            if not archived:
                raise
            from_lake(archived)
            say(f"note: the cluster has no stream {stream!r} any more; these are the events of {archived} in the lake")
            return
        async for span in live(t, id, from_lake(id), hi):
            _print(span, text)

    if archived and hi is not None and hi <= snapshot.end(archived):
        from_lake(archived)
    else:
        with_client(find_cluster(url, directory), token, from_both)


def _print(span: Span, text: bool) -> None:
    from tidings.client.events import events_of

    sys.stdout.write("".join([line_of(event, text) for event in events_of(span)]))
    sys.stdout.flush()
