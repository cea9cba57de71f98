"""A broker: passes knowledge of streams down to the cells below it, and curiosity about them up (Gryphon, A2.17-A2.29).

    upstream cell --Brokered, Offer--> [broker] --Brokered, Offer--> brokers of the cells below
                  <--Status, Nack, Acknowledge--        <--Status, Nack, Acknowledge--

Of each stream a broker has an input (what it knows, and what it has asked for) and, for each broker below, an output
(what that one is curious about and has acknowledged). A row goes down once, to the cells below that have a filter it
passes; numbers without such a row are told with the next row, or a little later. What is asked for again goes only to
who asks (A2.20, A2.21). A nack is answered with what is known here; the rest goes up, unless it was asked for a moment
ago (A2.23). Acknowledgements go up when all cells below have given them (A2.22).

The broker has no stable storage. At the top of a region the brokers are the replicas, and their input is the history:
`Input` is what both have. Everything else is soft: a restarted relay knows nothing, hears from the brokers below within
a second, and gets nothing from above before that, because its status says whom it reaches.

To a cell of several brokers a stream goes by a hash over those that reach the most cells (A2.26). The brokers of a cell
tell each other whom they hear from below, and what those want. So all of them want the same from above, and what one
cannot send to a broker below it sends through a peer that can, which passes it on as it is and nowhere else (A2.27).

Every span that goes down is *labelled* with the version of the receiver's interests that it was filtered by. A relay
knows which versions of those below each of its own versions included, and translates. A receiver counts nothing that
was filtered before it wanted what it wants now, and asks for it again (dynamic subscriptions, exact at the switch).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Protocol
from zlib import crc32

import numpy as np

from tidings.core.curiosity import Curiosity
from tidings.core.errors import BadInput, Contradiction
from tidings.core.filters import Filter, parse, parse_attributes
from tidings.core.filters.index import FilterIndex
from tidings.core.filters.summary import Summary
from tidings.core.ids import FIRST, NodeId, StreamId
from tidings.core.knowledge import Knowledge
from tidings.core.lens import ALL, Lens
from tidings.core.ranges import Ranges
from tidings.core.rows import NO_ROWS, Mask
from tidings.core.span import Span
from tidings.protocols.brokers.broker_messages import (
    Acknowledge,
    Brokered,
    BrokerSettings,
    CellId,
    Interest,
    Nack,
    PeerStatus,
    Status,
    StatusHeard,
    Wanted,
)
from tidings.protocols.kernel import (
    NOTHING,
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
)
from tidings.protocols.messages import Offer

SUMMARY = 1024  # filters of one stream that a broker asks for; of more it makes one that passes what they pass

EVERYTHING = -1  # in place of an id in the index

VERSIONS = 64  # of its own interests that a broker remembers; what is older is asked for again


class BrokerTick(Timer, frozen=True, gc=False):
    """Look at what is due."""


class StreamInput(Protocol):
    """What a broker knows of a stream."""

    def of(self, lo: int, hi: int) -> list[Span]:
        """What is known of [lo, hi)."""
        ...

    def gaps(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """The parts of [lo, hi) of which nothing is known."""
        ...


def label(life: int, version: int) -> Lens:
    """The lens of what was filtered by the interests that a broker had, in one of its lives, at a version."""
    return Lens(f"~{life}", version)


@lru_cache(maxsize=65_536)
def filter_of(attrs: str, text: str) -> Filter | None:
    """A filter over declared attributes; None passes everything, as does one that cannot be read here."""
    try:
        return parse(text, parse_attributes(attrs)) if text else None
    except BadInput:
        return None


def summary(attrs: str, texts: Collection[str]) -> tuple[str, ...]:
    """Filters that pass at least what these pass, and not too many of them."""
    if "" in texts:
        return ("",)
    if len(texts) <= SUMMARY:
        return tuple(sorted(texts))
    one = Summary()
    for text in texts:
        one.add(filter_of(attrs, text))
    return (one.text,)


class StreamOutput:
    """One stream towards one broker below."""

    __slots__ = ("curiosity", "lens", "needs", "since", "unsaid", "waited")

    def __init__(self, settings: BrokerSettings) -> None:
        self.curiosity = Curiosity(settings.nrt, settings.ranges)
        self.needs = 0  # the version that its questions were about
        self.unsaid = Ranges()  # numbers without a row that passes, which it has not been told of
        self.lens = ALL  # as which they were seen
        self.since = 0  # as of which that is so; 0: as of publication
        self.waited: Time = 0.0  # since when the oldest of them waits


class Downstream:
    """A broker below. ``heard``: when it last spoke. ``over``: peers that hear from it, and when they said so."""

    __slots__ = ("attrs", "edges", "filters", "heard", "outputs", "over", "reaches", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.heard: Time = -1e18
        self.over: dict[NodeId, Time] = {}
        self.attrs: dict[StreamId, str] = {}  # that each stream declares
        self.filters: dict[StreamId, dict[str, int]] = {}  # of each stream: texts, and their ids in its index
        self.reaches: frozenset[CellId] = frozenset()
        self.edges: tuple[NodeId, ...] = ()  # below it, or itself
        self.outputs: dict[StreamId, StreamOutput] = {}

    @property
    def node(self) -> NodeId:
        """Its name."""
        return self.wanted.node


class Broker:
    """One broker. ``upstream``: the brokers above, none at the top. ``peers``: the others of its cell."""

    handles: frozenset[type] = frozenset(
        {Status, StatusHeard, PeerStatus, Brokered, Nack, Acknowledge, Offer, BrokerTick}
    )

    def __init__(
        self,
        me: NodeId,
        cell: CellId,
        life: int,
        upstream: Sequence[NodeId],
        peers: Sequence[NodeId],
        settings: BrokerSettings,
    ) -> None:
        self.me = me
        self.cell = cell
        self.life = life
        self.upstream = tuple(upstream)
        self.peers = tuple(peers)
        self.settings = settings
        self.inputs: dict[StreamId, Knowledge] = {}
        self.asked: dict[StreamId, tuple[int, Curiosity]] = {}  # of each input: the version that was asked for
        self.source: dict[StreamId, NodeId] = {}  # which upstream broker last sent something of a stream (A2.28)
        self.above: dict[NodeId, Time] = {}  # upstream brokers, and when they last said that they are connected
        self.confirmed: dict[NodeId, int] = {}  # upstream brokers, and which version of the interests they know
        self.downstream: dict[NodeId, Downstream] = {}
        self.indexes: dict[StreamId, FilterIndex] = {}
        self.acknowledged: dict[StreamId, int] = {}
        self.offered: dict[StreamId, int] = {}  # how far upstream brokers have shown that a stream has come
        self.version = 0
        self.included: dict[int, dict[NodeId, tuple[int, int]]] = {}  # per own version: (life, version) of those below
        self._interests: tuple[Interest, ...] = ()
        self._said: Time = -1e18  # when the last status was sent

    # --- the boundary -------------------------------------------------------------------------------------

    def start(self, now: Time) -> list[Effect]:
        return [*self._status(now), SetTimer(self.settings.tick, BrokerTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        match input:
            case Received(src, Status() as status):
                return self._hear(now, src, status)
            case Received(src, StatusHeard(connected, version)) if src in self.upstream:
                return self._confirmed(now, src, connected, version)
            case Received(src, PeerStatus(below)) if src in self.peers:
                return self._hear_peer(now, src, below)
            case Received(src, Brokered() as told):
                return self._brokered(now, src, told)
            case Received(src, Nack() as nack) if src in self.downstream:
                return self._nack(now, self.downstream[src], nack)
            case Received(src, Acknowledge(stream, below)) if src in self.downstream:
                return self._ack(self.downstream[src], stream, below)
            case Received(src, Offer(stream, horizon)) if src in self.upstream:
                self.source[stream] = src
                self.offered[stream] = max(horizon, self.offered.get(stream, FIRST))
                return self.expect(stream, horizon)
            case Expired(BrokerTick()):
                return [*self._tick(now), SetTimer(self.settings.tick, BrokerTick())]
        return NOTHING

    def check(self) -> None:
        for knowledge in self.inputs.values():
            knowledge.check()
            assert knowledge.nbytes <= self.settings.room, "a broker keeps no more than it has room for"
        for down in self.downstream.values():
            for stream, output in down.outputs.items():
                output.curiosity.check()
                assert stream in down.filters, "only who wants a stream has an output"

    # --- who is there -------------------------------------------------------------------------------------

    def reaches(self, now: Time) -> frozenset[CellId]:
        """The cells below that this broker hears from."""
        return frozenset([down.wanted.cell for down in self.downstream.values() if self._alive(now, down.heard)])

    def edges(self, now: Time) -> tuple[NodeId, ...]:
        """The edges below."""
        there = [down for down in self.downstream.values() if self._alive(now, down.heard)]
        return tuple(sorted({edge for down in there for edge in down.edges}))

    def connected(self, now: Time) -> bool:
        """Whether it hears from brokers up to a replica."""
        return not self.upstream or any([self._alive(now, said) for said in self.above.values()])

    def _confirmed(self, now: Time, src: NodeId, connected: bool, version: int) -> Effects:
        """A broker above has heard the status; one that does not know the interests is told them."""
        if connected:
            self.above[src] = now
        self.confirmed[src] = version
        return [Send(src, self._up(now, src))] if version == 0 else NOTHING

    def lost(self, now: Time, node: NodeId) -> Effects:
        """The connection to a broker has ended: nothing is sent that way until it is heard again."""
        self.source = {stream: src for stream, src in self.source.items() if src != node}
        self.above.pop(node, None)
        for down in self.downstream.values():
            down.over.pop(node, None)
        if node not in self.downstream:
            return NOTHING
        self.downstream[node].heard = -1e18
        return self._status(now)

    def _alive(self, now: Time, heard: Time) -> bool:
        return now - heard < self.settings.patience

    def _hear(self, now: Time, src: NodeId, status: Status) -> Effects:
        wanted = status.wanted
        before = self.downstream.get(src)
        known = before is not None and (wanted.life, wanted.version) == (before.wanted.life, before.wanted.version)
        if wanted.interests is None and not known:
            return [Send(src, StatusHeard(self.connected(now), 0))]  # it has to tell all
        streams = set(before.filters) if before is not None and before.wanted.life == wanted.life else set()
        changed = wanted.interests is not None and self._wants(wanted)
        down = self.downstream[src]
        out: list[Effect] = [Send(src, StatusHeard(self.connected(now), down.wanted.version))]
        for stream in down.filters:  # somebody below it may be back, from an older number than was acknowledged
            horizon = None if stream in streams else self.horizon(stream)
            if horizon is not None:
                out.append(Send(src, Offer(stream, horizon)))
        changed |= frozenset(status.reaches) != down.reaches or not self._alive(now, down.heard)
        down.heard = now
        down.reaches = frozenset(status.reaches)
        down.edges = status.edges
        return [*out, *self._status(now)] if changed else out

    def _hear_peer(self, now: Time, src: NodeId, below: Sequence[Wanted]) -> Effects:
        changed = False
        for wanted in below:
            changed |= self._wants(wanted)
            self.downstream[wanted.node].over[src] = now
        there = {wanted.node for wanted in below}
        for down in self.downstream.values():
            if down.node not in there:
                down.over.pop(src, None)
        return self._status(now) if changed else NOTHING

    def _wants(self, wanted: Wanted) -> bool:
        """Learn what a broker below wants; whether that is news."""
        down = self.downstream.get(wanted.node)
        if down is None:
            down = self.downstream[wanted.node] = Downstream(wanted)
        elif (wanted.life, wanted.version) <= (down.wanted.life, down.wanted.version):
            return False
        elif wanted.life != down.wanted.life:
            down.outputs.clear()
        down.wanted = wanted
        self._replace_filters(down, wanted.interests or ())
        return True

    def _replace_filters(self, down: Downstream, interests: Iterable[Interest]) -> None:
        """What a broker below wants from now on; new filters are entered before old ones are removed."""
        before, down.filters = down.filters, {}
        down.attrs = {}
        for stream, attrs, texts in interests:
            old = before.get(stream, {})
            down.attrs[stream] = attrs
            down.filters[stream] = {
                text: old[text] if text in old else self._enter(stream, attrs, text) for text in texts
            }
            if stream not in down.outputs:
                down.outputs[stream] = StreamOutput(self.settings)
        for stream, entered in before.items():
            now = down.filters.get(stream, {})
            for text, id in entered.items():
                if id != EVERYTHING and text not in now:
                    self.indexes[stream].remove(id)
        for stream in [stream for stream in down.outputs if stream not in down.filters]:
            del down.outputs[stream]
        for stream in [stream for stream, index in self.indexes.items() if not len(index)]:
            del self.indexes[stream]

    def _enter(self, stream: StreamId, attrs: str, text: str) -> int:
        """The id of a filter in its stream's index, if there is room."""
        filter = filter_of(attrs, text)
        try:
            return EVERYTHING if filter is None else self.indexes.setdefault(stream, FilterIndex()).add(filter)
        except BadInput:
            return EVERYTHING

    def _drop(self, down: Downstream) -> None:
        del self.downstream[down.node]
        self._replace_filters(down, ())

    def _status(self, now: Time) -> list[Effect]:
        """Tell the cell above and the own one; what is wanted has a new version when it has changed."""
        wanted: dict[StreamId, set[str]] = {}
        attrs: dict[StreamId, str] = {}
        for down in self.downstream.values():
            attrs |= down.attrs
            for stream, texts in down.filters.items():
                wanted.setdefault(stream, set()).update(texts)
        interests = tuple([(each, attrs[each], summary(attrs[each], wanted[each])) for each in sorted(wanted)])
        included = {down.node: (down.wanted.life, down.wanted.version) for down in self.downstream.values()}
        if interests != self._interests or included != self.included.get(self.version):
            self.version += 1
            self._interests = interests
            self.included[self.version] = included
            self.included.pop(self.version - VERSIONS, None)
        self._said = now
        for stream in [stream for stream in self.inputs if stream not in wanted]:
            del self.inputs[stream]
            self.asked.pop(stream, None)
            self.source.pop(stream, None)
        for numbers in (self.acknowledged, self.offered):
            for stream in [stream for stream in numbers if stream not in wanted]:
                del numbers[stream]
        heard = [down.wanted for down in self.downstream.values() if self._alive(now, down.heard)]
        beside = PeerStatus(tuple(heard))
        up = [Send(node, self._up(now, node)) for node in self.upstream]
        return [*up, *[Send(node, beside) for node in self.peers]]

    def _up(self, now: Time, node: NodeId) -> Status:
        """The status for a broker above; what it wants is told only to who does not know it."""
        known = self.confirmed.get(node) == self.version
        wanted = Wanted(self.me, self.cell, self.life, self.version, None if known else self._interests)
        return Status(wanted, tuple(sorted(self.reaches(now))), self.edges(now))

    # --- knowledge, downwards -----------------------------------------------------------------------------

    def input(self, stream: StreamId) -> StreamInput:
        """What is known of a stream. At the top the history takes its place."""
        known = self.inputs.get(stream)
        if known is None:
            known = self.inputs[stream] = Knowledge(stream, self.settings.room)
        return known

    def horizon(self, stream: StreamId) -> int | None:
        """The first number that may not have been published, as far as this broker knows."""
        return self.offered.get(stream)

    def _brokered(self, now: Time, src: NodeId, told: Brokered) -> Effects:
        if told.to:  # a peer cannot reach that node; what it sent goes on as it is, and never sideways again
            down = self.downstream.get(told.to)
            there = down is not None and self._alive(now, down.heard)
            return [Send(told.to, Brokered(told.stream, told.spans, told.again))] if there else NOTHING
        if src not in self.upstream:
            return NOTHING
        self.source[told.stream] = src
        known = self.input(told.stream)
        assert isinstance(known, Knowledge)
        mine = [span for span in told.spans if span.lens.text == label(self.life, 0).text]  # not of an earlier life
        fresh: list[Span] = []
        try:
            for span in mine:
                fresh += known.accept(span)
        except Contradiction:
            return [Report("contradiction")]
        version, asked = self._asked(told.stream)
        for span in mine:
            if span.lens.version >= version:
                asked.answered(span.lo, span.hi)
        known.trim()
        self.offered[told.stream] = max([self.offered.get(told.stream, FIRST), *[span.hi for span in told.spans]])
        return self.forward(now, told.stream, mine, () if told.again else fresh)

    def forward(self, now: Time, stream: StreamId, came: Sequence[Span], fresh: Sequence[Span]) -> list[Effect]:
        """Pass on what came: to who is curious about it, and what is new also to all cells below that want it."""
        out: list[Effect] = []
        cells: dict[CellId, list[Downstream]] = {}
        for down in self.downstream.values():
            if stream not in down.outputs:
                continue
            cells.setdefault(down.wanted.cell, []).append(down)
            curiosity = down.outputs[stream].curiosity
            wanted = [part for span in came for part in curiosity.curious(span.lo, span.hi)]
            if wanted:
                out += self._answer(now, down, stream, came, wanted)
        if fresh:
            for cell in sorted(cells):
                chosen = self._chosen(now, stream, cells[cell])
                if chosen is not None:
                    out += self._first(now, chosen, stream, fresh)
        return out

    def _chosen(self, now: Time, stream: StreamId, brokers: Sequence[Downstream]) -> Downstream | None:
        """The broker of a cell that gets a stream: by hash, of those that reach as much as any of them (A2.26).

        One that is heard from comes before one that only a peer hears from.
        """
        there = [down for down in brokers if self._alive(now, down.heard)]
        there = there or [down for down in brokers if self._way(now, down) is not None]
        most = max([len(down.reaches) for down in there], default=0)
        able = [down for down in there if len(down.reaches) == most]
        return min(able, key=lambda down: crc32(f"{stream} {down.node}".encode()), default=None)

    def _way(self, now: Time, down: Downstream) -> NodeId | None:
        """To whom to send what a broker below is to get: itself, or a peer that reaches it, or nobody."""
        if self._alive(now, down.heard):
            return down.node
        peers = [peer for peer, heard in down.over.items() if self._alive(now, heard)]
        return min(peers, default=None)

    def _send(self, now: Time, down: Downstream, stream: StreamId, spans: Sequence[Span], again: bool) -> list[Effect]:
        way = self._way(now, down)
        if way is None:
            return []
        if way == down.node:
            return [Send(way, Brokered(stream, tuple(spans), again))]
        return [Send(way, Brokered(stream, tuple(spans), again, down.node)), Report("sideways")]

    def _first(self, now: Time, down: Downstream, stream: StreamId, spans: Sequence[Span]) -> list[Effect]:
        """Send rows that pass for the first time, with the numbers before and between them that have none."""
        out: list[Effect] = []
        output = down.outputs[stream]
        rows: list[Span] = []
        for part in [self._seen(down, stream, span) for span in spans]:
            if (output.unsaid or rows) and part.lens != output.lens:
                out += self._told(now, down, stream, rows)
                rows = []
            output.lens = part.lens
            if part.rows.count or part.lost:
                rows.append(part)
                continue
            if not output.unsaid:
                output.waited = now
            output.unsaid.add(part.lo, part.hi)
            output.since = max(output.since, part.asof if part.asof > part.lo else 0)
        return [*out, *(self._told(now, down, stream, rows) if rows else ())]

    def _told(self, now: Time, down: Downstream, stream: StreamId, rows: Sequence[Span]) -> list[Effect]:
        """A first-time message: rows, and all that was not said before."""
        output = down.outputs[stream]
        empty = [Span(stream, lo, hi, max(output.since, lo), NO_ROWS, output.lens) for lo, hi in output.unsaid]
        output.unsaid, output.since = Ranges(), 0
        return self._send(now, down, stream, sorted([*empty, *rows], key=lambda span: span.lo), False)

    def _answer(
        self, now: Time, down: Downstream, stream: StreamId, spans: Iterable[Span], ranges: Sequence[tuple[int, int]]
    ) -> list[Effect]:
        """Send again what somebody is curious about, and nothing else (A2.21)."""
        output = down.outputs[stream]
        pieces = [span.slice(lo, hi) for span in spans for lo, hi in ranges if lo < span.hi and hi > span.lo]
        parts = [part for part in [self._seen(down, stream, piece) for piece in pieces] if self._enough(down, part)]
        for part in parts:
            output.curiosity.answered(part.lo, part.hi)
            output.unsaid.remove(part.lo, part.hi)
        return self._send(now, down, stream, parts, True) if parts else []

    def _enough(self, down: Downstream, span: Span) -> bool:
        """Whether a span was filtered by what a broker below wanted when it asked."""
        return span.lens.version >= down.outputs[span.stream].needs

    def _seen(self, down: Downstream, stream: StreamId, span: Span) -> Span:
        """A span through the filters of a broker below, labelled with the version of its interests."""
        filters = down.filters[stream]
        rows = span.rows
        wanted = set(filters.values())
        if EVERYTHING not in wanted and rows.count:
            mask: Mask = np.zeros(rows.count, np.bool_)
            for id, places in self.indexes[stream].match(rows):
                if id in wanted:
                    mask[places] = True
            rows = rows.take(mask)
        return Span(stream, span.lo, span.hi, span.asof, rows, self._label(down, span.lens), span.lost)

    def _label(self, down: Downstream, lens: Lens) -> Lens:
        """Which version of its interests a broker below can count it for."""
        wanted = down.wanted
        if not self.upstream:  # the history holds all rows
            return label(wanted.life, wanted.version)
        life, version = self.included.get(lens.version, {}).get(down.node, (wanted.life, 0))
        return label(wanted.life, version if life == wanted.life else 0)

    # --- curiosity, upwards -------------------------------------------------------------------------------

    def _nack(self, now: Time, down: Downstream, nack: Nack) -> Effects:
        stream, lo, hi = nack.stream, nack.lo, nack.hi
        output = down.outputs.get(stream)
        if output is None or lo >= hi:
            return NOTHING
        output.needs = nack.version
        known = self.input(stream)
        there = [span for span in known.of(lo, hi) if self._label(down, span.lens).version >= nack.version]
        out = self._answer(now, down, stream, there, [(lo, hi)])
        if out and self.upstream:
            out.append(Report("nack_answered_by_broker"))
        held = Ranges([(span.lo, span.hi) for span in there])
        for gap in held.gaps(lo, hi):
            output.curiosity.ask(*gap, now)
            out += self._ask(now, stream, *gap)
        return out

    def _ask(self, now: Time, stream: StreamId, lo: int, hi: int) -> list[Effect]:
        """Ask upstream, unless that was done a moment ago: who sent last, or all of the cell (A2.23, A2.28)."""
        version, asked = self._asked(stream)
        if version < self.version:  # what was asked for before somebody wanted more
            asked = Curiosity(self.settings.nrt, self.settings.ranges)
            self.asked[stream] = self.version, asked
        fresh = asked.ask(lo, hi, now)
        if not fresh:
            return [Report("nack_consolidated")] if self.upstream else []
        source = self.source.get(stream)
        above = (source,) if source is not None else self.upstream
        return [Send(node, Nack(stream, *part, self.version)) for part in fresh for node in above]

    def _asked(self, stream: StreamId) -> tuple[int, Curiosity]:
        found = self.asked.get(stream)
        if found is None:
            found = self.asked[stream] = self.version, Curiosity(self.settings.nrt, self.settings.ranges)
        return found

    def _ack(self, down: Downstream, stream: StreamId, below: int) -> Effects:
        output = down.outputs.get(stream)
        if output is None or not output.curiosity.ack(below):
            return NOTHING
        output.unsaid.remove(0, below)
        return self._acknowledge(stream)

    def acked(self, stream: StreamId) -> int:
        """The first number that some cell below has not acknowledged. Of a cell, whoever is ahead speaks for it."""
        cells: dict[CellId, int] = {}
        for down in self.downstream.values():
            if stream in down.outputs:
                cell = down.wanted.cell
                cells[cell] = max(cells.get(cell, FIRST), down.outputs[stream].curiosity.acked)
        return min(cells.values(), default=FIRST)

    def _acknowledge(self, stream: StreamId) -> list[Effect]:
        below = self.acked(stream)
        if below <= self.acknowledged.get(stream, FIRST):
            return []
        self.acknowledged[stream] = below
        if stream in self.inputs:
            self.inputs[stream].forget(below)
        source = self.source.get(stream)
        return [Send(node, Acknowledge(stream, below)) for node in ((source,) if source is not None else self.upstream)]

    def expect(self, stream: StreamId, horizon: int) -> list[Effect]:
        """Everything below ``horizon`` should be acknowledged: tell those below who have not done so (A2.33)."""
        out: list[Effect] = []
        for down in self.downstream.values():
            output = down.outputs.get(stream)
            if output is not None and output.curiosity.acked < horizon:
                out.append(Send(down.node, Offer(stream, horizon)))
        return out

    # --- upkeep -------------------------------------------------------------------------------------------

    def _tick(self, now: Time) -> list[Effect]:
        settings = self.settings
        out: list[Effect] = []
        gone = [down for down in self.downstream.values() if self._way(now, down) is None]
        for down in gone:
            self._drop(down)
            out.append(Report("broker_given_up"))
        if gone or now - self._said >= settings.status:
            out += self._status(now)
            for stream in self.acknowledged:  # some were lost, and others may have gone to another one
                out += [Send(node, Acknowledge(stream, self.acked(stream))) for node in self.upstream]
        for _, curiosity in self.asked.values():
            curiosity.expire(now)
        for down in self.downstream.values():
            for stream, output in down.outputs.items():
                output.curiosity.expire(now)
                if output.unsaid and now - output.waited >= settings.silence:
                    out += self._told(now, down, stream, ())
        return out
