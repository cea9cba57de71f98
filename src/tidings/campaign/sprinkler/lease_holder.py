"""The lease holder: a client in a simulated world that takes leases and reads under them, again and again.

Its *long* lease would expire before the end, but is renewed, and is moved once. Under any faults, no replica may refuse
a read under it as forgotten or answer it with other rows, and in the end all replicas know its number. *Short* leases
are left as soon as they are granted, and expire. Later reads as of them are refused with the right error, or answered
rightly.

*Extra* leases try what a lease may be as of. A lease is granted as of an earlier number if another lease of that stream
keeps that number, else as of the end, whatever leases other streams have. While the lease holder waits for the first
extra lease, it loses its connection to the head. Extra leases are released when no other lease begins or ends any more,
and must stay released.
"""

from __future__ import annotations

import random
from typing import Any

from tidings.client.commands import Close, Hold, LetGo, Open, Taken
from tidings.client.machine import ClientMachine, MachineSettings
from tidings.core.ids import NEVER, NodeId, RegionId, StreamId
from tidings.protocols.brokers.messages import Unfollowed
from tidings.protocols.brokers.subscriber import Ended, Fed, Lost
from tidings.protocols.kernel import Deliver, Effect, Effects, Expired, Input, Received, SetTimer, Time, Timer
from tidings.protocols.services.catalog import Description
from tidings.protocols.services.leases import Dropped, Granted, Lease, MoveLease
from tidings.protocols.services.receipts import receipts_of
from tidings.sim.build import Deployment, Note

LONG, SHORT = "long", "short"
ELSEWHERE, SHARED, EARLY = EXTRA = ("elsewhere", "shared", "early")
TICK = 0.25
READ_EVERY = 5  # ticks
FIRST_READ, MOVE_AT = 4.0, 11.0  # seconds
LAST_SHORT, LAST_READ = 14.0, 20.0  # so that everything is answered in the end
RELEASE_AT = 18.0  # the short ones are over, and all is mended
LASTING, BRIEF = 20.0, 1.0  # seconds of a ttl: the first is renewed after a third, and over before the world is
ENDLESS = 90.0  # never renewed, nor over


class LeaseHolderTick(Timer, frozen=True, gc=False):
    """Do the next thing."""


class Disconnected(Timer, frozen=True, gc=False):
    """The connection to a replica is lost."""

    node: NodeId


class LeasedReads:
    """A read under way, and what it has brought."""

    def __init__(self, lease: str, hi: int, asof: int) -> None:
        self.lease = lease
        self.hi = hi
        self.asof = asof
        self.rows = 0
        self.sum = 0


