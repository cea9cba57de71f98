"""Judging runs in which a region in memory lost all replicas.

A region that lost its memory may declare numbers lost, forget the sessions of publishers, end subscriptions until it
has its streams back, and, if it is the only region, lose its streams.
That is right only if every member of its last chain was killed by the campaign: the chain is in the supervisor's log,
the process of each member in the replica's log. A loss without that, and a lost number that another region had
delivered, is a violation.

Of a number that was rightly declared lost neither the event nor its acknowledgement counts. A lost event may have
collected others before it was lost, and then they stay collected where that was known (decision 0011). So a receipt of
such a stream may have as few rows as if all lost events collected, and as many as if none did. Events of a forgotten
session that no witness saw may have been committed, too: each allows for one row less and one number without an event.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidings.campaign.cluster.client_trace import Evidence, LostRange, payload_of
from tidings.campaign.cluster.load import SESSIONS_FORGOTTEN, SUBSCRIPTIONS_ENDED
from tidings.check import Invariant, Trace, Violation, judge
from tidings.check.invariants import FaultKind, judged
from tidings.core.ids import RegionId, StreamId
from tidings.net.names import slot_of
from tidings.server.memory_regions import BOOTSTRAPPED
from tidings.server.paths import SUPERVISOR, ClusterPaths
from tidings.server.replica import STARTED

Streams = Mapping[StreamId, tuple[RegionId, str]]  # region and policy


class MemoryLoss(msgspec.Struct, frozen=True):
    """A region that was bootstrapped again, as the supervisor's log says."""

    region: RegionId
    members: tuple[str, ...]  # of its last chain
    at: str  # ISO time


def memory_losses(files: ClusterPaths) -> list[MemoryLoss]:
    """All regions that were bootstrapped again."""
    said = [line for line in _lines(files.log(SUPERVISOR)) if line.get("event") == BOOTSTRAPPED]
    return [MemoryLoss(line["region"], tuple(line["members"]), line["timestamp"]) for line in said]


def unjustified(files: ClusterPaths, losses: list[MemoryLoss], killed: set[int]) -> list[Violation]:
    """Regions that were bootstrapped again although a member of their chain had not been killed."""
    found = []
    for loss in losses:
        for member in loss.members:
            started = [line for line in _lines(files.log(slot_of(member))) if line.get("event") == STARTED]
            pids = [line["pid"] for line in started if line["id"] == member and line["timestamp"] < loss.at]
            if not pids or pids[-1] not in killed:
                where = {"region": loss.region, "member": member}
                found.append(Violation("memory", where, "lost with its region, but it had not been killed"))
    return found


def judge_losses(
    evidence: Evidence, streams: Streams, regions: set[RegionId], rules: Sequence[Invariant] = ()
) -> tuple[Trace, list[Violation]]:
    """The trace of a run in which these regions rightly lost their memory, and what is wrong with it all the same.

    ``rules``: what must hold besides the invariants of every run.
    """
    policies = {name: gc for name, (_, gc) in streams.items()}
    rightly = [each for each in evidence.lost if streams[each[0]][0] in regions]
    found = [
        Violation("memory", {"stream": stream, "lo": lo, "hi": hi}, "declared lost by a region that lost nothing")
        for stream, lo, hi in sorted(set(evidence.lost) - set(rightly))
    ]
    found += _delivered_elsewhere(evidence, streams, rightly)
    trace = evidence.trace(policies, rightly)
    excused = _Excuses(trace, evidence.trace(policies), _unknown(evidence, {stream for stream, _, _ in rightly}))
    owners = {batch.publisher: streams[batch.stream][0] for batch in evidence.sent}
    for violation in judge(trace, rules):
        if not _is_of_lost_memory(violation, owners, regions) and not excused.excuses(violation):
            found.append(violation)
    return trace, found


