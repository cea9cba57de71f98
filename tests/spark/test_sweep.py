"""Independent runs as Spark tasks: every result once, the same as without Spark, failures named."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tidings.campaign import runner
from tidings.campaign.sprinkler import campaign
from tidings.core.errors import BadInput, TidingsError
from tidings.sim.run import simulate
from tidings.spark import session, sweep
from tidings.spark.session import NoSpark, _refuse_silent, _refuse_strange, require_java, said_of
from tidings.spark.sweep import PointsFailed, SweepFailed, results

ROOT = Path(__file__).parents[2]


def square(point: Mapping[str, Any]) -> dict[str, Any]:
    if point["x"] == 13:
        raise ValueError("unlucky")
    return {"x": point["x"], "square": point["x"] ** 2}


def whole(some: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [each for few in some for each in few]


def test_every_point_gives_its_result_once(spark: Any) -> None:
    found = whole(results(spark, square, [{"x": x} for x in range(10)]))
    assert sorted(each["x"] for each in found) == list(range(10))
    assert all(each["square"] == each["x"] ** 2 for each in found)
    assert list(results(spark, square, [])) == []


def test_a_point_that_raises_is_named_and_spares_the_others(spark: Any) -> None:
    found: list[dict[str, Any]] = []

    def gather() -> None:
        for some in results(spark, square, [{"x": x} for x in (12, 13, 14)]):
            found.extend(some)

    with pytest.raises(PointsFailed, match=r"1 of 3 points failed.*\{'x': 13\}"):
        gather()
    assert sorted(each["x"] for each in found) == [12, 14]


def deadly(point: Mapping[str, Any]) -> dict[str, Any]:
    if point["x"] == 3:
        os._exit(9)
    return square(point)


def test_a_point_that_kills_its_worker_is_named_and_spares_the_others(spark: Any) -> None:
    found: list[dict[str, Any]] = []

    def gather() -> None:
        for some in results(spark, deadly, [{"x": x} for x in range(3, 10)]):
            found.extend(some)

    with pytest.raises(PointsFailed, match=r"1 of 7 points failed.*\{'x': 3\}: its worker died, and again.*alone"):
        gather()
    assert sorted(each["x"] for each in found) == list(range(4, 10)), "each once, in the same run"


def moribund(point: Mapping[str, Any]) -> dict[str, Any]:
    os._exit(9)


def test_workers_that_all_die_are_not_the_points_fault(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "DEATHS", 2)
    with pytest.raises(
        SweepFailed, match=r"Spark gave up \(.*exited unexpectedly.*; 0 of 9 points had ended"
    ) as raised:
        list(results(spark, moribund, [{"x": x} for x in range(9)]))
    under_way = raised.value.under_way
    assert len(under_way) == 3 and all(str(each) in str(raised.value) for each in under_way)


def test_whoever_keeps_results_is_called_while_a_point_runs(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "POLL", 0.1)
    assert list(results(spark, slow, [{"x": 1}])).count([]) > 2


def slow(point: Mapping[str, Any]) -> dict[str, Any]:
    time.sleep(1.0)
    return square(point)


def process() -> str:
    return str(os.getpid())


def test_a_worker_with_other_code_is_refused_and_both_hashes_are_named(spark: Any) -> None:
    with pytest.raises(SweepFailed, match=rf"\(hash \d+\) than this command \({os.getpid()}\).*same version") as raised:
        list(results(spark, square, [{"x": 1}], process))
    assert "\n" not in str(raised.value)
    (same,) = whole(results(spark, square, [{"x": 2}], lambda: "the same everywhere"))
    assert same["square"] == 4


DYING = """
import os, signal, time
from tidings.spark.session import spark
from tidings.spark.sweep import SweepFailed, results

def task(point):
    time.sleep(60 * point["x"])
    if point["x"] == 0:
        raise ValueError
    return point

try:
    with spark("local[1]") as session:
        for some in filter(None, results(session, task, [{"x": 0}, {"x": 0.01}, {"x": 1}])):
            os.kill(session.sparkContext._gateway.proc.pid, signal.SIGKILL)
except SweepFailed as error:
    print(error)
"""


def test_a_spark_that_dies_leaves_what_has_ended_and_says_so() -> None:
    run = subprocess.run([sys.executable, "-c", DYING], capture_output=True, text=True, timeout=120, check=True)
    assert "1 of 3 points had ended and are kept, 1 had failed, under way were {'x': 1}. The same" in run.stdout


STOPPED = """
import os, signal, time
from tidings.spark.session import spark
from tidings.spark.sweep import results

def task(point):
    time.sleep(60 * point["x"])
    return point

try:
    with spark("local[2]") as session:
        for some in filter(None, results(session, task, [{"x": 0}, {"x": 1}])):
            os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("logs", session._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString())
