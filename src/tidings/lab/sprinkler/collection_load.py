"""The workload of SP7 to SP9, and what collection by key leaves of it (Sprinkler, section 5.4); judged in `collection`.

The paper's workload: each event invalidates a key, chosen by popularity (rank r with a chance of about r^-skew).
New keys enter at a rank drawn from a Zeta distribution of the same skew and push the others down, so old keys lose
popularity. SP8 (infinite set: keys drawn from the Zeta distribution) and SP9 (100,000 keys, fixed or with one insertion
in eleven events) feed the keys to a `History` that collects by key, and count what it still stores.

SP7: figure 9 plots how many invalidations hit keys of each age during the experiment. That number falls with age even
if all keys are alike, because few keys of a run grow old and because the set grows, so that a key has ever more others
beside it. Beside it ours counts invalidations per key and tick at that age, when the set has almost its final size.
Keys that are all alike then give a flat line.

The savings are no constant: they grow with the number n of events, because an event for a known key adds no row.
`expected_distinct` is the closed form for keys drawn independently: the sum over all keys of 1 - (1 - p)^n.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidings.core.gc import GcPolicy
from tidings.core.history import History
from tidings.core.rows import ROW_SCHEMA, ArrowRows, Origin
from tidings.core.span import Span

if TYPE_CHECKING:
    from tidings.lab.study import Row

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NEW_KEYS = 10  # SP7: per tick
WINDOW = 4  # ours: ages are counted per key and tick in the last quarter of the ticks
KEYS = 100_000  # SP9
INSERTED = 11  # SP9: every eleventh event inserts a key, ten invalidate one
FAR = 1 << 62
EDGE = 1_000_000.5  # up to here terms of a sum are added up, beyond they are integrated
BATCH = 10_000


# --- the workload ---------------------------------------------------------------------------------------


def ranks(rng: np.random.Generator, cumulative: Floats, keys: int | Ints, count: int) -> Ints:
    """So many ranks from 0 below ``keys``, by popularity; ``cumulative`` are the running sums of r^-skew."""
    drawn: Ints = np.searchsorted(cumulative, rng.random(count) * cumulative[keys - 1], side="right")
    return drawn


def popularity(skew: float, keys: int) -> Floats:
    """Running sums of r^-skew."""
    sums: Floats = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -skew)
    return sums


def zeta(rng: np.random.Generator, skew: float, count: int) -> Ints:
    """Draws from the Zeta distribution, from 1 up; beyond 2^62 (1 % of the draws at 1.1) each is a number of its own.

    By inversion: a table up to a million, then the integral. (`Generator.zipf` is a third of a percent off at 1.1.)
    """
    table = _table(skew)
    drawn = rng.random(count) * zeta_sum(skew)
    found: Ints = np.searchsorted(table, drawn, side="right") + 1
    far = np.flatnonzero(drawn >= table[-1])
    with np.errstate(over="ignore"):
        value = EDGE * (1.0 - rng.random(len(far))) ** (1 / (1 - skew))
    found[far] = np.where(value < FAR, np.minimum(value, FAR), rng.integers(FAR, 2 * FAR - 1, len(far)))
    return found


@cache
def _table(skew: float) -> Floats:
    return popularity(skew, int(EDGE))


@cache
def zeta_sum(skew: float) -> float:
    """The sum of k^-skew over all k: a million terms, then the integral."""
    return float(_table(skew)[-1] + EDGE ** (1 - skew) / (skew - 1))


def ages(skew: float, invalidations: int, ticks: int, seed: int, popularity_skew: float) -> tuple[Ints, Ints, Ints]:
    """SP7: invalidations, and pairs of a key and a tick, by the age of the key, in the last quarter of the ticks; and
    invalidations in all of them.

    The first two not before, because a young key is then seen among fewer others than an old one ever is.
    """
    rng = np.random.default_rng([seed, round(100 * skew), invalidations])
    cumulative = popularity(popularity_skew, 2 * NEW_KEYS * ticks + 1_000)
    born = np.zeros(1, dtype=np.int64)  # by rank: when the key there was added
    hits, key_ticks, totals = np.zeros((3, ticks), dtype=np.int64)
    for now in range(ticks):
        new = np.minimum(zeta(rng, skew, rng.poisson(NEW_KEYS)) - 1, len(born))
        born = np.insert(born, new, now)
        hit = ranks(rng, cumulative, len(born), rng.poisson(invalidations))
        by_age = np.bincount(now - born[hit], minlength=ticks)
        totals += by_age
        if now >= ticks - ticks // WINDOW:
            hits += by_age
            key_ticks += np.bincount(now - born, minlength=ticks)
    return hits, key_ticks, totals


def infinite_keys(skew: float, events: int, seed: int) -> Iterator[Ints]:
    """SP8: batches of keys from an infinite set."""
    rng = np.random.default_rng([seed, round(100 * skew)])
    for _ in range(events // BATCH):
        yield zeta(rng, skew, BATCH)


def finite_keys(skew: float, events: int, seed: int) -> Iterator[Ints]:
    """SP9: batches of keys from a set of 100,000."""
    rng = np.random.default_rng([seed, round(100 * skew), 0])
    cumulative = popularity(skew, KEYS)
    for _ in range(events // BATCH):
        yield ranks(rng, cumulative, KEYS, BATCH)


def growing_keys(skew: float, events: int, seed: int) -> Iterator[Ints]:
    """SP9: the same, but every eleventh event adds a key, numbered from 100,000 up.

    It can be hit from the next event on: if keys entered in batches, many would be pushed down before they are hit.
    """
    rng = np.random.default_rng([seed, round(100 * skew), 1])
    cumulative = popularity(skew, KEYS + events // INSERTED)
    ranking = Ranking(KEYS, events // INSERTED)
    for first in range(0, events - BATCH + 1, BATCH):
        at = np.arange(first, first + BATCH)
        drawn = ranks(rng, cumulative, KEYS + at // INSERTED, BATCH)
        new = np.flatnonzero(at % INSERTED == INSERTED - 1)
        batch = np.empty(BATCH, dtype=np.int64)
        done = 0
        for place, rank in zip(new.tolist(), (zeta(rng, skew, len(new)) - 1).tolist(), strict=True):
            batch[done:place] = ranking.keys[drawn[done:place]]
            batch[place] = KEYS + (first + place) // INSERTED
            ranking.enter(rank, batch[place])
            done = place + 1
        batch[done:] = ranking.keys[drawn[done:]]
        yield batch


class Ranking:
    """Keys by popularity, the first ``keys`` numbers, with room for so many more.

    The room is on both sides, so that a key that enters moves only those between it and the nearer end.
    """

    def __init__(self, keys: int, room: int) -> None:
        self._cells = np.zeros(keys + 2 * room, dtype=np.int64)
        self._lo, self._hi = room, room + keys
        self.keys[:] = np.arange(keys)

    @property
    def keys(self) -> Ints:
        """By rank."""
        return self._cells[self._lo : self._hi]

    def enter(self, rank: int, key: int) -> None:
        """A key enters at a rank, or as the last, and pushes the others down."""
        size = self._hi - self._lo
        rank = min(rank, size)
        if rank < size // 2:
            self._lo -= 1
            self.keys[:rank] = self.keys[1 : rank + 1]
        else:
            self._hi += 1
            self.keys[rank + 1 :] = self.keys[rank:-1]
        self.keys[rank] = key


def counted(batches: Iterator[Ints], times: Ints) -> Iterator[Ints]:
    """Pass batches on, and keep in ``times`` how often each inserted key has come; its first time inserts it."""
    for keys in batches:
        np.add.at(times, keys[keys >= KEYS] - KEYS, 1)
        yield keys


def stored(batches: Iterator[Ints]) -> Iterator[tuple[int, int]]:
    """(events so far, events still stored) after each batch, by the product's own history."""
    history = History("keys", GcPolicy.parse("by-key"))
    at = 1
    for keys in batches:
        history.accept(Span.of("keys", at, _rows(at, keys)))
        at += len(keys)
        history.purge()
        yield at - 1, history.live


