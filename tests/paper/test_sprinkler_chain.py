"""Sentences of paper 000, section 3.3, and of chain replication (A1.40-A1.42, E12), as lists of messages."""

from __future__ import annotations

import pytest

from paper.rig import ChainRig, Letter
from tidings.protocols.kernel import Message, Persist, Received, Send
from tidings.protocols.replication.chain import (
    Append,
    ChainAck,
    ChainSettings,
    Compare,
    Compared,
    Fetch,
    Install,
    NextPiece,
    RetryTick,
)
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Beat, Current, Promote, SweepTick
from tidings.protocols.replication.log import CutBack, Logged

# --- A1.40: the chain ---------------------------------------------------------------------------------------


def test_a1_40_events_are_forwarded_along_the_replicas_each_storing_them_before_it_forwards() -> None:
    rig = ChainRig("ABC")
    rig.append("A")
    path = []
    for node in "ABC":
        assert not rig.on_wire(Append, src=node)
        (write,) = rig.unsynced[node]
        assert isinstance(write.record, Logged) and write.record.record.lsn == 1
        rig.sync(node)
        path += [(letter.src, letter.dst) for letter in rig.deliver(Append)]
    assert path == [("A", "B"), ("B", "C")]


def test_a1_40_an_event_is_committed_when_the_tail_has_it_and_the_acknowledgement_runs_back() -> None:
    rig = ChainRig("ABC")
    rig.append("A")
    rig.sync("A")
    rig.deliver()
    rig.sync("B")
    rig.deliver()
    assert [rig.committed(node) for node in "ABC"] == [[], [], []]
    rig.sync("C")
    assert [rig.committed(node) for node in "ABC"] == [[], [], [1]]
    assert rig.deliver() == [Letter("C", "B", ChainAck(1, 1))]
    assert rig.deliver() == [Letter("B", "A", ChainAck(1, 1))]
    assert [rig.committed(node) for node in "ABC"] == [[1], [1], [1]]


def test_e12_a_successors_history_is_a_prefix_of_its_predecessors() -> None:
    rig = ChainRig("ABC")
    rig.append("A", 3)
    for step in (lambda: rig.sync("A"), rig.deliver, lambda: rig.sync("B"), rig.deliver, lambda: rig.sync("C")):
        step()
        a, b, c = (rig.chain(node) for node in "ABC")
        assert a.durable >= b.log.last >= b.durable >= c.log.last >= c.durable >= c.log.committed >= b.log.committed
    assert a.log.records == b.log.records == c.log.records


@pytest.mark.parametrize("survivor", "ABC")
def test_a1_40_f_plus_1_replicas_tolerate_f_failures(survivor: str) -> None:
    rig = ChainRig("ABC")
    rig.append("A", 5)
    rig.settle()
    rig.crash(*{"A", "B", "C"} - {survivor})
    rig.silence(survivor)
    assert rig.membership.replicas == (survivor,)
    assert rig.committed(survivor) == [1, 2, 3, 4, 5]
    rig.append(survivor)
    rig.settle()
    assert rig.committed(survivor) == [1, 2, 3, 4, 5, 6]


# --- A1.41: a replica is removed ----------------------------------------------------------------------------


def test_a1_41_the_predecessor_of_a_removed_replica_retransmits_missing_events_to_its_new_successor() -> None:
    rig = ChainRig("ABC")
    rig.append("A", 2)
    rig.settle()
    rig.crash("B")
    rig.append("A", 2)
    rig.sync("A")
    rig.take(dst="B")
    rig.silence("AC", settle=False)
    assert rig.membership.replicas == ("A", "C")
    rig.deliver(Current, dst="A")
    (append,) = rig.on_wire(Append, src="A", dst="C")
    assert [record.lsn for record in append.records] == [3, 4]
    rig.settle()
    assert rig.committed("A") == rig.committed("C") == [1, 2, 3, 4]


