"""What each command asks of the rest of the house, what it prints, and when it says 3."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tidings.cli import output
from tidings.cli.app import app
from tidings.client.errors import NotBuilt
from tidings.core.errors import BadInput

SCENARIO = str(Path(__file__).parents[2] / "scenarios" / "sprinkler-link-cut.toml")


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a stand-in for a module of tidings in its place."""

    def stand_in(name: str, **members: Any) -> None:
        module = SimpleNamespace(**members)
        package, _, leaf = f"tidings.{name}".rpartition(".")
        monkeypatch.setitem(sys.modules, f"tidings.{name}", module)
        monkeypatch.setattr(import_module(package), leaf, module, raising=False)

    return stand_in


def simulated(seed: int, violations: list[str]) -> dict[str, Any]:
    return {
        "scenario": "x",
        "seed": seed,
        "trace_hash": "ab",
        "violations": violations,
        "metrics": {"delivered": 12_345},
    }


def test_sim_takes_the_scenarios_seed_unless_told_another(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(run_scenario=lambda scenario, seed, record, progress: simulated(seed, []))
    monkeypatch.setitem(sys.modules, "tidings.sim.run", fake)
    assert json.loads(run("sim", SCENARIO, "--json").stdout)["seed"] == 0
    assert json.loads(run("sim", SCENARIO, "--json", "--seed", "3").stdout)["seed"] == 3
    assert "12,345" in run("sim", SCENARIO).stdout


def test_sim_with_a_violation_is_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(run_scenario=lambda scenario, seed, record, progress: simulated(seed, ["order: broken"]))
    monkeypatch.setitem(sys.modules, "tidings.sim.run", fake)
    result = run("sim", SCENARIO)
    assert result.exit_code == 3
    assert "VIOLATION order: broken" in result.stdout
    assert f"replay: tidings sim {SCENARIO} --seed 0" in result.stdout


def test_check_prints_the_command_that_replays_a_violation(lab: Any) -> None:
    replay = "tidings check sprinkler --seeds 4..5"
    campaign = {
        "target": "sprinkler",
        "seeds": "3..6",
        "violations": [{"seed": 4, "invariant": "order", "replay": replay}],
        "faults": {"cut": 2},
        "reached": {"source switch": 1},
        "unreached": ["retransmission"],
        "hours_simulated": 0.5,
    }
    asked: list[Any] = []
    lab("campaign.runner", run=lambda *arguments: asked.append(arguments) or campaign)
    result = run("check", "sprinkler", "--seeds", "3..6", "--jobs", "1")
    assert result.exit_code == 3
    assert replay in result.stdout
    assert result.stdout.startswith("1 violation in 3 seeds (0.5 hours simulated)\nVIOLATION of order with seed 4; ")
    assert "note: 1 goal not reached: retransmission" in result.stdout
    assert asked == [("sprinkler", range(3, 6), None, 1, None, Path("build/ledger"))]


IGNORED = [
    *["sprinkler --ledger", "--ledger --seeds 0..2", "--ledger --mutants", "--ledger --master local[2]"],
    *["sprinkler --jobs 2 --master local[2]", "cluster --jobs 2", "cluster --mutants --jobs 2", "--ledger --jobs 2"],
]


@pytest.mark.parametrize("arguments", IGNORED)
def test_an_option_that_would_be_ignored_is_wrong_usage(lab: Any, arguments: str) -> None:
    ran: list[Any] = []

    def note(*arguments: Any) -> dict[str, Any]:
        ran.append(arguments)
        raise BadInput("must not run")

    lab("campaign.runner", run=note, totals=note)
    lab("campaign.mutation.mutants", run=note)
    lab("campaign.cluster.planted_bugs", run=note)
    result = CliRunner().invoke(app, ["check", *arguments.split()])
    assert ran == [] and result.exit_code == 2 and "Invalid value: --" in result.stderr


def test_check_prints_where_a_seed_raised(lab: Any) -> None:
    raised = {"seed": 4, "invariant": "exception", "detail": "KeyError(7)\nTraceback ...", "replay": "tidings check x"}
    found = {"violations": [raised], "faults": {}, "reached": {}, "unreached": [], "hours_simulated": 0.5}
    lab("campaign.runner", run=lambda *arguments: found)
    result = run("check", "sprinkler", "--seeds", "4..5")
    assert result.exit_code == 3
    assert "VIOLATION of exception with seed 4; replay: tidings check x\nKeyError(7)\n" in result.stdout


def test_a_replay_that_raises_again_is_exit_code_3_and_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidings.campaign.sprinkler import campaign

    def run_seed(seed: int) -> None:
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(campaign, "run_seed", run_seed)
    result = run("check", "sprinkler", "--seeds", "4..5", "--jobs", "1", "--ledger-dir", str(tmp_path))
    assert result.exit_code == 3
    assert result.stdout.startswith("1 violation in 1 seed (0 hours simulated)\n")


def test_a_campaign_of_real_processes_tells_its_events(lab: Any) -> None:
    found = {"violations": [], "faults": {}, "reached": {}, "unreached": [], "hours_simulated": 0.0, "events": 1234}
    lab("campaign.runner", run=lambda *arguments: found)
    assert (
        "0 violations in 2 seeds (1,234 events of real processes)\n"
        in run("check", "cluster", "--seeds", "0..2").stdout
    )


@pytest.mark.parametrize(("target", "module", "seeds"), [("spark", "source_faults", 14), ("sink", "sink_faults", 1)])
def test_a_target_that_is_judged_as_a_whole_gets_all_seeds_at_once(
    lab: Any, target: str, module: str, seeds: int
) -> None:
    found = {"violations": [], "faults": {"worker": 1}, "reached": {}, "unreached": [], "hours_simulated": 0.0}
    query = {"fault": "worker killed", "rows": 7, "expected": 7, "runs": 2, "holds": True}
    found |= {"events": 1234} if target == "spark" else {"runs": [query]}
    asked: list[Any] = []
    lab(f"campaign.spark.{module}", run=lambda *arguments: asked.append(arguments) or found)
    said = run("check", target).stdout
    assert asked == [(range(seeds), None)]
    assert said.startswith(
        "0 violations in 14 seeds (1,234 events" if target == "spark" else "0 violations in 1 query\n"
    )


@pytest.mark.parametrize("there", ["a file", "nothing", "no ledger"])
def test_a_ledger_that_somebody_names_and_is_none_is_an_error(tmp_path: Path, there: str) -> None:
    place = tmp_path / "place"
    if there == "a file":
        place.write_text("x")
    elif there == "no ledger":
        place.mkdir()
    with pytest.raises(BadInput, match=rf"{place} is no ledger"):
        run("check", "--ledger", "--ledger-dir", str(place))


def test_where_there_is_no_ledger_yet_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("check", "--ledger")
    assert (result.exit_code, result.stdout) == (
        0,
        "no ledger yet in build/ledger: `tidings check sprinkler` writes one\n",
    )
    assert json.loads(run("check", "--ledger", "--json").stdout)["runs"] == 0


@pytest.mark.parametrize(("broken", "code"), [([], 0), (["planted off-by-one escaped"], 3)])
def test_check_mutants_is_exit_code_3_when_something_does_not_hold(lab: Any, broken: list[str], code: int) -> None:
    generated = {"mutants": 9, "caught": 8, "survivors": [{"where": "chain.py:7", "why": "equivalent"}]}
    found = {"mutants": 20, "caught": 20, "by_invariant": {"order": 3}, "generated": generated, "broken": broken}
    lab("campaign.mutation.mutants", run=lambda target, progress, jobs: found)
    assert run("check", "sprinkler", "--mutants", "--json").exit_code == code
    assert "survived: chain.py:7: equivalent" in run("check", "sprinkler", "--mutants").stdout


@pytest.mark.parametrize(("verdict", "code"), [("holds", 0), ("differs", 3)])
def test_lab_run_is_exit_code_3_when_a_claim_differs(lab: Any, tmp_path: Path, verdict: str, code: int) -> None:
    claim = {"id": "SP5", "statement": "s", "expected": 1, "measured": 2.5, "verdict": verdict, "why": "w"}
    found = {"experiment": "SP5", "claims": [claim], "figures": ["a.png"], "data": ["a.parquet"]}
    lab("lab.experiments", run=lambda name, scale, out, master, progress: found)
    result = run("lab", "run", "SP5", "--out", str(tmp_path))
    assert result.exit_code == code
    assert "a.png" in result.stdout


@pytest.mark.parametrize("alone", [False, True])
def test_ctrl_c_in_lab_run_is_one_line_and_exit_code_130(lab: Any, tmp_path: Path, alone: bool) -> None:
    def stopped(*arguments: Any) -> None:
        raise KeyboardInterrupt

    named = {"X": SimpleNamespace(id="X", paper="p", study="s")}
    lab("lab.experiments", run=stopped, EXPERIMENTS=named, STUDIES={"s": SimpleNamespace(alone=alone)})
    result = run("lab", "run", "X", "--out", str(tmp_path))
    besides = ", and repeats measurements of this machine" if alone else ""
    assert result.exit_code == 130
    assert result.stderr == f"tidings: stopped; the same command continues{besides}\n"


@pytest.mark.parametrize("command", ["lab run SP5", "lab tune"])
def test_the_lab_does_not_write_into_a_file(lab: Any, tmp_path: Path, command: str) -> None:
    lab("lab.experiments", run=None)
    lab("lab.tune", run=None)
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "within"):
        with pytest.raises(BadInput, match=rf"--out {out}: {tmp_path}/file is a file, .* need a directory"):
            run(*command.split(), "--out", str(out))


