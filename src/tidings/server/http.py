"""The small HTTP servers of processes, bound to loopback, and calls to them.

Reading needs nothing; what changes something needs the token of the process's run file, which only its user can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse

from tidings.core.errors import TidingsError

HOST = "127.0.0.1"
HEADER = "x-tidings-token"
CALL_SECONDS = 30.0  # ours: the slowest call waits for a chain to change


class CallFailed(TidingsError):
    """A process has refused a call, or could not be reached."""


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
        """Serve no more; calls under way may end."""
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


def call(port: int, path: str, body: Any = None, *, token: str = "", timeout: float = CALL_SECONDS) -> Any:
    """GET, or POST a JSON body; the JSON that comes back. Raises `CallFailed` with the reason."""
    data = None if body is None else msgspec.json.encode(body)
    request = urllib.request.Request(f"http://{HOST}:{port}{path}", data)
    request.add_header(HEADER, token)
    request.add_header("content-type", "application/json")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback never goes by a proxy
    try:
        with opener.open(request, timeout=timeout) as response:
            return msgspec.json.decode(response.read())
    except urllib.error.HTTPError as error:
        with error:
            text = error.read()
        with contextlib.suppress(msgspec.DecodeError):
            raise CallFailed(str(msgspec.json.decode(text)["error"])) from None
        raise CallFailed(f"{path} on port {port}: {error}") from None
    except OSError as error:
        raise CallFailed(f"{path} on port {port} does not answer: {error}") from None


async def call_async(port: int, path: str, body: Any = None, *, token: str = "", timeout: float = CALL_SECONDS) -> Any:
    """As `call`, beside the running loop."""
    return await asyncio.to_thread(call, port, path, body, token=token, timeout=timeout)
