"""`tidings audit`: what subscribers say they were handed, against what was published."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.options import DEFAULT_URL, Token, Url
from tidings.cli.output import BROKEN, Json, emit

EXAMPLE = "Example: tidings audit --lake /srv/lake"
SHOWN = 20  # violations that are printed for a person


def audit(
    lake: Annotated[
        Path | None,
        typer.Option("--lake", file_okay=False, help="The lake; default: a new one, of what there is.", metavar="DIR"),
    ] = None,
    evidence: Annotated[
        Path | None, typer.Option(help="Write the evidence there, as Parquet.", metavar="FILE", dir_okay=False)
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    master: Annotated[str, typer.Option(help="Where Spark runs.", metavar="MASTER")] = "local[2]",
    as_json: Json = False,
) -> None:
    """Judge for every subscriber that sends receipts, and every stream: proved, violated, lost or unverifiable.

    Exit code 3 if anything was missing, twice, out of order or wrong. Lost is what the owner of the stream has declared
    so: it is named, and no violation, for nobody could deliver it. Unverifiable is what was collected before the lake
    read it, or has not reached it.
    """
    from tidings.spark.archive import Archive
    from tidings.spark.audit import evidence as judge
    from tidings.spark.audit import summary
    from tidings.spark.lake import Lake
    from tidings.spark.session import spark

    with tempfile.TemporaryDirectory(prefix="tidings-audit-") as folder:
        found = Lake(folder) if lake is None else Lake.existing(lake)
        with spark(master, "tidings audit") as session:
            if lake is None:
                with Archive(session, found, url, lease=60.0, token=token or "") as job:
                    job.once()
            table = judge(session, found).toArrow()
    if evidence is not None:
        import pyarrow.parquet as pq

        pq.write_table(table, evidence)
    result = summary(table)
    emit(result, as_json, lambda: show(result))
    if result["found"]:
        raise typer.Exit(BROKEN)


def show(result: dict[str, Any]) -> None:
    """An audit for a person."""
    for each in result["violations"][:SHOWN]:
        where = f"{each['subscriber'] or 'the stream'} {each['stream']} [{each['lo']}, {each['hi']})"
        print(f"VIOLATION {each['fault'] or each['invariant']}: {where}: {each['detail']}")
    if result["found"] > SHOWN:
        print(f"... and {result['found'] - SHOWN} more: --json, --evidence")
    print(
        f"{result['subscribers']} subscribers of {result['streams']} streams, {result['events']:,} events in "
        f"{result['receipts']:,} receipts: {result['proved']} proved, {result['violated']} violated, "
        f"{result['unverifiable']} unverifiable"
    )
    if result["lost"]:
        print(
            f"LOST: {result['lost_events']:,} numbers were declared lost by their owners, to {result['lost']} of these"
        )
    for region, wait in {"all": result["latency_ms"], **result["latency_ms_by_region"]}.items():
        if wait["p50"] is not None:
            print(f"latency {region}: median {wait['p50']:.1f} ms, 99 % below {wait['p99']:.1f} ms")
