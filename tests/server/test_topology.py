"""Edges and relays in the cluster file: where each is, whom it has above and beside it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.rig import tidings, tidings_json
from tidings.core.errors import BadInput
from tidings.protocols.brokers.broker_messages import BrokerSettings
from tidings.server.cluster_config import generate, load, render

GOOD = """\
[[regions]]
name = "east"
config = "127.0.0.1:7409"
replicas = ["127.0.0.1:7400"]

[[regions.cells]]
name = "inner"
relays = ["127.0.0.1:7420", "127.0.0.1:7421"]

[[regions.cells]]
name = "outer"
upstream = "inner"
relays = ["127.0.0.1:7422"]

[[regions.edges]]
address = "127.0.0.1:7430"
upstream = "outer"

[[regions.edges]]
address = "127.0.0.1:7431"

[[regions]]
name = "west"
config = "127.0.0.1:7419"
replicas = ["127.0.0.1:7410"]

[brokers]
gct = 0.1
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def test_each_broker_knows_who_is_above_and_beside_it(tmp_path: Path) -> None:
    plan = load(written(tmp_path, GOOD))
    places = plan.broker_places()
    assert list(places) == ["east/b0", "east/b1", "east/b2", "east/e0", "east/e1"]
    inner = ("east/b0@127.0.0.1:7420", "east/b1@127.0.0.1:7421")
    first, outer, edge, near = (places[f"east/{name}"] for name in ("b0", "b2", "e0", "e1"))
    assert (first.node, first.kind, first.cell, first.address) == (inner[0], "relay", "inner", "127.0.0.1:7420")
    assert (first.upstream, first.below, first.peers) == ((), "", (inner[1],))
    assert (outer.upstream, outer.below, outer.peers) == (inner, "inner", ())
    assert (edge.kind, edge.upstream, edge.below) == ("edge", ("east/b2@127.0.0.1:7422",), "outer")
    assert (near.upstream, near.below) == ((), ""), "below the replicas"
    assert plan.brokers.settings() == BrokerSettings(gct=0.1)
    assert set(plan.slots()) == {"east/p0", "west/p0"}, "only replicas hold events"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('name = "outer"', 'name = "inner"', '11: regions[0].cells[1].name = "inner": is used twice'),
        ('am = "inner"', 'am = "iner"', '12: regions[0].cells[1].upstream = "iner": must be one of inner, outer, or'),
        ('am = "outer"', 'am = "west"', '17: regions[0].edges[0].upstream = "west": must be one of inner, outer, or'),
        (
            "[[regions.cells]]\n",
            '[[regions.cells]]\nupstream = "outer"\n',
            '7: regions[0].cells[0].upstream = "outer": goes in a circle, inner - outer - inner: one of these',
        ),
        ('am = "inner"', 'am = "outer"', '12: regions[0].cells[1].upstream = "outer": goes in a circle, outer - outer'),
        ("1:7431", "1:7421", '20: regions[0].edges[1].address = "127.0.0.1:7421": is taken by regions[0].cells[0].rel'),
        ("1:7422", "1:7410", '25: regions[1].replicas[0] = "127.0.0.1:7410": is taken by regions[0].cells[1].relays[0'),
        ("127.0.0.1:7431", "here", '20: regions[0].edges[1].address = "here": must be HOST:PORT'),
        ('["127.0.0.1:7422"]', "[]", "13: regions[0].cells[1].relays = []: must be a list of at least 1"),
        (
            "address =",
            "adress =",
            '16: regions[0].edges[0].adress = "127.0.0.1:7430": unknown key; did you mean address',
        ),
        ("gct = 0.1", "gct = 0", "28: brokers.gct = 0: must be a number > 0"),
        ("gct = 0.1", "patience = 1.5", "28: brokers.patience = 1.5: must be at least two times status, 2 s"),
    ],
)
def test_an_error_names_file_line_key_value_and_what_is_allowed(tmp_path: Path, old: str, new: str, line: str) -> None:
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(BadInput) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:{line}")
    assert "\n" not in str(caught.value)


def test_an_edge_of_a_region_without_cells_must_not_name_one(tmp_path: Path) -> None:
    text = GOOD.partition("[[regions.cells]]")[0] + '[[regions.edges]]\naddress = "127.0.0.1:1"\nupstream = "inner"\n'
    with pytest.raises(BadInput, match='"inner": must be left out: the region has no cells'):
        load(written(tmp_path, text))


def test_a_plan_written_out_is_the_same_plan(tmp_path: Path) -> None:
    plan = load(written(tmp_path, GOOD))
    assert load(written(tmp_path, render(plan))) == plan


@pytest.mark.parametrize(("edges", "relays"), [(2, 0), (1, 3)])
def test_what_is_generated_can_be_read_back_and_edges_are_below_the_relays(
    tmp_path: Path, edges: int, relays: int
) -> None:
    made = generate(2, 2, edges=edges, relays=relays, port=0)
    assert load(written(tmp_path, render(made))) == made
    for region in made.regions:
        places = list(region.broker_places().values())
        assert [place.kind for place in places] == ["relay"] * relays + ["edge"] * edges
        cell = tuple(place.node for place in places if place.kind == "relay")
        assert {place.upstream for place in places if place.kind == "edge"} == {cell}
        assert {len(place.peers) for place in places if place.kind == "relay"} <= {relays - 1}
    addresses = [place.address for place in made.broker_places().values()]
    assert len({*addresses, *made.slots().values()}) == 2 * (2 + edges + relays)


def test_relays_without_an_edge_and_too_many_processes_are_refused() -> None:
    with pytest.raises(BadInput, match="2 relays without an edge carry nothing"):
        generate(1, 1, relays=2, port=0)
    with pytest.raises(BadInput, match="1 regions of 3 replicas, 300 edges and 0 relays are 303 processes, too many"):
        generate(1, 3, edges=300, port=0)


def test_config_check_counts_them(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    assert "good: 2 regions, 2 replicas, 3 relays, 2 edges, durable" in tidings("config", "check", path)
    east, west = tidings_json("config", "check", path)["regions"]
    assert (east["relays"], east["edges"], west["relays"], west["edges"]) == (3, 2, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ("edge", "--id", "east/e7"),
            1,
            "--id east/e7 is no edge of .*: there are east/e0, east/e1; add one to the file",
        ),
        (("relay", "--id", "west/b0"), 1, "--id west/b0 is no relay of .*: there are east/b0, "),
        (("edge", "--id", "north/e0"), 1, "region 'north' is unknown: there are east, west"),
        (("relay", "--id", "east/b0", "--listen", "127.0.0.1:1"), 2, "--listen is for replicas"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    import re

    assert re.search(said, tidings("serve", *arguments, "-c", written(tmp_path, GOOD), code=code))


def test_up_with_another_number_of_edges_than_the_directory_has_is_refused(tmp_path: Path) -> None:
    written(tmp_path, render(generate(1, 1, edges=2, relays=1, port=0)))
    said = tidings("up", "--edges", 3, "--detach", "--dir", tmp_path, code=1)
    assert "has edges = 2, not 3: omit --edges, or use another --dir" in said
    assert "has relays = 1, not 2" in tidings("up", "--relays", 2, "--detach", "--dir", tmp_path, code=1)


def test_the_file_of_the_guide_is_good(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs/guide/edges.md").read_text()
    plan = load(written(tmp_path, guide.partition("```toml\n")[2].partition("```")[0]))
    places = plan.broker_places()
    assert [(slot, place.below) for slot, place in places.items()] == [
        ("east/b0", ""),
        ("east/b1", ""),
        ("east/e0", "inner"),
        ("east/e1", ""),
    ]
