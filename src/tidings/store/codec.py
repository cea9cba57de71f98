"""Entries of the durable log as bytes.

    crc32 of the rest (4) | format (1) | kind (1) | 0 (2) | bytes of header (4) | 0 (4) | number (8)
    | header, msgpack, padded to 8 | bodies of the spans

The number is the entry's place in the log, so a value under a wrong key is detected. The place and the extent of the
checksum are the same in every format. A value with a valid checksum and a larger format is too new; a value with an
invalid one is damaged.
"""

from __future__ import annotations

from struct import Struct as Packer
from typing import Any, TypeAlias
from zlib import crc32

import msgspec

from tidings.core.errors import BadInput
from tidings.core.wire import SpanHead, decode_spans, encode_spans, unpack
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.log import Checkpoint, CutBack, DiskEntry, Installed, Logged, Record, TokenPassed
from tidings.store.errors import StoreDamaged, StoreTooNew

FORMAT = 1
"""Of the store as a whole: keys, values and the encoding of rows in them."""

Entry: TypeAlias = DiskEntry | ChainConfig
"""What machines persist: a replica its log, the configuration service its decisions."""

_PREFIX = Packer("<BBxxIxxxxQ")
_CRC = Packer("<I")
PREFIX_BYTES = _CRC.size + _PREFIX.size
LOGGED, CUT_BACK, INSTALLED, TOKEN_PASSED, CHECKPOINT, MEMBERSHIP, STATE = range(1, 8)


class _Header(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The fields of an entry; new ones go to the end, with defaults, and raise FORMAT if they matter."""


class _Logged(_Header, frozen=True, gc=False, array_like=True):
    epoch: int
    lsn: int
    committed: int
    parts: tuple[SpanHead, ...]


class _Installed(_Header, frozen=True, gc=False, array_like=True):
    lsn: int
    index: int
    last: bool
    spans: tuple[SpanHead, ...]
    record_epoch: int | None = None


class _Checkpoint(_Header, frozen=True, gc=False, array_like=True):
    lsn: int
    index: int
    last: bool
    committed: int
    token_epoch: int
    joined_epoch: int
    spans: tuple[SpanHead, ...]
    record_epoch: int | None = None


class _CutBack(_Header, frozen=True, gc=False, array_like=True):
    lsn: int
    epoch: int


class _TokenPassed(_Header, frozen=True, gc=False, array_like=True):
    epoch: int


class _Membership(_Header, frozen=True, gc=False, array_like=True):
    region: str
    epoch: int
    replicas: tuple[str, ...]
    joining: str | None


class State(_Header, frozen=True, gc=False, array_like=True):
    """What the store says of itself, in the same transaction as every change: which entries count.

    Those of the log are the runs ``kept`` (of entries up to ``purged``), then all from purged + 1 to ``last``; before
    them come the ``pieces`` of checkpoint ``generation``.
    """

    node: str
    last: int = 0
    purged: int = 0
    kept: tuple[tuple[int, int], ...] = ()  # first and last number of each run
    generation: int = 0
    pieces: int = 0


_TYPES: dict[int, type[_Header]] = {
    LOGGED: _Logged,
    CUT_BACK: _CutBack,
    INSTALLED: _Installed,
    TOKEN_PASSED: _TokenPassed,
    CHECKPOINT: _Checkpoint,
    MEMBERSHIP: _Membership,
    STATE: State,
}
_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {kind: msgspec.msgpack.Decoder(t) for kind, t in _TYPES.items()}
_encode = msgspec.msgpack.Encoder().encode


def encode(entry: Entry | State, number: int) -> bytes:
    """The value of an entry at a place in the log."""
    body: list[memoryview | bytes] = []
    header: _Header
    match entry:
        case Logged(record, committed):
            heads, body = encode_spans(record.parts)
            kind, header = LOGGED, _Logged(record.epoch, record.lsn, committed, heads)
        case CutBack(lsn, epoch):
            kind, header = CUT_BACK, _CutBack(lsn, epoch)
        case Installed(lsn, index, spans, last, record_epoch):
            heads, body = encode_spans(spans)
            kind, header = INSTALLED, _Installed(lsn, index, last, heads, record_epoch)
        case TokenPassed(epoch):
            kind, header = TOKEN_PASSED, _TokenPassed(epoch)
        case Checkpoint(lsn, index, spans, last, committed, token_epoch, joined_epoch, record_epoch):
            heads, body = encode_spans(spans)
            kind = CHECKPOINT
            header = _Checkpoint(lsn, index, last, committed, token_epoch, joined_epoch, heads, record_epoch)
        case ChainConfig(region, epoch, replicas, joining):
            kind, header = MEMBERSHIP, _Membership(region, epoch, replicas, joining)
        case State():
            kind, header = STATE, entry
        case _:
            raise BadInput(f"{type(entry).__name__} is nothing that a store keeps")
    packed = _encode(header)
    parts = [_PREFIX.pack(FORMAT, kind, len(packed), number), packed, bytes(-len(packed) % 8), *body]
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return b"".join([_CRC.pack(crc), *parts])


def decode(value: bytes, number: int) -> Entry | State:
    """The entry at a place in the log; `StoreDamaged` or `StoreTooNew`."""
    if len(value) < PREFIX_BYTES or _CRC.unpack_from(value)[0] != crc32(memoryview(value)[_CRC.size :]):
        raise StoreDamaged(f"entry {number}: the checksum of its {len(value)} bytes is wrong")
    format_, kind, size, written = _PREFIX.unpack_from(value, _CRC.size)
    if format_ > FORMAT:
        raise StoreTooNew(f"entry {number} has format {format_}, this Tidings knows up to {FORMAT}; run a newer one")
    end = PREFIX_BYTES + size + -size % 8
    if written != number or kind not in _TYPES or end > len(value):
        raise StoreDamaged(f"entry {number} is of kind {kind} and says to be entry {written}")
    whole = memoryview(value)
    try:
        return _entry(unpack(_DECODERS[kind], whole[PREFIX_BYTES : PREFIX_BYTES + size]), whole[end:])
    except BadInput as error:
        raise StoreDamaged(f"entry {number}: {error}") from error


def _entry(header: _Header, body: memoryview) -> Entry | State:
    match header:
        case _Logged(epoch, lsn, committed, parts):
            return Logged(Record(epoch, lsn, decode_spans(parts, body)), committed)
        case _Installed(lsn, index, last, spans, record_epoch):
            return Installed(lsn, index, decode_spans(spans, body), last, record_epoch)
        case _Checkpoint(lsn, index, last, committed, token_epoch, joined_epoch, spans, record_epoch):
            return Checkpoint(
                lsn, index, decode_spans(spans, body), last, committed, token_epoch, joined_epoch, record_epoch
            )
        case _CutBack(lsn, epoch):
            return CutBack(lsn, epoch)
        case _TokenPassed(epoch):
            return TokenPassed(epoch)
        case _Membership(region, epoch, replicas, joining):
            return ChainConfig(region, epoch, replicas, joining)
    assert isinstance(header, State)
    return header


def size_of(entry: Entry) -> int:
    """About how many bytes an entry takes, without encoding it."""
    match entry:
        case Logged(record):
            return record.wire_size
        case Installed(_, _, spans) | Checkpoint(_, _, spans):
            return PREFIX_BYTES + sum([span.wire_size for span in spans])
    return PREFIX_BYTES
