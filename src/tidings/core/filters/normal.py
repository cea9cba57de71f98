"""The disjunctive normal form of a filter: in which intervals of its columns it is true.

A *conjunction* gives some columns an interval each; a filter is true for a row if all values of one conjunction lie in
their intervals. Where that holds in both directions the form is *exact*. Operations that say nothing about a column by
itself are left out of their conjunction: then the form is a necessary condition, and the filter itself decides.

Logic has three values, so a node is asked for the rows where its outcome is true, or false, or one of these or null.
NOT turns the first question into the second, and never into "not true".

Values of a column are ordered as Spark orders them, with null below all. An interval lies between two *cuts* of that
order, half-open. Numbers and times are 64-bit integers in the same order (`code`), and a cut is the first integer above
it. A cut among texts is a tuple: before a text or after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import isnan
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from tidings.core.filters import nodes
from tidings.core.filters.nodes import Node
from tidings.core.filters.types import AttrType

Term: TypeAlias = Node
"""What has an interval: a column, or a column of integers as doubles."""
Cut: TypeAlias = Any  # int, or for texts () < (1,) < (1, text, before or after) < (2,)
Interval: TypeAlias = tuple[Cut, Cut]
Conjunction: TypeAlias = dict[Term, Interval]

MAX_CONJUNCTIONS = 1024  # ours, because then a filter of the largest text takes half a megabyte of an index
NULL, TOP = -(1 << 63), (1 << 63) - 1
FIRST = NULL + 1  # numbers lie in [FIRST, TOP)
NOT_A_NUMBER = 0x7FF8_0000_0000_0000
TEXTS = (AttrType.STRING, AttrType.BINARY)
NULL_TEXT, FIRST_TEXT, TOP_TEXT = (), (1,), (2,)
BEFORE, AFTER = 0, 1
_WORD, _DOUBLE = Struct("<q"), Struct("<d")
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class NormalForm(NamedTuple):
    """Intervals of which a row must meet those of one conjunction; if ``exact``, that is enough."""

    conjunctions: list[Conjunction]
    exact: bool

    @property
    def indexable(self) -> bool:
        """Whether every conjunction says something about a column."""
        return all(self.conjunctions)


ANYTHING = NormalForm([{}], False)


def normal_form(root: Node) -> NormalForm:
    """The rows for which a filter is true."""
    return _form(root, True, False)


def code(value: float, kind: AttrType) -> int:
    """A number or time as an integer with the same order; not a number is above all others, and -0.0 is 0.0."""
    if kind is not AttrType.DOUBLE:
        return int(value)
    if isnan(value):
        return NOT_A_NUMBER
    (bits,) = _WORD.unpack(_DOUBLE.pack(value + 0.0))
    return int(bits) if bits >= 0 else int(bits ^ TOP)


def span_of(kind: AttrType | None) -> tuple[Cut, Cut, Cut]:
    """The cuts below null, between null and the values, and above all values."""
    if kind in TEXTS:
        return NULL_TEXT, FIRST_TEXT, TOP_TEXT
    if kind is AttrType.BOOLEAN:
        return NULL, 0, 2
    return NULL, FIRST, TOP


# --- logic ------------------------------------------------------------------------------------------------


def _form(node: Node, truth: bool, nulls: bool) -> NormalForm:
    """The rows where a node is true, or where it is false; if ``nulls``, also those where it is null."""
    match node.op:
        case "not":
            return _form(node.args[0], not truth, nulls)
        case "is true":
            return _form(node.args[0], truth, not truth)
        case "is false":
            return _form(node.args[0], not truth, not truth)
        case "and" | "or":
            parts = (_form(arg, truth, nulls) for arg in node.args)
            return _all(parts) if (node.op == "and") is truth else _any(parts)
        case "between":
            value, low, high = node.args
            ends = Node(">=", AttrType.BOOLEAN, (value, low)), Node("<=", AttrType.BOOLEAN, (value, high))
            return _form(Node("and", AttrType.BOOLEAN, ends), truth, nulls)
        case "literal":
            met = nulls if node.value is None else node.value is truth
            return NormalForm([{}] if met else [], True)
        case "like":
            return _like(node, truth, nulls)
    found = _test(node)
    return ANYTHING if found is None else found.form(truth, nulls)


def _any(parts: Iterable[NormalForm]) -> NormalForm:
    found: list[Conjunction] = []
    exact = True
    for part in parts:
        found += part.conjunctions
        exact &= part.exact
    return NormalForm(found, exact) if len(found) <= MAX_CONJUNCTIONS else NormalForm(_hull(found), False)


def _all(parts: Iterable[NormalForm]) -> NormalForm:
    """What is in all parts. Where that becomes too many conjunctions, the longest parts are replaced by their hulls."""
    forms = sorted(parts, key=lambda form: len(form.conjunctions))
    exact = all([form.exact for form in forms])
    found: list[Conjunction] = [{}]
    for form in forms:
        more = form.conjunctions
        if len(found) * len(more) > MAX_CONJUNCTIONS:
            more, exact = _hull(more), False
        found = [both for one in found for other in more if (both := _both(one, other)) is not None]
    return NormalForm(found, exact)


def _both(one: Conjunction, other: Conjunction) -> Conjunction | None:
    """The rows that two conjunctions share; None if there are none."""
    found = dict(one)
    for term, (low, high) in other.items():
        there = found.get(term)
        found[term] = (low, high) if there is None else (max(low, there[0]), min(high, there[1]))
        if there is not None and found[term][0] >= found[term][1]:
            return None
    return found


def _hull(found: list[Conjunction]) -> list[Conjunction]:
    """One conjunction that every row of several meets."""
    if not found:
        return found
    terms = [term for term in found[0] if all([term in other for other in found])]
    ends = {term: [other[term] for other in found] for term in terms}
    return [{term: (min([low for low, _ in each]), max([high for _, high in each])) for term, each in ends.items()}]


# --- conditions on one column -----------------------------------------------------------------------------


class _Test(NamedTuple):
    """The values of a column for which a node is true, and those for which it is null: ascending, apart."""

    term: Term
    true: list[Interval]
    null: list[Interval]

    def form(self, truth: bool, nulls: bool) -> NormalForm:
        """As `_form`."""
        if truth:
            found = sorted(self.true + self.null) if nulls else self.true
        else:
            found = _outside(self.true if nulls else sorted(self.true + self.null), self.term.kind)
        return NormalForm([{self.term: each} for each in _joined(found)], True)


def _test(node: Node) -> _Test | None:
    """What a node that depends on one column alone asks of it; None if that is not intervals."""
    if node.op in nodes.COMPARISONS:
        return _comparison(node)
    term = _term(node if node.op == "column" else node.args[0])
    if term is None:
        return None
    null, first, top = span_of(term.kind)
    match node.op:
        case "column":
            return _Test(term, [(1, 2)], [(null, first)])
        case "is null":
            return _Test(term, [(null, first)], [])
        case "isnan":
            return _Test(term, [(NOT_A_NUMBER, NOT_A_NUMBER + 1)], [])
        case "startswith":
            piece = node.args[1].value
            return _Test(term, [], [(null, top)]) if piece is None else _Test(term, [_prefix(piece)], [(null, first)])
        case "in":
            return _in(node, term)
    return None


def _term(node: Node) -> Term | None:
    if node.op == "column":
        return node
    if node.op == "widen" and node.args[0].op == "column":  # an integer is the same integer in a wider type
        return node if node.kind is AttrType.DOUBLE else node.args[0]
    return None


def _point(term: Term, value: Any) -> Interval | None:
    """The cuts before and after a value; None for the ends of the 64-bit integers, which `code` cannot tell apart."""
    if term.kind in TEXTS:
        text = _bytes(value)
        return (1, text, BEFORE), (1, text, AFTER)
    assert term.kind is not None
    at = code(value, term.kind)
    return (at, at + 1) if FIRST < at < TOP - 1 else None


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _comparison(node: Node) -> _Test | None:
    op, (a, b) = node.op, node.args
    if a.op == "literal":
        op, a, b = _MIRRORED.get(op, op), b, a
    term = _term(a)
    if term is None or b.op != "literal":
        return None
    null, first, top = span_of(term.kind)
    if b.value is None:
        return _Test(term, [(null, first)], []) if op == "<=>" else _Test(term, [], [(null, top)])
    point = _point(term, b.value)
    if point is None:
        return None
    before, after = point
    values: dict[str, list[Interval]] = {
        "=": [point],
        "<=>": [point],
        "<>": [(first, before), (after, top)],
        "<": [(first, before)],
        "<=": [(first, after)],
        ">": [(after, top)],
        ">=": [(before, top)],
    }
    found = [(low, high) for low, high in values[op] if low < high]
    return _Test(term, found, [] if op == "<=>" else [(null, first)])


def _in(node: Node, term: Term) -> _Test | None:
    """True if the value is in the list, else null if the value or one of the list is null, else false."""
    null, first, _ = span_of(term.kind)
    listed = [arg.value for arg in node.args[1:]]
    points = [_point(term, value) for value in listed if value is not None]
    found = sorted({point for point in points if point is not None})
    if len(found) < len(set(points)):
        return None
    return _Test(term, found, _outside(found, term.kind) if None in listed else [(null, first)])


def _like(node: Node, truth: bool, nulls: bool) -> NormalForm:
    """A pattern asks for a text, or for texts with a prefix, or for more than that."""
    text, pattern = node.args[0], node.value
    start = pattern[0] if pattern and isinstance(pattern[0], str) else ""
    literal = nodes.literal(start, AttrType.STRING)
    if len(pattern) < 2 and pattern in ((), (start,)):
        return _form(Node("=", AttrType.BOOLEAN, (text, literal)), truth, nulls)
    prefix = Node("startswith", AttrType.BOOLEAN, (text, literal))
    if pattern in ((start, nodes.ANY_MANY), (nodes.ANY_MANY,)):
        return _form(prefix, truth, nulls)
    return _form(prefix, True, nulls)._replace(exact=False) if truth and start else ANYTHING


def _prefix(piece: str | bytes) -> Interval:
    """The texts that begin with a piece."""
    low = _bytes(piece)
    high = low.rstrip(b"\xff")
    above = (1, high[:-1] + bytes([high[-1] + 1]), BEFORE) if high else TOP_TEXT
    return ((1, low, BEFORE) if low else FIRST_TEXT), above


def _outside(found: list[Interval], kind: AttrType | None) -> list[Interval]:
    """What lies between ascending intervals, and around them."""
    bottom, _, top = span_of(kind)
    ends = [bottom, *[cut for interval in found for cut in interval], top]
    return [(low, high) for low, high in zip(ends[::2], ends[1::2], strict=True) if low < high]


def _joined(found: list[Interval]) -> list[Interval]:
    """Ascending intervals, neighbours made one."""
    if all([one[1] < other[0] for one, other in pairwise(found)]):
        return found
    out = found[:1]
    for low, high in found[1:]:
        if low <= out[-1][1]:
            out[-1] = out[-1][0], max(high, out[-1][1])
        else:
            out.append((low, high))
    return out
