"""A campaign finds nothing where nothing is wrong, says what it saw, and repeats itself."""

from __future__ import annotations

import pytest

from tidings.core.errors import BadInput
from tidings.lab import campaign
from tidings.lab.seeds import Plan


def first(mood: str) -> int:
    return next(seed for seed in range(100) if Plan(seed).mood == mood)


@pytest.mark.parametrize("mood", ["calm", "aimed", "swarm"])
def test_a_seed_of_each_mood_passes(mood: str) -> None:
    outcome = campaign.run_seed(first(mood))
    assert outcome["violations"] == []
    assert outcome["mood"] == mood
    assert outcome["events"] >= 2_000 and outcome["clients"] >= 8 and outcome["regions"] >= 2
    assert outcome["sim_seconds"] >= 20.0


def test_the_same_seed_gives_the_same_outcome() -> None:
    seed = first("swarm")
    one, other = campaign.run_seed(seed), campaign.run_seed(seed)
    assert one["reports"] == other["reports"] and one["faults"] == other["faults"]
    assert one["events"] == other["events"]


def test_a_campaign_sums_up_and_names_the_goals_it_missed() -> None:
    calm = first("calm")
    result = campaign.run("sprinkler", range(calm, calm + 1))
    assert result["violations"] == []
    assert "full restart" in result["unreached"] and "full restart" not in result["reached"]
    assert set(result["reached"]).isdisjoint(result["unreached"])
    assert {*result["reached"], *result["unreached"]} == set(campaign.GOALS)
    assert result["faults"]["crash"] == 0
    assert result["seeds"] == f"{calm}..{calm + 1}"


def test_an_unknown_target_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadInput, match=r"gryphon.*sprinkler"):
        campaign.run("gryphon", range(1))


def test_moods_and_aims_all_occur_among_the_first_seeds() -> None:
    moods = [Plan(seed).mood for seed in range(40)]
    assert set(moods) == {"calm", "aimed", "swarm"}
    assert moods.count("swarm") > moods.count("calm")
