"""Leases: granted and ended by the head, applied by every replica at the same place of the log."""

from __future__ import annotations

import random

import pytest

from tidings.core.rows import data_rows
from tidings.core.span import Span
from tidings.protocols.kernel import Deliver, Expired, Received, Report, Send
from tidings.protocols.nodes.replica import Replica, ReplicaSettings, StreamDef
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.log import Record
from tidings.protocols.services.leases import (
    LEASES,
    Dropped,
    Granted,
    Holder,
    Lease,
    Leased,
    LeaseEntry,
    Leases,
    LeaseSettings,
    LeaseTick,
    MoveLease,
    Release,
    Unleased,
    table_in,
)
from tidings.protocols.services.publishing import NotHead

CHAIN = ChainConfig("r", 1, ("p0", "p1", "p2"))


def ask(name: str = "a", asof: int = 0, *, grant: bool = True, ttl: float = 60.0, bytes: int = 100) -> Lease:
    return Lease(name, "s", asof, ttl, bytes, grant)


def table(settings: LeaseSettings | None = None) -> Leases:
    return Leases(settings or LeaseSettings())


def test_a_lease_is_granted_as_of_the_end_of_the_log_and_only_moves_forward() -> None:
    leases = table()
    assert leases.receive(0.0, ask(), 10)[:2] == (Leased("a", "s", 10), True)
    assert leases.receive(1.0, ask(), 20)[:2] == (Leased("a", "s", 10), False)  # asked twice, granted once
    assert leases.receive(2.0, ask(asof=15), 20)[:2] == (Leased("a", "s", 15), True)
    assert leases.receive(3.0, ask(asof=12), 20)[:2] == (Leased("a", "s", 15), False)
    assert leases.receive(4.0, ask(asof=99), 20)[:2] == (Leased("a", "s", 20), True)
    leases.check()


def test_a_lease_in_the_past_is_granted_only_while_another_one_keeps_it() -> None:
    leases = table()
    assert leases.receive(0.0, ask("a", 5), 10)[0] == Leased("a", "s", 10)
    assert leases.receive(0.0, ask("b", 12), 20)[0] == Leased("b", "s", 12)
    assert leases.receive(0.0, ask("c", 9), 20)[0] == Leased("c", "s", 20)


def test_a_lease_that_is_over_is_not_renewed() -> None:
    leases = table()
    assert isinstance(leases.receive(0.0, ask(grant=False), 10)[0], Unleased)
    leases.receive(0.0, ask(), 10)
    assert leases.receive(1.0, Release("a", "s"), 10)[:2] == (Unleased("a", "s", "it was released"), True)
    answer, changed, _ = leases.receive(2.0, ask(grant=False), 10)
    assert (answer, changed) == (Unleased("a", "s", "it was released"), False)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [(ask(ttl=0.0), "ttl"), (ask(ttl=float("nan")), "ttl"), (ask(""), "name"), (ask("x" * 201), "name")],
)
def test_a_lease_that_makes_no_sense_is_refused(wrong: Lease, why: str) -> None:
    answer, changed, _ = table().receive(0.0, wrong, 10)
    assert isinstance(answer, Unleased) and why in answer.reason and not changed


def test_leases_are_bounded_in_number_time_and_bytes() -> None:
    leases = table(LeaseSettings(leases=2))
    leases.receive(0.0, ask("a", ttl=10.0), 10)
    leases.receive(0.0, ask("b", ttl=99.0), 10)
    assert isinstance(leases.receive(0.0, ask("c"), 10)[0], Unleased)
    assert leases.expire(10.0, {"s": 0}, {"a": 100, "b": 100}) == []
    assert leases.expire(10.1, {"s": 0}, {"b": 100}) == [Report("lease_expired")]
    assert leases.expire(10.1, {"s": 0}, {"b": 101}) == [Report("lease_too_large"), Report("lease_expired")]
    assert leases.entries == {} and "101" not in leases.ended["b"] and "100 bytes" in leases.ended["b"]


