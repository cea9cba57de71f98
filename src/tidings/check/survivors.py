"""What a receipt must contain: the rows of [lo, hi) that survive collection by the committed events below asof.

Worked out from the published table alone and independently of `core.history`, whose bugs a checker must not share:

- A collector "before n" kills every earlier event below n. What such collectors below asof leave is a suffix, so they
  only raise lo: to the largest n among them (a collector never reaches beyond itself).
- On a by-key stream the next event with the same key is the killer. A predicate event kills the earlier data events
  for which it is true, by their attributes, key and number, and earlier events that are the same predicate. The first
  killer counts.
- How many victims in [lo, hi) have a killer below asof is a dominance count: numbers on one axis, killers on the
  other. All receipts are counted together by halving the killers' axis bit by bit, stably (a wavelet matrix that keeps
  only its current level): about log2(end) numpy passes over victims and receipts, no Python loop over either.
- The expected hash sum is counted the same way, modulo 2**64. A run of counted events has no hashes; a receipt that
  touches one is judged by its number of rows alone.
- Of a number that is *gone* as of A it is known that an event below A collects it, and that this event, or one that
  implies it and is still there, also collects whatever the gone one did. So receipts as of A or later can be judged
  without it; how many gone numbers an earlier one depends on is its ``unsure``.
- A *lost* number has no row and collects nothing, as of every asof. Who was handed it before it was lost has up to so
  many rows more: ``lost`` says how many numbers of a receipt that may be. Before it was lost it may have collected
  others: a receipt as of a number inside a lost range may have fewer rows, and ``forgotten`` is above 0.
- Through a filter only the rows that pass count; ``passing`` says which do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidings.check.tables import LOST
from tidings.core.filters import AttrType, Filter, from_json
from tidings.core.hashing import row_hashes
from tidings.core.ids import FIRST, NEVER
from tidings.core.predicates import Predicate
from tidings.core.rows import DATA

Ints: TypeAlias = NDArray[np.int64]
Hashes: TypeAlias = NDArray[np.uint64]
Mask: TypeAlias = NDArray[np.bool_]
Passing: TypeAlias = Callable[[pa.Table], Mask]
"""Which rows of a published table a subscriber is to be handed."""

_FILTERED = ("key", "seq", "kind", "publisher")  # besides attributes, what a filter may name and the table says


def ints(rows: pa.Table, name: str, null: int = -1) -> Ints:
    """A column of integers, with nulls replaced."""
    values: Ints = rows[name].fill_null(null).to_numpy().astype(np.int64, copy=False)
    return values


def hashes(rows: pa.Table, name: str) -> Hashes:
    """A column of hashes as the unsigned numbers they are; null is 0."""
    return ints(rows, name, 0).view(np.uint64)


def valid(rows: pa.Table, name: str) -> Mask:
    """Where a column is not null."""
    mask: Mask = rows[name].is_valid().to_numpy()
    return mask


def codes(rows: pa.Table, *names: str) -> Ints:
    """One small integer per distinct combination of columns, for grouping; nulls are equal."""
    combined = np.zeros(rows.num_rows, np.int64)
    for name in names:
        encoded = rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        combined = combined * len(encoded.dictionary) + encoded.indices.to_numpy()
        combined = np.unique(combined, return_inverse=True)[1]
    return combined


def prefix(values: NDArray[Any]) -> NDArray[Any]:
    """Sums of the first 0, 1, 2, ... values (hashes wrap around)."""
    return np.concatenate([np.zeros(1, values.dtype), np.cumsum(values, dtype=values.dtype)])


@dataclass(frozen=True)
class Expected:
    """What receipts must contain, one entry per receipt."""

    rows: Ints
    hash_sum: Hashes
    hashed: Mask  # whether hash_sum is known
    unknown: Ints  # how many of the receipt's numbers were never committed
    lost: Ints  # how many of them their owner has declared lost
    forgotten: Ints  # how many lost numbers below its asof may have collected rows of it before they were lost
    unsure: Ints  # how many numbers decide about the receipt of which nothing is known: it cannot be judged


class Survivors:
    """The committed numbers of one stream and what collects them."""

    def __init__(self, published: pa.Table, policy: str, passing: Passing | None = None) -> None:
        rows = published.filter(published["seq"].is_valid()).sort_by("seq")
        lost = rows.filter(pc.equal(rows["kind"], LOST))
        self._lost, self._lost_counts = ints(lost, "seq"), ints(lost, "count")
        self._lost_sums = prefix(self._lost_counts)
        rows = rows.filter(pc.not_equal(rows["kind"], LOST))
        seq, count = ints(rows, "seq"), ints(rows, "count")
        if len(seq):  # where two events claim a number the first is believed; `integrity` reports it
            first = np.append(True, seq[1:] >= np.maximum.accumulate(seq + count)[:-1])
            rows, seq, count = rows.filter(pa.array(first)), seq[first], count[first]
        self.seq, self.count = seq, count
        ends = [seq[-1:] + count[-1:], self._lost[-1:] + self._lost_counts[-1:]]
        self.end = int(np.concatenate(ends).max(initial=FIRST))
        self._numbers = prefix(count)
        known = valid(rows, "hash")
        gone = valid(rows, "gone")
        counts = np.ones(len(seq), np.bool_) if passing is None else passing(rows) | gone
        row = np.where(known & counts, row_hashes(seq, hashes(rows, "hash")), np.uint64(0))
        self._known, self._hashes = prefix((known | gone).astype(np.int64)), prefix(row)
        self._counted = None if passing is None else prefix(counts.astype(np.int64))
        self._gone, self._gone_at = seq[gone], ints(rows, "gone")[gone]

        before = valid(rows, "before")
        self._collectors = seq[before]
        reach = np.minimum(ints(rows, "before")[before], self._collectors)
        self._reach = np.maximum.accumulate(np.append(0, reach))

        killers = np.full(len(seq), NEVER)
        if "by-key" in policy.split(","):
            victim, killer = _same_key(rows)
            killers[victim] = seq[killer]
        if rows["where"].null_count < rows.num_rows:
            killers = np.minimum(killers, _first_predicates(rows))
        killers[gone] = self._gone_at - 1
        victim = np.flatnonzero((killers < NEVER) & counts)
        self._victims, self._killers, self._victim_hashes = seq[victim], killers[victim], row[victim]

    def numbers(self, lo: Ints, hi: Ints) -> Ints:
        """How many numbers of each [lo, hi) are committed."""
        runs = self.seq, self.count, self._numbers
        return _below(hi, *runs) - _below(lo, *runs)

    def lost(self, lo: Ints, hi: Ints) -> Ints:
        """How many numbers of each [lo, hi) are lost."""
        runs = self._lost, self._lost_counts, self._lost_sums
        return _below(hi, *runs) - _below(lo, *runs)

    def _forgotten(self, asof: Ints) -> Ints:
        """How far each asof lies inside a lost range: nothing is sent as of such a number after its loss."""
        if not len(self._lost):
            return np.zeros_like(asof)
        run = np.maximum(np.searchsorted(self._lost, asof) - 1, 0)
        inside = np.maximum(asof - self._lost[run], 0)
        return np.where(inside < self._lost_counts[run], inside, 0)

    def alive(self, asof: int = NEVER) -> Ints:
        """The numbers that survive the collectors below asof, ascending; of a run of counted events the first."""
        low = self._reach[np.searchsorted(self._collectors, asof)]
        dead = self._victims[self._killers < asof]
        return np.setdiff1d(self.seq[self.seq >= low], dead, assume_unique=True)

    def expect(self, lo: Ints, hi: Ints, asof: Ints) -> Expected:
        """The rows of each [lo, hi) that survive the collectors below its asof, counted and summed."""
        first, lost = lo, self.lost(lo, hi)
        unknown = hi - lo - self.numbers(lo, hi) - lost
        lo = np.minimum(np.maximum(lo, self._reach[np.searchsorted(self._collectors, asof)]), hi)
        numbers = self.numbers(lo, hi)
        start, stop = np.searchsorted(self.seq, lo), np.searchsorted(self.seq, hi)
        rows = numbers if self._counted is None else self._counted[stop] - self._counted[start]
        dead, dead_sum = dominated(
            self._killers,
            self._victim_hashes,
            np.searchsorted(self._victims, lo),
            np.searchsorted(self._victims, hi),
            np.clip(asof, 0, self.end),
        )
        return Expected(
            rows=rows - dead,
            hash_sum=self._hashes[stop] - self._hashes[start] - dead_sum,
            hashed=self._known[stop] - self._known[start] == numbers,
            unknown=unknown,
            lost=lost,
            forgotten=self._forgotten(asof),
            unsure=self._unsure(first, hi, asof),
        )

    def _unsure(self, lo: Ints, hi: Ints, asof: Ints) -> Ints:
        """How many gone numbers in or behind each [lo, hi), below its asof, are known only as of a later one."""
        left, right = np.searchsorted(self._gone, lo), np.searchsorted(self._gone, np.maximum(hi, asof))
        no_weight = np.zeros(len(self._gone), np.uint64)
        settled, _ = dominated(self._gone_at, no_weight, left, right, asof + 1)
        return right - left - settled


def _below(bound: Ints, seq: Ints, count: Ints, sums: Ints) -> Ints:
    """How many numbers of some runs, with the sums of their counts, lie below a bound, which may fall inside a run."""
    if not len(seq):
        return np.zeros_like(bound)
    run = np.maximum(np.searchsorted(seq, bound, side="right") - 1, 0)
    below: Ints = sums[run] + np.clip(bound - seq[run], 0, count[run])
    return below


def passing(lens: Filter, declared: Mapping[str, AttrType]) -> Passing | None:
    """Which events a subscriber's filter lets through; None if that depends on what the table does not say."""
    if not set(lens.columns) <= {*declared, *_FILTERED}:
        return None
    named = {name: kind for name, kind in declared.items() if name in lens.columns}
    return lambda rows: lens.mask(pa.table({name: rows[name] for name in _FILTERED} | _attributes(rows, named)))


