"""Publishing (A1.1, A1.4, A1.12, A1.15, addLocalEvent of figure 1): numbers, order, exactly once."""

from __future__ import annotations

from paper.rig import Owner
from tidings.core.rows import CountedRows, data_rows
from tidings.protocols.kernel import Deliver, Received, Send
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.catalog import Define, StreamDef
from tidings.protocols.services.publishing import (
    PUBLISHERS,
    Acked,
    NotHead,
    OpenSession,
    Post,
    Publish,
    Published,
    Publisher,
    Publishers,
    PublishSettings,
    Rejected,
    SessionOpened,
)


def test_a1_15_the_proxy_assigns_the_next_sequence_numbers_beginning_with_1() -> None:
    owner = Owner()
    owner.publish(1, 3)
    assert owner.sync() == [Published(owner.session, 1, 1, 4)]
    owner.publish(4, 2)
    assert owner.sync() == [Published(owner.session, 4, 4, 6)]
    assert owner.proxy.log.histories["s"].horizon == 6


def test_a1_15_the_proxy_only_accepts_an_event_if_it_manages_its_stream() -> None:
    owner = Owner()
    assert [*owner.publish(1, 1, stream="far"), *owner.sync()] == [Rejected(owner.session, 1, "stream")]


def test_a1_1_an_event_is_published_once_publish_returns_which_is_not_before_the_tail_has_it() -> None:
    owner = Owner()
    assert owner.publish(1, 1) == []
    assert owner.proxy.log.histories["s"].horizon == 1
    assert owner.sync() == [Published(owner.session, 1, 1, 2)]


def test_a1_1_each_event_that_is_published_is_unique_a_retry_gets_the_same_numbers() -> None:
    owner = Owner()
    owner.publish(1, 2)
    owner.sync()
    assert owner.publish(1, 2) == [Published(owner.session, 1, 1, 3)]
    assert owner.rig.unsynced["y0"] == []


def test_a1_4_two_publishes_of_one_client_keep_their_order_whatever_overtakes() -> None:
    owner = Owner()
    assert owner.publish(3, 2) == [Rejected(owner.session, 3, "gap")]
    owner.publish(1, 2)
    owner.publish(3, 2)
    assert owner.sync() == [
        Published(owner.session, 1, 1, 3),
        Published(owner.session, 3, 3, 5),
    ]


def test_a1_41_who_publishes_to_a_replica_that_is_not_the_head_is_told_who_is() -> None:
    owner = Owner(replicas=("y1", "y0"))
    assert owner.publish(1, 1) == [NotHead(ChainConfig("y", 1, ("y1", "y0")))]


def test_a1_1_a_new_session_of_a_publisher_fences_the_older_one() -> None:
    owner = Owner()
    old = owner.session
    owner.hears(OpenSession("p", 8))
    (opened,) = owner.sync()
    assert isinstance(opened, SessionOpened) and opened.session > old
    assert [*owner.publish(1, 1), *owner.sync()] == [Rejected(old, 1, "fenced")]


def test_a1_1_a_retry_that_was_packed_differently_is_refused_not_guessed() -> None:
    owner = Owner()
    owner.publish(1, 2)
    owner.sync()
    assert [*owner.publish(1, 3), *owner.sync()] == [Rejected(owner.session, 1, "repacked")]


# --- what a publisher can do to itself and to others ----------------------------------------------------------


def test_a1_1_a_late_copy_of_an_older_opening_does_not_fence_the_session_in_force() -> None:
    owner = Owner()
    owner.hears(OpenSession("p", 8))
    (opened,) = owner.sync()
    assert isinstance(opened, SessionOpened)
    owner.hears(OpenSession("p", 7))
    owner.sync()
    owner.session = opened.session
    assert owner.publish(1, 1) == []
    assert owner.sync() == [Published(opened.session, 1, 1, 2)]


