"""`tidings lab tune`: it recommends what its own simulations found best, in words that cluster.toml understands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidings.core.errors import BadInput
from tidings.lab import tune
from tidings.server import plan


def test_the_best_of_what_was_tried_is_recommended_and_fits_a_cluster(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, few in (("FANOUTS", (1, 3)), ("SHUFFLES", (0.03,)), ("VIEWS", (8,)), ("BUFFERS", (0.25, 0.5))):
        monkeypatch.setattr(tune, name, few)
    monkeypatch.setattr(tune, "MOST", 12)
    monkeypatch.setattr(tune, "SECONDS", 0.4)
    found = tune.run(2, 1000, 20_000.0, tmp_path)

    assert found["simulated_clients"] == tune.MOST < found["clients"]
    tried = [row for row in found["tried"] if row["sweep"] == "fanout"]
    assert {row["fanout"] for row in tried} == {1, 3}
    best = max(tried, key=lambda row: (row["share"], -row["unfinished"], -row["latency"]))
    assert found["recommended"]["fanout"] == best["fanout"] and found["recommended"]["recv_rows"] in (5_000, 10_000)
    assert found["carried"] > 0.9 and found["latency_ms"] > 0 and found["uplink_mbit_s"] > 0
    assert all(Path(path).stat().st_size > 5_000 for path in found["figures"])

    whole = found["toml"] + '[[regions]]\nname = "r0"\nconfig = "127.0.0.1:7409"\nreplicas = ["127.0.0.1:7400"]\n'
    (tmp_path / "cluster.toml").write_text(whole)
    settings = plan.load(tmp_path / "cluster.toml").protocol
    assert {name: getattr(settings, name) for name in found["recommended"]} == found["recommended"]


def test_a_default_stays_unless_something_is_clearly_better() -> None:
    default = {"fanout": 4, "shuffle": 0.03, "view": 20, "recv_seconds": 0.5}

    def row(share: float, latency: float, **setting: float) -> dict[str, Any]:
        return {**default, **setting, "share": share, "unfinished": 0, "latency": latency}

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
