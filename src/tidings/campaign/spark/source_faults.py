"""Exactly once from a stream to Parquet, or to another stream, whatever dies: `tidings check spark`.

A seed is a cluster of three replicas, a publisher whose keys repeat (so collection goes on all the time) and a job
(spark_job.py) that copies the stream in small batches. In the middle of a batch something is killed: the driver, a
Python worker, an executor, a replica, the head; or the last entry of the commit log is deleted. The job is started
again until it ends by itself.

Then the checkpoint says what the batches were, each a range as of a number, and what was published says which rows that
must have given: those that no later event on their key had collected below that number. The files that Parquet's own
log names, or the other stream, must hold exactly these, by count and by sum of row hashes.

Spark is two threads of one process; a local cluster where an executor is killed; and once, for either target, a
standalone master with a worker from the pip package.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import unquote, urlparse

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidings import sync
from tidings.campaign.spark.copy_job import CopyJob
from tidings.campaign.spark.sink_faults import descendants
from tidings.core.errors import TidingsError
from tidings.core.hashing import Hashes, Seqs, content_hashes, hash_sum, row_hashes
from tidings.core.ids import FIRST, NEVER
from tidings.server.local import LocalCluster
from tidings.sim.run import Progress
from tidings.spark.session import require_java
from tidings.spark.standalone import standalone

Fault: TypeAlias = Literal["driver", "worker", "executor", "commit", "replica", "head"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
STREAM, COPY = "copied", "copy"


class FaultCase(msgspec.Struct, frozen=True):
    """What is broken, where the copy goes, and on which Spark."""

    fault: Fault
    to: Literal["parquet", "sink"] = "parquet"
    standalone: bool = False

    def __str__(self) -> str:
        return " ".join([self.fault, "deleted" if self.fault == "commit" else "killed", "on the way to", self.to])


CASES = (
    *(FaultCase(fault) for fault in FAULTS),
    *(FaultCase(fault, "sink") for fault in FAULTS),
    FaultCase("executor", "parquet", True),
    FaultCase("executor", "sink", True),
)
PAYLOAD = b"payload "  # of each event, and its number counted from 0
KEYS = 50  # that repeat
REPEATED = 0.3  # of all events; the others have a key of their own, and stay
BACKLOG = 8_000  # events before the job starts; ours: four batches and more
BATCH, EVERY = 100, 0.25  # events, and seconds between batches of them: less than a job reads on a busy machine
STARTS = 5  # of one job; ours: one fault needs two
PATIENCE = 300.0  # seconds for one run of a job on a busy machine


class SparkLoad(threading.Thread):
    """Publishes until it is told to stop, and remembers what."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.rng = random.Random(f"load/{seed}")
        self.connection = sync.connect(url, client_id=f"load-{seed}")
        self.keys: list[bytes] = []  # by number, from 1 on
        self.payloads: list[bytes] = []
        self.over = threading.Event()
        self.error: Exception | None = None

    def publish(self, count: int) -> None:
        """So many events more; nobody else publishes, so they continue the numbers."""
        numbers = range(len(self.keys), len(self.keys) + count)
        rng = self.rng
        keys = [b"key-%d" % (rng.randrange(KEYS) if rng.random() < REPEATED else KEYS + n) for n in numbers]
        payloads = [PAYLOAD + b"%d" % number for number in numbers]
        ack = self.connection.publish_table(
            STREAM, pa.table({"key": pa.array(keys, pa.binary()), "payload": pa.array(payloads, pa.binary())})
        )
        if (ack.lo, ack.hi) != (numbers.start + FIRST, numbers.stop + FIRST):
            raise TidingsError(f"published [{ack.lo}, {ack.hi}), not {numbers}")
        self.keys += keys
        self.payloads += payloads

    def run(self) -> None:
        try:
            while not self.over.wait(EVERY):
                self.publish(BATCH)
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        """Publish no more."""
        self.over.set()
        self.join()
        self.connection.close()
        if self.error is not None:
            raise self.error


