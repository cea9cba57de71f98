"""Plain subscribers: fed by any replica, through a filter, exactly once and in order; cursors that resume."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from paper.rig import Owner
from tidings.core.filters import Filter, parse
from tidings.core.gc import GcPolicy
from tidings.core.history import History
from tidings.core.ids import NodeId
from tidings.core.lens import ALL, Lens
from tidings.core.rows import Rows, before_rows, data_rows
from tidings.core.span import Span
from tidings.protocols.brokers.feeds import FeedTick, ScanTick, Subscriptions
from tidings.protocols.brokers.messages import (
    EARLIEST,
    LATEST,
    AllConsumed,
    Consumed,
    Feed,
    FeedBeat,
    Follow,
    SubscriptionSettings,
    Unfollow,
    Unfollowed,
)
from tidings.protocols.brokers.subscriber import Ended, Fed, FollowTick, Learn, Lost, Save, Saved, Subscriber, Take
from tidings.protocols.kernel import Deliver, Effects, Expired, Received, Report, Send, SetTimer
from tidings.protocols.nodes.replica import MaintainTick, ReplicaSettings, StreamDef
from tidings.protocols.nodes.replica import Replica as Node
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.catalog import Define
from tidings.protocols.services.cursors import CURSORS, Cursor, CursorAt, Cursors, OpenCursor, SaveCursor
from tidings.protocols.services.publishing import NotHead

CHAIN = ChainConfig("r", 1, ("head", "middle", "tail"))


def rows(lo: int, *payloads: str) -> Rows:
    return data_rows(lo, None, [payload.encode() for payload in payloads])


def span(lo: int, *payloads: str) -> Span:
    return Span.of("s", lo, rows(lo, *payloads))


EVEN = f"seq IN ({', '.join(map(str, range(2, 1000, 2)))})"


def make_filter(stream: str, where: str) -> Filter:
    return parse(where, {})


class Replica(Subscriptions):
    """A replica with one stream "s"."""

    def __init__(self, **settings: int) -> None:
        self.history = History("s", GcPolicy.parse("none"))
        super().__init__({"s": self.history, "_inside": self.history}, make_filter, SubscriptionSettings(**settings))

    def commits(self, *spans: Span) -> list[Any]:
        for each in spans:
            self.history.accept(each)
        return self.fed(self.committed("s"))

    def hears(self, message: Any, src: NodeId = "c") -> list[Any]:
        return self.fed(self.handle(0.0, Received(src, message)))

    def fed(self, effects: Effects) -> list[Any]:
        """What was sent: (at, [(lo, hi, rows)]) of each feed, other messages as they are."""
        self.check()
        out: list[Any] = []
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Feed):
                feed = effect.message
                told = feed.told("s", ALL)
                out.append((feed.at, [(s.lo, s.hi, s.rows.numbers.tolist()) for s in told]))
            elif isinstance(effect, Send) and isinstance(effect.message, FeedBeat):
                told = [(each.at, [(s.lo, s.hi, []) for s in each.told("s", ALL)]) for each in effect.message.singly()]
                out.append(("beat", *told))
            elif isinstance(effect, Send):
                out.append(effect.message)
            elif isinstance(effect, Report):
                out.append(effect.name)
        return out


# --- the replica ------------------------------------------------------------------------------------------


def test_a_follower_is_fed_what_is_there_and_what_comes() -> None:
    replica = Replica()
    replica.commits(span(1, "a", "b"))
    assert replica.hears(Follow(1, "s", EARLIEST)) == [(1, [(1, 3, [1, 2])])]
    assert replica.commits(span(3, "c")) == [(3, [(3, 4, [3])])]


@pytest.mark.parametrize(("lo", "at"), [(LATEST, 3), (2, 2), (3, 3), (7, 7)])
def test_a_follower_begins_where_it_wants(lo: int, at: int) -> None:
    replica = Replica()
    replica.commits(span(1, "a", "b"))
    ((begun, _),) = replica.hears(Follow(1, "s", lo))
    assert begun == at


def test_a_follower_from_a_number_that_is_still_to_come_is_fed_from_there() -> None:
    replica = Replica()
    replica.hears(Follow(1, "s", 3))
    assert replica.commits(span(1, "a", "b")) == []
    assert replica.commits(span(3, "c")) == [(3, [(3, 4, [3])])]


@pytest.mark.parametrize(
    "follow", [Follow(1, "t", 1), Follow(1, "_inside", 1), Follow(1, "s", 0), Follow(1, "s", 1, "odd")]
)
def test_what_cannot_be_followed_is_refused_with_the_reason(follow: Follow) -> None:
    (refusal,) = Replica().hears(follow)
    assert isinstance(refusal, Unfollowed) and refusal.id == 1 and refusal.reason


def test_whoever_consumes_from_a_stream_that_was_deleted_meanwhile_is_told() -> None:
    replica = Replica()
    replica.commits(span(1, "a", "b"))
    replica.hears(Follow(1, "s", EARLIEST))
    del replica.histories["s"]  # type: ignore[attr-defined]
    (told,) = replica.hears(Consumed(1, 3))
    assert isinstance(told, Unfollowed) and "deleted" in told.reason
    assert replica.hears(Consumed(1, 3)) == []


def test_a_replica_takes_so_many_subscriptions_and_no_more() -> None:
    replica = Replica(subscriptions=1)
    replica.hears(Follow(1, "s", 1))
    assert replica.hears(Follow(1, "s", 1)) == [(1, [])]  # again is not another one
    (refusal,) = replica.hears(Follow(2, "s", 1))
    assert isinstance(refusal, Unfollowed)


def test_who_does_not_consume_is_sent_a_window_and_later_what_collection_has_left() -> None:
    replica = Replica(window=2, chunk_rows=1)
    replica.hears(Follow(1, "s", 1))
    fed = [(1, [(1, 2, [1])]), (2, [(2, 3, [2])]), "subscriber_lagging"]
    assert replica.commits(span(1, "a", "b", "c", "d")) == fed
    collected = replica.commits(Span.of("s", 5, before_rows(5, [4])))
    assert collected == []
    rest = [(3, [(3, 5, [4])]), (5, [(5, 6, [5])])]
    assert replica.hears(Consumed(1, 3)) == rest, "3 is collected: coverage alone"
    assert replica.hears(Consumed(1, 6)) == ["subscriber_live"]


def test_what_a_filter_drops_leaves_coverage_that_comes_with_the_next_row() -> None:
    replica = Replica()
    replica.hears(Follow(1, "s", 1, EVEN))
    assert replica.commits(span(1, "a")) == []
    assert replica.commits(span(2, "b")) == [(1, [(1, 2, []), (2, 3, [2])])]


def test_coverage_without_rows_comes_with_the_beat() -> None:
    replica = Replica()
    replica.hears(Follow(1, "s", 1, EVEN))
    replica.commits(span(1, "a"))
    assert beats(replica, 2) == [[("beat", (1, [(1, 2, [])]))], [("beat", (2, []))]], "then it is a sign of life"


def test_who_answers_no_beat_is_given_up() -> None:
    replica = Replica(patience=2)
    replica.commits(span(1, "a"))
    replica.hears(Follow(1, "s", 1))
    for _ in range(3):
        said = replica.fed(replica.handle(0.0, Expired(FeedTick())))
    assert said == ["subscriber_given_up"] and not replica.positions


def beats(replica: Replica, count: int) -> list[Any]:
    """What a replica says at each of so many beats."""
    return [replica.fed(replica.handle(0.0, Expired(FeedTick()))) for _ in range(count)]


def test_who_has_nothing_to_say_for_long_is_asked_and_given_up_if_it_does_not_answer() -> None:
    replica = Replica(patience=2, ask=3)
    replica.hears(Follow(1, "s", LATEST))
    life, asked = [("beat", (1, []))], [("beat", (0, []))]
    assert beats(replica, 7) == [life, life, life, asked, asked, ["subscriber_given_up"], []]
    assert not replica.positions


@pytest.mark.parametrize("answer", [Consumed(1, 0), Consumed(1, 1), Follow(1, "s", 1)])
def test_who_answers_when_it_is_asked_keeps_its_place_and_is_fed_on(answer: Any) -> None:
    replica = Replica(patience=2, ask=3)
    replica.hears(Follow(1, "s", LATEST))
    for _ in range(9):
        assert beats(replica, 5)[-1] == [("beat", (0, []))]
        replica.hears(answer)
    assert replica.commits(span(1, "a")) == [(1, [(1, 2, [1])])]
    assert beats(replica, 1) == [[("beat", (2, []))]], "the silence before does not count against it"


def test_who_leaves_is_forgotten() -> None:
    replica = Replica()
    replica.hears(Follow(1, "s", 1))
    replica.hears(Follow(2, "s", 1))
    replica.hears(Unfollow(1))
    assert list(replica.positions) == [("c", 2)]
    replica.hears(Unfollow(2))
    assert not replica.positions and replica.commits(span(1, "a")) == []


def test_a_false_claim_to_have_consumed_moves_nothing() -> None:
    replica = Replica(window=1)
    replica.commits(span(1, "a"), span(2, "b"))
    replica.hears(Follow(1, "s", 1))
    assert replica.hears(Consumed(1, 99)) == replica.hears(Consumed(7, 2)) == []


def test_what_no_commit_told_of_is_fed_at_the_next_beat() -> None:
    replica = Replica()
    replica.hears(Follow(1, "s", 1))
    replica.history.accept(span(1, "a", "b"))  # as when a snapshot is installed
    assert beats(replica, 2) == [[(1, [(1, 3, [1, 2])]), ("beat", (3, []))], [("beat", (3, []))]]


def test_followers_of_a_deleted_stream_are_told() -> None:
    replica = Replica()
    replica.hears(Follow(1, "s", 1))
    del replica.histories["s"]  # type: ignore[attr-defined]
    (told,) = [m for m in replica.fed(replica.handle(0.0, Expired(FeedTick()))) if isinstance(m, Unfollowed)]
    assert "deleted" in told.reason


# --- the subscriber ----------------------------------------------------------------------------------------


def subscriber(lo: int = 1, name: str | None = None, holder: int = 3) -> Subscriber:
    subscriber = Subscriber(1, "s", lo, "", name, CHAIN, SubscriptionSettings(), holder)
    subscriber.start(0.0)
    return subscriber


def feed(at: int, *spans: Span, id: int = 1) -> Feed:
    return Feed(id, at, spans, 99)


def delivered(effects: Effects) -> list[int]:
    items = [effect.item for effect in effects if isinstance(effect, Deliver)]
    return [seq for item in items if isinstance(item, Fed) for seq in item.span.rows.numbers.tolist()]


def messages(effects: Effects) -> list[tuple[NodeId, Any]]:
    return [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]


def watch(client: Subscriber, begin: float, end: float) -> list[tuple[float, NodeId, Any]]:
    """Let a subscriber's timer run out every 0.2 s; what it sends, and when."""
    times = [round(begin + 0.2 * step, 1) for step in range(round((end - begin) / 0.2) + 1)]
    return [(at, *sent) for at in times if at <= end for sent in messages(client.handle(at, Expired(FollowTick())))]


