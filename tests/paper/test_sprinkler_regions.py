"""Sentences of paper 000, section 3.1, figures 1 and 2 (A1.12-A1.24): between regions, as lists of effects.

Numbers are half-open here: the paper's cnt = 3 is our horizon 4, the first number not known.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from paper.rig import Rig
from tidings.core.history import History
from tidings.core.rows import CountedRows
from tidings.core.span import Span
from tidings.protocols.credit import CreditWindow
from tidings.protocols.kernel import Deliver, Effect, Effects, Message, Received, Report, Send, SetTimer
from tidings.protocols.messages import Done, Know
from tidings.protocols.nodes.replica import Replica, ReplicaSettings
from tidings.protocols.regions.interregion import (
    Advertise,
    AdvertiseTick,
    Arrived,
    InterRegion,
    InterRegionSettings,
    RemoteSubscriber,
    Solicit,
    Subscribe,
    Unsubscribe,
)
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Beat, Current
from tidings.protocols.services.catalog import StreamDef
from tidings.protocols.services.publishing import OpenSession, Publish, SessionOpened

SIZE = 10
REGIONS = {"w": ("w0",), "x": ("x0", "x1"), "y": ("y0",), "z": ("z0",)}


def span(lo: int, hi: int) -> Span:
    return Span.of("s", lo, CountedRows(lo, hi, SIZE))


def know(lo: int, hi: int, asof: int | None = None) -> Know:
    rows = CountedRows(lo, hi, SIZE)
    return Know("s", (Span("s", lo, hi, lo if asof is None else asof, rows),), hi)


class Region(InterRegion):
    """The proxy of region z, one replica: head and tail. Stream s is y's, t its own; ``own`` is its progress in s."""

    def __init__(self, own: int = 1, **settings: float) -> None:
        histories = {stream: History(stream, counted=True) for stream in ("s", "t")}
        if own > 1:
            histories["s"].accept(span(1, own))
        self.own = own
        self.full = False
        peers = {name: ChainConfig(name, 1, REGIONS[name]) for name in ("w", "x", "y")}
        chosen = InterRegionSettings(**settings)  # type: ignore[arg-type]
        owners = {"s": "y", "t": "z"}
        super().__init__("z0", "z", histories, owners, peers, self._progress, lambda: self.full, chosen)
        self.reconfigure(0.0, ChainConfig("z", 1, ("z0",)), is_head=True, is_tail=True)

    def _progress(self, stream: str) -> int:
        return self.own if stream == "s" else self.histories[stream].horizon

    def hears(self, now: float, src: str, message: Message) -> Effects:
        effects = self.handle(now, Received(src, message))
        self.check()
        return effects

    def advertised(self, now: float, src: str, horizon: int) -> list[Effect]:
        """What an advertisement of stream s makes this region do."""
        region = ChainConfig(src[0], 1, REGIONS[src[0]])
        return list(self.hears(now, src, Advertise(region, {"s": horizon, "t": 99})))


def sends(effects: Sequence[Effect]) -> list[tuple[str, Message]]:
    return [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]


# --- addRemoteEvent ---------------------------------------------------------------------------


def test_a1_16_a_remote_event_is_accepted_if_its_number_exceeds_the_count() -> None:
    region = Region()
    region.advertised(1.0, "y0", 6)
    assert region.hears(1.1, "y0", know(1, 4)) == [Deliver(Arrived((span(1, 4),))), Send("y0", Done("s", 4))]


def test_a1_16_of_a_run_that_overlaps_only_what_is_new_is_accepted() -> None:
    region = Region(own=3)
    region.advertised(1.0, "y0", 6)
    assert region.hears(1.1, "y0", know(1, 6)) == [Deliver(Arrived((span(3, 6),))), Send("y0", Done("s", 6))]


def test_a1_16_an_event_that_is_known_is_only_acknowledged() -> None:
    region = Region(own=6)
    region.advertised(1.0, "y0", 9)
    assert region.hears(1.1, "y0", know(1, 6)) == [Send("y0", Done("s", 6))]


