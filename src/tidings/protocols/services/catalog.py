"""The catalog of streams: each region defines its own, in an internal stream `_streams/<region>` that all regions have.

A definition is an event of that stream, keyed by the name of the stream that it defines. The owner's head numbers it,
and it is carried to the other regions like any foreign stream. A replica knows a stream once the definition is
committed there. So every record with rows of a stream comes after its definition, in the log and in every snapshot.

A stream has an *id*, given at its creation: its name, and a mark that no other stream of that name ever has. Protocols
know streams by their ids; only clients translate names. So a stream that is deleted and created again is another
stream, and nobody goes on in it with the numbers of the first.

A head refuses a name that it knows to be taken. Two regions that cannot reach each other may still give out one name.
Then there are two *claims* to it. Every region decides by itself, from the claims alone, whatever their order and
whatever snapshot they came from (decision 0013):

* a region keeps its own definition and all that was published to it there, deleted or not;
* any other region follows the oldest claim that is not deleted: the smallest (created, region).

A region that has followed another claim drops that stream's rows, which their owner has, and begins with the rows of
the oldest claim. Claims that are not followed are told in `Description`, and reported (``stream_conflict``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar, Literal, TypeAlias

import msgspec

from tidings.core.errors import BadInput
from tidings.core.filters import parse_attributes
from tidings.core.gc import GcPolicy
from tidings.core.history import refuse_policy
from tidings.core.hybrid_clock import MAX_STREAMS, STREAM_BITS
from tidings.core.ids import FIRST, MARK, NodeId, RegionId, StreamId, StreamName
from tidings.core.rows import ArrowRows, Origin, Rows, data_rows
from tidings.protocols.fabrics.family import FabricChoice
from tidings.protocols.kernel import Message, Value
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.leases import LeaseState

PREFIX = "_streams/"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
MARKS = re.compile(r"[0-9a-z]{0,16}")
PAST = 16  # marks of deleted streams that a definition names; ours: a lake that is older is not recognized
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
STREAMS = MAX_STREAMS  # a cluster has at most so many: the number of a stream is part of its ticks

Operation: TypeAlias = Literal["create", "alter", "delete"]


class StreamDef(Value, frozen=True, gc=False):
    """What everybody knows of a stream."""

    name: StreamName
    region: RegionId
    gc: str = "none"
    counted: int = 0  # bytes of an event whose rows are only counted; 0: real rows
    number: int = 0  # low bits of its ticks
    attrs: str = ""  # declared attributes, as in "loc string, price double"
    deleted: bool = False
    created: int = 0  # when, in microseconds by the clock of the head that did it; of two claims the older counts
    mark: str = ""  # tells its id from those of other streams of this name; "": it was there from the beginning
    past: tuple[str, ...] = ()  # marks of the streams of this name that were deleted before, the newest ones

    @property
    def id(self) -> StreamId:
        return self.name + MARK + self.mark if self.mark else self.name


class Define(Message, frozen=True, gc=False):
    """To the owner's head: create, alter or delete a stream; answered when it is committed, or refused.

    To create a stream anew the definition has the mark of the deleted one, so that a late copy of an earlier request
    creates nothing.
    """

    from_clients: ClassVar[bool] = True

    nonce: int  # the same in each retry
    operation: Operation
    definition: StreamDef


class Defined(Message, frozen=True, gc=False):
    """The definition is committed."""

    nonce: int
    definition: StreamDef


class NotDefined(Message, frozen=True, gc=False):
    """The definition was refused; nothing has changed.

    ``after``: the stream was deleted; a request with this mark creates another one of its name.
    """

    nonce: int
    reason: str
    after: str | None = None


class DeclareLost(Message, frozen=True, gc=False):
    """To the owner's head: declare [lo, hi), which nobody has, lost; answered as `Define` is.

    A history has no holes, so what is unknown begins where the stream ends: anything else is refused.
    """

    from_clients: ClassVar[bool] = True

    nonce: int  # the same in each retry
    stream: StreamId
    lo: int
    hi: int


class Describe(Message, frozen=True, gc=False):
    """To any replica: what is there? Answered with `Description`."""

    from_clients: ClassVar[bool] = True

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
    memberships: tuple[ChainConfig, ...]
    streams: tuple[StreamDef, ...]
    states: dict[StreamId, StreamState]
    receipts: bool = False  # whether the cluster asks its subscribers for receipts
    leases: tuple[LeaseState, ...] = ()
    conflicts: tuple[StreamDef, ...] = ()  # of the same names, by other regions than those that are followed here
    fabric: FabricChoice = FabricChoice()  # of the replica's region
    edges: tuple[NodeId, ...] = ()  # of the replica's region, to which clients may connect

    def valid(self) -> bool:
        return all([each.valid() for each in self.memberships])


class Why(Message, frozen=True, gc=False):
    """To any replica: what has become of this number? Answered with `Because`."""

    from_clients: ClassVar[bool] = True

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


class WasDeleted(BadInput):
    """A name is free again: say that you know it, by the mark of the stream that was deleted."""

    def __init__(self, reason: str, mark: str) -> None:
        super().__init__(reason)
        self.mark = mark


class Catalog:
    """The definitions known to one replica."""

    def __init__(self, region: RegionId, regions: Iterable[RegionId], known: Iterable[StreamDef]) -> None:
        self.region = region
        self.regions = sorted(regions)
        self.names = {stream.name: stream for stream in known}  # what each name means in this region
        self.claims = {stream.name: {stream.region: stream} for stream in known}

    @property
    def conflicts(self) -> list[StreamDef]:
        """What other regions have defined under names that are another's here."""
        several = [claims for claims in self.claims.values() if len(claims) > 1]
        return [each for claims in several for each in claims.values() if self._is_conflict(each)]

    def _is_conflict(self, claim: StreamDef) -> bool:
        followed = self.names[claim.name]
        return claim.region != followed.region and not claim.deleted and not followed.deleted

    def define(self, operation: Operation, new: StreamDef, now: float = 0.0) -> StreamDef:
        """The definition to write for a request to this region; raises `BadInput` with the reason to refuse it."""
        _refuse_name(new.name)
        known = self.names.get(new.name)
        if known is not None and known.region != self.region:
            raise BadInput(f"stream {new.name!r} belongs to region {known.region}: ask there")
        if operation == "create":
            return self._create(new, known, now)
        if known is not None and known.deleted and operation == "delete" and new.mark == known.mark:
            return known  # a late copy, or the first answer was lost
        if known is None or known.deleted:
            raise BadInput(f"stream {new.name!r} is unknown: create it first")
        if new.mark not in ("", known.mark):
            raise BadInput(f"stream {new.id!r} was deleted: its name is another stream's now")
        if operation == "delete":
            return msgspec.structs.replace(known, deleted=True)
        return self._alter(new, known)

    def _create(self, new: StreamDef, known: StreamDef | None, now: float) -> StreamDef:
        refuse_nonsense(new)
        gc = str(GcPolicy.parse(new.gc))
        created, past = int(now * 1e6), tuple[str, ...]()
        if known is not None and known.deleted:
            others = [each for each in self.claims[new.name].values() if not each.deleted]
            if others:
                raise BadInput(f"stream {new.name!r} belongs to region {min(others, key=age).region}: ask there")
            if new.mark != known.mark:
                raise WasDeleted(f"stream {new.name!r} was deleted", known.mark)
            created = max(created, known.created + 1)  # another stream, also by a clock that was set back
            past = (*known.past, known.mark)[-PAST:]
        elif known is not None:
            if (known.gc, known.attrs, known.counted) == (gc, new.attrs, new.counted):
                return known
            raise BadInput(f"stream {new.name!r} exists with other settings: take another name, or alter it")
        number = self._number()
        mark = _in_digits(created << STREAM_BITS | number)  # the tick of its creation: no other stream has it
        return StreamDef(new.name, self.region, gc, new.counted, number, new.attrs, False, created, mark, past)

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
        changed = followed != self.names.get(definition.name)
        self.names[definition.name] = followed
        return changed or followed is definition


def age(claim: StreamDef) -> tuple[bool, int, RegionId]:
    """The smallest counts where several regions claim a name."""
    return claim.deleted, claim.created, claim.region


def refuse_nonsense(definition: StreamDef, bounded: bool = True) -> None:
    """Raise `BadInput` with the reason if no stream can be as this says; what is deleted need not be anything.

    ``bounded``: nor may one that is new.
    """
    _refuse_name(definition.name)
    if not MARKS.fullmatch(definition.mark):
        raise BadInput(f"stream {definition.name!r}: {definition.mark!r} is no mark")
    if definition.deleted:
        return
    if definition.counted < 0:
        raise BadInput(f"stream {definition.name!r}: events of {definition.counted} bytes make no sense")
    parse_attributes(definition.attrs)
    refuse_policy(definition.name, GcPolicy.parse(definition.gc, bounded), definition.counted > 0)


def _in_digits(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, len(DIGITS))
        digits = DIGITS[digit] + digits
    return digits


def _refuse_name(name: StreamName) -> None:
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
