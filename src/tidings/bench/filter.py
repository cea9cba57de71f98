"""How fast events are matched with many subscriptions (`tidings bench filter`): equality and ranges, four attributes.

Events are trades: one of 1,000 symbols, one of 8 venues, a price and a size. Every subscription asks for a symbol and
for prices in an interval, two in three also for a venue, one in three also for sizes from some number on. About ten of
100,000 pass each event. Events come in batches of 4,096, and what counts is the whole way from Arrow columns to the
subscriptions of each event in one array.

``index-1k``, ``index-10k`` and ``index-100k`` are `FilterIndex`; in ``index-100k-changing`` ten subscriptions end and
ten begin with every batch. ``duckdb-join-100k`` finds the same pairs by a join, one query per batch, with what the
subscriptions ask for in the columns of a table. ``expressions-10k`` evaluates one filter after the other over a batch.
All must find as many matches.

Each job runs on one core, and its own processor time is what counts. Runs are interleaved, so that a busy machine slows
all of them alike; the result says how many processors others kept busy.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from tidings.bench.gc import Busy
from tidings.core.filters import AttrType, Filter
from tidings.core.filters import index as filter_index
from tidings.core.filters.index import FilterIndex
from tidings.core.filters.nodes import Node, column, literal
from tidings.sim.run import Progress

SYMBOLS, VENUES, PRICES, SIZES = 1_000, 8, 1_000.0, 1_000
WIDEST = 600.0  # interval of prices
GOALS = {1_000_000: "required", 2_000_000: "aimed at"}  # events per second with the most subscriptions
Result: TypeAlias = dict[str, Any]
Sample: TypeAlias = tuple[int, int, float]
"""Events, matches, seconds."""


class FilterScale(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured; tests use little."""

    subscriptions: tuple[int, ...] = (1_000, 10_000, 100_000)
    batch: int = 4_096
    batches: int = 64
    changes: int = 10  # with every batch
    expressions: int = 10_000  # of the subscriptions
    expression_batches: int = 1
    join_batches: int = 8


