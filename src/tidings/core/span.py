"""The span: what a node knows of a range of a stream, and the algebra over it: slice, join, filter, collect.

A span says: of [lo, hi), seen through ``lens``, exactly ``rows`` survive collection by the committed events below
``asof``. Rows leave (collected, filtered out), coverage stays. Only later events collect a row, so for number s an
asof at or below s says no more than "published": spans are compared by max(asof, s), and a span's asof is at least
its lo wherever this module made it.

Join takes two knowledge lists (disjoint, ascending) and keeps, for every number, the claim with the larger asof;
its rows must be a subset of the other's, and equal asof means equal rows. Anything else is a `Contradiction`: both
lists are left as they were. Overlapping spans of unequal lenses are `BadInput`: both may be true, but a list holds
one claim per number, so keep one list per lens or replace the older range. Neighbours in one list may differ in lens.

A number may also be *lost*: its owner has declared that nobody has it. That says more than nothing and less than any
claim: where one side says lost and the other knows (a row, or that it was collected), join keeps what is known; lost
fills only what is unknown (decision 0011). What is lost is lost as of every asof.

Join coalesces neighbours where no claim changes: equal asof, or the later one has only the asof it was published
with and the earlier one's is no larger than that. So join is associative, commutative and idempotent on consistent
knowledge; on inconsistent knowledge it refuses what contradicts a claim it still holds, not what a claim that was
overtaken would have shown. `compact` goes further and forgets: full neighbours become one at the smaller asof. Stored
knowledge may want that, but inside join it would make the result depend on the order, so join does not do it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from struct import Struct as Packer
from typing import TypeAlias

import msgspec

from tidings.core.errors import BadInput, Contradiction
from tidings.core.ids import FIRST, StreamId
from tidings.core.lens import ALL, Lens
from tidings.core.ranges import Ranges
from tidings.core.rows import NO_ROWS, Mask, Rows

HEADER_BYTES = 24  # ours: lo, hi and asof as 8-byte integers; stream and lens are named once per message

MESSAGE_BYTES = 8 << 20
"""What one message carries at most, but for a single row that is larger: ours, because a tenth of a second of a gigabit
link is as long as anything else should wait behind it, and frames are limited to a multiple of this."""

LOST_BYTES = 16  # ours: of each lost range two 8-byte integers

_DIGEST = Packer("<qqqq")
_RANGE = Packer("<qq")

Lost: TypeAlias = tuple[tuple[int, int], ...]
"""Ascending, disjoint ranges inside of a span; there is no row in them."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """Of [lo, hi), seen through the lens, exactly these rows survive collection by the committed events below asof."""

    stream: StreamId
    lo: int
    hi: int
    asof: int
    rows: Rows
    lens: Lens = ALL
    lost: Lost = ()  # what of it the owner has declared lost

    @classmethod
    def of(cls, stream: StreamId, lo: int, rows: Rows) -> Span:
        """A published batch: full, as of its first number."""
        return cls(stream, lo, lo + rows.count, lo, rows)

    @classmethod
    def declared_lost(cls, stream: StreamId, lo: int, hi: int) -> Span:
        """What the owner declares when nobody has [lo, hi)."""
        return cls(stream, lo, hi, lo, NO_ROWS, ALL, ((lo, hi),))

    @property
    def full(self) -> bool:
        """Nothing was collected: every number has a row, or is lost."""
        missing = self.hi - self.lo - self.rows.count
        return missing == 0 or (self.lost != () and missing == self.lost_count)

    @property
    def lost_count(self) -> int:
        """How many numbers are lost."""
        return sum([hi - lo for lo, hi in self.lost])

    @property
    def empty(self) -> bool:
        """No number has a row: a pure tombstone."""
        return self.rows.count == 0

    @property
    def wire_size(self) -> int:
        """Bytes this span costs in a message."""
        return HEADER_BYTES + self.rows.nbytes + (LOST_BYTES * len(self.lost) if self.lost else 0)

    @property
    def digest(self) -> bytes:
        """Equal spans have equal digests, in every run and process."""
        lens = self.lens
        head = _DIGEST.pack(self.lo, self.hi, self.asof, lens.version)
        lost = b"".join([_RANGE.pack(lo, hi) for lo, hi in self.lost])
        return b"%b\0%b\0%b%b%b" % (self.stream.encode(), lens.text.encode(), head, self.rows.digest, lost)

    def slice(self, lo: int, hi: int) -> Span:
        """The part inside [lo, hi); there must be one."""
        if lo <= self.lo:
            if hi >= self.hi:
                return self
            lo = self.lo
        if hi > self.hi:
            hi = self.hi
        if lo >= hi:
            raise BadInput(f"{self.stream}: [{lo}, {hi}) has nothing in common with [{self.lo}, {self.hi})")
        asof = self.asof if self.asof > lo else lo
        lost = _inside(self.lost, lo, hi) if self.lost else ()
        return Span(self.stream, lo, hi, asof, self.rows.slice(lo, hi), self.lens, lost)

    def filter(self, lens: Lens, mask: Mask) -> Span:
        """The span seen through a narrower lens, which passes the rows in the mask."""
        return Span(self.stream, self.lo, self.hi, self.asof, self.rows.take(mask), lens, self.lost)

    def collect(self, asof: int, keep: Mask) -> Span:
        """The span as of a later point, by which all rows but those in the mask have been collected."""
        if asof < self.asof:
            raise BadInput(f"{self.stream}: collection goes forward, from asof {self.asof} not to {asof}")
        return Span(self.stream, self.lo, self.hi, asof, self.rows.take(keep), self.lens, self.lost)


def join(a: Sequence[Span], b: Sequence[Span]) -> tuple[Span, ...]:
    """All that two knowledge lists of one stream say together, coalesced; raises `Contradiction`.

    In what it returns a lost range is a span of its own.
    """
    if any([span.lost for span in a]) or any([span.lost for span in b]):
        a, b = parted(a), parted(b)
    if not a or not b or a[-1].hi <= b[0].lo:
        return _coalesced((*a, *b))
    if b[-1].hi <= a[0].lo:
        return _coalesced((*b, *a))
    return _coalesced(_swept(a, b))


def within(spans: Sequence[Span], limit: int = MESSAGE_BYTES) -> list[Span]:
    """The beginning of a knowledge list that costs at most so many bytes, but at least its first row."""
    out: list[Span] = []
    for span in spans:
        limit -= span.wire_size
        if limit >= 0:
            out.append(span)
            continue
        rows, numbers = span.rows, span.rows.numbers
        room = limit + span.wire_size - HEADER_BYTES
        fits = bisect_right(range(1, len(numbers)), room, key=lambda count: rows.slice(0, int(numbers[count])).nbytes)
        if fits or not out:
            out.append(span.slice(span.lo, int(numbers[max(fits, 1)])) if len(numbers) > 1 else span)
        break
    return out


def compact(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Forget how recently full neighbours were full: they become one span at the smaller asof."""
    out: list[Span] = []
    run: list[Span] = []
    for span in spans:
        if run and not (run[-1].full and span.full and _adjoin(run[-1], span)):
            out.append(_fused(run))
            run = []
        run.append(span)
    if run:
        out.append(_fused(run))
    return tuple(out)


