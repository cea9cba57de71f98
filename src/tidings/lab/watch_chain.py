"""What a campaign demands of chains and their configuration services.

A chain is judged by what its replicas know when they act, not by what becomes of it: who takes its place must have been
told by its neighbours that their logs agree, who resigns must have a reason, what is durable is forwarded at once, a
gap is asked for at once and nothing else, a newcomer is fed what it lacks and nobody else is, and a service removes
whoever has been silent too long, nobody else and nobody sooner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, cast

from tidings.core.ids import NodeId
from tidings.lab.seeds import Plan
from tidings.lab.watch import Watch
from tidings.protocols.chain import (
    Ack,
    Append,
    Chain,
    Compare,
    Compared,
    Fetch,
    Install,
    NextPiece,
    RetryTick,
)
from tidings.protocols.configuration import Beat, Change, Configuration, Current, Resign, SweepTick
from tidings.protocols.kernel import Effects, Expired, Persist, Persisted, Received, Send
from tidings.protocols.log import CutBack, Log, Lsn
from tidings.protocols.membership import Membership
from tidings.protocols.proxy import Proxy
from tidings.sim.build import Deployment, Note
from tidings.sim.world import Started

REPEATS = 3  # that a piece of a snapshot is asked for again before the snapshot is given up (chain.py)

Look: TypeAlias = Callable[[NodeId, NodeId, Any, Effects], None]
"""(node, sender, message, effects)"""


class _Feed(NamedTuple):
    """For whom a replica keeps records, from where, and which snapshot it sends."""

    newcomer: NodeId | None
    fed: Lsn | None
    snapshot: Lsn | None


class _Life:
    """What is known of one life of a replica."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.epoch = 0  # that it has followed
        self.proven = False  # its log agrees with those of its neighbours, or it has none
        self.answers: dict[NodeId, Compared] = {}  # of its neighbours, in this epoch
        self.feed = _Feed(None, None, None)
        self.first: Lsn = 0  # of its records, when what it keeps was last looked at
        self.committed: Lsn = 0
        self.arriving: int | None = None  # the epoch in which a snapshot is under way
        self.repeats = 0  # how often its next piece was asked for again
        self.joined = 0  # the last epoch in which it was joining, as it knows from its disk


