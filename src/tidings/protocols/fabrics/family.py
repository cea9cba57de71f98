"""Families of protocols: what a fabric must offer, and the registry in which one line makes it known everywhere.

A *fabric* spreads a region's committed spans from its replicas to its clients. It has two ends. The *source* runs
inside every replica, the *member* inside every client that takes part. Both are machines (kernel.py). A fabric may be
best effort: whatever its members lack is fetched from a replica.

A scenario or a cluster file chooses a fabric by name and sets its options:

    [fabric]
    kind = "pull"
    fanout = 3

To add one, write the two machines and call `register`. Simulator, cluster, client, campaigns, experiments and command
line find it here. A fabric outside this package is imported through the environment variable TIDINGS_PLUGINS
(plugins.py). docs/guide/families.md tells what a family brings.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tidings.core.errors import BadInput
from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.protocols.kernel import Command, Effects, Machine, Message, Time, Timer, Value, below
from tidings.protocols.replication.chain_config import ChainConfig

if TYPE_CHECKING:  # `tidings check --help` lists families, and does not wait for numpy and Arrow
    from tidings.core.history import History
    from tidings.core.span import Span

BUILTIN = {"pull": "tidings.protocols.fabrics.pull_fabric"}
"""Fabrics of this package, and the modules that register them."""

PROMISED = ("bounded", "pbcast", "token")
"""Fabrics that are designed but not built yet."""

PLUGINS = "tidings.plugins"
"""Imports what the environment names; outside of this package, which knows no environment."""


class FabricSource(Machine, Protocol):
    """A fabric at a replica."""

    @property
    def handles(self) -> frozenset[type]:
        """The messages and timers that are for this end."""
        ...

    def reconfigured(self, now: Time, config: ChainConfig) -> Effects:
        """The region's chain has another configuration; only its tail feeds the fabric."""
        ...

    def committed(self, now: Time, stream: StreamId) -> Effects:
        """The history of a stream has grown."""
        ...

    def forget(self, stream: StreamId) -> None:
        """The stream is gone."""
        ...

    def introduce(self, others: Sequence[NodeId], rng: random.Random) -> None:
        """Know these nodes from the beginning, as after a long run (simulations with ``warm_views``)."""
        ...


class FabricMember(Machine, Protocol):
    """A fabric at a client: delivers every stream's spans in order, once (``Deliver(span)``).

    It delivers a `ChainConfig` when it learns of a newer one.
    """

    @property
    def handles(self) -> frozenset[type]:
        """The messages and timers that are for this end."""
        ...

    @property
    def config(self) -> ChainConfig:
        """The newest configuration of the region's chain that this member knows."""
        ...

    @property
    def horizons(self) -> dict[StreamId, int]:
        """How far each stream has been delivered."""
        ...

    def learn(self, now: Time, config: ChainConfig) -> Effects:
        """Somebody else has told of another configuration of the region's chain."""
        ...

    def forget(self, stream: StreamId) -> None:
        """The region has no such stream any more."""
        ...

    def horizon(self, stream: StreamId) -> int | None:
        """The first number of a stream that was not delivered; None of a stream that nobody has told of."""
        ...

    def expected(self, stream: StreamId) -> int:
        """The first number of a known stream that nobody is known to have."""
        ...

    def covers(self, stream: StreamId, at: int) -> bool:
        """Whether `read` can continue at this number."""
        ...

    def read(self, stream: StreamId, lo: int, hi: int, limit: int) -> Span:
        """What was delivered from ``lo`` on, a covered number; at most about so many rows."""
        ...

    def introduce(self, others: Sequence[NodeId], rng: random.Random) -> None:
        """Know these nodes from the beginning, as after a long run (simulations with ``warm_views``)."""
        ...

    def gauges(self) -> Iterable[tuple[str, float, float]]:
        """What is bounded: name, value, bound."""
        ...


class Place(Value, frozen=True, gc=False):
    """Where an end of a fabric runs."""

    me: NodeId
    region: RegionId
    config: ChainConfig


def as_given(options: Mapping[str, Any], rows: int) -> Mapping[str, Any]:
    """The default of `Family.fit`: no option depends on the load."""
    return options


