"""`tidings archive`: the streams as a lake of Parquet files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.cluster_options import (
    DIRECTORY,
    ClusterFile,
    Directory,
    Token,
    Url,
    check_listening,
    find_cluster,
    take_plan,
)
from tidings.cli.output import Json, doing, emit
from tidings.cli.stop_signals import asked_to_stop

if TYPE_CHECKING:
    from tidings.spark.lake import Lake, Snapshot

app = typer.Typer(
    name="archive",
    help="Keep the streams as a lake of Parquet files. Replay, audit and restore read it.",
    epilog="Example: tidings archive run --lake /srv/lake --once",
    no_args_is_help=True,
)

LakeDir = Annotated[Path, typer.Option("--lake", file_okay=False, help="The directory of the lake.", metavar="DIR")]
Master = Annotated[str, typer.Option(help="Where Spark runs.", metavar="MASTER")]
MASTER = "local[2]"


@app.command("run", epilog="Example: tidings archive run --lake /srv/lake --once")
def run(
    lake: LakeDir,
    once: Annotated[bool, typer.Option("--once", help="End when the lake has all events published by now.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between batches.")] = 10.0,
    lease: Annotated[
        float, typer.Option(min=1.0, help="Seconds for which the cluster keeps rows for the next run.")
    ] = 3600.0,
    url: Url = None,
    directory: Directory = None,
    token: Token = None,
    master: Master = MASTER,
    as_json: Json = False,
) -> None:
    """Write all streams and receipts into a lake. Each event is written once."""
    from tidings.spark.archive import Archive
    from tidings.spark.lake import Lake
    from tidings.spark.session import spark

    cluster = find_cluster(url, directory)
    check_listening(cluster)
    found = Lake(lake)
    with spark(master, "tidings archive") as session:
        over = None if once else asked_to_stop()
        text = "reading the cluster into the lake ..." + ("" if once else " Ctrl-C ends it")
        with doing(text), Archive(session, found, cluster.url, lease=lease, token=token or "") as job:
            snapshot = job.once() if over is None else job.run(over, interval)
    result = _facts(found, snapshot)
    emit(result, as_json, lambda: _show(result))


def _facts(lake: Lake, snapshot: Snapshot) -> dict[str, Any]:
    rows = Counter[str]()
    for file in snapshot.files.values():
        rows[file.stream] += file.rows
    streams = [
        {"name": name, "end": snapshot.end(name), **_numbers(snapshot, name, rows[name])} for name in snapshot.streams
    ]
    return {"lake": str(lake.root), "snapshot": snapshot.id, "files": len(snapshot.files), "streams": streams}


def _numbers(snapshot: Snapshot, stream: str, rows: int) -> dict[str, int]:
    """What became of a stream's numbers. Collected: before they were read, or since, by a compaction."""
    covered, lost = (
        sum([cover.hi - cover.lo for cover in snapshot.coverage.get(stream, []) if cover.lost is which])
        for which in (False, True)
    )
    return {"rows": rows, "collected": covered - rows, "lost": lost}


def _show(result: dict[str, Any]) -> None:
    from tidings.cli.output import count, say, table
    from tidings.core.ids import RECEIPTS

    print(f"{result['lake']}: snapshot {result['snapshot']}, {count(result['files'], 'file')}")
    print()
    rows = [
        (f"receipts of {each['name'].removeprefix(RECEIPTS)}", *list(each.values())[1:])
        if each["name"].startswith(RECEIPTS)
        else tuple(each.values())
        for each in result["streams"]
    ]
    table("", ["stream", "end", "rows", "collected", "lost"], rows)
    print()
    say("(end: the next number to read; collected: numbers without a row, collected before the lake read them)")


@app.command("compact", epilog="Example: tidings archive compact --lake /srv/lake --keep 10")
def compact(
    lake: LakeDir,
    keep: Annotated[int, typer.Option(min=1, help="How many snapshots to keep, the newest included.")] = 10,
    master: Master = MASTER,
    as_json: Json = False,
) -> None:
    """Remove collected events from the lake, and forget old snapshots."""
    from tidings.spark.compact import compact
    from tidings.spark.lake import Lake
    from tidings.spark.session import spark

    found = Lake.existing(lake)
    with spark(master, "tidings compact") as session, doing("compacting the lake ..."):
        result = compact(session, found, keep)
    text = "{rows_before:,} rows became {rows_after:,}; {files_removed} files removed; snapshots {oldest} to {snapshot}"
    emit(result, as_json, lambda: print(text.format(**result)))


@app.command("restore", epilog="Example: tidings archive restore --lake /srv/lake -c cluster.toml --dir /srv/tidings")
def restore(
    lake: LakeDir,
    directory: Annotated[
        Path, typer.Option("--dir", envvar="TIDINGS_DIR", file_okay=False, help="The directory of the new cluster.")
    ] = DIRECTORY,
    config: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Write the disks of a new cluster from a lake. The same rows have the same numbers. Then start it with `up`.

    On several hosts: run it on each host with the same cluster file, before the first replica starts.
    """
    from tidings.core.errors import BadInput
    from tidings.server.paths import ClusterPaths
    from tidings.spark.restore import restore

    files = ClusterPaths(directory)
    if config is not None:
        take_plan(files, config)
    elif not files.config_file.exists():
        raise BadInput(
            f"{files.config_file} does not exist: give a cluster file with -c, or use tidings up --restore-from"
        )
    result = restore(lake, files)
    emit(result, as_json, lambda: show_restored(result))


def show_restored(result: dict[str, Any]) -> None:
    """What came back, and what did not."""
    for name, end in result["streams"].items():
        lost = result["lost"].get(name, 0)
        print(
            f"{name}: continues at {end}" + (f"; {lost:,} numbers before that had not reached the lake" if lost else "")
        )
