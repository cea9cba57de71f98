"""The lake: streams as Parquet files by stream and day, and the commits that say which files count.

    lake/
      commits/0000000007.json         a change, in order: the lake is what all of them together say
      commits/0000000006.base         the sum of the commits up to here; most of those are deleted
      data/stream=prices~1hq2k7/day=2026-11-16/<batch>-<part>.parquet
      checkpoints/                    of the job that writes it

Streams are kept by their ids: one that was deleted and created again is another stream here, too.

A file counts from the commit that adds it to the one that removes it. A file that no commit names was left by a job
that died, and is never read. A commit is a file that is linked to its number. Two writers cannot both have a number
(the second one looks again and takes the next), and a crash leaves a commit whole or not at all. So every commit is a
*snapshot*, and older ones can be read until `expire` deletes them.

Besides rows a commit carries what is known of streams: their definitions, where they *ended* at their owner, and their
*coverage*: of [lo, hi) exactly the rows in the lake survived collection by the events below asof. It is the span again:
rows leave, coverage stays. So a number without a row is explained: collected before it was read (inside the coverage),
or not read yet (behind it). Appended rows begin where the coverage of their stream ends, or are cut there. So rows that
a job writes again after a crash are not in the lake twice.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidings.check.survivors import codes, ints
from tidings.client.events import LOST
from tidings.core.errors import BadInput
from tidings.core.filters import ARROW, AttrType, parse_attributes
from tidings.core.hashing import Seqs, content_hashes
from tidings.core.ids import FIRST, StreamId, StreamName
from tidings.core.rows import DATA, GC, NO_ROWS, ROW_SCHEMA, WHERE, ArrowRows, Origin, Rows
from tidings.core.span import Span
from tidings.protocols.services.catalog import StreamDef

FORMAT = 1
"""The number of this layout; a newer one is refused."""

TIME = pa.timestamp("us", tz="UTC")
COLUMNS: dict[str, pa.DataType] = {
    "stream": pa.string(),
    "seq": pa.int64(),
    "key": pa.binary(),
    "payload": pa.binary(),
    "published_at": TIME,
    "region": pa.string(),
    "publisher": pa.string(),
    "pub_seq": pa.int64(),
    "kind": pa.string(),
    "before": pa.int64(),
    "where": pa.string(),
    "_session": pa.int64(),
    "_tick": pa.int64(),
    "_hash": pa.int64(),
}
"""What a file has of every event, besides the attributes of its stream: what a subscriber gets, what it collects, and
where it comes from. ``_hash`` is its content hash (core/hashing.py), the 64 bits of it."""

KINDS = {"data": DATA, "gc": GC}
CHUNK = 16_384  # rows of a span that is read back; ours, as in a message
TRIES = 10  # commits that others may make before this one gives up; ours
TAKEN = (
    100  # commits before the oldest snapshot whose files stay: a slow writer sees that their numbers are taken; ours
)
PAUSE = 0.05  # seconds until others have finished what they do with two files; ours
ABANDONED = 86_400.0  # seconds after which a file that no commit names is taken to be left behind; ours

T = TypeVar("T")


class Cover(msgspec.Struct, frozen=True, array_like=True):
    """Of [lo, hi) of a stream exactly the rows in the lake survive collection by the events below asof."""

    stream: StreamId
    lo: int
    hi: int
    asof: int
    lost: bool = False  # its owner has declared that nobody has it: there is no row, and nothing collected it


class File(msgspec.Struct, frozen=True):
    """A file of rows of one stream, with numbers in [lo, hi)."""

    path: str  # in the lake
    stream: StreamId
    day: str
    lo: int
    hi: int
    rows: int


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit changes. A compaction replaces files, and the coverage below where its own ends."""

    id: int = 0  # given when it is made
    kind: Literal["append", "compact"]
    at: float
    format: int = FORMAT
    job: str = ""  # whose
    batch: int = 0  # and its how manieth
    add: tuple[File, ...] = ()
    remove: tuple[str, ...] = ()
    coverage: tuple[Cover, ...] = ()
    definitions: tuple[StreamDef, ...] = ()
    deleted: tuple[StreamId, ...] = ()
    ends: dict[StreamId, int] = {}


