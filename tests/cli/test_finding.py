"""How commands find their cluster: options, environment, directory, and what a single address has named before."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from server.rig import tidings, tidings_json
from tidings.cli import cluster_options, learned_addresses
from tidings.cli.app import app
from tidings.cli.cluster_options import FoundCluster, find_cluster
from tidings.client.url import addresses_of, make_url
from tidings.server.cluster_config import free_port
from tidings.server.paths import SUPERVISOR, ClusterPaths, Process, started_at, write

COMMAND = [sys.executable, "-m", "tidings.cli.app"]
CLOSED = "tidings://127.0.0.1:1"


class Cluster(NamedTuple):
    folder: Path  # its parent, in which it is the default
    directory: Path
    url: str
    first: str  # the address of r0/p0

    @property
    def one(self) -> str:
        """The URL of one replica."""
        return make_url([self.first])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three replicas in memory, with a stream."""
    folder = tmp_path_factory.mktemp("finding")
    directory = folder / ".tidings"
    options = ("--replicas", 3, "--durability", "memory", "--port", 0, "--lab", "--detach", "--dir", directory)
    try:
        url = tidings_json("up", *options)["url"]
        tidings("stream", "create", "s", "--region", "r0", "--dir", directory)
        yield Cluster(folder, directory, url, addresses_of(url)[0])
    finally:
        tidings("down", "--dir", directory)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one."""
    monkeypatch.setenv("TIDINGS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# --- one way ----------------------------------------------------------------------------------------------

CLIENTS = ["pub s x", "sub s --start earliest --count 1", "collect s --before 1", "why s 1", "replay s --lake lake"]
QUERIES = ["status", "top", "stream list", "stream create a --region r0", "stream alter s --attrs x", "stream delete s"]
QUERIES += ["stream declare-lost s --from 1 --to 2"]
SPARK = ["archive run --lake lake", "audit", "pipeline run", "pipeline dry-run"]
SUPERVISED = ["down", "replica add r0", "replica remove r0/p9", "fault kill r0/p9", "fault restart r0/p9"]
SUPERVISED += ["fault cut r0 r1", "fault heal r0 r1", "fault pause r0/p9 --seconds 1"]


@pytest.mark.parametrize("command", [*CLIENTS, *QUERIES, *SPARK, *SUPERVISED])
def test_every_command_of_a_cluster_takes_a_url_and_a_directory(command: str) -> None:
    words = [word for word in command.split() if word.isalpha() or "-" in word[1:]][:2]
    said = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "120"}).stdout
    assert all(text in said for text in ("--url URL", "--dir DIR", "TIDINGS_DIR")), said


@pytest.mark.parametrize("command", ["pub s x", "why s 1", "stream list", "status", "top --json"])
@pytest.mark.parametrize("how", ["--url", "--dir", "TIDINGS_URL", "TIDINGS_DIR", "default"])
def test_a_cluster_is_found_by_option_environment_and_default(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, command: str, how: str
) -> None:
    value = cluster.url if "url" in how.lower() else str(cluster.directory)
    if how == "default":
        monkeypatch.chdir(cluster.folder)
    elif how.isupper():
        monkeypatch.setenv(how, value)
    tidings(*command.split(), *([how, value] if how.startswith("-") else []))


@pytest.mark.parametrize(("option", "variable"), [("--url", "TIDINGS_DIR"), ("--dir", "TIDINGS_URL")])
def test_an_option_counts_before_the_environment(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, variable: str
) -> None:
    monkeypatch.setenv(variable, CLOSED if variable == "TIDINGS_URL" else str(tmp_path / "nothing"))
    tidings("why", "s", 1, option, cluster.url if option == "--url" else cluster.directory)


def test_the_environment_counts_before_the_default(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cluster.folder)
    monkeypatch.setenv("TIDINGS_URL", CLOSED)
    assert "127.0.0.1:1: connection refused" in tidings("why", "s", 1, code=1)


def test_where_nothing_is_named_and_there_is_no_directory_it_is_the_default_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_cluster(None, None) == FoundCluster(("127.0.0.1:7400",), only="127.0.0.1:7400")


def test_a_url_and_a_directory_at_once_are_wrong_usage(cluster: Cluster) -> None:
    assert "give --url or --dir" in tidings("pub", "s", "x", "--url", CLOSED, "--dir", cluster.directory, code=2)


def test_a_cluster_of_another_name_is_found_by_its_directory(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(
        '[cluster]\nname = "mine"\n[[regions]]\nname = "r0"\nconfig = "a:1"\nreplicas = ["a:2", "b:3"]\n'
    )
    assert find_cluster(None, tmp_path) == FoundCluster(("a:2", "b:3"), "mine", tmp_path)


def test_a_cluster_file_that_is_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text('[[regions]]\nname = "r0"\nconfig = "a:1"\nreplicas = 7\n')
    assert "cluster.toml:4: regions[0].replicas = 7" in tidings("pub", "s", "x", "--dir", tmp_path, code=1)


def test_the_url_that_up_prints_and_its_run_file_has_lists_all_replicas(cluster: Cluster) -> None:
    running = ClusterPaths(cluster.directory).process(SUPERVISOR)
    assert running is not None and running.url == cluster.url and len(addresses_of(cluster.url)) == 3


# --- commands of the supervisor ---------------------------------------------------------------------------


def test_a_url_alone_does_not_lead_to_the_supervisor(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = tidings("fault", "kill", "r0/p9", "--url", cluster.url, code=1)
    assert said.count("\n") == 1 and "does not lead to the supervisor" in said and "--dir or TIDINGS_DIR" in said


@pytest.mark.parametrize("how", ["TIDINGS_DIR", "default"])
def test_a_url_leads_to_the_supervisor_if_the_usual_directory_is_that_of_its_cluster(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "default":
        monkeypatch.chdir(cluster.folder)
    else:
        monkeypatch.setenv(how, str(cluster.directory))
    assert "'r0/p9' is unknown" in tidings("fault", "kill", "r0/p9", "--url", cluster.one, code=1)


# --- a replica that does not answer -----------------------------------------------------------------------


def test_a_url_of_one_address_works_after_that_replica_was_killed(cluster: Cluster, cache: Path) -> None:
    where = ("--url", cluster.one)
    tidings("pub", "s", "first contact", *where)
    tidings("fault", "kill", "r0/p0", "--dir", cluster.directory)
    try:
        for command in ("pub s x", "stream list", "status"):
            done = subprocess.run([*COMMAND, *command.split(), *where], capture_output=True, text=True, check=False)
            assert done.returncode == 0
            assert done.stderr.startswith(f"tidings: {cluster.first} refuses connections: using 127.0.0.1:")
        said = tidings("fault", "kill", "r0/p0", "--dir", cluster.directory, code=1)
        assert said == "tidings: r0/p0 is dead already: `tidings fault restart r0/p0` starts it again\n"
        tidings("pub", "s", "x", "--dir", cluster.directory)
        (cache / f"{cluster.first}.json").unlink()
        assert f"{cluster.first}: connection refused" in tidings("pub", "s", "x", *where, code=1)
    finally:
        tidings("fault", "restart", "r0/p0", "--dir", cluster.directory)


def test_what_was_learned_of_an_address_is_kept_and_forgotten(cache: Path) -> None:
    assert learned_addresses.recall("a:1") == ()
    learned_addresses.remember("a:1", ["a:1", "b:2"])
    assert learned_addresses.recall("a:1") == ("a:1", "b:2")
    (cache / "a:1.json").write_text('["no address"]')
    assert learned_addresses.recall("a:1") == (), "a damaged file is as none"
    learned_addresses.forget(["a:1", "b:2"])
    assert list(cache.iterdir()) == []


def test_down_forgets_what_was_learned_of_its_addresses(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text('[[regions]]\nname = "r0"\nconfig = "a:1"\nreplicas = ["a:2", "b:3"]\n')
    for address in ("a:2", "c:4"):
        learned_addresses.remember(address, ["d:5"])
    tidings("down", "--dir", tmp_path)
    assert [path.name for path in cache.iterdir()] == ["c:4.json"]


@pytest.mark.parametrize("command", ["pub s x", "stream list", "status", "top", "audit", "archive run --lake lake"])
def test_a_closed_port_is_connection_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    said = tidings(*command.split(), "--url", CLOSED, code=1)
    assert time.monotonic() - began < 5
    assert said.startswith("tidings: 127.0.0.1:1: connection refused: ") and said.count("\n") == 1
    assert "`tidings up --detach`" in said and "--url or --dir" in said


def test_a_directory_whose_cluster_does_not_run_says_how_to_start_it(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    (tmp_path / "cluster.toml").write_text(
        f'[[regions]]\nname = "r0"\nconfig = "127.0.0.1:1"\nreplicas = ["{address}"]\n'
    )
    said = tidings("pub", "s", "x", "--dir", tmp_path, code=1)
    assert said == (
        f"tidings: {address}: connection refused: the cluster in {tmp_path} does not run; "
        f"start it with `tidings up --dir {tmp_path} --detach`\n"
    )


@pytest.fixture
def starting(tmp_path: Path) -> int:
    """The port of a cluster's only replica, which does not listen yet; its supervisor runs (in name, this process)."""
    files = ClusterPaths(tmp_path).make()
    port = free_port()
    files.config_file.write_text(f'[[regions]]\nname = "r0"\nconfig = "127.0.0.1:1"\nreplicas = ["127.0.0.1:{port}"]\n')
    write(files.run_file(SUPERVISOR), Process(pid=os.getpid(), started=started_at(os.getpid())))
    return port


