"""A scenario run from end to end: judged, recorded, and the same whatever the hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tidings.check import Trace, judge
from tidings.sim.run import run_scenario
from tidings.sim.scenario import Scenario, Swarm, load

SMOKE = Path(__file__).parents[2] / "scenarios" / "sprinkler-smoke.toml"


def short(**changes: object) -> Scenario:
    scenario = load(SMOKE)
    return msgspec.structs.replace(scenario, **changes)


def hash_of(hash_seed: int, seed: int) -> str:
    command = [str(Path(sys.executable).parent / "tidings"), "sim", str(SMOKE), "--seed", str(seed), "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result: str = json.loads(done.stdout)["trace_hash"]
    return result


def test_the_trace_hash_depends_on_the_seed_and_not_on_the_hash_seed() -> None:
    assert hash_of(1, seed=7) == hash_of(4242, seed=7) != hash_of(1, seed=8)


def test_a_run_is_judged_and_its_trace_can_be_judged_again_from_disk(tmp_path: Path) -> None:
    result = run_scenario(short(), 3, tmp_path)
    assert result["violations"] == [] and result["metrics"]["committed"] > 0
    trace = Trace.read(tmp_path)
    assert judge(trace) == []
    assert trace.published.num_rows > 0 and trace.delivered.num_rows > 0 and trace.log.num_rows > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_a_scenario_may_let_a_swarm_of_faults_loose(seed: int) -> None:
    result = run_scenario(short(faults=(), swarm=Swarm(start=1.0)), seed)
    assert result["violations"] == []
    assert sum(result["metrics"]["faults"].values()) > 0


def test_progress_is_reported_step_by_step() -> None:
    steps: list[tuple[int, int]] = []
    scenario = short()
    run_scenario(scenario, 1, progress=lambda done, total, text: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1] and len(steps) == round(scenario.scenario.seconds)
