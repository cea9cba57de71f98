"""SQL text to a typed tree: sqlglot parses, a white list of syntax is translated, everything else is refused.

sqlglot is asked for operators and their precedence alone: its own functions are switched off, so a call arrives under
the name that was written, and its reading of literals is not used: strings are unescaped here as Spark does it. A
node of the syntax tree may have only the parts that its translation looks at; what sqlglot learns to parse tomorrow
is refused, not ignored. Where Spark and sqlglot bind differently (comparisons in a row) parentheses are demanded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from tidings.core.errors import BadFilter
from tidings.core.filters import nodes
from tidings.core.filters.kernels import pattern_regex
from tidings.core.filters.literals import DATE, TIMESTAMP, days, instant, unescape
from tidings.core.filters.nodes import Node, column, literal
from tidings.core.filters.types import SYSTEM, AttrType, suggestion

MAX_TEXT = 64 << 10  # bytes; ours, because a filter travels with every subscription
MAX_DEPTH = 24  # ours, because sqlglot needs about 23 Python frames per level, and the caller has some too
MAX_GROWTH = (
    32  # ours, because of the largest row (8 MiB) this makes a text that fits into memory, and into Arrow's 2 GiB
)
MAX_NODES = 10_000  # ours, because a list of so many literals fits MAX_TEXT and is evaluated in one pass
MAX_DIGITS = 38  # of Spark's decimals

Tree = Any  # a sqlglot expression; its module is imported late
NUMBERS = (AttrType.INT, AttrType.BIGINT, AttrType.DOUBLE)
INTS = {AttrType.INT: 31, AttrType.BIGINT: 63}
TEXTS = (AttrType.STRING, AttrType.BINARY)


class Sqlglot(NamedTuple):
    """What is used of sqlglot."""

    exp: Any
    tokenize: Callable[[str], list[Any]]
    parse: Callable[[list[Any], str], list[Any]]
    errors: tuple[type[Exception], ...]


@cache
def sqlglot() -> Sqlglot:
    """sqlglot's Spark dialect without its functions; imported on first use, because that takes a tenth of a second."""
    from sqlglot import exp
    from sqlglot.dialects.spark import Spark
    from sqlglot.errors import ParseError, TokenError

    class Parser(Spark.Parser):  # type: ignore[misc, valid-type]
        FUNCTIONS: dict[str, Any] = {}  # noqa: RUF012
        FUNCTION_PARSERS = {  # noqa: RUF012
            name: parser for name, parser in Spark.Parser.FUNCTION_PARSERS.items() if name in ("CAST", "TRY_CAST")
        }
        NO_PAREN_FUNCTIONS: dict[Any, Any] = {}  # noqa: RUF012
        STRICT_CAST = True  # or CAST and TRY_CAST would look alike

    dialect = Spark()

    def parse(tokens: list[Any], text: str) -> list[Any]:
        return list(Parser(dialect=dialect).parse_into(exp.Condition, tokens, text))

    return Sqlglot(exp, dialect.tokenize, parse, (ParseError, TokenError))


def read(text: str, schema: Mapping[str, AttrType]) -> Node:
    """The tree of a filter over these columns, of type boolean; `BadFilter` says what is wrong and where."""
    check_size(text)
    try:
        tokens = sqlglot().tokenize(text)
        check_nesting(tokens, text)
        trees = sqlglot().parse(tokens, text)
    except sqlglot().errors as why:
        raise _unreadable(why, text) from None
    except RecursionError:
        raise BadFilter("nested too deeply; use fewer parentheses") from None
    if not trees or trees[0] is None:
        raise BadFilter("empty; write a condition such as price > 3")
    if len(trees) > 1:
        raise BadFilter("one condition is enough; no semicolon", *_place(text, text.find(";"), 1))
    return Reader(text, schema).boolean(trees[0])


def check_size(text: str) -> None:
    """Refuse what is too long to look at."""
    size = len(text.encode(errors="replace"))
    if size > MAX_TEXT:
        raise BadFilter(f"{size} bytes of text are more than the {MAX_TEXT} allowed")


