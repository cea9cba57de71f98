"""A filter as a tree of typed operations, and the SQL text that is its canonical form.

A node is an operation, its operands and the type of what it yields. Trees are values: two filters are the same if
their trees are, and then their texts are. The text names every literal's type (``5L``, ``0.5D``), folds widening of
literals, flattens chains of AND and OR, writes LIKE with the escape character ``\\`` and has parentheses only where
they are needed; it reads back as the same tree, here and in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tidings.core.filters.types import AttrType

Value: TypeAlias = str | bytes | bool | int | float | None
"""A literal: timestamps are microseconds and dates days since 1970."""

COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>")
PREDICATES = frozenset({*COMPARISONS, "is null", "is true", "is false", "between", "in", "like", "not", "and", "or"})
"""Operations that need parentheses as an operand of anything but AND, OR and NOT."""

QUOTED = frozenset(
    {
        "all", "and", "any", "array", "as", "between", "both", "by", "case", "cast", "collate", "cross",
        "current_date", "current_time", "current_timestamp", "current_user", "date", "distinct", "div", "else", "end",
        "escape", "except", "exists", "false", "filter", "for", "from", "full", "function", "group", "having", "if",
        "ilike", "in", "inner", "insert", "intersect", "interval", "into", "is", "join", "lateral", "leading", "left",
        "like", "limit", "map", "minus", "natural", "not", "null", "nulls", "offset", "on", "or", "order", "outer",
        "overlaps", "regexp", "right", "rlike", "row", "rows", "select", "semi", "set", "some", "struct", "table",
        "then", "time", "timestamp", "to", "trailing", "true", "try_cast", "union", "unique", "unknown", "user",
        "using", "values", "when", "where", "window", "with", "within",
    }
)  # fmt: skip
"""Names written in backquotes because they mean something else; a fixed list, so that texts stay equal for good."""

_SOME: dict[AttrType | None, Value] = {AttrType.STRING: "", AttrType.BINARY: b"", AttrType.BOOLEAN: False}
"""A value of each type, 0 of the others."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INFIX_NOT = {"is null": "IS NOT NULL", "is true": "IS NOT TRUE", "is false": "IS NOT FALSE"}


@dataclass(frozen=True, slots=True)
class Node:
    """An operation over operands. ``value`` is a literal's value, a column's name or a pattern, else None."""

    op: str
    kind: AttrType | None  # None: the type of a bare NULL
    args: tuple[Node, ...] = ()
    value: Any = None

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        todo = [self]
        while todo:
            node = todo.pop()
            yield node
            todo.extend(reversed(node.args))

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that matter."""
        return frozenset(node.value for node in self.walk() if node.op == "column")

    @property
    def growth(self) -> int:
        """How many times the bytes of a row's columns the largest text that is made on the way can have, at most."""
        return _growth(self)[1]

    @property
    def sql(self) -> str:
        """The canonical text."""
        return _sql(self)


def _growth(node: Node) -> tuple[int, int]:
    """Of what a node yields, and of all that is made on the way to it."""
    if not node.args:
        return 1, 1
    inner = [_growth(arg) for arg in node.args]
    own = sum([size for size, _ in inner]) if node.op == "concat" else max([size for size, _ in inner])
    if node.op in ("lower", "upper"):
        own *= 3  # one character may become three of the same length
    return own, max([own, *[largest for _, largest in inner]])


def literal(value: Value, kind: AttrType | None) -> Node:
    """A constant."""
    return Node("literal", kind, (), value)


def column(name: str, kind: AttrType) -> Node:
    """A column by its declared name."""
    return Node("column", kind, (), name)


def nulled(node: Node, absent: Collection[str]) -> Node:
    """The same with nulls, of the same types, in place of columns."""
    if node.op == "column" and node.value in absent:
        never, null = literal(False, AttrType.BOOLEAN), literal(None, None)
        return Node("case", node.kind, (never, literal(_SOME.get(node.kind, 0), node.kind), null))
    return Node(node.op, node.kind, tuple([nulled(arg, absent) for arg in node.args]), node.value)


def _sql(node: Node) -> str:
    op, args = node.op, node.args
    match op:
        case "literal":
            return literal_sql(node.value, node.kind)
        case "column":
            return quoted(node.value)
        case "and" | "or":
            inner = [f"({_sql(arg)})" if op == "and" and arg.op == "or" else _sql(arg) for arg in args]
            return f" {op.upper()} ".join(inner)
        case "not":
            return _negated(args[0])
        case "is null" | "is true" | "is false":
            return f"{_operand(args[0])} {op.upper()}"
        case "between" | "in" | "like":
            return _predicate(node, "")
        case "widen":
            return _sql(args[0])
        case "case":
            return _case(node)
        case "try_cast":
            return f"try_cast({_sql(args[0])} AS {node.kind})"
        case "negative":
            return f"-{_operand(args[0])}"
    if op in COMPARISONS:
        return f"{_operand(args[0])} {op} {_operand(args[1])}"
    return f"{op}({', '.join(map(_sql, args))})"


