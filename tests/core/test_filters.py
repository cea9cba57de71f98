"""Filters mean what they mean in Spark, checked row by row against plain Python; what they cannot mean is refused."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidings.core.errors import BadAttribute, BadFilter, BadInput
from tidings.core.filters import (
    MAX_TEXT,
    AttrType,
    Filter,
    conform,
    format_attributes,
    from_json,
    kernels,
    parse,
    parse_attributes,
)
from tidings.core.rows import NO_ROWS, CountedRows, Origin, before_rows, data_rows

DECLARED = "loc string, price double, qty int, total bigint, ok boolean, sure boolean, at timestamp, day date"
SCHEMA = parse_attributes(DECLARED)
NAN = float("nan")

# --- the oracle: one row at a time, in plain Python -----------------------------------------------------------


class E(NamedTuple):
    """An expression as SQL text, its type, and what it is for a row."""

    sql: str
    kind: str
    of: Callable[[dict[str, Any]], Any]


def strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """Null if any operand is."""
    return lambda *args: None if any(arg is None for arg in args) else function(*args)


def order(a: Any, b: Any) -> int:
    """Spark's order: NaN equals itself and is above all else; strings by their bytes."""
    if isinstance(a, str):
        a, b = a.encode(), b.encode()
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
        if math.isnan(a) or math.isnan(b):
            return int(math.isnan(a)) - int(math.isnan(b))
    return int(a > b) - int(a < b)


COMPARE: dict[str, Callable[[int], bool]] = {
    "=": lambda o: o == 0,
    "<>": lambda o: o != 0,
    "<": lambda o: o < 0,
    "<=": lambda o: o <= 0,
    ">": lambda o: o > 0,
    ">=": lambda o: o >= 0,
}


def conjunction(a: Any, b: Any) -> Any:
    return False if a is False or b is False else None if a is None or b is None else True


def negation(a: Any) -> Any:
    return None if a is None else not a


def disjunction(a: Any, b: Any) -> Any:
    return negation(conjunction(negation(a), negation(b)))


def member(value: Any, listed: list[Any]) -> Any:
    if value is None:
        return None
    found = any(item is not None and order(value, item) == 0 for item in listed)
    return True if found else None if None in listed else False


def matches(text: str, pattern: str, escape: str) -> bool:
    """LIKE by recursion over the pattern."""
    if not pattern:
        return not text
    head, rest = pattern[0], pattern[1:]
    if head == escape:
        return text[:1] == rest[0] and matches(text[1:], rest[1:], escape)
    if head == "%":
        return any(matches(text[i:], rest, escape) for i in range(len(text) + 1))
    return bool(text) and head in ("_", text[0]) and matches(text[1:], rest, escape)


def fits(kind: str, value: int) -> int | None:
    bits = 31 if kind == "int" else 63
    return value if -(2**bits) <= value < 2**bits else None


@np.errstate(all="ignore")
def arithmetic(name: str, kind: str, a: Any, b: Any) -> Any:
    if name == "try_divide":
        return None if b == 0 else float(np.float64(a) / np.float64(b))
    if kind == "double":
        a, b = np.float64(a), np.float64(b)
        return float({"try_add": a + b, "try_subtract": a - b, "try_multiply": a * b}[name])
    return fits(kind, {"try_add": a + b, "try_subtract": a - b, "try_multiply": a * b}[name])


def substring(text: str, place: int, length: int) -> str:
    start = place - 1 if place > 0 else len(text) + place if place < 0 else 0
    return "".join(one for i, one in enumerate(text) if start <= i < start + length)


# --- expressions drawn at random ------------------------------------------------------------------------------

TEXT = st.text(st.sampled_from("aAbZ%_'\\ \n$ßé日😀"), max_size=4)
INT = st.integers(-3, 3) | st.sampled_from([2**31 - 1, -(2**31)])
BIGINT = st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63), 2**53 + 1])
DOUBLE = st.sampled_from([0.0, -0.0, 1.0, -1.5, 0.1, 1e300, 2.0**53, 1e-7])
ROW = st.fixed_dictionaries(
    {
        "loc": st.none() | TEXT,
        "price": st.none() | DOUBLE | st.sampled_from([NAN, math.inf, -math.inf]),
        "qty": st.none() | INT,
        "total": st.none() | BIGINT,
        "ok": st.none() | st.booleans(),
        "sure": st.none() | st.booleans(),
        "key": st.none() | st.binary(max_size=2),
    }
)
COLUMNS = {"loc": "string", "price": "double", "qty": "int", "total": "bigint", "ok": "boolean", "key": "binary"}


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def columns(kind: str) -> st.SearchStrategy[E]:
    names = [name for name, other in COLUMNS.items() if other == kind]
    return st.sampled_from([E(name, kind, lambda row, name=name: row[name]) for name in names])  # type: ignore[misc]


