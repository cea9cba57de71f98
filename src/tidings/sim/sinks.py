"""A streaming query in a simulation: tasks stage batches, a driver commits them, and both fail in every way they can.

The content of a batch follows from its number, as with a replayable source. A *run* of a batch stages every partition.
Some partitions are also staged by a second task, whose rows must not be published. Then the driver commits. Or it dies:
before the commit, after it has asked (so that it never learns the answer), or after the answer (before it has written
that down); then it runs the batch again. Or it aborts, before the commit or after it. Or it sleeps for a while.

`check` fails if the owner ever answers a commit of the same batch with another range.
"""

from __future__ import annotations

import itertools
import random
from typing import Literal, TypeAlias

import msgspec

from tidings.core.ids import StreamId
from tidings.core.rows import Rows, data_rows
from tidings.protocols.kernel import NOTHING, Deliver, Effect, Effects, Expired, Input, SetTimer, Time, Timer
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.sink_client import SinkAnswered, SinkClient
from tidings.protocols.services.sinks import (
    AbortBatch,
    Attempt,
    BatchAborted,
    BatchCommitted,
    CommitBatch,
    RowsStaged,
    SinkBatch,
    SinkRefused,
    SinkSettings,
    StageRows,
)

Mishap: TypeAlias = Literal["", "dies staging", "dies committing", "dies committed", "aborts", "aborts late", "sleeps"]
MISHAPS: tuple[Mishap, ...] = (
    *("dies staging", "dies committing", "dies committed", "aborts", "aborts late", "sleeps"),
)
AGAIN = frozenset({"gone", "full", "crowded"})
"""Codes after which the batch is run again."""


class SinkPlan(msgspec.Struct, frozen=True):
    """One query: where it writes, how much, and for how long."""

    name: str
    region: str
    stream: StreamId
    owner: str  # the region that owns the stream
    rows: int = 40  # of a batch
    every: float = 0.8  # seconds from one batch to the next
    stop: float = 17.0
    mishaps: float = 0.6  # share of the runs in which something goes wrong
    sleep: float = 3.0
    keyed: bool = False


class SinkWork(Timer, frozen=True, gc=False):
    """Time to begin a run, or to go on with it."""

    run: int


