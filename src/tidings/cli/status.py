"""`tidings status`: regions, their chains, and the streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidings.cli.output import Json, emit, grid
from tidings.cli.where import DIRECTORY, ClusterFile, Directory

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLE = "Example: tidings status --json     (several hosts: tidings status -c cluster.toml)"


def status(directory: Directory = DIRECTORY, config: ClusterFile = None, as_json: Json = False) -> None:
    """Show who is alive, who is head and tail, and how far each region has got in every stream."""
    from tidings.server.looking import look

    result = look(directory, config)
    emit(result, as_json, lambda: show(result))


def show(result: dict[str, Any]) -> None:
    """Print a status for a person."""
    from rich.console import Console

    Console(soft_wrap=False).print(*tables(result), sep="\n")
    for note in notes(result):
        print(note)


def tables(result: dict[str, Any]) -> list[Table]:
    """A status as tables; with rates, if streams have them."""
    rows = [
        (
            region["name"],
            each["id"],
            each["role"],
            str(each["pid"] or ""),
            each["address"],
            "yes" if each["alive"] else "NO",
        )
        for region in result["regions"]
        for each in region["replicas"]
    ]
    found = [grid("replicas", ["region", "id", "role", "pid", "address", "alive"], rows)]
    if result["streams"]:
        found.append(_streams(result["streams"]))
    return found


def notes(result: dict[str, Any]) -> list[str]:
    """What else there is to know."""
    lost = [
        f"{region} has lost its memory: `tidings down`, then `tidings up`, begins anew"
        for region in result.get("lost", ())
    ]
    twice = [
        f"stream {each['name']} of {each['region']}: "
        f"{', '.join(each['conflict'])} has another of this name, seen there alone"
        for each in result["streams"]
        if each.get("conflict")
    ]
    return [*twice, *lost, *[f"the link {a}-{b} is cut" for a, b in result.get("cuts", ())]]


def _streams(streams: list[dict[str, Any]]) -> Table:
    columns = ["name", "region", "gc", "horizon", "live", "collected", "lost"]
    rows: list[list[Any]] = [
        [
            each["name"],
            each["region"],
            each["gc"],
            ", ".join(f"{region} {seq}" for region, seq in each["horizon"].items()),
            each["live"],
            each["collected"],
            each["lost"],
        ]
        for each in streams
    ]
    if "events_per_s" in streams[0]:
        columns.append("events/s")
        for row, each in zip(rows, streams, strict=True):
            row.append("" if each["events_per_s"] is None else each["events_per_s"])
    return grid("streams", columns, rows)
