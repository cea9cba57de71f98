"""`tidings why`: what has become of a sequence number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.arguments import HIGHEST
from tidings.cli.cluster_options import Directory, Token, Url, find_cluster, with_client
from tidings.cli.output import Json, emit
from tidings.core.ids import MARK

if TYPE_CHECKING:
    from tidings.client.connection import Connection
    from tidings.client.events import Reason

EXAMPLE = "Example: tidings why prices 17     (also from an archive: tidings why prices 17 --lake /srv/lake)"


def why(
    stream: Annotated[str, typer.Argument(help="The stream.", show_default=False)],
    seq: Annotated[int, typer.Argument(min=0, max=HIGHEST, help="The number.", show_default=False)],
    lake: Annotated[
        Path | None,
        typer.Option(
            "--lake", file_okay=False, help="Ask this lake for what the cluster has forgotten.", metavar="DIR"
        ),
    ] = None,
    url: Url = None,
    directory: Directory = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Say what became of a number. It is a row, collected (by which event), lost, or not published yet.

    Replicas forget after a while which event collected a number. With --lake the archive is asked then, and also when
    the cluster does not answer or the stream is deleted.
    """
    from tidings.client.errors import BadInput, Unreachable

    async def ask(t: Connection) -> tuple[str, Reason]:
        id = (await t.stream(stream)).id
        return id, await t.why(id, seq)

    told: dict[str, Any] | None
    try:
        id, found = with_client(find_cluster(url, directory), token, ask, awaiting="waiting for the answer")
    except (BadInput, Unreachable):
        told = _told(lake, stream, seq)
        if told is None:
            raise
    else:
        told = {"state": found.state, "by": found.by, "source": "cluster"}
        if lake is not None and found.state == "collected" and found.by is None:
            told = _told(lake, id, seq) or told
    emit({"stream": stream, "seq": seq, **told}, as_json, lambda: _show(stream, seq, told, lake))


def _told(lake: Path | None, stream: str, seq: int) -> dict[str, Any] | None:
    """What the lake says; None without one, or if it has not read that far."""
    if lake is None:
        return None
    from tidings.spark.lake import Lake
    from tidings.spark.why import fate

    known = Lake.existing(lake)
    snapshot = known.snapshot()
    found = fate(known, stream if MARK in stream else snapshot.id_of(stream), seq)
    return None if found is None else {"state": found.state, "by": found.by, "source": "lake"}


def _show(stream: str, seq: int, told: dict[str, Any], lake: Path | None) -> None:
    by = "" if told["by"] is None else f" by event {told['by']}"
    if told["state"] == "collected" and not by:
        asked = "neither the cluster nor the lake knows" if lake is not None else "the cluster does not know any more"
        hint = "" if lake is not None else "; an archive may: --lake DIR"
        by = f" ({asked} by which event{hint})"
    state = "a row, not collected" if told["state"] == "row" else told["state"]
    source = " (says the lake)" if told["source"] == "lake" else ""
    print(f"{stream} {seq}: {state}{by}{source}")