class SinkWriter:
    """Driver and tasks of one query."""

    def __init__(self, plan: SinkPlan, membership: ChainConfig, settings: SinkSettings, rng: random.Random) -> None:
        self.plan = plan
        self.rng = rng
        self.client = SinkClient(membership, settings)
        self.batch = 0
        self.of = SinkBatch(plan.name, plan.stream, "query", 0, 0)
        self.mishap: Mishap = ""
        self.staged: set[int] = set()  # nonces of the winners' chunks that are not answered
        self.attempts: list[Attempt] = []
        self.ranges: dict[int, tuple[int, int]] = {}  # of committed batches
        self.broken = ""  # what the owner has said that cannot be

    def start(self, now: Time) -> Effects:
        wait = self.rng.uniform(0.5, 2.0)
        return [*self.client.start(now), SetTimer(wait, SinkWork(self.of.run))]

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is Expired and type(input.timer) is SinkWork:
            return self._work(now) if input.timer.run == self.of.run else NOTHING
        out: list[Effect] = []
        for effect in self.client.handle(now, input):
            out.append(effect)
            if type(effect) is Deliver and type(effect.item) is SinkAnswered:
                out.extend(self._answered(effect.item))
        return out

    def check(self) -> None:
        self.client.check()
        assert not self.broken, self.broken

    @property
    def idle(self) -> bool:
        """Nothing is asked that was not answered."""
        return not self.client.asking and not self.client.queue

    # --- a run --------------------------------------------------------------------------------------------

    def _work(self, now: Time) -> Effects:
        if self.mishap == "sleeps" and self.attempts:
            self.mishap = ""
            return self._commit()
        done = now >= self.plan.stop
        return NOTHING if done and self.batch in self.ranges else self._run(calm=done)

    def _run(self, calm: bool = False) -> list[Effect]:
        """Stage the batch from the beginning, under a run of its own."""
        self._forget()
        while self.batch in self.ranges and self.mishap not in ("dies committed", "aborts late"):
            self.batch += 1
        wrong = not calm and self.rng.random() < self.plan.mishaps
        self.mishap = self.rng.choice(MISHAPS) if wrong else ""
        self.of = SinkBatch(self.plan.name, self.plan.stream, "query", self.batch, self.rng.getrandbits(40))
        self.attempts = []
        self.staged = set()
        out: list[Effect] = []
        bounds = sorted({0, self.plan.rows, self.rng.randrange(self.plan.rows), self.rng.randrange(self.plan.rows)})
        for partition, (lo, hi) in enumerate(itertools.pairwise(bounds)):
            if self.rng.random() < 0.4:
                out += self._task(partition, lo, self.rng.randint(lo + 1, hi), wins=False)
            out += self._task(partition, lo, hi, wins=True)
        if self.mishap == "dies staging" and self.of.run % 2:  # before anything is answered
            out += self._later(0.001)
        return out

    def _task(self, partition: int, lo: int, hi: int, *, wins: bool) -> list[Effect]:
        """One attempt at a partition: rows [lo, hi) of the batch in chunks."""
        attempt, size = self.rng.getrandbits(40), self.rng.choice([5, 20, 100])
        chunks = [(at, min(at + size, hi)) for at in range(lo, hi, size)]
        out: list[Effect] = []
        for index, (first, end) in enumerate(chunks):
            request = StageRows(self.rng.getrandbits(40), self.of, partition, attempt, index, self._rows(first, end))
            if wins:
                self.staged.add(request.nonce)
            out += self.client.ask(request)
        if wins:
            self.attempts.append(Attempt(partition, attempt, len(chunks), hi - lo))
        return out

    def _rows(self, lo: int, hi: int) -> Rows:
        numbers = range(lo, hi)
        keys = [b"key-%d" % (number % 7) for number in numbers] if self.plan.keyed else None
        return data_rows(1, keys, [f"{self.plan.name}/{self.batch}/{number}".encode() for number in numbers])

    def _forget(self) -> None:
        """The driver died: its requests may still arrive, but no answer is waited for."""
        for request in [*self.client.queue, *self.client.asking.values()]:
            self.client.drop(request.nonce)
        assert self.idle, "a dead driver asks nothing"

    # --- answers ------------------------------------------------------------------------------------------

    def _answered(self, item: SinkAnswered) -> list[Effect]:
        match item.answer:
            case RowsStaged(nonce):
                waits = nonce in self.staged
                self.staged.discard(nonce)
                return self._staged() if waits and not self.staged else []
            case BatchCommitted(_, lo, hi):
                return self._committed(lo, hi)
            case BatchAborted():
                return self._later(0.1)
            case SinkRefused(_, code) if code in AGAIN:
                return self._later(0.3)
            case SinkRefused(_, code, reason):
                self.broken = f"{code}: {reason}"
        return []

    def _staged(self) -> list[Effect]:
        match self.mishap:
            case "dies staging":
                return self._later(0.2)
            case "aborts":
                return [*self.client.ask(AbortBatch(self.rng.getrandbits(40), self.of))]
            case "sleeps":
                return self._later(self.plan.sleep)
        return self._commit()

    def _commit(self) -> list[Effect]:
        out = [*self.client.ask(CommitBatch(self.rng.getrandbits(40), self.of, tuple(self.attempts)))]
        return [*out, *self._later(0.05)] if self.mishap == "dies committing" else out

    def _committed(self, lo: int, hi: int) -> list[Effect]:
        known = self.ranges.setdefault(self.batch, (lo, hi))
        if known != (lo, hi) or hi - lo != self.plan.rows:
            self.broken = f"batch {self.batch} of {self.plan.rows} rows was committed as {known}, now as {(lo, hi)}"
        if self.mishap == "aborts late":  # the answer was lost on the way to Spark, which then aborts
            return [*self.client.ask(AbortBatch(self.rng.getrandbits(40), self.of))]
        return self._later(0.1 if self.mishap == "dies committed" else self.plan.every)

    def _later(self, delay: float) -> list[Effect]:
        return [SetTimer(delay, SinkWork(self.of.run))]
