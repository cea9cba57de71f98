"""The experiments that exist, by id; `run` executes one, or all of a paper, and gathers the verdicts.

Experiments that share a simulation name the same study, which then runs once.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tidings.core.errors import BadInput
from tidings.lab import link_cut
from tidings.lab.claims import Experiment, Findings, Study
from tidings.sim.run import Progress

EXPERIMENTS: dict[str, Experiment] = {each.id: each for each in link_cut.EXPERIMENTS}

SCALES = ("quick", "full")


def run(name: str, scale: str, out: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Run an experiment, or every experiment of a paper; figures and data go to ``out``."""
    chosen = [each for each in EXPERIMENTS.values() if name in (each.id, each.paper)]
    if not chosen:
        papers = dict.fromkeys(each.paper for each in EXPERIMENTS.values())
        raise BadInput(f"no experiment or paper {name!r}: must be one of {', '.join([*EXPERIMENTS, *papers])}")
    if scale not in SCALES:
        raise BadInput(f"no scale {scale!r}: must be one of {', '.join(SCALES)}")
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    studies: dict[Study, Findings] = {}
    for each in chosen:
        if each.study not in studies:
            studies[each.study] = each.study(scale, out, progress)
    wanted = {claim for each in chosen for claim in each.claims}
    return {
        "experiment": name,
        "scale": scale,
        "claims": [claim.json() for found in studies.values() for claim in found.claims if claim.id in wanted],
        "figures": [path for each in chosen for path in studies[each.study].figures[each.id]],
        "data": [path for each in chosen for path in studies[each.study].data[each.id]],
        "seconds": round(time.perf_counter() - began, 2),
    }