def test_a_region_that_takes_no_more_leases_says_until_when() -> None:
    leases = table(LeaseSettings(leases=2))
    leases.receive(0.0, ask("a", ttl=10.0), 10)
    leases.receive(5.0, ask("b", ttl=30.0), 10)
    assert leases.receive(7.0, ask("c"), 10)[0] == Unleased("c", "s", "its region has 2 leases, and takes no more", 3.0)
    leases.receive(8.0, ask("a", ttl=10.0), 10)
    answer = leases.receive(8.0, ask("c"), 10)[0]
    assert isinstance(answer, Unleased) and answer.room == 10.0
    made = holder()
    dropped = Dropped("a", answer.reason, 10.0)
    assert made.handle(0.1, Received("p0", Unleased("a", "s", answer.reason, 10.0))) == [Deliver(dropped)]


def test_a_lease_is_bounded_as_whoever_resumes_it_says() -> None:
    leases = table()
    leases.receive(0.0, ask(ttl=60.0, bytes=100), 10)
    longer = ask(grant=False, ttl=3600.0, bytes=500)
    assert leases.receive(1.0, longer, 20)[:2] == (Leased("a", "s", 10), True)
    assert leases.receive(2.0, longer, 20)[:2] == (Leased("a", "s", 10), False)  # written once
    assert leases.entries == {"a": LeaseEntry("s", 10, 3600.0, 500)} == table_in([leases.rows(1, 0.0)])
    assert leases.expire(1201.0, {"s": 0}, {"a": 500}) == []  # when its holder renews it
    assert leases.expire(3602.1, {"s": 0}, {}) == [Report("lease_expired")]


def test_a_lease_is_not_renewed_with_bounds_that_make_no_sense() -> None:
    leases = table()
    leases.receive(0.0, ask(), 10)
    answer, changed, _ = leases.receive(1.0, ask(grant=False, ttl=1e9), 20)
    assert isinstance(answer, Unleased) and "ttl" in answer.reason and not changed
    assert leases.entries == {"a": LeaseEntry("s", 10, 60.0, 100)}


def test_a_clock_that_is_set_back_ends_no_lease_early() -> None:
    leases = table()
    leases.receive(1000.0, ask(ttl=10.0), 10)
    assert leases.expire(5.0, {"s": 0}, {}) == []
    assert leases.expire(15.0, {"s": 0}, {}) == []
    assert leases.expire(15.1, {"s": 0}, {}) == [Report("lease_expired")]


def test_a_new_head_finds_the_table_and_gives_every_holder_its_time() -> None:
    leases = table()
    leases.receive(0.0, ask(ttl=10.0), 10)
    rows = leases.rows(1, 0.0)
    heir = table()
    heir.load(500.0, [rows])
    assert heir.entries == leases.entries == {"a": LeaseEntry("s", 10, 10.0, 100)} == table_in([rows])
    assert heir.expire(509.0, {"s": 0}, {}) == []
    assert Report("lease_renewed_across_failover") in heir.receive(510.0, ask(grant=False, ttl=10.0), 20)[2]
    assert heir.expire(519.0, {"s": 0}, {}) == []
    assert heir.expire(520.1, {"s": 0}, {}) == [Report("lease_expired")]


# --- at a replica -------------------------------------------------------------------------------------------


def replica(entries: list[object] | None = None) -> Replica:
    streams = [StreamDef("s", "r", "by-key")]
    return Replica("p", "r", "config", streams, {}, ReplicaSettings(), entries or [], random.Random(1))  # type: ignore[arg-type]


def commit(made: Replica, *parts: Span) -> None:
    made.log.append(Record(1, made.log.last + 1, parts))
    made.log.commit_next()


def write(made: Replica, lo: int, *keys: bytes) -> None:
    commit(made, Span.of("s", lo, data_rows(lo, list(keys), [b""] * len(keys))))


def hold(made: Replica, lo: int, **asofs: int) -> None:
    leases = table()
    leases.entries = {name: LeaseEntry("s", asof, 60.0, 100) for name, asof in asofs.items()}
    commit(made, Span.of(LEASES, lo, leases.rows(lo, 0.0)))


