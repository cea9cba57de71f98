"""The archive: a streaming job per region that writes the region's own streams, and its receipts, into the lake.

Each owner is asked for its own streams, so the ends that it tells are final. The job holds a lease on every stream from
the end of the lake, moves it forward behind each commit, and leaves it when it stops. So rows are read before they are
purged, and read as they were published. A stream that is older than the job is read as of the lease: numbers that had
been collected by then are covered, and known to be missing.

Exactly once: the tasks of a batch write files under names of their own. The driver commits them together with what they
cover, cut where the lake already ends. A batch that is run again adds nothing twice, nor does a job that starts anew
after a crash: it starts at the end of the lake, whatever Spark's checkpoint says. Files of a batch that was not
committed are never read.

If a stream is altered while it is read, the batch no longer fits its definition. It is dropped with all later ones, and
the job begins anew from the end of the lake.

A commit says where all streams ended at their owners, asked after its rows were read: everything that its receipts are
about lies below. An archive that runs once takes receipts only up to where they ended before it asked for anything
else, so everything that they are about is in the same lake.

A region that does not answer is left out until it does, and does not delay the others. The other regions tell how far
they know its streams.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidings import sync
from tidings.client.errors import AsofGone, LeaseExpired
from tidings.client.events import LOST
from tidings.client.url import SCHEME
from tidings.core.errors import BadInput, TidingsError
from tidings.core.filters import parse_attributes
from tidings.core.ids import FIRST, RegionId, StreamId, is_internal
from tidings.core.rows import ArrowRows, Rows
from tidings.protocols.services.catalog import StreamDef
from tidings.spark.columns import COVERAGE, FIXED, HASH, KEPT, SparkColumns, attributes_of
from tidings.spark.lake import Commit, Cover, File, Lake, Snapshot, clipped, covers_of, hashed, rows_of, schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LEASE = 3600.0  # seconds that a lease outlives the job; ours: a job that runs once an hour finds its own
ATTEMPT = 120.0  # seconds that a reader's own lease does; ours: its job begins anew, from the lake
BATCH = 1_000_000  # numbers in a batch; ours: tens of seconds of work on two cores
INTERVAL = 10.0  # seconds between batches of a job that keeps running
BEGINNING = 15.0  # seconds that the start of a query is waited for; ours: a little more than Spark waits
TRIES = 3  # failures without a commit between them; ours: a worker that did not start in time is no reason to give up
SETTLING = 5.0  # seconds that a stream may end before the lake does; ours: who answers may be behind for a moment
LOOK = 1.0  # seconds between looks at what the queries do
TIMEOUT = 30.0  # seconds for an answer of the cluster
NEAR = 1024  # numbers that are looked through first for an event that is still there; ours
BRIEF = 1.0  # seconds for one of a region that has not answered before

IDENTITY = pa.schema(
    [
        *[(name, FIXED[name]) for name in ("stream", "seq", "publisher", "pub_seq", "published_at")],
        *[("_session", KEPT["_session"]), (HASH, pa.int64())],
    ]
)
"""What tells an event from any other that could have its number: who published it, when, and what it says."""

WRITTEN = "what string, it string"
"""What tasks tell the driver: a file or a range, as JSON."""


log = logging.getLogger("tidings.spark")


class ArchiveFailed(TidingsError):
    """A query of the archive has failed; the lake is whole, and the next run goes on from it."""


class RegionAway(TidingsError):
    """No replica of a region answers."""


def lease_name(lake: Lake, stream: StreamId) -> str:
    """The name by which a job finds the lease of the job before it, or one that was taken for it in advance."""
    return f"archive-{hashlib.blake2b(f'{lake.root} {stream}'.encode(), digest_size=12).hexdigest()}"


@dataclass
class Source:
    """A region as the archive sees it: a connection, its own streams, and a lease on each."""

    region: RegionId
    servers: str
    connection: sync.BlockingConnection
    streams: dict[StreamId, StreamDef] = field(default_factory=dict)
    leases: dict[StreamId, sync.BlockingLease] = field(default_factory=dict)
    heard: dict[StreamId, int] = field(default_factory=dict)  # how far it knows all streams, those of others too
    known: bool = False  # whether the lake is of this cluster
    away: bool = False

    def look(self) -> dict[StreamId, int]:
        """Learn what streams there are; where they end, as the tail knows it. Raises `RegionAway`."""
        try:
            told = self.connection.describe(self.region, BRIEF if self.away else TIMEOUT)
        except TimeoutError:
            if not self.away:
                log.warning("region %s does not answer: its streams have to wait", self.region)
            self.away = True
            raise RegionAway(f"no replica of region {self.region} answers") from None
        self.away = False
        self.heard = {name: state.horizon for name, state in told.states.items()}
        self.streams = {each.id: each for each in told.streams if each.region == self.region and not each.counted}
        return {name: self.heard.get(name, FIRST) for name in self.streams}

    def meet(self, lake: Lake, reached: Mapping[StreamId, int]) -> dict[StreamId, int]:
        """Learn the same; raises `BadInput` if the lake is ahead of the streams, and so another cluster's."""
        deadline = time.monotonic() + SETTLING
        while True:
            ends = self.look()
            ahead = [stream for stream, end in ends.items() if end < reached.get(stream, FIRST)]
            if not ahead:
                return ends
            if time.monotonic() > deadline:
                raise BadInput(
                    f"{lake.root} has {ahead[0]!r} up to {reached[ahead[0]]}, in region {self.region} it ends at "
                    f"{ends[ahead[0]]}: this is the lake of another cluster, take another directory"
                )
            time.sleep(LOOK / 10)

    def recognize(self, lake: Lake, snapshot: Snapshot) -> None:
        """Raise `BadInput` if the last event that the lake has of a stream is not the one that is here."""
        ends = self.meet(lake, {stream: snapshot.end(stream) for stream in snapshot.streams})
        named = {stream.name: stream for stream in self.streams.values()}
        for id, definition in snapshot.definitions.items():
            now = named.get(definition.name)
            other = now is not None and now.id != id and definition.mark not in now.past
            if other and definition.region == self.region and id not in snapshot.deleted:
                raise BadInput(
                    f"stream {definition.name!r} is another one in {lake.root} than in region {self.region}: "
                    "this is the lake of another cluster, take another directory"
                )
        for stream in self.streams:
            end = snapshot.end(stream)
            for table in lake.read(stream, end - 1, end, snapshot):
                here = self._event(stream, end - 1, ends[stream]) if table.num_rows else None
                if here is not None and _identity(here) != _identity(rows_of(table)):
                    raise BadInput(
                        f"event {end - 1} of {stream!r} is another one in {lake.root} than in region {self.region}: "
                        "this is the lake of another cluster, take another directory"
                    )

    def _event(self, stream: StreamId, seq: int, end: int) -> Rows | None:
        """One event, if it is there: as it was published if that is kept, else as of now."""
        for asof in (seq + 1, end):
            try:
                with self.connection.read(stream, seq, seq + 1, asof=asof) as reading:
                    while spans := reading.take(TIMEOUT):
                        for each in spans:
                            if each.count:
                                return each.span.rows
                return None
            except AsofGone:
                continue
        return None

    def newest(self, stream: StreamId, end: int) -> pa.RecordBatch | None:
        """The identity of the last event below ``end`` that is still there, as of its lease; None if none is."""
        hi, size = min(end, self.heard.get(stream, FIRST)), NEAR
        while hi > FIRST:
            lo = max(FIRST, hi - size)
            found: pa.RecordBatch | None = None
            with self.connection.read(stream, lo, hi, asof=self.leases[stream].asof) as reading:
                while spans := reading.take(TIMEOUT):
                    for rows in [each.span.rows for each in spans if each.count]:
                        assert isinstance(rows, ArrowRows)
                        found = SparkColumns(IDENTITY, archive=True, json=True).batch(stream, rows)
            if found is not None:
                return found.slice(found.num_rows - 1)
            hi, size = lo, 2 * size
        return None

    def hold(self, lake: Lake, ends: Mapping[StreamId, int], seconds: float) -> None:
        """Have a lease on every stream, from where the lake ends if that is still kept."""
        for stream in self.streams:
            if stream not in self.leases:
                self.leases[stream] = self._lease(lease_name(lake, stream), stream, ends.get(stream, FIRST), seconds)

    def _lease(self, name: str, stream: StreamId, asof: int, seconds: float) -> sync.BlockingLease:
        try:
            return self.connection.lease(stream, name=name, ttl=seconds, resume=True).open(TIMEOUT)
        except LeaseExpired:
            return self.connection.lease(stream, asof=asof, name=name, ttl=seconds).open(TIMEOUT)

    def move(self, ends: Mapping[StreamId, int]) -> None:
        """What is in the lake is needed no longer. A lease that is over is taken anew; what that misses is known."""
        for stream, lease in list(self.leases.items()):
            try:
                lease.check()
                if ends.get(stream, FIRST) > lease.asof:
                    lease.move(ends[stream], TIMEOUT)
            except LeaseExpired as error:
                log.warning("%s", error)
                del self.leases[stream]

    def leave(self) -> None:
        """Leave the leases to the next job."""
        for lease in self.leases.values():
            lease.leave()


