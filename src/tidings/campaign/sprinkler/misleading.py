"""Clients and peers that read, ask and mislead at random: correct nodes must bear them, or notice them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

from tidings.core.ids import NodeId, stream_name
from tidings.core.lens import ALL, Lens
from tidings.core.rows import NO_ROWS, ArrowRows, data_rows
from tidings.core.span import Span
from tidings.protocols.kernel import Effects, Received
from tidings.protocols.messages import Know
from tidings.protocols.nodes.client import ReadAsOf
from tidings.sim.build import Deployment


def alive(deployment: Deployment) -> list[str]:
    return [node for node in deployment.members() if deployment.world.hosts[node].life]


def read_somewhere(deployment: Deployment, rng: random.Random) -> None:
    """Some client reads a range as of a number in the recent past; often it wants another one before the answer."""
    world, node = deployment.world, rng.choice(alive(deployment))
    for at in (world.now, world.now + 0.001)[: rng.randint(1, 2)]:
        known = deployment.pull_member(node).pull.horizons.items()
        recorded = [each for each in sorted(known) if stream_name(each[0]) not in deployment.recorder.unrecorded]
        stream, horizon = rng.choice(recorded)
        if horizon > 2:
            asof = rng.randint(max(1, horizon - 120), horizon)
            lo = rng.randint(1, horizon - 1)
            world.inject(at, node, ReadAsOf(stream, lo, rng.randint(lo + 1, horizon), asof))


def chatter(deployment: Deployment) -> None:
    """As after a doubled request: a tail tells clients what they know in part, and only the rest must count."""
    for node in alive(deployment):
        tail = deployment.proxy(deployment.membership(deployment.region_of[node]).tail)
        for stream, horizon in sorted(deployment.pull_member(node).pull.horizons.items()):
            history = tail.log.histories.get(stream)
            if history is not None and 1 < horizon < history.horizon:
                for span in history.know(max(1, horizon - 3), history.horizon):
                    _tell(deployment, node, tail.me, span)


class Echo:
    """As after a doubled request with a shorter answer: who holds a span hears half of it again, and keeps the rest."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.left = 3

    def on_step(self, time: float, node: NodeId, incarnation: int, input: Any, effects: Effects) -> None:
        """An answer has come; what is beyond a gap is held."""
        if self.left and type(input) is Received and type(input.message) is Know and node in self.deployment.members():
            state = self.deployment.pull_member(node).pull.streams.get(input.message.stream)
            if state is not None and state.held and (last := state.held[-1]).hi - last.lo > 1:
                self.left -= 1
                _tell(self.deployment, node, input.src, last.slice(last.lo, (last.lo + last.hi) // 2))


class Lies:
    """What clients were told that contradicts what they know, and how often they said so."""

    def __init__(self) -> None:
        self.told: Counter[NodeId] = Counter()
        self.refused: Counter[NodeId] = Counter()

    def on_report(self, time: float, node: NodeId, name: str, value: float) -> None:
        """A node that refuses a contradiction reports it."""
        self.refused[node] += name == "contradiction"

    @property
    def believed(self) -> int:
        """How many lies nobody objected to."""
        return sum((self.told - self.refused).values())


def forge(deployment: Deployment, rng: random.Random, lies: Lies) -> None:
    """Heads and a client are told what contradicts what they know; they must refuse it and go on."""
    world = deployment.world
    for region in sorted(deployment.replicas):
        head = deployment.proxy(deployment.membership(region).head)
        for stream, expect in sorted(head.inter_region.expects.items()):
            policy = head.streams[stream].gc if stream in head.streams else ""
            awake = world.hosts[head.me].life and not world.hosts[head.me].wake_at  # else it may be half true later
            if expect.source and "by-key" in policy and awake:
                own = head.log.ends[stream]  # of two events on one key the older cannot outlive the newer
                false = Span(stream, own, own + 2, own + 2, data_rows(own, [b"k", b"k"], [b"a", b"b"]))
                _tell(deployment, head.me, expect.source, false)
    node = rng.choice(alive(deployment))
    for stream, state in sorted(deployment.pull_member(node).pull.streams.items()):
        spans = [span for span in state.recv.spans if span.rows.count and isinstance(span.rows, ArrowRows)]
        if spans:
            true = rng.choice(spans)
            rows = data_rows(true.lo, None, [b"forged"])
            _mislead(deployment, node, stream, state.horizon)
            lies.told[node] += not world.hosts[node].wake_at  # who sleeps may have forgotten the truth when it wakes
            _tell(deployment, node, deployment.replicas[deployment.region_of[node]][0], _replaced(stream, true, rows))
            return


def _mislead(deployment: Deployment, node: NodeId, stream: str, horizon: int) -> None:
    """What is seen through a filter, or of another stream, is no answer: nothing of it may be delivered."""
    replica = deployment.replicas[deployment.region_of[node]][0]
    for name, lens in ((stream, Lens("seq > 0")), ("elsewhere", ALL)):
        span = Span(name, horizon, horizon + 5, horizon + 5, NO_ROWS, lens)
        told = Received(replica, Know(stream, (span,), span.hi))
        deployment.world.inject(deployment.world.now, node, cast(Any, told))


def _replaced(stream: str, true: Span, rows: ArrowRows) -> Span:
    return Span(stream, true.lo, true.hi, true.asof, rows)


def _tell(deployment: Deployment, node: str, source: str, span: Span) -> None:
    told = Received(source, Know(span.stream, (span,), span.hi))
    deployment.world.inject(deployment.world.now, node, cast(Any, told))