def test_a_subscriber_delivers_the_next_span_at_its_horizon_and_nothing_else() -> None:
    client = subscriber()
    assert delivered(client.handle(0.1, Received("head", feed(1, span(1, "a", "b"))))) == [1, 2]
    assert delivered(client.handle(0.1, Received("head", feed(1, span(1, "a", "b"))))) == []
    assert delivered(client.handle(0.1, Received("head", feed(2, span(2, "b", "c"))))) == [3]


@pytest.mark.parametrize("lo", [1, LATEST])
def test_a_subscriber_that_is_asked_whether_it_is_there_says_so_and_nothing_changes(lo: int) -> None:
    client = subscriber(lo)
    horizon = client.horizon
    assert client.handle(0.1, Received("head", feed(0))) == [Send("head", Consumed(1, 0))]
    assert client.horizon == horizon
    client.handle(0.2, Received("head", feed(1, span(1, "a"))))
    client.handle(0.2, Take(2))
    assert client.handle(0.3, Received("head", feed(0))) == [Send("head", Consumed(1, 2))]


def test_a_gap_is_asked_for_again() -> None:
    client = subscriber()
    client.handle(0.1, Received("head", feed(1, span(1, "a"))))
    effects = client.handle(0.2, Received("head", feed(3, span(3, "c"))))
    assert delivered(effects) == [] and messages(effects) == [("head", Follow(1, "s", 2))]


