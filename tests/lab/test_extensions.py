"""What the paper left out: verdicts that follow from the rows, whichever way they point."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread

from tidings.core.errors import TidingsError
from tidings.core.rows import CountedRows
from tidings.core.span import Span
from tidings.lab import experiments, figures
from tidings.lab.claims import Findings
from tidings.lab.sprinkler import extension_worlds, extensions, service_load
from tidings.lab.study import Row, Sql
from tidings.protocols.kernel import Received
from tidings.protocols.messages import Know
from tidings.results import code_hash
from tidings.sim.build import Deployment
from tidings.sim.measured import MEASURED
from tidings.sim.scenario import Scenario, ServiceTable


def verdicts(report: Callable[[Sql, str, Path], Findings], rows: list[Row], out: Path) -> dict[str, bool | None]:
    found = report(lambda query: [dict(row) for row in rows], "quick", out)
    for path in [path for paths in found.figures.values() for path in paths if path.endswith(".png")]:
        legend = imread(path)[-63:, :, :3]  # the last tenth
        assert (legend[:, :15] == 1).all() and (legend[:, -15:] == 1).all(), "the legend touches an edge"
        assert not (legend == 1).all()
    return {claim.id: claim.holds for claim in found.claims}


def chains(**late: float) -> list[Row]:
    places = [(place, region) for place in extensions.PLACES for region in ("r0", "r1")]
    return [{"place": p, "region": r, "silence": late.get(p, 1.5), "bad": 0} for p, r in places]


def test_a_chain_that_stands_still_for_longer_than_its_timeouts_differs(tmp_path: Path) -> None:
    assert verdicts(extensions.report_failover, chains(), tmp_path) == {"ours.chain": True}
    assert verdicts(extensions.report_failover, chains(middle=4.0), tmp_path) == {"ours.chain": False}
    assert verdicts(extensions.report_failover, chains(head=2.9), tmp_path) == {"ours.chain": False}
    assert verdicts(extensions.report_failover, chains(tail=2.9), tmp_path) == {"ours.chain": True}, (
        "asked the dead one"
    )


@pytest.mark.parametrize(
    ("late", "p99", "bad", "holds"),
    [(0.015, 0.05, 0, True), (0.025, 0.05, 0, False), (0.015, 0.11, 0, False), (0.015, 0.05, 1, False)],
)
def test_those_who_stay_are_judged_by_their_mean_and_by_the_slowest_hundredth(
    late: float, p99: float, bad: int, holds: bool, tmp_path: Path
) -> None:
    rows = [
        {"churn": 0.0, "latency": 0.01, "p99": 0.02, "bad": 0},
        {"churn": 0.2, "latency": late, "p99": p99, "bad": bad},
    ]
    assert verdicts(extensions.report_churn, rows, tmp_path) == {"ours.churn": holds}


@pytest.mark.parametrize(("sooner", "rows", "holds"), [(1.0, 100, (True, True)), (5.0, 900, (False, False))])
def test_collection_must_pay(sooner: float, rows: int, holds: tuple[bool, bool], tmp_path: Path) -> None:
    base = {"outage": 8.0, "missed": 1000.0, "again": 0.0, "bad": 0}
    found = [
        {**base, "gc": "none", "catch_up": 4.0, "rows": 1000.0},
        {**base, "gc": "by-key", "catch_up": sooner, "rows": float(rows)},
    ]
    judged = verdicts(extensions.report_outage, found, tmp_path)
    assert (judged["ours.catch-up"], judged["ours.bandwidth"]) == holds


def test_every_outage_says_how_many_rows_crossed_the_link_and_how_many_of_them_again(tmp_path: Path) -> None:
    rows = [
        {"gc": gc, "outage": outage, "catch_up": late, "rows": sent * outage, "again": again, "missed": 9.0, "bad": 0}
        for gc, late, sent in (("none", 4.0, 100.0), ("by-key", 1.0, 10.0))
        for outage, again in ((2.0, 0.0), (8.0, 40.0))
    ]
    claims = {claim.id: claim for claim in extensions.report_outage(lambda query: rows, "quick", tmp_path).claims}
    first, second = claims["ours.bandwidth"].measured.split("; ")
    assert first.startswith("after 2 s 20 rows over the link instead of 200") and first.endswith(
        "a second time 0 and 0"
    )
    assert second.startswith("after 8 s 80 rows over the link instead of 800") and "a second time 40 and 40" in second
    assert "rows" in claims["ours.bandwidth"].statement and "bandwidth" not in claims["ours.bandwidth"].statement


def constants(silence: dict[str, float], switches: dict[str, float]) -> list[Row]:
    """Three runs that were hit for every C, the last as long as said, and one that was not."""
    return [
        {"c": c, "silence": each, "hit": hit, "switches": switches[c], "violations": 0}
        for c, longest in silence.items()
        for each, hit in ((longest - 0.1, True), (longest - 0.2, True), (longest, True), (0.03, False))
    ]


SILENCE = {"huge": 9.0, "0": 1.0, "in proportion": 1.1, "1000": 1.2}
SWITCHES = {"huge": 0.0, "0": 12.0, "in proportion": 9.0, "1000": 3.0}


@pytest.mark.parametrize(
    ("silence", "switches", "constant", "flapping"),
    [
        ({}, {}, True, True),
        ({"in proportion": 4.0}, {}, False, True),
        ({"huge": 1.0}, {}, False, True),
        ({}, {"1000": 9.0}, True, False),
    ],
)
def test_c_is_judged_by_silence_and_by_changes(
    silence: dict[str, float], switches: dict[str, float], constant: bool, flapping: bool, tmp_path: Path
) -> None:
    rows = constants({**SILENCE, **silence}, {**SWITCHES, **switches})
    judged = verdicts(extensions.report_constant, rows, tmp_path)
    assert judged == {"ours.constant": constant, "ours.flapping": flapping}


def test_silence_is_told_as_median_and_maximum_of_the_runs_that_were_hit(tmp_path: Path) -> None:
    rows = constants(SILENCE, SWITCHES)
    claim = extensions.report_constant(lambda query: rows, "quick", tmp_path).claims[0]
    assert "C in proportion: median 1.00 s, at most 1.10 s (3 of 4 runs hit)" in claim.measured


def test_runs_that_were_not_hit_decide_nothing(tmp_path: Path) -> None:
    rows = constants(SILENCE, SWITCHES)
    none = [{**row, "hit": row["hit"] and row["c"] != "huge"} for row in rows]
    claim = extensions.report_constant(lambda query: none, "quick", tmp_path).claims[0]
    assert not claim.holds and claim.why == "No run was hit with C huge: nothing to judge."
    assert "C huge: 0 of 4 runs hit" in claim.measured


def test_a_huge_c_that_leaves_its_source_once_differs(tmp_path: Path) -> None:
    rows = constants(SILENCE, SWITCHES)
    once = [*rows, {"c": "huge", "silence": 1.0, "hit": True, "switches": 0.0, "violations": 0}]
    assert not verdicts(extensions.report_constant, once, tmp_path)["ours.constant"]


def test_seconds_and_counts_of_c_have_panels_of_their_own_and_the_limit_stands_with_the_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    painted = drawn(monkeypatch)
    extensions.report_constant(lambda query: constants(SILENCE, SWITCHES), "quick", tmp_path)
    seconds, counts = painted["ours-constant"].figure.axes
    assert seconds.get_ylabel().startswith("s ") and counts.get_ylabel().startswith("changes")
    usual, huge = expectations(seconds)
    assert usual == pytest.approx((0.55, 1.45, 3.2)) and huge == pytest.approx((2.55, 3.45, 3.2))
    assert not expectations(counts)


def test_the_link_fails_in_every_part_of_the_advertisement_period() -> None:
    phases = sorted(
        extension_worlds.cut_at(seed) - extension_worlds.BREAKS for seed in range(extensions.CUT_SEEDS["quick"])
    )
    gaps = [b - a for a, b in itertools.pairwise([*phases, phases[0] + 1.0])]
    assert phases[0] >= 0.0 and phases[-1] < 1.0 and max(gaps) < 0.4


@pytest.mark.parametrize(("source", "hit"), [("r0", True), ("r3", False)])
def test_a_run_is_hit_if_the_stream_came_over_the_link_when_it_was_cut(
    source: str, hit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_the_cut(deployment: Deployment) -> None:
        head = deployment.proxy(deployment.membership("r1").replicas[0])
        head.inter_region.expects["s0"].region = source

    run = extension_worlds._run

    def prepared(plan: Scenario, seed: int, prepare: Any) -> Any:
        def both(deployment: Deployment) -> None:
            deployment.world.at(extension_worlds.cut_at(seed), lambda: at_the_cut(deployment))
            prepare(deployment)

        return run(plan, seed, both)

    monkeypatch.setattr(extension_worlds, "_run", prepared)
    monkeypatch.setattr(extension_worlds, "CHANGES_IN", extension_worlds.BREAKS + 1.5)
    (row,) = extension_worlds.measure_constant({"c": "huge", "seed": 0})
    assert row["hit"] is hit


def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Axes]:
    """The axes of every figure, by its name."""
    painted: dict[str, Axes] = {}
    draw = figures.draw

    def kept(out: Path, name: str, paint: Callable[[Axes], None]) -> list[str]:
        def keep(axes: Axes) -> None:
            painted[name] = axes
            paint(axes)

        return draw(out, name, keep)

    monkeypatch.setattr(figures, "draw", kept)
    return painted


def expectations(axes: Axes) -> list[tuple[float, float, float]]:
    """From, to and level of what is drawn as expected."""
    lines = [line for line in axes.get_lines() if line.get_color() == figures.VERMILION]
    return [(*map(float, line.get_xdata()), float(line.get_ydata()[0])) for line in lines]


def test_what_catching_up_is_judged_by_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    painted = drawn(monkeypatch)
    base = {"missed": 1000.0, "again": 0.0, "bad": 0, "rows": 100.0}
    rows = [
        {**base, "gc": gc, "outage": outage, "catch_up": late * outage}
        for gc, late in (("none", 0.5), ("by-key", 0.1))
        for outage in (2.0, 8.0)
    ]
    extensions.report_outage(lambda query: rows, "quick", tmp_path)
    ((lo, hi, level),) = expectations(painted["ours-catch-up"])
    assert lo < 8.0 < hi and level == 4.0


def test_what_the_buffer_is_judged_by_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    painted = drawn(monkeypatch)
    rows = [
        {"buffer": size, "share": 1.0, "unfinished": 0, "due": 9, "clients": 60, "kept": 1.0}
        for size in extensions.BUFFERS
    ]
    extensions.report_buffer(lambda query: rows, "quick", tmp_path)
    (lo, hi, cliff), (left, right, safe) = expectations(painted["ours-buffer"])
    assert lo < 20 < hi < 50 and cliff == 90
    assert 250 < left < 500 < right < 1000 and safe == 98


def test_the_limits_of_churn_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    painted = drawn(monkeypatch)
    rows = [{"churn": churn, "latency": 0.01, "p99": 0.02, "bad": 0} for churn in extensions.CHURN]
    extensions.report_churn(lambda query: rows, "quick", tmp_path)
    assert [level for _, _, level in expectations(painted["ours-churn"])] == [20, 100]


def test_no_two_experiments_or_studies_have_one_name() -> None:
    for found, kind in ((experiments.EXPERIMENTS, "EXPERIMENTS"), (experiments.STUDIES, "STUDIES")):
        assert len(found) == sum(len(getattr(module, kind)) for module in experiments.MODULES)


def test_how_results_are_judged_and_drawn_is_no_reason_to_simulate_again() -> None:
    for each in extensions.STUDIES:
        hashed = {path.name for path in code_hash.sources(each.task.__module__)}
        assert not hashed & {"extensions.py", "figures.py", "study.py"}


@pytest.mark.parametrize(("least", "usual", "holds"), [(0.5, 1.0, True), (1.0, 1.0, False), (0.5, 0.7, False)])
def test_a_cliff_is_one_only_if_there_is_one(least: float, usual: float, holds: bool, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"buffer": 0.02, "share": least, "unfinished": 0, "due": 9, "clients": 60},
        {"buffer": 0.5, "share": usual, "unfinished": 0, "due": 9, "clients": 60},
    ]
    assert verdicts(extensions.report_buffer, rows, tmp_path) == {"ours.buffer": holds}


@pytest.mark.parametrize(
    ("share", "unfinished", "holds"), [(1.0, 0, True), (0.995, 0, True), (0.96, 0, False), (1.0, 3, False)]
)
def test_real_processors_carry_the_load_only_if_they_do(
    share: float, unfinished: int, holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    painted = drawn(monkeypatch)
    rows = [
        {"service": name, "seed": seed, "clients": 100, "share": each, "latency": late, "unfinished": left, "due": 61}
        for name, each, late, left in (("default", 1.0, 0.1, 0), ("measured", share, 0.105, unfinished))
        for seed in (0, 1)
    ]
    assert verdicts(extensions.report_service, rows, tmp_path) == {"ours.service": holds}
    (claim,) = extensions.report_service(lambda query: rows, "quick", tmp_path).claims
    assert "+5 ms (300 clients, 2 seeds)" in claim.measured
    assert [level for _, _, level in expectations(painted["ours-service"])] == [pytest.approx(99.0)]


def test_shares_of_seeds_that_lie_apart_are_the_same_within_two_errors(tmp_path: Path) -> None:
    shares = {"default": (0.9, 1.0), "measured": (0.85, 0.95)}
    base = {"clients": 100, "latency": None, "unfinished": 9, "due": 9}
    rows = [{**base, "service": name, "seed": at, "share": shares[name][at]} for name in shares for at in (0, 1)]
    assert verdicts(extensions.report_service, rows, tmp_path) == {"ours.service": True}


def test_both_runs_differ_in_the_service_times_alone() -> None:
    plans = []

    def deploy(plan: Scenario, seed: int, **_: Any) -> Any:
        plans.append(plan)
        raise TidingsError("that is enough")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service_load, "Deployment", deploy)
        for name in ("default", "measured"):
            with pytest.raises(TidingsError, match="enough"):
                service_load.measure_service({"clients": 4, "seconds": 0.1, "service": name, "seed": 0})
    default, real = plans
    assert real.service == MEASURED and default.service == ServiceTable()
    assert msgspec.structs.replace(real, service=default.service) == default
    assert (default.fabric.settings.fanout, default.fabric.settings.shuffle) == (4, 0.03)


def test_a_small_fabric_carries_its_load_with_real_processors() -> None:
    point = {"clients": 3, "seconds": 0.32, "service": "measured", "seed": 0}
    rows = service_load.measure_service(point)
    assert [row["origin"] for row in rows] == ["r0", "r1", "r2"]
    assert rows[0]["goodput"] > 0.95 * rows[0]["offered"] and rows[0]["due"] > 0 and not rows[0]["unfinished"]


def test_links_that_vary_are_scripted_as_such() -> None:
    assert {(link.jitter, link.sd) for link in extension_worlds.world(1.0, regions=3).links} == {("constant", 0.0)}
    varying = extension_worlds.world(1.0, regions=3, jitter=extension_worlds.JITTER).links
    assert {(link.jitter, link.sd) for link in varying} == {("normal", extension_worlds.JITTER)}


def test_what_crosses_a_link_is_counted_as_often_as_it_does() -> None:
    watch = extension_worlds.WorldWatch("s0")
    know = Know("s0", (Span.of("s0", 1, CountedRows(1, 11, 10)),), 11)
    for node, src in (("r1/p0", "r0/p2"), ("r1/p0", "r0/p2"), ("r1/c0", "r1/p0"), ("r2/p0", "r0/p2")):
        watch.on_step(1.0, node, 1, Received(src, know), ())
    assert watch.rows_sent("r1", 4, 9) == (10, 5)
    assert watch.rows_sent("r2", 4, 9) == (5, 0)
    assert watch.rows_sent("r1", 11, 20) == (0, 0)


def test_silence_needs_somebody_who_was_there() -> None:
    watch = extension_worlds.WorldWatch("s0")
    watch.on_deliver(1.0, "r0/c0", 1, Span.of("s0", 1, CountedRows(1, 11, 10)))
    assert watch.silence("r0", 2.0, 5.0) == 4.0
    with pytest.raises(TidingsError, match="no client of r1"):
        watch.silence("r1", 2.0, 5.0)