def check_nesting(tokens: Sequence[Any], text: str) -> None:
    """Refuse what would make a parser, this one or Spark's, recurse too deeply."""
    depth = prefixes = 0
    for token in tokens:
        word = token.token_type.name
        if word in ("L_PAREN", "L_BRACKET", "L_BRACE", "CASE"):
            depth += 1
        elif word in ("R_PAREN", "R_BRACKET", "R_BRACE", "END"):
            depth = max(depth - 1, 0)
        prefixes = prefixes + 1 if word in ("NOT", "DASH", "PLUS", "TILDE") else 0
        if depth + prefixes > MAX_DEPTH:
            why = f"nested more than {MAX_DEPTH} deep; use fewer parentheses"
            raise BadFilter(why, *_place(text, token.start, token.end + 1 - token.start))


_CLOSED = re.compile(r"""(?:[^'"`]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`)*""", re.DOTALL)
"""Text up to a quote that is not closed."""


def _unreadable(error: Any, text: str) -> BadFilter:
    """What sqlglot could not parse, at the place it names."""
    found = getattr(error, "errors", None)
    if not found:
        start = _CLOSED.match(text).end()  # type: ignore[union-attr]
        return BadFilter("this quote or comment is not closed", *_place(text, start, len(text) - start))
    first = found[0]
    piece, line, end = first.get("highlight") or "", first.get("line") or 1, first.get("col") or 1
    missing = "Required keyword" in first["description"]
    why = "something is missing here" if missing else "this does not belong here"
    return BadFilter(why, line, max(end - len(piece) + 1, 1), piece)


def _place(text: str, start: int, length: int) -> tuple[int, int, str]:
    """Line, column and piece of text."""
    start = max(start, 0)
    line = text.count("\n", 0, start) + 1
    piece = text[start : start + length]
    return line, start - text.rfind("\n", 0, start), piece if len(piece) <= 80 else piece[:77] + "..."


