"""Sentences of paper 000, section 3.2 and figure 3 (A1.25-A1.39, E1, E2): inside a region, as lists of effects.

The paper's cnt is the last number delivered and next the next one to request; ours are the first number not
delivered (horizon) and not requested, so cnt = 3 is horizon 4 and REQUEST(s, 1, 3) is Want("s", 1, 4).
What these machines do beyond the paper's sentences is tested in tests/protocols.
"""

from __future__ import annotations

import random

import pytest

from tidings.core.history import History
from tidings.core.ids import NodeId
from tidings.core.rows import NO_ROWS, CountedRows
from tidings.core.span import Span
from tidings.protocols.fabrics.pull import FallbackTick, PullMember, PullSettings, PullSource, ShuffleTick
from tidings.protocols.fabrics.views import GossipTick, View, Views, ViewsSettings
from tidings.protocols.kernel import Deliver, Effects, Expired, Message, Received, Report, Send, SetTimer, singly
from tidings.protocols.messages import Know, Offer, Want
from tidings.protocols.replication.chain_config import ChainConfig

CHAIN = ChainConfig("r", 1, ("head", "proxy"))
SIZE = 10


def events(lo: int, hi: int) -> Span:
    """The paper's events lo, ..., hi - 1."""
    return Span.of("s", lo, CountedRows(lo, hi, SIZE))


def tombstone(seq: int, reach: int, asof: int) -> Span:
    """The paper's tombstone (seq, range): it stands for (seq - range, seq]."""
    return Span("s", seq - reach + 1, seq + 1, asof, NO_ROWS)


def know(*spans: Span, horizon: int) -> Know:
    return Know("s", spans, horizon)


# --- membership ----------------------------------------------------------------------------------------------


class Member(Views):
    """A client "me" with V = 3 by the paper's merge rule, unless told otherwise."""

    def __init__(self, *view: NodeId, size: int = 3, proxy_every: int = 10, rule: str = "paper", seed: int = 1) -> None:
        settings = ViewsSettings(size=size, rule=rule, proxy_every=proxy_every)  # type: ignore[arg-type]
        super().__init__("me", "r", settings, random.Random(seed), CHAIN)
        self._generation = 1
        if view:
            self.hears(view[0], *view)

    def hears(self, src: NodeId, *view: NodeId) -> Effects:
        message = View(tuple((node, 0) for node in view), CHAIN, reply_wanted=False)
        effects = self.handle(0.0, Received(src, message))
        self.check()
        return effects

    def gossips_with(self) -> NodeId:
        """Whom it turns to in its next round."""
        effects = self.handle(0.0, Expired(GossipTick(self._generation)))
        (send,) = [effect for effect in effects if isinstance(effect, Send)]
        return send.to


@pytest.mark.parametrize("seed", range(20))
def test_a1_26_the_union_of_both_views_is_cut_at_random_to_v_and_the_sender_stays(seed: int) -> None:
    member = Member("a", "b", "c", seed=seed)
    member.hears("x", "d", "e", "f")
    assert "x" in member.view and len(member.view) == 3
    assert set(member.view) <= {"x", "a", "b", "c", "d", "e", "f"}


def test_a1_26_who_is_dropped_is_random() -> None:
    kept = set()
    for seed in range(200):
        member = Member("a", "b", "c", seed=seed)
        member.hears("x", "d", "e", "f")
        kept |= {*member.view}
    assert kept == {"x", "a", "b", "c", "d", "e", "f"}


def test_a1_27_who_does_not_gossip_is_not_reinforced_and_disappears() -> None:
    member = Member("dead", "b", "c", "d", size=3)
    for other in ("b", "c", "d", "e") * 10:
        member.hears(other, "b", "c", "d", "e")
    assert "dead" not in member.view


def test_a1_28a_the_local_proxy_is_one_of_the_clients_that_is_gossiping() -> None:
    proxy = Views("proxy", "r", ViewsSettings(rule="paper"), random.Random(1), CHAIN, replica=True)
    proxy.start(0.0)
    proxy.handle(0.0, Received("a", View((), CHAIN, reply_wanted=False)))
    assert [e.to for e in proxy.handle(0.0, Expired(GossipTick(1))) if isinstance(e, Send)] == ["a"]


def test_a1_28b_each_client_occasionally_gossips_with_its_proxy_even_if_it_is_not_in_its_view() -> None:
    member = Member("a", "b", "c", proxy_every=4)
    assert "proxy" not in member.view
    partners = []
    for _ in range(8):
        partners.append(member.gossips_with())
        member.hears("a", "a", "b", "c")
    assert [at for at, partner in enumerate(partners, 1) if partner == "proxy"] == [4, 8]


