"""The supervisor's HTTP: status for every caller, changes for a caller with the token of its run file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tidings.core.errors import BadInput, TidingsError
from tidings.server.http import authorized, refused
from tidings.server.supervisor import NotReady, Supervisor

Handle = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class SupervisorHttp:
    """The application."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.application = Starlette(
            routes=[
                Route("/status", self._status),
                Route("/healthz", self._health),
                Route("/ready", self._changing(self._ready), methods=["POST"]),
                Route("/fault", self._changing(supervisor.faults.inject), methods=["POST"]),
                Route("/replicas/add", self._changing(self._add), methods=["POST"]),
                Route("/replicas/remove", self._changing(self._remove), methods=["POST"]),
                Route("/regions/bootstrap", self._changing(self._bootstrap), methods=["POST"]),
                Route("/stop", self._changing(self._stop), methods=["POST"]),
            ]
        )

    async def _status(self, request: Request) -> JSONResponse:
        return JSONResponse(await self._supervisor.status())

    async def _health(self, request: Request) -> JSONResponse:
        missing = self._supervisor.missing()
        return JSONResponse({"missing": missing}, status_code=503 if missing else 200)

    async def _ready(self, body: dict[str, Any]) -> dict[str, Any]:
        await self._supervisor.ready(float(body.get("timeout", 10.0)))
        return {"ready": True}

    async def _add(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._supervisor.changes.add(str(body["region"]))

    async def _remove(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._supervisor.changes.remove(self._supervisor.child(str(body["replica"])))

    async def _bootstrap(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._supervisor.regions.bootstrap_lost(str(body["region"]))

    async def _stop(self, body: dict[str, Any]) -> dict[str, Any]:
        self._supervisor.stopping.set()
        return {"stopping": True}

    def _changing(self, handle: Handle) -> Callable[[Request], Awaitable[JSONResponse]]:
        """A handler that demands the token, and answers errors with their text."""

        async def answer(request: Request) -> JSONResponse:
            if not authorized(request, self._supervisor.token):
                return refused("the token is missing or wrong: it is in the run file of the supervisor", 403)
            try:
                return JSONResponse(await handle(await request.json()))
            except (BadInput, KeyError, ValueError) as error:
                return refused(str(error))
            except NotReady as error:
                return refused(str(error), 503)
            except (TidingsError, OSError) as error:
                return refused(str(error), 409)

        return answer
