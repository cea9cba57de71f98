"""Lines of stdin as they come: a thread waits for them, so that the loop need not.

The thread reads the descriptor itself. One that waits inside `sys.stdin` holds its lock, and a program that ends
meanwhile (Ctrl-C, an error) would be aborted by the interpreter.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

from tidings.core.errors import BadInput

READ = 1 << 18  # bytes at once; ours: a pipe holds a quarter of it
AHEAD = 16  # reads that wait for the loop; ours, because a fast writer must not fill the memory
LONGEST = 8 << 20  # bytes of a line; ours: an event of 1 MiB, each byte of it escaped, and its attributes


def stdin() -> int:
    """The descriptor of stdin; raises `BadInput` if it is closed."""
    if sys.stdin is None:
        raise BadInput("stdin is closed: there is nothing to read")
    return sys.stdin.fileno()


def whole_lines(file: int) -> Iterator[list[bytes]]:
    """What each read completes, without the line feeds; what is behind the last one is a line too."""
    done = 0
    begun: list[bytes] = []  # parts of a line whose end is not there yet
    size = 0
    while data := os.read(file, READ):
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*begun, lines[0]])
            begun, size = [], 0
            done += len(lines)
            yield lines
        begun.append(rest)
        size += len(rest)
        if size > LONGEST:
            raise BadInput(f"line {done + 1} has more than {LONGEST} bytes; an event has at most 1 MiB")
    if size:
        yield [b"".join(begun)]


async def lines_of(file: int) -> AsyncIterator[tuple[list[bytes], bool]]:
    """Lines as soon as they are there, and whether there are more already."""
    loop = asyncio.get_running_loop()
    found: asyncio.Queue[list[bytes] | Exception | None] = asyncio.Queue()
    room = threading.Semaphore(AHEAD)

    def tell(what: list[bytes] | Exception | None) -> None:
        loop.call_soon_threadsafe(found.put_nowait, what)

    def read() -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody wants more
            try:
                for lines in whole_lines(file):
                    room.acquire()
                    tell(lines)
                tell(None)
            except (BadInput, OSError) as error:
                tell(error)

    # A daemon, because nothing can end a read: the program does not wait for the next line when it ends.
    threading.Thread(target=read, name="lines", daemon=True).start()
    while (lines := await found.get()) is not None:
        if isinstance(lines, Exception):
            raise lines
        room.release()
        yield lines, not found.empty()
