"""The cluster file: what is refused, and where the error says it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.core.errors import BadInput
from tidings.server.cluster_config import FREE, ClusterConfig, generate, load, render

GOOD = """\
[cluster]
name = "prices"

[[regions]]
name = "east"
config = "127.0.0.1:7409"
replicas = ["127.0.0.1:7400", "127.0.0.1:7401"]

[[regions]]
name = "west"
config = "127.0.0.1:7419"
replicas = ["127.0.0.1:7410"]

[[wan.links]]
a = "east"
b = "west"
latency = 0.035

[protocol]
silence = 2.0
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def test_a_good_file_says_who_lives_where(tmp_path: Path) -> None:
    plan = load(written(tmp_path, GOOD))
    assert plan.durable
    assert plan.slots() == {
        "east/p0": "127.0.0.1:7400",
        "east/p1": "127.0.0.1:7401",
        "west/p0": "127.0.0.1:7410",
    }
    assert plan.region("east").service == "east/config@127.0.0.1:7409"
    assert plan.region("east").initial_chain(1).tail == "east/p1@127.0.0.1:7401"
    assert plan.protocol.configuration().silence == 2.0
    wan = plan.shape()
    assert wan is not None and wan.way("west", "east").path.latency == 0.035


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('name = "prices"', 'nam = "prices"', '2: cluster.nam = "prices": unknown key; did you mean name? '),
        ("127.0.0.1:7410", "127.0.0.1", '12: regions[1].replicas[0] = "127.0.0.1": must be HOST:PORT'),
        ("127.0.0.1:7410", "127.0.0.1:7400", '12: regions[1].replicas[0] = "127.0.0.1:7400": is taken by regions[0]'),
        ('name = "west"', 'name = "east"', '10: regions[1].name = "east": is used twice'),
        ('b = "west"', 'b = "north"', '16: wan.links[0].b = "north": must be one of east, west'),
        ("latency = 0.035", "latency = -1", "17: wan.links[0].latency = -1: must be a number >= 0"),
        ("silence = 2.0", "silence = 2.0\npromise = 5.0", "21: protocol.promise = 5.0: is 0.001 to 1 s"),
        ("silence = 2.0", "silence = 0.1", "20: protocol.silence = 0.1: must be at least three beats, 0.9 s"),
        ("[cluster]\n", '[cluster]\ndurability = "maybe"\n', '2: cluster.durability = "maybe": must be one of'),
        ("[cluster]\n", "[cluster]\npoll = 2\n", "2: cluster.poll = 2: must be a number"),
        ('replicas = ["127.0.0.1:7410"]', "", "9: regions[1].replicas: is missing: must be a list of at least 1"),
        ("[protocol]", "[protocol", "19, column 10: not valid TOML"),
    ],
)
def test_an_error_names_file_line_key_value_and_what_is_allowed(tmp_path: Path, old: str, new: str, line: str) -> None:
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(BadInput) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:{line}")
    assert "\n" not in str(caught.value)


def test_a_plan_written_out_is_the_same_plan(tmp_path: Path) -> None:
    plan = load(written(tmp_path, GOOD))
    assert load(written(tmp_path, render(plan))) == plan


def test_what_is_generated_can_be_read_back(tmp_path: Path) -> None:
    made = generate(3, 2, durability="memory", wan="us", port=0, poll=0.002)
    assert load(written(tmp_path, render(made))) == made
    ports = [int(address.partition(":")[2]) for address in made.slots().values()]
    assert len(set(ports)) == 6
    assert all(FREE[0] <= port < FREE[1] for port in ports)


@pytest.mark.parametrize(("regions", "replicas", "wan"), [(0, 1, None), (1, 0, None), (4, 1, "us")])
def test_impossible_clusters_are_not_generated(regions: int, replicas: int, wan: str | None) -> None:
    with pytest.raises(BadInput):
        generate(regions, replicas, wan=wan)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("regions", "replicas", "port", "why"),
    [
        (
            1000,
            100,
            64_000,
            "1000 regions of 100 replicas are 100000 processes, too many .*: at most 256",
        ),
        (200, 1, 65_200, "400 processes need the ports 65200 to 65599, and .* 65535: begin at 65136 or below, or"),
    ],
)
def test_a_cluster_that_no_machine_carries_is_refused_with_what_would_do(
    regions: int, replicas: int, port: int, why: str
) -> None:
    with pytest.raises(BadInput, match=why):
        generate(regions, replicas, port=port)


def test_the_last_ports_can_be_used() -> None:
    made = generate(1, 2, port=65_533)
    ports = [int(each.rpartition(":")[2]) for each in (*made.slots().values(), made.regions[0].config)]
    assert all(port <= 65_535 for port in ports)


def test_an_unknown_region_is_named_with_those_there_are() -> None:
    plan: ClusterConfig = generate(2, 1, port=0)
    with pytest.raises(BadInput, match="'r9' is unknown: there are r0, r1"):
        plan.region("r9")
