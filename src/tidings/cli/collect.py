"""`tidings collect`: publish a garbage-collection event."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.arguments import HIGHEST
from tidings.cli.cluster_options import Directory, Token, Url, find_cluster, with_client
from tidings.cli.output import Json, emit

EXAMPLE = "Example: tidings collect sessions --where \"tenant = 'acme'\"     (or --before 1000)"


def collect(
    stream: Annotated[str, typer.Argument(help="The stream.", show_default=False)],
    where: Annotated[
        str | None, typer.Option(help="Collect the events that meet this condition.", metavar="SQL")
    ] = None,
    before: Annotated[
        int | None, typer.Option(min=0, max=HIGHEST, help="Collect every event below this number.", metavar="SEQ")
    ] = None,
    url: Url = None,
    directory: Directory = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Publish an event that collects earlier ones. It has a number, and subscribers get it, too."""
    if (where is None) == (before is None):
        raise typer.BadParameter("give either --where SQL or --before SEQ")
    ack = with_client(
        find_cluster(url, directory),
        token,
        lambda t: t.collect(stream, before=before, where=where),
        awaiting="waiting until the event is durable",
    )
    result = {"stream": stream, "lo": ack.lo, "hi": ack.hi}
    emit(result, as_json, lambda: print(f"{stream}: number {ack.lo} collects earlier events"))
