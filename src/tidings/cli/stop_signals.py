"""How a command that runs until Ctrl-C learns that it is to end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable


def asked_to_stop(after: float | None = None) -> Callable[[], bool]:
    """Whether Ctrl-C or SIGTERM has come, or so many seconds have passed.

    To be called when Spark has started: PySpark sets a handler of its own.
    """
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: asked.append(got))
    end = None if after is None else time.monotonic() + after
    return lambda: bool(asked) or (end is not None and time.monotonic() > end)
