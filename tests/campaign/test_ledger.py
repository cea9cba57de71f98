"""What a campaign finds is kept, summed up, and not found again where the same code has found it already."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidings.campaign import runner
from tidings.campaign.cluster import campaign as cluster_campaign
from tidings.campaign.sprinkler import campaign
from tidings.core.errors import TidingsError
from tidings.results import code_hash, ledger
from tidings.results.ledger import Ledger


def outcome(seed: int, *violations: tuple[str, str]) -> dict[str, Any]:
    return {
        "seed": seed,
        "mood": "calm",
        "violations": list(violations),
        "faults": {"cut": 2},
        "reports": {"retransmission": 1.0},
        "sim_seconds": 3600.0,
        "wall_seconds": 1.0,
        "events": 2000 + seed,
        "clients": 8,
        "regions": 2,
        "hash": f"{seed:x}",
    }


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which seeds were run; seed 2 is bad."""
    ran: list[int] = []

    def run_seed(seed: int) -> dict[str, Any]:
        ran.append(seed)
        return outcome(seed, ("order", "17 before 16")) if seed == 2 else outcome(seed)

    monkeypatch.setattr(campaign, "run_seed", run_seed)
    return ran


def test_what_was_run_is_in_the_ledger_and_is_summed_up(tmp_path: Path, seeds: list[int]) -> None:
    result = runner.run("sprinkler", range(4), folder=tmp_path)
    assert [each["seed"] for each in result["violations"]] == [2]
    found = runner.totals(tmp_path)
    assert found["seeds"] == 4 and found["violations"] == 1
    assert found["by_target"]["sprinkler"] == {
        "seeds": 4,
        "runs": 4,
        "violated": 1,
        "hours_simulated": 4.0,
        "faults": {"cut": 8},
    }
    assert found["failures"][0]["replay"] == "tidings check sprinkler --seeds 2..3"
    assert found["commits"] == [ledger.commit()] and found["runs"] == 4 and found["mended"] == 0


def test_a_seed_is_as_good_as_when_it_last_ran(tmp_path: Path) -> None:
    kept = Ledger(tmp_path, runner.SCHEMA)
    kept.add([runner.row("sprinkler", outcome(1, ("order", "x"))), runner.row("sprinkler", outcome(2))])
    kept.flush()
    assert (runner.totals(tmp_path)["violations"], runner.totals(tmp_path)["mended"]) == (1, 0)
    kept.add([runner.row("sprinkler", outcome(1))])
    kept.flush()
    found = runner.totals(tmp_path)
    assert (found["seeds"], found["runs"], found["violations"], found["mended"]) == (2, 3, 0, 1)
    assert found["by_target"]["sprinkler"]["violated"] == 0


SHOW = "import sys, {}; print(*[m.__file__ for n, m in sys.modules.items() if n.startswith('tidings.')])"


@pytest.mark.parametrize("module", [campaign.__name__, cluster_campaign.__name__])
def test_the_hash_is_of_all_code_that_a_campaign_imports(module: str) -> None:
    asked = subprocess.run([sys.executable, "-c", SHOW.format(module)], capture_output=True, text=True, check=True)
    used = {Path(name) for name in asked.stdout.split() if not name.endswith("__init__.py")}
    hashed = set(code_hash.sources(module))
    assert len(used) > 50 and used <= hashed, sorted(used - hashed)


