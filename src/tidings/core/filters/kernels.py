"""Evaluation of a filter over columns: whole arrays at a time, null where Spark has null.

Every operation is total: whatever the values, it yields a value or null, never an error. Comparison of doubles is
Spark's total order (NaN equals itself and is above all, -0.0 equals 0.0); strings and bytes compare by their bytes.
Results are Arrow arrays, or Arrow scalars where all operands are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidings.core.errors import BadInput
from tidings.core.filters import nodes
from tidings.core.filters.nodes import Node, Pattern
from tidings.core.filters.types import ARROW, SYSTEM, AttrType
from tidings.core.ids import NEVER
from tidings.core.rows import DATA, ArrowRows, CountedRows, Mask, Rows

Datum: TypeAlias = Any  # pa.Array or pa.Scalar: Arrow's functions take either
Columns: TypeAlias = Rows | pa.RecordBatch | pa.Table

_MICROS = 1_000_000
ROOM = 1 << 30  # bytes of text made in one go; ours, because Arrow's arrays of text end at twice this
_KINDS = pa.array(["data", "gc"])


class Frame:
    """The columns a filter may name, each made when it is first asked for."""

    def __init__(self, source: ArrowRows | pa.RecordBatch | pa.Table) -> None:
        self.source = source
        self._rows = source if isinstance(source, ArrowRows) else None
        self._batch = source.batch if isinstance(source, ArrowRows) else source
        self._made: dict[str, pa.Array] = {}
        self.count: int = self._batch.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return self._batch.nbytes  # type: ignore[no-any-return]

    def column(self, name: str, kind: AttrType) -> pa.Array:
        """A column in the Arrow type of its declaration; null where there is none of that name."""
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = self._make(name, kind)
        return found

    def _make(self, name: str, kind: AttrType) -> pa.Array:
        if self._rows is not None and name in SYSTEM and name != "key":
            return _of_rows(self._rows, name)
        at = self._batch.schema.get_field_index(name)
        if at < 0:
            if name in SYSTEM:
                raise BadInput(f"the filter names {name!r}, and these rows have no such column")
            return pa.nulls(self.count, ARROW[kind])
        found = self._batch.column(at)
        array = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
        if array.type.equals(ARROW[kind]):
            return array
        if name == "kind" and pa.types.is_integer(array.type):
            return _KINDS.take(pc.not_equal(array, DATA).cast(pa.int8()))
        try:
            return array.cast(ARROW[kind])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as why:
            raise BadInput(f"column {name!r} is {array.type}, not {kind} as declared: {why}") from why


def _of_rows(rows: ArrowRows, name: str) -> pa.Array:
    """A column that rows know without storing it for each of them."""
    if name == "seq":
        return pa.array(rows.numbers)
    if name == "kind":
        return _KINDS.take(pc.not_equal(rows.batch.column("kind"), DATA).cast(pa.int8()))
    numbers = rows.numbers
    starts = numbers.searchsorted([origin.lo for origin in rows.origins])
    stops = numbers.searchsorted([origin.hi for origin in rows.origins])
    which = np.full(len(numbers), -1)
    for i, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        which[start:stop] = i
    if name == "published_at":
        moments = [round(origin.at * _MICROS) for origin in rows.origins]
        values = pa.array(moments, ARROW[AttrType.TIMESTAMP])
    else:
        values = pa.array([getattr(origin, name) for origin in rows.origins], pa.string())
    return values.take(pa.array(which, mask=which < 0))


def framed(source: Columns) -> Frame | None:
    """The columns of rows; None if there are no rows that have any."""
    if isinstance(source, CountedRows):
        if source.count:
            raise BadInput("counted rows have no columns to filter by; use Arrow rows")
        return None
    assert isinstance(source, ArrowRows | pa.RecordBatch | pa.Table)
    return Frame(source)


def mask(root: Node, source: Columns) -> Mask:
    """Where a filter is true; where it is false or null a row does not pass."""
    frame = framed(source)
    return np.zeros(0, np.bool_) if frame is None else mask_in(root, frame)


def mask_in(root: Node, frame: Frame) -> Mask:
    """The same for rows whose columns other filters look at too."""
    source = frame.source
    try:
        if frame.count > 1 and frame.nbytes * root.growth > ROOM:
            return _by_halves(root, source, frame.count)
        found = run(root, frame)
    except pa.ArrowException:  # Arrow has limits of its own; what a row yields must not depend on its neighbours
        return _by_halves(root, source, frame.count) if frame.count > 1 else np.zeros(frame.count, np.bool_)
    if isinstance(found, pa.Scalar):
        return np.full(frame.count, found.as_py() is True)
    passed: Mask = found.fill_null(False).to_numpy(zero_copy_only=False)
    return passed


def _by_halves(root: Node, source: ArrowRows | pa.RecordBatch | pa.Table, count: int) -> Mask:
    """The same in two steps: less is made at a time."""
    half = count // 2
    if isinstance(source, ArrowRows):
        middle = int(source.numbers[half])
        parts = [source.slice(0, middle), source.slice(middle, NEVER)]
    else:
        parts = [source.slice(0, half), source.slice(half)]
    return np.concatenate([mask(root, part) for part in parts])


def run(node: Node, frame: Frame) -> Datum:
    """What a node yields for every row, or one scalar for all of them."""
    if node.op == "column":
        assert node.kind is not None
        return frame.column(node.value, node.kind)
    if node.op == "literal":
        return pa.scalar(node.value, ARROW[node.kind or AttrType.BOOLEAN])
    return KERNELS[node.op](node, [run(arg, frame) for arg in node.args])


# --- comparison ---------------------------------------------------------------------------------------------


def _equal(a: Datum, b: Datum) -> Datum:
    same = pc.equal(a, b)
    if not (_may_be_nan(a) and _may_be_nan(b)):
        return same
    return pc.or_(same, pc.and_(pc.is_nan(a), pc.is_nan(b)))


def _less(a: Datum, b: Datum) -> Datum:
    below = pc.less(a, b)
    if not _may_be_nan(b):
        return below
    return pc.or_(below, pc.and_(pc.is_nan(b), pc.invert(pc.is_nan(a))))


def _may_be_nan(values: Datum) -> bool:
    if not pa.types.is_floating(values.type):
        return False
    return not isinstance(values, pa.Scalar) or not values.is_valid or bool(np.isnan(values.as_py()))


def _null_safe_equal(a: Datum, b: Datum) -> Datum:
    return pc.or_(pc.fill_null(_equal(a, b), False), pc.and_(pc.is_null(a), pc.is_null(b)))


def _comparison(node: Node, args: list[Datum]) -> Datum:
    a, b = args
    match node.op:
        case "=":
            return _equal(a, b)
        case "<>":
            return pc.invert(_equal(a, b))
        case "<":
            return _less(a, b)
        case ">":
            return _less(b, a)
        case "<=":
            return pc.invert(_less(b, a))
        case ">=":
            return pc.invert(_less(a, b))
    return _null_safe_equal(a, b)


def _between(node: Node, args: list[Datum]) -> Datum:
    value, low, high = args
    return pc.and_kleene(pc.invert(_less(value, low)), pc.invert(_less(high, value)))


def _in(node: Node, args: list[Datum]) -> Datum:
    """True if the value is in the list, else null if the value or one of the list is null, else false."""
    value, listed = args[0], [item for item in args[1:] if item.is_valid]
    kind = value.type
    if pa.types.is_floating(kind):
        listed = [pa.scalar(item.as_py() + 0.0, kind) for item in listed]  # Arrow's set tells -0.0 from 0.0
        value = pc.add(value, 0.0)
    found = pc.is_in(value, value_set=pa.array([item.as_py() for item in listed], kind))
    known = pc.is_valid(value)
    if len(listed) < len(args) - 1:
        known = pc.and_(known, found)
    return pc.if_else(known, found, pa.scalar(None, pa.bool_()))


# --- logic --------------------------------------------------------------------------------------------------


def _chain(node: Node, args: list[Datum]) -> Datum:
    join = pc.and_kleene if node.op == "and" else pc.or_kleene
    total = args[0]
    for arg in args[1:]:
        total = join(total, arg)
    return total


def _is(node: Node, args: list[Datum]) -> Datum:
    if node.op == "is null":
        return pc.is_null(args[0])
    return pc.fill_null(args[0] if node.op == "is true" else pc.invert(args[0]), False)


def _case(node: Node, args: list[Datum]) -> Datum:
    """The result after the first condition that is true; null is not true."""
    found = args[-1]
    for at in range(len(args) - 3, -1, -2):
        found = pc.if_else(pc.fill_null(args[at], False), args[at + 1], found)
    return found


# --- numbers ------------------------------------------------------------------------------------------------


def _widen(node: Node, args: list[Datum]) -> Datum:
    assert node.kind is not None
    return args[0].cast(ARROW[node.kind], safe=False)  # to double: the nearest, as in Spark


def _negative(node: Node, args: list[Datum]) -> Datum:
    return pc.negate(args[0])


def _isnan(node: Node, args: list[Datum]) -> Datum:
    return pc.fill_null(pc.is_nan(args[0]), False)


def _add(a: Any, b: Any) -> tuple[Any, Any]:
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


def _subtract(a: Any, b: Any) -> tuple[Any, Any]:
    rest = a - b
    return rest, ((a ^ b) & (a ^ rest)) < 0


def _multiply(a: Any, b: Any) -> tuple[Any, Any]:
    product = a * b
    lowest = np.iinfo(product.dtype).min
    divisor = np.where((a == 0) | (a == -1), 1, a)
    wrong = (product // divisor != b) & (a != 0) & (a != -1)
    return product, wrong | ((a == -1) & (b == lowest))


EXACT: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "try_add": _add,
    "try_subtract": _subtract,
    "try_multiply": _multiply,
}
ROUNDED = {"try_add": pc.add, "try_subtract": pc.subtract, "try_multiply": pc.multiply}


def _arithmetic(node: Node, args: list[Datum]) -> Datum:
    """Integers: null on overflow. Doubles: as the hardware does it."""
    if node.kind is AttrType.DOUBLE:
        return ROUNDED[node.op](*args)
    values, nulls = _plain(args)
    with np.errstate(over="ignore"):
        result, overflow = EXACT[node.op](*values)
    return _with_nulls(result, nulls | overflow, node, args)


def _divide(node: Node, args: list[Datum]) -> Datum:
    """Null where the divisor is zero."""
    values, nulls = _plain(args)
    with np.errstate(all="ignore"):
        result = values[0] / values[1]
    return _with_nulls(result, nulls | (values[1] == 0), node, args)


def _plain(args: list[Datum]) -> tuple[list[NDArray[Any]], NDArray[np.bool_]]:
    """Operands as numpy arrays (of length 1 for constants), zero where null, and where any is null."""
    values, nulls = [], np.zeros(1, np.bool_)
    for arg in args:
        array = pa.array([arg.as_py()], arg.type) if isinstance(arg, pa.Scalar) else arg
        values.append(array.fill_null(0).to_numpy())
        nulls = nulls | array.is_null().to_numpy(zero_copy_only=False)
    return values, nulls


def _with_nulls(result: NDArray[Any], nulls: NDArray[np.bool_], node: Node, args: list[Datum]) -> Datum:
    assert node.kind is not None
    found = pa.array(result, ARROW[node.kind], mask=np.broadcast_to(nulls, result.shape))
    return found[0] if all(isinstance(arg, pa.Scalar) for arg in args) else found


def _try_cast(node: Node, args: list[Datum]) -> Datum:
    """Numbers that do not fit, and text that is no whole number, become null; fractions are cut off."""
    (arg,) = args
    assert node.kind is not None
    target = ARROW[node.kind]
    if pa.types.is_string(arg.type):
        return _parsed(arg, node)
    if node.kind is AttrType.DOUBLE or arg.type == target or pa.types.is_int32(arg.type):
        return arg.cast(target, safe=False)
    (values,), nulls = _plain([arg])
    bounds = np.iinfo(target.to_pandas_dtype())
    whole = np.trunc(values) if values.dtype.kind == "f" else values
    fits = (whole >= bounds.min) & (whole <= bounds.max)
    result = np.where(fits, whole, 0)
    if values.dtype.kind == "f" and node.kind is AttrType.BIGINT:
        top = result >= 2.0**63  # the bound is this as a double, so Spark lets it pass and saturates
        result = np.where(top, bounds.max, np.where(top, 0.0, result).astype(np.int64))
    return _with_nulls(result.astype(target.to_pandas_dtype()), nulls | ~fits, node, args)


_BLANK = "".join(map(chr, [*range(0x21), 0x7F]))
"""What Spark cuts off both ends of a number's text: space and control characters."""