class Trial:
    """One job and what is done to it."""

    def __init__(
        self,
        case: FaultCase,
        master: str,
        folder: Path,
        cluster: LocalCluster,
        loop: asyncio.AbstractEventLoop,
        load: SparkLoad,
    ) -> None:
        self.case = case
        self.fault = case.fault
        self.folder = folder
        self.cluster = cluster
        self.loop = loop
        self.load = load
        self.least = FIRST  # where the copy ends, or later: what was acknowledged when the job was last started
        self.story: list[str] = []
        self.starts = 0
        servers = cluster.url("r0").removeprefix("tidings://")
        self.job = CopyJob(servers, STREAM, str(folder), master, to=COPY if case.to == "sink" else "")

    def run(self) -> None:
        """Start the job until it ends by itself; the first time, something happens to it."""
        struck = False
        while self.starts < STARTS:
            process = self._start()
            try:
                if not struck:
                    struck = self._strike(process)
                code = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                raise TidingsError(f"the job has not ended in {PATIENCE:g} s; see {self._log}") from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if code == 0 and not struck:
                raise TidingsError(f"the job ended before {self.fault!r} could happen; see {self._log}")
            if code == 0 and self.fault == "commit" and self.starts == 1:
                self._forget_the_last_commit()
                continue
            if code == 0:
                return
        said = self._log.read_text(errors="replace").splitlines()[-30:]
        raise TidingsError(f"the job did not end well in {STARTS} starts: " + "\n".join(said))

    @property
    def _log(self) -> Path:
        return self.folder / "job.log"

    def _start(self) -> subprocess.Popen[bytes]:
        import pyspark

        self.starts += 1
        self.least = FIRST + len(self.load.payloads)
        job = self.job if self.starts == 1 else msgspec.structs.replace(self.job, limit=10 * self.job.limit)
        home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
        with open(self._log, "ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "tidings.campaign.spark.copy_job", msgspec.json.encode(job).decode()],
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "SPARK_HOME": home},
            )

    def _strike(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for the middle of a batch, then break what is to be broken; whether it came to that."""
        if self.fault == "commit":
            return True  # after the run
        end = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < end:
            batch = _open_batch(self.folder / "checkpoint")
            if batch is not None and batch >= 1 and self._hit(process):
                self.story.append(f"{self.fault} killed in batch {batch}")
                return True
            time.sleep(0.02)
        return False

    def _hit(self, process: subprocess.Popen[bytes]) -> bool:
        match self.fault:
            case "driver":
                os.killpg(process.pid, signal.SIGKILL)
                return True
            case "worker":
                workers = [int(path.name) for path in (self.folder / "workers").iterdir()]
                return _kill_one([pid for pid in workers if _session(pid) == process.pid])
            case "executor":
                below = descendants(os.getpid())  # the job's, or those of a standalone worker
                return _kill_one([pid for pid, said in below.items() if "CoarseGrainedExecutorBackend" in said])
        name = "r0/head" if self.fault == "head" else "r0/middle"
        asyncio.run_coroutine_threadsafe(self.cluster.kill(name), self.loop).result(60)
        return True

    def _forget_the_last_commit(self) -> None:
        """The batch runs again, and must give the same: Parquet's log forgets it, too."""
        last = max(_batches(self.folder / "checkpoint/commits"))
        for log in (self.folder / "checkpoint/commits", self.folder / "out/_spark_metadata"):  # a sink has only one
            for path in (log / str(last), log / f".{last}.crc"):
                path.unlink(missing_ok=True)
        self.story.append(f"commit of batch {last} deleted")


def _batches(log: Path) -> list[int]:
    """The batches in one of Spark's logs."""
    names = [path.name.removesuffix(".compact") for path in log.iterdir()] if log.is_dir() else []
    return sorted({int(name) for name in names if name.isdecimal()})


def _open_batch(checkpoint: Path) -> int | None:
    """The batch that is planned and not committed."""
    planned, done = _batches(checkpoint / "offsets"), _batches(checkpoint / "commits")
    return planned[-1] if planned and planned[-1] not in done else None


def _session(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid)
    return None


def _kill_one(pids: list[int]) -> bool:
    """Kill the first process that is alive."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


# --- judging ------------------------------------------------------------------------------------------------------


class SeenRanges(msgspec.Struct, frozen=True):
    """What the batches were: [lo, hi) as of a number, in order."""

    parts: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, folder: Path) -> SeenRanges:
        """As the checkpoint has it, of the batches that are committed."""
        found: list[tuple[int, int, int]] = []
        lo = FIRST
        for batch in range(max(_batches(folder / "checkpoint/commits")) + 1):
            offsets = json.loads((folder / "checkpoint/offsets" / str(batch)).read_text().splitlines()[-1])
            (offset,) = offsets.values()  # the only stream's, by its id
            found.append((lo, offset["seq"], offset["asof"]))
            lo = offset["seq"]
        return cls(tuple(found))

    @property
    def end(self) -> int:
        """Where the last one ends."""
        return self.parts[-1][1] if self.parts else FIRST


def expected(keys: list[bytes], payloads: list[bytes], ranges: SeenRanges) -> tuple[int, int]:
    """Count and hash sum of the rows that the batches must have: a model of collection by key, without Tidings."""
    last: dict[bytes, int] = {}
    dead_at = np.full(len(keys) + FIRST, NEVER, dtype=np.int64)
    for seq, key in enumerate(keys, FIRST):
        if key in last:
            dead_at[last[key]] = seq
        last[key] = seq
    kept: list[Seqs] = []
    for lo, hi, asof in ranges.parts:
        kept.append(np.flatnonzero(dead_at[lo:hi] >= asof) + lo)
    seqs = np.concatenate(kept)
    rows = pa.table({"key": keys, "payload": payloads}).take(pa.array(seqs - FIRST))
    return len(seqs), hash_sum(hashes(rows, seqs))


def hashes(rows: pa.Table, seqs: Seqs) -> Hashes:
    """The hash of each row."""
    batch = rows.select(["key", "payload"]).cast(pa.schema([("key", pa.binary()), ("payload", pa.binary())]))
    (whole,) = batch.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], batch.schema)]
    return row_hashes(seqs, content_hashes(whole))


def found_in(out: Path) -> pa.Table:
    """The rows of the files that Parquet's own log names; what failed attempts left behind is not among them."""
    paths: set[str] = set()
    for path in (out / "_spark_metadata").iterdir():
        if not path.name.startswith("."):
            for line in path.read_text().splitlines()[1:]:
                paths.add(unquote(urlparse(json.loads(line)["path"]).path))
    return pa.concat_tables([pq.read_table(path, partitioning=None) for path in sorted(paths)])


def found_at(connection: sync.BlockingConnection, stream: str) -> pa.Table:
    """The rows of a stream that a job has copied to, under the numbers that they had: their payloads say which."""
    horizon = connection.stream(stream).horizon
    batches: list[pa.RecordBatch] = []
    with connection.subscribe(stream, start="earliest") as sub:
        for span in sub.spans():
            batches.append(span.rows.select(["key", "payload"]))
            if span.hi >= horizon:
                break
    rows = pa.Table.from_batches(batches)
    numbers = [int(payload.removeprefix(PAYLOAD)) + FIRST for payload in rows.column("payload").to_pylist()]
    return rows.add_column(0, "seq", pa.array(numbers, pa.int64()))


def judge(
    rows: pa.Table, ranges: SeenRanges, keys: list[bytes], payloads: list[bytes], least: int
) -> list[tuple[str, str]]:
    """What is wrong with a copy that has to go up to ``least`` or further."""
    seqs = rows.column("seq").to_numpy()
    wrong: list[tuple[str, str]] = []
    twice = len(seqs) - len(np.unique(seqs))
    if twice:
        wrong.append(("twice", f"{twice} rows came twice"))
    got = (len(seqs), hash_sum(hashes(rows, seqs)))
    if ranges.end < least:
        wrong.append(("stops_short", f"the last batch ends at {ranges.end}, and there was {least - 1} before"))
    wanted = expected(keys, payloads, ranges)
    if got != wanted:
        wrong.append(("exactly_once", f"count and hash sum are {got}, not {wanted}"))
    return wrong


# --- seeds --------------------------------------------------------------------------------------------------------


def run_seed(seed: int, case: FaultCase | None = None) -> dict[str, Any]:
    """Run one job against one fault, and judge it."""
    began = time.monotonic()
    case = case or CASES[seed % len(CASES)]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def do(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(120)

    with tempfile.TemporaryDirectory(prefix="tidings-spark-") as name, contextlib.ExitStack() as around:
        folder = Path(name)
        master = "local-cluster[2,1,1024]" if case.fault == "executor" else "local[2,4]"
        if case.standalone:
            master = around.enter_context(standalone(folder / "standalone"))
        cluster = LocalCluster(1, 3, folder / "cluster")
        do(cluster.start())
        load = SparkLoad(cluster.url("r0"), seed)
        trial = Trial(case, master, folder, cluster, loop, load)
        try:
            load.connection.open()
            load.connection.create_stream(STREAM, region="r0", gc="by-key")
            load.connection.create_stream(COPY, region="r0")
            load.publish(BACKLOG)
            load.start()
            trial.run()
            load.stop()
            with sync.connect(cluster.url("r0")) as reader:
                rows = found_at(reader, COPY) if case.to == "sink" else found_in(folder / "out")
            ranges = SeenRanges.of(folder)
            violations = judge(rows, ranges, load.keys, load.payloads, trial.least)
        finally:
            load.over.set()
            do(cluster.stop())
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
    return {
        "seed": seed,
        "violations": violations,
        "faults": {str(case): 1} | ({"standalone cluster": 1} if case.standalone else {}),
        "batches": len(ranges.parts),
        "events": len(load.keys),
        "starts": trial.starts,
        "story": trial.story,
        "wall_seconds": time.monotonic() - began,
    }


def run(
    seeds: range, report: Progress | None = None, one: Callable[[int], dict[str, Any]] = run_seed
) -> dict[str, Any]:
    """What some seeds found, as `tidings check spark` prints it."""
    require_java()
    faults: Counter[str] = Counter()
    violations: list[dict[str, Any]] = []
    events = batches = starts = 0
    for done, seed in enumerate(seeds, 1):
        outcome = one(seed)
        faults.update(outcome["faults"])
        events += outcome["events"]
        batches += outcome["batches"]
        starts += outcome["starts"]
        for invariant, detail in outcome["violations"]:
            replay = f"tidings check spark --seeds {seed}..{seed + 1}"
            story = "; ".join(outcome["story"])
            violations.append(
                {"seed": seed, "invariant": invariant, "replay": replay, "detail": detail, "story": story}
            )
        if report is not None:
            report(done, len(seeds), "; ".join(outcome["story"]))
    wanted = {str(case) for case in CASES} | {"standalone cluster"}
    return {
        "target": "spark",
        "seeds": f"{seeds.start}..{seeds.stop}",
        "violations": violations,
        "faults": dict(sorted(faults.items())),
        "reached": dict(sorted(faults.items())),
        "unreached": sorted(wanted - faults.keys()),
        "hours_simulated": 0.0,
        "events": events,
        "batches": batches,
        "starts": starts,
    }
