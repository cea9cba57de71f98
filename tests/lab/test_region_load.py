"""SP3 and SP4 in small: what is measured, and verdicts that follow from the rows, whichever way they point."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from tidings.lab.claims import UNEXPLAINED
from tidings.lab.sprinkler import fanout_verdicts, load_verdicts, region_load
from tidings.lab.sprinkler.region_load import LOADS, NO_PROBE, PRODUCT, READINGS


def test_a_small_region_carries_the_load_and_says_how_long_it_takes() -> None:
    point = {"clients": 4, "seconds": 0.4, "load": 0.1, "fanout": 2, "shuffle": 0.03, "reading": PRODUCT, "seed": 1}
    rows = region_load.measure(point)
    assert [row["origin"] for row in rows] == ["r0", "r1", "r2"]
    for row in rows:
        assert row["offered"] == pytest.approx(259_200)
        assert row["throughput"] == pytest.approx(row["offered"], rel=0.05)
        assert row["due"] > 10 and row["unfinished"] == 0
        assert 0.010 < row["latency_mean"] <= row["latency_max"] < 1.0
        assert row["proxy_uplink"] > 10 * row["offered"], "its own stream to two regions, and all to some client"


def test_the_grids_are_the_papers() -> None:
    assert [round(6 * load) for load in LOADS] == [1, 3, 5, 7, 9, 11]
    full = region_load.fanout_points("full")
    assert {point["clients"] for point in full} == {1000}
    assert {point["reading"] for point in full} == set(READINGS)
    assert len({point["seed"] for point in full}) >= 5
    literal = region_load.scenario(10, reading="literal", fanout=5, seconds=1.0)
    assert (
        literal.fabric.settings.proxy_fanout == 5
        and literal.regions[0].proxy_uplink == literal.regions[0].client_uplink
    )
    own = region_load.scenario(10, reading="own-fanout", fanout=5, seconds=1.0)
    assert own.fabric.settings.proxy_fanout == 1 and own.fabric.settings.fanout == 5


def setting(fanout: int, shuffle: float, share: float, latency: float | None, reading: str = PRODUCT) -> dict[str, Any]:
    return {
        "reading": reading,
        "fanout": fanout,
        "shuffle": shuffle,
        "offered": 1e6,
        "throughput": share * 1e6,
        "goodput": min(share, 1.0) * 1e6,
        "sd": 1e4,
        "latency": latency,
        "latency_sd": 0.004,
        "kept": share,
        "unfinished": 0 if latency is not None else 100,
        "due": 100,
        "uplink": 26e6,
        "proxy_uplink": 50e6,
        "runs": 4,
    }


def by_fanout(**latency: float) -> list[dict[str, Any]]:
    return [{**setting(int(name[1:]), 0.03, 1.0, late), "share": 1.0} for name, late in latency.items()]


def test_settings_are_ranked_by_what_arrives_then_by_latency_and_noise_decides_nothing() -> None:
    rows = by_fanout(f2=0.2, f4=0.1, f5=0.099, f8=0.15)
    rows[0]["share"] = 1.006  # within a hundredth
    order, tied = fanout_verdicts.ranked(rows)
    assert [row["fanout"] for row in order] == [5, 4, 8, 2]
    assert tied == {4, 5}, "a millisecond is less than two errors of 2 ms each"
    rows[3]["share"] = 0.5
    rows[2]["latency"] = 0.05
    order, tied = fanout_verdicts.ranked(rows)
    assert [row["fanout"] for row in order] == [5, 4, 2, 8] and tied == {5}


@pytest.mark.parametrize(("few", "many", "holds"), [(1.0, 0.8, True), (1.0, 1.0, False), (0.8, 0.8, False)])
def test_a_large_fanout_hurts_only_if_it_does(few: float, many: float, holds: bool) -> None:
    claim = fanout_verdicts._large([setting(4, 0.3, few, 0.1), setting(8, 0.3, many, 0.1)], "quick")
    assert claim.holds is holds and bool(claim.why) is (many == 1.0), "no reason that the data does not show"


@pytest.mark.parametrize(
    ("uplink", "holds", "why"), [(120e6, True, ""), (26e6, False, "1.00 times as much"), (60e6, False, "")]
)
def test_uplinks_are_exhausted_only_if_clients_send_so_much(uplink: float, holds: bool, why: str) -> None:
    rows = [setting(4, 0.3, 1.0, 0.1), {**setting(8, 0.3, 0.8, 0.1), "uplink": uplink}]
    claim = fanout_verdicts._uplinks(rows, "quick")
    assert claim.holds is holds
    assert why in claim.why and bool(claim.why) is bool(why), "no reason that the data does not show"


@pytest.mark.parametrize(
    ("shares", "late", "holds", "why"),
    [
        ((1.0, 1.0, 1.0), (0.1, 0.2, 0.3), True, ""),
        ((1.0, 0.9, 1.0), (0.1, 0.2, 0.3), False, "less throughput at fast-uplink, F=4, 100 ms against 300 ms"),
        ((1.0, 1.0, 1.0), (0.1, 0.3, 0.2), False, "more latency at fast-uplink, F=4, 100 ms against 300 ms"),
        ((1.0, 1.0, 1.0), (0.1, 0.101, 0.1), False, "no gain over the longest at fast-uplink, F=4."),
    ],
)
def test_a_shorter_shuffle_time_helps_only_if_it_does_at_each_step(
    shares: tuple[float, ...], late: tuple[float, ...], holds: bool, why: str
) -> None:
    paper = [setting(4, 0.03, 1.0, 0.3, NO_PROBE), setting(4, 0.3, 1.0, 0.5, NO_PROBE)]
    rows = [setting(4, *each) for each in zip((0.03, 0.1, 0.3), shares, late, strict=True)]
    claim = fanout_verdicts._shuffle([*rows, *paper])
    assert claim.holds is holds and why in claim.why and bool(claim.why) is bool(why)


def test_a_shorter_shuffle_time_that_helps_only_those_who_probe_does_not_help() -> None:
    rows = [setting(4, 0.03, 1.0, 0.1), setting(4, 0.3, 1.0, 0.2)]
    paper = [setting(4, 0.03, 0.95, 0.3, NO_PROBE), setting(4, 0.3, 0.99, 0.5, NO_PROBE)]
    claim = fanout_verdicts._shuffle([*rows, *paper])
    assert not claim.holds and f"{NO_PROBE}, F=4, 30 ms against 300 ms" in claim.why


@pytest.mark.parametrize(
    ("shares", "holds", "why"),
    [
        ((0.6, 0.4, 0.2), True, ""),  # nobody knows its latency, and more arrives
        ((0.3, 0.3, 0.3), True, ""),  # nobody can tell, and elsewhere it helps
        ((0.5, 0.33, 0.37), False, "It does but for less throughput at fast-uplink, F=2, 100 ms against 300 ms."),
    ],
)
def test_a_fanout_that_collapses_at_all_shuffle_times_is_judged_by_what_arrives(
    shares: tuple[float, ...], holds: bool, why: str
) -> None:
    times = (0.03, 0.1, 0.3)
    rows = [setting(2, shuffle, share, None) for shuffle, share in zip(times, shares, strict=True)]
    rows += [setting(4, shuffle, 1.0, 0.1 + shuffle) for shuffle in times]
    claim = fanout_verdicts._shuffle(rows)
    assert claim.holds is holds and claim.why == why


@pytest.mark.parametrize(("late", "why"), [(None, "Nobody can tell."), (0.2, "It helps nowhere: no gain")])
def test_a_shorter_shuffle_time_that_helps_nowhere_does_not_help(late: float | None, why: str) -> None:
    claim = fanout_verdicts._shuffle([setting(4, 0.03, 0.3, late), setting(4, 0.3, 0.3, late)])
    assert not claim.holds and claim.why.startswith(why)


@pytest.mark.parametrize(("larger", "holds"), [(0.9, True), (1.0, False)])
def test_four_is_the_most_that_uplinks_carry_only_if_larger_fanouts_do_not_keep_up(larger: float, holds: bool) -> None:
    rows = [setting(fanout, 0.03, 1.0 if fanout <= 4 else larger, 0.1) for fanout in (2, 4, 8)]
    claim = fanout_verdicts._derived(rows, "quick")
    assert claim.holds is holds and ("premise" in claim.why) is not holds


def test_catching_up_is_throughput_above_the_load_where_it_is_kept_up_with() -> None:
    behind = setting(8, 0.3, 0.9, 0.1)
    above = [setting(4, 0.03, 1.01, 0.1), setting(4, 0.3, 1.012, 0.1)]
    assert fanout_verdicts._catch_up([*above, behind]).holds, "who falls behind is no witness"
    noise = fanout_verdicts._catch_up([setting(4, 0.03, 0.99, 0.1), setting(4, 0.3, 1.02, 0.1)])
    assert not noise.holds and "two standard errors" in noise.why
    below = fanout_verdicts._catch_up([setting(4, 0.03, 0.981, 0.1), setting(4, 0.3, 0.982, 0.1)])
    assert not below.holds and not below.why, "no reason that the data does not show"


@pytest.mark.parametrize(("long", "depends"), [(4, True), (8, False)])
def test_the_best_fanout_depends_on_the_shuffle_time_only_if_it_does(long: int, depends: bool) -> None:
    def sql(query: str) -> list[dict[str, Any]]:
        first = long if "in (0.3)" in query else 8
        return [{**row, "share": 1.0, "latency": 0.1 + 0.1 * (row["fanout"] != first)} for row in by_fanout(f4=0, f8=0)]

    claim = fanout_verdicts._best(sql, "quick")
    assert not claim.holds and ("depends" in claim.why) is depends


def test_throughput_climbs_up_to_saturation_and_does_not_fall_after_it() -> None:
    def loads(*carried: tuple[float, float]) -> list[dict[str, Any]]:
        rows = [{**setting(4, 0.03, kept, 0.1), "load": at + 1.0} for at, (kept, _) in enumerate(carried)]
        return [{**row, "throughput": rate, "goodput": rate} for row, (_, rate) in zip(rows, carried, strict=True)]

    unreached = load_verdicts._climbs(loads((1.0, 1e6), (1.0, 2e6)))
    assert not unreached.holds and "Not reached: 2.00 M/s" in unreached.why
    assert not load_verdicts._climbs(loads((1.0, 5e6), (1.0, 1e6))).holds
    assert load_verdicts._climbs(loads((1.0, 1e6), (0.9, 2e6), (0.6, 1.9e6))).holds
    assert not load_verdicts._climbs(loads((1.0, 1e6), (0.9, 2e6), (0.6, 1e6))).holds


@pytest.mark.parametrize(("literal", "holds"), [(0.5, True), (0.99, False)])
def test_the_literal_reading_collapses_only_if_it_does(literal: float, holds: bool) -> None:
    rows = [setting(4, 0.03, 1.0, 0.1, reading) for reading in READINGS if reading != "literal-no-probe"]
    claim = fanout_verdicts._literal([*rows, setting(4, 0.03, literal, 0.1, "literal-no-probe")])
    assert claim.holds is holds and ("does not collapse" in claim.why) is not holds and "fanout of 1" not in claim.why


@pytest.mark.parametrize(
    ("paper", "probed", "uneven", "holds"),
    [(0.3, 0.12, 11.0, True), (0.12, 0.12, 11.0, False), (0.3, 0.3, 11.0, False), (0.3, 0.12, 4.0, False)],
)
def test_the_view_rule_sets_the_tail_only_if_it_does(paper: float, probed: float, uneven: float, holds: bool) -> None:
    latency = {"aged-views": 0.1, "paper-views": paper, "paper-views-probe": probed}
    rows = [setting(4, 0.03, 1.0, late, reading) for reading, late in latency.items()]
    for row in rows:
        row.update(in_degree_sd=3.0 if row["reading"] == "aged-views" else uneven, unknown=0.0)
    claim = fanout_verdicts._views(rows)
    assert claim.holds is holds and bool(claim.why) is not holds
    assert "nobody's view" not in claim.why, "no reason that the data does not show"
    rows[-1]["unknown"] = 3.0
    assert ("nobody's view" in fanout_verdicts._views(rows).why) is (probed >= 0.15)


def test_what_a_slow_proxy_suffers_from_is_said_where_the_data_show_it() -> None:
    shares = {"literal-no-probe": 0.5, "own-fanout-no-probe": 0.8, "own-fanout": 0.2}
    rows = [setting(4, 0.03, shares.get(reading, 1.0), 0.1, reading) for reading in READINGS]
    claim = fanout_verdicts._literal(rows)
    assert not claim.holds and "helps and does not mend it" in claim.why and "probe makes it worse" in claim.why
    assert UNEXPLAINED in claim.why and "because" not in claim.why, "its uplink is not full"
    full = [{**row, "proxy_uplink": 131e6} for row in rows]
    assert "1048 Mb/s are wanted of 1000" in fanout_verdicts._literal(full).why
    assert UNEXPLAINED not in fanout_verdicts._literal(full).why
    rows = [{**row, "goodput": 5e5} if row["reading"] == "own-fanout-no-probe" else row for row in rows]
    assert "does not help" in fanout_verdicts._literal(rows).why


def test_old_views_come_from_gossip_by_the_rule_of_the_reading() -> None:
    point = {"clients": 20, "view": 4, "rounds": 20, "seconds": 0.05, "load": 0.01, "fanout": 2, "shuffle": 0.3}
    ours, paper = (
        region_load.measure({**point, "seed": 1, "reading": each})[0] for each in ("aged-views", "paper-views")
    )
    assert paper["in_degree_sd"] > ours["in_degree_sd"] > 0


def test_who_is_late_but_keeps_up_is_not_saturated() -> None:
    """Late because of the links; the batches that were to arrive in 300 ms are counted all the same."""
    plan = {"clients": 4, "seconds": 1.2, "load": 0.05, "fanout": 2, "shuffle": 0.03, "reading": PRODUCT, "seed": 1}
    far = dict.fromkeys([("r0", "r1"), ("r0", "r2"), ("r1", "r2")], 0.32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_load, "LATENCY", far)
        patch.setattr(region_load, "DRIVEN", 1.5)
        rows = region_load.measure(plan)
    for row in rows:
        assert not fanout_verdicts.saturated(row) and 0.3 < row["latency_mean"] < 0.5
        assert row["unfinished"] > 0


def test_the_buffers_are_as_large_as_the_experiment_says() -> None:
    assert region_load.scenario(10, seconds=1.0).fabric.settings.recv_rows == 432_000
    assert region_load.scenario(10, rate=1000.0, seconds=1.0).fabric.settings.recv_rows == region_load.FEWEST


def test_runs_are_alike_only_if_all_settings_are() -> None:
    rows = [setting(4, 0.03, 1.0, 0.1), setting(4, 0.3, 1.0, 0.1)]
    assert fanout_verdicts._variance(rows).holds
    rows[0]["sd"] = 5e5
    claim = fanout_verdicts._variance(rows)
    assert not claim.holds and not claim.why
    rows[0]["kept"] = 0.5
    claim = fanout_verdicts._variance(rows)
    assert not claim.holds and "elsewhere at most 1.0%" in claim.why


def test_latency_counts_below_saturation_only() -> None:
    loads = [
        {**setting(4, 0.03, share, latency), "load": load, "latency_max": latency}
        for load, share, latency in ((1 / 6, 1.0, 0.1), (0.5, 1.0, 0.2), (11 / 6, 0.6, 2.0))
    ]
    assert load_verdicts._below(loads, "quick").holds
    loads[1]["latency"] = 0.35
    assert not load_verdicts._below(loads, "quick").holds


@pytest.mark.parametrize(
    ("four", "eight", "holds", "why"),
    [
        ((1.0, 0.6), (0.9, 0.4), True, ""),
        ((1.0, 0.6), (1.0, 0.6), False, "All fanouts overload it alike."),
        ((1.0, 1.0), (1.0, 1.02), False, "No fanout does."),
        ((1.0, 0.6), (1.0, 0.55), True, ""),
    ],
)
def test_some_fanouts_overload_only_if_others_do_less(
    four: tuple[float, ...], eight: tuple[float, ...], holds: bool, why: str
) -> None:
    loads = [
        {**setting(fanout, 0.03, share, 0.1), "load": load}
        for fanout, shares in ((4, four), (8, eight))
        for load, share in zip((7 / 6, 11 / 6), shares, strict=True)
    ]
    claim = load_verdicts._overload(loads)
    assert (claim.holds, claim.why) == (holds, why)


def test_an_origin_without_batches_has_no_place_in_the_figures() -> None:
    rows = [
        {**setting(4, shuffle, 0.3, None if load > 1 else 0.2), "load": load, "origin": origin}
        for load, shuffle in ((0.5, 0.03), (1.8, 0.3))
        for origin in region_load.NAMES
    ]
    axes = Figure().subplots()
    load_verdicts.paint_latency(rows, axes)
    assert [list(line.get_xdata()) for line in axes.get_lines()[:1]] == [[0.5]]
    fanout_verdicts.paint_fanout_latency(rows, Figure().subplots())
    assert load_verdicts._alike([{**row, "load": 0.5} for row in rows]).holds


def test_the_figure_by_shuffle_time_says_what_the_paper_does() -> None:
    axes = Figure().subplots()
    fanout_verdicts.paint_shuffle([setting(4, 0.03, 1.0, 0.1), setting(4, 0.3, 1.0, 0.1)], axes)
    assert "better in the paper" in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize(
    ("product", "without", "holds", "why"),
    [
        ((1.0, 0.16), (0.97, 0.4), False, "the probe repairs it"),
        ((1.0, 0.16), (1.0, 0.16), False, ""),
        ((1.0, 0.16), (1.0, None), False, "the probe repairs it"),
        ((0.9, 0.16), (0.9, 0.16), True, ""),
        ((0.9, 0.16), (1.0, 0.16), False, ""),
    ],
)
def test_a_small_fanout_hurts_with_the_probe_and_without_and_the_probe_is_named_where_it_is_why(
    product: tuple[float, float], without: tuple[float, float | None], holds: bool, why: str
) -> None:
    rows = [setting(2, 0.03, 1.0, 0.14), setting(2, 0.3, *product), setting(2, 0.03, 1.0, 0.15, NO_PROBE)]
    rows.append(setting(2, 0.3, *without, NO_PROBE))
    claim = fanout_verdicts._small(rows, "quick")
    assert claim.holds is holds and why in claim.why and bool(claim.why) is bool(why)
