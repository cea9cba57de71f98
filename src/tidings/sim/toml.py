"""A TOML file that remembers the lines of its keys, so that an error can name them.

The standard parser gives values without positions. The converter names a path (``publisher[0].rate``) but neither
line nor value nor what is allowed. This joins the three into one line:

    load.toml:31: publisher[0].rate = -5: must be a number > 0

The line comes from a scan for table headers and keys. A value inside an inline table or a list is reported at the line
of the innermost key around it. What is allowed comes from the type that the converter checked.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as types

from tidings.core.errors import BadInput

T = TypeVar("T")
Keys = tuple[str | int, ...]
"""A key's path: names of tables and keys, and positions in lists."""

_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*=")


class Document:
    """One parsed file: its values, and the line of every key."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        try:
            self.data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            at = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
            line = int(at[1]) if at else text.count("\n") + 1
            column = f", column {at[2]}" if at else ""
            problem = str(error).split(" (at ")[0]
            raise BadInput(f"{name}:{line}{column}: not valid TOML: {problem}") from None
        self.lines = locate(text)

    @classmethod
    def read(cls, path: str | Path) -> Document:
        """Read and parse a file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise BadInput(f"{path}: is not UTF-8 text at byte {error.start}") from None
        return cls(str(path), text)

    def convert(self, to: type[T], data: Mapping[str, Any] | None = None) -> T:
        """The document, or a part of it with the same paths, as a value of that type; BadInput if it does not fit."""
        self._refuse_endless((), self.data)
        try:
            return msgspec.convert(self.data if data is None else data, to)
        except msgspec.ValidationError as error:
            raise self._explain(str(error), types.type_info(to)) from None

    def error(self, key: str, problem: str) -> BadInput:
        """The error for a key: file, line, path, value, and what is wrong or allowed."""
        path = _parse(key)
        value = _value(self.data, path)
        found = "" if value is _MISSING else f" = {_toml(value)}"
        return BadInput(f"{self.name}:{self._line(path)}: {key}{found}: {problem}")

    def _line(self, path: Keys) -> int:
        """The line of a key, or of the innermost table or key around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1

    def _refuse_endless(self, path: Keys, value: Any) -> None:
        """TOML knows inf and nan; no quantity here is either."""
        if isinstance(value, float) and not math.isfinite(value):
            raise self.error(_format(path), "must be a finite number")
        inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for key, each in inner:
            self._refuse_endless((*path, key), each)

    def _explain(self, text: str, info: types.Type) -> BadInput:
        """Turn the converter's complaint into ours."""
        problem, _, where = text.partition(" - at `$")
        path = _parse(where.rstrip("`").lstrip("."))
        around = _type_at(info, self.data, path)
        if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", problem):
            return self.error(_format((*path, unknown[1])), _suggest(unknown[1], around))
        if missing := re.fullmatch(r"Object missing required field `(.*)`", problem):
            inner = _type_at(info, self.data, (*path, missing[1]))
            return self.error(_format((*path, missing[1])), f"is missing: {allowed(inner)}")
        return self.error(_format(path), allowed(around))


def locate(text: str) -> dict[Keys, int]:
    """The line (from 1) of every table header and every key at the start of a line."""
    lines: dict[Keys, int] = {}
    seen: dict[Keys, int] = {}
    table: Keys = ()
    quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        if quote:
            quote = "" if quote in line else quote
            continue
        if header := _HEADER.match(line):
            names = _parse(header[2])
            table = _resolve(names, seen)
            if header[1] == "[[":
                at = seen.get(table, -1) + 1
                seen[table] = at
                lines.setdefault(table, number)
                table = (*table, at)
            lines.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            lines.setdefault((*table, *_parse(assignment[1])), number)
        for each in ('"""', "'''"):
            if line.count(each) % 2:
                quote = each
    return lines


