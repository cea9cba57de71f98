"""The link cut: what is measured from receipts, how each claim is judged, and one short real run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from tidings.core.errors import BadInput
from tidings.lab import experiments, study
from tidings.lab.claims import Claim, Findings
from tidings.lab.sprinkler import link_cut, link_verdicts
from tidings.lab.sprinkler.link_cut import (
    BIN,
    REGIONS,
    STREAM,
    Latency,
    Observed,
    Rates,
    ReceiptTimes,
    Silence,
    Timeline,
)
from tidings.lab.study import Row, Sql, Study
from tidings.results.ledger import Ledger
from tidings.sim.scenario import Cut, Heal, Kill, Restart, load

TIME = Timeline(cut=19.0, kill=30.0, restart=35.0, repair=41.0, end=60.0, period=1.0)
LINK = (("r3", "s2"), ("r2", "s3"))  # the flows over the link
FILE = Path(__file__).parents[2] / "scenarios" / "sprinkler-link-cut.toml"


# --- measuring ------------------------------------------------------------------------------------------


def receipts(*rows: tuple[int, str, str, int, int, float]) -> ReceiptTimes:
    """From (client, region, stream, hi, rows, time)."""
    client, region, stream, hi, count, time = zip(*sorted(rows, key=lambda row: (row[0], row[5])), strict=True)
    streams = list(STREAM.values())
    return ReceiptTimes(
        np.array(client),
        np.array([REGIONS.index(name) for name in region]),
        np.array([streams.index(name) for name in stream]),
        np.array(hi),
        np.array(count),
        np.array(time),
    )


def test_rates_are_events_per_second_of_an_average_client() -> None:
    found = receipts((0, "r0", "s1", 101, 100, 0.1), (1, "r0", "s1", 51, 50, 0.7), (2, "r1", "s1", 11, 10, 0.9))
    rates = link_cut.rates(found, {"r0": 2, "r1": 1, "r2": 1, "r3": 1}, 1.0)
    assert rates.flows["r0", "s1"].tolist() == [100.0, 50.0]
    assert rates.flows["r1", "s1"].tolist() == [0.0, 20.0]
    assert rates.mean.tolist() == [40.0, 24.0]


def test_latency_lasts_until_the_last_client_has_the_whole_batch() -> None:
    found = receipts(
        *[(at, region, "s0", 11, 10, 1.0 + at / 10) for at, region in enumerate(REGIONS)],
        (0, "r0", "s0", 15, 4, 2.0),
        (0, "r0", "s0", 21, 6, 2.5),
    )
    latency = link_cut.latency(found, [(11, 0.5), (21, 1.5), (31, 9.0)], dict.fromkeys(REGIONS, 1), end=10.0)
    assert latency.published.tolist() == [0.5, 1.5]  # the third may still be under way
    assert latency.all[0] == pytest.approx(0.8)
    assert latency.to["r0"][1] == pytest.approx(1.0)
    assert np.isinf(latency.all[1])


def test_a_client_that_received_nothing_at_all_is_not_overlooked() -> None:
    found = receipts(*[(at, region, "s0", 11, 10, 1.0) for at, region in enumerate(REGIONS)])
    latency = link_cut.latency(found, [(11, 0.5)], {**dict.fromkeys(REGIONS, 1), "r2": 2}, end=10.0)
    assert latency.to["r1"].tolist() == [0.5]
    assert np.isinf(latency.to["r2"][0])


def test_a_level_is_the_median_of_the_means_of_the_bins() -> None:
    latency = Latency(np.array([0.0, 0.1, 0.6, 1.2, 9.0]), {"r0": np.array([1.0, 3.0, 5.0, 9.0, 99.0])})
    assert latency.binned([(0.0, 2.0)]).tolist() == [2.0, 5.0, 9.0]
    assert latency.level([(0.0, 2.0)]) == 5.0


def test_a_silence_that_never_ends_lasts_to_the_end() -> None:
    lively = [(0, "r0", "s0", at, 1, float(at)) for at in range(1, 10)]
    dead = [(1, "r0", "s0", at, 1, float(at)) for at in range(1, 5)]
    assert link_cut.silence(receipts(*lively), 3.5, 5.0, 10.0) == Silence(3.0, 4.0)
    assert link_cut.silence(receipts(*lively, *dead), 3.5, 5.0, 10.0) == Silence(4.0, 10.0)


def test_levels_are_measured_where_no_replica_is_lost_or_added() -> None:
    assert TIME.before == [(11.0, 18.5)]
    assert replace(TIME, cut=6.0).before == [(3.0, 5.5)]
    assert TIME.outage == [(22.0, 29.5), (39.5, 41.0)]
    assert replace(TIME, kill=50.0, restart=55.0).after == [(44.0, 49.5)]


# --- judging --------------------------------------------------------------------------------------------


def observed() -> Observed:
    """A run in which everything is as the paper says, drawn by hand."""
    starts = np.arange(120) * BIN
    flows = {(region, stream): np.full(120, 20_000.0) for region in REGIONS for stream in STREAM.values()}
    for flow in LINK:
        flows[flow][38:40] = 0.0
        flows[flow][40:48] = 25_000.0
        flows[flow][82] = 21_000.0
    published = np.arange(5, 1160) * 0.05
    detour = np.where((published >= 20) & (published < 41), 0.24, 0.18)
    waiting = (published >= 19) & (published < 20)
    to_r3 = np.where(waiting, 20.1 - published, detour)
    level = np.full(len(published), 0.2)
    one = {"r0": level, "r1": level, "r2": level / 3, "r3": to_r3}
    other = {"r0": level / 3, "r1": level, "r2": level, "r3": level}
    return Observed(
        TIME,
        Rates(starts, flows, dict.fromkeys(REGIONS, 10)),
        {"s2": Latency(published, one), "s0": Latency(published, other)},
        cut_off=Silence(19.0, 20.1),
        fail_over=Silence(30.0, 31.6),
        rejoin=Silence(36.5, 37.5),
        sources={("r1", "s2"): "r2", ("r3", "s2"): "r2"},
        violations=0,
    )


def verdicts(seen: Observed) -> dict[str, Claim]:
    return {claim.id: claim for claim in (judge(seen) for judge in link_verdicts.JUDGES)}


def differing(seen: Observed) -> list[str]:
    return [name for name, claim in verdicts(seen).items() if not claim.holds]


def with_flows(bins: slice, rate: float, flows: Sequence[tuple[str, str]] = LINK) -> Observed:
    seen = observed()
    for flow in flows:
        seen.rates.flows[flow][bins] = rate
    return seen


def with_latency(stream: str, lo: float, hi: float, seconds: float, region: str = "r1") -> Observed:
    seen = observed()
    latency = seen.latency[stream]
    latency.to[region] = np.where((latency.published >= lo) & (latency.published < hi), seconds, latency.to[region])
    return seen


def at_once() -> Observed:
    """All that both flows missed in one bin."""
    seen = with_flows(slice(40, 48), 20_000.0)
    for flow in LINK:
        seen.rates.flows[flow][40] = 60_000.0
    return seen


def slowly() -> Observed:
    """The same in eight seconds."""
    return with_flows(slice(40, 56), 22_500.0)


def faster(seconds: float) -> Observed:
    """All latencies less by so much."""
    seen = observed()
    for latency in seen.latency.values():
        for region in REGIONS:
            latency.to[region] = np.maximum(latency.to[region] - seconds, 0.01)
    return seen


def test_every_claim_holds_when_all_is_as_the_paper_says() -> None:
    assert differing(observed()) == []
    assert set(verdicts(observed())) == {claim for each in link_verdicts.EXPERIMENTS for claim in each.claims}


BROKEN: dict[str, tuple[list[str], Callable[[], Observed]]] = {
    "no dip": (["SP5.dip", "SP5.catch-up", "SP5.catch-up-seconds"], lambda: with_flows(slice(38, 48), 20_000.0)),
    "another flow falls too": (["SP5.dip"], lambda: with_flows(slice(38, 40), 10_000.0, [("r0", "s1")])),
    "the flows stay away": (["SP5.recovery"], lambda: replace(observed(), cut_off=Silence(19.0, 21.2))),
    "the throughput stays low": (
        ["SP5.recovery", "SP5.catch-up", "SP5.catch-up-seconds"],
        lambda: with_flows(slice(40, 48), 8_000.0),
    ),
    "most of what was missed is never sent": (
        ["SP5.catch-up", "SP5.catch-up-seconds"],
        lambda: with_flows(slice(41, 48), 20_000.0),
    ),
    "more comes than was missed": (["SP5.catch-up"], lambda: with_flows(slice(40, 48), 26_000.0)),
    "what was missed comes at once": (["SP5.catch-up-seconds"], at_once),
    "what was missed comes very slowly": (["SP5.catch-up-seconds"], slowly),
    "nothing happens at the repair": (["SP5.glitch"], lambda: with_flows(slice(82, 83), 20_000.0)),
    "the repair is as bad as the cut": (["SP5.glitch"], lambda: with_flows(slice(82, 84), 0.0, [("r0", "s1")])),
    "the origins differ from the start": (["SP6.before", "SP6.level"], lambda: with_latency("s0", 0.0, 60.0, 0.3)),
    "both origins are faster than the paper's": (["SP6.level"], lambda: faster(0.1)),
    "an origin never reaches all": (
        ["SP6.before", "SP6.level", "SP6.origin-0"],
        lambda: with_latency("s0", 0.0, 60.0, np.inf),
    ),
    "nothing waits at the cut": (["SP6.peak"], lambda: with_latency("s2", 19.0, 20.0, 0.18, "r3")),
    "the wait goes on": (["SP6.peak"], lambda: with_latency("s2", 20.0, 22.0, 0.5)),
    "the detour costs nothing": (["SP6.detour"], lambda: with_latency("s2", 20.0, 41.0, 0.18, "r3")),
    "the detour costs too much": (["SP6.detour"], lambda: with_latency("s2", 20.0, 41.0, 0.35)),
    "the detour stays": (["SP6.after"], lambda: with_latency("s2", 41.0, 60.0, 0.23)),
    "a batch is never delivered": (["SP6.after"], lambda: with_latency("s2", 45.0, 58.0, np.inf)),
    "the other origin peaks too": (["SP6.origin-0"], lambda: with_latency("s0", 19.0, 20.0, 0.5)),
    "the other origin makes a detour too": (["SP6.origin-0"], lambda: with_latency("s0", 22.0, 41.0, 0.24)),
    "nobody replaces the head": (["ours.fail-over"], lambda: replace(observed(), fail_over=Silence(30.0, 60.0))),
    "nobody finds the new tail": (["ours.rejoin"], lambda: replace(observed(), rejoin=Silence(36.5, 39.0))),
    "an event is lost": (["ours.invariants"], lambda: replace(observed(), violations=1)),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_claim_differs_when(what: str) -> None:
    expected, make = BROKEN[what]
    assert differing(make()) == expected


WHY: dict[str, tuple[str, Callable[[], Observed], str, str]] = {  # claim, run, what is said, and what is not
    "a catch-up": ("SP5.catch-up", observed, "", "missed"),
    "nothing missed": ("SP5.catch-up", lambda: with_flows(slice(38, 48), 20_000.0), "Nothing was missed", "spare"),
    "nothing missed, no time": (
        "SP5.catch-up-seconds",
        lambda: with_flows(slice(38, 48), 20_000.0),
        "Nothing was missed beyond the noise: throughput was 80.0 k events/s at the lowest.",
        "spare",
    ),
    "nothing regained": (
        "SP5.catch-up-seconds",
        lambda: with_flows(slice(40, 48), 20_000.0),
        "10,000 events per client were missed; throughput was 80.0 k events/s at the highest, not above the noise.",
        "spare",
    ),
    "some regained": (
        "SP5.catch-up",
        lambda: with_flows(slice(41, 48), 20_000.0),
        "10,000 events per client were missed, 8,750 of them did not come: 4,375 of s3 in r2, 4,375 of s2 in r3. "
        "On the way between r2 and r3, which is longer now, are about 300 more than before.",
        "spare",
    ),
    "all at once": (
        "SP5.catch-up-seconds",
        at_once,
        "10,000 events per client were missed, 100% regained: at least 20.0 k events/s (25.0%) was to spare. All of it "
        "takes 5 s where only 2.0 k events/s (2.5%) is.",
        "no more than",
    ),
    "slowly": (
        "SP5.catch-up-seconds",
        slowly,
        "100% regained: throughput rose by no more than 1.2 k events/s (1.6%)",
        "spare",
    ),
    "two origins alike": ("SP6.before", observed, "", "200 ms"),
    "two origins apart": (
        "SP6.before",
        lambda: with_latency("s0", 0.0, 60.0, 0.3),
        "Of r0's 300 ms the link to r3, its farthest, takes 40 ms, all else 260 ms; of r2's 200 ms the link to r0",
        "paper",
    ),
    "the paper's level": ("SP6.level", observed, "", "paper"),
    "another level": (
        "SP6.level",
        lambda: faster(0.1),
        "of r2's 100 ms the link to r0, its farthest, takes 35 ms, all else 65 ms. The paper's level would take 160 ms "
        "and 165 ms beside these links. Here a region has 10 clients;",
        "1000",
    ),
    "no level": (
        "SP6.level",
        lambda: with_latency("s0", 0.0, 60.0, np.inf),
        "In most half seconds a batch of r0 never reached all clients; of r2's 200 ms",
        "inf",
    ),
}


@pytest.mark.parametrize("what", WHY)
def test_a_reason_is_what_the_data_shows(what: str) -> None:
    claim, make, said, unsaid = WHY[what]
    why = verdicts(make())[claim].why
    assert said in why and unsaid not in why
    assert bool(why) == bool(said)


def test_a_later_ripple_does_not_make_a_catch_up_longer() -> None:
    seen = at_once()
    seen.rates.flows["r0", "s1"][52] = 20_100.0
    assert link_verdicts.CatchUp.of(seen).seconds == 0.5


def test_a_catch_up_of_five_seconds_is_measured_to_its_end() -> None:
    found = link_verdicts.CatchUp.of(with_flows(slice(40, 50), 24_000.0))
    assert (found.seconds, found.regained, found.unfinished) == (5.0, 1.0, False)


def test_a_catch_up_that_is_not_over_is_not_said_to_last_so_long() -> None:
    seen = replace(with_flows(slice(40, 58), 22_500.0), time=replace(TIME, repair=26.0))
    claim = verdicts(seen)["SP5.catch-up-seconds"]
    assert not claim.holds and claim.measured.startswith("at least 6 s") and "spare" not in claim.why


def test_a_level_that_does_not_return_is_explained_by_region_and_path() -> None:
    seen = with_latency("s2", 41.0, 60.0, 0.23)
    seen = replace(seen, sources={("r1", "s2"): "r0"})
    why = verdicts(seen)["SP6.after"].why
    assert "r1 200 ms -> 230 ms, through r0" in why
    assert "r3 180 ms -> 180 ms." in why
    assert "killed at 30 s" in why and "fail-over" in why
    seen = replace(seen, time=replace(TIME, kill=np.inf, restart=np.inf))
    assert "fail-over" not in verdicts(seen)["SP6.after"].why


# --- keeping --------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> Sql:
    """Questions over some rows, by another engine than Spark, which would take seconds to start."""
    database = sqlite3.connect(":memory:")
    database.row_factory = sqlite3.Row
    names = list(rows[0])
    database.execute(f"create table results ({', '.join(names)})")
    database.executemany(
        f"insert into results values ({', '.join('?' * len(names))})", [tuple(r.values()) for r in rows]
    )
    return lambda query: [dict(found) for found in database.execute(query)]


def test_what_was_observed_is_kept_in_plain_columns_and_read_by_sql() -> None:
    seen = with_latency("s2", 45.0, 46.0, np.inf)
    rows = link_cut.rows(seen)
    assert {type(value) for each in rows for value in each.values()} == {str, int, float, type(None)}
    (lowest,) = table(rows)("select min(value) low from results where kind = 'flow' and start >= 19 and start < 20")
    assert lowest == {"low": 0.0}
    shuffled = [rows[at] for at in np.random.default_rng(1).permutation(len(rows))]
    read = link_cut.read(table(shuffled))
    assert verdicts(read) == verdicts(seen)
    assert (read.time, read.sources, read.rates.clients) == (seen.time, seen.sources, seen.rates.clients)
    assert read.rates.starts.tolist() == seen.rates.starts.tolist()
    for flow, values in seen.rates.flows.items():
        assert read.rates.flows[flow].tolist() == values.tolist()
    for stream, latency in seen.latency.items():
        assert read.latency[stream].published.tolist() == latency.published.tolist()
        for region, values in latency.to.items():
            assert read.latency[stream].to[region].tolist() == values.tolist()


def test_rows_of_a_task_survive_the_ledger(tmp_path: Path) -> None:
    rows = link_cut.rows(observed())
    kept = Ledger(tmp_path)
    kept.add(rows)
    kept.flush()
    assert kept.table().to_pylist() == rows


# --- running --------------------------------------------------------------------------------------------


def test_the_scenario_file_is_the_experiment_at_scale_quick() -> None:
    assert load(FILE) == link_cut.scenario("quick")


def test_a_short_run_shows_dip_recovery_catch_up_peak_and_detour(tmp_path: Path) -> None:
    plan = link_cut.scenario()
    change = msgspec.structs.replace
    plan = change(
        plan,
        scenario=change(plan.scenario, seconds=16.0),
        regions=tuple(change(region, clients=2) for region in plan.regions),
        publishers=tuple(change(each, rate=4000.0, batch=200, stop=16.0) for each in plan.publishers),
        faults=(Cut(4.0, "r2", "r3"), Heal(7.0, "r2", "r3"), Kill(10.0, "r1/p0"), Restart(12.0, "r1/p0")),
        protocol=change(plan.protocol, advertise_period=0.5),
    )
    found = link_verdicts.report(link_cut.observe(plan, seed=1), tmp_path)
    holds = {claim.id for claim in found.claims if claim.holds}
    assert {"SP5.dip", "SP5.recovery", "SP5.catch-up", "SP6.peak", "SP6.detour"} <= holds
    assert {"ours.fail-over", "ours.invariants"} <= holds
    for path in [*found.figures["SP5"], *found.figures["SP6"], *found.data["SP5"], *found.data["SP6"]]:
        assert Path(path).stat().st_size > 1000


def test_a_machine_that_raises_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(deployment: Any, progress: Any) -> None:
        deployment.world.failures.append(SimpleNamespace(traceback="AssertionError: credit"))

    monkeypatch.setattr(link_cut, "simulate", crash)
    with pytest.raises(RuntimeError, match="credit"):
        link_cut.observe(link_cut.scenario(), 0)


@pytest.fixture
def studied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Which studies ran, at which scale; one that is not the link cut finds nothing."""
    ran: list[tuple[str, str]] = []

    def run(studies: Sequence[Study], scale: str, out: Path, master: str, progress: Any) -> dict[str, Findings]:
        ran.extend((each.name, scale) for each in studies)
        claims = [Claim("SP5.dip", "s", "e", "m", True), Claim("SP6.peak", "s", "e", "m", False, "w")]
        figures, data = {"SP5": ["5.png"], "SP6": ["6.png"]}, {"SP5": [], "SP6": ["6.parquet"]}
        found = Findings(claims, figures, data)
        return {each.name: found if each.name == "link-cut" else Findings([]) for each in studies}

    monkeypatch.setattr(study, "run", run)
    return ran


