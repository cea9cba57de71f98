"""Values of the protocols to frames and back.

A header is the msgpack array ``[tag, value]``; the tag is the name of the class. What carries no rows is the struct
itself, as a map: fields may be added with a default, and an older reader skips them. What carries rows has a head of
its own here, an array, with the heads of its spans (core/wire.py) in it and their columns in the body: they are
neither copied nor looked at on the way out, and used where they lie on the way in.

What comes in is not trusted: an unknown tag, a wrong type, a number no column can hold, a membership without a replica
or rows that do not fit their span are a `FrameError`; a machine never sees them. Messages a machine must judge itself
(from whom, in which epoch, about which stream) pass.

The same registry serves the journal, which also writes timers, commands and what a disk held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from tidings.core.errors import BadInput
from tidings.core.ids import FIRST, NEVER, StreamId
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
from tidings.protocols import (
    catalog,
    chain,
    client,
    configuration,
    interregion,
    leases,
    log,
    messages,
    proxy,
    publishing,
    pull,
    receipts,
    sinks,
    subscriptions,
    views,
)
from tidings.protocols.membership import Membership

V = TypeVar("V")
H = TypeVar("H")
Check: TypeAlias = Callable[[Any], bool]

MESSAGES: tuple[type, ...] = (
    *(messages.Offer, messages.Want, messages.Know, messages.Read, messages.Answer, messages.Gone, messages.Done),
    *(chain.Append, chain.Ack, chain.Fetch, chain.Refuse, chain.Install, chain.NextPiece),
    *(chain.Compare, chain.Compared, configuration.Resign),
    *(configuration.Beat, configuration.Promote, configuration.Current),
    *(publishing.OpenSession, publishing.SessionOpened, publishing.Publish, publishing.Published),
    *(publishing.NotHead, publishing.Rejected),
    *(interregion.Advertise, interregion.Solicit, interregion.Subscribe, interregion.Unsubscribe),
    *(views.View, pull.Probe),
    *(catalog.Define, catalog.Defined, catalog.NotDefined, catalog.Describe, catalog.Description),
    *(catalog.DeclareLost, catalog.Why, catalog.Because, receipts.Receipts, receipts.ReceiptsKept),
    *(subscriptions.Follow, subscriptions.Feed, subscriptions.Consumed, subscriptions.Unfollow),
    *(subscriptions.Unfollowed, subscriptions.OpenCursor, subscriptions.SaveCursor, subscriptions.CursorAt),
    *(leases.Lease, leases.Release, leases.Leased, leases.Unleased),
    *(sinks.StageRows, sinks.RowsStaged, sinks.CommitBatch, sinks.BatchCommitted),
    *(sinks.AbortBatch, sinks.BatchAborted, sinks.SinkRefused),
)
"""Everything nodes tell each other."""

FROM_CLIENTS: frozenset[type] = frozenset(
    (
        *(messages.Offer, messages.Want, messages.Know, messages.Read, views.View, pull.Probe),
        *(publishing.OpenSession, publishing.Publish, catalog.Define, catalog.DeclareLost),
        *(catalog.Describe, catalog.Why),
        *(subscriptions.Follow, subscriptions.Consumed, subscriptions.Unfollow),
        *(subscriptions.OpenCursor, subscriptions.SaveCursor, receipts.Receipts, leases.Lease, leases.Release),
        *(sinks.StageRows, sinks.CommitBatch, sinks.AbortBatch),
    )
)
"""What a client may say; the rest is between nodes of the cluster."""

TIMERS: tuple[type, ...] = (
    *(chain.BeatTick, chain.RetryTick, configuration.SweepTick, publishing.PublishTick, client.ReadTick),
    *(interregion.AdvertiseTick, interregion.PumpTick, views.GossipTick, proxy.MaintainTick),
    *(pull.ShuffleTick, pull.FallbackTick, pull.ProbeTick, subscriptions.FeedTick, subscriptions.FollowTick),
    leases.LeaseTick,
    sinks.SinkTick,
)
COMMANDS: tuple[type, ...] = (
    *(publishing.Post, client.ReadAsOf, configuration.Change),
    *(subscriptions.Take, subscriptions.Save, subscriptions.Lost, subscriptions.Learn, leases.MoveLease),
)
ENTRIES: tuple[type, ...] = (log.Logged, log.CutBack, log.Installed, log.TokenPassed, log.Checkpoint, Membership)
"""What machines write to their disks."""


# --- heads of what carries rows -------------------------------------------------------------------------


class Head(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """As an array: fields may be added at the end only, with defaults."""


class KnowHead(Head, frozen=True, gc=False, array_like=True):
    """`Know`."""

    stream: str
    spans: tuple[SpanHead, ...]
    horizon: int
    owner: str = ""


class AnswerHead(Head, frozen=True, gc=False, array_like=True):
    """`Answer`."""

    span: SpanHead


class RecordHead(Head, frozen=True, gc=False, array_like=True):
    """`Record`."""

    epoch: int
    lsn: int
    parts: tuple[SpanHead, ...]


class AppendHead(Head, frozen=True, gc=False, array_like=True):
    """`Append`."""

    epoch: int
    records: tuple[RecordHead, ...]


class InstallHead(Head, frozen=True, gc=False, array_like=True):
    """`Install`."""

    epoch: int
    lsn: int
    index: int
    last: bool
    spans: tuple[SpanHead, ...]
    made: int | None = None


class PublishHead(Head, frozen=True, gc=False, array_like=True):
    """`Publish`."""

    stream: str
    publisher: str
    session: int
    first: int
    rows: RowsHead


class StageRowsHead(Head, frozen=True, gc=False, array_like=True):
    """`StageRows`."""

    nonce: int
    of: sinks.SinkBatch
    partition: int
    attempt: int
    index: int
    rows: RowsHead


class PostHead(Head, frozen=True, gc=False, array_like=True):
    """`Post`."""

    stream: str
    rows: RowsHead
    tag: int = 0


class LoggedHead(Head, frozen=True, gc=False, array_like=True):
    """`Logged`."""

    record: RecordHead
    committed: int


class InstalledHead(Head, frozen=True, gc=False, array_like=True):
    """`Installed`."""

    lsn: int
    index: int
    spans: tuple[SpanHead, ...]
    last: bool
    made: int | None = None


class CheckpointHead(Head, frozen=True, gc=False, array_like=True):
    """`Checkpoint`."""

    lsn: int
    index: int
    spans: tuple[SpanHead, ...]
    last: bool
    committed: int
    token_epoch: int
    joined_epoch: int
    made: int | None = None


class FeedHead(Head, frozen=True, gc=False, array_like=True):
    """`Feed`."""

    id: int
    at: int
    spans: tuple[SpanHead, ...]
    horizon: int


class Form(msgspec.Struct, Generic[V, H], frozen=True):
    """How a class that carries rows becomes a head and a body, and back."""

    kind: type[V]
    head: type[H]
    pack: Callable[[V], tuple[H, Body]]
    unpack: Callable[[H, memoryview], V]


def _pack_know(know: messages.Know) -> tuple[KnowHead, Body]:
    heads, body = encode_spans(know.spans)
    return KnowHead(know.stream, heads, know.horizon, know.owner), body


def _unpack_know(head: KnowHead, body: memoryview) -> messages.Know:
    spans = _knowledge(head.stream, decode_spans(head.spans, body))
    return messages.Know(head.stream, spans, head.horizon, head.owner)


def _knowledge(stream: StreamId, spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Spans that are a knowledge list of one stream; others would enter the receiver's log under a false name."""
    at = FIRST
    for span in spans:
        if span.stream != stream or not at <= span.lo < span.hi:
            raise BadInput(f"{span.stream!r} [{span.lo}, {span.hi}) in a list of {stream!r} that has come to {at}")
        at = span.hi
    return spans


