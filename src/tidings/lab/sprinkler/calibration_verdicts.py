"""SP1 and SP2 on a real cluster, judged and drawn; `calibration` measures and simulates.

Results are cached under a hash of that module's code, so verdicts and figures have a module of their own: changing them
repeats no measurement. A peak is judged only where throughput saturates. A reason is given only where the numbers of
the run show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidings.lab import figures
from tidings.lab.claims import UNEXPLAINED, Claim, Experiment, Findings
from tidings.lab.sprinkler.calibration import (
    ALONE,
    BATCH,
    BUSY,
    REPEAT,
    RISES,
    SECONDS,
    Calibrated,
    LoadLine,
    Model,
    Size,
    Spot,
    batches,
    beside,
    measure,
    median,
    points,
    processors,
    sizes_of,
)
from tidings.lab.study import Row, Sql, Study
from tidings.sim.measured import MEASURED
from tidings.sim.scenario import ServiceTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SLIGHTLY = 0.25  # a change by less than a quarter is slight
NEAR = 0.25  # simulation and reality are near each other
GOOD_TO = 1.5  # a time that was measured on a machine that is not idle
KEPT_OTHERS = 0.1  # processors that others used at most while the times of tidings.sim.measured were measured
PAPER = (2.6e6, 2.7e6)  # SP1: events/s of three proxies at their peak

# --- the claims -----------------------------------------------------------------------------------------


def _million(rate: float) -> str:
    return f"{rate / 1e6:.2f} M/s"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs"


def _ns(seconds: float) -> str:
    return f"{seconds * 1e9:,.0f} ns"


def _apart(real: float, simulated: float) -> str:
    return f"{simulated / real - 1:+.0%}" if real else "-"


def _busy(measured: Sequence[Spot] | Sequence[Size]) -> str:
    """How much of the machine others had."""
    others = [f"{value([each.others for each in measured]):.1f}" for value in (min, max)]
    return f"others used {' to '.join(dict.fromkeys(others))} of {processors()} processors"


def _lines(found: Calibrated, value: Any) -> str:
    return "; ".join(
        f"{_proxies(count)} " + ", ".join(f"{value(spot) / 1e6:.2f} ({spot.drivers})" for spot in found.of(count))
        for count in found.counts
    )


def rises(found: Calibrated) -> Claim:
    """SP1: more drivers, more throughput."""
    gains = {count: found.peak(count) / found.of(count)[0].rate for count in found.counts}
    model = {count: found.simulated_peak(count) / found.of(count)[0].simulated for count in found.counts}
    flat = [count for count in found.counts if gains[count] < RISES]
    return Claim(
        "SP1.rises",
        "Throughput rises with the number of drivers.",
        f"for every number of proxies the peak is at least {RISES:g} times what one driver per proxy reaches",
        f"{_gains(gains)}; M events/s (drivers per proxy): {_lines(found, lambda s: s.rate)}",
        not flat,
        " ".join(_no_room(found.of(count)[0]) for count in flat),
        f"{_gains(model)}; {_lines(found, lambda s: s.simulated)}",
        "peak over one driver: " + ", ".join(f"{count}: {_apart(gains[count], model[count])}" for count in gains),
    )


def _no_room(first: Spot) -> str:
    """Whether the fewest drivers leave something of the machine to more of them."""
    cause = "so more drivers find none free." if first.full else f"so there was room for more. {UNEXPLAINED}"
    return f"With {_proxies(first.proxies)} and {_drivers(first)} the run used {first.taken}, {cause}"


def _gains(gains: Mapping[int, float]) -> str:
    return ", ".join(f"{count}: {gain:.2f} x" for count, gain in gains.items())


def _and(words: Sequence[Any]) -> str:
    return " and ".join(str(word) for word in words)


def saturates(found: Calibrated) -> Claim:
    """SP1: then it stays."""
    ends = {count: found.of(count)[-2:] for count in found.counts}
    real, model = found.last_gains, {count: b.simulated / a.simulated for count, (a, b) in ends.items()}
    rising = [count for count in found.counts if count not in found.saturated]
    return Claim(
        "SP1.saturates",
        "Then throughput saturates.",
        f"with every number of proxies the last drivers bring less than {RISES:g} times what there was before them",
        _gains(real),
        not rising,
        " ".join(_still_rising(*ends[count]) for count in rising),
        _gains(model),
        ", ".join(f"{count}: {model[count] / real[count] - 1:+.0%}" for count in real),
    )


def _still_rising(before: Spot, last: Spot) -> str:
    """What the last drivers found of the machine, and what they left of it."""
    if not last.full:
        cause = "Even the last drivers do not use the machine up."
    elif not before.full:
        cause = "Only the last drivers bring the machine to its limit; what more would bring it cannot show."
    elif last.used >= RISES * before.used:
        cause = "No processor was free, but the last drivers took from others."
    else:
        cause = f"The last drivers bring more although no processor was free. {UNEXPLAINED}"
    return (
        f"With {_proxies(last.proxies)} and {_drivers(before)} the run used {before.taken}, with {_drivers(last)} "
        f"{last.used:.1f} and others {last.others:.1f}. {cause}"
    )


def _no_peak(found: Calibrated) -> str:
    """Where throughput still rises with the last drivers."""
    rising = {count: gain for count, gain in found.last_gains.items() if count not in found.saturated}
    if not rising:
        return ""
    return (
        f"No peak was reached with {_and([_proxies(count) for count in rising])}: the last drivers still brought "
        f"{_and([f'{gain:.2f} x' for gain in rising.values()])} (SP1.saturates)."
    )


def peak_falls(found: Calibrated) -> Claim:
    """SP1: forwarding costs a little."""
    statement = "The peak falls slightly with more proxies, because they forward events to each other."
    expected = f"with the most proxies {1 - SLIGHTLY:.0%} to 100% of the peak with the fewest; where there is a peak"
    real = ", ".join(f"{count}: {_million(found.peak(count))}" for count in found.counts)
    model = ", ".join(f"{count}: {_million(found.simulated_peak(count))}" for count in found.counts)
    if len(found.saturated) < 2:  # it takes two peaks to compare them
        distances = ", ".join(f"{n}: {_apart(found.peak(n), found.simulated_peak(n))}" for n in found.counts)
        measured = f"peaks with {len(found.saturated)} of {len(found.counts)} numbers of proxies; the most: {real}"
        return Claim("SP1.peak", statement, expected, measured, False, _no_peak(found), model, distances)
    few, many = min(found.saturated), max(found.saturated)
    share, simulated_share = (of(many) / of(few) for of in (found.peak, found.simulated_peak))
    holds = 1 - SLIGHTLY <= share <= 1.0
    reasons = [_no_peak(found), "" if holds else _peaks_apart(found.top(few), found.top(many))]
    return Claim(
        "SP1.peak",
        statement,
        expected,
        f"with {_proxies(many)} {share:.0%} of the peak with {few} ({real})",
        holds,
        " ".join(reason for reason in reasons if reason),
        f"{simulated_share:.0%} ({model})",
        f"{100 * (simulated_share - share):+.0f} points",
    )


def _peaks_apart(few: Spot, many: Spot) -> str:
    """What the two peaks cost, and whether that and the size of the machine explain how far they are apart."""
    told = [
        f"{_proxies(top.proxies)} and {_drivers(top)} used {top.taken}, {_ns(top.cost)} per event"
        for top in (few, many)
    ]
    if many.rate > few.rate:
        cause = UNEXPLAINED if few.full else f"So {_proxies(few.proxies)} left room for more."
    elif many.full and many.cost * (1 - SLIGHTLY) > few.cost:
        cause = (
            f"So an event costs {many.cost / few.cost:.1f} times as much, and all share these processors; "
            "SP1.own-processors takes that out."
        )
    else:
        cause = UNEXPLAINED
    return f"At their peaks {'; '.join(told)}. {cause}"


def own_processors(found: Calibrated) -> Claim:
    """SP1, with the machine taken out: what a proxy's processor time allows."""
    few, many = min(found.counts), max(found.counts)
    real, model = found.capacity(many) / found.capacity(few), found.own_peak(many) / found.own_peak(few)
    holds = 1 - SLIGHTLY <= real < RISES
    costs = [
        f"{_ns(1 / found.capacity(count))} with {_proxies(count)} and {_drivers(found.of(count)[-1])}"
        for count in (few, many)
    ]
    return Claim(
        "SP1.own-processors",
        "Ours: had every proxy a processor of its own, the peak would fall slightly, if at all, with more proxies.",
        f"events per processor second of the busiest proxy, with {many} proxies {1 - SLIGHTLY:.0%} to {RISES:.0%} of "
        f"those with {few}; simulated: the peak with a processor each",
        f"{real:.0%} ({', '.join(f'{count}: {_million(found.capacity(count))}' for count in found.counts)})",
        holds,
        "" if holds else f"An event costs the busiest proxy {', '.join(costs)}; {_busy(found.spots)}. {UNEXPLAINED}",
        f"{model:.0%} ({', '.join(f'{count}: {_million(found.own_peak(count))}' for count in found.counts)})",
        f"ratio {100 * (model - real):+.0f} points; peak "
        + ", ".join(f"{count}: {_apart(found.capacity(count), found.own_peak(count))}" for count in found.counts),
    )