def test_a1_19_where_the_channel_is_not_fifo_a_gap_is_asked_for_once() -> None:
    region = Region()
    region.advertised(1.0, "y0", 9)
    assert sends(region.hears(1.1, "y0", know(4, 6))) == [("y0", Subscribe("s", 1))]
    assert region.hears(1.1, "y0", know(6, 9)) == ()


# --- rcvAdvertisement ----------------------------------------------------------------------------------------


def test_a1_14_initially_no_stream_has_a_source_and_no_event_is_known() -> None:
    region = Region()
    assert region.expects == {} and {h.horizon for h in region.histories.values()} == {1}


def test_a1_19_a_proxy_subscribes_to_at_most_one_other_proxy_which_need_not_be_the_owner() -> None:
    region = Region()
    assert sends(region.advertised(1.0, "x1", 4)) == [("x1", Subscribe("s", 1))]
    assert sends(region.advertised(1.1, "w0", 4)) == []
    assert region.expects["s"].source == "x1"


def test_a1_19_the_owner_is_preferred_because_its_path_is_the_shortest() -> None:
    region = Region()
    region.advertised(1.0, "x1", 4)
    assert sends(region.advertised(1.1, "y0", 4)) == [("x1", Unsubscribe("s")), ("y0", Subscribe("s", 1))]


def test_a1_19_an_owner_that_has_just_as_much_is_preferred_too_but_not_one_that_has_less() -> None:
    region = Region(own=4)
    region.advertised(1.0, "x1", 5)
    assert sends(region.advertised(1.1, "y0", 3)) == []
    assert sends(region.advertised(1.2, "y0", 4)) == [("x1", Unsubscribe("s")), ("y0", Subscribe("s", 4))]


def test_a1_19_when_subscribing_a_proxy_tells_how_far_it_got() -> None:
    region = Region(own=3)
    assert sends(region.advertised(1.0, "y0", 9)) == [("y0", Subscribe("s", 3))]


def test_a1_17_own_streams_are_not_subscribed_to() -> None:
    region = Region()
    region.advertised(1.0, "y0", 4)
    assert "t" not in region.expects


@pytest.mark.parametrize(
    ("elapsed", "advertised", "switches"),
    [(0.5, 13, False), (0.5, 15, True), (1.0, 12, False), (1.0, 13, True), (2.0, 12, True), (9.0, 10, False)],
)
def test_a1_17_with_a_fixed_c_the_source_is_changed_if_cnt_exceeds_expects_by_c_over_elapsed(
    elapsed: float, advertised: int, switches: bool
) -> None:
    region = Region(c=2.0)
    region.advertised(1.0, "y0", 10)
    effects = region.advertised(1.0 + elapsed, "x1", advertised)
    assert (advertised > 10 + 2.0 / elapsed) is switches
    assert sends(effects) == ([("y0", Unsubscribe("s")), ("x1", Subscribe("s", 1))] if switches else [])


@pytest.mark.parametrize(("elapsed", "switches"), [(0.1, False), (0.7, False), (0.71, True), (5.0, True)])
def test_a1_18_without_a_fixed_c_a_source_is_left_that_showed_no_progress_for_most_of_a_period(
    elapsed: float, switches: bool
) -> None:
    region = Region(period=1.0)
    region.advertised(1.0, "y0", 10)
    assert bool(sends(region.advertised(1.0 + elapsed, "x1", 10))) is switches


@pytest.mark.parametrize("c", [None, 0.0])
def test_a1_18_a_source_is_not_left_for_one_that_has_nothing_new(c: float | None) -> None:
    region = Region(own=12, **({} if c is None else {"c": c}))
    region.advertised(1.0, "y0", 13)
    assert sends(region.advertised(9.0, "x1", 12)) == []


def test_a1_24_when_no_time_has_passed_the_threshold_is_infinite() -> None:
    region = Region(c=0.001)
    region.advertised(1.0, "y0", 10)
    assert sends(region.advertised(1.0, "x1", 1_000_000)) == []


def test_a1_24_a_source_that_delivers_is_kept() -> None:
    region = Region(own=9)
    region.advertised(1.0, "y0", 10)
    for now in (2.0, 3.0, 4.0):
        region.own = 10 * int(now)
        region.advertised(now, "y0", 10 * int(now) + 1)
    assert sends(region.advertised(4.1, "x1", 42)) == []