class ChainWatch(Watch):
    """Watches chains and their configuration services."""

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        super().__init__(deployment, plan)
        self.wrong: Counter[tuple[NodeId, str]] = Counter()
        self._hosts = deployment.world.hosts
        self._lives: dict[NodeId, _Life] = {}
        self._held: dict[NodeId, Lsn] = {}  # what a replica has last acknowledged while it was joining
        self._roll = {service: _RollCall(self, service) for service in deployment.services.values()}
        self._looks: dict[type, Look] = {
            Current: self._current,
            Compare: self._compare,
            Compared: self._compared,
            Append: self._append,
            Fetch: self._fetch,
            Ack: self._ack,
            Install: self._install,
        }

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Every step of every node; of most of them nothing is looked at."""
        kind = type(input)
        if kind is Received:
            look = self._looks.get(type(input.message))
            if look is not None:
                look(node, input.src, input.message, effects)
            elif type(input.message) is Beat or type(input.message) is Resign:
                self._roll[node].hear(self._hosts[node].clock(time), input.src, input.message, effects)
        elif kind is Expired:
            if type(input.timer) is RetryTick:
                self._retry(node, effects)
            elif type(input.timer) is SweepTick:
                self._roll[node].sweep(self._hosts[node].clock(time), effects)
        elif kind is Persisted:
            if node not in self._roll:
                self._persisted(node, effects)
        elif kind is Change:
            self._roll[node].change(input, effects)
        elif kind is Started:
            self._start(time, node)

    def demand(self, note: Note) -> None:
        """Nothing of what is looked at may be wrong."""
        for nodes in self.deployment.replicas.values():
            for node in nodes:
                if self._hosts[node].life:
                    self._kept(node, self._chain(node))
        for (node, name), count in sorted(self.wrong.items()):
            note(node, name, count, 0)

    def _start(self, time: float, node: NodeId) -> None:
        disk = self._hosts[node].disk
        if node in self._roll:
            self._roll[node].begin(self._hosts[node].clock(time))
        elif disk is not None:
            joined = [entry.epoch for entry in disk.durable() if type(entry) is CutBack]
            self._life(node).joined = joined[-1] if joined else 0

    def blame(self, node: NodeId, name: str, wrong: bool) -> None:
        """Count what is wrong."""
        if wrong:
            self.wrong[node, name] += 1

    def _chain(self, node: NodeId) -> Chain:
        return cast(Proxy, self._hosts[node].machine).chain

    def _life(self, node: NodeId) -> _Life:
        incarnation = self._hosts[node].incarnation
        life = self._lives.get(node)
        if life is None or life.incarnation != incarnation:
            life = self._lives[node] = _Life(incarnation)
        return life

    # --- who takes part -------------------------------------------------------------------------------

    def _current(self, node: NodeId, src: NodeId, message: Current, effects: Effects) -> None:
        """A replica that has just started follows the answer to its own question only, later everything that is new.

        What it hears unasked after a restart may be older than what it has done before that.
        """
        chain, life = self._chain(node), self._life(node)
        epoch, told = chain.membership.epoch, message.membership
        if not life.epoch:
            self.blame(node, "hearsay_followed", epoch > 0 and message.nonce != chain.nonce)
        else:
            self.blame(node, "news_ignored", told.region == chain.membership.region and told.epoch > epoch)
        if epoch == life.epoch:
            return
        life.epoch = epoch
        life.answers.clear()
        if node not in chain.membership.replicas:
            life.proven = True
        self._places(node, chain, life)
        asks = any([type(effect) is Send and type(effect.message) is Compare for effect in effects])
        self.blame(node, "proven_twice", asks and life.proven)
        self._kept(node, chain)
        self._follows_with_feed(node, chain, life)
        if chain.is_joining:
            self._joins(node, chain, life)
        self._forwards(node, chain)

    def _compare(self, node: NodeId, src: NodeId, message: Compare, effects: Effects) -> None:
        """What a replica tells of its log is true."""
        log = self._chain(node).log
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Compared:
                answer = effect.message
                both = min(log.last, message.last)
                self.blame(node, "log_misjudged", answer.last != log.last or answer.made != _made(log, both))

    def _compared(self, node: NodeId, src: NodeId, message: Compared, effects: Effects) -> None:
        chain, life = self._chain(node), self._life(node)
        if message.epoch != chain.membership.epoch or life.proven or message.asked != chain.log.last:
            return
        life.answers[src] = message
        reasons = [_lacks(chain, each, answer) for each, answer in life.answers.items()]
        self.blame(node, "old_disk_overlooked", any(reasons) and not chain.resigned)
        self.blame(node, "resigned_for_nothing", chain.resigned and not any(reasons))
        self._places(node, chain, life)
        self._forwards(node, chain)

    def _places(self, node: NodeId, chain: Chain, life: _Life) -> None:
        """A member takes its place when all its neighbours have told that their logs agree with its own; and then."""
        if node not in chain.membership.replicas:
            return
        found = chain.membership.predecessor(node), chain.membership.successor(node)
        agree = [each in life.answers and _agree(chain, each, life.answers[each]) for each in found if each is not None]
        if not life.proven:
            self.blame(node, "unproven_member", chain.active and not all(agree))
            life.proven = all(agree)
        self.blame(node, "proven_in_vain", life.proven and not chain.active)

    # --- records ----------------------------------------------------------------------------------------

    def _append(self, node: NodeId, src: NodeId, message: Append, effects: Effects) -> None:
        """Whoever sees a gap asks for what it lacks, at once; nobody asks for what it has."""
        chain = self._chain(node)
        at = chain.membership
        if message.epoch == at.epoch and src == at.predecessor(node) and not chain.unproven and not chain.installing:
            gap = bool(message.records) and message.records[-1].lsn > chain.log.last
            asks = any([type(effect) is Send and type(effect.message) is Fetch for effect in effects])
            self.blame(node, "gap_not_asked_for", gap and not asks)
            self.blame(node, "asked_for_nothing", asks and not gap)

    def _persisted(self, node: NodeId, effects: Effects) -> None:
        """What is on a joining replica's disk is on those of all before it: it knows that it is committed."""
        chain = self._chain(node)
        if chain.is_joining:
            self.blame(node, "joins_behind", chain.unsafe is None and chain.log.committed < chain.durable)
            for effect in effects:
                if type(effect) is Send and type(effect.message) is Ack:
                    self._held[node] = effect.message.lsn
        self._forwards(node, chain)
        if chain.fed is not None:
            self._kept(node, chain)

    def _forwards(self, node: NodeId, chain: Chain) -> None:
        """What is durable, and in the window, is forwarded without waiting for anything else."""
        if chain.active and chain.sent is not None and chain.membership.successor(node) is not None:
            upto = min(chain.durable, chain.log.committed + chain.settings.window)
            if chain.fed is not None:
                upto = min(upto, chain.fed + chain.settings.backlog)
            self.blame(node, "not_forwarded", chain.sent < upto)

    # --- newcomers --------------------------------------------------------------------------------------

    def _fetch(self, node: NodeId, src: NodeId, message: Fetch, effects: Effects) -> None:
        """For a newcomer that asks is kept what it lacks."""
        chain, life = self._chain(node), self._life(node)
        asks = message.epoch == chain.membership.epoch and src == chain.membership.successor(node)
        if asks and not chain.unproven and message.after <= chain.durable and src == chain.membership.joining:
            self.blame(node, "newcomer_not_fed", chain.fed is None or chain.fed < message.after)
        self._kept(node, chain)
        life.feed = _feed(chain)
        self._forwards(node, chain)

    def _ack(self, node: NodeId, src: NodeId, message: Ack, effects: Effects) -> None:
        chain = self._chain(node)
        self._forwards(node, chain)
        if chain.fed is not None:
            self._kept(node, chain)
            self._life(node).feed = _feed(chain)

    def _joins(self, node: NodeId, chain: Chain, life: _Life) -> None:
        """Whoever joins voids what may not be committed, but never what it has acknowledged to the same tail.

        That is so if it was joining in this epoch, or the one before, since when nobody can have come between.
        """
        epoch, log = chain.membership.epoch, chain.log
        if life.joined and life.joined >= epoch - 1:
            self.blame(node, "acknowledged_voided", log.last < self._held.get(node, 0))
        else:
            self.blame(node, "uncommitted_kept", log.last > log.committed)
        life.joined = epoch

    def _follows_with_feed(self, node: NodeId, chain: Chain, life: _Life) -> None:
        """A newcomer goes on through a change that leaves it and its predecessor; any other ends what is kept for it.

        Else a newcomer under load would have to begin anew with every change, and may never be level.
        """
        before, life.feed = life.feed, _feed(chain)
        if before.newcomer is not None and life.feed.newcomer == before.newcomer:
            self.blame(node, "newcomer_set_back", life.feed != before)
        else:
            self.blame(node, "fed_nobody", chain.fed is not None or chain.snapshot is not None)

    def _kept(self, node: NodeId, chain: Chain) -> None:
        """Records are kept for a newcomer: all it lacks, up to the bounds, and it is known how much that is."""
        log, settings, fed = chain.log, chain.settings, chain.fed
        newcomer = chain.membership.joining
        self.blame(node, "fed_nobody", fed is not None and (newcomer is None or _feed(chain).newcomer is None))
        if fed is None:
            return
        if log.first - 1 <= fed:
            owed = sum([record.wire_size for record in log.between(fed, log.committed)])
            self.blame(node, "owed_misjudged", chain.owed != owed)
        life, most = self._life(node), settings.feed if chain.owed <= settings.feed_bytes else settings.backlog
        lacks = min(log.committed - fed, most)
        if life.feed.fed is not None and life.first < log.first:  # what was trimmed before it asked is gone
            self.blame(node, "feed_trimmed", log.first > log.committed - lacks + 1)
        if life.feed.fed is not None and life.committed < log.committed:  # then it was trimmed, by half or not at all
            kept = log.committed - log.first + 1
            self.blame(node, "feed_hoarded", kept > 2 * max(settings.retain, lacks))
        life.committed = log.committed
        life.first = log.first

    def _install(self, node: NodeId, src: NodeId, message: Install, effects: Effects) -> None:
        """Pieces of a snapshot are neither tiny, for each costs a round trip and a sync, nor large."""
        chain, life = self._chain(node), self._life(node)
        rows, about = sum([span.rows.count for span in message.spans]), chain.settings.chunk_rows
        self.blame(src, "piece_too_small", rows < about and not message.last)
        self.blame(src, "piece_too_large", rows > 2 * about)  # below the limit before the last spans, which are within
        for effect in effects:
            if type(effect) is Send and type(effect.message) is NextPiece:
                life.arriving = message.epoch
                life.repeats = 0
        if chain.installing is None:
            life.arriving = None

    def _retry(self, node: NodeId, effects: Effects) -> None:
        """A piece that does not come is asked for again, some times, before the snapshot is given up."""
        life = self._life(node)
        if life.arriving is None:
            return
        for effect in effects:
            if type(effect) is Send and type(effect.message) is NextPiece:
                life.repeats += 1
                self.blame(node, "asked_in_vain", life.repeats > REPEATS)
            elif type(effect) is Send and type(effect.message) is Fetch:
                self.blame(node, "snapshot_given_up", life.arriving == effect.message.epoch and life.repeats < REPEATS)
                life.arriving = None