def _identity(rows: Rows) -> tuple[str, int, int]:
    """Of one event: who published it, and what it says."""
    assert isinstance(rows, ArrowRows)
    return rows.origins[0].publisher, rows.origins[0].session, int(rows.content[0])


def regions_of(connection: sync.BlockingConnection) -> dict[RegionId, str]:
    """The regions of a cluster, and the addresses of the replicas of each."""
    return {
        membership.region: ",".join([node.rpartition("@")[2] for node in membership.replicas])
        for membership in connection.describe().memberships
    }


class Archive:
    """A job that writes a lake. ``servers``: any region of the cluster."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        servers: str,
        *,
        lease: float = LEASE,
        token: str = "",
        tries: int = TRIES,
    ) -> None:
        from tidings.spark.format import TidingsFormat

        self.spark = spark
        self.lake = lake
        self.servers = servers
        self.token = token
        self.lease = lease
        self.tries = tries
        self.sources: dict[RegionId, Source] = {}
        self.batches = 0
        self._writing = threading.Lock()
        self._running: set[str] = set()  # jobs whose batches count: Spark does not wait for one that it has stopped
        spark.dataSource.register(TidingsFormat)

    def __enter__(self) -> Archive:
        self._open = ExitStack()
        try:
            first = self._connect(self.servers)
            for region, servers in regions_of(first).items():
                beside = f"{servers},{self.servers.removeprefix(SCHEME)}"  # other regions know one that does not answer
                self.sources[region] = Source(region, servers, self._connect(beside))
            self.hold()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for source in self.sources.values():
                source.leave()
        finally:
            self._open.close()

    def _connect(self, servers: str) -> sync.BlockingConnection:
        url = servers if servers.startswith(SCHEME) else SCHEME + servers
        return self._open.enter_context(sync.connect(url, token=self.token or None, timeout=TIMEOUT))

    def hold(self) -> dict[StreamId, int]:
        """Take leases on all streams that there are; where they end. From now on nothing is missed."""
        snapshot = self.lake.snapshot()
        reached = {stream: snapshot.end(stream) for stream in snapshot.streams}
        ends: dict[StreamId, int] = {}
        for source in self.sources.values():
            with suppress(RegionAway):
                if not source.known:
                    source.recognize(self.lake, snapshot)
                    source.known = True
                ends |= source.meet(self.lake, reached)
                source.hold(self.lake, reached, self.lease)
        if self._defined(snapshot):
            self.lake.commit(self._defined)
        return ends

    def _defined(self, now: Snapshot) -> Commit | None:
        """Streams that are new, altered or gone, also those of which there is nothing to read."""
        streams, regions = self._streams(), {source.region for source in self._present()}
        new = [each for name, each in streams.items() if now.definitions.get(name) != each or name in now.deleted]
        mine = [name for name, each in now.definitions.items() if each.region in regions and name not in now.deleted]
        gone = [name for name in mine if name not in streams]
        if not new and not gone:
            return None
        return Commit(kind="append", at=time.time(), definitions=tuple(new), deleted=tuple(gone))

    def _heard(self, own: Mapping[StreamId, int]) -> dict[StreamId, int]:
        """How far streams are known in the regions that answer, at least as far as their owners have said."""
        streams = {name for source in self.sources.values() for name in source.streams}
        heard = [source.heard for source in self._present()]
        return {name: max([own.get(name, FIRST), *[each.get(name, FIRST) for each in heard]]) for name in streams}

    def _present(self) -> list[Source]:
        return [source for source in self.sources.values() if not source.away]

    # --- running ------------------------------------------------------------------------------------------

    def once(self) -> Snapshot:
        """Bring the lake up to where the streams end now; what fails is tried again, from what is committed."""
        patience = Patience(self)
        while True:
            ends = self.hold()
            ceilings = {stream: end for stream, end in ends.items() if is_internal(stream)}
            with patience:
                queries = self._start(ceilings, {"availableNow": True})
                if self._follow(queries, functools.partial(_ended, queries)):
                    break
        if away := [source.region for source in self.sources.values() if source.away]:
            raise RegionAway(f"no replica of region {away[0]} answers: of its streams the lake has only what it had")
        return self._finished()

    def run(self, until: Callable[[], bool], interval: float = INTERVAL) -> Snapshot:
        """Keep the lake up to date; streams that are created, altered or deleted meanwhile are no reason to end."""
        patience = Patience(self)
        while not until():
            self.hold()
            streams = self._streams()
            with patience:
                queries = self._start({}, {"processingTime": f"{interval} seconds"})
                looked = [time.monotonic()]

                def over(streams: Any = streams, looked: list[float] = looked) -> bool:
                    if time.monotonic() - looked[0] > interval:
                        looked[0] = time.monotonic()
                        self.hold()
                    return until() or self._streams() != streams

                self._follow(queries, over)
        return self._finished()

    def _streams(self) -> dict[StreamId, StreamDef]:
        return {name: each for source in self._present() for name, each in source.streams.items()}

    def _start(self, ceilings: Mapping[StreamId, int], trigger: Mapping[str, Any]) -> list[StreamingQuery]:
        from pyspark.errors import PySparkException

        shutil.rmtree(self.lake.checkpoints, ignore_errors=True)
        snapshot = self.lake.snapshot()
        groups = [  # all of them now: the first batches look again
            (source, at, group)
            for source in self._present()
            for at, group in enumerate(compatible(source.streams.values()))
        ]
        queries: list[StreamingQuery] = []
        for source, at, group in groups:
            name = f"{source.region}-{at}-{secrets.token_hex(8)}"  # never again: a batch may outlive its query
            try:
                rows = self._read(source, group, snapshot)
                self._running.add(name)
                write = functools.partial(self._write, name, {each.id: each for each in group}, ceilings)
                to = rows.writeStream.foreachBatch(write).option(
                    "checkpointLocation", str(self.lake.checkpoints / name)
                )
                queries.append(to.queryName(name).trigger(**trigger).start())
            except PySparkException as error:
                self._stop(queries)
                raise ArchiveFailed(f"the archive of {name} has not begun: {_last_line(str(error))}") from error
            _await_beginning(queries[-1])
        return queries

    def _read(self, source: Source, group: list[StreamDef], snapshot: Snapshot) -> DataFrame:
        options = {
            "servers": source.servers,
            "token": self.token,
            "subscribe": ",".join([each.id for each in group]),
            "startingOffsets": json.dumps({each.id: snapshot.end(each.id) for each in group}),
            "maxOffsetsPerTrigger": str(BATCH),
            "leaseSeconds": str(ATTEMPT),
            "timeoutSeconds": str(TIMEOUT),
            "archive": json.dumps({each.id: source.leases[each.id].asof for each in group}),
        }
        return self.spark.readStream.format("tidings").options(**options).load()

    def _follow(self, queries: list[StreamingQuery], over: Callable[[], bool]) -> bool:
        """Let queries run; False if they have to begin anew, since a stream was altered."""
        try:
            while not (over() or self._dropped(queries) or any([query.exception() for query in queries])):
                time.sleep(LOOK / 10 if self.batches == 0 else LOOK)
        finally:
            dropped = self._stop(queries)
        for query in queries:
            if (error := query.exception()) and not dropped:  # else it was stopped in the middle of something
                raise ArchiveFailed(f"the archive of {query.name} has failed: {_last_line(str(error))}")
        return not dropped

    def _stop(self, queries: list[StreamingQuery]) -> bool:
        """None of their batches counts from now on; whether one was dropped before."""
        with self._writing:  # the batch that is being written may finish: Spark is loud about one that is interrupted
            dropped = self._dropped(queries)
            self._running.clear()
        for query in queries:
            query.stop()
        return dropped

    def _dropped(self, queries: list[StreamingQuery]) -> bool:
        """Whether a batch has found that its query does not know its streams any more."""
        return len(self._running) < len(queries)

    def _finished(self) -> Snapshot:
        shutil.rmtree(self.lake.checkpoints, ignore_errors=True)
        return self.lake.snapshot()

    # --- a batch ------------------------------------------------------------------------------------------

    def _write(
        self,
        job: str,
        definitions: Mapping[StreamId, StreamDef],
        ceilings: Mapping[StreamId, int],
        rows: DataFrame,
        batch: int,
    ) -> None:
        """Write a batch and commit it; the same one again changes nothing."""
        with self._writing:
            if job in self._running:
                self._append(job, definitions, ceilings, rows, batch)

    def _append(
        self,
        job: str,
        definitions: Mapping[StreamId, StreamDef],
        ceilings: Mapping[StreamId, int],
        rows: DataFrame,
        batch: int,
    ) -> None:
        snapshot = self.lake.snapshot()
        reached = {stream: snapshot.end(stream) for stream in definitions}
        write = functools.partial(
            write_part, str(self.lake.root), f"{job}-{batch:06d}", dict(definitions), reached, dict(ceilings)
        )
        told = rows.mapInArrow(write, WRITTEN).collect()
        files = [msgspec.json.decode(it, type=File) for what, it in told if what == "file"]
        covers = [msgspec.json.decode(it, type=Cover) for what, it in told if what == "cover"]
        own: dict[StreamId, int] = {}
        for source in self.sources.values():
            with suppress(RegionAway):
                own |= source.look()
        regions = {source.region for source in self._present()}
        away = [each.id for each in definitions.values() if each.region not in regions]
        if changed := away or outdated(definitions, covers, self._streams(), own):
            log.info("%s: away, or altered while it was read; beginning anew", changed[0])
            self._running.discard(job)
            return
        ends = self._heard(own)

        def make(now: Snapshot) -> Commit | None:
            if not covers:
                return None
            moved = [stream for stream, end in reached.items() if now.end(stream) != end]
            if moved:
                raise BadInput(f"somebody else archives {moved[0]!r} into {self.lake.root}: one job at a time")
            check_seam(covers, reached)
            return Commit(
                kind="append",
                at=time.time(),
                job=job,
                batch=batch,
                add=tuple(files),
                coverage=tuple(covers),
                definitions=tuple([each for each in definitions.values() if now.definitions.get(each.id) != each]),
                ends={name: end for name, end in ends.items() if not is_internal(name)},
            )

        after = self.lake.commit(make)
        self.batches += bool(covers)
        for source in self.sources.values():
            source.move({stream: after.end(stream) for stream in definitions if stream in source.streams})


class Patience:
    """Takes failures of the archive, but no more in a row without a commit between them than its number of tries."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._failures = 0

    def __enter__(self) -> None:
        self._batches = self._archive.batches

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if self._archive.batches > self._batches:
            self._failures = 0
        if not isinstance(error, ArchiveFailed):
            return False
        self._failures += 1
        if self._failures < self._archive.tries:
            log.warning("%s; trying again", error)
        return self._failures < self._archive.tries


