"""`tidings pipeline`: events, live state, health and audit as tables, by a Spark Declarative Pipelines project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.options import DEFAULT_URL, Token
from tidings.cli.output import BROKEN, Json, emit, progress
from tidings.cli.where import DIRECTORY

app = typer.Typer(
    name="pipeline",
    help="Keep events, live state per key, health and audit as tables, by a Spark Declarative Pipelines project.",
    epilog="Example: tidings pipeline run --dir /srv/pipeline",
    no_args_is_help=True,
)

NAME = "pipeline"
Dir = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        file_okay=False,
        help="The pipeline's directory, or a cluster's, which has one within. Default: .tidings/pipeline.",
        metavar="DIR",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", envvar="TIDINGS_URL", help="Where the cluster is. Default: the one of DIR, or the usual address."
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
        bool, typer.Option("--full-refresh", help="Empty all tables and begin anew, with what the cluster still has.")
    ] = False,
    lease: Annotated[
        float, typer.Option(min=1.0, help="Seconds for which collected rows are kept for the next run.")
    ] = 3600.0,
    master: Master = MASTER,
    as_json: Json = False,
) -> None:
    """Bring the tables up to date with what is published by now; the next run goes on from there.

    Exit code 3 if the audit finds anything missing, twice, out of order or wrong.
    """
    result = _run(directory, url, token, lease, master, full_refresh=full_refresh)
    emit(result, as_json, lambda: _show(result))
    if result["audit"]["found"]:
        raise typer.Exit(BROKEN)


@app.command("dry-run", epilog="Example: tidings pipeline dry-run --dir /srv/pipeline")
def dry_run(
    directory: Dir = None, url: Url = None, token: Token = None, master: Master = MASTER, as_json: Json = False
) -> None:
    """Check the project and its tables against the cluster, and take nothing in."""
    result = _run(directory, url, token, 3600.0, master, dry=True)
    emit(result, as_json, lambda: print(f"{result['dir']}: the pipeline is sound"))


def _run(
    directory: Path | None, url: str | None, token: str | None, lease: float, master: str, **how: bool
) -> dict[str, Any]:
    from tidings.spark.pipeline import run
    from tidings.spark.tables import LEASE, TOKEN, URL

    root, known = place(directory)
    settings = {URL: url or known, TOKEN: token or "", LEASE: str(lease)}
    with progress("the pipeline") as report:
        return run(root, settings, master=master, progress=report, **how)


def place(directory: Path | None) -> tuple[Path, str]:
    """Where the pipeline is, and the cluster: in a cluster's directory both are known."""
    from tidings.server.layout import Layout
    from tidings.server.plan import load

    found = directory if directory is not None else DIRECTORY
    plan = Layout(found).plan
    if not plan.exists():
        return (directory or DIRECTORY / NAME), DEFAULT_URL
    return found / NAME, "tidings://" + ",".join(load(plan).regions[0].replicas)


def _show(result: dict[str, Any]) -> None:
    from tidings.cli.audit import show
    from tidings.cli.output import table

    table("tables", ["name", "rows", "path"], [(each["name"], each["rows"], each["path"]) for each in result["tables"]])
    names = ("stream", "events", "live", "collected_share", "lost", "events_per_s", "latency_ms_p50", "latency_ms_p99")
    shown = [["" if each[name] is None else each[name] for name in names] for each in result["streams"]]
    table("health", names, shown)
    show(result["audit"])