LITERALS: dict[str, st.SearchStrategy[E]] = {
    "string": TEXT.map(lambda v: E(quoted(v), "string", lambda row: v)),
    "int": INT.map(lambda v: E(str(v), "int", lambda row: v)),
    "bigint": BIGINT.map(lambda v: E(f"{v}L", "bigint", lambda row: v)),
    "double": DOUBLE.map(lambda v: E(f"{v!r}D", "double", lambda row: v)),
    "boolean": st.booleans().map(lambda v: E(str(v), "boolean", lambda row: v)),
    "binary": st.binary(max_size=2).map(lambda v: E(f"x'{v.hex()}'", "binary", lambda row: v)),
}
RANK = ["int", "bigint", "double"]


def as_kind(kind: str, value: Any) -> Any:
    return float(value) if kind == "double" and value is not None else value


@st.composite
def values(draw: st.DrawFn, kind: str, depth: int = 2) -> E:
    """An expression of a type."""
    if depth == 0 or draw(st.booleans()):
        return draw(columns(kind) | LITERALS[kind])
    deeper = values(kind, depth - 1)
    choice = draw(st.sampled_from(["coalesce", "if", "case", "own"]))
    if choice == "coalesce":
        a, b = draw(deeper), draw(deeper)
        return E(f"coalesce({a.sql}, NULL, {b.sql})", kind, lambda row: b.of(row) if a.of(row) is None else a.of(row))
    if choice == "if":
        c, a, b = draw(conditions(depth - 1)), draw(deeper), draw(deeper)
        return E(f"if({c.sql}, {a.sql}, {b.sql})", kind, lambda row: (a if c.of(row) is True else b).of(row))
    if choice == "case":
        c, a = draw(conditions(depth - 1)), draw(deeper)
        return E(f"CASE WHEN {c.sql} THEN {a.sql} END", kind, lambda row: a.of(row) if c.of(row) is True else None)
    if kind in RANK:
        return draw(numbers(kind, depth))
    return draw(texts(depth)) if kind == "string" else draw(deeper)


@st.composite
def numbers(draw: st.DrawFn, kind: str, depth: int) -> E:
    if kind == "int" and draw(st.booleans()):
        text = draw(values("string", depth - 1))
        return E(f"length({text.sql})", kind, lambda row: strict(len)(text.of(row)))
    if kind == "double" and draw(st.booleans()):
        of = draw(st.sampled_from(RANK))
        a, b = draw(values(of, depth - 1)), draw(values(of, depth - 1))
        divide = strict(lambda x, y: arithmetic("try_divide", kind, x, y))
        return E(f"try_divide({a.sql}, {b.sql})", kind, lambda row: divide(a.of(row), b.of(row)))
    name = draw(st.sampled_from(["try_add", "try_subtract", "try_multiply"]))
    a, b = draw(values(kind, depth - 1)), draw(values(draw(st.sampled_from(RANK[: RANK.index(kind) + 1])), depth - 1))
    compute = strict(lambda x, y: arithmetic(name, kind, x, y))
    return E(f"{name}({a.sql}, {b.sql})", kind, lambda row: compute(a.of(row), b.of(row)))


