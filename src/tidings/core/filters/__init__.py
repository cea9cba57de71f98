"""The filter language: SQL conditions over an event's attributes, with the meaning they have in Spark.

A filter is text. `parse` reads it against a stream's declared attributes and gives a `Filter`: its canonical text,
which means the same to ``df.where`` in Spark, and `Filter.mask`, which evaluates it over columns here. Spark has two
modes that differ in what happens when an operation fails: ANSI raises, the older one yields null. So only *total*
operations are in the language, those that cannot fail in either mode:

- comparisons, ``<=>``, BETWEEN, IN (literals), LIKE with a literal pattern, IS [NOT] NULL | TRUE | FALSE;
- AND, OR, NOT in three-valued logic; CASE, ``if``, ``coalesce``;
- ``try_add``, ``try_subtract``, ``try_multiply``, ``try_divide``, ``try_cast`` instead of ``+ - * /`` and CAST;
- ``lower upper trim ltrim rtrim length substring concat || startswith endswith contains isnan``.

Types are strict: numbers widen (int, bigint, double), nothing else is converted, because Spark's modes differ there
too. Exceptions that every reader expects: a string literal beside a binary stands for its UTF-8 bytes, and a decimal
literal beside a double is a double. A timestamp literal names its zone, or it would depend on the session. Doubles
compare by Spark's total order: NaN equals itself and is above all else, -0.0 equals 0.0. Names are told apart without
regard to case. ``lower`` and ``upper`` follow the Unicode tables of the Python that runs them.

What is not in the language is a `BadFilter` with line, column and the piece of text, before any row is looked at.
sqlglot is imported when the first filter is parsed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tidings.core.errors import BadAttribute, BadFilter
from tidings.core.filters.kernels import Columns, mask
from tidings.core.filters.nodes import Node, nulled
from tidings.core.filters.reader import (
    MAX_DEPTH,
    MAX_GROWTH,
    MAX_NODES,
    MAX_TEXT,
    check_nesting,
    check_size,
    read,
    sqlglot,
)
from tidings.core.filters.types import (
    ARROW,
    RESERVED,
    SYSTEM,
    AttrType,
    conform,
    format_attributes,
    from_json,
    parse_attributes,
)
from tidings.core.rows import Mask

__all__ = [
    "ARROW",
    "MAX_DEPTH",
    "MAX_GROWTH",
    "MAX_NODES",
    "MAX_TEXT",
    "RESERVED",
    "SYSTEM",
    "AttrType",
    "BadAttribute",
    "BadFilter",
    "Columns",
    "Filter",
    "Node",
    "conform",
    "format_attributes",
    "from_json",
    "parse",
    "parse_attributes",
]


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on events. Filters of one stream are equal if their canonical texts are."""

    root: Node
    text: str  # canonical; parses to this filter again, and means the same to Spark
    columns: tuple[str, ...]  # the names it depends on, in alphabetical order

    @property
    def on_key_only(self) -> bool:
        """Whether events with the same key have the same answer."""
        return set(self.columns) <= {"key"}

    def without(self, absent: Collection[str]) -> str:
        """The text of the condition where these columns are always null, for a stream that does not have them."""
        return nulled(self.root, absent).sql

    def mask(self, columns: Columns) -> Mask:
        """Which rows pass: those for which the condition is true, not false or null."""
        return mask(self.root, columns)


def parse(text: str, schema: Mapping[str, AttrType], bounded: bool = True) -> Filter:
    """The filter a user wrote over a stream's attributes; `BadFilter` says what is wrong and where.

    What is committed already is read without the bound on what it makes.
    """
    root = read(text, schema)
    if bounded and root.growth > MAX_GROWTH:
        raise BadFilter(f"joins more than {MAX_GROWTH} texts to one; compare them one by one")
    canonical = root.sql
    check_size(canonical)
    check_nesting(sqlglot().tokenize(canonical), canonical)
    return Filter(root, canonical, tuple(sorted(root.columns)))
