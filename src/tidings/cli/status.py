"""`tidings status`: regions, their chains, relays and edges, and the streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidings.cli.cluster_options import ClusterFile, Directory, Url, cluster_status, find_cluster
from tidings.cli.output import Json, count, emit, grid, number, short

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

EXAMPLE = "Example: tidings status --json     (several hosts: tidings status -c cluster.toml)"
BEHIND = 5  # streams of which it is said that regions are behind; ours: a screen has room for more than this


def status(url: Url = None, directory: Directory = None, config: ClusterFile = None, as_json: Json = False) -> None:
    """Show replicas, relays, edges and streams. Who is alive, each region's chain, how far each stream has got."""
    result = cluster_status(find_cluster(url, directory, config))
    emit(result, as_json, lambda: show(result))


def show(result: dict[str, Any]) -> None:
    """Print a status for a person."""
    from rich.console import Console

    Console(soft_wrap=False).print(screen(result))


def screen(result: dict[str, Any]) -> Group:
    """A status for a person: what is wrong first, then the tables, then what their words mean."""
    from rich.console import Group
    from rich.text import Text

    lines = [Text(line) for line in (summary(result), *notes(result))]
    legend = Text(_legend(result["streams"]), style="dim")
    lagging = [Text(line) for line in behind(result["streams"])]
    parts = [part for each in tables(result) for part in (Text(""), each)]
    return Group(*lines, *parts, *([Text(""), *lagging, legend] if result["streams"] else []))


def summary(result: dict[str, Any]) -> str:
    """How many regions, processes and streams there are."""
    parts = [count(len(result["regions"]), "region")]
    for kind in ("replica", "relay", "edge"):
        there = _all(result, f"{kind}s")
        if there or kind == "replica":
            parts.append(f"{sum([each['alive'] for each in there])} of {count(len(there), kind)}")
    parts[-1] += " alive"
    answered = result["streams"] or any([each["alive"] for each in _all(result, "replicas")])
    return ", ".join([*parts, count(len(result["streams"]), "stream") if answered else "streams unknown"])


def _all(result: dict[str, Any], what: str) -> list[dict[str, Any]]:
    """The replicas, relays or edges of all regions."""
    return [each for region in result["regions"] for each in region.get(what, ())]


def tables(result: dict[str, Any]) -> list[Table]:
    """A status as tables; with rates, if streams have them."""
    rows = [
        (each["id"], each["role"], "yes" if each["alive"] else "NO", str(each["pid"] or ""), each["address"])
        for each in _all(result, "replicas")
    ]
    found = [grid("", ["replica", "role", "alive", "pid", "address"], rows)]
    if relays := _all(result, "relays"):
        found.append(grid("", ["relay", "cell", "below", "alive", "pid", "address"], _brokers(relays, "cell")))
    if edges := _all(result, "edges"):
        columns = ["edge", "subscriptions", "below", "alive", "pid", "address"]
        found.append(grid("", columns, _brokers(edges, "subscriptions")))
    if result["streams"]:
        found.append(_streams(result["streams"]))
    return found


def _brokers(brokers: list[dict[str, Any]], fact: str) -> list[list[Any]]:
    """Lines of relays or edges; what is not known is empty."""
    return [
        [
            each["id"],
            "" if each[fact] is None else each[fact],
            each["upstream"] or "",
            "NO" if not each["alive"] else "cut off" if each["connected"] is False else "yes",
            str(each["pid"] or ""),
            each["address"],
        ]
        for each in brokers
    ]


def notes(result: dict[str, Any]) -> list[str]:
    """What is not as it should be."""
    twice = [
        f"stream {each['name']} of {each['region']}: {', '.join(each['conflict'])} has another stream of this name, "
        "which only that region can see"
        for each in result["streams"]
        if each.get("conflict")
    ]
    return [*twice, *lost_regions(result), *[f"the link {a}-{b} is cut" for a, b in result.get("cuts", ())]]


def lost_regions(result: dict[str, Any]) -> list[str]:
    """Regions in memory whose replicas all died, and what becomes of them."""
    return [
        f"all replicas of {region} died, and its memory with them: "
        + ("it is being started again" if len(result["regions"]) > 1 else f"run `tidings replica bootstrap {region}`")
        for region in result.get("lost", ())
    ]


def _streams(streams: list[dict[str, Any]]) -> Table:
    """A line per stream; lost numbers and rates have a column where there are some."""
    columns = ["stream", "owner", "gc", "end", "live", "collected"]
    rows: list[list[Any]] = [
        [each["name"], each["region"], each["gc"], _end(each), short(each["live"]), short(each["collected"])]
        for each in streams
    ]
    more: dict[str, list[Any]] = {}
    if any(each["lost"] for each in streams):
        more["lost"] = [short(each["lost"]) for each in streams]
    if "events_per_s" in streams[0]:
        more["events/s"] = ["" if each["events_per_s"] is None else each["events_per_s"] for each in streams]
    return grid("", [*columns, *more], [[*row, *rest] for row, *rest in zip(rows, *more.values(), strict=True)])


def _end(stream: dict[str, Any]) -> int:
    """The next number, as the owner says, or, while it does not answer, the region that has got furthest."""
    horizon: dict[str, int] = stream["horizon"]
    return horizon.get(stream["region"], max(horizon.values(), default=0))


def behind(streams: list[dict[str, Any]]) -> list[str]:
    """Which regions lack how many numbers of which streams."""
    found = []
    for each in streams:
        lag = {region: _end(each) - seq for region, seq in each["horizon"].items()}
        if lacking := [f"{region} lacks {number(missing)}" for region, missing in lag.items() if missing > 0]:
            found.append(f"behind in {each['name']}: {', '.join(lacking)}")
    return found if len(found) <= BEHIND else [*found[:BEHIND], f"and {len(found) - BEHIND} more streams"]


def _legend(streams: list[dict[str, Any]]) -> str:
    lost = "; lost: numbers whose events no replica has" if any(each["lost"] for each in streams) else ""
    return f"(end: the next number; live: events that nothing has collected{lost})"