@st.composite
def texts(draw: st.DrawFn, depth: int) -> E:
    a, b = draw(values("string", depth - 1)), draw(values("string", depth - 1))
    place, length = draw(st.integers(-5, 5)), draw(st.integers(-1, 5))
    name, function = draw(
        st.sampled_from(
            [
                ("lower", str.lower),
                ("upper", str.upper),
                ("trim", lambda s: s.strip(" ")),
                ("ltrim", lambda s: s.lstrip(" ")),
                ("rtrim", lambda s: s.rstrip(" ")),
            ]
        )
    )
    return draw(
        st.sampled_from(
            [
                E(f"{name}({a.sql})", "string", lambda row: strict(function)(a.of(row))),
                E(f"concat({a.sql}, {b.sql})", "string", lambda row: strict(str.__add__)(a.of(row), b.of(row))),
                E(f"{a.sql} || {b.sql}", "string", lambda row: strict(str.__add__)(a.of(row), b.of(row))),
                E(f"substring({a.sql}, {place}, {length})", "string",
                  lambda row: strict(lambda s: substring(s, place, length))(a.of(row))),
                E(f"substr({a.sql}, {place})", "string",
                  lambda row: strict(lambda s: substring(s, place, 2**31 - 1))(a.of(row))),
            ]
        )
    )  # fmt: skip


@st.composite
def pairs(draw: st.DrawFn, depth: int) -> tuple[E, E]:
    """Two expressions that can be compared."""
    kind = draw(st.sampled_from(sorted(LITERALS)))
    others = RANK if kind in RANK else [kind]
    other = draw(st.sampled_from(others))
    a, b = draw(values(kind, depth)), draw(values(other, depth))
    if kind != other:
        wider = max(kind, other, key=RANK.index)
        return (
            E(a.sql, wider, lambda row: as_kind(wider, a.of(row))),
            E(b.sql, wider, lambda row: as_kind(wider, b.of(row))),
        )
    return a, b


@st.composite
def likes(draw: st.DrawFn, depth: int) -> E:
    a, escape = draw(values("string", depth)), draw(st.sampled_from("\\!"))
    parts = draw(st.lists(st.sampled_from(["%", "_", "a", "Z", "日", "\n", "$", "e%", "e_", "ee"]), max_size=5))
    pattern = "".join(part.replace("e", escape) for part in parts)
    suffix = " ESCAPE '!'" if escape == "!" else ""
    word = draw(st.sampled_from(["LIKE", "NOT LIKE"]))
    test = strict(lambda s: matches(s, pattern, escape) == (word == "LIKE"))
    return E(f"{a.sql} {word} {quoted(pattern)}{suffix}", "boolean", lambda row: test(a.of(row)))


@st.composite
def lists(draw: st.DrawFn, depth: int) -> E:
    kind = draw(st.sampled_from(["string", "int", "bigint", "double", "binary"]))
    a, items = draw(values(kind, depth)), draw(st.lists(LITERALS[kind], min_size=1, max_size=13))
    null = draw(st.booleans())
    listed = [item.of({}) for item in items] + [None] * null
    text = ", ".join([item.sql for item in items] + ["null"] * null)
    return E(f"{a.sql} in ({text})", "boolean", lambda row: member(a.of(row), listed))


@st.composite
def finders(draw: st.DrawFn, depth: int) -> E:
    a, piece = draw(values("string", depth)), draw(TEXT)
    name, test = draw(
        st.sampled_from(
            [
                ("startswith", lambda s: s.startswith(piece)),
                ("endswith", lambda s: s.endswith(piece)),
                ("contains", lambda s: piece in s),
            ]
        )
    )
    return E(f"{name}({a.sql}, {quoted(piece)})", "boolean", lambda row: strict(test)(a.of(row)))