def _made(log: Log, lsn: Lsn) -> int | None:
    """The epoch of a record, if it is known."""
    if lsn >= log.first:
        return log.records[lsn - log.first].epoch
    return 0 if lsn == 0 else log.made_before if lsn + 1 == log.first else None


def _lacks(chain: Chain, neighbour: NodeId, answer: Compared) -> bool:
    """A replica's log is not what it was: its successor has more, or a record of a later epoch in place of one of its.

    If a neighbour has only the effect of a record, which is committed, this one must know that its own is, too.
    """
    both = min(chain.log.last, answer.last)
    mine = _made(chain.log, both)
    voided = mine is not None and answer.made is not None and answer.made < mine  # and all that the neighbour has more
    if neighbour == chain.membership.successor(chain.me) and answer.last > chain.log.last and not voided:
        return True
    if mine is None:
        return False
    return both > chain.log.committed if answer.made is None else mine < answer.made


def _agree(chain: Chain, neighbour: NodeId, answer: Compared) -> bool:
    """The successor's log is a prefix of the predecessor's, as far as it can be told.

    It cannot if a neighbour has only the effect of a record that is not known to be committed here.
    """
    last = chain.log.last
    before, after = (answer.last, last) if neighbour == chain.membership.predecessor(chain.me) else (last, answer.last)
    both = min(before, after)
    mine = _made(chain.log, both)
    untold = mine is None or (answer.made is None and both <= chain.log.committed)
    return before >= after and (mine == answer.made or untold)


