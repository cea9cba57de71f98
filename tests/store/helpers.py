"""What the tests of the store share: records that make sense, a host without sockets, and a power switch."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidings.core.gc import GcPolicy
from tidings.core.history import History
from tidings.core.ids import StreamId
from tidings.core.rows import Origin, before_rows, data_rows
from tidings.core.span import Span
from tidings.protocols.replication.log import Log, Logged, Record
from tidings.store import Store, StoreError
from tidings.store.files import DATA

STREAMS = ("keyed", "plain", "_publishers")


def make_history(stream: StreamId) -> History:
    return History(stream, GcPolicy(by_key=stream != "plain"))


def empty_log() -> Log:
    return Log(make_history, STREAMS)


def batch(log: Log, stream: StreamId, count: int, keys: int = 5, salt: int = 0) -> Span:
    """The next full span of a stream; on the plain one now and then it collects."""
    lo = log.ends[stream]
    origin = Origin(lo, lo + count, "p", 1, lo, lo, float(lo), "eu")
    if stream == "plain" and lo > 20 and salt % 7 == 0:
        return Span.of(stream, lo, before_rows(lo, [lo - 10] * count, origin))
    names: list[bytes | None] = [b"k%d" % ((lo * 31 + at * 7 + salt) % keys) for at in range(count)]
    return Span.of(stream, lo, data_rows(lo, names, [b"%d/%d" % (lo + at, salt) for at in range(count)], origin))


def record(log: Log, *sizes: int, epoch: int = 1, salt: int = 0, keys: int = 5) -> Record:
    """The next record of a log, with a part for each stream that has a size."""
    parts = [batch(log, stream, size, keys, salt) for stream, size in zip(STREAMS, sizes, strict=False) if size]
    return Record(epoch, log.last + 1, tuple(parts))


def logged(count: int, rows: int = 3) -> list[Logged]:
    """Entries of a log that grows and is committed two records behind."""
    log = empty_log()
    out: list[Logged] = []
    for at in range(count):
        made = record(log, rows, at % 2, 1, salt=at)
        log.append(made)
        out.append(Logged(made, log.committed))
        while log.committed < log.last - 2:
            log.commit_next()
    return out


def summary(log: Log) -> dict[str, Any]:
    """What two logs must agree on to be the same."""
    return {
        "committed": log.committed,
        "last": log.last,
        "records": [one.digest for one in log.between(log.committed, log.last)],
        "ends": log.ends,
        "epochs": (log.token_epoch, log.joined_epoch, log.epoch_of(log.committed)),
        "histories": {
            name: (one.horizon, [span.digest for span in one.know(1, one.horizon)], one.live)
            for name, one in log.histories.items()
        },
    }


class Host:
    """Runs a store in an event loop of its own, step by step."""

    def __init__(self, store: Store) -> None:
        self.loop = asyncio.new_event_loop()
        self.store = store
        self.tokens: list[int] = []
        self.conditions: list[tuple[str, StoreError | None]] = []
        store.start(self.loop, self.tokens.append, lambda *what: self.conditions.append(what))

    def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Turn the loop until something holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"tokens {self.tokens[-3:]}, {self.conditions}"
            self.loop.run_until_complete(asyncio.sleep(0.001))

    def settled(self, token: int) -> None:
        """Wait until a token is durable."""
        self.until(lambda: bool(self.tokens) and self.tokens[-1] >= token)

    def close(self, *, flush: bool = True) -> None:
        self.store.close(flush=flush)
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


class PowerSwitch:
    """Remembers the data file as it was at the last completed sync; a power cut puts it back.

    What was written since is gone, as in a disk whose cache has lost it.
    """

    def __init__(self, store: Store, path: Path) -> None:
        self.path = path
        self.syncs = 0
        self._image = path.with_name(path.name + ".image")
        self._remember()
        store.on_sync(self._remember)

    def _remember(self) -> None:
        shutil.copyfile(self.path / DATA, self._image)
        self.syncs += 1

    def cut(self) -> None:
        """Put the directory back; the store must not be open."""
        shutil.copyfile(self._image, self.path / DATA)