@st.composite
def comparisons(draw: st.DrawFn, depth: int) -> E:
    """A single comparison."""
    a, b = draw(pairs(depth))
    kind = draw(st.sampled_from([*COMPARE, "<=>", "distinct", "is null", "between"]))
    if kind in COMPARE:
        return E(f"({a.sql}) {kind} ({b.sql})", "boolean",
                 lambda row: strict(lambda x, y: COMPARE[kind](order(x, y)))(a.of(row), b.of(row)))  # fmt: skip
    if kind in ("<=>", "distinct"):

        def same(row: dict[str, Any]) -> bool:
            x, y = a.of(row), b.of(row)
            equal = x is y is None if x is None or y is None else order(x, y) == 0
            return equal == (kind == "<=>")

        return E(f"({a.sql}) {'<=>' if kind == '<=>' else 'IS DISTINCT FROM'} ({b.sql})", "boolean", same)
    if kind == "is null":
        return E(f"({a.sql}) IS NOT NULL", "boolean", lambda row: a.of(row) is not None)

    def between(row: dict[str, Any]) -> Any:
        x, low, high = a.of(row), b.of(row), a.of(row)
        return conjunction(
            strict(lambda p, q: order(p, q) >= 0)(x, low), strict(lambda p, q: order(p, q) <= 0)(x, high)
        )

    return E(f"({a.sql}) BETWEEN ({b.sql}) AND ({a.sql})", "boolean", between)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> E:
    if depth == 0:
        return draw(columns("boolean") | comparisons(0) | LITERALS["boolean"])
    kind = draw(st.sampled_from(["and", "or", "not", "is", "like", "in", "find", "test", "test"]))
    if kind in ("and", "or"):
        a, b = draw(conditions(depth - 1)), draw(conditions(depth - 1))
        join = conjunction if kind == "and" else disjunction
        return E(f"({a.sql}) {kind} ({b.sql})", "boolean", lambda row: join(a.of(row), b.of(row)))
    if kind == "not":
        a = draw(conditions(depth - 1))
        return E(f"not ({a.sql})", "boolean", lambda row: negation(a.of(row)))
    if kind == "is":
        a, wanted, negate = draw(conditions(depth - 1)), draw(st.booleans()), draw(st.booleans())
        return E(f"({a.sql}) is {'not ' * negate}{wanted}", "boolean", lambda row: (a.of(row) is wanted) != negate)
    return draw({"like": likes, "in": lists, "find": finders, "test": comparisons}[kind](depth - 1))


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    kinds = {**{name: pa.string() for name in ("loc",)}, "price": pa.float64(), "qty": pa.int32(), "total": pa.int64(),
             "ok": pa.bool_(), "sure": pa.bool_(), "key": pa.binary()}  # fmt: skip
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})


MANY = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@MANY
@given(condition=conditions(), rows=st.lists(ROW, min_size=1, max_size=8))
def test_a_filter_passes_the_rows_for_which_the_oracle_says_true(condition: E, rows: list[dict[str, Any]]) -> None:
    found = parse(condition.sql, SCHEMA)
    assert found.mask(table_of(rows)).tolist() == [condition.of(row) is True for row in rows]
    denied = parse(f"not ({condition.sql})", SCHEMA)
    assert denied.mask(table_of(rows)).tolist() == [condition.of(row) is False for row in rows]


@MANY
@given(condition=conditions())
def test_canonical_text_reads_back_as_the_same_filter(condition: E) -> None:
    found = parse(condition.sql, SCHEMA)
    again = parse(found.text, SCHEMA)
    assert (again.text, again.columns) == (found.text, found.columns)
    assert again.root == found.root


@MANY
@given(condition=conditions(), rows=st.lists(ROW, min_size=1, max_size=4), absent=st.sets(st.sampled_from([*COLUMNS])))
def test_a_column_that_a_stream_lacks_is_null(condition: E, rows: list[dict[str, Any]], absent: set[str]) -> None:
    schema = {name: kind for name, kind in SCHEMA.items() if name not in absent}
    absent.discard("key")
    rows = [{**row, **dict.fromkeys(absent)} for row in rows]
    found = parse(parse(condition.sql, SCHEMA).without(absent), schema)
    assert not absent & set(found.columns)
    assert found.mask(table_of(rows)).tolist() == [condition.of(row) is True for row in rows]


@settings(max_examples=100, deadline=None)
@given(a=conditions(1), b=conditions(1), c=conditions(1), rows=st.lists(ROW, min_size=1, max_size=6))
def test_laws_of_three_valued_logic(a: E, b: E, c: E, rows: list[dict[str, Any]]) -> None:
    table = table_of(rows)

    def both(one: str, other: str) -> None:
        """Equal in all three values."""
        assert parse(f"({one}) <=> ({other})", SCHEMA).mask(table).all()

    p, q, r = (f"({each.sql})" for each in (a, b, c))
    both(f"not ({p} and {q})", f"not {p} or not {q}")
    both(f"not ({p} or {q})", f"not {p} and not {q}")
    both(f"not not {p}", p)
    both(f"{p} and {q}", f"{q} and {p}")
    both(f"{p} and ({q} or {r})", f"{p} and {q} or {p} and {r}")
    both(f"{p} or {p} and {q}", p)
    assert parse(f"{p} or not {p} or {p} is null", SCHEMA).mask(table).all()
    assert not parse(f"{p} and not {p}", SCHEMA).mask(table).any()


