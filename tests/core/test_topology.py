"""A topology is checked when it is made, and tells what is near."""

from __future__ import annotations

import pytest

from tidings.core.errors import BadInput
from tidings.core.topology import Topology

US = Topology(("east", "mid", "west"), {("east", "mid"): 0.015, ("mid", "west"): 0.02, ("east", "west"): 0.035})


def test_a_link_counts_in_both_directions() -> None:
    assert US.latency("east", "west") == US.latency("west", "east") == 0.035
    assert US.latency("mid", "mid") == 0.0


def test_a_matrix_says_the_same_as_links() -> None:
    again = Topology.from_matrix(US.regions, [[0.0, 0.015, 0.035], [0.015, 0.001, 0.02], [0.035, 0.02, 0.0]])
    assert all(again.latency(a, b) == US.latency(a, b) for a in US.regions for b in US.regions if a != b)
    assert again.latency("mid", "mid") == 0.001


def test_nearest_is_the_candidate_with_the_least_latency() -> None:
    assert US.nearest("east", ["west", "mid"]) == "mid"
    assert US.nearest("east", US.regions) == "east"


def test_among_equals_the_first_region_is_nearest() -> None:
    even = Topology.from_matrix(("a", "b", "c"), [[0, 1, 1], [1, 0, 1], [1, 1, 0]])
    assert even.nearest("c", ["b", "a"]) == "a"


@pytest.mark.parametrize(
    ("regions", "links", "text"),
    [
        ((), {}, "at least one"),
        (("a", "a"), {}, "distinct"),
        (("a", "b"), {}, "no latency for link a-b"),
        (("a", "b"), {("a", "b"): 0.1, ("b", "a"): 0.2}, "one way"),
        (("a", "b"), {("a", "b"): -0.1}, "-0.1"),
        (("a", "b"), {("a", "b"): float("nan")}, "nan"),
        (("a", "b"), {("a", "c"): 0.1}, "a-c"),
    ],
)
def test_nonsense_is_bad_input(regions: tuple[str, ...], links: dict[tuple[str, str], float], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        Topology(regions, links)


def test_a_matrix_of_another_shape_is_bad_input() -> None:
    with pytest.raises(BadInput, match="2 rows of 2"):
        Topology.from_matrix(("a", "b"), [[0.0, 0.1]])


def test_an_unknown_region_is_bad_input() -> None:
    with pytest.raises(BadInput, match="east-moon"):
        US.latency("east", "moon")
    with pytest.raises(BadInput, match="moon"):
        US.nearest("east", ["moon"])
    with pytest.raises(BadInput):
        US.nearest("east", [])