def _pack_answer(answer: messages.Answer) -> tuple[AnswerHead, Body]:
    head, body = encode_span(answer.span)
    return AnswerHead(head), body


def _unpack_answer(head: AnswerHead, body: memoryview) -> messages.Answer:
    return messages.Answer(decode_span(head.span, body))


def _pack_records(records: Iterable[log.Record]) -> tuple[tuple[RecordHead, ...], Body]:
    heads: list[RecordHead] = []
    bodies: Body = []
    for record in records:
        parts, body = encode_spans(record.parts)
        heads.append(RecordHead(record.epoch, record.lsn, parts))
        bodies += body
    return tuple(heads), bodies


def _unpack_records(heads: Sequence[RecordHead], body: memoryview) -> tuple[log.Record, ...]:
    spans = decode_spans([part for head in heads for part in head.parts], body)
    records: list[log.Record] = []
    at = 0
    for head in heads:
        parts: tuple[Span, ...] = spans[at : at + len(head.parts)]
        records.append(log.Record(head.epoch, head.lsn, parts))
        at += len(parts)
    return tuple(records)


def _pack_append(append: chain.Append) -> tuple[AppendHead, Body]:
    heads, body = _pack_records(append.records)
    return AppendHead(append.epoch, heads), body


def _unpack_append(head: AppendHead, body: memoryview) -> chain.Append:
    return chain.Append(head.epoch, _unpack_records(head.records, body))