# --- single sentences -----------------------------------------------------------------------------------------


def passes(text: str, **values: Any) -> bool:
    row = dict.fromkeys(["loc", "price", "qty", "total", "ok", "sure", "key"]) | values
    return bool(parse(text, SCHEMA).mask(table_of([row]))[0])


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("loc='NY' AND price>3", "loc = 'NY' AND price > 3.0D"),
        ("LOC = \"NY\"", "loc = 'NY'"),
        ("ok and (sure and (qty = 1))", "ok AND sure AND qty = 1"),
        ("(ok or sure) and ok", "(ok OR sure) AND ok"),
        ("seq > 5", "seq > 5L"),
        ("total >= -9223372036854775808", "total >= -9223372036854775808L"),
        ("qty = -2147483648", "qty = -2147483648"),
        ("key = 'acme'", "key = X'61636D65'"),
        ("startswith(key, 'a')", "startswith(key, X'61')"),
        ("loc like 'a!%%%' escape '!'", "loc LIKE 'a\\\\%%'"),
        ("price in (0, 1.5)", "price = 0.0D OR price IN (1.5D)"),
        ("total between 1 and 2.5D", "total >= 1L AND total <= 2.5D"),
        ("day = date '2024-02-29'", "day = DATE'2024-02-29'"),
        ("at < timestamp '2024-01-01T00:00+01:00'", "at < TIMESTAMP'2023-12-31 23:00:00Z'"),
        ("at < timestamp '2024-01-01 00:00:00.120Z'", "at < TIMESTAMP'2024-01-01 00:00:00.12Z'"),
        ("loc = '${HOME}'", "loc = '\\u0024{HOME}'"),
        ("case qty when 1 then ok when 2 then sure end",
         "CASE WHEN qty = 1 THEN ok WHEN qty = 2 THEN sure ELSE NULL END"),
        ("loc || 'a' || 'b' = 'c'", "concat(loc, 'a', 'b') = 'c'"),
        ("qty = 1 -- the first\n or /* or */ ok", "qty = 1 OR ok"),
    ],
)  # fmt: skip
def test_the_canonical_text_names_every_type(text: str, canonical: str) -> None:
    assert parse(text, SCHEMA).text == canonical


def test_a_name_that_is_a_keyword_is_quoted() -> None:
    schema = parse_attributes("end string, date date")
    found = parse("`end` = 'x' and `date` is null", schema)
    assert found.text == "`end` = 'x' AND `date` IS NULL"
    assert parse(found.text, schema) == found


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (r"'a\'b'", "a'b"), (r"'\%'", r"\%"), (r"'\q'", "q"), (r"'\n\t\0\Z'", "\n\t\0\x1a"), (r"'\101'", "A"),
        (r"'\u00e9\U0001F600'", "é😀"), (r"'\ud83d\ude00'", "😀"), ("'a\"\"b'", 'a""b'), (r"'\\'", "\\"),
    ],
)  # fmt: skip
def test_strings_are_unescaped_as_spark_does_it(raw: str, value: str) -> None:
    assert passes(f"loc = {raw}", loc=value)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", " +12\n", 12), ("int", "1.5", None), ("int", "", None), ("int", "-", None), ("int", "2147483648", None),
        ("bigint", "-9223372036854775808", -(2**63)), ("bigint", "9223372036854775808", None), ("bigint", "٣", None),
        ("int", "00000000000000000000000007", 7), ("int", None, None),
    ],
)  # fmt: skip
def test_try_cast_reads_whole_numbers_only(kind: str, value: str | None, expected: int | None) -> None:
    wanted = "is null" if expected is None else f"= {expected}L"
    assert passes(f"try_cast(loc as {kind}) {wanted}", loc=value)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (2147483647.9, "int", 2**31 - 1), (2147483648.0, "int", None), (-2147483648.9, "int", -(2**31)),
        (NAN, "bigint", None), (2.0**63, "bigint", 2**63 - 1), (-(2.0**63), "bigint", -(2**63)), (1e19, "bigint", None),
        (-1.9, "bigint", -1), (math.inf, "int", None),
    ],
)  # fmt: skip
def test_try_cast_cuts_fractions_off_and_is_null_beyond_the_range(
    value: float, kind: str, expected: int | None
) -> None:
    wanted = "is null" if expected is None else f"= {expected}L"
    assert passes(f"try_cast(price as {kind}) {wanted}", price=value)