@pytest.mark.parametrize(("enough", "code"), [(True, 0), (False, 3)])
def test_lab_tune_is_exit_code_3_when_nothing_carries_the_load(
    lab: Any, tmp_path: Path, enough: bool, code: int
) -> None:
    row = {"fanout": 4, "shuffle": 0.03, "view": 20, "recv_seconds": 0.5, "share": 0.61, "finished": 0}
    row |= {"latency": None, "unfinished": 0}
    late = row | {"latency": 0.411, "unfinished": 7}
    found = {"tried": [{"sweep": "fanout", **row}], "confirmed": [late], "toml": "# the toml", "figures": ["a.png"]}
    found |= {"simulated_clients": 120, "confirmed_clients": 800, "enough": enough}
    lab("lab.tune", run=lambda *arguments: found)
    result = run("lab", "tune", "--out", str(tmp_path))
    assert result.exit_code == code
    assert "tried, 120 clients" in result.stdout and "confirmed, 800 clients" in result.stdout
    assert "none" in result.stdout and "over 0.411" in result.stdout
    assert "# the toml" in result.stdout


def test_lab_list_shows_every_experiment(lab: Any) -> None:
    lab(
        "lab.experiments",
        EXPERIMENTS={"SP5": SimpleNamespace(id="SP5", paper="sprinkler", title="Link cut", claims=["a"])},
    )
    assert "Link cut" in run("lab", "list").stdout
    listed = json.loads(run("lab", "list", "--json").stdout)
    assert listed == {"experiments": [{"id": "SP5", "paper": "sprinkler", "title": "Link cut", "claims": ["a"]}]}


