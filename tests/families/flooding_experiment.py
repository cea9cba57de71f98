"""The experiment of the toy: how many members lack something, by the share of messages that are lost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from families.flooding_campaign import run_seed
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.study import Sql, Study


def points(scale: str) -> list[dict[str, Any]]:
    """Seeds of the campaign."""
    return [{"seed": seed} for seed in range(3 if scale == "quick" else 30)]


def measure(point: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How often a member fell back to a replica."""
    return [{"lacks": run_seed(point["seed"])["reports"].get("flood_lacks", 0.0)}]


def report(sql: Sql, scale: str, out: Path) -> Findings:
    """Under faults some floods do not reach everybody."""
    (row,) = sql("select sum(lacks) as lacks from results")
    return Findings([Claim("FL1", "floods miss somebody", "more than 0", f"{row['lacks']:.0f}", row["lacks"] > 0)])


STUDIES = (Study("flooding", points, measure, report),)
EXPERIMENTS = (Experiment("flooded", "flooding", "what floods miss", ("FL1",), "flooding"),)
