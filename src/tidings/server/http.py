"""The small HTTP servers of processes, bound to loopback; http_client.py has the calls to them.

Reading needs no token. A call that changes something needs the token of the process's run file, which only its user
can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse

from tidings.server.http_client import HEADER, HOST


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: the process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves an application on a free port of loopback, in the running loop."""

    def __init__(self, application: Starlette) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, 0))
        self._socket.listen(128)  # from here on calls wait instead of being refused
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            application,
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=2,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Serve."""
        self._task = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Stop serving; calls in progress may complete."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()


def refused(text: str, status: int = 400) -> JSONResponse:
    """An answer that says what is wrong."""
    return JSONResponse({"error": text}, status_code=status)


def authorized(request: Request, token: str) -> bool:
    """Whether a call may change something."""
    return bool(token) and hmac.compare_digest(request.headers.get(HEADER, ""), token)