def parted(spans: Iterable[Span]) -> list[Span]:
    """The same knowledge with each lost range as a span of its own."""
    out: list[Span] = []
    for span in spans:
        at = span.lo
        for lo, hi in span.lost:
            if at < lo:
                out.append(span.slice(at, lo))
            out.append(span.slice(lo, hi))
            at = hi
        if at < span.hi:
            out.append(span.slice(at, span.hi))
    return out


def _inside(lost: Lost, lo: int, hi: int) -> Lost:
    """The parts of some ranges that lie in [lo, hi)."""
    return tuple([(max(first, lo), min(last, hi)) for first, last in lost if first < hi and last > lo])


def _swept(a: Sequence[Span], b: Sequence[Span]) -> list[Span]:
    """Cut both lists at each other's ends, and meet the pieces that cover the same range."""
    pieces: list[Span] = []
    left, right = iter(a), iter(b)
    x, y = next(left, None), next(right, None)
    while x is not None and y is not None:
        if x.hi <= y.lo:
            pieces.append(x)
            x = next(left, None)
        elif y.hi <= x.lo:
            pieces.append(y)
            y = next(right, None)
        else:
            lo, hi = max(x.lo, y.lo), min(x.hi, y.hi)
            if x.lo < lo:
                pieces.append(x.slice(x.lo, lo))
            elif y.lo < lo:
                pieces.append(y.slice(y.lo, lo))
            pieces.append(_met(x.slice(lo, hi), y.slice(lo, hi)))
            x = x.slice(hi, x.hi) if x.hi > hi else next(left, None)
            y = y.slice(hi, y.hi) if y.hi > hi else next(right, None)
    if x is not None:
        pieces.append(x)
        pieces.extend(left)
    if y is not None:
        pieces.append(y)
        pieces.extend(right)
    return pieces