def _pack_install(piece: chain.Install) -> tuple[InstallHead, Body]:
    heads, body = encode_spans(piece.spans)
    return InstallHead(piece.epoch, piece.lsn, piece.index, piece.last, heads, piece.made), body


def _unpack_install(head: InstallHead, body: memoryview) -> chain.Install:
    return chain.Install(head.epoch, head.lsn, head.index, head.last, decode_spans(head.spans, body), head.made)


def _pack_publish(batch: publishing.Publish) -> tuple[PublishHead, Body]:
    rows, body = encode_rows(batch.rows)
    return PublishHead(batch.stream, batch.publisher, batch.session, batch.first, rows), body


def _unpack_publish(head: PublishHead, body: memoryview) -> publishing.Publish:
    rows = decode_rows(head.rows, body)
    return publishing.Publish(head.stream, head.publisher, head.session, head.first, rows)


def _pack_stage(stage: sinks.StageRows) -> tuple[StageRowsHead, Body]:
    rows, body = encode_rows(stage.rows)
    return StageRowsHead(stage.nonce, stage.of, stage.partition, stage.attempt, stage.index, rows), body


def _unpack_stage(head: StageRowsHead, body: memoryview) -> sinks.StageRows:
    rows = decode_rows(head.rows, body)
    return sinks.StageRows(head.nonce, head.of, head.partition, head.attempt, head.index, rows)


def _pack_post(post: publishing.Post) -> tuple[PostHead, Body]:
    rows, body = encode_rows(post.rows)
    return PostHead(post.stream, rows, post.tag), body


def _unpack_post(head: PostHead, body: memoryview) -> publishing.Post:
    return publishing.Post(head.stream, decode_rows(head.rows, body), head.tag)


def _pack_logged(entry: log.Logged) -> tuple[LoggedHead, Body]:
    heads, body = _pack_records((entry.record,))
    return LoggedHead(heads[0], entry.committed), body


def _unpack_logged(head: LoggedHead, body: memoryview) -> log.Logged:
    return log.Logged(_unpack_records((head.record,), body)[0], head.committed)


def _pack_installed(entry: log.Installed) -> tuple[InstalledHead, Body]:
    heads, body = encode_spans(entry.spans)
    return InstalledHead(entry.lsn, entry.index, heads, entry.last, entry.made), body


def _unpack_installed(head: InstalledHead, body: memoryview) -> log.Installed:
    return log.Installed(head.lsn, head.index, decode_spans(head.spans, body), head.last, head.made)


def _pack_checkpoint(entry: log.Checkpoint) -> tuple[CheckpointHead, Body]:
    heads, body = encode_spans(entry.spans)
    epochs = entry.token_epoch, entry.joined_epoch, entry.made
    return CheckpointHead(entry.lsn, entry.index, heads, entry.last, entry.committed, *epochs), body


