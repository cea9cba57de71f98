"""What a campaign demands of views and pull inside a region.

Of a client that lacks numbers of a stream:

* one timer is under way as long as something is lacking, none is set when nothing is;
* an answer that leaves a hole is followed by a request to the proxy at once, a silent peer by one after `fallback`
  seconds without progress, and not before; whoever slept gives answers time first;
* of the replicas the tail of the newest chain comes first, then the next in turn as long as nobody answers; who answers
  is kept; nobody is asked again before his time is up, and that is lengthened when all have been silent;
* what was received is not lost, and no number is given up unless the proxy does not have it.

Of members: newly drawn neighbours are offered every stream, others only progress; who hears no news asks, who does not
keeps quiet; of a chain the tail alone offers. A client gossips once in every round: with the tail when that is new,
with other replicas in turn while they are silent, else with its peers, the oldest first; the silent are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tidings.core.ids import FIRST, NodeId, StreamId, is_internal
from tidings.lab.seeds import Plan
from tidings.lab.watch import Watch
from tidings.protocols.client import Client, ReadTick
from tidings.protocols.kernel import Effects, Expired, Received, Send, SendAll, SetTimer
from tidings.protocols.messages import Know, Offer, Read, Want
from tidings.protocols.proxy import Proxy
from tidings.protocols.pull import Ask, FallbackTick, Probe, ProbeTick, ShuffleTick, StreamState
from tidings.protocols.views import GossipTick, View
from tidings.sim.build import Deployment, Note
from tidings.sim.workload import Writer
from tidings.sim.world import Host, Started

Range = tuple[int, int]
INSTANT = 1e-6  # seconds; ours: clocks are compared after additions in another order
CHANCE = 50  # messages; ours: of fewer nothing is said about chance


class _Lack:
    """One stream at one client, as it was after the last step that concerned it."""

    __slots__ = (
        "asked",
        "due",
        "epoch",
        "held",
        "horizon",
        "last",
        "missed",
        "misses",
        "next",
        "patience",
        "since",
        "timers",
    )

    def __init__(self, state: StreamState) -> None:
        self.timers = 0  # under way
        self.due = 0.0  # when the last of them should run out
        self.since = 0.0  # of the last progress, or since when something is lacking
        self.epoch = -1  # of the chain that was asked last
        self.last: NodeId | None = None  # the replica that was asked last
        self.missed: bool | None = False  # it did not answer, or had nothing; None: hard to tell
        self.misses = 0  # of these, in this epoch
        self.note(state)

    def note(self, state: StreamState) -> None:
        """Remember what will be compared."""
        self.horizon, self.next, self.patience = state.horizon, state.next, state.patience
        self.asked = tuple(state.asked)
        self.held = [(span.lo, span.hi) for span in state.held] if state.held else []


class _Member:
    """One client during one life."""

    __slots__ = (
        "active",
        "answered",
        "client",
        "epoch",
        "host",
        "lacks",
        "news",
        "partner",
        "read_at",
        "read_timers",
        "silent",
        "skewed",
        "tail",
    )

    def __init__(self, client: Client, host: Host) -> None:
        self.client = client
        self.host = host
        self.lacks = {name: _Lack(state) for name, state in client.pull.streams.items()}
        self.active: tuple[NodeId, ...] = ()
        self.news = False  # since the last ProbeTick
        self.partner: NodeId | None = None  # of the last round
        self.answered = False
        self.silent = 0  # replicas one after the other
        self.epoch = client.views.membership.epoch  # when the last round began
        self.tail = client.views.membership.tail
        self.read_at = 0.0  # when the last read was sent
        self.read_timers = 0
        self.skewed = False  # its clock was wrong: what it measures is not what passes

    def lack(self, stream: StreamId) -> _Lack | None:
        """What is known of a stream; None if the client does not know it."""
        found = self.lacks.get(stream)
        if found is None and (state := self.client.pull.streams.get(stream)) is not None:
            found = self.lacks[stream] = _Lack(state)
            found.horizon = found.next = FIRST
        return found


class FabricWatch(Watch):
    """Watches views and pull inside a region."""

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        super().__init__(deployment, plan)
        self.wrong: Counter[tuple[NodeId, str]] = Counter()
        self.members: dict[NodeId, _Member] = {}
        self.rounds = self.with_replicas = 0  # of gossip in a calm run, once views have filled
        self.told = self.told_in_order = 0  # swaps with several entries
        self._received: dict[type, Callable[[float, _Member, NodeId, Any, Effects], None]] = {
            Offer: self._offer,
            Know: self._know,
            View: self._view,
        }
        self._expired: dict[type, Callable[[float, _Member, Any, Effects], None]] = {
            FallbackTick: self._fallback,
            ShuffleTick: self._shuffle,
            ProbeTick: self._probe,
            GossipTick: self._round,
            ReadTick: self._read_again,
        }

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Every step of every node; what makes up most of them, an offer that is no news, is over at once."""
        kind = type(input)
        if kind is Received:
            message = input.message
            if not effects and type(message) is Offer:
                return
            receive = self._received.get(type(message))
            if receive is not None and (member := self.members.get(node)) is not None:
                receive(time, member, input.src, message, effects)
        elif kind is Expired:
            timer = input.timer
            if (expire := self._expired.get(type(timer))) is not None:
                if (member := self.members.get(node)) is not None:
                    expire(time, member, timer, effects)
                elif type(timer) is ShuffleTick:
                    self._shuffle_proxy(node, effects)
        elif kind is Started:
            self._begin(node)
        else:
            self._command(time, node, effects)

    def _begin(self, node: NodeId) -> None:
        host = self.deployment.world.hosts[node]
        machine = host.machine.client if isinstance(host.machine, Writer) else host.machine
        if isinstance(machine, Client):
            self.members[node] = _Member(machine, host)

    def _blame(self, member: _Member, what: str, wrong: bool = True) -> None:
        if wrong:
            self.wrong[member.client.me, what] += 1

    # --- numbers that are lacking -------------------------------------------------------------------------

    def _offer(self, time: float, member: _Member, src: NodeId, offer: Offer, effects: Effects) -> None:
        lack, state = member.lack(offer.stream), member.client.pull.streams.get(offer.stream)
        if lack is None or state is None:
            return
        member.news |= offer.horizon > lack.next
        if lack.horizon == lack.next:
            lack.since = time
        self._compare(time, member, lack, state, effects)

    def _know(self, time: float, member: _Member, src: NodeId, know: Know, effects: Effects) -> None:
        lack, state = member.lack(know.stream), member.client.pull.streams.get(know.stream)
        if lack is None or state is None:
            return
        ask = _answered(lack.asked, src, know)
        useful = state.horizon > lack.horizon or _covers(state) > lack.held
        useless = not any([span.hi > lack.horizon for span in know.spans])
        nothing = ask is not None and ask.fallback and useless and state.horizon < ask.hi
        if state.horizon > lack.horizon:
            lack.since = time
        refused = ask is not None and ask.fallback and not useful and not useless  # or told again what is held
        if ask is not None and ask.fallback:
            lack.missed = None if refused else nothing
            lack.misses += nothing or refused
            late = state.patience != member.client.settings.pull.proxy_timeout
            self._blame(member, "too_patient_after_answer", late)
            lack.patience = state.patience
        if (nothing or refused) and not state.held and not state.asked:
            lack.next = min(lack.next, state.next)  # nobody has it: then it is not lacking
        rest: Range | None = None
        if nothing:
            self._blame(member, "asked_on_for_nothing", _wants(effects) > 0)
        elif ask is not None and not refused and (useful or useless):
            if useful and know.spans:
                rest = max(know.spans[-1].hi, state.horizon), min(ask.hi, know.horizon)
            self._blame(member, "hole_left", _hole(state))
        self._compare(time, member, lack, state, effects, rest)

    def _fallback(self, time: float, member: _Member, timer: FallbackTick, effects: Effects) -> None:
        lack, state = member.lack(timer.stream), member.client.pull.streams.get(timer.stream)
        if lack is None or state is None:
            return
        lack.timers -= 1
        settings = member.client.settings.pull
        late, slack = time - lack.due, settings.fallback / 8
        if lack.horizon < lack.next and lack.timers == 0 and not self._skewed(member):
            if late <= slack - INSTANT:
                if time - lack.since >= settings.fallback - slack / 2:
                    old = [ask for ask in state.asked if not ask.fallback and time - ask.at >= settings.fallback]
                    self._blame(member, "waits_for_the_silent", bool(old))
                    self._blame(member, "hole_left", _hole(state))
            elif late > slack + INSTANT:  # answers may be under way to it, or in its mailbox
                enough = settings.fallback + min(2 * late, settings.proxy_timeout) - slack
                self._blame(member, "hasty_after_sleep", time - lack.since < enough - INSTANT and _wants(effects) > 0)
        kept = set(state.asked)
        for ask in lack.asked:
            if ask.fallback and ask not in kept:
                lack.missed = True
                lack.misses += 1
                early = 0 <= time - ask.at < max(lack.patience, settings.fallback) - slack - INSTANT
                self._blame(member, "proxy_given_up_early", early and not self._skewed(member))
        if state.patience > lack.patience:  # only when all have been silent
            self._blame(member, "patient_too_soon", lack.misses < len(member.client.views.contacts))
            lack.patience = state.patience
        self._compare(time, member, lack, state, effects)

    def _compare(
        self,
        time: float,
        member: _Member,
        lack: _Lack,
        state: StreamState,
        effects: Effects,
        rest: Range | None = None,
    ) -> None:
        """What holds after each of these steps, whatever it was."""
        lacking = state.horizon < state.next
        for effect in effects:
            if type(effect) is SetTimer and type(effect.timer) is FallbackTick:
                lack.timers += 1
                lack.due = time + effect.delay / member.host.rate
                self._blame(member, "timers_for_nothing", not lacking)
            elif type(effect) is Send and type(effect.message) is Want:
                self._blame(member, "wants_nothing", effect.message.lo >= effect.message.hi)
        self._blame(member, "timers_beside_others", lack.timers > 1)
        self._blame(member, "lacks_without_timer", lacking and lack.timers == 0)
        self._blame(member, "given_up", state.next < lack.next)
        self._blame(member, "patience_lost", state.patience != lack.patience)
        if lack.held:
            kept = _covers(state)
            lost = [each for each in lack.held if each[1] > state.horizon and not _within(each, state.horizon, kept)]
            self._blame(member, "received_and_lost", bool(lost))
        for ask in state.asked:
            if ask.fallback and ask not in lack.asked:
                self._turned_to(member, lack, ask, rest)
        self._skewed(member)
        lack.note(state)

    def _turned_to(self, member: _Member, lack: _Lack, ask: Ask, rest: Range | None) -> None:
        """A replica has been asked: was it its turn?"""
        if rest == (ask.lo, ask.hi):  # of a shortened answer: from whoever gave that
            lack.last = ask.to
            return
        views = member.client.views
        if views.membership.epoch != lack.epoch:
            lack.epoch, lack.misses = views.membership.epoch, 0
            self._blame(member, "new_tail_not_asked", ask.to != views.membership.tail)
        elif lack.missed:
            self._blame(member, "silent_asked_again", ask.to == lack.last and len(views.contacts) > 1)
        elif lack.missed is False:
            self._blame(member, "left_who_answers", ask.to != lack.last)
        lack.last, lack.missed = ask.to, False

    def _skewed(self, member: _Member) -> bool:
        member.skewed |= member.host.rate != 1.0 or member.host.offset != 0.0
        return member.skewed

    # --- offers and probes --------------------------------------------------------------------------------

    def _shuffle(self, time: float, member: _Member, timer: ShuffleTick, effects: Effects) -> None:
        pull = member.client.pull
        new = [peer for peer in pull.fanout.active if peer not in member.active]
        member.active = pull.fanout.active
        due = {(peer, state.name) for peer in new for state in pull.streams.values() if state.offer}
        self._blame(member, "newcomers_not_offered", bool(due - _offered(effects)))
        self._blame(member, "offered_again", bool(_offered(effects) - due))

    def _shuffle_proxy(self, node: NodeId, effects: Effects) -> None:
        proxy = self.deployment.world.hosts[node].machine
        if isinstance(proxy, Proxy):
            offered, due = _offered(effects), set()
            if proxy.views.is_proxy:
                known = [name for name, each in proxy.log.histories.items() if each.horizon > FIRST]
                due = {(peer, name) for peer in proxy.pull.fanout.active for name in known if not is_internal(name)}
            self.wrong[node, "streams_not_offered"] += bool(due - offered)
            self.wrong[node, "offered_by_no_tail"] += bool(offered - due)

    def _probe(self, time: float, member: _Member, timer: ProbeTick, effects: Effects) -> None:
        probes = [effect for effect in effects if type(effect) is Send and type(effect.message) is Probe]
        self._blame(member, "probes_for_no_reason", member.news and bool(probes))
        self._blame(member, "hears_nothing_and_waits", not member.news and not probes)
        member.news = False

    # --- views --------------------------------------------------------------------------------------------

    def _view(self, time: float, member: _Member, src: NodeId, view: View, effects: Effects) -> None:
        views, publisher = member.client.views, member.client.publisher
        if src == member.partner and not view.reply_wanted:
            member.answered = True
            member.silent = 0
        if publisher is not None and publisher.membership.region == views.region:
            self._blame(member, "publisher_not_told", publisher.membership.epoch < views.membership.epoch)
        self._neighbourhood(member)

    def _neighbourhood(self, member: _Member) -> None:
        """The proxy is a neighbour while the view is short, and only then unless it is in it (A1.28)."""
        views = member.client.views
        neighbours, view = views.neighbours(), set(views.view)
        also = {views.membership.tail} if len(view) < views.settings.size else set()
        self._blame(
            member, "wrong_neighbours", set(neighbours) != view | also or len(set(neighbours)) < len(neighbours)
        )
        self._blame(member, "contacts_twice", len(set(views.contacts)) < len(views.contacts))

    def _round(self, time: float, member: _Member, timer: GossipTick, effects: Effects) -> None:
        views = member.client.views
        told = [(each.to, each.message) for each in effects if type(each) is Send and isinstance(each.message, View)]
        self._blame(member, "rounds_left_out", len(told) != 1)
        membership, before, silent = views.membership, member.partner, not member.answered
        if not told:
            return
        (partner, message), contacts = told[0], views.contacts
        if before is not None and silent and views.settings.rule == "swap":
            self._blame(member, "silent_in_view", before in views.view)
        if membership.epoch != member.epoch:
            member.silent = 0
        if before in contacts and silent:
            member.silent += 1
            if membership.epoch == member.epoch and member.silent < len(contacts):
                again = partner == before == contacts[member.silent - 1]  # a former tail may be a peer besides
                self._blame(member, "no_other_replica_tried", again or partner not in contacts)
        elif membership.tail != member.tail:
            self._blame(member, "new_tail_not_greeted", partner != membership.tail)
        if partner in views._ages and partner not in contacts and views.settings.rule == "swap":
            self._blame(member, "younger_before_older", views._ages[partner] < max(views._ages.values()))
        if self.calm:
            self._blame(member, "replicas_behind_the_tail", partner in contacts and partner != membership.tail)
            self.rounds += time > 3.0
            self.with_replicas += time > 3.0 and partner in contacts
        entries = [entry[0] for entry in message.entries if entry[0] != member.client.me]
        if len(entries) > 2 and views.settings.rule == "swap":
            self.told += 1
            self.told_in_order += entries == sorted(entries)
        member.partner, member.answered = partner, False
        member.epoch, member.tail = membership.epoch, membership.tail
        self._neighbourhood(member)

    # --- reads --------------------------------------------------------------------------------------------

    def _command(self, time: float, node: NodeId, effects: Effects) -> None:
        if effects and (member := self.members.get(node)) is not None and _reads(effects):
            member.read_at = time
            member.read_timers += 1

    def _read_again(self, time: float, member: _Member, timer: ReadTick, effects: Effects) -> None:
        due = member.read_at + member.client.settings.read_retry - INSTANT
        again = _reads(effects) > 0
        member.read_timers += again - 1
        if not self._skewed(member):
            self._blame(member, "read_repeated_early", again and time < due)
        self._blame(member, "read_not_repeated", member.client.reading is not None and not member.read_timers)
        if again:
            member.read_at = time

    def demand(self, note: Note) -> None:
        """Nothing was wrong; and chance was fair."""
        for (node, what), count in sorted(self.wrong.items()):
            note(node, what, count, 0)
        if self.calm and self.rounds > CHANCE:  # every tenth round, and the tail's share as one of a few neighbours
            note("views", "rounds_with_replicas", self.with_replicas / self.rounds, 0.5)
        if self.told > CHANCE:  # who is named first takes a place first: by chance, or some are always preferred
            note("views", "told_in_order", self.told_in_order / self.told, 0.5)


