"""The calibration: the fit, the closed loop in the simulator, how each claim is judged, and short real runs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidings.core.errors import TidingsError
from tidings.lab import calibration, experiments
from tidings.lab.calibration import BATCH, BUSY, Calibrated, Line, Model, Spot, fit, simulated
from tidings.lab.claims import Claim
from tidings.lab.study import Row
from tidings.net.loop import run as run_loop
from tidings.sim.measured import MEASURED
from tidings.sim.scenario import Service

MODEL = Model(Line(200e-6, 5e-9), 100e-6, Line(300e-6, 4e-9), 150e-6, 0.01)
real_processes = pytest.mark.filterwarnings("ignore::ResourceWarning")  # uvloop's, of pipes to processes that ended


# --- the fit --------------------------------------------------------------------------------------------


def row(**changed: Any) -> Row:
    """One time that drivers published."""
    made = {"part": "service", "proxies": 1, "run": 0, "drivers": 1, "batch": 1000, "inflight": 1, "events": 100_000}
    made |= {"seconds": 1.0, "cycle": 0.0, "pause": 0.001, "others": 0.0}
    return made | {"driver_cpu": 0.0, "replica_cpu": 0.0, "busiest_cpu": 0.0} | changed


def service_rows(sizes: tuple[int, ...] = (256, 1024, 4096, 16_384)) -> list[Row]:
    """What MODEL would measure."""
    rows = []
    for size in sizes:
        busy, driver = MODEL.replica.at(size), MODEL.driver.at(size)
        round_trip = busy + MODEL.wake + driver + 2 * MODEL.hop
        one = {"batch": size, "events": 100 * size, "driver_cpu": 100 * driver}
        rows.append(row(**one, replica_cpu=100 * busy, inflight=BUSY, pause=0.0))
        rows.append(row(**one, replica_cpu=100 * (busy + MODEL.wake), cycle=round_trip + 0.001))
    return rows


def test_the_fit_finds_the_parts_of_what_a_batch_costs() -> None:
    found = fit(service_rows())
    for name in ("replica", "driver"):
        line, expected = getattr(found, name), getattr(MODEL, name)
        assert (line.fixed, line.event) == pytest.approx((expected.fixed, expected.event))
    assert (found.wake, found.hop, found.worst) == pytest.approx((MODEL.wake, MODEL.hop, 0.0))
    assert found.service == Service(per_batch=found.replica.fixed, per_event=found.replica.event, per_wake=found.wake)


def test_two_sizes_are_enough_for_a_line() -> None:
    line = Line.through([100, 1100], [3e-6, 5e-6])
    assert (line.fixed, line.event) == pytest.approx((2.8e-6, 2e-9))


def test_no_part_of_a_cost_is_negative() -> None:
    assert Line.through([1, 2, 3], [3.0, 2.0, 1.0]) == Line(2.0, 0.0)
    assert Line.through([1, 2, 3], [0.5, 2.0, 3.5]).fixed == 0.0


def test_one_outlier_among_three_runs_does_not_move_the_fit() -> None:
    rows = [each | {"run": run} for run in range(3) for each in service_rows()]
    for each in rows[: len(rows) // 3]:
        each["replica_cpu"] *= 10
    assert fit(rows).replica.fixed == pytest.approx(MODEL.replica.fixed)


# --- the simulation -------------------------------------------------------------------------------------


def test_a_single_driver_is_as_fast_as_its_round_trip() -> None:
    cycle = 0.002 + MODEL.replica.at(BATCH) + MODEL.wake + MODEL.driver.at(BATCH) + 2 * MODEL.hop
    assert simulated(MODEL, 1, 1, pause=0.002, seconds=0.5) == pytest.approx(BATCH / cycle, rel=0.02)


def test_many_drivers_are_as_fast_as_a_proxy_that_always_has_something_to_do() -> None:
    assert simulated(MODEL, 1, 24, pause=0.001, seconds=0.3) == pytest.approx(BATCH / MODEL.replica.at(BATCH), rel=0.02)


def test_who_shares_processors_with_others_gets_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "processors", lambda: 2)

    def rate(others: float | None) -> float:
        return simulated(MODEL, 2, 4, pause=0.001, seconds=0.2, others=others)

    assert rate(2.0) < 0.9 * rate(0.0) < 0.9 * rate(None)


def test_a_simulation_in_which_not_all_arrives_has_no_rate() -> None:
    slow = replace(MODEL, replica=Line(10.0, 0.0))
    with pytest.raises(TidingsError, match=r"1 proxies, 2 drivers each, simulated: of [\d,]+ events 0 had arrived"):
        simulated(slow, 1, 2, pause=0.001, seconds=0.1)


# --- judging --------------------------------------------------------------------------------------------


def spot(proxies: int, drivers: int, rate: float, model: float, capacity: float = 15e6) -> Spot:
    return Spot(proxies, drivers, (0.9 * rate, rate, 1.1 * rate), capacity, 0.5, model)


def as_in_the_paper() -> Calibrated:
    """Rises, saturates, falls slightly with more proxies; drawn by hand."""
    spots = [
        *[spot(1, drivers, rate * 1e6, rate * 1.1e6) for drivers, rate in ((1, 2.0), (2, 3.2), (4, 3.4))],
        *[spot(2, drivers, rate * 1e6, rate * 0.9e6) for drivers, rate in ((1, 2.4), (2, 3.0), (4, 3.1))],
        *[spot(3, drivers, rate * 1e6, rate * 1.0e6, 14e6) for drivers, rate in ((1, 2.4), (2, 2.9), (4, 2.9))],
    ]
    kept = Line(MEASURED.per_batch, MEASURED.per_event)
    own = {(proxies, drivers): 4e6 * drivers for proxies in (1, 2, 3) for drivers in (1, 2, 4)}
    return Calibrated(replace(MODEL, replica=kept), spots, own)


def verdicts(found: Calibrated) -> dict[str, Claim]:
    return {claim.id: claim for claim in (judge(found) for judge in calibration.JUDGES)}


def differing(found: Calibrated) -> list[str]:
    return [name for name, claim in verdicts(found).items() if not claim.holds]


def test_every_claim_holds_when_all_is_as_the_paper_says() -> None:
    assert differing(as_in_the_paper()) == []
    assert set(verdicts(as_in_the_paper())) == {claim for each in calibration.EXPERIMENTS for claim in each.claims}


def with_spot(proxies: int, drivers: int, **changed: Any) -> Calibrated:
    found = as_in_the_paper()
    spots = [
        replace(each, **changed) if (each.proxies, each.drivers) == (proxies, drivers) else each for each in found.spots
    ]
    return replace(found, spots=spots)


def with_model(**changed: Any) -> Calibrated:
    found = as_in_the_paper()
    return replace(found, model=replace(found.model, **changed))


BROKEN: dict[str, tuple[list[str], Callable[[], Calibrated]]] = {
    "more drivers bring nothing": (["SP1.rises"], lambda: with_spot(3, 1, real=(2.8e6,))),
    "nothing saturates": (["SP1.saturates", "SP1.peak", "SP2.falls"], lambda: with_spot(1, 4, real=(8.0e6,))),
    "more proxies take more": (["SP1.peak"], lambda: with_spot(3, 2, real=(3.5e6,))),
    "three proxies take far less": (
        ["SP1.peak", "SP1.value"],
        lambda: replace(
            as_in_the_paper(),
            spots=[
                replace(each, real=(each.rate / 2,), simulated=each.simulated / 2) if each.proxies == 3 else each
                for each in as_in_the_paper().spots
            ],
        ),
    ),
    "forwarding costs a proxy half of its time": (["SP1.own-processors"], lambda: with_spot(3, 4, capacity=7e6)),
    "the simulation is twice as fast": (
        ["SP1.model"],
        lambda: replace(
            as_in_the_paper(),
            spots=[replace(each, simulated=2 * each.simulated) for each in as_in_the_paper().spots],
        ),
    ),
    "one size is far from the line": (["service.line"], lambda: with_model(worst=0.4)),
    "a batch costs twice as much": (
        ["service.constant"],
        lambda: with_model(replica=Line(2 * MEASURED.per_batch, 2 * MEASURED.per_event)),
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_claim_differs_when(what: str) -> None:
    expected, make = BROKEN[what]
    found = make()
    assert differing(found) == expected
    assert all(verdicts(found)[name].why for name in expected)  # and it says why


def test_a_claim_says_what_was_measured_what_was_simulated_and_how_far_that_is() -> None:
    claim = verdicts(as_in_the_paper())["SP1.peak"].json()
    assert claim["measured"].startswith("85% (1: 3.40 M/s")
    assert claim["simulated"].startswith("78% (1: 3.74 M/s")
    assert claim["distance"] == "-8 points"
    assert "simulated" not in Claim("a", "b", "c", "d", True).json()


# --- reporting ------------------------------------------------------------------------------------------


def driven_rows() -> list[Row]:
    """Two proxies at most, so that the simulation is short."""
    rows = []
    for proxies, drivers, rate in ((1, 1, 2e6), (1, 2, 3e6), (2, 1, 2.2e6), (2, 2, 2.5e6)):
        used = {"replica_cpu": 0.1 * proxies, "busiest_cpu": 0.1, "driver_cpu": 0.2}
        some = {"part": "drivers", "proxies": proxies, "drivers": drivers, "batch": BATCH, "seconds": 0.2}
        rows.append(row(**some, **used, events=rate * 0.2, cycle=0.002, others=0.5))
    return rows


def test_the_report_draws_every_figure_and_writes_service_times_that_a_scenario_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "ALONE", (1, 2))
    found = calibration.report_rows([*service_rows(), *driven_rows()], "quick", tmp_path)
    assert {claim.id for claim in found.claims} == {claim for each in calibration.EXPERIMENTS for claim in each.claims}
    paths = [path for each in (found.figures, found.data) for some in each.values() for path in some]
    assert all(Path(path).stat().st_size > 300 for path in paths if "results" not in path)
    written = tomllib.loads((tmp_path / "service.toml").read_text())["service"]
    service = msgspec.convert(written, Service)
    assert (service.per_batch, service.per_event, service.per_wake) == pytest.approx((200e-6, 5e-9, 100e-6), rel=0.01)
    assert service.per_message == Service().per_message


def test_the_calibration_is_no_part_of_the_simulated_experiments() -> None:
    mine = {each.id for each in experiments.EXPERIMENTS.values() if each.paper == "calibration"}
    assert mine == {"SP1", "SP2", "service", "SP5-real", "SP6-real"}
    studies = {each.study for each in experiments.EXPERIMENTS.values() if each.paper == "sprinkler"}
    assert not any(experiments.STUDIES[name].alone for name in studies)
    assert [point["part"] for point in calibration.points("quick")] == ["service", "drivers"]


# --- real ones ------------------------------------------------------------------------------------------


@pytest.mark.slow
@real_processes
def test_real_drivers_publish_to_one_and_two_proxies_which_then_hold_everything() -> None:
    rows = run_loop(calibration.measure_drivers({1: (1, 2, 3), 2: (1, 2)}, 0.2, 1))
    assert [(each["proxies"], each["drivers"]) for each in rows] == [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3)]
    for each in rows:
        assert each["events"] >= each["drivers"] * each["proxies"] * BATCH
        assert each["seconds"] > 0.2 and each["pause"] >= 0.0005
        assert 0 < each["busiest_cpu"] <= each["replica_cpu"]


@pytest.mark.slow
@real_processes
def test_a_real_replica_is_measured_busy_and_woken() -> None:
    rows = run_loop(calibration.measure_service((256, 4096), 0.3, 1))
    assert [(each["batch"], each["inflight"]) for each in rows] == [(256, 1), (256, BUSY), (4096, 1), (4096, BUSY)]
    assert [each["pause"] > 0 for each in rows] == [True, False, True, False]
    found = fit(rows)
    assert 0 < found.replica.at(4096) < 0.1 and 0 < found.driver.at(4096) < 0.1