def test_a_committed_lease_keeps_dead_rows_until_it_moves_or_ends() -> None:
    made = replica()
    write(made, 1, b"k", b"k")
    hold(made, 1, a=3)
    write(made, 3, b"k", b"k")
    history = made.log.histories["s"]
    history.purge()
    assert history.rows(1, 5, 3).rows.numbers.tolist() == [2, 3, 4] and history.held(3) > 0
    hold(made, 2, a=4)
    history.purge()
    assert (history.floor, history.rows(1, 5, 4).rows.numbers.tolist()) == (4, [3, 4])
    hold(made, 3)
    history.purge()
    assert history.floor == 5 and made.table.leases.table == {}


def test_what_a_lease_keeps_is_in_a_snapshot() -> None:
    made = replica()
    write(made, 1, b"k", b"k")
    hold(made, 1, a=3)
    write(made, 3, b"k", b"k")
    made.log.histories["s"].purge()
    joined = replica()
    spans = [span for piece in made.log.snapshot(1) for span in piece]
    joined.log.install(made.log.committed, spans)
    history = joined.log.histories["s"]
    history.purge()
    assert joined.table.leases.table == made.table.leases.table
    assert history.rows(1, 5, 3).rows.numbers.tolist() == [2, 3, 4]


def test_a_lease_that_a_snapshot_finds_on_another_stream_keeps_nothing_of_the_old_one() -> None:
    streams = [StreamDef("s", "r", "by-key"), StreamDef("t", "r", "by-key", number=1)]
    ahead, behind = [
        Replica("p", "r", "config", streams, {}, ReplicaSettings(), [], random.Random(1)) for _ in range(2)
    ]
    for made in (ahead, behind):
        write(made, 1, b"k", b"k")
        hold(made, 1, a=3)
    hold(ahead, 2)
    leases = table()
    leases.entries = {"a": LeaseEntry("t", 1, 60.0, 100)}
    commit(ahead, Span.of(LEASES, 3, leases.rows(3, 0.0)))
    write(ahead, 3, b"k", b"k")
    behind.log.install(ahead.log.committed, [span for piece in ahead.log.snapshot(4096) for span in piece])
    write(behind, 5, b"k")
    history = behind.log.histories["s"]
    history.purge()
    assert behind.table.leases.table == leases.entries and history.floor == 6


# --- the holder ---------------------------------------------------------------------------------------------


def holder(**options: bool) -> Holder:
    made = Holder(Lease("a", "s", ttl=30.0), CHAIN, LeaseSettings(), **options)
    made.start(0.0)
    return made


def sent(effects: object) -> list[tuple[str, Lease]]:
    return [(e.to, e.message) for e in effects if isinstance(e, Send)]  # type: ignore[attr-defined, misc]


def test_a_holder_asks_until_it_is_answered_then_renews_in_time() -> None:
    made = holder()
    ((to, first),) = sent(made.handle(0.6, Expired(LeaseTick("a"))))
    assert (to, first.grant) == ("p1", True)
    assert made.handle(0.7, Received("p0", Leased("a", "s", 10))) == [Deliver(Granted("a", 10))]
    assert sent(made.handle(10.0, Expired(LeaseTick("a")))) == []
    ((_, again),) = sent(made.handle(10.8, Expired(LeaseTick("a"))))
    assert not again.grant


def test_a_holder_follows_the_head_and_moves_its_lease() -> None:
    made = holder()
    moved = ChainConfig("r", 2, ("p1", "p2"))
    assert [to for to, _ in sent(made.handle(0.1, Received("p0", NotHead(moved))))] == ["p1"]
    made.handle(0.2, Received("p1", Leased("a", "s", 10)))
    ((to, request),) = sent(made.handle(1.0, MoveLease("a", 15)))
    assert (to, request.asof, request.grant) == ("p1", 15, False)
    assert made.handle(1.1, Received("p1", Leased("a", "s", 12))) == [Deliver(Granted("a", 12))]
    assert sent(made.handle(1.7, Expired(LeaseTick("a"))))[0][1].asof == 15


def test_a_holder_whose_lease_is_over_says_so_once() -> None:
    made = holder(resume=True)
    assert made.handle(0.1, Received("p0", Unleased("a", "s", "late"))) == [Deliver(Dropped("a", "late"))]
    assert made.handle(0.2, Received("p0", Unleased("a", "s", "late"))) == ()
