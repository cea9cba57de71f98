"""The application of a simulation: it publishes at a steady rate, collects now and then, and remembers what it sent.

A `Writer` is a client with a load generator on top; it adds nothing to the protocol. What it publishes is drawn from
its own generator: keys by popularity (uniform or Zipf), payloads that name publisher and number.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_left

from tidings.core.rows import CountedRows, Rows, before_rows, data_rows
from tidings.protocols.kernel import Deliver, Effect, Effects, Expired, Input, SetTimer, Time, Timer
from tidings.protocols.nodes.client import Client
from tidings.protocols.services.publishing import Acked, Failed, Post, Publisher
from tidings.sim import scenario as plans


class WorkTick(Timer, frozen=True, gc=False):
    """Time to publish the next batch."""


class Writer:
    """A client that publishes by plan."""

    def __init__(self, client: Client, plan: plans.PublisherTable, stream: plans.Stream, rng: random.Random) -> None:
        self.client = client
        self.plan = plan
        self.stream = stream
        self.rng = rng
        self.sent = 0
        self.collected = 0  # own events published when it last collected
        self.acked = 1  # end of the newest acknowledged range
        weights = [1.0 / (rank + 1) ** plan.skew for rank in range(plan.keys)]
        self.popularity = list(itertools.accumulate(weights))

    def start(self, now: Time) -> Effects:
        wait = max(0.0, self.plan.start - now) + self.rng.random() * self.plan.batch / self.plan.rate
        return [*self.client.start(now), SetTimer(wait, WorkTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is Expired and type(input.timer) is WorkTick:
            return self._work(now)
        effects = list(self.client.handle(now, input))
        for effect in effects[:]:
            if type(effect) is Deliver and isinstance(effect.item, Acked):
                self.acked = max(self.acked, effect.item.hi)
            elif type(effect) is Deliver and isinstance(effect.item, Failed) and effect.item.reason == "expired":
                effects.extend(self._reopen(now))
        return effects

    def check(self) -> None:
        self.client.check()

    def _reopen(self, now: Time) -> Effects:
        """The head has forgotten this publisher: begin a new session; what was unanswered stays in doubt."""
        old = self.client.publisher
        assert old is not None
        self.client.publisher = Publisher(old.name, old.membership, old.settings, self.rng.getrandbits(48))
        self.client.publisher.queue = old.queue
        return self.client.publisher.start(now)[:-1]  # the timer of the old session goes on

    def _work(self, now: Time) -> Effects:
        if now >= self.plan.stop:
            return []
        rows = [self._batch()]
        self.sent += self.plan.batch
        every = self.plan.collect_every
        if every is not None and self.sent - self.collected >= every:
            self.collected = self.sent
            rows.append(self._collector())
        posted: list[Effect] = []
        for each in rows:
            posted.extend(self.client.handle(now, Post(self.plan.stream, each)))
        return [*posted, SetTimer(self.plan.batch / self.plan.rate, WorkTick())]

    def _batch(self) -> Rows:
        plan, size = self.plan, self.stream.event_bytes
        if self.stream.rows == "counted":
            return CountedRows(1, 1 + plan.batch, size)
        payloads: list[bytes | None] = [
            f"{plan.name}/{self.sent + at}".encode().ljust(size, b".") for at in range(plan.batch)
        ]
        keys: list[bytes | None] | None = None
        if plan.keys:
            keys = [self._key() for _ in range(plan.batch)]
        return data_rows(1, keys, payloads)

    def _key(self) -> bytes:
        rank = bisect_left(self.popularity, self.rng.random() * self.popularity[-1])
        return f"key-{min(rank, self.plan.keys - 1)}".encode()

    def _collector(self) -> Rows:
        """A "before n" somewhere in the acknowledged past: sometimes recent, sometimes long ago."""
        before = max(1, math.ceil(self.acked * (1.0 - self.rng.random() ** 2 * 0.5)))
        if self.stream.rows == "counted":
            return CountedRows(1, 2, self.stream.event_bytes, ((1, before),))
        return before_rows(1, [before])