def test_a1_41_the_new_tail_has_everything_the_old_tail_had_and_commits_what_it_holds() -> None:
    rig = ChainRig("ABC")
    rig.append("A", 4)
    rig.settle(hold=(ChainAck,))
    assert [rig.committed(node) for node in "ABC"] == [[], [], [1, 2, 3, 4]]
    rig.crash("C")
    rig.take(ChainAck)
    rig.silence("AB")
    assert rig.membership.tail == "B"
    assert rig.committed("B") == rig.committed("A") == [1, 2, 3, 4]


def test_e12_what_a_failed_head_had_not_forwarded_is_lost_and_its_number_is_given_again() -> None:
    rig = ChainRig("ABC")
    rig.append("A")
    rig.sync("A")
    rig.crash("A")
    rig.take()
    rig.silence("BC")
    rig.append("B")
    rig.settle()
    assert rig.committed("B") == rig.committed("C") == [1]
    assert [record.epoch for record in rig.chain("C").log.records] == [2]


def test_a1_41_a_removed_replica_can_commit_nothing_more() -> None:
    rig = ChainRig("AB")
    rig.append("A")
    rig.sync("A")
    late = rig.take(Append)
    rig.silence("B")
    rig.wire += late
    rig.settle()
    assert ("B", "old_epoch_refused") in rig.reports
    assert rig.committed("A") == rig.committed("B") == []


def test_a1_41_a_removed_replica_voids_what_it_does_not_know_to_be_committed() -> None:
    rig = ChainRig("AB")
    rig.append("A")
    rig.settle()
    rig.append("A", 2)
    rig.sync("A")
    rig.take(Append)
    rig.silence("B", settle=False)
    rig.deliver(Current, dst="B")
    rig.beat("A")
    rig.deliver(Beat)
    rejoins = ChainConfig(rig.membership.region, rig.membership.epoch + 1, ("B",), "A")
    effects = rig.tell("A", Received("config", Current(rejoins)))
    assert [effect.record for effect in effects if isinstance(effect, Persist)] == [CutBack(1, rejoins.epoch)]
    assert rig.logs("A", "B") == [1, 1]


def test_a1_41_after_a_full_stop_the_last_configuration_starts_again_with_all_its_events() -> None:
    rig = ChainRig("ABC")
    rig.append("A", 3)
    rig.settle()
    rig.crash("A", "B", "C")
    rig.silence("")
    assert rig.membership.epoch == 1
    rig.restart("C", "B", "A")
    rig.settle()
    rig.append("A")
    rig.settle()
    assert [rig.chain(node).log.committed for node in "ABC"] == [4, 4, 4]


# --- A1.42: a replica is added ------------------------------------------------------------------------------


def test_a1_42_a_replica_is_added_beyond_the_tail_catches_up_and_gets_the_token() -> None:
    rig = ChainRig("AB", "N")
    rig.append("A", 3)
    rig.settle()
    rig.beat("N")
    rig.deliver(Beat)
    rig.sync("config")
    assert (rig.membership.replicas, rig.membership.joining) == (("A", "B"), "N")
    rig.deliver(Current)
    assert rig.deliver(Fetch) == [Letter("N", "B", Fetch(2, 0))]
    (append,) = rig.on_wire(Append, src="B", dst="N")
    assert [record.lsn for record in append.records] == [1, 2, 3]
    rig.settle(hold=(Promote,))
    assert rig.on_wire(Promote) == [Promote(2, "N")]
    assert rig.chain("B").token_passed and rig.logs("N") == [3]
    rig.settle()
    assert rig.membership.replicas == ("A", "B", "N")


def test_a1_42_once_it_has_passed_the_token_the_old_tail_commits_only_what_the_new_one_has() -> None:
    rig = ChainRig("AB", "N")
    rig.join("N", hold=(Promote,))
    rig.append("A")
    rig.settle(hold=(Promote,), frozen="N")
    assert rig.committed("B") == [] and rig.chain("B").durable == 1
    rig.settle(hold=(Promote,))
    assert rig.committed("B") == [1]