class Reader:
    """Translates syntax trees of one text."""

    def __init__(self, text: str, schema: Mapping[str, AttrType]) -> None:
        self.text = text
        self.columns = {**schema, **SYSTEM}
        self.folded = {name.lower(): name for name in self.columns}
        self.count = 0
        self.exp = sqlglot().exp

    # --- errors ---------------------------------------------------------------------------------------------

    def refuse(self, tree: Tree, why: str) -> NoReturn:
        """Raise at the text that a tree came from."""
        while tree is not None:
            spots = [node.meta for node in tree.walk() if "start" in node.meta]
            if spots:
                start = min(spot["start"] for spot in spots)
                end = max(spot["end"] for spot in spots) + 1
                while self.text.count("(", start, end) > self.text.count(")", start, end):
                    closing = self.text.find(")", end)
                    if closing < 0 or self.text[end:closing].strip():
                        break
                    end = closing + 1
                raise BadFilter(why, *_place(self.text, start, end - start))
            tree = tree.parent
        raise BadFilter(why, *_place(self.text, 0, len(self.text)))

    def only(self, tree: Tree, *names: str) -> None:
        """Refuse a tree that has other parts than those named."""
        for name, part in tree.args.items():
            if part and name not in names:
                self.refuse(tree, f"{name.replace('_', ' ')} is not part of the filter language here")

    # --- any expression -------------------------------------------------------------------------------------

    def boolean(self, tree: Tree) -> Node:
        """A condition."""
        node = self.node(tree)
        if node.kind not in (AttrType.BOOLEAN, None):
            self.refuse(tree, f"this is {node.kind}, and a condition is needed")
        return node

    def node(self, tree: Tree) -> Node:
        """Whatever a tree says, if it is in the language."""
        self.count += 1
        if self.count > MAX_NODES:
            self.refuse(tree, f"more than {MAX_NODES} operations and literals")
        name = type(tree).__name__
        translate = TRANSLATIONS.get(name)
        if translate is None:
            self.refuse(tree, REFUSALS.get(name, f"{name} is not part of the filter language"))
        return translate(self, tree)

    def operand(self, tree: Tree) -> Node:
        """An operand of a comparison; a condition there needs parentheses, because Spark binds it differently."""
        if type(tree).__name__ in CONDITIONS:
            self.refuse(tree, "a condition inside a comparison needs parentheses")
        return self.node(tree)

    def paren(self, tree: Tree) -> Node:
        self.only(tree, "this")
        return self.node(tree.this)

    def column(self, tree: Tree) -> Node:
        self.only(tree, "this")
        if type(tree.this).__name__ != "Identifier":
            self.refuse(tree, "name one attribute")
        name = tree.this.this
        found = self.folded.get(name.lower())
        if found is None:
            known = ", ".join(self.columns)
            self.refuse(tree, f"unknown attribute {name!r}{suggestion(name.lower(), self.folded)}; there are {known}")
        return column(found, self.columns[found])

    # --- literals -------------------------------------------------------------------------------------------

    def literal(self, tree: Tree) -> Node:
        if tree.args.get("is_string"):
            return literal(self.string(tree), AttrType.STRING)
        return self.number(tree, tree.this)

    def string(self, tree: Tree) -> str:
        """A string literal, unescaped as Spark does it."""
        if "start" not in tree.meta:
            self.refuse(tree, "this kind of string is not part of the filter language")
        raw = self.text[tree.meta["start"] : tree.meta["end"] + 1]
        if len(raw) < 2 or raw[0] not in "'\"" or raw[-1] != raw[0]:
            self.refuse(tree, "write strings in single quotes")
        try:
            value = unescape(raw[1:-1], raw[0])
            value.encode()
        except (UnicodeError, ValueError):
            self.refuse(tree, "this string is not valid Unicode")
        return value

    def number(self, tree: Tree, digits: str) -> Node:
        """A number without a suffix: whole, in Spark's decimals (kept as `DECIMAL`), or with an exponent a double."""
        if re.fullmatch(r"-?\d+", digits):
            value = int(digits) if len(digits) < 40 else 1 << 99
            for kind, bits in INTS.items():
                if -(1 << bits) <= value < 1 << bits:
                    return literal(value, kind)
            self.refuse(tree, "this number does not fit a bigint; write it as a double, with a D after it")
        if re.fullmatch(r"-?\d*\.\d*", digits) and len(digits.strip("-")) <= MAX_DIGITS:
            return Node(DECIMAL, AttrType.DOUBLE, (), float(digits) or 0.0)
        if re.fullmatch(r"-?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", digits):
            return self.double(tree, digits)
        self.refuse(tree, "this is not a number of the filter language")

    def double(self, tree: Tree, digits: str) -> Node:
        value = float(digits)
        if value in (float("inf"), float("-inf")):
            self.refuse(tree, "this number does not fit a double")
        return literal(value, AttrType.DOUBLE)

    def negative(self, tree: Tree) -> Node:
        """A minus sign: part of a number, or of a double; of an integer it could overflow."""
        self.only(tree, "this")
        inner = tree.this
        kind = type(inner).__name__
        if kind == "Literal" and not inner.args.get("is_string"):
            return self.number(inner, "-" + inner.this)
        if kind == "Cast" and self.suffixed(inner):
            return self.typed_number(inner, "-")
        node = self.operand(inner)
        if node.kind is AttrType.DOUBLE and node.op in ("literal", DECIMAL):
            return Node(node.op, node.kind, (), -node.value)
        if node.kind is not AttrType.DOUBLE:
            self.refuse(tree, f"minus {node.kind or 'null'} may overflow; write try_subtract(0, ...)")
        return Node("negative", AttrType.DOUBLE, (node,))

    def suffixed(self, tree: Tree) -> bool:
        """Whether a cast is a number with a suffix such as 5L."""
        inner, meta = tree.this, tree.this.meta
        if type(inner).__name__ != "Literal" or inner.args.get("is_string") or "end" not in meta:
            return False
        return self.text[meta["end"]].isalpha()

    def typed_number(self, tree: Tree, sign: str = "") -> Node:
        digits, suffix = sign + tree.this.this, self.text[tree.this.meta["end"]].upper()
        if suffix == "D":
            return self.double(tree, digits)
        if suffix == "L" and re.fullmatch(r"-?\d{1,19}", digits) and -(1 << 63) <= int(digits) < 1 << 63:
            return literal(int(digits), AttrType.BIGINT)
        self.refuse(tree, "a number may end in L (bigint) or D (double)")

    def cast(self, tree: Tree) -> Node:
        """Only what is a literal: 5L, DATE'...', TIMESTAMP'...'."""
        self.only(tree, "this", "to")
        if self.suffixed(tree):
            return self.typed_number(tree)
        target = tree.args["to"].this.name
        if type(tree.this).__name__ == "Literal" and tree.this.args.get("is_string"):
            if target == "DATE":
                return self.moment(tree, DATE, AttrType.DATE)
            if target in ("TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMP"):
                return self.moment(tree, TIMESTAMP, AttrType.TIMESTAMP)
        self.refuse(tree, "a cast may fail; use try_cast")

    def moment(self, tree: Tree, form: re.Pattern[str], kind: AttrType) -> Node:
        text = self.string(tree.this)
        found = form.fullmatch(text)
        if found is None:
            zone = " and a zone: 2026-05-04 12:00:00Z or +02:00" if kind is AttrType.TIMESTAMP else ": 2026-05-04"
            self.refuse(tree, f"{text!r} is not a {kind}; write year-month-day{' time' * (len(zone) > 20)}{zone}")
        try:
            return literal(instant(found) if kind is AttrType.TIMESTAMP else days(found["day"]), kind)
        except ValueError:
            self.refuse(tree, f"{text!r} is not on the calendar")

    # --- types ----------------------------------------------------------------------------------------------

    def common(self, tree: Tree, found: Sequence[Node]) -> tuple[AttrType | None, list[Node]]:
        """The type that operands have in common, and the operands in it."""
        kinds = {node.kind for node in found if node.kind is not None}
        if AttrType.BINARY in kinds and kinds <= set(TEXTS):  # text beside a key is the key's bytes
            found = [_as_bytes(node) for node in found]
            kinds = {node.kind for node in found if node.kind is not None}
        if len(kinds) > 1 and not kinds <= set(NUMBERS):
            names = " and ".join(sorted(kinds))
            self.refuse(tree, f"{names} do not go together{_type_hint(kinds)}")
        exact = {node.kind for node in found if node.op != DECIMAL and node.kind is not None}
        if any(node.op == DECIMAL for node in found) and AttrType.DOUBLE not in exact:
            self.refuse(tree, "a decimal goes with a double only; put a D after it to compare as doubles")
        kind = max(kinds, key=lambda kind: NUMBERS.index(kind) if kind in NUMBERS else 0, default=None)
        return kind, [_widened(node, kind) for node in found]

    def comparison(self, tree: Tree) -> Node:
        self.only(tree, "this", "expression")
        operands = [self.operand(tree.this), self.operand(tree.expression)]
        _, args = self.common(tree, operands)
        op = COMPARISONS[type(tree).__name__]
        node = Node("<=>" if op == "<!=>" else op, AttrType.BOOLEAN, tuple(args))
        return Node("not", AttrType.BOOLEAN, (node,)) if op == "<!=>" else node

    def between(self, tree: Tree) -> Node:
        self.only(tree, "this", "low", "high")
        value, low, high = [self.operand(tree.args[name]) for name in ("this", "low", "high")]
        (kind, above), (other, below) = self.common(tree, [value, low]), self.common(tree, [value, high])
        if kind is other:
            return Node("between", AttrType.BOOLEAN, (*above, below[1]))
        ends = Node(">=", AttrType.BOOLEAN, tuple(above)), Node("<=", AttrType.BOOLEAN, tuple(below))
        return Node("and", AttrType.BOOLEAN, ends)  # each bound is compared in its own type

    def membership(self, tree: Tree) -> Node:
        if tree.args.get("query"):
            self.refuse(tree, REFUSALS["Subquery"])
        self.only(tree, "this", "expressions")
        if not tree.expressions:
            self.refuse(tree, "the list is empty")
        value = self.operand(tree.this)
        listed = [self.node(item) for item in tree.expressions]
        for item, node in zip(tree.expressions, listed, strict=True):
            if node.op not in ("literal", DECIMAL):
                self.refuse(item, "a list holds literals only; join comparisons with OR")
        kind, args = self.common(tree, [value, *listed])
        zero = next((item for item in args[1:] if kind is AttrType.DOUBLE and item.value == 0.0), None)
        if zero is None:
            return Node("in", AttrType.BOOLEAN, tuple(args))
        # a long list becomes a hash set in Spark, which tells -0.0 from 0.0; a comparison does not
        equal = Node("=", AttrType.BOOLEAN, (args[0], literal(0.0, kind)))
        rest = [item for item in args[1:] if item.value != 0.0]
        return Node("or", AttrType.BOOLEAN, (equal, Node("in", AttrType.BOOLEAN, (args[0], *rest)))) if rest else equal

    # --- logic ----------------------------------------------------------------------------------------------

    def chain(self, tree: Tree) -> Node:
        """AND and OR, however many in a row, without recursion."""
        kind = type(tree)
        parts: list[Tree] = []
        todo = [tree]
        while todo:
            one = todo.pop()
            if type(one) is kind:
                self.only(one, "this", "expression")
                todo += [one.expression, one.this]
            else:
                parts.append(one)
        op = kind.__name__.lower()
        args: list[Node] = []
        for part in parts:
            node = self.boolean(part)
            args += node.args if node.op == op else [node]
        return Node(op, AttrType.BOOLEAN, tuple(args))

    def negation(self, tree: Tree) -> Node:
        self.only(tree, "this")
        return Node("not", AttrType.BOOLEAN, (self.boolean(tree.this),))

    def test(self, tree: Tree) -> Node:
        """IS NULL, IS TRUE, IS FALSE."""
        self.only(tree, "this", "expression")
        kind = type(tree.expression).__name__
        if kind == "Null":
            return Node("is null", AttrType.BOOLEAN, (_settled(self.operand(tree.this)),))
        if kind != "Boolean":
            self.refuse(tree, "after IS comes NULL, TRUE or FALSE")
        if type(tree.this).__name__ in CONDITIONS:
            self.refuse(tree.this, "a condition inside a comparison needs parentheses")
        op = "is true" if tree.expression.this else "is false"
        return Node(op, AttrType.BOOLEAN, (self.boolean(tree.this),))

    def like(self, tree: Tree, escape: str = "\\") -> Node:
        self.only(tree, "this", "expression", "negate")
        text = self.operand(tree.this)
        self.need(tree.this, text, AttrType.STRING)
        if type(tree.expression).__name__ != "Literal" or not tree.expression.args.get("is_string"):
            self.refuse(tree.expression, "the pattern must be a string literal")
        try:
            pattern = nodes.parse_pattern(self.string(tree.expression), escape)
            check_pattern(pattern)
        except ValueError as why:
            self.refuse(tree.expression, str(why))
        node = Node("like", AttrType.BOOLEAN, (_typed(text, AttrType.STRING),), pattern)
        return Node("not", AttrType.BOOLEAN, (node,)) if tree.args.get("negate") else node

    def escaped(self, tree: Tree) -> Node:
        self.only(tree, "this", "expression")
        if type(tree.this).__name__ != "Like" or type(tree.expression).__name__ != "Literal":
            self.refuse(tree, "ESCAPE goes with LIKE and a string of one character")
        escape = self.string(tree.expression)
        if len(escape) != 1 or ord(escape) > 0xFFFF:
            self.refuse(tree.expression, "the escape character must be one character")
        return self.like(tree.this, escape)

    def choice(self, tree: Tree) -> Node:
        """CASE, with or without a value to compare."""
        self.only(tree, "this", "ifs", "default")
        args: list[Node] = []
        for arm in tree.args["ifs"]:
            self.only(arm, "this", "true")
            args += [self.when(tree, arm.this), self.node(arm.args["true"])]
        default = tree.args.get("default")
        return self.chosen(tree, [*args, self.node(default) if default is not None else literal(None, None)])

    def when(self, tree: Tree, condition: Tree) -> Node:
        if tree.this is None:
            return self.boolean(condition)
        _, args = self.common(condition, [self.node(tree.this), self.node(condition)])
        return Node("=", AttrType.BOOLEAN, tuple(args))

    def either(self, tree: Tree) -> Node:
        """IF(condition, then, else)."""
        self.only(tree, "this", "true", "false")
        if tree.args.get("false") is None:
            self.refuse(tree, "if takes three arguments: condition, then, else")
        parts = [self.boolean(tree.this), self.node(tree.args["true"]), self.node(tree.args["false"])]
        return self.chosen(tree, parts)

    def chosen(self, tree: Tree, args: list[Node]) -> Node:
        results = [*args[1:-1:2], args[-1]]
        kind, results = self.common(tree, results)
        args[1:-1:2], args[-1] = results[:-1], results[-1]
        return Node("case", kind, tuple(args))

    # --- functions ------------------------------------------------------------------------------------------

    def call(self, tree: Tree) -> Node:
        self.only(tree, "this", "expressions")
        name = str(tree.this).lower()
        name = SYNONYMS.get(name, name)
        function = FUNCTIONS.get(name)
        if function is None:
            self.refuse(tree, _why_no_function(name))
        build, least, most = function
        if not least <= len(tree.expressions) <= most:
            wanted = str(least) if least == most else f"{least} or more" if most > 99 else f"{least} to {most}"
            self.refuse(tree, f"{name} takes {wanted} arguments, not {len(tree.expressions)}")
        return build(self, tree, name, [self.node(arg) for arg in tree.expressions])

    def need(self, tree: Tree, node: Node, *kinds: AttrType) -> None:
        """Refuse an operand of another type."""
        if node.kind not in (*kinds, None):
            self.refuse(tree, f"this is {node.kind}, and {' or '.join(kinds)} is needed")

    def need_literal(self, tree: Tree, node: Node) -> None:
        if node.op != "literal":
            self.refuse(tree, "this argument must be a literal")

    def pipes(self, tree: Tree) -> Node:
        """a || b || c, without recursion."""
        parts: list[Tree] = []
        while type(tree).__name__ == "DPipe":
            self.only(tree, "this", "expression", "safe")
            parts.append(tree.expression)
            tree = tree.this
        parts = [tree, *reversed(parts)]
        args = [self.operand(part) for part in parts]
        for part, node in zip(parts, args, strict=True):
            self.need(part, node, AttrType.STRING)
        return _strings("concat", args)

    def try_cast(self, tree: Tree) -> Node:
        self.only(tree, "this", "to", "safe")
        target = {"INT": AttrType.INT, "BIGINT": AttrType.BIGINT, "DOUBLE": AttrType.DOUBLE}.get(
            tree.args["to"].this.name
        )
        node = self.node(tree.this)
        fine = node.kind in NUMBERS or (node.kind is AttrType.STRING and target in INTS)
        if target is None or not fine or node.op == DECIMAL:
            self.refuse(tree, "try_cast makes int, bigint or double of numbers, and int or bigint of strings")
        return Node("try_cast", target, (node,))


