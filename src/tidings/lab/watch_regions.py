"""What a campaign demands of what goes between regions, of leases, and of regions that have lost their memory.

Most of it is about single steps: whoever is told something says and does what it must at once, and nobody else does.
What a machine knew before a step is what this watch has seen of the steps before, or what no such step changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

from tidings.check.tables import LOST
from tidings.core.ids import FIRST, NodeId, RegionId, StreamId, is_internal
from tidings.lab.keeper import EXTRA, Disconnected, Keeper
from tidings.lab.seeds import Amnesia, Plan
from tidings.lab.watch import Watch
from tidings.protocols.interregion import (
    FIRST_WINDOW,
    Advertise,
    AdvertiseTick,
    Expect,
    PumpTick,
    Solicit,
    Subscribe,
    Unsubscribe,
)
from tidings.protocols.kernel import Effects, Expired, Message, Persist, Received, Report, Send, SetTimer
from tidings.protocols.leases import LEASES, Holder, Lease, Leased, LeaseTick, Unleased
from tidings.protocols.log import Logged
from tidings.protocols.membership import Membership
from tidings.protocols.messages import Done, Know
from tidings.protocols.proxy import Proxy
from tidings.protocols.publishing import NotHead
from tidings.sim.build import Deployment, Note

M = TypeVar("M", bound=Message)

BETWEEN: frozenset[type] = frozenset({Advertise, Solicit, Subscribe, Know, Done, Lease})
"""Messages to replicas after which something is due."""

SETTLED = 2.0  # seconds; ours: two beats until there is a head, an advertisement that was missed, and two looks
INTRODUCED = 3.0  # seconds; ours: an advertisement a second, one that was just missed, and a long link


class RegionsWatch(Watch):
    """Watches what goes between regions, leases and recovery."""

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        super().__init__(deployment, plan)
        self.settings = deployment.settings.inter_region
        self.wrong: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.asking = Asking(self, plan.keeper) if plan.keeper else None
        self.keeper = f"{plan.keeper}/keeper" if plan.keeper else ""
        self._expects: dict[tuple[NodeId, StreamId], Believed] = {}
        self._asked: dict[tuple[NodeId, StreamId], tuple[Expect, int]] = {}  # gaps that a head has asked for
        self._carried: dict[tuple[NodeId, NodeId, StreamId], tuple[int, int]] = {}  # acknowledgements, and the last one
        self._decided: dict[RegionId, list[tuple[float, int]]] = {}  # epochs, and when they came
        self._settled: list[tuple[NodeId, float]] = []  # heads that began to number events, and when
        self._own: set[tuple[NodeId, StreamId]] = set()  # heads that fetch streams of their own regions
        self._pumped: dict[NodeId, float] = {}  # when a replica last looked for silent subscribers

    def blame(self, name: str, example: str) -> None:
        """Count what must not be."""
        self.wrong[name] += 1
        self.examples.setdefault(name, example)

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """Every step of every node."""
        kind = type(input)
        if self.plan.amnesia is not None:
            self._recovers(time, node, effects)
        if node == self.keeper and self.asking is not None:
            self.asking.follow(self.deployment.world.hosts[node].clock(time), input, effects)
        elif kind is Received and type(input.message) in BETWEEN:
            machine = self.deployment.world.hosts[node].machine
            if isinstance(machine, Proxy):
                self._received(time, machine, input.src, input.message, effects)
        elif kind is Expired and (type(input.timer) is PumpTick or type(input.timer) is AdvertiseTick):
            self._ticked(time, self.deployment.proxy(node), input.timer, effects)

    def on_durable(self, time: float, node: NodeId, records: Sequence[Any]) -> None:
        """A configuration service tells of a decision once it is written down."""
        for record in records:
            if type(record) is Membership:
                self._decided.setdefault(record.region, []).append((time, record.epoch))

    def _received(self, time: float, proxy: Proxy, src: NodeId, message: Message, effects: Effects) -> None:
        match message:
            case Advertise():
                self._advertisements(proxy, effects)
                self._introduced(proxy, src, message, effects)
                former = message.membership.epoch < proxy.inter_region.peers[message.membership.region].epoch
                if proxy.inter_region.is_head and not former:  # who is left of a former chain is not believed
                    self._conflicts(proxy, message, effects)
                    self._sources(time, proxy, src, message, effects)
            case Solicit():
                self._advertisements(proxy, effects)
                told = [each for to, each in _sends(effects, Advertise) if to == src]
                if len(told) != proxy.inter_region.is_tail:  # whoever takes over must know at once, from who knows
                    self.blame("solicits_answered_wrongly", f"{proxy.me} answers {src} {len(told)} times")
            case Subscribe(stream):
                self._carried[proxy.me, src, stream] = (0, message.lo)
            case Done(stream, horizon):
                carried, last = self._carried.get((proxy.me, src, stream), (0, horizon))
                if horizon > last:
                    self._carried[proxy.me, src, stream] = (carried + 1, horizon)
            case Lease(name):
                self._renewed(proxy, name, effects)
            case Know(stream):
                self._taken(proxy, src, message, effects)

    # --- advertisements -----------------------------------------------------------------------------------

    def _advertisements(self, proxy: Proxy, effects: Effects) -> None:
        """What a region has is told by its tail alone, who can serve it, and with it whose streams these are."""
        own = proxy.inter_region
        for to, told in _sends(effects, Advertise):
            known = [stream for stream in own.streams if own.histories[stream].horizon > FIRST]
            if set(told.horizons) != set(known if own.is_tail else ()):
                self.blame("advertised_by_others", f"{proxy.me} tells {to} of {sorted(told.horizons)}")
            beyond = {each: own.histories[each].floor for each in own.streams if own.is_tail}
            if told.asofs != {each: floor for each, floor in beyond.items() if floor > own.histories[each].horizon}:
                self.blame("asofs_untold", f"{proxy.me} tells {to} of {told.asofs}")  # nor may they be reused
            if set(told.owners) != {stream for stream in told.horizons if not is_internal(stream)}:
                self.blame("owners_untold", f"{proxy.me} tells {to} the owners of {sorted(told.owners)}")

    def _introduced(self, proxy: Proxy, src: NodeId, advert: Advertise, effects: Effects) -> None:
        """Whoever believes in an older chain is told of this one: else it might never find anybody who is left."""
        own = proxy.inter_region
        if own.membership is None or advert.membership.region not in own.peers:
            return
        due = advert.known.get(proxy.region, own.membership.epoch) < own.membership.epoch
        told = [each for to, each in _sends(effects, Advertise) if to == src]
        if len(told) != due or any([each.membership != own.membership for each in told]):
            self.blame("introductions", f"{proxy.me} introduces itself to {src} {len(told)} times")

    def _conflicts(self, proxy: Proxy, advert: Advertise, effects: Effects) -> None:
        """An operator is told of two claims to one name where there are two, and nothing is fetched from the other."""
        own = proxy.inter_region
        both = [stream for stream in advert.horizons if stream in own.streams]
        differing = {stream for stream in both if not advert.means(stream, own.streams[stream])}
        reported = sum([type(each) is Report and each.name == "stream_conflict" for each in effects])
        asked = {each.stream for _, each in _sends(effects, Subscribe)}
        if reported != len(differing) or asked & differing:
            self.blame("claims_confused", f"{proxy.me} reports {reported} of {sorted(differing)}")

    def _sources(self, time: float, proxy: Proxy, src: NodeId, advert: Advertise, effects: Effects) -> None:
        """Figure 1 (A1.17): what is expected of a source, when it is refreshed, and when another is better."""
        now, own = self.deployment.world.hosts[proxy.me].clock(time), proxy.inter_region
        for stream, advertised in advert.horizons.items():
            expect = own.expects.get(stream)
            if expect is None or not advert.means(stream, own.streams[stream]):
                continue
            before = self._expects.get((proxy.me, stream))
            if before is not None and before.expect is expect and before.source is not None:
                asked = any([each.stream == stream for _, each in _sends(effects, Subscribe)])
                if src == before.source:
                    gets_on = advertised > before.horizon and not asked
                    if (expect.horizon, expect.time) != (
                        (advertised, now) if gets_on else (before.horizon, before.time)
                    ):
                        self.blame("sources_refreshed_wrongly", f"{proxy.me} of {src} in {stream} at {time}")
                elif own.region != own.streams[stream] and advert.membership.region != before.region:
                    self._switched(proxy, before, stream, advert, now)
            self._expects[proxy.me, stream] = Believed(expect)

    def _switched(self, proxy: Proxy, before: Believed, stream: StreamId, advert: Advertise, now: float) -> None:
        """Where C is given: the source is left for one that is ahead by more than C / elapsed, and for no other."""
        own, c = proxy.inter_region, self.settings.c
        region, advertised = advert.membership.region, advert.horizons[stream]
        if c is None or (region == own.streams[stream] and now >= before.forgiven):
            return
        due = advertised > proxy.log.ends[stream] and (advertised - before.horizon) * (now - before.time) > c
        if (own.expects[stream].region == region) != due:
            self.blame("sources_changed_wrongly", f"{proxy.me} for {region} in {stream} at {now}")

    # --- subscriptions of other regions ---------------------------------------------------------------------

    def _ticked(self, time: float, proxy: Proxy, timer: PumpTick | AdvertiseTick, effects: Effects) -> None:
        """A tail looks for silent subscribers again and again, and sends again what is overdue."""
        own = proxy.inter_region
        current = timer.generation == own.generation
        if sum([type(each) is SetTimer and type(each.timer) is type(timer) for each in effects]) != current:
            self.blame("ticks_lost_or_doubled", f"{timer} of {proxy.me} at {time}")
        if type(timer) is AdvertiseTick:
            self._advertisements(proxy, effects)
        elif current:
            self._pumped[proxy.me] = time
            for (to, stream), each in own.subscribers.items():
                if each.unacked and each.idle >= each.due:
                    self.blame("overdue_unsent", f"{proxy.me} waits for {to} in {stream} at {time}")

    def _taken(self, proxy: Proxy, src: NodeId, know: Know, effects: Effects) -> None:
        """What a head has is acknowledged, so that it is not sent again; a gap is asked for, once."""
        own, stream = proxy.inter_region, know.stream
        expect = own.expects.get(stream)
        done = any([each.stream == stream for _, each in _sends(effects, Done)])
        asked = any([each.stream == stream for _, each in _sends(effects, Subscribe)])
        refused = any([each.stream == stream for _, each in _sends(effects, Unsubscribe)])
        if not own.is_head or expect is None or expect.source != src or refused or not know.spans:
            return
        if any(
            [
                type(each) is Report and each.name in ("bad_message", "chain_busy", "definition_pending")
                for each in effects
            ]
        ):
            return
        end = proxy.log.ends[stream]
        gap = know.spans[0].lo > end
        if done == gap:
            self.blame("acknowledged_wrongly", f"{proxy.me} has {end} of {stream} and is told {know.spans[0].lo}")
        known = self._asked.get((proxy.me, stream))
        first = known is None or known[0] is not expect or known[1] != end
        if asked != (gap and first):
            self.blame("gaps_asked_wrongly", f"{proxy.me} has {end} of {stream} and is told {know.spans[0].lo}")
        if gap:
            self._asked[proxy.me, stream] = (expect, end)

    def _renewed(self, proxy: Proxy, name: str, effects: Effects) -> None:
        """A renewal costs the chain nothing; that a lease is moved is written down, since a new head must know it."""
        reports = {each.name for each in effects if type(each) is Report}
        records = [each.record.record for each in effects if type(each) is Persist and type(each.record) is Logged]
        written = any([part.stream == LEASES for record in records for part in record.parts])
        if "lease_renewed" in reports and written != ("lease_moved" in reports):
            self.blame("leases_written_wrongly", f"{name} at {proxy.me}")

    # --- regions that have lost their memory -------------------------------------------------------------------

    def _recovers(self, time: float, node: NodeId, effects: Effects) -> None:
        """Who numbers its own streams is sent them by nobody any more, and goes on receiving the others."""
        region = self.deployment.region_of[node]
        for _, each in _sends(effects, Subscribe):
            if self.deployment.proxy(node).owners.get(each.stream) == region:
                self._own.add((node, each.stream))
        if not any([type(each) is Report and each.name == "settled" for each in effects]):
            return
        self._settled.append((node, time))
        left = {each.stream for _, each in _sends(effects, Unsubscribe)}
        left -= {each.stream for _, each in _sends(effects, Subscribe)}  # elsewhere
        own = {stream for fetching, stream in self._own if fetching == node}
        self._own -= {(node, stream) for stream in own}
        if left != own or own & self.deployment.proxy(node).inter_region.expects.keys():
            self.blame("adopted_wrongly", f"{node} leaves the sources of {sorted(left)}, not {sorted(own)}")

    def _recovered(self, amnesia: Amnesia, note: Note) -> None:
        """Each region begins at once where all answer, else after the time given; what nobody has is lost, once."""
        for region in self.deployment.replicas:
            began = [at for node, at in self._settled if self.deployment.region_of[node] == region]
            due = [0.0, amnesia.back + amnesia.wait] if region == amnesia.region else [0.0]
            note(region, "beginnings", abs(len(began) - len(due)), 0)
            for first, at in zip(due, began, strict=False):
                note(region, "begins_late_s", at - first, SETTLED)
                note(region, "begins_early_s", first - at, 0)
            head = self.deployment.proxy(self.deployment.membership(region).head)
            note(region, "definitions_lost", sum([head.log.histories[each].lost for each in head.definitions]), 0)
        committed = self.deployment.recorder.committed
        lost = {(stream, lo, row[0]) for (stream, lo), row in committed.items() if row[1] == LOST}
        due_lost = {(stream, held, amnesia.settings.skip) for stream, held in amnesia.held.items()}
        note(amnesia.region, "losses_declared_wrongly", len(lost ^ due_lost), 0)

    # --- at the end -------------------------------------------------------------------------------------------

    def demand(self, note: Note) -> None:
        """What must hold."""
        for name in CHECKS:
            note(self.examples.get(name, "regions"), name, self.wrong[name], 0)
        world = self.deployment.world
        for region in self.deployment.replicas:
            membership = self.deployment.membership(region)
            tail = self.deployment.proxy(membership.tail)
            if tail.inter_region.is_tail:
                late = world.now - self._pumped.get(tail.me, 0.0)
                note(tail.me, "silent_subscribers_unsought_s", late, 2 * self.settings.retry)
            if self.calm:
                self._open_wide(tail, note)
            self._known(membership, note)
        if self.plan.amnesia is not None:
            self._recovered(self.plan.amnesia, note)
        if self.asking is not None:
            self.asking.demand(note)
        if self.asking is not None and self.calm:
            released = world.reports.get("lease_released", 0.0)
            note("keeper", "released_too_often", released, len(EXTRA))
            note("keeper", "released_too_seldom", -released, -len(EXTRA))

    def _known(self, membership: Membership, note: Note) -> None:
        """The other regions know who forms a chain: whom to ask, and whom to tell."""
        decided = [at for at, epoch in self._decided.get(membership.region, []) if epoch == membership.epoch]
        if decided and decided[0] > self.deployment.world.now - INTRODUCED:
            return
        for other in self.deployment.replicas:
            head = self.deployment.proxy(self.deployment.membership(other).head)
            if other != membership.region:
                behind = membership.epoch - head.inter_region.peers[membership.region].epoch
                note(head.me, f"epochs_behind:{membership.region}", behind, 0)

    def _open_wide(self, tail: Proxy, note: Note) -> None:
        """A path that has lost nothing is trusted with one message more for each that was acknowledged."""
        for (to, stream), each in tail.inter_region.subscribers.items():
            carried, _ = self._carried.get((tail.me, to, stream), (0, 0))
            note(tail.me, f"window_closed:{stream}", FIRST_WINDOW + carried - each.window, 0)


CHECKS = (
    *(
        "solicits_answered_wrongly",
        "advertised_by_others",
        "owners_untold",
        "asofs_untold",
        "introductions",
        "claims_confused",
    ),
    *("sources_refreshed_wrongly", "sources_changed_wrongly", "ticks_lost_or_doubled", "overdue_unsent"),
    *("acknowledged_wrongly", "gaps_asked_wrongly", "leases_asked_wrongly", "leases_unattended", "silent_asked_again"),
    *("leases_written_wrongly", "adopted_wrongly"),
)


class Believed:
    """What a head expected of a source when it last heard an advertisement of the stream."""

    def __init__(self, expect: Expect) -> None:
        self.expect = expect
        self.source = expect.source
        self.region = expect.region
        self.horizon = expect.horizon
        self.time = expect.time
        self.forgiven = expect.forgiven


class Asked:
    """The last request for a lease."""

    def __init__(self, to: NodeId, at: float, message: Lease) -> None:
        self.to = to
        self.at = at
        self.message = message
        self.answered: float | None = None
        self.epoch = 0  # that its holder knew


class Asking:
    """What the holder of leases asks for, of whom, and when: what must be asked is, and nothing else.

    Asked again are a replica that gave no answer for so long, or was lost, by asking the next one; one that is not the
    head, by asking the head, as soon as it is known; and a lease of which a third of the time is over.
    """

    def __init__(self, watch: RegionsWatch, region: RegionId) -> None:
        self.watch = watch
        self.region = region
        self.asked: dict[str, Asked] = {}
        self.again = watch.deployment.settings.leases.again

    def follow(self, now: float, input: Any, effects: Effects) -> None:
        """One step of the holder."""
        kind = type(input)
        if kind is Received:
            message = input.message
            if type(message) is NotHead:
                self._compare(now, {name for name in self.asked if self._told(name, input.src, message)}, effects)
            elif type(message) is Leased and message.name in self.asked:
                self._leased(now, message)
            elif type(message) is Unleased:
                self.asked.pop(message.name, None)
        elif kind is Expired and type(input.timer) is LeaseTick:
            self._ticked(now, input.timer, effects)
        elif kind is Expired and type(input.timer) is Disconnected:
            lost = input.timer.node
            waiting = {name for name, each in self.asked.items() if each.answered is None and each.to == lost}
            self._compare(now, waiting, effects)
        for to, lease in _sends(effects, Lease):
            self.asked[lease.name] = Asked(to, now, lease)
        for name in self.asked.keys() - self._holders().keys():
            del self.asked[name]
        for name, each in self.asked.items():
            each.epoch = self._holders()[name].membership.epoch

    def _holders(self) -> dict[str, Holder]:
        machine = self.watch.deployment.world.hosts[self.watch.keeper].machine
        assert isinstance(machine, Keeper)
        return machine.machine.holders

    def _told(self, name: str, src: NodeId, message: NotHead) -> bool:
        """Whether this says whom to ask instead: somebody new, or the head after all."""
        each, told = self.asked[name], message.membership
        if told.region != self.region:
            return False
        return told.epoch > each.epoch or (told.epoch == each.epoch and each.to == src != told.head)

    def _leased(self, now: float, message: Leased) -> None:
        each = self.asked[message.name]
        if message.asof >= each.message.asof:
            each.answered = now
        else:  # asked for again, as if it had been just now
            each.at, each.answered = now, None

    def _ticked(self, now: float, timer: LeaseTick, effects: Effects) -> None:
        each = self.asked.get(timer.name)
        if each is None:
            return
        overdue = each.answered is None and now - each.at >= self.again
        due = each.answered is not None and now - each.answered >= each.message.ttl / 3
        self._compare(now, {timer.name} if overdue or due else set(), effects)
        if sum([type(effect) is SetTimer and effect.timer == timer for effect in effects]) != 1:
            self.watch.blame("leases_unattended", f"{timer.name} at {now}")
        chain = self._holders()[timer.name].membership.replicas
        if overdue and len(chain) > 1 and each.to in [to for to, _ in _sends(effects, Lease)]:
            self.watch.blame("silent_asked_again", f"{each.to} for {timer.name} at {now}")

    def _compare(self, now: float, wanted: set[str], effects: Effects) -> None:
        asked = sorted([lease.name for _, lease in _sends(effects, Lease)])
        if asked != sorted(wanted):
            self.watch.blame("leases_asked_wrongly", f"{asked} for {sorted(wanted)} at {now}")

    def demand(self, note: Note) -> None:
        """At the end all have their answers, and ask the chain that there is."""
        machine = self.watch.deployment.world.hosts[self.watch.keeper].machine
        assert isinstance(machine, Keeper)
        newest = machine.machine.memberships[self.region].epoch
        for name, holder in self._holders().items():
            note(name, "lease_epochs_behind", newest - holder.membership.epoch, 0)
            note(name, "lease_unanswered", holder.asked is not None, 0)


def _sends(effects: Effects, kind: type[M]) -> list[tuple[NodeId, M]]:
    """The messages of a class that a step sends, each with its receiver."""
    sends = [each for each in effects if type(each) is Send]
    return [(each.to, each.message) for each in sends if isinstance(each.message, kind)]