def test_a1_42_a_replica_that_missed_more_than_the_chain_retains_gets_a_snapshot_in_pieces() -> None:
    rig = ChainRig("AB", "N", ChainSettings(retain=2, chunk_rows=4))
    for _ in range(10):
        rig.append("A")
        rig.settle()
    rig.join("N", hold=(Install,))
    pieces = []
    while rig.on_wire(Install):
        pieces += [letter.message for letter in rig.deliver(Install)]
        rig.settle(hold=(Install,))
    assert [piece.index for piece in pieces if isinstance(piece, Install)] == [0, 1, 2]
    assert rig.membership.tail == "N" and rig.chain("N").log.committed == 10
    assert rig.chain("N").log.histories["s"].horizon == 11


def test_a1_42_a_crashed_replica_recovers_behind_the_tail_never_in_its_old_place() -> None:
    rig = ChainRig("ABC")
    rig.append("A", 2)
    rig.settle()
    rig.crash("A")
    rig.silence("BC")
    rig.append("B", 2)
    rig.settle()
    rig.restart("A")
    rig.join("A")
    assert rig.membership.replicas == ("B", "C", "A")
    assert rig.chain("A").log.committed == 4


def test_a1_40_a_promotion_is_refused_unless_it_names_the_epoch_in_force() -> None:
    rig = ChainRig("AB", "N")
    rig.join("N", hold=(Promote,))
    late = rig.take(Promote)
    rig.crash("N")
    rig.silence("AB")
    assert rig.membership.joining is None
    rig.wire += late
    rig.settle()
    assert rig.membership.replicas == ("A", "B") and ("config", "promotion_refused") in rig.reports


def test_a1_40_a_service_that_slept_still_knows_whom_it_is_about_to_append() -> None:
    rig = ChainRig("AB", "N")
    rig.beat("N")
    rig.deliver(Beat)
    rig.now += 5.0
    rig.expire(SweepTick(), "config")
    rig.sync("config")
    assert rig.membership.joining == "N"
    rig.now += 0.1
    rig.expire(SweepTick(), "config")


# --- A1.41: "no events can get lost until all replicas in the chain fail and lose their state" ---------------


def test_a1_42_a_newcomer_that_lacks_committed_events_is_not_made_the_tail() -> None:
    rig = ChainRig("AB", "N")
    rig.append("A", 20)
    rig.settle()
    rig.join("N", hold=(ChainAck,))
    late = rig.take(ChainAck, src="N")
    rig.append("A", 5)
    rig.settle(hold=(Install, NextPiece), frozen="N")
    assert rig.chain("B").log.committed == 25
    rig.wire += late
    rig.settle(frozen="N")
    assert rig.membership.tail == "B"
    rig.settle()
    rig.retry("A", "B", "N")
    assert rig.membership.tail == "N" and rig.chain("N").log.committed == 25


def test_a1_41_a_replica_is_not_level_before_what_it_voided_is_void_on_its_disk() -> None:
    rig = ChainRig("ABC")
    rig.append("A", 3)
    rig.settle()
    rig.append("A")
    rig.sync("A")
    rig.take(Append)
    rig.silence("BC", settle=False)
    for _ in range(3):
        rig.beat("A", "B", "C")
        rig.settle(frozen="A")
    rig.append("B")
    rig.settle(frozen="A")
    rig.crash("A")
    rig.restart("A")
    for _ in range(3):
        rig.beat("A", "B", "C")
        rig.settle()
    rig.retry("A", "B", "C")
    fourth = [rig.chain(node).log.records[3].epoch for node in "ABC"]
    assert len(set(fourth)) == 1, f"record 4 is of epochs {fourth} at A, B and C"


def test_a1_42_a_newcomer_keeps_what_it_acknowledged_when_it_restarts() -> None:
    rig = ChainRig("AB", "N")
    rig.append("A", 20)
    rig.settle()
    rig.join("N", hold=(Promote,))
    rig.append("A")
    rig.settle(hold=(Promote,))
    assert rig.committed("B")[-1] == 21
    rig.crash("N")
    rig.restart("N")
    rig.settle(hold=(Promote, Fetch))
    rig.take(Fetch)
    rig.settle()
    rig.retry("A", "B", "N")
    assert rig.membership.tail == "N" and rig.chain("N").log.committed == 21