def test_not_a_number_equals_itself_and_is_above_all() -> None:
    assert passes("price = price and price > 1e308 and isnan(price)", price=NAN)
    assert passes("not isnan(price)", price=None)
    assert passes("price = 0 and price in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)", price=-0.0)


def test_integers_and_doubles_are_compared_as_doubles() -> None:
    assert passes("total = 9007199254740992D", total=2**53 + 1)
    assert not passes("total = 9007199254740992", total=2**53 + 1)


WRONG = [
    ("rand() < 0.5", 1, 1, "rand", "another value each time"),
    ("loc in (select loc from t)", 1, 1, "loc", "subqueries"),
    ("exists(select 1)", 1, 15, "1", "subqueries"),
    ("pric > 3", 1, 1, "pric", "did you mean price"),
    ("ok and\n  lowr(loc) = 'x'", 2, 3, "lowr(loc)", "did you mean lower"),
    ("sum(qty) > 1", 1, 1, "sum(qty)", "aggregate"),
    ("sum(qty) over (partition by loc) > 1", 1, 1, "sum", "window"),
    ("qty", 1, 1, "qty", "a condition is needed"),
    ("loc = 1", 1, 1, "loc = 1", "do not go together"),
    ("ok and loc > 3", 1, 8, "loc > 3", "do not go together"),
    ("day = '2024-01-01'", 1, 1, "day", "DATE'...'"),
    ("at > day", 1, 1, "at > day", "do not go together"),
    ("at > timestamp '2024-01-01 00:00:00'", 1, 16, "'2024", "zone"),
    ("day = date '2023-02-29'", 1, 12, "'2023", "calendar"),
    ("qty > 2.5", 1, 1, "qty > 2.5", "put a D"),
    ("qty + 1 > 2", 1, 1, "qty + 1", "try_add"),
    ("price / 2 > 1", 1, 1, "price / 2", "try_divide"),
    ("cast(loc as int) = 1", 1, 6, "loc", "try_cast"),
    ("qty::bigint = 1", 1, 1, "qty", "try_cast"),
    ("- qty = 1", 1, 3, "qty", "overflow"),
    ("ok = sure = ok", 1, 1, "ok = sure", "parentheses"),
    ("ok = not sure", 1, 10, "sure", "parentheses"),
    ("loc = 'unclosed", 1, 7, "'unclosed", "not closed"),
    ("price >\n and ok", 2, 2, "and", "missing"),
    ("ok ok", 1, 4, "ok", "does not belong"),
    ("ok; sure", 1, 3, ";", "semicolon"),
    ("", 1, 1, "", "empty"),
    ("loc = 'it''s'", 1, 7, "'it'", "one string"),
    ("loc like loc", 1, 10, "loc", "literal"),
    ("loc like 'a!b' escape '!'", 1, 10, "'a!b'", "escape character"),
    ("qty in (qty)", 1, 9, "qty", "literals only"),
    ("qty in ()", 1, 1, "qty", "empty"),
    ("x.loc = 'a'", 1, 1, "x.loc", "table"),
    ("loc = ?", 1, 1, "loc", "parameters"),
    ("loc rlike 'a'", 1, 1, "loc", "regular expressions"),
    ("payload = 'x'", 1, 1, "payload", "unknown attribute"),
    ("qty = 99999999999999999999", 1, 7, "9999", "bigint"),
    ("price = 1e999", 1, 9, "1e999", "double"),
    ("qty = 5S", 1, 7, "5S", "may end in"),
    ("key = X'0'", 1, 7, "X'0'", "pairs"),
    ("qty = 0x10", 1, 7, "0x10", "pairs"),
    ("key like 'a%'", 1, 1, "key", "binary"),
    ("loc = '\\ud800'", 1, 7, "'", "Unicode"),
    ("lower(loc, loc) = 'a'", 1, 1, "lower", "1 arguments"),
    ("substring(loc, qty) = 'a'", 1, 16, "qty", "literal"),
    ("(" * 25 + "ok" + ")" * 25, 1, 25, "(", "nested"),
    ("not " * 25 + "ok", 1, 97, "not", "nested"),
    ("ok or " * 11_000 + "ok", 1, 1, "", "bytes"),
    ("ok or " * 10_100 + "ok", 1, 60_000, "ok", "operations"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "piece", "why"), WRONG, ids=[case[0][:30] for case in WRONG])
