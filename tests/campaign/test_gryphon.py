"""Gryphon's campaign finds nothing where nothing is wrong, says what it saw, and repeats itself."""

from __future__ import annotations

import pytest

from tidings.campaign.gryphon import campaign
from tidings.campaign.gryphon.plan import Plan
from tidings.campaign.mutation import mutants

CAMPAIGN = "tidings.campaign.gryphon.campaign"
LIMIT = 60.0


def first(mood: str) -> int:
    return next(seed for seed in range(100) if Plan(seed).mood == mood)


@pytest.mark.parametrize("mood", ["calm", "swarm"])
def test_a_seed_of_each_mood_passes(mood: str) -> None:
    outcome = campaign.run_seed(first(mood))
    assert outcome["violations"] == []
    assert outcome["mood"] == mood
    assert outcome["events"] >= 50 and outcome["clients"] >= 6
    assert bool(set(outcome["faults"]) & set(campaign.FAULTS)) == (mood == "swarm")


def test_the_same_seed_gives_the_same_outcome() -> None:
    one, other = campaign.run_seed(first("swarm")), campaign.run_seed(first("swarm"))
    assert [one[each] for each in ("hash", "reports", "faults")] == [
        other[each] for each in ("hash", "reports", "faults")
    ]


def test_the_first_seeds_have_worlds_of_all_kinds() -> None:
    plans = [Plan(seed) for seed in range(60)]
    assert {len(plan.sites) for plan in plans} == {1, 2}
    assert {site.replicas for plan in plans for site in plan.sites} == {1, 2, 3}
    assert {len(set(site.above.values())) for plan in plans for site in plan.sites} >= {1, 2, 3}
    assert {bool(plan.deleted) for plan in plans} == {True, False}
    wishes = [wish for plan in plans for site in plan.sites for each in site.readers.values() for wish in each]
    assert {wish.lo < 0 for wish in wishes} == {bool(wish.name) for wish in wishes} == {True, False}


def test_a_summary_names_the_goals_that_were_missed() -> None:
    calm = first("calm")
    result = campaign.summary("gryphon", range(calm, calm + 1), [campaign.run_seed(calm)])
    assert "sideways routing" in result["unreached"] and result["faults"]["isolated"] == 0
    assert {*result["reached"], *result["unreached"]} == set(campaign.GOALS)


@pytest.mark.parametrize(
    ("name", "judge"), [("version-before-upstream-widened", "false_claim"), ("silence-for-unknown", "convergence")]
)
def test_a_quick_planted_bug_is_caught_by_one_of_the_first_seeds(name: str, judge: str) -> None:
    (case,) = [case for case in mutants.planted(CAMPAIGN) if case.id == name]
    verdict = mutants.hunt(case, range(12), LIMIT)[-1]
    assert judge in verdict.by, verdict.detail


@pytest.mark.check
@pytest.mark.parametrize("case", mutants.planted(CAMPAIGN), ids=lambda case: case.id)
def test_a_planted_bug_is_caught_by_a_seed_of_the_campaign(case: mutants.Case) -> None:
    verdict = mutants.hunt(case, mutants.in_turns(range(mutants.SEEDS), case.campaign), LIMIT)[-1]
    assert verdict.by, f"{case.id} escapes {mutants.SEEDS} seeds"
