"""A line on a terminal while a command waits for a cluster, so that retries are seen."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

EACH = 1.0  # seconds before the line is shown, and between its updates; ours: most answers take a hundredth of it
CLEAR = "\r\x1b[K"


@contextmanager
def show_waiting(text: str) -> Iterator[None]:
    """Say on stderr what is waited for, and for how long already, if stderr is a terminal and it takes a second."""
    if not text or not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_show, args=(text, over), name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show(text: str, over: threading.Event) -> None:
    began = time.monotonic()
    shown = False
    while not over.wait(EACH):
        line = f"{text} ({time.monotonic() - began:.0f} s; Ctrl-C ends it)"
        sys.stderr.write(CLEAR + line[: _width() - 1])
        sys.stderr.flush()
        shown = True
    if shown:
        sys.stderr.write(CLEAR)
        sys.stderr.flush()


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80
