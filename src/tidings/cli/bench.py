"""`tidings bench`: how fast it is on this machine, always beside something to compare with in the same run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from tidings.cli.output import Json, Progress, emit, not_built, number, progress, table

app = typer.Typer(
    help="Measure speed, beside a yardstick in the same run.",
    epilog="Example: tidings bench gc --json",
    no_args_is_help=True,
    rich_markup_mode=None,
)
BUILT = ("throughput", "latency", "gc", "store", "sim", "spark")
Runs = Annotated[int, typer.Option(min=3, help="Repetitions; the median is reported, with the spread.")]


@app.command("gc", epilog="Example: tidings bench gc --runs 5")
def gc(runs: Runs = 3, as_json: Json = False) -> None:
    """Garbage collection by key: events per second, beside a numpy version."""
    from tidings.lab import bench_gc

    with progress("bench gc") as report:
        result = bench_gc.run(runs, report)
    _emit(result, as_json)


@app.command("sim", epilog="Example: tidings bench sim --json")
def sim(runs: Runs = 3, as_json: Json = False) -> None:
    """The simulator: protocol events per second, beside a bare event loop."""
    from tidings.lab import bench_sim

    with progress("bench sim") as report:
        result = bench_sim.run(runs, report)
    _emit(result, as_json)


Seconds = Annotated[float, typer.Option(min=0.1, help="Seconds of publishing in each repetition.")]
Only = Annotated[list[str] | None, typer.Option("--only", help="Only the run of this name; may be repeated.")]


@app.command("throughput", epilog="Example: tidings bench throughput --only columnar-memory --seconds 5")
def throughput(
    runs: Runs = 3,
    seconds: Seconds = 3.0,
    only: Only = None,
    memory: Annotated[bool, typer.Option("--memory", help="Instead: the private memory of a replica.")] = False,
    events: Annotated[
        list[int] | None, typer.Option("--events", min=1, help="With --memory: look after so many; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Events per second from publishers through replicas to subscribers, all as processes of this machine."""
    from tidings.lab import bench_cluster

    scale = bench_cluster.Scale(seconds=seconds)
    with steps("bench throughput") as report:
        if memory:
            result = bench_cluster.memory(sorted(events or bench_cluster.MEMORY), report, scale)
        else:
            result = bench_cluster.throughput(runs, report, scale, only or ())
    _emit(result, as_json)


@app.command("latency", epilog="Example: tidings bench latency --only memory-1 --json")
def latency(runs: Runs = 3, seconds: Seconds = 5.0, only: Only = None, as_json: Json = False) -> None:
    """From post to async for at 1,000 events/s, beside bare sockets and bare syncs."""
    from tidings.lab import bench_cluster

    with steps("bench latency") as report:
        result = bench_cluster.latency(runs, report, bench_cluster.Scale(latency_seconds=seconds), only or ())
    _emit(result, as_json)


@app.command("store", epilog="Example: tidings bench store --json")
def store(runs: Runs = 3, as_json: Json = False) -> None:
    """The durable log by itself: a sync per batch and group commit, beside a bare sync."""
    from tidings.lab import bench_cluster

    with steps("bench store") as report:
        result = bench_cluster.store(runs, report)
    _emit(result, as_json)


@app.command("spark", epilog="Example: tidings bench spark --rows 2000000 --json")
def spark(
    runs: Runs = 3,
    rows: Annotated[int, typer.Option(min=1, help="Rows that every run reads.")] = 8_000_000,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[2]",
    as_json: Json = False,
) -> None:
    """Rows per second from live replicas into Spark, beside a source that makes them in the worker, and Parquet."""
    from tidings.lab import bench_spark

    with steps("bench spark") as report:
        result = bench_spark.run(runs, report, bench_spark.Scale(rows=rows, master=master))
    _emit(result, as_json)


def _promised(name: str, text: str) -> None:
    """A benchmark whose name is known, and that says that it is not there."""

    def bench(runs: Runs = 3, as_json: Json = False) -> None:
        raise not_built(f"bench {name}", BUILT)

    app.command(name, help=f"Not built yet: {text}.", epilog=f"Example: tidings bench {name} --json")(bench)


_promised("filter", "events per second through many subscriptions with filters")
_promised("fanout", "events per second to many subscribers")
_promised("peers", "the same load on other systems")


@contextmanager
def steps(text: str) -> Iterator[Progress]:
    """As `progress`, and a line on stderr per step where that is no terminal: such a benchmark takes minutes."""
    with progress(text) as report:
        yield report or (lambda done, total, what: typer.echo(f"{text}: {done}/{total} {what}", err=True))


def _emit(result: dict[str, Any], as_json: bool) -> None:
    def show() -> None:
        runs: list[dict[str, Any]] = result["runs"]
        columns = list(dict.fromkeys(key for run in runs for key in run))
        rows = [[_cell(run.get(column, "")) for column in columns] for run in runs]
        table(f"bench {result['bench']}", columns, rows)
        table("ratios", ["ratio", "value"], result["ratio"].items())

    emit(result, as_json, show)


def _cell(value: Any) -> Any:
    """What fits into a cell."""
    if isinstance(value, dict):
        return " ".join([f"{name} {number(each)}" for name, each in value.items()])
    if isinstance(value, list):
        return " .. ".join([number(each) for each in value])
    return value
