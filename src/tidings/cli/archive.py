"""`tidings archive`: the streams as a lake of Parquet files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import DEFAULT_URL, Token, Url
from tidings.cli.output import Json, emit
from tidings.cli.stopping import asked_to_stop
from tidings.cli.where import DIRECTORY, ClusterFile, Directory, take_plan

if TYPE_CHECKING:
    from tidings.spark.lake import Lake, Snapshot

app = typer.Typer(
    name="archive",
    help="Keep the streams as a lake of Parquet files; replay, audit and restore from it.",
    epilog="Example: tidings archive run --lake /srv/lake --once",
    no_args_is_help=True,
)

LakeDir = Annotated[Path, typer.Option("--lake", file_okay=False, help="The directory of the lake.", metavar="DIR")]
Master = Annotated[str, typer.Option(help="Where Spark runs.", metavar="MASTER")]
MASTER = "local[2]"


@app.command("run", epilog="Example: tidings archive run --lake /srv/lake --once")
def run(
    lake: LakeDir,
    once: Annotated[bool, typer.Option("--once", help="End when the lake has what there is now.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between batches.")] = 10.0,
    lease: Annotated[
        float, typer.Option(min=1.0, help="Seconds for which rows are kept for the next run after this one ends.")
    ] = 3600.0,
    url: Url = DEFAULT_URL,
    token: Token = None,
    master: Master = MASTER,
    as_json: Json = False,
) -> None:
    """Write all streams, and the receipts of their subscribers, into a lake, each event once."""
    from tidings.spark.archive import Archive
    from tidings.spark.lake import Lake
    from tidings.spark.session import spark

    found = Lake(lake)
    with spark(master, "tidings archive") as session:
        over = None if once else asked_to_stop()
        with Archive(session, found, url, lease=lease, token=token or "") as job:
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
    from tidings.cli.output import table

    print(f"{result['lake']}: snapshot {result['snapshot']}, {result['files']} files")
    table("streams", ["name", "end", "rows", "collected", "lost"], [tuple(each.values()) for each in result["streams"]])


@app.command("compact", epilog="Example: tidings archive compact --lake /srv/lake --keep 10")
def compact(
    lake: LakeDir,
    keep: Annotated[int, typer.Option(min=1, help="Snapshots that can still be read, the newest included.")] = 10,
    master: Master = MASTER,
    as_json: Json = False,
) -> None:
    """Leave out of the lake what its streams have collected, and forget old snapshots."""
    from tidings.spark.compact import compact
    from tidings.spark.lake import Lake
    from tidings.spark.session import spark

    found = Lake.existing(lake)
    with spark(master, "tidings compact") as session:
        result = compact(session, found, keep)
    text = "{rows_before:,} rows became {rows_after:,}; {files_removed} files removed; snapshots {oldest} to {snapshot}"
    emit(result, as_json, lambda: print(text.format(**result)))


@app.command("restore", epilog="Example: tidings archive restore --lake /srv/lake -c cluster.toml --dir /srv/tidings")
def restore(lake: LakeDir, directory: Directory = DIRECTORY, config: ClusterFile = None, as_json: Json = False) -> None:
    """Write the disks of a new cluster, from a lake: the same rows under the same numbers. Start it with `up`.

    On several hosts: run it on each of them with the same cluster file, before any of them starts.
    """
    from tidings.core.errors import BadInput
    from tidings.server.layout import Layout
    from tidings.spark.restore import restore

    files = Layout(directory)
    if config is not None:
        take_plan(files, config)
    elif not files.plan.exists():
        raise BadInput(
            f"{files.plan} is not there: say with -c which cluster to make, or use tidings up --restore-from"
        )
    result = restore(lake, files)
    emit(result, as_json, lambda: show_restored(result))


def show_restored(result: dict[str, Any]) -> None:
    """What came back, and what did not."""
    for name, end in result["streams"].items():
        lost = result["lost"].get(name, 0)
        print(f"{name}: goes on at {end}" + (f"; {lost} numbers before that had not reached the lake" if lost else ""))
