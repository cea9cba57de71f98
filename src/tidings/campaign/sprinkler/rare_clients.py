"""Rare clients: in some worlds of a campaign, clients that do what neither members nor scripted clients do.

*Twins* have drawn the same holder number and open one durable subscription with it: only one may have it. A *reader*
reads another region's stream as of numbers that have been forgotten. *Jobs* are written through sinks by one writer,
two at a time. Each is a query of one batch, and none may hinder another.
"""

from __future__ import annotations

import random
from typing import Any, cast

import msgspec

from tidings.campaign.sprinkler.fault_plan import TTL, FaultPlan
from tidings.campaign.sprinkler.scripted_client import FEEDS, ScriptedClient, add_scripted_client
from tidings.client.commands import Open
from tidings.core.ids import NodeId, StreamId
from tidings.core.rows import Rows, data_rows
from tidings.protocols.brokers.messages import EARLIEST
from tidings.protocols.kernel import Command, Deliver, Effect, Effects, Expired, Input, Received, SetTimer, Time, Timer
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.sink_client import SinkAnswered, SinkClient
from tidings.protocols.services.sinks import (
    AbortBatch,
    Attempt,
    BatchCommitted,
    CommitBatch,
    RowsStaged,
    SinkBatch,
    SinkRefused,
    SinkSettings,
    StageRows,
)
from tidings.sim.build import Deployment, Note

TWINS, READER, JOBS = ("twin-a", "twin-b"), "reader", "jobs"
SHARED = "shared"
"""The twins' durable subscription."""
NUMBER = 7  # that both take for their own
LAST_JOB = 13.0  # seconds; so that all are answered in the end
TICK = 0.3
CHUNKS, ROWS = 3, 4  # of a job: more than one record moves where a record carries one or two


class JobTick(Timer, frozen=True, gc=False):
    """Begin the next two jobs."""


class ClientJob:
    """A query of one batch."""

    def __init__(self, of: SinkBatch, attempt: int) -> None:
        self.of = of
        self.attempts = (Attempt(0, attempt, CHUNKS, CHUNKS * ROWS),)
        self.staging: set[int] = set()  # nonces
        self.first: set[int] = set()  # nonces of commits that were asked for before one was answered
        self.range: tuple[int, int] | None = None
        self.over = False


class Jobs:
    """One writer, and its jobs two at a time: staged side by side, committed, and committed once more."""

    def __init__(self, stream: StreamId, membership: ChainConfig, settings: SinkSettings, rng: random.Random) -> None:
        self.stream = stream
        self.client = SinkClient(membership, settings)
        self.rng = rng
        self.jobs: dict[str, ClientJob] = {}
        self.count = 0
        self.dropped: set[int] = set()  # nonces of questions whose answers nobody waits for
        self.wrong: list[str] = []  # answers

    def start(self, now: Time) -> Effects:
        return [*self.client.start(now), SetTimer(1.0 + self.rng.random(), JobTick())]

    def handle(self, now: Time, input: Input) -> Effects:
        if type(input) is Expired and type(input.timer) is JobTick:
            over = all([job.over for job in self.jobs.values()]) and self.idle
            return [*(self._begin() if over and now < LAST_JOB else ()), SetTimer(TICK, JobTick())]
        out: list[Effect] = []
        for effect in self.client.handle(now, input):
            out.append(effect)
            if type(effect) is Deliver and type(effect.item) is SinkAnswered:
                out.extend(self._answered(effect.item))
        return out

    def check(self) -> None:
        self.client.check()

    @property
    def idle(self) -> bool:
        """Nothing is asked that was not answered."""
        return not self.client.asking and not self.client.queue

    def _nonce(self) -> int:
        return self.rng.getrandbits(40)

    def _begin(self) -> list[Effect]:
        out: list[Effect] = []
        self.jobs = {}
        for _ in range(2):
            self.count += 1
            of = SinkBatch(JOBS, self.stream, f"job-{self.count}", 0, self._nonce(), once=True)
            job = self.jobs[of.query] = ClientJob(of, self._nonce())
            for index in range(CHUNKS):
                rows = _rows(f"{of.query}/{index}")
                request = StageRows(self._nonce(), of, 0, job.attempts[0].attempt, index, rows)
                job.staging.add(request.nonce)
                out += self.client.ask(request)
        return out

    def _answered(self, item: SinkAnswered) -> list[Effect]:
        job = self.jobs[item.request.of.query]
        match item.answer:
            case RowsStaged(nonce):
                job.staging.discard(nonce)
                return self._commit(list(self.jobs.values())) if not self._staging() else []
            case BatchCommitted(_, lo, hi, again):
                if job.range is None:
                    job.range = lo, hi
                    return self._commit([job])
                if job.range != (lo, hi) or not (again or item.request.nonce in job.first):
                    self.wrong.append(f"{job.of.query} was committed as {job.range}, then as {(lo, hi)}")
                self.wrong += ["answered although nobody waits"] * (item.request.nonce in self.dropped)
                again, job.over = not job.over, True
                return self._insist(job) if again else []
            case SinkRefused(_, code, reason):
                return self._refused(job, code, reason)
        return []

    def _insist(self, job: ClientJob) -> list[Effect]:
        """Send two requests more than the window allows, then cancel one that is queued."""
        requests = [CommitBatch(self._nonce(), job.of, job.attempts) for _ in range(self.client.settings.window + 2)]
        out: list[Effect] = []
        for request in requests:
            out += self.client.ask(request)
        self.dropped.add(requests[-2].nonce)
        return [*out, *self.client.drop(requests[-2].nonce)]

    def _staging(self) -> bool:
        return any([job.staging and not job.over for job in self.jobs.values()])

    def _commit(self, jobs: list[ClientJob]) -> list[Effect]:
        asked: list[Effect] = []
        for job in jobs:
            if not job.over:
                request = CommitBatch(self._nonce(), job.of, job.attempts)
                if job.range is None:
                    job.first.add(request.nonce)
                asked += self.client.ask(request)
        return asked

    def _refused(self, job: ClientJob, code: str, reason: str) -> list[Effect]:
        """No room is a reason to try another one later; what was staged for a short time only may be gone by now.

        What was still to be staged when there was no room for all of a job is not wanted any more.
        """
        if job.over and job.range is None and code == "gone":
            return []
        short = self.client.settings.ttl < TTL
        if job.range is not None or not (code == "crowded" or (code == "gone" and short)):
            self.wrong.append(f"{code}: {reason}")
        if job.over:
            return []
        job.over = True
        out: list[Effect] = [*self.client.ask(AbortBatch(self._nonce(), job.of))]
        waits = [each for each in self.jobs.values() if not each.over]
        return [*out, *(self._commit(waits) if waits and not self._staging() and code == "crowded" else [])]