@dataclass
class Snapshot:
    """The lake as of a commit. Of streams that were deleted it has what was read of them."""

    id: int = 0
    files: dict[str, File] = field(default_factory=dict)
    coverage: dict[StreamId, list[Cover]] = field(default_factory=dict)
    definitions: dict[StreamId, StreamDef] = field(default_factory=dict)
    deleted: set[StreamId] = field(default_factory=set)
    ends: dict[StreamId, int] = field(default_factory=dict)
    format: int = FORMAT

    def copy(self) -> Snapshot:
        """One that can go on by itself."""
        same = replace(self, files=dict(self.files), coverage=dict(self.coverage), definitions=dict(self.definitions))
        return replace(same, deleted=set(self.deleted), ends=dict(self.ends))

    def apply(self, commit: Commit) -> None:
        """The next commit."""
        self.id = commit.id
        for path in commit.remove:
            del self.files[path]
        self.files |= {file.path: file for file in commit.add}
        if commit.kind == "compact":
            ends = {cover.stream: cover.hi for cover in commit.coverage}
            self.coverage |= {stream: clipped(self.coverage[stream], ends) for stream in ends}
        for cover in commit.coverage:
            self.coverage[cover.stream] = covered([*self.coverage.get(cover.stream, []), cover])
        self.definitions |= {each.id: each for each in commit.definitions}
        self.deleted = (self.deleted - {each.id for each in commit.definitions}) | set(commit.deleted)
        self.ends |= {name: max(end, self.ends.get(name, FIRST)) for name, end in commit.ends.items()}

    @property
    def streams(self) -> list[StreamId]:
        """The streams of which something is known."""
        return sorted({*self.coverage, *self.definitions})

    def id_of(self, stream: StreamName | StreamId) -> StreamId:
        """The stream that a name means: the newest, if several have had the name; raises `BadInput` if none has."""
        named = [each for each in self.definitions.values() if stream in (each.name, each.id)]
        if not named:
            known = ", ".join(sorted({each.name for each in self.definitions.values()})) or "none"
            raise BadInput(f"stream {stream!r} is not in the lake: there are {known}")
        return max(named, key=lambda each: (each.id not in self.deleted, each.created)).id

    def end(self, stream: StreamId) -> int:
        """The first number of a stream that is not in the lake yet."""
        covers = self.coverage.get(stream)
        return covers[-1].hi if covers else FIRST

    def of(self, stream: StreamId, lo: int = FIRST, hi: int | None = None) -> list[File]:
        """The files that may hold rows of a range, in order."""
        mine = [file for file in self.files.values() if file.stream == stream]
        inside = [file for file in mine if file.hi > lo and (hi is None or file.lo < hi)]
        return sorted(inside, key=lambda file: (file.lo, file.path))


def covered(covers: Iterable[Cover]) -> list[Cover]:
    """Coverage of one stream with neighbours as one where no claim changes (core/span.py)."""
    out: list[Cover] = []
    for cover in sorted(covers, key=lambda each: each.lo):
        last = out[-1] if out else None
        if last is not None and last.hi == cover.lo and last.lost == cover.lost:
            asof = max(last.asof, last.lo)
            if asof == cover.asof or (asof <= cover.lo and cover.asof <= cover.lo):
                out[-1] = Cover(cover.stream, last.lo, cover.hi, last.asof, last.lost)
                continue
        out.append(cover)
    return out


