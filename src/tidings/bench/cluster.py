"""How fast a real cluster is: `tidings bench throughput|latency|store`, and the memory of a replica.

Publishers, replicas and subscribers are processes of this machine (bench/worker.py). Streams are by key, with keys of
ten bytes out of 100,000 by Zipf popularity (SP9); an event is its key. A throughput is what a subscriber has received,
from the first call of a publisher to the last event, in events. A number that was collected before it could be sent
counts as received, and ``rows`` says which part came as rows. Every repetition has its own streams and clients, and a
warm-up that is not measured.

Beside each result stand how many processors other processes kept busy (/proc/stat), and the processor time of each
part, which can be compared on a busy machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from tidings.bench.worker import KEY_BYTES, BenchJob
from tidings.client.connection import connect
from tidings.core.errors import BadInput, TidingsError
from tidings.core.rows import ArrowRows, Origin, data_rows
from tidings.core.span import Span
from tidings.net.loop import run as run_loop
from tidings.protocols.replication.log import Logged, Record
from tidings.server.cluster_config import Durability
from tidings.server.local import LocalCluster
from tidings.server.paths import SUPERVISOR
from tidings.sim.run import Progress
from tidings.store import Store

BATCH = 16_384  # the batch that the targets are stated for
KEYS = 100_000  # SP9
WAIT = 60.0  # seconds for a worker to get ready, or to finish what it was told; ours
RATE = 1_000.0  # events per second of the latency runs
MEMORY = (10_000_000, 100_000_000)  # events of the memory run
TICKS: float = os.sysconf("SC_CLK_TCK")
Result: TypeAlias = dict[str, Any]


class ClusterScale(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured; tests use little."""

    seconds: float = 3.0  # of publishing, per repetition
    warm: int = 1 << 20  # events before that
    latency_seconds: float = 5.0
    fsyncs: int = 200
    store_events: int = 4_000_000
    batch: int = BATCH
    keys: int = KEYS


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One throughput run."""

    name: str
    regions: int = 1
    replicas: int = 1
    durability: Durability = "memory"
    calls: bool = False  # one event per call
    poll: float = 0.0  # seconds that replicas stay awake (decision 0014)


THROUGHPUT = (
    Shape(name="columnar-memory"),
    Shape(name="columnar-durable", durability="durable"),
    Shape(name="columnar-chain3-durable", replicas=3, durability="durable"),
    Shape(name="regions3", regions=3),
    Shape(name="one-per-call", calls=True),
    Shape(name="one-per-call-chain3-durable", replicas=3, durability="durable", calls=True),
)
LATENCY = (
    Shape(name="memory-1"),
    Shape(name="memory-1-polling", poll=0.002),
    Shape(name="memory-3", replicas=3),
    Shape(name="durable-3", replicas=3, durability="durable"),
)


def _chosen(shapes: Sequence[Shape], only: Sequence[str]) -> list[Shape]:
    unknown = set(only) - {shape.name for shape in shapes}
    if unknown:
        raise BadInput(f"no run is named {min(unknown)!r}; there are: {', '.join([each.name for each in shapes])}")
    return [shape for shape in shapes if not only or shape.name in only]


class WorkerFailed(TidingsError):
    """A process of the benchmark has ended or does not answer."""


# --- workers ----------------------------------------------------------------------------------------------


class BenchWorker:
    """A process of bench/worker.py or bench/fanout_worker.py."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process

    @classmethod
    async def start(cls, name: str, job: msgspec.Struct, module: str = "tidings.bench.worker") -> BenchWorker:
        """Start it; `hear` its being ready before anything else."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, name, msgspec.json.encode(job).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(name, process)

    async def hear(self, timeout: float = WAIT) -> Result:
        """The next thing it says."""
        assert self.process.stdout is not None
        try:
            said = await asyncio.wait_for(self.process.stdout.readline(), timeout)
        except TimeoutError:
            raise WorkerFailed(f"{self.name} has said nothing for {timeout:g} s") from None
        if not said:
            raise WorkerFailed(f"{self.name} has ended with code {await self.process.wait()}; see its error above")
        heard: Result = msgspec.json.decode(said)
        return heard

    def tell(self, what: str = "go") -> None:
        """A line for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(what.encode() + b"\n")

    async def end(self) -> None:
        """Let it end, or make it."""
        with contextlib.suppress(ProcessLookupError, TimeoutError):
            assert self.process.stdin is not None
            self.process.stdin.close()
            await asyncio.wait_for(self.process.wait(), 5.0)
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@contextlib.asynccontextmanager
async def workers(wanted: Sequence[tuple[str, BenchJob]]) -> Any:
    """Processes that are ready; they end with the block."""
    made = [await BenchWorker.start(name, job) for name, job in wanted]
    try:
        await asyncio.gather(*[worker.hear() for worker in made])
        yield made
    finally:
        await asyncio.gather(*[worker.end() for worker in made])