def _parsed(arg: Datum, node: Node) -> Datum:
    """Whole numbers in text, each distinct text looked at once."""
    bounds = np.iinfo(ARROW[node.kind or AttrType.BIGINT].to_pandas_dtype())

    def number(text: str | None) -> int | None:
        digits = "" if text is None else text.strip(_BLANK)
        bare = digits[1:] if digits[:1] in ("+", "-") else digits
        if not (bare.isascii() and bare.isdigit()) or len(bare.lstrip("0")) > 19:
            return None
        value = int(digits)
        return value if bounds.min <= value <= bounds.max else None

    return _each(arg, number, ARROW[node.kind or AttrType.BIGINT])


# --- text ---------------------------------------------------------------------------------------------------


def _each(arg: Datum, function: Callable[[Any], Any], kind: pa.DataType) -> Datum:
    """A Python function of each distinct value."""
    if isinstance(arg, pa.Scalar):
        return pa.scalar(function(arg.as_py()), kind)
    encoded = arg.dictionary_encode()
    return pa.array([function(value) for value in encoded.dictionary.to_pylist()], kind).take(encoded.indices)


def _change_case(node: Node, args: list[Datum]) -> Datum:
    """Full Unicode mapping, of which Arrow has only the part for single characters."""
    (arg,) = args
    ascii_only = pc.all(pc.string_is_ascii(arg)).as_py() if not isinstance(arg, pa.Scalar) else False
    if node.op == "lower":
        return pc.ascii_lower(arg) if ascii_only else _each(arg, lambda s: None if s is None else s.lower(), arg.type)
    return pc.ascii_upper(arg) if ascii_only else _each(arg, lambda s: None if s is None else s.upper(), arg.type)