def _await_beginning(query: StreamingQuery) -> None:
    """Let a query find its source before the next one starts: Spark gives each process for that only ten seconds."""
    deadline = time.monotonic() + BEGINNING
    while query.isActive and time.monotonic() < deadline and query.status["message"].startswith("Initializing"):
        time.sleep(LOOK / 10)


def _ended(queries: list[StreamingQuery]) -> bool:
    return not any([query.isActive for query in queries])


def outdated(
    definitions: Mapping[StreamId, StreamDef],
    covers: Sequence[Cover],
    streams: Mapping[StreamId, StreamDef],
    ends: Mapping[StreamId, int],
) -> list[StreamId]:
    """Streams whose rows may have been published under another definition than the one they were read with.

    ``streams`` and ``ends`` are what their owners said afterwards. In an owner's log rows come behind their definition:
    a replica that has all of these rows knows their definition, another may not. Of a stream that is
    deleted by then what was read is all that there will be.
    """
    there = [cover for cover in covers if cover.stream in streams]
    return [
        cover.stream
        for cover in there
        if streams[cover.stream] != definitions[cover.stream] or ends[cover.stream] < cover.hi
    ]


def check_seam(covers: Sequence[Cover], reached: Mapping[StreamId, int]) -> None:
    """Raise `BadInput` unless coverage goes on where the lake ends, without a hole."""
    at = dict(reached)
    for cover in sorted(covers, key=lambda each: (each.stream, each.lo)):
        if cover.lo != at[cover.stream]:
            raise BadInput(f"{cover.stream!r}: a batch begins at {cover.lo} and the lake ends at {at[cover.stream]}")
        at[cover.stream] = cover.hi