def test_what_is_not_in_the_language_is_refused_with_its_place(
    text: str, line: int, column: int, piece: str, why: str
) -> None:
    with pytest.raises(BadFilter) as caught:
        parse(text, SCHEMA)
    error = caught.value
    assert why in error.why and error.why in str(error)
    assert (error.line, error.piece[: len(piece)]) == (line, piece)
    assert error.column == column or "operations" in why
    assert isinstance(error, BadInput)


@settings(max_examples=150, deadline=None)
@given(
    st.text(
        st.sampled_from("loc qty ok 1'\"`\\()<>=-+*/,.;:[]{}?$@!|&%\nandornotinlikecasewhenthenendisnullX"), max_size=30
    )
)
def test_any_text_is_a_filter_or_a_typed_error(text: str) -> None:
    try:
        found = parse(text, SCHEMA)
    except BadFilter:
        return
    assert parse(found.text, SCHEMA) == found


def test_a_long_chain_needs_no_deep_stack() -> None:
    text = " or ".join(f"qty = {i}" for i in range(3000))
    assert passes(text, qty=2999) and len(text) < MAX_TEXT


def test_sqlglot_is_not_imported_before_the_first_filter() -> None:
    code = "import sys, tidings, tidings.core.history, tidings.core.filters; sys.exit('sqlglot' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": ":".join(sys.path)}).returncode
        == 0
    )


def test_columns_of_rows_can_be_named() -> None:
    origins = (Origin(1, 3, "p", at=1.5, region="eu"), Origin(3, 4, "q", at=2.0, region="us"))
    rows = data_rows(1, [b"a", None, b"b"], [b""] * 3, attributes={"loc": pa.array(["x", "y", None])})
    rows.origins = origins

    def seen(text: str) -> list[int]:
        found: Filter = parse(text, SCHEMA)
        return rows.numbers[found.mask(rows)].tolist()  # type: ignore[no-any-return]

    assert seen("seq >= 2") == [2, 3]
    assert seen("publisher = 'p' and region = 'eu'") == [1, 2]
    assert seen("published_at >= timestamp'1970-01-01 00:00:02Z'") == [3]
    assert seen("kind = 'data' and key is not null") == [1, 3]
    assert seen("qty is null and loc > 'x'") == [2]  # a column these rows lack is null
    assert parse("kind = 'gc'", {}).mask(before_rows(4, [2])).tolist() == [True]
    assert parse("ok", SCHEMA).mask(NO_ROWS).tolist() == []
    with pytest.raises(BadInput, match="counted"):
        parse("ok", SCHEMA).mask(CountedRows(1, 3, 10))
    with pytest.raises(BadInput, match="seq"):
        parse("seq > 1", SCHEMA).mask(pa.table({"loc": ["x"]}))


def test_a_filter_knows_whether_the_key_decides() -> None:
    assert parse("key = 'a' or key is null", SCHEMA).on_key_only
    assert not parse("key = 'a' and ok", SCHEMA).on_key_only
    assert parse("ok and QTY = 1 and ok", SCHEMA).columns == ("ok", "qty")


# --- attributes -----------------------------------------------------------------------------------------------


def test_attributes_are_declared_like_columns_of_a_table() -> None:
    declared = parse_attributes(" loc STRING,\n price  double, n long")
    assert declared == {"loc": AttrType.STRING, "price": AttrType.DOUBLE, "n": AttrType.BIGINT}
    assert parse_attributes(format_attributes(declared)) == declared
    assert parse_attributes("  ") == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("loc", "name and a type"), ("loc strin", "did you mean string"), ("loc string,", "name and a type"),
        ("loc string, LOC int", "twice"), ("seq bigint", "taken"), ("Where string", "taken"), ("1a int", "letters"),
        ("a" * 65 + " int", "at most"), ("loc string not null", "unknown"),
        (", ".join(f"a{i} int" for i in range(257)), "257 attributes"),
    ],
)  # fmt: skip
def test_wrong_declarations_are_refused(text: str, why: str) -> None:
    with pytest.raises(BadAttribute, match=why):
        parse_attributes(text)