def _is_of_lost_memory(violation: Violation, owners: Mapping[str, RegionId], regions: set[RegionId]) -> bool:
    """Sessions and subscriptions that ended with the memory of their region, and caches that began again after it."""
    where = violation.where
    kind, _, region = str(where.get("subscriber") or where.get("node", "")).partition("-")
    match violation.invariant, where.get("name"):
        case "bounded", name if name == SESSIONS_FORGOTTEN:
            return owners.get(where["node"]) in regions
        case "bounded", name if name == SUBSCRIPTIONS_ENDED:
            return region in regions
        case "acknowledged", _:  # a cache drops its values, and begins at the end of the stream
            return kind == "cache" and region in regions and where.get("incarnation", 2) > 1
    return False


def _unknown(evidence: Evidence, streams: set[StreamId]) -> dict[StreamId, int]:
    """Events of forgotten sessions that no witness saw: they may have been committed, and collected others."""
    seen = {(rows.stream, payload) for rows in evidence.seen for payload in rows.payloads}
    found = dict.fromkeys(streams, 0)
    for batch in evidence.sent:
        if batch.forgotten and batch.stream in streams:
            payloads = [payload_of(batch.publisher, batch.first + at) for at in range(len(batch.hashes))]
            found[batch.stream] += sum([(batch.stream, payload) not in seen for payload in payloads])
    return found


def _delivered_elsewhere(evidence: Evidence, streams: Streams, lost: list[LostRange]) -> list[Violation]:
    """Numbers declared lost that a witness in another region than the owner has seen: the owner should have them."""
    found = []
    ranges = sorted(set(lost))
    for rows in evidence.seen:
        owner = streams[rows.stream][0]
        if rows.by.endswith(f"-{owner}"):
            continue
        for stream, lo, hi in ranges:
            seqs = [seq for seq in rows.seqs if stream == rows.stream and lo <= seq < hi]
            if seqs:
                where = {"stream": stream, "seq": seqs[0], "subscriber": rows.by}
                found.append(
                    Violation("memory", where, f"{len(seqs)} numbers declared lost by {owner}, delivered here")
                )
    return found


class _Excuses:
    """Receipts that lost events explain: ``trace`` is without them, ``whole`` as if they were still there.

    ``unknown``: per stream, how many events may have been committed of which nothing is known.
    """

    def __init__(self, trace: Trace, whole: Trace, unknown: Mapping[StreamId, int]) -> None:
        self._unknown = unknown
        self._trace = _expected(trace, unknown)
        self._whole = _expected(whole, unknown)

    def excuses(self, violation: Violation) -> bool:
        """Whether a receipt that is wrong by itself has as many rows as lost events allow."""
        where = violation.where
        key = (where.get("subscriber"), where.get("incarnation"), where.get("n"), where.get("stream"))
        if violation.invariant not in ("completeness", "integrity") or key not in self._trace:
            return False
        slack = self._unknown[where["stream"]]
        without, least = self._trace[key], self._whole[key].rows - slack
        enough = least <= without.delivered <= without.rows + without.lost + slack
        match violation.fault:
            case FaultKind.MISSING | FaultKind.WRONG:
                return enough
            case FaultKind.UNPUBLISHED:
                return enough and 0 < without.unknown <= slack
        return False


class _ReceiptRows(msgspec.Struct, frozen=True, gc=False):
    """The rows of a receipt, those that it should have, and its numbers that are lost or were never seen."""

    delivered: int
    rows: int
    lost: int
    unknown: int


def _expected(trace: Trace, streams: Container[StreamId]) -> dict[tuple[Any, ...], _ReceiptRows]:
    """What receipts of these streams should have, by subscriber, incarnation, number and stream."""
    found: dict[tuple[Any, ...], _ReceiptRows] = {}
    for receipts, _, expected, _ in judged(trace):
        columns = [receipts[name].to_pylist() for name in ("subscriber", "incarnation", "n", "stream", "rows")]
        counts = [each.tolist() for each in (expected.rows, expected.lost, expected.unknown)]
        for *key, delivered, rows, lost, unknown in zip(*columns, *counts, strict=True):
            if key[3] in streams:
                found[tuple(key)] = _ReceiptRows(delivered, rows, lost, unknown)
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a log; lines that something else wrote are left out."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines() if line.startswith(b"{")]