def test_a1_24_a_source_that_is_ahead_and_does_not_deliver_is_left() -> None:
    region = Region(own=9)
    for now in (1.0, 2.0, 3.0):
        region.advertised(now, "y0", 10 + int(now))
    assert sends(region.advertised(3.1, "x1", 12)) == [("y0", Unsubscribe("s")), ("x1", Subscribe("s", 9))]


def test_a1_24_a_source_that_goes_on_talking_but_has_nothing_new_is_left_for_one_that_has() -> None:
    region = Region(own=9)
    region.advertised(1.0, "x1", 10)
    region.own = 10
    heard = []
    for now in (2.0, 3.0, 4.0):  # x is cut off from y, z too; x's advertisement comes just before w's
        region.advertised(now, "x1", 10)
        heard += sends(region.advertised(now + 0.1, "w0", 10 + int(now)))
    assert heard[:2] == [("x1", Unsubscribe("s")), ("w0", Subscribe("s", 10))]


def test_a1_24_a_source_that_is_ahead_but_sends_nothing_is_subscribed_to_again() -> None:
    region = Region()
    region.advertised(1.0, "y0", 10)
    assert sends(region.advertised(2.0, "y0", 12)) == [("y0", Subscribe("s", 1))]


# --- advertising and serving ---------------------------------------------------------------------------------


def test_a1_20_each_proxy_periodically_broadcasts_its_progress_on_each_stream_to_the_other_proxies() -> None:
    region = Region(own=5)
    tick = AdvertiseTick(region.generation)
    effects = region._advertise_tick(region.generation)
    epochs = {"w": 1, "x": 1, "y": 1}
    own = ChainConfig("z", 1, ("z0",))
    advert = Advertise(own, {"s": 5}, {}, epochs)  # of the other stream there is nothing yet
    assert effects == [SetTimer(1.0, tick), *[Send(to, advert) for to in ("w0", "x0", "x1", "y0")]]


def test_a1_41_a_new_tail_advertises_at_once_and_a_new_head_asks_for_advertisements() -> None:
    region = Region()
    joint = ChainConfig("z", 2, ("z1", "z0"))
    region.reconfigure(1.0, joint, is_head=False, is_tail=True)
    assert sends(region.reconfigure(2.0, ChainConfig("z", 3, ("z1",)), is_head=False, is_tail=False)) == []
    effects = region.reconfigure(3.0, ChainConfig("z", 4, ("z0",)), is_head=True, is_tail=True)
    kinds = [(to, type(message)) for to, message in sends(effects)]
    assert kinds == [(peer, kind) for kind in (Advertise, Solicit) for peer in ("w0", "x0", "x1", "y0")]
    assert [type(message) for _, message in sends(region.hears(3.1, "x0", Solicit()))] == [Advertise]


def test_a1_41_a_new_tail_that_knows_an_old_chain_only_is_told_of_the_new_one_by_whoever_is_left() -> None:
    region = Region(own=5)
    chain = ChainConfig("z", 3, ("z1", "z0", "z2"))
    newcomer = Advertise(ChainConfig("y", 2, ("y1",)), {"s": 5}, {}, {"z": 1})
    region.reconfigure(1.0, chain, is_head=False, is_tail=False)
    assert sends(region.hears(1.1, "y1", newcomer)) == [("y1", Advertise(chain, {}))]
    told = Advertise(newcomer.membership, {"s": 5}, {}, {"z": 3})
    assert region.hears(1.2, "y1", told) == [], "who knows is not told again"
    region.reconfigure(2.0, ChainConfig("z", 4, ("z1", "z0")), is_head=False, is_tail=True)
    [(to, answer)] = sends(region.hears(2.1, "y1", told))
    assert to == "y1" and isinstance(answer, Advertise) and answer.horizons == {"s": 5}, "a tail says what it has, too"


