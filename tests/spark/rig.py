"""A cluster for blocking tests, and streams with rows in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tidings import sync
from tidings.server.local import LocalCluster

T = TypeVar("T")


class Cluster:
    """A local cluster, driven from blocking code."""

    def __init__(self, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.local = LocalCluster(**options)
        self.do(self.local.start())

    def do(self, work: Coroutine[Any, Any, T], timeout: float = 120.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def kill(self, replica: str) -> None:
        self.do(self.local.kill(replica))

    def until_ready(self) -> None:
        self.do(self.local.until_ready())

    @property
    def url(self) -> str:
        return self.local.url("r0")

    @property
    def servers(self) -> str:
        return self.url.removeprefix("tidings://")

    def connect(self) -> sync.Connection:
        return sync.connect(self.url)

    def stop(self) -> None:
        self.do(self.local.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