class Lake:
    """A lake in a directory that all who work with it can see."""

    def __init__(self, directory: str | Path) -> None:
        self.root = Path(directory).absolute()
        self._newest = Snapshot()  # that was read here: the next one goes on from it

    @classmethod
    def existing(cls, directory: str | Path) -> Lake:
        """A lake that is there; raises `BadInput`."""
        lake = cls(directory)
        if not lake.ids():
            raise BadInput(f"{directory} is no lake: make one with tidings archive run --lake {directory}")
        return lake

    @property
    def _commits(self) -> Path:
        return self.root / "commits"

    @property
    def checkpoints(self) -> Path:
        """Where jobs keep how far they got."""
        return self.root / "checkpoints"

    # --- commits ----------------------------------------------------------------------------------------

    def ids(self) -> list[int]:
        """The snapshots that can be read, oldest first."""
        base, ids = self._history()
        return [base, *ids] if base else ids

    def snapshot(self, asof: int | None = None) -> Snapshot:
        """The lake as it is, or as it was as of a commit."""
        for _ in range(TRIES):
            base, ids = self._history()
            there = [base, *ids] if base else ids
            if asof is not None and asof not in there:
                said = f"from {there[0]} to {there[-1]}" if there else "none"
                raise BadInput(f"{self.root} has no snapshot {asof}: there are {said}; older ones have expired")
            try:
                return self._as_of(base, [id for id in ids if asof is None or id <= asof])
            except FileNotFoundError:  # somebody forgets old snapshots just now
                continue
        raise BadInput(f"{self.root}: snapshots expire faster than they can be read; try again later")

    def _as_of(self, base: int, ids: list[int]) -> Snapshot:
        known = self._newest
        if known.id and known.id >= base and known.id <= (ids[-1] if ids else base):
            snapshot = known.copy()
        else:
            snapshot = self._read(self._path(base, "base"), Snapshot) if base else Snapshot()
        for id in ids:
            if id > snapshot.id:
                snapshot.apply(self._read(self._path(id), Commit))
        if snapshot.id > known.id:
            self._newest = snapshot.copy()
        return snapshot

    def _history(self) -> tuple[int, list[int]]:
        """The newest base, or 0, and the commits behind it, none left out."""
        for _ in range(TRIES):
            base = max(self._numbers("base"), default=0)
            ids = [id for id in self._numbers("json") if id > base]
            if ids == list(range(base + 1, base + 1 + len(ids))):
                return base, ids
            time.sleep(PAUSE)  # somebody forgets old ones, and was between the two
        raise BadInput(f"{self.root}: commits are missing behind {base}: there are {ids[:3]} to {ids[-1]}")

    def commit(self, make: Callable[[Snapshot], Commit | None]) -> Snapshot:
        """Commit what ``make`` makes of the lake as it is; it is asked again if somebody else was faster."""
        for _ in range(TRIES):
            snapshot = self.snapshot()
            made = make(snapshot)
            if made is None:
                return snapshot
            made = msgspec.structs.replace(made, id=snapshot.id + 1)
            if self._create(self._path(made.id), made):
                snapshot.apply(made)
                return snapshot
        raise BadInput(f"{self.root}: {TRIES} commits in a row were taken by others; try again later")

    def expire(self, keep: int) -> list[str]:
        """Keep the newest snapshots, so many, and remove files that none of them needs; which were removed."""
        if keep < 1:
            raise BadInput(f"keep {keep} snapshots: at least the newest one stays")
        ids = self.ids()
        if not ids:
            return []
        oldest = ids[-keep] if keep < len(ids) else ids[0]
        forgotten, needed = set(self.snapshot(ids[0]).files), set(self.snapshot(oldest).files)
        for id in ids[1:]:
            added = {file.path for file in self._read(self._path(id), Commit).add}
            if id <= oldest:
                forgotten |= added
            else:
                needed |= added
        self._create(self._path(oldest, "base"), self.snapshot(oldest))
        for kind, before in (("json", oldest - TAKEN), ("base", oldest)):
            for id in self._numbers(kind):
                if id < before:
                    self._path(id, kind).unlink()
        removed = sorted([path for path in forgotten | self._left_behind() if path not in needed])
        for path in removed:
            (self.root / path).unlink(missing_ok=True)
        return removed

    def _left_behind(self) -> set[str]:
        """All files, but for young ones: a job that has not committed them yet may be about to."""
        young = time.time() - ABANDONED
        found = [path for path in self.root.glob("data/*/*/*.parquet*") if path.stat().st_mtime < young]  # drafts, too
        return {str(path.relative_to(self.root)) for path in found}

    def _numbers(self, kind: str) -> list[int]:
        return sorted([int(path.stem) for path in self._commits.glob(f"*.{kind}") if path.stem.isdecimal()])

    def _path(self, id: int, kind: str = "json") -> Path:
        return self._commits / f"{id:010d}.{kind}"

    def _read(self, path: Path, what: type[T]) -> T:
        try:
            said = msgspec.json.decode(path.read_bytes())
            number = said["format"]
            if number > FORMAT:
                raise BadInput(f"{path} has format {number}, this version knows {FORMAT}: use a newer one")
            return msgspec.convert(said, what)
        except FileNotFoundError:
            raise
        except (OSError, LookupError, TypeError, msgspec.MsgspecError) as why:
            raise BadInput(f"{path} cannot be read: {why}") from why

    def _create(self, path: Path, what: Commit | Snapshot) -> bool:
        """Write a file at once or not at all; False if it is there."""
        self._commits.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with open(draft, "wb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(what), indent=1))
            out.flush()
            os.fsync(out.fileno())
        try:
            os.link(draft, path)  # unlike a renaming, this fails if it is there
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        _sync(self._commits)
        return True

    # --- rows -------------------------------------------------------------------------------------------

    def place(self, stream: StreamId, day: str, name: str) -> Path:
        """Where a file goes."""
        folder = self.root / "data" / f"stream={quote(stream, safe='')}" / f"day={day}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.parquet"

    def write(self, rows: pa.Table, name: str) -> list[File]:
        """Write rows of one stream, a file per day; the same name and rows give the same files again."""
        stream = rows["stream"][0].as_py()
        days = pc.strftime(rows["published_at"], "%Y-%m-%d")
        files = []
        for day in sorted(days.unique().to_pylist()):
            part = rows.filter(pc.equal(days, day)).sort_by("seq")
            path = self.place(stream, day, name)
            draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            pq.write_table(part, draft)
            with open(draft, "rb") as out:
                os.fsync(out.fileno())
            draft.replace(path)
            _sync(path.parent)
            numbers = part["seq"]
            lo, hi = numbers[0].as_py(), numbers[-1].as_py() + 1
            files.append(File(str(path.relative_to(self.root)), stream, day, lo, hi, part.num_rows))
        return files

    def read(
        self, stream: StreamId, lo: int = FIRST, hi: int | None = None, snapshot: Snapshot | None = None
    ) -> Iterator[pa.Table]:
        """The rows of [lo, hi) that are in the lake, in order, a table at a time."""
        snapshot = snapshot or self.snapshot()
        files = snapshot.of(stream, lo, hi)
        schema = schema_of(snapshot.definitions.get(stream))
        while files:
            group = [files.pop(0)]
            while files and files[0].lo < max(file.hi for file in group):  # of neighbouring days, one into the other
                group.append(files.pop(0))
            tables = [_conformed(pq.read_table(self.root / file.path, partitioning=None), schema) for file in group]
            rows = pa.concat_tables(tables)
            rows = rows.sort_by("seq") if len(group) > 1 else rows
            inside = pc.greater_equal(rows["seq"], lo)
            if hi is not None:
                inside = pc.and_(inside, pc.less(rows["seq"], hi))
            yield rows.filter(inside)

    def spans(
        self, stream: StreamId, snapshot: Snapshot | None = None, lo: int = FIRST, hi: int | None = None
    ) -> Iterator[Span]:
        """A range of a stream as spans, each as it is covered; raises `BadInput` where something is not."""
        snapshot = snapshot or self.snapshot()
        at, hi = lo, snapshot.end(stream) if hi is None else hi
        for cover in snapshot.coverage.get(stream, []):
            if cover.hi <= at or cover.lo > at or at >= hi:
                continue
            end = min(cover.hi, hi)
            if cover.lost:
                yield Span.declared_lost(stream, at, end)
                at = end
                continue
            for rows in self.read(stream, at, end, snapshot):
                for start in range(0, rows.num_rows, CHUNK):
                    part = rows.slice(start, CHUNK)
                    last = part["seq"][-1].as_py() + 1
                    yield Span(stream, at, last, max(cover.asof, at), rows_of(part))
                    at = last
            if at < end:
                yield Span(stream, at, end, max(cover.asof, at), NO_ROWS)
                at = end
        if at < hi:
            missing = min([each.lo for each in snapshot.coverage.get(stream, []) if each.lo > at], default=hi)
            raise BadInput(f"{stream}: [{at}, {min(missing, hi)}) is not in the lake")


def schema_of(definition: StreamDef | None) -> pa.Schema:
    """The columns of a stream's files."""
    attributes = parse_attributes(definition.attrs) if definition is not None else {}
    taken = [name for name in attributes if name.lower() in COLUMNS]
    if taken:
        raise BadInput(f"attribute {taken[0]!r} has the name of a column of the lake: archive its stream elsewhere")
    return pa.schema([*COLUMNS.items(), *[(name, ARROW[kind]) for name, kind in attributes.items()]])


def spark_schema(definition: StreamDef) -> str:
    """The columns of a stream's files, as Spark declares them."""
    names = {ARROW[kind]: kind.value for kind in AttrType}
    return ", ".join(f"`{each.name}` {names[each.type]}" for each in schema_of(definition))


def _conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """A file's columns and null for the attributes that its stream has gained since."""
    missing = [each for each in schema if each.name not in rows.column_names]
    for each in missing:
        rows = rows.append_column(each, pa.nulls(rows.num_rows, each.type))
    return rows.select(schema.names).cast(schema)


def hashed(rows: pa.Table) -> pa.Table:
    """Rows with the hash of each, worked out from what they hold."""
    batch = batch_of(rows)
    hashes = pa.array(content_hashes(batch).view(np.int64)) if rows.num_rows else pa.array([], pa.int64())
    at = rows.column_names.index("_hash")
    return rows.set_column(at, "_hash", hashes)


def batch_of(rows: pa.Table) -> pa.RecordBatch:
    """The rows of a lake as those of a span."""
    kinds = pc.index_in(rows["kind"], pa.array(list(KINDS))).cast(pa.uint8())
    arrays = {"kind": kinds} | {name: rows[name] for name in ROW_SCHEMA.names[1:]}
    if rows[WHERE].null_count < rows.num_rows:
        arrays[WHERE] = rows[WHERE]
    arrays |= {
        name: rows[name] for name in rows.column_names if name not in COLUMNS and rows[name].null_count < rows.num_rows
    }
    fields = [*ROW_SCHEMA, *[pa.field(name, arrays[name].type) for name in arrays if name not in ROW_SCHEMA.names]]
    columns = [arrays[each.name] for each in fields]
    flat = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns]
    return pa.RecordBatch.from_arrays(flat, schema=pa.schema(fields))


