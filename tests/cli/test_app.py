"""The command line: help, exit codes and the two forms of output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tidings.cli import app as cli
from tidings.cli.check import parse_seeds
from tidings.core.errors import BadInput

COMMANDS = ["sim", "check", "lab list", "lab run", "bench gc", "bench sim", "version", "pub", "sub", "collect", "why"]
COMMANDS += ["status", "top", "serve", "bench peers"]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments))


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tidings.cli.app import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "120"})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"Example: tidings {command}" in result.stdout
    assert "--json" in result.stdout


@pytest.mark.parametrize("group", ["", "config", "stream", "replica", "fault", "archive", "pipeline", "lab", "bench"])
def test_no_line_of_a_list_of_commands_is_cut_at_80_columns(group: str) -> None:
    command = [sys.executable, "-m", "tidings.cli.app", *group.split(), "--help"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "80"})
    assert [line for line in found.stdout.splitlines()[1:] if line.endswith("...")] == []


def test_help_does_not_wait_for_the_heavy_libraries() -> None:
    code = "import sys, tidings.cli.app; print([m for m in ('pyarrow', 'numpy', 'numba', 'rich') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_help_answers_at_once() -> None:
    def timed() -> float:
        start = time.perf_counter()
        assert process("--help").returncode == 0
        return time.perf_counter() - start

    assert min(timed() for _ in range(3)) < 1.0  # 0.15 s on an idle machine; tests share theirs


def test_bad_input_is_one_line_on_stderr_and_exit_code_1(tmp_path: Path) -> None:
    result = process("sim", str(tmp_path / "nothing.toml"), "--json")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == f"tidings: {tmp_path}/nothing.toml: cannot be read: No such file or directory\n"


def test_wrong_usage_is_exit_code_2() -> None:
    assert run("check", "sprinkler", "--seeds", "5").exit_code == 2
    assert run("check", "nonsense").exit_code == 2
    assert run("check", "sprinkler", "--mutants", "--seeds", "0..2").exit_code == 2
    assert run("bench", "gc", "--runs", "1").exit_code == 2


def test_the_ledger_is_summed_up_without_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("check", "--ledger", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["seeds"] == 0


def test_a_spark_master_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = process("lab", "run", "SP5", "--master", "spark://127.0.0.1:1", "--out", str(tmp_path))
    assert result.returncode == 1 and result.stderr.count("\n") == 1 and len(result.stderr) < 250
    assert result.stderr.startswith("tidings: no Spark master answers at spark://127.0.0.1:1 (")
    assert "--master 'local[2]'" in result.stderr


@pytest.mark.parametrize("text", ["7", "3..3", "5..2", "a..b", "-1..4", "0..", "0...4"])
def test_seeds_that_are_no_range_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a range"):
        parse_seeds(text)


def test_seeds_are_half_open() -> None:
    assert list(parse_seeds("3..6")) == [3, 4, 5]


def test_json_is_one_object_on_stdout() -> None:
    result = run("version", "--json")
    assert json.loads(result.stdout).keys() == {"tidings", "python"}


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr(cli, "app", absent)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    assert capsys.readouterr().err == "tidings: this command needs matplotlib: pip install 'tidings[lab]'\n"


def test_an_error_of_several_lines_is_told_in_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise BadInput("first\n  second")

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "tidings: first second\n"