def _length(node: Node, args: list[Datum]) -> Datum:
    """Code points of a string, bytes of a binary."""
    (arg,) = args
    return (pc.utf8_length if pa.types.is_string(arg.type) else pc.binary_length)(arg)


_TRIMS = {"trim": pc.utf8_trim, "ltrim": pc.utf8_ltrim, "rtrim": pc.utf8_rtrim}


def _trim(node: Node, args: list[Datum]) -> Datum:
    """Spaces only, as in Spark."""
    return _TRIMS[node.op](args[0], characters=" ")


def _concat(node: Node, args: list[Datum]) -> Datum:
    return pc.binary_join_element_wise(*args, "", null_handling="emit_null")


def _substring(node: Node, args: list[Datum]) -> Datum:
    """From a place counted from 1, or from the end if negative; 0 is the first too."""
    place = node.args[1].value
    length = node.args[2].value if len(node.args) > 2 else None
    start = place - 1 if place > 0 else place
    stop = None if length is None else start + max(length, 0)
    if start < 0 and stop is not None and stop >= 0:
        stop = None
    if length is not None and length <= 0:
        start = stop = 0
    return pc.utf8_slice_codeunits(args[0], start, stop)


_FINDERS = {"startswith": pc.starts_with, "endswith": pc.ends_with, "contains": pc.match_substring}