def _rows(lo: int, keys: Ints) -> ArrowRows:
    """A batch of events with eight-byte keys and no payload."""
    count = len(keys)
    offsets = pa.py_buffer(np.arange(0, 8 * (count + 1), 8, dtype=np.int32))
    column = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(keys.astype(">i8"))])
    kinds, nothing = pa.array(np.zeros(count, np.uint8)), pa.nulls(count, pa.binary())
    batch = pa.RecordBatch.from_arrays([kinds, column, nothing, pa.nulls(count, pa.int64())], schema=ROW_SCHEMA)
    return ArrowRows.dense(lo, batch, (Origin(lo, lo + count),))


def expected_distinct(skew: float, n: int, keys: int | None) -> float:
    """The expected number of distinct keys among n, of a finite set or (None) of the Zeta distribution (SP9d)."""
    head = np.arange(1, (keys or int(EDGE)) + 1, dtype=np.float64) ** -skew
    total = head.sum() if keys else zeta_sum(skew)
    found = float(-np.expm1(n * np.log1p(-head / total)).sum())
    if keys is None:
        x = np.geomspace(EDGE, EDGE * (n + 1.0) ** (3 / skew) * 1e12, 20_000)
        density = -np.expm1(-n * x**-skew / total)
        found += float(np.sum((density[1:] + density[:-1]) / 2 * np.diff(x)))
        found += n * x[-1] ** (1 - skew) / (skew - 1) / total  # beyond that every event has a key of its own
    return found