def _unpack_checkpoint(head: CheckpointHead, body: memoryview) -> log.Checkpoint:
    spans = decode_spans(head.spans, body)
    epochs = head.token_epoch, head.joined_epoch, head.made
    return log.Checkpoint(head.lsn, head.index, spans, head.last, head.committed, *epochs)


def _pack_feed(feed: subscriptions.Feed) -> tuple[FeedHead, Body]:
    heads, body = encode_spans(feed.spans)
    return FeedHead(feed.id, feed.at, heads, feed.horizon), body


def _unpack_feed(head: FeedHead, body: memoryview) -> subscriptions.Feed:
    spans = decode_spans(head.spans, body)
    stream = spans[0].stream if spans else ""
    return subscriptions.Feed(head.id, head.at, _knowledge(stream, spans), head.horizon)


FORMS: tuple[Form[Any, Any], ...] = (
    Form(messages.Know, KnowHead, _pack_know, _unpack_know),
    Form(messages.Answer, AnswerHead, _pack_answer, _unpack_answer),
    Form(chain.Append, AppendHead, _pack_append, _unpack_append),
    Form(chain.Install, InstallHead, _pack_install, _unpack_install),
    Form(publishing.Publish, PublishHead, _pack_publish, _unpack_publish),
    Form(sinks.StageRows, StageRowsHead, _pack_stage, _unpack_stage),
    Form(publishing.Post, PostHead, _pack_post, _unpack_post),
    Form(log.Logged, LoggedHead, _pack_logged, _unpack_logged),
    Form(log.Installed, InstalledHead, _pack_installed, _unpack_installed),
    Form(log.Checkpoint, CheckpointHead, _pack_checkpoint, _unpack_checkpoint),
    Form(subscriptions.Feed, FeedHead, _pack_feed, _unpack_feed),
)


# --- what types alone do not say ------------------------------------------------------------------------


def _natural(numbers: Iterable[int]) -> bool:
    """Whether numbers can be sequence numbers, epochs, lsns, nonces: columns hold 64 bits, and none is negative."""
    return all([0 <= number <= NEVER for number in numbers])


def _all_natural(numbers: tuple[int, ...]) -> bool:
    """The same for at least one, several times as fast."""
    return min(numbers) >= 0 and max(numbers) <= NEVER


def _sound(membership: Membership) -> bool:
    members = membership.replicas
    return len(members) > 0 and len(set(members)) == len(members) and 0 <= membership.epoch <= NEVER


def _sound_batch(of: sinks.SinkBatch) -> bool:
    names = (of.writer, of.stream, of.query)
    return _natural((of.batch, of.run)) and all([0 < len(name) <= NAME for name in names])


NAME = 256  # characters of what a sink is told to remember; ours, because it keeps them for good

CHECKS: dict[type, Check] = {
    sinks.StageRows: lambda stage: _sound_batch(stage.of),
    sinks.AbortBatch: lambda abort: _sound_batch(abort.of),
    sinks.CommitBatch: lambda commit: (
        _sound_batch(commit.of)
        and _natural([number for each in commit.attempts for number in (each.attempt, each.chunks, each.rows)])
    ),
    Membership: _sound,
    views.View: lambda view: _sound(view.membership) and _natural([age for _, age in view.entries]),
    configuration.Current: lambda current: _sound(current.membership),
    publishing.NotHead: lambda answer: _sound(answer.membership),
    interregion.Advertise: lambda advert: (
        _sound(advert.membership) and _natural([*advert.horizons.values(), *advert.known.values()])
    ),
    subscriptions.Learn: lambda command: _sound(command.membership),
    catalog.Description: lambda told: all([_sound(each) for each in told.memberships]),
    receipts.Receipts: lambda message: all([each.sound for each in message.receipts]),
    subscriptions.Follow: lambda follow: subscriptions.LATEST <= follow.lo <= NEVER,
}

SIGNED: dict[type, str] = {subscriptions.Follow: "lo"}
"""Fields that may be negative, and are checked above."""