def test_a1_42_a_newcomer_is_not_made_the_tail_on_the_strength_of_a_request() -> None:
    rig = ChainRig("AB", "N")
    rig.append("A", 20)
    rig.settle()
    rig.join("N", hold=(ChainAck, Promote))
    late = rig.take(ChainAck, src="N")[-1:]
    rig.append("A", 5)
    rig.settle(hold=(Append,))
    for _ in range(9):  # 21..25 are committed by A and B; what B sends to N stays on the wire
        rig.deliver(Append, dst="B")
        rig.settle(hold=(Append,))
    rig.settle(hold=(Promote,), frozen="N")
    rig.wire += late  # B passes the token; N has 20 on its disk and 25 in memory
    rig.settle(hold=(Promote,), frozen="N")
    assert (rig.chain("N").durable, rig.logs("N"), rig.chain("B").log.committed) == (20, [25], 25)
    rig.tell("B", Received("N", Fetch(2, 25)))  # N saw a gap after 25
    rig.expire(RetryTick(), "B")
    rig.settle(frozen="N")
    assert rig.membership.tail == "B"


def test_a1_42_the_old_tail_remembers_the_token_when_it_restarts() -> None:
    rig = ChainRig("AB", "N")
    rig.join("N", hold=(Promote,))
    rig.crash("B")
    rig.restart("B")
    rig.settle(hold=(Promote,))
    rig.append("A")
    rig.settle(hold=(Promote,), frozen="N")
    assert rig.committed("B") == []


def test_a1_42_a_snapshot_goes_on_when_the_tail_restarts_between_two_pieces() -> None:
    rig = ChainRig("AB", "N", ChainSettings(retain=2, chunk_rows=4))
    for _ in range(10):
        rig.append("A")
        rig.settle()
    rig.join("N", hold=(NextPiece,))
    rig.crash("B")
    rig.take(NextPiece)
    rig.restart("B")
    rig.settle()
    for _ in range(4):
        rig.retry("A", "B", "N")
    assert rig.membership.tail == "N" and rig.chain("N").log.committed == 10


JOINING = (Fetch, Install, NextPiece, Append, ChainAck)


def under_load(settings: ChainSettings, per_message: int, steps: int = 60) -> ChainRig:
    """A, alone in its chain, goes on committing while N joins by a snapshot: so many records in each message's time."""
    rig = ChainRig("A", "N", settings)
    rig.append("A", 100)
    rig.settle()
    rig.beat("N")
    for _ in range(steps):
        rig.settle(hold=JOINING)
        letters = rig.take(*JOINING)
        if not letters:
            rig.beat("N")
        for letter in letters:
            rig.tell(letter.dst, Received(letter.src, letter.message))
        sent, fed = rig.chain("A").sent, rig.chain("A").fed
        if sent is not None and fed is not None:
            assert sent - fed <= settings.backlog, "what is on its way to a newcomer is bounded"
        if "N" in rig.membership.replicas:
            break
        rig.append("A", per_message)
    return rig


@pytest.mark.parametrize("per_message", [1, 3, 8])
def test_a1_42_a_replica_joins_by_one_snapshot_however_much_is_committed_meanwhile(per_message: int) -> None:
    rig = under_load(ChainSettings(retain=4, backlog=32, chunk_rows=8, level=2), per_message)
    assert rig.membership.replicas == ("A", "N")
    assert rig.reports.count(("N", "snapshot_installed")) == 1
    rig.settle()
    assert rig.logs("A") == rig.logs("N")


@pytest.mark.parametrize("bound", [{"feed": 40}, {"feed_bytes": 40 * 100}], ids=["records", "bytes"])
def test_a1_42_what_is_kept_for_a_newcomer_is_bounded_in_records_and_bytes(bound: dict[str, int]) -> None:
    rig = under_load(ChainSettings(retain=4, backlog=32, chunk_rows=8, level=2, **bound), 8)
    chain = rig.chain("A")
    assert "N" not in rig.membership.replicas and chain.log.last > 300
    assert chain.log.committed - chain.log.first < 2 * 40 + 8
    rig.settle()
    for _ in range(4):  # the load is over
        rig.retry("A", "N")
    assert rig.membership.replicas == ("A", "N") and rig.logs("A") == rig.logs("N")