def test_a1_41_a_head_that_can_commit_nothing_refuses_nobody_for_good() -> None:
    owner = Owner(replicas=("y0", "y1"))  # y1 is silent: perhaps it leads another configuration by now
    opened_there = Publish("s", "q", 42, 1, CountedRows(1, 2, 10))
    assert owner.hears(opened_there) == []


def test_a1_41_a_head_that_can_commit_nothing_keeps_no_publisher() -> None:
    owner = Owner(replicas=("y0", "y1"))  # it has p's older session; the newer one was opened elsewhere
    assert owner.hears(Publish("s", "p", 10**12, 1, CountedRows(1, 2, 10))) == []


def test_a1_1_an_event_is_acknowledged_only_once_it_is_published_whatever_empty_batches_are_posted() -> None:
    owner = Owner()
    publisher = Publisher("p", ChainConfig("y", 1, ("y0",)), PublishSettings(), 7)
    publisher.handle(0.0, Received("y0", SessionOpened(7, owner.session)))
    sent = [*publisher.handle(0.0, Post("s", CountedRows(1, 1, 10)))]
    publisher.handle(0.0, Post("s", CountedRows(1, 2, 10)))  # lost on its way
    answers = [answer for send in sent if isinstance(send, Send) for answer in owner.hears(send.message)]
    for answer in [*answers, *owner.sync()]:
        effects = publisher.handle(0.0, Received("y0", answer))
        acked = [effect for effect in effects if isinstance(effect, Deliver) and isinstance(effect.item, Acked)]
        assert 1 in publisher.inflight or not acked


def test_a1_15_rows_that_do_not_go_with_the_stream_are_refused_at_the_door() -> None:
    owner = Owner()
    answers = owner.hears(Publish("s", "p", owner.session, 1, data_rows(1, None, [b"x"])))
    assert [type(answer) for answer in [*answers, *owner.sync()]] == [Rejected]


def test_a1_1_a_refused_batch_is_not_published_by_a_late_copy_that_would_fit_by_then() -> None:
    owner = Owner()
    assert [*owner.publish(1, 1, "new"), *owner.sync()] == [Rejected(owner.session, 1, "stream")]
    owner.hears(Define(1, "create", StreamDef("new", "y", counted=10)))
    owner.sync()
    new = owner.proxy.table.catalog.names["new"].id
    assert [*owner.publish(1, 1, new), *owner.sync()] == [Rejected(owner.session, 1, "stream")]
    assert owner.proxy.log.histories[new].horizon == 1


def test_a1_1_a_batch_is_refused_only_once_that_is_remembered() -> None:
    owner = Owner()
    assert owner.publish(1, 1, "new") == []
    heir = Publishers(PublishSettings())
    assert owner.sync() == [Rejected(owner.session, 1, "stream")]
    heir.load([span.rows for span in owner.proxy.log.histories[PUBLISHERS].know(1, 100)])
    assert heir.judge(1.0, Publish("s", "p", owner.session, 1, CountedRows(1, 2, 10))) == "stream"


def test_a1_1_what_came_before_a_refused_batch_is_answered_and_what_came_after_it_is_not_taken() -> None:
    owner = Owner()
    owner.publish(1, 2)
    owner.publish(3, 1, "new")
    assert owner.sync() == [Published(owner.session, 1, 1, 3), Rejected(owner.session, 3, "stream")]
    assert owner.publish(1, 2) == [Published(owner.session, 1, 1, 3)]
    assert owner.publish(4, 1) == [Rejected(owner.session, 4, "gap")]
    assert [*owner.publish(3, 1), *owner.sync()] == [Rejected(owner.session, 3, "stream")]
    owner.hears(OpenSession("p", 8))
    (opened,) = owner.sync()
    assert isinstance(opened, SessionOpened)
    owner.session = opened.session
    owner.publish(1, 1)
    assert owner.sync() == [Published(owner.session, 1, 3, 4)]


def test_a1_15_openings_too_wait_while_the_chain_is_full() -> None:
    owner = Owner(replicas=("y0", "y1"))
    for number in range(2000):
        owner.hears(OpenSession(f"q{number}", 1))