def _naturals(kind: type[msgspec.Struct]) -> Check | None:
    """A check of the fields that are plain integers; None if there are none."""
    fields = msgspec.structs.fields(kind)
    names = [field.name for field in fields if field.type is int and field.name != SIGNED.get(kind)]
    if not names:
        return None
    get: Callable[[Any], Any] = attrgetter(*names)
    if len(names) == 1:
        return lambda value: 0 <= get(value) <= NEVER
    return lambda value: _all_natural(get(value))


def _all(checks: Sequence[Check]) -> Check | None:
    if len(checks) < 2:
        return checks[0] if checks else None
    return lambda value: all([check(value) for check in checks])


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
    unpack: Callable[[Any, memoryview], Any] | None
    check: Check | None


class Codec:
    """Encodes and decodes values of the classes it was given; no two may have one name."""

    def __init__(self, kinds: Iterable[type], forms: Iterable[Form[Any, Any]] = FORMS) -> None:
        self._encode = msgspec.msgpack.Encoder(order="deterministic").encode
        self._out: dict[type, tuple[bytes, Callable[[Any], tuple[Any, Body]] | None]] = {}
        self._in: dict[bytes, _Entry] = {}
        by_kind = {form.kind: form for form in forms}
        for kind in kinds:
            prefix = _prefix(kind)
            if prefix in self._in:
                raise BadInput(f"{kind.__name__}: a tag names one class, and there are two of this name")
            form = by_kind.get(kind)
            shape: type[Any] = form.head if form else kind
            checks = [check for check in (_naturals(shape), CHECKS.get(kind)) if check]
            self._out[kind] = (prefix, form.pack if form else None)
            decode: Callable[[Buffer], Any] = msgspec.msgpack.Decoder(shape).decode
            self._in[prefix] = _Entry(kind, decode, form.unpack if form else None, _all(checks))

    @property
    def kinds(self) -> frozenset[type]:
        """The classes it knows."""
        return frozenset(self._out)

    def encode(self, value: Any) -> Outgoing:
        """The frame of a value."""
        return frame(*self.split(value))

    def split(self, value: Any) -> tuple[bytes, Sequence[Buffer]]:
        """Header and body of a value, for whoever frames by himself."""
        try:
            prefix, pack = self._out[type(value)]
        except KeyError:
            raise BadInput(f"{type(value).__name__} has no encoding: register it in net/codec.py") from None
        if pack is None:
            return prefix + self._encode(value), ()
        head, body = pack(value)
        return prefix + self._encode(head), body

    def decode(self, header: bytes, body: memoryview) -> Any:
        """The value of a frame; raises `FrameError`. The value keeps the body: nobody may write to it again."""
        end = tag_end(header)
        entry = self._in.get(header[:end])
        if entry is None:
            raise FrameError("unknown_message", f"{tag_of(header)!r} is no message of this format")
        try:
            value = entry.decode(header[end:])
            if entry.check is not None and not entry.check(value):
                raise FrameError("bad_message", f"{entry.kind.__name__}: a number or a membership makes no sense")
            if entry.unpack is not None:
                return entry.unpack(value, body)
        except (msgspec.DecodeError, UnicodeDecodeError, BadInput, RecursionError) as error:
            raise FrameError("bad_message", f"{entry.kind.__name__}: {error}") from error
        if body:
            raise FrameError("bad_message", f"{entry.kind.__name__} has no body, but {len(body)} bytes came")
        return value


def tag_end(header: bytes) -> int:
    """Where the tag of a header ends."""
    if len(header) < 3 or header[0] != _PAIR or header[1] & 0xE0 != _FIXSTR:
        raise FrameError("frame", "no header: it is the msgpack array [tag, value]")
    return 2 + (header[1] & 0x1F)


def tag_of(header: bytes) -> str:
    """The tag of a header."""
    return header[2 : tag_end(header)].decode("ascii", "replace")


WIRE = Codec(MESSAGES)
"""What goes over connections between nodes."""

JOURNAL = Codec((*MESSAGES, *TIMERS, *COMMANDS, *ENTRIES))
"""What a host can write into its journal."""