def value(found: Calibrated) -> Claim:
    """SP1: the number in the text."""
    many, line = max(found.counts), found.model.replica
    real, model = found.peak(many), found.simulated_peak(many)
    holds, double = real >= PAPER[0], line.at(2 * BATCH) / line.at(BATCH)
    return Claim(
        "SP1.value",
        "Three proxies together take at least the paper's 2.6 to 2.7 million events/s at their peak.",
        f"at least {_million(PAPER[0])} with {many} proxies, in batches of {BATCH:,}",
        f"{_million(real)}",
        holds,
        f"On one machine, of which the run used {found.top(many).taken}; the paper had one per process (1.6 GHz). It "
        f"does not give its batch; here twice as many events in one cost a replica {double:.1f} times as much."
        + ("" if holds else f" {UNEXPLAINED}"),
        _million(model),
        _apart(real, model),
    )


def per_driver(found: Calibrated) -> Claim:
    """SP2: once saturated, each driver gets less."""

    def kept(rate: Any) -> dict[int, float]:
        ends = {count: (found.of(count)[0], found.of(count)[-1]) for count in found.counts}
        return {count: (rate(b) / b.drivers) / (rate(a) / a.drivers) for count, (a, b) in ends.items()}

    real, model = kept(lambda spot: spot.rate), kept(lambda spot: spot.simulated)
    same = [count for count in found.saturated if real[count] >= 1 / RISES]
    reasons = [_no_peak(found)]
    if same:
        gains = _gains({count: found.last_gains[count] for count in same})
        reasons.append(
            f"The last drivers brought hardly more ({gains}), but each has as much as one alone. {UNEXPLAINED}"
        )
    return Claim(
        "SP2.falls",
        "The throughput of one driver falls once the proxies are saturated.",
        f"with the most drivers per proxy each has less than {1 / RISES:.0%} of what it has alone at its proxy; where "
        "the proxies are saturated",
        ", ".join(
            f"{count}: {share:.0%}{'' if count in found.saturated else ' (not saturated)'}"
            for count, share in real.items()
        ),
        bool(found.saturated) and not same,
        " ".join(reason for reason in reasons if reason),
        ", ".join(f"{count}: {share:.0%}" for count, share in model.items()),
        ", ".join(f"{count}: {100 * (model[count] - real[count]):+.0f} points" for count in real),
    )


