"""`tidings lab tune`: recommended settings of the fabric for a number of regions, clients and events.

Three sweeps of simulations, each from the best of the one before: fanout and shuffle time together, then the size of
views, then that of the buffers. A setting is better if more of the load arrives (to a hundredth); then if more of the
offered batches have reached every client at the end (to a twentieth: a few more or less are due by chance); then if
they arrive sooner, by a twentieth at least. Otherwise the default stays. The load on the clients' uplinks is shown
beside it.

More than 120 clients per region are swept as 120, which is quick and too optimistic: with 1000 a fanout of 2 carries
half of SP3's load, with 120 all of it. So the best, the default and the best of other fanouts are run again with the
wanted number of clients, up to 1000 per region and 3000 in all, and the recommendation is one of these. Clients have
1 Gb/s each way and proxies 10, as in SP3's reading that the product uses: with a proxy of 1 Gb/s no setting carries
what clients can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.core.errors import BadInput
from tidings.lab import figures, study
from tidings.lab.claims import Findings
from tidings.lab.sprinkler import region_load
from tidings.lab.study import Point, Row, Sql, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tidings.sim.run import Progress

MOST = 120  # clients per region that are swept
CONFIRMED, ALTOGETHER = 1000, 3000  # clients per region, and of all regions, with which candidates are run again
CANDIDATES = 6  # ours, because with 3 x 1000 clients a point takes some 45 s of a core, and there are two seeds
SECONDS = 0.5  # measured
SEEDS = 2
LEAST = 1 / region_load.WINDOW  # events per second and region: what is simulated is batches of 5 ms
ASSUMED = {"client_gbit_s": 1, "proxy_gbit_s": 10}
FASTEST = ASSUMED["proxy_gbit_s"] * 1e9 / 8 / region_load.EVENT_BYTES  # events per second that a proxy's link brings in
REGIONS, CLIENTS = ALTOGETHER // MOST, 100 * CONFIRMED  # ours: of more, what is simulated says nothing
ENOUGH = 0.98  # of the load; ours, because what is measured of half a second differs by a hundredth
NEAR = 0.02  # of the load: one that differs by less from what was asked for is the same; ours
CLEARLY = 0.95  # of the latency of what is there; ours, because seeds differ by less than the rest
FANOUTS = (2, 3, 4, 5, 6)
SHUFFLES = (0.03, 0.1, 0.3)
VIEWS = (10, 20, 40)
BUFFERS = (0.1, 0.25, 0.5, 1.0)  # seconds of a stream's load
FIXED = ("fanout", "shuffle", "view", "recv_seconds")
DEFAULT: Point = {"fanout": 4, "shuffle": 0.03, "view": 20, "recv_seconds": 0.5}
SETTINGS = f"""
    select {", ".join(FIXED)}, max(clients) clients, max(offered) offered, avg(goodput) goodput,
           avg(latency_mean) latency, avg(uplink) uplink, sum(unfinished) unfinished,
           round(avg(goodput / offered), 2) share,
           round(20 * least(1, sum(due - unfinished) / (count(*) * {{batches}}))) / 20 finished
    from results group by {", ".join(FIXED)} order by share desc, finished desc, latency nulls last"""
"""`finished`: where a proxy answers late fewer batches are due, and a setting must not gain by that."""


def run(
    regions: int, clients: int, rate: float, out: Path, master: str = "local[2]", progress: Progress | None = None
) -> dict[str, Any]:
    """Sweep, confirm, and recommend."""
    _refuse_absurd(regions, clients, rate)
    out.mkdir(parents=True, exist_ok=True)
    base: Point = {"regions": regions, "rate": rate, "clients": min(clients, MOST), "seconds": SECONDS}
    best = DEFAULT
    seen: list[Row] = []
    for name, choices in _sweeps():
        found = _settings(f"tune-{name}", base, [{**best, **choice} for choice in choices], out, master, progress)
        seen += [{"sweep": name, **row} for row in found]
        best = _better(best, found)
    size = max(base["clients"], min(clients, CONFIRMED, ALTOGETHER // regions))
    confirmed: list[Row] = []
    if size > base["clients"]:
        candidates = _candidates(best, seen)
        confirmed = _settings("tune-confirm", {**base, "clients": size}, candidates, out, master, progress)
        best = _better(DEFAULT, confirmed)
    chosen = next(row for row in [*confirmed, *seen[::-1]] if _setting(row) == best)
    simulated = chosen["offered"] / regions
    notes = _notes(clients, rate, simulated, chosen)
    settings = _protocol(best, rate)
    return {
        "regions": regions,
        "clients": clients,
        "rate": rate,
        "simulated_rate": simulated,
        "simulated_clients": base["clients"],
        "confirmed_clients": size,
        "assumed": ASSUMED,
        "recommended": settings,
        "carried": chosen["share"],
        "enough": chosen["share"] >= ENOUGH,
        "latency_ms": _milliseconds(chosen),
        "uplink_mbit_s": round(chosen["uplink"] * 8 / 1e6, 1),
        "notes": notes,
        "toml": toml(settings, notes),
        "tried": seen,
        "confirmed": confirmed,
        "figures": figures.draw(out, "tune", lambda axes: paint(seen, confirmed, best, axes)),
    }


def _refuse_absurd(regions: int, clients: int, rate: float) -> None:
    if regions < 1 or clients < 1:
        raise BadInput(f"{regions} regions of {clients} clients: both must be positive")
    if regions > REGIONS or clients > CLIENTS:
        raise BadInput(
            f"{regions:,} regions of {clients:,} clients: simulations say something of at most {REGIONS} regions of "
            f"{CLIENTS:,}, tune for fewer"
        )
    if not LEAST <= rate < math.inf:
        raise BadInput(
            f"{rate} events/s per region: from {LEAST:g} on there is something to tune, below it the defaults do"
        )
    if rate > FASTEST:
        raise BadInput(
            f"{rate:g} events/s per region: a proxy's link of {ASSUMED['proxy_gbit_s']} Gb/s brings in {FASTEST:g}, "
            "which is the most that can be simulated"
        )


def _notes(clients: int, rate: float, simulated: float, chosen: Row) -> list[str]:
    """What a user of the recommendation has to know."""
    notes = [f"simulated with {chosen['clients']} clients per region, of {clients}"] * (chosen["clients"] < clients)
    if abs(simulated - rate) > NEAR * rate:
        notes.append(
            f"simulated with {simulated:,.0f} events/s per region, not {rate:,.0f}: a batch is as many whole events as "
            f"come in {1000 * region_load.WINDOW:g} ms"
        )
    if chosen["share"] < ENOUGH:
        notes.append(
            f"no setting tried carries {rate:,.0f} events/s per region to {chosen['clients']} clients: the most is "
            f"{chosen['share']:.0%}, with these settings"
        )
    return notes


def _milliseconds(row: Row) -> float | None:
    """Mean latency; none where the end of the run has cut it off, since nobody knows when the rest arrives."""
    return round(1000 * row["latency"], 1) if row["latency"] is not None and not _cut_off(row) else None


def _cut_off(row: Row) -> bool:
    return bool(row["unfinished"])


def _setting(row: Mapping[str, Any]) -> Point:
    return {field: row[field] for field in FIXED}


def _candidates(best: Point, seen: list[Row]) -> list[Point]:
    """What is worth a larger simulation: the best, the default, and of each fanout what was best of it, best first."""
    first = [row for row in seen if row["sweep"] == "fanout"]
    leaders = {row["fanout"]: _setting(row) for row in first[::-1]}
    ranked = [best, DEFAULT, *[leaders[fanout] for fanout in dict.fromkeys(row["fanout"] for row in first)]]
    return [setting for at, setting in enumerate(ranked) if setting not in ranked[:at]][:CANDIDATES]


def _better(so_far: Point, found: list[Row]) -> Point:
    """The first of what was found, unless what was there is as good."""
    first = found[0]
    for row in found:
        equal = (row["share"], row["finished"]) == (first["share"], first["finished"])
        sooner = row["latency"] is not None and first["latency"] <= CLEARLY * row["latency"]
        if _setting(row) == so_far and equal and not sooner:
            return so_far
    return _setting(first)


def _sweeps() -> Sequence[tuple[str, list[Point]]]:
    return (
        ("fanout", [{"fanout": fanout, "shuffle": shuffle} for fanout in FANOUTS for shuffle in SHUFFLES]),
        ("view", [{"view": view} for view in VIEWS]),
        ("buffer", [{"recv_seconds": buffer} for buffer in BUFFERS]),
    )


def _settings(
    name: str, base: Point, settings: list[Point], out: Path, master: str, progress: Progress | None
) -> list[Row]:
    """Run some settings; best first."""
    points = [{**base, **setting, "seed": seed} for setting in settings for seed in range(SEEDS)]
    batches = round((SECONDS - region_load.GRACE) / region_load.WINDOW) + 1
    found: list[Row] = []

    def keep(sql: Sql, scale: str, out: Path) -> Findings:
        found.extend(sql(SETTINGS.format(batches=batches)))
        return Findings([])

    grid = Study(name, lambda scale: points, region_load.measure, keep)
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


def toml(settings: Mapping[str, Any], notes: Sequence[str] = ()) -> str:
    """The table to put into cluster.toml."""
    links = ", ".join(f"{name.removesuffix('_gbit_s')} {value} Gb/s" for name, value in ASSUMED.items())
    comments = [f"# {note}" for note in (f"for links of: {links}", *notes)]
    assignments = [f"{name} = {value}" for name, value in settings.items()]
    return "\n".join([*comments, "[fabric]", 'kind = "pull"', *assignments, ""])


def paint(seen: list[Row], confirmed: list[Row], best: Point, axes: Axes) -> None:
    """How soon events are everywhere; below, what share of the load arrives and what a client sends for it.

    A hollow mark is a latency that the end of the run has cut off, and no line leads to it. Marks stand a little aside,
    to be told apart.
    """
    colors = dict(zip(SHUFFLES, (figures.BLUE, figures.ORANGE, figures.GREEN), strict=False))
    tried = [row for row in seen if row["sweep"] == "fanout"]
    size = tried[0]["clients"]
    asides = {shuffle: (at - 1) * 0.06 for at, shuffle in enumerate(colors)}
    for at, (shuffle, color) in enumerate(colors.items()):
        line = sorted((row for row in tried if row["shuffle"] == shuffle), key=lambda row: row["fanout"])
        places = [place for row in line if not _cut_off(row) for place in _places(row, asides[shuffle])]
        x, y = [x for x, _ in places], [y for _, y in places]
        axes.plot(x, y, color=color, linewidth=1.2, label=f"shuffle {shuffle * 1000:.0f} ms")
        for row in line:
            _mark(axes, row, asides[shuffle], "o", color)
            _tell(axes, row, at, color)
    for row in confirmed:
        _mark(axes, row, 0.3, "D", colors[row["shuffle"]])
    for row in {row["fanout"]: row for row in confirmed[::-1]}.values():  # the best of each
        _tell(axes, row, len(colors), figures.GREY)
    ring: dict[str, Any] = {"color": figures.VERMILION, "markersize": 14, "markerfacecolor": "none"}
    for row in [row for row in confirmed or seen[::-1] if _setting(row) == best][:1]:
        for place in _places(row, 0.3 if confirmed else asides[row["shuffle"]]):
            axes.plot(*place, "o", label="recommended", **ring)
    grey: dict[str, Any] = {"color": figures.GREY, "markersize": 6}
    if confirmed:
        axes.plot([], [], "D", label=f"with {confirmed[0]['clients']} clients, not {size}", **grey)
    if any(_cut_off(row) for row in [*tried, *confirmed]):
        axes.plot([], [], "o", markerfacecolor="white", label="cut off by the end of the run", **grey)
    highest = max([y for row in [*tried, *confirmed] for _, y in _places(row, 0.0)], default=1.0)
    axes.set_ylim(0, 1.12 * highest)
    axes.set_xlim(min(FANOUTS) - 0.5, max(FANOUTS) + 0.5)
    axes.set_xticks(FANOUTS)
    told = "fanout F; below it, share of the load that arrives and what a client sends"
    axes.set_xlabel(told, labelpad=58 if confirmed else 44)
    axes.set_ylabel("ms until all clients have it")
    axes.set_title("Latency, load carried and uplink by fanout and shuffle time", pad=10)


def _places(row: Row, aside: float) -> list[tuple[float, float]]:
    return [(row["fanout"] + aside, row["latency"] * 1000)] if row["latency"] is not None else []


def _tell(axes: Axes, row: Row, line: int, color: str) -> None:
    """In a line below the axis: share of the load and uplink."""
    below: Any = axes.get_xaxis_transform()
    text = f"{row['share']:.0%}, {row['uplink'] * 8 / 1e6:.0f} Mb/s"
    axes.text(row["fanout"], -0.11 - 0.07 * line, text, color=color, transform=below, fontsize=9, ha="center", va="top")


def _mark(axes: Axes, row: Row, aside: float, shape: str, color: str) -> None:
    for place in _places(row, aside):
        face = "white" if _cut_off(row) else color
        axes.plot(*place, shape, color=color, markersize=6, markerfacecolor=face, zorder=3)
