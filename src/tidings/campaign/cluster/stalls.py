"""The longest stall of a subscriber: how long it got nothing of a stream, and which faults there were meanwhile.

A stall has one of two causes with different remedies: nothing of the stream was committed (its head was down, say), or
events were committed and did not reach the subscriber. ``stood_still_s`` tells them apart: the longest time within the
stall in which no publisher of the stream was answered. ``process_late_s`` says for how much of the stall the
subscriber's own process did not get to run, as on a machine with more work than cores.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tidings.campaign.cluster.client_trace import LAG, Evidence
from tidings.core.ids import RegionId, StreamId

AFTER = 3.0
"""Seconds after its repair for which a fault can still be felt; ours: as long as it takes to notice and to rejoin."""


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """The longest silence that a subscriber met; times are seconds since publishing began."""

    subscriber: str
    region: RegionId
    stream: StreamId
    from_s: float
    to_s: float
    stood_still_s: float
    process_late_s: float
    during: list[str]

    @property
    def seconds(self) -> float:
        return self.to_s - self.from_s


def longest_stall(
    evidence: Evidence,
    begin: float,
    end: float,
    home: Mapping[str, RegionId],
    faults: Sequence[dict[str, Any]],
    process: Mapping[str, str],
) -> Stall | None:
    """The longest time anybody was told nothing of a stream while it was published to; None if nobody was told.

    ``home`` and ``process`` are where subscribers live.
    """
    times: dict[tuple[str, StreamId], list[float]] = defaultdict(list)
    for each in evidence.receipts:
        if each.time > begin and each.subscriber in home:
            times[each.subscriber, each.stream].append(each.time)
    gaps = [
        (later - earlier, subscriber, stream, earlier)
        for (subscriber, stream), found in times.items()
        for earlier, later in itertools.pairwise([begin, *sorted(found)])
        if earlier < end
    ]
    if not gaps:
        return None
    seconds, subscriber, stream, at = max(gaps)
    lags = [
        min(lag.value, seconds)
        for lag in evidence.gauges
        if lag.name == LAG and lag.node == process.get(subscriber) and at < lag.time < at + seconds
    ]
    answers = [batch.acked_at for batch in evidence.sent if batch.stream == stream and batch.acked_at is not None]
    return Stall(
        subscriber=subscriber,
        region=home[subscriber],
        stream=stream,
        from_s=round(at - begin, 3),
        to_s=round(at - begin + seconds, 3),
        stood_still_s=round(_longest_pause(answers, at, at + seconds), 3),
        process_late_s=round(min(sum(lags), seconds), 3),
        during=felt(faults, at - begin, at - begin + seconds),
    )


def _longest_pause(times: Iterable[float], begin: float, end: float) -> float:
    """The longest part of [begin, end] that holds none of the times."""
    inside = sorted(time for time in times if begin < time < end)
    return max(later - earlier for earlier, later in itertools.pairwise([begin, *inside, end]))


def felt(faults: Sequence[dict[str, Any]], begin: float, end: float) -> list[str]:
    """Faults active in [begin, end], or repaired just before it. The next entry in the list repairs a fault."""
    found = []
    for fault, mended in itertools.pairwise([*faults, {"at_s": float("inf")}]):
        breaks = fault["kind"] == "cut" or fault["kind"].startswith("kill")
        if breaks and fault["at_s"] < end and begin < mended["at_s"] + AFTER:
            found.append(f"{fault['kind']} {fault['what']} at {fault['at_s']} s")
    return found
