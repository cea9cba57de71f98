"""`tidings why`: what has become of a sequence number."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.options import DEFAULT_URL, HIGHEST, Token, Url, with_client
from tidings.cli.output import Json, emit

EXAMPLE = "Example: tidings why prices 17"


def why(
    stream: Annotated[str, typer.Argument(help="The stream.", show_default=False)],
    seq: Annotated[int, typer.Argument(min=0, max=HIGHEST, help="The number.", show_default=False)],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Say whether a number is a row, was collected (and by which event, while known), lost, or not published yet."""
    found = with_client(url, token, lambda t: t.why(stream, seq))
    result = {"stream": stream, "seq": seq, "state": found.state, "by": found.by}
    by = "" if found.by is None else f" by event {found.by}"
    emit(result, as_json, lambda: print(f"{stream} {seq}: {found.state}{by}"))
