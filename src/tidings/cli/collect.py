"""`tidings collect`: publish a garbage-collection event."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.options import DEFAULT_URL, HIGHEST, Token, Url, with_client
from tidings.cli.output import Json, emit

EXAMPLE = "Example: tidings collect sessions --where \"tenant = 'acme'\"     (or --before 1000)"


def collect(
    stream: Annotated[str, typer.Argument(help="The stream.", show_default=False)],
    where: Annotated[str | None, typer.Option(help="Collect the events for which this is true.", metavar="SQL")] = None,
    before: Annotated[
        int | None, typer.Option(min=0, max=HIGHEST, help="Collect every event below this number.", metavar="SEQ")
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Publish an event that collects earlier ones; it has a number itself, and subscribers see it."""
    if (where is None) == (before is None):
        raise typer.BadParameter("give either --where SQL or --before SEQ")
    ack = with_client(url, token, lambda t: t.collect(stream, before=before, where=where))
    result = {"stream": stream, "lo": ack.lo, "hi": ack.hi}
    emit(result, as_json, lambda: print(f"{stream}: event {ack.lo} collects"))
