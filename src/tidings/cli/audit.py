"""`tidings audit`: what subscribers say they were handed, against what was published."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.options import DEFAULT_URL, Token, Url
from tidings.cli.output import BROKEN, Json, emit
from tidings.cli.stopping import asked_to_stop

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
    live: Annotated[
        bool, typer.Option("--live", help="Judge what there is, then what comes, as it comes; until interrupted.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="With --live: end so many seconds after Spark has started.", show_default=False),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="With --live: seconds between batches.")] = 2.0,
    patience: Annotated[
        float, typer.Option(min=0.1, help="With --live: seconds after which what has not come counts as missing.")
    ] = 60.0,
    url: Url = DEFAULT_URL,
    token: Token = None,
    master: Annotated[str, typer.Option(help="Where Spark runs.", metavar="MASTER")] = "local[2]",
    as_json: Json = False,
) -> None:
    """Judge for every subscriber that sends receipts, and every stream: proved, violated, lost or unverifiable.

    Exit code 3 if anything was missing, twice, out of order or wrong. Lost is what the owner of the stream has declared
    so: it is named, and no violation, for nobody could deliver it. Unverifiable is what was collected before the lake
    read it, or has not reached it.

    With --live the cluster itself is read: violations, and verdicts that change, are printed as they are found (with
    --json one object per line), and the summary at the end.
    """
    if live:
        if lake is not None:
            raise typer.BadParameter("--live reads the cluster and no lake: leave out one of --live and --lake")
        result = _live(url, token or "", master, seconds, interval, patience, evidence, as_json)
    else:
        result = _batch(lake, evidence, url, token or "", master)
    emit(result, as_json, lambda: show(result))
    if result["found"]:
        raise typer.Exit(BROKEN)


def _batch(lake: Path | None, evidence: Path | None, url: str, token: str, master: str) -> dict[str, Any]:
    from tidings.spark.archive import Archive
    from tidings.spark.audit import evidence as judge
    from tidings.spark.audit import summary
    from tidings.spark.lake import Lake
    from tidings.spark.session import spark

    with tempfile.TemporaryDirectory(prefix="tidings-audit-") as folder:
        found = Lake(folder) if lake is None else Lake.existing(lake)
        with spark(master, "tidings audit") as session:
            if lake is None:
                with Archive(session, found, url, lease=60.0, token=token) as job:
                    job.once()
            table = judge(session, found).toArrow()
    if evidence is not None:
        import pyarrow.parquet as pq

        pq.write_table(table, evidence)
    return summary(table)


def _live(
    url: str,
    token: str,
    master: str,
    seconds: float | None,
    interval: float,
    patience: float,
    evidence: Path | None,
    as_json: bool,
) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tidings.spark.audit import EVIDENCE
    from tidings.spark.live import Live
    from tidings.spark.session import spark

    schema = pa.schema(list(EVIDENCE.items()))
    with ExitStack() as stack:
        writer = stack.enter_context(pq.ParquetWriter(evidence, schema)) if evidence is not None else None

        def tell(news: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
            for each in news:
                emit(each, as_json, functools.partial(show_news, each))
            sys.stdout.flush()
            if writer is not None and rows:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))

        with _mute():
            session = stack.enter_context(spark(master, "tidings audit"))
        over = asked_to_stop(seconds)
        if sys.stderr.isatty():
            print(f"judging what subscribers of {url} are handed; Ctrl-C ends it", file=sys.stderr, flush=True)
        return Live(session, url, tell, token=token, interval=interval, patience=patience).run(over)


@contextmanager
def _mute() -> Iterator[None]:
    """Whatever is started meanwhile says nothing on stderr: Spark's workers of stateful queries chatter there."""
    with open(os.devnull, "w") as nothing:
        own = os.dup(2)
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(own, 2)
            os.close(own)


def show_news(each: dict[str, Any]) -> None:
    """For a person: a violation, or a verdict that has changed."""
    if wrong := each.get("violation"):
        show_violation(wrong)
    else:
        print(f"{each['verdict']}: {each['subscriber']} {each['stream']}, {each['events']:,} numbers so far")


def show_violation(each: dict[str, Any]) -> None:
    """For a person: what is wrong, and where."""
    where = f"{each['subscriber'] or 'the stream'} {each['stream']} [{each['lo']}, {each['hi']})"
    print(f"VIOLATION {each['fault'] or each['invariant']}: {where}: {each['detail']}")


def show(result: dict[str, Any]) -> None:
    """An audit for a person."""
    for each in result["violations"][:SHOWN]:
        show_violation(each)
    if result["found"] > SHOWN:
        print(f"... and {result['found'] - SHOWN} more: --json, --evidence")
    print(
        f"subscribers {result['subscribers']}, streams {result['streams']}, receipts {result['receipts']:,} for "
        f"{result['events']:,} numbers: {result['proved']} proved, {result['violated']} violated, "
        f"{result['unverifiable']} unverifiable"
    )
    if not result["receipts"]:
        print("nothing to judge: no subscriber has sent receipts; tidings.connect(..., receipts=True) switches them on")
    if result["lost"]:
        print(
            f"LOST: {result['lost_events']:,} numbers were declared lost by their owners, to {result['lost']} of these"
        )
    if result.get("waiting"):
        print(f"{result['waiting']:,} receipts are not judged: what they are about has not come yet")
    for region, wait in {"all": result["latency_ms"], **result["latency_ms_by_region"]}.items():
        if wait["p50"] is not None:
            print(f"latency {region}: median {wait['p50']:.1f} ms, 99 % below {wait['p99']:.1f} ms")