def test_a1_42_what_is_kept_for_a_newcomer_outlives_an_epoch_that_leaves_it_where_it_is() -> None:
    rig = ChainRig("AB", "N", ChainSettings(retain=2, chunk_rows=4))
    for _ in range(10):
        rig.append("A")
        rig.settle()
    rig.join("N", hold=(Install,))
    kept = rig.chain("B").snapshot
    assert kept is not None and rig.chain("B").fed == 10
    rig.take(Install)
    rig.crash("A")
    rig.silence("BN", settle=False)
    rig.settle(hold=(Install, Fetch))
    assert rig.membership.replicas == ("B",) and rig.membership.joining == "N"
    rig.append("B", 20)
    rig.settle(hold=(Install, Fetch))
    assert rig.chain("B").snapshot is kept and rig.chain("B").log.first <= 11
    rig.settle()
    assert rig.membership.replicas == ("B", "N") and rig.logs("B") == rig.logs("N")
    assert rig.reports.count(("N", "snapshot_installed")) == 1


def test_a1_42_a_replica_recovers_from_a_disk_on_which_records_follow_a_snapshot_it_no_longer_wanted() -> None:
    rig = ChainRig("ABN", settings=ChainSettings(retain=4))
    for _ in range(8):
        rig.append("A")
        rig.settle()
    rig.down.add("N")
    rig.silence("AB")
    for _ in range(4):
        rig.append("A")
        rig.settle(hold=(ChainAck,))
    rig.wire = rig.wire[-1:]  # A commits these four at once, and so keeps more records than B
    for _ in range(2):
        rig.settle()
        rig.append("A")
    rig.settle()
    assert [rig.chain(node).log.first for node in "AB"] == [9, 11]
    rig.down.discard("N")
    rig.beat("N")
    rig.settle(frozen="N")
    rig.beat("N")
    rig.settle(frozen="N")
    rig.crash("B")
    rig.silence("AN", settle=False)
    rig.deliver(Current)
    rig.settle()
    rig.crash("N")
    rig.restart("N")
    rig.settle()
    assert rig.chain("N").log.committed == 14


def test_e12_an_acknowledgement_of_what_was_never_sent_is_ignored() -> None:
    rig = ChainRig("AB")
    rig.append("A")
    effects = rig.tell("A", Received("B", ChainAck(1, 5)))
    assert not [effect for effect in effects if isinstance(effect, Send)]
    assert rig.committed("A") == []


# --- disks that are older than whoever comes back with them -------------------------------------------------


def put_back(rig: ChainRig, node: str, entries: int) -> None:
    """A replica is stopped and started again with what its disk held some time ago."""
    rig.crash(node)
    rig.take(dst=node)
    rig.durable[node] = rig.durable[node][:entries]
    rig.restart(node)


def rejoin(rig: ChainRig, node: str) -> None:
    """What a replica that has resigned does in the second that follows."""
    rig.settle()
    rig.join(node)
    rig.settle()


@pytest.mark.parametrize("members", ["AB", "ABC"])
def test_a_head_with_an_old_disk_takes_nothing_and_comes_back_behind_the_tail(members: str) -> None:
    rig = ChainRig(members)
    rig.append("A", 5)
    rig.settle()
    rig.beat(*members)
    rig.settle()
    put_back(rig, "A", 3)
    rig.settle(hold=(Compared,))
    assert not rig.chain("A").is_head and rig.chain("A").unproven  # whoever publishes is not answered
    rig.settle()
    assert ("A", "old_disk_found") in rig.reports and "A" not in rig.membership.replicas
    assert rig.membership.head == "B"
    rejoin(rig, "A")
    assert rig.membership.replicas == (*members[1:], "A")
    rig.append("B")
    rig.settle()
    assert rig.logs(*members) == [6] * len(members)
    assert rig.chain("A").log.records[-2:] == rig.chain("B").log.records[-2:]


