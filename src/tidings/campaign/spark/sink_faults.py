"""`tidings check sink`: streaming queries that write to a cluster while their parts are killed; each row once, always.

A query reads text files, some per batch, and writes their lines to a stream. It runs in a process of its own and is
killed with everything it has started, or loses a Python worker, an executor, its last commit, or the head of the chain
it writes to; whatever has died is started again from the checkpoint, until the query has read everything. Then the
stream must hold every line once: by count, and by the sum of the rows' hashes.

Tasks take their time (a function that sleeps between rows and says in a file where it is), so that a kill finds them in
the middle of a batch.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from tidings import sync
from tidings.core.errors import TidingsError
from tidings.core.hashing import content_hashes, hash_sum
from tidings.core.rows import ROW_SCHEMA
from tidings.server.local import LocalCluster
from tidings.sim.run import Progress
from tidings.spark.standalone import standalone

T = TypeVar("T")

LOCAL = "local[2,4]"  # so that a task that fails is tried again, as in a cluster
CLUSTER = "local-cluster[2,1,1024]"
DEADLINE = 600.0  # seconds that a query may take; ours, because one takes 20 where nothing else runs
LINES, FILES, PER_BATCH = 60, 6, 2  # lines of a file, files, files of a batch
WIDE = 200_000  # bytes of a line where a task is to stage several chunks
PAUSE = 0.02  # seconds that a task sleeps per line
DAWDLE = 60.0  # seconds that a task takes over nothing, so that Spark tries it a second time meanwhile
SPECULATE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
}


class SinkJob(msgspec.Struct):
    """One run of the query."""

    servers: str
    stream: str
    folder: str
    master: str = LOCAL
    conf: dict[str, str] = {}
    options: dict[str, str] = {}
    first: Literal["", "fails", "dawdles"] = ""  # what the first attempt at a partition does when it has no more rows


# --- the query, in a process of its own ---------------------------------------------------------------------


def slowly(folder: str, first: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Pass rows on, with time to be killed in; a file per attempt says that it has begun."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch, partition, attempt = (
            context.getLocalProperty("streaming.sql.batchId"),
            context.partitionId(),
            context.attemptNumber(),
        )
        for rows in batches:
            for at in range(0, rows.num_rows, 10):
                Path(folder, f"{batch}-{partition}-{attempt}-{os.getpid()}").touch()
                time.sleep(10 * PAUSE)
                yield rows.slice(at, 10)
        if first and attempt == 0 and partition == 0:
            if first == "fails":
                raise RuntimeError("the task fails when it has handed over all its rows")
            time.sleep(DAWDLE)

    return work


def drive(order: SinkJob) -> None:
    """Run the query until everything is read."""
    from tidings.spark.session import spark

    folder = Path(order.folder)
    with spark(order.master, "faults", order.conf) as session:
        lines = session.readStream.format("text").option("maxFilesPerTrigger", PER_BATCH).load(str(folder / "in"))
        rows = lines.mapInArrow(slowly(str(folder / "marks"), order.first), "value string")
        options = {"servers": order.servers, "stream": order.stream, "writerId": "faults", **order.options}
        writing = rows.selectExpr("value as payload").writeStream.format("tidings").options(**options)
        query = writing.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()


# --- what happens to it -------------------------------------------------------------------------------------


class Bed:
    """A query, its files, and the stream it writes to."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int, **order: Any) -> None:
        self.cluster = cluster
        self.folder = folder
        self.rng = random.Random(seed)
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("in", "marks"):
            (folder / name).mkdir(parents=True)
        self.stream = f"faults-{folder.name}"
        with cluster.connect() as t:
            t.create_stream(self.stream)
        self.order = SinkJob(cluster.servers, self.stream, str(folder), **order)
        self.runs = 0
        self.lines: list[bytes] = []
        self.started: list[subprocess.Popen[bytes]] = []
        for at in range(FILES):
            self.add(at)

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.started:
            if process.poll() is None:
                self.kill(process)

    def add(self, at: int, width: int = 0) -> None:
        """One more file to read."""
        lines = [f"line {at}/{number} {self.rng.randrange(10**9)}".ljust(width, ".") for number in range(LINES)]
        self.lines += [line.encode() for line in lines]
        (self.folder / "in" / f"{at:03}.txt").write_text("\n".join(lines))

    def start(self) -> subprocess.Popen[bytes]:
        """Run the query, in a group of processes of its own."""
        self.runs += 1
        command = [sys.executable, "-m", "tidings.campaign.spark.sink_faults", msgspec.json.encode(self.order).decode()]
        with (self.folder / f"run-{self.runs}.log").open("wb") as log:
            self.started.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        return self.started[-1]

    def midway(self, process: subprocess.Popen[bytes], known: set[str] | None = None) -> list[str]:
        """Wait until a task that is not known has begun; which have."""
        until = time.monotonic() + DEADLINE
        while process.poll() is None and time.monotonic() < until:
            marks = sorted(path.name for path in (self.folder / "marks").iterdir() if path.name not in (known or ()))
            if marks:
                time.sleep(self.rng.uniform(0.0, 20 * PAUSE))
                return marks
            time.sleep(0.05)
        raise TidingsError(f"{self.folder}: the query ended, or did not begin a batch: see run-{self.runs}.log")

    def finish(self, process: subprocess.Popen[bytes] | None = None, tries: int = 4) -> None:
        """Let the query come to its end; if it fails it is started again, as an operator would."""
        for _ in range(tries):
            process = process or self.start()
            if process.wait(DEADLINE) == 0:
                return
            process = None
        raise TidingsError(f"{self.folder}: the query fails again and again: see run-{self.runs}.log")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Everything that the query has started dies at once."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE)

    def verdict(self, times: int = 1) -> dict[str, Any]:
        """What the stream holds, and whether that is every line as often as it should be."""
        with self.cluster.connect() as t:
            found = rows_of(t, self.stream)
        wanted = (times * len(self.lines), times * hashed(pa.array(self.lines, pa.binary())) % 2**64)
        return {"rows": found[0], "expected": wanted[0], "runs": self.runs, "holds": found == wanted}


