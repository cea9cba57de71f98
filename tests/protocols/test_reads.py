"""Reads as of a number: the same answer from every replica, none to what makes no sense."""

from __future__ import annotations

import random

import pytest

from tidings.core.rows import before_rows, data_rows
from tidings.core.span import Span
from tidings.protocols.client import Client, ClientSettings, ReadAsOf
from tidings.protocols.kernel import Received, Report, Send
from tidings.protocols.membership import Membership
from tidings.protocols.messages import Answer, Gone, Read
from tidings.protocols.proxy import Proxy, ProxySettings, StreamDef
from tidings.protocols.pull import PullSettings


def replica() -> Proxy:
    """Holds 1-4 of "s"; 5 collects what is below 3."""
    made = Proxy("p", "r", "config", [StreamDef("s", "r")], {}, ProxySettings(), [], random.Random(1))
    history = made.log.histories["s"]
    history.accept(Span.of("s", 1, data_rows(1, None, [b"a", b"b", b"c", b"d"])))
    history.accept(Span.of("s", 5, before_rows(5, [3])))
    return made


@pytest.mark.parametrize(("asof", "rows"), [(1, [2, 3]), (2, [2, 3]), (5, [2, 3]), (6, [3])])
def test_a_read_sees_what_was_not_collected_below_its_asof(asof: int, rows: list[int]) -> None:
    client = Client("c", "r", Membership("r", 1, ("p",)), {}, ClientSettings(), random.Random(1))
    ask = client.handle(0.0, ReadAsOf("s", 2, 4, asof))[0]
    assert isinstance(ask, Send)
    (answer,) = replica().handle(0.0, Received("c", ask.message))
    assert isinstance(answer, Send) and isinstance(answer.message, Answer)
    assert answer.message.span.rows.numbers.tolist() == rows
    (done,) = client.handle(0.1, Received("p", answer.message))
    assert done.item.answer == answer.message.span  # type: ignore[union-attr]


@pytest.mark.parametrize("read", [Read("s", 0, 2, 2), Read("s", 3, 3, 3), Read("s", 4, 2, 4), Read("t", 1, 2, 2)])
def test_a_read_that_makes_no_sense_is_counted_and_not_answered(read: Read) -> None:
    assert replica().handle(0.0, Received("c", read)) == [Report("bad_message")]


def test_a_read_of_the_region_s_own_bookkeeping_is_refused() -> None:
    assert replica().handle(0.0, Received("c", Read("_publishers", 1, 2, 2))) == [Report("bad_message")]


def test_a_read_beyond_the_horizon_waits_for_a_replica_that_knows_more() -> None:
    assert list(replica().handle(0.0, Received("c", Read("s", 1, 9, 9)))) == []


def test_a_read_below_the_floor_is_told_where_to_read() -> None:
    made = replica()
    made.log.histories["s"].purge()
    sent, _ = made.handle(0.0, Received("c", Read("s", 1, 3, 3)))
    assert isinstance(sent, Send) and isinstance(sent.message, Gone) and sent.message.floor == 6


@pytest.mark.parametrize("rows", [[b"x" * (5 << 20)] * 2, [b"x"] * 5])
def test_a_read_that_is_too_much_for_a_message_is_counted_and_not_answered(rows: list[bytes]) -> None:
    settings = ProxySettings(pull=PullSettings(reply_rows=4))
    made = Proxy("p", "r", "config", [StreamDef("s", "r")], {}, settings, [], random.Random(1))
    made.log.histories["s"].accept(Span.of("s", 1, data_rows(1, None, rows)))
    assert made.handle(0.0, Received("c", Read("s", 1, 1 + len(rows), 1))) == [Report("read_too_large")]
    (answer,) = made.handle(0.0, Received("c", Read("s", 1, 2, 1)))
    assert isinstance(answer, Send) and isinstance(answer.message, Answer)
