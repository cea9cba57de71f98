"""`tidings sim`: run one scenario, deterministically, and judge its trace; or run a replica's journal again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.output import BROKEN, Json, emit, progress, table

EXAMPLE = "Example: tidings sim scenarios/sprinkler-link-cut.toml --seed 7 --record build/trace"


def sim(
    scenario: Annotated[
        Path | None, typer.Argument(help="A scenario file.", metavar="[SCENARIO.toml]", show_default=False)
    ] = None,
    journal: Annotated[
        Path | None, typer.Option(help="Instead: the journal of a replica (`tidings serve replica --journal DIR`).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Root of all randomness; default: the scenario's own.")] = None,
    record: Annotated[Path | None, typer.Option(help="Write the trace tables into this directory (Parquet).")] = None,
    as_json: Json = False,
) -> None:
    """Simulate a scenario and check everything that was delivered, or replay what happened to a replica."""
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

    def show() -> None:
        facts = {key: value for key, value in result.items() if key not in ("violations", "metrics")}
        table("simulation", ["fact", "value"], facts.items())
        table("metrics", ["metric", "value"], result["metrics"].items())
        for violation in result["violations"]:
            print("VIOLATION", violation)
        print("violations:", len(result["violations"]))
        if result["violations"]:
            print(f"replay: tidings sim {scenario} --seed {root}")

    emit(result, as_json, show)
    if result["violations"]:
        raise typer.Exit(BROKEN)


def _replay(journal: Path, as_json: bool) -> None:
    from tidings.net.journal import replay
    from tidings.server.replica import remake

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
        table(
            "replay", ["fact", "value"], [item for item in result.items() if item[0] not in ("violations", "metrics")]
        )
        table("metrics", ["metric", "value"], reports.items())
        print("same effects as then" if found.same else f"VIOLATION: diverged by step {found.diverged}")

    emit(result, as_json, show)
    if violations:
        raise typer.Exit(BROKEN)
