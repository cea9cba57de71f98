"""What a head refuses before it numbers it: whatever reaches the log is applied by every replica, for good."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tidings.core.rows import ROW_SCHEMA, ArrowRows, data_rows, where_rows
from tidings.protocols.kernel import Message, Persist, Persisted, Received, Send
from tidings.protocols.nodes.replica import Replica, ReplicaSettings, StreamDef
from tidings.protocols.replication.chain import ChainAck, Compared
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Current
from tidings.protocols.services.catalog import LAST_LOST, DeclareLost, Define, Defined, NotDefined
from tidings.protocols.services.cursors import OpenCursor
from tidings.protocols.services.leases import Lease
from tidings.protocols.services.publishing import OpenSession, Publish, Published, Rejected, SessionOpened


class Owner:
    """The only replica of a region, and whoever asks it."""

    def __init__(self, stream: StreamDef) -> None:
        self.proxy = Replica("p", "r", "config", [stream], {}, ReplicaSettings(), [], random.Random(1))
        self.proxy.start(0.0)
        self.hears(Current(ChainConfig("r", 1, ("p",)), self.proxy.chain.nonce), "config")
        self.nonce = 0

    def hears(self, message: Message, src: str = "c") -> list[Message]:
        """The answers, once all is on disk."""
        effects, answers = list(self.proxy.handle(1.0, Received(src, message))), []
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, Persist):
                effects += self.proxy.handle(1.0, Persisted(effect.token))
            elif isinstance(effect, Send) and effect.to == src:
                answers.append(effect.message)
        return answers

    def publishes(self, rows: ArrowRows) -> str:
        """In a session of its own: published, or the reason why not."""
        self.nonce += 1
        (opened,) = self.hears(OpenSession("me", self.nonce))
        assert isinstance(opened, SessionOpened)
        (answer,) = self.hears(Publish("s", "me", opened.session, 1, rows))
        assert isinstance(answer, Published | Rejected)
        return answer.reason if isinstance(answer, Rejected) else "published"


def priced(nullable: bool) -> ArrowRows:
    schema = ROW_SCHEMA.append(pa.field("price", pa.float64(), nullable=nullable))
    columns = [pa.array([value], field.type) for value, field in zip((0, b"k", b"x", None, 1.0), schema, strict=True)]
    return ArrowRows(None, pa.RecordBatch.from_arrays(columns, schema=schema), first=1)


def test_a_predicate_over_another_type_than_declared_takes_nothing_along() -> None:
    owner = Owner(StreamDef("s", "r", attrs="price double"))
    assert owner.publishes(priced(nullable=True)) == "published"
    wrong = where_rows(1, ["(price timestamp) price > TIMESTAMP '2020-01-01 00:00:00Z'"])
    assert owner.publishes(wrong) == "rows"
    assert owner.publishes(where_rows(1, ["(price double) price > 2.0D"])) == "published"
    assert owner.proxy.log.histories["s"].horizon == 3


def test_an_attribute_that_cannot_be_null_is_refused() -> None:
    owner = Owner(StreamDef("s", "r", attrs="price double"))
    assert owner.publishes(priced(nullable=False)) == "rows"


def test_a_before_event_with_a_key_is_refused() -> None:
    owner = Owner(StreamDef("s", "r", "by-key"))
    columns = [pa.array([value], field.type) for value, field in zip((1, b"z", b"x", 1), ROW_SCHEMA, strict=True)]
    keyed = ArrowRows(None, pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA), first=1)
    assert owner.publishes(keyed) == "rows"
    assert owner.publishes(data_rows(1, [b"z"], [b"x"])) == "published"


@pytest.mark.parametrize("hi", [LAST_LOST + 1, (1 << 63) - 2, (1 << 63) - 1])
def test_a_loss_leaves_numbers_to_be_published(hi: int) -> None:
    owner = Owner(StreamDef("s", "r"))
    (refused,) = owner.hears(DeclareLost(1, "s", 1, hi))
    assert isinstance(refused, NotDefined) and str(LAST_LOST) in refused.reason
    (declared,) = owner.hears(DeclareLost(2, "s", 1, LAST_LOST))
    assert isinstance(declared, Defined)
    assert owner.publishes(data_rows(1, None, [b"x"])) == "published"


class Leader:
    """The head of a chain of two: what it writes is committed when the other one says so."""

    def __init__(self) -> None:
        self.proxy = Replica("p", "r", "config", [], {}, ReplicaSettings(), [], random.Random(1))
        self.hears(Current(ChainConfig("r", 1, ("p", "q")), self.proxy.chain.nonce), "config")
        self.hears(Compared(1, 0, 0, 0), "q")
        self.hears(OpenSession("me", 1))
        (opened,) = self.commits()
        assert isinstance(opened, SessionOpened)
        self.session = opened.session

    def hears(self, message: Message, src: str = "c") -> list[Message]:
        effects = list(self.proxy.handle(1.0, Received(src, message)))
        for effect in effects:
            if isinstance(effect, Persist):
                effects += self.proxy.handle(1.0, Persisted(effect.token))
        return [effect.message for effect in effects if isinstance(effect, Send) and effect.to == "c"]

    def commits(self) -> list[Message]:
        """Everything that it has written so far."""
        return self.hears(ChainAck(1, self.proxy.log.last), "q")

    def creates(self) -> str:
        """The id of a stream whose definition is on its way: whom a former head answered knows it already."""
        self.hears(Define(1, "create", StreamDef("s", "")))
        ((_, definition),) = self.proxy.table.uncommitted("s")
        return definition.id

    def publishes(self, stream: str, first: int = 1) -> list[Message]:
        return self.hears(Publish(stream, "me", self.session, first, data_rows(1, None, [b"x"])))


def test_a_head_that_does_not_know_yet_whether_a_stream_is_defined_refuses_nothing_for_good() -> None:
    leader = Leader()
    s = leader.creates()
    assert leader.publishes(s) == [Rejected(leader.session, 1, "busy")]
    assert leader.hears(Lease("l", s, grant=True)) == leader.hears(OpenCursor("n", s, 1)) == []
    leader.commits()
    leader.publishes(s)
    assert Published(leader.session, 1, 1, 2) in leader.commits()


def test_what_comes_while_a_stream_is_being_deleted_is_not_acknowledged() -> None:
    leader = Leader()
    s = leader.creates()
    leader.commits()
    leader.publishes(s)
    leader.commits()
    leader.hears(Define(2, "delete", StreamDef("s", "")))
    assert leader.publishes(s, 2) == [Rejected(leader.session, 2, "busy")], (
        "it would find no stream when it is committed"
    )
    assert leader.hears(DeclareLost(3, s, 2, 9)) == []
    (deleted,) = leader.commits()
    assert isinstance(deleted, Defined) and deleted.definition.deleted
    leader.publishes(s, 2)
    assert leader.commits() == [Rejected(leader.session, 2, "stream")]
