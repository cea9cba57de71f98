"""`tidings config`: look at a cluster file before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.output import Json, count, emit

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
    regions: list[dict[str, Any]] = [
        {
            "name": each.name,
            "replicas": len(each.replicas),
            "relays": sum([len(cell.relays) for cell in each.cells]),
            "edges": len(each.edges),
            "config": each.config,
        }
        for each in plan.regions
    ]
    result = {"file": str(file), "name": plan.cluster.name, "durability": plan.cluster.durability, "regions": regions}

    def show() -> None:
        kinds = ("replicas", "relays", "edges")
        totals = {kind: sum([each[kind] for each in regions]) for kind in kinds}
        parts = [count(total, kind[:-1]) for kind, total in {"regions": len(regions), **totals}.items() if total]
        print(f"{file}: good: {', '.join(parts)}, {plan.cluster.durability}")

    emit(result, as_json, show)
