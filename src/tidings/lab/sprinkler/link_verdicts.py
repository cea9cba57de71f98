"""SP5 and SP6 judged and drawn (Sprinkler, section 5.3, figure 7); `link_cut` simulates.

Results are cached under a hash of that module's code, so verdicts and figures have a module of their own: changing them
repeats no simulation.

Every limit below follows from what a claim says, not from what was measured: "normal" and "before" are medians of the
undisturbed seconds before the cut, "noise" is the largest deviation in it. A reason is given only where the data shows
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidings.core.ids import RegionId, StreamId
from tidings.lab import figures
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.sprinkler.link_cut import (
    BIN,
    LATENCY,
    REGIONS,
    SETTLE,
    STREAM,
    VICTIM,
    WARM_UP,
    A,
    B,
    Floats,
    Latency,
    Observed,
    Rates,
    Timeline,
    measure,
    read,
)
from tidings.lab.study import Sql, Study
from tidings.protocols.replication.configuration import ConfigurationSettings
from tidings.protocols.services.publishing import PublishSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPARED = "r0"  # the origin that the paper compares with
SHORTLY = 1.5  # in periods: the next advertisement comes within one, half of another to subscribe and to send
SAME = 0.10  # levels that differ by less than a tenth are the same
CATCH_UP = 5.0  # seconds; SP5: above normal for about so long
PAPER_LEVEL = 0.2  # seconds; SP6: latency of both origins before the cut
SIMILAR = 0.25  # levels that differ by less than a quarter are similar


# --- the claims -----------------------------------------------------------------------------------------


def _rate(value: float) -> str:
    return f"{value / 1000:,.1f} k events/s" if abs(value) >= 1000 else f"{value:,.0f} events/s"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def normal_rate(seen: Observed) -> tuple[float, float]:
    """Throughput before the cut: its median and its noise."""
    quiet = seen.rates.within(*seen.time.before)
    mean = seen.rates.mean[quiet]
    normal = float(np.median(mean))
    return normal, float(np.abs(mean - normal).max())


def over_link(seen: Observed) -> float:
    """Which part of the normal throughput flows over the link."""
    flows = [(B, STREAM[A]), (A, STREAM[B])]
    quiet = seen.rates.within(*seen.time.before)
    return float(sum(np.median(seen.rates.share(flow)[quiet]) for flow in flows) / normal_rate(seen)[0])


def fall(seen: Observed) -> float:
    """By which part throughput falls when the link is cut."""
    down = seen.rates.within((seen.time.cut, seen.time.cut + seen.time.period))
    return 1 - float(seen.rates.mean[down].min()) / normal_rate(seen)[0]


def dip(seen: Observed) -> Claim:
    """SP5: down by what flows over the link, and by nothing else."""
    normal, _ = normal_rate(seen)
    part, down_by = over_link(seen), fall(seen)
    lost = {}
    down = seen.rates.within((seen.time.cut, seen.time.cut + seen.time.period))
    quiet = seen.rates.within(*seen.time.before)
    for flow in seen.rates.flows:
        share = seen.rates.share(flow)
        lost[flow] = float(np.maximum(np.median(share[quiet]) - share[down], 0).sum())
    caused = (lost[B, STREAM[A]] + lost[A, STREAM[B]]) / max(sum(lost.values()), 1e-9)
    return Claim(
        "SP5.dip",
        f"Throughput drops briefly at the cut because nothing flows between {A} and {B}.",
        f"down by about the {part:.1%} that flow over the link (half to one and a half times that), "
        "nine tenths of the loss in these two flows",
        f"from {_rate(normal)} to {_rate(normal * (1 - down_by))} ({-down_by:.1%}); {caused:.0%} of the loss in these "
        "two flows",
        0.5 * part <= down_by <= 1.5 * part and caused >= 0.9,
    )


def recovery(seen: Observed) -> Claim:
    """SP5: over shortly after the next advertisement."""
    normal, _ = normal_rate(seen)
    limit = seen.time.cut + SHORTLY * seen.time.period
    later = seen.rates.within((limit, seen.time.cut + SETTLE * seen.time.period + BIN))
    lowest = float(seen.rates.mean[later].min())
    return Claim(
        "SP5.recovery",
        "Throughput recovers shortly after the next advertisements of the other regions, which turn the flow round.",
        f"both flows again by {limit:g} s, {SHORTLY:g} advertisement periods after the cut; from then on less than "
        "half of one is missing",
        f"both flows again at {seen.cut_off.end:.2f} s after {seen.cut_off.seconds:.2f} s of silence; "
        f"at least {_rate(lowest)} from {limit:g} s on",
        seen.cut_off.end <= limit and lowest > normal * (1 - over_link(seen) / 4),
    )


@dataclass(frozen=True)
class CatchUp:
    """How the ground that was lost at the cut is made up for; throughput and events are the mean of all clients."""

    normal: float  # events/s
    noise: float
    excess: Floats  # what throughput has more than normal, bin by bin, from the cut on
    balance: Floats  # events that the two flows of the link have more, or less, than normal after each of these bins
    flows: dict[tuple[RegionId, StreamId], float]  # events that a flow has more, or less, after all of them

    @classmethod
    def of(cls, seen: Observed) -> CatchUp:
        """From the bins after the cut in which nothing else happens, as far as the longest catch-up that is judged."""
        time, (normal, noise) = seen.time, normal_rate(seen)
        longest = time.cut + SHORTLY * time.period + 1.5 * CATCH_UP
        window = seen.rates.within(*time.calm(time.cut, min(longest, time.repair)))
        quiet = seen.rates.within(*time.before)
        shares = {flow: seen.rates.share(flow) for flow in seen.rates.flows}
        more = {flow: (one[window] - np.median(one[quiet])) * BIN for flow, one in shares.items()}
        balance = np.cumsum(more[B, STREAM[A]] + more[A, STREAM[B]])
        flows = {flow: float(events.sum()) for flow, events in more.items()}
        return cls(normal, noise, seen.rates.mean[window] - normal, balance, flows)

    @property
    def missed(self) -> float:
        """How far the two flows of the link fall behind; what is within the noise of a bin does not count."""
        most = -float(self.balance.min(initial=0.0))
        return most if most > self.noise * BIN else 0.0

    @property
    def lost(self) -> str:
        """The same, in words."""
        return f"{self.missed:,.0f} events per client were missed"

    @property
    def regained(self) -> float:
        """Which part of them came later."""
        return 1 + float(self.balance[-1]) / self.missed if self.missed else 0.0

    @property
    def peak(self) -> float:
        """The largest excess."""
        return float(self.excess.max())

    @property
    def seconds(self) -> float:
        """How long throughput is above normal without a break, at its peak; a later ripple is no catch-up."""
        above, top = self.excess > self.noise, int(self.excess.argmax())
        if not above[top]:
            return 0.0
        below = np.flatnonzero(~above)
        first, last = below[below < top].max(initial=-1), below[below > top].min(initial=len(above))
        return float(last - first - 1) * BIN

    @property
    def unfinished(self) -> bool:
        """Whether it is still above normal when the bins end."""
        return bool((self.excess[self.excess.argmax() :] > self.noise).all())

    @property
    def nothing(self) -> str:
        """Why there is no catch-up at all, or nothing."""
        if not self.missed:
            lowest = self.normal + float(self.excess.min())
            return f"Nothing was missed beyond the noise: throughput was {_rate(lowest)} at the lowest."
        if self.peak <= self.noise:
            highest = self.normal + self.peak
            return f"{self.lost}; throughput was {_rate(highest)} at the highest, not above the noise."
        return ""


def catch_up(seen: Observed) -> Claim:
    """SP5: above normal until the lost ground is made up for."""
    found = CatchUp.of(seen)
    holds = found.peak > found.noise and 0.9 <= found.regained <= 1.1
    return Claim(
        "SP5.catch-up",
        f"Then throughput is above normal while {A} and {B} catch up, and returns to normal.",
        "above normal by more than the noise; of what the two flows of the link missed nine tenths to eleven regained: "
        "some is on its longer way, and nothing comes twice",
        f"up to {_rate(found.normal + found.peak)} (normal {_rate(found.normal)}, noise {_rate(found.noise)}); "
        + (f"{found.regained:.0%} of what was missed regained" if found.missed else "nothing was missed beyond it"),
        holds,
        "" if holds else found.nothing or _lacking(seen, found),
    )


def _lacking(seen: Observed, found: CatchUp) -> str:
    """What was not regained, in which flows, and how much of it the longer way explains; or what is too much."""
    if found.regained > 1:
        return f"{found.lost}, and {found.missed * (found.regained - 1):,.0f} more than these came."
    lack = sorted((events, flow) for flow, events in found.flows.items() if events <= -0.1 * found.missed)
    parts = [f"{-events:,.0f} of {stream} in {region}" for events, (region, stream) in lack]
    quiet, under_way = seen.rates.within(*seen.time.before), 0.0
    for origin, region in ((A, B), (B, A)):
        if (batches := seen.latency.get(STREAM[origin])) is not None:
            longer = batches.level(seen.time.outage, region) - batches.level(seen.time.before, region)
            under_way += longer * float(np.median(seen.rates.share((region, STREAM[origin]))[quiet]))
    way = f" On the way between {A} and {B}, which is longer now, are about {under_way:,.0f} more than before."
    return (
        f"{found.lost}, {found.missed * (1 - found.regained):,.0f} of them did not come"
        f"{': ' if parts else ''}{', '.join(parts)}.{way if 0 < under_way < math.inf else ''}"
    )


def catch_up_seconds(seen: Observed) -> Claim:
    """SP5: how long that takes."""
    found = CatchUp.of(seen)
    holds = found.missed > 0 and 0.5 * CATCH_UP <= found.seconds <= 1.5 * CATCH_UP and not found.unfinished
    return Claim(
        "SP5.catch-up-seconds",
        f"{A} and {B} catch up for about five seconds.",
        f"above normal by more than the noise for {CATCH_UP:g} s without a break (half to one and a half times that)",
        f"{'at least ' if found.unfinished else ''}{found.seconds:g} s (in points of {BIN:g} s)",
        holds,
        "" if holds else found.nothing or _pace(found),
    )


def _pace(found: CatchUp) -> str:
    """How fast what was missed came back, and how fast it would have had to."""
    needed = found.missed / CATCH_UP
    back = f"{found.lost}, {found.regained:.0%} regained"
    rose, enough = (f"{_rate(rate)} ({rate / found.normal:.1%})" for rate in (found.peak, needed))
    if found.seconds < CATCH_UP and not found.unfinished:
        return f"{back}: at least {rose} was to spare. All of it takes {CATCH_UP:g} s where only {enough} is."
    return f"{back}: throughput rose by no more than {rose}, while {enough} brings all back in {CATCH_UP:g} s."


def jolt(seen: Observed) -> float:
    """The largest deviation from normal after the repair, in events/s."""
    window = seen.rates.within((seen.time.repair, seen.time.repair + 2 * seen.time.period))
    off = seen.rates.mean[window] - normal_rate(seen)[0]
    return float(off[np.abs(off).argmax()])


def glitch(seen: Observed) -> Claim:
    """SP5: something small happens when the link is back."""
    (normal, noise), largest = normal_rate(seen), jolt(seen)
    slight = over_link(seen) * normal / 2
    return Claim(
        "SP5.glitch",
        f"There is a slight glitch when the link is back and {A} and {B} send to each other directly again.",
        f"a deviation larger than the noise ({_rate(noise)}) and less than half of what flows over the link "
        f"({_rate(slight)}), within 2 periods",
        f"{'+' if largest > 0 else ''}{_rate(largest)} ({largest / normal:+.1%})",
        noise < abs(largest) < slight,
    )


def _levels(seen: Observed) -> dict[RegionId, float]:
    """Latency of the two origins before the cut."""
    return {region: seen.latency[STREAM[region]].level(seen.time.before) for region in (SPARED, A)}


def apart_before(seen: Observed) -> float:
    """How far apart these are, as a part of the larger."""
    one, two = _levels(seen).values()
    return abs(one - two) / max(one, two)


def before(seen: Observed) -> Claim:
    """SP6: the two origins begin alike."""
    holds = apart_before(seen) < SIMILAR
    return Claim(
        "SP6.before",
        "Before the outage the latencies of the two origins are similar.",
        f"less than {SIMILAR:.0%} apart",
        ", ".join(f"{region} {_ms(found)}" for region, found in _levels(seen).items()),
        holds,
        "" if holds else _made_of(seen),
    )


def level_before(seen: Observed) -> Claim:
    """SP6: at which level they begin."""
    levels = _levels(seen)
    holds = all(abs(found - PAPER_LEVEL) < SIMILAR * PAPER_LEVEL for found in levels.values())
    rest = " and ".join(f"{_ms(PAPER_LEVEL - _farthest(region)[0])}" for region in levels)
    why = (
        f"{_made_of(seen)} The paper's level would take {rest} beside these links. Here a region has "
        f"{seen.rates.clients[A]} clients; the paper's text says neither how many it has in this experiment nor, but "
        "for the failed link, its latencies."
    )
    return Claim(
        "SP6.level",
        f"Before the outage events of both origins take about {_ms(PAPER_LEVEL)}.",
        f"both within {SIMILAR:.0%} of that",
        ", ".join(f"{region} {_ms(found)}" for region, found in levels.items()),
        holds,
        "" if holds else why,
    )


def _farthest(region: RegionId) -> tuple[float, RegionId]:
    """The longest link of a region, and where it leads."""
    return max((latency, a if b == region else b) for (a, b), latency in LATENCY.items() if region in (a, b))


def _made_of(seen: Observed) -> str:
    """What the levels before the cut consist of."""
    parts = []
    for region, found in _levels(seen).items():
        link, other = _farthest(region)
        rest = _ms(found - link)
        parts.append(
            f"of {region}'s {_ms(found)} the link to {other}, its farthest, takes {_ms(link)}, all else {rest}"
            if math.isfinite(found)
            else f"in most half seconds a batch of {region} never reached all clients"
        )
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}."


def highest_latency(seen: Observed, region: RegionId = A, periods: float = 1.0) -> float:
    """Of what a region publishes in the first periods after the cut."""
    window = (seen.time.cut, seen.time.cut + periods * seen.time.period)
    return float(seen.latency[STREAM[region]].binned([window]).max())


def peak(seen: Observed) -> Claim:
    """SP6: what is published at the cut waits for the new subscription."""
    time, found = seen.time, seen.latency[STREAM[A]]
    level, limit = found.level(time.before), time.cut + SHORTLY * time.period
    highest = highest_latency(seen)
    recovered = float(found.binned([(limit, time.cut + SETTLE * time.period)]).max())
    detoured = found.level(time.outage)
    return Claim(
        "SP6.peak",
        f"Latency of {A} rises steeply when the link fails, since {B} has to subscribe elsewhere, and recovers then.",
        f"at least twice the level before ({_ms(2 * level)}); events published {SHORTLY:g} periods after the cut take "
        f"no longer than the rest of the outage (less than {1 + SIMILAR:g} x {_ms(detoured)})",
        f"up to {_ms(highest)} ({highest / level:.0f} x), {_ms(recovered)} from {limit:g} s on",
        highest >= 2 * level and recovered < (1 + SIMILAR) * detoured,
    )


def extra_path() -> float:
    """How much longer the way from A to its last region is without the link."""
    ways = {frozenset(pair): latency for pair, latency in LATENCY.items()}
    direct = {region: ways[frozenset((A, region))] for region in REGIONS if region != A}
    round_about = min(direct[via] + ways[frozenset((via, B))] for via in direct if via != B)
    return max((direct | {B: round_about}).values()) - max(direct.values())


def detour(seen: Observed) -> Claim:
    """SP6: a longer path takes longer."""
    found, more = seen.latency[STREAM[A]], extra_path()
    level, now = found.level(seen.time.before), found.level(seen.time.outage)
    direct, indirect = found.level(seen.time.before, B), found.level(seen.time.outage, B)
    return Claim(
        "SP6.detour",
        f"During the outage latency of {A} stays slightly above the level before, since the path to {B} is longer.",
        f"higher by what the path is longer, {_ms(more)} (half to one and a half times that)",
        f"{_ms(now)}, {_ms(now - level)} more than before; to {B} alone {_ms(direct)} before, now {_ms(indirect)}",
        0.5 * more <= now - level <= 1.5 * more,
    )


def after(seen: Observed) -> Claim:
    """SP6: the old level again."""
    found = seen.latency[STREAM[A]]
    level, now = found.level(seen.time.before), found.level(seen.time.after)
    holds = abs(now - level) < SAME * level
    return Claim(
        "SP6.after",
        f"After the repair and a short adjustment latency of {A} is at the old level.",
        f"within {SAME:.0%} of {_ms(level)}, {SETTLE:g} periods after the repair",
        f"{_ms(now)}",
        holds,
        "" if holds else _not_back(seen),
    )


def _not_back(seen: Observed) -> str:
    """Where the old level was not reached, and along which path."""
    found = seen.latency[STREAM[A]]
    slack = SAME * found.level(seen.time.before)
    parts = []
    for region in REGIONS:
        old, new = found.level(seen.time.before, region), found.level(seen.time.after, region)
        source = seen.sources.get((region, STREAM[A]), A)
        path = "" if source == A else f", through {source}"
        parts.append(f"{region} {_ms(old)} -> {_ms(new)}{path if abs(new - old) >= slack else ''}")
    source = seen.sources.get((VICTIM, STREAM[A]), A)
    killed = (
        f" {VICTIM}, whose head was killed at {seen.time.kill:g} s, has {source} for a source at the end: this detour "
        "comes with the fail-over, not with the link."
        if source != A and math.isfinite(seen.time.kill)
        else ""
    )
    return f"By region: {'; '.join(parts)}.{killed}"


def spared(seen: Observed) -> Claim:
    """SP6: an origin that is not on the link does not notice."""
    time, found = seen.time, seen.latency[STREAM[SPARED]]
    old, now = found.binned(time.before), found.level(time.outage)
    level, highest = float(np.median(old)), highest_latency(seen, SPARED, SETTLE)
    limit = (1 + SIMILAR) * float(old.max())
    return Claim(
        "SP6.origin-0",
        f"Latency of {SPARED}, which is not on the link, is not hit by the outage.",
        f"less than {SAME:.0%} above {_ms(level)} during the outage; at the cut no point above {_ms(limit)}, "
        f"{1 + SIMILAR:g} x the highest before",
        f"{_ms(now)}; highest point at the cut {_ms(highest)}",
        now < (1 + SAME) * level and highest <= limit,
    )


def fail_over(seen: Observed) -> Claim:
    """Ours: the stream whose head died stands still until the chain has a new one."""
    service, publish = ConfigurationSettings(), PublishSettings()
    limit = service.silence + service.sweep + publish.retry + 0.1
    return Claim(
        "ours.fail-over",
        f"When the head of {VICTIM}'s chain is killed, its stream stops until the next replica is head, then goes on.",
        f"no client without it for longer than {limit:.2f} s: {service.silence:g} s until the silence counts, "
        f"{service.sweep:g} s until that is seen, {publish.retry:g} s until a publisher tries again, 0.1 s on the way",
        f"{seen.fail_over.seconds:.2f} s, until {seen.fail_over.end:.2f} s",
        seen.fail_over.seconds <= limit,
    )


def rejoin(seen: Observed) -> Claim:
    """Ours: the returning replica becomes tail, and the other regions must find it."""
    limit = SHORTLY * seen.time.period
    return Claim(
        "ours.rejoin",
        "When the killed replica is back as tail, the other regions find it by its advertisements.",
        f"no client without {VICTIM}'s stream for longer than {limit:g} s ({SHORTLY:g} advertisement periods)",
        f"{seen.rejoin.seconds:.2f} s, until {seen.rejoin.end:.2f} s",
        seen.rejoin.seconds <= limit,
    )


def invariants(seen: Observed) -> Claim:
    """Ours: whatever the figures look like, no receipt shows a loss, a duplicate or a disorder."""
    return Claim(
        "ours.invariants",
        "No client has lost, doubled or disordered an event on the way, and the replicas of each chain agree.",
        "0 violations in the whole trace",
        f"{seen.violations} violations",
        seen.violations == 0,
    )


OURS: tuple[Callable[[Observed], Claim], ...] = (fail_over, rejoin, invariants)
JUDGES: tuple[Callable[[Observed], Claim], ...] = (
    *(dip, recovery, catch_up, catch_up_seconds, glitch),
    *(before, level_before, peak, detour, after, spared),
    *OURS,
)


# --- the figures ----------------------------------------------------------------------------------------


def _moments(axes: Axes, time: Timeline) -> None:
    figures.shade(axes, time.cut, time.repair, f"no link {A} to {B}")
    figures.mark(axes, time.cut, "link\ncut")
    figures.mark(axes, time.kill, f"head of {VICTIM}\nkilled")
    figures.mark(axes, time.restart, "and\nrestarted")
    figures.mark(axes, time.repair, "link\nrepaired")
    axes.set_xlim(WARM_UP * time.period, time.end)
    axes.set_xlabel("simulated time (s)")


def paint_throughput(seen: Observed, axes: Axes) -> None:
    """Figure 7a: throughput over time, with the level that the cut lets us expect."""
    time, mean = seen.time, seen.rates.mean / 1000
    normal = normal_rate(seen)[0] / 1000
    low = normal * (1 - over_link(seen))
    edges = np.append(seen.rates.starts, time.end)
    _moments(axes, time)
    for region, color in ((B, figures.ORANGE), (VICTIM, figures.SKY)):
        received = seen.rates.region(region) / 1000
        axes.stairs(received, edges, baseline=None, color=color, linewidth=1.1, label=f"clients of {region}")
    axes.stairs(mean, edges, baseline=None, color=figures.BLUE, linewidth=2.2, label="all clients")
    figures.expect(axes, (time.cut - time.period, time.cut + 2 * time.period), low, "expected")
    note = partial(figures.note, axes)
    note(f"{A} and {B} get nothing\nfrom each other", (time.cut - 1, 0.45 * normal), (time.cut + BIN, low), "right")
    if catch_up(seen).holds:
        note("they catch up", (time.cut + 2.5, 1.4 * normal), (time.cut + 1.3 * time.period, mean[_bin(time.cut + 1)]))
    if glitch(seen).holds:
        note("slight glitch", (time.repair + 2, 1.3 * normal), (time.repair + BIN, mean[_bin(time.repair)]))
    note(f"{VICTIM} changes its head", (time.kill - 1, 2 * normal), (seen.fail_over.end, 1.7 * normal), "right")
    victim = seen.rates.region(VICTIM) / 1000
    rejoined = seen.rejoin.end - BIN / 2, victim[_bin(seen.rejoin.end)]
    note(f"{VICTIM} changes its tail", (time.repair + 2, 0.55 * normal), rejoined)
    axes.set_ylim(0, 2.4 * normal)
    axes.set_ylabel("1000 events/s, mean of clients")
    axes.set_title("Events delivered per client while a link fails (SP5)")


def _bin(time: float) -> int:
    return int(time / BIN)


def paint_latency(seen: Observed, axes: Axes) -> None:
    """Figure 7b: latency over time of two origins, with the level that the longer path lets us expect."""
    time = seen.time
    _moments(axes, time)
    for region, color in ((SPARED, figures.ORANGE), (A, figures.BLUE)):
        found = seen.latency[STREAM[region]]
        starts = np.unique(np.floor(found.published / BIN)) * BIN
        axes.plot(found.published, found.all * 1000, ".", markersize=2, alpha=0.3, color=color)
        means = found.binned([(0.0, time.end)]) * 1000
        axes.plot(starts + BIN / 2, means, color=color, linewidth=2, label=f"published in {region}")
    before = seen.latency[STREAM[A]].level(time.before) * 1000
    longer = before + extra_path() * 1000
    figures.expect(axes, (time.cut + SHORTLY * time.period, time.repair), longer, f"expected for {A}")
    figures.expect(axes, (time.repair, time.end), before)
    paint_paper_level(axes, time.cut)
    note = partial(figures.note, axes)
    note(f"{B} must find\nanother way", (time.cut - 2, 700), (time.cut + BIN / 2, 700), "right")
    note(f"all wait for\n{VICTIM}'s new head", (time.repair + 2, 700), (time.kill + 1, 700))
    latency_axis(axes)
    axes.set_title("Latency of two origins while a link fails (SP6)")


def paint_paper_level(axes: Axes, until: float) -> None:
    """The paper's own number before the cut, apart from what its claims let us expect of ours."""
    level = PAPER_LEVEL * 1000
    axes.plot((0.0, until), (level, level), ":", color=figures.PURPLE, linewidth=2, label=f"{_ms(PAPER_LEVEL)} (paper)")