class Cluster:
    """A local cluster of one region, for blocking code; ``with`` stops it."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._local = LocalCluster(regions=1, replicas=3, dir=folder)

    def __enter__(self) -> Cluster:
        self._do(self._local.start())
        return self

    def __exit__(self, *error: object) -> None:
        self._do(self._local.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE)

    @property
    def servers(self) -> str:
        """Where its replicas are."""
        return self._local.url("r0")

    def connect(self) -> sync.BlockingConnection:
        """A client of it."""
        return sync.connect(self.servers, timeout=60.0)

    def kill_head(self) -> None:
        """The head of the chain dies; the supervisor starts it again."""
        head, *_ = self._do(self._local.chain("r0"))
        self._do(self._local.kill(head))

    def until_ready(self) -> None:
        """Wait until every replica is back."""
        self._do(self._local.until_ready())


def hashed(payloads: pa.Array) -> int:
    """The sum of the rows' hashes: the same in whatever order they come."""
    count = len(payloads)
    columns = [pa.array(np.zeros(count, np.uint8)), pa.nulls(count, pa.binary()), payloads, pa.nulls(count, pa.int64())]
    return hash_sum(content_hashes(pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)))


def rows_of(t: sync.BlockingConnection, stream: str) -> tuple[int, int]:
    """How many rows a stream has, and the sum of their hashes."""
    horizon = t.stream(stream).horizon
    count = total = 0
    if horizon > 1:
        with t.subscribe(stream, start="earliest") as sub:
            for span in sub.spans():
                count, total = count + span.rows.num_rows, (total + hashed(span.rows.column("payload"))) % 2**64
                if span.hi >= horizon:
                    break
    return count, total


