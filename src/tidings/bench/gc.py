"""How fast by-key collection is (`tidings bench gc`): 100,000 ten-byte keys, batches of 16,384 events (SP9, A1.44).

`by-key-zipf` and `by-key-uniform` time `History.accept`: index the keys, find what each event replaces, give it the
number that collected it. Every batch is followed by a `purge`, as in a proxy; its time is reported beside it.
`numpy-searchsorted` does the same job for the Zipf stream with whole-array numpy: hashes in a sorted array, key bytes
compared, dead numbers in one flat array, nothing stored or purged. All of them must agree on what is alive.

Each job runs on one core, and its own processor time is what counts. Runs are interleaved, so that a busy machine
slows all of them alike; the result says how many processors others kept busy.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidings.core.gc import GcPolicy
from tidings.core.hashing import Seqs
from tidings.core.history import History
from tidings.core.ids import NEVER
from tidings.core.rows import ROW_SCHEMA, ArrowRows, Origin
from tidings.core.span import Span
from tidings.sim.run import Progress

KEYS = 100_000  # SP9
SKEW = 1.1  # SP9
KEY_BYTES = 10  # SP1: ten-byte events
BATCH = 16_384  # ours: the largest batch the data path uses
BATCHES = 128  # ours: two million events, enough for the set of live keys to settle
Words: TypeAlias = NDArray[np.uint64]
Result: TypeAlias = dict[str, Any]


def run(runs: int = 3, progress: Progress | None = None) -> Result:
    """Medians over so many runs (at least three), in the shape every benchmark has."""
    runs = max(runs, 3)
    rng = np.random.default_rng(20130613)
    streams = {"zipf": _stream(_zipf(rng)), "uniform": _stream(rng.integers(0, KEYS, BATCH * BATCHES))}
    _by_key(streams["zipf"][:2])  # compiled before anything is timed
    samples: dict[str, list[Result]] = {}
    busy = Busy()
    for _ in range(runs):
        for name, job, stream in (
            ("by-key-zipf", _by_key, streams["zipf"]),
            ("by-key-uniform", _by_key, streams["uniform"]),
            ("numpy-searchsorted", _searchsorted, streams["zipf"]),
        ):
            sample = job(stream)
            samples.setdefault(name, []).append(sample)
            if progress:
                done = sum(map(len, samples.values()))
                progress(done, 3 * runs, f"{name} {sample['events_per_s'] / 1e6:.1f} M events/s")
    live = {sample["live"] for name in ("by-key-zipf", "numpy-searchsorted") for sample in samples[name]}
    if len(live) > 1:
        raise AssertionError(f"the index and its numpy peer disagree on what is alive: {sorted(live)}")
    medians = {name: _median(name, found) for name, found in samples.items()}
    return {
        "bench": "gc",
        "runs": list(medians.values()),
        "ratio": {
            "by-key-zipf/numpy-searchsorted": round(
                medians["by-key-zipf"]["events_per_s"] / medians["numpy-searchsorted"]["events_per_s"], 2
            )
        },
        "others_cpus": busy.others(),
    }


def _median(name: str, found: list[Result]) -> Result:
    rates = sorted(sample["events_per_s"] for sample in found)
    out: Result = {
        "name": name,
        "events_per_s": round(statistics.median(rates)),
        "spread": [round(rates[0]), round(rates[-1])],
        "events": BATCH * BATCHES,
        "batch": BATCH,
        "keys": KEYS,
        "live": found[0]["live"],
    }
    if "with_purge" in found[0]:
        out["events_per_s_with_purge"] = round(statistics.median(sample["with_purge"] for sample in found))
        out["longest_purge_ms"] = round(statistics.median(sample["longest_purge"] for sample in found) * 1e3, 2)
        out["bytes_per_live_event"] = round(found[0]["bytes"] / found[0]["live"], 1)
    return out


# --- the workload ---------------------------------------------------------------------------------------


def _zipf(rng: np.random.Generator) -> Seqs:
    """Key numbers by Zipf popularity; which key is popular is drawn too."""
    weights = np.cumsum(1.0 / np.arange(1, KEYS + 1) ** SKEW)
    ranks = np.searchsorted(weights, rng.random(BATCH * BATCHES) * weights[-1])
    keys: Seqs = rng.permutation(KEYS)[ranks]
    return keys


def _stream(keys: Seqs) -> list[Span]:
    """Published batches, each of its own memory."""
    names = np.array([b"k%0*d" % (KEY_BYTES - 1, key) for key in range(KEYS)])
    offsets = pa.py_buffer(np.arange(0, KEY_BYTES * (BATCH + 1), KEY_BYTES, dtype=np.int32))
    kinds, befores = pa.array(np.zeros(BATCH, np.uint8)), pa.nulls(BATCH, pa.int64())
    spans = []
    for lo in range(1, len(keys) + 1, BATCH):
        data = pa.py_buffer(names[keys[lo - 1 : lo - 1 + BATCH]].tobytes())
        column = pa.Array.from_buffers(pa.binary(), BATCH, [None, offsets, data])
        batch = pa.RecordBatch.from_arrays([kinds, column, column, befores], schema=ROW_SCHEMA)
        spans.append(Span.of("bench", lo, ArrowRows.dense(lo, batch, (Origin(lo, lo + BATCH, "bench", 1, lo),))))
    return spans


# --- the jobs -------------------------------------------------------------------------------------------


def _by_key(spans: list[Span]) -> Result:
    history = History("bench", GcPolicy(by_key=True))
    accepting = purging = longest = 0.0
    for span in spans:
        start = time.process_time()
        history.accept(span)
        middle = time.process_time()
        history.purge()
        end = time.process_time()
        accepting += middle - start
        purging += end - middle
        longest = max(longest, end - middle)
    events = history.horizon - 1
    return {
        "events_per_s": events / accepting,
        "with_purge": events / (accepting + purging),
        "longest_purge": longest,
        "live": history.live,
        "bytes": history.nbytes,
    }


def _searchsorted(spans: list[Span]) -> Result:
    job = _Searchsorted(len(spans) * BATCH)
    start = time.process_time()
    for span in spans:
        assert isinstance(span.rows, ArrowRows)
        job.accept(span.rows.batch.column(1), span.rows.numbers)
    seconds = time.process_time() - start
    return {"events_per_s": len(spans) * BATCH / seconds, "live": int(np.count_nonzero(job.dead[1:] == NEVER))}


class _Searchsorted:
    """The same collection with sorted hashes; a key is its two overlapping words."""

    def __init__(self, events: int) -> None:
        self.dead: Seqs = np.full(events + 1, NEVER)
        self.hashes: Words = np.empty(0, np.uint64)
        self.words: Words = np.empty((0, 2), np.uint64)
        self.last: Seqs = np.empty(0, np.int64)

    def accept(self, keys: pa.Array, numbers: Seqs) -> None:
        """Mark what a batch replaces, then enter its last row of each key."""
        data = np.frombuffer(keys.buffers()[2], np.uint8).reshape(len(numbers), KEY_BYTES)
        words = np.empty((len(numbers), 2), np.uint64)
        words.view(np.uint8).reshape(len(numbers), 2, 8)[:, 0] = data[:, :8]
        words.view(np.uint8).reshape(len(numbers), 2, 8)[:, 1] = data[:, -8:]
        hashes = (words[:, 0] * np.uint64(0x9E3779B97F4A7C15)) ^ (words[:, 1] * np.uint64(0xBF58476D1CE4E5B9))
        order = np.argsort(hashes, kind="stable")
        hashes, words, numbers = hashes[order], words[order], numbers[order]
        again = hashes[1:] == hashes[:-1]
        assert np.array_equal(words[1:][again], words[:-1][again]), "two keys share a hash"
        self.dead[numbers[:-1][again]] = numbers[1:][again]
        first, final = np.append(True, ~again), np.append(~again, True)
        lasts, hashes, words, numbers = numbers[final], hashes[first], words[first], numbers[first]
        at = np.searchsorted(self.hashes, hashes)
        known = at < len(self.hashes)
        known[known] = self.hashes[at[known]] == hashes[known]
        old = at[known]
        assert np.array_equal(self.words[old], words[known]), "two keys share a hash"
        self.dead[self.last[old]] = numbers[known]
        self.last[old] = lasts[known]
        if not known.all():
            new = ~known
            self.hashes = np.insert(self.hashes, at[new], hashes[new])
            self.words = np.insert(self.words, at[new], words[new], axis=0)
            self.last = np.insert(self.last, at[new], lasts[new])


class Busy:
    """How many processors others kept busy meanwhile."""

    def __init__(self) -> None:
        self._start = self._read()

    def others(self) -> float | None:
        """Since this object was made; None where the system does not tell."""
        if self._start is None or (end := self._read()) is None:
            return None
        busy, own, now = (b - a for a, b in zip(self._start, end, strict=True))
        return round(max(busy - own, 0.0) / now, 2)

    def _read(self) -> tuple[float, float, float] | None:
        stat = Path("/proc/stat")
        if not stat.exists():
            return None
        user, nice, system, _, _, irq, softirq = (int(x) for x in stat.read_text().split("\n", 1)[0].split()[1:8])
        ticks: float = os.sysconf("SC_CLK_TCK")
        times = os.times()
        return (user + nice + system + irq + softirq) / ticks, times.user + times.system, time.perf_counter()
