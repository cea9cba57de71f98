"""`tidings config`: look at a cluster file before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidings.cli.output import Json, emit

app = typer.Typer(
    help="Cluster files.",
    epilog="Example: tidings config check cluster.toml",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def config() -> None:
    """Cluster files."""


@app.command("check", epilog="Example: tidings config check cluster.toml --json")
def check(
    file: Annotated[Path, typer.Argument(help="A cluster file.", metavar="FILE", show_default=False)],
    as_json: Json = False,
) -> None:
    """Check a cluster file. An error names the line, the value and what is allowed."""
    from tidings.server.cluster_config import load

    plan = load(file)
    regions = [{"name": each.name, "replicas": len(each.replicas), "config": each.config} for each in plan.regions]
    result = {"file": str(file), "name": plan.cluster.name, "durability": plan.cluster.durability, "regions": regions}

    def show() -> None:
        count = sum(len(each.replicas) for each in plan.regions)
        print(f"{file}: good: {len(regions)} regions, {count} replicas, {plan.cluster.durability}")

    emit(result, as_json, show)
