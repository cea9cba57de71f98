"""`tidings stream`: create, list, alter and delete streams while the cluster runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import HIGHEST
from tidings.cli.output import Json, emit, table
from tidings.cli.where import DIRECTORY, ClusterFile, Directory

if TYPE_CHECKING:
    from tidings.protocols.catalog import StreamDef

app = typer.Typer(
    help="Create, list, alter and delete streams.",
    epilog='Example: tidings stream create prices --region r0 --attrs "loc string, price double" --gc by-key',
    no_args_is_help=True,
    rich_markup_mode=None,
)
StreamName = Annotated[str, typer.Argument(metavar="NAME", help="The stream's name.", show_default=False)]
Attributes = Annotated[str, typer.Option("--attrs", help='Declared attributes, e.g. "loc string, price double".')]


@app.command("create", epilog="Example: tidings stream create prices --region r0 --gc by-key,older-than:7d")
def create(
    name: StreamName,
    region: Annotated[str, typer.Option("--region", help="The region that owns it.", show_default=False)],
    attrs: Attributes = "",
    gc: Annotated[str, typer.Option("--gc", help="none, by-key, keep-last:N, older-than:7d, with commas.")] = "none",
    directory: Directory = DIRECTORY,
    config: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Create a stream; returns when its owner has it durably. The other regions learn of it as of any event."""
    from tidings.server.looking import Target, define

    made = define(Target(directory, config), "create", name, region, gc, attrs)
    emit(_facts(made), as_json, lambda: print(f"{made.name} in {made.region}, gc {made.gc}"))


@app.command("alter", epilog='Example: tidings stream alter prices --attrs "loc string, price double, desk string"')
def alter(
    name: StreamName,
    attrs: Attributes,
    directory: Directory = DIRECTORY,
    config: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Add attributes to a stream: all it has, in their order, and new ones behind them."""
    from tidings.server.looking import Target, define

    made = define(Target(directory, config), "alter", name, None, "none", attrs)
    emit(_facts(made), as_json, lambda: print(f"{made.name}: {made.attrs}"))


@app.command("delete", epilog="Example: tidings stream delete prices")
def delete(
    name: StreamName, directory: Directory = DIRECTORY, config: ClusterFile = None, as_json: Json = False
) -> None:
    """Delete a stream with all its events. Its name cannot be used again."""
    from tidings.server.looking import Target, define

    made = define(Target(directory, config), "delete", name, None, "none", "")
    emit({**_facts(made), "deleted": True}, as_json, lambda: print(f"{made.name} is deleted"))


@app.command("declare-lost", epilog="Example: tidings stream declare-lost prices --from 1201 --to 1500")
def declare_lost(
    name: StreamName,
    lo: Annotated[int, typer.Option("--from", min=1, max=HIGHEST, help="The first number: where the stream ends.")],
    hi: Annotated[int, typer.Option("--to", min=2, max=HIGHEST, help="The first number that is given out again.")],
    directory: Directory = DIRECTORY,
    config: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Declare for good that nobody has the events [FROM, TO) of a stream, which were given out once.

    Subscribers are told, Spark's failOnDataLoss fails, and publishing goes on at TO. For a cluster that was restored
    from a lake which did not have the last events. Refused where anything is known.
    """
    from tidings.server.looking import Target
    from tidings.server.looking import declare_lost as declare

    made = declare(Target(directory, config), name, lo, hi)
    result = {"name": made.name, "region": made.region, "lo": lo, "hi": hi}
    emit(result, as_json, lambda: print(f"{made.name}: [{lo}, {hi}) is lost"))


@app.command("list", epilog="Example: tidings stream list --json")
def list_streams(directory: Directory = DIRECTORY, config: ClusterFile = None, as_json: Json = False) -> None:
    """List the streams."""
    from tidings.server.looking import Target, streams

    found = [_facts(each) for each in streams(Target(directory, config))]

    def show() -> None:
        table("streams", ["name", "region", "gc", "attrs"], [tuple(each.values()) for each in found])

    emit({"streams": found}, as_json, show)


def _facts(stream: StreamDef) -> dict[str, Any]:
    return {"name": stream.name, "region": stream.region, "gc": stream.gc, "attrs": stream.attrs}