def test_a_cluster_whose_supervisor_runs_is_given_time_to_listen(starting: int, tmp_path: Path) -> None:
    listening: list[socket.socket] = []
    timer = threading.Timer(0.3, lambda: listening.append(socket.create_server(("127.0.0.1", starting))))
    timer.start()
    try:
        cluster_options.check_listening(find_cluster(None, tmp_path))
    finally:
        timer.join()
        listening[0].close()


def test_a_supervisor_without_replicas_is_not_taken_for_a_cluster_that_does_not_run(
    starting: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_options, "STARTING", 0.3)
    said = tidings("pub", "s", "x", "--dir", tmp_path, code=1)
    assert f"127.0.0.1:{starting}: connection refused: the supervisor in {tmp_path} runs, but no replica does" in said


@pytest.mark.parametrize("command", ["pub s x", "stream list"])
def test_waiting_for_an_answer_is_shown_on_a_terminal(command: str) -> None:
    ours, theirs = pty.openpty()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        words = [*COMMAND, *command.split(), "--url", make_url([address])]
        with subprocess.Popen(words, stderr=theirs, stdout=subprocess.DEVNULL) as process:
            try:
                os.close(theirs)
                said = b""
                while b" s; Ctrl-C ends it)" not in said:
                    said += os.read(ours, 4096)  # fails if it ends
            finally:
                process.kill()
    os.close(ours)
    assert f"waiting for an answer of {address} (".encode() in said


