"""Delivery receipts: subscribers tell their region's head what they were handed; it is kept in `_receipts/<region>`.

A receipt says of a run of spans what `check/` needs to judge it: which numbers, through which lens, as of when, how
many rows, and the sum of their hashes. Receipts are numbered without holes within (subscriber, incarnation, stream).
Two receipts with successive numbers and a gap between their ranges show a gap in delivery. A missing number only shows
that a receipt is missing.

Receipts are not published: a client repeats them until they are kept, and a receipt that was kept twice says the same
twice. So they need no publisher's session, fence no other client, and need no right to any stream.

Guarantee: what is answered with `ReceiptsKept` is committed. The stream is bounded by its policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from tidings.core.ids import RECEIPTS, NodeId, RegionId, StreamId
from tidings.core.rows import Origin, Rows, data_rows
from tidings.core.span import Span
from tidings.protocols.kernel import Message, Time, Value
from tidings.protocols.services.catalog import StreamDef
from tidings.protocols.services.head import Head, HeadService, Step

if TYPE_CHECKING:
    from tidings.protocols.services.streams import StreamTable

ATTRS = (
    "subscriber string, incarnation bigint, n bigint, followed string, lo bigint, hi bigint, asof bigint, lens string, "
    "rows bigint, hash_sum bigint, time double"
)
"""The columns of a `_receipts` stream. ``followed`` is the stream that the receipt is about."""

MOST = 1024  # receipts in one message; ours: some 100 kB
LONGEST = 65_536  # characters of a lens; ours: more than a filter may have
_WORD = 1 << 63


class Receipt(Value, frozen=True, gc=False, array_like=True):
    """Of [lo, hi) of a stream, through ``lens`` and as of ``asof``, a subscriber was handed so many rows."""

    subscriber: str
    incarnation: int
    n: int  # of this incarnation and stream, from 1 on
    stream: StreamId
    lo: int
    hi: int
    asof: int
    lens: str
    rows: int
    hash_sum: int
    time: float  # of the last span in it

    @property
    def sound(self) -> bool:
        """Whether its numbers fit the columns that they go to."""
        numbers = (self.incarnation, self.n, self.lo, self.hi, self.asof, self.rows)
        fits = all([0 <= number < _WORD for number in numbers]) and 0 <= self.hash_sum < 2 * _WORD
        return fits and max(len(self.subscriber), len(self.stream)) <= 1024 and len(self.lens) <= LONGEST


class Receipts(Message, frozen=True, gc=False):
    """To the region's head: keep these; answered with `ReceiptsKept` when they are committed."""

    from_clients: ClassVar[bool] = True

    nonce: int  # the same in each retry
    receipts: tuple[Receipt, ...]

    def valid(self) -> bool:
        return all([each.sound for each in self.receipts])

    @property
    def wire_size(self) -> int:  # type: ignore[override]
        return 64 + 128 * len(self.receipts)


class ReceiptsKept(Message, frozen=True, gc=False):
    """They are committed."""

    nonce: int


class ReceiptSettings(Value, frozen=True, gc=False):
    """Ours, because the paper's subscribers send none."""

    ask: bool = False  # clients are asked for receipts unless they say otherwise
    gc: str = "keep-last:1000000,older-than:1h"  # what is not read by then is gone: an archive holds a lease on it


def receipts_of(region: RegionId) -> StreamId:
    """The stream that keeps a region's receipts."""
    return RECEIPTS + region


def definition(region: RegionId, settings: ReceiptSettings) -> StreamDef:
    """The stream as clients know it: it is there without having been created, and nobody publishes to it."""
    return StreamDef(receipts_of(region), region, settings.gc, attrs=ATTRS)


def sound(message: Receipts) -> bool:
    """Whether a message is one that can be kept."""
    return 0 < len(message.receipts) <= MOST and all([each.sound for each in message.receipts])


def receipt_rows(lo: int, receipts: Sequence[Receipt], sender: str, now: float, region: RegionId) -> Rows:
    """Receipts as the next rows of their stream."""
    columns = list(zip(*[msgspec.structs.astuple(each) for each in receipts], strict=True))
    hash_sums = pa.array(np.array(columns[9], dtype=np.uint64).view(np.int64))
    arrays = [
        *[pa.array(columns[at], kind) for at, kind in enumerate(_TYPES[:9])],
        hash_sums,
        pa.array(columns[10], pa.float64()),
    ]
    origin = Origin(lo, lo + len(receipts), sender, 0, lo, 0, now, region)
    return data_rows(lo, None, [b""] * len(receipts), origin, dict(zip(NAMES, arrays, strict=True)))


NAMES = tuple(part.split()[0] for part in ATTRS.split(", "))
_TYPES = [pa.string() if part.endswith("string") else pa.int64() for part in ATTRS.split(", ")]


class ReceiptService(HeadService):
    """Answers `Receipts`. Receipts that are sent again are written again, which says nothing new."""

    handles: ClassVar[frozenset[type[Message]]] = frozenset({Receipts})

    def __init__(self, head: Head, table: StreamTable) -> None:
        self.head = head
        self.table = table

    def receive(self, now: Time, src: NodeId, message: Message) -> Step:
        assert isinstance(message, Receipts)
        if not sound(message):
            return Step(reports=["bad_message"])
        if self.head.busy:
            return Step(reports=["receipts_busy"])  # asked again later
        log, stream = self.table.log, self.table.receipts.name
        lo = log.ends[stream]
        part = Span.of(stream, lo, receipt_rows(lo, message.receipts, src, now, self.table.region))
        return Step([part], [(src, ReceiptsKept(message.nonce), log.last + 1)])