def _resolve(names: Keys, seen: dict[Keys, int]) -> Keys:
    """A header's path with the position in every list of tables it goes through."""
    path: Keys = ()
    for name in names[:-1]:
        path = (*path, name)
        if path in seen:
            path = (*path, seen[path])
    return (*path, names[-1])


def _parse(key: str) -> Keys:
    """A dotted key, quoted or with positions in brackets, as a path."""
    parts = re.findall(r"""\[(\d+|\.\.\.)\]|"([^"]*)"|'([^']*)'|([^.\[\]\s"']+)""", key)
    return tuple(int(at) if at.isdigit() else at or one or two or bare for at, one, two, bare in parts)


def _format(path: Keys) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".")


class _Missing:
    """No value there."""


_MISSING = _Missing()


def _value(data: Any, path: Keys) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return data


def _toml(value: Any) -> str:
    """A value as it would stand in the file, shortened."""
    if isinstance(value, Mapping):
        return "{...}"
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, list):
        text = "[" + ", ".join(_toml(each) for each in value) + "]"
    else:
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


# --- what a type allows ---------------------------------------------------------------------------------


def _type_at(info: types.Type, data: Any, path: Keys) -> types.Type:
    """The type that the converter expected at a path; a union is decided by the data's tag."""
    for part in path:
        info = _decide(info, data)
        if isinstance(info, types.StructType):
            field = next((each for each in info.fields if each.encode_name == part), None)
            if field is None:
                return info
            info = field.type
        elif isinstance(info, types.VarTupleType | types.ListType):
            info = info.item_type
        data = _value(data, (part,))
    return _decide(info, data)


def _decide(info: types.Type, data: Any) -> types.Type:
    """The member of a union that the data means: by tag, or the one that is not None."""
    if not isinstance(info, types.UnionType):
        return info
    members = [each for each in info.types if not isinstance(each, types.NoneType)]
    if len(members) == 1:
        return members[0]
    tag = data.get(_tag_field(info)) if isinstance(data, Mapping) else None
    return next((each for each in members if isinstance(each, types.StructType) and each.tag == tag), info)


def _tag_field(info: types.UnionType) -> str:
    return next(each.tag_field or "" for each in info.types if isinstance(each, types.StructType))


def _suggest(key: str, info: types.Type) -> str:
    """For an unknown key: the nearest one that exists, and all of them."""
    assert isinstance(info, types.StructType), info
    names = [*filter(None, [info.tag_field]), *[field.encode_name for field in info.fields]]
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown key; {hint}allowed: {', '.join(names)}"


def allowed(info: types.Type) -> str:
    """In words, which values a type allows."""
    match info:
        case types.FloatType():
            return "must be a number" + _bounds(info)
        case types.IntType():
            return "must be a whole number" + _bounds(info)
        case types.BoolType():
            return "must be true or false"
        case types.LiteralType():
            return "must be one of " + ", ".join(json.dumps(value) for value in info.values)
        case types.StrType(pattern=pattern) if pattern:
            return "must be a name of letters, digits, _ . and -, beginning with a letter or digit"
        case types.StrType():
            return "must be a string"
        case types.VarTupleType(item_type=types.StructType() | types.UnionType(), min_length=least):
            return "must be a list of tables with double brackets" + (f", at least {least}" if least else "")
        case types.VarTupleType(item_type=item, min_length=least):
            return f"must be a list{f' of at least {least}' if least else ''}, in which each {allowed(item)}"
        case types.UnionType():
            tags = [str(each.tag) for each in info.types if isinstance(each, types.StructType)]
            return "must be one of " + ", ".join(json.dumps(tag) for tag in tags)
        case _:
            return "must be a table"


def _bounds(info: types.FloatType | types.IntType) -> str:
    limits: Sequence[tuple[str, float | None]] = ((">=", info.ge), (">", info.gt), ("<=", info.le), ("<", info.lt))
    stated = [f"{sign} {limit:g}" for sign, limit in limits if limit is not None]
    return " " + " and ".join(stated) if stated else ""
