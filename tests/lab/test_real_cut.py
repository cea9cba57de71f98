"""A real link cut beside the simulated one: from what clients remember to claims, figures, and one short real run."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from msgspec.structs import replace as replace_struct

from tidings.campaign.cluster.client_trace import ClientReceipt, Evidence, Sent
from tidings.lab import experiments
from tidings.lab.claims import Claim
from tidings.lab.sprinkler import calibration_verdicts, link_cut, real_cut
from tidings.lab.sprinkler.calibration import LoadLine, Model
from tidings.lab.sprinkler.link_cut import BIN, REGIONS, STREAM, Latency, Observed, Rates, Silence, Timeline
from tidings.lab.sprinkler.real_cut import Measured
from tidings.net.loop import run as run_loop
from tidings.results import code_hash
from tidings.sim.measured import HOP, MEASURED

TIME = Timeline(10.0, math.inf, math.inf, 17.0, 25.0, 1.0)
BINS = 50


def observed(level: float = 0.2, waiting: float = 11.1) -> Observed:
    """A run as the paper says; ``waiting``: until when the flows over the link do."""
    flows = {(region, stream): np.full(BINS, 1000.0) for region in REGIONS for stream in STREAM.values()}
    for flow in (("r3", "s2"), ("r2", "s3")):
        flows[flow][20:22] = 0.0
        flows[flow][22:30] = 1250.0
        flows[flow][34] = 1100.0
    published = np.arange(5, 225) * 0.1
    usual = np.full(len(published), level)
    to_r3 = np.where((published >= 11) & (published < 17), level + 0.04, usual)
    to_r3 = np.where((published >= 10) & (published < 11), waiting - published, to_r3)
    return Observed(
        TIME,
        Rates(np.arange(BINS) * BIN, flows, dict.fromkeys(REGIONS, 2)),
        {
            "s0": Latency(published, dict.fromkeys(REGIONS, usual)),
            "s2": Latency(published, {"r0": usual, "r1": usual, "r2": usual / 3, "r3": to_r3}),
        },
        cut_off=Silence(10.0, waiting),
        fail_over=Silence(math.inf, math.inf),
        rejoin=Silence(math.inf, math.inf),
        sources={},
        violations=0,
    )


CURVES = (real_cut.throughput_distance, real_cut.latency_distance)


def claims(real: Observed, simulated: Observed) -> dict[str, Claim]:
    made = Measured(real, 0.7, 1.5, 0.02)
    found = [real_cut.side_by_side(judged, made, simulated, [simulated, real]) for judged in real_cut.COMPARED]
    found += [curve(made, simulated, [simulated, real]) for curve in CURVES]
    return {claim.id: claim for claim in found}


def test_without_a_killed_head_all_of_the_run_is_calm() -> None:
    assert TIME.before == [(3.0, 9.5)]
    assert TIME.outage == [(13.0, 17.0)]
    assert TIME.after == [(20.0, 23.0)]


def test_every_claim_holds_and_nothing_is_apart_when_both_are_as_the_paper_says() -> None:
    found = claims(observed(), observed())
    assert [name for name, claim in found.items() if not claim.holds] == []
    assert set(found) == {claim for each in real_cut.EXPERIMENTS for claim in each.claims}
    assert found["real.SP5.dip"].distance == "+0.0 points; +12.5% real, +12.5% to +12.5% in 2 simulated runs"
    assert found["real.SP6.model"].distance == "median 0.0%; 0.0% in the median of all 2 simulated runs"
    assert {claim.why for claim in found.values()} == {""}


def test_the_distance_is_that_of_the_simulation_from_reality() -> None:
    found = claims(observed(), observed(level=0.16, waiting=10.9))
    assert found["real.SP5.recovery"].distance.startswith("-0.20 s (-18%); 1.10 s real, 0.90 s to 1.10 s")
    assert found["real.SP6.level"].distance.startswith("-40 ms (-20%); 200 ms real, 160 ms to 200 ms")
    assert found["real.SP6.before"].distance.startswith("+0.0 points; +0.0% real")
    assert found["real.SP6.detour"].distance.startswith(("+0 ms", "-0 ms"))
    assert "chance: it lasted 1.10 s, in 2 simulated runs 0.90 to 1.10 s" in found["real.SP5.recovery"].why
    assert found["real.SP6.model"].holds and found["real.SP6.model"].measured.startswith("20.0%")


def test_curves_that_are_far_apart_are_said_to_be() -> None:
    found = claims(observed(level=0.32), observed())
    assert not found["real.SP6.model"].holds
    assert "latency is higher in 9" in found["real.SP6.model"].why and "others 1.5" in found["real.SP6.model"].why
    assert found["real.SP5.model"].holds
    found = claims(observed(level=0.12), observed())
    assert "latency is higher in 0%" in found["real.SP6.model"].why


def test_the_median_of_all_runs_stands_beside_that_of_the_chosen_one() -> None:
    real, near = observed(), observed(level=0.22)
    claim = real_cut.latency_distance(Measured(real, 0.7, 1.5, 0.02), near, [near, *[observed(level=0.3)] * 2])
    assert claim.holds and claim.measured.startswith("10.0%; ")
    assert claim.measured.endswith("50.0% in the median of all 3 simulated runs (10.0% to 50.0%), below 25% in 1")
    assert claim.distance == "median 10.0%; 50.0% in the median of all 3 simulated runs"


def test_a_cut_of_which_nothing_is_seen_is_not_explained_by_what_was_missed() -> None:
    real = observed(waiting=10.3)
    for flow in (("r3", "s2"), ("r2", "s3")):
        real.rates.flows[flow][20:30] = 1000.0
    found = claims(real, observed())
    for name in ("real.SP5.catch-up", "real.SP5.catch-up-seconds"):
        assert not found[name].holds and found[name].why.startswith("Nothing was missed beyond the noise:")
        assert "The cut was noticed after 0.30 s, and a point covers 0.5 s." in found[name].why


def test_the_verdict_is_that_of_the_real_run_and_says_why_it_differs() -> None:
    real = observed()
    real.latency["s2"].to["r1"] = np.where(real.latency["s2"].published > 17, 0.23, 0.2)
    claim = claims(real, observed())["real.SP6.after"]
    assert not claim.holds
    assert "r1 200 ms -> 230 ms" in claim.why
    assert "others 1.5" in claim.why and claim.why.endswith("holds in 1 of 2 simulated runs.")
    assert "(differs); holds in 1 of 2 runs" in claims(observed(), real)["real.SP6.after"].simulated
    assert not claims(replace(real, violations=1), real)["real.ours.invariants"].holds


def test_a_region_that_is_still_served_round_about_differs_from_the_paper() -> None:
    real = observed()
    published = real.latency["s2"].published
    real.latency["s2"].to["r3"] = np.where(published > 17, 0.24, real.latency["s2"].to["r3"])
    assert not claims(real, observed())["real.SP6.after"].holds


def test_what_clients_remember_becomes_rates_and_latencies() -> None:
    home = {f"peer-{region}-0": region for region in REGIONS}
    evidence = Evidence()
    for subscriber, delay in (("peer-r0-0", 0.1), ("peer-r1-0", 0.3), ("peer-r2-0", 0.4), ("somebody-else", 0.0)):
        for at in range(3):
            lo = 1 + 10 * at
            evidence.receipts.append(
                ClientReceipt(subscriber, 1, at, "s0", lo, lo + 10, lo + 10, "", 10, 0, 1000.0 + at + delay)
            )
    for at in range(3):
        evidence.sent.append(Sent("s0", "pub", 1 + 10 * at, [0] * 10, [None] * 10, sent_at=1000.0 + at))
        evidence.sent[-1].parts = [(1 + 10 * at, 11 + 10 * at)]
    seen = real_cut.observed(evidence, replace(TIME, end=10.0), 1000.0, home)
    assert seen.rates.flows["r0", "s0"][:6].tolist() == [20.0, 0.0, 20.0, 0.0, 20.0, 0.0]
    assert seen.latency["s0"].published.tolist() == [0.0, 1.0, 2.0]
    assert seen.latency["s0"].to["r1"] == pytest.approx([0.3, 0.3, 0.3])
    assert np.isinf(seen.latency["s0"].to["r3"]).all()
    assert seen.rates.clients == dict.fromkeys(REGIONS, 1)


def test_both_sides_have_the_same_links_rates_and_settings() -> None:
    plan, simulated = real_cut.cluster_plan(), real_cut.scenario((4.0, 6.0, 10.0))
    assert {(link.a, link.b): link.latency for link in plan.wan.links} == link_cut.LATENCY
    assert {(link.a, link.b): link.latency for link in simulated.links} == link_cut.LATENCY
    assert plan.fabric == simulated.fabric
    assert plan.protocol.advertise_period == simulated.protocol.advertise_period
    (order, *others), home = real_cut.orders(lambda region: f"tidings://{region}", 2)
    assert {each.stream: (each.rate, each.batch) for each in order.publishers} == {
        each.stream: (each.rate, each.batch) for each in simulated.publishers
    }
    assert sorted(each.name for order in others for each in order.subscribers) == sorted(home)
    assert [region.clients for region in simulated.regions] == [list(home.values()).count(name) for name in REGIONS]


def test_the_simulated_side_has_what_the_calibration_it_is_a_part_of_has_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[real_cut.MachineUse] = []

    def simulations(times: tuple[float, float, float], machine: real_cut.MachineUse) -> list[Observed]:
        asked.append(machine)
        return [observed()]

    monkeypatch.setattr(real_cut, "simulations", simulations)
    monkeypatch.setattr(real_cut, "read", lambda sql: Measured(observed(), 0.7, 0.1, 0.02))
    model = Model(LoadLine(100e-6, 5e-9), 50e-6, LoadLine(300e-6, 4e-9), 0.0)
    calibration_verdicts.FITTED[tmp_path] = model
    with_it, alone = (real_cut.report(lambda query: [], "quick", tmp_path) for _ in range(2))
    assert (asked[0].service, asked[0].hop) == (model.service, 0.0)
    assert (asked[1].service, asked[1].hop) == (MEASURED, HOP)
    for found, said in (
        (with_it, "in this run: 100 µs per batch, 50 µs per wake, 0 µs per hop"),
        (alone, f"earlier: {1e6 * MEASURED.per_batch:.0f} µs per batch"),
    ):
        assert all(said in claim.simulated for claim in found.claims if claim.id.endswith(".model"))


def test_the_calibration_reports_before_what_takes_its_model() -> None:
    studies = [each.study for each in experiments.EXPERIMENTS.values() if each.paper == calibration_verdicts.PAPER_NAME]
    assert list(dict.fromkeys(studies)) == ["drivers", "real-link-cut"]


def test_a_simulated_machine_is_as_fast_as_it_was_measured() -> None:
    times = (4.0, 5.0, 7.0)
    machine = real_cut.MachineUse(replace_struct(MEASURED, per_batch=5e-3), 0.0)
    made = real_cut.scenario(times, 1, machine=machine)
    assert made.service == machine.service and {region.latency for region in made.regions} == {0.0}
    slow, kept = (link_cut.observe(each, 0, publishers=False) for each in (made, real_cut.scenario(times, 1)))
    level = real_cut._level("r2", "before")
    assert level(slow) > level(kept) + 5e-3


def test_the_simulated_run_beside_it_is_the_one_whose_cut_was_noticed_as_soon() -> None:
    runs = [observed(waiting=end) for end in (10.2, 10.6, 11.1)]
    assert real_cut.nearest(observed(waiting=10.7), runs) is runs[1]


def test_a_simulated_cut_comes_later_by_its_phase_and_is_measured_from_there() -> None:
    times = (3.0, 5.0, 7.0)
    seen = link_cut.observe(real_cut.scenario(times, 1, later=0.5), 0, publishers=False, since=0.5)
    assert (seen.time.cut, seen.time.repair, seen.time.end) == times
    assert 3.0 < seen.cut_off.end < 4.0  # the advertisements that end it come half a period earlier
    assert seen.violations == 0


def test_the_report_draws_both_curves_and_stores_them(tmp_path: Path) -> None:
    found = real_cut.report_run(Measured(observed(), 0.7, 0.1, 0.02), [observed(level=0.16)], tmp_path)
    for path in [path for each in (found.figures, found.data) for some in each.values() for path in some]:
        assert Path(path).stat().st_size > 1000


def test_a_real_run_is_kept_in_plain_columns_and_read_by_sql() -> None:
    made = Measured(observed(), 0.7, 1.5, 0.02)
    database = sqlite3.connect(":memory:")
    database.row_factory = sqlite3.Row
    database.execute("create table results (kind, name, region, stream, n, start, value)")
    database.executemany(
        "insert into results values (:kind, :name, :region, :stream, :n, :start, :value)", real_cut.rows(made)
    )
    read = real_cut.read(lambda query: [dict(found) for found in database.execute(query)])
    assert (read.used, read.others, read.told) == (0.7, 1.5, 0.02)
    assert claims(read.seen, observed()) == claims(made.seen, observed())


# --- the hash of the code that a study's results belong to ----------------------------------------------


def test_the_papers_level_is_drawn_beside_the_real_one() -> None:
    axes = Figure().subplots()
    real_cut.paint_latency(observed(), observed(level=0.16), axes)
    (line,) = [line for line in axes.get_lines() if line.get_label() == "200 ms (paper)"]
    assert list(line.get_ydata()) == [200.0, 200.0]


AFTER = {"claims", "figures", "ledger", "link_verdicts", "study"}  # judge, draw and keep what a task has returned
SHOW = "import sys, {}; print(*[m.__file__ for n, m in sys.modules.items() if n.startswith('tidings.')])"
TASKS = sorted({each.task.__module__ for each in experiments.STUDIES.values()})


@pytest.mark.parametrize("module", TASKS)
def test_the_hash_of_a_study_is_of_all_code_that_its_task_imports(module: str) -> None:
    asked = subprocess.run([sys.executable, "-c", SHOW.format(module)], capture_output=True, text=True, check=True)
    used = {Path(name) for name in asked.stdout.split() if not name.endswith("__init__.py")}
    lab = Path(link_cut.__file__).parent
    for each in [study for study in experiments.STUDIES.values() if study.task.__module__ == module]:
        hashed = set(code_hash.sources(each.task.__module__))
        hashed |= {lab / f"{name}.py" for name in AFTER}
        assert len(used) > 10 and used <= hashed, (each.name, sorted(used - hashed))


@pytest.mark.check
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # uvloop's, of pipes to processes that have ended
def test_a_real_link_is_cut_and_nothing_is_lost() -> None:
    found = run_loop(real_cut.run_real((2.0, 3.5, 5.0), clients=1))
    assert found.seen.violations == 0
    assert {flow for flow, rate in found.seen.rates.flows.items() if not rate.any()} == set()
    silence = found.seen.cut_off  # batches come ten times a second; how long a cut stays unnoticed is chance
    assert silence.start < 2.2 and silence.end > 2.0 and silence.seconds > 0.1
    assert 0 < found.told < 5 and found.used > 0