def rows_of(rows: pa.Table) -> Rows:
    """Rows of a lake, in order, as rows of a span, with the origins of the batches that they were published in."""
    if not rows.num_rows:
        return NO_ROWS
    seqs = ints(rows, "seq").copy()
    first = int(seqs[0])
    dense = int(seqs[-1]) - first + 1 == len(seqs)
    return ArrowRows(None if dense else seqs, batch_of(rows), tuple(_origins(rows, seqs)), first)


def _origins(rows: pa.Table, seqs: Seqs) -> Iterator[Origin]:
    """One per published batch: numbers that keep their distance, of one publisher, session and tick."""
    names = ("publisher", "_session", "_tick", "published_at", "region")
    batch, shift = codes(rows, *names), ints(rows, "pub_seq") - seqs
    starts = np.flatnonzero(np.append(True, (np.diff(batch) != 0) | (np.diff(shift) != 0)))
    lasts = np.append(starts[1:], len(seqs)) - 1
    what = rows.select([*names, "pub_seq"]).take(pa.array(starts)).to_pylist()
    for lo, last, of in zip(seqs[starts].tolist(), seqs[lasts].tolist(), what, strict=True):
        at = of["published_at"].timestamp()
        yield Origin(lo, last + 1, of["publisher"], of["_session"], of["pub_seq"], of["_tick"], at, of["region"])