def near(found: Calibrated) -> Claim:
    """Ours: how far the simulated curves are from the real ones."""
    middle = median([abs(spot.distance) for spot in found.spots])
    worst = max(found.spots, key=lambda spot: abs(spot.distance))
    return Claim(
        "SP1.model",
        "Ours: the simulation, given what one replica and one driver take, says what many of them do.",
        f"the median of the distances is below {NEAR:.0%}",
        f"{middle:.0%}; farthest {worst.distance:+.0%} ({worst.proxies} proxies, {worst.drivers} drivers each)",
        middle < NEAR,
        "" if middle < NEAR else _model_apart(found, worst),
        "see the figure",
        "; ".join(
            f"{_proxies(count)} " + ", ".join(f"{spot.distance:+.0%} ({spot.drivers})" for spot in found.of(count))
            for count in found.counts
        ),
    )


def _model_apart(found: Calibrated, worst: Spot) -> str:
    """Whether that has to do with a machine at its limit, and what a batch costs in both."""
    distances = []
    for full, name in ((True, "at"), (False, "below")):
        if some := [spot.distance for spot in found.spots if spot.full == full]:
            distances.append(f"{median(some):+.0%} in the median of {len(some)} points {name} the machine's limit")
    model, real = found.model, worst.cost * BATCH
    least = model.driver.at(BATCH) + worst.proxies * model.replica.at(BATCH)
    most = least + worst.proxies * model.wake
    cause = UNEXPLAINED
    if worst.distance > 0 and real > most:
        cause = "So the simulation charges too little."
    if worst.distance < 0 and real < least:
        cause = "So the simulation charges too much."
    return (
        f"It is {_and(distances)}; {_busy(found.spots)}. Where it is farthest, a batch took all processes {_us(real)}; "
        f"by the fitted times it takes {_us(least)}, or {_us(most)} if all proxies wake up for it. {cause}"
    )


