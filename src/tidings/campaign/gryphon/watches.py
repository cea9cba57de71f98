"""What only single steps of brokers show. Each watch sees every step, and each demand has a name.

- `BrokerClaims`: whatever a broker tells another one (rows, and that there are no others) is compared with what was
  committed, through the filters that the receiver has wanted from the version on the label on, as far as the sender
  knows. ``false_claim``.
- `BrokerQuestions`: a relay asks upstream for nothing that nobody below has just asked for (``unasked_nack``), and for
  each number once in a repetition interval unless it was answered or more is wanted (``repeated_nack``), and then again
  (``question_swallowed``). What is sent
  again goes to who asked (``unasked_answer``), and what came sideways goes no further sideways (``sideways_twice``). A
  replica tells a broker that comes to it how far its streams have come (``not_expected``). What a replica feeds is
  committed there (``fed_uncommitted``), and what a relay acknowledges its edges have (``acknowledged_for_others``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np

from tidings.campaign.gryphon.applications import ATTRS
from tidings.check.invariants import Violation, judged
from tidings.check.survivors import hashes, ints, valid
from tidings.check.tables import DELIVERED, Trace, table
from tidings.core.filters import Filter, parse, parse_attributes
from tidings.core.ids import NodeId, StreamId
from tidings.core.ranges import Ranges
from tidings.core.rows import Rows
from tidings.core.span import Span
from tidings.protocols.brokers.broker_messages import Acknowledge, Brokered, Nack, PeerStatus, Status, Wanted
from tidings.protocols.brokers.messages import Feed
from tidings.protocols.kernel import Effects, Received, Send
from tidings.protocols.messages import Offer
from tidings.protocols.nodes.edge import Edge
from tidings.protocols.nodes.relay import Relay
from tidings.protocols.nodes.replica import Replica
from tidings.sim.build import Deployment
from tidings.sim.recorder import TableBuilder


class BrokerClaims:
    """Notes what brokers claim."""

    def __init__(self) -> None:
        self.wanted: dict[tuple[NodeId, int, int], dict[StreamId, frozenset[str]]] = {}  # by life and version
        self.known: dict[tuple[NodeId, int, NodeId], tuple[int, int]] = {}  # the newest that a broker knows of another
        self.claims: dict[tuple[Any, ...], tuple[NodeId, float]] = {}  # what, and who said so first
        self._filters: dict[str, Filter] = {}

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """What is wanted, and what is told."""
        if type(input) is Received:
            if type(input.message) is Status:
                self._learn(node, incarnation, input.message.wanted)
            elif type(input.message) is PeerStatus:
                for wanted in input.message.below:
                    self._learn(node, incarnation, wanted)
        for effect in effects:
            if type(effect) is not Send:
                continue
            message = effect.message
            if type(message) is Status:
                wanted = message.wanted
                key = wanted.node, wanted.life, wanted.version
                interests = wanted.interests or ()  # who knows them is not told again
                self.wanted.setdefault(key, {stream: frozenset(texts) for stream, _, texts in interests})
            elif type(message) is Brokered and not _passed_on(input):
                for span in message.spans:
                    self._claim(time, node, incarnation, message.to or effect.to, span)

    def _learn(self, node: NodeId, incarnation: int, wanted: Wanted) -> None:
        key = node, incarnation, wanted.node
        self.known[key] = max(self.known.get(key, (0, 0)), (wanted.life, wanted.version))

    def _claim(self, time: float, node: NodeId, incarnation: int, to: NodeId, span: Span) -> None:
        life, version = int(span.lens.text.removeprefix("~")), span.lens.version
        current, newest = self.known[node, incarnation, to]
        if not version or life != current:  # it counts for nothing
            return
        versions = [self.wanted.get((to, life, each), {}) for each in range(version, newest + 1)]
        wanted = [each[span.stream] for each in versions if span.stream in each]
        some = [each for each in wanted if "" not in each]
        texts = frozenset.intersection(*some) if some else frozenset({""})
        if len(wanted) < len(versions) or not texts:
            return
        text = "" if "" in texts else " OR ".join([f"({each})" for each in sorted(texts)])
        rows = self._passing(text, span.rows)
        claim = (span.stream, span.lo, span.hi, span.asof, text, rows.count, rows.hash_sum)
        self.claims.setdefault(claim, (node, time))

    def _passing(self, text: str, rows: Rows) -> Rows:
        if not text or not rows.count:
            return rows
        if text not in self._filters:
            self._filters[text] = parse(text, parse_attributes(ATTRS))
        return rows.take(self._filters[text].mask(rows))

    def judge(self, trace: Trace) -> list[Violation]:
        """Compare with what was committed."""
        told = TableBuilder(*DELIVERED.names)
        for n, ((stream, lo, hi, asof, lens, rows, sum), (node, time)) in enumerate(self.claims.items()):
            told.rows.append((node, 1, n, stream, lo, hi, asof, lens, rows, sum, time))
        found = []
        claims = Trace(
            trace.published, table(DELIVERED, told.dict()), policies=trace.policies, attributes=trace.attributes
        )
        for seen, _, expected, comparable in judged(claims):
            other = expected.hashed & valid(seen, "hash_sum") & (hashes(seen, "hash_sum") != expected.hash_sum)
            wrong = (comparable & ((ints(seen, "rows") != expected.rows) | other)) | (expected.unknown > 0)
            for at in np.flatnonzero(wrong).tolist():
                where = {name: seen[name][at].as_py() for name in ("subscriber", "stream", "lo", "hi", "asof", "time")}
                rows, lens = seen["rows"][at], seen["lens"][at]
                detail = f"told {rows} rows through {lens.as_py()!r}, but {expected.rows[at]} are right"
                found.append(Violation("false_claim", where, detail))
        return found


def _passed_on(input: Any) -> bool:
    """Whether it came sideways."""
    return type(input) is Received and type(input.message) is Brokered and bool(input.message.to)


class BrokerQuestions:
    """Follows questions up, and answers down."""

    def __init__(self, deployment: Deployment, repeat: float) -> None:
        self.deployment = deployment
        self.repeat = repeat
        self.wrong: Counter[tuple[NodeId, str]] = Counter()
        self.counts: Counter[str] = Counter()
        self.nacked = 0  # numbers that edges asked for
        self._asked: dict[tuple[NodeId, NodeId, StreamId], Ranges] = defaultdict(Ranges)  # ever, by whom of whom
        self._heard: set[tuple[NodeId, int, NodeId]] = set()
        self._up: dict[tuple[NodeId, int, StreamId], list[tuple[int, int, int, float]]] = defaultdict(list)

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """A step of a broker."""
        came = input.message if type(input) is Received else None
        machine = self.deployment.world.hosts[node].machine
        relay = type(machine) is Relay
        if relay and type(came) is Brokered and not came.to:
            self._answered(node, incarnation, came)
        asked: set[tuple[int, int, int]] = set()
        for effect in effects:
            if type(effect) is not Send:
                continue
            message = effect.message
            if type(message) is Nack:
                self._asked[node, effect.to, message.stream].add(message.lo, message.hi)
                if relay:
                    asked.add((message.lo, message.hi, message.version))
                else:
                    self.nacked += message.hi - message.lo
            elif type(message) is Brokered:
                self._told(node, effect.to, message, came)
            elif type(message) is Acknowledge and type(machine) is Relay:
                self._acknowledges(machine, message)
            elif type(message) is Feed and type(machine) is Replica and message.spans:
                stream = message.spans[0].stream
                history = machine.log.histories.get(stream)
                self.wrong[node, "fed_uncommitted"] += history is None or message.spans[-1].hi > history.horizon
        if type(came) is Status and isinstance(input, Received) and isinstance(machine, Replica):
            self._registered(node, incarnation, input.src, machine, effects)
        if type(came) is Nack and isinstance(input, Received) and type(machine) is Relay and not asked:
            self._kept(time, node, incarnation, input.src, machine, came)
        for lo, hi, version in sorted(asked):
            self._goes_up(time, node, incarnation, came, lo, hi, version)

    def _registered(self, node: NodeId, incarnation: int, src: NodeId, replica: Replica, effects: Effects) -> None:
        """The first thing that a broker hears of a replica is how far the streams have come (A2.35)."""
        if (node, incarnation, src) in self._heard:
            return
        if src not in replica.broker.downstream:
            return  # it has to tell all first
        self._heard.add((node, incarnation, src))
        streams = [each for each in replica.broker.downstream[src].outputs if replica.broker.horizon(each) is not None]
        told = [each.message.stream for each in effects if type(each) is Send and type(each.message) is Offer]
        self.wrong[node, "not_expected"] += not set(streams) <= set(told)
        self.counts["expected_after_restart"] += incarnation > 1 and bool(told)

    def _acknowledges(self, relay: Relay, ack: Acknowledge) -> None:
        """What a relay acknowledges all edges below it have that it knows to want it."""
        for down in relay.broker.downstream.values():
            edge = self.deployment.world.hosts[down.node].machine
            if type(edge) is Edge and edge.life == down.wanted.life and ack.stream in down.outputs:
                lacks = ack.stream in edge.subends and edge.subends[ack.stream].at < ack.below
                self.wrong[relay.me, "acknowledged_for_others"] += lacks

    def _kept(self, time: float, node: NodeId, incarnation: int, src: NodeId, relay: Relay, nack: Nack) -> None:
        """A question that went nowhere was passed on a moment ago, or can be answered here (A2.24)."""
        down = relay.broker.downstream.get(src)
        if (
            down is None
            or nack.stream not in down.outputs
            or not relay.broker.input(nack.stream).gaps(nack.lo, nack.hi)
        ):
            return
        before = self._up[node, incarnation, nack.stream]
        lately = [at for lo, hi, _, at in before if lo < nack.hi and hi > nack.lo and time - at < 1.1 * self.repeat]
        self.wrong[node, "question_swallowed"] += not lately

    def _goes_up(self, time: float, node: NodeId, incarnation: int, came: Any, lo: int, hi: int, version: int) -> None:
        if type(came) is not Nack or not came.lo <= lo < hi <= came.hi:
            self.wrong[node, "unasked_nack"] += 1
            return
        before = self._up[node, incarnation, came.stream]
        again = [at for a, b, v, at in before if a < hi and b > lo and v == version]
        self.wrong[node, "repeated_nack"] += any([time - at < 0.99 * self.repeat for at in again])
        self.counts["curiosity_repeated"] += bool(again)
        before.append((lo, hi, version, time))

    def _answered(self, node: NodeId, incarnation: int, told: Brokered) -> None:
        key = node, incarnation, told.stream
        for span in told.spans:
            rest = []
            for lo, hi, version, at in self._up.pop(key, ()):
                rest += [(a, b, version, at) for a, b in ((lo, min(hi, span.lo)), (max(lo, span.hi), hi)) if a < b]
            self._up[key] = rest

    def _told(self, node: NodeId, to: NodeId, told: Brokered, came: Any) -> None:
        if type(came) is Brokered and came.to:
            self.wrong[node, "sideways_twice"] += bool(told.to)
        elif told.again:
            asked = self._asked[told.to or to, node, told.stream]
            self.wrong[node, "unasked_answer"] += any([asked.gaps(span.lo, span.hi) != [] for span in told.spans])