def test_a_sign_of_life_shows_that_something_was_lost() -> None:
    client = subscriber()
    client.handle(0.1, Received("head", feed(1, span(1, "a"))))
    assert messages(client.handle(0.2, Received("head", feed(4)))) == [("head", Follow(1, "s", 2))]


def test_a_replica_that_is_silent_or_lost_is_left_for_the_next_at_the_own_horizon() -> None:
    client = subscriber()
    client.handle(0.1, Received("head", feed(1, span(1, "a"))))
    assert watch(client, 0.2, 2.3) == [(2.2, "middle", Follow(1, "s", 2))]
    assert messages(client.handle(2.3, Lost("middle"))) == [("tail", Follow(1, "s", 2))]
    assert client.handle(2.3, Lost("head")) == ()  # of no interest any more


def test_a_replica_that_was_left_is_told_so() -> None:
    client = subscriber()
    watch(client, 0.0, 2.3)
    client.handle(2.3, Received("middle", feed(1)))
    assert messages(client.handle(2.3, Received("head", feed(1, span(1, "a"))))) == [("head", Unfollow(1))]


def test_a_late_answer_counts_while_nobody_else_has_given_one() -> None:
    client = subscriber()
    client.handle(0.1, Received("head", feed(1, span(1, "a"))))
    assert messages(client.handle(0.2, Lost("head"))) == [("middle", Follow(1, "s", 2))]
    assert watch(client, 0.2, 0.9) == [(0.8, "tail", Follow(1, "s", 2))]  # the middle is slow, not gone
    assert delivered(client.handle(0.9, Received("middle", feed(2, span(2, "b"))))) == [2]
    assert delivered(client.handle(1.0, Received("middle", feed(3, span(3, "c"))))) == [3]
    assert messages(client.handle(1.1, Received("tail", feed(2, span(2, "b"))))) == [("tail", Unfollow(1))]


def test_however_slow_all_replicas_are_a_subscriber_gets_on() -> None:
    """Each answer takes longer than it waits for one: with answers thrown away it would ask in a circle for ever."""
    client = subscriber()
    client.handle(0.0, Received("head", feed(1, span(1, "a"))))
    under_way = [(2.5, to, ask) for to, ask in messages(client.handle(0.0, Lost("head")))]
    for step in range(1, 200):
        now = round(0.1 * step, 1)
        if step % 2 == 0:
            under_way += [(now + 2.5, to, ask) for _, to, ask in watch(client, now, now)]
        for due, to, ask in [each for each in under_way if each[0] <= now]:
            under_way.remove((due, to, ask))
            if isinstance(ask, Follow) and to != "head":
                client.handle(now, Received(to, feed(ask.lo, span(ask.lo, "x"))))
    assert client.horizon is not None and client.horizon > 2


def test_the_pauses_between_replicas_that_do_not_answer_grow() -> None:
    client = subscriber()
    client.handle(0.0, Lost("head"))
    asked = watch(client, 0.0, 8.0)
    assert [(at, to) for at, to, _ in asked] == [(0.6, "tail"), (2.8, "head"), (5.0, "middle"), (7.2, "tail")]


def test_who_has_slept_does_not_take_its_own_absence_for_silence() -> None:
    client = subscriber()
    client.handle(0.1, Received("head", feed(1, span(1, "a"))))
    assert messages(client.handle(5.0, Expired(FollowTick()))) == []
    assert delivered(client.handle(5.0, Received("head", feed(2, span(2, "b"))))) == [2]
    assert watch(client, 5.2, 7.0) == []