def test_a_head_with_its_own_disk_takes_its_place_as_soon_as_its_successor_has_answered() -> None:
    rig = ChainRig("ABC")
    rig.append("A", 5)
    rig.sync("A")  # nobody else has them
    rig.crash("A")
    rig.take(Append)
    rig.restart("A")
    rig.settle()
    assert rig.chain("A").is_head and rig.membership == ChainConfig("r", 1, ("A", "B", "C"))
    assert rig.committed("C") == [1, 2, 3, 4, 5]


def test_a_middle_that_returns_behind_its_successor_leaves_before_it_can_become_head() -> None:
    rig = ChainRig("ABC")
    rig.append("A", 5)
    rig.settle()
    rig.beat("A", "C")
    rig.settle()
    put_back(rig, "B", 2)
    rig.settle()
    assert rig.membership.replicas == ("A", "C")
    rejoin(rig, "B")
    assert rig.membership.replicas == ("A", "C", "B") and rig.logs("A", "B", "C") == [5, 5, 5]


def test_a_tail_with_an_old_disk_is_sent_what_it_lacks() -> None:
    rig = ChainRig("AB")
    rig.append("A", 5)
    rig.settle()
    put_back(rig, "B", 2)
    rig.settle()
    rig.append("A")
    rig.settle()
    assert rig.membership.epoch == 1 and rig.logs("A", "B") == [6, 6]
    assert rig.chain("B").log.records == rig.chain("A").log.records


def test_of_two_records_with_one_number_the_one_of_the_older_epoch_was_voided() -> None:
    """A lost its head's place with two records that nobody else had, came back, and now its disk is as it was then."""
    rig = ChainRig("ABC")
    rig.append("A", 2)
    rig.sync("A")
    rig.take(Append)
    void = list(rig.durable["A"])
    rig.silence("BC")
    rig.append("B", 2)
    rig.settle()
    rejoin(rig, "A")
    assert rig.membership.replicas == ("B", "C", "A")
    rig.beat("B", "C")
    rig.settle()
    rig.crash("A")
    rig.durable["A"] = void
    rig.restart("A")
    rig.settle()
    assert ("A", "old_disk_found") in rig.reports
    rejoin(rig, "A")
    assert [record.epoch for record in rig.chain("A").log.records] == [2, 2]
    assert rig.chain("A").log.records == rig.chain("C").log.records


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_a_replica_does_not_resign_because_its_successor_has_more_of_what_was_voided(order: str) -> None:
    """A's disk is as it was when it had three records alone; B, with one that counts, restarts at the same time."""
    rig = ChainRig("AB")
    rig.append("A", 3)
    rig.sync("A")
    rig.take(Append)
    void = list(rig.durable["A"])
    rig.silence("B")
    rig.append("B")
    rig.settle()
    rejoin(rig, "A")
    assert rig.membership.replicas == ("B", "A") and rig.logs("B", "A") == [1, 1]
    rig.beat("B", "A")
    rig.settle()
    rig.crash("A", "B")
    rig.wire.clear()
    rig.durable["A"] = void
    rig.restart(*order)
    rig.settle()
    for _ in range(3):
        rig.beat("B", "A")
        rig.settle()
    assert ("B", "old_disk_found") not in rig.reports and ("A", "old_disk_found") in rig.reports
    assert rig.membership.head == "B" and rig.chain("B").is_head
    rejoin(rig, "A")
    assert [record.epoch for record in rig.chain("B").log.records] == [2]
    assert rig.chain("A").log.records == rig.chain("B").log.records


def test_a_replica_whose_disk_is_too_old_does_not_outlast_those_who_know_more() -> None:
    rig = ChainRig("AB")
    rig.append("A", 5)
    rig.settle()
    put_back(rig, "A", 2)
    rig.settle()  # B has answered, and not been heard of by the service since
    rig.crash("B")
    rig.silence("A")
    assert rig.membership.replicas in (("A", "B"), ("B",))
    rig.restart("B")
    rig.settle()
    for _ in range(3):
        rig.beat("B", "A")
        rig.settle()
    assert rig.membership.head == "B" and rig.logs("B") == [5]


