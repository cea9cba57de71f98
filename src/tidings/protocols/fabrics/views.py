"""Gossip membership of a region (A1.25-A1.28): every client holds a small random view of the others.

A member now and then exchanges entries of its view with a neighbour. There are two rules for merging them:

* ``paper`` (A1.26): the union of both views, cut at random to V; the sender always stays (*reinforcement*);
* ``swap`` (E3, the default): the initiator sends its oldest neighbour a few entries and itself, gets as many back, and
  puts them in the place of those it sent. A neighbour that does not answer is dropped. In-degrees differ less than by
  the paper's rule (decision 0005: standard deviation 3.4 against 11.8), and no member is missing from all views.

The proxy is the tail of the region's chain and gossips like a client. A client with fewer than V members in its view
counts the proxy as a neighbour. Every k-th round it gossips with the proxy whatever its view, so that partitions heal.
Messages carry the chain's `ChainConfig`; the largest epoch wins, so a new configuration spreads by gossip. When the
tail is silent the other replicas are tried in turn. Crashed members disappear from views because they do not gossip.
By the paper's rule that takes long where V * V exceeds the number of members.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from tidings.core.ids import NodeId, RegionId, are_natural
from tidings.protocols.kernel import (
    NOTHING,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Message,
    Received,
    Report,
    Send,
    SetTimer,
    Time,
    Timer,
    Value,
)
from tidings.protocols.replication.chain_config import ChainConfig


class View(Message, frozen=True, gc=False):
    """Entries of the sender's view; the receiver merges them, and answers with its own when that is wanted."""

    from_clients: ClassVar[bool] = True

    entries: tuple[tuple[NodeId, int], ...]  # (member, age in rounds)
    membership: ChainConfig
    reply_wanted: bool

    def valid(self) -> bool:
        return self.membership.valid() and are_natural([age for _, age in self.entries])

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 64 + 16 * len(self.entries)


class GossipTick(Timer, frozen=True, gc=False):
    """Time for a round of gossip."""

    generation: int


class ViewsSettings(Value, frozen=True, gc=False):
    """How large the view is and how it is kept fresh."""

    size: int = 20  # V (A1.25, SP3)
    period: float = 0.5  # seconds between rounds (decision 0005)
    proxy_every: int = 10  # ours, because A1.28 says "now and then": 5 s at this period
    rule: Literal["paper", "swap"] = "swap"
    exchange: int = 8  # entries in a swap (E3: 3-8)


CONTACTS = 8
"""Replicas a client remembers, former ones included: ours, because those in force may all be silent when it has missed
the change, and a former one that lives knows better."""