class LeaseHolder:
    """One client and its leases."""

    def __init__(self, machine: ClientMachine, stream: StreamId) -> None:
        self.machine = machine
        self.stream = stream
        self.asofs: dict[str, int] = {}  # of leases, as they were granted or moved
        self.horizon = 1
        self.hi = 0  # where every read ends
        self.steps = 0
        self.reading: dict[int, LeasedReads] = {}
        self.found: dict[tuple[int, int], set[tuple[int, int]]] = {}  # (hi, asof) -> (rows, hash sum)
        self.lost: list[str] = []  # why the long lease was dropped
        self.denied = 0  # replicas that have forgotten what it keeps
        self.gone = 0  # reads under a lease that is over, refused
        self.moved = False
        self.wanted: dict[str, tuple[int, int]] = {}  # of extra ones: as of at least, and at most
        self.dropped: set[str] = set()

    def start(self, now: Time) -> Effects:
        return [*self.machine.start(now), SetTimer(TICK, LeaseHolderTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is Expired and type(input.timer) is LeaseHolderTick:
            return [*self._work(now), SetTimer(TICK, LeaseHolderTick())]
        if type(input) is Expired and type(input.timer) is Disconnected:
            return self._do(now, Lost(input.timer.node))
        if type(input) is Received and type(input.message) is Unfollowed and input.message.floor:
            read = self.reading.get(input.message.id)
            self.denied += read is not None and read.lease == LONG and read.asof >= self.asofs[LONG]
        return self._do(now, input)

    def check(self) -> None:
        self.machine.check()

    @property
    def kept(self) -> int:
        """Rows that were read under a lease and are gone as of a later number."""
        by_hi: dict[int, set[int]] = {}
        for (hi, _), found in self.found.items():
            by_hi.setdefault(hi, set()).update([rows for rows, _ in found])
        return sum([max(rows) - min(rows) for rows in by_hi.values()])

    @property
    def differing(self) -> int:
        """Reads of the same that brought something else."""
        return sum([len(found) - 1 for found in self.found.values()])

    def _work(self, now: Time) -> list[Effect]:
        out: list[Effect] = []
        if not self.machine.home or self.stream not in self.machine.streams:
            return out
        self.steps += 1
        if not self.hi and self.horizon > 1 and now > FIRST_READ:
            self.hi = self.horizon
        if self.steps == 8:
            out += self._do(now, Hold(Lease(LONG, self.stream, ttl=LASTING)))
        if self.steps > 8 and self.steps % 8 == 2 and now < LAST_SHORT:
            out += self._do(now, Hold(Lease(f"{SHORT}-{self.steps}", self.stream, ttl=BRIEF)))
        waits = not self.asofs.keys() >= self.wanted.keys()  # for a lease as of what the long one keeps
        if now > MOVE_AT and not (self.moved or waits) and self.horizon > self.asofs.get(LONG, self.horizon):
            self.moved = True
            self.asofs[LONG] = self.horizon  # from now on it may be as of this
            out += self._do(now, MoveLease(LONG, self.horizon))
        if self.steps % READ_EVERY == 0 and now < LAST_READ:
            out += self._read(now)
        if self.steps % 4 == 3 and LONG in self.asofs:
            out += self._extra(now) if now < RELEASE_AT else self._release(now)
        return out

    def _extra(self, now: Time) -> list[Effect]:
        """The next of the extra leases, once the long one keeps something, and the one before is granted."""
        left = [name for name in EXTRA if name not in self.asofs]
        kept = self.asofs[LONG]
        if not left or left[0] in self.wanted or not 1 < kept < self.horizon - 1 or now > LAST_SHORT or self.moved:
            return []
        name, stream, asof = left[0], self.stream, {ELSEWHERE: 0, SHARED: kept + 1, EARLY: 1}[left[0]]
        if name == ELSEWHERE:
            stream = receipts_of(self.machine.home)
        self.wanted[name] = {ELSEWHERE: (1, NEVER), SHARED: (asof, asof), EARLY: (self.horizon, NEVER)}[name]
        out = self._do(now, Hold(Lease(name, stream, asof, ttl=ENDLESS)))
        if name == SHARED:
            out.append(SetTimer(0.0, Disconnected(self.machine.memberships[self.machine.home].head)))
        return out

    def _release(self, now: Time) -> list[Effect]:
        """Let go of extra leases, and ask for them as if that had not been, until there is none."""
        out: list[Effect] = []
        for name in EXTRA:
            if name in self.machine.holders:
                out += self._do(now, LetGo(name))
            elif name in self.asofs and name not in self.dropped:
                stream = self.stream if name != ELSEWHERE else receipts_of(self.machine.home)
                out += self._do(now, Hold(Lease(name, stream, ttl=ENDLESS), resume=True))
        return out

    def _read(self, now: Time) -> list[Effect]:
        """The same range as ever, as of the long lease and of the oldest short one."""
        out: list[Effect] = []
        names = [LONG, *sorted(set(self.asofs) - {LONG, *EXTRA}, key=lambda name: self.asofs[name])[:1]]
        for at, name in enumerate(names):
            if name in self.asofs and self.hi and not (name == LONG and self.lost):
                id = 10 * self.steps + at
                self.reading[id] = LeasedReads(name, self.hi, self.asofs[name])
                where = self.steps // READ_EVERY
                out += self._do(now, Open(id, self.stream, 1, "", None, 0, self.hi, self.asofs[name], where))
        return out

    def _do(self, now: Time, input: Input) -> list[Effect]:
        effects = list(self.machine.handle(now, input))
        for effect in effects[:]:
            if type(effect) is Deliver:
                effects += self._note(now, effect.item)
        return effects

    def _note(self, now: Time, item: object) -> list[Effect]:
        match item:
            case Granted(name, asof):
                self.asofs.setdefault(name, asof)
                return self._do(now, LetGo(name, release=False)) if name.startswith(SHORT) else []
            case Dropped(name, reason) if name == LONG:
                self.lost.append(reason)
                self.reading = {id: read for id, read in self.reading.items() if read.lease != LONG}
            case Dropped(name):
                self.dropped.add(name)
            case Description(states=states) if self.stream in states:
                self.horizon = max(self.horizon, states[self.stream].horizon)
            case Fed(id, span) if id in self.reading:
                read = self.reading[id]
                read.rows += span.rows.count
                read.sum = (read.sum + span.rows.hash_sum) % (1 << 64)
                if span.hi < read.hi:
                    return self._do(now, Taken(id, span.hi))
                del self.reading[id]
                self.found.setdefault((read.hi, read.asof), set()).add((read.rows, read.sum))
                return self._do(now, Close(id))
            case Ended(id, floor=floor) if id in self.reading:
                read = self.reading.pop(id)
                self.gone += floor > 0 and read.lease != LONG
        return []


class LeaseHolding:
    """The lease holder of a world, and what must hold of it in the end."""

    def __init__(self, deployment: Deployment, region: RegionId, forgets: bool) -> None:
        self.deployment = deployment
        self.region = region
        self.forgets = forgets
        self.node = f"{region}/lease-holder"
        settings = MachineSettings(subscriptions=deployment.settings.subscriptions, refresh=2.0)

        def lease_holder(durable: list[Any], incarnation: int, rng: random.Random) -> LeaseHolder:
            seeds = deployment.memberships[region].replicas
            return LeaseHolder(ClientMachine(self.node, self.node, seeds, settings, rng), f"s-{region}")

        deployment.add(self.node, region, lease_holder)

    @property
    def lease_holder(self) -> LeaseHolder:
        """The machine."""
        machine = self.deployment.world.hosts[self.node].machine
        assert isinstance(machine, LeaseHolder)
        return machine

    @property
    def reports(self) -> dict[str, int]:
        """What it has seen, for the campaign's goals."""
        lease_holder = self.lease_holder
        return {"lease_kept_dead_rows": lease_holder.kept, "lease_gone": lease_holder.gone}

    def demand(self, note: Note) -> None:
        """What was promised must have been kept; a region that forgets its leases says so when they are renewed."""
        lease_holder = self.lease_holder
        note("lease_holder", "leases_lost", len(lease_holder.lost), int(self.forgets))
        if self.forgets:
            note("lease_holder", "loss_untold", not lease_holder.lost, 0)
        else:
            note("lease_holder", "reads_denied", lease_holder.denied, 0)
            note("lease_holder", "reads_differing", lease_holder.differing, 0)
        note("lease_holder", "reads_unanswered", len(lease_holder.reading), 0)
        note("lease_holder", "reads_missing", not lease_holder.found, 0)
        histories = self.deployment.proxy(self.deployment.membership(self.region).head).log.histories
        for name, (least, most) in lease_holder.wanted.items():
            end = histories[
                lease_holder.stream if name != ELSEWHERE else receipts_of(lease_holder.machine.home)
            ].horizon
            note(
                "lease_holder",
                f"{name}_not_as_wanted",
                not least <= lease_holder.asofs.get(name, 0) <= min(most, end),
                0,
            )
            note("lease_holder", f"{name}_not_released", name not in lease_holder.dropped, 0)
        for node in self.deployment.membership(self.region).replicas:
            leased = self.deployment.proxy(node).table.leases.table
            known = leased[LONG].asof if LONG in leased else 0
            note(node, "lease_elsewhere", known != (0 if self.forgets else lease_holder.asofs.get(LONG)), 0)
            note(node, "leases_left", len(leased) - (LONG in leased), 0)
