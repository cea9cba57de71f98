"""The commands people type, against a real cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from server.rig import tidings, tidings_json
from tidings.server.cluster_config import generate, render
from tidings.server.paths import ClusterPaths, Process, read


def processes(folder: Path) -> list[Process]:
    found = [read(path, Process) for path in (folder / "run").glob("*.json")]
    return [each for each in found if each is not None]


def test_config_check_says_what_is_wrong_on_one_line(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('[[regions]]\nname = "r0"\nconfig = "here"\nreplicas = ["127.0.0.1:7400"]\n')
    said = tidings("config", "check", file, code=1)
    assert said == f'tidings: {file}:3: regions[0].config = "here": must be HOST:PORT with a port from 1 to 65535\n'
    file.write_text(file.read_text().replace("here", "127.0.0.1:7401"))
    assert "good: 1 region, 1 replica, durable" in tidings("config", "check", file)


def test_up_status_stream_and_down(tmp_path: Path) -> None:
    where = ("--dir", tmp_path)
    up = tidings_json("up", "--regions", 1, "--replicas", 1, "--port", 0, "--detach", *where)
    try:
        assert up["ready"]
        assert "already runs" in tidings("up", "--detach", *where, code=1)
        made = tidings_json(
            "stream", "create", "prices", "--region", "r0", "--attrs", "loc string", "--gc", "by-key", *where
        )
        id = made.pop("id")
        assert made == {"name": "prices", "region": "r0", "gc": "by-key", "attrs": "loc string"}
        assert id.startswith("prices~")
        altered = tidings_json("stream", "alter", "prices", "--attrs", "loc string, price double", *where)
        assert altered["attrs"] == "loc string, price double"
        assert tidings_json("stream", "list", *where) == {"streams": [altered]}
        declared = tidings_json("stream", "declare-lost", "prices", "--from", 1, "--to", 4, *where)
        assert declared == {"name": "prices", "region": "r0", "lo": 1, "hi": 4}
        assert "below 4 is known" in tidings("stream", "declare-lost", "prices", "--from", 2, "--to", 9, *where, code=1)
        status = tidings_json("status", *where)
        assert status["streams"][0]["lost"] == 3
        [region] = status["regions"]
        assert [each["id"] for each in region["replicas"]] == ["r0/p0"]
        assert status["streams"][0]["horizon"] == {"r0": 4}
        assert "up --lab" in tidings("fault", "kill", "r0/p0", *where, code=1)
        assert "last replica" in tidings("replica", "remove", "r0/p0", *where, code=1)
        tidings("stream", "delete", "prices", *where)
        assert tidings_json("stream", "list", *where) == {"streams": []}
        there = processes(tmp_path)
        assert len(there) == 2 and all(each.alive for each in there)
    finally:
        down = tidings_json("down", *where)
    assert down["killed"] == []
    assert not any(each.alive for each in there)
    assert processes(tmp_path) == []
    assert tidings_json("down", *where)["ended"] == 0
    assert "no cluster runs" in tidings("fault", "kill", "r0/p0", *where, code=1)


def test_replicas_outlive_their_supervisor_and_the_next_one_finds_them(tmp_path: Path) -> None:
    where = ("--dir", tmp_path)
    up = tidings_json("up", "--replicas", 2, "--durability", "memory", "--port", 0, "--detach", *where)
    try:
        tidings("stream", "create", "s", "--region", "r0", *where)
        os.kill(up["pid"], signal.SIGKILL)
        pids = {slot: process.pid for slot in ("r0/p0", "r0/p1") if (process := ClusterPaths(tmp_path).process(slot))}
        status = tidings_json("status", *where)
        assert {each["id"]: each["pid"] for each in status["regions"][0]["replicas"] if each["alive"]} == pids
        tidings("up", "--detach", *where)
        status = tidings_json("status", *where)
        assert {each["id"]: each["pid"] for each in status["regions"][0]["replicas"]} == pids
        assert [each["name"] for each in status["streams"]] == ["s"], "they are the same processes: nothing is lost"
    finally:
        tidings("down", *where)
    assert processes(tmp_path) == []


def test_up_in_the_foreground_says_when_it_is_ready_and_ends_with_an_interrupt(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidings.cli.app", "up", "--replicas", "1", "--port", "0", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        there = processes(tmp_path)
        process.send_signal(signal.SIGINT)
        code = process.wait(20)
        rest = process.stderr.read()
    assert lines[0].startswith("r0  tidings://127.0.0.1:")
    assert lines[1] == "ready; Ctrl-C ends it\n"
    assert (code, rest) == (0, "")
    assert len(there) == 2 and not any(each.alive for each in there)


def test_a_region_in_memory_that_was_killed_as_a_whole_says_so_and_begins_anew_with_the_next_up(tmp_path: Path) -> None:
    where = ("--dir", tmp_path)
    file = tmp_path / "my.toml"
    file.write_text(render(generate(1, 1, durability="memory", port=0)))
    up = tidings_json("up", "-c", file, "--lab", "--detach", *where)
    assert up["regions"][0]["name"] == "r0"
    try:
        tidings("stream", "create", "s", "--region", "r0", *where)
        epoch = tidings_json("status", *where)["regions"][0]["epoch"]
        tidings("fault", "kill", "r0/p0", *where)
        tidings("fault", "restart", "r0/p0", *where)
        assert tidings_json("status", *where)["lost"] == ["r0"]
        tidings("down", *where)
        tidings("up", "--detach", *where)
        status = tidings_json("status", *where)
        assert (status["lost"], status["streams"]) == ([], [])
        assert status["regions"][0]["epoch"] > epoch, "whoever remembers the old region must follow the new one"
        assert status["regions"][0]["replicas"][0]["id"] == "r0/p0"
    finally:
        tidings("down", *where)


def test_serve_says_when_it_is_ready(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    plan = generate(1, 1, durability="memory", port=0)
    file.write_text(render(plan))
    addresses = {"r0/config": plan.regions[0].config, "r0/p0": plan.regions[0].replicas[0]}
    with ExitStack() as stack:
        for name, address in addresses.items():
            kind = "config" if name == "r0/config" else "replica"
            command = [sys.executable, "-m", "tidings.cli.app", "serve", kind, "-c", str(file), "--id", name, "--json"]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.terminate)
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            assert (said["id"], said["address"], said["pid"]) == (name, address, process.pid)
            assert (said["admin"] is None) == (kind == "config")
        assert tidings_json("status", "-c", file)["regions"][0]["replicas"][0]["alive"]


@pytest.mark.parametrize("command", [("up", "--detach"), ("archive", "restore", "--lake", "lake")])
def test_no_command_writes_another_plan_over_that_of_a_directory(tmp_path: Path, command: tuple[str, ...]) -> None:
    home, other = tmp_path / "home", tmp_path / "other.toml"
    home.mkdir()
    mine = render(generate(1, 1, port=0))
    (home / "cluster.toml").write_text(mine)
    other.write_text(render(generate(1, 2, port=0)))
    said = tidings(*command, "-c", other, "--dir", home, code=1)
    assert f"{home / 'cluster.toml'} is another plan than {other}" in said
    assert (home / "cluster.toml").read_text() == mine


@pytest.mark.parametrize("given", [True, False])
def test_up_writes_no_plan_where_a_cluster_runs(tmp_path: Path, given: bool) -> None:
    home, file = ClusterPaths(tmp_path / "home").make(), tmp_path / "my.toml"
    file.write_text(render(generate(1, 1, port=0)))
    how = ["-c", file] if given else ["--port", 0]
    lock = home.lock()  # its supervisor runs; somebody has moved the file away
    try:
        assert "already runs" in tidings("up", *how, "--dir", home.root, "--detach", code=1)
    finally:
        os.close(lock)
    assert not home.config_file.exists()


@pytest.mark.parametrize("arguments", [("--regions", "0"), ("--wan", "eu"), ("--port", "99999")])
def test_wrong_usage_is_exit_code_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    tidings("up", "--dir", tmp_path, *arguments, code=2)
