"""A host's journal: every input with its time, so that a run of a real process can be repeated.

The file begins with what the machine was made from (the parameters of its constructor as the caller packs them, and
the entries of its disk). Then it has every input with the time that the machine was told, and now and then the running
hash of all steps so far, effects included. `replay` feeds the inputs to a new machine and must come to the same hashes:
a machine is a function of its inputs, in a real process as in the simulator (`TraceHash` is the simulator's). An input
is written before it is handled, so the last input of the file is the one that made a machine fail.

    file   = MAGIC | record ...
    record = length (u32) | crc32 (u32) | kind (u8) | step length (u32) | header length (u32) | step | header | body

The file is append-only and buffered: a journal is for diagnosis, not for durability. A record that a crash cut short
ends the file. At its size limit a journal stops and says so; it cannot rotate, because a replay needs its beginning.
If it cannot be written it stops too, and ``error`` says why; the host continues.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from struct import Struct as Packer
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import msgspec

from tidings.core.errors import TidingsError
from tidings.core.ids import NodeId
from tidings.net.codec import JOURNAL, Codec
from tidings.net.frames import Buffer, FrameError
from tidings.protocols.kernel import Effects, Expired, Input, Machine, Persisted, Received, Time
from tidings.sim.world import Started, TraceHash

MAGIC = b"tidings journal 1\n"
LIMIT = 1 << 30  # bytes; ours, because that is minutes under full load and days when idle
BUFFER = 1 << 20  # bytes held back before they are written, at most until the host next rests

HASHED = 256
"""Steps between two hashes; ours, because a divergence should be found near where it began."""

_RECORD = Packer("<IIBII")
_CHECKED = Packer("<BII")  # what the checksum covers besides the payload
START, ENTRY, RECEIVED, EXPIRED, PERSISTED, COMMAND, HASH, STOPPED = range(1, 9)


class BadJournal(TidingsError):
    """A file is no journal, or is damaged before its end."""


class Start(msgspec.Struct, frozen=True, array_like=True):
    """The first record: who, when, what the machine was made from, and how many disk entries follow."""

    node: NodeId
    now: Time
    params: bytes
    entries: int


class JournalStep(msgspec.Struct, frozen=True, array_like=True):
    """The head of an input's record: the rest is the value's own header, and its body."""

    now: Time
    src: NodeId = ""
    token: int = 0


class Journal:
    """Writes one host's journal. ``params`` is whatever `replay`'s caller needs to make the machine again."""

    def __init__(self, path: str | Path, params: bytes = b"", *, codec: Codec = JOURNAL, limit: int = LIMIT) -> None:
        self.path = Path(path)
        self.codec = codec
        self.stopped = False
        self.error: OSError | None = None  # why it was given up
        self._params = params
        self._limit = limit
        self._pack = msgspec.msgpack.Encoder().encode
        self._trace = TraceHash()
        self._node = ""
        self._steps = 0
        self._file: BinaryIO = open(self.path, "xb", buffering=BUFFER)  # noqa: SIM115 - it lives as long as this
        self._file.write(MAGIC)
        self._size = len(MAGIC)

    @property
    def hash(self) -> str:
        """The running hash of all steps written."""
        return self._trace.hexdigest()

    def start(self, now: Time, node: NodeId, entries: Sequence[Any]) -> None:
        """A machine that was made from these entries is about to start."""
        self._node = node
        self._write(START, self._pack(Start(node, now, self._params, len(entries))))
        for entry in entries:
            self._write(ENTRY, b"", *self.codec.split(entry))

    def take(self, now: Time, input: Input) -> None:
        """The machine is about to be told an input."""
        if not self.stopped:
            kind, step, value = _split(now, input)
            if value is None:
                self._write(kind, self._pack(step))
            else:
                self._write(kind, self._pack(step), *self.codec.split(value))

    def add(self, now: Time, input: Any, effects: Effects) -> None:
        """This is what it did."""
        if self.stopped:
            return
        self._trace.add(now, self._node, input, effects)
        self._steps += 1
        if self._size >= self._limit:
            self.stop()
        elif self._steps % HASHED == 0:
            self._write(HASH, self.hash.encode())

    def same(self, command: Any) -> Any:
        """A command as `replay` will see it: its rows have been through the codec."""
        header, body = self.codec.split(command)
        return self.codec.decode(header, memoryview(b"".join(body)))

    def flush(self) -> None:
        """Hand what is buffered to the system."""
        try:
            if not self._file.closed:
                self._file.flush()
        except OSError as error:
            self._give_up(error)

    def stop(self) -> None:
        """Write the hash so far, and nothing more."""
        if not self.stopped:
            self._write(STOPPED, self.hash.encode())
            self.stopped = True
            self.flush()

    def close(self) -> None:
        """End the journal."""
        self.stop()
        self._file.close()

    def _give_up(self, error: OSError) -> None:
        self.stopped, self.error = True, error
        with contextlib.suppress(OSError):  # it tries once more to write what is buffered
            self._file.close()

    def _write(self, kind: int, step: bytes, header: bytes = b"", body: Sequence[Buffer] = ()) -> None:
        if self.stopped:
            return
        payload = (step, header, *body)
        length = sum([len(buffer) for buffer in payload])
        crc = zlib.crc32(_CHECKED.pack(kind, len(step), len(header)))
        for buffer in payload:
            crc = zlib.crc32(buffer, crc)
        try:
            self._file.write(_RECORD.pack(length, crc, kind, len(step), len(header)))
            self._file.writelines(payload)
        except OSError as error:
            self._give_up(error)
        self._size += _RECORD.size + length


def _split(now: Time, input: Input) -> tuple[int, JournalStep, Any]:
    match input:
        case Received(src, message):
            return RECEIVED, JournalStep(now, src), message
        case Expired(timer):
            return EXPIRED, JournalStep(now), timer
        case Persisted(token):
            return PERSISTED, JournalStep(now, "", token), None
    return COMMAND, JournalStep(now), input


# --- reading --------------------------------------------------------------------------------------------


class JournalRecord(NamedTuple):
    """One record of a file."""

    kind: int
    step: bytes
    header: bytes
    body: memoryview


def records(path: str | Path) -> Iterator[JournalRecord]:
    """Every whole record of a file; one that a crash cut short ends it."""
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BadJournal(f"{path}: no journal of this format; it begins with {MAGIC!r}")
        while len(prefix := file.read(_RECORD.size)) == _RECORD.size:
            length, crc, kind, step, head = _RECORD.unpack(prefix)
            at = file.tell() - _RECORD.size
            payload = file.read(length)
            if len(payload) < length:
                return
            if zlib.crc32(payload, zlib.crc32(_CHECKED.pack(kind, step, head))) != crc or step + head > length:
                raise BadJournal(f"{path}: the record at byte {at} is damaged")
            yield JournalRecord(kind, payload[:step], payload[step : step + head], memoryview(payload[step + head :]))


MakeMachine: TypeAlias = Callable[[Start, list[Any]], Machine]
"""(start, entries) -> the machine as it was made then; ``start.params`` is what the journal was given."""


class Replay(msgspec.Struct, frozen=True):
    """What came of running a journal again."""

    node: NodeId
    steps: int
    trace_hash: str
    complete: bool  # the journal was ended, not cut short
    diverged: int | None  # the first hash that differed was written after so many steps; None: none did

    @property
    def same(self) -> bool:
        """Whether the machine did again what it did then, as far as the journal tells."""
        return self.diverged is None


def replay(
    path: str | Path,
    make_machine: MakeMachine,
    *,
    codec: Codec = JOURNAL,
    on_step: Callable[[Time, Any, Effects], None] | None = None,
    check: bool = True,
) -> Replay:
    """Run a journal again; ``on_step`` sees every step, ``check`` runs the machine's invariants after each."""
    reading = records(path)
    start, entries = _beginning(path, reading, codec)
    machine = make_machine(start, entries)
    trace = TraceHash()
    trace.add(start.now, start.node, started(entries), machine.start(start.now))
    steps, complete, diverged = 1, False, None
    for record in reading:
        if record.kind in (HASH, STOPPED):
            if diverged is None and record.step.decode("ascii", "replace") != trace.hexdigest():
                diverged = steps
            complete = record.kind == STOPPED
            continue
        now, input = _input(path, record, codec)
        effects = machine.handle(now, input)
        if check:
            machine.check()
        trace.add(now, start.node, input, effects)
        steps += 1
        if on_step is not None:
            on_step(now, input, effects)
    return Replay(start.node, steps, trace.hexdigest(), complete, diverged)


