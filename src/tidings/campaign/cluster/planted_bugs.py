"""Bugs planted in real replicas that the campaign against real processes must catch.

The replicas run from a patched copy of the package (PYTHONPATH to a temporary tree); clients and judges are not
patched. Seeds are run until one shows the bug, beginning with those whose faults bear on it. The seed that caught the
bug is then run without the bug and must pass: a seed that fails in both cases proves nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidings.campaign.cluster import campaign as cluster_campaign
from tidings.campaign.cluster import power_cuts
from tidings.campaign.cluster.faults import Episode, kill_role, pause, pause_head, strand
from tidings.campaign.mutation.planted import Mutant
from tidings.campaign.sprinkler.planted_bugs import PLANTED
from tidings.core.errors import BadInput
from tidings.sim.run import Progress

ROOT = Path(__file__).parents[2]
SEEDS = 12  # that a bug may survive before it counts as escaped
CUTS = 4  # power cuts that a bug faces at a time

SYNC = Mutant(
    "sync-left-out",
    "store.disk",
    "self._environment.sync(True)\n        if self.on_sync is not None:",
    "if False and self.on_sync is not None:",
    "a group is reported as durable without having been synced",
)


@dataclass(frozen=True)
class Planted:
    """A bug and where it should show: in seeds with some of these faults, or (none) when the power is cut."""

    mutant: Mutant
    episodes: tuple[Episode, ...]


def mutants() -> list[Planted]:
    """What is planted."""
    by = {each.id: each for each in PLANTED}
    return [
        Planted(by["head-commits-at-persist"], (strand,)),
        Planted(by["old-epoch-accepted"], (pause_head, pause)),
        Planted(by["collection-by-uncommitted"], (kill_role, strand)),
        Planted(SYNC, ()),
    ]


def patched(mutant: Mutant, folder: Path) -> Path:
    """A copy of the package with the bug in it; what PYTHONPATH must name."""
    shutil.copytree(ROOT, folder / "tidings", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "tidings" / f"{mutant.module.replace('.', '/')}.py"
    path.write_text(mutant.apply(path.read_text()))
    return folder


def hunt(planted: Planted, seeds: int = SEEDS) -> dict[str, Any]:
    """Run seeds until one shows the bug; which, and by what."""
    mutant = planted.mutant
    with tempfile.TemporaryDirectory(prefix=f"tidings-{mutant.id}-") as folder:
        environment = cluster_campaign.environment_with(patched(mutant, Path(folder)))
        tried = cluster_campaign.suited(planted.episodes, seeds) if planted.episodes else list(range(seeds))
        for at, seed in enumerate(tried):
            if planted.episodes:
                found = cluster_campaign.run_seed(seed, environment)["violations"]
            else:
                cut = power_cuts.run(CUTS, seed, environment=environment)
                found = [(each["invariant"], each["detail"]) for each in cut["violations"]]
            if found:
                by = sorted({invariant for invariant, _ in found})
                return {"id": mutant.id, "seed": seed, "tried": at + 1, "by": by, "detail": found[0][1][:300]}
    return {"id": mutant.id, "seed": None, "tried": len(tried), "by": [], "detail": ""}


def without(planted: Planted, seed: int) -> list[Any]:
    """What the same seed shows without the bug."""
    if planted.episodes:
        return list(cluster_campaign.run_seed(seed)["violations"])
    return list(power_cuts.run(CUTS, seed)["violations"])


def run(
    target: str = "cluster",
    progress: Progress | None = None,
    jobs: int = 1,
    only: str | None = None,
    hunting: Callable[[Planted], dict[str, Any]] = hunt,
) -> dict[str, Any]:
    """Plant each bug, one after the other whatever ``jobs`` says (the JSON of `tidings check cluster --mutants`)."""
    chosen = [each for each in mutants() if only in (None, each.mutant.id)]
    if not chosen:
        raise BadInput(f"mutant {only!r} is unknown: there are {', '.join(each.mutant.id for each in mutants())}")
    found: list[dict[str, Any]] = []
    broken: list[str] = []
    for at, planted in enumerate(chosen):
        result = hunting(planted)
        found.append({**result, "what": planted.mutant.what})
        if result["seed"] is None:
            broken.append(f"planted {result['id']} escaped {result['tried']} seeds")
        elif without(planted, result["seed"]):
            broken.append(f"seed {result['seed']}, which caught {result['id']}, fails without it, too")
        if progress is not None:
            progress(at + 1, len(chosen), planted.mutant.id)
    escaped = [each["id"] for each in found if each["seed"] is None]
    return {
        "target": target,
        "mutants": len(found),
        "caught": len(found) - len(escaped),
        "escaped": escaped,
        "planted": found,
        "generated": {"mutants": 0, "caught": 0, "survivors": []},
        "broken": broken,
    }
