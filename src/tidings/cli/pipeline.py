"""`tidings pipeline`: events, live state, health and audit as tables, by a Spark Declarative Pipelines project."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.cluster_options import (
    DIR_VARIABLE,
    DIRECTORY,
    FoundCluster,
    Token,
    Url,
    check_listening,
    find_cluster,
    has_cluster,
)
from tidings.cli.output import BROKEN, Json, emit, number, progress, say, short, table

app = typer.Typer(
    name="pipeline",
    help="Keep events, live state per key, health and audit as tables. A Spark Declarative Pipeline writes them.",
    epilog="Example: tidings pipeline run --dir /srv/pipeline",
    no_args_is_help=True,
)

NAME = "pipeline"
Dir = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        file_okay=False,
        help="The pipeline's directory, or a cluster's: then DIR/pipeline; default .tidings/pipeline. Or set "
        f"{DIR_VARIABLE}.",
        metavar="DIR",
    ),
]
Master = Annotated[str, typer.Option(help="Where Spark runs.", metavar="MASTER")]
MASTER = "local[2]"


@app.command("run", epilog="Example: tidings pipeline run --dir /srv/pipeline --url tidings://127.0.0.1:7400")
def run(
    directory: Dir = None,
    url: Url = None,
    token: Token = None,
    full_refresh: Annotated[
        bool, typer.Option("--full-refresh", help="Empty all tables and read again what the cluster still has.")
    ] = False,
    lease: Annotated[
        float, typer.Option(min=1.0, help="Seconds for which collected rows are kept for the next run.")
    ] = 3600.0,
    master: Master = MASTER,
    as_json: Json = False,
) -> None:
    """Bring the tables up to date. The next run continues where this one ends.

    Exit code 3 if the audit finds an event missing, twice, out of order or wrong.
    """
    result = _run(directory, url, token, lease, master, full_refresh=full_refresh)
    emit(result, as_json, lambda: _show(result))
    if result["audit"]["found"]:
        raise typer.Exit(BROKEN)


@app.command("dry-run", epilog="Example: tidings pipeline dry-run --dir /srv/pipeline")
def dry_run(
    directory: Dir = None, url: Url = None, token: Token = None, master: Master = MASTER, as_json: Json = False
) -> None:
    """Check the project against the cluster. No events are read."""
    result = _run(directory, url, token, 3600.0, master, dry=True)
    emit(result, as_json, lambda: print(f"{result['dir']}: the pipeline is sound"))


def _run(
    directory: Path | None, url: str | None, token: str | None, lease: float, master: str, **how: bool
) -> dict[str, Any]:
    from tidings.spark.pipeline import run
    from tidings.spark.tables import LEASE, TOKEN, URL

    root, cluster = place(directory, url)
    check_listening(cluster)
    settings = {URL: cluster.url, TOKEN: token or "", LEASE: str(lease)}
    with progress("the pipeline") as report:
        return run(root, settings, master=master, progress=report, **how)


def place(directory: Path | None, url: str | None = None) -> tuple[Path, FoundCluster]:
    """Where the pipeline is, and the cluster: in a cluster's directory both are known."""
    if directory is None:
        home = Path(os.environ.get(DIR_VARIABLE) or DIRECTORY)
        return home / NAME, find_cluster(url, None)
    if not has_cluster(directory):
        return directory, find_cluster(url, None)
    return directory / NAME, find_cluster(url, directory if url is None else None)


HEALTH = {
    "stream": "stream",
    "events": "events",
    "live": "live",
    "collected": "collected_share",
    "lost": "lost",
    "events/s": "events_per_s",
    "p50 ms": "latency_ms_p50",
    "p99 ms": "latency_ms_p99",
}
"""The columns that a person sees, and what they are in the table `health`."""


def _show(result: dict[str, Any]) -> None:
    """For a person: the audit's verdict first."""
    from tidings.cli.audit import show

    show(result["audit"])
    print()
    table("", list(HEALTH), [[_cell(each, name) for name in HEALTH.values()] for each in result["streams"]])
    print()
    say(
        "(events: rows in the table; live: events that nothing has collected; collected: share of all numbers; "
        "p50, p99: age of events when subscribers with receipts were handed them)"
    )
    print()
    table("", ["table", "rows"], [(each["name"], each["rows"]) for each in result["tables"]])
    print()
    print(f"tables in {result['dir']}/warehouse, {number(result['seconds'])} s")


def _cell(stream: dict[str, Any], name: str) -> Any:
    value = stream[name]
    if value is None:
        return ""
    if name == "collected_share":
        return f"{100 * value:.3g} %"
    return short(value) if isinstance(value, int) else value
