"""GR1, GR2 and what is beyond the paper: the judges can fail, best effort differs in what it says, order holds."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.core.rows import data_rows
from tidings.core.span import Span
from tidings.lab.gryphon import beyond, overhead, total_order
from tidings.lab.gryphon.best_effort import BestEffortSubend
from tidings.lab.gryphon.beyond import Numbers
from tidings.lab.gryphon.overhead import BEST, GUARANTEED, Costs
from tidings.lab.gryphon.topology import CELLS, EDGES
from tidings.protocols.brokers.broker import label
from tidings.protocols.brokers.broker_messages import Brokered, BrokerSettings

GOOD: dict[str, dict[str, tuple[float, float]]] = {  # with 100 and 1,000 subscribers
    GUARANTEED: {
        "edge": (12.0, 32.0),
        "site": (15.0, 15.5),
        "local_p50": (4.0, 4.0),
        "remote_p50": (5.0, 9.0),
        "remote_p99": (20.0, 40.0),
        "wrong": (0, 0),
    },
    BEST: {
        "edge": (10.0, 30.0),
        "site": (11.0, 11.5),
        "local_p50": (3.0, 3.0),
        "remote_p50": (4.0, 8.0),
        "remote_p99": (20.0, 40.0),
        "wrong": (0, 0),
    },
}


def costs(mode: str = "", name: str = "", values: tuple[float, float] = (0, 0)) -> dict[str, bool]:
    """The verdicts with one series changed."""
    rows: list[dict[str, Any]] = []
    for each, series in GOOD.items():
        for at, count in enumerate((100, 1000)):
            row = {key: value[at] for key, value in series.items()}
            if each == mode:
                row[name] = values[at]
            rows.append({"mode": each, "count": count, "others": 0.1, **row})
    claims = [judge(Costs(rows)) for judge in overhead.JUDGES]
    assert all(claim.json()["why"] for claim in claims if not claim.holds)
    return {claim.id: claim.holds for claim in claims}


def test_what_the_paper_describes_is_found_to_hold() -> None:
    assert all(costs().values())
    assert set(costs()) == {*overhead.GR1, *overhead.GR2}


@pytest.mark.parametrize(
    ("ident", "mode", "name", "values"),
    [
        ("GR1.edge", BEST, "edge", (31.0, 30.0)),
        ("GR1.overhead", GUARANTEED, "edge", (12.0, 35.0)),
        ("GR1.flat", GUARANTEED, "edge", (10.5, 33.0)),
        ("GR1.site", GUARANTEED, "site", (15.0, 19.0)),
        ("GR1.logging", GUARANTEED, "site", (11.0, 15.0)),
        ("GR1.exactly-once", GUARANTEED, "wrong", (0, 1)),
        ("GR2.local", GUARANTEED, "local_p50", (4.0, 9.0)),
        ("GR2.remote", BEST, "remote_p50", (9.0, 8.0)),
        ("GR2.difference", GUARANTEED, "remote_p50", (5.0, 19.0)),
        ("goal.fanout-p99", GUARANTEED, "remote_p99", (20.0, 101.0)),
    ],
)
def test_each_claim_can_differ(ident: str, mode: str, name: str, values: tuple[float, float]) -> None:
    assert costs(mode, name, values)[ident] is False


def test_a_busy_machine_is_named_with_every_claim() -> None:
    rows = [
        {"mode": mode, "count": count, "others": 1.4, **{key: value[at] for key, value in series.items()}}
        for mode, series in GOOD.items()
        for at, count in enumerate((100, 1000))
    ]
    assert all("1.4 processors" in claim.why for claim in overhead.judged(Costs(rows)))


def test_best_effort_hands_over_what_comes_and_asks_for_nothing() -> None:
    subend = BestEffortSubend("s", 7, 1, 1, BrokerSettings())

    def told(lo: int, life: int = 7) -> Brokered:
        return Brokered("s", (Span("s", lo, lo + 1, lo, data_rows(lo, None, [b"x"]), label(life, 1)),))

    assert [(span.lo, span.hi, span.rows.count) for span in subend.accept(0.0, told(1))] == [(1, 2, 1)]
    assert [(span.lo, span.hi, span.rows.count) for span in subend.accept(0.0, told(4))] == [(2, 4, 0), (4, 5, 1)]
    assert subend.accept(0.0, told(3)) == [] and subend.accept(0.0, told(6, life=6)) == []
    assert subend.due(99.0) == [] and subend.expected(99.0, 50) == []


# --- beyond the paper -------------------------------------------------------------------------------------------------


def numbers(**changed: float) -> dict[str, bool]:
    """The verdicts over good numbers, some of which are changed: by kind_value_name_where."""
    found: dict[tuple[str, float, str, str], float] = {}
    for loss in beyond.LOSSES:
        found |= {("loss", loss, "violations", ""): 0, ("loss", loss, "p99", ""): 0.5}
        found["loss", loss, "published", ""] = 1000
        found |= {("loss", loss, "asked", edge): 10 for edge in EDGES}
        found |= {("loss", loss, "asked", relay): 5 for cell in CELLS.values() for relay in cell}
    for share in (1.0, 1 / beyond.KEYS):
        for cell, relays in CELLS.items():
            part = 1.0 if share == 1.0 else 0.1 * sum(above == cell for above in EDGES.values())
            for relay in relays:
                found["filters", share, "rows", f"p1 to {relay}"] = 1000 * part
                found["filters", share, "bytes", f"p1 to {relay}"] = 100_000 * part
        for edge in EDGES:
            found["filters", share, "rows", f"relays to {edge}"] = 2000 * share
            found["filters", share, "bytes", f"relays to {edge}"] = 200_000 * share
    for dct, late in ((0.0, 11.0), (beyond.DCT, 0.6)):
        found |= {
            ("dct", dct, "noticed", ""): late,
            ("dct", dct, "idle_nacks", ""): 1,
            ("dct", dct, "violations", ""): 0,
        }
    found |= {("cell", 0.0, "silence", edge): 3.0 if EDGES[edge] == "IB1" else 0.02 for edge in EDGES}
    found["cell", 0.0, "violations", ""] = 0
    for key, value in changed.items():
        kind, at, name, where = key.split("__")
        assert (kind, float(at.replace("p", ".")), name, where.replace("_", " ")) in found
        found[kind, float(at.replace("p", ".")), name, where.replace("_", " ")] = value
    rows = [
        {"kind": kind, "value": value, "name": name, "where": where, "measured": float(number)}
        for (kind, value, name, where), number in found.items()
    ]
    return {claim.id: claim.holds for claim in [judge(Numbers(rows)) for judge in beyond.JUDGES]}


def test_good_numbers_hold() -> None:
    assert all(numbers().values())
    assert set(numbers()) == set(beyond.EXPERIMENTS[0].claims)


@pytest.mark.parametrize(
    ("ident", "key", "value"),
    [
        ("ours.loss", "loss__0p05__violations__", 1),
        ("ours.loss", "loss__0p1__p99__", 2.0),
        ("ours.loss-nacks", "loss__0p02__asked__b2", 60),
        ("ours.filters", "filters__0p1__rows__p1_to_b3", 900),
        ("ours.filters", "filters__0p1__bytes__p1_to_b1", 90_000),
        ("ours.filters", "filters__0p1__rows__relays_to_s4", 400),
        ("ours.dct", "dct__0p5__noticed__", 5.0),
        ("ours.dct", "dct__0p0__noticed__", 0.5),
        ("ours.dct", "dct__0p0__noticed__", 60.0),
        ("ours.dct", "dct__0p5__violations__", 1),
        ("ours.cell", "cell__0p0__silence__s2", 30.0),
        ("ours.cell", "cell__0p0__silence__s4", 1.0),
        ("ours.cell", "cell__0p0__violations__", 1),
    ],
)
def test_each_number_beyond_the_paper_can_differ(ident: str, key: str, value: float) -> None:
    assert numbers(**{key: value})[ident] is False


# --- total order ------------------------------------------------------------------------------------------------------


def test_total_order_is_judged_by_the_later_region_and_by_what_is_wrong() -> None:
    good = {("p99", region): [0.04] for region in ("here", "there")}
    good |= {("p50", region): [0.03] for region in ("here", "there")} | {("count", r): [9.0] for r in ("here", "there")}
    good["wrong", ""] = [0.0]
    assert total_order.judge_order(good).holds
    assert not total_order.judge_order(good | {("p99", "there"): [0.06]}).holds
    assert not total_order.judge_order(good | {("wrong", ""): [1.0]}).holds


def test_a_merge_of_two_regions_is_in_order_and_not_late() -> None:
    found: dict[tuple[str, str], list[float]] = {}
    for row in total_order.measure({"seed": 3}):
        found[row["name"], row["owner"]] = [row["measured"]]
    assert found["count", "here"][0] > 1000 and total_order.judge_order(found).holds
