"""`tidings stream`: create, list, alter and delete streams while the cluster runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.arguments import HIGHEST
from tidings.cli.cluster_options import ClusterFile, Directory, Url, find_cluster, query_target
from tidings.cli.output import Json, emit, table
from tidings.cli.waiting import show_waiting

if TYPE_CHECKING:
    from tidings.cli.cluster_options import FoundCluster
    from tidings.protocols.services.catalog import Operation, StreamDef

app = typer.Typer(
    help="Create, list, alter and delete streams.",
    epilog='Example: tidings stream create prices --region r0 --attrs "loc string, price double" --gc by-key',
    no_args_is_help=True,
    rich_markup_mode=None,
)
AWAITING = "waiting until the owner of the stream has it durably"
StreamName = Annotated[str, typer.Argument(metavar="NAME", help="The stream's name.", show_default=False)]
Attributes = Annotated[str, typer.Option("--attrs", help='Declared attributes, e.g. "loc string, price double".')]


@app.command("create", epilog="Example: tidings stream create prices --region r0 --gc by-key,older-than:7d")
def create(
    name: StreamName,
    region: Annotated[str, typer.Option("--region", help="The region that owns it.", show_default=False)],
    attrs: Attributes = "",
    gc: Annotated[str, typer.Option("--gc", help="none, by-key, keep-last:N, older-than:7d, with commas.")] = "none",
    url: Url = None,
    directory: Directory = None,
    config: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Create a stream; returns when it is durable at its owner. The other regions learn of it soon after."""
    made = _define(find_cluster(url, directory, config), "create", name, region, gc, attrs)
    emit(_facts(made), as_json, lambda: print(f"{made.name} in {made.region}, gc {made.gc}"))


@app.command("alter", epilog='Example: tidings stream alter prices --attrs "loc string, price double, desk string"')
def alter(
    name: StreamName,
    attrs: Attributes,
    url: Url = None,
    directory: Directory = None,
    config: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Add attributes to a stream. List all that it has, in their order, then the new ones."""
    made = _define(find_cluster(url, directory, config), "alter", name, None, "none", attrs)
    emit(_facts(made), as_json, lambda: print(f"{made.name}: {made.attrs}"))


@app.command("delete", epilog="Example: tidings stream delete prices")
def delete(
    name: StreamName,
    url: Url = None,
    directory: Directory = None,
    config: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Delete a stream with all its events. A stream that is created under its name later is another one."""
    made = _define(find_cluster(url, directory, config), "delete", name, None, "none", "")
    emit({**_facts(made), "deleted": True}, as_json, lambda: print(f"{made.name} is deleted"))


@app.command("declare-lost", epilog="Example: tidings stream declare-lost prices --from 1201 --to 1500")
def declare_lost(
    name: StreamName,
    lo: Annotated[int, typer.Option("--from", min=1, max=HIGHEST, help="The first lost number: where it ends.")],
    hi: Annotated[int, typer.Option("--to", min=2, max=HIGHEST, help="The number at which publishing continues.")],
    url: Url = None,
    directory: Directory = None,
    config: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Declare events [FROM, TO) lost: no replica has them. This cannot be undone.

    Subscribers get an event of kind lost, Spark queries with failOnDataLoss fail, and publishing continues at TO. It is
    for a cluster that was restored from a lake without the last events. Refused if a replica knows one of the numbers.
    """
    target = query_target(find_cluster(url, directory, config))
    from tidings.server.cluster_queries import declare_lost as declare

    with show_waiting(AWAITING):
        made = declare(target, name, lo, hi)
    result = {"name": made.name, "region": made.region, "lo": lo, "hi": hi}
    emit(result, as_json, lambda: print(f"{made.name}: [{lo}, {hi}) is lost"))


@app.command("list", epilog="Example: tidings stream list --json")
def list_streams(
    url: Url = None, directory: Directory = None, config: ClusterFile = None, as_json: Json = False
) -> None:
    """List the streams."""
    target = query_target(find_cluster(url, directory, config))
    from tidings.server.cluster_queries import streams

    with show_waiting("waiting for the list of streams"):
        found = [_facts(each) for each in streams(target)]

    def show() -> None:
        table(
            "streams",
            ["name", "region", "gc", "attrs"],
            [(each["name"], each["region"], each["gc"], each["attrs"]) for each in found],
        )

    emit({"streams": found}, as_json, show)


def _define(
    cluster: FoundCluster, operation: Operation, name: str, region: str | None, gc: str, attrs: str
) -> StreamDef:
    target = query_target(cluster)
    from tidings.server.cluster_queries import define

    with show_waiting(AWAITING):
        return define(target, operation, name, region, gc, attrs)


def _facts(stream: StreamDef) -> dict[str, Any]:
    return {"name": stream.name, "id": stream.id, "region": stream.region, "gc": stream.gc, "attrs": stream.attrs}
