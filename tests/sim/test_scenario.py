"""Scenario files: what is read from them, and the one line that a bad one gets."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tidings.core.errors import BadInput
from tidings.sim.scenario import Cut, Heal, Kill, Restart, Scenario, load
from tidings.sim.toml import locate

SCENARIOS = Path(__file__).parents[2] / "scenarios"

GOOD = """\
[scenario]
name = "small"
seconds = 10

[[region]]
name = "east"
replicas = 2
clients = 3

[[region]]
name = "west"

[[link]]
a = "east"
b = "west"
latency = 0.03

[[stream]]
name = "prices"
region = "east"
gc = "by-key"

[[publisher]]
region = "east"
stream = "prices"
rate = 100
keys = 10

[[fault]]
at = 2
kind = "kill"
node = "east/head"
"""


def read(tmp_path: Path, text: str) -> Scenario:
    path = tmp_path / "some.toml"
    path.write_text(text)
    return load(path)


def refusal(tmp_path: Path, old: str, new: str) -> str:
    """The error for the good scenario with one change, without the directory."""
    assert old in GOOD
    with pytest.raises(BadInput) as caught:
        read(tmp_path, GOOD.replace(old, new, 1))
    text = str(caught.value)
    assert "\n" not in text
    return text.removeprefix(f"{tmp_path}/")


def test_a_scenario_is_read_with_defaults_filled_in(tmp_path: Path) -> None:
    scenario = read(tmp_path, GOOD)
    assert scenario.region("west").replicas == 1
    assert scenario.link("west", "east").latency == 0.03
    assert scenario.publishers[0].name == "east-pub0"
    assert scenario.publishers[0].stop == 10
    assert scenario.fabric.settings.fanout == 4
    assert scenario.swarm is None


def test_faults_and_load_end_when_the_run_heals(tmp_path: Path) -> None:
    scenario = read(tmp_path, GOOD.replace("seconds = 10", "seconds = 10\nheal_after = 6"))
    assert scenario.quiet_after == 6
    assert scenario.publishers[0].stop == 6


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_scenario_we_ship_is_valid(path: Path) -> None:
    assert load(path).scenario.name == path.stem


def test_the_link_cut_is_the_one_of_the_paper() -> None:
    scenario = load(SCENARIOS / "sprinkler-link-cut.toml")
    kill, restart = Kill(at=30, node="r1/p0"), Restart(at=35, node="r1/p0")
    assert scenario.faults == (Cut(at=19, a="r2", b="r3"), kill, restart, Heal(at=41, a="r2", b="r3"))
    assert scenario.link("r2", "r3").latency == 0.015
    assert [region.replicas for region in scenario.regions] == [3, 3, 3, 3]
    assert all(math.isclose(each.batch / each.rate, 0.05) for each in scenario.publishers)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "replicas = 2",
            "replcas = 2",
            "some.toml:7: region[0].replcas = 2: unknown key; did you mean replicas? allow",
        ),
        (
            "[scenario]",
            "[scenari]",
            "some.toml:1: scenari = {...}: unknown key; did you mean scenario? allowed: scenari",
        ),
        ("rate = 100", "rate = -5", "some.toml:26: publisher[0].rate = -5: must be a number > 0"),
        ("rate = 100", 'rate = "fast"', 'some.toml:26: publisher[0].rate = "fast": must be a number > 0'),
        ("rate = 100", "rate = inf", "some.toml:26: publisher[0].rate = inf: must be a finite number"),
        ("rate = 100\n", "", "some.toml:23: publisher[0].rate: is missing: must be a number > 0"),
        ("clients = 3", "clients = 1.5", "some.toml:8: region[0].clients = 1.5: must be a whole number >= 0"),
        (
            'name = "west"',
            'name = "we/st"',
            'some.toml:11: region[1].name = "we/st": must be a name of letters, digits',
        ),
        ('name = "west"', 'name = "east"', 'some.toml:11: region[1].name = "east": is used twice'),
        ('region = "east"', 'region = "north"', 'some.toml:20: stream[0].region = "north": must be one of east, west'),
        ('stream = "prices"', 'stream = "p"', 'some.toml:25: publisher[0].stream = "p": must be one of prices'),
        ('b = "west"', 'b = "east"', 'some.toml:15: link[0].b = "east": must be another region than a'),
        ('"by-key"', '"by-luck"', 'some.toml:21: stream[0].gc = "by-luck": '),
        ('"by-key"', '"by-key"\nrows = "counted"', 'some.toml:21: stream[0].gc = "by-key": needs rows = "arrow"'),
        ("keys = 10", "keys = 0", "some.toml:27: publisher[0].keys = 0: must be at least 1"),
        ('kind = "kill"', 'kind = "kil"', 'some.toml:31: fault[0].kind = "kil": must be one of "cut", "heal", '),
        ('kind = "kill"\n', "", 'some.toml:29: fault[0].kind: is missing: must be one of "cut", "heal", '),
        ('kind = "kill"', 'kind = "cut"', 'some.toml:32: fault[0].node = "east/head": unknown key; allowed: kind, at'),
        ("east/head", "east/p2", 'some.toml:32: fault[0].node = "east/p2": must be one of east/p0 ... east/p1'),
        ("east/head", "north/head", 'some.toml:32: fault[0].node = "north/head": must be REGION/pN, REGION/cN'),
        ("at = 2", "at = 12", "some.toml:30: fault[0].at = 12: must be before the faults end, at 10 s"),
        ("[scenario]", "[scenario", "some.toml:1, column 10: not valid TOML: "),
    ],
)
def test_bad_input_gets_one_line_naming_place_value_and_what_is_allowed(
    tmp_path: Path, old: str, new: str, line: str
) -> None:
    assert refusal(tmp_path, old, new).startswith(line)


def test_a_region_without_links_is_named_with_what_to_add(tmp_path: Path) -> None:
    text = refusal(tmp_path, '[[link]]\na = "east"\nb = "west"\nlatency = 0.03\n', "")
    assert text.startswith('some.toml:6: region[0].name = "east": has no link to west; every two regions need one')
    assert 'add [[link]] with a = "east", b = "west"' in text


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing\.toml: cannot be read: No such file"):
        load(tmp_path / "nothing.toml")


def test_keys_are_located_in_nested_tables_quoted_keys_and_around_long_strings() -> None:
    text = 'top = """\nfake = 1\n"""\n[[a]]\nx = 1\n[a.b]\n"y z" = 2\n[[a]]\n[[a.c]]\n[[a.c]]\nd.e = [\n  3,\n]\n'
    lines = locate(text)
    assert lines["top",] == 1
    assert ("fake",) not in lines
    assert lines["a", 0, "x"] == 5
    assert lines["a", 0, "b", "y z"] == 7
    assert lines["a", 1] == 8
    assert lines["a", 1, "c", 1, "d", "e"] == 11
