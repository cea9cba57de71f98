"""Attributes of a stream: the declared names and types, and Arrow columns that fit them.

A declaration is the column list of a table, ``loc string, price double``. Names are told apart without regard to
case, because Spark does not regard it; the names of the columns that every event has are taken. Every attribute may
be null, so a stream can gain one later: events that lack the column have null there.

`conform` casts only where no value can change: narrower integers, other string encodings, finer or coarser clocks
that are exact. Anything else is a `BadAttribute`, at the boundary, before an event has a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

import pyarrow as pa

from tidings.core.errors import BadAttribute

MAX_ATTRIBUTES = 256  # ours, because a schema wider than this is a payload that wants to be one
MAX_NAME = 64


class AttrType(StrEnum):
    """The types of Spark that a filter knows, under Spark's names."""

    STRING = "string"
    BOOLEAN = "boolean"
    INT = "int"
    BIGINT = "bigint"
    DOUBLE = "double"
    TIMESTAMP = "timestamp"
    DATE = "date"
    BINARY = "binary"


ARROW: dict[AttrType, pa.DataType] = {
    AttrType.STRING: pa.string(),
    AttrType.BOOLEAN: pa.bool_(),
    AttrType.INT: pa.int32(),
    AttrType.BIGINT: pa.int64(),
    AttrType.DOUBLE: pa.float64(),
    AttrType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    AttrType.DATE: pa.date32(),
    AttrType.BINARY: pa.binary(),
}
ALIASES = {"integer": AttrType.INT, "long": AttrType.BIGINT} | {kind.value: kind for kind in AttrType}

SYSTEM: dict[str, AttrType] = {
    "key": AttrType.BINARY,
    "seq": AttrType.BIGINT,
    "published_at": AttrType.TIMESTAMP,
    "region": AttrType.STRING,
    "publisher": AttrType.STRING,
    "kind": AttrType.STRING,
}
"""What a filter may name besides attributes. A kind is 'data' or 'gc'."""

RESERVED = frozenset({*SYSTEM, "stream", "payload", "pub_seq", "before", "where", "_session", "_tick", "_hash"})
"""Names that no attribute can have: columns of every event, here or in Spark."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_attributes(text: str) -> dict[str, AttrType]:
    """The attributes a user declared, in order; empty text declares none."""
    found: dict[str, AttrType] = {}
    if not text.strip():
        return found
    for part in text.split(","):
        name, _, kind = " ".join(part.split()).partition(" ")
        if not name or not kind:
            raise BadAttribute(
                f"attributes {text!r}: {part.strip()!r} is not a name and a type, such as 'loc string'", name
            )
        if kind.lower() not in ALIASES:
            hint = suggestion(kind.lower(), ALIASES)
            raise BadAttribute(f"attribute {name!r}: type {kind!r} is unknown{hint}; use {', '.join(AttrType)}", name)
        found[_new_name(name, found)] = ALIASES[kind.lower()]
    if len(found) > MAX_ATTRIBUTES:
        raise BadAttribute(f"{len(found)} attributes are more than the {MAX_ATTRIBUTES} that a stream may have")
    return found


def format_attributes(attributes: Mapping[str, AttrType]) -> str:
    """The text that `parse_attributes` reads."""
    return ", ".join(f"{name} {kind}" for name, kind in attributes.items())


def suggestion(word: str, known: Iterable[str]) -> str:
    """ ", did you mean ...?", or nothing when no known word is near."""
    near = get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f", did you mean {near[0]}?" if near else ""


def _new_name(name: str, taken: Mapping[str, AttrType]) -> str:
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise BadAttribute(
            f"attribute name {name!r}: use at most {MAX_NAME} ASCII letters, digits and underscores, no digit first",
            name,
        )
    if name.lower() in RESERVED:
        raise BadAttribute(f"attribute name {name!r} is taken: every event has a column of that name", name)
    if name.lower() in {other.lower() for other in taken}:
        raise BadAttribute(f"attribute {name!r} is declared twice (upper and lower case are the same)", name)
    return name


def conform(columns: pa.Table | pa.RecordBatch, attributes: Mapping[str, AttrType]) -> dict[str, pa.Array]:
    """The attribute columns of a table in their declared types and order; a column left out is null.

    Columns that every event has (key, payload) are passed over; any other that is not declared is an error.
    """
    names = columns.schema.names
    for name in names:
        if name not in attributes and name not in RESERVED:
            hint = suggestion(name, attributes)
            raise BadAttribute(f"column {name!r} is not a declared attribute{hint}; declare it, or leave it out", name)
        if names.count(name) > 1:
            raise BadAttribute(f"column {name!r} comes twice", name)
    found = {}
    for name, kind in attributes.items():
        if name in names:
            column = columns.column(name)
            array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            found[name] = _fitted(name, array, kind)
        else:
            found[name] = pa.nulls(columns.num_rows, ARROW[kind])
    return found


def _fitted(name: str, array: pa.Array, kind: AttrType) -> pa.Array:
    """A column in the Arrow type of its declaration, every value unchanged."""
    target = ARROW[kind]
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    try:
        if array.type.equals(target):
            if kind is AttrType.STRING:
                array.validate(full=True)  # its bytes may not have been checked when it was built
            return array
        if not _harmless(array.type, kind):
            raise BadAttribute(
                f"attribute {name!r} is declared {kind}, not {array.type}{_advice(array.type, kind)}", name
            )
        return array.cast(target)
    except pa.ArrowInvalid as why:
        raise BadAttribute(f"attribute {name!r} is declared {kind}; {why}", name) from why


def _harmless(found: pa.DataType, kind: AttrType) -> bool:
    """Whether a checked cast to a declared type leaves every value what it is."""
    is_ = pa.types
    if is_.is_null(found):
        return True
    match kind:
        case AttrType.STRING:
            return bool(is_.is_large_string(found) or is_.is_string_view(found))
        case AttrType.BINARY:
            return bool(is_.is_large_binary(found) or is_.is_binary_view(found) or is_.is_fixed_size_binary(found))
        case AttrType.INT | AttrType.BIGINT:
            return bool(is_.is_integer(found))
        case AttrType.DOUBLE:
            return bool(is_.is_integer(found) or is_.is_floating(found))
        case AttrType.TIMESTAMP:
            return bool(is_.is_timestamp(found) and found.tz is not None)
        case AttrType.DATE:
            return bool(is_.is_date(found))
        case AttrType.BOOLEAN:
            return False


def _advice(found: pa.DataType, kind: AttrType) -> str:
    if kind is AttrType.TIMESTAMP and pa.types.is_timestamp(found):
        return ": it needs a time zone, or it means another instant elsewhere"
    return ""


def from_json(values: list[Any], kind: AttrType) -> pa.Array:
    """A column of values as JSON writes them: times and dates in ISO form (times with a zone), bytes in hexadecimal."""
    try:
        if kind is AttrType.BINARY:
            values = [None if value is None else bytes.fromhex(value) for value in values]
        if kind in (AttrType.TIMESTAMP, AttrType.DATE):
            return pa.array(values, pa.string()).cast(ARROW[kind])
        return pa.array(values, ARROW[kind])
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError) as why:
        raise BadAttribute(f"values declared {kind}: {why}") from why