def test_a_replica_that_remembers_an_older_position_is_asked_again() -> None:
    client = subscriber()
    client.handle(0.1, Received("head", feed(1, span(1, "a", "b", "c"))))
    effects = client.handle(0.2, Received("head", feed(2)))
    assert messages(effects) == [("head", Follow(1, "s", 4))]


def test_a_subscriber_leaves_a_replica_that_is_out_of_the_chain_at_once() -> None:
    client = subscriber()
    client.handle(0.1, Received("head", feed(1, span(1, "a"))))
    moved = client.handle(0.2, Learn(ChainConfig("r", 2, ("middle", "tail"))))
    assert [message for _, message in messages(moved)] == [Follow(1, "s", 2)]
    assert messages(client.handle(0.3, Received("head", feed(2, span(2, "b"))))) == [("head", Unfollow(1))]


def test_a_subscriber_to_the_end_begins_where_the_replica_says() -> None:
    client = subscriber(LATEST)
    client.handle(0.1, Received("head", feed(17)))
    assert client.horizon == 17


def test_a_new_chain_is_learned_without_leaving_a_replica_that_is_still_in_it() -> None:
    client = subscriber()
    client.handle(0.1, Learn(ChainConfig("r", 2, ("x", "head"))))
    assert client._source() == "head"


def test_a_refusal_ends_the_subscription() -> None:
    client = subscriber()
    effects = client.handle(0.1, Received("head", Unfollowed(1, "no such stream")))
    assert Deliver(Ended(1, "no such stream")) in effects
    assert client.handle(0.2, Received("head", feed(1, span(1, "a")))) == ()


def test_who_asks_again_while_something_is_on_its_way_is_behind_once_and_goes_on() -> None:
    """A connection is lost, and what was sent over it arrives all the same, before the answer of the new one."""
    replica = Replica()
    head = ChainConfig("r", 1, ("head",))
    client = Subscriber(1, "s", EARLIEST, EVEN, None, head, SubscriptionSettings(), 0)

    def exchange(asked: Effects) -> list[Any]:
        answers = [each for _, message in messages(asked) for each in replica.handle(0.0, Received("c", message))]
        return [client.handle(0.1, Received("head", each.message)) for each in answers if isinstance(each, Send)]

    exchange(client.start(0.0))
    replica.commits(span(1, "a"))  # nothing that passes the filter: it is told at the beat
    sent = [each.message for each in replica.handle(0.1, Expired(FeedTick())) if isinstance(each, Send)]
    again = client.handle(0.1, Lost("head"))
    for message in sent:
        client.handle(0.1, Received("head", message))
    assert client.horizon == 2
    (behind,) = exchange(again)
    assert Report("subscription_behind") in behind
    ((_, followed),) = messages(behind)
    assert isinstance(followed, Follow) and followed.lo == 2
    assert not [each for effects in exchange(behind) for each in effects if isinstance(each, Report)]
    assert replica.commits(span(2, "b")) == [(2, [(2, 3, [2])])]


def test_a_durable_subscription_begins_at_its_cursor_and_saves_what_is_processed() -> None:
    client = subscriber(name="desk")
    assert messages(client.start(0.0)) == [("head", OpenCursor("desk", "s", 3))]
    begun = client.handle(0.1, Received("head", CursorAt("desk", "s", 3, 5)))
    assert messages(begun) == [("head", Follow(1, "s", 5))]
    client.handle(0.2, Received("head", feed(5, span(5, "e"))))
    assert messages(client.handle(0.3, Expired(FollowTick()))) == []  # nothing is processed yet
    client.handle(0.3, Save(6))
    assert messages(client.handle(0.5, Expired(FollowTick()))) == [("head", SaveCursor("desk", "s", 3, 6))]
    saved = client.handle(0.6, Received("head", CursorAt("desk", "s", 3, 6)))
    assert saved == [Deliver(Saved(1, 6))]
    assert messages(client.handle(0.7, Expired(FollowTick()))) == []


def test_a_durable_subscription_without_a_cursor_begins_where_it_wants() -> None:
    client = subscriber(LATEST, name="desk")
    begun = client.handle(0.1, Received("head", CursorAt("desk", "s", 3, 0)))
    assert messages(begun) == [("head", Follow(1, "s", LATEST))]


def test_who_holds_the_name_no_longer_stops() -> None:
    client = subscriber(name="desk")
    client.handle(0.1, Received("head", CursorAt("desk", "s", 3, 0)))
    effects = client.handle(0.2, Received("head", CursorAt("desk", "s", 9, 4)))
    assert [e.item.superseded for e in effects if isinstance(e, Deliver)] == [True]


def test_an_opening_that_was_not_for_the_head_goes_to_the_head() -> None:
    client = subscriber(name="desk")
    effects = client.handle(0.1, Received("head", NotHead(ChainConfig("r", 2, ("tail", "middle")))))
    assert messages(effects) == [("tail", OpenCursor("desk", "s", 3))]


# --- cursors ---------------------------------------------------------------------------------------------