DECIMAL = "decimal"  # the operation of a literal such as 0.5 until it meets a double


def check_pattern(pattern: nodes.Pattern) -> None:
    """Refuse a pattern that is too large to match by."""
    try:
        pc.match_substring_regex(pa.array([""]), pattern_regex(pattern))
    except pa.ArrowInvalid:
        raise ValueError("this pattern is too large") from None


def _as_bytes(node: Node) -> Node:
    if node.op == "literal" and node.kind is AttrType.STRING:
        return literal(None if node.value is None else node.value.encode(), AttrType.BINARY)
    return node


def _widened(node: Node, kind: AttrType | None) -> Node:
    """A node in a type that holds all its values."""
    node = _settled(node)
    if node.kind is None:
        return literal(None, kind)
    if node.kind is kind or kind is None:
        return node
    if node.op == "literal":
        return literal(float(node.value) if kind is AttrType.DOUBLE else node.value, kind)
    return Node("widen", kind, node.args if node.op == "widen" else (node,))


def _settled(node: Node) -> Node:
    """A decimal that met no double is one by itself."""
    return literal(node.value, AttrType.DOUBLE) if node.op == DECIMAL else node


def _type_hint(kinds: set[AttrType]) -> str:
    if AttrType.STRING in kinds:
        other = min(kinds - {AttrType.STRING})
        if other in (AttrType.DATE, AttrType.TIMESTAMP):
            return f"; write {other.upper()}'...'"
        if other in NUMBERS:
            return "; leave the quotes away, or use try_cast"
    return ""