def _attributes(rows: pa.Table, named: Mapping[str, AttrType]) -> dict[str, pa.Array]:
    """Columns of attributes."""
    if not named:
        return {}
    values: list[dict[str, Any]] = [json.loads(text) if text else {} for text in rows["attrs"].to_pylist()]
    return {name: from_json([one.get(name) for one in values], kind) for name, kind in named.items()}


def _same_key(rows: pa.Table) -> tuple[Ints, Ints]:
    """Indices of the rows that a later row with the same key collects, ascending, and of those later rows."""
    key = codes(rows, "key")
    keyed = np.flatnonzero(valid(rows, "key"))
    order = keyed[np.argsort(key[keyed], kind="stable")]
    same = key[order[1:]] == key[order[:-1]]
    victim, killer = order[:-1][same], order[1:][same]
    ascending = np.argsort(victim)
    return victim[ascending], killer[ascending]


def _first_predicates(rows: pa.Table) -> Ints:
    """For each event the number of the first predicate event that collects it, or NEVER."""
    seq, where = ints(rows, "seq"), rows["where"]
    single = (ints(rows, "kind") == DATA) & (ints(rows, "count") == 1)
    killers = np.full(len(seq), NEVER)
    for at in reversed(np.flatnonzero(valid(rows, "where")).tolist()):  # so that the first one is written last
        text = where[at].as_py()
        predicate = Predicate.read(text)
        columns = {"seq": rows["seq"], "key": rows["key"]} | _attributes(rows, predicate.attributes)
        data = single & predicate.filter.mask(pa.table(columns))
        same: Mask = pc.equal(where, text).fill_null(False).to_numpy()
        killers[:at][(data | same)[:at]] = seq[at]
    return killers


def dominated(values: Ints, weights: Hashes, left: Ints, right: Ints, limit: Ints) -> tuple[Ints, Hashes]:
    """For each query: how many of values[left:right] lie below limit, and the sum of their weights."""
    count, total = np.zeros(len(limit), np.int64), np.zeros(len(limit), np.uint64)
    if not len(values) or not len(limit):
        return count, total
    for bit in reversed(range(int(max(values.max(), limit.max())).bit_length())):
        low = (values >> bit) & 1 == 0
        lows, low_weights = prefix(low.astype(np.int64)), prefix(np.where(low, weights, np.uint64(0)))
        above = (limit >> bit) & 1 == 1  # then every low value in the range is below the limit
        low_left, low_right = lows[left], lows[right]
        count += np.where(above, low_right - low_left, 0)
        total += np.where(above, low_weights[right] - low_weights[left], np.uint64(0))
        left = np.where(above, lows[-1] + left - low_left, low_left)
        right = np.where(above, lows[-1] + right - low_right, low_right)
        order = np.concatenate([np.flatnonzero(low), np.flatnonzero(~low)])
        values, weights = values[order], weights[order]
    return count, total
