"""`tidings demo`: a cluster of real processes on this machine, under load and faults, and its audit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.output import BROKEN, Json, count, emit, number, say

if TYPE_CHECKING:
    from rich.table import Table

    from tidings.lab.demo import Demo

WRONG = {"lost": "lost", "duplicated": "twice", "out_of_order": "out of order"}

EXAMPLE = "Example: tidings demo --seconds 20 --clients 90"


def demo(
    seconds: Annotated[float, typer.Option(min=4, help="Seconds of load.")] = 40.0,
    regions: Annotated[int, typer.Option(min=1, max=3, help="Regions.")] = 3,
    replicas: Annotated[int, typer.Option(min=1, help="Replicas of each region.")] = 3,
    edges: Annotated[int, typer.Option(min=0, help="Edges of each region, which feed plain subscribers.")] = 1,
    clients: Annotated[int, typer.Option(min=4, help="Clients that subscribe; most of them are caches.")] = 60,
    as_json: Json = False,
) -> None:
    """Run a cluster under load, inject faults, audit every client. All of it is real processes.

    Exit code 0 only if nothing was lost, delivered twice, out of order or wrongly collected; else 3.
    """
    from tidings.lab.demo import Demo
    from tidings.net.loop import run

    made = Demo(regions, replicas, clients, seconds, edges)
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
    from rich import box
    from rich.table import Table

    acked, delivered = made.rates()
    progress = made.progress
    hits = 100 * progress.hits / max(progress.hits + progress.loads, 1)
    title = f"{made.phase}   {acked:,.0f} events/s published   {delivered:,.0f}/s delivered   {hits:.0f} % cache hits"
    grid = Table(title=title, title_justify="left", caption=_faults(made), caption_justify="left")
    grid.box, grid.show_edge, grid.padding = box.SIMPLE_HEAD, False, (0, 1, 0, 0)
    for name in ("region", "chain", *[f"has of {owner}" for owner in made.streams.values()], "slowest lacks"):
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
    audit = result["audit"]
    verdict = "passed" if audit["passed"] else "FAILED"
    print(f"audit {verdict}: {count(len(audit['violations']), 'violation')}")
    for text in audit["first"]:
        say(f"VIOLATION of {text}")
    for each in audit["violations"][:5]:
        say(f"VIOLATION {each['fault'] or each['invariant']}: {each}")
    for each in audit.get("doubts", [])[:5]:
        say(f"unverifiable: {each['subscriber']} in {each['stream']} {each['detail']}")
    for fault in result["faults"]:
        print(f"{fault['at_s']:6.1f} s  {fault['kind']} {fault['what']}")
    for name in ("published", "delivered", "collected", "lost", "duplicated"):
        print(f"{name:>14}  {result[name]:,}")
    say(f"{'longest stall':>14}  {result['longest_stall_s']:.2f} s{_where(result['longest_stall'])}", " " * 16)
    for name, each in result["tapes"].items():
        wrong = [f"{each[what]} {words}" for what, words in WRONG.items() if each[what]]
        verdict = ", ".join(wrong).upper() or "one order, none lost, none twice"
        say(f"{name:>14}  {count(each['events'], 'event')} of all regions: {verdict}", " " * 16)
    print(f"{'rate':>14}  {result['events_per_s']:,.0f} events/s")
    print(f"{'receipts':>14}  {audit['receipts']:,} of {count(audit['subscribers'], 'subscriber')}")
    judged = ", ".join(f"{audit[name]:,} {name}" for name in ("proved", "violated", "unverifiable"))
    print(f"{'subscriptions':>14}  {judged}")
    if audit["latency_ms"]["p50"] is not None:
        print(f"{'median latency':>14}  {number(audit['latency_ms']['p50'])} ms")


def _where(stall: dict[str, Any]) -> str:
    """Which subscriber had the longest stall, and which faults there were then."""
    if not stall:
        return ""
    who = f": {stall['subscriber']} in {stall['region']} got nothing of {stall['stream']} from {stall['from_s']} s on"
    broken = f"; faults then: {', '.join(stall['during']) or 'none'}"
    still = f"the stream stood still for {stall['stood_still_s']} s of it, the process for {stall['process_late_s']} s"
    return f"{who}; {still}{broken}"