def test_a1_28c_if_the_view_is_smaller_than_v_the_client_adds_the_proxy_to_it() -> None:
    member = Member("a", "b")
    assert member.neighbours() == ("a", "b", "proxy")
    member.hears("c", "a")
    assert member.neighbours() == ("a", "b", "c")


def test_a1_28d_new_clients_start_with_a_view_consisting_of_only_the_proxy() -> None:
    assert Member().neighbours() == ("proxy",)


# --- dissemination: the transitions of figure 3 --------------------------------------------------------------


class Client(PullMember):
    """A client "me" whose active neighbours are a and b."""

    def __init__(self, **settings: float) -> None:
        views = Views("me", "r", ViewsSettings(size=2), random.Random(1), CHAIN)
        views.handle(0.0, Received("a", View((("a", 0), ("b", 0)), CHAIN, reply_wanted=False)))
        chosen = PullSettings(**{"fanout": 2, "probe": 0.0, **settings})  # type: ignore[arg-type]
        super().__init__("me", chosen, views, random.Random(1), {})
        self.start(0.0)
        self.handle(0.0, Expired(ShuffleTick(1)))

    def hears(self, src: NodeId, message: Message, now: float = 0.0) -> list[object]:
        """The effects, timers left out; what goes to several is in order of their names."""
        effects = [e for e in singly(self.handle(now, Received(src, message))) if not isinstance(e, SetTimer)]
        self.check()
        return sorted(effects, key=lambda e: e.to if isinstance(e, Send) else "")

    def holding(self, *spans: Span) -> Client:
        """With these spans delivered."""
        self.hears("a", Offer("s", spans[-1].hi))
        self.hears("a", know(*spans, horizon=spans[-1].hi))
        return self


def test_a1_30_an_event_is_delivered_directly_after_the_last_one_and_notified_to_the_neighbours() -> None:
    client = Client()
    client.hears("a", Offer("s", 3))
    assert client.hears("a", know(events(1, 3), horizon=3)) == [
        Deliver(events(1, 3)),
        Send("a", Offer("s", 3)),
        Send("b", Offer("s", 3)),
    ]


def test_a1_30_a_tombstone_is_delivered_if_seq_minus_range_is_at_most_cnt_and_cnt_is_below_seq() -> None:
    client = Client(fanout=1).holding(events(1, 4))  # cnt = 3
    client.hears("a", Offer("s", 8))
    delivered = client.hears("a", know(tombstone(6, 5, asof=9), events(7, 8), horizon=8))  # stands for 2..6
    assert [e.item for e in delivered if isinstance(e, Deliver)] == [tombstone(6, 3, asof=9), events(7, 8)]


def test_a1_30_an_event_further_on_is_not_delivered_before_those_between() -> None:
    client = Client()
    client.hears("a", Offer("s", 3))
    client.hears("b", Offer("s", 5))
    assert client.hears("b", know(events(3, 5), horizon=5)) == []
    delivered = client.hears("a", know(events(1, 3), horizon=3))
    assert [e.item for e in delivered if isinstance(e, Deliver)] == [events(1, 3), events(3, 5)]


def test_a1_31_a_notify_is_answered_with_a_request_for_what_was_not_requested_yet() -> None:
    client = Client()
    assert client.hears("a", Offer("s", 4)) == [Send("a", Want("s", 1, 4))]
    assert client.hears("b", Offer("s", 6)) == [Send("b", Want("s", 4, 6))]


def test_a1_31_each_event_is_requested_from_one_peer_only() -> None:
    client = Client()
    client.hears("a", Offer("s", 4))
    assert client.hears("b", Offer("s", 4)) == client.hears("b", Offer("s", 2)) == []


def test_a1_32_a_request_is_answered_with_all_stored_events_of_the_range_and_the_own_count() -> None:
    client = Client().holding(events(1, 4), events(4, 9))
    assert client.hears("c", Want("s", 3, 6)) == [Send("c", know(events(3, 4), events(4, 6), horizon=9))]


def test_a1_32_the_answer_may_be_an_empty_sequence() -> None:
    client = Client(recv_rows=2).holding(events(1, 9))
    assert client.hears("c", Want("s", 1, 4)) == [Send("c", know(horizon=9))]


def test_a1_33_the_oldest_events_are_replaced_with_the_newest() -> None:
    client = Client(recv_rows=4).holding(events(1, 4))
    client.hears("a", Offer("s", 7))
    assert Report("recv_overflow", 3) in client.hears("a", know(events(4, 7), horizon=7))
    assert client.hears("c", Want("s", 1, 7)) == [Send("c", know(events(4, 7), horizon=7))]


