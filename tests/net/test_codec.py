"""Every value of the protocols goes through a frame and comes back the same; what is wrong is a typed error."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import random
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings import protocols
from tidings.core.errors import BadInput
from tidings.core.ids import NEVER
from tidings.core.lens import Lens
from tidings.core.rows import NO_ROWS, ArrowRows, CountedRows, Origin, Rows, before_rows, data_rows
from tidings.core.span import Span
from tidings.net.codec import ENTRIES, JOURNAL, WIRE, Codec, below, form_of, tag_of
from tidings.net.frames import NO_BODY, FrameError, FrameReader
from tidings.protocols.brokers.broker_messages import Brokered
from tidings.protocols.brokers.messages import Feed
from tidings.protocols.fabrics.family import FabricChoice, choose
from tidings.protocols.kernel import Command, Message, Timer
from tidings.protocols.messages import Know, Offer, Want
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.log import Record
from tidings.protocols.services.publishing import NotHead, Publish
from tidings.protocols.services.sinks import SinkBatch

for each in pkgutil.walk_packages(protocols.__path__, "tidings.protocols."):
    importlib.import_module(each.name)


def protocol_classes(base: type) -> list[type]:
    """All classes below one that the protocols define."""
    found = {kind for kind in below(base) if kind.__module__.startswith("tidings.protocols.")}
    return sorted(found, key=lambda kind: kind.__name__)


MESSAGES = protocol_classes(Message)
KINDS = [*MESSAGES, *protocol_classes(Timer), *protocol_classes(Command), *ENTRIES]


def carries_rows(hint: Any) -> bool:
    if hint in (Rows, Span, Record):
        return True
    return any(carries_rows(each) for each in get_args(hint))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_whatever_carries_rows_has_a_body_for_them(kind: type) -> None:
    fields = msgspec.structs.fields(kind)
    assert any(carries_rows(field.type) for field in fields) == (form_of(kind).pack is not None)


def test_no_two_messages_have_one_name() -> None:
    names = [kind.__name__ for kind in KINDS]
    assert sorted(set(names)) == sorted(names)


# --- round trips ----------------------------------------------------------------------------------------

names = st.text(max_size=12)
numbers = st.integers(0, NEVER)


def rows(seed: int, lo: int) -> Rows:
    """Rows of every sort: none, counted, few, many, with holes, collecting, with attributes."""
    rng = random.Random(seed)
    sort = rng.randrange(6)
    count = rng.choice([1, 5, 64, 65, 700])
    if sort == 0:
        return NO_ROWS
    if sort == 1:
        return CountedRows(lo, lo + count, 10, ((lo, 1),) if rng.random() < 0.5 else ())
    if sort == 2:
        return before_rows(lo, [max(1, lo - 1)] * count, Origin(lo, lo + count, "owner", 1, 1, 7, 1.5, "r0"))
    keys = [None if rng.random() < 0.1 else rng.randbytes(rng.randrange(12)) for _ in range(count)]
    made = data_rows(
        lo, keys, [rng.randbytes(rng.randrange(40)) for _ in range(count)], Origin(lo, lo + count, "p", 3, 1)
    )
    if sort == 3 and count > 1:
        return made.take(np.arange(0, count, 2))
    return made


@st.composite
def spans(draw: st.DrawFn) -> Span:
    lo = draw(st.integers(1, 1 << 40))
    held = rows(draw(st.integers(0, 1 << 30)), lo)
    hi = lo + 700 + draw(st.integers(0, 100))
    return Span(draw(names), lo, hi, draw(numbers), held, draw(st.sampled_from([Lens(), Lens("a = 1", 2)])))


@st.composite
def knowledge(draw: st.DrawFn, stream: str) -> tuple[Span, ...]:
    """Disjoint, ascending spans of one stream."""
    los = [1 + 1000 * at for at in range(draw(st.integers(0, 3)))]
    held = [rows(draw(st.integers(0, 1 << 30)), lo) for lo in los]
    return tuple([Span(stream, lo, lo + 900, draw(numbers), each) for lo, each in zip(los, held, strict=True)])


memberships = st.builds(
    ChainConfig,
    region=names,
    epoch=numbers,
    replicas=st.lists(names, min_size=1, max_size=4, unique=True).map(tuple),
    joining=st.none() | names,
)
st.register_type_strategy(Span, spans())
st.register_type_strategy(FabricChoice, st.builds(choose, st.just("pull"), fanout=st.integers(1, 9)))
st.register_type_strategy(ChainConfig, memberships)
said = st.text(min_size=1, max_size=12)
sink_batches = st.builds(SinkBatch, said, said, said, numbers, numbers, st.booleans(), st.booleans())
st.register_type_strategy(SinkBatch, sink_batches)


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if hint is int:
        return numbers
    if hint is str:
        return names
    if hint is float:
        return st.floats(allow_nan=False)  # which does not equal itself
    if hint is Rows:
        return st.builds(rows, st.integers(0, 1 << 30), st.integers(1, 1 << 40))
    origin, inside = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return st.one_of([strategy(each) for each in inside])
    if origin is tuple and inside[-1] is Ellipsis:
        return st.lists(strategy(inside[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*[strategy(each) for each in inside])
    if origin is dict:
        return st.dictionaries(strategy(inside[0]), strategy(inside[1]), max_size=3)
    if (
        isinstance(hint, type)
        and issubclass(hint, msgspec.Struct)
        and hint not in (Span, ChainConfig, SinkBatch, FabricChoice)
    ):
        return values(hint)
    return st.from_type(hint)


def values(kind: type) -> st.SearchStrategy[Any]:
    if kind is Brokered:
        return names.flatmap(
            lambda stream: st.builds(Brokered, st.just(stream), knowledge(stream), st.booleans(), said)
        )
    if kind is Know:
        return names.flatmap(lambda stream: st.builds(Know, st.just(stream), knowledge(stream), numbers))
    if kind is Feed:
        return st.builds(Feed, numbers, numbers, names.flatmap(knowledge), numbers)
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: strategy(hints[name]) for name in kind.__struct_fields__})  # type: ignore[attr-defined]


def sent_over(codec: Codec, value: Any) -> Any:
    """A value after a frame."""
    out: list[Any] = []
    reader = FrameReader(lambda header, body: out.append(codec.decode(header, body)))
    data = b"".join(codec.encode(value).chunks)
    at = 0
    while at < len(data):
        room = reader.room()
        count = min(len(room), len(data) - at)
        room[:count] = data[at : at + count]
        reader.fed(count)
        at += count
    assert len(out) == 1
    return out[0]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_value_comes_back_the_same(kind: type) -> None:
    codec = WIRE if kind in MESSAGES else JOURNAL

    @given(strategy(kind))
    @settings(max_examples=25, deadline=None)
    def check(value: Any) -> None:
        again = sent_over(codec, value)
        assert type(again) is kind
        assert again == value

    check()


def test_rows_are_neither_copied_when_they_leave_nor_after_they_have_arrived() -> None:
    batch = data_rows(1, [b"%010d" % at for at in range(16_384)], [b"%010d" % at for at in range(16_384)])
    outgoing = WIRE.encode(Know("s", (Span.of("s", 1, batch),), 16_385))
    payload = batch.batch.column("payload").buffers()[2]
    assert any(np.frombuffer(chunk, np.uint8).ctypes.data == payload.address for chunk in outgoing.chunks[1:])
    header, body = WIRE.split(Know("s", (Span.of("s", 1, batch),), 16_385))
    arrived = memoryview(b"".join(body))
    know = WIRE.decode(header, arrived)
    assert isinstance(know.spans[0].rows, ArrowRows)
    where = np.frombuffer(arrived, np.uint8).ctypes.data
    there = know.spans[0].rows.batch.column("payload").buffers()[2].address
    assert where <= there < where + len(arrived)


# --- what is wrong ----------------------------------------------------------------------------------------


def header(tag: str, value: Any) -> bytes:
    return msgspec.msgpack.encode([tag, value])


def code_of(made: bytes, body: memoryview = NO_BODY) -> str:
    with pytest.raises(FrameError) as caught:
        WIRE.decode(made, body)
    return caught.value.code


def test_a_header_is_plain_msgpack() -> None:
    made, _ = WIRE.split(Offer("prices", 17))
    assert msgspec.msgpack.decode(made) == ["Offer", {"stream": "prices", "horizon": 17}]
    assert tag_of(made) == "Offer"


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (header("Nonsense", {}), "unknown_message"),
        (header("Post", ["s", [0]]), "unknown_message"),  # a command is nothing a node may be told by another
        (b"\x92\xa5Offer", "bad_message"),
        (header("Offer", {"stream": "s"}), "bad_message"),
        (header("Offer", {"stream": 1, "horizon": 2}), "bad_message"),
        (header("Offer", {"stream": "s", "horizon": "2"}), "bad_message"),
        (header("Offer", {"stream": "s", "horizon": -1}), "bad_message"),
        (header("Want", {"stream": "s", "lo": 1, "hi": 1 << 63}), "bad_message"),
        (header("Follow", {"id": 1, "stream": "s", "lo": -3}), "bad_message"),
        (header("Know", ["s", [["s", 5, 1, 1, [0]]], 9]), "bad_message"),
        (header("Know", ["s", [["s", 1, 5, 1, [1, 1, 9, 10]]], 9]), "bad_message"),  # rows outside of their span
        (header("Current", {"membership": {"region": "r", "epoch": 1, "replicas": []}}), "bad_message"),
        (header("Current", {"membership": {"region": "r", "epoch": 1, "replicas": ["a", "a"]}}), "bad_message"),
        (b"\x93\xa5Offer\x01\x02", "frame"),
        (b"\x92", "frame"),
        (b"random!!", "frame"),
    ],
)
def test_what_does_not_make_sense_is_a_typed_error(made: bytes, code: str) -> None:
    assert code_of(made) == code


@pytest.mark.parametrize(
    "ranges",
    [
        [("other", 1, 4)],
        [("s", 1, 4), ("other", 4, 7)],
        [("s", 4, 7), ("s", 1, 4)],
        [("s", 1, 4), ("s", 3, 7)],
        [("s", 1, 1)],
    ],
    ids=["another stream", "another stream later", "descending", "overlapping", "empty"],
)
def test_spans_that_are_no_knowledge_of_their_stream_are_refused(ranges: list[tuple[str, int, int]]) -> None:
    spans = tuple([Span(stream, lo, hi, lo, NO_ROWS) for stream, lo, hi in ranges])
    made, body = WIRE.split(Know("s", spans, 9))
    assert code_of(made, memoryview(b"".join(body))) == "bad_message"


def test_a_body_must_be_announced() -> None:
    assert code_of(WIRE.split(Offer("s", 1))[0], memoryview(bytes(8))) == "bad_message"
    assert code_of(WIRE.split(Know("s", (), 1))[0], memoryview(bytes(8))) == "bad_message"


def test_fields_a_newer_version_added_are_skipped() -> None:
    assert WIRE.decode(header("Want", {"stream": "s", "lo": 1, "hi": 2, "soon": True}), NO_BODY) == Want("s", 1, 2)


@given(st.binary(max_size=200), st.binary(max_size=100), st.sampled_from(sorted(kind.__name__ for kind in MESSAGES)))
@settings(max_examples=400, deadline=None)
def test_random_headers_never_raise_anything_else(junk: bytes, body: bytes, tag: str) -> None:
    prefix = bytes([0x92, 0xA0 | len(tag)]) + tag.encode()
    for made in (junk, prefix + junk):
        with contextlib.suppress(FrameError):
            WIRE.decode(made, memoryview(body))


samples = st.sampled_from(
    [
        Know("s", (Span.of("s", 1, data_rows(1, [b"k"] * 80, [b"v" * 9] * 80)),), 81),
        Feed(1, 1, (Span.of("s", 1, data_rows(1, [b"k"], [b"v"])),), 2),
        Publish("s", "p", 1, 1, data_rows(1, None, [b"%d" % at for at in range(100)])),
        NotHead(ChainConfig("r", 1, ("a", "b"))),
    ]
)


@given(samples, st.data())
@settings(max_examples=400, deadline=None)
def test_damaged_messages_decode_or_are_a_typed_error(message: Message, data: st.DataObject) -> None:
    made, buffers = WIRE.split(message)
    whole = bytearray(made + b"".join(buffers))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        WIRE.decode(bytes(whole[: len(made)]), memoryview(bytes(whole[len(made) :])))


def test_a_value_that_is_no_message_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="ChainConfig has no encoding"):
        WIRE.encode(ChainConfig("r", 1, ("a",)))
