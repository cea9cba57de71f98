"""Reads as of a number by a member of the fabric: the same answer from every replica."""

from __future__ import annotations

import random

import pytest

from tidings.core.rows import before_rows, data_rows
from tidings.core.span import Span
from tidings.protocols.brokers.messages import Feed, Follow, Unfollowed
from tidings.protocols.kernel import Deliver, Effects, Expired, Received, Send, SetTimer
from tidings.protocols.nodes.client import Client, ClientSettings, ReadAsOf, ReadDone
from tidings.protocols.nodes.replica import Replica, ReplicaSettings, StreamDef
from tidings.protocols.replication.chain_config import ChainConfig


def replica() -> Replica:
    """Holds 1-4 of "s"; 5 collects what is below 3."""
    made = Replica("p", "r", "config", [StreamDef("s", "r")], {}, ReplicaSettings(), [], random.Random(1))
    history = made.log.histories["s"]
    history.accept(Span.of("s", 1, data_rows(1, None, [b"a", b"b", b"c", b"d"])))
    history.accept(Span.of("s", 5, before_rows(5, [3])))
    return made


def reader() -> Client:
    return Client("c", "r", ChainConfig("r", 1, ("p",)), {}, ClientSettings(), random.Random(1))


def between(client: Client, made: Replica, effects: Effects) -> list[ReadDone]:
    """Carry messages to and fro until nothing is said; what the application is told."""
    done: list[ReadDone] = []
    for effect in effects:
        if isinstance(effect, Deliver):
            done.append(effect.item)
        elif isinstance(effect, Send):
            for answer in made.handle(0.0, Received("c", effect.message)):
                if isinstance(answer, Send):
                    done += between(client, made, client.handle(0.1, Received("p", answer.message)))
    return done


@pytest.mark.parametrize(("asof", "rows"), [(1, [2, 3]), (2, [2, 3]), (5, [2, 3]), (6, [3])])
def test_a_read_sees_what_was_not_collected_below_its_asof(asof: int, rows: list[int]) -> None:
    made, client = replica(), reader()
    question = ReadAsOf("s", 2, 4, asof)
    (done,) = between(client, made, client.handle(0.0, question))
    assert done.read == question and done.spans is not None
    assert [seq for span in done.spans for seq in span.rows.numbers.tolist()] == rows
    assert (done.spans[0].lo, done.spans[-1].hi) == (2, 4)
    assert client.reading is None and not made.subscriptions.positions, "nothing is left of it"


@pytest.mark.parametrize("question", [ReadAsOf("s", 3, 3, 3), ReadAsOf("s", 4, 2, 4), ReadAsOf("_publishers", 1, 2, 2)])
def test_a_read_that_makes_no_sense_is_refused_with_the_reason(question: ReadAsOf) -> None:
    asked = Follow(1, question.stream, question.lo, hi=question.hi, asof=question.asof)
    (answer,) = replica().handle(0.0, Received("c", asked))
    assert isinstance(answer, Send) and isinstance(answer.message, Unfollowed)


def test_a_read_beyond_the_horizon_waits() -> None:
    made, client = replica(), reader()
    assert between(client, made, client.handle(0.0, ReadAsOf("s", 1, 9, 9))) == []
    assert client.reading is not None


def test_a_read_below_the_floor_of_all_replicas_is_told_so() -> None:
    made, client = replica(), reader()
    made.log.histories["s"].purge()
    (done,) = between(client, made, client.handle(0.0, ReadAsOf("s", 1, 3, 3)))
    assert done.spans is None


def test_a_read_that_replaces_another_is_the_only_one_answered() -> None:
    made, client = replica(), reader()
    first = client.handle(0.0, ReadAsOf("s", 1, 3, 3))
    (late,) = [effect for effect in first if isinstance(effect, SetTimer)]
    second = ReadAsOf("s", 3, 5, 5)
    effects = client.handle(0.0, second)
    assert between(client, made, first) == [], "it is left: what its replica sends is not wanted"
    assert [done.read for done in between(client, made, effects)] == [second]
    assert client.handle(9.0, Expired(late.timer)) == ()


def test_a_large_read_comes_in_pieces() -> None:
    made, client = replica(), reader()
    made.log.histories["s"].accept(Span.of("s", 6, data_rows(6, None, [b"x" * (5 << 20)] * 3)))
    sent = client.handle(0.0, ReadAsOf("s", 1, 9, 9))
    (done,) = between(client, made, sent)
    assert done.spans is not None and len(done.spans) > 1
    assert sum([span.rows.count for span in done.spans]) == 6
    feeds = [effect.message for effect in made.handle(0.0, Received("d", Follow(1, "s", 1, hi=9, asof=9)))]  # type: ignore[union-attr]
    assert all(isinstance(feed, Feed) for feed in feeds) and len(feeds) > 1
