"""`tidings bench`: how fast it is on this machine, with a baseline in the same run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from tidings.cli.output import Json, Listing, Progress, emit, listed, not_built, number, progress, say, table

app = typer.Typer(
    cls=Listing,
    help="Measure speed, and a baseline in the same run.",
    epilog="Example: tidings bench gc --json",
    no_args_is_help=True,
    rich_markup_mode=None,
)
PROMISED = {
    "peers": "the same load on other systems",
}
"""Benchmarks that are designed but not built yet."""
Runs = Annotated[int, typer.Option(min=3, help="Repetitions; the median is reported, with the spread.")]


@app.command("gc", epilog="Example: tidings bench gc --runs 5")
def gc(runs: Runs = 3, as_json: Json = False) -> None:
    """Garbage collection by key, in events per second. Compared with a numpy version."""
    from tidings.bench import gc as bench_gc

    with progress("bench gc") as report:
        result = bench_gc.run(runs, report)
    _emit(result, as_json)


@app.command("sim", epilog="Example: tidings bench sim --json")
def sim(runs: Runs = 3, as_json: Json = False) -> None:
    """The simulator, in protocol events per second. Compared with a bare event loop."""
    from tidings.bench import sim as bench_sim

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
    memory: Annotated[bool, typer.Option("--memory", help="Measure the private memory of a replica instead.")] = False,
    events: Annotated[
        list[int] | None,
        typer.Option("--events", min=1, help="With --memory: measure after this many events; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Events per second from publishers to subscribers. All are processes of this machine."""
    from tidings.bench import cluster as bench_cluster

    scale = bench_cluster.ClusterScale(seconds=seconds)
    with steps("bench throughput") as report:
        if memory:
            result = bench_cluster.memory(sorted(events or bench_cluster.MEMORY), report, scale)
        else:
            result = bench_cluster.throughput(runs, report, scale, only or ())
    _emit(result, as_json)


@app.command("latency", epilog="Example: tidings bench latency --only memory-1 --json")
def latency(runs: Runs = 3, seconds: Seconds = 5.0, only: Only = None, as_json: Json = False) -> None:
    """Latency at 1,000 events/s, from `post` to `async for`. Compared with bare sockets and bare syncs."""
    from tidings.bench import cluster as bench_cluster

    with steps("bench latency") as report:
        result = bench_cluster.latency(runs, report, bench_cluster.ClusterScale(latency_seconds=seconds), only or ())
    _emit(result, as_json)


@app.command("store", epilog="Example: tidings bench store --json")
def store(runs: Runs = 3, as_json: Json = False) -> None:
    """The durable log alone, by batch and by group commit. Compared with a bare sync."""
    from tidings.bench import cluster as bench_cluster

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
    """Rows per second from replicas into Spark. Compared with a source that generates rows, and with Parquet."""
    from tidings.bench import spark as bench_spark

    with steps("bench spark") as report:
        result = bench_spark.run(runs, report, bench_spark.SparkScale(rows=rows, master=master))
    _emit(result, as_json)


@app.command("filter", epilog="Example: tidings bench filter --json")
def filter(runs: Runs = 3, as_json: Json = False) -> None:
    """Events per second through many filters. Compared with a join in DuckDB, and with one filter after the other."""
    from tidings.bench import filter as bench_filter

    with steps("bench filter") as report:
        result = bench_filter.run(runs, report)
    _emit(result, as_json)


@app.command("fanout", epilog="Example: tidings bench fanout --connections 1000 --json")
def fanout(
    runs: Runs = 3,
    seconds: Seconds = 10.0,
    connections: Annotated[
        list[int] | None,
        typer.Option("--connections", min=1, help="Subscribers; may be repeated. Default 100, 1000 and 16000."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Processor time and latency of an edge with many subscribers. Compared with a process that only sends."""
    from tidings.bench import fanout as bench_fanout

    counts = tuple(sorted(set(connections))) if connections else bench_fanout.CONNECTIONS
    with steps("bench fanout") as report:
        result = bench_fanout.run(runs, report, bench_fanout.FanoutScale(connections=counts, seconds=seconds))
    _emit(result, as_json)


def _promised(name: str, text: str) -> None:
    """A benchmark that is not built yet: its name is known, and it says so."""

    def bench(runs: Runs = 3, as_json: Json = False) -> None:
        built = [each.name for each in app.registered_commands if each.name and each.name not in PROMISED]
        raise not_built(f"bench {name}", built)

    app.command(name, help=f"Not built yet. It will measure {text}.", epilog=f"Example: tidings bench {name} --json")(
        bench
    )


for each in PROMISED.items():
    _promised(*each)


@contextmanager
def steps(text: str) -> Iterator[Progress]:
    """As `progress`; off a terminal a line on stderr per step, because such a benchmark takes minutes."""
    with progress(text) as report:
        yield report or (lambda done, total, what: typer.echo(f"{text}: {done}/{total} {what}", err=True))


MEASURES = ("events_per_s", "rows_per_s", "latency_us", "private_bytes")
"""What a benchmark measures, of which a run has one."""


def _emit(result: dict[str, Any], as_json: bool) -> None:
    emit(result, as_json, lambda: _show(result))


def _show(result: dict[str, Any]) -> None:
    """For a person: what was measured, the ratios, then under which conditions."""
    runs: list[dict[str, Any]] = result["runs"]
    for measure in MEASURES:
        mine = [_row(run, measure) for run in runs if measure in run]
        if mine:
            columns = list(dict.fromkeys(name for row in mine for name in row))
            table("", columns, [[row.get(name, "") for name in columns] for row in mine])
            print()
    if result["ratio"]:
        table("", ["ratio", "value"], result["ratio"].items())
        print()
    for goal in result.get("goals", ()):
        verdict = "reached" if goal["reached"] else "missed"
        say(f"{goal['run']}: at least {number(goal['events_per_s'])} events/s {goal['is']}: {verdict}")
    rest = [{name: value for name, value in run.items() if name not in (*MEASURES, *SHOWN)} for run in runs]
    common = {
        name: value
        for name, value in rest[0].items()
        if len(rest) > 1 and all(value == each.get(name) for each in rest)
    }
    if common:
        say(f"all runs: {_conditions(common)}")
    for run, more in zip(runs, rest, strict=True):
        if own := {name: value for name, value in more.items() if name not in common}:
            say(f"{run['name']}: {_conditions(own)}")
    if any(name in run for run in runs for name in ("spread", "spread_p50")):
        say("(medians of the repetitions; lowest and highest are the extremes among them)")
    if any("others_cpus" in run for run in runs):
        say("(others cpus: processors that other programs used meanwhile)")


SHOWN = ("name", "spread", "spread_p50")


def _row(run: dict[str, Any], measure: str) -> dict[str, Any]:
    """A run as a row of the table of what it measured."""
    value = run[measure]
    row: dict[str, Any] = {"run": run["name"]}
    if isinstance(value, dict):
        row |= {f"{part} us": each for part, each in value.items()}
    else:
        row[measure.replace("_per_s", "/s").replace("_", " ")] = value
    if spread := run.get("spread_p50" if measure == "latency_us" else "spread"):
        row |= dict(zip(("lowest", "highest"), spread, strict=True))
    return row


def _conditions(values: dict[str, Any]) -> str:
    """Names and values as words."""
    return "; ".join([f"{name.replace('_', ' ')} {_cell(value)}" for name, value in values.items()])


def _cell(value: Any) -> str:
    """What fits into a sentence."""
    if isinstance(value, dict):
        return listed(value)
    if isinstance(value, list):
        return " to ".join([number(each) for each in value])
    return number(value)
