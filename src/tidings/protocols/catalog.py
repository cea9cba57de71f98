"""What streams there are: each region defines its own, in an internal stream `_streams/<region>` that everybody has.

A definition is an event of that stream, keyed by the name of what it defines, numbered by the owner's head and carried
to the other regions like any foreign stream. A replica knows a stream once the definition is committed at it, so every
record that carries rows of a stream comes after its definition, in the log and in every snapshot.

Names are unique across regions as far as a head can know. Two regions that do not hear of each other meanwhile may both
give out one name; then there are two *claims* to it, and every region decides by itself, from the claims alone, in
whatever order and from whatever snapshot they come (decision 0013):

* a region keeps its own definition, and with it all that was published to it there, deleted or not;
* any other region follows the oldest claim that is not deleted: the smallest (created, region).

A region that has followed another claim lets go of that stream's rows, which their owner has, and begins with the
oldest one's. The claims that are not followed are told in `Description`, and reported (``stream_conflict``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from tidings.core.errors import BadInput
from tidings.core.filters import parse_attributes
from tidings.core.gc import GcPolicy
from tidings.core.history import refuse_policy
from tidings.core.ids import FIRST, RegionId, StreamId
from tidings.core.rows import ArrowRows, Origin, Rows, data_rows
from tidings.core.ticks import MAX_STREAMS
from tidings.protocols.kernel import Message, Value
from tidings.protocols.leases import LeaseState
from tidings.protocols.membership import Membership

PREFIX = "_streams/"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
STREAMS = MAX_STREAMS  # a cluster has at most so many: the number of a stream is part of its ticks

Operation: TypeAlias = Literal["create", "alter", "delete"]


class StreamDef(Value, frozen=True, gc=False):
    """What everybody knows of a stream."""

    name: StreamId
    region: RegionId
    gc: str = "none"
    counted: int = 0  # bytes of an event whose rows are only counted; 0: real rows
    number: int = 0  # low bits of its ticks
    attrs: str = ""  # declared attributes, as in "loc string, price double"
    deleted: bool = False
    created: int = 0  # when, in microseconds by the clock of the head that did it; of two claims the older counts


class Define(Message, frozen=True, gc=False):
    """To the owner's head: create, alter or delete a stream; answered when it is committed, or refused."""

    nonce: int  # the same in each retry
    operation: Operation
    definition: StreamDef


class Defined(Message, frozen=True, gc=False):
    """The definition is committed."""

    nonce: int
    definition: StreamDef


class NotDefined(Message, frozen=True, gc=False):
    """The definition was refused; nothing has changed."""

    nonce: int
    reason: str


class DeclareLost(Message, frozen=True, gc=False):
    """To the owner's head: declare [lo, hi), which nobody has, lost; answered as `Define` is.

    A history has no holes, so what is unknown begins where the stream ends: anything else is refused.
    """

    nonce: int  # the same in each retry
    stream: StreamId
    lo: int
    hi: int


class Describe(Message, frozen=True, gc=False):
    """To any replica: what is there? Answered with `Description`."""

    nonce: int


class StreamState(Value, frozen=True, gc=False):
    """How a stream stands at the replica that describes it."""

    horizon: int
    live: int
    collected: int
    low: int = FIRST  # every row below this has been collected
    floor: int = FIRST  # reads as of less are refused
    lost: int = 0


class Description(Message, frozen=True, gc=False):
    """Regions, their chains, and the streams, that of its region's receipts too, as this replica knows them."""

    nonce: int
    region: RegionId
    memberships: tuple[Membership, ...]
    streams: tuple[StreamDef, ...]
    states: dict[StreamId, StreamState]
    receipts: bool = False  # whether the cluster asks its subscribers for receipts
    leases: tuple[LeaseState, ...] = ()
    conflicts: tuple[StreamDef, ...] = ()  # of the same names, by other regions than those that are followed here


class Why(Message, frozen=True, gc=False):
    """To any replica: what has become of this number? Answered with `Because`."""

    stream: StreamId
    seq: int


class Because(Message, frozen=True, gc=False):
    """``state``: row, collected (by event ``by`` while that is known), lost, not published yet, or what is wrong."""

    stream: StreamId
    seq: int
    state: str
    by: int | None = None


def definitions_of(region: RegionId) -> StreamId:
    """The stream in which a region defines its streams."""
    return PREFIX + region


