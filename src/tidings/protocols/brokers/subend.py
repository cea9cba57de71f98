"""The end of a stream at an edge: notices gaps, asks for them, and acknowledges what is complete (A2.11, A2.30-A2.34).

A subend keeps what it knows of a stream and its *doubt horizon*, the first number from which on something is unknown.
Everything below it has been handed over. It asks again

* for a gap that is older than GCT, because a message that was only overtaken comes earlier,
* every NRT until it is answered: estimated from how long answers take, doubled while there are none,
* at once for everything below a number that the publishing site expects to be acknowledged (AckExpected),
* for what comes next when nothing has come for DCT, if that is set.

Guarantee: what it hands over is every number once, in order, through the interests of its own life and of at least the
version that it began with. The lens of each span says which.
"""

from __future__ import annotations

from tidings.core.errors import Contradiction
from tidings.core.ids import Seq, StreamId
from tidings.core.knowledge import Knowledge
from tidings.core.span import Span
from tidings.protocols.brokers.broker import label
from tidings.protocols.brokers.broker_messages import Acknowledge, Brokered, BrokerSettings, Nack
from tidings.protocols.kernel import Message, Time

SMOOTH = 0.125  # the weight of a new measurement of the time an answer takes; as TCP's
REPEATS = 3  # times that an acknowledgement is repeated; ours: after that, who has not heard it says what it expects

SPREAD = 4.0  # deviations above the mean after which an answer is late; as TCP's


class Subend:
    """One stream at one edge, from ``at`` on."""

    def __init__(self, stream: StreamId, life: int, at: Seq, version: int, settings: BrokerSettings) -> None:
        self.stream = stream
        self.life = life
        self.least = version  # what was filtered by older interests counts for nothing
        self.version = version  # what is asked for is to be filtered by at least these
        self.settings = settings
        self.at = at  # the doubt horizon
        self.knowledge = Knowledge(stream, settings.room)
        self.contradictions = 0
        self.told = at  # a broker above says that everything below is published
        self.moved: Time = 0.0  # when the doubt horizon last moved, or the next number was last asked for
        self._gaps: dict[tuple[Seq, Seq], Time] = {}  # when each was first seen
        self._asked: list[tuple[Seq, Seq, Time, bool]] = []  # what was asked for, when, and whether once only
        self._mean = self._deviation = 0.0  # of the time an answer takes
        self._doubled = 1.0
        self._acked = at
        self._repeats = 0  # of the last acknowledgement
        self._again = False  # it is to be repeated
        self._ack_due: Time = 0.0

    def check(self) -> None:
        """Cheap invariants."""
        self.knowledge.check()
        assert not self.knowledge or self.knowledge.first >= self.at, "what was handed over is not kept"
        assert self.knowledge.nbytes <= self.settings.room, "an edge keeps no more than it has room for"

    @property
    def nrt(self) -> float:
        """Seconds before a nack is repeated (A2.31)."""
        estimate = self._mean + SPREAD * self._deviation
        return min(max(self.settings.nrt, estimate) * self._doubled, self.settings.backoff)

    def accept(self, now: Time, told: Brokered) -> list[Span]:
        """What follows at the doubt horizon, in order."""
        mine = label(self.life, self.least)
        for span in told.spans:
            if span.lens.text != mine.text or span.lens.version < mine.version or span.hi <= self.at:
                continue
            try:
                self.knowledge.accept(span.slice(self.at, span.hi))
            except Contradiction:
                self.contradictions += 1
                continue
            self._answered(now, span.lo, span.hi, told.again)
        hi = self.knowledge.reach(self.at)
        out = self.knowledge.of(self.at, hi)
        if out:
            self.at = hi
            self.moved = now
            self._doubled = 1.0
            self.knowledge.forget(hi)
        while self.knowledge.nbytes > self.settings.room:  # the farthest goes first: the nearest is needed first
            self.knowledge.drop_last()
        return out

    def expected(self, now: Time, horizon: Seq) -> list[Message]:
        """The publishing site expects everything below ``horizon`` to be acknowledged: ask for what is missing now."""
        if self.at >= horizon:
            return [Acknowledge(self.stream, self.at)]
        self.told = max(self.told, horizon)
        return [nack for gap in self.knowledge.gaps(self.at, horizon) for nack in self._nack(now, *gap)]

    def due(self, now: Time) -> list[Message]:
        """Nacks and acknowledgements whose time has come."""
        settings = self.settings
        out: list[Message] = []
        end = max(self.knowledge.end, self.told)
        if not (self.at < end or self._gaps or settings.dct or self.at > self._acked or self._again):
            return out
        gaps = self.knowledge.gaps(self.at, max(end, self.at))
        self._gaps = {gap: self._first_seen(gap, now) for gap in gaps}
        for gap, since in self._gaps.items():
            if now - since >= settings.gct:
                out += self._nack(now, *gap)
        if settings.dct and not gaps and now - self.moved >= settings.dct:
            self.moved = now
            out += self._nack(now, self.at, self.at + settings.chop)
        if (self.at > self._acked or self._again) and now >= self._ack_due:
            self._repeats = self._repeats + 1 if self._again else 0
            self._acked, self._ack_due, self._again = self.at, now + settings.ack, False
            out.append(Acknowledge(self.stream, self.at))
        return out

    def acknowledge_again(self) -> None:
        """The last acknowledgement may have been lost: repeat it."""
        self._again = self._repeats < REPEATS and self.at == self._acked

    def _first_seen(self, gap: tuple[Seq, Seq], now: Time) -> Time:
        """When any part of a gap was first seen."""
        return min([since for (lo, hi), since in self._gaps.items() if lo < gap[1] and hi > gap[0]], default=now)

    def _nack(self, now: Time, lo: Seq, hi: Seq) -> list[Message]:
        """Ask for what has not been asked for within NRT, in pieces."""
        self._asked = [each for each in self._asked if each[1] > self.at]
        late = [each for each in self._asked if now - each[2] >= self.nrt]
        if late:
            self._doubled = min(2 * self._doubled, 64.0)
            self._asked = [each for each in self._asked if each not in late]
        out: list[Message] = []
        at = lo
        for start, stop, _, _ in sorted(self._asked):
            if at < start < hi:
                out += self._pieces(now, at, start, late)
            at = max(at, stop)
        if at < hi:
            out += self._pieces(now, at, hi, late)
        return out

    def _pieces(self, now: Time, lo: Seq, hi: Seq, late: list[tuple[Seq, Seq, Time, bool]]) -> list[Message]:
        out: list[Message] = []
        for at in range(lo, hi, self.settings.chop):
            end = min(at + self.settings.chop, hi)
            once = not any([start < end and stop > at for start, stop, _, _ in late])
            self._asked.append((at, end, now, once))
            out.append(Nack(self.stream, at, end, self.version))
        return out

    def _answered(self, now: Time, lo: Seq, hi: Seq, again: bool) -> None:
        """Learn how long answers take, from questions that were asked once (as TCP does)."""
        if again:  # somebody answers: what is late was lost, and is no reason to ask more slowly
            self._doubled = 1.0
        rest: list[tuple[Seq, Seq, Time, bool]] = []
        for start, stop, at, once in self._asked:
            if stop <= lo or start >= hi:
                rest.append((start, stop, at, once))
                continue
            if again and once:
                took = now - at
                self._deviation += SMOOTH * (abs(took - self._mean) - self._deviation)
                self._mean += SMOOTH * (took - self._mean)
            if start < lo:
                rest.append((start, lo, at, once))
            if hi < stop:
                rest.append((hi, stop, at, once))
        self._asked = rest
