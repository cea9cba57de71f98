"""`tidings top`: what `tidings status` shows, every second anew, with events per second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from tidings.cli.cluster_options import ClusterFile, Directory, Url, cluster_status, find_cluster
from tidings.cli.output import Json, emit
from tidings.cli.status import screen, show

EXAMPLE = "Example: tidings top     (once, as JSON: tidings top --json)"
PERIOD = 1.0  # seconds between two looks; ours: as `top` of a machine, and a rate is counted in seconds

Status: TypeAlias = dict[str, Any]


def top(url: Url = None, directory: Directory = None, config: ClusterFile = None, as_json: Json = False) -> None:
    """Watch replicas and streams, with events per second. Ends at Ctrl-C.

    Off a terminal, or with --json, it looks twice, a second apart, prints once and ends.
    """
    found = find_cluster(url, directory, config)
    watch = TopView(lambda: cluster_status(found), time.monotonic)
    try:
        if _on_terminal() and not as_json:
            _live(watch)
            return
        watch.look()
        time.sleep(PERIOD)
        result = watch.look()
    except KeyboardInterrupt:
        return
    emit(result, as_json, lambda: show(result))


def _on_terminal() -> bool:
    return sys.stdout.isatty()


class TopView:
    """Looks at a cluster again and again, and knows what came between two looks."""

    def __init__(self, ask: Callable[[], Status], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._before: Status | None = None
        self._at = 0.0

    def look(self) -> Status:
        """The status now; each stream has ``events_per_s`` since the look before, None where that is not known."""
        found = self._ask()
        now = self._clock()
        before = {each["name"]: each for each in self._before["streams"]} if self._before else {}
        streams = [
            {**each, "events_per_s": _rate(before.get(each["name"]), each, now - self._at)} for each in found["streams"]
        ]
        self._before, self._at = found, now
        return {**found, "streams": streams}


def _rate(before: Status | None, after: Status, seconds: float) -> float | None:
    """Events per second that the owner has numbered, or, where it has not answered, that have come furthest."""
    if before is None or seconds <= 0:
        return None
    both = [region for region in after["horizon"] if region in before["horizon"]]
    regions = [after["region"]] if after["region"] in both else both
    if not regions:
        return None
    came: int = max(after["horizon"][each] for each in regions) - max(before["horizon"][each] for each in regions)
    return round(came / seconds, 1) if came >= 0 else None  # less than before: the region began anew


def _live(watch: TopView) -> None:
    from rich.live import Live

    with Live(screen(watch.look()), auto_refresh=False) as live:
        while True:
            time.sleep(PERIOD)
            live.update(screen(watch.look()), refresh=True)
