"""One filter instead of many: it passes at least what they pass, and asks less (Gryphon, filters flow upstream).

Of the columns on which every filter asks something it keeps the values that some filter asks for: a list while they are
few, else the range between the least and the largest. The rest is left out.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Any

from tidings.core.filters import Filter, nodes
from tidings.core.filters.nodes import Node
from tidings.core.filters.normal import (
    AFTER,
    NOT_A_NUMBER,
    TEXTS,
    TOP,
    Conjunction,
    Cut,
    Interval,
    Term,
    normal_form,
    span_of,
)
from tidings.core.filters.types import AttrType

LISTED = 1024  # values of one column in a summary; ours, because a list of so many is still cheap to look up in
KINDS = (AttrType.STRING, AttrType.BINARY, AttrType.INT, AttrType.BIGINT, AttrType.DOUBLE)
"""Types of the columns that a summary asks about."""
_WORD, _DOUBLE = Struct("<q"), Struct("<d")


class Asked:
    """What some filters ask of one column."""

    __slots__ = ("high", "low", "points")

    def __init__(self, interval: Interval) -> None:
        self.low, self.high = interval
        self.points: set[Interval] | None = {interval}

    def widen(self, interval: Interval) -> None:
        """Another filter asks for these values."""
        self.low, self.high = min(self.low, interval[0]), max(self.high, interval[1])
        if self.points is not None:
            self.points.add(interval)
            if len(self.points) > LISTED:
                self.points = None


@lru_cache(maxsize=65_536)
def _form(filter: Filter) -> list[Conjunction]:
    return normal_form(filter.root).conjunctions


class Summary:
    """Of filters of one stream, which can be added one by one."""

    def __init__(self) -> None:
        self._asked: dict[Term, Asked] | None = None  # None: there is no filter yet

    def add(self, filter: Filter | None) -> None:
        """Pass what this one passes, too; None passes everything."""
        if filter is None:
            self._asked = {}
            return
        for conjunction in _form(filter):
            self._add(conjunction)

    def _add(self, conjunction: Conjunction) -> None:
        if self._asked is None:
            there = [(term, asked) for term, asked in conjunction.items() if term.kind in KINDS]
            self._asked = {term: Asked(interval) for term, interval in there}
            return
        for term in [term for term in self._asked if term not in conjunction]:
            del self._asked[term]
        for term, asked in self._asked.items():
            asked.widen(conjunction[term])

    @property
    def text(self) -> str:
        """The filter; "" passes everything."""
        conditions = [each for term, asked in (self._asked or {}).items() for each in _conditions(term, asked)]
        if not conditions:
            return ""
        return (conditions[0] if len(conditions) == 1 else Node("and", AttrType.BOOLEAN, tuple(conditions))).sql


def _conditions(term: Term, asked: Asked) -> list[Node]:
    _, first, top = span_of(term.kind)
    if asked.low < first:
        return []  # null is among them
    if asked.points is not None and all([_is_point(term, each) for each in asked.points]):
        values = [_value(term, low) for low, _ in sorted(asked.points)]
        if None not in values:
            return [Node("in", AttrType.BOOLEAN, (term, *[nodes.literal(value, term.kind) for value in values]))]
    low = None if asked.low == first else _value(term, asked.low)
    high = None if asked.high == top else _value(term, asked.high)
    ends = [(">=" if _is_below(term, asked.low) else ">", low), ("<" if _is_below(term, asked.high) else "<=", high)]
    return [
        Node(op, AttrType.BOOLEAN, (term, nodes.literal(value, term.kind))) for op, value in ends if value is not None
    ]


def _is_point(term: Term, interval: Interval) -> bool:
    """Whether one value alone lies between two cuts."""
    low, high = interval
    if term.kind in TEXTS:
        return len(low) == len(high) == 3 and low[1] == high[1]
    return bool(high == low + 1)


def _is_below(term: Term, cut: Cut) -> bool:
    """Whether a cut lies below its value, not above it."""
    return term.kind not in TEXTS or cut[-1] != AFTER


def _value(term: Term, cut: Cut) -> Any:
    """The value beside a cut; None if SQL has no literal for it."""
    match term.kind:
        case AttrType.STRING:
            try:
                return cut[1].decode() if len(cut) == 3 else None
            except UnicodeDecodeError:
                return None
        case AttrType.BINARY:
            return cut[1] if len(cut) == 3 else None
        case AttrType.DOUBLE:
            (value,) = _DOUBLE.unpack(_WORD.pack(cut if cut >= 0 else cut ^ TOP))
            return value if abs(value) < float("inf") and cut < NOT_A_NUMBER else None
    return cut
