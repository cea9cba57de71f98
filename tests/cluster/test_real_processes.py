"""Real processes, broken for a few seconds: the demo, one seed of the campaign, two power cuts, and a planted bug."""

from __future__ import annotations

import pytest

from tidings.campaign.cluster import campaign as cluster_campaign
from tidings.campaign.cluster import faults as cluster_faults
from tidings.campaign.cluster import power_cuts
from tidings.campaign.cluster.campaign import ClusterFaultPlan, environment_with
from tidings.campaign.cluster.planted_bugs import SYNC, mutants, patched
from tidings.lab.demo import Demo
from tidings.net.loop import run


@pytest.mark.check
def test_a_small_demo_passes_its_audit() -> None:
    result = run(Demo(regions=2, replicas=2, clients=9, seconds=6.0).run())
    assert result["audit"]["first"] == []
    assert len(result["tapes"]) == 2 and all(each["events"] for each in result["tapes"].values())
    assert result["audit"]["passed"] and (result["lost"], result["duplicated"]) == (0, 0)
    assert [each["kind"] for each in result["faults"]] == [
        "cut",
        "heal",
        "kill edge",
        *["kill head", "restart"],
        *["kill tail", "restart"],
    ]
    assert result["published"] > 200 and result["delivered"] > result["published"]
    assert 0 < result["collected"] == result["audit"]["collected_as_the_owners_count"]


@pytest.mark.check
def test_a_seed_of_the_campaign_finds_nothing() -> None:
    outcome = cluster_campaign.run_seed(0)
    assert outcome["violations"] == []
    assert outcome["events"] > 200 and outcome["faults"]


@pytest.mark.check
def test_a_region_in_memory_that_is_killed_is_judged_by_what_it_declares_lost() -> None:
    outcome = cluster_campaign.run_seed(112)
    assert outcome["violations"] == []
    assert outcome["reports"]["memory_lost"] and outcome["reports"]["ranges_lost"]


@pytest.mark.check
def test_a_single_region_in_memory_that_is_killed_begins_again_by_the_command_that_it_names() -> None:
    outcome = cluster_campaign.run_seed(7700002)
    assert outcome["violations"] == []
    assert outcome["reports"]["memory_lost"] == 1


@pytest.mark.check
def test_nothing_acknowledged_is_lost_when_the_power_is_cut() -> None:
    result = power_cuts.run(2, replicas=2)
    assert result["violations"] == []
    assert result["power_cuts"] == 2 and result["put_back"] == 6 and all(result["between_cuts"])


@pytest.mark.check
def test_without_the_sync_a_power_cut_is_found_to_lose_events(tmp_path_factory: pytest.TempPathFactory) -> None:
    tree = patched(SYNC, tmp_path_factory.mktemp("patched"))
    result = power_cuts.run(1, environment=environment_with(tree), replicas=2, patience=3.0)
    assert "acknowledged" in {each["invariant"] for each in result["violations"]}


def test_seeds_differ_and_repeat_their_intentions() -> None:
    plans = [ClusterFaultPlan(seed) for seed in range(40)]
    assert {episode for plan in plans for episode in plan.episodes} == set(cluster_faults.EPISODES)
    assert {plan.regions for plan in plans} == {1, 2} and {plan.replicas for plan in plans} == {2, 3}
    assert [plan.episodes for plan in plans] == [ClusterFaultPlan(seed).episodes for seed in range(40)]


@pytest.mark.parametrize("planted", mutants(), ids=lambda planted: planted.mutant.id)
def test_what_is_planted_in_replicas_still_applies(planted: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    tree = patched(planted.mutant, tmp_path_factory.mktemp("patched"))  # type: ignore[attr-defined]
    assert (tree / "tidings" / "__init__.py").exists()