def _answered(asked: tuple[Ask, ...], src: NodeId, know: Know) -> Ask | None:
    """The request that an answer belongs to: the first to its sender that it overlaps."""
    spans = know.spans
    for ask in asked:
        if ask.to == src and (not spans or (spans[0].lo < ask.hi and ask.lo < spans[-1].hi)):
            return ask
    return None


def _covers(state: StreamState) -> list[Range]:
    return [(span.lo, span.hi) for span in state.held]


def _within(each: Range, horizon: int, kept: list[Range]) -> bool:
    """Whether what is beyond the horizon of a range is all kept."""
    at, hi = max(each[0], horizon), each[1]
    for low, high in kept:
        if low <= at < high:
            at = high
    return at >= hi


def _hole(state: StreamState) -> bool:
    """Whether something is lacking that nobody is asked for, though the proxy could be."""
    if state.horizon >= state.next or any([ask.fallback for ask in state.asked]):
        return False
    at = state.horizon
    for lo, hi in sorted([*[(ask.lo, ask.hi) for ask in state.asked], *_covers(state)]):
        if lo <= at < hi:
            at = hi
    return at < state.next


def _wants(effects: Effects) -> int:
    return sum([type(effect) is Send and type(effect.message) is Want for effect in effects])


def _reads(effects: Effects) -> int:
    return sum([type(effect) is Send and type(effect.message) is Read for effect in effects])


def _offered(effects: Effects) -> set[tuple[NodeId, StreamId]]:
    return {
        (to, effect.message.stream)
        for effect in effects
        if type(effect) is SendAll and type(effect.message) is Offer
        for to in effect.to
    }
