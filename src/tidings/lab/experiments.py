"""The experiments that exist, by id; `run` executes one, or all of a paper, and gathers the verdicts.

Experiments that share simulations name the same study, which then runs once. A family of protocols may bring its own
(`Family.experiments`).
"""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

from tidings.core.errors import BadInput
from tidings.lab import study
from tidings.lab.claims import Experiment
from tidings.lab.gryphon import beyond, failure_verdicts, overhead, real_failures, total_order
from tidings.lab.sprinkler import (
    calibration_verdicts,
    collection,
    extensions,
    fanout_verdicts,
    link_verdicts,
    load_verdicts,
    real_cut,
)
from tidings.protocols.fabrics.family import families
from tidings.sim.run import Progress

MODULES = (
    *(fanout_verdicts, load_verdicts, link_verdicts, collection, extensions, calibration_verdicts, real_cut),
    *(overhead, failure_verdicts, real_failures, beyond, total_order),
)
BROUGHT = [import_module(name) for family in families() for name in family.experiments]
STUDIES = {each.name: each for module in (*MODULES, *BROUGHT) for each in module.STUDIES}
EXPERIMENTS: dict[str, Experiment] = {each.id: each for module in (*MODULES, *BROUGHT) for each in module.EXPERIMENTS}
PROMISED = ("bounded", "fire", "qsm")  # papers whose experiments are not built yet

SCALES = ("quick", "full")


def run(name: str, scale: str, out: Path, master: str = "local[2]", progress: Progress | None = None) -> dict[str, Any]:
    """Run an experiment, or every experiment of a paper; figures and data go to ``out``."""
    chosen = [each for each in EXPERIMENTS.values() if name in (each.id, each.paper)]
    if not chosen:
        papers = dict.fromkeys(each.paper for each in EXPERIMENTS.values())
        why = f"the experiments of {name} are not built yet" if name in PROMISED else f"no experiment or paper {name!r}"
        raise BadInput(f"{why}: must be one of {', '.join([*EXPERIMENTS, *papers])}")
    if scale not in SCALES:
        raise BadInput(f"no scale {scale!r}: must be one of {', '.join(SCALES)}")
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    wanted = [STUDIES[name] for name in dict.fromkeys(each.study for each in chosen)]
    findings = study.run(wanted, scale, out, master, progress)
    claims = {claim for each in chosen for claim in each.claims}
    return {
        "experiment": name,
        "scale": scale,
        "claims": [claim.json() for found in findings.values() for claim in found.claims if claim.id in claims],
        "figures": [path for each in chosen for path in findings[each.study].figures.get(each.id, ())],
        "data": [path for each in chosen for path in findings[each.study].data.get(each.id, ())],
        "seconds": round(time.perf_counter() - began, 2),
    }