def linear(found: Calibrated) -> Claim:
    """Ours: the form of the service times."""
    model, line = found.model, found.model.replica
    worst = max(found.sizes, key=lambda size: abs(size.off))
    return Claim(
        "service.line",
        "Ours: a replica's processor time for a batch is a fixed part and a part per event.",
        f"every batch size within {NEAR:.0%} of the line",
        f"{_us(line.fixed)} + {line.event * 1e9:.1f} ns per event, at most {abs(worst.off):.0%} off; "
        f"{_us(model.wake)} more where it had nothing to do; a driver {_us(model.driver.fixed)} + "
        f"{model.driver.event * 1e9:.1f} ns; {_hop(found)}",
        abs(worst.off) < NEAR,
        "" if abs(worst.off) < NEAR else _off_the_line(found, worst),
    )


def _hop(found: Calibrated) -> str:
    """How long it is, or that there is none to be seen."""
    rest = [size.rest for size in found.sizes]
    told = f"the rest of the round trip is {_us(min(rest))} to {_us(max(rest))}"
    if found.model.hop:
        return f"a hop {_us(found.model.hop)} ({told})"
    return f"no hop could be told from the noise: {told}; simulated with 0"


def _off_the_line(found: Calibrated, worst: Size) -> str:
    """Whether the runs of one size are as far from each other as from the line."""
    spread = (max(worst.runs) - min(worst.runs)) / worst.line
    cause = "So this may be noise." if spread >= abs(worst.off) else UNEXPLAINED
    return (
        f"{worst.batch:,} events take {_us(median(worst.runs))}, {_us(worst.line)} by the line; {_busy(found.sizes)}. "
        f"The {len(worst.runs)} runs of this size are {spread:.0%} of the line apart. {cause}"
    )


def constant(found: Calibrated) -> Claim:
    """Ours: what scenarios use is what is measured."""
    now, kept = found.model.replica.at(BATCH), MEASURED.per_batch + BATCH * MEASURED.per_event
    holds = 1 / GOOD_TO <= now / kept <= GOOD_TO
    return Claim(
        "service.constant",
        "Ours: the service times that scenarios can use (tidings.sim.measured) are those of this machine.",
        f"a batch of {BATCH:,} events within a factor of {GOOD_TO:g}",
        f"{_us(now)} now, {_us(kept)} kept",
        holds,
        ""
        if holds
        else f"{now / kept:.2f} times what is kept. That was measured while others used up to {KEPT_OTHERS:g} "
        f"processors; this time {_busy(found.sizes)}. {UNEXPLAINED}",
        _us(kept),
        _apart(now, kept),
    )


JUDGES = (rises, saturates, peak_falls, own_processors, value, near, per_driver, linear, constant)


# --- the figures ----------------------------------------------------------------------------------------

COLORS = (figures.BLUE, figures.ORANGE, figures.GREEN)
MARKS = ("o", "s", "^")