# --- functions and syntax that are in the language ----------------------------------------------------------


def _strings(name: str, args: Sequence[Node], kind: AttrType = AttrType.STRING) -> Node:
    typed = [literal(None, AttrType.STRING) if node.kind is None else node for node in args]
    return Node(name, kind, tuple(typed))


def _text(reader: Reader, tree: Tree, name: str, args: list[Node]) -> Node:
    """Strings in, a string out."""
    for part, node in zip(tree.expressions, args, strict=True):
        reader.need(part, node, AttrType.STRING)
    return _strings(name, args)


def _length(reader: Reader, tree: Tree, name: str, args: list[Node]) -> Node:
    reader.need(tree.expressions[0], args[0], *TEXTS)
    return _strings(name, args, AttrType.INT)


def _search(reader: Reader, tree: Tree, name: str, args: list[Node]) -> Node:
    """startswith and its like: two strings, or two binaries, the second a literal."""
    reader.need(tree.expressions[0], args[0], *TEXTS)
    reader.need_literal(tree.expressions[1], args[1])
    _, args = reader.common(tree, args)
    return _strings(name, args, AttrType.BOOLEAN)


def _substring(reader: Reader, tree: Tree, name: str, args: list[Node]) -> Node:
    reader.need(tree.expressions[0], args[0], AttrType.STRING)
    for part, node in zip(tree.expressions[1:], args[1:], strict=True):
        reader.need(part, node, AttrType.INT)
        reader.need_literal(part, node)
        if node.value is None:
            reader.refuse(tree, "a place or length of null makes everything null")
    return _strings(name, args)