def compatible(streams: Iterable[StreamDef]) -> list[list[StreamDef]]:
    """Streams in as few groups as one query each can read: no attribute has two types in one of them."""
    groups: list[list[StreamDef]] = []
    for stream in sorted(streams, key=lambda each: each.name):
        for group in groups:
            try:
                attributes_of({each.name: each.attrs for each in (*group, stream)})
            except BadInput:
                continue
            spelled = {name for each in (*group, stream) for name in parse_attributes(each.attrs)}
            if len(spelled) > len({name.lower() for name in spelled}):
                continue  # a query would have one column for both spellings, and files want their own
            group.append(stream)
            break
        else:
            groups.append([stream])
    return groups


def write_part(
    root: str,
    name: str,
    definitions: Mapping[StreamId, StreamDef],
    reached: Mapping[StreamId, int],
    ceilings: Mapping[StreamId, int],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """In a task: write the rows of a part behind what the lake has; tells of files and of what they cover."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    lake = Lake(root)
    whole = pa.Table.from_batches(batches) if (batches := list(batches)) else None  # type: ignore[assignment]
    told: list[tuple[str, Any]] = []
    for stream in whole["stream"].unique().to_pylist() if whole is not None else ():
        assert whole is not None
        mine = whole.filter(pc.equal(whole["stream"], stream))
        ranging = pc.is_in(mine["kind"], pa.array([COVERAGE, LOST]))
        ranges = mine.filter(ranging)
        lo, hi = reached[stream], ceilings.get(stream)
        rows = fitted(mine.filter(pc.invert(ranging)), definitions[stream], lo, hi)
        if rows.num_rows:
            told += [("file", file) for file in lake.write(rows, f"{name}-{context.partitionId():05d}")]
        covers = covers_of(stream, ranges)
        capped = [msgspec.structs.replace(each, hi=min(each.hi, hi)) if hi else each for each in covers]
        told += [("cover", each) for each in clipped(capped, reached)]
    texts = [(what, msgspec.json.encode(it).decode()) for what, it in told]
    yield pa.RecordBatch.from_arrays(
        [pa.array([each[at] for each in texts], pa.string()) for at in (0, 1)], names=["what", "it"]
    )


def fitted(rows: pa.Table, definition: StreamDef, lo: int, hi: int | None) -> pa.Table:
    """Rows of [lo, hi) with the columns of their stream's files."""
    inside = pc.greater_equal(rows["seq"], lo)
    if hi is not None:
        inside = pc.and_(inside, pc.less(rows["seq"], hi))
    schema = schema_of(definition)
    rows = rows.filter(inside).append_column("_hash", pa.nulls(pc.sum(inside).as_py() or 0, pa.int64()))
    return hashed(rows.select(schema.names).cast(schema))


def _last_line(text: str) -> str:
    """Of what Spark says of a failure, what a person wants to know: the last error in it."""
    lines = [line.strip() for line in text.splitlines() if "Error" in line or "tidings." in line]
    return lines[-1] if lines else text.splitlines()[0]