def test_a1_42_when_a_source_hands_over_to_a_new_tail_the_subscription_moves_at_once() -> None:
    region = Region(own=4)
    region.advertised(1.0, "y0", 5)
    region.own = 5
    advert = Advertise(ChainConfig("y", 2, ("y0", "y1")), {"s": 5})
    assert ("y1", Subscribe("s", 5)) in sends(region.hears(1.1, "y1", advert))


def test_a1_19_a_source_starts_with_the_event_the_subscriber_named_and_sends_what_follows() -> None:
    region = Region(own=5)
    assert sends(region.hears(1.0, "x0", Subscribe("s", 3))) == [("x0", know(3, 5, asof=5))]
    region.histories["s"].accept(span(5, 8))
    assert sends(region.committed("s")) == [("x0", know(5, 8, asof=8))]
    region.hears(1.1, "x0", Unsubscribe("s"))
    region.histories["s"].accept(span(8, 9))
    assert region.committed("s") == []


def test_a1_16_a_proxy_whose_chain_is_full_takes_nothing_and_is_sent_it_again() -> None:
    region = Region()
    region.advertised(1.0, "y0", 4)
    region.full = True
    assert region.hears(1.1, "y0", know(1, 4)) == [Report("chain_busy")]


# --- two streams of one name (decision 0013) -----------------------------------------------------------------


def test_nothing_is_taken_of_a_name_while_a_definition_of_it_is_on_its_way_through_the_log() -> None:
    region = Region()
    region.pending = lambda stream: stream == "s"
    region.advertised(1.0, "y0", 4)
    assert region.hears(1.1, "y0", know(1, 4)) == [Report("definition_pending")]


# --- figure 2 ------------------------------------------------------------------------------------------------


class Figure2(Rig):
    """Proxies X, Y and Z of one replica each; Y owns stream s. Disks sync at once; a cut link loses what is sent."""

    SHOWN = (Advertise, Subscribe, Unsubscribe, Know)

    def __init__(self) -> None:
        super().__init__()
        self.cut: set[frozenset[str]] = set()
        self.seen: list[tuple[str, str, str]] = []
        self.number = 0
        self.streams = [StreamDef("s", "Y", counted=SIZE)]
        memberships = {name: ChainConfig(name, 1, (name,)) for name in "XYZ"}
        for name in "XYZ":
            peers = {other: each for other, each in memberships.items() if other != name}
            self.add(name, lambda durable, me=name, peers=peers: self._proxy(me, peers))  # type: ignore[misc]
            self.take(Beat)
            self.tell(name, Received("config", Current(memberships[name], self.machines[name].chain.nonce)))
        self.take()
        self.session = 0
        self.tell("Y", Received("driver", OpenSession("p", 1)))
        self.sync("Y")
        (opened,) = self.on_wire(SessionOpened)
        self.session = opened.session
        self.take()

    def _proxy(self, me: str, peers: dict[str, ChainConfig]) -> Replica:
        return Replica(me, me, "config", self.streams, peers, ReplicaSettings(), [], random.Random(me))

    def publish(self) -> None:
        """One more event of Y."""
        self.number += 1
        batch = Publish("s", "p", self.session, self.number, CountedRows(1, 2, SIZE))
        self.tell("Y", Received("driver", batch))
        self.run()

    def advertise(self, src: str) -> None:
        self.now += 1.0
        self.expire(AdvertiseTick(self.machines[src].inter_region.generation), src)
        self.run()

    def run(self) -> None:
        while self.sync("X", "Y", "Z") or self.wire:
            for letter in self.take():
                kept = frozenset(letter[:2]) not in self.cut
                if letter.dst in self.machines and isinstance(letter.message, self.SHOWN):
                    arrow = letter.src + (" -> " if kept else " -x ") + letter.dst
                    self.seen.append((arrow, type(letter.message).__name__, self._fields(letter.message)))
                if kept and letter.dst in self.machines:
                    self.tell(letter.dst, Received(letter.src, letter.message))

    @staticmethod
    def _fields(message: Message) -> str:
        match message:
            case Advertise():
                return str(message.horizons["s"])
            case Subscribe():
                return str(message.lo)
            case Know(_, (only,)):
                return f"[{only.lo}, {only.hi})"
        return ""

    def messages(self) -> list[tuple[str, str, str]]:
        """What was sent since the last call."""
        seen, self.seen = self.seen, []
        return seen


