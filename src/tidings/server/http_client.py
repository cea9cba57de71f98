"""Calls to the small HTTP servers of processes (http.py), which listen on loopback alone."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.error
import urllib.request
from typing import Any

import msgspec

from tidings.core.errors import TidingsError

HOST = "127.0.0.1"
HEADER = "x-tidings-token"
CALL_SECONDS = 30.0  # ours: the slowest call waits for a chain to change


class CallFailed(TidingsError):
    """A process has refused a call, or could not be reached."""


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
        with contextlib.suppress(msgspec.DecodeError, KeyError):
            raise CallFailed(str(msgspec.json.decode(text)["error"])) from None
        raise CallFailed(f"{path} on port {port}: {error}") from None
    except OSError as error:
        raise CallFailed(f"{path} on port {port} does not answer: {error}") from None


async def call_async(port: int, path: str, body: Any = None, *, token: str = "", timeout: float = CALL_SECONDS) -> Any:
    """As `call`, beside the running loop."""
    return await asyncio.to_thread(call, port, path, body, token=token, timeout=timeout)
