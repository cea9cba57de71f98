"""How many subscribers an edge carries (`tidings bench fanout`): each a TCP connection with a filter of its own.

A replica and an edge. 2,000 events per second of 250 bytes are published, and every subscriber's filter passes two of
them a second, as in Gryphon's measurements (GR1). What is reported is what the edge sent, its processor time (user and
system), and how long an event took from before it was published to the subscriber's socket. Every subscriber must get
exactly what its filter passes, or the benchmark fails. Latencies are those of the later of two subscribing processes.

``bare-N`` is a process that sends messages of that size to as many connections, as often, and does nothing else: mostly
the price of the system calls. Repetitions of both take turns. Publisher, replica, edge and subscribers share this
machine, so latencies contain waiting for processors; ``others_cpus`` says how many everybody else kept busy.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from tidings.bench.cluster import TICKS, WAIT, BenchWorker, Usage, WorkerFailed
from tidings.bench.fanout_worker import LATE, FanoutJob
from tidings.client.connection import Connection, connect
from tidings.core.errors import BadInput
from tidings.net.link import LinkSettings
from tidings.net.loop import run as run_loop
from tidings.server.cluster_config import HOST, free_port
from tidings.server.http_client import call_async
from tidings.server.local import LocalCluster
from tidings.sim.run import Progress

CONNECTIONS = (100, 1_000, 16_000)
MODULE = "tidings.bench.fanout_worker"
REPLICA, EDGE = "r0/p0", "r0/e0"
SPARE = 256  # descriptors of a process that are no connections of subscribers; ours
CONNECTING = 0.02  # seconds that a connection may take to be there; ours, many times over
Result: TypeAlias = dict[str, Any]


class FanoutScale(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured; tests use little."""

    connections: tuple[int, ...] = CONNECTIONS
    seconds: float = 10.0  # measured, of each repetition
    warm: float = 2.0  # before that
    processes: int = 2  # of subscribers
    rate: float = 2000.0


class ProcessorTime(NamedTuple):
    """Processor seconds of a process so far."""

    user: float
    system: float

    @classmethod
    def of(cls, pid: int) -> ProcessorTime:
        """As the system says."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return cls(int(fields[11]) / TICKS, int(fields[12]) / TICKS)


def run(runs: int = 3, progress: Progress | None = None, scale: FanoutScale | None = None) -> Result:
    """All numbers of connections; the median repetition counts."""
    runs, scale = max(runs, 1), scale or FanoutScale()
    need_descriptors(max(scale.connections))

    async def everything() -> list[Result]:
        found: list[Result] = []
        for at, count in enumerate(scale.connections):
            samples: dict[str, list[Result]] = {"edge": [], "bare": []}
            async with LocalCluster(1, 1, edges=1, lab=False) as cluster:
                for turn in range(runs):
                    samples["edge"].append(await through_edge(cluster, count, scale, turn))
                    samples["bare"].append(await through_bare(count, scale, turn))
                    if progress is not None:
                        now = samples["edge"][-1]
                        text = f"{count:,} subscribers: {now['events_per_s']:,.0f} events/s, {now['cpus']:.2f} cores"
                        progress(at * runs + turn + 1, len(scale.connections) * runs, text)
            found += [_summary(f"{name}-{count}", count, each) for name, each in samples.items()]
        return found

    found = run_loop(everything())
    cpus = {each["name"]: each["cpus"] for each in found}
    ratio = {
        f"edge-{n}/bare-{n} cpus": round(cpus[f"edge-{n}"] / cpus[f"bare-{n}"], 2)
        for n in scale.connections
        if cpus[f"bare-{n}"]  # few messages take less than a tick of the clock
    }
    return {"bench": "fanout", "runs": found, "ratio": ratio, "rate": scale.rate, "seconds": scale.seconds}


def need_descriptors(connections: int) -> None:
    """Let this process and those it starts have so many connections; `BadInput` where that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bound = LinkSettings().peers
    if connections > bound - SPARE:
        raise BadInput(f"--connections {connections}: an edge accepts {bound}, give {bound - SPARE} or less")
    needed = connections + SPARE
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BadInput(
            f"--connections {connections}: the edge needs {needed} file descriptors, and this user may have {hard}: "
            f"raise the limit (`ulimit -Hn {needed}` as root, or nofile in /etc/security/limits.conf), or give "
            f"--connections {max(hard - SPARE, 1)}"
        )
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


async def through_edge(cluster: LocalCluster, count: int, scale: FanoutScale, turn: int) -> Result:
    """One repetition."""
    replica, edge = cluster.process(REPLICA), cluster.process(EDGE)
    assert replica is not None and edge is not None
    url, stream = cluster.url("r0"), f"fanout-{turn}"
    async with connect(url) as t:
        info = await t.create_stream(stream, attrs="topic bigint, price double")
        await _until_edge_is_idle(t, edge.http_port)
    address = cluster.config.broker_places()[EDGE].address
    job = _job(scale, count, turn)
    watched = {"edge": edge.pid, "replica": replica.pid}
    publisher = ("publish", replace(job, url=url, stream=stream))
    return await _measure(publisher, _subscribers("subscribe", job, address, info.id, scale), watched, scale)