def latency_axis(axes: Axes) -> None:
    """From a quick hop to a cut that lasts."""
    axes.set_yscale("log")
    ticks = [50, 100, 200, 500, 1000, 2000]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_ylim(30, 2500)
    axes.set_ylabel("ms until all clients have it")


# --- the experiment -------------------------------------------------------------------------------------


def report_rows(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge and draw what the task observed."""
    return report(read(sql), out)


def report(seen: Observed, out: Path) -> Findings:
    """Judge, draw, and store what was measured."""
    return Findings(
        [judged(seen) for judged in JUDGES],
        {
            "SP5": figures.draw(out, "sp5-throughput", partial(paint_throughput, seen)),
            "SP6": figures.draw(out, "sp6-latency", partial(paint_latency, seen)),
        },
        {
            "SP5": [write(out / "sp5-throughput.parquet", flow_columns(seen.rates))],
            "SP6": [write(out / "sp6-latency.parquet", batch_columns(seen.latency))],
        },
    )


def flow_columns(found: Rates) -> list[dict[str, Any]]:
    return [
        {"region": region, "stream": stream, "time": found.starts, "events_per_s": flow}
        for (region, stream), flow in found.flows.items()
    ]


def batch_columns(found: Mapping[StreamId, Latency]) -> list[dict[str, Any]]:
    return [
        {"stream": stream, "region": region, "published_at": each.published, "seconds": values}
        for stream, each in found.items()
        for region, values in each.to.items()
    ]


def write(path: Path, parts: list[dict[str, Any]]) -> str:
    """Series, with what they are called beside every value, as one Parquet file."""
    tables = []
    for part in parts:
        length = max(len(values) for values in part.values() if not isinstance(values, str))
        tables.append(
            pa.table({name: [value] * length if isinstance(value, str) else value for name, value in part.items()})
        )
    pq.write_table(pa.concat_tables(tables), path)
    return str(path)


STUDIES = (Study("link-cut", lambda scale: [{"scale": scale, "seed": 0}], measure, report_rows),)
EXPERIMENTS = (
    Experiment(
        "SP5",
        "sprinkler",
        "Figure 7a: throughput while a link between regions fails",
        (
            *("SP5.dip", "SP5.recovery", "SP5.catch-up", "SP5.catch-up-seconds", "SP5.glitch"),
            *("ours.fail-over", "ours.rejoin", "ours.invariants"),
        ),
        "link-cut",
    ),
    Experiment(
        "SP6",
        "sprinkler",
        "Figure 7b: latency while a link between regions fails",
        ("SP6.before", "SP6.level", "SP6.peak", "SP6.detour", "SP6.after", "SP6.origin-0", "ours.invariants"),
        "link-cut",
    ),
)
