"""`tidings top`: status again and again, and what came between two looks."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.conftest import Cluster
from server.rig import tidings, tidings_json
from tidings import sync
from tidings.cli import top
from tidings.cli.app import app


def stream(name: str = "s", owner: str = "r0", **horizon: int) -> dict[str, Any]:
    counts = {"live": 7, "collected": 0, "lost": 0}
    return {"name": name, "region": owner, "gc": "none", "attrs": "", "horizon": horizon, **counts}


def status(*streams: dict[str, Any]) -> dict[str, Any]:
    replica = {"id": "r0/p0", "role": "head", "pid": 17, "address": "127.0.0.1:7400", "alive": True}
    regions = [{"name": "r0", "address": "127.0.0.1:7400", "replicas": [replica]}]
    return {"regions": regions, "streams": list(streams), "cuts": [["r0", "r1"]]}


def rates(*looks: tuple[float, dict[str, Any]]) -> dict[str, float | None]:
    """What the last of several looks says, each at its time."""
    times, found = zip(*looks, strict=True)
    watch = top.TopView(iter(found).__next__, iter(times).__next__)
    last = [watch.look() for _ in looks][-1]
    return {each["name"]: each["events_per_s"] for each in last["streams"]}


def test_a_rate_is_what_the_owner_numbered_between_two_looks() -> None:
    first, second = status(stream(r0=101, r1=1)), status(stream(r0=601, r1=9_001))
    assert rates((10.0, first), (12.0, second)) == {"s": 250.0}
    assert rates((10.0, first), (12.0, second), (13.0, second)) == {"s": 0.0}


def test_where_the_owner_does_not_answer_it_is_what_has_come_furthest_elsewhere() -> None:
    first, second = status(stream(r0=101, r1=50, r2=90)), status(stream(r1=80, r2=95))
    assert rates((0.0, first), (1.0, second)) == {"s": 5.0}


@pytest.mark.parametrize(
    "before",
    [
        status(),
        status(stream("other", r0=1)),
        status(stream(r1=5)),
        status(stream(r0=1_000)),
    ],
    ids=["no stream", "another stream", "another region", "began anew"],
)
def test_a_rate_that_is_not_known_is_none(before: dict[str, Any]) -> None:
    assert rates((0.0, before), (1.0, status(stream(r0=10)))) == {"s": None}
    assert rates((0.0, status(stream(r0=10)))) == {"s": None}


def test_top_as_json_is_the_status_with_rates(cluster: Cluster) -> None:
    tidings("stream", "create", "busy", "--region", "r0", "--dir", cluster.folder)
    tidings("stream", "create", "quiet", "--region", "r0", "--dir", cluster.folder)
    over = threading.Event()

    def publish() -> None:
        with sync.connect(cluster.url) as t:
            while not over.wait(0.01):
                t.publish("busy", payload=b"x")

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        found = tidings_json("top", "--dir", cluster.folder)
    finally:
        over.set()
        publisher.join(20)
    streams = {each["name"]: each for each in found["streams"]}
    assert streams["busy"]["events_per_s"] > 0 and streams["quiet"]["events_per_s"] == 0
    plain = tidings_json("status", "--dir", cluster.folder)
    assert found.keys() == plain.keys() and found["regions"] == plain["regions"]
    assert set(streams["quiet"]) == set(plain["streams"][0]) | {"events_per_s"}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What there is to see, look for look; behind it comes Ctrl-C."""
    left = [status(stream(r0=1)), status(stream(r0=5_001)), status(stream(r0=5_001))]

    def look(*where: Any) -> dict[str, Any]:
        if not left:
            raise KeyboardInterrupt
        return left.pop(0)

    now = iter(range(9))
    monkeypatch.setattr(top, "cluster_status", look)
    clock = SimpleNamespace(monotonic=lambda: next(now), sleep=lambda seconds: None)
    monkeypatch.setattr(top, "time", clock)
    return left


def test_without_a_terminal_it_is_printed_once(looks: list[dict[str, Any]]) -> None:
    result = CliRunner().invoke(app, ["top"], env={"COLUMNS": "120"})
    assert result.exit_code == 0 and len(looks) == 1
    assert result.stdout.count("events/s") == 1 and "5,000" in result.stdout
    assert "the link r0-r1 is cut" in result.stdout


def test_on_a_terminal_it_goes_on_until_ctrl_c(looks: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "_on_terminal", lambda: True)
    result = CliRunner().invoke(app, ["top"], env={"COLUMNS": "120"})
    assert result.exit_code == 0 and looks == []
    assert "r0/p0" in result.stdout


def test_as_json_it_is_one_object_also_on_a_terminal(
    looks: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "_on_terminal", lambda: True)
    result = CliRunner().invoke(app, ["top", "--json"])
    assert json.loads(result.stdout)["streams"][0]["events_per_s"] == 5_000
