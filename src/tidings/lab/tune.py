"""`tidings lab tune`: which settings of the fabric suit so many regions, clients and events.

Three sweeps of simulations, each from the best of the one before: fanout and shuffle time together, then the size of
views, then that of the buffers. A setting is better if more of the load arrives (to a hundredth), then if it arrives
sooner, by a twentieth at least: otherwise the default stays. What it costs the clients' uplinks is shown beside it.
More than 120 clients per region are simulated as 120: each receives and forwards the same load, the way from the first
to the last is a hop or two shorter. Clients have 1 Gb/s each way and proxies 10, as in SP3's reading that the product
uses: with a proxy of 1 Gb/s no setting carries what clients can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.core.errors import BadInput
from tidings.lab import figures, region_load, study
from tidings.lab.claims import Findings
from tidings.lab.study import Point, Row, Sql, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tidings.sim.run import Progress

MOST = 120  # clients per region that are simulated
SECONDS = 0.5  # measured
SEEDS = 2
LEAST = 1 / region_load.WINDOW  # events per second and region: what is simulated is batches of 5 ms
ASSUMED = {"client_gbit_s": 1, "proxy_gbit_s": 10}
CLEARLY = 0.95  # of the latency of what is there; ours, because seeds differ by less than the rest
FANOUTS = (2, 3, 4, 5, 6)
SHUFFLES = (0.03, 0.1, 0.3)
VIEWS = (10, 20, 40)
BUFFERS = (0.1, 0.25, 0.5, 1.0)  # seconds of a stream's load
FIXED = ("fanout", "shuffle", "view", "recv_seconds")
SETTINGS = f"""
    select {", ".join(FIXED)}, max(offered) offered, avg(goodput) goodput, avg(latency_mean) latency,
           avg(uplink) uplink, sum(unfinished) unfinished, round(avg(goodput / offered), 2) share
    from results group by {", ".join(FIXED)} order by share desc, unfinished, latency nulls last"""


def run(
    regions: int, clients: int, rate: float, out: Path, master: str = "local[2]", progress: Progress | None = None
) -> dict[str, Any]:
    """Sweep, and recommend."""
    if regions < 1 or clients < 1:
        raise BadInput(f"{regions} regions of {clients} clients: both must be positive")
    if not LEAST <= rate < math.inf:
        raise BadInput(
            f"{rate} events/s per region: from {LEAST:g} on there is something to tune, below it the defaults do"
        )
    out.mkdir(parents=True, exist_ok=True)
    base: Point = {"regions": regions, "rate": rate, "clients": min(clients, MOST), "seconds": SECONDS}
    best: Point = {"fanout": 4, "shuffle": 0.03, "view": 20, "recv_seconds": 0.5}
    seen: list[Row] = []
    for name, choices in _sweeps():
        points = [{**base, **best, **choice, "seed": seed} for choice in choices for seed in range(SEEDS)]
        found = _settings(f"tune-{name}", points, out, master, progress)
        seen += [{"sweep": name, **row} for row in found]
        best = _better(best, found)
    chosen = next(row for row in seen[::-1] if all(row[field] == best[field] for field in FIXED))
    settings = _protocol(best, rate)
    return {
        "regions": regions,
        "clients": clients,
        "rate": rate,
        "simulated_clients": base["clients"],
        "assumed": ASSUMED,
        "recommended": settings,
        "carried": chosen["share"],
        "latency_ms": round(1000 * chosen["latency"], 1) if chosen["latency"] is not None else None,
        "uplink_mbit_s": round(chosen["uplink"] * 8 / 1e6, 1),
        "toml": toml(settings),
        "tried": seen,
        "figures": figures.draw(out, "tune", lambda axes: paint(seen, best, axes)),
    }


def _better(so_far: Point, found: list[Row]) -> Point:
    """The first of what was found, unless what was there is as good."""
    first = found[0]
    for row in found:
        if all(row[field] == so_far[field] for field in FIXED) and row["latency"] is not None:
            equal = (row["share"], row["unfinished"]) == (first["share"], first["unfinished"])
            if equal and first["latency"] > CLEARLY * row["latency"]:
                return so_far
    return {field: first[field] for field in FIXED}


def _sweeps() -> Sequence[tuple[str, list[Point]]]:
    return (
        ("fanout", [{"fanout": fanout, "shuffle": shuffle} for fanout in FANOUTS for shuffle in SHUFFLES]),
        ("view", [{"view": view} for view in VIEWS]),
        ("buffer", [{"recv_seconds": buffer} for buffer in BUFFERS]),
    )


def _settings(name: str, points: list[Point], out: Path, master: str, progress: Progress | None) -> list[Row]:
    """Run some points; best first."""
    found: list[Row] = []

    def keep(sql: Sql, scale: str, out: Path) -> Findings:
        found.extend(sql(SETTINGS))
        return Findings([])

    grid = Study(name, lambda scale: points, region_load.measure, keep, ("region_load",))
    study.run([grid], "quick", out, master, progress)
    return found


def _protocol(best: Mapping[str, Any], rate: float) -> dict[str, Any]:
    """As cluster.toml names them."""
    return {
        "view": best["view"],
        "fanout": best["fanout"],
        "shuffle": best["shuffle"],
        "proxy_fanout": best["fanout"],
        "proxy_shuffle": best["shuffle"],
        "recv_rows": region_load.recv_rows(rate, best["recv_seconds"]),
    }


def toml(settings: Mapping[str, Any]) -> str:
    """The table to put into cluster.toml."""
    links = ", ".join(f"{name.removesuffix('_gbit_s')} {value} Gb/s" for name, value in ASSUMED.items())
    lines = [f"# for links of: {links}", "[protocol]", *(f"{name} = {value}" for name, value in settings.items())]
    return "\n".join([*lines, ""])


def paint(seen: list[Row], best: Mapping[str, Any], axes: Axes) -> None:
    """The trade-off: how soon events are everywhere, and beside each point what a client sends for it."""
    colors = {0.03: figures.BLUE, 0.1: figures.ORANGE, 0.3: figures.GREEN}
    tried = [row for row in seen if row["sweep"] == "fanout" and row["latency"] is not None]
    for at, (shuffle, color) in enumerate(colors.items()):
        line = sorted((row for row in tried if row["shuffle"] == shuffle), key=lambda row: row["fanout"])
        places = [(row["fanout"], row["latency"] * 1000) for row in line]
        label = f"shuffle {shuffle * 1000:.0f} ms"
        axes.plot([x for x, _ in places], [y for _, y in places], color=color, marker="o", markersize=5, label=label)
        for row, place in zip(line, places, strict=True):
            below = (0, -13) if at == 0 else (0, 7)
            text = f"{row['uplink'] * 8 / 1e6:.0f}"
            axes.annotate(text, place, textcoords="offset points", xytext=below, fontsize=8, color=color, ha="center")
    for row in tried:
        if row["fanout"] == best["fanout"] and row["shuffle"] == best["shuffle"]:
            at_best = (row["fanout"], row["latency"] * 1000)
            axes.plot(
                *at_best, "o", markersize=13, markerfacecolor="none", color=figures.VERMILION, label="recommended"
            )
    axes.set_ylim(bottom=0)
    axes.set_xticks(sorted({row["fanout"] for row in tried}))
    axes.set_xlabel("fanout F (at each point: what a client sends, Mb/s)")
    axes.set_ylabel("ms until all clients have it")
    axes.set_title("Latency and uplink by fanout and shuffle time")