def _operand(node: Node) -> str:
    while node.op == "widen":
        node = node.args[0]
    return f"({_sql(node)})" if node.op in PREDICATES or node.op == "negative" else _sql(node)


def _negated(node: Node) -> str:
    if node.op in _INFIX_NOT:
        return f"{_operand(node.args[0])} {_INFIX_NOT[node.op]}"
    if node.op in ("between", "in", "like"):
        return _predicate(node, "NOT ")
    return f"NOT ({_sql(node)})" if node.op in ("and", "or") else f"NOT {_sql(node)}"


def _predicate(node: Node, negation: str) -> str:
    left, *rest = map(_operand, node.args)
    if node.op == "like":
        return f"{left} {negation}LIKE {literal_sql(pattern_text(node.value), AttrType.STRING)}"
    if node.op == "between":
        return f"{left} {negation}BETWEEN {rest[0]} AND {rest[1]}"
    return f"{left} {negation}IN ({', '.join(rest)})"


def _case(node: Node) -> str:
    """Operands are condition, result, condition, result, ..., and the result if no condition is true."""
    *pairs, last = map(_sql, node.args)
    if len(pairs) == 2:
        return f"if({pairs[0]}, {pairs[1]}, {last})"
    arms = [f"WHEN {when} THEN {then}" for when, then in zip(pairs[::2], pairs[1::2], strict=True)]
    return f"CASE {' '.join(arms)} ELSE {last} END"


def quoted(name: str) -> str:
    """A column's name as SQL writes it."""
    return name if _PLAIN.fullmatch(name) and name.lower() not in QUOTED else "`" + name.replace("`", "``") + "`"


def literal_sql(value: Value, kind: AttrType | None) -> str:
    """A constant as SQL writes it, its type unmistakable."""
    if value is None:
        return "NULL"
    match kind:
        case AttrType.BOOLEAN:
            return "TRUE" if value else "FALSE"
        case AttrType.BIGINT:
            return f"{value!r}L"
        case AttrType.DOUBLE:
            return f"{float(value)!r}D".replace("e", "E")
        case AttrType.STRING:
            assert isinstance(value, str)
            text = value.replace("\\", "\\\\").replace("'", "\\'")
            return "'" + text.replace("${", "\\u0024{") + "'"  # or Spark would put a variable's value there
        case AttrType.BINARY:
            assert isinstance(value, bytes)
            return f"X'{value.hex().upper()}'"
        case AttrType.DATE:
            return f"DATE'{np.datetime64(int(value), 'D')}'"
        case AttrType.TIMESTAMP:
            text = str(np.datetime64(int(value), "us")).replace("T", " ")
            whole, _, fraction = text.partition(".")
            return f"TIMESTAMP'{whole}{'.' + fraction.rstrip('0') if fraction.strip('0') else ''}Z'"
    return str(value)


ANY_ONE, ANY_MANY = 1, 2
"""What `_` and `%` stand for in a pattern."""

Pattern: TypeAlias = tuple[str | int, ...]
"""LIKE's right-hand side: texts, and between them what stands for other characters."""


def pattern_text(pattern: Pattern) -> str:
    """A pattern written with the escape character that is Spark's default."""
    out = []
    for part in pattern:
        if isinstance(part, str):
            out.append(re.sub(r"([\\%_])", r"\\\1", part))
        else:
            out.append("_" if part == ANY_ONE else "%")
    return "".join(out)


def parse_pattern(text: str, escape: str) -> Pattern:
    """LIKE's right-hand side; `ValueError` says what Spark would refuse."""
    parts: list[str | int] = []
    characters = iter(text)
    for one in characters:
        if one == escape:
            plain = next(characters, "")
            if plain not in ("%", "_", escape):
                raise ValueError(f"after the escape character {escape!r} comes %, _ or {escape}, not {plain!r}")
            _extend(parts, plain)
        elif one == "_":
            parts.append(ANY_ONE)
        elif one != "%":
            _extend(parts, one)
        elif parts[-1:] != [ANY_MANY]:
            parts.append(ANY_MANY)
    return tuple(parts)


def _extend(parts: list[str | int], text: str) -> None:
    last = parts[-1] if parts else ANY_MANY
    if isinstance(last, str):
        parts[-1] = last + text
    else:
        parts.append(text)