"""


def test_whoever_presses_ctrl_c_reads_no_frames_of_java() -> None:
    run = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout == "logs OFF\n"  # tasks that end while Spark stops would fill the screen
    assert "\tat " not in run.stderr


def hash_of(point: Mapping[str, Any]) -> dict[str, Any]:
    from tidings.sim.build import Deployment
    from tidings.sim.scenario import load

    deployment = Deployment(load(Path(point["scenario"])), point["seed"])
    simulate(deployment)
    return {"trace_hash": deployment.world.trace_hash}


def test_a_simulation_inside_a_task_has_the_trace_hash_that_it_has_outside(spark: Any) -> None:
    point = {"scenario": str(Path(__file__).parents[2] / "scenarios/sprinkler-smoke.toml"), "seed": 7}
    (inside,) = whole(results(spark, hash_of, [point]))
    assert inside == hash_of(point)
    assert len(inside["trace_hash"]) == 32


def test_a_campaign_on_spark_finds_what_it_finds_here_and_goes_on_where_it_stopped(spark: Any, tmp_path: Path) -> None:
    here = campaign.run_seed(1)
    runner.run("sprinkler", range(1, 2), master="local[2]", folder=tmp_path)
    (there,) = runner.Ledger(tmp_path, runner.SCHEMA).table().to_pylist()
    assert there["hash"] == here["hash"]
    again = runner.run("sprinkler", range(1, 2), master="local[2]", folder=tmp_path)
    assert again["already_in_ledger"] == 1
    assert runner.totals(tmp_path)["seeds"] == 1


def dies(point: Mapping[str, Any]) -> dict[str, Any]:
    if point["seed"] == 1:
        os._exit(9)
    return runner.killed(point["seed"], "no") | {"violations": []}


def test_a_seed_that_kills_its_worker_is_in_the_ledger_as_violated(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_task", dies)
    result = runner.run("sprinkler", range(3), master="local[2]", folder=tmp_path)
    ((seed, invariant),) = [(each["seed"], each["invariant"]) for each in result["violations"]]
    assert (seed, invariant) == (1, "process") and runner.totals(tmp_path)["seeds"] == 3


def test_a_campaign_refuses_workers_with_other_code(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "code", lambda *modules: "edited")  # in this process, not in the workers
    with pytest.raises(SweepFailed, match=r"than this command \(edited\)"):
        runner.run("sprinkler", range(1, 2), master="local[2]", folder=tmp_path)
    assert runner.totals(tmp_path)["runs"] == 0


def fake_java(folder: Path, version: str) -> None:
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Dx=1' >&2\necho 'openjdk {version}' >&2\n")
    java.chmod(0o755)


OLD_AND_NEW = [
    *[('version "1.8.0_402"', False), ('version "11.0.22" 2024-01-16', False), ("of the fifth kind", False)],
    *[('version "17.0.15" 2025-04-15', True), ('version "26-ea" 2026-03-17', True)],
]


@pytest.mark.parametrize(("version", "runs"), OLD_AND_NEW)
def test_an_old_java_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, runs: bool
) -> None:
    fake_java(tmp_path, version)
    user = tmp_path / "id"  # who cannot install anything
    user.write_text("#!/bin/sh\necho 1000\n")
    user.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    made = subprocess.run(["make", "-s", "java"], cwd=ROOT, check=False, capture_output=True, text=True)
    if runs:
        assert require_java() == str(tmp_path / "java") and made.returncode == 0, made.stderr
        return
    with pytest.raises(NoSpark, match=r"Java 17 or newer and .*java is .*openjdk-17") as raised:
        require_java()
    assert "\n" not in str(raised.value)
    assert made.returncode != 0 and made.stderr.startswith("make: no Java 17 or newer found")


def test_missing_java_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoSpark, match=r"Java 17.*openjdk-17") as raised:
        require_java()
    assert isinstance(raised.value, TidingsError) and "\n" not in str(raised.value)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(session.shutil, "which", lambda name: None)
    with pytest.raises(NoSpark, match="no java on the PATH"):
        require_java()


def test_a_master_that_is_none_is_refused_in_a_line() -> None:
    for master in ("local", "local[2]", "local[*]", "local[2,4]", "local-cluster[2,1,1024]", "spark://a:7077", "yarn"):
        _refuse_strange(master)
    for master in ("bogus", "local[two]", "local-cluster[2]", ""):
        with pytest.raises(BadInput, match="is no Spark master: local"):
            _refuse_strange(master)


def test_a_master_that_nobody_answers_at_is_refused_in_a_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        _refuse_silent(f"spark://127.0.0.1:{port}")
        _refuse_silent(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    _refuse_silent("local[2]")
    for master in ("spark://127.0.0.1:1", "spark://127.0.0.1", "spark://127.0.0.1:99999"):
        with pytest.raises(BadInput, match=rf"no Spark master answers at {master} \(.*start-master") as raised:
            _refuse_silent(master)
        assert "\n" not in str(raised.value)


def test_of_a_java_error_only_the_reason_is_told() -> None:
    frames = "An error occurred while calling None.x.\n: java.lang.X: no such thing\n\tat a.b(C.scala:1)\n\tat c.d(E:2)"
    assert said_of(Exception(frames)) == "java.lang.X: no such thing"
    assert said_of(Exception("plain\nwith frames")) == "plain"