def test_a1_23_figure_2_the_subscription_changes_when_the_link_between_two_regions_goes_down() -> None:
    rig = Figure2()
    for _ in range(3):
        rig.publish()
    assert rig.messages() == []  # nobody has subscribed
    rig.advertise("Y")
    assert rig.messages() == [
        ("Y -> X", "Advertise", "4"),  # 1
        ("Y -> Z", "Advertise", "4"),  # 2
        ("X -> Y", "Subscribe", "1"),  # 3
        ("Z -> Y", "Subscribe", "1"),  # 4
        ("Y -> X", "Know", "[1, 4)"),  # 5-8: the paper draws one event per message, ours carries a run
        ("Y -> Z", "Know", "[1, 4)"),
    ]
    rig.publish()
    assert rig.messages() == [("Y -> X", "Know", "[4, 5)"), ("Y -> Z", "Know", "[4, 5)")]  # 9-11
    rig.cut.add(frozenset("YZ"))  # 12
    rig.publish()
    assert rig.messages() == [("Y -> X", "Know", "[5, 6)"), ("Y -x Z", "Know", "[5, 6)")]  # 13 is lost
    rig.advertise("X")
    assert rig.messages() == [
        ("X -> Y", "Advertise", "6"),
        ("X -> Z", "Advertise", "6"),  # 14: more than Z last heard from Y
        ("Z -x Y", "Unsubscribe", ""),
        ("Z -> X", "Subscribe", "5"),  # 15
        ("X -> Z", "Know", "[5, 6)"),  # 16
    ]
    rig.publish()
    assert rig.messages() == [
        ("Y -> X", "Know", "[6, 7)"),  # 18, 19: X still receives directly from Y
        ("Y -x Z", "Know", "[6, 7)"),
        ("X -> Z", "Know", "[6, 7)"),  # 17
    ]
    assert {rig.machines[name].log.histories["s"].horizon for name in "XYZ"} == {7}


# --- what no honest node sends ---------------------------------------------------------------------------------


def test_spans_of_another_stream_or_none_at_all_are_no_news() -> None:
    region = Region()
    region.hears(0.0, "y0", Advertise(ChainConfig("y", 1, REGIONS["y"]), {"s": 9}))
    for spans in [(), (Span("t", 1, 3, 1, CountedRows(1, 3, 10)),)]:
        assert region.hears(0.1, "y0", Know("s", spans, 9)) == [Report("bad_message")]


def test_a_subscription_below_the_first_number_is_refused() -> None:
    assert Region().hears(0.0, "y0", Subscribe("t", 0)) == [Report("bad_message")]


def test_what_is_not_acknowledged_is_sent_again_ever_later_and_one_message_at_a_time() -> None:
    """Else a slow path is filled with copies of what is still on its way."""
    subscription = RemoteSubscriber(1)
    subscription.unacked = CreditWindow([100 * at for at in range(1, 9)])
    due = []
    for tick in range(1, 9):
        subscription.idle = tick
        if tick >= subscription.due:
            subscription.again()
            due.append(tick)
    assert due == [1, 2, 4, 8]
    assert subscription.window == 1 and subscription.next == 1
    subscription.unacked = CreditWindow([100])
    subscription.progress(100)
    assert subscription.due == 9  # it took so long last time
    assert subscription.window == 2 and not subscription.unacked


def test_a_window_doubles_until_it_was_too_much_and_then_grows_slowly() -> None:
    subscription = RemoteSubscriber(1)
    subscription.unacked = CreditWindow(range(10, 330, 10))
    subscription.idle = 1
    subscription.again()
    assert subscription.enough == 16
    widths = []
    for _ in range(7):
        sent = [subscription.done + at for at in range(1, int(subscription.window) + 1)]
        subscription.unacked = CreditWindow(sent)
        subscription.progress(sent[-1])
        widths.append(subscription.window)
    assert widths == [2, 4, 8, 16, 17, 18, 19]
