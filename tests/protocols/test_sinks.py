"""Sinks: a batch that many stage and one commits is published whole, once, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.check import judge
from tidings.core.gc import GcPolicy
from tidings.core.history import History
from tidings.core.rows import ArrowRows, Rows, before_rows, data_rows
from tidings.protocols.kernel import Deliver, Effects, Expired, Received, Send
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.log import Log, Record
from tidings.protocols.services.publishing import NotHead
from tidings.protocols.services.sink_client import SinkAnswered, SinkClient, SinkTick
from tidings.protocols.services.sinks import (
    SINKS,
    STAGED,
    STAGES,
    AbortBatch,
    Attempt,
    BatchAborted,
    BatchCommitted,
    CommitBatch,
    RowsStaged,
    SinkBatch,
    SinkRefused,
    Sinks,
    SinkSettings,
    StageRows,
    Step,
)
from tidings.sim.build import Deployment
from tidings.sim.run import failures, simulate
from tidings.sim.scenario import LinkTable, RegionTable, Run, Scenario, Stream
from tidings.sim.scenario import PublisherTable as Load
from tidings.sim.sinks import SinkPlan


class Head:
    """The sinks of a head that is a chain by itself: a step is committed as soon as it is taken."""

    def __init__(self, **settings: Any) -> None:
        streams = ["s", SINKS, STAGES, *STAGED]
        by_key = GcPolicy.parse("by-key")
        self.log = Log(lambda name: History(name, by_key if name == SINKS else GcPolicy()), streams)
        self.settings = SinkSettings(**settings)
        self.sinks = Sinks(self.log, "r0", lambda stream, now: int(now * 1e6), self.settings)
        self.now = 1.0
        self.nonce = 0

    def take(self, step: Step | None) -> list[Any]:
        """Write a step; what is answered."""
        assert step is not None
        if step.parts:
            self.log.append(Record(1, self.log.last + 1, tuple(step.parts)))
            assert self.log.commit_next()[1] == ()
        self.sinks.check()
        return [answer for _, answer, lsn in step.answers if lsn <= self.log.committed]

    def stage(self, of: SinkBatch, attempt: int, rows: Rows, index: int = 0, misfit: str = "") -> Any:
        self.nonce += 1
        request = StageRows(self.nonce, of, 0, attempt, index, rows)
        return self.take(self.sinks.stage(self.now, "task", request, misfit))[0]

    def commit(self, of: SinkBatch, *attempts: Attempt) -> list[Any]:
        """What is answered, once all is moved."""
        self.nonce += 1
        answers = self.take(self.sinks.commit(self.now, "driver", CommitBatch(self.nonce, of, attempts)))
        return answers + self.move()

    def move(self) -> list[Any]:
        answers: list[Any] = []
        while (step := self.sinks.next(self.now)) is not None:
            answers += self.take(step)
        return answers

    def abort(self, of: SinkBatch) -> Any:
        self.nonce += 1
        return self.take(self.sinks.abort(self.now, "driver", AbortBatch(self.nonce, of)))[0]

    def fail_over(self) -> None:
        """Another replica, with the same log, becomes head."""
        self.sinks = Sinks(self.log, "r0", lambda stream, now: int(now * 1e6), self.settings)
        histories = [self.log.histories[stream] for stream in (SINKS, STAGES)]
        self.sinks.load(*[[span.rows for span in history.know(1, history.horizon)] for history in histories])
        self.sinks.check()

    def payloads(self) -> list[bytes]:
        history = self.log.histories["s"]
        spans = history.know(1, history.horizon)
        return [payload for span in spans for payload in span.rows.batch.column("payload").to_pylist()]  # type: ignore[attr-defined]


def batch(number: int = 0, run: int = 1, **more: Any) -> SinkBatch:
    return SinkBatch("w", "s", more.pop("query", "q"), number, run, **more)


def rows(*payloads: str) -> ArrowRows:
    return data_rows(1, None, [payload.encode() for payload in payloads])


def code(answer: Any) -> str:
    assert isinstance(answer, SinkRefused), answer
    return answer.code


def test_a_commit_publishes_the_chosen_attempts_in_order_and_nothing_else() -> None:
    head = Head()
    assert isinstance(head.stage(batch(), 11, rows("a", "b")), RowsStaged)
    head.stage(batch(), 99, rows("loser"))
    head.stage(batch(), 12, rows("d"), index=1)
    head.stage(batch(), 12, rows("c"))
    (answer,) = head.commit(batch(), Attempt(0, 11, 1, 2), Attempt(1, 12, 2, 2))
    assert answer == BatchCommitted(head.nonce, 1, 5) and head.payloads() == [b"a", b"b", b"c", b"d"]
    span = head.log.histories["s"].know(1, 5)[0]
    assert isinstance(span.rows, ArrowRows)
    (origin,) = span.rows.origins
    assert (origin.publisher, origin.session, origin.first, origin.lo, origin.hi) == ("w/q", 1, 1, 1, 5)


@pytest.mark.parametrize("fail_over", [False, True])
def test_a_batch_that_was_committed_keeps_its_range_whatever_is_done_again(fail_over: bool) -> None:
    head = Head()
    head.stage(batch(), 11, rows("a"))
    head.commit(batch(), Attempt(0, 11, 1, 1))
    if fail_over:
        head.fail_over()
    again = batch(run=2)
    assert isinstance(head.stage(again, 21, rows("a")), RowsStaged)
    assert not head.sinks.stagings, "nobody needs those rows"
    assert head.commit(again, Attempt(0, 21, 1, 1)) == [BatchCommitted(head.nonce, 1, 2, True)]
    assert isinstance(head.abort(again), BatchAborted)
    assert head.commit(batch(), Attempt(0, 11, 1, 1)) == [BatchCommitted(head.nonce, 1, 2, True)]
    assert head.payloads() == [b"a"]


def test_an_abort_before_the_commit_drops_what_was_staged_also_for_a_later_head() -> None:
    head = Head()
    head.stage(batch(), 11, rows("a"))
    assert isinstance(head.abort(batch()), BatchAborted)
    for _ in range(2):
        assert code(head.commit(batch(), Attempt(0, 11, 1, 1))[0]) == "gone"
        head.fail_over()
    assert head.payloads() == []


def test_a_late_abort_of_an_older_run_leaves_the_newer_one_alone() -> None:
    head = Head()
    head.stage(batch(run=1), 11, rows("a"))
    head.stage(batch(run=2), 21, rows("a"))
    head.abort(batch(run=1))
    assert code(head.commit(batch(run=1), Attempt(0, 11, 1, 1))[0]) == "gone"
    assert head.commit(batch(run=2), Attempt(0, 21, 1, 1)) == [BatchCommitted(head.nonce, 1, 2)]


@pytest.mark.parametrize("fail_over", [False, True])
@pytest.mark.parametrize("end", ["aborted", "replaced", "expired"])
def test_what_comes_late_of_a_run_that_is_over_is_refused_and_leaves_a_newer_one_alone(
    end: str, fail_over: bool
) -> None:
    head = Head(ttl=10.0)
    head.stage(batch(run=1), 11, rows("a"))
    if end == "aborted":
        head.abort(batch(run=1))
    elif end == "expired":
        head.now += 11.0
        head.take(head.sinks.expired(head.now))
    else:
        head.stage(batch(run=2), 21, rows("a"))
    if fail_over:
        head.fail_over()
    assert code(head.stage(batch(run=1), 11, rows("b"), index=1)) == "gone"
    assert [staging.of.run for staging in head.sinks.stagings.values()] == ([2] if end == "replaced" else [])
    assert isinstance(head.stage(batch(run=2), 22, rows("b")), RowsStaged)
    assert isinstance(head.commit(batch(run=2), Attempt(0, 22, 1, 1))[0], BatchCommitted)


def test_a_run_that_was_aborted_before_anything_of_it_came_is_over_too() -> None:
    head = Head()
    assert isinstance(head.abort(batch()), BatchAborted)
    assert code(head.stage(batch(), 11, rows("late"))) == "gone"


def test_of_runs_that_are_over_the_last_are_remembered() -> None:
    head = Head(over=3)
    for run in range(1, 6):
        head.stage(batch(run=run), run, rows("a"))
        head.abort(batch(run=run))
    assert [of.run for of in head.sinks.over] == [3, 4, 5]


@pytest.mark.parametrize(
    "attempts",
    [
        (Attempt(0, 11, 2, 2),),  # a chunk never came
        (Attempt(0, 11, 1, 3),),  # other rows than the task counted
        (Attempt(0, 12, 1, 1),),  # never heard of
        (Attempt(0, 11, 1, 2), Attempt(1, 11, 1, 2)),  # one attempt twice
        (Attempt(0, 11, 1, 2), Attempt(0, 13, 1, 1)),  # two attempts of one partition
        (),
    ],
)
def test_a_commit_of_what_is_not_staged_as_it_says_publishes_nothing(attempts: tuple[Attempt, ...]) -> None:
    head = Head()
    head.stage(batch(), 11, rows("a", "b"))
    head.stage(batch(), 13, rows("c"))
    assert code(head.commit(batch(), *attempts)[0]) == "gone"
    assert head.payloads() == []


def test_another_query_under_a_used_name_is_refused_unless_it_resets() -> None:
    head = Head()
    head.stage(batch(7), 11, rows("a"))
    head.commit(batch(7), Attempt(0, 11, 1, 1))
    for number in (0, 7, 8):
        other = batch(number, query="other")
        refused = head.stage(other, 21, rows("b"))
        assert code(refused) == "writer" and "writerReset" in refused.reason and "'w'" in refused.reason
        assert code(head.commit(other, Attempt(0, 21, 1, 1))[0]) == "writer"
    reset = batch(0, query="other", reset=True)
    head.stage(reset, 31, rows("b"))
    assert head.commit(reset, Attempt(0, 31, 1, 1)) == [BatchCommitted(head.nonce, 2, 3)]
    assert code(head.stage(batch(8), 41, rows("c"))) == "writer", "the older query has lost the name"
    assert head.commit(reset, Attempt(0, 31, 1, 1)) == [BatchCommitted(head.nonce, 2, 3, True)]


def test_an_older_checkpoint_is_refused_unless_it_resets() -> None:
    head = Head()
    for number in (4, 5):
        head.stage(batch(number), number, rows(f"{number}"))
        head.commit(batch(number), Attempt(0, number, 1, 1))
    assert code(head.stage(batch(4, run=2), 14, rows("4"))) == "stale"
    head.stage(batch(4, run=2, reset=True), 14, rows("4"))
    assert head.commit(batch(4, run=2, reset=True), Attempt(0, 14, 1, 1)) == [BatchCommitted(head.nonce, 3, 4)]


def test_jobs_of_one_batch_each_share_a_name_and_do_not_disturb_each_other() -> None:
    head = Head(runs=2)
    jobs = [batch(0, run=at, query=f"job{at}", once=True) for at in range(3)]
    for at, job in enumerate(jobs):
        head.stage(job, at, rows(f"{at}"))
    for at, job in enumerate(jobs):
        assert head.commit(job, Attempt(0, at, 1, 1)) == [BatchCommitted(head.nonce, 1 + at, 2 + at)]
    assert head.commit(jobs[2], Attempt(0, 2, 1, 1)) == [BatchCommitted(head.nonce, 3, 4, True)]
    assert code(head.commit(jobs[0], Attempt(0, 0, 1, 1))[0]) == "gone", "forgotten, but its rows are gone, too"
    assert head.payloads() == [b"0", b"1", b"2"]


def test_a_batch_of_many_chunks_moves_in_several_records_and_nobody_else_is_numbered_meanwhile() -> None:
    head = Head(parts=2, ahead=1)
    for index in range(5):
        head.stage(batch(), 11, rows(f"{index}"), index=index)
    step = head.sinks.commit(head.now, "driver", CommitBatch(77, batch(), (Attempt(0, 11, 5, 5),)))
    assert head.take(step) == [] and head.payloads() == [b"0", b"1"]
    assert head.sinks.busy("s")
    waits = head.sinks.commit(head.now, "other", CommitBatch(78, batch(query="z", once=True), (Attempt(0, 1, 1, 1),)))
    assert not waits.parts and not waits.answers, "another commit to the stream waits"
    head.fail_over()
    assert head.sinks.busy("s"), "a new head goes on where the one before it stopped"
    head.take(head.sinks.next(head.now))
    again = head.sinks.commit(head.now, "driver", CommitBatch(77, batch(), (Attempt(0, 11, 5, 5),)))
    assert not again.answers, "answered when all is moved"
    assert head.move() == [BatchCommitted(77, 1, 6, True)]
    assert head.payloads() == [b"0", b"1", b"2", b"3", b"4"] and not head.sinks.busy("s")


def test_the_next_batch_of_a_writer_waits_until_the_one_before_is_moved() -> None:
    head = Head(parts=1, ahead=1)
    for index in range(2):
        head.stage(batch(), 11, rows(f"{index}"), index=index)
    head.take(head.sinks.commit(head.now, "driver", CommitBatch(77, batch(), (Attempt(0, 11, 2, 2),))))
    step = head.sinks.stage(head.now, "task", StageRows(78, batch(1), 0, 21, 0, rows("next")), "")
    assert not step.parts and not step.answers
    head.move()
    assert head.payloads() == [b"0", b"1"]


def test_staged_data_is_bounded_per_writer_and_in_all() -> None:
    one = rows("x" * 1000)
    head = Head(writer_bytes=3000, total_bytes=4000)
    assert isinstance(head.stage(batch(), 11, one), RowsStaged)
    assert isinstance(head.stage(batch(), 11, one, index=1), RowsStaged)
    assert code(head.stage(batch(), 11, one, index=2)) == "full"
    other = SinkBatch("v", "s", "q", 0, 5)
    assert isinstance(head.stage(other, 31, one), RowsStaged)
    assert code(head.stage(other, 31, one, index=1)) == "crowded"
    head.commit(batch(), Attempt(0, 11, 2, 2))
    head.take(head.sinks.collected(head.now))
    assert isinstance(head.stage(other, 31, one, index=1), RowsStaged)


def test_a_stream_that_was_deleted_takes_no_commit() -> None:
    head = Head()
    head.stage(batch(), 11, rows("a"))
    head.log.drop("s")
    assert code(head.commit(batch(), Attempt(0, 11, 1, 1))[0]) == "stream"


def test_what_nobody_commits_expires_after_its_last_rows() -> None:
    head = Head(ttl=10.0)
    head.stage(batch(), 11, rows("a"))
    head.now += 9.0
    head.stage(batch(), 12, rows("b"))
    head.now += 9.0
    assert head.sinks.expired(head.now) is None
    head.now += 2.0
    head.take(head.sinks.expired(head.now))
    assert code(head.commit(batch(), Attempt(0, 12, 1, 1))[0]) == "gone"


def test_dropped_rows_are_collected_behind_whoever_is_slow() -> None:
    head = Head()
    slow = SinkBatch("slow", "s", "q", 0, 5)
    head.stage(slow, 1, rows("slow"))
    for number in range(20):
        head.stage(batch(number), number, rows("x"))
        head.commit(batch(number), Attempt(0, number, 1, 1))
        head.take(head.sinks.collected(head.now))
    assert not head.sinks.dead, "each has a staging stream of its own"
    stored = 0
    for stream in STAGED:
        head.log.histories[stream].purge()
        stored += head.log.histories[stream].rows_stored
    assert stored <= 3
    head.fail_over()
    assert head.commit(slow, Attempt(0, 1, 1, 1)) == [BatchCommitted(head.nonce, 21, 22)]


@pytest.mark.parametrize(
    ("bad", "misfit", "why"),
    [
        (before_rows(1, [5]), "", "rows"),
        (rows(), "", "rows"),
        (rows("a"), "stream", "stream"),
        (rows("a"), "size", "size"),
    ],
)
def test_rows_that_do_not_fit_or_would_collect_others_are_refused(bad: Rows, misfit: str, why: str) -> None:
    assert code(Head().stage(batch(), 11, bad, misfit=misfit)) == why


# --- the writers' end ---------------------------------------------------------------------------------------


def sent(effects: Effects) -> list[tuple[str, int]]:
    return [(e.to, e.message.nonce) for e in effects if isinstance(e, Send)]  # type: ignore[attr-defined]


def test_a_client_has_a_few_questions_under_way_and_repeats_them_at_the_next_replica() -> None:
    client = SinkClient(ChainConfig("r0", 1, ("p0", "p1")), SinkSettings(window=2))
    requests = [AbortBatch(nonce, batch()) for nonce in (1, 2, 3)]
    assert [sent(client.ask(request)) for request in requests] == [[("p0", 1)], [("p0", 2)], []]
    answered = client.handle(0.0, Received("p0", BatchAborted(1)))
    assert answered[0] == Deliver(SinkAnswered(requests[0], BatchAborted(1))) and sent(answered) == [("p0", 3)]
    assert client.handle(0.0, Received("p0", BatchAborted(1))) == (), "nobody waits for it any more"
    ticks = [sent(client.handle(at, Expired(SinkTick()))) for at in (1.0, 2.0, 3.0)]
    assert ticks == [[], [("p0", 2), ("p0", 3)], [("p1", 2), ("p1", 3)]]
    moved = client.handle(3.0, Received("p1", NotHead(ChainConfig("r0", 2, ("p2", "p1")))))
    assert sent(moved) == [("p2", 2), ("p2", 3)]
    assert sent(client.drop(2)) == [] and list(client.asking) == [3]


# --- in a cluster -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_every_batch_is_published_once_across_fail_over_and_full_restart(seed: int) -> None:
    plan = Scenario(
        scenario=Run(name="sinks", seconds=24.0, heal_after=17.0),
        regions=(RegionTable("a", replicas=3, clients=2), RegionTable("b", replicas=2, clients=2)),
        links=(LinkTable("a", "b", 0.02, loss=0.05, duplicate=0.05),),
        streams=(Stream("s", "a"),),
        publishers=(Load(name="p", region="a", stream="s", rate=20.0, batch=4, stop=17.0),),
    )
    sinks = [SinkPlan("near", "a", "s", "a"), SinkPlan("far", "b", "s", "a")]
    deployment = Deployment(plan, seed, sinks=sinks, sinking=SinkSettings(ttl=2.0, parts=2, ahead=1, retry=0.3))
    world = deployment.world
    world.at(5.05, lambda: world.crash("a/p0"))
    world.at(7.0, lambda: world.restart("a/p0"))
    world.at(11.0, lambda: [world.crash(node) for node in deployment.replicas["a"]])
    world.at(12.0, lambda: [world.restart(node) for node in deployment.replicas["a"]])
    simulate(deployment)
    assert failures(deployment) == [] and judge(deployment.recorder.trace()) == []
    for node in deployment.sinks:
        writer = deployment.sink(node)
        assert writer.idle and sorted(writer.ranges) == list(range(len(writer.ranges))) and len(writer.ranges) > 3