def test_a1_34_what_a_peer_has_discarded_is_requested_from_the_proxy() -> None:
    client = Client()
    client.hears("a", Offer("s", 6))
    assert client.hears("a", know(events(4, 6), horizon=6)) == [
        Report("proxy_fallback"),
        Send("proxy", Want("s", 1, 4)),
    ]


def test_a1_38_what_a_peer_does_not_send_is_requested_from_the_proxy_after_a_time() -> None:
    client = Client(fallback=0.1)
    client.hears("a", Offer("s", 6))
    effects = client.handle(0.1, Expired(FallbackTick("s", 1)))
    assert [e for e in effects if isinstance(e, Send)] == [Send("proxy", Want("s", 1, 6))]


def test_a1_34_only_events_that_were_requested_from_others_are_requested_from_the_proxy() -> None:
    client = Client(fallback=0.1).holding(events(1, 4))
    effects = client.handle(0.1, Expired(FallbackTick("s", 1)))
    assert [e for e in effects if isinstance(e, Send)] == []


def test_a1_38_a_proxy_is_asked_for_any_stream_it_stores_not_only_for_its_own() -> None:
    histories = {"foreign": History("foreign", counted=True)}
    rows = CountedRows(1, 4, SIZE)
    histories["foreign"].accept(Span.of("foreign", 1, rows))
    views = Views("proxy", "r", ViewsSettings(), random.Random(1), CHAIN, replica=True)
    proxy = PullSource("proxy", PullSettings(), views, random.Random(1), histories)
    answer = proxy.handle(0.0, Received("c", Want("foreign", 1, 4)))
    assert answer == [Send("c", Know("foreign", (Span("foreign", 1, 4, 4, rows),), 4))]


def test_a1_39_a_peer_that_replies_with_holes_leaves_no_hole_behind() -> None:
    client = Client()
    client.hears("a", Offer("s", 9))
    holes = know(events(1, 3), events(5, 7), horizon=7)
    assert Send("proxy", Want("s", 3, 5)) in client.hears("a", holes)
    delivered = client.hears("proxy", know(events(3, 5), horizon=9))
    assert [e.item.hi for e in delivered if isinstance(e, Deliver)] == [5, 7]
    assert Send("proxy", Want("s", 7, 9)) in delivered


def test_a1_37_the_first_event_is_number_1_and_is_delivered() -> None:
    client = Client()
    assert client.hears("a", Offer("s", 1)) == []
    assert client.hears("a", Offer("s", 2)) == [Send("a", Want("s", 1, 2))]
    assert Deliver(events(1, 2)) in client.hears("a", know(events(1, 2), horizon=2))


# --- shuffling -----------------------------------------------------------------------------------------------


def test_a1_35_only_f_neighbours_are_notified_and_the_subset_is_changed_at_every_shuffle() -> None:
    views = Views("me", "r", ViewsSettings(size=9), random.Random(1), CHAIN)
    others = tuple((name, 0) for name in "abcdefghi")
    views.handle(0.0, Received("a", View(others, CHAIN, reply_wanted=False)))
    client = PullMember("me", PullSettings(fanout=2), views, random.Random(1), {})
    client.start(0.0)
    drawn = set()
    for generation in range(1, 30):
        client.handle(0.0, Expired(ShuffleTick(generation)))
        assert len(set(client.fanout.active)) == 2
        drawn |= {*client.fanout.active}
    assert drawn == {*"abcdefghi"}


def test_a1_38_a_neighbour_that_is_newly_drawn_is_notified_even_if_nothing_is_delivered() -> None:
    client = Client(fanout=1).holding(events(1, 4))
    for generation in range(2, 20):
        before = client.fanout.active
        effects = singly(client.handle(0.0, Expired(ShuffleTick(generation))))
        sent = [e for e in effects if isinstance(e, Send)]
        assert sent == [Send(peer, Offer("s", 4)) for peer in client.fanout.active if peer not in before]


# --- the building blocks -------------------------------------------------------------------------------------


def test_e1_nothing_is_given_up_a_client_asks_until_it_has_everything() -> None:
    client = Client(fallback=0.1, proxy_timeout=0.2)
    client.hears("a", Offer("s", 4))
    asked, now = [], 0.0
    for generation in range(1, 40):
        now += 0.1
        effects = client.handle(now, Expired(FallbackTick("s", generation)))
        asked += [effect.to for effect in effects if isinstance(effect, Send)]
    assert len(asked) > 3 and set(asked) == {"proxy", "head"}
