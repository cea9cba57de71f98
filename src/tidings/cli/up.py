"""`tidings up`: a whole cluster on this machine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.cluster_options import DIRECTORY, ClusterFile, take_plan, write_plan
from tidings.cli.output import Json, emit

if TYPE_CHECKING:
    from tidings.server.paths import ClusterPaths
    from tidings.server.supervisor import Supervisor

EXAMPLE = "Example: tidings up --regions 3 --replicas 3 --wan us --detach     (then: tidings status; tidings down)"
FIRST_PORT = 7400  # as tidings.server.cluster_config.PORT, which is imported late


class Preset(StrEnum):
    """Distances between regions."""

    us = "us"


class Durability(StrEnum):
    """Where events are when they are acknowledged."""

    durable = "durable"
    memory = "memory"


def up(
    config: ClusterFile = None,
    regions: Annotated[int | None, typer.Option(min=1, help="Regions of a new cluster; default 1.")] = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="Replicas of each region; default 3.")] = None,
    edges: Annotated[int | None, typer.Option(min=0, help="Edges of each region, to which clients connect.")] = None,
    relays: Annotated[
        int | None, typer.Option(min=0, help="Relays of each region, between its replicas and its edges.")
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", envvar="TIDINGS_DIR", file_okay=False, help="Its directory; default .tidings, or `data`."
        ),
    ] = None,
    durability: Annotated[Durability | None, typer.Option(help="Of a new cluster; default: durable.")] = None,
    wan: Annotated[Preset | None, typer.Option(help="Distances between the regions of a new cluster.")] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65000, help="First port of a new cluster; 0: any that are free.")
    ] = FIRST_PORT,
    secure: Annotated[bool, typer.Option("--secure", help="TLS and tokens (not built yet).")] = False,
    lab: Annotated[bool, typer.Option("--lab", help="Allow `tidings fault` to inject faults.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return when the cluster is ready; `down` ends it.")] = False,
    journal: Annotated[Path | None, typer.Option(help="Let replicas journal their inputs into this directory.")] = None,
    restore_from: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, help="Start with the events of this lake, under the same numbers.", metavar="LAKE"
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait until the cluster is ready.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Start a cluster on this machine, and keep it running.

    The first start writes cluster.toml into the directory (or copies the file of -c). Later starts run the same cluster
    with the data on its disks. If a port is taken, nothing starts.
    """
    from tidings.core.errors import BadInput
    from tidings.server.paths import ClusterPaths

    if secure:
        raise BadInput("--secure is not built yet: run the cluster on loopback or in a network you trust")
    wanted = {
        "regions": regions,
        "replicas": replicas,
        "edges": edges,
        "relays": relays,
        "durability": durability and durability.value,
        "wan": wan and wan.value,
    }
    files = ClusterPaths(directory or _home(config))
    file = _plan(files, config, {key: value for key, value in wanted.items() if value is not None}, port)
    _check_ports(files, file)
    if restore_from is not None:
        _restore(files, restore_from)
    if detach:
        _detached(files, file, lab, journal, timeout, as_json)
    else:
        _foreground(files, file, lab, journal, timeout)


def _check_ports(files: ClusterPaths, file: Path) -> None:
    """Refuse to start where somebody else holds a port of the cluster; replicas that run already may hold their own."""
    from tidings.net.names import address_of, parse_address
    from tidings.server.cluster_config import load, refuse_taken
    from tidings.server.paths import SUPERVISOR, Process, read
    from tidings.server.roster import ROSTER, Roster

    supervisor = files.process(SUPERVISOR)
    if supervisor is not None and supervisor.alive:
        return  # which says itself that it runs
    plan = load(file)
    roster = read(files.root / ROSTER, Roster) or Roster()
    running = [found for path in files.run.glob("*.json") if (found := read(path, Process)) and found.alive]
    own = {address_of(process.id) for process in running}
    brokers = [place.address for place in plan.broker_places().values()]
    wanted = [*roster.apply(plan.slots()).values(), *[region.config for region in plan.regions], *brokers]
    refuse_taken(
        [each for each in wanted if parse_address(each) not in own],
        f"end that process, or change the address in {file}",
    )


def _restore(files: ClusterPaths, lake: Path) -> None:
    """Write the disks, and say what did not come back; that is no reason to stop."""
    import sys
    from contextlib import redirect_stdout

    from tidings.cli.archive import show_restored
    from tidings.spark.restore import restore

    with redirect_stdout(sys.stderr):
        show_restored(restore(lake, files))


def _home(config: Path | None) -> Path:
    """The default directory: the one that the cluster file names, or .tidings."""
    from tidings.server.cluster_config import load

    data = load(config).cluster.data if config is not None else None
    return DIRECTORY if config is None or data is None else config.parent / data


