"""`tidings audit`: compare what subscribers say they were handed with what was published."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.cluster_options import Directory, Token, Url, check_listening, find_cluster
from tidings.cli.output import BROKEN, Json, count, doing, emit, number, say
from tidings.cli.stop_signals import asked_to_stop

EXAMPLE = "Example: tidings audit --lake /srv/lake"
SHOWN = 20  # violations that are printed for a person


def audit(
    lake: Annotated[
        Path | None,
        typer.Option(
            "--lake", file_okay=False, help="The lake; default: a temporary one, read from the cluster.", metavar="DIR"
        ),
    ] = None,
    evidence: Annotated[
        Path | None, typer.Option(help="Write the evidence to this Parquet file.", metavar="FILE", dir_okay=False)
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Judge what is there, then new events, until Ctrl-C.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="With --live: end after this many seconds.", show_default=False),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="With --live: seconds between batches.")] = 2.0,
    patience: Annotated[
        float, typer.Option(min=0.1, help="With --live: seconds until a late event counts as missing.")
    ] = 60.0,
    url: Url = None,
    directory: Directory = None,
    token: Token = None,
    master: Annotated[str, typer.Option(help="Where Spark runs.", metavar="MASTER")] = "local[2]",
    as_json: Json = False,
) -> None:
    """Judge every subscriber that sends receipts, in every stream. Proved, violated, lost or unverifiable.

    Exit code 3 if anything was missing, twice, out of order or wrong. Lost: the owner of the stream declared that no
    replica has the event, so nobody could deliver it. Unverifiable: the event was collected before the lake read it, or
    has not reached the lake; the output says which subscriber, which numbers, and why.

    --live reads the cluster instead of a lake. It prints violations and changed verdicts as it finds them (with --json
    one object per line), and the summary at the end.
    """
    if live:
        if lake is not None:
            raise typer.BadParameter("--live reads the cluster and not a lake: leave out --live or --lake")
        result = _live(_reachable(url, directory), token or "", master, seconds, interval, patience, evidence, as_json)
    else:
        cluster = _reachable(url, directory) if lake is None else ""
        result = _batch(lake, evidence, cluster, token or "", master)
    emit(result, as_json, lambda: show(result))
    if result["found"]:
        raise typer.Exit(BROKEN)


def _reachable(url: str | None, directory: Path | None) -> str:
    """The URL of the cluster, unless it refuses connections: that is told before Spark starts."""
    found = find_cluster(url, directory)
    check_listening(found)
    return found.url


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
                with doing("reading the cluster ..."), Archive(session, found, url, lease=60.0, token=token) as job:
                    job.once()
            with doing("judging receipts ..."):
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
    from tidings.spark.session import spark
    from tidings.spark.streaming_audit import AuditQuery

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
            print(f"judging the receipts of subscribers at {url}; Ctrl-C ends it", file=sys.stderr, flush=True)
        return AuditQuery(session, url, tell, token=token, interval=interval, patience=patience).run(over)


@contextmanager
def _mute() -> Iterator[None]:
    """Processes that start meanwhile say nothing on stderr: Spark's workers of stateful queries are noisy there."""
    own = os.dup(2)
    with open(os.devnull, "w") as nothing, os.fdopen(os.dup(own), "w") as ours:
        os.dup2(nothing.fileno(), 2)
        try:
            with redirect_stderr(ours):  # what this process itself has to say is seen
                yield
        finally:
            os.dup2(own, 2)
            os.close(own)


def show_news(each: dict[str, Any]) -> None:
    """For a person: a violation, or a verdict that has changed."""
    if wrong := each.get("violation"):
        show_violation(wrong)
        return
    why = f": {each['detail']}" if each.get("detail") else ""
    say(f"{each['verdict']}: {each['subscriber']} in {each['stream']}, {each['events']:,} numbers so far{why}")


def show_violation(each: dict[str, Any]) -> None:
    """For a person: what is wrong, and where."""
    where = f"{each['subscriber'] or 'the stream'} in {each['stream']} [{each['lo']}, {each['hi']})"
    say(f"VIOLATION {each['fault'] or each['invariant']}: {where}: {each['detail']}")


def show(result: dict[str, Any]) -> None:
    """An audit for a person: the verdict first."""
    if not result["receipts"]:
        print("nothing to audit: no subscriber has sent receipts")
        say("`tidings sub --receipts` sends them, and so does tidings.connect(..., receipts=True)")
    else:
        judged = ", ".join(f"{result[each]:,} {each}" for each in ("proved", "violated", "lost", "unverifiable"))
        print(f"{count(result['found'], 'violation')}; subscriptions: {judged}")
    for each in result["violations"][:SHOWN]:
        show_violation(each)
    if result["found"] > SHOWN:
        print(f"... and {result['found'] - SHOWN:,} more violations: see --json or --evidence")
    for each in result["doubts"][:SHOWN]:
        say(f"unverifiable: {each['subscriber']} in {each['stream']} {each['detail']}")
    if len(result["doubts"]) > SHOWN:
        print(f"... and {len(result['doubts']) - SHOWN:,} more are unverifiable: see --json or --evidence")
    if result["lost"]:
        lost = count(result["lost_events"], "number")
        say(f"lost: the owners declared {lost} lost, which concerns {count(result['lost'], 'subscription')}")
    if result.get("waiting"):
        say(f"waiting: {count(result['waiting'], 'receipt')} of events that have not come yet")
    if result["receipts"]:
        receipts, events = count(result["receipts"], "receipt"), count(result["events"], "number")
        whose = f"{count(result['subscribers'], 'subscriber')} in {count(result['streams'], 'stream')}"
        print(f"{receipts} of {whose} for {events}")
    for region, wait in {"all regions": result["latency_ms"], **result["latency_ms_by_region"]}.items():
        if wait["p50"] is not None:
            print(f"latency in {region}: median {number(wait['p50'])} ms, 99 % below {number(wait['p99'])} ms")
    if result["receipts"]:
        say("(a subscription: one subscriber in one stream; a receipt: what it was handed, as it says itself)")