class Views:
    """One member's view. A ``replica`` of the proxy gossips while it is the tail and otherwise only answers.

    A client delivers the memberships it learns from gossip; a replica has them from its chain alone.
    """

    def __init__(
        self,
        me: NodeId,
        region: RegionId,
        settings: ViewsSettings,
        rng: random.Random,
        membership: ChainConfig,
        *,
        replica: bool = False,
    ) -> None:
        self.me = me
        self.region = region
        self.settings = settings
        self.rng = rng
        self.replica = replica
        self._membership = membership
        self.contacts = tuple(reversed(membership.replicas))  # whom to ask for the proxy: the tail first, old ones last
        self._ages: dict[NodeId, int] = {}  # the view
        self._partner: NodeId | None = None  # asked in the last round, has not answered
        self._sent: list[NodeId] = []  # entries given to the partner: its answer takes their places
        self._turn = 0  # which replica speaks for the proxy, counted from the tail
        self._greet = False  # the tail is new: it is told of this member in the next round
        self._rounds = 0
        self._old = 2 * settings.size  # rounds; ours, because who lives is heard of within V of them or so
        self._generation = 0
        self._changed()

    @property
    def view(self) -> list[NodeId]:
        return list(self._ages)

    @property
    def membership(self) -> ChainConfig:
        return self._membership

    @property
    def is_proxy(self) -> bool:
        """Whether this member is the tail of a chain that the configuration service has decided (epoch above 0)."""
        return self._membership.epoch > 0 and self.me == self._membership.tail

    def neighbours(self) -> tuple[NodeId, ...]:
        """The view, sorted, and the proxy while the view is short (A1.28c, d)."""
        return self._neighbours

    def peers(self) -> tuple[NodeId, ...]:
        """The neighbours that are no replicas: those for whom the sender's progress can be news."""
        return self._peers

    def bootstrap(self, nodes: Iterable[NodeId]) -> None:
        """Begin with these members in the view instead of the proxy alone (A1.28d)."""
        self._ages = dict.fromkeys(self._welcome(nodes), 0)
        self._changed()

    def learn(self, membership: ChainConfig) -> bool:
        """Adopt a newer configuration of the region's chain; False if it is not newer."""
        if membership.region != self.region or membership.epoch <= self._membership.epoch:
            return False
        self._greet |= membership.tail != self._membership.tail
        self._membership = membership
        current = tuple(reversed(membership.replicas))
        former = tuple([node for node in self.contacts if node not in current])
        self.contacts = (*current, *former)[: max(len(current), CONTACTS)]
        self._turn = 0
        for replica in membership.replicas[:-1]:
            self._ages.pop(replica, None)
        self._changed()
        return True

    # --- the machine ------------------------------------------------------------------------------------

    def start(self, now: Time) -> Effects:
        """The first round comes at a random moment of the period, so that the members do not march in step."""
        return [self._arm(self.rng.random() * self.settings.period)]

    def handle(self, now: Time, input: Input) -> Effects:
        """React to a view or to the time for a round; anything else is not ours."""
        match input:
            case Received(src, View() as view):
                return self._receive(src, view)
            case Expired(GossipTick(generation)) if generation == self._generation:
                return [*self._round(), self._arm(self.settings.period)]
        return NOTHING

    def check(self) -> None:
        assert len(self._ages) <= self.settings.size, f"{self.me}: {len(self._ages)} members in a view"
        assert self.me not in self._ages, f"{self.me} is in its own view"
        strangers = [n for n in self._membership.replicas[:-1] if n in self._ages]
        assert not strangers, f"{self.me}: {strangers} in the view, but only the tail takes part"

    def _arm(self, delay: float) -> SetTimer:
        self._generation += 1
        return SetTimer(delay, GossipTick(self._generation))

    def _changed(self) -> None:
        members = sorted(self._ages)
        replicas = self._membership.replicas
        self._peers = tuple([n for n in members if n not in replicas])
        short = len(members) < self.settings.size and not self.is_proxy and self._membership.tail not in self._ages
        self._neighbours = (*members, self._membership.tail) if short else tuple(members)

    # --- a round ----------------------------------------------------------------------------------------

    def _round(self) -> list[Effect]:
        if self.replica and not self.is_proxy:
            self._grow_old()  # it still answers, and must not bring back who has left
            return []
        self._rounds += 1
        to_proxy = self._greet or self._rounds % self.settings.proxy_every == 0
        self._greet = False
        silent, self._partner = self._partner, None
        if silent is not None and silent in self.contacts:
            self._turn += 1
            to_proxy |= self._turn % len(self.contacts) > 0  # once round, then the peers again
        if silent is not None and self.settings.rule == "swap":
            self._ages.pop(silent, None)
        self._grow_old()
        partner = self._choose(to_proxy)
        if partner is None:
            return []
        entries = self._entries_for(partner, self.settings.exchange - 1)
        self._partner = partner
        self._sent = [partner, *[node for node, _ in entries]]
        if self.settings.rule == "swap":
            entries.insert(0, (self.me, 0))
        return [Send(partner, View(tuple(entries), self._membership, reply_wanted=True))]

    def _grow_old(self) -> None:
        self._ages = {member: age + 1 for member, age in self._ages.items() if age + 1 < self._old}
        self._changed()

    def _choose(self, to_proxy: bool) -> NodeId | None:
        """The proxy when it is its turn, else a random neighbour (a swap asks the oldest: dead ones go first)."""
        others = [n for n in self.contacts if n != self.me]
        speaker = others[self._turn % len(others)] if others else None
        if not self._neighbours or (to_proxy and not self.is_proxy):
            return None if self.is_proxy else speaker
        partner = self.rng.choice(self._neighbours)
        if partner not in self._ages:
            return speaker
        if self.settings.rule == "swap":
            return max(sorted(self._ages), key=self._ages.__getitem__)
        return partner

    def _entries_for(self, partner: NodeId, exchange: int) -> list[tuple[NodeId, int]]:
        """What a message to the partner tells of this view: all of it (paper), or some at random (swap)."""
        known = [n for n in sorted(self._ages) if n != partner]
        if self.settings.rule == "swap":
            known = self.rng.sample(known, min(exchange, len(known)))
        return [(node, self._ages[node] + 1) for node in known]  # hearsay is older: the dead are not passed on for ever

    # --- a view arrives ---------------------------------------------------------------------------------

    def _receive(self, src: NodeId, view: View) -> Effects:
        if view.membership.region != self.region:
            return [Report("bad_message")]
        effects: list[Effect] = []
        if not self.replica and self.learn(view.membership):
            effects.append(Deliver(view.membership))
        sent: Sequence[NodeId] = ()
        if view.reply_wanted:
            entries = self._entries_for(src, self.settings.exchange)
            sent = [node for node, _ in entries]
            effects.append(Send(src, View(tuple(entries), self._membership, reply_wanted=False)))
        elif src == self._partner:
            sent, self._partner, self._turn = self._sent, None, 0
        if self.settings.rule == "paper":
            self._unite(src, [node for node, _ in view.entries[: self.settings.size]])
        else:
            self._swap(view.entries[: self.settings.size], sent)
        self._changed()
        return effects

    def _welcome(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """Those that may stand in this view: others, and of the replicas only the tail."""
        barred = {self.me, *self._membership.replicas[:-1]}
        return [node for node in nodes if node not in barred]

    def _unite(self, src: NodeId, nodes: Iterable[NodeId], *, reinforce: bool = True) -> None:
        kept = self._welcome([src]) if reinforce else []
        union = sorted({*self._ages, *self._welcome(nodes)}.difference(kept))
        room = min(self.settings.size - len(kept), len(union))
        self._ages = dict.fromkeys([*kept, *self.rng.sample(union, room)], 0)

    def _swap(self, entries: Sequence[tuple[NodeId, int]], sent: Sequence[NodeId]) -> None:
        """New members take free places first, then those of the entries that were sent, the partner's first."""
        given = [node for node in sent if node in self._ages]
        welcome = set(self._welcome([node for node, _ in entries]))
        for node, age in entries:
            if node not in welcome or age >= self._old:
                continue
            if node in self._ages:
                self._ages[node] = min(age, self._ages[node])
                continue
            if len(self._ages) >= self.settings.size:
                if not given:
                    continue
                del self._ages[given.pop(0)]
            self._ages[node] = age