class Usage:
    """Processor time: of everybody, and of the processes of a cluster."""

    def __init__(self, pids: dict[str, int]) -> None:
        self.pids = pids
        self.at = time.monotonic()
        self.before = {name: process_seconds(pid) for name, pid in pids.items()}
        self.all = busy_seconds()

    def since(self, workers_cpu: float) -> Result:
        """What was used since: processors by others, and seconds by each replica."""
        took = time.monotonic() - self.at
        own = {name: process_seconds(pid) - self.before[name] for name, pid in self.pids.items()}
        others = busy_seconds() - self.all - sum(own.values()) - workers_cpu
        return {"others_cpus": round(max(others, 0.0) / took, 2), "replica_cpu": own}


def busy_seconds() -> float:
    """Processor seconds that anybody has used since the machine was started; 0 where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, irq, softirq = (int(x) for x in stat.read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS


def process_seconds(pid: int) -> float:
    """Processor seconds of a process so far; 0 if it is gone."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def private_bytes(pid: int) -> int:
    """Memory that a process shares with nobody."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum([int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Clean", "Private_Dirty"))])


def replica_pids(cluster: LocalCluster) -> dict[str, int]:
    """The processes of a cluster."""
    slots = [f"{region.name}/p{at}" for region in cluster.config.regions for at in range(len(region.replicas))]
    found = {slot: cluster.process(slot) for slot in [*slots, SUPERVISOR]}
    return {slot: process.pid for slot, process in found.items() if process is not None}


# --- throughput -------------------------------------------------------------------------------------------


async def measure(cluster: LocalCluster, shape: Shape, scale: ClusterScale, turn: int) -> Result:
    """One repetition."""
    regions = cluster.regions
    streams = {f"bench-{turn}-{region}": region for region in regions}
    async with connect(cluster.url(regions[0])) as t:
        for stream, region in streams.items():
            await t.create_stream(stream, region=region, gc="by-key")
    publish, subscribe = ("publish-posts", "subscribe-events") if shape.calls else ("publish-tables", "subscribe-spans")
    jobs: list[tuple[str, BenchJob]] = []
    for at, (stream, region) in enumerate(streams.items()):
        job = BenchJob(
            url=cluster.url(region), stream=stream, batch=scale.batch, keys=scale.keys, seconds=scale.seconds
        )
        jobs.append((publish, replace(job, events=max(scale.warm // len(regions), 1), seed=2 * at)))
        jobs.append((publish, replace(job, seed=2 * at + 1)))
    jobs += [(subscribe, BenchJob(url=cluster.url(region), streams=tuple(streams))) for region in regions]
    async with workers(jobs) as made:
        publishers, subscribers = made[: 2 * len(regions)], made[2 * len(regions) :]
        warmers, publishers = publishers[::2], publishers[1::2]
        for worker in (*subscribers, *warmers):
            worker.tell()
        warmed = await asyncio.gather(*[worker.hear() for worker in warmers])
        await until_level(cluster, streams, [each["hi"] for each in warmed])
        usage = Usage(replica_pids(cluster))
        for worker in publishers:
            worker.tell()
        sent = await asyncio.gather(*[worker.hear(scale.seconds + WAIT) for worker in publishers])
        targets = dict(zip(streams, [each["hi"] for each in sent], strict=True))
        for worker in subscribers:
            worker.tell(msgspec.json.encode(targets).decode())
        received = await asyncio.gather(*[worker.hear() for worker in subscribers])
        used = usage.since(sum([each["cpu"] for each in sent]) + sum([each["cpu"] for each in received]))
    events = sum([each["events"] for each in sent])
    seconds = max([each["ended"] for each in received]) - min([each["began"] for each in sent])
    everything = events + sum([each["events"] for each in warmed])
    return {
        "events_per_s": events / seconds,
        "events": events,
        "rows": sum([each["rows"] for each in received]) / (everything * len(received)),
        "cpu_us_per_event": {
            "publisher": sum([each["cpu"] for each in sent]) / events * 1e6,
            "replica": sum(used["replica_cpu"].values()) / events * 1e6,
            "subscriber": sum([each["cpu"] for each in received]) / everything * 1e6,
        },
        "others_cpus": used["others_cpus"],
    }


async def until_level(cluster: LocalCluster, streams: dict[str, str], his: list[int]) -> None:
    """Wait until every region has all that was published."""
    end = time.monotonic() + WAIT
    for region in cluster.regions:
        async with connect(cluster.url(region)) as t:
            while True:
                horizons = {info.name: info.horizon for info in await t.streams()}
                if all([horizons.get(stream, 0) >= hi for stream, hi in zip(streams, his, strict=True)]):
                    break
                if time.monotonic() > end:
                    raise WorkerFailed(f"region {region} is at {horizons} and should be at {his}")
                await asyncio.sleep(0.02)


async def throughput_of(
    shape: Shape, runs: int, scale: ClusterScale, report: Progress | None, done: int, total: int
) -> Result:
    """All repetitions of one shape, on one cluster."""
    async with LocalCluster(shape.regions, shape.replicas, durability=shape.durability, lab=False) as cluster:
        found = []
        for turn in range(runs):
            found.append(await measure(cluster, shape, scale, turn))
            if report is not None:
                rate = found[-1]["events_per_s"]
                report(done + turn + 1, total, f"{shape.name} {rate / 1e6:.2f} M events/s")
    rates = [each["events_per_s"] for each in found]
    middle = found[rates.index(statistics.median_low(rates))]
    return {
        "name": shape.name,
        "events_per_s": round(statistics.median(rates)),
        "spread": [round(min(rates)), round(max(rates))],
        "batch": "packed by the client" if shape.calls else scale.batch,
        "regions": shape.regions,
        "replicas": shape.replicas,
        "durability": shape.durability,
        "events": middle["events"],
        "rows": round(middle["rows"], 3),
        "cpu_us_per_event": {part: round(value, 3) for part, value in middle["cpu_us_per_event"].items()},
        "others_cpus": round(statistics.median([each["others_cpus"] for each in found]), 2),
    }


def throughput(
    runs: int = 3, progress: Progress | None = None, scale: ClusterScale | None = None, only: Sequence[str] = ()
) -> Result:
    """Events per second from publishers to subscribers."""
    runs, scale = max(runs, 1), scale or ClusterScale()
    shapes = _chosen(THROUGHPUT, only)

    async def everything() -> list[Result]:
        total = runs * len(shapes)
        return [await throughput_of(shape, runs, scale, progress, at * runs, total) for at, shape in enumerate(shapes)]

    found = run_loop(everything())
    rate = {each["name"]: each["events_per_s"] for each in found}
    pairs = [("columnar-durable", "columnar-memory"), ("columnar-chain3-durable", "columnar-durable")]
    pairs.append(("one-per-call-chain3-durable", "one-per-call"))
    ratio = {f"{a}/{b}": round(rate[a] / rate[b], 2) for a, b in pairs if a in rate and b in rate}
    return {"bench": "throughput", "runs": found, "ratio": ratio, "keys": scale.keys, "event_bytes": KEY_BYTES}


# --- memory -----------------------------------------------------------------------------------------------


def memory(
    counts: Sequence[int] = MEMORY, progress: Progress | None = None, scale: ClusterScale | None = None
) -> Result:
    """Private memory of a replica, in memory mode and with its subscriber, after so many events of a by-key stream."""
    scale = scale or ClusterScale()

    async def everything() -> list[Result]:
        found: list[Result] = []
        async with LocalCluster(1, 1, lab=False) as cluster:
            url = cluster.url("r0")
            async with connect(url) as t:
                await t.create_stream("bench", gc="by-key")
            pid = replica_pids(cluster)["r0/p0"]
            sent = 0
            async with workers([("subscribe-spans", BenchJob(url=url, streams=("bench",)))]) as (subscriber,):
                subscriber.tell()
                for at, count in enumerate(counts):
                    job = BenchJob(
                        url=url, stream="bench", events=count - sent, batch=scale.batch, keys=scale.keys, seed=at
                    )
                    async with workers([("publish-tables", job)]) as (publisher,):
                        publisher.tell()
                        told = await publisher.hear(WAIT + (count - sent) / 100_000)
                    sent += told["events"]
                    await asyncio.sleep(2.0)  # what is collected is purged
                    found.append({"name": f"memory-{count}", "events": sent, "private_bytes": private_bytes(pid)})
                    found[-1]["events_per_s"] = round(told["events"] / (told["ended"] - told["began"]))
                    if progress is not None:
                        progress(at + 1, len(counts), f"{sent} events, {found[-1]['private_bytes'] >> 20} MiB")
                subscriber.tell(msgspec.json.encode({"bench": told["hi"]}).decode())
                await subscriber.hear()
        return found

    found = run_loop(everything())
    first, last = found[0], found[-1]
    ratio = {f"{last['name']}/{first['name']}": round(last["private_bytes"] / first["private_bytes"], 3)}
    return {"bench": "memory", "runs": found, "ratio": ratio, "keys": scale.keys, "batch": scale.batch}


# --- latency ----------------------------------------------------------------------------------------------


async def latency_of(shape: Shape, cluster: LocalCluster, scale: ClusterScale, turn: int) -> Result:
    """One repetition: post to `async for`, in microseconds."""
    stream = f"bench-{turn}"
    async with connect(cluster.url("r0")) as t:
        await t.create_stream(stream, gc="by-key")
    job = BenchJob(url=cluster.url("r0"), stream=stream, rate=RATE, keys=scale.keys, seconds=scale.latency_seconds)
    jobs = [
        ("publish-paced", replace(job, seconds=min(0.5, scale.latency_seconds))),
        ("publish-paced", job),
        ("subscribe-stamped", BenchJob(url=cluster.url("r0"), streams=(stream,))),
    ]
    async with workers(jobs[:1]) as (warmer,):
        warmer.tell()
        await warmer.hear()
    async with workers(jobs[1:]) as (publisher, subscriber):
        usage = Usage(replica_pids(cluster))
        subscriber.tell()
        publisher.tell()
        sent = await publisher.hear(scale.latency_seconds + WAIT)
        subscriber.tell(msgspec.json.encode({stream: sent["hi"]}).decode())
        received = await subscriber.hear()
        used = usage.since(sent["cpu"] + received["cpu"])
        taken = await subscriber.hear()
    cpu = {"publisher": sent["cpu"], "replica": sum(used["replica_cpu"].values()), "subscriber": received["cpu"]}
    per_event = {part: round(seconds / sent["events"] * 1e6) for part, seconds in cpu.items()}
    return {**taken, "others_cpus": used["others_cpus"], "cpu_us_per_event": per_event}


async def raw_floor(processes: int, scale: ClusterScale) -> Result:
    """The same through so many processes with nothing but blocking sockets."""
    made: list[BenchWorker] = []
    usage = Usage({})
    try:
        port = 0
        for name in ("raw-receive", *["raw-relay"] * (processes - 2), "raw-send"):
            worker = await BenchWorker.start(name, BenchJob(ports=(0, port), rate=RATE, seconds=scale.latency_seconds))
            made.append(worker)
            port = (await worker.hear()).get("port", 0)
        made[-1].tell()
        cpu = [(await worker.hear(scale.latency_seconds + WAIT))["cpu"] for worker in made[1:]]
        taken = await made[0].hear()
        return {**taken, "others_cpus": usage.since(sum(cpu))["others_cpus"]}
    finally:
        await asyncio.gather(*[worker.end() for worker in made])


def fsync_floor(directory: str, scale: ClusterScale) -> Result:
    """Append 4 KiB and make them durable."""
    taken = []
    path = Path(directory) / "fsync"
    with open(path, "wb", buffering=0) as file:
        for _ in range(scale.fsyncs):
            file.write(bytes(4096))
            began = time.perf_counter_ns()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter_ns() - began) / 1e3)
    path.unlink()
    p50, p99 = np.percentile(np.array(taken), [50, 99])
    return {"p50": round(float(p50), 1), "p99": round(float(p99), 1)}


def latency(
    runs: int = 3, progress: Progress | None = None, scale: ClusterScale | None = None, only: Sequence[str] = ()
) -> Result:
    """How long an event takes at 1,000 events/s; repetitions take turns with their floors."""
    runs, scale = max(runs, 1), scale or ClusterScale()
    shapes = _chosen(LATENCY, only)

    async def everything() -> dict[str, list[Result]]:
        found: dict[str, list[Result]] = {}
        total = runs * 2 * len(shapes)
        for shape in shapes:
            floor = f"raw-sockets-{shape.replicas + 2}"
            async with LocalCluster(
                1, shape.replicas, durability=shape.durability, lab=False, poll=shape.poll
            ) as cluster:
                for turn in range(runs):
                    sample = await latency_of(shape, cluster, scale, turn)
                    found.setdefault(shape.name, []).append(sample)
                    found.setdefault(floor, []).append(await raw_floor(shape.replicas + 2, scale))
                    if shape.durability == "durable":
                        found.setdefault("fsync", []).append(fsync_floor(str(cluster.files.root), scale))
                    if progress is not None:
                        done = sum([len(each) for name, each in found.items() if name != "fsync"])
                        progress(done, total, f"{shape.name} p50 {sample['p50']:.0f} us, p99 {sample['p99']:.0f} us")
        return found

    found = run_loop(everything())
    polls = {shape.name: shape.poll for shape in shapes}
    out = []
    for name, samples in found.items():
        p50s = [each["p50"] for each in samples]
        one: Result = {"name": name, "latency_us": {"p50": statistics.median(p50s)}}
        one["latency_us"]["p99"] = statistics.median([each["p99"] for each in samples])
        one["spread_p50"] = [min(p50s), max(p50s)]
        if name in polls:
            one["poll_ms"] = 1e3 * polls[name]
        if name.startswith("raw"):
            one["processes"] = int(name.rpartition("-")[2])
        if "cpu_us_per_event" in samples[0]:
            one["cpu_us_per_event"] = samples[0]["cpu_us_per_event"]
        if "others_cpus" in samples[0]:
            one["others_cpus"] = round(statistics.median([each["others_cpus"] for each in samples]), 2)
        out.append(one)
    p50 = {each["name"]: each["latency_us"]["p50"] for each in out}
    ratio = {}
    for shape in shapes:
        floor = f"raw-sockets-{shape.replicas + 2}"
        ratio[f"{shape.name}/{floor}"] = round(p50[shape.name] / p50[floor], 2)
    if "fsync" in p50:
        ratio["durable-3/fsync"] = round(p50["durable-3"] / p50["fsync"], 2)
    return {"bench": "latency", "runs": out, "ratio": ratio, "rate": RATE}


# --- the store --------------------------------------------------------------------------------------------


def records(scale: ClusterScale, batch: int) -> list[Record]:
    """Records as the head writes them: a batch of keys."""
    rng = np.random.default_rng(1)
    out: list[Record] = []
    lo = 1
    for lsn in range(1, max(scale.store_events // batch, 1) + 1):
        keys = [b"k%09d" % key for key in rng.integers(0, scale.keys, batch).tolist()] if lsn <= 16 else None
        if keys is None:
            rows = out[lsn % 16].parts[0].rows
            assert isinstance(rows, ArrowRows)
            made = rows.renumbered(lo, (Origin(lo, lo + batch, "bench", 1, lo),))
        else:
            made = data_rows(lo, keys, [b""] * batch, Origin(lo, lo + batch, "bench", 1, lo))
        out.append(Record(1, lsn, (Span.of("bench", lo, made),)))
        lo += batch
    return out


async def write_all(directory: str, entries: list[Record], ahead: int) -> float:
    """Seconds to make records durable, with so many written before the first is."""
    store = Store.open(directory, node="bench")
    loop = asyncio.get_running_loop()
    durable = 0
    moved = asyncio.Event()

    def persisted(token: int) -> None:
        nonlocal durable
        durable = token
        moved.set()

    store.start(loop, persisted)
    began = time.perf_counter()
    for token, record in enumerate(entries, 1):
        store.write(Logged(record, 0), token)
        while token - durable >= ahead:
            moved.clear()
            await moved.wait()
    while durable < len(entries):
        moved.clear()
        await moved.wait()
    took = time.perf_counter() - began
    await asyncio.to_thread(store.close)
    return took


def store(runs: int = 3, progress: Progress | None = None, scale: ClusterScale | None = None) -> Result:
    """The durable log by itself: a sync per batch of 4k and of 16k, and group commit, beside a bare fdatasync."""
    runs, scale = max(runs, 1), scale or ClusterScale()
    shapes = [("sync-per-batch-4k", 4096, 1), ("sync-per-batch-16k", BATCH, 1), ("group-commit-16k", BATCH, 64)]
    made = {batch: records(scale, batch) for batch in {batch for _, batch, _ in shapes}}
    found: dict[str, list[float]] = {}
    syncs: list[Result] = []
    others = []
    for turn in range(runs):
        for at, (name, batch, ahead) in enumerate(shapes):
            with tempfile.TemporaryDirectory(prefix="tidings-") as directory:
                usage = Usage({"bench": os.getpid()})
                took = run_loop(write_all(f"{directory}/store", made[batch], ahead))
                others.append(usage.since(0.0)["others_cpus"])
                found.setdefault(name, []).append(len(made[batch]) * batch / took)
                if at == 0:
                    syncs.append(fsync_floor(directory, scale))
            if progress is not None:
                progress(turn * len(shapes) + at + 1, runs * len(shapes), f"{name} {found[name][-1] / 1e6:.1f} M/s")
    out: list[Result] = [
        {
            "name": name,
            "events_per_s": round(statistics.median(found[name])),
            "spread": [round(min(found[name])), round(max(found[name]))],
            "batch": batch,
            "queued_batches": ahead,
        }
        for name, batch, ahead in shapes
    ]
    p50s = [each["p50"] for each in syncs]
    floor = {"p50": statistics.median(p50s), "p99": statistics.median([each["p99"] for each in syncs])}
    out.append({"name": "fsync", "latency_us": floor, "spread_p50": [min(p50s), max(p50s)]})
    rate = {each["name"]: each["events_per_s"] for each in out if "events_per_s" in each}
    ratio = {"group-commit-16k/sync-per-batch-16k": round(rate["group-commit-16k"] / rate["sync-per-batch-16k"], 2)}
    return {"bench": "store", "runs": out, "ratio": ratio, "others_cpus": round(statistics.median(others), 2)}
