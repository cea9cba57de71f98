"""GR4 to GR6 judged and drawn: what the paper says of the three failures, held against the runs (failures.py).

The paper shows one modal run of each and gives no averages. Here a claim holds if it holds in every run; the numbers
beside it are the median and the extremes over the runs, and the figure shows the run with the median stall. The paper
counts ticks of a millisecond where we count messages: at 25 messages a second one number stands for 40 ms. The paper's
figures are not in its text, so the figures here show the levels that the text states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from tidings.lab import figures
from tidings.lab.claims import Claim, Experiment, Findings
from tidings.lab.gryphon.failures import FaultRun, measure, points, read
from tidings.lab.gryphon.topology import CELLS, EDGES, RATE
from tidings.lab.sprinkler.link_verdicts import write
from tidings.lab.study import Sql, Study
from tidings.protocols.brokers.broker_messages import BrokerSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GCT = BrokerSettings().gct
NEAR = 0.5  # seconds: how far the worst latency may be from stall + GCT
SETTLED = 1.0  # seconds after a failure when all goes another way; ours: GCT, the look every 50 ms, and an answer
BACK = 3.0  # seconds after the site's restart when all is normal; ours
ALIKE = 0.1  # nack ranges of s1 and s2 that differ by less are almost identical; ours
SHARE = (0.45, 0.6)  # of b2's nack range in those of s1 and s2 together
TICK = 1000.0 / RATE  # ms of the paper's time that one number stands for
SLOPE = (-1.1, -0.9)  # of latency over sending time, where messages of one stall come at once; ours

Runs = Sequence[FaultRun]


def over(values: Sequence[float], unit: str = "s", digits: int = 2) -> str:
    """The median, and the extremes."""
    told = [f"{each:.{digits}f}" for each in (median(values), min(values), max(values))]
    gap = "" if unit.startswith("%") else " "
    if len(values) == 1:
        return f"{told[0]}{gap}{unit}"
    return f"{told[0]}{gap}{unit} ({told[1]} to {told[2]} in {len(values)} runs)"


def in_all(runs: Runs) -> str:
    """How many runs there are."""
    return "in one run" if len(runs) == 1 else f"in {len(runs)} runs"


def saw_tooth(run: FaultRun, edge: str, streams: Sequence[str] | None = None) -> float:
    """The slope of latency over sending time of what was sent in the stall: -1 where all of it came at once."""
    sent, took = run.of(edge, streams)
    late = (sent >= 0) & (sent < run.failed) & (took > GCT)
    return float(np.polyfit(sent[late], took[late], 1)[0]) if late.sum() > 2 else 0.0


def untouched(runs: Runs, edges: Sequence[str]) -> tuple[str, bool]:
    """The worst latency of edges that a failure is not to reach, and whether none of them asked for anything."""
    worst = [max([run.worst(edge, -1.0, run.end) for edge in edges]) for run in runs]
    nacks = sum([len(run.asked(edge)) for run in runs for edge in edges])
    return f"{over([1000 * each for each in worst], 'ms', 1)}, {nacks} nacks", max(worst) < GCT and not nacks


# --- GR4: the link b1-s1 -------------------------------------------------------------------------------


def link_latency(runs: Runs) -> Claim:
    """GR4: the message that was lost first waits for the stall and GCT."""
    return _peak(
        "GR4.latency", "The link b1-s1 stalls and fails: the message lost first waits for the stall and GCT.", runs
    )


def _peak(ident: str, statement: str, runs: Runs) -> Claim:
    worst = [run.worst("s1", -1.0, run.failed, run.carried) for run in runs]
    off = [found - (run.failed + GCT) for found, run in zip(worst, runs, strict=True)]
    return Claim(
        ident,
        statement,
        f"worst latency within {NEAR:g} s of stall + GCT, {over([run.failed + GCT for run in runs])}",
        f"{over(worst)}; {over(off)} more than stall + GCT",
        max(map(abs, off)) <= NEAR,
    )


def link_saw(runs: Runs) -> Claim:
    """GR4: what was lost comes at once."""
    slopes = [saw_tooth(run, "s1", run.carried) for run in runs]
    return Claim(
        "GR4.saw-tooth",
        "What the link has lost comes in one burst: latency at s1 falls with the sending time like a saw-tooth.",
        f"latency falls by one second per second of sending time ({SLOPE[0]:g} to {SLOPE[1]:g})",
        over(slopes, "s/s"),
        all(SLOPE[0] <= slope <= SLOPE[1] for slope in slopes),
    )


def link_nacks(runs: Runs) -> Claim:
    """GR4: s1 asks b2."""
    first = [min([nack.at for nack in run.asked("s1")], default=np.inf) for run in runs]
    after = [at - run.failed for at, run in zip(first, runs, strict=True)]
    to = {nack.to for run in runs for nack in run.asked("s1")}
    others = sorted({nack.by for run in runs for nack in run.nacks if nack.by in EDGES and nack.at >= 0} - {"s1"})
    return Claim(
        "GR4.nacks",
        "s1 notices nothing while the link stalls; it asks when messages come the other way, and it asks b2.",
        f"no nack before the failure, the first within GCT + {NEAR:g} s after it; to b2 alone; by no other edge",
        f"first nack {over(after)} after the failure; to {', '.join(sorted(to)) or 'nobody'}; by other edges: "
        f"{', '.join(others) or 'none'}",
        all(0 < each <= GCT + NEAR for each in after) and to == {"b2"} and not others,
    )


def link_chopped(runs: Runs) -> Claim:
    """GR4: several nacks."""
    counts = [len(run.asked("s1")) / len(run.carried) for run in runs]
    asked = [run.asked_for("s1") / len(run.carried) for run in runs]
    chop = BrokerSettings().chop
    return Claim(
        "GR4.chopped",
        "A large range is chopped, so s1 sends several nacks for a stream.",
        "more than one nack for a stream that went over the link",
        f"{over(counts, 'nacks', 1)} for {over(asked, 'numbers', 0)} of each stream",
        min(counts) > 1,
        f"A nack asks for up to {chop} numbers here, {chop / RATE:.0f} s of such a stream; the paper does not say how "
        "large its pieces are. tests/protocols/test_brokers.py shows that a larger gap is asked for in pieces (A2.25).",
    )


def link_others(runs: Runs) -> Claim:
    """GR4: s2 notices nothing."""
    told, fine = untouched(runs, [edge for edge in EDGES if edge != "s1"])
    return Claim(
        "GR4.untouched",
        "Latency at s2, and at all edges but s1, is not affected by the failure of b1-s1.",
        f"no message takes longer than GCT, {1000 * GCT:.0f} ms, and none of them sends a nack",
        told,
        fine,
    )


def link_after(runs: Runs) -> Claim:
    """GR4: then over b2."""
    return _after(
        "GR4.after", "Then all goes over b2-s1, and latency at s1 is normal again, also when b1-s1 is back.", runs
    )


def _after(ident: str, statement: str, runs: Runs) -> Claim:
    before = [float(np.median(took[sent < 0])) for run in runs for sent, took in [run.of("s1")]]
    worst = [run.worst("s1", run.failed + SETTLED, run.end) for run in runs]
    late = [float(np.median(took[sent > run.failed + SETTLED])) for run in runs for sent, took in [run.of("s1")]]
    return Claim(
        ident,
        statement,
        f"from {SETTLED:g} s after the failure on no message takes longer than GCT, {1000 * GCT:.0f} ms",
        f"worst {over([1000 * each for each in worst], 'ms', 1)}; median {1000 * median(late):.1f} ms, before the "
        f"stall {1000 * median(before):.1f} ms",
        max(worst) < GCT,
    )


# --- GR5: b1 --------------------------------------------------------------------------------------------


def relay_latency(runs: Runs) -> Claim:
    """GR5: the first peak."""
    return _peak("GR5.latency", "b1 stalls and crashes: the first peak of latency is the stall and GCT.", runs)


def relay_alike(runs: Runs) -> Claim:
    """GR5: s1 and s2 lost the same."""
    pairs = [(run.asked_for("s1"), run.asked_for("s2")) for run in runs]
    apart = [abs(a - b) / max(a, b, 1) for a, b in pairs]
    counts = [(len(run.asked("s1")), len(run.asked("s2"))) for run in runs]
    return Claim(
        "GR5.alike",
        "s1 and s2 lost the same messages: their nacks are almost identical in number and range.",
        f"ranges differ by less than {ALIKE:.0%}, numbers of nacks by at most one, and none is 0",
        f"numbers asked for: {_pairs(pairs)}; nacks: {_pairs(counts)}",
        max(apart) < ALIKE and all(min(pair) > 0 for pair in pairs) and all(abs(a - b) <= 1 for a, b in counts),
    )


def _pairs(pairs: Sequence[tuple[int, int]]) -> str:
    return ", ".join([f"s1 {a} s2 {b}" for a, b in pairs])


def relay_range(runs: Runs) -> Claim:
    """GR5: as much as was lost."""
    lost = [run.failed * RATE * len(run.carried) for run in runs]
    asked = [run.asked_for("s1") for run in runs]
    ratio = [a / b for a, b in zip(asked, lost, strict=True)]
    return Claim(
        "GR5.range",
        "The nack range of s1 is what was lost: two streams while b1 stalled (5,500 ms of ticks in the paper).",
        "numbers asked for are within 20% of streams x stall x rate",
        f"{over([each * TICK for each in asked], 'ms', 0)} of ticks, {over([100 * each for each in ratio], '%', 0)} of "
        f"that; streams over b1: {', '.join(sorted({str(len(run.carried)) for run in runs}))} of 4",
        all(0.8 <= each <= 1.2 for each in ratio),
    )


def relay_consolidation(runs: Runs) -> Claim:
    """GR5: b2 asks once for both."""
    shares = [run.asked_for("b2") / max(run.asked_for("s1") + run.asked_for("s2"), 1) for run in runs]
    return Claim(
        "GR5.consolidation",
        "b2 has none of what s1 and s2 ask for and passes it on once: its nack range is about half of theirs together.",
        f"{SHARE[0]:g} to {SHARE[1]:g} of the ranges of s1 and s2",
        over(shares, "of both"),
        all(SHARE[0] <= each <= SHARE[1] for each in shares),
    )


def relay_restart(runs: Runs) -> Claim:
    """GR5: nothing is lost when b1 is back."""
    late = [[nack for nack in run.nacks if nack.at >= run.failed + SETTLED + 1.0] for run in runs]
    since, numbers = [len(each) for each in late], sum([nack.numbers for each in late for nack in each])
    return Claim(
        "GR5.restart",
        "When b1 is back its streams go over it again, and nobody sends a nack, because nothing is lost.",
        f"no nack of any broker or edge later than {SETTLED + 1:g} s after the crash",
        f"{sum(since)} nacks {in_all(runs)}{f', for {numbers} numbers' if numbers else ''}",
        not any(since),
        ""
        if not any(since)
        else "Who registers anew is told how far the streams have come. That is AckExpected, too, so an edge asks "
        "at once for the newest message, which is still on its way over b2.",
    )


def relay_second(runs: Runs) -> Claim:
    """GR5: the second peak [H]."""
    peaks = [run.worst("s1", run.repaired - 0.5, run.repaired + 5.0) for run in runs]
    before = [run.worst("s1", -5.0, -0.1) for run in runs]
    holds = all(peak > 2 * old for peak, old in zip(peaks, before, strict=True))
    return Claim(
        "GR5.second-peak",
        "Latency has a second, smaller peak when b1 is back.",
        "worst latency within 5 s of the restart more than twice the worst before the stall",
        f"{over([1000 * each for each in peaks], 'ms', 1)}, before {over([1000 * each for each in before], 'ms', 1)}",
        holds,
        ""
        if holds
        else "The paper's cause is the machine: the Java compiler warms up in a broker that has just started. Here b1 "
        "gets nothing before it has told who is below it, and by then it runs.",
    )


def relay_others(runs: Runs) -> Claim:
    """GR5: the other cell notices nothing."""
    told, fine = untouched(runs, ["s3", "s4", "s5"])
    return Claim(
        "GR5.untouched",
        "Edges that are not below b1 notice nothing.",
        f"no message to s3, s4 or s5 takes longer than GCT, {1000 * GCT:.0f} ms, and none of them sends a nack",
        told,
        fine,
    )


def relay_after(runs: Runs) -> Claim:
    """GR5: then over b2."""
    return _after(
        "GR5.after", "As soon as b1 crashes all goes over b2, and latency is normal, also when b1 is back.", runs
    )


# --- GR6: p1 --------------------------------------------------------------------------------------------


def site_silent(runs: Runs) -> Claim:
    """GR6: nobody asks while p1 is down."""
    down = [len([nack for nack in run.nacks if 0 <= nack.at < run.repaired]) for run in runs]
    return Claim(
        "GR6.silent",
        "While p1 is down no gap arises, and with an infinite DCT nobody asks.",
        "no nack of any broker or edge from the stall to the restart",
        f"{sum(down)} nacks {in_all(runs)}",
        not any(down),
    )


def site_first(runs: Runs) -> Claim:
    """GR6: AckExpected first."""
    said = [all(run.said_first.values()) and bool(run.said_first) for run in runs]
    asking = [{edge for edge in EDGES if run.asked(edge, run.repaired)} for run in runs]
    first = [min([nack.at for nack in run.nacks if nack.at >= run.repaired], default=np.inf) for run in runs]
    return Claim(
        "GR6.ack-expected",
        "p1 is back, and the first it says of each stream is AckExpected with the end of its log; so s1 to s5 ask.",
        "AckExpected before any knowledge of each stream, then nacks of all five edges",
        f"AckExpected first in {sum(said)} of {len(runs)}; nacks of all five edges in "
        f"{sum(len(each) == len(EDGES) for each in asking)}; the first "
        f"{over([at - run.repaired for at, run in zip(first, runs, strict=True)])} after the restart",
        all(said) and all(len(each) == len(EDGES) for each in asking),
    )


def site_unsent(runs: Runs) -> Claim:
    """GR6: logged but not sent."""
    slopes, counts, worst = [], [], []
    for run in runs:
        sent, took = run.of("s1")
        late = (sent >= 0) & (sent < run.failed) & (took > GCT)
        counts.append(float(late.sum()))
        worst.append(float(took[late].max(initial=0.0)))
        slopes.append(saw_tooth(run, "s1"))
    whole = [run.repaired for run in runs]
    return Claim(
        "GR6.unsent",
        "What p1 had logged and not sent is delivered when it is back, with a latency that falls like a part of a "
        "saw-tooth.",
        f"some messages sent in the stall came after the restart, the slope is {SLOPE[0]:g} to {SLOPE[1]:g}, and the "
        f"worst is at least stall + {min(run.repaired - run.failed for run in runs):g} s",
        f"{over(counts, 'messages', 0)}; slope {over(slopes, 's/s')}; worst {over(worst)}",
        min(counts) > 0
        and all(SLOPE[0] <= slope <= SLOPE[1] for slope in slopes)
        and all(found >= each - 0.1 for found, each in zip(worst, whole, strict=True)),
    )


def site_back(runs: Runs) -> Claim:
    """GR6: then all is normal."""
    took = []
    for run in runs:
        sent, each = run.of("s1")
        slow = (sent + each)[each > GCT]
        took.append(float(slow.max(initial=run.repaired)) - run.repaired)
    return Claim(
        "GR6.back",
        "Latency quickly returns to normal.",
        f"the last message that took longer than GCT comes within {BACK:g} s of the restart",
        over(took),
        max(took) <= BACK,
    )


def storage(runs: Runs) -> Claim:
    """GR7: only the publishing site has stable storage."""
    elsewhere = [run.stored_elsewhere for run in runs]
    return Claim(
        "GR7.storage",
        "Stable storage is needed at the publishing site only: relays and edges keep nothing on a disk.",
        "p1 persists records, and no relay or edge persists any, in any run",
        f"{over([float(run.stored) for run in runs], 'records', 0)} of p1, {sum(elsewhere)} of relays and edges",
        not any(elsewhere) and all(run.stored for run in runs),
    )


def no_explosion(runs: Runs) -> Claim:
    """GR7: nacks are consolidated."""
    ratios = []
    for run in runs:
        needed = sum([max([run.asked_for(e) for e, above in EDGES.items() if above == cell]) for cell in CELLS])
        asked = sum([nack.numbers for nack in run.nacks if nack.to == "p1" and nack.at >= 0])
        ratios.append(asked / max(needed, 1))
    return Claim(
        "GR7.nacks",
        "There is no nack explosion: what is asked of p1 grows with what was lost, not with who lost it.",
        f"p1 is asked for at most {1 + ALIKE:g} x what the edge of each cell asked for that lost most, in every run",
        over(ratios, "x"),
        max(ratios) <= 1 + ALIKE and min(ratios) > 0,
    )


def localised(runs: Runs) -> Claim:
    """GR7: who is not below the failure notices nothing."""
    away = {"link": [edge for edge in EDGES if edge != "s1"], "relay": ["s3", "s4", "s5"]}
    some = [run for run in runs if run.fault in away]
    worst = [max([run.worst(edge, -1.0, run.end) for edge in away[run.fault]]) for run in some]
    nacks = sum([len(run.asked(edge)) for run in some for edge in away[run.fault]])
    return Claim(
        "GR7.localised",
        "The effects of a failure are local: edges whose path it is not on notice nothing.",
        f"no message to them takes longer than GCT, {1000 * GCT:.0f} ms, and they send no nack (GR4, GR5)",
        f"{over([1000 * each for each in worst], 'ms', 1)}, {nacks} nacks",
        max(worst) < GCT and not nacks,
    )


def complete(runs: Runs) -> Claim:
    """Ours, in every fault: nothing is lost, doubled or disordered."""
    bad = [run.violations for run in runs]
    return Claim(
        f"{ {'link': 'GR4', 'relay': 'GR5', 'site': 'GR6'}[runs[0].fault] }.exactly-once",
        "Every subscriber gets every message that was logged, once and in the order of its stream.",
        "0 gaps, repetitions and messages that never came",
        f"{sum(bad)} {in_all(runs)}, at five subscribers",
        not any(bad),
    )


Judge = Callable[[Runs], Claim]
JUDGES: dict[str, tuple[Judge, ...]] = {
    "link": (link_latency, link_saw, link_nacks, link_chopped, link_others, link_after, complete),
    "relay": (
        *(relay_latency, relay_alike, relay_range, relay_consolidation, relay_restart, relay_second),
        *(relay_others, relay_after, complete),
    ),
    "site": (site_silent, site_first, site_unsent, site_back, complete),
}
OVERALL: tuple[Judge, ...] = (storage, no_explosion, localised)
CLAIM = {"link": "GR4", "relay": "GR5", "site": "GR6"}


# --- the figures ----------------------------------------------------------------------------------------


def shown(runs: Runs) -> FaultRun:
    """The run with the median stall."""
    return sorted(runs, key=lambda run: run.failed)[len(runs) // 2]


NAMES = {"link": "b1-s1", "relay": "b1", "site": "p1"}


def _moments(axes: Axes, run: FaultRun, to: float) -> None:
    figures.shade(axes, 0.0, run.failed, f"{NAMES[run.fault]} stalls")
    figures.mark(axes, run.failed, "fails")
    if run.repaired < to:
        figures.mark(axes, run.repaired, "back")


def paint(run: FaultRun, title: str, axes: Axes) -> None:
    """Latency by sending time, and the nacks, each with the numbers that its node has asked for so far."""
    other = figures.beside(axes)
    until = run.end - 1.0
    _moments(axes, run, until)
    streams = run.carried if run.fault == "relay" else None
    drawn = {"link": (("s1", figures.BLUE), ("s2", figures.ORANGE))}.get(run.fault, (("s1", figures.BLUE),))
    for edge, color in drawn:
        sent, took = run.of(edge, streams)
        axes.plot(sent, took, ".", markersize=3, color=color, label=f"latency at {edge}")
    level = run.repaired if run.fault == "site" else run.failed + GCT
    axes.axhline(level, color=figures.VERMILION, linewidth=1.3, linestyle=(0, (2, 1)))
    told = f"stall + {run.repaired - run.failed:.0f} s" if run.fault == "site" else "stall + GCT"
    axes.text(until, level, told, ha="right", va="bottom", fontsize=9, color=figures.VERMILION)
    axes.set_xlim(-3.0, until)
    axes.set_ylim(-0.03 * level, 1.2 * level)
    axes.set_xlabel("sent at (s)")
    axes.set_ylabel("seconds until delivered")
    axes.set_title(title)
    _paint_nacks(run, other)


def _paint_nacks(run: FaultRun, axes: Axes) -> None:
    relays = [relay for relay in ("b1", "b2", "b3", "b4") if run.asked(relay)]
    asking = {"link": ["s1", "b2"], "relay": ["s1", "s2", "b2"], "site": ["s1", "s5", *relays[:2]]}[run.fault]
    styles: tuple[tuple[str, str, Any], ...] = (
        *((figures.BLUE, "o", 9), (figures.ORANGE, "s", 6)),
        *((figures.GREEN, "^", 8), (figures.PURPLE, "v", 6)),
    )
    times = [nack.at for node in asking for nack in run.asked(node)]
    for node, (color, marker, size) in zip(asking, styles, strict=False):
        mine = run.asked(node)
        so_far = np.cumsum([nack.numbers * TICK for nack in mine])
        axes.plot(
            [nack.at for nack in mine], so_far, marker, markersize=size, fillstyle="none", color=color, label=node
        )
    lo, hi = min(times, default=0.0), max(times, default=1.0)
    axes.set_xlim(min(lo - 0.5, run.failed - 0.3) if run.fault != "site" else run.repaired - 0.2, hi + 0.7)
    if run.fault == "relay":
        figures.expect(axes, axes.get_xlim(), run.failed * 1000 * len(run.carried), "lost: streams x stall")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("asked at (s)")
    axes.set_ylabel("nack range so far (ms of ticks)")
    axes.set_title("Nacks")
    axes.legend(loc="lower left", frameon=True, framealpha=0.9, edgecolor="none")


TITLES = {
    "link": "The link b1-s1 fails (GR4)",
    "relay": "b1 crashes (GR5)",
    "site": "p1 crashes (GR6)",
}


# --- the experiment -------------------------------------------------------------------------------------


def report(sql: Sql, scale: str, out: Path) -> Findings:
    """Judge and draw the simulated runs."""
    runs = read(sql)
    found = report_runs(runs, out, "")
    return Findings([*found.claims, *[judge(runs) for judge in OVERALL]], found.figures, found.data)


def report_runs(runs: Runs, out: Path, prefix: str) -> Findings:
    """Judge and draw; ``prefix`` is that of the claims and figures."""
    claims: list[Claim] = []
    drawn: dict[str, list[str]] = {}
    data: dict[str, list[str]] = {}
    for fault, judges in JUDGES.items():
        some = [run for run in runs if run.fault == fault]
        if not some:
            continue
        ident, name = experiment(fault, prefix), f"{CLAIM[fault].lower()}{f'-{prefix}' if prefix else ''}"
        judged = [judge(some) for judge in judges]
        claims += [Claim(**(vars(each) | {"id": f"{prefix}.{each.id}" if prefix else each.id})) for each in judged]
        title = f"{TITLES[fault]}{', real' if prefix else ''}"
        drawn[ident] = figures.draw(out, name, partial(paint, shown(some), title))
        data[ident] = [write(out / f"{name}.parquet", columns(some))]
    return Findings(claims, drawn, data)


def experiment(fault: str, prefix: str) -> str:
    """The id of an experiment."""
    return f"{CLAIM[fault]}{f'-{prefix}' if prefix else ''}"


def columns(runs: Runs) -> list[dict[str, Any]]:
    """Latencies, of all runs."""
    return [
        {"seed": str(run.seed), "edge": edge, "stream": stream, "sent_at": sent, "seconds": took}
        for run in runs
        for edge, streams in run.latency.items()
        for stream, (sent, took) in streams.items()
    ]


def claim_ids(fault: str, prefix: str = "") -> tuple[str, ...]:
    """The claims that are judged of a fault."""
    own = {
        "link": ("latency", "saw-tooth", "nacks", "chopped", "untouched", "after", "exactly-once"),
        "relay": (
            *("latency", "alike", "range", "consolidation", "restart", "second-peak"),
            *("untouched", "after", "exactly-once"),
        ),
        "site": ("silent", "ack-expected", "unsent", "back", "exactly-once"),
    }[fault]
    return tuple([f"{f'{prefix}.' if prefix else ''}{CLAIM[fault]}.{each}" for each in own])


PAPER = "gryphon"
STUDIES = (Study("gryphon-failures", points, measure, report),)
TITLE = {
    "link": "Figure 6: the link b1-s1 fails for 10 s",
    "relay": "Figure 7: b1 crashes, and is back after 30 s",
    "site": "Figure 8: p1 crashes, and is back after 20 s",
}
EXPERIMENTS = (
    *[Experiment(CLAIM[fault], PAPER, title, claim_ids(fault), "gryphon-failures") for fault, title in TITLE.items()],
    Experiment(
        "GR7",
        PAPER,
        "The abstract: stable storage at the publisher, no nack explosion, local effects",
        ("GR7.storage", "GR7.nacks", "GR7.localised"),
        "gryphon-failures",
    ),
)
