"""Gossip membership: sentences of paper 000, section 3.2, and of E2 and E3."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable

from tidings.core.ids import NodeId
from tidings.protocols.fabrics.views import GossipTick, View, Views, ViewsSettings
from tidings.protocols.kernel import Deliver, Effects, Expired, Received, Report, Send, SetTimer
from tidings.protocols.replication.chain_config import ChainConfig

CHAIN = ChainConfig("eu", 1, ("head", "middle", "proxy"))
PAPER = ViewsSettings(rule="paper")
SWAP = ViewsSettings()


class Switched(Views):
    """The paper's rule with a reinforcement that can be switched off: views are mixed, the sender is not added."""

    reinforced = True

    def _unite(self, src: NodeId, nodes: Iterable[NodeId], *, reinforce: bool = True) -> None:
        super()._unite(src, nodes, reinforce=self.reinforced)


def make(me: NodeId, settings: ViewsSettings = SWAP, membership: ChainConfig = CHAIN, seed: int = 1) -> Views:
    return Views(me, "eu", settings, random.Random(seed), membership, replica=me in membership.replicas)


def feed(views: Views, *nodes: NodeId, src: NodeId = "proxy") -> None:
    views.handle(0.0, Received(src, View(tuple((n, 0) for n in nodes), CHAIN, reply_wanted=False)))


def tick(views: Views) -> Effects:
    """Run the round that the last timer stands for."""
    if not views._generation:
        views.start(0.0)
    return views.handle(0.0, Expired(GossipTick(views._generation)))


def sent(effects: Effects) -> list[tuple[NodeId, View]]:
    return [(e.to, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, View)]


def members(view: View) -> list[NodeId]:
    return [node for node, _ in view.entries]


class Rounds:
    """Gossip among many members, one after the other in each round; who is down neither starts nor answers."""

    def __init__(self, clients: int, settings: ViewsSettings, kind: Callable[..., Views] = Views) -> None:
        names = ["proxy", *[f"c{i:03}" for i in range(clients)]]
        chain = ChainConfig("eu", 1, ("proxy",))
        seeds = random.Random(7)
        self.members = {
            name: kind(name, "eu", settings, random.Random(seeds.getrandbits(64)), chain, replica=name == "proxy")
            for name in names
        }
        self.down: set[NodeId] = set()
        self.order = random.Random(8)
        for member in self.members.values():
            member.start(0.0)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            names = sorted(self.members)
            self.order.shuffle(names)
            for name in names:
                if name not in self.down:
                    self.carry(name, tick(self.members[name]))

    def carry(self, src: NodeId, effects: Effects) -> None:
        for to, message in sent(effects):
            if to not in self.down:
                self.carry(to, self.members[to].handle(0.0, Received(src, message)))
                self.members[to].check()

    def in_degrees(self) -> Counter[NodeId]:
        degrees = Counter({name: 0 for name in self.members if name not in self.down})
        for name, member in self.members.items():
            if name not in self.down:
                degrees.update(member.view)
        return degrees

    def reached_from(self, start: NodeId) -> set[NodeId]:
        """Who can be reached along views in either direction."""
        links: dict[NodeId, set[NodeId]] = {name: set() for name in self.members}
        for name, member in self.members.items():
            for other in member.view:
                links[name].add(other)
                links[other].add(name)
        seen, queue = {start}, [start]
        while queue:
            fresh = sorted(links[queue.pop()] - seen)
            seen.update(fresh)
            queue.extend(fresh)
        return seen


# --- one member -------------------------------------------------------------------------------------------


def test_a_new_client_starts_with_a_view_consisting_of_only_the_local_proxy() -> None:
    views = make("a")
    assert (views.view, views.neighbours(), views.peers()) == ([], ("proxy",), ())
    assert tick(views) == [
        Send("proxy", View((("a", 0),), CHAIN, reply_wanted=True)),
        SetTimer(0.5, GossipTick(2)),
    ]