def _met(x: Span, y: Span) -> Span:
    """The better of two claims about one range, if both can be true."""
    if x.stream != y.stream:
        raise BadInput(f"spans of {x.stream} and {y.stream} cannot be joined")
    if x.lens != y.lens:
        raise BadInput(
            f"{x.stream} [{x.lo}, {x.hi}): lens {x.lens.text!r} (version {x.lens.version}) and lens {y.lens.text!r} "
            f"(version {y.lens.version}) cannot be joined; keep them apart or replace the older range"
        )
    if x is y:
        return x
    if x.lost or y.lost:  # all of the range, for lists are parted before
        if not (x.lost and y.lost):
            return y if x.lost else x
        return x if x.asof >= y.asof else y
    old, new = (x, y) if x.asof <= y.asof else (y, x)
    since = max(new.asof, new.lo)  # from here on both claims are as of publication
    if max(old.asof, old.lo) == since:
        agree = new.rows.same(old.rows)
    else:
        agree = new.rows.is_subset(old.rows)
        if agree and since < new.hi:
            agree = new.rows.slice(since, new.hi).same(old.rows.slice(since, old.hi))
    if not agree:
        raise Contradiction(_explain(old, new))
    return new


def _coalesced(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Neighbours whose claims one span can state become that span."""
    out: list[Span] = []
    run: list[Span] = []
    for span in spans:
        if run:
            last = run[-1]
            if span.lo < last.hi or span.stream != last.stream:
                raise BadInput(
                    f"a knowledge list is ascending, disjoint and of one stream: {last.stream} [{last.lo}, {last.hi}) "
                    f"is followed by {span.stream} [{span.lo}, {span.hi})"
                )
            if not _continues(run[0], last, span):
                out.append(_fused(run))
                run = []
        run.append(span)
    if run:
        out.append(_fused(run))
    return tuple(out)


def _continues(head: Span, last: Span, span: Span) -> bool:
    """Whether a span can extend a run that is stated as of its head, with no claim changed."""
    asof, lo = max(head.asof, head.lo), span.lo
    return (asof == span.asof or (asof <= lo and span.asof <= lo)) and _adjoin(last, span)


def _adjoin(last: Span, span: Span) -> bool:
    """Whether two spans are neighbours, through one lens, with rows that can be stated together."""
    if last.hi != span.lo or last.lens != span.lens or bool(last.lost) != bool(span.lost):
        return False
    return last.rows.meets(span.rows)


def _fused(run: list[Span]) -> Span:
    """One span for a run of neighbours, at the smallest asof in it."""
    head = run[0]
    if len(run) == 1:
        return head if head.asof >= head.lo else msgspec.structs.replace(head, asof=head.lo)
    asof = min([max(span.asof, span.lo) for span in run])
    rows = head.rows.concat([span.rows for span in run[1:]])
    lost = tuple(Ranges([each for span in run for each in span.lost])) if head.lost else ()
    return Span(head.stream, head.lo, run[-1].hi, asof, rows, head.lens, lost)


def _explain(old: Span, new: Span) -> str:
    """Name the first number that two claims about one range disagree on."""
    before = dict(zip(old.rows.numbers.tolist(), old.rows.content.tolist(), strict=True))
    after = dict(zip(new.rows.numbers.tolist(), new.rows.content.tolist(), strict=True))
    at = f"{new.stream} [{new.lo}, {new.hi})"
    since = max(new.asof, new.lo) if new.asof > old.asof else new.lo
    for seq in sorted(before.keys() | after.keys()):
        if seq not in before:
            return f"{at}: row {seq} is there as of {new.asof} but not as of {old.asof}"
        if seq not in after:
            if seq >= since:
                return (
                    f"{at}: row {seq} as of {old.asof} is missing as of {new.asof}, and nothing can have collected it"
                )
        elif before[seq] != after[seq]:
            return f"{at}: row {seq} as of {new.asof} differs in content from row {seq} as of {old.asof}"
    return f"{at}: the rows as of {new.asof} differ from those as of {old.asof}"


def is_knowledge(stream: StreamId, spans: Sequence[Span]) -> bool:
    """Whether spans are a knowledge list of one stream: not empty themselves, disjoint and ascending."""
    at = FIRST
    for span in spans:
        if span.stream != stream or not at <= span.lo < span.hi:
            return False
        at = span.hi
    return True