class SubscriptionColumns:
    """What is asked for, in columns: a subscription without a venue has null there."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.symbol = rng.integers(0, SYMBOLS, count)
        kind = rng.integers(0, 3, count)
        self.venue = np.where(kind > 0, rng.integers(0, VENUES, count), -1)
        self.low = rng.random(count) * PRICES
        self.high = self.low + rng.random(count) * WIDEST
        self.size = np.where(kind > 1, rng.integers(1, SIZES, count), 0)

    def filters(self) -> Iterator[Filter]:
        """As filters; made, not parsed, because parsing 100,000 texts takes a minute."""
        kinds = AttrType
        symbol, venue = column("symbol", kinds.STRING), column("venue", kinds.STRING)
        price, size = column("price", kinds.DOUBLE), column("size", kinds.INT)
        columns = (self.symbol, self.venue, self.low, self.high, self.size)
        for one, where, low, high, least in zip(*[each.tolist() for each in columns], strict=True):
            parts = [Node("=", kinds.BOOLEAN, (symbol, literal(f"S{one:04}", kinds.STRING)))]
            if where >= 0:
                parts.append(Node("=", kinds.BOOLEAN, (venue, literal(f"V{where}", kinds.STRING))))
            ends = literal(low, kinds.DOUBLE), literal(high, kinds.DOUBLE)
            parts.append(Node("between", kinds.BOOLEAN, (price, *ends)))
            if least:
                parts.append(Node(">=", kinds.BOOLEAN, (size, literal(least, kinds.INT))))
            root = Node("and", kinds.BOOLEAN, tuple(parts))
            yield Filter(root, root.sql, tuple(sorted(root.columns)))

    def table(self, count: int) -> pa.Table:
        """The first of them as a table."""
        return pa.table(
            {
                "id": np.arange(count),
                "symbol": [f"S{symbol:04}" for symbol in self.symbol[:count]],
                "venue": [f"V{venue}" if venue >= 0 else None for venue in self.venue[:count]],
                "low": self.low[:count],
                "high": self.high[:count],
                "least": self.size[:count].astype(np.int32),
            }
        )


def trades(count: int, rng: np.random.Generator) -> pa.RecordBatch:
    """Some events."""
    return pa.record_batch(
        {
            "symbol": pa.array([f"S{symbol:04}" for symbol in rng.integers(0, SYMBOLS, count)]),
            "venue": pa.array([f"V{venue}" for venue in rng.integers(0, VENUES, count)]),
            "price": pa.array(rng.random(count) * PRICES),
            "size": pa.array(rng.integers(0, SIZES, count), pa.int32()),
        }
    )


# --- the jobs -------------------------------------------------------------------------------------------


def _timed(batches: Sequence[pa.RecordBatch], job: Callable[[pa.RecordBatch], int]) -> Sample:
    start = time.process_time()
    found = sum([job(batch) for batch in batches])
    return sum([batch.num_rows for batch in batches]), found, time.process_time() - start


def _indexed(index: FilterIndex, batch: pa.RecordBatch) -> int:
    """The subscriptions of each event, behind one another."""
    _, subscriptions = index.matches(batch).by_row()
    return len(subscriptions)


class _Changing:
    """An index in which subscriptions end and begin with every batch."""

    def __init__(self, filters: Sequence[Filter], changes: int) -> None:
        self.index = FilterIndex()
        self.filters, self.changes, self.at = filters, changes, 0
        self.ids = [self.index.add(each) for each in filters]

    def match(self, batch: pa.RecordBatch) -> int:
        """Those removed here come back with the next batch, so that as many match."""
        places = [(self.at + at) % len(self.ids) for at in range(self.changes)]
        for place in places:
            self.index.remove(self.ids[place])
        for place in places:
            self.ids[place] = self.index.add(self.filters[place])
        self.at += self.changes
        return _indexed(self.index, batch)


JOIN = """SELECT e.place, s.id FROM events e JOIN subscriptions s
  ON e.symbol = s.symbol AND e.price >= s.low AND e.price <= s.high AND e.size >= s.least
  AND (s.venue IS NULL OR e.venue = s.venue)"""


class _Join:
    """The same as a join in DuckDB, on one thread."""

    def __init__(self, table: pa.Table) -> None:
        import duckdb

        self.connection = duckdb.connect(config={"threads": 1})
        self.connection.register("given", table)
        self.connection.execute("CREATE TABLE subscriptions AS SELECT * FROM given")

    def match(self, batch: pa.RecordBatch) -> int:
        events = pa.Table.from_batches([batch]).append_column("place", pa.array(np.arange(batch.num_rows)))
        self.connection.register("events", events)
        return int(self.connection.sql(JOIN).to_arrow_table().num_rows)


def _asked(filters: Sequence[Filter], batch: pa.RecordBatch) -> int:
    """One filter after the other."""
    return sum([int(np.count_nonzero(each.mask(batch))) for each in filters])


# --- the benchmark --------------------------------------------------------------------------------------


def run(runs: int = 3, progress: Progress | None = None, scale: FilterScale | None = None) -> Result:
    """Medians over so many repetitions, in the shape every benchmark has. Without DuckDB its run is left out."""
    scale = scale or FilterScale()
    rng = np.random.default_rng(20010607)
    most = max(scale.subscriptions)
    asked = SubscriptionColumns(most, rng)
    if progress:
        progress(0, runs, f"making {most} subscriptions")
    filters = list(asked.filters())
    batches = [trades(scale.batch, rng) for _ in range(scale.batches)]
    filter_index.prepare()
    jobs, adding = _jobs(scale, asked, filters)
    for name, (_, job, _) in jobs.items():
        if not name.startswith("expressions"):
            job(batches[0])  # new subscriptions are taken in before anything is timed
    samples: dict[str, list[Sample]] = {}
    busy = Busy()
    for at in range(runs):
        for name, (_, job, count) in jobs.items():
            samples.setdefault(name, []).append(_timed(batches[:count], job))
        if progress:
            progress(at + 1, runs, f"repetitions of {', '.join(jobs)}")
    _agreed(jobs, samples, batches)
    others = busy.others()
    medians = [
        _median(name, jobs[name][0], found) | {"batch": scale.batch, "others_cpus": others}
        for name, found in samples.items()
    ]
    rates = {each["name"]: each["events_per_s"] for each in medians}
    best = f"index-{_short(most)}"
    medians[list(samples).index(best)]["subscribed_per_s"] = round(most / adding)
    return {
        "bench": "filter",
        "runs": medians,
        "ratio": _ratios(rates),
        "goals": [
            {"run": best, "events_per_s": goal, "is": what, "reached": rates[best] >= goal}
            for goal, what in GOALS.items()
        ],
    }


Job: TypeAlias = tuple[int, Callable[[pa.RecordBatch], int], int]
"""How many subscriptions, what is done with a batch, how many batches."""


def _jobs(scale: FilterScale, asked: SubscriptionColumns, filters: Sequence[Filter]) -> tuple[dict[str, Job], float]:
    """What is measured; and seconds that it took to add all subscriptions to an index."""
    jobs: dict[str, Job] = {}
    adding = 0.0
    for count in scale.subscriptions:
        index = FilterIndex()
        start = time.process_time()
        for each in filters[:count]:
            index.add(each)
        adding = time.process_time() - start
        jobs[f"index-{_short(count)}"] = count, partial(_indexed, index), scale.batches
    most, some = max(scale.subscriptions), scale.expressions
    jobs[f"index-{_short(most)}-changing"] = most, _Changing(filters, scale.changes).match, scale.batches
    if find_spec("duckdb") is not None:
        jobs[f"duckdb-join-{_short(most)}"] = most, _Join(asked.table(most)).match, scale.join_batches
    jobs[f"expressions-{_short(some)}"] = some, partial(_asked, filters[:some]), scale.expression_batches
    return jobs, adding


def _short(count: int) -> str:
    return f"{count // 1000}k" if count % 1000 == 0 else str(count)


def _agreed(jobs: dict[str, Job], samples: dict[str, list[Sample]], batches: Sequence[pa.RecordBatch]) -> None:
    """Runs with as many subscriptions and batches must have found as many matches."""
    for name, (subscriptions, _, count) in jobs.items():
        matches = {found for _, found, _ in samples[name]}
        peers = [job for other, (many, job, _) in jobs.items() if many == subscriptions and other.startswith("index")]
        matches |= {sum([job(batch) for batch in batches[:count]]) for job in peers}
        if len(matches) > 1:
            raise AssertionError(f"{name} and the index disagree on what matches: {sorted(matches)}")


def _median(name: str, subscriptions: int, found: Sequence[Sample]) -> Result:
    rates = sorted([events / seconds for events, _, seconds in found])
    events, matches, _ = found[0]
    rate = statistics.median(rates)
    return {
        "name": name,
        "events_per_s": round(rate),
        "spread": [round(rates[0]), round(rates[-1])],
        "matches_per_s": round(rate * matches / events),
        "subscriptions": subscriptions,
        "matches_per_event": round(matches / events, 2),
        "events": events,
    }


def _ratios(rates: dict[str, int]) -> dict[str, float]:
    """Each other way against the index with as many subscriptions."""
    found = {}
    for name, rate in rates.items():
        index = f"index-{name.rpartition('-')[2]}"
        if not name.startswith("index") and index in rates:
            found[f"{index}/{name}"] = round(rates[index] / rate, 1)
    return found