def _proxies(count: int) -> str:
    return f"{count} {'proxy' if count == 1 else 'proxies'}"


def _drivers(spot: Spot) -> str:
    return f"{spot.drivers} {'driver' if spot.drivers == 1 else 'drivers'} each"


def _ticks(axes: Axes, drivers: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(drivers, [str(each) for each in drivers])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("drivers per proxy")


def paint_rates(found: Calibrated, axes: Axes, *, each: bool) -> None:
    """Figure 4a, or (``each``) 4b: real with the spread of its runs, simulated as broken lines."""
    for count, color, shape in zip(found.counts, COLORS, MARKS, strict=False):
        spots = found.of(count)
        drivers = [spot.drivers for spot in spots]
        share = np.array([1e6 * (count * spot.drivers if each else 1) for spot in spots])
        real = np.array([spot.rate for spot in spots]) / share
        ends = [np.array([end(spot.real) for spot in spots]) / share for end in (min, max)]
        axes.errorbar(drivers, real, [real - ends[0], ends[1] - real], fmt="none", color=color, capsize=3)
        axes.plot(drivers, real, color=color, marker=shape, markersize=5, label=f"{_proxies(count)}, real")
        model = np.array([spot.simulated for spot in spots]) / share
        axes.plot(drivers, model, color=color, linestyle=(0, (5, 2)), label=f"{_proxies(count)}, simulated")
    if each:
        axes.set_ylabel("million events/s per driver")
        axes.set_title("Throughput of one driver, real and simulated (SP2)")
        for count, color in zip(found.counts, COLORS, strict=False):
            first = found.of(count)[0]
            ideal = first.rate / (count * first.drivers) / 1e6
            label = "expected until saturated" if count == found.counts[0] else None
            ends_at = (first.drivers, found.of(count)[-1].drivers)
            axes.plot(ends_at, [ideal, ideal], color=color, linewidth=1, linestyle=(0, (1, 2)), label=label)
    else:
        axes.set_ylabel("million events/s in total")
        axes.set_title("Throughput by drivers, all on one machine (SP1)")
        ends_at = (found.of(1)[0].drivers, found.of(1)[-1].drivers)
        figures.expect(axes, ends_at, sum(PAPER) / 2e6, "peak of 3 proxies (paper)")
    _ticks(axes, [spot.drivers for spot in found.of(found.counts[0])])


def paint_own(found: Calibrated, axes: Axes) -> None:
    """Figure 4a as if everybody had a machine: simulated, beside what a real proxy's processor time allows, each where
    it was measured."""
    for count, color in zip(found.counts, COLORS, strict=False):
        drivers = sorted(number for proxies, number in found.own if proxies == count)
        rates = [found.own[count, number] / 1e6 for number in drivers]
        axes.plot(drivers, rates, color=color, linestyle=(0, (5, 2)), label=f"{_proxies(count)}, simulated")
    for count, color, shape in zip(found.counts, COLORS, MARKS, strict=False):
        style: Any = {"color": color, "marker": shape, "markerfacecolor": "none", "linewidth": 0.8, "markersize": 7}
        allowed = [spot.capacity / 1e6 for spot in found.of(count)]
        label = f"{_proxies(count)}, real proxy allows"
        axes.plot([spot.drivers for spot in found.of(count)], allowed, label=label, **style)
    figures.expect(axes, (min(ALONE), max(ALONE)), sum(PAPER) / 2e6, "peak of 3 proxies (paper)")
    _ticks(axes, ALONE)
    axes.set_ylabel("million events/s in total")
    axes.set_title("Throughput by drivers, a processor each (SP1)")


def paint_service(rows: Sequence[Row], found: Calibrated, axes: Axes) -> None:
    """Processor time of a batch over its size: measured, and the lines through it."""
    measured = [row for row in rows if row["part"] == "service"]
    sizes = np.array(sizes_of(measured))
    model = found.model
    lines = {
        "replica, busy": ("replica", True, model.replica),
        "replica, woken": ("replica", False, LoadLine(model.replica.fixed + model.wake, model.replica.event)),
        "driver, woken": ("driver", False, model.driver),
    }
    for (label, (name, busy, line)), color, shape in zip(lines.items(), COLORS, MARKS, strict=True):
        some = [row for row in measured if (row["inflight"] > 1) == busy]
        taken = [row[f"{name}_cpu"] / batches(row) * 1e6 for row in some]
        axes.plot([row["batch"] for row in some], taken, shape, color=color, markersize=5, label=label)
        told = f"{line.fixed * 1e6:.0f} µs + {line.event * 1e9:.1f} ns per event"
        axes.plot(sizes, [line.at(size) * 1e6 for size in sizes], color=color, label=told)
    before = ServiceTable()
    axes.plot(
        sizes,
        [(before.per_message + size * before.per_event) * 1e6 for size in sizes],
        color=figures.VERMILION,
        linestyle=(0, (2, 1)),
        label="a scenario's default",
    )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("events in a batch")
    axes.set_ylabel("µs of processor time per batch")
    axes.set_title("What a batch costs a replica and a driver")


# --- the experiment -------------------------------------------------------------------------------------

TOML = """\
# Measured by: tidings lab run calibration --scale {scale}
# One replica in memory, {under_way} batches under way, {seconds:g} s per size, median of {repeat} after a warm-up.
# Meanwhile {busy}.
# Not measured: per_message, what a message without events costs; it keeps its default.
[service]
per_batch = {per_batch:.3e}
per_event = {per_event:.3e}
per_wake = {per_wake:.3e}
"""


FITTED: dict[Path, Model] = {}
"""By where a run reports to: what it has measured. Studies of the same run that report later take it from here."""


def report(sql: Sql, scale: str, out: Path) -> Findings:
    """Fit, simulate, judge, draw, and write down the service times."""
    rows = sql("select * from results order by part, proxies, drivers, batch, inflight, run")
    return report_rows(rows, scale, out)


def report_rows(rows: Sequence[Row], scale: str, out: Path) -> Findings:
    """The same from the rows."""
    found = beside(rows)
    FITTED[out] = found.model
    claims = [judged(found) for judged in JUDGES]
    told = msgspec.structs.asdict(found.model.service) | {"busy": _busy(found.sizes), "scale": scale, "under_way": BUSY}
    text = TOML.format(seconds=SECONDS[scale], repeat=REPEAT[scale], **told)
    (out / "service.toml").write_text(text)
    table = [
        {
            **{name: getattr(spot, name) for name in ("proxies", "drivers", "capacity", "used", "others", "simulated")},
            "real": spot.rate,
            "real_min": min(spot.real),
            "real_max": max(spot.real),
            "distance": spot.distance,
        }
        for spot in found.spots
    ]
    pq.write_table(pa.Table.from_pylist(table), out / "sp1-drivers.parquet")
    data = [str(out / "sp1-drivers.parquet"), str(out / "results" / "drivers")]
    return Findings(
        claims,
        {
            "SP1": [
                *figures.draw(out, "sp1-drivers", lambda axes: paint_rates(found, axes, each=False)),
                *figures.draw(out, "sp1-own-processors", lambda axes: paint_own(found, axes)),
            ],
            "SP2": figures.draw(out, "sp2-per-driver", lambda axes: paint_rates(found, axes, each=True)),
            "service": figures.draw(out, "service-times", lambda axes: paint_service(rows, found, axes)),
        },
        {"SP1": data, "SP2": data, "service": [str(out / "service.toml")]},
    )


PAPER_NAME = "calibration"
ROOMS = ("net", "store", "server", "client")
STUDIES = (Study("drivers", points, measure, report, alone=True),)
EXPERIMENTS = (
    Experiment(
        "SP1",
        PAPER_NAME,
        "Figure 4a: throughput by drivers, a real cluster and the simulator",
        ("SP1.rises", "SP1.saturates", "SP1.peak", "SP1.own-processors", "SP1.value", "SP1.model"),
        "drivers",
    ),
    Experiment("SP2", PAPER_NAME, "Figure 4b: the same per driver", ("SP2.falls",), "drivers"),
    Experiment(
        "service",
        PAPER_NAME,
        "What a batch costs a replica's processor: the simulator's service times",
        ("service.line", "service.constant"),
        "drivers",
    ),
)
