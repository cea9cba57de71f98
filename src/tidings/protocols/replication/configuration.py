"""Configuration service of a region: which replicas form the chain (A1.40; "local configuration service", E12).

It keeps one `ChainConfig` per region and changes it one epoch at a time. It writes each decision down before it tells
anybody, and removes replicas that have been silent too long. Guarantees:

* epochs ascend, and an epoch has one configuration;
* a replica enters only behind the tail: first as ``joining``, then as the new tail, when the tail that passes its token
  asks for exactly this epoch (compare-and-set, A1.42). A removed replica is never promoted;
* when every replica is silent none is removed: after a full stop the last configuration starts again;
* a member that finds its own disk too old resigns, and is removed at once.

Data flows on without the service; only changes wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidings.core.ids import NodeId
from tidings.protocols.kernel import (
    NOTHING,
    Command,
    Effect,
    Effects,
    Expired,
    Input,
    Message,
    Persist,
    Persisted,
    Received,
    Report,
    Send,
    SetTimer,
    Time,
    Timer,
    Value,
)
from tidings.protocols.replication.chain_config import ChainConfig


class Beat(Message, frozen=True, gc=False):
    """A replica is alive and works in ``epoch``; the service answers when that is not the one in force."""

    epoch: int
    nonce: int  # of the replica's incarnation; echoed, so that a restarted replica can tell a fresh answer
    join: bool = False  # the sender is outside the chain and wants to be appended


class Promote(Message, frozen=True, gc=False):
    """The tail has passed its token to the joining replica; the service makes that one the tail (A1.42)."""

    epoch: int
    joining: NodeId


class Resign(Message, frozen=True, gc=False):
    """A member's disk lacks records of its chain. The service removes it if another member is alive.

    It does not count as a heartbeat: while no other member is alive, nobody is removed because of it.
    """

    epoch: int
    nonce: int


class Current(Message, frozen=True, gc=False):
    """The membership in force. The receiver follows it if the epoch is newer than its own."""

    membership: ChainConfig
    nonce: int = 0

    def valid(self) -> bool:
        return self.membership.valid()


class Change(Command, frozen=True, gc=False):
    """The operator's compare-and-set: while ``epoch`` is in force, go on to the next one without this replica.

    It may not come back under that name. Without a name the replicas stay the same: only the epoch moves.
    """

    epoch: int
    without: NodeId | None = None


class SweepTick(Timer, frozen=True, gc=False):
    """Time to look for silent replicas."""


class ConfigurationSettings(Value, frozen=True, gc=False):
    """Times in seconds; ours, because the paper names none."""

    sweep: float = 0.25
    silence: float = 1.5  # a replica not heard of for so long is removed: five lost beats


class Configuration:
    """The service of one region. ``durable`` are the memberships it had written before a restart."""

    def __init__(self, initial: ChainConfig, settings: ConfigurationSettings, durable: Sequence[ChainConfig]) -> None:
        self.settings = settings
        self.membership = durable[-1] if durable else initial
        self.deciding: ChainConfig | None = None
        self.heard: dict[NodeId, Time] = {}  # a replica not in it is heard from the moment it is looked for
        self.swept: Time = 0.0
        self.barred: set[NodeId] = set()  # removed by an operator: they do not join again

    def start(self, now: Time) -> Effects:
        self._forgive(now)
        return [SetTimer(self.settings.sweep, SweepTick()), *self._announce()]

    def handle(self, now: Time, input: Input) -> Effects:
        match input:
            case Received(src, Beat() as beat):
                return self._receive_beat(now, src, beat)
            case Received(src, Promote(epoch, joining)):
                return self._promote(src, epoch, joining)
            case Received(src, Resign(epoch, nonce)):
                return self._resign(now, src, epoch, nonce)
            case Expired(SweepTick()):
                return self._sweep(now)
            case Change(epoch, without):
                return self._change(epoch, without)
            case Persisted(token) if self.deciding is not None and token == self.deciding.epoch:
                self.membership, self.deciding = self.deciding, None
                return self._announce()
        return NOTHING

    def check(self) -> None:
        members = self.membership.replicas
        assert members and len(set(members)) == len(members), "a chain has at least one replica, each once"
        assert self.membership.joining not in members, "a member does not join"
        assert self.deciding is None or self.deciding.epoch == self.membership.epoch + 1, "one epoch at a time"

    def _receive_beat(self, now: Time, src: NodeId, beat: Beat) -> Effects:
        current = self.membership
        if src in current.replicas and not any([self._alive(now, node) for node in current.replicas]):
            self._forgive(now)  # the first after a full stop: the others have as long as ever from now on
        self.heard[src] = now
        effects: list[Effect] = []
        if beat.epoch != current.epoch or beat.join:
            effects.append(Send(src, Current(current, beat.nonce)))
        if beat.join and current.joining is None and src not in current.replicas and src not in self.barred:
            effects.extend(self._decide(current.replicas, src))
        return effects

    def _promote(self, src: NodeId, epoch: int, joining: NodeId) -> Effects:
        current = self.membership
        if epoch != current.epoch or src != current.tail or joining != current.joining:
            return [Report("promotion_refused")]
        return [Report("replica_added"), *self._decide((*current.replicas, joining), None)]

    def _resign(self, now: Time, src: NodeId, epoch: int, nonce: int) -> Effects:
        current = self.membership
        if src not in current.replicas or epoch != current.epoch:
            return [Send(src, Current(current, nonce))]
        left = tuple([node for node in current.replicas if node != src])
        if self.deciding is not None or not any([self._alive(now, node) for node in left]):
            return NOTHING  # asked again later
        return [Report("replica_resigned"), *self._decide(left, current.joining)]

    def _change(self, epoch: int, without: NodeId | None) -> Effects:
        current = self.membership
        left = tuple([node for node in current.replicas if node != without])
        if epoch != current.epoch or self.deciding is not None or not left:
            return [Report("change_refused")]
        if without is not None:
            self.barred.add(without)
        return self._decide(left, None if current.joining == without else current.joining)

    def _sweep(self, now: Time) -> Effects:
        effects: list[Effect] = [SetTimer(self.settings.sweep, SweepTick())]
        if now - self.swept > self.settings.silence:
            self._forgive(now)  # the service itself slept: silence proves nothing
        self.swept = now
        current = self.membership
        alive = [node for node in current.replicas if self._alive(now, node)]
        joining = current.joining if current.joining and self._alive(now, current.joining) else None
        if alive and (len(alive) < len(current.replicas) or joining != current.joining):
            effects.extend(self._lost(current, alive))
            effects.extend(self._decide(tuple(alive), joining))
        return effects

    def _alive(self, now: Time, node: NodeId) -> bool:
        return now - self.heard.setdefault(node, now) <= self.settings.silence

    def _forgive(self, now: Time) -> None:
        self.swept = now
        self.heard.clear()

    def _lost(self, current: ChainConfig, alive: list[NodeId]) -> list[Effect]:
        lost: list[Effect] = []
        for node in current.replicas:
            if node not in alive:
                role = "head" if node == current.head else "tail" if node == current.tail else "middle"
                lost.append(Report(f"{role}_lost"))
        return lost

    def _decide(self, replicas: tuple[NodeId, ...], joining: NodeId | None) -> list[Effect]:
        if self.deciding is not None:
            return []
        self.deciding = ChainConfig(self.membership.region, self.membership.epoch + 1, replicas, joining)
        return [Persist(self.deciding, self.deciding.epoch)]

    def _announce(self) -> list[Effect]:
        current = self.membership
        everyone = (*current.replicas, current.joining) if current.joining else current.replicas
        return [Send(node, Current(current)) for node in everyone]
