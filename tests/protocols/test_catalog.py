"""Streams that are defined while the cluster runs: by their region's head, known everywhere, lost nowhere."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest

from paper.rig import Rig
from tidings.core.errors import BadInput
from tidings.core.rows import data_rows
from tidings.core.span import Span
from tidings.protocols.brokers.messages import Follow, Unfollowed
from tidings.protocols.kernel import Deliver, Effects, Expired, Input, Received, Report, Send, SetTimer, Timer
from tidings.protocols.messages import Know
from tidings.protocols.nodes.replica import Replica, ReplicaSettings
from tidings.protocols.regions.interregion import Advertise, AdvertiseTick
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Current
from tidings.protocols.services.catalog import (
    Catalog,
    Define,
    Defined,
    Describe,
    Description,
    NotDefined,
    StreamDef,
    Why,
    definition_rows,
)
from tidings.protocols.services.publishing import NotHead, OpenSession, Post, Publish, Publisher, PublishSettings
from tidings.sim.build import Deployment
from tidings.sim.scenario import LinkTable, RegionTable, Run, Scenario, Stream
from tidings.sim.scenario import PublisherTable as Load


def catalog(*known: StreamDef) -> Catalog:
    return Catalog("a", ("a", "b"), known)


def test_a_new_stream_gets_a_number_that_no_other_region_gives_out() -> None:
    ours, theirs = catalog(), Catalog("b", ("a", "b"), ())
    for name in ("x", "y"):
        ours.learn("a", ours.define("create", StreamDef(name, "")))
        theirs.learn("b", theirs.define("create", StreamDef(name, "")))
    assert [each.number for each in ours.names.values()] == [0, 2]
    assert [each.number for each in theirs.names.values()] == [1, 3]


def test_creating_a_stream_again_is_the_same_stream() -> None:
    ours = catalog()
    made = ours.define("create", StreamDef("x", "", "by-key", attrs="loc string"))
    ours.learn("a", made)
    assert ours.define("create", StreamDef("x", "", "by-key", attrs="loc string")) == made


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [
        ("create", StreamDef("", "a")),
        ("create", StreamDef("_mine", "a")),
        ("create", StreamDef("with space", "a")),
        ("create", StreamDef("x", "a", "by-kee")),
        ("create", StreamDef("x", "a", attrs="loc strng")),
        ("create", StreamDef("x", "a", counted=-1)),
        ("create", StreamDef("x", "a", "by-key", counted=10)),
        ("create", StreamDef("x", "a", "older-than:1h", counted=10)),
        ("alter", StreamDef("odd", "a")),
        ("create", StreamDef("there", "a", "by-key")),
        ("create", StreamDef("theirs", "a")),
        ("create", StreamDef("gone", "a")),
        ("create", StreamDef("gone", "a", mark="other")),
        ("alter", StreamDef("nowhere", "a")),
        ("alter", StreamDef("there", "a", attrs="price double")),
        ("delete", StreamDef("gone", "a")),
        ("delete", StreamDef("theirs", "a")),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_name(operation: Any, wanted: StreamDef) -> None:
    known = (
        StreamDef("there", "a", attrs="loc string", number=0),
        StreamDef("gone", "a", number=2, deleted=True, mark="one"),
        StreamDef("theirs", "b", number=1),
        StreamDef("odd", "a", "by-key", counted=10, number=4),
    )
    with pytest.raises(BadInput):
        catalog(*known).define(operation, wanted)


def test_attributes_are_added_at_the_end() -> None:
    ours = catalog(StreamDef("x", "a", attrs="loc string"))
    assert (
        ours.define("alter", StreamDef("x", "a", attrs="loc string, price double")).attrs == "loc string, price double"
    )


def test_a_region_keeps_its_own_stream_though_another_has_the_older_claim_to_the_name() -> None:
    ours, theirs = StreamDef("x", "b", created=2), StreamDef("x", "a", created=1)
    for order in ((ours, theirs), (theirs, ours)):
        home = Catalog("b", ("a", "b"), ())
        for claim in order:
            home.learn(claim.region, claim)
        assert home.names["x"] == ours and home.conflicts == [theirs]
        gone = home.define("delete", StreamDef("x", "b"))
        home.learn("b", gone)
        assert home.names["x"] == gone and not home.conflicts, "it does not take the other one for its own"


CLAIMS = [
    StreamDef("x", "a", created=7),
    StreamDef("x", "b", created=5),
    StreamDef("x", "c", created=5),
    StreamDef("x", "d", created=1, deleted=True),
]


def test_all_other_regions_follow_the_oldest_claim_in_whatever_order_they_hear_of_them() -> None:
    for order in itertools.permutations(CLAIMS):
        third = Catalog("z", "abcdz", ())
        for claim in order:
            third.learn(claim.region, claim)
        assert third.names["x"] == CLAIMS[1], order
        assert sorted(each.region for each in third.conflicts) == ["a", "c"]
        third.learn("b", msgspec.structs.replace(CLAIMS[1], deleted=True))
        assert third.names["x"] == CLAIMS[2] and third.conflicts == [CLAIMS[0]]


def test_a_region_defines_its_own_streams_only() -> None:
    with pytest.raises(BadInput, match="only its own"):
        catalog().learn("b", StreamDef("y", "a"))


def test_creating_a_stream_notes_when_and_altering_it_does_not() -> None:
    ours = catalog()
    made = ours.define("create", StreamDef("x", "", created=1), 2.5)
    ours.learn("a", made)
    assert made.created == 2_500_000
    assert ours.define("alter", StreamDef("x", "", attrs="loc string"), 9.0).created == 2_500_000


def test_late_copies_of_requests_about_a_deleted_stream_do_nothing_to_the_one_created_anew() -> None:
    ours = catalog()
    first = ours.define("create", StreamDef("x", ""), 1.0)
    ours.learn("a", first)
    gone = ours.define("delete", StreamDef("x", "", mark=first.mark))
    ours.learn("a", gone)
    assert ours.define("delete", StreamDef("x", "", mark=first.mark)) == gone, "the first answer may be lost"
    second = ours.define("create", StreamDef("x", "", mark=first.mark), 2.0)
    ours.learn("a", second)
    assert second.id != first.id and second.past == (first.mark,)
    for operation, late in (("delete", first), ("alter", first)):
        with pytest.raises(BadInput, match="another stream's now"):
            ours.define(operation, StreamDef("x", "", attrs="n int", mark=late.mark))  # type: ignore[arg-type]
    assert ours.define("create", StreamDef("x", ""), 3.0) == second, "nor does a late copy of the first creation"


def test_a_name_that_another_region_has_a_claim_to_is_not_created_anew() -> None:
    ours = catalog()
    first = ours.define("create", StreamDef("x", ""), 2.0)
    ours.learn("a", first)
    ours.learn("b", StreamDef("x", "b", created=9, mark="9"))
    ours.learn("a", ours.define("delete", StreamDef("x", "", mark=first.mark)))
    with pytest.raises(BadInput, match="belongs to region b"):
        ours.define("create", StreamDef("x", "", mark=first.mark), 3.0)


BAD = [
    StreamDef("x", "b", "by-key", counted=10),
    StreamDef("x", "b", "by-kee"),
    StreamDef("x", "b", attrs="loc strng"),
    StreamDef("_publishers", "b", deleted=True),
    StreamDef("x", "b", mark="~"),
]


@pytest.mark.parametrize("definition", BAD, ids=lambda definition: definition.gc + definition.attrs + definition.mark)
def test_a_definition_that_no_stream_can_have_is_not_learned(definition: StreamDef) -> None:
    ours = catalog()
    with pytest.raises(BadInput):
        ours.learn("b", definition)
    assert not ours.names


class Third:
    """A region y of one replica that hears of what the regions a and b define."""

    def __init__(self) -> None:
        self.peers = {name: ChainConfig(name, 1, (f"{name}0",)) for name in "ab"}
        self.proxy = self.made([])
        self.rig = Rig()
        self.rig.add("y0", lambda durable: self.proxy)
        self.rig.tell("y0", Received("config", Current(ChainConfig("y", 1, ("y0",)), self.proxy.chain.nonce)))
        self.rig.take()

    def made(self, durable: list[Any]) -> Replica:
        return Replica("y0", "y", "config", [], self.peers, ReplicaSettings(), durable, random.Random(1))

    def defines(self, region: str, created: int) -> None:
        rows = definition_rows(1, StreamDef("x", region, created=created, mark=region), 0.0, region)
        self.rig._carry("y0", self.proxy.chain.append((Span.of(f"_streams/{region}", 1, rows),)))

    def hears(self, region: str, payloads: list[bytes]) -> Effects:
        """Its tail advertises x and sends it; what the events lead to."""
        src, hi = f"{region}0", 1 + len(payloads)
        x = f"x~{region}"
        self.rig.tell("y0", Received(src, Advertise(self.peers[region], {x: hi})))
        know = Know(x, (Span.of(x, 1, data_rows(1, None, payloads)),), hi)
        return self.rig.tell("y0", Received(src, know))

    def events(self, proxy: Replica, region: str) -> list[bytes]:
        spans = proxy.log.histories[f"x~{region}"].know(1, 99)
        return [payload for span in spans for payload in span.rows.batch.column("payload").to_pylist()]  # type: ignore[attr-defined]


def test_a_region_that_hears_of_an_older_claim_begins_anew_with_that_and_ends_who_was_fed_the_other() -> None:
    third = Third()
    rig, proxy = third.rig, third.proxy
    third.defines("b", created=2)
    rig.sync("y0")
    third.hears("b", [b"b1", b"b2"])
    rig.sync("y0")
    rig.tell("y0", Received("client", Follow(1, "x~b", 1)))
    assert third.events(proxy, "b") == [b"b1", b"b2"]
    rig.take()
    third.defines("a", created=1)
    assert Report("definition_pending") in third.hears("b", [b"b1", b"b2", b"b3"]), "nobody knows yet whose it will be"
    rig.sync("y0")
    assert ("y0", "stream_conflict") in rig.reports and "x~b" not in proxy.log.histories
    [(_, _, ended)] = rig.take(dst="client")
    assert isinstance(ended, Unfollowed) and "begin anew" in ended.reason
    (refused,) = rig.tell("y0", Received("client", Follow(1, "x~b", 3)))
    assert isinstance(refused, Send) and isinstance(refused.message, Unfollowed) and refused.message.unknown
    assert rig.tell("y0", Received("b0", Advertise(third.peers["b"], {"x~b": 9}))) == []
    third.hears("a", [b"a1"])
    rig.sync("y0")
    again = third.made(rig.durable["y0"])
    while again.log.committed < again.log.last:
        again.log.commit_next()
    for each in (proxy, again):
        assert third.events(each, "a") == [b"a1"] and each.table.owners["x~a"] == "a" and "x~b" not in each.table.owners
    (told,) = proxy.handle(5.0, Received("c", Describe(9)))
    assert isinstance(told, Send) and [each.region for each in told.message.conflicts] == ["b"]  # type: ignore[attr-defined]


def test_a_region_does_not_create_what_its_log_says_is_anothers() -> None:
    third = Third()
    third.defines("b", created=2)
    busy = third.rig.tell("y0", Received("client", Define(1, "create", StreamDef("x", ""))))
    assert busy == [Report("define_busy")]


def test_what_another_region_defines_wrongly_is_ignored_and_reported_and_the_rest_is_learned() -> None:
    """Its code may be another; a replica that takes the rows in, now or from its disk, goes on."""
    peers = {"x": ChainConfig("x", 1, ("x0",))}
    proxy = Replica("y0", "y", "config", [], peers, ReplicaSettings(), [], random.Random(1))
    rig = Rig()
    rig.add("y0", lambda durable: proxy)
    rig.tell("y0", Received("config", Current(ChainConfig("y", 1, ("y0",)), proxy.chain.nonce)))
    good = StreamDef("good", "x", "by-key")
    payloads = [*[msgspec.msgpack.encode(msgspec.structs.replace(each, region="x")) for each in BAD], b"?"]
    keys = [b"%d" % at for at in range(len(payloads))]
    rows = data_rows(1, [*keys, b"good"], [*payloads, msgspec.msgpack.encode(good)])
    rig._carry("y0", proxy.chain.append((Span.of("_streams/x", 1, rows),)))
    rig.sync("y0")
    assert [name for _, name in rig.reports].count("bad_definition") == len(BAD) + 1
    again = Replica("y0", "y", "config", [], peers, ReplicaSettings(), rig.durable["y0"], random.Random(2))
    for each in (proxy, again):
        while each.log.committed < each.log.last:
            each.log.commit_next()
        assert each.streams == {"good": good} and each.table.owners.get("good") == "x"
        assert "x" not in each.log.histories and "x" not in each.table.policies and "_publishers" in each.log.histories
    rig.tell("y0", Expired(AdvertiseTick(proxy.inter_region.generation)))


# --- in a cluster -------------------------------------------------------------------------------------------


class Again(Timer, frozen=True, gc=False):
    """Ask again."""


class Maker:
    """Defines a stream and publishes to it, whoever is head."""

    def __init__(self, me: str, chain: ChainConfig, wanted: StreamDef, batches: int) -> None:
        self.me = me
        self.chain = chain
        self.wanted = wanted
        self.batches = batches
        self.asked = 0
        self.defined: StreamDef | None = None
        self.refused = ""
        self.acked = 0
        self.publisher = Publisher(me, chain, PublishSettings(), 7)

    def start(self, now: float) -> Effects:
        return [*self.publisher.start(now), *self._ask()]

    def _ask(self) -> Effects:
        self.asked += 1
        replica = self.chain.replicas[self.asked % len(self.chain.replicas)]
        return [Send(replica, Define(1, "create", self.wanted)), SetTimer(0.3, Again())]

    def handle(self, now: float, input: Input) -> Effects:
        match input:
            case Received(_, NotHead(chain)) if self.defined is None and chain.epoch >= self.chain.epoch:
                self.chain = chain
                return [Send(chain.head, Define(1, "create", self.wanted))]
            case Received(_, Defined(_, definition)) if self.defined is None:
                self.defined = definition
                out: list[Any] = []
                for at in range(self.batches):
                    rows = data_rows(1, None, [b"%d" % (3 * at + i) for i in range(3)])
                    out.extend(self.publisher.handle(now, Post(definition.id, rows)))
                return out
            case Received(_, NotDefined(_, reason)):
                self.refused = reason
                return []
            case Expired(Again()):
                return self._ask() if self.defined is None and not self.refused else []
        effects = self.publisher.handle(now, input)
        self.acked += sum(isinstance(effect, Deliver) for effect in effects)
        return effects

    def check(self) -> None:
        self.publisher.check()


def deployment(seed: int) -> Deployment:
    plan = Scenario(
        scenario=Run(name="catalog", seconds=30.0),
        regions=(RegionTable("a", replicas=3, clients=2), RegionTable("b", replicas=2, clients=2)),
        links=(LinkTable("a", "b", 0.02, loss=0.05, duplicate=0.05),),
        streams=(Stream("s", "a"),),
        publishers=(Load(name="p", region="a", stream="s", rate=20.0, batch=4),),
    )
    return Deployment(plan, seed, record=False)


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_made_at_run_time_reaches_every_replica_and_client_also_through_crashes(seed: int) -> None:
    made = deployment(seed)
    world = made.world
    maker = Maker("a/maker", made.memberships["a"], StreamDef("fresh", "", "by-key"), batches=20)
    world.start()
    world.run(2.0)
    made._node("a/maker", "a", lambda durable, incarnation, rng: maker)
    world.at(2.05, lambda: world.crash("a/p0"))
    world.at(4.0, lambda: world.restart("a/p0"))
    world.at(9.0, lambda: [world.crash(node) for node in made.replicas["a"]])
    world.at(10.0, lambda: [world.restart(node) for node in made.replicas["a"]])
    world.run(25.0)
    assert not world.failures, world.failures[0].traceback
    assert maker.defined is not None and maker.defined.region == "a" and maker.acked == 20
    fresh = maker.defined.id
    for nodes in made.replicas.values():
        for node in nodes:
            assert made.proxy(node).log.histories[fresh].horizon == 61, node
    for region in ("a", "b"):
        for node in made.clients[region]:
            assert made.client(node).fabric.horizons[fresh] == 61, node


def test_a_replica_tells_what_there_is_and_why() -> None:
    made = deployment(1)
    made.world.start()
    made.world.run(5.0)
    proxy = made.proxy("b/p1")
    (told,) = proxy.handle(5.0, Received("c", Describe(9)))
    assert isinstance(told, Send) and isinstance(told.message, Description)
    assert {m.region for m in told.message.memberships} == {"a", "b"} and told.message.region == "b"
    assert [s.name for s in told.message.streams] == ["s", "_receipts/b"] and told.message.states["s"].horizon > 1
    for seq, state in [(1, "row"), (10**6, "not published yet"), (0, "never a number")]:
        (because,) = proxy.handle(5.0, Received("c", Why("s", seq)))
        assert isinstance(because, Send) and because.message.state == state  # type: ignore[attr-defined]


def test_a_deleted_stream_is_gone_everywhere_and_one_created_anew_is_another() -> None:
    made = deployment(2)
    world = made.world
    maker = Maker("a/maker", made.memberships["a"], StreamDef("fresh", "", "none"), batches=5)
    world.start()
    world.run(2.0)
    made._node("a/maker", "a", lambda durable, incarnation, rng: maker)
    world.run(6.0)
    assert maker.defined is not None
    head = made.membership("a").head
    world.hosts[head]  # the request goes in as a message would
    effects = made.proxy(head).handle(6.0, Received("c", Define(2, "delete", StreamDef("fresh", ""))))
    world._finish(world.hosts[head], 6.0, Describe(0), effects)
    world.run(12.0)
    for nodes in made.replicas.values():
        for node in nodes:
            assert maker.defined.id not in made.proxy(node).log.histories, node
    proxy = made.proxy(head)
    again = StreamDef("fresh", "")
    proxy.handle(12.0, Received("c", Define(3, "create", again)))
    ((_, refused),) = proxy.head.waiting[proxy.log.last]  # said once a record written after the question is committed
    assert isinstance(refused, NotDefined) and refused.after == maker.defined.mark, "it may be a late copy"
    world._finish(world.hosts[head], 12.0, Describe(0), ())
    world.run(13.0)
    again = msgspec.structs.replace(again, mark=maker.defined.mark)
    effects = proxy.handle(13.0, Received("c", Define(4, "create", again)))
    world._finish(world.hosts[head], 13.0, Describe(0), effects)
    world.run(18.0)
    fresh = proxy.table.catalog.names["fresh"]
    assert fresh.id != maker.defined.id and not fresh.deleted
    for nodes in made.replicas.values():
        for node in nodes:
            assert made.proxy(node).log.histories[fresh.id].horizon == 1, "it has nothing of the first one"
            assert maker.defined.id not in made.proxy(node).streams
    assert not world.failures, world.failures[0].traceback


def test_what_is_on_its_way_into_a_stream_when_that_is_deleted_harms_nobody() -> None:
    made = deployment(2)
    world = made.world
    world.start()
    world.run(3.0)
    head = made.membership("a").head
    proxy = made.proxy(head)
    world._finish(world.hosts[head], 3.0, Describe(0), proxy.handle(3.0, Received("c", OpenSession("x", 5))))
    world.run(4.0)
    late = Publish("s", "x", proxy.publishers.entries["x"].session, 1, data_rows(1, None, [b"late"]))
    for message in (Define(2, "delete", StreamDef("s", "")), late):
        world._finish(world.hosts[head], 4.0, Describe(0), proxy.handle(4.0, Received("c", message)))
    world.run(8.0)
    assert not world.failures, world.failures[0].traceback
    assert all("s" not in made.proxy(node).log.histories for node in made.replicas["a"])


def test_two_regions_that_create_one_name_at_once_keep_their_own_and_a_third_never_mixes_them() -> None:
    plan = Scenario(
        scenario=Run(name="conflict", seconds=30.0),
        regions=(RegionTable("a", replicas=1), RegionTable("b", replicas=1), RegionTable("c", replicas=2)),
        links=(LinkTable("a", "b", 0.05), LinkTable("a", "c", 0.08), LinkTable("b", "c", 0.02)),
        streams=(Stream("s", "a"),),
    )
    made = Deployment(plan, 1, record=False)
    world = made.world
    world.start()
    world.run(2.0)
    makers = {
        name: Maker(f"{name}/m", made.memberships[name], StreamDef("x", ""), 4 if name == "a" else 3) for name in "ab"
    }
    for name, maker in makers.items():
        made._node(f"{name}/m", name, lambda durable, incarnation, rng, maker=maker: maker)
    world.run(5.0)
    world.crash("c/p0")
    world.run(6.0)
    world.restart("c/p0")
    world.run(12.0)
    assert not world.failures, world.failures[0].traceback
    assert [maker.acked for maker in makers.values()] == [4, 3], "both keep what they have acknowledged"
    for node, owner in (("a/p0", "a"), ("b/p0", "b"), ("c/p0", "a"), ("c/p1", "a")):
        proxy = made.proxy(node)
        x = proxy.table.catalog.names["x"].id
        (span,) = proxy.log.histories[x].know(1, 1000)
        assert proxy.streams[x].region == proxy.table.owners[x] == owner
        assert span.rows.count == (12 if owner == "a" else 9)
        assert {origin.region for origin in span.rows.origins} == {owner}, node  # type: ignore[attr-defined]
        assert [each.region for each in proxy.table.catalog.conflicts] == ["a" if owner == "b" else "b"]