def test_cursors_move_forward_for_their_holder_alone() -> None:
    table = Cursors()
    assert table.receive("c", OpenCursor("n", "s", 5)) == (CursorAt("n", "s", 5, 0), True)
    assert table.receive("c", OpenCursor("n", "s", 5)) == (CursorAt("n", "s", 5, 0), False)
    assert table.receive("c", SaveCursor("n", "s", 5, 9)) == (CursorAt("n", "s", 5, 9), True)
    assert table.receive("c", SaveCursor("n", "s", 5, 7)) == (CursorAt("n", "s", 5, 9), False)
    assert table.receive("c", OpenCursor("n", "s", 8)) == (CursorAt("n", "s", 8, 9), True)
    assert table.receive("c", SaveCursor("n", "s", 5, 12)) == (CursorAt("n", "s", 8, 9), False)


def test_a_new_head_reads_the_cursors_from_the_stream() -> None:
    table = Cursors()
    written = []
    for at, message in enumerate([OpenCursor("n", "s", 5), SaveCursor("n", "s", 5, 9), OpenCursor("m", "s", 1)], 1):
        table.receive("c", message)
        written.append(table.rows(at, message.name, message.stream, 0.0))
    fresh = Cursors()
    fresh.load(written)
    assert fresh.entries == table.entries == {("n", "s"): Cursor(5, 9, "c"), ("m", "s"): Cursor(1, 0, "c")}


def test_of_two_who_open_a_name_with_the_same_number_one_has_to_take_another() -> None:
    table = Cursors()
    table.receive("c", OpenCursor("n", "s", 5))
    assert table.receive("d", OpenCursor("n", "s", 5)) == (CursorAt("n", "s", 6, 0), False)
    assert table.receive("c", SaveCursor("n", "s", 5, 9)) == (CursorAt("n", "s", 5, 9), True)
    assert table.receive("c", OpenCursor("n", "s", 5)) == (CursorAt("n", "s", 5, 9), False), "its own retry"
    assert table.receive("d", OpenCursor("n", "s", 8)) == (CursorAt("n", "s", 8, 9), True)
    assert table.receive("c", SaveCursor("n", "s", 5, 12)) == (CursorAt("n", "s", 8, 9), False)


def test_only_what_somebody_opened_is_remembered() -> None:
    table = Cursors()
    assert table.receive("c", SaveCursor("n", "s", 5, 9)) == (CursorAt("n", "s", 0, 0), False)
    assert table.receive("c", SaveCursor("n", "s", 0, 9)) == (CursorAt("n", "s", 0, 0), False)
    assert table.entries == {}


def test_cursors_are_bounded_in_number_and_length() -> None:
    table = Cursors(SubscriptionSettings(cursors=1))
    for name in ("", "x" * 1025):
        answer, changed = table.receive("c", OpenCursor(name, "s", 5))
        assert "1 to 1024 characters" in answer.refused and not changed
    table.receive("c", OpenCursor("n", "s", 5))
    answer, changed = table.receive("c", OpenCursor("m", "s", 5))
    assert "takes no more" in answer.refused and not changed
    assert table.receive("c", OpenCursor("n", "s", 6)) == (CursorAt("n", "s", 6, 0), True), "those that are there go on"
    table.check()


def test_a_cursor_of_a_stream_that_is_not_there_is_refused_and_costs_nothing() -> None:
    owner = Owner()
    for message in (OpenCursor("n", "none", 5), SaveCursor("m", "none", 0, 9)):
        (answer,) = [*owner.hears(message), *owner.sync()]
        assert isinstance(answer, CursorAt) and answer.refused and answer.unknown
    assert owner.proxy.cursors.entries == {} and owner.proxy.log.ends[CURSORS] == 1


def test_cursors_of_a_deleted_stream_go_and_those_of_others_stay() -> None:
    owner, swept = Owner(), SubscriptionSettings().swept
    owner.hears(Define(1, "create", StreamDef("t", "y")))
    owner.sync()
    t = owner.proxy.table.catalog.names["t"].id
    for number in range(2 * swept):
        owner.hears(OpenCursor(f"n{number}", t, 5))
        if number % 500 == 0:
            owner.hears(OpenCursor(f"n{number}", "s", 5))
            owner.sync()
    owner.sync()
    owner.hears(Define(2, "delete", StreamDef("t", "y")))
    owner.sync()
    history, left = owner.proxy.log.histories[CURSORS], owner.proxy.cursors.entries
    assert len(left) == 5 and history.live == 2 * swept + 5
    for _ in range(5):
        owner.rig.expire(MaintainTick(), "y0")
        owner.sync()
    assert history.live <= swept + 2 * 5
    heir = Cursors()
    heir.load([span.rows for span in history.know(1, history.horizon)], lambda stream: stream != t)
    assert heir.entries == left


def test_a_durable_subscription_waits_for_a_new_stream_and_ends_if_there_is_none() -> None:
    refused = CursorAt("desk", "s", 0, 0, "stream 's' is unknown here", unknown=True)
    client = subscriber(name="desk")
    assert client.handle(0.1, Received("head", refused)) == []
    assert [message for _, _, message in watch(client, 0.2, 0.8)] == [OpenCursor("desk", "s", 3)]
    effects = client.handle(3.1, Received("head", refused))
    assert Deliver(Ended(1, "stream 's' is unknown here", gone=True)) in effects


def test_a_durable_subscription_that_is_refused_ends_with_the_reason() -> None:
    client = subscriber(name="desk")
    assert Deliver(Ended(1, "full")) in client.handle(0.1, Received("head", CursorAt("desk", "s", 0, 0, "full")))


