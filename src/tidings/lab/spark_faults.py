"""Exactly once from a stream to Parquet, whatever dies: `tidings check spark`.

A seed is a cluster of three replicas, a publisher whose keys repeat (so collection goes on all the time) and a job
(spark_job.py) that copies the stream in small batches. In the middle of a batch something is killed: the driver, a
Python worker, an executor, a replica, the head; or the last entry of the commit log is deleted. The job is started
again until it ends by itself.

Then the checkpoint says what the batches were, each a range as of a number, and what was published says which rows that
must have given: those that no later event on their key had collected below that number. The files that Parquet's own
log names must hold exactly these, by count and by sum of row hashes.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import unquote, urlparse

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidings import sync
from tidings.core.errors import TidingsError
from tidings.core.hashing import Hashes, Seqs, content_hashes, hash_sum, row_hashes
from tidings.core.ids import FIRST, NEVER
from tidings.lab.spark_job import Job
from tidings.server.local import LocalCluster
from tidings.sim.run import Progress
from tidings.spark.session import require_java

Fault: TypeAlias = Literal["driver", "worker", "executor", "commit", "replica", "head"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
STREAM = "copied"
KEYS = 50  # that repeat
REPEATED = 0.3  # of all events; the others have a key of their own, and stay
BACKLOG = 8_000  # events before the job starts; ours: four batches and more
BATCH, EVERY = 100, 0.25  # events, and seconds between batches of them: less than a job reads on a busy machine
STARTS = 5  # of one job; ours: one fault needs two
PATIENCE = 300.0  # seconds for one run of a job on a busy machine


class Load(threading.Thread):
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
        payloads = [b"payload %d" % number for number in numbers]
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

    def __init__(self, fault: Fault, folder: Path, cluster: LocalCluster, loop: asyncio.AbstractEventLoop) -> None:
        self.fault = fault
        self.folder = folder
        self.cluster = cluster
        self.loop = loop
        self.story: list[str] = []
        self.starts = 0
        servers = cluster.url("r0").removeprefix("tidings://")
        master = "local-cluster[2,1,1024]" if fault == "executor" else "local[2,4]"
        self.job = Job(servers, STREAM, str(folder), master)

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
        job = self.job if self.starts == 1 else msgspec.structs.replace(self.job, limit=10 * self.job.limit)
        home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
        with open(self._log, "ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "tidings.lab.spark_job", msgspec.json.encode(job).decode()],
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
                return _kill_one([int(path.name) for path in (self.folder / "workers").iterdir()], process.pid)
            case "executor":
                return _kill_one(list(_executors(process.pid)), process.pid)
        name = "r0/head" if self.fault == "head" else "r0/middle"
        asyncio.run_coroutine_threadsafe(self.cluster.kill(name), self.loop).result(60)
        return True

    def _forget_the_last_commit(self) -> None:
        """The batch runs again, and must give the same: Parquet's log forgets it, too."""
        last = max(_batches(self.folder / "checkpoint/commits"))
        for log in (self.folder / "checkpoint/commits", self.folder / "out/_spark_metadata"):
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


def _kill_one(pids: list[int], session: int) -> bool:
    """Kill the first process that is alive and belongs to the job."""
    for pid in pids:
        try:
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)
                return True
        except ProcessLookupError:
            continue
    return False


def _executors(session: int) -> Iterator[int]:
    """The executors of a job that runs on a local cluster."""
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            executor = path.name.isdecimal() and b"CoarseGrainedExecutorBackend" in (path / "cmdline").read_bytes()
            if executor and os.getsid(int(path.name)) == session:
                yield int(path.name)


# --- judging ------------------------------------------------------------------------------------------------------


class Ranges(msgspec.Struct, frozen=True):
    """What the batches were: [lo, hi) as of a number, in order."""

    parts: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, folder: Path) -> Ranges:
        """As the checkpoint has it, of the batches that Parquet's log knows."""
        found: list[tuple[int, int, int]] = []
        lo = FIRST
        for batch in range(max(_batches(folder / "out/_spark_metadata")) + 1):
            offset = json.loads((folder / "checkpoint/offsets" / str(batch)).read_text().splitlines()[-1])[STREAM]
            found.append((lo, offset["seq"], offset["asof"]))
            lo = offset["seq"]
        return cls(tuple(found))


def expected(keys: list[bytes], payloads: list[bytes], ranges: Ranges) -> tuple[int, int]:
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


def judge(folder: Path, keys: list[bytes], payloads: list[bytes]) -> list[tuple[str, str]]:
    """What is wrong with a copy."""
    ranges = Ranges.of(folder)
    rows = found_in(folder / "out")
    seqs = rows.column("seq").to_numpy()
    wrong: list[tuple[str, str]] = []
    twice = len(seqs) - len(np.unique(seqs))
    if twice:
        wrong.append(("twice", f"{twice} rows came twice"))
    got = (len(seqs), hash_sum(hashes(rows, seqs)))
    wanted = expected(keys, payloads, ranges)
    if got != wanted:
        wrong.append(("exactly_once", f"count and hash sum are {got}, not {wanted}"))
    return wrong


# --- seeds --------------------------------------------------------------------------------------------------------


def run_seed(seed: int, fault: Fault | None = None) -> dict[str, Any]:
    """Run one job against one fault, and judge it."""
    began = time.monotonic()
    fault = fault or FAULTS[seed % len(FAULTS)]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def do(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(120)

    with tempfile.TemporaryDirectory(prefix="tidings-spark-") as name:
        folder = Path(name)
        cluster = LocalCluster(1, 3, folder / "cluster")
        do(cluster.start())
        load = Load(cluster.url("r0"), seed)
        trial = Trial(fault, folder, cluster, loop)
        try:
            load.connection.open()
            load.connection.create_stream(STREAM, region="r0", gc="by-key")
            load.publish(BACKLOG)
            load.start()
            trial.run()
            load.stop()
            violations = judge(folder, load.keys, load.payloads)
            parts = Ranges.of(folder).parts
        finally:
            load.over.set()
            do(cluster.stop())
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
    return {
        "seed": seed,
        "violations": violations,
        "faults": {f"{fault} killed" if fault != "commit" else "commit deleted": 1},
        "batches": len(parts),
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
    wanted = {f"{fault} killed" if fault != "commit" else "commit deleted" for fault in FAULTS}
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
