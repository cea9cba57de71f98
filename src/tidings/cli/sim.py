"""`tidings sim`: run one scenario, deterministically, and judge its trace; or run a replica's journal again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.output import BROKEN, Json, count, emit, listed, number, progress, say, table

EXAMPLE = "Example: tidings sim scenarios/sprinkler-link-cut.toml --seed 7 --record build/trace"


def sim(
    scenario: Annotated[
        Path | None, typer.Argument(help="A scenario file.", metavar="[SCENARIO.toml]", show_default=False)
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(help="Instead: the journal of a replica (`tidings serve replica --journal DIR`).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness; default: the scenario's own.")] = None,
    record: Annotated[Path | None, typer.Option(help="Write the trace into this directory, as Parquet tables.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate a scenario and check everything that was delivered. Or replay the journal of a replica."""
    if (scenario is None) == (journal is None):
        raise typer.BadParameter("give a scenario file or --journal FILE", param_hint="SCENARIO.toml")
    if journal is not None:
        _replay(journal, as_json)
        return
    assert scenario is not None
    from tidings.sim.scenario import load

    loaded = load(scenario)  # before the simulator is imported: a bad file is refused at once

    from tidings.sim.run import run_scenario

    root = loaded.scenario.seed if seed is None else seed
    with progress(f"{loaded.scenario.name}, seed {root}") as report:
        result = run_scenario(loaded, root, record, report)

    emit(result, as_json, lambda: _show(result, f"tidings sim {scenario} --seed {root}"))
    if result["violations"]:
        raise typer.Exit(BROKEN)


def _show(result: dict[str, Any], replay: str) -> None:
    """For a person: the verdict, then what happened."""
    violations = result["violations"]
    print(f"{count(len(violations), 'violation')} in {result['scenario']} with seed {result['seed']}")
    for violation in violations:
        say(f"VIOLATION {violation}")
    if violations:
        print(f"replay: {replay}")
    _extent(result)
    metrics = {name: value for name, value in result["metrics"].items() if not isinstance(value, dict)}
    parts = {name: value for name, value in result["metrics"].items() if isinstance(value, dict)}
    if faults := {kind: times for kind, times in parts.pop("faults", {}).items() if times}:
        say(f"faults injected: {listed(faults)}")
    print()
    table("", ["metric", "count"], _spaced(metrics))
    for name, counts in parts.items():
        print()
        table("", ["event inside the protocols" if name == "reports" else name, "count"], _spaced(counts))
    print()
    say(
        "(committed: events with a number; delivered rows: summed over all subscribers, without collected events; "
        "receipts: what subscribers say they were handed, which the checkers compare with what was committed)"
    )


def _extent(result: dict[str, Any]) -> None:
    """How much was run."""
    if "sim_seconds" in result:
        simulated, took = number(result["sim_seconds"]), number(result["wall_seconds"])
        print(f"{simulated} s simulated in {took} s, {result['protocol_events']:,} protocol events")
    print(f"trace hash {result['trace_hash']} (the same seed gives the same hash)")


def _spaced(counts: dict[str, Any]) -> list[tuple[str, Any]]:
    """Counts with names as words; they are whole numbers, whatever type they have."""
    return [
        (name.replace("_", " "), int(value) if isinstance(value, float) and value.is_integer() else value)
        for name, value in counts.items()
    ]


def _replay(journal: Path, as_json: bool) -> None:
    from tidings.net.journal import replay
    from tidings.server.nodes import remake

    reports: dict[str, float] = {}
    times: list[float] = []

    def watch(now: float, input: Any, effects: Any) -> None:
        from tidings.protocols.kernel import Report

        times.append(now)
        for effect in effects:
            if isinstance(effect, Report):
                reports[effect.name] = reports.get(effect.name, 0.0) + effect.value

    began = time.perf_counter()
    with progress(f"replay of {journal.name}"):
        found = replay(journal, remake, on_step=watch)
    violations = [] if found.same else [{"invariant": "replay", "detail": f"diverged by step {found.diverged}"}]
    result = {
        "scenario": str(journal),
        "seed": None,  # what was random is in the journal
        "node": found.node,
        "trace_hash": found.trace_hash,
        "sim_seconds": round(times[-1] - times[0], 3) if times else 0.0,
        "wall_seconds": round(time.perf_counter() - began, 3),
        "protocol_events": found.steps,
        "complete": found.complete,
        "violations": violations,
        "metrics": reports,
    }

    def show() -> None:
        print("same effects as then" if found.same else f"VIOLATION: diverged by step {found.diverged}")
        whole = "" if found.complete else ", cut off at its end"
        print(f"journal of {found.node}: {found.steps:,} steps in {number(result['sim_seconds'])} s{whole}")
        print(f"trace hash {found.trace_hash}")
        print()
        table("", ["event inside the protocols", "count"], _spaced(reports))

    emit(result, as_json, show)
    if violations:
        raise typer.Exit(BROKEN)