def test_a_durable_subscription_whose_stream_was_deleted_is_told_by_whoever_feeds_it() -> None:
    client = subscriber(name="desk")
    client.handle(0.1, Received("head", CursorAt("desk", "s", 3, 5)))
    assert client.handle(9.0, Received("head", CursorAt("desk", "s", 0, 0, "unknown", unknown=True))) == ()


# --- both ends, with a bad network between them -----------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_every_row_that_passes_is_delivered_once_and_in_order_whatever_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    replicas = {name: Replica(window=3, chunk_rows=4) for name in CHAIN.replicas}
    where = rng.choice(["", EVEN])
    client = Subscriber(1, "s", EARLIEST, where, None, CHAIN, SubscriptionSettings(window=3), rng.randrange(9))
    wire: list[tuple[NodeId, NodeId, Any]] = []
    got: list[int] = []
    now, published = 0.0, 1

    def carry(src: NodeId, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Send) and rng.random() > 0.2:
                wire.append((src, effect.to, effect.message))
            elif isinstance(effect, Deliver) and isinstance(effect.item, Fed):
                got.extend(effect.item.span.rows.numbers.tolist())
                carry("c", client.handle(now, Received("c", Feed(2, 1, (), 1))))
                carry("c", client.handle(now, Take(effect.item.span.hi)))

    carry("c", client.start(now))
    for step in range(1500):
        now += 0.02
        if step < 600 and rng.random() < 0.3:
            batch = span(published, *["x"] * rng.randint(1, 5))
            published = batch.hi
            for name, replica in replicas.items():
                replica.history.accept(batch)
                carry(name, replica.committed("s"))
        for _ in range(min(3, len(wire))):
            src, to, message = wire.pop(0 if rng.random() < 0.9 else rng.randrange(len(wire)))
            machine: Any = client if to == "c" else replicas[to]
            carry(to, machine.handle(now, Received(src, message)))
        if step % 25 == 0:
            for name, replica in replicas.items():
                carry(name, [e for e in replica.handle(now, Expired(FeedTick())) if not isinstance(e, SetTimer)])
            carry("c", [e for e in client.handle(now, Expired(FollowTick())) if not isinstance(e, SetTimer)])
    expected = np.arange(1, published)
    assert published > 100 and client.horizon == published
    assert got == (expected[expected % 2 == 0] if where else expected).tolist()


# --- slow subscribers, lost replicas, new streams -----------------------------------------------------------


def test_a_slow_subscriber_answers_signs_of_life_and_is_not_given_up() -> None:
    replica = Replica(patience=3)
    replica.handle(0.0, Received("c", Follow(1, "s", EARLIEST)))
    replica.commits(span(1, "a"))
    client = subscriber()
    client.handle(0.1, Received("head", feed(1, span(1, "a"))))
    for _ in range(10):
        replica.handle(0.0, Expired(FeedTick()))
        for _, answer in messages(client.handle(0.2, Received("head", feed(2)))):
            assert answer == Consumed(1, 1)
            replica.handle(0.3, Received("c", answer))
    assert len(replica.positions) == 1
    for _ in range(5):
        replica.handle(0.0, Expired(FeedTick()))
    assert len(replica.positions) == 0, "one that does not answer is"


def test_what_was_consumed_is_said_once_more_and_an_idle_subscriber_says_nothing() -> None:
    client = subscriber()
    client.settings = SubscriptionSettings(window=4)
    client.handle(0.1, Received("head", feed(1, span(1, "a"))))
    assert messages(client.handle(0.2, Take(2))) == [("head", Consumed(1, 2))]
    assert messages(client.handle(0.3, Received("head", feed(2)))) == [("head", Consumed(1, 2))]
    assert messages(client.handle(0.4, Received("head", feed(2)))) == []


def test_a_subscriber_that_does_not_take_asks_nobody_for_more() -> None:
    client = subscriber()
    client.settings = SubscriptionSettings(window=2)
    for at in (1, 2):
        client.handle(0.1, Received("head", feed(at, span(at, "x"))))
    assert messages(client.handle(0.2, Lost("head"))) == []
    assert messages(client.handle(0.3, Take(2))) == [("middle", Follow(1, "s", 3))]


def test_windows_that_were_cut_differently_do_not_add_up() -> None:
    """It asks again and again over a slow link, and then all the answers come, each cut where the stream ended then."""
    client = subscriber()
    client.settings = SubscriptionSettings(window=2)
    for hi in range(2, 8):  # seed 1374
        client.handle(0.1, Received("head", feed(1, span(1, *["x"] * (hi - 1)))))
        client.check()
    assert client.horizon == 5 and len(client.ahead) == 4
    assert messages(client.handle(0.2, Take(3))) == []
    assert messages(client.handle(0.3, Take(4))) == [("head", Follow(1, "s", 5))]
    assert delivered(client.handle(0.4, Received("head", feed(5, span(5, "x", "x"))))) == [5, 6]


def test_bytes_in_flight_are_bounded_too() -> None:
    replica = Replica(window_bytes=1)
    replica.commits(span(1, "a"))
    replica.handle(0.0, Received("c", Follow(1, "s", EARLIEST)))
    assert replica.commits(span(2, "b")) == [], "one message is under way"
    (more,) = replica.fed(replica.handle(0.1, Received("c", Consumed(1, 2))))
    assert more == (2, [(2, 3, [2])])