@pytest.mark.parametrize("name", ["gc", "sim"])
def test_bench_prints_runs_and_ratios(lab: Any, name: str) -> None:
    found = {"bench": name, "runs": [{"name": "one", "events_per_s": 2e6}, {"name": "two"}], "ratio": {"one/two": 1.5}}
    lab(f"bench.{name}", run=lambda runs, progress: found)
    printed = run("bench", name).stdout
    assert "2,000,000" in printed
    assert "1.5" in printed


@pytest.mark.parametrize("name", ["bounded", "fire", "qsm"])
def test_a_target_that_is_not_built_says_so(name: str) -> None:
    with pytest.raises(
        NotBuilt, match=rf"^check {name} is not built yet; there are sprinkler, gryphon, cluster, spark, sink$"
    ):
        run("check", name, "--seeds", "0..2", "--json")


@pytest.mark.parametrize("name", ["peers"])
def test_a_benchmark_that_is_not_built_says_so_and_names_those_that_are(name: str) -> None:
    with pytest.raises(NotBuilt, match=rf"^bench {name} is not built yet; there are gc, sim, throughput, ") as told:
        run("bench", name, "--runs", "3", "--json")
    built = str(told.value).partition("there are ")[2].split(", ")
    assert all(run("bench", each, "--help").exit_code == 0 for each in built)
    assert "Not built yet" in run("bench", name, "--help").stdout


def test_progress_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with output.progress("work") as report:
        assert report is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with output.progress("work") as report:
        assert report is not None
        report(1, 2, "half")


def test_progress_knows_the_time_left_where_a_point_takes_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich import progress

    bars: list[progress.Progress] = []
    now = 0.0

    class Clocked(progress.Progress):
        def __init__(self, *columns: Any, **settings: Any) -> None:
            super().__init__(*columns, **settings, get_time=lambda: now)
            bars.append(self)

    monkeypatch.setattr(progress, "Progress", Clocked)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with output.progress("work") as report:
        assert report is not None
        for done in range(4):
            report(done, 10, "")
            now += 120.0
        assert bars[0].tasks[0].time_remaining == pytest.approx(7 * 120.0)


def test_json_knows_numpy_numbers_and_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    output.emit({"a": np.int64(3), "b": float("nan")}, True, lambda: None)
    assert json.loads(capsys.readouterr().out) == {"a": 3, "b": None}