def _plan(files: ClusterPaths, config: Path | None, wanted: dict[str, Any], port: int) -> Path:
    """The cluster file to use: the one given, the directory's own, or a new one."""
    from tidings.core.errors import BadInput
    from tidings.server.cluster_config import generate, load, render

    if config is not None:
        if wanted:
            raise typer.BadParameter(f"the cluster file of -c decides this: leave out --{next(iter(wanted))}")
        return take_plan(files, config)
    if files.config_file.exists():
        there = load(files.config_file)
        facts = {
            "regions": len(there.regions),
            "replicas": len(there.regions[0].replicas),
            "edges": len(there.regions[0].edges),
            "relays": sum([len(cell.relays) for cell in there.regions[0].cells]),
            "durability": there.cluster.durability,
            "wan": there.wan.preset,
        }
        for key, value in wanted.items():
            if facts[key] != value:
                raise BadInput(
                    f"{files.config_file} has {key} = {facts[key]}, not {value}: omit --{key}, or use another --dir"
                )
        return files.config_file
    made = generate(
        wanted.get("regions", 1),
        wanted.get("replicas", 3),
        edges=wanted.get("edges", 0),
        relays=wanted.get("relays", 0),
        durability=wanted.get("durability", "durable"),
        wan=wanted.get("wan"),
        port=port,
    )
    return write_plan(files, render(made).encode())


def _detached(files: ClusterPaths, file: Path, lab: bool, journal: Path | None, timeout: float, as_json: bool) -> None:
    from tidings.client.url import make_url
    from tidings.server.cluster_config import load
    from tidings.server.http_client import CallFailed
    from tidings.server.local import await_ready, await_supervisor, launch
    from tidings.server.paths import ClusterPaths

    assert isinstance(files, ClusterPaths)
    process = launch(files, file, lab=lab, journal=journal)
    found = await_supervisor(files, process, timeout)
    process.returncode = 0  # it outlives this command
    try:
        await_ready(found, timeout)
    except CallFailed as error:
        raise CallFailed(f"{error}; it keeps trying: see `tidings status`, or end it with `tidings down`") from None
    plan = load(file)
    regions = [{"name": each.name, "url": make_url(each.replicas)} for each in plan.regions]
    result = {"dir": str(files.root), "pid": found.pid, "ready": True, "url": found.url, "regions": regions}

    def show() -> None:
        for region in regions:
            print(f"{region['name']}  {region['url']}")
        if len(regions) > 1:
            print(f"all  {found.url}")
        print(f"ready in {files.root} (process {found.pid}); `tidings down --dir {files.root}` ends it")

    emit(result, as_json, show)


def _foreground(files: ClusterPaths, file: Path, lab: bool, journal: Path | None, timeout: float) -> None:
    import sys

    from tidings.client.url import make_url
    from tidings.net.loop import run
    from tidings.server import logs
    from tidings.server.paths import SUPERVISOR
    from tidings.server.supervisor import Options, serve

    logs.configure(files.make().log(SUPERVISOR), node=SUPERVISOR)
    options = Options(
        root=str(files.root), config=str(file), lab=lab, journal=str(journal.absolute()) if journal else ""
    )

    async def beside(supervisor: Supervisor) -> None:
        from tidings.server.supervisor import NotReady

        try:
            await supervisor.ready(timeout)
        except NotReady as error:
            print(f"tidings: {error}; it keeps trying", file=sys.stderr)
        else:
            for region in supervisor.config.regions:
                print(f"{region.name}  {make_url(region.replicas)}", flush=True)
            if len(supervisor.config.regions) > 1:
                print(f"all  {make_url(supervisor.changes.slots().values())}", flush=True)
            print("ready; Ctrl-C ends it", flush=True)
        if sys.stderr.isatty():
            await _live(supervisor)

    run(serve(options, beside))


async def _live(supervisor: Supervisor) -> None:
    """A status line on a terminal, until the end."""
    import asyncio

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:
        while True:
            status = await supervisor.status()
            live.update(Text(_line(status)), refresh=True)
            await asyncio.sleep(1.0)


def _line(status: dict[str, Any]) -> str:
    """Regions with their chains, and how many events there are."""
    parts = []
    for region in status["regions"]:
        chain = [each for each in region["replicas"] if each["role"] != "out"]
        alive = sum(each["alive"] for each in region["replicas"])
        head = chain[0]["id"] if chain else "nobody"
        parts.append(f"{region['name']} {alive}/{len(region['replicas'])} head {head.partition('/')[2]}")
        if region["edges"]:
            parts.append(f"{sum(each['alive'] for each in region['edges'])}/{len(region['edges'])} edges")
    events = sum(max(stream["horizon"].values(), default=1) - 1 for stream in status["streams"])
    return "   ".join([*parts, f"{len(status['streams'])} streams", f"{events:,} events"])
