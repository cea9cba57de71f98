"""Values of the protocols to frames and back.

A header is the msgpack array ``[tag, value]``; the tag is the name of the class. There is no list of messages: a codec
finds a class below `Message` (in the journal also `Timer` and `Command`) when it first meets it, and derives the
encoding from the fields that the class declares.

A class without rows is encoded as a map: fields may be added with a default, and an older reader skips them. A class
with one field of rows (rows, spans or log records) becomes an array, its *head*, in which the heads of those rows
(core/wire.py) take the place of that field; their columns are the frame's body. They are not copied on the way out and
are used where they lie on the way in. Fields may be added at the end of such a class only, with a default.

What comes in is not trusted: an unknown tag, a wrong type, a number no column can hold, a value that is not `valid` or
rows that do not fit their span are a `FrameError`; a machine never sees them. Messages a machine must judge itself
(from whom, in which epoch, about which stream) pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, get_args

import msgspec

from tidings.core.errors import BadInput
from tidings.core.ids import NEVER
from tidings.core.rows import Rows
from tidings.core.span import Span
from tidings.core.wire import (
    Body,
    RowsHead,
    SpanHead,
    decode_rows,
    decode_span,
    decode_spans,
    encode_rows,
    encode_span,
    encode_spans,
)
from tidings.net.frames import Buffer, FrameError, Outgoing, frame
from tidings.protocols.kernel import Command, Message, Timer, Value, below
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.log import DiskEntry, Record

Check: TypeAlias = Callable[[Any], bool]
Pack: TypeAlias = Callable[[Any], tuple[Any, Body]]
Unpack: TypeAlias = Callable[[Any, memoryview], Any]

ENTRIES: tuple[type, ...] = (*get_args(DiskEntry), ChainConfig)
"""What machines write to their disks."""


# --- fields that carry rows -----------------------------------------------------------------------------


class RecordHead(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """`Record`, with its spans in the body."""

    epoch: int
    lsn: int
    parts: tuple[SpanHead, ...]


def _encode_records(records: Iterable[Record]) -> tuple[tuple[RecordHead, ...], Body]:
    heads: list[RecordHead] = []
    bodies: Body = []
    for record in records:
        parts, body = encode_spans(record.parts)
        heads.append(RecordHead(record.epoch, record.lsn, parts))
        bodies += body
    return tuple(heads), bodies


def _decode_records(heads: Sequence[RecordHead], body: memoryview) -> tuple[Record, ...]:
    spans = decode_spans([part for head in heads for part in head.parts], body)
    records: list[Record] = []
    at = 0
    for head in heads:
        parts: tuple[Span, ...] = spans[at : at + len(head.parts)]
        records.append(Record(head.epoch, head.lsn, parts))
        at += len(parts)
    return tuple(records)


def _encode_record(record: Record) -> tuple[RecordHead, Body]:
    heads, body = _encode_records((record,))
    return heads[0], body


def _decode_record(head: RecordHead, body: memoryview) -> Record:
    return _decode_records((head,), body)[0]


CARRIERS: dict[Any, tuple[Any, Pack, Unpack]] = {
    Rows: (RowsHead, encode_rows, decode_rows),
    Span: (SpanHead, encode_span, decode_span),
    tuple[Span, ...]: (tuple[SpanHead, ...], encode_spans, decode_spans),
    Record: (RecordHead, _encode_record, _decode_record),
    tuple[Record, ...]: (tuple[RecordHead, ...], _encode_records, _decode_records),
}
"""Types of fields that carry rows: their head, and how they become head and body, and back."""


class Form(msgspec.Struct, frozen=True):
    """How a class is encoded: ``shape`` is what the header holds."""

    shape: type[Any]
    pack: Pack | None
    unpack: Unpack | None


def form_of(kind: type[msgspec.Struct]) -> Form:
    """The encoding of a class, from its fields."""
    fields = msgspec.structs.fields(kind)
    carrying = [at for at, field in enumerate(fields) if field.type in CARRIERS]
    if not carrying:
        return Form(kind, None, None)
    if len(carrying) > 1:
        raise BadInput(f"{kind.__name__}: only one field of a message may carry rows")
    (place,) = carrying
    head, encode, decode = CARRIERS[fields[place].type]
    columns: list[Any] = []
    for at, field in enumerate(fields):
        told = head if at == place else field.type
        columns.append((field.name, told) if field.required else (field.name, told, _default(field)))
    name = f"{kind.__name__}Head"
    shape = msgspec.defstruct(name, columns, frozen=True, gc=False, array_like=True, module=__name__)
    get, carried = attrgetter(*[field.name for field in fields]), fields[place].name

    def pack(value: Any) -> tuple[Any, Body]:
        values = list(get(value)) if len(fields) > 1 else [get(value)]
        values[place], body = encode(values[place])
        return shape(*values), body

    def unpack(head: Any, body: memoryview) -> Any:
        values = list(get(head)) if len(fields) > 1 else [get(head)]
        values[place] = decode(getattr(head, carried), body)
        return kind(*values)

    return Form(shape, pack, unpack)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return msgspec.field(default_factory=field.default_factory)


# --- what types alone do not say ------------------------------------------------------------------------


def _all_natural(numbers: tuple[int, ...]) -> bool:
    """Whether numbers can be sequence numbers, epochs, lsns, nonces: columns hold 64 bits, and none is negative."""
    return min(numbers) >= 0 and max(numbers) <= NEVER


def _naturals(kind: type[msgspec.Struct], signed: frozenset[str]) -> Check | None:
    """A check of the fields that are plain integers; None if there are none."""
    names = [field.name for field in msgspec.structs.fields(kind) if field.type is int and field.name not in signed]
    if not names:
        return None
    get: Callable[[Any], Any] = attrgetter(*names)
    if len(names) == 1:
        return lambda value: 0 <= get(value) <= NEVER
    return lambda value: _all_natural(get(value))


# --- the codec ------------------------------------------------------------------------------------------

_PAIR = 0x92  # a msgpack array of two: tag, value
_FIXSTR = 0xA0  # msgpack: a string of up to 31 bytes


def _prefix(kind: type) -> bytes:
    """The beginning of a header, up to and including the tag."""
    tag = kind.__name__.encode()
    if len(tag) > 31:
        raise BadInput(f"{kind.__name__}: a tag is at most 31 bytes long")
    return bytes([_PAIR, _FIXSTR | len(tag)]) + tag


class _Entry(msgspec.Struct, frozen=True):
    """How one tag is read."""

    kind: type
    decode: Callable[[Buffer], Any]
    unpack: Unpack | None
    naturals: Check | None
    valid: Check | None


class Codec:
    """Encodes and decodes values of some classes, and of all below ``bases``; no two may have one name."""

    def __init__(self, kinds: Iterable[type[msgspec.Struct]] = (), bases: tuple[type, ...] = ()) -> None:
        self._bases = bases
        self._encode = msgspec.msgpack.Encoder(order="deterministic").encode
        self._out: dict[type, tuple[bytes, Pack | None]] = {}
        self._in: dict[bytes, _Entry] = {}
        for kind in kinds:
            self._add(kind)

    def _add(self, kind: type[Any]) -> None:
        prefix = _prefix(kind)
        if prefix in self._in:
            raise BadInput(f"{kind.__name__}: a tag names one class, and there are two of this name")
        form = form_of(kind)
        decode: Callable[[Buffer], Any] = msgspec.msgpack.Decoder(form.shape).decode
        checked = getattr(kind, "valid", Value.valid) is not Value.valid
        naturals = _naturals(form.shape, getattr(kind, "signed", frozenset()))
        self._in[prefix] = _Entry(kind, decode, form.unpack, naturals, kind.valid if checked else None)
        self._out[kind] = (prefix, form.pack)

    def _find(self, tag: str) -> None:
        """Learn the class of a tag, if there is one."""
        for kind in {kind for base in self._bases for kind in below(base) if kind.__name__ == tag}:
            self._add(kind)

    def encode(self, value: Any) -> Outgoing:
        """The frame of a value."""
        return frame(*self.split(value))

    def split(self, value: Any) -> tuple[bytes, Sequence[Buffer]]:
        """Header and body of a value."""
        known = self._out.get(type(value))
        if known is None:
            if not isinstance(value, self._bases):
                raise BadInput(f"{type(value).__name__} has no encoding here: it is none of {self._names()}")
            self._add(type(value))
            known = self._out[type(value)]
        prefix, pack = known
        if pack is None:
            return prefix + self._encode(value), ()
        head, body = pack(value)
        return prefix + self._encode(head), body

    def _names(self) -> str:
        return ", ".join([*[kind.__name__ for kind in self._out], *[base.__name__ for base in self._bases]])

    def decode(self, header: bytes, body: memoryview) -> Any:
        """The value of a frame; raises `FrameError`. The value keeps the body: nobody may write to it again."""
        end = tag_end(header)
        entry = self._in.get(header[:end])
        if entry is None:
            self._find(tag_of(header))
            entry = self._in.get(header[:end])
        if entry is None:
            raise FrameError("unknown_message", f"{tag_of(header)!r} is no message of this format")
        try:
            value = entry.decode(header[end:])
            if entry.naturals is not None and not entry.naturals(value):
                raise FrameError("bad_message", f"{entry.kind.__name__}: a number makes no sense")
            if entry.unpack is not None:
                value = entry.unpack(value, body)
            elif body:
                raise FrameError("bad_message", f"{entry.kind.__name__} has no body, but {len(body)} bytes came")
            if entry.valid is not None and not entry.valid(value):
                raise FrameError("bad_message", f"{entry.kind.__name__}: its values make no sense together")
        except (msgspec.DecodeError, UnicodeDecodeError, BadInput, RecursionError) as error:
            raise FrameError("bad_message", f"{entry.kind.__name__}: {error}") from error
        return value


def tag_end(header: bytes) -> int:
    """Where the tag of a header ends."""
    if len(header) < 3 or header[0] != _PAIR or header[1] & 0xE0 != _FIXSTR:
        raise FrameError("frame", "no header: it is the msgpack array [tag, value]")
    return 2 + (header[1] & 0x1F)


def tag_of(header: bytes) -> str:
    """The tag of a header."""
    return header[2 : tag_end(header)].decode("ascii", "replace")


WIRE = Codec(bases=(Message,))
"""What goes over connections between nodes."""

JOURNAL = Codec(ENTRIES, bases=(Message, Timer, Command))
"""What a host can write into its journal."""