def test_after_a_full_stop_everybody_compares_and_goes_on() -> None:
    rig = ChainRig("ABC")
    rig.append("A", 3)
    rig.settle()
    rig.crash("A", "B", "C")
    rig.wire.clear()
    rig.restart("C", "A", "B")
    rig.settle()
    rig.append("A")
    rig.settle()
    assert rig.membership.epoch == 1 and rig.committed("C")[-1] == 4


def test_a_comparison_that_is_lost_is_asked_for_again() -> None:
    rig = ChainRig("AB")
    rig.crash("A")
    rig.restart("A")
    rig.deliver(Beat)
    rig.deliver(Current)
    assert rig.take(Compare)
    rig.expire(RetryTick(), "A")
    rig.settle()
    assert rig.chain("A").is_head


def joined_by_snapshot(*, hold: tuple[type[Message], ...] = ()) -> ChainRig:
    """A, alone in its chain, has committed ten records and knows of nine on its disk; N has a snapshot of all ten."""
    rig = ChainRig("A", "N", ChainSettings(retain=2))
    for _ in range(10):
        rig.append("A")
        rig.settle()
    rig.join("N", hold=hold)
    assert rig.logs("A", "N") == [10, 10] and not rig.chain("N").log.records
    assert max(entry.committed for entry in rig.durable["A"] if isinstance(entry, Logged)) == 9
    return rig


@pytest.mark.parametrize("stopped", ["A", "AN"])
def test_a_chain_of_one_goes_on_when_its_newcomer_has_only_a_snapshot_of_the_last_record(stopped: str) -> None:
    """Nobody else could take A's place, so if it resigned for no reason its chain would stand still for good."""
    rig = joined_by_snapshot(hold=(ChainAck,))
    assert rig.membership.joining == "N"
    rig.crash(*stopped)
    rig.wire.clear()
    rig.restart(*stopped)
    rig.settle()
    assert rig.chain("A").log.committed == 10 and ("A", "old_disk_found") not in rig.reports
    rig.append("A")
    rig.retry("A", "N")
    assert rig.membership.replicas == ("A", "N") and rig.logs("A", "N") == [11, 11]


def test_a_head_keeps_its_place_when_its_successor_has_only_a_snapshot_of_the_last_record() -> None:
    rig = joined_by_snapshot()
    rig.crash("A")
    rig.restart("A")
    rig.settle()
    assert rig.chain("A").is_head and rig.membership == ChainConfig("r", 3, ("A", "N"))


def test_a_voided_record_is_found_out_by_a_neighbour_that_has_only_a_snapshot() -> None:
    """A's disk is as it was when it had a tenth record of its own; the tenth that counts is another one."""
    rig = ChainRig("AB", "N", settings=ChainSettings(retain=2))
    for _ in range(9):
        rig.append("A")
        rig.settle()
    rig.append("A")
    rig.sync("A")
    rig.take(Append)
    void = list(rig.durable["A"])
    rig.silence("B")
    rig.append("B")
    rig.settle()
    rig.join("A")
    rig.join("N")
    assert rig.membership.replicas == ("B", "A", "N") and rig.logs("B", "A", "N") == [10, 10, 10]
    assert not rig.chain("N").log.records
    rig.beat("B", "N")
    rig.settle()
    rig.crash("A")
    rig.durable["A"] = void
    rig.restart("A")
    rig.deliver(Beat)
    rig.deliver(Current)
    rig.take(Compare, dst="B")  # N alone must find it out
    rig.settle()
    assert ("A", "old_disk_found") in rig.reports and "A" not in rig.membership.replicas


def test_a_member_that_has_fetched_once_is_sent_everything_that_follows() -> None:
    """What a newcomer may have under way is bounded by what it acknowledges; a member is no newcomer."""
    rig = ChainRig("AB", settings=ChainSettings(backlog=8))
    rig.append("A")
    rig.sync("A")
    rig.take(Append)  # lost: with the next one B sees the gap
    for _ in range(20):
        rig.append("A")
        rig.settle()
    assert rig.logs("A", "B") == [21, 21] and rig.committed("A") == list(range(1, 22))