def test_a_stream_that_is_not_there_yet_is_asked_for_again_for_a_while() -> None:
    client = subscriber()
    unknown = Received("head", Unfollowed(1, "stream 's' is unknown here", True))
    assert messages(client.handle(0.1, unknown)) == []
    assert messages(client.handle(0.7, Expired(FollowTick()))) == [("middle", Follow(1, "s", 1))]
    assert not client.over
    effects = client.handle(9.0, Received("middle", Unfollowed(1, "stream 's' is unknown here", True)))
    assert [e.item for e in effects if isinstance(e, Deliver)] == [Ended(1, "stream 's' is unknown here", gone=True)]


def test_whoever_opens_a_name_is_newer_than_its_holder_whatever_the_clocks_say() -> None:
    client = subscriber(name="desk")
    effects = client.handle(0.1, Received("head", CursorAt("desk", "s", 50, 7)))
    ((_, opened),) = messages(effects)
    assert isinstance(opened, OpenCursor) and opened.holder > 50


def test_a_cursor_that_nobody_saves_is_taken_to_another_replica() -> None:
    client = subscriber(name="desk")
    client.handle(0.1, Received("head", CursorAt("desk", "s", 3, 1)))
    client.handle(0.1, Save(2))
    asked = set()
    for at in range(10):
        client.heard = float(at)
        asked |= {to for to, message in messages(client.handle(float(at), Expired(FollowTick())))}
    assert asked == {"head", "middle"}


@pytest.mark.parametrize("holder", [0, 2], ids=["nobody has it", "somebody else opened it since"])
def test_a_cursor_that_the_region_has_forgotten_is_opened_and_saved_again(holder: int) -> None:
    client, table = subscriber(name="desk"), Cursors()
    client.handle(0.1, Received("head", CursorAt("desk", "s", 3, 1)))
    client.handle(0.2, Save(9))
    client.handle(0.3, Received("head", CursorAt("desk", "s", 3, 9)))
    client.handle(0.4, Save(10))
    if holder:
        table.receive("other", OpenCursor("desk", "s", holder))
    asked = messages(client.handle(0.5, Expired(FollowTick())))
    for at in range(3):
        for _, message in asked:
            assert isinstance(message, OpenCursor | SaveCursor)
            answer, _ = table.receive("c", message)
            asked = messages(client.handle(0.6 + at, Received("head", answer)))
        asked = asked or messages(client.handle(0.7 + at, Expired(FollowTick())))
    assert table.entries == {("desk", "s"): Cursor(3, 10, "c")}


def test_a_prompt_acknowledgement_is_saved_at_once() -> None:
    client = subscriber(name="desk")
    client.handle(0.1, Received("head", CursorAt("desk", "s", 3, 1)))
    assert messages(client.handle(0.2, Save(4, True))) == [("head", SaveCursor("desk", "s", 3, 4))]


def test_a_filter_on_a_stream_that_only_counts_is_refused() -> None:
    streams = [StreamDef("counts", "r", counted=10)]
    replica = Node("p", "r", "config", streams, {}, ReplicaSettings(), [], random.Random(1))
    (refusal,) = replica.handle(0.0, Received("c", Follow(1, "counts", EARLIEST, "seq > 3")))
    assert isinstance(refusal, Send) and isinstance(refusal.message, Unfollowed)
    assert "nothing to filter by" in refusal.message.reason


def test_a_head_that_does_not_know_yet_that_it_is_one_is_not_asked_again_at_once() -> None:
    """Whoever answers each answer with another question keeps both sides busy for nothing."""
    client = subscriber(name="desk")
    older = ChainConfig(
        client.membership.region, client.membership.epoch - 1, tuple(reversed(client.membership.replicas))
    )
    assert messages(client.handle(0.1, Received(client.membership.head, NotHead(older)))) == []
    ((to, asked),) = messages(client.handle(0.1, Received(client.membership.tail, NotHead(client.membership))))
    assert to == client.membership.head and isinstance(asked, OpenCursor)


# --- many subscriptions -------------------------------------------------------------------------------------


def shared(replica: Replica, *spans: Span) -> list[tuple[int, Feed]]:
    """What each subscription is sent when spans are committed as they came."""
    for each in spans:
        replica.history.accept(each)
    effects = replica.committed("s", spans)
    replica.check()
    return [(e.message.id, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, Feed)]


def test_subscriptions_that_keep_up_share_what_they_are_sent_and_others_cost_nothing() -> None:
    replica = Replica()
    for id, where in enumerate(["", "", "seq = 2", "seq = 2", "seq IN (1, 2)", "seq = 9"], 1):
        replica.hears(Follow(id, "s", EARLIEST, where))
    batch = span(1, "a", "b", "c")
    fed = dict(shared(replica, batch))
    assert fed.keys() == {1, 2, 3, 4, 5}
    assert fed[1].spans is fed[2].spans and fed[1].spans[0] is batch, "uncopied"
    assert fed[3].spans is fed[4].spans
    assert fed[5].spans[1] is fed[3].spans[0], "an event is cut out once for all filters that it passes"
    told = [(each.lo, each.hi, each.rows.numbers.tolist()) for each in fed[5].told("s", Lens("x"))]
    assert told == [(1, 4, [1, 2])], "one span for the subscriber, coverage behind the last row included"