def test_a_paper_is_all_its_experiments_and_a_shared_study_runs_once(
    studied: list[tuple[str, str]], tmp_path: Path
) -> None:
    found = experiments.run("sprinkler", "quick", tmp_path / "new")
    wanted = {each.study for each in experiments.EXPERIMENTS.values() if each.paper == "sprinkler"}
    assert sorted(studied) == sorted((name, "quick") for name in wanted)
    assert [(claim["id"], claim["verdict"]) for claim in found["claims"]] == [
        ("SP5.dip", "holds"),
        ("SP6.peak", "differs"),
    ]
    assert (found["figures"], found["data"]) == (["5.png", "6.png"], ["6.parquet"])


def test_an_experiment_reports_its_own_claims_only(studied: list[tuple[str, str]], tmp_path: Path) -> None:
    found = experiments.run("SP5", "full", tmp_path)
    assert [claim["id"] for claim in found["claims"]] == ["SP5.dip"]
    assert studied == [("link-cut", "full")]
    assert (found["experiment"], found["scale"], found["figures"]) == ("SP5", "full", ["5.png"])


def test_an_unknown_experiment_is_answered_with_what_exists(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'SP99': must be one of SP3, SP4, SP5, .*sprinkler"):
        experiments.run("SP99", "quick", tmp_path)
    with pytest.raises(BadInput, match="must be one of quick, full"):
        experiments.run("SP5", "huge", tmp_path)