def _arithmetic(reader: Reader, tree: Tree, name: str, args: list[Node]) -> Node:
    kind, args = reader.common(tree, args)
    for part, node in zip(tree.expressions, args, strict=True):
        reader.need(part, node, *NUMBERS)
    kind = AttrType.DOUBLE if name == "try_divide" else kind or AttrType.INT
    return Node(name, kind, tuple(_widened(node, kind) for node in args))


def _typed(node: Node, kind: AttrType) -> Node:
    return literal(None, kind) if node.kind is None else _settled(node)


def _coalesce(reader: Reader, tree: Tree, name: str, args: list[Node]) -> Node:
    kind, args = reader.common(tree, args)
    return Node(name, kind, tuple(args))


def _isnan(reader: Reader, tree: Tree, name: str, args: list[Node]) -> Node:
    reader.need(tree.expressions[0], args[0], AttrType.DOUBLE)
    return Node(name, AttrType.BOOLEAN, tuple(_typed(node, AttrType.DOUBLE) for node in args))


MANY = 1000
FUNCTIONS: dict[str, tuple[Callable[[Reader, Tree, str, list[Node]], Node], int, int]] = {
    **dict.fromkeys(("lower", "upper", "trim", "ltrim", "rtrim"), (_text, 1, 1)),
    **dict.fromkeys(("startswith", "endswith", "contains"), (_search, 2, 2)),
    **dict.fromkeys(("try_add", "try_subtract", "try_multiply", "try_divide"), (_arithmetic, 2, 2)),
    "length": (_length, 1, 1),
    "concat": (_text, 1, MANY),
    "substring": (_substring, 2, 3),
    "coalesce": (_coalesce, 1, MANY),
    "isnan": (_isnan, 1, 1),
}
"""What may be called, with how many arguments; besides these if, case and try_cast."""

