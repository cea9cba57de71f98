"""`tidings lab tune`: it recommends what its own simulations found best, in words that cluster.toml understands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from tidings.core.errors import BadInput
from tidings.lab import tune
from tidings.lab.sprinkler import region_load
from tidings.server import cluster_config


def test_the_best_of_what_was_tried_is_recommended_and_fits_a_cluster(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, few in (("FANOUTS", (1, 3)), ("SHUFFLES", (0.03,)), ("VIEWS", (8,)), ("BUFFERS", (0.25, 0.5))):
        monkeypatch.setattr(tune, name, few)
    for name, value in (("MOST", 12), ("CONFIRMED", 16), ("SECONDS", 0.4)):
        monkeypatch.setattr(tune, name, value)
    found = tune.run(2, 1000, 20_000.0, tmp_path)

    assert (found["simulated_clients"], found["confirmed_clients"], found["clients"]) == (12, 16, 1000)
    assert {row["clients"] for row in found["tried"]} == {12}
    assert {row["clients"] for row in found["confirmed"]} == {16}
    assert "# simulated with 16 clients per region, of 1000\n" in found["toml"]
    tried = [row for row in found["tried"] if row["sweep"] == "fanout"]
    assert {row["fanout"] for row in tried} == {1, 3}
    assert {row["finished"] for row in tried if row["share"] == 1.0} == {1.0}
    best = max(found["confirmed"], key=lambda row: (row["share"], row["finished"], -row["latency"]))
    assert found["recommended"]["fanout"] == best["fanout"] and found["recommended"]["recv_rows"] in (5_000, 10_000)
    assert found["carried"] > 0.9 and found["enough"] and found["latency_ms"] > 0 and found["uplink_mbit_s"] > 0
    assert all(Path(path).stat().st_size > 5_000 for path in found["figures"])

    whole = found["toml"] + '[[regions]]\nname = "r0"\nconfig = "127.0.0.1:7409"\nreplicas = ["127.0.0.1:7400"]\n'
    (tmp_path / "cluster.toml").write_text(whole)
    settings = cluster_config.load(tmp_path / "cluster.toml").fabric.settings
    assert {name: getattr(settings, name) for name in found["recommended"]} == found["recommended"]


Measured: TypeAlias = Callable[[dict[str, Any]], tuple[float, float, float | None]]
"""From a point to share, finished and latency."""


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch) -> Callable[[Measured], None]:
    """A fabric that behaves as somebody says, in place of the simulations."""

    def behave(measured: Measured) -> None:
        def settings(name: str, base: Any, choices: list[Any], *_: Any) -> list[dict[str, Any]]:
            rows = []
            for point in [{**base, **choice} for choice in choices]:
                share, finished, latency = measured(point)
                said = {"share": share, "finished": finished, "latency": latency, "unfinished": int(finished < 1)}
                cluster_config = region_load.scenario(1, rate=point["rate"], seconds=1.0)
                offered = point["regions"] * cluster_config.publishers[-1].rate
                rows.append({**point, **said, "uplink": 1e6 * point["fanout"], "offered": offered})
            return sorted(rows, key=lambda row: (-row["share"], -row["finished"], row["latency"] or 9))

        monkeypatch.setattr(tune, "_settings", settings)

    return behave


@pytest.mark.parametrize(
    ("rate", "simulated", "told"), [(290.0, 200.0, True), (999.0, 1000.0, False), (864_000.0, 864_000.0, False)]
)
def test_the_load_that_was_simulated_is_told_where_it_is_another(
    fabric: Any, tmp_path: Path, rate: float, simulated: float, told: bool
) -> None:
    fabric(lambda point: (1.0, 1.0, 0.1))
    found = tune.run(3, 5, rate, tmp_path)
    assert found["simulated_rate"] == pytest.approx(simulated)
    assert [note for note in found["notes"] if "simulated with 200 events/s per region, not 290" in note] == (
        found["notes"] if told else []
    )
    assert ("not 290" in found["toml"]) is told


def test_what_fails_at_the_true_size_is_not_recommended(fabric: Any, tmp_path: Path) -> None:
    def measured(point: dict[str, Any]) -> tuple[float, float, float]:
        if point["fanout"] == 2:
            return (0.49, 0.0, 0.4) if point["clients"] > 120 else (1.0, 1.0, 0.05)
        return 1.0, 1.0, 0.1 + 0.02 * abs(point["fanout"] - 3)

    fabric(measured)
    small, large = tune.run(3, 120, 864_000.0, tmp_path), tune.run(3, 1000, 864_000.0, tmp_path)
    assert (small["recommended"]["fanout"], small["confirmed_clients"], small["confirmed"]) == (2, 120, [])
    assert (large["recommended"]["fanout"], large["confirmed_clients"], large["latency_ms"]) == (3, 1000, 100.0)
    assert {row["fanout"] for row in large["confirmed"]} == set(tune.FANOUTS)
    assert large["notes"] == []


def test_the_size_of_what_is_confirmed_is_bounded_and_told(fabric: Any, tmp_path: Path) -> None:
    fabric(lambda point: (1.0, 1.0, 0.1))
    for regions, clients, size in ((3, 5000, 1000), (6, 5000, 500), (25, 5000, 120)):
        found = tune.run(regions, clients, 864_000.0, tmp_path)
        assert found["confirmed_clients"] == size
        assert found["notes"] == [f"simulated with {size} clients per region, of {clients}"]


@pytest.mark.parametrize(("share", "finished", "latency"), [(0.61, 0.2, 0.4), (0.0, 0.0, None)])
def test_settings_that_do_not_carry_the_load_are_not_called_good(
    fabric: Any, tmp_path: Path, share: float, finished: float, latency: float | None
) -> None:
    fabric(lambda point: (share, finished, latency))
    found = tune.run(3, 5, 6e6, tmp_path)
    assert not found["enough"] and found["carried"] == share
    assert found["latency_ms"] is None, "the end of the run has cut it off"
    (note,) = found["notes"]
    assert f"carries 6,000,000 events/s per region to 5 clients: the most is {share:.0%}" in note
    assert f"# {note}\n" in found["toml"]
    fabric(lambda point: (0.98, 1.0, 0.4))
    assert tune.run(3, 5, 6e6, tmp_path)["enough"]


def test_a_setting_does_not_gain_by_batches_that_were_never_offered(spark: Any) -> None:
    def rows(fanout: int, due: int, unfinished: int, latency: float | None) -> dict[str, Any]:
        setting = {"fanout": fanout, "shuffle": 0.03, "view": 20, "recv_seconds": 0.5, "clients": 5}
        said = {"offered": 100.0, "goodput": 50.0, "latency_mean": latency, "uplink": 1.0}
        return {**setting, **said, "due": due, "unfinished": unfinished}

    made = [rows(2, 20, 0, 0.1), rows(3, 41, 10, 0.4), rows(4, 0, 0, None)]
    spark.createDataFrame(pa.Table.from_pylist(made)).createOrReplaceTempView("results")
    found = [row.asDict() for row in spark.sql(tune.SETTINGS.format(batches=41)).collect()]
    assert [(row["fanout"], float(row["finished"])) for row in found] == [(3, 0.75), (2, 0.5), (4, 0.0)]


def test_the_figure_tells_the_share_and_marks_what_was_cut_off(fabric: Any, tmp_path: Path) -> None:
    def measured(point: dict[str, Any]) -> tuple[float, float, float]:
        return (0.49, 0.3, 0.4) if point["fanout"] == 2 else (1.0, 1.0, 0.1 + point["shuffle"])

    fabric(measured)
    found = tune.run(3, 1000, 864_000.0, tmp_path)
    axes = Figure().subplots()
    tune.paint(found["tried"], found["confirmed"], tune.DEFAULT, axes)
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("49%, 16 Mb/s") == 4 and texts.count("100%, 32 Mb/s") == 4
    assert len({text.get_position() for text in axes.texts}) == len(texts) == 4 * 5, "none stands upon another"
    hollow = {
        round(float(line.get_xdata()[0]))
        for line in axes.lines
        if line.get_markerfacecolor() == "white" and len(line.get_xdata())
    }
    assert hollow == {2}


def test_a_default_stays_unless_something_is_clearly_better() -> None:
    default = {"fanout": 4, "shuffle": 0.03, "view": 20, "recv_seconds": 0.5}

    def row(share: float, latency: float, **setting: float) -> dict[str, Any]:
        return {**default, **setting, "share": share, "finished": 1.0, "latency": latency}

    assert tune._better(default, [row(1.0, 0.098, view=10), row(1.0, 0.1)]) == default
    assert tune._better(default, [row(1.0, 0.090, view=10), row(1.0, 0.1)])["view"] == 10
    assert tune._better(default, [row(1.0, 0.150, view=10), row(0.9, 0.1)])["view"] == 10
    assert tune._better(default, [row(1.0, 0.150, view=10)])["view"] == 10


def test_nothing_to_tune_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="must be positive"):
        tune.run(0, 10, 1000.0, tmp_path)
    for rate in (0.0, 100.0, float("nan"), float("inf")):
        with pytest.raises(BadInput, match="the defaults do"):
            tune.run(1, 10, rate, tmp_path)


@pytest.mark.parametrize(("regions", "clients", "rate"), [(3, 1_000_000, 1000.0), (26, 10, 1000.0), (3, 10, 1e12)])
def test_what_cannot_be_simulated_is_refused_in_a_line(tmp_path: Path, regions: int, clients: int, rate: float) -> None:
    with pytest.raises(BadInput, match="simulat") as raised:
        tune.run(regions, clients, rate, tmp_path)
    assert "\n" not in str(raised.value)