def test_the_first_round_comes_within_a_period() -> None:
    (timer,) = make("a").start(0.0)
    assert isinstance(timer, SetTimer) and 0 <= timer.delay < 0.5 and timer.timer == GossipTick(1)


def test_if_the_view_is_smaller_than_v_the_client_adds_the_local_proxy_automatically() -> None:
    views = make("a", ViewsSettings(size=3))
    feed(views, "b", "c")
    assert views.neighbours() == ("b", "c", "proxy")
    feed(views, "d")
    assert views.neighbours() == ("b", "c", "d")


def test_the_proxy_in_the_view_is_a_neighbour_but_no_peer_to_tell_of_progress() -> None:
    views = make("a")
    feed(views, "b", "proxy")
    assert (views.neighbours(), views.peers()) == (("b", "proxy"), ("b",))


def test_each_client_occasionally_gossips_with_its_proxy_even_if_it_is_not_in_its_view() -> None:
    views = make("a", ViewsSettings(size=2, proxy_every=4))
    partners = []
    for _ in range(8):
        feed(views, "b", "c", src="b")
        ((to, _),) = sent(tick(views))
        partners.append(to)
        views.handle(0.0, Received(to, View((), CHAIN, reply_wanted=False)))
    assert [to == "proxy" for to in partners] == [False, False, False, True] * 2


def test_the_local_proxy_is_one_of_the_clients_that_is_gossiping() -> None:
    views = make("proxy")
    assert views.is_proxy and sent(tick(views)) == []
    feed(views, "a", src="a")
    ((to, view),) = sent(tick(views))
    assert (to, view.entries) == ("a", (("proxy", 0),))


def test_a_replica_that_is_not_the_tail_answers_but_starts_no_round() -> None:
    views = make("middle")
    feed(views, "b", src="b")
    assert sent(tick(views)) == []
    ((to, view),) = sent(views.handle(0.0, Received("a", View((("a", 0),), CHAIN, reply_wanted=True))))
    assert (to, members(view), view.reply_wanted) == ("a", ["b"], False)


def test_a_replica_without_a_configuration_is_not_the_proxy() -> None:
    assert not make("lone", membership=ChainConfig("eu", 0, ("lone",))).is_proxy


def test_the_union_of_both_views_is_cut_to_v_and_the_sender_stays() -> None:
    for seed in range(20):
        views = make("a", ViewsSettings(rule="paper", size=3), seed=seed)
        feed(views, "b", "c", "d", src="b")
        views.handle(0.0, Received("z", View((("e", 0), ("a", 0), ("f", 0)), CHAIN, reply_wanted=False)))
        assert len(views.view) == 3 and "z" in views.view and set(views.view) <= {"b", "c", "d", "e", "f", "z"}
        views.check()


def test_by_the_paper_a_client_answers_a_view_with_its_own() -> None:
    views = make("a", PAPER)
    feed(views, "b", "c", src="b")
    ((to, view),) = sent(views.handle(0.0, Received("z", View((("e", 0),), CHAIN, reply_wanted=True))))
    assert (to, members(view), view.reply_wanted) == ("z", ["b", "c"], False)
    assert sorted(views.view) == ["b", "c", "e", "z"]


def test_a_swap_asks_the_oldest_and_links_turn_round() -> None:
    views = make("a", ViewsSettings(size=3, exchange=2))
    views.handle(0.0, Received("z", View((("b", 1), ("c", 3), ("d", 2)), CHAIN, reply_wanted=False)))
    ((to, view),) = sent(tick(views))
    assert to == "c" and view.entries[0] == ("a", 0) and len(view.entries) == 2
    given = view.entries[1][0]
    views.handle(0.0, Received("c", View((("e", 0), ("f", 1)), CHAIN, reply_wanted=False)))
    assert set(views.view) == {"b", "d", "e", "f"} - {given}