def descendants(pid: int) -> dict[int, str]:
    """The processes below one, and their command lines."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
    found: dict[int, str] = {}
    for child in sorted(parents):
        at = child
        while at in parents and at != pid:
            at = parents[at]
        if at == pid and child != pid:
            try:
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def driver_killed(bed: Bed) -> dict[str, Any]:
    """The driver and all its processes die in the middle of a batch, twice."""
    for _ in range(2):
        known = {path.name for path in (bed.folder / "marks").iterdir()}
        process = bed.start()
        bed.midway(process, known)
        bed.kill(process)
    bed.finish()
    return bed.verdict()


def worker_killed(bed: Bed) -> dict[str, Any]:
    """A Python worker dies while it stages; Spark tries its task again."""
    process = bed.start()
    worker = int(bed.midway(process)[0].rpartition("-")[2])
    os.kill(worker, signal.SIGKILL)
    bed.finish(process)
    return bed.verdict()


def executor_killed(bed: Bed) -> dict[str, Any]:
    """An executor dies with its workers; its tasks run elsewhere."""
    bed.order.master = CLUSTER
    process = bed.start()
    bed.midway(process)
    backends = [pid for pid, command in descendants(process.pid).items() if "CoarseGrainedExecutorBackend" in command]
    os.kill(bed.rng.choice(backends), signal.SIGKILL)
    bed.finish(process)
    return bed.verdict() | {"executors": len(backends)}


def commit_forgotten(bed: Bed) -> dict[str, Any]:
    """The last entry of Spark's commit log is lost: the batch runs again, and more follows."""
    bed.finish()
    commits = sorted((bed.folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    bed.add(FILES)
    bed.finish()
    return bed.verdict()


def head_killed(bed: Bed) -> dict[str, Any]:
    """The head of the chain dies while tasks stage."""
    process = bed.start()
    bed.midway(process)
    bed.cluster.kill_head()
    bed.finish(process)
    return bed.verdict()


def task_retried(bed: Bed) -> dict[str, Any]:
    """A task fails when it has staged nearly everything: what its next attempt stages counts, and nothing else."""
    bed.order.first = "fails"
    for path in (bed.folder / "in").iterdir():
        path.unlink()
    bed.lines.clear()
    for at in range(2 * PER_BATCH):
        bed.add(at, width=WIDE)
    bed.finish()
    retried = [path.name for path in (bed.folder / "marks").iterdir() if path.name.split("-")[2] != "0"]
    return bed.verdict() | {"retried": len(retried)}


def task_speculated(bed: Bed) -> dict[str, Any]:
    """Spark runs a slow task a second time, at the same time on another host; what one of the two staged counts."""
    bed.order.first, bed.order.conf = "dawdles", SPECULATE
    with standalone(bed.folder / "standalone", workers=2) as bed.order.master:
        bed.finish()
    second = [path.name for path in (bed.folder / "marks").iterdir() if path.name.split("-")[2] != "0"]
    return bed.verdict() | {"speculated": len(second)}


Fault: TypeAlias = Callable[[Bed], dict[str, Any]]
FAULTS: dict[str, Fault] = {
    each.__name__: each
    for each in (
        driver_killed,
        worker_killed,
        executor_killed,
        commit_forgotten,
        head_killed,
        task_retried,
        task_speculated,
    )
}


def run(seeds: range, progress: Progress | None = None, names: Sequence[str] = ()) -> dict[str, Any]:
    """Let each fault happen, once per seed, to a query of its own (the JSON of `tidings check sink`).

    "violations" lists the faults after which a row was missing or there twice.
    """
    with tempfile.TemporaryDirectory(prefix="tidings-sink-") as folder:
        return _run([(seed, name) for seed in seeds for name in names or FAULTS], seeds, Path(folder), progress)


def _run(chosen: Sequence[tuple[int, str]], seeds: range, folder: Path, progress: Progress | None) -> dict[str, Any]:
    results: list[dict[str, Any]] = []
    with Cluster(folder / "cluster") as cluster:
        for seed, name in chosen:
            began = time.monotonic()
            cluster.until_ready()
            with Bed(cluster, folder / f"{name}-{seed}", seed) as bed:
                found = FAULTS[name](bed)
            results.append({"seed": seed, "fault": name, **found, "seconds": round(time.monotonic() - began, 1)})
            if progress is not None:
                progress(len(results), len(chosen), f"{name}: {'holds' if found['holds'] else 'BROKEN'}")
    broken = [each for each in results if not each["holds"]]
    reached = {
        "task retried after it had staged": sum(each.get("retried", 0) for each in results),
        "task run twice at once": sum(each.get("speculated", 0) for each in results),
    }
    return {
        "target": "sink",
        "seeds": f"{seeds.start}..{seeds.stop}",
        "violations": [
            {
                "seed": each["seed"],
                "invariant": "exactly once",
                "detail": f"{each['fault']}: {each['rows']} rows instead of {each['expected']}, or others",
                "replay": f"tidings check sink --seeds {each['seed']}..{each['seed'] + 1}",
            }
            for each in broken
        ],
        "faults": {name: sum(each["fault"] == name for each in results) for name in FAULTS},
        "reached": reached,
        "unreached": sorted(goal for goal, count in reached.items() if not count),
        "runs": results,
    }


if __name__ == "__main__":
    drive(msgspec.convert(json.loads(sys.argv[1]), SinkJob))