def test_columns_are_cast_where_no_value_changes() -> None:
    given_columns = pa.table(
        {
            "key": [b"a", b"b"],
            "loc": pa.array(["x", None], pa.large_string()).dictionary_encode(),
            "price": pa.array([1, 2], pa.int64()),
            "total": pa.array([1, None], pa.uint8()),
            "at": pa.array([1, 2], pa.timestamp("s", tz="Europe/Berlin")),
            "day": pa.nulls(2),
        }
    )
    found = conform(given_columns, SCHEMA)
    assert list(found) == list(SCHEMA)
    assert found["loc"].to_pylist() == ["x", None] and found["loc"].type == pa.string()
    assert found["price"].to_pylist() == [1.0, 2.0] and found["total"].to_pylist() == [1, None]
    assert found["at"].cast(pa.int64()).to_pylist() == [1_000_000, 2_000_000]
    assert found["ok"].null_count == 2


@pytest.mark.parametrize(
    ("name", "column", "why"),
    [
        ("pric", pa.array(["x"]), "did you mean price"), ("qty", pa.array([2**40]), "declared int"),
        ("qty", pa.array([1.0]), "not double"), ("loc", pa.array([1]), "not int64"),
        ("at", pa.array([1], pa.timestamp("us")), "time zone"), ("ok", pa.array(["true"]), "not string"),
        ("at", pa.array([1], pa.timestamp("ns", tz="UTC")), "would lose data"),
        ("price", pa.array([2**53 + 1]), "declared double"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_refused(name: str, column: pa.Array, why: str) -> None:
    with pytest.raises(BadAttribute, match=re.escape(why)) as caught:
        conform(pa.table({name: column}), SCHEMA)
    assert caught.value.name == name


def test_values_in_json_become_columns() -> None:
    assert from_json(["2024-01-01T00:00:00Z", None], AttrType.TIMESTAMP).cast(pa.int64()).to_pylist() == [
        1704067200000000,
        None,
    ]
    assert from_json(["2024-01-01"], AttrType.DATE).cast(pa.int32()).to_pylist() == [19723]
    assert from_json(["00ff"], AttrType.BINARY).to_pylist() == [b"\x00\xff"]
    with pytest.raises(BadAttribute):
        from_json(["x"], AttrType.INT)


# --- large texts ------------------------------------------------------------------------------------------


def test_a_filter_that_joins_very_many_texts_is_refused() -> None:
    schema = parse_attributes("name string")
    parse(f"length(concat({', '.join(['name'] * 32)})) > 1", schema)
    for text in (f"length(concat({', '.join(['name'] * 33)})) > 1", f"upper({' || '.join(['name'] * 11)}) = 'A'"):
        with pytest.raises(BadFilter, match="joins more than 32 texts"):
            parse(text, schema)


def test_what_a_row_yields_does_not_depend_on_how_much_its_neighbours_make(monkeypatch: pytest.MonkeyPatch) -> None:
    found = parse("length(concat(name, name, name)) > 5", parse_attributes("name string"))
    rows = data_rows(5, None, [b"x"] * 7, None, {"name": pa.array(["a", "bb", None, "ccc", "", "dd", "e"])})
    whole = found.mask(rows)
    monkeypatch.setattr(kernels, "ROOM", 1)  # each row by itself
    assert found.mask(rows).tolist() == found.mask(rows.batch).tolist() == whole.tolist()
    assert whole.tolist() == [False, True, False, True, False, True, False]


def test_a_row_that_arrow_cannot_evaluate_does_not_pass_and_takes_no_other_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = parse("length(name) > 1", parse_attributes("name string"))
    length = kernels.KERNELS["length"]

    def limited(node: Any, args: list[Any]) -> Any:
        if "huge" in args[0].to_pylist():
            raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
        return length(node, args)

    monkeypatch.setitem(kernels.KERNELS, "length", limited)  # type: ignore[arg-type]
    names = pa.table({"name": ["aa", "huge", "b", "cc", "huge"]})
    assert found.mask(names).tolist() == [True, False, False, True, False]