def started(entries: Sequence[Any]) -> Started:
    """What stands in the hash for the input of a machine's first step."""
    return Started(1, len(entries))


def _beginning(path: str | Path, reading: Iterator[JournalRecord], codec: Codec) -> tuple[Start, list[Any]]:
    first = next(reading, None)
    if first is None or first.kind != START:
        raise BadJournal(f"{path}: it does not begin with the start of a machine")
    try:
        start = msgspec.msgpack.decode(first.step, type=Start)
        entries = [codec.decode(record.header, record.body) for record in islice(reading, start.entries)]
    except (msgspec.DecodeError, FrameError) as error:
        raise BadJournal(f"{path}: its beginning does not decode: {error}") from error
    if len(entries) < start.entries:
        raise BadJournal(f"{path}: cut short within what the disk held")
    return start, entries


def _input(path: str | Path, record: JournalRecord, codec: Codec) -> tuple[Time, Input]:
    try:
        step = msgspec.msgpack.decode(record.step, type=JournalStep)
        if record.kind == PERSISTED:
            return step.now, Persisted(step.token)
        value = codec.decode(record.header, record.body)
    except (msgspec.DecodeError, FrameError) as error:
        raise BadJournal(f"{path}: a record of kind {record.kind} does not decode: {error}") from error
    if record.kind == RECEIVED:
        return step.now, Received(step.src, value)
    if record.kind == EXPIRED:
        return step.now, Expired(value)
    if record.kind == COMMAND:
        return step.now, value
    raise BadJournal(f"{path}: a record of kind {record.kind} where an input should be")
