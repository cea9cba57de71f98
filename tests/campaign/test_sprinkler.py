"""A campaign finds nothing where nothing is wrong, says what it saw, and repeats itself."""

from __future__ import annotations

import pytest

from tidings.campaign.demands import Demands
from tidings.campaign.sprinkler import aimed_faults, campaign
from tidings.campaign.sprinkler.fault_plan import FaultPlan
from tidings.campaign.sprinkler.misleading import Lies
from tidings.core.rows import data_rows
from tidings.core.span import Span
from tidings.protocols.nodes.client import Client, ReadAsOf, ReadDone
from tidings.protocols.nodes.replica import StreamDef
from tidings.protocols.replication.recovery import Recovery
from tidings.sim.build import Deployment
from tidings.sim.recorder import Recorder
from tidings.sim.run import failures


def first(mood: str) -> int:
    return next(seed for seed in range(100) if FaultPlan(seed).mood == mood)


@pytest.mark.parametrize("mood", ["calm", "aimed", "swarm"])
def test_a_seed_of_each_mood_passes(mood: str) -> None:
    outcome = campaign.run_seed(first(mood))
    assert outcome["violations"] == []
    assert outcome["mood"] == mood
    assert outcome["events"] >= 2_000 and outcome["clients"] >= 8 and outcome["regions"] >= 2
    assert outcome["sim_seconds"] >= 20.0


ONCE = {
    157: "a head crashed before its disk had an event of its own, and wrote another under its number in the same epoch",
    625: "an old head and a new one wrote events of their own under one number at the same moment",
    632: "a scripted client that takes slowly could not reach the end in time",
    657: "a scripted client whose chain was away did one thing per tick and was not done in time",
    1063: "an opening of a durable subscription that was answered last took it back when nothing came any more",
    1374: "answers that were cut differently exceeded the window of a subscriber",
    1632: "a new tail knew only a former chain of the other region, which did not know it either",
    1879: "the only member of a chain took its disk for too old beside a newcomer with a snapshot of its last record",
    2392: "clients that ask again after a second of silence stalled for longer than was allowed for",
    2501: "a head collected by age when the run was as good as over",
}


@pytest.mark.parametrize("seed", ONCE)
def test_a_seed_that_once_found_something_finds_nothing(seed: int) -> None:
    assert campaign.run_seed(seed)["violations"] == [], ONCE[seed]


def test_the_same_seed_gives_the_same_outcome() -> None:
    seed = first("swarm")
    one, other = campaign.run_seed(seed), campaign.run_seed(seed)
    assert one["reports"] == other["reports"] and one["faults"] == other["faults"]
    assert one["events"] == other["events"]


def test_a_campaign_sums_up_and_names_the_goals_it_missed() -> None:
    calm = first("calm")
    result = campaign.summary("sprinkler", range(calm, calm + 1), [campaign.run_seed(calm)])
    assert result["violations"] == []
    assert "full restart" in result["unreached"] and "full restart" not in result["reached"]
    assert set(result["reached"]).isdisjoint(result["unreached"])
    assert {*result["reached"], *result["unreached"]} == set(campaign.GOALS)
    assert result["faults"]["crash"] == 0
    assert result["seeds"] == f"{calm}..{calm + 1}"


def test_moods_and_aims_all_occur_among_the_first_seeds() -> None:
    moods = [FaultPlan(seed).mood for seed in range(40)]
    assert set(moods) == {"calm", "aimed", "swarm"}
    assert moods.count("swarm") > moods.count("calm")
    plans = [FaultPlan(seed) for seed in range(100)]
    struck = {aim for plan in plans if plan.amnesia is None for _, aim in plan.aims}
    assert struck == {*aimed_faults.AIMS, *aimed_faults.CUTS}
    forgetful = [plan for plan in plans if plan.amnesia is not None]
    assert {len(plan.scenario.regions) for plan in forgetful} == {2, 3}


def test_a_region_that_forgets_everything_must_declare_what_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = map(FaultPlan, range(100))
    seed = next(
        plan.seed for plan in plans if plan.amnesia is not None and not plan.scripted_clients
    )  # they define more streams
    outcome = campaign.run_seed(seed)
    assert outcome["violations"] == []
    assert outcome["reports"]["declared_lost"] == 3, "of its stream, and of its two internal streams that others have"
    monkeypatch.setattr(Recovery, "_loss", lambda *args: None)  # then it gives numbers out again
    assert {"acknowledged", "integrity"} <= {name for name, _ in campaign.run_seed(seed)["violations"]}


def test_a_link_is_cut_for_long_only_where_there_is_a_way_round_and_nothing_else_strikes() -> None:
    plans = [plan for plan in map(FaultPlan, range(200)) if any(aim is aimed_faults.cut_long for _, aim in plan.aims)]
    assert plans
    assert all(len(plan.aims) == 1 and len(plan.scenario.regions) == 3 for plan in plans)


@pytest.mark.parametrize(("method", "name"), [("check", "check"), ("handle", "crash")])
def test_a_failed_check_is_told_apart_from_a_crash(method: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*args: object) -> None:
        raise AssertionError("does not add up")

    def handle(*args: object) -> None:
        raise AssertionError("no such thing")

    plan = FaultPlan(first("calm"))
    deployment = Deployment(plan.scenario, plan.seed, trace=False)
    monkeypatch.setattr(Client, method, {"check": check, "handle": handle}[method])
    deployment.world.start()
    deployment.world.run(1.0)
    assert [violation.invariant for violation in failures(deployment)] == [name]


def test_a_demand_that_is_not_met_is_a_violation_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    demands = Demands()
    demands.note("r0/p0", "kept_for_nobody", 0, 0)
    assert demands.violations == []
    demands.note("r0/p0", "kept_for_nobody", 2, 0)
    assert [(each.invariant, each.where) for each in demands.violations] == [("kept_for_nobody", {"node": "r0/p0"})]
    monkeypatch.setattr(campaign, "EVENTS_LEAST", 1_000_000)
    outcome = campaign.run_seed(first("calm"))
    assert [name for name, _ in outcome["violations"]] == ["events_lacking"]


def test_an_answer_is_judged_by_its_question() -> None:
    recorder = Recorder([StreamDef("s", "r0")], {})
    other = Span("s", 1, 3, 3, data_rows(1, None, [b"a", b"b"]))
    recorder.on_deliver(1.0, "r0/c0", 1, ReadDone(ReadAsOf("s", 1, 3, 9), (other,)))
    (receipt,) = recorder.delivered.rows
    assert receipt[4:7] == (1, 3, 9) and receipt[8] == 2


def test_a_lie_that_nobody_refuses_is_believed() -> None:
    lies = Lies()
    lies.told.update(["a", "a", "b"])
    for node, name in (
        ("a", "contradiction"),
        ("a", "tombstone_delivered"),
        ("b", "contradiction"),
        ("b", "contradiction"),
    ):
        lies.on_report(1.0, node, name, 1.0)
    assert lies.believed == 1