def test_many_events_for_one_filter_are_copied_once() -> None:
    replica = Replica()
    replica.hears(Follow(1, "s", EARLIEST, EVEN))
    replica.hears(Follow(2, "s", EARLIEST, EVEN))
    fed = dict(shared(replica, span(1, *["x"] * 40)))
    assert len(fed[1].spans) == 1 and fed[1].spans is fed[2].spans
    assert fed[1].spans[0].rows.numbers.tolist() == list(range(2, 41, 2))


def test_what_is_lost_is_told_through_every_filter() -> None:
    replica = Replica()
    for id, where in enumerate(["", "seq = 9", EVEN], 1):
        replica.hears(Follow(id, "s", EARLIEST, where))
    fed = dict(shared(replica, Span.declared_lost("s", 1, 4)))
    assert {id: feed.spans[0].lost for id, feed in fed.items()} == dict.fromkeys((1, 2, 3), ((1, 4),))


def test_one_that_lags_is_fed_from_the_history_and_is_live_again_when_it_has_caught_up() -> None:
    replica = Replica(window=2)
    replica.hears(Follow(1, "s", EARLIEST, EVEN))
    replica.hears(Follow(2, "s", EARLIEST))
    for number in range(1, 9):
        replica.commits(span(number, "x"))
        replica.hears(Consumed(2, number + 1))
    first, second = replica.positions["c", 1], replica.positions["c", 2]
    assert second.live and not first.live and first.lagging, "nobody waits for the slow one"
    fed = replica.hears(Consumed(1, 5))
    assert fed == [(5, [(5, 9, [6, 8])]), "subscriber_live"] and first.live
    fed = replica.commits(span(9, "x"), span(10, "x"))
    together = [(9, [(9, 11, [9, 10])]), (9, [(9, 10, []), (10, 11, [10])])]
    assert fed == [*together, "subscriber_lagging"]


def test_a_node_hears_one_beat_for_all_its_subscriptions_and_answers_once() -> None:
    replica = Replica()
    for id in (1, 2, 3):
        replica.hears(Follow(id, "s", EARLIEST, "seq = 9"))
    replica.commits(span(1, "a"))
    assert beats(replica, 1) == [[("beat", (1, [(1, 2, [])]), (1, [(1, 2, [])]), (1, [(1, 2, [])]))]]
    assert all([position.unacked for position in replica.positions.values()])
    replica.hears(AllConsumed(((1, 2), (2, 2), (7, 2))))
    assert [bool(position.unacked) for position in replica.positions.values()] == [False, False, True]


def test_with_many_nodes_a_beat_tells_some_of_them_and_says_when_it_comes_again() -> None:
    replica = Replica(beats=2)
    for node in "abcde":
        replica.hears(Follow(1, "s", LATEST), node)
    told = [
        [(e.to, e.message.within) for e in replica.handle(0.0, Expired(FeedTick())) if type(e) is Send]
        for _ in range(3)
    ]
    assert sorted([node for each in told for node, _ in each]) == list("abcde"), "each once in three beats"
    assert {within for each in told for _, within in each} == {1.5}
    client = subscriber()
    client.handle(0.0, Received("head", FeedBeat(((1, 1, 1, 0, 1),), 1.5)))
    assert watch(client, 0.2, 6.0) == [], "it does not take that for silence"
    assert [message for _, _, message in watch(client, 6.2, 6.4)] == [Follow(1, "s", 1)]


def test_a_filter_that_passes_nothing_does_not_hold_up_others() -> None:
    replica = Replica(chunk_rows=1, scan=3)
    replica.commits(span(1, *["x"] * 8))
    effects = replica.handle(0.0, Received("c", Follow(1, "s", EARLIEST, "seq = 8")))
    assert SetTimer(0.0, ScanTick()) in effects and replica.positions["c", 1].next == 4
    again = replica.handle(0.0, Expired(ScanTick()))
    assert SetTimer(0.0, ScanTick()) in again and not replica.fed(again)
    assert replica.fed(replica.handle(0.0, Expired(ScanTick()))) == [(1, [(1, 8, []), (8, 9, [8])])]
    assert replica.positions["c", 1].live


def test_all_subscriptions_together_have_so_many_bytes_in_flight_and_equal_shares() -> None:
    replica = Replica(total_bytes=4000, least_bytes=1, window_bytes=1 << 20)
    for id in (1, 2, 3, 4):
        replica.hears(Follow(id, "s", EARLIEST))
    for number in range(1, 40):
        replica.commits(span(number, "x" * 100))
    for position in replica.positions.values():
        assert 0 < position.unacked.bytes < 1000 + 400 and not position.live, "a share, and the message that passed it"


def test_coverage_at_a_beat_may_use_up_the_credit_of_a_live_subscription() -> None:
    """Campaign seed 5: it stayed live, and the next event was one message too many."""
    replica = Replica(window=2)
    replica.hears(Follow(1, "s", EARLIEST, EVEN))
    replica.commits(span(1, "x"))
    beats(replica, 1)
    assert replica.commits(span(2, "x")) == [(2, [(2, 3, [2])]), "subscriber_lagging"]
    assert replica.hears(Consumed(1, 2)) == ["subscriber_live"]
    replica.commits(span(3, "x"))
    beats(replica, 1)
    assert not replica.positions["c", 1].live
    assert replica.commits(span(4, "x")) == []
