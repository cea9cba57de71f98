"""The publisher's end: a batch that does not fit fails alone, and nothing is published twice for it."""

from __future__ import annotations

from tidings.core.rows import CountedRows
from tidings.protocols.kernel import Deliver, Effects, Received, Send
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.publishing import (
    Acked,
    OpenSession,
    Post,
    Publish,
    Published,
    Publisher,
    PublishSettings,
    Refused,
    Rejected,
    SessionOpened,
)

ONE = CountedRows(1, 2, 10)


def sent(effects: Effects) -> list[object]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def told(effects: Effects) -> list[object]:
    return [effect.item for effect in effects if isinstance(effect, Deliver)]


def opened() -> Publisher:
    publisher = Publisher("p", ChainConfig("r", 1, ("head",)), PublishSettings(), 7)
    publisher.start(0.0)
    publisher.handle(0.0, Received("head", SessionOpened(7, 100)))
    for tag in (11, 12, 13):
        publisher.handle(0.0, Post("s", ONE, tag))
    return publisher


def test_answers_carry_the_name_that_the_application_gave() -> None:
    publisher = opened()
    effects = publisher.handle(0.1, Received("head", Published(100, 1, 5, 6)))
    assert told(effects) == [Acked("s", "p", 100, 1, 5, 6, 11)]


def test_a_refused_batch_is_given_back_and_later_ones_wait_until_earlier_ones_are_answered() -> None:
    publisher = opened()
    effects = publisher.handle(0.1, Received("head", Rejected(100, 2, "rows")))
    assert told(effects) == [Refused("s", "p", 12, "rows")]
    assert sent(effects) == [], "the first is not answered: perhaps it is published"
    assert sent(publisher.handle(0.2, Received("head", Rejected(100, 3, "gap")))) == []
    effects = publisher.handle(0.3, Received("head", Published(100, 1, 5, 6)))
    assert sent(effects) == [OpenSession("p", 8)], "a new session fences copies of what is sent again"
    effects = publisher.handle(0.4, Received("head", SessionOpened(8, 101)))
    assert sent(effects) == [Publish("s", "p", 101, 1, ONE)]
    assert told(publisher.handle(0.5, Received("head", Published(101, 1, 6, 7)))) == [Acked("s", "p", 101, 1, 6, 7, 13)]
    publisher.check()


def test_what_is_posted_while_a_session_ends_goes_out_in_the_next() -> None:
    publisher = opened()
    publisher.handle(0.1, Received("head", Rejected(100, 2, "stream")))
    assert sent(publisher.handle(0.1, Post("s", ONE, 14))) == []
    publisher.handle(0.2, Received("head", Published(100, 1, 5, 6)))
    effects = publisher.handle(0.4, Received("head", SessionOpened(8, 101)))
    assert sent(effects) == [Publish("s", "p", 101, 1, ONE), Publish("s", "p", 101, 2, ONE)]