def _feed(chain: Chain) -> _Feed:
    successor = chain.membership.successor(chain.me)
    newcomer = successor if successor == chain.membership.joining else None
    return _Feed(newcomer, chain.fed, chain.snapshot[0] if chain.snapshot else None)


class _RollCall:
    """What a configuration service has heard of its replicas, by its own clock."""

    def __init__(self, watch: ChainWatch, service: NodeId) -> None:
        self.watch = watch
        self.service = service
        self.heard: dict[NodeId, float] = {}
        self.swept = 0.0

    @property
    def _machine(self) -> Configuration:
        return cast(Configuration, self.watch.deployment.world.hosts[self.service].machine)

    def begin(self, now: float) -> None:
        """The service has just started, or slept, or nobody was there: silence before that proves nothing."""
        self.heard.clear()
        self.swept = now

    def _alive(self, now: float, node: NodeId) -> bool:
        return now - self.heard.setdefault(node, now) <= self._machine.settings.silence

    def hear(self, now: float, src: NodeId, message: Beat | Resign, effects: Effects) -> None:
        """A replica beats, or resigns: then it leaves at once, if others live."""
        machine = self._machine
        current = machine.membership
        if type(message) is Beat:
            if src in current.replicas and not any([self._alive(now, node) for node in current.replicas]):
                self.begin(now)
            self.heard[src] = now
            return
        left = [self._alive(now, node) for node in current.replicas if node != src]
        decided = _decided(effects)
        told = any([type(effect) is Send and type(effect.message) is Current for effect in effects])
        if src in current.replicas and message.epoch == current.epoch:
            self.watch.blame(src, "resigned_in_vain", any(left) and machine.deciding is None)
            self.watch.blame(src, "resigned_alone", decided is not None and not any(left))
        else:
            self.watch.blame(src, "resigned_from_nothing", decided is not None or not told)

    def sweep(self, now: float, effects: Effects) -> None:
        """Whoever was silent too long is removed, unless all were, and nobody else is."""
        machine, settings = self._machine, self._machine.settings
        if now - self.swept > settings.silence:
            self.begin(now)
        self.swept = now
        current, decided = machine.membership, _decided(effects)
        everyone = [*current.replicas, current.joining] if current.joining else list(current.replicas)
        silent = {node for node in everyone if not self._alive(now, node)}
        if decided is not None:
            gone = set(everyone) - {*decided.replicas, decided.joining}
            self.watch.blame(self.service, "removed_too_soon", bool(gone - silent))
        elif machine.deciding is None and not silent.issuperset(current.replicas):
            self.watch.blame(self.service, "silent_not_removed", bool(silent))

    def change(self, input: Change, effects: Effects) -> None:
        """An operator that removes a replica, or nobody, does not remove the newcomer besides."""
        current, decided = self._machine.membership, _decided(effects)
        if decided is not None:
            newcomer = None if input.without == current.joining else current.joining
            self.watch.blame(self.service, "newcomer_dropped", decided.joining != newcomer)


def _decided(effects: Effects) -> Membership | None:
    """What a service has just decided."""
    found = [effect.record for effect in effects if type(effect) is Persist]
    return cast(Membership, found[0]) if found else None
