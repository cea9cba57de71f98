"""What `tidings check` can check: the registry of targets.

A target is a module. Where seeds are run and judged one by one, it has

    run_seed(seed) -> outcome                       what one seed showed; outcomes.py says which fields it has
    summary(target, seeds, outcomes) -> result      optional; the default is that of outcomes.py

and runner.py runs it. Where a run is judged as a whole (Spark), it has ``run(seeds, progress) -> result``.

The targets of this tree are listed here. A family of protocols from outside (TIDINGS_PLUGINS) that names its campaign
is a target under its own name. A module is imported when it is run, so that `tidings check --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tidings.core.errors import BadInput
from tidings.protocols.fabrics.family import Family, from_plugins

SIMULATED = frozenset({"--jobs", "--master"})
"""Options of a target whose seeds need nothing but a processor."""


@dataclass(frozen=True)
class Target:
    """``options``: what it takes besides --seeds. ``mutants``: the module whose ``run`` plants bugs, for --mutants.

    ``tested``: modules that decide what a seed does, besides those that ``module`` imports.
    """

    name: str
    about: str
    module: str
    seeds: range = range(100)  # unless the command line says which
    options: frozenset[str] = SIMULATED
    mutants: str = ""
    by_seed: bool = True  # it has run_seed, and the ledger keeps what each seed showed
    tested: tuple[str, ...] = ()

    @property
    def campaign(self) -> Any:
        """Its module."""
        return import_module(self.module)

    @property
    def simulated(self) -> bool:
        """Whether seeds may run side by side, here or as Spark tasks."""
        return self.options >= SIMULATED


BUILTIN = (
    Target(
        "sprinkler",
        "a simulation of Sprinkler: regions, chains, clients",
        "tidings.campaign.sprinkler.campaign",
        options=SIMULATED | {"--mutants"},
        mutants="tidings.campaign.mutation.mutants",
    ),
    Target(
        "gryphon",
        "a simulation of Gryphon: relays and edges below replicas, filters, total order",
        "tidings.campaign.gryphon.campaign",
        options=SIMULATED | {"--mutants"},
        mutants="tidings.campaign.mutation.mutants",
    ),
    Target(
        "cluster",
        "clusters of real processes",
        "tidings.campaign.cluster.campaign",
        range(30),  # each takes about fifteen seconds
        frozenset({"--mutants", "--power-cuts"}),
        "tidings.campaign.cluster.planted_bugs",
    ),
    Target(
        "spark",
        "Spark queries that read",
        "tidings.campaign.spark.source_faults",
        range(14),  # one for each fault and sink, and two on a standalone Spark; each takes about a minute
        frozenset(),
        by_seed=False,
    ),
    Target(
        "sink",
        "Spark queries that write",
        "tidings.campaign.spark.sink_faults",
        range(1),  # it has every fault
        frozenset(),
        by_seed=False,
    ),
)

PROMISED = ("bounded", "fire", "qsm")
"""Targets that are designed but not built yet."""


def targets() -> list[Target]:
    """All there are."""
    return [*BUILTIN, *[_of_family(each) for each in from_plugins() if each.campaign]]


def _of_family(family: Family) -> Target:
    if family.name in (each.name for each in BUILTIN):
        raise BadInput(f"fabric {family.name!r} brings a campaign, but a target has that name: rename the fabric")
    ends = (family.source.__module__, family.member.__module__)
    return Target(family.name, f"a simulation of the fabric {family.name}", family.campaign, tested=ends)


def target_of(name: str) -> Target:
    """The target of that name; raises `BadInput`."""
    known = {each.name: each for each in targets()}
    if name not in known:
        raise BadInput(f"there is no target {name!r}: must be one of {', '.join(known)}")
    return known[name]
