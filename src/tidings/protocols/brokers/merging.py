"""Several streams as one, in the order of their ticks: the client's end of a total order (A2.12, E13).

A merger follows each stream as any subscriber does, and the promises of the regions that own them
(services/promises.py). Of each stream it knows up to which tick it is *complete*: everything at or below that tick has
come. A row with tick T says so of all ticks below T. A promise (tick, end) says so of its tick, once the stream is
covered up to ``end``; numbers without a row, which were collected or do not pass the filter, count as covered. What
lies at or below the smallest of these ticks is released, sorted by tick; rows of one batch share a tick and keep their
numbers' order. Nothing depends on when messages arrive.

No row is acknowledged before it is released and the application has taken it. So the credit of the subscriptions bounds
what waits here, and a stream that is ahead waits. Of the stream that is least complete only rows of its last tick can
wait. They are acknowledged, since more of that tick may follow: so no stream waits for one that has no credit.

A range that is lost has no tick. It is released with the next row of any stream, before rows of its own stream that
follow it.

Guarantee: all mergers release the rows that they share in one order, each row once, whatever streams, regions, filters
and times they chose, as far as collection has left the rows; a row that comes too late for that ends the merge. What is
released at or below the tick of a durable merge's cursor is not released again, and what lies above it is.

A region that is cut off or dead stops the merge. After ``patience`` seconds it ends with `Stalled`, which names the
region; a merge without that region's streams can begin above the same tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidings.core.hybrid_clock import Tick
from tidings.core.ids import NodeId, RegionId, StreamId
from tidings.core.span import Span
from tidings.protocols.brokers.merge_track import PENDING, Run, Track, runs_of
from tidings.protocols.brokers.messages import EARLIEST, LATEST, Feed, FeedBeat, SubscriptionSettings, Unfollowed
from tidings.protocols.brokers.subscriber import (
    Ended,
    Fed,
    FollowTick,
    Learn,
    Lost,
    Save,
    Saved,
    Subscriber,
    Take,
)
from tidings.protocols.kernel import (
    NOTHING,
    Command,
    Deliver,
    Effect,
    Effects,
    Expired,
    Input,
    Received,
    Report,
    Send,
    SetTimer,
    Time,
    Timer,
    Value,
)
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.cursor_client import CursorClient
from tidings.protocols.services.cursors import MERGED, CursorAt
from tidings.protocols.services.head_client import HeadClient
from tidings.protocols.services.promises import Merge, MergeHeard, promises_in, ticks_of
from tidings.protocols.services.publishing import NotHead

ROWS = 16_384  # released at a time, or all rows of one tick; ours: as many as a message carries
RENEW = 3.0  # seconds between two `Merge`; ours: owners promise for ten
IDLE = 1.0  # seconds after which a merge tells how far it is although no row passed; ours


class OpenMerge(Command, frozen=True, gc=False):
    """Merge streams, from above a tick or from ``lo``: EARLIEST or LATEST.

    The streams come with the ids of their subscriptions and their owners, and so do the regions that promise.
    """

    id: int
    streams: tuple[tuple[int, StreamId, RegionId], ...]
    regions: tuple[tuple[int, RegionId], ...]
    lo: int = EARLIEST
    above: Tick = 0
    where: str = ""
    name: str | None = None
    holder: int = 0
    patience: float | None = None


class Begun(Value, frozen=True, gc=False):
    """Delivered to the application: every row above the tick will be delivered, as far as collection leaves it.

    If the merge begins at the latest rows, whatever is published from now on is above the tick.
    """

    id: int
    tick: Tick


class Merged(Value, frozen=True, gc=False):
    """Delivered to the application: all above the tick of the last one, and at or below ``tick``.

    ``spans`` continue what came before, each with the id of its stream's subscription. ``order`` is the sequence: runs
    of rows (index of the span, first row, end), or, where both are 0, a span without rows of which something is lost.
    """

    id: int
    tick: Tick
    spans: tuple[tuple[int, Span], ...]
    order: tuple[tuple[int, int, int], ...]


class Stalled(Value, frozen=True, gc=False):
    """Delivered to the application: nothing has come of a region for too long, so the merge is over.

    Everything at or below the tick was delivered.
    """

    id: int
    region: RegionId
    stream: StreamId
    tick: Tick


class MergeTick(Timer, frozen=True, gc=False):
    """Ask for promises, save the cursor, and look whether something moves."""


class PartTick(Timer, frozen=True, gc=False):
    """The timer of one of the subscriptions."""

    part: int


class Merger:
    """One merge of a client. ``membership`` is the chain of its region, which feeds it."""

    def __init__(self, open: OpenMerge, membership: ChainConfig, settings: SubscriptionSettings, turn: int = 0) -> None:
        self.id = open.id
        self.open = open
        self.settings = settings
        self.head = HeadClient(membership)
        self.cursor = CursorClient(open.name, MERGED, open.holder, open.id) if open.name is not None else None
        self.tracks: dict[int, Track] = {}
        self.promises: dict[int, Subscriber] = {}
        for part, stream, region in open.streams:
            self.tracks[part] = Track(self._subscriber(part, stream, open.lo, open.where, open.above, turn), region)
        for part, region in open.regions:
            self.promises[part] = self._subscriber(part, ticks_of(region), EARLIEST, "", 0, turn)
        self.parts = {part: track.subscriber for part, track in self.tracks.items()} | self.promises
        self.by_stream = {track.stream: track for track in self.tracks.values()}
        self.latest = open.lo == LATEST
        self.floor: Tick | None = None if self.latest else open.above
        self.tick: Tick = self.floor or 0  # everything at or below this is released
        self.begun = False
        self.over = False
        self.asked: Time = 0.0  # when `Merge` was last sent
        self.heard = True  # and answered
        self.fed: Time = 0.0  # when the own region last sent something
        self.told: Time = 0.0  # when something was last released
        self.moved: Time = 0.0  # when something last became complete, or the application held what was released
        self.known: Tick = -1  # the smallest tick up to which a stream is complete
        self.ticked: Time = 0.0
        self.unsaved = 0  # ticks for which the cursor was not answered

    def _subscriber(self, part: int, stream: StreamId, lo: int, where: str, above: Tick, turn: int) -> Subscriber:
        one = Subscriber(part, stream, lo, where, None, self.head.config, self.settings, 0, above=above)
        one.turn = turn
        return one

    # --- the boundary -----------------------------------------------------------------------------------

    def start(self, now: Time) -> Effects:
        self.fed = self.told = self.moved = self.ticked = now
        out: list[Effect] = [*self._demand(now), SetTimer(self.settings.save, MergeTick())]
        return [*out, *(self._ask() if self.cursor is not None else self._follow(now))]

    def handle(self, now: Time, input: Input) -> Effects:
        if self.over:
            return NOTHING
        match input:
            case Received(_, Feed(id=part) | Unfollowed(id=part)) if part in self.parts:
                self.fed = now
                return self._part(now, part, input)
            case Received(_, FeedBeat(feeds)):
                self.fed = now
                parts = [feed[0] for feed in feeds if feed[0] in self.parts]
                return [effect for part in parts for effect in self._part(now, part, input)]
            case Received(_, MergeHeard(id)) if id == self.id:
                self.heard = self.head.useful = True
            case Received(_, CursorAt() as at) if self.cursor is not None and at.name == self.cursor.name:
                return self._cursor(now, at) if at.stream == MERGED else NOTHING
            case Received(src, NotHead(membership)):
                return self._not_head(now, src, membership)
            case Take(tick):
                return self._take(now, tick)
            case Save(tick, prompt) if self.cursor is not None:
                self.cursor.processed = max(self.cursor.processed, tick)
                return self._ask() if prompt else NOTHING
            case Lost(node):
                return self._lost(now, node)
            case Learn(membership):
                self.head.learn(membership)
                return self._learn(now, membership)
            case Expired(PartTick(part)) if part in self.parts:
                return self._part(now, part, Expired(FollowTick()))
            case Expired(MergeTick()):
                return [*self._look(now), SetTimer(self.settings.save, MergeTick())]
        return NOTHING

    def check(self) -> None:
        for subscriber in self.parts.values():
            subscriber.check()
        for track in self.tracks.values():
            assert len(track.promises) <= PENDING, "promises that wait are bounded"
            assert self.floor is None or track.released <= self.tick, "nothing above the tick is released"
            assert track.rows == sum([span.rows.count for span in track.pieces]), "rows that wait are counted"

    def close(self) -> Effects:
        """The application has closed the merge."""
        self.over = True
        ended = [effect for each in self.parts.values() for effect in each.close()]
        return [*ended, *(self._ask() if self.following else ())]

    # --- subscriptions ----------------------------------------------------------------------------------

    @property
    def following(self) -> bool:
        """Its subscriptions have begun."""
        return self.cursor is None or self.cursor.opened

    def _follow(self, now: Time) -> list[Effect]:
        return self._each(now, lambda subscriber: subscriber.start(now))

    def _all(self, now: Time, input: Input) -> list[Effect]:
        return self._each(now, lambda subscriber: subscriber.handle(now, input))

    def _each(self, now: Time, do: Callable[[Subscriber], Effects]) -> list[Effect]:
        out: list[Effect] = []
        for part, subscriber in self.parts.items():
            if not self.over:
                out += self._heard(part, do(subscriber))
        return [*out, *self._release(now)]

    def _part(self, now: Time, part: int, input: Input) -> list[Effect]:
        out = self._heard(part, self.parts[part].handle(now, input))
        if not self.over and type(input) is Received:
            if part in self.tracks:
                self.tracks[part].told = True
                self.tracks[part].settle()
            out += self._release(now)
        return out

    def _heard(self, part: int, effects: Effects) -> list[Effect]:
        """What a subscription wants done and has delivered."""
        out: list[Effect] = []
        for effect in effects:
            if type(effect) is SetTimer:
                out.append(SetTimer(effect.delay, PartTick(part)))
            elif type(effect) is not Deliver:
                out.append(effect)
            elif isinstance(effect.item, Fed):
                out += self._fed(part, effect.item.span)
            elif isinstance(effect.item, Ended):
                out += self._end(effect.item.reason, gone=effect.item.gone and part in self.tracks)
            if self.over:
                break
        return out

    def _fed(self, part: int, span: Span) -> Effects:
        if part in self.tracks:
            reason = self.tracks[part].feed(span, self.floor)
            return self._end(reason) if reason else NOTHING
        out: list[Effect] = []
        for stream, (tick, end) in promises_in(span.rows):
            track = self.by_stream.get(stream)
            if track is None or ticks_of(track.region) != span.stream:
                continue
            track.promise(tick, end)
            track.settle()
            if track.promises and track.told and self.open.where:
                track.told = False
                out += track.subscriber.wonder()
        taken = self.promises[part].handle(self.fed, Take(span.hi))
        return [*out, *taken]

    # --- the order --------------------------------------------------------------------------------------

    def _release(self, now: Time) -> list[Effect]:
        """Release what is known to be next."""
        if self.over or (self.floor is None and not self._begin_latest()):
            return []
        out: list[Effect] = []
        known = min([track.complete for track in self.tracks.values()])
        if known > self.known:
            self.known, self.moved = known, now
        if not self.begun and self._has_begun():
            self.begun = True
            out.append(Deliver(Begun(self.id, self.tick)))
        while self.tick < known and self.begun and self._is_worth_it(now, known):
            self.told = now
            out.append(Deliver(self._merge(self._step(known))))
        return [*out, *self._acknowledge(now)]

    def _acknowledge(self, now: Time) -> list[Effect]:
        """Let the subscriptions have more."""
        ends = [(part, track.acknowledge(self.known)) for part, track in self.tracks.items()]
        taken = [(part, self.parts[part].handle(now, Take(end))) for part, end in ends if end]
        return [effect for part, effects in taken for effect in self._heard(part, effects)]

    def _begin_latest(self) -> bool:
        """It begins above everything that was there when its subscriptions began, in whichever stream."""
        firsts = [track.first for track in self.tracks.values()]
        if None in firsts:
            return False
        self.floor = self.tick = max([first for first in firsts if first is not None])
        for track in self.tracks.values():
            track.begin_above(self.floor)
        return True

    def _has_begun(self) -> bool:
        if self.latest:
            return all([track.complete >= self.tick for track in self.tracks.values()])
        return all([track.begin is not None for track in self.tracks.values()])

    def _is_worth_it(self, now: Time, known: Tick) -> bool:
        """Whether there is a row, or nothing was told for long and the application waits."""
        tracks = self.tracks.values()
        if any([track.has_some(known) for track in tracks]):
            return True
        return now - self.told >= IDLE and not any([track.out for track in tracks])

    def _step(self, known: Tick) -> Tick:
        """How far to go at once."""
        if sum([track.rows for track in self.tracks.values()]) <= ROWS:
            return known
        batches: list[tuple[Tick, int]] = []
        for track in self.tracks.values():
            rows = 0
            for origin in track.origins:
                if origin.tick > known or rows >= ROWS:
                    break
                rows += origin.hi - origin.lo
                batches.append((origin.tick, origin.hi - origin.lo))
        rows = 0
        for tick, count in sorted(batches):
            rows += count
            if rows >= ROWS:
                return tick
        return known

    def _merge(self, tick: Tick) -> Merged:
        """Everything up to a tick, in order."""
        spans: list[tuple[int, Span]] = []
        runs: list[Run] = []
        for part, track in self.tracks.items():
            for span in track.cut(tick):
                if span.lost:
                    runs.append((track.released, len(spans), 0, 0))
                elif span.rows.count:
                    runs += runs_of(span, len(spans))
                    track.released = runs[-1][0]
                spans.append((part, span))
            if track.given < track.at:
                track.given = track.at
                track.out.append((tick, track.at))
        self.tick = tick
        return Merged(self.id, tick, tuple(spans), _joined(sorted(runs)))

    def _take(self, now: Time, tick: Tick) -> list[Effect]:
        """The application has taken everything up to a tick."""
        for track in self.tracks.values():
            while track.out and track.out[0][0] <= tick:
                track.taken = track.out.popleft()[1]
                self.moved = now
        return self._acknowledge(now)

    # --- the head of the region -------------------------------------------------------------------------

    def _demand(self, now: Time) -> list[Effect]:
        self.asked, self.heard = now, False
        return [Send(self.head.asked, Merge(self.id, tuple(self.by_stream)))]

    def _ask(self) -> list[Effect]:
        question = self.cursor.question if self.cursor is not None else None
        return [Send(self.head.asked, question)] if question is not None else []

    def _cursor(self, now: Time, at: CursorAt) -> Effects:
        assert self.cursor is not None
        self.unsaved = 0
        self.head.useful = True
        match self.cursor.hear(at):
            case "opened":
                if at.horizon:
                    self._resume(at.horizon)
                return self._follow(now)
            case "saved":
                return [Deliver(Saved(self.id, self.cursor.saved))]
            case "ask":
                return self._ask()
            case "superseded":
                return self._end(f"{self.cursor.name!r} is held by a newer subscriber", superseded=True)
            case "refused":
                return self._end(at.refused)
        return NOTHING

    def _resume(self, tick: Tick) -> None:
        """Begin above the tick of the cursor."""
        self.latest = False
        self.floor = self.tick = tick
        for track in self.tracks.values():
            track.subscriber.begin_above(tick)

    def _not_head(self, now: Time, src: NodeId, membership: ChainConfig) -> list[Effect]:
        changed = self.head.learn(membership)
        out = self._learn(now, membership)
        if changed or src != self.head.asked:
            out += [*self._demand(now), *self._ask()]
        return out

    def _lost(self, now: Time, node: NodeId) -> list[Effect]:
        out: list[Effect] = []
        if node == self.head.asked:
            self.head.rotate()
            out += [*self._demand(now), *self._ask()]
        return [*out, *(self._all(now, Lost(node)) if self.following else ())]

    def _learn(self, now: Time, membership: ChainConfig) -> list[Effect]:
        if self.following:
            return self._all(now, Learn(membership))
        for subscriber in self.parts.values():
            subscriber.head.learn(membership)
        return []

    # --- time -------------------------------------------------------------------------------------------

    def _look(self, now: Time) -> list[Effect]:
        out: list[Effect] = []
        slept, self.ticked = not 0 <= now - self.ticked <= self.settings.silence / 2, now
        waited = now - self.asked
        if slept or (waited >= RENEW and self.heard):
            out += self._demand(now)
        elif waited >= RENEW / 3 and not self.heard:  # perhaps that replica is gone: another one knows who is head
            self.head.rotate()
            out += self._demand(now)
        question = self._ask()
        self.unsaved = self.unsaved + 1 if question else 0
        if self.unsaved > 5:
            self.unsaved = 0
            self.head.rotate()
        out += [*question, *self._release(now)]
        if slept:
            self.told = now
        if slept or any([track.out for track in self.tracks.values()]):
            self.moved = now
        patience = self.open.patience
        if patience is not None and now - self.moved > patience:
            return [*out, *self._stall(now, patience)]
        return out

    def _stall(self, now: Time, patience: float) -> list[Effect]:
        """A region is silent; if the own one feeds nothing, it is that one."""
        slowest = min(self.tracks.values(), key=lambda track: (track.first is not None, track.complete, track.id))
        region = slowest.region if now - self.fed <= patience else self.head.config.region
        stalled = Stalled(self.id, region, slowest.stream, self.tick)
        return [*self.close(), Deliver(stalled), Report("merge_stalled")]

    def _end(self, reason: str, *, superseded: bool = False, gone: bool = False) -> list[Effect]:
        return [*self.close(), Deliver(Ended(self.id, reason, superseded, gone=gone))]


def _joined(runs: Iterable[Run]) -> tuple[tuple[int, int, int], ...]:
    """Sorted runs, neighbours of one span as one."""
    out: list[tuple[int, int, int]] = []
    for _, index, start, end in runs:
        if out and end and out[-1][0] == index and out[-1][2] == start:
            out[-1] = (index, out[-1][1], end)
        else:
            out.append((index, start, end))
    return tuple(out)