@dataclass(frozen=True)
class Family:
    """A family of protocols: a fabric, its options, and what judges it.

    ``options``: a class of options, all with defaults.
    ``invariants``: functions from a trace to violations; they judge every run of this fabric, besides those that hold
    of all runs (check/).
    ``campaign``: the module of a fault campaign of its own, which becomes a target of `tidings check` under the
    family's name (campaign/targets.py); "" if it has none.
    ``experiments``: modules with STUDIES and EXPERIMENTS, for `tidings lab`.
    ``fit``: the options of a simulation, from those that its scenario gives and the rows that a buffer is to hold
    (``recv_seconds`` of the busiest stream).
    """

    name: str
    options: type[Any]
    source: Callable[[Place, Any, Mapping[StreamId, History], random.Random], FabricSource]
    member: Callable[[Place, Any, Mapping[StreamId, int], random.Random], FabricMember]
    invariants: tuple[Callable[[Any], list[Any]], ...] = ()
    campaign: str = ""
    experiments: tuple[str, ...] = ()
    fit: Callable[[Mapping[str, Any], int], Mapping[str, Any]] = as_given


_FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Make a family known; two may not have one name, and nor may two messages, whose tag it is on the wire."""
    if _FAMILIES.get(family.name, family) is not family:
        raise BadInput(f"fabric {family.name!r} is registered twice")
    _refuse_shared_tags(family)
    return _FAMILIES.setdefault(family.name, family)


def _refuse_shared_tags(family: Family) -> None:
    mine = set(map(id, vars(sys.modules[family.source.__module__]).values()))
    named: dict[str, type] = {}
    for base in (Message, Timer, Command):
        for kind in below(base):
            other = named.setdefault(kind.__name__, kind)
            if other is not kind and not mine.isdisjoint((id(kind), id(other))):
                places = f"{other.__module__} and {kind.__module__}"
                raise BadInput(f"fabric {family.name!r}: {kind.__name__} is a class of {places}; rename one")


def names() -> list[str]:
    """The fabrics there are."""
    import_module(PLUGINS).load()
    return sorted({*BUILTIN, *_FAMILIES})


def families() -> list[Family]:
    """All families, by name."""
    return [family_of(name) for name in names()]


def from_plugins() -> list[Family]:
    """The families from outside of this package, by name; the others are not imported for it."""
    return [_FAMILIES[name] for name in names() if name not in BUILTIN]


def family_of(name: str) -> Family:
    """The family of that name; raises `BadInput`."""
    if name not in _FAMILIES and name in BUILTIN:
        import_module(BUILTIN[name])
    if name not in _FAMILIES and name not in names():
        why = "is not built yet" if name in PROMISED else "is unknown"
        raise BadInput(f"fabric {name!r} {why}: must be one of {', '.join(names())}")
    return _FAMILIES[name]


class FabricChoice(Value, frozen=True, gc=False):
    """Which fabric a region uses, with the options that differ from its defaults."""

    kind: str = "pull"
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def family(self) -> Family:
        return family_of(self.kind)

    @property
    def settings(self) -> Any:
        """The options, complete; raises `BadInput` if the family has no such options."""
        try:
            return msgspec.convert(self.options, self.family.options)
        except msgspec.ValidationError as error:
            raise BadInput(f"fabric {self.kind!r}: {error}") from error

    def source(self, place: Place, histories: Mapping[StreamId, History], rng: random.Random) -> FabricSource:
        """The fabric's end at a replica."""
        return self.family.source(place, self.settings, histories, rng)

    def member(self, place: Place, horizons: Mapping[StreamId, int], rng: random.Random) -> FabricMember:
        """The fabric's end at a client. ``horizons``: where its streams continue; others begin at the first number."""
        return self.family.member(place, self.settings, horizons, rng)


def choose(kind: str, **options: Any) -> FabricChoice:
    """A fabric with some of its options; raises `BadInput` if it has no such options."""
    settings = FabricChoice(kind, options).settings
    return FabricChoice(kind, {name: getattr(settings, name) for name in options})
