"""What is written is read back, and nothing that was not written is believed.

Speed against Arrow IPC: `python tests/core/test_wire.py` prints microseconds and bytes per batch.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.core.errors import BadInput
from tidings.core.lens import Lens
from tidings.core.rows import NO_ROWS, ROW_SCHEMA, ArrowRows, CountedRows, Origin, Rows, before_rows, data_rows
from tidings.core.span import Span
from tidings.core.wire import (
    EVEN,
    MAX_ROWS,
    PLAIN,
    SMALL_ROWS,
    Attribute,
    Column,
    Columns,
    Corrupt,
    Counted,
    Small,
    SmallRows,
    SpanHead,
    decode_rows,
    decode_span,
    decode_spans,
    encode_rows,
    encode_span,
    encode_spans,
    unpack,
)

HEAD = msgspec.msgpack.Decoder(SpanHead)
HEADS = msgspec.msgpack.Decoder(tuple[SpanHead, ...])
blobs = st.none() | st.binary(max_size=12)
words = st.integers(-(1 << 63), (1 << 63) - 1)


def column_values(count: int) -> dict[str, st.SearchStrategy[pa.Array]]:
    """Attributes of every sort, nulls included."""

    def of(values: st.SearchStrategy[Any], kind: pa.DataType) -> st.SearchStrategy[pa.Array]:
        lists = st.lists(st.none() | values, min_size=count, max_size=count)
        return lists.map(lambda chosen: pa.array(chosen, kind))

    return {
        "flag": of(st.booleans(), pa.bool_()),
        "name": of(st.text(max_size=4), pa.string()),
        "long": of(st.text(max_size=4), pa.large_string()),
        "price": of(st.floats(allow_nan=False), pa.float64()),
        "level": of(st.integers(0, 255), pa.uint8()),
        "when": of(st.integers(0, 1 << 50), pa.timestamp("us", tz="UTC")),
        "day": of(st.integers(0, 1 << 20), pa.date32()),
    }


@st.composite
def arrow_rows(draw: st.DrawFn) -> ArrowRows:
    """Rows of any shape: small or large, dense or sparse, sliced out of larger ones, from several batches."""
    count = draw(st.integers(1, 20) | st.integers(SMALL_ROWS - 1, 150))
    lo = draw(st.integers(1, 1 << 40))
    keys = draw(st.none() | st.lists(blobs, min_size=count, max_size=count))
    payloads = draw(st.lists(blobs, min_size=count, max_size=count) | st.just([b"ten bytes."] * count))
    strategies = column_values(count)
    chosen = draw(st.lists(st.sampled_from(sorted(strategies)), unique=True, max_size=3))
    origin = draw(st.none() | st.just(Origin(lo, lo + count, "web-17", 3, 40, 99, 12.5, "eu")))
    rows = data_rows(lo, keys, payloads, origin, {name: draw(strategies[name]) for name in chosen})
    if draw(st.booleans()):
        later = None if origin is None else Origin(lo + count, lo + count + 2, "gc", at=1.0)
        more = before_rows(lo + count, [lo, lo + 1], later)
        joined = rows.concat([more])
        assert isinstance(joined, ArrowRows)
        rows = joined
    if draw(st.booleans()):
        mask = draw(st.lists(st.booleans(), min_size=rows.count, max_size=rows.count))
        rows = rows.take(np.array(mask))
    if rows.count > 2 and draw(st.booleans()):
        numbers = rows.numbers
        rows = rows.slice(
            int(numbers[draw(st.integers(0, 9)) % rows.count]), int(numbers[-1]) + draw(st.integers(0, 1))
        )
    return rows


counted_rows = st.builds(
    lambda first, count, size, gc: CountedRows(first, first + count, size, ((first, 7),) if gc else ()),
    *[st.integers(1, 1 << 40), st.integers(1, MAX_ROWS), st.integers(0, 1000), st.booleans()],
)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    rows: Rows = draw(arrow_rows() | counted_rows | st.just(NO_ROWS))
    lo = int(rows.numbers[0]) if isinstance(rows, ArrowRows) and rows.count else getattr(rows, "first", 1) or 1
    hi = lo
    if rows.count:
        hi = int(rows.numbers[-1]) + 1 if isinstance(rows, ArrowRows) else rows.hi  # type: ignore[attr-defined]
    lo, hi = max(lo - draw(st.integers(0, 3)), 1), hi + draw(st.integers(0, 3))
    lens = draw(st.just(Lens()) | st.just(Lens("price > 3", 7)))
    return Span(
        draw(st.sampled_from(["prices", "_publishers", "ß"])), lo, hi, draw(st.integers(0, 1 << 50)), rows, lens
    )


def carried(several: tuple[Span, ...]) -> tuple[Span, ...]:
    """Spans after a journey as bytes."""
    heads, body = encode_spans(several)
    assert sum(len(each) for each in body) == sum(head.nbytes for head in heads)
    return decode_spans(HEADS.decode(msgspec.msgpack.encode(heads)), b"".join(body))


@settings(deadline=None)
@given(st.lists(spans(), max_size=4).map(tuple))
def test_spans_come_back_as_they_were(several: tuple[Span, ...]) -> None:
    back = carried(several)
    assert back == several
    for old, new in zip(several, back, strict=True):
        assert new.digest == old.digest
        if isinstance(old.rows, ArrowRows) and old.rows.count:
            assert isinstance(new.rows, ArrowRows)
            assert new.rows.batch.schema.equals(old.rows.batch.schema)
            assert new.rows.batch.to_pylist() == old.rows.batch.to_pylist()
            assert (new.rows.seqs is None) == (old.rows.seqs is None)
            new.rows.batch.validate(full=True)


@settings(deadline=None, max_examples=300)
@given(spans(), st.data())
def test_a_damaged_body_or_head_is_refused_or_still_well_formed(span: Span, data: st.DataObject) -> None:
    """Whatever a forger changes, what is decoded can be trusted with its offsets, lengths and numbers."""
    head, parts = encode_span(span)
    body, header = bytearray(b"".join(parts)), bytearray(msgspec.msgpack.encode(head))
    target = data.draw(st.sampled_from([body, header] if body else [header]))
    for _ in range(data.draw(st.integers(1, 4))):
        target[data.draw(st.integers(0, len(target) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del target[data.draw(st.integers(0, len(target))) :]
    try:
        forged = decode_span(unpack(HEAD, header), bytes(body))
    except BadInput:
        return
    rows = forged.rows
    if isinstance(rows, ArrowRows):
        rows.batch.validate(full=True)
        numbers = rows.numbers
        assert (numbers[1:] > numbers[:-1]).all()
        assert forged.lo <= numbers[0] <= numbers[-1] < forged.hi
        assert len(rows.content) == rows.count


def some_rows(count: int = 200, lo: int = 1) -> ArrowRows:
    return data_rows(lo, [b"key%d" % at for at in range(count)], [b"%010d" % at for at in range(count)])


def forged(head: Columns, **changes: Any) -> Columns:
    return msgspec.structs.replace(head, **changes)


def encoded_columns(rows: ArrowRows) -> tuple[Columns, bytes]:
    head, body = encode_rows(rows)
    assert isinstance(head, Columns)
    return head, b"".join(body)


def test_few_rows_travel_in_the_head_and_many_as_columns() -> None:
    assert isinstance(encode_rows(some_rows(SMALL_ROWS))[0], Small)
    assert isinstance(encode_rows(some_rows(SMALL_ROWS + 1))[0], Columns)
    assert isinstance(encode_rows(data_rows(1, None, [bytes(100_000)]))[0], Columns)


def test_columns_that_say_nothing_cost_nothing() -> None:
    rows = data_rows(1, None, [b"ten bytes."] * 1000)
    assert encode_rows(rows)[0].nbytes == 10_000
    assert rows.batch.nbytes > 20_000


def test_decoding_copies_no_column() -> None:
    head, joined = encoded_columns(some_rows())
    body = bytearray(joined)
    rows = decode_rows(head, memoryview(body))
    assert isinstance(rows, ArrowRows)
    at = bytes(body).index(b"0000000199")
    body[at : at + 10] = b"overwrites"
    assert rows.batch.column(2)[199].as_py() == b"overwrites"


def test_a_body_that_is_not_aligned_is_copied_and_read_all_the_same() -> None:
    head, body = encoded_columns(some_rows())
    for shift in range(1, 8):
        shifted = memoryview(bytes(shift) + body)[shift:]
        rows = decode_rows(head, shifted)
        assert rows == some_rows()
        assert isinstance(rows, ArrowRows)
        assert all(b.address % 8 == 0 for b in rows.batch.column(2).buffers() if b is not None)


def test_offsets_that_descend_are_refused() -> None:
    head, joined = encoded_columns(some_rows())
    body = np.frombuffer(bytearray(joined), np.int32)
    body[5], body[6] = body[6], body[5]  # the first thing in the body are the offsets of the keys
    with pytest.raises(Corrupt, match="do not ascend"):
        decode_rows(head, body.tobytes())


def test_numbers_that_do_not_ascend_are_refused() -> None:
    sparse = some_rows(300).take(np.arange(0, 300, 2))
    head, joined = encoded_columns(sparse)
    body = np.frombuffer(bytearray(joined), np.int64)
    body[7] = body[8]
    with pytest.raises(Corrupt, match="do not ascend"):
        decode_rows(head, body.tobytes())


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 199},
        {"count": 1 << 60},
        {"count": 0},
        {"count": -1},
        {"first": 0},
        {"first": (1 << 63) - 5},
        {"dense": False},
        {"nbytes": 8},
        {"columns": ()},
        {"columns": (Column(PLAIN),) * 4},
        {"columns": (Column(1, False, 9), Column(0), Column(0), Column(0))},
        {"columns": (Column(1), Column(EVEN, False, 1 << 40), Column(0), Column(0))},
        {"columns": (Column(1), Column(PLAIN, False, -8), Column(0), Column(0))},
        {"attributes": (Attribute("kind", "int64"),)},
        {"attributes": (Attribute("x", "decimal128(3, 2)"),)},
        {"origins": [(0, 5, "", 0, 0, 0, 0.0, "")]},
        {"origins": [(1, 5, "", 0, 0, 0, 0.0, ""), (4, 6, "", 0, 0, 0, 0.0, "")]},
        {"origins": [(1, 5, "", 0, 0, 0, float("nan"), "")]},
    ],
)
def test_a_forged_head_of_columns_is_refused(changes: dict[str, Any]) -> None:
    head, body = encoded_columns(some_rows())
    with pytest.raises(Corrupt):
        decode_rows(forged(head, **changes), body)


@pytest.mark.parametrize(
    "head",
    [
        Small(1, []),
        Small(1, [b"a"], keys=[b"a", b"b"]),
        Small(1, [b"a"], kinds=[2]),
        Small(1, [b"a"], befores=[1 << 70]),
        Small(1, [b"a", b"b"], seqs=[2, 1]),
        Small(1, [b"a"], seqs=[1 << 64]),
        Small(0, [b"a"]),
        Small(1, [b"a"], attributes=[(Attribute("x", "int8"), [1000])]),
        Small(1, [b"a"], attributes=[(Attribute("x", "int8"), ["text"])]),
        Small(1, [b"a"], attributes=[(Attribute("x", "int8", False), [None])]),
        Small(1, [b"a"], attributes=[(Attribute("x", "date32[day]"), [1])]),
        Counted(5, 5, 1),
        Counted(1, MAX_ROWS + 2, 1),
        Counted(1, 5, 1, ((5, 1),)),
        Counted(1, 5, 1, ((3, 1), (2, 1))),
    ],
)
def test_forged_small_and_counted_rows_are_refused(head: Small | Counted) -> None:
    with pytest.raises(Corrupt):
        decode_rows(head)


def test_text_that_is_not_utf8_is_refused() -> None:
    rows = data_rows(1, None, [b""] * 100, attributes={"loc": pa.array(["grüezi"] * 100)})
    head, body = encoded_columns(rows)
    with pytest.raises(Corrupt):
        decode_rows(head, body.replace("ü".encode(), b"\xff\xfe"))


def test_rows_outside_of_their_span_are_refused() -> None:
    head, body = encode_span(Span.of("s", 10, some_rows(lo=10)))
    for changes in ({"lo": 11}, {"hi": 209}, {"hi": 9}, {"lo": 0}, {"asof": -1}, {"asof": 1 << 63}):
        with pytest.raises(Corrupt):
            decode_span(msgspec.structs.replace(head, **changes), b"".join(body))


def test_bytes_after_the_last_span_are_refused() -> None:
    heads, body = encode_spans([Span.of("s", 10, some_rows(lo=10))])
    with pytest.raises(Corrupt, match="follow"):
        decode_spans(heads, b"".join([*body, bytes(8)]))
    with pytest.raises(Corrupt, match="said to begin"):
        decode_spans(heads, b"".join(body)[:-8])


def test_a_type_that_streams_cannot_have_is_refused_when_written() -> None:
    rows = data_rows(1, None, [b""], attributes={"x": pa.array([[1]])})
    with pytest.raises(BadInput, match="no attribute has the type"):
        encode_rows(rows)
    with pytest.raises(BadInput, match="begin with the columns"):
        encode_rows(ArrowRows.dense(1, pa.RecordBatch.from_pydict({"x": [1]})))


def test_what_could_not_be_read_again_is_refused_when_written() -> None:
    for count in (3, 100):
        kinds = pa.array([2] * count, pa.uint8())
        batch = data_rows(1, None, [b""] * count).batch.set_column(0, ROW_SCHEMA.field(0), kinds)
        with pytest.raises(BadInput, match="kind 2"):
            encode_rows(ArrowRows.dense(1, batch))
    with pytest.raises(BadInput, match="cut it into pieces"):
        encode_rows(CountedRows(1, MAX_ROWS + 2, 1))


def test_an_origin_narrowed_to_nothing_is_left_out() -> None:
    rows = ArrowRows(None, data_rows(1, None, [b"", b""]).batch, (Origin(3, 3, "p"),), 1)
    back = decode_rows(encode_rows(rows)[0])
    assert isinstance(back, ArrowRows)
    assert back.origins == ()


def test_times_keep_their_unit_and_zone() -> None:
    at = pa.array([datetime(2024, 2, 29, tzinfo=UTC)] * 3, pa.timestamp("ms", tz="Europe/Zurich"))
    rows = data_rows(1, None, [b""] * 3, attributes={"at": at})
    back = decode_rows(encode_rows(rows)[0], b"".join(encode_rows(rows)[1]))
    assert isinstance(back, ArrowRows)
    assert back.batch.schema.field("at").type == at.type
    assert back.batch.schema.names[:4] == ROW_SCHEMA.names


def measure() -> None:
    from timeit import repeat

    def timeit(call: Any, number: int) -> float:
        return min(repeat(call, number=number, repeat=5))

    for count in (1, 16, 64, 65, 1024, 16384):
        keys, payloads = ([b"%010d" % at for at in range(count)] for _ in range(2))
        span = Span.of("s", 1, data_rows(1, keys, payloads, Origin(1, count + 1, "p", 1, 1, 1, 1.0, "eu")))
        batch = span.rows.batch  # type: ignore[attr-defined]
        header, body = encode_span(span)
        packed, joined = msgspec.msgpack.encode(header), b"".join(body)
        ipc = batch.serialize()
        times = {
            "encode": timeit(lambda s=span: [msgspec.msgpack.encode(encode_span(s)[0])], number=300),
            "encode, joined": timeit(lambda s=span: b"".join(encode_span(s)[1]), number=300),
            "decode": timeit(lambda p=packed, j=joined: decode_span(unpack(HEAD, p), j), number=300),
            "IPC encode": timeit(lambda b=batch: b.serialize(), number=300),
            "IPC decode": timeit(
                lambda i=ipc, b=batch: pa.ipc.read_record_batch(i, b.schema).validate(full=True), number=300
            ),
        }
        text = ", ".join([f"{name} {seconds / 300 * 1e6:.1f}" for name, seconds in times.items()])
        print(f"{count} rows: {text} us; {len(packed) + len(joined)} bytes, IPC {ipc.size}")


if __name__ == "__main__":
    measure()


def test_rows_that_are_still_lists_encode_as_the_same_rows_do() -> None:
    for keys in ([b"k", None, b"l"], [None, None, None]):
        payloads = [b"1", b"22", b""]
        listed, columns = SmallRows(list(keys), payloads), data_rows(1, keys, payloads)
        assert encode_rows(listed) == encode_rows(columns)
        assert (listed.count, listed.same(columns), listed.nbytes) == (3, True, columns.nbytes)
        head, body = encode_rows(listed)
        assert decode_rows(head, b"".join(body)).same(columns)


def test_rows_that_came_are_as_large_as_arrow_says() -> None:
    for count in (1, 2, 8, 9, 64, 65, 300):
        for keys in ([b"k" * at for at in range(count)], [None] * count, [b"k", *[None] * (count - 1)]):
            head, body = encode_rows(data_rows(7, keys, [b"p" * (at % 5) for at in range(count)], Origin(7, 7 + count)))
            rows = decode_rows(head, b"".join(body))
            assert isinstance(rows, ArrowRows)
            assert rows.nbytes == ArrowRows(rows.seqs, rows.batch, rows.origins, rows.first).nbytes


def test_rows_are_encoded_once_and_renumbered_rows_get_their_own_numbers_and_origins() -> None:
    for count in (3, 300):
        sent = data_rows(1, [b"key"] * count, [b"x"] * count, Origin(1, 1 + count, "old"))
        head, body = encode_rows(sent)
        came = decode_rows(head, b"".join(body))
        assert isinstance(came, ArrowRows)
        for lo in (1, 50):
            moved = came.renumbered(lo, (Origin(lo, lo + count, "new"),))
            fresh = ArrowRows.dense(lo, came.batch, moved.origins)
            again = decode_rows(*[encode_rows(moved)[0], b"".join(encode_rows(moved)[1])])
            assert again == fresh and encode_rows(moved)[0] == encode_rows(fresh)[0]
        assert encode_rows(came)[0] == head


def test_lost_ranges_come_back_and_ranges_that_cannot_be_lost_are_refused() -> None:
    span = Span("s", 1, 9, 9, data_rows(1, None, [b"a", b"b"]), lost=((3, 5), (7, 9)))
    head, body = encode_span(span)
    assert decode_span(head, b"".join(body)) == span
    for lost in (((0, 1),), ((5, 3),), ((3, 5), (4, 6)), ((8, 10),), ((2, 4),)):
        with pytest.raises(Corrupt, match="cannot be what is lost"):
            decode_span(msgspec.structs.replace(head, lost=lost), b"".join(body))
