"""What a head says for good: only once a record that was written after the question is committed."""

from __future__ import annotations

from paper.rig import Owner
from tidings.core.rows import CountedRows
from tidings.protocols.kernel import Message, Received
from tidings.protocols.replication.chain import ChainAck, Compared
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Current
from tidings.protocols.replication.log import Lsn
from tidings.protocols.services.head import ANSWERS
from tidings.protocols.services.publishing import OpenSession, Publish, Rejected, SessionOpened


class Head(Owner):
    """The head of a chain whose tail says what the test wants."""

    def __init__(self) -> None:
        super().__init__(("y0", "y1"))
        self.rig.tell("y0", Received("y1", Compared(1, 0, 0, 0)))
        self.hears(OpenSession("p", 7))
        (opened,) = self.acknowledged(self.last)
        assert isinstance(opened, SessionOpened)
        self.session = opened.session

    @property
    def last(self) -> Lsn:
        return self.proxy.log.last

    def asked(self, number: int) -> list[Message]:
        """A batch of a publisher that nobody knows."""
        return self.hears(Publish("s", "unknown", number, 1, CountedRows(1, 2, 10)))

    def acknowledged(self, lsn: Lsn) -> list[Message]:
        """The tail has acknowledged a record; what the client hears then."""
        self.rig.sync("y0")
        self.rig.tell("y0", Received("y1", ChainAck(1, lsn)))
        return [letter.message for letter in self.rig.take(dst="client")]

    def replaced(self) -> None:
        """The configuration service has another chain."""
        self.rig.tell("y0", Received("config", Current(ChainConfig("y", 2, ("y1",)), self.proxy.chain.nonce)))


def test_a_record_that_was_written_before_a_question_does_not_answer_it() -> None:
    head = Head()
    assert head.asked(1) == []
    before = head.last
    assert head.asked(2) == []
    assert head.acknowledged(before) == [Rejected(1, 1, "expired")], "it may have been replaced since"
    assert head.acknowledged(head.last) == [Rejected(2, 1, "expired")]


def test_questions_that_come_while_a_record_is_under_way_share_the_next_one() -> None:
    head = Head()
    head.asked(1)
    before = head.last
    for number in range(2, 50):
        head.asked(number)
        head.asked(number)  # and asked twice is answered once
    assert head.last == before
    head.acknowledged(before)
    assert head.last == before + 1
    assert head.acknowledged(before + 1) == [Rejected(number, 1, "expired") for number in range(2, 50)]
    assert head.last == before + 1, "nobody asks any more"


def test_answers_owed_for_one_record_are_bounded() -> None:
    head = Head()
    for number in range(ANSWERS + 3):
        head.asked(number)
    assert head.rig.reports.count(("y0", "answers_full")) == 2
    head.acknowledged(head.last)
    assert len(head.acknowledged(head.last)) == ANSWERS


def test_repetitions_of_a_batch_from_everywhere_are_bounded() -> None:
    head = Head()
    head.publish(1, 1)
    batch = Publish("s", "p", head.session, 1, CountedRows(1, 2, 10))
    for number in range(ANSWERS + 3):
        head.rig.tell("y0", Received(f"client{number}", batch))
    assert len(head.proxy.head.waiting[head.last]) == ANSWERS
    assert ("y0", "answers_full") in head.rig.reports


def test_whoever_is_no_longer_the_head_owes_no_answer() -> None:
    head = Head()
    head.asked(1)
    head.asked(2)
    head.replaced()
    assert not head.proxy.head.waiting and not head.proxy.head.later