def test_a_swap_gives_up_the_partners_place_first() -> None:
    views = make("a", ViewsSettings(size=3, exchange=2))
    views.handle(0.0, Received("z", View((("b", 1), ("c", 3), ("d", 2)), CHAIN, reply_wanted=False)))
    tick(views)
    views.handle(0.0, Received("c", View((("e", 0),), CHAIN, reply_wanted=False)))
    assert set(views.view) == {"b", "d", "e"}


def test_a_swap_keeps_the_younger_of_two_ages_and_never_the_member_itself() -> None:
    views = make("a")
    for age in (3, 1, 2):
        views.handle(0.0, Received("z", View((("b", age), ("a", 0)), CHAIN, reply_wanted=False)))
    assert views._ages == {"b": 1}


def test_a_swap_drops_a_neighbour_that_does_not_answer() -> None:
    views = make("a", ViewsSettings(proxy_every=1000))
    feed(views, "b", "c", src="b")
    for _ in range(40):
        tick(views)
    assert views.view == []


def test_a_larger_epoch_is_learned_from_gossip_delivered_and_passed_on() -> None:
    views = make("a")
    newer = ChainConfig("eu", 2, ("head", "middle"))
    effects = views.handle(0.0, Received("b", View((("b", 0),), newer, reply_wanted=True)))
    assert effects == [Deliver(newer), Send("b", View((), newer, reply_wanted=False))]
    assert views.neighbours() == ("b", "middle")
    assert not views.learn(CHAIN) and not views.learn(ChainConfig("eu", 2, ("other",)))
    assert views.membership == newer


def test_a_new_tail_is_greeted_in_the_next_round() -> None:
    views = make("a", ViewsSettings(size=2, proxy_every=1000))
    feed(views, "b", "c", src="b")
    views.learn(ChainConfig("eu", 2, ("head", "middle")))
    asked = [sent(tick(views))[0][0]]
    views.handle(0.0, Received("middle", View((), CHAIN, reply_wanted=False)))
    asked.append(sent(tick(views))[0][0])
    assert asked[0] == "middle" and asked[1] in {"b", "c"}


def test_of_the_replicas_only_the_tail_stays_in_a_view() -> None:
    views = make("a")
    feed(views, "b", "proxy", "head")
    assert sorted(views.view) == ["b", "proxy"]
    assert views.learn(ChainConfig("eu", 2, ("head", "proxy", "new")))
    assert (views.view, views.neighbours()) == (["b"], ("b", "new"))


def test_a_replica_learns_memberships_from_its_chain_alone() -> None:
    views = make("proxy")
    newer = ChainConfig("eu", 2, ("head", "middle"))
    effects = views.handle(0.0, Received("b", View((("b", 0),), newer, reply_wanted=True)))
    assert effects == [Send("b", View((), CHAIN, reply_wanted=False))] and views.is_proxy


def test_when_the_tail_is_silent_the_other_replicas_are_asked_in_turn() -> None:
    views = make("a")
    asked = [sent(tick(views))[0][0] for _ in range(4)]
    assert asked == ["proxy", "middle", "head", "proxy"]
    views.handle(0.0, Received("proxy", View((), CHAIN, reply_wanted=False)))
    assert sent(tick(views))[0][0] == "proxy"


def test_while_all_replicas_are_silent_peers_still_gossip() -> None:
    views = make("a", ViewsSettings(rule="paper", proxy_every=10, size=5))
    feed(views, *"bcdef", src="b")
    asked = []
    for _ in range(20):
        asked.append(sent(tick(views))[0][0])
        if asked[-1] not in CHAIN.replicas:
            feed(views, *"bcdef", src=asked[-1])
    assert [at for at, to in enumerate(asked, 1) if to in CHAIN.replicas] == [10, 11, 12, 20]


def test_a_member_not_heard_of_for_long_is_forgotten() -> None:
    views = make("a", ViewsSettings(rule="paper", size=2))
    feed(views, "b", "c", src="b")
    lengths = []
    for _ in range(3 * 2 + 1):
        tick(views)
        lengths.append(len(views.view))
    assert lengths[:2] == [2, 2] and lengths[-1] == 0


