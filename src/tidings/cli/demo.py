"""`tidings demo`: a cluster of real processes on this machine, broken while it works, and audited."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.output import BROKEN, Json, emit, number

if TYPE_CHECKING:
    from rich.table import Table

    from tidings.lab.demo import Demo

EXAMPLE = "Example: tidings demo --seconds 20 --clients 90"


def demo(
    seconds: Annotated[float, typer.Option(min=4, help="Seconds of load.")] = 40.0,
    regions: Annotated[int, typer.Option(min=1, max=3, help="Regions.")] = 3,
    replicas: Annotated[int, typer.Option(min=1, help="Replicas of each region.")] = 3,
    clients: Annotated[int, typer.Option(min=4, help="Clients that receive, most of them caches.")] = 60,
    as_json: Json = False,
) -> None:
    """Publish, spread and collect with real processes, break things meanwhile, and audit what everybody received.

    Exit code 0 only if nothing was lost, doubled, put out of order or wrongly collected.
    """
    from tidings.lab.demo import Demo
    from tidings.net.loop import run

    made = Demo(regions, replicas, clients, seconds)
    result = _shown(made) if sys.stderr.isatty() else run(made.run())
    emit(result, as_json, lambda: _report(result))
    if not result["audit"]["passed"]:
        raise typer.Exit(BROKEN)


def _shown(made: Demo) -> dict[str, Any]:
    """Run it behind a live table."""
    from rich.console import Console
    from rich.live import Live

    from tidings.net.loop import run

    with Live(_table(made), console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        return run(made.run(lambda demo: live.update(_table(demo))))


def _table(made: Demo) -> Table:
    """How the demo stands, a line per region."""
    from rich.table import Table

    acked, delivered = made.rates()
    progress = made.progress
    hits = 100 * progress.hits / max(progress.hits + progress.loads, 1)
    title = f"{made.phase}   {acked:,.0f} events/s published   {delivered:,.0f}/s delivered   {hits:.0f} % cache hits"
    grid = Table(title=title, title_justify="left", caption=_faults(made), caption_justify="left")
    for name in ("region", "chain", *[f"has of {owner}" for owner in made.streams.values()], "slowest client lacks"):
        grid.add_column(name, justify="left" if name in ("region", "chain") else "right")
    for region in made.status.get("regions", []):
        name = region["name"]
        chain = " > ".join(each["id"] if each["alive"] else f"({each['id']})" for each in region["replicas"])
        found = {each["name"]: each["horizon"].get(name, 0) for each in made.status["streams"]}
        grid.add_row(name, chain, *[number(found.get(stream, 0)) for stream in made.streams], number(made.lag(name)))
    return grid


def _faults(made: Demo) -> str:
    return "   ".join(f"{each['at_s']:.0f} s: {each['kind']} {each['what']}" for each in made.faults)


def _report(result: dict[str, Any]) -> None:
    for fault in result["faults"]:
        print(f"{fault['at_s']:6.1f} s  {fault['kind']} {fault['what']}")
    for name in ("published", "delivered", "collected", "lost", "duplicated"):
        print(f"{name:>14}  {result[name]:,}")
    print(f"{'longest stall':>14}  {result['longest_stall_s']:.2f} s{_where(result['longest_stall'])}")
    print(f"{'rate':>14}  {result['events_per_s']:,.0f} events/s")
    audit = result["audit"]
    for text in audit["first"]:
        print("VIOLATION of", text)
    for each in audit["violations"][:5]:
        print(f"VIOLATION {each['fault'] or each['invariant']}: {each}")
    verdict = "passed" if audit["passed"] else f"FAILED: {len(audit['violations'])} violations"
    print(f"{'audit':>14}  {verdict} ({audit['receipts']:,} receipts of {audit['subscribers']} subscribers)")
    judged = ", ".join(f"{audit[name]} {name}" for name in ("proved", "violated", "unverifiable"))
    print(f"{'lake':>14}  subscribers and streams: {judged}; median latency {audit['latency_ms']['p50']} ms")


def _where(stall: dict[str, Any]) -> str:
    """Who met the longest stall, and what was broken then."""
    if not stall:
        return ""
    who = f": {stall['subscriber']} in {stall['region']} was told nothing of {stall['stream']} from {stall['from_s']} s"
    broken = f", during {', '.join(stall['during'])}" if stall["during"] else ", when nothing was broken"
    still = f"the stream itself stood still for {stall['stood_still_s']} s, its process for {stall['process_late_s']} s"
    return f"{who}; {still}{broken}"