SYNONYMS = {"substr": "substring", "lcase": "lower", "ucase": "upper", "char_length": "length", "len": "length"}
AGGREGATES = frozenset(
    {"any_value", "avg", "collect_list", "collect_set", "count", "first", "last", "max", "mean", "min", "some", "sum"}
)
IMPURE = frozenset(
    {
        "current_date", "current_timestamp", "current_user", "input_file_name", "monotonically_increasing_id", "now",
        "rand", "randn", "random", "spark_partition_id", "unix_timestamp", "uuid",
    }
)  # fmt: skip


def _why_no_function(name: str) -> str:
    if name in AGGREGATES:
        return f"{name} is an aggregate; a filter looks at one event at a time"
    if name in IMPURE:
        return f"{name} has another value each time; a filter depends on the event alone"
    known = [*FUNCTIONS, "if", "try_cast"]
    return f"unknown function {name!r}{suggestion(name, known)}; there are {', '.join(sorted(known))}"


def _hex(reader: Reader, tree: Tree) -> Node:
    quoted = reader.text[tree.meta["start"] + 1 : tree.meta["start"] + 2] in ("'", '"')
    if not quoted or not re.fullmatch(r"([0-9a-fA-F]{2})*", str(tree.this)):
        reader.refuse(tree, "write bytes as pairs of hexadecimal digits, X'0AFF'")
    return literal(bytes.fromhex(tree.this), AttrType.BINARY)