def _rows(text: str) -> Rows:
    return data_rows(1, [b"job-%d" % at for at in range(ROWS)], [f"{text}/{at}".encode() for at in range(ROWS)])


class RareClients:
    """Who is there in a world, drawn from the seed, and what must hold of them."""

    def __init__(self, deployment: Deployment, plan: FaultPlan) -> None:
        self.deployment = deployment
        rng = random.Random(f"guests/{plan.seed}")
        regions = sorted(deployment.replicas)
        self.home, away = regions[0], regions[-1]
        own = f"s-{self.home}"
        self.twins = rng.random() < 0.4 and not plan.claims  # conflicting clients count who has room for a cursor
        if self.twins:
            deployment.settings = msgspec.structs.replace(deployment.settings, subscriptions=FEEDS)
            for name in TWINS:
                add_scripted_client(
                    deployment, ScriptedClient, name, self.home, [(1.5, Open(1, own, EARLIEST, "", SHARED, NUMBER))]
                )
            reads: list[tuple[float, Command]] = [
                (at, Open(int(at), own, 1, "", None, 0, 12, 12)) for at in (6.0, 9.0, 12.0, 15.0)
            ]
            if plan.mood != "calm":  # where nothing is purged in time it is told all the same
                add_scripted_client(deployment, ScriptedClient, READER, away, reads)
        streams = [stream for stream in plan.scenario.streams if stream.rows == "arrow"]
        self.jobs: NodeId | None = None
        promised = bool(streams) and not plan.forgets(streams[0].region)
        if rng.random() < 0.6 and promised and plan.mood != "calm":  # what is asked again is counted
            self._add_jobs(rng.choice([plan.sinking.stagings, 2]), streams[0].name, streams[0].region)
        self.asked = 0
        self.rng = rng

    def _add_jobs(self, room: int, stream: StreamId, owner: str) -> None:
        deployment = self.deployment
        sinks = msgspec.structs.replace(deployment.settings.sinks, stagings=room)
        deployment.settings = msgspec.structs.replace(deployment.settings, sinks=sinks)
        self.jobs = f"{self.home}/{JOBS}"

        def jobs(durable: list[Any], incarnation: int, rng: random.Random) -> Jobs:
            return Jobs(stream, deployment.memberships[owner], deployment.settings.sinks, rng)

        deployment.add(self.jobs, self.home, jobs)

    def on_report(self, time: float, node: NodeId, name: str, value: float) -> None:
        """While a batch is moved somebody else stages rows, which need not wait, and its own writer, which must."""
        if name != "sink_moved" or self.jobs is None or self.asked >= 6:
            return
        sinks = self.deployment.proxy(node).sinks
        if not sinks.moving:
            return
        self.asked += 1
        moving = next(iter(sinks.moving.values()))
        writer, stream, once = moving.key
        last = sinks.entries[moving.key].recent[-1]
        after = SinkBatch(writer, stream, last.query, last.batch + 1, 1, once)
        other = SinkBatch("bystander", stream, "one", self.asked, 1)
        for of in (other, *([] if once else [after])):
            asked = StageRows(self.rng.getrandbits(40), of, 0, self.rng.getrandbits(40), 0, _rows("bystander"))
            self.deployment.world.inject(time, node, cast(Any, Received(self.jobs, asked)))
            dropped = AbortBatch(self.rng.getrandbits(40), of)
            self.deployment.world.inject(time + 0.2, node, cast(Any, Received(self.jobs, dropped)))

    def demand(self, note: Note) -> None:
        """Of twins one is the holder; jobs are all answered, rightly."""
        hosts = self.deployment.world.hosts
        if self.twins:
            held = []
            for name in TWINS:
                scripted = hosts[f"{self.home}/{name}"].machine
                assert isinstance(scripted, ScriptedClient)
                held += [each.holder for each in scripted.open.values() if each.opened]
            note(SHARED, "held_by_two", len(held) - len(set(held)), 0)
        if self.jobs is not None:
            jobs = hosts[self.jobs].machine
            assert isinstance(jobs, Jobs)
            note(self.jobs, "wrong_answers", len(jobs.wrong), 0)
            note(self.jobs, "unanswered", not jobs.idle, 0)