def test_a_view_of_another_region_is_ignored_and_counted() -> None:
    views = make("a")
    foreign = View((("x", 0),), ChainConfig("us", 9, ("p",)), reply_wanted=True)
    assert views.handle(0.0, Received("x", foreign)) == [Report("bad_message")] and views.view == []


def test_a_stale_timer_is_ignored() -> None:
    views = make("a")
    tick(views)
    assert views.handle(0.0, Expired(GossipTick(1))) == ()


# --- many members -----------------------------------------------------------------------------------------


def test_with_reinforcement_nearly_nobody_is_in_nobodys_view_without_it_many_are() -> None:
    alone = {}
    for reinforced in (True, False):
        graph = Rounds(200, ViewsSettings(rule="paper", size=10), Switched)
        graph.run(20)
        for member in graph.members.values():
            assert isinstance(member, Switched)
            member.reinforced = reinforced
        graph.run(20)
        alone[reinforced] = sum(degree == 0 for degree in graph.in_degrees().values())
    assert alone[True] <= 8 and alone[False] >= 50, alone


def test_a_swap_keeps_in_degrees_closer_together_than_the_papers_rule() -> None:
    spread = {}
    for settings in (PAPER, SWAP):
        graph = Rounds(200, settings)
        graph.run(40)
        degrees = graph.in_degrees()
        del degrees["proxy"]
        spread[settings.rule] = statistics.pstdev(degrees.values())
        assert settings.rule == "paper" or min(degrees.values()) >= 8
    assert spread["swap"] < 5 < spread["paper"] - 1, spread


def crash_a_third(settings: ViewsSettings, rounds: int) -> float:
    """How much of the in-degree of crashed clients is left after some rounds."""
    graph = Rounds(100, settings)
    graph.run(20)
    graph.down = {f"c{i:03}" for i in range(0, 100, 3)}
    before = sum(graph.in_degrees()[name] for name in graph.down)
    graph.run(rounds)
    return sum(graph.in_degrees()[name] for name in graph.down) / before


def test_crashed_clients_automatically_disappear_from_views() -> None:
    assert crash_a_third(ViewsSettings(rule="paper", size=5), 40) == 0
    assert crash_a_third(SWAP, 40) == 0


def test_by_the_papers_rule_crashed_clients_linger_where_views_overlap_much() -> None:
    assert crash_a_third(PAPER, 40) > 0.5


def test_partitions_fix_themselves_through_the_proxy() -> None:
    graph = Rounds(40, ViewsSettings(size=5))
    graph.run(20)
    for name, member in graph.members.items():  # two halves that do not know each other, nor the proxy
        half = [n for n in sorted(graph.members) if n not in ("proxy", name) and (n < "c020") == (name < "c020")]
        member._ages = {} if name == "proxy" else dict.fromkeys(half[:5], 0)
        member._changed()
    assert len(graph.reached_from("c000")) == 20
    graph.run(25)
    assert len(graph.reached_from("c000")) == 41


def test_the_same_seed_gives_the_same_views() -> None:
    first, second = Rounds(30, SWAP), Rounds(30, SWAP)
    first.run(10)
    second.run(10)
    assert [m.view for m in first.members.values()] == [m.view for m in second.members.values()]


def test_a_replica_that_only_answers_forgets_who_has_left_all_the_same() -> None:
    chain = ChainConfig("eu", 1, ("head", "tail"))
    head = Views("head", "eu", ViewsSettings(size=2), random.Random(1), chain, replica=True)
    head.start(0.0)
    head.handle(0.0, Received("x", View((("gone", 0),), chain, reply_wanted=False)))
    assert "gone" in head.view
    for generation in range(1, 6):
        assert [e for e in head.handle(0.0, Expired(GossipTick(generation))) if isinstance(e, Send)] == []
    assert head.view == []
