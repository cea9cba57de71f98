"""Pull dissemination: sentences of paper 000, section 3.2 and figure 3, and what A1.38-A1.39 leave open."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import pytest

from tidings.core.history import History
from tidings.core.ids import NodeId
from tidings.core.rows import NO_ROWS, CountedRows, data_rows
from tidings.core.span import Span
from tidings.protocols.fabrics.pull import (
    FallbackTick,
    Probe,
    ProbeTick,
    PullMember,
    PullSettings,
    PullSource,
    ShuffleTick,
)
from tidings.protocols.fabrics.views import GossipTick, View, Views, ViewsSettings
from tidings.protocols.kernel import (
    Deliver,
    Effects,
    Expired,
    Input,
    Message,
    Received,
    Report,
    Send,
    SetTimer,
    Timer,
    singly,
)
from tidings.protocols.messages import Know, Offer, Want
from tidings.protocols.replication.chain_config import ChainConfig

CHAIN = ChainConfig("eu", 1, ("head", "tail"))
SIZE = 10  # bytes of a counted row


def span(lo: int, hi: int, asof: int | None = None, first: int | None = None) -> Span:
    """Numbers [lo, hi); those below ``first`` are collected."""
    first = lo if first is None else first
    return Span("s", lo, hi, lo if asof is None else asof, CountedRows(first, hi, SIZE) if first < hi else NO_ROWS)


class Client(PullMember):
    """A client "me" with a view of its own choice, and short ways to say something to it."""

    def __init__(self, *view: NodeId, horizon: int = 1, settings: PullSettings | None = None) -> None:
        rng = random.Random(3)
        views = Views("me", "eu", ViewsSettings(size=max(len(view), 1)), rng, CHAIN)
        views.handle(0.0, Received("x", View(tuple((n, 0) for n in view), CHAIN, reply_wanted=False)))
        super().__init__("me", settings or PullSettings(fanout=2), views, rng, {"s": horizon} if horizon > 1 else {})

    def hears(self, src: NodeId, message: Message, now: float = 0.0) -> Effects:
        effects = self.handle(now, Received(src, message))
        self.check()
        return singly(effects) if effects else effects

    def ticks(self, timer: Timer, now: float) -> Effects:
        effects = self.handle(now, Expired(timer))
        self.check()
        return singly(effects) if effects else effects

    def shuffles(self, now: float = 0.0) -> Effects:
        self.start(now)
        return self.ticks(ShuffleTick(1), now)


def know(*spans: Span, horizon: int | None = None) -> Know:
    return Know("s", spans, horizon if horizon is not None else spans[-1].hi)


def offer(horizon: int) -> Offer:
    return Offer("s", horizon)


def want(lo: int, hi: int) -> Want:
    return Want("s", lo, hi)


def after(delay: float, generation: int = 1) -> SetTimer:
    return SetTimer(delay, FallbackTick("s", generation))


def test_a_request_to_a_client_that_has_nothing_yet_is_answered_with_nothing() -> None:
    client = Client(horizon=5)
    assert client.hears("b", want(1, 5)) == [Send("b", know(horizon=5))]


def test_a_clock_that_was_set_back_delays_the_fallback_by_no_more_than_its_time() -> None:
    client = Client()
    client.hears("a", offer(5), now=1000.0)
    assert [effect.timer for effect in client.ticks(FallbackTick("s", 1), now=3.0)] == [FallbackTick("s", 2)]  # type: ignore[union-attr]
    assert Send("tail", want(1, 5)) in client.ticks(FallbackTick("s", 2), now=3.1)


# --- figure 3 ---------------------------------------------------------------------------------------------


def test_a_client_requests_from_the_notifier_what_it_has_not_requested_yet() -> None:
    client = Client()
    assert client.hears("a", offer(5)) == [Send("a", want(1, 5)), after(0.1)]
    assert client.hears("b", offer(9)) == [Send("b", want(5, 9))]


def test_a_notify_of_what_was_already_requested_does_nothing() -> None:
    client = Client()
    client.hears("a", offer(5))
    assert client.hears("b", offer(5)) is client.hears("c", offer(2)) == ()


def test_an_event_is_delivered_when_it_is_directly_after_the_last_and_notified_to_the_active_neighbours() -> None:
    client = Client("a", "b", "c")
    client.shuffles()
    first, second = client.fanout.active
    client.hears("a", offer(5))
    assert client.hears("a", know(span(1, 5))) == [
        Deliver(span(1, 5)),
        Send(first, offer(5)),
        Send(second, offer(5)),
    ]
    assert client.horizons == {"s": 5}


def test_one_input_makes_one_offer_however_many_spans_it_delivers() -> None:
    client = Client("a")
    client.shuffles()
    client.hears("a", offer(7))
    effects = client.hears("a", know(span(1, 3), span(3, 5), span(5, 7)))
    assert [e.item.hi for e in effects if isinstance(e, Deliver)] == [3, 5, 7]
    assert [e for e in effects if isinstance(e, Send)] == [Send("a", offer(7))]


def test_an_event_further_on_is_held_until_those_before_it_are_delivered() -> None:
    client = Client()
    client.hears("a", offer(5))
    client.hears("b", offer(9))
    assert client.hears("b", know(span(5, 9))) == []
    assert client.hears("a", know(span(1, 5))) == [Deliver(span(1, 5)), Deliver(span(5, 9))]


def test_an_event_that_was_delivered_is_not_delivered_again() -> None:
    client = Client()
    client.hears("a", offer(5))
    client.hears("a", know(span(1, 5)))
    assert client.hears("b", know(span(1, 5))) == [Report("duplicate_rows", 4)]
    assert client.hears("b", know(span(3, 8))) == [Report("duplicate_rows", 2), Deliver(span(5, 8))]


def test_a_request_is_answered_with_what_is_stored_of_the_range_and_the_own_horizon() -> None:
    client = Client()
    client.hears("a", offer(9))
    client.hears("a", know(span(1, 5), span(5, 9)))
    assert client.hears("b", want(3, 7)) == [Send("b", know(span(3, 5), span(5, 7), horizon=9))]
    assert client.hears("b", want(9, 12)) == [Send("b", know(horizon=9))]


def test_the_oldest_events_are_replaced_by_the_newest() -> None:
    client = Client(settings=PullSettings(recv_rows=6))
    client.hears("a", offer(20))
    client.hears("a", know(span(1, 5), horizon=20))
    assert client.hears("a", know(span(5, 9), horizon=20))[:2] == [Deliver(span(5, 9)), Report("recv_overflow", 4)]
    assert client.hears("b", want(1, 9)) == [Send("b", know(span(5, 9), horizon=9))]


def test_of_a_span_larger_than_recv_the_end_is_kept() -> None:
    client = Client(settings=PullSettings(recv_rows=6))
    client.hears("a", offer(21))
    client.hears("a", know(span(1, 5), span(5, 21)))
    assert client.hears("b", want(1, 21)) == [Send("b", know(span(15, 21)))]


def test_spans_without_rows_count_too_so_that_recv_is_bounded() -> None:
    client = Client(settings=PullSettings(recv_rows=3))
    client.hears("a", offer(11))
    client.hears("a", know(*[span(i, i + 1, asof=20, first=i + 1) for i in range(1, 11)]))
    assert [kept.lo for kept in client.streams["s"].recv.spans] == [8, 9, 10]


def test_missing_events_are_requested_from_the_proxy_at_once_when_the_peer_has_discarded_them() -> None:
    client = Client()
    client.hears("a", offer(20))
    assert client.hears("a", know(span(12, 20))) == [Report("proxy_fallback"), Send("tail", want(1, 12))]
    assert client.hears("tail", know(span(1, 12), horizon=20)) == [Deliver(span(1, 12)), Deliver(span(12, 20))]


def test_an_empty_answer_sends_the_client_to_the_proxy() -> None:
    client = Client()
    client.hears("a", offer(20))
    assert client.hears("a", know(horizon=20)) == [Report("proxy_fallback"), Send("tail", want(1, 20))]


def test_what_another_peer_has_been_asked_for_is_not_requested_from_the_proxy() -> None:
    client = Client()
    client.hears("a", offer(5))
    client.hears("b", offer(9))
    assert client.hears("b", know(horizon=9)) == [Report("proxy_fallback"), Send("tail", want(5, 9))]


def test_what_is_held_inside_an_outstanding_request_opens_no_gap() -> None:
    client = Client()
    client.hears("a", offer(20))
    client.hears("b", know(span(5, 9)))
    client.hears("c", offer(25))
    assert client.hears("c", know(horizon=25)) == [Report("proxy_fallback"), Send("tail", want(20, 25))]


def test_what_comes_unasked_is_held_and_what_is_before_it_comes_from_the_proxy() -> None:
    client = Client()
    client.hears("a", offer(5))
    client.hears("a", know(span(1, 5)))
    assert client.hears("b", know(span(8, 12))) == []
    assert Send("tail", want(5, 8)) in client.ticks(FallbackTick("s", 1), now=0.1)
    assert client.hears("tail", know(span(5, 8), horizon=12)) == [Deliver(span(5, 8)), Deliver(span(8, 12))]


def test_the_proxy_is_asked_after_a_time_without_progress() -> None:
    client = Client()
    client.hears("a", offer(5), now=1.0)
    assert client.ticks(FallbackTick("s", 1), now=1.1) == [
        Report("proxy_fallback"),
        Send("tail", want(1, 5)),
        after(0.1, generation=2),
    ]


def test_progress_puts_the_fallback_off() -> None:
    client = Client()
    client.hears("a", offer(5), now=1.0)
    client.hears("b", offer(9), now=1.0)
    client.hears("a", know(span(1, 5)), now=1.06)
    (timer,) = client.ticks(FallbackTick("s", 1), now=1.1)
    assert isinstance(timer, SetTimer) and timer.delay == pytest.approx(0.06)
    assert Send("tail", want(5, 9)) in client.ticks(FallbackTick("s", 2), now=1.16)


def test_the_time_without_progress_starts_when_something_is_missing() -> None:
    client = Client()
    client.hears("a", offer(5), now=1.0)
    client.hears("a", know(span(1, 5)), now=1.01)
    client.hears("a", offer(9), now=1.09)
    (timer,) = client.ticks(FallbackTick("s", 1), now=1.1)
    assert isinstance(timer, SetTimer) and timer.delay == pytest.approx(0.09)


def test_a_client_that_runs_late_lets_answers_be_read_before_it_asks_the_proxy_too() -> None:
    client = Client()
    client.hears("a", offer(5), now=1.0)
    (timer,) = client.ticks(FallbackTick("s", 1), now=1.5)  # 0.4 s late: so, perhaps, is the answer
    assert isinstance(timer, SetTimer) and timer.delay == pytest.approx(0.4)
    assert client.hears("a", know(span(1, 5)), now=1.5) and client.horizons == {"s": 5}
    assert client.ticks(FallbackTick("s", 2), now=1.9) == ()


def test_a_client_that_runs_late_asks_the_proxy_all_the_same_in_the_end() -> None:
    client = Client()
    client.hears("a", offer(5), now=1.0)
    client.ticks(FallbackTick("s", 1), now=2.0)
    assert Send("tail", want(1, 5)) in client.ticks(FallbackTick("s", 2), now=4.0)  # 0.9 and 1.9 s late


def test_a_stale_fallback_timer_is_ignored() -> None:
    client = Client()
    client.hears("a", offer(5))
    client.ticks(FallbackTick("s", 1), now=0.1)
    assert client.ticks(FallbackTick("s", 1), now=2.0) == client.ticks(FallbackTick("t", 1), now=2.0) == ()


def test_the_fallback_timer_rests_while_nothing_is_missing() -> None:
    client = Client()
    client.hears("a", offer(5))
    client.hears("a", know(span(1, 5)))
    assert client.ticks(FallbackTick("s", 1), now=0.1) == ()
    assert client.hears("a", offer(7), now=5.0) == [Send("a", want(5, 7)), after(0.1, generation=2)]


def test_only_one_request_to_the_proxy_is_outstanding_and_the_next_goes_to_the_next_replica() -> None:
    client = Client()
    client.hears("a", offer(5), now=0.0)
    now, asked = 0.0, []
    for generation in range(1, 60):
        now += 0.1
        effects = client.ticks(FallbackTick("s", generation), now)
        asked += [(round(now, 1), e.to) for e in effects if isinstance(e, Send)]
    assert asked == [(0.1, "tail"), (1.1, "head"), (2.1, "tail"), (4.1, "head")]  # patience doubles when all were asked
    assert Send("head", want(1, 5)) not in client.hears("tail", know(span(1, 5)), now=6.0)


def test_an_answer_of_the_proxy_restores_the_patience_with_it() -> None:
    client = Client()
    client.hears("a", offer(5))
    for tick in range(1, 12):  # the tail does not answer for a second, then the head is asked
        sent = client.ticks(FallbackTick("s", tick), now=0.1 * tick)
    assert Send("head", want(1, 5)) in sent
    client.hears("head", know(span(1, 5)), now=1.15)
    client.hears("a", offer(9), now=1.15)
    sent = [each for tick in range(12, 25) for each in client.ticks(FallbackTick("s", tick), now=0.1 * tick)]
    assert [each.to for each in sent if isinstance(each, Send)] == ["head", "tail"]  # a second apart, as before


def test_a_request_to_the_proxy_stays_outstanding_when_a_peer_is_faster() -> None:
    client = Client()
    client.hears("a", offer(5))
    client.ticks(FallbackTick("s", 1), now=0.1)
    assert client.hears("a", know(span(1, 5)), now=0.1) == [Deliver(span(1, 5))]
    client.hears("b", offer(9), now=0.1)
    assert client.hears("b", know(horizon=9), now=0.1) == []
    assert client.hears("tail", know(span(1, 5), horizon=9), now=0.2) == [
        Report("duplicate_rows", 4),
        Report("proxy_fallback"),
        Send("tail", want(5, 9)),
    ]


def test_a_new_chain_is_asked_at_its_tail() -> None:
    client = Client()
    client.hears("a", offer(5))
    client.ticks(FallbackTick("s", 1), now=0.1)
    assert client.views.learn(ChainConfig("eu", 2, ("tail", "new")))
    assert Send("new", want(1, 5)) in client.ticks(FallbackTick("s", 2), now=1.2)


def test_a_proxy_that_does_not_have_it_is_not_asked_again_at_once() -> None:
    client = Client()
    client.hears("a", offer(20))
    client.hears("a", know(horizon=1))
    assert client.hears("tail", know(horizon=1)) == []
    assert client.streams["s"].next == 1  # nobody has it: the next offer counts again
    assert client.hears("b", offer(20)) == [Send("b", want(1, 20))]


def test_the_rest_of_a_shortened_answer_is_wanted_from_the_same_node() -> None:
    client = Client()
    client.hears("a", offer(20))
    assert client.hears("a", know(span(1, 8), horizon=20)) == [Deliver(span(1, 8)), Send("a", want(8, 20))]
    assert client.hears("a", know(span(8, 20))) == [Deliver(span(8, 20))]


def test_the_rest_of_a_shortened_answer_of_the_proxy_is_still_the_one_request_to_it() -> None:
    client = Client()
    client.hears("a", offer(20))
    client.hears("a", know(horizon=20))
    assert client.hears("tail", know(span(1, 8), horizon=20)) == [Deliver(span(1, 8)), Send("tail", want(8, 20))]
    client.hears("b", offer(25))
    assert client.hears("b", know(horizon=25)) == []


def test_what_a_peer_turns_out_not_to_know_is_requested_from_the_proxy() -> None:
    client = Client()
    client.hears("a", offer(20))
    assert client.hears("a", know(span(1, 8), horizon=8)) == [
        Deliver(span(1, 8)),
        Report("proxy_fallback"),
        Send("tail", want(8, 20)),
    ]


def test_an_answer_is_shortened_to_the_rows_that_fit() -> None:
    client = Client(settings=PullSettings(reply_rows=5))
    client.hears("a", offer(20))
    client.hears("a", know(span(1, 4), span(4, 20)))
    assert client.hears("b", want(1, 20)) == [Send("b", know(span(1, 4), span(4, 6), horizon=20))]


def test_spans_without_rows_fill_an_answer_too() -> None:
    client = Client(settings=PullSettings(reply_rows=3))
    client.hears("a", offer(11))
    empty = [span(i, i + 1, asof=20, first=i + 1) for i in range(1, 11)]
    client.hears("a", know(*empty))
    assert client.hears("b", want(1, 11)) == [Send("b", know(*empty[:3], horizon=11))]


def test_a_client_learns_streams_from_offers_up_to_a_bound() -> None:
    client = Client(settings=PullSettings(streams=1))
    assert client.hears("a", Offer("t", 1)) == ()
    client.hears("a", offer(3))
    assert client.hears("a", Offer("t", 3)) == [Report("stream_overflow")]
    assert client.horizons == {"s": 1}


def test_a_client_that_resumes_continues_from_its_horizon() -> None:
    client = Client(horizon=100)
    assert client.hears("a", offer(90)) == ()
    assert client.hears("a", offer(110)) == [Send("a", want(100, 110)), after(0.1)]
    assert client.hears("b", Probe()) == []  # it stores nothing that others could want


# --- collected, contradicting, too much -------------------------------------------------------------------


def test_collected_numbers_are_delivered_as_coverage_without_rows() -> None:
    client = Client()
    client.hears("a", offer(9))
    collected = span(1, 9, asof=30, first=6)
    assert client.hears("a", know(collected)) == [
        Deliver(collected),
        Report("tombstone_delivered"),
        Report("asof_above_horizon"),
    ]


def test_a_span_that_contradicts_what_was_delivered_is_refused() -> None:
    client = Client()
    client.hears("a", offer(5))
    client.hears("a", know(span(1, 5)))
    other = Span("s", 1, 8, 1, CountedRows(1, 8, SIZE + 1))
    assert client.hears("b", know(other)) == [Report("contradiction")]
    assert client.horizons == {"s": 5}


def test_a_span_that_contradicts_what_is_held_is_refused() -> None:
    client = Client()
    client.hears("a", offer(5))
    client.hears("b", offer(9))
    client.hears("b", know(span(5, 9)))
    rows = data_rows(1, None, [b"other"] * 8)
    assert client.hears("c", know(Span.of("s", 1, rows))) == [Report("contradiction")]
    assert [held.lo for held in client.streams["s"].held] == [5] and client.horizons == {"s": 1}


def test_of_two_claims_about_a_held_range_the_later_one_is_delivered() -> None:
    client = Client()
    client.hears("a", offer(5))
    client.hears("b", offer(9))
    client.hears("b", know(span(5, 9)))
    later = span(3, 9, asof=20, first=7)
    client.hears("c", know(later))
    effects = client.hears("a", know(span(1, 3), horizon=3))
    assert [e.item for e in effects if isinstance(e, Deliver)] == [span(1, 3), later]


def test_held_spans_are_bounded_and_what_is_refused_comes_from_the_proxy_later() -> None:
    client = Client(settings=PullSettings(held_rows=6))
    for src, horizon in (("a", 5), ("b", 9), ("c", 13)):
        client.hears(src, offer(horizon))
    assert client.hears("b", know(span(5, 9))) == []
    assert client.hears("c", know(span(9, 13))) == [
        Report("held_overflow"),
        Report("proxy_fallback"),
        Send("tail", want(9, 13)),
    ]
    client.hears("a", know(span(1, 5)))
    assert client.hears("tail", know(span(9, 13))) == [Deliver(span(9, 13))]


def test_requests_under_way_are_bounded() -> None:
    client = Client(settings=PullSettings(asks=2))
    client.hears("a", offer(2))
    client.hears("b", offer(3))
    assert client.hears("c", offer(4)) == [Report("ask_overflow")]


def test_messages_that_make_no_sense_are_ignored_and_counted() -> None:
    client = Client()
    bad = [Report("bad_message")]
    assert client.hears("a", know(span(1, 5))) == bad  # of a stream never heard of
    assert client.hears("a", want(1, 5)) == bad
    client.hears("a", offer(5))
    assert client.hears("a", want(5, 5)) == bad
    stranger = Span("t", 1, 5, 1, CountedRows(1, 5, SIZE))
    assert client.hears("b", know(stranger)) == bad


# --- shuffle and probe ------------------------------------------------------------------------------------


def test_a_subset_of_f_neighbours_is_drawn_anew_at_every_shuffle() -> None:
    client = Client(*"abcdefgh")
    client.start(0.0)
    drawn = []
    for generation in range(1, 20):
        client.ticks(ShuffleTick(generation), 0.0)
        drawn.append(client.fanout.active)
    assert all(len(set(active)) == 2 for active in drawn) and len({node for active in drawn for node in active}) == 8
    assert client.ticks(ShuffleTick(3), 0.0) == ()  # stale


def test_a_newly_drawn_neighbour_of_an_idle_stream_is_notified_on_shuffle() -> None:
    client = Client("a", "b", "c")
    client.hears("a", offer(5))
    client.hears("a", know(span(1, 5)))
    first = client.shuffles()
    assert first == [*[Send(n, offer(5)) for n in client.fanout.active], SetTimer(0.03, ShuffleTick(2))]
    before = client.fanout.active
    again = client.ticks(ShuffleTick(2), 0.03)
    assert again[:-1] == [Send(n, offer(5)) for n in client.fanout.active if n not in before]


def test_the_proxy_is_not_offered_what_came_from_it() -> None:
    client = Client("a", "tail", settings=PullSettings(fanout=4))
    client.shuffles()
    assert client.fanout.active == ("a",)


def test_a_client_that_hears_nothing_new_probes_less_and_less_often() -> None:
    client = Client("a")
    client.start(0.0)
    now, delay, probes, generation = 0.0, 0.05, [], 1
    while now + delay < 10:
        now += delay
        *rest, timer = client.ticks(ProbeTick(generation), now)
        assert isinstance(timer, SetTimer)
        probes += [now for e in rest if isinstance(e, Send) and e.message == Probe()]
        delay, generation = timer.delay, generation + 1
    assert len(probes) == 14 and probes[1] - probes[0] == pytest.approx(0.06)
    assert delay == 1.0


def test_every_second_probe_goes_to_the_replicas_in_turn_because_neighbours_may_starve_together() -> None:
    client = Client("a")
    client.start(0.0)
    probed = [client.ticks(ProbeTick(generation), 1.0)[0] for generation in range(1, 6)]
    assert probed == [Send(to, Probe()) for to in ("tail", "a", "head", "a", "tail")]


def test_news_brings_the_probe_back_to_its_rate_and_useless_offers_do_not() -> None:
    client = Client("a")
    client.start(0.0)
    client.ticks(ProbeTick(1), 0.1)
    client.hears("a", offer(1), now=0.15)
    assert client.ticks(ProbeTick(2), 0.16)[-1] == SetTimer(0.12, ProbeTick(3))
    client.hears("a", offer(5), now=0.2)
    assert client.ticks(ProbeTick(3), 0.3) == [SetTimer(0.03, ProbeTick(4))]


def test_a_probe_is_answered_with_offers() -> None:
    client = Client()
    client.hears("a", offer(5))
    client.hears("a", know(span(1, 5)))
    assert client.hears("b", Probe()) == [Send("b", offer(5))]


# --- the proxy --------------------------------------------------------------------------------------------


def proxy(me: NodeId = "tail", *view: NodeId, settings: PullSettings | None = None) -> PullSource:
    views = Views(me, "eu", ViewsSettings(), random.Random(4), CHAIN, replica=True)
    views.handle(0.0, Received("x", View(tuple((n, 0) for n in view), CHAIN, reply_wanted=False)))
    history = History("s", counted=True)
    history.accept(span(1, 9))
    made = PullSource(me, settings or PullSettings(proxy_fanout=1), views, random.Random(5), {"s": history})
    made.start(0.0)
    made.handle(0.0, Expired(ShuffleTick(1)))
    made.check()
    return made


def test_the_proxy_offers_what_is_newly_committed_once() -> None:
    made = proxy("tail", "a")
    assert singly(made.advance(0.0, "s")) == [Send("a", offer(9))]
    assert made.advance(0.0, "s") == ()
    made.histories["s"].accept(span(9, 12))
    assert singly(made.advance(0.0, "s")) == [Send("a", offer(12))]
    made.check()


def test_the_proxy_answers_requests_from_its_history() -> None:
    made = proxy()
    answer = made.handle(0.0, Received("a", want(3, 20)))
    assert answer == [Send("a", know(span(3, 9, asof=9), horizon=9))]
    assert made.handle(0.0, Received("a", want(9, 20))) == [Send("a", know(horizon=9))]


def test_the_proxy_shortens_long_answers() -> None:
    made = proxy(settings=PullSettings(reply_rows=3))
    shortened = [Send("a", know(span(1, 4, asof=9), horizon=9))]
    assert made.handle(0.0, Received("a", want(1, 9))) == shortened


def test_internal_streams_are_neither_offered_nor_served() -> None:
    made = proxy()
    made.histories = {"_publishers": made.histories["s"]}
    assert made.handle(0.0, Received("a", Want("_publishers", 1, 3))) == [Report("bad_message")]
    assert made.handle(0.0, Received("a", Probe())) == []


def test_any_replica_serves_what_is_committed_but_only_the_tail_offers() -> None:
    made = proxy("head", "a")
    assert made.advance(0.0, "s") == ()
    assert made.handle(0.0, Received("a", want(1, 3))) == [Send("a", know(span(1, 3, asof=9), horizon=9))]
    assert singly(made.handle(0.0, Expired(ShuffleTick(2)))) == [SetTimer(0.03, ShuffleTick(3))]


def test_the_proxy_repeats_its_offers_on_shuffle() -> None:
    made = proxy("tail", "a")
    again = [Send("a", offer(9)), SetTimer(0.03, ShuffleTick(3))]
    assert singly(made.handle(0.0, Expired(ShuffleTick(2)))) == again
    assert made.handle(0.0, Received("b", Probe())) == [Send("b", offer(9))]
    assert made.handle(0.0, Received("a", offer(3))) == ()


def test_the_proxy_ignores_and_counts_unknown_streams() -> None:
    made = proxy()
    assert made.handle(0.0, Received("a", Want("t", 1, 3))) == [Report("bad_message")]
    assert made.handle(0.0, Received("a", want(3, 3))) == [Report("bad_message")]


# --- a region ---------------------------------------------------------------------------------------------


class Node:
    """Views and one side of the pull protocol."""

    def __init__(self, views: Views, pull: PullMember | PullSource) -> None:
        self.views = views
        self.pull = pull

    def start(self, now: float) -> Effects:
        return [*self.views.start(now), *self.pull.start(now)]

    def handle(self, now: float, input: Input) -> Effects:
        what: object = input.message if isinstance(input, Received) else getattr(input, "timer", input)
        machine = self.views if isinstance(what, View | GossipTick) else self.pull
        effects = machine.handle(now, input)
        machine.check()
        return effects


class Region:
    """Clients and replicas on a heap of inputs; messages take 1-2 ms, may be lost or doubled, nodes may be down."""

    def __init__(
        self,
        settings: PullSettings,
        clients: int = 60,
        views: ViewsSettings | None = None,
        loss: float = 0.0,
        seed: int = 1,
    ) -> None:
        self.rng = random.Random(seed)
        self.views = views or ViewsSettings(size=10, period=0.1)
        self.settings = settings
        self.loss = loss
        self.down: set[NodeId] = set()
        self.now = 0.0
        self.heap: list[tuple[float, int, NodeId, Input]] = []
        self.serial = 0
        self.nodes: dict[NodeId, Node] = {}
        self.counts: Counter[str] = Counter()
        self.sent: Counter[type] = Counter()
        self.horizons: dict[NodeId, int] = {}
        self.copies: dict[NodeId, History] = {}  # what each client makes of the spans it is handed
        self.published = 1
        for replica in CHAIN.replicas:
            self.add(replica, CHAIN)
        for i in range(clients):
            self.add(f"c{i:02}", CHAIN)

    def add(self, name: NodeId, chain: ChainConfig) -> None:
        """A node starts, now."""
        replica = name in chain.replicas
        views = Views(name, "eu", self.views, self.child(), chain, replica=replica)
        if replica:
            history = History("s", counted=True)
            node = Node(views, PullSource(name, self.settings, views, self.child(), {"s": history}))
        else:
            node = Node(views, PullMember(name, self.settings, views, self.child(), {}))
            self.horizons[name] = 1
            self.copies[name] = History("s", counted=True)
        self.nodes[name] = node
        self.carry(name, node.start(self.now))

    def child(self) -> random.Random:
        return random.Random(self.rng.getrandbits(64))

    def push(self, at: float, node: NodeId, input: Input) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (at, self.serial, node, input))

    def carry(self, src: NodeId, effects: Effects) -> None:
        for effect in singly(effects):
            match effect:
                case Send(to, message):
                    self.sent[type(message)] += 1
                    for chance in (1 - self.loss, self.loss):
                        if self.rng.random() < chance:
                            self.push(self.now + 0.001 + self.rng.random() * 0.001, to, Received(src, message))
                case SetTimer(delay, timer):
                    self.push(self.now + delay, src, Expired(timer))
                case Report(name, value):
                    self.counts[name] += int(value)
                case Deliver(Span() as span):
                    assert span.lo == self.horizons[src], f"{src} expects {self.horizons[src]}, gets {span.lo}"
                    self.horizons[src] = span.hi
                    self.copies[src].accept(span)

    def run(self, until: float) -> None:
        while self.heap and self.heap[0][0] <= until:
            self.now, _, name, input = heapq.heappop(self.heap)
            if name not in self.down:
                self.carry(name, self.nodes[name].handle(self.now, input))
        self.now = until

    def publish(self, rows: int, collect_before: int | None = None) -> None:
        """Commit rows at every replica that is up; the last may collect what is before some number."""
        lo, hi = self.published, self.published + rows
        collectors = () if collect_before is None else ((hi - 1, collect_before),)
        self.published = hi
        for replica in CHAIN.replicas:
            if replica not in self.down:
                pull = self.nodes[replica].pull
                assert isinstance(pull, PullSource)
                pull.histories["s"].accept(Span.of("s", lo, CountedRows(lo, hi, SIZE, collectors)))
                self.carry(replica, pull.advance(self.now, "s"))

    def run_load(self, batches: int = 100, rows: int = 50) -> None:
        for _ in range(batches):
            self.publish(rows)
            self.run(self.now + 0.005)

    def settle(self, seconds: float) -> list[NodeId]:
        """Let everything arrive; who has not got everything?"""
        deadline = self.now + seconds
        while self.now < deadline and self.lacking():
            self.run(self.now + 0.01)
        return self.lacking()

    def lacking(self) -> list[NodeId]:
        return [n for n, horizon in self.horizons.items() if n not in self.down and horizon != self.published]


def test_all_events_are_delivered_to_each_correct_client_once_and_in_order() -> None:
    region = Region(PullSettings())
    region.run(0.5)
    region.run_load()
    assert region.settle(0.5) == []
    assert region.published == 5001
    assert region.counts["duplicate_rows"] == region.counts["proxy_fallback"] == region.counts["contradiction"] == 0


def test_most_notifies_are_useless() -> None:
    region = Region(PullSettings())
    region.run(0.5)
    region.sent.clear()
    region.run_load()
    assert region.sent[Want] < region.sent[Offer] / 2


def test_messages_lost_and_doubled_cost_time_but_no_event() -> None:
    region = Region(PullSettings(), loss=0.05)
    region.run(0.5)
    region.run_load()
    assert region.settle(10.0) == []
    assert region.counts["proxy_fallback"] > 0 and region.counts["duplicate_rows"] > 0


def test_the_narrowest_bounds_cost_time_but_no_event() -> None:
    narrow = PullSettings(recv_rows=70, held_rows=120, reply_rows=30, asks=3)
    region = Region(narrow, clients=20, loss=0.02)
    region.run_load(30)
    assert region.settle(20.0) == []
    assert {"recv_overflow", "held_overflow", "ask_overflow", "proxy_fallback"} <= region.counts.keys()


def test_crashed_peers_do_not_keep_others_from_delivering() -> None:
    region = Region(PullSettings())
    region.run(0.5)
    region.run_load(40)
    region.down = {f"c{i:02}" for i in range(0, 60, 2)}
    region.run_load(40)
    assert region.settle(2.0) == []


def test_clients_whose_recv_is_tiny_fall_back_onto_the_proxy() -> None:
    region = Region(PullSettings(recv_rows=60, reply_rows=60))
    region.run(0.5)
    region.run_load()
    assert region.settle(4.0) == []
    assert region.counts["proxy_fallback"] > 0 and region.counts["recv_overflow"] > 0


def test_a_client_that_joins_late_catches_up_in_pieces() -> None:
    region = Region(PullSettings(recv_rows=500, reply_rows=200), clients=20)
    region.run_load(60)
    region.add("late", CHAIN)
    assert region.settle(2.0) == []


def test_a_late_client_is_told_what_was_collected() -> None:
    region = Region(PullSettings(recv_rows=100), clients=20)
    region.run_load(40)
    region.publish(10, collect_before=1500)
    region.run_load(10)
    assert region.settle(2.0) == []
    region.add("late", CHAIN)
    assert region.settle(2.0) == [] and region.counts["tombstone_delivered"] > 0
    assert {copy.live for copy in region.copies.values()} == {region.published - 1500}


@pytest.mark.parametrize("rule", ["paper", "swap"])
def test_when_the_tail_crashes_the_new_tail_goes_on(rule: str) -> None:
    views = ViewsSettings(size=10, period=0.1, rule="paper" if rule == "paper" else "swap")
    region = Region(PullSettings(), views=views)
    region.run(0.5)
    region.run_load(20)
    region.down = {"tail"}
    region.run_load(20)
    region.nodes["head"].views.learn(ChainConfig("eu", 2, ("head",)))
    region.run_load(20)
    assert region.settle(6.0) == []
    region.run(region.now + 1.0)
    assert all(node.views.membership.epoch == 2 for name, node in region.nodes.items() if name != "tail")


def test_without_offers_probes_alone_bring_the_last_events() -> None:
    region = Region(PullSettings(shuffle=1e6, proxy_shuffle=1e6, fanout=0, proxy_fanout=0), clients=20)
    region.run(0.2)
    region.publish(50)
    assert region.settle(15.0) == []


def test_an_idle_region_without_shuffles_hardly_chatters() -> None:
    region = Region(PullSettings(shuffle=1e6, proxy_shuffle=1e6), clients=20)
    region.run(5.0)
    region.sent.clear()
    region.run(15.0)
    assert region.sent[Probe] <= 20 * 11 and region.sent[Offer] == 0


def test_the_same_seed_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        region = Region(PullSettings(), clients=20, loss=0.02)
        region.run_load(30)
        region.settle(3.0)
        runs.append((region.now, region.serial, region.sent, region.counts))
    assert runs[0] == runs[1]
