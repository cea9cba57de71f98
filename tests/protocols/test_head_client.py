"""Which replica a client asks for what only the head does."""

from __future__ import annotations

from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.head_client import HeadClient

OLD = ChainConfig("r", 1, ("a", "b", "c"))
NEW = ChainConfig("r", 2, ("b", "c"))


def test_the_head_is_asked_first_and_silent_replicas_in_turn() -> None:
    head = HeadClient(OLD)
    asked = [head.asked]
    for _ in range(3):
        head.rotate()
        asked.append(head.asked)
    assert asked == ["a", "b", "c", "a"]
    head.rotate()
    head.restart()
    assert head.asked == "a"


def test_a_newer_configuration_names_another_head() -> None:
    head = HeadClient(OLD)
    assert head.is_newer(NEW) and head.learn(NEW)
    assert head.asked == "b"


def test_a_configuration_with_the_same_head_changes_nobody_who_is_asked() -> None:
    head = HeadClient(OLD)
    assert not head.learn(ChainConfig("r", 2, ("a", "c")))
    assert head.config.epoch == 2


def test_a_replica_that_knows_the_same_configuration_sends_the_client_back_to_the_head() -> None:
    head = HeadClient(OLD)
    head.rotate()
    assert not head.is_newer(OLD) and head.learn(OLD)
    assert head.asked == "a"


def test_an_older_configuration_and_one_of_another_region_are_ignored() -> None:
    head = HeadClient(NEW)
    assert not head.learn(OLD) and not head.learn(ChainConfig("x", 9, ("y",)))
    assert not head.is_newer(OLD) and not head.is_newer(ChainConfig("x", 9, ("y",)))
    assert head.config is NEW


def test_a_request_is_overdue_when_two_ticks_find_it_the_oldest() -> None:
    head = HeadClient(OLD)
    assert [head.overdue(7), head.overdue(7), head.overdue(8), head.overdue(None)] == [False, True, False, False]
    assert HeadClient(OLD, waiting=0).overdue(0)


def test_a_replica_that_answers_nothing_between_two_repetitions_is_left_for_the_next() -> None:
    head = HeadClient(OLD, waiting=0)
    assert head.overdue(0) and head.asked == "a"
    assert head.overdue(0) and head.asked == "b"
    head.useful = True
    assert head.overdue(0) and head.asked == "b"