class Catalog:
    """The definitions known to one replica."""

    def __init__(self, region: RegionId, regions: Iterable[RegionId], known: Iterable[StreamDef]) -> None:
        self.region = region
        self.regions = sorted(regions)
        self.streams = {stream.name: stream for stream in known}  # of each name the claim that this region follows
        self.claims = {stream.name: {stream.region: stream} for stream in known}

    @property
    def conflicts(self) -> list[StreamDef]:
        """What other regions have defined under names that are another's here."""
        several = [claims for claims in self.claims.values() if len(claims) > 1]
        return [each for claims in several for each in claims.values() if self._is_conflict(each)]

    def _is_conflict(self, claim: StreamDef) -> bool:
        followed = self.streams[claim.name]
        return claim.region != followed.region and not claim.deleted and not followed.deleted

    def define(self, operation: Operation, new: StreamDef, now: float = 0.0) -> StreamDef:
        """The definition to write for a request to this region; raises `BadInput` with the reason to refuse it."""
        _refuse_name(new.name)
        known = self.streams.get(new.name)
        if known is not None and known.region != self.region:
            raise BadInput(f"stream {new.name!r} belongs to region {known.region}: ask there")
        if operation == "create":
            return self._create(new, known, now)
        if known is None or known.deleted:
            raise BadInput(f"stream {new.name!r} is unknown: create it first")
        if operation == "delete":
            return msgspec.structs.replace(known, deleted=True)
        return self._alter(new, known)

    def _create(self, new: StreamDef, known: StreamDef | None, now: float) -> StreamDef:
        refuse_nonsense(new)
        gc = str(GcPolicy.parse(new.gc))
        if known is not None:
            if not known.deleted and (known.gc, known.attrs, known.counted) == (gc, new.attrs, new.counted):
                return known
            state = "was deleted, and its numbers cannot begin again" if known.deleted else "exists with other settings"
            raise BadInput(f"stream {new.name!r} {state}: take another name" + (", or alter it" * (not known.deleted)))
        number, created = self._number(), int(now * 1e6)
        return msgspec.structs.replace(new, region=self.region, gc=gc, number=number, deleted=False, created=created)

    def _number(self) -> int:
        """Free among this region's; regions take turns, so that no two give out the same."""
        taken = {claim.number for claims in self.claims.values() for claim in claims.values()}
        for number in range(self.regions.index(self.region), STREAMS, len(self.regions)):
            if number not in taken:
                return number
        raise BadInput(f"region {self.region} has no number left for another stream: {STREAMS} in all are too many")

    def _alter(self, new: StreamDef, known: StreamDef) -> StreamDef:
        before, after = list(parse_attributes(known.attrs).items()), list(parse_attributes(new.attrs).items())
        if after[: len(before)] != before:
            raise BadInput(
                f"stream {new.name!r} has attributes {known.attrs!r}: they stay, new ones are added at the end"
            )
        altered = msgspec.structs.replace(known, attrs=new.attrs)
        refuse_nonsense(altered)
        return altered

    def learn(self, owner: RegionId, definition: StreamDef) -> bool:
        """Take in a committed definition; False if it is not the claim to its name that this region follows.

        Another region may run other code: raises `BadInput`, and changes nothing, if no stream can be as it says.
        """
        refuse_nonsense(definition, bounded=False)
        if definition.region != owner:
            raise BadInput(f"region {owner} defines {definition.name!r} of region {definition.region}: only its own")
        claims = self.claims.setdefault(definition.name, {})
        claims[owner] = definition
        followed = claims.get(self.region) or min(claims.values(), key=age)
        changed = followed != self.streams.get(definition.name)
        self.streams[definition.name] = followed
        return changed or followed is definition


def age(claim: StreamDef) -> tuple[bool, int, RegionId]:
    """The smallest counts where several regions claim a name."""
    return claim.deleted, claim.created, claim.region


def refuse_nonsense(definition: StreamDef, bounded: bool = True) -> None:
    """Raise `BadInput` with the reason if no stream can be as this says; what is deleted need not be anything.

    ``bounded``: nor may one that is new.
    """
    _refuse_name(definition.name)
    if definition.deleted:
        return
    if definition.counted < 0:
        raise BadInput(f"stream {definition.name!r}: events of {definition.counted} bytes make no sense")
    parse_attributes(definition.attrs)
    refuse_policy(definition.name, GcPolicy.parse(definition.gc, bounded), definition.counted > 0)


def _refuse_name(name: StreamId) -> None:
    if not NAME.fullmatch(name):
        raise BadInput(f"stream {name!r}: a name has letters, digits and . _ -, begins with one of the former two")


def definition_rows(lo: int, definition: StreamDef, now: float, region: RegionId) -> Rows:
    """A definition as the next row of its region's `_streams` stream."""
    origin = Origin(lo, lo + 1, "_owner", 1, lo, 0, now, region)
    return data_rows(lo, [definition.name.encode()], [msgspec.msgpack.encode(definition)], origin)


def definitions_in(rows: Rows) -> list[StreamDef | None]:
    """The definitions that rows of a `_streams` stream hold, oldest first; None for what is none."""
    if not isinstance(rows, ArrowRows):
        return []  # all of them collected or lost
    return [_definition(payload) for payload in rows.batch.column("payload").to_pylist()]


def _definition(payload: bytes | None) -> StreamDef | None:
    try:
        return msgspec.msgpack.decode(payload or b"", type=StreamDef)
    except msgspec.DecodeError:
        return None


LAST_LOST = 1 << 62
"""Where a loss ends at the latest; ours, because whatever is published after it must find numbers below 2**63."""


def refused_loss(stream: StreamDef, end: int, lo: int, hi: int) -> str:
    """Why a range of a stream that ends at ``end`` cannot be declared lost, or ""."""
    if stream.counted:
        return f"stream {stream.name!r} only counts its events, so a part of them cannot be lost"
    if not FIRST <= lo < hi <= LAST_LOST:
        return f"[{lo}, {hi}) is not a range of numbers up to {LAST_LOST}"
    if lo < end:
        return f"stream {stream.name!r}: everything below {end} is known, and what is known is not lost"
    if lo > end:
        return f"stream {stream.name!r} ends at {end}: declare [{end}, {hi}), or [{end}, {lo}) would be a hole"
    return ""