def _find(node: Node, args: list[Datum]) -> Datum:
    text, piece = args[0], args[1].as_py()
    if piece is None:
        return pa.scalar(None, pa.bool_())
    return _FINDERS[node.op](text, piece)


def _like(node: Node, args: list[Datum]) -> Datum:
    text, pattern = args[0], node.value
    match pattern:
        case ():
            return pc.equal(text, "")
        case (str(whole),):
            return pc.equal(text, whole)
        case (str(piece), nodes.ANY_MANY):
            return pc.starts_with(text, piece)
        case (nodes.ANY_MANY, str(piece)):
            return pc.ends_with(text, piece)
        case (nodes.ANY_MANY, str(piece), nodes.ANY_MANY):
            return pc.match_substring(text, piece)
        case _:
            return pc.match_substring_regex(text, pattern_regex(pattern))


def pattern_regex(pattern: Pattern) -> str:
    """A pattern in the syntax of Arrow's regular expressions (RE2)."""
    out = []
    for part in pattern:
        if isinstance(part, str):
            out += [one if one.isalnum() else f"\\x{{{ord(one):x}}}" for one in part]
        else:
            out.append("." if part == nodes.ANY_ONE else ".*")
    return f"(?s)\\A{''.join(out)}\\z"


KERNELS: Mapping[str, Callable[[Node, list[Datum]], Datum]] = {
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">=", "<=>"), _comparison),
    **dict.fromkeys(("and", "or"), _chain),
    **dict.fromkeys(("is null", "is true", "is false"), _is),
    **dict.fromkeys(("try_add", "try_subtract", "try_multiply"), _arithmetic),
    **dict.fromkeys(("lower", "upper"), _change_case),
    **dict.fromkeys(("trim", "ltrim", "rtrim"), _trim),
    **dict.fromkeys(("startswith", "endswith", "contains"), _find),
    "not": lambda node, args: pc.invert(args[0]),
    "between": _between,
    "in": _in,
    "like": _like,
    "case": _case,
    "coalesce": lambda node, args: pc.coalesce(*args),
    "widen": _widen,
    "negative": _negative,
    "isnan": _isnan,
    "try_divide": _divide,
    "try_cast": _try_cast,
    "length": _length,
    "concat": _concat,
    "substring": _substring,
}
"""What each operation does."""