@cache
def reaches(skew: float, keys: int | None, share: float) -> int:
    """The number of events at which this share is saved by the closed form, to about a percent (it grows with n)."""
    lo, hi = 0.0, 12.0  # powers of ten
    for _ in range(12):
        middle = (lo + hi) / 2
        n = round(10**middle)
        lo, hi = (middle, hi) if 1 - expected_distinct(skew, n, keys) / n < share else (lo, middle)
    return round(10**hi)


# --- tasks ----------------------------------------------------------------------------------------------


def measure_ages(point: Mapping[str, Any]) -> list[Row]:
    """Invalidations and key-ticks in bins of ages: 0, 1-2, 3-6 and so on, so that age + 1 doubles; the last is cut off.

    ``total``: invalidations of each age during the whole run, mean of the ages in the bin. A point may have a
    ``popularity`` of another skew than its new keys' ranks; with 0 all keys are alike.
    """
    skew, ticks = point["skew"], point["ticks"]
    hits, key_ticks, totals = ages(skew, point["invalidations"], ticks, point["seed"], point.get("popularity", skew))
    edges = [*(2**at - 1 for at in range(ticks.bit_length())), ticks]
    return [
        {
            "age": (lo + hi - 1) / 2,
            "hits": int(hits[lo:hi].sum()),
            "key_ticks": int(key_ticks[lo:hi].sum()),
            "total": float(totals[lo:hi].mean()),
        }
        for lo, hi in itertools.pairwise(edges)
    ]


def measure_stored(point: Mapping[str, Any]) -> list[Row]:
    """What is stored at every tenfold and half of it, with what the closed form expects of as many invalidations.

    ``inserted`` keys began with an event of their own; it is still stored if the key is ``untouched``.
    """
    model, skew, events, seed = point["model"], point["skew"], point["events"], point["seed"]
    times = np.zeros(events // INSERTED, dtype=np.int64)
    flows = {
        "infinite": lambda: infinite_keys(skew, events, seed),
        "fixed": lambda: finite_keys(skew, events, seed),
        "inserting": lambda: counted(growing_keys(skew, events, seed), times),
    }
    marks = {n for power in range(4, 9) for n in (10**power, 2 * 10**power, 5 * 10**power) if n <= events}
    keys = None if model == "infinite" else KEYS
    rows = []
    for n, kept in stored(flows[model]()):
        if n in marks:
            inserted, untouched = int((times > 0).sum()), int((times == 1).sum())
            expected = expected_distinct(skew, n - inserted, keys)
            rows.append({"n": n, "kept": kept, "expected": expected, "inserted": inserted, "untouched": untouched})
    return rows
