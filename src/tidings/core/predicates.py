"""Predicate collectors: events that collect the earlier data events for which a condition is true (A1.8, A1.45).

What such an event carries, in the column ``where`` of its row, says all that is needed to apply it: the condition in
canonical SQL, and before it in parentheses the types of the attributes it names::

    (tenant string, type string) tenant = 'acme' AND type = 'session'

So collection stays a function of the committed stream alone: no node's idea of the schema matters.

Collection is final (A1.8): an event is collected only by one that implies what it collects, or a node that never saw
it would keep what it collected. A data event of a by-key stream collects its key, so there a predicate may depend on
the key only. Predicate and "before n" events have no key, and of predicates only the same one, of equal text,
collects them; "before n" implies every collector below n. For the same reason a predicate depends on nothing but
what rows carry everywhere (attributes, key, number), and not on Unicode tables, which differ between versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.core.errors import BadFilter, BadInput, NotFinal
from tidings.core.filters import MAX_GROWTH, AttrType, Filter, format_attributes, parse, parse_attributes
from tidings.core.rows import DATA, GC, WHERE, ArrowRows, Mask

NAMED = ("key", "seq")  # the columns besides attributes that a predicate may depend on
VARYING = ("lower", "upper")

_FORM = re.compile(r"\((?P<types>[^()]*)\) (?P<sql>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Predicate:
    """What a predicate event collects. Two are the same if their texts are."""

    filter: Filter
    text: str
    attributes: Mapping[str, AttrType]  # those it names

    @classmethod
    def make(
        cls, sql: str, attributes: Mapping[str, AttrType], by_key: bool = False, bounded: bool = True
    ) -> Predicate:
        """The predicate a user wrote for a stream; `BadFilter` or `NotFinal` says why it cannot be published."""
        found = parse(sql, attributes, bounded)
        named = {name: kind for name, kind in sorted(attributes.items()) if name in found.columns}
        for name in found.columns:
            if name not in named and name not in NAMED:
                raise NotFinal(f"predicate {sql!r}: collection depends on attributes, key and seq only, not {name!r}")
        for node in found.root.walk():
            if node.op in VARYING:
                raise NotFinal(f"predicate {sql!r}: {node.op} differs between Unicode versions; compare exactly")
        if by_key and not found.on_key_only:
            others = ", ".join(name for name in found.columns if name != "key")
            raise NotFinal(
                f"predicate {sql!r} names {others}; where events collect by key it may name only the key, "
                "or what they collected could come back (A1.8)"
            )
        return cls(found, f"({format_attributes(named)}) {found.text}", named)

    @classmethod
    def read(cls, text: str, by_key: bool = False) -> Predicate:
        """The predicate of an event, from its text."""
        return _read(text, by_key)

    @property
    def sql(self) -> str:
        """The condition alone."""
        return self.filter.text

    def collects(self, rows: ArrowRows) -> Mask:
        """Which of these rows, all earlier, the event collects: data for which it is true, and its like."""
        if not rows.count:
            return np.zeros(0, np.bool_)
        kinds = rows.batch.column("kind").to_numpy()
        found: Mask = self.filter.mask(rows) & (kinds == DATA)
        at = rows.batch.schema.get_field_index(WHERE)
        if at >= 0:
            same: Mask = pc.equal(rows.batch.column(at), self.text).fill_null(False).to_numpy(zero_copy_only=False)
            found |= same
        return found


@lru_cache(maxsize=256)
def _read(text: str, by_key: bool) -> Predicate:
    found = _FORM.fullmatch(text)
    if found is None:
        raise BadFilter("a predicate event says (types) condition", 1, 1, text[:80])
    predicate = Predicate.make(found["sql"], parse_attributes(found["types"]), by_key, bounded=False)
    return replace(predicate, text=text)  # as published, whatever is canonical by now: all nodes compare that


def refuse_unsound(rows: ArrowRows, attributes: Mapping[str, AttrType], by_key: bool = False) -> None:
    """`BadInput` if one of these events must not be published on a stream with such attributes.

    An owner asks this of a batch before it numbers it: afterwards every node applies what it says. An event that
    collects by number or predicate has no key, or one that it does not imply could collect it; a predicate names
    attributes by the types that they have here, or it could not be applied to the rows.
    """
    kinds = rows.batch.column("kind").to_numpy()
    befores = rows.batch.column("before")
    if kinds.any() or befores.null_count < rows.count:
        counts = befores.is_valid().to_numpy(zero_copy_only=False)
        keyed = rows.batch.column("key").is_valid().to_numpy(zero_copy_only=False)
        if (kinds > GC).any() or (counts & (kinds != GC)).any() or (keyed & (kinds == GC)).any():
            raise BadInput(f"an event that collects is of kind {GC} and has no key, others have no before")
    for seq, predicate in predicates_in(rows, by_key):
        if predicate.filter.root.growth > MAX_GROWTH:
            raise BadInput(f"event {seq} joins more than {MAX_GROWTH} texts to one")
        for name, kind in predicate.attributes.items():
            if attributes.get(name) != kind:
                raise BadInput(f"event {seq} collects by {name!r} as {kind}, which is no attribute of the stream")


def predicates_in(rows: ArrowRows, by_key: bool = False) -> list[tuple[int, Predicate]]:
    """The predicate events among rows with their numbers; `BadInput` if one must not be published on such a stream."""
    at = rows.batch.schema.get_field_index(WHERE)
    if at < 0 or rows.batch.column(at).null_count == rows.count:
        return []
    column = rows.batch.column(at)
    if not pa.types.is_string(column.type):
        raise BadInput(f"column {WHERE!r} holds the texts of predicates, not {column.type}")
    places = np.flatnonzero(column.is_valid())
    found = rows.batch.take(pa.array(places))
    columns = [found.column(name).to_pylist() for name in (WHERE, "kind", "key", "before")]
    numbers = rows.numbers[places].tolist()
    predicates = []
    for seq, where, kind, key, before in zip(numbers, *columns, strict=True):
        if kind != GC or key is not None or before is not None:
            raise BadInput(f"event {seq} collects by predicate, so it is of kind {GC}, without key and before")
        predicates.append((seq, Predicate.read(where, by_key)))
    return predicates