# --- ports of `up` ----------------------------------------------------------------------------------------


def test_up_refuses_a_port_that_is_taken_and_says_by_whom(tmp_path: Path) -> None:
    first = free_port()
    with socket.create_server(("127.0.0.1", first + 2)):
        said = tidings("up", "--port", first, "--replicas", 2, "--detach", "--dir", tmp_path / "new", code=1)
    assert said.startswith(f"tidings: port {first + 2} is taken by process {os.getpid()} (")
    assert said.count("\n") == 1 and "--port 0 takes free ports" in said
    assert not (tmp_path / "new").exists()


def test_up_refuses_to_start_a_cluster_again_whose_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (tmp_path / "cluster.toml").write_text(
            f'[[regions]]\nname = "r0"\nconfig = "127.0.0.1:{free_port()}"\nreplicas = ["127.0.0.1:{port}"]\n'
        )
        said = tidings("up", "--detach", "--dir", tmp_path, code=1)
    assert f"port {port} is taken by process {os.getpid()} (" in said
    assert f"change the address in {tmp_path / 'cluster.toml'}" in said


def test_the_supervisor_that_is_gone_is_told_from_a_cluster_that_is_gone(tmp_path: Path) -> None:
    where = ("--dir", tmp_path)
    up = tidings_json("up", "--replicas", 1, "--durability", "memory", "--port", 0, "--lab", "--detach", *where)
    try:
        os.kill(up["pid"], signal.SIGKILL)
        said = tidings("fault", "kill", "r0/p0", *where, code=1)
        assert "1 replicas run, but no supervisor" in said and f"`tidings up --dir {tmp_path} --detach`" in said
    finally:
        tidings("down", *where)


# --- what is loaded ---------------------------------------------------------------------------------------

HEAVY = ["pyspark", "pandas", "numba", "lmdb", "starlette", "matplotlib", "uvicorn", "rich", "sqlglot", "structlog"]


@pytest.mark.parametrize("command", ["pub s x", "collect s --before 1", "why s 1", "stream create z --region r0"])
@pytest.mark.parametrize("how", ["--url", "--dir"])
def test_a_client_command_does_not_load_what_it_does_not_need(cluster: Cluster, command: str, how: str) -> None:
    code = (
        "import json, sys, atexit\n"
        f"atexit.register(lambda: print(json.dumps([each for each in {HEAVY} if each in sys.modules])))\n"
        "from tidings.cli.app import main\n"
        "main()\n"
    )
    words = [*command.split(), how, cluster.url if how == "--url" else str(cluster.directory)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_tests_in_a_background_shell_can_be_interrupted() -> None:
    code = (
        "import runpy, signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"runpy.run_path({str(Path(__file__).parents[1] / 'conftest.py')!r})\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
