"""The filter index finds what the filters find by themselves, however filters come and go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import pairwise, product
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.test_filters import COLUMNS, LITERALS, ROW, SCHEMA, conditions, table_of
from tidings.core.errors import BadInput
from tidings.core.filters import SYSTEM, Filter, coding, parse, parse_attributes
from tidings.core.filters import index as filter_index
from tidings.core.filters import table as conjunctions
from tidings.core.filters.coding import CodedRows
from tidings.core.filters.index import FilterIndex
from tidings.core.filters.kernels import Frame
from tidings.core.filters.nodes import literal_sql
from tidings.core.filters.normal import MAX_CONJUNCTIONS, normal_form
from tidings.core.rows import NO_ROWS, CountedRows, Origin, data_rows

# --- conditions that have a normal form, as text ------------------------------------------------------------

KINDS = {**COLUMNS, "ok": "boolean"}
PIECES = st.sampled_from(["", "a", "ab", "Z", "日", "é"])


@st.composite
def single(draw: st.DrawFn) -> str:
    """A condition on one column."""
    name = draw(st.sampled_from(sorted(KINDS)))
    kind = KINDS[name]
    of = draw(st.sampled_from(["int", "bigint", "double"])) if kind in ("int", "bigint") else kind
    literal = draw(LITERALS[of]).sql
    forms = ["compare"] * 6 + ["in", "between", "null", "truth"]
    forms += ["like", "startswith"] * (kind == "string") + ["isnan"] * (kind == "double") + ["column"] * (name == "ok")
    match draw(st.sampled_from(forms)):
        case "compare":
            op = draw(st.sampled_from(["=", "=", "<>", "<", "<=", ">", ">=", "<=>"]))
            other = draw(st.sampled_from([literal, literal, literal, "NULL"]))
            return f"{name} {op} {other}" if draw(st.booleans()) else f"{other} {op} {name}"
        case "in":
            listed = [draw(LITERALS[kind]).sql for _ in range(draw(st.integers(1, 4)))]
            listed += ["NULL"] * draw(st.booleans())
            return f"{name} {draw(st.sampled_from(['', 'NOT']))} IN ({', '.join(listed)})"
        case "between":
            return f"{name} {draw(st.sampled_from(['', 'NOT']))} BETWEEN {literal} AND {draw(LITERALS[of]).sql}"
        case "null":
            return f"{name} IS {draw(st.sampled_from(['', 'NOT']))} NULL"
        case "truth":
            return f"({name} >= {literal}) IS {draw(st.sampled_from(['', 'NOT']))} {draw(st.booleans())}"
        case "like":
            pattern = draw(st.sampled_from(["", "%", "_%", "%a", "a_", "a%b"])) if draw(st.booleans()) else "%"
            return f"{name} {draw(st.sampled_from(['', 'NOT']))} LIKE '{draw(PIECES)}{pattern}'"
        case "startswith":
            return f"startswith({name}, '{draw(PIECES)}')"
        case "isnan":
            return f"isnan({name})"
    return name


@st.composite
def simple(draw: st.DrawFn, depth: int = 2) -> str:
    """Conditions on one column, joined."""
    if depth == 0:
        return draw(single())
    match draw(st.sampled_from(["test", "and", "and", "or", "not", "is", "any"])):
        case "and" | "or" as op:
            parts = [draw(simple(depth - 1)) for _ in range(draw(st.integers(2, 4)))]
            return f" {op} ".join([f"({part})" for part in parts])
        case "not":
            return f"NOT ({draw(simple(depth - 1))})"
        case "is":
            return f"({draw(simple(depth - 1))}) IS {draw(st.sampled_from(['', 'NOT']))} {draw(st.booleans())}"
        case "any":
            return draw(conditions(1)).sql
    return draw(single())


# --- laws ----------------------------------------------------------------------------------------------------

MANY = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
ROWS = st.lists(ROW, min_size=1, max_size=6)
CHANGE = {"add": simple(), "remove": st.integers(0, 99), "match": ROWS}
CHANGES = st.lists(
    st.one_of([st.tuples(st.just(what), value) for what, value in CHANGE.items()]),
    min_size=8,
    max_size=25,
)


def expected(filters: dict[int, Filter], rows: Any) -> dict[int, list[int]]:
    """What the filters find by themselves."""
    found = {id: np.flatnonzero(each.mask(rows)).tolist() for id, each in sorted(filters.items())}
    return {id: places for id, places in found.items() if places}


def seen(index: FilterIndex, rows: Any) -> dict[int, list[int]]:
    """What the index finds, in order."""
    found = {id: places.tolist() for id, places in index.match(rows)}
    assert list(found) == sorted(found)
    starts, ids = index.matches(rows).by_row()
    by_row = [ids[start:stop].tolist() for start, stop in pairwise(starts)]
    assert by_row == [[id for id, places in found.items() if at in places] for at in range(rows.num_rows)]
    return found


@contextmanager
def small_limits(table: bool) -> Iterator[None]:
    """Few rows and filters do what many would."""
    with ExitStack() as stack:
        for where, name, value in [
            *[(filter_index, "ROWS_PER_MASK", 100), (filter_index, "MAX_SHAPES", 3), (filter_index, "REMOVED", 2)],
            *[(coding, "FEW", 2), (conjunctions, "ROOM", 4), (conjunctions, "STEPS", 1), (conjunctions, "STRIDE", 2)],
        ]:
            stack.enter_context(mock.patch.object(where, name, value))
        stack.enter_context(mock.patch.object(filter_index, "_can_compile", return_value=table))
        stack.enter_context(mock.patch.object(filter_index._Prepared, "compile_limit", 1))
        stack.enter_context(mock.patch.object(filter_index, "PRICE", 0))
        yield


EDGES: dict[str, list[Any]] = {
    "loc": [None, "", "a", "ab", "b", "é", "日", "ab\0"],
    "price": [None, -np.inf, -1.5, -0.0, 0.0, 1.0, np.inf, np.nan, float(np.copysign(np.nan, -1))],
    "qty": [None, -(2**31), -1, 0, 1, 2, 2**31 - 1],
    "total": [None, -(2**63), -(2**63) + 1, -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1],
    "ok": [None, False, True],
    "key": [None, b"", b"a", b"\xff", b"\xff\xff", b"a\xff", b"b"],
}
WRAPPED = ["{}", "not ({})", "({}) is true", "({}) is not true", "({}) is false", "not (({}) is not false)"]


def edge_cases() -> Iterator[str]:
    """Each test of a column with each literal at which something could go wrong."""
    for name, values in EDGES.items():
        yield from [f"{name} is null", f"{name} = null", f"{name} <=> null", f"{name} in (null)"]
        finite = [value for value in values if value is not None and not (name == "price" and not np.isfinite(value))]
        literals = [literal_sql(value, SYSTEM.get(name) or SCHEMA[name]) for value in finite]
        for literal in literals:
            yield from [f"{name} {op} {literal}" for op in ("=", "<>", "<", "<=", ">", ">=", "<=>")]
            yield from [f"{literal} < {name}", f"{name} in ({literal}, null)", f"{name} in ({literal}, {literals[-1]})"]
            yield f"{name} between {literal} and {literals[-1]}"
            if name in ("loc", "key"):
                yield f"startswith({name}, {literal})"
    yield from [f"total {op} {value}D" for op in ("=", "<", ">=") for value in (2.0**53, -(2.0**63), 2.0**63, 0.5)]
    yield from [f"qty {op} {value}" for op in ("=", "<", ">=") for value in ("2147483648L", "0.5D")]
    yield from ["ok", "isnan(price)", "startswith(loc, null)", "true", "ok or null", "loc = 'a' and qty = null"]
    yield from [f"loc like '{pattern}'" for pattern in ("", "%", "a", "a%", "a_", "%b", "a%b", "é%")]


@cache
def edge_filters() -> list[Filter]:
    return [parse(form.format(text), SCHEMA) for text in edge_cases() for form in WRAPPED]


@pytest.mark.parametrize("table", [False, True])
def test_every_test_of_a_column_is_true_false_and_null_where_it_should(table: bool) -> None:
    values = [{**dict.fromkeys(KINDS), "sure": None, name: value} for name in EDGES for value in EDGES[name]]
    (rows,) = table_of(values).to_batches()
    with small_limits(table), mock.patch.object(filter_index, "MAX_SHAPES", 1000):
        index = FilterIndex()
        filters = {index.add(each): each for each in edge_filters()}
        for part in (rows, rows.slice(3, 30)):
            got, wanted = seen(index, part), expected(filters, part)
            assert {each.text: (got.get(id), wanted.get(id)) for id, each in filters.items()} == {
                each.text: (wanted.get(id), wanted.get(id)) for id, each in filters.items()
            }
        assert (index._table is not None) == table


@pytest.mark.parametrize("table", [False, True])
def test_the_index_finds_what_the_filters_find_while_they_come_and_go(table: bool) -> None:
    compiled = []

    @MANY
    @given(changes=CHANGES, rows=ROWS)
    def check(changes: list[tuple[str, Any]], rows: list[dict[str, Any]]) -> None:
        index = FilterIndex()
        entered: list[int] = []
        filters: dict[int, Filter] = {}
        for what, value in [*changes, ("match", rows)]:
            if what == "add":
                found = parse(value, SCHEMA)
                entered.append(index.add(found))
                filters[entered[-1]] = found
            elif what == "match":
                assert seen(index, table_of(value)) == expected(filters, table_of(value))
            elif entered:
                id = entered.pop(value % len(entered))
                index.remove(id)
                if id not in entered:
                    del filters[id]
            assert len(index) == len(filters)
        compiled.append(index._table is not None)

    with small_limits(table):
        check()
    assert any(compiled) == table


@MANY
@given(text=simple(), rows=ROWS)
def test_a_normal_form_lets_through_what_the_filter_does_and_nothing_else_if_it_is_exact(
    text: str, rows: list[dict[str, Any]]
) -> None:
    found = parse(text, SCHEMA)
    form = normal_form(found.root)
    assert len(form.conjunctions) <= MAX_CONJUNCTIONS
    frame = Frame(table_of(rows))
    terms = list(dict.fromkeys([term for each in form.conjunctions for term in each]))
    cuts = [CodedRows(frame, terms).cuts(at) for at in range(len(terms))]
    met = [
        any([all([low <= cuts[terms.index(term)][at] < high for term, (low, high) in each.items()])
             for each in form.conjunctions])
        for at in range(len(rows))
    ]  # fmt: skip
    for says, passes in zip(met, found.mask(frame.source).tolist(), strict=True):
        assert says == passes if form.exact else says or not passes


# --- normal forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count", "exact"),
    [
        ("loc = 'a' and price > 3 and qty between 1 and 5", 1, True),
        ("loc in ('a', 'b', 'a') and not ok", 2, True),
        ("not (qty = 1 or price <= 2.5)", 2, True),  # below 1 and above, never null
        ("qty <> 1 and qty <> 3", 3, True),
        ("qty <> 1 and qty <> 2", 2, True),  # nothing is between
        ("(qty > 1) is not true", 1, True),  # null too
        ("(qty = 1) is not true", 2, True),
        ("loc like 'a%' and loc >= 'b'", 0, True),
        ("startswith(loc, 'a') or loc like 'b' or loc is null", 3, True),
        ("total > 5.5D and isnan(price)", 1, True),
        ("qty = null", 0, True),
        ("loc like 'a%b'", 1, False),
        ("loc = 'a' and length(loc) > qty", 1, False),
        ("total = 9223372036854775807L and qty = 1", 1, False),
        (" and ".join([f"{name} in ({', '.join(map(str, range(2, 42, 2)))})" for name in ("qty", "total", "price")]),
         400, False),
        (" or ".join([f"qty = {number} and ok" for number in range(MAX_CONJUNCTIONS + 1)]), 1, False),
    ],
)  # fmt: skip
def test_how_much_of_a_filter_its_normal_form_says(text: str, count: int, exact: bool) -> None:
    form = normal_form(parse(text, SCHEMA).root)
    assert (len(form.conjunctions), form.exact) == (count, exact)


UNSPEAKING = ["length(loc) > 3", "loc like '%a'", "qty = total", "qty = 1 or lower(loc) = 'a'", "true"]


@pytest.mark.parametrize("text", UNSPEAKING)
def test_a_filter_that_says_nothing_about_a_column_is_not_indexable(text: str) -> None:
    assert not normal_form(parse(text, SCHEMA).root).indexable


# --- the index -----------------------------------------------------------------------------------------------

PEOPLE = parse_attributes("name string, age int, at double")


def index_of(texts: list[str], table: bool = True) -> tuple[FilterIndex, dict[int, Filter]]:
    index = FilterIndex()
    if table:
        index._to_table()
    filters = [parse(text, PEOPLE) for text in texts]
    return index, {index.add(each): each for each in filters}


@pytest.mark.parametrize("text", ["age >= {0} and age < {1}", "name = 'x' and at between {0} and {1} and age < 9000"])
def test_many_intervals_of_one_bucket(text: str) -> None:
    rng = np.random.default_rng(7)
    lows, widths = rng.integers(0, 10_000, 1500), np.where(rng.random(1500) < 0.01, 3000, 9)
    index, filters = index_of([text.format(low, low + wide) for low, wide in zip(lows, widths, strict=True)])
    values = rng.integers(-10, 10_010, 200)
    rows = pa.table({"name": ["x"] * 200, "age": pa.array(values, pa.int32()), "at": values.astype(np.float64)})
    assert seen(index, rows) == expected(filters, rows)


@pytest.mark.parametrize("table", [False, True])
def test_all_intervals_of_a_conjunction_count(table: bool) -> None:
    texts = [
        "name >= 'b' and name < 'd' and age > 1 and age <= 3 and at >= 0.5 and at < 2.5",
        "name <= 'c' and age >= 2 and at > 1.0 and at <= 3.0",
        "age = 2 and at between 1.0 and 2.0 and name > 'a'",
    ]
    index, filters = index_of(texts, table)
    names, ages = ["a", "b", "bb", "c", "d", "e", None], [0, 1, 2, 3, 4, None]
    ats = [0.0, 0.5, 1.0, 2.0, 2.5, 3.0, None]
    columns = zip(*product(names, ages, ats), strict=True)
    kinds = pa.string(), pa.int32(), pa.float64()
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    rows = pa.record_batch(arrays, names=list(PEOPLE))
    assert seen(index, rows) == expected(filters, rows)


def test_texts_are_in_order_however_they_come() -> None:
    """Each end lies between the two before it, so that there is no code left between them again and again."""
    ends = ["a", "b"]
    for at in range(90):
        ends.append(ends[-2] + "a" if at % 3 else ends[-1][:-1] + "0" + ends[-1][-1])
    ends += [f"user{number:03}" for number in range(30)]
    index, filters = index_of([])
    rows = pa.table({"name": [None, "", *ends, *[end + "x" for end in ends]]})
    for at, end in enumerate(ends):
        for text in (f"name < '{end}'", f"name like '{end}%' and name <> '{end}'"):
            found = parse(text, PEOPLE)
            filters[index.add(found)] = found
        if at % 20 == 0:
            assert seen(index, rows) == expected(filters, rows)
    assert seen(index, rows) == expected(filters, rows)


def test_what_nobody_wants_any_more_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_index, "REMOVED", 50)
    monkeypatch.setattr(conjunctions, "ROOM", 50)
    index, kept = index_of(["name > 'name5' and name <= 'name7'", "name = 'name7' and age = 1"])
    rows = pa.table({"name": ["name7", "name1999", "name70"], "age": pa.array([1, 2, 3], pa.int32())})
    for start in range(0, 2000, 100):
        texts = [f"name {'=' if at % 2 else '>'} 'name{at}' and age = {at % 7}" for at in range(start, start + 100)]
        ids = [index.add(parse(text, PEOPLE)) for text in texts]
        index.matches(rows)
        for id in ids:
            index.remove(id)
        assert seen(index, rows) == expected(kept, rows) != {}
    assert len(index) == 2
    assert index._next < 400
    assert index._table is not None and len(index._table) < 400
    (words,) = index._table._words.values()
    assert len(words.ids) + len(words.ends) < 800


def test_values_with_the_same_place_in_the_hash_table_are_told_apart() -> None:
    """Two values whose hashes differ in bits that neither a slot nor its tag has: the hash turned round."""
    from tidings.core import keytable

    def value(hashed: int) -> int:
        state = (hashed ^ hashed >> 32) * pow(keytable.MIX3, -1, 1 << 64) % (1 << 64)
        state = (state ^ state >> 29 ^ state >> 58) * pow(keytable.MIX2, -1, 1 << 64) % (1 << 64)
        return state - (state >> 63 << 64)

    one, other = value(0x1234_5678_0000_0042), value(0x1234_5678_0100_0042)
    index = FilterIndex()
    index._to_table()
    id = index.add(parse(f"total = {one}L", SCHEMA))
    rows = pa.table({"total": [one, other, None]})
    assert seen(index, rows) == {id: [0]}
    index.add(parse(f"total = {other}L", SCHEMA))
    assert seen(index, rows) == {id: [0], id + 1: [1]}


def test_filters_that_look_at_every_row_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_index, "MAX_SCANNED", 2)
    index, filters = index_of(["length(name) = 1", "age = 3", "name like '%a'"])
    with pytest.raises(BadInput, match=r"'length\(name\) = 2': 2 filters .* every event already; demand"):
        index.add(parse("length(name) = 2", PEOPLE))
    assert len(index) == 3
    assert index.add(parse("length(name) = 1", PEOPLE)) in filters  # the same once more
    filters[index.add(parse("age = 4", PEOPLE))] = parse("age = 4", PEOPLE)
    rows = pa.table({"name": ["a", "bb", None], "age": pa.array([4, 3, 1], pa.int32())})
    assert seen(index, rows) == expected(filters, rows)
    third = next(id for id, each in filters.items() if "LIKE" in each.text)
    index.remove(third)
    index.add(parse("length(name) = 2", PEOPLE))


def test_with_too_many_combinations_of_columns_filters_are_asked_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_index, "MAX_SHAPES", 2)
    texts = ["name = 'a'", "age = 1 and at > 2", "name = 'b' and age = 1", "at < 1", "age > 5 and at > 1", "at = 3"]
    for table in (False, True):
        index, filters = index_of(texts, table)
        ages, ats = pa.array([1, 1, 7, None], pa.int32()), [3.0, 0.5, 2.0, 3.0]
        rows = pa.table({"name": ["a", "b", "b", None], "age": ages, "at": ats})
        assert seen(index, rows) == expected(filters, rows)
        assert len(index._shapes) == 4 and len(index._checked) == 2


def test_a_filter_with_more_columns_than_a_shape_has_is_found() -> None:
    names = [f"a{at}" for at in range(10)]
    schema = parse_attributes(", ".join([f"{name} int" for name in names]))
    conditions = [f"{name} = {at}" for at, name in enumerate(names)], [f"{name} > 3" for name in names]
    texts = [" and ".join(each) for each in conditions]
    rows = pa.table({name: pa.array([at, 4, at], pa.int32()) for at, name in enumerate(names)})
    for table in (False, True):
        index = FilterIndex()
        if table:
            index._to_table()
        assert [index.add(parse(text, schema)) for text in texts] == [0, 1]
        assert seen(index, rows) == {0: [0, 2], 1: [1]}


def test_filters_with_equal_texts_are_one_and_stay_until_the_last_is_removed() -> None:
    index, _ = index_of([])
    first, again = index.add(parse("age=3", PEOPLE)), index.add(parse("AGE = 3", PEOPLE))
    rows = pa.table({"age": pa.array([3], pa.int32())})
    assert first == again and len(index) == 1
    index.remove(first)
    assert seen(index, rows) == {first: [0]}
    index.remove(first)
    assert seen(index, rows) == {} and len(index) == 0


@pytest.mark.parametrize("table", [False, True])
def test_rows_of_a_stream_can_be_matched(table: bool) -> None:
    origins = (Origin(1, 3, "p", at=1.5, region="eu"), Origin(3, 4, "q", at=2.0, region="us"))
    rows = data_rows(1, [b"a", None, b"b"], [b""] * 3, attributes={"name": pa.array(["x", "y", None])})
    rows.origins = origins
    texts = ["seq >= 2", "publisher = 'p' and region = 'eu'", "published_at >= timestamp'1970-01-01 00:00:02Z'",
             "kind = 'data' and key is not null", "age is null and name > 'x'", "key > 'a'"]  # fmt: skip
    index, filters = index_of(texts, table)
    assert [places.tolist() for _, places in index.match(rows)] == [[1, 2], [0, 1], [2], [0, 2], [1], [2]]
    part = rows.slice(2, 4)
    assert {id: places.tolist() for id, places in index.match(part)} == expected(filters, part)
    assert list(index.match(NO_ROWS)) == list(index.match(rows.slice(9, 9))) == []
    with pytest.raises(BadInput, match="counted"):
        index.matches(CountedRows(1, 3, 10))
    with pytest.raises(BadInput, match="these rows have no such column"):
        index.matches(pa.table({"name": ["x"]}))


def test_a_process_that_has_prepared_uses_the_table_when_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_index._Prepared, "compile_limit", filter_index.COMPILE_LIMIT)
    rows = pa.table({"age": pa.array(range(300), pa.int32())})
    index, filters = index_of([f"age = {at}" for at in range(10)], table=False)
    index.matches(rows)
    assert index._table is None
    filter_index.prepare()
    for _ in range(filter_index.PRICE // len(rows) + 1):
        part = rows.slice(5, 290)
        assert seen(index, part) == expected(filters, part)
    assert index._table is not None
    assert seen(index, rows) == expected(filters, rows)


def test_a_kernel_is_compiled_once_and_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_index._Prepared, "compile_limit", filter_index.COMPILE_LIMIT)
    monkeypatch.setattr(conjunctions, "ROOM", 4)
    filter_index.prepare()
    kernels = [getattr(conjunctions, name) for name in ("_merged", "_arrange", "_chain", "_match")]
    signatures = [list(kernel.signatures) for kernel in kernels]
    assert all(signatures)
    index, _ = index_of(["name = 'a' or age = 1"])
    for at in range(20):
        index.remove(index.add(parse(f"at > {at} and age is null", PEOPLE)))
        index.add(parse(f"name < '{at}' and at > {at}", PEOPLE))
        assert len(index.matches(pa.table({"name": ["a", None], "at": [3.5, 100.5]}))) >= 1
    assert [list(kernel.signatures) for kernel in kernels] == signatures
