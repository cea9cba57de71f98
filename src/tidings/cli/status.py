"""`tidings status`: regions, their chains, and the streams."""

from __future__ import annotations

from typing import Any

from tidings.cli.output import Json, emit, table
from tidings.cli.where import DIRECTORY, ClusterFile, Directory

EXAMPLE = "Example: tidings status --json     (several hosts: tidings status -c cluster.toml)"


def status(directory: Directory = DIRECTORY, config: ClusterFile = None, as_json: Json = False) -> None:
    """Show who is alive, who is head and tail, and how far each region has got in every stream."""
    from tidings.server.looking import look

    result = look(directory, config)
    emit(result, as_json, lambda: _show(result))


def _show(result: dict[str, Any]) -> None:
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
    table("replicas", ["region", "id", "role", "pid", "address", "alive"], rows)
    streams = [
        (
            each["name"],
            each["region"],
            each["gc"],
            ", ".join(f"{region} {seq}" for region, seq in each["horizon"].items()),
            each["live"],
            each["collected"],
            each["lost"],
        )
        for each in result["streams"]
    ]
    if streams:
        table("streams", ["name", "region", "gc", "horizon", "live", "collected", "lost"], streams)
    for each in result["streams"]:
        if each["conflict"]:
            others = ", ".join(each["conflict"])
            print(f"stream {each['name']} of {each['region']}: {others} has another one of this name, seen there alone")
    for region in result.get("lost", ()):
        print(f"{region} has lost its memory: `tidings down`, then `tidings up`, begins anew")
    for a, b in result.get("cuts", ()):
        print(f"the link {a}-{b} is cut")