def test_an_interrupted_campaign_keeps_what_it_has(
    tmp_path: Path, seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = campaign.run_seed

    def until_three(seed: int) -> dict[str, Any]:
        if seed == 3:
            raise KeyboardInterrupt
        return whole(seed)

    monkeypatch.setattr(campaign, "run_seed", until_three)
    with pytest.raises(KeyboardInterrupt):
        runner.run("sprinkler", range(5), folder=tmp_path)
    assert runner.totals(tmp_path)["seeds"] == 3


def test_outcomes_are_under_the_hash_of_the_code_that_was_there_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    monkeypatch.setattr(code_hash, "code_on_disk", lambda *modules: "edited" if ran else "began")
    code_hash.code.cache_clear()

    def run_seed(seed: int) -> dict[str, Any]:
        ran.append(seed)
        return outcome(seed)

    monkeypatch.setattr(campaign, "run_seed", run_seed)
    try:
        runner.run("sprinkler", range(2), folder=tmp_path)
        assert set(Ledger(tmp_path, runner.SCHEMA).table()["code"].to_pylist()) == {"began"}
    finally:
        code_hash.code.cache_clear()


DEADLY = """
import os

def attempt(target, seed):
    if seed == 2:
        os._exit(9)
    return {**OUTCOME, "seed": seed}
"""


def test_a_seed_that_kills_its_process_is_violated_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text(f"OUTCOME = {outcome(0)}\n{DEADLY}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(runner, "attempt", import_module("deadly").attempt)
    result = runner.run("sprinkler", range(6), jobs=2, folder=tmp_path / "ledger")
    (found,) = result["violations"]
    assert (found["seed"], found["invariant"]) == (2, "process") and "died, and again when it ran alone" in found[
        "detail"
    ]
    found = runner.totals(tmp_path / "ledger")
    assert (found["seeds"], found["runs"], found["violations"]) == (6, 6, 1)


@pytest.mark.parametrize("target", ["sprinkler", "cluster"])
def test_a_seed_that_raises_is_violated_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    def run_seed(seed: int) -> dict[str, Any]:
        if seed == 2:
            raise ZeroDivisionError("no such luck")
        return {**outcome(seed), "story": [], "receipts": 1}

    kind = {"sprinkler": campaign, "cluster": cluster_campaign}[target]
    monkeypatch.setattr(kind, "run_seed", run_seed)
    (found,) = runner.run(target, range(1, 4), folder=tmp_path)["violations"]
    assert (found["seed"], found["invariant"]) == (2, "exception")
    assert found["detail"].startswith("ZeroDivisionError('no such luck')\nTraceback")
    assert found["replay"] == f"tidings check {target} --seeds 2..3"
    kept = runner.totals(tmp_path)
    assert kept["by_target"][target]["violated"] == 1 and kept["failures"][0]["invariant"] == "exception"
    there = runner._task({"target": target, "seed": 2})  # as Spark runs it
    assert there["violations"][0][0] == "exception"
    known = runner.known(Ledger(tmp_path, runner.SCHEMA), target, range(4))
    if target == "sprinkler":  # and a campaign on Spark can sum up what it finds in the ledger
        assert campaign.summary(target, range(4), list(known))["least"]["events"] == 0


def test_only_seeds_of_the_same_code_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Ledger(tmp_path, runner.SCHEMA)
    kept.add(runner.row("sprinkler", outcome(seed, ("order", "x"))) for seed in range(3))
    kept.flush()
    known = list(runner.known(kept, "sprinkler", range(1, 9)))
    assert [each["seed"] for each in known] == [1, 2]
    assert known[0]["violations"] == [("order", "x")] and known[0]["reports"] == {"retransmission": 1.0}
    assert not list(runner.known(kept, "cluster", range(9)))
    monkeypatch.setattr(runner, "code_of", lambda target: "other")
    assert not list(runner.known(kept, "sprinkler", range(9)))


def test_an_empty_ledger_sums_up_to_nothing(tmp_path: Path) -> None:
    assert runner.totals(tmp_path / "none") == {
        "seeds": 0,
        "runs": 0,
        "violations": 0,
        "failures": [],
        "mended": 0,
        "by_target": {},
        "commits": [],
    }


def test_a_half_written_part_is_not_read(tmp_path: Path) -> None:
    kept = Ledger(tmp_path)
    kept.add([{"a": 1}])
    kept.flush()
    (tmp_path / ".part-1.parquet").write_bytes(b"half")
    assert kept.table().to_pylist() == [{"a": 1}]
    (tmp_path / "part-2.parquet").write_bytes(b"half")
    with pytest.raises(TidingsError, match=r"part-2\.parquet is damaged"):
        kept.table()


CODE = pa.schema([("code", pa.string())])


@pytest.mark.parametrize("schema", [CODE, None])
def test_a_part_with_a_column_of_another_type_is_named_wherever_it_stands(
    tmp_path: Path, schema: pa.Schema | None
) -> None:
    kept = Ledger(tmp_path, schema)
    for code in ("a", "b"):
        kept.add([{"code": code}])
        kept.flush()
    pq.write_table(pa.table({"code": [7]}), tmp_path / "part-0.parquet")
    with pytest.raises(TidingsError, match=r"part-0\.parquet is damaged .*code.*move it away") as raised:
        kept.table()
    assert "\n" not in str(raised.value)
    (tmp_path / "part-0.parquet").unlink()
    assert kept.table()["code"].to_pylist() == ["a", "b"]


def test_the_only_part_is_held_against_the_columns_that_are_known(tmp_path: Path) -> None:
    pq.write_table(pa.table({"code": [7]}), tmp_path / "part-0.parquet")
    with pytest.raises(TidingsError, match=r"part-0\.parquet is damaged"):
        Ledger(tmp_path, CODE).table()


def test_a_column_that_comes_later_is_kept(tmp_path: Path) -> None:
    kept = Ledger(tmp_path)
    kept.add([{"a": 1}, {"a": 2, "rounds": 5}, {"b": 0.5}])
    kept.flush()
    assert kept.table().column_names == ["a", "rounds", "b"]
    assert kept.table()["rounds"].to_pylist() == [None, 5, None]


def test_a_digest_is_of_the_rows_not_of_their_chunks() -> None:
    whole = pa.table({"a": [1, 2, 3]})
    split = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    assert ledger.digest([whole]) == ledger.digest([split])
    assert ledger.digest([whole]) != ledger.digest([pa.table({"a": [1, 2, 4]})])
    assert ledger.digest([whole, whole]) != ledger.digest([whole])


def test_the_hash_follows_imports_inside_functions_and_modules_that_are_started_as_processes() -> None:
    hashed = {path.relative_to(code_hash.ROOT).as_posix() for path in code_hash.sources(cluster_campaign.__name__)}
    assert {"server/prefork.py", "campaign/cluster/load.py", "core/span.py"} <= hashed
    assert "lab/study.py" not in hashed and "spark/session.py" not in hashed