COMPARISONS = {
    "EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">=", "NullSafeEQ": "<=>", "NullSafeNEQ": "<!=>",
}  # fmt: skip
CONDITIONS = frozenset({*COMPARISONS, "Between", "In", "Is", "Like", "Escape", "Not", "And", "Or"})
TRANSLATIONS: dict[str, Callable[[Reader, Tree], Node]] = {
    **dict.fromkeys(COMPARISONS, Reader.comparison),
    "And": Reader.chain,
    "Anonymous": Reader.call,
    "Between": Reader.between,
    "Boolean": lambda reader, tree: literal(bool(tree.this), AttrType.BOOLEAN),
    "Case": Reader.choice,
    "Cast": Reader.cast,
    "Column": Reader.column,
    "DPipe": Reader.pipes,
    "Escape": Reader.escaped,
    "HexString": _hex,
    "If": Reader.either,
    "In": Reader.membership,
    "Is": Reader.test,
    "Like": Reader.like,
    "Literal": Reader.literal,
    "Neg": Reader.negative,
    "Not": Reader.negation,
    "Null": lambda reader, tree: literal(None, None),
    "Or": Reader.chain,
    "Paren": Reader.paren,
    "TryCast": Reader.try_cast,
}
"""Every piece of syntax that is in the language, by sqlglot's name for it."""


_MAY_FAIL = "may overflow or divide by zero, which Spark makes an error; use try_{}"
REFUSALS = {
    "Add": "+ " + _MAY_FAIL.format("add"),
    "Sub": "- " + _MAY_FAIL.format("subtract"),
    "Mul": "* " + _MAY_FAIL.format("multiply"),
    "Div": "/ " + _MAY_FAIL.format("divide"),
    **dict.fromkeys(("Mod", "IntDiv"), "a remainder or whole quotient may divide by zero, which Spark makes an error"),
    **dict.fromkeys(("Subquery", "Select", "Exists"), "a filter has no subqueries; it looks at one event at a time"),
    **dict.fromkeys(("Window", "Filter"), "a filter has no window functions; it looks at one event at a time"),
    **dict.fromkeys(("Placeholder", "Parameter", "SessionParameter"), "a filter has no parameters; write the value"),
    **dict.fromkeys(("RegexpLike", "ILike", "SimilarTo"), "regular expressions are not part of the language; use LIKE"),
    "Concat": "write one string; a quote inside it as \\'",
    "Star": "name one attribute",
    "Tuple": "compare one value at a time",
}
"""What people may expect to work, and why it does not."""