async def through_bare(count: int, scale: FanoutScale, turn: int) -> Result:
    """The same number of messages from a process without a protocol."""
    job = replace(_job(scale, count, turn), address=f"{HOST}:{free_port()}")
    return await _measure(
        ("send-bare", job), _subscribers("subscribe-bare", job, job.address, "", scale), {}, scale, sender=True
    )


def _job(scale: FanoutScale, count: int, turn: int) -> FanoutJob:
    return FanoutJob(total=count, rate=scale.rate, seconds=scale.seconds, warm=scale.warm, seed=turn)


def _subscribers(
    name: str, job: FanoutJob, address: str, stream: str, scale: FanoutScale
) -> list[tuple[str, FanoutJob]]:
    """The subscribers in a few processes."""
    bounds = [at * job.total // scale.processes for at in range(scale.processes + 1)]
    return [
        (name, replace(job, address=address, stream=stream, first=lo, count=hi - lo))
        for lo, hi in pairwise(bounds)
        if hi > lo
    ]


async def _until_edge_is_idle(t: Connection, port: int) -> None:
    """Wait until clients learn of the edge, and it has dropped the subscribers of the repetition before."""
    end = time.monotonic() + WAIT
    while not (await t.describe()).edges or (await call_async(port, "/status"))["subscriptions"]:
        if time.monotonic() > end:
            raise WorkerFailed(f"the edge is not there, or not idle, after {WAIT:g} s")
        await asyncio.sleep(0.1)


async def _measure(
    sending: tuple[str, FanoutJob],
    receiving: Sequence[tuple[str, FanoutJob]],
    watched: dict[str, int],
    scale: FanoutScale,
    *,
    sender: bool = False,
) -> Result:
    """Start the processes, let one publish and the others receive; what the first of those watched has used."""
    made: list[BenchWorker] = []
    count = sending[1].total
    try:
        made.append(await BenchWorker.start(*sending, module=MODULE))
        await made[0].hear()
        made += [await BenchWorker.start(*each, module=MODULE) for each in receiving]
        await asyncio.gather(*[worker.hear(WAIT + CONNECTING * count) for worker in made[1:]])
        pids = {"sender": made[0].process.pid, **watched} if sender else watched
        usage = Usage({**watched, **{f"worker-{at}": worker.process.pid for at, worker in enumerate(made)}})
        made[0].tell()
        await asyncio.sleep(scale.warm)
        before = {name: ProcessorTime.of(pid) for name, pid in pids.items()}
        await made[0].hear(scale.warm + scale.seconds + WAIT)
        for worker in made[1:]:
            worker.tell("end")
        ends = await asyncio.gather(*[worker.hear(LATE + WAIT) for worker in made[1:]])
        used = {name: ProcessorTime.of(pid) for name, pid in pids.items()}
        others = usage.since(0.0)["others_cpus"]
    finally:
        await asyncio.gather(*[worker.end() for worker in made])
    wrong = {what: sum([each[what] for each in ends]) for what in ("missing", "surplus")}
    if any(wrong.values()):
        raise WorkerFailed(f"{count} subscribers got {wrong['missing']} events too few and {wrong['surplus']} too many")
    return _sample(ends, before, used, others)


def _sample(
    ends: Sequence[Result], before: dict[str, ProcessorTime], used: dict[str, ProcessorTime], others: float
) -> Result:
    """Rates and shares between the end of the warm-up and the last arrival."""
    took = max([each["last"] for each in ends]) - min([each["warm"] for each in ends])
    cpus = {
        name: ProcessorTime((now.user - before[name].user) / took, (now.system - before[name].system) / took)
        for name, now in used.items()
    }
    mine = cpus.get("edge") or cpus["sender"]
    rate = sum([each["samples"] for each in ends]) / took
    sample = {
        "events_per_s": rate,
        **{part: max([each[part] for each in ends]) for part in ("p50", "p99")},
        "cpus": sum(mine),
        "user": mine.user,
        "system": mine.system,
        "us_per_event": sum(mine) / rate * 1e6,
        "others_cpus": others,
    }
    return sample | ({"replica_cpus": sum(cpus["replica"])} if "replica" in cpus else {})


def _summary(name: str, count: int, samples: Sequence[Result]) -> Result:
    """The repetition in the middle by processor time, and the extremes."""
    by_cpus = sorted(samples, key=lambda each: each["cpus"])
    middle = by_cpus[(len(by_cpus) - 1) // 2]
    rates, p50s = [each["events_per_s"] for each in samples], [each["p50"] for each in samples]
    found: Result = {
        "name": name,
        "subscriptions": count,
        "events_per_s": round(middle["events_per_s"]),
        "spread": [round(min(rates)), round(max(rates))],
        "latency_us": {part: statistics.median([each[part] for each in samples]) for part in ("p50", "p99")},
        "spread_p50": [min(p50s), max(p50s)],
        "cpus": round(middle["cpus"], 3),
        "cpus_spread": [round(by_cpus[0]["cpus"], 3), round(by_cpus[-1]["cpus"], 3)],
        "cpu_parts": {part: round(middle[part], 3) for part in ("user", "system")},
        "cpu_us_per_event": round(middle["us_per_event"], 1),
        "others_cpus": round(statistics.median([each["others_cpus"] for each in samples]), 2),
    }
    if "replica_cpus" in middle:
        found["replica_cpus"] = round(middle["replica_cpus"], 3)
    return found