def gone(covers: Iterable[Cover], seqs: Seqs) -> tuple[Seqs, Seqs]:
    """The numbers of a stream that are covered and have no row, and the number as of which each is gone."""
    lacking, asofs = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for cover in covers:
        if cover.lost:
            continue
        have = seqs[(seqs >= cover.lo) & (seqs < cover.hi)]
        lacking.append(np.setdiff1d(np.arange(cover.lo, cover.hi), have, assume_unique=True))
        asofs.append(np.full(len(lacking[-1]), cover.asof))
    return np.concatenate(lacking), np.concatenate(asofs)


def clipped(covers: Sequence[Cover], ends: Mapping[StreamId, int]) -> list[Cover]:
    """Of some coverage what lies behind the ends that are reached already."""
    out = []
    for cover in covers:
        lo = max(cover.lo, ends.get(cover.stream, FIRST))
        if lo < cover.hi:
            out.append(Cover(cover.stream, lo, cover.hi, max(cover.asof, lo), cover.lost))
    return out


def covers_of(stream: StreamId, ranges: pa.Table) -> list[Cover]:
    """The coverage that rows of a source say, which are no events (spark/columns.py)."""
    wanted = [ranges[name].to_pylist() for name in ("seq", "before", "_tick", "kind")]
    return [Cover(stream, lo, hi, asof, kind == LOST) for lo, hi, asof, kind in zip(*wanted, strict=True)]


def _sync(folder: Path) -> None:
    """Make sure that a directory knows its files after a power cut."""
    at = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)
