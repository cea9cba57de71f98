"""The client's machine without I/O: how it finds the cluster, and how news reach its parts."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from tidings.client.cluster_view import ClusterView
from tidings.client.commands import (
    Answered,
    Ask,
    AskTick,
    Broken,
    Close,
    Open,
    PublisherTick,
    RefreshTick,
    Submit,
    Taken,
)
from tidings.client.fabric import Heard
from tidings.client.machine import ClientMachine, MachineSettings
from tidings.core.rows import CountedRows, data_rows
from tidings.core.span import Span
from tidings.protocols.brokers.messages import Feed, Follow, Unfollow
from tidings.protocols.brokers.subscriber import Fed, Lost
from tidings.protocols.kernel import Deliver, Effects, Expired, Received, Send
from tidings.protocols.messages import Know, Offer
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.catalog import Because, Define, Describe, Description, StreamDef, StreamState, Why
from tidings.protocols.services.cursors import OpenCursor
from tidings.protocols.services.publishing import NotHead, OpenSession, Publish, PublishTick, Rejected, SessionOpened

NEAR = ChainConfig("r0", 1, ("r0/a@h:1", "r0/b@h:2", "r0/c@h:3"))
FAR = ChainConfig("r1", 4, ("r1/a@h:4", "r1/b@h:5"))
STREAMS = (StreamDef("s", "r0", number=0), StreamDef("t", "r1", number=1))
ROWS = CountedRows(1, 2, 10)


def sent(effects: Effects) -> list[tuple[str, Any]]:
    return [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]


def told(effects: Effects) -> list[Any]:
    return [effect.item for effect in effects if isinstance(effect, Deliver)]


def described(nonce: int, near: ChainConfig = NEAR, far: ChainConfig = FAR) -> Description:
    states = {"s": StreamState(5, 4, 0)}
    return Description(nonce, "r0", (near, far), STREAMS, states)


def machine(**options: Any) -> ClientMachine:
    return ClientMachine("c", "web", ("@h:1", "@h:9"), MachineSettings(), random.Random(3), **options)


def found(**options: Any) -> ClientMachine:
    client = machine(**options)
    ((_, ask),) = sent(client.start(0.0))
    client.handle(0.0, Received(NEAR.head, described(ask.nonce)))
    return client


def test_what_was_opened_by_a_name_that_meant_nothing_follows_the_stream_that_gets_it() -> None:
    """Campaign seed 1976: it asked for the bare name until it was told that there is no such stream."""
    client = found()
    ((source, follow),) = sent(client.handle(1.0, Open(7, "new", 1, "", None, 0)))
    assert follow.stream == "new"
    new = StreamDef("new", "r0", number=2, mark="1abc")
    told_of = Description(1 << 62, "r0", (NEAR, FAR), (*STREAMS, new), {})
    assert (source, Follow(7, "new~1abc", 1)) in sent(client.handle(1.5, Received(NEAR.head, told_of)))
    assert client.opened[7].stream == "new~1abc"
    assert not [each for _, each in sent(client.handle(2.0, Received(NEAR.head, told_of))) if isinstance(each, Follow)]


def test_it_asks_one_seed_after_the_other_until_somebody_describes_the_cluster() -> None:
    client = machine()
    ((to, ask),) = sent(client.start(0.0))
    assert (to, type(ask)) == ("@h:1", Describe)
    assert sent(client.handle(0.1, Lost("@h:1"))) == [("@h:9", ask)]
    assert sent(client.handle(0.6, Expired(AskTick(ask.nonce, 2)))) == [("@h:1", ask)]
    assert sent(client.handle(0.6, Expired(AskTick(ask.nonce, 2)))) == [], "a stale timer"
    effects = client.handle(0.7, Received(NEAR.head, described(ask.nonce)))
    assert told(effects) == [described(ask.nonce)]
    assert (client.home, set(client.memberships), set(client.streams)) == ("r0", {"r0", "r1"}, {"s", "t"})


def test_each_region_has_a_publisher_of_its_own_and_answers_go_to_the_right_one() -> None:
    client = found()
    ((head, opening),) = sent(client.handle(1.0, Submit("r1", "t", ROWS, 7)))
    assert (head, type(opening)) == (FAR.head, OpenSession)
    client.handle(1.0, Submit("r0", "s", ROWS, 8))
    effects = client.handle(1.1, Received(FAR.head, SessionOpened(opening.nonce, 50)))
    assert sent(effects) == [(FAR.head, Publish("t", "web", 50, 1, ROWS))]
    effects = client.handle(1.2, Received(FAR.head, Rejected(50, 1, "fenced")))
    assert told(effects) == [Broken("r1", "fenced")]


def test_a_newer_chain_reaches_the_publisher_the_subscribers_and_open_questions() -> None:
    client = found()
    client.handle(1.0, Submit("r0", "s", ROWS, 7))
    client.handle(1.0, Open(1, "s", 1, "", None, 3))
    define = Define(9, "create", StreamDef("u", "r0"))
    assert sent(client.handle(1.0, Ask(9, define, "r0", True))) == [(NEAR.head, define)]
    newer = ChainConfig("r0", 2, ("r0/b@h:2", "r0/c@h:3"))
    effects = client.handle(1.1, Received("r0/a@h:1", NotHead(newer)))
    assert ("r0/b@h:2", define) in sent(effects)
    assert [to for to, message in sent(effects) if isinstance(message, OpenSession)] == ["r0/b@h:2"]
    assert client.subscribers[1].membership == newer
    older = client.handle(1.2, Received("r0/a@h:1", NotHead(NEAR)))
    assert client.memberships["r0"] == newer and not [m for _, m in sent(older) if isinstance(m, OpenSession)]


def test_a_session_that_was_idle_for_long_is_not_trusted() -> None:
    client = found()
    ((_, first),) = sent(client.handle(1.0, Submit("r0", "s", ROWS, 7)))
    client.publishers["r0"].queue.clear()
    ((_, again),) = sent(client.handle(4000.0, Submit("r0", "s", ROWS, 8)))
    assert isinstance(again, OpenSession) and again.nonce != first.nonce


def test_after_a_loss_the_cluster_is_looked_at_every_second_for_a_while() -> None:
    client = found()
    assert not sent(client.handle(5.0, Expired(RefreshTick())))
    ((_, ask),) = [pair for pair in sent(client.handle(6.0, Lost(NEAR.head))) if isinstance(pair[1], Describe)]
    client.handle(6.1, Received(NEAR.tail, described(ask.nonce)))
    assert [type(m) for _, m in sent(client.handle(7.5, Expired(RefreshTick())))] == [Describe]


def test_a_publisher_to_whom_nobody_answers_makes_the_client_look_for_a_newer_chain() -> None:
    client = found()
    client.handle(1.0, Submit("r0", "s", ROWS, 7))
    timer = PublisherTick("r0", 1, PublishTick())
    told = [sent(client.handle(at, Expired(timer))) for at in (1.3, 1.6, 1.9, 2.2)]
    questions = [message for effects in told for _, message in effects if isinstance(message, Describe)]
    assert len(questions) == 1, "one question is enough; it goes round near replicas, far heads and seeds by itself"
    newer = ChainConfig("r0", 9, ("r0/x@h:7",))
    answer = client.handle(2.5, Received(FAR.head, described(questions[0].nonce, near=newer)))
    assert [to for to, message in sent(answer) if isinstance(message, OpenSession)] == ["r0/x@h:7"]


def test_a_question_is_answered_once() -> None:
    client = found()
    assert sent(client.handle(1.0, Ask(5, Why("t", 3), "r1"))) == [(FAR.tail, Why("t", 3))]
    answer = Because("t", 3, "row")
    assert told(client.handle(1.1, Received(FAR.tail, answer))) == [Answered(5, answer)]
    assert told(client.handle(1.1, Received(FAR.tail, answer))) == []


def test_a_feed_is_a_sign_of_life_and_one_for_nobody_is_stopped() -> None:
    client = found()
    ((source, _),) = sent(client.handle(1.0, Open(1, "s", 1, "", None, 3)))
    assert told(client.handle(1.1, Received(source, Feed(1, 1, (), 9)))) == [Heard(1, 1, 9)]
    assert sent(client.handle(1.2, Close(1))) == [(source, Unfollow(1))]
    assert sent(client.handle(1.3, Received(source, Feed(1, 1, (), 9)))) == [(source, Unfollow(1))]


# --- peers ------------------------------------------------------------------------------------------------


def batch(lo: int, count: int) -> Span:
    return Span.of("s", lo, data_rows(lo, None, [b"%d" % at for at in range(lo, lo + count)]))


def gossiped(client: ClientMachine, span: Span) -> Effects:
    client.handle(2.0, Received(NEAR.tail, Offer("s", span.hi)))
    return client.handle(2.0, Received(NEAR.tail, Know("s", (span,), span.hi)))


def test_a_peer_is_fed_by_a_replica_until_the_fabric_can_continue() -> None:
    client = found(peer=True)
    ((source, follow),) = sent(client.handle(1.0, Open(1, "s", 1, "", None, 3)))
    assert isinstance(follow, Follow)
    effects = client.handle(1.1, Received(source, Feed(1, 1, (batch(1, 4),), 5)))
    assert (source, Unfollow(1)) in sent(effects), "the fabric continues at 5"
    assert [item.span.hi for item in told(effects) if isinstance(item, Fed)] == [5]
    effects = gossiped(client, batch(5, 3))
    assert [(item.span.lo, item.span.hi) for item in told(effects) if isinstance(item, Fed)] == [(5, 8)]
    client.check()


def test_a_tap_that_is_not_taken_from_is_given_no_more_and_follows_a_replica_when_the_fabric_has_forgotten() -> None:
    client = found(peer=True)
    client.handle(1.0, Open(1, "s", -2, "", None, 3))
    assert client.fabric is not None
    given = 0
    for at in range(5, 105):
        given += sum(isinstance(item, Fed) for item in told(gossiped(client, batch(at, 1))))
    assert given == 32
    recv = client.fabric.client.fabric.streams["s"].recv
    while recv.spans[0].lo < 60:
        recv.rows -= recv.spans.popleft().rows.count
    effects = client.handle(3.0, Taken(1, 37))
    assert [message.lo for _, message in sent(effects) if isinstance(message, Follow)] == [37]
    client.check()


@pytest.mark.parametrize("where", ["seq > 6", ""])
def test_a_peer_filters_by_itself(where: str) -> None:
    client = found(peer=True)
    client.handle(1.0, Open(1, "s", -2, where, None, 3))
    (fed,) = [item for item in told(gossiped(client, batch(5, 4))) if isinstance(item, Fed)]
    assert fed.span.rows.numbers.tolist() == ([7, 8] if where else [5, 6, 7, 8])
    assert (fed.span.lo, fed.span.hi) == (5, 9)


# --- edges ------------------------------------------------------------------------------------------------

EDGES = tuple(f"r0/e{at}@h:{20 + at}" for at in range(5))


def listing(nonce: int, edges: tuple[str, ...], region: str = "r0") -> Description:
    return msgspec.structs.replace(described(nonce), region=region, edges=edges)


def test_a_clients_order_of_the_edges_is_its_own_and_keeps_when_one_comes_or_goes() -> None:
    firsts: Counter[str] = Counter()
    for at in range(1000):
        view = ClusterView(f"web-{at}", (), 0)
        view.home = "r0"
        assert view.learn_edges(listing(1, EDGES)) and sorted(view.edges) == sorted(EDGES)
        assert not view.learn_edges(listing(1, EDGES[::-1])), "the same ones"
        firsts[view.edges[0]] += 1
        before = view.edges
        for _ in range(2):
            view.learn_edges(listing(1, EDGES[1:]))
        assert view.edges == tuple(each for each in before if each != EDGES[0])
    assert min(firsts[edge] for edge in EDGES) > 150, "a fifth each"


def test_edges_of_other_regions_are_not_for_this_client() -> None:
    client = found()
    client.handle(1.0, Received(FAR.head, listing(1 << 62, ("r1/e0@h:30",), "r1")))
    assert client.view.edges == ()


def follows(effects: Effects) -> list[tuple[str, int]]:
    """Who is asked to feed which subscription."""
    return [(to, message.id) for to, message in sent(effects) if isinstance(message, Follow)]


def test_open_ended_subscriptions_are_fed_by_the_preferred_edge_and_no_others() -> None:
    client = found()
    plain, read, receipts = Open(1, "s", 1, "", None, 3), Open(3, "s", 1, "", None, 0, 9, 9), "_receipts/r0"
    ((replica, _),) = follows(client.handle(1.0, plain))
    client.handle(1.0, Open(2, "s", 1, "", "desk-7", 3))
    client.handle(1.0, read)
    client.handle(1.0, Open(4, receipts, 1, "", None, 3))
    effects = client.handle(2.0, Received(NEAR.tail, listing(1 << 62, EDGES)))
    first = client.view.edges[0]
    assert follows(effects) == [(first, 1)] and (replica, Unfollow(1)) in sent(effects)
    assert not follows(client.handle(3.0, Received(NEAR.tail, listing(1 << 62, EDGES)))), "nothing new"
    assert follows(client.handle(4.0, Open(5, "t", 1, "loc = 'NY'", None, 3))) == [(first, 5)]
    ((head, opening),) = sent(client.handle(4.0, Open(6, "t", 1, "", "desk-7", 3)))
    assert head in NEAR.replicas and isinstance(opening, OpenCursor), "its cursor is not at an edge"
    for each in (msgspec.structs.replace(read, id=7), Open(8, receipts, 1, "", None, 3)):
        ((source, _),) = follows(client.handle(4.0, each))
        assert source in NEAR.replicas
    assert [id for id, each in client.subscribers.items() if each.edges] == [1, 2, 5, 6]


def test_an_edge_that_one_description_lacks_is_still_there() -> None:
    client = found()
    client.handle(1.0, Received(NEAR.tail, listing(1 << 62, EDGES)))
    ((edge, _),) = follows(client.handle(2.0, Open(1, "s", 1, "", None, 3)))
    client.handle(2.0, Received(NEAR.head, listing(1 << 62, ())))
    assert set(client.view.edges) == set(EDGES), "a replica that has just started knows none"
    effects = client.handle(3.0, Received(NEAR.head, listing(1 << 62, ())))
    assert client.view.edges == () and (edge, Unfollow(1)) in sent(effects)
    ((replica, _),) = follows(effects)
    assert replica in NEAR.replicas


def test_a_subscription_whose_edge_is_gone_asks_the_next_edge_and_after_them_a_replica() -> None:
    client = found()
    client.handle(1.0, Received(NEAR.tail, listing(1 << 62, EDGES[:2])))
    ((first, _),) = follows(client.handle(2.0, Open(1, "s", 1, "", None, 3)))
    ((second, _),) = follows(client.handle(3.0, Lost(first)))
    ((third, _),) = follows(client.handle(4.0, Lost(second)))
    assert (first, second) == client.view.edges and third in NEAR.replicas
